/*
 * Placements: what all kinds share, which is the checking of questions and the order of answers.
 *
 * A kind (list.c, mesh.c) gives an operations table. It is asked about one role at a time, with
 * numbers and boxes already checked, and may report the holders of a box in any order; here the
 * answer is put into the one order that every rank sees.
 *
 * Invariants:
 * 1. A holder beyond the placement is a holder with nothing.
 * 2. After rs_placement_locate every box stands in exactly one holding, its ranks ascend, and the
 *    ranks of the holdings follow one another in the order of the holdings.
 *
 * Cost: of the kind, plus sorting an answer that does not come sorted.
 */
#include "layout/placement.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

void rs_shard_list_fini(rs_shard_list *list)
{
    free(list->items);
    memset(list, 0, sizeof *list);
}

void rs_segment_list_fini(rs_segment_list *list)
{
    free(list->items);
    memset(list, 0, sizeof *list);
}

void rs_holding_list_fini(rs_holding_list *list)
{
    free(list->items);
    free(list->ranks);
    memset(list, 0, sizeof *list);
}

rs_status rs_shard_append(rs_shard_list *list, const rs_shard *shard)
{
    RS_TRY(RS_LIST_RESERVE_ONE(list));
    list->items[list->count++] = *shard;
    return RS_OK;
}

rs_status rs_segment_append(rs_segment_list *list, int segment, int64_t bytes)
{
    RS_TRY(RS_LIST_RESERVE_ONE(list));
    list->items[list->count++] = (rs_segment){.segment = segment, .bytes = bytes};
    return RS_OK;
}

rs_status rs_holding_add(rs_holding_list *list, const rs_box *box, int rank)
{
    RS_TRY(rs_array_reserve(
        (void **)&list->ranks, &list->rank_capacity, list->rank_count + 1, sizeof *list->ranks));
    if (list->count == 0 || !rs_box_equal(&list->items[list->count - 1].box, box)) {
        RS_TRY(RS_LIST_RESERVE_ONE(list));
        list->items[list->count++] = (rs_holding){.box = *box, .first = list->rank_count};
    }
    list->items[list->count - 1].count++;
    list->ranks[list->rank_count++] = rank;
    return RS_OK;
}

rs_shard rs_shard_part(const rs_shard *shard, const rs_box *box)
{
    rs_shard part = *shard;
    part.box = *box;
    for (int d = 0; d < box->ndim; d++)
        part.offset += (box->offset[d] - shard->box.offset[d]) * shard->stride[d];
    return part;
}

rs_status rs_placement_not_found(
    const rs_placement *placement, int holder, int tensor, int role, const rs_box *box)
{
    char text[RS_MAX_DIMS * 48];
    return rs_error_set(RS_ERR_NOT_FOUND, "no shard of holder %d contains %s of tensor %s, role %s",
        holder, rs_box_format(box, text, sizeof text),
        rs_space_tensor(placement->space, tensor)->name,
        rs_space_role(placement->space, role)->name);
}

static int compare_holdings(const void *a, const void *b)
{
    const rs_holding *x = a;
    const rs_holding *y = b;
    int order = rs_box_compare(&x->box, &y->box);
    return order != 0 ? order : (x->first > y->first) - (x->first < y->first);
}

static bool is_in_order(const rs_holding_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        const rs_holding *holding = &list->items[i];
        if (i > 0 && rs_box_compare(&list->items[i - 1].box, &holding->box) >= 0)
            return false;
        for (size_t r = holding->first + 1; r < holding->first + holding->count; r++)
            if (list->ranks[r - 1] >= list->ranks[r])
                return false;
    }
    return true;
}

/* Establishes invariant 2. The ranks are gathered behind themselves in their final order, then
 * moved to the front, so that no other memory is needed. */
