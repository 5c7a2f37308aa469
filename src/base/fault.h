/*
 * Fault points for tests: places in the library that can be told to go wrong. Nothing is armed
 * unless a test arms it; until then a point costs one relaxed load.
 */
#ifndef RS_BASE_FAULT_H
#define RS_BASE_FAULT_H

#include <stdbool.h>

typedef enum rs_fault {
    RS_FAULT_CORRUPT = 0, /* a copy writes its target with one bit wrong */
    RS_FAULT_COPY,        /* a copy cannot be made */
    RS_FAULT_SEND,        /* a message cannot be sent */
    RS_FAULT_RECEIVE,     /* a message cannot be received */
    RS_FAULT_WRITE,       /* bytes of a file being saved cannot be written */
    RS_FAULT_SYNC,        /* a file or folder cannot be synced */
    RS_FAULT_RENAME,      /* a file or folder cannot be renamed */
    RS_FAULT_EXCHANGE,    /* two names cannot be exchanged in one step */
    RS_FAULT_DIE,         /* the process is killed before one of these three */
    RS_FAULTS
} rs_fault;

/* The point's visits number `nth` .. nth + times - 1 from now on go wrong (1 = the next); nth 0
 * disarms it. For this process. */
void rs_fault_arm(rs_fault point, long nth, long times);

/* True if a point is armed and none of its visits went wrong yet. */
bool rs_fault_pending(rs_fault point);

/* Called where it can go wrong: true if it is to. */
bool rs_fault_hit(rs_fault point);

/* The same before a write, sync or rename, where the process can also be killed. */
bool rs_fault_strikes(rs_fault point);

#endif
