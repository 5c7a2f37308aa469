/*
 * A layout at work: gradients, their reduction, the update.
 *
 * Gradients are float32, in the coordinate of the local vector (runs.h), so that
 * what reduces them knows no tensors. Where weights and gradients lie, and what of them this rank
 * keeps, is the supply's business (supply.h).
 *
 * The reduction, each sum in a fixed order of ranks and with the same bits on all holders:
 * 1. over tp: key/value heads that several ranks hold, the norms of q and k heads, of which each
 * rank has its heads' part, and, with sp, norms and biases of which each has its rows' part. Ranks
 * that do not hold a shared head add zeros: one sum serves all of them.
 * 2. over the ranks that have the same slice: within groups, then over groups; each gets its piece.
 * 3. over the pipeline's two ends: a tied embedding, piece by piece.
 * With redundancy a piece's bits go to its mirror then.
 *
 * Cost beyond the stage's own: 2 (n-1)/n of the local vector sent and received, n = dp x cp; with
 * zero=3 the parameters come once more for each pass of a micro-batch, with zero=2 and 3 gradients
 * go once for each micro-batch.
 */
#include "train/trainer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/bind.h"
#include "train/comm_sum.h"
#include "train/mirror.h"
#include "train/moe_comm.h"
#include "train/muon.h"
#include "train/pipeline.h"
#include "train/stage.h"
#include "train/supply.h"
#include "train/tied.h"
#include "train/twophase.h"

/* The tensors of a layer whose gradients are summed over tp, as far as several ranks hold them. */
typedef struct shared {
    int64_t first_head; /* key/value heads of this rank */
    int64_t end_head;
    int64_t *heads; /* held by more than one rank */
    int64_t count;
    bool rows; /* sp: each rank has its rows' part of what is added or multiplied row by row */
    int64_t floats;
    float *buffer; /* one layer's */
} shared;

struct rs_trainer {
    const rs_world *world;
    const rs_state *state;
    rs_ordered tp;
    rs_ordered cp;
    rs_schedule schedule;
    rs_chunk *chunks;
    int chunk_count;
    rs_pipeline *pipeline;
    rs_supply *supply;
    rs_update *update;
    rs_muon *muon;     /* NULL where no tensor is Muon's */
    rs_mirror *mirror; /* NULL where nothing is mirrored */
    rs_tied *tied;     /* NULL where nothing is */
    shared shared;
    int64_t *ranges; /* experts of each ep rank; NULL where the model has none */
    rs_moe_comm *experts;
    rs_ordered twins; /* ranks with the same slice of the same expert */
    rs_moe_watch *watch;
};

static rs_status group_sum(void *context, float *values, int64_t count)
{
    rs_ordered_sum(context, values, count);
    return RS_OK;
}

static rs_status group_maximum(void *context, float *values, int64_t count)
{
    rs_ordered_maximum(context, values, count);
    return RS_OK;
}

static rs_status group_scatter(void *context, float *values, const int64_t *bounds)
{
    rs_ordered_scatter(context, values, bounds);
    return RS_OK;
}

static rs_status group_gather(void *context, float *values, const int64_t *bounds)
{
    const rs_ordered *group = context;
    const rs_span whole = {0, bounds[group->size], values};
    rs_ordered_gather(context, &whole, 1, bounds, sizeof *values);
    return RS_OK;
}

/* ---- setting up ---- */

static rs_status make_shared(rs_trainer *e)
{
    const rs_stage_shape *shape = &e->chunks[0].shape; /* of heads: alike in all */
    const rs_model *m = &shape->model;
    const rs_layout *layout = &e->world->layout;
    const rs_space *space = e->state->space;
    const rs_tensor *k =
        rs_space_tensor(space, rs_space_find_tensor(space, "layers.attn.k.weight"));
    shared *s = &e->shared;
    if (layout->tp == 1)
        return RS_OK;
    int *holders = rs_calloc((size_t)m->kv_heads, sizeof *holders);
    s->heads = rs_calloc((size_t)m->kv_heads, sizeof *s->heads);
    if (holders == NULL || s->heads == NULL) {
        free(holders);
        return rs_error_memory((size_t)m->kv_heads * sizeof *s->heads);
    }
    for (int tp = 0; tp < layout->tp; tp++) {
        int64_t begin, end;
        rs_layout_tp_range(layout, k, 1, tp, &begin, &end);
        for (int64_t h = begin / m->head_dim; h < end / m->head_dim; h++)
            holders[h]++;
    }
    for (int64_t h = 0; h < m->kv_heads; h++)
        if (holders[h] > 1)
            s->heads[s->count++] = h;
    free(holders);
    s->first_head = shape->kv_begin;
    s->end_head = shape->kv_end;
    int64_t head = m->head_dim * (m->hidden + (m->qkv_bias ? 1 : 0));
    s->rows = layout->sp;
    s->floats =
        2 * s->count * head + (m->qk_norm ? 2 * m->head_dim : 0) + (s->rows ? 4 * m->hidden : 0);
    s->buffer = rs_calloc((size_t)s->floats, sizeof *s->buffer);
    return s->buffer != NULL ? RS_OK : rs_error_memory((size_t)s->floats * sizeof *s->buffer);
}

