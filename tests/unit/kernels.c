/* The decoder's kernels: accuracy at the edges, empty sides, and bits that no number of threads
 * changes. Their place in the whole is tested in stage.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/attention.h"
#include "train/kernels.h"
#include "train/loss.h"
#include "train/simd.h"

static void fill(uint64_t seed, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        out[i] = (float)(seed >> 40) / (float)(1 << 23) - 1.0f;
    }
}

static void test_exp(void **state)
{
    (void)state;
    for (double x = -87; x <= 88; x += 0.00137) {
        double wanted = exp((double)(float)x);
        assert_true(fabs((double)rs_exp((float)x) - wanted) <= 2.4e-7 * wanted);
    }
    assert_true(rs_exp(0) == 1);
    assert_true(rs_exp(-1000) == rs_exp(-87));
    assert_true(rs_exp(-INFINITY) > 0 && rs_exp(-INFINITY) < 1e-37f);
    assert_true(rs_exp(INFINITY) == rs_exp(88));
    assert_true(isnan(rs_exp(NAN)));
}

static void test_empty_products(void **state)
{
    (void)state;
    float y[6] = {1, 2, 3, 4, 5, 6};
    float w[6] = {0};
    rs_product_forward(2, 0, 2, NULL, 0, NULL, y, 3, true);
    assert_true(y[0] == 1 && y[4] == 5);
    rs_product_forward(2, 0, 2, NULL, 0, NULL, y, 3, false);
    assert_true(y[0] == 0 && y[1] == 0 && y[2] == 3 && y[3] == 0 && y[4] == 0 && y[5] == 6);
    rs_product_forward(2, 3, 0, y, 3, w, y, 3, false);
    assert_true(y[2] == 3);
    rs_product_weight_gradient(0, 2, 3, NULL, 3, NULL, 2, y);
    assert_true(y[2] == 3);
    rs_product_input_gradient(1, 3, 0, NULL, 0, NULL, y, 3, false);
    assert_true(y[2] == 0);
}

/* Feed-forward values far beyond exp's range stay what they should. */
static void test_swiglu_extremes(void **state)
{
    (void)state;
    float in[8] = {200, -200, 1e30f, -1e30f, 2, 2, 1, 1};
    float act[4];
    rs_swiglu_forward(1, 1, 4, in, act);
    assert_true(act[0] == 400);
    assert_true(fabsf(act[1]) < 1e-30f);
    assert_true(act[2] == 1e30f);
    assert_true(isfinite(act[3]));
    float gradient[4] = {1, 1, 1, 1};
    rs_swiglu_backward(1, 1, 4, in, gradient);
    assert_true(in[0] == 2 && in[4] == 200);
    assert_true(fabsf(in[1]) < 1e-30f);
    for (int i = 0; i < 8; i++)
        assert_true(isfinite(in[i]));
}

/* Logits far apart; and the vocabulary in three slices, one empty, against the whole. */
static void test_loss(void **state)
{
    (void)state;
    enum { ROWS = 40, VOCAB = 9 };
    static const int64_t borders[4] = {0, 4, 4, VOCAB};
    float logits[ROWS * VOCAB];
    float whole[ROWS * VOCAB];
    float maximum[ROWS];
    float sums[2 * ROWS];
    uint8_t targets[ROWS];
    fill(1, ROWS * VOCAB, logits);
    for (int r = 0; r < ROWS; r++) {
        targets[r] = (uint8_t)(r * 5 % VOCAB);
        logits[r * VOCAB + r % VOCAB] += r % 2 == 0 ? 1e4f : -1e4f;
    }
    memcpy(whole, logits, sizeof whole);
    rs_loss_maximum(1, ROWS, VOCAB, whole, maximum);
    rs_loss_exponentials(1, ROWS, 0, VOCAB, targets, maximum, whole, sums);
    double wanted = 0;
    for (int r = 0; r < ROWS; r++) {
        double total = 0;
        for (int j = 0; j < VOCAB; j++)
            total += exp((double)logits[r * VOCAB + j] - (double)maximum[r]);
        wanted += log(total) + (double)maximum[r] - (double)logits[r * VOCAB + targets[r]];
    }
    double loss = rs_loss_total(ROWS, sums);
    assert_true(fabs(loss - wanted) <= 1e-6 * wanted);
    rs_loss_backward(1, ROWS, 0, VOCAB, targets, sums, 0.5f, whole);

    float part[3][ROWS * VOCAB];
    float part_maximum[3][ROWS];
    float part_sums[3][2 * ROWS];
    for (int p = 0; p < 3; p++) {
        int64_t width = borders[p + 1] - borders[p];
        for (int r = 0; r < ROWS; r++)
            memcpy(part[p] + r * width, logits + r * VOCAB + borders[p], (size_t)width * 4);
        rs_loss_maximum(1, ROWS, width, part[p], part_maximum[p]);
    }
    for (int r = 0; r < ROWS; r++)
        assert_true(
            fmaxf(fmaxf(part_maximum[0][r], part_maximum[1][r]), part_maximum[2][r]) == maximum[r]);
    for (int p = 0; p < 3; p++)
        rs_loss_exponentials(
            1, ROWS, borders[p], borders[p + 1], targets, maximum, part[p], part_sums[p]);
    for (int i = 0; i < 2 * ROWS; i++) {
        float sum = part_sums[0][i] + part_sums[1][i] + part_sums[2][i];
        assert_true(fabsf(sum - sums[i]) <= 1e-6f * fabsf(sums[i]));
    }
    for (int p = 0; p < 3; p++) {
        int64_t width = borders[p + 1] - borders[p];
        rs_loss_backward(1, ROWS, borders[p], borders[p + 1], targets, sums, 0.5f, part[p]);
        for (int r = 0; r < ROWS; r++)
            assert_memory_equal(
                part[p] + r * width, whole + r * VOCAB + borders[p], (size_t)width * 4);
    }
}

