/*
 * The format "torch": a file of torch.save that is no known framework's, as it is.
 *
 * Every tensor in the object becomes an entry. Its name is the path of keys that leads to it,
 * joined by dots: text keys as they are, other keys as Python writes them, list positions as
 * numbers, attributes by name; a tensor that is the whole object is "". Where two names come out
 * equal, both are written with brackets, ['a.b'] against ['a']['b'].
 *
 * Roles: in a torch optimizer's state (a dict with `state` and `param_groups`) the key under the
 * parameter's number; a byte vector under a key with "rng" in it is "rng"; all else is "param".
 * A second name of the same elements is an alias. A sparse tensor is entered by its parts.
 *
 * Invariants:
 * 1. The walk is bounded: objects without tensors are not entered, an object that contains itself
 * is left at its second sight, nesting ends at WALK_DEPTH, and tensors that are reached again and
 *    again through shared containers are counted.
 * 2. Everything that is no tensor is in the extras.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/format.h"
#include "ckpt/torch.h"
#include "ckpt/torch_read.h"
#include "ckpt/torch_state.h"
#include "ckpt/value_json.h"

#define WALK_DEPTH RS_PICKLE_NESTING
#define REPEATS_MOST 100000

/* Marks of values during the walk. */
enum { UNSEEN = 0, OPEN, BARREN, FRUITFUL, WALKING, ENTERED /* tensors */ };

typedef struct step {
    const rs_value *key; /* NULL: an attribute or a position */
    const char *attribute;
    int64_t position;
    bool optimizer; /* the container is a torch optimizer's state dict */
} step;

typedef struct walk {
    rs_catalog *catalog;
    rs_torch *torch;
    step path[WALK_DEPTH];
    int depth;
    const char *role;  /* of all tensors; NULL: by where they stand */
    bool counting;     /* first walk: find equal names; second: make entries */
    rs_names met;      /* dotted names */
    rs_names clashing; /* those that were met twice */
    rs_names tensors;  /* first entry by storage and shape */
    rs_pool pool;
    int64_t repeats;
    bool found; /* of the marking */
    bool cycle;
} walk;

static void append_dotted(const walk *w, rs_text *text)
{
    for (int i = 0; i < w->depth; i++) {
        const step *s = &w->path[i];
        rs_text_append(text, "%s", i > 0 ? "." : "");
        if (s->attribute != NULL)
            rs_text_append(text, "%s", s->attribute);
        else if (s->key == NULL)
            rs_text_append(text, "%" PRId64, s->position);
        else if (s->key->kind == RS_VALUE_TEXT)
            rs_text_append(text, "%s", s->key->as.text);
        else
            rs_value_append_repr(text, s->key);
    }
}

static void append_bracketed(const walk *w, rs_text *text)
{
    for (int i = 0; i < w->depth; i++) {
        const step *s = &w->path[i];
        if (s->attribute != NULL) {
            rs_text_append(text, ".%s", s->attribute);
            continue;
        }
        rs_text_append(text, "[");
        if (s->key == NULL)
            rs_text_append(text, "%" PRId64, s->position);
        else
            rs_value_append_repr(text, s->key);
        rs_text_append(text, "]");
    }
}

static bool names_rng(const walk *w)
{
    for (int i = 0; i < w->depth; i++) {
        const char *key = w->path[i].key != NULL ? rs_value_string(w->path[i].key) : NULL;
        for (const char *p = key; p != NULL && *p != 0; p++)
            if (strncasecmp(p, "rng", 3) == 0)
                return true;
    }
    return false;
}

/* The role of the tensor at the end of the path. */
static const char *role_of(const walk *w, const rs_torch_tensor *t)
{
    if (w->role != NULL)
        return w->role;
    if (w->depth >= 3) {
        const step *last = &w->path[w->depth - 1];
        const step *state = &w->path[w->depth - 3];
        const char *key = last->key != NULL ? rs_value_string(last->key) : NULL;
        const char *of = state->key != NULL ? rs_value_string(state->key) : NULL;
        if (state->optimizer && key != NULL && of != NULL && strcmp(of, "state") == 0)
            return key;
    }
    if (t->dtype == RS_DTYPE_U8 && t->ndim == 1 && names_rng(w))
        return "rng";
    return "param";
}

