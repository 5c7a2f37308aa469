/*
 * The space that a model makes.
 *
 * A decoder is a few numbers and switches. Which tensors these make is a table, one row a tensor:
 * its name, its dimensions by symbol, the switches it depends on, and which layers have it. What a
 * dimension counts (layers, heads, experts, rows) follows from its symbol, so layouts never look at
 * names.
 *
 * Layers that differ are several tensors: the feed-forward matrices of a model with experts stand
 * in the layers without these alone.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "layout/model.h"

/* What a dimension counts. */
typedef enum symbol {
    NONE = 0,
    LAYERS,
    HIDDEN,
    Q_ROWS,
    KV_ROWS,
    HEAD,
    FFN,
    VOCAB,
    ROUTED, /* experts, one row of the router each: not dealt */
    EXPERTS,
    EXPERT_FFN,
    SHARED_FFN,
    ONE,
    TWO_HIDDEN,
    Q_RANK,
    KV_RANK,
    KV_A_ROWS,
    KV_B_ROWS,
    V_ROWS,
    POSITIONS,
    SYMBOLS
} symbol;

/* What a tensor depends on: all of these must hold. */
enum {
    ALWAYS = 0,
    QKV_BIAS = 1 << 0,
    OUT_BIAS = 1 << 1,
    MLP_BIAS = 1 << 2,
    QK_NORM = 1 << 3,
    UNTIED = 1 << 4,
    PLAIN = 1 << 5,   /* attention with q, k and v */
    LATENT = 1 << 6,  /* latent attention */
    Q_LOW = 1 << 7,   /* queries of low rank */
    Q_FULL = 1 << 8,  /* queries are one matrix */
    SHARED = 1 << 9,  /* a shared expert */
    SWITCH = 1 << 10, /* and what it counts */
    BIASED = 1 << 11, /* a bias in the router */
    NORM_BIAS = 1 << 12,
    GATED = 1 << 13,     /* a gate in the feed-forward layer */
    POSITIONED = 1 << 14 /* learnt positions */
};

/* Which layers have a tensor. */
typedef enum span {
    ALL_LAYERS = 0,
    DENSE,  /* those without experts */
    SPARSE, /* those with experts */
    FURTHER /* those of multi-token prediction */
} span;

typedef struct row {
    const char *name;
    symbol dims[4];
    unsigned when;
    span layers;
    rs_stage_rule stage;
    bool decay;
} row;

