/*
 * The record: which arenas are the job's state.
 *
 * JOB/state.json is written beside, synced, renamed into place, and the folder is synced: a crash,
 * of the process or of the machine, leaves the old record or the new one, whole. docs/elastic.md
 * lists the members.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "reshard/elastic.h"

#define NAME "state.json"
#define VERSION 1
#define MAX_RANKS (1 << 20)

static void read_boot(char *boot, size_t size)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    boot[0] = '\0';
    if (file == NULL)
        return;
    if (fgets(boot, (int)size, file) == NULL)
        boot[0] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    fclose(file);
}

void rs_record_init(rs_record *record)
{
    *record = (rs_record){.building = -1};
    read_boot(record->boot, sizeof record->boot);
}

void rs_record_fini(rs_record *record)
{
    free(record->numbering);
    free(record->nodes);
    free(record->run);
    record->numbering = NULL;
    record->nodes = NULL;
    record->run = NULL;
    record->numbering_count = record->node_count = 0;
}

rs_status rs_record_check_boot(const rs_record *record)
{
    char boot[sizeof record->boot];
    read_boot(boot, sizeof boot);
    if (strcmp(boot, record->boot) != 0)
        return rs_error_set(RS_ERR_MISMATCH,
            "the machine was started anew since (or this is another machine): what was in memory "
            "is gone");
    return RS_OK;
}

static rs_status path_of(const char *job, const char *end, char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s/" NAME "%s", job, end);
    if (n < 0 || n >= PATH_MAX)
        return rs_error_set(RS_ERR_ARGUMENT, "the path of the job directory is too long");
    return RS_OK;
}

/* ---- reading ---- */

static rs_status take_text(const json_t *root, const char *key, char *to, size_t size)
{
    const json_t *value = json_object_get(root, key);
    if (!json_is_string(value) || json_string_length(value) >= size)
        return rs_error_set(
            RS_ERR_MALFORMED, "member \"%s\": wanted a text of at most %zu bytes", key, size - 1);
    memcpy(to, json_string_value(value), json_string_length(value) + 1);
    return RS_OK;
}

static rs_status take_number(
    const json_t *root, const char *key, int64_t least, int64_t most, int64_t *to)
{
    const json_t *value = json_object_get(root, key);
    int64_t found = json_integer_value(value);
    if (!json_is_integer(value) || found < least || found > most)
        return rs_error_set(RS_ERR_MALFORMED,
            "member \"%s\": wanted a number from %" PRId64 " to %" PRId64, key, least, most);
    *to = found;
    return RS_OK;
}

/* An array with a number for each rank, or none. */
static rs_status take_ranks(const json_t *root, const char *key, int **out, size_t *out_count)
{
    const json_t *value = json_object_get(root, key);
    if (value == NULL || json_is_null(value))
        return RS_OK;
    size_t count = json_array_size(value);
    if (count == 0 || count > MAX_RANKS)
        return rs_error_set(
            RS_ERR_MALFORMED, "member \"%s\": wanted an array of 1 to %d ranks", key, MAX_RANKS);
    *out = rs_calloc(count, sizeof **out);
    if (*out == NULL)
        return rs_error_memory(count * sizeof **out);
    *out_count = count;
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 ||
            json_integer_value(item) >= MAX_RANKS)
            return rs_error_set(RS_ERR_MALFORMED, "member \"%s\", item %zu: no rank", key, i);
        (*out)[i] = (int)json_integer_value(item);
    }
    return RS_OK;
}

static rs_status from_json(const json_t *root, rs_record *out)
{
    int64_t version = 0, generation = 0, building = -1;
    RS_TRY(take_number(root, "version", VERSION, VERSION, &version));
    RS_TRY(take_number(root, "epoch", 1, INT64_MAX, &out->epoch));
    RS_TRY(take_text(root, "job", out->job, sizeof out->job));
    RS_TRY(take_text(root, "boot", out->boot, sizeof out->boot));
    RS_TRY(take_text(root, "folder", out->folder, sizeof out->folder));
    RS_TRY(take_number(root, "generation", 0, INT_MAX, &generation));
    RS_TRY(take_text(root, "layout", out->layout, sizeof out->layout));
    RS_TRY(take_ranks(root, "numbering", &out->numbering, &out->numbering_count));
    RS_TRY(take_ranks(root, "nodes", &out->nodes, &out->node_count));
    RS_TRY(take_number(root, "building", -1, INT_MAX, &building));
    RS_TRY(take_text(root, "building_layout", out->building_layout, sizeof out->building_layout));
    RS_TRY(take_number(root, "building_step", 0, INT64_MAX, &out->building_step));
    out->generation = (int)generation;
    out->building = (int)building;
    const json_t *run = json_object_get(root, "run");
    if (json_is_object(run) &&
        (out->run = json_dumps(run, JSON_COMPACT | JSON_REAL_PRECISION(17))) == NULL)
        return rs_error_memory(1);
    return RS_OK;
}

