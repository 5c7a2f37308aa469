/*
 * The ferry: carries what changes host when a new world takes over from an old one.
 *
 * Neither world has ranks on all hosts that give or take, so a third job does it, one process for
 * each host. It makes the same heritage and the same plans as the new world, and of these the
 * copies between hosts: reads from the old world's arenas of its host, and writes into those of the
 * new one. What stays within a host is the new ranks' affair, at the same time.
 *
 * 1. Ahead, while the old world trains: plans, maps, touches; then it sleeps.
 * 2. It writes as the guest of arenas that others own (rs_arena_open_guest): the fence knows it.
 *    Before it says that it has carried, it has let go of them; only after that may a new rank
 *    verify and commit. What it wrote is summed by the new ranks, from where it lies: a ferry is
 *    not believed.
 * 3. Where the old world died and gave no sums, the ferry makes those of the old ranks on whose
 *    host no new rank is. The new ranks make the others.
 */
#include "train/ferry.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "reshard/move_mpi.h"
#include "train/comm.h"
#include "train/estate.h"
#include "train/nodes.h"

typedef struct ferry {
    const rs_train_options *options;
    rs_member *member;
    const rs_member_world *world; /* that it carries for */
    MPI_Comm comm;
    int rank;
    int host;
    rs_model model;
    rs_space *space;
    rs_keeper *keeper;
    rs_placement *now;
    rs_estate estate;
    rs_copy *copies;
    size_t count;
    int *process_of;    /* of each holder of the heritage */
    rs_arena **targets; /* of the new ranks of this host to which something is carried */
} ferry;

static void close_targets(ferry *f)
{
    for (int r = 0; f->targets != NULL && r < f->world->ranks; r++)
        rs_arena_close(f->targets[r]);
    free(f->targets);
    f->targets = NULL;
}

static void ferry_fini(ferry *f)
{
    close_targets(f);
    free(f->process_of);
    free(f->copies);
    rs_estate_close(&f->estate);
    rs_placement_destroy(f->now);
    rs_keeper_close(f->keeper);
    rs_space_destroy(f->space);
}

/* ---- ahead ---- */

static rs_status find_processes(ferry *f)
{
    const int *hosts = rs_heritage_hosts(f->estate.heritage);
    int size;
    MPI_Comm_size(f->comm, &size);
    f->process_of = rs_calloc((size_t)f->estate.holders_count, sizeof *f->process_of);
    if (f->process_of == NULL)
        return rs_error_memory((size_t)f->estate.holders_count * sizeof *f->process_of);
    for (int h = 0; h < f->estate.holders_count; h++) {
        f->process_of[h] = -1;
        for (int p = 0; p < size; p++)
            if (f->world->stands[p] == hosts[h])
                f->process_of[h] = p;
    }
    return RS_OK;
}

/* Maps both ends of what is carried, as far as they are here. */
static rs_status map_ends(ferry *f)
{
    f->targets = rs_calloc((size_t)f->world->ranks, sizeof *f->targets);
    if (f->targets == NULL)
        return rs_error_memory((size_t)f->world->ranks * sizeof *f->targets);
    for (size_t i = 0; i < f->count; i++) {
        const rs_copy *copy = &f->copies[i];
        if (f->process_of[copy->source] == f->rank)
            RS_TRY(rs_estate_map(&f->estate, copy->source));
        else if (f->targets[copy->target] == NULL)
            RS_TRY(rs_arena_open_guest(
                f->keeper, f->world->generation, copy->target, &f->targets[copy->target]));
    }
    return RS_OK;
}

static rs_status prepare(ferry *f)
{
    const rs_train_options *o = f->options;
    rs_layout layout;
    rs_plan_options options;
    if (f->world->stands == NULL || f->world->from.ranks == 0)
        return rs_error_set(RS_ERR_MALFORMED, "the supervisor's word does not say what to carry");
    f->host = f->world->stands[f->rank];
    RS_TRY(rs_model_load(o->model, &f->model));
    RS_TRY(rs_train_space(o, &f->model, &f->space));
    RS_TRY(rs_keeper_open(o->id, o->arena_dir[0] != '\0' ? o->arena_dir : NULL, &f->keeper));
    RS_TRY(rs_layout_parse(f->world->layout, &layout));
    const int *mirrors = o->redundancy > 0 ? f->world->hosts : NULL;
    RS_TRY(rs_nodes_placement(f->space, &layout, mirrors, &f->now));
    RS_TRY(rs_estate_open(&f->estate, f->keeper, f->space, f->now, f->world, f->host));
    rs_estate_plan_options(&f->estate, &options);
    RS_TRY(rs_plan_crossing(rs_heritage_placement(f->estate.heritage), f->now, f->host, &options,
        &f->copies, &f->count));
    RS_TRY(find_processes(f));
    return map_ends(f);
}

