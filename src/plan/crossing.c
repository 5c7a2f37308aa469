/*
 * What crosses the border of a node: the copies between nodes of all its ranks in one list.
 *
 * A copy has one source and one target, and one that crosses has them on two nodes: so it comes
 * once from the plans of a node's ranks, and is in the lists of exactly two nodes, under the same
 * key. Merging lists that are in the global order leaves it in that order, and what keeps ranks
 * from waiting for each other for ever keeps their nodes too.
 */
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"
#include "plan/plan.h"

typedef struct copy_list {
    rs_copy *items;
    size_t count;
    size_t capacity;
} copy_list;

int rs_plan_node_of(const rs_plan_options *options, int rank)
{
    if (options->node_of != NULL)
        return options->node_of[rank];
    return options->ranks_per_node > 0 ? rank / options->ranks_per_node : 0;
}

static rs_status add_crossing(
    rs_dealer *dealer, int rank, const rs_plan_options *options, copy_list *list)
{
    rs_plan *plan = NULL;
    RS_TRY(rs_plan_create_dealt(dealer, rank, options, &plan));
    rs_status status = rs_array_reserve(
        (void **)&list->items, &list->capacity, list->count + plan->count, sizeof *list->items);
    for (size_t i = 0; i < plan->count && status == RS_OK; i++)
        if (plan->copies[i].reach == RS_REACH_REMOTE)
            list->items[list->count++] = plan->copies[i];
    rs_plan_destroy(plan);
    return status;
}

static int compare_copies(const void *a, const void *b)
{
    return rs_copy_compare(a, b);
}

rs_status rs_plan_crossing(const rs_placement *from, const rs_placement *to, int node,
    const rs_plan_options *options, rs_copy **out, size_t *count)
{
    rs_dealer dealer;
    copy_list list = {0};
    rs_status status;
    RS_TRY_GOTO(rs_dealer_init(&dealer, from, to, options), done);
    for (int r = 0; r < dealer.world; r++)
        if (rs_plan_node_of(options, r) == node)
            RS_TRY_GOTO(add_crossing(&dealer, r, options, &list), done);
    if (list.count > 1)
        qsort(list.items, list.count, sizeof *list.items, compare_copies);
done:
    rs_dealer_fini(&dealer);
    if (status != RS_OK) {
        free(list.items);
        return status;
    }
    *out = list.items;
    *count = list.count;
    return RS_OK;
}
