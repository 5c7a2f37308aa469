/*
 * The files of a checkpoint.
 *
 * A checkpoint of a big job has thousands of files, a process may have about a thousand open: files
 * are opened when they are read, and the one not used for longest is closed when more than
 * OPEN_MOST are open. A file that is being read is pinned.
 *
 * Invariants:
 * 1. A file's size is read once, when it is added. Every read lies inside it, and an opened file
 *    whose size differs is refused, so that offsets checked once stay right.
 * 2. Nothing is mapped.
 * 3. Only regular files are opened, and without waiting: a pipe or a device under a checkpoint's
 *    name is an error and no hang.
 * 4. An inflated file gives exactly the bytes it was declared with: it is inflated once when added,
 *    and a stream that ends early or goes on is refused there. Memory: one window and zlib's own.
 *
 * Cost: one lock per read; positioned reads run in parallel.
 */
#include "ckpt/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <zlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

#define OPEN_MOST 64
#define INFLATE_WINDOW ((size_t)64 << 10)
#define READ_MOST ((size_t)1 << 30)

typedef struct inflated {
    pthread_mutex_t lock;
    int base;
    int64_t offset; /* of the deflated bytes in `base` */
    int64_t stored;
    bool started;
    z_stream stream;
    int64_t consumed; /* deflated bytes handed to the stream */
    int64_t produced;
    unsigned char *input;
} inflated;

typedef struct entry {
    char *path;
    int64_t size;
    int fd; /* -1: closed */
    int pins;
    uint64_t used;      /* time of the last use */
    inflated *inflated; /* NULL: on disk */
} entry;

struct rs_files {
    pthread_mutex_t lock;
    entry **items; /* addresses stay as the list grows */
    size_t count;
    size_t capacity;
    int open;
    uint64_t clock;
    atomic_int_least64_t read;
    bool have_inflated;
};

rs_status rs_files_create(rs_files **out)
{
    rs_files *files = rs_calloc(1, sizeof *files);
    if (files == NULL)
        return rs_error_memory(sizeof *files);
    pthread_mutex_init(&files->lock, NULL);
    *out = files;
    return RS_OK;
}

static void free_file(entry *f)
{
    if (f == NULL)
        return;
    if (f->fd >= 0)
        close(f->fd);
    if (f->inflated != NULL) {
        if (f->inflated->started)
            inflateEnd(&f->inflated->stream);
        pthread_mutex_destroy(&f->inflated->lock);
        free(f->inflated->input);
        free(f->inflated);
    }
    free(f->path);
    free(f);
}

void rs_files_destroy(rs_files *files)
{
    if (files == NULL)
        return;
    for (size_t i = 0; i < files->count; i++)
        free_file(files->items[i]);
    free(files->items);
    pthread_mutex_destroy(&files->lock);
    free(files);
}

int64_t rs_files_read_bytes(const rs_files *files)
{
    return atomic_load(&files->read);
}

bool rs_files_have_inflated(const rs_files *files)
{
    return files->have_inflated;
}

int rs_files_count(const rs_files *files)
{
    return (int)files->count;
}

const char *rs_files_path(const rs_files *files, int id)
{
    return files->items[id]->path;
}

int64_t rs_files_size(const rs_files *files, int id)
{
    return files->items[id]->size;
}

rs_status rs_files_malformed(const rs_files *files, int id, int64_t offset, const char *format, ...)
{
    char reason[512];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return rs_error_set(
        RS_ERR_MALFORMED, "%s: byte %" PRId64 ": %s", rs_files_path(files, id), offset, reason);
}

rs_status rs_files_context(const rs_files *files, int id, rs_status status)
{
    return rs_error_context(status, "%s", rs_files_path(files, id));
}

/* Opens a regular file for reading and gives its size. */
static rs_status open_regular(const char *path, int *fd, int64_t *size)
{
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened < 0)
        return rs_error_errno(errno, "%s: cannot open it", path);
    struct stat info;
    rs_status status = RS_OK;
    if (fstat(opened, &info) != 0)
        status = rs_error_errno(errno, "%s: cannot look at it", path);
    else if (!S_ISREG(info.st_mode))
        status = rs_error_set(RS_ERR_MALFORMED, "%s: is %s, not a regular file", path,
            S_ISDIR(info.st_mode) ? "a directory" : "a special file");
    if (status != RS_OK) {
        close(opened);
        return status;
    }
    *fd = opened;
    *size = info.st_size;
    return RS_OK;
}

