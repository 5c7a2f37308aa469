/*
 * The optimizer's step on one rank: which elements it updates, the norm of their gradient, the
 * optimizer's method for each, and the sums of what it wrote.
 *
 * What is computed, exactly: docs/training.md.
 */
#ifndef RS_TRAIN_UPDATE_H
#define RS_TRAIN_UPDATE_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/certificate.h"
#include "reshard/optimizer.h"
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

/*
 * `state` has memory, and roles that `optimizer` keeps; it is borrowed. `gradients` says where the
 * reduced gradient of all that this rank updates will lie: of everything where the optimizer is not
 * sharded (zero=0), else of its piece. The caller owns `*out`.
 */
rs_status rs_update_create(const rs_state *state, const rs_optimizer *optimizer,
    const rs_runs *gradients, rs_update **out) RS_MUST_CHECK;
void rs_update_destroy(rs_update *update);

/* Where the directions of what goes in one will lie (muon.h). */
void rs_update_set_directions(rs_update *update, const rs_runs *directions);

/* The sum of squares of this rank's piece of the reduced gradient, which lies at `reduced`, leaving
 * out elements that a lower rank counts. */
double rs_update_norm(const rs_update *update, const rs_runs *reduced);

/* What the optimizer does to all that this rank updates. Keeps the sums. */
void rs_update_apply(rs_update *update, const rs_update_rate *rate);

/* The sums of this rank's pieces, from the last rs_update_apply; or, where there was none, made
 * now. */
const rs_sums *rs_update_sums(rs_update *update);

#endif
