/*
 * A layout at work: gradients, their reduction, the update.
 *
 * Gradients live in private memory as one float32 vector, the local concatenation, so that replicas
 * reduce it as a vector and nothing there knows tensors. Weights are read where they lie in the
 * arena when they are float32, else from an expanded copy.
 *
 * The reduction, each sum in a fixed order of ranks and with the same bits on all holders:
 * 1. over tp: key/value heads that several ranks hold, and the norms of q and k heads, of which
 * each rank has its heads' part. Ranks that do not hold a shared head add zeros: one sum serves all
 * of them.
 * 2. over the pipeline's two ends: a tied embedding.
 * 3. over dp: each replica gets the sum of its piece (rs_update_bounds); where the optimizer is not
 *    sharded the pieces are gathered, so that every replica does the same update.
 *
 * Cost beyond the stage's own: 2 (dp-1)/dp of the local concatenation sent and received.
 */
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/bind.h"
#include "train/comm.h"
#include "train/comm_sum.h"
#include "train/pipeline.h"
#include "train/stage.h"

#define TAG_TIED 83
#define TIED_ROUND (1 << 20) /* floats */

/* The tensors of a layer whose gradients are summed over tp, as far as several ranks hold them. */
typedef struct shared {
    int64_t first_head; /* key/value heads of this rank */
    int64_t end_head;
    int64_t *heads; /* held by more than one rank */
    int64_t count;
    int64_t floats;
    float *buffer; /* one layer's */
} shared;

struct rs_trainer {
    const rs_world *world;
    const rs_state *state;
    rs_ordered tp;
    rs_ordered dp;
    rs_stage_shape shape;
    rs_stage *stage;
    rs_pipeline *pipeline;
    rs_update *update;
    float *weights; /* expanded; NULL for float32 parameters */
    float *gradients;
    int64_t elements; /* of the local concatenation */
    rs_stage_tensors weight_tensors;
    rs_stage_tensors gradient_tensors;
    shared shared;
    float *tied;          /* scratch, where this rank has an end of a tied embedding */
    rs_span *param_spans; /* one per block */
};

static rs_status tp_sum(void *context, float *values, int64_t count)
{
    rs_ordered_sum(context, values, count);
    return RS_OK;
}

static rs_status tp_maximum(void *context, float *values, int64_t count)
{
    rs_ordered_maximum(context, values, count);
    return RS_OK;
}

/* ---- setting up ---- */

static rs_status make_shared(rs_trainer *e)
{
    const rs_model *m = &e->shape.model;
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
    s->first_head = e->shape.kv_begin;
    s->end_head = e->shape.kv_end;
    int64_t head = m->head_dim * (m->hidden + (m->qkv_bias ? 1 : 0));
    s->floats = 2 * s->count * head + (m->qk_norm ? 2 * m->head_dim : 0);
    s->buffer = rs_calloc((size_t)s->floats, sizeof *s->buffer);
    return s->buffer != NULL ? RS_OK : rs_error_memory((size_t)s->floats * sizeof *s->buffer);
}

static rs_status make_tensors(rs_trainer *e)
{
    size_t layers = (size_t)(e->shape.layer_end - e->shape.layer_begin);
    e->weight_tensors.layers = rs_calloc(layers, sizeof *e->weight_tensors.layers);
    e->gradient_tensors.layers = rs_calloc(layers, sizeof *e->gradient_tensors.layers);
    if (e->weight_tensors.layers == NULL || e->gradient_tensors.layers == NULL)
        return rs_error_memory(layers * sizeof *e->weight_tensors.layers);
    e->elements = rs_layout_local_elements(e->state->space, &e->state->layout, e->state->rank);
    e->gradients = rs_calloc((size_t)e->elements, sizeof *e->gradients);
    if (e->gradients == NULL)
        return rs_error_memory((size_t)e->elements * sizeof *e->gradients);
    if (e->state->roles.master >= 0) {
        e->weights = rs_calloc((size_t)e->elements, sizeof *e->weights);
        if (e->weights == NULL)
            return rs_error_memory((size_t)e->elements * sizeof *e->weights);
        rs_state_expand(e->state, e->weights);
    }
    RS_TRY(rs_bind_tensors(e->state, &e->shape, e->weights, &e->weight_tensors));
    return rs_bind_tensors(e->state, &e->shape, e->gradients, &e->gradient_tensors);
}

static rs_status make_spans(rs_trainer *e)
{
    e->param_spans = rs_calloc((size_t)e->state->blocks, sizeof *e->param_spans);
    if (e->param_spans == NULL)
        return rs_error_memory((size_t)e->state->blocks * sizeof *e->param_spans);
    for (int b = 0; b < e->state->blocks; b++) {
        const rs_view *view = rs_state_view(e->state, e->state->roles.param, b);
        e->param_spans[b] = (rs_span){view->begin, view->end, view->data};
    }
    return RS_OK;
}

