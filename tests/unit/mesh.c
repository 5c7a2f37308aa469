/*
 * The memory placement of layouts against brute force (support/counted.h): for small random spaces
 * and layouts, every answer of the placement is compared with what was counted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/memory.h"
#include "reshard/layout.h"
#include "reshard/model.h"
#include "support/counted.h"

/* ---- comparisons ---- */

static int64_t canonical(const rs_tensor *t, const int64_t *index)
{
    int64_t number = 0;
    for (int d = 0; d < t->ndim; d++)
        number = number * t->shape[d] + index[d];
    return number;
}

static bool next_in(const rs_box *box, int64_t *index)
{
    for (int d = box->ndim - 1; d >= 0; d--) {
        if (++index[d] < box->offset[d] + box->extent[d])
            return true;
        index[d] = box->offset[d];
    }
    return false;
}

/* Every element of every shard lies where it must, and all of the kept ones do. */
static void compare_shards(const world_case *w, int rank, int role, const rs_shard_list *shards)
{
    const owned_role *own = owned_of(w, rank, role);
    int64_t covered = 0;
    for (size_t s = 0; s < shards->count; s++) {
        const rs_shard *shard = &shards->items[s];
        const rs_tensor *t = rs_space_tensor(w->space, shard->tensor);
        CHECK(shard->role == role && shard->dtype == rs_space_dtype(w->space, shard->tensor, role));
        CHECK(!rs_box_is_empty(&shard->box));
        CHECK(shard->offset % (int64_t)rs_dtype_size(shard->dtype) == 0);
        if (s > 0)
            CHECK(shards->items[s - 1].segment < shard->segment ||
                  (shards->items[s - 1].segment == shard->segment &&
                      shards->items[s - 1].offset < shard->offset));
        int64_t index[RS_MAX_DIMS];
        memcpy(index, shard->box.offset, sizeof index);
        do {
            int64_t offset = shard->offset;
            for (int d = 0; d < t->ndim; d++)
                offset += (index[d] - shard->box.offset[d]) * shard->stride[d];
            CHECK(own->places[shard->tensor][canonical(t, index)] ==
                  1 + ((int64_t)shard->segment << 40) + offset);
            covered++;
        } while (next_in(&shard->box, index));
    }
    /* Places determine elements and elements are distinct, so equal counts mean equal sets unless
     * two shards overlap. */
    CHECK(covered == own->kept);
    for (size_t a = 0; a < shards->count; a++)
        for (size_t b = 0; b < a; b++) {
            rs_box both;
            CHECK(shards->items[a].tensor != shards->items[b].tensor ||
                  !rs_box_intersect(&shards->items[a].box, &shards->items[b].box, &both));
        }
}

static void compare_coords(const world_case *w, int rank)
{
    rs_coords at = rs_layout_coords(&w->layout, rank);
    const standing *wanted = &w->at[rank];
    CHECK(at.pp == wanted->stage && at.tp == wanted->slice[DENSE][0]);
    CHECK(at.etp == wanted->slice[EXPERTS][0] && at.ep == wanted->slice[EXPERTS][1]);
    CHECK(at.edp == wanted->member[EXPERTS]);
    CHECK(at.cp >= 0 && at.cp < w->layout.cp && at.dp >= 0 && at.dp < w->layout.dp);
    CHECK(rs_layout_rank(&w->layout, at) == rank);
    CHECK(rs_layout_expert_rank(&w->layout, at) == rank);
    CHECK(rs_layout_shard_group(&w->layout, false) == wanted->group[DENSE]);
    CHECK(rs_layout_shard_group(&w->layout, true) == wanted->group[EXPERTS]);
    for (int mesh = 0; mesh < MESHES; mesh++)
        CHECK(rs_layout_shard_member(&w->layout, mesh == EXPERTS, rank) ==
              wanted->member[mesh] % wanted->group[mesh]);
}

