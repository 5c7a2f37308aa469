/* Foreign names: against the lists of real checkpoints, back and forth, and with rules that do not
 * fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/memory.h"
#include "reshard/dialect.h"
#include "reshard/model.h"

static const rs_dialect *named(const char *name)
{
    const rs_dialect *dialect = NULL;
    assert_int_equal(rs_dialect_get(name, &dialect), RS_OK);
    return dialect;
}

static const rs_dialect *hf(void)
{
    return named("hf");
}

/* The space made from config.json has exactly the tensors, and the bytes, that the index lists. */
static void compare_with_index(const char *folder, size_t tensors, int64_t bytes)
{
    struct stat info;
    if (stat(folder, &info) != 0) {
        print_message("%s is not here\n", folder);
        skip();
    }
    char path[512];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    json_t *root = json_load_file(path, 0, NULL);
    json_t *names = json_object_get(root, "weight_map");
    assert_true(json_is_object(names));
    rs_model model;
    rs_space *space;
    assert_int_equal(rs_model_load(folder, &model), RS_OK);
    assert_int_equal(rs_model_space(&model, model.dtype, &space), RS_OK);
    rs_foreign_list list = {0};
    assert_int_equal(rs_dialect_list(named(rs_model_dialect(&model)), space, &list), RS_OK);
    assert_int_equal(list.count, tensors);
    assert_int_equal(json_object_size(names), tensors);
    int64_t sum = 0;
    for (size_t i = 0; i < list.count; i++) {
        if (json_object_get(names, list.items[i].name) == NULL)
            fail_msg("%s is not in %s", list.items[i].name, path);
        /* Distinct names of the list cover as many of the index, so each must count once. */
        json_object_del(names, list.items[i].name);
        int64_t volume = 1;
        for (int d = 0; d < list.items[i].ndim; d++)
            volume *= list.items[i].shape[d];
        assert_int_equal(volume, rs_box_volume(&list.items[i].box));
        sum += volume * (int64_t)rs_dtype_size(model.dtype);
    }
    assert_int_equal(json_object_size(names), 0);
    json_t *stated = json_object_get(json_object_get(root, "metadata"), "total_size");
    if (stated != NULL)
        assert_int_equal(json_integer_value(stated), sum);
    assert_int_equal(sum, bytes);
    assert_int_equal(rs_space_bytes(space, 0), sum);
    rs_foreign_list_fini(&list);
    rs_space_destroy(space);
    json_decref(root);
}

static void test_mistral_24b(void **state)
{
    (void)state;
    compare_with_index(RS_SHARED_DIR "/models/mistral-24b", 363, 47144806400);
}

/* Its index states no size: 68,976,648,192 elements (the published 70B) of 2 bytes. */
static void test_llama2_70b(void **state)
{
    (void)state;
    compare_with_index(RS_SHARED_DIR "/models/llama2-70b", 723, 2 * 68976648192);
}

/* Experts by their names, 8 of them in 56 layers; 140,620,634,112 parameters of 2 bytes. */
static void test_mixtral_8x22b(void **state)
{
    (void)state;
    compare_with_index(RS_SHARED_DIR "/models/mixtral-8x22b", 1739, 2 * 140620634112);
}

/* The numbers of tensors that the published checkpoints of the presets list (DeepSeek-V3's without
 * the layer that predicts further tokens). */
static void test_presets(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t tensors;
        const char *some; /* one of them */
    } rows[] = {
        {"mixtral-8x7b", 995, "model.layers.31.block_sparse_moe.experts.7.w2.weight"},
        {"qwen3-30b-a3b", 18867, "model.layers.47.mlp.experts.127.down_proj.weight"},
        {"qwen3-235b-a22b", 36945, "model.layers.93.mlp.gate.weight"},
        {"deepseek-v3", 45395, "model.layers.60.mlp.shared_experts.up_proj.weight"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_model model;
        rs_space *space;
        rs_foreign_list list = {0};
        assert_int_equal(rs_model_load(rows[i].name, &model), RS_OK);
        model.mtp_layers = 0;
        assert_int_equal(rs_model_space(&model, RS_DTYPE_BF16, &space), RS_OK);
        const rs_dialect *dialect = named(rs_model_dialect(&model));
        assert_int_equal(rs_dialect_list(dialect, space, &list), RS_OK);
        assert_int_equal(list.count, rows[i].tensors);
        size_t found = 0;
        for (size_t k = 0; k < list.count; k++)
            found += strcmp(list.items[k].name, rows[i].some) == 0;
        assert_int_equal(found, 1);
        rs_foreign_list_fini(&list);
        rs_space_destroy(space);
    }
}

