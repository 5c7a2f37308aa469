/*
 * DeepSpeed's model files: one a model-parallel rank, or, under ZeRO-3, one a rank.
 *
 * They have the 16-bit weights and buffers (`module`), the names and shapes of what the optimizer's
 * flat buffers hold in the order in which they hold it (`param_shapes`), frozen parameters, tied
 * names, and the client's own state. Under ZeRO-3 `module` has an empty tensor for every
 * partitioned parameter, of which only the dtype says something.
 *
 * Specification: docs/formats/deepspeed.md.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/deepspeed.h"
#include "ckpt/deepspeed_model.h"
#include "ckpt/torch_read.h"
#include "ckpt/value_json.h"

/* Keys that the reader takes itself; all others are the client's, and extras. */
static const char *const own_keys[] = {"module", "optimizer", "param_shapes", "buffer_names",
    "frozen_param_shapes", "frozen_param_fragments", "shared_params"};

static bool is_own(const char *key)
{
    for (size_t i = 0; i < sizeof own_keys / sizeof *own_keys; i++)
        if (strcmp(own_keys[i], key) == 0)
            return true;
    return false;
}

rs_status rs_ds_add_tensor(rs_ds_reader *reader, const rs_torch *torch, const char *name,
    const char *role, int tp, int copy, const rs_value *value)
{
    rs_torch_tensor t;
    rs_piece piece;
    int id;
    if (rs_torch_kind_of(value) != RS_TORCH_DENSE)
        return rs_ds_malformed(torch, "%s of \"%s\" is no dense tensor", role, name);
    rs_status status = rs_torch_tensor_of(torch, value, &t);
    if (status != RS_OK)
        return rs_error_context(status, "\"%s\"", name);
    rs_torch_piece(torch, &t, &piece);
    RS_TRY(
        rs_assembly_local(&reader->assembly, name, role, tp, copy, t.dtype, t.ndim, t.shape, &id));
    return rs_assembly_strided(&reader->assembly, id, &piece);
}

static rs_status read_param(rs_ds_reader *reader, const rs_torch *torch, const rs_value *key,
    const rs_value *sizes, rs_ds_param *param)
{
    const char *name = rs_value_string(key);
    if (name == NULL)
        return rs_ds_malformed(torch, "param_shapes has a name that is no text");
    RS_TRY(rs_pool_text(&reader->pool, name, strlen(name), &param->name));
    if (rs_torch_sizes(sizes, &param->ndim, param->shape) != RS_OK)
        return rs_ds_malformed(torch, "param_shapes: the shape of \"%s\" is none", name);
    param->elements = 1;
    for (int d = 0; d < param->ndim; d++)
        if (!rs_mul_fits(param->elements, param->shape[d], &param->elements))
            return rs_ds_malformed(torch, "param_shapes: the shape of \"%s\" overflows", name);
    return RS_OK;
}

rs_status rs_ds_read_shapes(
    rs_ds_reader *reader, const rs_torch *torch, const rs_value *list, rs_ds_model *model)
{
    if (list == NULL || list->kind == RS_VALUE_NONE)
        return RS_OK;
    if (!rs_value_is_sequence(list))
        return rs_ds_malformed(torch, "param_shapes is no list");
    void *memory;
    RS_TRY(rs_pool_take(&reader->pool, list->count * sizeof(rs_ds_group), &memory));
    model->groups = memory;
    model->group_count = list->count;
    model->has_shapes = true;
    for (uint32_t g = 0; g < list->count; g++) {
        rs_ds_group *group = &model->groups[g];
        const rs_value *dict = list->as.items[g];
        if (!rs_value_is(dict, RS_VALUE_DICT))
            return rs_ds_malformed(torch, "param_shapes: group %u is no dict", g);
        RS_TRY(rs_pool_take(&reader->pool, dict->count * sizeof(rs_ds_param), &memory));
        group->items = memory;
        group->count = dict->count;
        for (uint32_t i = 0; i < dict->count; i++) {
            RS_TRY(read_param(reader, torch, dict->as.dict->pairs[2 * (size_t)i],
                dict->as.dict->pairs[2 * (size_t)i + 1], &group->items[i]));
            if (!rs_add_fits(group->elements, group->items[i].elements, &group->elements))
                return rs_ds_malformed(torch, "param_shapes: group %u overflows", g);
        }
    }
    return RS_OK;
}

