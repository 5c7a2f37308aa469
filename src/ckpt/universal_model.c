/*
 * The model files of a universal checkpoint: what belongs to the run as a whole, the names and
 * shapes, and what the format's folders have no place for: weights, buffers, frozen parameters,
 * second names.
 *
 * DeepSpeed takes from them the client's state and its own counters, and under ZeRO-3 nothing else;
 * it loads `module` never. So weights are written where they can stand whole, with one
 * tensor-parallel rank and below ZeRO-3; otherwise an empty tensor of their dtype stands for them,
 * as in DeepSpeed's own ZeRO-3 files, and they are the masters rounded.
 *
 * Of several pipeline stages the first has all of it: which stage a name belongs to is not known,
 * and not asked for on loading.
 */
#include "ckpt/universal_write.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

/* Members of the extras that are written elsewhere, or are of the source alone. */
static const char *const elsewhere[] = {"tag", "writer", "step", "param_groups", "loss_scaler",
    "dynamic_loss_scale", "overflow", "clip_grad", "optimizer_state", "module", "optimizer",
    "universal_checkpoint_info", "checkpoint_parallel_dimensions", "dp_world_size",
    "mp_world_size"};

static bool is_elsewhere(const char *key)
{
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strcmp(elsewhere[i], key) == 0)
            return true;
    return false;
}

static void add_int(rs_bytes *p, const char *key, int64_t value)
{
    rs_pickle_text(p, key);
    rs_pickle_int(p, value);
}

static void add_none(rs_bytes *p, const char *key)
{
    rs_pickle_text(p, key);
    rs_pickle_none(p);
}

/* What DeepSpeed reads without asking whether it is there. */
static void add_needed(const rs_universal *u, rs_bytes *p)
{
    static const char *const schedules[] = {"lr_scheduler", "data_sampler", "random_ltd"};
    int64_t skipped = json_integer_value(json_object_get(u->extras, "skipped_steps"));
    add_none(p, "optimizer");
    for (size_t i = 0; i < sizeof schedules / sizeof *schedules; i++)
        if (json_object_get(u->extras, schedules[i]) == NULL)
            add_none(p, schedules[i]);
    if (json_object_get(u->extras, "sparse_tensor_module_names") == NULL) {
        json_t *none = json_pack("{s:[]}", "set");
        rs_pickle_text(p, "sparse_tensor_module_names");
        rs_pickle_json(p, none);
        json_decref(none);
    }
    if (json_object_get(u->extras, "skipped_steps") == NULL)
        add_int(p, "skipped_steps", 0);
    if (json_object_get(u->extras, "global_steps") == NULL)
        add_int(p, "global_steps", (u->step > 0 ? u->step : 0) + skipped);
    if (json_object_get(u->extras, "ds_version") == NULL) {
        rs_pickle_text(p, "ds_version");
        rs_pickle_text(p, rs_universal_writer(u));
    }
    add_int(p, "dp_world_size", u->dp);
    add_int(p, "mp_world_size", (int64_t)u->tp * u->pp);
    rs_pickle_text(p, "checkpoint_parallel_dimensions");
    rs_pickle_dict(p);
    add_int(p, "pp_degree", u->pp);
    add_int(p, "tp_degree", u->tp);
    rs_pickle_dict_end(p);
}

/* The arguments of the run (Megatron's, kept by the client) and DeepSpeed's configuration say the
 * layout that was; in their place comes the one that it is for. What a batch is stays: samples a
 * step, not steps of accumulation. A new reference. */
static json_t *for_layout(const rs_universal *u, const char *key, json_t *value)
{
    const struct {
        const char *key;
        int64_t value; /* -1: of a rank, or of the old world alone: it goes */
    } rows[] = {{"tensor_model_parallel_size", u->tp}, {"pipeline_model_parallel_size", u->pp},
        {"transformer_pipeline_model_parallel_size", u->pp}, {"model_parallel_size", u->tp},
        {"data_parallel_size", u->dp}, {"world_size", (int64_t)u->tp * u->pp * u->dp}, {"rank", -1},
        {"local_rank", -1}, {"data_parallel_rank", -1},
        {"virtual_pipeline_model_parallel_size", -1}, {"gradient_accumulation_steps", -1}};
    if (!u->moved || (strcmp(key, "args") != 0 && strcmp(key, "ds_config") != 0))
        return json_incref(value);
    json_t *copy = json_deep_copy(value);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (json_object_get(copy, rows[i].key) == NULL)
            continue;
        if (rows[i].value < 0)
            json_object_del(copy, rows[i].key);
        else
            json_object_set_new(copy, rows[i].key, json_integer((json_int_t)rows[i].value));
    }
    return copy;
}

