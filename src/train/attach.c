/*
 * A world that begins from arenas.
 *
 * Under the layout that they have, a rank maps its arena again and is where the other was. Under
 * another, every rank makes an arena of the next generation and pulls what it lacks from the mapped
 * arenas of the former one, whatever number of ranks wrote them; the content sums of both are
 * compared before the record names the new generation.
 */
#include "train/attach.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "reshard/move_mpi.h"
#include "reshard/native.h"
#include "train/save.h"
#include "train/twophase.h"

bool rs_attaches(const rs_job *job)
{
    return job->options->attach >= 0;
}

bool rs_attaches_alike(const rs_job *job)
{
    rs_layout former, layout;
    return rs_attaches(job) && rs_layout_parse(job->options->attach_layout, &former) == RS_OK &&
           rs_layout_parse(job->options->layout, &layout) == RS_OK &&
           rs_layout_equal(&former, &layout);
}

/* The former world. */
typedef struct former {
    rs_layout layout;
    int world;
    rs_placement *placement;
    rs_arena **arenas; /* mapped, by rank */
    rs_memory *memories;
    int64_t step;
} former;

static void former_fini(former *f)
{
    for (int r = 0; f->arenas != NULL && r < f->world; r++)
        rs_arena_close(f->arenas[r]);
    free(f->arenas);
    free(f->memories);
    rs_placement_destroy(f->placement);
}

static rs_status open_former(rs_job *job, former *f)
{
    int generation = job->options->attach;
    RS_TRY(rs_layout_parse(job->options->attach_layout, &f->layout));
    f->world = rs_layout_world(&f->layout);
    RS_TRY(rs_layout_placement(job->space, &f->layout, &f->placement));
    f->arenas = rs_calloc((size_t)f->world, sizeof(rs_arena *));
    f->memories = rs_calloc((size_t)f->world, sizeof *f->memories);
    if (f->arenas == NULL || f->memories == NULL)
        return rs_error_memory((size_t)f->world * sizeof *f->memories);
    for (int r = 0; r < f->world; r++) {
        rs_ledger *ledger = NULL;
        RS_TRY(rs_arena_open(job->keeper, generation, r, false, &f->arenas[r]));
        f->memories[r] = *rs_arena_memory(f->arenas[r]);
        RS_TRY(rs_ledger_open(job->keeper, generation, r, false, &ledger));
        int64_t step = rs_ledger_get(ledger, RS_LEDGER_STEP);
        bool whole =
            rs_ledger_get(ledger, RS_LEDGER_DERIVED) == step && (r == 0 || step == f->step);
        rs_ledger_close(ledger);
        f->step = step;
        if (!whole)
            return rs_error_set(RS_ERR_MISMATCH,
                "the arena of rank %d of the former world is not at the step of the others", r);
    }
    return RS_OK;
}

/* The sums of the former state: every rank of this world takes its turn of those of the former. */
static rs_status sum_former(const rs_job *job, const former *f, uint64_t *words)
{
    size_t count = rs_sums_word_count(job->space);
    uint64_t *mine = rs_calloc(count, sizeof *mine);
    if (mine == NULL)
        return rs_error_memory(count * sizeof *mine);
    rs_status status = RS_OK;
    for (int r = job->rank; r < f->world && status == RS_OK; r += job->ranks) {
        rs_sums *sums = NULL;
        status = rs_sums_create(f->placement, r, &sums);
        if (status == RS_OK)
            status = rs_sums_measure(sums, &f->memories[r], true);
        if (status == RS_OK)
            status = rs_sums_words(sums, mine);
        for (size_t i = 0; i < count && status == RS_OK; i++)
            words[i] += mine[i];
        rs_sums_destroy(sums);
    }
    free(mine);
    return status;
}

