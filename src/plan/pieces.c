/*
 * Pieces: the common refinement of two placements within a box.
 *
 * Everything that a plan decides (who sends, where a transfer is cut) must come out alike on the
 * sender and on the receiver, though each looks only at its own shards. So decisions are made per
 * *piece*: the set of all elements of a tensor that lie in exactly the same shard boxes of both
 * placements, its covers. A piece lies within each of its covers; hence whoever holds any of it,
 * before or after, holds all of it in one shard, and finds the whole piece by cutting that shard.
 * Nothing has to be agreed on.
 *
 * Cutting: the boxes of both placements that meet the query are its covers. A box that is partly in
 * a cover is split in two at that cover's border, until every fragment is within or apart from each
 * cover; taking the border of the middle one of the covers still undecided makes the splitting a
 * k-d tree. Fragments in the same covers make up a piece. Almost always a piece is a box, the
 * intersection of its covers; where other covers bite into that box, it is cut once more, by those
 * alone.
 *
 * Invariants:
 *  1. A piece is a function of the two placements and any one of its elements. Its boxes too: they
 * are cut out of the intersection of its covers by the covers that meet it, in the order of
 *     rs_box_compare; a query that is one of the covers plays no part, any other clips them.
 *  2. The pieces of a query are disjoint, and with the elements that nobody holds they make it up.
 *  3. Every box of a piece lies in one shard of each of its holders (shards of a holder do not
 * overlap).
 *
 * Cost: with C covers and F fragments about (C + F) log C box comparisons. No recursion: a chain of
 * nested covers must not exhaust the stack.
 */
#include "plan/pieces.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

static void cutter_fini(rs_cutter *cutter)
{
    free(cutter->tasks);
    free(cutter->stack.items);
    free(cutter->partial.items);
    free(cutter->fragments);
    free(cutter->list.items);
}

void rs_pieces_fini(rs_pieces *pieces)
{
    free(pieces->items);
    free(pieces->boxes.items);
    free(pieces->ranks.items);
    for (int side = 0; side < RS_SIDES; side++)
        rs_holding_list_fini(&pieces->held[side]);
    free(pieces->covers.items);
    cutter_fini(&pieces->cutter);
    cutter_fini(&pieces->inner);
    free(pieces->order.items);
    memset(pieces, 0, sizeof *pieces);
}

rs_status rs_int_list_append(rs_int_list *list, const int *items, size_t count)
{
    RS_TRY(rs_array_reserve(
        (void **)&list->items, &list->capacity, list->count + count, sizeof *list->items));
    if (count > 0)
        memcpy(list->items + list->count, items, count * sizeof *items);
    list->count += count;
    return RS_OK;
}

bool rs_ranks_have(const int *ranks, size_t count, int rank)
{
    size_t at = RS_SEARCH(count, k, ranks[k] < rank);
    return at < count && ranks[at] == rank;
}

/* Lists that come out of a merge of few ascending runs: mostly sorted, mostly short. */
static void sort_ints(int *items, size_t count)
{
    for (size_t i = 1; i < count; i++)
        if (items[i - 1] > items[i]) {
            qsort(items, count, sizeof *items, rs_compare_ints);
            return;
        }
}

typedef enum relation { APART, WITHIN, PARTLY } relation;

/* How `box` lies to `cover`. */
static relation relate(const rs_box *box, const rs_box *cover)
{
    relation found = WITHIN;
    for (int d = 0; d < box->ndim; d++) {
        int64_t box_end = box->offset[d] + box->extent[d];
        int64_t cover_end = cover->offset[d] + cover->extent[d];
        if (cover_end <= box->offset[d] || box_end <= cover->offset[d])
            return APART;
        if (cover->offset[d] > box->offset[d] || cover_end < box_end)
            found = PARTLY;
    }
    return found;
}

