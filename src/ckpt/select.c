/*
 * Choosing what a conversion writes.
 *
 * 1. The whole state has every entry but second names. Weights are the params; a state dict has the
 *    buffers too, which its reader wants. Second names of weights are tensors of their own only
 *    where --tied duplicate asks for it; an optimizer's state, which belongs to the bytes, never.
 * 2. An optimizer's state is never left out unasked: a source without any is refused.
 * 3. Every role keeps its dtype unless --dtype names it; integers keep theirs always.
 * 4. A master is made from a param only where --master-from-param asks for it, only for params that
 *    the optimizer has moments of (all of them where it has none), and the extras say so. A format
 *    that is made of masters takes float32 params for them, which they are.
 */
#include "ckpt/select.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/cast.h"

#define ROLE 64

static bool is_optimizer(const char *role)
{
    return strncmp(role, "exp_avg", 7) == 0 || strcmp(role, "momentum_buffer") == 0;
}

bool rs_select_takes(const rs_writing *w, const rs_writer *writer, const char *role)
{
    return w->whole || strcmp(role, "param") == 0 ||
           (writer->buffers && strcmp(role, "buffer") == 0);
}

/* Leaves out of the list what is not wanted. */
static void keep_taken(rs_writing *w, const rs_writer *writer)
{
    size_t kept = 0;
    for (size_t i = 0; i < w->tensors.count; i++)
        if (rs_select_takes(w, writer, w->tensors.items[i].role))
            w->tensors.items[kept++] = w->tensors.items[i];
    w->tensors.count = kept;
}

json_t *rs_extras_of_run(json_t *extras)
{
    json_t *inner = json_object_get(extras, "extras");
    return json_is_object(inner) && json_object_get(extras, "job") != NULL ? inner : extras;
}

void rs_writing_warn(const rs_writing *w, const char *format, ...)
{
    char sentence[2000];
    va_list args;
    if (w->options->warn == NULL)
        return;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    w->options->warn(w->options->warn_context, sentence);
}

rs_status rs_writing_goes_on(const rs_writing *w)
{
    bool cancelled = w->options->cancelled != NULL && w->options->cancelled(w->options->context);
    return cancelled ? rs_error_set(RS_ERR_CANCELLED, "interrupted") : RS_OK;
}

/* ---- masters ---- */

/* `exact`: of float32 params alone, which are their own masters. */
static rs_status add_masters(rs_writing *w, bool moments, bool exact)
{
    size_t count = w->tensors.count, made = 0;
    for (size_t i = 0; i < count; i++) {
        rs_logical t = w->tensors.items[i];
        const char *name = rs_catalog_get(w->catalog, t.id)->is.name;
        if (strcmp(t.role, "param") != 0 || !rs_cast_is_float(t.dtype) ||
            (exact && t.dtype != RS_DTYPE_F32) ||
            rs_catalog_find(w->catalog, name, "master") >= 0 ||
            (moments && rs_catalog_find(w->catalog, name, "exp_avg") < 0 &&
                rs_catalog_find(w->catalog, name, "momentum_buffer") < 0))
            continue;
        RS_TRY(RS_LIST_RESERVE_ONE(&w->tensors));
        t.role = "master";
        t.dtype = RS_DTYPE_F32;
        w->tensors.items[w->tensors.count++] = t;
        made++;
    }
    if (made > 0 && !exact &&
        json_object_set_new(
            rs_extras_of_run(w->extras), "master_from_param", json_integer((json_int_t)made)) != 0)
        return rs_error_memory(1);
    return RS_OK;
}

/* ---- dtypes ---- */

/* One ROLE=T or T of the list. */
static rs_status retype(rs_writing *w, const char *text, size_t length)
{
    char role[ROLE] = "param", name[ROLE];
    const char *equals = memchr(text, '=', length);
    size_t before = equals != NULL ? (size_t)(equals - text) : 0;
    size_t after = length - (equals != NULL ? before + 1 : 0);
    if (before >= ROLE || after >= ROLE || (equals != NULL && before == 0))
        return rs_error_set(
            RS_ERR_ARGUMENT, "dtype \"%.*s\": must be T or ROLE=T", (int)length, text);
    if (equals != NULL) {
        memcpy(role, text, before);
        role[before] = '\0';
    }
    memcpy(name, equals != NULL ? equals + 1 : text, after);
    name[after] = '\0';
    rs_dtype dtype = rs_dtype_parse(name);
    if (!rs_cast_is_float(dtype))
        return rs_error_set(
            RS_ERR_ARGUMENT, "dtype \"%s\": must be float64, float32, float16 or bfloat16", name);
    size_t met = 0;
    for (size_t i = 0; i < w->tensors.count; i++) {
        rs_logical *t = &w->tensors.items[i];
        if (strcmp(t->role, role) != 0)
            continue;
        met++;
        if (rs_cast_is_float(t->dtype))
            t->dtype = dtype;
    }
    if (met == 0)
        return rs_error_set(RS_ERR_ARGUMENT, "dtype: nothing of role \"%s\" is written", role);
    return RS_OK;
}