static void close_oldest(rs_files *files)
{
    entry *oldest = NULL;
    for (size_t i = 0; i < files->count; i++) {
        entry *f = files->items[i];
        if (f->fd >= 0 && f->pins == 0 && (oldest == NULL || f->used < oldest->used))
            oldest = f;
    }
    if (oldest != NULL) {
        close(oldest->fd);
        oldest->fd = -1;
        files->open--;
    }
}

static rs_status append(rs_files *files, entry *f, int *id)
{
    RS_TRY(RS_LIST_RESERVE_ONE(files));
    *id = (int)files->count;
    files->items[files->count++] = f;
    return RS_OK;
}

rs_status rs_files_add(rs_files *files, const char *path, int *id)
{
    entry *f = rs_calloc(1, sizeof *f);
    if (f == NULL)
        return rs_error_memory(sizeof *f);
    f->fd = -1;
    f->path = rs_strdup(path);
    rs_status status = RS_OK;
    if (f->path == NULL)
        RS_TRY_GOTO(rs_error_memory(strlen(path)), fail);
    RS_TRY_GOTO(open_regular(path, &f->fd, &f->size), fail);
    RS_TRY_GOTO(append(files, f, id), fail);
    f->used = ++files->clock;
    if (++files->open > OPEN_MOST)
        close_oldest(files);
    return RS_OK;
fail:
    free_file(f);
    return status;
}

/* Makes sure that `f` is open and stays so until unpinned. */
static rs_status pin(rs_files *files, entry *f)
{
    rs_status status = RS_OK;
    pthread_mutex_lock(&files->lock);
    if (f->fd < 0) {
        int64_t size = 0;
        int fd = -1;
        if (files->open >= OPEN_MOST)
            close_oldest(files);
        status = open_regular(f->path, &fd, &size);
        if (status == RS_OK && size != f->size) {
            close(fd);
            status = rs_error_set(RS_ERR_MALFORMED,
                "%s: changed while it was read: %" PRId64 " bytes, %" PRId64 " when opened",
                f->path, size, f->size);
        }
        if (status == RS_OK) {
            f->fd = fd;
            files->open++;
        }
    }
    if (status == RS_OK) {
        f->pins++;
        f->used = ++files->clock;
    }
    pthread_mutex_unlock(&files->lock);
    return status;
}

static void unpin(rs_files *files, entry *f)
{
    pthread_mutex_lock(&files->lock);
    f->pins--;
    pthread_mutex_unlock(&files->lock);
}

static rs_status read_disk(rs_files *files, entry *f, int64_t offset, char *buffer, size_t bytes)
{
    RS_TRY(pin(files, f));
    rs_status status = RS_OK;
    while (bytes > 0) {
        ssize_t got = pread(f->fd, buffer, bytes < READ_MOST ? bytes : READ_MOST, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            status = rs_error_errno(errno, "%s: byte %" PRId64 ": cannot read", f->path, offset);
            break;
        }
        if (got == 0) {
            status = rs_error_set(RS_ERR_MALFORMED,
                "%s: byte %" PRId64 ": ends here; it had %" PRId64 " bytes when opened", f->path,
                offset, f->size);
            break;
        }
        buffer += got;
        offset += got;
        bytes -= (size_t)got;
        atomic_fetch_add_explicit(&files->read, got, memory_order_relaxed);
    }
    unpin(files, f);
    return status;
}

/* Puts the stream back to the start of the deflated bytes. */
static rs_status restart(inflated *z)
{
    if (z->input == NULL) {
        z->input = rs_calloc(INFLATE_WINDOW, 1);
        if (z->input == NULL)
            return rs_error_memory(INFLATE_WINDOW);
    }
    int code = z->started ? inflateReset(&z->stream) : inflateInit2(&z->stream, -MAX_WBITS);
    if (code != Z_OK)
        return rs_error_set(RS_ERR_NO_MEMORY, "zlib: cannot start inflating");
    z->started = true;
    z->stream.next_in = NULL;
    z->stream.avail_in = 0;
    z->consumed = 0;
    z->produced = 0;
    return RS_OK;
}

