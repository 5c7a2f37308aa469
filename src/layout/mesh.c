/*
 * The memory placement of a layout, answered on demand.
 *
 * A rank's local concatenation (layout.h) is never written down. What is kept is one table per kind
 * of block (block.h): which tensors it has and, for each tp rank, the running sums of their local
 * elements and bytes. Blocks of one kind are alike, and a homogeneous model has four kinds: what
 * stands before the layers on the first stage, the same on other stages, a layer, what stands
 * behind the layers. From these, the place of any local box is a few additions, and the way back
 * (who has this element?) is division and binary search.
 *
 * Roles that have the same tensors with the same sizes of elements are one class and share tables.
 *
 * Invariants:
 * 1. tp cuts at most one dimension of a tensor, so a tensor's local boxes tile it.
 * 2. A rank has at most one local box of a (tensor, layer), so its shards are disjoint.
 * 3. A rank's local boxes, in the order of their `start`, tile 0..total of its concatenation.
 * 4. A shard never spans layers: every (tensor, layer) is its own local box, extent 1 on axis 0.
 *
 * Cost: creation, tensors x tp x classes. A rank's shards: its own shards. Locating a box: its
 * holders, with a binary search over the tensors of a block for each (layer, tp rank) met. No loop
 * runs over ranks that are not part of the answer.
 */
#include "layout/mesh.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "layout/placement.h"
#include "layout/block.h"

/* Kinds of block; those from KIND_LAYERS on are runs of alike layers. */
enum { KIND_HEAD_FIRST, KIND_HEAD, KIND_TAIL, KIND_LAYERS };

typedef struct kind {
    rs_block table;
    int64_t layer;      /* of a run of layers: the first */
    int64_t *run_start; /* [tp]: local elements of all layers before the first */
} kind;

typedef struct mesh {
    rs_placement base;
    rs_layout layout;
    int64_t layers;
    kind *kinds; /* [class][kind] */
    int kind_count;
    int *kind_of_layer;
    int class_count;
    int class_of[RS_MAX_ROLES];
    int first_of[RS_MAX_ROLES]; /* of each class: its lowest role */
    int geometry[RS_MAX_ROLES];
} mesh;

/* A local box and where it stands in its rank's local concatenation. */
typedef struct piece {
    int block;
    int64_t start;
    int64_t byte; /* of its first element in the block's memory */
    rs_box box;
} piece;

/* What of a block a rank keeps of a role. */
typedef struct part {
    const rs_block *table; /* NULL: nothing */
    int64_t start;         /* of the block in the local concatenation */
    int64_t low;           /* elements of the block, half open */
    int64_t high;
    int64_t byte; /* where its segment begins in the block's memory */
    int64_t bytes;
} part;

static const mesh *mesh_of(const rs_placement *placement)
{
    return (const mesh *)placement;
}

/* ---- blocks ---- */

static const kind *kinds_of(const mesh *self, int role)
{
    return self->kinds + (size_t)self->class_of[role] * (size_t)self->kind_count;
}

/* The kind of `block` on `stage` for `role`, NULL where the stage has nothing of it. */
static const kind *kind_of(const mesh *self, int role, int stage, int block)
{
    const kind *kinds = kinds_of(self, role);
    if (block == 0)
        return &kinds[stage == 0 ? KIND_HEAD_FIRST : KIND_HEAD];
    if (block == self->layers + 1)
        return stage == self->layout.pp - 1 ? &kinds[KIND_TAIL] : NULL;
    int64_t begin;
    int64_t end;
    rs_layout_stage_layers(&self->layout, self->layers, stage, &begin, &end);
    if (block - 1 < begin || block - 1 >= end)
        return NULL;
    return &kinds[self->kind_of_layer[block - 1]];
}

/* Local elements of all layers before `layer` (0..layers), over all stages. */
static int64_t layers_before(const mesh *self, int role, int tp, int64_t layer)
{
    if (layer == 0)
        return 0;
    const kind *of = &kinds_of(self, role)[self->kind_of_layer[layer - 1]];
    return of->run_start[tp] + (layer - of->layer) * rs_block_total(&of->table, tp);
}

