/* The certificate's mix, on runs of bytes. Include in .c files only. docs/certificate.md defines
 * it. */
#ifndef RS_MOVE_CHECKSUM_H
#define RS_MOVE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#include "move/lattice.h"
#include "reshard/certificate.h"

#define RS_SUM_BLOCK 512 /* words of 32 bits that share a multiplier */
#define RS_SUM_LAG 16    /* lane 1 uses the weights this many places on */

/* Sums of one (tensor, role) being added up. */
typedef struct rs_summer {
    uint64_t key;
    uint64_t block; /* whose multipliers are at hand; none at first */
    uint64_t multiplier[2];
    rs_sum sum;
} rs_summer;

void rs_summer_init(rs_summer *summer, uint64_t key);

/* Adds bytes at .. at + bytes - 1 of the tensor's canonical image, which lie at `data`. */
void rs_summer_run(rs_summer *summer, uint64_t at, const void *data, size_t bytes);

/* Adds the elements of a lattice whose sides `canonical` and `memory` are at `at` (byte offset in
 * the canonical image) and `data`. For lattices that fit a cache. */
void rs_summer_lattice(rs_summer *summer, const rs_lattice *lattice, size_t element_size,
    int canonical, uint64_t at, int memory, const void *data);

/* The sum of elements begin .. end - 1 of `box` of a tensor of `shape`, in row-major order, which
 * lie packed at `data`. */
rs_sum rs_sum_range(uint64_t key, const int64_t *shape, const rs_box *box, size_t element_size,
    int64_t begin, int64_t end, const void *data);

/* Byte strides of a tensor's canonical image. */
void rs_sum_canonical(int ndim, const int64_t *shape, size_t element_size, int64_t *stride);

/* The same, and where in that image `box` begins: a byte offset mod 2^64. */
uint64_t rs_sum_canonical_box(
    const rs_box *box, const int64_t *shape, size_t element_size, int64_t *stride);

/* Weight of word `index` (0 .. RS_SUM_BLOCK + RS_SUM_LAG - 1) and multiplier of a block in a lane:
 * the definition, for tests. */
uint32_t rs_sum_weight(int index);
uint64_t rs_sum_multiplier(uint64_t key, uint64_t block, int lane);

/* The two implementations of the inner product, for tests: word k of `data` times weight[k], and
 * times weight[k + RS_SUM_LAG]. The fast one is NULL where the processor lacks it. */
typedef void rs_sum_dot(
    const uint32_t *weight, const unsigned char *data, size_t words, uint64_t out[2]);
rs_sum_dot *rs_sum_dot_plain(void);
rs_sum_dot *rs_sum_dot_fast(void);

#endif
