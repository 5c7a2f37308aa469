/*
 * Exchanging rows among the ranks that have the experts.
 *
 * Both sides of a part know its size, so nothing is announced, and a pair without rows sends
 * nothing. Each rank starts with the one behind it, so that not all send to the same.
 *
 * 1. All receives of an exchange are posted before its sends.
 * 2. Parts of one pair that are too large for a message are several, matched by their order.
 */
#include "train/moe_comm.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/comm.h"

#define TAG 77

struct rs_moe_comm {
    MPI_Comm comm;
    int rank;
    int size;
    MPI_Request *requests;
    int posted;
    int capacity;
};

rs_status rs_moe_comm_create(MPI_Comm comm, rs_moe_comm **out)
{
    rs_moe_comm *m = rs_calloc(1, sizeof *m);
    if (m == NULL)
        return rs_error_memory(sizeof *m);
    m->comm = comm;
    MPI_Comm_rank(comm, &m->rank);
    MPI_Comm_size(comm, &m->size);
    *out = m;
    return RS_OK;
}

void rs_moe_comm_destroy(rs_moe_comm *m)
{
    if (m == NULL)
        return;
    free(m->requests);
    free(m);
}

static rs_status gather(void *context, const int64_t *mine, int64_t count, int64_t *all)
{
    const rs_moe_comm *m = context;
    rs_comm_gather_integers(m->comm, mine, count, all);
    return RS_OK;
}

/* Messages of `rows` rows. */
static int64_t messages(int64_t rows, int64_t width)
{
    return rs_ceil_div(rows * width, RS_COMM_FLOATS);
}

static rs_status reserve(
    rs_moe_comm *m, const rs_dispatch_part *send, const rs_dispatch_part *receive, int64_t width)
{
    int64_t count = 0;
    for (int r = 0; r < m->size; r++)
        count += messages(send[r].count, width) + messages(receive[r].count, width);
    if (count <= m->capacity)
        return RS_OK;
    free(m->requests);
    m->capacity = 0;
    m->requests = rs_calloc((size_t)count, sizeof *m->requests);
    if (m->requests == NULL)
        return rs_error_memory((size_t)count * sizeof *m->requests);
    m->capacity = (int)count;
    return RS_OK;
}

static rs_status exchange(void *context, const rs_dispatch_part *send, const float *from,
    const rs_dispatch_part *receive, float *to, int64_t width)
{
    rs_moe_comm *m = context;
    RS_TRY(reserve(m, send, receive, width));
    m->posted = 0;
    for (int i = 1; i < m->size; i++) {
        int peer = (m->rank + m->size - i) % m->size;
        int64_t floats = receive[peer].count * width;
        float *data = to + receive[peer].first * width;
        for (int64_t done = 0; done < floats; done += RS_COMM_FLOATS)
            rs_comm_expect_floats(m->comm, peer, TAG, data + done,
                rs_min64(RS_COMM_FLOATS, floats - done), &m->requests[m->posted++]);
    }
    for (int i = 1; i < m->size; i++) {
        int peer = (m->rank + i) % m->size;
        int64_t floats = send[peer].count * width;
        const float *data = from + send[peer].first * width;
        for (int64_t done = 0; done < floats; done += RS_COMM_FLOATS)
            rs_comm_post_floats(m->comm, peer, TAG, data + done,
                rs_min64(RS_COMM_FLOATS, floats - done), &m->requests[m->posted++]);
    }
    MPI_Waitall(m->posted, m->requests, MPI_STATUSES_IGNORE);
    return RS_OK;
}

rs_dispatch_group rs_moe_comm_group(rs_moe_comm *m)
{
    return (rs_dispatch_group){m, gather, exchange};
}