static void add_client(const rs_universal *u, rs_bytes *p)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)u->extras, key, value)
    {
        if (is_elsewhere(key))
            continue;
        json_t *meant = for_layout(u, key, value);
        rs_pickle_text(p, key);
        rs_pickle_json(p, meant);
        json_decref(meant);
    }
}

/* One tensor of `module` or elsewhere, whole. */
static rs_status add_tensor(
    const rs_universal *u, rs_torch_make *make, const char *name, int i, int64_t *key)
{
    const rs_logical *t = &u->w->tensors.items[i];
    rs_pickle_text(&make->pickle, name);
    rs_status status = rs_torch_make_tensor(make, t->dtype, t->ndim, t->shape, i, key);
    return status == RS_OK ? RS_OK : rs_error_context(status, "%s of \"%s\"", t->role, t->name);
}

/* An empty tensor that says the dtype. */
static rs_status add_stand_in(const rs_universal *u, rs_torch_make *make, const char *name, int i)
{
    static const int64_t none[1] = {0};
    rs_pickle_text(&make->pickle, name);
    return rs_torch_make_tensor(make, u->w->tensors.items[i].dtype, 1, none, i, NULL);
}

/* The second names of what is in `module`, with the same storage; or as stand-ins. */
static rs_status add_aliases(rs_universal *u, rs_torch_make *make, const int64_t *keys)
{
    for (size_t i = 0; i < u->w->catalog->entries.count; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(u->w->catalog, (int)i);
        int source = entry->how == RS_ENTRY_ALIAS ? u->index[entry->source] : -1;
        if (source < 0 || keys[source] < -1)
            continue;
        const rs_logical *t = &u->w->tensors.items[source];
        if (keys[source] < 0) {
            RS_TRY(add_stand_in(u, make, entry->is.name, source));
            continue;
        }
        rs_pickle_text(&make->pickle, entry->is.name);
        RS_TRY(rs_pickle_tensor(&make->pickle, t->dtype, t->ndim, t->shape, keys[source]));
    }
    return RS_OK;
}

/* `keys` gets the storage of each tensor in it: -1 a stand-in, -2 not in it. */
static rs_status add_module(rs_universal *u, rs_torch_make *make, bool first, int64_t *keys)
{
    rs_bytes *p = &make->pickle;
    rs_pickle_text(p, "module");
    rs_pickle_ordered(p);
    for (size_t i = 0; i < u->w->tensors.count && first; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        bool param = strcmp(t->role, "param") == 0;
        bool master = rs_names_find(&u->masters, t->name) >= 0;
        if (!param && strcmp(t->role, "buffer") != 0)
            continue;
        keys[i] = -1;
        if (param && (master ? !rs_universal_has_weights(u) : u->stage == 3))
            RS_TRY(add_stand_in(u, make, t->name, (int)i));
        else
            RS_TRY(add_tensor(u, make, t->name, (int)i, &keys[i]));
    }
    if (first)
        RS_TRY(add_aliases(u, make, keys));
    rs_pickle_dict_end(p);
    return RS_OK;
}

static void add_names(rs_universal *u, rs_bytes *p, bool first)
{
    rs_pickle_text(p, "buffer_names");
    rs_pickle_list(p);
    for (size_t i = 0; i < u->w->tensors.count && first; i++)
        if (strcmp(u->w->tensors.items[i].role, "buffer") == 0)
            rs_pickle_text(p, u->w->tensors.items[i].name);
    rs_pickle_list_end(p);
    rs_pickle_text(p, "shared_params");
    rs_pickle_dict(p);
    for (size_t i = 0; i < u->w->catalog->entries.count && first; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(u->w->catalog, (int)i);
        if (entry->how != RS_ENTRY_ALIAS || u->index[entry->source] < 0)
            continue;
        rs_pickle_text(p, entry->is.name);
        rs_pickle_text(p, u->w->tensors.items[u->index[entry->source]].name);
    }
    rs_pickle_dict_end(p);
}

