/* Model descriptions: presets, configurations good and bad, and the spaces they make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/memory.h"
#include "reshard/model.h"

static char folder[64];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/reshard-model-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    unlink(path);
    return rmdir(folder);
}

/* Writes the folder's config.json and loads it. */
static rs_status load_text(const char *text, rs_model *out)
{
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return rs_model_load(folder, out);
}

#define SIZES                                                                                      \
    "\"num_hidden_layers\":3,\"hidden_size\":64,\"intermediate_size\":100,\"vocab_size\":50,"      \
    "\"num_attention_heads\":8"
#define REST ",\"num_key_value_heads\":2,\"rms_norm_eps\":1e-6"

static void test_presets(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t elements; /* as published, or counted by hand */
        int tensors;
    } rows[] = {
        {"llama-tiny", 2967808, 11},
        {"llama-20m", 20587008, 11},
        {"llama3-8b", 8030261248, 12},
        {"llama3-70b", 70553706496, 12},
        {"qwen3-32b", 32762123264, 14},
        {"mixtral-8x7b", 46702792704, 13},
        {"qwen3-30b-a3b", 30532122624, 15},
        {"qwen3-235b-a22b", 235093634560, 15},
        /* 671,026,419,200 as published, and the layer that predicts further tokens. */
        {"deepseek-v3", 671026419200 + 11610068224, 27},
        {"mixtral-tiny", 9578752, 13},
        {"qwen3-moe-tiny", 7031296, 14},
        {"qwen2-moe-tiny", 5512192, 23},
        {"deepseek-tiny", 8397152, 27},
        {"gpt2-tiny", 834304, 20},
    };
    const char *const *names = rs_model_presets();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_model model;
        rs_space *space;
        assert_string_equal(names[i], rows[i].name);
        assert_int_equal(rs_model_load(rows[i].name, &model), RS_OK);
        assert_string_equal(model.name, rows[i].name);
        assert_int_equal(rs_model_space(&model, RS_DTYPE_BF16, &space), RS_OK);
        assert_int_equal(rs_space_elements(space), rows[i].elements);
        assert_int_equal(rs_space_tensor_count(space), rows[i].tensors);
        /* Router biases are float32, and parameters only. */
        int64_t biases = model.router_bias
                             ? (model.layers + model.mtp_layers - model.dense_first) * model.experts
                             : 0;
        assert_int_equal(rs_space_bytes(space, 0), 2 * rows[i].elements + 2 * biases);
        assert_int_equal(rs_space_bytes(space, -1), 14 * rows[i].elements - 10 * biases);
        assert_int_equal(rs_space_layer_count(space), model.layers + model.mtp_layers);
        assert_int_equal(rs_space_expert_count(space), model.experts);
        bool trainable = model.kv_rank == 0 && model.positions == 0;
        assert_int_equal(
            rs_model_check_trainable(&model, 1 << 20), trainable ? RS_OK : RS_ERR_UNSUPPORTED);
        rs_space_destroy(space);
    }
    assert_null(names[sizeof rows / sizeof *rows]);
    rs_model model;
    assert_int_equal(rs_model_load("llama-huge", &model), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "llama-tiny, llama-20m, llama3-8b"));
}

static void expect_tensor(const rs_space *space, const char *name, int id, int ndim,
    const int64_t *shape, const rs_axis *axis, bool decay)
{
    assert_int_equal(rs_space_find_tensor(space, name), id);
    const rs_tensor *tensor = rs_space_tensor(space, id);
    assert_int_equal(tensor->ndim, ndim);
    assert_int_equal(tensor->decay, decay);
    for (int d = 0; d < ndim; d++) {
        assert_int_equal(tensor->shape[d], shape[d]);
        assert_int_equal(tensor->axis[d], axis[d]);
        bool heads = axis[d] == RS_AXIS_Q_HEAD || axis[d] == RS_AXIS_KV_HEAD;
        assert_int_equal(tensor->unit[d], heads ? 16 : 0);
        if (axis[d] == RS_AXIS_KV_HEAD)
            assert_int_equal(tensor->kv_group, 4);
    }
}

#define EXPECT(id, name, ndim, shape, axis, decay)                                                 \
    expect_tensor(space, name, id, ndim, (const int64_t[]){EXPAND shape},                          \
        (const rs_axis[]){EXPAND axis}, decay)
#define EXPAND(...) __VA_ARGS__