void rs_torch_piece(const rs_torch *torch, const rs_torch_tensor *t, rs_piece *piece)
{
    int64_t size = (int64_t)rs_dtype_size(t->dtype);
    *piece = (rs_piece){.box = rs_box_whole(t->ndim, t->shape),
        .file = t->storage->file,
        .offset = t->storage->offset + t->first * size};
    for (int d = 0; d < t->ndim; d++)
        piece->stride[d] = t->shape[d] > 1 ? t->stride[d] * size : 0;
    piece->flags = (torch->big_endian ? RS_PIECE_SWAPPED : 0u) |
                   (t->conjugated ? RS_PIECE_CONJUGATED : 0u) |
                   (t->negated ? RS_PIECE_NEGATED : 0u);
}

/* The entry that has the same elements, or -1; remembers this one as the first otherwise. */
static rs_status find_twin(walk *w, const rs_torch_tensor *t, int id, int *twin)
{
    rs_text text = {0};
    rs_text_append(&text, "%s %" PRId64 " %d %d%d", t->storage->key, t->first, (int)t->dtype,
        t->conjugated, t->negated);
    for (int d = 0; d < t->ndim; d++)
        rs_text_append(&text, " %" PRId64 ":%" PRId64, t->shape[d], t->stride[d]);
    const char *key;
    rs_status status = text.status;
    if (status == RS_OK)
        status = rs_pool_text(&w->pool, text.data, text.length, &key);
    if (status == RS_OK)
        status = rs_names_add(&w->tensors, key, id, twin);
    rs_text_fini(&text);
    return status;
}

static rs_status enter_tensor(walk *w, const char *name, const rs_value *value, const char *suffix)
{
    rs_torch_tensor t;
    rs_piece piece;
    RS_TRY(rs_torch_tensor_of(w->torch, value, &t));
    rs_torch_piece(w->torch, &t, &piece);
    rs_text full = {0};
    rs_text_append(&full, "%s%s%s", name, suffix[0] != 0 && name[0] != 0 ? "." : "", suffix);
    rs_status status = full.status;
    int id = -1, twin = -1;
    if (status == RS_OK && rs_torch_elements(&t) > 0)
        status = find_twin(w, &t, (int)w->catalog->entries.count, &twin);
    const char *role = role_of(w, &t);
    if (status != RS_OK)
        goto out;
    if (twin >= 0 && strcmp(rs_catalog_get(w->catalog, twin)->is.role, role) == 0) {
        status = rs_catalog_alias(w->catalog, full.data, twin);
        goto out;
    }
    RS_TRY_GOTO(rs_catalog_add(w->catalog, full.data, role, t.dtype, t.ndim, t.shape, &id), out);
    RS_TRY_GOTO(rs_catalog_piece(w->catalog, id, &piece), out);
    if (t.quantized)
        RS_TRY_GOTO(rs_catalog_warn(w->catalog,
                        "\"%s\" is quantized: its integers are shown; scale and zero point are "
                        "not read",
                        full.data),
            out);
out:
    rs_text_fini(&full);
    return status;
}

static rs_status enter_sparse(walk *w, const char *name, const rs_value *value)
{
    const char *names[4];
    const rs_value *parts[4];
    int count = rs_torch_sparse_parts(value, names, parts);
    for (int i = 0; i < count; i++)
        RS_TRY(enter_tensor(w, name, parts[i], names[i]));
    return rs_catalog_warn(w->catalog, "\"%s\" is sparse: it is listed by its parts", name);
}

