/*
 * Layouts: parallel configurations written as text (`tp=2,pp=4,dp=8,zero=1`), and the memory
 * placement that a layout and a space make. Exact meanings: docs/layouts.md.
 *
 * Two meshes. tp x cp x dp ranks work on a pipeline stage. They are dealt twice: on the dense mesh
 * they are tp x cp x dp, on the experts' mesh etp x ep x edp. A tensor with an expert axis is on
 * the experts' mesh, any other on the dense one.
 *
 * Memory of a rank. The model's tensors fall into blocks: block 0 is what stands before the layers,
 * block l + 1 is layer l, block layers + 1 is what stands after them. If the space has experts, as
 * many blocks again follow, in the same order, for what of each is on the experts' mesh. On each
 * mesh, a rank's local concatenation is its local boxes, block by block, within a block in the
 * space's tensor order, each box row-major, without gaps. Each (role, block) that a rank holds is
 * one segment, numbered role * blocks + block: so the same number means the same piece of the model
 * in every layout.
 *
 * Roles sharded by ZeRO are divided in groups: on the dense mesh over dp x cp, or `shard` of them;
 * on the experts' over edp. With zero_cut=concat member d of a group of D keeps a range of the
 * concatenation, elements [d * n, (d + 1) * n) with n = ceil(total / D) rounded up to RS_FLAT_ALIGN
 * (fewer at the end); of each block, its segment has what falls into the range. With `param` the
 * same is done with each parameter, a local box of one layer and one expert, and n = ceil(elements
 * / D); with `dim0` with the parameter's first dimension, n = ceil(rows / D). Every member then has
 * room for n elements or rows of each parameter, at the same place.
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

/* The axes of both meshes, in the default rank order, fastest first (Megatron's tp-cp-ep-dp-pp). On
 * the experts' mesh the place of tp is that of etp, the place of dp that of edp. */
typedef enum rs_mesh_axis {
    RS_MESH_TP = 0,
    RS_MESH_CP,
    RS_MESH_EP,
    RS_MESH_DP,
    RS_MESH_PP,
    RS_MESH_AXES
} rs_mesh_axis;

/* What ZeRO cuts. */
typedef enum rs_zero_cut {
    RS_CUT_CONCAT = 0, /* the local concatenation, without regard to tensors (Megatron, DeepSpeed
                          1 and 2, FSDP 1) */
    RS_CUT_PARAM,      /* each parameter's elements (DeepSpeed 3) */
    RS_CUT_DIM0        /* each parameter's first dimension (FSDP 2) */
} rs_zero_cut;

#define RS_LAYOUT_STAGES 64

/* Fill it with rs_layout_parse. */
typedef struct rs_layout {
    int tp;
    int pp;
    int dp;
    int cp;
    int ep;
    int etp;  /* 0: as tp */
    int vpp;  /* chunks of layers per rank: chunk v of pipeline rank p is stage v * pp + p */
    int zero; /* 0..3: shards RS_ROLE_OPTIMIZER from 1 on, RS_ROLE_GRADIENT from 2 on, RS_ROLE_MODEL
                 at 3 */
    rs_zero_cut zero_cut;
    int shard; /* ranks of dp x cp that share what ZeRO cuts; 0: all */
    bool sp;   /* activations of norms and dropouts are cut over tp; changes no state */
    rs_mesh_axis order[RS_MESH_AXES]; /* fastest first; each axis once */
    int stage_count;                  /* pp * vpp, or 0: layers are dealt evenly */
    int stage_end[RS_LAYOUT_STAGES];  /* where the layers of each stage end; they begin where those
                                         of the stage before do */
} rs_layout;

/* A rank's coordinates on both meshes. */
typedef struct rs_coords {
    int tp;
    int pp;
    int dp;
    int cp;
    int etp;
    int ep;
    int edp;
} rs_coords;

/*
 * Reads "key=value,...". Absent sizes are 1, an absent zero is 0, an absent etp is tp; `order=`
 * takes axis names joined by "-", fastest first; `stages=` takes the layers of each stage, as in
 * 0-5/6-10 ("-" for none). RS_ERR_ARGUMENT names the key, the rule that it breaks and what would
 * fit.
 */
rs_status rs_layout_parse(const char *text, rs_layout *out) RS_MUST_CHECK;

#define RS_LAYOUT_TEXT 1024

/* The canonical text: keys in fixed order, what says nothing left out, never empty ("dp=1"). `text`
 * has room for RS_LAYOUT_TEXT bytes; returns `text`. */
char *rs_layout_format(const rs_layout *layout, char *text);

/* What it means: "world 128 = tp4 cp1 dp4 pp8", and where the experts' mesh is another one,
 * "; experts per stage: etp1 ep8 edp2". Same buffer rule. */
char *rs_layout_describe(const rs_layout *layout, char *text);

