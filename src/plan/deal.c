/*
 * Dealing: who takes which elements of a piece from whom.
 *
 * A target takes what it holds already from itself; else from the ranks of its node that hold it;
 * else from all old holders. The targets that compete for the same sources (those of one node for
 * the node's, or all those whose node has none for all of them) are put end to end: with T targets
 * and n elements, a line of T n elements, of which target i needs n i .. n (i + 1) - 1. The line is
 * cut into one stretch per source, of lengths in the ratio of the sources' weights. So a source
 * serves few targets, a target few sources, and the division is exact to an element.
 *
 * Weights are equal within a node. For demand that crosses nodes parts.c has them, by the demand of
 * all who could take over from each other.
 *
 * Rounding: a border lies at floor((w L + h) / W) with w of W the weights before it, L the line and
 * h in 0..W-1 drawn from the piece's name. Every part is its ideal length rounded up or down, and
 * over many pieces, such as a thousand scalars, neither way is favoured.
 *
 * Invariants: a deal depends on the piece alone, so giver and taker find the same; the stretches of
 * a target's deals are disjoint, ascending, and make up the piece. Cost: linear in the piece's
 * holders, and once for each part of the old world what parts.c looks at.
 */
#include "plan/deal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

int rs_role_groups(const rs_placement *from, const rs_placement *to, rs_role_group *groups)
{
    const rs_space *space = rs_placement_space(from);
    int count = 0;
    for (int role = 0; role < rs_space_role_count(space); role++) {
        int g = 0;
        while (
            g < count &&
            (rs_placement_geometry(from, groups[g].roles[0]) != rs_placement_geometry(from, role) ||
                rs_placement_geometry(to, groups[g].roles[0]) != rs_placement_geometry(to, role)))
            g++;
        if (g == count)
            groups[count++] = (rs_role_group){.count = 0};
        groups[g].roles[groups[g].count++] = role;
    }
    return count;
}

int64_t rs_role_group_bytes(
    const rs_space *space, const rs_role_group *group, int tensor, int64_t *largest)
{
    int64_t bytes = 0;
    *largest = 1;
    for (int i = 0; i < group->count; i++) {
        int64_t size = (int64_t)rs_dtype_size(rs_space_dtype(space, tensor, group->roles[i]));
        bytes += size;
        *largest = rs_max64(*largest, size);
    }
    return bytes;
}

/* Two spaces are the same if they have the same tensors and roles, one object or two. */
static rs_status check_spaces(const rs_space *a, const rs_space *b)
{
    if (a == b)
        return RS_OK;
    if (rs_space_tensor_count(a) != rs_space_tensor_count(b) ||
        rs_space_role_count(a) != rs_space_role_count(b))
        return rs_error_set(RS_ERR_ARGUMENT,
            "the placements are of different spaces: %d tensors and %d roles, %d and %d",
            rs_space_tensor_count(a), rs_space_role_count(a), rs_space_tensor_count(b),
            rs_space_role_count(b));
    for (int t = 0; t < rs_space_tensor_count(a); t++) {
        const rs_tensor *one = rs_space_tensor(a, t);
        const rs_tensor *other = rs_space_tensor(b, t);
        if (strcmp(one->name, other->name) != 0 || one->ndim != other->ndim ||
            memcmp(one->shape, other->shape, sizeof(int64_t) * (size_t)one->ndim) != 0)
            return rs_error_set(RS_ERR_ARGUMENT,
                "the placements are of different spaces: tensor %d is %s in one, %s in the other, "
                "or "
                "has another shape",
                t, one->name, other->name);
    }
    for (int r = 0; r < rs_space_role_count(a); r++) {
        const rs_role *one = rs_space_role(a, r);
        const rs_role *other = rs_space_role(b, r);
        if (strcmp(one->name, other->name) != 0)
            return rs_error_set(RS_ERR_ARGUMENT,
                "the placements are of different spaces: role %d is %s in one, %s in the other", r,
                one->name, other->name);
        for (int t = 0; t < rs_space_tensor_count(a); t++)
            if (rs_space_dtype(a, t, r) != rs_space_dtype(b, t, r))
                return rs_error_set(RS_ERR_ARGUMENT,
                    "the placements are of different spaces: %s, role %s, is %s in one, %s in the "
                    "other",
                    rs_space_tensor(a, t)->name, one->name, rs_dtype_name(rs_space_dtype(a, t, r)),
                    rs_dtype_name(rs_space_dtype(b, t, r)));
    }
    return RS_OK;
}

