/*
 * All or nothing on a file system: write aside, sync the files, sync the folder, rename, sync the
 * folder that holds the name.
 *
 * A rename is atomic and a sync makes what was before it durable before what comes after it. So at
 * a kill or a power cut the name is absent, or names the whole. The order is the caller's;
 * here each step is one call that either has happened or is reported.
 */
#include "ckpt/publish.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fault.h"
#include "base/memory.h"
#include "ckpt/file.h"
#include "ckpt/format.h"

#define WRITE_MOST ((size_t)64 << 20)
#define PUSH_LEAST ((int64_t)8 << 20) /* the disk begins with this much, while more is written */
#define OLD ".old-reshard"

/* Creates the file `path`, which errors call `folder`/`name`. */
static rs_status create_as(rs_out *out, const char *path, const char *folder, const char *name)
{
    *out = (rs_out){.fd = -1};
    RS_TRY(rs_path_join(folder, name, &out->path));
    out->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (out->fd >= 0)
        return RS_OK;
    rs_status status = rs_error_errno(errno, "cannot create %s", out->path);
    rs_out_fini(out);
    return status;
}

rs_status rs_out_create(rs_out *out, const char *folder, const char *name)
{
    char *path = NULL;
    RS_TRY(rs_path_join(folder, name, &path));
    rs_status status = create_as(out, path, folder, name);
    free(path);
    return status;
}

rs_status rs_out_write(rs_out *out, const void *data, size_t bytes)
{
    const char *at = data;
    if (bytes > 0 && rs_fault_strikes(RS_FAULT_WRITE))
        return rs_error_errno(EIO, "%s: byte %lld", out->path, (long long)out->bytes);
    while (bytes > 0) {
        ssize_t n = write(out->fd, at, bytes < WRITE_MOST ? bytes : WRITE_MOST);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return rs_error_errno(errno, "%s: byte %lld", out->path, (long long)out->bytes);
        at += n;
        bytes -= (size_t)n;
        out->bytes += n;
    }
    if (out->bytes - out->pushed >= PUSH_LEAST) {
        (void)sync_file_range(
            out->fd, out->pushed, out->bytes - out->pushed, SYNC_FILE_RANGE_WRITE);
        out->pushed = out->bytes;
    }
    return RS_OK;
}

rs_status rs_sync_file(int fd, const char *path)
{
    if (rs_fault_strikes(RS_FAULT_SYNC))
        return rs_error_errno(EIO, "cannot sync %s", path);
    return fsync(fd) == 0 ? RS_OK : rs_error_errno(errno, "cannot sync %s", path);
}

rs_status rs_out_finish(rs_out *out)
{
    rs_status status = rs_sync_file(out->fd, out->path);
    if (close(out->fd) != 0 && status == RS_OK)
        status = rs_error_errno(errno, "cannot close %s", out->path);
    out->fd = -1;
    rs_out_fini(out);
    return status;
}

void rs_out_fini(rs_out *out)
{
    if (out->fd >= 0)
        close(out->fd);
    free(out->path);
    out->fd = -1;
    out->path = NULL;
}

