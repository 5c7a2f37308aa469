/*
 * Model descriptions: presets, Hugging Face's config.json, and the space a model makes.
 *
 * A decoder of the Llama family is a few numbers and switches. Which tensors these make is a table,
 * one row a tensor: its name, its dimensions by symbol, and the switch it depends on. What a
 * dimension counts (layers, heads, rows) follows from its symbol, so layouts never look at names.
 *
 * Reading a configuration: absent keys mean what the publisher's own code (transformers 4.x,
 * configuration_<family>.py) takes them to mean, which differs between families; null is absent.
 * Keys that change the tensors are demanded or checked; keys that change only the arithmetic are
 * kept in the description, and rs_model_check_trainable refuses what the trainer cannot compute.
 */
#include "reshard/model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

/* ---- presets ---- */

/* The first two are ours, for bytes; the others are the published models of those names. */
static const rs_model presets[] = {
    {.name = "llama-tiny",
        .family = "llama",
        .layers = 4,
        .hidden = 256,
        .heads = 8,
        .kv_heads = 4,
        .head_dim = 32,
        .ffn = 688,
        .vocab = 256,
        .tied = true,
        .norm_eps = 1e-5,
        .rope_theta = 10000,
        .rope_type = "default",
        .activation = "silu",
        .dtype = RS_DTYPE_F32},
    {.name = "llama-20m",
        .family = "llama",
        .layers = 8,
        .hidden = 512,
        .heads = 8,
        .kv_heads = 4,
        .head_dim = 64,
        .ffn = 1152,
        .vocab = 256,
        .tied = true,
        .norm_eps = 1e-5,
        .rope_theta = 10000,
        .rope_type = "default",
        .activation = "silu",
        .dtype = RS_DTYPE_F32},
    {.name = "llama3-8b",
        .family = "llama",
        .layers = 32,
        .hidden = 4096,
        .heads = 32,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 14336,
        .vocab = 128256,
        .norm_eps = 1e-5,
        .rope_theta = 500000,
        .rope_type = "default",
        .activation = "silu",
        .dtype = RS_DTYPE_BF16},
    {.name = "llama3-70b",
        .family = "llama",
        .layers = 80,
        .hidden = 8192,
        .heads = 64,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 28672,
        .vocab = 128256,
        .norm_eps = 1e-5,
        .rope_theta = 500000,
        .rope_type = "default",
        .activation = "silu",
        .dtype = RS_DTYPE_BF16},
    {.name = "qwen3-32b",
        .family = "qwen3",
        .layers = 64,
        .hidden = 5120,
        .heads = 64,
        .kv_heads = 8,
        .head_dim = 128,
        .ffn = 25600,
        .vocab = 151936,
        .qk_norm = true,
        .norm_eps = 1e-6,
        .rope_theta = 1000000,
        .rope_type = "default",
        .activation = "silu",
        .dtype = RS_DTYPE_BF16},
};

#define PRESETS (sizeof presets / sizeof *presets)
const char *const *rs_model_presets(void)
{
    static const char *const names[PRESETS + 1] = {
        "llama-tiny", "llama-20m", "llama3-8b", "llama3-70b", "qwen3-32b"};
    return names;
}

static rs_status no_such_model(const char *name)
{
    char names[256];
    int used = 0;
    for (const char *const *at = rs_model_presets(); *at != NULL; at++)
        used +=
            snprintf(names + used, sizeof names - (size_t)used, "%s%s", used > 0 ? ", " : "", *at);
    return rs_error_set(RS_ERR_ARGUMENT,
        "model %s: neither a preset (%s) nor a config.json or a folder with one", name, names);
}

/* ---- checks ---- */

static rs_status check_numbers(const rs_model *model, rs_status status)
{
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"layers", model->layers}, {"hidden size", model->hidden},
        {"query heads", model->heads}, {"key/value heads", model->kv_heads},
        {"head width", model->head_dim}, {"feed-forward size", model->ffn},
        {"vocabulary", model->vocab}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].value < 1)
            return rs_error_set(
                status, "%s: %" PRId64 ", at least 1 is wanted", numbers[i].name, numbers[i].value);
    if (model->heads % model->kv_heads != 0)
        return rs_error_set(status,
            "%" PRId64 " query heads cannot share %" PRId64 " key/value heads evenly", model->heads,
            model->kv_heads);
    int64_t rows;
    if (!rs_mul_fits(model->heads, model->head_dim, &rows))
        return rs_error_set(RS_ERR_OVERFLOW,
            "%" PRId64 " heads of width %" PRId64 " do not fit 64 bits", model->heads,
            model->head_dim);
    return RS_OK;
}

