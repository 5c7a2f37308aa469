/*
 * Recovery: all ranks' states to one step.
 *
 * The owner does it alone, for every rank, before a new world is started: the arenas of a dead
 * world are plain memory. The survey says to which step, k. A rank that is behind has a complete
 * gradient and note of step k in its ledger: its update is made, or gone on with from its journal,
 * by the same code that a living rank runs; it is a pure function of the state before, the gradient
 * and the note, so the result is bit for bit what it would have been. Then whatever follows from
 * the state of others is made anew, on every rank.
 *
 * A tight switch that was cut off cannot be undone; it is finished first, by the marks of its
 * ranks.
 *
 * Arenas may be gone, with the node that had them. If other ranks hold all that the lost ones did,
 * as replicas, they are taken to one step all the same; the next world makes the lost ranks anew
 * (train/attach.c). If they do not, what is there is no whole state, and nothing is changed.
 *
 * 1. Nothing else is changed before all arenas and ledgers were found whole and fitting.
 * 2. Each change is journalled as in a living rank, and words move only forward; so being killed
 * here leaves what recovery can take up again.
 * 3. A rank that was ready for k + 1 forgets that: its gradient is not needed.
 */
#include "train/recover.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "reshard/model.h"
#include "reshard/move.h"
#include "reshard/plan.h"
#include "train/metrics.h"
#include "train/nodes.h"
#include "train/publish.h"
#include "train/twophase.h"

/* A crashed job. */
typedef struct dead {
    const char *job;
    rs_record record;
    rs_keeper *keeper;
    rs_train_options options; /* as the dead run saved them */
    rs_model model;
    rs_space *space;
    rs_layout layout;
    int world;
    rs_survey survey;
    int unpublished;     /* ranks of whose parameters some are behind */
    bool part;           /* ranks that are lost may be on other hosts */
    bool *lost;          /* per rank: its arena is gone; what follows has nothing of it */
    rs_state *states;    /* per rank, mapped for writing */
    rs_update **updates; /* per rank */
    rs_runs *gradients;  /* per rank: in its ledger */
    rs_runs *directions; /* the same */
} dead;

static void dead_fini(dead *d)
{
    for (int r = 0; r < d->world; r++) {
        if (d->updates != NULL)
            rs_update_destroy(d->updates[r]);
        if (d->gradients != NULL)
            rs_runs_fini(&d->gradients[r]);
        if (d->directions != NULL)
            rs_runs_fini(&d->directions[r]);
        if (d->states != NULL && d->states[r].space != NULL)
            rs_state_fini(&d->states[r]);
    }
    free(d->directions);
    free(d->gradients);
    free(d->updates);
    free(d->states);
    free(d->lost);
    rs_survey_fini(&d->survey);
    rs_space_destroy(d->space);
    rs_train_options_fini(&d->options);
    rs_keeper_close(d->keeper);
    rs_record_fini(&d->record);
}

/* The record, and the keeper of its arenas. */
static rs_status open_keeper(const char *job, dead *d)
{
    d->job = job;
    RS_TRY(rs_record_read(job, &d->record));
    if (!d->part) /* else it is that of another host; every arena has its own */
        RS_TRY(rs_record_check_boot(&d->record));
    const char *folder = d->record.folder[0] != '\0' ? d->record.folder : NULL;
    return rs_keeper_open(d->record.job, folder, &d->keeper);
}

/* The record says where all ranks of a world are, if it says so of any. */
static rs_status check_nodes(const dead *d, int world)
{
    if (d->record.nodes != NULL && d->record.node_count < (size_t)world)
        return rs_error_set(RS_ERR_MALFORMED,
            "the record has the nodes of %zu ranks, and the layout has %d", d->record.node_count,
            world);
    return RS_OK;
}

