/* Logical tensors, and their bytes in row-major parts. */
#include "ckpt/logical.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

void rs_logical_fini(rs_logical_list *list)
{
    free(list->items);
    rs_pool_fini(&list->pool);
    memset(list, 0, sizeof *list);
}

const char *rs_logical_flat_hint(int found_ndim, const int64_t *found, int wanted_ndim,
    const int64_t *wanted, char text[RS_FLAT_HINT])
{
    bool turned = found_ndim != 1;
    int64_t part = turned ? wanted[0] : found[0];
    rs_box whole = turned ? rs_box_whole(found_ndim, found) : rs_box_whole(wanted_ndim, wanted);
    int64_t all = rs_box_is_empty(&whole) ? 0 : rs_box_volume(&whole);
    bool vector = (turned ? wanted_ndim : found_ndim) == 1 && part > 0;
    int64_t ranks = vector ? rs_ceil_div(all, part) : 0;
    text[0] = '\0';
    if (ranks > 1 && rs_ceil_div(all, ranks) == part)
        snprintf(text, RS_FLAT_HINT,
            "; %" PRId64 "/%" PRId64 " elements are %" PRId64
            ": one may be a rank's flat shard of the other, which nothing says",
            all, ranks, part);
    return text;
}

static bool is_taken(const rs_catalog_entry *entry, const char *role, bool aliases)
{
    return (aliases || entry->how != RS_ENTRY_ALIAS) &&
           (role == NULL || strcmp(entry->is.role, role) == 0);
}

/* What a native checkpoint says of its model, and with which layer a tensor begins. */
static rs_status set_facts(const rs_catalog *catalog, rs_space *space)
{
    json_t *facts = json_object_get(catalog->model, "facts"), *value;
    const char *key;
    json_object_foreach(facts, key, value) if (json_is_string(value))
        RS_TRY(rs_space_set_fact(space, key, json_string_value(value)));
    return RS_OK;
}

/* Adds a tensor, whose layers the catalogue may tell: with which they begin, or all of them. */
static rs_status add_tensor(
    const rs_catalog *catalog, rs_tensor *tensor, rs_space *space, int *number)
{
    const json_t *told =
        json_object_get(json_object_get(catalog->model, "first_layers"), tensor->name);
    size_t count = json_array_size(told);
    if (told == NULL || tensor->ndim == 0)
        return rs_space_add_tensor(space, tensor, number);
    tensor->axis[0] = RS_AXIS_LAYER;
    tensor->layer_first = json_integer_value(count > 0 ? json_array_get(told, 0) : told);
    if (count == 0)
        return rs_space_add_tensor(space, tensor, number);
    if ((int64_t)count != tensor->shape[0])
        return rs_error_set(RS_ERR_MALFORMED, "tensor %s has %lld layers, but %zu are listed",
            tensor->name, (long long)tensor->shape[0], count);
    int64_t *layers = rs_calloc(count, sizeof *layers);
    if (layers == NULL)
        return rs_error_memory(count * sizeof *layers);
    for (size_t i = 0; i < count; i++)
        layers[i] = json_integer_value(json_array_get(told, i));
    tensor->layers = layers;
    rs_status status = rs_space_add_tensor(space, tensor, number);
    free(layers);
    return status;
}

