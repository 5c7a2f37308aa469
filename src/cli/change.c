/*
 * The supervisor's part in a change of worlds: it does what the table of elastic/handover.h says.
 *
 * Rank 0 of the active world decides what needs another world (it knows layout, space and what is
 * under way) and says "elsewhere"; from there on the supervisor leads. Requests are handed to the
 * active world only while it listens: not from "quiesce" until it goes on or another one trains.
 *
 * Every stage is a line {"event":"world"} of metrics.jsonl with the seconds since the change was
 * asked for.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/subject.h"
#include "cli/supervisor.h"
#include "elastic/assign.h"
#include "reshard/elastic.h"
#include "train/member.h"

#define DEFERRED ((int)(sizeof((supervisor *)0)->deferred / sizeof(rs_control_request)))
#define LEAVE_SECONDS 30 /* the old world's processes have to end */
#define EXIT_SECONDS 3   /* those of a new one that is not wanted, before they are made to */

/* ---- telling people ---- */

static json_t *describe_world(const world *w)
{
    json_t *hosts = json_array();
    for (int h = 0; h < w->host_count; h++)
        json_array_append_new(
            hosts, json_pack("{s:s,s:i}", "host", w->hosts[h].name, "ranks", w->hosts[h].ranks));
    return json_pack("{s:i,s:s,s:s,s:i,s:i,s:o,s:I}", "world", w->number, "stage",
        world_stage_name(w->stage), "layout", w->layout, "ranks", w->ranks, "generation",
        w->generation, "hosts", hosts, "launcher", (json_int_t)w->process);
}

static json_t *describe_hosts(const supervisor *s)
{
    json_t *hosts = json_array();
    for (int h = 0; h < s->fleet->count; h++)
        json_array_append_new(
            hosts, json_pack("{s:s,s:i,s:b,s:i}", "host", s->fleet->hosts[h].name, "slots",
                       s->fleet->file.items[h].slots, "reached", fleet_reaches(s->fleet, h),
                       "ranks", world_ranks_on(s->active, h) + world_ranks_on(s->other, h)));
    return hosts;
}

void change_note_worlds(const supervisor *s)
{
    json_t *worlds = json_array();
    if (s->active != NULL)
        json_array_append_new(worlds, describe_world(s->active));
    if (s->other != NULL)
        json_array_append_new(worlds, describe_world(s->other));
    json_t *root = json_pack("{s:s,s:o,s:o,s:i,s:i}", "change", rs_handover_name(s->handover.state),
        "worlds", worlds, "hosts", describe_hosts(s), "restarts", s->survival.deaths.restarts,
        "lost_slots", s->survival.lost);
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    if (text == NULL || rs_control_replace(s->options->job, "worlds.json", text) != RS_OK)
        fprintf(stderr, "reshard train: worlds.json cannot be written: %s\n", rs_error_message());
    free(text);
    json_decref(root);
}

void change_write(const supervisor *s, json_t *event)
{
    char path[RS_TRAIN_PATH + 16];
    snprintf(path, sizeof path, "%s/metrics.jsonl", s->options->job);
    if (event != NULL)
        json_object_set_new(event, "time", json_real(rs_wall_seconds()));
    char *text = event != NULL ? json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(event);
    size_t length = text != NULL ? strlen(text) : 0;
    if (length > 0)
        text[length] = '\n'; /* in place of the end: one write is one line */
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || length == 0 || write(fd, text, length + 1) != (ssize_t)length + 1)
        fprintf(stderr, "reshard train: %s cannot be written\n", path);
    if (fd >= 0)
        close(fd);
    free(text);
}

void change_note(supervisor *s, const world *w, const char *stage)
{
    change_note_worlds(s);
    change_write(
        s, json_pack("{s:s,s:i,s:s,s:s,s:i,s:i,s:f}", "event", "world", "world", w->number, "stage",
               stage, "layout", w->layout, "ranks", w->ranks, "generation", w->generation,
               "seconds", cli_now() - (s->want.asked > 0 ? s->want.asked : w->begun)));
}

void change_reply(
    supervisor *s, const char *request, const char *state, const char *message, const char *members)
{
    if (request[0] != '\0' &&
        rs_control_answer(s->control, request, state, message, members) != RS_OK)
        fprintf(stderr, "reshard train: a request is not answered: %s\n", rs_error_message());
}

static void answer(supervisor *s, const char *state, const char *message, const char *members)
{
    change_reply(s, s->want.request, state, message, members);
}

