/*
 * Membership of a supervised world.
 *
 * A thread of every rank marks the board; that of a leader (a host's lowest rank) also sends a beat
 * with the oldest mark it sees, so that the supervisor learns of a stopped rank from its leader,
 * and of a stopped leader from silence.
 *
 * Another thread of a leader reads its stream: so answers to beats are heard while the rank works,
 * writes to a slow disk or waits for others, and what else is said waits until the rank asks.
 *
 * Sleeping: leaders wait for a word, the others on the board's. What rank 0 was told is then
 * broadcast, so that all ranks have it. Words come one at a time: the supervisor sends the same to
 * every leader, and the next only after rank 0 has answered.
 */
#include "train/member.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "elastic/board.h"
#include "elastic/link.h"
#include "train/comm.h"
#include "train/signals.h"

#define BEAT_MS 250
#define BEATS_PER_WORD 4 /* marks of the board per beat on the stream */
#define JOIN_SECONDS 60
#define LISTEN_SECONDS 0.25 /* between looks whether to go on listening */

struct rs_member {
    MPI_Comm comm;
    MPI_Comm host;
    int rank;
    int local; /* rank on this host */
    int locals;
    rs_board *board;
    rs_link *link; /* leaders */
    rs_member_world world;
    pthread_t beater;
    pthread_t listener;
    bool beating;
    bool listening;
    atomic_bool stop;
    bool moves;   /* the job has other hosts */
    double lease; /* seconds; 0: none is needed */
    pthread_mutex_t lock;
    pthread_cond_t heard; /* a word, or the end of the stream */
    /* under the lock */
    bool orphan;
    json_t *words; /* heard, not yet handed out */
    double lent;   /* when the beat was sent that was answered last */
};

/* ---- beats ---- */

static void be_orphan(rs_member *m)
{
    pthread_mutex_lock(&m->lock);
    m->orphan = true;
    pthread_cond_broadcast(&m->heard);
    pthread_mutex_unlock(&m->lock);
}

static void send_beat(rs_member *m)
{
    double oldest = 0;
    int rank = 0;
    for (int r = 0; r < m->locals; r++) {
        double age = rs_board_age(m->board, r);
        if (age > oldest) {
            oldest = age;
            rank = r;
        }
    }
    json_t *beat = json_pack("{s:s,s:f,s:I,s:f,s:b}", "say", "beat", "age", oldest, "process",
        (json_int_t)rs_board_process(m->board, rank), "sent", rs_clock_seconds(), "signalled",
        rs_signals_caught());
    if (beat != NULL && rs_link_send(m->link, beat) != RS_OK)
        be_orphan(m);
    json_decref(beat);
}

static void *beat(void *context)
{
    rs_member *m = context;
    for (int count = 0; !atomic_load(&m->stop); count++) {
        rs_board_beat(m->board, m->local);
        if (m->link != NULL && count % BEATS_PER_WORD == 0)
            send_beat(m);
        rs_nap(BEAT_MS * 1e-3);
    }
    return NULL;
}

/* Keeps a word for the rank, but for answers to beats. */
static void keep_word(rs_member *m, json_t *word)
{
    pthread_mutex_lock(&m->lock);
    if (rs_member_says(word, "lease")) {
        m->lent = json_number_value(json_object_get(word, "sent"));
        json_decref(word);
    } else if (json_array_append_new(m->words, word) != 0) {
        m->orphan = true; /* no memory: it is as if it had not been said */
    }
    pthread_cond_broadcast(&m->heard);
    pthread_mutex_unlock(&m->lock);
}

static void *listen(void *context)
{
    rs_member *m = context;
    while (!atomic_load(&m->stop)) {
        json_t *word = NULL;
        if (rs_link_receive(m->link, LISTEN_SECONDS, &word) != RS_OK) {
            be_orphan(m);
            return NULL;
        }
        if (word != NULL)
            keep_word(m, word);
    }
    return NULL;
}

static rs_status start(rs_member *m, void *(*run)(void *), pthread_t *thread, bool *started)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return rs_error_errno(error, "cannot start the threads that keep in touch with the "
                                     "supervisor");
    *started = true;
    return RS_OK;
}

static rs_status begin_beating(rs_member *m)
{
    if (m->link != NULL)
        RS_TRY(start(m, listen, &m->listener, &m->listening));
    return start(m, beat, &m->beater, &m->beating);
}

/* ---- joining ---- */

bool rs_member_says(const json_t *word, const char *what)
{
    const char *text = json_string_value(json_object_get(word, "do"));
    return text != NULL && strcmp(text, what) == 0;
}

/* `count` numbers; the caller frees `*out`. */
static rs_status parse_numbers(const json_t *from, const char *key, int count, int **out)
{
    const json_t *numbers = json_object_get(from, key);
    if (count < 0 || json_array_size(numbers) != (size_t)count)
        return rs_error_set(RS_ERR_MALFORMED,
            "the supervisor's word has %zu numbers of %s, wanted %d", json_array_size(numbers), key,
            count);
    *out = rs_calloc((size_t)count, sizeof **out);
    if (*out == NULL)
        return rs_error_memory((size_t)count * sizeof **out);
    for (int i = 0; i < count; i++)
        (*out)[i] = (int)json_integer_value(json_array_get(numbers, (size_t)i));
    return RS_OK;
}

