/*
 * Plans: the copies that turn one placement into another, in one global order, with their bounds.
 *
 * A plan is made for one rank and holds the copies in which that rank takes part. It is a pure
 * function of its arguments: every rank computes its own, without communication, and the plans of
 * all ranks fit together copy for copy (the sender's list and the receiver's list name the same
 * boxes in the same order). Rank r of the old placement and rank r of the new one are the same
 * process; a world may be larger on either side.
 *
 * Usual order: rs_plan_create on each rank, show it (rs_plan_json), ask for its figures
 * (rs_plan_figures, before anything moves), run it (move.h), rs_plan_destroy. rs_plan_totals gives
 * the figures of the whole cluster. All functions are local.
 */
#ifndef RESHARD_PLAN_H
#define RESHARD_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/placement.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How far a copy travels. */
typedef enum rs_reach {
    RS_REACH_SELF = 0, /* within a rank: never counted as moved */
    RS_REACH_NODE,     /* between ranks of a node: pulled by the target from the source's arena */
    RS_REACH_REMOTE    /* between nodes: sent and received */
} rs_reach;

typedef struct rs_copy {
    /* Place in the global order, ascending; ties by (tensor, role, box, source, target). */
    uint64_t key;
    int tensor;
    int role;
    int source; /* holder of the old placement */
    int target; /* holder of the new placement */
    rs_reach reach;
    rs_box box;    /* lies in one shard of the source and in one shard of the target */
    int64_t bytes; /* in the role's dtype */
} rs_copy;

typedef struct rs_plan_options {
    int ranks_per_node; /* node of rank r = r / ranks_per_node; 0: all ranks share one node */
    const int *node_of; /* node number of each rank, as many as the larger world; overrides the
                           former where not NULL. Borrowed during the call. */
    bool adopt;         /* segments that a rank already holds as they must be stay where they lie */
    int64_t chunk_bytes; /* largest copy; 0: RS_PLAN_CHUNK. A row of a tensor is never cut below
                            one element. */
} rs_plan_options;

#define RS_PLAN_CHUNK (4 << 20)

typedef struct rs_plan rs_plan;

/* What a plan costs the rank it was made for, in bytes. */
typedef struct rs_plan_figures {
    int64_t old_bytes;     /* its segments before */
    int64_t new_bytes;     /* its segments after */
    int64_t adopted_bytes; /* segments kept where they lie */
    int64_t self_bytes;    /* copied within the rank */
    int64_t node_in;       /* pulled from ranks of its node */
    int64_t node_out;      /* pulled from it by ranks of its node (no load of its own) */
    int64_t remote_in;     /* received from other nodes */
    int64_t remote_out;    /* sent to other nodes */
    int64_t needed_bytes;  /* bytes of its new shards that it did not hold: node_in + remote_in must
                              equal this */
    int64_t peak_safe;     /* old and new segments together, adopted ones once */
    int64_t peak_tight; /* when sources are freed as the order allows, byte by byte, one copy at a
                           time (docs/plan.md); staging not counted */
} rs_plan_figures;

/*
 * The plan of `rank` from `from` to `to` (placements of the same space). A rank beyond either world
 * holds nothing there. The caller owns `*out`; the placements are borrowed and must outlive it.
 * RS_ERR_MISMATCH names an element (tensor, role, index) that the rank needs and nobody holds.
 * Cost: grows with the pieces of the rank's own shards; and with those of all ranks that can take
 * over from each other what it takes or gives between nodes (with layouts, the old pipeline stages
 * that it has to do with).
 */
rs_status rs_plan_create(const rs_placement *from, const rs_placement *to, int rank,
    const rs_plan_options *options, rs_plan **out) RS_MUST_CHECK;

void rs_plan_destroy(rs_plan *plan);

int rs_plan_rank(const rs_plan *plan);

/*
 * The copies between nodes in which ranks of `node` (as options->node_of or ranks_per_node name it)
 * are source or target, in the global order: what a process that stands for the whole node sends
 * and receives. free() `*out`. Cost: the plans of the node's ranks.
 */
rs_status rs_plan_crossing(const rs_placement *from, const rs_placement *to, int node,
    const rs_plan_options *options, rs_copy **out, size_t *count) RS_MUST_CHECK;

/* The copies in which the rank is source or target, in the global order. Borrowed. */
const rs_copy *rs_plan_copies(const rs_plan *plan, size_t *count);

