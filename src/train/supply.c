/*
 * Weights and gradients, block by block.
 *
 * Two divisions of the local vector matter, both read off placements: who updates what (`update`,
 * from the roles that only the update knows, in the flat placement), and who keeps what of the
 * parameters (`param`, where the layout cuts them). A rank that keeps a whole parameter has it in
 * its arena; one that keeps a part has blocks gathered into a few rotating buffers, the next one
 * while the current one is in use. Gradients that are kept whole are one vector; those that are not
 * are made in rotating buffers and added to the piece.
 *
 * 1. All ranks that share a slice call enter and leave in the same order, with or without a
 * micro-batch; so the buffers rotate alike, and what is gathered is the same block everywhere.
 * 2. A buffer in use is pinned, and never rotates away. A block that is still there is not gathered
 * again, until an update.
 * 3. The reduced piece is a sum over micro-batches, in order, of sums over the group, in order,
 * then over the groups, in order: all that hold it hold the same bits.
 */
#include "train/supply.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/bfloat16.h"
#include "train/group.h"
#include "train/simd.h"

#define WEIGHT_BUFFERS 3 /* in use: two at a tied end, or of a layer with experts; coming: one */
#define GRADIENT_BUFFERS 2

typedef struct buffer {
    int block; /* -1: none */
    int pins;
    bool coming;
    uint64_t used;
    float *data;
    void *raw; /* as gathered; `data` where parameters are float32 */
    rs_flight *flight[RS_MESHES_BOTH];
} buffer;

struct rs_supply {
    rs_supply_setup setup;
    size_t size; /* bytes of a parameter */
    int blocks;
    rs_extent *extents;
    rs_binding_list weights;
    rs_binding_list gradients;
    /* By mesh; NULL for that of the experts where there are none. */
    rs_share *update[RS_MESHES_BOTH];
    rs_share *param[RS_MESHES_BOTH];    /* NULL where the rank keeps them whole */
    rs_flight *flight[RS_MESHES_BOTH];  /* of floats */
    rs_flight *publish[RS_MESHES_BOTH]; /* of parameters; NULL where the rank updates all that it
                                           keeps */
    rs_ordered across[RS_MESHES_BOTH];
    bool cut_params;
    float *expanded; /* whole 16-bit parameters in float32 */
    bool stale;      /* `expanded` is older than the parameters */
    buffer incoming[WEIGHT_BUFFERS];
    buffer outgoing[GRADIENT_BUFFERS];
    uint64_t clock;
    float *whole;     /* gradients; NULL where they are not kept */
    float *own_whole; /* NULL where they lie in the state's ledger */
    rs_runs whole_runs;
    float *piece; /* reduced */
    float *own_piece;
    rs_runs piece_runs;
};

/* ---- setting up ---- */

static bool is_cut(const rs_supply *s, rs_role_class role_class)
{
    static const int from[] = {
        [RS_ROLE_MODEL] = 3, [RS_ROLE_OPTIMIZER] = 1, [RS_ROLE_GRADIENT] = 2};
    return s->setup.state->layout.zero >= from[role_class];
}

static rs_status make_extents(rs_supply *s)
{
    s->blocks = s->setup.state->blocks;
    s->extents = rs_calloc((size_t)s->blocks, sizeof *s->extents);
    if (s->extents == NULL)
        return rs_error_memory((size_t)s->blocks * sizeof *s->extents);
    for (int b = 0; b < s->blocks; b++)
        rs_state_block(s->setup.state, b, &s->extents[b].begin, &s->extents[b].end);
    return RS_OK;
}

static int mesh_of(const rs_supply *s, int block)
{
    return rs_group_mesh_of_block(s->setup.state->space, block);
}

/* Meshes that the model is on. */
static int meshes(const rs_supply *s)
{
    return s->setup.world->experts > 0 ? RS_MESHES_BOTH : RS_MESH_EXPERTS;
}

/* The group's division of `role` (-1: of updates) in a placement, of what is on one mesh. */
static rs_status make_share(
    rs_supply *s, int mesh, const rs_placement *placement, int role, rs_share **out)
{
    const rs_world *world = s->setup.world;
    int size = rs_layout_shard_group(&world->layout, mesh == RS_MESH_EXPERTS);
    rs_runs *pieces = rs_calloc((size_t)size, sizeof *pieces);
    int *ranks = rs_calloc((size_t)size, sizeof *ranks);
    rs_status status = RS_OK;
    if (pieces == NULL || ranks == NULL) {
        status = rs_error_memory((size_t)size * sizeof *pieces);
        goto done;
    }
    rs_group_ranks(&world->layout, mesh, world->rank, world->at.pp, ranks);
    for (int m = 0; m < size; m++) {
        RS_TRY_GOTO(
            rs_state_pieces(s->setup.state, placement, ranks[m], mesh, role, -1, &pieces[m]), done);
        rs_runs_sort(&pieces[m], 1);
    }
    status = rs_share_create(world->shard[mesh], pieces, s->extents, s->blocks, out);
done:
    for (int m = 0; pieces != NULL && m < size; m++)
        rs_runs_fini(&pieces[m]);
    free(pieces);
    free(ranks);
    return status;
}

