/*
 * The supervisor's part in a ferry: a third job, one process for each host, that carries what
 * changes host when a new world takes over (train/ferry.c).
 *
 * 1. It is started when the new world has planned, if anything changes host; then the arenas that
 *    it fills are there. The new world counts as ready when both are.
 * 2. Both are told to pull with the same word. When the ferry has carried and let go of the arenas,
 *    the new world is told to verify.
 * 3. A ferry that fails, dies, is silent for too long, or is not ready in time, ends the change:
 *    the new world is given up, and the old one trains on. What it wrote goes with the new world's
 *    arenas, which are not deleted before the ferry has gone.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/subject.h"
#include "cli/supervisor.h"
#include "train/nodes.h"

#define LEAVE_SECONDS 5 /* a ferry that has carried, or sleeps, has to end */

/* ---- where ranks are ---- */

rs_status ferry_hosts(const supervisor *s, const int *places, int ranks, int **out)
{
    int size = rs_nodes_size(s->options);
    int *hosts = rs_calloc((size_t)ranks, sizeof *hosts);
    if (hosts == NULL)
        return rs_error_memory((size_t)ranks * sizeof *hosts);
    for (int r = 0; r < ranks; r++)
        hosts[r] = size > 0 ? r / size : places != NULL ? places[r] : 0;
    *out = hosts;
    return RS_OK;
}

/* True if `list` has the number already. */
static bool has_number(const json_t *list, json_int_t number)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == number)
            return true;
    return false;
}

/* The least number of the list above `above`, or `best` if that is less. */
static json_int_t next_number(const json_t *list, json_int_t above, json_int_t best)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t number = json_integer_value(json_array_get(list, i));
        if (number > above && number < best)
            best = number;
    }
    return best;
}

/* The hosts of both worlds, each once, ascending. */
static json_t *find_hosts(const world *w)
{
    json_t *list = json_array();
    for (json_int_t last = -1;;) {
        json_int_t next = next_number(json_object_get(w->from, "hosts"), last, (json_int_t)INT_MAX);
        next = next_number(json_object_get(w->from, "hosts_now"), last, next);
        if (next == INT_MAX)
            return list;
        json_array_append_new(list, json_integer(next));
        last = next;
    }
}

/* True if a host of the old world has no rank of the new one: nobody there could sum its memory. */
static bool is_emptied(const world *w)
{
    const json_t *before = json_object_get(w->from, "hosts");
    const json_t *now = json_object_get(w->from, "hosts_now");
    for (size_t i = 0; i < json_array_size(before); i++)
        if (!has_number(now, json_integer_value(json_array_get(before, i))))
            return true;
    return false;
}

/* ---- telling ---- */

static void note(const supervisor *s, const char *stage, const json_t *word)
{
    const world *f = s->ferry;
    json_t *event = json_pack("{s:s,s:i,s:i,s:i,s:s,s:f}", "event", "ferry", "ferry", f->number,
        "world", f->of, "processes", f->ranks, "stage", stage, "seconds", cli_now() - f->begun);
    if (word != NULL) {
        json_object_set(event, "bytes", json_object_get(word, "bytes"));
        json_object_set(event, "carry", json_object_get(word, "seconds"));
    }
    change_write(s, event);
}

/* ---- its life ---- */

/* Each process on the host that it stands for. */
static rs_status place(const supervisor *s, world *f)
{
    if (s->fleet->count == 0)
        return RS_OK;
    if (rs_nodes_size(s->options) > 0)
        return fleet_place(s->fleet, f->ranks, &f->places);
    f->places = rs_calloc((size_t)f->ranks, sizeof *f->places);
    if (f->places == NULL)
        return rs_error_memory((size_t)f->ranks * sizeof *f->places);
    for (int p = 0; p < f->ranks; p++)
        f->places[p] = (int)json_integer_value(json_array_get(f->stands, (size_t)p));
    return RS_OK;
}

void ferry_begin(supervisor *s, int64_t bytes)
{
    world *of = s->other;
    if (bytes == 0 && !(s->handover.alone && is_emptied(of)))
        return;
    world *f = rs_calloc(1, sizeof *f);
    if (f == NULL) {
        change_give_up(s, "there is no memory for a ferry");
        return;
    }
    f->number = ++s->numbers;
    f->ferry = true;
    f->of = of->number;
    f->from = json_incref(of->from);
    f->stands = find_hosts(of);
    f->ranks = (int)json_array_size(f->stands);
    f->pipes[0] = f->pipes[1] = -1;
    /* Supposed hosts are this one's, or wherever there are slots. */
    rs_status status = place(s, f);
    if (status == RS_OK)
        status =
            world_start(f, s->launch, &s->fleet->file, rs_listener_address(s->fleet->listener));
    if (status != RS_OK) {
        world_fini(f);
        free(f);
        change_give_up(s, rs_error_message());
        return;
    }
    s->ferry = f;
    note(s, "started", NULL);
}

