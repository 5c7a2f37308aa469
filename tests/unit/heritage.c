/*
 * A new world takes over an old one's memory: whatever the two layouts and the numbering, every
 * element ends where it belongs, no old segment has two owners, what is alike is taken over and not
 * copied, and the assignment keeps the most.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/memory.h"
#include "elastic/assign.h"
#include "elastic/heritage.h"
#include "pattern.h"
#include "reshard/layout.h"
#include "reshard/move.h"
#include "support/place.h"
#include "support/random.h"

#define WORLD 12

static const char *const layouts[] = {"dp=1", "dp=3", "dp=7", "tp=2", "tp=3,pp=2", "pp=5",
    "dp=4,zero=1", "tp=2,pp=2,dp=2,zero=1", "tp=7", "pp=3,dp=2", "tp=2,dp=5,zero=1",
    "tp=2,pp=3,dp=2,zero=1,order=dp-pp-tp", "dp=4,zero=3,zero_cut=param", "dp=3,zero=2"};

enum { LAYOUTS = sizeof layouts / sizeof *layouts };

static rs_space *make_space(void)
{
    rs_space *space;
    rs_model model = pattern_model();
    assert_int_equal(rs_model_space(&model, RS_DTYPE_BF16, &space), RS_OK);
    return space;
}

/* The old world's memory, filled, and one view of it per holder of the heritage. */
typedef struct world {
    rs_placement *old, *now;
    int old_ranks, new_ranks;
    rs_memory memory[WORLD];
    const rs_memory *lent[WORLD];
    rs_heritage *heritage;
    rs_memory holders[2 * WORLD];
} world;

static void setup_world(
    const rs_space *space, const char *from, const char *to, const int *kept, world *w)
{
    memset(w, 0, sizeof *w);
    w->old = place(space, from);
    w->now = place(space, to);
    w->old_ranks = rs_placement_holders(w->old);
    w->new_ranks = rs_placement_holders(w->now);
    assert_true(w->old_ranks <= WORLD && w->new_ranks <= WORLD);
    for (int i = 0; i < w->old_ranks; i++) {
        assert_int_equal(rs_memory_allocate(w->old, i, &w->memory[i]), RS_OK);
        assert_true(pattern_fill(w->old, i, &w->memory[i], 5));
        w->lent[i] = &w->memory[i];
    }
    assert_int_equal(rs_heritage_create(w->old, w->now, kept, NULL, &w->heritage), RS_OK);
    for (int h = 0; h < w->new_ranks + w->old_ranks; h++)
        assert_int_equal(rs_heritage_memory(w->heritage, h, w->lent, &w->holders[h]), RS_OK);
}

static void teardown_world(world *w)
{
    for (int h = 0; h < w->new_ranks + w->old_ranks; h++)
        free(w->holders[h].regions);
    for (int i = 0; i < w->old_ranks; i++)
        rs_memory_free(&w->memory[i]);
    rs_heritage_destroy(w->heritage);
    rs_placement_destroy(w->now);
    rs_placement_destroy(w->old);
}

/* Every old segment is in exactly one holder's memory, where its rank has it. */
static void check_owners(const world *w)
{
    size_t count = 0, all = 0;
    for (int i = 0; i < w->old_ranks; i++)
        all += w->memory[i].count;
    for (int h = 0; h < w->new_ranks + w->old_ranks; h++) {
        count += w->holders[h].count;
        for (size_t k = 0; k < w->holders[h].count; k++) {
            const rs_region *region = &w->holders[h].regions[k];
            int source = rs_heritage_source(w->heritage, h, region->segment);
            assert_true(source >= 0 && source < w->old_ranks);
            assert_ptr_equal(region->data, rs_memory_segment(&w->memory[source], region->segment));
        }
    }
    assert_int_equal(count, all);
}

