/*
 * Files of torch.save: the zip container and the older stream of pickles. One interface to both:
 * a value for the object that was saved, and tensors in it with their storage on disk.
 */
#ifndef RS_CKPT_TORCH_H
#define RS_CKPT_TORCH_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/file.h"
#include "ckpt/names.h"
#include "ckpt/pickle.h"
#include "ckpt/zip.h"
#include "reshard/box.h"
#include "reshard/dtype.h"
#include "reshard/status.h"

/* The bytes of one storage. */
typedef struct rs_torch_storage {
    const char *key;
    int file;       /* number in the files */
    int64_t offset; /* byte of that file */
    int64_t bytes;
    int64_t count;              /* elements it was declared with */
    size_t element;             /* bytes of each */
    const char *class;          /* name of its class */
    const rs_zip_entry *record; /* NULL in the older container */
} rs_torch_storage;

typedef struct rs_torch {
    rs_files *files;
    int file;
    bool legacy;
    bool big_endian;
    rs_zip zip;
    const char *prefix; /* of its entries in the zip, with the slash */
    rs_pickle pickle;
    rs_torch_storage *storages;
    size_t storage_count;
    size_t storage_capacity;
    rs_names storage_names;
    int64_t trailing;      /* bytes behind the container's end */
    int64_t after_stop;    /* bytes behind the pickle's end in its record */
    size_t foreign;        /* zip entries outside the prefix */
    bool pickle_crc_wrong; /* the record of the pickle has another checksum than the directory says
                            */
} rs_torch;

/* What a tensor says of itself, checked against its storage. */
typedef struct rs_torch_tensor {
    rs_dtype dtype;
    int ndim;
    int64_t shape[RS_MAX_DIMS];
    int64_t stride[RS_MAX_DIMS]; /* elements, never negative */
    int64_t first;               /* element of the storage */
    const rs_torch_storage *storage;
    bool conjugated; /* the storage holds the conjugate, or the negative */
    bool negated;
    bool quantized; /* integers that stand for other numbers */
} rs_torch_tensor;

/*
 * Opens the container in `file`, reads its directory and its pickle, and finds its storages.
 * Release with rs_torch_fini, also after an error.
 */
rs_status rs_torch_open(rs_files *files, int file, rs_torch *torch) RS_MUST_CHECK;
void rs_torch_fini(rs_torch *torch);

static inline const rs_value *rs_torch_root(const rs_torch *torch)
{
    return torch->pickle.root;
}

/* What kind of tensor a value is. */
typedef enum rs_torch_kind {
    RS_TORCH_NO_TENSOR = 0,
    RS_TORCH_DENSE,
    RS_TORCH_SPARSE, /* parts: see rs_torch_sparse_parts */
    RS_TORCH_EMPTY,  /* a tensor without data: meta, wrapper */
    RS_TORCH_OTHER   /* nested, from numpy, ...: recognised, not read */
} rs_torch_kind;

/* Looks through parameters and tensor subclasses. */
rs_torch_kind rs_torch_kind_of(const rs_value *value);

/* The tensor that `value` is; RS_ERR_MALFORMED or RS_ERR_UNSUPPORTED names file and byte. */
rs_status rs_torch_tensor_of(
    const rs_torch *torch, const rs_value *value, rs_torch_tensor *out) RS_MUST_CHECK;

/* The dense tensors that a sparse one is made of, with their names ("indices", "values", ...);
 * returns their number, at most 4. */
int rs_torch_sparse_parts(const rs_value *value, const char *names[4], const rs_value *parts[4]);

/* True if the elements stand in row-major order without gaps. */
bool rs_torch_is_contiguous(const rs_torch_tensor *tensor);

/* Elements of a tensor. */
int64_t rs_torch_elements(const rs_torch_tensor *tensor);

/* "torch.bfloat16" as a value: its dtype, RS_DTYPE_NONE for anything else. */
rs_dtype rs_torch_dtype_of(const rs_value *value);

/* The value of a tensor with one element, as a number. */
rs_status rs_torch_scalar(const rs_torch *torch, const rs_value *value, double *out) RS_MUST_CHECK;

/* Sizes in a torch.Size, tuple or list; RS_ERR_MALFORMED without detail. */
rs_status rs_torch_sizes(const rs_value *value, int *ndim, int64_t *sizes) RS_MUST_CHECK;

#endif
