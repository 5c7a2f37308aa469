/* Plans whose every copy is known beforehand, figures, errors, and memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/memory.h"
#include "reshard/layout.h"
#include "reshard/model.h"
#include "reshard/plan.h"
#include "support/ok.h"
#include "support/place.h"

/* A space of vectors, one role of float32 (and one of bfloat16). */
static rs_space *vectors(const int64_t *lengths, int count, int roles)
{
    rs_space *space;
    OK(rs_space_create(&space));
    rs_role role = {.name = "param", .dtype = RS_DTYPE_F32};
    OK(rs_space_add_role(space, &role, NULL));
    role = (rs_role){.name = "half", .dtype = RS_DTYPE_BF16};
    if (roles > 1)
        OK(rs_space_add_role(space, &role, NULL));
    for (int t = 0; t < count; t++) {
        char name[8] = {'v', (char)('0' + t), 0};
        rs_tensor tensor = {.name = name, .ndim = 1, .shape = {lengths[t]}};
        OK(rs_space_add_tensor(space, &tensor, NULL));
    }
    return space;
}

/* Elements begin..end-1 of a vector on a holder, in a segment of its own number. */
typedef struct part {
    int holder;
    int tensor;
    int64_t begin;
    int64_t end;
    int segment;
} part;

/* Parts by ascending holder; every role alike. */
static rs_placement *place_parts(
    const rs_space *space, int holders, const part *parts, size_t count)
{
    rs_shard shards[64];
    size_t first[80];
    size_t used = 0;
    size_t next = 0;
    int roles = rs_space_role_count(space);
    for (int h = 0; h < holders; h++) {
        first[h] = used;
        for (; next < count && parts[next].holder == h; next++)
            for (int r = 0; r < roles; r++) {
                rs_dtype dtype = rs_space_role(space, r)->dtype;
                assert_true(used < 64);
                shards[used++] = (rs_shard){.tensor = parts[next].tensor,
                    .role = r,
                    .dtype = dtype,
                    .box = {.ndim = 1,
                        .offset = {parts[next].begin},
                        .extent = {parts[next].end - parts[next].begin}},
                    .segment = parts[next].segment * roles + r,
                    .stride = {(int64_t)rs_dtype_size(dtype)}};
            }
    }
    first[holders] = used;
    rs_placement *placement;
    OK(rs_placement_create_list(space, holders, shards, first, &placement));
    return placement;
}

#define PLACE(space, holders, parts)                                                               \
    place_parts(space, holders, parts, sizeof(parts) / sizeof *(parts))

static const rs_plan_options one_node = {0};

/* A copy of a vector, as expected. */
typedef struct expected {
    int source;
    int target;
    rs_reach reach;
    int tensor;
    int64_t begin;
    int64_t end;
} expected;

/* The plan has exactly these copies, in any order of theirs, and its own is ascending. */
static void expect(const rs_plan *plan, const expected *list, size_t wanted)
{
    size_t count;
    const rs_copy *copies = rs_plan_copies(plan, &count);
    assert_int_equal(count, wanted);
    for (size_t i = 0; i < wanted; i++) {
        size_t found = 0;
        for (size_t k = 0; k < count; k++)
            found += copies[k].source == list[i].source && copies[k].target == list[i].target &&
                     copies[k].reach == list[i].reach && copies[k].tensor == list[i].tensor &&
                     copies[k].box.offset[0] == list[i].begin &&
                     copies[k].box.offset[0] + copies[k].box.extent[0] == list[i].end;
        assert_int_equal(found, 1);
    }
    for (size_t k = 1; k < count; k++)
        assert_true(copies[k - 1].key <= copies[k].key);
}

#define EXPECT(plan, list) expect(plan, list, sizeof(list) / sizeof *(list))