/* Numbers the nodes that `options` names from 0 in ascending order. */
static rs_status number_nodes(rs_dealer *dealer, const rs_plan_options *options)
{
    size_t world = (size_t)dealer->world;
    dealer->node_of = rs_calloc(world, sizeof *dealer->node_of);
    if (dealer->node_of == NULL)
        return rs_error_memory(world * sizeof *dealer->node_of);
    if (options->node_of == NULL) {
        for (int r = 0; r < dealer->world && options->ranks_per_node > 0; r++)
            dealer->node_of[r] = r / options->ranks_per_node;
        dealer->nodes = world > 0 ? dealer->node_of[world - 1] + 1 : 0;
        return RS_OK;
    }
    int *names = rs_calloc(world, sizeof *names);
    if (names == NULL)
        return rs_error_memory(world * sizeof *names);
    memcpy(names, options->node_of, world * sizeof *names);
    qsort(names, world, sizeof *names, rs_compare_ints);
    for (size_t i = 0; i < world; i++)
        if (i == 0 || names[i] != names[i - 1])
            names[dealer->nodes++] = names[i];
    for (size_t r = 0; r < world; r++) {
        const int *found = bsearch(
            &options->node_of[r], names, (size_t)dealer->nodes, sizeof *names, rs_compare_ints);
        dealer->node_of[r] = (int)(found - names);
    }
    free(names);
    return RS_OK;
}

rs_status rs_dealer_init(rs_dealer *dealer, const rs_placement *from, const rs_placement *to,
    const rs_plan_options *options)
{
    memset(dealer, 0, sizeof *dealer);
    if (options->ranks_per_node < 0)
        return rs_error_set(RS_ERR_ARGUMENT,
            "ranks per node %d: must be 1 or more, or 0 for one node", options->ranks_per_node);
    if (options->chunk_bytes < 0)
        return rs_error_set(RS_ERR_ARGUMENT,
            "chunk of %" PRId64 " bytes: must be positive, or 0 for %d", options->chunk_bytes,
            RS_PLAN_CHUNK);
    RS_TRY(check_spaces(rs_placement_space(from), rs_placement_space(to)));
    dealer->from = from;
    dealer->to = to;
    dealer->world = rs_placement_holders(from);
    if (rs_placement_holders(to) > dealer->world)
        dealer->world = rs_placement_holders(to);
    RS_TRY(number_nodes(dealer, options));
    dealer->node_mark = rs_calloc((size_t)dealer->nodes, sizeof *dealer->node_mark);
    if (dealer->node_mark == NULL)
        return rs_error_memory((size_t)dealer->nodes * sizeof *dealer->node_mark);
    return RS_OK;
}

void rs_dealer_fini(rs_dealer *dealer)
{
    free(dealer->node_of);
    free(dealer->node_mark);
    free(dealer->sources.items);
    free(dealer->targets.items);
    rs_parts_fini(&dealer->parts);
    memset(dealer, 0, sizeof *dealer);
}

static void mark_nodes(rs_dealer *dealer, const int *sources, size_t count)
{
    dealer->mark++;
    for (size_t i = 0; i < count; i++)
        dealer->node_mark[dealer->node_of[sources[i]]] = dealer->mark;
}

/* Whether `rank` is among those that have to look beyond their node. */
static bool is_remote(const rs_dealer *dealer, int rank)
{
    return dealer->node_mark[dealer->node_of[rank]] != dealer->mark;
}

/* How many ranks need the piece from another node. */
static int count_remote(rs_dealer *dealer, const rs_pieces *pieces, const rs_piece *piece)
{
    size_t count, source_count;
    const int *targets = rs_piece_holders(pieces, piece, RS_NEW, &count);
    const int *sources = rs_piece_holders(pieces, piece, RS_OLD, &source_count);
    int remote = 0;
    if (source_count == 0)
        return 0;
    mark_nodes(dealer, sources, source_count);
    for (size_t i = 0; i < count; i++)
        remote += is_remote(dealer, targets[i]);
    return remote;
}