/* A tensor at the end of the path. */
static rs_status enter(walk *w, rs_value *value)
{
    if (w->counting && value->mark == ENTERED && ++w->repeats > REPEATS_MOST)
        return rs_error_set(RS_ERR_BUDGET,
            "%s: its tensors have more than %d further names, through shared containers",
            rs_files_path(w->torch->files, w->torch->file), REPEATS_MOST);
    value->mark = ENTERED;
    rs_text name = {0};
    append_dotted(w, &name);
    rs_text_append(&name, "%s", "");
    rs_status status = name.status;
    int found = -1;
    if (status != RS_OK)
        goto out;
    if (w->counting) {
        const char *copy;
        RS_TRY_GOTO(rs_pool_text(&w->pool, name.data, name.length, &copy), out);
        RS_TRY_GOTO(rs_names_add(&w->met, copy, 0, &found), out);
        if (found >= 0)
            RS_TRY_GOTO(rs_names_add(&w->clashing, copy, 0, &found), out);
        goto out;
    }
    if (rs_names_find(&w->clashing, name.data) >= 0) {
        rs_text_fini(&name);
        append_bracketed(w, &name);
        RS_TRY_GOTO(name.status, out);
    }
    rs_torch_kind kind = rs_torch_kind_of(value);
    if (kind == RS_TORCH_DENSE)
        status = enter_tensor(w, name.data, value, "");
    else if (kind == RS_TORCH_SPARSE)
        status = enter_sparse(w, name.data, value);
    else
        status = rs_catalog_warn(w->catalog, "\"%s\" is a tensor %s: it is not listed", name.data,
            kind == RS_TORCH_EMPTY ? "without data" : "of a kind that is not read");
out:
    rs_text_fini(&name);
    return status;
}

/* What an object contains, as (step, value) pairs. */
typedef rs_status (*visitor)(walk *w, rs_value *value);

static rs_status visit(walk *w, step s, rs_value *value, visitor function)
{
    if (value == NULL)
        return RS_OK;
    if (w->depth == WALK_DEPTH)
        return rs_error_set(RS_ERR_BUDGET, "%s: objects nest more than %d deep",
            rs_files_path(w->torch->files, w->torch->file), WALK_DEPTH);
    w->path[w->depth++] = s;
    RS_TRY(function(w, value));
    w->depth--;
    return RS_OK;
}

static rs_status visit_pairs(walk *w, const rs_value *dict, bool attributes, visitor function)
{
    bool optimizer = rs_value_is(rs_value_get(dict, "state"), RS_VALUE_DICT) &&
                     rs_value_is(rs_value_get(dict, "param_groups"), RS_VALUE_LIST);
    for (uint32_t i = 0; i < dict->count; i++) {
        const rs_value *key = dict->as.dict->pairs[2 * (size_t)i];
        step s = {.key = key, .optimizer = optimizer};
        if (attributes && rs_value_string(key) != NULL)
            s.attribute = rs_value_string(key);
        RS_TRY(visit(w, s, dict->as.dict->pairs[2 * (size_t)i + 1], function));
    }
    return RS_OK;
}

static rs_status visit_items(walk *w, const rs_value *list, visitor function)
{
    for (uint32_t i = 0; i < list->count; i++)
        RS_TRY(visit(w, (step){.position = i}, list->as.items[i], function));
    return RS_OK;
}

static rs_status visit_state(walk *w, rs_value *state, visitor function)
{
    if (rs_value_is(state, RS_VALUE_DICT))
        return visit_pairs(w, state, true, function);
    if (rs_value_is(state, RS_VALUE_TUPLE) && state->count == 2)
        for (int i = 0; i < 2; i++)
            if (rs_value_is(state->as.items[i], RS_VALUE_DICT))
                RS_TRY(visit_pairs(w, state->as.items[i], true, function));
    return RS_OK;
}