static void test_two_to_three(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){12}, 1, 1);
    rs_placement *from = PLACE(space, 2, ((part[]){{0, 0, 0, 6, 0}, {1, 0, 6, 12, 0}}));
    rs_placement *to =
        PLACE(space, 3, ((part[]){{0, 0, 0, 4, 0}, {1, 0, 4, 8, 0}, {2, 0, 8, 12, 0}}));
    OK(rs_plan_check(from, to, &one_node));
    rs_plan *plan;
    OK(rs_plan_create(from, to, 1, &one_node, &plan));
    EXPECT(plan, ((expected[]){{0, 1, RS_REACH_NODE, 0, 4, 6}, {1, 1, RS_REACH_SELF, 0, 6, 8},
                     {1, 2, RS_REACH_NODE, 0, 8, 12}}));
    const rs_plan_figures *f = rs_plan_figures_of(plan);
    assert_int_equal(rs_plan_rank(plan), 1);
    assert_int_equal(f->old_bytes, 24);
    assert_int_equal(f->new_bytes, 16);
    assert_int_equal(f->self_bytes, 8);
    assert_int_equal(f->node_in, 8);
    assert_int_equal(f->node_out, 16);
    assert_int_equal(f->needed_bytes, 8);
    assert_int_equal(f->remote_in + f->remote_out + f->adopted_bytes, 0);
    assert_int_equal(f->peak_safe, 40);
    rs_plan_destroy(plan);

    /* Rank 2 has nothing before; rank 5 nothing at all. */
    OK(rs_plan_create(from, to, 2, &one_node, &plan));
    EXPECT(plan, ((expected[]){{1, 2, RS_REACH_NODE, 0, 8, 12}}));
    rs_plan_destroy(plan);
    OK(rs_plan_create(from, to, 5, &one_node, &plan));
    expect(plan, NULL, 0);
    assert_int_equal(rs_plan_figures_of(plan)->peak_tight, 0);
    rs_plan_destroy(plan);
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_space_destroy(space);
}

/* Two sources, three targets: each source serves one and a half. */
static void test_replicas_that_do_not_divide(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){6}, 1, 1);
    rs_placement *from = PLACE(space, 2, ((part[]){{0, 0, 0, 6, 0}, {1, 0, 0, 6, 0}}));
    rs_placement *to =
        PLACE(space, 5, ((part[]){{2, 0, 0, 6, 0}, {3, 0, 0, 6, 0}, {4, 0, 0, 6, 0}}));
    rs_plan *plan;
    OK(rs_plan_create(from, to, 0, &one_node, &plan));
    EXPECT(plan, ((expected[]){{0, 2, RS_REACH_NODE, 0, 0, 6}, {0, 3, RS_REACH_NODE, 0, 0, 3}}));
    rs_plan_destroy(plan);
    OK(rs_plan_create(from, to, 3, &one_node, &plan));
    EXPECT(plan, ((expected[]){{0, 3, RS_REACH_NODE, 0, 0, 3}, {1, 3, RS_REACH_NODE, 0, 3, 6}}));
    rs_plan_destroy(plan);
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_space_destroy(space);
}

/* Node 0 is {0, 1}, node 1 {2, 3}, node 2 {4, 5}: who has it near takes it there, only the others
 * compete for what is far. */
