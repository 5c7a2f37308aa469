/* The min-max flow against linear programming, and against all subsets of suppliers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "base/memory.h"
#include "plan/flow.h"

typedef struct flow_case {
    int64_t bound;
    int count;
    struct {
        uint64_t suppliers;
        int64_t demand;
    } groups[128];
} flow_case;

#include "flow_cases.h"

/* The members of a set of up to 64 suppliers. */
static size_t list_set(uint64_t set, int *list)
{
    size_t count = 0;
    for (int s = 0; s < 64; s++)
        if (set >> s & 1)
            list[count++] = s;
    return count;
}

static rs_status add(rs_flow *flow, uint64_t set, int64_t demand)
{
    int list[64];
    return rs_flow_add(flow, list, list_set(set, list), demand);
}

/* Solves, and checks everything that the result says of itself. */
static int64_t solve(rs_flow *flow)
{
    assert_int_equal(rs_flow_solve(flow), RS_OK);
    assert_true(flow->exact);
    int64_t *loads = calloc((size_t)flow->suppliers + 1, sizeof *loads);
    int64_t most = 0;
    for (size_t g = 0; g < flow->count; g++) {
        const rs_flow_group *group = &flow->groups[g];
        int64_t before = 0;
        for (size_t k = group->first; k < group->first + group->count; k++) {
            assert_true(flow->ends[k] >= before);
            loads[flow->members[k]] += flow->ends[k] - before;
            before = flow->ends[k];
        }
        assert_int_equal(before, group->demand);
        assert_ptr_equal(rs_flow_find(flow, flow->members + group->first, group->count), group);
    }
    for (int s = 0; s < flow->suppliers; s++) {
        assert_int_equal(loads[s], flow->load[s]);
        most = loads[s] > most ? loads[s] : most;
    }
    free(loads);
    assert_int_equal(most, flow->bound);
    return most;
}

static void test_linear_programs(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        rs_flow flow = {0};
        for (int g = 0; g < cases[c].count; g++)
            assert_int_equal(
                add(&flow, cases[c].groups[g].suppliers, cases[c].groups[g].demand), RS_OK);
        assert_int_equal(solve(&flow), cases[c].bound);
        assert_null(rs_flow_find(&flow, &(int){64}, 1));
        rs_flow_fini(&flow);
    }
}

static uint64_t random_state;

static uint64_t random_below(uint64_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % n;
}

/* The largest ceil(demand that only U can meet / |U|) over all sets U is the optimum. */
static void test_all_subsets(void **state)
{
    (void)state;
    for (int round = 0; round < 2000; round++) {
        random_state = (uint64_t)round;
        int suppliers = 1 + (int)random_below(7);
        int count = (int)random_below(9);
        uint64_t sets[8];
        int64_t demands[8];
        rs_flow flow = {0};
        for (int g = 0; g < count; g++) {
            sets[g] = 1 + random_below(((uint64_t)1 << suppliers) - 1);
            demands[g] = (int64_t)random_below(round % 2 ? 5 : 1000);
            assert_int_equal(add(&flow, sets[g], demands[g]), RS_OK);
        }
        int64_t bound = 0;
        for (uint64_t u = 1; u < (uint64_t)1 << suppliers; u++) {
            int64_t forced = 0;
            for (int g = 0; g < count; g++)
                forced += (sets[g] & ~u) == 0 ? demands[g] : 0;
            int64_t size = __builtin_popcountll(u);
            int64_t least = (forced + size - 1) / size;
            bound = least > bound ? least : bound;
        }
        assert_int_equal(solve(&flow), bound);
        rs_flow_fini(&flow);
    }
}

static void test_equal_where_that_is_best(void **state)
{
    (void)state;
    rs_flow flow = {0};
    assert_int_equal(add(&flow, 0x3, 100), RS_OK);
    assert_int_equal(add(&flow, 0xc, 60), RS_OK);
    assert_int_equal(add(&flow, 0x3, 20), RS_OK);
    assert_int_equal(solve(&flow), 60);
    assert_int_equal(flow.count, 2);
    assert_int_equal(flow.load[2], 30);
    assert_int_equal(flow.load[3], 30);
    rs_flow_fini(&flow);
}

/* The same demands on suppliers far apart, and as many more beside them: nothing changes. */
static void test_many_suppliers(void **state)
{
    (void)state;
    enum { COPIES = 40, STRIDE = 64 };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c += 7) {
        rs_flow flow = {0};
        for (int copy = 0; copy < COPIES; copy++)
            for (int g = cases[c].count - 1; g >= 0; g--) {
                int list[64];
                size_t count = list_set(cases[c].groups[g].suppliers, list);
                for (size_t k = 0; k < count; k++)
                    list[k] += STRIDE * copy;
                assert_int_equal(rs_flow_add(&flow, list, count, cases[c].groups[g].demand), RS_OK);
            }
        assert_int_equal(solve(&flow), cases[c].bound);
        rs_flow_fini(&flow);
    }
}

/* Too many sets: what is known is the mean, and what one supplier alone must supply. */
static void test_crowded(void **state)
{
    (void)state;
    enum { SUPPLIERS = 200 };
    rs_flow flow = {0};
    int64_t total = 0;
    for (int a = 0; a < SUPPLIERS; a++)
        for (int b = a + 1; b < SUPPLIERS; b++, total++)
            assert_int_equal(rs_flow_add(&flow, (int[]){a, b}, 2, 1), RS_OK);
    assert_true((size_t)total > RS_FLOW_GROUPS && flow.crowded);
    assert_int_equal(rs_flow_add(&flow, &(int){7}, 1, 50), RS_OK);
    assert_int_equal(rs_flow_solve(&flow), RS_OK);
    assert_false(flow.exact);
    assert_int_equal(flow.bound, (total + 50 + SUPPLIERS - 1) / SUPPLIERS);
    rs_flow_fini(&flow);
    rs_flow forced = {.crowded = true};
    assert_int_equal(rs_flow_add(&forced, &(int){7}, 1, 50), RS_OK);
    assert_int_equal(rs_flow_add(&forced, (int[]){3, 7}, 2, 10), RS_OK);
    assert_int_equal(rs_flow_solve(&forced), RS_OK);
    assert_int_equal(forced.bound, 50);
    rs_flow_fini(&forced);
}

static void test_overflow_and_memory(void **state)
{
    (void)state;
    rs_flow flow = {0};
    assert_int_equal(add(&flow, 1, INT64_MAX), RS_OK);
    assert_int_equal(add(&flow, 2, 1), RS_ERR_OVERFLOW);
    rs_flow_fini(&flow);
    rs_flow big = {0};
    assert_int_equal(add(&big, ~(uint64_t)0, INT64_MAX), RS_OK);
    assert_int_equal(solve(&big), (INT64_MAX - 63) / 64 + 1);
    rs_flow_fini(&big);
    for (size_t n = 1; n < 14; n++) {
        rs_flow poor = {0};
        rs_alloc_fail_at(n);
        rs_status status = add(&poor, 6, 9);
        if (status == RS_OK)
            status = rs_flow_solve(&poor);
        rs_alloc_fail_at(0);
        assert_int_equal(status, RS_ERR_NO_MEMORY);
        rs_flow_fini(&poor);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_programs),
        cmocka_unit_test(test_all_subsets),
        cmocka_unit_test(test_equal_where_that_is_best),
        cmocka_unit_test(test_many_suppliers),
        cmocka_unit_test(test_crowded),
        cmocka_unit_test(test_overflow_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
