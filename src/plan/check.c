/*
 * The plain proof that a plan is right, for the whole cluster.
 *
 * It uses the placements' lists of shards and nothing of the planner but its result: no locate, no
 * pieces, no dealing. A new shard is covered exactly once because (a) every copy into it lies
 * inside it, (b) no two of them have an element in common, which is tried for each pair, and (c)
 * their volumes add up to its own; or it lies in an adopted segment, which then has the same shards
 * at the same places in the old placement, and no copy. Whether a source has what it gives, whether
 * somebody nearer has it, and how many bytes have to move is found by going through the shards of
 * the ranks concerned.
 *
 * Cost: every plan of the cluster in memory, and for each copy a pass over the shards of its source
 * and of its target's node.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "plan/plan.h"

typedef struct proof {
    const rs_placement *from;
    const rs_placement *to;
    const rs_plan_options *options;
    int world;
    rs_plan **plans;                 /* of each rank */
    rs_shard_list *shards[RS_SIDES]; /* of each rank */
    int64_t moved;
    int64_t minimum;
} proof;

/* A plan is wrong: says where. */
static rs_status wrong(const proof *p, const rs_copy *copy, const char *what)
{
    const rs_space *space = rs_placement_space(p->from);
    char box[RS_MAX_DIMS * 48];
    return rs_error_set(RS_ERR_MISMATCH, "copy of %s %s, role %s, from rank %d to rank %d: %s",
        rs_space_tensor(space, copy->tensor)->name, rs_box_format(&copy->box, box, sizeof box),
        rs_space_role(space, copy->role)->name, copy->source, copy->target, what);
}

static bool overlap(const rs_box *a, const rs_box *b)
{
    for (int d = 0; d < a->ndim; d++)
        if (a->offset[d] + a->extent[d] <= b->offset[d] ||
            b->offset[d] + b->extent[d] <= a->offset[d])
            return false;
    return true;
}

static bool inside(const rs_box *box, const rs_box *around)
{
    for (int d = 0; d < box->ndim; d++)
        if (box->offset[d] < around->offset[d] ||
            box->offset[d] + box->extent[d] > around->offset[d] + around->extent[d])
            return false;
    return true;
}

static int node_of(const proof *p, int rank)
{
    return rs_plan_node_of(p->options, rank);
}

/* Whether `rank` had any element of the copy. */
static bool had_some(const proof *p, int rank, const rs_copy *copy)
{
    const rs_shard_list *old = &p->shards[RS_OLD][rank];
    for (size_t i = 0; i < old->count; i++)
        if (old->items[i].role == copy->role && old->items[i].tensor == copy->tensor &&
            overlap(&old->items[i].box, &copy->box))
            return true;
    return false;
}

/* The one shard of a list that the copy lies in; NULL if there is none. */
static const rs_shard *shard_around(const rs_shard_list *shards, const rs_copy *copy)
{
    for (size_t i = 0; i < shards->count; i++)
        if (shards->items[i].role == copy->role && shards->items[i].tensor == copy->tensor &&
            inside(&copy->box, &shards->items[i].box))
            return &shards->items[i];
    return NULL;
}

/* What can be said of a copy by itself. */
static rs_status check_copy(proof *p, const rs_copy *copy)
{
    const rs_space *space = rs_placement_space(p->from);
    int64_t size = (int64_t)rs_dtype_size(rs_space_dtype(space, copy->tensor, copy->role));
    int64_t chunk = p->options->chunk_bytes > 0 ? p->options->chunk_bytes : RS_PLAN_CHUNK;
    int64_t volume = 1;
    for (int d = 0; d < copy->box.ndim; d++)
        volume *= copy->box.extent[d];
    if (volume < 1 || copy->bytes != volume * size)
        return wrong(p, copy, "its bytes are not those of its elements");
    if (copy->bytes > chunk && volume > 1)
        return wrong(p, copy, "it is larger than a chunk");
    if (copy->source < 0 || copy->source >= p->world || copy->target < 0 ||
        copy->target >= p->world)
        return wrong(p, copy, "no such rank");
    if (shard_around(&p->shards[RS_OLD][copy->source], copy) == NULL)
        return wrong(p, copy, "it lies in no old shard of its source");
    if (shard_around(&p->shards[RS_NEW][copy->target], copy) == NULL)
        return wrong(p, copy, "it lies in no new shard of its target");

    rs_reach reach = copy->source == copy->target                           ? RS_REACH_SELF
                     : node_of(p, copy->source) == node_of(p, copy->target) ? RS_REACH_NODE
                                                                            : RS_REACH_REMOTE;
    if (copy->reach != reach)
        return wrong(p, copy, "it says that it reaches farther or nearer than it does");
    if (reach == RS_REACH_SELF)
        return RS_OK;
    p->moved += copy->bytes;
    if (had_some(p, copy->target, copy))
        return wrong(p, copy, "its target has some of it already");
    for (int r = 0; r < p->world && reach == RS_REACH_REMOTE; r++)
        if (node_of(p, r) == node_of(p, copy->target) && had_some(p, r, copy))
            return wrong(p, copy, "somebody on the target's node has some of it");
    return RS_OK;
}

