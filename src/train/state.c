/*
 * A rank's state: the geometry of one layout joined to the memory of one arena.
 *
 * The local vector (runs.h) is the coordinate in which everything local is written: a parameter,
 * its gradient, its moments and its master all have the same position. What the rank has of a role
 * is a list of runs of positions; whatever ZeRO cuts, and however, it is the placement that says
 * which.
 *
 * Positions come from a bare space: the same tensors in one role of one type, placed without ZeRO.
 * So they do not depend on types, nor on which tensors have which roles.
 *
 * 1. A run lies in one segment. The runs of a role are disjoint, and are all that the rank has.
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
#include "train/group.h"
#include "train/init.h"

/* The same tensors in one role. */
static rs_status make_bare(const rs_space *space, rs_space **out)
{
    const rs_role role = {"element", RS_DTYPE_F32, RS_ROLE_MODEL};
    rs_space *bare = NULL;
    rs_status status;
    RS_TRY(rs_space_create(&bare));
    RS_TRY_GOTO(rs_space_add_role(bare, &role, NULL), fail);
    for (int t = 0; t < rs_space_tensor_count(space); t++)
        RS_TRY_GOTO(rs_space_add_tensor(bare, rs_space_tensor(space, t), NULL), fail);
    *out = bare;
    return RS_OK;

fail:
    rs_space_destroy(bare);
    return status;
}

/* Whether some tensor lacks a role. */
static bool has_unlike_roles(const rs_space *space)
{
    for (int t = 0; t < rs_space_tensor_count(space); t++)
        for (int r = 0; r < rs_space_role_count(space); r++)
            if (rs_space_dtype(space, t, r) == RS_DTYPE_NONE)
                return true;
    return false;
}

/* Who mirrors whom. A mirror is always on another node, so only ranks of those are asked. */
static rs_status find_mirrors(rs_state *state, const int *node_of)
{
    const rs_layout *layout = &state->layout;
    int world = rs_layout_world(layout);
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++) {
        bool experts = mesh == RS_MESH_EXPERTS;
        state->mirror[mesh] = -1;
        if (node_of == NULL || !state->holds)
            continue;
        state->mirror[mesh] = rs_layout_mirror(layout, experts, node_of, state->rank);
        state->mirrored[mesh] = rs_calloc((size_t)world, sizeof *state->mirrored[mesh]);
        if (state->mirrored[mesh] == NULL)
            return rs_error_memory((size_t)world * sizeof *state->mirrored[mesh]);
        for (int r = 0; r < world; r++)
            if (node_of[r] != node_of[state->rank] &&
                rs_layout_mirror(layout, experts, node_of, r) == state->rank)
                state->mirrored[mesh][state->mirrored_count[mesh]++] = r;
    }
    return RS_OK;
}

rs_status rs_state_init(
    const rs_space *space, const rs_layout *layout, int rank, const int *node_of, rs_state *out)
{
    memset(out, 0, sizeof *out);
    out->space = space;
    out->layout = *layout;
    out->rank = rank;
    out->holds = rank < rs_layout_world(layout);
    out->blocks = rs_layout_block_count(space);
    out->roles =
        (rs_roles){rs_space_find_role(space, "param"), rs_space_find_role(space, "master")};
    rs_layout flat = *layout, whole = *layout;
    flat.zero = 3;
    if (layout->zero == 0 && has_unlike_roles(space))
        flat.zero_cut = RS_CUT_PARAM; /* so that all roles of a tensor are cut alike */
    whole.zero = 0;
    RS_TRY(make_bare(space, &out->bare));
    RS_TRY(rs_layout_placement(out->bare, &whole, &out->whole));
    RS_TRY(rs_layout_placement(space, layout, &out->own));
    if (node_of != NULL)
        RS_TRY(rs_layout_placement_mirrored(space, layout, node_of, &out->placement));
    else
        out->placement = out->own;
    RS_TRY(find_mirrors(out, node_of));
    return rs_layout_placement(space, &flat, &out->flat);
}

void rs_state_fini(rs_state *state)
{
    int roles = state->space != NULL ? rs_space_role_count(state->space) : 0;
    for (int role = 0; state->runs != NULL && role < roles; role++)
        rs_runs_fini(&state->runs[role]);
    rs_ledger_close(state->ledger);
    rs_arena_close(state->arena);
    rs_placement_destroy(state->flat);
    if (state->placement != state->own)
        rs_placement_destroy(state->placement);
    rs_placement_destroy(state->own);
    rs_placement_destroy(state->whole);
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
        free(state->mirrored[mesh]);
    rs_space_destroy(state->bare);
    free(state->runs);
    free(state->carried);
    memset(state, 0, sizeof *state);
}