/* A NaN must not vanish on its way to the loss. */
static void test_nan_loss(void **state)
{
    (void)state;
    float logits[4] = {1, NAN, 2, 0};
    float maximum;
    float sums[2];
    uint8_t target = 0;
    rs_loss_maximum(1, 1, 4, logits, &maximum);
    rs_loss_exponentials(1, 1, 0, 4, &target, &maximum, logits, sums);
    assert_true(isnan(rs_loss_total(1, sums)));
}

#define ROWS 150
#define WIDTH 70

static void norm_with(int threads, float *out)
{
    static float x[ROWS * WIDTH];
    static float dy[ROWS * WIDTH];
    static float y[ROWS * WIDTH];
    float weight[WIDTH];
    float inverse[ROWS];
    float *scratch = malloc((size_t)rs_norm_scratch(WIDTH) * sizeof *scratch);
    fill(1, ROWS * WIDTH, x);
    fill(2, ROWS * WIDTH, dy);
    fill(3, WIDTH, weight);
    rs_norm_forward(threads, ROWS, WIDTH, x, WIDTH, weight, 1e-5f, y, WIDTH, inverse);
    memcpy(out, y, sizeof y);
    memset(out + ROWS * WIDTH, 0, WIDTH * sizeof *out);
    rs_norm_backward(threads, ROWS, WIDTH, x, WIDTH, weight, inverse, dy, WIDTH, true, out, WIDTH,
        out + ROWS * WIDTH, scratch);
    rs_add_rows(threads, ROWS, WIDTH, dy, WIDTH, out + ROWS * WIDTH);
    free(scratch);
}

static void attention_with(int threads, float *out)
{
    enum { SEQ = ROWS / 2, DIM = 10, LD = (5 + 2 * 2) * DIM };
    static float qkv[ROWS * LD];
    static float dout[ROWS * 5 * DIM];
    static float lse[ROWS * 5];
    rs_attention shape = {2, {SEQ, 1, 0}, DIM, 1, 6, 0, 2, 3, LD, LD};
    float *scratch = malloc((size_t)(threads * rs_attention_scratch(SEQ)) * sizeof *scratch);
    fill(1, ROWS * LD, qkv);
    fill(2, ROWS * 5 * DIM, dout);
    float *dqkv = out + (size_t)ROWS * 5 * DIM;
    rs_attention_forward(threads, &shape, qkv, qkv + 5 * DIM, out, lse, scratch);
    rs_attention_backward(
        threads, &shape, qkv, qkv + 5 * DIM, out, lse, dout, dqkv, dqkv + 5 * DIM, scratch);
    free(scratch);
}

static void test_threads(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* it does not see how OpenMP's threads wait for each other */
#endif
    size_t bytes = (size_t)ROWS * 300 * sizeof(float);
    float *one = calloc(1, bytes);
    float *three = calloc(1, bytes);
    norm_with(1, one);
    norm_with(3, three);
    assert_memory_equal(one, three, bytes);
    attention_with(1, one);
    attention_with(3, three);
    assert_memory_equal(one, three, bytes);
    assert_true(one[7] != 0 && one[(size_t)ROWS * 50 + 7] != 0);
    free(one);
    free(three);
}

static void test_rotation(void **state)
{
    (void)state;
    enum { SEQ = 3, DIM = 6, HEADS = 2 };
    float table[SEQ * DIM];
    float x[2 * SEQ * HEADS * DIM];
    float y[2 * SEQ * HEADS * DIM];
    rs_rotation_table(0, SEQ, DIM, 10000, table);
    rs_rotation_table(1, 1, DIM, 10000, y);
    assert_memory_equal(y, table + DIM, DIM * sizeof *table);
    fill(4, 2 * SEQ * HEADS * DIM, x);
    memcpy(y, x, sizeof y);
    rs_rotate(1, 2 * SEQ, SEQ, HEADS, DIM, table, 1, y, HEADS * DIM);
    /* Position 0 stands still; the second sequence begins at position 0 again. */
    assert_memory_equal(x, y, HEADS * DIM * sizeof *x);
    assert_memory_equal(x + SEQ * HEADS * DIM, y + SEQ * HEADS * DIM, HEADS * DIM * sizeof *x);
    double angle = 2 * pow(10000, -2.0 / 6);
    const float *in = x + 2 * HEADS * DIM;
    assert_true(fabs((double)y[2 * HEADS * DIM + 1] -
                     ((double)in[1] * cos(angle) - (double)in[4] * sin(angle))) < 1e-6);
    assert_true(fabs((double)y[2 * HEADS * DIM + 4] -
                     ((double)in[4] * cos(angle) + (double)in[1] * sin(angle))) < 1e-6);
    rs_rotate(1, 2 * SEQ, SEQ, HEADS, DIM, table, -1, y, HEADS * DIM);
    for (int i = 0; i < 2 * SEQ * HEADS * DIM; i++)
        assert_true(fabsf(x[i] - y[i]) < 1e-6f);
}

int main(void)
{
    rs_product_set_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_empty_products),
        cmocka_unit_test(test_swiglu_extremes),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_nan_loss),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_rotation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