/* Every tensor that any family can have, in order. */
static void test_all_tensors(void **state)
{
    (void)state;
    rs_model model = {.name = "all",
        .layers = 3,
        .hidden = 64,
        .heads = 8,
        .kv_heads = 2,
        .head_dim = 16,
        .ffn = 100,
        .vocab = 50,
        .qkv_bias = true,
        .out_bias = true,
        .mlp_bias = true,
        .qk_norm = true};
    rs_space *space;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    EXPECT(0, "embed.weight", 2, (50, 64), (RS_AXIS_VOCAB, RS_AXIS_WHOLE), true);
    EXPECT(1, "layers.attn_norm.weight", 2, (3, 64), (RS_AXIS_LAYER, RS_AXIS_WHOLE), false);
    EXPECT(2, "layers.attn.q.weight", 3, (3, 128, 64),
        (RS_AXIS_LAYER, RS_AXIS_Q_HEAD, RS_AXIS_WHOLE), true);
    EXPECT(3, "layers.attn.k.weight", 3, (3, 32, 64),
        (RS_AXIS_LAYER, RS_AXIS_KV_HEAD, RS_AXIS_WHOLE), true);
    EXPECT(4, "layers.attn.v.weight", 3, (3, 32, 64),
        (RS_AXIS_LAYER, RS_AXIS_KV_HEAD, RS_AXIS_WHOLE), true);
    EXPECT(5, "layers.attn.q.bias", 2, (3, 128), (RS_AXIS_LAYER, RS_AXIS_Q_HEAD), false);
    EXPECT(6, "layers.attn.k.bias", 2, (3, 32), (RS_AXIS_LAYER, RS_AXIS_KV_HEAD), false);
    EXPECT(7, "layers.attn.v.bias", 2, (3, 32), (RS_AXIS_LAYER, RS_AXIS_KV_HEAD), false);
    EXPECT(8, "layers.attn.q_norm.weight", 2, (3, 16), (RS_AXIS_LAYER, RS_AXIS_WHOLE), false);
    EXPECT(9, "layers.attn.k_norm.weight", 2, (3, 16), (RS_AXIS_LAYER, RS_AXIS_WHOLE), false);
    EXPECT(10, "layers.attn.o.weight", 3, (3, 64, 128),
        (RS_AXIS_LAYER, RS_AXIS_WHOLE, RS_AXIS_Q_HEAD), true);
    EXPECT(11, "layers.attn.o.bias", 2, (3, 64), (RS_AXIS_LAYER, RS_AXIS_WHOLE), false);
    EXPECT(12, "layers.mlp_norm.weight", 2, (3, 64), (RS_AXIS_LAYER, RS_AXIS_WHOLE), false);
    EXPECT(13, "layers.mlp.gate.weight", 3, (3, 100, 64),
        (RS_AXIS_LAYER, RS_AXIS_FFN, RS_AXIS_WHOLE), true);
    EXPECT(14, "layers.mlp.up.weight", 3, (3, 100, 64), (RS_AXIS_LAYER, RS_AXIS_FFN, RS_AXIS_WHOLE),
        true);
    EXPECT(15, "layers.mlp.gate.bias", 2, (3, 100), (RS_AXIS_LAYER, RS_AXIS_FFN), false);
    EXPECT(16, "layers.mlp.up.bias", 2, (3, 100), (RS_AXIS_LAYER, RS_AXIS_FFN), false);
    EXPECT(17, "layers.mlp.down.weight", 3, (3, 64, 100),
        (RS_AXIS_LAYER, RS_AXIS_WHOLE, RS_AXIS_FFN), true);
    EXPECT(18, "layers.mlp.down.bias", 2, (3, 64), (RS_AXIS_LAYER, RS_AXIS_WHOLE), false);
    EXPECT(19, "norm.weight", 1, (64), (RS_AXIS_WHOLE), false);
    EXPECT(20, "head.weight", 2, (50, 64), (RS_AXIS_VOCAB, RS_AXIS_WHOLE), true);
    assert_int_equal(rs_space_tensor_count(space), 21);
    assert_int_equal(rs_space_tensor(space, 0)->stage, RS_STAGE_FIRST);
    assert_int_equal(rs_space_tensor(space, 2)->stage, RS_STAGE_BY_LAYER);
    assert_int_equal(rs_space_tensor(space, 19)->stage, RS_STAGE_LAST);
    assert_int_equal(rs_space_tensor(space, 20)->stage, RS_STAGE_LAST);
    assert_int_equal(rs_space_role_count(space), 3);
    assert_int_equal(rs_space_find_role(space, "exp_avg_sq"), 2);
    rs_space_destroy(space);
    model.tied = true;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F16, &space), RS_OK);
    assert_int_equal(rs_space_find_tensor(space, "head.weight"), -1);
    assert_int_equal(rs_space_tensor(space, 0)->stage, RS_STAGE_FIRST_AND_LAST);
    assert_int_equal(rs_space_role_count(space), 4);
    assert_int_equal(rs_space_role(space, 0)->dtype, RS_DTYPE_F16);
    assert_int_equal(rs_space_role(space, 0)->role_class, RS_ROLE_MODEL);
    assert_int_equal(rs_space_role(space, 1)->dtype, RS_DTYPE_F32);
    assert_int_equal(rs_space_role(space, 1)->role_class, RS_ROLE_OPTIMIZER);
    rs_space_destroy(space);
}

static void expect_layers(
    const rs_space *space, const char *name, int64_t first, int64_t layers, rs_axis axis)
{
    int id = rs_space_find_tensor(space, name);
    assert_true(id >= 0);
    const rs_tensor *tensor = rs_space_tensor(space, id);
    assert_int_equal(tensor->layer_first, first);
    assert_int_equal(tensor->shape[0], layers);
    assert_int_equal(tensor->axis[1], axis);
}

