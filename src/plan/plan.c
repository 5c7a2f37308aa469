/*
 * Plans: one rank's copies from one placement to another, in the one global order.
 *
 * The rank cuts its own new shards into pieces (pieces.c) and takes what it lacks; it cuts its own
 * old shards into pieces and gives what others lack, itself included: what stays within the rank is
 * a copy from old memory to new. deal.c says who gives what to whom. Roles that are cut alike in
 * both placements are dealt with together, so the geometry is worked out once for master, exp_avg
 * and exp_avg_sq.
 *
 * Chunks: a deal is a range of a piece in row-major order; it is cut into boxes, and boxes above
 * the chunk size into slabs along the first axis of which a slab is small enough, all by the
 * piece's coordinates.
 *
 * The order: all copies of a (source, target, tensor, role) are a transfer, in the order of their
 * boxes. A copy's key is how far its transfer has come within the copy, as a fraction of 2^48. All
 * transfers advance together: all links work at once, every rank's memory turns from old to new
 * evenly, and what several ranks read of a tensor, or of a page, they read at about the same time.
 * Where in the copy is a matter of the tensor and the role, so that tensors cut into equal steps do
 * not step together. Both ends know all copies of a transfer, so both compute the same keys.
 *
 * Invariants:
 *  1. Copies with this target are disjoint and with its adopted segments make up its new shards.
 *  2. A copy lies in one shard of its source and one of its target.
 *  3. The list with source s and target t is the same in the plan of s and in that of t.
 *
 * Cost: the pieces of the rank's own shards times their holders, the sorting of its copies, and
 * what parts.c looks at.
 */
#include "plan/plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

typedef struct builder {
    rs_dealer *dealer;
    rs_plan *plan;
    int64_t chunk_bytes;
    rs_pieces pieces;
    rs_deal_list deals;
    rs_read_list reads; /* of pieces whose elements several copies read */
    size_t lines;
    bool *frees; /* of each copy: when it is done, so is its source; grows with the copies */
    size_t frees_capacity;
} builder;

static void builder_fini(builder *b)
{
    rs_pieces_fini(&b->pieces);
    free(b->deals.items);
    free(b->reads.items);
    free(b->frees);
}

/* What is being copied: a deal of a piece, for each role of a group. */
typedef struct item {
    int tensor;
    const rs_role_group *group;
    int source;
    int target;
    rs_reach reach;
    bool stays[RS_MAX_ROLES]; /* roles of the group that stay where they lie in the source */
    bool shared;              /* other copies read the same elements of this rank */
} item;

/* Adds a copy of `box` for each role; `begin` is where the box starts in its piece. */
static rs_status add_copies(builder *b, const item *what, const rs_box *box, int64_t begin)
{
    rs_plan *plan = b->plan;
    int64_t volume = rs_box_volume(box);
    const rs_space *space = rs_placement_space(plan->from);
    for (int i = 0; i < what->group->count; i++) {
        int role = what->group->roles[i];
        if (what->stays[i] && what->reach == RS_REACH_SELF)
            continue;
        bool freed = what->source == plan->rank && !what->stays[i];
        RS_TRY(rs_array_reserve(
            (void **)&plan->copies, &plan->capacity, plan->count + 1, sizeof *plan->copies));
        RS_TRY(rs_array_reserve(
            (void **)&b->frees, &b->frees_capacity, plan->count + 1, sizeof *b->frees));
        b->frees[plan->count] = freed && !what->shared;
        if (freed && what->shared) {
            RS_TRY(RS_LIST_RESERVE_ONE(&b->reads));
            b->reads.items[b->reads.count++] =
                (rs_read){b->lines + (size_t)i, plan->count, begin, begin + volume};
        }
        plan->copies[plan->count++] = (rs_copy){.tensor = what->tensor,
            .role = role,
            .source = what->source,
            .target = what->target,
            .reach = what->reach,
            .box = *box,
            .bytes = volume * (int64_t)rs_dtype_size(rs_space_dtype(space, what->tensor, role))};
    }
    return RS_OK;
}

