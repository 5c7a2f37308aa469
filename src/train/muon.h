/*
 * Muon's directions: for each matrix of a layer, the orthogonal matrix next to its momentum. A
 * direction is of a whole matrix, which tp and ZeRO divide; so the pieces of each are brought to
 * one rank, which computes it and hands back what others update. docs/training.md has the formula.
 *
 * Directions are made before the update changes anything, so that the update stays a function of
 * what stands on the rank: its state, its gradient, its directions.
 */
#ifndef RS_TRAIN_MUON_H
#define RS_TRAIN_MUON_H

#include "reshard/optimizer.h"
#include "train/runs.h"
#include "train/state.h"
#include "train/world.h"

typedef struct rs_muon rs_muon;

/* `gradients` as for rs_update_create. `*out` is NULL where no tensor of the job is Muon's. Borrows
 * everything. Local. */
rs_status rs_muon_create(const rs_world *world, const rs_state *state,
    const rs_optimizer *optimizer, const rs_runs *gradients, rs_muon **out) RS_MUST_CHECK;
void rs_muon_destroy(rs_muon *muon);

/* Appends the positions of a mesh, as update pieces of `rank` have them, that have directions;
 * without memory, sorted. Local. */
rs_status rs_muon_pieces(const rs_state *state, const rs_optimizer *optimizer, int rank, int mesh,
    rs_runs *out) RS_MUST_CHECK;

/* The directions of all that the state's rank updates, lying from `memory` on; none where no tensor
 * is Muon's. rs_runs_fini. Local. */
rs_status rs_muon_runs(const rs_state *state, const rs_optimizer *optimizer, float *memory,
    rs_runs *out) RS_MUST_CHECK;

/* Where the directions of all that this rank updates lie: in the state's ledger, if it has one.
 * Local. */
const rs_runs *rs_muon_directions(const rs_muon *muon);

/* Makes the directions of a step whose gradient is multiplied by `clip`. Collective over the ranks
 * of a stage that share what ZeRO cuts, of all tp ranks. Nothing for NULL. */
void rs_muon_direct(rs_muon *muon, float clip);

/* `values` [rows, columns] become the direction that they give. `scratch`: rs_muon_scratch floats.
 * Local. */
int64_t rs_muon_scratch(int64_t rows, int64_t columns);
void rs_muon_orthogonal(int64_t rows, int64_t columns, float *values, float *scratch);

#endif
