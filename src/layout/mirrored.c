/*
 * The placement of a layout in a job with redundancy: what ZeRO gave to ranks of one node alone is
 * mirrored on another one.
 *
 * ZeRO cuts a slice's roles into pieces, one per member of a group. Where no rank of another node
 * has a member's piece, a *mirror* is named: a rank of another node with the same slice. It holds
 * the piece beside its own, in the same shape, in segments with numbers of their own. So it is one
 * more holder of the same boxes, and everything that works on placements (plans, sums, checkpoints,
 * recovery) knows it as a replica.
 *
 * Who mirrors whom follows from the layout and the nodes of its ranks: the j-th member of a node,
 * in the order of members, is mirrored by the j-th of the next node that has members of the slice,
 * counted around. What is not cut by ZeRO has replicas with all members, or lies where pipeline,
 * tensor or expert parallelism put it: it has no mirror.
 *
 * Invariants:
 * 1. A mirror's piece is none that it has itself: it is on another node than all who have it.
 * 2. Of ranks of a node that have the same piece only the lowest member has a mirror, so shards of
 * a holder stay disjoint.
 * 3. The segments of what rank r owns and q mirrors have the numbers that they have with r, plus
 * (r + 1) times the number of segments that a layout has.
 *
 * Cost: creation, the ranks of the layout times the members of a slice. Questions cost what the
 * layout's own cost, for the rank asked about and those that it mirrors.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"
#include "layout/mesh.h"
#include "layout/placement.h"

typedef struct mirrored {
    rs_placement head;
    rs_placement *base;
    rs_layout layout;
    int *mirror[RS_MESHES]; /* of each rank; -1: none */
    int *owners;            /* whom each rank mirrors, ascending: those from first[rank] on */
    int *first;
    int stride; /* segments of a layout */
} mirrored;

static const mirrored *mirrored_of(const rs_placement *placement)
{
    return (const mirrored *)placement;
}

/* ---- who mirrors whom ---- */

/* The ranks that have one slice, and their nodes. */
typedef struct sharers {
    rs_grid grid;
    int stage;
    int first; /* the number of member 0 */
    const int *node_of;
} sharers;

static int member_rank(const sharers *s, int member)
{
    return rs_grid_rank(&s->grid, s->stage, s->first, member);
}

static int member_node(const sharers *s, int member)
{
    return s->node_of[member_rank(s, member)];
}

/* True if some rank of another node has the piece of `member`, or a lower member of its own. */
static bool is_replicated(const sharers *s, int member)
{
    int node = member_node(s, member);
    for (int m = member % s->grid.group; m < s->grid.spread; m += s->grid.group)
        if (m < member || member_node(s, m) != node)
            return true;
    return false;
}

/* Those of the first `end` members that are on `node`. */
static int count_members(const sharers *s, int end, int node)
{
    int count = 0;
    for (int m = 0; m < end; m++)
        count += member_node(s, m) == node;
    return count;
}

/* The rank of the `number`-th member, counted around, of those on `node`. */
static int pick_member(const sharers *s, int node, int number)
{
    int left = number % count_members(s, s->grid.spread, node);
    for (int m = 0; m < s->grid.spread; m++)
        if (member_node(s, m) == node && left-- == 0)
            return member_rank(s, m);
    return -1;
}

int rs_layout_mirror(const rs_layout *layout, bool experts, const int *node_of, int rank)
{
    int mesh = experts ? RS_EXPERTS : RS_DENSE, node = node_of[rank];
    rs_place place = rs_layout_place(layout, mesh, rank);
    const sharers s = {rs_layout_grid(layout, mesh), place.stage,
        rs_layout_slice_number(layout, mesh, place.slice), node_of};
    if (layout->zero == 0 || s.grid.group == 1 || is_replicated(&s, place.member))
        return -1;
    for (int i = 1; i < s.grid.spread; i++) {
        int next = member_node(&s, (place.member + i) % s.grid.spread);
        if (next != node)
            return pick_member(&s, next, count_members(&s, place.member, node));
    }
    return -1;
}