rs_status rs_sync_folder(const char *path)
{
    if (rs_fault_strikes(RS_FAULT_SYNC))
        return rs_error_errno(EIO, "cannot sync folder %s", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return rs_error_errno(errno, "cannot open folder %s", path);
    /* Some network file systems cannot sync a folder and say EINVAL; there its entries are kept by
     * the server. */
    rs_status status = fsync(fd) == 0 || errno == EINVAL
                           ? RS_OK
                           : rs_error_errno(errno, "cannot sync folder %s", path);
    close(fd);
    return status;
}

rs_status rs_publish_rename(const char *folder, const char *from, const char *to)
{
    char *old = NULL, *new = NULL;
    rs_status status;
    RS_TRY_GOTO(rs_path_join(folder, from, &old), out);
    RS_TRY_GOTO(rs_path_join(folder, to, &new), out);
    if (rs_fault_strikes(RS_FAULT_RENAME))
        status = rs_error_errno(EIO, "cannot rename %s to %s", old, to);
    else if (rename(old, new) != 0)
        status =
            rs_error_errno(errno == ENOTEMPTY ? EEXIST : errno, "cannot rename %s to %s", old, to);
    if (status == RS_OK)
        status = rs_sync_folder(folder);
out:
    free(old);
    free(new);
    return status;
}

rs_status rs_remove_path(const char *folder, const char *name)
{
    char *path = NULL;
    struct stat about;
    RS_TRY(rs_path_join(folder, name, &path));
    rs_status status = RS_OK;
    if (lstat(path, &about) != 0)
        status = errno == ENOENT ? RS_OK : rs_error_errno(errno, "cannot look at %s", path);
    else if (S_ISDIR(about.st_mode))
        status = rs_remove_folder(path);
    else if (unlink(path) != 0 && errno != ENOENT)
        status = rs_error_errno(errno, "cannot remove %s", path);
    free(path);
    return status;
}

/* RS_ERR_UNSUPPORTED where it cannot be done in one step. */
static rs_status exchange(const char *folder, const char *from, const char *to)
{
    char *a = NULL, *b = NULL;
    rs_status status;
    RS_TRY_GOTO(rs_path_join(folder, from, &a), out);
    RS_TRY_GOTO(rs_path_join(folder, to, &b), out);
    if (rs_fault_hit(RS_FAULT_EXCHANGE))
        errno = EINVAL;
    else if (rs_fault_strikes(RS_FAULT_RENAME))
        errno = EIO;
    else if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0)
        goto out;
    status = rs_error_errno(errno, "cannot exchange %s and %s", a, to);
    if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)
        status = RS_ERR_UNSUPPORTED;
out:
    free(a);
    free(b);
    return status;
}

static rs_status old_name(const char *to, char name[NAME_MAX + 1])
{
    int n = snprintf(name, NAME_MAX + 1, "%s" OLD, to);
    return n > 0 && n <= NAME_MAX
               ? RS_OK
               : rs_error_set(RS_ERR_ARGUMENT, "\"%s\": the name is too long", to);
}

/* Lets the old one stand at `to` again if nothing does. */
static rs_status put_back(const char *folder, const char *old, const char *to)
{
    char *a = NULL, *b = NULL;
    struct stat about;
    rs_status status;
    RS_TRY_GOTO(rs_path_join(folder, old, &a), out);
    RS_TRY_GOTO(rs_path_join(folder, to, &b), out);
    if (lstat(b, &about) != 0 && lstat(a, &about) == 0)
        status = rs_publish_rename(folder, old, to);
out:
    free(a);
    free(b);
    return status;
}

rs_status rs_publish_replace(const char *folder, const char *from, const char *to)
{
    char old[NAME_MAX + 1];
    RS_TRY(old_name(to, old));
    rs_status status = exchange(folder, from, to);
    if (status == RS_OK) {
        RS_TRY(rs_sync_folder(folder));
        return rs_remove_path(folder, from);
    }
    if (status != RS_ERR_UNSUPPORTED)
        return status;
    RS_TRY(rs_remove_path(folder, old));
    status = rs_publish_rename(folder, to, old);
    if (status == RS_OK)
        status = rs_publish_rename(folder, from, to);
    if (status != RS_OK) {
        char message[1000];
        snprintf(message, sizeof message, "%s", rs_error_message());
        rs_status back = put_back(folder, old, to);
        return rs_error_set(status, "%s%s", message,
            back != RS_OK ? " (and what was there cannot be put back)" : "");
    }
    return rs_remove_path(folder, old);
}

rs_status rs_publish_restore(const char *folder, const char *to)
{
    char old[NAME_MAX + 1];
    RS_TRY(old_name(to, old));
    RS_TRY(put_back(folder, old, to));
    return rs_remove_path(folder, old);
}

