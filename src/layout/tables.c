/*
 * Tables: a layout's blocks on both meshes, as running sums for each slice.
 *
 * Blocks of one kind are alike, and a homogeneous model has four kinds: what stands before the
 * layers on the first pipeline rank, the same on others, a layer, what stands behind the layers.
 * Layers that differ make one kind for each run of alike ones. Roles that have the same tensors
 * with the same sizes of elements, and are cut alike, are one class and share tables.
 *
 * A table counts what a slice has of each tensor: all of it, also where ZeRO cuts the
 * concatenation, since a member's range is then found in it; but with slots (zero_cut=param and
 * dim0) what each member has room for, and a concatenation does not exist.
 *
 * Cost: classes x kinds x (tensors x slices of their mesh); answers are closed formulas.
 */
#include "layout/tables.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

/* ---- answers ---- */

bool rs_tables_is_cut(const rs_tables *tables, int mesh, int role)
{
    /* A group of one has everything, so a cut for it is no cut. */
    return tables->grid[mesh].group > 1 &&
           rs_layout_shards_class(&tables->layout, rs_space_role(tables->space, role)->role_class);
}

bool rs_tables_has_slots(const rs_tables *tables, int mesh, int role)
{
    return tables->layout.zero_cut != RS_CUT_CONCAT && rs_tables_is_cut(tables, mesh, role);
}

static const rs_kind *kinds_of(const rs_tables *tables, int mesh, int role)
{
    size_t which = (size_t)tables->class_of[role] * RS_MESHES + (size_t)mesh;
    return tables->kinds + which * (size_t)tables->kind_count;
}

static const rs_kind *kind_of(const rs_tables *tables, int mesh, int role, int stage, int block)
{
    const rs_kind *kinds = kinds_of(tables, mesh, role);
    const rs_layout *layout = &tables->layout;
    if (block == 0)
        return &kinds[stage == 0 ? RS_KIND_HEAD_FIRST : RS_KIND_HEAD];
    if (block == tables->blocks - 1)
        return stage == layout->pp - 1 ? &kinds[RS_KIND_TAIL] : NULL;
    if (rs_layout_stage_of_layer(layout, tables->layers, block - 1) % layout->pp != stage)
        return NULL;
    return &kinds[tables->kind_of_layer[block - 1]];
}

const rs_block *rs_tables_block(const rs_tables *tables, int mesh, int role, int stage, int block)
{
    const rs_kind *of = kind_of(tables, mesh, role, stage, block);
    return of != NULL ? &of->table : NULL;
}

/* Elements of all layers before `layer` (0..layers), over all stages. */
static int64_t layers_before(const rs_tables *tables, int mesh, int role, int slice, int64_t layer)
{
    if (layer == 0)
        return 0;
    const rs_kind *of = &kinds_of(tables, mesh, role)[tables->kind_of_layer[layer - 1]];
    return of->run_start[slice] + (layer - of->layer) * rs_block_total(&of->table, slice);
}

int64_t rs_tables_start(
    const rs_tables *tables, int mesh, int role, int stage, int slice, int block)
{
    if (block == 0)
        return 0;
    int64_t start = rs_block_total(&kind_of(tables, mesh, role, stage, 0)->table, slice);
    for (int v = 0; v < tables->layout.vpp; v++) {
        int64_t begin;
        int64_t end;
        rs_layout_stage_layers(
            &tables->layout, tables->layers, v * tables->layout.pp + stage, &begin, &end);
        if (block - 1 <= begin)
            break;
        start += layers_before(tables, mesh, role, slice, rs_min64(block - 1, end)) -
                 layers_before(tables, mesh, role, slice, begin);
    }
    return start;
}

int64_t rs_tables_total(const rs_tables *tables, int mesh, int role, int stage, int slice)
{
    int tail = tables->blocks - 1;
    const rs_kind *of = kind_of(tables, mesh, role, stage, tail);
    return rs_tables_start(tables, mesh, role, stage, slice, tail) +
           (of != NULL ? rs_block_total(&of->table, slice) : 0);
}

