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

static rs_dialect *hub;

static int setup(void **state)
{
    (void)state;
    return rs_dialect_load("hf", &hub) == RS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    rs_dialect_destroy(hub);
    return 0;
}

static const rs_dialect *hf(void)
{
    return hub;
}

static rs_dialect *parse(const char *text)
{
    rs_dialect *dialect = NULL;
    if (rs_dialect_parse(text, strlen(text), "own", &dialect) != RS_OK)
        fail_msg("%s", rs_error_message());
    return dialect;
}

static int64_t volume_of(const rs_foreign *foreign)
{
    int64_t volume = 0;
    for (size_t p = 0; p < foreign->count; p++)
        volume += rs_box_volume(&foreign->parts[p].box);
    return volume;
}

static bool same_parts(const rs_foreign *a, const rs_foreign *b)
{
    bool same = a->ndim == b->ndim && a->count == b->count &&
                memcmp(a->shape, b->shape, sizeof a->shape) == 0;
    for (size_t p = 0; p < a->count && same; p++)
        same = a->parts[p].tensor == b->parts[p].tensor &&
               rs_box_equal(&a->parts[p].box, &b->parts[p].box) &&
               memcmp(a->parts[p].offset, b->parts[p].offset, sizeof a->parts[p].offset) == 0 &&
               memcmp(a->parts[p].along, b->parts[p].along, sizeof(int) * (size_t)a->ndim) == 0;
    return same;
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
    assert_int_equal(rs_dialect_list(hf(), space, &list), RS_OK);
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
        assert_int_equal(volume, volume_of(&list.items[i]));
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
        {"gpt2-tiny", 4 + 12 * 4, "transformer.h.3.attn.c_attn.weight"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_model model;
        rs_space *space;
        rs_foreign_list list = {0};
        assert_int_equal(rs_model_load(rows[i].name, &model), RS_OK);
        model.mtp_layers = 0;
        assert_int_equal(rs_model_space(&model, RS_DTYPE_BF16, &space), RS_OK);
        assert_int_equal(rs_dialect_list(hf(), space, &list), RS_OK);
        assert_int_equal(list.count, rows[i].tensors);
        size_t found = 0;
        for (size_t k = 0; k < list.count; k++)
            found += strcmp(list.items[k].name, rows[i].some) == 0;
        assert_int_equal(found, 1);
        rs_foreign_list_fini(&list);
        rs_space_destroy(space);
    }
}

/* Layers with experts among others have the names that their numbers in the model give them. */
static void test_mixed_layers(void **state)
{
    (void)state;
    rs_model model;
    rs_space *space;
    rs_foreign found;
    assert_int_equal(rs_model_load("qwen2-moe-tiny", &model), RS_OK);
    model.dense_first = 0;
    model.dense_layers[0] = 1 | 1 << 2;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.3.mlp.experts.5.up_proj.weight", &found),
        RS_OK);
    assert_true(found.parts[0].box.offset[0] == 1 && found.parts[0].box.offset[1] == 5);
    rs_foreign_fini(&found);
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.2.mlp.gate_proj.weight", &found), RS_OK);
    assert_int_equal(found.parts[0].box.offset[0], 1);
    rs_foreign_fini(&found);
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.2.mlp.experts.5.up_proj.weight", &found),
        RS_ERR_NOT_FOUND);
    assert_int_equal(rs_dialect_lookup(hf(), space, "model.layers.1.mlp.gate_proj.weight", &found),
        RS_ERR_NOT_FOUND);
    rs_foreign_list list = {0};
    assert_int_equal(rs_dialect_list(hf(), space, &list), RS_OK);
    int64_t routers = 0;
    for (size_t i = 0; i < list.count; i++)
        routers += strcmp(list.items[i].name, "model.layers.1.mlp.gate.weight") == 0 ||
                   strcmp(list.items[i].name, "model.layers.3.mlp.gate.weight") == 0;
    assert_int_equal(routers, 2);
    rs_foreign_list_fini(&list);
    rs_space_destroy(space);
}

/* Each family's names are read whatever the family is; layers are told by their number in the
 * model.
 */
