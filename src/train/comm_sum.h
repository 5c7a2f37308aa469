/*
 * Sums over ranks whose bits do not depend on how MPI adds: each sum is made once, by one rank, in
 * the order of ranks, and its bits are distributed. All functions are collective over the
 * communicator; MPI errors end the job (MPI_ERRORS_ARE_FATAL), so a status is only about memory.
 */
#ifndef RS_TRAIN_COMM_SUM_H
#define RS_TRAIN_COMM_SUM_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

/* A communicator with its scratch memory. Starts as {MPI_COMM_NULL}; borrows `comm`. */
typedef struct rs_ordered {
    MPI_Comm comm;
    int rank;
    int size;
    float *scratch;
    MPI_Request *requests;
    int capacity; /* of requests */
    int posted;
    int64_t *bounds; /* size + 1 */
} rs_ordered;

rs_status rs_ordered_init(rs_ordered *ordered, MPI_Comm comm) RS_MUST_CHECK;
void rs_ordered_fini(rs_ordered *ordered);

/* values = sum of all ranks' values, the same bits on every rank. */
void rs_ordered_sum(rs_ordered *ordered, float *values, int64_t count);

/* values = elementwise maximum. */
void rs_ordered_maximum(rs_ordered *ordered, float *values, int64_t count);

/* Rank r gets the sum of piece r, elements bounds[r] .. bounds[r + 1] - 1, in place; what else is
 * in `values` stays as it was. The same `bounds` (size + 1 of them) on every rank. */
void rs_ordered_scatter(rs_ordered *ordered, float *values, const int64_t *bounds);

/* Elements begin .. end-1 of a distributed vector lie at `data`. */
typedef struct rs_span {
    int64_t begin;
    int64_t end;
    void *data;
} rs_span;

/* Distributes piece r of rank r to all, in place. `spans` (ascending, the same ranges on every
 * rank) say where the vector's elements, of `element_size` bytes, lie. */
void rs_ordered_gather(rs_ordered *ordered, const rs_span *spans, size_t count,
    const int64_t *bounds, size_t element_size);

#endif