static void compare_layout_ranges(const world_case *w, int rank)
{
    int64_t begin;
    int64_t end;
    for (int role = 0; role < ROLES; role++) {
        const owned_role *own = owned_of(w, rank, role);
        if (!is_sharded(w, role) || w->layout.zero_cut == RS_CUT_CONCAT) {
            rs_layout_flat_range(w->space, &w->layout, rank, role, &begin, &end);
            CHECK(begin == own->mesh[DENSE].begin && end == own->mesh[DENSE].end);
            rs_layout_expert_flat_range(w->space, &w->layout, rank, role, &begin, &end);
            CHECK(begin == own->mesh[EXPERTS].begin && end == own->mesh[EXPERTS].end);
        }
        /* The ranges without a role are those of one that every tensor has. */
        bool complete = true;
        for (int i = 0; i < rs_space_tensor_count(w->space); i++)
            complete = complete && rs_space_dtype(w->space, i, role) != RS_DTYPE_NONE;
        if (!complete)
            continue;
        CHECK(rs_layout_local_elements(w->space, &w->layout, rank) == own->mesh[DENSE].count);
        CHECK(rs_layout_expert_elements(w->space, &w->layout, rank) == own->mesh[EXPERTS].count);
        for (int b = 0; b < rs_layout_block_count(w->space); b++) {
            const local *all = &own->mesh[b / w->blocks];
            int64_t first = 0;
            while (first < all->count && all->items[first].block < b % w->blocks)
                first++;
            int64_t last = first;
            while (last < all->count && all->items[last].block == b % w->blocks)
                last++;
            rs_layout_block_range(w->space, &w->layout, rank, b, &begin, &end);
            CHECK(begin == first && end == last);
        }
    }
}

static void compare_segments(const world_case *w, int rank)
{
    rs_segment_list segments = {0};
    assert_int_equal(rs_placement_segments(w->placement, rank, &segments), RS_OK);
    size_t at = 0;
    for (int role = 0; role < ROLES; role++)
        for (int b = 0; b < MESHES * w->blocks; b++) {
            int64_t bytes = owned_of(w, rank, role)->bytes[b];
            if (bytes == 0)
                continue;
            CHECK(at < segments.count);
            CHECK(segments.items[at].segment == rs_layout_segment(w->space, role, b));
            CHECK(segments.items[at].bytes == bytes);
            at++;
        }
    CHECK(at == segments.count);
    rs_segment_list_fini(&segments);
}

static void test_shards_are_the_concatenation(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        world_case one;
        world_case *w = &one;
        setup_case(w, seed);
        rs_shard_list shards = {0};
        for (int rank = 0; rank < w->ranks; rank++) {
            compare_coords(w, rank);
            compare_layout_ranges(w, rank);
            compare_segments(w, rank);
            size_t all = 0;
            for (int role = 0; role < ROLES; role++) {
                assert_int_equal(rs_placement_shards(w->placement, rank, role, &shards), RS_OK);
                compare_shards(w, rank, role, &shards);
                all += shards.count;
            }
            assert_int_equal(rs_placement_shards(w->placement, rank, -1, &shards), RS_OK);
            CHECK(shards.count == all);
        }
        assert_int_equal(rs_placement_shards(w->placement, w->ranks, -1, &shards), RS_OK);
        CHECK(shards.count == 0);
        rs_shard_list_fini(&shards);
        teardown_case(w);
    }
}

