/*
 * Causal attention of one rank's heads, forward and backward. All functions are local and cannot
 * fail.
 */
#ifndef RS_TRAIN_ATTENTION_H
#define RS_TRAIN_ATTENTION_H

#include <stdint.h>

typedef struct rs_attention {
    int64_t batch;
    int64_t seq;
    int64_t dim;     /* of a head; even */
    int64_t q_begin; /* this rank's query heads, global numbers */
    int64_t q_end;
    int64_t kv_begin; /* and the key/value heads that they use */
    int64_t kv_end;
    int64_t group; /* query heads per key/value head */
} rs_attention;

/* Floats of scratch that one thread needs. */
int64_t rs_attention_scratch(int64_t seq);

/*
 * `qkv`: [batch * seq, (q heads + 2 kv heads) * dim], rows [q | k | v]. `out`: [batch * seq,
 * q heads * dim]. `lse`: [batch, q heads, seq], the logarithm of each softmax's denominator, for
 * the backward pass. `scratch`: threads * rs_attention_scratch(seq).
 */
void rs_attention_forward(int threads, const rs_attention *shape, const float *qkv, float *out,
    float *lse, float *scratch);

/* `dout` is the gradient of `out`; `dqkv`, laid out like `qkv`, is overwritten. */
void rs_attention_backward(int threads, const rs_attention *shape, const float *qkv,
    const float *out, const float *lse, const float *dout, float *dqkv, float *scratch);

#endif
