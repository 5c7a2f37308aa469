/*
 * What several ranks have, and have to agree about.
 *
 * Fused queries, keys and values under more ranks than there are groups of keys (B03): ranks that
 * have the keys and values of their queries' group (convention R), or plain rows of the fused
 * tensor (convention C). Which rows a rank has is listed here, not computed.
 *
 * What every expert-parallel rank has trained on for itself (D08): an adapter among the experts.
 */
#include "truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "build.h"
#include "ckpt/cut.h"
#include "ckpt/publish.h"
#include "reshard/convert.h"
#include "reshard/dialect.h"
#include "synthetic.h"

/* 8 query heads, 2 of keys and values, 2 rows each: group 0 has rows 0 to 11. */
static const int64_t rows_r4[] = {0, 1, 2, 3, 8, 9, 10, 11, /* rank 1 */ 4, 5, 6, 7, 8, 9, 10, 11,
    12, 13, 14, 15, 20, 21, 22, 23, 16, 17, 18, 19, 20, 21, 22, 23};
static const int64_t rows_r2[] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23};
#define rows_c4 rows_r2 /* 6 rows a rank: the same in another rhythm */

static const char rule_r[] = "{\"rules\":[{\"match\":\"qkv\",\"split\":0,\"parts\":[16,4,4],"
                             "\"groups\":2,\"shared\":[1,2]}],\"otherwise\":{\"replicated\":true}}";
static const char rule_c[] = "{\"rules\":[{\"match\":\"qkv\",\"split\":0,\"parts\":[24]}],"
                             "\"otherwise\":{\"replicated\":true}}";

static char folder[256], target[256], rules_r[256], rules_c[256];
static const char *const roles[] = {"param", "master", "exp_avg", "exp_avg_sq"};

static syn_run run_of(int tp, int dp, int stage, const int64_t *rows, int count)
{
    syn_run run = syn_usual(tp, dp, stage);
    syn_add(&run, "norm", SYN_REPLICATED, 0, 1, 4, 0);
    syn_param *p = syn_add(&run, "qkv", SYN_LISTED, 0, 2, 24, 4);
    p->rows = rows;
    p->row_count = count;
    run.no_info = true;
    return run;
}

static rs_checkpoint *opened_by(const char *path, const char *rules)
{
    rs_checkpoint *checkpoint;
    const rs_checkpoint_options how = {.rules = rules};
    OK(rs_checkpoint_open(path, &how, &checkpoint));
    return checkpoint;
}

static float *read_rows(const rs_checkpoint *checkpoint, const char *role, int64_t rows)
{
    int64_t index = rs_checkpoint_find(checkpoint, "qkv", role);
    float *values = malloc(sizeof *values * 4 * (size_t)rows);
    assert_true(index >= 0);
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)index);
    assert_int_equal(entry->shape[0], rows);
    rs_box whole = rs_box_whole(entry->ndim, entry->shape);
    OK(rs_checkpoint_read(
        checkpoint, (size_t)index, &whole, values, sizeof *values * 4 * (size_t)rows));
    return values;
}

/* Every role of the tensor is the whole one, as `rules` say it. */
static void check_whole(const char *path, const char *rules)
{
    rs_checkpoint *checkpoint = opened_by(path, rules);
    for (int role = 0; role < 4; role++) {
        float *values = read_rows(checkpoint, roles[role], 24);
        for (int64_t i = 0; i < 96; i++)
            assert_true(values[i] == syn_value(role, 1, i));
        free(values);
    }
    rs_checkpoint_close(checkpoint);
}

/* Element `i` of the tensor's masters is the rows' one: how a target's ranks stand in a file. */
static void check_rows(const char *path, const int64_t *rows, int64_t count)
{
    rs_checkpoint *checkpoint = opened_by(path, NULL);
    float *values = read_rows(checkpoint, "master", count);
    for (int64_t i = 0; i < 4 * count; i++)
        assert_true(values[i] == syn_value(1, 1, 4 * rows[i / 4] + i % 4));
    free(values);
    rs_checkpoint_close(checkpoint);
}

/* B03: 4 ranks to 1, under both conventions, out of whole weights and from under ZeRO; under R over
 * 2 ranks, which have a group each, nothing is shared. */
