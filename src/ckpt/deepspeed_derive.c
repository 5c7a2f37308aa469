/*
 * What follows from the entries that DeepSpeed's files have: weights that are their masters
 * rounded, masters that are fp32 weights, tied names, the common numbers.
 *
 * Derived entries are marked as such; nothing is stored for them.
 */
#include "ckpt/deepspeed_derive.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ckpt/value_json.h"

/* The dtype of the weights, where no tensor tells it: what the run was configured for. */
static rs_dtype config_dtype(const rs_ds_reader *reader)
{
    static const struct {
        const char *section;
        rs_dtype dtype;
    } rows[] = {{"bf16", RS_DTYPE_BF16}, {"bfloat16", RS_DTYPE_BF16}, {"fp16", RS_DTYPE_F16}};
    const json_t *config = json_object_get(reader->catalog->extras, "ds_config");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (json_is_true(json_object_get(json_object_get(config, rows[i].section), "enabled")))
            return rows[i].dtype;
    return json_is_object(config) ? RS_DTYPE_F32 : RS_DTYPE_NONE;
}

/* Params that no file holds: their masters, rounded to the dtype of the empty tensors that stand
 * for them. And masters of fp32 runs without ZeRO: the params themselves. */
static rs_status derive_entries(rs_ds_reader *reader)
{
    size_t count = reader->catalog->entries.count, unknown = 0;
    for (size_t i = 0; i < count; i++) {
        rs_checkpoint_entry entry = rs_catalog_get(reader->catalog, (int)i)->is;
        if (strcmp(entry.role, "master") != 0 ||
            rs_catalog_find(reader->catalog, entry.name, "param") >= 0)
            continue;
        int dtype = (int)config_dtype(reader);
        for (int mp = 0; reader->models != NULL && mp < reader->pp * reader->tp; mp++) {
            int found = rs_names_find(&reader->models[mp].dtypes, entry.name);
            if (found >= 0) {
                dtype = found;
                break;
            }
        }
        if (dtype == RS_DTYPE_NONE)
            unknown++;
        else
            RS_TRY(rs_catalog_rounded(reader->catalog, "param", (rs_dtype)dtype, (int)i));
    }
    if (unknown > 0)
        return rs_catalog_warn(reader->catalog,
            "%zu parameters are held as masters only, and no file says the dtype of their weights: "
            "those are not listed",
            unknown);
    return RS_OK;
}

/* Where a master is the mean of copies and the weight is that of one replica alone, the weight is
 * the mean rounded. */
static void derive_from_means(rs_ds_reader *reader)
{
    for (size_t i = 0; i < reader->catalog->entries.count; i++) {
        const rs_catalog_entry *master = rs_catalog_get(reader->catalog, (int)i);
        if (master->how != RS_ENTRY_AVERAGE || strcmp(master->is.role, "master") != 0)
            continue;
        int id = rs_catalog_find(reader->catalog, master->is.name, "param");
        rs_catalog_entry *param = id >= 0 ? rs_catalog_get(reader->catalog, id) : NULL;
        if (param == NULL || param->how == RS_ENTRY_AVERAGE)
            continue;
        param->how = RS_ENTRY_ROUNDED;
        param->source = (int)i;
        param->is.stored = false;
        param->is.derived_from = master->is.role;
        param->is.copies = 0;
    }
}

static rs_status derive_masters(rs_ds_reader *reader)
{
    size_t count = reader->catalog->entries.count;
    for (size_t i = 0; i < count; i++) {
        rs_checkpoint_entry entry = rs_catalog_get(reader->catalog, (int)i)->is;
        if (strcmp(entry.role, "exp_avg") != 0 && strcmp(entry.role, "momentum_buffer") != 0)
            continue;
        int param = rs_catalog_find(reader->catalog, entry.name, "param");
        if (param >= 0 && rs_catalog_find(reader->catalog, entry.name, "master") < 0 &&
            rs_catalog_get(reader->catalog, param)->is.dtype == RS_DTYPE_F32)
            RS_TRY(rs_catalog_rounded(reader->catalog, "master", RS_DTYPE_F32, param));
    }
    return RS_OK;
}

static rs_status add_aliases(rs_ds_reader *reader)
{
    for (size_t i = 0; i < reader->shared.count; i += 2) {
        const char *alias = reader->shared.items[i], *name = reader->shared.items[i + 1];
        int source = rs_catalog_find(reader->catalog, name, "param");
        if (source < 0)
            source = rs_catalog_find(reader->catalog, name, "buffer");
        if (source < 0)
            RS_TRY(rs_catalog_warn(reader->catalog,
                "\"%s\" is said to be \"%s\" under another name, which is in no file", alias,
                name));
        else if (rs_catalog_find(
                     reader->catalog, alias, rs_catalog_get(reader->catalog, source)->is.role) < 0)
            RS_TRY(rs_catalog_alias(reader->catalog, alias, source));
    }
    return RS_OK;
}

/* Names that the user's rules tie: each has bytes of its own, which are to be those of the other.
 */
