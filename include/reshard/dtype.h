/* Element types: name, size and class. All functions are local and cannot fail. */
#ifndef RESHARD_DTYPE_H
#define RESHARD_DTYPE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum rs_dtype {
    RS_DTYPE_NONE = 0,
    RS_DTYPE_F64,
    RS_DTYPE_F32,
    RS_DTYPE_F16,
    RS_DTYPE_BF16,
    RS_DTYPE_F8_E4M3,
    RS_DTYPE_F8_E5M2,
    RS_DTYPE_I64,
    RS_DTYPE_I32,
    RS_DTYPE_I16,
    RS_DTYPE_I8,
    RS_DTYPE_U64,
    RS_DTYPE_U32,
    RS_DTYPE_U16,
    RS_DTYPE_U8,
    RS_DTYPE_BOOL,
    RS_DTYPE_COUNT
} rs_dtype;

/* Bytes of one element; 0 for RS_DTYPE_NONE and for values outside the enum. */
size_t rs_dtype_size(rs_dtype dtype);

/* "float32", "bfloat16", ...: PyTorch's names. "none" for RS_DTYPE_NONE. */
const char *rs_dtype_name(rs_dtype dtype);

/* The reverse of rs_dtype_name; also takes "fp32", "bf16", "fp16", "F32", "BF16", ...
 * RS_DTYPE_NONE if the text names no element type. */
rs_dtype rs_dtype_parse(const char *text);

#ifdef __cplusplus
}
#endif

#endif
