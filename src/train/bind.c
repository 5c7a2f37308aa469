/*
 * Names and addresses. The placement says where each local box lies; this table says which member
 * of the stage's structures a canonical tensor is. Nothing else in the trainer knows tensor names
 * but the shared gradients (trainer.c) and the initial weights (init.c).
 */
#include "train/bind.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

typedef struct row {
    const char *name;
    size_t offset;
} row;

static const row layer_rows[] = {
    {"layers.attn_norm.weight", offsetof(rs_stage_layer, attn_norm)},
    {"layers.attn.q.weight", offsetof(rs_stage_layer, q)},
    {"layers.attn.k.weight", offsetof(rs_stage_layer, k)},
    {"layers.attn.v.weight", offsetof(rs_stage_layer, v)},
    {"layers.attn.q.bias", offsetof(rs_stage_layer, q_bias)},
    {"layers.attn.k.bias", offsetof(rs_stage_layer, k_bias)},
    {"layers.attn.v.bias", offsetof(rs_stage_layer, v_bias)},
    {"layers.attn.q_norm.weight", offsetof(rs_stage_layer, q_norm)},
    {"layers.attn.k_norm.weight", offsetof(rs_stage_layer, k_norm)},
    {"layers.attn.o.weight", offsetof(rs_stage_layer, o)},
    {"layers.attn.o.bias", offsetof(rs_stage_layer, o_bias)},
    {"layers.mlp_norm.weight", offsetof(rs_stage_layer, mlp_norm)},
    {"layers.mlp.gate.weight", offsetof(rs_stage_layer, gate)},
    {"layers.mlp.up.weight", offsetof(rs_stage_layer, up)},
    {"layers.mlp.down.weight", offsetof(rs_stage_layer, down)},
    {"layers.mlp.gate.bias", offsetof(rs_stage_layer, gate_bias)},
    {"layers.mlp.up.bias", offsetof(rs_stage_layer, up_bias)},
    {"layers.mlp.down.bias", offsetof(rs_stage_layer, down_bias)},
    {"layers.router.weight", offsetof(rs_stage_layer, router)},
    {"layers.router.bias", offsetof(rs_stage_layer, router_bias)},
    {"layers.experts.gate.weight", offsetof(rs_stage_layer, expert_gate)},
    {"layers.experts.up.weight", offsetof(rs_stage_layer, expert_up)},
    {"layers.experts.down.weight", offsetof(rs_stage_layer, expert_down)},
    {"layers.shared.gate.weight", offsetof(rs_stage_layer, shared_gate)},
    {"layers.shared.up.weight", offsetof(rs_stage_layer, shared_up)},
    {"layers.shared.down.weight", offsetof(rs_stage_layer, shared_down)},
    {"layers.shared.switch.weight", offsetof(rs_stage_layer, shared_switch)},
};

static const row end_rows[] = {
    {"embed.weight", offsetof(rs_stage_tensors, embed)},
    {"norm.weight", offsetof(rs_stage_tensors, norm)},
    {"head.weight", offsetof(rs_stage_tensors, head)},
};

/* The range of units (heads, rows) of axis `dim` of a tensor that number `part` of tp, or of etp,
 * has; empty where the model has no such tensor. */
static void units(const rs_space *space, const rs_world *world, const char *name, int dim, int part,
    int64_t *begin, int64_t *end)
{
    int number = rs_space_find_tensor(space, name);
    *begin = *end = 0;
    if (number < 0)
        return;
    const rs_tensor *tensor = rs_space_tensor(space, number);
    int64_t unit = rs_max64(1, tensor->unit[dim]);
    rs_layout_tp_range(&world->layout, tensor, dim, part, begin, end);
    *begin /= unit;
    *end /= unit;
}

void rs_bind_shape(const rs_model *model, const rs_space *space, const rs_world *world, int chunk,
    rs_stage_shape *out)
{
    const rs_layout *layout = &world->layout;
    int stage = chunk * layout->pp + world->at.pp;
    memset(out, 0, sizeof *out);
    out->model = *model;
    rs_layout_stage_layers(layout, model->layers, stage, &out->layer_begin, &out->layer_end);
    out->first = stage == 0;
    out->last = stage == layout->pp * layout->vpp - 1;
    out->both_ends = layout->pp == 1;
    int tp = out->tp_rank = world->at.tp;
    out->tp_ranks = layout->tp;
    out->cp_rank = world->at.cp;
    out->cp_ranks = layout->cp;
    out->sp = layout->sp;
    units(space, world, "layers.attn.q.weight", 1, tp, &out->q_begin, &out->q_end);
    units(space, world, "layers.attn.k.weight", 1, tp, &out->kv_begin, &out->kv_end);
    units(space, world, "layers.mlp.gate.weight", 1, tp, &out->ffn_begin, &out->ffn_end);
    units(space, world, "embed.weight", 0, tp, &out->vocab_begin, &out->vocab_end);
}