/* Where `block` begins in the local concatenation of (tp, stage), which need not have it. */
static int64_t block_start(const mesh *self, int role, int tp, int stage, int block)
{
    if (block == 0)
        return 0;
    int64_t begin;
    int64_t end;
    rs_layout_stage_layers(&self->layout, self->layers, stage, &begin, &end);
    int64_t layer = rs_max64(rs_min64(block - 1, end), begin);
    return rs_block_total(&kind_of(self, role, stage, 0)->table, tp) +
           layers_before(self, role, tp, layer) - layers_before(self, role, tp, begin);
}

static int64_t local_elements(const mesh *self, int role, int tp, int stage)
{
    int tail = (int)self->layers + 1;
    const kind *of = kind_of(self, role, stage, tail);
    return block_start(self, role, tp, stage, tail) +
           (of != NULL ? rs_block_total(&of->table, tp) : 0);
}

static bool is_cut(const mesh *self, int role)
{
    return rs_layout_shards_class(&self->layout, rs_space_role(self->base.space, role)->role_class);
}

/* What of its local concatenation a rank keeps of a role. */
static void kept_range(const mesh *self, rs_coords at, int role, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = local_elements(self, role, at.tp, at.pp);
    if (is_cut(self, role))
        rs_layout_flat_shard(&self->layout, *end, at.dp, begin, end);
}

/* A segment begins at a multiple of every size that its block has, at most a few bytes before its
 * first element, so that alignment does not depend on where ZeRO cuts. */
static part part_of(const mesh *self, rs_coords at, int role, int block)
{
    const kind *of = kind_of(self, role, at.pp, block);
    part found = {0};
    if (of == NULL)
        return found;
    int64_t begin;
    int64_t end;
    kept_range(self, at, role, &begin, &end);
    found.start = block_start(self, role, at.tp, at.pp, block);
    found.low = rs_max64(begin - found.start, 0);
    found.high = rs_min64(end - found.start, rs_block_total(&of->table, at.tp));
    if (found.low >= found.high)
        return found;
    found.table = &of->table;
    int64_t first = rs_block_byte(&of->table, at.tp, found.low);
    int64_t last = found.high - 1;
    found.byte = first - first % of->table.align;
    found.bytes = rs_block_byte(&of->table, at.tp, last) - found.byte +
                  of->table.sizes[rs_block_at(&of->table, at.tp, last)];
    return found;
}

/* ---- local boxes ---- */

/* The box of `tensor` that tp rank `tp` has, of one layer where it has layers. */
static rs_box local_box(const mesh *self, int tp, const rs_tensor *tensor, int64_t layer)
{
    rs_box box = rs_box_whole(tensor->ndim, tensor->shape);
    int cut = rs_tensor_cut_dim(tensor);
    if (cut >= 0) {
        int64_t end;
        rs_layout_tp_range(&self->layout, tensor, cut, tp, &box.offset[cut], &end);
        box.extent[cut] = end - box.offset[cut];
    }
    if (rs_tensor_has_layers(tensor)) {
        box.offset[0] = layer;
        box.extent[0] = 1;
    }
    return box;
}

/* The piece of `tensor` in `block` of (tp, stage); false if it has none, or an empty one. */
static bool find_piece(
    const mesh *self, int role, int tp, int stage, int block, int tensor, piece *out)
{
    const kind *of = kind_of(self, role, stage, block);
    int at = of != NULL ? rs_block_find(&of->table, tensor) : -1;
    if (at < 0)
        return false;
    out->block = block;
    out->start = block_start(self, role, tp, stage, block) + rs_block_elements(&of->table, tp)[at];
    out->byte = rs_block_bytes(&of->table, tp)[at];
    out->box = local_box(self, tp, rs_space_tensor(self->base.space, tensor), block - 1);
    return !rs_box_is_empty(&out->box);
}

