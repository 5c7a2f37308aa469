/*
 * Sums in the fixed order of ranks.
 *
 * MPI promises neither that Allreduce gives every rank the same bits nor that a rerun gives them
 * again. Training needs both: replicas must stay bit-equal (the certificate compares them) and a
 * layout must repeat its run. So: short vectors, and those of two ranks, are gathered whole and
 * added by everybody in rank order; long ones are cut into a piece per rank, each piece is added by
 * its rank in rank order, and the sums are sent around.
 *
 * 1. Adding starts from rank 0's value, then 1, 2, ...: plain float additions.
 * 2. Scratch is bounded: pieces travel in rounds of SCRATCH / size elements.
 * 3. Receives are posted before sends; in a round every rank has one message per peer. Spans are
 * gathered in order, and a rank whose request list is full waits for the spans so far: the rank
 * that is least far can always go on.
 *
 * Cost: 2 (n-1)/n of the vector sent and received per rank, as for any reduce-scatter + all-gather.
 */
#include "train/comm_sum.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/simd.h"

#define SCRATCH (1 << 20) /* floats */
#define SHORT 2048        /* floats: gathered whole */
#define MESSAGE (1 << 28) /* bytes of one message at most */
#define TAG 71

rs_status rs_ordered_init(rs_ordered *ordered, MPI_Comm comm)
{
    memset(ordered, 0, sizeof *ordered);
    ordered->comm = comm;
    MPI_Comm_rank(comm, &ordered->rank);
    MPI_Comm_size(comm, &ordered->size);
    if (ordered->size == 1)
        return RS_OK;
    size_t size = (size_t)ordered->size, floats = (size_t)rs_max64(SCRATCH, SHORT * (int64_t)size);
    ordered->capacity = 2 * ordered->size + 256;
    ordered->requests = rs_calloc((size_t)ordered->capacity, sizeof *ordered->requests);
    ordered->bounds = rs_calloc(size + 1, sizeof *ordered->bounds);
    ordered->scratch = rs_calloc(floats, sizeof *ordered->scratch);
    if (ordered->requests == NULL || ordered->bounds == NULL || ordered->scratch == NULL) {
        rs_ordered_fini(ordered);
        return rs_error_memory(floats * sizeof *ordered->scratch);
    }
    return RS_OK;
}

void rs_ordered_fini(rs_ordered *ordered)
{
    free(ordered->scratch);
    free(ordered->requests);
    free(ordered->bounds);
    memset(ordered, 0, sizeof *ordered);
    ordered->comm = MPI_COMM_NULL;
}

RS_CLONES static void add(float *restrict into, const float *restrict more, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        into[i] += more[i];
}

RS_CLONES static void raise(float *restrict into, const float *restrict more, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        into[i] = more[i] > into[i] ? more[i] : into[i];
}

typedef void (*combine)(float *restrict into, const float *restrict more, int64_t count);

/* Gathers everybody's `count` values (at most SCRATCH / size) and combines them in rank order. */
static void combine_whole(rs_ordered *ordered, float *values, int count, combine with)
{
    MPI_Allgather(values, count, MPI_FLOAT, ordered->scratch, count, MPI_FLOAT, ordered->comm);
    memcpy(values, ordered->scratch, (size_t)count * sizeof *values);
    for (int r = 1; r < ordered->size; r++)
        with(values, ordered->scratch + (int64_t)r * count, count);
}

static void combine_in_rounds(rs_ordered *ordered, float *values, int64_t count, combine with)
{
    int64_t most = rs_max64(SCRATCH / ordered->size, SHORT);
    for (int64_t done = 0; done < count; done += most)
        combine_whole(ordered, values + done, (int)rs_min64(most, count - done), with);
}

void rs_ordered_maximum(rs_ordered *ordered, float *values, int64_t count)
{
    if (ordered->size > 1)
        combine_in_rounds(ordered, values, count, raise);
}

/* How much of piece r is left after `done`, `most` at most. */
static int64_t piece_size(const int64_t *bounds, int r, int64_t done, int64_t most)
{
    return rs_max64(0, rs_min64(most, bounds[r + 1] - bounds[r] - done));
}

/* The largest piece: the number of rounds must be the same on every rank. */
static int64_t largest_piece(const rs_ordered *ordered, const int64_t *bounds)
{
    int64_t largest = 0;
    for (int r = 0; r < ordered->size; r++)
        largest = rs_max64(largest, bounds[r + 1] - bounds[r]);
    return largest;
}

