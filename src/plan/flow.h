/* The fairest division of demands over suppliers: what the busiest must supply at least. */
#ifndef RS_PLAN_FLOW_H
#define RS_PLAN_FLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

/* What a flow takes upon itself: sets of more than one supplier, and members of all those together.
 * Further ones only count in the total. */
#define RS_FLOW_GROUPS ((size_t)1 << 14)
#define RS_FLOW_MEMBERS ((size_t)1 << 22)

/* A demand that any of a set of suppliers can meet, in any division. */
typedef struct rs_flow_group {
    size_t first; /* its suppliers, ascending: members[first .. first + count - 1] */
    size_t count;
    int64_t demand;
} rs_flow_group;

/* Starts as {0}. */
typedef struct rs_flow {
    rs_flow_group *groups; /* ascending by their largest member, then the next, ... */
    size_t count;
    size_t capacity;
    int *members;
    size_t member_count;
    size_t member_capacity;
    size_t shared; /* groups of more than one supplier */
    size_t shared_members;
    int suppliers; /* the highest number of one, plus 1 */
    int64_t total;
    bool crowded; /* there were too many sets: they are not divided */
    /* After rs_flow_solve: */
    int64_t *ends; /* member k of a group supplies ends[first + k] minus the end before it (0 for
                      the first); the last end is the demand */
    int64_t *load; /* of each supplier */
    int64_t bound; /* no division's busiest supplier has less */
    bool exact;    /* this one's has no more */
} rs_flow;

void rs_flow_fini(rs_flow *flow);

/* Adds to the demand of a set of suppliers, which are ascending and at least one.
 * RS_ERR_OVERFLOW. */
rs_status rs_flow_add(
    rs_flow *flow, const int *suppliers, size_t count, int64_t demand) RS_MUST_CHECK;

/* Call it once, when all demands are there. */
rs_status rs_flow_solve(rs_flow *flow) RS_MUST_CHECK;

/* The group of exactly these suppliers, NULL if there is none. */
const rs_flow_group *rs_flow_find(const rs_flow *flow, const int *suppliers, size_t count);

#endif
