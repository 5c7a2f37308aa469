/*
 * Changing the layout of a running job, in place. docs/switching.md tells the story for users.
 *
 * Ahead, while training goes on: every rank plans its part, makes its next arena (adopting segments
 * that it already holds as they must be), maps the arenas that it will pull from, and touches all
 * that in small pieces; the communicators of the next layout are built one per step boundary. Then,
 * with training stopped: all ranks agree that they are ready; bytes move; the certificate compares
 * the state before and after; the trainer of the new layout is made; the new arenas are committed,
 * the job's record names them, and the old ones are deleted.
 *
 * 1. The old state is not written to before the new one is committed (safe mode). Whatever fails
 * until then, in preparing, moving, verifying, or making the trainer, ends in the old layout, and
 * the job trains on.
 * 2. In tight mode the old state's memory is given back while bytes move, so from the move on there
 * is no way back: a failure ends the job. The record says beforehand what is moved to where, and
 * the arenas are kept: every byte is whole in one of its two places.
 * 3. Every phase ends in agreement: all ranks go on, or all go back.
 * 4. What was true of the state before (its sums) comes from the update that wrote it, or from the
 * switch before if no step lies between; what is true after is read from the new memory.
 *
 * Cost: the pause is the move plus one pass over what was moved, and the making of working memory.
 */
#include <math.h>
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
#include "train/job.h"
#include "train/record.h"
#include "train/twophase.h"

#define TOUCH_PIECE (256 << 10)
#define PEAK_LOOK 0.002 /* seconds between looks at how much memory is in use */

/* A switch while it runs. */
typedef struct running {
    rs_train_switched event;
    char from[RS_LAYOUT_TEXT];
    char message[1000];
    rs_sums *after;
    uint64_t *words_before;
    uint64_t *words_after;
    int64_t peak;
    double next_look;
    bool stuck;           /* there is no way back any more */
    uint64_t *old_hashes; /* rank 0, for tests */
    uint64_t *new_hashes;
} running;

void rs_switch_reset(rs_job *job)
{
    memset(&job->next, 0, sizeof job->next);
    rs_world_none(&job->next.world);
}

/* ---- ahead ---- */

static rs_status open_peers(rs_job *job)
{
    rs_next *n = &job->next;
    size_t count;
    const rs_copy *copies = rs_plan_copies(n->plan, &count);
    n->peers = rs_calloc((size_t)job->ranks, sizeof(rs_arena *));
    if (n->peers == NULL)
        return rs_error_memory((size_t)job->ranks * sizeof(rs_arena *));
    for (size_t i = 0; i < count; i++) {
        int source = copies[i].source;
        if (copies[i].target != job->rank || copies[i].reach != RS_REACH_NODE ||
            n->peers[source] != NULL)
            continue;
        RS_TRY(rs_arena_open(job->keeper, job->generation, source, false, &n->peers[source]));
    }
    return RS_OK;
}

static rs_status prepare(rs_job *job, const char *layout)
{
    rs_next *n = &job->next;
    const rs_train_fault *fault = &job->options->fault;
    rs_plan_options options;
    size_t adopted_count;
    rs_job_plan_options(job, &options);
    RS_TRY(rs_layout_parse(layout, &n->layout));
    rs_layout_format(&n->layout, n->text);
    rs_world_init(&n->world, &n->layout, rs_space_expert_count(job->space), job->comm);
    RS_TRY(rs_state_init(job->space, &n->layout, job->rank, rs_job_mirrors(job), &n->state));
    double begun = rs_clock_seconds();
    RS_TRY(rs_plan_create(job->state.placement, n->state.placement, job->rank, &options, &n->plan));
    n->plan_seconds = rs_clock_seconds() - begun;
    if (job->rank == 0)
        RS_TRY(rs_plan_totals_compute(
            job->state.placement, n->state.placement, &options, false, &n->totals));
    if (fault->room_switch == n->number)
        return rs_error_set(RS_ERR_BUDGET, "no room for the new layout: made up for a test");
    const int *adopted = rs_plan_adopted(n->plan, &adopted_count);
    RS_TRY(rs_state_allocate(&n->state, job->keeper, n->generation, &job->state, adopted,
        adopted_count, job->options->tight));
    RS_TRY(rs_twophase_begin(&n->state, rs_train_optimizer(job->options), job->keeper,
        n->generation, job->options->threads, job->options->tight));
    return open_peers(job);
}

