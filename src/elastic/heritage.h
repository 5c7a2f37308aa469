/*
 * What a new world takes over from an old one whose memory is still there.
 *
 * The processes of the new world held nothing, but the old world's arenas lie on their hosts. Those
 * of its own host a rank can read, and a segment that is already what a new rank must hold can stay
 * where it lies and become the new rank's, whichever old rank of the host held it. A heritage deals
 * the old world's segments to the new world's ranks: holders 0 .. new - 1 of its placement are the
 * new ranks with what each takes over, holders new .. new + old - 1 are what is left of the old
 * ones, memory that is only read. A plan from this placement to the new world's adopts, copies
 * within a rank, pulls within a host, and has copies between hosts, as every plan does.
 *
 * Usual order: rs_heritage_create, rs_plan_create from rs_heritage_placement, an arena that adopts
 * what the plan says (rs_heritage_source tells from whom), rs_heritage_memory for each holder that
 * the plan reads. All functions are local, and the same on every rank.
 */
#ifndef RS_ELASTIC_HERITAGE_H
#define RS_ELASTIC_HERITAGE_H

#include "elastic/assign.h"
#include "reshard/memory.h"
#include "reshard/placement.h"
#include "reshard/status.h"

typedef struct rs_heritage rs_heritage;

/*
 * Deals the segments of `old` to the ranks of `now`. `kept` (rs_assign_ranks) names the old rank
 * that each new rank continues, -1 for none; what it holds becomes the new rank's own, so far as no
 * other new rank needs it just as it is. `hosts` (NULL: all are on one) says where ranks are: a
 * rank takes over only what lies on its host. Placements are borrowed, the rest is copied. The
 * caller owns `*out`. RS_ERR_ARGUMENT: `kept` is no such table, or continues across hosts.
 */
rs_status rs_heritage_create(const rs_placement *old, const rs_placement *now, const int *kept,
    const rs_places *hosts, rs_heritage **out) RS_MUST_CHECK;
void rs_heritage_destroy(rs_heritage *heritage);

/* Borrowed. */
const rs_placement *rs_heritage_placement(const rs_heritage *heritage);

/* The host of each of its holders, for rs_plan_options.node_of. Borrowed. */
const int *rs_heritage_hosts(const rs_heritage *heritage);

/* The old rank whose segment `segment` the holder has; -1 if it has none of that number. */
int rs_heritage_source(const rs_heritage *heritage, int holder, int segment);

/* The old ranks whose segments the holder has, ascending. Borrowed. */
const int *rs_heritage_sources(const rs_heritage *heritage, int holder, int *count);

/*
 * The memory of a holder, put together from that of the old ranks: `old` has one entry per old
 * rank; those that rs_heritage_sources names must not be NULL. `out->regions` is the caller's to
 * free(); the bytes stay the old ranks'.
 */
rs_status rs_heritage_memory(const rs_heritage *heritage, int holder, const rs_memory *const *old,
    rs_memory *out) RS_MUST_CHECK;

#endif
