/* Running one rank's plan over a transport. Include in .c files only. */
#ifndef RS_MOVE_ENGINE_H
#define RS_MOVE_ENGINE_H

#include "move/cells.h"
#include "move/staging.h"
#include "move/tight.h"
#include "move/transport.h"
#include "reshard/move.h"

/* Lends the memory of another rank of this node (rs_move_peer without MPI). */
typedef rs_status (*rs_engine_peer)(void *context, int rank, const rs_memory **out);

/* What is to be done; all borrowed. */
typedef struct rs_engine_task {
    const rs_placement *from;
    const rs_placement *to;
    const rs_plan *plan;  /* of this rank; NULL: `copies` for several holders */
    bool ferried;         /* copies between nodes are somebody else's */
    const rs_memory *old; /* NULL if the rank held nothing */
    const rs_memory *now;
    rs_engine_peer peer;
    void *peer_context;
    /* Instead of a plan, `old` and `now`: this process is `rank`, and stands for every holder whose
     * `process_of` that is; `peer` lends their old memory, `target` what they are to get. Never
     * tight, and without sums. */
    int rank;
    const int *process_of;
    int processes; /* how many there are; 0 with a plan */
    const rs_copy *copies;
    size_t count;
    rs_engine_peer target;
    int64_t window; /* > 0 */
    rs_sums *after; /* may be NULL */
    bool tight;     /* the whole move is; the same on every rank */
    rs_arena *tight_old;
    rs_arena *tight_now;
    void (*progress)(void *context, int64_t done, int64_t total);
    void *progress_context;
    const rs_transport *transport;
} rs_engine_task;

typedef struct rs_engine rs_engine;

/* Checks that every copy of this rank can be made and takes the memory that it needs. Nothing is
 * moved. The caller owns `*out`. */
rs_status rs_engine_create(const rs_engine_task *task, rs_engine **out) RS_MUST_CHECK;
void rs_engine_destroy(rs_engine *engine);

/* Makes all copies. To be called on every rank, or on none; returns this rank's own status after it
 * has done its part for the others, whatever went wrong here. */
rs_status rs_engine_run(rs_engine *engine, rs_move_report *report) RS_MUST_CHECK;

#endif
