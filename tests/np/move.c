/*
 * Moves between arenas inside an MPI job, on any number of ranks.
 *
 *     np_move [--pairs N] [--folder DIR]
 *
 * For pairs of layouts that fit the ranks, each of: pulling within one node, messages between two
 * nodes, messages for all pairs, in safe and in tight mode: the state is a pattern by canonical
 * index (pattern.h); after the move every element of every rank is checked, the certificate
 * compared, the bytes held against the plan's, the measured peak of memory against its bound; then
 * the move back, which must give the same state again. Then what goes wrong: one rank's copies,
 * messages, memory, in every place. Prints what failed on which rank; exits with 1 if anything did.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/memory.h"
#include "np/check.h"
#include "pattern.h"
#include "reshard/layout.h"
#include "reshard/move_mpi.h"
#include "reshard/version.h"

static rs_keeper *keeper;
static rs_space *space;

#define EXPECT(call, wanted)                                                                       \
    do {                                                                                           \
        rs_status expect_ = (call);                                                                \
        if (expect_ != (wanted))                                                                   \
            complain(__LINE__, "%s: %s (%s), wanted %s", #call, rs_status_name(expect_),           \
                rs_error_message(), rs_status_name(wanted));                                       \
    } while (0)

/* How a move is made. */
typedef struct way {
    const char *name;
    int ranks_per_node; /* 0: one node, -1: each rank is a node */
    bool tight;
    int64_t window;
    int64_t chunk;
    bool adopt;
} way;

static const way ways[] = {
    {"one node", 0, false, 0, 4000, true},
    {"two nodes", -2, false, 20000, 4000, true},
    {"messages only", -1, false, 5000, 3000, false},
    {"messages, window below a chunk", -1, false, 100, 3000, true},
    {"tight, one node", 0, true, 30000, 10000, true},
    {"tight, two nodes", -2, true, 30000, 10000, true},
    {"tight, messages only", -1, true, 20000, 9000, false},
};
#define WAYS (sizeof ways / sizeof *ways)

/* One rank's state in one layout. */
typedef struct side {
    rs_placement *placement;
    int generation;
    rs_arena *arena;
    rs_arena **peers; /* opened when asked for */
} side;

static void make_placement(const char *text, rs_placement **out)
{
    rs_layout layout;
    NEED(rs_layout_parse(text, &layout));
    NEED(rs_layout_placement(space, &layout, out));
}

static void side_open(side *s, const char *text, int generation)
{
    *s = (side){.generation = generation};
    make_placement(text, &s->placement);
    s->peers = calloc((size_t)ranks, sizeof *s->peers);
}

static void side_close(side *s)
{
    for (int r = 0; r < ranks; r++)
        rs_arena_close(s->peers[r]);
    free(s->peers);
    rs_arena_close(s->arena);
    rs_placement_destroy(s->placement);
}

static void side_create(side *s, const side *old, const rs_plan *plan, bool sparse)
{
    rs_segment_list segments = {0};
    size_t count = 0;
    const int *adopted = plan != NULL ? rs_plan_adopted(plan, &count) : NULL;
    NEED(rs_placement_segments(s->placement, rank, &segments));
    NEED((sparse ? rs_arena_create_sparse : rs_arena_create)(keeper, s->generation, rank, &segments,
        old != NULL ? old->arena : NULL, adopted, count, &s->arena));
    rs_segment_list_fini(&segments);
}

static rs_status lend(void *context, int peer, const rs_memory **out)
{
    side *s = context;
    if (s->peers[peer] == NULL) {
        rs_status status = rs_arena_open(keeper, s->generation, peer, false, &s->peers[peer]);
        if (status != RS_OK)
            return status;
    }
    *out = rs_arena_memory(s->peers[peer]);
    return RS_OK;
}

/* Watches the memory of both arenas while a move runs. */
typedef struct watch {
    side *from;
    side *to;
    int64_t peak;
    int64_t done;
    int64_t total;
} watch;

