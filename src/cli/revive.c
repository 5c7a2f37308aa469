/*
 * A job that outlives its world.
 *
 * When the active world dies (a rank killed or stopped, out of memory, its launcher gone) its state
 * stands in the arenas of this host. The supervisor, the job's owner, ends what still writes to
 * them, takes all of them to one step (train/recover.h), and starts the next world from there: in
 * the same layout, for a dead process is not a dead device; where a slot is lost, in the first
 * --fallback that fits what is left, or else the nearest layout: tp is kept, then pp, and dp
 * shrinks. What is left over is spare.
 *
 * Arenas may be gone, with a node (elastic.md). If others hold all that was in them, nothing is
 * lost; if not, the job goes back to its newest checkpoint.
 *
 * A world may die before the job has a record, while it boots or makes its arenas. Nothing was
 * trained then, and the next one begins as it did.
 *
 * What is not survived: too many deaths, or the same one twice (elastic/survival.h); state that
 * cannot be taken to one step where there is no checkpoint. The job then ends and its state is
 * kept.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/crash.h"
#include "base/clock.h"
#include "base/error.h"
#include "cli/rescue.h"
#include "cli/resume.h"
#include "cli/subject.h"
#include "cli/supervisor.h"
#include "elastic/scale.h"

/* How the active world ended. */
typedef struct death {
    char text[400];
    noise_death first;
    bool own; /* fault of the rank */
} death;

/* What becomes of the job after this death in step `step` + 1. */
static rs_fate judge(supervisor *s, const death *d, int64_t step)
{
    bool began = s->active->stage != WORLD_BOOTS && s->active->stage != WORLD_BUILDS;
    rs_death about = {.step = step, .rank = d->first.rank, .own = d->own, .began = began};
    rs_fate fate = rs_survival_take(&s->survival.deaths, &about, s->launch->restarts);
    if (fate == RS_FATE_ALIKE && s->launch->lose_slot >= 0 && d->first.rank == s->launch->lose_slot)
        fate = RS_FATE_WITHOUT_SLOT;
    return fate;
}

/* True if the job cannot go on; the verdict says why. */
static bool is_enough(supervisor *s, const death *d, int64_t step, rs_fate fate)
{
    if (fate == RS_FATE_SAME_STEP) {
        int64_t batch = s->options->global_batch;
        snprintf(s->verdict, sizeof s->verdict,
            "step %" PRId64 " (samples %" PRId64 " to %" PRId64
            ") died twice by a rank's own fault: %s; the job has ended, the state of step %" PRId64
            " is whole. The ranks' last words:\n%s",
            step + 1, step * batch, (step + 1) * batch - 1, d->text, step, s->active->tail);
    } else if (fate == RS_FATE_TOO_OFTEN) {
        snprintf(s->verdict, sizeof s->verdict, "%s after step %" PRId64 "; the job has ended%s",
            d->text, step,
            s->launch->restarts > 0 ? ": it has been restarted as often as it may (--max-restarts)"
                                    : "");
    }
    return fate == RS_FATE_SAME_STEP || fate == RS_FATE_TOO_OFTEN;
}

static rs_status load_space(const supervisor *s, rs_space **space)
{
    rs_model model;
    RS_TRY(rs_model_load(s->options->model, &model));
    return rs_train_space(s->options, &model, space);
}