void rs_switch_prepare(rs_job *job, const char *layout)
{
    rs_next *n = &job->next;
    double begun = rs_clock_seconds();
    n->pending = n->prepared = true;
    n->number = ++job->switches;
    n->generation = ++job->last_generation;
    n->status = prepare(job, layout);
    if (n->status != RS_OK)
        snprintf(n->message, sizeof n->message, "%s", rs_error_message());
    n->prepare_seconds = rs_clock_seconds() - begun;
}

void rs_switch_slice(rs_job *job)
{
    double begun = rs_clock_seconds();
    rs_world_build(&job->next.world);
    job->next.prepare_seconds += rs_clock_seconds() - begun;
}

/* One piece of the new arena, or of a peer's; false when nothing is left. */
static bool touch_piece(rs_job *job)
{
    rs_next *n = &job->next;
    if (n->state.arena != NULL && rs_arena_touch(n->state.arena, TOUCH_PIECE) > 0)
        return true;
    for (int r = 0; r < job->ranks; r++)
        if (n->peers[r] != NULL && rs_arena_touch(n->peers[r], TOUCH_PIECE) > 0)
            return true;
    return false;
}

bool rs_switch_touch(rs_job *job, double seconds)
{
    rs_next *n = &job->next;
    if (n->status != RS_OK)
        return true;
    double begun = rs_clock_seconds();
    while (!n->touched && rs_clock_seconds() - begun <= seconds)
        n->touched = !touch_piece(job);
    n->prepare_seconds += rs_clock_seconds() - begun;
    return n->touched && rs_world_is_built(&n->world);
}

/* ---- giving up and cleaning up ---- */

static void close_peers(rs_job *job)
{
    rs_next *n = &job->next;
    for (int r = 0; n->peers != NULL && r < job->ranks; r++)
        rs_arena_close(n->peers[r]);
    free(n->peers);
    n->peers = NULL;
}

/* Drops what job->next has: the new layout that is not wanted, or the old one after a swap. */
static void drop_next(rs_job *job)
{
    rs_next *n = &job->next;
    close_peers(job);
    rs_plan_destroy(n->plan);
    rs_plan_totals_fini(&n->totals);
    rs_state_fini(&n->state);
    rs_world_fini(&n->world);
    if (n->prepared &&
        rs_arena_delete(job->keeper, n->generation, job->rank, job->state.arena) != RS_OK)
        rs_job_notice(job, "an arena is left over until the job ends: %s", rs_error_message());
    rs_switch_reset(job);
}

static void answer(
    rs_job *job, const char *request, const char *state, const char *message, const char *json)
{
    if (job->rank != 0 || request[0] == '\0')
        return;
    if (rs_control_answer(job->control, request, state, message, json) != RS_OK)
        rs_job_notice(job, "the request for a switch is not answered: %s", rs_error_message());
}

void rs_switch_cancel(rs_job *job)
{
    answer(job, job->next.request, "failed", "the job ended first", NULL);
    drop_next(job);
}

/* ---- measuring ---- */

typedef struct look {
    rs_job *job;
    running *run;
} look;

/* Notes how much memory this rank's state has, old and new. In safe mode nothing is given back
 * while bytes move, so the end of the move is the peak; in tight mode looks are spaced by what they
 * cost. */
