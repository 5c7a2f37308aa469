/*
 * What went wrong elsewhere, as placements and plans: cases A08, A09, A14, A17, A18, C01, C03, C04,
 * C06, C07, C11, D01, D03 and D05 to D08 of the trouble cases. State is filled by canonical
 * index and moved from layout to layout; memory is set to 0xA5 before, so what nobody wrote is
 * seen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "pattern.h"
#include "reshard/certificate.h"
#include "reshard/layout.h"
#include "reshard/model.h"
#include "reshard/move.h"
#include "reshard/plan.h"

#define MAX_RANKS 64

/* ---- a state under a placement ---- */

typedef struct holding_state {
    rs_placement *placement;
    int holders;
    rs_memory memory[MAX_RANKS];
} holding_state;

static void allocate(rs_placement *placement, holding_state *out)
{
    out->placement = placement;
    out->holders = rs_placement_holders(placement);
    assert_true(out->holders <= MAX_RANKS);
    for (int h = 0; h < out->holders; h++) {
        assert_int_equal(rs_memory_allocate(placement, h, &out->memory[h]), RS_OK);
        for (size_t k = 0; k < out->memory[h].count; k++)
            memset(out->memory[h].regions[k].data, 0xA5, (size_t)out->memory[h].regions[k].bytes);
    }
}

static void release(holding_state *s)
{
    for (int h = 0; h < s->holders; h++)
        rs_memory_free(&s->memory[h]);
    rs_placement_destroy(s->placement);
}

static rs_layout parsed(const char *text)
{
    rs_layout layout;
    if (rs_layout_parse(text, &layout) != RS_OK)
        fail_msg("%s: %s", text, rs_error_message());
    return layout;
}

static rs_placement *placed(const rs_space *space, const char *text)
{
    rs_layout layout = parsed(text);
    rs_placement *placement;
    if (rs_layout_placement(space, &layout, &placement) != RS_OK)
        fail_msg("%s: %s", text, rs_error_message());
    return placement;
}

static void move(const holding_state *from, holding_state *to)
{
    rs_plan_options options = {.ranks_per_node = 3};
    assert_int_equal(rs_plan_check(from->placement, to->placement, &options), RS_OK);
    assert_int_equal(rs_move_local(from->placement, to->placement, &options, from->memory,
                         to->memory, NULL, NULL),
        RS_OK);
}

static void check(const holding_state *s)
{
    for (int h = 0; h < s->holders; h++)
        assert_true(pattern_check(s->placement, h, &s->memory[h], 1));
}

/* Fills the first layout's state and carries it through the others; after each move every element
 * is what it was. */
static void carry(const rs_space *space, const char *const *layouts, size_t count)
{
    holding_state now;
    allocate(placed(space, layouts[0]), &now);
    for (int h = 0; h < now.holders; h++)
        assert_true(pattern_fill(now.placement, h, &now.memory[h], 1));
    for (size_t i = 1; i < count; i++) {
        holding_state next;
        allocate(placed(space, layouts[i]), &next);
        move(&now, &next);
        check(&next);
        release(&now);
        now = next;
    }
    release(&now);
}

#define CARRY(space, ...)                                                                          \
    carry(space, (const char *const[]){__VA_ARGS__},                                               \
        sizeof(const char *const[]){__VA_ARGS__} / sizeof(char *))

static rs_space *make_space(const rs_tensor *tensors, size_t count)
{
    const rs_role roles[] = {{"param", RS_DTYPE_BF16, RS_ROLE_MODEL},
        {"master", RS_DTYPE_F32, RS_ROLE_OPTIMIZER}, {"exp_avg", RS_DTYPE_F32, RS_ROLE_OPTIMIZER}};
    rs_space *space;
    assert_int_equal(rs_space_create(&space), RS_OK);
    for (int r = 0; r < 3; r++)
        assert_int_equal(rs_space_add_role(space, &roles[r], NULL), RS_OK);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(rs_space_add_tensor(space, &tensors[i], NULL), RS_OK);
    return space;
}

