/*
 * A new world takes over the state of an old one through its arenas.
 *
 * The ranks of the new world plan from a heritage (elastic/heritage.h): the old world's segments,
 * dealt to them so that what is already right is adopted where it lies, whichever old rank of the
 * host has it. The rest is pulled from the old arenas of the host, or brought from other hosts by a
 * ferry (ferry.c), which the supervisor starts where the plan has copies between hosts. The old
 * world is not told anything but when to stop and when to go, and its memory is not written to
 * before the commit.
 *
 * 1. Ahead, while the old world trains: boot, communicators, plan, arenas, every page touched, the
 *    trainer's own memory. Then sleep.
 * 2. In the pause: pull, while the ferry carries; sum what is here now against the sums that the
 * old world gave (or, where it died and could not, sums of its memory made here), mark the arenas
 * complete, report. The supervisor writes the commit record and says "train".
 * 3. Whatever fails until then ends this world; the old one trains on.
 */
#include "train/takeover.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "reshard/move_mpi.h"
#include "train/comm.h"
#include "train/estate.h"
#include "train/member.h"
#include "train/save.h"
#include "train/twophase.h"

/* What a new world keeps from its preparation to the end of the pull. */
struct rs_takeover {
    rs_estate estate;
    rs_plan *plan;
    rs_plan_totals totals;
    double plan_seconds;
    double begun;
};

void rs_takeover_destroy(rs_job *job)
{
    struct rs_takeover *t = job->takeover;
    if (t == NULL)
        return;
    rs_estate_close(&t->estate);
    rs_plan_destroy(t->plan);
    rs_plan_totals_fini(&t->totals);
    free(t);
    job->takeover = NULL;
}

/* ---- ahead ---- */

/* Maps what this rank has of the old world, and what it pulls from. */
static rs_status open_sources(rs_job *job)
{
    struct rs_takeover *t = job->takeover;
    size_t count;
    const rs_copy *copies = rs_plan_copies(t->plan, &count);
    RS_TRY(rs_estate_map(&t->estate, job->rank));
    for (size_t i = 0; i < count; i++)
        if (copies[i].target == job->rank && copies[i].reach != RS_REACH_REMOTE)
            RS_TRY(rs_estate_map(&t->estate, copies[i].source));
    return RS_OK;
}

static rs_status allocate(rs_job *job)
{
    struct rs_takeover *t = job->takeover;
    size_t count;
    const int *adopted = rs_plan_adopted(t->plan, &count);
    rs_adoption *all = rs_calloc(count, sizeof *all);
    if (all == NULL)
        return rs_error_memory(count * sizeof *all);
    for (size_t i = 0; i < count; i++)
        all[i] = (rs_adoption){adopted[i],
            t->estate.arenas[rs_heritage_source(t->estate.heritage, job->rank, adopted[i])]};
    rs_status status = rs_state_take_over(&job->state, job->keeper, job->generation, all, count);
    free(all);
    if (status == RS_OK)
        status = rs_twophase_begin(&job->state, rs_train_optimizer(job->options), job->keeper,
            job->generation, job->options->threads, false);
    return status;
}

static rs_status prepare(rs_job *job, const rs_member_world *world)
{
    struct rs_takeover *t = job->takeover;
    rs_plan_options options;
    double begun = rs_clock_seconds();
    RS_TRY(rs_estate_open(
        &t->estate, job->keeper, job->space, job->state.placement, world, world->hosts[job->rank]));
    const rs_placement *source = rs_heritage_placement(t->estate.heritage);
    rs_estate_plan_options(&t->estate, &options);
    RS_TRY(rs_plan_create(source, job->state.placement, job->rank, &options, &t->plan));
    t->plan_seconds = rs_clock_seconds() - begun;
    if (job->rank == 0)
        RS_TRY(rs_plan_totals_compute(source, job->state.placement, &options, false, &t->totals));
    RS_TRY(open_sources(job));
    return allocate(job);
}

/* The supervisor starts a ferry where anything changes host. The arenas that it fills are there. */
static rs_status tell_planned(rs_job *job)
{
    if (job->rank != 0)
        return RS_OK;
    return rs_member_tell(job->options->member, "planned",
        json_pack("{s:I}", "ferried", (json_int_t)job->takeover->totals.remote.bytes));
}

rs_status rs_takeover_prepare(rs_job *job)
{
    rs_status status = RS_OK;
    job->takeover = rs_calloc(1, sizeof *job->takeover);
    if (job->takeover == NULL)
        status = rs_error_memory(sizeof *job->takeover);
    RS_TRY(rs_job_agree(job, status));
    job->takeover->begun = rs_clock_seconds();
    status = prepare(job, rs_member_world_of(job->options->member));
    rs_crash_point("takeover.made");
    RS_TRY(rs_job_agree(job, status));
    return rs_job_agree(job, tell_planned(job));
}

