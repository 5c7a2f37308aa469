/*
 * One copy of a plan: find both ends, copy, sum.
 *
 * The ends are found anew for every copy (a look-up in the placements), not kept: a plan may have
 * very many copies, and a look-up is cheap beside megabytes. Sums are added cell by cell (cells.h),
 * each piece read back from the target while it is in cache (copy.h).
 */
#include "move/execute.h"

#include "base/error.h"
#include "base/fault.h"
#include "move/checksum.h"
#include "move/copy.h"
#include "reshard/move.h"

rs_status rs_end_locate(const rs_placement *placement, int holder, const rs_memory *memory,
    const rs_copy *copy, rs_end *end, rs_shard *shard)
{
    rs_shard found;
    RS_TRY(rs_placement_address(placement, holder, copy->tensor, copy->role, &copy->box, &found));
    const rs_space *space = rs_placement_space(placement);
    rs_dtype dtype = rs_space_dtype(space, copy->tensor, copy->role);
    if (found.dtype != dtype)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "%s, role %s: holder %d stores %s, the role is %s; moves do not convert",
            rs_space_tensor(space, copy->tensor)->name, rs_space_role(space, copy->role)->name,
            holder, rs_dtype_name(found.dtype), rs_dtype_name(dtype));
    const void *data = memory != NULL ? rs_memory_shard(memory, &found) : NULL;
    if (data == NULL)
        return rs_error_set(
            RS_ERR_NOT_FOUND, "segment %d of rank %d is not mapped", found.segment, holder);
    end->data = data;
    for (int d = 0; d < copy->box.ndim; d++)
        end->stride[d] = found.stride[d];
    if (shard != NULL)
        *shard = found;
    return RS_OK;
}

void rs_end_packed(const rs_copy *copy, size_t element_size, const void *data, rs_end *end)
{
    end->data = data;
    rs_sum_canonical(copy->box.ndim, copy->box.extent, element_size, end->stride);
}

bool rs_end_is_packed(const rs_copy *copy, size_t element_size, const rs_end *end)
{
    int64_t step = (int64_t)element_size;
    for (int d = copy->box.ndim - 1; d >= 0; d--) {
        if (copy->box.extent[d] > 1 && end->stride[d] != step)
            return false;
        step *= copy->box.extent[d];
    }
    return true;
}

size_t rs_copy_element_size(const rs_space *space, const rs_copy *copy)
{
    return rs_dtype_size(rs_space_dtype(space, copy->tensor, copy->role));
}

static uint64_t key_of(const rs_space *space, const rs_copy *copy)
{
    return rs_sum_key(
        rs_space_tensor(space, copy->tensor)->name, rs_space_role(space, copy->role)->name);
}

/* Where an element of the copy's box lies on an end: the first of `inner`. */
static void *place(const rs_copy *copy, const rs_end *end, const rs_box *inner)
{
    const char *at = end->data;
    for (int d = 0; d < inner->ndim; d++)
        at += (inner->offset[d] - copy->box.offset[d]) * end->stride[d];
    return (
        void *)(uintptr_t)at; /* ends of targets are writable; the type is shared with sources */
}

rs_sum rs_end_sum(const rs_space *space, const rs_copy *copy, const rs_end *end)
{
    return rs_sum_box(key_of(space, copy), rs_space_tensor(space, copy->tensor)->shape, &copy->box,
        rs_copy_element_size(space, copy), end->data, end->stride);
}

/* Copies without sums; a fault point flips a bit of the first element. */
static void copy_plainly(
    const rs_space *space, const rs_copy *copy, const rs_end *to, const rs_end *from, bool corrupt)
{
    unsigned char *target = place(copy, to, &copy->box);
    rs_move_box(copy->box.ndim, copy->box.extent, rs_copy_element_size(space, copy), target,
        to->stride, from->data, from->stride);
    if (corrupt)
        target[0] ^= 0x04;
}

/* Copies and sums the target, the whole box at once. */
static rs_sum copy_summed(
    const rs_space *space, const rs_copy *copy, const rs_end *to, const rs_end *from, bool corrupt)
{
    rs_sum sum = {{0, 0}};
    if (corrupt) {
        copy_plainly(space, copy, to, from, corrupt);
        return rs_end_sum(space, copy, to);
    }
    rs_move_box_summed(key_of(space, copy), rs_space_tensor(space, copy->tensor)->shape, &copy->box,
        rs_copy_element_size(space, copy), place(copy, to, &copy->box), to->stride, from->data,
        from->stride, &sum);
    return sum;
}