/* The extent of dimension `dim` that a rank has of `tensor` in `role`, over all its shards: first
 * index and number of them; {-1, 0} if none. */
static void extent_of(
    const rs_placement *p, int rank, int tensor, int role, int dim, int64_t *first, int64_t *count)
{
    rs_shard_list shards = {0};
    *first = -1;
    *count = 0;
    assert_int_equal(rs_placement_shards(p, rank, role, &shards), RS_OK);
    for (size_t i = 0; i < shards.count; i++) {
        const rs_box *box = &shards.items[i].box;
        if (shards.items[i].tensor != tensor)
            continue;
        if (*count == 0)
            *first = box->offset[dim];
        assert_int_equal(box->offset[dim], *first + *count);
        *count += box->extent[dim];
    }
    rs_shard_list_fini(&shards);
}

/* Each rank's extent; pairs of first index (-1: nothing) and number. */
static void expect_extents(const rs_space *space, const char *layout, int tensor, int role, int dim,
    const int64_t (*wanted)[2])
{
    rs_placement *placement = placed(space, layout);
    for (int rank = 0; rank < rs_placement_holders(placement); rank++) {
        int64_t first;
        int64_t count;
        extent_of(placement, rank, tensor, role, dim, &first, &count);
        if (first != wanted[rank][0] || count != wanted[rank][1])
            fail_msg("%s, rank %d: %ld from %ld on, wanted %ld from %ld on", layout, rank,
                (long)count, (long)first, (long)wanted[rank][1], (long)wanted[rank][0]);
    }
    rs_placement_destroy(placement);
}

#define EXTENTS(...) ((const int64_t[][2]){__VA_ARGS__})

/* ---- A: uneven division ---- */

/* A08, A18: rows over more ranks than there are blocks of rows; every rank has an answer, some of
 * them nothing. */
static void rows_over_ranks(void **state)
{
    (void)state;
    const rs_tensor tensors[] = {{.name = "t", .ndim = 1, .shape = {6}},
        {.name = "emb", .ndim = 2, .shape = {13, 3}}, {.name = "w", .ndim = 2, .shape = {16, 16}}};
    rs_space *space = make_space(tensors, 3);
    expect_extents(
        space, "dp=4,zero=3,zero_cut=dim0", 0, 0, 0, EXTENTS({0, 2}, {2, 2}, {4, 2}, {-1, 0}));
    expect_extents(space, "dp=5,zero=3,zero_cut=dim0", 0, 0, 0,
        EXTENTS({0, 2}, {2, 2}, {4, 2}, {-1, 0}, {-1, 0}));
    expect_extents(space, "dp=8,zero=3,zero_cut=dim0", 1, 2, 0,
        EXTENTS({0, 2}, {2, 2}, {4, 2}, {6, 2}, {8, 2}, {10, 2}, {12, 1}, {-1, 0}));
    expect_extents(space, "dp=3,zero=3,zero_cut=dim0", 1, 2, 0, EXTENTS({0, 5}, {5, 5}, {10, 3}));
    rs_placement *wide = placed(space, "dp=32,zero=3,zero_cut=dim0");
    for (int rank = 0; rank < 32; rank++) {
        int64_t first;
        int64_t count;
        extent_of(wide, rank, 2, 0, 0, &first, &count);
        assert_int_equal(count, rank < 16 ? 1 : 0);
    }
    rs_placement_destroy(wide);
    CARRY(space, "dp=4,zero=3,zero_cut=dim0", "dp=5,zero=3,zero_cut=dim0",
        "dp=3,zero=3,zero_cut=dim0", "dp=6,zero=3,zero_cut=dim0", "dp=32,zero=3,zero_cut=dim0",
        "dp=8,zero=3,zero_cut=dim0", "dp=8,zero=3,zero_cut=dim0", "dp=1");
    rs_space_destroy(space);
}