/* ---- the pause ---- */

/* What the new world measures while it takes over. */
typedef struct pull {
    rs_train_switched event;
    rs_sums *after;
    uint64_t *before_words;
    uint64_t *after_words;
    bool ferried;  /* a ferry carries what changes host */
    double paused; /* when the old world's last step ended, in seconds since 1970 */
    rs_train_step last;
} pull;

static void end_unwanted(rs_job *job)
{
    job->ended = true;
    job->outcome = RS_TRAIN_LEFT;
}

/* Sums of the old world's memory, where it has given none: the new ranks of a host take turns with
 * the old ones that were there. Those of hosts without a new rank are the ferry's. */
static rs_status measure_old(rs_job *job, pull *p)
{
    const rs_member_world *world = rs_member_world_of(job->options->member);
    int host = world->hosts[job->rank], mates = 0, before = 0, turn = 0;
    for (int r = 0; r < world->ranks; r++) {
        mates += world->hosts[r] == host;
        before += world->hosts[r] == host && r < job->rank;
    }
    for (int i = 0; i < world->from.ranks; i++)
        if (world->from.hosts[i] == host && turn++ % mates == before)
            RS_TRY(rs_estate_sum(&job->takeover->estate, i, p->before_words));
    return RS_OK;
}

/* Sums that came with a word are rank 0's contribution. */
static rs_status read_sums(rs_job *job, const json_t *sums, pull *p)
{
    return job->rank == 0 ? rs_words_add_json(sums, p->before_words, rs_sums_word_count(job->space))
                          : RS_OK;
}

/* The old world's last step, for whoever looks at the status before the first of this one. */
static void read_last(const rs_job *job, const json_t *word, rs_train_step *out)
{
    *out = (rs_train_step){.step = job->step,
        .steps = job->options->steps,
        .loss = json_number_value(json_object_get(word, "loss")),
        .grad_norm = json_number_value(json_object_get(word, "grad_norm")),
        .lr = json_number_value(json_object_get(word, "lr")),
        .seconds = json_number_value(json_object_get(word, "seconds")),
        .tokens = job->options->global_batch * job->options->seq,
        .samples = job->step * job->options->global_batch,
        .time = json_number_value(json_object_get(word, "paused"))};
}

static rs_status begin_pull(rs_job *job, const json_t *word, pull *p)
{
    size_t words = rs_sums_word_count(job->space);
    const json_t *sums = json_object_get(word, "sums");
    job->step = json_integer_value(json_object_get(word, "step"));
    p->paused = json_number_value(json_object_get(word, "paused"));
    p->ferried = json_is_true(json_object_get(word, "ferry"));
    read_last(job, word, &p->last);
    p->event.seconds.quiesce = json_number_value(json_object_get(word, "quiesce"));
    p->before_words = rs_calloc(words, sizeof *p->before_words);
    p->after_words = rs_calloc(words, sizeof *p->after_words);
    if (p->before_words == NULL || p->after_words == NULL)
        return rs_error_memory(words * sizeof *p->after_words);
    RS_TRY(rs_sums_create(job->state.placement, job->rank, &p->after));
    return json_is_array(sums) ? read_sums(job, sums, p) : measure_old(job, p);
}

static rs_status move(rs_job *job, pull *p)
{
    struct rs_takeover *t = job->takeover;
    rs_move_report report;
    rs_move m = {.comm = job->comm,
        .lenders = t->estate.old_ranks,
        .ferried = true,
        .from = rs_heritage_placement(t->estate.heritage),
        .to = job->state.placement,
        .plan = t->plan,
        .old = &t->estate.holders[job->rank],
        .now = rs_state_memory(&job->state),
        .peer = rs_estate_lend,
        .peer_context = &t->estate,
        .window = job->options->window,
        .after = p->after};
    return rs_move_run(&m, &report);
}

static rs_status verify(rs_job *job, pull *p)
{
    const rs_train_fault *fault = &job->options->fault;
    const rs_memory *memory = rs_state_memory(&job->state);
    p->event.certificate = "failed";
    rs_status status = RS_OK;
    if (fault->certificate_world == rs_member_world_of(job->options->member)->number) {
        *(unsigned char *)memory->regions[0].data ^= 1;
        status = rs_sums_measure(p->after, memory, true);
    }
    if (status == RS_OK)
        status = rs_sums_measure(p->after, memory, false);
    if (status == RS_OK)
        status = rs_sums_words(p->after, p->after_words);
    RS_TRY(rs_job_agree(job, status));
    /* All have the same answer; agreeing tells them that all know, and nobody aborts the others. */
    RS_TRY(
        rs_job_agree(job, rs_move_verify(job->comm, job->space, p->before_words, p->after_words)));
    p->event.certificate = "ok";
    memcpy(job->sums, p->after_words, rs_sums_word_count(job->space) * sizeof *job->sums);
    job->sums_step = job->step;
    return RS_OK;
}

