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
};

static const row end_rows[] = {
    {"embed.weight", offsetof(rs_stage_tensors, embed)},
    {"norm.weight", offsetof(rs_stage_tensors, norm)},
    {"head.weight", offsetof(rs_stage_tensors, head)},
};

/* The range of units (heads, rows) of axis `dim` of a tensor. */
static void units(const rs_space *space, const rs_world *world, const char *name, int dim,
    int64_t *begin, int64_t *end)
{
    const rs_tensor *tensor = rs_space_tensor(space, rs_space_find_tensor(space, name));
    int64_t unit = rs_max64(1, tensor->unit[dim]);
    rs_layout_tp_range(&world->layout, tensor, dim, world->at.tp, begin, end);
    *begin /= unit;
    *end /= unit;
}

void rs_bind_shape(
    const rs_model *model, const rs_space *space, const rs_world *world, rs_stage_shape *out)
{
    memset(out, 0, sizeof *out);
    out->model = *model;
    rs_layout_stage_layers(
        &world->layout, model->layers, world->at.pp, &out->layer_begin, &out->layer_end);
    out->first = world->at.pp == 0;
    out->last = world->at.pp == world->layout.pp - 1;
    units(space, world, "layers.attn.q.weight", 1, &out->q_begin, &out->q_end);
    units(space, world, "layers.attn.k.weight", 1, &out->kv_begin, &out->kv_end);
    units(space, world, "layers.mlp.gate.weight", 1, &out->ffn_begin, &out->ffn_end);
    units(space, world, "embed.weight", 0, &out->vocab_begin, &out->vocab_end);
}

static float **member(const rs_tensor *tensor, const rs_shard *shard, const rs_stage_shape *shape,
    rs_stage_tensors *out)
{
    for (size_t i = 0; i < sizeof layer_rows / sizeof *layer_rows; i++)
        if (strcmp(tensor->name, layer_rows[i].name) == 0)
            return (
                float **)(void *)((char *)&out->layers[shard->box.offset[0] - shape->layer_begin] +
                                  layer_rows[i].offset);
    for (size_t i = 0; i < sizeof end_rows / sizeof *end_rows; i++)
        if (strcmp(tensor->name, end_rows[i].name) == 0)
            return (float **)(void *)((char *)out + end_rows[i].offset);
    return NULL;
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

rs_status rs_bind_tensors(const rs_state *state, const rs_stage_shape *shape,
    rs_stage_tensors *tensors, rs_binding_list *out)
{
    rs_shard_list shards = {0};
    rs_status status;
    RS_TRY_GOTO(rs_placement_shards(state->whole, state->rank, -1, &shards), done);
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *s = &shards.items[i];
        const rs_tensor *tensor = rs_space_tensor(state->space, s->tensor);
        rs_binding binding = {member(tensor, s, shape, tensors), s->tensor, 0, -1};
        if (binding.member == NULL) {
            status = rs_error_set(
                RS_ERR_UNSUPPORTED, "the trainer does not know the tensor %s", tensor->name);
            goto done;
        }
        RS_TRY_GOTO(
            rs_state_parts(state, state->rank, s->tensor, &s->box, bind_part, &binding), done);
        RS_TRY_GOTO(RS_LIST_RESERVE_ONE(out), done);
        out->items[out->count++] = binding;
    }
done:
    rs_shard_list_fini(&shards);
    return status;
}
