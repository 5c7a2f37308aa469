/*
 * A rank's state: the geometry of one layout joined to the memory of one arena.
 *
 * The local concatenation (layout.h) is the coordinate in which everything local is written: a
 * parameter, its gradient, its moments and its master all have the same position. A role that ZeRO
 * cuts has a range of positions. Each (role, block) is one segment, so a table of [role][block]
 * views turns a position into an address.
 *
 * 1. A view's range is the block's range cut by the role's flat range; it is empty where the arena
 * has no such segment.
 * 2. Nothing here knows what a tensor means, and nothing but rs_state_fill writes.
 */
#include "train/state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/bfloat16.h"
#include "train/init.h"
#include "train/simd.h"

rs_status rs_state_init(const rs_space *space, const rs_layout *layout, int rank, rs_state *out)
{
    memset(out, 0, sizeof *out);
    out->space = space;
    out->layout = *layout;
    out->rank = rank;
    out->holds = rank < rs_layout_world(layout);
    out->blocks = rs_layout_block_count(space);
    out->roles = (rs_roles){rs_space_find_role(space, "param"), rs_space_find_role(space, "master"),
        rs_space_find_role(space, "exp_avg"), rs_space_find_role(space, "exp_avg_sq")};
    rs_layout flat = *layout;
    flat.zero = 3;
    RS_TRY(rs_layout_placement(space, layout, &out->placement));
    return rs_layout_placement(space, &flat, &out->flat);
}

void rs_state_fini(rs_state *state)
{
    rs_arena_close(state->arena);
    rs_placement_destroy(state->flat);
    rs_placement_destroy(state->placement);
    free(state->views);
    free(state->carried);
    memset(state, 0, sizeof *state);
}

const rs_memory *rs_state_memory(const rs_state *state)
{
    return state->arena != NULL ? rs_arena_memory(state->arena) : NULL;
}

const rs_view *rs_state_view(const rs_state *state, int role, int block)
{
    return &state->views[role * state->blocks + block];
}

void *rs_state_element(const rs_state *state, int role, int block, int64_t position)
{
    const rs_view *view = rs_state_view(state, role, block);
    int64_t size = (int64_t)rs_dtype_size(rs_space_role(state->space, role)->dtype);
    return view->data + (position - view->begin) * size;
}

static rs_status make_views(rs_state *state)
{
    int roles = rs_space_role_count(state->space);
    state->views = rs_calloc((size_t)roles * (size_t)state->blocks, sizeof *state->views);
    if (state->views == NULL)
        return rs_error_memory((size_t)roles * (size_t)state->blocks * sizeof *state->views);
    const rs_memory *memory = rs_state_memory(state);
    for (int role = 0; role < roles; role++) {
        int64_t first, last;
        rs_layout_flat_range(state->space, &state->layout, state->rank, role, &first, &last);
        for (int block = 0; block < state->blocks; block++) {
            rs_view *view = &state->views[role * state->blocks + block];
            rs_layout_block_range(
                state->space, &state->layout, state->rank, block, &view->begin, &view->end);
            view->begin = rs_max64(view->begin, first);
            view->end = rs_max64(view->begin, rs_min64(view->end, last));
            view->data = rs_memory_segment(memory, rs_layout_segment(state->space, role, block));
            if (view->data == NULL && view->end > view->begin)
                return rs_error_set(RS_ERR_MISMATCH,
                    "layout and placement disagree: rank %d has no segment of role %d, block %d",
                    state->rank, role, block);
        }
    }
    return RS_OK;
}

rs_status rs_state_allocate(rs_state *state, rs_keeper *keeper, int generation, const rs_state *old,
    const int *adopted, size_t adopted_count, bool sparse)
{
    if (!state->holds && !sparse)
        return RS_OK;
    state->carried = rs_calloc(adopted_count, sizeof *state->carried);
    if (state->carried == NULL)
        return rs_error_memory(adopted_count * sizeof *state->carried);
    for (size_t i = 0; i < adopted_count; i++)
        state->carried[state->carried_count++] = adopted[i];
    rs_segment_list segments = {0};
    rs_status status = rs_placement_segments(state->placement, state->rank, &segments);
    const rs_arena *from = old != NULL ? old->arena : NULL;
    if (status == RS_OK && sparse)
        status = rs_arena_create_sparse(keeper, generation, state->rank, &segments, from, adopted,
            adopted_count, &state->arena);
    else if (status == RS_OK)
        status = rs_arena_create(keeper, generation, state->rank, &segments, from, adopted,
            adopted_count, &state->arena);
    rs_segment_list_fini(&segments);
    RS_TRY(status);
    return state->holds ? make_views(state) : RS_OK;
}

rs_status rs_state_footprint(const rs_state *state, int64_t *bytes)
{
    *bytes = 0;
    if (!state->holds)
        return RS_OK;
    rs_segment_list segments = {0};
    rs_status status = rs_placement_segments(state->placement, state->rank, &segments);
    for (size_t i = 0; status == RS_OK && i < segments.count; i++)
        *bytes += segments.items[i].bytes;
    rs_segment_list_fini(&segments);
    return status;
}

