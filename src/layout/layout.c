/*
 * The arithmetic of layouts: who owns which layers, experts, heads, rows and flat ranges.
 *
 * Everything here is a closed formula of one rank's coordinates; mesh.c makes a placement of it.
 *
 * Rules (docs/layouts.md has worked examples):
 * 1. A rank's coordinates are the digits of its number, the fastest axis of `order` first. Ranks of
 * one pipeline stage are counted in that order too, and their digits on the experts' mesh are those
 * of that count; so a stage's ranks are the same on both meshes, wherever pp stands.
 * 2. Layers over stages, experts over ep: sizes differ by at most one, larger first. More ep ranks
 * than experts: the ranks are dealt over the experts.
 * 3. Heads, feed-forward rows and vocabulary rows over tp or etp: ceil(n / tp) units each, in
 * order, fewer at the end, so that some ranks may be left with nothing.
 * 4. Key/value heads: exactly those that a rank's query heads use; neighbours may share one.
 * 5. ZeRO: ranks that have the same slice, by number, in groups of neighbours; what a group
 * divides, all groups have.
 */
#include "reshard/layout.h"

#include <inttypes.h>

#include "base/checked.h"
#include "base/search.h"
#include "layout/mesh.h"

/* ---- ranks ---- */

int rs_layout_world(const rs_layout *layout)
{
    return layout->tp * layout->cp * layout->pp * layout->dp;
}

int rs_layout_etp(const rs_layout *layout)
{
    return layout->etp > 0 ? layout->etp : layout->tp;
}

int rs_layout_edp(const rs_layout *layout)
{
    return layout->tp * layout->cp * layout->dp / (rs_layout_etp(layout) * layout->ep);
}

