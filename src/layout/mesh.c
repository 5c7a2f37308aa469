/*
 * The memory placement of a layout, answered on demand.
 *
 * A rank's local concatenations (layout.h) are never written down. tables.c has the running sums of
 * each kind of block for each slice; from these the place of any local box is a few additions, and
 * the way back (who has this element?) is division and binary search.
 *
 * All questions go through two structures. A *piece* is a slice's part of a tensor in one block, a
 * box; whoever has the slice has the piece, or, where ZeRO cuts, a part of it. A *frame* is what a
 * member of the group has of a piece: elements begin..end-1, in row-major order, of a box, and
 * where they lie. With zero_cut=concat the box is the piece and the range what the member's range
 * of the concatenation leaves of it; with dim0 the box has the member's rows; with param each
 * expert of a piece is a box of its own, which the members divide.
 *
 * Invariants:
 * 1. A mesh cuts experts and one other dimension of a tensor at most, so the pieces of a tensor
 * tile it, where they do not repeat.
 * 2. A rank has at most one piece of a (tensor, layer), so its shards are disjoint.
 * 3. A rank's pieces, in the order of their `start`, tile its concatenation on a mesh.
 * 4. A shard never spans layers: every (tensor, layer) is its own piece, extent 1 on axis 0.
 *
 * Cost: creation, see tables.c. A rank's shards: its own shards. Locating a box: its holders, with
 * a binary search over the tensors of a block for each (layer, slice) met. No loop runs over ranks
 * that are not part of the answer.
 */
#include "layout/mesh.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "layout/placement.h"
#include "layout/tables.h"

typedef struct mesh {
    rs_placement base;
    rs_tables tables;
    int geometry[RS_MAX_ROLES];
} mesh;

static const mesh *mesh_of(const rs_placement *placement)
{
    return (const mesh *)placement;
}

/* ---- what a rank keeps of a block ---- */

/* The role is on every part; a rank has a place on each mesh. */
typedef struct part {
    int mesh;
    int role;
    rs_place at;
    int block;             /* 0 .. blocks - 1 of its mesh */
    const rs_block *table; /* NULL: nothing */
    int64_t start;         /* of the block in the concatenation */
    int64_t low;           /* elements of the block, half open */
    int64_t high;
    int64_t byte; /* where the segment begins in the block's memory */
    int64_t bytes;
} part;

/* A segment begins at a multiple of every size that its block has, at most a few bytes before its
 * first element, so that alignment does not depend on where ZeRO cuts. */
static part part_of(const mesh *self, int on, int role, rs_place at, int block)
{
    const rs_tables *tables = &self->tables;
    const rs_block *table = rs_tables_block(tables, on, role, at.stage, block);
    part found = {.mesh = on, .role = role, .at = at, .block = block};
    if (table == NULL || rs_block_total(table, at.slice) == 0)
        return found;
    found.high = rs_block_total(table, at.slice);
    if (rs_tables_has_slots(tables, on, role)) {
        found.table = table;
        found.bytes = rs_block_bytes(table, at.slice)[table->count];
        return found;
    }
    found.start = rs_tables_start(tables, on, role, at.stage, at.slice, block);
    if (rs_tables_is_cut(tables, on, role)) {
        int group = tables->grid[on].group;
        int64_t each =
            rs_layout_flat_each(rs_tables_total(tables, on, role, at.stage, at.slice), group);
        int64_t begin = at.member % group * each - found.start;
        found.low = rs_max64(begin, 0);
        found.high = rs_min64(begin + each, found.high);
    }
    if (found.low >= found.high)
        return found;
    found.table = table;
    int64_t first = rs_block_byte(table, at.slice, found.low);
    int64_t last = found.high - 1;
    found.byte = first - first % table->align;
    found.bytes = rs_block_byte(table, at.slice, last) - found.byte +
                  table->sizes[rs_block_at(table, at.slice, last)];
    return found;
}

static int segment_of(const mesh *self, const part *kept)
{
    const rs_space *space = self->base.space;
    int block = kept->mesh == RS_DENSE ? kept->block : rs_layout_expert_block(space, kept->block);
    return rs_layout_segment(space, kept->role, block);
}

/* ---- pieces and frames ---- */

