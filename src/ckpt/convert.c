/*
 * Conversion: logical tensors of a catalog, streamed into files of another format.
 *
 * What is to be written is planned from the descriptions alone: names, files, every byte's place.
 * Then each file is written front to back, in parts that fit the memory, read from wherever they
 * lie. All goes to "TARGET.tmp-reshard", is synced, and renamed.
 *
 * 1. Nothing is read twice, no temporary space is used beside the result.
 * 2. Memory: one buffer, whatever the sizes.
 * 3. The same source gives the same bytes.
 */
#include "reshard/convert.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/checkpoint.h"
#include "ckpt/format.h"
#include "ckpt/logical.h"
#include "ckpt/native_names.h"
#include "ckpt/publish.h"
#include "ckpt/safetensors.h"
#include "reshard/certificate.h"

#define SHARD_BYTES INT64_C(5000000000)
#define MEMORY ((int64_t)256 << 20)
#define BUFFER_MOST ((int64_t)16 << 20)
#define INDEX "model.safetensors.index.json"
#define JOB "convert"

typedef struct conversion {
    const rs_catalog *catalog;
    const rs_convert_options *options;
    rs_convert_report report;
    rs_logical_list tensors;
    char *folder; /* where it is written */
    char *buffer;
    int64_t part; /* bytes of the buffer */
    int64_t done, all;
} conversion;

/* ---- one file ---- */

typedef struct streaming {
    conversion *c;
    rs_out *out;
    XXH3_state_t *hash; /* of a native shard; else NULL */
    const rs_logical *tensor;
    rs_sum sum;
} streaming;

static rs_status write_part(void *context, const rs_box *part, const void *data, size_t bytes)
{
    streaming *s = context;
    RS_TRY(rs_out_write(s->out, data, bytes));
    if (s->hash != NULL) {
        int64_t stride[RS_MAX_DIMS], step = (int64_t)rs_dtype_size(s->tensor->dtype);
        for (int d = part->ndim - 1; d >= 0; d--) {
            stride[d] = step;
            step *= part->extent[d];
        }
        XXH3_64bits_update(s->hash, data, bytes);
        rs_sum sum = rs_sum_box(rs_sum_key(s->tensor->name, s->tensor->role), s->tensor->shape,
            part, rs_dtype_size(s->tensor->dtype), data, stride);
        s->sum.lane[0] += sum.lane[0];
        s->sum.lane[1] += sum.lane[1];
    }
    s->c->done += (int64_t)bytes;
    if (s->c->options->progress != NULL)
        s->c->options->progress(s->c->options->context, s->c->done, s->c->all);
    return RS_OK;
}

