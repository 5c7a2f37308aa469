/*
 * The certificate's sums.
 *
 * What for: to prove after a move that every element is where it belongs, whatever the layouts
 * were. The sum of a (tensor, role) is a multilinear hash of its canonical byte image (row-major,
 * little endian), read as 32-bit words x[0], x[1], ... :
 *
 *     lane l:  sum over words i of  M[l](key, i / B) * W[i % B + l * LAG] * x[i]   mod 2^64
 *
 * with B = RS_SUM_BLOCK fixed odd 32-bit weights W and a pseudo-random odd 64-bit multiplier M per
 * lane and block. An element narrower than a word adds its bits at its place in the word, a wider
 * one is two words: so the sum is a sum over elements, and any way of cutting a tensor into boxes
 * adds up.
 *
 * Invariants:
 * 1. The value depends on key, element index and bits alone; never on strides, alignment or how
 * runs were cut (the ring Z/2^64 makes the order of additions irrelevant).
 * 2. All implementations give the same bits.
 * 3. A change within one word is always noticed: (difference * weight) is not 0 mod 2^64 for a
 * non-zero difference below 2^32 and a non-zero weight below 2^32, and odd multipliers keep it so.
 *
 * Cost: per 32 bytes two loads, two shifts, four multiplications, four additions in AVX2, which a
 * copy hides under its waits for memory; per block one pair of 64-bit hashes.
 * The family is the multilinear one (Carter and Wegman 1979; Lemire and Kaser 2014); the shared
 * weights of the two lanes follow the Toeplitz construction of UMAC (Black et al. 1999).
 * docs/certificate.md has the arguments.
 */
#include "move/checksum.h"

#include <pthread.h>
#include <string.h>
#include <xxhash.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/checked.h"
#include "base/error.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the canonical image is little-endian");

#define GOLDEN 0x9e3779b97f4a7c15u
#define GATHER 512      /* bytes gathered at a time where memory is strided */
#define TILE (32 << 10) /* bytes of a tile where memory is not in canonical order */

