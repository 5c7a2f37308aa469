/*
 * Changing the layout of a job's state, 4 ranks: the move phase alone (target touched ahead, peers
 * mapped ahead) through arenas and through MPI, beside two processes that memcpy the same bytes, by
 * turns.
 *
 *     mpirun -n 4 move [--mib N] [--rounds N]
 *
 * Each move is checked by its certificate, and its bytes against the minimum.
 */
#include <mpi.h>

#include "bench.h"
#include "ranks.h"
#include "reshard/layout.h"
#include "reshard/model.h"
#include "reshard/move_mpi.h"

typedef struct move_case {
    const char *from;
    const char *to;
    int messages; /* all pairs through MPI */
    double wanted;
} move_case;

static const move_case cases[] = {
    {"tp=4", "pp=2,dp=2,zero=1", 0, 0.60},
    {"tp=2,pp=2", "dp=4,zero=1", 0, 0.60},
    {"pp=4", "tp=4", 0, 0.60},
    {"tp=2,dp=2,zero=1", "tp=4", 0, 0.60},
    {"tp=4", "pp=2,dp=2,zero=1", 1, 0.20},
    {"pp=4", "tp=4", 1, 0.20},
};

static int rank;
static rs_keeper *keeper;
static rs_space *space;
static char *buffer[2];
static size_t buffer_bytes = (size_t)256 << 20;

/* Processor seconds of this process. */
static double processor_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The slowest rank's seconds, and half of all ranks' processor seconds: what they would take on two
 * processors of their own. */
