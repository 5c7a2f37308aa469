/*
 * Places: what is at a path, seen once.
 *
 * The files of a checkpoint may lie in several folders, as on the disks of the nodes that wrote
 * them. A place is then all of these: a name is looked for in each. What more than one has must be
 * the same to the byte, which is compared when it is asked for, so that only files that are read
 * count: a copy of a model file on every node is one file, two files of one rank are no checkpoint.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/format.h"

#define FOLDER_MOST 1000000
#define COMPARED ((int64_t)1 << 20)

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static rs_status list_folder(rs_place *place, const char *path, size_t *capacity)
{
    rs_status status = RS_OK;
    DIR *folder = opendir(path);
    if (folder == NULL)
        return rs_error_errno(errno, "%s: cannot list it", path);
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL) {
            if (errno != 0)
                status = rs_error_errno(errno, "%s: cannot list it", path);
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (place->count == FOLDER_MOST) {
            status = rs_error_set(RS_ERR_BUDGET, "%s: more than %d entries", path, FOLDER_MOST);
            break;
        }
        status = rs_array_reserve(
            (void **)&place->names, capacity, place->count + 1, sizeof *place->names);
        if (status != RS_OK)
            break;
        place->names[place->count] = rs_strdup(entry->d_name);
        if (place->names[place->count] == NULL) {
            status = rs_error_memory(strlen(entry->d_name));
            break;
        }
        place->count++;
    }
    closedir(folder);
    return status;
}

/* Sorts the names, and keeps each once. */
static void settle_names(rs_place *place)
{
    size_t kept = 0;
    if (place->count > 0)
        qsort(place->names, place->count, sizeof *place->names, by_text);
    for (size_t i = 0; i < place->count; i++) {
        if (kept > 0 && strcmp(place->names[kept - 1], place->names[i]) == 0)
            free(place->names[i]);
        else
            place->names[kept++] = place->names[i];
    }
    place->count = kept;
}

static rs_status look_at_file(rs_place *place)
{
    rs_files *files = NULL;
    int id;
    RS_TRY(rs_files_create(&files));
    rs_status status = rs_files_add(files, place->path, &id);
    if (status == RS_OK) {
        place->bytes = rs_files_size(files, id);
        place->head_bytes = (size_t)rs_min64(place->bytes, RS_PLACE_HEAD);
        status = rs_files_read(files, id, 0, place->head, place->head_bytes);
    }
    rs_files_destroy(files);
    return status;
}

bool rs_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static rs_status copy_path(const char *path, char **out)
{
    size_t length = strlen(path);
    *out = rs_strdup(path);
    if (*out == NULL)
        return rs_error_memory(length);
    while (length > 1 && (*out)[length - 1] == '/')
        (*out)[--length] = '\0';
    return RS_OK;
}

/* How all folders together are called. */
static rs_status name_folders(rs_place *place)
{
    rs_text title = {0};
    for (size_t i = 0; i < place->folder_count; i++)
        rs_text_append(&title, "%s%s",
            i == 0                         ? ""
            : i + 1 == place->folder_count ? " and "
                                           : ", ",
            place->folders[i]);
    return rs_text_take(&title, &place->title);
}

/* Takes the folders over. */
static rs_status take_folders(rs_place *place, const char *const *paths, size_t count)
{
    place->folder = true;
    place->folders = rs_calloc(count, sizeof *place->folders);
    if (place->folders == NULL)
        return rs_error_memory(count * sizeof *place->folders);
    for (size_t i = 0; i < count; i++) {
        if (count > 1 && !rs_is_folder(paths[i]))
            return rs_error_set(RS_ERR_ARGUMENT,
                "%s: is no folder; several can only be taken together as folders", paths[i]);
        RS_TRY(copy_path(paths[i], &place->folders[i]));
        place->folder_count++;
    }
    RS_TRY(name_folders(place));
    return copy_path(place->folders[0], &place->path);
}

static rs_status look_at_folders(rs_place *place, const char *const *paths, size_t count)
{
    size_t capacity = 0;
    RS_TRY(take_folders(place, paths, count));
    for (size_t i = 0; i < count; i++)
        RS_TRY(list_folder(place, place->folders[i], &capacity));
    settle_names(place);
    if (count == 1)
        return RS_OK;
    place->same = rs_calloc(place->count, sizeof *place->same);
    return place->same != NULL ? RS_OK : rs_error_memory(place->count);
}

rs_status rs_place_init_all(rs_place *place, const char *const *paths, size_t count)
{
    *place = (rs_place){0};
    rs_status status = look_at_folders(place, paths, count);
    if (status != RS_OK)
        rs_place_fini(place);
    return status;
}

rs_status rs_place_init(rs_place *place, const char *path)
{
    if (rs_is_folder(path))
        return rs_place_init_all(place, &path, 1);
    *place = (rs_place){.path = rs_strdup(path), .title = rs_strdup(path)};
    rs_status status = place->path != NULL && place->title != NULL ? look_at_file(place)
                                                                   : rs_error_memory(strlen(path));
    if (status != RS_OK)
        rs_place_fini(place);
    return status;
}

rs_status rs_place_init_around(rs_place *place, const char *file)
{
    char *folder = rs_strdup(file);
    if (folder == NULL)
        return rs_error_memory(strlen(file));
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder ? 1 : 0] = '\0';
    rs_status status = rs_place_init(place, slash != NULL ? folder : ".");
    free(folder);
    return status;
}

void rs_place_fini(rs_place *place)
{
    for (size_t i = 0; i < place->count; i++)
        free(place->names[i]);
    for (size_t i = 0; i < place->folder_count; i++)
        free(place->folders[i]);
    free(place->names);
    free(place->folders);
    free(place->same);
    free(place->path);
    free(place->title);
    memset(place, 0, sizeof *place);
}

