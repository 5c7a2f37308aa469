/* From names to addresses: what a stage calls its tensors, and where they lie. Local. */
#ifndef RS_TRAIN_BIND_H
#define RS_TRAIN_BIND_H

#include "reshard/model.h"
#include "train/stage.h"
#include "train/state.h"
#include "train/world.h"

/* What the rank computes under a layout; batch sizes and slots are left to the caller. */
void rs_bind_shape(
    const rs_model *model, const rs_space *space, const rs_world *world, rs_stage_shape *out);

/*
 * Points the tensors at the rank's local boxes: at `concatenation` (the local concatenation in
 * float32), or, where that is NULL, into the arena's parameters, which are float32 then.
 * `out->layers` has room for the stage's layers.
 */
rs_status rs_bind_tensors(const rs_state *state, const rs_stage_shape *shape, float *concatenation,
    rs_stage_tensors *out) RS_MUST_CHECK;

#endif
