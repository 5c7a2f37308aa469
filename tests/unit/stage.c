/* The stage against a plain decoder in double precision, and against itself under other divisions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "decoder.h"
#include "train/kernels.h"
#include "support/meeting.h"
#include "unit/stage_ranks.h"

#define MOST_RANKS 4

static rs_model make_model(int64_t heads, int64_t kv_heads, int64_t ffn, int64_t vocab)
{
    rs_model m = {.name = "test",
        .layers = 3,
        .hidden = 10,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = 4,
        .ffn = ffn,
        .vocab = vocab,
        .tied = true,
        .norm_eps = 1e-5,
        .rope_theta = 100};
    return m;
}

static double largest(const decoder *d)
{
    double most = 0;
    for (int64_t i = 0; i < d->elements; i++)
        most = fmax(most, fabs((double)d->memory[i]));
    return most;
}

static void test_llama(void **state)
{
    (void)state;
    rs_model m = make_model(4, 2, 7, 11);
    check_reference(&m, 5, 2);
}

static void test_qwen2(void **state)
{
    (void)state;
    rs_model m = make_model(3, 1, 9, 5);
    m.tied = false;
    m.qkv_bias = true;
    check_reference(&m, 4, 1);
}

static void test_qwen3(void **state)
{
    (void)state;
    rs_model m = make_model(2, 2, 6, 13);
    m.qk_norm = true;
    m.hidden = 7;
    check_reference(&m, 6, 1);
}

static void test_every_tensor(void **state)
{
    (void)state;
    rs_model m = make_model(4, 2, 5, 6);
    m.layers = 2;
    m.tied = false;
    m.qkv_bias = m.out_bias = m.mlp_bias = m.qk_norm = true;
    check_reference(&m, 3, 2);
}

/* Longer than one tile of queries, and no multiple of it. */
static void test_long_sequence(void **state)
{
    (void)state;
    rs_model m = make_model(2, 1, 1, 3);
    m.layers = 1;
    m.hidden = 2;
    check_reference(&m, 131, 1);
}

/* A thread, which is a tp rank. */
typedef struct member {
    meeting *group;
    int rank;
    rs_stage_shape shape;
    const decoder *whole_weights;
    const rs_stage_shape *whole_of;
    int64_t batch;
    const uint8_t *tokens;
    const uint8_t *targets;
    decoder weights;
    decoder gradients;
    double loss;
    rs_status status;
} member;

static rs_status reduce(member *m, float *values, int64_t count, bool maximum)
{
    return meeting_reduce(m->group, m->rank, values, count, maximum);
}

static rs_status reduce_sum(void *context, float *values, int64_t count)
{
    return reduce(context, values, count, false);
}

static rs_status reduce_maximum(void *context, float *values, int64_t count)
{
    return reduce(context, values, count, true);
}

static void *run_member(void *argument)
{
    member *m = argument;
    rs_stage_tp tp = {.context = m, .sum = reduce_sum, .maximum = reduce_maximum};
    rs_stage *stage = NULL;
    m->weights = decoder_create(&m->shape, 0);
    m->gradients = decoder_create(&m->shape, 0);
    slice(m->whole_weights, m->whole_of, &m->weights, &m->shape);
    m->status = rs_stage_create(&m->shape, &tp, &stage);
    if (m->status == RS_OK)
        m->status = rs_stage_forward(
            stage, &m->weights.tensors, 0, m->batch, m->tokens, m->targets, NULL, NULL, &m->loss);
    if (m->status == RS_OK)
        m->status = rs_stage_backward(
            stage, &m->weights.tensors, &m->gradients.tensors, 0, 0.5f, NULL, NULL);
    rs_stage_destroy(stage);
    return NULL;
}

/* Tensors, or kv rows, of which several ranks have a part of the gradient. */
static bool summed(const field *f)
{
    return f->need == QK_NORM || f->rows == KV_ROWS || f->columns == KV_ROWS;
}