/* The tensors first .. end-1 as the rows of a file; `names` are theirs. */
static rs_status write_file(conversion *c, const char *folder, const char *file, size_t first,
    size_t end, const char *const *names, const rs_safetensors_note *notes, size_t note_count,
    json_t *shards, int64_t *file_bytes)
{
    size_t count = end - first, head_bytes = 0;
    char *head = NULL;
    rs_names index = {0};
    rs_out out = {.fd = -1};
    streaming s = {.c = c, .out = &out, .hash = shards != NULL ? XXH3_createState() : NULL};
    rs_status status = RS_OK;
    rs_safetensors_tensor *rows = rs_calloc(count, sizeof *rows);
    if (rows == NULL || (shards != NULL && s.hash == NULL))
        RS_TRY_GOTO(rs_error_memory(count * sizeof *rows), out);
    for (size_t i = 0; i < count; i++) {
        const rs_logical *t = &c->tensors.items[first + i];
        int found;
        rows[i] =
            (rs_safetensors_tensor){.name = names[first + i], .dtype = t->dtype, .ndim = t->ndim};
        memcpy(rows[i].shape, t->shape, sizeof rows[i].shape);
        RS_TRY_GOTO(rs_names_add(&index, rows[i].name, (int)(first + i), &found), out);
    }
    RS_TRY_GOTO(
        rs_safetensors_layout(rows, count, notes, note_count, &head, &head_bytes, file_bytes), out);
    RS_TRY_GOTO(rs_out_create(&out, folder, file), out);
    RS_TRY_GOTO(rs_out_write(&out, head, head_bytes), out);
    for (size_t i = 0; i < count; i++) {
        s.tensor = &c->tensors.items[rs_names_find(&index, rows[i].name)];
        s.sum = (rs_sum){{0, 0}};
        if (s.hash != NULL)
            XXH3_64bits_reset(s.hash);
        RS_TRY_GOTO(
            rs_logical_stream(c->catalog, s.tensor, c->part, c->buffer, write_part, &s), out);
        if (shards == NULL || s.tensor->bytes == 0)
            continue;
        char hash[17], sum[33];
        snprintf(hash, sizeof hash, "%016" PRIx64, (uint64_t)XXH3_64bits_digest(s.hash));
        snprintf(sum, sizeof sum, "%016" PRIx64 "%016" PRIx64, s.sum.lane[0], s.sum.lane[1]);
        json_t *offset = json_array(), *extent = json_array();
        for (int d = 0; d < s.tensor->ndim; d++) {
            json_array_append_new(offset, json_integer(0));
            json_array_append_new(extent, json_integer(s.tensor->shape[d]));
        }
        if (json_array_append_new(
                shards, json_pack("{s:s,s:s,s:o,s:o,s:I,s:s,s:s}", "tensor", s.tensor->name, "role",
                            s.tensor->role, "offset", offset, "extent", extent, "at",
                            (json_int_t)rows[i].offset, "xxh3", hash, "sum", sum)) != 0)
            RS_TRY_GOTO(rs_error_memory(1), out);
    }
    RS_TRY_GOTO(rs_out_finish(&out), out);
    c->report.files++;
out:
    rs_out_fini(&out);
    rs_names_fini(&index);
    XXH3_freeState(s.hash);
    free(head);
    free(rows);
    return status;
}

static rs_status make_names(const conversion *c, bool native, char ***out)
{
    size_t count = c->tensors.count;
    char **names = rs_calloc(count, sizeof *names);
    rs_status status = names != NULL ? RS_OK : rs_error_memory(count * sizeof *names);
    for (size_t i = 0; i < count && status == RS_OK; i++) {
        const rs_logical *t = &c->tensors.items[i];
        char box[320];
        rs_text text = {0};
        if (native)
            rs_text_append(
                &text, "%s/%s%s", t->name, t->role, rs_box_format(&t->box, box, sizeof box));
        else
            rs_text_append(&text, "%s", t->name);
        status = rs_text_take(&text, &names[i]);
    }
    *out = names;
    return status;
}

static void free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count && names != NULL; i++)
        free(names[i]);
    free(names);
}

/* ---- to safetensors ---- */

/* The end of the file that begins with tensor `first`. */
static size_t end_of_file(const conversion *c, size_t first)
{
    int64_t most = c->options->shard_bytes > 0 ? c->options->shard_bytes : SHARD_BYTES, bytes = 0;
    size_t end = first;
    while (end < c->tensors.count && (end == first || bytes + c->tensors.items[end].bytes <= most))
        bytes += c->tensors.items[end++].bytes;
    return end;
}

static rs_status write_index(const conversion *c, json_t *map)
{
    json_t *root =
        json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)c->all, "weight_map", map);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    rs_status status = text != NULL ? rs_publish_text(c->folder, INDEX, text) : rs_error_memory(1);
    free(text);
    json_decref(root);
    return status;
}

