/*
 * Gathering and reducing blocks of a divided vector.
 *
 * Every member knows everybody's runs, so nothing is negotiated: what lies between two members is
 * one message, of as many elements as the piece has in the block, none where it has none. A piece
 * that is one run in the block goes straight from and to where it belongs; one of several runs (a
 * cut parameter by parameter) is packed.
 *
 * 1. Receives are posted before sends. Messages between two members are matched by their order;
 * gatherings and reductions have different tags, because one may be posted before another is over.
 * 2. A sum starts from member 0's value, then 1, 2, ...: plain float additions.
 * 3. Memory is one block's, twice at most.
 *
 * Cost: (n-1)/n of the block sent and received per member, each way.
 */
#include "train/share.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/comm.h"
#include "train/simd.h"

#define TAG_GATHER 75
#define TAG_REDUCE 76

/* What a member has of a block: runs first..end-1 of its pieces. */
typedef struct part {
    size_t first;
    size_t end;
    int64_t elements;
} part;

struct rs_share {
    MPI_Comm comm;
    int rank;
    int size;
    int blocks;
    rs_extent *extents;
    rs_runs *pieces; /* of each member */
    part *parts;     /* [member][block] */
};

struct rs_flight {
    const rs_share *share;
    int64_t width;  /* bytes of an element */
    char *outgoing; /* packed */
    char *incoming;
    float *sum;
    MPI_Request *requests;
    int posted;
    int block;
    char *to;
};

static const part *part_of(const rs_share *share, int member, int block)
{
    return &share->parts[(size_t)member * (size_t)share->blocks + (size_t)block];
}

static rs_status copy_runs(const rs_runs *from, rs_runs *to)
{
    for (size_t i = 0; i < from->count; i++)
        RS_TRY(rs_runs_add(to, &from->items[i]));
    return RS_OK;
}

static void find_parts(rs_share *share, int member)
{
    const rs_runs *runs = &share->pieces[member];
    for (int b = 0; b < share->blocks; b++) {
        part *p = &share->parts[(size_t)member * (size_t)share->blocks + (size_t)b];
        p->first = rs_runs_from(runs, share->extents[b].begin);
        p->end = rs_runs_from(runs, share->extents[b].end);
        for (size_t i = p->first; i < p->end; i++)
            p->elements += runs->items[i].end - runs->items[i].begin;
    }
}

rs_status rs_share_create(
    MPI_Comm comm, const rs_runs *pieces, const rs_extent *extents, int blocks, rs_share **out)
{
    rs_status status;
    rs_share *share = rs_calloc(1, sizeof *share);
    if (share == NULL)
        return rs_error_memory(sizeof *share);
    share->comm = comm;
    share->blocks = blocks;
    MPI_Comm_rank(comm, &share->rank);
    MPI_Comm_size(comm, &share->size);
    size_t parts = (size_t)share->size * (size_t)blocks;
    share->extents = rs_calloc((size_t)blocks, sizeof *share->extents);
    share->pieces = rs_calloc((size_t)share->size, sizeof *share->pieces);
    share->parts = rs_calloc(parts, sizeof *share->parts);
    if (share->extents == NULL || share->pieces == NULL || share->parts == NULL) {
        status = rs_error_memory(parts * sizeof *share->parts);
        goto fail;
    }
    memcpy(share->extents, extents, (size_t)blocks * sizeof *extents);
    for (int m = 0; m < share->size; m++) {
        RS_TRY_GOTO(copy_runs(&pieces[m], &share->pieces[m]), fail);
        find_parts(share, m);
    }
    *out = share;
    return RS_OK;

fail:
    rs_share_destroy(share);
    return status;
}

void rs_share_destroy(rs_share *share)
{
    if (share == NULL)
        return;
    for (int m = 0; share->pieces != NULL && m < share->size; m++)
        rs_runs_fini(&share->pieces[m]);
    free(share->parts);
    free(share->pieces);
    free(share->extents);
    free(share);
}

const rs_runs *rs_share_piece(const rs_share *share)
{
    return &share->pieces[share->rank];
}

rs_status rs_flight_create(const rs_share *share, size_t size, rs_flight **out)
{
    rs_flight *f = rs_calloc(1, sizeof *f);
    if (f == NULL)
        return rs_error_memory(sizeof *f);
    f->share = share;
    f->width = (int64_t)size;
    int64_t largest = 0, all = 0, own = 0;
    for (int b = 0; b < share->blocks && share->size > 1; b++) {
        int64_t sum = 0;
        for (int m = 0; m < share->size; m++) {
            int64_t n = part_of(share, m, b)->elements;
            largest = rs_max64(largest, n);
            sum += n;
        }
        all = rs_max64(all, sum);
        own = rs_max64(own, part_of(share, share->rank, b)->elements);
    }
    all = rs_max64(all, own * share->size);
    size_t messages = 2 * (size_t)share->size * rs_comm_messages(largest * f->width);
    f->requests = rs_calloc(messages, sizeof *f->requests);
    f->outgoing = rs_calloc((size_t)all, size);
    f->incoming = rs_calloc((size_t)all, size);
    f->sum = rs_calloc((size_t)own, sizeof *f->sum);
    if (f->requests == NULL || f->outgoing == NULL || f->incoming == NULL || f->sum == NULL) {
        rs_flight_destroy(f);
        return rs_error_memory(2 * (size_t)all * size);
    }
    *out = f;
    return RS_OK;
}