/* Takes over: adopted segments are the old bytes, the rest is copied. Returns the bytes adopted. */
static int64_t take_over(world *w, rs_move_report *report)
{
    const rs_placement *from = rs_heritage_placement(w->heritage);
    rs_plan_options options = {.adopt = true};
    rs_memory fresh[WORLD], now[WORLD];
    int64_t adopted_bytes = 0;
    for (int r = 0; r < w->new_ranks; r++) {
        rs_plan *plan;
        size_t count;
        assert_int_equal(rs_memory_allocate(w->now, r, &fresh[r]), RS_OK);
        assert_int_equal(rs_plan_create(from, w->now, r, &options, &plan), RS_OK);
        const int *adopted = rs_plan_adopted(plan, &count);
        now[r].count = fresh[r].count;
        now[r].regions = calloc(fresh[r].count + 1, sizeof *now[r].regions);
        memcpy(now[r].regions, fresh[r].regions, fresh[r].count * sizeof *now[r].regions);
        for (size_t i = 0; i < count; i++)
            for (size_t k = 0; k < now[r].count; k++)
                if (now[r].regions[k].segment == adopted[i]) {
                    now[r].regions[k].data = rs_memory_segment(&w->holders[r], adopted[i]);
                    adopted_bytes += now[r].regions[k].bytes;
                    assert_non_null(now[r].regions[k].data);
                }
        rs_plan_destroy(plan);
    }
    assert_int_equal(rs_move_local(from, w->now, &options, w->holders, now, NULL, report), RS_OK);
    for (int r = 0; r < w->new_ranks; r++)
        assert_true(pattern_check(w->now, r, &now[r], 5));
    for (int i = 0; i < w->old_ranks; i++) /* what was read is as it was */
        assert_true(pattern_check(w->old, i, &w->memory[i], 5));
    for (int r = 0; r < w->new_ranks; r++) {
        free(now[r].regions);
        rs_memory_free(&fresh[r]);
    }
    return adopted_bytes;
}

static void every_element_arrives(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    uint64_t random = 11;
    int kept[WORLD];
    for (int a = 0; a < LAYOUTS; a++)
        for (int b = 0; b < LAYOUTS; b++) {
            if (a != b && (2 * a + b) % 5 > 1) /* enough of them */
                continue;
            world w;
            rs_move_report report;
            rs_placement *old = place(space, layouts[a]), *now = place(space, layouts[b]);
            int old_ranks = rs_placement_holders(old), new_ranks = rs_placement_holders(now);
            assert_int_equal(rs_assign_ranks(old, now, NULL, kept), RS_OK);
            if ((a + b) % 3 == 0) /* any other numbering is as right */
                for (int r = 0; r < new_ranks; r++) {
                    kept[r] = random_in(&random, -1, old_ranks - 1);
                    for (int q = 0; q < r; q++)
                        kept[r] = kept[q] == kept[r] ? -1 : kept[r];
                }
            setup_world(space, layouts[a], layouts[b], kept, &w);
            check_owners(&w);
            int64_t adopted = take_over(&w, &report);
            if (a == b) { /* then everything is there already */
                assert_int_equal(report.node_bytes + report.self_bytes, 0);
                assert_true(adopted > 0);
            }
            teardown_world(&w);
            rs_placement_destroy(old);
            rs_placement_destroy(now);
        }
    rs_space_destroy(space);
}

/* Bytes that are not adopted: copied from another rank's memory, and within a rank's own. */
static void expect_moved(
    const rs_space *space, const char *from, const char *to, bool moves, bool copies)
{
    world w;
    int kept[WORLD];
    rs_move_report report;
    rs_placement *old = place(space, from), *now = place(space, to);
    assert_int_equal(rs_assign_ranks(old, now, NULL, kept), RS_OK);
    setup_world(space, from, to, kept, &w);
    take_over(&w, &report);
    assert_int_equal(report.node_bytes > 0, moves);
    assert_int_equal(report.self_bytes > 0, copies);
    teardown_world(&w);
    rs_placement_destroy(old);
    rs_placement_destroy(now);
}

