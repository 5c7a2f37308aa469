/*
 * Sums: which boxes the certificate is kept for, and what it compares.
 *
 * The cells of a holder are its shards, cut where the set of holders changes. The same cutting as a
 * plan's (pieces.c), with one placement: the cells that two holders share are the same boxes on
 * both.
 *
 * What a reduction adds per (tensor, role), each in two lanes mod 2^64:
 *   counted   the sum of each cell, by its lowest holder: the sum of the tensor, layout or no
 * layout; held      the sum of each cell, by every holder; expected  the sum of each cell times its
 * holders, by its lowest holder. Two states are the same if counted is; the copies of a state are
 * equal if held is expected.
 */
#include "move/sums.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "plan/pieces.h"

enum { COUNTED = 0, HELD = 2, EXPECTED = 4, WORDS = 6 };

void rs_sums_destroy(rs_sums *sums)
{
    if (sums == NULL)
        return;
    free(sums->cells);
    free(sums);
}

/* A cell and where it lies in its segment, until they are sorted. */
typedef struct placed {
    int64_t offset;
    rs_cell cell;
} placed;

typedef struct placed_list {
    placed *items;
    size_t count;
    size_t capacity;
} placed_list;

static rs_status add_cells(
    const rs_sums *sums, rs_pieces *pieces, const rs_shard *shard, placed_list *out)
{
    RS_TRY(rs_pieces_cut(pieces, NULL, sums->placement, shard->tensor, shard->role, &shard->box));
    for (size_t i = 0; i < pieces->count; i++) {
        const rs_piece *piece = &pieces->items[i];
        const rs_box *boxes = rs_piece_boxes(pieces, piece);
        size_t count;
        const int *holders = rs_piece_holders(pieces, piece, RS_NEW, &count);
        for (size_t k = 0; k < piece->box_count; k++) {
            placed one = {.offset = shard->offset,
                .cell = {.tensor = shard->tensor,
                    .role = shard->role,
                    .segment = shard->segment,
                    .box = boxes[k],
                    .holders = (int)count,
                    .counted = holders[0] == sums->holder}};
            for (int d = 0; d < one.cell.box.ndim; d++)
                one.offset += (one.cell.box.offset[d] - shard->box.offset[d]) * shard->stride[d];
            RS_TRY(RS_LIST_RESERVE_ONE(out));
            out->items[out->count++] = one;
        }
    }
    return RS_OK;
}

static int compare_placed(const void *a, const void *b)
{
    const placed *one = a;
    const placed *other = b;
    if (one->cell.role != other->cell.role)
        return rs_compare(one->cell.role, other->cell.role);
    if (one->cell.segment != other->cell.segment)
        return rs_compare(one->cell.segment, other->cell.segment);
    if (one->offset != other->offset)
        return rs_compare(one->offset, other->offset);
    if (one->cell.tensor != other->cell.tensor)
        return rs_compare(one->cell.tensor, other->cell.tensor);
    return rs_box_compare(&one->cell.box, &other->cell.box);
}

rs_status rs_sums_create(const rs_placement *placement, int holder, rs_sums **out)
{
    rs_shard_list shards = {0};
    rs_pieces pieces = {0};
    placed_list cells = {0};
    rs_status status = RS_OK;
    rs_sums *sums = rs_calloc(1, sizeof *sums);
    if (sums == NULL)
        return rs_error_memory(sizeof *sums);
    sums->placement = placement;
    sums->holder = holder;
    RS_TRY_GOTO(rs_placement_shards(placement, holder, -1, &shards), done);
    for (size_t i = 0; i < shards.count; i++)
        RS_TRY_GOTO(add_cells(sums, &pieces, &shards.items[i], &cells), done);
    if (cells.count > 1)
        qsort(cells.items, cells.count, sizeof *cells.items, compare_placed);
    sums->cells = rs_calloc(cells.count, sizeof *sums->cells);
    if (sums->cells == NULL) {
        status = rs_error_memory(cells.count * sizeof *sums->cells);
        goto done;
    }
    for (size_t i = 0; i < cells.count; i++)
        sums->cells[sums->count++] = cells.items[i].cell;
done:
    free(cells.items);
    rs_shard_list_fini(&shards);
    rs_pieces_fini(&pieces);
    if (status == RS_OK)
        *out = sums;
    else
        rs_sums_destroy(sums);
    return status;
}