static void look_at_peak(void *context, int64_t done, int64_t total)
{
    look *l = context;
    int64_t old, new;
    double now = rs_clock_seconds();
    if (done < total && (!l->job->options->tight || now < l->run->next_look))
        return;
    if (rs_state_resident(&l->job->state, false, &old) == RS_OK &&
        rs_state_resident(&l->job->next.state, true, &new) == RS_OK)
        l->run->peak = rs_max64(l->run->peak, old + new);
    double after = rs_clock_seconds();
    l->run->next_look = after + fmax(PEAK_LOOK, 20 * (after - now));
}

static rs_status gather_hashes(rs_job *job, uint64_t **out)
{
    if (!job->options->fault.hashes)
        return RS_OK;
    rs_status status = RS_OK;
    if (job->rank == 0) {
        *out = rs_calloc((size_t)job->ranks, sizeof **out);
        if (*out == NULL)
            status = rs_error_memory((size_t)job->ranks * sizeof **out);
    }
    RS_TRY(rs_job_agree(job, status));
    uint64_t mine = rs_state_hash(&job->state);
    MPI_Gather(&mine, 1, MPI_UINT64_T, *out, 1, MPI_UINT64_T, 0, job->comm);
    return RS_OK;
}

/* ---- the pause, phase by phase ---- */

/* Completes what was not ready in time, and takes the sums of the state as it is. */
static rs_status quiesce(rs_job *job, running *run)
{
    rs_next *n = &job->next;
    size_t words = rs_sums_word_count(job->space);
    rs_status status = n->status;
    if (status != RS_OK)
        status = rs_error_set(status, "%s", n->message);
    RS_TRY(rs_job_agree(job, status));
    while (!rs_world_build(&n->world))
        continue;
    while (!rs_switch_touch(job, INFINITY))
        continue;
    run->words_before = rs_calloc(words, sizeof *run->words_before);
    run->words_after = rs_calloc(words, sizeof *run->words_after);
    if (run->words_before == NULL || run->words_after == NULL)
        status = rs_error_memory(words * sizeof *run->words_before);
    if (status == RS_OK)
        status = rs_sums_create(n->state.placement, job->rank, &run->after);
    if (status == RS_OK && job->sums_step == job->step && job->rank == 0)
        memcpy(run->words_before, job->sums, words * sizeof *run->words_before);
    if (status == RS_OK && job->sums_step != job->step && job->trainer != NULL)
        status = rs_sums_words(rs_trainer_sums(job->trainer), run->words_before);
    return rs_job_agree(job, status);
}

/* What the plan says of the whole cluster, as far as there is a plan; rank 0. */
static void fill_forecast(const rs_next *n, rs_train_forecast *f)
{
    const rs_plan_totals *t = &n->totals;
    f->bytes_moved = t->moved;
    f->bytes_minimum = t->minimum;
    f->bytes_adopted = t->adopted;
    f->rank_bytes_max = t->rank_bytes_max;
    f->rank_bytes_bound = t->rank_bytes_bound;
    f->bound_kind = t->bound_kind != NULL ? t->bound_kind : "none";
    f->peak_safe = t->peak_safe;
    f->peak_tight = t->peak_tight;
}

/* Adds the segments of a state in whole pages, as arenas hold them, but for those that `plan`
 * adopts. */
static rs_status add_pages(const rs_state *state, const rs_plan *plan, int64_t page, int64_t *bytes)
{
    rs_segment_list segments = {0};
    if (!state->holds)
        return RS_OK;
    RS_TRY(rs_placement_segments(state->placement, state->rank, &segments));
    for (size_t i = 0; i < segments.count; i++)
        if (plan == NULL || !rs_plan_is_adopted(plan, segments.items[i].segment))
            *bytes += rs_round_up(segments.items[i].bytes, page);
    rs_segment_list_fini(&segments);
    return RS_OK;
}

