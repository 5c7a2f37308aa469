/*
 * Files written by position.
 *
 * The page cache is the slow part of writing a large file: each of its pages has to be found,
 * cleared by the host perhaps, filled, and written from later, all by processors that have better
 * to do, and what others have cached goes. So on file systems that are known to do it well a file
 * is written around it, from aligned memory. Elsewhere the system is told after each write to begin
 * with it, so that the sync at the end finds little left to do.
 *
 * 1. A direct write is of whole blocks: the last one of a file is written in full, and the file is
 *    cut to its size before it is synced.
 * 2. Where the system refuses a direct write after all, the sink goes on without.
 */
#include "ckpt/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/memory.h"
#include "ckpt/publish.h"

#define XFS_MAGIC 0x58465342 /* not in magic.h */
#define DIRECT_LEAST ((int64_t)1 << 20)
#define PUSH_LEAST ((size_t)64 << 10)
#define WRITE_MOST ((size_t)64 << 20)

rs_sink_way rs_sink_find_way(const char *folder)
{
    static const long direct[] = {EXT4_SUPER_MAGIC, XFS_MAGIC, OVERLAYFS_SUPER_MAGIC};
    struct statfs about;
    rs_sink_way way = {false, false};
    if (statfs(folder, &about) != 0)
        return way;
    way.memory = about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC;
    for (size_t i = 0; i < sizeof direct / sizeof *direct; i++)
        way.direct = way.direct || about.f_type == direct[i];
    return way;
}

rs_status rs_sink_make(const char *path, int64_t bytes, rs_sink_way way)
{
    rs_status status = RS_OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return rs_error_errno(errno, "cannot create %s", path);
    bool reserve = !way.memory && bytes >= DIRECT_LEAST;
    if (ftruncate(fd, bytes) != 0)
        status = rs_error_errno(errno, "%s: cannot give it %lld bytes", path, (long long)bytes);
    else if (reserve && fallocate(fd, 0, 0, bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        status = rs_error_errno(errno, "%s: cannot have %lld bytes", path, (long long)bytes);
    if (close(fd) != 0 && status == RS_OK)
        status = rs_error_errno(errno, "cannot close %s", path);
    return status;
}

rs_status rs_sink_open(rs_sink *sink, const char *path, int64_t bytes, rs_sink_way way)
{
    *sink = (rs_sink){.fd = -1, .bytes = bytes};
    sink->path = rs_strdup(path);
    if (sink->path == NULL)
        return rs_error_memory(strlen(path));
    bool direct = way.direct && bytes >= DIRECT_LEAST;
    if (direct)
        sink->fd = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
    atomic_init(&sink->direct, sink->fd >= 0);
    atomic_init(&sink->padded, false);
    if (sink->fd < 0)
        sink->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (sink->fd >= 0)
        return RS_OK;
    rs_status status = rs_error_errno(errno, "cannot open %s", path);
    rs_sink_fini(sink);
    return status;
}

rs_status rs_sink_write(rs_sink *sink, int64_t at, const void *data, size_t bytes)
{
    const char *from = data;
    int64_t begin = at, end = at + (int64_t)bytes;
    if (rs_fault_strikes(RS_FAULT_WRITE))
        return rs_error_errno(EIO, "%s: byte %lld", sink->path, (long long)at);
    while (at < end) {
        bool direct = atomic_load(&sink->direct);
        int64_t to = direct ? rs_round_up(end, RS_SINK_ALIGN) : end;
        size_t part = (size_t)rs_min64(to - at, (int64_t)WRITE_MOST);
        if (to > sink->bytes)
            atomic_store(&sink->padded, true);
        ssize_t n = pwrite(sink->fd, from, part, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EINVAL && direct) {
            int flags = fcntl(sink->fd, F_GETFL);
            if (flags >= 0 && fcntl(sink->fd, F_SETFL, flags & ~O_DIRECT) == 0) {
                atomic_store(&sink->direct, false);
                continue;
            }
        }
        if (n < 0)
            return rs_error_errno(errno, "%s: byte %lld", sink->path, (long long)at);
        from += n;
        at += n;
    }
    if (!atomic_load(&sink->direct) && bytes >= PUSH_LEAST)
        (void)sync_file_range(sink->fd, begin, (off_t)bytes, SYNC_FILE_RANGE_WRITE);
    return RS_OK;
}

rs_status rs_sink_close(rs_sink *sink, bool sync)
{
    rs_status status = RS_OK;
    if (atomic_load(&sink->padded) && ftruncate(sink->fd, sink->bytes) != 0)
        status = rs_error_errno(errno, "cannot cut %s to its size", sink->path);
    if (sync && status == RS_OK)
        status = rs_sync_file(sink->fd, sink->path);
    if (close(sink->fd) != 0 && status == RS_OK)
        status = rs_error_errno(errno, "cannot close %s", sink->path);
    sink->fd = -1;
    rs_sink_fini(sink);
    return status;
}

void rs_sink_fini(rs_sink *sink)
{
    if (sink->fd >= 0)
        close(sink->fd);
    free(sink->path);
    sink->fd = -1;
    sink->path = NULL;
}
