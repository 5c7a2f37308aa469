/* Element types as one table: PyTorch's name, the safetensors name, a short name, size. */
#include "reshard/dtype.h"

#include <string.h>

typedef struct dtype_row {
    const char *name;
    const char *tag;   /* safetensors */
    const char *brief; /* as people write it */
    size_t size;
} dtype_row;

static const dtype_row rows[RS_DTYPE_COUNT] = {
    [RS_DTYPE_NONE] = {"none", "", "", 0},
    [RS_DTYPE_F64] = {"float64", "F64", "fp64", 8},
    [RS_DTYPE_F32] = {"float32", "F32", "fp32", 4},
    [RS_DTYPE_F16] = {"float16", "F16", "fp16", 2},
    [RS_DTYPE_BF16] = {"bfloat16", "BF16", "bf16", 2},
    [RS_DTYPE_F8_E4M3] = {"float8_e4m3fn", "F8_E4M3", "fp8_e4m3", 1},
    [RS_DTYPE_F8_E5M2] = {"float8_e5m2", "F8_E5M2", "fp8_e5m2", 1},
    [RS_DTYPE_I64] = {"int64", "I64", "i64", 8},
    [RS_DTYPE_I32] = {"int32", "I32", "i32", 4},
    [RS_DTYPE_I16] = {"int16", "I16", "i16", 2},
    [RS_DTYPE_I8] = {"int8", "I8", "i8", 1},
    [RS_DTYPE_U64] = {"uint64", "U64", "u64", 8},
    [RS_DTYPE_U32] = {"uint32", "U32", "u32", 4},
    [RS_DTYPE_U16] = {"uint16", "U16", "u16", 2},
    [RS_DTYPE_U8] = {"uint8", "U8", "u8", 1},
    [RS_DTYPE_BOOL] = {"bool", "BOOL", "boolean", 1},
    [RS_DTYPE_C32] = {"complex32", "C32", "chalf", 4},
    [RS_DTYPE_C64] = {"complex64", "C64", "cfloat", 8},
    [RS_DTYPE_C128] = {"complex128", "C128", "cdouble", 16},
    [RS_DTYPE_F8_E4M3FNUZ] = {"float8_e4m3fnuz", "F8_E4M3FNUZ", "fp8_e4m3fnuz", 1},
    [RS_DTYPE_F8_E5M2FNUZ] = {"float8_e5m2fnuz", "F8_E5M2FNUZ", "fp8_e5m2fnuz", 1},
    [RS_DTYPE_F8_E8M0] = {"float8_e8m0fnu", "F8_E8M0", "fp8_e8m0", 1},
    [RS_DTYPE_F4X2] = {"float4_e2m1fn_x2", "F4", "fp4x2", 1},
    [RS_DTYPE_F6_E2M3X4] = {"float6_e2m3fn_x4", "F6_E2M3", "fp6_e2m3x4", 3},
    [RS_DTYPE_F6_E3M2X4] = {"float6_e3m2fn_x4", "F6_E3M2", "fp6_e3m2x4", 3},
};

static const dtype_row *row_of(rs_dtype dtype)
{
    return dtype > RS_DTYPE_NONE && dtype < RS_DTYPE_COUNT ? &rows[dtype] : &rows[RS_DTYPE_NONE];
}

size_t rs_dtype_size(rs_dtype dtype)
{
    return row_of(dtype)->size;
}

const char *rs_dtype_name(rs_dtype dtype)
{
    return row_of(dtype)->name;
}

rs_dtype rs_dtype_parse(const char *text)
{
    for (int i = RS_DTYPE_NONE + 1; i < RS_DTYPE_COUNT; i++) {
        const dtype_row *row = &rows[i];
        if (strcmp(text, row->name) == 0 || strcmp(text, row->tag) == 0 ||
            strcmp(text, row->brief) == 0)
            return (rs_dtype)i;
    }
    return RS_DTYPE_NONE;
}