/* ---- what tp ranks share ---- */

/* Copies between the buffer, at `*at`, and the shared heads of `tensor` (NULL: it is frozen), whose
 * heads have `head` floats; zeros where this rank has none. */
static void pass_heads(const shared *s, float *tensor, int64_t head, bool into_buffer, float **at)
{
    for (int64_t i = 0; i < s->count; i++, *at += head) {
        int64_t h = s->heads[i];
        bool mine = tensor != NULL && h >= s->first_head && h < s->end_head;
        float *own = mine ? tensor + (h - s->first_head) * head : NULL;
        if (into_buffer && mine)
            memcpy(*at, own, (size_t)head * sizeof *own);
        else if (into_buffer)
            memset(*at, 0, (size_t)head * sizeof *own);
        else if (mine)
            memcpy(own, *at, (size_t)head * sizeof *own);
    }
}

static void pass_norm(float *tensor, int64_t count, bool into_buffer, float **at)
{
    if (tensor == NULL)
        memset(*at, 0, (size_t)count * sizeof **at);
    else if (into_buffer)
        memcpy(*at, tensor, (size_t)count * sizeof *tensor);
    else
        memcpy(tensor, *at, (size_t)count * sizeof *tensor);
    *at += count;
}

static void pass_layer(rs_trainer *e, const rs_stage_layer *layer, bool into_buffer)
{
    const rs_model *m = &e->chunks[0].shape.model;
    float *at = e->shared.buffer;
    pass_heads(&e->shared, layer->k, m->head_dim * m->hidden, into_buffer, &at);
    pass_heads(&e->shared, layer->v, m->head_dim * m->hidden, into_buffer, &at);
    if (m->qkv_bias) {
        pass_heads(&e->shared, layer->k_bias, m->head_dim, into_buffer, &at);
        pass_heads(&e->shared, layer->v_bias, m->head_dim, into_buffer, &at);
    }
    if (m->qk_norm) {
        pass_norm(layer->q_norm, m->head_dim, into_buffer, &at);
        pass_norm(layer->k_norm, m->head_dim, into_buffer, &at);
    }
    float *const by_row[] = {layer->attn_norm, layer->mlp_norm, layer->o_bias, layer->down_bias};
    for (int i = 0; i < 4 && e->shared.rows; i++)
        pass_norm(by_row[i], m->hidden, into_buffer, &at);
}

/* An expert that several ep ranks hold: each has made the gradient of the tokens that came to it.
 */
static void reduce_twins(
    rs_trainer *e, const rs_stage_shape *shape, const rs_stage_layer *gradients)
{
    int64_t count = (shape->expert_end - shape->expert_begin) * shape->model.hidden;
    if (e->twins.size <= 1)
        return;
    float *const parts[] = {gradients->expert_gate, gradients->expert_up, gradients->expert_down};
    for (int i = 0; i < 3; i++)
        if (parts[i] != NULL) /* NULL: it is frozen */
            rs_ordered_sum(&e->twins, parts[i], count);
}

/* What several ranks of a replica hold of a block: of a layer, or, with sp, the last norm. */
static void reduce_shared(void *context, int block)
{
    rs_trainer *e = context;
    int experts = rs_layout_expert_block(e->state->space, 0);
    for (int c = 0; c < e->chunk_count; c++) {
        const rs_chunk *chunk = &e->chunks[c];
        int64_t layer = block < experts ? block - 1 : block - experts - 1;
        if (block == experts - 1 && e->shared.rows && chunk->gradients.norm != NULL)
            rs_ordered_sum(&e->tp, chunk->gradients.norm, chunk->shape.model.hidden);
        if (layer < chunk->shape.layer_begin || layer >= chunk->shape.layer_end)
            continue;
        const rs_stage_layer *gradients =
            &chunk->gradients.layers[layer - chunk->shape.layer_begin];
        if (block >= experts) {
            reduce_twins(e, &chunk->shape, gradients);
        } else if (e->shared.floats > 0) {
            pass_layer(e, gradients, true);
            rs_ordered_sum(&e->tp, e->shared.buffer, e->shared.floats);
            pass_layer(e, gradients, false);
        }
    }
}

