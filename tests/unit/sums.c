/* Cells against counting holders element by element; words, adoption and comparison by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "reshard/certificate.h"
#include "reshard/layout.h"
#include "support/ok.h"
#include "support/place.h"
#include "support/points.h"

enum { TENSORS = 3 };

/* Roles "param" and "master" of a layered matrix, a replicated vector and a scalar. */
static rs_space *make_space(void)
{
    rs_space *space;
    OK(rs_space_create(&space));
    OK(rs_space_add_role(space, &(rs_role){.name = "param", .dtype = RS_DTYPE_BF16}, NULL));
    OK(rs_space_add_role(space,
        &(rs_role){.name = "master", .dtype = RS_DTYPE_F32, .role_class = RS_ROLE_OPTIMIZER},
        NULL));
    const rs_tensor tensors[TENSORS] = {
        {.name = "m", .ndim = 3, .shape = {3, 7, 30}, .axis = {RS_AXIS_LAYER, RS_AXIS_FFN}},
        {.name = "v", .ndim = 1, .shape = {200}, .stage = RS_STAGE_FIRST},
        {.name = "s", .ndim = 0, .stage = RS_STAGE_LAST},
    };
    for (int t = 0; t < TENSORS; t++)
        OK(rs_space_add_tensor(space, &tensors[t], NULL));
    return space;
}

/* Content that differs between (tensor, role, element); its sum in two lanes stands for the mix. */
static rs_sum sum_of(const rs_tensor *tensor, const rs_cell *cell)
{
    rs_sum sum = {0};
    int64_t point[RS_MAX_DIMS];
    memcpy(point, cell->box.offset, sizeof point);
    do {
        uint64_t x = (uint64_t)index_of(tensor, point) * 0x9e3779b97f4a7c15u +
                     (uint64_t)(cell->tensor * 7 + cell->role);
        sum.lane[0] += x ^ (x >> 31);
        sum.lane[1] += (x ^ (x >> 17)) * 0xbf58476d1ce4e5b9u;
    } while (next_point(&cell->box, point));
    return sum;
}

enum { ELEMENTS = 3 * 7 * 30 };

/* How many hold each element, and the lowest of them + 1. */
static void count_holders(
    const rs_placement *placement, int tensor, int role, int *holders, int *low)
{
    const rs_tensor *described = rs_space_tensor(rs_placement_space(placement), tensor);
    rs_shard_list shards = {0};
    memset(holders, 0, ELEMENTS * sizeof *holders);
    memset(low, 0, ELEMENTS * sizeof *low);
    for (int h = 0; h < rs_placement_holders(placement); h++) {
        OK(rs_placement_shards(placement, h, role, &shards));
        for (size_t i = 0; i < shards.count; i++) {
            if (shards.items[i].tensor != tensor)
                continue;
            int64_t point[RS_MAX_DIMS];
            memcpy(point, shards.items[i].box.offset, sizeof point);
            do {
                int64_t at = index_of(described, point);
                holders[at]++;
                low[at] = low[at] == 0 ? h + 1 : low[at];
            } while (next_point(&shards.items[i].box, point));
        }
    }
    rs_shard_list_fini(&shards);
}

