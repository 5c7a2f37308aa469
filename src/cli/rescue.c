/*
 * Recovery over several hosts.
 *
 * 1. All hosts that can be reached look first: their processes are ended, and where their ranks
 *    stand is final. Only then is anything decided, and only then changed.
 * 2. A rank that several hosts have is the one that is farthest; one that is more than a step
 *    behind others is of an older state (its host was away meanwhile) and counts as lost.
 * 3. The record's epoch rises last, so being killed at any point leaves what can be done again.
 * 4. A host that goes away after it has looked is lost: all begins anew with the others.
 */
#include "cli/rescue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/subject.h"

#define PART_SECONDS 120 /* for a host to take its ranks to the step */

/* ---- words between owner and helper ---- */

rs_status rescue_look_here(const char *job, const json_t *word, json_t *answer)
{
    rs_survey s = {0};
    rs_recovery found = {0};
    double seconds = json_number_value(json_object_get(word, "seconds"));
    RS_TRY(rs_train_recover_look(job, seconds, &s, &found));
    json_t *ranks = json_array();
    for (int r = 0; r < s.world; r++) {
        const rs_standing *at = &s.standings[r];
        if (!at->lost)
            json_array_append_new(
                ranks, json_pack("[i,I,I,I,I]", r, (json_int_t)at->ready, (json_int_t)at->updating,
                           (json_int_t)at->step, (json_int_t)at->derived));
    }
    int bad = json_object_set_new(answer, "ranks", ranks) |
              json_object_set_new(answer, "generation", json_integer(found.generation)) |
              json_object_set_new(answer, "layout", json_string(found.layout)) |
              json_object_set_new(answer, "world", json_integer(found.world)) |
              json_object_set_new(answer, "killed", json_integer(found.killed)) |
              json_object_set_new(answer, "reason", json_string(s.reason));
    rs_survey_fini(&s);
    return bad ? rs_error_memory(1) : RS_OK;
}

rs_status rescue_part_here(const char *job, const json_t *word, json_t *answer)
{
    rs_recovery whole = {.step = cli_int_of(word, "step"),
        .generation = (int)cli_int_of(word, "generation"),
        .world = (int)cli_int_of(word, "world"),
        .behind = (int)cli_int_of(word, "behind"),
        .killed = (int)cli_int_of(word, "killed"),
        .lost = (int)cli_int_of(word, "lost"),
        .fence_seconds = json_number_value(json_object_get(word, "fence"))};
    snprintf(whole.layout, sizeof whole.layout, "%s", cli_text_of(word, "layout"));
    bool teller = json_is_true(json_object_get(word, "teller"));
    int unpublished = 0;
    RS_TRY(rs_train_recover_part(job, &whole, teller, &unpublished));
    return json_object_set_new(answer, "unpublished", json_integer(unpublished)) == 0
               ? RS_OK
               : rs_error_memory(1);
}

static json_t *part_word(const rs_recovery *whole, bool teller)
{
    return json_pack("{s:s,s:I,s:i,s:i,s:i,s:i,s:i,s:f,s:s,s:b}", "do", "part", "step",
        (json_int_t)whole->step, "generation", whole->generation, "world", whole->world, "behind",
        whole->behind, "killed", whole->killed, "lost", whole->lost, "fence", whole->fence_seconds,
        "layout", whole->layout, "teller", teller);
}

/* ---- looking ---- */

/* Makes room for the ranks, at the first answer; all are lost until a host has them. */
static rs_status prepare(rescue *r, const json_t *answer)
{
    int world = (int)cli_int_of(answer, "world");
    const char *layout = json_string_value(json_object_get(answer, "layout"));
    if (r->where != NULL)
        return RS_OK;
    if (world < 1 || layout == NULL)
        return rs_error_set(RS_ERR_MALFORMED, "a host's look has no ranks");
    r->found.generation = (int)cli_int_of(answer, "generation");
    r->found.world = world;
    snprintf(r->found.layout, sizeof r->found.layout, "%s", layout);
    r->where = rs_calloc((size_t)world, sizeof *r->where);
    r->survey.standings = rs_calloc((size_t)world, sizeof *r->survey.standings);
    if (r->where == NULL || r->survey.standings == NULL)
        return rs_error_memory((size_t)world * sizeof *r->survey.standings);
    r->survey.world = world;
    for (int rank = 0; rank < world; rank++) {
        r->where[rank] = -1;
        r->survey.standings[rank].lost = true;
    }
    return RS_OK;
}