static rs_status pull(const rs_job *job, const former *f, uint64_t *words, int64_t *bytes)
{
    rs_plan *plan = NULL;
    rs_sums *sums = NULL;
    rs_plan_options options = {0};
    rs_move_report report = {0};
    const rs_memory *now = rs_state_memory(&job->state);
    rs_status status =
        rs_plan_create(f->placement, job->state.placement, job->rank, &options, &plan);
    if (status == RS_OK)
        status = rs_sums_create(job->state.placement, job->rank, &sums);
    if (status == RS_OK && now != NULL)
        status =
            rs_move_pull(plan, f->placement, job->state.placement, f->memories, now, sums, &report);
    if (status == RS_OK && now != NULL)
        status = rs_sums_measure(sums, now, false);
    if (status == RS_OK)
        status = rs_sums_words(sums, words);
    *bytes = report.self_bytes + report.node_bytes + report.remote_bytes;
    rs_sums_destroy(sums);
    rs_plan_destroy(plan);
    return status;
}

static rs_status attach_otherwise(rs_job *job, int64_t *bytes)
{
    former f = {0};
    size_t words = rs_sums_word_count(job->space);
    uint64_t *before = rs_calloc(words, sizeof *before), *after = rs_calloc(words, sizeof *after);
    rs_status status = RS_OK;
    if (before == NULL || after == NULL)
        status = rs_error_memory(words * sizeof *before);
    if (status == RS_OK)
        status = open_former(job, &f);
    if (status == RS_OK)
        status = sum_former(job, &f, before);
    if (status == RS_OK)
        status = pull(job, &f, after, bytes);
    status = rs_job_agree(job, status);
    if (status == RS_OK)
        status = rs_move_verify(job->comm, job->space, before, after);
    if (status == RS_OK) {
        job->step = f.step;
        memcpy(job->sums, after, words * sizeof *after);
        job->sums_step = job->step;
    }
    former_fini(&f);
    free(before);
    free(after);
    return status;
}

/* The step of this rank's arena, the same on all ranks that have one. */
static rs_status attach_alike(rs_job *job)
{
    const rs_ledger *ledger = job->state.ledger;
    int64_t mine = ledger != NULL ? rs_ledger_get(ledger, RS_LEDGER_STEP) : -1, most;
    MPI_Allreduce(&mine, &most, 1, MPI_INT64_T, MPI_MAX, job->comm);
    rs_status status = RS_OK;
    if (ledger != NULL && (mine != most || rs_ledger_get(ledger, RS_LEDGER_DERIVED) != mine))
        status = rs_error_set(RS_ERR_MISMATCH,
            "its arena is at step %" PRId64 ", that of another rank at %" PRId64, mine, most);
    job->step = most;
    return rs_job_agree(job, status);
}

/* Rank 0: the job's directory is that of a job after step `job->step`. */
static rs_status settle_directory(rs_job *job, int64_t bytes)
{
    char folder[RS_TRAIN_PATH + 16], text[RS_HUMAN];
    RS_TRY(rs_save_clean(rs_save_folder(job->options, folder)));
    RS_TRY(rs_metrics_cut(job->metrics, job->step));
    while (job->scheduled < job->options->switch_count &&
           job->options->switches[job->scheduled].step < job->step)
        job->scheduled++;
    if (bytes > 0)
        rs_job_notice(job,
            "goes on from step %" PRId64 ", which was kept in memory under %s (%s "
            "copied)",
            job->step, job->options->attach_layout, rs_human_bytes(bytes, text));
    else
        rs_job_notice(job, "goes on from step %" PRId64 ", which was kept in memory", job->step);
    return RS_OK;
}

rs_status rs_attach_state(rs_job *job)
{
    int64_t bytes = 0, all;
    if (rs_attaches_alike(job))
        RS_TRY(attach_alike(job));
    else
        RS_TRY(attach_otherwise(job, &bytes));
    MPI_Allreduce(&bytes, &all, 1, MPI_INT64_T, MPI_SUM, job->comm);
    return rs_job_agree(job, job->rank == 0 ? settle_directory(job, all) : RS_OK);
}

rs_status rs_attach_settle(rs_job *job)
{
    if (job->rank != 0 || !rs_attaches(job) || rs_attaches_alike(job))
        return RS_OK;
    return rs_elastic_delete(job->keeper, job->options->attach, -1);
}
