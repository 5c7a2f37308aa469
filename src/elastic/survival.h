/* What a job survives: whether it goes on after its world died, with which slots, and when. Pure.
 */
#ifndef RS_ELASTIC_SURVIVAL_H
#define RS_ELASTIC_SURVIVAL_H

#include <stdbool.h>
#include <stdint.h>

/* How a world died. */
typedef struct rs_death {
    int64_t step; /* to which all ranks could be taken; it died in the next */
    int rank;     /* that died first; -1: not known */
    bool own;     /* by the rank's own fault: a crash or an exit code, not a kill */
    bool began;   /* the world had begun to train */
} rs_death;

/* What becomes of the job. */
typedef enum rs_fate {
    RS_FATE_ALIKE,        /* it goes on as it was: a dead process is not a dead slot */
    RS_FATE_WITHOUT_SLOT, /* it goes on without the rank's slot, which keeps dying */
    RS_FATE_SAME_STEP,    /* it ends: the same step died twice by a rank's own fault */
    RS_FATE_TOO_OFTEN     /* it ends: as often restarted as it may be */
} rs_fate;

#define RS_SURVIVAL_DEATHS 16

/* What is remembered of deaths; all zero at the beginning. */
typedef struct rs_survival {
    int restarts;       /* since it last had a hundred good steps */
    int64_t step;       /* from which it last went on */
    int64_t fault_step; /* that died by a rank's own fault, if the last death was one; else 0 */
    struct {
        int rank;
        int64_t step;
    } own[RS_SURVIVAL_DEATHS]; /* the last deaths by a rank's own fault, as a ring */
    int64_t own_count;
} rs_survival;

/* Takes a death into account. A step that dies twice ends the job before the number of restarts
 * does. Local. */
rs_fate rs_survival_take(rs_survival *s, const rs_death *death, int most_restarts);

/* Seconds to wait before the restart that the last death asks for. */
double rs_survival_pause(const rs_survival *s);

#endif
