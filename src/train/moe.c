/*
 * The feed-forward half of a layer with experts.
 *
 * Every rank of a tp group has the whole input and routes all of its tokens, so router, choices and
 * weights are the same bits on each. It dispatches a part of the tokens, its own, so each (token,
 * expert) row travels once whatever tp and etp are; and it adds to its partial sums what only one
 * rank may add (the experts' outputs, the router's and the switch's part of the input's gradient)
 * in its own rows alone. The stage's sum over tp completes them. The shared expert is divided over
 * tp like any feed-forward layer.
 *
 * A row takes its weight along and comes back weighted; backward, the gradient of the output goes
 * out and the gradients of the row and of its weight come back. So nothing of the experts' outputs
 * is kept.
 *
 * Invariants:
 * 1. A layer is one gathering and two exchanges forward, two exchanges backward, for every rank of
 * the group, with tokens or without: they meet in the same calls.
 * 2. Rows of an expert are in the order of ranks and tokens, and a token adds its experts' outputs
 * in the order of experts and of etp ranks: a layout repeats its bits.
 *
 * Cost: (hidden + 1) + hidden floats each way per token, expert and etp rank; kept are per
 * (token, expert) row that arrives hidden + 2 rows of the expert's local width.
 */
#include "train/moe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/ffn.h"
#include "train/kernels.h"
#include "train/moe_route.h"

/* What the backward pass needs of a layer. */
typedef struct saved {
    float *probabilities; /* [rows, experts] */
    int32_t *choice;      /* [rows, chosen] */
    float *weight;        /* [rows, chosen] */
    float *counts;        /* [sequences, experts] how many tokens chose each, cp ranks' too */
    float *shared;        /* [rows, 2 S] gate and up of the shared expert */
    float *open;          /* [rows] how much of it counts */
    rs_dispatch_plan plan;
    float *x; /* [received, H], grows */
    float *factor;
    float *gate_up;
    int64_t capacity; /* rows of the three */
    rs_stage_routing routing;
} saved;

struct rs_moe {
    rs_stage_shape shape;
    rs_stage_tp tp;
    int threads;
    rs_route route;
    int64_t rows; /* of the largest micro-batch */
    int64_t own;  /* of them that this rank dispatches at most */
    int64_t layers;
    int etp;
    int64_t experts; /* of this rank */
    int64_t width;   /* its rows of each */
    int64_t shared;  /* and of the shared expert */
    rs_dispatch *dispatch;
    saved *saved;      /* [slot][layer] */
    float *send;       /* [own * chosen, H + 1] */
    float *act;        /* [rows, S] */
    float *sums;       /* [rows, chosen + 1] gradients of weights and of `open` */
    float *pull;       /* [experts] */
    float *expert_act; /* [received, width], grows */
    int64_t expert_act_capacity;
};

bool rs_moe_has(const rs_stage_shape *shape, int64_t layer)
{
    return rs_model_has_experts(&shape->model, layer);
}

static saved *saved_of(const rs_moe *moe, int slot, int64_t layer)
{
    return &moe->saved[slot * moe->layers + layer];
}

/* ---- memory ---- */

static rs_status make_saved(const rs_moe *moe, saved *s)
{
    size_t rows = (size_t)moe->rows;
    size_t sequences = (size_t)moe->shape.max_batch;
    size_t k = (size_t)moe->route.chosen;
    s->probabilities = rs_calloc(rows * (size_t)moe->route.experts, sizeof(float));
    s->choice = rs_calloc(rows * k, sizeof *s->choice);
    s->weight = rs_calloc(rows * k, sizeof(float));
    s->counts = rs_calloc(sequences * (size_t)moe->route.experts, sizeof(float));
    s->shared = rs_calloc(rows * 2 * (size_t)moe->shared, sizeof(float));
    s->open = rs_calloc(rows, sizeof(float));
    if (s->probabilities == NULL || s->choice == NULL || s->weight == NULL || s->counts == NULL ||
        s->shared == NULL || s->open == NULL)
        return rs_error_memory(rows * (size_t)moe->route.experts * sizeof(float));
    return RS_OK;
}

static void free_saved(saved *s)
{
    rs_dispatch_plan_fini(&s->plan);
    free(s->probabilities);
    free(s->choice);
    free(s->weight);
    free(s->counts);
    free(s->shared);
    free(s->open);
    free(s->x);
    free(s->factor);
    free(s->gate_up);
}

