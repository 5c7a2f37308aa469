/*
 * Min-max flow: divides demands over the suppliers that can meet them so that the busiest supplies
 * the least, in whole units.
 *
 * Every demand starts divided equally over its suppliers, and only what is above the bound is
 * moved. The bound M starts at the mean, or at what some supplier alone can meet. Suppliers above M
 * hand units of a group to another supplier of that group, along shortest chains (supplier, group,
 * supplier, group, ...) that end below M, as in Edmonds and Karp's max-flow algorithm. When no
 * chain is left and some supplier is still above M, let U be the suppliers that chains reach from
 * it: all of U is at or above M, and every group of which a member of U supplies anything has all
 * its suppliers in U. So U must supply all that it does whatever the division, M can be no less
 * than ceil(load of U / size of U), and this is more than M: M rises to it. When all are at or
 * below M, M is both reached and a lower bound. This is Newton's method on the parametric cut
 * (Dinkelbach); the rounds are few, at most one per set U.
 *
 * M is a lower bound at any time. So whoever has too much of it (STEPS) stops, with a division that
 * is one and a bound that is one, and `exact` says that they do not meet.
 *
 * Invariants: ends within a group ascend to its demand; load[s] is the sum of what s supplies.
 * The result depends on the groups alone, not on the order in which they were added; so does
 * whether there are too many. Cost: a chain is found in O(members of all groups).
 */
#include "plan/flow.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

#define STEPS ((int64_t)1 << 29) /* members looked at: a second or two */

void rs_flow_fini(rs_flow *flow)
{
    free(flow->groups);
    free(flow->members);
    free(flow->ends);
    free(flow->load);
    memset(flow, 0, sizeof *flow);
}

/* By the largest member in which two sets differ. */
static int compare_sets(const int *a, size_t a_count, const int *b, size_t b_count)
{
    while (a_count > 0 && b_count > 0 && a[a_count - 1] == b[b_count - 1]) {
        a_count--;
        b_count--;
    }
    if (a_count == 0 || b_count == 0)
        return rs_compare((int64_t)a_count, (int64_t)b_count);
    return rs_compare(a[a_count - 1], b[b_count - 1]);
}

static int compare_group(const rs_flow *flow, size_t g, const int *suppliers, size_t count)
{
    const rs_flow_group *group = &flow->groups[g];
    return compare_sets(flow->members + group->first, group->count, suppliers, count);
}

/* Where the group of these suppliers is or would be; whether it is there. */
static size_t find_group(const rs_flow *flow, const int *suppliers, size_t count, bool *found)
{
    size_t at = RS_SEARCH(flow->count, g, compare_group(flow, g, suppliers, count) < 0);
    *found = at < flow->count && compare_group(flow, at, suppliers, count) == 0;
    return at;
}

const rs_flow_group *rs_flow_find(const rs_flow *flow, const int *suppliers, size_t count)
{
    bool found;
    size_t at = find_group(flow, suppliers, count, &found);
    return found ? &flow->groups[at] : NULL;
}

rs_status rs_flow_add(rs_flow *flow, const int *suppliers, size_t count, int64_t demand)
{
    assert(count > 0 && demand >= 0);
    if (!rs_add_fits(flow->total, demand, &flow->total))
        return rs_error_set(RS_ERR_OVERFLOW, "the bytes to move do not fit 64 bits");
    if (suppliers[count - 1] >= flow->suppliers)
        flow->suppliers = suppliers[count - 1] + 1;
    bool found;
    size_t at = find_group(flow, suppliers, count, &found);
    if (found) {
        flow->groups[at].demand += demand;
        return RS_OK;
    }
    if (count > 1 &&
        (flow->shared >= RS_FLOW_GROUPS || flow->shared_members + count > RS_FLOW_MEMBERS)) {
        flow->crowded = true;
        return RS_OK;
    }
    RS_TRY(rs_array_reserve(
        (void **)&flow->groups, &flow->capacity, flow->count + 1, sizeof *flow->groups));
    RS_TRY(rs_array_reserve((void **)&flow->members, &flow->member_capacity,
        flow->member_count + count, sizeof *flow->members));
    memcpy(flow->members + flow->member_count, suppliers, count * sizeof *suppliers);
    memmove(flow->groups + at + 1, flow->groups + at, (flow->count - at) * sizeof *flow->groups);
    flow->groups[at] = (rs_flow_group){flow->member_count, count, demand};
    flow->member_count += count;
    flow->count++;
    if (count > 1) {
        flow->shared++;
        flow->shared_members += count;
    }
    return RS_OK;
}

