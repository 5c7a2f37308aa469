/* Files of the safetensors format: reading a header, and writing files. */
#ifndef RS_CKPT_SAFETENSORS_H
#define RS_CKPT_SAFETENSORS_H

#include <jansson.h>

#include "ckpt/catalog.h"
#include "ckpt/logical.h"
#include "ckpt/output.h"
#include "reshard/dtype.h"
#include "reshard/status.h"

/* Enters every tensor of `file` as a param. `metadata` (may be NULL) is an object that gets the
 * file's `__metadata__`. RS_ERR_MALFORMED says byte and reason. */
rs_status rs_safetensors_enter(rs_catalog *catalog, int file, json_t *metadata) RS_MUST_CHECK;

/* One tensor of a file to be written. */
typedef struct rs_safetensors_tensor {
    const char *name;
    rs_dtype dtype;
    int ndim;
    int64_t shape[RS_MAX_DIMS];
    int64_t offset; /* of its data in the file; filled in by rs_safetensors_layout */
    int64_t bytes;  /* likewise */
} rs_safetensors_tensor;

/* A pair of the header's `__metadata__`. */
typedef struct rs_safetensors_note {
    const char *key;
    const char *value;
} rs_safetensors_note;

/*
 * Lays out a file: orders the tensors (wide types first, then by name, so that all are aligned),
 * gives each its place, and makes the bytes that the file starts with (8 bytes of length and the
 * header), as `*head` of `*head_bytes`; free() it. The same tensors and notes give the same bytes.
 * RS_ERR_ARGUMENT: two tensors of one name, a name or note that is no UTF-8. RS_ERR_BUDGET: a
 * header of more than 100,000,000 bytes; spread the tensors over files.
 */
rs_status rs_safetensors_layout(rs_safetensors_tensor *tensors, size_t count,
    const rs_safetensors_note *notes, size_t note_count, char **head, size_t *head_bytes,
    int64_t *file_bytes) RS_MUST_CHECK;

/*
 * Adds what makes the output's file that was begun last a safetensors file: the header and the
 * tensors (borrowed) under their names, in the order of the format, with the checksums asked for.
 * `parts` (may be NULL) gets the number of each tensor's part, in the order in which they were
 * given.
 */
rs_status rs_safetensors_output(rs_output *output, const rs_logical *const *tensors,
    const char *const *names, size_t count, const rs_safetensors_note *notes, size_t note_count,
    unsigned sums, size_t *parts) RS_MUST_CHECK;

#endif
