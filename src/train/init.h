/*
 * Initial weights: a function of (seed, tensor, element) alone, so that every layout starts from
 * the same bits without communication.
 *
 * All arithmetic is on 64-bit unsigned integers (wrapping) and IEEE doubles with +, -, *, /, sqrt,
 * so another program gets the same bits:
 *
 *   mix(z):   z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z
 * >> 31 name      FNV-1a over the bytes of the canonical tensor's name: start 0xcbf29ce484222325,
 * for each byte b: h = (h ^ b) * 0x100000001b3 key       mix(mix(seed) + name) bits(i)   mix(key +
 * (i + 1) * 0x9e3779b97f4a7c15), i = row-major index in the canonical tensor (so [layer, row,
 * column] counts through all layers) sum(i)    the four 16-bit fields of bits(i), added: 0 ..
 * 262140, mean 131070, variance 1431655765 value(i)  float32((sum(i) - 131070) * (std /
 * sqrt(1431655765.0)))
 *
 *   std = 0.02; for layers.attn.o.weight and the down.weight of layers.mlp, layers.experts and
 *   layers.shared 0.02 / sqrt(2.0 * n), the tensor's last layer being the n-th of the model.
 *   Names that end in "norm.weight": all 1. Names that end in ".bias": all 0.
 */
#ifndef RS_TRAIN_INIT_H
#define RS_TRAIN_INIT_H

#include <stdint.h>

#include "reshard/box.h"
#include "reshard/space.h"
#include "reshard/status.h"

#define RS_INIT_GOLDEN 0x9e3779b97f4a7c15u

static inline uint64_t rs_init_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* `name` above. */
uint64_t rs_init_name(const char *name);

/*
 * Writes the initial values of `box` of `tensor` (its name, ndim, shape and layer_first are read).
 * `out` is where the box's first element goes; `stride` counts elements between neighbours along
 * each dimension. An empty box writes nothing. RS_ERR_ARGUMENT for a box outside the tensor.
 */
rs_status rs_init_fill(uint64_t seed, const rs_tensor *tensor, const rs_box *box,
    const int64_t *stride, float *out) RS_MUST_CHECK;

#endif
