/* The optimizer's step on every rank of many layouts, ranks being simulated one after the other:
 * each element counts once, and all layouts together write what one rank alone writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reshard/model.h"
#include "support/keeper.h"
#include "train/bfloat16.h"
#include "train/group.h"
#include "train/update.h"

static int generation;

/* A gradient that is a function of the tensor and the element. */
static float gradient_of(int tensor, int64_t element)
{
    uint64_t z = (uint64_t)element * 0x9e3779b97f4a7c15u + (uint64_t)tensor * 0xbf58476d1ce4e5b9u;
    z ^= z >> 31;
    return (float)(int64_t)(z % 2001) / 1000 - 1;
}

static int64_t element_index(const rs_tensor *tensor, const int64_t *point)
{
    int64_t index = 0;
    for (int d = 0; d < tensor->ndim; d++)
        index = index * tensor->shape[d] + point[d];
    return index;
}

typedef struct filling {
    float *out;
    const rs_tensor *tensor;
    int number;
} filling;

static rs_status fill_part(void *context, const rs_box *part, int block, int64_t position)
{
    const filling *f = context;
    int64_t volume = rs_box_volume(part);
    (void)block;
    for (int64_t k = 0; k < volume; k++) {
        int64_t rest = k, point[RS_MAX_DIMS] = {0};
        for (int d = part->ndim - 1; d >= 0; d--) {
            point[d] = part->offset[d] + rest % part->extent[d];
            rest /= part->extent[d];
        }
        f->out[position + k] = gradient_of(f->number, element_index(f->tensor, point));
    }
    return RS_OK;
}

/* Fills the local vector of the state's rank. */
static float *make_gradients(const rs_state *s)
{
    int64_t count = rs_state_elements(s);
    float *out = calloc((size_t)count + 1, sizeof *out);
    rs_shard_list shards = {0};
    assert_int_equal(rs_placement_shards(s->whole, s->rank, 0, &shards), RS_OK);
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *shard = &shards.items[i];
        filling f = {out, rs_space_tensor(s->space, shard->tensor), shard->tensor};
        assert_int_equal(
            rs_state_parts(s, s->rank, shard->tensor, &shard->box, fill_part, &f), RS_OK);
    }
    rs_shard_list_fini(&shards);
    return out;
}

typedef struct outcome {
    double square;
    uint64_t words[6 * 128];
    size_t count;
} outcome;

/* All ranks of a layout make two updates; their norms and words are added up. */
static void run_layout(const rs_space *space, const char *text, outcome *out)
{
    rs_layout layout;
    memset(out, 0, sizeof *out);
    out->count = rs_sums_word_count(space);
    assert_true(out->count <= sizeof out->words / sizeof *out->words);
    assert_int_equal(rs_layout_parse(text, &layout), RS_OK);
    int64_t updated = 0;
    for (int rank = 0; rank < rs_layout_world(&layout); rank++) {
        rs_state state;
        rs_update *update, *again;
        uint64_t words[6 * 128], fresh[6 * 128];
        assert_int_equal(rs_state_init(space, &layout, rank, NULL, &state), RS_OK);
        assert_int_equal(
            rs_state_allocate(&state, keeper, ++generation, NULL, NULL, 0, false), RS_OK);
        assert_int_equal(rs_state_fill(&state, 5), RS_OK);
        float *gradients = make_gradients(&state);
        rs_runs runs = {0};
        assert_int_equal(
            rs_runs_add(&runs, &(rs_run){0, rs_state_elements(&state), 0, (char *)gradients}),
            RS_OK);
        assert_int_equal(
            rs_update_create(&state, rs_optimizer_find("adamw"), &runs, &update), RS_OK);
        out->square += rs_update_norm(update, &runs);
        rs_update_apply(update, &(rs_update_rate){1, 1e-2f, 0.5f, 0});
        rs_update_apply(update, &(rs_update_rate){2, 2e-2f, 0.25f, 0});
        assert_int_equal(rs_sums_words(rs_update_sums(update), words), RS_OK);
        assert_int_equal(
            rs_update_create(&state, rs_optimizer_find("adamw"), &runs, &again), RS_OK);
        assert_int_equal(rs_sums_words(rs_update_sums(again), fresh), RS_OK);
        if (memcmp(words, fresh, out->count * sizeof *words) != 0)
            fail_msg("%s, rank %d: the sums kept are not those of memory", text, rank);
        for (size_t i = 0; i < out->count; i++)
            out->words[i] += words[i];
        rs_runs piece = {0};
        for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
            assert_int_equal(
                rs_state_pieces(&state, state.flat, rank, mesh, -1, -1, &piece), RS_OK);
        updated += rs_runs_elements(&piece);
        rs_runs_fini(&piece);
        rs_update_destroy(again);
        rs_update_destroy(update);
        rs_state_fini(&state);
        rs_runs_fini(&runs);
        free(gradients);
        assert_int_equal(rs_arena_delete(keeper, generation, rank, NULL), RS_OK);
    }
    assert_true(updated >= rs_space_elements(space));
}