static void answer_last(supervisor *s, const char *state, const char *message, const char *members)
{
    answer(s, state, message, members);
    s->want.request[0] = '\0';
}

/* ---- what a new world is told ---- */

static json_t *as_json(const int *numbers, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(array, json_integer(numbers[i]));
    return array;
}

/* Who continues whom, and where all are. */
static rs_status number_ranks(
    const supervisor *s, const char *old_text, const char *new_text, json_t *from)
{
    rs_model model;
    rs_space *space = NULL;
    rs_placement *old = NULL, *now = NULL;
    rs_layout layout;
    int *table = NULL, *old_hosts = NULL, *new_hosts = NULL, *next = NULL;
    rs_status status;
    RS_TRY(rs_model_load(s->options->model, &model));
    RS_TRY(rs_train_space(s->options, &model, &space));
    RS_TRY_GOTO(rs_layout_parse(old_text, &layout), done);
    RS_TRY_GOTO(rs_layout_placement(space, &layout, &old), done);
    RS_TRY_GOTO(rs_layout_parse(new_text, &layout), done);
    RS_TRY_GOTO(rs_layout_placement(space, &layout, &now), done);
    int ranks = rs_placement_holders(now);
    table = rs_calloc((size_t)ranks, sizeof *table);
    if (table == NULL) {
        status = rs_error_memory((size_t)ranks * sizeof *table);
        goto done;
    }
    int old_ranks = rs_placement_holders(old);
    RS_TRY_GOTO(fleet_place(s->fleet, ranks, &next), done);
    RS_TRY_GOTO(ferry_hosts(s, s->active->places, old_ranks, &old_hosts), done);
    RS_TRY_GOTO(ferry_hosts(s, next, ranks, &new_hosts), done);
    const rs_places places = {old_hosts, new_hosts};
    RS_TRY_GOTO(rs_assign_ranks(old, now, &places, table), done);
    json_object_set_new(from, "ranks", json_integer(old_ranks));
    json_object_set_new(from, "kept", as_json(table, ranks));
    json_object_set_new(from, "hosts", as_json(old_hosts, old_ranks));
    json_object_set_new(from, "hosts_now", as_json(new_hosts, ranks));
done:
    free(next);
    free(new_hosts);
    free(old_hosts);
    free(table);
    rs_placement_destroy(now);
    rs_placement_destroy(old);
    rs_space_destroy(space);
    return status;
}

/* What the active world has, as the next one is told. */
static rs_status origin_of(const supervisor *s, json_t **out)
{
    json_t *from =
        json_pack("{s:s,s:i}", "layout", s->active->layout, "generation", s->active->generation);
    rs_status status = from != NULL ? number_ranks(s, s->active->layout, s->want.layout, from)
                                    : rs_error_memory(1);
    if (status == RS_OK)
        *out = from;
    else
        json_decref(from);
    return status;
}

static rs_status welcome(const supervisor *s, const world *w, rs_link *link)
{
    json_t *word = json_pack("{s:s,s:i,s:i,s:s,s:i,s:I}", "do", "join", "world", w->number,
        "generation", (w->number - 1) * RS_WORLD_GENERATIONS, "layout", w->layout, "ranks",
        w->ranks, "scheduled", (json_int_t)w->scheduled);
    if (word != NULL && s->fleet->count > 0)
        json_object_set_new(word, "lease", json_real(LEASE_SHARE * s->launch->heartbeat));
    if (word != NULL)
        json_object_set_new(word, "moves", json_boolean(s->fleet->count > 1));
    if (word != NULL && w->from != NULL)
        json_object_set(word, "from", w->from);
    if (word != NULL && w->attach != NULL)
        json_object_set(word, "attach", w->attach);
    rs_status status = word != NULL ? rs_link_send(link, word) : rs_error_memory(1);
    json_decref(word);
    return status;
}

/* ---- doing ---- */

/* Sends {"do": what}; a world that cannot be told is about to be found dead. */
static void command(world *w, const char *what, bool all)
{
    json_t *word = json_pack("{s:s}", "do", what);
    rs_status status = all ? world_tell_all(w, word) : world_tell(w, word);
    (void)status;
    json_decref(word);
}

static void give_up(supervisor *s, const char *why)
{
    if (s->why[0] == '\0')
        snprintf(s->why, sizeof s->why, "%s", why);
}