/* DeepSeek's layers: dense ones, those with experts, the one that predicts further tokens. */
static void test_mixed_layers(void **state)
{
    (void)state;
    rs_model model;
    rs_space *space;
    assert_int_equal(rs_model_load("deepseek-v3", &model), RS_OK);
    assert_int_equal(rs_model_space(&model, RS_DTYPE_BF16, &space), RS_OK);
    expect_layers(space, "layers.attn_norm.weight", 0, 62, RS_AXIS_WHOLE);
    expect_layers(space, "layers.mlp.gate.weight", 0, 3, RS_AXIS_FFN);
    expect_layers(space, "layers.router.weight", 3, 59, RS_AXIS_WHOLE);
    expect_layers(space, "layers.experts.down.weight", 3, 59, RS_AXIS_EXPERT);
    expect_layers(space, "layers.shared.up.weight", 3, 59, RS_AXIS_FFN);
    expect_layers(space, "layers.mtp.proj.weight", 61, 1, RS_AXIS_WHOLE);
    expect_layers(space, "layers.attn.q_b.weight", 0, 62, RS_AXIS_Q_HEAD);
    expect_layers(space, "layers.attn.kv_a.weight", 0, 62, RS_AXIS_WHOLE);
    static const struct {
        const char *name;
        int64_t rows;
        int64_t columns;
        int64_t unit;
    } rows[] = {{"layers.attn.q_a.weight", 1536, 7168, 0},
        {"layers.attn.q_b.weight", 24576, 1536, 192}, {"layers.attn.kv_a.weight", 576, 7168, 0},
        {"layers.attn.kv_b.weight", 32768, 512, 256}, {"layers.attn.o.weight", 7168, 16384, 0},
        {"layers.mtp.proj.weight", 7168, 14336, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const rs_tensor *tensor = rs_space_tensor(space, rs_space_find_tensor(space, rows[i].name));
        assert_int_equal(tensor->shape[1], rows[i].rows);
        assert_int_equal(tensor->shape[2], rows[i].columns);
        assert_int_equal(tensor->unit[1], rows[i].unit);
    }
    int bias = rs_space_find_tensor(space, "layers.router.bias");
    assert_int_equal(rs_space_dtype(space, bias, 0), RS_DTYPE_F32);
    for (int role = 1; role < 4; role++)
        assert_int_equal(rs_space_dtype(space, bias, role), RS_DTYPE_NONE);
    /* The last layers read the embedding. */
    assert_int_equal(rs_space_tensor(space, 0)->stage, RS_STAGE_FIRST_AND_LAST);
    rs_space_destroy(space);
    /* Without them, the model as it is counted: 671,026,419,200. */
    model.mtp_layers = 0;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_BF16, &space), RS_OK);
    assert_int_equal(rs_space_elements(space), 671026419200);
    assert_int_equal(rs_space_layer_count(space), 61);
    assert_int_equal(rs_space_tensor(space, 0)->stage, RS_STAGE_FIRST);
    assert_int_equal(rs_space_find_tensor(space, "layers.mtp.proj.weight"), -1);
    rs_space_destroy(space);
}

static void test_space_refusals(void **state)
{
    (void)state;
    rs_model model;
    rs_space *space;
    assert_int_equal(rs_model_load("llama-tiny", &model), RS_OK);
    assert_int_equal(rs_model_space(&model, RS_DTYPE_I8, &space), RS_ERR_UNSUPPORTED);
    assert_non_null(strstr(rs_error_message(), "int8"));
    model.kv_heads = 3;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "8 query heads cannot share 3"));
    model.kv_heads = 4;
    model.ffn = 0;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_ERR_ARGUMENT);
    model.ffn = INT64_MAX / 64;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_ERR_OVERFLOW);
    model.ffn = 8;
    model.head_dim = INT64_MAX / 2;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_ERR_OVERFLOW);
    static const struct {
        size_t member;
        int64_t value;
        rs_status status;
        const char *word;
    } rows[] = {
        {offsetof(rs_model, experts), -1, RS_ERR_ARGUMENT, "experts: -1"},
        {offsetof(rs_model, experts_per_token), 17, RS_ERR_ARGUMENT, "17 experts per token"},
        {offsetof(rs_model, expert_ffn), 0, RS_ERR_ARGUMENT, "of an expert: 0"},
        {offsetof(rs_model, dense_first), 5, RS_ERR_ARGUMENT, "5 layers without experts"},
        {offsetof(rs_model, dense_first), -1, RS_ERR_ARGUMENT, "without experts: -1"},
        {offsetof(rs_model, mtp_layers), INT64_MAX, RS_ERR_OVERFLOW, "layers do not fit"},
        {offsetof(rs_model, rope_dim), 48, RS_ERR_ARGUMENT, "leaves nothing"},
        {offsetof(rs_model, v_dim), 0, RS_ERR_ARGUMENT, "value head: 0"},
        {offsetof(rs_model, v_dim), INT64_MAX - 7, RS_ERR_OVERFLOW, "latent heads"},
        {offsetof(rs_model, kv_rank), INT64_MAX, RS_ERR_OVERFLOW, "latent heads"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(rs_model_load("deepseek-tiny", &model), RS_OK);
        memcpy((char *)&model + rows[i].member, &rows[i].value, sizeof rows[i].value);
        assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), rows[i].status);
        if (strstr(rs_error_message(), rows[i].word) == NULL)
            fail_msg("\"%s\" is not in: %s", rows[i].word, rs_error_message());
    }
}

