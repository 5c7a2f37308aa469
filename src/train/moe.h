/*
 * The feed-forward half of a layer with experts: router, shared expert, dispatch, routed experts.
 * A stage has one for all its layers and slots.
 */
#ifndef RS_TRAIN_MOE_H
#define RS_TRAIN_MOE_H

#include <stdint.h>

#include "train/stage.h"

typedef struct rs_moe rs_moe;

/* `shape`, `tp` and `group` are copied, as for rs_stage_create. The caller owns `*out`. */
rs_status rs_moe_create(const rs_stage_shape *shape, const rs_stage_tp *tp,
    const rs_dispatch_group *group, int threads, rs_moe **out) RS_MUST_CHECK;
void rs_moe_destroy(rs_moe *moe);

/* Whether layer `layer` of the model has experts. */
bool rs_moe_has(const rs_stage_shape *shape, int64_t layer);

/*
 * One layer's forward pass, `layer` counted from the stage's first. `normed` [batch * seq, H] is
 * the half-layer's input behind its norm; `partial` gets this rank's part of the output, to be
 * summed over tp. Collective over the group and, where batch is not 0, over tp.
 */
rs_status rs_moe_forward(rs_moe *moe, const rs_stage_layer *w, int slot, int64_t layer,
    int64_t batch, const float *normed, float *partial) RS_MUST_CHECK;

/* The backward pass, from the output's gradient `dy` to this rank's part of the gradient of
 * `normed`. The balance loss counts `scale` times. Adds to the gradients of the layer's weights:
 * the router's and the shared expert's switch get the full gradient, the same bits on every rank of
 * tp. */
rs_status rs_moe_backward(rs_moe *moe, const rs_stage_layer *w, const rs_stage_layer *g, int slot,
    int64_t layer, int64_t batch, float scale, const float *normed, const float *dy,
    float *partial) RS_MUST_CHECK;

/* Of the layer's last forward pass in the slot: see rs_stage_routing. */
void rs_moe_routing(const rs_moe *moe, int slot, int64_t layer, rs_stage_routing *out);

/* Bytes of the memory for rows that arrived at experts (moe_forecast.h). */
int64_t rs_moe_bytes(const rs_moe *moe);

#endif
