/*
 * rs_train_run: sets a job up on every rank, trains, and takes it down again.
 *
 * Failures. While a job is set up and while it switches, ranks agree on a status after each phase,
 * so all return it. A rank that fails by itself in the middle of a step cannot be waited for: it
 * removes the job's arenas of its machine, tells its listener and ends the job with MPI_Abort. In a
 * supervised job the arenas are the supervisor's to remove, and a new world that fails before it
 * has taken over touches nothing but what it made. A rank that dies is noticed by the launcher,
 * which ends the others; what they leave in memory is the job's state, which the record names, and
 * can be gone on from.
 */
#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/attach.h"
#include "train/comm.h"
#include "train/job.h"
#include "train/kernels.h"
#include "train/member.h"
#include "train/record.h"
#include "train/save.h"
#include "train/signals.h"
#include "train/takeover.h"
#include "train/twophase.h"

rs_status rs_job_agree(rs_job *job, rs_status mine)
{
    rs_status status = rs_comm_agree(job->comm, mine);
    if (status != RS_OK)
        job->agreed = true;
    return status;
}

void rs_job_notice(rs_job *job, const char *format, ...)
{
    char text[1200];
    va_list args;
    if (job->rank != 0 || job->listener->notice == NULL)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    job->listener->notice(job->listener->context, text);
}

rs_status rs_job_report(rs_job *job, const char *state, const char *message, bool now)
{
    if (job->metrics == NULL)
        return RS_OK;
    rs_metrics_status status = {.state = state,
        .layout = job->layout,
        .pending = job->next.pending ? job->next.text : NULL,
        .pending_step = job->next.due > 0 ? job->next.due : 0,
        .message = message,
        .generation = job->generation};
    return rs_metrics_report(job->metrics, &status, now);
}

/* ---- setting up ---- */

/* True in a new world that has not taken over yet: the job's files and arenas are another's. */
static bool is_guest(const rs_job *job)
{
    return job->guest;
}

/* What only rank 0 does: the job directory is its. */
static rs_status open_directory(rs_job *job)
{
    rs_train_options copy = *job->options; /* shares its switches */
    if (!copy.supervised) {
        RS_TRY(rs_control_claim(copy.job, copy.resume != 0, &job->lock));
        RS_TRY(rs_train_options_save(&copy));
    }
    snprintf(job->id, sizeof job->id, "%s", copy.id);
    RS_TRY(copy.member != NULL ? rs_control_attach(copy.job, &job->control)
                               : rs_control_open(copy.job, &job->control));
    return rs_metrics_open(job->options, &job->metrics);
}

static rs_status open_local(rs_job *job)
{
    const rs_train_options *o = job->options;
    const char *folder = o->arena_dir[0] != '\0' ? o->arena_dir : NULL;
    RS_TRY(rs_model_load(o->model, &job->model));
    RS_TRY(rs_train_space(o, &job->model, &job->space));
    RS_TRY(rs_data_open(o->data, o->seq, job->model.vocab, &job->data));
    job->sums = rs_calloc(rs_sums_word_count(job->space), sizeof *job->sums);
    if (job->sums == NULL)
        return rs_error_memory(rs_sums_word_count(job->space) * sizeof *job->sums);
    RS_TRY(rs_keeper_open(job->id, folder, &job->keeper));
    rs_signals_begin();
    return RS_OK;
}

static rs_status begin_layout(rs_job *job)
{
    rs_layout layout;
    RS_TRY(rs_layout_parse(job->options->layout, &layout));
    rs_layout_format(&layout, job->layout);
    RS_TRY(rs_state_init(job->space, &layout, job->rank, rs_job_mirrors(job), &job->state));
    if (is_guest(job))
        return RS_OK;
    /* A supervisor numbers its worlds so that their generations come after. */
    if (rs_attaches(job) && job->options->member == NULL)
        job->generation = job->first_generation = job->last_generation = job->options->attach + 1;
    if (rs_attaches_alike(job)) {
        job->generation = job->options->attach;
        return rs_attach_begin(job);
    }
    RS_TRY(rs_state_allocate(&job->state, job->keeper, job->generation, NULL, NULL, 0, false));
    return rs_twophase_begin(&job->state, rs_train_optimizer(job->options), job->keeper,
        job->generation, job->options->threads, false);
}

static rs_status begin_state(rs_job *job)
{
    if (is_guest(job))
        return rs_saver_create(job, &job->saver);
    RS_TRY(rs_attaches(job) ? rs_attach_state(job) : rs_resume_state(job));
    RS_TRY(rs_saver_create(job, &job->saver));
    if (job->state.arena == NULL)
        return RS_OK;
    rs_ledger_settle(job->state.ledger, job->step);
    return rs_arena_commit(job->state.arena, job->step);
}

