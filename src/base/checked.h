/* Checked 64-bit arithmetic: true if the result fits, else the output is not to be used. */
#ifndef RS_BASE_CHECKED_H
#define RS_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool rs_add_fits(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool rs_mul_fits(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline int64_t rs_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t rs_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ceil(a / b) for a >= 0, b > 0. */
static inline int64_t rs_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* a rounded up to a multiple of b, a >= 0, b > 0; the caller knows that it fits. */
static inline int64_t rs_round_up(int64_t a, int64_t b)
{
    return rs_ceil_div(a, b) * b;
}

#endif
