/*
 * Rows over tp (sequence parallelism, Korthikanti et al., arXiv 2205.05198) and tokens over cp
 * (keys and values of whole sequences are gathered, as in Llama 3's training, arXiv 2407.21783).
 *
 * A sum over tp of a matrix whose rows are divided is a sum by its owner: the same additions in the
 * same order as without, so a row has the same bits. Pieces are cut by rows alone, whatever their
 * number: they differ by one row at most, and some may be empty.
 */
#include "train/rows.h"

#include <string.h>

#include "base/checked.h"
#include "base/error.h"

static int at_least_one(int ranks)
{
    return ranks > 0 ? ranks : 1;
}

static rs_sequence sequence_of(const rs_stage_shape *shape)
{
    return (rs_sequence){shape->seq, at_least_one(shape->cp_ranks), shape->cp_rank};
}

int64_t rs_stage_tokens(const rs_stage_shape *shape)
{
    rs_sequence sequence = sequence_of(shape);
    return rs_sequence_own(&sequence, sequence.rank);
}

int64_t rs_stage_rows(const rs_stage_shape *shape, int64_t batch)
{
    rs_rows rows;
    int64_t begin, end;
    rs_rows_init(&rows, shape, NULL, NULL);
    rs_rows_own(&rows, batch * rows.tokens, &begin, &end);
    return end - begin;
}

int64_t rs_rows_bounds(const rs_stage_shape *shape)
{
    return rs_max64(at_least_one(shape->tp_ranks), at_least_one(shape->cp_ranks)) + 1;
}

void rs_rows_init(
    rs_rows *rows, const rs_stage_shape *shape, const rs_stage_tp *tp, int64_t *bounds)
{
    memset(rows, 0, sizeof *rows);
    if (tp != NULL)
        rows->tp = *tp;
    rows->sequence = sequence_of(shape);
    rows->tokens = rs_stage_tokens(shape);
    rows->tp_rank = shape->tp_rank;
    rows->tp_ranks = at_least_one(shape->tp_ranks);
    rows->sp = shape->sp && rows->tp_ranks > 1;
    rows->bounds = bounds;
}

static int64_t border(const rs_rows *rows, int64_t count, int rank)
{
    return count * rank / rows->tp_ranks;
}

void rs_rows_own(const rs_rows *rows, int64_t count, int64_t *begin, int64_t *end)
{
    *begin = rows->sp ? border(rows, count, rows->tp_rank) : 0;
    *end = rows->sp ? border(rows, count, rows->tp_rank + 1) : count;
}

static const int64_t *row_bounds(const rs_rows *rows, int64_t count, int64_t width)
{
    for (int r = 0; r <= rows->tp_ranks; r++)
        rows->bounds[r] = border(rows, count, r) * width;
    return rows->bounds;
}

rs_status rs_rows_spread(const rs_rows *rows, int64_t count, int64_t width, float *matrix)
{
    const rs_stage_group *group = &rows->tp.pieces;
    if (!rows->sp || count * width == 0)
        return RS_OK;
    return group->gather(group->context, matrix, row_bounds(rows, count, width));
}

rs_status rs_rows_sum(const rs_rows *rows, int64_t count, int64_t width, float *matrix)
{
    const rs_stage_group *group = &rows->tp.pieces;
    if (count * width == 0)
        return RS_OK;
    if (rows->sp)
        return group->scatter(group->context, matrix, row_bounds(rows, count, width));
    return rows->tp.sum != NULL ? rows->tp.sum(rows->tp.context, matrix, count * width) : RS_OK;
}

/* The scratch has the tokens of each cp rank behind those of the one before. */
static const int64_t *token_bounds(const rs_rows *rows, int64_t batch, int64_t width)
{
    rows->bounds[0] = 0;
    for (int r = 0; r < rows->sequence.ranks; r++)
        rows->bounds[r + 1] = rows->bounds[r] + batch * rs_sequence_own(&rows->sequence, r) * width;
    return rows->bounds;
}

static void copy_rows(
    int64_t count, int64_t width, const float *from, int64_t ldf, float *to, int64_t ldt)
{
    for (int64_t r = 0; r < count; r++)
        memcpy(to + r * ldt, from + r * ldf, (size_t)width * sizeof *to);
}

rs_status rs_rows_whole(const rs_rows *rows, int64_t batch, int64_t width, const float *own,
    int64_t ld, float *scratch, float *whole)
{
    const rs_stage_group *cp = &rows->tp.cp;
    const int64_t *bounds = token_bounds(rows, batch, width);
    copy_rows(batch * rows->tokens, width, own, ld, scratch + bounds[rows->sequence.rank], width);
    if (batch * width > 0)
        RS_TRY(cp->gather(cp->context, scratch, bounds));
    for (int r = 0; r < rows->sequence.ranks; r++)
        rs_sequence_unpack(&rows->sequence, r, batch, width, scratch + bounds[r], whole);
    return RS_OK;
}

rs_status rs_rows_whole_sum(const rs_rows *rows, int64_t batch, int64_t width, const float *whole,
    float *scratch, float *own, int64_t ld)
{
    const rs_stage_group *cp = &rows->tp.cp;
    const int64_t *bounds = token_bounds(rows, batch, width);
    for (int r = 0; r < rows->sequence.ranks; r++)
        rs_sequence_pack(&rows->sequence, r, batch, width, whole, scratch + bounds[r]);
    if (batch * width > 0)
        RS_TRY(cp->scatter(cp->context, scratch, bounds));
    copy_rows(batch * rows->tokens, width, scratch + bounds[rows->sequence.rank], width, own, ld);
    return RS_OK;
}