static rs_status visit_inside(walk *w, rs_value *value, visitor function)
{
    switch ((rs_value_kind)value->kind) {
    case RS_VALUE_LIST:
    case RS_VALUE_TUPLE:
    case RS_VALUE_SET:
        return visit_items(w, value, function);
    case RS_VALUE_DICT:
        RS_TRY(visit_pairs(w, value, false, function));
        return visit_state(w, value->as.dict->state, function);
    case RS_VALUE_CALL:
        RS_TRY(visit_state(w, value->as.call->state, function));
        if (value->as.call->pairs != NULL)
            RS_TRY(visit_pairs(w, value->as.call->pairs, false, function));
        if (value->as.call->items != NULL)
            RS_TRY(visit_items(w, value->as.call->items, function));
        return value->as.call->args != NULL ? visit_items(w, value->as.call->args, function)
                                            : RS_OK;
    default:
        return RS_OK;
    }
}

/* Marks what has tensors inside, from the leaves up. Within a cycle an object may count as barren:
 * its tensors are found from the object where the cycle was entered. */
static rs_status look(walk *w, rs_value *value)
{
    if (value->mark == UNSEEN && rs_torch_kind_of(value) != RS_TORCH_NO_TENSOR)
        value->mark = FRUITFUL;
    if (value->mark != UNSEEN) {
        w->found = w->found || value->mark == FRUITFUL;
        w->cycle = w->cycle || value->mark == OPEN;
        return RS_OK;
    }
    bool before = w->found;
    value->mark = OPEN;
    w->found = false;
    RS_TRY(visit_inside(w, value, look));
    value->mark = w->found ? FRUITFUL : BARREN;
    w->found = w->found || before;
    return RS_OK;
}

/* Enters the tensors in `value`. */
static rs_status find(walk *w, rs_value *value)
{
    if (rs_torch_kind_of(value) != RS_TORCH_NO_TENSOR)
        return enter(w, value);
    if (value->mark != FRUITFUL)
        return RS_OK;
    value->mark = WALKING;
    RS_TRY(visit_inside(w, value, find));
    value->mark = FRUITFUL;
    return RS_OK;
}

static rs_status walk_object(walk *w, rs_value *root)
{
    RS_TRY(look(w, root));
    w->counting = true;
    RS_TRY(find(w, root));
    w->counting = false;
    RS_TRY(find(w, root));
    if (w->cycle)
        RS_TRY(rs_catalog_warn(w->catalog, "%s: an object contains itself; it is listed once",
            rs_files_path(w->torch->files, w->torch->file)));
    return RS_OK;
}

static rs_status walk_from(rs_catalog *catalog, rs_torch *torch, const step *steps, int depth,
    rs_value *value, const char *role)
{
    walk *w = rs_calloc(1, sizeof *w);
    if (w == NULL)
        return rs_error_memory(sizeof *w);
    w->catalog = catalog;
    w->torch = torch;
    w->role = role;
    w->depth = depth;
    if (depth > 0)
        memcpy(w->path, steps, sizeof *steps * (size_t)depth);
    rs_status status = walk_object(w, value);
    rs_names_fini(&w->met);
    rs_names_fini(&w->clashing);
    rs_names_fini(&w->tensors);
    rs_pool_fini(&w->pool);
    free(w);
    return status;
}

rs_status rs_torch_enter(rs_catalog *catalog, rs_torch *torch)
{
    return walk_from(catalog, torch, NULL, 0, torch->pickle.root, NULL);
}

rs_status rs_torch_enter_value(rs_catalog *catalog, rs_torch *torch, const char *prefix,
    const char *key, rs_value *value, const char *role)
{
    bool prefixed = prefix[0] != 0;
    step steps[2] = {{.attribute = prefixed ? prefix : key}, {.attribute = key}};
    return walk_from(catalog, torch, steps, prefixed ? 2 : 1, value, role);
}