static rs_status put_in_order(rs_holding_list *list)
{
    if (is_in_order(list))
        return RS_OK;
    RS_TRY(rs_array_reserve(
        (void **)&list->ranks, &list->rank_capacity, 2 * list->rank_count, sizeof *list->ranks));
    qsort(list->items, list->count, sizeof *list->items, compare_holdings);
    int *sorted = list->ranks + list->rank_count;
    size_t used = 0;
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        rs_holding holding = list->items[i];
        memcpy(sorted + used, list->ranks + holding.first, holding.count * sizeof *sorted);
        if (kept > 0 && rs_box_equal(&list->items[kept - 1].box, &holding.box)) {
            list->items[kept - 1].count += holding.count;
        } else {
            list->items[kept] = holding;
            list->items[kept++].first = used;
        }
        used += holding.count;
    }
    for (size_t i = 0; i < kept; i++)
        qsort(sorted + list->items[i].first, list->items[i].count, sizeof *sorted, rs_compare_ints);
    memmove(list->ranks, sorted, used * sizeof *sorted);
    list->count = kept;
    return RS_OK;
}

static rs_status check_role(const rs_placement *placement, int role)
{
    int roles = rs_space_role_count(placement->space);
    if (role < 0 || role >= roles)
        return rs_error_set(
            RS_ERR_ARGUMENT, "role %d: the space has roles 0 to %d", role, roles - 1);
    return RS_OK;
}

static rs_status check_holder(int holder)
{
    if (holder < 0)
        return rs_error_set(RS_ERR_ARGUMENT, "holder %d: holders count from 0", holder);
    return RS_OK;
}

static rs_status check_box(const rs_placement *placement, int tensor, int role, const rs_box *box)
{
    int tensors = rs_space_tensor_count(placement->space);
    RS_TRY(check_role(placement, role));
    if (tensor < 0 || tensor >= tensors)
        return rs_error_set(
            RS_ERR_ARGUMENT, "tensor %d: the space has tensors 0 to %d", tensor, tensors - 1);
    const rs_tensor *described = rs_space_tensor(placement->space, tensor);
    rs_status status = rs_box_check(box, described->ndim, described->shape);
    return status == RS_OK ? status : rs_error_context(status, "tensor %s", described->name);
}

void rs_placement_destroy(rs_placement *placement)
{
    if (placement != NULL)
        placement->ops->destroy(placement);
}

const rs_space *rs_placement_space(const rs_placement *placement)
{
    return placement->space;
}

int rs_placement_holders(const rs_placement *placement)
{
    return placement->holders;
}

int rs_placement_geometry(const rs_placement *placement, int role)
{
    return placement->ops->geometry(placement, role);
}

rs_status rs_placement_shards(
    const rs_placement *placement, int holder, int role, rs_shard_list *out)
{
    out->count = 0;
    RS_TRY(check_holder(holder));
    if (role != -1)
        RS_TRY(check_role(placement, role));
    if (holder >= placement->holders)
        return RS_OK;
    int first = role == -1 ? 0 : role;
    int end = role == -1 ? rs_space_role_count(placement->space) : role + 1;
    for (int r = first; r < end; r++)
        RS_TRY(placement->ops->shards(placement, holder, r, out));
    return RS_OK;
}

rs_status rs_placement_segments(const rs_placement *placement, int holder, rs_segment_list *out)
{
    out->count = 0;
    RS_TRY(check_holder(holder));
    return holder < placement->holders ? placement->ops->segments(placement, holder, out) : RS_OK;
}

rs_status rs_placement_locate(
    const rs_placement *placement, int tensor, int role, const rs_box *box, rs_holding_list *out)
{
    out->count = 0;
    out->rank_count = 0;
    RS_TRY(check_box(placement, tensor, role, box));
    if (rs_box_is_empty(box))
        return RS_OK;
    RS_TRY(placement->ops->locate(placement, tensor, role, box, out));
    return put_in_order(out);
}

rs_status rs_placement_address(const rs_placement *placement, int holder, int tensor, int role,
    const rs_box *box, rs_shard *out)
{
    RS_TRY(check_holder(holder));
    RS_TRY(check_box(placement, tensor, role, box));
    if (holder >= placement->holders || rs_box_is_empty(box))
        return rs_placement_not_found(placement, holder, tensor, role, box);
    return placement->ops->address(placement, holder, tensor, role, box, out);
}
