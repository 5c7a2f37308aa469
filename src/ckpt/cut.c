/*
 * Cuts of tensors over ranks, as runs along one dimension.
 *
 * One part is the plain cut; a fused gate and up has two, each divided over the ranks on its own.
 * Fused queries, keys and values with fewer key heads than ranks are the case of shared parts: the
 * queries are divided, and a rank has the keys and values of the groups that its queries belong to.
 *
 *   parts 16 4 4, groups 2, the last two shared, over 4 ranks; rows of the tensor:
 *
 *     group 0: q 0-7, k 8-9, v 10-11     rank 0: 0-3  8-11     rank 1: 4-11
 *     group 1: q 12-19, k 20-21, v 22-23 rank 2: 12-15 20-23   rank 3: 16-23
 *
 * Invariants:
 * 1. A rank has its runs in the order of the tensor.
 * 2. Every element is in every copy exactly once: the n ranks that have a run are in copies 0 to
 *    n - 1, and the last of them in those behind too.
 *
 * Cost: of widths, ranks squared times parts; of shared parts, groups and ranks times parts.
 */
#include "ckpt/cut.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

void rs_cut_fini(rs_cut *cut)
{
    free(cut->length);
    free(cut->first);
    free(cut->runs);
    memset(cut, 0, sizeof *cut);
}

/* Room for `most` runs. */
static rs_status make_room(rs_cut *cut, int ranks, size_t most)
{
    *cut = (rs_cut){.ranks = ranks, .copies = 1};
    cut->length = rs_calloc((size_t)ranks, sizeof *cut->length);
    cut->first = rs_calloc((size_t)ranks + 1, sizeof *cut->first);
    cut->runs = rs_calloc(most, sizeof *cut->runs);
    if (cut->length != NULL && cut->first != NULL && cut->runs != NULL)
        return RS_OK;
    rs_cut_fini(cut);
    return rs_error_memory(most * sizeof *cut->runs);
}

/* The next run of rank `r`, whose runs are added before those of the next rank. */
static void add_run(rs_cut *cut, int r, int64_t global, int64_t width, int copy, int copies)
{
    rs_cut_run *last = cut->first[r + 1] > cut->first[r] ? &cut->runs[cut->first[r + 1] - 1] : NULL;
    if (width <= 0)
        return;
    if (last != NULL && last->global + last->width == global && last->copy == copy &&
        last->copies == copies)
        last->width += width;
    else
        cut->runs[cut->first[r + 1]++] = (rs_cut_run){cut->length[r], global, width, copy, copies};
    cut->length[r] += width;
}

rs_status rs_cut_of_widths(int parts, int ranks, const int64_t *widths, rs_cut *out)
{
    for (int i = 0; i < parts * ranks; i++)
        if (widths[i] < 0)
            return rs_error_set(RS_ERR_MISMATCH, "a width is negative");
    int64_t whole = 0;
    for (int i = 0; i < parts * ranks; i++)
        if (!rs_add_fits(whole, widths[i], &whole))
            return rs_error_set(RS_ERR_MISMATCH, "its widths overflow");
    RS_TRY(make_room(out, ranks, (size_t)parts * (size_t)ranks));
    out->whole = whole;
    for (int r = 0; r < ranks; r++) {
        int64_t before = 0; /* of the parts and ranks before */
        out->first[r + 1] = out->first[r];
        for (int i = 0; i < parts * ranks; i++) {
            if (i % ranks == r)
                add_run(out, r, before, widths[i], 0, 1);
            before += widths[i];
        }
    }
    return RS_OK;
}

/* A rank's share of a part: its elements begin .. end-1. */
static rs_status share(const rs_rule *rule, int j, int ranks, int r, int64_t *begin, int64_t *end)
{
    int64_t width = rule->sizes[j] / ranks;
    if (rule->sizes[j] % ranks != 0)
        return rs_error_set(RS_ERR_MISMATCH,
            "its part %d has %lld elements along dimension %d, which do not divide evenly over %d "
            "ranks",
            j, (long long)rule->sizes[j], rule->dim, ranks);
    *begin = r * width;
    *end = *begin + width;
    return RS_OK;
}