static rs_status make_floats(float **out, int64_t count)
{
    *out = rs_calloc((size_t)count, sizeof **out);
    return *out != NULL ? RS_OK : rs_error_memory((size_t)count * sizeof **out);
}

static int64_t largest_block(const rs_supply *s)
{
    int64_t largest = 0;
    for (int b = 0; b < s->blocks; b++)
        largest = rs_max64(largest, s->extents[b].end - s->extents[b].begin);
    return largest;
}

static rs_status make_buffer(const rs_supply *s, bool weights, buffer *out)
{
    int64_t largest = largest_block(s);
    out->block = -1;
    RS_TRY(make_floats(&out->data, largest));
    out->raw = out->data;
    if (!weights)
        return RS_OK;
    if (s->size != sizeof(float)) {
        out->raw = rs_calloc((size_t)largest, s->size);
        if (out->raw == NULL)
            return rs_error_memory((size_t)largest * s->size);
    }
    for (int mesh = 0; mesh < meshes(s); mesh++)
        RS_TRY(rs_flight_create(s->param[mesh], s->size, &out->flight[mesh]));
    return RS_OK;
}

/* The memory that parameters are read from. */
static rs_status make_weights(rs_supply *s)
{
    const rs_state *state = s->setup.state;
    s->size = rs_dtype_size(rs_space_role(state->space, state->roles.param)->dtype);
    s->cut_params = is_cut(s, RS_ROLE_MODEL);
    if (s->cut_params) {
        for (int mesh = 0; mesh < meshes(s); mesh++)
            RS_TRY(make_share(s, mesh, state->own, state->roles.param, &s->param[mesh]));
        for (int i = 0; i < WEIGHT_BUFFERS; i++)
            RS_TRY(make_buffer(s, true, &s->incoming[i]));
        return RS_OK;
    }
    for (int mesh = 0; mesh < meshes(s) && is_cut(s, RS_ROLE_OPTIMIZER); mesh++)
        RS_TRY(rs_flight_create(s->update[mesh], s->size, &s->publish[mesh]));
    if (s->size != sizeof(float)) {
        RS_TRY(make_floats(&s->expanded, rs_state_elements(state)));
        s->stale = true;
    }
    for (size_t i = 0; i < s->weights.count; i++) {
        const rs_binding *b = &s->weights.items[i];
        *b->member = s->expanded != NULL ? s->expanded + b->position
                                         : rs_state_element(state, state->roles.param, b->position);
    }
    return RS_OK;
}

/* Tensors that are not trained have no gradient. */
static void drop_frozen(const rs_state *state, rs_binding_list *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++)
        if (rs_state_update_role(state, list->items[i].tensor) >= 0)
            list->items[kept++] = list->items[i];
    list->count = kept;
}

static rs_status make_gradients(rs_supply *s)
{
    const rs_state *state = s->setup.state;
    int64_t elements = rs_state_elements(state);
    drop_frozen(state, &s->gradients);
    for (int mesh = 0; mesh < meshes(s); mesh++) {
        const rs_runs *piece = rs_share_piece(s->update[mesh]);
        for (size_t i = 0; i < piece->count; i++)
            RS_TRY(rs_runs_add(&s->piece_runs, &piece->items[i]));
    }
    /* What the update reads has to outlive this process. */
    bool pieces_last = state->ledger != NULL && is_cut(s, RS_ROLE_OPTIMIZER);
    bool whole_lasts = state->ledger != NULL && !is_cut(s, RS_ROLE_OPTIMIZER);
    if (pieces_last)
        s->piece = rs_ledger_work(state->ledger);
    else
        RS_TRY(make_floats(&s->own_piece, rs_runs_elements(&s->piece_runs)));
    s->piece = pieces_last ? s->piece : s->own_piece;
    rs_runs_place(&s->piece_runs, sizeof *s->piece, s->piece);
    if (is_cut(s, RS_ROLE_GRADIENT)) {
        for (int i = 0; i < GRADIENT_BUFFERS; i++)
            RS_TRY(make_buffer(s, false, &s->outgoing[i]));
        return RS_OK;
    }
    if (whole_lasts)
        s->whole = rs_ledger_work(state->ledger);
    else
        RS_TRY(make_floats(&s->own_whole, elements));
    s->whole = whole_lasts ? s->whole : s->own_whole;
    RS_TRY(rs_runs_add(&s->whole_runs, &(rs_run){0, elements, 0, (char *)s->whole}));
    for (size_t i = 0; i < s->gradients.count; i++)
        *s->gradients.items[i].member = s->whole + s->gradients.items[i].position;
    return RS_OK;
}

