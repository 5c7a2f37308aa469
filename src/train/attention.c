/*
 * Causal attention, a tile of query rows at a time.
 *
 * The scores of TILE query rows against all keys that they may see fit the cache, so a tile's
 * softmax is taken in one go and no running maximum is needed; the score matrix never exists as a
 * whole. The rows of a tile have positions that follow each other; under context parallelism a rank
 * has the queries of two ranges of positions, and the keys of all. The backward pass makes each
 * tile's scores again from q, k and the saved logarithm of the denominator, as FlashAttention does
 * (Dao et al., arXiv 2205.14135), with the identity sum_j P_ij dP_ij = out_i . dout_i.
 *
 * Invariants: (1) a task is one (sequence, key/value head) with all query heads that use it, so dk
 * and dv have one writer and one order of additions, whatever the number of threads; (2) key
 * columns beyond a tile's last row are never computed, those beyond a row's own position are set to
 * zero.
 *
 * Cost: about half of the products of full attention; TILE * seq scores of scratch per thread,
 * twice.
 */
#include "train/attention.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <string.h>

#include "base/checked.h"
#include "train/simd.h"

#define TILE 64

int64_t rs_attention_scratch(int64_t tokens)
{
    return 2 * TILE * tokens;
}

static void product(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k,
    float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
    int64_t ldc)
{
    cblas_sgemm(CblasRowMajor, ta, tb, (blasint)m, (blasint)n, (blasint)k, alpha, a, (blasint)lda,
        b, (blasint)ldb, beta, c, (blasint)ldc);
}

/* One (sequence, key/value head): where its pieces start, and the query heads that use it. */
typedef struct task {
    int64_t sequence;
    int64_t query;           /* this rank's first row of the sequence */
    int64_t q_first, q_last; /* local numbers, half-open */
    int64_t q_heads;
    int64_t own;       /* queries of the sequence */
    int64_t key_place; /* in `kv` */
    int64_t value_place;
} task;

static task task_of(const rs_attention *a, int64_t number)
{
    int64_t kv_heads = a->kv_end - a->kv_begin;
    int64_t kv = number % kv_heads;
    int64_t global = a->kv_begin + kv;
    task t = {.sequence = number / kv_heads, .q_heads = a->q_end - a->q_begin};
    t.own = rs_sequence_own(&a->sequence, a->sequence.rank);
    t.query = t.sequence * t.own;
    t.q_first = rs_max64(global * a->group, a->q_begin) - a->q_begin;
    t.q_last = rs_min64((global + 1) * a->group, a->q_end) - a->q_begin;
    t.key_place = t.sequence * a->sequence.tokens * a->ldkv + kv * a->dim;
    t.value_place = t.key_place + kv_heads * a->dim;
    return t;
}

/* Query rows of a task whose positions follow each other. */
typedef struct tile {
    int64_t row;      /* among the sequence's own */
    int64_t position; /* of the first */
    int64_t rows;
    int64_t width; /* keys that the last of them may see */
} tile;

/* The tile behind `last`, which begins as {.row = 0, .rows = 0}; false: there is none. */
static bool next_tile(const rs_attention *a, tile *last)
{
    rs_positions at[2];
    rs_sequence_positions(&a->sequence, a->sequence.rank, at);
    int64_t row = last->row + last->rows, first = at[0].end - at[0].begin;
    const rs_positions *range = &at[row >= first];
    int64_t position = range->begin + (row >= first ? row - first : row);
    if (position >= range->end)
        return false;
    int64_t rows = rs_min64(TILE, range->end - position);
    *last = (tile){row, position, rows, position + rows};
    return true;
}

/* Rows first .. first + rows - 1 of the scores, of which `width` columns exist, become exp(score -
 * maximum), zero beyond the row's position; `total` gets the row's sum, `lse` maximum + log(sum).
 */
RS_CLONES static void softmax_tile(
    int64_t first, int64_t rows, int64_t width, float *scores, float *total, float *lse)
{
    for (int64_t r = 0; r < rows; r++) {
        float *restrict s = scores + r * width;
        int64_t seen = first + r + 1;
        float maximum = s[0];
#pragma omp simd reduction(max : maximum)
        for (int64_t j = 0; j < seen; j++)
            maximum = s[j] > maximum ? s[j] : maximum;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < seen; j++) {
            s[j] = rs_exp(s[j] - maximum);
            sum += s[j];
        }
        for (int64_t j = seen; j < width; j++)
            s[j] = 0;
        total[r] = sum;
        lse[r] = maximum + logf(sum);
    }
}

RS_CLONES static void scale_rows(
    int64_t rows, int64_t dim, const float *total, float *out, int64_t ld)
{
    for (int64_t r = 0; r < rows; r++) {
        float scale = 1.0f / total[r];
        float *restrict to = out + r * ld;
#pragma omp simd
        for (int64_t i = 0; i < dim; i++)
            to[i] *= scale;
    }
}