/* The next bytes of the stream, at most `bytes`; `*got` is 0 at its end. */
static rs_status inflate_some(
    rs_files *files, entry *f, unsigned char *out, size_t bytes, size_t *got)
{
    inflated *z = f->inflated;
    z->stream.next_out = out;
    z->stream.avail_out = (uInt)bytes;
    while (z->stream.avail_out == bytes) {
        if (z->stream.avail_in == 0 && z->consumed < z->stored) {
            size_t part = (size_t)rs_min64((int64_t)INFLATE_WINDOW, z->stored - z->consumed);
            RS_TRY(rs_files_read(files, z->base, z->offset + z->consumed, z->input, part));
            z->consumed += (int64_t)part;
            z->stream.next_in = z->input;
            z->stream.avail_in = (uInt)part;
        }
        int code = inflate(&z->stream, Z_NO_FLUSH);
        if (code == Z_STREAM_END)
            break;
        bool stuck =
            z->stream.avail_out == bytes && z->stream.avail_in == 0 && z->consumed == z->stored;
        if ((code != Z_OK && code != Z_BUF_ERROR) || stuck)
            return rs_error_set(RS_ERR_MALFORMED,
                "%s: byte %" PRId64 " of the inflated content: the deflated data is damaged (%s)",
                f->path, z->produced, z->stream.msg != NULL ? z->stream.msg : "it ends early");
    }
    *got = bytes - z->stream.avail_out;
    z->produced += (int64_t)*got;
    return RS_OK;
}

static rs_status read_inflated(
    rs_files *files, entry *f, int64_t offset, unsigned char *buffer, size_t bytes)
{
    inflated *z = f->inflated;
    rs_status status = RS_OK;
    unsigned char *skipped = NULL;
    pthread_mutex_lock(&z->lock);
    if (!z->started || offset < z->produced)
        RS_TRY_GOTO(restart(z), out);
    if (offset > z->produced) {
        skipped = rs_calloc(INFLATE_WINDOW, 1);
        if (skipped == NULL)
            RS_TRY_GOTO(rs_error_memory(INFLATE_WINDOW), out);
    }
    while (bytes > 0) {
        size_t got = 0;
        bool skip = offset > z->produced;
        size_t want = skip ? (size_t)rs_min64((int64_t)INFLATE_WINDOW, offset - z->produced)
                           : (bytes < READ_MOST ? bytes : READ_MOST);
        RS_TRY_GOTO(inflate_some(files, f, skip ? skipped : buffer, want, &got), out);
        if (got == 0)
            RS_TRY_GOTO(rs_error_set(RS_ERR_MALFORMED,
                            "%s: inflates to %" PRId64 " bytes, declared are %" PRId64, f->path,
                            z->produced, f->size),
                out);
        if (!skip) {
            buffer += got;
            offset += (int64_t)got;
            bytes -= got;
        }
    }
out:
    pthread_mutex_unlock(&z->lock);
    free(skipped);
    return status;
}

rs_status rs_files_read(rs_files *files, int id, int64_t offset, void *buffer, size_t bytes)
{
    entry *f = files->items[id];
    if (offset < 0 || offset > f->size || bytes > (uint64_t)(f->size - offset))
        return rs_files_malformed(files, id, offset,
            "%zu bytes are wanted, the file ends at byte %" PRId64, bytes, f->size);
    if (f->inflated != NULL)
        return read_inflated(files, f, offset, buffer, bytes);
    return read_disk(files, f, offset, buffer, bytes);
}

/* Inflates everything once; the declared length must be the true one. */
static rs_status prove_length(rs_files *files, entry *f)
{
    unsigned char *scratch = rs_calloc(INFLATE_WINDOW, 1);
    if (scratch == NULL)
        return rs_error_memory(INFLATE_WINDOW);
    rs_status status = restart(f->inflated);
    size_t got = 1;
    while (status == RS_OK && got > 0 && f->inflated->produced <= f->size)
        status = inflate_some(files, f, scratch, INFLATE_WINDOW, &got);
    if (status == RS_OK && f->inflated->produced != f->size)
        status = rs_error_set(RS_ERR_MALFORMED,
            "%s: inflates to %s%" PRId64 " bytes, declared are %" PRId64, f->path,
            got > 0 ? "at least " : "", f->inflated->produced, f->size);
    free(scratch);
    return status;
}