/* The layout for what is left after a slot was lost. */
static rs_status choose_layout(supervisor *s, const char *former, int left, char *out)
{
    rs_layout layout, next;
    rs_space *space = NULL;
    s->survival.lost++;
    RS_TRY(rs_layout_parse(former, &layout));
    RS_TRY(load_space(s, &space));
    rs_status status = RS_ERR_NOT_FOUND;
    const cli_list *fallback = s->launch->fallback;
    for (int i = 0; i < fallback->count && status != RS_OK; i++)
        if (rs_layout_parse(fallback->items[i], &next) == RS_OK && rs_layout_world(&next) <= left)
            status = rs_layout_check_trainable(&next, space);
    bool named = status == RS_OK;
    if (!named)
        status = rs_scale_within(&layout, space, left, &next);
    rs_space_destroy(space);
    RS_TRY(status);
    rs_layout_format(&next, out);
    fprintf(stderr, "reshard train: %s lost, %d are left: going on in %s, %s; %d spare\n",
        left == s->active->ranks - 1 ? "a rank's place is" : "places of ranks are", left, out,
        named ? "as --fallback says" : "which keeps tp, then pp, and shrinks dp",
        left - rs_layout_world(&next));
    return RS_OK;
}

static void note_restart(supervisor *s, const rs_recovery *found, const death *d)
{
    change_write(s, json_pack("{s:s,s:I,s:s,s:s,s:s,s:i}", "event", "restart", "step",
                        (json_int_t)found->step, "from", found->layout, "to", s->survival.layout,
                        "why", d->text, "restarts", s->survival.deaths.restarts));
}

static void drop_active(supervisor *s)
{
    world *w = s->active;
    s->active = NULL;
    w->stage = WORLD_LEAVES;
    change_note(s, w, "died");
    supervisor_forget(s, w);
    world_fini(w);
    free(w);
    s->stopped_rank[0] = '\0';
    s->stopped_host = -1;
}

/* The dead world stays as what the next one takes over from. */
static void keep_active(supervisor *s)
{
    const rs_train_options *o = s->options;
    world *w = s->active;
    w->bereft = true;
    w->stage = WORLD_SLEEPS;
    w->generation = s->survival.generation;
    memcpy(w->layout, s->survival.former, sizeof w->layout);
    while (w->scheduled < (int64_t)o->switch_count &&
           o->switches[w->scheduled].step < s->survival.deaths.step)
        w->scheduled++;
    change_note(s, w, "died");
    s->stopped_rank[0] = '\0';
    s->stopped_host = -1;
}

static bool ended_badly(const supervisor *s)
{
    const world *w = s->active;
    bool good = WIFEXITED(w->status) && WEXITSTATUS(w->status) == 0;
    return !good && !s->stopping && s->stop_signal == 0;
}

/* The job has a state to go on from. */
static bool has_state(const supervisor *s)
{
    bool went_back = json_is_true(json_object_get(s->active->attach, "checkpoint"));
    return went_back || launch_keeps_state(s->options);
}

/* The state in memory cannot be gone on from, as the error says. True if there is a checkpoint that
 * can be. */
static bool can_go_back(supervisor *s, rs_status status, const death *d, rs_recovery *found)
{
    rs_record record;
    bool gone = status == RS_ERR_NOT_FOUND || status == RS_ERR_MALFORMED ||
                status == RS_ERR_MISMATCH || status == RS_ERR_UNSUPPORTED;
    char why[900];
    snprintf(why, sizeof why, "%s", rs_error_message());
    int64_t saved = resume_newest(s->options);
    if (!gone || saved < 0) {
        snprintf(s->verdict, sizeof s->verdict, "%s; its state cannot be gone on from: %s%s",
            d->text, why, gone ? "; there is no checkpoint to go back to" : "");
        return false;
    }
    *found = (rs_recovery){.step = saved, .generation = -1};
    bool read = rs_record_read(s->options->job, &record) == RS_OK;
    memcpy(found->layout, read ? record.layout : s->active->layout, sizeof found->layout);
    if (read)
        rs_record_fini(&record);
    fprintf(stderr,
        "reshard train: the state in memory cannot be gone on from: %s; going back to step %" PRId64
        ", the newest checkpoint\n",
        why, saved);
    return true;
}

