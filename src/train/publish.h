/*
 * Parameters that a rank keeps and others update, where ZeRO divides the optimizer's state over
 * them: a step ends with their being given to it. Here they are for whoever goes on from a world
 * that died before that: recovery has them on its own host, the next world from other hosts too.
 */
#ifndef RS_TRAIN_PUBLISH_H
#define RS_TRAIN_PUBLISH_H

#include <mpi.h>
#include <stdbool.h>

#include "train/state.h"

/* The ranks of a layout. All borrowed. */
typedef struct rs_published {
    const rs_state *state; /* of any of them */
    const int *nodes;      /* across which they mirror; NULL: they do not */
    const bool *lost;      /* by rank: it has nothing */
} rs_published;

/* A part of a parameter, and the first rank left that updates it, mirrors after owners; -1: none
 * is. */
typedef rs_status (*rs_published_part)(void *context, int from, int tensor, const rs_box *part);

/* Calls `part` for all that `rank` keeps and others update, always in the same order. Local. */
rs_status rs_published_parts(
    const rs_published *all, int rank, rs_published_part part, void *context) RS_MUST_CHECK;

/*
 * Gives the ranks that are `behind` (by rank) what others update, by messages; `all->state` is this
 * rank's, with its memory where it is not lost. Two ranks exchange at a time, so what is packed
 * meanwhile is what one updates for another. `*bytes` grows by what came. RS_ERR_NOT_FOUND: who
 * updates something is lost. Collective over `comm`, which may have ranks beyond the layout.
 */
rs_status rs_publish(
    MPI_Comm comm, const rs_published *all, const bool *behind, int64_t *bytes) RS_MUST_CHECK;

#endif
