/*
 * A new world takes over the state of an old one through its arenas.
 *
 * The ranks of the new world plan from a heritage (elastic/heritage.h): the old world's segments,
 * dealt to them so that what is already right is adopted where it lies, whichever old rank has it.
 * The rest is pulled from the old arenas, which all lie on this node. The old world is not told
 * anything but when to stop and when to go, and its memory is not written to before the commit.
 *
 * 1. Ahead, while the old world trains: boot, communicators, plan, arenas, every page touched, the
 *    trainer's own memory. Then sleep.
 * 2. In the pause: pull, sum what is here now against the sums that the old world gave (or, where
 *    it died and could not, sums of its memory made here), mark the arenas complete, report. The
 *    supervisor writes the commit record and says "train".
 * 3. Whatever fails until then ends this world; the old one trains on.
 */
#include "train/takeover.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "elastic/heritage.h"
#include "reshard/move_mpi.h"
#include "train/comm.h"
#include "train/member.h"
#include "train/save.h"
#include "train/twophase.h"

#define TOUCH_PIECE (256 << 10)
#define TOUCH_SHARE                                                                                \
    0.5 /* of the time while memory is touched ahead; the rest is left to others                   \
         */

/* What a new world keeps from its preparation to the end of the pull. */
struct rs_takeover {
    rs_placement *old;
    rs_heritage *heritage;
    rs_plan *plan;
    rs_arena **arenas; /* of the old ranks; NULL where they are not read */
    const rs_memory **old_memory;
    rs_memory *holders; /* of the heritage, where this rank reads them */
    rs_plan_totals totals;
    double plan_seconds;
    double begun;
};

static void destroy(struct rs_takeover *t, int old_ranks)
{
    int holders = t != NULL && t->heritage != NULL
                      ? rs_placement_holders(rs_heritage_placement(t->heritage))
                      : 0;
    if (t == NULL)
        return;
    for (int h = 0; t->holders != NULL && h < holders; h++)
        free(t->holders[h].regions);
    for (int i = 0; t->arenas != NULL && i < old_ranks; i++)
        rs_arena_close(t->arenas[i]);
    free(t->holders);
    free(t->old_memory);
    free(t->arenas);
    rs_plan_destroy(t->plan);
    rs_plan_totals_fini(&t->totals);
    rs_heritage_destroy(t->heritage);
    rs_placement_destroy(t->old);
    free(t);
}

void rs_takeover_destroy(rs_job *job)
{
    destroy(job->takeover,
        job->options->member != NULL ? rs_member_world_of(job->options->member)->from.ranks : 0);
    job->takeover = NULL;
}

/* ---- ahead ---- */

/* Maps the old arenas whose segments the heritage's holder `holder` has. */
static rs_status open_holder(rs_job *job, const rs_origin *from, int holder)
{
    struct rs_takeover *t = job->takeover;
    int count;
    const int *sources = rs_heritage_sources(t->heritage, holder, &count);
    for (int i = 0; i < count; i++) {
        int old = sources[i];
        if (t->arenas[old] != NULL)
            continue;
        RS_TRY(rs_arena_open(job->keeper, from->generation, old, false, &t->arenas[old]));
        t->old_memory[old] = rs_arena_memory(t->arenas[old]);
    }
    if (t->holders[holder].regions == NULL)
        RS_TRY(rs_heritage_memory(t->heritage, holder, t->old_memory, &t->holders[holder]));
    return RS_OK;
}

static rs_status open_sources(rs_job *job, const rs_origin *from)
{
    struct rs_takeover *t = job->takeover;
    size_t count;
    const rs_copy *copies = rs_plan_copies(t->plan, &count);
    int holders = rs_placement_holders(rs_heritage_placement(t->heritage));
    t->arenas = rs_calloc((size_t)from->ranks, sizeof *t->arenas);
    t->old_memory = rs_calloc((size_t)from->ranks, sizeof *t->old_memory);
    t->holders = rs_calloc((size_t)holders, sizeof *t->holders);
    if (t->arenas == NULL || t->old_memory == NULL || t->holders == NULL)
        return rs_error_memory((size_t)holders * sizeof *t->holders);
    RS_TRY(open_holder(job, from, job->rank));
    for (size_t i = 0; i < count; i++)
        if (copies[i].target == job->rank)
            RS_TRY(open_holder(job, from, copies[i].source));
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
        all[i] = (rs_adoption){
            adopted[i], t->arenas[rs_heritage_source(t->heritage, job->rank, adopted[i])]};
    rs_status status = rs_state_take_over(&job->state, job->keeper, job->generation, all, count);
    free(all);
    if (status == RS_OK)
        status = rs_twophase_begin(&job->state, rs_train_optimizer(job->options), job->keeper,
            job->generation, job->options->threads, false);
    return status;
}