/* A09: tp and dp both cut one dimension, and neither divides it. */
static void two_cuts_of_one_dimension(void **state)
{
    (void)state;
    const rs_tensor tensors[] = {{.name = "five", .ndim = 1, .shape = {5}, .axis = {RS_AXIS_FFN}},
        {.name = "two", .ndim = 1, .shape = {2}, .axis = {RS_AXIS_FFN}}};
    rs_space *space = make_space(tensors, 2);
    /* dp is the faster axis of the mesh, as in (2, 2) with the second sharded last. */
    expect_extents(space, "tp=2,dp=2,zero=3,zero_cut=dim0,order=dp-tp-pp", 0, 0, 0,
        EXTENTS({0, 2}, {2, 1}, {3, 1}, {4, 1}));
    expect_extents(space, "tp=2,dp=4,zero=3,zero_cut=dim0,order=dp-tp-pp", 1, 0, 0,
        EXTENTS({0, 1}, {-1, 0}, {-1, 0}, {-1, 0}, {1, 1}, {-1, 0}, {-1, 0}, {-1, 0}));
    CARRY(space, "tp=2,dp=2,zero=3,zero_cut=dim0,order=dp-tp-pp", "dp=1",
        "tp=2,dp=4,zero=3,zero_cut=dim0,order=dp-tp-pp", "tp=3,dp=2,zero=3,zero_cut=dim0");
    rs_space_destroy(space);
}

/* A17: a parameter as one flat range of its elements a rank. */
static void flat_parameter(void **state)
{
    (void)state;
    const rs_tensor tensors[] = {{.name = "w", .ndim = 2, .shape = {6, 5}}};
    rs_space *space = make_space(tensors, 1);
    rs_placement *placement = placed(space, "dp=4,zero=3,zero_cut=param");
    static const int64_t sizes[] = {8, 8, 8, 6};
    for (int rank = 0; rank < 4; rank++) {
        rs_shard_list shards = {0};
        int64_t elements = 0;
        assert_int_equal(rs_placement_shards(placement, rank, 0, &shards), RS_OK);
        for (size_t i = 0; i < shards.count; i++)
            elements += rs_box_volume(&shards.items[i].box);
        assert_int_equal(elements, sizes[rank]);
        rs_segment_list segments = {0};
        assert_int_equal(rs_placement_segments(placement, rank, &segments), RS_OK);
        assert_int_equal(segments.items[0].bytes, 8 * 2);
        rs_segment_list_fini(&segments);
        rs_shard_list_fini(&shards);
    }
    rs_placement_destroy(placement);
    CARRY(space, "dp=4,zero=3,zero_cut=param", "dp=1", "dp=4,zero=3,zero_cut=param",
        "dp=3,zero=3,zero_cut=param");
    rs_space_destroy(space);
}

/* Appends to `shards` what elements begin..end-1 of the fused matrix [rows, 2 columns] have of its
 * half `half`, which is a tensor of its own. */
static size_t add_half(
    rs_shard *shards, int half, int64_t begin, int64_t end, int64_t rows, int64_t columns)
{
    rs_box fused = {.ndim = 2, .extent = {rows, 2 * columns}};
    rs_box wanted = {.ndim = 2, .offset = {0, half * columns}, .extent = {rows, columns}};
    rs_box parts[2 * RS_MAX_DIMS];
    size_t count = 0;
    int64_t at = 0;
    int boxes = rs_box_linear_range(&fused, begin, end, parts);
    for (int b = 0; b < boxes; b++) {
        rs_box both;
        int64_t width = parts[b].extent[1];
        if (rs_box_intersect(&parts[b], &wanted, &both)) {
            int64_t inside =
                (both.offset[0] - parts[b].offset[0]) * width + both.offset[1] - parts[b].offset[1];
            shards[count] = (rs_shard){.tensor = half,
                .dtype = RS_DTYPE_BF16,
                .box = both,
                .offset = 2 * (at + inside),
                .stride = {2 * width, 2}};
            shards[count++].box.offset[1] -= half * columns;
        }
        at += rs_box_volume(&parts[b]);
    }
    return count;
}

static int64_t volume_of(const rs_shard *shards, size_t count)
{
    int64_t volume = 0;
    for (size_t i = 0; i < count; i++)
        volume += rs_box_volume(&shards[i].box);
    return volume;
}