static void test_families(void **state)
{
    (void)state;
    rs_model m;
    /* Llama: key/value heads default to the query heads, head_dim to hidden / heads, theta to
     * 10000. */
    assert_int_equal(
        load_text("{\"model_type\":\"llama\"," SIZES ",\"rms_norm_eps\":1e-5}", &m), RS_OK);
    assert_string_equal(m.name, "llama");
    assert_int_equal(m.layers, 3);
    assert_int_equal(m.hidden, 64);
    assert_int_equal(m.ffn, 100);
    assert_int_equal(m.vocab, 50);
    assert_int_equal(m.heads, 8);
    assert_int_equal(m.kv_heads, 8);
    assert_int_equal(m.head_dim, 8);
    assert_true(m.norm_eps == 1e-5 && m.rope_theta == 10000);
    assert_false(m.tied || m.qkv_bias || m.out_bias || m.mlp_bias || m.qk_norm);
    assert_int_equal(m.dtype, RS_DTYPE_NONE);
    assert_int_equal(rs_model_check_trainable(&m, 100000), RS_OK);
    assert_int_equal(
        load_text("{\"model_type\":\"llama\",\"attention_bias\":true,\"mlp_bias\":true,"
                  "\"head_dim\":null,\"torch_dtype\":\"bfloat16\",\"future_key\":[1]," SIZES REST
                  ",\"tie_word_embeddings\":true,"
                  "\"architectures\":[\"LlamaForCausalLM\"]}",
            &m),
        RS_OK);
    assert_true(m.tied && m.qkv_bias && m.out_bias && m.mlp_bias && !m.qk_norm);
    assert_int_equal(m.kv_heads, 2);
    assert_int_equal(m.dtype, RS_DTYPE_BF16);
    /* Mistral: an absent window is 4096, null is none. */
    assert_int_equal(
        load_text("{\"model_type\":\"mistral\",\"head_dim\":20," SIZES REST "}", &m), RS_OK);
    assert_int_equal(m.head_dim, 20);
    assert_int_equal(m.sliding_window, 4096);
    assert_int_equal(rs_model_check_trainable(&m, 4096), RS_OK);
    assert_int_equal(rs_model_check_trainable(&m, 4097), RS_ERR_UNSUPPORTED);
    assert_non_null(strstr(rs_error_message(), "sliding_window of 4096"));
    assert_int_equal(
        load_text("{\"model_type\":\"mistral\",\"sliding_window\":null," SIZES REST "}", &m),
        RS_OK);
    assert_int_equal(m.sliding_window, 0);
    /* Qwen2: biases of q, k, v alone; the window only where it is switched on. */
    assert_int_equal(
        load_text("{\"model_type\":\"qwen2\",\"sliding_window\":128," SIZES REST "}", &m), RS_OK);
    assert_true(m.qkv_bias && !m.out_bias && !m.mlp_bias && !m.qk_norm);
    assert_int_equal(m.sliding_window, 0);
    assert_int_equal(load_text("{\"model_type\":\"qwen2\",\"use_sliding_window\":true,"
                               "\"sliding_window\":128," SIZES REST "}",
                         &m),
        RS_OK);
    assert_int_equal(m.sliding_window, 128);
    /* Qwen3: heads of 128 and norms of q and k. */
    assert_int_equal(
        load_text("{\"model_type\":\"qwen3\",\"dtype\":\"torch.float16\"," SIZES REST "}", &m),
        RS_OK);
    assert_int_equal(m.head_dim, 128);
    assert_true(m.qk_norm && !m.qkv_bias);
    assert_int_equal(m.dtype, RS_DTYPE_F16);
}