static void test_nodes(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){8}, 1, 1);
    rs_placement *from = PLACE(space, 4, ((part[]){{0, 0, 0, 8, 0}, {3, 0, 0, 8, 0}}));
    rs_placement *to = PLACE(space, 6,
        ((part[]){
            {1, 0, 0, 8, 0}, {2, 0, 0, 8, 0}, {3, 0, 0, 8, 1}, {4, 0, 0, 8, 0}, {5, 0, 0, 8, 0}}));
    const rs_plan_options options = {.ranks_per_node = 2};
    OK(rs_plan_check(from, to, &options));
    rs_plan *plan;
    OK(rs_plan_create(from, to, 0, &options, &plan));
    EXPECT(plan, ((expected[]){{0, 1, RS_REACH_NODE, 0, 0, 8}, {0, 4, RS_REACH_REMOTE, 0, 0, 8}}));
    rs_plan_destroy(plan);
    OK(rs_plan_create(from, to, 3, &options, &plan));
    EXPECT(plan, ((expected[]){{3, 2, RS_REACH_NODE, 0, 0, 8}, {3, 3, RS_REACH_SELF, 0, 0, 8},
                     {3, 5, RS_REACH_REMOTE, 0, 0, 8}}));
    rs_plan_destroy(plan);

    /* Named nodes come to the same. */
    const int names[] = {7, 7, -2, -2, 40, 40};
    const rs_plan_options named = {.ranks_per_node = 1, .node_of = names};
    OK(rs_plan_create(from, to, 0, &named, &plan));
    EXPECT(plan, ((expected[]){{0, 1, RS_REACH_NODE, 0, 0, 8}, {0, 4, RS_REACH_REMOTE, 0, 0, 8}}));
    rs_plan_destroy(plan);

    rs_plan_totals totals;
    OK(rs_plan_totals_compute(from, to, &options, true, &totals));
    assert_int_equal(totals.moved, 4 * 32);
    assert_int_equal(totals.minimum, 4 * 32);
    assert_int_equal(totals.self, 32);
    assert_int_equal(totals.node.bytes, 64);
    assert_int_equal(totals.node.rank_max, 32);
    assert_int_equal(totals.node.rank, 1);
    assert_int_equal(totals.remote.bytes, 64);
    assert_int_equal(totals.remote.rank_max, 32);
    assert_int_equal(totals.remote.rank_bound, 32);
    assert_int_equal(totals.node_bytes_max, 64);
    assert_int_equal(totals.node_bytes_bound, 64);
    assert_string_equal(totals.bound_kind, "flow");
    assert_int_equal(totals.pair_bytes[0 * 6 + 4], 32);
    assert_int_equal(totals.pair_bytes[3 * 6 + 3], 32);
    assert_int_equal(totals.pair_bytes[0 * 6 + 3], 0);
    assert_int_equal(totals.copies, 5);
    assert_true(rs_plan_seconds_bound(&totals, 16, 0) == 2);
    assert_true(rs_plan_seconds_bound(&totals, 16, 8) == 8);
    rs_plan_totals_fini(&totals);
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_space_destroy(space);
}

/* Of v0, both have a copy; of v1, only rank 0. Equal parts would make rank 0 send one and a half.
 */
static void test_flow_balances(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){100, 100}, 2, 1);
    rs_placement *from =
        PLACE(space, 2, ((part[]){{0, 0, 0, 100, 0}, {0, 1, 0, 100, 1}, {1, 0, 0, 100, 0}}));
    rs_placement *to = PLACE(space, 4, ((part[]){{2, 0, 0, 100, 0}, {3, 1, 0, 100, 0}}));
    const rs_plan_options options = {.ranks_per_node = 1};
    rs_plan *plan;
    for (int rank = 0; rank < 2; rank++) {
        OK(rs_plan_create(from, to, rank, &options, &plan));
        assert_int_equal(rs_plan_figures_of(plan)->remote_out, 400);
        rs_plan_destroy(plan);
    }
    rs_plan_totals totals;
    OK(rs_plan_totals_compute(from, to, &options, false, &totals));
    assert_int_equal(totals.remote.rank_bound, 400);
    assert_int_equal(totals.remote.rank_max, 400);
    assert_null(totals.pair_bytes);
    rs_plan_totals_fini(&totals);
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_space_destroy(space);
}

/* Scalars cannot be split, but a thousand of them are dealt out about evenly. */
static void test_scalars_are_spread(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    rs_space *space = vectors(NULL, 0, 1);
    static rs_shard shards[3 * COUNT];
    for (int t = 0; t < COUNT; t++) {
        char name[16] = "s0000";
        for (int digit = 0, n = t; digit < 4; digit++, n /= 10)
            name[4 - digit] = (char)('0' + n % 10);
        rs_tensor scalar = {.name = name};
        OK(rs_space_add_tensor(space, &scalar, NULL));
        rs_shard shard = {.tensor = t, .dtype = RS_DTYPE_F32, .offset = 4 * t};
        for (int h = 0; h < 3; h++)
            shards[h * COUNT + t] = shard;
    }
    rs_placement *from, *to;
    OK(rs_placement_create_list(space, 2, shards, (size_t[]){0, COUNT, 2 * COUNT}, &from));
    OK(rs_placement_create_list(space, 3, shards, (size_t[]){0, 0, 0, COUNT}, &to));
    rs_plan *plan;
    OK(rs_plan_create(from, to, 0, &one_node, &plan));
    size_t count;
    rs_plan_copies(plan, &count);
    assert_in_range(count, COUNT / 2 - 80, COUNT / 2 + 80); /* five standard deviations */
    rs_plan_destroy(plan);
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_space_destroy(space);
}