int rs_tables_next_block(const rs_tables *tables, int stage, int block)
{
    int tail = tables->blocks - 1;
    if (block < 0)
        return 0;
    if (block == tail)
        return -1;
    for (int v = 0; v < tables->layout.vpp; v++) {
        int64_t begin;
        int64_t end;
        rs_layout_stage_layers(
            &tables->layout, tables->layers, v * tables->layout.pp + stage, &begin, &end);
        /* Block b is layer b - 1, so the next layer is number `block`. */
        if (end > begin && end > block)
            return (int)rs_max64(begin, block) + 1;
    }
    return tail;
}

rs_box rs_tables_local_box(
    const rs_tables *tables, const rs_tensor *tensor, int slice, int64_t layer)
{
    rs_box box = {.ndim = tensor->ndim};
    for (int d = 0; d < tensor->ndim; d++) {
        int64_t end;
        rs_layout_slice_range(&tables->layout, tensor, d, slice, &box.offset[d], &end);
        box.extent[d] = end - box.offset[d];
    }
    if (rs_tensor_has_layers(tensor)) {
        box.offset[0] = rs_tensor_layers_before(tensor, layer);
        box.extent[0] = 1;
    }
    return box;
}

rs_slots rs_tables_slots(const rs_tables *tables, const rs_tensor *tensor, const rs_box *local)
{
    int mesh = rs_tensor_mesh(tensor);
    int group = tables->grid[mesh].group;
    rs_slots slots = {
        .units = 1, .unit_dim = -1, .cut_dim = -1, .length = rs_box_volume(local), .element = 1};
    int experts = rs_tensor_expert_dim(tensor);
    if (tables->layout.zero_cut == RS_CUT_DIM0) {
        int d = rs_tensor_has_layers(tensor) ? 1 : 0;
        if (d == experts && d + 1 < tensor->ndim)
            d++;
        if (d < tensor->ndim) {
            slots.cut_dim = d;
            slots.element = local->extent[d] > 0 ? slots.length / local->extent[d] : 0;
            slots.length = local->extent[d];
        }
    } else if (experts >= 0 && local->extent[experts] > 0) {
        slots.unit_dim = experts;
        slots.units = local->extent[experts];
        slots.length /= slots.units;
    }
    slots.each = rs_ceil_div(slots.length, group);
    return slots;
}

/* ---- creation ---- */

static bool kind_has(const rs_tables *tables, int kind, int64_t layer, const rs_tensor *tensor)
{
    const rs_layout *layout = &tables->layout;
    switch (kind) {
    case RS_KIND_HEAD_FIRST:
        return rs_layout_stage_has(layout, tensor, 0, false);
    case RS_KIND_HEAD:
        /* Any pipeline rank that is neither first nor last stands for all others: only what is on
         * every one is in its head. */
        return rs_layout_stage_has(layout, tensor, 1, false);
    case RS_KIND_TAIL:
        return rs_layout_stage_has(layout, tensor, layout->pp - 1, true);
    default:
        return rs_tensor_has_layers(tensor) &&
               rs_tensor_layers_before(tensor, layer) < rs_tensor_layers_before(tensor, layer + 1);
    }
}

/* Room for what is known of the tensors of one block. */
typedef struct scratch {
    int *tensors;
    int64_t *sizes;
    int64_t *counts;
    int64_t *starts; /* layers at which a run of alike layers begins */
    size_t runs;
} scratch;

/* Layers at which runs may begin, alike ones counted again. */
static size_t count_starts(const rs_space *space)
{
    size_t count = 1;
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        const rs_tensor *tensor = rs_space_tensor(space, i);
        count += tensor->layers != NULL ? 2 * (size_t)tensor->shape[0] : 2;
    }
    return count;
}

static rs_status scratch_init(scratch *room, const rs_space *space)
{
    size_t n = (size_t)rs_space_tensor_count(space), starts = count_starts(space);
    room->tensors = rs_calloc(n, sizeof *room->tensors);
    room->sizes = rs_calloc(n, sizeof *room->sizes);
    room->counts = rs_calloc(n, sizeof *room->counts);
    room->starts = rs_calloc(starts, sizeof *room->starts);
    if (room->tensors == NULL || room->sizes == NULL || room->counts == NULL ||
        room->starts == NULL)
        return rs_error_memory((3 * n + starts) * sizeof *room->sizes);
    return RS_OK;
}