static void what_is_alike_stays(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    expect_moved(space, "dp=7", "dp=1", false, false);
    expect_moved(space, "dp=7", "dp=3", false, false);
    expect_moved(space, "dp=3", "dp=7", true, false);
    expect_moved(space, "tp=2", "tp=2,dp=2", true, false);
    expect_moved(space, "tp=2,dp=2", "tp=2", false, false);
    /* Stages that are split or joined: their layers stay where they lie. */
    expect_moved(space, "pp=2", "pp=5", false, false);
    expect_moved(space, "pp=5", "pp=2", false, false);
    expect_moved(space, "tp=2", "tp=3", true, true);
    rs_space_destroy(space);
}

static int64_t value_of(const int64_t *weight, int columns, const int *pick, int rows)
{
    int64_t sum = 0;
    for (int r = 0; r < rows; r++)
        sum += pick[r] >= 0 ? weight[r * columns + pick[r]] : 0;
    return sum;
}

/* The most weight by trying everything. */
static int64_t best_of(const int64_t *weight, int rows, int columns, int row, unsigned taken)
{
    if (row == rows)
        return 0;
    int64_t most = best_of(weight, rows, columns, row + 1, taken);
    for (int c = 0; c < columns; c++) {
        if (taken & 1u << c)
            continue;
        int64_t sum =
            weight[row * columns + c] + best_of(weight, rows, columns, row + 1, taken | 1u << c);
        most = sum > most ? sum : most;
    }
    return most;
}

static void check_distinct(const int *pick, int rows, int columns)
{
    int picked = 0;
    for (int r = 0; r < rows; r++) {
        assert_true(pick[r] >= -1 && pick[r] < columns);
        picked += pick[r] >= 0;
        for (int q = 0; q < r; q++)
            assert_true(pick[r] < 0 || pick[q] != pick[r]);
    }
    assert_int_equal(picked, rows < columns ? rows : columns);
}

static void assigns_the_most(void **unused)
{
    (void)unused;
    uint64_t random = 3;
    for (int trial = 0; trial < 400; trial++) {
        int rows = random_in(&random, 1, 6), columns = random_in(&random, 1, 6);
        int64_t weight[36];
        int pick[6];
        for (int i = 0; i < rows * columns; i++)
            weight[i] = random_in(&random, 0, trial % 2 ? 3 : 1000000);
        assert_int_equal(rs_assign(weight, rows, columns, pick), RS_OK);
        check_distinct(pick, rows, columns);
        assert_int_equal(
            value_of(weight, columns, pick, rows), best_of(weight, rows, columns, 0, 0));
    }
}

static void assigns_many(void **unused)
{
    (void)unused;
    int ranks = RS_ASSIGN_EXACT + 40;
    int64_t *weight = calloc((size_t)ranks * (size_t)ranks, sizeof *weight);
    int *pick = calloc((size_t)ranks, sizeof *pick);
    for (int r = 0; r < ranks; r++)
        weight[(size_t)r * (size_t)ranks + (size_t)(ranks - 1 - r)] = 10;
    assert_int_equal(rs_assign(weight, ranks, ranks, pick), RS_OK);
    for (int r = 0; r < ranks; r++)
        assert_int_equal(pick[r], ranks - 1 - r);
    assert_int_equal(rs_assign(weight, ranks, 3, pick), RS_OK);
    check_distinct(pick, ranks, 3);
    free(weight);
    free(pick);
}

