/*
 * Boxes: axis-aligned ranges of a tensor's index space.
 *
 * A box is an offset and an extent per dimension, counted in elements. A box with an extent of zero
 * in any dimension is empty; a box with no dimensions holds one element, the scalar. Boxes are
 * plain values: copy them. All functions are local and, where they return no status, cannot fail.
 */
#ifndef RESHARD_BOX_H
#define RESHARD_BOX_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RS_MAX_DIMS 8

typedef struct rs_box {
    int ndim;
    int64_t offset[RS_MAX_DIMS];
    int64_t extent[RS_MAX_DIMS];
} rs_box;

/* The whole index space of a tensor of `ndim` dimensions (0..RS_MAX_DIMS). */
rs_box rs_box_whole(int ndim, const int64_t *shape);

bool rs_box_is_empty(const rs_box *box);

/* Number of elements. The caller has made sure that it fits (see rs_box_check). */
int64_t rs_box_volume(const rs_box *box);

/* RS_ERR_ARGUMENT if `box` has negative numbers, does not lie inside `shape`, or has another number
 * of dimensions; RS_ERR_OVERFLOW if its volume does not fit int64_t. */
rs_status rs_box_check(const rs_box *box, int ndim, const int64_t *shape) RS_MUST_CHECK;

/* Stores the intersection of `a` and `b` (same ndim) in `out`; false, and `out` empty, if there is
 * none. `out` may be `a` or `b`. */
bool rs_box_intersect(const rs_box *a, const rs_box *b, rs_box *out);

/* True if `inner` lies in `outer`; an empty box lies in every box. */
bool rs_box_contains(const rs_box *outer, const rs_box *inner);

bool rs_box_equal(const rs_box *a, const rs_box *b);

/* Total order: by ndim, then offsets, then extents. <0, 0, >0. */
int rs_box_compare(const rs_box *a, const rs_box *b);

/* The parts of `a` outside `b` (same ndim), at most 2 * ndim disjoint boxes, in row-major order of
 * where they were cut; returns their number. `out` has room for 2 * RS_MAX_DIMS boxes. */
int rs_box_subtract(const rs_box *a, const rs_box *b, rs_box *out);

/*
 * The boxes whose elements are numbers begin..end-1 of `box` in row-major order; at most
 * 2 * ndim - 1 of them, in that order, disjoint. `out` has room for 2 * RS_MAX_DIMS boxes.
 * 0 <= begin <= end <= volume. Returns their number.
 */
int rs_box_linear_range(const rs_box *box, int64_t begin, int64_t end, rs_box *out);

/* Writes "[0:4,8:16]" to `text` (at most `size` bytes with the NUL) and returns `text`. */
char *rs_box_format(const rs_box *box, char *text, int size);

#ifdef __cplusplus
}
#endif

#endif
