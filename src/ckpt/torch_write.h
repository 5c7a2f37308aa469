/*
 * Making a file of torch.save: the pickle of an object with tensors in it, and one storage for
 * each.
 *
 * Usual order: rs_torch_make_begin; write the object into `pickle` (pickle_write.h) and its tensors
 * by rs_torch_make_tensor; rs_torch_make_end; rs_torch_make_write. Memory: what the pickle takes.
 */
#ifndef RS_CKPT_TORCH_WRITE_H
#define RS_CKPT_TORCH_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/bytes.h"
#include "ckpt/pickle_write.h"
#include "ckpt/pool.h"
#include "ckpt/publish.h"
#include "ckpt/zip_write.h"
#include "reshard/dtype.h"
#include "reshard/status.h"

typedef struct rs_torch_made {
    int64_t bytes;
    int tag; /* the caller's, says what fills it */
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

/* Where the content of the storage that is written goes. */
typedef struct rs_torch_sink {
    rs_out *out;
    uint32_t crc;
    int64_t bytes;
} rs_torch_sink;

rs_status rs_torch_sink_write(rs_torch_sink *sink, const void *data, size_t bytes) RS_MUST_CHECK;

/* Hands the content of the storage with that tag to the sink, front to back. */
typedef rs_status (*rs_torch_feed)(void *context, int tag, rs_torch_sink *sink);

/* Writes `folder`/`name`, which must not exist, front to back, and syncs it. */
rs_status rs_torch_make_write(rs_torch_make *make, const char *folder, const char *name,
    rs_torch_feed feed, void *context) RS_MUST_CHECK;

#endif