/* What the run goes by: its options, with the model where it can be found from anywhere. */
static rs_status read_run(dead *d)
{
    json_t *root = d->record.run != NULL ? json_loads(d->record.run, 0, NULL) : NULL;
    const char *model =
        json_string_value(json_object_get(json_object_get(root, "training"), "model"));
    rs_status status = rs_train_options_load(&d->options, d->job);
    if (status == RS_OK && (model == NULL || strlen(model) >= sizeof d->options.model))
        status = rs_error_set(RS_ERR_MALFORMED, "the record does not say the run's model");
    if (status == RS_OK) {
        memcpy(d->options.model, model, strlen(model) + 1);
        status = rs_model_load(model, &d->model);
    }
    if (status == RS_OK)
        status = rs_train_space(&d->options, &d->model, &d->space);
    if (status == RS_OK)
        status = rs_layout_parse(d->record.layout, &d->layout);
    if (status == RS_OK)
        status = check_nodes(d, rs_layout_world(&d->layout));
    json_decref(root);
    return status;
}

/* ---- what is left ---- */

/* "rank 3", "ranks 2, 3 and 5 more". */
static void name_lost(const dead *d, char *text, size_t size)
{
    int told = 0, most = 4, n = snprintf(text, size, "rank%s", d->survey.lost > 1 ? "s" : "");
    for (int r = 0; r < d->world && told < most; r++)
        if (d->lost[r] && n > 0 && (size_t)n < size)
            n += snprintf(text + n, size - (size_t)n, "%s %d", told++ > 0 ? "," : "", r);
    if (d->survey.lost > told && n > 0 && (size_t)n < size)
        snprintf(text + n, size - (size_t)n, " and %d more", d->survey.lost - told);
}

/* Every lost rank could be made anew from what the others hold. */
static rs_status check_sources(const dead *d, const rs_placement *all, const rs_placement *left)
{
    const rs_plan_options options = {0};
    rs_status status = RS_OK;
    for (int r = 0; r < d->world && status == RS_OK; r++) {
        rs_plan *plan = NULL;
        if (d->lost[r])
            status = rs_plan_create(left, all, r, &options, &plan);
        rs_plan_destroy(plan);
    }
    return status;
}

/* Which ranks the survey found nothing of. */
static rs_status note_lost(dead *d)
{
    d->lost = rs_calloc((size_t)d->world, sizeof *d->lost);
    if (d->lost == NULL)
        return rs_error_memory((size_t)d->world * sizeof *d->lost);
    for (int r = 0; r < d->world; r++)
        d->lost[r] = d->survey.standings[r].lost;
    return RS_OK;
}

static rs_status check_left(dead *d)
{
    char who[128], why[800];
    rs_placement *all = NULL, *left = NULL;
    RS_TRY(note_lost(d));
    if (d->survey.lost == 0)
        return RS_OK;
    rs_status status = rs_nodes_placement(d->space, &d->layout, d->record.nodes, &all);
    if (status == RS_OK)
        status = rs_survivors_create(all, d->lost, &left);
    if (status == RS_OK)
        status = check_sources(d, all, left);
    if (status == RS_ERR_MISMATCH) {
        snprintf(why, sizeof why, "%s", rs_error_message());
        name_lost(d, who, sizeof who);
        status = rs_error_set(RS_ERR_NOT_FOUND,
            "the arenas of %s are gone (%s), and of what they held there is no other copy: %s", who,
            d->survey.reason, why);
    }
    rs_placement_destroy(left);
    rs_placement_destroy(all);
    return status;
}

/* Removes what there still is of lost ranks' arenas: parts of one, or one that was being made. */
static rs_status delete_lost(const dead *d)
{
    for (int r = 0; r < d->world; r++)
        if (d->lost[r])
            RS_TRY(rs_arena_delete(d->keeper, d->record.generation, r, NULL));
    return RS_OK;
}

/* ---- the states ---- */

