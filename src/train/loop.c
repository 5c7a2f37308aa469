/*
 * The training loop: steps, and what happens between them.
 *
 * At each step every rank of the layout sends rank 0 a few numbers (loss, squared norm, how far it
 * is with preparing a switch) and gets back the totals and one order, what to do after this step:
 * so all that is agreed about a step costs one gather and one broadcast of a few bytes, and sums
 * are made once, in the order of ranks. Ranks beyond the layout take no part: they look for a
 * message from rank 0, and sleep between looks.
 *
 * 1. Rank 0 decides, everybody obeys; orders reach all ranks in the same sequence.
 * 2. An order acts after its step has committed on every rank of the layout.
 * 3. A switch is prepared first (PREPARE, then one SLICE per communicator, memory touched in small
 * pieces in between) and done when it is due, or when every rank has said that it is ready. A rank
 * that failed to prepare says so in the same way, and the switch is given up in rs_switch_run,
 * where all agree.
 * 4. The switch that is in preparation is the only one.
 */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/comm.h"
#include "train/job.h"
#include "train/member.h"
#include "train/requests.h"
#include "train/save.h"
#include "train/signals.h"
#include "train/takeover.h"
#include "train/twophase.h"

#define TAG_ORDER 91
#define TAG_REPORT 92
#define TAG_WAKE 94

#define AHEAD 32         /* steps before a scheduled switch at which its preparation begins */
#define TOUCH_SHARE 0.02 /* of a step's time goes to touching memory ahead */
#define IDLE_NAP 0.002   /* seconds between an idle rank's looks */
#define IDLE_TOUCH 0.02  /* seconds of touching between two looks */
#define SUPERVISOR 1.0   /* seconds between looks for the supervisor */
#define ORPHAN_NAP 0.05  /* seconds between looks while there is none */

/* What a rank says at the end of a step's gradient. */
typedef struct summary {
    double loss;
    double square;
    rs_moe_totals routing;
    int ready;   /* prepared, or failed to */
    int written; /* what it saves */
    int signalled;
} summary;

/* What it gets back. */
typedef struct verdict {
    double loss;           /* mean over the step's tokens */
    double square;         /* of the whole gradient */
    rs_moe_totals routing; /* balance: mean over the step's tokens */
    rs_order order;
} verdict;

/* True if a signal tells this rank that the job is to end. */
static bool is_told_to_end(const rs_job *job)
{
    const rs_member *member = job->options->member;
    return rs_signals_caught() && (member == NULL || !rs_member_moves_away(member));
}

/* An idle rank's word to rank 0. */
typedef struct report {
    int signalled;
    int64_t number; /* of the switch for which it is ready */
} report;

/* ---- rank 0 decides ---- */

/* A scheduled switch that this world has too few ranks for needs another one, once its step has
 * come; one to the layout in use needs nothing. False: it is an ordinary one. */
static bool pass_scheduled(rs_job *job, const rs_train_switch *s, int64_t step)
{
    rs_layout layout;
    if (rs_layout_parse(s->layout, &layout) != RS_OK)
        return false;
    if (rs_layout_equal(&layout, &job->world.layout)) {
        job->scheduled++;
        return true;
    }
    if (rs_layout_world(&layout) <= job->ranks)
        return false;
    if (step < s->step)
        return true;
    job->scheduled++;
    if (job->options->member == NULL || rs_requests_elsewhere(job, "", s->layout, "") != RS_OK)
        rs_job_notice(job,
            "the switch to %s after step %lld needs more ranks than the %d there are", s->layout,
            (long long)s->step, job->ranks);
    return true;
}

/* The next switch of the options, if it is time to prepare it. */
static bool take_scheduled(rs_job *job, rs_order *order)
{
    const rs_train_options *o = job->options;
    if (job->scheduled == o->switch_count || job->held)
        return false;
    const rs_train_switch *s = &o->switches[job->scheduled];
    if (order->step < s->step - AHEAD || pass_scheduled(job, s, order->step))
        return false;
    job->scheduled++;
    rs_switch_reset(job);
    job->next.pending = true;
    job->next.due = s->step;
    snprintf(job->next.text, sizeof job->next.text, "%s", s->layout);
    order->kind = RS_ORDER_PREPARE;
    snprintf(order->layout, sizeof order->layout, "%s", job->next.text);
    order->more = order->step >= s->step;
    return true;
}