/* GPT-2 as published: 124,439,808 parameters, all keys left out but the type. */
static void test_gpt2(void **state)
{
    (void)state;
    rs_model m;
    rs_space *space;
    assert_int_equal(load_text("{\"model_type\":\"gpt2\"}", &m), RS_OK);
    assert_true(m.layers == 12 && m.hidden == 768 && m.heads == 12 && m.head_dim == 64);
    assert_true(m.positions == 1024 && m.ffn == 3072 && m.tied && m.plain_mlp && m.layer_norm);
    assert_int_equal(rs_model_space(&m, RS_DTYPE_F32, &space), RS_OK);
    assert_int_equal(rs_space_elements(space), 124439808);
    assert_int_equal(rs_space_find_tensor(space, "layers.mlp.gate.weight"), -1);
    const rs_tensor *position =
        rs_space_tensor(space, rs_space_find_tensor(space, "position.weight"));
    assert_true(position->shape[0] == 1024 && position->stage == RS_STAGE_FIRST);
    const rs_tensor *embed = rs_space_tensor(space, rs_space_find_tensor(space, "embed.weight"));
    assert_true(embed->stage == RS_STAGE_FIRST_AND_LAST);
    assert_string_equal(rs_space_fact(space, "family"), "gpt2");
    assert_string_equal(rs_space_fact(space, "kv_heads"), "12");
    assert_null(rs_space_fact(space, "mood"));
    rs_space_destroy(space);
    assert_int_equal(rs_model_check_trainable(&m, 16), RS_ERR_UNSUPPORTED);
    assert_non_null(strstr(rs_error_message(), "learnt positions"));
    assert_int_equal(load_text("{\"model_type\":\"gpt2\",\"n_embd\":12,\"n_head\":3,\"n_layer\":2,"
                               "\"n_positions\":7,\"vocab_size\":11,\"n_inner\":20,"
                               "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}",
                         &m),
        RS_OK);
    assert_true(m.ffn == 20 && !m.tied && m.dtype == RS_DTYPE_BF16 && m.head_dim == 4);
    assert_int_equal(
        load_text("{\"model_type\":\"gpt2\",\"n_embd\":12,\"n_head\":5}", &m), RS_ERR_MALFORMED);
    assert_int_equal(load_text("{\"model_type\":\"gpt2\",\"add_cross_attention\":true}", &m),
        RS_ERR_UNSUPPORTED);
}

static void test_expert_families(void **state)
{
    (void)state;
    rs_model m;
    rs_space *space;
    /* Mixtral: experts of the size of the feed-forward layer, weights always scaled. */
    assert_int_equal(
        load_text("{\"model_type\":\"mixtral\",\"num_local_experts\":8,"
                  "\"num_experts_per_tok\":2,\"architectures\":[\"MixtralForCausalLM\"]"
                  "," SIZES REST "}",
            &m),
        RS_OK);
    assert_true(m.experts == 8 && m.experts_per_token == 2 && m.expert_ffn == 100);
    assert_true(m.norm_topk && m.shared_ffn == 0 && m.dense_first == 0 && m.aux_loss == 0.001);
    assert_true(m.rope_theta == 1000000 && m.sliding_window == 0 && !m.qk_norm);
    assert_int_equal(rs_model_check_trainable(&m, 16), RS_OK);
    m.router_bias = true;
    assert_int_equal(rs_model_check_trainable(&m, 16), RS_ERR_UNSUPPORTED);
    assert_non_null(strstr(rs_error_message(), "router chooses"));
    m.router_bias = false;
    m.mtp_layers = 2;
    assert_int_equal(rs_model_check_trainable(&m, 16), RS_ERR_UNSUPPORTED);
    assert_non_null(strstr(rs_error_message(), "2 layers of multi-token prediction"));
#define QWEN "\"num_experts\":60,\"num_experts_per_tok\":4,\"moe_intermediate_size\":44," SIZES REST
    assert_int_equal(load_text("{\"model_type\":\"qwen2_moe\",\"norm_topk_prob\":true,"
                               "\"shared_expert_intermediate_size\":90,\"router_aux_loss_coef\":0,"
                               "\"mlp_only_layers\":[1,0]," QWEN "}",
                         &m),
        RS_OK);
    assert_true(m.experts == 60 && m.expert_ffn == 44 && m.shared_ffn == 90 && m.shared_gate);
    assert_true(
        m.norm_topk && m.qkv_bias && !m.out_bias && m.dense_first == 2 && m.dense_layers[0] == 0);
    assert_true(m.aux_loss == 0 && m.rope_theta == 10000);
    assert_int_equal(load_text("{\"model_type\":\"qwen2_moe\",\"qkv_bias\":false,"
                               "\"shared_expert_intermediate_size\":90," QWEN "}",
                         &m),
        RS_OK);
    assert_false(m.qkv_bias || m.norm_topk);
    assert_int_equal(load_text("{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[],"
                               "\"decoder_sparse_step\":1," QWEN "}",
                         &m),
        RS_OK);
    assert_true(m.qk_norm && !m.qkv_bias && m.head_dim == 8 && m.shared_ffn == 0);
    assert_int_equal(load_text("{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[1],"
                               "\"decoder_sparse_step\":1," QWEN "}",
                         &m),
        RS_OK);
    assert_true(rs_model_has_experts(&m, 0) && !rs_model_has_experts(&m, 1));
    assert_true(rs_model_has_experts(&m, 2) && rs_model_expert_layers(&m) == 2);
    assert_int_equal(rs_model_space(&m, RS_DTYPE_F32, &space), RS_OK);
    const rs_tensor *router =
        rs_space_tensor(space, rs_space_find_tensor(space, "layers.router.weight"));
    const rs_tensor *gate =
        rs_space_tensor(space, rs_space_find_tensor(space, "layers.mlp.gate.weight"));
    assert_true(router->shape[0] == 2 && router->layers[0] == 0 && router->layers[1] == 2);
    assert_true(gate->shape[0] == 1 && gate->layer_first == 1 && gate->layers == NULL);
    rs_space_destroy(space);
    assert_int_equal(
        load_text("{\"model_type\":\"qwen3_moe\",\"decoder_sparse_step\":2," QWEN "}", &m), RS_OK);
    assert_true(m.dense_first == 1 && m.dense_layers[0] == 4 && rs_model_expert_layers(&m) == 1);
    assert_int_equal(
        load_text("{\"model_type\":\"qwen3_moe\",\"decoder_sparse_step\":4," QWEN "}", &m), RS_OK);
    assert_int_equal(m.experts, 0);
#define LATENT                                                                                     \
    "\"n_routed_experts\":16,\"num_experts_per_tok\":4,\"moe_intermediate_size\":44,"              \
    "\"kv_lora_rank\":12,\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":4,\"v_head_dim\":5," SIZES    \
    ",\"rms_norm_eps\":1e-6"
    assert_int_equal(
        load_text("{\"model_type\":\"deepseek_v3\",\"q_lora_rank\":24,\"n_shared_experts\":2,"
                  "\"first_k_dense_replace\":1,\"num_nextn_predict_layers\":1,"
                  "\"norm_topk_prob\":true,\"quantization_config\":{\"quant_method\":\"fp8\"},"
                  "\"num_key_value_heads\":8," LATENT "}",
            &m),
        RS_OK);
    assert_true(m.kv_rank == 12 && m.q_rank == 24 && m.head_dim == 10 && m.rope_dim == 4);
    assert_true(m.v_dim == 5 && m.kv_heads == 8 && m.shared_ffn == 88 && !m.shared_gate);
    assert_true(m.dense_first == 1 && m.mtp_layers == 1 && m.router_bias && m.norm_topk);
    assert_int_equal(rs_model_check_trainable(&m, 16), RS_ERR_UNSUPPORTED);
    assert_non_null(strstr(rs_error_message(), "latent attention"));
    /* The second generation: queries may be one matrix, experts are chosen without a bias. */
    assert_int_equal(load_text("{\"model_type\":\"deepseek_v2\",\"q_lora_rank\":null,"
                               "\"topk_method\":\"group_limited_greedy\"," LATENT "}",
                         &m),
        RS_OK);
    assert_true(m.q_rank == 0 && !m.router_bias && m.shared_ffn == 0 && m.dense_first == 0);
    assert_int_equal(rs_model_space(&m, RS_DTYPE_F32, &space), RS_OK);
    int q = rs_space_find_tensor(space, "layers.attn.q.weight");
    assert_int_equal(rs_space_tensor(space, q)->shape[1], 8 * 10);
    assert_int_equal(rs_space_find_tensor(space, "layers.mlp.gate.weight"), -1);
    rs_space_destroy(space);
}

