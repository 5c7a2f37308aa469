/*
 * A checkpoint in one file of torch.save, and back.
 *
 * Weights alone are a state dict, as any tool expects it: model.load_state_dict(torch.load(FILE)).
 * The whole state is a dict of plain dicts that keeps names and roles apart:
 *
 *   reshard    {"version": 1, "buffers": [names in `model` that are buffers]}
 *   model      the state dict
 *   optimizer  {"state": {name: {role: tensor}}}
 *   others     {role: {name: tensor}}, what belongs to no parameter; absent if there is nothing
 *   extras     JSON as text
 *
 * A state dict has the first of these as an attribute, `_reshard`. Extras are text because PyTorch
 * 1.13 takes no fractions from pickles under weights_only, and so that they come back as they were.
 *
 * 1. The second name of a tied tensor shares the storage of the first, as torch has it.
 * 2. So does an entry that is another one under another role, to the bit.
 * 3. What is written is read back under the same names and roles.
 *
 * Specification: docs/formats/torch.md.
 */
#include "ckpt/torch_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/torch_read.h"

#define VERSION 1
#define ATTRIBUTE "_reshard"

/* ---- writing ---- */

typedef struct making {
    const rs_catalog *catalog;
    const rs_logical_list *tensors;
    rs_torch_make *make;
    int64_t *key;    /* of each tensor's storage; -1: not written yet */
    int *same;       /* the tensor with the same bytes in another role, -1 */
    int *next;       /* the next tensor of the same name, -1 */
    int *index;      /* catalog entry -> tensor that is the whole of it, -1 */
    rs_names models; /* name -> param or buffer */
} making;

static bool is_model(const rs_logical *t)
{
    return strcmp(t->role, "param") == 0 || strcmp(t->role, "buffer") == 0;
}

static int *numbers(size_t count)
{
    int *out = rs_calloc(count, sizeof *out);
    for (size_t i = 0; i < count && out != NULL; i++)
        out[i] = -1;
    return out;
}

/* Pairs a tensor with the one that it is rounded from, where nothing is rounded. */
static void find_same(making *m, size_t i)
{
    const rs_catalog_entry *entry = rs_catalog_get(m->catalog, m->tensors->items[i].id);
    int source = entry->how == RS_ENTRY_ROUNDED ? m->index[entry->source] : -1;
    if (source < 0 || m->index[m->tensors->items[i].id] != (int)i)
        return;
    rs_dtype dtype = m->tensors->items[i].dtype;
    if (dtype != entry->is.dtype || dtype != m->tensors->items[source].dtype ||
        dtype != rs_catalog_get(m->catalog, entry->source)->is.dtype)
        return;
    m->same[i] = source;
    m->same[source] = (int)i;
}

static rs_status prepare(making *m)
{
    size_t count = m->tensors->count;
    m->key = rs_calloc(count, sizeof *m->key);
    m->same = numbers(count);
    m->next = numbers(count);
    m->index = numbers(m->catalog->entries.count);
    if (m->key == NULL || m->same == NULL || m->next == NULL || m->index == NULL)
        return rs_error_memory(count * sizeof *m->key);
    for (size_t i = 0; i < count; i++) {
        const rs_logical *t = &m->tensors->items[i];
        int found;
        const rs_checkpoint_entry *entry = &rs_catalog_get(m->catalog, t->id)->is;
        m->key[i] = -1;
        if (strcmp(t->name, entry->name) == 0 && strcmp(t->role, entry->role) == 0)
            m->index[t->id] = (int)i;
        if (!is_model(t))
            continue;
        RS_TRY(rs_names_add(&m->models, t->name, (int)i, &found));
        if (found >= 0)
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "\"%s\" is a parameter and a buffer: a state dict has one tensor of a name",
                t->name);
    }
    for (size_t i = count; i-- > 0;) {
        const rs_logical *t = &m->tensors->items[i];
        int owner = is_model(t) ? -1 : rs_names_find(&m->models, t->name);
        if (owner >= 0) {
            m->next[i] = m->next[owner];
            m->next[owner] = (int)i;
        }
    }
    for (size_t i = 0; i < count; i++)
        find_same(m, i);
    return RS_OK;
}