/* The cells of every holder are its shards, and say rightly who else has them. */
static void check_cells(const rs_placement *placement)
{
    const rs_space *space = rs_placement_space(placement);
    static int holders[TENSORS][2][ELEMENTS];
    static int low[TENSORS][2][ELEMENTS];
    static int seen[TENSORS][2][ELEMENTS];
    memset(seen, 0, sizeof seen);
    for (int t = 0; t < TENSORS; t++)
        for (int r = 0; r < 2; r++)
            count_holders(placement, t, r, holders[t][r], low[t][r]);
    for (int h = 0; h < rs_placement_holders(placement); h++) {
        rs_sums *sums;
        size_t count;
        OK(rs_sums_create(placement, h, &sums));
        const rs_cell *cells = rs_sums_cells(sums, &count);
        int64_t before = -1;
        for (size_t i = 0; i < count; i++) {
            const rs_cell *cell = &cells[i];
            rs_shard place;
            OK(rs_placement_address(placement, h, cell->tensor, cell->role, &cell->box, &place));
            assert_int_equal(place.segment, cell->segment);
            assert_false(cell->known);
            if (i > 0 && cells[i - 1].segment == cell->segment && cells[i - 1].role == cell->role)
                assert_true(before < place.offset);
            if (i > 0)
                assert_true(
                    cells[i - 1].role < cell->role ||
                    (cells[i - 1].role == cell->role && cells[i - 1].segment <= cell->segment));
            before = place.offset;
            int64_t point[RS_MAX_DIMS];
            memcpy(point, cell->box.offset, sizeof point);
            do {
                int64_t at = index_of(rs_space_tensor(space, cell->tensor), point);
                assert_int_equal(holders[cell->tensor][cell->role][at], cell->holders);
                assert_int_equal(low[cell->tensor][cell->role][at] == h + 1, cell->counted);
                seen[cell->tensor][cell->role][at]++;
            } while (next_point(&cell->box, point));
        }
        rs_sums_destroy(sums);
    }
    assert_memory_equal(seen, holders, sizeof seen);
}

static const char *const layouts[] = {
    "dp=1", "tp=3,dp=2,zero=1", "tp=2,pp=2,dp=2,zero=3", "tp=4,dp=3,zero=1", "pp=3", "tp=7,pp=2"};

static void test_cells(void **state)
{
    (void)state;
    rs_space *space = make_space();
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        rs_placement *placement = place(space, layouts[i]);
        check_cells(placement);
        rs_placement_destroy(placement);
    }
    rs_space_destroy(space);
}

/* Makes all cells of a holder known. */
static void fill(const rs_space *space, rs_sums *sums)
{
    size_t count;
    rs_cell *cells = rs_sums_cells(sums, &count);
    for (size_t i = 0; i < count; i++) {
        cells[i].sum = sum_of(rs_space_tensor(space, cells[i].tensor), &cells[i]);
        cells[i].known = true;
    }
}

/* The reduced words of a state; `spoil` changes one lane of that holder's first uncounted cell of a
 * role by `change` (its first counted one with `counted`). */
static uint64_t *reduce(
    const rs_space *space, const char *layout, int spoil, bool counted, uint64_t change)
{
    rs_placement *placement = place(space, layout);
    size_t words = rs_sums_word_count(space);
    uint64_t *total = calloc(words, sizeof *total);
    uint64_t *one = calloc(words, sizeof *one);
    for (int h = 0; h < rs_placement_holders(placement); h++) {
        rs_sums *sums;
        size_t count;
        OK(rs_sums_create(placement, h, &sums));
        rs_cell *cells = rs_sums_cells(sums, &count);
        if (count > 0)
            assert_int_equal(rs_sums_words(sums, one), RS_ERR_ARGUMENT);
        fill(space, sums);
        for (size_t i = 0; i < count && h == spoil; i++)
            if (cells[i].counted == counted) {
                cells[i].sum.lane[1] += change;
                break;
            }
        OK(rs_sums_words(sums, one));
        for (size_t i = 0; i < words; i++)
            total[i] += one[i];
        rs_sums_destroy(sums);
    }
    free(one);
    rs_placement_destroy(placement);
    return total;
}

