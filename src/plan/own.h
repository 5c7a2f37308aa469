/* What one rank has before and after, and which of it can stay where it lies. */
#ifndef RS_PLAN_OWN_H
#define RS_PLAN_OWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan/pieces.h"

typedef struct rs_own {
    rs_shard_list shards[RS_SIDES]; /* by (role, tensor, box) */
    rs_segment_list segments[RS_SIDES];
    bool *stays;  /* of each new shard: its segment is adopted */
    int *adopted; /* segments, ascending */
    size_t adopted_count;
    int64_t adopted_bytes;
} rs_own;

/* Reads what `rank` has; with `adopt`, finds what can stay. The caller releases it with
 * rs_own_fini, after a failure too. A rank beyond a placement has nothing there. */
rs_status rs_own_init(rs_own *own, const rs_placement *from, const rs_placement *to, int rank,
    bool adopt) RS_MUST_CHECK;
void rs_own_fini(rs_own *own);

/* The shards of (role, tensor), in the order of their boxes. Borrowed. */
const rs_shard *rs_own_shards(const rs_own *own, int side, int role, int tensor, size_t *count);

/* Whether the new shard around `box` stays where it lies; false if there is none. */
bool rs_own_stays(const rs_own *own, int role, int tensor, const rs_box *box);

/* Bytes of the new shards that the rank has not among its old ones. */
int64_t rs_own_lacking(const rs_own *own, const rs_space *space);

#endif