/* The segments that stay where they lie, ascending. Borrowed. */
const int *rs_plan_adopted(const rs_plan *plan, size_t *count);

/* True if `segment` is adopted. */
bool rs_plan_is_adopted(const rs_plan *plan, int segment);

const rs_plan_figures *rs_plan_figures_of(const rs_plan *plan);

/* The most memory that the rank's segments take in tight mode, with at most `window` bytes of its
 * copies in flight, in whole pages of `page` bytes: an upper bound for a mover that keeps the rules
 * of docs/plan.md. Cost grows with the pages that its copies touch. */
rs_status rs_plan_peak_tight(
    const rs_plan *plan, int64_t window, int64_t page, int64_t *bytes) RS_MUST_CHECK;

/*
 * How the busiest rank compares with the best that any choice of sources could reach.
 * `bound_kind` says what the bound is: "flow" is the exact min-max over all choices; "max", where
 * that would take too long, is at least max(largest receive, largest forced send, mean), a lower
 * bound.
 */

typedef struct rs_plan_load {
    int64_t bytes;    /* of this class, all ranks together */
    int64_t rank_max; /* busiest rank: max(received, sent) between nodes, received inside a node */
    int rank;         /* which */
    int64_t rank_bound; /* no choice of sources loads its busiest rank with less */
} rs_plan_load;

typedef struct rs_plan_totals {
    int64_t moved;   /* bytes copied between ranks */
    int64_t minimum; /* bytes that ranks need and do not hold, counted from the placements alone */
    int64_t adopted;
    int64_t self;
    rs_plan_load node;
    rs_plan_load remote;
    int64_t rank_bytes_max;   /* busiest rank over both classes together */
    int64_t rank_bytes_bound; /* and its bound */
    const char *bound_kind;   /* "flow" or "max"; static */
    int64_t node_bytes_max;   /* most bytes that enter or leave one node */
    int64_t node_bytes_bound;
    int64_t peak_safe; /* of the rank where it is largest */
    int64_t peak_tight;
    int64_t copies;
    int64_t *pair_bytes; /* [old world][new world] row-major where asked for, else NULL: bytes that
                            the new rank takes from the old one, and on the diagonal those that stay
                            within a rank, copied or adopted */
} rs_plan_totals;

/* Figures of the whole cluster: makes every rank's plan in turn. `want_pairs` fills pair_bytes.
 * Release with rs_plan_totals_fini. */
rs_status rs_plan_totals_compute(const rs_placement *from, const rs_placement *to,
    const rs_plan_options *options, bool want_pairs, rs_plan_totals *out) RS_MUST_CHECK;
void rs_plan_totals_fini(rs_plan_totals *totals);

/*
 * Seconds that no plan with these totals can beat, if a rank pulls at most `rank_rate` bytes per
 * second from its node, and at most `node_rate` bytes per second enter a node and as many leave it,
 * both at the same time. A rate of 0 or less is not counted.
 */
double rs_plan_seconds_bound(const rs_plan_totals *totals, double rank_rate, double node_rate);

/* Bytes of the shards of one role (-1: of all roles) that holders of a placement have, without
 * padding; activations and the like are no state and not counted. Ties go to the lower holder. */
typedef struct rs_state_bytes {
    int64_t max;
    int max_holder;
    int64_t min;
    int min_holder;
    int64_t total; /* of all holders; replicas count each time */
} rs_state_bytes;

rs_status rs_state_bytes_of(
    const rs_placement *placement, int role, rs_state_bytes *out) RS_MUST_CHECK;

/*
 * The slow, plain proof: makes every rank's plan and checks, element range by element range and
 * with none of the planner's own geometry, that every element of every new shard is written exactly
 * once or adopted, from a holder that has it; that senders and receivers list the same copies in
 * the same order; that moved equals minimum. RS_ERR_MISMATCH names the first violation. For tests,
 * debug builds and doubters; cost grows with the whole cluster.
 */
rs_status rs_plan_check(
    const rs_placement *from, const rs_placement *to, const rs_plan_options *options) RS_MUST_CHECK;

/* The plan as text for people, and as JSON (an object: rank, figures, copies). The caller frees
 * `*out` with free(). */
rs_status rs_plan_text(const rs_plan *plan, char **out) RS_MUST_CHECK;
rs_status rs_plan_json(const rs_plan *plan, char **out) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