void rs_ordered_scatter(rs_ordered *ordered, float *values, const int64_t *bounds)
{
    int me = ordered->rank, size = ordered->size;
    if (size == 1)
        return;
    int64_t most = SCRATCH / size, largest = largest_piece(ordered, bounds);
    for (int64_t done = 0; done < largest; done += most) {
        int64_t mine = piece_size(bounds, me, done, most);
        int count = 0;
        for (int i = 1; i < size && mine > 0; i++) {
            int from = (me + size - i) % size;
            MPI_Irecv(ordered->scratch + from * most, (int)mine, MPI_FLOAT, from, TAG,
                ordered->comm, &ordered->requests[count++]);
        }
        for (int i = 1; i < size; i++) {
            int to = (me + i) % size;
            int64_t n = piece_size(bounds, to, done, most);
            if (n > 0)
                MPI_Isend(values + bounds[to] + done, (int)n, MPI_FLOAT, to, TAG, ordered->comm,
                    &ordered->requests[count++]);
        }
        float *own = values + bounds[me] + done;
        if (mine > 0)
            memcpy(ordered->scratch + me * most, own, (size_t)mine * sizeof *own);
        MPI_Waitall(count, ordered->requests, MPI_STATUSES_IGNORE);
        if (mine > 0)
            memcpy(own, ordered->scratch, (size_t)mine * sizeof *own);
        for (int r = 1; r < size && mine > 0; r++)
            add(own, ordered->scratch + r * most, mine);
    }
}

static void flush(rs_ordered *ordered)
{
    MPI_Waitall(ordered->posted, ordered->requests, MPI_STATUSES_IGNORE);
    ordered->posted = 0;
}

/* Sends, or receives, `bytes` at `data` to or from `peer`, in parts that fit a message. */
static void post(rs_ordered *ordered, bool sends, char *data, int64_t bytes, int peer)
{
    for (int64_t done = 0; done < bytes; done += MESSAGE) {
        int n = (int)rs_min64(MESSAGE, bytes - done);
        if (ordered->posted == ordered->capacity)
            flush(ordered);
        MPI_Request *request = &ordered->requests[ordered->posted++];
        if (sends)
            MPI_Isend(data + done, n, MPI_BYTE, peer, TAG, ordered->comm, request);
        else
            MPI_Irecv(data + done, n, MPI_BYTE, peer, TAG, ordered->comm, request);
    }
}

/* What of piece r lies in the span. */
static char *piece_in_span(
    const rs_span *span, const int64_t *bounds, int r, int64_t width, int64_t *bytes)
{
    int64_t begin = rs_max64(span->begin, bounds[r]), end = rs_min64(span->end, bounds[r + 1]);
    *bytes = rs_max64(0, end - begin) * width;
    return *bytes > 0 ? (char *)span->data + (begin - span->begin) * width : NULL;
}

void rs_ordered_gather(rs_ordered *ordered, const rs_span *spans, size_t count,
    const int64_t *bounds, size_t element_size)
{
    int me = ordered->rank, size = ordered->size;
    int64_t width = (int64_t)element_size, bytes;
    if (size == 1)
        return;
    for (size_t s = 0; s < count; s++) {
        for (int i = 1; i < size; i++) {
            int from = (me + size - i) % size;
            char *data = piece_in_span(&spans[s], bounds, from, width, &bytes);
            post(ordered, false, data, bytes, from);
        }
        char *own = piece_in_span(&spans[s], bounds, me, width, &bytes);
        for (int i = 1; i < size; i++)
            post(ordered, true, own, bytes, (me + i) % size);
    }
    flush(ordered);
}

void rs_ordered_sum(rs_ordered *ordered, float *values, int64_t count)
{
    int size = ordered->size;
    if (size == 1)
        return;
    if (size == 2 || count <= SHORT) {
        combine_in_rounds(ordered, values, count, add);
        return;
    }
    for (int r = 0; r <= size; r++)
        ordered->bounds[r] = (int64_t)((__int128)count * r / size);
    rs_ordered_scatter(ordered, values, ordered->bounds);
    rs_span whole = {0, count, values};
    rs_ordered_gather(ordered, &whole, 1, ordered->bounds, sizeof *values);
}
