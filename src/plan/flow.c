/*
 * Min-max flow: divides demands over the suppliers that can meet them so that the busiest supplies
 * the least, in whole units.
 *
 * Every demand starts divided equally over its suppliers, and only what is above the bound is
 * moved. The bound M starts at the mean. Suppliers above M hand units of a group to another
 * supplier of that group, along shortest chains (supplier, group, supplier, group, ...) that end
 * below M, as in Edmonds and Karp's max-flow algorithm. When no chain is left and some supplier is
 * still above M, let U be the suppliers that chains reach from it: all of U is at or above M, and
 * every group of which a member of U supplies anything has all its suppliers in U. So U must supply
 * all that it does whatever the division, M can be no less than ceil(load of U / size of U), and
 * this is more than M: M rises to it. When all are at or below M, M is both reached and a lower
 * bound. This is Newton's method on the parametric cut (Dinkelbach); the rounds are few, at most
 * one per set U.
 *
 * Invariants: ends within a group ascend to its demand; load[s] is the sum of what s supplies.
 * The result depends on the groups alone, not on the order in which they were added.
 * Cost: a chain is found in O(groups x suppliers) word operations.
 */
#include "plan/flow.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

void rs_flow_fini(rs_flow *flow)
{
    free(flow->groups);
    free(flow->ends);
    memset(flow, 0, sizeof *flow);
}

/* The first group whose set is not below `suppliers`. */
static size_t group_position(const rs_flow *flow, uint64_t suppliers)
{
    return RS_SEARCH(flow->count, k, flow->groups[k].suppliers < suppliers);
}

const rs_flow_group *rs_flow_find(const rs_flow *flow, uint64_t suppliers)
{
    size_t at = group_position(flow, suppliers);
    return at < flow->count && flow->groups[at].suppliers == suppliers ? &flow->groups[at] : NULL;
}

rs_status rs_flow_add(rs_flow *flow, uint64_t suppliers, int64_t demand)
{
    assert(suppliers != 0 && demand >= 0);
    if (!rs_add_fits(flow->total, demand, &flow->total))
        return rs_error_set(RS_ERR_OVERFLOW, "the bytes to move do not fit 64 bits");
    size_t at = group_position(flow, suppliers);
    if (at < flow->count && flow->groups[at].suppliers == suppliers) {
        flow->groups[at].demand += demand;
        return RS_OK;
    }
    RS_TRY(rs_array_reserve(
        (void **)&flow->groups, &flow->capacity, flow->count + 1, sizeof *flow->groups));
    memmove(flow->groups + at + 1, flow->groups + at, (flow->count - at) * sizeof *flow->groups);
    flow->groups[at] = (rs_flow_group){.suppliers = suppliers, .demand = demand};
    flow->count++;
    return RS_OK;
}

static int lowest(uint64_t set)
{
    return __builtin_ctzll(set);
}

/* While solving, ends[] holds what each supplier supplies. */
static int64_t *part(const rs_flow *flow, const rs_flow_group *group, int supplier)
{
    uint64_t below = group->suppliers & (((uint64_t)1 << supplier) - 1);
    return &flow->ends[group->first + (size_t)__builtin_popcountll(below)];
}

/* Equal parts; what does not divide goes one unit each to suppliers that start at another place in
 * every group. */
static void divide_equally(rs_flow *flow)
{
    memset(flow->load, 0, sizeof flow->load);
    for (size_t g = 0; g < flow->count; g++) {
        const rs_flow_group *group = &flow->groups[g];
        int64_t count = __builtin_popcountll(group->suppliers);
        int64_t rest = group->demand % count;
        int64_t k = 0;
        for (uint64_t set = group->suppliers; set != 0; set &= set - 1, k++) {
            int64_t turn = (k + count - (int64_t)g % count) % count;
            int64_t amount = group->demand / count + (turn < rest);
            flow->ends[group->first + (size_t)k] = amount;
            flow->load[lowest(set)] += amount;
        }
    }
}

