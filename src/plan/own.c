/*
 * One rank's shards before and after, by name, and adoption.
 *
 * A new segment stays where it lies if the rank's old segment of the same number has the same size
 * and the same shards (tensor, role, dtype, box) at the same offsets with the same strides. Then
 * every byte of it is right already, and nobody else has to know: to the others the rank is an old
 * holder that needs nothing.
 */
#include "plan/own.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "space/front.h"

static int compare_names(const rs_shard *shard, int role, int tensor)
{
    return shard->role != role ? rs_compare(shard->role, role) : rs_compare(shard->tensor, tensor);
}

static int compare_by_name(const void *a, const void *b)
{
    const rs_shard *one = a;
    const rs_shard *other = b;
    int order = compare_names(one, other->role, other->tensor);
    return order != 0 ? order : rs_box_compare(&one->box, &other->box);
}

static int compare_by_place(const void *a, const void *b)
{
    const rs_shard *one = *(const rs_shard *const *)a;
    const rs_shard *other = *(const rs_shard *const *)b;
    if (one->segment != other->segment)
        return rs_compare(one->segment, other->segment);
    if (one->offset != other->offset)
        return rs_compare(one->offset, other->offset);
    return compare_by_name(one, other);
}

static bool same_shard(const rs_shard *a, const rs_shard *b)
{
    return a->tensor == b->tensor && a->role == b->role && a->dtype == b->dtype &&
           a->offset == b->offset && rs_box_equal(&a->box, &b->box) &&
           memcmp(a->stride, b->stride, sizeof a->stride[0] * (size_t)a->box.ndim) == 0;
}

/* The shards of a side in the order of their places; the caller frees `*out`. */
static rs_status sort_by_place(const rs_shard_list *shards, const rs_shard ***out)
{
    const rs_shard **sorted = rs_calloc(shards->count, sizeof *sorted);
    if (sorted == NULL)
        return rs_error_memory(shards->count * sizeof *sorted);
    for (size_t i = 0; i < shards->count; i++)
        sorted[i] = &shards->items[i];
    if (shards->count > 1)
        qsort(sorted, shards->count, sizeof *sorted, compare_by_place);
    *out = sorted;
    return RS_OK;
}

/* The shards of `segment` among those sorted by place, from `*at` on: returns the first and leaves
 * `*at` behind the last. */
static size_t step_over(const rs_shard **sorted, size_t count, int segment, size_t *at)
{
    while (*at < count && sorted[*at]->segment < segment)
        (*at)++;
    size_t first = *at;
    while (*at < count && sorted[*at]->segment == segment)
        (*at)++;
    return first;
}

static rs_status find_adopted(rs_own *own)
{
    const rs_segment_list *old = &own->segments[RS_OLD];
    const rs_segment_list *now = &own->segments[RS_NEW];
    const rs_shard **before = NULL;
    const rs_shard **after = NULL;
    rs_status status = RS_OK;
    RS_TRY_GOTO(sort_by_place(&own->shards[RS_OLD], &before), done);
    RS_TRY_GOTO(sort_by_place(&own->shards[RS_NEW], &after), done);
    size_t old_end = 0;
    size_t now_end = 0;
    size_t o = 0;
    for (size_t n = 0; n < now->count; n++) {
        int segment = now->items[n].segment;
        while (o < old->count && old->items[o].segment < segment)
            o++;
        if (o == old->count || old->items[o].segment != segment ||
            old->items[o].bytes != now->items[n].bytes)
            continue;
        size_t old_first = step_over(before, own->shards[RS_OLD].count, segment, &old_end);
        size_t now_first = step_over(after, own->shards[RS_NEW].count, segment, &now_end);
        bool same = old_end - old_first == now_end - now_first;
        for (size_t i = 0; same && i < now_end - now_first; i++)
            same = same_shard(before[old_first + i], after[now_first + i]);
        if (!same)
            continue;
        own->adopted[own->adopted_count++] = segment;
        own->adopted_bytes += now->items[n].bytes;
        for (size_t i = now_first; i < now_end; i++)
            own->stays[after[i] - own->shards[RS_NEW].items] = true;
    }
done:
    free(before);
    free(after);
    return status;
}

