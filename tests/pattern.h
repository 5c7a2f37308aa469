/*
 * State whose every element says what it is: filling and checking memories by canonical index, so
 * that a wrong byte anywhere is found and named, whatever moved it there.
 */
#ifndef RS_TESTS_PATTERN_H
#define RS_TESTS_PATTERN_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "reshard/memory.h"
#include "reshard/model.h"
#include "reshard/placement.h"
#include "reshard/space.h"

/* The value of an element, cut to its size. `salt` tells states apart. */
static inline uint64_t pattern_value(uint64_t salt, int tensor, int role, int64_t index)
{
    uint64_t z = salt * 0x9e3779b97f4a7c15u + (uint64_t)tensor * 0x100000001b3u +
                 (uint64_t)role * 0xff51afd7ed558ccdu + (uint64_t)index * 0xd6e8feb86659fd93u;
    z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93u;
    return z ^ (z >> 32);
}

/* Calls for each element of a shard; stops at the first that `visit` refuses. */
typedef bool pattern_visit(
    void *at, size_t size, uint64_t value, const rs_shard *shard, int64_t index);

static inline bool pattern_shard(const rs_space *space, const rs_memory *memory,
    const rs_shard *shard, uint64_t salt, pattern_visit *visit)
{
    const rs_tensor *tensor = rs_space_tensor(space, shard->tensor);
    size_t size = rs_dtype_size(shard->dtype);
    char *first = rs_memory_shard(memory, shard);
    int64_t volume = rs_box_volume(&shard->box);
    for (int64_t k = 0; k < volume; k++) {
        int64_t rest = k;
        int64_t index = 0;
        int64_t step = 1;
        char *at = first;
        for (int d = shard->box.ndim - 1; d >= 0; d--) {
            int64_t here = rest % shard->box.extent[d];
            rest /= shard->box.extent[d];
            index += (shard->box.offset[d] + here) * step;
            step *= tensor->shape[d];
            at += here * shard->stride[d];
        }
        uint64_t value = pattern_value(salt, shard->tensor, shard->role, index);
        if (!visit(at, size, value, shard, index))
            return false;
    }
    return true;
}

static inline bool pattern_put(
    void *at, size_t size, uint64_t value, const rs_shard *shard, int64_t index)
{
    (void)shard;
    (void)index;
    memcpy(at, &value, size);
    return true;
}

static inline bool pattern_quiet(
    void *at, size_t size, uint64_t value, const rs_shard *shard, int64_t index)
{
    (void)shard;
    (void)index;
    return memcmp(at, &value, size) == 0;
}

static inline bool pattern_same(
    void *at, size_t size, uint64_t value, const rs_shard *shard, int64_t index)
{
    if (memcmp(at, &value, size) == 0)
        return true;
    printf("tensor %d, role %d, element %" PRId64 " (segment %d) is wrong\n", shard->tensor,
        shard->role, index, shard->segment);
    return false;
}

static inline bool pattern_visit_holder(const rs_placement *placement, int holder,
    const rs_memory *memory, uint64_t salt, pattern_visit *visit)
{
    rs_shard_list shards = {0};
    bool right = rs_placement_shards(placement, holder, -1, &shards) == RS_OK;
    for (size_t k = 0; right && k < shards.count; k++)
        right = pattern_shard(rs_placement_space(placement), memory, &shards.items[k], salt, visit);
    rs_shard_list_fini(&shards);
    return right;
}

/* Writes the pattern to everything that a holder has; false on failure. */
static inline bool pattern_fill(
    const rs_placement *placement, int holder, const rs_memory *memory, uint64_t salt)
{
    return pattern_visit_holder(placement, holder, memory, salt, pattern_put);
}

/* True if everything that a holder has is the pattern; else says what is wrong. */
static inline bool pattern_check(
    const rs_placement *placement, int holder, const rs_memory *memory, uint64_t salt)
{
    return pattern_visit_holder(placement, holder, memory, salt, pattern_same);
}

/* A small model with sizes that divide badly. */
static inline rs_model pattern_model(void)
{
    return (rs_model){.name = "test",
        .family = "qwen2",
        .layers = 5,
        .hidden = 36,
        .heads = 6,
        .kv_heads = 2,
        .head_dim = 6,
        .ffn = 53,
        .vocab = 101,
        .tied = true,
        .qkv_bias = true,
        .norm_eps = 1e-5,
        .rope_theta = 1e4,
        .dtype = RS_DTYPE_BF16};
}

#endif
