/*
 * A decoder's tensors in a test's or benchmark's memory: the whole model, or what one stage of one
 * tp rank has of it, with the names and shapes of the space.
 */
#ifndef TESTS_DECODER_H
#define TESTS_DECODER_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/init.h"
#include "train/stage.h"

typedef enum side {
    ONE,
    HIDDEN,
    Q_ROWS,
    KV_ROWS,
    HEAD_DIM,
    FFN,
    VOCAB,
    ROUTED,
    EXPERTS,
    EXPERT_ROWS,
    SHARED_ROWS
} side;

/* DENSE and MLP_BIAS: layers without experts; SPARSE to SWITCH: layers with experts. */
typedef enum field_need {
    ALWAYS,
    QKV_BIAS,
    OUT_BIAS,
    QK_NORM,
    DENSE,
    MLP_BIAS,
    SPARSE,
    EXPERT, /* one for each expert */
    SHARED,
    SWITCH,
    EMBED,
    FINAL,
    HEAD
} need;

typedef struct field {
    const char *name;
    size_t offset; /* in rs_stage_layer, or in rs_stage_tensors from EMBED on */
    side rows;     /* ONE: a vector */
    side columns;
    need need;
    int decay;
} field;

/* The space's order. */
static const field fields[] = {
    {"embed.weight", offsetof(rs_stage_tensors, embed), VOCAB, HIDDEN, EMBED, 1},
    {"layers.attn_norm.weight", offsetof(rs_stage_layer, attn_norm), ONE, HIDDEN, ALWAYS, 0},
    {"layers.attn.q.weight", offsetof(rs_stage_layer, q), Q_ROWS, HIDDEN, ALWAYS, 1},
    {"layers.attn.k.weight", offsetof(rs_stage_layer, k), KV_ROWS, HIDDEN, ALWAYS, 1},
    {"layers.attn.v.weight", offsetof(rs_stage_layer, v), KV_ROWS, HIDDEN, ALWAYS, 1},
    {"layers.attn.q.bias", offsetof(rs_stage_layer, q_bias), ONE, Q_ROWS, QKV_BIAS, 0},
    {"layers.attn.k.bias", offsetof(rs_stage_layer, k_bias), ONE, KV_ROWS, QKV_BIAS, 0},
    {"layers.attn.v.bias", offsetof(rs_stage_layer, v_bias), ONE, KV_ROWS, QKV_BIAS, 0},
    {"layers.attn.q_norm.weight", offsetof(rs_stage_layer, q_norm), ONE, HEAD_DIM, QK_NORM, 0},
    {"layers.attn.k_norm.weight", offsetof(rs_stage_layer, k_norm), ONE, HEAD_DIM, QK_NORM, 0},
    {"layers.attn.o.weight", offsetof(rs_stage_layer, o), HIDDEN, Q_ROWS, ALWAYS, 1},
    {"layers.attn.o.bias", offsetof(rs_stage_layer, o_bias), ONE, HIDDEN, OUT_BIAS, 0},
    {"layers.mlp_norm.weight", offsetof(rs_stage_layer, mlp_norm), ONE, HIDDEN, ALWAYS, 0},
    {"layers.mlp.gate.weight", offsetof(rs_stage_layer, gate), FFN, HIDDEN, DENSE, 1},
    {"layers.mlp.up.weight", offsetof(rs_stage_layer, up), FFN, HIDDEN, DENSE, 1},
    {"layers.mlp.gate.bias", offsetof(rs_stage_layer, gate_bias), ONE, FFN, MLP_BIAS, 0},
    {"layers.mlp.up.bias", offsetof(rs_stage_layer, up_bias), ONE, FFN, MLP_BIAS, 0},
    {"layers.mlp.down.weight", offsetof(rs_stage_layer, down), HIDDEN, FFN, DENSE, 1},
    {"layers.mlp.down.bias", offsetof(rs_stage_layer, down_bias), ONE, HIDDEN, MLP_BIAS, 0},
    {"layers.router.weight", offsetof(rs_stage_layer, router), ROUTED, HIDDEN, SPARSE, 1},
    {"layers.experts.gate.weight", offsetof(rs_stage_layer, expert_gate), EXPERT_ROWS, HIDDEN,
        EXPERT, 1},
    {"layers.experts.up.weight", offsetof(rs_stage_layer, expert_up), EXPERT_ROWS, HIDDEN, EXPERT,
        1},
    {"layers.experts.down.weight", offsetof(rs_stage_layer, expert_down), HIDDEN, EXPERT_ROWS,
        EXPERT, 1},
    {"layers.shared.gate.weight", offsetof(rs_stage_layer, shared_gate), SHARED_ROWS, HIDDEN,
        SHARED, 1},
    {"layers.shared.up.weight", offsetof(rs_stage_layer, shared_up), SHARED_ROWS, HIDDEN, SHARED,
        1},
    {"layers.shared.down.weight", offsetof(rs_stage_layer, shared_down), HIDDEN, SHARED_ROWS,
        SHARED, 1},
    {"layers.shared.switch.weight", offsetof(rs_stage_layer, shared_switch), ONE, HIDDEN, SWITCH,
        1},
    {"norm.weight", offsetof(rs_stage_tensors, norm), ONE, HIDDEN, FINAL, 0},
    {"head.weight", offsetof(rs_stage_tensors, head), VOCAB, HIDDEN, HEAD, 1},
};
#define FIELDS ((int)(sizeof fields / sizeof *fields))

