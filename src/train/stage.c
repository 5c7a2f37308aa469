/*
 * One pipeline stage of a Llama-family decoder on one tp rank.
 *
 * A layer is two half-layers, each x + f(norm(x)): f is attention, or the gated feed-forward (or
 * experts, which moe.c computes behind the same norm and before the same sum). The
 * rank has some rows of f's first products (q, k, v; gate, up) and the matching columns of its last
 * (o; down), so it computes a partial f from the whole norm(x), and one sum over the group gives f;
 * backward, one sum gives the gradient of norm(x) (Megatron-LM: Shoeybi et al., arXiv 1909.08053).
 * A rank without heads or rows adds zeros. With sp each rank has its rows of x alone: norm(x) is
 * gathered, and each rank sums its own rows. Under cp it has its tokens alone; attention gathers
 * the keys and values of whole sequences, and sums their gradients (rows.h).
 *
 * Invariants:
 * 1. What every rank of the group has whole (without sp the residual stream x and its gradient,
 * norms' weights, biases of o and down) has the same bits on every rank: it is computed from
 * reduced values alone.
 * 2. A slot keeps what the backward pass cannot make again without a product: x before each
 * half-layer, q, k, v after rotation, attention's output and denominators, gate and up. Norms and
 * silu are redone. What is recomputed lies in one place for all layers and slots instead; it is
 * made by the same calls as in the forward pass, and so has the same bits.
 * 3. The calls to the group depend only on the shape and on the batch, never on a rank's ranges, so
 * a group whose ranks get the same micro-batch meets in the same calls.
 * 4. Working memory is allocated once, in rs_stage_create, but for rows that come to this rank's
 * experts, whose number the routers decide (moe.c); every element read was written before.
 *
 * Cost: per token 6 floating-point operations a weight and about 6 seq a query head's width; per
 * slot and layer and token (3 hidden + 2 q + 2 kv + 2 ffn) floats, local widths.
 */
#include "train/stage.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/attention.h"
#include "train/dropout.h"
#include "train/ffn.h"
#include "train/kernels.h"
#include "train/loss.h"
#include "train/moe.h"
#include "train/rows.h"
#include "train/stage_memory.h"

/* Of the positions of this rank's tokens. */
static void make_rotation(rs_stage *stage)
{
    const rs_model *m = &stage->shape.model;
    rs_positions at[2];
    rs_sequence_positions(&stage->rows.sequence, stage->rows.sequence.rank, at);
    int64_t first = at[0].end - at[0].begin;
    rs_rotation_table(at[0].begin, first, m->head_dim, m->rope_theta, stage->rotation);
    rs_rotation_table(at[1].begin, at[1].end - at[1].begin, m->head_dim, m->rope_theta,
        stage->rotation + first * m->head_dim);
}

rs_status rs_stage_create(const rs_stage_shape *shape, const rs_stage_tp *tp, rs_stage **out)
{
    rs_status status;
    RS_TRY(rs_stage_check(shape));
    rs_stage *stage = rs_calloc(1, sizeof *stage);
    if (stage == NULL)
        return rs_error_memory(sizeof *stage);
    stage->shape = *shape;
    rs_rows_init(&stage->rows, shape, tp, NULL);
    stage->threads = rs_product_threads();
    stage->layers = shape->layer_end - shape->layer_begin;
    stage->q = (shape->q_end - shape->q_begin) * shape->model.head_dim;
    stage->kv_width = (shape->kv_end - shape->kv_begin) * shape->model.head_dim;
    stage->ffn = shape->ffn_end - shape->ffn_begin;
    stage->vocab = shape->vocab_end - shape->vocab_begin;
    stage->slots = rs_calloc((size_t)shape->slots, sizeof *stage->slots);
    if (stage->slots == NULL) {
        status = rs_error_memory((size_t)shape->slots * sizeof *stage->slots);
        goto destroy;
    }
    for (int i = 0; i < shape->slots; i++) {
        stage->slots[i].layers = rs_calloc((size_t)stage->layers, sizeof(rs_saved_layer));
        if (stage->slots[i].layers == NULL) {
            status = rs_error_memory((size_t)stage->layers * sizeof(rs_saved_layer));
            goto destroy;
        }
    }
    RS_TRY_GOTO(rs_stage_allocate(stage), destroy);
    make_rotation(stage);
    if (shape->model.experts > 0)
        RS_TRY_GOTO(
            rs_moe_create(shape, tp, tp != NULL ? &tp->experts : NULL, stage->threads, &stage->moe),
            destroy);
    stage->shape.dispatch = (rs_dispatch_shape){0};
    *out = stage;
    return RS_OK;
destroy:
    rs_stage_destroy(stage);
    return status;
}