static void begin_world(supervisor *s)
{
    rs_layout layout;
    json_t *from = NULL;
    rs_status status = origin_of(s, &from);
    if (status == RS_OK)
        status = rs_layout_parse(s->want.layout, &layout);
    if (status == RS_OK)
        status = supervisor_start(
            s, s->want.layout, rs_layout_world(&layout), from, s->active->scheduled, &s->other);
    else
        json_decref(from);
    if (status != RS_OK) {
        give_up(s, rs_error_message());
        change_event(s, RS_HANDOVER_NEW_GONE);
        return;
    }
    char text[RS_LAYOUT_TEXT + 64];
    snprintf(text, sizeof text, "world %d of %d ranks is being built for %s", s->other->number,
        s->other->ranks, s->want.layout);
    answer(s, "preparing", text, NULL);
    change_note(s, s->other, "started");
    rs_crash_point("change.started");
}

static void delete_generation(supervisor *s, const world *w)
{
    rs_keeper *keeper = NULL;
    const char *folder = s->options->arena_dir[0] != '\0' ? s->options->arena_dir : NULL;
    rs_status status = rs_keeper_open(s->options->id, folder, &keeper);
    for (int r = 0; r < w->ranks && status == RS_OK; r++)
        status = rs_arena_delete(keeper, w->generation, r, NULL);
    if (status != RS_OK)
        fprintf(stderr, "reshard train: arenas of world %d are left until the job ends: %s\n",
            w->number, rs_error_message());
    rs_keeper_close(keeper);
    fleet_tell(s->fleet, json_pack("{s:s,s:i}", "do", "delete", "generation", w->generation));
}

static void drop_other(supervisor *s)
{
    if (s->other == NULL)
        return;
    rs_crash_point("change.drop");
    delete_generation(s, s->other);
    world *w = s->other;
    s->other = NULL;
    w->stage = WORLD_LEAVES;
    change_note(s, w, "gone");
    supervisor_forget(s, w);
    world_fini(w);
    free(w);
}

static void let_train(supervisor *s)
{
    world *old = s->active;
    rs_crash_point("change.committed");
    s->active = s->other;
    s->other = old;
    s->active->stage = WORLD_TRAINS;
    s->other->stage = WORLD_LEAVES;
    s->stopped_rank[0] = '\0'; /* of the old world's ranks, which sleep and go */
    command(s->active, "train", true);
    change_note(s, s->active, "committed");
}

static void end_new(supervisor *s)
{
    world *w = s->other;
    if (w == NULL)
        return;
    bool sleeps = w->stage == WORLD_READY || w->stage == WORLD_PULLS;
    ferry_end(s);
    w->stage = WORLD_LEAVES;
    w->deadline = cli_now() + EXIT_SECONDS;
    if (sleeps)
        command(w, "exit", true);
    else
        world_force(w);
    change_note(s, w, "given up");
    rs_crash_point("change.given_up");
}

static void tell_failed(supervisor *s)
{
    char text[RS_LAYOUT_TEXT + 1100];
    snprintf(text, sizeof text, "no new world for %s: %s", s->want.layout,
        s->why[0] != '\0' ? s->why : "it ended before it had taken over");
    fprintf(stderr, "reshard train: %s\n", text);
    drain_end(s, false);
    answer_last(s, "failed", text, NULL);
}

static void settle(supervisor *s)
{
    json_decref(s->pull);
    s->pull = NULL;
    s->limit = 0;
    s->why[0] = '\0';
    /* Who asked hears from the new world itself, which may be slower than the old one's end. */
    if (!s->want.pending && s->want.request[0] == '\0')
        s->want = (wanted){0};
    change_note_worlds(s);
}

/* Across which nodes the new world mirrors: its ranks' hosts. free() them. */
static rs_status find_nodes(const supervisor *s, int **nodes, size_t *count)
{
    const json_t *hosts = json_object_get(s->other->from, "hosts_now");
    *count = s->options->redundancy > 0 ? json_array_size(hosts) : 0;
    *nodes = *count > 0 ? rs_calloc(*count, sizeof **nodes) : NULL;
    if (*count > 0 && *nodes == NULL)
        return rs_error_memory(*count * sizeof **nodes);
    for (size_t r = 0; r < *count; r++)
        (*nodes)[r] = (int)json_integer_value(json_array_get(hosts, r));
    return RS_OK;
}

/* Names the new world's arenas in the record. */
static rs_status replace_record(const supervisor *s, const rs_record *former)
{
    rs_record record = *former; /* what it points to is the former's, but for the nodes */
    RS_TRY(find_nodes(s, &record.nodes, &record.node_count));
    rs_crash_point("change.record");
    record.generation = s->other->generation;
    memcpy(record.layout, s->other->layout, sizeof record.layout);
    rs_status status = rs_record_write(s->options->job, &record);
    free(record.nodes);
    return status;
}

