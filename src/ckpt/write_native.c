/*
 * Writing a native checkpoint from any other, with the manifest that a save would write
 * (native_commit.c): one rank's, in files of a bounded size, or with --layout the files that the
 * ranks of a job under it would save, each the cells that it counts (native_save.c).
 *
 * A tensor is cut into shards along its first dimensions. So a checksum covers a bounded number of
 * bytes, and can be taken by one process however many convert.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/axes.h"
#include "ckpt/native_names.h"
#include "ckpt/safetensors.h"
#include "ckpt/writer.h"
#include "reshard/certificate.h"
#include "reshard/layout.h"

#define JOB "convert"
#define SHARD_BYTES ((int64_t)64 << 20)
#define SHARDS_MOST 65536 /* of all tensors, about: the manifest is read as a whole */

/* One that is written. */
typedef struct shard {
    rs_logical is;
    const char *tensor; /* name */
    size_t part;        /* of the output */
} shard;

/* One that is written: a rank's, with shards first .. end - 1. */
typedef struct native_file {
    int rank;
    size_t first, end;
} native_file;

typedef struct own {
    rs_pool pool;
    struct {
        shard *items;
        size_t count, capacity;
    } shards;
    struct {
        native_file *items;
        size_t count, capacity;
    } files;
    rs_space *space;
    char layout[RS_LAYOUT_TEXT]; /* that it is laid out for, if one is asked for */
    int world;
} own;

/* ---- names ---- */

/* A tensor has one shape in all its roles. One that differs, like a parameter's step, becomes a
 * tensor of its own, "NAME[ROLE]". */
static rs_status name_odd_shapes(rs_writing *w, own *o)
{
    rs_names first = {0};
    rs_status status = RS_OK;
    int found;
    for (size_t i = 0; i < w->tensors.count; i++)
        if (strcmp(w->tensors.items[i].role, "param") == 0)
            RS_TRY_GOTO(rs_names_add(&first, w->tensors.items[i].name, (int)i, &found), out);
    for (size_t i = 0; i < w->tensors.count; i++) {
        rs_logical *t = &w->tensors.items[i];
        RS_TRY_GOTO(rs_names_add(&first, t->name, (int)i, &found), out);
        const rs_logical *known = found >= 0 ? &w->tensors.items[found] : t;
        if (known->ndim == t->ndim &&
            memcmp(known->shape, t->shape, sizeof *t->shape * (size_t)t->ndim) == 0)
            continue;
        rs_text name = {0};
        rs_text_append(&name, "%s[%s]", t->name, t->role);
        status = name.status;
        if (status == RS_OK)
            status = rs_pool_text(&o->pool, name.data, name.length, &t->name);
        rs_text_fini(&name);
        RS_TRY_GOTO(status, out);
    }
out:
    rs_names_fini(&first);
    return status;
}

/* ---- shards ---- */

static rs_status add_shard(own *o, const rs_logical *tensor, const rs_box *box)
{
    char text[320];
    rs_text name = {0};
    RS_TRY(RS_LIST_RESERVE_ONE(&o->shards));
    shard *s = &o->shards.items[o->shards.count];
    *s = (shard){.is = *tensor, .tensor = tensor->name};
    s->is.box = *box;
    memcpy(s->is.shape, box->extent, sizeof s->is.shape);
    s->is.bytes =
        rs_box_is_empty(box) ? 0 : rs_box_volume(box) * (int64_t)rs_dtype_size(tensor->dtype);
    rs_text_append(
        &name, "%s/%s%s", tensor->name, tensor->role, rs_box_format(box, text, sizeof text));
    rs_status status = name.status;
    if (status == RS_OK)
        status = rs_pool_text(&o->pool, name.data, name.length, &s->is.name);
    rs_text_fini(&name);
    o->shards.count += status == RS_OK;
    return status;
}

/* Cuts the box along dimension `dim` and, where one index of it is too much, along those behind. */
static rs_status cut(own *o, const rs_logical *tensor, const rs_box *box, int dim, int64_t most)
{
    int64_t inner = 1;
    for (int d = dim + 1; d < box->ndim; d++)
        inner *= box->extent[d];
    if (dim == box->ndim || rs_box_is_empty(box) || rs_box_volume(box) <= most)
        return add_shard(o, tensor, box);
    int64_t rows = rs_max64(most / inner, 1);
    for (int64_t at = 0; at < box->extent[dim]; at += rows) {
        rs_box part = *box;
        part.offset[dim] += at;
        part.extent[dim] = rs_min64(rows, box->extent[dim] - at);
        if (inner > most)
            RS_TRY(cut(o, tensor, &part, dim + 1, most));
        else
            RS_TRY(add_shard(o, tensor, &part));
    }
    return RS_OK;
}

/* Bytes of a shard at most. */
static int64_t cut_bytes(const rs_writing *w)
{
    return rs_max64(SHARD_BYTES, rs_round_up(w->report.bytes / SHARDS_MOST, SHARD_BYTES));
}