static const char *const many_layouts[] = {"tp=2", "tp=3", "pp=2", "dp=2", "dp=3,zero=1", "tp=5",
    "tp=2,pp=2,dp=2,zero=1", "tp=3,dp=2,zero=1", "order=dp-tp-pp,tp=2,dp=3", "dp=3,zero=2",
    "dp=3,zero=3", "dp=4,zero=3,zero_cut=param,shard=2", "dp=5,zero=2,zero_cut=dim0",
    "tp=2,dp=3,zero=3,zero_cut=dim0", "pp=2,dp=4,zero=1,zero_cut=param", "dp=4,zero=2,shard=2",
    NULL};

static void check_model(const char *path, rs_dtype dtype, const char *const *layouts)
{
    rs_model model;
    rs_space *space;
    outcome one, many;
    double square = 0;
    assert_int_equal(rs_model_load(path, &model), RS_OK);
    assert_int_equal(rs_model_space(&model, dtype, &space), RS_OK);
    for (int t = 0; t < rs_space_tensor_count(space); t++) {
        const rs_tensor *tensor = rs_space_tensor(space, t);
        int64_t count = 1;
        for (int d = 0; d < tensor->ndim; d++)
            count *= tensor->shape[d];
        for (int64_t i = 0; i < count; i++)
            square += (double)gradient_of(t, i) * (double)gradient_of(t, i);
    }
    run_layout(space, "dp=1", &one);
    assert_true(fabs(one.square - square) <= 1e-9 * square);
    for (size_t i = 0; layouts[i] != NULL; i++) {
        run_layout(space, layouts[i], &many);
        if (!(fabs(many.square - square) <= 1e-9 * square))
            fail_msg(
                "%s %s: squared norm %.12g, wanted %.12g", path, layouts[i], many.square, square);
        rs_status status = rs_sums_compare(space, one.words, many.words, -1);
        if (status != RS_OK)
            fail_msg("%s %s: %s", path, layouts[i], rs_error_message());
    }
    rs_space_destroy(space);
}

static void layouts_update_alike_in_float32(void **state)
{
    (void)state;
    check_model(RS_TRAIN_DIR "/models/llama-uneven", RS_DTYPE_F32, many_layouts);
    check_model(RS_TRAIN_DIR "/models/qwen2-small", RS_DTYPE_F32, many_layouts);
}

/* Six or seven experts: on as many ranks, on fewer, on more; etp beside tp and without it; and a
 * tp that leaves ranks with the same experts unlike parts of all else. */
static const char *const expert_layouts[] = {"dp=4,ep=2", "dp=4,ep=4,zero=1", "dp=8,ep=8",
    "dp=9,ep=9,zero=1", "tp=2,ep=2,etp=1", "tp=2,etp=2", "tp=2,etp=1", "tp=3,etp=1,zero=1",
    "dp=4,etp=2,ep=2", "pp=2,dp=2,ep=2,zero=2", "tp=2,dp=3,ep=3,etp=1,zero=3",
    "dp=4,ep=2,zero=3,zero_cut=param", "tp=2,dp=2,etp=1,ep=2,zero=3,zero_cut=dim0",
    "dp=8,ep=2,zero=2,shard=4", "order=ep-dp-tp-cp-pp,tp=2,dp=4,ep=4,etp=1,zero=1", NULL};

static void layouts_of_experts_update_alike(void **state)
{
    (void)state;
    check_model(RS_TRAIN_DIR "/models/mixtral-small", RS_DTYPE_F32, expert_layouts);
    check_model(RS_TRAIN_DIR "/models/qwen2-moe-small", RS_DTYPE_BF16, expert_layouts);
}

static void layouts_update_alike_in_bfloat16(void **state)
{
    (void)state;
    check_model(RS_TRAIN_DIR "/models/qwen3-small", RS_DTYPE_BF16, many_layouts);
}

/* The small models' cells are single chunks; these are not. */
static void large_cells_are_updated_in_chunks(void **state)
{
    static const char *const layouts[] = {"tp=3,dp=2,zero=1", NULL};
    (void)state;
    check_model("llama-tiny", RS_DTYPE_F32, layouts);
}

static rs_status first_part(void *context, const rs_box *part, int block, int64_t position)
{
    int64_t *first = context;
    (void)part;
    (void)block;
    *first = *first < 0 ? position : *first;
    return RS_OK;
}

