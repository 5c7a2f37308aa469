/*
 * Taking the state of a crashed job, in the arenas of this machine, to a whole step. For the job's
 * owner: the claim on the job directory is held, and no world of the job is being started.
 */
#ifndef RS_TRAIN_RECOVER_H
#define RS_TRAIN_RECOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/elastic.h"
#include "reshard/status.h"

typedef struct rs_recovery {
    int64_t step;   /* at which the state stands now, on every rank */
    int generation; /* of its arenas */
    char layout[RS_LAYOUT_TEXT];
    int world;            /* ranks of the layout */
    int behind;           /* ranks whose update was completed */
    int killed;           /* processes that the fence had to end */
    int lost;             /* ranks whose arenas are gone; others hold what they held */
    char lost_ranks[128]; /* "ranks 2, 3" */
    double fence_seconds, update_seconds, derive_seconds;
} rs_recovery;

/*
 * Ends whoever still writes to the job's arenas (waiting at most `seconds` for each), then takes
 * all arenas of the record's generation to one step, bit for bit what an undisturbed run has there;
 * completes DIR/metrics.jsonl up to it, and takes later lines out; removes every other generation;
 * raises the record's epoch. Doing it again, or being killed at any point of it, changes nothing.
 * Arenas may be gone whose bytes others hold; they stay away, and a world that goes on from the
 * others makes them anew.
 *
 * RS_ERR_NOT_FOUND: there is no state in memory (no record, or what was in arenas that are gone has
 * no other copy). RS_ERR_MISMATCH,
 * RS_ERR_MALFORMED: what there is is not whole; the detail says what, and nothing was changed but
 * the fence. RS_ERR_STALLED: a process holds on.
 */
rs_status rs_train_recover(const char *job, double seconds, rs_recovery *out) RS_MUST_CHECK;

/*
 * The same for a job on several hosts, in parts. On every host rs_train_recover_look: the fence,
 * and where the ranks stand whose arenas are on this host (all others are lost to it). The owner
 * puts the looks together, judges them (rs_survey_judge), has rs_train_recover_check say whether
 * what is there is enough, and fills in `whole`. Then on every host rs_train_recover_part: its
 * ranks are taken to whole->step; what follows from ranks of other hosts is left to the next world
 * (train/attach.h). One host, which has ranks, is the `teller`, after the others: it completes
 * metrics.jsonl and raises the record's epoch. `*unpublished`: ranks of it of whose parameters some
 * are behind; only a world of the same layout can mend that. A tight switch that was cut off is
 * RS_ERR_UNSUPPORTED.
 */
rs_status rs_train_recover_look(const char *job, double seconds, rs_survey *out,
    rs_recovery *found) RS_MUST_CHECK; /* found: generation, layout, world, killed */
rs_status rs_train_recover_check(
    const char *job, const rs_survey *whole, rs_recovery *found) RS_MUST_CHECK;
rs_status rs_train_recover_part(
    const char *job, const rs_recovery *whole, bool teller, int *unpublished) RS_MUST_CHECK;

#endif
