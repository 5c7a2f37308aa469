/*
 * Messages of the trainer: everything that hands a count to MPI, but for the sums (comm_sum.h). MPI
 * errors end the job (MPI_ERRORS_ARE_FATAL). Counts that do not fit an int are our own bugs:
 * messages here are small, or bounded by their caller.
 */
#ifndef RS_TRAIN_COMM_H
#define RS_TRAIN_COMM_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

/* The floats that one message takes at most. */
#define RS_COMM_FLOATS ((int64_t)1 << 28)

/*
 * Collective: RS_OK if `mine` is RS_OK on every rank, else, on every rank, the status and the
 * detail of the lowest rank that failed ("rank 3: ...").
 */
rs_status rs_comm_agree(MPI_Comm comm, rs_status mine) RS_MUST_CHECK;

/* Plain data as bytes. */
void rs_comm_broadcast(MPI_Comm comm, int root, void *data, size_t bytes);
void rs_comm_gather(MPI_Comm comm, int root, const void *mine, size_t bytes, void *all);
void rs_comm_send(MPI_Comm comm, int to, int tag, const void *data, size_t bytes);
void rs_comm_receive(MPI_Comm comm, int from, int tag, void *data, size_t bytes);

/* Posts `bytes` at `data` to `peer`, or from it, in as many messages as that takes, and returns how
 * many: rs_comm_messages(bytes). */
size_t rs_comm_messages(int64_t bytes);
int rs_comm_post_bytes(
    MPI_Comm comm, bool sends, int peer, int tag, void *data, int64_t bytes, MPI_Request *requests);

/* The sums of everybody's words, mod 2^64, on every rank. Collective. */
void rs_comm_sum_words(MPI_Comm comm, uint64_t *words, size_t count);

/* `all` gets everybody's `count` numbers, in the order of ranks. */
void rs_comm_gather_integers(MPI_Comm comm, const int64_t *mine, int64_t count, int64_t *all);

/* Vectors of floats. */
void rs_comm_post_floats(
    MPI_Comm comm, int to, int tag, const float *data, int64_t count, MPI_Request *request);
void rs_comm_receive_floats(MPI_Comm comm, int from, int tag, float *data, int64_t count);
void rs_comm_expect_floats(
    MPI_Comm comm, int from, int tag, float *data, int64_t count, MPI_Request *request);

#endif
