/* What the memory benchmarks share: shared memory that was touched, two threads at once, medians.
 */
#ifndef RS_BENCH_H
#define RS_BENCH_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static inline double bench_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Shared memory, as arenas have it, every page written with noise. Ends the program if there is
 * none. */
static inline void *bench_memory(size_t bytes)
{
    uint64_t *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        perror("mmap");
        exit(77);
    }
    uint64_t value = 88172645463325252u;
    for (size_t k = 0; k < bytes / sizeof *data; k++) {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
        data[k] = value;
    }
    return data;
}

#define BENCH_THREADS 2

/* One job for all threads; `thread` tells which part. */
typedef void bench_job(void *context, int thread);

typedef struct bench_thread {
    pthread_t id;
    pthread_barrier_t *barrier;
    bench_job *job;
    void *context;
    int thread;
    double start, end, processor;
} bench_thread;

static inline double bench_thread_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *bench_thread_main(void *argument)
{
    bench_thread *t = argument;
    pthread_barrier_wait(t->barrier);
    double start = bench_thread_seconds();
    t->start = bench_now();
    t->job(t->context, t->thread);
    t->end = bench_now();
    t->processor = bench_thread_seconds() - start;
    return NULL;
}

/* Seconds from the start of a job on the first thread to its end on the last; and the most
 * processor time that a thread took, which other processes on the machine disturb less. */
typedef struct bench_time {
    double clock;
    double processor;
} bench_time;

static inline bench_time bench_run(bench_job *job, void *context)
{
    bench_thread threads[BENCH_THREADS];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, BENCH_THREADS);
    for (int k = 0; k < BENCH_THREADS; k++) {
        threads[k] =
            (bench_thread){.barrier = &barrier, .job = job, .context = context, .thread = k};
        if (pthread_create(&threads[k].id, NULL, bench_thread_main, &threads[k]) != 0)
            exit(77);
    }
    bench_time time = {0};
    double start = 0;
    double end = 0;
    for (int k = 0; k < BENCH_THREADS; k++) {
        const bench_thread *t = &threads[k];
        pthread_join(t->id, NULL);
        start = k == 0 || t->start < start ? t->start : start;
        end = t->end > end ? t->end : end;
        time.processor = t->processor > time.processor ? t->processor : time.processor;
    }
    time.clock = end - start;
    pthread_barrier_destroy(&barrier);
    return time;
}

static inline int bench_compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of n > 0 values, which it sorts. */
static inline double bench_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, bench_compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static inline void bench_keep_best(bench_time *best, bench_time time)
{
    best->clock = time.clock < best->clock ? time.clock : best->clock;
    best->processor = time.processor < best->processor ? time.processor : best->processor;
}

#endif
