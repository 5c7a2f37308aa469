/*
 * The order in which a pipeline's ranks do their forward and backward passes: 1F1B, interleaved
 * where a rank has several stages, for any number of micro-batches. All functions are local.
 */
#ifndef RS_TRAIN_SCHEDULE_H
#define RS_TRAIN_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

/* One pass. Chunk v of pipeline rank p is stage v * pp + p. */
typedef struct rs_turn {
    int64_t micro; /* the micro-batch, from 0 */
    int chunk;
    bool backward;
} rs_turn;

/* What one rank does in a step. */
typedef struct rs_schedule {
    rs_turn *turns;
    size_t count;
    int chunks;
    int *slots; /* of each chunk: micro-batches whose backward pass is to come, at most, at least 1.
                   They follow each other: micro-batch m may use slot m mod slots */
    int buffers; /* an activation may be overwritten by the one sent so many later: it was received
                    by then */
} rs_schedule;

/* The schedule of rank `rank` of `pp`, with `chunks` stages each. rs_schedule_fini also after a
 * failure. */
rs_status rs_schedule_init(
    int pp, int rank, int chunks, int64_t micro_batches, rs_schedule *out) RS_MUST_CHECK;
void rs_schedule_fini(rs_schedule *schedule);

#endif
