/*
 * Taking the state of a job whose world has died to one step, on all hosts that it is on.
 *
 * On one host that is rs_train_recover. On several each has a part of it (train/recover.h), done
 * here or by the host's helper; what is put together of them is decided here, by the job's owner.
 */
#ifndef RS_CLI_RESCUE_H
#define RS_CLI_RESCUE_H

#include "cli/fleet.h"
#include "reshard/elastic.h"
#include "train/recover.h"

typedef struct rescue {
    rs_recovery found;
    rs_survey survey; /* of several hosts */
    int unpublished;  /* ranks of whose parameters some are behind: the layout has to stay */
    int *where;       /* the host of each rank's arena, -1: lost; of several hosts */
} rescue;

/* Statuses are those of rs_train_recover; RS_ERR_UNSUPPORTED: a tight switch was cut off between
 * hosts. The fleet's next world is placed near the arenas. rescue_fini also after an error. */
rs_status rescue_job(fleet *f, const char *job, double seconds, rescue *out) RS_MUST_CHECK;
void rescue_fini(rescue *r);

/*
 * For a next world of `ranks` ranks in another layout, which begins from arenas of its own host
 * alone: puts it on a host that has the whole state and so many slots. RS_ERR_NOT_FOUND: there is
 * none.
 */
rs_status rescue_on_one(fleet *f, const char *job, const rescue *r, int ranks) RS_MUST_CHECK;

/* What a helper does of it. */
rs_status rescue_look_here(const char *job, const json_t *word, json_t *answer) RS_MUST_CHECK;
rs_status rescue_part_here(const char *job, const json_t *word, json_t *answer) RS_MUST_CHECK;

#endif