static void test_whole(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++)
        for (int dp = 1; dp <= 3; dp++) {
            syn_run runs[] = {run_of(4, dp, stage, rows_r4, 8), run_of(2, dp, stage, rows_r2, 12),
                run_of(4, dp, stage, rows_c4, 6)};
            for (int i = 0; i < 3; i++) {
                syn_write(&runs[i], folder);
                check_whole(folder, i < 2 ? rules_r : rules_c);
                syn_remove(folder);
            }
        }
}

static void refused(const char *rules, const char *why)
{
    rs_status status = read_everything(folder, &(rs_checkpoint_options){.rules = rules});
    assert_int_equal(status, RS_ERR_MISMATCH);
    expect_message(why);
}

/* B03: 8 rows a rank are no cut of 24 into plain rows, and 6 none where ranks share. */
static void test_sizes(void **state)
{
    (void)state;
    syn_run run = run_of(4, 2, 1, rows_r4, 8);
    syn_write(&run, folder);
    refused(rules_c, "\"qkv\": rank 0 has 8 along dimension 0, its rule gives it 6 (all 4 ranks "
                     "together 32, the rule 24)");
    syn_remove(folder);
    run = run_of(4, 2, 1, rows_c4, 6);
    syn_write(&run, folder);
    refused(rules_r, "\"qkv\": rank 0 has 6 along dimension 0, its rule gives it 8 (all 4 ranks "
                     "together 24, the rule 32)");
    syn_remove(folder);
    /* 16 query rows do not divide over 3 ranks. */
    run = run_of(3, 1, 1, rows_c4, 8);
    syn_write(&run, folder);
    refused(rules_r, "its part 0 has 16 elements along dimension 0, which do not divide evenly "
                     "over 3 ranks");
    syn_remove(folder);
}

/* B03: keys of rank 1 that differ from those of rank 0 are told, by index and both values, and
 * nothing is made of them; queries, which one rank has, are not compared with anybody's. */
static void test_differing(void **state)
{
    (void)state;
    syn_run run = run_of(4, 1, 1, rows_r4, 8);
    const rs_convert_options how = {.to = "native"};
    char wanted[900];
    run.differs = 1;
    for (int i = 0; i < 2; i++) {
        run.differs_at = i == 0 ? 4 * 4 + 2 : 4 * 3 + 2; /* row 8, and row 7 */
        syn_write(&run, folder);
        rs_checkpoint *checkpoint = opened_by(folder, rules_r);
        rs_status status = rs_convert(checkpoint, target, &how, NULL);
        assert_int_equal(status, i == 0 ? RS_ERR_MISMATCH : RS_OK);
        snprintf(wanted, sizeof wanted,
            "param of \"qkv\": its copies must be equal, and are not: at [8,2] "
            "%s/mp_rank_00_model_states.pt has %.9g, %s/mp_rank_01_model_states.pt has %.9g",
            folder, syn_value(0, 1, 34), folder, syn_value(0, 1, 34) + 1.5);
        if (i == 0)
            expect_message(wanted);
        assert_int_equal(access(target, F_OK), i == 0 ? -1 : 0);
        OK(rs_checkpoint_check(checkpoint));
        assert_int_equal(
            has_warning(checkpoint, "copies of param of \"qkv\" differ in 1 elements: at [8,2]"),
            i == 0);
        rs_checkpoint_close(checkpoint);
        syn_remove(folder);
    }
    OK(rs_remove_folder(target));
}

/* Copies of what is replicated are compared too where the rules say that they must be equal. */
static void test_equal(void **state)
{
    (void)state;
    char rules[256];
    static const char text[] =
        "{\"rules\":[{\"match\":\"norm\",\"replicated\":true,\"equal\":true},"
        "{\"match\":\"w\",\"replicated\":true,\"equal\":true}]}";
    snprintf(rules, sizeof rules, "%s", scratch_file("equal.json", text, sizeof text - 1));
    for (int differs = -1; differs < 3; differs += 3) {
        syn_run run = syn_usual(4, 2, 1);
        syn_add(&run, "norm", SYN_REPLICATED, 0, 1, 4, 0);
        syn_add(&run, "w", SYN_REPLICATED, 0, 2, 3, 2);
        run.no_info = true;
        run.differs = differs;
        syn_write(&run, folder);
        if (differs < 0)
            OK(read_everything(folder, &(rs_checkpoint_options){.rules = rules}));
        else
            refused(rules, "param of \"w\": its copies must be equal, and are not: at [1,0]");
        syn_remove(folder);
    }
}

