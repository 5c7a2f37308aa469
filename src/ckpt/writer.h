/*
 * Writers: the table of formats that conversions write, and what a writer works with.
 *
 * A writer is given the tensors to be written and a folder of its own beside the target. It lays
 * out its files from the descriptions alone, then streams tensor after tensor into them. The
 * conversion (convert.c) chooses the tensors before and publishes the folder behind; writers know
 * nothing of either.
 */
#ifndef RS_CKPT_WRITER_H
#define RS_CKPT_WRITER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/catalog.h"
#include "ckpt/logical.h"
#include "ckpt/safetensors.h"
#include "reshard/convert.h"
#include "reshard/status.h"

typedef struct rs_writing {
    const rs_catalog *catalog;
    const rs_convert_options *options;
    rs_logical_list tensors;
    bool whole;     /* the whole state is wanted, not weights alone */
    json_t *extras; /* of the source, and what the conversion says of itself */
    rs_convert_report report;
    const char *folder; /* where it is written; empty */
    const char *name;   /* of the target, without folders */
    char *buffer;
    int64_t part;      /* bytes of the buffer */
    int64_t done, all; /* bytes of tensors */
} rs_writing;

typedef struct rs_writer {
    const char *name;
    bool whole;   /* takes the optimizer's state; else params alone */
    bool buffers; /* of weights alone: with the buffers */
    bool foreign; /* under other people's names, where the source has the trainer's own */
    bool file;    /* the target is one file, `folder`/`name`; else the folder */
    rs_status (*write)(rs_writing *w);
} rs_writer;

/* The writer of that name; NULL. */
const rs_writer *rs_writer_find(const char *name);

/* Calls for consecutive parts of the tensor, which fit the buffer, in order, and tells progress. */
rs_status rs_writing_stream(
    rs_writing *w, const rs_logical *tensor, rs_logical_part function, void *context) RS_MUST_CHECK;

/* The writers, each in a file of its own. */
rs_status rs_write_safetensors(rs_writing *w) RS_MUST_CHECK;
rs_status rs_write_native(rs_writing *w) RS_MUST_CHECK;
rs_status rs_write_torch(rs_writing *w) RS_MUST_CHECK;

/*
 * A safetensors file with the tensors first .. end-1 as its rows, under `names`, which are theirs.
 * `shards` (may be NULL) gets what a native manifest says of each: checksum, sum, place.
 */
typedef struct rs_rows {
    const char *folder, *file;
    size_t first, end;
    const char *const *names;
    const rs_safetensors_note *notes;
    size_t note_count;
    json_t *shards;
} rs_rows;

rs_status rs_write_rows(rs_writing *w, const rs_rows *rows, int64_t *file_bytes) RS_MUST_CHECK;

#endif
