/*
 * A holder's memory: its segments and where they are mapped. Plain data; who made the regions (an
 * arena, malloc, a user's own buffers) owns them. All functions are local.
 */
#ifndef RESHARD_MEMORY_H
#define RESHARD_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/placement.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rs_region {
    int segment;
    int64_t bytes;
    void *data;
} rs_region;

typedef struct rs_memory {
    rs_region *regions; /* ascending by segment */
    size_t count;
} rs_memory;

/* The start of a segment, NULL if the memory does not have it. */
void *rs_memory_segment(const rs_memory *memory, int segment);

/* The first element of a shard: rs_memory_segment + offset. NULL if the segment is absent. */
void *rs_memory_shard(const rs_memory *memory, const rs_shard *shard);

/* One zeroed heap allocation with a region per segment of `holder`, 64-byte aligned. The caller
 * releases it with rs_memory_free. For tools and tests. */
rs_status rs_memory_allocate(
    const rs_placement *placement, int holder, rs_memory *out) RS_MUST_CHECK;
void rs_memory_free(rs_memory *memory);

#ifdef __cplusplus
}
#endif

#endif