/* The second names of tied tensors. */
static rs_status read_shared(rs_ds_reader *reader, const rs_torch *torch, const rs_value *shared)
{
    if (!rs_value_is(shared, RS_VALUE_DICT))
        return RS_OK;
    for (uint32_t i = 0; i < shared->count; i++) {
        const char *alias = rs_value_string(shared->as.dict->pairs[2 * (size_t)i]);
        const char *name = rs_value_string(shared->as.dict->pairs[2 * (size_t)i + 1]);
        if (alias == NULL || name == NULL)
            return rs_ds_malformed(torch, "shared_params has a name that is no text");
        RS_TRY(rs_ds_add_shared(reader, alias, name));
    }
    return RS_OK;
}

rs_status rs_ds_add_shared(rs_ds_reader *reader, const char *alias, const char *name)
{
    RS_TRY(rs_array_reserve((void **)&reader->shared.items, &reader->shared.capacity,
        reader->shared.count + 2, sizeof *reader->shared.items));
    const char **pair = reader->shared.items + reader->shared.count;
    RS_TRY(rs_pool_text(&reader->pool, alias, strlen(alias), &pair[0]));
    RS_TRY(rs_pool_text(&reader->pool, name, strlen(name), &pair[1]));
    reader->shared.count += 2;
    return RS_OK;
}

static bool is_alias(const rs_ds_reader *reader, const char *name)
{
    for (size_t i = 0; i < reader->shared.count; i += 2)
        if (strcmp(reader->shared.items[i], name) == 0)
            return true;
    return false;
}

/* One model file while it is read. */
typedef struct model_file {
    rs_ds_reader *reader;
    rs_torch torch;
    const rs_value *root;
    int mp, dp;
    bool of_rank; /* ZeRO-3 */
    rs_ds_model *model;
    rs_names buffers;
    rs_names places;      /* of tensors met: storage, shape, strides -> number in `module` */
    rs_names partitioned; /* ZeRO-3: names of partitioned and frozen params */
} model_file;

static rs_status name_all(model_file *f, const rs_value *list, rs_names *names, const char *what)
{
    bool dict = rs_value_is(list, RS_VALUE_DICT);
    if (list == NULL || list->kind == RS_VALUE_NONE)
        return RS_OK;
    if (!dict && !rs_value_is_sequence(list) && !rs_value_is(list, RS_VALUE_SET))
        return rs_ds_malformed(&f->torch, "%s is no list", what);
    for (uint32_t i = 0; i < list->count; i++) {
        const rs_value *key = dict ? list->as.dict->pairs[2 * (size_t)i] : list->as.items[i];
        int found;
        if (rs_value_string(key) == NULL)
            return rs_ds_malformed(&f->torch, "%s has a name that is no text", what);
        RS_TRY(rs_names_add(names, rs_value_string(key), 0, &found));
    }
    return RS_OK;
}

static rs_status keep_dtype(model_file *f, const char *name, rs_dtype dtype)
{
    const char *copy;
    int found;
    RS_TRY(rs_pool_text(&f->reader->pool, name, strlen(name), &copy));
    return rs_names_add(&f->model->dtypes, copy, (int)dtype, &found);
}

static rs_status describe(
    rs_ds_reader *reader, const char *name, const rs_torch_tensor *t, rs_ds_param *out)
{
    *out = (rs_ds_param){.ndim = t->ndim, .elements = rs_torch_elements(t)};
    memcpy(out->shape, t->shape, sizeof *t->shape * (size_t)t->ndim);
    return rs_pool_text(&reader->pool, name, strlen(name), &out->name);
}

