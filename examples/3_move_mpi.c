/*
 * Example 3: move the state of your own MPI program.
 *
 * No model, no layout, no arena here: just a matrix that the ranks of a program share. Before, each
 * rank has some columns, stored row by row; afterwards it has some rows, stored column by column,
 * as its next solver wants them. Both are *placements* listed shard by shard: a shard says which
 * box of the matrix it is, and with an offset and strides where its elements lie in the rank's own
 * buffer. Packing, messages and the transposition follow from that; the program does none of it.
 *
 * Afterwards a *certificate* proves that the content is the same: sums of the matrix's elements
 * that depend on where an element stands in the matrix, but not on which rank has it.
 *
 *     mpicc 3_move_mpi.c -o 3_move_mpi $(pkg-config --cflags --libs reshard_mpi)
 *     mpirun -n 4 ./3_move_mpi
 *     mpirun -n 4 ./3_move_mpi --flip       one bit is flipped after the move: the certificate
 * notices
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/move_mpi.h"
#include "reshard/reshard.h"

enum { ROWS = 1000, COLUMNS = 777 };

static void must(rs_status status)
{
    if (status == RS_OK)
        return;
    fprintf(stderr, "3_move_mpi: %s: %s\n", rs_status_name(status), rs_error_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The space: one tensor, one role. */
static rs_space *describe_matrix(void)
{
    rs_space *space;
    must(rs_space_create(&space));
    rs_role value = {.name = "value", .dtype = RS_DTYPE_F64, .role_class = RS_ROLE_MODEL};
    rs_tensor matrix = {.name = "matrix", .ndim = 2, .shape = {ROWS, COLUMNS}};
    must(rs_space_add_role(space, &value, NULL));
    must(rs_space_add_tensor(space, &matrix, NULL));
    return space;
}

/*
 * Every rank's box along dimension `dim`, in segment 0 of the rank's memory; `fast` is the
 * dimension whose neighbours lie side by side. All ranks list all holders alike; a rank without
 * anything lists nothing.
 */
static rs_placement *split(const rs_space *space, int ranks, int dim, int fast)
{
    rs_shard *shards = calloc((size_t)ranks, sizeof *shards);
    size_t *first = calloc((size_t)ranks + 1, sizeof *first);
    if (shards == NULL || first == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    const rs_tensor *matrix = rs_space_tensor(space, 0);
    size_t count = 0;
    for (int rank = 0; rank < ranks; rank++) {
        rs_shard shard = {.dtype = RS_DTYPE_F64, .box = rs_box_whole(2, matrix->shape)};
        int64_t begin = matrix->shape[dim] * rank / ranks;
        int64_t end = matrix->shape[dim] * (rank + 1) / ranks;
        shard.box.offset[dim] = begin;
        shard.box.extent[dim] = end - begin;
        shard.stride[fast] = sizeof(double);
        shard.stride[1 - fast] = (int64_t)sizeof(double) * shard.box.extent[fast];
        if (end > begin)
            shards[count++] = shard;
        first[rank + 1] = count;
    }
    rs_placement *placement;
    must(rs_placement_create_list(space, ranks, shards, first, &placement));
    free(shards);
    free(first);
    return placement;
}

/* What this rank has under a placement; the elements of its buffer through the shard's strides. */
static rs_shard own_shard(const rs_placement *placement, int rank)
{
    rs_shard_list list = {0};
    must(rs_placement_shards(placement, rank, -1, &list));
    rs_shard shard = list.count > 0 ? list.items[0] : (rs_shard){.box = {.ndim = 2}};
    rs_shard_list_fini(&list);
    return shard;
}

static double *element(const rs_shard *shard, void *buffer, int64_t row, int64_t column)
{
    return (double *)((char *)buffer + shard->offset +
                      (row - shard->box.offset[0]) * shard->stride[0] +
                      (column - shard->box.offset[1]) * shard->stride[1]);
}

static double value_at(int64_t row, int64_t column)
{
    return (double)(row * COLUMNS + column);
}

/* Visits all elements of the rank's shard: writes the expected values, or counts those that differ.
 */
static int64_t visit(const rs_shard *shard, void *buffer, bool write)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < shard->box.extent[0]; i++) {
        for (int64_t k = 0; k < shard->box.extent[1]; k++) {
            int64_t row = shard->box.offset[0] + i;
            int64_t column = shard->box.offset[1] + k;
            double *place = element(shard, buffer, row, column);
            if (write)
                *place = value_at(row, column);
            wrong += *place != value_at(row, column);
        }
    }
    return wrong;
}

