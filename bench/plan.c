/*
 * How long plans take and how good they are, on models of real size. Nothing is moved.
 *
 *     plan [--quick]
 *     plan MODEL FROM TO RANKS_PER_NODE
 *
 * For each transition: the time of one rank's plan (the shortest of three, for every rank), the
 * time of the cluster's totals, bytes moved against the minimum, the busiest rank against its
 * bound, and the tight peak against the larger of the rank's two states. Ends with 1 if a figure is
 * not reached.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "reshard/layout.h"
#include "reshard/model.h"
#include "reshard/plan.h"
#include "reshard/status.h"

#define WINDOW (64 << 20)
#define PAGE 4096

typedef struct transition {
    const char *model;
    const char *from;
    const char *to;
    int ranks_per_node;
    bool quick;
    bool plan_time;   /* that of one rank's plan is a figure */
    bool totals_time; /* that of the whole cluster's totals is one */
} transition;

static const transition transitions[] = {
    {"llama3-70b", "tp=8,pp=4,dp=4,zero=1", "tp=4,pp=4,dp=6,zero=1", 8, true, true, false},
    {"llama3-70b", "tp=8,pp=4,dp=4,zero=1", "tp=4,pp=8,dp=4,zero=1", 8, false, false, false},
    {"llama3-70b", "tp=8,pp=2,dp=4,zero=1", "tp=4,pp=4,dp=4,zero=1", 8, false, false, false},
    {"llama3-70b", "tp=7,pp=3,dp=3,zero=1", "tp=5,pp=5,dp=2,zero=1", 8, false, false, false},
    {"llama3-8b", "tp=4,pp=2,dp=4,zero=1", "tp=2,pp=2,dp=8", 8, false, false, false},
    {"llama3-8b", "dp=16,zero=3", "tp=4,pp=2,dp=2,zero=1", 4, false, false, false},
    {"qwen3-32b", "tp=8,pp=2,dp=8,zero=1", "tp=6,pp=3,dp=7,zero=1", 8, false, false, false},
    {"llama3-70b", "tp=8,pp=8,dp=16,zero=1", "tp=8,pp=4,dp=32,zero=1", 8, true, false, true},
    {"llama3-70b", "tp=8,pp=4,dp=32,zero=1", "tp=4,pp=8,dp=30,zero=1", 8, true, false, true},
    /* Experts: 94 layers over 8 and over 12 stages, 128 to 96 ranks. */
    {"qwen3-235b-a22b", "tp=4,pp=8,dp=4,ep=8,etp=1,zero=1", "tp=2,pp=12,dp=4,ep=8,etp=1,zero=1", 8,
        true, true, true},
    /* 256 experts, 62 layers: to another mesh of the attention; to two nodes fewer a stage. */
    {"deepseek-v3", "pp=16,dp=128,ep=64,zero=1", "tp=2,pp=16,dp=64,ep=64,etp=1,zero=1", 8, true,
        true, true},
    {"deepseek-v3", "pp=16,dp=128,ep=64,zero=1", "pp=16,dp=126,ep=63,zero=1", 8, false, true, true},
    /* Odd ones: primes, other nodes, every axis. */
    {"qwen3-235b-a22b", "tp=4,pp=8,dp=4,ep=8,etp=1,zero=1", "tp=3,pp=7,dp=5,ep=5,etp=1,zero=1", 8,
        true, true, true},
    {"qwen3-235b-a22b", "tp=4,pp=4,vpp=2,cp=2,dp=4,ep=16,etp=1,zero=1,order=tp-cp-ep-pp-dp",
        "tp=2,pp=6,dp=9,ep=9,etp=2,zero=1,shard=3,zero_cut=param", 8, false, true, true},
    {"mixtral-8x7b", "tp=8,pp=2,dp=3,zero=1", "dp=47,ep=47,zero=3,zero_cut=dim0", 8, false, true,
        false},
    {"deepseek-v3", "pp=16,dp=128,ep=64,zero=1", "tp=3,pp=11,dp=61,ep=61,etp=3,zero=1", 8, false,
        true, true},
};

enum { TRANSITIONS = sizeof transitions / sizeof *transitions };

/* What one transition measured. */
typedef struct result {
    double median; /* seconds, one rank's plan */
    double worst;
    double totals; /* seconds, the whole cluster */
    int world;
    double moved;   /* / minimum */
    double busiest; /* / bound: between nodes, or over both classes, whichever is worse */
} result;

