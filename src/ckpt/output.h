/*
 * What is to be written: files, each a row of parts that stand behind each other. A part is bytes
 * that are given, or a tensor, whose bytes are read when they are written, or room for bytes that
 * depend on the checksums of the others.
 *
 * Usual order: rs_output_init; for each file rs_output_file, then its parts in order; with the
 * whole list known, rs_output_write, which fills in the checksums that were asked for.
 */
#ifndef RS_CKPT_OUTPUT_H
#define RS_CKPT_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/catalog.h"
#include "ckpt/logical.h"
#include "ckpt/pool.h"
#include "reshard/certificate.h"
#include "reshard/group.h"
#include "reshard/status.h"

/* Checksums of a part, a bit each. */
typedef enum rs_output_sum {
    RS_OUTPUT_XXH3 = 1,   /* XXH3-64 of its bytes */
    RS_OUTPUT_CRC32 = 2,  /* of zip files */
    RS_OUTPUT_CONTENT = 4 /* certificate.h, of the tensor's role and the name and coordinates of its
                             entry; the part begins at a multiple of its element size */
} rs_output_sum;

typedef struct rs_output_part {
    const rs_logical *tensor; /* NULL: given bytes, or room */
    const void *data;         /* NULL and no tensor: room */
    int64_t offset;           /* in its file */
    int64_t bytes;
    int file;
    unsigned sums;
    /* after rs_output_write, what `sums` asks for */
    uint64_t xxh3;
    rs_sum content;
    uint32_t crc32;
} rs_output_part;

typedef struct rs_output_file_row {
    const char *name; /* may have folders in it */
    int64_t bytes;
    size_t first_part, part_count;
    bool has_room;
} rs_output_file_row;

/* Starts as {0}. */
typedef struct rs_output {
    rs_pool pool;
    struct {
        rs_output_file_row *items;
        size_t count, capacity;
    } files;
    struct {
        rs_output_part *items;
        size_t count, capacity;
    } parts;
} rs_output;

void rs_output_fini(rs_output *output);

/* Begins the next file, `name` below the folder that is written to ("a/b.pt"; copied). */
rs_status rs_output_file(rs_output *output, const char *name) RS_MUST_CHECK;

/* The next part of the file begun last: given bytes (copied), a tensor
 * (borrowed until all is written), or room. `*part` (may be NULL) gets its number. */
rs_status rs_output_bytes(
    rs_output *output, const void *data, size_t bytes, size_t *part) RS_MUST_CHECK;
rs_status rs_output_tensor(
    rs_output *output, const rs_logical *tensor, unsigned sums, size_t *part) RS_MUST_CHECK;
rs_status rs_output_room(rs_output *output, int64_t bytes, size_t *part) RS_MUST_CHECK;

/* Bytes of the file begun last, so far. */
int64_t rs_output_at(const rs_output *output);

/* Gives the bytes of a room (copied), from within `complete`. */
rs_status rs_output_fill(rs_output *output, size_t part, const void *data) RS_MUST_CHECK;

typedef struct rs_output_how {
    const rs_catalog *catalog; /* of the tensors */
    const char *folder;        /* exists, is empty, and as every process of the group sees it */
    int64_t memory;            /* for buffers; 0: 256 MiB */
    int threads;               /* 0: as many as pay */
    const rs_group *group;     /* NULL: this process alone */
    /* All checksums of the file are known: gives the bytes of its rooms. Called on rank 0 for files
     * that have any. */
    rs_status (*complete)(void *context, int file);
    void *context;
    void (*progress)(void *context, int64_t done, int64_t all); /* bytes of this process */
    void *progress_context;
    bool (*cancelled)(void *context); /* asked between writes; may be NULL */
    void *cancelled_context;
} rs_output_how;

/*
 * Writes all files and syncs them and their folders. Collective over the group, with the same list
 * on every rank: each byte of a file is written by one of them, and read by one from the source.
 * RS_ERR_CANCELLED: `cancelled` said so, on some rank. After an error files are left in the folder,
 * and no process of the group writes to them any more.
 */
rs_status rs_output_write(rs_output *output, const rs_output_how *how) RS_MUST_CHECK;

#endif
