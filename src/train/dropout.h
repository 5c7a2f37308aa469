/*
 * Dropout whose choice is a function of (seed, step, tensor, element) alone, as initial weights are
 * (init.h): the same elements are dropped under every layout, and again when activations are
 * recomputed.
 *
 *   key       mix(mix(mix(seed) + name) + step), mix and name as in init.h
 *   bits(i)   mix(key + (i + 1) * 0x9e3779b97f4a7c15)
 *   element i is dropped if bits(i) / 2^64, rounded down to 24 bits, is below the rate; else it is
 *   multiplied by 1 / (1 - rate), in float32
 *
 * Tensors: "layers.attn.dropout" and "layers.mlp.dropout", the outputs of a layer's halves before
 * they are added to the residual stream, [sequence of the step, layer, position, channel]. All
 * functions are local and cannot fail.
 */
#ifndef RS_TRAIN_DROPOUT_H
#define RS_TRAIN_DROPOUT_H

#include <stdint.h>

#define RS_DROPOUT_ATTENTION "layers.attn.dropout"
#define RS_DROPOUT_MLP "layers.mlp.dropout"

/* The key of a tensor in a step. */
uint64_t rs_dropout_key(uint64_t seed, const char *tensor, int64_t step);

/* out[k] = in[k] dropped or scaled, elements first .. first + count - 1. `out` may be `in`. */
void rs_dropout_apply(
    uint64_t key, float rate, int64_t first, int64_t count, const float *in, float *out);

#endif