/* Maps one rank's arena and ledger, and makes its update. */
static rs_status map_state(dead *d, int r)
{
    rs_state *s = &d->states[r];
    const rs_optimizer *optimizer = rs_train_optimizer(&d->options);
    int64_t bytes;
    RS_TRY(rs_state_init(d->space, &d->layout, r, d->record.nodes, s));
    RS_TRY(rs_twophase_attach(s, optimizer, d->keeper, d->record.generation));
    RS_TRY(rs_twophase_work(
        s, optimizer, rs_ledger_work(s->ledger), &d->gradients[r], &d->directions[r], &bytes));
    RS_TRY(rs_update_create(s, optimizer, &d->gradients[r], &d->updates[r]));
    rs_update_set_directions(d->updates[r], &d->directions[r]);
    return RS_OK;
}

/* Maps everything, and checks that it fits. */
static rs_status map_states(dead *d)
{
    int64_t step = d->survey.step;
    d->states = rs_calloc((size_t)d->world, sizeof *d->states);
    d->updates = rs_calloc((size_t)d->world, sizeof(rs_update *));
    d->gradients = rs_calloc((size_t)d->world, sizeof *d->gradients);
    d->directions = rs_calloc((size_t)d->world, sizeof *d->directions);
    if (d->states == NULL || d->updates == NULL || d->gradients == NULL || d->directions == NULL)
        return rs_error_memory((size_t)d->world * sizeof *d->states);
    for (int r = 0; r < d->world; r++) {
        rs_state *s = &d->states[r];
        rs_step_note note;
        if (d->lost[r])
            continue;
        RS_TRY(map_state(d, r));
        if (d->survey.standings[r].step == step)
            continue;
        if (!rs_ledger_read_note(s->ledger, step, &note, sizeof note))
            return rs_error_set(RS_ERR_MALFORMED,
                "rank %d is ready for step %" PRId64 ", but its ledger lacks the step's numbers", r,
                step);
        if (d->survey.standings[r].updating == step)
            RS_TRY(rs_update_check(d->updates[r]));
    }
    return RS_OK;
}

static rs_status finish_updates(dead *d)
{
    for (int r = 0; r < d->world; r++) {
        rs_state *s = &d->states[r];
        rs_step_note note;
        rs_crash_point("recover.update");
        if (!d->lost[r] && d->survey.standings[r].step < d->survey.step) {
            if (!rs_ledger_read_note(s->ledger, d->survey.step, &note, sizeof note))
                return rs_error_set(RS_ERR_MALFORMED, "the numbers of rank %d are gone", r);
            rs_update_apply(d->updates[r], &note.rate);
            rs_twophase_stepped(s, d->survey.step);
        }
    }
    return RS_OK;
}

/* Copies a part of a parameter from the arena of the rank that updates it. */
static rs_status copy_part(
    const dead *d, int from, const rs_state *to, int tensor, const rs_box *part)
{
    rs_shard source, target;
    int param = to->roles.param;
    size_t size = rs_dtype_size(rs_space_role(d->space, param)->dtype);
    RS_TRY(rs_placement_address(to->own, from, tensor, param, part, &source));
    RS_TRY(rs_placement_address(to->own, to->rank, tensor, param, part, &target));
    rs_move_box(part->ndim, part->extent, size, rs_memory_shard(rs_state_memory(to), &target),
        target.stride, rs_memory_shard(rs_state_memory(&d->states[from]), &source), source.stride);
    return RS_OK;
}

/* A rank that is given what others update. */
typedef struct behind {
    const dead *d;
    int rank;
} behind;

static rs_status give_part(void *context, int from, int tensor, const rs_box *part)
{
    const behind *b = context;
    if (from < 0 && b->d->part)
        return RS_ERR_PEER;
    if (from < 0)
        return rs_error_set(
            RS_ERR_NOT_FOUND, "who updates %s is lost", rs_space_tensor(b->d->space, tensor)->name);
    return copy_part(b->d, from, &b->d->states[b->rank], tensor, part);
}

/* Gives rank `r` the parameters that it keeps and others update: where the optimizer is sharded. */
static rs_status copy_published(const dead *d, int r)
{
    const rs_published all = {&d->states[r], d->record.nodes, d->lost};
    behind b = {d, r};
    return rs_published_parts(&all, r, give_part, &b);
}