static void read_reports(rs_job *job)
{
    for (;;) {
        int there;
        report r;
        MPI_Iprobe(MPI_ANY_SOURCE, TAG_REPORT, job->orders, &there, MPI_STATUS_IGNORE);
        if (!there)
            return;
        rs_comm_receive(job->orders, MPI_ANY_SOURCE, TAG_REPORT, &r, sizeof r);
        job->signalled = job->signalled || r.signalled;
        if (job->next.pending && r.number == job->next.number)
            job->next.idle_ready++;
    }
}

/* True if this job's supervisor is gone. */
static bool is_orphan(rs_job *job)
{
    if (job->options->member != NULL && rs_member_is_orphan(job->options->member))
        return true;
    double now = rs_clock_seconds();
    if (!job->options->supervised || now - job->looked < SUPERVISOR)
        return false;
    job->looked = now;
    return !rs_control_is_claimed(job->options->job, NULL);
}

/*
 * The supervisor is gone, and the step is whole: the state waits in memory for a new owner, who
 * ends these processes before he reads it. If none comes in time, the job ends as it would on
 * SIGTERM, saving what it is to save.
 */
static void wait_for_owner(rs_job *job)
{
    double deadline = rs_clock_seconds() + 60 * job->options->orphan_minutes;
    int there = 0, word = 0;
    if (job->rank != 0) {
        while (!there) {
            rs_nap(ORPHAN_NAP);
            MPI_Iprobe(0, TAG_WAKE, job->orders, &there, MPI_STATUS_IGNORE);
        }
        rs_comm_receive(job->orders, 0, TAG_WAKE, &word, sizeof word);
        return;
    }
    while (rs_clock_seconds() < deadline && !rs_signals_caught())
        rs_nap(ORPHAN_NAP);
    job->signalled = true;
    for (int r = 1; r < job->world.size; r++)
        rs_comm_send(job->orders, r, TAG_WAKE, &word, sizeof word);
}

/* Whether the ranks of the layout are `ready` is known from their summaries (false where there are
 * none). */
static rs_status decide(rs_job *job, bool ready, rs_order *order)
{
    rs_next *next = &job->next;
    read_reports(job);
    RS_TRY(rs_requests_take(job, order));
    rs_job_end_unheard(job);
    bool last = order->step >= job->options->steps;
    if (is_orphan(job) && !job->signalled && !job->stop_asked) {
        order->kind = RS_ORDER_WAIT;
        order->more = true;
        return RS_OK;
    }
    if (job->signalled || job->stop_asked) {
        order->kind = RS_ORDER_STOP;
        order->outcome = job->stop_asked ? RS_TRAIN_STOPPED : RS_TRAIN_TERMINATED;
    } else if (order->kind == RS_ORDER_PREPARE) {
        order->more = last;
    } else if (next->pending) {
        bool due = next->due >= 0 ? order->step >= next->due : last;
        bool all = ready && next->idle_ready == job->ranks - job->world.size;
        order->kind = due || (next->due < 0 && all)     ? RS_ORDER_SWITCH
                      : rs_world_is_built(&next->world) ? RS_ORDER_NONE
                                                        : RS_ORDER_SLICE;
        order->more = order->kind == RS_ORDER_SWITCH;
    } else if (job->leave_asked && !last) {
        order->kind = RS_ORDER_LEAVE;
        order->more = true;
    } else if (!take_scheduled(job, order) && last) {
        order->kind = RS_ORDER_STOP;
        order->outcome = RS_TRAIN_FINISHED;
    }
    /* What a save has to do comes first; what it displaces is decided anew. */
    rs_order_kind save = order->kind == RS_ORDER_PREPARE
                             ? RS_ORDER_NONE
                             : rs_saver_decide(job, order->step, order->kind);
    if (save != RS_ORDER_NONE) {
        order->kind = save;
        order->more = true;
    }
    return RS_OK;
}

