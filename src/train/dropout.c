/* Dropout from a counter: a nanosecond an element, no state. */
#include "train/dropout.h"

#include "train/init.h"
#include "train/simd.h"

uint64_t rs_dropout_key(uint64_t seed, const char *tensor, int64_t step)
{
    return rs_init_mix(rs_init_mix(rs_init_mix(seed) + rs_init_name(tensor)) + (uint64_t)step);
}

RS_CLONES void rs_dropout_apply(
    uint64_t key, float rate, int64_t first, int64_t count, const float *in, float *out)
{
    const float scale = 1.0f / (1.0f - rate);
    uint64_t state = key + ((uint64_t)first + 1) * RS_INIT_GOLDEN;
    for (int64_t i = 0; i < count; i++, state += RS_INIT_GOLDEN) {
        float uniform = (float)(rs_init_mix(state) >> 40) * 0x1p-24f;
        out[i] = uniform < rate ? 0 : in[i] * scale;
    }
}