/* Processor time: a plan is computation and nothing else, and other processes are not its cost. */
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void require(rs_status status)
{
    if (status == RS_OK)
        return;
    fprintf(stderr, "%s: %s\n", rs_status_name(status), rs_error_message());
    exit(1);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double ratio(int64_t a, int64_t b)
{
    return b > 0 ? (double)a / (double)b : 1;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Every rank's plan by itself, three times: what else the machine does is not the plan's time. */
static void time_plans(
    const rs_placement *from, const rs_placement *to, const rs_plan_options *options, result *found)
{
    double *seconds = calloc((size_t)found->world, sizeof *seconds);
    size_t most = 0;
    int64_t state = 0;
    int64_t over = 0;
    int64_t over_paged = 0;
    if (seconds == NULL)
        exit(1);
    for (int r = 0; r < found->world; r++) {
        rs_plan *plan;
        size_t count;
        int64_t paged;
        for (int try = 0;; try++) {
            double start = now();
            require(rs_plan_create(from, to, r, options, &plan));
            double took = now() - start;
            seconds[r] = try == 0 || took < seconds[r] ? took : seconds[r];
            if (try == 2)
                break;
            rs_plan_destroy(plan);
        }
        const rs_plan_figures *f = rs_plan_figures_of(plan);
        int64_t whole = larger(f->old_bytes, f->new_bytes);
        require(rs_plan_peak_tight(plan, WINDOW, PAGE, &paged));
        rs_plan_copies(plan, &count);
        most = count > most ? count : most;
        state = larger(state, whole);
        over = larger(over, f->peak_tight - whole);
        over_paged = larger(over_paged, paged - whole);
        rs_plan_destroy(plan);
    }
    qsort(seconds, (size_t)found->world, sizeof *seconds, compare_doubles);
    found->median = seconds[found->world / 2];
    found->worst = seconds[found->world - 1];
    free(seconds);
    printf("  plan of one rank  %7.2f ms median, %.2f ms worst; at most %zu copies\n",
        found->median * 1e3, found->worst * 1e3, most);
    printf("  tight peak        %7.1f MiB above the rank's larger state (up to %.2f GiB); %.1f MiB "
           "with "
           "a window of 64 MiB and pages\n",
        (double)over / (1 << 20), (double)state / (1 << 30), (double)over_paged / (1 << 20));
}

static result run(const transition *t)
{
    rs_model model;
    rs_space *space;
    rs_layout layouts[2];
    rs_placement *from, *to;
    require(rs_model_load(t->model, &model));
    require(rs_model_space(&model, RS_DTYPE_BF16, &space));
    require(rs_layout_parse(t->from, &layouts[0]));
    require(rs_layout_parse(t->to, &layouts[1]));
    require(rs_layout_placement(space, &layouts[0], &from));
    require(rs_layout_placement(space, &layouts[1], &to));
    int before = rs_placement_holders(from);
    int after = rs_placement_holders(to);
    result found = {.world = before > after ? before : after};
    rs_plan_options options = {.ranks_per_node = t->ranks_per_node, .adopt = true};
    printf("%s, bf16 with Adam: %s -> %s (%d -> %d ranks, %d a node)\n", t->model, t->from, t->to,
        before, after, t->ranks_per_node);
    time_plans(from, to, &options, &found);

    rs_plan_totals totals;
    double start = now();
    require(rs_plan_totals_compute(from, to, &options, false, &totals));
    found.totals = now() - start;
    found.moved = ratio(totals.moved, totals.minimum);
    double between = ratio(totals.remote.rank_max, totals.remote.rank_bound);
    double both = ratio(totals.rank_bytes_max, totals.rank_bytes_bound);
    found.busiest = between > both ? between : both;
    printf("  totals            %7.2f s\n", found.totals);
    printf("  moved / minimum   %7.4f (%.1f GB; %.1f GB of them between nodes)\n", found.moved,
        (double)totals.moved / 1e9, (double)totals.remote.bytes / 1e9);
    printf("  busiest / bound   %7.4f between nodes, %.4f over both classes (%s)\n", between, both,
        totals.bound_kind);
    printf("  busiest node      %7.4f of its bound\n",
        ratio(totals.node_bytes_max, totals.node_bytes_bound));
    rs_plan_totals_fini(&totals);
    if (found.world < 1024) {
        start = now();
        require(rs_plan_check(from, to, &options));
        printf("  plain proof       %7.2f s\n", now() - start);
    }
    rs_placement_destroy(from);
    rs_placement_destroy(to);
    rs_space_destroy(space);
    return found;
}

int main(int argc, char **argv)
{
    if (argc == 5) {
        run(&(transition){argv[1], argv[2], argv[3], (int)strtol(argv[4], NULL, 10), 0, 0, 0});
        return 0;
    }
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    double median = 0;
    double worst = 0;
    double slowest = 0;
    double moved = 0;
    double busiest = 0;
    for (int i = 0; i < TRANSITIONS; i++) {
        const transition *t = &transitions[i];
        if (quick && !t->quick)
            continue;
        result found = run(t);
        if (t->plan_time && found.median > median)
            median = found.median;
        if (t->plan_time && found.worst > worst)
            worst = found.worst;
        if (t->totals_time && found.totals > slowest)
            slowest = found.totals;
        moved = found.moved > moved ? found.moved : moved;
        busiest = found.busiest > busiest ? found.busiest : busiest;
    }
    printf("figure: plan of one rank, median ms %.2f (wanted: < 20)\n", median * 1e3);
    printf("figure: plan of one rank, worst ms %.2f (wanted: < 20)\n", worst * 1e3);
    printf("figure: totals of the cluster, s %.2f (wanted: < 10)\n", slowest);
    printf("figure: bytes moved / minimum %.4f (wanted: 1)\n", moved);
    printf("figure: busiest rank / bound %.4f (wanted: <= 1.05)\n", busiest);
    bool good = worst < 0.02 && slowest < 10 && moved == 1 && busiest <= 1.05;
    return good ? 0 : 1;
}
