/*
 * What a job survives.
 *
 * 1. A dead process is not a dead device: the job goes on as it was.
 * 2. A slot whose process died three times within ten steps by its own fault is lost, whatever
 *    other slots did meanwhile.
 * 3. A step that began and died twice in a row by a rank's own fault would die again: the job ends.
 * 4. Restarts count until there have been a hundred good steps; from the second in a row on there
 *    is a pause before each, doubled each time.
 */
#include "elastic/survival.h"

#define GOOD_STEPS 100
#define SLOT_DEATHS 3
#define SLOT_STEPS 10
#define PAUSE 0.5
#define MOST_PAUSE 30

/* Notes a death by the rank's own fault; true if its slot is lost by it. */
static bool count_slot(rs_survival *s, const rs_death *death)
{
    int deaths = 0;
    s->own[s->own_count % RS_SURVIVAL_DEATHS].rank = death->rank;
    s->own[s->own_count % RS_SURVIVAL_DEATHS].step = death->step;
    s->own_count++;
    for (int64_t i = 0; i < RS_SURVIVAL_DEATHS && i < s->own_count; i++)
        deaths += s->own[i].rank == death->rank && s->own[i].step + SLOT_STEPS >= death->step;
    if (deaths < SLOT_DEATHS)
        return false;
    s->own_count = 0; /* the ranks that are left get other numbers */
    return true;
}

rs_fate rs_survival_take(rs_survival *s, const rs_death *death, int most_restarts)
{
    bool fault = death->own && death->began;
    bool twice = fault && s->fault_step == death->step + 1;
    s->fault_step = fault ? death->step + 1 : 0;
    if (death->step >= s->step + GOOD_STEPS)
        s->restarts = 0;
    if (twice)
        return RS_FATE_SAME_STEP;
    if (s->restarts >= most_restarts)
        return RS_FATE_TOO_OFTEN;
    s->restarts++;
    s->step = death->step;
    bool lost = death->own && death->rank >= 0 && count_slot(s, death);
    return lost ? RS_FATE_WITHOUT_SLOT : RS_FATE_ALIKE;
}

double rs_survival_pause(const rs_survival *s)
{
    double seconds = s->restarts > 1 ? PAUSE : 0;
    for (int i = 2; i < s->restarts && seconds < MOST_PAUSE; i++)
        seconds *= 2;
    return seconds < MOST_PAUSE ? seconds : MOST_PAUSE;
}
