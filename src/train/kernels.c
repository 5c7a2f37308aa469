/*
 * The decoder's arithmetic between attention and loss.
 *
 * Each kernel is a serial function over a range of rows (or columns), compiled for each level of
 * vector unit, and a thin public one that deals fixed blocks of rows to threads.
 *
 * Invariants: (1) what an output element is computed from, and in which order, does not depend on
 * the number of threads: sums over rows are made per fixed part, and the parts added in order; (2)
 * no product is passed to OpenBLAS with an empty side, whose leading dimensions it would refuse.
 *
 * Cost: all but the products read and write each element once or twice, so they wait for memory.
 */
#include "train/kernels.h"

#include <cblas.h>
#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "train/simd.h"

#define BLOCK 32      /* rows dealt to a thread at a time */
#define NORM_PARTS 16 /* partial sums of a norm's weight gradient */
#define COLUMNS 256   /* columns summed at a time */

void rs_product_set_threads(int threads)
{
    openblas_set_num_threads(threads);
}

int rs_product_threads(void)
{
    int threads = openblas_get_num_threads();
    return threads > 1 ? threads : 1;
}

/* C [m, n] = A B (+ C with keep). */
static void product(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k,
    const float *a, int64_t lda, const float *b, int64_t ldb, bool keep, float *c, int64_t ldc)
{
    if (m == 0 || n == 0)
        return;
    if (k > 0) {
        cblas_sgemm(CblasRowMajor, ta, tb, (blasint)m, (blasint)n, (blasint)k, 1.0f, a,
            (blasint)lda, b, (blasint)ldb, keep ? 1.0f : 0.0f, c, (blasint)ldc);
    } else if (!keep) {
        for (int64_t r = 0; r < m; r++)
            memset(c + r * ldc, 0, (size_t)n * sizeof *c);
    }
}

void rs_product_forward(int64_t rows, int64_t in, int64_t out, const float *x, int64_t ldx,
    const float *w, float *y, int64_t ldy, bool keep)
{
    product(CblasNoTrans, CblasTrans, rows, out, in, x, ldx, w, in, keep, y, ldy);
}

void rs_product_input_gradient(int64_t rows, int64_t in, int64_t out, const float *dy, int64_t ldy,
    const float *w, float *dx, int64_t ldx, bool keep)
{
    product(CblasNoTrans, CblasNoTrans, rows, in, out, dy, ldy, w, in, keep, dx, ldx);
}

void rs_product_weight_gradient(int64_t rows, int64_t in, int64_t out, const float *dy, int64_t ldy,
    const float *x, int64_t ldx, float *dw)
{
    if (dw != NULL)
        product(CblasTrans, CblasNoTrans, out, in, rows, dy, ldy, x, ldx, true, dw, in);
}

/* Runs `call` for blocks of rows [begin, end). */
#define FOR_BLOCKS(call)                                                                           \
    do {                                                                                           \
        _Pragma("omp parallel for num_threads(threads) if (threads > 1) schedule(static)") for (   \
            int64_t begin = 0; begin < rows; begin += BLOCK)                                       \
        {                                                                                          \
            int64_t end = rs_min64(begin + BLOCK, rows);                                           \
            call;                                                                                  \
        }                                                                                          \
    } while (0)

RS_CLONES static void norm_rows(int64_t begin, int64_t end, int64_t width, const float *x,
    int64_t ldx, const float *weight, float eps, float *out, int64_t ldo, float *inverse)
{
    for (int64_t r = begin; r < end; r++) {
        const float *restrict in = x + r * ldx;
        float *restrict to = out + r * ldo;
        float square = 0;
#pragma omp simd reduction(+ : square)
        for (int64_t i = 0; i < width; i++)
            square += in[i] * in[i];
        float scale = 1.0f / sqrtf(square / (float)width + eps);
        inverse[r] = scale;
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            to[i] = in[i] * scale * weight[i];
    }
}

void rs_norm_forward(int threads, int64_t rows, int64_t width, const float *x, int64_t ldx,
    const float *weight, float eps, float *out, int64_t ldo, float *inverse)
{
    FOR_BLOCKS(norm_rows(begin, end, width, x, ldx, weight, eps, out, ldo, inverse));
}

int64_t rs_norm_scratch(int64_t width)
{
    return NORM_PARTS * width;
}

/* Rows of one part; `partial` [width] gets their sum of the weight's gradient. With y = x r w and
 * s = sum(dy w x): dx = r dy w - x r^3 s / width. */
