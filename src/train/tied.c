/*
 * Both ends have the same slice of the embedding, but not at the same position of their local
 * vectors, nor, where ZeRO cuts concatenations, divided alike among their groups. So each rank
 * meets the pieces of all members of the group at the other end with its own, counted from the
 * embedding's first element; where two meet, they exchange what they have and add it.
 *
 * 1. The sum has two terms, so it does not matter which comes first: both get the same bits.
 * 2. Meetings of two ranks are in ascending order on both, so one tag is enough.
 */
#include "train/tied.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/comm.h"
#include "train/group.h"

#define TAG_TIED 83
#define EMBEDDING 0 /* the space's first tensor */

/* Elements that this rank and `peer` both have. */
typedef struct meeting {
    int peer;
    float *own;
    int64_t count;
    float *theirs;
} meeting;

typedef struct meeting_list {
    meeting *items;
    size_t count;
    size_t capacity;
} meeting_list;

struct rs_tied {
    MPI_Comm comm;
    meeting_list meetings;
    float *memory;
    MPI_Request *requests;
};

/* The pieces of a rank's embedding, counted from its first element. */
static rs_status list_pieces(const rs_state *state, int rank, int64_t *base, rs_runs *out)
{
    rs_runs whole = {0};
    int role = rs_state_update_role(state, EMBEDDING);
    out->count = 0;
    rs_status status =
        rs_state_pieces(state, state->whole, rank, RS_MESH_DENSE, 0, EMBEDDING, &whole);
    if (status == RS_OK && role >= 0)
        status = rs_state_pieces(state, state->flat, rank, RS_MESH_DENSE, role, EMBEDDING, out);
    rs_runs_sort(&whole, 1);
    rs_runs_sort(out, 1);
    *base = whole.count > 0 ? whole.items[0].begin : 0;
    for (size_t i = 0; i < out->count; i++) {
        out->items[i].begin -= *base;
        out->items[i].end -= *base;
    }
    rs_runs_fini(&whole);
    return status;
}

static rs_status meet(rs_tied *tied, int peer, const rs_runs *own, const rs_runs *theirs,
    int64_t base, const rs_runs *reduced)
{
    size_t i = 0, k = 0;
    while (i < own->count && k < theirs->count) {
        int64_t begin = rs_max64(own->items[i].begin, theirs->items[k].begin);
        int64_t end = rs_min64(own->items[i].end, theirs->items[k].end);
        for (int64_t n; begin < end; begin += n) {
            n = rs_min64(end - begin, RS_COMM_FLOATS);
            RS_TRY(RS_LIST_RESERVE_ONE(&tied->meetings));
            float *at = rs_runs_at(reduced, sizeof *at, base + begin);
            tied->meetings.items[tied->meetings.count++] = (meeting){peer, at, n, NULL};
        }
        if (own->items[i].end < theirs->items[k].end)
            i++;
        else
            k++;
    }
    return RS_OK;
}

static rs_status make_memory(rs_tied *tied)
{
    int64_t count = 0;
    for (size_t i = 0; i < tied->meetings.count; i++)
        count += tied->meetings.items[i].count;
    tied->memory = rs_calloc((size_t)count, sizeof *tied->memory);
    tied->requests = rs_calloc(2 * tied->meetings.count, sizeof(MPI_Request));
    if (tied->memory == NULL || tied->requests == NULL)
        return rs_error_memory((size_t)count * sizeof *tied->memory);
    float *next = tied->memory;
    for (size_t i = 0; i < tied->meetings.count; i++) {
        tied->meetings.items[i].theirs = next;
        next += tied->meetings.items[i].count;
    }
    return RS_OK;
}

rs_status rs_tied_create(
    const rs_world *world, const rs_state *state, const rs_runs *reduced, bool tied, rs_tied **out)
{
    int last = world->layout.pp - 1, size = rs_layout_shard_group(&world->layout, false);
    *out = NULL;
    if (!tied || last == 0 || (world->at.pp != 0 && world->at.pp != last))
        return RS_OK;
    rs_runs own = {0}, theirs = {0};
    int64_t base, other;
    rs_status status;
    rs_tied *t = rs_calloc(1, sizeof *t);
    int *ranks = rs_calloc((size_t)size, sizeof *ranks);
    if (t == NULL || ranks == NULL) {
        status = rs_error_memory(sizeof *t);
        goto done;
    }
    t->comm = world->all;
    rs_group_ranks(&world->layout, RS_MESH_DENSE, world->rank, last - world->at.pp, ranks);
    RS_TRY_GOTO(list_pieces(state, state->rank, &base, &own), done);
    for (int m = 0; m < size; m++) {
        RS_TRY_GOTO(list_pieces(state, ranks[m], &other, &theirs), done);
        RS_TRY_GOTO(meet(t, ranks[m], &own, &theirs, base, reduced), done);
    }
    RS_TRY_GOTO(make_memory(t), done);
    *out = t;
    t = NULL;
done:
    rs_tied_destroy(t);
    free(ranks);
    rs_runs_fini(&theirs);
    rs_runs_fini(&own);
    return status;
}

void rs_tied_destroy(rs_tied *tied)
{
    if (tied == NULL)
        return;
    free(tied->requests);
    free(tied->memory);
    free(tied->meetings.items);
    free(tied);
}

void rs_tied_reduce(rs_tied *tied)
{
    if (tied == NULL)
        return;
    int posted = 0;
    for (size_t i = 0; i < tied->meetings.count; i++) {
        meeting *m = &tied->meetings.items[i];
        rs_comm_expect_floats(
            tied->comm, m->peer, TAG_TIED, m->theirs, m->count, &tied->requests[posted++]);
    }
    for (size_t i = 0; i < tied->meetings.count; i++) {
        meeting *m = &tied->meetings.items[i];
        rs_comm_post_floats(
            tied->comm, m->peer, TAG_TIED, m->own, m->count, &tied->requests[posted++]);
    }
    MPI_Waitall(posted, tied->requests, MPI_STATUSES_IGNORE);
    for (size_t i = 0; i < tied->meetings.count; i++) {
        meeting *m = &tied->meetings.items[i];
        for (int64_t k = 0; k < m->count; k++)
            m->own[k] += m->theirs[k];
    }
}