/* From here on the new world's arenas are the job's state. What is on disk after a failure is not
 * known; then the old world's are again, or the job ends with both generations kept. */
static void commit(supervisor *s)
{
    rs_record former;
    rs_status status = rs_record_read(s->options->job, &former);
    if (status == RS_OK) {
        status = replace_record(s, &former);
        if (status != RS_OK) {
            give_up(s, rs_error_message());
            if (rs_record_write(s->options->job, &former) != RS_OK)
                fprintf(stderr, "reshard train: the job's record cannot be written: %s\n",
                    rs_error_message());
        }
        rs_record_fini(&former);
    } else {
        give_up(s, rs_error_message());
    }
    change_event(s, status == RS_OK ? RS_HANDOVER_COMMITTED : RS_HANDOVER_FAILED);
}

static void perform(supervisor *s, unsigned actions)
{
    if (actions & RS_DO_HOLD)
        command(s->active, "hold", false);
    if (actions & RS_DO_RELEASE) {
        s->active->stage = WORLD_TRAINS;
        command(s->active, "go_on", true);
    }
    if (actions & RS_DO_START)
        begin_world(s);
    if (actions & RS_DO_QUIESCE)
        command(s->active, "quiesce", false);
    if (actions & RS_DO_PULL) {
        s->other->stage = WORLD_PULLS;
        ferry_pull(s);
        rs_status status = world_tell_all(s->other, s->pull);
        (void)status; /* it is found dead then */
        change_note(s, s->other, "pulls");
        answer(s, "moving", "training is stopped, bytes move", NULL);
        rs_crash_point("change.pulls");
    }
    if (actions & RS_DO_TRAIN)
        let_train(s);
    if (actions & RS_DO_LEAVE) {
        command(s->other, "leave", true);
        s->other->deadline = cli_now() + LEAVE_SECONDS;
        rs_crash_point("change.leaves");
    }
    if (actions & RS_DO_END_NEW)
        end_new(s);
    if (actions & (RS_DO_DROP_NEW | RS_DO_DROP_OLD))
        drop_other(s);
    if (actions & RS_DO_TELL_FAILED)
        tell_failed(s);
    if (actions & RS_DO_TELL_DONE)
        drain_end(s, true);
    if ((actions & RS_DO_TELL_DONE) && !s->want.pending && s->active->told)
        answer_last(s, "done", "the new world trains", NULL);
    if (actions & RS_DO_COMMIT)
        commit(s);
}

void change_event(supervisor *s, rs_handover_event event)
{
    unsigned actions = rs_handover_take(&s->handover, event);
    perform(s, actions);
    if (s->handover.state == RS_HANDOVER_IDLE && actions != 0)
        settle(s);
}

void change_give_up(supervisor *s, const char *why)
{
    give_up(s, why);
    change_event(s, RS_HANDOVER_FAILED);
}

void change_died(supervisor *s)
{
    if (s->handover.state == RS_HANDOVER_IDLE && !s->want.pending)
        answer_last(s, "done", "the new world has taken over, and died", NULL);
}

void change_cancel(supervisor *s, const char *why)
{
    rs_handover_state state = s->handover.state;
    if (state == RS_HANDOVER_IDLE || state >= RS_HANDOVER_COMMITTING)
        return;
    give_up(s, why);
    change_event(s, RS_HANDOVER_CANCEL);
}

/* ---- hearing ---- */

/* The old world keeps its layout, and says which that is. */
static void take_held(supervisor *s, const json_t *word)
{
    snprintf(s->active->layout, sizeof s->active->layout, "%s", cli_text_of(word, "layout"));
    s->active->generation = (int)cli_int_of(word, "generation");
    s->active->scheduled = cli_int_of(word, "scheduled");
    change_event(s, RS_HANDOVER_HELD);
}

static void take_quiesced(supervisor *s, const json_t *word)
{
    if (s->handover.state != RS_HANDOVER_QUIESCING)
        return; /* given up meanwhile; it has been told to go on */
    json_decref(s->pull);
    s->pull = json_copy((json_t *)(uintptr_t)word);
    json_object_set_new(s->pull, "do", json_string("pull"));
    s->active->stage = WORLD_SLEEPS;
    change_note(s, s->active, "quiesced");
    change_event(s, RS_HANDOVER_QUIESCED);
}

