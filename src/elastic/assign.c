/*
 * The assignment problem, by shortest augmenting paths with potentials (the Hungarian method in
 * the form of Jonker and Volgenant): rows enter one by one, and each finds the cheapest way to
 * change the assignment so far. Weights become costs by the sign.
 *
 * 1. After row r, the rows up to r are assigned at least cost among all ways to assign them, which
 *    the potentials prove: cost - row potential - column potential is never negative, and zero on
 *    every assigned pair.
 * 2. Where there are more rows than columns the problem is turned over.
 *
 * Cost: rows^2 x columns steps, 0.1 s at 512 x 512. Beyond that, sorting all pairs.
 */
#include "elastic/assign.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

/* A problem with rows <= columns; weights are read through `turned`. */
typedef struct problem {
    const int64_t *weight;
    int rows;
    int columns;
    bool turned; /* rows are the caller's columns */
    int64_t *row_potential;
    int64_t *column_potential;
    int64_t *slack;
    int *from;  /* the column before on the shortest path */
    int *owner; /* row of each column, -1: free; one more column holds the row that enters */
    bool *seen;
} problem;

static int64_t cost_of(const problem *p, int row, int column)
{
    return p->turned ? -p->weight[(size_t)column * (size_t)p->rows + (size_t)row]
                     : -p->weight[(size_t)row * (size_t)p->columns + (size_t)column];
}

static void enter_row(problem *p, int row)
{
    int start = p->columns; /* the column that stands for the outside */
    p->owner[start] = row;
    for (int c = 0; c <= p->columns; c++) {
        p->slack[c] = INT64_MAX;
        p->seen[c] = false;
        p->from[c] = start;
    }
    int at = start;
    while (p->owner[at] >= 0) {
        int r = p->owner[at], next = -1;
        int64_t least = INT64_MAX;
        p->seen[at] = true;
        for (int c = 0; c < p->columns; c++) {
            if (p->seen[c])
                continue;
            int64_t slack = cost_of(p, r, c) - p->row_potential[r] - p->column_potential[c];
            if (slack < p->slack[c]) {
                p->slack[c] = slack;
                p->from[c] = at;
            }
            if (p->slack[c] < least) {
                least = p->slack[c];
                next = c;
            }
        }
        for (int c = 0; c <= p->columns; c++) {
            if (p->seen[c]) {
                p->row_potential[p->owner[c]] += least;
                p->column_potential[c] -= least;
            } else if (p->slack[c] != INT64_MAX) {
                p->slack[c] -= least;
            }
        }
        at = next;
    }
    while (at != start) {
        int before = p->from[at];
        p->owner[at] = p->owner[before];
        at = before;
    }
}

static rs_status solve_exactly(const int64_t *weight, int rows, int columns, int *pick)
{
    problem p = {.weight = weight, .rows = rows, .columns = columns, .turned = rows > columns};
    if (p.turned) {
        p.rows = columns;
        p.columns = rows;
    }
    rs_status status = RS_OK;
    size_t room = (size_t)p.columns + 1;
    p.row_potential = rs_calloc((size_t)p.rows, sizeof *p.row_potential);
    p.column_potential = rs_calloc(room, sizeof *p.column_potential);
    p.slack = rs_calloc(room, sizeof *p.slack);
    p.from = rs_calloc(room, sizeof *p.from);
    p.owner = rs_calloc(room, sizeof *p.owner);
    p.seen = rs_calloc(room, sizeof *p.seen);
    if (p.row_potential == NULL || p.column_potential == NULL || p.slack == NULL ||
        p.from == NULL || p.owner == NULL || p.seen == NULL) {
        status = rs_error_memory(room * (2 * sizeof *p.slack + 2 * sizeof *p.from));
        goto done;
    }
    for (int c = 0; c <= p.columns; c++)
        p.owner[c] = -1;
    for (int r = 0; r < p.rows; r++)
        enter_row(&p, r);
    for (int r = 0; r < rows; r++)
        pick[r] = -1;
    for (int c = 0; c < p.columns; c++) {
        if (p.owner[c] < 0)
            continue;
        if (p.turned)
            pick[c] = p.owner[c];
        else
            pick[p.owner[c]] = c;
    }
done:
    free(p.row_potential);
    free(p.column_potential);
    free(p.slack);
    free(p.from);
    free(p.owner);
    free(p.seen);
    return status;
}

typedef struct pair {
    int64_t weight;
    int row;
    int column;
} pair;