/* A14: a flat range of a fused gate and up matrix has unlike parts of both; put together again,
 * both are whole. */
static void fused_halves(void **state)
{
    (void)state;
    const rs_tensor tensors[] = {
        {.name = "gate", .ndim = 2, .shape = {6, 4}}, {.name = "up", .ndim = 2, .shape = {6, 4}}};
    rs_space *space = make_space(tensors, 2);
    static const struct {
        int64_t begin, end, gate, up;
    } rows[] = {{8, 20, 8, 4}, {6, 12, 4, 2}, {20, 24, 0, 4}};
    rs_shard shards[64];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t count = add_half(shards, 0, rows[i].begin, rows[i].end, 6, 4);
        assert_int_equal(volume_of(shards, count), rows[i].gate);
        count = add_half(shards, 1, rows[i].begin, rows[i].end, 6, 4);
        assert_int_equal(volume_of(shards, count), rows[i].up);
    }
    /* Ten ranks with slices of five, the last of three. */
    size_t first[11];
    size_t count = 0;
    for (int h = 0; h < 10; h++) {
        int64_t end = 5 * (h + 1) < 48 ? 5 * (h + 1) : 48;
        first[h] = count;
        count += add_half(shards + count, 0, 5 * h, end, 6, 4);
        count += add_half(shards + count, 1, 5 * h, end, 6, 4);
    }
    first[10] = count;
    assert_int_equal(volume_of(shards, count), 48);
    rs_placement *slices;
    assert_int_equal(rs_placement_create_list(space, 10, shards, first, &slices), RS_OK);
    /* One rank with both, one behind the other. */
    rs_shard whole[] = {
        {.tensor = 0, .dtype = RS_DTYPE_BF16, .box = {2, {0}, {6, 4}}, .stride = {8, 2}},
        {.tensor = 1,
            .dtype = RS_DTYPE_BF16,
            .box = {2, {0}, {6, 4}},
            .offset = 48,
            .stride = {8, 2}}};
    rs_placement *one;
    assert_int_equal(rs_placement_create_list(space, 1, whole, (size_t[]){0, 2}, &one), RS_OK);
    holding_state from;
    holding_state to;
    allocate(slices, &from);
    allocate(one, &to);
    for (int h = 0; h < 10; h++)
        assert_true(pattern_fill(slices, h, &from.memory[h], 1));
    move(&from, &to);
    check(&to);
    release(&from);
    release(&to);
    rs_space_destroy(space);
}

/* ---- C: stages ---- */

static rs_space *layer_space(int64_t layers)
{
    const rs_tensor tensors[] = {
        {.name = "embed", .ndim = 2, .shape = {7, 3}, .stage = RS_STAGE_FIRST},
        {.name = "w", .ndim = 2, .shape = {layers, 5}, .axis = {RS_AXIS_LAYER}},
        {.name = "norm", .ndim = 1, .shape = {3}, .stage = RS_STAGE_LAST}};
    return make_space(tensors, 3);
}

/* C01: stages have the layers of their place, not the first ones. */
static void layer_offset(void **state)
{
    (void)state;
    rs_space *space = layer_space(4);
    expect_extents(space, "pp=2", 1, 0, 0, EXTENTS({0, 2}, {2, 2}));
    CARRY(space, "pp=1", "pp=2", "pp=4", "pp=1");
    rs_space_destroy(space);
}

