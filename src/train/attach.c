/*
 * A world that begins from arenas.
 *
 * Under the layout that they have, a rank maps its arena again and is where the other was. Under
 * another, every rank makes an arena of the next generation and pulls what it lacks from the mapped
 * arenas of the former one, whatever number of ranks wrote them; the content sums of both are
 * compared before the record names the new generation.
 *
 * Arenas of the former world may be gone, with their node (train/recover.c has seen to it that the
 * others hold everything). They are holders of nothing then, and the plan takes what they had from
 * others. Under the same layout the ranks that lack one make it anew in the same generation: one
 * plan in which all others keep what they have. Until it is committed it is nobody's state, so
 * being killed meanwhile changes nothing.
 *
 * Arenas of several hosts are gone on with under the same layout only as they are, because nobody
 * maps all of them: mirrors stay with the ranks that had them, though these may be on fewer hosts
 * now. The next change of worlds puts them right.
 *
 * Of a former world on several hosts, parameters may be behind that a rank keeps and one on another
 * host updates: they are published first (publish.h), as after every step, so that all that is left
 * agrees.
 */
#include "train/attach.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "reshard/move_mpi.h"
#include "reshard/native.h"
#include "train/comm.h"
#include "train/estate.h"
#include "train/nodes.h"
#include "train/publish.h"
#include "train/save.h"
#include "train/twophase.h"

bool rs_attaches(const rs_job *job)
{
    return job->options->attach >= 0;
}

/* Whether every rank of a layout has the mirror that it had. */
static bool mirrors_alike(const rs_job *job, const rs_layout *layout)
{
    const int *now = rs_job_mirrors(job), *then = job->former_nodes;
    int world = now == NULL && then == NULL ? 0 : rs_layout_world(layout);
    for (int r = 0; r < world; r++)
        for (int experts = 0; experts < 2; experts++) {
            int was = then != NULL ? rs_layout_mirror(layout, experts == 1, then, r) : -1;
            int is = now != NULL ? rs_layout_mirror(layout, experts == 1, now, r) : -1;
            if (was != is)
                return false;
        }
    return true;
}

/* Whether the layout is the former world's; `*layout` is this one's. */
static bool is_same_layout(const rs_job *job, rs_layout *layout)
{
    rs_layout former;
    return rs_attaches(job) && rs_layout_parse(job->options->attach_layout, &former) == RS_OK &&
           rs_layout_parse(job->options->layout, layout) == RS_OK &&
           rs_layout_equal(&former, layout);
}

bool rs_attaches_alike(const rs_job *job)
{
    rs_layout layout;
    return is_same_layout(job, &layout) && mirrors_alike(job, &layout);
}

/* Mirrors stay as they were. Ranks that the former world had not are on nodes of their own, as far
 * as they are on different ones now. */
static rs_status keep_mirrors(rs_job *job)
{
    int64_t former = job->former_count;
    rs_layout layout;
    if (!job->apart || !is_same_layout(job, &layout))
        return RS_OK;
    if (former > 0 && former < job->ranks) {
        int above = 0;
        int *nodes = rs_realloc(job->former_nodes, (size_t)job->ranks, sizeof *nodes);
        if (nodes == NULL)
            return rs_error_memory((size_t)job->ranks * sizeof *nodes);
        job->former_nodes = nodes;
        for (int64_t r = 0; r < former; r++)
            above = nodes[r] >= above ? nodes[r] + 1 : above;
        for (int64_t r = former; r < job->ranks; r++)
            nodes[r] = above + job->node_of[r];
        job->former_count = job->ranks;
    }
    job->mirrors = job->former_nodes;
    return RS_OK;
}