static rs_status keep_weight(model_file *f, const char *name, const rs_torch_tensor *t)
{
    RS_TRY(RS_LIST_RESERVE_ONE(&f->model->weights));
    RS_TRY(describe(f->reader, name, t, &f->model->weights.items[f->model->weights.count]));
    f->model->weights.count++;
    return RS_OK;
}

rs_status rs_ds_add_part(
    rs_ds_reader *reader, const rs_ds_file *file, const char *name, const rs_torch_tensor *tensor)
{
    RS_TRY(RS_LIST_RESERVE_ONE(&reader->parts));
    rs_ds_part *part = &reader->parts.items[reader->parts.count];
    *part = (rs_ds_part){.layer = file->layer, .expert = file->expert, .tp = file->mp};
    RS_TRY(describe(reader, name, tensor, &part->param));
    reader->parts.count++;
    return RS_OK;
}

/* Two names of the same elements, where no shared_params says which is the second: the later. */
static rs_status find_tie(
    model_file *f, const rs_value *module, uint32_t at, const rs_torch_tensor *t, bool *tied)
{
    rs_text text = {0};
    int first = -1;
    *tied = false;
    if (rs_torch_elements(t) == 0)
        return RS_OK;
    rs_text_append(&text, "%s %" PRId64 " %d", t->storage->key, t->first, (int)t->dtype);
    for (int d = 0; d < t->ndim; d++)
        rs_text_append(&text, " %" PRId64 ":%" PRId64, t->shape[d], t->stride[d]);
    const char *key;
    rs_status status = text.status;
    if (status == RS_OK)
        status = rs_pool_text(&f->reader->pool, text.data, text.length, &key);
    if (status == RS_OK)
        status = rs_names_add(&f->places, key, (int)at, &first);
    rs_text_fini(&text);
    if (status != RS_OK || first < 0)
        return status;
    *tied = true;
    return rs_ds_add_shared(f->reader, rs_value_string(module->as.dict->pairs[2 * (size_t)at]),
        rs_value_string(module->as.dict->pairs[2 * (size_t)first]));
}

static rs_status read_module_tensor(model_file *f, const rs_value *module, uint32_t i)
{
    rs_ds_reader *reader = f->reader;
    const char *name = rs_value_string(module->as.dict->pairs[2 * (size_t)i]);
    const rs_value *value = module->as.dict->pairs[2 * (size_t)i + 1];
    rs_torch_tensor t;
    int copy = rs_ds_stage_of(reader, f->mp), tp = rs_ds_tp_of(reader, f->mp);
    if (!reader->weights)
        return RS_OK;
    if (name == NULL)
        return rs_ds_malformed(&f->torch, "module has a name that is no text");
    if (rs_torch_kind_of(value) == RS_TORCH_NO_TENSOR)
        return RS_OK; /* in the extras */
    if (rs_names_find(&f->buffers, name) >= 0)
        return rs_ds_add_tensor(reader, &f->torch, name, "buffer", tp, copy, value);
    if (rs_torch_kind_of(value) != RS_TORCH_DENSE)
        return rs_ds_malformed(&f->torch, "\"%s\" is no dense tensor", name);
    RS_TRY(rs_torch_tensor_of(&f->torch, value, &t));
    RS_TRY(keep_dtype(f, name, t.dtype));
    if (is_alias(reader, name))
        return RS_OK;
    bool stand_in = f->reader->universal && rs_torch_elements(&t) == 0;
    if ((f->of_rank || stand_in) && rs_names_find(&f->partitioned, name) >= 0)
        return RS_OK;
    if (!f->model->has_shapes && reader->pp == 1) {
        bool tied;
        RS_TRY(find_tie(f, module, i, &t, &tied));
        if (tied)
            return RS_OK;
    }
    RS_TRY(keep_weight(f, name, &t));
    return rs_ds_add_tensor(reader, &f->torch, name, "param", tp, copy, value);
}