/* A place is a member of a group: an index of members[] and, while solving, of what it supplies,
 * ends[]. */
typedef struct solver {
    rs_flow *flow;
    size_t *first;    /* places of supplier s: places[first[s]] .. places[first[s + 1] - 1] */
    size_t *places;   /* those of a supplier in the order of groups */
    size_t *group_of; /* of each place */
    int64_t steps;
    /* The search at hand: how it reached each supplier. */
    int64_t search;        /* its number */
    int64_t *group_search; /* of each group: the last search that looked at it */
    int64_t *search_of;    /* of each supplier: the last search that reached it */
    int *queue;            /* suppliers in the order in which they were reached */
    int reached;           /* how many */
    int *before;           /* of each: the one that hands on to it */
    size_t *from;          /* and at which place of that one */
    size_t *to;            /* and to which of its own */
} solver;

static void solver_fini(solver *s)
{
    free(s->first);
    free(s->places);
    free(s->group_of);
    free(s->group_search);
    free(s->search_of);
    free(s->queue);
    free(s->before);
    free(s->from);
    free(s->to);
}

static rs_status solver_init(solver *s, rs_flow *flow)
{
    size_t suppliers = (size_t)flow->suppliers;
    *s = (solver){.flow = flow,
        .first = rs_calloc(suppliers + 1, sizeof *s->first),
        .places = rs_calloc(flow->member_count, sizeof *s->places),
        .group_of = rs_calloc(flow->member_count, sizeof *s->group_of),
        .group_search = rs_calloc(flow->count, sizeof *s->group_search),
        .search_of = rs_calloc(suppliers, sizeof *s->search_of),
        .queue = rs_calloc(suppliers, sizeof *s->queue),
        .before = rs_calloc(suppliers, sizeof *s->before),
        .from = rs_calloc(suppliers, sizeof *s->from),
        .to = rs_calloc(suppliers, sizeof *s->to)};
    if (s->first == NULL || s->places == NULL || s->group_of == NULL || s->group_search == NULL ||
        s->search_of == NULL || s->queue == NULL || s->before == NULL || s->from == NULL ||
        s->to == NULL)
        return rs_error_memory(flow->member_count * sizeof *s->places);
    for (size_t place = 0; place < flow->member_count; place++)
        s->first[flow->members[place] + 1]++;
    for (size_t k = 0; k < suppliers; k++)
        s->first[k + 1] += s->first[k];
    size_t *next = s->from; /* scratch */
    memcpy(next, s->first, suppliers * sizeof *next);
    for (size_t g = 0; g < flow->count; g++)
        for (size_t k = 0; k < flow->groups[g].count; k++) {
            size_t place = flow->groups[g].first + k;
            s->group_of[place] = g;
            s->places[next[flow->members[place]]++] = place;
        }
    return RS_OK;
}

/* Equal parts; what does not divide goes one unit each to suppliers that start at another place in
 * every group. */
static void divide_equally(rs_flow *flow)
{
    for (size_t g = 0; g < flow->count; g++) {
        const rs_flow_group *group = &flow->groups[g];
        int64_t count = (int64_t)group->count;
        int64_t rest = group->demand % count;
        for (int64_t k = 0; k < count; k++) {
            int64_t turn = (k + count - (int64_t)g % count) % count;
            size_t place = group->first + (size_t)k;
            flow->ends[place] = group->demand / count + (turn < rest);
            flow->load[flow->members[place]] += flow->ends[place];
        }
    }
}

/* Reaches the other suppliers of the group of `place` from the one there. The first that is below
 * `limit`, or -1. */
