/*
 * Cells: where the sums of what was written are gathered, and rs_sums_measure.
 *
 * A copy's box may lie in one cell or meet several, and a cell is filled by one copy or by many.
 * Each element lies in exactly one cell, so copies are summed cell by cell, and a cell is known
 * once as many elements as it has were added. Cells that were known beforehand (adopted ones) are
 * not written, and left out.
 *
 * Cost: a binary search per copy, then the cells that overlap it along axis 0.
 */
#include "move/cells.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "move/sums.h"
#include "space/front.h"

static int compare_keys(const rs_cell *a, int tensor, int role, int64_t first)
{
    if (a->tensor != tensor)
        return rs_compare(a->tensor, tensor);
    if (a->role != role)
        return rs_compare(a->role, role);
    return rs_front_begin(&a->box) < first ? -1 : rs_front_begin(&a->box) > first;
}

static int compare_parts(const void *a, const void *b)
{
    const rs_cell *x = ((const rs_cell_part *)a)->cell;
    const rs_cell *y = ((const rs_cell_part *)b)->cell;
    int order = compare_keys(x, y->tensor, y->role, rs_front_begin(&y->box));
    return order != 0 ? order : rs_box_compare(&x->box, &y->box);
}

rs_status rs_cells_init(rs_cells *cells, rs_sums *sums)
{
    size_t count = 0;
    rs_cell *all = sums != NULL ? rs_sums_cells(sums, &count) : NULL;
    *cells = (rs_cells){.parts = rs_calloc(count, sizeof *cells->parts), .longest = 1};
    if (cells->parts == NULL)
        return rs_error_memory(count * sizeof *cells->parts);
    for (size_t k = 0; k < count; k++) {
        if (all[k].known)
            continue;
        all[k].sum = (rs_sum){{0, 0}};
        cells->parts[cells->count++] =
            (rs_cell_part){.cell = &all[k], .missing = rs_box_volume(&all[k].box)};
        if (all[k].box.ndim > 0)
            cells->longest = rs_max64(cells->longest, all[k].box.extent[0]);
    }
    if (cells->count > 1)
        qsort(cells->parts, cells->count, sizeof *cells->parts, compare_parts);
    return RS_OK;
}

void rs_cells_fini(rs_cells *cells)
{
    free(cells->parts);
    *cells = (rs_cells){0};
}

/* Most cells that are looked at are beside the box. */
static inline bool meet(const rs_box *a, const rs_box *b)
{
    for (int d = 0; d < a->ndim; d++)
        if (a->offset[d] >= b->offset[d] + b->extent[d] ||
            b->offset[d] >= a->offset[d] + a->extent[d])
            return false;
    return true;
}

rs_cell_part *rs_cells_next(
    const rs_cells *cells, int tensor, int role, const rs_box *box, size_t *at, rs_box *common)
{
    int64_t first = rs_front_begin(box);
    int64_t end = rs_front_end(box);
    if (*at == 0) {
        /* Cells that begin earlier than this end before the box does. */
        int64_t least = first - cells->longest + 1;
        *at =
            RS_SEARCH(cells->count, k, compare_keys(cells->parts[k].cell, tensor, role, least) < 0);
    }
    while (*at < cells->count) {
        rs_cell_part *part = &cells->parts[*at];
        if (compare_keys(part->cell, tensor, role, end) >= 0)
            return NULL;
        (*at)++;
        if (meet(&part->cell->box, box) && rs_box_intersect(&part->cell->box, box, common))
            return part;
    }
    return NULL;
}

void rs_cell_part_add(rs_cell_part *part, const rs_sum *sum, int64_t elements)
{
    part->cell->sum.lane[0] += sum->lane[0];
    part->cell->sum.lane[1] += sum->lane[1];
    part->missing -= elements;
    part->cell->known = part->missing == 0;
}

rs_status rs_sums_measure(rs_sums *sums, const rs_memory *memory, bool all)
{
    const rs_space *space = rs_placement_space(sums->placement);
    for (size_t k = 0; k < sums->count; k++) {
        rs_cell *cell = &sums->cells[k];
        rs_shard shard;
        if (cell->known && !all)
            continue;
        RS_TRY(rs_placement_address(
            sums->placement, sums->holder, cell->tensor, cell->role, &cell->box, &shard));
        const void *data = rs_memory_shard(memory, &shard);
        if (data == NULL)
            return rs_error_set(RS_ERR_NOT_FOUND, "segment %d of holder %d is not in memory",
                shard.segment, sums->holder);
        const rs_tensor *tensor = rs_space_tensor(space, cell->tensor);
        uint64_t key = rs_sum_key(tensor->name, rs_space_role(space, cell->role)->name);
        cell->sum = rs_sum_box(
            key, tensor->shape, &cell->box, rs_dtype_size(shard.dtype), data, shard.stride);
        cell->known = true;
    }
    return RS_OK;
}