rs_status rs_supply_create(const rs_supply_setup *setup, rs_supply **out)
{
    rs_status status;
    rs_supply *s = rs_calloc(1, sizeof *s);
    if (s == NULL)
        return rs_error_memory(sizeof *s);
    s->setup = *setup;
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
        s->across[mesh].comm = MPI_COMM_NULL;
    RS_TRY_GOTO(make_extents(s), fail);
    for (int mesh = 0; mesh < meshes(s); mesh++) {
        RS_TRY_GOTO(make_share(s, mesh, setup->state->flat, -1, &s->update[mesh]), fail);
        RS_TRY_GOTO(rs_flight_create(s->update[mesh], sizeof(float), &s->flight[mesh]), fail);
        RS_TRY_GOTO(rs_ordered_init(&s->across[mesh], setup->world->across[mesh]), fail);
    }
    RS_TRY_GOTO(
        rs_bind_tensors(setup->state, setup->chunks, setup->chunk_count, false, &s->weights), fail);
    RS_TRY_GOTO(
        rs_bind_tensors(setup->state, setup->chunks, setup->chunk_count, true, &s->gradients),
        fail);
    RS_TRY_GOTO(make_weights(s), fail);
    RS_TRY_GOTO(make_gradients(s), fail);
    *out = s;
    return RS_OK;

fail:
    rs_supply_destroy(s);
    return status;
}

static void free_buffer(buffer *b)
{
    if (b->raw != b->data)
        free(b->raw);
    free(b->data);
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
        rs_flight_destroy(b->flight[mesh]);
}

void rs_supply_destroy(rs_supply *s)
{
    if (s == NULL)
        return;
    for (int i = 0; i < WEIGHT_BUFFERS; i++)
        free_buffer(&s->incoming[i]);
    for (int i = 0; i < GRADIENT_BUFFERS; i++)
        free_buffer(&s->outgoing[i]);
    rs_runs_fini(&s->piece_runs);
    rs_runs_fini(&s->whole_runs);
    free(s->own_piece);
    free(s->own_whole);
    free(s->expanded);
    rs_binding_list_fini(&s->gradients);
    rs_binding_list_fini(&s->weights);
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++) {
        rs_ordered_fini(&s->across[mesh]);
        rs_flight_destroy(s->publish[mesh]);
        rs_flight_destroy(s->flight[mesh]);
        rs_share_destroy(s->param[mesh]);
        rs_share_destroy(s->update[mesh]);
    }
    free(s->extents);
    free(s);
}

/* ---- weights ---- */

RS_CLONES static void expand_run(int64_t count, const uint16_t *restrict from, float *restrict to)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = rs_bf16_to_float(from[i]);
}

static int64_t block_size(const rs_supply *s, int block)
{
    return s->extents[block].end - s->extents[block].begin;
}

static void point(const rs_supply *s, const rs_binding_list *list, int block, float *data)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].block == block)
            *list->items[i].member = data + (list->items[i].position - s->extents[block].begin);
}

/* The buffer that has a block, or else the one that was not in use for longest; pinned ones stay.
 */
static buffer *find_buffer(buffer *buffers, int count, int block)
{
    buffer *oldest = NULL;
    for (int i = 0; i < count; i++) {
        buffer *b = &buffers[i];
        if (b->block == block)
            return b;
        if (b->pins == 0 && (oldest == NULL || b->used < oldest->used))
            oldest = b;
    }
    return oldest;
}

static void arrive(const rs_supply *s, buffer *b)
{
    if (!b->coming)
        return;
    rs_share_gather_end(b->flight[mesh_of(s, b->block)]);
    b->coming = false;
    if (b->raw != b->data)
        expand_run(block_size(s, b->block), b->raw, b->data);
}