static rs_status read_module(model_file *f)
{
    const rs_value *module = rs_value_get(f->root, "module");
    if (module == NULL || module->kind == RS_VALUE_NONE) {
        size_t layers;
        rs_ds_files(f->reader, RS_DS_LAYER, &layers);
        return layers > 0 || f->reader->universal ? RS_OK
                                                  : rs_ds_malformed(&f->torch, "has no \"module\"");
    }
    if (!rs_value_is(module, RS_VALUE_DICT))
        return rs_ds_malformed(&f->torch, "\"module\" is no dict");
    for (uint32_t i = 0; i < module->count; i++)
        RS_TRY(read_module_tensor(f, module, i));
    /* What is no tensor in it: opaque state of modules. */
    int64_t left = RS_VALUE_JSON_MOST;
    json_t *rest = rs_value_json(module, &left);
    if (rest != NULL && json_object_size(rest) > 0 && f->mp == 0)
        return rs_catalog_extra(f->reader->catalog, "module", rest);
    json_decref(rest);
    return RS_OK;
}

/* ZeRO-3: this rank's part of each frozen parameter. */
static rs_status read_fragment(
    model_file *f, const char *name, const rs_value *sizes, const rs_value *value)
{
    rs_ds_reader *reader = f->reader;
    rs_ds_param param;
    rs_torch_tensor t;
    int id;
    rs_value key = {.kind = RS_VALUE_TEXT, .count = (uint32_t)strlen(name), .as.text = name};
    RS_TRY(read_param(reader, &f->torch, &key, sizes, &param));
    RS_TRY(rs_torch_tensor_of(&f->torch, value, &t));
    int64_t part = rs_ceil_div(param.elements, reader->dp);
    if (t.ndim != 1 || !rs_torch_is_contiguous(&t) || t.shape[0] != part)
        return rs_ds_malformed(&f->torch,
            "the fragment of the frozen \"%s\" has not the %" PRId64 " elements of a rank", name,
            part);
    RS_TRY(rs_assembly_local(&reader->assembly, param.name, "param", rs_ds_tp_of(reader, f->mp),
        rs_ds_stage_of(reader, f->mp), t.dtype, param.ndim, param.shape, &id));
    int64_t begin = rs_min64(f->dp * part, param.elements);
    int64_t end = rs_min64(begin + part, param.elements);
    return rs_assembly_range(&reader->assembly, id, begin, end, t.storage->file,
        t.storage->offset + t.first * (int64_t)rs_dtype_size(t.dtype));
}

static rs_status read_frozen(model_file *f)
{
    const rs_value *shapes = rs_value_get(f->root, "frozen_param_shapes");
    const rs_value *fragments = rs_value_get(f->root, "frozen_param_fragments");
    const rs_value *module = rs_value_get(f->root, "module");
    if (!rs_value_is(shapes, RS_VALUE_DICT))
        return RS_OK;
    for (uint32_t i = 0; i < shapes->count; i++) {
        const char *name = rs_value_string(shapes->as.dict->pairs[2 * (size_t)i]);
        const rs_value *sizes = shapes->as.dict->pairs[2 * (size_t)i + 1];
        const rs_value *value = name != NULL ? rs_value_get(fragments, name) : NULL;
        if (name == NULL)
            return rs_ds_malformed(&f->torch, "frozen_param_shapes has a name that is no text");
        if (f->of_rank && value != NULL)
            RS_TRY(read_fragment(f, name, sizes, value));
        else if (value == NULL && rs_value_get(module, name) == NULL && f->dp <= 0)
            RS_TRY(rs_catalog_warn(
                f->reader->catalog, "the frozen parameter \"%s\" is in no file", name));
        else if (!f->of_rank && rs_value_get(module, name) == NULL)
            RS_TRY(rs_ds_add_tensor(f->reader, &f->torch, name, "param",
                rs_ds_tp_of(f->reader, f->mp), rs_ds_stage_of(f->reader, f->mp), value));
    }
    return RS_OK;
}