static void scratch_fini(scratch *room)
{
    free(room->tensors);
    free(room->sizes);
    free(room->counts);
    free(room->starts);
}

/* What a table counts of a slice of a tensor. */
static int64_t count_of(
    const rs_tables *tables, int role, const rs_tensor *tensor, int slice, int64_t layer)
{
    if (!rs_tables_has_slots(tables, rs_tensor_mesh(tensor), role))
        return rs_layout_slice_elements(&tables->layout, tensor, slice);
    rs_box local = rs_tables_local_box(tables, tensor, slice, layer);
    rs_slots slots = rs_tables_slots(tables, tensor, &local);
    return slots.units * slots.each * slots.element;
}

static rs_status fill_kind(rs_tables *tables, int class_id, int mesh, int kind, scratch *room)
{
    rs_kind *of = &tables->kinds[(class_id * RS_MESHES + mesh) * tables->kind_count + kind];
    const rs_space *space = tables->space;
    int role = tables->first_of[class_id];
    int slices = tables->grid[mesh].slices;
    int count = 0;
    of->layer = kind < RS_KIND_LAYERS ? 0 : room->starts[kind - RS_KIND_LAYERS];
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        const rs_tensor *tensor = rs_space_tensor(space, i);
        rs_dtype dtype = rs_space_dtype(space, i, role);
        if (dtype == RS_DTYPE_NONE || rs_tensor_mesh(tensor) != mesh ||
            !kind_has(tables, kind, of->layer, tensor))
            continue;
        room->tensors[count] = i;
        room->sizes[count++] = (int64_t)rs_dtype_size(dtype);
    }
    RS_TRY(rs_block_init(&of->table, room->tensors, room->sizes, count, slices));
    of->run_start = rs_calloc((size_t)slices, sizeof *of->run_start);
    if (of->run_start == NULL)
        return rs_error_memory((size_t)slices * sizeof *of->run_start);
    for (int slice = 0; slice < slices; slice++) {
        for (int i = 0; i < count; i++)
            room->counts[i] =
                count_of(tables, role, rs_space_tensor(space, room->tensors[i]), slice, of->layer);
        rs_block_set(&of->table, slice, room->counts);
        if (kind > RS_KIND_LAYERS) {
            const rs_kind *before = of - 1;
            of->run_start[slice] =
                before->run_start[slice] +
                (of->layer - before->layer) * rs_block_total(&before->table, slice);
        }
    }
    return RS_OK;
}

static bool same_class(const rs_tables *tables, int a, int b)
{
    const rs_space *space = tables->space;
    for (int mesh = 0; mesh < RS_MESHES; mesh++)
        if (rs_tables_has_slots(tables, mesh, a) != rs_tables_has_slots(tables, mesh, b))
            return false;
    for (int i = 0; i < rs_space_tensor_count(space); i++)
        if (rs_dtype_size(rs_space_dtype(space, i, a)) !=
            rs_dtype_size(rs_space_dtype(space, i, b)))
            return false;
    return true;
}

static void sort_roles(rs_tables *tables)
{
    for (int role = 0; role < rs_space_role_count(tables->space); role++) {
        int c = 0;
        while (c < tables->class_count && !same_class(tables, tables->first_of[c], role))
            c++;
        if (c == tables->class_count)
            tables->first_of[tables->class_count++] = role;
        tables->class_of[role] = c;
    }
}