/* Each dialect reads what the others write; layers are told by their number in the model. */
static void test_experts(void **state)
{
    (void)state;
    static const char *const dialects[] = {"hf", "hf-mixtral", "hf-deepseek"};
    rs_model model;
    rs_space *space;
    assert_int_equal(rs_model_load("deepseek-tiny", &model), RS_OK);
    model.shared_gate = true;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    for (size_t a = 0; a < 3; a++) {
        rs_foreign_list list = {0};
        assert_int_equal(rs_dialect_list(named(dialects[a]), space, &list), RS_OK);
        for (size_t b = 0; b < 3; b++)
            for (size_t i = 0; i < list.count; i++) {
                rs_foreign found;
                assert_int_equal(
                    rs_dialect_lookup(named(dialects[b]), space, list.items[i].name, &found),
                    RS_OK);
                assert_int_equal(found.tensor, list.items[i].tensor);
                assert_true(rs_box_equal(&found.box, &list.items[i].box));
                assert_false(found.alias && a == b);
            }
        rs_foreign_list_fini(&list);
    }
    const rs_dialect *deepseek = named("hf-deepseek");
    rs_foreign found;
    /* Layer 2 of the model is the second of those with experts. */
    assert_int_equal(
        rs_dialect_lookup(deepseek, space, "model.layers.2.mlp.experts.5.up_proj.weight", &found),
        RS_OK);
    rs_box box = {.ndim = 4, .offset = {1, 5, 0, 0}, .extent = {1, 1, 128, 256}};
    assert_true(rs_box_equal(&found.box, &box) && found.ndim == 2);
    assert_int_equal(
        rs_dialect_lookup(deepseek, space, "model.layers.0.mlp.experts.5.up_proj.weight", &found),
        RS_ERR_NOT_FOUND);
    assert_non_null(strstr(rs_error_message(), "index 0 of dimension 0"));
    assert_non_null(strstr(rs_error_message(), "has 4 of them from 1 on"));
    assert_int_equal(
        rs_dialect_lookup(deepseek, space, "model.layers.1.mlp.gate_proj.weight", &found),
        RS_ERR_NOT_FOUND);
    /* What the layer that predicts further tokens has of its own, and what it has copies of. */
    assert_int_equal(
        rs_dialect_lookup(deepseek, space, "model.layers.4.eh_proj.weight", &found), RS_OK);
    assert_int_equal(found.box.offset[0], 0);
    assert_int_equal(
        rs_dialect_lookup(deepseek, space, "model.layers.4.embed_tokens.weight", &found), RS_OK);
    assert_true(found.alias && found.tensor == rs_space_find_tensor(space, "embed.weight"));
    assert_int_equal(found.ndim, 2);
    assert_int_equal(
        rs_dialect_lookup(deepseek, space, "model.layers.4.shared_head.head.weight", &found),
        RS_OK);
    assert_true(found.alias && found.tensor == rs_space_find_tensor(space, "head.weight"));
    assert_int_equal(
        rs_dialect_lookup(deepseek, space, "model.layers.x.embed_tokens.weight", &found),
        RS_ERR_NOT_FOUND);
    rs_space_destroy(space);
}