static bool has_tied_end(const rs_trainer *e)
{
    return e->shape.model.tied && e->world->layout.pp > 1 && (e->shape.first || e->shape.last);
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
    rs_bind_shape(model, state->space, world, &e->shape);
    e->shape.seq = options->seq;
    e->shape.max_batch = options->micro_batch;
    e->shape.slots = rs_pipeline_slots(world, options->global_batch, options->micro_batch);
    RS_TRY_GOTO(rs_ordered_init(&e->tp, world->tp), fail);
    RS_TRY_GOTO(rs_ordered_init(&e->dp, world->dp), fail);
    RS_TRY_GOTO(make_tensors(e), fail);
    RS_TRY_GOTO(make_spans(e), fail);
    RS_TRY_GOTO(make_shared(e), fail);
    RS_TRY_GOTO(rs_update_create(state, &e->update), fail);
    rs_stage_tp tp = {.context = &e->tp, .sum = tp_sum, .maximum = tp_maximum};
    RS_TRY_GOTO(rs_stage_create(&e->shape, world->layout.tp > 1 ? &tp : NULL, &e->stage), fail);
    rs_pipeline_setup setup = {world, data, e->stage, e->shape.slots, options->global_batch,
        options->micro_batch, options->seq, model->hidden};
    RS_TRY_GOTO(rs_pipeline_create(&setup, &e->pipeline), fail);
    if (has_tied_end(e)) {
        e->tied = rs_calloc(TIED_ROUND, sizeof *e->tied);
        if (e->tied == NULL) {
            status = rs_error_memory(TIED_ROUND * sizeof *e->tied);
            goto fail;
        }
    }
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
    rs_stage_destroy(e->stage);
    rs_update_destroy(e->update);
    free(e->tied);
    free(e->param_spans);
    free(e->shared.buffer);
    free(e->shared.heads);
    free(e->weight_tensors.layers);
    free(e->gradient_tensors.layers);
    free(e->gradients);
    free(e->weights);
    rs_ordered_fini(&e->dp);
    rs_ordered_fini(&e->tp);
    free(e);
}

/* ---- reducing gradients ---- */

/* Copies between the buffer, at `*at`, and the shared heads of `tensor`, whose heads have `head`
 * floats; zeros where this rank has none. */
static void pass_heads(const shared *s, float *tensor, int64_t head, bool into_buffer, float **at)
{
    for (int64_t i = 0; i < s->count; i++, *at += head) {
        int64_t h = s->heads[i];
        bool mine = h >= s->first_head && h < s->end_head;
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
    if (into_buffer)
        memcpy(*at, tensor, (size_t)count * sizeof *tensor);
    else
        memcpy(tensor, *at, (size_t)count * sizeof *tensor);
    *at += count;
}

static void pass_layer(rs_trainer *e, const rs_stage_layer *layer, bool into_buffer)
{
    const rs_model *m = &e->shape.model;
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
}

static void reduce_shared(rs_trainer *e)
{
    int64_t layers = e->shape.layer_end - e->shape.layer_begin;
    for (int64_t l = 0; l < layers && e->shared.floats > 0; l++) {
        pass_layer(e, &e->gradient_tensors.layers[l], true);
        rs_ordered_sum(&e->tp, e->shared.buffer, e->shared.floats);
        pass_layer(e, &e->gradient_tensors.layers[l], false);
    }
}

/* Both ends compute first + last, so they get the same bits. */
static void reduce_tied(rs_trainer *e)
{
    int64_t count = (e->shape.vocab_end - e->shape.vocab_begin) * e->shape.model.hidden;
    int peer = rs_world_at_stage(e->world, e->shape.first ? e->world->layout.pp - 1 : 0);
    float *own = e->gradient_tensors.embed;
    for (int64_t done = 0; done < count; done += TIED_ROUND) {
        int64_t n = rs_min64(TIED_ROUND, count - done);
        rs_comm_exchange_floats(e->world->all, peer, TAG_TIED, own + done, e->tied, n);
        for (int64_t i = 0; i < n;
             i++) /* addition commutes, so the order of the two does not matter */
            own[done + i] += e->tied[i];
    }
}

rs_status rs_trainer_gradients(rs_trainer *e, int64_t step, double *loss_sum, double *square)
{
    memset(e->gradients, 0, (size_t)e->elements * sizeof *e->gradients);
    RS_TRY(rs_pipeline_run(e->pipeline, step, &e->weight_tensors, &e->gradient_tensors, loss_sum));
    if (e->world->at.tp > 0)
        *loss_sum = 0;
    reduce_shared(e);
    if (has_tied_end(e))
        reduce_tied(e);
    rs_ordered_scatter(&e->dp, e->gradients, rs_update_bounds(e->update));
    *square = rs_update_norm(e->update, e->gradients);
    return RS_OK;
}

void rs_trainer_update(rs_trainer *e, const rs_update_rate *rate)
{
    const int64_t *bounds = rs_update_bounds(e->update);
    const rs_state *state = e->state;
    bool sharded = state->layout.zero > 0;
    if (!sharded) {
        rs_span whole = {0, e->elements, e->gradients};
        rs_ordered_gather(&e->dp, &whole, 1, bounds, sizeof *e->gradients);
    }
    rs_update_apply(e->update, rate, e->gradients, e->weights);
    if (!sharded || state->layout.dp == 1)
        return;
    rs_ordered_gather(&e->dp, e->param_spans, (size_t)state->blocks, bounds,
        rs_dtype_size(rs_space_role(state->space, state->roles.param)->dtype));
    if (e->weights != NULL)
        rs_state_expand(state, e->weights);
}

const rs_sums *rs_trainer_sums(rs_trainer *e)
{
    return rs_update_sums(e->update);
}