/* The new state is whole: says so in the arenas, and to the supervisor. */
static rs_status certify(rs_job *job, const pull *p)
{
    if (job->state.ledger != NULL)
        rs_ledger_settle(job->state.ledger, job->step);
    RS_TRY(rs_job_agree(
        job, job->state.arena != NULL ? rs_arena_commit(job->state.arena, job->step) : RS_OK));
    if (job->rank != 0)
        return RS_OK;
    const rs_train_phases *s = &p->event.seconds;
    return rs_member_tell(job->options->member, "certified",
        json_pack(
            "{s:I,s:f,s:f}", "step", (json_int_t)job->step, "move", s->move, "verify", s->verify));
}

/* Where a ferry is under way: until it has carried what changes host, and let go of the arenas. */
static rs_status await_ferry(rs_job *job, pull *p)
{
    json_t *word = NULL;
    if (!p->ferried)
        return RS_OK;
    RS_TRY(rs_member_sleep(job->options->member, &word));
    const json_t *sums = json_object_get(word, "sums");
    rs_status status = RS_OK;
    if (!rs_member_says(word, "verify"))
        end_unwanted(job);
    else if (json_is_array(sums))
        status = rs_job_agree(job, read_sums(job, sums, p));
    json_decref(word);
    return status;
}

static rs_status pull_state(rs_job *job, const json_t *word, pull *p)
{
    rs_train_phases *s = &p->event.seconds;
    RS_TRY(rs_job_agree(job, begin_pull(job, word, p)));
    rs_crash_point("takeover.pull");
    double begun = rs_clock_seconds();
    RS_TRY(rs_job_agree(job, move(job, p)));
    RS_TRY(await_ferry(job, p));
    if (job->ended)
        return RS_OK;
    s->move = rs_clock_seconds() - begun;
    rs_crash_point("takeover.moved");
    begun = rs_clock_seconds();
    RS_TRY(verify(job, p));
    s->verify = rs_clock_seconds() - begun;
    rs_crash_point("takeover.verified");
    RS_TRY(rs_job_agree(job, certify(job, p)));
    rs_crash_point("takeover.certified");
    return RS_OK;
}

/* ---- telling ---- */

static void fill_forecast(rs_job *job, rs_train_forecast *f, const char *from)
{
    const rs_plan_totals *t = &job->takeover->totals;
    *f = (rs_train_forecast){.step = job->step,
        .from = from,
        .to = job->layout,
        .bytes_moved = t->moved,
        .bytes_minimum = t->minimum,
        .bytes_adopted = t->adopted,
        .rank_bytes_max = t->rank_bytes_max,
        .rank_bytes_bound = t->rank_bytes_bound,
        .bound_kind = t->bound_kind != NULL ? t->bound_kind : "none",
        .peak_safe = t->peak_safe,
        .peak_tight = t->peak_tight};
}

/* The switch is done: its line, just before the first step, so that the pause is the whole of it.
 */
static rs_status tell(rs_job *job, pull *p)
{
    const rs_member_world *world = rs_member_world_of(job->options->member);
    struct rs_takeover *t = job->takeover;
    rs_train_phases *s = &p->event.seconds;
    int64_t own = 0;
    rs_status status = job->state.arena != NULL ? rs_arena_resident(job->state.arena, &own) : RS_OK;
    if (status == RS_OK)
        MPI_Reduce(&own, &p->event.peak_bytes, 1, MPI_INT64_T, MPI_MAX, 0, job->comm);
    RS_TRY(rs_job_agree(job, status));
    if (job->rank != 0)
        return RS_OK;
    rs_metrics_go_on(job->metrics, &p->last);
    fill_forecast(job, &p->event.forecast, world->from.layout);
    s->plan = t->plan_seconds;
    p->event.status = RS_OK;
    p->event.message = "";
    p->event.world = world->number;
    p->event.bytes_ferried = t->totals.remote.bytes;
    p->event.pause = p->paused > 0 ? rs_wall_seconds() - p->paused : 0;
    double rest = p->event.pause - s->quiesce - s->move - s->verify;
    s->commit = rest > 0 ? rest : 0;
    rs_metrics_proof proof = {.ranks = job->ranks,
        .sums = job->options->fault.hashes ? p->after_words : NULL,
        .sum_count = rs_sums_word_count(job->space)};
    char *json = NULL;
    RS_TRY(rs_metrics_switch(job->metrics, &p->event, &proof, &json));
    json_t *event = json_loads(json, 0, NULL);
    free(json);
    if (job->listener->switched != NULL)
        job->listener->switched(job->listener->context, &p->event);
    RS_TRY(rs_member_tell(job->options->member, "training", event));
    return rs_job_report(job, "training", "", true);
}