/* G03: a vector of two on each of two ranks, and no word of how it was cut: refused. Said to be the
 * same, a conflict; said to be cut, one of four. */
static void test_g03(void **state)
{
    (void)state;
    static const char same[] = "{\"rules\":[{\"match\":\"w\",\"replicated\":true,\"equal\":true}]}";
    static const char cut[] = "{\"rules\":[{\"match\":\"w\",\"split\":0}]}";
    char rules[256];
    syn_run run = syn_usual(2, 1, 1);
    syn_add(&run, "w", SYN_ROWS, 0, 1, 4, 0);
    run.no_info = true;
    syn_write(&run, folder);
    assert_refused(folder, NULL);
    expect_message("\"w\"");
    snprintf(rules, sizeof rules, "%s", scratch_file("same.json", same, sizeof same - 1));
    refused(rules, "of \"w\": its copies must be equal, and are not: at [0]");
    snprintf(rules, sizeof rules, "%s", scratch_file("cut.json", cut, sizeof cut - 1));
    rs_checkpoint *checkpoint = opened_by(folder, rules);
    int64_t index = rs_checkpoint_find(checkpoint, "w", "param"), shape = 4;
    float values[4];
    assert_true(index >= 0);
    assert_int_equal(rs_checkpoint_entry_at(checkpoint, (size_t)index)->shape[0], shape);
    rs_box whole = rs_box_whole(1, &shape);
    OK(rs_checkpoint_read(checkpoint, (size_t)index, &whole, values, sizeof values));
    for (int64_t i = 0; i < 4; i++)
        assert_true(values[i] == syn_value(0, 0, i));
    rs_checkpoint_close(checkpoint);
    syn_remove(folder);
}

typedef struct side {
    const char *rules, *layout;
    const int64_t *rows;
    int tp, count; /* rows of a rank */
} side;

/* B03: from any of 4 ranks that share, 4 that have plain rows, 2 with a group each and 1, to any,
 * as DeepSpeed loads it: rank r of t the r-th of t equal shares; and read again, all is there. */
static void test_both_ways(void **state)
{
    (void)state;
    const side sides[] = {{rules_r, "tp=4,dp=2,zero=1", rows_r4, 4, 8},
        {rules_c, "tp=4,dp=2,zero=1", rows_c4, 4, 6}, {rules_r, "tp=2,dp=2,zero=1", rows_r2, 2, 12},
        {rules_r, "dp=2,zero=1", rows_r2, 1, 24}};
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++) {
            syn_run run = run_of(sides[a].tp, 2, 1, sides[a].rows, sides[a].count);
            const rs_convert_options how = {
                .to = "deepspeed-universal", .layout = sides[b].layout, .rules = sides[b].rules};
            syn_write(&run, folder);
            rs_checkpoint *checkpoint = opened_by(folder, sides[a].rules);
            OK(rs_convert(checkpoint, target, &how, NULL));
            rs_checkpoint_close(checkpoint);
            check_rows(target, sides[b].rows, sides[b].tp * sides[b].count);
            check_whole(target, sides[b].rules);
            OK(rs_remove_folder(target));
            syn_remove(folder);
        }
    /* DeepSpeed can only cut equal shares: 6 queries of 2 groups over 3 ranks are none. */
    static const char text[] =
        "{\"rules\":[{\"match\":\"qkv\",\"split\":0,\"parts\":[12,6,6],"
        "\"groups\":2,\"shared\":[1,2]}],\"otherwise\":{\"replicated\":true}}";
    const char *rules = scratch_file("three.json", text, sizeof text - 1);
    syn_run run = run_of(1, 1, 1, rows_r2, 24);
    const rs_convert_options how = {.to = "deepspeed-universal", .layout = "tp=3", .rules = rules};
    syn_write(&run, folder);
    rs_checkpoint *checkpoint = opened_by(folder, NULL);
    assert_int_equal(rs_convert(checkpoint, target, &how, NULL), RS_ERR_UNSUPPORTED);
    expect_message("rank 0 has 10 along dimension 0, rank 1 16");
    assert_int_equal(access(target, F_OK), -1);
    rs_checkpoint_close(checkpoint);
    syn_remove(folder);
}