static rs_status parse_origin(const json_t *from, int ranks, rs_origin *out)
{
    const char *layout = json_string_value(json_object_get(from, "layout"));
    if (layout == NULL || strlen(layout) >= sizeof out->layout)
        return rs_error_set(RS_ERR_MALFORMED, "the supervisor's word has no layout to take over");
    memcpy(out->layout, layout, strlen(layout) + 1);
    out->ranks = (int)json_integer_value(json_object_get(from, "ranks"));
    out->generation = (int)json_integer_value(json_object_get(from, "generation"));
    RS_TRY(parse_numbers(from, "kept", ranks, &out->kept));
    return parse_numbers(from, "hosts", out->ranks, &out->hosts);
}

static rs_status parse_world(const json_t *word, rs_member_world *out)
{
    const char *layout = json_string_value(json_object_get(word, "layout"));
    if (!rs_member_says(word, "join") || layout == NULL || strlen(layout) >= sizeof out->layout)
        return rs_error_set(RS_ERR_MALFORMED, "the supervisor's first word is no welcome");
    memcpy(out->layout, layout, strlen(layout) + 1);
    out->number = (int)json_integer_value(json_object_get(word, "world"));
    out->generation = (int)json_integer_value(json_object_get(word, "generation"));
    out->ranks = (int)json_integer_value(json_object_get(word, "ranks"));
    out->scheduled = json_integer_value(json_object_get(word, "scheduled"));
    const json_t *from = json_object_get(word, "from"), *attach = json_object_get(word, "attach");
    const char *former = json_string_value(json_object_get(attach, "layout"));
    out->attach = -1;
    out->goes_back = json_is_true(json_object_get(attach, "checkpoint"));
    if (former != NULL && strlen(former) < sizeof out->attach_layout) {
        memcpy(out->attach_layout, former, strlen(former) + 1);
        out->attach = (int)json_integer_value(json_object_get(attach, "generation"));
        out->attach_step = json_integer_value(json_object_get(attach, "step"));
    }
    const json_t *stands = json_object_get(word, "stands");
    if (stands != NULL)
        RS_TRY(parse_numbers(word, "stands", (int)json_array_size(stands), &out->stands));
    if (from == NULL)
        return RS_OK;
    RS_TRY(parse_numbers(from, "hosts_now", out->ranks, &out->hosts));
    return parse_origin(from, out->ranks, &out->from);
}

static rs_status say_hello(rs_member *m, int world)
{
    char host[128] = "";
    gethostname(host, sizeof host - 1);
    json_t *hello = json_pack("{s:s,s:i,s:i,s:i,s:s}", "say", "hello", "world", world, "rank",
        m->rank, "ranks", m->locals, "host", host);
    if (hello == NULL)
        return rs_error_memory(1);
    rs_status status = rs_link_send(m->link, hello);
    json_decref(hello);
    return status;
}

static rs_status connect_leader(
    rs_member *m, const char *job, const char *address, int world, json_t **welcome)
{
    char path[RS_TRAIN_PATH + 16];
    uint8_t secret[RS_SECRET];
    if (m->local != 0)
        return RS_OK;
    snprintf(path, sizeof path, "%s/secret", job);
    RS_TRY(rs_secret_read(path, secret));
    RS_TRY(rs_link_connect(address, secret, JOIN_SECONDS, &m->link));
    RS_TRY(say_hello(m, world));
    RS_TRY(rs_link_receive(m->link, JOIN_SECONDS, welcome));
    if (*welcome == NULL)
        return rs_error_set(
            RS_ERR_PEER, "the supervisor has not welcomed this world within %d s", JOIN_SECONDS);
    return RS_OK;
}

/* Hands rank 0's word to all ranks. */
static rs_status share(const rs_member *m, json_t **word)
{
    char *text = m->rank == 0 && *word != NULL ? json_dumps(*word, JSON_COMPACT) : NULL;
    int64_t length = text != NULL ? (int64_t)strlen(text) : 0;
    rs_comm_broadcast(m->comm, 0, &length, sizeof length);
    rs_status status = RS_OK;
    if (m->rank != 0) {
        text = rs_calloc((size_t)length + 1, 1);
        if (text == NULL)
            status = rs_error_memory((size_t)length + 1);
    }
    status = rs_comm_agree(m->comm, status);
    if (status == RS_OK) {
        rs_comm_broadcast(m->comm, 0, text, (size_t)length);
        json_decref(*word);
        *word = json_loadb(text != NULL ? text : "", (size_t)length, 0, NULL);
        if (*word == NULL)
            status = rs_error_memory((size_t)length);
        status = rs_comm_agree(m->comm, status);
    }
    free(text);
    return status;
}

