#include "base/clock.h"

#include <time.h>

static double read_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double rs_clock_seconds(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

double rs_wall_seconds(void)
{
    return read_clock(CLOCK_REALTIME);
}

void rs_nap(double seconds)
{
    if (seconds <= 0)
        return;
    time_t whole = (time_t)seconds;
    struct timespec t = {whole, (long)((seconds - (double)whole) * 1e9)};
    nanosleep(&t, NULL);
}