/* The same, with the experts' mesh wherever `space` has experts or it is another one. */
char *rs_layout_describe_for(const rs_layout *layout, const rs_space *space, char *text);

/* Whether both mean the same. */
bool rs_layout_equal(const rs_layout *a, const rs_layout *b);

/* Number of ranks. */
int rs_layout_world(const rs_layout *layout);

/* Sizes of the experts' mesh that follow from the others. */
int rs_layout_etp(const rs_layout *layout);
int rs_layout_edp(const rs_layout *layout);

/* How many ranks share what ZeRO cuts, of the dense tensors or of the experts, and which of them a
 * rank is. */
int rs_layout_shard_group(const rs_layout *layout, bool experts);
int rs_layout_shard_member(const rs_layout *layout, bool experts, int rank);

rs_coords rs_layout_coords(const rs_layout *layout, int rank);

/* The rank with these tp, cp, dp and pp; with these etp, ep, edp and pp. */
int rs_layout_rank(const rs_layout *layout, rs_coords coords);
int rs_layout_expert_rank(const rs_layout *layout, rs_coords coords);

/* Refuses what the trainer cannot do: RS_ERR_ARGUMENT where no trainer could (fewer layers than
 * stages), with the rule and the nearest layout that fits; RS_ERR_UNSUPPORTED for a space that this
 * one does not know. */
rs_status rs_layout_check_trainable(const rs_layout *layout, const rs_space *space) RS_MUST_CHECK;

/* Layers of a stage, 0 .. pp * vpp - 1: as listed, or sizes differ by at most one, larger first.
 * Outputs a half-open range. */
void rs_layout_stage_layers(
    const rs_layout *layout, int64_t layers, int stage, int64_t *begin, int64_t *end);

/* The half-open range of dimension `dim` that tp rank `tp` holds of `tensor` (all of it on axes
 * that tp does not cut). It may be empty. For a tensor with experts, `tp` is the etp rank. */
void rs_layout_tp_range(const rs_layout *layout, const rs_tensor *tensor, int dim, int tp,
    int64_t *begin, int64_t *end);

/* The half-open range of the expert axis `dim` that ep rank `ep` holds: sizes differ by at most
 * one, larger first. Where ranks outnumber experts they are dealt over the experts the same way,
 * and those of one expert hold the same. */
void rs_layout_ep_range(const rs_layout *layout, const rs_tensor *tensor, int dim, int ep,
    int64_t *begin, int64_t *end);

/* The memory placement of `layout`: holder = rank, world ranks. `space` is borrowed, `layout`
 * copied. The caller owns `*out`. RS_ERR_ARGUMENT names the rule that the layout breaks for this
 * space. */
rs_status rs_layout_placement(
    const rs_space *space, const rs_layout *layout, rs_placement **out) RS_MUST_CHECK;

/*
 * Redundancy: the rank of another node that also keeps what ZeRO gave to `rank` (of the dense
 * tensors, or of the experts), its mirror; -1 where ranks of other nodes have it already, where
 * another rank of its own node is mirrored for it, or where no other node has a rank with the same
 * slice. `node_of` has the node of each rank of the layout. Cost: the ranks of a slice.
 */
int rs_layout_mirror(const rs_layout *layout, bool experts, const int *node_of, int rank);

/* The placement of a layout in which mirrors hold what they mirror too, in segments of their own.
 * As rs_layout_placement; `node_of` is read during the call. */
rs_status rs_layout_placement_mirrored(const rs_space *space, const rs_layout *layout,
    const int *node_of, rs_placement **out) RS_MUST_CHECK;

/* Number of blocks (layers + 2, with experts twice as many), the block of `block` of the dense
 * tensors that has its experts, and the segment of (role, block). */
int rs_layout_block_count(const rs_space *space);
int rs_layout_expert_block(const rs_space *space, int block);
int rs_layout_segment(const rs_space *space, int role, int block);

/* Where `block` lies in the local concatenation of `rank` on the block's mesh, in elements (an
 * empty range where the rank has nothing of it), and the whole concatenation's length: that of a
 * role which every tensor has. */
void rs_layout_block_range(const rs_space *space, const rs_layout *layout, int rank, int block,
    int64_t *begin, int64_t *end);
int64_t rs_layout_local_elements(const rs_space *space, const rs_layout *layout, int rank);
int64_t rs_layout_expert_elements(const rs_space *space, const rs_layout *layout, int rank);

/* The range of the local concatenation of the dense tensors, or of the experts, that `rank` keeps
 * of `role`: all of it, or its ZeRO shard. For zero_cut=concat; elsewhere a shard is no range. */
void rs_layout_flat_range(const rs_space *space, const rs_layout *layout, int rank, int role,
    int64_t *begin, int64_t *end);
void rs_layout_expert_flat_range(const rs_space *space, const rs_layout *layout, int rank, int role,
    int64_t *begin, int64_t *end);

#ifdef __cplusplus
}
#endif

#endif
