/* The storage classes of torch and the dtypes that their names stand for. */
#ifndef RS_CKPT_TORCH_STORAGE_H
#define RS_CKPT_TORCH_STORAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/value.h"
#include "reshard/dtype.h"

typedef struct rs_storage_class {
    const char *name;
    rs_dtype dtype; /* RS_DTYPE_NONE: bytes; the tensor says what they are */
    size_t bytes;   /* of an element */
    bool quantized; /* integers that stand for other numbers */
} rs_storage_class;

/* NULL for a name that is no storage class. */
const rs_storage_class *rs_storage_class_of(const rs_global *global);

/* The class whose elements are of that type, or the class of bytes for types that have none of
 * their own; NULL: PyTorch has no such type. */
const rs_storage_class *rs_storage_class_for(rs_dtype dtype);

#endif
