/* What the axes of a checkpoint's tensors mean: how a layout cuts them. */
#ifndef RS_CKPT_AXES_H
#define RS_CKPT_AXES_H

#include "reshard/layout.h"
#include "reshard/space.h"
#include "reshard/status.h"

/* Two tensors that every model has under canonical names, and that no other dialect calls so. */
#define RS_CANONICAL_EMBED "embed.weight"
#define RS_CANONICAL_NORM "layers.attn_norm.weight"

/*
 * The space `plain` with the axes of a model: `model`'s, or where that is NULL those that canonical
 * names and facts tell. Its tensors come in the model's order, what the model has not behind them,
 * whole. RS_ERR_UNSUPPORTED: the layout cuts tensors, and nothing says how it cuts one that is
 * named; RS_ERR_MISMATCH: the model gives one another shape. The caller owns `*out`.
 */
rs_status rs_axes_give(const rs_space *plain, const rs_space *model, const rs_layout *layout,
    rs_space **out) RS_MUST_CHECK;

#endif