static void test_adoption(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){8, 8}, 2, 2);
    /* Rank 0 keeps v0 in segment 0; its v1 changes its segment. Rank 1 gets v0 from rank 0. */
    rs_placement *from = PLACE(space, 2, ((part[]){{0, 0, 0, 8, 0}, {0, 1, 0, 8, 1}}));
    rs_placement *to =
        PLACE(space, 2, ((part[]){{0, 0, 0, 8, 0}, {0, 1, 0, 8, 2}, {1, 0, 0, 8, 0}}));
    const rs_plan_options options = {.adopt = true};
    OK(rs_plan_check(from, to, &options));
    rs_plan *plan;
    OK(rs_plan_create(from, to, 0, &options, &plan));
    size_t count;
    const int *adopted = rs_plan_adopted(plan, &count);
    assert_int_equal(count, 2); /* both roles */
    assert_int_equal(adopted[0], 0);
    assert_int_equal(adopted[1], 1);
    assert_true(rs_plan_is_adopted(plan, 1));
    assert_false(rs_plan_is_adopted(plan, 2));
    const rs_plan_figures *f = rs_plan_figures_of(plan);
    assert_int_equal(f->adopted_bytes, 48);
    assert_int_equal(f->self_bytes, 48);
    assert_int_equal(f->node_out, 48);
    assert_int_equal(f->peak_safe, 96 + 96 - 48);
    /* v1 is copied whole before its old memory goes: 48 stay, 48 + 32 at once, then 48 + 16 + 32.
     */
    assert_int_equal(f->peak_tight, 96 + 32);
    rs_plan_destroy(plan);
    OK(rs_plan_create(from, to, 0, &one_node, &plan));
    rs_plan_adopted(plan, &count);
    assert_int_equal(count, 0);
    assert_int_equal(rs_plan_figures_of(plan)->self_bytes, 96);
    rs_plan_destroy(plan);
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_space_destroy(space);
}

/* A segment with the same shards in other places, or other shards, does not stay. */
static void test_what_is_not_adopted(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){8, 8}, 2, 1);
    /* v0, the first half of v1, a gap of 16 bytes, the second half of v1 */
    const int64_t begins[] = {0, 0, 4};
    rs_shard shards[3];
    for (int i = 0; i < 3; i++)
        shards[i] = (rs_shard){.tensor = i > 0,
            .dtype = RS_DTYPE_F32,
            .box = {.ndim = 1, .offset = {begins[i]}, .extent = {i > 0 ? 4 : 8}},
            .offset = 32 * i,
            .stride = {4}};
    rs_placement *from, *to;
    OK(rs_placement_create_list(space, 1, shards, (size_t[]){0, 3}, &from));
    const rs_plan_options options = {.adopt = true};
    for (int change = 0; change < 5; change++) {
        rs_shard now[3] = {shards[0], shards[1], shards[2]};
        if (change == 1) { /* two change places */
            now[0].offset = 16;
            now[1].offset = 0;
        } else if (change == 2) { /* every other element */
            now[1].stride[0] = 8;
        } else if (change == 3) { /* one is shorter */
            now[0].box.extent[0] = 7;
        } else if (change == 4) { /* the gap is elsewhere */
            now[1].offset = 48;
        }
        OK(rs_placement_create_list(space, 1, now, (size_t[]){0, 3}, &to));
        rs_plan *plan;
        size_t count;
        OK(rs_plan_create(from, to, 0, &options, &plan));
        rs_plan_adopted(plan, &count);
        assert_int_equal(count, change == 0);
        rs_plan_copies(plan, &count);
        assert_int_equal(count, change == 0 ? 0 : 3);
        rs_plan_destroy(plan);
        OK(rs_plan_check(from, to, &options));
        rs_placement_destroy(to);
    }
    rs_placement_destroy(from);
    rs_space_destroy(space);
}

