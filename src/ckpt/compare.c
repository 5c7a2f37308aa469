/*
 * Comparing two checkpoints, logical tensor by logical tensor, in parts: whatever the formats and
 * layouts, equal means equal bytes (-0.0 and the bits of a NaN count), unless a tolerance is given.
 */
#include <inttypes.h>
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

#define PART ((int64_t)4 << 20) /* bytes */
#define KEY 1200

typedef struct comparing {
    const rs_catalog *catalog[2];
    rs_logical_list tensors[2];
    const rs_compare_options *options;
    void (*tell)(void *context, const char *difference);
    void *context;
    rs_compare_report report;
    unsigned char *bytes[2];
    /* the pair at hand */
    const rs_logical *a, *b;
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

/* A part of `a` against the same elements of `b`, which are read here. */
static rs_status compare_part(void *context, const rs_box *part, const void *data, size_t bytes)
{
    comparing *c = context;
    size_t size = rs_dtype_size(c->a->dtype);
    int64_t count = (int64_t)(bytes / size), done = 0;
    rs_box parts[2 * RS_MAX_DIMS];
    (void)part;
    int n = rs_box_linear_range(&c->b->box, c->position, c->position + count, parts);
    for (int i = 0; i < n; i++) {
        RS_TRY(rs_catalog_read(
            c->catalog[1], c->b->id, -1, &parts[i], c->bytes[1] + (size_t)done * size));
        done += rs_box_volume(&parts[i]);
    }
    bool loose = (c->options->rtol > 0 || c->options->atol > 0) && rs_cast_is_float(c->a->dtype);
    const unsigned char *x = data, *y = c->bytes[1];
    bool equal = memcmp(x, y, bytes) == 0;
    for (int64_t i = 0; i < count && !equal; i++) {
        if (memcmp(x + (size_t)i * size, y + (size_t)i * size, size) == 0)
            continue;
        double v = rs_cast_element(c->a->dtype, x, i), w = rs_cast_element(c->a->dtype, y, i);
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

static bool same_shape(const rs_logical *a, const rs_logical *b)
{
    return a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)a->ndim) == 0;
}

static rs_status compare_pair(comparing *c, const rs_logical *a, const rs_logical *b)
{
    c->report.tensors++;
    if (!same_shape(a, b)) {
        tell(c, "%s of \"%s\": the shapes differ", a->role, a->name);
        return RS_OK;
    }
    if (a->dtype != b->dtype) {
        tell(c, "%s of \"%s\": %s in the first, %s in the second", a->role, a->name,
            rs_dtype_name(a->dtype), rs_dtype_name(b->dtype));
        return RS_OK;
    }
    c->a = a;
    c->b = b;
    c->position = c->differences = 0;
    RS_TRY(rs_logical_stream(c->catalog[0], a, PART, c->bytes[0], compare_part, c));
    c->report.elements += c->position;
    if (c->differences == 0)
        return RS_OK;
    rs_box whole = rs_box_whole(a->ndim, a->shape), at[2 * RS_MAX_DIMS];
    char text[256];
    rs_box_linear_range(&whole, c->first, c->first + 1, at);
    tell(c,
        "%s of \"%s\": %" PRId64 " of %" PRId64 " elements differ, the first at %s: %.9g and %.9g",
        a->role, a->name, c->differences, c->position, rs_box_format(&at[0], text, sizeof text),
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
        int b = rs_names_find(&index, key_of(a, key));
        if (b >= 0) {
            met[b] = true;
            RS_TRY_GOTO(compare_pair(c, a, &c->tensors[1].items[b]), out);
        } else if (is_stored(c->catalog[0], a)) {
            tell(c, "%s of \"%s\": only in the first", a->role, a->name);
        }
    }
    for (size_t i = 0; i < count; i++) {
        const rs_logical *b = &c->tensors[1].items[i];
        if (!met[i] && is_stored(c->catalog[1], b))
            tell(c, "%s of \"%s\": only in the second", b->role, b->name);
    }
out:
    for (size_t i = 0; i < count && keys != NULL; i++)
        free(keys[i]);
    free(keys);
    free(met);
    rs_names_fini(&index);
    return status;
}

rs_status rs_compare(const rs_checkpoint *a, const rs_checkpoint *b,
    const rs_compare_options *options, void (*teller)(void *context, const char *difference),
    void *context, rs_compare_report *report)
{
    comparing c = {.catalog = {rs_checkpoint_catalog(a), rs_checkpoint_catalog(b)},
        .options = options,
        .tell = teller,
        .context = context};
    bool own[2] = {rs_logical_is_own(c.catalog[0]), rs_logical_is_own(c.catalog[1])};
    rs_status status = RS_OK;
    for (int i = 0; i < 2 && status == RS_OK; i++) {
        status = rs_logical_make(c.catalog[i], options->role, own[i] && !own[1 - i], &c.tensors[i]);
        c.bytes[i] = rs_calloc((size_t)PART + 64, 1);
        if (status == RS_OK && c.bytes[i] == NULL)
            status = rs_error_memory((size_t)PART);
    }
    if (status == RS_OK)
        status = compare_all(&c);
    if (status == RS_OK)
        *report = c.report;
    for (int i = 0; i < 2; i++) {
        rs_logical_fini(&c.tensors[i]);
        free(c.bytes[i]);
    }
    return status;
}
