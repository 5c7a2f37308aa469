/*
 * Loading any checkpoint into a rank's memory, under any layout.
 *
 * A shard is a box of a tensor in a role, and so is what a checkpoint is read by: the shard's box
 * is read in parts, straight into the memory where it lies there as one run, else through a buffer.
 * Which files and ranks the bytes come from is the catalog's to know.
 */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "ckpt/checkpoint.h"
#include "ckpt/logical.h"
#include "reshard/move.h"

#define BUFFER ((int64_t)4 << 20)

static rs_status unlike(
    const rs_checkpoint_entry *entry, const rs_tensor *tensor, rs_dtype dtype, bool shape)
{
    char wanted[256], found[256], flat[RS_FLAT_HINT];
    rs_box a = rs_box_whole(tensor->ndim, tensor->shape);
    rs_box b = rs_box_whole(entry->ndim, entry->shape);
    if (shape)
        return rs_error_set(RS_ERR_MISMATCH, "%s of \"%s\": wanted %s, the checkpoint has %s%s",
            entry->role, entry->name, rs_box_format(&a, wanted, sizeof wanted),
            rs_box_format(&b, found, sizeof found),
            rs_logical_flat_hint(entry->ndim, entry->shape, tensor->ndim, tensor->shape, flat));
    return rs_error_set(RS_ERR_MISMATCH, "%s of \"%s\": wanted %s, the checkpoint has %s",
        entry->role, entry->name, rs_dtype_name(dtype), rs_dtype_name(entry->dtype));
}

/* Byte strides of a packed box; true if the shard lies so in its memory. */
static bool is_packed(const rs_shard *shard, const rs_box *box, int64_t *packed)
{
    int64_t step = (int64_t)rs_dtype_size(shard->dtype);
    bool same = true;
    for (int d = box->ndim - 1; d >= 0; d--) {
        packed[d] = step;
        same = same && (box->extent[d] == 1 || shard->stride[d] == step);
        step *= box->extent[d];
    }
    return same;
}

static rs_status load_shard(
    const rs_checkpoint *checkpoint, size_t index, const rs_shard *shard, char *data, char *buffer)
{
    int64_t size = (int64_t)rs_dtype_size(shard->dtype), packed[RS_MAX_DIMS];
    int64_t volume = rs_box_is_empty(&shard->box) ? 0 : rs_box_volume(&shard->box);
    if (is_packed(shard, &shard->box, packed))
        return rs_checkpoint_read(checkpoint, index, &shard->box, data, (size_t)(volume * size));
    int64_t step = BUFFER / size;
    for (int64_t at = 0; at < volume; at += step) {
        rs_box parts[2 * RS_MAX_DIMS];
        int count = rs_box_linear_range(&shard->box, at, rs_min64(at + step, volume), parts);
        for (int i = 0; i < count; i++) {
            int64_t to = 0;
            is_packed(shard, &parts[i], packed);
            RS_TRY(rs_checkpoint_read(
                checkpoint, index, &parts[i], buffer, (size_t)(rs_box_volume(&parts[i]) * size)));
            for (int d = 0; d < parts[i].ndim; d++)
                to += (parts[i].offset[d] - shard->box.offset[d]) * shard->stride[d];
            rs_move_box(parts[i].ndim, parts[i].extent, (size_t)size, data + to, shard->stride,
                buffer, packed);
        }
    }
    return RS_OK;
}

rs_status rs_checkpoint_load(const rs_checkpoint *checkpoint, const rs_placement *placement,
    int holder, const rs_memory *memory, int64_t *bytes)
{
    const rs_space *space = rs_placement_space(placement);
    rs_shard_list shards = {0};
    int64_t all = 0;
    rs_status status;
    char *buffer = rs_calloc((size_t)BUFFER, 1);
    if (buffer == NULL)
        return rs_error_memory((size_t)BUFFER);
    RS_TRY_GOTO(rs_placement_shards(placement, holder, -1, &shards), out);
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *shard = &shards.items[i];
        const rs_tensor *tensor = rs_space_tensor(space, shard->tensor);
        const char *role = rs_space_role(space, shard->role)->name;
        char *data = rs_memory_shard(memory, shard);
        int64_t index = rs_checkpoint_find(checkpoint, tensor->name, role);
        if (index < 0 || data == NULL)
            RS_TRY_GOTO(rs_error_set(index < 0 ? RS_ERR_NOT_FOUND : RS_ERR_ARGUMENT,
                            index < 0 ? "the checkpoint has no %s of \"%s\""
                                      : "the memory has no room for %s of \"%s\"",
                            role, tensor->name),
                out);
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)index);
        bool shape =
            entry->ndim != tensor->ndim ||
            memcmp(entry->shape, tensor->shape, sizeof *entry->shape * (size_t)entry->ndim) != 0;
        if (shape || entry->dtype != shard->dtype)
            RS_TRY_GOTO(unlike(entry, tensor, shard->dtype, shape), out);
        RS_TRY_GOTO(load_shard(checkpoint, (size_t)index, shard, data, buffer), out);
        all += rs_box_volume(&shard->box) * (int64_t)rs_dtype_size(shard->dtype);
    }
    if (bytes != NULL)
        *bytes = all;
out:
    rs_shard_list_fini(&shards);
    free(buffer);
    return status;
}
