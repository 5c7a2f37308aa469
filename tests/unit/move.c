/*
 * Moves within one process between many pairs of layouts: every element where it belongs, the sums
 * right without being measured, the moved bytes those of the plan, A -> B -> A the identity, and
 * what goes wrong noticed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/fault.h"
#include "base/memory.h"
#include "pattern.h"
#include "reshard/layout.h"
#include "reshard/move.h"

#define WORLD 12

/* One state of a job in this process. */
typedef struct state_of {
    rs_placement *placement;
    int holders;
    rs_memory memory[WORLD];
    rs_sums *sums[WORLD];
} state_of;

static void make_state(const rs_space *space, const char *text, state_of *out)
{
    rs_layout layout;
    memset(out, 0, sizeof *out);
    assert_int_equal(rs_layout_parse(text, &layout), RS_OK);
    assert_int_equal(rs_layout_placement(space, &layout, &out->placement), RS_OK);
    out->holders = rs_placement_holders(out->placement);
    assert_true(out->holders <= WORLD);
    for (int h = 0; h < out->holders; h++) {
        assert_int_equal(rs_memory_allocate(out->placement, h, &out->memory[h]), RS_OK);
        assert_int_equal(rs_sums_create(out->placement, h, &out->sums[h]), RS_OK);
    }
}

static void free_state(state_of *s)
{
    for (int h = 0; h < s->holders; h++) {
        rs_memory_free(&s->memory[h]);
        rs_sums_destroy(s->sums[h]);
    }
    rs_placement_destroy(s->placement);
}

static void fill_state(state_of *s, uint64_t salt)
{
    for (int h = 0; h < s->holders; h++)
        assert_true(pattern_fill(s->placement, h, &s->memory[h], salt));
}

static void check_state(state_of *s, uint64_t salt)
{
    for (int h = 0; h < s->holders; h++)
        assert_true(pattern_check(s->placement, h, &s->memory[h], salt));
}

static void measure_state(state_of *s)
{
    for (int h = 0; h < s->holders; h++)
        assert_int_equal(rs_sums_measure(s->sums[h], &s->memory[h], true), RS_OK);
}

/* The reduction of a state's words. */
static uint64_t *words_of(const rs_space *space, state_of *s)
{
    size_t count = rs_sums_word_count(space);
    uint64_t *total = calloc(count, sizeof *total);
    uint64_t *words = calloc(count, sizeof *words);
    for (int h = 0; h < s->holders; h++) {
        assert_int_equal(rs_sums_words(s->sums[h], words), RS_OK);
        for (size_t k = 0; k < count; k++)
            total[k] += words[k];
    }
    free(words);
    return total;
}

static rs_status compare_states(const rs_space *space, state_of *a, state_of *b)
{
    uint64_t *before = words_of(space, a);
    uint64_t *after = words_of(space, b);
    rs_status status = rs_sums_compare(space, before, after, -1);
    free(before);
    free(after);
    return status;
}

static rs_space *make_space(void)
{
    rs_space *space;
    rs_model model = pattern_model();
    assert_int_equal(rs_model_space(&model, RS_DTYPE_BF16, &space), RS_OK);
    /* Some biases in float32 amid bfloat16, and norms that are not trained. */
    int bias = rs_space_find_tensor(space, "layers.attn.k.bias");
    int norm = rs_space_find_tensor(space, "layers.mlp_norm.weight");
    assert_int_equal(rs_space_set_dtype(space, bias, 0, RS_DTYPE_F32), RS_OK);
    for (int role = 1; role < rs_space_role_count(space); role++)
        assert_int_equal(rs_space_set_dtype(space, norm, role, RS_DTYPE_NONE), RS_OK);
    return space;
}

static const char *const layouts[] = {"dp=1", "tp=2", "tp=3,pp=2", "pp=5", "dp=4,zero=1",
    "tp=2,pp=2,dp=2,zero=1", "tp=7", "pp=3,dp=2", "tp=2,dp=5,zero=1",
    "tp=2,pp=3,dp=2,zero=1,order=dp-pp-tp"};
#define LAYOUTS (sizeof layouts / sizeof *layouts)

