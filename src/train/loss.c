/*
 * Vocabulary-parallel embedding and cross-entropy, as Megatron-LM divides them (Shoeybi et al.,
 * arXiv 1909.08053, section 3): no rank ever has the logits of the whole vocabulary.
 *
 * Invariants: (1) the loss is computed from reduced values only, so it has the same bits on every
 * rank; (2) an empty slice of the vocabulary takes part with -infinity and zeros.
 */
#include "train/loss.h"

#include <math.h>
#include <string.h>

#include "base/checked.h"
#include "train/simd.h"

#define BLOCK 32 /* rows dealt to a thread at a time */

void rs_embed_forward(int64_t rows, int64_t hidden, const uint8_t *tokens, const float *embed,
    int64_t vocab_begin, int64_t vocab_end, float *out)
{
    size_t bytes = (size_t)hidden * sizeof *out;
    for (int64_t r = 0; r < rows; r++) {
        if (tokens[r] >= vocab_begin && tokens[r] < vocab_end)
            memcpy(out + r * hidden, embed + (tokens[r] - vocab_begin) * hidden, bytes);
        else
            memset(out + r * hidden, 0, bytes);
    }
}

RS_CLONES void rs_embed_backward(int64_t rows, int64_t hidden, const uint8_t *tokens,
    const float *dx, int64_t vocab_begin, int64_t vocab_end, float *dembed)
{
    for (int64_t r = 0; r < rows && dembed != NULL; r++) {
        if (tokens[r] < vocab_begin || tokens[r] >= vocab_end)
            continue;
        float *restrict to = dembed + (tokens[r] - vocab_begin) * hidden;
        const float *restrict from = dx + r * hidden;
#pragma omp simd
        for (int64_t i = 0; i < hidden; i++)
            to[i] += from[i];
    }
}

RS_CLONES static void maximum_rows(
    int64_t begin, int64_t end, int64_t width, const float *logits, float *maximum)
{
    for (int64_t r = begin; r < end; r++) {
        const float *row = logits + r * width;
        float most = -INFINITY;
#pragma omp simd reduction(max : most)
        for (int64_t j = 0; j < width; j++)
            most = row[j] > most ? row[j] : most;
        maximum[r] = most;
    }
}

void rs_loss_maximum(int threads, int64_t rows, int64_t width, const float *logits, float *maximum)
{
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t begin = 0; begin < rows; begin += BLOCK)
        maximum_rows(begin, rs_min64(begin + BLOCK, rows), width, logits, maximum);
}

RS_CLONES static void exponential_rows(int64_t begin, int64_t end, int64_t width,
    int64_t vocab_begin, const uint8_t *targets, const float *maximum, float *logits, float *sum,
    float *target_logit)
{
    for (int64_t r = begin; r < end; r++) {
        float *row = logits + r * width;
        int64_t target = targets[r] - vocab_begin;
        float most = maximum[r];
        target_logit[r] = target >= 0 && target < width ? row[target] - most : 0;
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t j = 0; j < width; j++) {
            row[j] = rs_exp(row[j] - most);
            total += row[j];
        }
        sum[r] = total;
    }
}

void rs_loss_exponentials(int threads, int64_t rows, int64_t vocab_begin, int64_t vocab_end,
    const uint8_t *targets, const float *maximum, float *logits, float *sums)
{
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t begin = 0; begin < rows; begin += BLOCK)
        exponential_rows(begin, rs_min64(begin + BLOCK, rows), vocab_end - vocab_begin, vocab_begin,
            targets, maximum, logits, sums, sums + rows);
}

double rs_loss_total(int64_t rows, const float *sums)
{
    double total = 0;
    for (int64_t r = 0; r < rows; r++)
        total += log((double)sums[r]) - (double)sums[rows + r];
    return total;
}

RS_CLONES static void loss_backward_rows(int64_t begin, int64_t end, int64_t width,
    int64_t vocab_begin, const uint8_t *targets, const float *sums, float scale, float *gradient)
{
    for (int64_t r = begin; r < end; r++) {
        float *restrict row = gradient + r * width;
        float factor = scale / sums[r];
#pragma omp simd
        for (int64_t j = 0; j < width; j++)
            row[j] *= factor;
        int64_t target = targets[r] - vocab_begin;
        if (target >= 0 && target < width)
            row[target] -= scale;
    }
}

void rs_loss_backward(int threads, int64_t rows, int64_t vocab_begin, int64_t vocab_end,
    const uint8_t *targets, const float *sums, float scale, float *exponentials)
{
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t begin = 0; begin < rows; begin += BLOCK)
        loss_backward_rows(begin, rs_min64(begin + BLOCK, rows), vocab_end - vocab_begin,
            vocab_begin, targets, sums, scale, exponentials);
}