static rs_status write_safetensors(conversion *c)
{
    static const rs_safetensors_note note = {"format", "pt"};
    char **names = NULL, file[64];
    int files = 0, number = 0;
    int64_t bytes;
    json_t *map = json_object();
    rs_status status = RS_OK;
    if (map == NULL)
        return rs_error_memory(1);
    RS_TRY_GOTO(make_names(c, false, &names), out);
    for (size_t i = 0; i < c->tensors.count; i = end_of_file(c, i))
        files++;
    for (size_t i = 0, end; i < c->tensors.count; i = end) {
        end = end_of_file(c, i);
        if (files == 1)
            snprintf(file, sizeof file, "model.safetensors");
        else
            snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", ++number, files);
        RS_TRY_GOTO(write_file(c, c->folder, file, i, end, (const char *const *)names, &note, 1,
                        NULL, &bytes),
            out);
        for (size_t k = i; k < end; k++)
            if (json_object_set_new(map, names[k], json_string(file)) != 0)
                RS_TRY_GOTO(rs_error_memory(1), out);
    }
    if (files > 1)
        RS_TRY_GOTO(write_index(c, map), out);
out:
    free_names(names, c->tensors.count);
    json_decref(map);
    return status;
}

/* ---- to native ---- */

static rs_status write_native(conversion *c)
{
    char **names = NULL, aside[RS_NATIVE_NAME], *folder = NULL, *record = NULL, *extras = NULL;
    json_t *step = json_object_get(c->catalog->extras, "step");
    rs_save_name name = {c->folder, json_integer_value(step), JOB};
    rs_save_about about = {c->catalog->layout != NULL ? c->catalog->layout : "dp=1", 1, NULL};
    const rs_safetensors_note notes[] = {{"format", "reshard"}, {"job", JOB}, {"rank", "0"}};
    rs_space *space = NULL;
    int64_t bytes;
    json_t *shards = json_array(), *root = NULL;
    json_t *own = json_object_get(c->catalog->extras, "extras");
    bool native = strcmp(c->catalog->format, "native") == 0;
    rs_status status = shards != NULL ? RS_OK : rs_error_memory(1);
    if (status != RS_OK)
        return status;
    RS_TRY_GOTO(rs_logical_space(c->catalog, NULL, &space), out);
    RS_TRY_GOTO(make_names(c, true, &names), out);
    RS_TRY_GOTO(rs_save_prepare(&name), out);
    RS_TRY_GOTO(rs_native_aside_name(&name, aside), out);
    RS_TRY_GOTO(rs_path_join(c->folder, aside, &folder), out);
    RS_TRY_GOTO(write_file(c, folder, "rank-00000.safetensors", 0, c->tensors.count,
                    (const char *const *)names, notes, 3, shards, &bytes),
        out);
    root = json_pack("{s:s,s:i,s:I,s:O}", "name", "rank-00000.safetensors", "rank", 0, "bytes",
        (json_int_t)bytes, "shards", shards);
    record = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    extras = json_dumps(native ? own : c->catalog->extras, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (record == NULL || extras == NULL)
        RS_TRY_GOTO(rs_error_memory(1), out);
    about.extras = extras;
    RS_TRY_GOTO(rs_save_commit(&name, space, &about, (const char *const *)&record, 1), out);
out:
    free(extras);
    free(record);
    free(folder);
    free_names(names, c->tensors.count);
    json_decref(root);
    json_decref(shards);
    rs_space_destroy(space);
    return status;
}

/* ---- the whole ---- */

static rs_status plan(conversion *c)
{
    bool native = strcmp(c->options->to, "native") == 0;
    const char *role = native && !c->options->weights_only ? NULL : "param";
    bool optimizer = false;
    RS_TRY(
        rs_logical_make(c->catalog, role, !native && rs_logical_is_own(c->catalog), &c->tensors));
    for (size_t i = 0; i < c->catalog->entries.count; i++) {
        const rs_checkpoint_entry *entry = &rs_catalog_get(c->catalog, (int)i)->is;
        optimizer = optimizer || strncmp(entry->role, "exp_avg", 7) == 0 ||
                    strcmp(entry->role, "momentum_buffer") == 0;
        c->report.skipped += role != NULL && strcmp(entry->role, role) != 0;
    }
    if (native && !optimizer && !c->options->weights_only)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "the checkpoint has no optimizer state; --weights-only converts its weights alone");
    if (c->tensors.count == 0)
        return rs_error_set(RS_ERR_UNSUPPORTED, "the checkpoint has no weights");
    for (size_t i = 0; i < c->tensors.count; i++)
        c->all += c->tensors.items[i].bytes;
    c->report.tensors = (int64_t)c->tensors.count;
    c->report.bytes = c->all;
    return RS_OK;
}