rs_status rs_model_check_trainable(const rs_model *model, int64_t seq)
{
    if (strcmp(model->rope_type, "default") != 0)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "model %s: rope_scaling \"%s\" is not computed; only the plain rotary embedding is",
            model->name, model->rope_type);
    if (strcmp(model->activation, "silu") != 0)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "model %s: hidden_act \"%s\" is not computed; only silu is", model->name,
            model->activation);
    if (model->sliding_window > 0 && model->sliding_window < seq)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "model %s: its sliding_window of %" PRId64
            " tokens is not computed; sequences of %" PRId64 " tokens are too long without",
            model->name, model->sliding_window, seq);
    if (model->head_dim % 2 != 0)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "model %s: head_dim %" PRId64 " is odd, the rotary embedding turns pairs", model->name,
            model->head_dim);
    return RS_OK;
}

/* ---- config.json ---- */

/* What differs between the families. */
typedef struct family {
    const char *name;
    const char *architecture;
    bool kv_heads_default; /* num_key_value_heads absent: as many as query heads; else it is
                              demanded */
    int64_t head_dim;      /* head_dim absent: this, or hidden / heads where 0 */
    bool qkv_bias;         /* always there */
    bool attention_bias;   /* the key is read, for q, k, v and o */
    bool mlp_bias;         /* the key is read */
    bool qk_norm;
    bool window_switch; /* sliding_window counts only where use_sliding_window says so */
    int64_t window;     /* sliding_window absent (not null): this */
} family;

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
};

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

static rs_status find_family(const json_t *root, const family **out)
{
    const char *name = NULL;
    RS_TRY(read_text(root, "model_type", NULL, sizeof((rs_model *)0)->name, &name));
    if (name == NULL)
        return rs_error_set(RS_ERR_MALFORMED, "key \"model_type\" is missing");
    const family *found = NULL;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].name, name) == 0)
            found = &families[i];
    if (found == NULL)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "key \"model_type\": \"%s\" is not one of llama, mistral, qwen2, qwen3", name);
    const json_t *architectures = value_of(root, "architectures");
    const char *first = json_string_value(json_array_get(architectures, 0));
    if (architectures != NULL && first == NULL)
        return wrong_type("architectures", "a list of class names");
    if (first != NULL && strcmp(first, found->architecture) != 0)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "key \"architectures\": %s has other tensors than %s, the one that is known", first,
            found->architecture);
    if (value_of(root, "quantization_config") != NULL)
        return rs_error_set(RS_ERR_UNSUPPORTED, "key \"quantization_config\": quantized models "
                                                "have other tensors and cannot be trained");
    *out = found;
    return RS_OK;
}

/* Two spellings: rope_theta with rope_scaling beside it, and (from transformers 5 on)
 * rope_parameters. */
