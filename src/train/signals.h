/* SIGTERM, SIGUSR1 and SIGINT while a job runs: the step is finished first. */
#ifndef RS_TRAIN_SIGNALS_H
#define RS_TRAIN_SIGNALS_H

#include <stdbool.h>

/* Starts to watch. One watch per process. */
void rs_signals_begin(void);

/* Ends watching and restores the handlers. Nothing if it was not begun. */
void rs_signals_end(void);

/* True once a signal has come. */
bool rs_signals_caught(void);

#endif
