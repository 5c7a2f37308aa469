/*
 * Totals: the figures of the whole cluster, beside what no plan could do better.
 *
 * Every rank's plan is made in turn and added up. Bounds come from the demand alone, that is from
 * which bytes must cross between nodes and who holds them (rs_dealer_demand):
 *  - what a rank or a node receives is the same whatever the choice of sources;
 *  - "flow": the min-max flow of the demand over the ranks that hold it (flow.c), exact;
 *  - "max", where that would take too long: what only one rank holds it must send, and somebody
 *    sends the mean.
 * Nodes get the same bounds, of the demand over the nodes that hold it.
 *
 * Cost: that of all plans; memory that of one plan, and of the pairs where asked for.
 */
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "plan/plan.h"

typedef struct counter {
    rs_plan_totals totals;
    const rs_placement *from;
    const rs_placement *to;
    rs_dealer dealer;
    int64_t *node_in; /* bytes that cross, as planned */
    int64_t *node_out;
    rs_flow ranks;     /* demand by the ranks that hold it */
    rs_flow nodes;     /* and by their nodes */
    int *source_nodes; /* scratch */
    int64_t bound_in;  /* the most bytes of both classes that a rank receives */
    int64_t bound_out; /* what the busiest sender sends at least */
} counter;

static void counter_fini(counter *c)
{
    rs_dealer_fini(&c->dealer);
    free(c->node_in);
    free(c->node_out);
    free(c->source_nodes);
    rs_flow_fini(&c->ranks);
    rs_flow_fini(&c->nodes);
}

static rs_status visit_demand(
    void *context, const rs_dealer *dealer, const int *sources, size_t count, int64_t bytes)
{
    counter *c = context;
    RS_TRY(rs_flow_add(&c->ranks, sources, count, bytes));
    int *nodes = c->source_nodes;
    size_t kept = 0;
    bool ascending = true;
    for (size_t i = 0; i < count; i++) {
        nodes[i] = dealer->node_of[sources[i]];
        ascending = ascending && (i == 0 || nodes[i - 1] <= nodes[i]);
    }
    if (!ascending)
        qsort(nodes, count, sizeof *nodes, rs_compare_ints);
    for (size_t i = 0; i < count; i++)
        if (i == 0 || nodes[i] != nodes[kept - 1])
            nodes[kept++] = nodes[i];
    return rs_flow_add(&c->nodes, nodes, kept, bytes);
}

static int64_t largest(const int64_t *values, int count)
{
    int64_t most = 0;
    for (int i = 0; i < count; i++)
        most = rs_max64(most, values[i]);
    return most;
}

/* Bounds on what is sent; what is received is added with the plans. */
static rs_status find_bounds(counter *c)
{
    rs_plan_totals *t = &c->totals;
    RS_TRY(rs_dealer_demand(&c->dealer, visit_demand, c));
    RS_TRY(rs_flow_solve(&c->ranks));
    RS_TRY(rs_flow_solve(&c->nodes));
    t->bound_kind = c->ranks.exact ? "flow" : "max";
    c->bound_out = c->ranks.bound;
    t->node_bytes_bound = c->nodes.bound;
    return RS_OK;
}

static void raise_load(rs_plan_load *load, int rank, int64_t in, int64_t out)
{
    int64_t most = rs_max64(in, out);
    load->bytes += in;
    if (most > load->rank_max) {
        load->rank_max = most;
        load->rank = rank;
    }
    load->rank_bound = rs_max64(load->rank_bound, in);
}

static void add_pairs(counter *c, const rs_plan *plan)
{
    int64_t *pairs = c->totals.pair_bytes;
    size_t width = (size_t)rs_placement_holders(c->to);
    size_t rank = (size_t)plan->rank;
    for (size_t i = 0; i < plan->count; i++)
        if (plan->copies[i].target == plan->rank)
            pairs[(size_t)plan->copies[i].source * width + rank] += plan->copies[i].bytes;
    if (plan->figures.adopted_bytes > 0)
        pairs[rank * width + rank] += plan->figures.adopted_bytes;
}

static void add_plan(counter *c, const rs_plan *plan)
{
    const rs_plan_figures *f = &plan->figures;
    rs_plan_totals *t = &c->totals;
    int node = c->dealer.node_of[plan->rank];
    t->moved += f->node_in + f->remote_in;
    t->minimum += f->needed_bytes;
    t->adopted += f->adopted_bytes;
    t->self += f->self_bytes;
    raise_load(&t->node, plan->rank, f->node_in, 0);
    raise_load(&t->remote, plan->rank, f->remote_in, f->remote_out);
    t->rank_bytes_max =
        rs_max64(t->rank_bytes_max, rs_max64(f->node_in + f->remote_in, f->remote_out));
    c->bound_in = rs_max64(c->bound_in, f->needed_bytes);
    c->node_in[node] += f->remote_in;
    c->node_out[node] += f->remote_out;
    t->peak_safe = rs_max64(t->peak_safe, f->peak_safe);
    t->peak_tight = rs_max64(t->peak_tight, f->peak_tight);
    for (size_t i = 0; i < plan->count; i++)
        t->copies += plan->copies[i].target == plan->rank;
    if (t->pair_bytes != NULL)
        add_pairs(c, plan);
}