/* Begins to gather a block, unless it is there. */
static buffer *send_for(rs_supply *s, int block)
{
    const rs_state *state = s->setup.state;
    buffer *b = find_buffer(s->incoming, WEIGHT_BUFFERS, block);
    b->used = ++s->clock;
    if (b->block == block)
        return b;
    arrive(s, b);
    b->block = block;
    b->coming = true;
    rs_share_gather_begin(
        b->flight[mesh_of(s, block)], block, rs_state_runs(state, state->roles.param), b->raw);
    return b;
}

static void enter_gradients(rs_supply *s, int block)
{
    buffer *b = find_buffer(s->outgoing, GRADIENT_BUFFERS, block);
    b->block = block;
    b->pins++;
    memset(b->data, 0, (size_t)block_size(s, block) * sizeof *b->data);
    point(s, &s->gradients, block, b->data);
}

void rs_supply_enter(rs_supply *s, int block, int next, int use)
{
    if (s->cut_params && (use & RS_USE_WEIGHTS) != 0) {
        buffer *b = send_for(s, block);
        b->pins++;
        arrive(s, b);
        point(s, &s->weights, block, b->data);
        if (next >= 0)
            send_for(s, next);
    }
    if ((use & RS_USE_GRADIENTS) != 0 && s->whole == NULL)
        enter_gradients(s, block);
}

void rs_supply_leave(rs_supply *s, int block, int use)
{
    if (s->cut_params && (use & RS_USE_WEIGHTS) != 0)
        find_buffer(s->incoming, WEIGHT_BUFFERS, block)->pins--;
    if ((use & RS_USE_GRADIENTS) == 0 || s->whole != NULL)
        return;
    buffer *b = find_buffer(s->outgoing, GRADIENT_BUFFERS, block);
    s->setup.share(s->setup.context, block);
    rs_share_reduce(s->flight[mesh_of(s, block)], block, b->data, &s->piece_runs, true);
    b->pins--;
    b->block = -1;
}

/* ---- the step ---- */

void rs_supply_begin(rs_supply *s)
{
    const rs_state *state = s->setup.state;
    const rs_runs *params = rs_state_runs(state, state->roles.param);
    for (size_t i = 0; s->stale && i < params->count; i++) {
        const rs_run *run = &params->items[i];
        expand_run(run->end - run->begin, (const uint16_t *)(const void *)run->data,
            s->expanded + run->begin);
    }
    s->stale = false;
    float *kept = s->whole != NULL ? s->whole : s->piece;
    int64_t count = s->whole != NULL ? rs_state_elements(state) : rs_runs_elements(&s->piece_runs);
    memset(kept, 0, (size_t)count * sizeof *kept);
}

void rs_supply_reduce(rs_supply *s)
{
    for (int b = 0; s->whole != NULL && b < s->blocks; b++) {
        if (block_size(s, b) == 0)
            continue;
        s->setup.share(s->setup.context, b);
        rs_share_reduce(
            s->flight[mesh_of(s, b)], b, s->whole + s->extents[b].begin, &s->piece_runs, false);
    }
    float *next = s->piece;
    for (int mesh = 0; mesh < meshes(s); mesh++) {
        int64_t count = rs_runs_elements(rs_share_piece(s->update[mesh]));
        rs_ordered_sum(&s->across[mesh], next, count);
        next += count;
    }
}

const rs_runs *rs_supply_reduced(const rs_supply *s)
{
    return &s->piece_runs;
}

void rs_supply_complete(rs_supply *s)
{
    for (int b = 0; !is_cut(s, RS_ROLE_OPTIMIZER) && b < s->blocks; b++) {
        if (block_size(s, b) == 0)
            continue;
        rs_flight *flight = s->flight[mesh_of(s, b)];
        rs_share_gather_begin(flight, b, &s->piece_runs, s->whole + s->extents[b].begin);
        rs_share_gather_end(flight);
    }
}

const rs_runs *rs_supply_gradients(const rs_supply *s)
{
    return is_cut(s, RS_ROLE_OPTIMIZER) ? &s->piece_runs : &s->whole_runs;
}

void rs_supply_publish(rs_supply *s)
{
    const rs_state *state = s->setup.state;
    const rs_runs *params = rs_state_runs(state, state->roles.param);
    for (int i = 0; i < WEIGHT_BUFFERS && s->cut_params; i++)
        s->incoming[i].block = -1;
    for (int b = 0; b < s->blocks; b++) {
        rs_flight *publish = s->publish[mesh_of(s, b)];
        if (publish == NULL || block_size(s, b) == 0)
            continue;
        rs_share_gather_begin(
            publish, b, params, rs_state_element(state, state->roles.param, s->extents[b].begin));
        rs_share_gather_end(publish);
    }
    s->stale = s->expanded != NULL;
}