rs_status rs_member_join(const char *job, const char *address, int world, const char *board,
    MPI_Comm comm, rs_member **out)
{
    json_t *welcome = NULL;
    rs_status status;
    rs_member *m = rs_calloc(1, sizeof *m);
    if (m == NULL)
        return rs_error_memory(sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->heard, NULL);
    m->words = json_array();
    MPI_Comm_dup(comm, &m->comm);
    MPI_Comm_rank(comm, &m->rank);
    MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, m->rank, MPI_INFO_NULL, &m->host);
    MPI_Comm_rank(m->host, &m->local);
    MPI_Comm_size(m->host, &m->locals);
    RS_TRY_GOTO(rs_comm_agree(comm, m->words != NULL ? RS_OK : rs_error_memory(1)), done);
    RS_TRY_GOTO(rs_comm_agree(comm, rs_board_open(board, m->locals, &m->board)), done);
    rs_board_beat(m->board, m->local);
    RS_TRY_GOTO(rs_comm_agree(comm, connect_leader(m, job, address, world, &welcome)), done);
    RS_TRY_GOTO(share(m, &welcome), done);
    RS_TRY_GOTO(rs_comm_agree(comm, parse_world(welcome, &m->world)), done);
    m->moves = json_is_true(json_object_get(welcome, "moves"));
    m->lease = json_number_value(json_object_get(welcome, "lease"));
    m->lent = rs_clock_seconds();
    RS_TRY_GOTO(rs_comm_agree(comm, begin_beating(m)), done);
done:
    json_decref(welcome);
    if (status == RS_OK)
        *out = m;
    else
        rs_member_leave(m);
    return status;
}

void rs_member_leave(rs_member *m)
{
    if (m == NULL)
        return;
    atomic_store(&m->stop, true);
    if (m->beating)
        pthread_join(m->beater, NULL);
    if (m->listening)
        pthread_join(m->listener, NULL);
    rs_link_close(m->link);
    json_decref(m->words);
    pthread_cond_destroy(&m->heard);
    pthread_mutex_destroy(&m->lock);
    rs_board_close(m->board);
    free(m->world.from.kept);
    free(m->world.from.hosts);
    free(m->world.hosts);
    free(m->world.stands);
    MPI_Comm_free(&m->host);
    MPI_Comm_free(&m->comm);
    free(m);
}

const rs_member_world *rs_member_world_of(const rs_member *m)
{
    return &m->world;
}

bool rs_member_moves_away(const rs_member *m)
{
    return m->moves;
}

bool rs_member_holds(rs_member *m)
{
    pthread_mutex_lock(&m->lock);
    double lent = m->lent;
    pthread_mutex_unlock(&m->lock);
    return m->lease <= 0 || rs_clock_seconds() - lent < m->lease;
}

bool rs_member_is_orphan(rs_member *m)
{
    pthread_mutex_lock(&m->lock);
    bool orphan = m->orphan;
    pthread_mutex_unlock(&m->lock);
    return orphan;
}

/* ---- talking ---- */

rs_status rs_member_tell(rs_member *m, const char *what, json_t *members)
{
    json_t *word = members != NULL ? members : json_object();
    if (word == NULL || json_object_set_new(word, "say", json_string(what)) != 0) {
        json_decref(word);
        return rs_error_memory(1);
    }
    rs_status status = rs_link_send(m->link, word);
    json_decref(word);
    return status;
}

/* The oldest word that was heard, NULL: none; under the lock. */
static json_t *take_word(rs_member *m)
{
    json_t *word = json_incref(json_array_get(m->words, 0));
    if (word != NULL)
        json_array_remove(m->words, 0);
    return word;
}

json_t *rs_member_poll(rs_member *m)
{
    pthread_mutex_lock(&m->lock);
    json_t *word = take_word(m);
    pthread_mutex_unlock(&m->lock);
    return word;
}

static rs_status await_word(rs_member *m, json_t **word)
{
    pthread_mutex_lock(&m->lock);
    while ((*word = take_word(m)) == NULL && !m->orphan)
        pthread_cond_wait(&m->heard, &m->lock);
    pthread_mutex_unlock(&m->lock);
    return *word != NULL ? RS_OK
                         : rs_error_set(RS_ERR_PEER, "the stream to the supervisor has ended");
}

rs_status rs_member_sleep(rs_member *m, json_t **word)
{
    uint32_t seen = rs_board_word(m->board);
    rs_status status = RS_OK;
    *word = NULL;
    /* Nobody may miss the post of a leader that is told at once. */
    MPI_Barrier(m->host);
    if (m->link != NULL) {
        status = await_word(m, word);
        rs_board_post(m->board);
    } else {
        while (!rs_board_wait(m->board, seen, 3600))
            continue;
    }
    status = rs_comm_agree(m->comm, status);
    if (status == RS_OK)
        status = share(m, word);
    if (status != RS_OK) {
        json_decref(*word);
        *word = NULL;
    }
    return status;
}