static void test_peaks(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){8}, 1, 1);
    rs_placement *from = PLACE(space, 1, ((part[]){{0, 0, 0, 8, 0}}));
    rs_placement *to = PLACE(space, 1, ((part[]){{0, 0, 0, 8, 1}}));
    rs_placement *others = PLACE(space, 3, ((part[]){{1, 0, 0, 8, 1}, {2, 0, 0, 8, 1}}));
    const rs_plan_options options = {.chunk_bytes = 8};
    rs_plan *plan;
    int64_t bytes;
    OK(rs_plan_create(from, to, 0, &options, &plan));
    size_t count;
    rs_plan_copies(plan, &count);
    assert_int_equal(count, 4);
    assert_int_equal(rs_plan_figures_of(plan)->peak_safe, 64);
    assert_int_equal(rs_plan_figures_of(plan)->peak_tight, 40);
    OK(rs_plan_peak_tight(plan, 16, 1, &bytes));
    assert_int_equal(bytes, 48);
    OK(rs_plan_peak_tight(plan, 23, 1, &bytes));
    assert_int_equal(bytes, 48);
    OK(rs_plan_peak_tight(plan, 0, 16, &bytes));
    assert_int_equal(bytes, 48);
    OK(rs_plan_peak_tight(plan, 0, 4096, &bytes));
    assert_int_equal(bytes, 8192);
    OK(rs_plan_peak_tight(plan, INT64_MAX, 1, &bytes));
    assert_int_equal(bytes, 64);
    assert_int_equal(rs_plan_peak_tight(plan, -1, 1, &bytes), RS_ERR_ARGUMENT);
    assert_int_equal(rs_plan_peak_tight(plan, 0, 0, &bytes), RS_ERR_ARGUMENT);
    rs_plan_destroy(plan);

    /* Two readers: memory goes with the second; none of it is needed here. */
    OK(rs_plan_create(from, others, 0, &options, &plan));
    assert_int_equal(rs_plan_figures_of(plan)->peak_tight, 32);
    OK(rs_plan_peak_tight(plan, 0, 1, &bytes));
    assert_int_equal(bytes, 32);
    rs_plan_destroy(plan);
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_placement_destroy(others);
    rs_space_destroy(space);
}

/* A matrix of 6 x 4 float32, written in chunks of at most 40 bytes: two rows each. */
static void test_chunks(void **state)
{
    (void)state;
    rs_space *space = vectors(NULL, 0, 2);
    rs_tensor matrix = {.name = "m", .ndim = 2, .shape = {6, 4}};
    OK(rs_space_add_tensor(space, &matrix, NULL));
    rs_shard shards[2];
    for (int r = 0; r < 2; r++)
        shards[r] = (rs_shard){.role = r,
            .dtype = rs_space_role(space, r)->dtype,
            .box = rs_box_whole(2, matrix.shape),
            .segment = r,
            .stride = {r == 0 ? 16 : 8, r == 0 ? 4 : 2}};
    rs_placement *from, *to;
    OK(rs_placement_create_list(space, 1, shards, (size_t[]){0, 2}, &from));
    OK(rs_placement_create_list(space, 2, shards, (size_t[]){0, 0, 2}, &to));
    const int64_t chunks[] = {40, 16, 12, 4, 1, 1000};
    const size_t wanted[] = {3, 6, 12, 24, 24, 1};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        const rs_plan_options options = {.chunk_bytes = chunks[i]};
        rs_plan *plan;
        size_t count;
        OK(rs_plan_create(from, to, 1, &options, &plan));
        const rs_copy *copies = rs_plan_copies(plan, &count);
        assert_int_equal(count, 2 * wanted[i]); /* both roles have the borders of the larger one */
        assert_int_equal(copies[0].bytes, copies[0].role == 0 ? 96 / wanted[i] : 48 / wanted[i]);
        rs_plan_destroy(plan);
        OK(rs_plan_check(from, to, &options));
    }
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_space_destroy(space);
}

