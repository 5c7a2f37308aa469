/*
 * What a rank needs to train under one layout: its stage, gradients, pipeline and optimizer. Made
 * when a layout begins, destroyed when it ends; the state it works on outlives it.
 */
#ifndef RS_TRAIN_TRAINER_H
#define RS_TRAIN_TRAINER_H

#include <stdint.h>

#include "reshard/model.h"
#include "train/data.h"
#include "train/moe_watch.h"
#include "train/state.h"
#include "train/train.h"
#include "train/update.h"
#include "train/world.h"

typedef struct rs_trainer rs_trainer;

/* Everything is borrowed. `world` is built, and the rank is a member. */
rs_status rs_trainer_create(const rs_train_options *options, const rs_model *model,
    const rs_world *world, const rs_state *state, rs_data *data, rs_trainer **out) RS_MUST_CHECK;
void rs_trainer_destroy(rs_trainer *trainer);

/*
 * Forward and backward passes of step `step`, and the reduction of the gradient. `*loss_sum`: the
 * loss summed over this rank's tokens where it counts (tp rank 0 of the last stage), else 0;
 * `*square`: this rank's part of the gradient's squared norm. Collective over the layout.
 */
rs_status rs_trainer_gradients(
    rs_trainer *trainer, int64_t step, double *loss_sum, double *square) RS_MUST_CHECK;

/* What the step's routers did, where this rank counts (tp rank 0 of each stage); else, and of a
 * model without experts, zeros. Local. */
rs_moe_totals rs_trainer_routing(const rs_trainer *trainer);

/* Makes what the update needs beside the gradient, once its rate is known: before the rank is ready
 * (twophase.h). Collective over the layout. */
void rs_trainer_direct(rs_trainer *trainer, const rs_update_rate *rate);

/* Updates the state, and gathers the parameters that other replicas update. Collective over the
 * layout. */
void rs_trainer_update(rs_trainer *trainer, const rs_update_rate *rate);

/* Sums of this rank's part of the state as it is now. */
const rs_sums *rs_trainer_sums(rs_trainer *trainer);

#endif
