/* Matching by shape and order, against trying every assignment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "ckpt/match.h"

#define MOST 7

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 10;
}

/* All assignments, by brute force: each name to each group or none. */
static int count_all(const int *names, int name_count, int slots[2][MOST], const int *lengths,
    int at, int *filled, int *choice, int *first)
{
    if (at == name_count) {
        if (filled[0] != lengths[0] || filled[1] != lengths[1])
            return 0;
        memcpy(first, choice, sizeof *choice * (size_t)name_count);
        return 1;
    }
    int ways = 0;
    for (int g = -1; g < 2; g++) {
        if (g >= 0 && (filled[g] == lengths[g] ||
                          (slots[g][filled[g]] >= 0 && slots[g][filled[g]] != names[at])))
            continue;
        choice[at] = g;
        if (g >= 0)
            filled[g]++;
        ways += count_all(names, name_count, slots, lengths, at + 1, filled, choice, first);
        if (g >= 0)
            filled[g]--;
    }
    return ways;
}

static rs_match_shape shape_of(int kind)
{
    return kind < 0 ? (rs_match_shape){.ndim = -1}
                    : (rs_match_shape){.ndim = 1 + kind % 2, .shape = {kind + 2, 3}};
}

static void test_against_all(void **state)
{
    (void)state;
    uint32_t seed = 3;
    int counts[3] = {0};
    for (int round = 0; round < 4000; round++) {
        int names[MOST], slots[2][MOST], lengths[2] = {0}, filled[2] = {0};
        int choice[MOST], first[MOST], name_count = 1 + (int)(next(&seed) % MOST);
        int kinds = 1 + (int)(next(&seed) % 4);
        for (int i = 0; i < name_count; i++) {
            names[i] = (int)(next(&seed) % (uint32_t)kinds);
            int g =
                (int)(next(&seed) % 5); /* mostly a true assignment, now and then a random one */
            if (g < 4 && next(&seed) % 8 != 0)
                slots[g % 2][lengths[g % 2]++] =
                    next(&seed) % 16 == 0 ? -1 : names[next(&seed) % 12 == 0 ? 0 : i];
        }
        int wanted = count_all(names, name_count, slots, lengths, 0, filled, choice, first);
        rs_match_shape shapes[MOST], slot_shapes[2][MOST];
        rs_match_group groups[2];
        for (int i = 0; i < name_count; i++)
            shapes[i] = shape_of(names[i]);
        for (int g = 0; g < 2; g++) {
            for (int i = 0; i < lengths[g]; i++)
                slot_shapes[g][i] = shape_of(slots[g][i]);
            groups[g] = (rs_match_group){slot_shapes[g], (size_t)lengths[g]};
        }
        int group_of[MOST], slot_of[MOST], ways, at[2] = {0};
        assert_int_equal(
            rs_match_names(shapes, (size_t)name_count, groups, 2, group_of, slot_of, &ways), RS_OK);
        assert_int_equal(ways, wanted > 2 ? 2 : wanted);
        counts[ways]++;
        for (int i = 0; i < name_count && ways == 1; i++) {
            assert_int_equal(group_of[i], first[i]);
            if (group_of[i] >= 0)
                assert_int_equal(slot_of[i], at[group_of[i]]++);
        }
    }
    assert_true(counts[0] > 100 && counts[1] > 100 && counts[2] > 100);
}

/* A deep model with two groups: one way, found at once. */
static void test_large(void **state)
{
    (void)state;
    enum { LAYERS = 200, NAMES = 4 * LAYERS };
    static rs_match_shape names[NAMES], weights[2 * LAYERS], biases[2 * LAYERS];
    static int group_of[NAMES], slot_of[NAMES];
    size_t w = 0, b = 0;
    for (int i = 0; i < NAMES; i++) {
        names[i] = i % 2 == 0 ? (rs_match_shape){.ndim = 2, .shape = {64, 64}}
                              : (rs_match_shape){.ndim = 1, .shape = {64}};
        if (i % 2 == 0)
            weights[w++] = names[i];
        else
            biases[b++] = names[i];
    }
    rs_match_group groups[2] = {{weights, w}, {biases, b}};
    int ways;
    assert_int_equal(rs_match_names(names, NAMES, groups, 2, group_of, slot_of, &ways), RS_OK);
    assert_int_equal(ways, 1);
    groups[0].count--; /* one weight is frozen: which one, nothing says */
    assert_int_equal(rs_match_names(names, NAMES, groups, 2, group_of, slot_of, &ways), RS_OK);
    assert_int_equal(ways, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_all),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