static rs_status cut_all(const rs_writing *w, own *o)
{
    int64_t bytes = cut_bytes(w);
    for (size_t i = 0; i < w->tensors.count; i++) {
        const rs_logical *t = &w->tensors.items[i];
        RS_TRY(cut(o, t, &t->box, 0, bytes / (int64_t)rs_dtype_size(t->dtype)));
    }
    return RS_OK;
}

/* ---- files ---- */

static rs_status plan_file(
    rs_writing *w, own *o, const char *folder, int rank, size_t first, size_t end)
{
    char name[RS_NATIVE_NAME], path[2 * RS_NATIVE_NAME + 1], number[16];
    size_t count = end - first;
    rs_status status = RS_OK;
    const rs_logical **tensors = rs_calloc(count, sizeof *tensors);
    const char **names = rs_calloc(count, sizeof *names);
    size_t *parts = rs_calloc(count, sizeof *parts);
    if (tensors == NULL || names == NULL || parts == NULL)
        RS_TRY_GOTO(rs_error_memory(count * sizeof *tensors), out);
    for (size_t i = 0; i < count; i++) {
        tensors[i] = &o->shards.items[first + i].is;
        names[i] = tensors[i]->name;
    }
    snprintf(number, sizeof number, "%d", rank);
    const rs_safetensors_note notes[] = {{"format", "reshard"}, {"job", JOB}, {"rank", number}};
    snprintf(path, sizeof path, "%s/%s", folder, rs_native_file_name(rank, name));
    RS_TRY_GOTO(rs_output_file(&w->output, path), out);
    RS_TRY_GOTO(rs_safetensors_output(&w->output, tensors, names, count, notes, 3,
                    RS_OUTPUT_XXH3 | RS_OUTPUT_CONTENT, parts),
        out);
    for (size_t i = 0; i < count; i++)
        o->shards.items[first + i].part = parts[i];
    RS_TRY_GOTO(RS_LIST_RESERVE_ONE(&o->files), out);
    o->files.items[o->files.count++] = (native_file){rank, first, end};
out:
    free(tensors);
    free(names);
    free(parts);
    return status;
}

/* One rank's, file after file. */
static rs_status plan_one(rs_writing *w, own *o, const char *folder)
{
    RS_TRY(cut_all(w, o));
    int64_t most = rs_writing_shard_bytes(w);
    for (size_t first = 0, end; first < o->shards.count; first = end) {
        int64_t bytes = 0;
        for (end = first; end < o->shards.count; end++) {
            int64_t more = o->shards.items[end].is.bytes;
            if (end > first && bytes + more > most)
                break;
            bytes += more;
        }
        RS_TRY(plan_file(w, o, folder, (int)o->files.count, first, end));
    }
    return RS_OK;
}

/* ---- a layout's ranks ---- */

/* For each tensor and role of the space the one that is written; -1: there is none. */
static rs_status index_tensors(const rs_writing *w, const rs_space *space, int **out)
{
    size_t roles = (size_t)rs_space_role_count(space);
    size_t count = roles * (size_t)rs_space_tensor_count(space);
    int *index = rs_calloc(count, sizeof *index);
    if (index == NULL)
        return rs_error_memory(count * sizeof *index);
    for (size_t i = 0; i < count; i++)
        index[i] = -1;
    for (size_t i = 0; i < w->tensors.count; i++) {
        int t = rs_space_find_tensor(space, w->tensors.items[i].name);
        int r = rs_space_find_role(space, w->tensors.items[i].role);
        index[(size_t)t * roles + (size_t)r] = (int)i;
    }
    *out = index;
    return RS_OK;
}

/* The shards of one rank: what no lower one has. */
static rs_status cut_rank(
    const rs_writing *w, own *o, const rs_placement *placement, const int *index, int rank)
{
    int64_t most = cut_bytes(w);
    int roles = rs_space_role_count(o->space);
    rs_sums *sums = NULL;
    size_t count;
    rs_status status = RS_OK;
    RS_TRY(rs_sums_create(placement, rank, &sums));
    const rs_cell *cells = rs_sums_cells(sums, &count);
    for (size_t i = 0; i < count && status == RS_OK; i++) {
        const rs_cell *cell = &cells[i];
        if (!cell->counted || rs_box_is_empty(&cell->box))
            continue;
        const rs_logical *t = &w->tensors.items[index[cell->tensor * roles + cell->role]];
        status = cut(o, t, &cell->box, 0, most / (int64_t)rs_dtype_size(t->dtype));
    }
    rs_sums_destroy(sums);
    return status;
}