/* All but what follows: the new world sees to that (train/attach.c). */
static void settle_own(const dead *d, int r)
{
    rs_ledger *ledger = d->states[r].ledger;
    rs_ledger_set(ledger, RS_LEDGER_READY, d->survey.step);
    rs_ledger_set(ledger, RS_LEDGER_UPDATING, d->survey.step);
    rs_ledger_set(ledger, RS_LEDGER_STEP, d->survey.step);
}

/* What follows from states: rounded parameters, then those that other replicas update. Of a part
 * that is only what follows from ranks of this host, or stood at the step already. */
static rs_status derive(dead *d)
{
    for (int r = 0; r < d->world; r++)
        if (!d->lost[r])
            rs_update_round(d->updates[r]);
    rs_crash_point("recover.derive");
    for (int r = 0; r < d->world; r++) {
        bool stood = !d->lost[r] && d->survey.standings[r].derived == d->survey.step;
        if (d->lost[r])
            continue;
        rs_status status = d->part && stood ? RS_OK : copy_published(d, r);
        d->unpublished += status == RS_ERR_PEER;
        if (status == RS_ERR_PEER)
            settle_own(d, r);
        else if (status == RS_OK)
            rs_ledger_settle(d->states[r].ledger, d->survey.step);
        else
            return status;
    }
    return RS_OK;
}

/* DIR/metrics.jsonl has every step up to the one recovered, and no other. */
static rs_status complete_metrics(dead *d, const rs_recovery *found)
{
    rs_train_options options;
    rs_metrics *metrics = NULL;
    rs_step_note note;
    int64_t last;
    int teller = 0;
    while (d->lost[teller])
        teller++;
    rs_train_options_init(&options);
    options.resume = RS_TRAIN_NEWEST;
    snprintf(options.job, sizeof options.job, "%s", d->job);
    RS_TRY(rs_metrics_open(&options, &metrics));
    rs_status status = rs_metrics_cut(metrics, found->step);
    if (status == RS_OK)
        status = rs_metrics_last_line(metrics, &last);
    if (status == RS_OK && last < found->step &&
        rs_ledger_read_note(d->states[teller].ledger, found->step, &note, sizeof note)) {
        rs_train_step line = rs_step_line(&note, 0, d->record.layout);
        status = rs_metrics_step(metrics, &line);
    }
    json_t *event = json_pack("{s:s,s:I,s:s,s:i,s:i,s:i,s:{s:f,s:f,s:f},s:f}", "event", "recover",
        "step", (json_int_t)found->step, "layout", found->layout, "behind", found->behind, "killed",
        found->killed, "lost", found->lost, "seconds", "fence", found->fence_seconds, "update",
        found->update_seconds, "derive", found->derive_seconds, "time", rs_wall_seconds());
    char *text = event != NULL ? json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(event);
    if (status == RS_OK)
        status = text != NULL ? rs_metrics_line(metrics, text) : rs_error_memory(1);
    free(text);
    rs_metrics_close(metrics);
    return status;
}

/* ---- a tight switch that was cut off ---- */

/* A switch in tight mode while it is finished. */
typedef struct building {
    rs_layout layout;
    rs_placement *from;
    rs_placement *to;
    rs_arena **old;
    rs_arena **now;
    int *node_of;
    int ranks; /* of the larger world */
} building;

static void building_fini(building *b)
{
    for (int r = 0; r < b->ranks; r++) {
        if (b->old != NULL)
            rs_arena_close(b->old[r]);
        if (b->now != NULL)
            rs_arena_close(b->now[r]);
    }
    free(b->old);
    free(b->now);
    free(b->node_of);
    rs_placement_destroy(b->from);
    rs_placement_destroy(b->to);
}