static uint32_t weights[RS_SUM_BLOCK + RS_SUM_LAG] __attribute__((aligned(64)));
static rs_sum_dot *dot;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A bijection that scatters its argument (splitmix64's finalizer). */
static inline uint64_t scatter(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t rs_sum_weight(int index)
{
    return (uint32_t)(scatter((uint64_t)(index + 1) * GOLDEN) >> 32) | 1;
}

uint64_t rs_sum_multiplier(uint64_t key, uint64_t block, int lane)
{
    return scatter(key + (2 * block + (uint64_t)lane + 1) * GOLDEN) | 1;
}

static void dot_plain(
    const uint32_t *weight, const unsigned char *data, size_t words, uint64_t out[2])
{
    uint64_t first = 0;
    uint64_t second = 0;
    for (size_t k = 0; k < words; k++) {
        uint32_t x;
        memcpy(&x, data + 4 * k, sizeof x);
        first += (uint64_t)x * weight[k];
        second += (uint64_t)x * weight[k + RS_SUM_LAG];
    }
    out[0] = first;
    out[1] = second;
}

#if defined(__x86_64__)
/* acc += even words of x * even words of w + odd * odd; `xo`, `wo` are x, w shifted down by a word.
 */
__attribute__((target("avx2"))) static inline __m256i multiply_add(
    __m256i acc, __m256i x, __m256i xo, __m256i w, __m256i wo)
{
    return _mm256_add_epi64(
        acc, _mm256_add_epi64(_mm256_mul_epu32(x, w), _mm256_mul_epu32(xo, wo)));
}

/* The weights that lane 1 uses now are those that lane 0 uses RS_SUM_LAG words later: they are
 * loaded once and stay in registers. */
__attribute__((target("avx2"))) static void dot_avx2(
    const uint32_t *weight, const unsigned char *data, size_t words, uint64_t out[2])
{
    _Static_assert(RS_SUM_LAG == 16, "two vectors of 8 words");
    __m256i a = _mm256_setzero_si256();
    __m256i b = a;
    __m256i w0 = _mm256_loadu_si256((const void *)weight);
    __m256i w1 = _mm256_loadu_si256((const void *)(weight + 8));
    __m256i w0o = _mm256_srli_epi64(w0, 32);
    __m256i w1o = _mm256_srli_epi64(w1, 32);
    size_t k = 0;
    for (; k + 16 <= words; k += 16) {
        __m256i x0 = _mm256_loadu_si256((const void *)(data + 4 * k));
        __m256i x1 = _mm256_loadu_si256((const void *)(data + 4 * k + 32));
        __m256i x0o = _mm256_srli_epi64(x0, 32);
        __m256i x1o = _mm256_srli_epi64(x1, 32);
        a = multiply_add(a, x0, x0o, w0, w0o);
        a = multiply_add(a, x1, x1o, w1, w1o);
        w0 = _mm256_loadu_si256((const void *)(weight + k + 16));
        w1 = _mm256_loadu_si256((const void *)(weight + k + 24));
        w0o = _mm256_srli_epi64(w0, 32);
        w1o = _mm256_srli_epi64(w1, 32);
        b = multiply_add(b, x0, x0o, w0, w0o);
        b = multiply_add(b, x1, x1o, w1, w1o);
    }
    /* Across the vectors: {a0 + a1, b0 + b1, a2 + a3, b2 + b3}, then its halves. */
    __m256i both = _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    __m128i sum = _mm_add_epi64(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    _mm_storeu_si128((void *)out, sum);
    if (k < words) {
        uint64_t rest[2];
        dot_plain(weight + k, data + 4 * k, words - k, rest);
        out[0] += rest[0];
        out[1] += rest[1];
    }
}
#endif

rs_sum_dot *rs_sum_dot_plain(void)
{
    return dot_plain;
}

rs_sum_dot *rs_sum_dot_fast(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return dot_avx2;
#endif
    return NULL;
}

static void prepare(void)
{
    for (int k = 0; k < RS_SUM_BLOCK + RS_SUM_LAG; k++)
        weights[k] = rs_sum_weight(k);
    rs_sum_dot *fast = rs_sum_dot_fast();
    dot = fast != NULL ? fast : dot_plain;
}

void rs_summer_init(rs_summer *summer, uint64_t key)
{
    pthread_once(&once, prepare);
    *summer = (rs_summer){.key = key, .block = UINT64_MAX};
}

/* Adds whole words of one block. */
static inline void add_words(
    rs_summer *summer, uint64_t word, const unsigned char *data, size_t words)
{
    uint64_t block = word / RS_SUM_BLOCK;
    const uint32_t *weight = weights + word % RS_SUM_BLOCK;
    if (block != summer->block) {
        summer->block = block;
        summer->multiplier[0] = rs_sum_multiplier(summer->key, block, 0);
        summer->multiplier[1] = rs_sum_multiplier(summer->key, block, 1);
    }
    uint64_t inner[2];
    if (words < 16) /* too short for vectors: spares the indirect call */
        dot_plain(weight, data, words, inner);
    else
        dot(weight, data, words, inner);
    summer->sum.lane[0] += summer->multiplier[0] * inner[0];
    summer->sum.lane[1] += summer->multiplier[1] * inner[1];
}

/* Adds 1..3 bytes that lie within one word, from its byte `phase` on. */
static void add_bytes(
    rs_summer *summer, uint64_t word, size_t phase, const unsigned char *data, size_t bytes)
{
    unsigned char image[4] = {0};
    memcpy(image + phase, data, bytes);
    add_words(summer, word, image, 1);
}

void rs_summer_run(rs_summer *summer, uint64_t at, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    uint64_t word = at / 4;
    size_t phase = at % 4;
    if (phase != 0 && bytes > 0) {
        size_t head = bytes < 4 - phase ? bytes : 4 - phase;
        add_bytes(summer, word, phase, from, head);
        from += head;
        bytes -= head;
        word++;
    }
    while (bytes >= 4) {
        size_t words = RS_SUM_BLOCK - word % RS_SUM_BLOCK;
        if (words > bytes / 4)
            words = bytes / 4;
        add_words(summer, word, from, words);
        word += words;
        from += 4 * words;
        bytes -= 4 * words;
    }
    if (bytes > 0)
        add_bytes(summer, word, 0, from, bytes);
}

/* Adds `count` elements that are neighbours in the canonical image and `stride` bytes apart in
 * memory. */
static void add_gathered(rs_summer *summer, uint64_t at, const unsigned char *data, int64_t stride,
    int64_t count, size_t element_size)
{
    unsigned char image[GATHER];
    int64_t room = (int64_t)(GATHER / element_size);
    while (count > 0) {
        int64_t n = rs_min64(count, room);
        switch (element_size) {
        case 1:
            for (int64_t k = 0; k < n; k++)
                image[k] = data[k * stride];
            break;
        case 2:
            for (int64_t k = 0; k < n; k++)
                memcpy(image + 2 * k, data + k * stride, 2);
            break;
        case 4:
            for (int64_t k = 0; k < n; k++)
                memcpy(image + 4 * k, data + k * stride, 4);
            break;
        default:
            for (int64_t k = 0; k < n; k++)
                memcpy(image + 8 * k, data + k * stride, 8);
        }
        rs_summer_run(summer, at, image, (size_t)n * element_size);
        at += (uint64_t)n * element_size;
        data += n * stride;
        count -= n;
    }
}

void rs_summer_lattice(rs_summer *summer, const rs_lattice *lattice, size_t element_size,
    int canonical, uint64_t at, int memory, const void *data)
{
    if (lattice->ndim < 0)
        return;
    const int64_t *image = lattice->stride[canonical];
    const int64_t *stride = lattice->stride[memory];
    const unsigned char *from = data;
    int inner = lattice->ndim - 1;
    int64_t count = 1;
    int64_t step = (int64_t)element_size;
    if (inner >= 0 && image[inner] == (int64_t)element_size) {
        count = lattice->extent[inner];
        step = stride[inner--];
    }
    int64_t index[RS_MAX_DIMS] = {0};
    for (;;) {
        if (step == (int64_t)element_size)
            rs_summer_run(summer, at, from, (size_t)count * element_size);
        else
            add_gathered(summer, at, from, step, count, element_size);
        int d = inner;
        for (; d >= 0; d--) {
            at += (uint64_t)image[d];
            from += stride[d];
            if (++index[d] < lattice->extent[d])
                break;
            at -= (uint64_t)(image[d] * lattice->extent[d]);
            from -= stride[d] * lattice->extent[d];
            index[d] = 0;
        }
        if (d < 0)
            return;
    }
}

void rs_sum_canonical(int ndim, const int64_t *shape, size_t element_size, int64_t *stride)
{
    uint64_t step = element_size; /* may wrap for tensors beyond 2^64 bytes: still one function */
    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = (int64_t)step;
        step *= (uint64_t)shape[d];
    }
}

uint64_t rs_sum_canonical_box(
    const rs_box *box, const int64_t *shape, size_t element_size, int64_t *stride)
{
    uint64_t at = 0;
    rs_sum_canonical(box->ndim, shape, element_size, stride);
    for (int d = 0; d < box->ndim; d++)
        at += (uint64_t)box->offset[d] * (uint64_t)stride[d];
    return at;
}

uint64_t rs_sum_key(const char *tensor, const char *role)
{
    XXH64_hash_t seed = XXH3_64bits(role, strlen(role));
    return XXH3_64bits_withSeed(tensor, strlen(tensor), seed);
}

rs_sum rs_sum_box(uint64_t key, const int64_t *shape, const rs_box *box, size_t element_size,
    const void *data, const int64_t *stride)
{
    enum { CANONICAL, MEMORY, SIDES };
    int64_t image[RS_MAX_DIMS];
    uint64_t at = rs_sum_canonical_box(box, shape, element_size, image);
    rs_lattice lattice;
    rs_lattice_init(
        &lattice, box->ndim, box->extent, SIDES, (const int64_t *const[]){image, stride});
    rs_summer summer;
    rs_summer_init(&summer, key);
    if (rs_lattice_fastest(&lattice, CANONICAL) == rs_lattice_fastest(&lattice, MEMORY)) {
        rs_lattice_collapse(&lattice);
        rs_summer_lattice(&summer, &lattice, element_size, CANONICAL, at, MEMORY, data);
        return summer.sum;
    }
    rs_tiles tiles;
    rs_tiles_begin(&tiles, &lattice, TILE / (int64_t)element_size);
    rs_lattice tile;
    int64_t base[RS_LATTICE_SIDES];
    while (rs_tiles_next(&tiles, &tile, base))
        rs_summer_lattice(&summer, &tile, element_size, CANONICAL, at + (uint64_t)base[CANONICAL],
            MEMORY, (const unsigned char *)data + base[MEMORY]);
    return summer.sum;
}

rs_sum rs_sum_range(uint64_t key, const int64_t *shape, const rs_box *box, size_t element_size,
    int64_t begin, int64_t end, const void *data)
{
    rs_box parts[2 * RS_MAX_DIMS];
    rs_sum all = {{0, 0}};
    const unsigned char *at = data;
    int count = rs_box_linear_range(box, begin, end, parts);
    for (int i = 0; i < count; i++) {
        int64_t packed[RS_MAX_DIMS];
        rs_sum_canonical(parts[i].ndim, parts[i].extent, element_size, packed);
        rs_sum sum = rs_sum_box(key, shape, &parts[i], element_size, at, packed);
        all.lane[0] += sum.lane[0];
        all.lane[1] += sum.lane[1];
        at += (size_t)rs_box_volume(&parts[i]) * element_size;
    }
    return all;
}