/* The names outside the list, in one sentence. */
static rs_status warn_unknown(rs_catalog *catalog, const rs_torch *torch)
{
    const rs_pickle *pickle = &torch->pickle;
    if (pickle->unknown_count == 0)
        return RS_OK;
    rs_text list = {0};
    for (size_t i = 0; i < pickle->unknown_count && i < 8; i++)
        rs_text_append(&list, "%s%s.%s", i > 0 ? ", " : "", pickle->unknown[i]->module,
            pickle->unknown[i]->name);
    if (pickle->unknown_count > 8)
        rs_text_append(&list, " and %zu more", pickle->unknown_count - 8);
    rs_status status = list.status;
    if (status == RS_OK)
        status = rs_catalog_warn(catalog, "%s: unknown names are kept as opaque data: %s",
            rs_files_path(torch->files, torch->file), list.data);
    rs_text_fini(&list);
    return status;
}

rs_status rs_torch_warn(rs_catalog *catalog, const rs_torch *torch)
{
    const char *path = rs_files_path(torch->files, torch->file);
    if (torch->trailing > 0)
        RS_TRY(rs_catalog_warn(
            catalog, "%s: %" PRId64 " bytes behind its end", path, torch->trailing));
    if (torch->after_stop > 0)
        RS_TRY(rs_catalog_warn(catalog,
            "%s: %" PRId64 " bytes behind the end of its pickle were not looked at", path,
            torch->after_stop));
    if (torch->foreign > 0)
        RS_TRY(
            rs_catalog_warn(catalog, "%s: %zu entries that are not torch's", path, torch->foreign));
    if (torch->pickle_crc_wrong)
        RS_TRY(rs_catalog_warn(catalog,
            "%s: its pickle has another CRC-32 than the directory says: it is damaged, or was "
            "written with checksums off",
            path));
    return warn_unknown(catalog, torch);
}

rs_status rs_torch_checksums(rs_catalog *catalog, const rs_torch *torch)
{
    for (size_t i = 0; i < torch->storage_count; i++) {
        const rs_torch_storage *storage = &torch->storages[i];
        if (storage->record != NULL)
            RS_TRY(rs_catalog_checksum(catalog, storage->file, storage->offset,
                storage->record->bytes, storage->record->crc, storage->record->name));
    }
    return RS_OK;
}

/* Everything that is no tensor. */
static rs_status keep_extras(rs_catalog *catalog, const rs_torch *torch)
{
    const rs_value *root = rs_torch_root(torch);
    int64_t left = RS_VALUE_JSON_MOST;
    if (rs_torch_kind_of(root) != RS_TORCH_NO_TENSOR)
        return RS_OK;
    json_t *extras = rs_value_json(root, &left);
    if (extras == NULL)
        return rs_error_set(RS_ERR_NO_MEMORY, "cannot keep the extras");
    if (left <= 0)
        RS_TRY(rs_catalog_warn(catalog,
            "%s: more than %d values beside its tensors; the extras are cut",
            rs_files_path(torch->files, torch->file), RS_VALUE_JSON_MOST));
    if (!json_is_object(extras))
        return rs_catalog_extra(catalog, "object", extras);
    json_decref(catalog->extras);
    catalog->extras = extras;
    return RS_OK;
}

bool rs_torch_probe(const rs_place *place)
{
    if (place->folder || place->head_bytes < 4)
        return false;
    bool zip = rs_le32(place->head) == 0x04034b50u;
    bool pickle = place->head[0] == 0x80 && place->head[1] >= 1 && place->head[1] <= 5;
    return zip || (pickle && !rs_safetensors_content(place));
}

rs_status rs_torch_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options)
{
    (void)options;
    int file;
    rs_torch torch = {0};
    rs_status status;
    RS_TRY(rs_files_add(catalog->files, place->path, &file));
    RS_TRY_GOTO(rs_torch_open(catalog->files, file, &torch), out);
    bool own = rs_torch_state_is(&torch);
    RS_TRY_GOTO(own ? rs_torch_state_read(catalog, &torch) : rs_torch_enter(catalog, &torch), out);
    RS_TRY_GOTO(rs_torch_checksums(catalog, &torch), out);
    if (!own)
        RS_TRY_GOTO(keep_extras(catalog, &torch), out);
    RS_TRY_GOTO(rs_torch_warn(catalog, &torch), out);
out:
    rs_torch_fini(&torch);
    return status;
}
