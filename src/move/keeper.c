/*
 * The keeper of a job's arenas on one node: the folder, the room in it, and sweeping it.
 *
 * Room. A file in a memory file system is memory: what can be handed out is the least of what the
 * file system allows, what the machine has available, and what every control group above this
 * process has left (its limit less its use, where cached file pages that can be dropped do not
 * count). Asking first turns what would be a killed process into an error with two numbers.
 *
 * Invariant: a file is touched only if its name is one that this job gives, it is a regular file,
 * and this user owns it.
 */
#include "reshard/arena.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "move/arena_table.h"

#define DEFAULT_FOLDER "/dev/shm"
#define TMPFS 0x01021994
#define RAMFS 0x858458f6
#define UNLIMITED (INT64_MAX / 4) /* a limit above this is none */

static rs_status check_job(const char *job)
{
    size_t length = strlen(job);
    if (length == 0 || length > RS_ARENA_JOB)
        return rs_error_set(RS_ERR_ARGUMENT, "job name \"%s\": 1 to %d characters, this has %zu",
            job, RS_ARENA_JOB, length);
    for (const char *c = job; *c != '\0'; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
                *c == '-' || *c == '_'))
            return rs_error_set(RS_ERR_ARGUMENT,
                "job name \"%s\": letters, digits, '-' and '_' only, this has '%c'", job, *c);
    return RS_OK;
}

/* Reads the start of a small text file; false if that is not possible. */
static bool read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    size_t n = fread(text, 1, size - 1, file);
    fclose(file);
    text[n] = '\0';
    return n > 0;
}

rs_status rs_keeper_open(const char *job, const char *folder, rs_keeper **out)
{
    rs_status status;
    RS_TRY(check_job(job));
    if (folder == NULL)
        folder = DEFAULT_FOLDER;
    rs_keeper *keeper = rs_calloc(1, sizeof *keeper);
    if (keeper == NULL)
        return rs_error_memory(sizeof *keeper);
    keeper->folder = rs_strdup(folder);
    if (keeper->folder == NULL) {
        status = rs_error_memory(strlen(folder) + 1);
        goto free_keeper;
    }
    memcpy(keeper->job, job, strlen(job));
    if (read_text("/proc/sys/kernel/random/boot_id", keeper->boot, sizeof keeper->boot))
        keeper->boot[strcspn(keeper->boot, "\n")] = '\0';
    keeper->fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (keeper->fd < 0) {
        status = rs_error_errno(errno, "cannot open the arena folder %s", folder);
        goto free_keeper;
    }
    *out = keeper;
    return RS_OK;
free_keeper:
    free(keeper->folder);
    free(keeper);
    return status;
}

void rs_keeper_close(rs_keeper *keeper)
{
    if (keeper == NULL)
        return;
    close(keeper->fd);
    free(keeper->folder);
    free(keeper);
}

/* The number after `key` at the start of a line of `text`; `missing` if there is none. */
static int64_t number_after(const char *text, const char *key, int64_t missing)
{
    size_t length = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, key, length) == 0) {
            char *end;
            long long value = strtoll(line + length, &end, 10);
            return end != line + length && value >= 0 ? value : missing;
        }
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return missing;
}

/* One file of a control group as a number; "max" and what cannot be read are `missing`. */
static int64_t group_number(const char *folder, const char *file, const char *key, int64_t missing)
{
    char path[PATH_MAX];
    char text[8192];
    int n = snprintf(path, sizeof path, "%s/%s", folder, file);
    if (n < 0 || (size_t)n >= sizeof path || !read_text(path, text, sizeof text))
        return missing;
    return number_after(text, key, missing);
}

/* What one control group has left, by version 2's or version 1's file names. */
static int64_t group_room(const char *folder, bool second)
{
    int64_t limit =
        group_number(folder, second ? "memory.max" : "memory.limit_in_bytes", "", INT64_MAX);
    if (limit >= UNLIMITED)
        return INT64_MAX;
    int64_t used = group_number(folder, second ? "memory.current" : "memory.usage_in_bytes", "", 0);
    int64_t cache =
        group_number(folder, "memory.stat", second ? "inactive_file " : "total_inactive_file ", 0);
    return rs_max64(limit - rs_max64(used - cache, 0), 0);
}

/* The least that the group at `path` below `root` and all groups above it have left. */
static int64_t groups_room(const char *root, const char *path, bool second)
{
    char folder[PATH_MAX];
    int n = snprintf(folder, sizeof folder, "%s%s", root, path);
    if (n < 0 || (size_t)n >= sizeof folder)
        return INT64_MAX;
    int64_t room = INT64_MAX;
    size_t top = strlen(root);
    for (;;) {
        room = rs_min64(room, group_room(folder, second));
        char *slash = strrchr(folder, '/');
        if (slash == NULL || strlen(folder) <= top)
            return room;
        *slash = '\0';
    }
}

/* What the control groups of this process have left. */
static int64_t cgroup_room(void)
{
    char text[8192];
    if (!read_text("/proc/self/cgroup", text, sizeof text))
        return INT64_MAX;
    int64_t room = INT64_MAX;
    char *state = NULL;
    for (char *line = strtok_r(text, "\n", &state); line != NULL;
         line = strtok_r(NULL, "\n", &state)) {
        char *path = strstr(line, ":/");
        if (path == NULL)
            continue;
        if (strncmp(line, "0::", 3) == 0)
            room = rs_min64(room, groups_room("/sys/fs/cgroup", path + 1, true));
        else if (strstr(line, ":memory:") != NULL)
            room = rs_min64(room, groups_room("/sys/fs/cgroup/memory", path + 1, false));
    }
    return room;
}

rs_status rs_keeper_free_bytes(const rs_keeper *keeper, int64_t *bytes)
{
    struct statvfs room;
    struct statfs kind;
    if (fstatvfs(keeper->fd, &room) != 0 || fstatfs(keeper->fd, &kind) != 0)
        return rs_error_errno(errno, "cannot ask %s for its free room", keeper->folder);
    int64_t left;
    if (!rs_mul_fits((int64_t)room.f_bavail, (int64_t)room.f_frsize, &left))
        left = INT64_MAX;
    if (kind.f_type == TMPFS || kind.f_type == RAMFS) {
        char text[4096];
        int64_t available = INT64_MAX;
        if (read_text("/proc/meminfo", text, sizeof text)) {
            int64_t kib = number_after(text, "MemAvailable:", INT64_MAX / 1024) +
                          number_after(text, "SwapFree:", 0);
            if (!rs_mul_fits(kib, 1024, &available))
                available = INT64_MAX;
        }
        /* A ramfs has no size of its own. */
        left = kind.f_type == RAMFS ? available : rs_min64(left, available);
        left = rs_min64(left, cgroup_room());
    }
    *bytes = left;
    return RS_OK;
}

rs_status rs_keeper_sweep(rs_keeper *keeper)
{
    /* A descriptor of its own: reading the folder moves its position. */
    int fd = openat(keeper->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return rs_error_errno(error, "cannot list %s", keeper->folder);
    }
    rs_status status = RS_OK;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        int generation;
        int rank;
        rs_arena_file kind;
        struct stat info;
        if (!rs_arena_file_parse(keeper, entry->d_name, &generation, &rank, &kind) ||
            fstatat(keeper->fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(info.st_mode) || info.st_uid != geteuid())
            continue;
        if (unlinkat(keeper->fd, entry->d_name, 0) != 0 && errno != ENOENT)
            status = rs_error_errno(errno, "cannot remove %s/%s", keeper->folder, entry->d_name);
    }
    closedir(folder);
    return status;
}
