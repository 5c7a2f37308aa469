/*
 * Models by name or path, what is impossible in one, and what the trainer cannot compute.
 */
#include "layout/model.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

static rs_status no_such_model(const char *name)
{
    char names[512];
    int used = 0;
    for (const char *const *at = rs_model_presets(); *at != NULL; at++)
        used +=
            snprintf(names + used, sizeof names - (size_t)used, "%s%s", used > 0 ? ", " : "", *at);
    return rs_error_set(RS_ERR_ARGUMENT,
        "model %s: neither a preset (%s) nor a config.json or a folder with one", name, names);
}

rs_status rs_model_load(const char *name_or_path, rs_model *out)
{
    size_t count;
    const rs_model *presets = rs_model_presets_all(&count);
    for (size_t i = 0; i < count; i++) {
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
        return rs_model_read_config(name_or_path, out);
    rs_text text = {0};
    char *path;
    rs_text_append(&text, "%s/config.json", name_or_path);
    RS_TRY(rs_text_take(&text, &path));
    rs_status status = rs_model_read_config(path, out);
    free(path);
    return status;
}

/* ---- layers ---- */

bool rs_model_has_experts(const rs_model *model, int64_t layer)
{
    bool listed =
        layer < RS_MODEL_DENSE_LAYERS && (model->dense_layers[layer / 64] >> (layer % 64) & 1) != 0;
    return model->experts > 0 && layer >= model->dense_first && !listed;
}

bool rs_model_lists_dense(const rs_model *model)
{
    uint64_t any = 0;
    for (int i = 0; i < RS_MODEL_DENSE_LAYERS / 64; i++)
        any |= model->dense_layers[i];
    return any != 0;
}

int64_t rs_model_expert_layers(const rs_model *model)
{
    int64_t count = 0, all = model->layers + model->mtp_layers;
    if (model->experts == 0)
        return 0;
    if (!rs_model_lists_dense(model))
        return all - model->dense_first;
    for (int64_t l = 0; l < all; l++)
        count += rs_model_has_experts(model, l);
    return count;
}

/* ---- checks ---- */

typedef struct number {
    const char *name;
    int64_t value;
    int64_t least;
} number;

static rs_status check_least(const number *numbers, size_t count, rs_status status)
{
    for (size_t i = 0; i < count; i++)
        if (numbers[i].value < numbers[i].least)
            return rs_error_set(status, "%s: %" PRId64 ", at least %" PRId64 " is wanted",
                numbers[i].name, numbers[i].value, numbers[i].least);
    return RS_OK;
}

static rs_status check_experts(const rs_model *model, rs_status status)
{
    const number numbers[] = {{"experts per token", model->experts_per_token, 1},
        {"feed-forward size of an expert", model->expert_ffn, 1},
        {"layers without experts", model->dense_first, 0},
        {"shared feed-forward size", model->shared_ffn, 0},
        {"layers of multi-token prediction", model->mtp_layers, 0}};
    RS_TRY(check_least(numbers, sizeof numbers / sizeof *numbers, status));
    if (model->experts_per_token > model->experts)
        return rs_error_set(status,
            "%" PRId64 " experts per token, but there are %" PRId64 " experts",
            model->experts_per_token, model->experts);
    if (model->dense_first > model->layers)
        return rs_error_set(status,
            "%" PRId64 " layers without experts, but there are %" PRId64 " layers",
            model->dense_first, model->layers);
    int64_t layers;
    if (!rs_add_fits(model->layers, model->mtp_layers, &layers))
        return rs_error_set(
            RS_ERR_OVERFLOW, "%" PRId64 " layers do not fit 64 bits", model->layers);
    if (layers > RS_MODEL_DENSE_LAYERS && rs_model_lists_dense(model))
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "experts in some of %" PRId64 " layers; of up to %d that is known", layers,
            RS_MODEL_DENSE_LAYERS);
    return RS_OK;
}

static rs_status check_latent(const rs_model *model, rs_status status)
{
    const number numbers[] = {{"rank of queries", model->q_rank, 0},
        {"rotary width of a head", model->rope_dim, 1}, {"width of a value head", model->v_dim, 1}};
    RS_TRY(check_least(numbers, sizeof numbers / sizeof *numbers, status));
    if (model->rope_dim >= model->head_dim)
        return rs_error_set(status,
            "rotary width %" PRId64 " leaves nothing of heads of width %" PRId64, model->rope_dim,
            model->head_dim);
    int64_t rows;
    int64_t width;
    if (!rs_add_fits(model->kv_rank, model->rope_dim, &rows) ||
        !rs_add_fits(model->head_dim, model->v_dim, &width) ||
        !rs_mul_fits(model->heads, width, &rows))
        return rs_error_set(
            RS_ERR_OVERFLOW, "%" PRId64 " latent heads do not fit 64 bits", model->heads);
    return RS_OK;
}

rs_status rs_model_check_numbers(const rs_model *model, rs_status status)
{
    const number numbers[] = {{"layers", model->layers, 1}, {"hidden size", model->hidden, 1},
        {"query heads", model->heads, 1}, {"key/value heads", model->kv_heads, 1},
        {"head width", model->head_dim, 1}, {"feed-forward size", model->ffn, 1},
        {"vocabulary", model->vocab, 1}, {"experts", model->experts, 0},
        {"rank of keys and values", model->kv_rank, 0}, {"positions", model->positions, 0}};
    RS_TRY(check_least(numbers, sizeof numbers / sizeof *numbers, status));
    if (model->heads % model->kv_heads != 0)
        return rs_error_set(status,
            "%" PRId64 " query heads cannot share %" PRId64 " key/value heads evenly", model->heads,
            model->kv_heads);
    int64_t rows;
    int64_t width;
    if (!rs_mul_fits(model->heads, model->head_dim, &rows) ||
        !rs_mul_fits(model->hidden, 2, &width))
        return rs_error_set(RS_ERR_OVERFLOW,
            "%" PRId64 " heads of width %" PRId64 " do not fit 64 bits", model->heads,
            model->head_dim);
    if (model->experts > 0)
        RS_TRY(check_experts(model, status));
    return rs_model_has_mla(model) ? check_latent(model, status) : RS_OK;
}

rs_status rs_model_check_trainable(const rs_model *model, int64_t seq)
{
    if (rs_model_has_mla(model))
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "model %s: its latent attention (kv_lora_rank %" PRId64 ") is not computed",
            model->name, model->kv_rank);
    if (model->experts > 0 && model->router_bias && !model->router_counts)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "model %s: the bias with which its router chooses experts is not moved", model->name);
    if (model->experts > 0 && model->mtp_layers > 0)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "model %s: its %" PRId64 " layers of multi-token prediction are not computed",
            model->name, model->mtp_layers);
    if (model->layer_norm || model->plain_mlp || model->positions > 0)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "model %s: what GPT-2 has (learnt positions, norms with biases, no gate) is not "
            "computed; its checkpoints can be read, written and planned",
            model->name);
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
