/*
 * Causal attention of one rank's heads, forward and backward. All functions are local and cannot
 * fail.
 */
#ifndef RS_TRAIN_ATTENTION_H
#define RS_TRAIN_ATTENTION_H

#include <stdint.h>

#include "train/sequence.h"

typedef struct rs_attention {
    int64_t batch;
    rs_sequence sequence; /* whose positions this rank has queries of */
    int64_t dim;          /* of a head; even */
    int64_t q_begin;      /* this rank's query heads, global numbers */
    int64_t q_end;
    int64_t kv_begin; /* and the key/value heads that they use */
    int64_t kv_end;
    int64_t group; /* query heads per key/value head */
    int64_t ldq;   /* floats between rows of queries, of keys and values */
    int64_t ldkv;
} rs_attention;

/* Floats of scratch that one thread needs. */
int64_t rs_attention_scratch(int64_t tokens);

/*
 * `q`: [batch * own tokens, q heads * dim]. `kv`: of all tokens, [batch * tokens, 2 kv heads *
 * dim], rows [k | v]. `out`: [batch * own tokens, q heads * dim]. `lse`: [batch, q heads, own
 * tokens], the logarithm of each softmax's denominator, for the backward pass. `scratch`: threads *
 * rs_attention_scratch(tokens).
 */
void rs_attention_forward(int threads, const rs_attention *shape, const float *q, const float *kv,
    float *out, float *lse, float *scratch);

/* `dout` is the gradient of `out`; `dq` and `dkv`, laid out like `q` and `kv`, are overwritten,
 * with what these queries make of the gradient of keys and values. */
void rs_attention_backward(int threads, const rs_attention *shape, const float *q, const float *kv,
    const float *out, const float *lse, const float *dout, float *dq, float *dkv, float *scratch);

#endif