static rs_status add_tensor(making *m, const char *name, int i)
{
    const rs_logical *t = &m->tensors->items[i];
    rs_status status;
    int64_t key = m->key[i] < 0 && m->same[i] >= 0 ? m->key[m->same[i]] : m->key[i];
    rs_pickle_text(&m->make->pickle, name);
    if (key >= 0)
        status = rs_pickle_tensor(&m->make->pickle, t->dtype, t->ndim, t->shape, key);
    else
        status = rs_torch_make_tensor(m->make, t->dtype, t->ndim, t->shape, i, &key);
    m->key[i] = key;
    return status == RS_OK ? RS_OK : rs_error_context(status, "%s of \"%s\"", t->role, t->name);
}

static void add_marker(making *m)
{
    rs_bytes *p = &m->make->pickle;
    rs_pickle_dict(p);
    rs_pickle_text(p, "version");
    rs_pickle_int(p, VERSION);
    rs_pickle_text(p, "buffers");
    rs_pickle_list(p);
    for (size_t i = 0; i < m->tensors->count; i++)
        if (strcmp(m->tensors->items[i].role, "buffer") == 0)
            rs_pickle_text(p, m->tensors->items[i].name);
    rs_pickle_list_end(p);
    rs_pickle_dict_end(p);
}

static rs_status add_model(making *m)
{
    rs_bytes *p = &m->make->pickle;
    rs_pickle_ordered(p);
    for (size_t i = 0; i < m->tensors->count; i++)
        if (is_model(&m->tensors->items[i]))
            RS_TRY(add_tensor(m, m->tensors->items[i].name, (int)i));
    for (size_t i = 0; i < m->catalog->entries.count; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(m->catalog, (int)i);
        int source = entry->how == RS_ENTRY_ALIAS ? m->index[entry->source] : -1;
        if (source >= 0 && is_model(&m->tensors->items[source]) &&
            rs_names_find(&m->models, entry->is.name) < 0)
            RS_TRY(add_tensor(m, entry->is.name, source));
    }
    rs_pickle_dict_end(p);
    return RS_OK;
}

static rs_status add_optimizer(making *m)
{
    rs_bytes *p = &m->make->pickle;
    rs_pickle_dict(p);
    rs_pickle_text(p, "state");
    rs_pickle_dict(p);
    for (size_t i = 0; i < m->tensors->count; i++) {
        const rs_logical *t = &m->tensors->items[i];
        if (!is_model(t) || m->next[i] < 0)
            continue;
        rs_pickle_text(p, t->name);
        rs_pickle_dict(p);
        for (int k = m->next[i]; k >= 0; k = m->next[k])
            RS_TRY(add_tensor(m, m->tensors->items[k].role, k));
        rs_pickle_dict_end(p);
    }
    rs_pickle_dict_end(p);
    rs_pickle_dict_end(p);
    return RS_OK;
}

/* What belongs to no parameter, role by role. */
static rs_status add_others(making *m)
{
    rs_bytes *p = &m->make->pickle;
    rs_names roles = {0};
    rs_status status = RS_OK;
    for (size_t i = 0; i < m->tensors->count; i++) {
        const rs_logical *t = &m->tensors->items[i];
        int found;
        if (is_model(t) || rs_names_find(&m->models, t->name) >= 0)
            continue;
        RS_TRY_GOTO(rs_names_add(&roles, t->role, 0, &found), out);
        if (found >= 0)
            continue;
        if (roles.count == 1) {
            rs_pickle_text(p, "others");
            rs_pickle_dict(p);
        }
        rs_pickle_text(p, t->role);
        rs_pickle_dict(p);
        for (size_t k = i; k < m->tensors->count; k++) {
            const rs_logical *other = &m->tensors->items[k];
            if (strcmp(other->role, t->role) == 0 && rs_names_find(&m->models, other->name) < 0)
                RS_TRY_GOTO(add_tensor(m, other->name, (int)k), out);
        }
        rs_pickle_dict_end(p);
    }
    if (roles.count > 0)
        rs_pickle_dict_end(p);
out:
    rs_names_fini(&roles);
    return status;
}

