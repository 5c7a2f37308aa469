/*
 * The committer's part of a save, and the folder in which a job's checkpoints stand.
 *
 * Order of a commit, each step done before the next: (1) all data files are written and synced, by
 * their ranks; (2) the manifest is written and synced; (3) the folder of the save is synced; (4) it
 * is renamed from "step-N.tmp-JOB" to "step-N"; (5) the folder of checkpoints is synced; (6)
 * `latest` is replaced the same way. A kill before (4) leaves a folder whose name says that it is
 * unfinished and that has no manifest or one that nobody looks for there; after (4) the checkpoint
 * is complete, and only `latest` may still name the one before.
 *
 * Removing a checkpoint goes backwards: it is renamed to an unfinished name first.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "base/text.h"
#include "ckpt/format.h"
#include "ckpt/logical.h"
#include "ckpt/native_names.h"
#include "ckpt/publish.h"
#include "reshard/certificate.h"

#define NAME_MOST 64
#define ABANDONED ".abandoned"
#define UNFINISHED ".tmp-"
#define LIST_SHOWN 20

/* ---- names ---- */

char *rs_native_step_name(int64_t step, char text[RS_NATIVE_NAME])
{
    snprintf(text, RS_NATIVE_NAME, "step-%08" PRId64, step);
    return text;
}

rs_status rs_native_aside_name(const rs_save_name *name, char text[RS_NATIVE_NAME])
{
    size_t length = strlen(name->job);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)name->job[i]) && name->job[i] != '-' && name->job[i] != '_')
            length = 0;
    if (length == 0 || length > NAME_MOST || name->step < 0)
        return rs_error_set(RS_ERR_ARGUMENT,
            "job \"%s\", step %lld: no name of a save (letters, digits, '-', '_'; at most %d)",
            name->job, (long long)name->step, NAME_MOST);
    snprintf(text, RS_NATIVE_NAME, "step-%08" PRId64 UNFINISHED "%s", name->step, name->job);
    return RS_OK;
}

bool rs_native_read_name(const char *name, int64_t *step, const char **rest)
{
    char *end;
    if (strncmp(name, "step-", 5) != 0 || !isdigit((unsigned char)name[5]))
        return false;
    errno = 0;
    long long number = strtoll(name + 5, &end, 10);
    if (errno != 0 || end - name < 13)
        return false;
    *step = number;
    *rest = end;
    return true;
}

bool rs_native_is_aside(const char *name)
{
    int64_t step;
    const char *rest;
    return rs_native_read_name(name, &step, &rest) &&
           (strncmp(rest, UNFINISHED, strlen(UNFINISHED)) == 0 ||
               strncmp(rest, ABANDONED, strlen(ABANDONED)) == 0);
}

char *rs_native_file_name(int rank, char text[RS_NATIVE_NAME])
{
    snprintf(text, RS_NATIVE_NAME, "rank-%05d.safetensors", rank);
    return text;
}

/* ---- the folder of checkpoints ---- */

static int newest_first(const void *a, const void *b)
{
    return rs_compare_int64s(b, a);
}

static rs_status list_steps(const char *folder, int64_t **steps, size_t *count)
{
    rs_place place;
    int64_t *found = NULL, step;
    const char *rest;
    *count = 0;
    if (access(folder, F_OK) != 0 && errno == ENOENT) {
        *steps = NULL;
        return RS_OK;
    }
    RS_TRY(rs_place_init(&place, folder));
    rs_status status = RS_OK;
    found = rs_calloc(place.count, sizeof *found);
    if (found == NULL)
        status = rs_error_memory(place.count * sizeof *found);
    for (size_t i = 0; i < place.count && status == RS_OK; i++)
        if (rs_native_read_name(place.names[i], &step, &rest) && *rest == '\0')
            found[(*count)++] = step;
    rs_place_fini(&place);
    if (status != RS_OK)
        return status;
    qsort(found, *count, sizeof *found, newest_first);
    *steps = found;
    return RS_OK;
}