/* Rank 0, who has the record, tells the others. */
rs_status rs_attach_find_nodes(rs_job *job)
{
    rs_record record;
    rs_status status = RS_OK;
    if (job->rank == 0 && (status = rs_record_read(job->options->job, &record)) == RS_OK) {
        job->former_nodes = record.nodes;
        job->former_count = (int64_t)record.node_count;
        record.nodes = NULL;
        rs_record_fini(&record);
    }
    if (status == RS_ERR_NOT_FOUND)
        status = RS_OK;
    RS_TRY(rs_job_agree(job, status));
    rs_comm_broadcast(job->comm, 0, &job->former_count, sizeof job->former_count);
    size_t bytes = (size_t)job->former_count * sizeof *job->former_nodes;
    if (bytes > 0 && job->rank != 0 &&
        (job->former_nodes = rs_calloc((size_t)job->former_count, sizeof *job->former_nodes)) ==
            NULL)
        status = rs_error_memory(bytes);
    RS_TRY(rs_job_agree(job, status));
    if (bytes > 0)
        rs_comm_broadcast(job->comm, 0, job->former_nodes, bytes);
    return rs_job_agree(job, keep_mirrors(job));
}

/* Whether a ledger says that the rank's own state is whole at the step of all. */
static bool is_at(const rs_ledger *ledger, int64_t step)
{
    return rs_ledger_get(ledger, RS_LEDGER_UPDATING) == step &&
           rs_ledger_get(ledger, RS_LEDGER_STEP) == step;
}

/* And all that follows from the state of others. */
static bool is_whole(const rs_ledger *ledger, int64_t step)
{
    return is_at(ledger, step) && rs_ledger_get(ledger, RS_LEDGER_DERIVED) == step;
}

rs_status rs_attach_begin(rs_job *job)
{
    const rs_train_options *o = job->options;
    const rs_optimizer *optimizer = rs_train_optimizer(o);
    rs_layout layout = job->state.layout;
    rs_status status = rs_twophase_attach(&job->state, optimizer, job->keeper, job->generation);
    if (status == RS_OK && (job->state.ledger == NULL || is_at(job->state.ledger, o->attach_step)))
        return RS_OK;
    if (status != RS_OK && status != RS_ERR_NOT_FOUND)
        return status;
    /* It is gone, or on a node that recovery did not see, and elsewhere than the others. */
    rs_state_fini(&job->state);
    RS_TRY(rs_arena_delete(job->keeper, job->generation, job->rank, NULL));
    RS_TRY(rs_state_init(job->space, &layout, job->rank, rs_job_mirrors(job), &job->state));
    RS_TRY(rs_state_allocate(&job->state, job->keeper, job->generation, NULL, NULL, 0, false));
    return rs_twophase_begin(
        &job->state, optimizer, job->keeper, job->generation, o->threads, false);
}

/* ---- another layout ---- */

/* The former world. */
typedef struct former {
    rs_layout layout;
    int world;
    rs_placement *all;       /* of the layout */
    rs_placement *placement; /* what is left of it */
    bool *lost;              /* by rank: its arena is gone */
    rs_arena **arenas;       /* mapped, by rank */
    rs_memory *memories;
} former;

static void former_fini(former *f)
{
    for (int r = 0; f->arenas != NULL && r < f->world; r++)
        rs_arena_close(f->arenas[r]);
    free(f->arenas);
    free(f->memories);
    free(f->lost);
    rs_placement_destroy(f->placement);
    rs_placement_destroy(f->all);
}

/* Maps the arena of one rank of the former world. */
static rs_status open_rank(rs_job *job, former *f, int rank)
{
    rs_ledger *ledger = NULL;
    int generation = job->options->attach;
    rs_status status = rs_arena_open(job->keeper, generation, rank, false, &f->arenas[rank]);
    f->lost[rank] = status == RS_ERR_NOT_FOUND;
    if (status != RS_OK)
        return f->lost[rank] ? RS_OK : status;
    f->memories[rank] = *rs_arena_memory(f->arenas[rank]);
    RS_TRY(rs_ledger_open(job->keeper, generation, rank, false, &ledger));
    bool whole = is_whole(ledger, job->options->attach_step);
    rs_ledger_close(ledger);
    if (!whole)
        return rs_error_set(RS_ERR_MISMATCH,
            "the arena of rank %d of the former world is not at step %" PRId64
            ", as the others are",
            rank, job->options->attach_step);
    return RS_OK;
}

