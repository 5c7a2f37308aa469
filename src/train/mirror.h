/*
 * Redundancy at work: a rank that mirrors a piece of another one updates it too, so all that has to
 * come is what the update reads: the reduced gradient and, for some optimizers, the directions.
 * Collective over the layout; nothing for NULL.
 */
#ifndef RS_TRAIN_MIRROR_H
#define RS_TRAIN_MIRROR_H

#include "reshard/optimizer.h"
#include "train/runs.h"
#include "train/state.h"
#include "train/world.h"

typedef struct rs_mirror rs_mirror;

/* `*out` is NULL where this rank neither mirrors nor is mirrored. Borrows everything. Local. */
rs_status rs_mirror_create(const rs_world *world, const rs_state *state,
    const rs_optimizer *optimizer, rs_mirror **out) RS_MUST_CHECK;
void rs_mirror_destroy(rs_mirror *mirror);

/* Where gradients and directions of all that this rank updates lie, its own and what it mirrors. */
const rs_runs *rs_mirror_gradients(const rs_mirror *mirror);
const rs_runs *rs_mirror_directions(const rs_mirror *mirror);

/* The reduced gradient is there: it begins to travel, and must not change before rs_mirror_end. */
void rs_mirror_begin(rs_mirror *mirror);

/* The directions are there too: when this returns, everything is where updates read it. */
void rs_mirror_end(rs_mirror *mirror);

#endif