void rs_stage_destroy(rs_stage *stage)
{
    if (stage == NULL)
        return;
    if (stage->slots != NULL)
        for (int i = 0; i < stage->shape.slots; i++)
            free(stage->slots[i].layers);
    rs_moe_destroy(stage->moe);
    free(stage->slots);
    free(stage->memory);
    free(stage);
}

void rs_stage_place(rs_stage *stage, int slot_number, int64_t step, int64_t first)
{
    stage->slots[slot_number].step = step;
    stage->slots[slot_number].first = first;
}

void rs_stage_announce(rs_stage *stage, const rs_stage_blocks *blocks)
{
    stage->blocks = *blocks;
}

/* Block numbers, see rs_stage_blocks; `l` counts the stage's layers. */
static int layer_block(const rs_stage *stage, int64_t l)
{
    return (int)(stage->shape.layer_begin + l) + 1;
}

static int tail_block(const rs_stage *stage)
{
    return (int)stage->shape.model.layers + 1;
}

static int expert_block(const rs_stage *stage, int64_t l)
{
    return tail_block(stage) + 1 + layer_block(stage, l);
}

static void enter(const rs_stage *stage, int block, int next, int use)
{
    if (stage->blocks.enter != NULL)
        stage->blocks.enter(stage->blocks.context, block, next, use);
}

static void leave(const rs_stage *stage, int block, int use)
{
    if (stage->blocks.leave != NULL)
        stage->blocks.leave(stage->blocks.context, block, use);
}

/* The end of a tied model uses the embedding too, which is a block of its own where the rank has
 * the first stage as well. */
static bool borrows_embedding(const rs_stage *stage)
{
    return stage->shape.both_ends && stage->shape.model.tied;
}

/* Layer `l` of the stage, and its experts. */
static void enter_layer(const rs_stage *stage, int64_t l, int next, int use)
{
    bool experts = rs_moe_has(&stage->shape, stage->shape.layer_begin + l);
    enter(stage, layer_block(stage, l), experts ? expert_block(stage, l) : next, use);
    if (experts)
        enter(stage, expert_block(stage, l), next, use);
}

static void leave_layer(const rs_stage *stage, int64_t l, int use)
{
    if (rs_moe_has(&stage->shape, stage->shape.layer_begin + l))
        leave(stage, expert_block(stage, l), use);
    leave(stage, layer_block(stage, l), use);
}

static void enter_tail(const rs_stage *stage, int next, int use)
{
    if (borrows_embedding(stage))
        enter(stage, 0, -1, use);
    enter(stage, tail_block(stage), next, use);
}

static void leave_tail(const rs_stage *stage, int use)
{
    leave(stage, tail_block(stage), use);
    if (borrows_embedding(stage))
        leave(stage, 0, use);
}

/* Rows of a micro-batch on this rank; those of the residual stream are its own. */
static int64_t rows_of(const rs_stage *stage, int64_t batch)
{
    return batch * stage->rows.tokens;
}

static int64_t own_rows(const rs_stage *stage, int64_t rows)
{
    int64_t begin, end;
    rs_rows_own(&stage->rows, rows, &begin, &end);
    return end - begin;
}

/* The own rows of a matrix [rows, H] of all. */
static float *own_part(const rs_stage *stage, int64_t rows, float *matrix)
{
    int64_t begin, end;
    rs_rows_own(&stage->rows, rows, &begin, &end);
    return matrix + begin * stage->shape.model.hidden;
}

static rs_status group_sum(const rs_stage *stage, float *values, int64_t count)
{
    const rs_stage_tp *tp = &stage->rows.tp;
    return tp->sum != NULL && count > 0 ? tp->sum(tp->context, values, count) : RS_OK;
}