/* ---- questions ---- */

static void mirrored_destroy(rs_placement *placement)
{
    mirrored *self = (mirrored *)placement;
    rs_placement_destroy(self->base);
    for (int mesh = 0; mesh < RS_MESHES; mesh++)
        free(self->mirror[mesh]);
    free(self->owners);
    free(self->first);
    free(self);
}

/* Roles that the layout cuts alike are mirrored alike. */
static int mirrored_geometry(const rs_placement *placement, int role)
{
    return rs_placement_geometry(mirrored_of(placement)->base, role);
}

static bool is_cut(const mirrored *self, int role)
{
    return rs_layout_shards_class(&self->layout, rs_space_role(self->head.space, role)->role_class);
}

/* Whether `holder` mirrors what `owner` has of a tensor. */
static bool mirrors(const mirrored *self, int holder, int owner, int tensor)
{
    int mesh = rs_tensor_mesh(rs_space_tensor(self->head.space, tensor));
    return self->mirror[mesh][owner] == holder;
}

static rs_status mirrored_shards(
    const rs_placement *placement, int holder, int role, rs_shard_list *out)
{
    const mirrored *self = mirrored_of(placement);
    rs_shard_list theirs = {0};
    rs_status status;
    RS_TRY_GOTO(self->base->ops->shards(self->base, holder, role, out), done);
    for (int i = self->first[holder]; i < self->first[holder + 1] && is_cut(self, role); i++) {
        int owner = self->owners[i];
        RS_TRY_GOTO(rs_placement_shards(self->base, owner, role, &theirs), done);
        for (size_t k = 0; k < theirs.count; k++) {
            rs_shard shard = theirs.items[k];
            shard.segment += (owner + 1) * self->stride;
            if (mirrors(self, holder, owner, shard.tensor))
                RS_TRY_GOTO(rs_shard_append(out, &shard), done);
        }
    }
done:
    rs_shard_list_fini(&theirs);
    return status;
}

static rs_status mirrored_segments(const rs_placement *placement, int holder, rs_segment_list *out)
{
    const mirrored *self = mirrored_of(placement);
    const rs_space *space = self->head.space;
    int blocks = rs_layout_block_count(space), experts = rs_layout_expert_block(space, 0);
    rs_segment_list theirs = {0};
    rs_status status;
    RS_TRY_GOTO(self->base->ops->segments(self->base, holder, out), done);
    for (int i = self->first[holder]; i < self->first[holder + 1]; i++) {
        int owner = self->owners[i];
        RS_TRY_GOTO(rs_placement_segments(self->base, owner, &theirs), done);
        for (size_t k = 0; k < theirs.count; k++) {
            const rs_segment *s = &theirs.items[k];
            int mesh = s->segment % blocks >= experts ? RS_EXPERTS : RS_DENSE;
            if (is_cut(self, s->segment / blocks) && self->mirror[mesh][owner] == holder)
                RS_TRY_GOTO(
                    rs_segment_append(out, s->segment + (owner + 1) * self->stride, s->bytes),
                    done);
        }
    }
done:
    rs_segment_list_fini(&theirs);
    return status;
}

static rs_status mirrored_locate(
    const rs_placement *placement, int tensor, int role, const rs_box *box, rs_holding_list *out)
{
    const mirrored *self = mirrored_of(placement);
    const int *mirror = self->mirror[rs_tensor_mesh(rs_space_tensor(self->head.space, tensor))];
    rs_holding_list theirs = {0};
    if (!is_cut(self, role))
        return self->base->ops->locate(self->base, tensor, role, box, out);
    rs_status status = rs_placement_locate(self->base, tensor, role, box, &theirs);
    for (size_t i = 0; i < theirs.count; i++) {
        const rs_holding *h = &theirs.items[i];
        for (size_t k = h->first; k < h->first + h->count && status == RS_OK; k++) {
            status = rs_holding_add(out, &h->box, theirs.ranks[k]);
            if (status == RS_OK && mirror[theirs.ranks[k]] >= 0)
                status = rs_holding_add(out, &h->box, mirror[theirs.ranks[k]]);
        }
    }
    rs_holding_list_fini(&theirs);
    return status;
}