/*
 * Cuts a box into chunks of at most `most` elements, along the first axis where one index is small
 * enough; axes before it are walked index by index. Chunks are ranges of the box's row-major order,
 * and come in that order. `begin` is where the box starts in its piece.
 */
static rs_status add_chunks(
    builder *b, const item *what, const rs_box *box, int64_t most, int64_t begin)
{
    int axis = 0;
    int64_t inner = rs_box_volume(box);
    if (inner <= most)
        return add_copies(b, what, box, begin);
    for (; axis < box->ndim; axis++) {
        inner /= box->extent[axis];
        if (inner <= most)
            break;
    }
    int64_t parts = rs_ceil_div(box->extent[axis], most / inner);
    int64_t step = rs_ceil_div(box->extent[axis], parts);
    rs_box chunk = *box;
    for (int d = 0; d < axis; d++)
        chunk.extent[d] = 1;
    for (;;) {
        int64_t end = box->offset[axis] + box->extent[axis];
        for (int64_t at = box->offset[axis]; at < end; at += step) {
            chunk.offset[axis] = at;
            chunk.extent[axis] = rs_min64(step, end - at);
            RS_TRY(add_copies(b, what, &chunk, begin));
            begin += rs_box_volume(&chunk);
        }
        int d = axis - 1;
        for (; d >= 0; d--) {
            if (++chunk.offset[d] < box->offset[d] + box->extent[d])
                break;
            chunk.offset[d] = box->offset[d];
        }
        if (d < 0)
            return RS_OK;
    }
}

/* Adds elements begin..end-1 of a piece. */
static rs_status add_range(
    builder *b, const item *what, const rs_piece *piece, int64_t begin, int64_t end)
{
    const rs_box *boxes = rs_piece_boxes(&b->pieces, piece);
    int64_t largest;
    rs_role_group_bytes(rs_placement_space(b->plan->from), what->group, what->tensor, &largest);
    int64_t most = rs_max64(b->chunk_bytes / largest, 1);
    int64_t base = 0;
    for (size_t i = 0; i < piece->box_count && base < end; i++) {
        int64_t volume = rs_box_volume(&boxes[i]);
        int64_t first = rs_max64(begin - base, 0);
        int64_t last = rs_min64(end - base, volume);
        if (first < last) {
            rs_box parts[2 * RS_MAX_DIMS];
            int count = rs_box_linear_range(&boxes[i], first, last, parts);
            int64_t at = base + first;
            for (int k = 0; k < count; k++) {
                RS_TRY(add_chunks(b, what, &parts[k], most, at));
                at += rs_box_volume(&parts[k]);
            }
        }
        base += volume;
    }
    return RS_OK;
}

static rs_status missing_error(const builder *b, const rs_shard *shard, const rs_piece *piece)
{
    const rs_space *space = rs_placement_space(b->plan->from);
    rs_box element = *rs_piece_boxes(&b->pieces, piece);
    for (int d = 0; d < element.ndim; d++)
        element.extent[d] = 1;
    char text[256];
    return rs_error_set(RS_ERR_MISMATCH,
        "rank %d needs element %s of %s, role %s, which nobody holds in the old placement",
        b->plan->rank, rs_box_format(&element, text, sizeof text),
        rs_space_tensor(space, shard->tensor)->name, rs_space_role(space, shard->role)->name);
}