/* Every element of the space is somewhere, whatever the layout. */
static void test_every_element_is_held(void **state)
{
    (void)state;
    for (uint64_t seed = 200; seed <= 280; seed++) {
        world_case one;
        world_case *w = &one;
        setup_case(w, seed);
        for (int role = 0; role < ROLES; role++)
            for (int i = 0; i < rs_space_tensor_count(w->space); i++) {
                const rs_tensor *t = rs_space_tensor(w->space, i);
                rs_box whole = rs_box_whole(t->ndim, t->shape);
                int64_t volume = rs_box_is_empty(&whole) ? 0 : rs_box_volume(&whole);
                bool wanted = rs_space_dtype(w->space, i, role) != RS_DTYPE_NONE;
                for (int64_t e = 0; e < volume; e++) {
                    bool held = false;
                    for (int rank = 0; rank < w->ranks && !held; rank++)
                        held = owned_of(w, rank, role)->places[i][e] != 0;
                    CHECK(held == wanted);
                }
            }
        teardown_case(w);
    }
}

static rs_box random_box(uint64_t *random, const rs_box *within)
{
    rs_box box = *within;
    for (int d = 0; d < box.ndim; d++) {
        int extent = (int)within->extent[d];
        int begin = random_in(random, 0, extent > 0 ? extent - 1 : 0);
        box.offset[d] += begin;
        box.extent[d] = extent > 0 ? random_in(random, 0, 9) == 0
                                         ? extent - begin
                                         : random_in(random, 1, extent - begin)
                                   : 0;
    }
    return box;
}

/* One shard of one rank. */
typedef struct owned {
    rs_box box;
    int rank;
} owned;

static int compare_owned(const void *a, const void *b)
{
    const owned *x = a;
    const owned *y = b;
    int order = rs_box_compare(&x->box, &y->box);
    return order != 0 ? order : x->rank - y->rank;
}

/* All shards of all ranks of a role, rank by rank. */
static void gather(const world_case *w, int role, rs_shard_list *out, size_t *first)
{
    rs_shard_list one = {0};
    out->count = 0;
    for (int rank = 0; rank < w->ranks; rank++) {
        first[rank] = out->count;
        assert_int_equal(rs_placement_shards(w->placement, rank, role, &one), RS_OK);
        size_t need = out->count + one.count;
        out->items = realloc(out->items, (need + 1) * sizeof *out->items);
        if (one.count > 0)
            memcpy(out->items + out->count, one.items, one.count * sizeof *one.items);
        out->count = need;
    }
    first[w->ranks] = out->count;
    rs_shard_list_fini(&one);
}

static void compare_locate(const world_case *w, const rs_shard_list *all, const size_t *first,
    int tensor, int role, const rs_box *box)
{
    owned *expected = calloc(all->count + 1, sizeof *expected);
    size_t count = 0;
    for (int rank = 0; rank < w->ranks; rank++)
        for (size_t s = first[rank]; s < first[rank + 1]; s++) {
            rs_box both;
            if (all->items[s].tensor == tensor && rs_box_intersect(&all->items[s].box, box, &both))
                expected[count++] = (owned){.box = all->items[s].box, .rank = rank};
        }
    qsort(expected, count, sizeof *expected, compare_owned);
    rs_holding_list found = {0};
    assert_int_equal(rs_placement_locate(w->placement, tensor, role, box, &found), RS_OK);
    CHECK(found.rank_count == count);
    size_t at = 0;
    for (size_t h = 0; h < found.count; h++) {
        CHECK(found.items[h].count > 0);
        if (h > 0)
            CHECK(rs_box_compare(&found.items[h - 1].box, &found.items[h].box) < 0);
        for (size_t r = 0; r < found.items[h].count; r++, at++) {
            CHECK(at < count);
            CHECK(rs_box_equal(&found.items[h].box, &expected[at].box));
            CHECK(found.ranks[found.items[h].first + r] == expected[at].rank);
        }
    }
    CHECK(at == count);
    rs_holding_list_fini(&found);
    free(expected);
}

