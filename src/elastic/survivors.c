/*
 * What is left of a placement when holders are gone: its segments, each where it was, but for those
 * of the lost holders.
 *
 * Cost: every segment of every holder is looked at.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"
#include "reshard/elastic.h"
#include "reshard/placement.h"

/* The segments of the holders that are not lost; a list that grows. */
typedef struct left {
    rs_segment_ref *items;
    size_t count;
    size_t capacity;
} left;

static rs_status add_holder(
    const rs_placement *base, int holder, rs_segment_list *segments, left *list)
{
    RS_TRY(rs_placement_segments(base, holder, segments));
    RS_TRY(rs_array_reserve((void **)&list->items, &list->capacity, list->count + segments->count,
        sizeof *list->items));
    for (size_t i = 0; i < segments->count; i++)
        list->items[list->count++] = (rs_segment_ref){holder, segments->items[i].segment};
    return RS_OK;
}

rs_status rs_survivors_create(const rs_placement *base, const bool *lost, rs_placement **out)
{
    int holders = rs_placement_holders(base);
    left list = {0};
    rs_segment_list segments = {0};
    rs_status status;
    size_t *first = rs_calloc((size_t)holders + 1, sizeof *first);
    if (first == NULL)
        return rs_error_memory(((size_t)holders + 1) * sizeof *first);
    for (int h = 0; h < holders; h++) {
        if (!lost[h])
            RS_TRY_GOTO(add_holder(base, h, &segments, &list), done);
        first[h + 1] = list.count;
    }
    RS_TRY_GOTO(rs_placement_create_regrouped(base, holders, list.items, first, out), done);
done:
    rs_segment_list_fini(&segments);
    free(list.items);
    free(first);
    return status;
}
