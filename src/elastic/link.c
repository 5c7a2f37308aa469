/*
 * Links: framing, and proving both ends.
 *
 * A message is four bytes of length, highest first, and so many bytes of JSON. Before the first
 * message: the accepting end sends a nonce; the connecting end answers with a nonce of its own and
 * the HMAC of both; the accepting end with the HMAC of both the other way round. Who cannot
 * prove itself is told nothing and gets nothing but a random number.
 *
 * 1. The accepting end never waits for a peer: what has come so far is kept, and looked at again
 *    when more comes.
 * 2. A send is whole or the link is gone: a lock keeps threads apart, a time limit ends a send to a
 *    peer that does not read.
 */
#include "elastic/link.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

#define NONCE 32
#define PROOF 32
#define SEND_SECONDS 10

typedef enum stage { AWAITS_PROOF, OPEN, GONE } stage;

struct rs_link {
    int fd;
    stage stage;
    uint8_t secret[RS_SECRET];
    uint8_t nonce[NONCE]; /* this end's */
    char *bytes;          /* received, not yet handed out */
    size_t count;
    size_t capacity;
    pthread_mutex_t sending;
};

struct rs_listener {
    int fd;
    uint8_t secret[RS_SECRET];
    char address[RS_LINK_ADDRESS];
};

/* ---- the secret ---- */

