/*
 * DeepSpeed checkpoints: one folder a tag, of a run with ZeRO 0 to 3 or BF16_Optimizer, with tensor
 * and pipeline parallelism, with native experts.
 *
 * The reader goes over the files once, in the order of their ranks, and hands every tensor it finds
 * to the assembly as what one rank has of it. Nothing is merged: the catalog that comes out says of
 * each logical tensor which bytes of which files are its elements.
 *
 * Order: names of files; degrees and rules (from the first model file); ZeRO stage and partition
 * count (from the first optimizer file); model files; layer and expert files; optimizer files; then
 * the assembly, and last what follows from another entry: 16-bit weights that only the masters
 * hold, tied names.
 *
 * Specification: docs/formats/deepspeed.md.
 */
#include "ckpt/deepspeed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/deepspeed_derive.h"
#include "ckpt/deepspeed_model.h"
#include "ckpt/value_json.h"

bool rs_deepspeed_probe(const rs_place *place)
{
    static const char *const ends[] = {"_model_states.pt", "_optim_states.pt", "-model_states.pt"};
    static const char *const begins[] = {"mp_rank_", "zero_pp_rank_", "bf16_zero_pp_rank_",
        "fp16_zero_pp_rank_", "layer_", "expp_rank_"};
    if (!place->folder || rs_place_has(place, "zero"))
        return false;
    for (size_t b = 0; b < sizeof begins / sizeof *begins; b++)
        for (size_t e = 0; e < sizeof ends / sizeof *ends; e++) {
            size_t at = 0;
            if (rs_place_match(place, begins[b], ends[e], &at) != NULL)
                return true;
        }
    return false;
}

/* The stage in an optimizer file: a number, an enum by value or by name, or what it has. */
static rs_status find_stage(
    rs_ds_reader *reader, const rs_torch *torch, const rs_ds_file *file, const rs_value *z)
{
    static const char *const names[] = {"disabled", "optimizer_states", "gradients", "weights"};
    const rs_value *value = rs_value_get(z, "zero_stage");
    int64_t stage = -1;
    if (value != NULL && !rs_value_integer(value, &stage)) {
        const char *name = value->kind == RS_VALUE_CALL && value->as.call->args->count == 1
                               ? rs_value_string(value->as.call->args->as.items[0])
                               : NULL;
        for (int i = 0; i < 4 && name != NULL; i++)
            if (strcmp(names[i], name) == 0)
                stage = i;
    }
    if (value != NULL && (stage < 0 || stage > 3))
        return rs_ds_malformed(torch, "its zero_stage is none of 0 to 3");
    if (value == NULL) {
        bool flat = rs_value_get(z, "fp32_flat_groups") != NULL;
        reader->bf16_optimizer = !flat && file->bf16 && rs_value_get(z, "loss_scaler") == NULL;
        stage = flat ? 3 : 1;
        if (!reader->bf16_optimizer)
            RS_TRY(rs_catalog_warn(reader->catalog,
                "%s: does not say its ZeRO stage; from what it holds, %" PRId64,
                rs_files_path(torch->files, torch->file), stage));
    }
    reader->stage = (int)stage;
    return RS_OK;
}

/* Data-parallel ranks: partition_count, the largest of it where it is a list. */
static void find_partitions(rs_ds_reader *reader, const rs_value *z)
{
    const rs_value *counts = rs_value_get(z, "partition_count");
    int64_t most = 0, one;
    if (rs_value_integer(counts, &one))
        most = one;
    for (uint32_t i = 0; rs_value_is_sequence(counts) && i < counts->count; i++)
        if (rs_value_integer(counts->as.items[i], &one) && one > most)
            most = one;
    if (most >= 1 && most < 1000000)
        reader->dp = (int)most;
}

/* Looks into the first optimizer file. */
static rs_status look_at_optimizer(rs_ds_reader *reader, bool weights_only)
{
    size_t count;
    bool missing;
    rs_torch torch = {0};
    const rs_ds_file *file = rs_ds_files(reader, RS_DS_OPTIMIZER, &count);
    if (file == NULL)
        return RS_OK;
    size_t checksums = reader->catalog->checksums.count;
    size_t warnings = reader->catalog->warnings.count;
    rs_status status = rs_ds_open(reader, file, &torch);
    reader->catalog->checksums.count = checksums;
    reader->catalog->warnings.count = warnings;
    if (status == RS_OK) {
        const rs_value *z = rs_value_get(rs_torch_root(&torch), "optimizer_state_dict");
        if (!rs_value_is(z, RS_VALUE_DICT))
            status = rs_ds_malformed(&torch, "has no dict \"optimizer_state_dict\"");
        else
            status = find_stage(reader, &torch, file, z);
        if (status == RS_OK)
            find_partitions(reader, z);
    }
    rs_torch_fini(&torch);
    RS_TRY(status);
    status = rs_ds_check_grid(reader, RS_DS_OPTIMIZER, reader->dp, "optimizer", &missing);
    if (missing && weights_only && reader->stage != 3) {
        reader->without_optimizer = true;
        status = rs_catalog_warn(reader->catalog, "%s; weights alone are read", rs_error_message());
    }
    RS_TRY(status);
    bool of_rank = rs_ds_files(reader, RS_DS_MODEL_OF_RANK, &count) != NULL;
    if (of_rank)
        RS_TRY(rs_ds_check_grid(reader, RS_DS_MODEL_OF_RANK, reader->dp, "model-state", &missing));
    if (of_rank != (reader->stage == 3))
        return rs_error_set(RS_ERR_MALFORMED,
            "%s: its optimizer files are of ZeRO stage %d, its model files are not",
            reader->place->title, reader->stage);
    return RS_OK;
}