rs_cell *rs_sums_cells(rs_sums *sums, size_t *count)
{
    *count = sums->count;
    return sums->cells;
}

/* The cells of `sums` in (role, segment) from `*at` on; leaves `*at` behind them. */
static size_t step_over(const rs_sums *sums, int role, int segment, size_t *at)
{
    while (*at < sums->count &&
           (sums->cells[*at].role < role ||
               (sums->cells[*at].role == role && sums->cells[*at].segment < segment)))
        (*at)++;
    size_t first = *at;
    while (
        *at < sums->count && sums->cells[*at].role == role && sums->cells[*at].segment == segment)
        (*at)++;
    return first;
}

void rs_sums_adopt(rs_sums *sums, const rs_sums *old, const int *adopted, size_t adopted_count)
{
    size_t old_end = 0;
    size_t end;
    for (size_t begin = 0; begin < sums->count; begin = end) {
        int role = sums->cells[begin].role;
        int segment = sums->cells[begin].segment;
        end = begin;
        step_over(sums, role, segment, &end);
        size_t old_begin = step_over(old, role, segment, &old_end);
        if (!rs_ranks_have(adopted, adopted_count, segment))
            continue;
        for (size_t i = begin; i < end; i++)
            for (size_t k = old_begin; k < old_end; k++) {
                rs_cell *cell = &sums->cells[i];
                const rs_cell *before = &old->cells[k];
                if (!before->known || before->tensor != cell->tensor ||
                    !rs_box_equal(&before->box, &cell->box))
                    continue;
                cell->sum = before->sum;
                cell->known = true;
            }
    }
}

size_t rs_sums_word_count(const rs_space *space)
{
    return (size_t)rs_space_tensor_count(space) * (size_t)rs_space_role_count(space) * WORDS;
}

rs_status rs_sums_words(const rs_sums *sums, uint64_t *words)
{
    const rs_space *space = rs_placement_space(sums->placement);
    size_t roles = (size_t)rs_space_role_count(space);
    for (size_t i = 0; i < sums->count; i++)
        if (!sums->cells[i].known) {
            char box[RS_MAX_DIMS * 48];
            return rs_error_set(RS_ERR_ARGUMENT, "the sum of %s %s, role %s, is not known",
                rs_space_tensor(space, sums->cells[i].tensor)->name,
                rs_box_format(&sums->cells[i].box, box, sizeof box),
                rs_space_role(space, sums->cells[i].role)->name);
        }
    memset(words, 0, rs_sums_word_count(space) * sizeof *words);
    for (size_t i = 0; i < sums->count; i++) {
        const rs_cell *cell = &sums->cells[i];
        uint64_t *at = words + ((size_t)cell->tensor * roles + (size_t)cell->role) * WORDS;
        for (int lane = 0; lane < 2; lane++) {
            at[HELD + lane] += cell->sum.lane[lane];
            if (!cell->counted)
                continue;
            at[COUNTED + lane] += cell->sum.lane[lane];
            at[EXPECTED + lane] += cell->sum.lane[lane] * (uint64_t)cell->holders;
        }
    }
    return RS_OK;
}

rs_status rs_sums_compare(
    const rs_space *space, const uint64_t *before, const uint64_t *after, int64_t roles)
{
    int role_count = rs_space_role_count(space);
    for (int t = 0; t < rs_space_tensor_count(space); t++)
        for (int r = 0; r < role_count; r++) {
            size_t at = ((size_t)t * (size_t)role_count + (size_t)r) * WORDS;
            const char *tensor = rs_space_tensor(space, t)->name;
            const char *role = rs_space_role(space, r)->name;
            if ((roles >> r & 1) == 0)
                continue;
            if (memcmp(before + at + COUNTED, after + at + COUNTED, 2 * sizeof *before) != 0)
                return rs_error_set(RS_ERR_CERTIFICATE,
                    "%s, role %s: the content sum is %016llx%016llx, it was %016llx%016llx", tensor,
                    role, (unsigned long long)after[at], (unsigned long long)after[at + 1],
                    (unsigned long long)before[at], (unsigned long long)before[at + 1]);
            if (memcmp(after + at + HELD, after + at + EXPECTED, 2 * sizeof *after) != 0)
                return rs_error_set(RS_ERR_CERTIFICATE,
                    "%s, role %s: its copies on different ranks are not equal", tensor, role);
        }
    return RS_OK;
}