void rs_copy_sum_target(
    const rs_space *space, const rs_copy *copy, const rs_end *to, rs_cells *cells)
{
    const rs_tensor *tensor = rs_space_tensor(space, copy->tensor);
    size_t size = rs_copy_element_size(space, copy);
    uint64_t key = key_of(space, copy);
    size_t at = 0;
    rs_box common;
    rs_cell_part *part;
    while ((part = rs_cells_next(cells, copy->tensor, copy->role, &copy->box, &at, &common))) {
        rs_sum sum =
            rs_sum_box(key, tensor->shape, &common, size, place(copy, to, &common), to->stride);
        rs_cell_part_add(part, &sum, rs_box_volume(&common));
    }
}

rs_status rs_copy_execute(const rs_space *space, const rs_copy *copy, const rs_end *to,
    const rs_end *from, rs_cells *cells)
{
    if (rs_fault_hit(RS_FAULT_COPY))
        return rs_error_set(RS_ERR_IO, "a copy from rank %d to rank %d was made to fail",
            copy->source, copy->target);
    bool corrupt = rs_fault_hit(RS_FAULT_CORRUPT);
    if (cells->count == 0 || corrupt) {
        copy_plainly(space, copy, to, from, corrupt);
        rs_copy_sum_target(space, copy, to, cells);
        return RS_OK;
    }
    const rs_tensor *tensor = rs_space_tensor(space, copy->tensor);
    size_t size = rs_copy_element_size(space, copy);
    uint64_t key = key_of(space, copy);
    size_t at = 0;
    int64_t done = 0;
    rs_box common;
    rs_cell_part *part;
    while ((part = rs_cells_next(cells, copy->tensor, copy->role, &copy->box, &at, &common))) {
        rs_sum sum = {{0, 0}};
        rs_move_box_summed(key, tensor->shape, &common, size, place(copy, to, &common), to->stride,
            place(copy, from, &common), from->stride, &sum);
        int64_t elements = rs_box_volume(&common);
        rs_cell_part_add(part, &sum, elements);
        done += elements;
    }
    /* Cells that were known already are not asked for; what they cover is copied all the same. */
    if (done < rs_box_volume(&copy->box))
        copy_plainly(space, copy, to, from, false);
    return RS_OK;
}

rs_status rs_copy_wrong(const rs_space *space, const rs_copy *copy)
{
    char box[RS_MAX_DIMS * 48];
    return rs_error_set(RS_ERR_CERTIFICATE,
        "%s %s, role %s: copied twice from rank %d to rank %d, and its sum is wrong both times",
        rs_space_tensor(space, copy->tensor)->name, rs_box_format(&copy->box, box, sizeof box),
        rs_space_role(space, copy->role)->name, copy->source, copy->target);
}

void rs_copy_add_sum(const rs_space *space, const rs_copy *copy, const rs_end *to,
    const rs_sum *sum, rs_cells *cells)
{
    size_t at = 0;
    rs_box common;
    rs_cell_part *part = rs_cells_next(cells, copy->tensor, copy->role, &copy->box, &at, &common);
    if (part != NULL && rs_box_equal(&common, &copy->box))
        rs_cell_part_add(part, sum, rs_box_volume(&common));
    else
        rs_copy_sum_target(space, copy, to, cells);
}

rs_status rs_copy_attempt(const rs_space *space, const rs_copy *copy, const rs_end *to,
    const rs_end *from, const rs_sum *wanted, rs_cells *cells, bool *right)
{
    if (rs_fault_hit(RS_FAULT_COPY))
        return rs_error_set(RS_ERR_IO, "a copy from rank %d to rank %d was made to fail",
            copy->source, copy->target);
    rs_sum sum = copy_summed(space, copy, to, from, rs_fault_hit(RS_FAULT_CORRUPT));
    *right = sum.lane[0] == wanted->lane[0] && sum.lane[1] == wanted->lane[1];
    if (*right)
        rs_copy_add_sum(space, copy, to, &sum, cells);
    return RS_OK;
}

rs_status rs_copy_execute_checked(const rs_space *space, const rs_copy *copy, const rs_end *to,
    const rs_end *from, rs_cells *cells)
{
    rs_sum wanted = rs_end_sum(space, copy, from);
    bool right = false;
    for (int attempt = 0; attempt < 2 && !right; attempt++)
        RS_TRY(rs_copy_attempt(space, copy, to, from, &wanted, cells, &right));
    return right ? RS_OK : rs_copy_wrong(space, copy);
}