/* Completes the figures known before anything moves, and tells them. */
static rs_status forecast(rs_job *job, running *run)
{
    rs_next *n = &job->next;
    rs_train_forecast *f = &run->event.forecast;
    int64_t window = job->options->window > 0 ? job->options->window : RS_MOVE_WINDOW;
    int64_t page = sysconf(_SC_PAGESIZE), old = 0, peaks[2] = {0, 0}, most_peaks[2];
    rs_status status = rs_plan_peak_tight(n->plan, window, page, &peaks[1]);
    if (status == RS_OK)
        status = add_pages(&job->state, NULL, page, &old);
    if (status == RS_OK)
        status = add_pages(&n->state, n->plan, page, &peaks[0]);
    peaks[0] += old;
    RS_TRY(rs_job_agree(job, status));
    double mine[2] = {n->plan_seconds, n->prepare_seconds}, most[2];
    MPI_Reduce(peaks, most_peaks, 2, MPI_INT64_T, MPI_MAX, 0, job->comm);
    MPI_Reduce(mine, most, 2, MPI_DOUBLE, MPI_MAX, 0, job->comm);
    if (job->rank != 0)
        return RS_OK;
    f->peak_safe = most_peaks[0];
    f->peak_tight = most_peaks[1];
    run->event.seconds.plan = most[0];
    run->event.seconds.prepare = most[1];
    answer(job, n->request, "moving", "training is stopped, bytes move", NULL);
    if (job->listener->forecast != NULL)
        job->listener->forecast(job->listener->context, f);
    return RS_OK;
}

static rs_status lend_peer(void *context, int rank, const rs_memory **out)
{
    const rs_job *job = context;
    const rs_arena *arena = job->next.peers[rank];
    if (arena == NULL || job->options->fault.move_switch == job->next.number)
        return rs_error_set(RS_ERR_NOT_FOUND, "the arena of rank %d is not mapped", rank);
    *out = rs_arena_memory(arena);
    return RS_OK;
}

static rs_status move(rs_job *job, running *run)
{
    rs_next *n = &job->next;
    look l = {job, run};
    rs_move_report report;
    bool tight = job->options->tight;
    rs_move m = {.comm = job->comm,
        .from = job->state.placement,
        .to = n->state.placement,
        .plan = n->plan,
        .old = rs_state_memory(&job->state),
        .now = rs_state_memory(&n->state),
        .peer = lend_peer,
        .peer_context = job,
        .window = job->options->window,
        .after = run->after,
        .tight = tight ? job->state.arena : NULL,
        .tight_now = tight ? n->state.arena : NULL,
        .progress = look_at_peak,
        .progress_context = &l};
    if (tight) {
        RS_TRY(rs_job_record_building(job));
        job->keeps = true;
    }
    run->stuck = tight;
    rs_crash_point("move");
    rs_status status =
        tight && job->state.ledger != NULL ? rs_ledger_punch(job->state.ledger) : RS_OK;
    RS_TRY(rs_job_agree(job, status));
    status = rs_move_run(&m, &report);
    rs_crash_point("moved");
    look_at_peak(&l, 1, 1);
    return status;
}

/* Test hook: flips a bit of the first segment that is new, and forgets what the move had summed. */
static rs_status spoil(rs_job *job, running *run)
{
    rs_next *n = &job->next;
    const rs_memory *memory = rs_state_memory(&n->state);
    for (size_t i = 0; memory != NULL && i < memory->count; i++) {
        if (rs_plan_is_adopted(n->plan, memory->regions[i].segment))
            continue;
        *(unsigned char *)memory->regions[i].data ^= 1;
        break;
    }
    return memory != NULL ? rs_sums_measure(run->after, memory, true) : RS_OK;
}