/* Room for the rows that have come. */
static rs_status grow(rs_moe *moe, saved *s)
{
    int64_t rows = s->plan.received;
    size_t hidden = (size_t)moe->shape.model.hidden;
    size_t width = (size_t)moe->width;
    if (s->x == NULL || rows > s->capacity) {
        int64_t capacity = rows + rows / 4;
        free(s->x);
        free(s->factor);
        free(s->gate_up);
        s->capacity = 0;
        s->x = rs_calloc((size_t)capacity * hidden, sizeof(float));
        s->factor = rs_calloc((size_t)capacity, sizeof(float));
        s->gate_up = rs_calloc((size_t)capacity * 2 * width, sizeof(float));
        if (s->x == NULL || s->factor == NULL || s->gate_up == NULL)
            return rs_error_memory((size_t)capacity * (hidden + 2 * width) * sizeof(float));
        s->capacity = capacity;
    }
    if (moe->expert_act == NULL || rows > moe->expert_act_capacity) {
        free(moe->expert_act);
        moe->expert_act_capacity = 0;
        moe->expert_act = rs_calloc((size_t)(rows + rows / 4) * width, sizeof(float));
        if (moe->expert_act == NULL)
            return rs_error_memory((size_t)(rows + rows / 4) * width * sizeof(float));
        moe->expert_act_capacity = rows + rows / 4;
    }
    return RS_OK;
}

static rs_status make_scratch(rs_moe *moe)
{
    size_t rows = (size_t)moe->rows;
    size_t k = (size_t)moe->route.chosen;
    size_t row = (size_t)moe->shape.model.hidden + 1;
    moe->send = rs_calloc((size_t)moe->own * k * row, sizeof(float));
    moe->act = rs_calloc(rows * (size_t)moe->shared, sizeof(float));
    moe->sums = rs_calloc(rows * (k + 1), sizeof(float));
    moe->pull = rs_calloc((size_t)moe->route.experts, sizeof(float));
    if (moe->send == NULL || moe->act == NULL || moe->sums == NULL || moe->pull == NULL)
        return rs_error_memory((size_t)moe->own * k * row * sizeof(float));
    return RS_OK;
}

rs_status rs_moe_create(const rs_stage_shape *shape, const rs_stage_tp *tp,
    const rs_dispatch_group *group, int threads, rs_moe **out)
{
    rs_status status = RS_OK;
    const rs_model *m = &shape->model;
    rs_moe *moe = rs_calloc(1, sizeof *moe);
    if (moe == NULL)
        return rs_error_memory(sizeof *moe);
    moe->shape = *shape;
    if (tp != NULL)
        moe->tp = *tp;
    moe->threads = threads;
    moe->route = (rs_route){m->experts, m->experts_per_token, m->norm_topk, rs_stage_tokens(shape),
        shape->seq, m->aux_loss / (double)rs_max64(1, rs_model_expert_layers(m))};
    moe->rows = shape->max_batch * moe->route.seq;
    moe->own = rs_ceil_div(moe->rows, shape->tp_ranks);
    moe->layers = shape->layer_end - shape->layer_begin;
    const rs_dispatch_shape *d = &shape->dispatch;
    moe->etp = d->etp;
    moe->experts = d->end[d->ep_rank] - d->begin[d->ep_rank];
    moe->width = shape->expert_end - shape->expert_begin;
    moe->shared = shape->shared_end - shape->shared_begin;
    RS_TRY_GOTO(rs_dispatch_create(d, group, &moe->dispatch), fail);
    moe->shape.dispatch = (rs_dispatch_shape){0}; /* its lists are the caller's */
    moe->saved = rs_calloc((size_t)shape->slots * (size_t)moe->layers, sizeof *moe->saved);
    if (moe->saved == NULL) {
        status = rs_error_memory((size_t)shape->slots * (size_t)moe->layers * sizeof *moe->saved);
        goto fail;
    }
    for (int slot = 0; slot < shape->slots; slot++)
        for (int64_t l = 0; l < moe->layers; l++)
            if (rs_moe_has(shape, shape->layer_begin + l))
                RS_TRY_GOTO(make_saved(moe, saved_of(moe, slot, l)), fail);
    RS_TRY_GOTO(make_scratch(moe), fail);
    *out = moe;
    return RS_OK;

fail:
    rs_moe_destroy(moe);
    return status;
}