static rs_status read_rope(const json_t *root, rs_model *out)
{
    const json_t *parameters = value_of(root, "rope_parameters");
    const json_t *scaling = parameters != NULL ? parameters : value_of(root, "rope_scaling");
    const char *key = parameters != NULL ? "rope_parameters" : "rope_scaling";
    if (scaling != NULL && !json_is_object(scaling))
        return wrong_type(key, "an object or null");
    double theta = 0;
    RS_TRY(read_real(root, "rope_theta", 10000, &theta));
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

static rs_status read_config(const json_t *root, rs_model *out)
{
    const family *of = NULL;
    RS_TRY(find_family(root, &of));
    snprintf(out->name, sizeof out->name, "%s", of->name);
    snprintf(out->family, sizeof out->family, "%s", of->name);
    RS_TRY(read_integer(root, "num_hidden_layers", -1, &out->layers));
    RS_TRY(read_integer(root, "hidden_size", -1, &out->hidden));
    RS_TRY(read_integer(root, "intermediate_size", -1, &out->ffn));
    RS_TRY(read_integer(root, "vocab_size", -1, &out->vocab));
    RS_TRY(read_integer(root, "num_attention_heads", -1, &out->heads));
    RS_TRY(read_integer(
        root, "num_key_value_heads", of->kv_heads_default ? out->heads : -1, &out->kv_heads));
    RS_TRY(read_integer(root, "head_dim",
        of->head_dim > 0 ? of->head_dim : out->hidden / out->heads, &out->head_dim));
    if (value_of(root, "head_dim") == NULL && of->head_dim == 0 && out->hidden % out->heads != 0)
        return rs_error_set(RS_ERR_MALFORMED,
            "key \"head_dim\" is missing, and hidden_size %" PRId64
            " is no multiple of num_attention_heads %" PRId64,
            out->hidden, out->heads);
    RS_TRY(read_bool(root, "tie_word_embeddings", &out->tied));
    bool bias = false;
    if (of->attention_bias)
        RS_TRY(read_bool(root, "attention_bias", &bias));
    out->qkv_bias = bias || of->qkv_bias;
    out->out_bias = bias;
    if (of->mlp_bias)
        RS_TRY(read_bool(root, "mlp_bias", &out->mlp_bias));
    out->qk_norm = of->qk_norm;
    RS_TRY(read_real(root, "rms_norm_eps", 0, &out->norm_eps));
    const char *activation = NULL;
    RS_TRY(read_text(root, "hidden_act", "silu", sizeof out->activation, &activation));
    snprintf(out->activation, sizeof out->activation, "%s", activation);
    RS_TRY(read_rope(root, out));
    RS_TRY(read_window(root, of, out));
    RS_TRY(read_dtype(root, out));
    return check_numbers(out, RS_ERR_MALFORMED);
}

static rs_status load_config(const char *path, rs_model *out)
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

rs_status rs_model_load(const char *name_or_path, rs_model *out)
{
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcmp(presets[i].name, name_or_path) != 0)
            continue;
        *out = presets[i];
        return RS_OK;
    }
    struct stat info;
    if (stat(name_or_path, &info) != 0)
        return errno == ENOENT ? no_such_model(name_or_path)
                               : rs_error_errno(errno, "%s", name_or_path);
    if (!S_ISDIR(info.st_mode))
        return load_config(name_or_path, out);
    rs_text text = {0};
    char *path;
    rs_text_append(&text, "%s/config.json", name_or_path);
    RS_TRY(rs_text_take(&text, &path));
    rs_status status = load_config(path, out);
    free(path);
    return status;
}

/* ---- the space ---- */

/* What a dimension counts. */
typedef enum symbol { NONE = 0, LAYERS, HIDDEN, Q_ROWS, KV_ROWS, HEAD, FFN, VOCAB, SYMBOLS } symbol;

/* What a tensor depends on. */
typedef enum condition { ALWAYS = 0, QKV_BIAS, OUT_BIAS, MLP_BIAS, QK_NORM, UNTIED } condition;

typedef struct row {
    const char *name;
    symbol dims[3];
    condition when;
    rs_stage_rule stage;
    bool decay;
} row;

/* In the order of the local concatenation: what one product of matrices serves stands together. */
static const row rows[] = {
    {"embed.weight", {VOCAB, HIDDEN}, ALWAYS, RS_STAGE_FIRST, true},
    {"layers.attn_norm.weight", {LAYERS, HIDDEN}, ALWAYS, RS_STAGE_BY_LAYER, false},
    {"layers.attn.q.weight", {LAYERS, Q_ROWS, HIDDEN}, ALWAYS, RS_STAGE_BY_LAYER, true},
    {"layers.attn.k.weight", {LAYERS, KV_ROWS, HIDDEN}, ALWAYS, RS_STAGE_BY_LAYER, true},
    {"layers.attn.v.weight", {LAYERS, KV_ROWS, HIDDEN}, ALWAYS, RS_STAGE_BY_LAYER, true},
    {"layers.attn.q.bias", {LAYERS, Q_ROWS}, QKV_BIAS, RS_STAGE_BY_LAYER, false},
    {"layers.attn.k.bias", {LAYERS, KV_ROWS}, QKV_BIAS, RS_STAGE_BY_LAYER, false},
    {"layers.attn.v.bias", {LAYERS, KV_ROWS}, QKV_BIAS, RS_STAGE_BY_LAYER, false},
    {"layers.attn.q_norm.weight", {LAYERS, HEAD}, QK_NORM, RS_STAGE_BY_LAYER, false},
    {"layers.attn.k_norm.weight", {LAYERS, HEAD}, QK_NORM, RS_STAGE_BY_LAYER, false},
    {"layers.attn.o.weight", {LAYERS, HIDDEN, Q_ROWS}, ALWAYS, RS_STAGE_BY_LAYER, true},
    {"layers.attn.o.bias", {LAYERS, HIDDEN}, OUT_BIAS, RS_STAGE_BY_LAYER, false},
    {"layers.mlp_norm.weight", {LAYERS, HIDDEN}, ALWAYS, RS_STAGE_BY_LAYER, false},
    {"layers.mlp.gate.weight", {LAYERS, FFN, HIDDEN}, ALWAYS, RS_STAGE_BY_LAYER, true},
    {"layers.mlp.up.weight", {LAYERS, FFN, HIDDEN}, ALWAYS, RS_STAGE_BY_LAYER, true},
    {"layers.mlp.gate.bias", {LAYERS, FFN}, MLP_BIAS, RS_STAGE_BY_LAYER, false},
    {"layers.mlp.up.bias", {LAYERS, FFN}, MLP_BIAS, RS_STAGE_BY_LAYER, false},
    {"layers.mlp.down.weight", {LAYERS, HIDDEN, FFN}, ALWAYS, RS_STAGE_BY_LAYER, true},
    {"layers.mlp.down.bias", {LAYERS, HIDDEN}, MLP_BIAS, RS_STAGE_BY_LAYER, false},
    {"norm.weight", {HIDDEN}, ALWAYS, RS_STAGE_LAST, false},
    {"head.weight", {VOCAB, HIDDEN}, UNTIED, RS_STAGE_LAST, true},
};

