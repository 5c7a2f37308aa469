/* Geometry that the files of this layer share. Include in .c files of this layer only. */
#ifndef RS_LAYOUT_MESH_H
#define RS_LAYOUT_MESH_H

#include "reshard/layout.h"

/* The two meshes of a stage's ranks. */
enum { RS_DENSE = 0, RS_EXPERTS, RS_MESHES };

/* How a stage's ranks are dealt on a mesh. */
typedef struct rs_grid {
    int slices; /* different parts of the tensors: tp, or etp x ep (etp fastest) */
    int spread; /* ranks that have the same slice: dp x cp, or edp */
    int group;  /* so many of them, neighbours, share what ZeRO cuts; it divides spread */
    int stages; /* pipeline ranks */
    int below;  /* ranks between two that differ by one in the stage */
    /* The members of a slice are on up to two axes, `inner` of them on the faster one. Among the
     * ranks of a stage member m has the number of member 0 + m % inner * step + m / inner * leap.
     */
    int inner;
    int step;
    int leap;
} rs_grid;

rs_grid rs_layout_grid(const rs_layout *layout, int mesh);

/* The rank that has a number among those of a stage; `stages` and `below` as in a grid. */
static inline int rs_stage_rank(int stages, int below, int stage, int number)
{
    return number % below + (stage + number / below * stages) * below;
}

/* Where a rank stands on a mesh. */
typedef struct rs_place {
    int stage; /* pipeline rank */
    int slice;
    int member; /* 0 .. spread - 1: by rank among those of the same stage and slice */
} rs_place;

rs_place rs_layout_place(const rs_layout *layout, int mesh, int rank);

/* And back: the number that member 0 of a slice has among the ranks of any stage; and the rank of
 * member `m` of the slice whose first has the number `first`. */
int rs_layout_slice_number(const rs_layout *layout, int mesh, int slice);
static inline int rs_grid_rank(const rs_grid *grid, int stage, int first, int m)
{
    int number = first + m % grid->inner * grid->step + m / grid->inner * grid->leap;
    return rs_stage_rank(grid->stages, grid->below, stage, number);
}

/* Refuses sizes below 1, an unknown zero, an order that is no permutation, worlds above INT_MAX,
 * experts that do not fit the ranks of a stage, groups that do not divide them, a list of stages
 * that is none. */
rs_status rs_layout_check(const rs_layout *layout) RS_MUST_CHECK;

/* Refuses a list of stages that has not all layers of the space. */
rs_status rs_layout_check_stages(const rs_layout *layout, const rs_space *space) RS_MUST_CHECK;

/* The order without what it says in vain: axes of size 1 that are on one mesh only stand where they
 * stand by default. */
void rs_layout_canonical_order(const rs_layout *layout, rs_mesh_axis *order);

static inline bool rs_tensor_has_layers(const rs_tensor *tensor)
{
    return tensor->ndim > 0 && tensor->axis[0] == RS_AXIS_LAYER;
}

/* The expert axis, -1 if there is none. */
int rs_tensor_expert_dim(const rs_tensor *tensor);

static inline int rs_tensor_mesh(const rs_tensor *tensor)
{
    return rs_tensor_expert_dim(tensor) >= 0 ? RS_EXPERTS : RS_DENSE;
}

/* The dimension that tp or etp cuts, -1 if none. The first, if there should be several. */
int rs_tensor_cut_dim(const rs_tensor *tensor);

/* True if a tensor without a layer axis stands in the block before (`tail` false) or behind (true)
 * the layers of pipeline rank `stage`. */
bool rs_layout_stage_has(const rs_layout *layout, const rs_tensor *tensor, int stage, bool tail);

/* The half-open range of dimension `dim` that slice `slice` of the tensor's mesh has; of the layer
 * axis, all of it. */
void rs_layout_slice_range(const rs_layout *layout, const rs_tensor *tensor, int dim, int slice,
    int64_t *begin, int64_t *end);

/* Elements of a slice's part of one layer of `tensor`, or of all of it if it has no layer axis. */
int64_t rs_layout_slice_elements(const rs_layout *layout, const rs_tensor *tensor, int slice);

/* The stage, 0 .. pp * vpp - 1, that has layer `layer` of `layers`. */
int rs_layout_stage_of_layer(const rs_layout *layout, int64_t layers, int64_t layer);

/* The tp (etp) ranks begin..end-1 whose range of dimension `dim`, a cut one, meets indices
 * low..high-1; the ep ranks whose range of the expert axis does. */
void rs_layout_tp_owners(const rs_layout *layout, const rs_tensor *tensor, int dim, int64_t low,
    int64_t high, int *begin, int *end);
void rs_layout_ep_owners(const rs_layout *layout, const rs_tensor *tensor, int dim, int64_t low,
    int64_t high, int *begin, int *end);

/* True if ZeRO cuts roles of this class. */
bool rs_layout_shards_class(const rs_layout *layout, rs_role_class role_class);

/* Elements that each of `group` members has of `total` of a concatenation. */
int64_t rs_layout_flat_each(int64_t total, int group);

#endif