static int gcd(int a, int b)
{
    while (b != 0) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

int rs_layout_shard_group(const rs_layout *layout, bool experts)
{
    int spread = layout->cp * layout->dp;
    int group = layout->shard > 0 ? layout->shard : spread;
    if (!experts)
        return group;
    /* In as many groups as the dense ones, or as many of those as edp allows. */
    int edp = rs_layout_edp(layout);
    return edp / gcd(spread / group, edp);
}

/* Sizes and digits of the axes of a mesh but for pp; an axis that is not on it has size 1. */
static void mesh_sizes(const rs_layout *layout, int mesh, int *sizes)
{
    bool dense = mesh == RS_DENSE;
    sizes[RS_MESH_TP] = dense ? layout->tp : rs_layout_etp(layout);
    sizes[RS_MESH_CP] = dense ? layout->cp : 1;
    sizes[RS_MESH_EP] = dense ? 1 : layout->ep;
    sizes[RS_MESH_DP] = dense ? layout->dp : rs_layout_edp(layout);
    sizes[RS_MESH_PP] = 1;
}

static void to_digits(const rs_layout *layout, int mesh, int index, int *digits)
{
    int sizes[RS_MESH_AXES];
    mesh_sizes(layout, mesh, sizes);
    for (int i = 0; i < RS_MESH_AXES; i++) {
        rs_mesh_axis axis = layout->order[i];
        digits[axis] = index % sizes[axis];
        index /= sizes[axis];
    }
}

static int from_digits(const rs_layout *layout, int mesh, const int *digits)
{
    int sizes[RS_MESH_AXES];
    int index = 0;
    mesh_sizes(layout, mesh, sizes);
    for (int i = RS_MESH_AXES - 1; i >= 0; i--) {
        rs_mesh_axis axis = layout->order[i];
        index = index * sizes[axis] + digits[axis];
    }
    return index;
}

/* Ranks between two that differ by one in pp. */
static int stage_step(const rs_layout *layout)
{
    int sizes[RS_MESH_AXES];
    int step = 1;
    mesh_sizes(layout, RS_DENSE, sizes);
    for (int i = 0; layout->order[i] != RS_MESH_PP; i++)
        step *= sizes[layout->order[i]];
    return step;
}

/* The pipeline rank, and the rank's number among those of its stage. */
static int split_rank(const rs_layout *layout, int rank, int *index)
{
    int step = stage_step(layout);
    *index = rank % step + rank / step / layout->pp * step;
    return rank / step % layout->pp;
}

static int join_rank(const rs_layout *layout, int stage, int index)
{
    return rs_stage_rank(layout->pp, stage_step(layout), stage, index);
}

rs_coords rs_layout_coords(const rs_layout *layout, int rank)
{
    int dense[RS_MESH_AXES];
    int experts[RS_MESH_AXES];
    int index;
    int stage = split_rank(layout, rank, &index);
    to_digits(layout, RS_DENSE, index, dense);
    to_digits(layout, RS_EXPERTS, index, experts);
    return (rs_coords){.tp = dense[RS_MESH_TP],
        .cp = dense[RS_MESH_CP],
        .dp = dense[RS_MESH_DP],
        .pp = stage,
        .etp = experts[RS_MESH_TP],
        .ep = experts[RS_MESH_EP],
        .edp = experts[RS_MESH_DP]};
}

int rs_layout_rank(const rs_layout *layout, rs_coords coords)
{
    const int digits[RS_MESH_AXES] = {
        [RS_MESH_TP] = coords.tp, [RS_MESH_CP] = coords.cp, [RS_MESH_DP] = coords.dp};
    return join_rank(layout, coords.pp, from_digits(layout, RS_DENSE, digits));
}

int rs_layout_expert_rank(const rs_layout *layout, rs_coords coords)
{
    const int digits[RS_MESH_AXES] = {
        [RS_MESH_TP] = coords.etp, [RS_MESH_EP] = coords.ep, [RS_MESH_DP] = coords.edp};
    return join_rank(layout, coords.pp, from_digits(layout, RS_EXPERTS, digits));
}

/* Whether cp is faster than dp. */
static bool cp_first(const rs_layout *layout)
{
    for (int i = 0; i < RS_MESH_AXES; i++)
        if (layout->order[i] == RS_MESH_CP || layout->order[i] == RS_MESH_DP)
            return layout->order[i] == RS_MESH_CP;
    return true;
}

rs_place rs_layout_place(const rs_layout *layout, int mesh, int rank)
{
    rs_coords at = rs_layout_coords(layout, rank);
    if (mesh == RS_EXPERTS)
        return (rs_place){
            .stage = at.pp, .slice = at.etp + at.ep * rs_layout_etp(layout), .member = at.edp};
    return (rs_place){.stage = at.pp,
        .slice = at.tp,
        .member = cp_first(layout) ? at.cp + at.dp * layout->cp : at.dp + at.cp * layout->dp};
}

/* The number of a slice's member among the ranks of its stage. */
static int number_of(const rs_layout *layout, int mesh, int slice, int member)
{
    int digits[RS_MESH_AXES] = {0};
    if (mesh == RS_EXPERTS) {
        digits[RS_MESH_TP] = slice % rs_layout_etp(layout);
        digits[RS_MESH_EP] = slice / rs_layout_etp(layout);
        digits[RS_MESH_DP] = member;
    } else {
        digits[RS_MESH_TP] = slice;
        digits[RS_MESH_CP] = cp_first(layout) ? member % layout->cp : member / layout->dp;
        digits[RS_MESH_DP] = cp_first(layout) ? member / layout->cp : member % layout->dp;
    }
    return from_digits(layout, mesh, digits);
}

int rs_layout_slice_number(const rs_layout *layout, int mesh, int slice)
{
    return number_of(layout, mesh, slice, 0);
}

rs_grid rs_layout_grid(const rs_layout *layout, int mesh)
{
    rs_grid grid = {.stages = layout->pp, .below = stage_step(layout)};
    grid.group = rs_layout_shard_group(layout, mesh == RS_EXPERTS);
    if (mesh == RS_DENSE) {
        grid.slices = layout->tp;
        grid.spread = layout->cp * layout->dp;
        grid.inner = cp_first(layout) ? layout->cp : layout->dp;
    } else {
        grid.slices = rs_layout_etp(layout) * layout->ep;
        grid.spread = rs_layout_edp(layout);
        grid.inner = grid.spread;
    }
    if (grid.inner > 1)
        grid.step = number_of(layout, mesh, 0, 1);
    if (grid.spread > grid.inner)
        grid.leap = number_of(layout, mesh, 0, grid.inner);
    return grid;
}

int rs_layout_shard_member(const rs_layout *layout, bool experts, int rank)
{
    return rs_layout_place(layout, experts ? RS_EXPERTS : RS_DENSE, rank).member %
           rs_layout_shard_group(layout, experts);
}

/* ---- things dealt in sizes within one ---- */

/* Part `part` of `n` things in `parts`, larger parts first. */
static void even_part(int64_t n, int64_t parts, int64_t part, int64_t *begin, int64_t *end)
{
    int64_t each = n / parts;
    int64_t larger = n % parts;
    *begin = part * each + rs_min64(part, larger);
    *end = *begin + each + (part < larger ? 1 : 0);
}

/* The part that has thing `index`. */
static int64_t even_owner(int64_t n, int64_t parts, int64_t index)
{
    int64_t each = n / parts;
    int64_t larger = n % parts;
    int64_t in_larger = larger * (each + 1);
    return index < in_larger ? index / (each + 1) : larger + (index - in_larger) / each;
}

void rs_layout_stage_layers(
    const rs_layout *layout, int64_t layers, int stage, int64_t *begin, int64_t *end)
{
    if (layout->stage_count == 0) {
        even_part(layers, (int64_t)layout->pp * layout->vpp, stage, begin, end);
        return;
    }
    *begin = stage > 0 ? layout->stage_end[stage - 1] : 0;
    *end = layout->stage_end[stage];
}

int rs_layout_stage_of_layer(const rs_layout *layout, int64_t layers, int64_t layer)
{
    if (layout->stage_count == 0)
        return (int)even_owner(layers, (int64_t)layout->pp * layout->vpp, layer);
    return (int)RS_SEARCH(layout->stage_count - 1, stage, layout->stage_end[stage] <= layer);
}

bool rs_layout_stage_has(const rs_layout *layout, const rs_tensor *tensor, int stage, bool tail)
{
    bool last = stage == layout->pp - 1;
    if (rs_tensor_has_layers(tensor))
        return false;
    switch (tensor->stage) {
    case RS_STAGE_BY_LAYER:
        return !tail;
    case RS_STAGE_FIRST:
        return !tail && stage == 0;
    case RS_STAGE_LAST:
        return tail && last;
    case RS_STAGE_FIRST_AND_LAST:
        return tail ? last && layout->pp > 1 : stage == 0;
    }
    return false;
}

void rs_layout_ep_range(
    const rs_layout *layout, const rs_tensor *tensor, int dim, int ep, int64_t *begin, int64_t *end)
{
    int64_t unit = rs_max64(tensor->unit[dim], 1);
    int64_t experts = tensor->shape[dim] / unit;
    if (experts >= layout->ep || experts == 0) {
        even_part(experts, layout->ep, ep, begin, end);
    } else {
        *begin = even_owner(layout->ep, experts, ep);
        *end = *begin + 1;
    }
    *begin *= unit;
    *end *= unit;
}

void rs_layout_ep_owners(const rs_layout *layout, const rs_tensor *tensor, int dim, int64_t low,
    int64_t high, int *begin, int *end)
{
    int64_t unit = rs_max64(tensor->unit[dim], 1);
    int64_t experts = tensor->shape[dim] / unit;
    int64_t first = low / unit;
    int64_t last = (high - 1) / unit;
    if (experts >= layout->ep) {
        *begin = (int)even_owner(experts, layout->ep, first);
        *end = (int)even_owner(experts, layout->ep, last) + 1;
        return;
    }
    int64_t first_begin, first_end, last_begin, last_end;
    even_part(layout->ep, experts, first, &first_begin, &first_end);
    even_part(layout->ep, experts, last, &last_begin, &last_end);
    *begin = (int)first_begin;
    *end = (int)last_end;
}

/* ---- heads and rows over tp and etp ---- */

int rs_tensor_expert_dim(const rs_tensor *tensor)
{
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->axis[d] == RS_AXIS_EXPERT)
            return d;
    return -1;
}