static void compare_address(const world_case *w, const rs_shard_list *all, const size_t *first,
    int rank, int tensor, int role, const rs_box *box)
{
    const rs_shard *within = NULL;
    for (size_t s = first[rank]; s < first[rank + 1]; s++)
        if (all->items[s].tensor == tensor && rs_box_contains(&all->items[s].box, box) &&
            !rs_box_is_empty(box))
            within = &all->items[s];
    rs_shard part;
    rs_status status = rs_placement_address(w->placement, rank, tensor, role, box, &part);
    if (within == NULL) {
        CHECK(status == RS_ERR_NOT_FOUND);
        return;
    }
    CHECK(status == RS_OK);
    CHECK(part.tensor == tensor && part.role == role && part.dtype == within->dtype);
    CHECK(part.segment == within->segment && rs_box_equal(&part.box, box));
    int64_t offset = within->offset;
    for (int d = 0; d < box->ndim; d++) {
        offset += (box->offset[d] - within->box.offset[d]) * within->stride[d];
        CHECK(part.stride[d] == within->stride[d]);
    }
    CHECK(part.offset == offset);
}

static void test_locate_and_address(void **state)
{
    (void)state;
    for (uint64_t seed = 1000; seed < 1120; seed++) {
        world_case one;
        world_case *w = &one;
        setup_case(w, seed);
        uint64_t random = ~seed;
        rs_shard_list all = {0};
        size_t first[MAX_RANKS + 1];
        for (int role = 0; role < ROLES; role++) {
            gather(w, role, &all, first);
            for (int i = 0; i < rs_space_tensor_count(w->space); i++) {
                const rs_tensor *t = rs_space_tensor(w->space, i);
                rs_box whole = rs_box_whole(t->ndim, t->shape);
                compare_locate(w, &all, first, i, role, &whole);
                for (int round = 0; round < 6; round++) {
                    rs_box box = random_box(&random, &whole);
                    compare_locate(w, &all, first, i, role, &box);
                    compare_address(
                        w, &all, first, random_in(&random, 0, w->ranks - 1), i, role, &box);
                }
            }
            for (size_t s = 0; s < all.count; s++) {
                int rank = 0;
                while (first[rank + 1] <= s)
                    rank++;
                rs_box box = random_box(&random, &all.items[s].box);
                compare_address(w, &all, first, rank, all.items[s].tensor, role, &box);
            }
        }
        free(all.items);
        teardown_case(w);
    }
}

static void test_geometry(void **state)
{
    (void)state;
    for (uint64_t seed = 2000; seed < 2060; seed++) {
        world_case one;
        world_case *w = &one;
        setup_case(w, seed);
        rs_shard_list shards[ROLES] = {{0}};
        size_t first[ROLES][MAX_RANKS + 1];
        bool same[ROLES][ROLES];
        for (int role = 0; role < ROLES; role++) {
            gather(w, role, &shards[role], first[role]);
            for (int other = 0; other <= role; other++) {
                same[role][other] =
                    memcmp(first[role], first[other], (size_t)(w->ranks + 1) * sizeof(size_t)) == 0;
                for (size_t s = 0; same[role][other] && s < shards[role].count; s++)
                    same[role][other] =
                        shards[role].items[s].tensor == shards[other].items[s].tensor &&
                        rs_box_equal(&shards[role].items[s].box, &shards[other].items[s].box);
            }
            int lowest = rs_placement_geometry(w->placement, role);
            CHECK(lowest <= role && same[role][lowest]);
            CHECK(rs_placement_geometry(w->placement, lowest) == lowest);
        }
        /* Roles of one class that have the same tensors always share one. */
        bool alike[2] = {true, true};
        for (int i = 0; i < rs_space_tensor_count(w->space); i++)
            for (int k = 0; k < 2; k++)
                alike[k] = alike[k] && (rs_space_dtype(w->space, i, k) == RS_DTYPE_NONE) ==
                                           (rs_space_dtype(w->space, i, 3) == RS_DTYPE_NONE);
        if (alike[1])
            CHECK(rs_placement_geometry(w->placement, 3) == rs_placement_geometry(w->placement, 1));
        if (alike[0] && (w->layout.dp * w->layout.cp == 1 || w->layout.zero == 0) &&
            (w->at[0].group[EXPERTS] == 1 || w->layout.zero == 0))
            CHECK(rs_placement_geometry(w->placement, 3) == 0);
        for (int role = 0; role < ROLES; role++)
            free(shards[role].items);
        teardown_case(w);
    }
}