static rs_status tie_entries(rs_ds_reader *reader)
{
    for (size_t i = 0; i < reader->catalog->entries.count; i++) {
        rs_checkpoint_entry *entry = &rs_catalog_get(reader->catalog, (int)i)->is;
        const char *target;
        RS_TRY(rs_rules_tie(&reader->rules, entry->name, &target));
        if (target == NULL || entry->alias_of != NULL || strcmp(target, entry->name) == 0)
            continue;
        int other = rs_catalog_find(reader->catalog, target, entry->role);
        if (other >= 0)
            entry->alias_of = rs_catalog_get(reader->catalog, other)->is.name;
        else if (strcmp(entry->role, "param") == 0)
            RS_TRY(rs_catalog_warn(reader->catalog,
                "the rules tie \"%s\" to \"%s\", which is in no file", entry->name, target));
    }
    return RS_OK;
}

/* E10: parameters and no state of an optimizer that has run. */
static rs_status check_state(rs_ds_reader *reader)
{
    size_t params = 0, states = 0;
    for (size_t i = 0; i < reader->catalog->entries.count; i++) {
        const char *role = rs_catalog_get(reader->catalog, (int)i)->is.role;
        params += strcmp(role, "param") == 0;
        states += strcmp(role, "param") != 0 && strcmp(role, "master") != 0 &&
                  strcmp(role, "buffer") != 0 && strcmp(role, "extra") != 0;
    }
    if (params > 0 && states == 0)
        return rs_catalog_warn(
            reader->catalog, "no optimizer state for %zu of %zu parameters", params, params);
    return RS_OK;
}

/* Told, because who goes on with other ranks has to know that they have no owner there. */
static rs_status tell_of_ranks(rs_ds_reader *reader)
{
    json_t *all = json_object_get(reader->catalog->extras, RS_DS_OF_RANKS);
    void *first = json_object_iter(all);
    if (first == NULL)
        return RS_OK;
    void *key = json_object_iter(json_object_iter_value(first));
    return rs_catalog_warn(reader->catalog,
        "%zu rank%s beside the first ha%s values of %s own, which are kept as \"%s\" of the extras "
        "and mean nothing to other ranks: \"%s\" of %s",
        json_object_size(all), json_object_size(all) == 1 ? "" : "s",
        json_object_size(all) == 1 ? "s" : "ve", json_object_size(all) == 1 ? "its" : "their",
        RS_DS_OF_RANKS, json_object_iter_key(key), json_object_iter_key(first));
}

static rs_status finish_extras(rs_ds_reader *reader)
{
    double step = reader->step;
    if (step < 0 && reader->global_steps >= 0)
        step = (double)(reader->global_steps -
                        (reader->skipped_steps > 0 ? reader->skipped_steps : 0));
    if (step >= 0)
        RS_TRY(rs_catalog_extra(reader->catalog, "step",
            step == (double)(int64_t)step ? json_integer((json_int_t)step) : json_real(step)));
    if (reader->step_differs)
        RS_TRY(
            rs_catalog_warn(reader->catalog, "the optimizer's step is not the same in all groups"));
    RS_TRY(
        rs_catalog_extra(reader->catalog, "tag", json_string(rs_path_base(reader->place->path))));
    if (json_array_size(reader->groups) > 0)
        RS_TRY(rs_catalog_extra(reader->catalog, "param_groups", json_incref(reader->groups)));
    RS_TRY(rs_ds_name_groups(reader));
    if (reader->bf16_optimizer)
        RS_TRY(rs_catalog_extra(reader->catalog, "optimizer", json_string("BF16_Optimizer")));
    RS_TRY(tell_of_ranks(reader));
    if (reader->left <= 0)
        RS_TRY(rs_catalog_warn(reader->catalog,
            "more than %d values beside the tensors; the extras are cut", RS_VALUE_JSON_MOST));
    return RS_OK;
}

rs_status rs_ds_derive(rs_ds_reader *reader)
{
    RS_TRY(derive_entries(reader));
    derive_from_means(reader);
    RS_TRY(derive_masters(reader));
    RS_TRY(add_aliases(reader));
    RS_TRY(tie_entries(reader));
    RS_TRY(check_state(reader));
    return finish_extras(reader);
}

rs_status rs_ds_reader_init(rs_ds_reader *reader, rs_catalog *catalog, const rs_place *place)
{
    *reader = (rs_ds_reader){.catalog = catalog,
        .place = place,
        .tp = 1,
        .pp = 1,
        .dp = 1,
        .stage = -1,
        .step = -1,
        .global_steps = -1,
        .skipped_steps = -1,
        .left = RS_VALUE_JSON_MOST,
        .weights = true,
        .groups = json_array(),
        .steps = json_object()};
    return reader->groups != NULL && reader->steps != NULL ? RS_OK : rs_error_memory(64);
}

void rs_ds_reader_fini(rs_ds_reader *reader)
{
    for (int mp = 0; reader->models != NULL && mp < reader->pp * reader->tp; mp++) {
        rs_names_fini(&reader->models[mp].dtypes);
        free(reader->models[mp].weights.items);
    }
    free(reader->models);
    free(reader->shapes.items);
    rs_names_fini(&reader->shape_names);
    free(reader->files.items);
    free(reader->shared.items);
    free(reader->parts.items);
    free(reader->members.items);
    rs_names_fini(&reader->member_names);
    json_decref(reader->groups);
    json_decref(reader->steps);
    rs_assembly_fini(&reader->assembly);
    rs_rules_fini(&reader->rules);
    rs_pool_fini(&reader->pool);
}