/* What one rank's file has and the first one's has not, or has otherwise (G04). */
static rs_status keep_own(rs_ds_reader *reader, const char *rank, const char *key, json_t *json)
{
    json_t *all = json_object_get(reader->catalog->extras, RS_DS_OF_RANKS);
    if (all == NULL &&
        json_object_set_new(reader->catalog->extras, RS_DS_OF_RANKS, all = json_object()) != 0)
        all = NULL;
    json_t *own = json_object_get(all, rank);
    if (own == NULL && json_object_set_new(all, rank, own = json_object()) != 0)
        own = NULL;
    if (json_object_set_new(own, key, json) != 0)
        return rs_error_set(RS_ERR_NO_MEMORY, "cannot keep \"%s\" of %s", key, rank);
    return RS_OK;
}

/* `rank` is "" for the first file, whose values stand for all that are equal to them. */
static rs_status keep_extra(model_file *f, const char *rank, const char *key, const rs_value *value)
{
    rs_ds_reader *reader = f->reader;
    int64_t left = reader->left;
    json_t *json = rs_value_json(value, &reader->left);
    bool is_empty = json_is_object(json) && json_object_size(json) == 0 && value->count > 0;
    if (is_empty) { /* nothing but tensors */
        json_decref(json);
        return RS_OK;
    }
    if (rank[0] == '\0')
        return rs_catalog_extra(reader->catalog, key, json);
    const json_t *first = json_object_get(reader->catalog->extras, key);
    if (!json_equal(json, first)) {
        if (strcmp(key, "global_steps") != 0 || first == NULL)
            return keep_own(reader, rank, key, json);
        json_decref(json);
        return rs_ds_malformed(&f->torch,
            "its global_steps are not the %" JSON_INTEGER_FORMAT
            " of the first rank's file: these are files of two saves",
            json_integer_value(first));
    }
    reader->left = left;
    json_decref(json);
    return RS_OK;
}

/* The client's own state and DeepSpeed's numbers: JSON, and tensors as entries of role "extra". */
static rs_status read_extras(model_file *f)
{
    bool first = f->mp == 0 && f->dp <= 0;
    rs_ds_reader *reader = f->reader;
    char prefix[64] = "";
    if (!first && f->dp > 0)
        snprintf(prefix, sizeof prefix, "rank_%d", f->dp);
    else if (!first)
        snprintf(prefix, sizeof prefix, "mp_rank_%d", f->mp);
    for (uint32_t i = 0; i < f->root->count; i++) {
        const rs_value *key = f->root->as.dict->pairs[2 * (size_t)i];
        rs_value *value = f->root->as.dict->pairs[2 * (size_t)i + 1];
        const char *text = rs_value_string(key);
        if (text == NULL || is_own(text))
            continue;
        RS_TRY(keep_extra(f, prefix, text, value));
        RS_TRY(rs_torch_enter_value(reader->catalog, &f->torch, prefix, text, value, "extra"));
    }
    if (!first)
        return RS_OK;
    rs_value_integer(rs_value_get(f->root, "global_steps"), &reader->global_steps);
    rs_value_integer(rs_value_get(f->root, "skipped_steps"), &reader->skipped_steps);
    const char *version = rs_value_string(rs_value_get(f->root, "ds_version"));
    return rs_catalog_extra(reader->catalog, "writer",
        json_sprintf("DeepSpeed %s", version != NULL ? version : "of unknown version"));
}

