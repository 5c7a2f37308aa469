/*
 * The two-phase step, as one rank sees it: first everything that the update needs stands in the
 * rank's ledger (ledger.h), and it says that it is ready; after all have said so, the update
 * changes the state, keeping the old bytes of the piece under way. docs/elastic.md has the
 * argument. All functions are local; a state without a ledger has no first phase.
 */
#ifndef RS_TRAIN_TWOPHASE_H
#define RS_TRAIN_TWOPHASE_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/ledger.h"
#include "train/state.h"
#include "train/train.h"
#include "train/update.h"

/* The numbers of a step: what its update needs, and what metrics.jsonl says of it. The same on
 * every rank but for the seconds. */
typedef struct rs_step_note {
    rs_update_rate rate;
    double loss;
    double grad_norm;
    double lr;
    double seconds; /* until the rank was ready */
    double time;    /* since 1970 */
    int64_t tokens;
    int64_t samples;
    bool experts;
    double aux_loss;
    int64_t close;
} rs_step_note;

/* What metrics.jsonl says of it. */
rs_train_step rs_step_line(const rs_step_note *note, int64_t steps, const char *layout);

/* Where the reduced gradient of the state's rank lies, from `memory` on: of everything where the
 * optimizer is not sharded, else of its piece. rs_runs_fini. */
rs_status rs_twophase_gradients(const rs_state *state, void *memory, rs_runs *out) RS_MUST_CHECK;

/* The work memory for a piece that the rank mirrors: what its owner sends for each step. */
typedef struct rs_mirrored_work {
    int mesh;  /* group.h */
    int owner; /* rank */
    float *gradient;
    int64_t gradient_count;
    float *direction;
    int64_t direction_count;
} rs_mirrored_work;

/* How many pieces the state's rank mirrors; and where in the work memory, which begins at `memory`,
 * what comes for them lies: `out` has room for as many. */
int rs_twophase_mirrored_count(const rs_state *state);
rs_status rs_twophase_mirrored(const rs_state *state, const rs_optimizer *optimizer, void *memory,
    rs_mirrored_work *out) RS_MUST_CHECK;

/* All of the work memory, which begins at `memory`: the gradients of everything that the rank
 * updates, its own and what it mirrors, and the directions. rs_runs_fini both. `*bytes`: its size.
 */
rs_status rs_twophase_work(const rs_state *state, const rs_optimizer *optimizer, void *memory,
    rs_runs *gradients, rs_runs *directions, int64_t *bytes) RS_MUST_CHECK;

/* Where the directions that some optimizers need lie in the ledger (muon.h). */
rs_status rs_twophase_directions(const rs_state *state, float **out) RS_MUST_CHECK;

/* Bytes of a ledger for the state's rank, with `slots` threads. */
rs_status rs_twophase_bytes(
    const rs_state *state, const rs_optimizer *optimizer, int slots, int64_t *bytes) RS_MUST_CHECK;

/* Makes the ledger of a state that has an arena; nothing where the rank holds nothing. `sparse`:
 * the gradients get their room later (rs_ledger_reserve). */
rs_status rs_twophase_begin(rs_state *state, const rs_optimizer *optimizer, rs_keeper *keeper,
    int generation, int slots, bool sparse) RS_MUST_CHECK;

/* Maps arena and ledger of a generation that there is, for writing. */
rs_status rs_twophase_attach(rs_state *state, const rs_optimizer *optimizer, rs_keeper *keeper,
    int generation) RS_MUST_CHECK;

/* The state's gradient stands in the ledger: writes the note and says so. */
void rs_twophase_ready(const rs_state *state, const rs_step_note *note);
/* Whose state stands at `step`; whose copies of what others update do so too. */
void rs_twophase_stepped(const rs_state *state, int64_t step);
void rs_twophase_derived(const rs_state *state, int64_t step);

/* ---- the journal, for the update ---- */

/* Copies a piece, of `tensor`, between the state and `journal`. */
void rs_journal_save(
    const rs_state *state, int tensor, int64_t begin, int64_t count, void *journal);
void rs_journal_restore(
    const rs_state *state, int tensor, int64_t begin, int64_t count, const void *journal);

#endif
