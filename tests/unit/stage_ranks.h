/*
 * What tests of the stage share: random weights, parts of a decoder, one rank's run, and the
 * comparison with the reference's finite differences.
 */
#ifndef TESTS_UNIT_STAGE_RANKS_H
#define TESTS_UNIT_STAGE_RANKS_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "unit/stage_reference.h"

static float random_value(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / (float)(1 << 23) - 1.0f;
}

/* Weights large enough that every part of the model matters. */
static decoder random_decoder(const rs_stage_shape *shape, uint64_t seed)
{
    decoder d = decoder_create(shape, 0);
    for (int i = 0; i < FIELDS; i++)
        for (int64_t l = 0;
             has_field(shape, &fields[i]) && l < (per_layer(&fields[i]) ? shape->model.layers : 1);
             l++)
            for (int64_t e = 0;
                 has_in_layer(shape, &fields[i], l) && e < field_elements(shape, &fields[i]); e++)
                (*field_place(&d, &fields[i], l))[e] = strstr(fields[i].name, "norm") != NULL
                                                           ? 1.0f + 0.5f * random_value(&seed)
                                                           : 0.6f * random_value(&seed);
    return d;
}

static void random_bytes(uint64_t seed, int64_t vocab, int64_t count, uint8_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        random_value(&seed);
        out[i] = (uint8_t)((seed >> 33) % (uint64_t)vocab);
    }
}

/* Copies between a part of the whole model and the same part in a rank's memory; `add` adds to the
 * whole. */
static void copy_part(const decoder *whole, const rs_stage_shape *whole_of, const decoder *part,
    const rs_stage_shape *part_of, int f, bool to_part, bool add)
{
    const field *of = &fields[f];
    if (!has_field(part_of, of))
        return;
    int64_t rows[2];
    int64_t columns[2];
    int64_t outer[2];
    int64_t all_rows[2];
    int64_t all_columns[2];
    side_range(part_of, of->rows, &rows[0], &rows[1]);
    side_range(part_of, of->columns, &columns[0], &columns[1]);
    side_range(part_of, outer_of(of), &outer[0], &outer[1]);
    side_range(whole_of, of->rows, &all_rows[0], &all_rows[1]);
    side_range(whole_of, of->columns, &all_columns[0], &all_columns[1]);
    int64_t first = per_layer(of) ? part_of->layer_begin : 0;
    int64_t last = per_layer(of) ? part_of->layer_end : 1;
    for (int64_t l = first; l < last; l++) {
        if (!has_in_layer(part_of, of, l - first))
            continue;
        float *a = *field_place(whole, of, l);
        float *in_part = *field_place(part, of, l - first);
        for (int64_t o = outer[0]; o < outer[1]; o++)
            for (int64_t r = rows[0]; r < rows[1]; r++)
                for (int64_t c = columns[0]; c < columns[1]; c++, in_part++) {
                    float *in_whole = &a[(o * all_rows[1] + r) * all_columns[1] + c];
                    if (to_part)
                        *in_part = *in_whole;
                    else
                        *in_whole = add ? *in_whole + *in_part : *in_part;
                }
    }
}

static void slice(const decoder *whole, const rs_stage_shape *whole_of, const decoder *part,
    const rs_stage_shape *part_of)
{
    for (int f = 0; f < FIELDS; f++)
        copy_part(whole, whole_of, part, part_of, f, true, false);
}

/* Loss, the balance loss included, and gradients of one micro-batch on one rank. */
static double run_whole(const rs_stage_shape *shape, const decoder *weights,
    const decoder *gradients, int64_t batch, const uint8_t *tokens, const uint8_t *targets,
    float scale)
{
    rs_stage *stage;
    double loss;
    assert_int_equal(rs_stage_create(shape, NULL, &stage), RS_OK);
    assert_int_equal(
        rs_stage_forward(stage, &weights->tensors, 0, batch, tokens, targets, NULL, NULL, &loss),
        RS_OK);
    assert_int_equal(
        rs_stage_backward(stage, &weights->tensors, &gradients->tensors, 0, scale, NULL, NULL),
        RS_OK);
    for (int64_t l = 0; l < shape->layer_end - shape->layer_begin; l++) {
        rs_stage_routing routing;
        rs_stage_routed(stage, 0, l, &routing);
        loss += routing.balance;
    }
    rs_stage_destroy(stage);
    return loss;
}