static rs_status open_building(const dead *d, building *b)
{
    int before = rs_layout_world(&d->layout);
    RS_TRY(rs_layout_parse(d->record.building_layout, &b->layout));
    RS_TRY(check_nodes(d, rs_layout_world(&b->layout)));
    RS_TRY(rs_nodes_placement(d->space, &d->layout, d->record.nodes, &b->from));
    RS_TRY(rs_nodes_placement(d->space, &b->layout, d->record.nodes, &b->to));
    int ranks = (int)rs_max64(before, rs_layout_world(&b->layout));
    b->old = rs_calloc((size_t)ranks, sizeof(rs_arena *));
    b->now = rs_calloc((size_t)ranks, sizeof(rs_arena *));
    if (b->old == NULL || b->now == NULL)
        return rs_error_memory((size_t)ranks * sizeof(rs_arena *));
    b->ranks = ranks;
    RS_TRY(rs_nodes_suppose(ranks, rs_nodes_size(&d->options), &b->node_of));
    for (int r = 0; r < ranks; r++) {
        if (r < before)
            RS_TRY(rs_arena_open(d->keeper, d->record.generation, r, true, &b->old[r]));
        RS_TRY(rs_arena_open(d->keeper, d->record.building, r, true, &b->now[r]));
    }
    return RS_OK;
}

/* Every rank of the new layout stands at the step that was moved. */
static rs_status commit_building(const dead *d, building *b)
{
    for (int r = 0; r < rs_layout_world(&b->layout); r++) {
        rs_ledger *ledger = NULL;
        RS_TRY(rs_ledger_open(d->keeper, d->record.building, r, true, &ledger));
        rs_status status = rs_ledger_reserve(ledger);
        rs_ledger_settle(ledger, d->record.building_step);
        rs_ledger_close(ledger);
        RS_TRY(status);
        RS_TRY(rs_arena_commit(b->now[r], d->record.building_step));
    }
    return RS_OK;
}

static rs_status finish_building(dead *d)
{
    building b = {0};
    int64_t bytes;
    rs_crash_step(d->record.building_step);
    rs_status status = open_building(d, &b);
    rs_plan_options options = {.node_of = b.node_of, .adopt = true};
    if (status == RS_OK)
        status = rs_move_finish(b.from, b.to, &options, b.old, b.now, &bytes);
    if (status == RS_OK)
        status = commit_building(d, &b);
    rs_crash_point("recover.building");
    if (status == RS_OK) {
        rs_record *r = &d->record;
        r->generation = r->building;
        memcpy(r->layout, r->building_layout, sizeof r->layout);
        r->building = -1;
        r->building_layout[0] = '\0';
        d->layout = b.layout;
        status = rs_record_write(d->job, r);
    }
    building_fini(&b);
    return status;
}

static rs_status recover(dead *d, double seconds, rs_recovery *out)
{
    rs_fenced fenced;
    double t[4];
    t[0] = rs_clock_seconds();
    RS_TRY(rs_elastic_fence(d->keeper, seconds, &fenced));
    t[1] = rs_clock_seconds();
    RS_TRY(read_run(d));
    if (d->record.building >= 0)
        RS_TRY(finish_building(d));
    d->world = rs_layout_world(&d->layout);
    rs_status status = rs_elastic_survey(d->keeper, d->record.generation, d->world, &d->survey);
    if (status != RS_OK) {
        d->world = 0;
        return status;
    }
    rs_crash_step(d->survey.step);
    RS_TRY(check_left(d));
    RS_TRY(map_states(d));
    RS_TRY(finish_updates(d));
    t[2] = rs_clock_seconds();
    RS_TRY(derive(d));
    t[3] = rs_clock_seconds();
    RS_TRY(delete_lost(d));
    RS_TRY(rs_elastic_delete(d->keeper, -1, d->record.generation));
    *out = (rs_recovery){.step = d->survey.step,
        .generation = d->record.generation,
        .world = d->world,
        .behind = d->survey.behind,
        .killed = fenced.killed,
        .lost = d->survey.lost,
        .fence_seconds = t[1] - t[0],
        .update_seconds = t[2] - t[1],
        .derive_seconds = t[3] - t[2]};
    memcpy(out->layout, d->record.layout, sizeof out->layout);
    if (out->lost > 0)
        name_lost(d, out->lost_ranks, sizeof out->lost_ranks);
    RS_TRY(complete_metrics(d, out));
    d->record.epoch++;
    return rs_record_write(d->job, &d->record);
}

