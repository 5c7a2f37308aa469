/*
 * The MPI transport: non-blocking messages, cut so that a count fits an int.
 *
 * A message is one request, or one per GiB. Messages of a pair with one tag arrive in the order
 * they were sent (MPI's rule of order), and a channel is a tag, so a message needs no number of its
 * own. The tags are this library's; on the communicator that it is lent nobody else sends while a
 * move runs. No thread support is needed: all calls come from the calling thread.
 */
#include "move/mpi/mpi.h"

#include <sched.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#define FIRST_TAG 21500 /* below 32767, which every MPI allows */
#define PARTS 64        /* of the largest message */

struct rs_message {
    rs_message *next; /* free ones are chained */
    int count;
    MPI_Request requests[PARTS];
};

/* Messages are made beforehand: one that could not be had in the middle of a move would leave its
 * peer waiting. */
typedef struct mpi_context {
    MPI_Comm comm;
    int64_t part;
    rs_message *idle;
    rs_message messages[RS_TRANSPORT_MESSAGES];
} mpi_context;

rs_status rs_mpi_check(int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (code == MPI_SUCCESS)
        return RS_OK;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        length = 0;
    return rs_error_set(RS_ERR_MPI, "%s: %.*s", what, length, text);
}

rs_status rs_mpi_enter(MPI_Comm comm, MPI_Errhandler *saved)
{
    RS_TRY(rs_mpi_check(MPI_Comm_get_errhandler(comm, saved), "asking for the error handler"));
    return rs_mpi_check(
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "setting the error handler");
}

void rs_mpi_leave(MPI_Comm comm, MPI_Errhandler saved)
{
    MPI_Comm_set_errhandler(comm, saved);
    MPI_Errhandler_free(&saved);
}

/* Others may need this processor to get on: with more ranks than cores a spin would starve them. */
static void mpi_idle(void *context)
{
    (void)context;
    rs_nap(20e-6);
}

rs_status rs_mpi_agree(MPI_Comm comm, rs_status own)
{
    struct {
        int status;
        int rank;
    } mine = {(int)own, 0}, worst;
    int rank = 0;
    RS_TRY(rs_mpi_check(MPI_Comm_rank(comm, &rank), "asking for the rank"));
    mine.rank = rank;
    /* Ranks that are done sleep, so that with more ranks than cores the others are not held up. */
    MPI_Request request;
    int done = 0;
    int code = MPI_Iallreduce(&mine, &worst, 1, MPI_2INT, MPI_MAXLOC, comm, &request);
    if (code == MPI_SUCCESS)
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    while (code == MPI_SUCCESS && !done) {
        mpi_idle(NULL);
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    }
    /* A failed rank's own detail is the one to keep: nothing above recorded another for it. */
    if (own != RS_OK)
        return own;
    RS_TRY(rs_mpi_check(code, "agreeing on the outcome"));
    if (worst.status == RS_OK)
        return RS_OK;
    return rs_error_set(RS_ERR_PEER, "rank %d failed: %s (its own record says more)", worst.rank,
        rs_status_name((rs_status)worst.status));
}

/* Starts the parts of a message; `sends` says which way. */
static rs_status start(mpi_context *context, bool sends, int peer, rs_label label, void *data,
    int64_t bytes, rs_message **out)
{
    rs_message *message = context->idle;
    if (message == NULL || bytes > context->part * PARTS)
        return rs_error_set(RS_ERR_UNSUPPORTED, "a message of %lld bytes, or more than %d at once",
            (long long)bytes, RS_TRANSPORT_MESSAGES);
    int64_t parts = rs_max64(rs_ceil_div(bytes, context->part), 1);
    int tag = FIRST_TAG + (int)label.channel * RS_TRANSPORT_NUMBERS + label.number;
    message->count = 0;
    for (int64_t k = 0; k < parts; k++) {
        char *at = (char *)data + k * context->part;
        int count = (int)rs_min64(context->part, bytes - k * context->part);
        MPI_Request *request = &message->requests[k];
        int code = sends ? MPI_Isend(at, count, MPI_BYTE, peer, tag, context->comm, request)
                         : MPI_Irecv(at, count, MPI_BYTE, peer, tag, context->comm, request);
        RS_TRY(rs_mpi_check(code, sends ? "sending" : "receiving"));
        message->count++;
    }
    context->idle = message->next;
    *out = message;
    return RS_OK;
}

static rs_status mpi_send(
    void *context, int peer, rs_label label, const void *data, int64_t bytes, rs_message **out)
{
    void *from = (void *)(uintptr_t)data; /* only read */
    return start(context, true, peer, label, from, bytes, out);
}

static rs_status mpi_receive(
    void *context, int peer, rs_label label, void *data, int64_t bytes, rs_message **out)
{
    return start(context, false, peer, label, data, bytes, out);
}

static rs_status mpi_test(void *context, rs_message *message, bool *done)
{
    mpi_context *messages = context;
    int all = 0;
    int code = MPI_Testall(message->count, message->requests, &all, MPI_STATUSES_IGNORE);
    *done = all != 0;
    if (all != 0 || code != MPI_SUCCESS) {
        message->next = messages->idle;
        messages->idle = message;
    }
    return rs_mpi_check(code, "waiting for a message");
}

rs_status rs_mpi_transport_init(MPI_Comm comm, int64_t part, rs_transport *out)
{
    mpi_context *context = rs_calloc(1, sizeof *context);
    if (context == NULL)
        return rs_error_memory(sizeof *context);
    context->comm = comm;
    context->part = part;
    for (int k = 0; k < RS_TRANSPORT_MESSAGES; k++) {
        context->messages[k].next = context->idle;
        context->idle = &context->messages[k];
    }
    *out = (rs_transport){.context = context,
        .largest = part * PARTS,
        .send = mpi_send,
        .receive = mpi_receive,
        .test = mpi_test,
        .idle = mpi_idle};
    return RS_OK;
}

void rs_mpi_transport_fini(rs_transport *transport)
{
    free(transport->context);
    *transport = (rs_transport){0};
}