/* An adopted segment must be the same before and after, shard for shard. */
static rs_status check_adopted(const proof *p, int rank, int segment)
{
    size_t matched = 0;
    size_t counts[RS_SIDES] = {0};
    for (int side = 0; side < RS_SIDES; side++)
        for (size_t i = 0; i < p->shards[side][rank].count; i++)
            counts[side] += p->shards[side][rank].items[i].segment == segment;
    for (size_t i = 0; i < p->shards[RS_NEW][rank].count; i++) {
        const rs_shard *now = &p->shards[RS_NEW][rank].items[i];
        for (size_t k = 0; k < p->shards[RS_OLD][rank].count; k++) {
            const rs_shard *old = &p->shards[RS_OLD][rank].items[k];
            if (now->segment != segment || old->segment != segment)
                continue;
            if (old->tensor != now->tensor || old->role != now->role || old->dtype != now->dtype ||
                old->offset != now->offset || !inside(&old->box, &now->box) ||
                !inside(&now->box, &old->box))
                continue;
            bool same = true;
            for (int d = 0; d < now->box.ndim; d++)
                same = same && old->stride[d] == now->stride[d];
            matched += same;
        }
    }
    if (counts[RS_OLD] != counts[RS_NEW] || matched != counts[RS_NEW])
        return rs_error_set(RS_ERR_MISMATCH,
            "rank %d adopts segment %d, whose shards are not the same before and after", rank,
            segment);
    return RS_OK;
}

/* One new shard of `rank`: written once throughout, or adopted. Adds to `*found` the copies in it.
 */
static rs_status check_shard(const proof *p, int rank, const rs_shard *shard, size_t *found)
{
    const rs_plan *plan = p->plans[rank];
    const rs_space *space = rs_placement_space(p->from);
    int64_t volume = 1;
    for (int d = 0; d < shard->box.ndim; d++)
        volume *= shard->box.extent[d];
    bool adopted = rs_plan_is_adopted(plan, shard->segment);
    const rs_copy **within = rs_calloc(plan->count, sizeof *within);
    if (within == NULL)
        return rs_error_memory(plan->count * sizeof *within);
    rs_status status = RS_OK;
    size_t count = 0;
    int64_t written = 0;
    for (size_t i = 0; i < plan->count && status == RS_OK; i++) {
        const rs_copy *copy = &plan->copies[i];
        if (copy->target != rank || copy->role != shard->role || copy->tensor != shard->tensor ||
            !inside(&copy->box, &shard->box))
            continue;
        if (adopted)
            status = wrong(p, copy, "it writes to an adopted segment");
        for (size_t k = 0; k < count && status == RS_OK; k++)
            if (overlap(&within[k]->box, &copy->box))
                status = wrong(p, copy, "another copy writes some of it too");
        within[count++] = copy;
        written +=
            copy->bytes / (int64_t)rs_dtype_size(rs_space_dtype(space, copy->tensor, copy->role));
    }
    free(within);
    *found += count;
    if (status == RS_OK && !adopted && written != volume) {
        char box[RS_MAX_DIMS * 48];
        status = rs_error_set(RS_ERR_MISMATCH,
            "rank %d: of %s %s, role %s, %" PRId64 " of %" PRId64 " elements are written", rank,
            rs_space_tensor(space, shard->tensor)->name,
            rs_box_format(&shard->box, box, sizeof box), rs_space_role(space, shard->role)->name,
            written, volume);
    }
    return status;
}