/* The world that was to take over from a dead one did not: that counts as another death. */
static bool try_again(supervisor *s)
{
    survival *v = &s->survival;
    const rs_death about = {.step = v->deaths.step, .rank = -1};
    if (rs_survival_take(&v->deaths, &about, s->launch->restarts) == RS_FATE_TOO_OFTEN) {
        snprintf(s->verdict, sizeof s->verdict,
            "no new world could take over the state of step %" PRId64
            ", and it has been tried as often as it may (--max-restarts)",
            v->deaths.step);
        return false;
    }
    v->when = cli_now() + rs_survival_pause(&v->deaths);
    v->pending = true;
    return true;
}

/* What is left of the places of ranks, after a slot was lost or hosts were; -1: all. */
static int places_left(const supervisor *s, const rs_recovery *found, rs_fate fate)
{
    rs_layout layout;
    int slots = s->fleet->count > 0 ? fleet_slots(s->fleet) : INT_MAX;
    int left = fate == RS_FATE_WITHOUT_SLOT ? s->active->ranks - 1 : -1;
    if (rs_layout_parse(found->layout, &layout) == RS_OK && slots < rs_layout_world(&layout))
        left = left >= 0 && left < slots ? left : slots;
    return left;
}

/* The layout to go on in; false with a verdict where there is none. Where it is another one and the
 * arenas are on several hosts, and some are lost, it may have to be from a checkpoint. */
static bool find_layout(supervisor *s, const death *d, rs_fate fate, rescue *r)
{
    survival *v = &s->survival;
    rs_layout layout;
    snprintf(v->layout, sizeof v->layout, "%s", r->found.layout);
    int left = places_left(s, &r->found, fate);
    if (left < 0)
        return true;
    if (r->unpublished > 0 && fleet_slots(s->fleet) >= r->found.world)
        return true; /* as it is once more: only so can parameters be published */
    rs_status status = choose_layout(s, r->found.layout, left, v->layout);
    if (status != RS_OK) {
        snprintf(s->verdict, sizeof s->verdict, "%s; nothing fits what is left: %s", d->text,
            rs_error_message());
        return false;
    }
    if (r->found.generation < 0 || strcmp(v->layout, r->found.layout) == 0 ||
        rs_layout_parse(v->layout, &layout) != RS_OK)
        return true;
    /* Where all arenas are there a world takes them over wherever they are. */
    if (r->found.lost > 0 || r->unpublished > 0)
        status = rescue_on_one(s->fleet, s->options->job, r, rs_layout_world(&layout));
    return status == RS_OK || can_go_back(s, status, d, &r->found);
}

/* Removes the state in memory, which is not gone on from. */
static bool drop_state(supervisor *s, const death *d)
{
    fleet_sweep(s->fleet, true);
    if (launch_drop_state(s->options) == RS_OK)
        return true;
    snprintf(s->verdict, sizeof s->verdict, "%s; what it left in memory cannot be removed: %s",
        d->text, rs_error_message());
    return false;
}

static void tell_restart(const rs_recovery *found, const death *d, bool anew, int restarts)
{
    if (found->lost > 0)
        fprintf(stderr,
            "reshard train: the arenas of %s are gone; all that they held is in others too\n",
            found->lost_ranks);
    if (anew)
        fprintf(stderr,
            "reshard train: %s before the job had begun; beginning again (restart %d)\n", d->text,
            restarts);
    else if (found->generation >= 0)
        fprintf(stderr,
            "reshard train: %s after step %" PRId64 "; going on from there (restart %d)\n", d->text,
            found->step, restarts);
    else
        fprintf(stderr, "reshard train: %s; going on from step %" PRId64 " (restart %d)\n", d->text,
            found->step, restarts);
}