/* ---- 16,384 ranks ---- */

static void check_rank(
    const rs_placement *placement, int rank, rs_shard_list *shards, rs_holding_list *found)
{
    assert_int_equal(rs_placement_shards(placement, rank, 1, shards), RS_OK);
    for (size_t s = 0; s < shards->count; s++) {
        const rs_shard *shard = &shards->items[s];
        rs_shard same;
        assert_int_equal(
            rs_placement_address(placement, rank, shard->tensor, 1, &shard->box, &same), RS_OK);
        assert_true(same.segment == shard->segment && same.offset == shard->offset);
        assert_true(rs_box_equal(&same.box, &shard->box));
        assert_int_equal(
            rs_placement_locate(placement, shard->tensor, 1, &shard->box, found), RS_OK);
        bool own = false;
        for (size_t h = 0; h < found->count; h++)
            for (size_t r = 0; r < found->items[h].count; r++)
                own = own || (found->ranks[found->items[h].first + r] == rank &&
                                 rs_box_equal(&found->items[h].box, &shard->box));
        assert_true(own);
    }
}

/* Shards found at their owners again; and in a time that no loop over all ranks would keep. */
static void test_many_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        const char *layout;
    } rows[] = {
        {"llama3-70b", "tp=8,pp=16,dp=128,zero=1"},
        {"llama3-70b", "tp=7,pp=13,dp=180,zero=3"},
        {"llama3-70b", "tp=64,dp=256,zero=1,order=dp-tp-pp"},
        {"llama3-70b", "tp=8,cp=4,pp=16,vpp=5,dp=32,zero=3,zero_cut=dim0,shard=32"},
        {"deepseek-v3", "tp=2,pp=16,dp=512,ep=64,etp=1,zero=1"},
        {"deepseek-v3", "tp=4,cp=2,pp=8,dp=256,ep=512,zero=3,zero_cut=dim0,order=ep-tp-dp-cp-pp"},
        {"deepseek-v3", "pp=31,dp=528,ep=88,zero=3,zero_cut=param,shard=66"},
        /* A stage's ranks lie apart by twos, and its experts are dealt by threes. */
        {"mixtral-8x7b", "tp=2,pp=4,dp=27,ep=3,etp=1,zero=1,order=tp-pp-cp-ep-dp"},
    };
    rs_shard_list shards = {0};
    rs_holding_list found = {0};
    clock_t begin = clock();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_model model;
        rs_space *space;
        rs_layout layout;
        rs_placement *placement;
        assert_int_equal(rs_model_load(rows[i].model, &model), RS_OK);
        assert_int_equal(rs_model_space(&model, RS_DTYPE_BF16, &space), RS_OK);
        assert_int_equal(rs_layout_parse(rows[i].layout, &layout), RS_OK);
        assert_int_equal(rs_layout_placement(space, &layout, &placement), RS_OK);
        for (int k = 0; k < 100; k++)
            check_rank(placement, k * (rs_layout_world(&layout) / 100), &shards, &found);
        rs_placement_destroy(placement);
        rs_space_destroy(space);
    }
    assert_true(clock() - begin < 2 * CLOCKS_PER_SEC);
    rs_shard_list_fini(&shards);
    rs_holding_list_fini(&found);
}

/* ---- what a layout cannot place ---- */