static void refuses_bad_tables(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    rs_placement *old = place(space, "dp=2"), *now = place(space, "tp=2"), *out;
    rs_heritage *heritage;
    assert_int_equal(rs_heritage_create(old, now, (int[]){0, 0}, NULL, &heritage), RS_ERR_ARGUMENT);
    assert_int_equal(rs_heritage_create(old, now, (int[]){0, 2}, NULL, &heritage), RS_ERR_ARGUMENT);
    const rs_segment_ref twice[] = {{0, 1}, {0, 1}}, absent[] = {{0, 1}, {0, 1 << 20}},
                         clash[] = {{0, 1}, {1, 1}};
    assert_int_equal(
        rs_placement_create_regrouped(old, 2, twice, (size_t[]){0, 1, 2}, &out), RS_ERR_ARGUMENT);
    assert_int_equal(
        rs_placement_create_regrouped(old, 2, absent, (size_t[]){0, 1, 2}, &out), RS_ERR_ARGUMENT);
    assert_int_equal(
        rs_placement_create_regrouped(old, 1, clash, (size_t[]){0, 2}, &out), RS_ERR_ARGUMENT);
    assert_int_equal(
        rs_placement_create_regrouped(old, 2, clash, (size_t[]){0, 1, 2}, &out), RS_OK);
    rs_placement_destroy(out);
    rs_places apart = {(int[]){0, 1}, (int[]){1, 1}};
    assert_int_equal(
        rs_heritage_create(old, now, (int[]){0, -1}, &apart, &heritage), RS_ERR_ARGUMENT);
    assert_int_equal(rs_heritage_create(old, now, (int[]){-1, 1}, &apart, &heritage), RS_OK);
    rs_heritage_destroy(heritage);
    rs_placement_destroy(old);
    rs_placement_destroy(now);
    rs_space_destroy(space);
}

/* What was a replica on one host and is wanted on two: each keeps what its host has. */
static void keeps_to_its_host(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    rs_placement *old = place(space, "dp=3"), *now = place(space, "dp=3");
    int kept[3], count;
    rs_heritage *heritage;
    rs_places hosts = {(int[]){0, 0, 1}, (int[]){1, 1, 0}};
    assert_int_equal(rs_assign_ranks(old, now, &hosts, kept), RS_OK);
    assert_true((kept[0] == 2 && kept[1] == -1) || (kept[0] == -1 && kept[1] == 2));
    assert_true(kept[2] == 0 || kept[2] == 1);
    assert_int_equal(rs_heritage_create(old, now, kept, &hosts, &heritage), RS_OK);
    rs_heritage_sources(heritage, 2, &count);
    assert_int_equal(count, 1);
    assert_int_equal(rs_heritage_sources(heritage, kept[0] == 2 ? 0 : 1, &count)[0], 2);
    assert_int_equal(count, 1);
    for (int r = 0; r < 3; r++) /* of its host's only replica one of two has nothing to take over */
        assert_int_equal(rs_heritage_hosts(heritage)[r], hosts.now[r]);
    assert_int_equal(rs_heritage_hosts(heritage)[3 + 2], 1);
    rs_heritage_destroy(heritage);
    rs_placement_destroy(old);
    rs_placement_destroy(now);
    rs_space_destroy(space);
}

static void survives_failed_allocations(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    rs_placement *old = place(space, "tp=2"), *now = place(space, "pp=2,dp=2");
    for (size_t n = 1;; n += 1 + n / 8) {
        rs_heritage *heritage = NULL;
        int kept[4];
        rs_alloc_fail_at(n);
        rs_status status = rs_assign_ranks(old, now, NULL, kept);
        if (status == RS_OK)
            status = rs_heritage_create(old, now, kept, NULL, &heritage);
        rs_alloc_fail_at(0);
        if (status == RS_OK)
            rs_heritage_destroy(heritage);
        if (status == RS_OK)
            break;
        assert_int_equal(status, RS_ERR_NO_MEMORY);
    }
    rs_placement_destroy(old);
    rs_placement_destroy(now);
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_arrives),
        cmocka_unit_test(what_is_alike_stays),
        cmocka_unit_test(assigns_the_most),
        cmocka_unit_test(assigns_many),
        cmocka_unit_test(refuses_bad_tables),
        cmocka_unit_test(keeps_to_its_host),
        cmocka_unit_test(survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