rs_status rs_record_read(const char *job, rs_record *out)
{
    char path[PATH_MAX];
    json_error_t error;
    *out = (rs_record){.building = -1};
    RS_TRY(path_of(job, "", path));
    if (access(path, F_OK) != 0)
        return rs_error_errno(errno, "%s", path);
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    rs_status status = json_is_object(root)
                           ? from_json(root, out)
                           : rs_error_set(RS_ERR_MALFORMED, "line %d: %s", error.line, error.text);
    json_decref(root);
    if (status != RS_OK) {
        rs_record_fini(out);
        return rs_error_context(status, "%s", path);
    }
    return RS_OK;
}

/* ---- writing ---- */

static json_t *ranks_json(const int *numbers, size_t count)
{
    json_t *array = numbers != NULL ? json_array() : json_null();
    for (size_t i = 0; numbers != NULL && i < count; i++)
        if (json_array_append_new(array, json_integer(numbers[i])) != 0)
            break;
    return array;
}

static json_t *to_json(const rs_record *r)
{
    json_t *run = r->run != NULL ? json_loads(r->run, 0, NULL) : json_object();
    return json_pack("{s:i,s:I,s:s,s:s,s:s,s:i,s:s,s:o,s:o,s:i,s:s,s:I,s:o}", "version", VERSION,
        "epoch", (json_int_t)r->epoch, "job", r->job, "boot", r->boot, "folder", r->folder,
        "generation", r->generation, "layout", r->layout, "numbering",
        ranks_json(r->numbering, r->numbering_count), "nodes", ranks_json(r->nodes, r->node_count),
        "building", r->building, "building_layout", r->building_layout, "building_step",
        (json_int_t)r->building_step, "run", run);
}

static rs_status sync_folder(const char *job)
{
    int fd = open(job, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return rs_error_errno(errno, "cannot open %s", job);
    rs_status status = RS_OK;
    if (fsync(fd) != 0)
        status = rs_error_errno(errno, "cannot sync %s", job);
    close(fd);
    return status;
}

/* Writes `aside`, which errors call `path`, as it will be called. */
static rs_status write_synced(const char *aside, const char *path, const char *text)
{
    size_t bytes = strlen(text);
    int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return rs_error_errno(errno, "cannot create %s", path);
    rs_status status = RS_OK;
    while (bytes > 0 && status == RS_OK) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            status = rs_error_errno(errno, "cannot write %s", path);
        text += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    if (status == RS_OK && fsync(fd) != 0)
        status = rs_error_errno(errno, "cannot sync %s", path);
    close(fd);
    return status;
}

rs_status rs_record_write(const char *job, const rs_record *record)
{
    char path[PATH_MAX], aside[PATH_MAX];
    RS_TRY(path_of(job, "", path));
    RS_TRY(path_of(job, ".new", aside));
    json_t *root = to_json(record);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    if (text == NULL)
        return rs_error_set(RS_ERR_ARGUMENT, "the job's record cannot be written as JSON");
    rs_status status = write_synced(aside, path, text);
    free(text);
    if (status == RS_OK && rename(aside, path) != 0)
        status = rs_error_errno(errno, "cannot rename %s to %s", aside, path);
    if (status != RS_OK) {
        unlink(aside);
        return status;
    }
    return sync_folder(job);
}

rs_status rs_record_remove(const char *job)
{
    char path[PATH_MAX];
    RS_TRY(path_of(job, ".new", path));
    unlink(path);
    RS_TRY(path_of(job, "", path));
    if (unlink(path) != 0 && errno != ENOENT)
        return rs_error_errno(errno, "cannot remove %s", path);
    return RS_OK;
}
