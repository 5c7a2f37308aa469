/*
 * Loading a native checkpoint into a rank's memory.
 *
 * A checkpoint is a placement whose holders are files: each shard of the target is met with the
 * pieces of its tensor and role, and what they share is read from where it lies in the file to
 * where it belongs in memory. Dimensions that are contiguous on both sides are merged; what is left
 * is one read a run, of exactly its bytes: a rank reads as many bytes as its shards have, whatever
 * the layouts, and no scratch memory is needed.
 */
#include "reshard/native.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/cast.h"
#include "ckpt/format.h"
#include "ckpt/native_names.h"
#include "reshard/certificate.h"

struct rs_native {
    rs_catalog *catalog;
};

/* ---- opening ---- */

rs_status rs_native_open(const char *path, rs_native **out)
{
    static const rs_checkpoint_options options = {.format = "native"};
    rs_native *native = rs_calloc(1, sizeof *native);
    if (native == NULL)
        return rs_error_memory(sizeof *native);
    rs_status status = rs_format_open(path, &options, &native->catalog);
    if (status != RS_OK) {
        free(native);
        return status;
    }
    *out = native;
    return RS_OK;
}

rs_status rs_native_open_step(const char *folder, int64_t step, rs_native **out)
{
    char name[RS_NATIVE_NAME], *path;
    RS_TRY(rs_path_join(folder, rs_native_step_name(step, name), &path));
    rs_status status = rs_native_open(path, out);
    if (status == RS_OK && rs_native_step(*out) != step) {
        status = rs_error_set(RS_ERR_MALFORMED, "%s: its manifest is of step %lld", path,
            (long long)rs_native_step(*out));
        rs_native_close(*out);
        *out = NULL;
    }
    free(path);
    return status;
}

void rs_native_close(rs_native *native)
{
    if (native == NULL)
        return;
    rs_catalog_destroy(native->catalog);
    free(native);
}

int64_t rs_native_step(const rs_native *native)
{
    return json_integer_value(json_object_get(native->catalog->extras, "step"));
}

const char *rs_native_layout(const rs_native *native)
{
    return native->catalog->layout;
}

rs_status rs_native_extras(const rs_native *native, char **out)
{
    *out = json_dumps(
        json_object_get(native->catalog->extras, "extras"), JSON_COMPACT | JSON_REAL_PRECISION(17));
    return *out != NULL ? RS_OK : rs_error_memory(1);
}

/* ---- does it fit ---- */

static rs_status fits(const rs_native *native, const rs_tensor *tensor, const char *role,
    rs_dtype dtype, size_t *matched)
{
    int id = rs_catalog_find(native->catalog, tensor->name, role);
    if (dtype == RS_DTYPE_NONE)
        return RS_OK;
    if (id < 0)
        return rs_error_set(
            RS_ERR_MISMATCH, "the checkpoint has no %s of \"%s\"", role, tensor->name);
    const rs_checkpoint_entry *entry = &rs_catalog_get(native->catalog, id)->is;
    if (entry->dtype != dtype)
        return rs_error_set(RS_ERR_MISMATCH, "%s of \"%s\": wanted %s, the checkpoint has %s", role,
            tensor->name, rs_dtype_name(dtype), rs_dtype_name(entry->dtype));
    rs_box wanted = rs_box_whole(tensor->ndim, tensor->shape);
    rs_box found = rs_box_whole(entry->ndim, entry->shape);
    if (!rs_box_equal(&wanted, &found)) {
        char a[256], b[256];
        return rs_error_set(RS_ERR_MISMATCH, "\"%s\": wanted %s, the checkpoint has %s",
            tensor->name, rs_box_format(&wanted, a, sizeof a), rs_box_format(&found, b, sizeof b));
    }
    ++*matched;
    return RS_OK;
}

/* What a checkpoint from elsewhere says twice, and the job once: the step of single tensors, which
 * is that of the checkpoint, and masters of float32 params, which are the params. */