/* Number of an element in the row-major order of `box`. */
static int64_t linear(const rs_box *box, const int64_t *index)
{
    int64_t number = 0;
    for (int d = 0; d < box->ndim; d++)
        number = number * box->extent[d] + index[d] - box->offset[d];
    return number;
}

static int64_t linear_last(const rs_box *box, const rs_box *inner)
{
    int64_t last[RS_MAX_DIMS];
    for (int d = 0; d < inner->ndim; d++)
        last[d] = inner->offset[d] + inner->extent[d] - 1;
    return linear(box, last);
}

/* The least number >= `number`, in the row-major order of `box`, of an element of `inner` (not
 * empty, in `box`); -1 if there is none. */
static int64_t next_linear(const rs_box *box, const rs_box *inner, int64_t number)
{
    int64_t index[RS_MAX_DIMS];
    int64_t rest = number;
    for (int d = box->ndim - 1; d >= 0; d--) {
        index[d] = box->offset[d] + rest % box->extent[d];
        rest /= box->extent[d];
    }
    if (rest > 0)
        return -1;
    for (int d = 0; d < inner->ndim; d++) {
        if (index[d] >= inner->offset[d] && index[d] < inner->offset[d] + inner->extent[d])
            continue;
        int from = d;
        if (index[d] > inner->offset[d]) {
            /* Behind the range: the next element differs in an earlier dimension. */
            from = d - 1;
            while (from >= 0 && index[from] + 1 >= inner->offset[from] + inner->extent[from])
                from--;
            if (from < 0)
                return -1;
            index[from++]++;
        }
        for (int e = from; e < inner->ndim; e++)
            index[e] = inner->offset[e];
        break;
    }
    return linear(box, index);
}

/* ---- operations ---- */

static void mesh_destroy(rs_placement *placement)
{
    mesh *self = (mesh *)placement;
    for (int k = 0; self->kinds != NULL && k < self->class_count * self->kind_count; k++) {
        rs_block_fini(&self->kinds[k].table);
        free(self->kinds[k].run_start);
    }
    free(self->kinds);
    free(self->kind_of_layer);
    free(self);
}

/* Two roles are cut alike if they have the same tensors and ZeRO cuts both or neither. */
static bool same_geometry(const mesh *self, int a, int b)
{
    const rs_space *space = self->base.space;
    /* One dp rank's shard is everything, so a cut into one is no cut. */
    if (self->layout.dp > 1 && is_cut(self, a) != is_cut(self, b))
        return false;
    for (int i = 0; i < rs_space_tensor_count(space); i++)
        if ((rs_space_dtype(space, i, a) == RS_DTYPE_NONE) !=
            (rs_space_dtype(space, i, b) == RS_DTYPE_NONE))
            return false;
    return true;
}

static int mesh_geometry(const rs_placement *placement, int role)
{
    const mesh *self = mesh_of(placement);
    return self->geometry[role];
}

/* The shard that `box` is, which lies in a piece of a segment that begins at byte `segment_byte` of
 * the block's memory. */
static rs_shard make_shard(const mesh *self, int tensor, int role, const piece *whole,
    int64_t segment_byte, const rs_box *box)
{
    rs_dtype dtype = rs_space_dtype(self->base.space, tensor, role);
    int64_t size = (int64_t)rs_dtype_size(dtype);
    rs_shard shard = {.tensor = tensor,
        .role = role,
        .dtype = dtype,
        .box = *box,
        .segment = rs_layout_segment(self->base.space, role, whole->block),
        .offset = whole->byte - segment_byte + linear(&whole->box, box->offset) * size};
    for (int d = box->ndim - 1; d >= 0; d--) {
        shard.stride[d] = size;
        size *= whole->box.extent[d];
    }
    return shard;
}