static rs_status group_maximum(const rs_stage *stage, float *values, int64_t count)
{
    const rs_stage_tp *tp = &stage->rows.tp;
    return tp->maximum != NULL && count > 0 ? tp->maximum(tp->context, values, count) : RS_OK;
}

static rs_linears attention_parts(const rs_stage *stage, const rs_stage_layer *layer)
{
    return (rs_linears){
        {{layer->q, layer->q_bias, stage->q}, {layer->k, layer->k_bias, stage->kv_width},
            {layer->v, layer->v_bias, stage->kv_width}},
        3, stage->q + 2 * stage->kv_width};
}

static rs_ffn mlp_of(const rs_stage *stage, const rs_stage_layer *layer)
{
    return rs_ffn_of(stage->shape.model.hidden, stage->ffn, layer->gate, layer->up, layer->down,
        layer->gate_bias, layer->up_bias);
}

/* The norm of x, of all `rows`. */
static rs_status norm(const rs_stage *stage, int64_t rows, const float *x, const float *weight)
{
    int64_t hidden = stage->shape.model.hidden;
    rs_norm_forward(stage->threads, own_rows(stage, rows), hidden, x, hidden, weight,
        (float)stage->shape.model.norm_eps, own_part(stage, rows, stage->normed), hidden,
        stage->inverse);
    return rs_rows_spread(&stage->rows, rows, hidden, stage->normed);
}

/* After norm() of the same x: adds to dx, or writes, the gradient that comes through the norm from
 * stage->partial. */
static void norm_backward(const rs_stage *stage, int64_t rows, const float *x, const float *weight,
    bool keep, float *dx, float *dweight)
{
    int64_t hidden = stage->shape.model.hidden;
    rs_norm_backward(stage->threads, own_rows(stage, rows), hidden, x, hidden, weight,
        stage->inverse, own_part(stage, rows, stage->partial), hidden, keep, dx, hidden, dweight,
        stage->norm_scratch);
}

/* stage->partial summed over tp. */
static rs_status sum_partial(const rs_stage *stage, int64_t rows)
{
    return rs_rows_sum(&stage->rows, rows, stage->shape.model.hidden, stage->partial);
}

/* A half of layer `l` of the stage on the micro-batch in a slot, as far as dropout tells them
 * apart. */
typedef struct half {
    const rs_slot *slot;
    int64_t layer;
    const char *tensor;
} half;

/* The own rows `in` with some elements dropped go to `out`: row by row, as a row's position in the
 * step says. */
static void drop(const rs_stage *stage, const half *of, int64_t rows, const float *in, float *out)
{
    const rs_stage_shape *shape = &stage->shape;
    int64_t hidden = shape->model.hidden, begin, end;
    uint64_t key = rs_dropout_key(shape->seed, of->tensor, of->slot->step);
    rs_positions at[2];
    rs_sequence_positions(&stage->rows.sequence, stage->rows.sequence.rank, at);
    rs_rows_own(&stage->rows, rows, &begin, &end);
    int64_t early = at[0].end - at[0].begin, tokens = stage->rows.tokens;
#pragma omp parallel for num_threads(stage->threads) if (stage->threads > 1) schedule(static)
    for (int64_t r = begin; r < end; r++) {
        int64_t token = r % tokens, sequence = of->slot->first + r / tokens;
        int64_t position = token < early ? at[0].begin + token : at[1].begin + token - early;
        int64_t row =
            (sequence * shape->model.layers + shape->layer_begin + of->layer) * shape->seq;
        rs_dropout_apply(key, shape->dropout, (row + position) * hidden, hidden,
            in + (r - begin) * hidden, out + (r - begin) * hidden);
    }
}

/* out = x + stage->partial + bias, of own rows; what is added to x passes dropout. */
static void add_residual(const rs_stage *stage, const half *of, int64_t rows, const float *x,
    const float *bias, float *out)
{
    int64_t own = own_rows(stage, rows), hidden = stage->shape.model.hidden;
    float *partial = own_part(stage, rows, stage->partial);
    if (stage->shape.dropout > 0) {
        if (bias != NULL)
            rs_add_bias(stage->threads, own, hidden, bias, partial, hidden);
        drop(stage, of, rows, partial, partial);
        bias = NULL;
    }
    rs_add_residual(stage->threads, own, hidden, x, partial, bias, out);
}