static rs_status push_task(
    rs_cutter *cutter, const rs_box *box, size_t first, size_t inside, size_t count)
{
    RS_TRY(rs_array_reserve((void **)&cutter->tasks, &cutter->task_capacity, cutter->task_count + 1,
        sizeof *cutter->tasks));
    cutter->tasks[cutter->task_count++] = (rs_cut_task){*box, first, inside, count};
    return RS_OK;
}

static rs_status emit_fragment(
    rs_cutter *cutter, const rs_box *box, const int *inside, size_t count)
{
    RS_TRY(rs_array_reserve((void **)&cutter->fragments, &cutter->fragment_capacity,
        cutter->fragment_count + 1, sizeof *cutter->fragments));
    size_t first = cutter->list.count;
    RS_TRY(rs_int_list_append(&cutter->list, inside, count));
    sort_ints(cutter->list.items + first, count);
    cutter->fragments[cutter->fragment_count++] = (rs_fragment){*box, first, count};
    return RS_OK;
}

/* Splits `box` at a border of `cover` that runs through it. */
static void split_box(const rs_box *box, const rs_box *cover, rs_box *low, rs_box *high)
{
    for (int d = 0; d < box->ndim; d++) {
        int64_t end = box->offset[d] + box->extent[d];
        int64_t cover_end = cover->offset[d] + cover->extent[d];
        int64_t at;
        if (cover->offset[d] > box->offset[d])
            at = cover->offset[d];
        else if (cover_end < end)
            at = cover_end;
        else
            continue;
        *low = *box;
        low->extent[d] = at - box->offset[d];
        *high = *box;
        high->offset[d] = at;
        high->extent[d] = end - at;
        return;
    }
    assert(!"the cover is apart from the box or contains it");
}

/*
 * Decides the covers of the newest task. Its list is the last one of the stack, so it is sorted in
 * place: first the covers around the box, then the undecided ones in the order in which they came.
 */
static rs_status run_task(rs_cutter *cutter, const rs_cover *covers)
{
    rs_cut_task task = cutter->tasks[--cutter->task_count];
    int *list = cutter->stack.items + task.first;
    size_t inside = task.inside;
    cutter->partial.count = 0;
    RS_TRY(rs_array_reserve((void **)&cutter->partial.items, &cutter->partial.capacity,
        task.count - task.inside, sizeof(int)));
    for (size_t i = task.inside; i < task.count; i++) {
        relation how = relate(&task.box, &covers[list[i]].box);
        if (how == WITHIN)
            list[inside++] = list[i];
        else if (how == PARTLY)
            cutter->partial.items[cutter->partial.count++] = list[i];
    }
    size_t partial = cutter->partial.count;
    cutter->stack.count = task.first + inside;
    if (partial == 0)
        return emit_fragment(cutter, &task.box, list, inside);

    rs_box low, high;
    split_box(&task.box, &covers[cutter->partial.items[partial / 2]].box, &low, &high);
    RS_TRY(rs_int_list_append(&cutter->stack, cutter->partial.items, partial));
    size_t second = cutter->stack.count;
    size_t count = inside + partial;
    RS_TRY(rs_array_reserve(
        (void **)&cutter->stack.items, &cutter->stack.capacity, second + count, sizeof(int)));
    memcpy(cutter->stack.items + second, cutter->stack.items + task.first, count * sizeof(int));
    cutter->stack.count = second + count;
    RS_TRY(push_task(cutter, &high, task.first, inside, count));
    return push_task(cutter, &low, second, inside, count);
}

/* Cuts `box` by the listed covers into fragments. */
static rs_status cut_box(rs_cutter *cutter, const rs_cover *covers, const rs_box *box,
    const int *listed, size_t listed_count)
{
    cutter->task_count = 0;
    cutter->stack.count = 0;
    cutter->fragment_count = 0;
    cutter->list.count = 0;
    RS_TRY(rs_int_list_append(&cutter->stack, listed, listed_count));
    RS_TRY(push_task(cutter, box, 0, 0, listed_count));
    while (cutter->task_count > 0)
        RS_TRY(run_task(cutter, covers));
    return RS_OK;
}

