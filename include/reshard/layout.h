/*
 * Layouts: parallel configurations written as text (`tp=2,pp=4,dp=8,zero=1`), and the memory
 * placement that a layout and a space make. Exact meanings: docs/layouts.md.
 *
 * Memory of a rank. The model's tensors fall into blocks: block 0 is what stands before the layers,
 * block l + 1 is layer l, the last block (layer count + 1) is what stands after them. A rank's
 * local concatenation is its local boxes, block by block, within a block in the space's tensor
 * order, each box row-major, without gaps. Each (role, block) that a rank holds is one segment,
 * numbered role * (layers + 2) + block: so the same number means the same piece of the model in
 * every layout. Roles sharded by ZeRO keep a range of the concatenation: shard d of D is elements
 * [d * n, (d + 1) * n) with n = ceil(total / D) rounded up to RS_FLAT_ALIGN (fewer at the end); of
 * each block, its segment has what falls into the range.
 *
 * Where tensors lack a role, that role's concatenation is of those that have it, without gaps: it
 * is counted in elements, whatever their sizes. Where sizes differ within a block, each tensor
 * begins at a multiple of its size, and a segment begins at a multiple of the block's largest, up
 * to 7 bytes before its first element.
 *
 * All functions are local.
 */
#ifndef RESHARD_LAYOUT_H
#define RESHARD_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/placement.h"
#include "reshard/space.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RS_FLAT_ALIGN 64 /* elements */

/* The mesh axes, in the default rank order, fastest first (Megatron's tp-cp-ep-dp-pp). */
typedef enum rs_mesh_axis { RS_MESH_TP = 0, RS_MESH_DP, RS_MESH_PP, RS_MESH_AXES } rs_mesh_axis;

typedef struct rs_layout {
    int tp;
    int pp;
    int dp;
    int zero; /* 0..3: shards RS_ROLE_OPTIMIZER from 1 on, RS_ROLE_GRADIENT from 2 on, RS_ROLE_MODEL
                 at 3. The trainer takes 0 and 1. */
    rs_mesh_axis order[RS_MESH_AXES]; /* fastest first; each axis once */
} rs_layout;

/* A rank's coordinates on the mesh. */
typedef struct rs_coords {
    int tp;
    int pp;
    int dp;
} rs_coords;

/*
 * Reads "key=value,...". Absent sizes are 1, an absent zero is 0; `order=` takes axis names joined
 * by "-", fastest first. RS_ERR_ARGUMENT names the key and what would fit; RS_ERR_UNSUPPORTED for
 * axes that this version knows but cannot do.
 */
rs_status rs_layout_parse(const char *text, rs_layout *out) RS_MUST_CHECK;

#define RS_LAYOUT_TEXT 128

/* The canonical text: keys in fixed order, ones and defaults left out, never empty ("dp=1").
 * `text` has room for RS_LAYOUT_TEXT bytes; returns `text`. */
char *rs_layout_format(const rs_layout *layout, char *text);

/* What it means: "world 128 = tp4 cp1 dp4 pp8". Same buffer rule. */
char *rs_layout_describe(const rs_layout *layout, char *text);

bool rs_layout_equal(const rs_layout *a, const rs_layout *b);

/* Number of ranks. */
int rs_layout_world(const rs_layout *layout);

rs_coords rs_layout_coords(const rs_layout *layout, int rank);
int rs_layout_rank(const rs_layout *layout, rs_coords coords);

/* Refuses what cannot be trained (pp > layers, zero > 1), naming the rule and the nearest layout
 * that fits. */
rs_status rs_layout_check_trainable(const rs_layout *layout, const rs_space *space) RS_MUST_CHECK;

/* Layers of a stage: sizes differ by at most one, larger first. Outputs a half-open range. */
void rs_layout_stage_layers(
    const rs_layout *layout, int64_t layers, int stage, int64_t *begin, int64_t *end);

/* The half-open range of dimension `dim` that tp rank `tp` holds of `tensor` (all of it on axes
 * that tp does not cut). It may be empty. */
void rs_layout_tp_range(const rs_layout *layout, const rs_tensor *tensor, int dim, int tp,
    int64_t *begin, int64_t *end);

/* The memory placement of `layout`: holder = rank, world ranks. `space` is borrowed, `layout`
 * copied. The caller owns `*out`. */
rs_status rs_layout_placement(
    const rs_space *space, const rs_layout *layout, rs_placement **out) RS_MUST_CHECK;

/* Number of blocks (layers + 2), and the segment of (role, block). */
int rs_layout_block_count(const rs_space *space);
int rs_layout_segment(const rs_space *space, int role, int block);

/* Where `block` lies in the local concatenation of `rank`, in elements (an empty range where the
 * rank has nothing of it), and the whole concatenation's length: that of a role which every tensor
 * has. */
void rs_layout_block_range(const rs_space *space, const rs_layout *layout, int rank, int block,
    int64_t *begin, int64_t *end);
int64_t rs_layout_local_elements(const rs_space *space, const rs_layout *layout, int rank);

/* The range of the local concatenation that `rank` keeps of `role`: all of it, or its ZeRO shard.
 */
void rs_layout_flat_range(const rs_space *space, const rs_layout *layout, int rank, int role,
    int64_t *begin, int64_t *end);

#ifdef __cplusplus
}
#endif

#endif