void rs_flight_destroy(rs_flight *flight)
{
    if (flight == NULL)
        return;
    free(flight->sum);
    free(flight->incoming);
    free(flight->outgoing);
    free(flight->requests);
    free(flight);
}

static void post(rs_flight *f, bool sends, char *data, int64_t bytes, int peer, int tag)
{
    f->posted +=
        rs_comm_post_bytes(f->share->comm, sends, peer, tag, data, bytes, f->requests + f->posted);
}

static void wait_all(rs_flight *f)
{
    MPI_Waitall(f->posted, f->requests, MPI_STATUSES_IGNORE);
    f->posted = 0;
}

/* Where a member's only run in the block lies in the block's memory; NULL if it has not one. */
static char *single(const rs_flight *f, int member, int block, char *base)
{
    const part *p = part_of(f->share, member, block);
    if (p->end != p->first + 1)
        return NULL;
    const rs_run *run = &f->share->pieces[member].items[p->first];
    return base + (run->begin - f->share->extents[block].begin) * f->width;
}

/* ---- gathering ---- */

void rs_share_gather_begin(rs_flight *f, int block, const rs_runs *from, void *to)
{
    const rs_share *s = f->share;
    const part *own = part_of(s, s->rank, block);
    const rs_runs *piece = &s->pieces[s->rank];
    int64_t first = s->extents[block].begin;
    f->block = block;
    f->to = to;
    char *room = f->incoming;
    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + s->size - i) % s->size;
        int64_t bytes = part_of(s, peer, block)->elements * f->width;
        char *straight = single(f, peer, block, to);
        post(f, false, straight != NULL ? straight : room, bytes, peer, TAG_GATHER);
        room += straight != NULL ? 0 : bytes;
    }
    char *mine = f->outgoing, *next = mine;
    for (size_t i = own->first; i < own->end; i++) {
        const rs_run *run = &piece->items[i];
        char *there = f->to + (run->begin - first) * f->width;
        int64_t bytes = (run->end - run->begin) * f->width;
        rs_runs_read(from, (size_t)f->width, run->begin, run->end, there);
        if (own->end == own->first + 1)
            mine = there;
        else if (s->size > 1)
            memcpy(next, there, (size_t)bytes);
        next += bytes;
    }
    for (int i = 1; i < s->size; i++)
        post(f, true, mine, own->elements * f->width, (s->rank + i) % s->size, TAG_GATHER);
}

void rs_share_gather_end(rs_flight *f)
{
    const rs_share *s = f->share;
    wait_all(f);
    const char *room = f->incoming;
    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + s->size - i) % s->size;
        const part *p = part_of(s, peer, f->block);
        if (p->end == p->first + 1)
            continue;
        for (size_t k = p->first; k < p->end; k++) {
            const rs_run *run = &s->pieces[peer].items[k];
            size_t bytes = (size_t)((run->end - run->begin) * f->width);
            memcpy(f->to + (run->begin - s->extents[f->block].begin) * f->width, room, bytes);
            room += bytes;
        }
    }
}

/* ---- reducing ---- */

RS_CLONES static void add_run(float *restrict into, const float *restrict more, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        into[i] += more[i];
}

/* A member's piece of the block, one run behind the other. */
static char *pack(const rs_flight *f, int member, int block, const float *from, char *room)
{
    const part *p = part_of(f->share, member, block);
    char *next = room;
    for (size_t i = p->first; i < p->end; i++) {
        const rs_run *run = &f->share->pieces[member].items[i];
        size_t bytes = (size_t)(run->end - run->begin) * sizeof *from;
        memcpy(next, from + (run->begin - f->share->extents[block].begin), bytes);
        next += bytes;
    }
    return next;
}

static void post_contributions(rs_flight *f, int block, const float *from)
{
    const rs_share *s = f->share;
    int64_t own = part_of(s, s->rank, block)->elements * f->width;
    char *room = f->outgoing;
    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + s->size - i) % s->size;
        post(f, false, f->incoming + peer * own, own, peer, TAG_REDUCE);
    }
    for (int i = 1; i < s->size; i++) {
        int peer = (s->rank + i) % s->size;
        char *end = pack(f, peer, block, from, room);
        post(f, true, room, end - room, peer, TAG_REDUCE);
        room = end;
    }
    pack(f, s->rank, block, from, f->incoming + s->rank * own);
}

void rs_share_reduce(rs_flight *f, int block, const float *from, const rs_runs *into, bool add)
{
    const rs_share *s = f->share;
    const part *own = part_of(s, s->rank, block);
    const rs_runs *piece = &s->pieces[s->rank];
    if (s->size > 1) {
        post_contributions(f, block, from);
        wait_all(f);
        memcpy(f->sum, f->incoming, (size_t)(own->elements * f->width));
        for (int m = 1; m < s->size; m++)
            add_run(f->sum, (const float *)(const void *)f->incoming + m * own->elements,
                own->elements);
    }
    const float *next = f->sum;
    for (size_t i = own->first; i < own->end; i++) {
        const rs_run *run = &piece->items[i];
        const float *sum = s->size > 1 ? next : from + (run->begin - s->extents[block].begin);
        float *to = rs_runs_at(into, sizeof *to, run->begin);
        if (add)
            add_run(to, sum, run->end - run->begin);
        else if (to != sum)
            memcpy(to, sum, (size_t)(run->end - run->begin) * sizeof *to);
        next += run->end - run->begin;
    }
}