/* Runs of alike layers begin at layer 0, and where the layers of a tensor begin or end. */
static void find_runs(const rs_tables *tables, scratch *room)
{
    int64_t *starts = room->starts;
    size_t count = 0;
    if (tables->layers == 0)
        return;
    starts[count++] = 0;
    for (int i = 0; i < rs_space_tensor_count(tables->space); i++) {
        const rs_tensor *tensor = rs_space_tensor(tables->space, i);
        if (!rs_tensor_has_layers(tensor) || tensor->shape[0] == 0)
            continue;
        for (int64_t k = 0, last = tensor->shape[0] - 1; k <= last; k++) {
            int64_t layer = rs_tensor_layer(tensor, k);
            if (k == 0 || layer > rs_tensor_layer(tensor, k - 1) + 1)
                starts[count++] = layer;
            if (tensor->layers == NULL)
                layer = rs_tensor_layer(tensor, k = last);
            if (layer + 1 < tables->layers &&
                (k == last || rs_tensor_layer(tensor, k + 1) > layer + 1))
                starts[count++] = layer + 1;
        }
    }
    qsort(starts, count, sizeof *starts, rs_compare_int64s);
    size_t kept = 0;
    for (size_t i = 1; i < count; i++)
        if (starts[i] != starts[kept])
            starts[++kept] = starts[i];
    room->runs = kept + 1;
}

/* Numbers of segments must fit, and each mesh cut one dimension at most. */
static rs_status check_space(const rs_space *space)
{
    int64_t segments;
    if (!rs_add_fits(rs_space_layer_count(space), 2, &segments) ||
        !rs_mul_fits(segments, 2 * RS_MAX_ROLES, &segments) || segments > INT_MAX)
        return rs_error_set(RS_ERR_ARGUMENT, "%" PRId64 " layers are more than a layout can number",
            rs_space_layer_count(space));
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        const rs_tensor *tensor = rs_space_tensor(space, i);
        int cut = rs_tensor_cut_dim(tensor);
        for (int d = cut + 1; cut >= 0 && d < tensor->ndim; d++)
            if (tensor->axis[d] != RS_AXIS_WHOLE && tensor->axis[d] != RS_AXIS_EXPERT)
                return rs_error_set(RS_ERR_ARGUMENT,
                    "tensor %s: tp would cut dimensions %d and %d; one at most is possible",
                    tensor->name, cut, d);
    }
    return RS_OK;
}

rs_status rs_tables_init(rs_tables *tables, const rs_space *space, const rs_layout *layout)
{
    scratch room = {0};
    rs_status status;
    *tables = (rs_tables){.space = space,
        .layout = *layout,
        .layers = rs_space_layer_count(space),
        .blocks = (int)rs_min64(rs_space_layer_count(space), INT_MAX - 2) + 2};
    RS_TRY(check_space(space));
    for (int mesh = 0; mesh < RS_MESHES; mesh++)
        tables->grid[mesh] = rs_layout_grid(layout, mesh);
    sort_roles(tables);
    RS_TRY_GOTO(scratch_init(&room, space), done);
    find_runs(tables, &room);
    tables->kind_count = RS_KIND_LAYERS + (int)room.runs;
    size_t kinds = (size_t)tables->kind_count * RS_MESHES * (size_t)tables->class_count;
    tables->kinds = rs_calloc(kinds, sizeof *tables->kinds);
    tables->kind_of_layer = rs_calloc((size_t)tables->layers, sizeof *tables->kind_of_layer);
    if (tables->kinds == NULL || tables->kind_of_layer == NULL) {
        status =
            rs_error_memory(kinds * sizeof *tables->kinds + (size_t)tables->layers * sizeof(int));
        goto done;
    }
    for (int c = 0; c < tables->class_count; c++)
        for (int mesh = 0; mesh < RS_MESHES; mesh++)
            for (int kind = 0; kind < tables->kind_count; kind++)
                RS_TRY_GOTO(fill_kind(tables, c, mesh, kind, &room), done);
    size_t run = 0;
    for (int64_t layer = 0; layer < tables->layers; layer++) {
        if (run + 1 < room.runs && room.starts[run + 1] == layer)
            run++;
        tables->kind_of_layer[layer] = RS_KIND_LAYERS + (int)run;
    }
done:
    scratch_fini(&room);
    return status;
}

void rs_tables_fini(rs_tables *tables)
{
    size_t kinds = (size_t)tables->kind_count * RS_MESHES * (size_t)tables->class_count;
    for (size_t k = 0; tables->kinds != NULL && k < kinds; k++) {
        rs_block_fini(&tables->kinds[k].table);
        free(tables->kinds[k].run_start);
    }
    free(tables->kinds);
    free(tables->kind_of_layer);
    memset(tables, 0, sizeof *tables);
}
