/*
 * Reading a Hugging Face config.json.
 *
 * Absent keys mean what the publisher's own code (transformers, configuration_<family>.py) takes
 * them to mean, which differs between families: one table row each. Null is absent, unless said
 * otherwise. Keys that change the tensors are demanded or checked; keys that change only the
 * arithmetic are kept in the description, and rs_model_check_trainable refuses what the trainer
 * cannot compute.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/checked.h"
#include "base/error.h"
#include "layout/model.h"

static rs_status wrong_type(const char *key, const char *wanted)
{
    return rs_error_set(RS_ERR_MALFORMED, "key \"%s\": %s is wanted", key, wanted);
}

/* The value of a key, NULL where it is absent or null. */
static json_t *value_of(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* `fallback` where the key is absent; -1 demands the key. */
static rs_status read_integer(const json_t *object, const char *key, int64_t fallback, int64_t *out)
{
    const json_t *value = value_of(object, key);
    if (value == NULL && fallback >= 0) {
        *out = fallback;
        return RS_OK;
    }
    if (value == NULL)
        return rs_error_set(RS_ERR_MALFORMED, "key \"%s\" is missing", key);
    if (!json_is_integer(value) || json_integer_value(value) < 1)
        return wrong_type(key, "a whole number from 1 on");
    *out = json_integer_value(value);
    return RS_OK;
}

/* A `fallback` of 0 demands the key. */
static rs_status read_real(const json_t *object, const char *key, double fallback, double *out)
{
    const json_t *value = value_of(object, key);
    if (value == NULL && fallback > 0) {
        *out = fallback;
        return RS_OK;
    }
    if (value == NULL)
        return rs_error_set(RS_ERR_MALFORMED, "key \"%s\" is missing", key);
    if (!json_is_number(value) || !(json_number_value(value) > 0))
        return wrong_type(key, "a number above 0");
    *out = json_number_value(value);
    return RS_OK;
}

/* As read_integer, but 0 is possible, and null means it. */
static rs_status read_count(const json_t *object, const char *key, int64_t fallback, int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (value == NULL || json_is_null(value)) {
        *out = value == NULL ? fallback : 0;
        return RS_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return wrong_type(key, "a whole number from 0 on, or null");
    *out = json_integer_value(value);
    return RS_OK;
}

/* A number from 0 on. */
static rs_status read_real_or_zero(
    const json_t *object, const char *key, double fallback, double *out)
{
    const json_t *value = value_of(object, key);
    if (value != NULL && (!json_is_number(value) || !(json_number_value(value) >= 0)))
        return wrong_type(key, "a number from 0 on");
    *out = value != NULL ? json_number_value(value) : fallback;
    return RS_OK;
}

static rs_status read_bool(const json_t *object, const char *key, bool *out)
{
    const json_t *value = value_of(object, key);
    if (value != NULL && !json_is_boolean(value))
        return wrong_type(key, "true or false");
    *out = json_is_true(value);
    return RS_OK;
}

/* The text of a key, or `fallback` where it is absent. Borrowed; `size` is what the caller has room
 * for. */
static rs_status read_text(
    const json_t *object, const char *key, const char *fallback, size_t size, const char **out)
{
    const json_t *value = value_of(object, key);
    if (value == NULL) {
        *out = fallback;
        return RS_OK;
    }
    if (!json_is_string(value) || json_string_length(value) >= size ||
        strlen(json_string_value(value)) != json_string_length(value))
        return wrong_type(key, "a short text");
    *out = json_string_value(value);
    return RS_OK;
}

/* ---- families ---- */

/* What differs between the families. */
typedef struct family {
    const char *name;
    const char *architecture;
    bool kv_heads_default; /* num_key_value_heads absent: as many as query heads; else it is
                              demanded */
    int64_t head_dim;      /* head_dim absent: this, or hidden / heads where 0 */
    bool qkv_bias;         /* always there */
    bool qkv_bias_key;     /* the key qkv_bias is read; absent: true */
    bool attention_bias;   /* the key is read, for q, k, v and o */
    bool mlp_bias;         /* the key is read */
    bool qk_norm;
    bool window_switch; /* sliding_window counts only where use_sliding_window says so */
    int64_t window;     /* sliding_window absent (not null): this */
    double theta;       /* rope_theta absent: this, or 10000 where 0 */
    rs_status (*read_experts)(const json_t *root, rs_model *out);
    bool latent;                                          /* multi-head latent attention */
    rs_status (*read)(const json_t *root, rs_model *out); /* all of it; NULL: as the others */
} family;

/* Which of a Qwen's layers have no experts: those listed, and of the others all but every
 * so-manieth
 * (`mlp_only_layers`, `decoder_sparse_step`). */
static rs_status read_dense_layers(const json_t *root, rs_model *out)
{
    const json_t *list = value_of(root, "mlp_only_layers");
    int64_t step = 1;
    RS_TRY(read_integer(root, "decoder_sparse_step", 1, &step));
    if (list != NULL && !json_is_array(list))
        return wrong_type("mlp_only_layers", "a list of layers");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        int64_t layer = json_integer_value(item);
        if (!json_is_integer(item) || layer < 0 || layer >= out->layers)
            return rs_error_set(RS_ERR_MALFORMED,
                "key \"mlp_only_layers\": numbers of layers from 0 to %" PRId64 " are wanted",
                out->layers - 1);
        if (layer < RS_MODEL_DENSE_LAYERS)
            out->dense_layers[layer / 64] |= (uint64_t)1 << (layer % 64);
    }
    for (int64_t l = 0; step > 1 && l < rs_min64(out->layers, RS_MODEL_DENSE_LAYERS); l++)
        if ((l + 1) % step != 0)
            out->dense_layers[l / 64] |= (uint64_t)1 << (l % 64);
    /* Those at the beginning are told as in other families. */
    while (out->dense_first < rs_min64(out->layers, RS_MODEL_DENSE_LAYERS) &&
           !rs_model_has_experts(out, out->dense_first)) {
        out->dense_layers[out->dense_first / 64] &= ~((uint64_t)1 << (out->dense_first % 64));
        out->dense_first++;
    }
    if (rs_model_expert_layers(out) == 0)
        out->experts = 0; /* that no token would pass through */
    return RS_OK;
}

/* A key that must be 1: every layer that may have experts has them. */
static rs_status read_step(const json_t *root, const char *key)
{
    int64_t step = 1;
    RS_TRY(read_integer(root, key, 1, &step));
    if (step != 1)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "key \"%s\": experts in every layer %" PRId64
            " are not known, only layers without them at the beginning",
            key, step);
    return RS_OK;
}

