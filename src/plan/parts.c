/*
 * Parts: what each old holder serves of the demand that crosses nodes, so that the busiest serves
 * the least.
 *
 * The candidates of different pieces overlap in ways that equal parts do not balance: some of them
 * have much to send that nobody else has. The min-max flow (flow.c) balances them, but it has to
 * know all demand of whoever can take over from whom. That is not the whole cluster: two ranks are
 * *tied* if both are candidates for the same demand, and the ranks that chains of ties connect make
 * up a *part*. Parts have no candidate in common, so the flow of one is no matter of another. With
 * layouts a part is one old pipeline stage, or two that share an embedding, and a rank deals with
 * the parts that it holds something of or takes something from.
 *
 * A part is found from any of its ranks. A rank's demand lies in its *slabs*: what its shards cover
 * of the first dimension of a tensor, the other dimensions whole. All demand in the slabs of a rank
 * ties further ranks to it, whose slabs are looked at next. Slabs rather than shards, since one cut
 * of a slab finds the demand of all the ranks that divide it.
 *
 * Invariants:
 *  1. A part and its flow follow from the placements and the nodes, whichever of its ranks it was
 *     found from: every rank comes to the same division.
 *  2. No index of a tensor's first dimension is looked at twice for a part.
 * Cost: the pieces in the slabs of the part.
 */
#include "plan/parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "plan/deal.h"

/* Indices begin..end-1 of the first dimension of a tensor, in the roles of a group. */
typedef struct slab {
    int group;
    int tensor;
    int64_t begin;
    int64_t end;
} slab;

typedef struct slab_list {
    slab *items;
    size_t count;
    size_t capacity;
} slab_list;

/* A part while it is being found. */
typedef struct finder {
    rs_dealer *dealer;
    rs_role_group groups[RS_MAX_ROLES];
    int group_count;
    int ranks; /* of the old world */
    int *tied; /* a forest: each rank's parent, itself at a root; a tree is of tied ranks */
    bool *asked;
    slab_list wanted; /* those of the ranks asked last */
    slab_list looked; /* apart from each other, ascending */
    rs_flow demand;   /* all that was seen, of ranks of other parts too */
    rs_shard_list shards;
    rs_pieces pieces;
} finder;

void rs_parts_fini(rs_parts *parts)
{
    for (size_t i = 0; i < parts->count; i++)
        rs_flow_fini(&parts->items[i]);
    free(parts->items);
    free(parts->part_of);
    memset(parts, 0, sizeof *parts);
}

static void finder_fini(finder *f)
{
    free(f->tied);
    free(f->asked);
    free(f->wanted.items);
    free(f->looked.items);
    rs_flow_fini(&f->demand);
    rs_shard_list_fini(&f->shards);
    rs_pieces_fini(&f->pieces);
}

static rs_status finder_init(finder *f, rs_dealer *dealer)
{
    *f = (finder){.dealer = dealer, .ranks = rs_placement_holders(dealer->from)};
    f->group_count = rs_role_groups(dealer->from, dealer->to, f->groups);
    f->tied = rs_calloc((size_t)f->ranks, sizeof *f->tied);
    f->asked = rs_calloc((size_t)f->ranks, sizeof *f->asked);
    if (f->tied == NULL || f->asked == NULL)
        return rs_error_memory((size_t)f->ranks * sizeof *f->tied);
    for (int r = 0; r < f->ranks; r++)
        f->tied[r] = r;
    return RS_OK;
}

/* The root of the tree that `rank` is in; halves the way to it. */
static int root_of(finder *f, int rank)
{
    while (f->tied[rank] != rank) {
        f->tied[rank] = f->tied[f->tied[rank]];
        rank = f->tied[rank];
    }
    return rank;
}

static rs_status tie(
    void *context, const rs_dealer *dealer, const int *sources, size_t count, int64_t bytes)
{
    (void)dealer;
    finder *f = context;
    int root = root_of(f, sources[0]);
    for (size_t i = 1; i < count; i++)
        f->tied[root_of(f, sources[i])] = root;
    return rs_flow_add(&f->demand, sources, count, bytes);
}

static int compare_names(const slab *a, const slab *b)
{
    return a->group != b->group ? rs_compare(a->group, b->group) : rs_compare(a->tensor, b->tensor);
}

static int compare_slabs(const void *a, const void *b)
{
    const slab *one = a;
    const slab *other = b;
    int order = compare_names(one, other);
    return order != 0 ? order : rs_compare(one->begin, other->begin);
}

/* The first of the slabs 0..count-1 that were looked at that does not end before `s` begins: it is
 * of the same name and meets `s`, or none does. */
static size_t first_known(const finder *f, const slab *s, size_t count)
{
    const slab *known = f->looked.items;
    return RS_SEARCH(count, k,
        compare_names(&known[k], s) < 0 ||
            (compare_names(&known[k], s) == 0 && known[k].end <= s->begin));
}

/* Adds the slabs of a rank to those that are wanted, but for those within one that was looked at:
 * ranks of one stage have the same. */
static rs_status ask(finder *f, int rank)
{
    f->asked[rank] = true;
    for (int g = 0; g < f->group_count; g++) {
        RS_TRY(rs_placement_shards(f->dealer->from, rank, f->groups[g].roles[0], &f->shards));
        for (size_t i = 0; i < f->shards.count; i++) {
            const rs_shard *shard = &f->shards.items[i];
            const rs_box *box = &shard->box;
            slab s = {g, shard->tensor, 0, 1};
            if (box->ndim > 0) {
                s.begin = box->offset[0];
                s.end = box->offset[0] + box->extent[0];
            }
            size_t k = first_known(f, &s, f->looked.count);
            const slab *known = &f->looked.items[k];
            if (k < f->looked.count && compare_names(known, &s) == 0 && known->begin <= s.begin &&
                s.end <= known->end)
                continue;
            RS_TRY(RS_LIST_RESERVE_ONE(&f->wanted));
            f->wanted.items[f->wanted.count++] = s;
        }
    }
    return RS_OK;
}