/* Appends what a rank keeps of one block. */
static rs_status block_shards(
    const mesh *self, rs_coords at, int role, int block, rs_shard_list *out)
{
    part kept = part_of(self, at, role, block);
    if (kept.table == NULL)
        return RS_OK;
    const int64_t *elements = rs_block_elements(kept.table, at.tp);
    const int64_t *bytes = rs_block_bytes(kept.table, at.tp);
    int first = rs_block_at(kept.table, at.tp, kept.low);
    for (int i = first; i < kept.table->count && elements[i] < kept.high; i++) {
        if (elements[i] == elements[i + 1])
            continue;
        int tensor = kept.table->tensors[i];
        piece whole = {.block = block,
            .byte = bytes[i],
            .box = local_box(self, at.tp, rs_space_tensor(self->base.space, tensor), block - 1)};
        rs_box boxes[2 * RS_MAX_DIMS];
        int count = rs_box_linear_range(&whole.box, rs_max64(kept.low, elements[i]) - elements[i],
            rs_min64(kept.high, elements[i + 1]) - elements[i], boxes);
        for (int b = 0; b < count; b++) {
            rs_shard shard = make_shard(self, tensor, role, &whole, kept.byte, &boxes[b]);
            RS_TRY(rs_shard_append(out, &shard));
        }
    }
    return RS_OK;
}

/* Steps through the blocks of a stage: block 0, those of its layers, and the last. -1 goes in first
 * and comes out behind the last. */
static int next_block(const mesh *self, int stage, int block)
{
    int64_t begin;
    int64_t end;
    rs_layout_stage_layers(&self->layout, self->layers, stage, &begin, &end);
    int tail = (int)self->layers + 1;
    if (block < 0)
        return 0;
    if (block == tail)
        return -1;
    int next = block == 0 ? (int)begin + 1 : block + 1;
    return next <= end ? next : tail;
}

static rs_status mesh_shards(
    const rs_placement *placement, int holder, int role, rs_shard_list *out)
{
    const mesh *self = mesh_of(placement);
    rs_coords at = rs_layout_coords(&self->layout, holder);
    for (int b = next_block(self, at.pp, -1); b >= 0; b = next_block(self, at.pp, b))
        RS_TRY(block_shards(self, at, role, b, out));
    return RS_OK;
}

static rs_status mesh_segments(const rs_placement *placement, int holder, rs_segment_list *out)
{
    const mesh *self = mesh_of(placement);
    const rs_space *space = self->base.space;
    rs_coords at = rs_layout_coords(&self->layout, holder);
    for (int role = 0; role < rs_space_role_count(space); role++)
        for (int b = next_block(self, at.pp, -1); b >= 0; b = next_block(self, at.pp, b)) {
            part kept = part_of(self, at, role, b);
            if (kept.table != NULL)
                RS_TRY(rs_segment_append(out, rs_layout_segment(space, role, b), kept.bytes));
        }
    return RS_OK;
}

/* The dp ranks that keep elements of `wanted` (in the piece's box), each with its boxes that meet
 * it. */
static rs_status locate_cut(const mesh *self, int role, int tp, int stage, const piece *whole,
    const rs_box *wanted, rs_holding_list *out)
{
    int64_t total = local_elements(self, role, tp, stage);
    int64_t volume = rs_box_volume(&whole->box);
    int64_t first;
    int64_t each;
    rs_layout_flat_shard(&self->layout, total, 0, &first, &each);
    int64_t number = linear(&whole->box, wanted->offset);
    while (number >= 0) {
        int dp = (int)((whole->start + number) / each);
        int64_t begin;
        int64_t end;
        rs_layout_flat_shard(&self->layout, total, dp, &begin, &end);
        begin = rs_max64(begin - whole->start, 0);
        end = rs_min64(end - whole->start, volume);
        rs_box boxes[2 * RS_MAX_DIMS];
        int count = rs_box_linear_range(&whole->box, begin, end, boxes);
        int rank = rs_layout_rank(&self->layout, (rs_coords){.tp = tp, .pp = stage, .dp = dp});
        for (int b = 0; b < count; b++) {
            rs_box both;
            if (rs_box_intersect(&boxes[b], wanted, &both))
                RS_TRY(rs_holding_add(out, &boxes[b], rank));
        }
        number = next_linear(&whole->box, wanted, end);
    }
    return RS_OK;
}