static bool is_cut(rs_axis axis)
{
    return axis != RS_AXIS_WHOLE && axis != RS_AXIS_LAYER && axis != RS_AXIS_EXPERT;
}

int rs_tensor_cut_dim(const rs_tensor *tensor)
{
    for (int d = 0; d < tensor->ndim; d++)
        if (is_cut(tensor->axis[d]))
            return d;
    return -1;
}

/* What is dealt along a dimension: `dealt` units by the ceil rule; for key/value heads these are
 * query heads, `group` to a head, else group is 1. `unit` elements of the dimension per unit or
 * head. */
typedef struct dealing {
    int64_t dealt;
    int64_t group;
    int64_t unit;
    int64_t each; /* units per rank */
} dealing;

static dealing dealing_of(const rs_layout *layout, const rs_tensor *tensor, int dim)
{
    dealing deal = {.unit = rs_max64(tensor->unit[dim], 1), .group = 1};
    int parts = rs_tensor_mesh(tensor) == RS_DENSE ? layout->tp : rs_layout_etp(layout);
    if (tensor->axis[dim] == RS_AXIS_KV_HEAD)
        deal.group = rs_max64(tensor->kv_group, 1);
    deal.dealt = tensor->shape[dim] / deal.unit * deal.group;
    deal.each = rs_ceil_div(deal.dealt, parts);
    return deal;
}