/* In the order of the local concatenation: what one product of matrices serves stands together. */
static const row rows[] = {
    {"embed.weight", {VOCAB, HIDDEN}, ALWAYS, ALL_LAYERS, RS_STAGE_FIRST, true},
    {"position.weight", {POSITIONS, HIDDEN}, POSITIONED, ALL_LAYERS, RS_STAGE_FIRST, true},
    {"layers.mtp.embed_norm.weight", {LAYERS, HIDDEN}, ALWAYS, FURTHER, 0, false},
    {"layers.mtp.hidden_norm.weight", {LAYERS, HIDDEN}, ALWAYS, FURTHER, 0, false},
    {"layers.mtp.proj.weight", {LAYERS, HIDDEN, TWO_HIDDEN}, ALWAYS, FURTHER, 0, true},
    {"layers.attn_norm.weight", {LAYERS, HIDDEN}, ALWAYS, ALL_LAYERS, 0, false},
    {"layers.attn_norm.bias", {LAYERS, HIDDEN}, NORM_BIAS, ALL_LAYERS, 0, false},
    {"layers.attn.q_a.weight", {LAYERS, Q_RANK, HIDDEN}, Q_LOW, ALL_LAYERS, 0, true},
    {"layers.attn.q_a_norm.weight", {LAYERS, Q_RANK}, Q_LOW, ALL_LAYERS, 0, false},
    {"layers.attn.q_b.weight", {LAYERS, Q_ROWS, Q_RANK}, Q_LOW, ALL_LAYERS, 0, true},
    {"layers.attn.q.weight", {LAYERS, Q_ROWS, HIDDEN}, Q_FULL, ALL_LAYERS, 0, true},
    {"layers.attn.k.weight", {LAYERS, KV_ROWS, HIDDEN}, PLAIN, ALL_LAYERS, 0, true},
    {"layers.attn.v.weight", {LAYERS, KV_ROWS, HIDDEN}, PLAIN, ALL_LAYERS, 0, true},
    {"layers.attn.kv_a.weight", {LAYERS, KV_A_ROWS, HIDDEN}, LATENT, ALL_LAYERS, 0, true},
    {"layers.attn.kv_a_norm.weight", {LAYERS, KV_RANK}, LATENT, ALL_LAYERS, 0, false},
    {"layers.attn.kv_b.weight", {LAYERS, KV_B_ROWS, KV_RANK}, LATENT, ALL_LAYERS, 0, true},
    {"layers.attn.q.bias", {LAYERS, Q_ROWS}, QKV_BIAS, ALL_LAYERS, 0, false},
    {"layers.attn.k.bias", {LAYERS, KV_ROWS}, QKV_BIAS, ALL_LAYERS, 0, false},
    {"layers.attn.v.bias", {LAYERS, KV_ROWS}, QKV_BIAS, ALL_LAYERS, 0, false},
    {"layers.attn.q_norm.weight", {LAYERS, HEAD}, QK_NORM, ALL_LAYERS, 0, false},
    {"layers.attn.k_norm.weight", {LAYERS, HEAD}, QK_NORM, ALL_LAYERS, 0, false},
    {"layers.attn.o.weight", {LAYERS, HIDDEN, V_ROWS}, ALWAYS, ALL_LAYERS, 0, true},
    {"layers.attn.o.bias", {LAYERS, HIDDEN}, OUT_BIAS, ALL_LAYERS, 0, false},
    {"layers.mlp_norm.weight", {LAYERS, HIDDEN}, ALWAYS, ALL_LAYERS, 0, false},
    {"layers.mlp_norm.bias", {LAYERS, HIDDEN}, NORM_BIAS, ALL_LAYERS, 0, false},
    {"layers.mlp.gate.weight", {LAYERS, FFN, HIDDEN}, GATED, DENSE, 0, true},
    {"layers.mlp.up.weight", {LAYERS, FFN, HIDDEN}, ALWAYS, DENSE, 0, true},
    {"layers.mlp.gate.bias", {LAYERS, FFN}, MLP_BIAS | GATED, DENSE, 0, false},
    {"layers.mlp.up.bias", {LAYERS, FFN}, MLP_BIAS, DENSE, 0, false},
    {"layers.mlp.down.weight", {LAYERS, HIDDEN, FFN}, ALWAYS, DENSE, 0, true},
    {"layers.mlp.down.bias", {LAYERS, HIDDEN}, MLP_BIAS, DENSE, 0, false},
    {"layers.router.weight", {LAYERS, ROUTED, HIDDEN}, ALWAYS, SPARSE, 0, true},
    {"layers.router.bias", {LAYERS, ROUTED}, BIASED, SPARSE, 0, false},
    {"layers.experts.gate.weight", {LAYERS, EXPERTS, EXPERT_FFN, HIDDEN}, ALWAYS, SPARSE, 0, true},
    {"layers.experts.up.weight", {LAYERS, EXPERTS, EXPERT_FFN, HIDDEN}, ALWAYS, SPARSE, 0, true},
    {"layers.experts.down.weight", {LAYERS, EXPERTS, HIDDEN, EXPERT_FFN}, ALWAYS, SPARSE, 0, true},
    {"layers.shared.gate.weight", {LAYERS, SHARED_FFN, HIDDEN}, SHARED, SPARSE, 0, true},
    {"layers.shared.up.weight", {LAYERS, SHARED_FFN, HIDDEN}, SHARED, SPARSE, 0, true},
    {"layers.shared.down.weight", {LAYERS, HIDDEN, SHARED_FFN}, SHARED, SPARSE, 0, true},
    {"layers.shared.switch.weight", {LAYERS, ONE, HIDDEN}, SWITCH, SPARSE, 0, true},
    {"layers.mtp.norm.weight", {LAYERS, HIDDEN}, ALWAYS, FURTHER, 0, false},
    {"norm.weight", {HIDDEN}, ALWAYS, ALL_LAYERS, RS_STAGE_LAST, false},
    {"norm.bias", {HIDDEN}, NORM_BIAS, ALL_LAYERS, RS_STAGE_LAST, false},
    {"head.weight", {VOCAB, HIDDEN}, UNTIED, ALL_LAYERS, RS_STAGE_LAST, true},
};

