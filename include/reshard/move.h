/*
 * Moving: runs plans.
 *
 * rs_move_local runs all ranks' plans inside one process, for tools and tests. rs_move_run runs one
 * rank's plan as part of an MPI job: copies within the rank and its node are pulled from mapped
 * memory, copies between nodes travel as windowed non-blocking messages in the plan's one global
 * order. Every target byte is summed after it was written, while it is in cache, and the sums are
 * left in `after`; the caller compares and commits. A move never changes the old segments in safe
 * mode; in tight mode it gives their pages back as the order allows, and cannot be undone, only
 * finished.
 */
#ifndef RESHARD_MOVE_H
#define RESHARD_MOVE_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/arena.h"
#include "reshard/certificate.h"
#include "reshard/memory.h"
#include "reshard/placement.h"
#include "reshard/plan.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RS_MOVE_WINDOW (64 << 20)

/* What one rank's part of a move did. */
typedef struct rs_move_report {
    int64_t self_bytes;
    int64_t node_bytes;   /* pulled */
    int64_t remote_bytes; /* received */
    int64_t sent_bytes;
    int64_t staging_bytes; /* most staging memory in use at once */
    int64_t freed_bytes;   /* given back while moving (tight) */
    double seconds;
} rs_move_report;

/*
 * Runs the plans of all ranks in this process. `old` and `now` are arrays of rs_memory, one per
 * holder of `from` and `to`; adopted segments (options->adopt) must be the same bytes in both.
 * `sums` may be NULL, else an array of one rs_sums per holder of `to`, filled. `report` (may be
 * NULL) is summed over ranks.
 */
rs_status rs_move_local(const rs_placement *from, const rs_placement *to,
    const rs_plan_options *options, const rs_memory *old, const rs_memory *now,
    rs_sums *const *sums, rs_move_report *report) RS_MUST_CHECK;

/*
 * Fills `now`, the memory of the plan's rank in `to`, where everything it lacks is mapped here:
 * `old[r]` is the memory of holder r of `from`, and may be empty where the plan does not read it.
 * Makes the incoming copies of any reach; adopted segments are left alone. For worlds that begin
 * from the arenas of another. `sums` and `report` as above.
 */
rs_status rs_move_pull(const rs_plan *plan, const rs_placement *from, const rs_placement *to,
    const rs_memory *old, const rs_memory *now, rs_sums *sums,
    rs_move_report *report) RS_MUST_CHECK;

/*
 * Finishes a tight move of rs_move_run whose processes are gone, by what their marks say, with
 * everything mapped here for writing: `old[r]` is the old arena of holder r of `from`, `now[r]` the
 * new one of rank r of the larger world. The same placements and options as then. `*bytes`: what
 * was copied now. Can be killed and called again. RS_ERR_UNSUPPORTED: the move had messages between
 * nodes, of which no marks are kept.
 */
rs_status rs_move_finish(const rs_placement *from, const rs_placement *to,
    const rs_plan_options *options, rs_arena *const *old, rs_arena *const *now,
    int64_t *bytes) RS_MUST_CHECK;

/* Copies a box between two strided places; `element_size` 1, 2, 4, 8. Ranges must not overlap. */
void rs_move_box(int ndim, const int64_t *extent, size_t element_size, void *to,
    const int64_t *to_stride, const void *from, const int64_t *from_stride);

#ifdef __cplusplus
}
#endif

#endif