static rs_status add_look(rescue *r, int host, const json_t *answer)
{
    size_t i;
    const json_t *row;
    RS_TRY(prepare(r, answer));
    r->found.killed += (int)cli_int_of(answer, "killed");
    const char *reason = cli_text_of(answer, "reason");
    if (reason[0] != '\0')
        snprintf(r->survey.reason, sizeof r->survey.reason, "%s", reason);
    json_array_foreach(json_object_get(answer, "ranks"), i, row)
    {
        json_int_t rank = json_integer_value(json_array_get(row, 0));
        rs_standing at = {.ready = json_integer_value(json_array_get(row, 1)),
            .updating = json_integer_value(json_array_get(row, 2)),
            .step = json_integer_value(json_array_get(row, 3)),
            .derived = json_integer_value(json_array_get(row, 4))};
        if (rank < 0 || rank >= r->survey.world)
            return rs_error_set(RS_ERR_MALFORMED, "a host has a rank %lld of a world of %d",
                (long long)rank, r->survey.world);
        rs_standing *known = &r->survey.standings[rank];
        if (!known->lost && known->ready >= at.ready)
            continue;
        *known = at;
        r->where[rank] = host;
    }
    return RS_OK;
}

static rs_status look(fleet *f, int host, const char *job, double seconds, rescue *r)
{
    json_t *word = json_pack("{s:s,s:f}", "do", "look", "seconds", seconds), *answer = NULL;
    rs_status status;
    if (word == NULL)
        return rs_error_memory(1);
    if (f->hosts[host].here) {
        answer = json_object();
        status = answer != NULL ? rescue_look_here(job, word, answer) : rs_error_memory(1);
        json_decref(word);
    } else {
        status = fleet_call(&f->hosts[host], word, seconds + PART_SECONDS, &answer);
    }
    if (status == RS_OK)
        status = add_look(r, host, answer);
    json_decref(answer);
    /* A host that went away meanwhile is lost, and so are its ranks. */
    return status == RS_ERR_PEER ? RS_OK : status;
}

static void drop_stale(rescue *r)
{
    int64_t most = 0;
    for (int rank = 0; rank < r->survey.world; rank++)
        if (!r->survey.standings[rank].lost)
            most = rs_max64(most, r->survey.standings[rank].ready);
    r->survey.lost = 0;
    for (int rank = 0; rank < r->survey.world; rank++) {
        rs_standing *at = &r->survey.standings[rank];
        at->lost = at->lost || at->ready < most - 1;
        r->survey.lost += at->lost;
        if (at->lost)
            r->where[rank] = -1;
    }
    r->survey.verdict = RS_ERR_NOT_FOUND;
}

/* ---- doing ---- */

static bool has_ranks(const rescue *r, int host)
{
    for (int rank = 0; rank < r->survey.world; rank++)
        if (r->where[rank] == host)
            return true;
    return false;
}

static rs_status do_part(fleet *f, int host, const char *job, rescue *r, bool teller)
{
    json_t *word = part_word(&r->found, teller), *answer = NULL;
    rs_status status;
    if (word == NULL)
        return rs_error_memory(1);
    if (f->hosts[host].here) {
        answer = json_object();
        status = answer != NULL ? rescue_part_here(job, word, answer) : rs_error_memory(1);
        json_decref(word);
    } else {
        status = fleet_call(&f->hosts[host], word, PART_SECONDS, &answer);
    }
    if (status == RS_OK)
        r->unpublished += (int)cli_int_of(answer, "unpublished");
    json_decref(answer);
    return status;
}