void rs_moe_destroy(rs_moe *moe)
{
    if (moe == NULL)
        return;
    for (int64_t i = 0; moe->saved != NULL && i < moe->shape.slots * moe->layers; i++)
        free_saved(&moe->saved[i]);
    free(moe->saved);
    free(moe->expert_act);
    free(moe->pull);
    free(moe->sums);
    free(moe->act);
    free(moe->send);
    rs_dispatch_destroy(moe->dispatch);
    free(moe);
}

/* ---- parts of both passes ---- */

/* The tokens that this rank dispatches. */
static void own_rows(const rs_moe *moe, int64_t rows, int64_t *begin, int64_t *end)
{
    const rs_stage_shape *s = &moe->shape;
    *begin = rows * s->tp_rank / s->tp_ranks;
    *end = rows * (s->tp_rank + 1) / s->tp_ranks;
}

/* NULL, for the gradient of what is frozen, has no parts. */
static float *part_of(float *tensor, int64_t offset)
{
    return tensor != NULL ? tensor + offset : NULL;
}

/* Expert `x` of this rank's. */
static rs_ffn expert_of(const rs_moe *moe, const rs_stage_layer *layer, int64_t x)
{
    int64_t hidden = moe->shape.model.hidden;
    int64_t size = moe->width * hidden;
    return rs_ffn_of(hidden, moe->width, part_of(layer->expert_gate, x * size),
        part_of(layer->expert_up, x * size), part_of(layer->expert_down, x * size), NULL, NULL);
}

static rs_ffn shared_of(const rs_moe *moe, const rs_stage_layer *layer)
{
    return rs_ffn_of(moe->shape.model.hidden, moe->shared, layer->shared_gate, layer->shared_up,
        layer->shared_down, NULL, NULL);
}

static bool has_shared(const rs_moe *moe)
{
    return moe->shape.model.shared_ffn > 0;
}

static rs_status sum_over_tp(const rs_moe *moe, float *values, int64_t count)
{
    if (moe->tp.sum == NULL || count == 0)
        return RS_OK;
    return moe->tp.sum(moe->tp.context, values, count);
}

/* Adds what came back of each row to its token. */
static void add_returned(const rs_moe *moe, const rs_dispatch_plan *plan, const float *returned,
    int64_t width, float *partial)
{
    int64_t hidden = moe->shape.model.hidden;
    int64_t k = moe->route.chosen;
    for (int64_t i = 0; i < plan->sent; i++) {
        float *restrict to = partial + plan->items[i] / k * hidden;
        for (int etp = 0; etp < moe->etp; etp++) {
            const float *restrict from = returned + (etp * plan->sent + i) * width;
#pragma omp simd
            for (int64_t h = 0; h < hidden; h++)
                to[h] += from[h];
        }
    }
}

/* ---- forward ---- */

static rs_status route_forward(
    rs_moe *moe, const rs_stage_layer *w, int64_t batch, const float *normed, saved *s)
{
    int64_t hidden = moe->shape.model.hidden;
    int64_t rows = batch * moe->route.seq;
    rs_product_forward(rows, hidden, moe->route.experts, normed, hidden, w->router,
        s->probabilities, moe->route.experts, false);
    s->routing.close = rs_route_choose(
        moe->threads, &moe->route, rows, w->router_bias, s->probabilities, s->choice, s->weight);
    rs_route_count(&moe->route, batch, s->choice, s->counts);
    if (moe->tp.cp.sum != NULL && batch > 0)
        RS_TRY(moe->tp.cp.sum(moe->tp.cp.context, s->counts, batch * moe->route.experts));
    s->routing.balance =
        rs_route_balance(&moe->route, rows, s->probabilities, s->counts, moe->pull);
    s->routing.choice = s->choice;
    s->routing.rows = rows;
    return RS_OK;
}

/* `partial` gets the shared expert's part, or zeros. */
static void shared_forward(rs_moe *moe, const rs_stage_layer *w, int64_t rows, const float *normed,
    saved *s, float *partial)
{
    int64_t hidden = moe->shape.model.hidden;
    if (!has_shared(moe)) {
        memset(partial, 0, (size_t)(rows * hidden) * sizeof *partial);
        return;
    }
    const float *factor = NULL;
    if (w->shared_switch != NULL) {
        rs_product_forward(rows, hidden, 1, normed, hidden, w->shared_switch, s->open, 1, false);
        for (int64_t r = 0; r < rows; r++)
            s->open[r] = 1.0f / (1.0f + expf(-s->open[r]));
        factor = s->open;
    }
    rs_ffn shared = shared_of(moe, w);
    rs_ffn_forward(
        moe->threads, &shared, rows, normed, factor, s->shared, moe->act, false, partial);
}