rs_status rs_publish_text(const char *folder, const char *name, const char *text)
{
    char aside[256];
    char *path = NULL;
    rs_out out;
    int n = snprintf(aside, sizeof aside, "%s.tmp-%ld", name, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof aside)
        return rs_error_set(RS_ERR_ARGUMENT, "\"%s\": the name is too long", name);
    RS_TRY(rs_path_join(folder, aside, &path));
    unlink(path); /* of a process of the same number that was killed */
    rs_status status = create_as(&out, path, folder, name);
    if (status == RS_OK)
        status = rs_out_write(&out, text, strlen(text));
    if (status == RS_OK)
        status = rs_out_finish(&out);
    rs_out_fini(&out);
    if (status == RS_OK)
        status = rs_publish_rename(folder, aside, name);
    if (status != RS_OK)
        unlink(path);
    free(path);
    return status;
}

rs_status rs_make_folder(const char *path)
{
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return RS_OK;
    return rs_error_errno(errno, "cannot make folder %s", path);
}

rs_status rs_publish_folder(const char *path)
{
    if (rs_is_folder(path))
        return RS_OK;
    RS_TRY(rs_make_folder(path));
    char *above = rs_strdup(path);
    if (above == NULL)
        return rs_error_memory(strlen(path));
    size_t length = strlen(above);
    while (length > 1 && above[length - 1] == '/')
        above[--length] = '\0';
    char *slash = strrchr(above, '/');
    if (slash != NULL)
        slash[slash == above ? 1 : 0] = '\0';
    rs_status status = rs_sync_folder(slash != NULL ? above : ".");
    free(above);
    return status;
}

/* Empties the folder open as `fd`, which is closed. */
static rs_status empty_folder(int fd, const char *path)
{
    rs_status status = RS_OK;
    DIR *listing = fdopendir(fd);
    if (listing == NULL) {
        status = rs_error_errno(errno, "cannot list %s", path);
        close(fd);
        return status;
    }
    for (struct dirent *e; status == RS_OK && (e = readdir(listing)) != NULL;) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(fd, e->d_name, 0) == 0 || errno == ENOENT)
            continue;
        int inside = openat(fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (inside < 0) {
            status = rs_error_errno(errno, "cannot remove %s/%s", path, e->d_name);
            break;
        }
        status = empty_folder(inside, path);
        if (status == RS_OK && unlinkat(fd, e->d_name, AT_REMOVEDIR) != 0)
            status = rs_error_errno(errno, "cannot remove %s/%s", path, e->d_name);
    }
    closedir(listing);
    return status;
}

rs_status rs_remove_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return RS_OK;
    if (fd < 0)
        return rs_error_errno(errno, "cannot open folder %s", path);
    RS_TRY(empty_folder(fd, path));
    return rmdir(path) == 0 || errno == ENOENT
               ? RS_OK
               : rs_error_errno(errno, "cannot remove folder %s", path);
}

/* Whether the folder open as `fd` still is what has the name: it may have been removed, or have
 * become another's result, before it was locked. */
static bool has_name(int fd, const char *path)
{
    struct stat held, there;
    return fstat(fd, &held) == 0 && lstat(path, &there) == 0 && held.st_dev == there.st_dev &&
           held.st_ino == there.st_ino;
}

rs_status rs_publish_aside(const char *path, const char *target, int *lock)
{
    for (;;) {
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return rs_error_errno(errno, "cannot make %s", target);
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            continue;
        if (fd < 0)
            return rs_error_errno(errno, "cannot open folder %s", path);
        if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            close(fd);
            return rs_error_set(RS_ERR_EXISTS,
                "%s: another process is writing there; wait until it has ended", path);
        }
        if (!has_name(fd, path)) {
            close(fd);
            continue;
        }
        int inside = dup(fd); /* of the same lock */
        rs_status status = inside >= 0 ? empty_folder(inside, path)
                                       : rs_error_errno(errno, "cannot open folder %s", path);
        if (status != RS_OK)
            close(fd);
        else
            *lock = fd;
        return status;
    }
}