/* The name in `latest`, without blanks; NULL where there is no such file. free() it. */
static rs_status read_latest(const char *folder, char **out)
{
    char *path = NULL;
    size_t length;
    *out = NULL;
    RS_TRY(rs_path_join(folder, RS_NATIVE_LATEST, &path));
    rs_status status = RS_OK;
    if (access(path, F_OK) == 0) {
        status = rs_file_text(path, 4096, out, &length);
        while (status == RS_OK && length > 0 && isspace((unsigned char)(*out)[length - 1]))
            (*out)[--length] = '\0';
    }
    free(path);
    return status;
}

rs_status rs_native_find(const char *folder, int64_t **steps, size_t *count)
{
    char *latest = NULL, name[RS_NATIVE_NAME];
    int64_t *found = NULL;
    size_t n = 0;
    rs_status status;
    RS_TRY(list_steps(folder, &found, &n));
    RS_TRY_GOTO(read_latest(folder, &latest), fail);
    bool there = latest == NULL;
    for (size_t i = 0; i < n; i++)
        there = there || strcmp(latest, rs_native_step_name(found[i], name)) == 0;
    if (!there) {
        rs_text list = {0};
        for (size_t i = 0; i < n && i < LIST_SHOWN; i++)
            rs_text_append(&list, "%s%s", i > 0 ? ", " : "", rs_native_step_name(found[i], name));
        status = rs_error_set(RS_ERR_NOT_FOUND,
            "%s/" RS_NATIVE_LATEST " names \"%s\", which is not there; checkpoints here: %s%s",
            folder, latest, n > 0 && list.data != NULL ? list.data : "none",
            n > LIST_SHOWN ? ", ..." : "");
        rs_text_fini(&list);
        goto fail;
    }
    free(latest);
    *steps = found;
    *count = n;
    return RS_OK;

fail:
    free(latest);
    free(found);
    return status;
}

rs_status rs_native_abandon_after(const char *folder, int64_t step, size_t *count)
{
    int64_t *steps = NULL;
    size_t n = 0, done = 0;
    char name[RS_NATIVE_NAME], aside[RS_NATIVE_NAME + 32];
    rs_status status;
    RS_TRY(list_steps(folder, &steps, &n));
    bool newer = n > 0 && steps[0] > step;
    if (newer)
        RS_TRY_GOTO(
            rs_publish_text(folder, RS_NATIVE_LATEST, rs_native_step_name(step, name)), out);
    for (size_t i = 0; i < n && steps[i] > step; i++) {
        rs_native_step_name(steps[i], name);
        status = RS_ERR_EXISTS;
        for (int k = 1; k < 10000 && status == RS_ERR_EXISTS; k++) {
            char *path;
            snprintf(aside, sizeof aside, "%s" ABANDONED "-%d", name, k);
            RS_TRY_GOTO(rs_path_join(folder, aside, &path), out);
            if (access(path, F_OK) != 0)
                status = rs_publish_rename(folder, name, aside);
            free(path);
        }
        if (status != RS_OK)
            goto out;
        done++;
    }
    if (count != NULL)
        *count = done;
out:
    free(steps);
    return status;
}

/* Renames a checkpoint to an unfinished name and removes it. */
static rs_status remove_step(const char *folder, int64_t step)
{
    char name[RS_NATIVE_NAME], aside[RS_NATIVE_NAME + 32];
    char *path = NULL;
    rs_native_step_name(step, name);
    snprintf(aside, sizeof aside, "%s" UNFINISHED "removed", name);
    RS_TRY(rs_path_join(folder, aside, &path));
    rs_status status = rs_remove_folder(path);
    if (status == RS_OK)
        status = rs_publish_rename(folder, name, aside);
    if (status == RS_OK)
        status = rs_remove_folder(path);
    free(path);
    return status;
}

