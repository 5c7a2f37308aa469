/*
 * A group of ranks that divides a local vector: each member has its piece. Gathering gives a member
 * what it lacks of a block; reducing gives it the sum of its piece. Whatever ZeRO stage, cut and
 * group: a piece is a list of runs (runs.h), and all are told here.
 *
 * Sums are made in the order of members, once, by the member whose piece it is: the same bits
 * always. Functions are collective over the group unless they say "Local"; MPI errors end the job
 * (MPI_ERRORS_ARE_FATAL), so a status is only about memory.
 */
#ifndef RS_TRAIN_SHARE_H
#define RS_TRAIN_SHARE_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "train/runs.h"

typedef struct rs_share rs_share;

/* The positions of a block. */
typedef struct rs_extent {
    int64_t begin;
    int64_t end;
} rs_extent;

/*
 * `pieces` has the runs of each member of `comm`, sorted and without memory; `extents` the
 * positions of each of `blocks` blocks. Both are copied; `comm` is borrowed. The caller owns
 * `*out`. Local.
 */
rs_status rs_share_create(MPI_Comm comm, const rs_runs *pieces, const rs_extent *extents,
    int blocks, rs_share **out) RS_MUST_CHECK;
void rs_share_destroy(rs_share *share);

/* The runs of this member. Borrowed. Local. */
const rs_runs *rs_share_piece(const rs_share *share);

/* One gathering or reducing under way, and its memory. */
typedef struct rs_flight rs_flight;

/* For elements of `size` bytes. Local. */
rs_status rs_flight_create(const rs_share *share, size_t size, rs_flight **out) RS_MUST_CHECK;
void rs_flight_destroy(rs_flight *flight);

/*
 * Posts the gathering of a block: `from` has this member's piece, `to` room for the block from its
 * first position on (the piece may lie there already). What is read and written stays untouched
 * until rs_share_gather_end, which waits. Members begin gatherings in the same order.
 */
void rs_share_gather_begin(rs_flight *flight, int block, const rs_runs *from, void *to);
void rs_share_gather_end(rs_flight *flight);

/* Of the block at `from`, everybody's, adds the sum of this member's piece to `into`, or writes it
 * there. For floats. */
void rs_share_reduce(
    rs_flight *flight, int block, const float *from, const rs_runs *into, bool add);

#endif
