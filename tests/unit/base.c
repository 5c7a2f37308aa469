/* Order and binary search against a plain walk; the clocks and naps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/search.h"

static void test_search(void **state)
{
    (void)state;
    static const int items[] = {-3, 0, 0, 2, 2, 2, 7};
    for (size_t count = 0; count <= 7; count++)
        for (int key = -4; key <= 8; key++) {
            size_t first = 0;
            while (first < count && items[first] < key)
                first++;
            size_t looks = 0;
            assert_int_equal(RS_SEARCH(count, k, (looks++, items[k] < key)), first);
            assert_true(looks <= 3);
        }
}

static void test_compare(void **state)
{
    (void)state;
    assert_int_equal(rs_compare(INT64_MIN, INT64_MAX), -1);
    assert_int_equal(rs_compare(INT64_MAX, INT64_MIN), 1);
    assert_int_equal(rs_compare(5, 5), 0);
    const int pair[] = {-2147483647 - 1, 2147483647};
    assert_int_equal(rs_compare_ints(&pair[0], &pair[1]), -1);
    assert_int_equal(rs_compare_ints(&pair[1], &pair[1]), 0);
}

/* A nap lasts at least as long as it should: how much longer is the machine's affair. */
static void test_clock(void **state)
{
    (void)state;
    double begun = rs_clock_seconds();
    double wall = rs_wall_seconds();
    rs_nap(-1);
    rs_nap(0);
    rs_nap(0.02);
    assert_true(rs_clock_seconds() - begun >= 0.02);
    assert_true(wall > 1.6e9); /* September 2020 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_search),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
