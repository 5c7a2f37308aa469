/*
 * Streams between supervisor and worlds: messages arrive whole and in order, whatever their size; a
 * peer without the secret is told nothing; what is no message ends the stream and nothing else.
 * And the board: ranks are seen to live, and sleep until they are woken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "elastic/board.h"
#include "elastic/link.h"

static uint8_t secret[RS_SECRET];
static char folder[64];

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/rs-link-XXXXXX");
    return mkdtemp(folder) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(folder);
}

static char *path_of(const char *name, char *path)
{
    snprintf(path, 128, "%s/%s", folder, name);
    return path;
}

/* Connects in a thread, since both ends have to speak. */
typedef struct caller {
    const char *address;
    uint8_t secret[RS_SECRET];
    rs_link *link;
    rs_status status;
    pthread_t thread;
} caller;

static void *call(void *context)
{
    caller *c = context;
    c->status = rs_link_connect(c->address, c->secret, 5, &c->link);
    return NULL;
}

/* Both ends of a new link; with a wrong secret, neither. */
static void meet(rs_listener *listener, bool right, rs_link **ours, rs_link **theirs)
{
    caller c = {.address = rs_listener_address(listener)};
    json_t *word = NULL;
    memcpy(c.secret, secret, RS_SECRET);
    c.secret[3] ^= right ? 0 : 1;
    pthread_create(&c.thread, NULL, call, &c);
    rs_link *link = NULL;
    while (link == NULL)
        assert_int_equal(rs_listener_accept(listener, &link), RS_OK);
    rs_status status = RS_OK;
    for (int i = 0; i < 100 && status == RS_OK && !rs_link_is_open(link); i++)
        status = rs_link_receive(link, 0.05, &word);
    assert_null(word);
    assert_int_equal(rs_link_is_open(link), right);
    if (!right) {
        assert_int_equal(status, RS_ERR_PEER);
        rs_link_close(link);
        link = NULL;
    }
    pthread_join(c.thread, NULL);
    assert_int_equal(c.status, right ? RS_OK : RS_ERR_PEER);
    *ours = link;
    *theirs = c.link;
}

static rs_listener *listen_here(const char *host)
{
    char path[128], name[64];
    rs_listener *listener;
    assert_int_equal(rs_secret_make(path_of("secret", path), secret), RS_OK);
    unlink(path);
    snprintf(name, sizeof name, "rs-test-%ld", (long)getpid());
    assert_int_equal(rs_listener_open(name, host, secret, &listener), RS_OK);
    return listener;
}

static void expect_word(rs_link *link, int number, size_t length)
{
    json_t *word;
    assert_int_equal(rs_link_receive(link, 5, &word), RS_OK);
    assert_non_null(word);
    assert_int_equal(json_integer_value(json_object_get(word, "number")), number);
    assert_int_equal(json_string_length(json_object_get(word, "text")), length);
    json_decref(word);
}

static rs_status send_word(rs_link *link, int number, size_t length)
{
    char *text = calloc(length + 1, 1);
    memset(text, 'x', length);
    json_t *word = json_pack("{s:i,s:s}", "number", number, "text", text);
    rs_status status = rs_link_send(link, word);
    json_decref(word);
    free(text);
    return status;
}

static void talk(rs_listener *listener)
{
    rs_link *ours, *theirs;
    json_t *word;
    meet(listener, true, &ours, &theirs);
    assert_int_equal(rs_link_receive(ours, 0, &word), RS_OK);
    assert_null(word);
    for (int i = 0; i < 50; i++)
        assert_int_equal(send_word(theirs, i, (size_t)i * 37), RS_OK);
    for (int i = 0; i < 50; i++)
        expect_word(ours, i, (size_t)i * 37);
    assert_int_equal(send_word(ours, 7, 100000), RS_OK);
    expect_word(theirs, 7, 100000);
    rs_link_close(theirs);
    assert_int_equal(rs_link_receive(ours, 5, &word), RS_ERR_PEER);
    assert_int_equal(rs_link_receive(ours, 5, &word), RS_ERR_PEER);
    rs_link_close(ours);
}

static void both_ways(void **state)
{
    (void)state;
    rs_listener *listener = listen_here(NULL), *second;
    char name[64];
    talk(listener);
    snprintf(name, sizeof name, "rs-test-%ld", (long)getpid());
    assert_int_equal(rs_listener_open(name, NULL, secret, &second), RS_ERR_EXISTS);
    rs_listener_close(listener);
    rs_link *link;
    assert_int_equal(rs_link_connect("unix:rs-test-nobody", secret, 1, &link), RS_ERR_PEER);
    assert_int_equal(rs_link_connect("carrier pigeon", secret, 1, &link), RS_ERR_ARGUMENT);
}

/* A supervisor that is busy is there, though it has taken none of those that wait. */
static void nobody_listens(void **state)
{
    (void)state;
    rs_listener *listener = listen_here(NULL);
    char address[RS_LINK_ADDRESS];
    snprintf(address, sizeof address, "%s", rs_listener_address(listener));
    int waiting[256];
    for (int i = 0; i < 256; i++) { /* more than wait in its queue */
        struct sockaddr_un to = {.sun_family = AF_UNIX};
        memcpy(to.sun_path + 1, address + 5, strlen(address + 5));
        socklen_t length =
            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(address + 5));
        waiting[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        assert_true(waiting[i] >= 0);
        int code = connect(waiting[i], (const struct sockaddr *)&to, length);
        assert_true(code == 0 || errno == EAGAIN);
    }
    assert_false(rs_link_is_deaf(address));
    for (int i = 0; i < 256; i++)
        close(waiting[i]);
    assert_false(rs_link_is_deaf(address));
    rs_listener_close(listener);
    assert_true(rs_link_is_deaf(address));
    assert_false(rs_link_is_deaf("tcp:127.0.0.1:1")); /* it is not asked */
}