int main(int argc, char **argv)
{
    int rank;
    int ranks;
    bool flip = argc > 1 && strcmp(argv[1], "--flip") == 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    rs_space *space = describe_matrix();
    rs_placement *by_column = split(space, ranks, 1, 1);
    rs_placement *by_row = split(space, ranks, 0, 0);

    /* The buffers are the program's own; the library is told where they are. */
    rs_shard before = own_shard(by_column, rank);
    rs_shard after = own_shard(by_row, rank);
    rs_region old_region = {.bytes = rs_box_volume(&before.box) * (int64_t)sizeof(double)};
    rs_region new_region = {.bytes = rs_box_volume(&after.box) * (int64_t)sizeof(double)};
    old_region.data = calloc((size_t)old_region.bytes + 1, 1);
    new_region.data = calloc((size_t)new_region.bytes + 1, 1);
    if (old_region.data == NULL || new_region.data == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    rs_memory old = {.regions = &old_region, .count = 1};
    rs_memory now = {.regions = &new_region, .count = 1};
    visit(&before, old_region.data, true);

    /* One rank a node: everything travels as MPI messages. Ranks that share memory could lend each
     * other their buffers instead (rs_move.peer). */
    rs_plan_options options = {.ranks_per_node = 1};
    rs_plan *plan;
    must(rs_plan_create(by_column, by_row, rank, &options, &plan));

    rs_sums *sums_before;
    rs_sums *sums_after;
    must(rs_sums_create(by_column, rank, &sums_before));
    must(rs_sums_create(by_row, rank, &sums_after));
    must(rs_sums_measure(sums_before, &old, true));

    rs_move move = {.comm = MPI_COMM_WORLD,
        .from = by_column,
        .to = by_row,
        .plan = plan,
        .old = &old,
        .now = &now,
        .after = sums_after};
    rs_move_report report;
    must(rs_move_run(&move, &report));

    if (flip && rank == ranks - 1) {
        ((unsigned char *)new_region.data)[0] ^= 1;
        must(rs_sums_measure(sums_after, &now, true));
    }

    size_t words = rs_sums_word_count(space);
    uint64_t *words_before = calloc(words, sizeof *words_before);
    uint64_t *words_after = calloc(words, sizeof *words_after);
    if (words_before == NULL || words_after == NULL)
        MPI_Abort(MPI_COMM_WORLD, 1);
    must(rs_sums_words(sums_before, words_before));
    must(rs_sums_words(sums_after, words_after));
    rs_status verdict = rs_move_verify(MPI_COMM_WORLD, space, words_before, words_after);

    int64_t wrong = visit(&after, new_region.data, false);
    printf("rank %d: %" PRId64 " bytes kept, %" PRId64 " received, %" PRId64 " sent, %" PRId64
           " elements wrong\n",
        rank, report.self_bytes, report.remote_bytes, report.sent_bytes, wrong);
    if (rank == 0)
        printf("certificate: %s\n", verdict == RS_OK ? "ok" : rs_error_message());

    free(words_after);
    free(words_before);
    rs_sums_destroy(sums_after);
    rs_sums_destroy(sums_before);
    rs_plan_destroy(plan);
    free(new_region.data);
    free(old_region.data);
    rs_placement_destroy(by_row);
    rs_placement_destroy(by_column);
    rs_space_destroy(space);
    MPI_Finalize();
    return verdict == RS_OK && wrong == 0 ? 0 : 1;
}