static bool is_frozen(const rs_universal *u, const rs_logical *t)
{
    return strcmp(t->role, "param") == 0 && rs_names_find(&u->masters, t->name) < 0;
}

/* param_shapes of what the optimizer has, group by group, and of the rest frozen_param_shapes. */
static void add_shapes(rs_universal *u, rs_bytes *p, bool first)
{
    size_t groups = u->grouped ? json_array_size(u->groups) : 1;
    rs_pickle_text(p, "param_shapes");
    rs_pickle_list(p);
    for (size_t g = 0; g < groups; g++) {
        rs_pickle_ordered(p);
        for (size_t i = 0; i < u->w->tensors.count && first; i++) {
            const rs_logical *t = &u->w->tensors.items[i];
            if (strcmp(t->role, "master") != 0 ||
                (u->grouped && rs_names_find(&u->members, t->name) != (int)g))
                continue;
            rs_pickle_text(p, t->name);
            rs_pickle_size(p, t->ndim, t->shape);
        }
        rs_pickle_dict_end(p);
    }
    rs_pickle_list_end(p);
    rs_pickle_text(p, "frozen_param_shapes");
    rs_pickle_ordered(p);
    for (size_t i = 0; i < u->w->tensors.count && first; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        if (!is_frozen(u, t))
            continue;
        rs_pickle_text(p, t->name);
        rs_pickle_size(p, t->ndim, t->shape);
    }
    rs_pickle_dict_end(p);
}

/* The frozen parameters: those of `module` again, or under ZeRO-3, with its one rank, flat. */
static rs_status add_frozen(rs_universal *u, rs_torch_make *make, bool first, const int64_t *keys)
{
    rs_bytes *p = &make->pickle;
    rs_pickle_text(p, "frozen_param_fragments");
    rs_pickle_ordered(p);
    for (size_t i = 0; i < u->w->tensors.count && first; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        if (!is_frozen(u, t))
            continue;
        rs_pickle_text(p, t->name);
        if (keys[i] >= 0) {
            RS_TRY(rs_pickle_tensor(p, t->dtype, t->ndim, t->shape, keys[i]));
            continue;
        }
        int64_t flat[1] = {t->bytes / (int64_t)rs_dtype_size(t->dtype)};
        RS_TRY(rs_torch_make_tensor(make, t->dtype, 1, flat, (int)i, NULL));
    }
    rs_pickle_dict_end(p);
    return RS_OK;
}

/* The client's own tensors, under their paths. */
static rs_status add_others(rs_universal *u, rs_torch_make *make)
{
    for (size_t i = 0; i < u->w->tensors.count; i++)
        if (strcmp(u->w->tensors.items[i].role, "extra") == 0)
            RS_TRY(add_tensor(u, make, u->w->tensors.items[i].name, (int)i, NULL));
    return RS_OK;
}

static rs_status add_all(rs_universal *u, int mp, rs_torch_make *make, int64_t *keys)
{
    rs_bytes *p = &make->pickle;
    bool first = mp / u->tp == 0; /* pipeline stage */
    rs_pickle_dict(p);
    RS_TRY(add_module(u, make, first, keys));
    add_names(u, p, first);
    add_shapes(u, p, first);
    RS_TRY(add_frozen(u, make, first, keys));
    add_needed(u, p);
    rs_pickle_text(p, "universal_checkpoint_info");
    RS_TRY(rs_universal_info(u, p));
    add_client(u, p);
    if (mp == 0)
        RS_TRY(add_others(u, make));
    rs_pickle_dict_end(p);
    return p->status;
}

rs_status rs_universal_model(rs_universal *u, int mp, rs_torch_make *make)
{
    size_t count = u->w->tensors.count;
    int64_t *keys = rs_calloc(count, sizeof *keys);
    if (keys == NULL)
        return rs_error_memory(count * sizeof *keys);
    for (size_t i = 0; i < count; i++)
        keys[i] = -2;
    rs_torch_make_begin(make);
    rs_status status = add_all(u, mp, make, keys);
    if (status == RS_OK)
        status = rs_torch_make_end(make);
    free(keys);
    return status;
}
