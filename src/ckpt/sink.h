/* A file of known size that several threads, or processes, write by position, each its parts. */
#ifndef RS_CKPT_SINK_H
#define RS_CKPT_SINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

/* Writes begin at multiples of it, and so does the memory that they come from; the memory behind
 * them, up to the next multiple, may be read. */
#define RS_SINK_ALIGN 4096

/* How the file system of a folder is best written to. */
typedef struct rs_sink_way {
    bool direct; /* around the page cache */
    bool memory; /* the file system is memory */
} rs_sink_way;

typedef struct rs_sink {
    int fd; /* -1: none */
    char *path;
    int64_t bytes;
    atomic_bool direct;
    atomic_bool padded; /* written beyond its end */
} rs_sink;

rs_sink_way rs_sink_find_way(const char *folder);

/* Makes the file `path`, which must not exist, with its full size, and reserves its room where the
 * file system can. */
rs_status rs_sink_make(const char *path, int64_t bytes, rs_sink_way way) RS_MUST_CHECK;

/* Opens what rs_sink_make made. */
rs_status rs_sink_open(
    rs_sink *sink, const char *path, int64_t bytes, rs_sink_way way) RS_MUST_CHECK;

/* Writes bytes [at, at + bytes) of the file, and has the system begin to bring them to the disk.
 * Aligned as above, but for sinks that are not direct. */
rs_status rs_sink_write(rs_sink *sink, int64_t at, const void *data, size_t bytes) RS_MUST_CHECK;

/* Closes; what was written through this sink is on disk if `sync`. */
rs_status rs_sink_close(rs_sink *sink, bool sync) RS_MUST_CHECK;

/* Closes whatever state it is in. */
void rs_sink_fini(rs_sink *sink);

#endif