static rs_status counter_init(counter *c, const rs_placement *from, const rs_placement *to,
    const rs_plan_options *options, bool want_pairs)
{
    c->from = from;
    c->to = to;
    RS_TRY(rs_dealer_init(&c->dealer, from, to, options));
    size_t world = (size_t)c->dealer.world;
    size_t nodes = (size_t)c->dealer.nodes;
    c->source_nodes = rs_calloc(world, sizeof *c->source_nodes);
    c->node_in = rs_calloc(nodes, sizeof *c->node_in);
    c->node_out = rs_calloc(nodes, sizeof *c->node_out);
    if (c->source_nodes == NULL || c->node_in == NULL || c->node_out == NULL)
        return rs_error_memory((world + 2 * nodes) * sizeof(int64_t));
    if (want_pairs) {
        size_t pairs = (size_t)rs_placement_holders(from) * (size_t)rs_placement_holders(to);
        c->totals.pair_bytes = rs_calloc(pairs, sizeof(int64_t));
        if (c->totals.pair_bytes == NULL)
            return rs_error_memory(pairs * sizeof(int64_t));
    }
    return RS_OK;
}

rs_status rs_plan_totals_compute(const rs_placement *from, const rs_placement *to,
    const rs_plan_options *options, bool want_pairs, rs_plan_totals *out)
{
    counter c = {0};
    rs_plan_totals *t = &c.totals;
    rs_status status;
    RS_TRY_GOTO(counter_init(&c, from, to, options, want_pairs), done);
    RS_TRY_GOTO(find_bounds(&c), done);
    for (int r = 0; r < c.dealer.world; r++) {
        rs_plan *plan;
        RS_TRY_GOTO(rs_plan_create_dealt(&c.dealer, r, options, &plan), done);
        add_plan(&c, plan);
        rs_plan_destroy(plan);
    }
    t->remote.rank_bound = rs_max64(t->remote.rank_bound, c.bound_out);
    t->rank_bytes_bound = rs_max64(c.bound_in, c.bound_out);
    t->node_bytes_max =
        rs_max64(largest(c.node_in, c.dealer.nodes), largest(c.node_out, c.dealer.nodes));
    t->node_bytes_bound = rs_max64(t->node_bytes_bound, largest(c.node_in, c.dealer.nodes));
done:
    counter_fini(&c);
    if (status == RS_OK)
        *out = *t;
    else
        rs_plan_totals_fini(t);
    return status;
}

void rs_plan_totals_fini(rs_plan_totals *totals)
{
    free(totals->pair_bytes);
    memset(totals, 0, sizeof *totals);
}

double rs_plan_seconds_bound(const rs_plan_totals *totals, double rank_rate, double node_rate)
{
    double inside = rank_rate > 0 ? (double)totals->node.rank_bound / rank_rate : 0;
    double between = node_rate > 0 ? (double)totals->node_bytes_bound / node_rate : 0;
    return inside > between ? inside : between;
}

rs_status rs_state_bytes_of(const rs_placement *placement, int role, rs_state_bytes *out)
{
    const rs_space *space = rs_placement_space(placement);
    rs_shard_list shards = {0};
    rs_state_bytes found = {0};
    rs_status status = RS_OK;
    for (int h = 0; h < rs_placement_holders(placement); h++) {
        RS_TRY_GOTO(rs_placement_shards(placement, h, role, &shards), done);
        int64_t bytes = 0;
        for (size_t i = 0; i < shards.count; i++) {
            const rs_shard *shard = &shards.items[i];
            bytes += rs_box_volume(&shard->box) *
                     (int64_t)rs_dtype_size(rs_space_dtype(space, shard->tensor, shard->role));
        }
        if (h == 0 || bytes > found.max) {
            found.max = bytes;
            found.max_holder = h;
        }
        if (h == 0 || bytes < found.min) {
            found.min = bytes;
            found.min_holder = h;
        }
        if (!rs_add_fits(found.total, bytes, &found.total)) {
            status = rs_error_set(RS_ERR_OVERFLOW, "the state's bytes do not fit 64 bits");
            goto done;
        }
    }
    *out = found;
done:
    rs_shard_list_fini(&shards);
    return status;
}