static bool has_row(const rs_model *model, const row *of)
{
    switch (of->when) {
    case ALWAYS:
        return true;
    case QKV_BIAS:
        return model->qkv_bias;
    case OUT_BIAS:
        return model->out_bias;
    case MLP_BIAS:
        return model->mlp_bias;
    case QK_NORM:
        return model->qk_norm;
    case UNTIED:
        return !model->tied;
    }
    return false;
}

static rs_tensor tensor_of(const rs_model *model, const row *of)
{
    const struct {
        int64_t length;
        rs_axis axis;
        int64_t unit;
    } meaning[SYMBOLS] = {
        [LAYERS] = {model->layers, RS_AXIS_LAYER, 0},
        [HIDDEN] = {model->hidden, RS_AXIS_WHOLE, 0},
        [Q_ROWS] = {model->heads * model->head_dim, RS_AXIS_Q_HEAD, model->head_dim},
        [KV_ROWS] = {model->kv_heads * model->head_dim, RS_AXIS_KV_HEAD, model->head_dim},
        [HEAD] = {model->head_dim, RS_AXIS_WHOLE, 0},
        [FFN] = {model->ffn, RS_AXIS_FFN, 0},
        [VOCAB] = {model->vocab, RS_AXIS_VOCAB, 0},
    };
    rs_tensor tensor = {.name = of->name,
        .stage = of->stage,
        .decay = of->decay,
        .kv_group = model->heads / model->kv_heads};
    for (int d = 0; d < 3 && of->dims[d] != NONE; d++) {
        tensor.shape[d] = meaning[of->dims[d]].length;
        tensor.axis[d] = meaning[of->dims[d]].axis;
        tensor.unit[d] = meaning[of->dims[d]].unit;
        tensor.ndim++;
    }
    if (tensor.stage == RS_STAGE_FIRST && model->tied)
        tensor.stage = RS_STAGE_FIRST_AND_LAST;
    return tensor;
}

static rs_status add_roles(rs_space *space, rs_dtype dtype)
{
    const rs_role roles[] = {{"param", dtype, RS_ROLE_MODEL},
        {"master", RS_DTYPE_F32, RS_ROLE_OPTIMIZER}, {"exp_avg", RS_DTYPE_F32, RS_ROLE_OPTIMIZER},
        {"exp_avg_sq", RS_DTYPE_F32, RS_ROLE_OPTIMIZER}};
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++)
        if (dtype != RS_DTYPE_F32 || strcmp(roles[r].name, "master") != 0)
            RS_TRY(rs_space_add_role(space, &roles[r], NULL));
    return RS_OK;
}

rs_status rs_model_space(const rs_model *model, rs_dtype dtype, rs_space **out)
{
    if (dtype != RS_DTYPE_F32 && dtype != RS_DTYPE_BF16 && dtype != RS_DTYPE_F16)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "parameters of type %s: float32, bfloat16 or float16 is possible",
            rs_dtype_name(dtype));
    rs_status status = check_numbers(model, RS_ERR_ARGUMENT);
    if (status != RS_OK)
        return rs_error_context(status, "model %s", model->name);
    rs_space *space;
    RS_TRY(rs_space_create(&space));
    RS_TRY_GOTO(add_roles(space, dtype), fail);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!has_row(model, &rows[i]))
            continue;
        rs_tensor tensor = tensor_of(model, &rows[i]);
        RS_TRY_GOTO(rs_space_add_tensor(space, &tensor, NULL), fail);
    }
    *out = space;
    return RS_OK;
fail:
    rs_space_destroy(space);
    return status;
}
