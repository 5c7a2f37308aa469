/*
 * Checkpoints on disk, of any format that reshard reads: what is in them, and the bytes.
 *
 * A checkpoint is shown as a list of *entries*, one for each logical tensor and *role* (param,
 * master, exp_avg, ...): whole, unsharded, unpadded, under the name that the framework gives it,
 * however the files cut it. Beside the entries there are *extras*, everything that is no tensor
 * (step, schedule, parameter groups, ...) as JSON, and *warnings*, sentences about what is odd.
 *
 * Reading is safe with files from strangers: pickles are data and nothing in them is called, every
 * number is checked before it is used, files are not mapped. What cannot be read right is refused,
 * with the file, the byte and the reason in rs_error_message.
 *
 * Usual order: rs_checkpoint_open; look at the entries; rs_checkpoint_read any box of one into a
 * buffer of yours; rs_checkpoint_close. A checkpoint that is open may be read by many threads at
 * once; nothing else may be done with it meanwhile. All functions are local.
 */
#ifndef RESHARD_CHECKPOINT_H
#define RESHARD_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/box.h"
#include "reshard/dialect.h"
#include "reshard/dtype.h"
#include "reshard/memory.h"
#include "reshard/placement.h"
#include "reshard/space.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rs_checkpoint rs_checkpoint;

/* Starts as {0}: everything as usual. */
typedef struct rs_checkpoint_options {
    const char *format; /* read as this format; NULL: find out */
    const char *rules;  /* path of a rules file (docs/formats/rules.md) that says how tensors were
                           cut where the checkpoint does not; NULL: none */
    /* Further folders with files of the checkpoint, as on the disks of several nodes: each a root
     * or a tag's folder, as `path` then is. A file that several have must be the same in all. */
    const char *const *also;
    int also_count;
    bool also_proved;  /* it is: another process compares the files that several folders have */
    bool weights_only; /* weights will do: files may lack that have none */
} rs_checkpoint_options;

typedef struct rs_checkpoint_entry {
    const char *name;
    const char *role; /* param, master, exp_avg, exp_avg_sq, momentum_buffer, step, buffer, ... */
    rs_dtype dtype;
    int ndim;
    int64_t shape[RS_MAX_DIMS]; /* elements */
    bool stored;                /* its bytes are in a file; else derived */
    const char *derived_from;   /* the role of the same name that it is rounded from; NULL */
    const char *alias_of;       /* the name of the same role that it shares its bytes with; NULL */
    int copies;                 /* replicas in the files, at least 1 where stored */
} rs_checkpoint_entry;

/*
 * Opens what is at `path`: a checkpoint's root (its `latest`, or else its only tag), a tag's
 * folder, an index, or a file. Reads the descriptions and no tensor data. `options` may be NULL.
 * The caller owns `*out`. RS_ERR_NOT_FOUND, RS_ERR_IO; RS_ERR_MALFORMED: damaged or incomplete;
 * RS_ERR_MISMATCH: the parts do not fit each other; RS_ERR_UNSUPPORTED: recognised and not read, or
 * it would call code, or nothing says how it was cut; RS_ERR_BUDGET: its description is too large.
 */
rs_status rs_checkpoint_open(
    const char *path, const rs_checkpoint_options *options, rs_checkpoint **out) RS_MUST_CHECK;
void rs_checkpoint_close(rs_checkpoint *checkpoint);

/* True if the checkpoint has the canonical names, as native ones of the trainer do. */
bool rs_checkpoint_is_canonical(const rs_checkpoint *checkpoint);

/* Starts as {0}. */
typedef struct rs_rename_options {
    const rs_dialect *from; /* whose names it has; NULL: the built-in one that knows most of them */
    const rs_dialect *to;   /* whose names are wanted; NULL: the canonical ones */
    const rs_space *space;  /* the model's; NULL: as a canonical checkpoint tells itself */
    bool lenient;           /* let tensors that the model has not be left out, with a warning, and
                               others lack */
} rs_rename_options;

/*
 * The same checkpoint under other names, and fused, cut and turned as these have it: a view, made
 * of descriptions; close it before `source`. Weights that are there twice are compared. The caller
 * owns `*out`. RS_ERR_ARGUMENT: the space is wanted; RS_ERR_NOT_FOUND: a tensor that the dialect or
 * the model does not know, or that the checkpoint lacks; RS_ERR_MISMATCH: another shape, or copies
 * that differ; RS_ERR_UNSUPPORTED: layers that one tensor of all layers cannot hold.
 */