/* Element by element in double, against docs/training.md. */
static void adamw_is_as_documented(void **state)
{
    (void)state;
    char path[512];
    rs_model model;
    rs_space *space;
    rs_layout layout;
    rs_state s;
    rs_update *update;
    enum { STEPS = 3 };
    static const float rates[] = {1e-2f, 3e-2f, 5e-3f}, clips[] = {0.5f, 1, 0.75f};
    snprintf(path, sizeof path, "%s/models/qwen2-small", RS_TRAIN_DIR);
    assert_int_equal(rs_model_load(path, &model), RS_OK);
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    assert_int_equal(rs_layout_parse("dp=1", &layout), RS_OK);
    assert_int_equal(rs_state_init(space, &layout, 0, NULL, &s), RS_OK);
    assert_int_equal(rs_state_allocate(&s, keeper, ++generation, NULL, NULL, 0, false), RS_OK);
    assert_int_equal(rs_state_fill(&s, 5), RS_OK);
    float *gradients = make_gradients(&s);
    rs_runs runs = {0};
    assert_int_equal(
        rs_runs_add(&runs, &(rs_run){0, rs_state_elements(&s), 0, (char *)gradients}), RS_OK);
    assert_int_equal(rs_update_create(&s, rs_optimizer_find("adamw"), &runs, &update), RS_OK);
    rs_shard_list shards = {0};
    assert_int_equal(rs_placement_shards(s.placement, 0, s.roles.param, &shards), RS_OK);
    double *wanted = calloc(shards.count, sizeof *wanted);
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *shard = &shards.items[i];
        int64_t at = -1;
        assert_int_equal(rs_state_parts(&s, 0, shard->tensor, &shard->box, first_part, &at), RS_OK);
        double w = *(float *)rs_state_element(&s, s.roles.param, at), m = 0, v = 0;
        for (int k = 0; k < STEPS; k++) {
            double g = (double)gradients[at] * (double)clips[k];
            double decay = rs_space_tensor(space, shard->tensor)->decay ? 0.1 : 0;
            m = 0.9 * m + 0.1 * g;
            v = 0.95 * v + 0.05 * g * g;
            w -=
                (double)rates[k] *
                (m / (1 - pow(0.9, k + 1)) / (sqrt(v / (1 - pow(0.95, k + 1))) + 1e-8) + decay * w);
        }
        wanted[i] = w;
    }
    for (int k = 0; k < STEPS; k++)
        rs_update_apply(update, &(rs_update_rate){k + 1, rates[k], clips[k], 0});
    for (size_t i = 0; i < shards.count; i++) {
        double got = *(float *)rs_memory_shard(rs_state_memory(&s), &shards.items[i]);
        if (!(fabs(got - wanted[i]) <= 2e-6 * (fabs(wanted[i]) + 0.1)))
            fail_msg("%s: %.9g, wanted %.9g", rs_space_tensor(space, shards.items[i].tensor)->name,
                got, wanted[i]);
    }
    rs_shard_list_fini(&shards);
    rs_update_destroy(update);
    rs_state_fini(&s);
    rs_space_destroy(space);
    rs_runs_fini(&runs);
    free(wanted);
    free(gradients);
}

static void the_schedule_is_as_documented(void **state)
{
    (void)state;
    assert_true(fabs(rs_learning_rate(1, 10, 100, 1) - 0.1) < 1e-12);
    assert_true(fabs(rs_learning_rate(1, 10, 100, 10) - 1) < 1e-12);
    assert_true(fabs(rs_learning_rate(1, 10, 100, 55) - 0.55) < 1e-12);
    assert_true(fabs(rs_learning_rate(1, 10, 100, 100) - 0.1) < 1e-12);
    assert_true(fabs(rs_learning_rate(1, 10, 5, 5) - 0.5) < 1e-12);
    assert_true(fabs(rs_learning_rate(2, 0, 1, 1) - 0.2) < 1e-12);
    assert_true(rs_clip_factor(0.5) == 1 && rs_clip_factor(4) == 0.25);
}

static void bfloat16_rounds_to_nearest_even(void **state)
{
    (void)state;
    static const struct {
        uint32_t bits;
        uint16_t wanted;
    } rows[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82},
        {0x3f808001, 0x3f81}, {0x80000000, 0x8000}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
        {0x7f7fffff, 0x7f80}, {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        float value;
        memcpy(&value, &rows[i].bits, sizeof value);
        assert_int_equal(rs_bf16_from_float(value), rows[i].wanted);
    }
    for (uint32_t i = 0; i < 65536; i++) {
        float value = rs_bf16_to_float((uint16_t)i);
        if (value == value)
            assert_int_equal(rs_bf16_from_float(value), i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_update_alike_in_float32),
        cmocka_unit_test(layouts_update_alike_in_bfloat16),
        cmocka_unit_test(layouts_of_experts_update_alike),
        cmocka_unit_test(large_cells_are_updated_in_chunks),
        cmocka_unit_test(adamw_is_as_documented),
        cmocka_unit_test(the_schedule_is_as_documented),
        cmocka_unit_test(bfloat16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, open_keeper, close_keeper);
}
