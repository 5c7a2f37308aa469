/*
 * Boxes: the index-space arithmetic under everything else.
 *
 * Invariants: functions that return several boxes return disjoint, non-empty ones in row-major
 * order of the cut; the union is exact. Volumes are trusted: rs_box_check (or the space) has proved
 * that they fit.
 */
#include "reshard/box.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

rs_box rs_box_whole(int ndim, const int64_t *shape)
{
    assert(ndim >= 0 && ndim <= RS_MAX_DIMS);
    rs_box box = {.ndim = ndim};
    for (int d = 0; d < ndim; d++)
        box.extent[d] = shape[d];
    return box;
}

bool rs_box_is_empty(const rs_box *box)
{
    for (int d = 0; d < box->ndim; d++)
        if (box->extent[d] <= 0)
            return true;
    return false;
}

int64_t rs_box_volume(const rs_box *box)
{
    int64_t volume = 1;
    for (int d = 0; d < box->ndim; d++)
        volume *= box->extent[d];
    return volume;
}

rs_status rs_box_check(const rs_box *box, int ndim, const int64_t *shape)
{
    if (box->ndim != ndim)
        return rs_error_set(
            RS_ERR_ARGUMENT, "box has %d dimensions, the tensor has %d", box->ndim, ndim);
    int64_t volume = 1;
    for (int d = 0; d < ndim; d++) {
        int64_t end;
        if (box->offset[d] < 0 || box->extent[d] < 0 ||
            !rs_add_fits(box->offset[d], box->extent[d], &end) || end > shape[d])
            return rs_error_set(RS_ERR_ARGUMENT,
                "box dimension %d: offset %" PRId64 ", extent %" PRId64
                " do not lie within 0..%" PRId64,
                d, box->offset[d], box->extent[d], shape[d]);
    }
    if (rs_box_is_empty(box))
        return RS_OK;
    for (int d = 0; d < ndim; d++)
        if (!rs_mul_fits(volume, box->extent[d], &volume))
            return rs_error_set(RS_ERR_OVERFLOW, "the box's elements do not fit 64 bits");
    return RS_OK;
}

bool rs_box_intersect(const rs_box *a, const rs_box *b, rs_box *out)
{
    assert(a->ndim == b->ndim);
    rs_box box = {.ndim = a->ndim};
    bool some = true;
    for (int d = 0; d < a->ndim; d++) {
        int64_t begin = rs_max64(a->offset[d], b->offset[d]);
        int64_t end = rs_min64(a->offset[d] + a->extent[d], b->offset[d] + b->extent[d]);
        box.offset[d] = begin;
        box.extent[d] = rs_max64(end - begin, 0);
        if (end <= begin)
            some = false;
    }
    *out = box;
    return some;
}

bool rs_box_contains(const rs_box *outer, const rs_box *inner)
{
    assert(outer->ndim == inner->ndim);
    if (rs_box_is_empty(inner))
        return true;
    for (int d = 0; d < outer->ndim; d++)
        if (inner->offset[d] < outer->offset[d] ||
            inner->offset[d] + inner->extent[d] > outer->offset[d] + outer->extent[d])
            return false;
    return true;
}

bool rs_box_equal(const rs_box *a, const rs_box *b)
{
    return rs_box_compare(a, b) == 0;
}

int rs_box_compare(const rs_box *a, const rs_box *b)
{
    if (a->ndim != b->ndim)
        return a->ndim < b->ndim ? -1 : 1;
    for (int d = 0; d < a->ndim; d++)
        if (a->offset[d] != b->offset[d])
            return a->offset[d] < b->offset[d] ? -1 : 1;
    for (int d = 0; d < a->ndim; d++)
        if (a->extent[d] != b->extent[d])
            return a->extent[d] < b->extent[d] ? -1 : 1;
    return 0;
}

int rs_box_subtract(const rs_box *a, const rs_box *b, rs_box *out)
{
    rs_box common;
    if (rs_box_is_empty(a))
        return 0;
    if (!rs_box_intersect(a, b, &common)) {
        out[0] = *a;
        return 1;
    }
    /* Peel `a` down to the common box, one dimension after the other: before, then after. */
    int count = 0;
    rs_box rest = *a;
    for (int d = 0; d < a->ndim; d++) {
        int64_t before = common.offset[d] - rest.offset[d];
        if (before > 0) {
            out[count] = rest;
            out[count++].extent[d] = before;
        }
        int64_t after = rest.offset[d] + rest.extent[d] - common.offset[d] - common.extent[d];
        if (after > 0) {
            out[count] = rest;
            out[count].offset[d] = common.offset[d] + common.extent[d];
            out[count++].extent[d] = after;
        }
        rest.offset[d] = common.offset[d];
        rest.extent[d] = common.extent[d];
    }
    return count;
}

/* The elements begin..end-1 of `box`, whose dimensions before `dim` have extent one. */
static int linear_range(const rs_box *box, int dim, int64_t begin, int64_t end, rs_box *out)
{
    if (begin >= end)
        return 0;
    if (dim == box->ndim) {
        out[0] = *box;
        return 1;
    }
    int64_t inner = 1;
    for (int d = dim + 1; d < box->ndim; d++)
        inner *= box->extent[d];
    int64_t first = begin / inner;
    int64_t last = (end - 1) / inner;
    rs_box row = *box;
    row.extent[dim] = 1;
    if (first == last && end - begin < inner) {
        row.offset[dim] = box->offset[dim] + first;
        return linear_range(&row, dim + 1, begin - first * inner, end - first * inner, out);
    }
    int count = 0;
    if (begin % inner != 0) {
        row.offset[dim] = box->offset[dim] + first;
        count += linear_range(&row, dim + 1, begin % inner, inner, out);
        first++;
    }
    int64_t full_end = end / inner;
    if (full_end > first) {
        out[count] = *box;
        out[count].offset[dim] = box->offset[dim] + first;
        out[count++].extent[dim] = full_end - first;
    }
    if (end % inner != 0) {
        row.offset[dim] = box->offset[dim] + last;
        count += linear_range(&row, dim + 1, 0, end % inner, out + count);
    }
    return count;
}

int rs_box_linear_range(const rs_box *box, int64_t begin, int64_t end, rs_box *out)
{
    assert(0 <= begin && begin <= end && (begin == end || end <= rs_box_volume(box)));
    return linear_range(box, 0, begin, end, out);
}

char *rs_box_format(const rs_box *box, char *text, int size)
{
    int used = snprintf(text, (size_t)size, "[");
    for (int d = 0; d < box->ndim && used < size; d++)
        used += snprintf(text + used, (size_t)(size - used), "%s%" PRId64 ":%" PRId64,
            d > 0 ? "," : "", box->offset[d], box->offset[d] + box->extent[d]);
    if (used < size)
        snprintf(text + used, (size_t)(size - used), "]");
    return text;
}