/* Every listed name is found again with the same box, and the boxes tile the space. */
static void test_back_and_forth(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        rs_model model = {.name = "all",
            .layers = 11,
            .hidden = 64,
            .heads = 8,
            .kv_heads = 2,
            .head_dim = 16,
            .ffn = 100,
            .vocab = 50,
            .qkv_bias = true,
            .out_bias = true,
            .mlp_bias = true,
            .qk_norm = true,
            .tied = tied == 1};
        rs_space *space;
        assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
        rs_foreign_list list = {0};
        assert_int_equal(rs_dialect_list(hf(), space, &list), RS_OK);
        assert_int_equal(list.count, (tied ? 2 : 3) + 18 * 11);
        int64_t elements = 0;
        for (size_t i = 0; i < list.count; i++) {
            const rs_foreign *listed = &list.items[i];
            rs_foreign found;
            assert_int_equal(rs_dialect_lookup(hf(), space, listed->name, &found), RS_OK);
            assert_string_equal(found.name, listed->name);
            assert_int_equal(found.tensor, listed->tensor);
            assert_true(rs_box_equal(&found.box, &listed->box));
            assert_int_equal(found.ndim, listed->ndim);
            assert_memory_equal(found.shape, listed->shape, sizeof found.shape);
            assert_false(found.alias || listed->alias);
            elements += rs_box_volume(&listed->box);
            for (size_t j = 0; j < i; j++) {
                rs_box both;
                assert_true(list.items[j].tensor != listed->tensor ||
                            !rs_box_intersect(&list.items[j].box, &listed->box, &both));
            }
        }
        assert_int_equal(elements, rs_space_elements(space));
        rs_foreign_list_fini(&list);
        rs_space_destroy(space);
    }
}