/* ---- the whole ---- */

/* The rank's stages, as shapes. */
static rs_status make_chunks(rs_trainer *e, const rs_train_options *options, const rs_model *model)
{
    const rs_layout *layout = &e->world->layout;
    int64_t turns = rs_pipeline_turns(e->world, options->global_batch, options->micro_batch);
    RS_TRY(rs_schedule_init(layout->pp, e->world->at.pp, layout->vpp, turns, &e->schedule));
    e->chunks = rs_calloc((size_t)layout->vpp, sizeof *e->chunks);
    if (e->chunks == NULL)
        return rs_error_memory((size_t)layout->vpp * sizeof *e->chunks);
    e->chunk_count = layout->vpp;
    for (int c = 0; c < e->chunk_count; c++) {
        rs_chunk *chunk = &e->chunks[c];
        rs_bind_shape(model, e->state->space, e->world, c, &chunk->shape);
        chunk->shape.seq = options->seq;
        chunk->shape.max_batch = options->micro_batch;
        chunk->shape.slots = e->schedule.slots[c];
        chunk->shape.recompute = options->recompute;
        chunk->shape.dropout = (float)options->dropout;
        chunk->shape.seed = options->seed;
        size_t layers = (size_t)(chunk->shape.layer_end - chunk->shape.layer_begin);
        chunk->weights.layers = rs_calloc(layers, sizeof *chunk->weights.layers);
        chunk->gradients.layers = rs_calloc(layers, sizeof *chunk->gradients.layers);
        if (chunk->weights.layers == NULL || chunk->gradients.layers == NULL)
            return rs_error_memory(layers * sizeof *chunk->weights.layers);
    }
    return RS_OK;
}

static rs_status make_supply(rs_trainer *e, const rs_optimizer *optimizer)
{
    const rs_supply_setup setup = {e->world, e->state, e->chunks, e->chunk_count, reduce_shared, e};
    RS_TRY(rs_supply_create(&setup, &e->supply));
    RS_TRY(rs_mirror_create(e->world, e->state, optimizer, &e->mirror));
    RS_TRY(rs_update_create(e->state, optimizer,
        e->mirror != NULL ? rs_mirror_gradients(e->mirror) : rs_supply_gradients(e->supply),
        &e->update));
    RS_TRY(rs_muon_create(e->world, e->state, optimizer, rs_supply_gradients(e->supply), &e->muon));
    if (e->mirror != NULL)
        rs_update_set_directions(e->update, rs_mirror_directions(e->mirror));
    else if (e->muon != NULL)
        rs_update_set_directions(e->update, rs_muon_directions(e->muon));
    return rs_tied_create(
        e->world, e->state, rs_supply_reduced(e->supply), e->chunks[0].shape.model.tied, &e->tied);
}

static void enter(void *context, int block, int next, int use)
{
    rs_supply_enter(context, block, next, use);
}

static void leave(void *context, int block, int use)
{
    rs_supply_leave(context, block, use);
}

static rs_status make_experts(rs_trainer *e)
{
    const rs_world *world = e->world;
    e->ranges = rs_calloc(2 * (size_t)world->layout.ep, sizeof *e->ranges);
    if (e->ranges == NULL)
        return rs_error_memory(2 * (size_t)world->layout.ep * sizeof *e->ranges);
    for (int c = 0; c < e->chunk_count; c++)
        rs_bind_experts(e->state->space, world, e->ranges, &e->chunks[c].shape);
    if (world->twins != MPI_COMM_NULL)
        RS_TRY(rs_ordered_init(&e->twins, world->twins));
    return rs_moe_comm_create(world->dispatch, &e->experts);
}

static rs_status make_stages(rs_trainer *e)
{
    rs_stage_tp groups = {0};
    if (e->world->layout.tp > 1)
        groups = (rs_stage_tp){.context = &e->tp,
            .sum = group_sum,
            .maximum = group_maximum,
            .pieces = {&e->tp, group_sum, group_scatter, group_gather}};
    if (e->world->layout.cp > 1)
        groups.cp = (rs_stage_group){&e->cp, group_sum, group_scatter, group_gather};
    if (e->experts != NULL)
        groups.experts = rs_moe_comm_group(e->experts);
    for (int c = 0; c < e->chunk_count; c++) {
        rs_chunk *chunk = &e->chunks[c];
        RS_TRY(rs_stage_create(&chunk->shape, &groups, &chunk->stage));
        rs_stage_announce(chunk->stage, &(rs_stage_blocks){e->supply, enter, leave});
    }
    return RS_OK;
}

