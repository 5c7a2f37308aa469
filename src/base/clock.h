/* Time, and waiting. */
#ifndef RS_BASE_CLOCK_H
#define RS_BASE_CLOCK_H

/* Seconds on a clock that never steps, from an arbitrary beginning: for durations and deadlines. */
double rs_clock_seconds(void);

/* Seconds since 1970: for what people and other hosts read. */
double rs_wall_seconds(void);

/* Sleeps for so many seconds (0 or less: not at all), or until a signal is handled. */
void rs_nap(double seconds);

#endif