RS_CLONES static void norm_backward_rows(int64_t begin, int64_t end, int64_t width, const float *x,
    int64_t ldx, const float *weight, const float *inverse, const float *dy, int64_t ldy, bool keep,
    float *dx, int64_t lddx, float *restrict partial)
{
    for (int64_t r = begin; r < end; r++) {
        const float *in = x + r * ldx;
        const float *gradient = dy + r * ldy;
        float *to = dx + r * lddx;
        float scale = inverse[r];
        float s = 0;
#pragma omp simd reduction(+ : s)
        for (int64_t i = 0; i < width; i++) {
            float product_x = gradient[i] * in[i];
            s += product_x * weight[i];
            partial[i] += product_x * scale;
        }
        float back = scale * scale * scale * s / (float)width;
        if (keep) {
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                to[i] += gradient[i] * weight[i] * scale - in[i] * back;
        } else {
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                to[i] = gradient[i] * weight[i] * scale - in[i] * back;
        }
    }
}

void rs_norm_backward(int threads, int64_t rows, int64_t width, const float *x, int64_t ldx,
    const float *weight, const float *inverse, const float *dy, int64_t ldy, bool keep, float *dx,
    int64_t lddx, float *dweight, float *scratch)
{
    int64_t each = rs_ceil_div(rows, NORM_PARTS);
    memset(scratch, 0, (size_t)(NORM_PARTS * width) * sizeof *scratch);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t part = 0; part < NORM_PARTS; part++) {
        int64_t begin = rs_min64(part * each, rows);
        int64_t end = rs_min64(begin + each, rows);
        norm_backward_rows(begin, end, width, x, ldx, weight, inverse, dy, ldy, keep, dx, lddx,
            scratch + part * width);
    }
    rs_add_rows(1, NORM_PARTS, width, scratch, width, dweight);
}

void rs_rotation_table(int64_t first, int64_t count, int64_t dim, double theta, float *table)
{
    int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double frequency = pow(theta, -2.0 * (double)i / (double)dim);
        for (int64_t t = 0; t < count; t++) {
            double angle = (double)(first + t) * frequency;
            table[(2 * t) * half + i] = (float)cos(angle);
            table[(2 * t + 1) * half + i] = (float)sin(angle);
        }
    }
}

RS_CLONES static void rotate_rows(int64_t begin, int64_t end, int64_t seq, int64_t heads,
    int64_t dim, const float *table, float direction, float *x, int64_t ld)
{
    int64_t half = dim / 2;
    for (int64_t r = begin; r < end; r++) {
        const float *cosine = table + (r % seq) * dim;
        const float *sine = cosine + half;
        for (int64_t h = 0; h < heads; h++) {
            float *low = x + r * ld + h * dim;
            float *high = low + half;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                float a = low[i];
                float b = high[i];
                float s = sine[i] * direction;
                low[i] = a * cosine[i] - b * s;
                high[i] = b * cosine[i] + a * s;
            }
        }
    }
}

void rs_rotate(int threads, int64_t rows, int64_t seq, int64_t heads, int64_t dim,
    const float *table, float direction, float *x, int64_t ld)
{
    FOR_BLOCKS(rotate_rows(begin, end, seq, heads, dim, table, direction, x, ld));
}

RS_CLONES static void swiglu_rows(
    int64_t begin, int64_t end, int64_t width, const float *gate_up, float *act)
{
    for (int64_t r = begin; r < end; r++) {
        const float *restrict gate = gate_up + r * 2 * width;
        const float *restrict up = gate + width;
        float *restrict to = act + r * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            to[i] = gate[i] * up[i] / (1.0f + rs_exp(-gate[i]));
    }
}

void rs_swiglu_forward(int threads, int64_t rows, int64_t width, const float *gate_up, float *act)
{
    FOR_BLOCKS(swiglu_rows(begin, end, width, gate_up, act));
}

RS_CLONES static void swiglu_backward_rows(
    int64_t begin, int64_t end, int64_t width, float *gate_up, float *act)
{
    for (int64_t r = begin; r < end; r++) {
        float *restrict gate = gate_up + r * 2 * width;
        float *restrict up = gate + width;
        float *restrict both = act + r * width;
#pragma omp simd
        for (int64_t i = 0; i < width; i++) {
            float g = gate[i];
            float u = up[i];
            float gradient = both[i];
            float sigmoid = 1.0f / (1.0f + rs_exp(-g));
            float silu = g * sigmoid;
            both[i] = silu * u;
            up[i] = gradient * silu;
            gate[i] = gradient * u * (sigmoid + silu * (1.0f - sigmoid));
        }
    }
}