static rs_status check_said_twice(const rs_native *native, const rs_space *space, int id, bool *is)
{
    const rs_checkpoint_entry *entry = &rs_catalog_get(native->catalog, id)->is;
    int param = rs_catalog_find(native->catalog, entry->name, "param");
    int master = rs_space_find_role(space, "master");
    rs_box whole = rs_box_whole(entry->ndim, entry->shape);
    char text[256];
    *is = false;
    if (strcmp(entry->role, "step") == 0 && !rs_box_is_empty(&whole) &&
        rs_box_volume(&whole) == 1) {
        unsigned char one[16];
        RS_TRY(rs_catalog_read(native->catalog, id, -1, &whole, one));
        *is = rs_cast_element(entry->dtype, one, 0) == (double)rs_native_step(native);
    } else if (strcmp(entry->role, "master") == 0 && master < 0 && param >= 0 &&
               entry->dtype == RS_DTYPE_F32 &&
               rs_catalog_get(native->catalog, param)->is.dtype == RS_DTYPE_F32) {
        RS_TRY(rs_catalog_same(native->catalog, id, param, is, text, sizeof text));
        if (!*is)
            return rs_error_set(RS_ERR_MISMATCH,
                "\"%s\": the job has its param alone, of float32, and the checkpoint a master that "
                "is another: %s",
                entry->name, text);
    }
    return RS_OK;
}

rs_status rs_native_fits(const rs_native *native, const rs_space *space, int part, int parts)
{
    size_t matched = 0;
    for (int t = 0; t < rs_space_tensor_count(space); t++)
        for (int r = 0; r < rs_space_role_count(space); r++)
            RS_TRY(fits(native, rs_space_tensor(space, t), rs_space_role(space, r)->name,
                rs_space_dtype(space, t, r), &matched));
    for (size_t i = 0; i < native->catalog->entries.count; i++) {
        const rs_checkpoint_entry *entry = &rs_catalog_get(native->catalog, (int)i)->is;
        bool twice = false;
        if (matched == native->catalog->entries.count || (int)(i % (size_t)parts) != part ||
            (rs_space_find_tensor(space, entry->name) >= 0 &&
                rs_space_find_role(space, entry->role) >= 0))
            continue;
        RS_TRY(check_said_twice(native, space, (int)i, &twice));
        if (!twice)
            return rs_error_set(RS_ERR_MISMATCH,
                "the checkpoint has %s of \"%s\", which the job does not", entry->role,
                entry->name);
    }
    return RS_OK;
}

/* ---- reading ---- */

typedef struct region {
    int ndim;
    int64_t extent[RS_MAX_DIMS];
    int64_t from[RS_MAX_DIMS]; /* byte strides in the file */
    int64_t to[RS_MAX_DIMS];   /* byte strides in memory */
} region;

/* Adds a dimension inside the others, merged with the last where both sides allow. */
static void add_dim(region *r, int64_t extent, int64_t from, int64_t to)
{
    int last = r->ndim - 1;
    if (extent == 1)
        return;
    if (last >= 0 && r->from[last] == from * extent && r->to[last] == to * extent) {
        r->extent[last] *= extent;
        r->from[last] = from;
        r->to[last] = to;
        return;
    }
    r->extent[r->ndim] = extent;
    r->from[r->ndim] = from;
    r->to[r->ndim++] = to;
}

static rs_status read_region(
    rs_files *files, int file, const region *r, int dim, int64_t element, int64_t at, char *to)
{
    bool run = dim == r->ndim - 1 && r->from[dim] == element && r->to[dim] == element;
    if (dim == r->ndim)
        return rs_files_read(files, file, at, to, (size_t)element);
    if (run)
        return rs_files_read(files, file, at, to, (size_t)(element * r->extent[dim]));
    for (int64_t i = 0; i < r->extent[dim]; i++)
        RS_TRY(read_region(
            files, file, r, dim + 1, element, at + i * r->from[dim], to + i * r->to[dim]));
    return RS_OK;
}

