/* What the kinds of placement share. Include in .c files of this layer only. */
#ifndef RS_LAYOUT_PLACEMENT_H
#define RS_LAYOUT_PLACEMENT_H

#include "reshard/placement.h"

/*
 * What a kind of placement answers. The public functions have checked every number and box before
 * they call one of these, have emptied the output, and holder is below `holders`.
 */
typedef struct rs_placement_ops {
    void (*destroy)(rs_placement *placement);

    /* The lowest role of `role`'s geometry class. */
    int (*geometry)(const rs_placement *placement, int role);

    /* Appends the holder's shards of one role, ordered by (segment, offset). */
    rs_status (*shards)(
        const rs_placement *placement, int holder, int role, rs_shard_list *out) RS_MUST_CHECK;

    /* Appends the holder's segments, ascending. */
    rs_status (*segments)(
        const rs_placement *placement, int holder, rs_segment_list *out) RS_MUST_CHECK;

    /* Adds, with rs_holding_add, every (shard box, holder) that meets `box` (not empty), in any
     * order but each once. The caller sorts and merges. */
    rs_status (*locate)(const rs_placement *placement, int tensor, int role, const rs_box *box,
        rs_holding_list *out) RS_MUST_CHECK;

    /* As rs_placement_address; `box` is not empty. */
    rs_status (*address)(const rs_placement *placement, int holder, int tensor, int role,
        const rs_box *box, rs_shard *out) RS_MUST_CHECK;
} rs_placement_ops;

/* The head of every placement; a kind embeds it as its first member. */
struct rs_placement {
    const rs_placement_ops *ops;
    const rs_space *space; /* borrowed */
    int holders;
};

rs_status rs_shard_append(rs_shard_list *list, const rs_shard *shard) RS_MUST_CHECK;
rs_status rs_segment_append(rs_segment_list *list, int segment, int64_t bytes) RS_MUST_CHECK;

/* Adds one holder of one shard box; grows the last holding where it has the same box. */
rs_status rs_holding_add(rs_holding_list *list, const rs_box *box, int rank) RS_MUST_CHECK;

/* The part `box` of `shard`, whose box contains it. */
rs_shard rs_shard_part(const rs_shard *shard, const rs_box *box);

/* RS_ERR_NOT_FOUND: no single shard of the holder has the box. */
rs_status rs_placement_not_found(const rs_placement *placement, int holder, int tensor, int role,
    const rs_box *box) RS_MUST_CHECK;

#endif