void rs_swiglu_backward(int threads, int64_t rows, int64_t width, float *gate_up, float *act)
{
    FOR_BLOCKS(swiglu_backward_rows(begin, end, width, gate_up, act));
}

RS_CLONES static void swiglu_weighted_rows(int64_t begin, int64_t end, int64_t width,
    const float *gate_up, const float *factor, float *act)
{
    for (int64_t r = begin; r < end; r++) {
        const float *restrict gate = gate_up + r * 2 * width;
        const float *restrict up = gate + width;
        float *restrict to = act + r * width;
        float weight = factor[r];
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            to[i] = gate[i] * up[i] / (1.0f + rs_exp(-gate[i])) * weight;
    }
}

void rs_swiglu_weighted_forward(
    int threads, int64_t rows, int64_t width, const float *gate_up, const float *factor, float *act)
{
    FOR_BLOCKS(swiglu_weighted_rows(begin, end, width, gate_up, factor, act));
}

RS_CLONES static void swiglu_weighted_backward_rows(int64_t begin, int64_t end, int64_t width,
    float *gate_up, const float *factor, float *act, float *dfactor)
{
    for (int64_t r = begin; r < end; r++) {
        float *restrict gate = gate_up + r * 2 * width;
        float *restrict up = gate + width;
        float *restrict both = act + r * width;
        float weight = factor[r];
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; i++) {
            float g = gate[i];
            float u = up[i];
            float sigmoid = 1.0f / (1.0f + rs_exp(-g));
            float silu = g * sigmoid;
            sum += both[i] * silu * u;
            float gradient = both[i] * weight;
            both[i] = silu * u * weight;
            up[i] = gradient * silu;
            gate[i] = gradient * u * (sigmoid + silu * (1.0f - sigmoid));
        }
        dfactor[r] = sum;
    }
}

void rs_swiglu_weighted_backward(int threads, int64_t rows, int64_t width, float *gate_up,
    const float *factor, float *act, float *dfactor)
{
    FOR_BLOCKS(swiglu_weighted_backward_rows(begin, end, width, gate_up, factor, act, dfactor));
}

RS_CLONES static void add_bias_rows(
    int64_t begin, int64_t end, int64_t width, const float *restrict bias, float *x, int64_t ld)
{
    for (int64_t r = begin; r < end; r++) {
        float *restrict to = x + r * ld;
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            to[i] += bias[i];
    }
}

void rs_add_bias(int threads, int64_t rows, int64_t width, const float *bias, float *x, int64_t ld)
{
    FOR_BLOCKS(add_bias_rows(begin, end, width, bias, x, ld));
}

/* Columns [begin, end), at most COLUMNS. */
RS_CLONES static void add_columns(
    int64_t rows, int64_t begin, int64_t end, const float *x, int64_t ld, float *sum)
{
    float total[COLUMNS] = {0};
    int64_t width = end - begin;
    for (int64_t r = 0; r < rows; r++) {
        const float *restrict from = x + r * ld + begin;
#pragma omp simd
        for (int64_t i = 0; i < width; i++)
            total[i] += from[i];
    }
    for (int64_t i = 0; i < width; i++)
        sum[begin + i] += total[i];
}

void rs_add_rows(int threads, int64_t rows, int64_t width, const float *x, int64_t ld, float *sum)
{
    if (sum == NULL)
        return;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t begin = 0; begin < width; begin += COLUMNS)
        add_columns(rows, begin, rs_min64(begin + COLUMNS, width), x, ld, sum);
}

RS_CLONES static void residual_rows(int64_t begin, int64_t end, int64_t width, const float *x,
    const float *y, const float *bias, float *out)
{
    for (int64_t r = begin; r < end; r++) {
        const float *a = x + r * width;
        const float *b = y + r * width;
        float *to = out + r * width;
        if (bias != NULL) {
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                to[i] = a[i] + (b[i] + bias[i]);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < width; i++)
                to[i] = a[i] + b[i];
        }
    }
}

void rs_add_residual(int threads, int64_t rows, int64_t width, const float *x, const float *y,
    const float *bias, float *out)
{
    FOR_BLOCKS(residual_rows(begin, end, width, x, y, bias, out));
}