/* One rank of each tp group watches. */
static rs_status make_watch(rs_trainer *e, const rs_train_options *options)
{
    char path[RS_TRAIN_PATH + 64];
    if (e->experts == NULL || e->world->at.tp > 0)
        return RS_OK;
    snprintf(path, sizeof path, "%s/routing-%d.txt", options->job, e->world->rank);
    return rs_moe_watch_create(
        &e->chunks[0].shape.model, options->fault.routing ? path : NULL, &e->watch);
}

rs_status rs_trainer_create(const rs_train_options *options, const rs_model *model,
    const rs_world *world, const rs_state *state, rs_data *data, rs_trainer **out)
{
    rs_status status;
    rs_trainer *e = rs_calloc(1, sizeof *e);
    if (e == NULL)
        return rs_error_memory(sizeof *e);
    e->world = world;
    e->state = state;
    RS_TRY_GOTO(rs_ordered_init(&e->tp, world->tp), fail);
    RS_TRY_GOTO(rs_ordered_init(&e->cp, world->cp), fail);
    RS_TRY_GOTO(make_chunks(e, options, model), fail);
    RS_TRY_GOTO(make_shared(e), fail);
    if (model->experts > 0)
        RS_TRY_GOTO(make_experts(e), fail);
    RS_TRY_GOTO(make_supply(e, rs_train_optimizer(options)), fail);
    RS_TRY_GOTO(make_stages(e), fail);
    RS_TRY_GOTO(make_watch(e, options), fail);
    rs_pipeline_setup setup = {world, &e->schedule, data, e->chunks, options->global_batch,
        options->micro_batch, options->seq, model->hidden, e->watch};
    RS_TRY_GOTO(rs_pipeline_create(&setup, &e->pipeline), fail);
    *out = e;
    return RS_OK;

fail:
    rs_trainer_destroy(e);
    return status;
}

void rs_trainer_destroy(rs_trainer *e)
{
    if (e == NULL)
        return;
    rs_pipeline_destroy(e->pipeline);
    rs_mirror_destroy(e->mirror);
    rs_muon_destroy(e->muon);
    rs_tied_destroy(e->tied);
    rs_update_destroy(e->update);
    rs_supply_destroy(e->supply);
    free(e->shared.buffer);
    free(e->shared.heads);
    for (int c = 0; c < e->chunk_count; c++) {
        rs_stage_destroy(e->chunks[c].stage);
        free(e->chunks[c].weights.layers);
        free(e->chunks[c].gradients.layers);
    }
    free(e->chunks);
    rs_schedule_fini(&e->schedule);
    rs_moe_watch_destroy(e->watch);
    rs_moe_comm_destroy(e->experts);
    free(e->ranges);
    rs_ordered_fini(&e->twins);
    rs_ordered_fini(&e->cp);
    rs_ordered_fini(&e->tp);
    free(e);
}

/* ---- a step ---- */

rs_status rs_trainer_gradients(rs_trainer *e, int64_t step, double *loss_sum, double *square)
{
    rs_supply_begin(e->supply);
    if (e->watch != NULL)
        rs_moe_watch_begin(e->watch, step);
    RS_TRY(rs_pipeline_run(e->pipeline, step, loss_sum));
    if (e->world->at.tp > 0)
        *loss_sum = 0;
    rs_crash_point("reduction");
    rs_supply_reduce(e->supply);
    rs_tied_reduce(e->tied);
    *square = rs_update_norm(e->update, rs_supply_reduced(e->supply));
    rs_supply_complete(e->supply);
    rs_mirror_begin(e->mirror);
    return RS_OK;
}

rs_moe_totals rs_trainer_routing(const rs_trainer *e)
{
    return e->watch != NULL ? rs_moe_watch_totals(e->watch) : (rs_moe_totals){0};
}

void rs_trainer_direct(rs_trainer *e, const rs_update_rate *rate)
{
    rs_muon_direct(e->muon, rate->clip);
    rs_crash_point("mirror");
    rs_mirror_end(e->mirror);
}

void rs_trainer_update(rs_trainer *e, const rs_update_rate *rate)
{
    rs_update_apply(e->update, rate);
    rs_twophase_stepped(e->state, rate->step);
    rs_supply_publish(e->supply);
    rs_twophase_derived(e->state, rate->step);
}

const rs_sums *rs_trainer_sums(rs_trainer *e)
{
    return rs_update_sums(e->update);
}