static void test_experts(void **state)
{
    (void)state;
    static const char *const families[] = {"qwen3_moe", "mixtral", "deepseek_v3", NULL};
    rs_model model;
    rs_space *spaces[4];
    assert_int_equal(rs_model_load("deepseek-tiny", &model), RS_OK);
    model.shared_gate = true;
    for (size_t a = 0; a < 4; a++) {
        assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &spaces[a]), RS_OK);
        assert_int_equal(
            rs_space_set_fact(spaces[a], "family", families[a] != NULL ? families[a] : ""), RS_OK);
    }
    for (size_t a = 0; a < 4; a++) {
        rs_foreign_list list = {0};
        assert_int_equal(rs_dialect_list(hf(), spaces[a], &list), RS_OK);
        for (size_t b = 0; b < 4; b++)
            for (size_t i = 0; i < list.count; i++) {
                rs_foreign found;
                assert_int_equal(
                    rs_dialect_lookup(hf(), spaces[b], list.items[i].name, &found), RS_OK);
                assert_true(same_parts(&found, &list.items[i]));
                assert_false(found.alias && a == b);
                rs_foreign_fini(&found);
            }
        rs_foreign_list_fini(&list);
    }
    const rs_space *space = spaces[2];
    rs_foreign found;
    /* Layer 2 of the model is the second of those with experts. */
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.2.mlp.experts.5.up_proj.weight", &found),
        RS_OK);
    rs_box box = {.ndim = 4, .offset = {1, 5, 0, 0}, .extent = {1, 1, 128, 256}};
    assert_true(found.count == 1 && rs_box_equal(&found.parts[0].box, &box) && found.ndim == 2);
    assert_true(found.parts[0].along[0] == 2 && found.parts[0].along[1] == 3);
    rs_foreign_fini(&found);
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.0.mlp.experts.5.up_proj.weight", &found),
        RS_ERR_NOT_FOUND);
    assert_non_null(strstr(rs_error_message(), "index 0 of dimension 0"));
    assert_non_null(strstr(rs_error_message(), "has 4 of them from 1 on"));
    assert_int_equal(rs_dialect_lookup(hf(), space, "model.layers.1.mlp.gate_proj.weight", &found),
        RS_ERR_NOT_FOUND);
    /* What the layer that predicts further tokens has of its own, and what it has copies of. */
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.4.eh_proj.weight", &found), RS_OK);
    assert_int_equal(found.parts[0].box.offset[0], 0);
    rs_foreign_fini(&found);
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.4.embed_tokens.weight", &found), RS_OK);
    assert_true(found.alias);
    assert_int_equal(found.parts[0].tensor, rs_space_find_tensor(space, "embed.weight"));
    assert_int_equal(found.ndim, 2);
    rs_foreign_fini(&found);
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.4.shared_head.head.weight", &found), RS_OK);
    assert_true(found.alias);
    assert_int_equal(found.parts[0].tensor, rs_space_find_tensor(space, "head.weight"));
    rs_foreign_fini(&found);
    assert_int_equal(rs_dialect_lookup(hf(), space, "model.layers.x.embed_tokens.weight", &found),
        RS_ERR_NOT_FOUND);
    /* All experts in one tensor, gate above up (D06). */
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.3.mlp.experts.gate_up_proj", &found), RS_OK);
    assert_true(found.alias && found.count == 2 && found.ndim == 3);
    assert_true(found.shape[0] == 16 && found.shape[1] == 256 && found.shape[2] == 256);
    assert_true(found.parts[1].offset[1] == 128 && found.parts[1].box.offset[0] == 2);
    rs_foreign_fini(&found);
    for (size_t a = 0; a < 4; a++)
        rs_space_destroy(spaces[a]);
}

