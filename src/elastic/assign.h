/*
 * Which rank of a new world continues which rank of the old one: the numbering that keeps the most
 * bytes in place. Solved once, by the job's owner; everybody else is told. All functions are local.
 */
#ifndef RS_ELASTIC_ASSIGN_H
#define RS_ELASTIC_ASSIGN_H

#include <stdint.h>

#include "reshard/placement.h"
#include "reshard/status.h"

#define RS_ASSIGN_EXACT 512 /* ranks up to which the optimum is found */

/*
 * The assignment of most weight: `weight` is [rows][columns], row-major, not negative; pick[row]
 * gets its column, or -1 where there are more rows than columns. No column is picked twice. Exact
 * where both are at most RS_ASSIGN_EXACT; beyond that the heaviest pairs are taken first, which is
 * at least half of the optimum. Ties go to lower numbers.
 */
rs_status rs_assign(const int64_t *weight, int rows, int columns, int *pick) RS_MUST_CHECK;

/* The host of every rank of both worlds, by any numbers. */
typedef struct rs_places {
    const int *old;
    const int *now;
} rs_places;

/* Bytes of `now`'s shards of each rank that each rank of `old` has: fills weight[new][old]. None
 * where the two are on different hosts; `hosts` NULL: all are on one. */
rs_status rs_assign_weights(const rs_placement *old, const rs_placement *now,
    const rs_places *hosts, int64_t *weight) RS_MUST_CHECK;

/* Both: kept[new rank] is the old rank of its host that it continues, -1 where there is none. */
rs_status rs_assign_ranks(const rs_placement *old, const rs_placement *now, const rs_places *hosts,
    int *kept) RS_MUST_CHECK;

#endif