/* The gradient of what was added to x. */
static const float *added_gradient(
    const rs_stage *stage, const half *of, int64_t rows, const float *dx)
{
    if (stage->shape.dropout <= 0)
        return dx;
    drop(stage, of, rows, dx, stage->dropped);
    return stage->dropped;
}

/* The gradient of the bias that add_residual added. */
static void bias_backward(const rs_stage *stage, int64_t rows, const float *dx, float *dbias)
{
    int64_t hidden = stage->shape.model.hidden;
    if (dbias != NULL)
        rs_add_rows(stage->threads, own_rows(stage, rows), hidden, dx, hidden, dbias);
}

/* `*all` gets the rows of all of `dx`, which has this rank's own. */
static rs_status spread_gradient(
    const rs_stage *stage, int64_t rows, const float *dx, const float **all)
{
    int64_t hidden = stage->shape.model.hidden;
    *all = dx;
    if (!stage->rows.sp)
        return RS_OK;
    *all = stage->spread;
    memcpy(own_part(stage, rows, stage->spread), dx,
        (size_t)(own_rows(stage, rows) * hidden) * sizeof *dx);
    return rs_rows_spread(&stage->rows, rows, hidden, stage->spread);
}

/* Where attention finds keys and values: beside the queries, or, under cp, gathered. */
static rs_attention attention_shape(const rs_stage *stage, int64_t batch)
{
    const rs_stage_shape *s = &stage->shape;
    int64_t width = stage->q + 2 * stage->kv_width;
    return (rs_attention){batch, stage->rows.sequence, s->model.head_dim, s->q_begin, s->q_end,
        s->kv_begin, s->kv_end, s->model.heads / s->model.kv_heads, width,
        stage->rows.sequence.ranks > 1 ? 2 * stage->kv_width : width};
}

static rs_status find_keys(
    const rs_stage *stage, int64_t batch, const rs_saved_layer *saved, const float **kv)
{
    int64_t width = 2 * stage->kv_width;
    *kv = saved->qkv + stage->q;
    if (stage->rows.sequence.ranks == 1)
        return RS_OK;
    *kv = stage->kv;
    return rs_rows_whole(&stage->rows, batch, width, saved->qkv + stage->q, stage->q + width,
        stage->kv_scratch, stage->kv);
}

/* Attention from `qkv` and the gradient of its output to stage->dqkv. */
static rs_status mix_backward(const rs_stage *stage, int64_t batch, const rs_saved_layer *saved)
{
    rs_attention attention = attention_shape(stage, batch);
    bool divided = stage->rows.sequence.ranks > 1;
    int64_t width = 2 * stage->kv_width;
    const float *kv;
    RS_TRY(find_keys(stage, batch, saved, &kv));
    rs_attention_backward(stage->threads, &attention, saved->qkv, kv, saved->context, saved->lse,
        stage->dcontext, stage->dqkv, divided ? stage->dkv : stage->dqkv + stage->q,
        stage->attention_scratch);
    if (!divided)
        return RS_OK;
    return rs_rows_whole_sum(&stage->rows, batch, width, stage->dkv, stage->kv_scratch,
        stage->dqkv + stage->q, stage->q + width);
}

/* The norm of each q and k head, from `raw`, into the rows of `qkv`. */
static void head_norms(
    const rs_stage *stage, const rs_stage_layer *w, int64_t rows, rs_saved_layer *saved)
{
    int64_t dim = stage->shape.model.head_dim;
    int64_t both = stage->q + stage->kv_width;
    int64_t ld = both + stage->kv_width;
    float eps = (float)stage->shape.model.norm_eps;
    for (int64_t r = 0; r < rows; r++)
        memcpy(saved->raw + r * both, saved->qkv + r * ld, (size_t)both * sizeof *saved->raw);
    for (int64_t c = 0; c < both; c += dim)
        rs_norm_forward(stage->threads, rows, dim, saved->raw + c, both,
            c < stage->q ? w->q_norm : w->k_norm, eps, saved->qkv + c, ld, stage->inverse);
}

/* stage->dqkv, the gradient behind these norms, becomes the one before them. A head's norm is made
 * again for its inverse; its output goes where nothing is needed any more, into the rows of `qkv`.
 */