/* C03, C04: layers that stages do not divide are all placed, sizes within one. */
static void uneven_stages(void **state)
{
    (void)state;
    static const struct {
        const char *layout;
        int64_t layers;
        int64_t sizes[32];
    } rows[] = {
        {"pp=4", 30, {8, 8, 7, 7}},
        {"pp=12", 70, {6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5, 5}},
        {"pp=5", 3, {1, 1, 1, 0, 0}},
        {"pp=3", 0, {0, 0, 0}},
        {"pp=16,vpp=2", 80,
            {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
                2, 2, 2}},
        {"pp=8", 70, {9, 9, 9, 9, 9, 9, 8, 8}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_layout layout = parsed(rows[i].layout);
        int64_t sum = 0;
        for (int stage = 0; stage < layout.pp * layout.vpp; stage++) {
            int64_t begin;
            int64_t end;
            rs_layout_stage_layers(&layout, rows[i].layers, stage, &begin, &end);
            assert_int_equal(begin, sum);
            assert_int_equal(end - begin, rows[i].sizes[stage]);
            sum = end;
        }
        assert_int_equal(sum, rows[i].layers);
    }
    rs_space *space = layer_space(3);
    CARRY(space, "pp=5", "pp=2", "pp=5");
    rs_space_destroy(space);
    space = layer_space(30);
    CARRY(space, "pp=4", "pp=7,vpp=3", "pp=4,stages=0-9/10/11-28/29");
    rs_space_destroy(space);
}

/* The layers that a rank has, as text: "0 1 4 5". */
static void expect_layers(const rs_space *space, const char *layout, const char *const *wanted)
{
    rs_placement *placement = placed(space, layout);
    for (int rank = 0; rank < rs_placement_holders(placement); rank++) {
        rs_shard_list shards = {0};
        char text[64] = "";
        assert_int_equal(rs_placement_shards(placement, rank, 0, &shards), RS_OK);
        for (size_t i = 0; i < shards.count; i++)
            if (shards.items[i].tensor == 1)
                snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d",
                    text[0] != '\0' ? " " : "", (int)shards.items[i].box.offset[0]);
        assert_string_equal(text, wanted[rank]);
        rs_shard_list_fini(&shards);
    }
    rs_placement_destroy(placement);
}

/* C06: to interleaved stages and back. */
static void interleaved(void **state)
{
    (void)state;
    rs_space *space = layer_space(8);
    expect_layers(space, "pp=2,vpp=2", (const char *const[]){"0 1 4 5", "2 3 6 7"});
    expect_layers(space, "pp=2,vpp=4", (const char *const[]){"0 2 4 6", "1 3 5 7"});
    CARRY(space, "pp=4", "pp=2,vpp=2", "pp=2,vpp=4", "pp=1", "pp=2,vpp=2,dp=2,zero=1");
    rs_space_destroy(space);
}

/* Whether the sums of a state say that its copies are equal. */
static rs_status compare_copies(const rs_space *space, const holding_state *s)
{
    size_t count = rs_sums_word_count(space);
    uint64_t *total = calloc(count, sizeof *total);
    uint64_t *words = calloc(count, sizeof *words);
    for (int h = 0; h < s->holders; h++) {
        rs_sums *sums;
        assert_int_equal(rs_sums_create(s->placement, h, &sums), RS_OK);
        assert_int_equal(rs_sums_measure(sums, &s->memory[h], true), RS_OK);
        assert_int_equal(rs_sums_words(sums, words), RS_OK);
        for (size_t k = 0; k < count; k++)
            total[k] += words[k];
        rs_sums_destroy(sums);
    }
    rs_status status = rs_sums_compare(space, total, total, -1);
    free(total);
    free(words);
    return status;
}

/* Changes element (row 2, column 1) of tensor 0 on a rank. */
static void spoil(holding_state *s, int rank)
{
    rs_box box = {.ndim = 2, .offset = {2, 1}, .extent = {1, 1}};
    rs_shard shard;
    assert_int_equal(rs_placement_address(s->placement, rank, 0, 0, &box, &shard), RS_OK);
    *(uint16_t *)rs_memory_shard(&s->memory[rank], &shard) ^= 1;
}

/* C07, C11: a tied embedding is on the first and the last rank, nowhere else; so is one that a
 * layer of multi-token prediction reads; and a copy that drifted is noticed. */