rs_status rs_train_recover(const char *job, double seconds, rs_recovery *out)
{
    dead d = {.record = {.building = -1}};
    rs_train_options_init(&d.options);
    rs_crash_begin(-1);
    rs_status status = open_keeper(job, &d);
    rs_crash_point("recover");
    if (status == RS_OK)
        status = recover(&d, seconds, out);
    dead_fini(&d);
    return status;
}

/* ---- in parts ---- */

/* Of one host of several. */
static rs_status open_part(const char *job, dead *d)
{
    d->part = true;
    rs_train_options_init(&d->options);
    RS_TRY(open_keeper(job, d));
    RS_TRY(read_run(d));
    if (d->record.building >= 0)
        return rs_error_set(
            RS_ERR_UNSUPPORTED, "a tight switch was cut off, and its bytes are on several hosts");
    return RS_OK;
}

rs_status rs_train_recover_look(const char *job, double seconds, rs_survey *out, rs_recovery *found)
{
    dead d = {.record = {.building = -1}};
    rs_fenced fenced = {0};
    rs_status status = open_part(job, &d);
    int world = rs_layout_world(&d.layout);
    if (status == RS_OK)
        status = rs_elastic_fence(d.keeper, seconds, &fenced);
    if (status == RS_OK)
        status = rs_elastic_look(d.keeper, d.record.generation, world, out);
    if (status == RS_OK) {
        *found = (rs_recovery){
            .generation = d.record.generation, .world = world, .killed = fenced.killed};
        memcpy(found->layout, d.record.layout, sizeof found->layout);
    }
    dead_fini(&d);
    return status;
}

rs_status rs_train_recover_check(const char *job, const rs_survey *whole, rs_recovery *found)
{
    dead d = {.record = {.building = -1}};
    rs_status status = open_part(job, &d);
    d.survey = *whole; /* lent */
    if (status == RS_OK) {
        d.world = whole->world;
        status = check_left(&d);
    }
    if (status == RS_OK && whole->lost > 0)
        name_lost(&d, found->lost_ranks, sizeof found->lost_ranks);
    d.survey.standings = NULL;
    dead_fini(&d);
    found->step = whole->step;
    found->behind = whole->behind;
    found->lost = whole->lost;
    return status;
}

static rs_status recover_part(dead *d, const rs_recovery *whole, bool teller)
{
    rs_recovery found = *whole;
    int world = rs_layout_world(&d->layout);
    RS_TRY(rs_elastic_look(d->keeper, d->record.generation, world, &d->survey));
    d->world = world;
    d->survey.step = whole->step;
    RS_TRY(note_lost(d));
    double begun = rs_clock_seconds();
    RS_TRY(map_states(d));
    RS_TRY(finish_updates(d));
    found.update_seconds = rs_clock_seconds() - begun;
    RS_TRY(derive(d));
    found.derive_seconds = rs_clock_seconds() - begun - found.update_seconds;
    RS_TRY(rs_elastic_delete(d->keeper, -1, d->record.generation));
    if (!teller)
        return RS_OK;
    RS_TRY(complete_metrics(d, &found));
    d->record.epoch++;
    return rs_record_write(d->job, &d->record);
}

rs_status rs_train_recover_part(
    const char *job, const rs_recovery *whole, bool teller, int *unpublished)
{
    dead d = {.record = {.building = -1}};
    rs_status status = open_part(job, &d);
    if (status == RS_OK)
        status = recover_part(&d, whole, teller);
    *unpublished = d.unpublished;
    dead_fini(&d);
    return status;
}