static void look(void *context, int64_t done, int64_t total)
{
    watch *w = context;
    int64_t a = 0;
    int64_t b = 0;
    NEED(rs_arena_resident(w->from->arena, &a));
    NEED(rs_arena_resident(w->to->arena, &b));
    if (a + b > w->peak)
        w->peak = a + b;
    CHECK(done > w->done && done <= total);
    w->done = done;
    w->total = total;
}

/* Everything about one move. */
typedef struct trial {
    const way *how;
    side from;
    side to;
    int *node_of;
    rs_plan_options options;
    rs_plan *plan;
    rs_sums *before;
    rs_sums *after;
    watch watch;
    rs_move_report report;
} trial;

static void trial_options(trial *t)
{
    t->node_of = calloc((size_t)ranks, sizeof *t->node_of);
    for (int r = 0; r < ranks; r++)
        t->node_of[r] = t->how->ranks_per_node == 0    ? 0
                        : t->how->ranks_per_node == -1 ? r
                                                       : r * 2 / (ranks > 1 ? ranks : 2);
    t->options = (rs_plan_options){
        .node_of = t->node_of, .adopt = t->how->adopt, .chunk_bytes = t->how->chunk};
}

/* The plan, the new arena, and the sums, from a state that is there. */
static void trial_prepare(trial *t)
{
    trial_options(t);
    NEED(rs_plan_create(t->from.placement, t->to.placement, rank, &t->options, &t->plan));
    side_create(&t->to, &t->from, t->plan, t->how->tight);
    NEED(rs_sums_create(t->from.placement, rank, &t->before));
    NEED(rs_sums_measure(t->before, rs_arena_memory(t->from.arena), true));
    NEED(rs_sums_create(t->to.placement, rank, &t->after));
    size_t count;
    const int *adopted = rs_plan_adopted(t->plan, &count);
    rs_sums_adopt(t->after, t->before, adopted, count);
    t->watch = (watch){.from = &t->from, .to = &t->to};
    MPI_Barrier(MPI_COMM_WORLD);
}

static rs_status trial_run(trial *t)
{
    rs_move move = {.comm = MPI_COMM_WORLD,
        .from = t->from.placement,
        .to = t->to.placement,
        .plan = t->plan,
        .old = rs_arena_memory(t->from.arena),
        .now = rs_arena_memory(t->to.arena),
        .peer = lend,
        .peer_context = &t->from,
        .window = t->how->window,
        .after = t->after,
        .tight = t->how->tight ? t->from.arena : NULL,
        .tight_now = t->how->tight ? t->to.arena : NULL,
        .progress = look,
        .progress_context = &t->watch};
    return rs_move_run(&move, &t->report);
}

static rs_status trial_verify(trial *t)
{
    size_t count = rs_sums_word_count(space);
    uint64_t *before = calloc(count, sizeof *before);
    uint64_t *after = calloc(count, sizeof *after);
    NEED(rs_sums_measure(t->after, rs_arena_memory(t->to.arena), false));
    NEED(rs_sums_words(t->before, before));
    NEED(rs_sums_words(t->after, after));
    rs_status status = rs_move_verify(MPI_COMM_WORLD, space, before, after);
    free(before);
    free(after);
    return status;
}

static void trial_free(trial *t)
{
    rs_sums_destroy(t->before);
    rs_sums_destroy(t->after);
    rs_plan_destroy(t->plan);
    free(t->node_of);
}

/* What the plan foretold. */
static void trial_check_figures(trial *t)
{
    const rs_plan_figures *f = rs_plan_figures_of(t->plan);
    CHECK(t->report.self_bytes == f->self_bytes);
    CHECK(t->report.node_bytes == f->node_in);
    CHECK(t->report.remote_bytes == f->remote_in);
    CHECK(t->report.sent_bytes == f->remote_out);
    CHECK(t->report.node_bytes + t->report.remote_bytes == f->needed_bytes);
    CHECK(t->watch.done == t->watch.total);
    int64_t window = t->how->window > 0 ? t->how->window : RS_MOVE_WINDOW;
    int64_t chunk = t->how->chunk; /* a message that is larger than the window goes alone */
    CHECK(t->report.staging_bytes <= (window > chunk ? window : chunk) + 64);
    if (t->how->tight) {
        int64_t bound = 0;
        NEED(rs_plan_peak_tight(t->plan, window, sysconf(_SC_PAGESIZE), &bound));
        if (t->watch.peak > bound)
            complain(
                __LINE__, "peak of %" PRId64 " bytes, foretold %" PRId64, t->watch.peak, bound);
        int64_t left = 0;
        NEED(rs_arena_resident(t->from.arena, &left));
        int64_t kept = 0;
        rs_segment_list segments = {0};
        NEED(rs_placement_segments(t->from.placement, rank, &segments));
        for (size_t k = 0; k < segments.count; k++)
            if (rs_plan_is_adopted(t->plan, segments.items[k].segment))
                kept += (segments.items[k].bytes + 4095) / 4096 * 4096;
        rs_segment_list_fini(&segments);
        if (left > kept)
            complain(__LINE__, "%" PRId64 " bytes left of the old state, %" PRId64 " are adopted",
                left, kept);
    }
}

