/*
 * The catalog: what every reader of a format makes, and all that the layers above see of one.
 *
 * It lists entries (a logical tensor in one role) and for each its pieces: a box of the entry and
 * where its elements lie in a file, by byte offset and byte strides. That is a placement whose
 * holders are files. Entries may have several copies (replicas), each complete.
 */
#ifndef RS_CKPT_CATALOG_H
#define RS_CKPT_CATALOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "ckpt/file.h"
#include "ckpt/names.h"
#include "ckpt/pool.h"
#include "reshard/box.h"
#include "reshard/checkpoint.h"
#include "reshard/dtype.h"
#include "reshard/status.h"

/* How the bytes of a piece become elements. */
typedef enum rs_piece_flag {
    RS_PIECE_SWAPPED = 1,    /* big endian */
    RS_PIECE_CONJUGATED = 2, /* the conjugate of the complex number that is meant */
    RS_PIECE_NEGATED = 4
} rs_piece_flag;

/* The file of pieces whose bytes the catalog holds itself. */
#define RS_PIECE_INLINE (-1)

typedef struct rs_piece {
    rs_box box; /* of the entry, never empty */
    int copy;   /* the replica that it is part of, from 0 on */
    int file;
    int64_t offset;              /* bytes from the file's start to the box's first element */
    int64_t stride[RS_MAX_DIMS]; /* bytes between neighbours along each dimension */
    unsigned flags;
} rs_piece;

typedef enum rs_entry_how {
    RS_ENTRY_PIECES = 0, /* from its pieces */
    RS_ENTRY_AVERAGE,    /* the mean of its copies, in double precision, rounded once */
    RS_ENTRY_EQUAL,      /* any of its copies, which must be equal: reading what differs fails */
    RS_ENTRY_ALIAS,      /* the bytes of entry `source` */
    RS_ENTRY_ROUNDED     /* entry `source` in this entry's dtype */
} rs_entry_how;

typedef struct rs_catalog_entry {
    rs_checkpoint_entry is;
    rs_entry_how how;
    int source;
    size_t first_piece; /* after rs_catalog_finish: its pieces, by copy, then by box */
    size_t piece_count;
} rs_catalog_entry;

typedef struct rs_stored_piece {
    int64_t offset;
    size_t numbers; /* in the catalog's numbers: offset, extent, stride of each dimension */
    int entry;
    int copy;
    int file;
    unsigned flags;
} rs_stored_piece;

/* A run of bytes in a file and the CRC-32, or the XXH3-64, that they should have. */
typedef struct rs_checksum {
    int file;
    int64_t offset;
    int64_t bytes;
    bool is_xxh3;
    uint64_t value;
    const char *label;
} rs_checksum;

typedef struct rs_catalog {
    rs_files *files;
    bool borrowed; /* the files are another catalog's */
    rs_pool pool;  /* of all texts */
    const char *format;
    const char *layout;
    struct {
        rs_catalog_entry *items;
        size_t count, capacity;
    } entries;
    struct {
        rs_stored_piece *items;
        size_t count, capacity;
    } pieces;
    struct {
        int64_t *items;
        size_t count, capacity;
    } numbers;
    struct {
        rs_checksum *items;
        size_t count, capacity;
    } checksums;
    struct {
        unsigned char *items;
        size_t count, capacity;
    } inlined;
    struct {
        const char **items;
        size_t count, capacity;
    } warnings;
    rs_names names; /* "role\nname" */
    json_t *extras; /* an object */
    /* NULL, or {"facts":{KEY:TEXT},"first_layers":{TENSOR:LAYER or LAYERS}} (space.h) */
    json_t *model;
} rs_catalog;

rs_status rs_catalog_create(const char *format, rs_catalog **out) RS_MUST_CHECK;
void rs_catalog_destroy(rs_catalog *catalog);

/* A catalog without entries over the files of another one, with its format, layout, checksums,
 * warnings, extras and model. It borrows files and texts. */
rs_status rs_catalog_view(const rs_catalog *of, rs_catalog **out) RS_MUST_CHECK;

/* Adds an entry without pieces; copies name and role. RS_ERR_MALFORMED if there is one already, or
 * its bytes overflow 64 bits. */
rs_status rs_catalog_add(rs_catalog *catalog, const char *name, const char *role, rs_dtype dtype,
    int ndim, const int64_t *shape, int *id) RS_MUST_CHECK;

/* The entry of that name and role, -1 if there is none. */
int rs_catalog_find(const rs_catalog *catalog, const char *name, const char *role);