/* The switches that hold. */
static unsigned switches_of(const rs_model *model)
{
    bool latent = rs_model_has_mla(model);
    bool low = latent && model->q_rank > 0;
    bool shared = model->shared_ffn > 0;
    return (model->qkv_bias ? QKV_BIAS : 0u) | (model->out_bias ? OUT_BIAS : 0u) |
           (model->mlp_bias ? MLP_BIAS : 0u) | (model->qk_norm ? QK_NORM : 0u) |
           (model->tied ? 0u : UNTIED) | (latent ? LATENT : PLAIN) | (low ? Q_LOW : Q_FULL) |
           (shared ? SHARED : 0u) | (shared && model->shared_gate ? SWITCH : 0u) |
           (model->router_bias ? BIASED : 0u) | (model->layer_norm ? NORM_BIAS : 0u) |
           (model->plain_mlp ? 0u : GATED) | (model->positions > 0 ? POSITIONED : 0u);
}

/* The layers that have a row: where they begin, how many, and, where they do not follow each other,
 * which. */
typedef struct layer_list {
    int64_t first;
    int64_t count;
    bool listed;
    int64_t layers[RS_MODEL_DENSE_LAYERS];
} layer_list;

static void set_range(layer_list *list, int64_t first, int64_t end)
{
    *list = (layer_list){.first = first, .count = end - first};
}

static void list_layers(const rs_model *model, bool sparse, layer_list *list)
{
    list->listed = true;
    list->count = 0;
    for (int64_t l = 0; l < model->layers + model->mtp_layers; l++)
        if (rs_model_has_experts(model, l) == sparse)
            list->layers[list->count++] = l;
    list->first = list->layers[0];
}

static void layers_of(const rs_model *model, span which, layer_list *out)
{
    bool experts = model->experts > 0;
    int64_t all = model->layers + (experts ? model->mtp_layers : 0);
    set_range(out, 0, all);
    switch (which) {
    case ALL_LAYERS:
        return;
    case FURTHER:
        set_range(out, model->layers, all);
        return;
    case DENSE:
    case SPARSE:
        if (experts && rs_model_lists_dense(model))
            list_layers(model, which == SPARSE, out);
        else if (which == DENSE)
            set_range(out, 0, experts ? model->dense_first : all);
        else
            set_range(out, experts ? model->dense_first : all, all);
    }
}

/* The list of layers is lent to the tensor. */
static rs_tensor tensor_of(const rs_model *model, const row *of, const layer_list *layers)
{
    bool latent = rs_model_has_mla(model);
    int64_t value = latent ? model->v_dim : model->head_dim;
    int64_t key_value = model->head_dim - model->rope_dim + model->v_dim;
    const struct {
        int64_t length;
        rs_axis axis;
        int64_t unit;
    } meaning[SYMBOLS] = {
        [LAYERS] = {layers->count, RS_AXIS_LAYER, 0},
        [HIDDEN] = {model->hidden, RS_AXIS_WHOLE, 0},
        [Q_ROWS] = {model->heads * model->head_dim, RS_AXIS_Q_HEAD, model->head_dim},
        [KV_ROWS] = {model->kv_heads * model->head_dim, RS_AXIS_KV_HEAD, model->head_dim},
        [HEAD] = {model->head_dim, RS_AXIS_WHOLE, 0},
        [FFN] = {model->ffn, RS_AXIS_FFN, 0},
        [VOCAB] = {model->vocab, RS_AXIS_VOCAB, 0},
        [ROUTED] = {model->experts, RS_AXIS_WHOLE, 0},
        [EXPERTS] = {model->experts, RS_AXIS_EXPERT, 0},
        [EXPERT_FFN] = {model->expert_ffn, RS_AXIS_FFN, 0},
        [SHARED_FFN] = {model->shared_ffn, RS_AXIS_FFN, 0},
        [ONE] = {1, RS_AXIS_WHOLE, 0},
        [TWO_HIDDEN] = {2 * model->hidden, RS_AXIS_WHOLE, 0},
        [Q_RANK] = {model->q_rank, RS_AXIS_WHOLE, 0},
        [KV_RANK] = {model->kv_rank, RS_AXIS_WHOLE, 0},
        [KV_A_ROWS] = {model->kv_rank + model->rope_dim, RS_AXIS_WHOLE, 0},
        [KV_B_ROWS] = {model->heads * key_value, RS_AXIS_Q_HEAD, key_value},
        [V_ROWS] = {model->heads * value, RS_AXIS_Q_HEAD, value},
        [POSITIONS] = {model->positions, RS_AXIS_WHOLE, 0},
    };
    rs_tensor tensor = {.name = of->name,
        .stage = of->stage,
        .decay = of->decay,
        .kv_group = model->heads / model->kv_heads};
    for (int d = 0; d < 4 && of->dims[d] != NONE; d++) {
        tensor.shape[d] = meaning[of->dims[d]].length;
        tensor.axis[d] = meaning[of->dims[d]].axis;
        tensor.unit[d] = meaning[of->dims[d]].unit;
        tensor.ndim++;
    }
    if (of->dims[0] == LAYERS) {
        tensor.layer_first = layers->first;
        tensor.layers = layers->listed ? layers->layers : NULL;
    }
    /* What predicts further tokens stands in the last layers, and reads them. */
    if (of->dims[0] == VOCAB && tensor.stage == RS_STAGE_FIRST &&
        (model->tied || model->mtp_layers > 0))
        tensor.stage = RS_STAGE_FIRST_AND_LAST;
    return tensor;
}