/* The new state becomes the old one. */
static void commit(trial *t, uint64_t salt)
{
    NEED(rs_arena_commit(t->to.arena, (int64_t)salt));
    MPI_Barrier(MPI_COMM_WORLD);
    side_close(&t->from);
    NEED(rs_arena_delete(keeper, t->to.generation - 1, rank, t->to.arena));
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Makes generation 0 in layout `a`. */
static void begin_state(side *s, const char *a, uint64_t salt)
{
    side_open(s, a, 0);
    side_create(s, NULL, NULL, false);
    CHECK(pattern_fill(s->placement, rank, rs_arena_memory(s->arena), salt));
    NEED(rs_arena_commit(s->arena, 0));
    MPI_Barrier(MPI_COMM_WORLD);
}

static void end_state(side *s)
{
    int generation = s->generation;
    side_close(s);
    NEED(rs_arena_delete(keeper, generation, rank, NULL));
    MPI_Barrier(MPI_COMM_WORLD);
}

/* a -> b -> a in one way. */
static void there_and_back(const char *a, const char *b, const way *how, uint64_t salt)
{
    snprintf(scenario, sizeof scenario, "%s -> %s, %s", a, b, how->name);
    side state;
    begin_state(&state, a, salt);
    for (int turn = 1; turn <= 2; turn++) {
        trial t = {.how = how, .from = state};
        side_open(&t.to, turn == 1 ? b : a, turn);
        trial_prepare(&t);
        EXPECT(trial_run(&t), RS_OK);
        trial_check_figures(&t);
        EXPECT(trial_verify(&t), RS_OK);
        CHECK(pattern_check(t.to.placement, rank, rs_arena_memory(t.to.arena), salt));
        if (!how->tight)
            CHECK(pattern_check(t.from.placement, rank, rs_arena_memory(t.from.arena), salt));
        commit(&t, salt);
        state = t.to;
        trial_free(&t);
    }
    end_state(&state);
}

/* ---- what goes wrong ---- */

/* True if every copy into this rank is whole in one of its two places. */
static bool whole_in_two_places(trial *t, uint64_t salt)
{
    size_t count;
    bool whole = true;
    const rs_copy *copies = rs_plan_copies(t->plan, &count);
    for (size_t k = 0; k < count && whole; k++) {
        const rs_copy *copy = &copies[k];
        rs_shard shard;
        const rs_memory *memory = NULL;
        if (copy->target != rank)
            continue;
        NEED(rs_placement_address(
            t->to.placement, rank, copy->tensor, copy->role, &copy->box, &shard));
        memory = rs_arena_memory(t->to.arena);
        whole = pattern_shard(space, memory, &shard, salt, pattern_quiet);
        if (whole)
            continue;
        NEED(rs_placement_address(
            t->from.placement, copy->source, copy->tensor, copy->role, &copy->box, &shard));
        NEED(lend(&t->from, copy->source, &memory));
        whole = pattern_shard(space, memory, &shard, salt, pattern_quiet);
    }
    return whole;
}

/* How a move with one fault should end on the rank that has it; RS_ERR_PEER elsewhere. */
static void one_fault(const char *a, const char *b, const way *how, rs_fault point, long nth,
    long times, int victim, rs_status wanted)
{
    snprintf(scenario, sizeof scenario, "%s -> %s, %s, fault %d at %ld x %ld on rank %d", a, b,
        how->name, (int)point, nth, times, victim);
    trial t = {.how = how};
    uint64_t salt = 77;
    begin_state(&t.from, a, salt);
    side_open(&t.to, b, 1);
    trial_prepare(&t);
    if (rank == victim)
        rs_fault_arm(point, nth, times);
    rs_status status = trial_run(&t);
    int hit = rank == victim && !rs_fault_pending(point);
    rs_fault_arm(point, 0, 0);
    MPI_Bcast(&hit, 1, MPI_INT, victim, MPI_COMM_WORLD);
    if (!hit)
        wanted = RS_OK; /* this rank has fewer copies */
    bool corrupts = point == RS_FAULT_CORRUPT && !how->tight;
    if (corrupts || wanted == RS_OK) {
        EXPECT(status, RS_OK);
        EXPECT(trial_verify(&t), corrupts && hit ? RS_ERR_CERTIFICATE : RS_OK);
    } else {
        rs_status expected = rank == victim ? wanted : RS_ERR_PEER;
        if (status != expected)
            complain(__LINE__, "ended with %s (%s), wanted %s", rs_status_name(status),
                rs_error_message(), rs_status_name(expected));
    }
    if (!how->tight)
        CHECK(pattern_check(t.from.placement, rank, rs_arena_memory(t.from.arena), salt));
    else
        CHECK(whole_in_two_places(&t, salt));
    MPI_Barrier(MPI_COMM_WORLD);
    /* Rolling back, or clearing up. */
    side_close(&t.to);
    NEED(rs_arena_delete(keeper, 1, rank, t.from.arena));
    if (!how->tight)
        CHECK(pattern_check(t.from.placement, rank, rs_arena_memory(t.from.arena), salt));
    end_state(&t.from);
    trial_free(&t);
}

/* The n-th allocation of one rank fails, for each n until none does. */
static void failed_allocations(const char *a, const char *b, const way *how)
{
    snprintf(scenario, sizeof scenario, "%s -> %s, %s, allocations fail", a, b, how->name);
    trial t = {.how = how};
    begin_state(&t.from, a, 5);
    side_open(&t.to, b, 1);
    trial_prepare(&t);
    int victim = ranks - 1;
    for (long n = 1;; n += 1 + n / 5) {
        if (rank == victim)
            rs_alloc_fail_at((size_t)n);
        t.watch.done = 0;
        rs_status status = trial_run(&t);
        rs_alloc_fail_at(0);
        int ok = status == RS_OK;
        MPI_Bcast(&ok, 1, MPI_INT, victim, MPI_COMM_WORLD);
        if (ok) {
            CHECK(status == RS_OK);
            break;
        }
        CHECK(status == (rank == victim ? RS_ERR_NO_MEMORY : RS_ERR_PEER));
        /* Sums of a move that failed are not to be built on. */
        rs_sums_destroy(t.after);
        NEED(rs_sums_create(t.to.placement, rank, &t.after));
    }
    EXPECT(trial_verify(&t), RS_OK);
    CHECK(pattern_check(t.to.placement, rank, rs_arena_memory(t.to.arena), 5));
    MPI_Barrier(MPI_COMM_WORLD);
    side_close(&t.to);
    NEED(rs_arena_delete(keeper, 1, rank, t.from.arena));
    end_state(&t.from);
    trial_free(&t);
}

/* Arguments that do not fit each other are refused on every rank. */
static void wrong_arguments(void)
{
    snprintf(scenario, sizeof scenario, "wrong arguments");
    trial t = {.how = &ways[0]};
    begin_state(&t.from, "dp=1", 1);
    side_open(&t.to, "tp=1", 1);
    trial_prepare(&t);
    t.how = &(way){"negative window", 0, false, rank == 0 ? -1 : 5, 0, false};
    EXPECT(trial_run(&t), rank == 0 ? RS_ERR_ARGUMENT : RS_ERR_PEER);
    side_close(&t.to);
    NEED(rs_arena_delete(keeper, 1, rank, t.from.arena));
    trial_free(&t);
    if (ranks > 1) { /* nothing lends the peers' memory */
        t = (trial){.how = &ways[0], .from = t.from};
        side_open(&t.to, "tp=2", 1);
        trial_prepare(&t);
        rs_move move = {.comm = MPI_COMM_WORLD,
            .from = t.from.placement,
            .to = t.to.placement,
            .plan = t.plan,
            .old = rs_arena_memory(t.from.arena),
            .now = rs_arena_memory(t.to.arena)};
        EXPECT(rs_move_run(&move, NULL), rank == 1 ? RS_ERR_ARGUMENT : RS_ERR_PEER);
        side_close(&t.to);
        NEED(rs_arena_delete(keeper, 1, rank, t.from.arena));
        trial_free(&t);
    }
    end_state(&t.from);
}

/* Layouts of at most 8 ranks; those that do not fit are left out. */
static const char *const layouts[] = {"dp=1", "tp=2", "pp=2,dp=2,zero=1", "tp=3", "tp=2,pp=3,dp=1",
    "pp=5", "dp=7,zero=1", "tp=2,pp=2,dp=2,zero=1", "tp=7", "dp=3", "tp=4,pp=2",
    "tp=2,dp=4,order=dp-tp-pp"};

static int world_of(const char *text)
{
    rs_layout layout;
    NEED(rs_layout_parse(text, &layout));
    return rs_layout_world(&layout);
}

static void everything(long pairs)
{
    const char *fitting[sizeof layouts / sizeof *layouts];
    size_t count = 0;
    for (size_t k = 0; k < sizeof layouts / sizeof *layouts; k++)
        if (world_of(layouts[k]) <= ranks)
            fitting[count++] = layouts[k];
    wrong_arguments();
    /* Largest first: those use all the ranks. */
    for (long k = 0; k < pairs; k++) {
        const char *a = fitting[count - 1 - (size_t)k % count];
        const char *b = fitting[(count + (size_t)(k / (long)count) + (size_t)k * 5) % count];
        for (size_t w = 0; w < WAYS; w++)
            there_and_back(a, b, &ways[w], (uint64_t)k + 1);
    }
    const char *a = fitting[count - 1];
    const char *b = fitting[count / 2];
    int victim = world_of(b) - 1; /* it receives */
    for (size_t w = 0; w < WAYS; w++) {
        for (long nth = 1; nth <= 5; nth += 4) {
            one_fault(a, b, &ways[w], RS_FAULT_COPY, nth, 1, victim, RS_ERR_IO);
            one_fault(a, b, &ways[w], RS_FAULT_SEND, nth, 1, victim, RS_ERR_IO);
            one_fault(a, b, &ways[w], RS_FAULT_RECEIVE, nth, 1, victim, RS_ERR_IO);
            /* In tight mode one wrong copy is made again, two in a row end the move. */
            one_fault(a, b, &ways[w], RS_FAULT_CORRUPT, nth, 1, victim, RS_OK);
            one_fault(a, b, &ways[w], RS_FAULT_CORRUPT, nth, 1000, victim,
                ways[w].tight ? RS_ERR_CERTIFICATE : RS_OK);
        }
        if (!ways[w].tight)
            failed_allocations(a, b, &ways[w]);
    }
}

int main(int argc, char **argv)
{
    check_begin();
    long pairs = 4;
    const char *folder = NULL;
    for (int k = 1; k + 1 < argc; k += 2) {
        if (strcmp(argv[k], "--pairs") == 0)
            pairs = strtol(argv[k + 1], NULL, 10);
        if (strcmp(argv[k], "--folder") == 0)
            folder = argv[k + 1];
    }
    int id = (int)getpid();
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    char job[48];
    snprintf(job, sizeof job, "test-np-%d", id);
    rs_model model = pattern_model();
    NEED(rs_model_space(&model, RS_DTYPE_BF16, &space));
    NEED(rs_keeper_open(job, folder, &keeper));
    everything(pairs);
    rs_space_destroy(space);
    MPI_Barrier(MPI_COMM_WORLD);
    NEED(rs_keeper_sweep(keeper));
    rs_keeper_close(keeper);
    return check_end("all moves right");
}