static void head_norms_backward(const rs_stage *stage, const rs_stage_layer *w,
    const rs_stage_layer *g, int64_t rows, rs_saved_layer *saved)
{
    int64_t dim = stage->shape.model.head_dim;
    int64_t both = stage->q + stage->kv_width;
    int64_t ld = both + stage->kv_width;
    float eps = (float)stage->shape.model.norm_eps;
    for (int64_t c = 0; c < both; c += dim) {
        const float *weight = c < stage->q ? w->q_norm : w->k_norm;
        rs_norm_forward(stage->threads, rows, dim, saved->raw + c, both, weight, eps,
            saved->qkv + c, ld, stage->inverse);
        rs_norm_backward(stage->threads, rows, dim, saved->raw + c, both, weight, stage->inverse,
            stage->dqkv + c, ld, false, stage->dqkv + c, ld, c < stage->q ? g->q_norm : g->k_norm,
            stage->norm_scratch);
    }
}

/* Attention from `qkv` to its output. */
static rs_status mix(const rs_stage *stage, int64_t batch, rs_saved_layer *saved)
{
    rs_attention attention = attention_shape(stage, batch);
    const float *kv;
    RS_TRY(find_keys(stage, batch, saved, &kv));
    rs_attention_forward(stage->threads, &attention, saved->qkv, kv, saved->context, saved->lse,
        stage->attention_scratch);
    return RS_OK;
}

/* `l` counts from the stage's first layer. */
static rs_status attention_forward(
    const rs_stage *stage, const rs_stage_layer *w, const rs_slot *s, int64_t l)
{
    const rs_model *model = &stage->shape.model;
    const half of = {s, l, RS_DROPOUT_ATTENTION};
    int64_t hidden = model->hidden;
    int64_t rows = rows_of(stage, s->batch);
    rs_linears parts = attention_parts(stage, w);
    rs_saved_layer *saved = &s->layers[l];

    RS_TRY(norm(stage, rows, saved->x, w->attn_norm));
    rs_linears_forward(stage->threads, &parts, hidden, rows, stage->normed, saved->qkv);
    if (model->qk_norm)
        head_norms(stage, w, rows, saved);
    rs_rotate(stage->threads, rows, stage->rows.tokens,
        (stage->q + stage->kv_width) / model->head_dim, model->head_dim, stage->rotation, 1,
        saved->qkv, parts.rows);
    RS_TRY(mix(stage, s->batch, saved));
    rs_product_forward(
        rows, stage->q, hidden, saved->context, stage->q, w->o, stage->partial, hidden, false);
    RS_TRY(sum_partial(stage, rows));
    add_residual(stage, &of, rows, saved->x, w->o_bias, saved->middle);
    return RS_OK;
}

/* The slot's number is `number`. */
static rs_status feed_forward(
    const rs_stage *stage, const rs_stage_layer *w, int number, int64_t l, float *output)
{
    const rs_slot *s = &stage->slots[number];
    const half of = {s, l, RS_DROPOUT_MLP};
    rs_saved_layer *saved = &s->layers[l];
    int64_t batch = s->batch;
    int64_t rows = rows_of(stage, batch);
    RS_TRY(norm(stage, rows, saved->middle, w->mlp_norm));
    if (rs_moe_has(&stage->shape, stage->shape.layer_begin + l)) {
        RS_TRY(rs_moe_forward(stage->moe, w, number, l, batch, stage->normed, stage->partial));
    } else {
        rs_ffn mlp = mlp_of(stage, w);
        rs_ffn_forward(stage->threads, &mlp, rows, stage->normed, NULL, saved->gate_up, stage->act,
            false, stage->partial);
    }
    RS_TRY(sum_partial(stage, rows));
    add_residual(stage, &of, rows, saved->middle, w->down_bias, output);
    return RS_OK;
}

/* Makes what the layer's backward pass needs and the forward pass did not keep. */
static rs_status recompute(
    const rs_stage *stage, const rs_stage_layer *w, const rs_slot *s, int64_t l)
{
    rs_saved_layer *saved = &s->layers[l];
    int64_t rows = rows_of(stage, s->batch);
    if (stage->shape.recompute == RS_RECOMPUTE_SELECTIVE)
        return mix(stage, s->batch, saved);
    if (stage->shape.recompute == RS_RECOMPUTE_NONE)
        return RS_OK;
    RS_TRY(attention_forward(stage, w, s, l));
    if (rs_moe_has(&stage->shape, stage->shape.layer_begin + l))
        return RS_OK;
    rs_ffn mlp = mlp_of(stage, w);
    RS_TRY(norm(stage, rows, saved->middle, w->mlp_norm));
    rs_linears_forward(
        stage->threads, &mlp.in, stage->shape.model.hidden, rows, stage->normed, saved->gate_up);
    return RS_OK;
}