const rs_memory *rs_state_memory(const rs_state *state)
{
    return state->arena != NULL ? rs_arena_memory(state->arena) : NULL;
}

const rs_runs *rs_state_runs(const rs_state *state, int role)
{
    return &state->runs[role];
}

static size_t role_size(const rs_state *state, int role)
{
    return rs_dtype_size(rs_space_role(state->space, role)->dtype);
}

void *rs_state_element(const rs_state *state, int role, int64_t position)
{
    return rs_runs_at(&state->runs[role], role_size(state, role), position);
}

/* ---- positions ---- */

/* The positions of a block of `rank`, as this rank counts them: its experts stand behind its own
 * dense tensors, however many of those another rank with the same experts has. */
static void block_range(const rs_state *state, int rank, int block, int64_t *begin, int64_t *end)
{
    rs_layout_block_range(state->bare, &state->layout, rank, block, begin, end);
    if (block < rs_layout_expert_block(state->bare, 0))
        return;
    int64_t dense = rs_layout_local_elements(state->bare, &state->layout, state->rank);
    *begin += dense;
    *end += dense;
}

void rs_state_block(const rs_state *state, int block, int64_t *begin, int64_t *end)
{
    block_range(state, state->rank, block, begin, end);
}

int64_t rs_state_elements(const rs_state *state)
{
    return rs_layout_local_elements(state->bare, &state->layout, state->rank) +
           rs_layout_expert_elements(state->bare, &state->layout, state->rank);
}

int64_t rs_state_packed(const rs_box *box, size_t size, int64_t *stride)
{
    int64_t next = (int64_t)size;
    for (int d = box->ndim - 1; d >= 0; d--) {
        stride[d] = next;
        next *= box->extent[d];
    }
    return next;
}

static bool is_contiguous(const rs_box *box, const int64_t *stride)
{
    int64_t next = 1;
    for (int d = box->ndim - 1; d >= 0; d--) {
        if (box->extent[d] == 1)
            continue;
        if (stride[d] != next)
            return false;
        next *= box->extent[d];
    }
    return true;
}

/* A box as one part, or index by index of its outermost dimension where it is not contiguous. */
static rs_status pass_parts(const rs_box *box, const int64_t *stride, int block, int64_t position,
    rs_state_part part, void *context)
{
    if (is_contiguous(box, stride))
        return part(context, box, block, position);
    int d = 0;
    while (box->extent[d] == 1)
        d++;
    rs_box inner = *box;
    inner.extent[d] = 1;
    for (int64_t i = 0; i < box->extent[d]; i++) {
        inner.offset[d] = box->offset[d] + i;
        RS_TRY(pass_parts(&inner, stride, block, position + i * stride[d], part, context));
    }
    return RS_OK;
}

rs_status rs_state_parts(const rs_state *state, int rank, int tensor, const rs_box *box,
    rs_state_part part, void *context)
{
    rs_shard shard;
    int64_t begin, end, stride[RS_MAX_DIMS] = {0}, size = (int64_t)sizeof(float);
    RS_TRY(rs_placement_address(state->whole, rank, tensor, 0, box, &shard));
    int block = shard.segment - rs_layout_segment(state->bare, 0, 0);
    block_range(state, rank, block, &begin, &end);
    for (int d = 0; d < box->ndim; d++)
        stride[d] = shard.stride[d] / size;
    return pass_parts(box, stride, block, begin + shard.offset / size, part, context);
}

int rs_state_update_role(const rs_state *state, int tensor)
{
    for (int r = 0; r < rs_space_role_count(state->space); r++)
        if (rs_space_role(state->space, r)->role_class == RS_ROLE_OPTIMIZER &&
            rs_space_dtype(state->space, tensor, r) != RS_DTYPE_NONE)
            return r;
    return -1;
}

/* ---- pieces ---- */

static rs_status add_piece(void *context, const rs_box *part, int block, int64_t position)
{
    return rs_runs_add(context, &(rs_run){position, position + rs_box_volume(part), block, NULL});
}

