/*
 * The rows of a micro-batch on one rank, and what brings them together: the residual stream is
 * divided over tp where sp is on, the tokens over cp. Where a group is one rank, nothing is done.
 * "Own" rows lie where they belong in the matrix of all of this rank's rows, [rows, width].
 */
#ifndef RS_TRAIN_ROWS_H
#define RS_TRAIN_ROWS_H

#include "train/sequence.h"
#include "train/stage.h"

typedef struct rs_rows {
    rs_stage_tp tp;
    rs_sequence sequence;
    int64_t tokens; /* of a sequence, on this rank */
    int tp_rank, tp_ranks;
    bool sp;
    int64_t *bounds; /* of a group's pieces: room for rs_rows_bounds */
} rs_rows;

/* How many bounds it needs. */
int64_t rs_rows_bounds(const rs_stage_shape *shape);

/* `tp` (may be NULL) is copied, `bounds` lent. */
void rs_rows_init(
    rs_rows *rows, const rs_stage_shape *shape, const rs_stage_tp *tp, int64_t *bounds);

/* The own rows of all `count`. */
void rs_rows_own(const rs_rows *rows, int64_t count, int64_t *begin, int64_t *end);

/* `matrix` [count, width] has own rows, and gets all. Collective over tp. */
rs_status rs_rows_spread(
    const rs_rows *rows, int64_t count, int64_t width, float *matrix) RS_MUST_CHECK;

/* Sums `matrix` over tp: own rows are complete afterwards. Collective over tp. */
rs_status rs_rows_sum(
    const rs_rows *rows, int64_t count, int64_t width, float *matrix) RS_MUST_CHECK;

/* From the columns of this rank's tokens, [batch * own tokens, width] with `ld` floats between
 * rows, to those of whole sequences, `whole` [batch * tokens, width]; `scratch` has as much room.
 * Collective over cp. */
rs_status rs_rows_whole(const rs_rows *rows, int64_t batch, int64_t width, const float *own,
    int64_t ld, float *scratch, float *whole) RS_MUST_CHECK;

/* And back: the sum over cp of `whole`, of this rank's tokens. Collective over cp. */
rs_status rs_rows_whole_sum(const rs_rows *rows, int64_t batch, int64_t width, const float *whole,
    float *scratch, float *own, int64_t ld) RS_MUST_CHECK;

#endif
