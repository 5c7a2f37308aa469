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

/* A member of a stage's tensors, and where its local box begins. */
typedef struct rs_binding {
    float **member;
    int tensor;
    int block;
    int64_t position;
} rs_binding;

/* Starts as {0}. */
typedef struct rs_binding_list {
    rs_binding *items;
    size_t count;
    size_t capacity;
} rs_binding_list;

void rs_binding_list_fini(rs_binding_list *list);

/* The members of `tensors` that the rank has, whose `layers` has room for the stage's layers; they
 * point nowhere yet. The caller ends `*out`, also after a failure. */
rs_status rs_bind_tensors(const rs_state *state, const rs_stage_shape *shape,
    rs_stage_tensors *tensors, rs_binding_list *out) RS_MUST_CHECK;

#endif
