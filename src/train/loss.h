/*
 * Embedding and cross-entropy over a slice [vocab_begin, vocab_end) of the vocabulary: each rank
 * works on its own rows, and three small sums or maxima over the group make the whole. Between the
 * steps the caller reduces. All functions are local and cannot fail.
 */
#ifndef RS_TRAIN_LOSS_H
#define RS_TRAIN_LOSS_H

#include <stdint.h>

/* out[r] = embed[token - vocab_begin], or zeros for a token of another rank. */
void rs_embed_forward(int64_t rows, int64_t hidden, const uint8_t *tokens, const float *embed,
    int64_t vocab_begin, int64_t vocab_end, float *out);

/* dembed[token - vocab_begin] += dx[r], in the order of r; nothing for NULL. */
void rs_embed_backward(int64_t rows, int64_t hidden, const uint8_t *tokens, const float *dx,
    int64_t vocab_begin, int64_t vocab_end, float *dembed);

/* maximum[r] = the largest of row r of `logits` [rows, width]; -infinity for width 0. */
void rs_loss_maximum(int threads, int64_t rows, int64_t width, const float *logits, float *maximum);

/*
 * `logits` becomes exp(logit - maximum[r]); sums[r] gets the row's sum, sums[rows + r] the logit of
 * the target less maximum[r] if the target is one of this rank's, else 0.
 */
void rs_loss_exponentials(int threads, int64_t rows, int64_t vocab_begin, int64_t vocab_end,
    const uint8_t *targets, const float *maximum, float *logits, float *sums);

/* The loss of all rows, from `sums` reduced over the group. */
double rs_loss_total(int64_t rows, const float *sums);

/* `exponentials` becomes the gradient of the logits: (exponential / sums[r] - [target]) * scale. */
void rs_loss_backward(int threads, int64_t rows, int64_t vocab_begin, int64_t vocab_end,
    const uint8_t *targets, const float *sums, float scale, float *exponentials);

#endif