static rs_status verify(rs_job *job, running *run)
{
    rs_next *n = &job->next;
    const rs_memory *memory = rs_state_memory(&n->state);
    rs_status status = RS_OK;
    size_t adopted_count;
    const int *adopted = rs_plan_adopted(n->plan, &adopted_count);
    if (memory != NULL && job->trainer != NULL && job->sums_step != job->step)
        rs_sums_adopt(run->after, rs_trainer_sums(job->trainer), adopted, adopted_count);
    if (memory != NULL)
        status = rs_sums_measure(run->after, memory, false);
    if (status == RS_OK && job->options->fault.certificate_switch == n->number)
        status = spoil(job, run);
    if (status == RS_OK)
        status = rs_sums_words(run->after, run->words_after);
    RS_TRY(rs_job_agree(job, status));
    run->event.certificate = "failed";
    RS_TRY(rs_move_verify(job->comm, job->space, run->words_before, run->words_after));
    run->event.certificate = "ok";
    memcpy(job->sums, run->words_after, rs_sums_word_count(job->space) * sizeof *job->sums);
    job->sums_step = job->step;
    return RS_OK;
}

#define SWAP(type, a, b)                                                                           \
    do {                                                                                           \
        type swap_ = (a);                                                                          \
        (a) = (b);                                                                                 \
        (b) = swap_;                                                                               \
    } while (0)

/* Exchanges the job's layout with the prepared one; twice is nothing. */
static void swap_layouts(rs_job *job)
{
    rs_next *n = &job->next;
    char text[RS_LAYOUT_TEXT];
    SWAP(rs_world, job->world, n->world);
    SWAP(rs_state, job->state, n->state);
    SWAP(int, job->generation, n->generation);
    memcpy(text, job->layout, sizeof text);
    memcpy(job->layout, n->text, sizeof text);
    memcpy(n->text, text, sizeof text);
}

static rs_status make_trainer(rs_job *job)
{
    rs_trainer_destroy(job->trainer);
    job->trainer = NULL;
    if (!job->world.member)
        return RS_OK;
    if (job->options->tight && job->state.ledger != NULL)
        RS_TRY(rs_ledger_reserve(job->state.ledger));
    return rs_trainer_create(
        job->options, &job->model, &job->world, &job->state, job->data, &job->trainer);
}

/* Makes the new layout the job's. Until all have committed, it goes back on failure (safe mode). */
static rs_status commit(rs_job *job, running *run)
{
    char why[1000];
    bool unsure = false;
    rs_crash_point("verified");
    swap_layouts(job);
    rs_status status = make_trainer(job);
    if (job->options->fault.commit_switch == job->next.number && job->rank == job->ranks - 1)
        status = rs_error_set(RS_ERR_NO_MEMORY, "no working memory: made up for a test");
    status = rs_job_agree(job, status);
    if (status == RS_OK && job->state.ledger != NULL)
        rs_ledger_settle(job->state.ledger, job->step);
    if (status == RS_OK)
        status = rs_job_agree(
            job, job->state.arena != NULL ? rs_arena_commit(job->state.arena, job->step) : RS_OK);
    if (status == RS_OK)
        status = rs_job_record(job, &unsure);
    if (status == RS_OK) {
        job->keeps = false;
        return RS_OK;
    }
    snprintf(why, sizeof why, "%s", rs_error_message());
    swap_layouts(job);
    run->stuck = run->stuck || unsure;
    job->keeps = job->keeps || unsure;
    if (!run->stuck && rs_job_agree(job, make_trainer(job)) != RS_OK)
        run->stuck = true;
    return rs_error_set(status, "%s", why);
}

static rs_status run_phases(rs_job *job, running *run)
{
    rs_train_phases *s = &run->event.seconds;
    double t[5];
    t[0] = rs_clock_seconds();
    RS_TRY(quiesce(job, run));
    RS_TRY(gather_hashes(job, &run->old_hashes));
    RS_TRY(forecast(job, run));
    t[1] = rs_clock_seconds();
    s->quiesce = t[1] - t[0];
    RS_TRY(move(job, run));
    t[2] = rs_clock_seconds();
    s->move = t[2] - t[1];
    RS_TRY(verify(job, run));
    t[3] = rs_clock_seconds();
    s->verify = t[3] - t[2];
    RS_TRY(commit(job, run));
    rs_crash_point("committed");
    close_peers(job);
    t[4] = rs_clock_seconds();
    s->commit = t[4] - t[3];
    return RS_OK;
}

