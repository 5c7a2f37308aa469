/*
 * Linear layers that share an input.
 *
 * Tensors that stand one behind the other in memory are multiplied as one: fewer and larger
 * products. Which do depends on the layout alone (an empty tensor never stands in the way), and
 * every output element is the same sum either way.
 */
#include "train/linear.h"

#include <stddef.h>

#include "train/kernels.h"

/* Rows of the layers from number *next on that follow each other in memory, so that one product
 * takes them all; *next moves behind them. */
static int64_t take_run(const rs_linears *layers, int64_t width, int *next)
{
    const rs_linear *first = &layers->items[*next];
    int64_t rows = first->rows;
    for (*next += 1; *next < layers->count; *next += 1) {
        const rs_linear *following = &layers->items[*next];
        bool follows = first->matrix != NULL && following->matrix == first->matrix + rows * width;
        if (following->rows > 0 && !follows)
            break;
        rows += following->rows;
    }
    return rows;
}

void rs_linears_forward(
    int threads, const rs_linears *weights, int64_t width, int64_t tokens, const float *x, float *y)
{
    int64_t column = 0;
    for (int next = 0; next < weights->count;) {
        const rs_linear *first = &weights->items[next];
        int64_t rows = take_run(weights, width, &next);
        rs_product_forward(
            tokens, width, rows, x, width, first->matrix, y + column, weights->rows, false);
        column += rows;
    }
    column = 0;
    for (int i = 0; i < weights->count; i++) {
        const rs_linear *l = &weights->items[i];
        if (l->bias != NULL)
            rs_add_bias(threads, tokens, l->rows, l->bias, y + column, weights->rows);
        column += l->rows;
    }
}

void rs_linears_backward(int threads, const rs_linears *weights, const rs_linears *gradients,
    int64_t width, int64_t tokens, const float *x, const float *dy, bool keep, float *dx)
{
    int64_t column = 0;
    for (int next = 0; next < weights->count;) {
        const rs_linear *first = &weights->items[next];
        int64_t rows = take_run(weights, width, &next);
        rs_product_input_gradient(tokens, width, rows, dy + column, weights->rows, first->matrix,
            dx, width, keep || column > 0);
        column += rows;
    }
    column = 0;
    for (int next = 0; next < gradients->count;) {
        const rs_linear *first = &gradients->items[next];
        int64_t rows = take_run(gradients, width, &next);
        rs_product_weight_gradient(
            tokens, width, rows, dy + column, weights->rows, x, width, first->matrix);
        column += rows;
    }
    column = 0;
    for (int i = 0; i < gradients->count; i++) {
        const rs_linear *l = &gradients->items[i];
        if (l->bias != NULL)
            rs_add_rows(threads, tokens, l->rows, dy + column, weights->rows, l->bias);
        column += l->rows;
    }
}