static rs_status prepare(rs_job *job, const rs_origin *from)
{
    struct rs_takeover *t = job->takeover;
    rs_layout layout;
    rs_plan_options options;
    rs_job_plan_options(job, &options);
    options.node_of = NULL; /* one node: the old ranks have no place in node_of */
    RS_TRY(rs_layout_parse(from->layout, &layout));
    RS_TRY(rs_layout_placement(job->space, &layout, &t->old));
    if (rs_placement_holders(t->old) != from->ranks)
        return rs_error_set(RS_ERR_MISMATCH, "layout %s has %d ranks, the world before had %d",
            from->layout, rs_placement_holders(t->old), from->ranks);
    double begun = rs_job_seconds();
    RS_TRY(rs_heritage_create(t->old, job->state.placement, from->kept, &t->heritage));
    const rs_placement *source = rs_heritage_placement(t->heritage);
    RS_TRY(rs_plan_create(source, job->state.placement, job->rank, &options, &t->plan));
    t->plan_seconds = rs_job_seconds() - begun;
    if (job->rank == 0)
        RS_TRY(rs_plan_totals_compute(source, job->state.placement, &options, false, &t->totals));
    RS_TRY(open_sources(job, from));
    return allocate(job);
}

rs_status rs_takeover_prepare(rs_job *job)
{
    const rs_origin *from = &rs_member_world_of(job->options->member)->from;
    rs_status status = RS_OK;
    job->takeover = rs_calloc(1, sizeof *job->takeover);
    if (job->takeover == NULL)
        status = rs_error_memory(sizeof *job->takeover);
    RS_TRY(rs_job_agree(job, status));
    job->takeover->begun = rs_job_seconds();
    if (job->nodes > 1)
        status = rs_error_set(RS_ERR_UNSUPPORTED,
            "a new world takes over on the node where the old one's memory is, and the ranks are "
            "on %d nodes",
            job->nodes);
    if (status == RS_OK)
        status = prepare(job, from);
    rs_crash_point("takeover.made");
    return rs_job_agree(job, status);
}

/* Touches the new pages and those that will be read, at a pace that leaves time to who trains. */
static void touch(rs_job *job)
{
    struct rs_takeover *t = job->takeover;
    int old_ranks = rs_placement_holders(t->old);
    for (bool more = true; more;) {
        double begun = rs_job_seconds();
        more = job->state.arena != NULL && rs_arena_touch(job->state.arena, TOUCH_PIECE) > 0;
        for (int i = 0; i < old_ranks && !more; i++)
            more = t->arenas[i] != NULL && rs_arena_touch(t->arenas[i], TOUCH_PIECE) > 0;
        double rest = (rs_job_seconds() - begun) * (1 / TOUCH_SHARE - 1);
        rs_nap(rest);
    }
}

/* ---- the pause ---- */

/* What the new world measures while it takes over. */
typedef struct pull {
    rs_train_switched event;
    rs_sums *after;
    uint64_t *before_words;
    uint64_t *after_words;
    double paused; /* when the old world's last step ended, in seconds since 1970 */
    rs_train_step last;
} pull;

static rs_status lend(void *context, int holder, const rs_memory **out)
{
    const rs_job *job = context;
    const rs_memory *memory = &job->takeover->holders[holder];
    if (memory->regions == NULL)
        return rs_error_set(RS_ERR_NOT_FOUND, "the memory of holder %d is not mapped", holder);
    *out = memory;
    return RS_OK;
}

/* Sums of the old world's memory, where it has given none: every rank takes its part of the ranks.
 */