static rs_status mirrored_address(const rs_placement *placement, int holder, int tensor, int role,
    const rs_box *box, rs_shard *out)
{
    const mirrored *self = mirrored_of(placement);
    rs_status status = self->base->ops->address(self->base, holder, tensor, role, box, out);
    for (int i = self->first[holder]; i < self->first[holder + 1] && is_cut(self, role); i++) {
        int owner = self->owners[i];
        if (status != RS_ERR_NOT_FOUND)
            return status;
        if (!mirrors(self, holder, owner, tensor))
            continue;
        status = self->base->ops->address(self->base, owner, tensor, role, box, out);
        if (status == RS_OK)
            out->segment += (owner + 1) * self->stride;
    }
    return status == RS_ERR_NOT_FOUND ? rs_placement_not_found(placement, holder, tensor, role, box)
                                      : status;
}

static const rs_placement_ops mirrored_ops = {
    .destroy = mirrored_destroy,
    .geometry = mirrored_geometry,
    .shards = mirrored_shards,
    .segments = mirrored_segments,
    .locate = mirrored_locate,
    .address = mirrored_address,
};

/* ---- creation ---- */

/* Lists whom each rank mirrors. */
static rs_status list_owners(mirrored *self)
{
    int world = self->head.holders;
    self->owners = rs_calloc((size_t)world * RS_MESHES, sizeof *self->owners);
    self->first = rs_calloc((size_t)world + 1, sizeof *self->first);
    if (self->owners == NULL || self->first == NULL)
        return rs_error_memory((size_t)world * RS_MESHES * sizeof *self->owners);
    for (int pass = 0; pass < 2; pass++) {
        for (int owner = world; owner-- > 0;) {
            const int by[RS_MESHES] = {self->mirror[0][owner], self->mirror[1][owner]};
            for (int mesh = 0; mesh < RS_MESHES; mesh++) {
                if (by[mesh] < 0 || (mesh > 0 && by[mesh] == by[0]))
                    continue;
                if (pass == 0)
                    self->first[by[mesh]]++;
                else
                    self->owners[--self->first[by[mesh]]] = owner;
            }
        }
        for (int r = 0; r < world && pass == 0; r++)
            self->first[r + 1] += self->first[r];
    }
    return RS_OK;
}

rs_status rs_layout_placement_mirrored(
    const rs_space *space, const rs_layout *layout, const int *node_of, rs_placement **out)
{
    rs_status status;
    int world = rs_layout_world(layout);
    mirrored *self = rs_calloc(1, sizeof *self);
    if (self == NULL)
        return rs_error_memory(sizeof *self);
    self->head = (rs_placement){.ops = &mirrored_ops, .space = space, .holders = world};
    self->layout = *layout;
    self->stride = rs_space_role_count(space) * rs_layout_block_count(space);
    RS_TRY_GOTO(rs_layout_placement(space, layout, &self->base), fail);
    for (int mesh = 0; mesh < RS_MESHES; mesh++) {
        self->mirror[mesh] = rs_calloc((size_t)world, sizeof *self->mirror[mesh]);
        if (self->mirror[mesh] == NULL) {
            status = rs_error_memory((size_t)world * sizeof *self->mirror[mesh]);
            goto fail;
        }
        for (int r = 0; r < world; r++)
            self->mirror[mesh][r] = rs_layout_mirror(layout, mesh == RS_EXPERTS, node_of, r);
    }
    RS_TRY_GOTO(list_owners(self), fail);
    *out = &self->head;
    return RS_OK;
fail:
    mirrored_destroy(&self->head);
    return status;
}