/* Bytes of the pages from `data` on that are backed by memory. */
static rs_status resident_pages(char *data, int64_t bytes, int64_t *resident)
{
    unsigned char pages[4096];
    int64_t page = sysconf(_SC_PAGESIZE), round = page * (int64_t)sizeof pages;
    for (int64_t done = 0; done < bytes; done += round) {
        int64_t n = rs_min64(round, bytes - done);
        if (mincore(data + done, (size_t)n, pages) != 0)
            return rs_error_errno(errno, "cannot ask which pages of an arena are resident");
        for (int64_t i = 0; i < rs_ceil_div(n, page); i++)
            *resident += (pages[i] & 1) * page;
    }
    return RS_OK;
}

rs_status rs_state_resident(const rs_state *state, bool own, int64_t *bytes)
{
    const rs_memory *memory = rs_state_memory(state);
    *bytes = 0;
    if (memory == NULL)
        return RS_OK;
    RS_TRY(rs_arena_resident(state->arena, bytes));
    size_t next = 0; /* of carried, ascending as the regions are */
    for (size_t i = 0; !own && i < memory->count && next < state->carried_count; i++) {
        const rs_region *region = &memory->regions[i];
        if (region->segment != state->carried[next])
            continue;
        RS_TRY(resident_pages(region->data, region->bytes, bytes));
        next++;
    }
    return RS_OK;
}

rs_status rs_state_locate(const rs_state *state, int tensor, const rs_box *box, int *block,
    int64_t *position, int64_t *stride)
{
    rs_shard shard;
    int role = state->roles.param;
    RS_TRY(rs_placement_address(state->placement, state->rank, tensor, role, box, &shard));
    int64_t size = (int64_t)rs_dtype_size(shard.dtype);
    *block = shard.segment - rs_layout_segment(state->space, role, 0);
    *position = rs_state_view(state, role, *block)->begin + shard.offset / size;
    for (int d = 0; d < box->ndim; d++)
        stride[d] = shard.stride[d] / size;
    return RS_OK;
}

/* Fills the float32 shards of `role`. */
static rs_status fill_floats(rs_state *state, uint64_t seed, int role, rs_shard_list *shards)
{
    RS_TRY(rs_placement_shards(state->placement, state->rank, role, shards));
    for (size_t i = 0; i < shards->count; i++) {
        const rs_shard *s = &shards->items[i];
        int64_t stride[RS_MAX_DIMS] = {0};
        for (int d = 0; d < s->box.ndim; d++)
            stride[d] = s->stride[d] / (int64_t)sizeof(float);
        RS_TRY(rs_init_fill(seed, rs_space_tensor(state->space, s->tensor), &s->box, stride,
            rs_memory_shard(rs_state_memory(state), s)));
    }
    return RS_OK;
}

/* Fills the bfloat16 shards of `role` with the rounded initial values. */
static rs_status fill_rounded(rs_state *state, uint64_t seed, int role, rs_shard_list *shards)
{
    rs_status status = RS_OK;
    float *values = NULL;
    RS_TRY(rs_placement_shards(state->placement, state->rank, role, shards));
    for (size_t i = 0; i < shards->count; i++) {
        const rs_shard *s = &shards->items[i];
        int64_t stride[RS_MAX_DIMS] = {0}, count = rs_box_volume(&s->box);
        for (int d = 0; d < s->box.ndim; d++)
            stride[d] = s->stride[d] / (int64_t)sizeof(uint16_t);
        float *grown = rs_realloc(values, (size_t)count, sizeof *values);
        if (grown == NULL) {
            status = rs_error_memory((size_t)count * sizeof *values);
            goto done;
        }
        values = grown;
        RS_TRY_GOTO(
            rs_init_fill(seed, rs_space_tensor(state->space, s->tensor), &s->box, stride, values),
            done);
        uint16_t *out = rs_memory_shard(rs_state_memory(state), s);
        for (int64_t k = 0; k < count; k++)
            out[k] = rs_bf16_from_float(values[k]);
    }
done:
    free(values);
    return status;
}

rs_status rs_state_fill(rs_state *state, uint64_t seed)
{
    if (!state->holds)
        return RS_OK;
    rs_shard_list shards = {0};
    rs_status status;
    if (state->roles.master < 0) {
        status = fill_floats(state, seed, state->roles.param, &shards);
    } else {
        status = fill_floats(state, seed, state->roles.master, &shards);
        if (status == RS_OK)
            status = fill_rounded(state, seed, state->roles.param, &shards);
    }
    rs_shard_list_fini(&shards);
    return status;
}

RS_CLONES static void expand_run(int64_t count, const uint16_t *restrict from, float *restrict to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = rs_bf16_to_float(from[i]);
}

void rs_state_expand(const rs_state *state, float *weights)
{
    for (int block = 0; block < state->blocks; block++) {
        const rs_view *view = rs_state_view(state, state->roles.param, block);
        const uint16_t *from = (const uint16_t *)(const void *)view->data;
        expand_run(view->end - view->begin, from, weights + view->begin);
    }
}

uint64_t rs_state_hash(const rs_state *state)
{
    uint64_t hash = 0;
    int roles = rs_space_role_count(state->space);
    for (int role = 0; state->views != NULL && role < roles; role++) {
        size_t size = rs_dtype_size(rs_space_role(state->space, role)->dtype);
        for (int block = 0; block < state->blocks; block++) {
            const rs_view *view = rs_state_view(state, role, block);
            if (view->end > view->begin)
                hash = XXH3_64bits_withSeed(
                    view->data, (size_t)(view->end - view->begin) * size, hash);
        }
    }
    return hash;
}