/* Primes, ranks with nothing, tensors without elements; more ranks than layers, heads and rows. */
static void test_layouts(void **state)
{
    (void)state;
    const char *pairs[][2] = {
        {"tp=7", "tp=5"}, {"pp=3,dp=5,zero=1", "tp=13"}, {"tp=11,zero=1", "dp=11,zero=1"},
        {"tp=2,pp=2,dp=4,zero=1", "tp=3,pp=2,dp=2"}, {"dp=17,zero=3", "tp=2,pp=3,dp=2,zero=1"},
        {"tp=4,pp=2,dp=9,zero=1", "tp=8,pp=2,dp=5,zero=1"}, /* 72 and 80 ranks */
    };
    rs_model model;
    rs_space *space;
    OK(rs_model_load("llama-tiny", &model));
    OK(rs_model_space(&model, RS_DTYPE_BF16, &space));
    rs_tensor empty = {.name = "empty", .ndim = 2, .shape = {0, 3}};
    OK(rs_space_add_tensor(space, &empty, NULL));
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (int way = 0; way < 2; way++) {
            rs_placement *from = place(space, pairs[i][way]);
            rs_placement *to = place(space, pairs[i][1 - way]);
            const rs_plan_options options = {.ranks_per_node = 4, .adopt = way == 0};
            rs_status status = rs_plan_check(from, to, &options);
            if (status != RS_OK)
                print_message(
                    "%s -> %s: %s\n", pairs[i][way], pairs[i][1 - way], rs_error_message());
            assert_int_equal(status, RS_OK);
            rs_plan_totals totals;
            OK(rs_plan_totals_compute(from, to, &options, false, &totals));
            assert_string_equal(totals.bound_kind, "flow");
            assert_true((double)totals.remote.rank_max <= 1.05 * (double)totals.remote.rank_bound);
            assert_true((double)totals.rank_bytes_max <= 1.05 * (double)totals.rank_bytes_bound);
            rs_plan_totals_fini(&totals);
            rs_placement_destroy(from);
            rs_placement_destroy(to);
        }
    rs_space_destroy(space);
}

static void test_state_bytes(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){8}, 1, 2);
    rs_placement *placement = PLACE(space, 3, ((part[]){{0, 0, 0, 2, 0}, {2, 0, 0, 8, 0}}));
    rs_state_bytes bytes;
    OK(rs_state_bytes_of(placement, 0, &bytes));
    assert_int_equal(bytes.max, 32);
    assert_int_equal(bytes.max_holder, 2);
    assert_int_equal(bytes.min, 0);
    assert_int_equal(bytes.min_holder, 1);
    assert_int_equal(bytes.total, 40);
    OK(rs_state_bytes_of(placement, -1, &bytes));
    assert_int_equal(bytes.max, 48);
    rs_placement_destroy(placement);
    rs_space_destroy(space);
}

static void test_errors(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){8}, 1, 1);
    rs_space *other = vectors((int64_t[]){9}, 1, 1);
    rs_placement *from = PLACE(space, 1, ((part[]){{0, 0, 0, 5, 0}}));
    rs_placement *to = PLACE(space, 2, ((part[]){{0, 0, 0, 3, 0}, {1, 0, 3, 8, 0}}));
    rs_placement *alien = PLACE(other, 1, ((part[]){{0, 0, 0, 5, 0}}));
    rs_plan *plan = NULL;
    OK(rs_plan_create(from, to, 0, &one_node, &plan)); /* it lacks nothing */
    rs_plan_destroy(plan);
    plan = NULL;
    assert_int_equal(rs_plan_create(from, to, 1, &one_node, &plan), RS_ERR_MISMATCH);
    assert_string_equal(rs_error_message(), "rank 1 needs element [5:6] of v0, role param, which "
                                            "nobody holds in the old placement");
    assert_int_equal(rs_plan_create(from, alien, 0, &one_node, &plan), RS_ERR_ARGUMENT);
    assert_int_equal(rs_plan_create(from, to, -1, &one_node, &plan), RS_ERR_ARGUMENT);
    const rs_plan_options negative = {.ranks_per_node = -1};
    assert_int_equal(rs_plan_create(from, to, 0, &negative, &plan), RS_ERR_ARGUMENT);
    const rs_plan_options chunk = {.chunk_bytes = -1};
    assert_int_equal(rs_plan_create(from, to, 0, &chunk, &plan), RS_ERR_ARGUMENT);
    assert_null(plan);
    rs_plan_totals totals;
    assert_int_equal(rs_plan_totals_compute(from, to, &one_node, true, &totals), RS_ERR_MISMATCH);
    assert_int_equal(rs_plan_check(from, to, &one_node), RS_ERR_MISMATCH);
    rs_plan_destroy(NULL);
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_placement_destroy(alien);
    rs_space_destroy(space);
    rs_space_destroy(other);
}