/* How a search reached each supplier. */
typedef struct search {
    uint64_t reached;
    const rs_flow_group *group[RS_FLOW_SUPPLIERS]; /* NULL: it is where the search started */
    int before[RS_FLOW_SUPPLIERS];
} search;

/* Breadth first from `start`, until a supplier below `limit` is found; it, or -1. */
static int find_chain(const rs_flow *flow, int start, int64_t limit, bool *visited, search *found)
{
    int queue[RS_FLOW_SUPPLIERS];
    int head = 0;
    int tail = 0;
    memset(visited, 0, flow->count * sizeof *visited);
    found->reached = (uint64_t)1 << start;
    found->group[start] = NULL;
    queue[tail++] = start;
    while (head < tail) {
        int giver = queue[head++];
        for (size_t g = 0; g < flow->count; g++) {
            const rs_flow_group *group = &flow->groups[g];
            if (visited[g] || (group->suppliers >> giver & 1) == 0 ||
                *part(flow, group, giver) == 0)
                continue;
            visited[g] = true;
            for (uint64_t set = group->suppliers & ~found->reached; set != 0; set &= set - 1) {
                int taker = lowest(set);
                found->reached |= (uint64_t)1 << taker;
                found->group[taker] = group;
                found->before[taker] = giver;
                if (flow->load[taker] < limit)
                    return taker;
                queue[tail++] = taker;
            }
        }
    }
    return -1;
}

/* Moves as much as it can along the chain that ends in `end`. */
static void shift_along(rs_flow *flow, const search *found, int end, int64_t limit)
{
    int64_t amount = limit - flow->load[end];
    int start = end;
    for (; found->group[start] != NULL; start = found->before[start])
        amount = rs_min64(amount, *part(flow, found->group[start], found->before[start]));
    amount = rs_min64(amount, flow->load[start] - limit);
    for (int taker = end; found->group[taker] != NULL; taker = found->before[taker]) {
        *part(flow, found->group[taker], found->before[taker]) -= amount;
        *part(flow, found->group[taker], taker) += amount;
    }
    flow->load[start] -= amount;
    flow->load[end] += amount;
}

/* Brings every supplier down to the bound, which rises as far as it must. */
static void balance(rs_flow *flow, bool *visited)
{
    uint64_t all = 0;
    for (size_t g = 0; g < flow->count; g++)
        all |= flow->groups[g].suppliers;
    flow->bound = rs_ceil_div(flow->total, __builtin_popcountll(all));
    for (int s = 0; s < RS_FLOW_SUPPLIERS; s++) {
        while (flow->load[s] > flow->bound) {
            search found;
            int end = find_chain(flow, s, flow->bound, visited, &found);
            if (end >= 0) {
                shift_along(flow, &found, end, flow->bound);
                continue;
            }
            int64_t stuck = 0;
            for (uint64_t set = found.reached; set != 0; set &= set - 1)
                stuck += flow->load[lowest(set)];
            flow->bound = rs_ceil_div(stuck, __builtin_popcountll(found.reached));
        }
    }
}

rs_status rs_flow_solve(rs_flow *flow)
{
    size_t ends = 0;
    for (size_t g = 0; g < flow->count; g++) {
        flow->groups[g].first = ends;
        ends += (size_t)__builtin_popcountll(flow->groups[g].suppliers);
    }
    flow->bound = 0;
    if (flow->count == 0)
        return RS_OK;
    RS_TRY(rs_array_reserve((void **)&flow->ends, &flow->end_capacity, ends, sizeof *flow->ends));
    bool *visited = rs_calloc(flow->count, sizeof *visited);
    if (visited == NULL)
        return rs_error_memory(flow->count);
    divide_equally(flow);
    balance(flow, visited);
    free(visited);
    for (size_t g = 0; g < flow->count; g++) {
        const rs_flow_group *group = &flow->groups[g];
        size_t count = (size_t)__builtin_popcountll(group->suppliers);
        for (size_t k = 1; k < count; k++)
            flow->ends[group->first + k] += flow->ends[group->first + k - 1];
    }
    return RS_OK;
}