static void test_bad_experts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        rs_status status;
        const char *word;
    } rows[] = {
        {"{\"model_type\":\"qwen3_moe\",\"decoder_sparse_step\":0," QWEN "}", RS_ERR_MALFORMED,
            "\"decoder_sparse_step\": a whole number from 1 on"},
        {"{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[0,\"2\"]," QWEN "}", RS_ERR_MALFORMED,
            "\"mlp_only_layers\": numbers of layers from 0 to 2"},
        {"{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":2," QWEN "}", RS_ERR_MALFORMED,
            "a list of layers"},
        {"{\"model_type\":\"qwen3_moe\",\"mlp_only_layers\":[0,1,2,3]," QWEN "}", RS_ERR_MALFORMED,
            "numbers of layers from 0 to 2"},
        {"{\"model_type\":\"qwen3_moe\",\"num_experts\":2,\"num_experts_per_tok\":4,"
         "\"moe_intermediate_size\":44," SIZES REST "}",
            RS_ERR_MALFORMED, "4 experts per token, but there are 2"},
        {"{\"model_type\":\"mixtral\",\"router_aux_loss_coef\":-1,\"num_local_experts\":2,"
         "\"num_experts_per_tok\":1," SIZES REST "}",
            RS_ERR_MALFORMED, "\"router_aux_loss_coef\": a number from 0 on"},
        {"{\"model_type\":\"deepseek_v3\",\"attention_bias\":true," LATENT "}", RS_ERR_UNSUPPORTED,
            "attention_bias"},
        {"{\"model_type\":\"deepseek_v3\",\"moe_layer_freq\":2," LATENT "}", RS_ERR_UNSUPPORTED,
            "moe_layer_freq"},
        {"{\"model_type\":\"deepseek_v3\",\"first_k_dense_replace\":-1," LATENT "}",
            RS_ERR_MALFORMED, "from 0 on"},
        {"{\"model_type\":\"deepseek_v3\",\"n_shared_experts\":9223372036854775807," LATENT "}",
            RS_ERR_OVERFLOW, "n_shared_experts"},
        {"{\"model_type\":\"deepseek_v3\",\"quantization_config\":{\"quant_method\":\"awq\"}"
         "," LATENT "}",
            RS_ERR_UNSUPPORTED, "quantization_config"},
        {"{\"model_type\":\"mixtral\",\"quantization_config\":{\"quant_method\":\"fp8\"}," SIZES
                REST "}",
            RS_ERR_UNSUPPORTED, "quantization_config"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_model model;
        rs_status status = load_text(rows[i].text, &model);
        if (status != rows[i].status || strstr(rs_error_message(), rows[i].word) == NULL)
            fail_msg("%s: %s, %s", rows[i].text, rs_status_name(status), rs_error_message());
    }
}