/* A layer without experts between those with them is told as such. */
static void test_gaps(void **state)
{
    (void)state;
    rs_model model;
    rs_space *space;
    rs_foreign found;
    assert_int_equal(rs_model_load("deepseek-tiny", &model), RS_OK);
    model.dense_layers[0] |= 1 << 2;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    assert_int_equal(
        rs_dialect_lookup(hf(), space, "model.layers.2.mlp.experts.5.up_proj.weight", &found),
        RS_ERR_NOT_FOUND);
    assert_non_null(strstr(rs_error_message(), "layer 2 is none of the 3 that"));
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
            assert_true(same_parts(&found, listed));
            assert_false(found.alias || listed->alias);
            rs_foreign_fini(&found);
            elements += volume_of(listed);
            for (size_t j = 0; j < i; j++) {
                rs_box both;
                assert_true(
                    list.items[j].parts[0].tensor != listed->parts[0].tensor ||
                    !rs_box_intersect(&list.items[j].parts[0].box, &listed->parts[0].box, &both));
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
    assert_string_equal(
        rs_space_tensor(space, found.parts[0].tensor)->name, "layers.attn.k.weight");
    rs_box box = {.ndim = 3, .offset = {3, 0, 0}, .extent = {1, 128, 256}};
    assert_true(rs_box_equal(&found.parts[0].box, &box));
    assert_int_equal(found.ndim, 2);
    assert_int_equal(found.shape[0], 128);
    assert_int_equal(found.shape[1], 256);
    rs_foreign_fini(&found);
    /* The tied output layer, where somebody stored it, is the embedding under another name. */
    assert_int_equal(rs_dialect_lookup(hf(), space, "lm_head.weight", &found), RS_OK);
    assert_int_equal(found.parts[0].tensor, rs_space_find_tensor(space, "embed.weight"));
    assert_true(found.alias);
    rs_foreign_fini(&found);
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
    assert_int_equal(found.parts[0].tensor, rs_space_find_tensor(space, "head.weight"));
    assert_false(found.alias);
    rs_foreign_fini(&found);
    rs_space_destroy(space);
}

#define OWN(rules) "{\"dialect\":\"own\",\"tensors\":[" rules "]}"
#define NOTHING ",{\"name\":\"n\",\"of\":\"nothing\"}"

/* Rules that do not fit the tensors of a space, or lack a fact, say so. */
static void test_misfits(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *why;
    } rows[] = {
        {OWN("{\"name\":\"e{3}\",\"of\":\"experts\"}" NOTHING), "tells a dimension"},
        {OWN("{\"name\":\"n{0}\",\"of\":\"nothing\"}"), "no rule names tensor experts"},
        {OWN("{\"name\":\"e{}\",\"of\":\"experts\"}" NOTHING), "cannot be written"},
        {OWN("{\"name\":\"e\",\"of\":\"experts\",\"order\":[1,0]}" NOTHING), "\"order\""},
        {OWN("{\"name\":\"e\",\"of\":\"experts\",\"groups\":2,\"along\":3}" NOTHING), "\"along\""},
        {OWN("{\"name\":\"e\",\"of\":\"experts\",\"groups\":2,\"along\":1}" NOTHING),
            "so many groups"},
        {OWN("{\"name\":\"e\",\"of\":\"experts\",\"groups\":\"kv_heads\"}" NOTHING),
            "name the model"},
        {OWN("{\"name\":\"e{moons+2}\",\"of\":\"experts\"}" NOTHING), "\"moons\""},
        {OWN("{\"name\":\"e\",\"of\":[\"experts\",\"nothing\"]}"), "unlike numbers"},
        {OWN("{\"name\":\"e\",\"of\":\"experts\",\"when\":{\"family\":\"x\"}}" NOTHING),
            "no rule names tensor experts"},
        {OWN("{\"name\":\"e\",\"of\":\"experts\",\"alias\":true}" NOTHING),
            "no rule names tensor experts"},
    };
    rs_space *space;
    rs_tensor experts = {.name = "experts", .ndim = 3, .shape = {2, 3, 5}};
    rs_tensor nothing = {.name = "nothing", .ndim = 2, .shape = {0, 4}};
    assert_int_equal(rs_space_create(&space), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &experts, NULL), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &nothing, NULL), RS_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_dialect *dialect = parse(rows[i].text);
        rs_foreign_list list = {0};
        assert_int_equal(rs_dialect_list(dialect, space, &list), RS_ERR_MISMATCH);
        if (strstr(rs_error_message(), rows[i].why) == NULL)
            fail_msg("%s: %s", rows[i].text, rs_error_message());
        assert_true(list.items == NULL);
        rs_dialect_destroy(dialect);
    }
    rs_space_destroy(space);
}