static void check_tp(const rs_model *model, int ranks)
{
    enum { SEQ = 6, BATCH = 2 };
    uint8_t tokens[SEQ * BATCH];
    uint8_t targets[SEQ * BATCH];
    random_bytes(3, model->vocab, SEQ * BATCH, tokens);
    random_bytes(4, model->vocab, SEQ * BATCH, targets);
    rs_stage_shape shape = whole_shape(model, SEQ, BATCH, 1);
    decoder weights = random_decoder(&shape, 5);
    decoder wanted = decoder_create(&shape, 0);
    decoder got = decoder_create(&shape, 0);
    double loss = run_whole(&shape, &weights, &wanted, BATCH, tokens, targets, 0.5f);

    meeting g = {.count = ranks};
    member members[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    pthread_barrier_init(&g.barrier, NULL, (unsigned)ranks);
    for (int r = 0; r < ranks; r++) {
        members[r] = (member){.group = &g,
            .rank = r,
            .shape = tp_shape(&shape, ranks, r),
            .whole_weights = &weights,
            .whole_of = &shape,
            .batch = BATCH,
            .tokens = tokens,
            .targets = targets};
        assert_int_equal(pthread_create(&threads[r], NULL, run_member, &members[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    pthread_barrier_destroy(&g.barrier);
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(members[r].status, RS_OK);
        assert_true(fabs(members[r].loss - loss) <= 1e-5 * loss);
        assert_true(members[r].loss == members[0].loss);
        for (int f = 0; f < FIELDS; f++)
            copy_part(&got, &shape, &members[r].gradients, &members[r].shape, f, false,
                summed(&fields[f]));
    }
    assert_gradients_near(&shape, &got, &wanted, 2e-5);
    /* What every rank has whole must be the same bits on each. */
    for (int r = 0; r < ranks; r++)
        for (int f = 0; f < FIELDS; f++) {
            const field *of = &fields[f];
            if (!has_field(&shape, of) || of->rows != ONE || of->columns != HIDDEN)
                continue;
            for (int64_t l = 0; l < (per_layer(of) ? model->layers : 1); l++)
                assert_memory_equal(*field_place(&members[r].gradients, of, l),
                    *field_place(&got, of, l), (size_t)model->hidden * sizeof(float));
        }
    for (int r = 0; r < ranks; r++) {
        decoder_destroy(&members[r].weights);
        decoder_destroy(&members[r].gradients);
    }
    decoder_destroy(&weights);
    decoder_destroy(&wanted);
    decoder_destroy(&got);
}

static void test_tensor_parallel(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        rs_model m = make_model(12, 4, 13, 19);
        check_tp(&m, ranks);
        m.tied = false;
        m.qkv_bias = m.out_bias = m.mlp_bias = m.qk_norm = true;
        check_tp(&m, ranks);
    }
    rs_model m = make_model(28, 4, 11, 8);
    m.qkv_bias = true;
    check_tp(&m, 3);
}

/* Ranks without heads, rows, vocabulary; more ranks than kv heads. */
static void test_empty_ranks(void **state)
{
    (void)state;
    rs_model m = make_model(2, 1, 5, 5);
    m.qk_norm = m.qkv_bias = m.mlp_bias = true;
    check_tp(&m, 4);
    m = make_model(6, 2, 1, 3);
    m.tied = false;
    check_tp(&m, 4);
}

#define MOST_STAGES 4

/* The layers over several stages, borders given, against one stage. */
static void check_pipeline(const rs_model *model, int stages, const int64_t *borders)
{
    enum { SEQ = 5, BATCH = 2 };
    uint8_t tokens[SEQ * BATCH];
    uint8_t targets[SEQ * BATCH];
    random_bytes(6, model->vocab, SEQ * BATCH, tokens);
    random_bytes(7, model->vocab, SEQ * BATCH, targets);
    size_t activations = (size_t)(SEQ * BATCH * model->hidden);
    rs_stage_shape shape = whole_shape(model, SEQ, BATCH, 1);
    decoder weights = random_decoder(&shape, 8);
    decoder wanted = decoder_create(&shape, 0);
    decoder got = decoder_create(&shape, 0);
    double wanted_loss = run_whole(&shape, &weights, &wanted, BATCH, tokens, targets, 0.5f);

    rs_stage *stage[MOST_STAGES];
    rs_stage_shape shapes[MOST_STAGES];
    decoder local[MOST_STAGES];
    decoder gradients[MOST_STAGES];
    float *between[MOST_STAGES + 1];
    double loss = 0;
    for (int p = 0; p < stages; p++) {
        shapes[p] = shape;
        shapes[p].layer_begin = borders[p];
        shapes[p].layer_end = borders[p + 1];
        shapes[p].first = p == 0;
        shapes[p].last = p == stages - 1;
        between[p] = malloc(activations * sizeof(float));
        local[p] = decoder_create(&shapes[p], 3);
        gradients[p] = decoder_create(&shapes[p], 1);
        slice(&weights, &shape, &local[p], &shapes[p]);
        assert_int_equal(rs_stage_create(&shapes[p], NULL, &stage[p]), RS_OK);
    }
    for (int p = 0; p < stages; p++)
        assert_int_equal(rs_stage_forward(stage[p], &local[p].tensors, 0, BATCH, tokens, targets,
                             p > 0 ? between[p - 1] : NULL, between[p], &loss),
            RS_OK);
    assert_true(fabs(loss - wanted_loss) <= 1e-6 * wanted_loss);
    for (int p = stages - 1; p >= 0; p--)
        assert_int_equal(rs_stage_backward(stage[p], &local[p].tensors, &gradients[p].tensors, 0,
                             0.5f, between[p], p > 0 ? between[p - 1] : NULL),
            RS_OK);
    for (int p = 0; p < stages; p++)
        for (int f = 0; f < FIELDS; f++)
            copy_part(&got, &shape, &gradients[p], &shapes[p], f, false, fields[f].need == EMBED);
    assert_gradients_near(&shape, &got, &wanted, 2e-5);
    for (int p = 0; p < stages; p++) {
        rs_stage_destroy(stage[p]);
        decoder_destroy(&local[p]);
        decoder_destroy(&gradients[p]);
        free(between[p]);
    }
    decoder_destroy(&weights);
    decoder_destroy(&wanted);
    decoder_destroy(&got);
}

static void test_pipeline(void **state)
{
    (void)state;
    rs_model m = make_model(4, 2, 7, 11);
    check_pipeline(&m, 2, (int64_t[]){0, 2, 3});
    check_pipeline(&m, 3, (int64_t[]){0, 1, 2, 3});
    m.tied = false;
    m.qkv_bias = m.mlp_bias = m.qk_norm = true;
    check_pipeline(&m, 2, (int64_t[]){0, 1, 3});
    check_pipeline(&m, 4, (int64_t[]){0, 0, 3, 3, 3});
}

/* Two micro-batches in flight, the second shorter, then one of none: the gradients of each alone.
 */
static void test_slots(void **state)
{
    (void)state;
    enum { SEQ = 4, BATCH = 3 };
    uint8_t tokens[2 * SEQ * BATCH];
    uint8_t targets[2 * SEQ * BATCH];
    rs_model m = make_model(4, 2, 7, 11);
    random_bytes(9, m.vocab, 2 * SEQ * BATCH, tokens);
    random_bytes(10, m.vocab, 2 * SEQ * BATCH, targets);
    rs_stage_shape shape = whole_shape(&m, SEQ, BATCH, 2);
    decoder weights = random_decoder(&shape, 12);
    decoder wanted = decoder_create(&shape, 0);
    decoder got = decoder_create(&shape, 0);
    const uint8_t *second = tokens + SEQ * BATCH;
    const uint8_t *second_targets = targets + SEQ * BATCH;
    double losses[2];
    losses[0] = run_whole(&shape, &weights, &wanted, BATCH, tokens, targets, 0.5f);
    losses[1] = run_whole(&shape, &weights, &wanted, 1, second, second_targets, 0.5f);

    rs_stage *stage;
    double loss = -1;
    const rs_stage_tensors *w = &weights.tensors;
    assert_int_equal(rs_stage_create(&shape, NULL, &stage), RS_OK);
    assert_int_equal(
        rs_stage_forward(stage, w, 0, BATCH, tokens, targets, NULL, NULL, &loss), RS_OK);
    assert_true(loss == losses[0]);
    assert_int_equal(
        rs_stage_forward(stage, w, 1, 1, second, second_targets, NULL, NULL, &loss), RS_OK);
    assert_true(loss == losses[1]);
    assert_int_equal(rs_stage_backward(stage, w, &got.tensors, 0, 0.5f, NULL, NULL), RS_OK);
    assert_int_equal(rs_stage_forward(stage, w, 0, 0, NULL, NULL, NULL, NULL, &loss), RS_OK);
    assert_true(loss == 0);
    assert_int_equal(rs_stage_backward(stage, w, &got.tensors, 1, 0.5f, NULL, NULL), RS_OK);
    assert_int_equal(rs_stage_backward(stage, w, &got.tensors, 0, 0.5f, NULL, NULL), RS_OK);
    assert_memory_equal(got.memory, wanted.memory, (size_t)got.elements * sizeof(float));
    assert_true(largest(&got) > 0);
    rs_stage_destroy(stage);
    decoder_destroy(&weights);
    decoder_destroy(&wanted);
    decoder_destroy(&got);
}

static rs_status no_sum(void *context, float *values, int64_t count)
{
    (void)values;
    (void)count;
    return --*(int *)context < 0 ? RS_ERR_PEER : RS_OK;
}

/* Whichever reduction fails, its status comes back. */
static void test_failing_group(void **state)
{
    (void)state;
    enum { SEQ = 3 };
    uint8_t bytes[SEQ] = {1, 2, 3};
    rs_model m = make_model(2, 1, 4, 5);
    rs_stage_shape shape = whole_shape(&m, SEQ, 1, 1);
    decoder weights = random_decoder(&shape, 13);
    decoder gradients = decoder_create(&shape, 0);
    int left = 0;
    rs_stage_tp tp = {.context = &left, .sum = no_sum, .maximum = no_sum};
    rs_stage *stage;
    double loss;
    int failures = 0;
    assert_int_equal(rs_stage_create(&shape, &tp, &stage), RS_OK);
    for (int n = 0;; n++) {
        left = n;
        rs_status status =
            rs_stage_forward(stage, &weights.tensors, 0, 1, bytes, bytes, NULL, NULL, &loss);
        if (status == RS_OK)
            status =
                rs_stage_backward(stage, &weights.tensors, &gradients.tensors, 0, 1, NULL, NULL);
        if (status == RS_OK)
            break;
        assert_int_equal(status, RS_ERR_PEER);
        failures++;
    }
    assert_int_equal(failures, 1 + 2 * 3 + 2 + 1 + 2 * 3);
    rs_stage_destroy(stage);
    decoder_destroy(&weights);
    decoder_destroy(&gradients);
}

static void test_refusals(void **state)
{
    (void)state;
    rs_model m = make_model(4, 2, 7, 11);
    rs_stage_shape good = whole_shape(&m, 4, 1, 1);
    rs_stage *stage;
    double loss;
    rs_stage_shape bad = good;
    bad.q_end = 2;
    assert_int_equal(rs_stage_create(&bad, NULL, &stage), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "heads 0..2 of groups of 2"));
    bad = good;
    bad.layer_end = 4;
    assert_int_equal(rs_stage_create(&bad, NULL, &stage), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "layers 0..4"));
    bad = good;
    bad.model.head_dim = 3;
    assert_int_equal(rs_stage_create(&bad, NULL, &stage), RS_ERR_ARGUMENT);
    bad = good;
    bad.slots = 0;
    assert_int_equal(rs_stage_create(&bad, NULL, &stage), RS_ERR_ARGUMENT);
    bad = good;
    bad.max_batch = INT64_C(1) << 40;
    assert_int_equal(rs_stage_create(&bad, NULL, &stage), RS_ERR_UNSUPPORTED);

    uint8_t bytes[4] = {1, 2, 3, 11};
    uint8_t fine[4] = {1, 2, 3, 10};
    decoder weights = random_decoder(&good, 14);
    const rs_stage_tensors *w = &weights.tensors;
    assert_int_equal(rs_stage_create(&good, NULL, &stage), RS_OK);
    assert_int_equal(
        rs_stage_forward(stage, w, 0, 1, bytes, fine, NULL, NULL, &loss), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "token 3"));
    assert_int_equal(
        rs_stage_forward(stage, w, 0, 1, fine, bytes, NULL, NULL, &loss), RS_ERR_ARGUMENT);
    assert_int_equal(rs_stage_backward(stage, w, w, 0, 1, NULL, NULL), RS_ERR_ARGUMENT);
    assert_int_equal(
        rs_stage_forward(stage, w, 1, 1, fine, fine, NULL, NULL, &loss), RS_ERR_ARGUMENT);
    assert_int_equal(
        rs_stage_forward(stage, w, 0, 2, fine, fine, NULL, NULL, &loss), RS_ERR_ARGUMENT);
    rs_stage_destroy(stage);
    rs_stage_destroy(NULL);
    decoder_destroy(&weights);
}

/* Whichever allocation fails: an error, and nothing left behind (the leak checker looks). */
static void test_no_memory(void **state)
{
    (void)state;
    rs_model m = make_model(4, 2, 7, 11);
    rs_stage_shape shape = whole_shape(&m, 4, 1, 3);
    rs_stage *stage = NULL;
    size_t n = 0;
    for (;;) {
        rs_alloc_fail_at(++n);
        rs_status status = rs_stage_create(&shape, NULL, &stage);
        if (status == RS_OK)
            break;
        assert_int_equal(status, RS_ERR_NO_MEMORY);
        assert_null(stage);
    }
    rs_alloc_fail_at(0);
    assert_int_equal(n, 1 + 1 + 3 + 1 + 1);
    rs_stage_destroy(stage);
}

int main(void)
{
    rs_product_set_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_every_tensor),
        cmocka_unit_test(test_long_sequence),
        cmocka_unit_test(test_tensor_parallel),
        cmocka_unit_test(test_empty_ranks),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_failing_group),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
