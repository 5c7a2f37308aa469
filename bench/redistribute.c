/*
 * Redistributing one matrix of float32 over 4 ranks: this library's arenas beside MPI_Alltoallw
 * with derived datatypes, ScaLAPACK's p?gemr2d (where it was found), and two processes that memcpy
 * the same bytes; all in the same run, on the same memory, by turns, each result checked by its
 * certificate.
 *
 *     mpirun -n 4 redistribute [--n N] [--rounds N]
 *
 * The two cases: a split by columns becomes one by rows (runs of N bytes: 16 KiB for N = 16384),
 * and a block-cyclic matrix on a 2 x 2 grid becomes one on a 4 x 1 grid (blocks of 128: runs of 512
 * bytes).
 */
#include <mpi.h>

#include "bench.h"
#include "ranks.h"
#include "reshard/move_mpi.h"
#include "reshard/placement.h"

#define RANKS 4
#define BLOCK 128

static int rank;
static rs_keeper *keeper;
static rs_space *space;
static int64_t n = 16384;

static double slowest(double seconds)
{
    double most = 0;
    meet();
    MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/* A grid of processes, and the blocks that are dealt to it; a rank is row * columns + column. */
typedef struct grid {
    int rows, columns;
    int64_t block_rows, block_columns;
} grid;

typedef struct matrix_case {
    const char *name;
    grid from, to;
} matrix_case;

static int64_t local_columns(const grid *g)
{
    return n / g->columns;
}

/* The placement of the matrix on a grid: local matrices are row-major, one segment each. */
static rs_placement *make_placement(const grid *g)
{
    rs_shard_list list = {0};
    size_t first[RANKS + 1] = {0};
    int64_t per_rank = n / g->block_rows / g->rows * (n / g->block_columns / g->columns);
    list.items = calloc((size_t)(per_rank * RANKS), sizeof *list.items);
    for (int r = 0; r < RANKS; r++) {
        int64_t width = local_columns(g);
        for (int64_t i = r / g->columns; i < n / g->block_rows; i += g->rows)
            for (int64_t j = r % g->columns; j < n / g->block_columns; j += g->columns) {
                int64_t row = i / g->rows * g->block_rows;
                int64_t column = j / g->columns * g->block_columns;
                list.items[list.count++] = (rs_shard){.dtype = RS_DTYPE_F32,
                    .box = {2, {i * g->block_rows, j * g->block_columns},
                        {g->block_rows, g->block_columns}},
                    .offset = 4 * (row * width + column),
                    .stride = {4 * width, 4}};
            }
        first[r + 1] = list.count;
    }
    rs_placement *placement;
    need(rs_placement_create_list(space, RANKS, list.items, first, &placement), "placement");
    rs_shard_list_fini(&list);
    return placement;
}

static rs_arena *make_arena(const rs_placement *placement, int generation)
{
    rs_segment_list segments = {0};
    rs_arena *arena;
    need(rs_placement_segments(placement, rank, &segments), "segments");
    need(rs_arena_create(keeper, generation, rank, &segments, NULL, NULL, 0, &arena), "arena");
    rs_segment_list_fini(&segments);
    while (rs_arena_touch(arena, 64 << 20) > 0)
        ;
    return arena;
}

/* Everything that the methods work on. */
typedef struct scene {
    const matrix_case *how;
    rs_placement *from;
    rs_placement *to;
    rs_arena *old;
    rs_arena *now;
    rs_arena *peers[RANKS];
    rs_plan *plan;
    rs_sums *before;
    float *source;
    float *target;
    MPI_Datatype send[RANKS];
    MPI_Datatype receive[RANKS];
    char *buffer[2];
    size_t buffer_bytes;
} scene;

static rs_status lend(void *context, int peer, const rs_memory **out)
{
    scene *s = context;
    *out = rs_arena_memory(s->peers[peer]);
    return RS_OK;
}

static void by_memcpy(scene *s)
{
    int64_t left = rank < 2 ? n * n * 4 / 2 : 0;
    for (; left > 0; left -= (int64_t)s->buffer_bytes)
        memcpy(s->buffer[0], s->buffer[1],
            left < (int64_t)s->buffer_bytes ? (size_t)left : s->buffer_bytes);
}

/* With the sums, as a job would. */
static void by_arenas(scene *s)
{
    rs_sums *after;
    need(rs_sums_create(s->to, rank, &after), "sums");
    rs_move move = {.comm = MPI_COMM_WORLD,
        .from = s->from,
        .to = s->to,
        .plan = s->plan,
        .old = rs_arena_memory(s->old),
        .now = rs_arena_memory(s->now),
        .peer = lend,
        .peer_context = s,
        .after = after};
    need(rs_move_run(&move, NULL), "move");
    rs_sums_destroy(after);
}

/* Blocks of one axis that `from`'s coordinate `a` and `to`'s coordinate `b` share. */
typedef struct shared {
    int64_t count;  /* runs */
    int64_t length; /* of a run, in elements */
    int64_t from_first, from_step;
    int64_t to_first, to_step;
} shared;

/*
 * What two ranks share along one axis. Both cases are regular: either one side has a single block
 * per coordinate, or the blocks are equal and one number of coordinates divides the other.
 */
static shared share(
    int64_t from_block, int from_count, int a, int64_t to_block, int to_count, int b)
{
    int64_t begin = 0;
    shared s = {0};
    for (int64_t at = 0; at < n; at += from_block < to_block ? from_block : to_block) {
        int64_t length = from_block < to_block ? from_block : to_block;
        if (at / from_block % from_count != a || at / to_block % to_count != b)
            continue;
        int64_t from_place = at / from_block / from_count * from_block + at % from_block;
        int64_t to_place = at / to_block / to_count * to_block + at % to_block;
        if (s.count == 0) {
            s = (shared){
                .count = 1, .length = length, .from_first = from_place, .to_first = to_place};
        } else {
            s.from_step = from_place - begin;
            s.to_step = to_place - (s.to_first + (s.count - 1) * s.to_step);
            s.count++;
        }
        begin = from_place;
    }
    return s;
}

/* The type of `rows` x `columns` of a row-major matrix of `width` columns. */
static MPI_Datatype make_type(const shared *rows, const shared *columns, int64_t width, int from)
{
    MPI_Datatype run;
    MPI_Datatype line;
    MPI_Datatype block;
    MPI_Datatype all;
    if (rows->count == 0 || columns->count == 0) {
        MPI_Type_contiguous(0, MPI_FLOAT, &all);
        MPI_Type_commit(&all);
        return all;
    }
    int64_t column_step = from ? columns->from_step : columns->to_step;
    int64_t row_step = from ? rows->from_step : rows->to_step;
    MPI_Type_contiguous((int)columns->length, MPI_FLOAT, &run);
    MPI_Type_create_hvector((int)columns->count, 1, 4 * column_step, run, &line);
    MPI_Type_create_hvector((int)rows->length, 1, 4 * width, line, &block);
    MPI_Type_create_hvector((int)rows->count, 1, 4 * width * row_step, block, &all);
    MPI_Type_commit(&all);
    MPI_Type_free(&run);
    MPI_Type_free(&line);
    MPI_Type_free(&block);
    return all;
}

static int send_place[RANKS];
static int receive_place[RANKS];

static void make_types(scene *s)
{
    const grid *f = &s->how->from;
    const grid *t = &s->how->to;
    for (int peer = 0; peer < RANKS; peer++)
        for (int sends = 0; sends < 2; sends++) {
            int source = sends ? rank : peer;
            int target = sends ? peer : rank;
            shared rows = share(f->block_rows, f->rows, source / f->columns, t->block_rows, t->rows,
                target / t->columns);
            shared columns = share(f->block_columns, f->columns, source % f->columns,
                t->block_columns, t->columns, target % t->columns);
            int64_t width = local_columns(sends ? f : t);
            int64_t place = 4 * (sends ? rows.from_first * width + columns.from_first
                                       : rows.to_first * width + columns.to_first);
            (sends ? send_place : receive_place)[peer] = (int)place;
            (sends ? s->send : s->receive)[peer] = make_type(&rows, &columns, width, sends);
        }
}

static void by_alltoallw(scene *s)
{
    static const int ones[RANKS] = {1, 1, 1, 1};
    MPI_Alltoallw(s->source, ones, send_place, s->send, s->target, ones, receive_place, s->receive,
        MPI_COMM_WORLD);
}

#if defined(RS_HAVE_SCALAPACK)
void Cblacs_get(int context, int what, int *value);
void Cblacs_gridmap(int *context, int *map, int ld, int rows, int columns);
void Cblacs_gridexit(int context);
void descinit_(int *desc, const int *m, const int *n, const int *mb, const int *nb, const int *rsrc,
    const int *csrc, const int *context, const int *lld, int *info);
void Cpsgemr2d(int m, int n, float *a, int ia, int ja, int *desca, float *b, int ib, int jb,
    int *descb, int context);

/* ScaLAPACK's matrices are column-major: what it is shown is the transposed one. */
static void describe(const grid *g, int *context, int *desc)
{
    int map[RANKS];
    int zero = 0;
    int info = 0;
    int size = (int)n;
    int block_rows = (int)g->block_columns;
    int block_columns = (int)g->block_rows;
    int leading = (int)local_columns(g);
    for (int r = 0; r < RANKS; r++)
        map[r % g->columns + r / g->columns * g->columns] = r;
    Cblacs_get(0, 0, context);
    Cblacs_gridmap(context, map, g->columns, g->columns, g->rows);
    descinit_(
        desc, &size, &size, &block_rows, &block_columns, &zero, &zero, context, &leading, &info);
    if (info != 0)
        MPI_Abort(MPI_COMM_WORLD, 3);
}

static int contexts[2];
static int descriptions[2][9];
static int whole;

static void by_scalapack(scene *s)
{
    Cpsgemr2d(
        (int)n, (int)n, s->source, 1, 1, descriptions[0], s->target, 1, 1, descriptions[1], whole);
}

static void begin_scalapack(const scene *s)
{
    int map[RANKS] = {0, 1, 2, 3};
    describe(&s->how->from, &contexts[0], descriptions[0]);
    describe(&s->how->to, &contexts[1], descriptions[1]);
    Cblacs_get(0, 0, &whole);
    Cblacs_gridmap(&whole, map, 1, 1, RANKS);
}

static void end_scalapack(void)
{
    Cblacs_gridexit(contexts[0]);
    Cblacs_gridexit(contexts[1]);
    Cblacs_gridexit(whole);
}
#endif

typedef struct method {
    const char *name;
    void (*run)(scene *s);
    int checked;
} method;

static const method methods[] = {
    {"memcpy", by_memcpy, 0},
    {"reshard (arenas)", by_arenas, 1},
    {"MPI_Alltoallw", by_alltoallw, 1},
#if defined(RS_HAVE_SCALAPACK)
    {"ScaLAPACK psgemr2d", by_scalapack, 1},
#endif
};
#define METHODS (sizeof methods / sizeof *methods)

/* The target holds what the source held. */
static void check(scene *s, const char *name)
{
    size_t count = rs_sums_word_count(space);
    uint64_t *words = calloc(2 * count, sizeof *words);
    rs_sums *after;
    need(rs_sums_create(s->to, rank, &after), "sums");
    need(rs_sums_measure(after, rs_arena_memory(s->now), true), "sums after");
    need(rs_sums_words(s->before, words), "words");
    need(rs_sums_words(after, words + count), "words");
    need(rs_move_verify(MPI_COMM_WORLD, space, words, words + count), name);
    rs_sums_destroy(after);
    free(words);
}

static void begin_scene(scene *s)
{
    s->from = make_placement(&s->how->from);
    s->to = make_placement(&s->how->to);
    s->old = make_arena(s->from, 0);
    s->now = make_arena(s->to, 1);
    s->source = rs_arena_memory(s->old)->regions[0].data;
    s->target = rs_arena_memory(s->now)->regions[0].data;
    uint64_t value = 88172645463325252u + (uint64_t)rank;
    uint64_t *words = (uint64_t *)s->source;
    for (int64_t k = 0; k < n * n / RANKS / 2; k++) {
        value ^= value << 13;
        value ^= value >> 7;
        value ^= value << 17;
        words[k] = value;
    }
    meet();
    for (int r = 0; r < RANKS; r++) {
        need(rs_arena_open(keeper, 0, r, false, &s->peers[r]), "open");
        rs_arena_touch(s->peers[r], INT64_MAX);
    }
    double start = bench_now();
    need(rs_plan_create(s->from, s->to, rank, &(rs_plan_options){0}, &s->plan), "plan");
    double seconds = slowest(bench_now() - start);
    if (rank == 0)
        printf("%s (planned in %.0f ms)\n", s->how->name, 1e3 * seconds);
    need(rs_sums_create(s->from, rank, &s->before), "sums");
    need(rs_sums_measure(s->before, rs_arena_memory(s->old), true), "sums before");
    make_types(s);
#if defined(RS_HAVE_SCALAPACK)
    begin_scalapack(s);
#endif
}

static void end_scene(scene *s)
{
#if defined(RS_HAVE_SCALAPACK)
    end_scalapack();
#endif
    for (int r = 0; r < RANKS; r++) {
        MPI_Type_free(&s->send[r]);
        MPI_Type_free(&s->receive[r]);
        rs_arena_close(s->peers[r]);
    }
    rs_sums_destroy(s->before);
    rs_plan_destroy(s->plan);
    rs_arena_close(s->old);
    rs_arena_close(s->now);
    rs_placement_destroy(s->from);
    rs_placement_destroy(s->to);
    meet();
    need(rs_keeper_sweep(keeper), "sweep");
    meet();
}

/* Runs all methods by turns; how many beat this library. */
static int run_case(scene *s, int rounds)
{
    double best[METHODS];
    int beaten = 0;
    begin_scene(s);
    for (int r = 0; r < rounds; r++)
        for (size_t m = 0; m < METHODS; m++) {
            if (methods[m].checked)
                memset(s->target, 0, (size_t)(n * n / RANKS * 4));
            meet();
            double start = bench_now();
            methods[m].run(s);
            double seconds = slowest(bench_now() - start);
            best[m] = r == 0 || seconds < best[m] ? seconds : best[m];
            if (methods[m].checked && r == 0)
                check(s, methods[m].name);
        }
    for (size_t m = 0; m < METHODS; m++) {
        if (rank == 0)
            printf("  %-20s %6.2f GB/s, %.2f of memcpy by two processes\n", methods[m].name,
                (double)(n * n) * 4e-9 / best[m], best[0] / best[m]);
        beaten += m > 1 && best[m] < best[1];
    }
    for (size_t m = 2; m < METHODS && rank == 0; m++)
        printf("figure: redistribute, %s, times the rate of %s %.1f (wanted: >= 1)\n", s->how->name,
            methods[m].name, best[m] / best[1]);
    end_scene(s);
    return beaten;
}

int main(int argc, char **argv)
{
    int ranks;
    int rounds = 5;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int k = 1; k + 1 < argc; k += 2) {
        if (strcmp(argv[k], "--n") == 0)
            n = strtol(argv[k + 1], NULL, 10);
        if (strcmp(argv[k], "--rounds") == 0)
            rounds = (int)strtol(argv[k + 1], NULL, 10);
    }
    if (ranks != RANKS || n < 4 * BLOCK || n % (4 * BLOCK) != 0 || n > 32768 || rounds < 1) {
        fprintf(
            stderr, "needs %d ranks, n a multiple of %d up to 32768, rounds\n", RANKS, 4 * BLOCK);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    rs_role role = {"param", RS_DTYPE_F32, RS_ROLE_MODEL};
    rs_tensor tensor = {.name = "matrix", .ndim = 2, .shape = {n, n}};
    need(rs_space_create(&space), "space");
    need(rs_space_add_role(space, &role, NULL), "role");
    need(rs_space_add_tensor(space, &tensor, NULL), "tensor");
    char job[40];
    int id = (int)getpid();
    MPI_Bcast(&id, 1, MPI_INT, 0, MPI_COMM_WORLD);
    snprintf(job, sizeof job, "bench-%d", id);
    need(rs_keeper_open(job, NULL, &keeper), "keeper");
    scene s = {.buffer_bytes = (size_t)128 << 20};
    for (int k = 0; k < 2 && rank < 2; k++)
        s.buffer[k] = bench_memory(s.buffer_bytes);
    const matrix_case cases[] = {
        {"columns to rows", {1, 4, n, n / 4}, {4, 1, n / 4, n}},
        {"block-cyclic 2 x 2 to 4 x 1", {2, 2, BLOCK, BLOCK}, {4, 1, BLOCK, BLOCK}},
    };
    int beaten = 0;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        s.how = &cases[c];
        beaten += run_case(&s, rounds);
    }
    rs_keeper_close(keeper);
    rs_space_destroy(space);
    MPI_Finalize();
    return beaten != 0;
}