/* `dx` holds the gradient of the half-layer's output, and gets that of its input. */
static rs_status feed_backward(const rs_stage *stage, const rs_stage_layer *w,
    const rs_stage_layer *g, int number, int64_t l, float scale, float *dx)
{
    const rs_slot *s = &stage->slots[number];
    const half of = {s, l, RS_DROPOUT_MLP};
    rs_saved_layer *saved = &s->layers[l];
    int64_t batch = s->batch;
    int64_t rows = rows_of(stage, batch);
    const float *added = added_gradient(stage, &of, rows, dx), *dy;
    RS_TRY(norm(stage, rows, saved->middle, w->mlp_norm));
    RS_TRY(spread_gradient(stage, rows, added, &dy));
    if (rs_moe_has(&stage->shape, stage->shape.layer_begin + l)) {
        RS_TRY(rs_moe_backward(
            stage->moe, w, g, number, l, batch, scale, stage->normed, dy, stage->partial));
    } else {
        rs_ffn mlp = mlp_of(stage, w);
        rs_ffn gradients = mlp_of(stage, g);
        bias_backward(stage, rows, added, g->down_bias);
        rs_ffn_backward(stage->threads, &mlp, &gradients, rows, stage->normed, NULL, saved->gate_up,
            stage->act, dy, false, stage->partial, NULL);
    }
    RS_TRY(sum_partial(stage, rows));
    norm_backward(stage, rows, saved->middle, w->mlp_norm, true, dx, g->mlp_norm);
    return RS_OK;
}

static rs_status attention_backward(const rs_stage *stage, const rs_stage_layer *w,
    const rs_stage_layer *g, const rs_slot *s, int64_t l, float *dx)
{
    const rs_model *model = &stage->shape.model;
    const half of = {s, l, RS_DROPOUT_ATTENTION};
    rs_saved_layer *saved = &s->layers[l];
    int64_t hidden = model->hidden;
    int64_t rows = rows_of(stage, s->batch);
    rs_linears parts = attention_parts(stage, w);
    rs_linears gradients = attention_parts(stage, g);
    const float *added = added_gradient(stage, &of, rows, dx), *dy;
    bias_backward(stage, rows, added, g->o_bias);
    RS_TRY(spread_gradient(stage, rows, added, &dy));
    rs_product_input_gradient(
        rows, stage->q, hidden, dy, hidden, w->o, stage->dcontext, stage->q, false);
    rs_product_weight_gradient(rows, stage->q, hidden, dy, hidden, saved->context, stage->q, g->o);
    RS_TRY(mix_backward(stage, s->batch, saved));
    rs_rotate(stage->threads, rows, stage->rows.tokens,
        (stage->q + stage->kv_width) / model->head_dim, model->head_dim, stage->rotation, -1,
        stage->dqkv, parts.rows);
    if (model->qk_norm)
        head_norms_backward(stage, w, g, rows, saved);
    RS_TRY(norm(stage, rows, saved->x, w->attn_norm));
    rs_linears_backward(stage->threads, &parts, &gradients, hidden, rows, stage->normed,
        stage->dqkv, false, stage->partial);
    RS_TRY(sum_partial(stage, rows));
    norm_backward(stage, rows, saved->x, w->attn_norm, true, dx, g->attn_norm);
    return RS_OK;
}

static const float *output_weight(const rs_stage *stage, const rs_stage_tensors *tensors)
{
    return stage->shape.model.tied ? tensors->embed : tensors->head;
}

