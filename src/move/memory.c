/*
 * A holder's memory: looking up segments, and a plain heap version of it for tools and tests.
 *
 * The heap version is one allocation: the table of regions first, then the segments, each at a
 * multiple of ALIGN bytes. rs_memory_free needs no more than the pointer to the table.
 */
#include "reshard/memory.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

#define ALIGN 64

void *rs_memory_segment(const rs_memory *memory, int segment)
{
    size_t at = RS_SEARCH(memory->count, k, memory->regions[k].segment < segment);
    bool there = at < memory->count && memory->regions[at].segment == segment;
    return there ? memory->regions[at].data : NULL;
}

void *rs_memory_shard(const rs_memory *memory, const rs_shard *shard)
{
    char *start = rs_memory_segment(memory, shard->segment);
    return start != NULL ? start + shard->offset : NULL;
}

/* Bytes of the allocation, with room to align its start. */
static rs_status footprint(const rs_segment_list *segments, int64_t *bytes)
{
    int64_t sum = ALIGN;
    int64_t table;
    bool fits = rs_mul_fits((int64_t)segments->count, (int64_t)sizeof(rs_region), &table) &&
                rs_add_fits(sum, rs_round_up(table, ALIGN), &sum);
    for (size_t k = 0; fits && k < segments->count; k++) {
        int64_t size = segments->items[k].bytes;
        fits = size >= 0 && size <= INT64_MAX - ALIGN &&
               rs_add_fits(sum, rs_round_up(size, ALIGN), &sum);
    }
    if (!fits)
        return rs_error_set(RS_ERR_OVERFLOW, "the segments' sizes do not fit 64 bits");
    *bytes = sum;
    return RS_OK;
}

rs_status rs_memory_allocate(const rs_placement *placement, int holder, rs_memory *out)
{
    rs_status status;
    rs_segment_list segments = {0};
    int64_t bytes = 0;
    RS_TRY_GOTO(rs_placement_segments(placement, holder, &segments), free_segments);
    RS_TRY_GOTO(footprint(&segments, &bytes), free_segments);
    char *block = rs_calloc((size_t)bytes, 1);
    if (block == NULL) {
        status = rs_error_memory((size_t)bytes);
        goto free_segments;
    }
    rs_large_pages(block, (size_t)bytes);
    rs_region *regions = (rs_region *)block;
    char *at = block + rs_round_up((int64_t)(segments.count * sizeof *regions), ALIGN);
    at += (ALIGN - (uintptr_t)at % ALIGN) % ALIGN;
    for (size_t k = 0; k < segments.count; k++) {
        regions[k] = (rs_region){
            .segment = segments.items[k].segment, .bytes = segments.items[k].bytes, .data = at};
        at += rs_round_up(regions[k].bytes, ALIGN);
    }
    *out = (rs_memory){.regions = regions, .count = segments.count};
    status = RS_OK;
free_segments:
    rs_segment_list_fini(&segments);
    return status;
}

void rs_memory_free(rs_memory *memory)
{
    if (memory == NULL)
        return;
    free(memory->regions);
    *memory = (rs_memory){0};
}
