/*
 * Strided pulls of boxes by two threads, beside memcpy of the same bytes by two threads, by turns.
 * Of many short rounds the best of each counts.
 *
 *     copy [--mib N] [--rounds N]
 */
#include "bench.h"
#include "reshard/move.h"

/* A matrix of `rows` rows per thread; source and target as the case has them. */
typedef struct copy_case {
    const char *name;
    int64_t run;              /* bytes of a row that are copied, in elements of 4 bytes */
    int64_t to_gap, from_gap; /* bytes from row to row beyond the run */
    int transposed;
    double wanted;
} copy_case;

static const copy_case cases[] = {
    {"runs of 16 KiB out of rows of 64 KiB", 16384, 0, 49152, 0, 0.60},
    {"runs of 16 KiB into rows of 64 KiB", 16384, 49152, 0, 0, 0.60},
    {"runs of 4 KiB, both sides strided", 4096, 4096, 12288, 0, 0},
    {"runs of 512 B out of rows of 4 KiB", 512, 0, 3584, 0, 0.35},
    {"runs of 512 B, both sides strided", 512, 512, 1536, 0, 0.35},
    {"runs of 64 B, both sides strided", 64, 64, 192, 0, 0},
    {"single elements, every other", 4, 4, 4, 0, 0},
    {"4096 columns transposed", 16384, 0, 0, 1, 0},
};

typedef struct setting {
    char *to;
    char *from;
    size_t bytes; /* of each of the two */
    const copy_case *how;
    int64_t rows; /* per thread */
} setting;

static void plain(void *context, int thread)
{
    setting *s = context;
    size_t bytes = (size_t)(s->rows * s->how->run);
    memcpy(s->to + (size_t)thread * s->bytes / BENCH_THREADS,
        s->from + (size_t)thread * s->bytes / BENCH_THREADS, bytes);
}

static void strided(void *context, int thread)
{
    setting *s = context;
    const copy_case *how = s->how;
    int64_t columns = how->run / 4;
    int64_t extent[2] = {s->rows, columns};
    int64_t to[2] = {how->run + how->to_gap, 4};
    int64_t from[2] = {how->run + how->from_gap, 4};
    if (how->transposed) {
        to[0] = 4;
        to[1] = 4 * s->rows;
    }
    rs_move_box(2, extent, 4, s->to + (size_t)thread * s->bytes / BENCH_THREADS, to,
        s->from + (size_t)thread * s->bytes / BENCH_THREADS, from);
}

int main(int argc, char **argv)
{
    int64_t mib = 256;
    int rounds = 20;
    for (int k = 1; k + 1 < argc; k += 2) {
        if (strcmp(argv[k], "--mib") == 0)
            mib = strtol(argv[k + 1], NULL, 10);
        if (strcmp(argv[k], "--rounds") == 0)
            rounds = (int)strtol(argv[k + 1], NULL, 10);
    }
    setting s = {.bytes = (size_t)mib << 20};
    s.to = bench_memory(s.bytes);
    s.from = bench_memory(s.bytes);
    printf("%-40s %8s %8s %8s %12s\n", "two threads", "GB/s", "memcpy", "ratio", "by processor");
    int missed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        s.how = &cases[c];
        int64_t gap = s.how->to_gap > s.how->from_gap ? s.how->to_gap : s.how->from_gap;
        s.rows = (int64_t)s.bytes / BENCH_THREADS / (s.how->run + gap);
        bench_time memory = {1e9, 1e9};
        bench_time pull = {1e9, 1e9};
        for (int r = 0; r < rounds; r++) {
            bench_keep_best(&memory, bench_run(plain, &s));
            bench_keep_best(&pull, bench_run(strided, &s));
        }
        double bytes = (double)(BENCH_THREADS * s.rows * s.how->run) * 1e-9;
        double ratio = memory.clock / pull.clock;
        printf("%-40s %8.2f %8.2f %8.2f %12.2f\n", s.how->name, bytes / pull.clock,
            bytes / memory.clock, ratio, memory.processor / pull.processor);
        if (s.how->wanted > 0) {
            printf("figure: copy, %s, of two-thread memcpy %.2f (wanted: >= %.2f)\n", s.how->name,
                ratio, s.how->wanted);
            missed += ratio < s.how->wanted;
        }
    }
    return missed != 0;
}
