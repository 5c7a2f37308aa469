/* The fairest division of demands over suppliers: what the busiest must supply at least. */
#ifndef RS_PLAN_FLOW_H
#define RS_PLAN_FLOW_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

#define RS_FLOW_SUPPLIERS 64

/* A demand that any of a set of suppliers can meet, in any division. */
typedef struct rs_flow_group {
    uint64_t suppliers; /* bit s: supplier s can */
    int64_t demand;
    size_t first; /* after rs_flow_solve: its k-th supplier supplies ends[first + k] minus the end
                     before it (0 for the first); the last end is the demand */
} rs_flow_group;

/* Starts as {0}. */
typedef struct rs_flow {
    rs_flow_group *groups; /* ascending by suppliers */
    size_t count;
    size_t capacity;
    int64_t *ends;
    size_t end_capacity;
    int64_t total;
    int64_t load[RS_FLOW_SUPPLIERS];
    int64_t bound; /* after rs_flow_solve: the largest load, as small as it can be */
} rs_flow;

void rs_flow_fini(rs_flow *flow);

/* Adds to the demand of a set of suppliers, which must not be empty. RS_ERR_OVERFLOW. */
rs_status rs_flow_add(rs_flow *flow, uint64_t suppliers, int64_t demand) RS_MUST_CHECK;

rs_status rs_flow_solve(rs_flow *flow) RS_MUST_CHECK;

/* The group of exactly these suppliers, NULL if there is none. */
const rs_flow_group *rs_flow_find(const rs_flow *flow, uint64_t suppliers);

#endif