static void test_shown(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){12}, 1, 1);
    rs_placement *from = PLACE(space, 2, ((part[]){{0, 0, 0, 6, 0}, {1, 0, 6, 12, 0}}));
    rs_placement *to = PLACE(space, 2, ((part[]){{0, 0, 0, 6, 0}, {1, 0, 4, 12, 0}}));
    const rs_plan_options options = {.adopt = true, .ranks_per_node = 1};
    rs_plan *plan;
    OK(rs_plan_create(from, to, 0, &options, &plan));
    char *text;
    OK(rs_plan_text(plan, &text));
    assert_non_null(strstr(text, "plan of rank 0: 1 copies, 1 segments stay"));
    assert_non_null(strstr(text, "remote      0      1            8  v0.param [4:6]"));
    free(text);
    OK(rs_plan_json(plan, &text));
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    assert_non_null(root);
    assert_int_equal(json_integer_value(json_object_get(root, "rank")), 0);
    json_t *figures = json_object_get(root, "figures");
    assert_int_equal(json_integer_value(json_object_get(figures, "remote_out")), 8);
    assert_int_equal(json_integer_value(json_object_get(figures, "adopted_bytes")), 24);
    assert_int_equal(json_object_size(figures), 11);
    assert_int_equal(json_array_size(json_object_get(root, "adopted")), 1);
    json_t *copies = json_object_get(root, "copies");
    assert_int_equal(json_array_size(copies), 1);
    json_t *copy = json_array_get(copies, 0);
    assert_string_equal(json_string_value(json_object_get(copy, "tensor")), "v0");
    assert_string_equal(json_string_value(json_object_get(copy, "reach")), "remote");
    assert_int_equal(json_integer_value(json_array_get(json_object_get(copy, "offset"), 0)), 4);
    assert_int_equal(json_integer_value(json_object_get(copy, "bytes")), 8);
    assert_true(json_integer_value(json_object_get(copy, "key")) == (json_int_t)1 << 47);
    json_decref(root);
    rs_plan_destroy(plan);
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_space_destroy(space);
}

/* Everything that a plan can be asked for, with whatever memory there is. */
static rs_status use_everything(const rs_placement *from, const rs_placement *to)
{
    const rs_plan_options options = {.ranks_per_node = 2, .adopt = true, .chunk_bytes = 4096};
    rs_plan *plan = NULL;
    char *text = NULL;
    int64_t bytes;
    rs_plan_totals totals;
    rs_state_bytes state;
    rs_status status = rs_plan_create(from, to, 1, &options, &plan);
    if (status == RS_OK)
        status = rs_plan_peak_tight(plan, 100, 4096, &bytes);
    if (status == RS_OK)
        status = rs_plan_text(plan, &text);
    free(text);
    rs_plan_destroy(plan);
    if (status == RS_OK)
        status = rs_state_bytes_of(to, -1, &state);
    if (status == RS_OK) {
        status = rs_plan_totals_compute(from, to, &options, true, &totals);
        if (status == RS_OK)
            rs_plan_totals_fini(&totals);
    }
    return status == RS_OK ? rs_plan_check(from, to, &options) : status;
}

static void test_out_of_memory(void **state)
{
    (void)state;
    rs_space *space = vectors((int64_t[]){40}, 1, 2);
    rs_tensor matrix = {
        .name = "m", .ndim = 3, .shape = {3, 8, 8}, .axis = {RS_AXIS_LAYER, RS_AXIS_FFN}};
    OK(rs_space_add_tensor(space, &matrix, NULL));
    rs_placement *from = place(space, "tp=2,dp=2,zero=3");
    rs_placement *to = place(space, "tp=3,pp=1,dp=1");
    size_t n = 1;
    for (;; n++) {
        rs_alloc_fail_at(n);
        rs_status status = use_everything(from, to);
        rs_alloc_fail_at(0);
        if (status == RS_OK)
            break;
        assert_int_equal(status, RS_ERR_NO_MEMORY);
    }
    assert_true(n > 100);
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_to_three),
        cmocka_unit_test(test_replicas_that_do_not_divide),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_flow_balances),
        cmocka_unit_test(test_scalars_are_spread),
        cmocka_unit_test(test_adoption),
        cmocka_unit_test(test_what_is_not_adopted),
        cmocka_unit_test(test_peaks),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_state_bytes),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_shown),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
