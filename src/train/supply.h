/*
 * What a stage works with, block by block: weights where it finds them, gradients where it leaves
 * them. What the layout's placement says that the rank lacks is gathered when it is needed and
 * dropped after use; what it is not to keep is reduced to its piece at once:
 *
 *   zero  weights                          gradients                       update
 *   0     whole                            whole, reduced after the step   of everything
 *   1     whole, gathered after it         the same                        of the piece
 *   2     the same                         a block at a time, reduced      of the piece
 *   3     a block at a time, gathered      the same                        of the piece
 *
 * What the update reads lies in the state's ledger, if it has one (twophase.h).
 *
 * The rows are not cases: each entry follows from which of the rank's roles are cut. Usual order in
 * a step: rs_supply_begin; enter and leave around each use of a block; rs_supply_reduce; the
 * update; rs_supply_publish. Functions are collective over the ranks of the stage that share a
 * slice of the model, on the dense mesh or on that of the experts, unless they say "Local".
 */
#ifndef RS_TRAIN_SUPPLY_H
#define RS_TRAIN_SUPPLY_H

#include <stdbool.h>

#include "train/bind.h"
#include "train/comm_sum.h"
#include "train/share.h"
#include "train/state.h"
#include "train/world.h"

typedef struct rs_supply rs_supply;

typedef struct rs_supply_setup {
    const rs_world *world;
    const rs_state *state;
    rs_chunk *chunks; /* between enter and leave their members point at memory */
    int chunk_count;
    /* Sums over tp what several ranks hold of the block, in `gradients`; before it is reduced. */
    void (*share)(void *context, int block);
    void *context;
} rs_supply_setup;

/* Everything is borrowed. The caller owns `*out`. Local. */
rs_status rs_supply_create(const rs_supply_setup *setup, rs_supply **out) RS_MUST_CHECK;
void rs_supply_destroy(rs_supply *supply);

/* A step begins: no gradient yet. Local. */
void rs_supply_begin(rs_supply *supply);

/* Around a use of a block (rs_stage_blocks). `next` is the block whose weights are needed next, -1
 * if that is not known: it is gathered meanwhile. */
void rs_supply_enter(rs_supply *supply, int block, int next, int use);
void rs_supply_leave(rs_supply *supply, int block, int use);

/* All gradients are there: this rank's piece of them is summed over all ranks with its slice. */
void rs_supply_reduce(rs_supply *supply);

/* That piece: the runs, and the memory. Local. */
const rs_runs *rs_supply_reduced(const rs_supply *supply);

/* The piece is final. The gradients of all that this rank updates: where they lie does not change.
 */
void rs_supply_complete(rs_supply *supply);
const rs_runs *rs_supply_gradients(const rs_supply *supply);

/* Parameters were updated: gathers those that the rank keeps and others updated. */
void rs_supply_publish(rs_supply *supply);

#endif
