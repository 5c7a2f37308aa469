/*
 * Conversion: logical tensors of a catalog, streamed into files of another format.
 *
 * A writer (writer.h) plans what is to be written from the descriptions alone: names, files, every
 * byte's place. output_write.c then makes it so, in "TARGET.tmp-reshard", which is renamed when all
 * of it is synced.
 *
 * 1. Each byte is read once, and what is there more than once is compared; no temporary space is
 *    used beside the result.
 * 2. Memory: a fixed number of buffers, whatever the sizes.
 * 3. The same source gives the same bytes, whatever threads and processes do it.
 * 4. Rank 0 of a group makes, renames and removes; the outcome of each phase is agreed on, so that
 *    it removes nothing to which another process still writes.
 */
#include "reshard/convert.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/checkpoint.h"
#include "ckpt/companions.h"
#include "ckpt/file.h"
#include "ckpt/format.h"
#include "ckpt/publish.h"
#include "ckpt/select.h"
#include "ckpt/writer.h"

#define SHARD_BYTES INT64_C(5000000000)
#define ASIDE ".tmp-reshard"

static const rs_writer *const writers[] = {
    &rs_writer_native, &rs_writer_safetensors, &rs_writer_torch, &rs_writer_universal};

int64_t rs_writing_shard_bytes(const rs_writing *w)
{
    return w->options->shard_bytes > 0 ? w->options->shard_bytes : SHARD_BYTES;
}

static rs_status find_writer(const char *name, const rs_writer **out)
{
    rs_text list = {0};
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        if (name != NULL && strcmp(writers[i]->name, name) == 0) {
            rs_text_fini(&list);
            *out = writers[i];
            return RS_OK;
        }
        rs_text_append(&list, "%s%s", i > 0 ? ", " : "", writers[i]->name);
    }
    rs_status status = rs_error_set(RS_ERR_ARGUMENT, "to \"%s\": must be one of %s",
        name != NULL ? name : "", list.data != NULL ? list.data : "");
    rs_text_fini(&list);
    return status;
}

/* ---- the target ---- */

typedef struct place {
    char *folder; /* that the target stands in */
    char *name;
    char *aside; /* name, while it is not complete */
    char *path;  /* of `aside` */
    char *from;  /* what becomes the target, below `folder`: `aside`, or the file in it */
    int lock;    /* of `aside`, held by rank 0; -1: none */
} place;

static void place_fini(place *p)
{
    free(p->folder);
    free(p->name);
    free(p->aside);
    free(p->path);
    free(p->from);
    if (p->lock >= 0)
        close(p->lock);
}

static rs_status place_init(place *p, const char *target, bool file)
{
    size_t length = strlen(target);
    rs_text text = {0};
    *p = (place){.folder = rs_strdup(target), .lock = -1};
    if (p->folder == NULL)
        return rs_error_memory(length);
    while (length > 1 && p->folder[length - 1] == '/')
        p->folder[--length] = '\0';
    char *slash = strrchr(p->folder, '/');
    p->name = rs_strdup(slash != NULL ? slash + 1 : p->folder);
    if (p->name == NULL)
        return rs_error_memory(length);
    if (p->name[0] == '\0' || strcmp(p->name, ".") == 0 || strcmp(p->name, "..") == 0)
        return rs_error_set(RS_ERR_ARGUMENT, "\"%s\" is no name for a folder to write", target);
    if (slash != NULL)
        slash[slash == p->folder ? 1 : 0] = '\0';
    else
        memcpy(p->folder, ".", 2);
    rs_text_append(&text, "%s" ASIDE, p->name);
    RS_TRY(rs_text_take(&text, &p->aside));
    rs_text_append(&text, file ? "%s/%s" : "%s", p->aside, p->name);
    RS_TRY(rs_text_take(&text, &p->from));
    return rs_path_join(p->folder, p->aside, &p->path);
}

static bool is_there(const char *target)
{
    struct stat about;
    return lstat(target, &about) == 0; /* a link to nowhere is something, too */
}

static rs_status there_already(const char *target)
{
    return rs_error_set(RS_ERR_EXISTS, "%s: is there already (--force replaces it)", target);
}

