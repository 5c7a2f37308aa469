/*
 * Linear layers that share an input: q, k, v; gate, up; or one alone. Their weights [rows, width]
 * are tensors of their own, their outputs stand side by side in one matrix. All functions are local
 * and cannot fail; a layer may have no rows.
 */
#ifndef RS_TRAIN_LINEAR_H
#define RS_TRAIN_LINEAR_H

#include <stdbool.h>
#include <stdint.h>

/* One of them: its weights, or their gradients. */
typedef struct rs_linear {
    float *matrix; /* [rows, width], row-major */
    float *bias;   /* [rows]; NULL where the model has none */
    int64_t rows;
} rs_linear;

typedef struct rs_linears {
    rs_linear items[3];
    int count;
    int64_t rows; /* of all */
} rs_linears;

/* y [tokens, all rows] = x [tokens, width] W^T + bias. Tensors that follow each other in memory are
 * one product. */
void rs_linears_forward(int threads, const rs_linears *weights, int64_t width, int64_t tokens,
    const float *x, float *y);

/* dx [tokens, width] = dy W, added to it with `keep`; the gradients of W and bias, added to
 * `gradients`, where these are not NULL. */
void rs_linears_backward(int threads, const rs_linears *weights, const rs_linears *gradients,
    int64_t width, int64_t tokens, const float *x, const float *dy, bool keep, float *dx);

#endif