/* Equal but for rounding, in proportion to the gradients of the tensor. */
static void assert_gradients_near(
    const rs_stage_shape *shape, const decoder *got, const decoder *wanted, double tolerance)
{
    for (int f = 0; f < FIELDS; f++) {
        if (!has_field(shape, &fields[f]))
            continue;
        for (int64_t l = 0; l < (per_layer(&fields[f]) ? shape->model.layers : 1); l++) {
            if (!has_in_layer(shape, &fields[f], l))
                continue;
            const float *a = *field_place(got, &fields[f], l);
            const float *b = *field_place(wanted, &fields[f], l);
            int64_t count = field_elements(shape, &fields[f]);
            double most = 0;
            for (int64_t i = 0; i < count; i++)
                most = fmax(most, fabs((double)b[i]));
            if (!(count == 0 || most > 1e-4))
                fail_msg("%s, layer %d: the gradient is too small to tell anything", fields[f].name,
                    (int)l);
            for (int64_t i = 0; i < count; i++)
                if (!(fabs((double)a[i] - (double)b[i]) <= tolerance * most))
                    fail_msg("%s, layer %d, element %d: %.9g, wanted %.9g", fields[f].name, (int)l,
                        (int)i, (double)a[i], (double)b[i]);
        }
    }
}

/* Loss against the reference, and every gradient against its central difference. */
static inline void check_reference(const rs_model *model, int64_t seq, int64_t batch)
{
    const float scale = 0.37f;
    const double step = 1e-4;
    rs_stage_shape shape = whole_shape(model, seq, batch, 1);
    decoder weights = random_decoder(&shape, 11);
    decoder gradients = decoder_create(&shape, 0);
    decoder differences = decoder_create(&shape, 0);
    uint8_t *tokens = malloc((size_t)(batch * seq));
    uint8_t *targets = malloc((size_t)(batch * seq));
    random_bytes(1, model->vocab, batch * seq, tokens);
    random_bytes(2, model->vocab, batch * seq, targets);
    double loss = run_whole(&shape, &weights, &gradients, batch, tokens, targets, scale);

    reference ref = {model, &weights, ref_room(weights.elements), seq};
    for (int64_t i = 0; i < weights.elements; i++)
        ref.values[i] = (double)weights.memory[i];
    double wanted = 0;
    for (int64_t b = 0; b < batch; b++)
        wanted += ref_loss(&ref, tokens + b * seq, targets + b * seq);
    assert_true(fabs(loss - wanted) <= 1e-5 * wanted);
    for (int64_t i = 0; i < weights.elements; i++) {
        double value = ref.values[i];
        double change = 0;
        for (int64_t b = 0; b < batch; b++) {
            ref.values[i] = value + step;
            change += ref_loss(&ref, tokens + b * seq, targets + b * seq);
            ref.values[i] = value - step;
            change -= ref_loss(&ref, tokens + b * seq, targets + b * seq);
        }
        ref.values[i] = value;
        differences.memory[i] = (float)(change / (2 * step) * (double)scale);
    }
    assert_gradients_near(&shape, &gradients, &differences, 2e-5);
    free(ref.values);
    free(tokens);
    free(targets);
    decoder_destroy(&weights);
    decoder_destroy(&gradients);
    decoder_destroy(&differences);
}

/* Range `rank` of `ranks` of `count` things by the ceil rule. */
static void deal(int64_t count, int ranks, int rank, int64_t *begin, int64_t *end)
{
    int64_t each = (count + ranks - 1) / ranks;
    *begin = rank * each < count ? rank * each : count;
    *end = *begin + each < count ? *begin + each : count;
}

/* The share of tensor-parallel rank `rank` of so many. */
static inline rs_stage_shape tp_shape(const rs_stage_shape *whole, int ranks, int rank)
{
    rs_stage_shape s = *whole;
    int64_t per_kv = s.model.heads / s.model.kv_heads;
    deal(s.model.heads, ranks, rank, &s.q_begin, &s.q_end);
    s.kv_begin = s.q_begin / per_kv;
    s.kv_end = s.q_begin < s.q_end ? (s.q_end - 1) / per_kv + 1 : s.kv_begin;
    deal(s.model.ffn, ranks, rank, &s.ffn_begin, &s.ffn_end);
    deal(s.model.vocab, ranks, rank, &s.vocab_begin, &s.vocab_end);
    return s;
}

#endif
