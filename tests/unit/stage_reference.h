/*
 * The decoder in double precision, written for reading: one token, one head, one number at a time.
 * The stage is held against its loss, and against its central differences.
 */
#ifndef TESTS_UNIT_STAGE_REFERENCE_H
#define TESTS_UNIT_STAGE_REFERENCE_H

#include <math.h>
#include <stdlib.h>

#include "decoder.h"

typedef struct reference {
    const rs_model *model;
    const decoder *weights; /* the whole model, float32, without gaps */
    double *values;         /* the same elements; a test may change one */
    int64_t seq;
} reference;

/* The weight that the float32 decoder has at `place`; NULL if it has none. */
static const double *at(const reference *ref, const float *place)
{
    return place != NULL ? ref->values + (place - ref->weights->memory) : NULL;
}

static void ref_norm(int64_t width, double eps, const double *x, const double *weight, double *out)
{
    double square = 0;
    for (int64_t i = 0; i < width; i++)
        square += x[i] * x[i];
    for (int64_t i = 0; i < width; i++)
        out[i] = x[i] / sqrt(square / (double)width + eps) * weight[i];
}

/* out [rows] (+)= W x + bias. */
static void ref_linear(int64_t rows, int64_t columns, const double *weight, const double *bias,
    const double *x, int add, double *out)
{
    for (int64_t r = 0; r < rows; r++) {
        double sum = bias != NULL ? bias[r] : 0;
        for (int64_t c = 0; c < columns; c++)
            sum += weight[r * columns + c] * x[c];
        out[r] = add ? out[r] + sum : sum;
    }
}

static void ref_rotate(const rs_model *m, int64_t position, double *head)
{
    int64_t half = m->head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double angle =
            (double)position * pow(m->rope_theta, -2.0 * (double)i / (double)m->head_dim);
        double a = head[i];
        double b = head[i + half];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + half] = b * cos(angle) + a * sin(angle);
    }
}

/* q, k, v of one token. */
static void ref_qkv(const reference *ref, const rs_stage_layer *w, int64_t position,
    const double *normed, double *q, double *k, double *v)
{
    const rs_model *m = ref->model;
    int64_t dim = m->head_dim;
    ref_linear(m->heads * dim, m->hidden, at(ref, w->q), at(ref, w->q_bias), normed, 0, q);
    ref_linear(m->kv_heads * dim, m->hidden, at(ref, w->k), at(ref, w->k_bias), normed, 0, k);
    ref_linear(m->kv_heads * dim, m->hidden, at(ref, w->v), at(ref, w->v_bias), normed, 0, v);
    for (int64_t h = 0; h < m->heads + m->kv_heads; h++) {
        double *head = h < m->heads ? q + h * dim : k + (h - m->heads) * dim;
        const double *weight = at(ref, h < m->heads ? w->q_norm : w->k_norm);
        if (m->qk_norm)
            ref_norm(dim, m->norm_eps, head, weight, head);
        ref_rotate(m, position, head);
    }
}

/* What query head h of token t gathers from the sequence's keys and values [seq, kv_heads * dim].
 */
static void ref_attend(const rs_model *m, int64_t t, int64_t h, const double *q, const double *k,
    const double *v, double *out)
{
    int64_t dim = m->head_dim;
    int64_t width = m->kv_heads * dim;
    int64_t column = h / (m->heads / m->kv_heads) * dim;
    double total = 0;
    for (int64_t i = 0; i < dim; i++)
        out[i] = 0;
    for (int64_t j = 0; j <= t; j++) {
        double score = 0;
        for (int64_t i = 0; i < dim; i++)
            score += q[h * dim + i] * k[j * width + column + i];
        double weight = exp(score / sqrt((double)dim));
        total += weight;
        for (int64_t i = 0; i < dim; i++)
            out[i] += weight * v[j * width + column + i];
    }
    for (int64_t i = 0; i < dim; i++)
        out[i] /= total;
}

static double *ref_room(int64_t count)
{
    return calloc((size_t)count + 1, sizeof(double));
}

static void ref_layer(const reference *ref, const rs_stage_layer *w, double *x)
{
    const rs_model *m = ref->model;
    int64_t hidden = m->hidden;
    int64_t q_width = m->heads * m->head_dim;
    int64_t kv_width = m->kv_heads * m->head_dim;
    double *normed = ref_room(hidden);
    double *q = ref_room(ref->seq * q_width);
    double *k = ref_room(ref->seq * kv_width);
    double *v = ref_room(ref->seq * kv_width);
    double *context = ref_room(q_width);
    double *gate = ref_room(m->ffn);
    double *up = ref_room(m->ffn);
    for (int64_t t = 0; t < ref->seq; t++) {
        ref_norm(hidden, m->norm_eps, x + t * hidden, at(ref, w->attn_norm), normed);
        ref_qkv(ref, w, t, normed, q + t * q_width, k + t * kv_width, v + t * kv_width);
        for (int64_t h = 0; h < m->heads; h++)
            ref_attend(m, t, h, q + t * q_width, k, v, context + h * m->head_dim);
        ref_linear(hidden, q_width, at(ref, w->o), at(ref, w->o_bias), context, 1, x + t * hidden);
        ref_norm(hidden, m->norm_eps, x + t * hidden, at(ref, w->mlp_norm), normed);
        ref_linear(m->ffn, hidden, at(ref, w->gate), at(ref, w->gate_bias), normed, 0, gate);
        ref_linear(m->ffn, hidden, at(ref, w->up), at(ref, w->up_bias), normed, 0, up);
        for (int64_t i = 0; i < m->ffn; i++)
            gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
        ref_linear(
            hidden, m->ffn, at(ref, w->down), at(ref, w->down_bias), gate, 1, x + t * hidden);
    }
    free(normed);
    free(q);
    free(k);
    free(v);
    free(context);
    free(gate);
    free(up);
}

/* The summed loss of one sequence. */
static double ref_loss(const reference *ref, const uint8_t *tokens, const uint8_t *targets)
{
    const rs_model *m = ref->model;
    const rs_stage_tensors *w = &ref->weights->tensors;
    int64_t hidden = m->hidden;
    double loss = 0;
    double *x = ref_room(ref->seq * hidden);
    double *logits = ref_room(m->vocab);
    for (int64_t t = 0; t < ref->seq; t++)
        for (int64_t i = 0; i < hidden; i++)
            x[t * hidden + i] = at(ref, w->embed)[tokens[t] * hidden + i];
    for (int64_t l = 0; l < m->layers; l++)
        ref_layer(ref, &w->layers[l], x);
    for (int64_t t = 0; t < ref->seq; t++) {
        double total = 0;
        ref_norm(hidden, m->norm_eps, x + t * hidden, at(ref, w->norm), x + t * hidden);
        ref_linear(m->vocab, hidden, at(ref, m->tied ? w->embed : w->head), NULL, x + t * hidden, 0,
            logits);
        for (int64_t i = 0; i < m->vocab; i++)
            total += exp(logits[i]);
        loss += log(total) - logits[targets[t]];
    }
    free(x);
    free(logits);
    return loss;
}

#endif