typedef struct decoder {
    rs_stage_tensors tensors;
    float *memory;
    int64_t elements;
} decoder;

/* Numbers that lists of ranges point at: [0] and [n], for one rank that has n experts. */
static const int64_t expert_numbers[17] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

/* All of `model` on one rank. */
static inline rs_stage_shape whole_shape(
    const rs_model *model, int64_t seq, int64_t max_batch, int slots)
{
    return (rs_stage_shape){.model = *model,
        .layer_end = model->layers,
        .first = true,
        .last = true,
        .q_end = model->heads,
        .kv_end = model->kv_heads,
        .ffn_end = model->ffn,
        .vocab_end = model->vocab,
        .shared_end = model->shared_ffn,
        .expert_end = model->expert_ffn,
        .tp_ranks = 1,
        .dispatch = {model->experts, 1, 1, 0, 0, &expert_numbers[0],
            &expert_numbers[model->experts <= 16 ? model->experts : 0]},
        .seq = seq,
        .max_batch = max_batch,
        .slots = slots};
}

static inline int per_layer(const field *f)
{
    return f->need < EMBED;
}

static inline side outer_of(const field *f)
{
    return f->need == EXPERT ? EXPERTS : ONE;
}

static inline int has_field(const rs_stage_shape *shape, const field *f)
{
    const rs_model *m = &shape->model;
    int experts = m->experts > 0;
    switch (f->need) {
    case ALWAYS:
        return 1;
    case QKV_BIAS:
        return m->qkv_bias;
    case OUT_BIAS:
        return m->out_bias;
    case QK_NORM:
        return m->qk_norm;
    case DENSE:
        return !experts || m->dense_first > 0;
    case MLP_BIAS:
        return m->mlp_bias && (!experts || m->dense_first > 0);
    case SPARSE:
    case EXPERT:
        return experts && m->dense_first < m->layers;
    case SHARED:
        return experts && m->dense_first < m->layers && m->shared_ffn > 0;
    case SWITCH:
        return experts && m->dense_first < m->layers && m->shared_gate;
    case EMBED:
        return shape->first || (shape->last && m->tied);
    case FINAL:
        return shape->last;
    case HEAD:
        return shape->last && !m->tied;
    }
    return 0;
}

/* The layers of the model that have a field of layers: those from first to end - 1. */
static inline void field_layers(
    const rs_stage_shape *shape, const field *f, int64_t *first, int64_t *end)
{
    const rs_model *m = &shape->model;
    *first = f->need >= SPARSE ? m->dense_first : 0;
    *end = m->experts > 0 && (f->need == DENSE || f->need == MLP_BIAS) ? m->dense_first : m->layers;
}

/* Whether the stage has the field in its layer `layer` (counted from its first). */
static inline int has_in_layer(const rs_stage_shape *shape, const field *f, int64_t layer)
{
    int64_t first, end;
    if (!has_field(shape, f) || !per_layer(f))
        return has_field(shape, f);
    field_layers(shape, f, &first, &end);
    return shape->layer_begin + layer >= first && shape->layer_begin + layer < end;
}

