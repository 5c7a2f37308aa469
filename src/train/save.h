/*
 * Saving a running job, and going on from what was saved. Shared by the parts of the trainer.
 */
#ifndef RS_TRAIN_SAVE_H
#define RS_TRAIN_SAVE_H

#include <stdbool.h>
#include <stdint.h>

#include "train/job.h"

/* ---- save.c ---- */

rs_status rs_saver_create(rs_job *job, rs_saver **out) RS_MUST_CHECK;

/* Waits for a save that is under way on this rank. */
void rs_saver_destroy(rs_saver *saver);

/* Rank 0: a request to save, to be answered under `name`. False: too many wait. */
bool rs_saver_request(rs_saver *saver, const char *name);

/* Rank 0, at the boundary after step `step`, where `kind` is what would come next: the order that
 * has to come before it, RS_ORDER_SAVE or RS_ORDER_SAVED; else RS_ORDER_NONE. */
rs_order_kind rs_saver_decide(rs_job *job, int64_t step, rs_order_kind kind);

/* In a job that saves by itself: makes, for up to `seconds`, the memory that the first copy takes.
 * Local; without the memory, the save itself will say so. */
void rs_saver_ahead(rs_job *job, double seconds);

/* This rank has written what it has to write, or has nothing to write. */
bool rs_saver_written(const rs_saver *saver);

/* Rank 0: whether all ranks said so at the last step. */
void rs_saver_all_written(rs_saver *saver, bool all);

/* RS_ORDER_SAVE: copies the state and begins to write it. Local; a failure is kept. */
void rs_saver_begin(rs_job *job);

/* RS_ORDER_SAVED: all have written; rank 0 begins to commit. Collective over job->comm. */
rs_status rs_saver_end(rs_job *job) RS_MUST_CHECK;

/* Before the layout changes: the next copy is of another placement. */
void rs_saver_forget(rs_saver *saver);

/* Before the job ends: rank 0 waits for the commit. Local. */
void rs_saver_settle(rs_job *job);

/* What the run goes by, at `step`, as JSON; free() it; NULL without memory. */
char *rs_save_extras(const rs_job *job, int64_t step);

/* "JOB/checkpoints". */
char *rs_save_folder(const rs_train_options *options, char path[RS_TRAIN_PATH + 16]);

/* ---- resume.c ---- */

/* Fills the state from the job's checkpoint, or as options->init says, or anew. Collective over
 * job->comm. */
rs_status rs_resume_state(rs_job *job) RS_MUST_CHECK;

/* ---- weights.c ---- */

/* The weights of options->init; fresh moments. Local. */
rs_status rs_init_state(rs_job *job) RS_MUST_CHECK;

#endif
