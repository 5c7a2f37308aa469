/*
 * Crash points: places in a training job at which a test has one process killed (SIGKILL), as a
 * power cut or an operator would, at exactly this instant. In builds with tests alone; in others a
 * point is nothing.
 *
 * RESHARD_CRASH=POINT:RANK:STEP[:NTH[:SIGNAL]] in the environment names the point, the rank, the
 * step from which on it is armed (-1: before the first, too), which visit of it since then (1, the
 * default, is the first), and another signal's number: that of a crash of the process's own, or of
 * a stop; 0: it exits with 3. Several stand with commas between: the first of the process's rank
 * counts; -1 is the supervisor's, -2 that of a host's helper. A point that has come adds a line
 * with its name to the file that RESHARD_CRASH_NOTE names.
 */
#ifndef RS_BASE_CRASH_H
#define RS_BASE_CRASH_H

#include <stdint.h>

#ifdef RS_CRASH_POINTS

/* Reads the environment; `rank` is this process's. */
void rs_crash_begin(int rank);

/* Step `step` begins. */
void rs_crash_step(int64_t step);

/* Called at the place. */
void rs_crash_point(const char *name);

#else

static inline void rs_crash_begin(int rank)
{
    (void)rank;
}

static inline void rs_crash_step(int64_t step)
{
    (void)step;
}

static inline void rs_crash_point(const char *name)
{
    (void)name;
}

#endif

#endif