static rs_status retype_all(rs_writing *w)
{
    const char *at = w->options->dtype;
    while (at != NULL && *at != '\0') {
        size_t length = strcspn(at, ",");
        RS_TRY(retype(w, at, length));
        at += length + (at[length] == ',');
    }
    return RS_OK;
}

/* ---- the whole ---- */

/* Sets the sizes once dtypes and roles are settled. */
static void measure(rs_writing *w)
{
    for (size_t i = 0; i < w->tensors.count; i++) {
        rs_logical *t = &w->tensors.items[i];
        t->bytes = rs_box_is_empty(&t->box)
                       ? 0
                       : rs_box_volume(&t->box) * (int64_t)rs_dtype_size(t->dtype);
        w->report.bytes += t->bytes;
    }
    w->report.tensors = (int64_t)w->tensors.count;
}

/* What becomes of second names: "once", "listed" or "duplicate". */
static rs_status check_tied(const rs_writing *w, const rs_writer *writer, bool *duplicate)
{
    const char *tied = w->options->tied != NULL ? w->options->tied : "once";
    *duplicate = strcmp(tied, "duplicate") == 0;
    if (!*duplicate && strcmp(tied, "once") != 0 && strcmp(tied, "listed") != 0)
        return rs_error_set(
            RS_ERR_ARGUMENT, "tied \"%s\": must be one of once, listed, duplicate", tied);
    if (strcmp(tied, "listed") == 0 && !writer->lists_names)
        return rs_error_set(RS_ERR_ARGUMENT,
            "tied \"listed\": files written as %s have no place for it, those of safetensors have",
            writer->name);
    if (*duplicate && w->whole)
        return rs_error_set(RS_ERR_ARGUMENT,
            "tied \"duplicate\": an optimizer's state is there once: wanted with safetensors, or "
            "with --weights-only");
    return RS_OK;
}

/* Options that what is written has no use for. */
static rs_status check_options(const rs_writing *w, const rs_writer *writer)
{
    const rs_convert_options *o = w->options;
    if (o->layout != NULL && !writer->layout)
        return rs_error_set(RS_ERR_ARGUMENT,
            "layout \"%s\": what is written as %s is for no layout; native and universal "
            "checkpoints can be for one",
            o->layout, writer->name);
    if (o->shard_bytes > 0 && !writer->bounded)
        return rs_error_set(RS_ERR_ARGUMENT,
            "max-shard-size: what is written as %s is not divided by size; safetensors and native "
            "checkpoints can be",
            writer->name);
    if (o->shard_bytes > 0 && o->layout != NULL)
        return rs_error_set(RS_ERR_ARGUMENT,
            "max-shard-size: with a layout each of its ranks has one file, of whatever size");
    return RS_OK;
}

/* Second names of weights, where the format does not keep them. */
static void count_second_names(rs_writing *w, const rs_writer *writer)
{
    for (size_t i = 0; i < w->catalog->entries.count; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(w->catalog, (int)i);
        w->report.second_names += entry->how == RS_ENTRY_ALIAS && !writer->keeps_names &&
                                  strcmp(entry->is.role, "param") == 0;
    }
}

/* Values beside the tensors that weights alone go without; that a file is one of PyTorch's weights
 * is said anew. */
static int64_t count_extras(const rs_writing *w)
{
    json_t *extras = rs_extras_of_run(w->extras);
    const json_t *notes = json_object_get(extras, "metadata");
    bool usual = json_object_size(notes) == 1 && json_object_get(notes, "format") != NULL;
    return w->whole ? 0 : (int64_t)json_object_size(extras) - usual;
}

rs_status rs_select(rs_writing *w, const rs_writer *writer)
{
    bool optimizer = false, duplicate;
    w->whole = writer->whole && !w->options->weights_only;
    RS_TRY(check_options(w, writer));
    RS_TRY(check_tied(w, writer, &duplicate));
    w->extras = json_deep_copy(w->catalog->extras);
    if (w->extras == NULL)
        return rs_error_memory(1);
    for (size_t i = 0; i < w->catalog->entries.count; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(w->catalog, (int)i);
        optimizer = optimizer || is_optimizer(entry->is.role);
        w->report.skipped += !rs_select_takes(w, writer, entry->is.role);
    }
    if (writer->whole && !optimizer && !w->options->weights_only)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "the checkpoint has no optimizer state; --weights-only converts its weights alone");
    RS_TRY(rs_logical_make(w->catalog, NULL, duplicate, &w->tensors));
    keep_taken(w, writer);
    count_second_names(w, writer);
    w->report.extras_skipped = count_extras(w);
    if (w->options->tied != NULL && strcmp(w->options->tied, "once") != 0 &&
        w->report.second_names == 0)
        rs_writing_warn(w, "tied \"%s\": the source has no second names", w->options->tied);
    if (w->options->master_from_param && w->whole)
        RS_TRY(add_masters(w, optimizer, false));
    else if (writer->masters && w->whole)
        RS_TRY(add_masters(w, optimizer, true));
    RS_TRY(retype_all(w));
    measure(w);
    for (size_t i = 0; i < w->tensors.count; i++)
        if (strcmp(w->tensors.items[i].role, "param") == 0)
            return RS_OK;
    return rs_error_set(RS_ERR_UNSUPPORTED, "the checkpoint has no weights");
}
