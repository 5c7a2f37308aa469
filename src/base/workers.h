/* A handful of threads that do one job together. */
#ifndef RS_BASE_WORKERS_H
#define RS_BASE_WORKERS_H

#include "reshard/status.h"

/* A thread's part of a job; `thread` counts from 0. It takes work until there is none left. */
typedef rs_status rs_worker(void *context, int thread);

/*
 * Calls `work` on up to `threads` threads at once, number 0 being the caller's, and waits for all.
 * Fewer run where the system gives no more. Returns the status and detail of the first that failed;
 * the job sees to it that the others then stop.
 */
rs_status rs_workers_run(int threads, rs_worker *work, void *context) RS_MUST_CHECK;

/* The processors that this process may run on, at least 1. */
int rs_workers_cores(void);

#endif