static const rs_value *inner_groups(const rs_value *z)
{
    const rs_value *base = rs_value_get(z, "base_optimizer_state");
    const rs_value *inner = rs_value_get(z, "optimizer_state_dict");
    return rs_value_get(inner != NULL ? inner : base, "param_groups");
}

/* What ranks must have alike, compared with the first rank's file. */
static rs_status compare_scalers(
    rs_ds_reader *reader, const rs_torch *torch, const rs_value *z, const rs_value *first)
{
    static const char *const keys[] = {"loss_scaler", "clip_grad", "dynamic_loss_scale"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!rs_value_equal(rs_value_get(z, keys[i]), rs_value_get(first, keys[i])))
            RS_TRY(rs_catalog_warn(reader->catalog, "%s: its %s differs from that of rank 0",
                rs_files_path(torch->files, torch->file), keys[i]));
    if (rs_value_is_sequence(inner_groups(first)) &&
        !rs_value_equal(inner_groups(z), inner_groups(first)))
        RS_TRY(rs_catalog_warn(reader->catalog,
            "%s: its parameter groups differ from those of data-parallel rank 0",
            rs_files_path(torch->files, torch->file)));
    return RS_OK;
}

static rs_status keep_optimizer_extras(rs_ds_reader *reader, int mp, const rs_value *z)
{
    static const char *const keys[] = {
        "loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad"};
    const rs_value *groups = inner_groups(z);
    if (rs_ds_tp_of(reader, mp) != 0)
        return RS_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && mp == 0; i++)
        if (rs_value_get(z, keys[i]) != NULL)
            RS_TRY(rs_catalog_extra(
                reader->catalog, keys[i], rs_value_json(rs_value_get(z, keys[i]), &reader->left)));
    if (groups == NULL)
        return RS_OK;
    json_t *json = rs_value_json(groups, &reader->left);
    if (reader->pp == 1)
        return rs_catalog_extra(reader->catalog, "param_groups", json);
    if (json == NULL || json_array_append_new(reader->groups, json) != 0)
        return rs_error_memory(64);
    return RS_OK;
}

static rs_status read_optimizer(
    rs_ds_reader *reader, const rs_ds_file *file, const rs_value **first, rs_torch *torch)
{
    RS_TRY(rs_ds_open(reader, file, torch));
    const rs_value *z = rs_value_get(rs_torch_root(torch), "optimizer_state_dict");
    if (!rs_value_is(z, RS_VALUE_DICT))
        return rs_ds_malformed(torch, "has no dict \"optimizer_state_dict\"");
    int stage = reader->stage;
    RS_TRY(find_stage(reader, torch, file, z));
    if (reader->stage != stage)
        return rs_ds_malformed(
            torch, "is of ZeRO stage %d, the first rank's file of stage %d", reader->stage, stage);
    if (file->dp == 0) {
        RS_TRY(keep_optimizer_extras(reader, file->mp, z));
        *first = z;
    } else if (*first != NULL) {
        RS_TRY(compare_scalers(reader, torch, z, *first));
    }
    return reader->stage == 3 ? rs_ds_read_flat_params(reader, torch, file, z)
                              : rs_ds_read_flat_groups(reader, torch, file, z);
}

rs_status rs_ds_read_optimizers(rs_ds_reader *reader)
{
    rs_torch first = {0}; /* the file of data-parallel rank 0, to compare the others with */
    const rs_value *first_state = NULL;
    rs_status status = RS_OK;
    for (size_t i = 0; i < reader->files.count && status == RS_OK; i++) {
        const rs_ds_file *file = &reader->files.items[i];
        rs_torch torch = {0};
        if (file->kind != RS_DS_OPTIMIZER)
            continue;
        status = read_optimizer(reader, file, &first_state, &torch);
        if (file->dp == 0) {
            rs_torch_fini(&first);
            first = torch;
        } else {
            rs_torch_fini(&torch);
        }
    }
    rs_torch_fini(&first);
    return status;
}

static rs_status finish_layout(rs_ds_reader *reader)
{
    char layout[128];
    snprintf(layout, sizeof layout, "tp=%d,pp=%d,dp=%d,zero=%d", reader->tp, reader->pp, reader->dp,
        reader->stage < 0 ? 0 : reader->stage);
    return rs_pool_text(&reader->catalog->pool, layout, strlen(layout), &reader->catalog->layout);
}

static rs_status read_all(rs_ds_reader *reader, const rs_checkpoint_options *options)
{
    RS_TRY(rs_ds_scan(reader));
    if (options->rules != NULL)
        RS_TRY(rs_rules_add_file(&reader->rules, options->rules));
    RS_TRY(rs_ds_degrees(reader));
    rs_assembly_init(&reader->assembly, reader->catalog, &reader->rules, reader->tp);
    RS_TRY(look_at_optimizer(reader, options->weights_only));
    RS_TRY(rs_ds_read_models(reader));
    RS_TRY(rs_ds_read_layers(reader));
    RS_TRY(rs_ds_read_experts(reader));
    if (!reader->without_optimizer)
        RS_TRY(rs_ds_read_optimizers(reader));
    if (reader->stage < 0)
        RS_TRY(rs_ds_read_plain(reader));
    RS_TRY(rs_assembly_finish(&reader->assembly));
    RS_TRY(rs_ds_derive(reader));
    return finish_layout(reader);
}

rs_status rs_deepspeed_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options)
{
    rs_ds_reader reader;
    rs_status status = rs_ds_reader_init(&reader, catalog, place);
    if (status == RS_OK)
        status = read_all(&reader, options);
    rs_ds_reader_fini(&reader);
    return status;
}