static void moves_between_all_layouts(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    rs_plan_options options = {.ranks_per_node = 2, .chunk_bytes = 3000};
    /* Half of all pairs; each layout is on both sides. */
    for (size_t a = 0; a < LAYOUTS; a++)
        for (size_t b = a / 2 % 2; b < LAYOUTS; b += 2) {
            state_of from;
            state_of to;
            state_of again;
            make_state(space, layouts[a], &from);
            make_state(space, layouts[b], &to);
            make_state(space, layouts[a], &again);
            fill_state(&from, a + 1);
            measure_state(&from);
            rs_move_report report;
            assert_int_equal(rs_move_local(from.placement, to.placement, &options, from.memory,
                                 to.memory, to.sums, &report),
                RS_OK);
            check_state(&to, a + 1);
            check_state(&from, a + 1);
            assert_int_equal(compare_states(space, &from, &to), RS_OK);
            rs_plan_totals totals;
            assert_int_equal(
                rs_plan_totals_compute(from.placement, to.placement, &options, false, &totals),
                RS_OK);
            assert_int_equal(report.node_bytes + report.remote_bytes, totals.minimum);
            assert_int_equal(report.self_bytes, totals.self);
            rs_plan_totals_fini(&totals);
            /* The sums that the move left are those of the memory. */
            for (int h = 0; h < to.holders; h++) {
                size_t count;
                rs_cell *cells = rs_sums_cells(to.sums[h], &count);
                rs_cell *kept = malloc((count + 1) * sizeof *kept);
                memcpy(kept, cells, count * sizeof *kept);
                assert_int_equal(rs_sums_measure(to.sums[h], &to.memory[h], true), RS_OK);
                for (size_t k = 0; k < count; k++) {
                    assert_true(kept[k].known);
                    assert_memory_equal(&kept[k].sum, &cells[k].sum, sizeof kept[k].sum);
                }
                free(kept);
            }
            assert_int_equal(rs_move_local(to.placement, again.placement, &options, to.memory,
                                 again.memory, NULL, NULL),
                RS_OK);
            for (int h = 0; h < from.holders; h++)
                for (size_t k = 0; k < from.memory[h].count; k++)
                    assert_memory_equal(from.memory[h].regions[k].data,
                        again.memory[h].regions[k].data, (size_t)from.memory[h].regions[k].bytes);
            free_state(&from);
            free_state(&to);
            free_state(&again);
        }
    rs_space_destroy(space);
}

/* Adopted segments are not written, and their sums are taken over. */
static void leaves_adopted_segments(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    rs_plan_options options = {.adopt = true};
    state_of from;
    state_of to;
    make_state(space, "pp=2,dp=2", &from);
    make_state(space, "pp=2,dp=4,zero=1", &to);
    fill_state(&from, 5);
    measure_state(&from);
    size_t adopted_bytes = 0;
    for (int h = 0; h < from.holders; h++) {
        rs_plan *plan;
        assert_int_equal(rs_plan_create(from.placement, to.placement, h, &options, &plan), RS_OK);
        size_t count;
        const int *adopted = rs_plan_adopted(plan, &count);
        for (size_t k = 0; k < count; k++) { /* the same bytes in both memories */
            char *there = rs_memory_segment(&from.memory[h], adopted[k]);
            for (size_t r = 0; r < to.memory[h].count; r++)
                if (to.memory[h].regions[r].segment == adopted[k]) {
                    to.memory[h].regions[r].data = there;
                    adopted_bytes += (size_t)to.memory[h].regions[r].bytes;
                }
        }
        rs_sums_adopt(to.sums[h], from.sums[h], adopted, count);
        rs_plan_destroy(plan);
    }
    assert_true(adopted_bytes > 0);
    assert_int_equal(rs_move_local(from.placement, to.placement, &options, from.memory, to.memory,
                         to.sums, NULL),
        RS_OK);
    check_state(&to, 5);
    for (int h = 0; h < from.holders;
         h++) { /* what was adopted only in part still has sums to fill */
        assert_int_equal(rs_sums_measure(to.sums[h], &to.memory[h], false), RS_OK);
    }
    assert_int_equal(compare_states(space, &from, &to), RS_OK);
    free_state(&from);
    free_state(&to);
    rs_space_destroy(space);
}

