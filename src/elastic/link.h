/*
 * Streams between a job's supervisor and the hosts of its worlds.
 *
 * A link carries messages, JSON objects, in order, both ways. It is a Unix socket (in the abstract
 * namespace: nothing is left behind in a file system) or TCP. Who connects must know the job's
 * secret, 32 random bytes in a file that only the job's user can read, and so must who accepts:
 * each answers the other's nonce with an HMAC-SHA-256.
 *
 * Usual order: the supervisor rs_secret_make, rs_listener_open, hands rs_listener_address to its
 * workers, rs_listener_accept when rs_listener_fd is readable, rs_link_receive when rs_link_fd is.
 * A worker: rs_secret_read, rs_link_connect, rs_link_send, rs_link_receive. Sending may be done by
 * several threads of a process, receiving by one. All functions are local.
 */
#ifndef RS_ELASTIC_LINK_H
#define RS_ELASTIC_LINK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "reshard/status.h"

#define RS_SECRET 32
#define RS_LINK_ADDRESS 320
#define RS_LINK_MESSAGE (16 << 20) /* bytes of the largest message */

typedef struct rs_listener rs_listener;
typedef struct rs_link rs_link;

/* Makes a secret and writes it to `path`, readable by this user alone; replaces an old one. */
rs_status rs_secret_make(const char *path, uint8_t secret[RS_SECRET]) RS_MUST_CHECK;
/* RS_ERR_MISMATCH: others can read the file. RS_ERR_MALFORMED. */
rs_status rs_secret_read(const char *path, uint8_t secret[RS_SECRET]) RS_MUST_CHECK;

/* Listens at the abstract Unix address `name`, or, with `host`, at a free TCP port of this host,
 * under which others reach it as `host`. The caller owns `*out`. RS_ERR_EXISTS. */
rs_status rs_listener_open(const char *name, const char *host, const uint8_t secret[RS_SECRET],
    rs_listener **out) RS_MUST_CHECK;
void rs_listener_close(rs_listener *listener);
int rs_listener_fd(const rs_listener *listener);
/* "unix:NAME" or "tcp:HOST:PORT". Borrowed. */
const char *rs_listener_address(const rs_listener *listener);

/* Takes the next connection, if there is one (`*out` NULL: there is none). Its first messages are
 * waited for by rs_link_receive, which proves the peer first. */
rs_status rs_listener_accept(rs_listener *listener, rs_link **out) RS_MUST_CHECK;

/* Connects and proves both ends, within `seconds`. RS_ERR_PEER: nobody there, or it does not know
 * the secret. */
rs_status rs_link_connect(const char *address, const uint8_t secret[RS_SECRET], double seconds,
    rs_link **out) RS_MUST_CHECK;
/* True if nobody listens at a Unix address (any more), so that its supervisor is gone; of other
 * addresses that is not known. */
bool rs_link_is_deaf(const char *address);
void rs_link_close(rs_link *link);
int rs_link_fd(const rs_link *link);

/* True once the peer has proved itself. */
bool rs_link_is_open(const rs_link *link);

/* RS_ERR_PEER: the link is gone, or takes nothing for ten seconds. */
rs_status rs_link_send(rs_link *link, const json_t *message) RS_MUST_CHECK;

/*
 * The next message, waited for at most `seconds` (0: not at all; below 0: for ever). `*out` is the
 * caller's to json_decref, NULL if none came in time. RS_ERR_PEER: the link has ended, or the peer
 * failed to prove itself. RS_ERR_MALFORMED: what came is no message; the link is of no use then.
 */
rs_status rs_link_receive(rs_link *link, double seconds, json_t **out) RS_MUST_CHECK;

#endif