static rs_status open_former(rs_job *job, former *f)
{
    RS_TRY(rs_layout_parse(job->options->attach_layout, &f->layout));
    f->world = rs_layout_world(&f->layout);
    RS_TRY(rs_nodes_placement(job->space, &f->layout, job->former_nodes, &f->all));
    f->arenas = rs_calloc((size_t)f->world, sizeof(rs_arena *));
    f->memories = rs_calloc((size_t)f->world, sizeof *f->memories);
    f->lost = rs_calloc((size_t)f->world, sizeof *f->lost);
    if (f->arenas == NULL || f->memories == NULL || f->lost == NULL)
        return rs_error_memory((size_t)f->world * sizeof *f->memories);
    for (int r = 0; r < f->world; r++)
        RS_TRY(open_rank(job, f, r));
    return rs_survivors_create(f->all, f->lost, &f->placement);
}

/* The sums of the former state: every rank of this world takes its turn of those of the former. */
static rs_status sum_former(const rs_job *job, const former *f, uint64_t *words)
{
    for (int r = job->rank; r < f->world; r += job->ranks)
        RS_TRY(rs_words_add_memory(f->placement, r, &f->memories[r], words));
    return RS_OK;
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
        job->step = job->options->attach_step;
        memcpy(job->sums, after, words * sizeof *after);
        job->sums_step = job->step;
    }
    former_fini(&f);
    free(before);
    free(after);
    return status;
}

/* ---- the same layout ---- */

/* What a world needs to make lost ranks' arenas anew. */
typedef struct mending {
    rs_placement *left; /* the layout's placement without the lost ranks */
    rs_plan *plan;
    rs_arena **peers; /* mapped, by rank: of this node, where this rank pulls from them */
    rs_sums *before;
    rs_sums *after;
    uint64_t *words_before;
    uint64_t *words_after;
} mending;

static void mending_fini(const rs_job *job, mending *m)
{
    for (int r = 0; m->peers != NULL && r < job->ranks; r++)
        rs_arena_close(m->peers[r]);
    free(m->peers);
    free(m->words_before);
    free(m->words_after);
    rs_sums_destroy(m->before);
    rs_sums_destroy(m->after);
    rs_plan_destroy(m->plan);
    rs_placement_destroy(m->left);
}

static rs_status begin_mending(rs_job *job, const bool *lost, mending *m)
{
    rs_plan_options options;
    size_t words = rs_sums_word_count(job->space), count;
    rs_job_plan_options(job, &options);
    m->peers = rs_calloc((size_t)job->ranks, sizeof(rs_arena *));
    m->words_before = rs_calloc(words, sizeof *m->words_before);
    m->words_after = rs_calloc(words, sizeof *m->words_after);
    if (m->peers == NULL || m->words_before == NULL || m->words_after == NULL)
        return rs_error_memory(words * sizeof *m->words_after);
    RS_TRY(rs_survivors_create(job->state.placement, lost, &m->left));
    RS_TRY(rs_plan_create(m->left, job->state.placement, job->rank, &options, &m->plan));
    RS_TRY(rs_sums_create(m->left, job->rank, &m->before));
    RS_TRY(rs_sums_create(job->state.placement, job->rank, &m->after));
    const rs_copy *copies = rs_plan_copies(m->plan, &count);
    for (size_t i = 0; i < count; i++) {
        int source = copies[i].source;
        if (copies[i].target == job->rank && copies[i].reach == RS_REACH_NODE &&
            m->peers[source] == NULL)
            RS_TRY(rs_arena_open(job->keeper, job->generation, source, false, &m->peers[source]));
    }
    return RS_OK;
}

static rs_status lend_peer(void *context, int rank, const rs_memory **out)
{
    const mending *m = context;
    if (m->peers[rank] == NULL)
        return rs_error_set(RS_ERR_NOT_FOUND, "the arena of rank %d is not mapped", rank);
    *out = rs_arena_memory(m->peers[rank]);
    return RS_OK;
}

