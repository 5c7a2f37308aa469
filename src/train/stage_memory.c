/*
 * One block of memory for all that a stage needs, handed out in parts that begin on cache lines.
 * What is recomputed in the backward pass has one place, whatever the number of layers and
 * micro-batches in flight; the rest has one for each.
 */
#include "train/stage_memory.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/attention.h"
#include "train/kernels.h"

#define ALIGN 64 /* bytes; buffers start on cache lines */

/* Hands out parts of one block; with base NULL it only counts. */
typedef struct carver {
    char *base;
    int64_t used; /* bytes */
    bool overflow;
} carver;

static void *carve(carver *c, int64_t count, int64_t width, int64_t size)
{
    int64_t bytes;
    if (!rs_mul_fits(count, width, &bytes) || !rs_mul_fits(bytes, size, &bytes) ||
        bytes > INT64_MAX / 2 || !rs_add_fits(c->used, bytes + ALIGN, &bytes)) {
        c->overflow = true;
        return NULL;
    }
    void *out = c->base != NULL ? c->base + c->used : NULL;
    c->used = bytes / ALIGN * ALIGN;
    return out;
}

static float *carve_floats(carver *c, int64_t count, int64_t width)
{
    return carve(c, count, width, (int64_t)sizeof(float));
}

/* What attention makes of queries, keys and values. */
static void carve_mixed(const rs_stage *stage, carver *c, int64_t rows, rs_saved_layer *layer)
{
    layer->context = carve_floats(c, rows, stage->q);
    layer->lse = carve_floats(c, rows, stage->shape.q_end - stage->shape.q_begin);
}

/* What products make: queries, keys and values, the stream after attention, gate and up. */
static void carve_products(
    const rs_stage *stage, carver *c, int64_t rows, bool dense, rs_saved_layer *layer)
{
    const rs_stage_shape *shape = &stage->shape;
    int64_t both = stage->q + stage->kv_width;
    int64_t own = rs_ceil_div(rows, stage->rows.sp ? stage->rows.tp_ranks : 1);
    layer->qkv = carve_floats(c, rows, both + stage->kv_width);
    layer->raw = shape->model.qk_norm ? carve_floats(c, rows, both) : NULL;
    layer->middle = carve_floats(c, own, shape->model.hidden);
    layer->gate_up = dense ? carve_floats(c, rows, 2 * stage->ffn) : NULL;
}

static void carve_slot(const rs_stage *stage, carver *c, rs_slot *s)
{
    const rs_stage_shape *shape = &stage->shape;
    int64_t hidden = shape->model.hidden;
    int64_t rows = shape->max_batch * stage->rows.tokens;
    int64_t own = rs_ceil_div(rows, stage->rows.sp ? stage->rows.tp_ranks : 1);
    s->tokens = shape->first ? carve(c, rows, 1, 1) : NULL;
    s->targets = shape->last ? carve(c, rows, 1, 1) : NULL;
    for (int64_t l = 0; l < stage->layers; l++) {
        rs_saved_layer *layer = &s->layers[l];
        *layer = stage->again;
        layer->x = carve_floats(c, own, hidden);
        if (shape->recompute < RS_RECOMPUTE_SELECTIVE)
            carve_mixed(stage, c, rows, layer);
        if (shape->recompute < RS_RECOMPUTE_FULL)
            carve_products(stage, c, rows, !rs_moe_has(shape, shape->layer_begin + l), layer);
    }
    if (shape->last) {
        s->x = carve_floats(c, own, hidden);
        s->exponentials = carve_floats(c, rows, stage->vocab);
        s->sums = carve_floats(c, rows, 2);
    }
}

static void carve_all(rs_stage *stage, carver *c)
{
    const rs_stage_shape *shape = &stage->shape;
    int64_t hidden = shape->model.hidden;
    int64_t rows = shape->max_batch * stage->rows.tokens;
    int64_t own = rs_ceil_div(rows, stage->rows.sp ? stage->rows.tp_ranks : 1);
    int64_t whole = stage->rows.sequence.ranks > 1 ? shape->max_batch * shape->seq : 0;
    if (shape->recompute >= RS_RECOMPUTE_SELECTIVE)
        carve_mixed(stage, c, rows, &stage->again);
    if (shape->recompute >= RS_RECOMPUTE_FULL)
        carve_products(stage, c, rows, true, &stage->again);
    stage->dropped = carve_floats(c, shape->dropout > 0 ? own : 0, hidden);
    for (int i = 0; i < shape->slots; i++)
        carve_slot(stage, c, &stage->slots[i]);
    stage->rows.bounds = carve(c, rs_rows_bounds(shape), 1, (int64_t)sizeof *stage->rows.bounds);
    stage->rotation = carve_floats(c, stage->rows.tokens, shape->model.head_dim);
    stage->normed = carve_floats(c, rows, hidden);
    stage->partial = carve_floats(c, rows, hidden);
    stage->stream = carve_floats(c, own, hidden);
    stage->spread = carve_floats(c, stage->rows.sp ? rows : 0, hidden);
    stage->kv = carve_floats(c, whole, 2 * stage->kv_width);
    stage->dkv = carve_floats(c, whole, 2 * stage->kv_width);
    stage->kv_scratch = carve_floats(c, whole, 2 * stage->kv_width);
    stage->act = carve_floats(c, rows, stage->ffn);
    stage->dqkv = carve_floats(c, rows, stage->q + 2 * stage->kv_width);
    stage->dcontext = carve_floats(c, rows, stage->q);
    stage->inverse = carve_floats(c, rows, 1);
    stage->norm_scratch =
        carve_floats(c, rs_norm_scratch(rs_max64(hidden, shape->model.head_dim)), 1);
    stage->attention_scratch = carve_floats(c, stage->threads, rs_attention_scratch(shape->seq));
}

rs_status rs_stage_allocate(rs_stage *stage)
{
    carver c = {0};
    carve_all(stage, &c);
    if (c.overflow)
        return rs_error_set(RS_ERR_OVERFLOW, "stage: its working memory does not fit 64 bits");
    stage->bytes = c.used + ALIGN;
    stage->memory = rs_calloc((size_t)stage->bytes, 1);
    if (stage->memory == NULL)
        return rs_error_memory((size_t)stage->bytes);
    c = (carver){.base = (char *)stage->memory + (ALIGN - (uintptr_t)stage->memory % ALIGN)};
    carve_all(stage, &c);
    return RS_OK;
}