static rs_status read_one(model_file *f, const rs_ds_file *file)
{
    rs_ds_reader *reader = f->reader;
    RS_TRY(rs_ds_open(reader, file, &f->torch));
    f->root = rs_torch_root(&f->torch);
    f->of_rank = file->kind == RS_DS_MODEL_OF_RANK;
    if (f->dp <= 0) {
        RS_TRY(
            rs_ds_read_shapes(reader, &f->torch, rs_value_get(f->root, "param_shapes"), f->model));
        if (f->mp == 0)
            RS_TRY(read_shared(reader, &f->torch, rs_value_get(f->root, "shared_params")));
        RS_TRY(name_all(f, rs_value_get(f->root, "buffer_names"), &f->buffers, "buffer_names"));
        for (size_t g = 0; g < f->model->group_count; g++)
            for (size_t i = 0; i < f->model->groups[g].count; i++) {
                int found;
                RS_TRY(rs_names_add(&f->partitioned, f->model->groups[g].items[i].name, 0, &found));
            }
        RS_TRY(name_all(f, rs_value_get(f->root, "frozen_param_shapes"), &f->partitioned,
            "frozen_param_shapes"));
        RS_TRY(read_module(f));
    }
    RS_TRY(read_frozen(f));
    return read_extras(f);
}

static rs_status read_file(rs_ds_reader *reader, const rs_ds_file *file)
{
    model_file f = {
        .reader = reader, .mp = file->mp, .dp = file->dp, .model = &reader->models[file->mp]};
    rs_status status = read_one(&f, file);
    rs_names_fini(&f.buffers);
    rs_names_fini(&f.places);
    rs_names_fini(&f.partitioned);
    rs_torch_fini(&f.torch);
    return status;
}

rs_status rs_ds_read_models(rs_ds_reader *reader)
{
    for (size_t i = 0; i < reader->files.count; i++) {
        const rs_ds_file *file = &reader->files.items[i];
        if (file->kind == RS_DS_MODEL || file->kind == RS_DS_MODEL_OF_RANK)
            RS_TRY(read_file(reader, file));
    }
    return RS_OK;
}

rs_status rs_ds_check_grid(
    rs_ds_reader *reader, rs_ds_kind kind, int dp, const char *what, bool *missing)
{
    *missing = false;
    int mps = reader->pp * reader->tp;
    for (int mp = 0; mp < mps; mp++) {
        bool *have = rs_calloc((size_t)dp, sizeof *have);
        rs_text list = {0};
        if (have == NULL)
            return rs_error_memory((size_t)dp);
        int extra = -1;
        for (size_t i = 0; i < reader->files.count; i++) {
            const rs_ds_file *file = &reader->files.items[i];
            if (file->kind != kind || file->mp != mp)
                continue;
            if (file->dp < dp)
                have[file->dp] = true;
            else
                extra = file->dp;
        }
        rs_text_append_gaps(&list, have, dp);
        free(have);
        rs_status status = list.status;
        *missing = status == RS_OK && list.length > 0;
        if (*missing)
            status = rs_error_set(RS_ERR_MALFORMED,
                "%s: %s files of model-parallel rank %d are missing: data-parallel ranks %s of %d",
                reader->place->title, what, mp, list.data, dp);
        else if (status == RS_OK && extra >= 0)
            status = rs_error_set(RS_ERR_MALFORMED,
                "%s: has the %s file of data-parallel rank %d, but the run had %d ranks: it may be "
                "left from another run",
                reader->place->title, what, extra, dp);
        rs_text_fini(&list);
        RS_TRY(status);
    }
    return RS_OK;
}

/* Whether the file stands for a model-parallel rank. */
static bool is_of_model_rank(const rs_ds_file *file)
{
    return file->kind == RS_DS_MODEL || (file->kind == RS_DS_MODEL_OF_RANK && file->dp == 0);
}

