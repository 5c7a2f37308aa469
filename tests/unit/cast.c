/* Rounding between float types against arithmetic in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "ckpt/cast.h"

static uint16_t to16(rs_dtype from, const void *value, rs_dtype to)
{
    uint16_t out;
    rs_cast(from, value, to, &out, 1);
    return out;
}

static double from16(rs_dtype dtype, uint16_t bits)
{
    return rs_cast_element(dtype, &bits, 0);
}

/* Every 16-bit number survives the way to wider types and back. */
static void test_round_trip(void **state)
{
    (void)state;
    static const rs_dtype narrow[] = {RS_DTYPE_F16, RS_DTYPE_BF16};
    static const rs_dtype wide[] = {RS_DTYPE_F32, RS_DTYPE_F64};
    for (int n = 0; n < 2; n++)
        for (int w = 0; w < 2; w++)
            for (uint32_t i = 0; i < 65536; i++) {
                uint16_t bits = (uint16_t)i;
                double room;
                rs_cast(narrow[n], &bits, wide[w], &room, 1);
                uint16_t back = to16(wide[w], &room, narrow[n]);
                if (isnan(from16(narrow[n], bits)))
                    assert_true(isnan(from16(narrow[n], back)));
                else
                    assert_int_equal(back, bits);
            }
}

/* Between two neighbours, the nearer one; half way, the even one; from float64 as from exact. */
static void test_nearest_even(void **state)
{
    (void)state;
    static const rs_dtype narrow[] = {RS_DTYPE_F16, RS_DTYPE_BF16};
    for (int n = 0; n < 2; n++)
        for (uint32_t i = 0; i < 0x7c00; i += n == 0 ? 1 : 3) {
            uint16_t low = (uint16_t)i, high = (uint16_t)(i + 1);
            double a = from16(narrow[n], low), b = from16(narrow[n], high);
            if (isinf(b))
                continue;
            double middle = (a + b) / 2, tiny = (b - a) / 1024;
            double values[3] = {middle - tiny, middle, middle + tiny};
            uint16_t wanted[3] = {low, low % 2 == 0 ? low : high, high};
            for (int k = 0; k < 3; k++) {
                assert_int_equal(to16(RS_DTYPE_F64, &values[k], narrow[n]), wanted[k]);
                float single = (float)values[k];
                if ((double)single == values[k])
                    assert_int_equal(to16(RS_DTYPE_F32, &single, narrow[n]), wanted[k]);
                double negative = -values[k];
                assert_int_equal(to16(RS_DTYPE_F64, &negative, narrow[n]), wanted[k] | 0x8000u);
            }
        }
}

static void test_edges(void **state)
{
    (void)state;
    float big = 65519.9f, over = 65520.0f, infinite = INFINITY, none = NAN, zero = -0.0f;
    assert_int_equal(to16(RS_DTYPE_F32, &big, RS_DTYPE_F16), 0x7bff);
    assert_int_equal(to16(RS_DTYPE_F32, &over, RS_DTYPE_F16), 0x7c00);
    assert_int_equal(to16(RS_DTYPE_F32, &infinite, RS_DTYPE_BF16), 0x7f80);
    assert_int_equal(to16(RS_DTYPE_F32, &none, RS_DTYPE_BF16), 0x7fc0);
    assert_int_equal(to16(RS_DTYPE_F32, &zero, RS_DTYPE_F16), 0x8000);
    /* E06: a master that a bfloat16 cannot hold. */
    uint32_t bits = 0x3f802000;
    assert_int_equal(to16(RS_DTYPE_F32, &bits, RS_DTYPE_BF16), 0x3f80);
    /* Rounding float64 through float32 would round twice and end at 0x3f81. */
    double twice = 1.0 + 0x1p-8 + 0x1p-40;
    assert_int_equal(to16(RS_DTYPE_F64, &twice, RS_DTYPE_BF16), 0x3f81);
    twice = 1.0 + 0x1p-7 + 0x1p-8 - 0x1p-40;
    assert_int_equal(to16(RS_DTYPE_F64, &twice, RS_DTYPE_BF16), 0x3f81);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_nearest_even),
        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