static rs_status add_whole(making *m, const json_t *extras)
{
    rs_bytes *p = &m->make->pickle;
    char *text = json_dumps(extras, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text == NULL)
        return rs_error_memory(1);
    rs_pickle_dict(p);
    rs_pickle_text(p, "reshard");
    add_marker(m);
    rs_pickle_text(p, "extras");
    rs_pickle_text(p, text);
    free(text);
    rs_pickle_text(p, "model");
    RS_TRY(add_model(m));
    rs_pickle_text(p, "optimizer");
    RS_TRY(add_optimizer(m));
    RS_TRY(add_others(m));
    rs_pickle_dict_end(p);
    return RS_OK;
}

static rs_status add_weights(making *m)
{
    rs_bytes *p = &m->make->pickle;
    RS_TRY(add_model(m));
    rs_pickle_dict(p); /* the state dict's attributes */
    rs_pickle_text(p, ATTRIBUTE);
    add_marker(m);
    rs_pickle_dict_end(p);
    rs_pickle_build(p);
    return RS_OK;
}

rs_status rs_torch_state_make(const rs_catalog *catalog, const rs_logical_list *tensors,
    const json_t *extras, bool whole, rs_torch_make *make)
{
    making m = {.catalog = catalog, .tensors = tensors, .make = make};
    rs_torch_make_begin(make);
    rs_status status = prepare(&m);
    if (status == RS_OK)
        status = whole ? add_whole(&m, extras) : add_weights(&m);
    if (status == RS_OK)
        status = rs_torch_make_end(make);
    rs_names_fini(&m.models);
    free(m.key);
    free(m.same);
    free(m.next);
    free(m.index);
    return status;
}

/* ---- reading ---- */

static const rs_value *attribute_of(const rs_value *root)
{
    const rs_value *state = rs_value_is(root, RS_VALUE_DICT) ? root->as.dict->state : NULL;
    return rs_value_get(state, ATTRIBUTE);
}

bool rs_torch_state_is(const rs_torch *torch)
{
    const rs_value *root = rs_torch_root(torch);
    const rs_value *marker = rs_value_get(root, "reshard");
    if (marker != NULL && rs_value_get(root, "model") == NULL)
        return false;
    if (marker == NULL)
        marker = attribute_of(root);
    return rs_value_is(rs_value_get(marker, "version"), RS_VALUE_INT) &&
           rs_value_is(rs_value_get(marker, "buffers"), RS_VALUE_LIST);
}

typedef struct reading {
    rs_catalog *catalog;
    const rs_torch *torch;
    rs_names buffers;
    rs_names storages; /* key -> the first entry that has it */
} reading;

static rs_status damaged(const reading *r, const char *what, const char *name)
{
    return rs_error_set(RS_ERR_MALFORMED, "%s: says that reshard wrote it, but %s%s%s%s",
        rs_files_path(r->torch->files, r->torch->file), what, name != NULL ? " \"" : "",
        name != NULL ? name : "", name != NULL ? "\"" : "");
}

/* Calls for each pair of a dict with text keys. */
typedef rs_status (*taker)(reading *r, const char *key, const rs_value *value, const char *context);

static rs_status each(
    reading *r, const rs_value *dict, const char *what, taker take, const char *context)
{
    if (!rs_value_is(dict, RS_VALUE_DICT))
        return damaged(r, "has no dict", what);
    for (uint32_t i = 0; i < dict->count; i++) {
        const char *key = rs_value_string(dict->as.dict->pairs[2 * (size_t)i]);
        if (key == NULL)
            return damaged(r, "a name is no text in", what);
        RS_TRY(take(r, key, dict->as.dict->pairs[2 * (size_t)i + 1], context));
    }
    return RS_OK;
}

/* True if the entry is the same tensor. */
static bool is_same(const reading *r, int id, const rs_torch_tensor *t)
{
    const rs_checkpoint_entry *entry = &rs_catalog_get(r->catalog, id)->is;
    return entry->dtype == t->dtype && entry->ndim == t->ndim && t->first == 0 &&
           memcmp(entry->shape, t->shape, sizeof *t->shape * (size_t)t->ndim) == 0 &&
           rs_torch_is_contiguous(t);
}