static void test_arithmetic_that_is_kept(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        const char *word; /* of the refusal; NULL: it trains */
        double theta;
    } rows[] = {
        {"\"rope_scaling\":null,\"rope_theta\":500000", NULL, 500000},
        {"\"rope_scaling\":{\"rope_type\":\"default\"}", NULL, 10000},
        {"\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}", "llama3", 10000},
        {"\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", "linear", 10000},
        {"\"rope_parameters\":{\"rope_theta\":7.5,\"rope_type\":\"default\"}", NULL, 7.5},
        {"\"rope_parameters\":{\"rope_theta\":7.5,\"rope_type\":\"yarn\"}", "yarn", 7.5},
        {"\"partial_rotary_factor\":0.5", "partial", 10000},
        {"\"hidden_act\":\"gelu\"", "gelu", 10000},
        {"\"head_dim\":15", "odd", 10000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[512];
        rs_model model;
        snprintf(text, sizeof text, "{\"model_type\":\"llama\",%s," SIZES REST "}", rows[i].key);
        assert_int_equal(load_text(text, &model), RS_OK);
        assert_true(model.rope_theta == rows[i].theta);
        rs_status status = rs_model_check_trainable(&model, 64);
        assert_int_equal(status, rows[i].word == NULL ? RS_OK : RS_ERR_UNSUPPORTED);
        if (rows[i].word != NULL)
            assert_non_null(strstr(rs_error_message(), rows[i].word));
    }
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        rs_status status;
        const char *word;
    } rows[] = {
        {"", RS_ERR_MALFORMED, "line 1"},
        {"{\"model_type\":\"llama\",", RS_ERR_MALFORMED, "line 1"},
        {"[1]", RS_ERR_MALFORMED, "no object"},
        {"{" SIZES REST "}", RS_ERR_MALFORMED, "\"model_type\" is missing"},
        {"{\"model_type\":\"bloom\"," SIZES REST "}", RS_ERR_UNSUPPORTED,
            "\"bloom\" is not one of llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, "
            "deepseek_v2, deepseek_v3"},
        {"{\"model_type\":7}", RS_ERR_MALFORMED, "\"model_type\""},
        {"{\"model_type\":\"llama\",\"model_type\":\"llama\"}", RS_ERR_MALFORMED, "duplicate"},
        {"{\"model_type\":\"llama\"}", RS_ERR_MALFORMED, "\"num_hidden_layers\" is missing"},
        {"{\"model_type\":\"llama\"," SIZES "}", RS_ERR_MALFORMED, "\"rms_norm_eps\" is missing"},
        {"{\"model_type\":\"mistral\"," SIZES "}", RS_ERR_MALFORMED,
            "\"num_key_value_heads\" is missing"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":\"4\"}", RS_ERR_MALFORMED,
            "\"num_hidden_layers\": a whole number"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":0}", RS_ERR_MALFORMED, "from 1 on"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":4.0}", RS_ERR_MALFORMED, "from 1 on"},
        {"{\"model_type\":\"llama\",\"tie_word_embeddings\":1," SIZES REST "}", RS_ERR_MALFORMED,
            "\"tie_word_embeddings\": true or false"},
        {"{\"model_type\":\"llama\",\"num_key_value_heads\":3,\"rms_norm_eps\":1e-6," SIZES "}",
            RS_ERR_MALFORMED, "8 query heads cannot share 3"},
        {"{\"model_type\":\"llama\",\"rope_theta\":-1," SIZES REST "}", RS_ERR_MALFORMED,
            "\"rope_theta\": a number above 0"},
        {"{\"model_type\":\"llama\",\"rope_scaling\":2," SIZES REST "}", RS_ERR_MALFORMED,
            "\"rope_scaling\": an object"},
        {"{\"model_type\":\"llama\",\"torch_dtype\":\"int3\"," SIZES REST "}", RS_ERR_MALFORMED,
            "\"int3\" is no element type"},
        {"{\"model_type\":\"llama\",\"hidden_act\":\"a name that is much too long\"," SIZES REST
         "}",
            RS_ERR_MALFORMED, "\"hidden_act\": a short text"},
        {"{\"model_type\":\"llama\",\"architectures\":[\"LlamaForSequenceClassification\"]}",
            RS_ERR_UNSUPPORTED, "LlamaForSequenceClassification"},
        {"{\"model_type\":\"llama\",\"architectures\":7}", RS_ERR_MALFORMED, "\"architectures\""},
        {"{\"model_type\":\"llama\",\"quantization_config\":{}}", RS_ERR_UNSUPPORTED,
            "quantization_config"},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":3,\"hidden_size\":65,"
         "\"intermediate_size\":100,\"vocab_size\":50,\"num_attention_heads\":8" REST "}",
            RS_ERR_MALFORMED, "\"head_dim\" is missing"},
        {"{\"model_type\":\"llama\",\"head_dim\":4611686018427387904," SIZES REST "}",
            RS_ERR_OVERFLOW, "fit 64 bits"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_model model;
        memset(&model, 7, sizeof model);
        rs_status status = load_text(rows[i].text, &model);
        if (status != rows[i].status || strstr(rs_error_message(), rows[i].word) == NULL)
            fail_msg("%s: %s, %s", rows[i].text, rs_status_name(status), rs_error_message());
        assert_non_null(strstr(rs_error_message(), "/config.json: "));
        assert_int_equal(((const char *)&model)[0], 7);
    }
}