static void test_refusals(void **state)
{
    (void)state;
    rs_space *space;
    rs_placement *placement;
    rs_layout layout;
    assert_int_equal(rs_space_create(&space), RS_OK);
    assert_int_equal(rs_layout_parse("tp=2", &layout), RS_OK);
    RANDOM_ADD("both", RS_STAGE_BY_LAYER, 2, (4, 4), (RS_AXIS_VOCAB, RS_AXIS_FFN), 0, 0);
    assert_int_equal(rs_layout_placement(space, &layout, &placement), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "both"));
    rs_space_destroy(space);
    assert_int_equal(rs_space_create(&space), RS_OK);
    layout.tp = 0;
    assert_int_equal(rs_layout_placement(space, &layout, &placement), RS_ERR_ARGUMENT);
    layout.tp = 2;
    layout.order[0] = layout.order[1];
    assert_int_equal(rs_layout_placement(space, &layout, &placement), RS_ERR_ARGUMENT);
    rs_space_destroy(space);
}

static void test_questions_are_checked(void **state)
{
    (void)state;
    world_case one;
    world_case *w = &one;
    setup_case(w, 5);
    rs_shard_list shards = {0};
    rs_holding_list holdings = {0};
    rs_shard shard;
    rs_box far = {.ndim = 2, .offset = {1000, 0}, .extent = {1, 1}};
    rs_box flat = {.ndim = 1, .extent = {1}};
    rs_placement *p = w->placement;
    assert_int_equal(rs_placement_shards(p, -1, 0, &shards), RS_ERR_ARGUMENT);
    assert_int_equal(rs_placement_shards(p, 0, ROLES, &shards), RS_ERR_ARGUMENT);
    assert_int_equal(rs_placement_shards(p, 0, -2, &shards), RS_ERR_ARGUMENT);
    assert_int_equal(rs_placement_locate(p, 0, 0, &far, &holdings), RS_ERR_ARGUMENT);
    assert_int_equal(rs_placement_locate(p, 0, 0, &flat, &holdings), RS_ERR_ARGUMENT);
    assert_int_equal(rs_placement_locate(p, -1, 0, &far, &holdings), RS_ERR_ARGUMENT);
    assert_int_equal(rs_placement_address(p, 0, 0, ROLES, &far, &shard), RS_ERR_ARGUMENT);
    teardown_case(w);
}

/* The N-th allocation fails, N = 1, 2, ...: the call says so and nothing is left (run under asan).
 */
static void test_allocation_failures(void **state)
{
    (void)state;
    uint64_t random = 42;
    rs_space *space = random_space(&random);
    rs_layout layout;
    assert_int_equal(rs_layout_parse("tp=3,pp=2,dp=2,zero=1", &layout), RS_OK);
    rs_status status = RS_ERR_NO_MEMORY;
    for (size_t n = 1; status != RS_OK; n++) {
        rs_placement *placement = NULL;
        rs_shard_list shards = {0};
        rs_segment_list segments = {0};
        rs_holding_list holdings = {0};
        const rs_tensor *t = rs_space_tensor(space, 0);
        rs_box whole = rs_box_whole(t->ndim, t->shape);
        rs_alloc_fail_at(n);
        status = rs_layout_placement(space, &layout, &placement);
        if (status == RS_OK)
            status = rs_placement_shards(placement, 0, -1, &shards);
        if (status == RS_OK)
            status = rs_placement_segments(placement, 0, &segments);
        if (status == RS_OK)
            status = rs_placement_locate(placement, 0, 1, &whole, &holdings);
        rs_alloc_fail_at(0);
        assert_true(status == RS_OK || status == RS_ERR_NO_MEMORY);
        assert_true(status == RS_OK || n < 300);
        assert_true(status != RS_OK || n > 10);
        rs_shard_list_fini(&shards);
        rs_segment_list_fini(&segments);
        rs_holding_list_fini(&holdings);
        rs_placement_destroy(placement);
    }
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards_are_the_concatenation),
        cmocka_unit_test(test_every_element_is_held),
        cmocka_unit_test(test_locate_and_address),
        cmocka_unit_test(test_geometry),
        cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_questions_are_checked),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