/* From here on what is in memory is the job's state. */
static rs_status begin_record(rs_job *job)
{
    bool unsure;
    RS_TRY(rs_job_record(job, &unsure));
    if (job->rank == 0 && job->options->member != NULL) {
        rs_status told = rs_member_tell(job->options->member, "recorded", NULL);
        (void)told; /* a supervisor that has gone need not know */
    }
    return rs_job_agree(job, rs_attach_settle(job));
}

static rs_status begin_trainer(rs_job *job)
{
    if (!job->world.member)
        return RS_OK;
    return rs_trainer_create(
        job->options, &job->model, &job->world, &job->state, job->data, &job->trainer);
}

static rs_status check_world(const rs_job *job)
{
    if (job->ranks != job->options->ranks)
        return rs_error_set(RS_ERR_ARGUMENT, "the job wants %d ranks and was started with %d",
            job->options->ranks, job->ranks);
    return RS_OK;
}

static rs_status set_up(rs_job *job)
{
    rs_layout layout;
    RS_TRY(rs_job_agree(job, check_world(job)));
    RS_TRY(rs_job_agree(job, job->rank == 0 ? open_directory(job) : RS_OK));
    rs_comm_broadcast(job->comm, 0, job->id, sizeof job->id);
    RS_TRY(rs_job_agree(job, open_local(job)));
    RS_TRY(rs_job_find_nodes(job));
    if (rs_attaches(job))
        RS_TRY(rs_attach_find_nodes(job));
    if (!is_guest(job)) {
        RS_TRY(rs_job_check_room(job));
        RS_TRY(rs_job_report(job, "starting", "", true));
    }
    RS_TRY(rs_job_agree(job, begin_layout(job)));
    if (is_guest(job))
        RS_TRY(rs_takeover_prepare(job));
    RS_TRY(rs_job_agree(job, begin_state(job)));
    if (!is_guest(job))
        RS_TRY(begin_record(job));
    layout = job->state.layout;
    rs_world_init(&job->world, &layout, rs_space_expert_count(job->space), job->comm);
    while (!rs_world_build(&job->world))
        continue;
    RS_TRY(rs_job_agree(job, begin_trainer(job)));
    if (is_guest(job)) {
        RS_TRY(rs_takeover_run(job));
        job->guest = job->ended;
    }
    return job->ended ? RS_OK : rs_job_check_redundancy(job);
}

static void tell_start(const rs_job *job)
{
    const rs_member *member = job->options->member;
    bool continues = member != NULL && rs_member_world_of(member)->from.ranks > 0;
    if (job->rank != 0 || job->listener->start == NULL || continues)
        return;
    char meaning[RS_LAYOUT_TEXT];
    rs_train_start start = {.layout = job->layout,
        .meaning = rs_layout_describe(&job->world.layout, meaning),
        .model = job->model.name,
        .ranks = job->ranks,
        .nodes = job->nodes,
        .elements = rs_space_elements(job->space),
        .state_bytes = rs_space_bytes(job->space, -1),
        .steps = job->options->steps};
    job->listener->start(job->listener->context, &start);
}

/* ---- the lease ---- */

/* A supervisor that has died is no reason: its ranks finish their step, and wait. */
rs_status rs_job_may_write(const rs_job *job)
{
    rs_member *member = job->options->member;
    if (member == NULL || rs_member_holds(member) ||
        !rs_control_is_claimed(job->options->job, NULL))
        return RS_OK;
    return rs_error_set(RS_ERR_PEER,
        "the supervisor does not answer, and may have had another world go on meanwhile");
}

void rs_job_end_unheard(const rs_job *job)
{
    if (rs_job_may_write(job) == RS_OK)
        return;
    fprintf(stderr, "reshard worker: the supervisor does not answer: this world ends, its state "
                    "stays in memory\n");
    MPI_Abort(job->comm, 1);
}

/* ---- taking down ---- */

/* Removes this rank's arenas, of all generations that may exist. */
static rs_status remove_arenas(rs_job *job)
{
    if (rs_attaches(job))
        RS_TRY(rs_arena_delete(job->keeper, job->options->attach, job->rank, NULL));
    for (int g = job->first_generation; g <= job->last_generation; g++)
        RS_TRY(rs_arena_delete(job->keeper, g, job->rank, NULL));
    return RS_OK;
}