/* Final norm, logits, loss. */
static rs_status loss_forward(
    const rs_stage *stage, const rs_stage_tensors *w, int64_t rows, rs_slot *s, double *loss_sum)
{
    int64_t hidden = stage->shape.model.hidden;
    int64_t vocab_begin = stage->shape.vocab_begin;
    float *maximum = stage->inverse;
    RS_TRY(norm(stage, rows, s->x, w->norm));
    rs_product_forward(rows, hidden, stage->vocab, stage->normed, hidden, output_weight(stage, w),
        s->exponentials, stage->vocab, false);
    rs_loss_maximum(stage->threads, rows, stage->vocab, s->exponentials, maximum);
    RS_TRY(group_maximum(stage, maximum, rows));
    rs_loss_exponentials(stage->threads, rows, vocab_begin, stage->shape.vocab_end, s->targets,
        maximum, s->exponentials, s->sums);
    RS_TRY(group_sum(stage, s->sums, 2 * rows));
    *loss_sum = rs_loss_total(rows, s->sums);
    return RS_OK;
}

/* `dx` gets the gradient of the last layer's output. */
static rs_status loss_backward(const rs_stage *stage, const rs_stage_tensors *w,
    const rs_stage_tensors *g, int64_t rows, rs_slot *s, float scale, float *dx)
{
    int64_t hidden = stage->shape.model.hidden;
    float *dhead = stage->shape.model.tied ? g->embed : g->head;
    rs_loss_backward(stage->threads, rows, stage->shape.vocab_begin, stage->shape.vocab_end,
        s->targets, s->sums, scale, s->exponentials);
    RS_TRY(norm(stage, rows, s->x, w->norm));
    rs_product_weight_gradient(
        rows, hidden, stage->vocab, s->exponentials, stage->vocab, stage->normed, hidden, dhead);
    rs_product_input_gradient(rows, hidden, stage->vocab, s->exponentials, stage->vocab,
        output_weight(stage, w), stage->partial, hidden, false);
    RS_TRY(sum_partial(stage, rows));
    norm_backward(stage, rows, s->x, w->norm, false, dx, g->norm);
    return RS_OK;
}

/* The block whose weights are used after layer `l` in the forward pass (-1: the embedding), and
 * after it in the backward pass (stage->layers: the end); -1 if there is none. */
static int block_after(const rs_stage *stage, int64_t l)
{
    if (l + 1 < stage->layers)
        return layer_block(stage, l + 1);
    return stage->shape.last ? tail_block(stage) : -1;
}

static int block_before(const rs_stage *stage, int64_t l)
{
    return l > 0 ? layer_block(stage, l - 1) : -1;
}

static rs_status check_bytes(
    const rs_stage *stage, const char *what, const uint8_t *bytes, int64_t rows)
{
    int64_t vocab = stage->shape.model.vocab;
    if (vocab > UINT8_MAX)
        return RS_OK;
    for (int64_t r = 0; r < rows; r++)
        if (bytes[r] >= vocab)
            return rs_error_set(RS_ERR_ARGUMENT,
                "%s %" PRId64 " of the micro-batch is byte %d, the model's vocabulary has %" PRId64,
                what, r, bytes[r], vocab);
    return RS_OK;
}

static rs_status check_slot(const rs_stage *stage, int number)
{
    if (number < 0 || number >= stage->shape.slots)
        return rs_error_set(RS_ERR_ARGUMENT, "stage: slot %d, there are slots 0 to %d", number,
            stage->shape.slots - 1);
    return RS_OK;
}