/* A bias in the router, as DeepSeek says it. */
static rs_status read_router_bias(const json_t *root, rs_model *out)
{
    const char *choice = NULL;
    RS_TRY(read_text(root, "topk_method", "greedy", 32, &choice));
    out->router_bias = out->router_counts = strcmp(choice, "noaux_tc") == 0;
    return RS_OK;
}

static rs_status read_mixtral(const json_t *root, rs_model *out)
{
    RS_TRY(read_integer(root, "num_local_experts", -1, &out->experts));
    RS_TRY(read_integer(root, "num_experts_per_tok", -1, &out->experts_per_token));
    out->expert_ffn = out->ffn;
    out->norm_topk = true;
    RS_TRY(read_router_bias(root, out));
    return read_real_or_zero(root, "router_aux_loss_coef", 0.001, &out->aux_loss);
}

static rs_status read_qwen_moe(const json_t *root, rs_model *out)
{
    RS_TRY(read_integer(root, "num_experts", -1, &out->experts));
    RS_TRY(read_integer(root, "num_experts_per_tok", -1, &out->experts_per_token));
    RS_TRY(read_integer(root, "moe_intermediate_size", -1, &out->expert_ffn));
    RS_TRY(read_bool(root, "norm_topk_prob", &out->norm_topk));
    RS_TRY(read_dense_layers(root, out));
    RS_TRY(read_router_bias(root, out));
    return read_real_or_zero(root, "router_aux_loss_coef", 0.001, &out->aux_loss);
}

static rs_status read_qwen2_moe(const json_t *root, rs_model *out)
{
    RS_TRY(read_integer(root, "shared_expert_intermediate_size", -1, &out->shared_ffn));
    out->shared_gate = true;
    return read_qwen_moe(root, out);
}

static rs_status read_deepseek(const json_t *root, rs_model *out)
{
    int64_t shared = 0;
    const char *choice = NULL;
    RS_TRY(read_integer(root, "n_routed_experts", -1, &out->experts));
    RS_TRY(read_integer(root, "num_experts_per_tok", -1, &out->experts_per_token));
    RS_TRY(read_integer(root, "moe_intermediate_size", -1, &out->expert_ffn));
    RS_TRY(read_count(root, "first_k_dense_replace", 0, &out->dense_first));
    RS_TRY(read_count(root, "n_shared_experts", 0, &shared));
    RS_TRY(read_count(root, "num_nextn_predict_layers", 0, &out->mtp_layers));
    RS_TRY(read_step(root, "moe_layer_freq"));
    RS_TRY(read_bool(root, "norm_topk_prob", &out->norm_topk));
    if (!rs_mul_fits(shared, out->expert_ffn, &out->shared_ffn))
        return rs_error_set(RS_ERR_OVERFLOW, "key \"n_shared_experts\": too many");
    /* The third generation always chooses with a bias; the second says so. */
    bool third = strcmp(out->family, "deepseek_v3") == 0;
    RS_TRY(read_text(root, "topk_method", third ? "noaux_tc" : "greedy", 32, &choice));
    out->router_bias = strcmp(choice, "noaux_tc") == 0;
    return read_real_or_zero(root, "aux_loss_alpha", 0.001, &out->aux_loss);
}

