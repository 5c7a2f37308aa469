/*
 * Looking at the arenas of a job that has crashed, after nobody writes to them any more.
 *
 * The step to which all can be taken is the least that any rank is ready for, k. Every rank has its
 * own state whole at k - 1, or is updating it to k, or has it at k: an update to k begins only
 * after all were ready for k, and none to k + 1 can have begun while one is not ready for it.
 * Whoever violates that belongs to another state, and the generation is not whole.
 *
 * A rank whose arena is gone, with its node, cannot be asked for what it was ready. If the others
 * are ready for k, it was ready for k - 1 at least; that an update to k has begun anywhere proves
 * that it was ready for k, and else everybody still has S(k - 1) untouched.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "reshard/elastic.h"

rs_status rs_elastic_fence(rs_keeper *keeper, double seconds, rs_fenced *out)
{
    rs_arena_place *places = NULL;
    size_t count;
    rs_fenced fenced = {0};
    RS_TRY(rs_arena_list(keeper, &places, &count));
    rs_status status = RS_OK;
    for (size_t i = 0; i < count && status == RS_OK; i++) {
        long killed;
        status = rs_arena_fence(keeper, places[i].generation, places[i].rank, seconds, &killed);
        fenced.arenas++;
        fenced.killed += killed > 0;
    }
    free(places);
    RS_TRY(status);
    *out = fenced;
    return RS_OK;
}

static rs_status read_words(rs_keeper *keeper, int generation, int rank, rs_standing *out)
{
    rs_arena *arena = NULL;
    rs_ledger *ledger = NULL;
    rs_status status = rs_arena_open(keeper, generation, rank, false, &arena);
    if (status == RS_OK && rs_arena_step(arena) < 0)
        status = rs_error_set(RS_ERR_NOT_FOUND, "its arena was never committed");
    if (status == RS_OK)
        status = rs_ledger_open(keeper, generation, rank, false, &ledger);
    if (status == RS_OK)
        *out = (rs_standing){.ready = rs_ledger_get(ledger, RS_LEDGER_READY),
            .updating = rs_ledger_get(ledger, RS_LEDGER_UPDATING),
            .step = rs_ledger_get(ledger, RS_LEDGER_STEP),
            .derived = rs_ledger_get(ledger, RS_LEDGER_DERIVED)};
    rs_ledger_close(ledger);
    rs_arena_close(arena);
    return status != RS_OK ? rs_error_context(status, "rank %d", rank) : RS_OK;
}

/* Where a rank stands; lost where nothing can be read that is its state. */
static rs_status look(rs_keeper *keeper, int generation, int rank, rs_survey *s)
{
    rs_standing *standing = &s->standings[rank];
    rs_status status = read_words(keeper, generation, rank, standing);
    if (status != RS_ERR_NOT_FOUND && status != RS_ERR_MALFORMED && status != RS_ERR_MISMATCH)
        return status;
    standing->lost = true;
    if (s->lost++ == 0) {
        s->verdict = status;
        snprintf(s->reason, sizeof s->reason, "%s", rs_error_message());
    }
    return RS_OK;
}

/* The step to which all that are there can be taken. */
static int64_t find_step(const rs_survey *s)
{
    int64_t ready = INT64_MAX;
    bool begun = s->lost == 0;
    for (int r = 0; r < s->world; r++)
        if (!s->standings[r].lost)
            ready = rs_min64(ready, s->standings[r].ready);
    for (int r = 0; r < s->world && !begun; r++)
        begun = !s->standings[r].lost && s->standings[r].updating >= ready;
    return begun ? ready : ready - 1;
}

static rs_status check(const rs_standing *s, int rank, int64_t step)
{
    bool fits = s->step >= 0 && s->step >= step - 1 && s->step <= step && s->ready >= step &&
                s->ready <= step + 1 && s->updating <= step && s->updating >= s->step &&
                s->derived <= s->step;
    if (fits)
        return RS_OK;
    return rs_error_set(RS_ERR_MALFORMED,
        "rank %d does not stand where the others do: ready for step %" PRId64
        ", updating to %" PRId64 ", at %" PRId64 ", derived for %" PRId64
        "; all are ready for %" PRId64,
        rank, s->ready, s->updating, s->step, s->derived, step);
}

rs_status rs_elastic_look(rs_keeper *keeper, int generation, int world, rs_survey *out)
{
    rs_survey s = {.world = world};
    rs_status status = RS_OK;
    if (world < 1)
        return rs_error_set(RS_ERR_ARGUMENT, "a world of %d ranks has no state", world);
    s.standings = rs_calloc((size_t)world, sizeof *s.standings);
    if (s.standings == NULL)
        return rs_error_memory((size_t)world * sizeof *s.standings);
    for (int r = 0; r < world; r++)
        RS_TRY_GOTO(look(keeper, generation, r, &s), fail);
    *out = s;
    return RS_OK;
fail:
    rs_survey_fini(&s);
    return status;
}

rs_status rs_survey_judge(rs_survey *s)
{
    if (s->lost == s->world)
        return rs_error_set(s->verdict, "%s", s->reason);
    s->step = find_step(s);
    s->behind = 0;
    for (int r = 0; r < s->world; r++) {
        if (s->standings[r].lost)
            continue;
        RS_TRY(check(&s->standings[r], r, s->step));
        s->behind += s->standings[r].step < s->step;
    }
    return RS_OK;
}

rs_status rs_elastic_survey(rs_keeper *keeper, int generation, int world, rs_survey *out)
{
    rs_survey s = {0};
    RS_TRY(rs_elastic_look(keeper, generation, world, &s));
    rs_status status = rs_survey_judge(&s);
    if (status == RS_OK)
        *out = s;
    else
        rs_survey_fini(&s);
    return status;
}

void rs_survey_fini(rs_survey *survey)
{
    free(survey->standings);
    *survey = (rs_survey){0};
}

rs_status rs_elastic_delete(rs_keeper *keeper, int generation, int keep)
{
    rs_arena_place *places = NULL;
    size_t count;
    RS_TRY(rs_arena_list(keeper, &places, &count));
    rs_status status = RS_OK;
    for (size_t i = 0; i < count && status == RS_OK; i++) {
        int g = places[i].generation;
        if (generation >= 0 ? g == generation : g != keep)
            status = rs_arena_delete(keeper, g, places[i].rank, NULL);
    }
    free(places);
    return status;
}