static void test_paths(void **state)
{
    (void)state;
    rs_model model;
    char path[160];
    assert_int_equal(load_text("{\"model_type\":\"llama\"," SIZES REST "}", &model), RS_OK);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(rs_model_load(path, &model), RS_OK);
    snprintf(path, sizeof path, "%s/config.json/config.json", folder);
    assert_int_equal(rs_model_load(path, &model), RS_ERR_IO);
    snprintf(path, sizeof path, "%s/config.json", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rs_model_load(folder, &model), RS_ERR_NOT_FOUND);
    assert_non_null(strstr(rs_error_message(), "config.json"));
}

/* The N-th allocation fails, N = 1, 2, ...: the call says so and nothing is left (run under asan).
 */
static void test_allocation_failures(void **state)
{
    (void)state;
    rs_model model;
    assert_int_equal(load_text("{\"model_type\":\"qwen3\"," SIZES REST "}", &model), RS_OK);
    rs_status status = RS_ERR_NO_MEMORY;
    size_t n = 0;
    while (status != RS_OK) {
        rs_space *space = NULL;
        rs_alloc_fail_at(++n);
        status = rs_model_load(folder, &model);
        if (status == RS_OK)
            status = rs_model_space(&model, RS_DTYPE_BF16, &space);
        rs_alloc_fail_at(0);
        assert_true(status == RS_OK || status == RS_ERR_NO_MEMORY);
        assert_true(n < 100);
        rs_space_destroy(space);
    }
    assert_true(n > 18);
}

/* A space tells its model: what that makes has the same tensors, axes and all. */
static void check_model_of_space(const char *name, uint64_t dense)
{
    rs_model model, told;
    rs_space *space, *again;
    assert_int_equal(rs_model_load(name, &model), RS_OK);
    model.dense_layers[0] = dense;
    assert_int_equal(rs_model_space(&model, RS_DTYPE_BF16, &space), RS_OK);
    if (rs_model_of_space(space, &told) != RS_OK)
        fail_msg("%s: %s", name, rs_error_message());
    assert_int_equal(rs_model_space(&told, RS_DTYPE_BF16, &again), RS_OK);
    assert_int_equal(rs_space_tensor_count(again), rs_space_tensor_count(space));
    for (int t = 0; t < rs_space_tensor_count(space); t++) {
        rs_tensor a = *rs_space_tensor(space, t), b = *rs_space_tensor(again, t);
        if (strcmp(a.name, b.name) != 0)
            fail_msg("%s: %s and %s", name, a.name, b.name);
        assert_true((a.layers == NULL) == (b.layers == NULL));
        if (a.layers != NULL)
            assert_memory_equal(a.layers, b.layers, sizeof *a.layers * (size_t)a.shape[0]);
        a.name = b.name = NULL;
        a.layers = b.layers = NULL;
        assert_memory_equal(&a, &b, sizeof a);
    }
    rs_space_destroy(again);
    rs_space_destroy(space);
}

static void test_model_of_space(void **state)
{
    (void)state;
    for (const char *const *name = rs_model_presets(); *name != NULL; name++)
        check_model_of_space(*name, 0);
    check_model_of_space("mixtral-tiny", 1 << 1);
    rs_space *bare;
    rs_model told;
    assert_int_equal(rs_space_create(&bare), RS_OK);
    assert_int_equal(rs_model_of_space(bare, &told), RS_ERR_NOT_FOUND);
    assert_int_equal(rs_space_set_fact(bare, "family", "llama"), RS_OK);
    assert_int_equal(rs_model_of_space(bare, &told), RS_ERR_NOT_FOUND);
    assert_non_null(strstr(rs_error_message(), "tied"));
    rs_space_destroy(bare);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets),
        cmocka_unit_test(test_all_tensors),
        cmocka_unit_test(test_mixed_layers),
        cmocka_unit_test(test_space_refusals),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_expert_families),
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_bad_experts),
        cmocka_unit_test(test_arithmetic_that_is_kept),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_model_of_space),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