rs_status rs_takeover_run(rs_job *job)
{
    rs_member *member = job->options->member;
    struct rs_takeover *t = job->takeover;
    pull p = {.event = {.certificate = "none", .message = ""}};
    json_t *word = NULL;
    rs_status status;
    rs_estate_touch(&t->estate, &job->state.arena, 1);
    p.event.seconds.prepare = rs_clock_seconds() - t->begun;
    rs_crash_point("takeover.ready");
    RS_TRY_GOTO(
        rs_job_agree(job, job->rank == 0 ? rs_member_tell(member, "ready", NULL) : RS_OK), done);
    RS_TRY_GOTO(rs_member_sleep(member, &word), done);
    if (!rs_member_says(word, "pull")) {
        end_unwanted(job);
        goto done;
    }
    status = pull_state(job, word, &p);
    json_decref(word);
    word = NULL;
    if (status == RS_OK && !job->ended)
        status = rs_member_sleep(member, &word);
    if (status != RS_OK || job->ended)
        goto done;
    if (!rs_member_says(word, "train")) {
        end_unwanted(job);
        goto done;
    }
    rs_crash_point("takeover.train");
    status = tell(job, &p);
    rs_crash_point("takeover.told");
done:
    json_decref(word);
    rs_sums_destroy(p.after);
    free(p.before_words);
    free(p.after_words);
    rs_takeover_destroy(job);
    return status;
}

/* ---- the old world ---- */

/* The sums of the state, added up on every rank. */
static rs_status sum_state(rs_job *job, uint64_t *words)
{
    size_t count = rs_sums_word_count(job->space);
    rs_status status = RS_OK;
    if (job->sums_step == job->step) {
        memcpy(words, job->sums, count * sizeof *words);
        return RS_OK;
    }
    if (job->trainer != NULL)
        status = rs_sums_words(rs_trainer_sums(job->trainer), words);
    RS_TRY(rs_job_agree(job, status));
    rs_comm_sum_words(job->comm, words, count);
    memcpy(job->sums, words, count * sizeof *words);
    job->sums_step = job->step;
    return RS_OK;
}

static rs_status give(rs_job *job, const uint64_t *words, double paused, double begun)
{
    json_t *sums = rs_words_to_json(words, rs_sums_word_count(job->space));
    const rs_train_step *last = rs_metrics_last(job->metrics);
    return rs_member_tell(job->options->member, "quiesced",
        json_pack("{s:I,s:f,s:f,s:I,s:o,s:f,s:f,s:f,s:f}", "step", (json_int_t)job->step, "paused",
            paused, "quiesce", rs_clock_seconds() - begun, "scheduled", (json_int_t)job->scheduled,
            "sums", sums, "loss", last->loss, "grad_norm", last->grad_norm, "lr", last->lr,
            "seconds", last->seconds));
}

static rs_status stop_here(rs_job *job, double paused, double begun)
{
    size_t count = rs_sums_word_count(job->space);
    uint64_t *words = rs_calloc(count, sizeof *words);
    rs_status status = words != NULL ? RS_OK : rs_error_memory(count * sizeof *words);
    RS_TRY(rs_job_agree(job, status));
    rs_saver_settle(job);
    status = sum_state(job, words);
    if (status == RS_OK)
        status = rs_job_agree(
            job, job->state.arena != NULL ? rs_arena_commit(job->state.arena, job->step) : RS_OK);
    rs_crash_point("leave.marked");
    if (status == RS_OK)
        status = rs_job_agree(job, job->rank == 0 ? give(job, words, paused, begun) : RS_OK);
    rs_crash_point("leave.told");
    free(words);
    return status;
}

rs_status rs_world_leave(rs_job *job)
{
    double begun = rs_clock_seconds(), paused = rs_wall_seconds();
    json_t *word = NULL;
    rs_crash_point("leave.begin");
    if (rs_job_report(job, "switching", "", true) != RS_OK)
        rs_job_notice(job, "status.json cannot be written: %s", rs_error_message());
    rs_status status = stop_here(job, paused, begun);
    if (status == RS_OK)
        status = rs_member_sleep(job->options->member, &word);
    job->leave_asked = false;
    job->held = false;
    if (status == RS_ERR_PEER) { /* the supervisor is gone: the loop waits for another one */
        job->agreed = false;
        return RS_OK;
    }
    rs_crash_point("leave.end");
    if (status == RS_OK && rs_member_says(word, "leave"))
        end_unwanted(job);
    json_decref(word);
    if (!job->ended && rs_job_report(job, "training", "", true) != RS_OK)
        rs_job_notice(job, "status.json cannot be written: %s", rs_error_message());
    return status;
}
