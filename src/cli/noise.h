/*
 * What a launcher says besides passing on what the ranks say: banners that hide the one line that
 * matters. They are taken out of the stream, and what they tell about the first rank that died is
 * kept.
 */
#ifndef RS_CLI_NOISE_H
#define RS_CLI_NOISE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

/* How the first rank ended that ended wrongly; -1 or 0 where unknown. */
typedef struct noise_death {
    int rank;
    long pid;
    int signal;
    int exit_code;
    long lost; /* a process that another rank found gone, before the launcher said anything */
    char host[64];
} noise_death;

/* One stream (standard output or error) of the launcher. */
typedef struct noise {
    int output;         /* descriptor that gets what the ranks said */
    rs_text line;       /* begun, not ended */
    rs_text held;       /* what was taken out, in case nothing explains the end */
    bool in_banner;     /* between two rules of a banner */
    bool in_backtrace;  /* between the lines around one of UCX's */
    bool rank_reported; /* a rank said itself what was wrong */
    noise_death death;
} noise;

void noise_init(noise *n, int output);
void noise_fini(noise *n);

/* Bytes from the launcher: passes on whole lines (ended by newline or carriage return). */
void noise_feed(noise *n, const char *bytes, size_t count);

/* The stream has ended: passes on what was begun. */
void noise_end(noise *n);

#endif