rs_status rs_save_prune(const char *folder, int64_t keep)
{
    int64_t *steps = NULL;
    size_t count = 0;
    char *latest = NULL, name[RS_NATIVE_NAME];
    rs_status status;
    RS_TRY(list_steps(folder, &steps, &count));
    RS_TRY_GOTO(read_latest(folder, &latest), out);
    for (size_t i = (size_t)keep; i < count; i++) {
        if (latest != NULL && strcmp(latest, rs_native_step_name(steps[i], name)) == 0)
            continue;
        RS_TRY_GOTO(remove_step(folder, steps[i]), out);
    }
out:
    free(latest);
    free(steps);
    return status;
}

rs_status rs_save_clean(const char *folder)
{
    rs_place place;
    int64_t step;
    const char *rest;
    if (access(folder, F_OK) != 0 && errno == ENOENT)
        return RS_OK;
    RS_TRY(rs_place_init(&place, folder));
    rs_status status = RS_OK;
    for (size_t i = 0; i < place.count && status == RS_OK; i++) {
        const char *name = place.names[i];
        char *path = NULL;
        bool unfinished = rs_native_read_name(name, &step, &rest) &&
                          strncmp(rest, UNFINISHED, strlen(UNFINISHED)) == 0;
        bool pointer =
            strncmp(name, RS_NATIVE_LATEST UNFINISHED, strlen(RS_NATIVE_LATEST UNFINISHED)) == 0;
        if (!unfinished && !pointer)
            continue;
        RS_TRY_GOTO(rs_path_join(folder, name, &path), out);
        if (unfinished && rs_is_folder(path))
            status = rs_remove_folder(path);
        else if (pointer && unlink(path) != 0 && errno != ENOENT)
            status = rs_error_errno(errno, "cannot remove %s", path);
        free(path);
    }
out:
    rs_place_fini(&place);
    return status;
}

/* ---- a save ---- */

static rs_status aside_path(const rs_save_name *name, char **out)
{
    char aside[RS_NATIVE_NAME];
    RS_TRY(rs_native_aside_name(name, aside));
    return rs_path_join(name->folder, aside, out);
}

rs_status rs_save_prepare(const rs_save_name *name)
{
    char *aside = NULL, *final = NULL, step[RS_NATIVE_NAME];
    rs_status status;
    RS_TRY_GOTO(rs_publish_folder(name->folder), out);
    RS_TRY_GOTO(aside_path(name, &aside), out);
    RS_TRY_GOTO(rs_path_join(name->folder, rs_native_step_name(name->step, step), &final), out);
    if (access(final, F_OK) == 0)
        RS_TRY_GOTO(
            rs_error_set(RS_ERR_EXISTS, "%s: there is a checkpoint of this step", final), out);
    RS_TRY_GOTO(rs_remove_folder(aside), out);
    RS_TRY_GOTO(rs_make_folder(aside), out);
out:
    free(final);
    free(aside);
    return status;
}

rs_status rs_save_abandon(const rs_save_name *name)
{
    char *aside = NULL;
    RS_TRY(aside_path(name, &aside));
    rs_status status = rs_remove_folder(aside);
    free(aside);
    return status;
}

/* Adds a record's content sums to those of the whole; `words` has two per (tensor, role). */
static rs_status add_sums(const rs_space *space, const json_t *file, uint64_t *words)
{
    size_t i;
    const json_t *shard;
    json_array_foreach(json_object_get(file, "shards"), i, shard)
    {
        const char *tensor = json_string_value(json_object_get(shard, "tensor"));
        const char *role = json_string_value(json_object_get(shard, "role"));
        const char *sum = json_string_value(json_object_get(shard, "sum"));
        int t = tensor != NULL ? rs_space_find_tensor(space, tensor) : -1;
        int r = role != NULL ? rs_space_find_role(space, role) : -1;
        uint64_t lane[2];
        if (t < 0 || r < 0 || sum == NULL ||
            sscanf(sum, "%16" SCNx64 "%16" SCNx64, &lane[0], &lane[1]) != 2)
            return rs_error_set(RS_ERR_ARGUMENT, "a record names what the space does not have");
        uint64_t *at = words + 2 * (t * rs_space_role_count(space) + r);
        at[0] += lane[0];
        at[1] += lane[1];
    }
    return RS_OK;
}

