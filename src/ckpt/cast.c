/*
 * Rounding between float types: to nearest, ties to even, as PyTorch rounds when it casts.
 *
 * Everything goes through double, which holds every float32, float16 and bfloat16 exactly. Rounding
 * from a float32 that became a double to a 16-bit type is then one rounding, and float64 to
 * float32 is the processor's own. A NaN becomes PyTorch's: 0x7fc0 as bfloat16, 0x7e00 with
 * its sign as float16.
 */
#include "ckpt/cast.h"

#include <math.h>
#include <string.h>

bool rs_cast_is_float(rs_dtype dtype)
{
    return dtype == RS_DTYPE_F64 || dtype == RS_DTYPE_F32 || dtype == RS_DTYPE_F16 ||
           dtype == RS_DTYPE_BF16;
}

static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 0x1fu;
    uint32_t fraction = half & 0x3ffu;
    float value;
    uint32_t bits;
    if (exponent == 0) {
        value = ldexpf((float)fraction, -24);
        memcpy(&bits, &value, sizeof bits);
        bits |= sign;
    } else {
        exponent = exponent == 0x1f ? 0xff : exponent + 112;
        bits = sign | exponent << 23 | fraction << 13;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t float_to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) /* rounds to 2^16 or beyond */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: subnormal, a multiple of 2^-24 */
        float positive;
        memcpy(&positive, &magnitude, sizeof positive);
        return (uint16_t)(sign | (uint16_t)lrintf(ldexpf(positive, 24)));
    }
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (uint16_t)((rounded - 0x38000000u) >> 13));
}

static float bfloat_to_float(uint16_t bfloat)
{
    uint32_t bits = (uint32_t)bfloat << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t float_to_bfloat(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc0u;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* A float64 that is no float32 is rounded to odd first, so that the second rounding sees on which
 * side of a tie it lies. */
static float odd_float(double value)
{
    float nearest = (float)value;
    if (isnan(value) || isinf(nearest) || (double)nearest == value)
        return nearest;
    uint32_t bits;
    memcpy(&bits, &nearest, sizeof bits);
    if ((bits & 1u) == 0)
        nearest = nextafterf(nearest, value > (double)nearest ? INFINITY : -INFINITY);
    return nearest;
}

static double load(rs_dtype dtype, const unsigned char *p)
{
    uint16_t half;
    float single;
    double value;
    switch (dtype) {
    case RS_DTYPE_F64:
        memcpy(&value, p, sizeof value);
        return value;
    case RS_DTYPE_F32:
        memcpy(&single, p, sizeof single);
        return single;
    case RS_DTYPE_F16:
        memcpy(&half, p, sizeof half);
        return half_to_float(half);
    default:
        memcpy(&half, p, sizeof half);
        return bfloat_to_float(half);
    }
}

static void store(rs_dtype dtype, unsigned char *p, double value)
{
    uint16_t half;
    float single;
    switch (dtype) {
    case RS_DTYPE_F64:
        memcpy(p, &value, sizeof value);
        return;
    case RS_DTYPE_F32:
        single = (float)value;
        memcpy(p, &single, sizeof single);
        return;
    case RS_DTYPE_F16:
        half = float_to_half(odd_float(value));
        memcpy(p, &half, sizeof half);
        return;
    default:
        half = float_to_bfloat(odd_float(value));
        memcpy(p, &half, sizeof half);
        return;
    }
}

void rs_cast(rs_dtype from_dtype, const void *from, rs_dtype to_dtype, void *to, int64_t count)
{
    const unsigned char *in = from;
    unsigned char *out = to;
    size_t in_size = rs_dtype_size(from_dtype), out_size = rs_dtype_size(to_dtype);
    if (from_dtype == to_dtype) {
        memcpy(to, from, in_size * (size_t)count);
        return;
    }
    if (from_dtype == RS_DTYPE_F32 && to_dtype == RS_DTYPE_BF16) {
        for (int64_t i = 0; i < count; i++) {
            float single;
            memcpy(&single, in + 4 * i, sizeof single);
            uint16_t half = float_to_bfloat(single);
            memcpy(out + 2 * i, &half, sizeof half);
        }
        return;
    }
    for (int64_t i = 0; i < count; i++)
        store(to_dtype, out + out_size * (size_t)i, load(from_dtype, in + in_size * (size_t)i));
}

double rs_cast_element(rs_dtype dtype, const void *data, int64_t index)
{
    const unsigned char *p = (const unsigned char *)data + rs_dtype_size(dtype) * (size_t)index;
    int64_t i64 = 0;
    int32_t i32;
    int16_t i16;
    size_t size = rs_dtype_size(dtype);
    switch (dtype) {
    case RS_DTYPE_F64:
    case RS_DTYPE_F32:
    case RS_DTYPE_F16:
    case RS_DTYPE_BF16:
        return load(dtype, p);
    case RS_DTYPE_I64:
        memcpy(&i64, p, sizeof i64);
        return (double)i64;
    case RS_DTYPE_I32:
        memcpy(&i32, p, sizeof i32);
        return i32;
    case RS_DTYPE_I16:
        memcpy(&i16, p, sizeof i16);
        return i16;
    case RS_DTYPE_I8:
        return (int8_t)*p;
    default:
        memcpy(&i64, p, size < sizeof i64 ? size : sizeof i64);
        return (double)(uint64_t)i64;
    }
}
