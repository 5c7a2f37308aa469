/*
 * The keeper of a job's arenas on one node: the folder, the room in it, and sweeping it.
 *
 * Room: what can be handed out is the least of what the file system allows and, where files are
 * memory, of what there is of that (room.h). Asking first turns what would be a killed process into
 * an error with two numbers.
 *
 * Invariant: a file is touched only if its name is one that this job gives, it is a regular file,
 * and this user owns it.
 */
#include "reshard/arena.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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
#include "move/room.h"

#define DEFAULT_FOLDER "/dev/shm"
#define TMPFS 0x01021994
#define RAMFS 0x858458f6

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
    if (rs_read_text("/proc/sys/kernel/random/boot_id", keeper->boot, sizeof keeper->boot))
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
        int64_t memory = rs_room_memory("/proc", "/sys/fs/cgroup");
        /* A ramfs has no size of its own. */
        left = kind.f_type == RAMFS ? memory : rs_min64(left, memory);
    }
    *bytes = left;
    return RS_OK;
}

rs_status rs_keeper_list(const rs_keeper *keeper, DIR **out)
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
    *out = folder;
    return RS_OK;
}

void rs_stamp_set(const rs_keeper *keeper, int generation, int rank, rs_stamp *out)
{
    *out = (rs_stamp){.generation = generation, .rank = rank};
    memcpy(out->job, keeper->job, sizeof keeper->job);
    memcpy(out->boot, keeper->boot, sizeof keeper->boot);
}

rs_status rs_stamp_check(const rs_keeper *keeper, int generation, int rank, const rs_stamp *stamp)
{
    if (strncmp(stamp->job, keeper->job, sizeof stamp->job) != 0 ||
        stamp->generation != generation || stamp->rank != rank)
        return rs_error_set(RS_ERR_MISMATCH,
            "belongs to job %.56s, generation %" PRId32 ", rank %" PRId32, stamp->job,
            stamp->generation, stamp->rank);
    if (memcmp(stamp->boot, keeper->boot, sizeof stamp->boot) != 0)
        return rs_error_set(RS_ERR_MISMATCH, "was written before the machine was started");
    return RS_OK;
}

rs_status rs_keeper_sweep(rs_keeper *keeper)
{
    DIR *folder;
    RS_TRY(rs_keeper_list(keeper, &folder));
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