/* Files that are none, with the rule and the reason. */
static void test_malformed(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *why;
    } rows[] = {
        {"{", "line 1"},
        {"[]", "an object with"},
        {"{\"dialect\":\"x\"}", "\"tensors\""},
        {OWN(""), "no rules"},
        {OWN("{\"of\":\"a\"}"), "no \"name\""},
        {OWN("{\"name\":\"\",\"of\":\"a\"}"), "empty"},
        {OWN("{\"name\":\"a\"}"), "\"of\" must be"},
        {OWN("{\"name\":\"a\",\"of\":[]}"), "no tensors"},
        {OWN("{\"name\":\"a\",\"of\":[\"b\",\"b\"]}"), "twice"},
        {OWN("{\"name\":\"a{0}.{0}\",\"of\":\"b\"}"), "stands in it twice"},
        {OWN("{\"name\":\"a{0\",\"of\":\"b\"}"), "not closed"},
        {OWN("{\"name\":\"a{9}\",\"of\":\"b\"}"), "from 0 to 7"},
        {OWN("{\"name\":\"a{0+x}\",\"of\":\"b\"}"), "a number is wanted"},
        {OWN("{\"name\":\"a{A}\",\"of\":\"b\"}"), "a fact is wanted"},
        {OWN("{\"name\":\"a[{0}]\",\"of\":\"b\"}"), "plain text"},
        {OWN("{\"name\":\"a{0}2\",\"of\":\"b\"}"), "has no end"},
        {OWN("{\"name\":\"a{0}{1}\",\"of\":\"b\"}"), "has no end"},
        {OWN("{\"name\":\"a{0}[.]{1}\",\"of\":\"b\"}"), "has no end"},
        {OWN("{\"name\":\"a{0}[.]7\",\"of\":\"b\"}"), "has no end"},
        {OWN("{\"name\":\"a\",\"of\":\"b\",\"wen\":{}}"), "unknown key \"wen\""},
        {OWN("{\"name\":\"a\",\"of\":\"b\",\"when\":{\"f\":1}}"), "a fact in \"when\""},
        {OWN("{\"name\":\"a\",\"of\":\"b\",\"order\":[0,0]}"), "each of 0, 1"},
        {OWN("{\"name\":\"a\",\"of\":\"b\",\"groups\":0}"), "\"groups\""},
        {OWN("{\"name\":\"a\",\"of\":\"b\",\"along\":8}"), "\"along\""},
        {OWN("{\"name\":\"*\",\"of\":\"b\"}"), "must be \"*\""},
        {"{\"dialect\":\"x\",\"wrappers\":3,\"tensors\":[]}", "lists of texts"},
        {"{\"dialect\":\"x\",\"ignored\":[3],\"tensors\":[]}", "list of names"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_dialect *dialect = NULL;
        assert_int_equal(rs_dialect_parse(rows[i].text, strlen(rows[i].text), "own", &dialect),
            RS_ERR_MALFORMED);
        if (strstr(rs_error_message(), rows[i].why) == NULL)
            fail_msg("%s: %s", rows[i].text, rs_error_message());
    }
    rs_dialect *none;
    assert_int_equal(rs_dialect_load("klingon", &none), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "hf, reshard"));
}

/* Each built-in dialect is what it is called by; one from a text has the name that it gives itself.
 */
static void test_names(void **state)
{
    (void)state;
    const char *const *names = rs_dialect_names();
    for (size_t i = 0; names[i] != NULL; i++) {
        rs_dialect *dialect = NULL;
        assert_int_equal(rs_dialect_load(names[i], &dialect), RS_OK);
        assert_string_equal(rs_dialect_name(dialect), names[i]);
        rs_dialect_destroy(dialect);
    }
    rs_dialect *own = parse("{\"dialect\":\"mine\",\"tensors\":[{\"name\":\"a\",\"of\":\"b\"}]}");
    assert_string_equal(rs_dialect_name(own), "mine");
    rs_dialect_destroy(own);
}

