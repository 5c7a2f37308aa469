/*
 * SIGTERM, SIGUSR1 and SIGINT while a job runs: the step is finished first. Where it cannot be (a
 * peer is gone, and the launcher is about to kill this rank too), the job's arenas on this node are
 * removed all the same.
 */
#ifndef RS_TRAIN_SIGNALS_H
#define RS_TRAIN_SIGNALS_H

#include <stdbool.h>

#include "reshard/status.h"

/* Starts to watch. `job` and `folder` as for rs_keeper_open. One watch per process. */
rs_status rs_signals_begin(const char *job, const char *folder) RS_MUST_CHECK;

/* Ends watching and restores the handlers. Nothing if it was not begun. */
void rs_signals_end(void);

/* True once a signal has come. */
bool rs_signals_caught(void);

/* From now on arenas are not removed: a supervisor does that. */
void rs_signals_keep(void);

/* While held, arenas are not removed: other ranks may still have to open them. */
void rs_signals_hold(bool hold);

#endif