static rs_status read_latent(const json_t *root, rs_model *out)
{
    bool bias = false;
    int64_t nope = 0;
    RS_TRY(read_bool(root, "attention_bias", &bias));
    if (bias)
        return rs_error_set(
            RS_ERR_UNSUPPORTED, "key \"attention_bias\": latent attention has none that is known");
    RS_TRY(read_integer(root, "kv_lora_rank", -1, &out->kv_rank));
    RS_TRY(read_count(root, "q_lora_rank", 0, &out->q_rank));
    RS_TRY(read_integer(root, "qk_nope_head_dim", -1, &nope));
    RS_TRY(read_integer(root, "qk_rope_head_dim", -1, &out->rope_dim));
    RS_TRY(read_integer(root, "v_head_dim", -1, &out->v_dim));
    if (!rs_add_fits(nope, out->rope_dim, &out->head_dim))
        return rs_error_set(RS_ERR_OVERFLOW, "key \"qk_nope_head_dim\": too many");
    out->kv_heads = out->heads;
    return RS_OK;
}

/* GPT-2 has names of its own for everything. */
static rs_status read_gpt2(const json_t *root, rs_model *out)
{
    bool cross = false;
    const char *activation = NULL;
    RS_TRY(read_integer(root, "n_layer", 12, &out->layers));
    RS_TRY(read_integer(root, "n_embd", 768, &out->hidden));
    RS_TRY(read_integer(root, "n_head", 12, &out->heads));
    RS_TRY(read_integer(root, "n_positions", 1024, &out->positions));
    RS_TRY(read_integer(root, "vocab_size", 50257, &out->vocab));
    RS_TRY(read_bool(root, "add_cross_attention", &cross));
    if (cross)
        return rs_error_set(RS_ERR_UNSUPPORTED, "key \"add_cross_attention\": its tensors are not "
                                                "known");
    if (out->hidden % out->heads != 0 || out->hidden > INT64_MAX / 4)
        return rs_error_set(RS_ERR_MALFORMED,
            "key \"n_embd\": %" PRId64 " is no multiple of n_head %" PRId64, out->hidden,
            out->heads);
    RS_TRY(read_integer(root, "n_inner", 4 * out->hidden, &out->ffn));
    RS_TRY(read_text(root, "activation_function", "gelu_new", sizeof out->activation, &activation));
    RS_TRY(read_real(root, "layer_norm_epsilon", 1e-5, &out->norm_eps));
    snprintf(out->activation, sizeof out->activation, "%s", activation);
    snprintf(out->rope_type, sizeof out->rope_type, "none");
    const json_t *tied = value_of(root, "tie_word_embeddings");
    if (tied != NULL && !json_is_boolean(tied))
        return wrong_type("tie_word_embeddings", "true or false");
    out->tied = !json_is_false(tied);
    out->kv_heads = out->heads;
    out->head_dim = out->hidden / out->heads;
    out->qkv_bias = out->out_bias = out->mlp_bias = true;
    out->layer_norm = out->plain_mlp = true;
    return RS_OK;
}

