/*
 * Hugging Face's names of decoder-only models: Llama, Mistral, Qwen2, Qwen3 (transformers,
 * modeling_<family>.py). One tensor a layer, none fused, matrices stored [out, in] as ours are.
 *
 * A tied output layer is not stored, but some writers store it all the same: the last row reads it
 * as the embedding.
 */
#include "dialect/builtin.h"

static const rs_dialect_rule rules[] = {
    {"model.embed_tokens.weight", "embed.weight"},
    {"model.layers.{0}.input_layernorm.weight", "layers.attn_norm.weight"},
    {"model.layers.{0}.self_attn.q_proj.weight", "layers.attn.q.weight"},
    {"model.layers.{0}.self_attn.k_proj.weight", "layers.attn.k.weight"},
    {"model.layers.{0}.self_attn.v_proj.weight", "layers.attn.v.weight"},
    {"model.layers.{0}.self_attn.q_proj.bias", "layers.attn.q.bias"},
    {"model.layers.{0}.self_attn.k_proj.bias", "layers.attn.k.bias"},
    {"model.layers.{0}.self_attn.v_proj.bias", "layers.attn.v.bias"},
    {"model.layers.{0}.self_attn.q_norm.weight", "layers.attn.q_norm.weight"},
    {"model.layers.{0}.self_attn.k_norm.weight", "layers.attn.k_norm.weight"},
    {"model.layers.{0}.self_attn.o_proj.weight", "layers.attn.o.weight"},
    {"model.layers.{0}.self_attn.o_proj.bias", "layers.attn.o.bias"},
    {"model.layers.{0}.post_attention_layernorm.weight", "layers.mlp_norm.weight"},
    {"model.layers.{0}.mlp.gate_proj.weight", "layers.mlp.gate.weight"},
    {"model.layers.{0}.mlp.up_proj.weight", "layers.mlp.up.weight"},
    {"model.layers.{0}.mlp.gate_proj.bias", "layers.mlp.gate.bias"},
    {"model.layers.{0}.mlp.up_proj.bias", "layers.mlp.up.bias"},
    {"model.layers.{0}.mlp.down_proj.weight", "layers.mlp.down.weight"},
    {"model.layers.{0}.mlp.down_proj.bias", "layers.mlp.down.bias"},
    {"model.norm.weight", "norm.weight"},
    {"lm_head.weight", "head.weight"},
    {"lm_head.weight", "embed.weight"},
};

const rs_dialect rs_dialect_hf = {
    .name = "hf", .rules = rules, .count = sizeof rules / sizeof *rules};