/* Tells the ranks beyond the layout, which have not been told with the others. */
static void tell_idle(const rs_job *job, const rs_order *order)
{
    if (job->rank != 0 || order->kind == RS_ORDER_NONE || order->kind == RS_ORDER_WAIT)
        return;
    for (int r = job->world.size; r < job->ranks; r++)
        rs_comm_send(job->orders, r, TAG_ORDER, order, sizeof *order);
}

/* ---- ways to get an order ---- */

/* Between steps: rank 0 announces the next order to the ranks of the layout. */
static rs_status hear(rs_job *job, rs_order *order)
{
    memset(order, 0, sizeof *order);
    order->step = job->step;
    if (job->rank == 0) {
        job->signalled = job->signalled || is_told_to_end(job);
        RS_TRY(decide(job, false, order));
    }
    rs_comm_broadcast(job->world.all, 0, order, sizeof *order);
    return RS_OK;
}

/* An idle rank: waits for an order, and touches memory meanwhile. */
static void wait_for_order(rs_job *job, rs_order *order)
{
    rs_next *next = &job->next;
    for (;;) {
        int there;
        MPI_Iprobe(0, TAG_ORDER, job->orders, &there, MPI_STATUS_IGNORE);
        if (there)
            break;
        bool ready = next->pending && rs_switch_touch(job, IDLE_TOUCH);
        bool told = !ready || next->reported;
        if (!told || job->signalled != is_told_to_end(job)) {
            next->reported = ready;
            job->signalled = is_told_to_end(job);
            report r = {job->signalled, told ? 0 : next->number};
            rs_comm_send(job->orders, 0, TAG_REPORT, &r, sizeof r);
        } else if (!next->pending || next->touched || ready) {
            rs_nap(IDLE_NAP);
        }
    }
    rs_comm_receive(job->orders, 0, TAG_ORDER, order, sizeof *order);
    job->step = order->step;
}

/* Everybody's numbers to rank 0, the totals and the order back. */
static rs_status summarise(rs_job *job, const summary *mine, verdict *out)
{
    summary *all = NULL;
    memset(out, 0, sizeof *out);
    if (job->rank == 0) {
        all = rs_calloc((size_t)job->world.size, sizeof *all);
        if (all == NULL)
            return rs_error_memory((size_t)job->world.size * sizeof *all);
    }
    rs_comm_gather(job->world.all, 0, mine, sizeof *mine, all);
    rs_status status = RS_OK;
    if (job->rank == 0) {
        bool ready = true, written = true;
        for (int r = 0; r < job->world.size; r++) {
            out->loss += all[r].loss;
            out->square += all[r].square;
            out->routing.balance += all[r].routing.balance;
            out->routing.close += all[r].routing.close;
            ready = ready && all[r].ready;
            written = written && all[r].written;
            job->signalled = job->signalled || all[r].signalled;
        }
        free(all);
        out->loss /= (double)(job->options->global_batch * job->options->seq);
        out->routing.balance /= (double)(job->options->global_batch * job->options->seq);
        out->order.step = job->step + 1;
        rs_saver_all_written(job->saver, written);
        status = decide(job, ready, &out->order);
    }
    RS_TRY(status);
    rs_comm_broadcast(job->world.all, 0, out, sizeof *out);
    return RS_OK;
}

/* ---- a step ---- */

static rs_status inject_faults(const rs_job *job, int64_t step)
{
    const rs_train_fault *f = &job->options->fault;
    if (f->kill_step == step && f->kill_rank == job->rank)
        raise(SIGKILL);
    if (f->error_step == step && f->error_rank == job->rank)
        return rs_error_set(RS_ERR_IO, "data file %s: a failure made for a test in step %lld",
            job->options->data, (long long)step);
    return RS_OK;
}

/* The numbers of the step that has just been computed, `begun` when it was. */
static rs_step_note make_note(const rs_job *job, int64_t step, const verdict *v, double begun)
{
    const rs_train_options *o = job->options;
    double norm = sqrt(v->square), lr = rs_learning_rate(o->lr, o->warmup, o->steps, step);
    double chosen = (double)(o->global_batch * o->seq * job->model.experts_per_token);
    float share = (float)(chosen / (double)rs_max64(1, job->model.experts));
    return (rs_step_note){.rate = {step, (float)lr, (float)rs_clip_factor(norm), share},
        .loss = v->loss,
        .grad_norm = norm,
        .lr = lr,
        .seconds = rs_clock_seconds() - begun,
        .time = rs_wall_seconds(),
        .tokens = o->global_batch * o->seq,
        .samples = step * o->global_batch,
        .experts = job->model.experts > 0,
        .aux_loss = v->routing.balance,
        .close = v->routing.close};
}

