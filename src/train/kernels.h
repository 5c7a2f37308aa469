/*
 * The decoder's arithmetic between attention and loss: matrix products (OpenBLAS), RMS norms,
 * rotary positions, SwiGLU, sums. Matrices are row-major float32; `ld` counts elements between
 * rows. `threads` changes who computes, never what: results are the same bits for any number. All
 * functions are local and cannot fail; sizes may be 0.
 */
#ifndef RS_TRAIN_KERNELS_H
#define RS_TRAIN_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

/* The threads of this process's matrix products: OpenBLAS's own number, at least 1. Stages that are
 * created afterwards use as many for everything else. */
void rs_product_set_threads(int threads);
int rs_product_threads(void);

/*
 * The three products of a linear layer y = x W^T, x [rows, in], W [out, in], y [rows, out]; W and
 * its gradient have no gaps. A gradient of weights that is NULL is not wanted. `keep` adds to what
 * the result holds; without it, it is overwritten.
 */
void rs_product_forward(int64_t rows, int64_t in, int64_t out, const float *x, int64_t ldx,
    const float *w, float *y, int64_t ldy, bool keep);
void rs_product_input_gradient(int64_t rows, int64_t in, int64_t out, const float *dy, int64_t ldy,
    const float *w, float *dx, int64_t ldx, bool keep);
void rs_product_weight_gradient(int64_t rows, int64_t in, int64_t out, const float *dy, int64_t ldy,
    const float *x, int64_t ldx, float *dw);

/* out = x / sqrt(mean(x^2) + eps) * weight, row by row; `inverse` [rows] gets 1 / sqrt(...). */
void rs_norm_forward(int threads, int64_t rows, int64_t width, const float *x, int64_t ldx,
    const float *weight, float eps, float *out, int64_t ldo, float *inverse);

/* Floats of scratch for rs_norm_backward. */
int64_t rs_norm_scratch(int64_t width);

/* `dy` is the gradient of `out`; adds the weight's gradient to `dweight`, and the input's to `dx`,
 * or writes it there (`keep` false; then `dx` may be `dy`). */
void rs_norm_backward(int threads, int64_t rows, int64_t width, const float *x, int64_t ldx,
    const float *weight, const float *inverse, const float *dy, int64_t ldy, bool keep, float *dx,
    int64_t lddx, float *dweight, float *scratch);

/* Cosines and sines for rs_rotate, of `count` positions from `first` on: table [count][2][dim / 2].
 */
void rs_rotation_table(int64_t first, int64_t count, int64_t dim, double theta, float *table);

/*
 * Rotary positions, Hugging Face's halves: elements i and i + dim/2 of each of `heads` heads of row
 * r are turned by position * theta^(-2i/dim), the position being number r mod seq of the table's.
 * `direction` 1 turns forward, -1 back, which is also the gradient.
 */
void rs_rotate(int threads, int64_t rows, int64_t seq, int64_t heads, int64_t dim,
    const float *table, float direction, float *x, int64_t ld);

/* act = silu(gate) * up; `gate_up` has rows [gate | up] of 2 * width. */
void rs_swiglu_forward(int threads, int64_t rows, int64_t width, const float *gate_up, float *act);

/* `gate_up` becomes its gradient; `act` holds the gradient of act, and gets act itself. */
void rs_swiglu_backward(int threads, int64_t rows, int64_t width, float *gate_up, float *act);

/* The same with a factor for each row: act = silu(gate) * up * factor. Backward, `act` holds the
 * gradient of act and gets act itself, `dfactor` [rows], which may be `factor`, its gradient. */
void rs_swiglu_weighted_forward(int threads, int64_t rows, int64_t width, const float *gate_up,
    const float *factor, float *act);
void rs_swiglu_weighted_backward(int threads, int64_t rows, int64_t width, float *gate_up,
    const float *factor, float *act, float *dfactor);

/* x[r] += bias. */
void rs_add_bias(int threads, int64_t rows, int64_t width, const float *bias, float *x, int64_t ld);

/* sum += the rows of x; nothing for NULL. */
void rs_add_rows(int threads, int64_t rows, int64_t width, const float *x, int64_t ld, float *sum);

/* out = x + y + bias over [rows, width]; `bias` may be NULL, `out` may be `x` or `y`. */
void rs_add_residual(int threads, int64_t rows, int64_t width, const float *x, const float *y,
    const float *bias, float *out);

#endif
