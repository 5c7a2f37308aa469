/*
 * Model descriptions: the numbers of a decoder-only transformer, read from a Hugging Face
 * config.json or taken from a preset, and the space that such a model's training state makes.
 * All functions are local.
 */
#ifndef RESHARD_MODEL_H
#define RESHARD_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/dtype.h"
#include "reshard/space.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rs_model {
    char name[64];   /* preset name, or the configuration's model_type */
    char family[32]; /* "llama", "mistral", "qwen2", "qwen3" */
    int64_t layers;
    int64_t hidden;
    int64_t heads;    /* query heads */
    int64_t kv_heads; /* divides heads */
    int64_t head_dim;
    int64_t ffn;
    int64_t vocab;
    bool tied;     /* the output layer is the embedding */
    bool qkv_bias; /* q, k, v projections have biases */
    bool out_bias; /* the attention's output projection has one */
    bool mlp_bias;
    bool qk_norm; /* RMS norm of each q and k head (Qwen3) */
    double norm_eps;
    double rope_theta;
    char rope_type[32];     /* "default", or the scaling that the configuration asks for */
    char activation[16];    /* of the gate: "silu" */
    int64_t sliding_window; /* a token sees no more than this many; 0: all */
    rs_dtype dtype;         /* the type the configuration states; RS_DTYPE_NONE if it states none */
} rs_model;

/*
 * Reads a preset name ("llama-tiny", "llama-20m", "llama3-8b", "llama3-70b", "qwen3-32b"), a
 * config.json, or a folder that holds one. RS_ERR_ARGUMENT names the presets when nothing fits;
 * RS_ERR_MALFORMED and RS_ERR_UNSUPPORTED name file and key.
 */
rs_status rs_model_load(const char *name_or_path, rs_model *out) RS_MUST_CHECK;

/* NULL-terminated list of preset names. */
const char *const *rs_model_presets(void);

/*
 * RS_ERR_UNSUPPORTED, naming the key, if a training step over sequences of `seq` tokens would
 * compute something else than the configuration says: a scaled or partial rotary embedding, a
 * sliding window shorter than the sequence, another activation, heads of odd width. The space of
 * such a model is right all the same.
 */
rs_status rs_model_check_trainable(const rs_model *model, int64_t seq) RS_MUST_CHECK;

/*
 * The space of training `model` with AdamW. dtype RS_DTYPE_F32: roles param, exp_avg, exp_avg_sq;
 * RS_DTYPE_BF16 or RS_DTYPE_F16: param in that type, then master, exp_avg, exp_avg_sq in float32.
 * The caller owns `*out`. RS_ERR_ARGUMENT names a number of the model that is impossible.
 * Tensors, in this order, which is the order of the local concatenation (see layout.h); L layers, H
 * hidden, D head_dim, Q = heads x D, K = kv_heads x D, F ffn, V vocab:
 *   embed.weight [V,H]
 *   layers.attn_norm.weight [L,H]
 *   layers.attn.q.weight [L,Q,H], layers.attn.k.weight [L,K,H], layers.attn.v.weight [L,K,H]
 *   layers.attn.q.bias [L,Q], layers.attn.k.bias [L,K], layers.attn.v.bias [L,K]   if qkv_bias
 *   layers.attn.q_norm.weight [L,D], layers.attn.k_norm.weight [L,D]               if qk_norm
 *   layers.attn.o.weight [L,H,Q], layers.attn.o.bias [L,H]                         if out_bias
 *   layers.mlp_norm.weight [L,H]
 *   layers.mlp.gate.weight [L,F,H], layers.mlp.up.weight [L,F,H]
 *   layers.mlp.gate.bias [L,F], layers.mlp.up.bias [L,F]                           if mlp_bias
 *   layers.mlp.down.weight [L,H,F], layers.mlp.down.bias [L,H]                     if mlp_bias
 *   norm.weight [H]
 *   head.weight [V,H]                                                              unless tied
 * Matrices take part in weight decay; norms and biases do not.
 */
rs_status rs_model_space(const rs_model *model, rs_dtype dtype, rs_space **out) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
