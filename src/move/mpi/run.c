/*
 * Moves and certificates inside an MPI job.
 *
 * A move is three phases, each with one outcome for all: agree on the mode; check and allocate,
 * without which nothing is sent; move. Within the last phase a rank that fails does its part for
 * the others (engine.h), so that all come to its end.
 *
 * The certificate is a sum of 64-bit words, exact in any order, so a plain reduction gives every
 * rank the same bits, and comparing them the same status.
 */
#include "reshard/move_mpi.h"

#include "base/checked.h"
#include "base/error.h"
#include "move/engine.h"
#include "move/mpi/mpi.h"

#define REDUCE_WORDS (1 << 20)

/* Local: what can be said of the arguments alone. */
static rs_status check_arguments(const rs_move *move)
{
    int size = 0;
    int rank = 0;
    RS_TRY(rs_mpi_check(MPI_Comm_size(move->comm, &size), "asking for the size"));
    RS_TRY(rs_mpi_check(MPI_Comm_rank(move->comm, &rank), "asking for the rank"));
    int holders = rs_placement_holders(move->from) - move->lenders;
    if (rs_placement_holders(move->to) > holders)
        holders = rs_placement_holders(move->to);
    if (size < holders)
        return rs_error_set(RS_ERR_ARGUMENT,
            "the communicator has %d ranks, the larger placement %d", size, holders);
    size_t count;
    const rs_copy *copies = rs_plan_copies(move->plan, &count);
    for (size_t i = 0; move->lenders > 0 && !move->ferried && i < count; i++)
        if (copies[i].source >= holders && copies[i].reach == RS_REACH_REMOTE)
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "holder %d is memory of another node: nobody is there to send it",
                copies[i].source);
    if (rs_plan_rank(move->plan) != rank)
        return rs_error_set(RS_ERR_ARGUMENT, "rank %d was given the plan of rank %d", rank,
            rs_plan_rank(move->plan));
    if (move->window < 0)
        return rs_error_set(RS_ERR_ARGUMENT, "window of %lld bytes", (long long)move->window);
    return RS_OK;
}

/* Collective: whether any rank asks for tight mode. */
static rs_status agree_on_mode(const rs_move *move, bool *tight)
{
    int mine = move->tight != NULL || move->tight_now != NULL;
    int any = 0;
    RS_TRY(rs_mpi_check(
        MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, move->comm), "agreeing on the mode"));
    *tight = any != 0;
    return RS_OK;
}

/* Collective: what a task needs is taken on all ranks, or nothing is sent. */
static rs_status run_engine(MPI_Comm comm, rs_engine_task *task, rs_move_report *report)
{
    rs_transport transport = {0};
    rs_engine *engine = NULL;
    task->transport = &transport;
    rs_status status = rs_mpi_transport_init(comm, RS_MPI_PART, &transport);
    if (status == RS_OK)
        status = rs_engine_create(task, &engine);
    status = rs_mpi_agree(comm, status);
    if (status == RS_OK)
        status = rs_mpi_agree(comm, rs_engine_run(engine, report));
    rs_engine_destroy(engine);
    rs_mpi_transport_fini(&transport);
    return status;
}

static rs_status run(const rs_move *move, rs_move_report *report)
{
    bool tight = false;
    MPI_Comm comm = move->comm;
    RS_TRY(rs_mpi_agree(comm, check_arguments(move)));
    RS_TRY(agree_on_mode(move, &tight));
    rs_engine_task task = {.from = move->from,
        .to = move->to,
        .plan = move->plan,
        .ferried = move->ferried,
        .old = move->old,
        .now = move->now,
        .peer = move->peer,
        .peer_context = move->peer_context,
        .window = move->window > 0 ? move->window : RS_MOVE_WINDOW,
        .after = move->after,
        .tight = tight,
        .tight_old = move->tight,
        .tight_now = move->tight_now,
        .progress = move->progress,
        .progress_context = move->progress_context};
    return run_engine(comm, &task, report);
}

rs_status rs_move_run(const rs_move *move, rs_move_report *report)
{
    MPI_Errhandler saved;
    RS_TRY(rs_mpi_enter(move->comm, &saved));
    rs_status status = run(move, report);
    rs_mpi_leave(move->comm, saved);
    return status;
}

/* Local: whether the copies are those of a process of this communicator. */
static rs_status check_ferry(const rs_ferry *ferry, int rank, int size)
{
    for (size_t i = 0; i < ferry->count; i++) {
        const rs_copy *copy = &ferry->copies[i];
        int from = ferry->process_of[copy->source], to = ferry->process_of[copy->target];
        if (copy->reach != RS_REACH_REMOTE || from == to || (from != rank && to != rank) ||
            from < 0 || from >= size || to < 0 || to >= size)
            return rs_error_set(RS_ERR_ARGUMENT,
                "a ferry's process %d of %d was given a copy from holder %d (process %d) to holder "
                "%d (process %d)",
                rank, size, copy->source, from, copy->target, to);
    }
    if (ferry->window < 0)
        return rs_error_set(RS_ERR_ARGUMENT, "window of %lld bytes", (long long)ferry->window);
    return RS_OK;
}

static rs_status run_ferry(const rs_ferry *ferry, rs_move_report *report)
{
    int rank = 0, size = 0;
    RS_TRY(rs_mpi_check(MPI_Comm_rank(ferry->comm, &rank), "asking for the rank"));
    RS_TRY(rs_mpi_check(MPI_Comm_size(ferry->comm, &size), "asking for the size"));
    RS_TRY(rs_mpi_agree(ferry->comm, check_ferry(ferry, rank, size)));
    rs_engine_task task = {.from = ferry->from,
        .to = ferry->to,
        .peer = ferry->source,
        .target = ferry->target,
        .peer_context = ferry->context,
        .rank = rank,
        .process_of = ferry->process_of,
        .processes = size,
        .copies = ferry->copies,
        .count = ferry->count,
        .window = ferry->window > 0 ? ferry->window : RS_MOVE_WINDOW};
    return run_engine(ferry->comm, &task, report);
}

rs_status rs_ferry_run(const rs_ferry *ferry, rs_move_report *report)
{
    MPI_Errhandler saved;
    RS_TRY(rs_mpi_enter(ferry->comm, &saved));
    rs_status status = run_ferry(ferry, report);
    rs_mpi_leave(ferry->comm, saved);
    return status;
}

static rs_status reduce(MPI_Comm comm, uint64_t *words, size_t count)
{
    for (size_t at = 0; at < count; at += REDUCE_WORDS) {
        int n = (int)rs_min64((int64_t)(count - at), REDUCE_WORDS);
        RS_TRY(rs_mpi_check(MPI_Allreduce(MPI_IN_PLACE, words + at, n, MPI_UINT64_T, MPI_SUM, comm),
            "adding up the certificate"));
    }
    return RS_OK;
}

rs_status rs_move_verify(MPI_Comm comm, const rs_space *space, uint64_t *before, uint64_t *after)
{
    MPI_Errhandler saved;
    size_t count = rs_sums_word_count(space);
    RS_TRY(rs_mpi_enter(comm, &saved));
    rs_status status = reduce(comm, before, count);
    if (status == RS_OK)
        status = reduce(comm, after, count);
    rs_mpi_leave(comm, saved);
    if (status != RS_OK)
        return status;
    return rs_sums_compare(space, before, after, -1);
}
