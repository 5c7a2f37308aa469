/*
 * The table of a change of worlds.
 *
 * 1. The record is written only after every rank of the new world has certified what it has, and
 *    the old world is told to leave only after that.
 * 2. Whoever was asked to hold is released, or told to leave, exactly once.
 * 3. What the new world has made is deleted if and only if it did not become the active one, and
 *    not before its processes are gone.
 * 4. An old world that dies while it sleeps takes nothing with it: its memory is there, complete,
 * at a step's end, so the new one goes on pulling.
 */
#include "elastic/handover.h"

#include <stddef.h>

typedef struct row {
    rs_handover_state state;
    rs_handover_event event;
    rs_handover_state next;
    unsigned actions;
} row;

#define ROW(state, event, next, actions)                                                           \
    {                                                                                              \
        RS_HANDOVER_##state, RS_HANDOVER_##event, RS_HANDOVER_##next, actions                      \
    }

enum { GIVE_UP = RS_DO_END_NEW | RS_DO_RELEASE, UNDO = RS_DO_DROP_NEW | RS_DO_TELL_FAILED };

static const row table[] = {
    ROW(IDLE, WANTED, HOLDING, RS_DO_HOLD),
    ROW(IDLE, BEREFT, BUILDING, RS_DO_START),

    ROW(HOLDING, HELD, BUILDING, RS_DO_START),
    ROW(HOLDING, REFUSED, IDLE, RS_DO_TELL_FAILED),
    ROW(HOLDING, CANCEL, IDLE, RS_DO_RELEASE | RS_DO_TELL_FAILED),
    ROW(HOLDING, OLD_GONE, IDLE, RS_DO_TELL_FAILED),

    ROW(BUILDING, READY, QUIESCING, RS_DO_QUIESCE),
    ROW(BUILDING, FAILED, CLEARING, GIVE_UP),
    ROW(BUILDING, CANCEL, CLEARING, GIVE_UP),
    ROW(BUILDING, NEW_GONE, IDLE, RS_DO_RELEASE | UNDO),
    ROW(BUILDING, OLD_GONE, CLEARING, RS_DO_END_NEW),

    ROW(QUIESCING, QUIESCED, PULLING, RS_DO_PULL),
    ROW(QUIESCING, FAILED, CLEARING, GIVE_UP),
    ROW(QUIESCING, CANCEL, CLEARING, GIVE_UP),
    ROW(QUIESCING, NEW_GONE, IDLE, RS_DO_RELEASE | UNDO),
    ROW(QUIESCING, OLD_GONE, CLEARING, RS_DO_END_NEW),

    ROW(PULLING, CERTIFIED, COMMITTING, RS_DO_COMMIT),
    ROW(PULLING, FAILED, CLEARING, GIVE_UP),
    ROW(PULLING, CANCEL, CLEARING, GIVE_UP),
    ROW(PULLING, NEW_GONE, IDLE, RS_DO_RELEASE | UNDO),

    ROW(COMMITTING, COMMITTED, LEAVING, RS_DO_TRAIN | RS_DO_LEAVE),
    ROW(COMMITTING, FAILED, CLEARING, GIVE_UP),
    ROW(COMMITTING, NEW_GONE, IDLE, RS_DO_RELEASE | UNDO),

    ROW(LEAVING, OLD_GONE, IDLE, RS_DO_DROP_OLD | RS_DO_TELL_DONE),
    ROW(CLEARING, NEW_GONE, IDLE, UNDO),
};

/* What follows at once where there is no old world: it need not be waited for, nor told anything.
 */
static unsigned skip_old(rs_handover *h, unsigned actions)
{
    actions &= ~(unsigned)(RS_DO_RELEASE | RS_DO_LEAVE | RS_DO_HOLD);
    if (h->state == RS_HANDOVER_QUIESCING) {
        h->state = RS_HANDOVER_PULLING;
        actions = (actions & ~(unsigned)RS_DO_QUIESCE) | RS_DO_PULL;
    } else if (h->state == RS_HANDOVER_LEAVING) {
        h->state = RS_HANDOVER_IDLE;
        actions |= RS_DO_DROP_OLD | RS_DO_TELL_DONE;
    }
    return actions;
}

unsigned rs_handover_take(rs_handover *h, rs_handover_event event)
{
    if (event == RS_HANDOVER_OLD_GONE && h->state != RS_HANDOVER_LEAVING)
        h->alone = h->state != RS_HANDOVER_IDLE;
    if (event == RS_HANDOVER_BEREFT && h->state == RS_HANDOVER_IDLE)
        h->alone = true;
    unsigned actions = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].state != h->state || table[i].event != event)
            continue;
        h->state = table[i].next;
        actions = table[i].actions;
        break;
    }
    if (h->alone)
        actions = skip_old(h, actions);
    if (h->state == RS_HANDOVER_IDLE)
        h->alone = false;
    return actions;
}

const char *rs_handover_name(rs_handover_state state)
{
    static const char *const names[RS_HANDOVER_STATES] = {
        "idle", "holding", "building", "quiescing", "pulling", "committing", "leaving", "clearing"};
    return names[state];
}
