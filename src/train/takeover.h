/*
 * One world takes over from another. docs/elastic.md tells the whole story; these are the old
 * world's part (rs_world_leave) and the new one's (the others). All are collective over job->comm.
 */
#ifndef RS_TRAIN_TAKEOVER_H
#define RS_TRAIN_TAKEOVER_H

#include "train/job.h"

/* The new world, ahead: plans from the old world's memory to its own layout, makes its arenas,
 * adopting what is right already, and maps what it will read. Sets up job->state. */
rs_status rs_takeover_prepare(rs_job *job) RS_MUST_CHECK;

/* Reports ready, sleeps until the old world has stopped, pulls its state, proves and commits it.
 * Ends with the job at the old world's step, or with job->ended where the world is not wanted. */
rs_status rs_takeover_run(rs_job *job) RS_MUST_CHECK;

/* Frees what preparing made, where it did not come to rs_takeover_run. */
void rs_takeover_destroy(rs_job *job);

/* The old world, between two steps: gives its state away and sleeps until the new world has it
 * (job->ended then, outcome RS_TRAIN_LEFT), or until it is told to train on. */
rs_status rs_world_leave(rs_job *job) RS_MUST_CHECK;

#endif