/* A bit that a copy gets wrong shows in the certificate, whichever copy it is. */
static void notices_a_wrong_copy(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    state_of from;
    state_of to;
    make_state(space, "tp=2,dp=2,zero=1", &from);
    make_state(space, "tp=3,pp=2", &to);
    fill_state(&from, 9);
    measure_state(&from);
    long copies = 0;
    for (long n = 1;; n += 1 + n / 8) {
        for (int h = 0; h < to.holders; h++) {
            rs_sums_destroy(to.sums[h]);
            assert_int_equal(rs_sums_create(to.placement, h, &to.sums[h]), RS_OK);
        }
        rs_fault_arm(RS_FAULT_CORRUPT, n, 1);
        assert_int_equal(
            rs_move_local(from.placement, to.placement, &(rs_plan_options){.chunk_bytes = 4096},
                from.memory, to.memory, to.sums, NULL),
            RS_OK);
        bool hit = !rs_fault_pending(RS_FAULT_CORRUPT);
        rs_fault_arm(RS_FAULT_CORRUPT, 0, 0);
        assert_int_equal(compare_states(space, &from, &to), hit ? RS_ERR_CERTIFICATE : RS_OK);
        if (!hit)
            break;
        copies++;
    }
    assert_true(copies > 10);
    free_state(&from);
    free_state(&to);
    rs_space_destroy(space);
}

/* Content that was moved right from a source that was wrong: a stale moment, tensors swapped. */
static void notices_wrong_content(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    state_of right;
    state_of wrong;
    make_state(space, "tp=2", &right);
    make_state(space, "pp=2", &wrong);
    fill_state(&right, 3);
    fill_state(&wrong, 3);
    measure_state(&right);
    measure_state(&wrong);
    assert_int_equal(compare_states(space, &right, &wrong), RS_OK);
    /* The first moment of one layer as it was a step ago. */
    int moment = rs_space_find_role(space, "exp_avg");
    int up = rs_space_find_tensor(space, "layers.mlp.up.weight");
    rs_shard_list shards = {0};
    assert_int_equal(rs_placement_shards(wrong.placement, 1, moment, &shards), RS_OK);
    for (size_t k = 0; k < shards.count; k++)
        if (shards.items[k].tensor == up)
            assert_true(pattern_shard(space, &wrong.memory[1], &shards.items[k], 2, pattern_put));
    measure_state(&wrong);
    assert_int_equal(compare_states(space, &right, &wrong), RS_ERR_CERTIFICATE);
    assert_non_null(strstr(rs_error_message(), "layers.mlp.up.weight"));
    assert_non_null(strstr(rs_error_message(), "exp_avg"));
    rs_shard_list_fini(&shards);
    free_state(&right);
    free_state(&wrong);
    rs_space_destroy(space);
}

static void reports_what_is_missing(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    state_of from;
    state_of to;
    make_state(space, "tp=2", &from);
    make_state(space, "pp=2", &to);
    rs_memory gone = to.memory[1];
    to.memory[1] = (rs_memory){0};
    assert_int_equal(rs_move_local(from.placement, to.placement, &(rs_plan_options){0}, from.memory,
                         to.memory, NULL, NULL),
        RS_ERR_NOT_FOUND);
    to.memory[1] = gone;
    rs_fault_arm(RS_FAULT_COPY, 3, 1);
    assert_int_equal(rs_move_local(from.placement, to.placement, &(rs_plan_options){0}, from.memory,
                         to.memory, NULL, NULL),
        RS_ERR_IO);
    rs_fault_arm(RS_FAULT_COPY, 0, 0);
    free_state(&from);
    free_state(&to);
    rs_space_destroy(space);
}

static void survives_failed_allocations(void **unused)
{
    (void)unused;
    rs_space *space = make_space();
    state_of from;
    state_of to;
    make_state(space, "tp=2", &from);
    make_state(space, "pp=2,dp=2,zero=1", &to);
    fill_state(&from, 4);
    for (size_t n = 1;; n += 1 + n / 6) {
        rs_alloc_fail_at(n);
        rs_status status = rs_move_local(from.placement, to.placement, &(rs_plan_options){0},
            from.memory, to.memory, to.sums, NULL);
        rs_alloc_fail_at(0);
        if (status == RS_OK)
            break;
        assert_int_equal(status, RS_ERR_NO_MEMORY);
    }
    check_state(&to, 4);
    free_state(&from);
    free_state(&to);
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_between_all_layouts),
        cmocka_unit_test(leaves_adopted_segments),
        cmocka_unit_test(notices_a_wrong_copy),
        cmocka_unit_test(notices_wrong_content),
        cmocka_unit_test(reports_what_is_missing),
        cmocka_unit_test(survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