bool ferry_is_ready(const supervisor *s)
{
    return s->ferry == NULL || s->ferry->stage == WORLD_READY;
}

void ferry_end(supervisor *s)
{
    world *f = s->ferry;
    if (f == NULL || f->stage == WORLD_LEAVES)
        return;
    bool sleeps = f->stage == WORLD_READY;
    f->stage = WORLD_LEAVES;
    f->deadline = cli_now() + LEAVE_SECONDS;
    json_t *word = json_pack("{s:s}", "do", "exit");
    if (!sleeps || world_tell_all(f, word) != RS_OK)
        world_force(f);
    json_decref(word);
}

void ferry_pull(supervisor *s)
{
    world *f = s->ferry;
    json_object_set_new(s->pull, "ferry", json_boolean(f != NULL));
    if (f == NULL)
        return;
    f->stage = WORLD_PULLS;
    world_be_equal(f);
    rs_status status = world_tell_all(f, s->pull);
    (void)status; /* it is found dead then */
    note(s, "carries", NULL);
}

static void welcome(supervisor *s, world_host *host)
{
    const world *of = s->other;
    json_t *word = json_pack("{s:s,s:i,s:i,s:s,s:i,s:O,s:O}", "do", "join", "world",
        s->ferry->number, "generation", of->generation, "layout", of->layout, "ranks", of->ranks,
        "from", s->ferry->from, "stands", s->ferry->stands);
    if (word != NULL && rs_link_send(host->link, word) == RS_OK && host->rank == 0)
        s->ferry->stage = WORLD_BUILDS;
    json_decref(word);
}

static void take_carried(supervisor *s, const json_t *word)
{
    world *f = s->ferry;
    note(s, "carried", word);
    f->stage = WORLD_LEAVES;
    f->deadline = cli_now() + LEAVE_SECONDS;
    json_t *verify = json_pack("{s:s}", "do", "verify");
    if (json_is_array(json_object_get(word, "sums")))
        json_object_set(verify, "sums", json_object_get(word, "sums"));
    rs_status status = world_tell_all(s->other, verify);
    (void)status; /* it is found dead then */
    json_decref(verify);
}

void ferry_word(supervisor *s, world_host *host, const json_t *word)
{
    const char *what = cli_text_of(word, "say");
    world *f = s->ferry;
    if (f->stage == WORLD_LEAVES || s->other == NULL)
        return;
    if (strcmp(what, "hello") == 0) {
        world_host_hello(host, word);
        welcome(s, host);
    } else if (strcmp(what, "ready") == 0 && f->stage == WORLD_BUILDS) {
        f->stage = WORLD_READY;
        note(s, "ready", NULL);
        if (s->other->stage == WORLD_READY)
            change_event(s, RS_HANDOVER_READY);
    } else if (strcmp(what, "carried") == 0 && f->stage == WORLD_PULLS) {
        take_carried(s, word);
    } else if (strcmp(what, "failed") == 0) {
        char why[1000];
        snprintf(why, sizeof why, "the ferry between hosts: %s", cli_text_of(word, "message"));
        change_give_up(s, why);
    }
}

/* ---- what the clock brings ---- */

static void find_silence(supervisor *s)
{
    world *f = s->ferry;
    for (int h = 0; h < f->host_count && f->stage != WORLD_LEAVES; h++) {
        const world_host *host = &f->hosts[h];
        double silent = supervisor_silence(s, host);
        if (host->age > silent)
            silent = host->age;
        if (!supervisor_is_silent(s, host, silent))
            continue;
        char why[256];
        snprintf(why, sizeof why,
            "the ferry between hosts: a process on %s has shown no sign of life for %.0f s",
            host->name, silent);
        change_give_up(s, why);
    }
}

static void describe_death(const world *f, char *text, size_t size)
{
    const noise_death *death = &f->streams[1].death;
    if (death->signal == 0)
        death = &f->streams[0].death;
    if (death->signal > 0)
        snprintf(text, size, "the ferry between hosts: a process was killed by signal %d (%s)",
            death->signal, strsignal(death->signal));
    else if (WIFSIGNALED(f->status))
        snprintf(text, size, "the ferry between hosts: its launcher was killed by signal %d (%s)",
            WTERMSIG(f->status), strsignal(WTERMSIG(f->status)));
    else
        snprintf(text, size, "the ferry between hosts ended before it had carried anything");
}

void ferry_tend(supervisor *s)
{
    world *f = s->ferry;
    char why[256];
    if (f == NULL)
        return;
    find_silence(s);
    world_tend(f);
    if (!world_is_gone(f))
        return;
    bool lost = f->stage != WORLD_LEAVES;
    note(s, lost ? "died" : "gone", NULL);
    describe_death(f, why, sizeof why);
    s->ferry = NULL;
    supervisor_forget(s, f);
    world_fini(f);
    free(f);
    if (lost)
        change_give_up(s, why);
}