static bool go_on(supervisor *s, const death *d, rescue *r)
{
    survival *v = &s->survival;
    const rs_recovery *found = &r->found;
    rs_fate fate = judge(s, d, found->step);
    if (is_enough(s, d, found->step, fate) || !find_layout(s, d, fate, r))
        return false;
    v->generation = found->generation;
    snprintf(v->former, sizeof v->former, "%s", found->layout);
    v->scheduled = found->generation >= 0 ? s->active->scheduled : 0;
    v->when = cli_now() + rs_survival_pause(&v->deaths);
    tell_restart(found, d, v->anew, v->deaths.restarts);
    note_restart(s, found, d);
    change_died(s);
    if (found->generation < 0 && !drop_state(s, d))
        return false;
    /* Another layout, and all arenas are there and whole: as from a world that lives. */
    v->takes_over = found->generation >= 0 && found->lost == 0 && r->unpublished == 0 &&
                    strcmp(v->layout, v->former) != 0;
    if (v->takes_over)
        keep_active(s);
    else
        drop_active(s);
    v->pending = true;
    return true;
}

/* The world died before there was a record. A rank that ended by its own fault, or that said what
 * is wrong, would do so again, and so would a launcher that can start none. */
static bool begin_again(supervisor *s, const death *d, bool known)
{
    const world *w = s->active;
    rescue r = {.found = {.generation = -1}};
    if (!known || d->own || w->recorded || w->attach != NULL || w->from != NULL)
        return false;
    memcpy(r.found.layout, w->layout, sizeof r.found.layout);
    s->survival.anew = true;
    return go_on(s, d, &r);
}

bool revive(supervisor *s)
{
    death d = {.text = "the world ended"};
    rescue r;
    if (!ended_badly(s))
        return false;
    if (s->active->bereft)
        return has_state(s) && try_again(s);
    s->survival.died = rs_wall_seconds();
    s->survival.anew = false;
    bool known = supervisor_death(s, d.text, sizeof d.text, &d.first, &d.own);
    if (!has_state(s))
        return begin_again(s, &d, known);
    rs_status status = rescue_job(s->fleet, s->options->job, FENCE_SECONDS, &r);
    bool can = status == RS_OK || can_go_back(s, status, &d, &r.found);
    rs_crash_point("revive.recovered");
    can = can && go_on(s, &d, &r);
    rescue_fini(&r);
    return can;
}

/* Its processes are gone, its memory is at a step's end: a world that sleeps. */
static void begin_change(supervisor *s)
{
    survival *v = &s->survival;
    s->want = (wanted){.asked = cli_now()};
    memcpy(s->want.layout, v->layout, sizeof s->want.layout);
    s->limit = cli_now() + s->launch->world_limit;
    json_decref(s->pull);
    s->pull = json_pack(
        "{s:s,s:I,s:f}", "do", "pull", "step", (json_int_t)v->deaths.step, "paused", v->died);
    s->fleet->near_count = 0;
    change_event(s, RS_HANDOVER_BEREFT);
}

void revive_tend(supervisor *s)
{
    survival *v = &s->survival;
    rs_layout layout;
    if (!v->pending || s->stopping || cli_now() < v->when)
        return;
    v->pending = false;
    int last = v->generation / RS_WORLD_GENERATIONS + 1; /* the world whose arenas they are */
    s->numbers = s->numbers > last ? s->numbers : last;
    if (v->takes_over) {
        begin_change(s);
        return;
    }
    rs_status status = rs_layout_parse(v->layout, &layout);
    if (status == RS_OK)
        status = supervisor_start(
            s, v->layout, rs_layout_world(&layout), NULL, v->scheduled, &s->active);
    s->fleet->near_count = 0;
    if (status != RS_OK) {
        snprintf(s->verdict, sizeof s->verdict, "no world to go on with: %s", rs_error_message());
        return;
    }
    if (v->generation >= 0)
        s->active->attach = json_pack("{s:i,s:s,s:I}", "generation", v->generation, "layout",
            v->former, "step", (json_int_t)v->deaths.step);
    else if (!v->anew)
        s->active->attach = json_pack("{s:b}", "checkpoint", 1);
    change_note(s, s->active, "started");
    rs_crash_point("revive.started");
}