/* Rows that arrived, each with its weight, through this rank's experts. */
static rs_status experts_forward(
    rs_moe *moe, const rs_stage_layer *w, const float *arrived, saved *s)
{
    int64_t hidden = moe->shape.model.hidden;
    float *out;
    RS_TRY(grow(moe, s));
    RS_TRY(rs_dispatch_room(moe->dispatch, &s->plan, hidden, &out));
    for (int64_t i = 0; i < s->plan.received; i++) {
        const float *row = arrived + i * (hidden + 1);
        memcpy(s->x + i * hidden, row, (size_t)hidden * sizeof *row);
        s->factor[i] = row[hidden];
    }
    for (int64_t x = 0; x < moe->experts; x++) {
        int64_t first = s->plan.expert[x];
        int64_t count = s->plan.expert[x + 1] - first;
        rs_ffn expert = expert_of(moe, w, x);
        rs_ffn_forward(moe->threads, &expert, count, s->x + first * hidden, s->factor + first,
            s->gate_up + first * 2 * moe->width, moe->expert_act + first * moe->width, false,
            out + first * hidden);
    }
    return RS_OK;
}

rs_status rs_moe_forward(rs_moe *moe, const rs_stage_layer *w, int slot, int64_t layer,
    int64_t batch, const float *normed, float *partial)
{
    int64_t hidden = moe->shape.model.hidden;
    int64_t k = moe->route.chosen;
    int64_t rows = batch * moe->route.seq;
    int64_t begin, end;
    float *arrived, *returned;
    saved *s = saved_of(moe, slot, layer);
    RS_TRY(route_forward(moe, w, batch, normed, s));
    shared_forward(moe, w, rows, normed, s, partial);
    own_rows(moe, rows, &begin, &end);
    RS_TRY(rs_dispatch_make_plan(
        moe->dispatch, begin * k, (end - begin) * k, s->choice + begin * k, &s->plan));
    for (int64_t i = 0; i < s->plan.sent; i++) {
        float *row = moe->send + i * (hidden + 1);
        memcpy(row, normed + s->plan.items[i] / k * hidden, (size_t)hidden * sizeof *row);
        row[hidden] = s->weight[s->plan.items[i]];
    }
    RS_TRY(rs_dispatch_out(moe->dispatch, &s->plan, moe->send, hidden + 1, &arrived));
    RS_TRY(experts_forward(moe, w, arrived, s));
    RS_TRY(rs_dispatch_back(moe->dispatch, &s->plan, hidden, &returned));
    add_returned(moe, &s->plan, returned, hidden, partial);
    return RS_OK;
}

/* ---- backward ---- */

/* From the output's gradient of the rows that arrived to that of rows and weights. */
static rs_status experts_backward(
    rs_moe *moe, const rs_stage_layer *w, const rs_stage_layer *g, const float *arrived, saved *s)
{
    int64_t hidden = moe->shape.model.hidden;
    int64_t received = s->plan.received;
    float *out;
    RS_TRY(rs_dispatch_room(moe->dispatch, &s->plan, hidden + 1, &out));
    /* The gradients of the rows first, without gaps; then each moves to its place, the last first,
     * and its weight's gradient, in the place of the weight, follows it. */
    for (int64_t x = 0; x < moe->experts; x++) {
        int64_t first = s->plan.expert[x];
        int64_t count = s->plan.expert[x + 1] - first;
        rs_ffn expert = expert_of(moe, w, x);
        rs_ffn gradient = expert_of(moe, g, x);
        rs_ffn_backward(moe->threads, &expert, &gradient, count, s->x + first * hidden,
            s->factor + first, s->gate_up + first * 2 * moe->width,
            moe->expert_act + first * moe->width, arrived + first * hidden, false,
            out + first * hidden, s->factor + first);
    }
    for (int64_t i = received - 1; i >= 0; i--) {
        memmove(out + i * (hidden + 1), out + i * hidden, (size_t)hidden * sizeof *out);
        out[i * (hidden + 1) + hidden] = s->factor[i];
    }
    return RS_OK;
}

/* `partial` gets the shared expert's part of the input's gradient, or zeros; the gradients of its
 * openings go behind those of the weights. */