/* The file that a record names is in the folder, in full. */
static rs_status check_file(const char *aside, const json_t *file)
{
    struct stat about;
    char *path = NULL;
    RS_TRY(rs_path_join(aside, json_string_value(json_object_get(file, "name")), &path));
    long long wanted = json_integer_value(json_object_get(file, "bytes"));
    rs_status status = RS_OK;
    if (stat(path, &about) != 0)
        status = rs_error_errno(errno,
            "%s: rank %lld has written it, but it is not here (are the ranks' folders on one "
            "shared file system?)",
            path, (long long)json_integer_value(json_object_get(file, "rank")));
    else if (about.st_size != wanted)
        status = rs_error_set(RS_ERR_IO, "%s: has %lld bytes, its rank has written %lld", path,
            (long long)about.st_size, wanted);
    free(path);
    return status;
}

/* All records as one array of files, and the sums of all. */
static rs_status gather_files(const char *aside, const rs_space *space, const char *const *records,
    size_t count, json_t *files, uint64_t *words)
{
    for (size_t i = 0; i < count; i++) {
        if (records[i][0] == '\0')
            continue;
        json_t *file = json_loads(records[i], 0, NULL);
        if (!json_is_string(json_object_get(file, "name"))) {
            json_decref(file);
            return rs_error_set(RS_ERR_ARGUMENT, "record %zu is none of rs_save_record's", i);
        }
        rs_status status = check_file(aside, file);
        if (status == RS_OK)
            status = add_sums(space, file, words);
        if (status == RS_OK && json_array_append(files, file) != 0)
            status = rs_error_memory(strlen(records[i]));
        json_decref(file);
        RS_TRY(status);
    }
    return RS_OK;
}

static json_t *role_json(const rs_space *space, int role)
{
    static const char *const classes[] = {"model", "optimizer", "gradient"};
    const rs_role *r = rs_space_role(space, role);
    return json_pack("{s:s,s:s,s:s}", "name", r->name, "dtype", rs_dtype_name(r->dtype), "class",
        classes[r->role_class]);
}

/* A tensor: its shape, the type of each role that it has, and the content sums. */
static json_t *tensor_json(const rs_space *space, int tensor, const uint64_t *words)
{
    const rs_tensor *t = rs_space_tensor(space, tensor);
    json_t *shape = json_array(), *roles = json_object();
    bool bad = shape == NULL || roles == NULL;
    for (int d = 0; d < t->ndim && !bad; d++)
        bad = json_array_append_new(shape, json_integer(t->shape[d])) != 0;
    for (int r = 0; r < rs_space_role_count(space) && !bad; r++) {
        rs_dtype dtype = rs_space_dtype(space, tensor, r);
        if (dtype == RS_DTYPE_NONE)
            continue;
        const uint64_t *w = words + 2 * (tensor * rs_space_role_count(space) + r);
        char sum[33];
        snprintf(sum, sizeof sum, "%016" PRIx64 "%016" PRIx64, w[0], w[1]);
        bad = json_object_set_new(roles, rs_space_role(space, r)->name,
                  json_pack("{s:s,s:s}", "dtype", rs_dtype_name(dtype), "sum", sum)) != 0;
    }
    json_t *out =
        bad ? NULL : json_pack("{s:s,s:O,s:O}", "name", t->name, "shape", shape, "roles", roles);
    bool listed = t->layers != NULL;
    if (out != NULL && (listed || t->layer_first > 0) &&
        json_object_set_new(out, listed ? "layers" : "first_layer",
            listed ? rs_logical_layers(t) : json_integer(t->layer_first)) != 0) {
        json_decref(out);
        out = NULL;
    }
    json_decref(shape);
    json_decref(roles);
    return out;
}

