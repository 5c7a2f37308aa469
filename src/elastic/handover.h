/*
 * The life of a change of worlds, as a table: what the supervisor does when something happens.
 *
 * A job has one active world, and at most one other that is coming or going. Everything that can
 * happen to either is an event; the table gives the next state and what to do. It is a pure
 * function, so that every order of events can be tried out. docs/elastic.md has the diagram.
 *
 *   idle -> holding -> building -> quiescing -> pulling -> committing -> leaving -> idle
 *
 * From each state before the commit there is a way back to the old world, by way of `clearing`
 * while the new one's processes still live. A world that is built because the old one died goes
 * through the same states; `alone` says that there is nobody to go back to.
 */
#ifndef RS_ELASTIC_HANDOVER_H
#define RS_ELASTIC_HANDOVER_H

#include <stdbool.h>

typedef enum rs_handover_state {
    RS_HANDOVER_IDLE = 0,
    RS_HANDOVER_HOLDING,    /* the old world is asked to keep its layout */
    RS_HANDOVER_BUILDING,   /* the new one boots, reserves and touches its memory */
    RS_HANDOVER_QUIESCING,  /* it is ready and asleep; the old one comes to a step's end */
    RS_HANDOVER_PULLING,    /* the old one sleeps; the new one copies and verifies */
    RS_HANDOVER_COMMITTING, /* every rank has reported its certificate; the record is written */
    RS_HANDOVER_LEAVING,    /* the new one trains; the old one's processes end */
    RS_HANDOVER_CLEARING,   /* given up; the new one's processes end */
    RS_HANDOVER_STATES
} rs_handover_state;

typedef enum rs_handover_event {
    RS_HANDOVER_WANTED = 0, /* a new world is asked for */
    RS_HANDOVER_BEREFT,     /* the active world has died and was recovered: the same, alone */
    RS_HANDOVER_HELD,       /* the old world keeps its layout and has said which */
    RS_HANDOVER_REFUSED,    /* it cannot */
    RS_HANDOVER_READY,
    RS_HANDOVER_QUIESCED,
    RS_HANDOVER_CERTIFIED,
    RS_HANDOVER_COMMITTED,
    RS_HANDOVER_FAILED,   /* the new world, or the commit, says that it cannot go on */
    RS_HANDOVER_CANCEL,   /* somebody does not want it any more, or it takes too long */
    RS_HANDOVER_NEW_GONE, /* no process of the new world is left */
    RS_HANDOVER_OLD_GONE, /* of the old one */
    RS_HANDOVER_EVENTS
} rs_handover_event;

/* What to do, a set of bits, in this order. */
enum {
    RS_DO_HOLD = 1 << 0,     /* ask the old world to keep its layout */
    RS_DO_START = 1 << 1,    /* start the new one */
    RS_DO_QUIESCE = 1 << 2,  /* ask the old one to stop at a step's end */
    RS_DO_PULL = 1 << 3,     /* tell the new one to take over */
    RS_DO_COMMIT = 1 << 4,   /* write the commit record */
    RS_DO_TRAIN = 1 << 5,    /* the new world is the active one: it trains */
    RS_DO_LEAVE = 1 << 6,    /* the old one may end */
    RS_DO_END_NEW = 1 << 7,  /* end the new one's processes */
    RS_DO_RELEASE = 1 << 8,  /* the old world trains on as if nothing had been */
    RS_DO_DROP_NEW = 1 << 9, /* delete what the new world has made */
    RS_DO_DROP_OLD = 1 << 10,
    RS_DO_TELL_DONE = 1 << 11,
    RS_DO_TELL_FAILED = 1 << 12
};

typedef struct rs_handover {
    rs_handover_state state;
    bool alone; /* there is no old world to go back to */
} rs_handover;

/* Takes an event; returns what to do. An event that means nothing in this state changes nothing. */
unsigned rs_handover_take(rs_handover *handover, rs_handover_event event);

const char *rs_handover_name(rs_handover_state state);

#endif