rs_status rs_own_init(
    rs_own *own, const rs_placement *from, const rs_placement *to, int rank, bool adopt)
{
    const rs_placement *placements[RS_SIDES] = {from, to};
    memset(own, 0, sizeof *own);
    for (int side = 0; side < RS_SIDES; side++) {
        if (rank >= rs_placement_holders(placements[side]))
            continue;
        rs_shard_list *shards = &own->shards[side];
        RS_TRY(rs_placement_shards(placements[side], rank, -1, shards));
        RS_TRY(rs_placement_segments(placements[side], rank, &own->segments[side]));
        if (shards->count > 1)
            qsort(shards->items, shards->count, sizeof *shards->items, compare_by_name);
    }
    own->stays = rs_calloc(own->shards[RS_NEW].count, sizeof *own->stays);
    own->adopted = rs_calloc(own->segments[RS_NEW].count, sizeof *own->adopted);
    if (own->stays == NULL || own->adopted == NULL)
        return rs_error_memory(own->segments[RS_NEW].count * sizeof *own->adopted);
    return adopt ? find_adopted(own) : RS_OK;
}

void rs_own_fini(rs_own *own)
{
    for (int side = 0; side < RS_SIDES; side++) {
        rs_shard_list_fini(&own->shards[side]);
        rs_segment_list_fini(&own->segments[side]);
    }
    free(own->stays);
    free(own->adopted);
    memset(own, 0, sizeof *own);
}

const rs_shard *rs_own_shards(const rs_own *own, int side, int role, int tensor, size_t *count)
{
    const rs_shard_list *shards = &own->shards[side];
    size_t begin = RS_SEARCH(shards->count, k, compare_names(&shards->items[k], role, tensor) < 0);
    size_t end = RS_SEARCH(shards->count, k, compare_names(&shards->items[k], role, tensor) <= 0);
    *count = end - begin;
    return *count > 0 ? shards->items + begin : NULL;
}

bool rs_own_stays(const rs_own *own, int role, int tensor, const rs_box *box)
{
    size_t count;
    if (own->adopted_count == 0)
        return false;
    const rs_shard *shards = rs_own_shards(own, RS_NEW, role, tensor, &count);
    for (size_t i = 0; i < count; i++)
        if (rs_box_contains(&shards[i].box, box))
            return own->stays[&shards[i] - own->shards[RS_NEW].items];
    return false;
}

/*
 * Shards are in the order of where their boxes begin, before and after: old ones that end before a
 * new one begins are of no concern to those behind it, nor are those to it that begin behind its
 * end.
 */
int64_t rs_own_lacking(const rs_own *own, const rs_space *space)
{
    int64_t bytes = 0;
    const rs_shard *old = NULL;
    size_t count = 0;
    size_t first = 0;
    for (size_t n = 0; n < own->shards[RS_NEW].count; n++) {
        const rs_shard *shard = &own->shards[RS_NEW].items[n];
        if (n == 0 || compare_names(shard - 1, shard->role, shard->tensor) != 0) {
            old = rs_own_shards(own, RS_OLD, shard->role, shard->tensor, &count);
            first = 0;
        }
        while (first < count && rs_front_end(&old[first].box) <= rs_front_begin(&shard->box))
            first++;
        int64_t end = rs_front_end(&shard->box);
        int64_t lacking = rs_box_volume(&shard->box);
        rs_box common;
        for (size_t i = first; i < count && rs_front_begin(&old[i].box) < end; i++)
            if (rs_box_intersect(&shard->box, &old[i].box, &common))
                lacking -= rs_box_volume(&common);
        bytes +=
            lacking * (int64_t)rs_dtype_size(rs_space_dtype(space, shard->tensor, shard->role));
    }
    return bytes;
}