/* A slice's part of a tensor in a block. */
typedef struct piece {
    int tensor;
    int64_t start; /* elements of the block before it; not where the role has slots */
    int64_t byte;  /* of its first element in the block's memory */
    rs_box box;
} piece;

/* What a member has of a piece: elements begin..end-1 of a box. */
typedef struct frame {
    rs_box box;
    int64_t begin;
    int64_t end;
    int64_t byte; /* in the segment, of the box's element 0, were it there */
} frame;

static const rs_tensor *described(const mesh *self, int tensor)
{
    return rs_space_tensor(self->base.space, tensor);
}

/* The piece of the tensor at place `i` of a block's table; false if it is empty. */
static bool make_piece(
    const mesh *self, const rs_block *table, int slice, int block, int i, piece *out)
{
    out->tensor = table->tensors[i];
    out->start = rs_block_elements(table, slice)[i];
    out->byte = rs_block_bytes(table, slice)[i];
    out->box = rs_tables_local_box(&self->tables, described(self, out->tensor), slice, block - 1);
    return !rs_box_is_empty(&out->box);
}

/* The piece of `tensor` in `block` of (stage, slice); false if it has none. */
static bool find_piece(
    const mesh *self, int role, int stage, int slice, int block, int tensor, piece *out)
{
    int on = rs_tensor_mesh(described(self, tensor));
    const rs_block *table = rs_tables_block(&self->tables, on, role, stage, block);
    int i = table != NULL ? rs_block_find(table, tensor) : -1;
    return i >= 0 && make_piece(self, table, slice, block, i, out);
}

/* How many frames a member has of a piece. */
static int64_t frame_count(const mesh *self, const part *kept, const piece *whole)
{
    if (!rs_tables_has_slots(&self->tables, kept->mesh, kept->role))
        return 1;
    return rs_tables_slots(&self->tables, described(self, whole->tensor), &whole->box).units;
}