static void take_elsewhere(supervisor *s, const json_t *word)
{
    const char *request = cli_text_of(word, "request");
    bool leaving = s->handover.state == RS_HANDOVER_LEAVING;
    if (s->stopping || s->want.pending || s->draining >= 0 ||
        (s->handover.state != RS_HANDOVER_IDLE && !leaving)) {
        change_reply(s, request, "busy", "another change is under way", NULL);
        return;
    }
    if (leaving)
        answer_last(s, "done", "the new world trains", NULL);
    s->want = (wanted){.pending = true, .asked = cli_now()};
    snprintf(s->want.layout, sizeof s->want.layout, "%s", cli_text_of(word, "layout"));
    snprintf(s->want.request, sizeof s->want.request, "%s", request);
    drain_begin(s, fleet_find(s->fleet, cli_text_of(word, "drain")));
    answer(s, "accepted", "a new world is to take over", NULL);
}

static void take_training(supervisor *s, const json_t *word)
{
    char *members = json_dumps(word, JSON_COMPACT | JSON_REAL_PRECISION(15));
    change_note(s, s->active, "trains");
    if (s->draining < 0) /* else when the host is left */
        answer_last(s, "done", "", members);
    s->active->told = true;
    if (s->handover.state == RS_HANDOVER_IDLE && !s->want.pending)
        s->want = (wanted){0};
    free(members);
}

/* True if the word was about the change under way. */
static bool take_change(supervisor *s, world *w, const char *what, const json_t *word)
{
    bool is_new = w == s->other;
    if (is_new && strcmp(what, "ready") == 0 && w->stage == WORLD_BUILDS) {
        w->stage = WORLD_READY;
        world_be_equal(w);
        change_note(s, w, "ready");
        if (ferry_is_ready(s))
            change_event(s, RS_HANDOVER_READY);
    } else if (is_new && strcmp(what, "planned") == 0) {
        ferry_begin(s, json_integer_value(json_object_get(word, "ferried")));
    } else if (is_new && strcmp(what, "certified") == 0) {
        change_note(s, w, "certified");
        change_event(s, RS_HANDOVER_CERTIFIED);
    } else if (is_new && strcmp(what, "failed") == 0) {
        change_give_up(s, cli_text_of(word, "message"));
    } else if (!is_new && strcmp(what, "held") == 0) {
        take_held(s, word);
    } else if (!is_new && strcmp(what, "busy") == 0) {
        give_up(s, cli_text_of(word, "message"));
        change_event(s, RS_HANDOVER_REFUSED);
    } else if (!is_new && strcmp(what, "quiesced") == 0) {
        take_quiesced(s, word);
    } else if (!is_new && strcmp(what, "elsewhere") == 0) {
        take_elsewhere(s, word);
    } else if (!is_new && strcmp(what, "training") == 0) {
        take_training(s, word);
    } else if (!is_new && strcmp(what, "recorded") == 0) {
        w->recorded = true;
    } else {
        return false;
    }
    return true;
}

/* A host joins. */
static void take_hello(supervisor *s, world *w, world_host *host, const json_t *word)
{
    world_host_hello(host, word);
    if (welcome(s, w, host->link) != RS_OK || host->rank != 0)
        return;
    w->stage = w->from != NULL ? WORLD_BUILDS : WORLD_TRAINS;
    change_note(s, w, "joined");
}

/* Rank 0 writes the job's files only while it knows that it is heard (train/member.h). */
static void lend(const supervisor *s, const world_host *host, const json_t *word)
{
    const json_t *sent = json_object_get(word, "sent");
    if (s->fleet->count == 0 || host->rank != 0 || sent == NULL || host->link == NULL)
        return;
    json_t *lease = json_pack("{s:s,s:O}", "do", "lease", "sent", sent);
    rs_status status = lease != NULL ? rs_link_send(host->link, lease) : RS_OK;
    (void)status; /* the next one reads that it has gone */
    json_decref(lease);
}

static void take_beat(supervisor *s, world *w, const world_host *host, const json_t *word)
{
    lend(s, host, word);
    /* Launchers send SIGTERM too, to the ranks that are left when one has died. */
    if (w == s->active && json_is_true(json_object_get(word, "signalled")) &&
        !vigil_sees_death(s, w))
        drain_told(s, fleet_find(s->fleet, host->name));
    double age = json_number_value(json_object_get(word, "age"));
    long process = (long)json_integer_value(json_object_get(word, "process"));
    char text[sizeof s->stopped_rank];
    if (age < s->launch->heartbeat)
        return;
    snprintf(text, sizeof text, "process %ld has shown no sign of life for %.0f s", process, age);
    if (w == s->active && s->stopped_rank[0] == '\0') {
        memcpy(s->stopped_rank, text, sizeof text);
        s->stopped_host = fleet_find(s->fleet, host->name);
    } else if (w == s->other && w->stage != WORLD_LEAVES) {
        change_cancel(s, text);
    }
}

