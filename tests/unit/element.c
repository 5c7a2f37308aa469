/* Elements as text: of every type, with as few digits as tell them apart, and read back the same.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "reshard/checkpoint.h"

static const char *text_of(rs_dtype dtype, const void *data, int64_t index)
{
    static char text[RS_CHECKPOINT_ELEMENT];
    return rs_checkpoint_element_text(dtype, data, index, text);
}

static void test_reals(void **state)
{
    (void)state;
    const float singles[] = {0.1f, -2.5f, 10, 1200, 3e-38f, 16777216, 1e20f, -0.0f, 0.333333343f};
    const char *const texts[] = {
        "0.1", "-2.5", "10", "1200", "3e-38", "16777216", "1e+20", "-0", "0.33333334"};
    for (int i = 0; i < 9; i++)
        assert_string_equal(text_of(RS_DTYPE_F32, singles, i), texts[i]);
    const double doubles[] = {0.1, 1.0 / 3, 123456789.25};
    assert_string_equal(text_of(RS_DTYPE_F64, doubles, 0), "0.1");
    assert_string_equal(text_of(RS_DTYPE_F64, doubles, 1), "0.3333333333333333");
    assert_string_equal(text_of(RS_DTYPE_F64, doubles, 2), "123456789.25");
    const uint16_t brains[] = {0x3f80, 0x3dcd, 0x7fc0, 0xff80}, halves[] = {0x3c00, 0x2e66};
    assert_string_equal(text_of(RS_DTYPE_BF16, brains, 0), "1");
    assert_true(strtof(text_of(RS_DTYPE_BF16, brains, 1), NULL) == 0x1.9ap-4f);
    assert_string_equal(text_of(RS_DTYPE_BF16, brains, 2), "nan");
    assert_string_equal(text_of(RS_DTYPE_BF16, brains, 3), "-inf");
    assert_string_equal(text_of(RS_DTYPE_F16, halves, 0), "1");
    assert_true(strtof(text_of(RS_DTYPE_F16, halves, 1), NULL) == 0x1.998p-4f);
    /* Any float32 is told from all others. */
    uint32_t bits = 1;
    for (int i = 0; i < 20000; i++) {
        float value;
        bits = bits * 1664525u + 1013904223u;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value))
            assert_true(strtof(text_of(RS_DTYPE_F32, &value, 0), NULL) == value);
    }
}

static void test_others(void **state)
{
    (void)state;
    const int64_t wide[] = {INT64_MIN, -1, INT64_MAX};
    const int8_t small[] = {-128, 127};
    const int16_t middle[] = {-2};
    const uint64_t positive[] = {UINT64_MAX};
    const uint8_t bytes[] = {255, 0x3f};
    const bool truths[] = {false, true};
    const float complex_[] = {1.5f, -2, 0, 3};
    const double wider[] = {0.1, -0.0};
    assert_string_equal(text_of(RS_DTYPE_I64, wide, 0), "-9223372036854775808");
    assert_string_equal(text_of(RS_DTYPE_I64, wide, 1), "-1");
    assert_string_equal(text_of(RS_DTYPE_I64, wide, 2), "9223372036854775807");
    assert_string_equal(text_of(RS_DTYPE_I8, small, 0), "-128");
    assert_string_equal(text_of(RS_DTYPE_I8, small, 1), "127");
    assert_string_equal(text_of(RS_DTYPE_I16, middle, 0), "-2");
    assert_string_equal(text_of(RS_DTYPE_U64, positive, 0), "18446744073709551615");
    assert_string_equal(text_of(RS_DTYPE_U8, bytes, 0), "255");
    assert_string_equal(text_of(RS_DTYPE_BOOL, truths, 1), "true");
    assert_string_equal(text_of(RS_DTYPE_BOOL, truths, 0), "false");
    assert_string_equal(text_of(RS_DTYPE_C64, complex_, 0), "(1.5-2j)");
    assert_string_equal(text_of(RS_DTYPE_C64, complex_, 1), "(0+3j)");
    assert_string_equal(text_of(RS_DTYPE_C128, wider, 0), "(0.1-0j)");
    assert_string_equal(text_of(RS_DTYPE_F8_E4M3, bytes, 1), "0x3f");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reals),
        cmocka_unit_test(test_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