static int compare_pairs(const void *a, const void *b)
{
    const pair *x = a;
    const pair *y = b;
    if (x->weight != y->weight)
        return rs_compare(y->weight, x->weight);
    if (x->row != y->row)
        return rs_compare(x->row, y->row);
    return rs_compare(x->column, y->column);
}

static rs_status solve_greedily(const int64_t *weight, int rows, int columns, int *pick)
{
    rs_status status = RS_OK;
    size_t count = (size_t)rows * (size_t)columns, kept = 0;
    pair *pairs = rs_calloc(count, sizeof *pairs);
    bool *taken = rs_calloc((size_t)columns, sizeof *taken);
    if (pairs == NULL || taken == NULL) {
        status = rs_error_memory(count * sizeof *pairs);
        goto done;
    }
    for (size_t i = 0; i < count; i++)
        if (weight[i] > 0)
            pairs[kept++] =
                (pair){weight[i], (int)(i / (size_t)columns), (int)(i % (size_t)columns)};
    if (kept > 1)
        qsort(pairs, kept, sizeof *pairs, compare_pairs);
    for (int r = 0; r < rows; r++)
        pick[r] = -1;
    for (size_t i = 0; i < kept; i++) {
        if (pick[pairs[i].row] >= 0 || taken[pairs[i].column])
            continue;
        pick[pairs[i].row] = pairs[i].column;
        taken[pairs[i].column] = true;
    }
    int free_column = 0;
    for (int r = 0; r < rows; r++) {
        if (pick[r] >= 0)
            continue;
        while (free_column < columns && taken[free_column])
            free_column++;
        if (free_column < columns) {
            pick[r] = free_column;
            taken[free_column] = true;
        }
    }
done:
    free(pairs);
    free(taken);
    return status;
}

rs_status rs_assign(const int64_t *weight, int rows, int columns, int *pick)
{
    if (rows <= RS_ASSIGN_EXACT && columns <= RS_ASSIGN_EXACT)
        return solve_exactly(weight, rows, columns, pick);
    return solve_greedily(weight, rows, columns, pick);
}

/* Whether both ranks are on one host. */
static bool together(const rs_places *hosts, int now, int old)
{
    return hosts == NULL || hosts->now[now] == hosts->old[old];
}

rs_status rs_assign_weights(
    const rs_placement *old, const rs_placement *now, const rs_places *hosts, int64_t *weight)
{
    const rs_space *space = rs_placement_space(now);
    int rows = rs_placement_holders(now), columns = rs_placement_holders(old);
    rs_shard_list shards = {0};
    rs_holding_list held = {0};
    rs_status status = RS_OK;
    memset(weight, 0, (size_t)rows * (size_t)columns * sizeof *weight);
    for (int r = 0; r < rows; r++) {
        int64_t *row = weight + (size_t)r * (size_t)columns;
        RS_TRY_GOTO(rs_placement_shards(now, r, -1, &shards), done);
        for (size_t i = 0; i < shards.count; i++) {
            const rs_shard *s = &shards.items[i];
            int64_t size = (int64_t)rs_dtype_size(rs_space_dtype(space, s->tensor, s->role));
            RS_TRY_GOTO(rs_placement_locate(old, s->tensor, s->role, &s->box, &held), done);
            for (size_t h = 0; h < held.count; h++) {
                rs_box both;
                if (!rs_box_intersect(&held.items[h].box, &s->box, &both))
                    continue;
                for (size_t k = 0; k < held.items[h].count; k++) {
                    int holder = held.ranks[held.items[h].first + k];
                    row[holder] += together(hosts, r, holder) ? rs_box_volume(&both) * size : 0;
                }
            }
        }
    }
done:
    rs_shard_list_fini(&shards);
    rs_holding_list_fini(&held);
    return status;
}

rs_status rs_assign_ranks(
    const rs_placement *old, const rs_placement *now, const rs_places *hosts, int *kept)
{
    int rows = rs_placement_holders(now), columns = rs_placement_holders(old);
    int64_t *weight = rs_calloc((size_t)rows * (size_t)columns, sizeof *weight);
    if (weight == NULL)
        return rs_error_memory((size_t)rows * (size_t)columns * sizeof *weight);
    rs_status status = rs_assign_weights(old, now, hosts, weight);
    if (status == RS_OK)
        status = rs_assign(weight, rows, columns, kept);
    for (int r = 0; r < rows && status == RS_OK; r++)
        if (kept[r] >= 0 && !together(hosts, r, kept[r]))
            kept[r] = -1;
    free(weight);
    return status;
}