static int reach_group(solver *s, size_t place, int64_t limit)
{
    const rs_flow *flow = s->flow;
    const rs_flow_group *group = &flow->groups[s->group_of[place]];
    s->steps += (int64_t)group->count;
    for (size_t k = 0; k < group->count; k++) {
        int taker = flow->members[group->first + k];
        if (s->search_of[taker] == s->search)
            continue;
        s->search_of[taker] = s->search;
        s->before[taker] = flow->members[place];
        s->from[taker] = place;
        s->to[taker] = group->first + k;
        s->queue[s->reached++] = taker;
        if (flow->load[taker] < limit)
            return taker;
    }
    return -1;
}

/* Breadth first from `start`, until a supplier below `limit` is found; it, or -1. */
static int find_chain(solver *s, int start, int64_t limit)
{
    s->search++;
    s->search_of[start] = s->search;
    s->queue[0] = start;
    s->reached = 1;
    for (int head = 0; head < s->reached; head++) {
        int giver = s->queue[head];
        s->steps += (int64_t)(s->first[giver + 1] - s->first[giver]);
        for (size_t i = s->first[giver]; i < s->first[giver + 1]; i++) {
            size_t place = s->places[i];
            int64_t *looked = &s->group_search[s->group_of[place]];
            if (*looked == s->search || s->flow->ends[place] == 0)
                continue;
            *looked = s->search;
            int end = reach_group(s, place, limit);
            if (end >= 0)
                return end;
        }
    }
    return -1;
}

/* Moves as much as it can along the chain from `start` to `end`. */
static void shift_along(solver *s, int start, int end, int64_t limit)
{
    rs_flow *flow = s->flow;
    int64_t amount = rs_min64(limit - flow->load[end], flow->load[start] - limit);
    for (int taker = end; taker != start; taker = s->before[taker])
        amount = rs_min64(amount, flow->ends[s->from[taker]]);
    for (int taker = end; taker != start; taker = s->before[taker]) {
        flow->ends[s->from[taker]] -= amount;
        flow->ends[s->to[taker]] += amount;
    }
    flow->load[start] -= amount;
    flow->load[end] += amount;
}

/* Brings every supplier down to the bound, which rises as far as it must. */
static void balance(solver *s)
{
    rs_flow *flow = s->flow;
    for (int start = 0; start < flow->suppliers; start++)
        while (flow->load[start] > flow->bound && s->steps < STEPS) {
            int end = find_chain(s, start, flow->bound);
            if (end >= 0) {
                shift_along(s, start, end, flow->bound);
                continue;
            }
            int64_t stuck = 0;
            for (int k = 0; k < s->reached; k++)
                stuck += flow->load[s->queue[k]];
            flow->bound = rs_ceil_div(stuck, s->reached);
        }
    flow->exact = s->steps < STEPS;
}

/* The mean over those that occur, and what only one can meet. */
static int64_t first_bound(const rs_flow *flow, const solver *s)
{
    int64_t all = 0;
    for (int k = 0; k < flow->suppliers; k++)
        all += flow->crowded || s->first[k + 1] > s->first[k];
    int64_t bound = rs_ceil_div(flow->total, all);
    for (size_t g = 0; g < flow->count; g++)
        if (flow->groups[g].count == 1)
            bound = rs_max64(bound, flow->groups[g].demand);
    return bound;
}

rs_status rs_flow_solve(rs_flow *flow)
{
    flow->exact = true;
    if (flow->suppliers == 0)
        return RS_OK;
    solver s;
    rs_status status;
    flow->ends = rs_calloc(flow->member_count, sizeof *flow->ends);
    flow->load = rs_calloc((size_t)flow->suppliers, sizeof *flow->load);
    RS_TRY_GOTO(solver_init(&s, flow), done);
    if (flow->ends == NULL || flow->load == NULL) {
        status = rs_error_memory(flow->member_count * sizeof *flow->ends);
        goto done;
    }
    flow->bound = first_bound(flow, &s);
    divide_equally(flow);
    if (flow->crowded)
        flow->exact = false;
    else
        balance(&s);
    for (size_t g = 0; g < flow->count; g++)
        for (size_t k = 1; k < flow->groups[g].count; k++)
            flow->ends[flow->groups[g].first + k] += flow->ends[flow->groups[g].first + k - 1];
done:
    solver_fini(&s);
    return status;
}