static rs_status fill_random(uint8_t *bytes, size_t count)
{
    while (count > 0) {
        ssize_t n = getrandom(bytes, count, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return rs_error_errno(errno, "no random bytes");
        bytes += n;
        count -= (size_t)n;
    }
    return RS_OK;
}

rs_status rs_secret_make(const char *path, uint8_t secret[RS_SECRET])
{
    RS_TRY(fill_random(secret, RS_SECRET));
    if (unlink(path) != 0 && errno != ENOENT)
        return rs_error_errno(errno, "cannot replace %s", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return rs_error_errno(errno, "cannot create %s", path);
    rs_status status = RS_OK;
    ssize_t n = write(fd, secret, RS_SECRET);
    if (n != RS_SECRET)
        status = rs_error_errno(n < 0 ? errno : ENOSPC, "cannot write %s", path);
    if (close(fd) != 0 && status == RS_OK)
        status = rs_error_errno(errno, "cannot write %s", path);
    return status;
}

rs_status rs_secret_read(const char *path, uint8_t secret[RS_SECRET])
{
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return rs_error_errno(errno, "cannot open %s", path);
    rs_status status = RS_OK;
    if (fstat(fd, &about) != 0)
        status = rs_error_errno(errno, "%s", path);
    else if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0 || about.st_uid != geteuid())
        status = rs_error_set(RS_ERR_MISMATCH,
            "%s: wanted a file that its user alone can read, found mode %03o of user %u", path,
            about.st_mode & 0777, (unsigned)about.st_uid);
    else if (about.st_size != RS_SECRET || read(fd, secret, RS_SECRET) != RS_SECRET)
        status = rs_error_set(RS_ERR_MALFORMED, "%s: wanted %d bytes, found %lld", path, RS_SECRET,
            (long long)about.st_size);
    close(fd);
    return status;
}

static void prove(const uint8_t secret[RS_SECRET], char who, const uint8_t *first,
    const uint8_t *second, uint8_t proof[PROOF])
{
    uint8_t text[1 + 2 * NONCE];
    unsigned length = PROOF;
    text[0] = (uint8_t)who;
    memcpy(text + 1, first, NONCE);
    memcpy(text + 1 + NONCE, second, NONCE);
    HMAC(EVP_sha256(), secret, RS_SECRET, text, sizeof text, proof, &length);
}

/* ---- listening ---- */

static socklen_t abstract_address(const char *name, struct sockaddr_un *address)
{
    size_t length = strnlen(name, sizeof address->sun_path - 1);
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    memcpy(address->sun_path + 1, name, length);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static rs_status listen_unix(rs_listener *l, const char *name)
{
    struct sockaddr_un address;
    socklen_t length = abstract_address(name, &address);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return rs_error_errno(errno, "cannot make a socket");
    if (bind(l->fd, (const struct sockaddr *)&address, length) != 0)
        return rs_error_errno(
            errno == EADDRINUSE ? EEXIST : errno, "cannot listen at the address %s", name);
    snprintf(l->address, sizeof l->address, "unix:%s", name);
    return RS_OK;
}

static rs_status listen_tcp(rs_listener *l, const char *host)
{
    struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    socklen_t length = sizeof address;
    int off = 0;
    l->fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return rs_error_errno(errno, "cannot make a socket");
    setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(l->fd, (const struct sockaddr *)&address, length) != 0 ||
        getsockname(l->fd, (struct sockaddr *)&address, &length) != 0)
        return rs_error_errno(errno, "cannot listen at a TCP port");
    snprintf(l->address, sizeof l->address, "tcp:%s:%u", host, ntohs(address.sin6_port));
    return RS_OK;
}

rs_status rs_listener_open(
    const char *name, const char *host, const uint8_t secret[RS_SECRET], rs_listener **out)
{
    rs_listener *l = rs_calloc(1, sizeof *l);
    if (l == NULL)
        return rs_error_memory(sizeof *l);
    l->fd = -1;
    memcpy(l->secret, secret, RS_SECRET);
    rs_status status = host != NULL ? listen_tcp(l, host) : listen_unix(l, name);
    if (status == RS_OK && listen(l->fd, 64) != 0)
        status = rs_error_errno(errno, "cannot listen at %s", l->address);
    if (status == RS_OK)
        *out = l;
    else
        rs_listener_close(l);
    return status;
}

void rs_listener_close(rs_listener *l)
{
    if (l == NULL)
        return;
    if (l->fd >= 0)
        close(l->fd);
    free(l);
}

int rs_listener_fd(const rs_listener *l)
{
    return l->fd;
}

const char *rs_listener_address(const rs_listener *l)
{
    return l->address;
}

/* ---- a link's bytes ---- */

static rs_status make_link(int fd, const uint8_t secret[RS_SECRET], rs_link **out)
{
    struct timeval limit = {.tv_sec = SEND_SECONDS};
    rs_link *link = rs_calloc(1, sizeof *link);
    if (link == NULL)
        return rs_error_memory(sizeof *link);
    link->fd = fd;
    memcpy(link->secret, secret, RS_SECRET);
    pthread_mutex_init(&link->sending, NULL);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    rs_status status = fill_random(link->nonce, NONCE);
    if (status == RS_OK) {
        *out = link;
        return RS_OK;
    }
    link->fd = -1; /* stays the caller's */
    rs_link_close(link);
    return status;
}

static rs_status lost(rs_link *link, const char *why)
{
    link->stage = GONE;
    return rs_error_set(RS_ERR_PEER, "the stream to the other end %s", why);
}

static rs_status send_bytes(rs_link *link, const void *data, size_t count)
{
    const char *at = data;
    while (count > 0) {
        ssize_t n = send(link->fd, at, count, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return lost(link, n < 0 && errno != EAGAIN ? "is broken" : "is not read");
        at += n;
        count -= (size_t)n;
    }
    return RS_OK;
}

/* Reads what is there; waits for some at most `seconds`. RS_OK without any: none came. */
static rs_status take_bytes(rs_link *link, double seconds)
{
    struct pollfd fd = {.fd = link->fd, .events = POLLIN};
    int limit = seconds < 0 ? -1 : (int)(seconds * 1000);
    int ready = poll(&fd, 1, limit);
    if (ready <= 0)
        return ready == 0 || errno == EINTR ? RS_OK : lost(link, "cannot be waited for");
    RS_TRY(rs_array_reserve((void **)&link->bytes, &link->capacity, link->count + 65536, 1));
    ssize_t n = recv(link->fd, link->bytes + link->count, 65536, MSG_DONTWAIT);
    if (n == 0)
        return lost(link, "has ended");
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? RS_OK : lost(link, "is broken");
    link->count += (size_t)n;
    return RS_OK;
}

static void drop_bytes(rs_link *link, size_t count)
{
    link->count -= count;
    memmove(link->bytes, link->bytes + count, link->count);
}

rs_status rs_listener_accept(rs_listener *l, rs_link **out)
{
    *out = NULL;
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return RS_OK; /* it has gone again */
    rs_link *link = NULL;
    rs_status status = make_link(fd, l->secret, &link);
    if (status != RS_OK) {
        close(fd);
        return status;
    }
    if (send_bytes(link, link->nonce, NONCE) != RS_OK) {
        rs_link_close(link);
        return RS_OK;
    }
    *out = link;
    return RS_OK;
}

/* The accepting end: looks at the peer's proof, if it is all there. */
static rs_status check_proof(rs_link *link)
{
    uint8_t wanted[PROOF], own[PROOF];
    if (link->count < NONCE + PROOF)
        return RS_OK;
    const uint8_t *theirs = (const uint8_t *)link->bytes;
    prove(link->secret, 'c', link->nonce, theirs, wanted);
    uint8_t differs = 0;
    for (size_t i = 0; i < PROOF; i++)
        differs |= wanted[i] ^ theirs[NONCE + i];
    if (differs != 0)
        return lost(link, "does not know the job's secret");
    prove(link->secret, 's', theirs, link->nonce, own);
    drop_bytes(link, NONCE + PROOF);
    RS_TRY(send_bytes(link, own, PROOF));
    link->stage = OPEN;
    return RS_OK;
}

/* ---- connecting ---- */

static int connect_unix(const char *name, int flags)
{
    struct sockaddr_un address;
    socklen_t length = abstract_address(name, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, length) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        fd = -1;
    }
    return fd;
}

static int connect_tcp(const char *place)
{
    char host[RS_LINK_ADDRESS];
    const char *port = strrchr(place, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (port == NULL)
        return -1;
    snprintf(host, sizeof host, "%.*s", (int)(port - place), place);
    if (getaddrinfo(host, port + 1, &hints, &found) != 0)
        return -1;
    int fd = -1;
    for (const struct addrinfo *a = found; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

/* Waits until so many bytes are there. */
static rs_status await(rs_link *link, size_t count, double deadline)
{
    while (link->count < count) {
        double left = deadline - rs_clock_seconds();
        if (left <= 0)
            return lost(link, "has not answered in time");
        RS_TRY(take_bytes(link, left));
    }
    return RS_OK;
}

static rs_status introduce(rs_link *link, double deadline)
{
    uint8_t answer[NONCE + PROOF], theirs[NONCE], wanted[PROOF];
    RS_TRY(await(link, NONCE, deadline));
    memcpy(theirs, link->bytes, NONCE);
    drop_bytes(link, NONCE);
    memcpy(answer, link->nonce, NONCE);
    prove(link->secret, 'c', theirs, link->nonce, answer + NONCE);
    RS_TRY(send_bytes(link, answer, sizeof answer));
    RS_TRY(await(link, PROOF, deadline));
    prove(link->secret, 's', link->nonce, theirs, wanted);
    if (memcmp(wanted, link->bytes, PROOF) != 0)
        return lost(link, "does not know the job's secret");
    drop_bytes(link, PROOF);
    link->stage = OPEN;
    return RS_OK;
}

bool rs_link_is_deaf(const char *address)
{
    if (strncmp(address, "unix:", 5) != 0)
        return false;
    int fd = connect_unix(address + 5, SOCK_NONBLOCK); /* many that wait are no refusal */
    if (fd < 0)
        return errno == ECONNREFUSED;
    close(fd);
    return false;
}

rs_status rs_link_connect(
    const char *address, const uint8_t secret[RS_SECRET], double seconds, rs_link **out)
{
    int fd = -1;
    if (strncmp(address, "unix:", 5) == 0)
        fd = connect_unix(address + 5, 0);
    else if (strncmp(address, "tcp:", 4) == 0)
        fd = connect_tcp(address + 4);
    else
        return rs_error_set(
            RS_ERR_ARGUMENT, "address '%s': wanted unix:NAME or tcp:HOST:PORT", address);
    if (fd < 0)
        return rs_error_set(RS_ERR_PEER, "nobody answers at %s: %s", address, strerror(errno));
    rs_link *link = NULL;
    rs_status status = make_link(fd, secret, &link);
    if (status != RS_OK) {
        close(fd);
        return status;
    }
    status = introduce(link, rs_clock_seconds() + seconds);
    if (status == RS_OK)
        *out = link;
    else
        rs_link_close(link);
    return status;
}

void rs_link_close(rs_link *link)
{
    if (link == NULL)
        return;
    if (link->fd >= 0)
        close(link->fd);
    pthread_mutex_destroy(&link->sending);
    free(link->bytes);
    free(link);
}

int rs_link_fd(const rs_link *link)
{
    return link->fd;
}

bool rs_link_is_open(const rs_link *link)
{
    return link->stage == OPEN;
}

/* ---- messages ---- */

rs_status rs_link_send(rs_link *link, const json_t *message)
{
    char *text = json_dumps(message, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text == NULL)
        return rs_error_memory(1);
    size_t length = strlen(text);
    uint8_t head[4] = {
        (uint8_t)(length >> 24), (uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length};
    rs_status status;
    pthread_mutex_lock(&link->sending);
    if (link->stage != OPEN)
        status = rs_error_set(RS_ERR_PEER, "the stream to the other end is not open");
    else if (length > RS_LINK_MESSAGE)
        status = rs_error_set(RS_ERR_ARGUMENT, "a message of %zu bytes, and %d are the most",
            length, RS_LINK_MESSAGE);
    else
        status = send_bytes(link, head, sizeof head);
    if (status == RS_OK)
        status = send_bytes(link, text, length);
    pthread_mutex_unlock(&link->sending);
    free(text);
    return status;
}

/* Hands out the first message, if all of it is there. */
static rs_status parse(rs_link *link, json_t **out)
{
    const uint8_t *head = (const uint8_t *)link->bytes;
    if (link->count < 4)
        return RS_OK;
    size_t length = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
    if (length > RS_LINK_MESSAGE) {
        link->stage = GONE;
        return rs_error_set(RS_ERR_MALFORMED, "a message of %zu bytes, and %d are the most", length,
            RS_LINK_MESSAGE);
    }
    if (link->count < 4 + length)
        return RS_OK;
    json_error_t error;
    json_t *message = json_loadb(link->bytes + 4, length, JSON_REJECT_DUPLICATES, &error);
    drop_bytes(link, 4 + length);
    if (!json_is_object(message)) {
        json_decref(message);
        link->stage = GONE;
        return rs_error_set(RS_ERR_MALFORMED, "a message that is no JSON object: %s", error.text);
    }
    *out = message;
    return RS_OK;
}

rs_status rs_link_receive(rs_link *link, double seconds, json_t **out)
{
    double deadline = rs_clock_seconds() + seconds;
    bool looked = false;
    *out = NULL;
    for (;;) {
        if (link->stage == GONE)
            return rs_error_set(RS_ERR_PEER, "the stream to the other end is closed");
        if (link->stage == AWAITS_PROOF)
            RS_TRY(check_proof(link));
        if (link->stage == OPEN)
            RS_TRY(parse(link, out));
        double left = seconds < 0 ? -1 : deadline - rs_clock_seconds();
        if (*out != NULL || (seconds >= 0 && left <= 0 && looked))
            return RS_OK;
        looked = true;
        RS_TRY(take_bytes(link, seconds < 0 ? -1 : left > 0 ? left : 0));
    }
}