rs_status rs_dealer_box_demand(rs_dealer *dealer, rs_pieces *pieces, const rs_role_group *group,
    int tensor, const rs_box *box, rs_demand_visit visit, void *context)
{
    const rs_space *space = rs_placement_space(dealer->from);
    int64_t largest;
    int64_t element_bytes = rs_role_group_bytes(space, group, tensor, &largest);
    RS_TRY(rs_pieces_cut(pieces, dealer->from, dealer->to, tensor, group->roles[0], box));
    for (size_t i = 0; i < pieces->count; i++) {
        const rs_piece *piece = &pieces->items[i];
        size_t count;
        const int *sources = rs_piece_holders(pieces, piece, RS_OLD, &count);
        int remote = count_remote(dealer, pieces, piece);
        if (remote == 0)
            continue;
        int64_t bytes;
        if (!rs_mul_fits(piece->elements * element_bytes, remote, &bytes))
            return rs_error_set(RS_ERR_OVERFLOW, "the bytes to move do not fit 64 bits");
        RS_TRY(visit(context, dealer, sources, count, bytes));
    }
    return RS_OK;
}

rs_status rs_dealer_demand(rs_dealer *dealer, rs_demand_visit visit, void *context)
{
    if (dealer->nodes < 2)
        return RS_OK;
    rs_role_group groups[RS_MAX_ROLES];
    int group_count = rs_role_groups(dealer->from, dealer->to, groups);
    const rs_space *space = rs_placement_space(dealer->from);
    rs_pieces pieces = {0};
    rs_status status = RS_OK;
    for (int g = 0; g < group_count; g++)
        for (int t = 0; t < rs_space_tensor_count(space); t++) {
            const rs_tensor *tensor = rs_space_tensor(space, t);
            rs_box whole = rs_box_whole(tensor->ndim, tensor->shape);
            RS_TRY_GOTO(
                rs_dealer_box_demand(dealer, &pieces, &groups[g], t, &whole, visit, context), done);
        }
done:
    rs_pieces_fini(&pieces);
    return status;
}

/* Fills the scratch lists: the old holders on `node`, and the new ones there that are no old ones;
 * for node -1, all old holders and the new ones whose node has no old one. */
static rs_status gather(rs_dealer *dealer, const rs_pieces *pieces, const rs_piece *piece, int node)
{
    size_t source_count, target_count;
    const int *sources = rs_piece_holders(pieces, piece, RS_OLD, &source_count);
    const int *targets = rs_piece_holders(pieces, piece, RS_NEW, &target_count);
    rs_int_list *from = &dealer->sources;
    rs_int_list *to = &dealer->targets;
    RS_TRY(rs_array_reserve(
        (void **)&from->items, &from->capacity, source_count, sizeof *from->items));
    RS_TRY(rs_array_reserve((void **)&to->items, &to->capacity, target_count, sizeof *to->items));
    from->count = 0;
    to->count = 0;
    for (size_t i = 0; i < source_count; i++)
        if (node < 0 || dealer->node_of[sources[i]] == node)
            from->items[from->count++] = sources[i];
    size_t s = 0;
    for (size_t i = 0; i < target_count; i++) {
        while (s < source_count && sources[s] < targets[i])
            s++;
        bool has = s < source_count && sources[s] == targets[i];
        bool competes =
            node < 0 ? is_remote(dealer, targets[i]) : dealer->node_of[targets[i]] == node;
        if (!has && competes)
            to->items[to->count++] = targets[i];
    }
    return RS_OK;
}