static void forward_task(const rs_attention *a, const float *q, const float *kv, int64_t number,
    float *out, float *lse, float *scores)
{
    task t = task_of(a, number);
    const float *key = kv + t.key_place;
    const float *value = kv + t.value_place;
    int64_t ldo = t.q_heads * a->dim;
    float scale = 1.0f / sqrtf((float)a->dim);
    float total[TILE];
    for (int64_t h = t.q_first; h < t.q_last; h++) {
        float *lse_row = lse + (t.sequence * t.q_heads + h) * t.own;
        for (tile i = {0}; next_tile(a, &i);) {
            const float *query = q + (t.query + i.row) * a->ldq + h * a->dim;
            float *to = out + (t.query + i.row) * ldo + h * a->dim;
            product(CblasNoTrans, CblasTrans, i.rows, i.width, a->dim, scale, query, a->ldq, key,
                a->ldkv, 0, scores, i.width);
            softmax_tile(i.position, i.rows, i.width, scores, total, lse_row + i.row);
            product(CblasNoTrans, CblasNoTrans, i.rows, a->dim, i.width, 1, scores, i.width, value,
                a->ldkv, 0, to, ldo);
            scale_rows(i.rows, a->dim, total, to, ldo);
        }
    }
}

void rs_attention_forward(int threads, const rs_attention *shape, const float *q, const float *kv,
    float *out, float *lse, float *scratch)
{
    int64_t tasks = shape->batch * (shape->kv_end - shape->kv_begin);
    int64_t each = rs_attention_scratch(shape->sequence.tokens);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (int64_t number = 0; number < tasks; number++)
        forward_task(shape, q, kv, number, out, lse, scratch + omp_get_thread_num() * each);
}

/* `scores` becomes P = exp(score - lse), `dscores` (dP on entry) becomes P (dP - out . dout) scale.
 */
RS_CLONES static void softmax_backward_tile(int64_t first, int64_t rows, int64_t width, int64_t dim,
    float scale, const float *lse, const float *out, const float *dout, int64_t ld, float *scores,
    float *dscores)
{
    for (int64_t r = 0; r < rows; r++) {
        float *restrict p = scores + r * width;
        float *restrict d = dscores + r * width;
        const float *o = out + r * ld;
        const float *g = dout + r * ld;
        int64_t seen = first + r + 1;
        float mean = 0;
#pragma omp simd reduction(+ : mean)
        for (int64_t i = 0; i < dim; i++)
            mean += o[i] * g[i];
        float base = lse[r];
#pragma omp simd
        for (int64_t j = 0; j < seen; j++) {
            p[j] = rs_exp(p[j] - base);
            d[j] = p[j] * (d[j] - mean) * scale;
        }
        for (int64_t j = seen; j < width; j++) {
            p[j] = 0;
            d[j] = 0;
        }
    }
}

static void clear_columns(int64_t rows, int64_t width, float *x, int64_t ld)
{
    for (int64_t r = 0; r < rows; r++)
        memset(x + r * ld, 0, (size_t)width * sizeof *x);
}

static void backward_task(const rs_attention *a, const float *q, const float *kv, int64_t number,
    const float *out, const float *lse, const float *dout, float *dq, float *dkv, float *scores)
{
    task t = task_of(a, number);
    const float *key = kv + t.key_place;
    const float *value = kv + t.value_place;
    int64_t ldo = t.q_heads * a->dim;
    float scale = 1.0f / sqrtf((float)a->dim);
    float *dscores = scores + TILE * a->sequence.tokens;
    float *dkey = dkv + t.key_place;
    float *dvalue = dkv + t.value_place;
    clear_columns(a->sequence.tokens, a->dim, dkey, a->ldkv);
    clear_columns(a->sequence.tokens, a->dim, dvalue, a->ldkv);
    for (int64_t h = t.q_first; h < t.q_last; h++) {
        const float *lse_row = lse + (t.sequence * t.q_heads + h) * t.own;
        for (tile i = {0}; next_tile(a, &i);) {
            const float *query = q + (t.query + i.row) * a->ldq + h * a->dim;
            float *dquery = dq + (t.query + i.row) * a->ldq + h * a->dim;
            int64_t place = (t.query + i.row) * ldo + h * a->dim;
            product(CblasNoTrans, CblasTrans, i.rows, i.width, a->dim, scale, query, a->ldq, key,
                a->ldkv, 0, scores, i.width);
            product(CblasNoTrans, CblasTrans, i.rows, i.width, a->dim, 1, dout + place, ldo, value,
                a->ldkv, 0, dscores, i.width);
            softmax_backward_tile(i.position, i.rows, i.width, a->dim, scale, lse_row + i.row,
                out + place, dout + place, ldo, scores, dscores);
            product(CblasTrans, CblasNoTrans, i.width, a->dim, i.rows, 1, scores, i.width,
                dout + place, ldo, 1, dvalue, a->ldkv);
            product(CblasTrans, CblasNoTrans, i.width, a->dim, i.rows, 1, dscores, i.width, query,
                a->ldq, 1, dkey, a->ldkv);
            product(CblasNoTrans, CblasNoTrans, i.rows, a->dim, i.width, 1, dscores, i.width, key,
                a->ldkv, 0, dquery, a->ldq);
        }
    }
}

void rs_attention_backward(int threads, const rs_attention *shape, const float *q, const float *kv,
    const float *out, const float *lse, const float *dout, float *dq, float *dkv, float *scratch)
{
    int64_t tasks = shape->batch * (shape->kv_end - shape->kv_begin);
    int64_t each = rs_attention_scratch(shape->sequence.tokens);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(dynamic)
    for (int64_t number = 0; number < tasks; number++)
        backward_task(
            shape, q, kv, number, out, lse, dout, dq, dkv, scratch + omp_get_thread_num() * each);
}