static json_t *manifest_json(const rs_save_name *name, const rs_space *space,
    const rs_save_about *about, const json_t *files, const uint64_t *words)
{
    json_t *roles = json_array(), *tensors = json_array();
    json_t *extras = json_loads(about->extras, 0, NULL), *facts = json_object();
    bool bad = roles == NULL || tensors == NULL || !json_is_object(extras) || facts == NULL;
    for (int i = 0; i < rs_space_fact_count(space) && !bad; i++) {
        const char *key = rs_space_fact_key(space, i);
        bad = json_object_set_new(facts, key, json_string(rs_space_fact(space, key))) != 0;
    }
    for (int r = 0; r < rs_space_role_count(space) && !bad; r++)
        bad = json_array_append_new(roles, role_json(space, r)) != 0;
    for (int t = 0; t < rs_space_tensor_count(space) && !bad; t++)
        bad = json_array_append_new(tensors, tensor_json(space, t, words)) != 0;
    json_t *root =
        bad ? NULL
            : json_pack("{s:s,s:i,s:I,s:s,s:s,s:i,s:O,s:O,s:O,s:O,s:O}", "format", "reshard",
                  "version", RS_NATIVE_VERSION, "step", (json_int_t)name->step, "job", name->job,
                  "layout", about->layout, "world", about->world, "extras", extras, "facts", facts,
                  "roles", roles, "tensors", tensors, "files", files);
    json_decref(roles);
    json_decref(tensors);
    json_decref(extras);
    json_decref(facts);
    return root;
}

static rs_status write_manifest(const char *aside, json_t *root)
{
    rs_out out = {.fd = -1};
    char digest[64];
    char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text == NULL)
        return rs_error_memory(1);
    size_t length = strlen(text) - 1; /* the digest goes before the last brace */
    snprintf(digest, sizeof digest, RS_NATIVE_DIGEST_HEAD "%016" PRIx64 RS_NATIVE_DIGEST_TAIL,
        (uint64_t)XXH3_64bits(text, length));
    rs_status status = rs_out_create(&out, aside, RS_NATIVE_MANIFEST);
    if (status == RS_OK)
        status = rs_out_write(&out, text, length);
    if (status == RS_OK)
        status = rs_out_write(&out, digest, strlen(digest));
    if (status == RS_OK)
        status = rs_out_finish(&out);
    rs_out_fini(&out);
    free(text);
    return status;
}

static rs_status publish(const rs_save_name *name, const rs_save_about *about, const char *aside)
{
    char from[RS_NATIVE_NAME], to[RS_NATIVE_NAME];
    RS_TRY(rs_sync_folder(aside));
    if (about->permit != NULL)
        RS_TRY(about->permit(about->context));
    RS_TRY(rs_native_aside_name(name, from));
    RS_TRY(rs_publish_rename(name->folder, from, rs_native_step_name(name->step, to)));
    return rs_publish_text(name->folder, RS_NATIVE_LATEST, to);
}

rs_status rs_save_commit(const rs_save_name *name, const rs_space *space,
    const rs_save_about *about, const char *const *records, size_t count)
{
    char *aside = NULL;
    json_t *files = json_array(), *root = NULL;
    size_t pairs = (size_t)rs_space_tensor_count(space) * (size_t)rs_space_role_count(space);
    uint64_t *words = rs_calloc(2 * pairs, sizeof *words);
    rs_status status = RS_OK;
    if (files == NULL || words == NULL)
        RS_TRY_GOTO(rs_error_memory(2 * pairs * sizeof *words), out);
    RS_TRY_GOTO(aside_path(name, &aside), out);
    RS_TRY_GOTO(gather_files(aside, space, records, count, files, words), out);
    root = manifest_json(name, space, about, files, words);
    if (root == NULL)
        RS_TRY_GOTO(rs_error_set(RS_ERR_ARGUMENT, "cannot write the manifest as JSON"), out);
    RS_TRY_GOTO(write_manifest(aside, root), out);
    RS_TRY_GOTO(publish(name, about, aside), out);
out:
    json_decref(root);
    json_decref(files);
    free(words);
    free(aside);
    return status;
}