static const family families[] = {
    {.name = "llama",
        .architecture = "LlamaForCausalLM",
        .kv_heads_default = true,
        .attention_bias = true,
        .mlp_bias = true},
    {.name = "mistral", .architecture = "MistralForCausalLM", .window = 4096},
    {.name = "qwen2",
        .architecture = "Qwen2ForCausalLM",
        .qkv_bias = true,
        .window_switch = true,
        .window = 4096},
    {.name = "qwen3",
        .architecture = "Qwen3ForCausalLM",
        .head_dim = 128,
        .attention_bias = true,
        .qk_norm = true,
        .window_switch = true,
        .window = 4096},
    {.name = "mixtral",
        .architecture = "MixtralForCausalLM",
        .theta = 1000000,
        .read_experts = read_mixtral},
    {.name = "qwen2_moe",
        .architecture = "Qwen2MoeForCausalLM",
        .qkv_bias_key = true,
        .window_switch = true,
        .window = 4096,
        .read_experts = read_qwen2_moe},
    {.name = "qwen3_moe",
        .architecture = "Qwen3MoeForCausalLM",
        .attention_bias = true,
        .qk_norm = true,
        .window_switch = true,
        .window = 4096,
        .read_experts = read_qwen_moe},
    {.name = "deepseek_v2",
        .architecture = "DeepseekV2ForCausalLM",
        .kv_heads_default = true,
        .read_experts = read_deepseek,
        .latent = true},
    {.name = "deepseek_v3",
        .architecture = "DeepseekV3ForCausalLM",
        .kv_heads_default = true,
        .read_experts = read_deepseek,
        .latent = true},
    {.name = "gpt2", .architecture = "GPT2LMHeadModel", .read = read_gpt2},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* Quantized weights are other tensors beside others; but a model that is published in eight bits
 * alone is trained in sixteen, and its space is that. */
static rs_status check_quantized(const json_t *root, const family *of)
{
    const json_t *value = value_of(root, "quantization_config");
    const char *method = json_string_value(json_object_get(value, "quant_method"));
    if (value == NULL || (of->latent && method != NULL && strcmp(method, "fp8") == 0))
        return RS_OK;
    return rs_error_set(RS_ERR_UNSUPPORTED, "key \"quantization_config\": quantized models have "
                                            "other tensors and cannot be trained");
}

static rs_status unknown_family(const char *name)
{
    char names[256];
    int used = 0;
    for (int i = 0; i < FAMILIES; i++)
        used += snprintf(
            names + used, sizeof names - (size_t)used, "%s%s", i > 0 ? ", " : "", families[i].name);
    return rs_error_set(
        RS_ERR_UNSUPPORTED, "key \"model_type\": \"%s\" is not one of %s", name, names);
}

static rs_status find_family(const json_t *root, const family **out)
{
    const char *name = NULL;
    RS_TRY(read_text(root, "model_type", NULL, sizeof((rs_model *)0)->family, &name));
    if (name == NULL)
        return rs_error_set(RS_ERR_MALFORMED, "key \"model_type\" is missing");
    const family *found = NULL;
    for (int i = 0; i < FAMILIES; i++)
        if (strcmp(families[i].name, name) == 0)
            found = &families[i];
    if (found == NULL)
        return unknown_family(name);
    const json_t *architectures = value_of(root, "architectures");
    const char *first = json_string_value(json_array_get(architectures, 0));
    if (architectures != NULL && first == NULL)
        return wrong_type("architectures", "a list of class names");
    if (first != NULL && strcmp(first, found->architecture) != 0)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "key \"architectures\": %s has other tensors than %s, the one that is known", first,
            found->architecture);
    RS_TRY(check_quantized(root, found));
    *out = found;
    return RS_OK;
}

/* Two spellings: rope_theta with rope_scaling beside it, and (from transformers 5 on)
 * rope_parameters. */
static rs_status read_rope(const json_t *root, const family *of, rs_model *out)
{
    const json_t *parameters = value_of(root, "rope_parameters");
    const json_t *scaling = parameters != NULL ? parameters : value_of(root, "rope_scaling");
    const char *key = parameters != NULL ? "rope_parameters" : "rope_scaling";
    if (scaling != NULL && !json_is_object(scaling))
        return wrong_type(key, "an object or null");
    double theta = 0;
    RS_TRY(read_real(root, "rope_theta", of->theta > 0 ? of->theta : 10000, &theta));
    RS_TRY(read_real(parameters, "rope_theta", theta, &out->rope_theta));
    const char *type = NULL;
    const char *older = NULL;
    RS_TRY(read_text(scaling, "type", "default", sizeof out->rope_type, &older));
    RS_TRY(read_text(scaling, "rope_type", older, sizeof out->rope_type, &type));
    double part = 0;
    double inner_part = 0;
    RS_TRY(read_real(root, "partial_rotary_factor", 1, &part));
    RS_TRY(read_real(scaling, "partial_rotary_factor", part, &inner_part));
    snprintf(out->rope_type, sizeof out->rope_type, "%s", inner_part < 1 ? "partial" : type);
    return RS_OK;
}

static rs_status read_window(const json_t *root, const family *of, rs_model *out)
{
    bool used = !of->window_switch;
    if (of->window_switch)
        RS_TRY(read_bool(root, "use_sliding_window", &used));
    /* Null means none, absent the family's default. */
    int64_t absent = json_object_get(root, "sliding_window") == NULL ? of->window : 0;
    int64_t window = 0;
    RS_TRY(read_integer(root, "sliding_window", absent, &window));
    out->sliding_window = used ? window : 0;
    return RS_OK;
}

