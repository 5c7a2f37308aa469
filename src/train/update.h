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

#define RS_UPDATE_PIECE 16384 /* elements of a piece, at most: 64 KiB of each float32 role */

/* How step `step` (from 1) changes parameters. */
typedef struct rs_update_rate {
    int64_t step;
    float lr;
    float clip;  /* factor of the gradient */
    float share; /* tokens that an expert gets where all get as many; 0: there are none */
} rs_update_rate;

/* Linear warm-up from lr / warmup, then a cosine to a tenth of `lr` at step `steps`. */
double rs_learning_rate(double lr, int64_t warmup, int64_t steps, int64_t step);

/* The factor that limits a gradient of norm `norm` to 1. */
double rs_clip_factor(double norm);

/*
 * `state` has memory, and roles that `optimizer` keeps; it is borrowed. `gradients` says where the
 * reduced gradient of all that this rank updates will lie: of everything where the optimizer is not
 * sharded (zero=0), else of its piece. The caller owns `*out`. RS_ERR_MISMATCH: the state's ledger
 * was written by an update that cuts it into other pieces.
 */
rs_status rs_update_create(const rs_state *state, const rs_optimizer *optimizer,
    const rs_runs *gradients, rs_update **out) RS_MUST_CHECK;
void rs_update_destroy(rs_update *update);

/* Where the directions of what goes in one will lie (muon.h). */
void rs_update_set_directions(rs_update *update, const rs_runs *directions);

/* The sum of squares of this rank's piece of the reduced gradient, which lies at `reduced`, leaving
 * out elements that a lower rank counts. */
double rs_update_norm(const rs_update *update, const rs_runs *reduced);

/*
 * What the optimizer does to all that this rank updates. Keeps the sums. With a ledger: journals
 * each piece; and where its words say that this step's update was begun and cut off, restores the
 * pieces under way and goes on from there (rs_update_check before that).
 */
void rs_update_apply(rs_update *update, const rs_update_rate *rate);

/* RS_ERR_MALFORMED if the ledger's slots say what cannot be. */
rs_status rs_update_check(const rs_update *update) RS_MUST_CHECK;

/* Makes 16-bit parameters anew from their masters, wherever this rank updates them. */
void rs_update_round(const rs_update *update);

/* The sums of this rank's pieces, from the last rs_update_apply; or, where there was none, made
 * now. */
const rs_sums *rs_update_sums(rs_update *update);

#endif
