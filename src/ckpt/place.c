/* Places: what is at a path, seen once. */
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
#include "ckpt/format.h"

#define FOLDER_MOST 1000000

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static rs_status list_folder(rs_place *place)
{
    size_t capacity = 0;
    rs_status status = RS_OK;
    DIR *folder = opendir(place->path);
    if (folder == NULL)
        return rs_error_errno(errno, "%s: cannot list it", place->path);
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(folder);
        if (entry == NULL) {
            if (errno != 0)
                status = rs_error_errno(errno, "%s: cannot list it", place->path);
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (place->count == FOLDER_MOST) {
            status =
                rs_error_set(RS_ERR_BUDGET, "%s: more than %d entries", place->path, FOLDER_MOST);
            break;
        }
        status = rs_array_reserve(
            (void **)&place->names, &capacity, place->count + 1, sizeof *place->names);
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
    if (status == RS_OK && place->count > 0)
        qsort(place->names, place->count, sizeof *place->names, by_text);
    return status;
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

rs_status rs_place_init(rs_place *place, const char *path)
{
    *place = (rs_place){.path = path, .folder = rs_is_folder(path)};
    rs_status status = place->folder ? list_folder(place) : look_at_file(place);
    if (status != RS_OK)
        rs_place_fini(place);
    return status;
}

void rs_place_fini(rs_place *place)
{
    for (size_t i = 0; i < place->count; i++)
        free(place->names[i]);
    free(place->names);
    memset(place, 0, sizeof *place);
}

bool rs_place_has(const rs_place *place, const char *name)
{
    return place->count > 0 &&
           bsearch(&name, place->names, place->count, sizeof *place->names, by_text) != NULL;
}

/* "<place>/<name>"; one that is too long is no name of a file either. */
static bool path_in(const rs_place *place, const char *name, char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s/%s", place->path, name);
    return n > 0 && n < PATH_MAX;
}

bool rs_place_has_folder(const rs_place *place, const char *name)
{
    char path[PATH_MAX];
    return path_in(place, name, path) && rs_is_folder(path);
}

bool rs_place_file_begins(const rs_place *place, const char *name, const char *head)
{
    char path[PATH_MAX], found[RS_PLACE_HEAD];
    struct stat about;
    size_t bytes = strlen(head);
    if (bytes > sizeof found || !path_in(place, name, path))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return false;
    bool begins = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) &&
                  pread(fd, found, bytes, 0) == (ssize_t)bytes && memcmp(found, head, bytes) == 0;
    close(fd);
    return begins;
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
