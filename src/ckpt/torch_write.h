/*
 * Making a file of torch.save: the pickle of an object with tensors in it, and one storage for
 * each.
 *
 * Usual order: rs_torch_make_begin; write the object into `pickle` (pickle_write.h) and its tensors
 * by rs_torch_make_tensor; rs_torch_make_end; rs_torch_make_output; rs_torch_make_complete. Memory:
 * what the pickle takes.
 */
#ifndef RS_CKPT_TORCH_WRITE_H
#define RS_CKPT_TORCH_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/bytes.h"
#include "ckpt/output.h"
#include "ckpt/pickle_write.h"
#include "ckpt/pool.h"
#include "ckpt/zip_write.h"
#include "reshard/dtype.h"
#include "reshard/status.h"

typedef struct rs_torch_made {
    int64_t bytes;
    int tag;     /* number of the tensor that fills it */
    size_t part; /* of the output, that is its content */
    size_t tail; /* of the output, behind it */
} rs_torch_made;

/* Starts as {0}. */
typedef struct rs_torch_make {
    rs_bytes pickle;
    struct {
        rs_torch_made *items; /* by key */
        size_t count, capacity;
    } storages;
    rs_zip_record *records; /* after rs_torch_make_end */
    size_t record_count;
    int64_t bytes; /* of the file */
    size_t end;    /* part of the output behind all records */
    rs_pool pool;
} rs_torch_make;

void rs_torch_make_begin(rs_torch_make *make);
void rs_torch_make_fini(rs_torch_make *make);

/* A tensor with a storage of its own; `*key` (may be NULL) is the storage's. RS_ERR_UNSUPPORTED:
 * PyTorch has no such type. */
rs_status rs_torch_make_tensor(rs_torch_make *make, rs_dtype dtype, int ndim, const int64_t *shape,
    int tag, int64_t *key) RS_MUST_CHECK;

/* Closes the object and lays out the file. */
rs_status rs_torch_make_end(rs_torch_make *make) RS_MUST_CHECK;

/* Adds what makes the output's file that was begun last this file. Storages are filled from
 * `tensors` (borrowed), by their tags. */
rs_status rs_torch_make_output(
    rs_torch_make *make, rs_output *output, const rs_logical *tensors) RS_MUST_CHECK;

/* The checksums of that file are known: fills its rooms. */
rs_status rs_torch_make_complete(const rs_torch_make *make, rs_output *output) RS_MUST_CHECK;

#endif