rs_status rs_stage_forward(rs_stage *stage, const rs_stage_tensors *weights, int slot_number,
    int64_t batch, const uint8_t *tokens, const uint8_t *targets, const float *input, float *output,
    double *loss_sum)
{
    const rs_stage_shape *shape = &stage->shape;
    int64_t hidden = shape->model.hidden;
    RS_TRY(check_slot(stage, slot_number));
    if (batch < 0 || batch > shape->max_batch)
        return rs_error_set(RS_ERR_ARGUMENT,
            "stage: a micro-batch of %" PRId64 " sequences, 0 to %" PRId64 " fit", batch,
            shape->max_batch);
    int64_t rows = rows_of(stage, batch);
    size_t bytes = (size_t)(own_rows(stage, rows) * hidden) * sizeof(float);
    rs_slot *s = &stage->slots[slot_number];
    s->batch = batch;
    s->filled = false;
    /* Without layers, and at either end of the stage, x is the caller's or the slot's. */
    float *last = shape->last ? s->x : output;
    float *x = stage->layers > 0 ? s->layers[0].x : last;
    if (shape->last && rows > 0) {
        RS_TRY(check_bytes(stage, "target", targets, rows));
        memcpy(s->targets, targets, (size_t)rows);
    }
    if (shape->first) {
        RS_TRY(check_bytes(stage, "token", tokens, rows));
        if (rows > 0)
            memcpy(s->tokens, tokens, (size_t)rows);
        enter(stage, 0, block_after(stage, -1), RS_USE_WEIGHTS);
        rs_embed_forward(rows, hidden, tokens, weights->embed, shape->vocab_begin, shape->vocab_end,
            stage->partial);
        leave(stage, 0, RS_USE_WEIGHTS);
        RS_TRY(sum_partial(stage, rows));
        memcpy(x, own_part(stage, rows, stage->partial), bytes);
    } else if (bytes > 0) {
        memcpy(x, input, bytes);
    }
    for (int64_t l = 0; l < stage->layers; l++) {
        float *to = l + 1 < stage->layers ? s->layers[l + 1].x : last;
        enter_layer(stage, l, block_after(stage, l), RS_USE_WEIGHTS);
        RS_TRY(attention_forward(stage, &weights->layers[l], s, l));
        RS_TRY(feed_forward(stage, &weights->layers[l], slot_number, l, to));
        leave_layer(stage, l, RS_USE_WEIGHTS);
    }
    if (shape->last) {
        enter_tail(stage, -1, RS_USE_WEIGHTS);
        RS_TRY(loss_forward(stage, weights, rows, s, loss_sum));
        leave_tail(stage, RS_USE_WEIGHTS);
    }
    s->filled = true;
    return RS_OK;
}

rs_status rs_stage_backward(rs_stage *stage, const rs_stage_tensors *weights,
    const rs_stage_tensors *gradients, int slot_number, float scale, const float *output_gradient,
    float *input_gradient)
{
    const rs_stage_shape *shape = &stage->shape;
    int64_t hidden = shape->model.hidden;
    RS_TRY(check_slot(stage, slot_number));
    rs_slot *s = &stage->slots[slot_number];
    if (!s->filled)
        return rs_error_set(RS_ERR_ARGUMENT,
            "stage: slot %d holds no micro-batch whose forward pass is done", slot_number);
    s->filled = false;
    int64_t rows = rows_of(stage, s->batch);
    size_t bytes = (size_t)(own_rows(stage, rows) * hidden) * sizeof(float);
    float *dx = shape->first ? stage->stream : input_gradient;
    if (shape->last) {
        enter_tail(stage, block_before(stage, stage->layers), RS_USE_BOTH);
        RS_TRY(loss_backward(stage, weights, gradients, rows, s, scale, dx));
        leave_tail(stage, RS_USE_BOTH);
    } else if (bytes > 0) {
        memmove(dx, output_gradient, bytes);
    }
    for (int64_t l = stage->layers - 1; l >= 0; l--) {
        const rs_stage_layer *w = &weights->layers[l];
        const rs_stage_layer *g = &gradients->layers[l];
        enter_layer(stage, l, block_before(stage, l), RS_USE_BOTH);
        RS_TRY(recompute(stage, w, s, l));
        RS_TRY(feed_backward(stage, w, g, slot_number, l, scale, dx));
        RS_TRY(attention_backward(stage, w, g, s, l, dx));
        leave_layer(stage, l, RS_USE_BOTH);
    }
    if (shape->first) {
        const float *dy;
        RS_TRY(spread_gradient(stage, rows, dx, &dy));
        enter(stage, 0, -1, RS_USE_GRADIENTS);
        rs_embed_backward(
            rows, hidden, s->tokens, dy, shape->vocab_begin, shape->vocab_end, gradients->embed);
        leave(stage, 0, RS_USE_GRADIENTS);
    }
    return RS_OK;
}

void rs_stage_routed(const rs_stage *stage, int number, int64_t layer, rs_stage_routing *out)
{
    memset(out, 0, sizeof *out);
    if (rs_moe_has(&stage->shape, stage->shape.layer_begin + layer))
        rs_moe_routing(stage->moe, number, layer, out);
}

int64_t rs_stage_expert_bytes(const rs_stage *stage)
{
    return stage->moe != NULL ? rs_moe_bytes(stage->moe) : 0;
}
