/*
 * The gated feed-forward layer.
 *
 * A rank that has some rows of gate and up and the same columns of down makes a partial y, and a
 * partial gradient of x and of the factors; whoever calls sums them over the ranks that have the
 * others. A token's factor is applied between the two products, so that its gradient is a sum over
 * the rank's own rows and y need not be kept.
 */
#include "train/ffn.h"

#include <stddef.h>

#include "train/kernels.h"

rs_ffn rs_ffn_of(int64_t hidden, int64_t rows, float *gate, float *up, float *down,
    float *gate_bias, float *up_bias)
{
    return (rs_ffn){.in = {{{gate, gate_bias, rows}, {up, up_bias, rows}}, 2, 2 * rows},
        .down = down,
        .hidden = hidden,
        .rows = rows};
}

void rs_ffn_forward(int threads, const rs_ffn *weights, int64_t tokens, const float *x,
    const float *factor, float *gate_up, float *act, bool keep, float *y)
{
    rs_linears_forward(threads, &weights->in, weights->hidden, tokens, x, gate_up);
    if (factor != NULL)
        rs_swiglu_weighted_forward(threads, tokens, weights->rows, gate_up, factor, act);
    else
        rs_swiglu_forward(threads, tokens, weights->rows, gate_up, act);
    rs_product_forward(tokens, weights->rows, weights->hidden, act, weights->rows, weights->down, y,
        weights->hidden, keep);
}

void rs_ffn_backward(int threads, const rs_ffn *weights, const rs_ffn *gradients, int64_t tokens,
    const float *x, const float *factor, float *gate_up, float *act, const float *dy, bool keep,
    float *dx, float *dfactor)
{
    int64_t hidden = weights->hidden;
    int64_t rows = weights->rows;
    rs_product_input_gradient(tokens, rows, hidden, dy, hidden, weights->down, act, rows, false);
    if (factor != NULL)
        rs_swiglu_weighted_backward(threads, tokens, rows, gate_up, factor, act, dfactor);
    else
        rs_swiglu_backward(threads, tokens, rows, gate_up, act);
    rs_product_weight_gradient(tokens, rows, hidden, dy, hidden, act, rows, gradients->down);
    rs_linears_backward(
        threads, &weights->in, &gradients->in, hidden, tokens, x, gate_up, keep, dx);
}