/* What the rank lacks of a new shard. */
static rs_status take_shard(builder *b, const rs_role_group *group, const rs_shard *shard)
{
    int rank = b->plan->rank;
    RS_TRY(rs_pieces_cut(
        &b->pieces, b->plan->from, b->plan->to, shard->tensor, shard->role, &shard->box));
    for (size_t i = 0; i < b->pieces.count; i++) {
        const rs_piece *piece = &b->pieces.items[i];
        size_t count;
        const int *sources = rs_piece_holders(&b->pieces, piece, RS_OLD, &count);
        if (rs_ranks_have(sources, count, rank))
            continue;
        if (count == 0)
            return missing_error(b, shard, piece);
        b->deals.count = 0;
        RS_TRY(rs_dealer_take(
            b->dealer, &b->pieces, piece, shard->tensor, shard->role, rank, &b->deals));
        for (size_t k = 0; k < b->deals.count; k++) {
            const rs_deal *deal = &b->deals.items[k];
            item what = {shard->tensor, group, deal->peer, rank, deal->reach, {0}, false};
            RS_TRY(add_range(b, &what, piece, deal->begin, deal->end));
        }
    }
    return RS_OK;
}

static int compare_deals(const void *a, const void *b)
{
    const rs_deal *one = a;
    const rs_deal *other = b;
    return rs_compare(one->begin, other->begin);
}

/* Whether two deals have an element in common. */
static bool deals_overlap(rs_deal_list *deals)
{
    if (deals->count < 2)
        return false;
    qsort(deals->items, deals->count, sizeof *deals->items, compare_deals);
    for (size_t i = 1; i < deals->count; i++)
        if (deals->items[i].begin < deals->items[i - 1].end)
            return true;
    return false;
}

/* What is read of an old shard: by others, and by the rank itself for its new shards. */
static rs_status give_shard(builder *b, const rs_role_group *group, const rs_shard *shard)
{
    int rank = b->plan->rank;
    RS_TRY(rs_pieces_cut(
        &b->pieces, b->plan->from, b->plan->to, shard->tensor, shard->role, &shard->box));
    for (size_t i = 0; i < b->pieces.count; i++) {
        const rs_piece *piece = &b->pieces.items[i];
        size_t count;
        const int *targets = rs_piece_holders(&b->pieces, piece, RS_NEW, &count);
        b->deals.count = 0;
        if (rs_ranks_have(targets, count, rank)) {
            RS_TRY(RS_LIST_RESERVE_ONE(&b->deals));
            b->deals.items[b->deals.count++] = (rs_deal){rank, RS_REACH_SELF, 0, piece->elements};
        }
        RS_TRY(rs_dealer_give(
            b->dealer, &b->pieces, piece, shard->tensor, shard->role, rank, &b->deals));
        bool shared = deals_overlap(&b->deals);
        bool stays[RS_MAX_ROLES] = {0};
        for (int r = 0; r < group->count; r++)
            stays[r] = rs_own_stays(
                &b->plan->own, group->roles[r], shard->tensor, rs_piece_boxes(&b->pieces, piece));
        for (size_t k = 0; k < b->deals.count; k++) {
            const rs_deal *deal = &b->deals.items[k];
            item what = {shard->tensor, group, rank, deal->peer, deal->reach, {0}, shared};
            memcpy(what.stays, stays, sizeof stays);
            RS_TRY(add_range(b, &what, piece, deal->begin, deal->end));
        }
        b->lines += (size_t)group->count;
    }
    return RS_OK;
}

int rs_copy_compare(const rs_copy *a, const rs_copy *b)
{
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    if (a->tensor != b->tensor)
        return rs_compare(a->tensor, b->tensor);
    if (a->role != b->role)
        return rs_compare(a->role, b->role);
    int order = rs_box_compare(&a->box, &b->box);
    if (order != 0)
        return order;
    if (a->source != b->source)
        return rs_compare(a->source, b->source);
    return rs_compare(a->target, b->target);
}

/* Pairs apart, then the order within a pair; keys are all zero still. */
static int compare_in_pair(const void *a, const void *b, void *context)
{
    const rs_copy *copies = context;
    const rs_copy *one = &copies[*(const size_t *)a];
    const rs_copy *other = &copies[*(const size_t *)b];
    if (one->source != other->source)
        return rs_compare(one->source, other->source);
    if (one->target != other->target)
        return rs_compare(one->target, other->target);
    return rs_copy_compare(one, other);
}