/* Appends the holders of the holdings that start at `*next` and have the box of that one. */
static rs_status gather_cover(
    rs_pieces *pieces, const rs_holding_list *held, size_t *next, int side, rs_cover *cover)
{
    const rs_box *box = &held->items[*next].box;
    cover->first[side] = pieces->ranks.count;
    for (; *next < held->count && rs_box_equal(&held->items[*next].box, box); (*next)++) {
        const rs_holding *holding = &held->items[*next];
        RS_TRY(rs_int_list_append(&pieces->ranks, held->ranks + holding->first, holding->count));
    }
    cover->count[side] = pieces->ranks.count - cover->first[side];
    sort_ints(pieces->ranks.items + cover->first[side], cover->count[side]);
    return RS_OK;
}

/* Merges what both placements answered, in the order of rs_box_compare, into covers. */
static rs_status gather_covers(rs_pieces *pieces)
{
    const rs_holding_list *before = &pieces->held[RS_OLD];
    const rs_holding_list *after = &pieces->held[RS_NEW];
    size_t i = 0;
    size_t j = 0;
    pieces->covers.count = 0;
    while (i < before->count || j < after->count) {
        RS_TRY(RS_LIST_RESERVE_ONE(&pieces->covers));
        int order = i == before->count ? 1
                    : j == after->count
                        ? -1
                        : rs_box_compare(&before->items[i].box, &after->items[j].box);
        rs_cover cover = {.box = order <= 0 ? before->items[i].box : after->items[j].box};
        if (order <= 0)
            RS_TRY(gather_cover(pieces, before, &i, RS_OLD, &cover));
        if (order >= 0)
            RS_TRY(gather_cover(pieces, after, &j, RS_NEW, &cover));
        pieces->covers.items[pieces->covers.count++] = cover;
    }
    return RS_OK;
}

static int compare_fragments(const void *a, const void *b, void *context)
{
    const rs_cutter *cutter = context;
    int left = *(const int *)a;
    int right = *(const int *)b;
    const rs_fragment *one = &cutter->fragments[left];
    const rs_fragment *other = &cutter->fragments[right];
    if (one->count != other->count)
        return one->count < other->count ? -1 : 1;
    for (size_t i = 0; i < one->count; i++) {
        int x = cutter->list.items[one->first + i];
        int y = cutter->list.items[other->first + i];
        if (x != y)
            return rs_compare(x, y);
    }
    return rs_compare(left, right);
}

static bool same_covers(const rs_cutter *cutter, int left, int right)
{
    const rs_fragment *one = &cutter->fragments[left];
    const rs_fragment *other = &cutter->fragments[right];
    return one->count == other->count && (one->count == 0 || memcmp(cutter->list.items + one->first,
                                                                 cutter->list.items + other->first,
                                                                 one->count * sizeof(int)) == 0);
}

/* The boxes of a piece that other covers bite into: `around`, cut by those that meet it and do not
 * contain the piece. `inside` are the covers that do. */
static rs_status cut_piece(
    rs_pieces *pieces, const rs_box *around, const int *inside, size_t count, rs_piece *piece)
{
    rs_int_list *others = &pieces->order;
    size_t kept = others->count;
    size_t next = 0;
    for (size_t c = 0; c < pieces->covers.count; c++) {
        int id = (int)c;
        if (next < count && inside[next] == id)
            next++;
        else if (relate(around, &pieces->covers.items[c].box) != APART)
            RS_TRY(rs_int_list_append(others, &id, 1));
    }
    RS_TRY(cut_box(
        &pieces->inner, pieces->covers.items, around, others->items + kept, others->count - kept));
    others->count = kept;
    for (size_t f = 0; f < pieces->inner.fragment_count; f++) {
        if (pieces->inner.fragments[f].count > 0)
            continue;
        RS_TRY(RS_LIST_RESERVE_ONE(&pieces->boxes));
        pieces->boxes.items[pieces->boxes.count++] = pieces->inner.fragments[f].box;
        piece->box_count++;
    }
    return RS_OK;
}