void rs_layout_tp_range(
    const rs_layout *layout, const rs_tensor *tensor, int dim, int tp, int64_t *begin, int64_t *end)
{
    if (!is_cut(tensor->axis[dim])) {
        *begin = 0;
        *end = tensor->shape[dim];
        return;
    }
    dealing deal = dealing_of(layout, tensor, dim);
    int64_t first = rs_min64(tp * deal.each, deal.dealt);
    int64_t last = rs_min64(first + deal.each, deal.dealt);
    /* An empty range of query heads uses no key/value head; both ends of it round up alike. */
    int64_t low = last > first ? first / deal.group : rs_ceil_div(first, deal.group);
    *begin = low * deal.unit;
    *end = rs_ceil_div(last, deal.group) * deal.unit;
}

void rs_layout_tp_owners(const rs_layout *layout, const rs_tensor *tensor, int dim, int64_t low,
    int64_t high, int *begin, int *end)
{
    dealing deal = dealing_of(layout, tensor, dim);
    int64_t first = low / deal.unit * deal.group;
    int64_t last = rs_ceil_div(high, deal.unit) * deal.group - 1;
    *begin = (int)(first / deal.each);
    *end = (int)(last / deal.each) + 1;
}

void rs_layout_slice_range(const rs_layout *layout, const rs_tensor *tensor, int dim, int slice,
    int64_t *begin, int64_t *end)
{
    int etp = rs_layout_etp(layout);
    if (tensor->axis[dim] == RS_AXIS_EXPERT)
        rs_layout_ep_range(layout, tensor, dim, slice / etp, begin, end);
    else
        rs_layout_tp_range(layout, tensor, dim,
            rs_tensor_mesh(tensor) == RS_DENSE ? slice : slice % etp, begin, end);
}

int64_t rs_layout_slice_elements(const rs_layout *layout, const rs_tensor *tensor, int slice)
{
    int64_t elements = 1;
    for (int d = rs_tensor_has_layers(tensor) ? 1 : 0; d < tensor->ndim; d++) {
        int64_t begin;
        int64_t end;
        rs_layout_slice_range(layout, tensor, d, slice, &begin, &end);
        elements *= end - begin;
    }
    return elements;
}

/* ---- the local concatenations ---- */

int rs_layout_block_count(const rs_space *space)
{
    int blocks = (int)rs_space_layer_count(space) + 2;
    return rs_space_expert_count(space) > 0 ? 2 * blocks : blocks;
}

int rs_layout_expert_block(const rs_space *space, int block)
{
    return (int)rs_space_layer_count(space) + 2 + block;
}

int rs_layout_segment(const rs_space *space, int role, int block)
{
    return role * rs_layout_block_count(space) + block;
}