static void test_compare(void **state)
{
    (void)state;
    rs_space *space = make_space();
    assert_int_equal(rs_sums_word_count(space), 6 * 2 * TENSORS);
    uint64_t *before = reduce(space, layouts[0], -1, false, 0);
    for (size_t i = 1; i < sizeof layouts / sizeof *layouts; i++) {
        uint64_t *after = reduce(space, layouts[i], -1, false, 0);
        OK(rs_sums_compare(space, before, after, -1));
        OK(rs_sums_compare(space, after, before, -1));
        free(after);
    }
    /* A counted cell that is wrong; a replica that is wrong. */
    uint64_t *after = reduce(space, "tp=3,dp=2,zero=1", 0, true, 1);
    assert_int_equal(rs_sums_compare(space, before, after, -1), RS_ERR_CERTIFICATE);
    assert_non_null(strstr(rs_error_message(), "role param: the content sum"));
    OK(rs_sums_compare(space, before, after, 2));
    assert_int_equal(rs_sums_compare(space, before, after, 1), RS_ERR_CERTIFICATE);
    free(after);
    after = reduce(space, "tp=3,dp=2,zero=1", 5, false, 1);
    assert_int_equal(rs_sums_compare(space, before, after, -1), RS_ERR_CERTIFICATE);
    assert_non_null(strstr(rs_error_message(), "not equal"));
    free(after);
    free(before);
    rs_space_destroy(space);
}

/* From dp=2 to dp=3 without ZeRO the segments stay, with the same cells; from tp=3 they do not. */
static void test_adopt(void **state)
{
    (void)state;
    rs_space *space = make_space();
    rs_placement *old = place(space, "dp=2");
    rs_placement *now = place(space, "dp=3");
    rs_sums *before, *after;
    size_t count;
    OK(rs_sums_create(old, 1, &before));
    OK(rs_sums_create(now, 1, &after));
    fill(space, before);
    rs_cell *known = rs_sums_cells(before, &count);
    known[count - 1].known = false;
    int skipped = known[0].segment;
    int segments[64];
    size_t segment_count = 0;
    for (size_t i = 0; i < count; i++)
        if (known[i].segment != skipped &&
            (segment_count == 0 || segments[segment_count - 1] != known[i].segment))
            segments[segment_count++] = known[i].segment;
    rs_sums_adopt(after, before, segments, segment_count);
    rs_cell *cells = rs_sums_cells(after, &count);
    size_t adopted = 0;
    for (size_t i = 0; i < count; i++) {
        bool expected = cells[i].segment != skipped && i != count - 1;
        assert_int_equal(cells[i].known, expected);
        assert_int_equal(cells[i].holders, 3);
        if (expected)
            assert_memory_equal(&cells[i].sum, &known[i].sum, sizeof known[i].sum);
        adopted += expected;
    }
    assert_true(adopted > 3);
    rs_sums_destroy(before);
    rs_sums_destroy(after);

    /* Other boxes: nothing is taken over, even where the segment is listed. */
    rs_placement *cut = place(space, "tp=3");
    OK(rs_sums_create(cut, 1, &before));
    OK(rs_sums_create(now, 1, &after));
    fill(space, before);
    rs_sums_adopt(after, before, segments, segment_count);
    cells = rs_sums_cells(after, &count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(cells[i].known, cells[i].tensor != 0 && cells[i].segment != skipped);
    rs_sums_destroy(before);
    rs_sums_destroy(after);

    /* A holder beyond the placement has no cells. */
    OK(rs_sums_create(old, 2, &before));
    rs_sums_cells(before, &count);
    assert_int_equal(count, 0);
    rs_sums_destroy(before);
    rs_sums_destroy(NULL);
    rs_placement_destroy(old);
    rs_placement_destroy(now);
    rs_placement_destroy(cut);
    rs_space_destroy(space);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    rs_space *space = make_space();
    rs_placement *placement = place(space, "tp=2,pp=2,dp=2,zero=1");
    size_t n = 1;
    for (;; n++) {
        rs_sums *sums = NULL;
        rs_alloc_fail_at(n);
        rs_status status = rs_sums_create(placement, 3, &sums);
        rs_alloc_fail_at(0);
        rs_sums_destroy(sums);
        if (status == RS_OK)
            break;
        assert_int_equal(status, RS_ERR_NO_MEMORY);
    }
    assert_true(n > 5);
    rs_placement_destroy(placement);
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells),
        cmocka_unit_test(test_compare),
        cmocka_unit_test(test_adopt),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