static void tied_embedding(void **state)
{
    (void)state;
    const rs_tensor tensors[] = {
        {.name = "embed", .ndim = 2, .shape = {16, 4}, .stage = RS_STAGE_FIRST_AND_LAST},
        {.name = "w", .ndim = 2, .shape = {5, 4}, .axis = {RS_AXIS_LAYER}},
        {.name = "mtp", .ndim = 2, .shape = {1, 3}, .axis = {RS_AXIS_LAYER}, .layer_first = 5}};
    rs_space *space = make_space(tensors, 3);
    expect_extents(space, "pp=4", 0, 0, 0, EXTENTS({0, 16}, {-1, 0}, {-1, 0}, {0, 16}));
    expect_extents(space, "pp=3", 0, 0, 0, EXTENTS({0, 16}, {-1, 0}, {0, 16}));
    expect_extents(space, "pp=1", 0, 0, 0, EXTENTS({0, 16}));
    /* The last stage has the layer of multi-token prediction alone, and its own copy. */
    expect_extents(space, "pp=3,stages=0-2/3-4/5", 1, 0, 0, EXTENTS({0, 3}, {3, 2}, {-1, 0}));
    expect_extents(space, "pp=3,stages=0-2/3-4/5", 2, 0, 0, EXTENTS({-1, 0}, {-1, 0}, {0, 1}));
    expect_extents(space, "pp=3,stages=0-2/3-4/5", 0, 0, 0, EXTENTS({0, 16}, {-1, 0}, {0, 16}));
    CARRY(space, "pp=4", "pp=1", "pp=3", "pp=3,stages=0-2/3-4/5");
    static const char *const layouts[] = {"pp=4", "pp=3,stages=0-2/3-4/5"};
    for (int i = 0; i < 2; i++) {
        holding_state s;
        allocate(placed(space, layouts[i]), &s);
        for (int h = 0; h < s.holders; h++)
            assert_true(pattern_fill(s.placement, h, &s.memory[h], 1));
        assert_int_equal(compare_copies(space, &s), RS_OK);
        spoil(&s, s.holders - 1);
        assert_int_equal(compare_copies(space, &s), RS_ERR_CERTIFICATE);
        assert_non_null(strstr(rs_error_message(), "embed, role param: its copies"));
        release(&s);
    }
    rs_space_destroy(space);
}

/* ---- D: experts ---- */

static rs_space *expert_space(int64_t layers, int64_t experts)
{
    const rs_tensor tensors[] = {
        {.name = "embed", .ndim = 2, .shape = {7, 3}, .stage = RS_STAGE_FIRST},
        {.name = "experts",
            .ndim = 4,
            .shape = {layers, experts, 3, 5},
            .axis = {RS_AXIS_LAYER, RS_AXIS_EXPERT, RS_AXIS_FFN}},
        {.name = "amax",
            .ndim = 2,
            .shape = {layers, experts},
            .axis = {RS_AXIS_LAYER, RS_AXIS_EXPERT}},
        {.name = "attn", .ndim = 3, .shape = {layers, 6, 4}, .axis = {RS_AXIS_LAYER, RS_AXIS_FFN}}};
    return make_space(tensors, 4);
}

/* D01, D05: a rank's experts are those of its place in the model. D03: a scalar an expert has an
 * axis of experts like any other tensor. */
static void expert_numbers(void **state)
{
    (void)state;
    rs_space *space = expert_space(1, 4);
    for (int tensor = 1; tensor <= 2; tensor++) {
        expect_extents(space, "dp=2,ep=2", tensor, 0, 1, EXTENTS({0, 2}, {2, 2}));
        expect_extents(space, "dp=4,ep=4", tensor, 0, 1, EXTENTS({0, 1}, {1, 1}, {2, 1}, {3, 1}));
    }
    CARRY(space, "dp=2,ep=2", "dp=1", "dp=2,ep=2", "dp=4,ep=4", "dp=2,ep=2", "dp=8,ep=8");
    rs_space_destroy(space);
    space = expert_space(1, 60);
    expect_extents(space, "dp=2,ep=2", 1, 0, 1, EXTENTS({0, 30}, {30, 30}));
    expect_extents(space, "dp=4,ep=4", 1, 0, 1, EXTENTS({0, 15}, {15, 15}, {30, 15}, {45, 15}));
    expect_extents(space, "dp=8,ep=8", 1, 0, 1,
        EXTENTS({0, 8}, {8, 8}, {16, 8}, {24, 8}, {32, 7}, {39, 7}, {46, 7}, {53, 7}));
    CARRY(space, "dp=2,ep=2", "dp=8,ep=8", "tp=2,dp=4,ep=8,etp=1,zero=1", "dp=4,ep=4");
    rs_space_destroy(space);
}