static void close_job(rs_job *job)
{
    rs_takeover_destroy(job);
    rs_trainer_destroy(job->trainer);
    rs_saver_destroy(job->saver);
    rs_state_fini(&job->state);
    rs_signals_end();
    rs_keeper_close(job->keeper);
    rs_record_fini(&job->record);
    rs_data_close(job->data);
    rs_space_destroy(job->space);
    free(job->sums);
    free(job->node_of);
    free(job->former_nodes);
    rs_control_close(job->control);
    rs_metrics_close(job->metrics);
    rs_control_release(job->lock);
}

static void free_comms(rs_job *job)
{
    rs_world_fini(&job->world);
    if (job->host != MPI_COMM_NULL)
        MPI_Comm_free(&job->host);
    MPI_Comm_free(&job->orders);
    MPI_Comm_free(&job->comm);
}

/* A failure: says so in status.json and to the listener; ends the other ranks where they do not
 * know. */
static rs_status fail(rs_job *job, rs_status status)
{
    char message[1024];
    snprintf(message, sizeof message, "%s", rs_error_message());
    rs_member *member = job->options->member;
    bool owns = !job->keeps && !is_guest(job);
    if (job->rank == 0)
        rs_job_end_unheard(job);
    if (owns && (job->rank == 0 || !job->agreed) && rs_record_remove(job->options->job) != RS_OK)
        rs_job_notice(job, "the job's record is left over: %s", rs_error_message());
    if (owns && member == NULL && job->keeper != NULL && rs_keeper_sweep(job->keeper) != RS_OK)
        rs_job_notice(job, "arenas are left over: %s", rs_error_message());
    if (is_guest(job)) {
        bool told = job->rank == 0 && rs_member_tell(member, "failed",
                                          json_pack("{s:s}", "message", message)) == RS_OK;
        if (!job->agreed && !told)
            MPI_Abort(job->comm, 1);
        return rs_error_set(status, "%s", message);
    }
    if (rs_job_report(job, "failed", message, true) != RS_OK)
        rs_job_notice(job, "the failure is not in status.json: %s", rs_error_message());
    if ((job->rank == 0 || !job->agreed) && job->listener->failed != NULL)
        job->listener->failed(job->listener->context, job->rank, status, message);
    if (!job->agreed)
        MPI_Abort(job->comm, 1);
    return rs_error_set(status, "%s", message);
}

static rs_status finish(rs_job *job)
{
    static const char *const states[] = {"finished", "stopped", "stopped", "left"};
    rs_saver_settle(job);
    if (job->outcome == RS_TRAIN_LEFT)
        return RS_OK;
    /* Whoever dies in the last step leaves a state that can be gone on from: all are through it. */
    MPI_Barrier(job->comm);
    RS_TRY(rs_job_agree(job, rs_job_record_remove(job)));
    RS_TRY(rs_job_agree(job, remove_arenas(job)));
    RS_TRY(rs_job_agree(job, rs_job_report(job, states[job->outcome], "", true)));
    if (job->rank == 0 && job->listener->end != NULL)
        job->listener->end(job->listener->context, job->outcome, job->step);
    return RS_OK;
}

rs_status rs_train_run(const rs_train_options *options, const rs_train_listener *listener,
    MPI_Comm comm, rs_train_outcome *outcome)
{
    rs_job job = {.options = options, .listener = listener, .sums_step = -1};
    job.keeps = options->attach >= 0; /* until the world stands */
    job.host = MPI_COMM_NULL;
    rs_world_none(&job.world);
    rs_switch_reset(&job);
    MPI_Comm_dup(comm, &job.comm);
    MPI_Comm_dup(comm, &job.orders);
    MPI_Comm_rank(comm, &job.rank);
    MPI_Comm_size(comm, &job.ranks);
    rs_crash_begin(job.rank);
    omp_set_num_threads(options->threads);
    rs_product_set_threads(options->threads);
    if (options->member != NULL) {
        const rs_member_world *world = rs_member_world_of(options->member);
        job.guest = world->from.ranks > 0;
        job.generation = job.first_generation = job.last_generation = world->generation;
        job.scheduled = (size_t)world->scheduled;
    }
    rs_status status = set_up(&job);
    if (status == RS_OK) {
        job.keeps = false;
        tell_start(&job);
        status = rs_job_loop(&job);
    }
    if (status == RS_OK)
        status = finish(&job);
    if (status != RS_OK)
        status = fail(&job, status);
    else if (outcome != NULL)
        *outcome = job.outcome;
    close_job(&job);
    free_comms(&job);
    return status;
}