static char **find_name(const rs_place *place, const char *name)
{
    return place->count == 0
               ? NULL
               : bsearch(&name, place->names, place->count, sizeof *place->names, by_text);
}

bool rs_place_has(const rs_place *place, const char *name)
{
    return find_name(place, name) != NULL;
}

/* "<folder>/<name>" if it is there; one that is too long is no name of a file either. */
static bool path_in(const char *folder, const char *name, char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    return n > 0 && n < PATH_MAX && access(path, F_OK) == 0;
}

/* The same in the first folder that has it. */
static bool locate(const rs_place *place, const char *name, char path[PATH_MAX])
{
    for (size_t i = 0; i < place->folder_count; i++)
        if (path_in(place->folders[i], name, path))
            return true;
    return false;
}

bool rs_place_reaches(const rs_place *place, const char *name)
{
    char path[PATH_MAX];
    return locate(place, name, path);
}

bool rs_place_has_folder(const rs_place *place, const char *name)
{
    char path[PATH_MAX];
    return locate(place, name, path) && rs_is_folder(path);
}

bool rs_place_file_begins(const rs_place *place, const char *name, const char *head)
{
    char path[PATH_MAX], found[RS_PLACE_HEAD];
    struct stat about;
    size_t bytes = strlen(head);
    if (bytes > sizeof found || !locate(place, name, path))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return false;
    bool begins = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
                  pread(fd, found, bytes, 0) == (ssize_t)bytes && memcmp(found, head, bytes) == 0;
    close(fd);
    return begins;
}

rs_status rs_place_enter(const rs_place *place, const char *name, rs_place *out)
{
    char path[PATH_MAX];
    size_t count = 0;
    rs_status status = RS_OK;
    char **paths = rs_calloc(place->folder_count, sizeof *paths);
    if (paths == NULL)
        return rs_error_memory(place->folder_count * sizeof *paths);
    for (size_t i = 0; i < place->folder_count && status == RS_OK; i++)
        if (path_in(place->folders[i], name, path) && rs_is_folder(path))
            status = copy_path(path, &paths[count++]);
    if (status == RS_OK && count == 0)
        status = rs_error_set(RS_ERR_NOT_FOUND, "%s: has no folder \"%s\"", place->title, name);
    if (status == RS_OK)
        status = rs_place_init_all(out, (const char *const *)paths, count);
    if (status == RS_OK)
        out->proved = place->proved;
    for (size_t i = 0; i < count; i++)
        free(paths[i]);
    free(paths);
    return status;
}

/* ---- files that several folders have ---- */

/* Both files are open: RS_ERR_MISMATCH where they differ. */
static rs_status compare_bytes(rs_files *files, int a, int b, unsigned char *buffer)
{
    int64_t bytes = rs_files_size(files, a);
    if (rs_files_size(files, b) != bytes)
        return rs_error_set(RS_ERR_MISMATCH,
            "%s and %s are the same file of the checkpoint and differ: %lld and %lld bytes",
            rs_files_path(files, a), rs_files_path(files, b), (long long)bytes,
            (long long)rs_files_size(files, b));
    for (int64_t at = 0; at < bytes; at += COMPARED) {
        size_t part = (size_t)rs_min64(COMPARED, bytes - at), i = 0;
        RS_TRY(rs_files_read(files, a, at, buffer, part));
        RS_TRY(rs_files_read(files, b, at, buffer + COMPARED, part));
        if (memcmp(buffer, buffer + COMPARED, part) == 0)
            continue;
        while (buffer[i] == buffer[COMPARED + i])
            i++;
        return rs_error_set(RS_ERR_MISMATCH,
            "%s and %s are the same file of the checkpoint and differ, first at byte %lld",
            rs_files_path(files, a), rs_files_path(files, b), (long long)at + (long long)i);
    }
    return RS_OK;
}

static rs_status compare_files(const char *a, const char *b)
{
    struct stat one, other;
    rs_files *files = NULL;
    int first, second;
    if (stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
        one.st_ino == other.st_ino)
        return RS_OK;
    unsigned char *buffer = rs_calloc(2, COMPARED);
    rs_status status = buffer != NULL ? rs_files_create(&files) : rs_error_memory(2 * COMPARED);
    if (status == RS_OK)
        status = rs_files_add(files, a, &first);
    if (status == RS_OK)
        status = rs_files_add(files, b, &second);
    if (status == RS_OK)
        status = compare_bytes(files, first, second, buffer);
    rs_files_destroy(files);
    free(buffer);
    return status;
}

rs_status rs_place_path(const rs_place *place, const char *name, char **out)
{
    char first[PATH_MAX], other[PATH_MAX];
    char **known = find_name(place, name);
    bool *same = known != NULL && place->same != NULL ? &place->same[known - place->names] : NULL;
    if (!locate(place, name, first))
        return rs_path_join(place->path, name, out);
    bool found = false;
    for (size_t i = 0; i < place->folder_count && same != NULL && !*same && !place->proved; i++) {
        if (!path_in(place->folders[i], name, other))
            continue;
        if (found)
            RS_TRY(compare_files(first, other));
        found = true;
    }
    if (same != NULL)
        *same = true;
    return copy_path(first, out);
}

const char *rs_place_match(
    const rs_place *place, const char *prefix, const char *suffix, size_t *at)
{
    size_t head = strlen(prefix), tail = strlen(suffix);
    for (; *at < place->count; ++*at) {
        const char *name = place->names[*at];
        size_t length = strlen(name);
        if (length >= head + tail && strncmp(name, prefix, head) == 0 &&
            strcmp(name + length - tail, suffix) == 0)
            return name;
    }
    return NULL;
}
