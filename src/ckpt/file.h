/*
 * The files of a checkpoint: numbered, opened when read, few of them at a time, read by position
 * and never mapped (a file that shrinks under a mapping kills the process; here it is an error).
 *
 * Beside files on disk there are inflated ones: the content of a deflated part of another file,
 * read as if it were a file. Adding is for one thread; reading may be done by many.
 */
#ifndef RS_CKPT_FILE_H
#define RS_CKPT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

typedef struct rs_files rs_files;

rs_status rs_files_create(rs_files **out) RS_MUST_CHECK;
void rs_files_destroy(rs_files *files);

/* Adds the regular file at `path`; RS_ERR_NOT_FOUND, RS_ERR_IO, or RS_ERR_MALFORMED for what is no
 * regular file. Its size is that of now: if it has another when read, that is an error. */
rs_status rs_files_add(rs_files *files, const char *path, int *id) RS_MUST_CHECK;

/*
 * Adds what `stored` bytes at `offset` of file `base` inflate to (raw deflate), `bytes` long, under
 * the name "<path of base>!<label>". Inflates it once: RS_ERR_MALFORMED if the length differs.
 * Reading forward costs once over; reading backward starts anew.
 */
rs_status rs_files_add_inflated(rs_files *files, int base, int64_t offset, int64_t stored,
    int64_t bytes, const char *label, int *id) RS_MUST_CHECK;

int rs_files_count(const rs_files *files);
const char *rs_files_path(const rs_files *files, int id);
int64_t rs_files_size(const rs_files *files, int id);

/* All of `bytes` bytes at `offset`, or an error that says file and byte. */
rs_status rs_files_read(
    rs_files *files, int id, int64_t offset, void *buffer, size_t bytes) RS_MUST_CHECK;

/* Bytes read from disk so far. */
int64_t rs_files_read_bytes(const rs_files *files);

/* True if there are inflated files: reading them out of order is slow. */
bool rs_files_have_inflated(const rs_files *files);

/* Records RS_ERR_MALFORMED "<path>: byte <offset>: ..." and returns it. */
rs_status rs_files_malformed(const rs_files *files, int id, int64_t offset, const char *format, ...)
    __attribute__((format(printf, 4, 5), cold));

/* Puts "<path>: " before the recorded detail; returns `status`. */
rs_status rs_files_context(const rs_files *files, int id, rs_status status);

/* A window that walks over bytes [position, end) of a file. */
typedef struct rs_reader {
    rs_files *files;
    int file;
    int64_t position; /* of the next byte */
    int64_t end;
    unsigned char *window;
    int64_t window_at;
    size_t window_bytes;
} rs_reader;

#define RS_READER_WINDOW ((size_t)64 << 10)

rs_status rs_reader_init(
    rs_reader *reader, rs_files *files, int file, int64_t begin, int64_t end) RS_MUST_CHECK;
void rs_reader_fini(rs_reader *reader);

/* Borrows the next `bytes` (at most RS_READER_WINDOW) and moves on; valid until the next call.
 * RS_ERR_MALFORMED if fewer are left. */
rs_status rs_reader_take(rs_reader *reader, size_t bytes, const unsigned char **out) RS_MUST_CHECK;

/* Copies the next `bytes`, any number. */
rs_status rs_reader_copy(rs_reader *reader, void *out, size_t bytes) RS_MUST_CHECK;

/* Little-endian numbers at `p`. */
static inline uint32_t rs_le16(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static inline uint32_t rs_le32(const unsigned char *p)
{
    return rs_le16(p) | rs_le16(p + 2) << 16;
}

static inline uint64_t rs_le64(const unsigned char *p)
{
    return (uint64_t)rs_le32(p) | (uint64_t)rs_le32(p + 4) << 32;
}

/* The whole file at `path` as text with a NUL behind; RS_ERR_MALFORMED if it is longer than
 * `most` bytes. free() it. */
rs_status rs_file_text(const char *path, size_t most, char **out, size_t *length) RS_MUST_CHECK;

/* "<directory>/<name>"; free() it. */
rs_status rs_path_join(const char *directory, const char *name, char **out) RS_MUST_CHECK;

/* The part of `path` behind its last slash. */
const char *rs_path_base(const char *path);

#endif