/* ---- telling ---- */

/* The forecast counts whole pages, so the measured peak must not exceed it. */
static void check_peak(rs_job *job, const rs_train_switched *event)
{
    const rs_train_forecast *f = &event->forecast;
    int64_t most = f->tight ? f->peak_tight : f->peak_safe;
    if (event->peak_bytes > most)
        rs_job_notice(job, "the switch used %lld bytes on a rank, and %lld were predicted",
            (long long)event->peak_bytes, (long long)most);
}

static rs_status tell(rs_job *job, running *run, const char *request)
{
    const char *message = run->event.message;
    bool done = run->event.status == RS_OK;
    char *json = NULL;
    MPI_Reduce(&run->peak, &run->event.peak_bytes, 1, MPI_INT64_T, MPI_MAX, 0, job->comm);
    if (job->rank != 0)
        return RS_OK;
    rs_metrics_proof proof = {.ranks = job->ranks,
        .old_hashes = run->old_hashes,
        .new_hashes = run->new_hashes,
        .sums = job->options->fault.hashes ? run->words_after : NULL,
        .sum_count = rs_sums_word_count(job->space)};
    RS_TRY(rs_metrics_switch(job->metrics, &run->event, &proof, &json));
    answer(job, request, done ? "done" : "failed", message, json);
    free(json);
    if (job->listener->switched != NULL)
        job->listener->switched(job->listener->context, &run->event);
    if (done)
        check_peak(job, &run->event);
    return rs_job_report(job, "training", message, true);
}

/* After the phases: back to training, in one layout or the other. */
static rs_status settle(rs_job *job, running *run, const char *request)
{
    rs_status status = run->event.status;
    if (!run->stuck || status == RS_OK) {
        job->agreed = false;
        drop_next(job);
    }
    if (status == RS_OK)
        RS_TRY(gather_hashes(job, &run->new_hashes));
    RS_TRY(tell(job, run, request));
    if (status == RS_ERR_CERTIFICATE)
        job->keeps = false; /* what is known to be wrong is not gone on from */
    if (run->stuck && status != RS_OK)
        return rs_error_set(status,
            "the switch to %s failed where it could not be undone any more: %s",
            run->event.forecast.to, run->message);
    return RS_OK;
}

rs_status rs_switch_run(rs_job *job)
{
    rs_next *n = &job->next;
    running run = {.event = {.certificate = "none", .message = run.message}};
    char to[RS_LAYOUT_TEXT], request[RS_CONTROL_NAME];
    memcpy(run.from, job->layout, sizeof run.from);
    memcpy(to, n->text, sizeof to);
    memcpy(request, n->request, sizeof request);
    run.event.forecast = (rs_train_forecast){
        .step = job->step, .from = run.from, .to = to, .tight = job->options->tight};
    fill_forecast(n, &run.event.forecast);
    rs_status status = rs_job_report(job, "switching", "", true);
    if (status != RS_OK)
        rs_job_notice(job, "status.json cannot be written: %s", rs_error_message());
    run.event.status = run_phases(job, &run);
    if (run.event.status != RS_OK)
        snprintf(run.message, sizeof run.message, "%s", rs_error_message());
    status = settle(job, &run, request);
    if (status == RS_OK && run.event.status == RS_OK)
        status = rs_job_check_redundancy(job);
    rs_sums_destroy(run.after);
    free(run.words_before);
    free(run.words_after);
    free(run.old_hashes);
    free(run.new_hashes);
    return status;
}
