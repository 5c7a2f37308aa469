/*
 * Transports: how bytes reach another rank. A transport sees peers and byte ranges, never tensors;
 * the engine (engine.c) sees this table and nothing of MPI, so that another network is one more
 * table. Include in .c files only.
 */
#ifndef RS_MOVE_TRANSPORT_H
#define RS_MOVE_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/status.h"

/* Kinds of messages between two ranks. */
typedef enum rs_channel {
    RS_CHANNEL_DATA = 0, /* a box, packed */
    RS_CHANNEL_CHECK,    /* its sum, for tight moves */
    RS_CHANNEL_ANSWER,   /* whether it arrived right, for tight moves */
    RS_CHANNELS
} rs_channel;

/* Which message: the kind, and the number of its copy among those of the pair, mod
 * RS_TRANSPORT_NUMBERS. A receive gets the message of the same kind and number; two with the same
 * arrive as they were sent. */
#define RS_TRANSPORT_NUMBERS 256

typedef struct rs_label {
    rs_channel channel;
    int number;
} rs_label;

/* A message on its way; the transport's own. */
typedef struct rs_message rs_message;

/* Most messages at once: three for each of the engine's flights. */
#define RS_TRANSPORT_FLIGHTS 128
#define RS_TRANSPORT_MESSAGES (3 * RS_TRANSPORT_FLIGHTS)

typedef struct rs_transport {
    void *context;
    int64_t largest; /* bytes that a message can have */

    /* Start sending or receiving exactly `bytes` bytes, of any number. The memory belongs to the
     * message until it is done. */
    rs_status (*send)(
        void *context, int peer, rs_label label, const void *data, int64_t bytes, rs_message **out);
    rs_status (*receive)(
        void *context, int peer, rs_label label, void *data, int64_t bytes, rs_message **out);

    /* Whether a message is done; then, and on an error, it is gone. */
    rs_status (*test)(void *context, rs_message *message, bool *done);

    /* Called when there was nothing to do: gives the processor away for a moment. */
    void (*idle)(void *context);
} rs_transport;

#endif