/* Elements of a new shard that the rank did not have, times their size. */
static int64_t lacking(const proof *p, int rank, const rs_shard *shard)
{
    int64_t volume = 1;
    for (int d = 0; d < shard->box.ndim; d++)
        volume *= shard->box.extent[d];
    for (size_t i = 0; i < p->shards[RS_OLD][rank].count; i++) {
        const rs_shard *old = &p->shards[RS_OLD][rank].items[i];
        int64_t common = 1;
        if (old->role != shard->role || old->tensor != shard->tensor)
            continue;
        for (int d = 0; d < shard->box.ndim; d++) {
            int64_t begin = shard->box.offset[d] > old->box.offset[d] ? shard->box.offset[d]
                                                                      : old->box.offset[d];
            int64_t shard_end = shard->box.offset[d] + shard->box.extent[d];
            int64_t old_end = old->box.offset[d] + old->box.extent[d];
            int64_t end = shard_end < old_end ? shard_end : old_end;
            common *= end > begin ? end - begin : 0;
        }
        volume -= common;
    }
    const rs_space *space = rs_placement_space(p->from);
    return volume * (int64_t)rs_dtype_size(rs_space_dtype(space, shard->tensor, shard->role));
}

/* The plan of one rank. */
static rs_status check_rank(proof *p, int rank)
{
    const rs_plan *plan = p->plans[rank];
    const rs_plan_figures *f = &plan->figures;
    int64_t in = 0;
    int64_t needed = 0;
    size_t targets = 0;
    size_t found = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const rs_copy *copy = &plan->copies[i];
        if (i > 0 && rs_copy_compare(&plan->copies[i - 1], copy) >= 0)
            return wrong(p, copy, "it is not in the global order");
        if (copy->source != rank && copy->target != rank)
            return wrong(p, copy, "it is in the plan of a rank that has no part in it");
        if (copy->target != rank)
            continue;
        targets++;
        RS_TRY(check_copy(p, copy));
        in += copy->source != rank ? copy->bytes : 0;
    }
    for (size_t i = 0; i < p->shards[RS_NEW][rank].count; i++) {
        const rs_shard *shard = &p->shards[RS_NEW][rank].items[i];
        RS_TRY(check_shard(p, rank, shard, &found));
        needed += lacking(p, rank, shard);
    }
    size_t count;
    const int *adopted = rs_plan_adopted(plan, &count);
    for (size_t i = 0; i < count; i++)
        RS_TRY(check_adopted(p, rank, adopted[i]));
    if (found != targets)
        return rs_error_set(RS_ERR_MISMATCH,
            "rank %d: %zu copies come in, %zu of them lie in a shard", rank, targets, found);
    if (in != needed || f->needed_bytes != needed || f->node_in + f->remote_in != needed)
        return rs_error_set(RS_ERR_MISMATCH,
            "rank %d: needs %" PRId64 " bytes, the copies bring %" PRId64
            ", the figures say %" PRId64 " and %" PRId64,
            rank, needed, in, f->needed_bytes, f->node_in + f->remote_in);
    p->minimum += needed;
    return RS_OK;
}

static int compare_pairs(const void *a, const void *b)
{
    const rs_copy *one = a;
    const rs_copy *other = b;
    if (one->source != other->source)
        return rs_compare(one->source, other->source);
    if (one->target != other->target)
        return rs_compare(one->target, other->target);
    return rs_copy_compare(one, other);
}

/* Copies of all plans whose rank is the given end, ordered by pair. The caller frees `*out`. */
static rs_status gather_end(const proof *p, bool source, rs_copy **out, size_t *count)
{
    *count = 0;
    for (int r = 0; r < p->world; r++)
        for (size_t i = 0; i < p->plans[r]->count; i++)
            *count += (source ? p->plans[r]->copies[i].source : p->plans[r]->copies[i].target) == r;
    rs_copy *all = rs_calloc(*count, sizeof *all);
    if (all == NULL)
        return rs_error_memory(*count * sizeof *all);
    size_t at = 0;
    for (int r = 0; r < p->world; r++)
        for (size_t i = 0; i < p->plans[r]->count; i++)
            if ((source ? p->plans[r]->copies[i].source : p->plans[r]->copies[i].target) == r)
                all[at++] = p->plans[r]->copies[i];
    if (*count > 0)
        qsort(all, *count, sizeof *all, compare_pairs);
    *out = all;
    return RS_OK;
}

/* What the sources list is what the targets list. */
static rs_status check_ends(const proof *p)
{
    rs_copy *given = NULL;
    rs_copy *taken = NULL;
    size_t given_count, taken_count;
    rs_status status;
    RS_TRY_GOTO(gather_end(p, true, &given, &given_count), done);
    RS_TRY_GOTO(gather_end(p, false, &taken, &taken_count), done);
    for (size_t i = 0; i < given_count || i < taken_count; i++) {
        if (i == given_count) {
            status = wrong(p, &taken[i], "its source does not know of it");
            goto done;
        }
        if (i == taken_count) {
            status = wrong(p, &given[i], "its target does not know of it");
            goto done;
        }
        if (compare_pairs(&given[i], &taken[i]) != 0 || given[i].reach != taken[i].reach ||
            given[i].bytes != taken[i].bytes) {
            status = wrong(p, &given[i], "its source and its target do not list the same");
            goto done;
        }
    }
done:
    free(given);
    free(taken);
    return status;
}