static int compare_in_order(const void *a, const void *b, void *context)
{
    const rs_copy *copies = context;
    return rs_copy_compare(&copies[*(const size_t *)a], &copies[*(const size_t *)b]);
}

/* Where within a copy its key is taken, in 2^-16 of the copy: multiples of the golden section,
 * which lie evenly however many there are. */
static unsigned phase_of(int tensor, int role)
{
    return (((unsigned)tensor * RS_MAX_ROLES + (unsigned)role) * 40503u + 0x8000u) & 0xffffu;
}

/* Gives keys to the copies of one transfer, which are `order[0 .. count - 1]`. */
static void set_keys(rs_copy *copies, const size_t *order, size_t count)
{
    __extension__ typedef unsigned __int128 wide;
    unsigned phase = phase_of(copies[order[0]].tensor, copies[order[0]].role);
    wide total = 0;
    wide before = 0;
    for (size_t i = 0; i < count; i++)
        total += (wide)copies[order[i]].bytes;
    for (size_t i = 0; i < count; i++) {
        wide bytes = (wide)copies[order[i]].bytes;
        wide done = (before << 16) + bytes * phase;
        copies[order[i]].key = (uint64_t)((done << (RS_PLAN_KEY_BITS - 16)) / total);
        before += bytes;
    }
}

static bool same_transfer(const rs_copy *a, const rs_copy *b)
{
    return a->source == b->source && a->target == b->target && a->tensor == b->tensor &&
           a->role == b->role;
}

/* Puts the copies into the global order, and says what memory each frees. */
static rs_status put_in_order(builder *b)
{
    rs_plan *plan = b->plan;
    size_t count = plan->count;
    rs_status status = RS_OK;
    size_t *order = rs_calloc(count, sizeof *order);
    size_t *place = rs_calloc(count, sizeof *place);
    rs_copy *sorted = rs_calloc(count, sizeof *sorted);
    plan->freed = rs_calloc(count, sizeof *plan->freed);
    if (order == NULL || place == NULL || sorted == NULL || plan->freed == NULL) {
        status = rs_error_memory(count * sizeof *sorted);
        goto done;
    }
    for (size_t i = 0; i < count; i++)
        order[i] = i;
    qsort_r(order, count, sizeof *order, compare_in_pair, plan->copies);
    size_t end;
    for (size_t begin = 0; begin < count; begin = end) {
        const rs_copy *first = &plan->copies[order[begin]];
        end = begin + 1;
        while (end < count && same_transfer(first, &plan->copies[order[end]]))
            end++;
        set_keys(plan->copies, order + begin, end - begin);
    }
    qsort_r(order, count, sizeof *order, compare_in_order, plan->copies);
    for (size_t i = 0; i < count; i++) {
        sorted[i] = plan->copies[order[i]];
        place[order[i]] = i;
        if (b->frees[order[i]])
            plan->freed[i] = sorted[i].bytes;
    }
    for (size_t i = 0; i < b->reads.count; i++)
        b->reads.items[i].copy = place[b->reads.items[i].copy];
    rs_copy *unsorted = plan->copies;
    plan->copies = sorted;
    plan->capacity = count;
    sorted = unsorted;
done:
    free(order);
    free(place);
    free(sorted);
    return status;
}

