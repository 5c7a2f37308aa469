/*
 * The optimizer's step on one rank: which elements it updates, the norm of their gradient, AdamW,
 * and the sums of what it wrote.
 *
 * What is computed, exactly: docs/training.md.
 */
#ifndef RS_TRAIN_UPDATE_H
#define RS_TRAIN_UPDATE_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/certificate.h"
#include "train/state.h"

typedef struct rs_update rs_update;

/* How step `step` (from 1) changes parameters. */
typedef struct rs_update_rate {
    int64_t step;
    float lr;
    float clip; /* factor of the gradient */
} rs_update_rate;

/* Linear warm-up from lr / warmup, then a cosine to a tenth of `lr` at step `steps`. */
double rs_learning_rate(double lr, int64_t warmup, int64_t steps, int64_t step);

/* The factor that limits a gradient of norm `norm` to 1. */
double rs_clip_factor(double norm);

/* `state` has memory and is borrowed. The caller owns `*out`. */
rs_status rs_update_create(const rs_state *state, rs_update **out) RS_MUST_CHECK;
void rs_update_destroy(rs_update *update);

/* bounds[d] .. bounds[d + 1] - 1 of the local concatenation is the piece of replica d: the one
 * whose gradient it reduces and whose parameters it updates for the others. dp + 1 entries.
 * Borrowed. */
const int64_t *rs_update_bounds(const rs_update *update);

/* The sum of squares of this rank's piece of the reduced gradient (the local concatenation),
 * leaving out elements that a lower rank counts. */
double rs_update_norm(const rs_update *update, const float *gradients);

/*
 * AdamW on this rank's piece, or on everything where the optimizer is not sharded (zero=0).
 * `weights` (NULL for float32 parameters) gets the new parameters of what was updated. Keeps the
 * sums.
 */
void rs_update_apply(
    rs_update *update, const rs_update_rate *rate, const float *gradients, float *weights);

/* The sums of this rank's pieces, from the last rs_update_apply; or, where there was none, made
 * now. */
const rs_sums *rs_update_sums(rs_update *update);

#endif