json_t *rs_logical_layers(const rs_tensor *tensor)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < tensor->shape[0]; i++)
        if (json_array_append_new(list, json_integer(rs_tensor_layer(tensor, i))) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

rs_status rs_logical_list_space(
    const rs_catalog *catalog, const rs_logical_list *list, rs_space **out)
{
    rs_space *space = NULL;
    rs_status status;
    RS_TRY(rs_space_create(&space));
    for (size_t i = 0; i < list->count; i++) {
        const rs_logical *item = &list->items[i];
        rs_role new = {.name = item->role,
            .dtype = item->dtype,
            .role_class = strcmp(item->role, "param") == 0 ? RS_ROLE_MODEL : RS_ROLE_OPTIMIZER};
        if (rs_space_find_role(space, item->role) < 0)
            RS_TRY_GOTO(rs_space_add_role(space, &new, NULL), fail);
    }
    for (size_t i = 0; i < list->count; i++) {
        const rs_logical *item = &list->items[i];
        int t = rs_space_find_tensor(space, item->name);
        if (t < 0) {
            rs_tensor tensor = {.name = item->name, .ndim = item->ndim};
            memcpy(tensor.shape, item->shape, sizeof tensor.shape);
            RS_TRY_GOTO(add_tensor(catalog, &tensor, space, &t), fail);
            for (int r = 0; r < rs_space_role_count(space); r++)
                RS_TRY_GOTO(rs_space_set_dtype(space, t, r, RS_DTYPE_NONE), fail);
        }
        const rs_tensor *known = rs_space_tensor(space, t);
        rs_box a = rs_box_whole(known->ndim, known->shape);
        rs_box b = rs_box_whole(item->ndim, item->shape);
        if (!rs_box_equal(&a, &b))
            RS_TRY_GOTO(rs_error_set(RS_ERR_UNSUPPORTED,
                            "\"%s\": its %s has another shape than its other roles", known->name,
                            item->role),
                fail);
        RS_TRY_GOTO(
            rs_space_set_dtype(space, t, rs_space_find_role(space, item->role), item->dtype), fail);
    }
    RS_TRY_GOTO(set_facts(catalog, space), fail);
    *out = space;
    return RS_OK;

fail:
    rs_space_destroy(space);
    return status;
}

static rs_status add(rs_logical_list *list, const char *name, const rs_catalog *catalog, int id,
    const rs_box *box, int ndim, const int64_t *shape)
{
    const rs_checkpoint_entry *entry = &rs_catalog_get(catalog, id)->is;
    RS_TRY(RS_LIST_RESERVE_ONE(list));
    rs_logical *item = &list->items[list->count];
    *item = (rs_logical){
        .role = entry->role, .dtype = entry->dtype, .ndim = ndim, .id = id, .box = *box};
    memcpy(item->shape, shape, sizeof *shape * (size_t)ndim);
    item->bytes =
        rs_box_is_empty(box) ? 0 : rs_box_volume(box) * (int64_t)rs_dtype_size(entry->dtype);
    RS_TRY(rs_pool_text(&list->pool, name, strlen(name), &item->name));
    list->count++;
    return RS_OK;
}

rs_status rs_logical_set_model(rs_catalog *catalog, const rs_space *space)
{
    json_t *facts = json_object(), *first = json_object();
    bool bad = facts == NULL || first == NULL;
    for (int i = 0; i < rs_space_fact_count(space) && !bad; i++) {
        const char *key = rs_space_fact_key(space, i);
        bad = json_object_set_new(facts, key, json_string(rs_space_fact(space, key))) != 0;
    }
    for (int i = 0; i < rs_space_tensor_count(space) && !bad; i++) {
        const rs_tensor *tensor = rs_space_tensor(space, i);
        if (tensor->layers != NULL)
            bad = json_object_set_new(first, tensor->name, rs_logical_layers(tensor)) != 0;
        else if (tensor->layer_first > 0)
            bad = json_object_set_new(first, tensor->name, json_integer(tensor->layer_first)) != 0;
    }
    json_decref(catalog->model);
    catalog->model = bad ? NULL : json_pack("{s:O,s:O}", "facts", facts, "first_layers", first);
    json_decref(facts);
    json_decref(first);
    return catalog->model != NULL ? RS_OK : rs_error_memory(1);
}

rs_status rs_logical_space(const rs_catalog *catalog, const char *role, rs_space **out)
{
    rs_logical_list list = {0};
    rs_status status = rs_logical_make(catalog, role, false, &list);
    if (status == RS_OK)
        status = rs_logical_list_space(catalog, &list, out);
    rs_logical_fini(&list);
    return status;
}

rs_status rs_logical_make(
    const rs_catalog *catalog, const char *role, bool aliases, rs_logical_list *out)
{
    for (size_t i = 0; i < catalog->entries.count; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(catalog, (int)i);
        rs_box whole = rs_box_whole(entry->is.ndim, entry->is.shape);
        if (is_taken(entry, role, aliases))
            RS_TRY(
                add(out, entry->is.name, catalog, (int)i, &whole, entry->is.ndim, entry->is.shape));
    }
    return RS_OK;
}

rs_status rs_logical_stream(const rs_catalog *catalog, const rs_logical *tensor, int64_t most,
    void *buffer, rs_logical_part function, void *context)
{
    int64_t size = (int64_t)rs_dtype_size(tensor->dtype);
    int64_t volume = rs_box_is_empty(&tensor->box) ? 0 : rs_box_volume(&tensor->box);
    int64_t step = rs_max64(most / size, 1);
    rs_scratch scratch = {0};
    rs_status status = RS_OK;
    for (int64_t at = 0; at < volume; at += step) {
        rs_box parts[2 * RS_MAX_DIMS];
        int count = rs_box_linear_range(&tensor->box, at, rs_min64(at + step, volume), parts);
        for (int i = 0; i < count; i++) {
            RS_TRY_GOTO(rs_catalog_read_as(
                            catalog, &scratch, tensor->id, -1, tensor->dtype, &parts[i], buffer),
                out);
            RS_TRY_GOTO(
                function(context, &parts[i], buffer, (size_t)(rs_box_volume(&parts[i]) * size)),
                out);
        }
    }
out:
    rs_scratch_fini(&scratch);
    return status;
}

rs_status rs_logical_read(const rs_catalog *catalog, const rs_logical *tensor, rs_scratch *scratch,
    int64_t begin, int64_t end, void *out)
{
    rs_box parts[2 * RS_MAX_DIMS];
    unsigned char *to = out;
    int count = rs_box_linear_range(&tensor->box, begin, end, parts);
    for (int i = 0; i < count; i++) {
        RS_TRY(rs_catalog_read_as(catalog, scratch, tensor->id, -1, tensor->dtype, &parts[i], to));
        to += (size_t)rs_box_volume(&parts[i]) * rs_dtype_size(tensor->dtype);
    }
    return RS_OK;
}
