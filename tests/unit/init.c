/* Initial weights: values of init.h's definition as numpy computes them, boxes against the whole.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "train/init.h"

static rs_tensor make_tensor(const char *name, int ndim, int64_t a, int64_t b, int64_t c)
{
    return (rs_tensor){.name = name, .ndim = ndim, .shape = {a, b, c}};
}

static void fill_whole(uint64_t seed, const rs_tensor *tensor, float *out)
{
    rs_box box = rs_box_whole(tensor->ndim, tensor->shape);
    int64_t stride[RS_MAX_DIMS];
    int64_t step = 1;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= tensor->shape[d];
    }
    assert_int_equal(rs_init_fill(seed, tensor, &box, stride, out), RS_OK);
}

static void test_definition(void **state)
{
    (void)state;
    float values[3 * 7 * 9];
    rs_tensor t = make_tensor("embed.weight", 2, 4, 5, 0);
    fill_whole(1, &t, values);
    assert_true(values[0] == -0x1.4a372ap-7f);
    assert_true(values[1] == -0x1.268906p-7f);
    assert_true(values[2] == -0x1.bc3c84p-11f);
    assert_true(values[3] == 0x1.c73c24p-7f);
    assert_true(values[3 * 5 + 4] == 0x1.29b474p-8f);
    t = make_tensor("layers.attn.o.weight", 3, 3, 7, 9);
    fill_whole(0xdeadbeefcafef00du, &t, values);
    assert_true(values[0] == -0x1.b8a402p-8f);
    assert_true(values[63 + 2 * 9 + 3] == -0x1.7ef474p-7f);
    assert_true(values[2 * 63 + 6 * 9 + 8] == 0x1.dcedecp-8f);
}

static void test_constants(void **state)
{
    (void)state;
    float values[6] = {0};
    rs_tensor t = make_tensor("layers.attn.q_norm.weight", 2, 2, 3, 0);
    fill_whole(1, &t, values);
    for (int i = 0; i < 6; i++)
        assert_true(values[i] == 1);
    t.name = "layers.mlp.up.bias";
    fill_whole(1, &t, values);
    for (int i = 0; i < 6; i++)
        assert_true(values[i] == 0);
}

static void test_spread(void **state)
{
    (void)state;
    int64_t count = 400 * 500;
    float *values = malloc((size_t)count * sizeof *values);
    static const struct {
        const char *name;
        int64_t layers;
        double std;
    } cases[] = {{"layers.mlp.gate.weight", 8, 0.02}, {"layers.mlp.down.weight", 8, 0.005},
        {"layers.attn.o.weight", 2, 0.01}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        rs_tensor t = make_tensor(cases[c].name, 3, cases[c].layers, 400 / cases[c].layers, 500);
        double sum = 0;
        double square = 0;
        fill_whole(3, &t, values);
        for (int64_t i = 0; i < count; i++) {
            sum += (double)values[i];
            square += (double)values[i] * (double)values[i];
        }
        assert_true(fabs(sum / (double)count) < 0.01 * cases[c].std);
        assert_true(fabs(sqrt(square / (double)count) / cases[c].std - 1) < 0.01);
    }
    free(values);
}

/* Any box, stored in any order of dimensions, has the values of the same part of the whole. */
static void test_boxes(void **state)
{
    (void)state;
    enum { A = 3, B = 5, C = 4 };
    float whole[A * B * C];
    float part[A * B * C];
    rs_tensor t = make_tensor("layers.attn.k.weight", 3, A, B, C);
    fill_whole(9, &t, whole);
    unsigned seed = 5;
    for (int round = 0; round < 500; round++) {
        rs_box box = {.ndim = 3};
        for (int d = 0; d < 3; d++) {
            seed = seed * 1103515245u + 12345u;
            box.offset[d] = (seed >> 16) % (unsigned)(t.shape[d] + 1);
            seed = seed * 1103515245u + 12345u;
            box.extent[d] = (seed >> 16) % (unsigned)(t.shape[d] + 1 - box.offset[d]);
        }
        const int64_t *n = box.extent;
        int64_t row_major[3] = {n[1] * n[2], n[2], 1};
        int64_t reversed[3] = {1, n[0], n[0] * n[1]};
        const int64_t *stride = round % 2 == 0 ? row_major : reversed;
        assert_int_equal(rs_init_fill(9, &t, &box, stride, part), RS_OK);
        for (int64_t i = 0; i < n[0]; i++)
            for (int64_t j = 0; j < n[1]; j++)
                for (int64_t k = 0; k < n[2]; k++) {
                    int64_t at =
                        (box.offset[0] + i) * B * C + (box.offset[1] + j) * C + box.offset[2] + k;
                    assert_true(part[i * stride[0] + j * stride[1] + k * stride[2]] == whole[at]);
                }
    }
    rs_box outside = {.ndim = 3, .offset = {0, 0, 2}, .extent = {1, 1, 3}};
    assert_int_equal(rs_init_fill(9, &t, &outside, (int64_t[]){0, 0, 1}, part), RS_ERR_ARGUMENT);
}

static void test_keys(void **state)
{
    (void)state;
    float a[20];
    float b[20];
    rs_tensor t = make_tensor("embed.weight", 2, 4, 5, 0);
    fill_whole(1, &t, a);
    fill_whole(2, &t, b);
    assert_memory_not_equal(a, b, sizeof a);
    t.name = "head.weight";
    fill_whole(1, &t, b);
    assert_memory_not_equal(a, b, sizeof a);
    for (int i = 0; i < 19; i++)
        assert_true(a[i] != a[i + 1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_constants),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
