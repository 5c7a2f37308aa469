/*
 * Comparing two checkpoints, logical tensor by logical tensor, in parts: whatever the formats and
 * layouts, equal means equal bytes (-0.0 and the bits of a NaN count), unless a tolerance is given.
 * Then what is no tensor.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "ckpt/cast.h"
#include "ckpt/checkpoint.h"
#include "ckpt/logical.h"
#include "ckpt/names.h"
#include "reshard/convert.h"

#define ELEMENTS ((int64_t)512 << 10) /* compared at a time */
#define LARGEST 16                    /* bytes of an element */
#define KEY 1200

typedef struct comparing {
    const rs_checkpoint *checkpoint[2];
    rs_checkpoint *renamed[2];
    const rs_catalog *catalog[2];
    rs_logical_list tensors[2];
    const rs_compare_options *options;
    void (*tell)(void *context, const char *difference);
    void *context;
    rs_compare_report report;
    unsigned char *bytes[2];
    unsigned char *cast;
    /* the pair at hand */
    const rs_logical *a, *b;
    rs_dtype dtype;   /* in which the two are compared */
    int64_t position; /* of the element that comes next */
    int64_t differences, first;
    double values[2];
} comparing;

static void tell(comparing *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void tell(comparing *c, const char *format, ...)
{
    char text[1500];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    c->report.different++;
    if (c->tell != NULL)
        c->tell(c->context, text);
}

static bool is_close(const comparing *c, double a, double b)
{
    return a == b || fabs(a - b) <= c->options->atol + c->options->rtol * fabs(b);
}

/* `count` elements in the dtype that is compared: as they are, or rounded. */
static const unsigned char *as_compared(
    const comparing *c, rs_dtype from, const unsigned char *bytes, int64_t count)
{
    if (from == c->dtype)
        return bytes;
    rs_cast(from, bytes, c->dtype, c->cast, count);
    return c->cast;
}

/* A part of `a` against the same elements of `b`, which are read here. */
static rs_status compare_part(void *context, const rs_box *part, const void *data, size_t bytes)
{
    comparing *c = context;
    size_t size = rs_dtype_size(c->dtype), wide = rs_dtype_size(c->b->dtype);
    int64_t count = (int64_t)(bytes / rs_dtype_size(c->a->dtype)), done = 0;
    rs_box parts[2 * RS_MAX_DIMS];
    (void)part;
    int n = rs_box_linear_range(&c->b->box, c->position, c->position + count, parts);
    for (int i = 0; i < n; i++) {
        RS_TRY(rs_catalog_read(
            c->catalog[1], c->b->id, -1, &parts[i], c->bytes[1] + (size_t)done * wide));
        done += rs_box_volume(&parts[i]);
    }
    bool loose = (c->options->rtol > 0 || c->options->atol > 0) && rs_cast_is_float(c->dtype);
    const unsigned char *x = as_compared(c, c->a->dtype, data, count);
    const unsigned char *y = as_compared(c, c->b->dtype, c->bytes[1], count);
    bool equal = memcmp(x, y, (size_t)count * size) == 0;
    for (int64_t i = 0; i < count && !equal; i++) {
        if (memcmp(x + (size_t)i * size, y + (size_t)i * size, size) == 0)
            continue;
        double v = rs_cast_element(c->dtype, x, i), w = rs_cast_element(c->dtype, y, i);
        if (loose && is_close(c, v, w))
            continue;
        if (c->differences++ == 0) {
            c->first = c->position + i;
            c->values[0] = v;
            c->values[1] = w;
        }
    }
    c->position += count;
    return RS_OK;
}

/* "[1,0,5]": the index of an element by its number. */
static const char *index_text(const rs_logical *t, int64_t number, char *text, size_t size)
{
    int64_t index[RS_MAX_DIMS];
    size_t used = (size_t)snprintf(text, size, "[");
    for (int d = t->ndim - 1; d >= 0; d--) {
        index[d] = number % t->shape[d];
        number /= t->shape[d];
    }
    for (int d = 0; d < t->ndim && used < size; d++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%" PRId64, d > 0 ? "," : "", index[d]);
    if (used < size)
        snprintf(text + used, size - used, "]");
    return text;
}

static const char *shape_text(const rs_logical *t, char *text, size_t size)
{
    rs_box whole = rs_box_whole(t->ndim, t->shape);
    return rs_box_format(&whole, text, size);
}

static bool same_shape(const rs_logical *a, const rs_logical *b)
{
    return a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->ndim) == 0;
}

/* The dtype in which two are compared: the narrower of two floating-point ones; RS_DTYPE_NONE if
 * they are not comparable. */
static rs_dtype common_dtype(const comparing *c, rs_dtype a, rs_dtype b)
{
    if (a == b)
        return a;
    if (!c->options->cast || !rs_cast_is_float(a) || !rs_cast_is_float(b) ||
        rs_dtype_size(a) == rs_dtype_size(b))
        return RS_DTYPE_NONE;
    return rs_dtype_size(a) < rs_dtype_size(b) ? a : b;
}

static rs_status compare_pair(comparing *c, const rs_logical *a, const rs_logical *b)
{
    char one[256], other[256];
    c->report.tensors++;
    if (!same_shape(a, b)) {
        tell(c, "%s of \"%s\": %s in the first, %s in the second", a->role, a->name,
            shape_text(a, one, sizeof one), shape_text(b, other, sizeof other));
        return RS_OK;
    }
    c->dtype = common_dtype(c, a->dtype, b->dtype);
    if (c->dtype == RS_DTYPE_NONE) {
        tell(c, "%s of \"%s\": %s in the first, %s in the second", a->role, a->name,
            rs_dtype_name(a->dtype), rs_dtype_name(b->dtype));
        return RS_OK;
    }
    c->a = a;
    c->b = b;
    c->position = c->differences = 0;
    RS_TRY(rs_logical_stream(c->catalog[0], a, ELEMENTS * (int64_t)rs_dtype_size(a->dtype),
        c->bytes[0], compare_part, c));
    c->report.elements += c->position;
    if (c->differences > 0)
        tell(c,
            "%s of \"%s\": %" PRId64 " of %" PRId64
            " elements differ, the first at %s: %.9g and %.9g",
            a->role, a->name, c->differences, c->position, index_text(a, c->first, one, sizeof one),
            c->values[0], c->values[1]);
    return RS_OK;
}

static char *key_of(const rs_logical *t, char key[KEY])
{
    snprintf(key, KEY, "%s\n%s", t->role, t->name);
    return key;
}

/* True if its bytes are in a file. */
static bool is_stored(const rs_catalog *catalog, const rs_logical *t)
{
    return rs_catalog_get(catalog, t->id)->is.stored;
}

/* Whether a role is among those to compare: a list with commas, NULL is all. */
static bool is_wanted(const comparing *c, const char *role)
{
    size_t length = strlen(role);
    for (const char *at = c->options->role; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, role, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return c->options->role == NULL;
}

/* A tensor that only one side lists: under that name the other may have an alias of another one. */
static rs_status compare_lone(comparing *c, int side, const rs_logical *t)
{
    int id = rs_catalog_find(c->catalog[1 - side], t->name, t->role);
    if (id >= 0) {
        const rs_checkpoint_entry *entry = &rs_catalog_get(c->catalog[1 - side], id)->is;
        rs_logical other = {.name = t->name, .role = t->role, .dtype = entry->dtype, .id = id};
        other.box = rs_box_whole(entry->ndim, entry->shape);
        other.ndim = entry->ndim;
        memcpy(other.shape, entry->shape, sizeof other.shape);
        return side == 0 ? compare_pair(c, t, &other) : compare_pair(c, &other, t);
    }
    if (is_stored(c->catalog[side], t))
        tell(c, "%s of \"%s\": only in the %s", t->role, t->name, side == 0 ? "first" : "second");
    return RS_OK;
}

static rs_status compare_all(comparing *c)
{
    rs_names index = {0};
    rs_status status = RS_OK;
    size_t count = c->tensors[1].count;
    char **keys = rs_calloc(count, sizeof *keys), key[KEY];
    bool *met = rs_calloc(count, sizeof *met);
    if (keys == NULL || met == NULL)
        RS_TRY_GOTO(rs_error_memory(count * sizeof *keys), out);
    for (size_t i = 0; i < count; i++) {
        int found;
        keys[i] = rs_strdup(key_of(&c->tensors[1].items[i], key));
        if (keys[i] == NULL)
            RS_TRY_GOTO(rs_error_memory(KEY), out);
        RS_TRY_GOTO(rs_names_add(&index, keys[i], (int)i, &found), out);
    }
    for (size_t i = 0; i < c->tensors[0].count; i++) {
        const rs_logical *a = &c->tensors[0].items[i];
        if (!is_wanted(c, a->role))
            continue;
        int b = rs_names_find(&index, key_of(a, key));
        if (b >= 0)
            met[b] = true;
        RS_TRY_GOTO(
            b >= 0 ? compare_pair(c, a, &c->tensors[1].items[b]) : compare_lone(c, 0, a), out);
    }
    for (size_t i = 0; i < count; i++)
        if (!met[i] && is_wanted(c, c->tensors[1].items[i].role))
            RS_TRY_GOTO(compare_lone(c, 1, &c->tensors[1].items[i]), out);
out:
    for (size_t i = 0; i < count && keys != NULL; i++)
        free(keys[i]);
    free(keys);
    free(met);
    rs_names_fini(&index);
    return status;
}

/* ---- what is no tensor ---- */

/* What belongs to the writer: a native checkpoint has its own members around it, also where it was
 * converted to another format. */
static const json_t *extras_of(const rs_catalog *catalog)
{
    const json_t *extras = catalog->extras;
    while (json_is_object(json_object_get(extras, "extras")) &&
           json_is_object(json_object_get(extras, "sums")))
        extras = json_object_get(extras, "extras");
    return extras;
}

static void tell_extra(comparing *c, const char *key, const json_t *a, const json_t *b)
{
    char *x = json_dumps(a, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    char *y = json_dumps(b, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    tell(c, "beside the tensors, \"%s\": %.200s and %.200s", key, x != NULL ? x : "nothing",
        y != NULL ? y : "nothing");
    free(x);
    free(y);
}

/* Formats keep different things beside the tensors, so across formats only what both have counts. A
 * native checkpoint that was converted has the extras of its source. */
static void compare_extras(comparing *c)
{
    json_t *a = json_deep_copy(extras_of(c->catalog[0])), *value;
    const json_t *b = extras_of(c->catalog[1]);
    bool alike = strcmp(c->catalog[0]->format, c->catalog[1]->format) == 0;
    const char *key;
    json_object_foreach(a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (other != NULL ? !json_equal(value, other) : alike)
            tell_extra(c, key, value, other);
    }
    json_object_foreach((json_t *)(uintptr_t)b, key,
        value) if (alike && json_object_get(a, key) == NULL) tell_extra(c, key, NULL, value);
    json_decref(a);
}

/* ---- names ---- */

static rs_status rename_side(comparing *c, int side, const rs_rename_options *how)
{
    RS_TRY(rs_checkpoint_rename(c->checkpoint[side], how, &c->renamed[side]));
    c->catalog[side] = rs_checkpoint_catalog(c->renamed[side]);
    return RS_OK;
}

/* Brings both under the same names: canonical ones where the model is known. Where one lacks a
 * tensor of the model, it is the other that is renamed, so that the comparison can name it. */
static rs_status rename_sides(comparing *c)
{
    bool own[2] = {
        rs_checkpoint_is_canonical(c->checkpoint[0]), rs_checkpoint_is_canonical(c->checkpoint[1])};
    rs_rename_options how = {.space = c->options->space, .from = c->options->dialect};
    rs_space *space = NULL;
    rs_dialect *hub = NULL;
    if (own[0] && own[1])
        return RS_OK;
    if (how.space == NULL && !own[0] && !own[1])
        return RS_OK;
    if (how.space == NULL)
        RS_TRY(rs_logical_space(c->catalog[own[0] ? 0 : 1], "param", &space));
    if (how.space == NULL)
        how.space = space;
    rs_status status = RS_OK;
    for (int side = 0; side < 2 && status == RS_OK; side++)
        if (!own[side])
            status = rename_side(c, side, &how);
    bool lacks = status == RS_ERR_NOT_FOUND || status == RS_ERR_MALFORMED;
    if (lacks && (own[0] || own[1])) {
        status = how.from == NULL ? rs_dialect_load("hf", &hub) : RS_OK;
        how.to = how.from != NULL ? how.from : hub;
        how.from = NULL;
        if (status == RS_OK)
            status = rename_side(c, own[0] ? 0 : 1, &how);
    }
    rs_dialect_destroy(hub);
    rs_space_destroy(space);
    return status;
}

rs_status rs_compare(const rs_checkpoint *a, const rs_checkpoint *b,
    const rs_compare_options *options, void (*teller)(void *context, const char *difference),
    void *context, rs_compare_report *report)
{
    comparing c = {.checkpoint = {a, b},
        .catalog = {rs_checkpoint_catalog(a), rs_checkpoint_catalog(b)},
        .options = options,
        .tell = teller,
        .context = context};
    rs_status status = rename_sides(&c);
    for (int i = 0; i < 2 && status == RS_OK; i++) {
        status = rs_logical_make(c.catalog[i], NULL, false, &c.tensors[i]);
        c.bytes[i] = rs_calloc((size_t)ELEMENTS, LARGEST);
        if (status == RS_OK && c.bytes[i] == NULL)
            status = rs_error_memory((size_t)ELEMENTS * LARGEST);
    }
    c.cast = options->cast ? rs_calloc((size_t)ELEMENTS, LARGEST) : NULL;
    if (status == RS_OK && options->cast && c.cast == NULL)
        status = rs_error_memory((size_t)ELEMENTS * LARGEST);
    if (status == RS_OK)
        status = compare_all(&c);
    if (status == RS_OK && options->role == NULL)
        compare_extras(&c);
    if (status == RS_OK)
        *report = c.report;
    for (int i = 0; i < 2; i++) {
        rs_logical_fini(&c.tensors[i]);
        rs_checkpoint_close(c.renamed[i]);
        free(c.bytes[i]);
    }
    free(c.cast);
    return status;
}