/* Adds the holders of `box` among the ranks of one stage, in one block. */
static rs_status locate_in_block(const mesh *self, int stage, int block, int tensor, int role,
    const rs_box *box, rs_holding_list *out)
{
    const rs_tensor *described = rs_space_tensor(self->base.space, tensor);
    int cut = rs_tensor_cut_dim(described);
    int tp_begin = 0;
    int tp_end = self->layout.tp;
    if (cut >= 0)
        rs_layout_tp_owners(&self->layout, described, cut, box->offset[cut],
            box->offset[cut] + box->extent[cut], &tp_begin, &tp_end);
    for (int tp = tp_begin; tp < tp_end; tp++) {
        piece whole;
        rs_box wanted;
        if (!find_piece(self, role, tp, stage, block, tensor, &whole) ||
            !rs_box_intersect(&whole.box, box, &wanted))
            continue;
        if (is_cut(self, role)) {
            RS_TRY(locate_cut(self, role, tp, stage, &whole, &wanted, out));
            continue;
        }
        for (int dp = 0; dp < self->layout.dp; dp++)
            RS_TRY(rs_holding_add(out, &whole.box,
                rs_layout_rank(&self->layout, (rs_coords){.tp = tp, .pp = stage, .dp = dp})));
    }
    return RS_OK;
}

static rs_status mesh_locate(
    const rs_placement *placement, int tensor, int role, const rs_box *box, rs_holding_list *out)
{
    const mesh *self = mesh_of(placement);
    const rs_tensor *described = rs_space_tensor(self->base.space, tensor);
    int last = self->layout.pp - 1;
    int tail = (int)self->layers + 1;
    if (rs_tensor_has_layers(described)) {
        for (int64_t layer = box->offset[0]; layer < box->offset[0] + box->extent[0]; layer++)
            RS_TRY(
                locate_in_block(self, rs_layout_stage_of_layer(&self->layout, self->layers, layer),
                    (int)layer + 1, tensor, role, box, out));
        return RS_OK;
    }
    if (described->stage == RS_STAGE_BY_LAYER)
        for (int stage = 1; stage <= last; stage++)
            RS_TRY(locate_in_block(self, stage, 0, tensor, role, box, out));
    RS_TRY(locate_in_block(self, 0, 0, tensor, role, box, out));
    return locate_in_block(self, last, tail, tensor, role, box, out);
}

static rs_status mesh_address(const rs_placement *placement, int holder, int tensor, int role,
    const rs_box *box, rs_shard *out)
{
    const mesh *self = mesh_of(placement);
    const rs_tensor *described = rs_space_tensor(self->base.space, tensor);
    rs_coords at = rs_layout_coords(&self->layout, holder);
    int tail = (int)self->layers + 1;
    piece whole;
    bool found = rs_tensor_has_layers(described)
                     ? find_piece(self, role, at.tp, at.pp, (int)box->offset[0] + 1, tensor, &whole)
                     : find_piece(self, role, at.tp, at.pp, 0, tensor, &whole) ||
                           find_piece(self, role, at.tp, at.pp, tail, tensor, &whole);
    if (!found || !rs_box_contains(&whole.box, box))
        return rs_placement_not_found(placement, holder, tensor, role, box);
    part kept = part_of(self, at, role, whole.block);
    int64_t before = whole.start - kept.start;
    int64_t begin = rs_max64(kept.low - before, 0);
    int64_t end = rs_min64(kept.high - before, rs_box_volume(&whole.box));
    if (linear(&whole.box, box->offset) < begin || linear_last(&whole.box, box) >= end)
        return rs_placement_not_found(placement, holder, tensor, role, box);
    rs_box boxes[2 * RS_MAX_DIMS];
    int count = rs_box_linear_range(&whole.box, begin, end, boxes);
    for (int b = 0; b < count; b++) {
        if (!rs_box_contains(&boxes[b], box))
            continue;
        *out = make_shard(self, tensor, role, &whole, kept.byte, box);
        return RS_OK;
    }
    return rs_placement_not_found(placement, holder, tensor, role, box);
}

