/*
 * Beginning with the weights of a checkpoint: of any format that reshard reads, under the names of
 * the dialect that is given, or of the built-in one that knows most of them. Every rank reads the
 * boxes that it holds, and rounds or widens them where the types differ. The moments are zero and
 * the steps begin with 1.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "reshard/checkpoint.h"
#include "reshard/move.h"
#include "train/bfloat16.h"
#include "train/save.h"

#define TOLD 5 /* tensors that are left out, by name */

/* The entry of a name: in the wanted role, else as a param. */
static int64_t find(const rs_checkpoint *c, const char *name, const char *role)
{
    int64_t id = rs_checkpoint_find(c, name, role);
    return id >= 0 ? id : rs_checkpoint_find(c, name, "param");
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
static rs_status read_box(const rs_checkpoint *c, int64_t id, const rs_box *inside,
    const rs_box *box, const rs_shard *shard, char *data)
{
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(c, (size_t)id);
    size_t size = rs_dtype_size(shard->dtype), count = (size_t)rs_box_volume(box);
    size_t wide = rs_dtype_size(entry->dtype);
    int64_t packed[RS_MAX_DIMS], at = 0;
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
        status = rs_checkpoint_read(c, (size_t)id, inside, found, count * wide);
    if (status == RS_OK) {
        if (entry->dtype == shard->dtype)
            memcpy(meant, found, count * size);
        else
            convert(entry->dtype, found, shard->dtype, meant, (int64_t)count);
        rs_state_packed(box, size, packed);
        for (int d = 0; d < box->ndim; d++)
            at += (box->offset[d] - shard->box.offset[d]) * shard->stride[d];
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

static rs_status read_own(
    const rs_job *job, const rs_checkpoint *c, const char *role, const rs_shard *shard, char *data)
{
    const rs_tensor *tensor = rs_space_tensor(job->space, shard->tensor);
    char wanted[256];
    int64_t id = find(c, tensor->name, role);
    if (id < 0)
        return rs_error_set(RS_ERR_NOT_FOUND, "the checkpoint has no \"%s\"", tensor->name);
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(c, (size_t)id);
    rs_box whole = rs_box_whole(tensor->ndim, tensor->shape);
    rs_box found = rs_box_whole(entry->ndim, entry->shape);
    if (!rs_box_equal(&whole, &found))
        return wrong_shape(entry, rs_box_format(&whole, wanted, sizeof wanted));
    return read_box(c, id, &shard->box, &shard->box, shard, data);
}

static rs_status read_role(const rs_job *job, const rs_checkpoint *c, int role)
{
    const char *name = rs_space_role(job->space, role)->name;
    rs_shard_list shards = {0};
    rs_status status = rs_placement_shards(job->state.placement, job->rank, role, &shards);
    for (size_t i = 0; i < shards.count && status == RS_OK; i++) {
        const rs_shard *shard = &shards.items[i];
        char *data = rs_memory_shard(rs_state_memory(&job->state), shard);
        status = read_own(job, c, name, shard, data);
    }
    rs_shard_list_fini(&shards);
    return status;
}

/* The checkpoint under the canonical names; `*renamed` stays NULL where it has them. What else is
 * in it is left out, with a warning. */
static rs_status rename_weights(
    const rs_job *job, const rs_checkpoint *checkpoint, rs_checkpoint **renamed)
{
    const char *named = job->options->init_dialect;
    rs_rename_options how = {.space = job->space, .lenient = true};
    rs_dialect *dialect = NULL;
    if (named[0] == '\0' && rs_checkpoint_is_canonical(checkpoint))
        return RS_OK;
    if (named[0] != '\0')
        RS_TRY(rs_dialect_load(named, &dialect));
    how.from = dialect;
    rs_status status = rs_checkpoint_rename(checkpoint, &how, renamed);
    rs_dialect_destroy(dialect);
    RS_TRY(status);
    return RS_OK;
}

/* Rank 0 says what is to be known of the weights. */
static void tell_warnings(rs_job *job, const rs_checkpoint *weights)
{
    size_t count = rs_checkpoint_warning_count(weights);
    for (size_t i = 0; i < count && i < TOLD && job->rank == 0; i++)
        rs_job_notice(job, "%s: %s", job->options->init, rs_checkpoint_warning_at(weights, i));
    if (count > TOLD && job->rank == 0)
        rs_job_notice(job, "%s: and %zu more", job->options->init, count - TOLD);
}

/* Opens what the job begins with; rank 0 compares what several folders have. */
static rs_status open_weights(const rs_job *job, rs_checkpoint **out)
{
    const char *also[sizeof job->options->init_also / 2]; /* no line takes less, with its end */
    rs_checkpoint_options how = {.also = also, .also_proved = job->rank != 0};
    char *list = rs_strdup(job->options->init_also), *rest = list;
    if (list == NULL)
        return rs_error_memory(sizeof job->options->init_also);
    for (char *line; (line = strsep(&rest, "\n")) != NULL;)
        if (line[0] != '\0')
            also[how.also_count++] = line;
    rs_status status = rs_checkpoint_open(job->options->init, &how, out);
    free(list);
    return status;
}

rs_status rs_init_state(rs_job *job)
{
    rs_checkpoint *checkpoint = NULL, *renamed = NULL;
    const rs_roles *roles = &job->state.roles;
    if (!job->state.holds)
        return RS_OK;
    RS_TRY(open_weights(job, &checkpoint));
    rs_status status = RS_OK;
    if (job->rank == 0)
        status = rs_checkpoint_check_replicas(checkpoint, "param");
    if (status == RS_OK)
        status = rename_weights(job, checkpoint, &renamed);
    const rs_checkpoint *weights = renamed != NULL ? renamed : checkpoint;
    if (status == RS_OK)
        tell_warnings(job, weights);
    if (status == RS_OK)
        status = read_role(job, weights, roles->param);
    if (status == RS_OK && roles->master >= 0)
        status = read_role(job, weights, roles->master);
    if (status != RS_OK)
        rs_error_context(status, "%s", job->options->init);
    rs_checkpoint_close(renamed);
    rs_checkpoint_close(checkpoint);
    return status;
}
