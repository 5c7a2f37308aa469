/*
 * Hugging Face's names of decoder-only models: Llama, Mistral, Qwen2, Qwen3, with experts Mixtral,
 * Qwen2-MoE, Qwen3-MoE, DeepSeek-V2 and V3 (transformers, modeling_<family>.py). One tensor a layer
 * and expert, none fused, matrices stored [out, in] as ours are.
 *
 * Mixtral alone has other names for experts and router, DeepSeek for shared experts, so these have
 * dialects of their own for writing; each dialect reads the others' names as aliases.
 *
 * What a checkpoint may hold twice is read as the one it is: a tied output layer, and DeepSeek-V3's
 * copies of embedding and output layer in the layer that predicts further tokens.
 */
#include "dialect/builtin.h"

/* clang-format off: one rule a line */
#define COMMON                                                                                     \
    {"model.embed_tokens.weight", "embed.weight"},                                                 \
        {"model.layers.{0}.enorm.weight", "layers.mtp.embed_norm.weight"},                         \
        {"model.layers.{0}.hnorm.weight", "layers.mtp.hidden_norm.weight"},                        \
        {"model.layers.{0}.eh_proj.weight", "layers.mtp.proj.weight"},                             \
        {"model.layers.{0}.input_layernorm.weight", "layers.attn_norm.weight"},                    \
        {"model.layers.{0}.self_attn.q_a_proj.weight", "layers.attn.q_a.weight"},                  \
        {"model.layers.{0}.self_attn.q_a_layernorm.weight", "layers.attn.q_a_norm.weight"},        \
        {"model.layers.{0}.self_attn.q_b_proj.weight", "layers.attn.q_b.weight"},                  \
        {"model.layers.{0}.self_attn.q_proj.weight", "layers.attn.q.weight"},                      \
        {"model.layers.{0}.self_attn.k_proj.weight", "layers.attn.k.weight"},                      \
        {"model.layers.{0}.self_attn.v_proj.weight", "layers.attn.v.weight"},                      \
        {"model.layers.{0}.self_attn.kv_a_proj_with_mqa.weight", "layers.attn.kv_a.weight"},       \
        {"model.layers.{0}.self_attn.kv_a_layernorm.weight", "layers.attn.kv_a_norm.weight"},      \
        {"model.layers.{0}.self_attn.kv_b_proj.weight", "layers.attn.kv_b.weight"},                \
        {"model.layers.{0}.self_attn.q_proj.bias", "layers.attn.q.bias"},                          \
        {"model.layers.{0}.self_attn.k_proj.bias", "layers.attn.k.bias"},                          \
        {"model.layers.{0}.self_attn.v_proj.bias", "layers.attn.v.bias"},                          \
        {"model.layers.{0}.self_attn.q_norm.weight", "layers.attn.q_norm.weight"},                 \
        {"model.layers.{0}.self_attn.k_norm.weight", "layers.attn.k_norm.weight"},                 \
        {"model.layers.{0}.self_attn.o_proj.weight", "layers.attn.o.weight"},                      \
        {"model.layers.{0}.self_attn.o_proj.bias", "layers.attn.o.bias"},                          \
        {"model.layers.{0}.post_attention_layernorm.weight", "layers.mlp_norm.weight"},            \
        {"model.layers.{0}.mlp.gate_proj.weight", "layers.mlp.gate.weight"},                       \
        {"model.layers.{0}.mlp.up_proj.weight", "layers.mlp.up.weight"},                           \
        {"model.layers.{0}.mlp.gate_proj.bias", "layers.mlp.gate.bias"},                           \
        {"model.layers.{0}.mlp.up_proj.bias", "layers.mlp.up.bias"},                               \
        {"model.layers.{0}.mlp.down_proj.weight", "layers.mlp.down.weight"},                       \
        {"model.layers.{0}.mlp.down_proj.bias", "layers.mlp.down.bias"},                           \
        {"model.layers.{0}.mlp.gate.e_score_correction_bias", "layers.router.bias"},               \
        {"model.layers.{0}.mlp.shared_expert_gate.weight", "layers.shared.switch.weight"},         \
        {"model.layers.{0}.shared_head.norm.weight", "layers.mtp.norm.weight"},                    \
        {"model.norm.weight", "norm.weight"}, {"lm_head.weight", "head.weight"},                   \
        {"lm_head.weight", "embed.weight"},                                                        \
        {"model.layers.{}.embed_tokens.weight", "embed.weight"},                                   \
    {                                                                                              \
        "model.layers.{}.shared_head.head.weight", "head.weight"                                   \
    }

#define EXPERTS                                                                                    \
    {"model.layers.{0}.mlp.gate.weight", "layers.router.weight"},                                  \
        {"model.layers.{0}.mlp.experts.{1}.gate_proj.weight", "layers.experts.gate.weight"},       \
        {"model.layers.{0}.mlp.experts.{1}.up_proj.weight", "layers.experts.up.weight"},           \
    {                                                                                              \
        "model.layers.{0}.mlp.experts.{1}.down_proj.weight", "layers.experts.down.weight"          \
    }

#define MIXTRAL_EXPERTS                                                                            \
    {"model.layers.{0}.block_sparse_moe.gate.weight", "layers.router.weight"},                     \
        {"model.layers.{0}.block_sparse_moe.experts.{1}.w1.weight", "layers.experts.gate.weight"}, \
        {"model.layers.{0}.block_sparse_moe.experts.{1}.w3.weight", "layers.experts.up.weight"},   \
    {                                                                                              \
        "model.layers.{0}.block_sparse_moe.experts.{1}.w2.weight", "layers.experts.down.weight"    \
    }

#define SHARED                                                                                     \
    {"model.layers.{0}.mlp.shared_expert.gate_proj.weight", "layers.shared.gate.weight"},          \
        {"model.layers.{0}.mlp.shared_expert.up_proj.weight", "layers.shared.up.weight"},          \
    {                                                                                              \
        "model.layers.{0}.mlp.shared_expert.down_proj.weight", "layers.shared.down.weight"         \
    }

#define DEEPSEEK_SHARED                                                                            \
    {"model.layers.{0}.mlp.shared_experts.gate_proj.weight", "layers.shared.gate.weight"},         \
        {"model.layers.{0}.mlp.shared_experts.up_proj.weight", "layers.shared.up.weight"},         \
    {                                                                                              \
        "model.layers.{0}.mlp.shared_experts.down_proj.weight", "layers.shared.down.weight"        \
    }
/* clang-format on */

static const rs_dialect_rule rules[] = {COMMON, EXPERTS, SHARED, MIXTRAL_EXPERTS, DEEPSEEK_SHARED};
static const rs_dialect_rule mixtral_rules[] = {
    COMMON, MIXTRAL_EXPERTS, EXPERTS, SHARED, DEEPSEEK_SHARED};
static const rs_dialect_rule deepseek_rules[] = {
    COMMON, EXPERTS, DEEPSEEK_SHARED, MIXTRAL_EXPERTS, SHARED};

const rs_dialect rs_dialect_hf = {
    .name = "hf", .rules = rules, .count = sizeof rules / sizeof *rules};
const rs_dialect rs_dialect_hf_mixtral = {.name = "hf-mixtral",
    .rules = mixtral_rules,
    .count = sizeof mixtral_rules / sizeof *mixtral_rules};
const rs_dialect rs_dialect_hf_deepseek = {.name = "hf-deepseek",
    .rules = deepseek_rules,
    .count = sizeof deepseek_rules / sizeof *deepseek_rules};