/* Told dimensions out of order, optional text, numbers moved, and two rules with one pattern. */
static void test_own_rules(void **state)
{
    (void)state;
    rs_space *space;
    rs_tensor experts = {.name = "experts", .ndim = 3, .shape = {2, 3, 5}};
    rs_tensor nothing = {.name = "nothing", .ndim = 2, .shape = {0, 4}};
    assert_int_equal(rs_space_create(&space), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &experts, NULL), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &nothing, NULL), RS_OK);
    assert_int_equal(rs_space_set_fact(space, "layers", "2"), RS_OK);
    rs_dialect *dialect =
        parse(OWN("{\"name\":\"[m.]e{1}of{0+7}.{layers+3}\",\"of\":\"experts\"}" NOTHING));
    rs_foreign_list list = {0};
    rs_foreign found;
    assert_int_equal(rs_dialect_list(dialect, space, &list), RS_OK);
    assert_int_equal(list.count, 7);
    assert_string_equal(list.items[1].name, "m.e1of7.5");
    assert_string_equal(list.items[5].name, "m.e2of8.5");
    assert_int_equal(list.items[5].ndim, 1);
    assert_int_equal(list.items[5].shape[0], 5);
    assert_string_equal(list.items[6].name, "n");
    assert_int_equal(rs_dialect_lookup(dialect, space, "e2of8.5", &found), RS_OK);
    assert_true(same_parts(&found, &list.items[5]));
    rs_foreign_fini(&found);
    assert_int_equal(rs_dialect_lookup(dialect, space, "e2of8.6", &found), RS_ERR_NOT_FOUND);
    assert_int_equal(rs_dialect_lookup(dialect, space, "e2of6.5", &found), RS_ERR_NOT_FOUND);
    rs_foreign_list_fini(&list);
    rs_dialect_destroy(dialect);
    /* What tells nothing is for reading. */
    dialect = parse(OWN("{\"name\":\"e{}\",\"of\":\"experts\"}" NOTHING));
    assert_int_equal(rs_dialect_lookup(dialect, space, "e12", &found), RS_OK);
    assert_int_equal(found.ndim, 3);
    rs_foreign_fini(&found);
    rs_dialect_destroy(dialect);
    /* Rules with one pattern: the first that has the index counts. */
    rs_tensor low = {.name = "low", .ndim = 1, .shape = {2}, .axis = {RS_AXIS_LAYER}};
    rs_tensor high = {
        .name = "high", .ndim = 1, .shape = {3}, .axis = {RS_AXIS_LAYER}, .layer_first = 2};
    int id;
    assert_int_equal(rs_space_add_tensor(space, &low, NULL), RS_OK);
    assert_int_equal(rs_space_add_tensor(space, &high, &id), RS_OK);
    dialect = parse(OWN("{\"name\":\"t{0}\",\"of\":\"low\"},{\"name\":\"t{0}\",\"of\":\"high\"}"));
    assert_int_equal(rs_dialect_lookup(dialect, space, "t4", &found), RS_OK);
    assert_true(found.parts[0].tensor == id && found.parts[0].box.offset[0] == 2);
    rs_foreign_fini(&found);
    assert_int_equal(rs_dialect_lookup(dialect, space, "t5", &found), RS_ERR_NOT_FOUND);
    rs_dialect_destroy(dialect);
    /* Those whose condition holds come before the others, wherever they stand. */
    dialect = parse(OWN("{\"name\":\"u{0}\",\"of\":\"low\",\"when\":{\"family\":\"c\"}},"
                        "{\"name\":\"u{0}\",\"of\":\"experts\"}"));
    assert_int_equal(rs_dialect_lookup(dialect, space, "u1", &found), RS_OK);
    assert_int_equal(found.parts[0].tensor, rs_space_find_tensor(space, "experts"));
    rs_foreign_fini(&found);
    assert_int_equal(rs_space_set_fact(space, "family", "c"), RS_OK);
    assert_int_equal(rs_dialect_lookup(dialect, space, "u1", &found), RS_OK);
    assert_int_equal(found.parts[0].tensor, rs_space_find_tensor(space, "low"));
    rs_foreign_fini(&found);
    rs_dialect_destroy(dialect);
    rs_space_destroy(space);
}