/* A part that is not shared and not empty, and so the measure of who has which groups: all such
 * parts are divided alike. */
static int own_part(const rs_rule *rule)
{
    int j = 0;
    while (rule->shared[j] || rule->sizes[j] == 0)
        j++;
    return j;
}

/* The groups first .. last-1 of which rank `r` has a share. */
static rs_status touched(const rs_rule *rule, int ranks, int r, int64_t *first, int64_t *last)
{
    int j = own_part(rule);
    int64_t begin = 0, end = 0, unit = rule->sizes[j] / rule->groups;
    RS_TRY(share(rule, j, ranks, r, &begin, &end));
    *first = begin / unit;
    *last = rs_ceil_div(end, unit);
    return RS_OK;
}

/* The ranks first .. last-1 that have a share of group `g`. */
static rs_status holders(const rs_rule *rule, int ranks, int64_t g, int *first, int *last)
{
    int j = own_part(rule);
    int64_t begin = 0, width = 0, unit = rule->sizes[j] / rule->groups;
    RS_TRY(share(rule, j, ranks, 0, &begin, &width));
    *first = (int)(g * unit / width);
    *last = (int)rs_ceil_div((g + 1) * unit, width);
    return RS_OK;
}

/* What rank `r` has of group `g`. */
static rs_status add_group(rs_cut *cut, const rs_rule *rule, int64_t g, int r)
{
    int64_t at = g * (cut->whole / rule->groups);
    int first, last;
    RS_TRY(holders(rule, cut->ranks, g, &first, &last));
    for (int j = 0; j < rule->parts; j++) {
        int64_t unit = rule->sizes[j] / rule->groups, begin = 0, end = 0;
        if (rule->shared[j]) {
            add_run(cut, r, at, unit, r - first, r + 1 == last ? cut->copies - (r - first) : 1);
        } else {
            RS_TRY(share(rule, j, cut->ranks, r, &begin, &end));
            begin = rs_max64(begin, g * unit);
            end = rs_min64(end, (g + 1) * unit);
            add_run(cut, r, at + begin - g * unit, end - begin, 0, cut->copies);
        }
        at += unit;
    }
    return RS_OK;
}

rs_status rs_cut_of_shared(const rs_rule *rule, int ranks, rs_cut *out)
{
    rs_cut cut;
    rs_status status;
    int64_t first, last;
    RS_TRY(make_room(&cut, ranks, (size_t)rule->parts * (size_t)(rule->groups + 2 * ranks)));
    for (int j = 0; j < rule->parts; j++)
        cut.whole += rule->sizes[j];
    if (cut.whole > INT64_MAX / ranks)
        RS_TRY_GOTO(rs_error_set(RS_ERR_MISMATCH, "its parts overflow"), fail);
    for (int64_t g = 0; g < rule->groups; g++) {
        int begin, end;
        RS_TRY_GOTO(holders(rule, ranks, g, &begin, &end), fail);
        cut.copies = end - begin > cut.copies ? end - begin : cut.copies;
    }
    for (int r = 0; r < ranks; r++) {
        cut.first[r + 1] = cut.first[r];
        RS_TRY_GOTO(touched(rule, ranks, r, &first, &last), fail);
        for (int64_t g = first; g < last; g++)
            RS_TRY_GOTO(add_group(&cut, rule, g, r), fail);
    }
    *out = cut;
    return RS_OK;

fail:
    rs_cut_fini(&cut);
    return status;
}

int64_t rs_cut_total(const rs_cut *cut)
{
    int64_t sum = 0;
    for (int r = 0; r < cut->ranks; r++)
        sum += cut->length[r];
    return sum;
}

bool rs_cut_move(
    const rs_piece *piece, int dim, int64_t from, int64_t width, int64_t to, rs_piece *out)
{
    int64_t begin = rs_max64(piece->box.offset[dim], from);
    int64_t end = rs_min64(piece->box.offset[dim] + piece->box.extent[dim], from + width);
    *out = *piece;
    out->offset += (begin - piece->box.offset[dim]) * piece->stride[dim];
    out->box.offset[dim] = to + begin - from;
    out->box.extent[dim] = end - begin;
    return begin < end;
}