static inline void side_range(const rs_stage_shape *s, side of, int64_t *begin, int64_t *end)
{
    int64_t dim = s->model.head_dim;
    const int64_t ranges[][2] = {{0, 1}, {0, s->model.hidden}, {s->q_begin * dim, s->q_end * dim},
        {s->kv_begin * dim, s->kv_end * dim}, {0, dim}, {s->ffn_begin, s->ffn_end},
        {s->vocab_begin, s->vocab_end}, {0, s->model.experts},
        {s->dispatch.ep > 0 ? s->dispatch.begin[s->dispatch.ep_rank] : 0,
            s->dispatch.ep > 0 ? s->dispatch.end[s->dispatch.ep_rank] : 0},
        {s->expert_begin, s->expert_end}, {s->shared_begin, s->shared_end}};
    *begin = ranges[of][0];
    *end = ranges[of][1];
}

static inline int64_t field_elements(const rs_stage_shape *shape, const field *f)
{
    int64_t rows[2];
    int64_t columns[2];
    side_range(shape, f->rows, &rows[0], &rows[1]);
    side_range(shape, f->columns, &columns[0], &columns[1]);
    int64_t outer[2];
    side_range(shape, outer_of(f), &outer[0], &outer[1]);
    return (outer[1] - outer[0]) * (rows[1] - rows[0]) * (columns[1] - columns[0]);
}

/* Where the pointer to a field stands; `layer` counts from the stage's first. */
static inline float **field_place(const decoder *d, const field *f, int64_t layer)
{
    char *base = per_layer(f) ? (char *)&d->tensors.layers[layer] : (char *)&d->tensors;
    return (float **)(base + f->offset);
}

/* Zeroed memory, tensors in the order of the local concatenation, `gap` unused elements behind
 * each. */
static inline decoder decoder_create(const rs_stage_shape *shape, int64_t gap)
{
    decoder d = {0};
    int64_t layers = shape->layer_end - shape->layer_begin;
    d.tensors.layers = calloc((size_t)layers + 1, sizeof *d.tensors.layers);
    for (int fill = 0; fill < 2; fill++) {
        int64_t at = 0;
        for (int i = 0; i < FIELDS; i++) {
            if (i > 0 && per_layer(&fields[i]) && per_layer(&fields[i - 1]))
                continue; /* done with the first */
            for (int64_t l = 0; l < (per_layer(&fields[i]) ? layers : 1); l++)
                for (int j = i;
                     j == i || (j < FIELDS && per_layer(&fields[i]) && per_layer(&fields[j]));
                     j++) {
                    if (!has_in_layer(shape, &fields[j], l))
                        continue;
                    if (fill)
                        *field_place(&d, &fields[j], l) = d.memory + at;
                    at += field_elements(shape, &fields[j]) + gap;
                }
        }
        d.elements = at;
        if (!fill)
            d.memory = calloc((size_t)at + 1, sizeof *d.memory);
    }
    return d;
}

static inline void decoder_destroy(decoder *d)
{
    free(d->tensors.layers);
    free(d->memory);
}

/* Initial weights of the job with this seed. */
static inline rs_status decoder_init(uint64_t seed, const rs_stage_shape *shape, decoder *d)
{
    rs_stage_shape whole = whole_shape(&shape->model, 1, 1, 1);
    for (int i = 0; i < FIELDS; i++) {
        const field *f = &fields[i];
        if (!has_field(shape, f))
            continue;
        int64_t first = per_layer(f) ? shape->layer_begin : 0;
        int64_t last = per_layer(f) ? shape->layer_end : 1;
        for (int64_t l = first; l < last; l++) {
            if (!has_in_layer(shape, f, l - first))
                continue;
            rs_tensor tensor = {.name = f->name};
            rs_box box = {0};
            int64_t stride[RS_MAX_DIMS];
            int64_t begin;
            int64_t end;
            int n = 0;
            if (per_layer(f)) {
                field_layers(shape, f, &begin, &end);
                tensor.layer_first = begin;
                tensor.shape[n] = end - begin;
                box.offset[n] = l - begin;
                box.extent[n++] = 1;
            }
            for (int s = 0; s < 3; s++) {
                side of = s == 0 ? outer_of(f) : s == 1 ? f->rows : f->columns;
                if (of == ONE)
                    continue;
                side_range(&whole, of, &begin, &end);
                tensor.shape[n] = end;
                side_range(shape, of, &begin, &end);
                box.offset[n] = begin;
                box.extent[n++] = end - begin;
            }
            tensor.ndim = box.ndim = n;
            int64_t step = 1;
            for (int k = n - 1; k >= 0; k--) {
                stride[k] = step;
                step *= box.extent[k];
            }
            RS_TRY(rs_init_fill(seed, &tensor, &box, stride, *field_place(d, f, l - first)));
        }
    }
    return RS_OK;
}

#endif
