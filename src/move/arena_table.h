/* The table file of an arena: its bytes, and the names of a job's files. docs/arena.md is the
 * specification. Include in .c files only. */
#ifndef RS_MOVE_ARENA_TABLE_H
#define RS_MOVE_ARENA_TABLE_H

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/arena.h"

#define RS_ARENA_JOB 48    /* longest job name */
#define RS_ARENA_NAME 128  /* room for a file name */
#define RS_ARENA_PAGE 4096 /* what tables and segments are aligned to, at least */

/* What a job's file is, by the end of its name. */
typedef enum rs_arena_file {
    RS_ARENA_TABLE = 0,
    RS_ARENA_TABLE_NEW, /* a table being written */
    RS_ARENA_EXTENT,
    RS_ARENA_LEDGER, /* ledger.h */
    RS_ARENA_FILES
} rs_arena_file;

struct rs_keeper {
    char job[RS_ARENA_JOB + 1];
    char boot[40]; /* this boot's id */
    char *folder;
    int fd; /* of the folder */
};

/* What tells whose a file is; a part of the first page of tables and ledgers. */
typedef struct rs_stamp {
    char job[56];
    char boot[40];
    int32_t generation;
    int32_t rank;
} rs_stamp;

void rs_stamp_set(const rs_keeper *keeper, int generation, int rank, rs_stamp *out);

/* RS_ERR_MISMATCH: it is another's, or was written before the machine was started. */
rs_status rs_stamp_check(
    const rs_keeper *keeper, int generation, int rank, const rs_stamp *stamp) RS_MUST_CHECK;

/* Opens the keeper's folder for reading its names, from the first; the caller closes it. */
rs_status rs_keeper_list(const rs_keeper *keeper, DIR **out) RS_MUST_CHECK;

/* An extent file named by a table: that of (generation, rank), of which `bytes` bytes are used. */
typedef struct rs_extent {
    int32_t generation;
    int32_t rank;
    int64_t bytes;
} rs_extent;

/* Where a segment lies. */
typedef struct rs_entry {
    int32_t segment;
    int32_t extent; /* index into the extents */
    int64_t offset;
    int64_t bytes;
} rs_entry;

/* One of two slots that commits alternate between: the valid one with the higher number counts. */
typedef struct rs_commit {
    uint64_t number;
    uint64_t step;
    uint64_t check;
} rs_commit;

/* Who maps the arena for writing: the rank whose it is, or a guest that fills some of it. */
typedef enum rs_table_writer {
    RS_TABLE_OWNER = 0,
    RS_TABLE_GUEST,
    RS_TABLE_WRITERS
} rs_table_writer;

/* The process of a writer: it holds a lock on the byte of the table file that has its number. */
typedef struct rs_table_owner {
    uint64_t pid;   /* 0: none has said so */
    uint64_t start; /* when it was started, in ticks since boot */
} rs_table_owner;

#define RS_TABLE_SPARSE 1u /* flag: made by rs_arena_create_sparse */

/* The first page of a table file. The extents and entries follow it, then, at `marks`, the
 * counters. */
typedef struct rs_table_header {
    char magic[8];
    uint32_t version;
    uint32_t flags;
    rs_stamp stamp;
    int64_t extent_count;
    int64_t entry_count;
    int64_t marks;        /* byte offset of the marks */
    uint64_t body_hash;   /* XXH3 of the entries, seeded with that of the extents */
    uint64_t header_hash; /* XXH3 of the bytes before */
    rs_commit commit[2];  /* these two change; all else is written once */
    rs_table_owner writers[RS_TABLE_WRITERS];
} rs_table_header;

/* A table read into memory. */
typedef struct rs_table {
    uint32_t flags;
    rs_extent *extents;
    size_t extent_count;
    rs_entry *entries; /* ascending by segment */
    size_t entry_count;
    int64_t marks;
    uint64_t identity; /* the header's hash */
} rs_table;

void rs_table_fini(rs_table *table);

/* Writes the name of a file of the job to `name` (RS_ARENA_NAME bytes); returns it. */
char *rs_arena_file_name(
    const rs_keeper *keeper, int generation, int rank, rs_arena_file kind, char *name);

/* True if `name` is one that the function above gives; outputs may not be NULL. */
bool rs_arena_file_parse(
    const rs_keeper *keeper, const char *name, int *generation, int *rank, rs_arena_file *kind);

/* Opens a regular file of this user in the folder, never through a link. RS_ERR_NOT_FOUND. */
rs_status rs_arena_file_open(
    const rs_keeper *keeper, const char *name, bool writable, int *fd) RS_MUST_CHECK;

/* Writes a table file: aside, then under its name at once. RS_ERR_EXISTS. `table->marks` and
 * `table->identity` are set. */
rs_status rs_table_write(
    const rs_keeper *keeper, int generation, int rank, rs_table *table) RS_MUST_CHECK;

/* Reads and checks everything that the open file `fd` says. Names the file in errors. */
rs_status rs_table_read(const rs_keeper *keeper, int generation, int rank, int fd, const char *name,
    rs_table *out) RS_MUST_CHECK;

/* The check word of a commit. */
uint64_t rs_table_commit_check(uint64_t identity, const rs_commit *commit);

/* The table of a mapped arena; NULL for NULL. */
const rs_table *rs_arena_table(const rs_arena *arena);

/* Locks the open table file for this process as `writer`, and says in `header`, mapped, who it is.
 * The lock lasts as long as `fd` is open. RS_ERR_EXISTS: another process has it. */
rs_status rs_table_lock(
    int fd, const char *name, rs_table_writer writer, rs_table_header *header) RS_MUST_CHECK;

/* True if another process holds the lock of `writer`. */
bool rs_table_is_locked(int fd, rs_table_writer writer);

/* Writes, or reads, all bytes at `offset`; false with errno (0 at the end of the file). */
bool rs_file_write_at(int fd, const void *data, size_t bytes, int64_t offset);
bool rs_file_read_at(int fd, void *data, size_t bytes, int64_t offset);

/* What the marks need: bytes of the whole file. */
int64_t rs_table_file_bytes(const rs_table *table);

#endif