/* B02 behind B03: taken apart by a dialect, keys and values are still compared. */
static void test_apart(void **state)
{
    (void)state;
    static const char text[] = "{\"dialect\":\"own\",\"tensors\":[{\"name\":\"qkv\",\"groups\":2,"
                               "\"of\":[\"q\",\"k\",\"v\"]},{\"name\":\"*\",\"of\":\"*\"}]}";
    static const int k_rows[] = {8, 9, 20, 21};
    rs_dialect *dialect;
    rs_space *space;
    OK(rs_dialect_parse(text, sizeof text - 1, "own", &dialect));
    OK(rs_space_create(&space));
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"q", "k", "v", "norm"};
        rs_tensor tensor = {
            .name = names[i], .ndim = i == 3 ? 1 : 2, .shape = {i == 0 ? 16 : 4, 4}};
        if (i == 3)
            tensor.shape[1] = 0;
        OK(rs_space_add_tensor(space, &tensor, NULL));
    }
    for (int differs = -1; differs <= 1; differs += 2) {
        syn_run run = run_of(4, 2, 1, rows_r4, 8);
        rs_checkpoint *own;
        float values[16];
        run.differs = differs;
        run.differs_at = 4 * 4 + 2;
        syn_write(&run, folder);
        rs_checkpoint *checkpoint = opened_by(folder, rules_r);
        rs_rename_options how = {.from = dialect, .space = space};
        OK(rs_checkpoint_rename(checkpoint, &how, &own));
        rs_box box = {.ndim = 2, .extent = {4, 4}};
        size_t k = (size_t)rs_checkpoint_find(own, "k", "param");
        if (differs < 0) {
            OK(rs_checkpoint_read(own, k, &box, values, sizeof values));
            for (int i = 0; i < 16; i++)
                assert_true(values[i] == syn_value(0, 1, 4 * k_rows[i / 4] + i % 4));
        } else {
            assert_int_equal(
                rs_checkpoint_read(own, k, &box, values, sizeof values), RS_ERR_MISMATCH);
            expect_message("must be equal, and are not: at [0,2]");
        }
        rs_checkpoint_close(own);
        rs_checkpoint_close(checkpoint);
        syn_remove(folder);
    }
    rs_space_destroy(space);
    rs_dialect_destroy(dialect);
}

/* Of any heads over any ranks that divide the queries, against a plain definition: a rank has its
 * queries and the keys that one of them uses, in the order of the tensor; and every copy is whole.
 */
static void test_any_heads(void **state)
{
    (void)state;
    for (int64_t kv = 1; kv <= 6; kv++)
        for (int64_t each = 1; each <= 5; each++)
            for (int ranks = 1; ranks <= kv * each; ranks++) {
                int64_t sizes[] = {kv * each, kv}, stride = each + 1, has[64];
                bool shared[] = {false, true};
                rs_rule rule = {.kind = RS_RULE_SPLIT,
                    .parts = 2,
                    .sizes = sizes,
                    .groups = kv,
                    .shared = shared};
                rs_cut cut = {0};
                int held[8][64] = {{0}};
                if (kv * each % ranks != 0) {
                    assert_int_equal(rs_cut_of_shared(&rule, ranks, &cut), RS_ERR_MISMATCH);
                    continue;
                }
                OK(rs_cut_of_shared(&rule, ranks, &cut));
                for (int r = 0; r < ranks; r++) {
                    int64_t begin = r * (kv * each / ranks), end = begin + kv * each / ranks;
                    int64_t count = 0, at = 0;
                    for (int64_t i = 0; i < kv * stride; i++) {
                        int64_t g = i / stride, q = g * each + i % stride;
                        bool mine = i % stride < each ? begin <= q && q < end
                                                      : begin / each <= g && g <= (end - 1) / each;
                        if (mine)
                            has[count++] = i;
                    }
                    assert_int_equal(cut.length[r], count);
                    for (size_t i = cut.first[r]; i < cut.first[r + 1]; i++) {
                        const rs_cut_run *run = &cut.runs[i];
                        assert_int_equal(run->local, at);
                        for (int64_t k = 0; k < run->width; k++) {
                            assert_int_equal(run->global + k, has[at++]);
                            for (int c = run->copy; c < run->copy + run->copies; c++)
                                held[c][run->global + k]++;
                        }
                    }
                    assert_int_equal(at, count);
                }
                for (int c = 0; c < cut.copies; c++)
                    for (int64_t i = 0; i < kv * stride; i++)
                        assert_int_equal(held[c][i], 1);
                rs_cut_fini(&cut);
            }
}