static rs_status read_dtype(const json_t *root, rs_model *out)
{
    const char *key = value_of(root, "dtype") != NULL ? "dtype" : "torch_dtype";
    const char *text = NULL;
    RS_TRY(read_text(root, key, NULL, 32, &text));
    if (text == NULL)
        return RS_OK;
    if (strncmp(text, "torch.", 6) == 0)
        text += 6;
    out->dtype = rs_dtype_parse(text);
    if (out->dtype == RS_DTYPE_NONE)
        return rs_error_set(RS_ERR_MALFORMED, "key \"%s\": \"%s\" is no element type", key, text);
    return RS_OK;
}

/* Heads of q, k and v, and what projects them. */
static rs_status read_attention(const json_t *root, const family *of, rs_model *out)
{
    RS_TRY(read_integer(root, "num_attention_heads", -1, &out->heads));
    if (of->latent)
        return read_latent(root, out);
    RS_TRY(read_integer(
        root, "num_key_value_heads", of->kv_heads_default ? out->heads : -1, &out->kv_heads));
    RS_TRY(read_integer(root, "head_dim",
        of->head_dim > 0 ? of->head_dim : out->hidden / out->heads, &out->head_dim));
    if (value_of(root, "head_dim") == NULL && of->head_dim == 0 && out->hidden % out->heads != 0)
        return rs_error_set(RS_ERR_MALFORMED,
            "key \"head_dim\" is missing, and hidden_size %" PRId64
            " is no multiple of num_attention_heads %" PRId64,
            out->hidden, out->heads);
    bool bias = false;
    bool qkv_bias = of->qkv_bias || (of->qkv_bias_key && value_of(root, "qkv_bias") == NULL);
    if (of->attention_bias)
        RS_TRY(read_bool(root, "attention_bias", &bias));
    if (of->qkv_bias_key && !qkv_bias)
        RS_TRY(read_bool(root, "qkv_bias", &qkv_bias));
    out->qkv_bias = bias || qkv_bias;
    out->out_bias = bias;
    out->qk_norm = of->qk_norm;
    return RS_OK;
}

static rs_status read_config(const json_t *root, rs_model *out)
{
    const family *of = NULL;
    RS_TRY(find_family(root, &of));
    snprintf(out->name, sizeof out->name, "%s", of->name);
    snprintf(out->family, sizeof out->family, "%s", of->name);
    if (of->read != NULL) {
        RS_TRY(of->read(root, out));
        RS_TRY(read_dtype(root, out));
        return rs_model_check_numbers(out, RS_ERR_MALFORMED);
    }
    RS_TRY(read_integer(root, "num_hidden_layers", -1, &out->layers));
    RS_TRY(read_integer(root, "hidden_size", -1, &out->hidden));
    RS_TRY(read_integer(root, "intermediate_size", -1, &out->ffn));
    RS_TRY(read_integer(root, "vocab_size", -1, &out->vocab));
    RS_TRY(read_attention(root, of, out));
    RS_TRY(read_bool(root, "tie_word_embeddings", &out->tied));
    if (of->mlp_bias)
        RS_TRY(read_bool(root, "mlp_bias", &out->mlp_bias));
    if (of->read_experts != NULL)
        RS_TRY(of->read_experts(root, out));
    RS_TRY(read_real(root, "rms_norm_eps", 0, &out->norm_eps));
    const char *activation = NULL;
    RS_TRY(read_text(root, "hidden_act", "silu", sizeof out->activation, &activation));
    snprintf(out->activation, sizeof out->activation, "%s", activation);
    RS_TRY(read_rope(root, of, out));
    RS_TRY(read_window(root, of, out));
    RS_TRY(read_dtype(root, out));
    return rs_model_check_numbers(out, RS_ERR_MALFORMED);
}

rs_status rs_model_read_config(const char *path, rs_model *out)
{
    rs_model model = {0};
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return rs_error_errno(errno, "%s", path);
    json_error_t error;
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    fclose(file);
    if (root == NULL)
        return rs_error_set(RS_ERR_MALFORMED, "%s: line %d, column %d: %s", path, error.line,
            error.column, error.text);
    rs_status status = json_is_object(root)
                           ? read_config(root, &model)
                           : rs_error_set(RS_ERR_MALFORMED, "it is JSON, but no object");
    json_decref(root);
    if (status != RS_OK)
        return rs_error_context(status, "%s", path);
    *out = model;
    return RS_OK;
}