/* The figures that the copies add up to. */
static void add_up(rs_plan *plan)
{
    rs_plan_figures *f = &plan->figures;
    for (size_t i = 0; i < plan->count; i++) {
        const rs_copy *copy = &plan->copies[i];
        if (copy->reach == RS_REACH_SELF)
            f->self_bytes += copy->bytes;
        else if (copy->reach == RS_REACH_NODE)
            *(copy->target == plan->rank ? &f->node_in : &f->node_out) += copy->bytes;
        else
            *(copy->target == plan->rank ? &f->remote_in : &f->remote_out) += copy->bytes;
    }
    const rs_own *own = &plan->own;
    for (size_t i = 0; i < own->segments[RS_OLD].count; i++)
        f->old_bytes += own->segments[RS_OLD].items[i].bytes;
    for (size_t i = 0; i < own->segments[RS_NEW].count; i++)
        f->new_bytes += own->segments[RS_NEW].items[i].bytes;
    f->adopted_bytes = own->adopted_bytes;
    f->needed_bytes = rs_own_lacking(own, rs_placement_space(plan->from));
}

/* The copies of all roles of a group. */
static rs_status plan_group(builder *b, const rs_role_group *group)
{
    const rs_own *own = &b->plan->own;
    for (int side = 0; side < RS_SIDES; side++)
        for (size_t i = 0; i < own->shards[side].count; i++) {
            const rs_shard *shard = &own->shards[side].items[i];
            if (shard->role != group->roles[0])
                continue;
            RS_TRY(side == RS_OLD ? give_shard(b, group, shard) : take_shard(b, group, shard));
        }
    return RS_OK;
}

rs_status rs_plan_create_dealt(
    rs_dealer *dealer, int rank, const rs_plan_options *options, rs_plan **out)
{
    if (rank < 0)
        return rs_error_set(RS_ERR_ARGUMENT, "rank %d: must not be negative", rank);
    rs_plan *plan = rs_calloc(1, sizeof *plan);
    if (plan == NULL)
        return rs_error_memory(sizeof *plan);
    plan->from = dealer->from;
    plan->to = dealer->to;
    plan->rank = rank;
    builder b = {.dealer = dealer,
        .plan = plan,
        .chunk_bytes = options->chunk_bytes > 0 ? options->chunk_bytes : RS_PLAN_CHUNK};
    rs_status status;
    RS_TRY_GOTO(rs_own_init(&plan->own, dealer->from, dealer->to, rank, options->adopt), done);
    rs_role_group groups[RS_MAX_ROLES];
    int group_count = rs_role_groups(dealer->from, dealer->to, groups);
    for (int g = 0; g < group_count; g++)
        RS_TRY_GOTO(plan_group(&b, &groups[g]), done);
    RS_TRY_GOTO(put_in_order(&b), done);
    add_up(plan);
    rs_reads_settle(plan, &b.reads);
    rs_plan_measure_peaks(plan);
done:
    builder_fini(&b);
    if (status == RS_OK)
        *out = plan;
    else
        rs_plan_destroy(plan);
    return status;
}

rs_status rs_plan_create(const rs_placement *from, const rs_placement *to, int rank,
    const rs_plan_options *options, rs_plan **out)
{
    rs_dealer dealer;
    rs_status status;
    RS_TRY_GOTO(rs_dealer_init(&dealer, from, to, options), done);
    RS_TRY_GOTO(rs_plan_create_dealt(&dealer, rank, options, out), done);
done:
    rs_dealer_fini(&dealer);
    return status;
}

void rs_plan_destroy(rs_plan *plan)
{
    if (plan == NULL)
        return;
    rs_own_fini(&plan->own);
    free(plan->copies);
    free(plan->freed);
    free(plan);
}

int rs_plan_rank(const rs_plan *plan)
{
    return plan->rank;
}

const rs_copy *rs_plan_copies(const rs_plan *plan, size_t *count)
{
    *count = plan->count;
    return plan->copies;
}

const int *rs_plan_adopted(const rs_plan *plan, size_t *count)
{
    *count = plan->own.adopted_count;
    return plan->own.adopted;
}

bool rs_plan_is_adopted(const rs_plan *plan, int segment)
{
    return rs_ranks_have(plan->own.adopted, plan->own.adopted_count, segment);
}

const rs_plan_figures *rs_plan_figures_of(const rs_plan *plan)
{
    return &plan->figures;
}
