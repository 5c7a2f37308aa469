/*
 * What the certificate costs: copies of boxes by two threads with the sum of the target, beside the
 * same copies without, by turns; boxes as large as a plan's chunks. A shared machine's memory is
 * faster or slower from one second to the next: each copy is compared with the one just before it,
 * and the median of these ratios is told.
 *
 *     certificate [--mib N] [--rounds N]
 */
#include "bench.h"
#include "move/copy.h"
#include "reshard/certificate.h"
#include "reshard/move.h"
#include "reshard/plan.h"

#define WANTED 10.0 /* percent */
#define MOST_ROUNDS 1000

/* Boxes of rows of a tensor; a row's bytes lie together on both sides. */
typedef struct sum_case {
    const char *name;
    int64_t run; /* bytes of a row of the box */
    int64_t to_stride, from_stride;
    bool limited; /* held to the limit; a layout's shards are contiguous, so their rows are too */
} sum_case;

static const sum_case cases[] = {
    {"whole rows of 16 KiB", 16384, 16384, 16384, true},
    {"rows of 16 KiB out of 64 KiB", 16384, 16384, 65536, true},
    {"rows of 2 KiB out of 8 KiB", 2048, 2048, 8192, true},
    {"rows of 512 B out of 2 KiB", 512, 512, 2048, true},
    {"rows of 512 B, both strided", 512, 1024, 2048, false},
};

typedef struct setting {
    char *to;
    char *from;
    size_t bytes;
    const sum_case *how;
    rs_sum sum[BENCH_THREADS];
} setting;

/* Goes through a thread's half box by box. */
static void work(setting *s, int thread, bool summed)
{
    const sum_case *how = s->how;
    int64_t wide = how->to_stride > how->from_stride ? how->to_stride : how->from_stride;
    int64_t rows = (int64_t)s->bytes / BENCH_THREADS / wide;
    int64_t chunk = RS_PLAN_CHUNK / how->run;
    int64_t columns = how->run / 4;
    int64_t shape[2] = {rows, columns};
    int64_t to_stride[2] = {how->to_stride, 4};
    int64_t from_stride[2] = {how->from_stride, 4};
    char *to = s->to + (size_t)thread * s->bytes / BENCH_THREADS;
    const char *from = s->from + (size_t)thread * s->bytes / BENCH_THREADS;
    rs_sum sum = {{0, 0}};
    for (int64_t row = 0; row < rows; row += chunk) {
        rs_box box = {.ndim = 2, .offset = {row, 0}};
        box.extent[0] = rows - row < chunk ? rows - row : chunk;
        box.extent[1] = columns;
        if (summed)
            rs_move_box_summed(7, shape, &box, 4, to + row * how->to_stride, to_stride,
                from + row * how->from_stride, from_stride, &sum);
        else
            rs_move_box(2, box.extent, 4, to + row * how->to_stride, to_stride,
                from + row * how->from_stride, from_stride);
    }
    s->sum[thread] = sum;
}

static void plain(void *context, int thread)
{
    work(context, thread, false);
}

static void summed(void *context, int thread)
{
    work(context, thread, true);
}

int main(int argc, char **argv)
{
    int64_t mib = 128;
    int rounds = 40;
    for (int k = 1; k + 1 < argc; k += 2) {
        if (strcmp(argv[k], "--mib") == 0)
            mib = strtol(argv[k + 1], NULL, 10);
        if (strcmp(argv[k], "--rounds") == 0)
            rounds = (int)strtol(argv[k + 1], NULL, 10);
    }
    if (rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "--rounds: 1 to %d\n", MOST_ROUNDS);
        return 2;
    }
    setting s = {.bytes = (size_t)mib << 20};
    s.to = bench_memory(s.bytes);
    s.from = bench_memory(s.bytes);
    printf("%-32s %8s %8s %8s %12s\n", "two threads", "GB/s", "summed", "cost", "by processor");
    double copies[MOST_ROUNDS];
    double sums[MOST_ROUNDS];
    double by_clock[MOST_ROUNDS];
    double by_processor[MOST_ROUNDS];
    int missed = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        s.how = &cases[c];
        for (int r = 0; r < rounds; r++) {
            bench_time copy = bench_run(plain, &s);
            bench_time sum = bench_run(summed, &s);
            copies[r] = copy.clock;
            sums[r] = sum.clock;
            by_clock[r] = 100 * (sum.clock / copy.clock - 1);
            by_processor[r] = 100 * (sum.processor / copy.processor - 1);
        }
        int64_t wide =
            s.how->to_stride > s.how->from_stride ? s.how->to_stride : s.how->from_stride;
        double bytes =
            (double)((int64_t)s.bytes / BENCH_THREADS / wide * s.how->run * BENCH_THREADS) * 1e-9;
        double cost = bench_median(by_processor, rounds);
        printf("%-32s %8.2f %8.2f %7.1f%% %11.1f%%\n", s.how->name,
            bytes / bench_median(copies, rounds), bytes / bench_median(sums, rounds),
            bench_median(by_clock, rounds), cost);
        if (!s.how->limited)
            continue;
        printf("figure: certificate beside the copy, %s, percent %.1f (wanted: <= %.0f)\n",
            s.how->name, cost, WANTED);
        missed += cost > WANTED;
    }
    return missed != 0;
}
