/* bfloat16 <-> float32: the upper half of the bits, rounded to nearest, ties to even. */
#ifndef RS_TRAIN_BFLOAT16_H
#define RS_TRAIN_BFLOAT16_H

#include <stdint.h>
#include <string.h>

static inline float rs_bf16_to_float(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

static inline uint16_t rs_bf16_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40; /* a NaN must not become an infinity */
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

#endif