rs_status rs_checkpoint_rename(const rs_checkpoint *source, const rs_rename_options *options,
    rs_checkpoint **out) RS_MUST_CHECK;

/* "safetensors", "torch", "deepspeed", "deepspeed-universal". */
const char *rs_checkpoint_format(const rs_checkpoint *checkpoint);

/* The parallel layout that wrote it, like "tp=2,pp=2,dp=1,zero=1"; NULL if the format has none. */
const char *rs_checkpoint_layout(const rs_checkpoint *checkpoint);

size_t rs_checkpoint_count(const rs_checkpoint *checkpoint);

/* Borrowed; valid until the checkpoint is closed. `index` counts from 0 in the order of the files.
 */
const rs_checkpoint_entry *rs_checkpoint_entry_at(const rs_checkpoint *checkpoint, size_t index);

/* The index of the entry with that name and role; -1 if there is none. */
int64_t rs_checkpoint_find(const rs_checkpoint *checkpoint, const char *name, const char *role);

/* Bytes of the whole entry. */
int64_t rs_checkpoint_entry_bytes(const rs_checkpoint_entry *entry);

/*
 * Reads `box` of the entry into `buffer`, packed in row-major order, little endian, in the entry's
 * dtype. `bytes` is the size of the buffer and must be that of the box. Derived entries are
 * rounded, aliases looked through. Memory: 20 MiB beside the buffer.
 */
rs_status rs_checkpoint_read(const rs_checkpoint *checkpoint, size_t index, const rs_box *box,
    void *buffer, size_t bytes) RS_MUST_CHECK;

/*
 * Reads all shards of `holder` into its memory: a rank's part under any layout, out of a checkpoint
 * of any format that has the space's names (rs_checkpoint_rename). `*bytes` (may be NULL) gets
 * theirs. RS_ERR_NOT_FOUND names a tensor or role that lacks, RS_ERR_MISMATCH one of another shape
 * or dtype. Memory: 25 MiB beside the holder's.
 */
rs_status rs_checkpoint_load(const rs_checkpoint *checkpoint, const rs_placement *placement,
    int holder, const rs_memory *memory, int64_t *bytes) RS_MUST_CHECK;

#define RS_CHECKPOINT_ELEMENT 80

/* Element `index` of packed elements as text: a number in as few digits as tell it from others of
 * its type, "true" or "false", "(re+imj)", or the bits of opaque types ("0x3f"). Returns `text`. */
const char *rs_checkpoint_element_text(
    rs_dtype dtype, const void *data, int64_t index, char text[RS_CHECKPOINT_ELEMENT]);

#define RS_CHECKPOINT_HASH 65

/* SHA-256 over the entry's bytes in row-major order, little endian, as 64 hexadecimal digits.
 * Memory: 24 MiB at any size. */
rs_status rs_checkpoint_hash(
    const rs_checkpoint *checkpoint, size_t index, char hex[RS_CHECKPOINT_HASH]) RS_MUST_CHECK;

/*
 * Reads everything and compares what the files say twice: replicas of an entry with each other,
 * a param with its master rounded, records with their checksums. Differences become warnings that
 * name the entry, the index of the first, and the values; the status is RS_OK then.
 */
rs_status rs_checkpoint_check(rs_checkpoint *checkpoint) RS_MUST_CHECK;

/* Of that the replicas of one role's entries alone, and second names with bytes of their own; reads
 * nothing else. */
rs_status rs_checkpoint_check_replicas(rs_checkpoint *checkpoint, const char *role) RS_MUST_CHECK;

/* How many checksums the files have, all of which rs_checkpoint_check compares. */
size_t rs_checkpoint_checksums(const rs_checkpoint *checkpoint);

size_t rs_checkpoint_warning_count(const rs_checkpoint *checkpoint);
const char *rs_checkpoint_warning_at(const rs_checkpoint *checkpoint, size_t index);

/* The extras as the text of a JSON object. The caller frees `*out` with free(). */
rs_status rs_checkpoint_extras(const rs_checkpoint *checkpoint, char **out) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