/* Makes a piece of fragments order[begin .. end - 1], which lie in the same covers. */
static rs_status make_piece(rs_pieces *pieces, const rs_box *query, size_t begin, size_t end)
{
    const rs_cutter *cutter = &pieces->cutter;
    const rs_fragment *some = &cutter->fragments[pieces->order.items[begin]];
    const int *inside = cutter->list.items + some->first;
    rs_piece piece = {.box_first = pieces->boxes.count};
    for (size_t i = begin; i < end; i++)
        piece.elements += rs_box_volume(&cutter->fragments[pieces->order.items[i]].box);

    rs_box around = *query;
    for (size_t i = 0; i < some->count; i++)
        rs_box_intersect(&around, &pieces->covers.items[inside[i]].box, &around);
    if (rs_box_volume(&around) == piece.elements) {
        RS_TRY(RS_LIST_RESERVE_ONE(&pieces->boxes));
        pieces->boxes.items[pieces->boxes.count++] = around;
        piece.box_count = 1;
    } else {
        RS_TRY(cut_piece(pieces, &around, inside, some->count, &piece));
    }

    for (int side = 0; side < RS_SIDES; side++) {
        piece.first[side] = pieces->ranks.count;
        for (size_t i = 0; i < some->count; i++) {
            const rs_cover *cover = &pieces->covers.items[inside[i]];
            RS_TRY(rs_array_reserve((void **)&pieces->ranks.items, &pieces->ranks.capacity,
                pieces->ranks.count + cover->count[side], sizeof(int)));
            RS_TRY(rs_int_list_append(
                &pieces->ranks, pieces->ranks.items + cover->first[side], cover->count[side]));
        }
        piece.count[side] = pieces->ranks.count - piece.first[side];
        sort_ints(pieces->ranks.items + piece.first[side], piece.count[side]);
    }
    RS_TRY(RS_LIST_RESERVE_ONE(pieces));
    pieces->items[pieces->count++] = piece;
    return RS_OK;
}

rs_status rs_pieces_cut(rs_pieces *pieces, const rs_placement *from, const rs_placement *to,
    int tensor, int role, const rs_box *query)
{
    pieces->count = 0;
    pieces->boxes.count = 0;
    pieces->ranks.count = 0;
    pieces->order.count = 0;
    pieces->held[RS_OLD].count = 0;
    pieces->held[RS_NEW].count = 0;
    if (rs_box_is_empty(query))
        return RS_OK;
    if (from != NULL)
        RS_TRY(rs_placement_locate(from, tensor, role, query, &pieces->held[RS_OLD]));
    if (to != NULL)
        RS_TRY(rs_placement_locate(to, tensor, role, query, &pieces->held[RS_NEW]));
    RS_TRY(gather_covers(pieces));

    rs_int_list *order = &pieces->order;
    for (size_t i = 0; i < pieces->covers.count; i++) {
        int id = (int)i;
        RS_TRY(rs_int_list_append(order, &id, 1));
    }
    RS_TRY(cut_box(&pieces->cutter, pieces->covers.items, query, order->items, order->count));
    order->count = 0;
    for (size_t i = 0; i < pieces->cutter.fragment_count; i++) {
        int id = (int)i;
        RS_TRY(rs_int_list_append(order, &id, 1));
    }
    if (order->count > 1)
        qsort_r(order->items, order->count, sizeof(int), compare_fragments, &pieces->cutter);
    size_t end;
    for (size_t begin = 0; begin < order->count; begin = end) {
        end = begin + 1;
        while (end < order->count &&
               same_covers(&pieces->cutter, order->items[begin], order->items[end]))
            end++;
        if (pieces->cutter.fragments[order->items[begin]].count > 0)
            RS_TRY(make_piece(pieces, query, begin, end));
    }
    return RS_OK;
}