/* D08: copies that expert-parallel ranks trained apart. Where the layout stays, each rank keeps its
 * own; that they differ is noticed by the sums, so that none of them is taken in silence. */
static void copies_apart(void **state)
{
    (void)state;
    const rs_tensor tensors[] = {{.name = "adapter", .ndim = 2, .shape = {4, 2}},
        {.name = "experts",
            .ndim = 3,
            .shape = {1, 2, 3},
            .axis = {RS_AXIS_LAYER, RS_AXIS_EXPERT}}};
    rs_space *space = make_space(tensors, 2);
    holding_state from, to;
    rs_box whole = rs_box_whole(2, tensors[0].shape);
    allocate(placed(space, "dp=2,ep=2"), &from);
    allocate(placed(space, "dp=2,ep=2"), &to);
    for (int h = 0; h < 2; h++)
        assert_true(pattern_fill(from.placement, h, &from.memory[h], 1));
    spoil(&from, 1);
    move(&from, &to);
    for (int h = 0; h < 2; h++) {
        rs_shard shard;
        assert_int_equal(rs_placement_address(to.placement, h, 0, 0, &whole, &shard), RS_OK);
        assert_memory_equal(rs_memory_shard(&to.memory[h], &shard),
            rs_memory_shard(&from.memory[h], &shard), 8 * sizeof(uint16_t));
    }
    assert_int_equal(compare_copies(space, &to), RS_ERR_CERTIFICATE);
    assert_non_null(strstr(rs_error_message(), "adapter, role param: its copies"));
    release(&from);
    release(&to);
    rs_space_destroy(space);
}

/* D07: pipeline parallel to expert parallel, with the optimizer's state. */
static void stages_to_experts(void **state)
{
    (void)state;
    rs_space *space = expert_space(8, 8);
    CARRY(space, "pp=4,dp=2,zero=1", "dp=8,ep=4,zero=1", "pp=4,dp=2,zero=1",
        "pp=2,tp=2,dp=4,ep=4,etp=2,zero=3,zero_cut=param", "dp=8,ep=2,zero=2,shard=4");
    /* Its ranks: two have each expert, and half of its moments each. */
    rs_placement *placement = placed(space, "dp=8,ep=4,zero=1");
    rs_box expert = {.ndim = 4, .offset = {5, 3}, .extent = {1, 1, 3, 5}};
    rs_holding_list found = {0};
    assert_int_equal(rs_placement_locate(placement, 1, 0, &expert, &found), RS_OK);
    assert_int_equal(found.rank_count, 2);
    assert_true(found.ranks[0] == 1 && found.ranks[1] == 5);
    rs_holding_list_fini(&found);
    rs_placement_destroy(placement);
    rs_space_destroy(space);
}

/* D06: a checkpoint whose first layers have experts grouped, gate above up, and whose last has them
 * one by one; it is a placement like any other. */
