/*
 * The gradient of a tied embedding, which stands at both ends of the pipeline: each end has its own
 * part of the gradient, and both need the sum. Reduced pieces are exchanged, so what crosses is
 * what ZeRO leaves.
 */
#ifndef RS_TRAIN_TIED_H
#define RS_TRAIN_TIED_H

#include "train/runs.h"
#include "train/state.h"
#include "train/world.h"

typedef struct rs_tied rs_tied;

/* `reduced`: this rank's piece of the gradient, with its memory. `*out` is NULL where nothing is to
 * be done: nothing is tied, or both ends are one. Borrows everything. Local. */
rs_status rs_tied_create(const rs_world *world, const rs_state *state, const rs_runs *reduced,
    bool tied, rs_tied **out) RS_MUST_CHECK;
void rs_tied_destroy(rs_tied *tied);

/* Adds the other end's part. Both ends get the same bits. Collective over the ranks at both ends
 * that share a slice. */
void rs_tied_reduce(rs_tied *tied);

#endif