/* Of what there was, and of what there is now. */
static rs_status measure_mended(const rs_job *job, mending *m)
{
    const rs_memory *memory = rs_state_memory(&job->state);
    if (memory != NULL)
        RS_TRY(rs_sums_measure(m->before, memory, true));
    if (memory != NULL)
        RS_TRY(rs_sums_measure(m->after, memory, false));
    RS_TRY(rs_sums_words(m->before, m->words_before));
    return rs_sums_words(m->after, m->words_after);
}

/* Fills the arenas of the lost ranks from those of the others. */
static rs_status mend(rs_job *job, const bool *lost, int64_t *bytes)
{
    mending m = {0};
    rs_move_report report = {0};
    const rs_memory *memory = rs_state_memory(&job->state);
    rs_status status = rs_job_agree(job, begin_mending(job, lost, &m));
    if (status == RS_OK) {
        rs_move move = {.comm = job->comm,
            .from = m.left,
            .to = job->state.placement,
            .plan = m.plan,
            .old = job->rank < rs_placement_holders(m.left) && !lost[job->rank] ? memory : NULL,
            .now = memory,
            .peer = lend_peer,
            .peer_context = &m,
            .window = job->options->window,
            .after = m.after};
        rs_crash_point("mend");
        status = rs_job_agree(job, rs_move_run(&move, &report));
        rs_crash_point("mended");
    }
    if (status == RS_OK)
        status = rs_job_agree(job, measure_mended(job, &m));
    if (status == RS_OK)
        status =
            rs_job_agree(job, rs_move_verify(job->comm, job->space, m.words_before, m.words_after));
    if (status == RS_OK) {
        memcpy(job->sums, m.words_after, rs_sums_word_count(job->space) * sizeof *job->sums);
        job->sums_step = job->step;
    }
    *bytes += report.node_bytes + report.remote_bytes;
    mending_fini(job, &m);
    return status;
}

/* Everybody's `mine`, by rank; `*any`: some are true. Collective; the caller frees `*all`. */
static rs_status gather_flags(rs_job *job, bool mine, bool **all, bool *any)
{
    bool *flags = rs_calloc((size_t)job->ranks, sizeof *flags);
    rs_status status = rs_job_agree(
        job, flags != NULL ? RS_OK : rs_error_memory((size_t)job->ranks * sizeof *flags));
    if (status != RS_OK) {
        free(flags);
        return status;
    }
    MPI_Allgather(&mine, 1, MPI_C_BOOL, flags, 1, MPI_C_BOOL, job->comm);
    *any = false;
    for (int r = 0; r < job->ranks; r++)
        *any = *any || flags[r];
    *all = flags;
    return RS_OK;
}

/* Gives parameters that are behind to who keeps them: only then are all copies of one equal. */
static rs_status publish(rs_job *job, const bool *lost, int64_t *bytes)
{
    const rs_ledger *ledger = job->state.ledger;
    const rs_published all = {&job->state, rs_job_mirrors(job), lost};
    bool mine = ledger != NULL && is_at(ledger, job->step) && !is_whole(ledger, job->step), any;
    bool *behind = NULL;
    RS_TRY(gather_flags(job, mine, &behind, &any));
    rs_status status = any ? rs_publish(job->comm, &all, behind, bytes) : RS_OK;
    if (status == RS_OK && mine)
        rs_ledger_settle(job->state.ledger, job->step);
    free(behind);
    return status;
}

/* Ranks that have their arenas have their state; the others get theirs. */
static rs_status attach_alike(rs_job *job, int64_t *bytes)
{
    bool lacks = job->state.arena != NULL && rs_arena_step(job->state.arena) < 0, any;
    bool *lost = NULL;
    RS_TRY(gather_flags(job, lacks, &lost, &any));
    job->step = job->options->attach_step;
    rs_crash_step(job->step);
    rs_status status = publish(job, lost, bytes);
    if (status == RS_OK && any)
        status = mend(job, lost, bytes);
    free(lost);
    return status;
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
        RS_TRY(attach_alike(job, &bytes));
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
