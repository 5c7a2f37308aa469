/* Freeing as one goes: which pages of the old arena are still to be read. Include in .c files only.
 */
#ifndef RS_MOVE_TIGHT_H
#define RS_MOVE_TIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/arena.h"
#include "reshard/placement.h"
#include "reshard/plan.h"

/* Set in a mark: its writer has stopped, and reads nothing more. The count below it stands. */
#define RS_TIGHT_HALTED ((uint64_t)1 << 63)

/* A rank of this node that pulls from this one, and the copies that it pulls, in order. */
typedef struct rs_tight_reader {
    int rank;
    rs_arena *arena; /* its new one, for the marks */
    size_t *copies;  /* indices into the plan's list */
    size_t count;
    size_t next; /* first that is not known to be done */
} rs_tight_reader;

typedef struct rs_tight {
    const rs_plan *plan;
    const rs_placement *from;
    const rs_placement *to;
    int rank;
    rs_arena *old; /* NULL if the rank had nothing */
    rs_arena *now; /* NULL if it gets nothing */
    int64_t page;
    rs_segment_list segments; /* old ones */
    size_t *first;            /* page number where each begins; one more at the end */
    uint32_t *readers;        /* of each page: copies that have yet to read it */
    rs_tight_reader *peers;
    size_t peer_count;
    size_t *copy_indices; /* backing of peers[].copies */
    uint64_t *marks;      /* by rank: how many copies were pulled from it */
    int ranks;
    int64_t freed_bytes;
} rs_tight;

/* Counts readers, opens the readers' new arenas. Changes nothing. `ranks`: of the larger world. */
rs_status rs_tight_init(rs_tight *tight, const rs_placement *from, const rs_placement *to,
    const rs_plan *plan, int ranks, rs_arena *old, rs_arena *now) RS_MUST_CHECK;
void rs_tight_fini(rs_tight *tight);

/* Gives back what no copy reads. */
rs_status rs_tight_begin(rs_tight *tight) RS_MUST_CHECK;

/* Reserves the pages that a copy into this rank writes. */
rs_status rs_tight_reserve(rs_tight *tight, const rs_copy *copy) RS_MUST_CHECK;

/* A copy from this rank is done: gives back the pages of which it was the last reader. */
rs_status rs_tight_release(rs_tight *tight, const rs_copy *copy) RS_MUST_CHECK;

/* This rank has pulled one more copy from `source` (itself, too); or has halted and tells all its
 * sources. */
rs_status rs_tight_mark(rs_tight *tight, int source) RS_MUST_CHECK;
rs_status rs_tight_halt(rs_tight *tight) RS_MUST_CHECK;

#endif