static const rs_placement_ops mesh_ops = {
    .destroy = mesh_destroy,
    .geometry = mesh_geometry,
    .shards = mesh_shards,
    .segments = mesh_segments,
    .locate = mesh_locate,
    .address = mesh_address,
};

/* ---- creation ---- */

static bool kind_has(const mesh *self, int kind_number, int64_t layer, const rs_tensor *tensor)
{
    switch (kind_number) {
    case KIND_HEAD_FIRST:
        return rs_layout_stage_has(&self->layout, tensor, 0, false);
    case KIND_HEAD:
        /* Any stage that is neither first nor last stands for all others: only what is on every
         * stage is in its head. */
        return rs_layout_stage_has(&self->layout, tensor, 1, false);
    case KIND_TAIL:
        return rs_layout_stage_has(&self->layout, tensor, self->layout.pp - 1, true);
    default:
        return rs_tensor_has_layers(tensor) && tensor->shape[0] > layer;
    }
}

/* Room for what is known of the tensors of one block. */
typedef struct scratch {
    int *tensors;
    int64_t *sizes;
    int64_t *counts;
} scratch;

static rs_status scratch_init(scratch *room, int tensors)
{
    room->tensors = rs_calloc((size_t)tensors, sizeof *room->tensors);
    room->sizes = rs_calloc((size_t)tensors, sizeof *room->sizes);
    room->counts = rs_calloc((size_t)tensors, sizeof *room->counts);
    if (room->tensors == NULL || room->sizes == NULL || room->counts == NULL)
        return rs_error_memory((size_t)tensors * sizeof *room->sizes);
    return RS_OK;
}

static void scratch_fini(scratch *room)
{
    free(room->tensors);
    free(room->sizes);
    free(room->counts);
}

static rs_status fill_kind(mesh *self, int c, int number, int64_t layer, scratch *room)
{
    kind *of = &self->kinds[c * self->kind_count + number];
    const rs_space *space = self->base.space;
    int count = 0;
    of->layer = layer;
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        rs_dtype dtype = rs_space_dtype(space, i, self->first_of[c]);
        if (dtype == RS_DTYPE_NONE || !kind_has(self, number, layer, rs_space_tensor(space, i)))
            continue;
        room->tensors[count] = i;
        room->sizes[count++] = (int64_t)rs_dtype_size(dtype);
    }
    RS_TRY(rs_block_init(&of->table, room->tensors, room->sizes, count, self->layout.tp));
    of->run_start = rs_calloc((size_t)self->layout.tp, sizeof *of->run_start);
    if (of->run_start == NULL)
        return rs_error_memory((size_t)self->layout.tp * sizeof *of->run_start);
    for (int tp = 0; tp < self->layout.tp; tp++) {
        for (int i = 0; i < count; i++)
            room->counts[i] = rs_layout_slice_elements(
                &self->layout, rs_space_tensor(space, room->tensors[i]), tp);
        rs_block_set(&of->table, tp, room->counts);
        if (number > KIND_LAYERS) {
            const kind *before = of - 1;
            of->run_start[tp] = before->run_start[tp] +
                                (layer - before->layer) * rs_block_total(&before->table, tp);
        }
    }
    return RS_OK;
}

/* Whether two roles can share tables. */
static bool same_class(const rs_space *space, int a, int b)
{
    for (int i = 0; i < rs_space_tensor_count(space); i++)
        if (rs_dtype_size(rs_space_dtype(space, i, a)) !=
            rs_dtype_size(rs_space_dtype(space, i, b)))
            return false;
    return true;
}

static void sort_roles(mesh *self)
{
    const rs_space *space = self->base.space;
    for (int role = 0; role < rs_space_role_count(space); role++) {
        int c = 0;
        while (c < self->class_count && !same_class(space, self->first_of[c], role))
            c++;
        if (c == self->class_count)
            self->first_of[self->class_count++] = role;
        self->class_of[role] = c;
        int lowest = 0;
        while (!same_geometry(self, lowest, role))
            lowest++;
        self->geometry[role] = lowest;
    }
}