static frame make_frame(const mesh *self, const part *kept, const piece *whole, int64_t which)
{
    frame made = {.box = whole->box, .byte = whole->byte - kept->byte};
    if (!rs_tables_has_slots(&self->tables, kept->mesh, kept->role)) {
        made.begin = rs_max64(kept->low - whole->start, 0);
        made.end = rs_min64(kept->high - whole->start, rs_box_volume(&whole->box));
        return made;
    }
    int64_t size =
        (int64_t)rs_dtype_size(rs_space_dtype(self->base.space, whole->tensor, kept->role));
    int64_t number = kept->at.member % self->tables.grid[kept->mesh].group;
    rs_slots slots = rs_tables_slots(&self->tables, described(self, whole->tensor), &whole->box);
    int64_t begin = rs_min64(number * slots.each, slots.length);
    int64_t end = rs_min64(begin + slots.each, slots.length);
    if (slots.cut_dim >= 0) {
        made.box.offset[slots.cut_dim] += begin;
        made.box.extent[slots.cut_dim] = end - begin;
        made.end = rs_box_volume(&made.box);
        return made;
    }
    if (slots.unit_dim >= 0) {
        made.box.offset[slots.unit_dim] += which;
        made.box.extent[slots.unit_dim] = 1;
    }
    made.begin = begin;
    made.end = end;
    made.byte += (which * slots.each - begin) * size;
    return made;
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

/* The shard that `box`, in a frame, is. */
static rs_shard make_shard(
    const mesh *self, const part *kept, int tensor, const frame *in, const rs_box *box)
{
    rs_dtype dtype = rs_space_dtype(self->base.space, tensor, kept->role);
    int64_t size = (int64_t)rs_dtype_size(dtype);
    rs_shard shard = {.tensor = tensor,
        .role = kept->role,
        .dtype = dtype,
        .box = *box,
        .segment = segment_of(self, kept),
        .offset = in->byte + linear(&in->box, box->offset) * size};
    for (int d = box->ndim - 1; d >= 0; d--) {
        shard.stride[d] = size;
        size *= in->box.extent[d];
    }
    return shard;
}

/* ---- what a rank has ---- */

static void mesh_destroy(rs_placement *placement)
{
    mesh *self = (mesh *)placement;
    rs_tables_fini(&self->tables);
    free(self);
}

static int mesh_geometry(const rs_placement *placement, int role)
{
    return mesh_of(placement)->geometry[role];
}

/* Appends what a rank keeps of one block. */
static rs_status block_shards(const mesh *self, const part *kept, rs_shard_list *out)
{
    if (kept->table == NULL)
        return RS_OK;
    const int64_t *elements = rs_block_elements(kept->table, kept->at.slice);
    int first = rs_block_at(kept->table, kept->at.slice, kept->low);
    for (int i = first; i < kept->table->count && elements[i] < kept->high; i++) {
        piece whole;
        if (!make_piece(self, kept->table, kept->at.slice, kept->block, i, &whole))
            continue;
        int64_t frames = frame_count(self, kept, &whole);
        for (int64_t f = 0; f < frames; f++) {
            frame in = make_frame(self, kept, &whole, f);
            rs_box boxes[2 * RS_MAX_DIMS];
            int count = rs_box_linear_range(&in.box, in.begin, in.end, boxes);
            for (int b = 0; b < count; b++) {
                rs_shard shard = make_shard(self, kept, whole.tensor, &in, &boxes[b]);
                RS_TRY(rs_shard_append(out, &shard));
            }
        }
    }
    return RS_OK;
}

static rs_status mesh_shards(
    const rs_placement *placement, int holder, int role, rs_shard_list *out)
{
    const mesh *self = mesh_of(placement);
    for (int on = 0; on < RS_MESHES; on++) {
        rs_place at = rs_layout_place(&self->tables.layout, on, holder);
        int b = -1;
        while ((b = rs_tables_next_block(&self->tables, at.stage, b)) >= 0) {
            part kept = part_of(self, on, role, at, b);
            RS_TRY(block_shards(self, &kept, out));
        }
    }
    return RS_OK;
}

static rs_status mesh_segments(const rs_placement *placement, int holder, rs_segment_list *out)
{
    const mesh *self = mesh_of(placement);
    for (int role = 0; role < rs_space_role_count(self->base.space); role++)
        for (int on = 0; on < RS_MESHES; on++) {
            rs_place at = rs_layout_place(&self->tables.layout, on, holder);
            int b = -1;
            while ((b = rs_tables_next_block(&self->tables, at.stage, b)) >= 0) {
                part kept = part_of(self, on, role, at, b);
                if (kept.table != NULL)
                    RS_TRY(rs_segment_append(out, segment_of(self, &kept), kept.bytes));
            }
        }
    return RS_OK;
}

static rs_status mesh_address(const rs_placement *placement, int holder, int tensor, int role,
    const rs_box *box, rs_shard *out)
{
    const mesh *self = mesh_of(placement);
    const rs_tensor *of = described(self, tensor);
    int on = rs_tensor_mesh(of);
    rs_place at = rs_layout_place(&self->tables.layout, on, holder);
    int block = rs_tensor_has_layers(of) ? (int)rs_tensor_layer(of, box->offset[0]) + 1 : 0;
    piece whole;
    bool found = find_piece(self, role, at.stage, at.slice, block, tensor, &whole);
    if (!found && !rs_tensor_has_layers(of)) {
        block = self->tables.blocks - 1;
        found = find_piece(self, role, at.stage, at.slice, block, tensor, &whole);
    }
    if (!found || !rs_box_contains(&whole.box, box))
        return rs_placement_not_found(placement, holder, tensor, role, box);
    part kept = part_of(self, on, role, at, block);
    int64_t which = 0;
    if (kept.table != NULL && rs_tables_has_slots(&self->tables, on, role)) {
        int unit_dim = rs_tables_slots(&self->tables, of, &whole.box).unit_dim;
        which = unit_dim >= 0 ? box->offset[unit_dim] - whole.box.offset[unit_dim] : 0;
    }
    frame in = make_frame(self, &kept, &whole, which);
    if (kept.table == NULL || !rs_box_contains(&in.box, box) ||
        linear(&in.box, box->offset) < in.begin || linear_last(&in.box, box) >= in.end)
        return rs_placement_not_found(placement, holder, tensor, role, box);
    rs_box boxes[2 * RS_MAX_DIMS];
    int count = rs_box_linear_range(&in.box, in.begin, in.end, boxes);
    for (int b = 0; b < count; b++) {
        if (!rs_box_contains(&boxes[b], box))
            continue;
        *out = make_shard(self, &kept, tensor, &in, box);
        return RS_OK;
    }
    return rs_placement_not_found(placement, holder, tensor, role, box);
}

/* ---- who has a box ---- */

/* A slice of a stage that has some of what is looked for, and where its answers go. */
typedef struct search {
    const mesh *self;
    int mesh;
    int stage;
    int slice;
    int first; /* the number of its member 0 */
    int group; /* 1 where the role is not cut */
    rs_holding_list *out;
} search;

/* Adds `box` with those members that are number `number` of their group. */
static rs_status add_members(const search *s, const rs_box *box, int number)
{
    const rs_grid *grid = &s->self->tables.grid[s->mesh];
    for (int m = number; m < grid->spread; m += s->group)
        RS_TRY(rs_holding_add(s->out, box, rs_grid_rank(grid, s->stage, s->first, m)));
    return RS_OK;
}

/*
 * `box` lies at `start` of a sequence of elements of which member d has d * each .. (d + 1) * each
 * - 1: adds those that have some of `wanted`, which is in the box, each with its boxes that meet
 * it.
 */
static rs_status locate_range(
    const search *s, const rs_box *box, int64_t start, int64_t each, const rs_box *wanted)
{
    int64_t volume = rs_box_volume(box);
    int64_t number = linear(box, wanted->offset);
    while (number >= 0) {
        int64_t member = (start + number) / each;
        int64_t begin = rs_max64(member * each - start, 0);
        int64_t end = rs_min64((member + 1) * each - start, volume);
        rs_box boxes[2 * RS_MAX_DIMS];
        int count = rs_box_linear_range(box, begin, end, boxes);
        for (int b = 0; b < count; b++) {
            rs_box both;
            if (rs_box_intersect(&boxes[b], wanted, &both))
                RS_TRY(add_members(s, &boxes[b], (int)member));
        }
        number = next_linear(box, wanted, end);
    }
    return RS_OK;
}

/* The same where members have rows of the box. */
static rs_status locate_rows(
    const search *s, const rs_slots *slots, const rs_box *box, const rs_box *wanted)
{
    int d = slots->cut_dim;
    int64_t low = wanted->offset[d] - box->offset[d];
    int64_t high = low + wanted->extent[d];
    for (int64_t member = low / slots->each; member * slots->each < high; member++) {
        rs_box rows = *box;
        rows.offset[d] += member * slots->each;
        rows.extent[d] = rs_min64(slots->each, slots->length - member * slots->each);
        RS_TRY(add_members(s, &rows, (int)member));
    }
    return RS_OK;
}

/* The same where members have parts of each expert. */
static rs_status locate_units(
    const search *s, const rs_slots *slots, const rs_box *box, const rs_box *wanted)
{
    int d = slots->unit_dim;
    int64_t first = d >= 0 ? wanted->offset[d] : 0;
    int64_t end = d >= 0 ? first + wanted->extent[d] : 1;
    for (int64_t i = first; i < end; i++) {
        rs_box unit = *box;
        rs_box both = *wanted;
        if (d >= 0) {
            unit.offset[d] = both.offset[d] = i;
            unit.extent[d] = both.extent[d] = 1;
        }
        RS_TRY(locate_range(s, &unit, 0, slots->each, &both));
    }
    return RS_OK;
}

/* Adds the holders of `box` among the ranks of one slice, in one block. */
static rs_status locate_in_slice(search *s, int block, int tensor, int role, const rs_box *box)
{
    const rs_tables *tables = &s->self->tables;
    piece whole;
    rs_box wanted;
    if (!find_piece(s->self, role, s->stage, s->slice, block, tensor, &whole) ||
        !rs_box_intersect(&whole.box, box, &wanted))
        return RS_OK;
    s->first = rs_layout_slice_number(&tables->layout, s->mesh, s->slice);
    s->group = rs_tables_is_cut(tables, s->mesh, role) ? tables->grid[s->mesh].group : 1;
    if (s->group == 1)
        return add_members(s, &whole.box, 0);
    if (rs_tables_has_slots(tables, s->mesh, role)) {
        rs_slots slots = rs_tables_slots(tables, described(s->self, tensor), &whole.box);
        return slots.cut_dim >= 0 ? locate_rows(s, &slots, &whole.box, &wanted)
                                  : locate_units(s, &slots, &whole.box, &wanted);
    }
    int64_t total = rs_tables_total(tables, s->mesh, role, s->stage, s->slice);
    int64_t start = rs_tables_start(tables, s->mesh, role, s->stage, s->slice, block);
    return locate_range(
        s, &whole.box, start + whole.start, rs_layout_flat_each(total, s->group), &wanted);
}

/* The same among the ranks of a pipeline rank. */
static rs_status locate_in_block(const mesh *self, int stage, int block, int tensor, int role,
    const rs_box *box, rs_holding_list *out)
{
    const rs_layout *layout = &self->tables.layout;
    const rs_tensor *of = described(self, tensor);
    int on = rs_tensor_mesh(of);
    int cut = rs_tensor_cut_dim(of);
    int experts = rs_tensor_expert_dim(of);
    int width = on == RS_DENSE ? layout->tp : rs_layout_etp(layout);
    int tp_begin = 0;
    int tp_end = width;
    int ep_begin = 0;
    int ep_end = 1;
    if (cut >= 0)
        rs_layout_tp_owners(layout, of, cut, box->offset[cut], box->offset[cut] + box->extent[cut],
            &tp_begin, &tp_end);
    if (experts >= 0)
        rs_layout_ep_owners(layout, of, experts, box->offset[experts],
            box->offset[experts] + box->extent[experts], &ep_begin, &ep_end);
    search s = {.self = self, .mesh = on, .stage = stage, .out = out};
    for (int ep = ep_begin; ep < ep_end; ep++)
        for (int tp = tp_begin; tp < tp_end; tp++) {
            s.slice = tp + ep * width;
            RS_TRY(locate_in_slice(&s, block, tensor, role, box));
        }
    return RS_OK;
}

static rs_status mesh_locate(
    const rs_placement *placement, int tensor, int role, const rs_box *box, rs_holding_list *out)
{
    const mesh *self = mesh_of(placement);
    const rs_layout *layout = &self->tables.layout;
    const rs_tensor *of = described(self, tensor);
    if (rs_tensor_has_layers(of)) {
        for (int64_t i = box->offset[0]; i < box->offset[0] + box->extent[0]; i++) {
            int64_t layer = rs_tensor_layer(of, i);
            int stage = rs_layout_stage_of_layer(layout, self->tables.layers, layer) % layout->pp;
            RS_TRY(locate_in_block(self, stage, (int)layer + 1, tensor, role, box, out));
        }
        return RS_OK;
    }
    if (of->stage == RS_STAGE_BY_LAYER)
        for (int stage = 1; stage < layout->pp; stage++)
            RS_TRY(locate_in_block(self, stage, 0, tensor, role, box, out));
    RS_TRY(locate_in_block(self, 0, 0, tensor, role, box, out));
    return locate_in_block(self, layout->pp - 1, self->tables.blocks - 1, tensor, role, box, out);
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

/* Two roles are cut alike if they have the same tensors and ZeRO cuts both or neither. */
static bool same_geometry(const mesh *self, int a, int b)
{
    const rs_space *space = self->base.space;
    bool experts = rs_space_expert_count(space) > 0;
    for (int on = 0; on < (experts ? RS_MESHES : RS_EXPERTS); on++)
        if (rs_tables_is_cut(&self->tables, on, a) != rs_tables_is_cut(&self->tables, on, b))
            return false;
    for (int i = 0; i < rs_space_tensor_count(space); i++)
        if ((rs_space_dtype(space, i, a) == RS_DTYPE_NONE) !=
            (rs_space_dtype(space, i, b) == RS_DTYPE_NONE))
            return false;
    return true;
}

rs_status rs_layout_placement(const rs_space *space, const rs_layout *layout, rs_placement **out)
{
    RS_TRY(rs_layout_check(layout));
    RS_TRY(rs_layout_check_stages(layout, space));
    mesh *self = rs_calloc(1, sizeof *self);
    if (self == NULL)
        return rs_error_memory(sizeof *self);
    self->base =
        (rs_placement){.ops = &mesh_ops, .space = space, .holders = rs_layout_world(layout)};
    rs_status status = rs_tables_init(&self->tables, space, layout);
    if (status != RS_OK) {
        mesh_destroy(&self->base);
        return status;
    }
    for (int role = 0; role < rs_space_role_count(space); role++)
        while (!same_geometry(self, self->geometry[role], role))
            self->geometry[role]++;
    *out = &self->base;
    return RS_OK;
}