void rs_bind_experts(
    const rs_space *space, const rs_world *world, int64_t *ranges, rs_stage_shape *out)
{
    const rs_layout *layout = &world->layout;
    const rs_coords *at = &world->at;
    const char *gate = "layers.experts.gate.weight";
    const rs_tensor *experts = rs_space_tensor(space, rs_space_find_tensor(space, gate));
    units(
        space, world, "layers.shared.gate.weight", 1, at->tp, &out->shared_begin, &out->shared_end);
    units(space, world, gate, 2, at->etp, &out->expert_begin, &out->expert_end);
    for (int ep = 0; ep < layout->ep; ep++)
        rs_layout_ep_range(layout, experts, 1, ep, &ranges[ep], &ranges[layout->ep + ep]);
    out->dispatch = (rs_dispatch_shape){out->model.experts, rs_layout_etp(layout), layout->ep,
        at->etp, at->ep, ranges, ranges + layout->ep};
}

/* The chunk that has layer `layer` of the model. */
static rs_chunk *chunk_of_layer(rs_chunk *chunks, int count, int64_t layer)
{
    for (int c = 0; c < count; c++)
        if (layer >= chunks[c].shape.layer_begin && layer < chunks[c].shape.layer_end)
            return &chunks[c];
    return NULL;
}

/* What stands at an end of the model is the first or the last chunk's, a tied embedding both's. */
static bool has_end(const rs_chunk *chunk, const rs_tensor *tensor)
{
    switch (tensor->stage) {
    case RS_STAGE_FIRST:
        return chunk->shape.first;
    case RS_STAGE_LAST:
        return chunk->shape.last;
    default:
        return chunk->shape.first || chunk->shape.last;
    }
}

static const row *find_row(const row *rows, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(name, rows[i].name) == 0)
            return &rows[i];
    return NULL;
}

static float **member_of(void *structure, const row *of)
{
    return (float **)(void *)((char *)structure + of->offset);
}

void rs_binding_list_fini(rs_binding_list *list)
{
    free(list->items);
    memset(list, 0, sizeof *list);
}

/* A box begins with its first part. */
static rs_status bind_part(void *context, const rs_box *part, int block, int64_t position)
{
    rs_binding *binding = context;
    (void)part;
    if (binding->position < 0) {
        binding->block = block;
        binding->position = position;
    }
    return RS_OK;
}

/* The members that a shard is. */
static rs_status bind_shard(rs_chunk *chunks, int chunk_count, bool gradients,
    const rs_tensor *tensor, const rs_shard *shard, rs_binding binding, rs_binding_list *out)
{
    const row *layer = find_row(layer_rows, sizeof layer_rows / sizeof *layer_rows, tensor->name);
    const row *end = find_row(end_rows, sizeof end_rows / sizeof *end_rows, tensor->name);
    size_t before = out->count;
    int64_t number = layer != NULL ? rs_tensor_layer(tensor, shard->box.offset[0]) : 0;
    rs_chunk *owner = layer != NULL ? chunk_of_layer(chunks, chunk_count, number) : NULL;
    for (int c = 0; c < chunk_count; c++) {
        rs_chunk *chunk = &chunks[c];
        rs_stage_tensors *tensors = gradients ? &chunk->gradients : &chunk->weights;
        if (layer != NULL ? chunk != owner : end == NULL || !has_end(chunk, tensor))
            continue;
        binding.member = layer != NULL
                             ? member_of(&tensors->layers[number - chunk->shape.layer_begin], layer)
                             : member_of(tensors, end);
        RS_TRY(RS_LIST_RESERVE_ONE(out));
        out->items[out->count++] = binding;
    }
    if (out->count == before)
        return rs_error_set(
            RS_ERR_UNSUPPORTED, "the trainer does not know the tensor %s", tensor->name);
    return RS_OK;
}

rs_status rs_bind_tensors(
    const rs_state *state, rs_chunk *chunks, int chunk_count, bool gradients, rs_binding_list *out)
{
    rs_shard_list shards = {0};
    rs_status status;
    RS_TRY_GOTO(rs_placement_shards(state->whole, state->rank, -1, &shards), done);
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *s = &shards.items[i];
        const rs_tensor *tensor = rs_space_tensor(state->space, s->tensor);
        rs_binding binding = {NULL, s->tensor, 0, -1};
        RS_TRY_GOTO(
            rs_state_parts(state, state->rank, s->tensor, &s->box, bind_part, &binding), done);
        RS_TRY_GOTO(bind_shard(chunks, chunk_count, gradients, tensor, s, binding, out), done);
    }
done:
    rs_shard_list_fini(&shards);
    return status;
}
