/*
 * The distributed trainer's own cost. Started as a rank of an MPI job (alone is one rank):
 *
 *   trainer speed [STEPS]   the figures' model on this rank: tokens per second, by the clock and by
 * the processor time used, and the share of a step that keeping sums takes trainer ahead steps
 * while a switch is prepared against steps while none is
 *
 * bench/trainer.sh compares the first with PyTorch and with bench/stage.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "reshard/model.h"
#include "train/train.h"
#include "train/twophase.h"
#include "train/update.h"

#define WARM 2
#define ROUNDS 3
#define SPACING 64 /* steps between switches: half of them with a switch in preparation */

static char folder[64];
static double *seconds, *busy;
static int steps_seen, switches_seen;
static double prepared[ROUNDS]; /* seconds that preparing took, of the rank where it took longest */
static double last_busy;

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double clock_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void on_step(void *context, const rs_train_step *step)
{
    (void)context;
    double now = processor_seconds();
    seconds[steps_seen] = step->seconds;
    busy[steps_seen++] = now - last_busy;
    last_busy = now;
}

static void on_switched(void *context, const rs_train_switched *event)
{
    (void)context;
    if (switches_seen < ROUNDS)
        prepared[switches_seen++] = event->seconds.prepare;
}

static void on_failed(void *context, int rank, rs_status status, const char *message)
{
    (void)context;
    (void)status;
    fprintf(stderr, "trainer: rank %d: %s\n", rank, message);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

static void fail(const char *what)
{
    fprintf(stderr, "trainer: %s: %s\n", what, rs_error_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Trains in a new folder on bytes that anybody can make. */
static void train(rs_train_options *options, int rank)
{
    static const rs_train_listener listener = {
        .step = on_step, .switched = on_switched, .failed = on_failed};
    if (rank == 0) {
        snprintf(folder, sizeof folder, "/tmp/reshard-bench-XXXXXX");
        if (mkdtemp(folder) == NULL)
            fail("folder");
    }
    MPI_Bcast(folder, sizeof folder, MPI_CHAR, 0, MPI_COMM_WORLD);
    snprintf(options->data, sizeof options->data, "%s/data", folder);
    snprintf(options->job, sizeof options->job, "%s/job", folder);
    if (rank == 0) {
        FILE *file = fopen(options->data, "wb");
        for (int64_t i = 0; file != NULL && i < 100000; i++)
            fputc((int)(i * i % 251), file);
        if (file == NULL || fclose(file) != 0)
            fail("data");
    }
    MPI_Barrier(MPI_COMM_WORLD);
    seconds = calloc((size_t)options->steps, sizeof *seconds);
    busy = calloc((size_t)options->steps, sizeof *busy);
    if (seconds == NULL || busy == NULL || rs_train_options_check(options) != RS_OK)
        fail("options");
    if (rs_train_run(options, &listener, MPI_COMM_WORLD, NULL) != RS_OK)
        exit(1);
}

static void remove_folder(void)
{
    char command[3][96];
    snprintf(command[0], sizeof command[0], "%s/data", folder);
    unlink(command[0]);
    static const char *const names[] = {
        "job.json", "job.lock", "metrics.jsonl", "status.json", "requests"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(command[1], sizeof command[1], "%s/job/%s", folder, names[i]);
        if (remove(command[1]) != 0)
            fprintf(stderr, "trainer: %s is left over\n", command[1]);
    }
    snprintf(command[2], sizeof command[2], "%s/job", folder);
    rmdir(command[2]);
    rmdir(folder);
}

/* The state of a job of one rank, apart from any job. */
typedef struct alone {
    rs_space *space;
    rs_keeper *keeper;
    rs_state state;
} alone;

static void begin_alone(const rs_train_options *options, alone *a)
{
    rs_model model;
    rs_layout layout;
    char job[48];
    snprintf(job, sizeof job, "bench-alone-%ld", (long)getpid());
    if (rs_model_load(options->model, &model) != RS_OK ||
        rs_model_space(&model, options->dtype, &a->space) != RS_OK ||
        rs_layout_parse("dp=1", &layout) != RS_OK ||
        rs_keeper_open(job, NULL, &a->keeper) != RS_OK ||
        rs_state_init(a->space, &layout, 0, NULL, &a->state) != RS_OK ||
        rs_state_allocate(&a->state, a->keeper, 1, NULL, NULL, 0, false) != RS_OK ||
        rs_state_fill(&a->state, 1) != RS_OK)
        fail("state");
}

static void end_alone(alone *a)
{
    rs_state_fini(&a->state);
    if (rs_keeper_sweep(a->keeper) != RS_OK)
        fail("sweep");
    rs_keeper_close(a->keeper);
    rs_space_destroy(a->space);
}

/* Seconds that the sums of a whole state take, read from memory: more than in the cache. */
static double sums_seconds(const rs_train_options *options)
{
    double best = 1e9;
    alone a;
    begin_alone(options, &a);
    for (int i = 0; i < 5; i++) {
        static const rs_runs none; /* no gradient is read */
        rs_update *update;
        if (rs_update_create(&a.state, rs_optimizer_find("adamw"), &none, &update) != RS_OK)
            fail("update");
        double begun = clock_seconds();
        const rs_sums *sums = rs_update_sums(update);
        double took = clock_seconds() - begun;
        best = sums != NULL && took < best ? took : best;
        rs_update_destroy(update);
    }
    end_alone(&a);
    return best;
}

#define JOURNAL_ROUNDS 15

/* Seconds by which the journal makes an update longer: the median of updates with and without it,
 * by turns. */
static double journal_seconds(const rs_train_options *options)
{
    const rs_optimizer *adamw = rs_optimizer_find("adamw");
    double with[JOURNAL_ROUNDS], without[JOURNAL_ROUNDS];
    rs_runs gradients = {0};
    rs_update *journalled, *plain;
    alone a;
    begin_alone(options, &a);
    rs_state bare = a.state;
    if (rs_twophase_begin(&a.state, adamw, a.keeper, 1, options->threads, false) != RS_OK ||
        rs_twophase_gradients(&a.state, rs_ledger_work(a.state.ledger), &gradients) != RS_OK ||
        rs_update_create(&a.state, adamw, &gradients, &journalled) != RS_OK ||
        rs_update_create(&bare, adamw, &gradients, &plain) != RS_OK)
        fail("update");
    for (int i = 0; i < JOURNAL_ROUNDS; i++) {
        rs_update_rate rate = {i + 1, 1e-4f, 1, 0};
        double begun = clock_seconds();
        rs_update_apply(plain, &rate);
        without[i] = clock_seconds() - begun;
        begun = clock_seconds();
        rs_update_apply(journalled, &rate);
        with[i] = clock_seconds() - begun;
    }
    rs_update_destroy(plain);
    rs_update_destroy(journalled);
    rs_runs_fini(&gradients);
    end_alone(&a);
    return median(with, JOURNAL_ROUNDS) - median(without, JOURNAL_ROUNDS);
}

static void speed(rs_train_options *options, int rank, int steps)
{
    options->steps = steps + WARM;
    options->micro_batch = options->global_batch;
    train(options, rank);
    if (rank != 0)
        return;
    double tokens = (double)(options->global_batch * options->seq);
    double step = median(seconds + WARM, steps), used = median(busy + WARM, steps);
    double share = sums_seconds(options) / step, journal = journal_seconds(options) / step;
    printf("%.1f tokens/s, %.1f by processor time, sums %.5f of a step, journal %.5f of a step\n",
        tokens / step, tokens / used, share, journal);
    remove_folder();
}

static double mean(const double *values, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    return sum / count;
}

/* Switch k is prepared in the second half of its steps (src/train/loop.c: 32 steps ahead). */
static void ahead(rs_train_options *options, int rank)
{
    double ratios[ROUNDS], shares[ROUNDS];
    options->steps = ROUNDS * SPACING;
    options->global_batch = 2;
    options->micro_batch = 1;
    options->seq = 32;
    snprintf(options->model, sizeof options->model, "llama-20m");
    snprintf(options->layout, sizeof options->layout, "tp=2");
    for (int k = 1; k <= ROUNDS; k++) {
        char text[64];
        snprintf(text, sizeof text, "%d:%s", k * SPACING, k % 2 == 1 ? "dp=2,zero=1" : "tp=2");
        if (rs_train_options_add_switch(options, text) != RS_OK)
            fail("switch");
    }
    train(options, rank);
    if (rank != 0)
        return;
    for (int k = 0; k < ROUNDS; k++) {
        const double *steps = seconds + k * SPACING;
        int half = SPACING / 2;
        /* the first steps of a layout touch its working memory */
        double before = mean(steps + 4, half - 4), during = mean(steps + half + 1, half - 1);
        ratios[k] = during / before;
        shares[k] = prepared[k] / (during * half);
        printf("switch %d: %.4f s a step before, %.4f s while it is prepared, of which %.4f\n",
            k + 1, before, during, prepared[k] / half);
    }
    printf("%.4f %.4f\n", median(ratios, ROUNDS), median(shares, ROUNDS));
    remove_folder();
}

int main(int argc, char **argv)
{
    rs_train_options options;
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    rs_train_options_init(&options);
    snprintf(options.model, sizeof options.model, "llama-tiny");
    if (argc >= 2 && strcmp(argv[1], "speed") == 0) {
        long steps = argc >= 3 ? strtol(argv[2], NULL, 10) : 8;
        speed(&options, rank, steps > 0 && steps < 10000 ? (int)steps : 8);
    } else if (argc == 2 && strcmp(argv[1], "ahead") == 0) {
        ahead(&options, rank);
    } else {
        fprintf(stderr, "usage: trainer speed [STEPS] | mpirun -n 2 trainer ahead\n");
    }
    rs_train_options_fini(&options);
    free(seconds);
    free(busy);
    MPI_Finalize();
    return 0;
}
