/*
 * Beginning with the weights of a checkpoint: of any format that reshard reads, under the trainer's
 * own names or those of Hugging Face. Every rank reads the boxes that it holds, and rounds or
 * widens them where the types differ. The moments are zero and the steps begin with 1.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "reshard/checkpoint.h"
#include "reshard/dialect.h"
#include "reshard/move.h"
#include "train/bfloat16.h"
#include "train/save.h"

typedef struct source {
    rs_checkpoint *checkpoint;
    const rs_dialect *dialect;
    rs_foreign_list foreign; /* empty where the checkpoint has the trainer's own names */
} source;

/* The entry of a name: in the wanted role, else as a param. */
static int64_t find(const source *s, const char *name, const char *role)
{
    int64_t id = rs_checkpoint_find(s->checkpoint, name, role);
    return id >= 0 ? id : rs_checkpoint_find(s->checkpoint, name, "param");
}

static float float_at(rs_dtype dtype, const void *data, int64_t i)
{
    return dtype == RS_DTYPE_F32 ? ((const float *)data)[i]
                                 : rs_bf16_to_float(((const uint16_t *)data)[i]);
}

/* `count` elements from one type to another, each float32 or bfloat16. */
static void convert(rs_dtype from, const void *in, rs_dtype to, void *out, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float value = float_at(from, in, i);
        if (to == RS_DTYPE_F32)
            ((float *)out)[i] = value;
        else
            ((uint16_t *)out)[i] = rs_bf16_from_float(value);
    }
}

/* Reads box `inside` of entry `id`, which is `box` of the shard's tensor. */
static rs_status read_box(const source *s, int64_t id, const rs_box *inside, const rs_box *box,
    const rs_shard *shard, char *data)
{
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(s->checkpoint, (size_t)id);
    size_t size = rs_dtype_size(shard->dtype), count = (size_t)rs_box_volume(box);
    size_t wide = rs_dtype_size(entry->dtype);
    int64_t packed[RS_MAX_DIMS], step = (int64_t)size, at = 0;
    if (entry->dtype != shard->dtype &&
        ((entry->dtype != RS_DTYPE_F32 && entry->dtype != RS_DTYPE_BF16)))
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "%s of \"%s\": is %s; wanted %s, bfloat16 or "
            "float32",
            entry->role, entry->name, rs_dtype_name(entry->dtype), rs_dtype_name(shard->dtype));
    char *found = rs_calloc(count, wide), *meant = rs_calloc(count, size);
    rs_status status = RS_OK;
    if (found == NULL || meant == NULL)
        status = rs_error_memory(count * (size + wide));
    else
        status = rs_checkpoint_read(s->checkpoint, (size_t)id, inside, found, count * wide);
    if (status == RS_OK) {
        if (entry->dtype == shard->dtype)
            memcpy(meant, found, count * size);
        else
            convert(entry->dtype, found, shard->dtype, meant, (int64_t)count);
        for (int d = box->ndim - 1; d >= 0; d--) {
            packed[d] = step;
            step *= box->extent[d];
            at += (box->offset[d] - shard->box.offset[d]) * shard->stride[d];
        }
        rs_move_box(box->ndim, box->extent, size, data + at, shard->stride, meant, packed);
    }
    free(found);
    free(meant);
    return status;
}

static rs_status wrong_shape(const rs_checkpoint_entry *entry, const char *wanted)
{
    char found[256];
    rs_box whole = rs_box_whole(entry->ndim, entry->shape);
    return rs_error_set(RS_ERR_MISMATCH, "%s of \"%s\": wanted the shape %s, found %s", entry->role,
        entry->name, wanted, rs_box_format(&whole, found, sizeof found));
}

/* The parts of a shard that foreign tensors hold; a foreign tensor lacks leading dimensions of
 * which it has one index. */
static rs_status read_foreign(const source *s, const char *role, const rs_shard *shard, char *data)
{
    for (size_t i = 0; i < s->foreign.count; i++) {
        const rs_foreign *f = &s->foreign.items[i];
        rs_box both, inside, whole = rs_box_whole(f->ndim, f->shape);
        char wanted[256];
        if (f->tensor != shard->tensor || !rs_box_intersect(&f->box, &shard->box, &both))
            continue;
        int64_t id = find(s, f->name, role);
        if (id < 0)
            return rs_error_set(RS_ERR_NOT_FOUND, "the checkpoint has no \"%s\"", f->name);
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(s->checkpoint, (size_t)id);
        rs_box found = rs_box_whole(entry->ndim, entry->shape);
        if (!rs_box_equal(&whole, &found))
            return wrong_shape(entry, rs_box_format(&whole, wanted, sizeof wanted));
        int lacks = both.ndim - f->ndim;
        inside = whole;
        for (int d = 0; d < f->ndim; d++) {
            inside.offset[d] = both.offset[d + lacks] - f->box.offset[d + lacks];
            inside.extent[d] = both.extent[d + lacks];
        }
        RS_TRY(read_box(s, id, &inside, &both, shard, data));
    }
    return RS_OK;
}

static rs_status read_own(
    const rs_job *job, const source *s, const char *role, const rs_shard *shard, char *data)
{
    const rs_tensor *tensor = rs_space_tensor(job->space, shard->tensor);
    char wanted[256];
    int64_t id = find(s, tensor->name, role);
    if (id < 0)
        return rs_error_set(RS_ERR_NOT_FOUND, "the checkpoint has no \"%s\"", tensor->name);
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(s->checkpoint, (size_t)id);
    rs_box whole = rs_box_whole(tensor->ndim, tensor->shape);
    rs_box found = rs_box_whole(entry->ndim, entry->shape);
    if (!rs_box_equal(&whole, &found))
        return wrong_shape(entry, rs_box_format(&whole, wanted, sizeof wanted));
    return read_box(s, id, &shard->box, &shard->box, shard, data);
}

static rs_status read_role(const rs_job *job, const source *s, int role)
{
    const char *name = rs_space_role(job->space, role)->name;
    rs_shard_list shards = {0};
    rs_status status = rs_placement_shards(job->state.placement, job->rank, role, &shards);
    for (size_t i = 0; i < shards.count && status == RS_OK; i++) {
        const rs_shard *shard = &shards.items[i];
        char *data = rs_memory_shard(rs_state_memory(&job->state), shard);
        status = s->foreign.count > 0 ? read_foreign(s, name, shard, data)
                                      : read_own(job, s, name, shard, data);
    }
    rs_shard_list_fini(&shards);
    return status;
}

/* Whose names the checkpoint has, told by the embedding's. */
static rs_status choose_names(const rs_job *job, source *s)
{
    if (find(s, rs_space_tensor(job->space, 0)->name, "param") >= 0)
        return RS_OK;
    RS_TRY(rs_dialect_get("hf", &s->dialect));
    return rs_dialect_list(s->dialect, job->space, &s->foreign);
}

rs_status rs_init_state(rs_job *job)
{
    source s = {0};
    const rs_roles *roles = &job->state.roles;
    if (!job->state.holds)
        return RS_OK;
    RS_TRY(rs_checkpoint_open(job->options->init, NULL, &s.checkpoint));
    rs_status status = choose_names(job, &s);
    if (status == RS_OK)
        status = read_role(job, &s, roles->param);
    if (status == RS_OK && roles->master >= 0)
        status = read_role(job, &s, roles->master);
    if (status != RS_OK)
        rs_error_context(status, "%s", job->options->init);
    rs_foreign_list_fini(&s.foreign);
    rs_checkpoint_close(s.checkpoint);
    return status;
}