static rs_status enter(reading *r, const char *name, const char *role, const rs_value *value)
{
    rs_torch_tensor t;
    rs_piece piece;
    int id = (int)r->catalog->entries.count, found = -1;
    if (rs_torch_kind_of(value) != RS_TORCH_DENSE)
        return damaged(r, "no dense tensor is", name);
    RS_TRY(rs_torch_tensor_of(r->torch, value, &t));
    if (rs_torch_elements(&t) > 0)
        RS_TRY(rs_names_add(&r->storages, t.storage->key, id, &found));
    if (found >= 0) {
        const rs_checkpoint_entry *first = &rs_catalog_get(r->catalog, found)->is;
        if (!is_same(r, found, &t))
            return damaged(r, "a storage has tensors of two kinds, among them", name);
        if (strcmp(first->role, role) == 0)
            return rs_catalog_alias(r->catalog, name, found);
        if (strcmp(first->name, name) == 0)
            return rs_catalog_rounded(r->catalog, role, t.dtype, found);
    }
    RS_TRY(rs_catalog_add(r->catalog, name, role, t.dtype, t.ndim, t.shape, &id));
    rs_torch_piece(r->torch, &t, &piece);
    return rs_catalog_piece(r->catalog, id, &piece);
}

static rs_status take_model(
    reading *r, const char *name, const rs_value *value, const char *context)
{
    (void)context;
    return enter(r, name, rs_names_find(&r->buffers, name) >= 0 ? "buffer" : "param", value);
}

static rs_status take_role(reading *r, const char *role, const rs_value *value, const char *name)
{
    return enter(r, name, role, value);
}

static rs_status take_state(
    reading *r, const char *name, const rs_value *value, const char *context)
{
    (void)context;
    return each(r, value, name, take_role, name);
}

static rs_status take_name(reading *r, const char *name, const rs_value *value, const char *role)
{
    return enter(r, name, role, value);
}

static rs_status take_other(
    reading *r, const char *role, const rs_value *value, const char *context)
{
    (void)context;
    return each(r, value, role, take_name, role);
}

static rs_status read_extras(reading *r, const rs_value *value)
{
    json_error_t error;
    if (!rs_value_is(value, RS_VALUE_TEXT))
        return damaged(r, "has no text", "extras");
    json_t *extras = json_loadb(value->as.text, value->count, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(extras)) {
        json_decref(extras);
        return damaged(r, "what it has as extras is no JSON object", NULL);
    }
    json_decref(r->catalog->extras);
    r->catalog->extras = extras;
    return RS_OK;
}

static rs_status read_all(reading *r, const rs_value *marker)
{
    const rs_value *root = rs_torch_root(r->torch), *buffers = rs_value_get(marker, "buffers");
    int64_t version = rs_value_get(marker, "version")->as.integer;
    bool whole = marker == rs_value_get(root, "reshard");
    int found;
    if (version != VERSION)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "%s: written by another version of reshard: layout %lld, this one knows %d",
            rs_files_path(r->torch->files, r->torch->file), (long long)version, VERSION);
    for (uint32_t i = 0; i < buffers->count; i++) {
        if (rs_value_string(buffers->as.items[i]) == NULL)
            return damaged(r, "a name of a buffer is no text", NULL);
        RS_TRY(rs_names_add(&r->buffers, rs_value_string(buffers->as.items[i]), 0, &found));
    }
    RS_TRY(each(r, whole ? rs_value_get(root, "model") : root, "model", take_model, NULL));
    if (!whole)
        return RS_OK;
    RS_TRY(each(
        r, rs_value_get(rs_value_get(root, "optimizer"), "state"), "optimizer", take_state, NULL));
    if (rs_value_get(root, "others") != NULL)
        RS_TRY(each(r, rs_value_get(root, "others"), "others", take_other, NULL));
    return read_extras(r, rs_value_get(root, "extras"));
}

rs_status rs_torch_state_read(rs_catalog *catalog, rs_torch *torch)
{
    reading r = {.catalog = catalog, .torch = torch};
    const rs_value *marker = rs_value_get(rs_torch_root(torch), "reshard");
    rs_status status = read_all(&r, marker != NULL ? marker : attribute_of(rs_torch_root(torch)));
    rs_names_fini(&r.buffers);
    rs_names_fini(&r.storages);
    return status;
}