rs_status rs_state_pieces(const rs_state *state, const rs_placement *placement, int rank, int mesh,
    int role, int tensor, rs_runs *out)
{
    rs_shard_list shards = {0};
    rs_status status;
    RS_TRY_GOTO(rs_placement_shards(placement, rank, role, &shards), done);
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *s = &shards.items[i];
        if ((tensor >= 0 && s->tensor != tensor) ||
            rs_group_mesh(rs_space_tensor(state->space, s->tensor)) != mesh ||
            (role < 0 && s->role != rs_state_update_role(state, s->tensor)))
            continue;
        RS_TRY_GOTO(rs_state_parts(state, rank, s->tensor, &s->box, add_piece, out), done);
    }
done:
    rs_shard_list_fini(&shards);
    return status;
}

typedef struct mapping {
    rs_runs *runs;
    char *data; /* of the next part */
    int64_t size;
} mapping;

static rs_status map_part(void *context, const rs_box *part, int block, int64_t position)
{
    mapping *m = context;
    int64_t count = rs_box_volume(part);
    RS_TRY(rs_runs_add(m->runs, &(rs_run){position, position + count, block, m->data}));
    m->data += count * m->size;
    return RS_OK;
}

/* The runs of a role, in the arena's memory. A shard's elements are contiguous there. */
static rs_status map_role(rs_state *state, int role)
{
    rs_shard_list shards = {0};
    rs_status status;
    rs_runs *runs = &state->runs[role];
    RS_TRY_GOTO(rs_placement_shards(state->placement, state->rank, role, &shards), done);
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *s = &shards.items[i];
        mapping m = {
            runs, rs_memory_shard(rs_state_memory(state), s), (int64_t)rs_dtype_size(s->dtype)};
        if (m.data == NULL) {
            status = rs_error_set(RS_ERR_MISMATCH,
                "arena and placement disagree: rank %d has no segment %d", state->rank, s->segment);
            goto done;
        }
        RS_TRY_GOTO(rs_state_parts(state, state->rank, s->tensor, &s->box, map_part, &m), done);
    }
    rs_runs_sort(runs, role_size(state, role));
done:
    rs_shard_list_fini(&shards);
    return status;
}

static rs_status map_roles(rs_state *state)
{
    int roles = rs_space_role_count(state->space);
    state->runs = rs_calloc((size_t)roles, sizeof *state->runs);
    if (state->runs == NULL)
        return rs_error_memory((size_t)roles * sizeof *state->runs);
    for (int role = 0; role < roles; role++)
        RS_TRY(map_role(state, role));
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
    return state->holds ? map_roles(state) : RS_OK;
}

rs_status rs_state_take_over(rs_state *state, rs_keeper *keeper, int generation,
    const rs_adoption *adopted, size_t adopted_count)
{
    if (!state->holds)
        return RS_OK;
    state->carried = rs_calloc(adopted_count, sizeof *state->carried);
    if (state->carried == NULL)
        return rs_error_memory(adopted_count * sizeof *state->carried);
    for (size_t i = 0; i < adopted_count; i++)
        state->carried[state->carried_count++] = adopted[i].segment;
    rs_segment_list segments = {0};
    rs_status status = rs_placement_segments(state->placement, state->rank, &segments);
    if (status == RS_OK)
        status = rs_arena_create_from(
            keeper, generation, state->rank, &segments, adopted, adopted_count, &state->arena);
    rs_segment_list_fini(&segments);
    RS_TRY(status);
    return map_roles(state);
}

rs_status rs_state_open(rs_state *state, rs_keeper *keeper, int generation)
{
    RS_TRY(rs_arena_open(keeper, generation, state->rank, true, &state->arena));
    if (rs_arena_step(state->arena) < 0)
        return rs_error_set(
            RS_ERR_NOT_FOUND, "the arena of rank %d was never committed", state->rank);
    return map_roles(state);
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

uint64_t rs_state_hash(const rs_state *state)
{
    uint64_t hash = 0;
    int roles = rs_space_role_count(state->space);
    for (int role = 0; state->runs != NULL && role < roles; role++)
        for (size_t i = 0; i < state->runs[role].count; i++) {
            const rs_run *run = &state->runs[role].items[i];
            hash = XXH3_64bits_withSeed(
                run->data, (size_t)(run->end - run->begin) * role_size(state, role), hash);
        }
    return hash;
}