/* Puts what was written where it belongs. */
static rs_status publish(const conversion *c, const char *target, bool exists)
{
    char *parent = rs_strdup(target), *old = NULL;
    rs_text text = {0};
    rs_status status = RS_OK;
    if (parent == NULL)
        return rs_error_memory(strlen(target));
    char *slash = strrchr(parent, '/');
    if (slash != NULL)
        slash[slash == parent ? 1 : 0] = '\0';
    const char *folder = slash != NULL ? parent : ".";
    const char *base = rs_path_base(target), *aside = rs_path_base(c->folder);
    rs_text_append(&text, "%s.old-reshard", base);
    RS_TRY_GOTO(rs_text_take(&text, &old), out);
    RS_TRY_GOTO(rs_sync_folder(c->folder), out);
    if (exists)
        RS_TRY_GOTO(rs_publish_rename(folder, base, old), out);
    RS_TRY_GOTO(rs_publish_rename(folder, aside, base), out);
    if (exists) {
        char *path;
        RS_TRY_GOTO(rs_path_join(folder, old, &path), out);
        status = rs_is_folder(path)  ? rs_remove_folder(path)
                 : unlink(path) == 0 ? RS_OK
                                     : rs_error_errno(errno, "cannot remove %s", path);
        free(path);
    }
out:
    free(old);
    free(parent);
    return status;
}

static rs_status write_all(conversion *c, const char *target, bool exists)
{
    rs_text text = {0};
    size_t length = strlen(target);
    int64_t memory = c->options->memory > 0 ? c->options->memory : MEMORY;
    c->part = rs_max64(rs_min64(BUFFER_MOST, memory / 4), 4096);
    c->buffer = rs_calloc((size_t)c->part + 64, 1);
    if (c->buffer == NULL)
        return rs_error_memory((size_t)c->part);
    while (length > 1 && target[length - 1] == '/')
        length--;
    rs_text_append(&text, "%.*s.tmp-reshard", (int)length, target);
    RS_TRY(rs_text_take(&text, &c->folder));
    char *clean = rs_strdup(target);
    if (clean == NULL)
        return rs_error_memory(length);
    clean[length] = '\0';
    rs_status status = rs_remove_folder(c->folder);
    if (status == RS_OK)
        status = rs_make_folder(c->folder);
    if (status == RS_OK)
        status = strcmp(c->options->to, "native") == 0 ? write_native(c) : write_safetensors(c);
    if (status == RS_OK)
        status = publish(c, clean, exists);
    if (status != RS_OK) {
        char message[1000];
        snprintf(message, sizeof message, "%s", rs_error_message());
        rs_status removed = rs_remove_folder(c->folder);
        status = rs_error_set(status, "%s%s", message,
            removed != RS_OK ? " (and what was written cannot be removed)" : "");
    }
    free(clean);
    return status;
}

rs_status rs_convert(const rs_checkpoint *source, const char *target,
    const rs_convert_options *options, rs_convert_report *report)
{
    conversion c = {.catalog = rs_checkpoint_catalog(source), .options = options};
    if (options->to == NULL ||
        (strcmp(options->to, "native") != 0 && strcmp(options->to, "safetensors") != 0))
        return rs_error_set(RS_ERR_ARGUMENT, "to \"%s\": must be native or safetensors",
            options->to != NULL ? options->to : "");
    bool exists = access(target, F_OK) == 0;
    if (exists && !options->force && !options->dry_run)
        return rs_error_set(RS_ERR_EXISTS, "%s: is there already (--force replaces it)", target);
    rs_status status = plan(&c);
    if (status == RS_OK && !options->dry_run)
        status = write_all(&c, target, exists);
    if (status == RS_OK && report != NULL)
        *report = c.report;
    rs_logical_fini(&c.tensors);
    free(c.folder);
    free(c.buffer);
    return status;
}