/* What a node lists as crossing its border is what its ranks' plans have: each copy once. */
static rs_status check_node(const proof *p, int node)
{
    rs_copy *copies = NULL;
    size_t count, found = 0;
    RS_TRY(rs_plan_crossing(p->from, p->to, node, p->options, &copies, &count));
    rs_status status = RS_OK;
    for (size_t i = 0; i < count && status == RS_OK; i++) {
        const rs_copy *copy = &copies[i];
        bool gives = node_of(p, copy->source) == node, takes = node_of(p, copy->target) == node;
        if (i > 0 && rs_copy_compare(&copies[i - 1], copy) >= 0)
            status = wrong(p, copy, "it is not in its node's global order");
        else if (copy->reach != RS_REACH_REMOTE || gives == takes)
            status = wrong(p, copy, "it does not cross the border of the node that lists it");
    }
    for (int r = 0; r < p->world; r++)
        for (size_t i = 0; node_of(p, r) == node && i < p->plans[r]->count; i++)
            found += p->plans[r]->copies[i].reach == RS_REACH_REMOTE;
    free(copies);
    if (status == RS_OK && found != count)
        return rs_error_set(RS_ERR_MISMATCH,
            "node %d lists %zu copies that cross its border, its ranks have %zu", node, count,
            found);
    return status;
}

static rs_status check_nodes(const proof *p)
{
    for (int r = 0; r < p->world; r++) {
        bool first = true;
        for (int q = 0; q < r && first; q++)
            first = node_of(p, q) != node_of(p, r);
        if (first)
            RS_TRY(check_node(p, node_of(p, r)));
    }
    return RS_OK;
}

static rs_status make_plans(proof *p)
{
    rs_dealer dealer;
    rs_status status;
    RS_TRY_GOTO(rs_dealer_init(&dealer, p->from, p->to, p->options), done);
    for (int r = 0; r < p->world; r++)
        RS_TRY_GOTO(rs_plan_create_dealt(&dealer, r, p->options, &p->plans[r]), done);
done:
    rs_dealer_fini(&dealer);
    return status;
}

static rs_status run_proof(proof *p)
{
    size_t world = (size_t)p->world;
    p->plans = rs_calloc(world, sizeof(rs_plan *));
    p->shards[RS_OLD] = rs_calloc(world, sizeof(rs_shard_list));
    p->shards[RS_NEW] = rs_calloc(world, sizeof(rs_shard_list));
    if (p->plans == NULL || p->shards[RS_OLD] == NULL || p->shards[RS_NEW] == NULL)
        return rs_error_memory(world * sizeof(rs_shard_list));
    RS_TRY(make_plans(p));
    for (int r = 0; r < p->world; r++) {
        RS_TRY(rs_placement_shards(p->from, r, -1, &p->shards[RS_OLD][r]));
        RS_TRY(rs_placement_shards(p->to, r, -1, &p->shards[RS_NEW][r]));
    }
    for (int r = 0; r < p->world; r++)
        RS_TRY(check_rank(p, r));
    if (p->moved != p->minimum)
        return rs_error_set(RS_ERR_MISMATCH, "%" PRId64 " bytes are moved, %" PRId64 " would do",
            p->moved, p->minimum);
    RS_TRY(check_ends(p));
    return check_nodes(p);
}

rs_status rs_plan_check(
    const rs_placement *from, const rs_placement *to, const rs_plan_options *options)
{
    int before = rs_placement_holders(from);
    int after = rs_placement_holders(to);
    proof p = {
        .from = from, .to = to, .options = options, .world = before > after ? before : after};
    rs_status status = run_proof(&p);
    for (int r = 0; r < p.world; r++) {
        if (p.plans != NULL)
            rs_plan_destroy(p.plans[r]);
        for (int side = 0; side < RS_SIDES; side++)
            if (p.shards[side] != NULL)
                rs_shard_list_fini(&p.shards[side][r]);
    }
    free(p.plans);
    free(p.shards[RS_OLD]);
    free(p.shards[RS_NEW]);
    return status;
}