/* F01, F02: what wrappers put into names is taken out, what only looks like it is not. */
static void test_wrappers(void **state)
{
    (void)state;
    static const char text[] =
        "{\"dialect\":\"own\",\"prefixes\":[\"module\",\"_forward_module\"],"
        "\"wrappers\":[\"_orig_mod\",\"_fsdp_wrapped_module\",\"_checkpoint_wrapped_module\"],"
        "\"ignored\":[\"layers.{}.mask\"],\"tensors\":[{\"name\":\"*\",\"of\":\"*\"}]}";
    static const char *const names[][2] = {
        {"module._orig_mod.layers.0._fsdp_wrapped_module.attn._checkpoint_wrapped_module.q.weight",
            "layers.0.attn.q.weight"},
        {"_forward_module.module.model.a.w", "model.a.w"},
        {"model.b.w", "model.b.w"},
        {"w", "w"},
        {"submodule.module_list.0.w", "submodule.module_list.0.w"},
        {"my_module.w", "my_module.w"},
        {"layers._orig_model.w", "layers._orig_model.w"},
        {"module.module_", "module_"},
    };
    rs_dialect *dialect = parse(text);
    rs_space *space;
    rs_foreign found;
    assert_int_equal(rs_space_create(&space), RS_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        rs_tensor tensor = {.name = names[i][1], .ndim = 1, .shape = {2}};
        assert_int_equal(rs_space_add_tensor(space, &tensor, NULL), RS_OK);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(rs_dialect_lookup(dialect, space, names[i][0], &found), RS_OK);
        assert_int_equal(found.parts[0].tensor, rs_space_find_tensor(space, names[i][1]));
        rs_foreign_fini(&found);
    }
    assert_int_equal(rs_dialect_lookup(dialect, space, "a.module.w", &found), RS_ERR_NOT_FOUND);
    assert_int_equal(rs_dialect_lookup(dialect, space, "_fsdp_wrapped_module._flat_param", &found),
        RS_ERR_NOT_FOUND);
    assert_true(rs_dialect_ignores(dialect, "module.layers.12.mask"));
    assert_false(rs_dialect_ignores(dialect, "module.layers.x.mask"));
    rs_space_destroy(space);
    rs_dialect_destroy(dialect);
}

/* B02: queries, keys and values in groups. The row of each part in the fused tensor is that of the
 * specification: group 0 has q0 q1 q2 q3 k0 v0, group 1 q4 to q7 k1 v1, two rows a head. */
static void test_groups(void **state)
{
    (void)state;
    rs_model model = {.name = "gqa",
        .family = "llama",
        .layers = 1,
        .hidden = 4,
        .heads = 8,
        .kv_heads = 2,
        .head_dim = 2,
        .ffn = 8,
        .vocab = 5,
        .tied = true};
    static const int64_t q[] = {0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18, 19};
    static const int64_t k[] = {8, 9, 20, 21}, v[] = {10, 11, 22, 23};
    static const int64_t *const rows[] = {q, k, v};
    rs_space *space;
    rs_foreign found;
    rs_dialect *dialect = parse(
        OWN("{\"name\":\"l.{0}.qkv\",\"groups\":\"kv_heads\",\"of\":[\"layers.attn.q.weight\","
            "\"layers.attn.k.weight\",\"layers.attn.v.weight\"]},{\"name\":\"*\",\"of\":\"*\"}"));
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    assert_int_equal(rs_dialect_lookup(dialect, space, "l.0.qkv", &found), RS_OK);
    assert_true(found.ndim == 2 && found.shape[0] == 24 && found.shape[1] == 4);
    assert_int_equal(found.count, 6);
    for (size_t p = 0; p < found.count; p++) {
        const rs_foreign_part *part = &found.parts[p];
        int first = rs_space_find_tensor(space, "layers.attn.q.weight");
        for (int64_t i = 0; i < part->box.extent[1]; i++)
            assert_int_equal(
                part->offset[0] + i, rows[part->tensor - first][part->box.offset[1] + i]);
    }
    rs_foreign_fini(&found);
    rs_space_destroy(space);
    rs_dialect_destroy(dialect);
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
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_mistral_24b),
        cmocka_unit_test(test_llama2_70b),
        cmocka_unit_test(test_mixtral_8x22b),
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_mixed_layers),
        cmocka_unit_test(test_back_and_forth),
        cmocka_unit_test(test_lookup),
        cmocka_unit_test(test_misfits),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_own_rules),
        cmocka_unit_test(test_wrappers),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