static bench_time together(bench_time mine)
{
    bench_time all = {0};
    meet();
    MPI_Allreduce(&mine.clock, &all.clock, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&mine.processor, &all.processor, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    all.processor /= 2;
    return all;
}

static int64_t sum_of(int64_t value)
{
    int64_t total = 0;
    MPI_Allreduce(&value, &total, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    return total;
}

/* Ranks 0 and 1 copy half of the bytes each. */
static bench_time plain(int64_t bytes)
{
    meet();
    double start = bench_now();
    double processor = processor_now();
    for (int64_t left = rank < 2 ? bytes / 2 : 0; left > 0; left -= (int64_t)buffer_bytes)
        memcpy(buffer[0], buffer[1], left < (int64_t)buffer_bytes ? (size_t)left : buffer_bytes);
    return together((bench_time){bench_now() - start, processor_now() - processor});
}

static rs_arena *make_arena(
    const rs_placement *placement, int generation, const rs_arena *old, const rs_plan *plan)
{
    rs_segment_list segments = {0};
    rs_arena *arena = NULL;
    size_t count = 0;
    const int *adopted = plan != NULL ? rs_plan_adopted(plan, &count) : NULL;
    need(rs_placement_segments(placement, rank, &segments), "segments");
    need(rs_arena_create(keeper, generation, rank, &segments, old, adopted, count, &arena),
        "create an arena");
    rs_segment_list_fini(&segments);
    while (rs_arena_touch(arena, 64 << 20) > 0)
        ;
    return arena;
}

static void fill(const rs_memory *memory)
{
    uint64_t value = 88172645463325252u + (uint64_t)rank;
    for (size_t k = 0; k < memory->count; k++) {
        uint64_t *data = memory->regions[k].data;
        for (int64_t w = 0; w < memory->regions[k].bytes / 8; w++) {
            value ^= value << 13;
            value ^= value >> 7;
            value ^= value << 17;
            data[w] = value;
        }
    }
}

static rs_arena *peers[4];

static rs_status lend(void *context, int peer, const rs_memory **out)
{
    (void)context;
    *out = rs_arena_memory(peers[peer]);
    return RS_OK;
}

/* One move with its certificate. The sums of `before` are known. */
static bench_time move_once(rs_move *move, rs_sums *before, rs_move_report *report)
{
    size_t adopted_count;
    size_t count = rs_sums_word_count(space);
    uint64_t *words = calloc(2 * count, sizeof *words);
    const int *adopted = rs_plan_adopted(move->plan, &adopted_count);
    need(rs_sums_create(move->to, rank, &move->after), "sums");
    rs_sums_adopt(move->after, before, adopted, adopted_count);
    meet();
    double start = bench_now();
    double processor = processor_now();
    need(rs_move_run(move, report), "move");
    bench_time time = together((bench_time){bench_now() - start, processor_now() - processor});
    need(rs_sums_measure(move->after, move->now, false), "sums of what was adopted");
    need(rs_sums_words(before, words), "words before");
    need(rs_sums_words(move->after, words + count), "words after");
    need(rs_move_verify(MPI_COMM_WORLD, space, words, words + count), "certificate");
    rs_sums_destroy(move->after);
    free(words);
    return time;
}

/* Makes replicas of a placement equal: rank r's state is copied from a job of one rank. */
static void make_state(const rs_placement *placement, rs_arena **out)
{
    rs_layout one;
    rs_placement *whole;
    rs_plan *plan;
    need(rs_layout_parse("dp=1", &one), "layout");
    need(rs_layout_placement(space, &one, &whole), "placement");
    rs_arena *source = make_arena(whole, 0, NULL, NULL);
    if (rank == 0)
        fill(rs_arena_memory(source));
    *out = make_arena(placement, 1, NULL, NULL);
    meet();
    need(rs_arena_open(keeper, 0, 0, false, &peers[0]), "open");
    need(rs_plan_create(whole, placement, rank, &(rs_plan_options){0}, &plan), "plan");
    rs_move move = {.comm = MPI_COMM_WORLD,
        .from = whole,
        .to = placement,
        .plan = plan,
        .old = rs_arena_memory(source),
        .now = rs_arena_memory(*out),
        .peer = lend};
    need(rs_move_run(&move, NULL), "distribute the state");
    rs_arena_close(peers[0]);
    rs_arena_close(source);
    need(rs_arena_delete(keeper, 0, rank, NULL), "delete");
    rs_plan_destroy(plan);
    rs_placement_destroy(whole);
    meet();
}

/* Runs one case; the ratio of the rates. */
static double run_case(const move_case *how, int rounds)
{
    rs_layout layout[2];
    rs_placement *placement[2];
    rs_plan *plan;
    rs_sums *before;
    rs_arena *old;
    rs_move_report report = {0};
    need(rs_layout_parse(how->from, &layout[0]), how->from);
    need(rs_layout_parse(how->to, &layout[1]), how->to);
    for (int k = 0; k < 2; k++)
        need(rs_layout_placement(space, &layout[k], &placement[k]), "placement");
    rs_plan_options options = {
        .adopt = true, .node_of = how->messages ? (const int[]){0, 1, 2, 3} : NULL};
    make_state(placement[0], &old);
    need(rs_plan_create(placement[0], placement[1], rank, &options, &plan), "plan");
    rs_arena *now = make_arena(placement[1], 2, old, plan);
    meet();
    for (int r = 0; r < 4; r++) {
        need(rs_arena_open(keeper, 1, r, false, &peers[r]), "open a peer's arena");
        rs_arena_touch(peers[r], INT64_MAX);
    }
    need(rs_sums_create(placement[0], rank, &before), "sums");
    need(rs_sums_measure(before, rs_arena_memory(old), true), "sums before");
    rs_move move = {.comm = MPI_COMM_WORLD,
        .from = placement[0],
        .to = placement[1],
        .plan = plan,
        .old = rs_arena_memory(old),
        .now = rs_arena_memory(now),
        .peer = lend};
    bench_time ours = {1e9, 1e9};
    bench_time theirs = {1e9, 1e9};
    int64_t bytes = 0;
    for (int r = 0; r < rounds; r++) {
        bench_time move_time = move_once(&move, before, &report);
        bytes = sum_of(report.self_bytes + report.node_bytes + report.remote_bytes);
        bench_keep_best(&ours, move_time);
        bench_keep_best(&theirs, plain(bytes));
    }
    int64_t moved = sum_of(report.node_bytes + report.remote_bytes);
    rs_plan_totals totals;
    need(rs_plan_totals_compute(placement[0], placement[1], &options, false, &totals), "totals");
    double ratio = theirs.clock / ours.clock;
    if (rank == 0) {
        printf("%-18s %-18s %-8s %8.2f %8.2f %8.2f %8.2f %8.2f %7.2f %12.2f\n", how->from, how->to,
            how->messages ? "messages" : "arena", (double)bytes * 1e-9, (double)moved * 1e-9,
            (double)totals.minimum * 1e-9, (double)bytes * 1e-9 / ours.clock,
            (double)bytes * 1e-9 / theirs.clock, ratio, theirs.processor / ours.processor);
        printf("figure: move, %s -> %s by %s, of two-thread memcpy %.2f (wanted: >= %.2f)\n",
            how->from, how->to, how->messages ? "MPI" : "arena", ratio, how->wanted);
        if (moved != totals.minimum)
            printf("figure: move, %s -> %s, bytes moved %lld (wanted: %lld)\n", how->from, how->to,
                (long long)moved, (long long)totals.minimum);
    }
    if (moved != totals.minimum)
        ratio = 0;
    rs_plan_totals_fini(&totals);
    rs_sums_destroy(before);
    rs_plan_destroy(plan);
    for (int r = 0; r < 4; r++)
        rs_arena_close(peers[r]);
    rs_arena_close(now);
    rs_arena_close(old);
    meet();
    need(rs_arena_delete(keeper, 2, rank, NULL), "delete");
    need(rs_arena_delete(keeper, 1, rank, NULL), "delete");
    for (int k = 0; k < 2; k++)
        rs_placement_destroy(placement[k]);
    meet();
    return ratio;
}

int main(int argc, char **argv)
{
    int ranks;
    int rounds = 4;
    int64_t mib = 1100;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int k = 1; k + 1 < argc; k += 2) {
        if (strcmp(argv[k], "--mib") == 0)
            mib = strtol(argv[k + 1], NULL, 10);
        if (strcmp(argv[k], "--rounds") == 0)
            rounds = (int)strtol(argv[k + 1], NULL, 10);
    }
    if (ranks != 4 || rounds < 1) {
        fprintf(stderr, "needs 4 ranks\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    rs_model model = {.name = "bench",
        .family = "llama",
        .hidden = 1024,
        .heads = 16,
        .kv_heads = 8,
        .head_dim = 64,
        .ffn = 2752,
        .vocab = 32000,
        .tied = true,
        .norm_eps = 1e-5,
        .rope_theta = 1e4,
        .dtype = RS_DTYPE_F32};
    /* As many layers as give the state its size. */
    for (model.layers = 4;; model.layers++) {
        rs_space_destroy(space);
        need(rs_model_space(&model, RS_DTYPE_F32, &space), "space");
        if (rs_space_bytes(space, -1) >= mib << 20)
            break;
    }
    char job[40];
    int id = (int)getpid();
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    snprintf(job, sizeof job, "bench-%d", id);
    need(rs_keeper_open(job, NULL, &keeper), "keeper");
    if (rank < 2)
        for (int k = 0; k < 2; k++)
            buffer[k] = bench_memory(buffer_bytes);
    if (rank == 0) {
        printf("state %.2f GB, %lld layers, 4 ranks; GB and GB/s\n",
            (double)rs_space_bytes(space, -1) * 1e-9, (long long)model.layers);
        printf("%-18s %-18s %-8s %8s %8s %8s %8s %8s %7s %12s\n", "from", "to", "by", "copied",
            "moved", "minimum", "rate", "memcpy", "ratio", "by processor");
    }
    int missed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        missed += run_case(&cases[c], rounds) < cases[c].wanted;
    need(rs_keeper_sweep(keeper), "sweep");
    rs_keeper_close(keeper);
    rs_space_destroy(space);
    MPI_Finalize();
    return missed != 0;
}