static void test_lookup(void **state)
{
    (void)state;
    rs_model model;
    rs_space *space;
    rs_foreign found;
    assert_int_equal(rs_model_load("llama-tiny", &model), RS_OK);
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.3.self_attn.k_proj.weight", &found), RS_OK);
    assert_string_equal(rs_space_tensor(space, found.tensor)->name, "layers.attn.k.weight");
    rs_box box = {.ndim = 3, .offset = {3, 0, 0}, .extent = {1, 128, 256}};
    assert_true(rs_box_equal(&found.box, &box));
    assert_int_equal(found.ndim, 2);
    assert_int_equal(found.shape[0], 128);
    assert_int_equal(found.shape[1], 256);
    /* The tied output layer, where somebody stored it, is the embedding under another name. */
    assert_int_equal(rs_dialect_lookup(hf(), space, "lm_head.weight", &found), RS_OK);
    assert_int_equal(found.tensor, rs_space_find_tensor(space, "embed.weight"));
    assert_true(found.alias);
    static const char *const absent[] = {"", "model", "model.norm.weight.", "model.norm.weigh",
        "model.layers.4.self_attn.k_proj.weight", "model.layers.03.self_attn.k_proj.weight",
        "model.layers.-1.self_attn.k_proj.weight", "model.layers..self_attn.k_proj.weight",
        "model.layers.99999999999999999999.self_attn.k_proj.weight",
        "model.layers.{0}.self_attn.k_proj.weight", "model.layers.0.self_attn.k_proj.bias"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_int_equal(rs_dialect_lookup(hf(), space, absent[i], &found), RS_ERR_NOT_FOUND);
    assert_int_equal(rs_dialect_lookup(hf(), space, "model.layers.4.mlp.up_proj.weight", &found),
        RS_ERR_NOT_FOUND);
    assert_non_null(strstr(rs_error_message(), "layers.mlp.up.weight has 4"));
    rs_space_destroy(space);
    assert_int_equal(rs_model_load("llama3-8b", &model), RS_OK);
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    assert_int_equal(rs_dialect_lookup(hf(), space, "lm_head.weight", &found), RS_OK);
    assert_int_equal(found.tensor, rs_space_find_tensor(space, "head.weight"));
    assert_false(found.alias);
    rs_space_destroy(space);
}

/* A caller's own rules: two told dimensions, out of order, and rules that do not fit. */
static void test_own_rules(void **state)
{
    (void)state;
    static const rs_dialect_rule good[] = {{"e{1}of{0}", "experts"}, {"n", "nothing"}};
    static const rs_dialect_rule beyond[] = {{"e{3}", "experts"}, {"n", "nothing"}};
    static const rs_dialect_rule twice[] = {{"e{0}.{0}", "experts"}, {"n", "nothing"}};
    static const rs_dialect_rule lacking[] = {{"n{0}", "nothing"}};
    rs_space *space;
    rs_tensor experts = {.name = "experts", .ndim = 3, .shape = {2, 3, 5}};
    rs_tensor nothing = {.name = "nothing", .ndim = 2, .shape = {0, 4}};
    assert_int_equal(rs_space_create(&space), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &experts, NULL), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &nothing, NULL), RS_OK);
    rs_dialect dialect = {"own", good, 2};
    rs_foreign_list list = {0};
    rs_foreign found;
    assert_int_equal(rs_dialect_list(&dialect, space, &list), RS_OK);
    assert_int_equal(list.count, 7);
    assert_string_equal(list.items[1].name, "e1of0");
    assert_string_equal(list.items[5].name, "e2of1");
    assert_int_equal(list.items[5].ndim, 1);
    assert_int_equal(list.items[5].shape[0], 5);
    assert_string_equal(list.items[6].name, "n");
    assert_int_equal(rs_dialect_lookup(&dialect, space, "e2of1", &found), RS_OK);
    assert_true(rs_box_equal(&found.box, &list.items[5].box));
    dialect.rules = beyond;
    assert_int_equal(rs_dialect_list(&dialect, space, &list), RS_ERR_MISMATCH);
    assert_int_equal(list.count, 7);
    assert_int_equal(rs_dialect_lookup(&dialect, space, "e1", &found), RS_ERR_MISMATCH);
    dialect.rules = twice;
    assert_int_equal(rs_dialect_list(&dialect, space, &list), RS_ERR_MISMATCH);
    dialect.rules = lacking;
    dialect.count = 1;
    assert_int_equal(rs_dialect_list(&dialect, space, &list), RS_ERR_MISMATCH);
    assert_non_null(strstr(rs_error_message(), "no rule names tensor experts"));
    /* What tells nothing is for reading only. */
    static const rs_dialect_rule untold[] = {{"e{}", "experts"}, {"n", "nothing"}};
    dialect = (rs_dialect){"own", untold, 2};
    assert_int_equal(rs_dialect_list(&dialect, space, &list), RS_ERR_MISMATCH);
    assert_non_null(strstr(rs_error_message(), "cannot be written"));
    assert_int_equal(rs_dialect_lookup(&dialect, space, "e12", &found), RS_OK);
    assert_int_equal(found.ndim, 3);
    /* Rules with one pattern: the first that has the index counts. */
    static const rs_dialect_rule same[] = {{"t{0}", "low"}, {"t{0}", "high"}};
    rs_tensor low = {.name = "low", .ndim = 1, .shape = {2}, .axis = {RS_AXIS_LAYER}};
    rs_tensor high = {
        .name = "high", .ndim = 1, .shape = {3}, .axis = {RS_AXIS_LAYER}, .layer_first = 2};
    int id;
    assert_int_equal(rs_space_add_tensor(space, &low, NULL), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &high, &id), RS_OK);
    dialect = (rs_dialect){"own", same, 2};
    assert_int_equal(rs_dialect_lookup(&dialect, space, "t4", &found), RS_OK);
    assert_true(found.tensor == id && found.box.offset[0] == 2);
    assert_int_equal(rs_dialect_lookup(&dialect, space, "t5", &found), RS_ERR_NOT_FOUND);
    const rs_dialect *none;
    assert_int_equal(rs_dialect_get("klingon", &none), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "hf-mixtral"));
    rs_foreign_list_fini(&list);
    rs_space_destroy(space);
}

/* The N-th allocation fails, N = 1, 2, ...: the call says so and nothing is left (run under asan).
 */
static void test_allocation_failures(void **state)
{
    (void)state;
    rs_model model;
    rs_space *space;
    assert_int_equal(rs_model_load("llama-tiny", &model), RS_OK);
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    rs_status status = RS_ERR_NO_MEMORY;
    size_t n = 0;
    while (status != RS_OK) {
        rs_foreign_list list = {0};
        rs_alloc_fail_at(++n);
        status = rs_dialect_list(hf(), space, &list);
        rs_alloc_fail_at(0);
        assert_true(status == RS_OK || status == RS_ERR_NO_MEMORY);
        assert_true(n < 1000);
        rs_foreign_list_fini(&list);
    }
    assert_true(n > 39);
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mistral_24b),
        cmocka_unit_test(test_llama2_70b),
        cmocka_unit_test(test_mixtral_8x22b),
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_back_and_forth),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_own_rules),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
