/* Vector code for the processor at hand: RS_CLONES compiles a function for each level of x86-64 and
 * picks at load time. Sanitizers cannot run the picking, which happens before they start. */
#ifndef RS_TRAIN_SIMD_H
#define RS_TRAIN_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define RS_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define RS_CLONES
#endif

/*
 * exp(x) within 2 units in the last place for x in -87..88, the value at the nearer end outside; no
 * branch, so loops over it become vector code. Cody-Waite reduction by ln 2 in two parts, then the
 * degree-6 polynomial of Moshier's Cephes.
 */
static inline __attribute__((always_inline)) float rs_exp(float x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: adding it leaves the integer in the low bits */
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + round;
    float n = shifted - round;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23; /* the low bits hold n; what stood above them is shifted out */
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

#endif
