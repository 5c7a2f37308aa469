/*
 * The decoder in double precision, written for reading: one token, one head, one number at a time.
 * The stage is held against its loss, and against its central differences.
 */
#ifndef TESTS_UNIT_STAGE_REFERENCE_H
#define TESTS_UNIT_STAGE_REFERENCE_H

#include <math.h>
#include <stdbool.h>
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

/* out += factor * down(silu(gate x) * up x). */
static void ref_ffn(int64_t hidden, int64_t rows, const double *gate, const double *gate_bias,
    const double *up, const double *up_bias, const double *down, double factor, const double *x,
    double *out)
{
    double *a = ref_room(rows);
    double *b = ref_room(rows);
    double *y = ref_room(hidden);
    ref_linear(rows, hidden, gate, gate_bias, x, 0, a);
    ref_linear(rows, hidden, up, up_bias, x, 0, b);
    for (int64_t i = 0; i < rows; i++)
        a[i] = a[i] / (1 + exp(-a[i])) * b[i];
    ref_linear(hidden, rows, down, NULL, a, 0, y);
    for (int64_t i = 0; i < hidden; i++)
        out[i] += factor * y[i];
    free(a);
    free(b);
    free(y);
}

/* One token through router and experts; p gets the probabilities, n counts the choices. */
static void ref_experts(const reference *ref, const rs_stage_layer *w, const double *normed,
    double *p, double *n, double *out)
{
    const rs_model *m = ref->model;
    int64_t size = m->expert_ffn * m->hidden;
    double total = 0;
    double chosen = 0;
    double best[16];
    int which[16];
    ref_linear(m->experts, m->hidden, at(ref, w->router), NULL, normed, 0, p);
    for (int64_t e = 0; e < m->experts; e++)
        total += p[e] = exp(p[e]);
    for (int64_t e = 0; e < m->experts; e++)
        p[e] /= total;
    for (int64_t j = 0; j < m->experts_per_token; j++) {
        best[j] = -1;
        for (int e = 0; e < m->experts; e++) {
            bool taken = false;
            for (int64_t i = 0; i < j; i++)
                taken = taken || which[i] == e;
            if (!taken && p[e] > best[j]) {
                best[j] = p[e];
                which[j] = e;
            }
        }
        chosen += best[j];
    }
    for (int64_t j = 0; j < m->experts_per_token; j++) {
        int e = which[j];
        n[e] += 1;
        ref_ffn(m->hidden, m->expert_ffn, at(ref, w->expert_gate) + e * size, NULL,
            at(ref, w->expert_up) + e * size, NULL, at(ref, w->expert_down) + e * size,
            m->norm_topk ? best[j] / chosen : best[j], normed, out);
    }
    if (m->shared_ffn > 0) {
        double open = 0;
        if (m->shared_gate)
            ref_linear(1, m->hidden, at(ref, w->shared_switch), NULL, normed, 0, &open);
        ref_ffn(m->hidden, m->shared_ffn, at(ref, w->shared_gate), NULL, at(ref, w->shared_up),
            NULL, at(ref, w->shared_down), m->shared_gate ? 1 / (1 + exp(-open)) : 1, normed, out);
    }
}

/* Returns the layer's balance loss, summed over the sequence's tokens. */
static double ref_layer(const reference *ref, const rs_stage_layer *w, int64_t layer, double *x)
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
    bool sparse = rs_model_has_experts(m, layer);
    double *p = ref_room(m->experts);
    double *mass = ref_room(m->experts);
    double *n = ref_room(m->experts);
    double balance = 0;
    for (int64_t t = 0; t < ref->seq; t++) {
        ref_norm(hidden, m->norm_eps, x + t * hidden, at(ref, w->attn_norm), normed);
        ref_qkv(ref, w, t, normed, q + t * q_width, k + t * kv_width, v + t * kv_width);
        for (int64_t h = 0; h < m->heads; h++)
            ref_attend(m, t, h, q + t * q_width, k, v, context + h * m->head_dim);
        ref_linear(hidden, q_width, at(ref, w->o), at(ref, w->o_bias), context, 1, x + t * hidden);
        ref_norm(hidden, m->norm_eps, x + t * hidden, at(ref, w->mlp_norm), normed);
        if (sparse) {
            ref_experts(ref, w, normed, p, n, x + t * hidden);
            for (int64_t e = 0; e < m->experts; e++)
                mass[e] += p[e];
            continue;
        }
        ref_ffn(hidden, m->ffn, at(ref, w->gate), at(ref, w->gate_bias), at(ref, w->up),
            at(ref, w->up_bias), at(ref, w->down), 1, normed, x + t * hidden);
        for (int64_t i = 0; w->down_bias != NULL && i < hidden; i++)
            x[t * hidden + i] += at(ref, w->down_bias)[i];
    }
    for (int64_t e = 0; sparse && e < m->experts; e++)
        balance += m->aux_loss / (double)(m->layers - m->dense_first) * (double)m->experts * n[e] /
                   (double)ref->seq * mass[e];
    free(normed);
    free(q);
    free(k);
    free(v);
    free(context);
    free(p);
    free(mass);
    free(n);
    return balance;
}

/* The summed loss of one sequence, the balance loss included. */
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
        loss += ref_layer(ref, &w->layers[l], l, x);
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