/* The first host that has ranks tells, after all others. */
static rs_status do_parts(fleet *f, const char *job, rescue *r)
{
    int teller = -1;
    for (int h = f->count - 1; h >= 0; h--) {
        if (!has_ranks(r, h))
            continue;
        if (teller >= 0)
            RS_TRY(do_part(f, teller, job, r, false));
        teller = h;
    }
    return do_part(f, teller, job, r, true);
}

static rs_status settle_near(fleet *f, const int *where, int ranks)
{
    int *near = rs_calloc((size_t)ranks, sizeof *near);
    if (near == NULL)
        return rs_error_memory((size_t)ranks * sizeof *near);
    memcpy(near, where, (size_t)ranks * sizeof *near);
    free(f->near);
    f->near = near;
    f->near_count = ranks;
    return RS_OK;
}

/* With the hosts that can be reached now; `killed` processes were ended before. RS_ERR_PEER: one
 * has gone since it looked, and is not reached any more. */
static rs_status attempt(fleet *f, const char *job, double seconds, int killed, rescue *out)
{
    *out = (rescue){.found.killed = killed};
    for (int h = 0; h < f->count; h++)
        if (fleet_reaches(f, h))
            RS_TRY(look(f, h, job, seconds, out));
    if (out->where == NULL)
        return rs_error_set(RS_ERR_NOT_FOUND, "no host can be reached that has a part of it");
    drop_stale(out);
    RS_TRY(rs_survey_judge(&out->survey));
    RS_TRY(rs_train_recover_check(job, &out->survey, &out->found));
    RS_TRY(do_parts(f, job, out));
    return settle_near(f, out->where, out->survey.world);
}

rs_status rescue_job(fleet *f, const char *job, double seconds, rescue *out)
{
    *out = (rescue){0};
    if (f == NULL || f->count == 0)
        return rs_train_recover(job, seconds, &out->found);
    rs_status status = attempt(f, job, seconds, 0, out);
    /* What was done can be done again, with what the others have; each time a host fewer. */
    for (int lost = 1; status == RS_ERR_PEER && lost < f->count; lost++) {
        int killed = out->found.killed;
        rescue_fini(out);
        status = attempt(f, job, seconds, killed, out);
    }
    return status;
}

void rescue_fini(rescue *r)
{
    free(r->where);
    r->where = NULL;
    rs_survey_fini(&r->survey);
}

/* ---- another layout ---- */

/* True if the ranks of `host` have the whole state. */
static bool is_enough(const rescue *r, const char *job, int host)
{
    rs_recovery found = r->found;
    rs_survey alone = r->survey;
    alone.standings = rs_calloc((size_t)alone.world, sizeof *alone.standings);
    if (alone.standings == NULL)
        return false;
    alone.lost = 0;
    for (int rank = 0; rank < alone.world; rank++) {
        alone.standings[rank] = r->survey.standings[rank];
        alone.standings[rank].lost = r->where[rank] != host;
        alone.lost += alone.standings[rank].lost;
    }
    bool enough = alone.lost < alone.world && rs_train_recover_check(job, &alone, &found) == RS_OK;
    free(alone.standings);
    return enough;
}

rs_status rescue_on_one(fleet *f, const char *job, const rescue *r, int ranks)
{
    if (f == NULL || f->count == 0)
        return RS_OK;
    for (int h = 0; h < f->count; h++) {
        if (!fleet_reaches(f, h) || f->file.items[h].slots < ranks || !is_enough(r, job, h))
            continue;
        int *near = rs_calloc((size_t)ranks, sizeof *near);
        if (near == NULL)
            return rs_error_memory((size_t)ranks * sizeof *near);
        for (int rank = 0; rank < ranks; rank++)
            near[rank] = h;
        rs_status status = settle_near(f, near, ranks);
        free(near);
        return status;
    }
    return rs_error_set(RS_ERR_NOT_FOUND,
        "no host has all of the state and slots for %d ranks, and under another layout a world "
        "begins from the arenas of one host",
        ranks);
}