static void shared_backward(rs_moe *moe, const rs_stage_layer *w, const rs_stage_layer *g,
    int64_t rows, const float *normed, const float *dy, saved *s, float *partial)
{
    float *dopen = moe->sums + rows * moe->route.chosen;
    if (!has_shared(moe)) {
        memset(partial, 0, (size_t)(rows * moe->shape.model.hidden) * sizeof *partial);
        return;
    }
    rs_ffn shared = shared_of(moe, w);
    rs_ffn gradient = shared_of(moe, g);
    rs_ffn_backward(moe->threads, &shared, &gradient, rows, normed,
        w->shared_switch != NULL ? s->open : NULL, s->shared, moe->act, dy, false, partial, dopen);
}

/* Through router and switch, for which the gradients of weights and openings are complete. */
static void route_backward(rs_moe *moe, const rs_stage_layer *w, const rs_stage_layer *g,
    int64_t rows, float scale, const float *normed, saved *s, float *partial)
{
    int64_t hidden = moe->shape.model.hidden;
    int64_t experts = moe->route.experts;
    int64_t begin, end;
    float *dopen = moe->sums + rows * moe->route.chosen;
    own_rows(moe, rows, &begin, &end);
    if (g->router_bias != NULL)
        rs_route_add(&moe->route, rows, s->choice, g->router_bias);
    rs_route_backward(&moe->route, rows, s->choice, s->weight, moe->sums, s->counts, scale,
        s->probabilities, moe->pull);
    rs_product_weight_gradient(
        rows, hidden, experts, s->probabilities, experts, normed, hidden, g->router);
    rs_product_input_gradient(end - begin, hidden, experts, s->probabilities + begin * experts,
        experts, w->router, partial + begin * hidden, hidden, true);
    if (w->shared_switch == NULL)
        return;
    for (int64_t r = 0; r < rows; r++)
        dopen[r] *= s->open[r] * (1 - s->open[r]);
    rs_product_weight_gradient(rows, hidden, 1, dopen, 1, normed, hidden, g->shared_switch);
    rs_product_input_gradient(end - begin, hidden, 1, dopen + begin, 1, w->shared_switch,
        partial + begin * hidden, hidden, true);
}

rs_status rs_moe_backward(rs_moe *moe, const rs_stage_layer *w, const rs_stage_layer *g, int slot,
    int64_t layer, int64_t batch, float scale, const float *normed, const float *dy, float *partial)
{
    int64_t hidden = moe->shape.model.hidden;
    int64_t k = moe->route.chosen;
    int64_t rows = batch * moe->route.seq;
    float *arrived, *returned;
    saved *s = saved_of(moe, slot, layer);
    for (int64_t i = 0; i < s->plan.sent; i++)
        memcpy(moe->send + i * hidden, dy + s->plan.items[i] / k * hidden,
            (size_t)hidden * sizeof *dy);
    RS_TRY(rs_dispatch_out(moe->dispatch, &s->plan, moe->send, hidden, &arrived));
    RS_TRY(experts_backward(moe, w, g, arrived, s));
    RS_TRY(rs_dispatch_back(moe->dispatch, &s->plan, hidden + 1, &returned));
    memset(moe->sums, 0, (size_t)(rows * (k + 1)) * sizeof *moe->sums);
    shared_backward(moe, w, g, rows, normed, dy, s, partial);
    for (int etp = 0; etp < moe->etp; etp++)
        for (int64_t i = 0; i < s->plan.sent; i++)
            moe->sums[s->plan.items[i]] +=
                returned[(etp * s->plan.sent + i) * (hidden + 1) + hidden];
    add_returned(moe, &s->plan, returned, hidden + 1, partial);
    RS_TRY(sum_over_tp(moe, moe->sums, rows * (k + 1)));
    route_backward(moe, w, g, rows, scale, normed, s, partial);
    return RS_OK;
}

void rs_moe_routing(const rs_moe *moe, int slot, int64_t layer, rs_stage_routing *out)
{
    *out = saved_of(moe, slot, layer)->routing;
}

int64_t rs_moe_bytes(const rs_moe *moe)
{
    int64_t floats = moe->expert_act_capacity * moe->width;
    for (int64_t i = 0; i < moe->shape.slots * moe->layers; i++)
        floats += moe->saved[i].capacity * (moe->shape.model.hidden + 1 + 2 * moe->width);
    return floats * (int64_t)sizeof(float) + rs_dispatch_bytes(moe->dispatch);
}
