/*
 * Placements: which holder has which box of which tensor, and where its bytes lie.
 *
 * A holder is whatever owns pieces of tensors: a rank's memory, or a file. Its memory is a set of
 * numbered segments; a segment is contiguous and is the unit in which memory is allocated, adopted
 * and freed. A shard is a box of one (tensor, role) with the place of its bytes in a segment.
 *
 * A placement is never a table of everything: it answers questions, and what an answer costs
 * depends on the answer's size, not on the number of holders or tensors. Three kinds exist here:
 * those that follow from a layout (layout.h), those listed shard by shard
 * (rs_placement_create_list), and another one's segments dealt anew
 * (rs_placement_create_regrouped).
 *
 * A holder beyond the placement is one that has nothing. Numbers of tensors and roles outside the
 * space and boxes outside their tensor are RS_ERR_ARGUMENT; so is a negative holder.
 *
 * Rules of every placement: shards of one holder and one (tensor, role) do not overlap; answers are
 * the same on every rank and every call; a placement is immutable and may be read by many threads.
 * All functions are local.
 */
#ifndef RESHARD_PLACEMENT_H
#define RESHARD_PLACEMENT_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/box.h"
#include "reshard/dtype.h"
#include "reshard/space.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rs_placement rs_placement;

typedef struct rs_shard {
    int tensor;
    int role;
    rs_dtype dtype;              /* as stored by this holder */
    rs_box box;                  /* never empty */
    int segment;                 /* >= 0, numbered within the holder */
    int64_t offset;              /* bytes from the segment's start to the box's first element */
    int64_t stride[RS_MAX_DIMS]; /* bytes between neighbours along each dimension of the box */
} rs_shard;

/* A growing list of shards; starts as {0}. */
typedef struct rs_shard_list {
    rs_shard *items;
    size_t count;
    size_t capacity;
} rs_shard_list;

void rs_shard_list_fini(rs_shard_list *list);

/* One segment of a holder and its size. */
typedef struct rs_segment {
    int segment;
    int64_t bytes;
} rs_segment;

/* A growing list of segments; starts as {0}. */
typedef struct rs_segment_list {
    rs_segment *items;
    size_t count;
    size_t capacity;
} rs_segment_list;

void rs_segment_list_fini(rs_segment_list *list);

/* A box and the holders that each have exactly this box as one shard. */
typedef struct rs_holding {
    rs_box box;
    size_t first; /* its holders are ranks[first .. first + count - 1] of the list, ascending */
    size_t count;
} rs_holding;

/* A growing list of holdings; starts as {0}. Buffers are kept from call to call. */
typedef struct rs_holding_list {
    rs_holding *items;
    size_t count;
    size_t capacity;
    int *ranks;
    size_t rank_count;
    size_t rank_capacity;
} rs_holding_list;

void rs_holding_list_fini(rs_holding_list *list);

/*
 * A placement that lists its shards. `shards` holds those of holder 0, then 1, ...: holder h has
 * shards[first[h] .. first[h + 1] - 1], so `first` has holders + 1 entries. Everything is copied;
 * `space` is borrowed. The caller owns `*out`. RS_ERR_ARGUMENT names the shard that is empty, lies
 * outside its tensor, or overlaps another of the same holder.
 */
rs_status rs_placement_create_list(const rs_space *space, int holders, const rs_shard *shards,
    const size_t *first, rs_placement **out) RS_MUST_CHECK;

/* A segment of a holder. */
typedef struct rs_segment_ref {
    int holder;
    int segment;
} rs_segment_ref;

/*
 * A placement of the same bytes with the segments of `base` dealt to other holders: holder h has
 * refs[first[h] .. first[h + 1] - 1], each a segment of a holder of `base` under its own number, so
 * `first` has holders + 1 entries. Where a new world takes over, a new rank thus holds what it
 * takes of several old ones. `base` is borrowed, the rest copied. The caller owns `*out`.
 * RS_ERR_ARGUMENT names the segment that `base` does not have, that is dealt twice, or whose number
 * the holder has already.
 */
rs_status rs_placement_create_regrouped(const rs_placement *base, int holders,
    const rs_segment_ref *refs, const size_t *first, rs_placement **out) RS_MUST_CHECK;

void rs_placement_destroy(rs_placement *placement);

const rs_space *rs_placement_space(const rs_placement *placement);
int rs_placement_holders(const rs_placement *placement);

/*
 * The geometry class of a role: two roles of one class are cut into the same boxes on the same
 * holders, for every tensor, so that what is computed for one holds for both. Classes are numbered
 * from 0, and the answer is the lowest role of the class.
 */
int rs_placement_geometry(const rs_placement *placement, int role);

/* Appends nothing, replaces: all shards of `holder` with role `role` (-1: of all roles), ordered by
 * (role, segment, offset). */
rs_status rs_placement_shards(
    const rs_placement *placement, int holder, int role, rs_shard_list *out) RS_MUST_CHECK;

/* Replaces `*out` by the segments of `holder` in ascending order; sizes include alignment padding.
 */
rs_status rs_placement_segments(
    const rs_placement *placement, int holder, rs_segment_list *out) RS_MUST_CHECK;

/*
 * Who has what of a box: replaces `*out` by every shard box of (tensor, role) that meets `box`,
 * whole and not clipped to it, with its holders. Ordered by rs_box_compare, then by first holder;
 * one box may appear in more than one holding, a holder at most once with a given box.
 */
rs_status rs_placement_locate(const rs_placement *placement, int tensor, int role,
    const rs_box *box, rs_holding_list *out) RS_MUST_CHECK;

/* Where `holder` has `box`, which lies in one of its shards: `*out` gets the sub-shard, with `box`
 * as its box and offset and strides to match. RS_ERR_NOT_FOUND if no single shard contains it. */
rs_status rs_placement_address(const rs_placement *placement, int holder, int tensor, int role,
    const rs_box *box, rs_shard *out) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