/* ---- carrying ---- */

static rs_status target(void *context, int holder, const rs_memory **out)
{
    const ferry *f = context;
    if (f->targets[holder] == NULL)
        return rs_error_set(RS_ERR_NOT_FOUND, "the arena of new rank %d is not mapped", holder);
    *out = rs_arena_memory(f->targets[holder]);
    return RS_OK;
}

static rs_status source(void *context, int holder, const rs_memory **out)
{
    ferry *f = context;
    return rs_estate_lend(&f->estate, holder, out);
}

static rs_status carry(ferry *f, rs_move_report *report)
{
    rs_ferry task = {.comm = f->comm,
        .process_of = f->process_of,
        .from = rs_heritage_placement(f->estate.heritage),
        .to = f->now,
        .copies = f->copies,
        .count = f->count,
        .source = source,
        .target = target,
        .context = f,
        .window = f->options->window};
    rs_crash_point("ferry.carry");
    rs_status status = rs_ferry_run(&task, report);
    close_targets(f);
    return status;
}

/* The sums of the old ranks of this host, if no new rank is here to make them. */
static rs_status sum_bereft(ferry *f, uint64_t *words)
{
    for (int r = 0; r < f->world->ranks; r++)
        if (f->world->hosts[r] == f->host)
            return RS_OK;
    for (int i = 0; i < f->estate.old_ranks; i++)
        if (f->world->from.hosts[i] == f->host)
            RS_TRY(rs_estate_sum(&f->estate, i, words));
    return RS_OK;
}

/* `bereft`: the old world gave no sums; else there are no words. The same on every process. */
static rs_status carry_and_tell(ferry *f, bool bereft)
{
    rs_move_report report = {0};
    size_t count = bereft ? rs_sums_word_count(f->space) : 0;
    uint64_t *words = NULL;
    rs_status status = RS_OK;
    if (bereft) {
        words = rs_calloc(count, sizeof *words);
        status =
            rs_comm_agree(f->comm, words != NULL ? RS_OK : rs_error_memory(count * sizeof *words));
    }
    double begun = rs_clock_seconds();
    if (status == RS_OK)
        status = rs_comm_agree(f->comm, carry(f, &report));
    double seconds = rs_clock_seconds() - begun;
    rs_crash_point("ferry.carried");
    if (status == RS_OK && bereft)
        status = rs_comm_agree(f->comm, sum_bereft(f, words));
    if (status == RS_OK) {
        int64_t bytes = report.remote_bytes, all = 0;
        if (bereft)
            rs_comm_sum_words(f->comm, words, count);
        MPI_Reduce(&bytes, &all, 1, MPI_INT64_T, MPI_SUM, 0, f->comm);
        if (f->rank == 0)
            status = rs_member_tell(f->member, "carried",
                json_pack("{s:I,s:f,s:o*}", "bytes", (json_int_t)all, "seconds", seconds, "sums",
                    bereft ? rs_words_to_json(words, count) : NULL));
        status = rs_comm_agree(f->comm, status);
    }
    free(words);
    return status;
}

static rs_status work(ferry *f)
{
    json_t *word = NULL;
    RS_TRY(rs_comm_agree(f->comm, prepare(f)));
    rs_estate_touch(&f->estate, f->targets, f->world->ranks);
    rs_crash_point("ferry.ready");
    RS_TRY(rs_comm_agree(f->comm, f->rank == 0 ? rs_member_tell(f->member, "ready", NULL) : RS_OK));
    RS_TRY(rs_member_sleep(f->member, &word));
    rs_status status = RS_OK;
    if (rs_member_says(word, "pull"))
        status = carry_and_tell(f, !json_is_array(json_object_get(word, "sums")));
    json_decref(word);
    return status;
}

rs_status rs_ferry_work(const rs_train_options *options, rs_member *member, MPI_Comm comm)
{
    ferry f = {
        .options = options, .member = member, .world = rs_member_world_of(member), .comm = comm};
    MPI_Comm_rank(comm, &f.rank);
    rs_crash_step(0);
    rs_status status = work(&f);
    if (status != RS_OK && f.rank == 0) {
        char message[1024];
        snprintf(message, sizeof message, "%s", rs_error_message());
        rs_status told = rs_member_tell(member, "failed", json_pack("{s:s}", "message", message));
        (void)told; /* a supervisor that has gone need not know */
        status = rs_error_set(status, "%s", message);
    }
    ferry_fini(&f);
    return status;
}