/* RS_ERR_EXISTS if a file that is read lies in what would be removed. */
static rs_status check_apart(const rs_files *files, const char *target)
{
    struct stat about;
    rs_status status = RS_OK;
    if (lstat(target, &about) != 0 || S_ISLNK(about.st_mode))
        return RS_OK; /* of a link, nothing but the link is removed */
    char *top = realpath(target, NULL);
    size_t length = top != NULL ? strlen(top) : 0;
    for (int i = 0; i < rs_files_count(files) && length > 0 && status == RS_OK; i++) {
        char *path = realpath(rs_files_path(files, i), NULL);
        if (path != NULL && strncmp(path, top, length) == 0 &&
            (path[length] == '/' || path[length] == '\0'))
            status = rs_error_set(RS_ERR_EXISTS,
                "%s: has %s, which is read: a conversion does not replace its source", target,
                rs_files_path(files, i));
        free(path);
    }
    free(top);
    return status;
}

/* Rank 0: makes the folder that is written to, empty. */
static rs_status begin(const rs_writing *w, place *p, const char *target)
{
    if (rs_group_rank(w->options->group) != 0)
        return RS_OK;
    if (!rs_is_folder(p->folder))
        return rs_error_errno(is_there(p->folder) ? ENOTDIR : errno, "cannot make %s", target);
    RS_TRY(rs_publish_aside(p->path, target, &p->lock));
    rs_status status = rs_publish_restore(p->folder, p->name);
    if (status == RS_OK && is_there(target) && !w->options->force)
        status = there_already(target);
    if (status != RS_OK)
        (void)rmdir(p->path);
    return status;
}

/* Rank 0: completes what was written and puts it where it belongs. */
static rs_status end(rs_writing *w, const rs_writer *writer, const place *p, const char *target)
{
    if (rs_group_rank(w->options->group) != 0)
        return RS_OK;
    if (writer->finish != NULL)
        RS_TRY(writer->finish(w));
    RS_TRY(rs_sync_folder(p->path));
    if (is_there(target))
        RS_TRY(rs_publish_replace(p->folder, p->from, p->name));
    else
        RS_TRY(rs_publish_rename(p->folder, p->from, p->name));
    return writer->file ? rs_remove_folder(p->path) : RS_OK;
}

/* ---- the whole ---- */

typedef struct completing {
    rs_writing *w;
    const rs_writer *writer;
} completing;

static rs_status complete(void *context, int file)
{
    const completing *it = context;
    return it->writer->complete(it->w, file);
}

static rs_status write_all(rs_writing *w, const rs_writer *writer, place *p, const char *target)
{
    const rs_convert_options *o = w->options;
    completing it = {w, writer};
    bool begun = false;
    rs_status status;
    w->folder = p->path;
    RS_TRY_GOTO(rs_group_agree(o->group, begin(w, p, target)), out);
    begun = true;
    const rs_output_how how = {.catalog = w->catalog,
        .folder = p->path,
        .memory = o->memory,
        .threads = o->threads,
        .group = o->group,
        .complete = writer->complete != NULL ? complete : NULL,
        .context = &it,
        .progress = o->progress,
        .progress_context = o->context,
        .cancelled = o->cancelled,
        .cancelled_context = o->context};
    RS_TRY_GOTO(rs_output_write(&w->output, &how), out);
    RS_TRY_GOTO(rs_group_agree(o->group, end(w, writer, p, target)), out);
out:
    if (status != RS_OK && begun && rs_group_rank(o->group) == 0) {
        char message[1000];
        snprintf(message, sizeof message, "%s", rs_error_message());
        rs_status removed = rs_remove_folder(p->path);
        status = rs_error_set(status, "%s%s", message,
            removed != RS_OK ? " (and what was written cannot be removed)" : "");
    }
    return status;
}

/* ---- what is to be known of the source ---- */

static rs_status count(void *context, const char *text)
{
    (void)text;
    ++*(uint64_t *)context;
    return RS_OK;
}

static rs_status tell(void *context, const char *text)
{
    rs_writing_warn(context, "%s", text);
    return RS_OK;
}

static void tell_warnings(const rs_writing *w)
{
    for (size_t i = 0; i < w->catalog->warnings.count; i++)
        rs_writing_warn(w, "%s", w->catalog->warnings.items[i]);
}

/* True if an entry is written, or is what params that are written are rounded from. */
static bool is_read(const rs_writing *w, const rs_writer *writer, const rs_catalog *source, int id)
{
    const rs_checkpoint_entry *entry = &rs_catalog_get(source, id)->is;
    if (rs_select_takes(w, writer, entry->role))
        return true;
    int param = rs_catalog_find(source, entry->name, "param");
    const rs_catalog_entry *rounded = param >= 0 ? rs_catalog_get(source, param) : NULL;
    return rounded != NULL && rounded->how == RS_ENTRY_ROUNDED && rounded->source == id;
}

static rs_status check_one(const rs_writing *w, const rs_catalog *source, int id, uint64_t *differs)
{
    RS_TRY(rs_writing_goes_on(w));
    return rs_catalog_check_replicas(source, id, count, differs);
}