/* The number of model-parallel ranks, from the model files; all must be there. */
static rs_status count_ranks(const rs_ds_reader *reader, int *count)
{
    int most = -1;
    size_t files = 0;
    rs_text gaps = {0};
    for (size_t i = 0; i < reader->files.count; i++) {
        const rs_ds_file *file = &reader->files.items[i];
        if (!is_of_model_rank(file))
            continue;
        files++;
        most = file->mp > most ? file->mp : most;
    }
    if (files == 0)
        return rs_error_set(RS_ERR_MALFORMED,
            "%s: no file of model states (mp_rank_00_model_states.pt or "
            "zero_pp_rank_0_mp_rank_00_model_states.pt)",
            reader->place->title);
    *count = most + 1;
    if (files == (size_t)most + 1)
        return RS_OK;
    bool *have = rs_calloc((size_t)most + 1, sizeof *have);
    if (have == NULL)
        return rs_error_memory((size_t)most + 1);
    for (size_t i = 0; i < reader->files.count; i++) {
        const rs_ds_file *file = &reader->files.items[i];
        if (is_of_model_rank(file))
            have[file->mp] = true;
    }
    rs_text_append_gaps(&gaps, have, most + 1);
    free(have);
    rs_status status = gaps.status;
    if (status == RS_OK)
        status = rs_error_set(RS_ERR_MALFORMED,
            "%s: %zu files of model states for model-parallel ranks 0 to %d; missing: %s",
            reader->place->title, files, most, gaps.data != NULL ? gaps.data : "none");
    rs_text_fini(&gaps);
    return status;
}

static rs_status read_rules(rs_ds_reader *reader, const rs_torch *torch)
{
    const rs_value *info = rs_value_get(rs_torch_root(torch), "universal_checkpoint_info");
    if (info == NULL || info->kind == RS_VALUE_NONE)
        return RS_OK;
    rs_status status = rs_rules_add_info(&reader->rules, info);
    return status == RS_OK ? RS_OK : rs_files_context(torch->files, torch->file, status);
}

rs_status rs_ds_degrees(rs_ds_reader *reader)
{
    int mps = 0, layer_tp = 0;
    rs_torch torch = {0};
    RS_TRY(count_ranks(reader, &mps));
    for (size_t i = 0; i < reader->files.count; i++)
        if (reader->files.items[i].kind == RS_DS_LAYER && reader->files.items[i].mp >= layer_tp)
            layer_tp = reader->files.items[i].mp + 1;
    const rs_ds_file *first = rs_ds_find(reader, RS_DS_MODEL, -1, 0);
    if (first == NULL)
        first = rs_ds_find(reader, RS_DS_MODEL_OF_RANK, 0, 0);
    size_t checksums = reader->catalog->checksums.count;
    size_t warnings = reader->catalog->warnings.count;
    rs_status status = rs_ds_open(reader, first, &torch);
    reader->catalog->checksums.count = checksums; /* the file is read again, in its turn */
    reader->catalog->warnings.count = warnings;
    if (status == RS_OK) {
        const rs_value *dims =
            rs_value_get(rs_torch_root(&torch), "checkpoint_parallel_dimensions");
        int64_t tp = layer_tp > 0 ? layer_tp : mps, pp = mps / tp;
        if (dims != NULL && rs_value_integer(rs_value_get(dims, "tp_degree"), &tp))
            rs_value_integer(rs_value_get(dims, "pp_degree"), &pp);
        if (tp < 1 || pp < 1 || tp > mps || pp > mps || tp * pp != mps)
            status = rs_ds_malformed(&torch,
                "%d model-parallel ranks are no %" PRId64 " pipeline stages of %" PRId64
                " tensor-parallel ranks",
                mps, pp, tp);
        reader->tp = (int)tp;
        reader->pp = (int)pp;
        int64_t dp = 1;
        rs_value_integer(rs_value_get(rs_torch_root(&torch), "dp_world_size"), &dp);
        reader->dp = dp >= 1 && dp < INT32_MAX ? (int)dp : 1;
    }
    if (status == RS_OK)
        status = read_rules(reader, &torch);
    rs_torch_fini(&torch);
    RS_TRY(status);
    reader->models = rs_calloc((size_t)mps, sizeof *reader->models);
    return reader->models != NULL ? RS_OK : rs_error_memory((size_t)mps * sizeof *reader->models);
}
