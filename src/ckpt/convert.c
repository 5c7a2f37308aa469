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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/checkpoint.h"
#include "ckpt/companions.h"
#include "ckpt/format.h"
#include "ckpt/publish.h"
#include "ckpt/select.h"
#include "ckpt/writer.h"

#define MEMORY ((int64_t)256 << 20)
#define BUFFER_MOST ((int64_t)16 << 20)

static const rs_writer writers[] = {
    {"native", true, false, false, false, rs_write_native},
    {"safetensors", false, false, true, false, rs_write_safetensors},
    {"torch", true, true, true, true, rs_write_torch},
};

const rs_writer *rs_writer_find(const char *name)
{
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++)
        if (strcmp(writers[i].name, name) == 0)
            return &writers[i];
    return NULL;
}

typedef struct streaming {
    rs_writing *w;
    rs_logical_part function;
    void *context;
} streaming;

static rs_status stream_part(void *context, const rs_box *part, const void *data, size_t bytes)
{
    streaming *s = context;
    rs_writing *w = s->w;
    RS_TRY(s->function(s->context, part, data, bytes));
    w->done += (int64_t)bytes;
    if (w->options->progress != NULL)
        w->options->progress(w->options->context, w->done, w->all);
    return RS_OK;
}

rs_status rs_writing_stream(
    rs_writing *w, const rs_logical *tensor, rs_logical_part function, void *context)
{
    streaming s = {w, function, context};
    return rs_logical_stream(w->catalog, tensor, w->part, w->buffer, stream_part, &s);
}

/* Puts what was written where it belongs. */
static rs_status publish(
    const rs_writing *w, const rs_writer *writer, const char *target, bool exists)
{
    char *parent = rs_strdup(target), *old = NULL, *from = NULL;
    rs_text text = {0};
    rs_status status = RS_OK;
    if (parent == NULL)
        return rs_error_memory(strlen(target));
    char *slash = strrchr(parent, '/');
    if (slash != NULL)
        slash[slash == parent ? 1 : 0] = '\0';
    const char *folder = slash != NULL ? parent : ".";
    const char *base = rs_path_base(target), *aside = rs_path_base(w->folder);
    rs_text_append(&text, "%s.old-reshard", base);
    RS_TRY_GOTO(rs_text_take(&text, &old), out);
    rs_text_append(&text, writer->file ? "%s/%s" : "%s", aside, base);
    RS_TRY_GOTO(rs_text_take(&text, &from), out);
    RS_TRY_GOTO(rs_sync_folder(w->folder), out);
    if (exists)
        RS_TRY_GOTO(rs_publish_rename(folder, base, old), out);
    RS_TRY_GOTO(rs_publish_rename(folder, from, base), out);
    if (writer->file)
        RS_TRY_GOTO(rs_remove_folder(w->folder), out);
    if (exists) {
        char *path;
        RS_TRY_GOTO(rs_path_join(folder, old, &path), out);
        status = rs_is_folder(path)  ? rs_remove_folder(path)
                 : unlink(path) == 0 ? RS_OK
                                     : rs_error_errno(errno, "cannot remove %s", path);
        free(path);
    }
out:
    free(from);
    free(old);
    free(parent);
    return status;
}

static rs_status write_all(rs_writing *w, const rs_writer *writer, const char *target, bool exists)
{
    int64_t memory = w->options->memory > 0 ? w->options->memory : MEMORY;
    w->part = rs_max64(rs_min64(BUFFER_MOST, memory / 4), 4096);
    w->buffer = rs_calloc((size_t)w->part + 64, 1);
    if (w->buffer == NULL)
        return rs_error_memory((size_t)w->part);
    rs_status status = rs_remove_folder(w->folder);
    if (status == RS_OK)
        status = rs_make_folder(w->folder);
    if (status == RS_OK)
        status = writer->write(w);
    if (status == RS_OK)
        status = publish(w, writer, target, exists);
    if (status != RS_OK) {
        char message[1000];
        snprintf(message, sizeof message, "%s", rs_error_message());
        rs_status removed = rs_remove_folder(w->folder);
        status = rs_error_set(status, "%s%s", message,
            removed != RS_OK ? " (and what was written cannot be removed)" : "");
    }
    free(w->buffer);
    return status;
}

/* The target without slashes at its end, and the folder beside it. */
static rs_status make_paths(const char *target, char **clean, char **aside)
{
    rs_text text = {0};
    size_t length = strlen(target);
    while (length > 1 && target[length - 1] == '/')
        length--;
    rs_text_append(&text, "%.*s", (int)length, target);
    RS_TRY(rs_text_take(&text, clean));
    rs_text_append(&text, "%s.tmp-reshard", *clean);
    return rs_text_take(&text, aside);
}

static rs_status no_writer(const char *to)
{
    rs_text list = {0};
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++)
        rs_text_append(&list, "%s%s", i > 0 ? ", " : "", writers[i].name);
    RS_TRY(list.status);
    rs_status status = rs_error_set(
        RS_ERR_ARGUMENT, "to \"%s\": must be one of %s", to != NULL ? to : "", list.data);
    rs_text_fini(&list);
    return status;
}

/* The source under the names that are to be written; `*renamed` stays NULL where it has them. */
static rs_status rename_source(const rs_checkpoint *source, const rs_writer *writer,
    const rs_convert_options *options, rs_checkpoint **renamed)
{
    bool hub = options->dialect == NULL && writer->foreign && rs_checkpoint_is_canonical(source);
    rs_rename_options how = {
        .from = options->from, .to = options->dialect, .space = options->space};
    rs_dialect *dialect = NULL;
    if (options->dialect == NULL && !hub)
        return RS_OK;
    if (hub)
        RS_TRY(rs_dialect_load("hf", &dialect));
    if (hub)
        how.to = dialect;
    rs_status status = rs_checkpoint_rename(source, &how, renamed);
    rs_dialect_destroy(dialect);
    return status;
}

rs_status rs_convert(const rs_checkpoint *source, const char *target,
    const rs_convert_options *options, rs_convert_report *report)
{
    rs_checkpoint *renamed = NULL;
    rs_writing w = {.catalog = rs_checkpoint_catalog(source), .options = options};
    char *clean = NULL, *aside = NULL;
    const rs_writer *writer = options->to != NULL ? rs_writer_find(options->to) : NULL;
    if (writer == NULL)
        return no_writer(options->to);
    bool exists = access(target, F_OK) == 0;
    if (exists && !options->force && !options->dry_run)
        return rs_error_set(RS_ERR_EXISTS, "%s: is there already (--force replaces it)", target);
    rs_status status = make_paths(target, &clean, &aside);
    if (status == RS_OK) {
        w.folder = aside;
        w.name = rs_path_base(clean);
        status = rename_source(source, writer, options, &renamed);
    }
    if (renamed != NULL)
        w.catalog = rs_checkpoint_catalog(renamed);
    if (status == RS_OK)
        status = rs_select(&w, writer);
    if (status == RS_OK && options->dry_run && strcmp(options->to, "safetensors") == 0)
        status = rs_companions_copy(options->hub, NULL, &w.report);
    if (status == RS_OK && !options->dry_run)
        status = write_all(&w, writer, clean, exists);
    if (status == RS_OK && report != NULL)
        *report = w.report;
    rs_logical_fini(&w.tensors);
    json_decref(w.extras);
    rs_checkpoint_close(renamed);
    free(clean);
    free(aside);
    return status;
}