rs_catalog_entry *rs_catalog_get(const rs_catalog *catalog, int id);

/* Adds a piece; empty boxes add nothing. */
rs_status rs_catalog_piece(rs_catalog *catalog, int id, const rs_piece *piece) RS_MUST_CHECK;

/* The whole entry in row-major order from byte `offset` of `file` on. */
rs_status rs_catalog_whole(
    rs_catalog *catalog, int id, int copy, int file, int64_t offset) RS_MUST_CHECK;

/* The whole entry, from memory (copied). */
rs_status rs_catalog_inline(rs_catalog *catalog, int id, int copy, const void *data) RS_MUST_CHECK;

/* An entry that is another one: under another name, or rounded to another dtype. */
rs_status rs_catalog_alias(rs_catalog *catalog, const char *name, int source) RS_MUST_CHECK;
rs_status rs_catalog_rounded(
    rs_catalog *catalog, const char *role, rs_dtype dtype, int source) RS_MUST_CHECK;

rs_status rs_catalog_warn(rs_catalog *catalog, const char *format, ...)
    __attribute__((format(printf, 2, 3))) RS_MUST_CHECK;

rs_status rs_catalog_checksum(rs_catalog *catalog, int file, int64_t offset, int64_t bytes,
    uint32_t crc, const char *label) RS_MUST_CHECK;
rs_status rs_catalog_checksum_xxh3(rs_catalog *catalog, int file, int64_t offset, int64_t bytes,
    uint64_t hash, const char *label) RS_MUST_CHECK;

/* Sets a member of the extras; takes `value` (NULL counts as out of memory). */
rs_status rs_catalog_extra(rs_catalog *catalog, const char *key, json_t *value) RS_MUST_CHECK;

/*
 * Closes the list: orders the pieces and checks that every copy of every entry is complete, each
 * element exactly once. RS_ERR_MALFORMED names entry and box that no file holds, or two pieces that
 * overlap.
 */
rs_status rs_catalog_finish(rs_catalog *catalog) RS_MUST_CHECK;

/* A piece of a finished catalog in full. */
rs_piece rs_catalog_piece_at(const rs_catalog *catalog, size_t index);

/* Reads `box` of copy `copy` (-1: as the entry is meant) packed into `out`. */
rs_status rs_catalog_read(
    const rs_catalog *catalog, int id, int copy, const rs_box *box, void *out) RS_MUST_CHECK;

/* The memory that reading needs beside the caller's buffer, kept from call to call; for one thread.
 * Starts as {0}, or with the most that a gathering and a block of rounding may take. */
#define RS_SCRATCH_BLOCKS 3

typedef struct rs_scratch {
    int64_t span;  /* bytes; 0: 4 MiB */
    int64_t block; /* bytes; 0: 1 MiB */
    unsigned char *gather;
    unsigned char *blocks[RS_SCRATCH_BLOCKS]; /* of a cast, of what it rounds, of what that means */
    double *sums;
    int depth;
} rs_scratch;

void rs_scratch_fini(rs_scratch *scratch);

/* rs_catalog_read with the caller's scratch, and the elements as `dtype`: that of the entry, or
 * another float where the entry's is one. */
rs_status rs_catalog_read_as(const rs_catalog *catalog, rs_scratch *scratch, int id, int copy,
    rs_dtype dtype, const rs_box *box, void *out) RS_MUST_CHECK;

/* Whether two entries of one dtype are the same to the bit; if not, `text` gets the first index at
 * which they differ, with both values. */
rs_status rs_catalog_same(
    const rs_catalog *catalog, int a, int b, bool *same, char *text, size_t size) RS_MUST_CHECK;

rs_status rs_catalog_hash(
    const rs_catalog *catalog, int id, char hex[RS_CHECKPOINT_HASH]) RS_MUST_CHECK;

/* Gets a sentence about a checkpoint; one that makes it a warning of the catalog. */
typedef rs_status rs_catalog_tell(void *context, const char *text);
rs_catalog_tell rs_catalog_note;

/* Compares what the files have of an entry more than once, its copies and a second name's own
 * bytes, and tells what differs: in how many elements, and the first with its values. */
rs_status rs_catalog_check_replicas(
    const rs_catalog *catalog, int id, rs_catalog_tell *tell, void *context) RS_MUST_CHECK;

/* See rs_checkpoint_check. */
rs_status rs_catalog_check(rs_catalog *catalog) RS_MUST_CHECK;

#endif