void change_word(supervisor *s, world *w, world_host *host, const json_t *word)
{
    const char *what = cli_text_of(word, "say");
    host->beat = cli_now();
    if (strcmp(what, "beat") == 0)
        host->age = json_number_value(json_object_get(word, "age"));
    if (w == s->ferry)
        ferry_word(s, host, word);
    else if (strcmp(what, "beat") == 0)
        take_beat(s, w, host, word);
    else if (strcmp(what, "hello") == 0)
        take_hello(s, w, host, word);
    else if (!take_change(s, w, what, word))
        fprintf(stderr, "reshard train: world %d said '%.40s', which means nothing now\n",
            w->number, what);
}

/* ---- requests ---- */

/* True while the active world looks at its stream between steps. */
static bool listens(const supervisor *s)
{
    rs_handover_state state = s->handover.state;
    return s->active != NULL && s->active->stage == WORLD_TRAINS && world_has_joined(s->active) &&
           state != RS_HANDOVER_QUIESCING && state != RS_HANDOVER_PULLING &&
           state != RS_HANDOVER_COMMITTING;
}

static rs_status tell_request(const supervisor *s, const rs_control_request *request)
{
    json_t *word = json_pack("{s:s,s:s,s:s,s:s,s:b,s:s}", "do", "request", "name", request->name,
        "kind", rs_control_kind_name(request->kind), "layout", request->layout, "new_world",
        request->new_world, "drain", request->drain);
    rs_status status = word != NULL ? world_tell(s->active, word) : rs_error_memory(1);
    json_decref(word);
    return status;
}

void change_ask(supervisor *s, const rs_control_request *request)
{
    if (listens(s) && tell_request(s, request) != RS_OK)
        fprintf(stderr, "reshard train: %s\n", rs_error_message());
}

static void hand_on(supervisor *s, const rs_control_request *request)
{
    rs_control_request asked = *request;
    if (request->kind == RS_CONTROL_DRAIN && !drain_asked(s, &asked))
        return;
    if (tell_request(s, &asked) != RS_OK)
        change_reply(s, request->name, "refused", rs_error_message(), NULL);
}

static void take_cancel(supervisor *s, const rs_control_request *request)
{
    rs_handover_state state = s->handover.state;
    bool can = state != RS_HANDOVER_IDLE && state < RS_HANDOVER_COMMITTING;
    change_reply(s, request->name, can ? "done" : "refused",
        can ? "the new world is given up; the job trains on as it is"
            : "no new world is being built",
        NULL);
    if (can)
        change_cancel(s, "it was cancelled");
}

static void take_request(supervisor *s, const rs_control_request *request)
{
    if (request->kind == RS_CONTROL_CANCEL) {
        take_cancel(s, request);
        return;
    }
    if (request->kind == RS_CONTROL_STOP)
        change_cancel(s, "the job is told to stop");
    if (listens(s))
        hand_on(s, request);
    else
        s->deferred[s->deferred_count++] = *request;
}

void change_tend(supervisor *s)
{
    rs_control_request request;
    if (s->limit > 0 && cli_now() > s->limit && s->handover.state < RS_HANDOVER_COMMITTING) {
        char why[128];
        snprintf(why, sizeof why, "it was not ready within %.0f s (--world-timeout)",
            s->launch->world_limit);
        s->limit = 0;
        change_cancel(s, why);
    }
    if (s->want.pending && s->handover.state == RS_HANDOVER_IDLE && s->ferry == NULL &&
        listens(s) && !s->stopping) {
        s->want.pending = false;
        s->limit = cli_now() + s->launch->world_limit;
        change_event(s, RS_HANDOVER_WANTED);
    }
    if (s->active == NULL || !world_has_joined(s->active))
        return;
    for (int i = 0; i < s->deferred_count && listens(s); i++)
        hand_on(s, &s->deferred[i]);
    s->deferred_count = listens(s) ? 0 : s->deferred_count;
    while (s->deferred_count < DEFERRED && rs_control_poll(s->control, &request))
        take_request(s, &request);
}