static void grouped_and_single(void **state)
{
    (void)state;
    enum { E = 4, I = 3, H = 2, LAYERS = 3 };
    const rs_tensor tensors[] = {{.name = "gate",
                                     .ndim = 4,
                                     .shape = {LAYERS, E, I, H},
                                     .axis = {RS_AXIS_LAYER, RS_AXIS_EXPERT, RS_AXIS_FFN}},
        {.name = "up",
            .ndim = 4,
            .shape = {LAYERS, E, I, H},
            .axis = {RS_AXIS_LAYER, RS_AXIS_EXPERT, RS_AXIS_FFN}}};
    rs_space *space = make_space(tensors, 2);
    for (int t = 0; t < 2; t++)
        for (int role = 1; role < 3; role++)
            assert_int_equal(rs_space_set_dtype(space, t, role, RS_DTYPE_NONE), RS_OK);
    rs_shard shards[64];
    size_t count = 0;
    for (int half = 0; half < 2; half++)
        for (int layer = 0; layer < LAYERS; layer++)
            for (int e = 0; e < E; e += layer < 2 ? E : 1) {
                int64_t experts = layer < 2 ? E : 1;
                /* Grouped: [E, 2 I, H], segment of its own; single: [I, H] each. */
                shards[count++] = (rs_shard){.tensor = half,
                    .dtype = RS_DTYPE_BF16,
                    .box = {4, {layer, e, 0, 0}, {1, experts, I, H}},
                    .segment = layer < 2 ? layer : 2 + half * E + e,
                    .offset = layer < 2 ? 2 * half * I * H : 0,
                    .stride = {2 * E * 2 * I * H, 2 * 2 * I * H, 2 * H, 2}};
            }
    rs_placement *file;
    assert_int_equal(
        rs_placement_create_list(space, 1, shards, (size_t[]){0, count}, &file), RS_OK);
    holding_state from;
    holding_state ranks;
    holding_state back;
    allocate(file, &from);
    allocate(placed(space, "dp=2,ep=2"), &ranks);
    assert_true(pattern_fill(file, 0, &from.memory[0], 1));
    move(&from, &ranks);
    check(&ranks);
    /* Gate is rows 0-2, up rows 3-5 of each expert of a grouped tensor: row 4 of expert 1 in layer
     * 0 is row 1 of up. */
    const uint16_t *grouped = rs_memory_segment(&from.memory[0], 0);
    rs_box row = {4, {0, 1, 1, 0}, {1, 1, 1, H}};
    rs_shard there;
    assert_int_equal(rs_placement_address(ranks.placement, 0, 1, 0, &row, &there), RS_OK);
    assert_memory_equal(
        rs_memory_shard(&ranks.memory[0], &there), grouped + (1 * 2 * I + 4) * H, 2 * H);
    rs_placement *again;
    assert_int_equal(
        rs_placement_create_list(space, 1, shards, (size_t[]){0, count}, &again), RS_OK);
    allocate(again, &back);
    move(&ranks, &back);
    check(&back);
    release(&from);
    release(&ranks);
    release(&back);
    rs_space_destroy(space);
}

/* Every family with experts goes through layouts that use all axes. */
static void tiny_models(void **state)
{
    (void)state;
    static const char *const names[] = {
        "mixtral-tiny", "qwen3-moe-tiny", "qwen2-moe-tiny", "deepseek-tiny"};
    for (int i = 0; i < 4; i++) {
        rs_model model;
        rs_space *space;
        assert_int_equal(rs_model_load(names[i], &model), RS_OK);
        /* The shapes matter here, not the sizes. */
        model.hidden = 20;
        model.vocab = 30;
        model.ffn = 22;
        model.expert_ffn = 9;
        model.shared_ffn = model.shared_ffn > 0 ? 7 : 0;
        assert_int_equal(rs_model_space(&model, RS_DTYPE_BF16, &space), RS_OK);
        CARRY(space, "tp=2,dp=4,ep=4,etp=1,zero=1", "pp=2,vpp=2,cp=2,dp=2,ep=2,zero=1,sp=on",
            "dp=6,ep=3,zero=3,zero_cut=dim0,shard=3", "tp=3,pp=2,ep=3,etp=1,zero=2",
            "tp=2,dp=5,ep=5,zero=3,zero_cut=param,order=dp-ep-tp-pp", "dp=1");
        rs_space_destroy(space);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_over_ranks),
        cmocka_unit_test(two_cuts_of_one_dimension),
        cmocka_unit_test(flat_parameter),
        cmocka_unit_test(fused_halves),
        cmocka_unit_test(layer_offset),
        cmocka_unit_test(uneven_stages),
        cmocka_unit_test(interleaved),
        cmocka_unit_test(tied_embedding),
        cmocka_unit_test(expert_numbers),
        cmocka_unit_test(copies_apart),
        cmocka_unit_test(stages_to_experts),
        cmocka_unit_test(grouped_and_single),
        cmocka_unit_test(tiny_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
