/* How demand between nodes is divided over the ranks that can meet it, part by part. */
#ifndef RS_PLAN_PARTS_H
#define RS_PLAN_PARTS_H

#include <stddef.h>
#include <stdint.h>

#include "plan/flow.h"

struct rs_dealer;

/* The parts of the old world whose division is known. Starts as {0}. */
typedef struct rs_parts {
    rs_flow *items; /* solved; a crowded one is empty */
    size_t count;
    size_t capacity;
    int *part_of; /* of each rank: which of `items`, or -1 */
} rs_parts;

void rs_parts_fini(rs_parts *parts);

/*
 * What each of `sources` (ascending, two or more, all old holders of a piece that must cross
 * between nodes) is to serve of all demand that these can meet: source k serves (*ends)[k] minus
 * the end before it, of `*demand`. `*ends` is NULL where they are to serve equal parts. Overwrites
 * the dealer's marks.
 */
rs_status rs_parts_divide(struct rs_dealer *dealer, const int *sources, size_t count,
    const int64_t **ends, int64_t *demand) RS_MUST_CHECK;

#endif