rs_status rs_files_add_inflated(rs_files *files, int base, int64_t offset, int64_t stored,
    int64_t bytes, const char *label, int *id)
{
    entry *f = rs_calloc(1, sizeof *f);
    if (f == NULL)
        return rs_error_memory(sizeof *f);
    f->fd = -1;
    f->size = bytes;
    f->inflated = rs_calloc(1, sizeof *f->inflated);
    size_t room = strlen(rs_files_path(files, base)) + strlen(label) + 2;
    f->path = rs_calloc(room, 1);
    rs_status status = RS_OK;
    if (f->inflated == NULL || f->path == NULL) {
        free(f->inflated);
        f->inflated = NULL;
        RS_TRY_GOTO(rs_error_memory(room), fail);
    }
    snprintf(f->path, room, "%s!%s", rs_files_path(files, base), label);
    pthread_mutex_init(&f->inflated->lock, NULL);
    f->inflated->base = base;
    f->inflated->offset = offset;
    f->inflated->stored = stored;
    RS_TRY_GOTO(prove_length(files, f), fail);
    RS_TRY_GOTO(append(files, f, id), fail);
    files->have_inflated = true;
    return RS_OK;
fail:
    free_file(f);
    return status;
}

rs_status rs_reader_init(rs_reader *reader, rs_files *files, int file, int64_t begin, int64_t end)
{
    *reader = (rs_reader){.files = files, .file = file, .position = begin, .end = end};
    reader->window = rs_calloc(RS_READER_WINDOW, 1);
    return reader->window != NULL ? RS_OK : rs_error_memory(RS_READER_WINDOW);
}

void rs_reader_fini(rs_reader *reader)
{
    free(reader->window);
    memset(reader, 0, sizeof *reader);
}

static rs_status check_left(const rs_reader *reader, size_t bytes)
{
    if (bytes > (uint64_t)(reader->end - reader->position))
        return rs_files_malformed(reader->files, reader->file, reader->position,
            "%zu bytes are wanted, %" PRId64 " are left", bytes, reader->end - reader->position);
    return RS_OK;
}

rs_status rs_reader_take(rs_reader *reader, size_t bytes, const unsigned char **out)
{
    assert(bytes <= RS_READER_WINDOW);
    int64_t window_end = reader->window_at + (int64_t)reader->window_bytes;
    if (reader->position < reader->window_at || reader->position + (int64_t)bytes > window_end) {
        RS_TRY(check_left(reader, bytes));
        size_t fill = (size_t)rs_min64((int64_t)RS_READER_WINDOW, reader->end - reader->position);
        reader->window_bytes = 0;
        RS_TRY(rs_files_read(reader->files, reader->file, reader->position, reader->window, fill));
        reader->window_at = reader->position;
        reader->window_bytes = fill;
    }
    *out = reader->window + (reader->position - reader->window_at);
    reader->position += (int64_t)bytes;
    return RS_OK;
}

rs_status rs_reader_copy(rs_reader *reader, void *out, size_t bytes)
{
    RS_TRY(check_left(reader, bytes));
    if (bytes <= RS_READER_WINDOW / 2) {
        const unsigned char *from;
        RS_TRY(rs_reader_take(reader, bytes, &from));
        memcpy(out, from, bytes);
        return RS_OK;
    }
    RS_TRY(rs_files_read(reader->files, reader->file, reader->position, out, bytes));
    reader->position += (int64_t)bytes;
    return RS_OK;
}

rs_status rs_file_text(const char *path, size_t most, char **out, size_t *length)
{
    int fd = -1;
    int64_t size = 0;
    RS_TRY(open_regular(path, &fd, &size));
    rs_status status = RS_OK;
    char *text = NULL;
    if ((uint64_t)size > most)
        RS_TRY_GOTO(rs_error_set(RS_ERR_MALFORMED, "%s: %" PRId64 " bytes, at most %zu are read",
                        path, size, most),
            out);
    text = rs_calloc((size_t)size + 1, 1);
    if (text == NULL)
        RS_TRY_GOTO(rs_error_memory((size_t)size + 1), out);
    size_t filled = 0;
    while (filled < (size_t)size) {
        ssize_t got = read(fd, text + filled, (size_t)size - filled);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        filled += (size_t)got;
    }
    if (filled < (size_t)size)
        RS_TRY_GOTO(rs_error_errno(EIO, "%s: byte %zu: cannot read", path, filled), out);
    *out = text;
    *length = filled;
    text = NULL;
out:
    free(text);
    close(fd);
    return status;
}

rs_status rs_path_join(const char *directory, const char *name, char **out)
{
    size_t room = strlen(directory) + strlen(name) + 2;
    char *path = rs_calloc(room, 1);
    if (path == NULL)
        return rs_error_memory(room);
    size_t length = strlen(directory);
    bool slash = length > 0 && directory[length - 1] == '/';
    snprintf(path, room, "%s%s%s", directory, slash || length == 0 ? "" : "/", name);
    *out = path;
    return RS_OK;
}

const char *rs_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}