static rs_status load_shard(
    const rs_catalog *catalog, int id, const rs_shard *shard, char *data, int64_t *bytes)
{
    const rs_catalog_entry *entry = rs_catalog_get(catalog, id);
    int64_t element = (int64_t)rs_dtype_size(shard->dtype);
    for (size_t i = 0; i < entry->piece_count; i++) {
        rs_piece piece = rs_catalog_piece_at(catalog, entry->first_piece + i);
        rs_box both;
        if (piece.copy != 0 || !rs_box_intersect(&piece.box, &shard->box, &both))
            continue;
        region r = {0};
        int64_t at = piece.offset, to = 0;
        for (int d = 0; d < both.ndim; d++) {
            add_dim(&r, both.extent[d], piece.stride[d], shard->stride[d]);
            at += (both.offset[d] - piece.box.offset[d]) * piece.stride[d];
            to += (both.offset[d] - shard->box.offset[d]) * shard->stride[d];
        }
        rs_status status = read_region(catalog->files, piece.file, &r, 0, element, at, data + to);
        if (status != RS_OK)
            return rs_error_context(status, "%s of \"%s\"", entry->is.role, entry->is.name);
        *bytes += rs_box_volume(&both) * element;
    }
    return RS_OK;
}

rs_status rs_native_load(const rs_native *native, const rs_placement *placement, int holder,
    const rs_memory *memory, int64_t *bytes)
{
    const rs_space *space = rs_placement_space(placement);
    rs_shard_list shards = {0};
    int64_t total = 0;
    rs_status status;
    RS_TRY_GOTO(rs_placement_shards(placement, holder, -1, &shards), out);
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *shard = &shards.items[i];
        const rs_tensor *tensor = rs_space_tensor(space, shard->tensor);
        const char *role = rs_space_role(space, shard->role)->name;
        int id = rs_catalog_find(native->catalog, tensor->name, role);
        char *data = rs_memory_shard(memory, shard);
        if (id < 0 || data == NULL)
            RS_TRY_GOTO(rs_error_set(RS_ERR_MISMATCH,
                            id < 0 ? "the checkpoint has no %s of \"%s\""
                                   : "the memory has no room for %s of \"%s\"",
                            role, tensor->name),
                out);
        RS_TRY_GOTO(load_shard(native->catalog, id, shard, data, &total), out);
    }
    if (bytes != NULL)
        *bytes = total;
out:
    rs_shard_list_fini(&shards);
    return status;
}

rs_status rs_native_words(const rs_native *native, const rs_space *space, uint64_t *words)
{
    const json_t *sums = json_object_get(native->catalog->extras, "sums");
    size_t pairs = (size_t)rs_space_tensor_count(space) * (size_t)rs_space_role_count(space);
    size_t stride = rs_sums_word_count(space) / (pairs > 0 ? pairs : 1), at = 0;
    memset(words, 0, rs_sums_word_count(space) * sizeof *words);
    for (int t = 0; t < rs_space_tensor_count(space); t++) {
        for (int r = 0; r < rs_space_role_count(space); r++, at += stride) {
            const char *sum = json_string_value(
                json_object_get(json_object_get(sums, rs_space_tensor(space, t)->name),
                    rs_space_role(space, r)->name));
            if (sum == NULL && rs_space_dtype(space, t, r) == RS_DTYPE_NONE)
                continue;
            if (sum == NULL ||
                sscanf(sum, "%16" SCNx64 "%16" SCNx64, &words[at], &words[at + 1]) != 2)
                return rs_error_set(RS_ERR_MALFORMED, "the manifest has no content sum of \"%s\"",
                    rs_space_tensor(space, t)->name);
        }
    }
    return RS_OK;
}
