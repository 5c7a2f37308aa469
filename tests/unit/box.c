/* Boxes against element-by-element counting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "reshard/box.h"

#define SIDE 5

static rs_box random_box(unsigned *seed, int ndim)
{
    rs_box box = {.ndim = ndim};
    for (int d = 0; d < ndim; d++) {
        *seed = *seed * 1103515245u + 12345u;
        box.offset[d] = (*seed >> 16) % SIDE;
        *seed = *seed * 1103515245u + 12345u;
        box.extent[d] = (*seed >> 16) % (SIDE + 1 - (unsigned)box.offset[d]);
    }
    return box;
}

static bool holds(const rs_box *box, const int64_t *point)
{
    for (int d = 0; d < box->ndim; d++)
        if (point[d] < box->offset[d] || point[d] >= box->offset[d] + box->extent[d])
            return false;
    return true;
}

/* Calls for every point of the SIDE^ndim cube. */
static bool next_point(int ndim, int64_t *point)
{
    for (int d = ndim - 1; d >= 0; d--) {
        if (++point[d] < SIDE)
            return true;
        point[d] = 0;
    }
    return false;
}

static void test_intersect_and_subtract(void **state)
{
    (void)state;
    unsigned seed = 7;
    for (int round = 0; round < 3000; round++) {
        int ndim = round % 4;
        rs_box a = random_box(&seed, ndim);
        rs_box b = random_box(&seed, ndim);
        rs_box both;
        rs_box rest[2 * RS_MAX_DIMS];
        bool some = rs_box_intersect(&a, &b, &both);
        int parts = rs_box_subtract(&a, &b, rest);
        assert_true(parts <= (ndim > 0 ? 2 * ndim : 1));
        int64_t point[RS_MAX_DIMS] = {0};
        do {
            bool in_a = holds(&a, point);
            bool in_b = holds(&b, point);
            int in_rest = 0;
            for (int i = 0; i < parts; i++)
                in_rest += holds(&rest[i], point);
            assert_int_equal(some && holds(&both, point), in_a && in_b);
            assert_int_equal(in_rest, in_a && !in_b);
        } while (next_point(ndim, point));
        assert_int_equal(some, !rs_box_is_empty(&both));
    }
}

static void test_linear_range(void **state)
{
    (void)state;
    unsigned seed = 11;
    for (int round = 0; round < 2000; round++) {
        int ndim = round % 4;
        rs_box box = random_box(&seed, ndim);
        if (rs_box_is_empty(&box))
            continue;
        int64_t volume = rs_box_volume(&box);
        seed = seed * 1103515245u + 12345u;
        int64_t begin = (seed >> 16) % (uint64_t)(volume + 1);
        seed = seed * 1103515245u + 12345u;
        int64_t end = begin + (int64_t)((seed >> 16) % (uint64_t)(volume - begin + 1));
        rs_box parts[2 * RS_MAX_DIMS];
        int count = rs_box_linear_range(&box, begin, end, parts);
        assert_true(count <= (ndim > 0 ? 2 * ndim - 1 : 1));
        int64_t number = 0;
        int64_t point[RS_MAX_DIMS] = {0};
        do {
            if (!holds(&box, point))
                continue;
            int times = 0;
            for (int i = 0; i < count; i++)
                times += holds(&parts[i], point);
            assert_int_equal(times, number >= begin && number < end);
            number++;
        } while (next_point(ndim, point));
    }
}

static void test_check_and_format(void **state)
{
    (void)state;
    int64_t shape[2] = {4, INT64_MAX};
    rs_box box = rs_box_whole(2, shape);
    assert_int_equal(rs_box_check(&box, 2, shape), RS_ERR_OVERFLOW);
    box.extent[0] = 1;
    assert_int_equal(rs_box_check(&box, 2, shape), RS_OK);
    box.offset[1] = 1;
    assert_int_equal(rs_box_check(&box, 2, shape), RS_ERR_ARGUMENT);
    assert_int_equal(rs_box_check(&box, 1, shape), RS_ERR_ARGUMENT);
    char text[64];
    rs_box small = {.ndim = 2, .offset = {0, 8}, .extent = {4, 8}};
    assert_string_equal(rs_box_format(&small, text, sizeof text), "[0:4,8:16]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_intersect_and_subtract),
        cmocka_unit_test(test_linear_range),
        cmocka_unit_test(test_check_and_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
