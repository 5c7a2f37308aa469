/* Geometry that layout.c and mesh.c share. Include in .c files of this layer only. */
#ifndef RS_LAYOUT_MESH_H
#define RS_LAYOUT_MESH_H

#include "reshard/layout.h"

/* Refuses sizes below 1, an unknown zero, an order that is no permutation, and worlds above
 * INT_MAX. */
rs_status rs_layout_check(const rs_layout *layout) RS_MUST_CHECK;

static inline bool rs_tensor_has_layers(const rs_tensor *tensor)
{
    return tensor->ndim > 0 && tensor->axis[0] == RS_AXIS_LAYER;
}

/* True if a tensor without a layer axis stands in the block before (`tail` false) or behind (true)
 * the layers of pipeline stage `stage`. */
bool rs_layout_stage_has(const rs_layout *layout, const rs_tensor *tensor, int stage, bool tail);

/* Elements of tp rank `tp`'s part of one layer of `tensor`, or of all of it if it has no layer
 * axis. */
int64_t rs_layout_slice_elements(const rs_layout *layout, const rs_tensor *tensor, int tp);

/* The stage that has layer `layer` of `layers`. */
int rs_layout_stage_of_layer(const rs_layout *layout, int64_t layers, int64_t layer);

/* The dimension that tp cuts, -1 if none. The first, if there should be several. */
int rs_tensor_cut_dim(const rs_tensor *tensor);

/* The tp ranks begin..end-1 whose range of dimension `dim` (a cut one) meets indices low..high-1.
 */
void rs_layout_tp_owners(const rs_layout *layout, const rs_tensor *tensor, int dim, int64_t low,
    int64_t high, int *begin, int *end);

/* True if ZeRO cuts roles of this class. */
bool rs_layout_shards_class(const rs_layout *layout, rs_role_class role_class);

/* The range of `total` local elements that the shard of dp rank `dp` is. */
void rs_layout_flat_shard(
    const rs_layout *layout, int64_t total, int dp, int64_t *begin, int64_t *end);

#endif