/*
 * Tells where replicas disagree, of which the first is what is written. The processes share them;
 * what differs then all compare, so that all can tell it.
 */
static rs_status check_replicas(
    const rs_writing *w, const rs_writer *writer, const rs_catalog *source)
{
    const rs_group *group = w->options->group;
    size_t entries = source->entries.count;
    uint64_t *differing = rs_calloc(entries, sizeof *differing);
    rs_status status = differing != NULL ? RS_OK : rs_error_memory(entries * sizeof *differing);
    for (size_t id = 0; id < entries && status == RS_OK; id++)
        if ((int)(id % (size_t)rs_group_size(group)) == rs_group_rank(group) &&
            is_read(w, writer, source, (int)id))
            status = check_one(w, source, (int)id, &differing[id]);
    RS_TRY_GOTO(rs_group_agree(group, status), out);
    RS_TRY_GOTO(rs_group_add(group, differing, entries), out);
    for (size_t id = 0; id < entries && status == RS_OK; id++)
        if (differing[id] > 0)
            status = rs_catalog_check_replicas(source, (int)id, tell, (void *)w);
    status = rs_group_agree(group, status);
out:
    free(differing);
    return status;
}

/* Adds up what all processes have read. */
static rs_status count_read(rs_writing *w)
{
    uint64_t read = (uint64_t)rs_files_read_bytes(w->catalog->files);
    RS_TRY(rs_group_add(w->options->group, &read, 1));
    w->report.bytes_read = (int64_t)read;
    return RS_OK;
}

/* What a dry run can see of what would be refused. */
static void tell_obstacles(const rs_writing *w, const place *p, const char *target)
{
    if (is_there(target) && !w->options->force)
        rs_writing_warn(w, "%s: is there already (--force replaces it)", target);
    if (!rs_is_folder(p->folder))
        rs_writing_warn(w, "%s: is no folder that %s can be written to", p->folder, p->name);
    else if (access(p->folder, W_OK) != 0)
        rs_writing_warn(w, "%s: nothing can be written to this folder", p->folder);
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

/* `*view` is what the writer wants for a source, for the caller to destroy; NULL: what is there. */
static rs_status plan(rs_writing *w, const rs_writer *writer, rs_catalog **view)
{
    if (writer->view != NULL)
        RS_TRY(writer->view(w, view));
    if (*view != NULL)
        w->catalog = *view;
    RS_TRY(rs_select(w, writer));
    RS_TRY(writer->plan(w));
    w->report.files = (int)w->output.files.count;
    if (w->options->dry_run && writer == &rs_writer_safetensors)
        RS_TRY(rs_companions_copy(w->options->hub, NULL, &w->report));
    return RS_OK;
}

rs_status rs_convert(const rs_checkpoint *source, const char *target,
    const rs_convert_options *options, rs_convert_report *report)
{
    rs_checkpoint *renamed = NULL;
    rs_writing w = {.catalog = rs_checkpoint_catalog(source), .options = options};
    const rs_writer *writer = NULL;
    rs_catalog *view = NULL;
    place p = {.lock = -1};
    rs_status status = find_writer(options->to, &writer);
    if (status == RS_OK)
        status = place_init(&p, target, writer->file);
    if (status == RS_OK && is_there(target) && !options->force && !options->dry_run)
        status = there_already(target);
    if (status == RS_OK && options->force)
        status = check_apart(w.catalog->files, target);
    w.name = p.name;
    if (status == RS_OK)
        status = rename_source(source, writer, options, &renamed);
    if (renamed != NULL)
        w.catalog = rs_checkpoint_catalog(renamed);
    const rs_catalog *named = w.catalog;
    if (status == RS_OK)
        status = plan(&w, writer, &view);
    RS_TRY_GOTO(rs_group_agree(options->group, status), out);
    tell_warnings(&w);
    if (options->dry_run) {
        tell_obstacles(&w, &p, target);
    } else {
        RS_TRY_GOTO(check_replicas(&w, writer, named), out);
        RS_TRY_GOTO(write_all(&w, writer, &p, target), out);
    }
    RS_TRY_GOTO(count_read(&w), out);
    if (report != NULL)
        *report = w.report;
out:
    if (w.own != NULL)
        writer->fini(&w);
    rs_output_fini(&w.output);
    rs_logical_fini(&w.tensors);
    json_decref(w.extras);
    rs_catalog_destroy(view);
    rs_checkpoint_close(renamed);
    place_fini(&p);
    return status;
}