/* Appends the step's line: before the next step can be ready, so at most one line is ever missing.
 */
static rs_status tell_step(rs_job *job, const rs_step_note *note)
{
    if (job->rank != 0)
        return RS_OK;
    rs_train_step line = rs_step_line(note, job->options->steps, job->layout);
    rs_crash_point("line");
    rs_job_end_unheard(job);
    RS_TRY(rs_metrics_step(job->metrics, &line));
    RS_TRY(rs_job_report(job, "training", "", false));
    if (job->listener->step != NULL)
        job->listener->step(job->listener->context, &line);
    return RS_OK;
}

static rs_status train_step(rs_job *job, rs_order *order)
{
    double begun = rs_clock_seconds();
    int64_t step = job->step + 1;
    summary mine;
    verdict v;
    memset(&mine, 0, sizeof mine);
    rs_crash_step(step);
    if (job->next.pending)
        mine.ready = rs_switch_touch(job, TOUCH_SHARE * job->step_seconds);
    else
        rs_saver_ahead(job, TOUCH_SHARE * job->step_seconds);
    mine.signalled = is_told_to_end(job);
    mine.written = rs_saver_written(job->saver);
    RS_TRY(rs_trainer_gradients(job->trainer, step, &mine.loss, &mine.square));
    mine.routing = rs_trainer_routing(job->trainer);
    RS_TRY(inject_faults(job, step));
    RS_TRY(summarise(job, &mine, &v));
    rs_step_note note = make_note(job, step, &v, begun);
    if (!isfinite(note.grad_norm) || !isfinite(v.loss)) {
        job->agreed = job->rank != 0; /* all of the layout know; rank 0 ends the idle ones */
        return rs_error_set(RS_ERR_MISMATCH,
            "step %lld: the loss (%g) or the gradient's norm (%g) is not finite: lower the "
            "learning rate",
            (long long)step, v.loss, note.grad_norm);
    }
    rs_trainer_direct(job->trainer, &note.rate);
    rs_twophase_ready(&job->state, &note);
    MPI_Barrier(job->world.all);
    rs_trainer_update(job->trainer, &note.rate);
    job->step = step;
    note.seconds = job->step_seconds = rs_clock_seconds() - begun;
    *order = v.order;
    return tell_step(job, &note);
}

static rs_status obey(rs_job *job, const rs_order *order)
{
    tell_idle(job, order);
    switch (order->kind) {
    case RS_ORDER_NONE:
        break;
    case RS_ORDER_PREPARE:
        rs_switch_prepare(job, order->layout);
        break;
    case RS_ORDER_SLICE:
        rs_switch_slice(job);
        break;
    case RS_ORDER_SWITCH:
        rs_saver_forget(job->saver);
        return rs_switch_run(job);
    case RS_ORDER_LEAVE:
        rs_saver_forget(job->saver);
        return rs_world_leave(job);
    case RS_ORDER_SAVE:
        rs_saver_begin(job);
        break;
    case RS_ORDER_SAVED:
        return rs_saver_end(job);
    case RS_ORDER_WAIT:
        wait_for_owner(job);
        break;
    case RS_ORDER_STOP:
        if (job->next.pending)
            rs_switch_cancel(job);
        job->outcome = (rs_train_outcome)order->outcome;
        job->ended = true;
        break;
    }
    return RS_OK;
}

rs_status rs_job_loop(rs_job *job)
{
    rs_order order = {.more = true};
    while (!job->ended) {
        if (!job->world.member)
            wait_for_order(job, &order);
        else if (order.more)
            RS_TRY(hear(job, &order));
        else
            RS_TRY(train_step(job, &order));
        RS_TRY(obey(job, &order));
    }
    return RS_OK;
}
