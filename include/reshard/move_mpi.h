/*
 * Moving inside an MPI job. Apart from move.h so that programs without MPI need not have mpi.h.
 */
#ifndef RESHARD_MOVE_MPI_H
#define RESHARD_MOVE_MPI_H

#include <mpi.h>

#include "reshard/group.h"
#include "reshard/move.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Lends the memory of another rank of this node, mapped read-only, for the duration of the move. */
typedef rs_status (*rs_move_peer)(void *context, int rank, const rs_memory **out);

typedef struct rs_move {
    MPI_Comm comm; /* all ranks of the larger world, rank r = holder r; used only during the call */
    int lenders;   /* the last so many holders of `from` are memory without a rank (an old world's):
                      they are pulled from, and nothing is sent to or by them */
    bool ferried;  /* copies between nodes are left to a ferry */
    const rs_placement *from;
    const rs_placement *to;
    const rs_plan *plan;
    const rs_memory *old; /* this rank's segments before; NULL if it held nothing */
    const rs_memory *now; /* and after, adopted ones included */
    rs_move_peer peer;    /* for copies of reach RS_REACH_NODE; may be NULL if there are none */
    void *peer_context;
    int64_t window; /* bytes in flight and staging budget; 0: RS_MOVE_WINDOW */
    rs_sums *after; /* the sums of what was copied; cells known beforehand are left as they are.
                       May be NULL. After an error, not to be built on. */
    /* Tight mode, if not NULL: the old arena, whose pages are given back as the order allows, and
     * the new one (rs_arena_create_sparse), in which a copy's room is reserved just before it is
     * written and progress is marked. If any rank gives them, then every rank: one that held
     * nothing has tight NULL, one that gets nothing has an empty tight_now. */
    rs_arena *tight;
    rs_arena *tight_now;
    void (*progress)(void *context, int64_t done, int64_t total); /* bytes; may be NULL */
    void *progress_context;
} rs_move;

/*
 * Runs this rank's plan. Collective over `comm`; it succeeds on all ranks or on none. A rank that
 * fails returns why, after it has served its peers to the end of the phase; the others return
 * RS_ERR_PEER and name one that failed.
 */
rs_status rs_move_run(const rs_move *move, rs_move_report *report) RS_MUST_CHECK;

/*
 * A ferry: a job that makes the copies between nodes for ranks of other jobs, which may not have
 * begun or be gone. One process stands for each node: it reads the old memory of holders that are
 * there and writes into the new memory of those that are.
 */
typedef struct rs_ferry {
    MPI_Comm comm;         /* one process a node */
    const int *process_of; /* of each holder of the larger placement: that of its node */
    const rs_placement *from;
    const rs_placement *to;
    const rs_copy *copies; /* rs_plan_crossing of this process's node */
    size_t count;
    rs_move_peer source; /* lends the old memory of a holder of this node */
    rs_move_peer target; /* the new memory of a holder of this node, to be written */
    void *context;
    int64_t window; /* as for rs_move */
} rs_ferry;

/*
 * Makes the copies, by messages in the plan's global order within the window. Sums are not made:
 * whoever uses what was written sums it where it lies. Collective over `comm`; errors as of
 * rs_move_run.
 */
rs_status rs_ferry_run(const rs_ferry *ferry, rs_move_report *report) RS_MUST_CHECK;

/*
 * The certificate over a communicator: reduces both contributions and compares. `before` and
 * `after` are rs_sums_words of this rank (word_count of them), overwritten by the reduced ones.
 * Collective; all ranks return the same status.
 */
rs_status rs_move_verify(
    MPI_Comm comm, const rs_space *space, uint64_t *before, uint64_t *after) RS_MUST_CHECK;

/* The group of a communicator's ranks, for what the library does together elsewhere (convert.h).
 * `comm` is borrowed and used in the group's calls only. Local. */
rs_status rs_group_mpi(MPI_Comm *comm, rs_group *out) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