static void over_tcp(void **state)
{
    (void)state;
    rs_listener *listener = listen_here("127.0.0.1");
    assert_int_equal(strncmp(rs_listener_address(listener), "tcp:127.0.0.1:", 14), 0);
    talk(listener);
    rs_listener_close(listener);
}

static void the_secret_counts(void **state)
{
    (void)state;
    rs_listener *listener = listen_here(NULL);
    rs_link *ours, *theirs;
    meet(listener, false, &ours, &theirs);
    meet(listener, true, &ours, &theirs);
    rs_link_close(ours);
    rs_link_close(theirs);
    rs_listener_close(listener);
    /* The other way round: who listens does not know it. */
    listener = listen_here(NULL);
    secret[0] ^= 1;
    caller c = {.address = rs_listener_address(listener)};
    memcpy(c.secret, secret, RS_SECRET);
    pthread_create(&c.thread, NULL, call, &c);
    rs_link *link = NULL;
    json_t *word;
    while (link == NULL)
        assert_int_equal(rs_listener_accept(listener, &link), RS_OK);
    while (rs_link_receive(link, 0.1, &word) == RS_OK)
        assert_null(word);
    rs_link_close(link);
    pthread_join(c.thread, NULL);
    assert_int_equal(c.status, RS_ERR_PEER);
    rs_listener_close(listener);
}

static void the_secret_is_a_secret(void **state)
{
    (void)state;
    char path[128];
    uint8_t made[RS_SECRET], read[RS_SECRET];
    struct stat about;
    path_of("secret", path);
    assert_int_equal(rs_secret_read(path, read), RS_ERR_NOT_FOUND);
    assert_int_equal(rs_secret_make(path, made), RS_OK);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(rs_secret_read(path, read), RS_OK);
    assert_memory_equal(made, read, RS_SECRET);
    assert_int_equal(rs_secret_make(path, read), RS_OK);
    assert_memory_not_equal(made, read, RS_SECRET);
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(rs_secret_read(path, read), RS_ERR_MISMATCH);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 5), 0);
    assert_int_equal(rs_secret_read(path, read), RS_ERR_MALFORMED);
    assert_int_equal(unlink(path), 0);
}

/* Bytes that are no message, from a peer that has proved itself. */
static void no_message(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t count;
    } rows[] = {{"\xff\xff\xff\xff", 4}, {"\0\0\0\2[]", 6}, {"\0\0\0\3{a}", 7}, {"\0\0\0\0", 4}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_listener *listener = listen_here(NULL);
        rs_link *ours, *theirs;
        json_t *word;
        meet(listener, true, &ours, &theirs);
        assert_int_equal(
            send(rs_link_fd(theirs), rows[i].bytes, rows[i].count, 0), (ssize_t)rows[i].count);
        assert_int_equal(rs_link_receive(ours, 5, &word), RS_ERR_MALFORMED);
        assert_int_equal(rs_link_receive(ours, 5, &word), RS_ERR_PEER);
        rs_link_close(ours);
        rs_link_close(theirs);
        rs_listener_close(listener);
    }
}

/* ---- the board ---- */

static void *wake(void *board)
{
    struct timespec nap = {0, 50000000};
    nanosleep(&nap, NULL);
    rs_board_post(board);
    return NULL;
}

static void on_the_board(void **state)
{
    (void)state;
    char path[128];
    rs_board *board, *other;
    pthread_t thread;
    path_of("board", path);
    assert_int_equal(rs_board_open(path, 3, &board), RS_OK);
    assert_int_equal(rs_board_open(path, 3, &other), RS_OK);
    assert_true(rs_board_age(other, 1) < 0);
    assert_int_equal(rs_board_process(other, 1), 0);
    rs_board_beat(board, 1);
    assert_int_equal(rs_board_process(other, 1), getpid());
    struct timespec nap = {0, 30000000};
    nanosleep(&nap, NULL);
    double age = rs_board_age(other, 1);
    assert_true(age >= 0.03 && age < 5);
    rs_board_beat(board, 1);
    assert_true(rs_board_age(other, 1) < age);

    uint32_t seen = rs_board_word(other);
    assert_false(rs_board_wait(other, seen, 0.02));
    pthread_create(&thread, NULL, wake, board);
    assert_true(rs_board_wait(other, seen, 10));
    pthread_join(thread, NULL);
    assert_true(rs_board_wait(other, seen, 0)); /* it has changed already */
    rs_board_close(board);
    rs_board_close(other);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rs_board_open("/nowhere/board", 3, &board), RS_ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways),
        cmocka_unit_test(nobody_listens),
        cmocka_unit_test(over_tcp),
        cmocka_unit_test(the_secret_counts),
        cmocka_unit_test(the_secret_is_a_secret),
        cmocka_unit_test(no_message),
        cmocka_unit_test(on_the_board),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
