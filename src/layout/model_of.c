/*
 * The model that a canonical space is of, from its facts, names and shapes: the way back from
 * model_space.c, for checkpoints that bring their space along. What computes without a trace in the
 * state (the activation, the rotary base) stays unknown.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "layout/model.h"

static bool has(const rs_space *space, const char *name)
{
    return rs_space_find_tensor(space, name) >= 0;
}

/* Length of a dimension of a tensor; 0 where the space has no such thing. */
static int64_t length(const rs_space *space, const char *name, int dim)
{
    int t = rs_space_find_tensor(space, name);
    const rs_tensor *tensor = t >= 0 ? rs_space_tensor(space, t) : NULL;
    return tensor != NULL && dim < tensor->ndim ? tensor->shape[dim] : 0;
}

/* Which layers have no experts: those before the router's first, or all that it does not list. */
static void read_dense(const rs_space *space, rs_model *m)
{
    int t = rs_space_find_tensor(space, "layers.router.weight");
    const rs_tensor *router = t >= 0 ? rs_space_tensor(space, t) : NULL;
    if (router == NULL)
        return;
    if (router->layers == NULL) {
        m->dense_first = router->layer_first;
        return;
    }
    for (int64_t l = 0, i = 0; l < m->layers && l < RS_MODEL_DENSE_LAYERS; l++) {
        bool has_experts = i < router->shape[0] && router->layers[i] == l;
        i += has_experts;
        if (!has_experts)
            m->dense_layers[l / 64] |= UINT64_C(1) << (l % 64);
    }
}

static rs_status read_facts(const rs_space *space, rs_model *m)
{
    const struct {
        const char *key;
        int64_t *to;
    } numbers[] = {{"layers", &m->layers}, {"hidden", &m->hidden}, {"heads", &m->heads},
        {"kv_heads", &m->kv_heads}, {"head_dim", &m->head_dim}, {"experts", &m->experts}};
    const char *family = rs_space_fact(space, "family"), *tied = rs_space_fact(space, "tied");
    if (family == NULL || tied == NULL)
        return rs_error_set(RS_ERR_NOT_FOUND, "it does not tell its model's \"%s\"",
            family == NULL ? "family" : "tied");
    snprintf(m->family, sizeof m->family, "%s", family);
    m->tied = strcmp(tied, "true") == 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *text = rs_space_fact(space, numbers[i].key);
        if (text == NULL)
            return rs_error_set(
                RS_ERR_NOT_FOUND, "it does not tell its model's \"%s\"", numbers[i].key);
        *numbers[i].to = strtoll(text, NULL, 10);
    }
    return RS_OK;
}

static void read_latent(const rs_space *space, rs_model *m)
{
    m->kv_rank = length(space, "layers.attn.kv_a_norm.weight", 1);
    m->q_rank = length(space, "layers.attn.q_a_norm.weight", 1);
    m->rope_dim = length(space, "layers.attn.kv_a.weight", 1) - m->kv_rank;
    if (m->heads > 0)
        m->v_dim = length(space, "layers.attn.o.weight", 2) / m->heads;
}

static void read_experts(const rs_space *space, rs_model *m)
{
    if (m->ffn == 0) /* no layer is without experts */
        m->ffn = 1;
    m->experts_per_token = 1;
    read_dense(space, m);
    m->expert_ffn = length(space, "layers.experts.down.weight", 3);
    m->shared_ffn = length(space, "layers.shared.down.weight", 2);
    m->shared_gate = has(space, "layers.shared.switch.weight");
    m->router_bias = has(space, "layers.router.bias");
    m->mtp_layers = length(space, "layers.mtp.norm.weight", 0);
}

rs_status rs_model_of_space(const rs_space *space, rs_model *out)
{
    rs_model m = {.name = "of the checkpoint"};
    RS_TRY(read_facts(space, &m));
    m.vocab = length(space, "embed.weight", 0);
    m.positions = length(space, "position.weight", 0);
    m.ffn = length(space, "layers.mlp.down.weight", 2);
    m.qkv_bias = has(space, "layers.attn.q.bias");
    m.out_bias = has(space, "layers.attn.o.bias");
    m.mlp_bias = has(space, "layers.mlp.up.bias");
    m.qk_norm = has(space, "layers.attn.q_norm.weight");
    m.layer_norm = has(space, "norm.bias");
    m.plain_mlp = has(space, "layers.mlp.up.weight") && !has(space, "layers.mlp.gate.weight");
    if (has(space, "layers.attn.kv_a.weight"))
        read_latent(space, &m);
    if (m.experts > 0)
        read_experts(space, &m);
    RS_TRY(rs_model_check_numbers(&m, RS_ERR_MISMATCH));
    *out = m;
    return RS_OK;
}