/* A router's bias that something else than the trainer moves has a value and no more, in float32.
 */
static rs_status set_router_bias(const rs_model *model, rs_space *space)
{
    if (model->router_counts)
        return RS_OK;
    int bias = rs_space_find_tensor(space, "layers.router.bias");
    for (int role = 0; bias >= 0 && role < rs_space_role_count(space); role++)
        RS_TRY(rs_space_set_dtype(space, bias, role, role == 0 ? RS_DTYPE_F32 : RS_DTYPE_NONE));
    return RS_OK;
}

/* What names in checkpoints depend on. */
static rs_status set_facts(const rs_model *model, rs_space *space)
{
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {{"layers", model->layers}, {"hidden", model->hidden}, {"heads", model->heads},
        {"kv_heads", model->kv_heads}, {"head_dim", model->head_dim}, {"experts", model->experts}};
    char text[32];
    RS_TRY(rs_space_set_fact(space, "family", model->family));
    RS_TRY(rs_space_set_fact(space, "tied", model->tied ? "true" : "false"));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(text, sizeof text, "%" PRId64, numbers[i].value);
        RS_TRY(rs_space_set_fact(space, numbers[i].key, text));
    }
    return RS_OK;
}

rs_status rs_model_space(const rs_model *model, rs_dtype dtype, rs_space **out)
{
    return rs_training_space(model, dtype, &(rs_training){0}, out);
}

rs_status rs_training_space(
    const rs_model *model, rs_dtype dtype, const rs_training *training, rs_space **out)
{
    const rs_optimizer *optimizer;
    RS_TRY(rs_training_optimizer(training, &optimizer));
    if (dtype != RS_DTYPE_F32 && dtype != RS_DTYPE_BF16 && dtype != RS_DTYPE_F16)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "parameters of type %s: float32, bfloat16 or float16 is possible",
            rs_dtype_name(dtype));
    rs_status status = rs_model_check_numbers(model, RS_ERR_ARGUMENT);
    if (status != RS_OK)
        return rs_error_context(status, "model %s", model->name);
    rs_space *space;
    layer_list layers;
    unsigned switches = switches_of(model);
    RS_TRY(rs_space_create(&space));
    RS_TRY_GOTO(rs_training_add_roles(space, dtype, optimizer), fail);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        layers_of(model, rows[i].layers, &layers);
        if ((rows[i].when & ~switches) != 0 || (rows[i].layers != ALL_LAYERS && layers.count == 0))
            continue;
        rs_tensor tensor = tensor_of(model, &rows[i], &layers);
        RS_TRY_GOTO(rs_space_add_tensor(space, &tensor, NULL), fail);
    }
    RS_TRY_GOTO(rs_training_set_roles(space, training, optimizer), fail);
    RS_TRY_GOTO(set_router_bias(model, space), fail);
    RS_TRY_GOTO(set_facts(model, space), fail);
    *out = space;
    return RS_OK;
fail:
    rs_space_destroy(space);
    return status;
}
