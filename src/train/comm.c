/* Agreement on a status: the lowest failing rank is found and its detail sent around. And plain
 * messages. */
#include "train/comm.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

#define MESSAGE ((int64_t)1 << 30) /* bytes of one message at most */

static int count_of(size_t count)
{
    assert(count <= INT_MAX);
    return (int)count;
}

void rs_comm_broadcast(MPI_Comm comm, int root, void *data, size_t bytes)
{
    MPI_Bcast(data, count_of(bytes), MPI_BYTE, root, comm);
}

void rs_comm_gather(MPI_Comm comm, int root, const void *mine, size_t bytes, void *all)
{
    MPI_Gather(mine, count_of(bytes), MPI_BYTE, all, count_of(bytes), MPI_BYTE, root, comm);
}

void rs_comm_send(MPI_Comm comm, int to, int tag, const void *data, size_t bytes)
{
    MPI_Send(data, count_of(bytes), MPI_BYTE, to, tag, comm);
}

void rs_comm_receive(MPI_Comm comm, int from, int tag, void *data, size_t bytes)
{
    MPI_Recv(data, count_of(bytes), MPI_BYTE, from, tag, comm, MPI_STATUS_IGNORE);
}

size_t rs_comm_messages(int64_t bytes)
{
    return (size_t)rs_ceil_div(bytes, MESSAGE);
}

int rs_comm_post_bytes(
    MPI_Comm comm, bool sends, int peer, int tag, void *data, int64_t bytes, MPI_Request *requests)
{
    int posted = 0;
    for (int64_t done = 0; done < bytes; done += MESSAGE) {
        char *at = (char *)data + done;
        int n = (int)rs_min64(MESSAGE, bytes - done);
        if (sends)
            MPI_Isend(at, n, MPI_BYTE, peer, tag, comm, &requests[posted++]);
        else
            MPI_Irecv(at, n, MPI_BYTE, peer, tag, comm, &requests[posted++]);
    }
    return posted;
}

void rs_comm_sum_words(MPI_Comm comm, uint64_t *words, size_t count)
{
    MPI_Allreduce(MPI_IN_PLACE, words, count_of(count), MPI_UINT64_T, MPI_SUM, comm);
}

void rs_comm_post_floats(
    MPI_Comm comm, int to, int tag, const float *data, int64_t count, MPI_Request *request)
{
    MPI_Isend(data, count_of((size_t)count), MPI_FLOAT, to, tag, comm, request);
}

void rs_comm_gather_integers(MPI_Comm comm, const int64_t *mine, int64_t count, int64_t *all)
{
    int n = count_of((size_t)count);
    MPI_Allgather(mine, n, MPI_INT64_T, all, n, MPI_INT64_T, comm);
}

void rs_comm_receive_floats(MPI_Comm comm, int from, int tag, float *data, int64_t count)
{
    MPI_Recv(data, count_of((size_t)count), MPI_FLOAT, from, tag, comm, MPI_STATUS_IGNORE);
}

void rs_comm_expect_floats(
    MPI_Comm comm, int from, int tag, float *data, int64_t count, MPI_Request *request)
{
    MPI_Irecv(data, count_of((size_t)count), MPI_FLOAT, from, tag, comm, request);
}

typedef struct failure {
    int status;
    char message[1000];
} failure;

rs_status rs_comm_agree(MPI_Comm comm, rs_status mine)
{
    int rank, failed;
    MPI_Comm_rank(comm, &rank);
    int candidate = mine != RS_OK ? rank : INT_MAX;
    MPI_Allreduce(&candidate, &failed, 1, MPI_INT, MPI_MIN, comm);
    if (failed == INT_MAX)
        return RS_OK;
    failure f;
    memset(&f, 0, sizeof f);
    f.status = (int)mine;
    snprintf(f.message, sizeof f.message, "%s", rs_error_message());
    rs_comm_broadcast(comm, failed, &f, sizeof f);
    return rs_error_set((rs_status)f.status, "rank %d: %s", failed, f.message);
}
