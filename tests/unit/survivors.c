/*
 * What is left of a placement: the same shards where they were, nothing of the lost holders; a plan
 * from it makes them anew where others have replicas, to the byte, and names what nobody has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/error.h"
#include "pattern.h"
#include "reshard/elastic.h"
#include "reshard/move.h"
#include "reshard/plan.h"

#define WORLD 8

static rs_space *space;

static int open_space(void **state)
{
    (void)state;
    rs_model model = pattern_model();
    return rs_model_space(&model, RS_DTYPE_BF16, &space) != RS_OK;
}

static int close_space(void **state)
{
    (void)state;
    rs_space_destroy(space);
    return 0;
}

static rs_placement *place(const char *text)
{
    rs_layout layout;
    rs_placement *placement;
    assert_int_equal(rs_layout_parse(text, &layout), RS_OK);
    assert_int_equal(rs_layout_placement(space, &layout, &placement), RS_OK);
    return placement;
}

static void expect_nothing_lost(const rs_placement *all, const rs_placement *left, const bool *lost)
{
    rs_shard_list a = {0}, b = {0};
    rs_holding_list found = {0};
    for (int r = 0; r < rs_placement_holders(all); r++) {
        assert_int_equal(rs_placement_shards(all, r, -1, &a), RS_OK);
        assert_int_equal(rs_placement_shards(left, r, -1, &b), RS_OK);
        assert_int_equal(b.count, lost[r] ? 0 : a.count);
        for (size_t i = 0; i < b.count; i++) {
            assert_memory_equal(&a.items[i].box, &b.items[i].box, sizeof b.items[i].box);
            assert_int_equal(a.items[i].offset, b.items[i].offset);
        }
        for (size_t i = 0; i < a.count; i++) {
            const rs_shard *s = &a.items[i];
            assert_int_equal(rs_placement_locate(left, s->tensor, s->role, &s->box, &found), RS_OK);
            for (size_t k = 0; k < found.rank_count; k++)
                assert_false(lost[found.ranks[k]]);
        }
    }
    rs_shard_list_fini(&a);
    rs_shard_list_fini(&b);
    rs_holding_list_fini(&found);
}

/* Loses `ranks` of a layout; `whole`: the others have all that they had. */
static void lose(const char *layout, const int *ranks, int count, bool whole)
{
    const rs_plan_options options = {.adopt = true};
    bool lost[WORLD] = {0};
    rs_placement *all = place(layout), *left;
    rs_plan *plan;
    for (int i = 0; i < count; i++)
        lost[ranks[i]] = true;
    assert_int_equal(rs_survivors_create(all, lost, &left), RS_OK);
    expect_nothing_lost(all, left, lost);
    bool found = true;
    for (int r = 0; r < rs_placement_holders(all); r++) {
        rs_status status = rs_plan_create(left, all, r, &options, &plan);
        if (status != RS_OK) {
            assert_int_equal(status, RS_ERR_MISMATCH);
            assert_true(lost[r]);
            assert_non_null(strstr(rs_error_message(), "which nobody holds"));
            found = false;
            continue;
        }
        const rs_plan_figures *f = rs_plan_figures_of(plan);
        if (!lost[r])
            assert_true(f->adopted_bytes == f->new_bytes && f->node_in == 0);
        else if (f->new_bytes > 0)
            assert_true(f->adopted_bytes == 0 && f->node_in == f->needed_bytes && f->node_in > 0);
        rs_plan_destroy(plan);
    }
    assert_int_equal(found, whole);
    if (whole)
        assert_int_equal(rs_plan_check(left, all, &options), RS_OK);
    rs_placement_destroy(left);
    rs_placement_destroy(all);
}

static void loses(void **state)
{
    (void)state;
    lose("dp=2", (int[]){1}, 1, true);
    lose("dp=2", (int[]){0}, 1, true);
    lose("dp=3,tp=2", (int[]){0, 1, 4}, 3, true);
    lose("dp=3,tp=2", (int[]){0, 2, 4}, 3, false);
    lose("dp=2,zero=1", (int[]){1}, 1, false);
    lose("dp=4,zero=1,shard=2", (int[]){2, 3}, 2, true);
    lose("dp=4,zero=3,shard=2,zero_cut=param", (int[]){0, 1}, 2, true);
    lose("dp=4,zero=1,shard=2", (int[]){1, 3}, 2, false);
    lose("pp=2,dp=2", (int[]){3}, 1, true);
    lose("pp=2", (int[]){1}, 1, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(loses)};
    return cmocka_run_group_tests(tests, open_space, close_space);
}