static rs_status measure_old(rs_job *job, pull *p)
{
    struct rs_takeover *t = job->takeover;
    const rs_origin *from = &rs_member_world_of(job->options->member)->from;
    size_t words = rs_sums_word_count(job->space);
    rs_status status = RS_OK;
    uint64_t *one = rs_calloc(words, sizeof *one);
    if (one == NULL)
        return rs_error_memory(words * sizeof *one);
    for (int i = job->rank; i < from->ranks && status == RS_OK; i += job->ranks) {
        rs_sums *sums = NULL;
        if (t->arenas[i] == NULL)
            status = rs_arena_open(job->keeper, from->generation, i, false, &t->arenas[i]);
        if (status == RS_OK)
            status = rs_sums_create(t->old, i, &sums);
        if (status == RS_OK)
            status = rs_sums_measure(sums, rs_arena_memory(t->arenas[i]), true);
        if (status == RS_OK)
            status = rs_sums_words(sums, one);
        for (size_t w = 0; w < words && status == RS_OK; w++)
            p->before_words[w] += one[w];
        rs_sums_destroy(sums);
    }
    free(one);
    return status;
}

/* The sums that came with the word, as rank 0's contribution. */
static rs_status read_sums(rs_job *job, const json_t *sums, pull *p)
{
    size_t words = rs_sums_word_count(job->space);
    if (json_array_size(sums) != words)
        return rs_error_set(RS_ERR_MALFORMED, "the old world gave %zu sums, wanted %zu",
            json_array_size(sums), words);
    for (size_t w = 0; w < words && job->rank == 0; w++) {
        const char *text = json_string_value(json_array_get(sums, w));
        p->before_words[w] = text != NULL ? strtoull(text, NULL, 16) : 0;
    }
    return RS_OK;
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
        .lenders = rs_placement_holders(t->old),
        .from = rs_heritage_placement(t->heritage),
        .to = job->state.placement,
        .plan = t->plan,
        .old = &t->holders[job->rank],
        .now = rs_state_memory(&job->state),
        .peer = lend,
        .peer_context = job,
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

static rs_status pull_state(rs_job *job, const json_t *word, pull *p)
{
    rs_train_phases *s = &p->event.seconds;
    RS_TRY(rs_job_agree(job, begin_pull(job, word, p)));
    rs_crash_point("takeover.pull");
    double begun = rs_job_seconds();
    RS_TRY(rs_job_agree(job, move(job, p)));
    s->move = rs_job_seconds() - begun;
    rs_crash_point("takeover.moved");
    begun = rs_job_seconds();
    RS_TRY(verify(job, p));
    s->verify = rs_job_seconds() - begun;
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

static bool says(const json_t *word, const char *what)
{
    const char *text = json_string_value(json_object_get(word, "do"));
    return text != NULL && strcmp(text, what) == 0;
}

static void end_unwanted(rs_job *job)
{
    job->ended = true;
    job->outcome = RS_TRAIN_LEFT;
}

rs_status rs_takeover_run(rs_job *job)
{
    rs_member *member = job->options->member;
    struct rs_takeover *t = job->takeover;
    pull p = {.event = {.certificate = "none", .message = ""}};
    json_t *word = NULL;
    rs_status status;
    touch(job);
    p.event.seconds.prepare = rs_job_seconds() - t->begun;
    rs_crash_point("takeover.ready");
    RS_TRY_GOTO(
        rs_job_agree(job, job->rank == 0 ? rs_member_tell(member, "ready", NULL) : RS_OK), done);
    RS_TRY_GOTO(rs_member_sleep(member, &word), done);
    if (!says(word, "pull")) {
        end_unwanted(job);
        goto done;
    }
    status = pull_state(job, word, &p);
    json_decref(word);
    word = NULL;
    if (status == RS_OK)
        status = rs_member_sleep(member, &word);
    if (status != RS_OK)
        goto done;
    if (!says(word, "train")) {
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
    json_t *sums = json_array();
    char text[20];
    for (size_t w = 0; w < rs_sums_word_count(job->space); w++) {
        snprintf(text, sizeof text, "%016" PRIx64, words[w]);
        json_array_append_new(sums, json_string(text));
    }
    const rs_train_step *last = rs_metrics_last(job->metrics);
    return rs_member_tell(job->options->member, "quiesced",
        json_pack("{s:I,s:f,s:f,s:I,s:o,s:f,s:f,s:f,s:f}", "step", (json_int_t)job->step, "paused",
            paused, "quiesce", rs_job_seconds() - begun, "scheduled", (json_int_t)job->scheduled,
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
    double begun = rs_job_seconds(), paused = rs_wall_seconds();
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
    if (status == RS_OK && says(word, "leave"))
        end_unwanted(job);
    json_decref(word);
    if (!job->ended && rs_job_report(job, "training", "", true) != RS_OK)
        rs_job_notice(job, "status.json cannot be written: %s", rs_error_message());
    return status;
}