/* A number drawn from the name of a piece, the same on every rank. */
static uint64_t draw(int tensor, int role, const rs_box *box)
{
    uint64_t x = ((uint64_t)(unsigned)tensor << 8) + (uint64_t)(unsigned)role;
    for (int d = 0; d < box->ndim; d++) {
        x = (x ^ (uint64_t)box->offset[d]) * 0x9e3779b97f4a7c15u;
        x ^= x >> 29;
        x = (x ^ (uint64_t)box->extent[d]) * 0xbf58476d1ce4e5b9u;
        x ^= x >> 32;
    }
    x = (x ^ x >> 30) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The line of a class of a piece, cut into stretches of its sources. */
typedef struct line {
    int64_t length;
    const int64_t *ends; /* cumulated weights, or NULL: equal weights */
    int64_t weight;      /* of all sources together */
    int64_t shift;       /* 0..weight-1 */
} line;

/* Where the stretches before source number `k` end. */
static int64_t line_begin(const line *l, size_t k)
{
    int64_t before = l->ends == NULL ? (int64_t)k : k == 0 ? 0 : l->ends[k - 1];
    __extension__ typedef __int128 wide;
    return (int64_t)(((wide)before * l->length + l->shift) / l->weight);
}

/* The line of what is in the scratch lists. */
static rs_status make_line(rs_dealer *dealer, const rs_pieces *pieces, const rs_piece *piece,
    int tensor, int role, bool remote, line *out)
{
    *out = (line){.weight = (int64_t)dealer->sources.count};
    if (!rs_mul_fits(piece->elements, (int64_t)dealer->targets.count, &out->length))
        return rs_error_set(RS_ERR_OVERFLOW, "the bytes to move do not fit 64 bits");
    if (remote && dealer->sources.count > 1)
        RS_TRY(rs_parts_divide(
            dealer, dealer->sources.items, dealer->sources.count, &out->ends, &out->weight));
    uint64_t number = draw(tensor, role, rs_piece_boxes(pieces, piece));
    out->shift = (int64_t)(number % (uint64_t)out->weight);
    return RS_OK;
}

static rs_status append_deal(
    rs_deal_list *out, int peer, rs_reach reach, int64_t begin, int64_t end)
{
    if (begin >= end)
        return RS_OK;
    RS_TRY(RS_LIST_RESERVE_ONE(out));
    out->items[out->count++] = (rs_deal){peer, reach, begin, end};
    return RS_OK;
}

static size_t position_of(const rs_int_list *list, int rank)
{
    size_t i = 0;
    while (list->items[i] != rank)
        i++;
    return i;
}

rs_status rs_dealer_take(rs_dealer *dealer, const rs_pieces *pieces, const rs_piece *piece,
    int tensor, int role, int rank, rs_deal_list *out)
{
    size_t count;
    const int *sources = rs_piece_holders(pieces, piece, RS_OLD, &count);
    if (count == 0)
        return RS_ERR_NOT_FOUND;
    mark_nodes(dealer, sources, count);
    bool remote = is_remote(dealer, rank);
    RS_TRY(gather(dealer, pieces, piece, remote ? -1 : dealer->node_of[rank]));
    line l;
    RS_TRY(make_line(dealer, pieces, piece, tensor, role, remote, &l));
    int64_t base = (int64_t)position_of(&dealer->targets, rank) * piece->elements;
    for (size_t k = 0; k < dealer->sources.count; k++) {
        int64_t begin = rs_max64(line_begin(&l, k) - base, 0);
        int64_t end = rs_min64(line_begin(&l, k + 1) - base, piece->elements);
        RS_TRY(append_deal(
            out, dealer->sources.items[k], remote ? RS_REACH_REMOTE : RS_REACH_NODE, begin, end));
    }
    return RS_OK;
}

/* What `rank` gives to the targets in the scratch list. */
static rs_status give_class(rs_dealer *dealer, const rs_pieces *pieces, const rs_piece *piece,
    int tensor, int role, int rank, bool remote, rs_deal_list *out)
{
    if (dealer->targets.count == 0)
        return RS_OK;
    line l;
    RS_TRY(make_line(dealer, pieces, piece, tensor, role, remote, &l));
    size_t k = position_of(&dealer->sources, rank);
    int64_t begin = line_begin(&l, k);
    int64_t end = line_begin(&l, k + 1);
    int64_t n = piece->elements;
    for (int64_t i = begin / n; i * n < end; i++)
        RS_TRY(append_deal(out, dealer->targets.items[i], remote ? RS_REACH_REMOTE : RS_REACH_NODE,
            rs_max64(begin - i * n, 0), rs_min64(end - i * n, n)));
    return RS_OK;
}

rs_status rs_dealer_give(rs_dealer *dealer, const rs_pieces *pieces, const rs_piece *piece,
    int tensor, int role, int rank, rs_deal_list *out)
{
    size_t count;
    const int *sources = rs_piece_holders(pieces, piece, RS_OLD, &count);
    mark_nodes(dealer, sources, count);
    RS_TRY(gather(dealer, pieces, piece, dealer->node_of[rank]));
    RS_TRY(give_class(dealer, pieces, piece, tensor, role, rank, false, out));
    if (dealer->nodes < 2)
        return RS_OK;
    RS_TRY(gather(dealer, pieces, piece, -1));
    return give_class(dealer, pieces, piece, tensor, role, rank, true, out);
}