static rs_status check_space(const rs_space *space)
{
    int64_t segments;
    if (!rs_add_fits(rs_space_layer_count(space), 2, &segments) ||
        !rs_mul_fits(segments, RS_MAX_ROLES, &segments) || segments > INT_MAX)
        return rs_error_set(RS_ERR_ARGUMENT, "%" PRId64 " layers are more than a layout can number",
            rs_space_layer_count(space));
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        const rs_tensor *tensor = rs_space_tensor(space, i);
        int cut = rs_tensor_cut_dim(tensor);
        for (int d = cut + 1; cut >= 0 && d < tensor->ndim; d++)
            if (tensor->axis[d] != RS_AXIS_WHOLE)
                return rs_error_set(RS_ERR_ARGUMENT,
                    "tensor %s: tp would cut dimensions %d and %d; one at most is possible",
                    tensor->name, cut, d);
    }
    return RS_OK;
}

static int compare_layers(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The layers at which a run of alike layers begins: 0, and where a tensor has no more layers. */
static size_t run_starts(const mesh *self, int64_t *starts)
{
    size_t count = 0;
    starts[count++] = 0;
    for (int i = 0; i < rs_space_tensor_count(self->base.space); i++) {
        const rs_tensor *tensor = rs_space_tensor(self->base.space, i);
        if (rs_tensor_has_layers(tensor) && tensor->shape[0] < self->layers)
            starts[count++] = tensor->shape[0];
    }
    qsort(starts, count, sizeof *starts, compare_layers);
    size_t kept = 0;
    for (size_t i = 1; i < count; i++)
        if (starts[i] != starts[kept])
            starts[++kept] = starts[i];
    return kept + 1;
}

static rs_status build_kinds(mesh *self)
{
    rs_status status;
    scratch room = {0};
    int tensors = rs_space_tensor_count(self->base.space);
    int64_t *starts = rs_calloc((size_t)tensors + 1, sizeof *starts);
    if (starts == NULL)
        return rs_error_memory(((size_t)tensors + 1) * sizeof *starts);
    RS_TRY_GOTO(scratch_init(&room, tensors), done);
    size_t runs = self->layers > 0 ? run_starts(self, starts) : 0;
    size_t kinds = (KIND_LAYERS + runs) * (size_t)self->class_count;
    self->kind_count = KIND_LAYERS + (int)runs;
    self->kinds = rs_calloc(kinds, sizeof *self->kinds);
    self->kind_of_layer = rs_calloc((size_t)self->layers, sizeof *self->kind_of_layer);
    if (self->kinds == NULL || self->kind_of_layer == NULL) {
        status = rs_error_memory((size_t)self->layers * sizeof *self->kind_of_layer);
        goto done;
    }
    for (int c = 0; c < self->class_count; c++)
        for (int k = 0; k < self->kind_count; k++)
            RS_TRY_GOTO(
                fill_kind(self, c, k, k < KIND_LAYERS ? 0 : starts[k - KIND_LAYERS], &room), done);
    int run = 0;
    for (int64_t layer = 0; layer < self->layers; layer++) {
        if (run + 1 < (int)runs && starts[run + 1] == layer)
            run++;
        self->kind_of_layer[layer] = KIND_LAYERS + run;
    }
done:
    scratch_fini(&room);
    free(starts);
    return status;
}

rs_status rs_layout_placement(const rs_space *space, const rs_layout *layout, rs_placement **out)
{
    RS_TRY(rs_layout_check(layout));
    RS_TRY(check_space(space));
    mesh *self = rs_calloc(1, sizeof *self);
    if (self == NULL)
        return rs_error_memory(sizeof *self);
    self->base =
        (rs_placement){.ops = &mesh_ops, .space = space, .holders = rs_layout_world(layout)};
    self->layout = *layout;
    self->layers = rs_space_layer_count(space);
    sort_roles(self);
    rs_status status = build_kinds(self);
    if (status != RS_OK) {
        mesh_destroy(&self->base);
        return status;
    }
    *out = &self->base;
    return RS_OK;
}