/* Layers before `limit` that a pipeline rank has of a tensor. */
static int64_t layers_within(
    const rs_layout *layout, int64_t layers, int stage, const rs_tensor *tensor, int64_t limit)
{
    int64_t count = 0;
    for (int v = 0; v < layout->vpp; v++) {
        int64_t first;
        int64_t end;
        rs_layout_stage_layers(layout, layers, v * layout->pp + stage, &first, &end);
        if (first < limit)
            count += rs_tensor_layers_before(tensor, rs_min64(end, limit)) -
                     rs_tensor_layers_before(tensor, first);
    }
    return count;
}

/* Elements that a rank has on a mesh in blocks before `block`, of the tensors that have `role` (-1:
 * of all). */
static int64_t elements_before(
    const rs_space *space, const rs_layout *layout, int mesh, int rank, int role, int64_t block)
{
    int64_t layers = rs_space_layer_count(space);
    rs_place at = rs_layout_place(layout, mesh, rank);
    int64_t elements = 0;
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        const rs_tensor *tensor = rs_space_tensor(space, i);
        if (rs_tensor_mesh(tensor) != mesh ||
            (role >= 0 && rs_space_dtype(space, i, role) == RS_DTYPE_NONE))
            continue;
        int64_t times;
        if (rs_tensor_has_layers(tensor))
            times = layers_within(layout, layers, at.stage, tensor, block - 1);
        else
            times = (block > 0 && rs_layout_stage_has(layout, tensor, at.stage, false)) +
                    (block > layers + 1 && rs_layout_stage_has(layout, tensor, at.stage, true));
        elements += times > 0 ? times * rs_layout_slice_elements(layout, tensor, at.slice) : 0;
    }
    return elements;
}

static int64_t mesh_elements(
    const rs_space *space, const rs_layout *layout, int mesh, int rank, int role)
{
    return elements_before(space, layout, mesh, rank, role, rs_space_layer_count(space) + 2);
}

void rs_layout_block_range(const rs_space *space, const rs_layout *layout, int rank, int block,
    int64_t *begin, int64_t *end)
{
    int64_t per_mesh = rs_space_layer_count(space) + 2;
    int mesh = block < per_mesh ? RS_DENSE : RS_EXPERTS;
    int64_t first = mesh == RS_DENSE ? block : block - per_mesh;
    *begin = elements_before(space, layout, mesh, rank, -1, first);
    *end = elements_before(space, layout, mesh, rank, -1, first + 1);
}

int64_t rs_layout_local_elements(const rs_space *space, const rs_layout *layout, int rank)
{
    return mesh_elements(space, layout, RS_DENSE, rank, -1);
}

int64_t rs_layout_expert_elements(const rs_space *space, const rs_layout *layout, int rank)
{
    return mesh_elements(space, layout, RS_EXPERTS, rank, -1);
}

bool rs_layout_shards_class(const rs_layout *layout, rs_role_class role_class)
{
    switch (role_class) {
    case RS_ROLE_OPTIMIZER:
        return layout->zero >= 1;
    case RS_ROLE_GRADIENT:
        return layout->zero >= 2;
    case RS_ROLE_MODEL:
        return layout->zero >= 3;
    }
    return false;
}

int64_t rs_layout_flat_each(int64_t total, int group)
{
    return rs_round_up(rs_ceil_div(total, group), RS_FLAT_ALIGN);
}

static void flat_range(const rs_space *space, const rs_layout *layout, int mesh, int rank, int role,
    int64_t *begin, int64_t *end)
{
    int64_t total = mesh_elements(space, layout, mesh, rank, role);
    *begin = 0;
    *end = total;
    if (!rs_layout_shards_class(layout, rs_space_role(space, role)->role_class))
        return;
    int group = rs_layout_grid(layout, mesh).group;
    int64_t each = rs_layout_flat_each(total, group);
    *begin = rs_min64(rs_layout_place(layout, mesh, rank).member % group * each, total);
    *end = rs_min64(*begin + each, total);
}

void rs_layout_flat_range(const rs_space *space, const rs_layout *layout, int rank, int role,
    int64_t *begin, int64_t *end)
{
    flat_range(space, layout, RS_DENSE, rank, role, begin, end);
}

void rs_layout_expert_flat_range(const rs_space *space, const rs_layout *layout, int rank, int role,
    int64_t *begin, int64_t *end)
{
    flat_range(space, layout, RS_EXPERTS, rank, role, begin, end);
}