static rs_status plan_ranks(rs_writing *w, own *o, const char *folder)
{
    rs_layout layout;
    rs_space *space;
    rs_placement *placement = NULL;
    int *index = NULL;
    size_t *first = NULL; /* of each rank's shards; the output borrows these when all are there */
    rs_status status;
    RS_TRY(rs_layout_parse(w->options->layout, &layout));
    RS_TRY(rs_axes_give(o->space, w->options->space, &layout, &space));
    rs_space_destroy(o->space);
    o->space = space;
    rs_layout_format(&layout, o->layout);
    o->world = rs_layout_world(&layout);
    RS_TRY_GOTO(rs_layout_placement(space, &layout, &placement), out);
    RS_TRY_GOTO(index_tensors(w, space, &index), out);
    first = rs_calloc((size_t)o->world + 1, sizeof *first);
    if (first == NULL)
        RS_TRY_GOTO(rs_error_memory((size_t)o->world * sizeof *first), out);
    for (int rank = 0; rank < o->world; rank++) {
        RS_TRY_GOTO(rs_writing_goes_on(w), out);
        RS_TRY_GOTO(cut_rank(w, o, placement, index, rank), out);
        first[rank + 1] = o->shards.count;
    }
    for (int rank = 0; rank < o->world; rank++)
        if (first[rank + 1] > first[rank])
            RS_TRY_GOTO(plan_file(w, o, folder, rank, first[rank], first[rank + 1]), out);
out:
    free(first);
    free(index);
    rs_placement_destroy(placement);
    return status;
}

static int64_t step_of(const rs_writing *w)
{
    return json_integer_value(json_object_get(w->extras, "step"));
}

static rs_status plan(rs_writing *w)
{
    char folder[RS_NATIVE_NAME];
    rs_save_name name = {"", step_of(w), JOB};
    own *o = rs_calloc(1, sizeof *o);
    if (o == NULL)
        return rs_error_memory(sizeof *o);
    w->own = o;
    RS_TRY(name_odd_shapes(w, o));
    RS_TRY(rs_logical_list_space(w->catalog, &w->tensors, &o->space));
    RS_TRY(rs_native_aside_name(&name, folder));
    return w->options->layout != NULL ? plan_ranks(w, o, folder) : plan_one(w, o, folder);
}

/* ---- the manifest ---- */

static json_t *numbers(const int64_t *from, int count)
{
    json_t *array = json_array();
    for (int d = 0; d < count && array != NULL; d++)
        json_array_append_new(array, json_integer(from[d]));
    return array;
}

static json_t *shard_json(const rs_writing *w, const shard *s)
{
    const rs_output_part *part = &w->output.parts.items[s->part];
    char hash[17], sum[33];
    snprintf(hash, sizeof hash, "%016" PRIx64, part->xxh3);
    snprintf(
        sum, sizeof sum, "%016" PRIx64 "%016" PRIx64, part->content.lane[0], part->content.lane[1]);
    return json_pack("{s:s,s:s,s:o,s:o,s:I,s:s,s:s}", "tensor", s->tensor, "role", s->is.role,
        "offset", numbers(s->is.box.offset, s->is.box.ndim), "extent",
        numbers(s->is.box.extent, s->is.box.ndim), "at", (json_int_t)part->offset, "xxh3", hash,
        "sum", sum);
}

/* What the manifest says of a file. */
static rs_status record_of(const rs_writing *w, const own *o, size_t file, char **out)
{
    const native_file *f = &o->files.items[file];
    char name[RS_NATIVE_NAME];
    json_t *shards = json_array();
    bool bad = shards == NULL;
    for (size_t i = f->first; i < f->end && !bad; i++)
        if (o->shards.items[i].is.bytes > 0)
            bad = json_array_append_new(shards, shard_json(w, &o->shards.items[i])) != 0;
    json_t *root = bad ? NULL
                       : json_pack("{s:s,s:i,s:I,s:O}", "name", rs_native_file_name(f->rank, name),
                             "rank", f->rank, "bytes",
                             (json_int_t)w->output.files.items[file].bytes, "shards", shards);
    *out = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    json_decref(shards);
    return *out != NULL ? RS_OK : rs_error_memory(1);
}

static rs_status finish(rs_writing *w)
{
    const own *o = w->own;
    rs_save_name name = {w->folder, step_of(w), JOB};
    bool laid_out = w->options->layout != NULL;
    const char *was = w->catalog->layout != NULL ? w->catalog->layout : "dp=1";
    rs_save_about about = {.layout = laid_out ? o->layout : was, .world = laid_out ? o->world : 1};
    char *text = NULL;
    rs_status status = RS_OK;
    char **records = rs_calloc(o->files.count, sizeof *records);
    if (records == NULL)
        return rs_error_memory(o->files.count * sizeof *records);
    for (size_t i = 0; i < o->files.count; i++)
        RS_TRY_GOTO(record_of(w, o, i, &records[i]), out);
    text = json_dumps(rs_extras_of_run(w->extras), JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text == NULL)
        RS_TRY_GOTO(rs_error_memory(1), out);
    about.extras = text;
    RS_TRY_GOTO(
        rs_save_commit(&name, o->space, &about, (const char *const *)records, o->files.count), out);
out:
    for (size_t i = 0; i < o->files.count; i++)
        free(records[i]);
    free(records);
    free(text);
    return status;
}

static void fini(rs_writing *w)
{
    own *o = w->own;
    if (o == NULL)
        return;
    rs_pool_fini(&o->pool);
    free(o->shards.items);
    free(o->files.items);
    rs_space_destroy(o->space);
    free(o);
}

const rs_writer rs_writer_native = {.name = "native",
    .whole = true,
    .layout = true,
    .bounded = true,
    .plan = plan,
    .finish = finish,
    .fini = fini};
