/*
 * Changing a layout through a checkpoint: 2 ranks save a state that is cut as FSDP2 cuts it, 4 load
 * it under the same kind of cut and under tensor parallelism. bench/dcp.py does the same with
 * PyTorch's distributed checkpoints.
 *
 *     mpirun -n 4 dcp [--mib N] FOLDER     prints seconds, `save S`, `dim0 S` and `tp S`
 *     dcp [--mib N] --shapes               prints the tensors, `NAME DIM...`, layer by layer
 *
 * FOLDER does not exist; it is made and left. Seconds are from the moment that all ranks have their
 * memory to the moment that the last is done; what a save copies to is made ahead, as `reshard
 * train` does between its steps.
 */
#include "bench.h"
#include "ranks.h"
#include "reshard/native.h"
#include "state.h"

#define SAVERS 2
#define SAVED "dp=2,zero=3,zero_cut=dim0"

static int rank;

static void told(const char *what, double begun)
{
    meet();
    if (rank == 0)
        printf("%s %.4f\n", what, bench_now() - begun);
}

/* The record of rank 1 goes to rank 0. */
static char *exchange(const char *record)
{
    int length = 0;
    if (rank == 1) {
        MPI_Send(record, (int)strlen(record) + 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
        return NULL;
    }
    MPI_Status status;
    MPI_Probe(1, 0, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_CHAR, &length);
    char *other = malloc((size_t)length);
    if (other == NULL)
        need(RS_ERR_NO_MEMORY, "record");
    MPI_Recv(other, length, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return other;
}

/* What a rank of those that save does. */
static void save_part(const rs_space *space, const rs_placement *placement, const rs_memory *memory,
    const rs_save_name *name, rs_save *part)
{
    rs_save_about about = {.layout = SAVED, .world = SAVERS, .extras = "{}"};
    char *records[SAVERS];
    need(rs_save_begin(placement, rank, memory, &part), "save");
    need(rs_save_write(part, name), "write");
    need(rs_save_record(part, &records[0]), "record");
    records[1] = exchange(records[0]);
    if (rank == 0)
        need(rs_save_commit(name, space, &about, (const char *const *)records, SAVERS), "commit");
    free(records[0]);
    free(records[1]);
}

static void save(const rs_space *space, const char *folder)
{
    rs_placement *placement = place(space, SAVED);
    rs_save_name name = {folder, 1, "bench"};
    rs_memory memory = {0};
    rs_save *part = NULL;
    if (rank < SAVERS) {
        need(rs_memory_allocate(placement, rank, &memory), "memory");
        need(rs_save_reserve(placement, rank, &part), "reserve");
        while (rs_save_touch(part, 8 << 20) > 0)
            ;
    }
    for (size_t k = 0; k < memory.count; k++)
        for (int64_t i = 0; i < memory.regions[k].bytes / (int64_t)sizeof(float); i++)
            ((float *)memory.regions[k].data)[i] = (float)(i % 65521);
    meet();
    double begun = bench_now();
    if (rank == 0)
        need(rs_save_prepare(&name), "prepare");
    meet();
    if (rank < SAVERS)
        save_part(space, placement, &memory, &name, part);
    told("save", begun);
    rs_save_destroy(part);
    rs_memory_free(&memory);
    rs_placement_destroy(placement);
}

static void load(const rs_space *space, const char *layout, const char *what, const char *folder)
{
    rs_placement *placement = place(space, layout);
    rs_memory memory;
    rs_native *native;
    int64_t bytes;
    need(rs_memory_allocate(placement, rank, &memory), "memory");
    meet();
    double begun = bench_now();
    need(rs_native_open_step(folder, 1, &native), "open");
    need(rs_native_fits(native, space, 0, 1), "space");
    need(rs_native_load(native, placement, rank, &memory, &bytes), "load");
    told(what, begun);
    rs_native_close(native);
    rs_memory_free(&memory);
    rs_placement_destroy(placement);
}

static void print_shapes(const rs_space *space)
{
    for (int t = 0; t < rs_space_tensor_count(space); t++) {
        const rs_tensor *tensor = rs_space_tensor(space, t);
        bool stack = tensor->ndim > 0 && tensor->axis[0] == RS_AXIS_LAYER;
        for (int64_t layer = 0; layer < (stack ? tensor->shape[0] : 1); layer++)
            for (int r = 0; r < rs_space_role_count(space); r++) {
                if (stack)
                    printf("%lld.", (long long)layer);
                printf("%s.%s", tensor->name, rs_space_role(space, r)->name);
                for (int d = stack; d < tensor->ndim; d++)
                    printf(" %lld", (long long)tensor->shape[d]);
                printf("\n");
            }
    }
}

int main(int argc, char **argv)
{
    int64_t mib = 1024;
    const char *folder = NULL;
    bool shapes = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mib") == 0 && i + 1 < argc)
            mib = strtoll(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--shapes") == 0)
            shapes = true;
        else
            folder = argv[i];
    }
    if (folder == NULL && !shapes)
        return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    rs_space *space = make_space(mib << 20);
    if (shapes) {
        print_shapes(space);
    } else {
        save(space, folder);
        load(space, "dp=4,zero=3,zero_cut=dim0", "dim0", folder);
        load(space, "tp=4", "tp", folder);
    }
    rs_space_destroy(space);
    MPI_Finalize();
    return 0;
}
