/*
 * The gated feed-forward layer y = down(silu(gate x) * up x): one text for the layer that every
 * token passes through, a shared expert, and each routed one. All functions are local and cannot
 * fail; a layer may have no rows, and there may be no tokens.
 */
#ifndef RS_TRAIN_FFN_H
#define RS_TRAIN_FFN_H

#include <stdbool.h>
#include <stdint.h>

#include "train/linear.h"

/* What this rank has of a layer, or of its gradients. */
typedef struct rs_ffn {
    rs_linears in; /* gate, up: [rows, hidden] each */
    float *down;   /* [hidden, rows] */
    int64_t hidden;
    int64_t rows;
} rs_ffn;

/* Biases may be NULL. */
rs_ffn rs_ffn_of(int64_t hidden, int64_t rows, float *gate, float *up, float *down,
    float *gate_bias, float *up_bias);

/*
 * From x [tokens, hidden] to y, added to it with `keep`, without down's bias. `gate_up` [tokens,
 * 2 rows] is kept for the backward pass, `act` [tokens, rows] is scratch. `factor` [tokens], or
 * NULL for 1, weighs each token's output.
 */
void rs_ffn_forward(int threads, const rs_ffn *weights, int64_t tokens, const float *x,
    const float *factor, float *gate_up, float *act, bool keep, float *y);

/* From the gradient of y to that of x, added to it with `keep`; adds the weights' gradients to
 * `gradients` and writes the factor's to `dfactor` [tokens]. Overwrites `gate_up`. */
void rs_ffn_backward(int threads, const rs_ffn *weights, const rs_ffn *gradients, int64_t tokens,
    const float *x, const float *factor, float *gate_up, float *act, const float *dy, bool keep,
    float *dx, float *dfactor);

#endif
