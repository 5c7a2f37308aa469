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
    /* Met in checkpoints and carried as opaque bytes. */
    RS_DTYPE_C32,
    RS_DTYPE_C64,
    RS_DTYPE_C128,
    RS_DTYPE_F8_E4M3FNUZ,
    RS_DTYPE_F8_E5M2FNUZ,
    RS_DTYPE_F8_E8M0,
    RS_DTYPE_F4X2,      /* two 4-bit numbers in a byte */
    RS_DTYPE_F6_E2M3X4, /* four 6-bit numbers in three bytes */
    RS_DTYPE_F6_E3M2X4,
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