/* ---- D08 ---- */

static void write_numbers(build *b, rs_dtype dtype, int64_t count, float first, float second)
{
    float wide[2] = {first, second};
    uint16_t narrow[2];
    for (int i = 0; i < 2; i++) {
        uint32_t bits;
        memcpy(&bits, &wide[i], sizeof bits);
        narrow[i] = (uint16_t)(bits >> 16);
    }
    if (dtype == RS_DTYPE_F32)
        build_tensor(b, dtype, 1, &count, wide);
    else
        build_tensor(b, dtype, 1, &count, narrow);
}

static void write_expert_shapes(build *b)
{
    static const char *const names[] = {
        "adapter", "moe.deepspeed_moe.experts.deepspeed_experts.0.w"};
    int64_t one = 1;
    build_text(b, "param_shapes");
    build_list(b);
    build_dict(b);
    build_text(b, "dense");
    build_size(b, 1, &one);
    build_dict_end(b);
    build_dict(b);
    for (int i = 0; i < 2; i++) {
        build_text(b, names[i]);
        build_size(b, 1, &one);
    }
    build_dict_end(b);
    build_list_end(b);
}

/* The optimizer's file of expert-parallel rank `rank`, which has `own` as its adapter and 10 + rank
 * as its expert; moments are bfloat16. */
static void write_expert_state(int rank, float own)
{
    build b = {0};
    char path[400];
    build_dict(&b);
    build_dict_of(&b, "optimizer_state_dict");
    build_text(&b, "zero_stage");
    build_int(&b, 1);
    build_text(&b, "partition_count");
    build_list(&b);
    build_int(&b, 2);
    build_int(&b, 1);
    build_list_end(&b);
    build_text(&b, "single_partition_of_fp32_groups");
    build_list(&b);
    write_numbers(&b, RS_DTYPE_F32, rank == 0, 5, 0);
    write_numbers(&b, RS_DTYPE_F32, 2, own, 10 + (float)rank);
    build_list_end(&b);
    build_dict_of(&b, "base_optimizer_state");
    build_dict_of(&b, "state");
    for (int g = 0; g < 2; g++) {
        build_int(&b, g);
        build_dict(&b);
        for (int k = 0; k < 2; k++) {
            build_text(&b, k == 0 ? "exp_avg" : "exp_avg_sq");
            write_numbers(&b, RS_DTYPE_BF16, 2, g == 0 ? 3 : own, g == 0 ? 0 : 20 + (float)rank);
        }
        build_dict_end(&b);
    }
    build_dict_end(&b);
    build_dict_end(&b);
    build_dict_end(&b);
    build_dict_end(&b);
    snprintf(path, sizeof path, "%s/zero_pp_rank_%d_mp_rank_00_optim_states.pt", folder, rank);
    build_write(&b, path, NULL);
}

/* Two data-parallel ranks with an expert each, ZeRO-1; the model file has rank 0's weights. */
static void write_experts(float first, float second)
{
    int64_t one = 1;
    char path[400];
    build b = {0};
    mkdir(folder, 0755);
    build_dict(&b);
    build_dict_of(&b, "module");
    build_text(&b, "dense");
    write_numbers(&b, RS_DTYPE_BF16, one, 5, 0);
    build_text(&b, "adapter");
    write_numbers(&b, RS_DTYPE_BF16, one, first, 0);
    build_dict_end(&b);
    write_expert_shapes(&b);
    build_text(&b, "dp_world_size");
    build_int(&b, 2);
    build_dict_end(&b);
    snprintf(path, sizeof path, "%s/mp_rank_00_model_states.pt", folder);
    build_write(&b, path, NULL);
    for (int e = 0; e < 2; e++) {
        char name[100];
        snprintf(name, sizeof name, "moe.deepspeed_moe.experts.deepspeed_experts.%d.w", e);
        b = (build){0};
        build_dict(&b);
        build_text(&b, name);
        write_numbers(&b, RS_DTYPE_BF16, one, 10 + (float)e, 0);
        build_dict_end(&b);
        snprintf(path, sizeof path, "%s/layer_0_expert_%d_mp_rank_00_model_states.pt", folder, e);
        build_write(&b, path, NULL);
        write_expert_state(e, e == 0 ? first : second);
    }
}