static rs_status look(finder *f, slab s)
{
    const rs_tensor *tensor = rs_space_tensor(rs_placement_space(f->dealer->from), s.tensor);
    rs_box box = rs_box_whole(tensor->ndim, tensor->shape);
    if (box.ndim > 0) {
        box.offset[0] = s.begin;
        box.extent[0] = s.end - s.begin;
    }
    RS_TRY(RS_LIST_RESERVE_ONE(&f->looked));
    f->looked.items[f->looked.count++] = s;
    return rs_dealer_box_demand(f->dealer, &f->pieces, &f->groups[s.group], s.tensor, &box, tie, f);
}

/* Looks at what of `s` is in none of the first `count` slabs that were looked at. */
static rs_status look_at_rest(finder *f, slab s, size_t count)
{
    slab rest = s;
    for (size_t k = first_known(f, &s, count); rest.begin < s.end; k++) {
        const slab *known = &f->looked.items[k];
        bool meets = k < count && compare_names(known, &s) == 0 && known->begin < s.end;
        int64_t next = meets ? known->end : s.end;
        rest.end = meets ? known->begin : s.end;
        if (rest.begin < rest.end)
            RS_TRY(look(f, rest));
        rest.begin = next;
    }
    return RS_OK;
}

/* Looks at all that is wanted, neighbouring and overlapping slabs together. */
static rs_status look_at_wanted(finder *f)
{
    slab_list *wanted = &f->wanted;
    size_t known = f->looked.count;
    if (wanted->count > 1)
        qsort(wanted->items, wanted->count, sizeof *wanted->items, compare_slabs);
    size_t next;
    for (size_t i = 0; i < wanted->count; i = next) {
        slab run = wanted->items[i];
        for (next = i + 1; next < wanted->count; next++) {
            const slab *other = &wanted->items[next];
            if (compare_names(&run, other) != 0 || other->begin > run.end)
                break;
            run.end = rs_max64(run.end, other->end);
        }
        RS_TRY(look_at_rest(f, run, known));
    }
    wanted->count = 0;
    if (f->looked.count > 1)
        qsort(f->looked.items, f->looked.count, sizeof *f->looked.items, compare_slabs);
    return RS_OK;
}

/* Looks until no rank tied to `rank` is left to be asked. */
static rs_status find_tied(finder *f, int rank)
{
    bool more = true;
    while (more) {
        int root = root_of(f, rank);
        more = false;
        for (int r = 0; r < f->ranks; r++)
            if (!f->asked[r] && root_of(f, r) == root) {
                RS_TRY(ask(f, r));
                more = true;
            }
        if (more)
            RS_TRY(look_at_wanted(f));
    }
    return RS_OK;
}

/* Solves the flow of the ranks tied to `rank`, a part. Of a crowded one nobody asks for it. */
static rs_status add_part(finder *f, int rank)
{
    rs_parts *parts = &f->dealer->parts;
    rs_status status;
    rs_flow part = {.crowded = f->demand.crowded};
    int root = root_of(f, rank);
    for (size_t g = 0; g < f->demand.count && !part.crowded; g++) {
        const rs_flow_group *group = &f->demand.groups[g];
        const int *members = f->demand.members + group->first;
        if (root_of(f, members[0]) == root)
            RS_TRY_GOTO(rs_flow_add(&part, members, group->count, group->demand), fail);
    }
    if (!part.crowded)
        RS_TRY_GOTO(rs_flow_solve(&part), fail);
    RS_TRY_GOTO(RS_LIST_RESERVE_ONE(parts), fail);
    for (int r = 0; r < f->ranks; r++)
        if (root_of(f, r) == root)
            parts->part_of[r] = (int)parts->count;
    parts->items[parts->count++] = part;
    return RS_OK;
fail:
    rs_flow_fini(&part);
    return status;
}

static rs_status find_part(rs_dealer *dealer, int rank)
{
    finder f;
    rs_status status;
    RS_TRY_GOTO(finder_init(&f, dealer), done);
    RS_TRY_GOTO(find_tied(&f, rank), done);
    RS_TRY_GOTO(add_part(&f, rank), done);
done:
    finder_fini(&f);
    return status;
}

rs_status rs_parts_divide(
    rs_dealer *dealer, const int *sources, size_t count, const int64_t **ends, int64_t *demand)
{
    rs_parts *parts = &dealer->parts;
    if (parts->part_of == NULL) {
        size_t ranks = (size_t)rs_placement_holders(dealer->from);
        parts->part_of = rs_calloc(ranks, sizeof *parts->part_of);
        if (parts->part_of == NULL)
            return rs_error_memory(ranks * sizeof *parts->part_of);
        for (size_t r = 0; r < ranks; r++)
            parts->part_of[r] = -1;
    }
    if (parts->part_of[sources[0]] < 0)
        RS_TRY(find_part(dealer, sources[0]));
    const rs_flow *part = &parts->items[parts->part_of[sources[0]]];
    if (part->crowded) {
        *ends = NULL;
        *demand = (int64_t)count;
        return RS_OK;
    }
    const rs_flow_group *group = rs_flow_find(part, sources, count);
    assert(group != NULL && group->demand > 0);
    *ends = part->ends + group->first;
    *demand = group->demand;
    return RS_OK;
}
