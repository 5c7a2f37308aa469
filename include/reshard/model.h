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

/* Layers among which some have no experts, in no regular order. */
#define RS_MODEL_DENSE_LAYERS 512

/* Everything that the space and the trainer need to know. What a family does not have is 0. */
typedef struct rs_model {
    char name[64];   /* preset name, or the configuration's model_type */
    char family[32]; /* "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe",
                        "deepseek_v2", "deepseek_v3", "gpt2" */
    int64_t layers;  /* without those of `mtp_layers` */
    int64_t hidden;
    int64_t heads;    /* query heads */
    int64_t kv_heads; /* divides heads */
    int64_t head_dim; /* of queries and keys */
    int64_t ffn;      /* of layers without experts */
    int64_t vocab;
    bool tied;     /* the output layer is the embedding */
    bool qkv_bias; /* q, k, v projections have biases */
    bool out_bias; /* the attention's output projection has one */
    bool mlp_bias;
    bool qk_norm;      /* RMS norm of each q and k head (Qwen3) */
    bool layer_norm;   /* norms subtract the mean and have biases (GPT-2), else RMS norms */
    bool plain_mlp;    /* the feed-forward layer has no gate: up, activation, down (GPT-2) */
    int64_t positions; /* learnt position embeddings, so many (GPT-2); 0: rotary ones */
    double norm_eps;
    double rope_theta;
    char rope_type[32];     /* "default", or the scaling that the configuration asks for */
    char activation[16];    /* "silu", ... */
    int64_t sliding_window; /* a token sees no more than this many; 0: all */
    rs_dtype dtype;         /* the type the configuration states; RS_DTYPE_NONE if it states none */

    /* Mixture of experts; experts = 0: none of this. */
    int64_t experts;
    int64_t experts_per_token;
    int64_t expert_ffn;
    int64_t dense_first; /* so many layers at the beginning have no experts */
    uint64_t dense_layers[RS_MODEL_DENSE_LAYERS / 64]; /* bit l: nor has layer l */
    int64_t shared_ffn; /* of what every token passes through beside its experts */
    bool shared_gate;   /* how much of it counts is learnt, token by token (Qwen2-MoE) */
    bool norm_topk;     /* the weights of a token's experts are scaled to sum to 1 */
    bool router_bias;   /* added to choose experts, not to weigh them; moved by a rule, not by
                           gradients (DeepSeek-V3) */
    bool router_counts; /* the trainer moves that bias: it has the state of a tensor that is
                           trained, of which the first role is how many tokens chose each expert */
    double aux_loss;    /* coefficient of the load balancing loss */
    int64_t mtp_layers; /* behind the last: they predict further tokens (DeepSeek-V3) */

    /* Multi-head latent attention (DeepSeek); kv_rank = 0: none of this. head_dim = nope + rope. */
    int64_t kv_rank;
    int64_t q_rank; /* 0: queries are one matrix */
    int64_t rope_dim;
    int64_t v_dim;
} rs_model;

/*
 * Reads a preset name ("llama-tiny", "llama-20m", "llama3-8b", "llama3-70b", "qwen3-32b",
 * "mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "mixtral-tiny",
 * "qwen3-moe-tiny", "qwen2-moe-tiny", "deepseek-tiny", "gpt2-tiny"), a config.json, or a folder
 * that holds one. RS_ERR_ARGUMENT names the presets when nothing fits; RS_ERR_MALFORMED and
 * RS_ERR_UNSUPPORTED name file and key.
 */
rs_status rs_model_load(const char *name_or_path, rs_model *out) RS_MUST_CHECK;

/* NULL-terminated list of preset names. */
const char *const *rs_model_presets(void);

/* Whether layer `layer` has experts, and how many layers have, those of `mtp_layers` among them. */
bool rs_model_has_experts(const rs_model *model, int64_t layer);
int64_t rs_model_expert_layers(const rs_model *model);

/*
 * RS_ERR_UNSUPPORTED, naming the key, if a training step over sequences of `seq` tokens would
 * compute something else than the configuration says: latent attention, a router's bias,
 * multi-token prediction, a scaled or partial rotary embedding, learnt positions, a sliding window
 * shorter than the sequence, another activation, heads of odd width. The space of such a model is
 * right all the same.
 */
rs_status rs_model_check_trainable(const rs_model *model, int64_t seq) RS_MUST_CHECK;

/*
 * The space of training `model` with AdamW; with another optimizer: rs_training_space, optimizer.h.
 * dtype RS_DTYPE_F32: roles param, exp_avg, exp_avg_sq;
 * RS_DTYPE_BF16 or RS_DTYPE_F16: param in that type, then master, exp_avg, exp_avg_sq in float32.
 * The caller owns `*out`. RS_ERR_ARGUMENT names a number of the model that is impossible.
 * Tensors, in this order, which is the order of the local concatenation (see layout.h); L layers, H
 * hidden, D head_dim, Q = heads x D, K = kv_heads x D, F ffn, V vocab:
 *   embed.weight [V,H], position.weight [P,H]                                      if P positions
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
 * Latent attention, R q_rank, C kv_rank, P rope_dim, O = heads x v_dim, in place of q, k, v:
 *   layers.attn.q_a.weight [L,R,H], layers.attn.q_a_norm.weight [L,R],
 *   layers.attn.q_b.weight [L,Q,R]                            if q_rank, else layers.attn.q.weight
 *   layers.attn.kv_a.weight [L,C+P,H], layers.attn.kv_a_norm.weight [L,C],
 *   layers.attn.kv_b.weight [L,heads*(D-P+v_dim),C], and layers.attn.o.weight [L,H,O]
 * Experts, E of them of size G, S shared_ffn; L is here the layers that have experts, and
 * layers.mlp is in the others:
 *   layers.router.weight [L,E,H], layers.router.bias [L,E]                      if router_bias
 *   layers.experts.gate.weight [L,E,G,H], layers.experts.up.weight [L,E,G,H],
 *   layers.experts.down.weight [L,E,H,G]
 *   layers.shared.gate.weight [L,S,H], layers.shared.up.weight [L,S,H],
 *   layers.shared.down.weight [L,H,S]                                            if shared_ffn
 *   layers.shared.switch.weight [L,1,H]                                         if shared_gate
 * mtp_layers follow the others, M of them, with all that a layer has, and:
 *   layers.mtp.embed_norm.weight [M,H], layers.mtp.hidden_norm.weight [M,H],
 *   layers.mtp.proj.weight [M,H,2H], layers.mtp.norm.weight [M,H]
 * layer_norm gives each norm's weight a bias beside it: layers.attn_norm.bias [L,H],
 * layers.mlp_norm.bias [L,H], norm.bias [H]. plain_mlp leaves layers.mlp.gate out.
 * Facts (space.h) that dialects ask for: "family", "tied" ("true" or "false"), "layers", "hidden",
 * "heads", "kv_heads", "head_dim", "experts".
 * Matrices take part in weight decay; norms and biases do not. layers.router.bias is float32 and
 * has no role but param, unless router_counts.
 */
rs_status rs_model_space(const rs_model *model, rs_dtype dtype, rs_space **out) RS_MUST_CHECK;

/*
 * The model that a space of these names is of, by its facts, names and shapes: what rs_model_space
 * makes of it has the same tensors. Numbers that leave no trace in the state are those of no model
 * (experts_per_token is 1, norm_eps 0). RS_ERR_NOT_FOUND: a fact that is not there;
 * RS_ERR_MISMATCH: no model has such numbers.
 */
rs_status rs_model_of_space(const rs_space *space, rs_model *out) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
