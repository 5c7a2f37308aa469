/*
 * The MPI transport by itself, on any number of ranks: messages of every size around the limit of a
 * part arrive whole, at the receive with the same label, in whatever order they are started and
 * tested; a message above the largest, and one more than fit at once, are refused.
 */
#include <stdlib.h>
#include <string.h>

#include "move/mpi/mpi.h"
#include "np/check.h"

#define PART 1000
#define COUNT 40

static int64_t size_of(int message)
{
    static const int64_t sizes[] = {0, 1, 999, 1000, 1001, 1999, 2000, 2001, 30000, 63999, 64000};
    return sizes[message % (int)(sizeof sizes / sizeof *sizes)];
}

static unsigned char byte_of(int from, int to, int message, int64_t at)
{
    return (unsigned char)(from * 31 + to * 17 + message * 7 + at * 13 + at / 251);
}

/* Two messages with one label follow each other; the labels themselves are started in any order. */
static rs_label label_of(int message)
{
    return (rs_label){(rs_channel)(message / 2 % RS_CHANNELS), message / 2 * 37 % 256};
}

/* All messages between this rank and a peer, both ways at once. */
static void exchange(const rs_transport *t, int peer)
{
    unsigned char *data[2][COUNT];
    rs_message *messages[2][COUNT];
    for (int k = 0; k < COUNT; k++)
        for (int sends = 0; sends < 2; sends++) {
            /* Receives pair by pair from the end, sends from the start. */
            int message = sends ? k : COUNT - 2 - k / 2 * 2 + k % 2;
            int64_t bytes = size_of(message);
            unsigned char *buffer = malloc((size_t)bytes + 1);
            data[sends][message] = buffer;
            buffer[bytes] = 0x5a;
            for (int64_t at = 0; at < bytes; at++)
                buffer[at] = sends ? byte_of(rank, peer, message, at) : 0;
            rs_status status = sends ? t->send(t->context, peer, label_of(message), buffer, bytes,
                                           &messages[1][message])
                                     : t->receive(t->context, peer, label_of(message), buffer,
                                           bytes, &messages[0][message]);
            CHECK(status == RS_OK);
        }
    int left = 2 * COUNT;
    while (left > 0)
        for (int k = 0; k < 2 * COUNT; k++) {
            rs_message **message = &messages[k % 2][k / 2];
            bool done = false;
            if (*message == NULL)
                continue;
            CHECK(t->test(t->context, *message, &done) == RS_OK);
            if (done) {
                *message = NULL;
                left--;
            }
        }
    for (int k = 0; k < COUNT; k++) {
        int64_t wrong = 0;
        for (int64_t at = 0; at < size_of(k); at++)
            wrong += data[0][k][at] != byte_of(peer, rank, k, at);
        CHECK(wrong == 0);
        CHECK(data[0][k][size_of(k)] == 0x5a);
        free(data[0][k]);
        free(data[1][k]);
    }
}

static void refuses_what_does_not_fit(const rs_transport *t)
{
    static char byte;
    rs_message *messages[RS_TRANSPORT_MESSAGES + 1];
    CHECK(t->largest == 64 * PART);
    CHECK(t->send(t->context, rank, (rs_label){RS_CHANNEL_DATA, 0}, &byte, t->largest + 1,
              &messages[0]) == RS_ERR_UNSUPPORTED);
    /* Receives first, so that each send to oneself is done at once. */
    int half = RS_TRANSPORT_MESSAGES / 2;
    for (int k = 0; k < RS_TRANSPORT_MESSAGES; k++) {
        rs_label label = {RS_CHANNEL_CHECK, 1};
        CHECK((k < half ? t->receive(t->context, rank, label, &byte, 0, &messages[k])
                        : t->send(t->context, rank, label, &byte, 0, &messages[k])) == RS_OK);
    }
    CHECK(t->send(t->context, rank, (rs_label){RS_CHANNEL_CHECK, 1}, &byte, 0,
              &messages[RS_TRANSPORT_MESSAGES]) == RS_ERR_UNSUPPORTED);
    for (int k = 0; k < RS_TRANSPORT_MESSAGES; k++)
        for (bool done = false; !done;)
            CHECK(t->test(t->context, messages[k], &done) == RS_OK);
}

/* The outcome of a phase is one: a failed rank's own, RS_ERR_PEER elsewhere. */
static void agrees(void)
{
    CHECK(rs_mpi_agree(MPI_COMM_WORLD, RS_OK) == RS_OK);
    rs_status mine = rank == ranks - 1 ? RS_ERR_BUDGET : RS_OK;
    rs_status status = rs_mpi_agree(MPI_COMM_WORLD, mine);
    CHECK(status == (mine != RS_OK ? mine : RS_ERR_PEER));
    if (mine == RS_OK)
        CHECK(strstr(rs_error_message(), "not enough room") != NULL);
}

int main(void)
{
    rs_transport transport;
    check_begin();
    CHECK(rs_mpi_transport_init(MPI_COMM_WORLD, PART, &transport) == RS_OK);
    for (int round = 0; round < ranks; round++)
        exchange(&transport, ((round - rank) % ranks + ranks) % ranks);
    refuses_what_does_not_fit(&transport);
    agrees();
    rs_mpi_transport_fini(&transport);
    return check_end("all messages whole");
}
