/*
 * Weights that DeepSpeed keeps in files of their own: a pipeline's layers and native MoE's experts.
 *
 * A layer's file has the layer's names without a prefix. The optimizer knows them as `<L>.<name>`;
 * a layer that is tied to another it knows as `tied_modules.<key>.<name>`, which the file does not
 * say: such a tensor is the one under a key whose name and shape fit and that `<L>.<name>` is not.
 *
 * Specification: docs/formats/deepspeed.md.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "ckpt/deepspeed.h"
#include "ckpt/deepspeed_model.h"

static const rs_ds_param *find_param(const rs_ds_reader *reader, const char *name, int tp)
{
    for (int mp = tp; mp < reader->pp * reader->tp; mp += reader->tp)
        for (size_t g = 0; g < reader->models[mp].group_count; g++)
            for (size_t i = 0; i < reader->models[mp].groups[g].count; i++)
                if (strcmp(reader->models[mp].groups[g].items[i].name, name) == 0)
                    return &reader->models[mp].groups[g].items[i];
    return NULL;
}

/* True if `name` is tied_modules.<key>.<inner> with a key without dots. */
static bool is_tied(const char *name, const char *inner)
{
    static const char prefix[] = "tied_modules.";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    const char *dot = strchr(name + sizeof prefix - 1, '.');
    return dot != NULL && strcmp(dot + 1, inner) == 0;
}

/* The only tied name that fits. */
static rs_status find_tied(rs_ds_reader *reader, const rs_torch *torch, const char *inner, int tp,
    const rs_torch_tensor *t, const char **out)
{
    *out = NULL;
    for (int mp = tp; mp < reader->pp * reader->tp; mp += reader->tp)
        for (size_t g = 0; g < reader->models[mp].group_count; g++)
            for (size_t i = 0; i < reader->models[mp].groups[g].count; i++) {
                const rs_ds_param *param = &reader->models[mp].groups[g].items[i];
                if (!is_tied(param->name, inner) || param->ndim != t->ndim ||
                    memcmp(param->shape, t->shape, sizeof *t->shape * (size_t)t->ndim) != 0)
                    continue;
                if (*out != NULL && strcmp(*out, param->name) != 0)
                    return rs_ds_malformed(torch,
                        "\"%s\" could be \"%s\" or \"%s\", nothing says which", inner, *out,
                        param->name);
                *out = param->name;
            }
    return RS_OK;
}

static rs_status read_layer_tensor(
    rs_ds_reader *reader, const rs_torch *torch, const rs_ds_file *file, uint32_t i)
{
    const rs_value *root = rs_torch_root(torch);
    const char *inner = rs_value_string(root->as.dict->pairs[2 * (size_t)i]);
    const rs_value *value = root->as.dict->pairs[2 * (size_t)i + 1];
    rs_torch_tensor t;
    if (inner == NULL)
        return rs_ds_malformed(torch, "has a name that is no text");
    if (rs_torch_kind_of(value) != RS_TORCH_DENSE)
        return rs_catalog_warn(reader->catalog, "%s: \"%s\" is no dense tensor; it is not listed",
            rs_files_path(torch->files, torch->file), inner);
    RS_TRY(rs_torch_tensor_of(torch, value, &t));
    rs_text full = {0};
    const char *name = NULL, *tied = NULL;
    rs_text_append(&full, "%d.%s", file->layer, inner);
    rs_status status = full.status;
    if (status == RS_OK)
        status = rs_pool_text(&reader->pool, full.data, full.length, &name);
    rs_text_fini(&full);
    RS_TRY(status);
    if (find_param(reader, name, file->mp) == NULL)
        RS_TRY(find_tied(reader, torch, inner, file->mp, &t, &tied));
    RS_TRY(rs_ds_add_part(reader, file, tied != NULL ? tied : name, &t));
    /* Two files with one tied tensor are two copies of it; the layer numbers them. */
    return rs_ds_add_tensor(reader, torch, tied != NULL ? tied : name, "param", file->mp,
        tied != NULL ? file->layer : 0, value);
}

/* Every parameter that the optimizer knows must be in some layer's file. */
static rs_status check_layers(rs_ds_reader *reader)
{
    for (int mp = 0; mp < reader->pp * reader->tp; mp++)
        for (size_t g = 0; g < reader->models[mp].group_count; g++)
            for (size_t i = 0; i < reader->models[mp].groups[g].count; i++) {
                const char *name = reader->models[mp].groups[g].items[i].name;
                char key[600];
                snprintf(key, sizeof key, "param\n%.500s", name);
                if (rs_names_find(&reader->assembly.groups, key) < 0)
                    return rs_error_set(RS_ERR_MALFORMED,
                        "%s: the optimizer has \"%s\", but no layer file does: one is missing",
                        reader->place->title, name);
            }
    return RS_OK;
}

rs_status rs_ds_read_layers(rs_ds_reader *reader)
{
    size_t count;
    if (rs_ds_files(reader, RS_DS_LAYER, &count) == NULL)
        return RS_OK;
    for (size_t f = 0; f < reader->files.count; f++) {
        const rs_ds_file *file = &reader->files.items[f];
        rs_torch torch = {0};
        if (file->kind != RS_DS_LAYER)
            continue;
        rs_status status = rs_ds_open(reader, file, &torch);
        for (uint32_t i = 0; status == RS_OK && i < rs_torch_root(&torch)->count; i++)
            status = read_layer_tensor(reader, &torch, file, i);
        rs_torch_fini(&torch);
        RS_TRY(status);
    }
    return check_layers(reader);
}

static rs_status read_expert_tensor(rs_ds_reader *reader, const rs_torch *torch,
    const rs_ds_file *file, const char *name, const rs_value *value)
{
    rs_torch_tensor t;
    RS_TRY(rs_torch_tensor_of(torch, value, &t));
    RS_TRY(rs_ds_add_part(reader, file, name, &t));
    return rs_ds_add_tensor(reader, torch, name, "param", rs_ds_tp_of(reader, file->mp),
        rs_ds_stage_of(reader, file->mp), value);
}

rs_status rs_ds_read_experts(rs_ds_reader *reader)
{
    for (size_t f = 0; f < reader->files.count; f++) {
        const rs_ds_file *file = &reader->files.items[f];
        rs_torch torch = {0};
        if (file->kind != RS_DS_EXPERT)
            continue;
        rs_status status = rs_ds_open(reader, file, &torch);
        const rs_value *root = status == RS_OK ? rs_torch_root(&torch) : NULL;
        for (uint32_t i = 0; status == RS_OK && i < root->count; i++) {
            const char *name = rs_value_string(root->as.dict->pairs[2 * (size_t)i]);
            const rs_value *value = root->as.dict->pairs[2 * (size_t)i + 1];
            if (name == NULL)
                status = rs_ds_malformed(&torch, "has a name that is no text");
            else if (rs_torch_kind_of(value) == RS_TORCH_DENSE)
                status = read_expert_tensor(reader, &torch, file, name, value);
        }
        rs_torch_fini(&torch);
        RS_TRY(status);
    }
    return RS_OK;
}