/* The one element of an entry, as fp32 or the bits of bf16. */
static uint32_t element(const rs_checkpoint *checkpoint, const char *name, const char *role)
{
    uint32_t bits = 0;
    int64_t index = rs_checkpoint_find(checkpoint, name, role);
    rs_box box = {.ndim = 1, .extent = {1}};
    assert_true(index >= 0);
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)index);
    OK(rs_checkpoint_read(checkpoint, (size_t)index, &box, &bits, rs_dtype_size(entry->dtype)));
    return bits;
}

/* D08: copies 1 and 1 + 2^-7 in bfloat16. Nobody says which counts: refused, with both. Their mean,
 * 1.00390625, is exact in fp32 and 1 in bfloat16, by one rounding to the even of its neighbours:
 * 1.0078125 and 1.015625 show that it is not the first that counts. Equal ones need no rule. */
static void test_d08(void **state)
{
    (void)state;
    static const char text[] = "{\"rules\":[{\"match\":\"adapter\",\"averaged\":true}]}";
    const char *rules = scratch_file("mean.json", text, sizeof text - 1);
    const rs_convert_options how = {.to = "native"};
    write_experts(1, 1.0078125f);
    rs_checkpoint *checkpoint = opened_by(folder, NULL);
    assert_int_equal(rs_convert(checkpoint, target, &how, NULL), RS_ERR_MISMATCH);
    expect_message("master of \"adapter\": its copies must be equal");
    expect_message("zero_pp_rank_0_mp_rank_00_optim_states.pt has 1,");
    expect_message("zero_pp_rank_1_mp_rank_00_optim_states.pt has 1.0078125");
    assert_int_equal(access(target, F_OK), -1);
    rs_checkpoint_close(checkpoint);
    checkpoint = opened_by(folder, rules);
    OK(rs_convert(checkpoint, target, &how, NULL));
    rs_checkpoint_close(checkpoint);
    syn_remove(folder);
    checkpoint = opened_by(target, NULL);
    assert_int_equal(element(checkpoint, "adapter", "master"), 0x3f808000); /* 1.00390625 */
    assert_int_equal(element(checkpoint, "adapter", "param"), 0x3f80);
    assert_int_equal(element(checkpoint, "adapter", "exp_avg"), 0x3f80);
    assert_int_equal(
        element(checkpoint, "moe.deepspeed_moe.experts.deepspeed_experts.1.w", "master"),
        0x41300000); /* experts are no copies: 11 */
    rs_checkpoint_close(checkpoint);
    OK(rs_remove_folder(target));
    write_experts(1.0078125f, 1.015625f);
    checkpoint = opened_by(folder, rules);
    assert_int_equal(element(checkpoint, "adapter", "master"), 0x3f818000); /* 1.01171875 */
    assert_int_equal(element(checkpoint, "adapter", "param"), 0x3f82);
    assert_int_equal(element(checkpoint, "adapter", "exp_avg_sq"), 0x3f82);
    rs_checkpoint_close(checkpoint);
    syn_remove(folder);
    write_experts(1, 1);
    checkpoint = opened_by(folder, NULL);
    assert_int_equal(element(checkpoint, "adapter", "master"), 0x3f800000);
    assert_int_equal(element(checkpoint, "adapter", "param"), 0x3f80);
    rs_checkpoint_close(checkpoint);
    syn_remove(folder);
}

int main(void)
{
    snprintf(folder, sizeof folder, "%s/run", scratch_folder());
    snprintf(target, sizeof target, "%s/target", scratch_folder());
    snprintf(rules_r, sizeof rules_r, "%s", scratch_file("r.json", rule_r, sizeof rule_r - 1));
    snprintf(rules_c, sizeof rules_c, "%s", scratch_file("c.json", rule_c, sizeof rule_c - 1));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_differing),
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_g03),
        cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_any_heads),
        cmocka_unit_test(test_d08),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
