/*
 * Conversions by several processes: the files are the same, to the byte, as those of one process;
 * each byte of the source is read once; a write, sync or rename that fails on any rank, or a rank
 * that is told to stop, ends it on all with that rank's words and leaves nothing.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "ckpt/file.h"
#include "ckpt/format.h"
#include "ckpt/publish.h"
#include "np/check.h"
#include "pattern.h"
#include "reshard/convert.h"
#include "reshard/layout.h"
#include "reshard/move_mpi.h"
#include "reshard/native.h"
#include "support/save.h"

static char root[64], source[96], alone[96], target[96];
static rs_group group;
static MPI_Comm world;

/* A checkpoint of one rank, of some hundred chunks of 64 KiB. Rank 0. */
static void make_source(void)
{
    rs_model model = pattern_model();
    rs_space *space;
    rs_save_name name = {source, 3, "np-1"};
    uint64_t salt = 1;
    model.hidden = 64;
    model.vocab = 1201;
    model.layers = 2;
    CHECK(rs_make_folder(root) == RS_OK);
    CHECK(rs_model_space(&model, RS_DTYPE_F32, &space) == RS_OK);
    CHECK(save_all(&name, space, "dp=1", save_pattern, &salt) == RS_OK);
    rs_space_destroy(space);
}

static bool always(void *context)
{
    (void)context;
    return true;
}

/* Collective where `together`. */
static rs_status convert(const char *to, const char *where, bool together, bool stop)
{
    rs_convert_options how = {.to = to,
        .shard_bytes = strcmp(to, "native") == 0 || strcmp(to, "safetensors") == 0 ? 300000 : 0,
        .memory = 1 << 17,
        .threads = together ? 2 : 1,
        .group = together ? &group : NULL,
        .cancelled = stop ? always : NULL};
    rs_checkpoint *checkpoint = NULL;
    rs_convert_report report = {0};
    CHECK(rs_checkpoint_open(source, NULL, &checkpoint) == RS_OK);
    rs_status status = rs_convert(checkpoint, where, &how, &report);
    /* At each border between ranks at most a shard's rest is read once more, for its checksum; here
     * shards are smaller than 400,000 bytes. */
    int64_t again = together && strcmp(to, "native") == 0 ? ranks * INT64_C(400000) : 0;
    if (status == RS_OK)
        CHECK(report.bytes_read >= report.bytes && report.bytes_read <= report.bytes + again);
    rs_checkpoint_close(checkpoint);
    return status;
}

/* Files and folders below two paths are the same. */
static bool same(const char *a, const char *b)
{
    rs_place x, y;
    bool equal = rs_is_folder(a) == rs_is_folder(b);
    if (!rs_is_folder(a) && equal) {
        char *p = NULL, *q = NULL;
        size_t n = 0, m = 0;
        equal = rs_file_text(a, 1 << 30, &p, &n) == RS_OK &&
                rs_file_text(b, 1 << 30, &q, &m) == RS_OK && n == m && memcmp(p, q, n) == 0;
        free(p);
        free(q);
        return equal;
    }
    if (!equal || rs_place_init(&x, a) != RS_OK)
        return false;
    if (rs_place_init(&y, b) != RS_OK) {
        rs_place_fini(&x);
        return false;
    }
    equal = x.count == y.count;
    for (size_t i = 0; i < x.count && equal; i++) {
        char *p, *q;
        equal = strcmp(x.names[i], y.names[i]) == 0;
        CHECK(rs_path_join(a, x.names[i], &p) == RS_OK && rs_path_join(b, x.names[i], &q) == RS_OK);
        equal = equal && same(p, q);
        free(p);
        free(q);
    }
    rs_place_fini(&x);
    rs_place_fini(&y);
    return equal;
}

static void clear(void)
{
    MPI_Barrier(world);
    if (rank == 0)
        CHECK(rs_remove_path(root, "target") == RS_OK);
    MPI_Barrier(world);
}

static void test_same_bytes(void)
{
    static const char *const formats[] = {"native", "safetensors", "torch", "deepspeed-universal"};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (rank == 0)
            CHECK(convert(formats[i], alone, false, false) == RS_OK);
        CHECK(convert(formats[i], target, true, false) == RS_OK);
        CHECK(same(alone, target));
        clear();
        if (rank == 0)
            CHECK(rs_remove_path(root, "alone") == RS_OK);
    }
}

/* Only the source is there. */
static bool nothing_left(void)
{
    rs_place place;
    if (rs_place_init(&place, root) != RS_OK)
        return false;
    bool clean = place.count == 1;
    rs_place_fini(&place);
    return clean;
}

static void test_failures(void)
{
    static const rs_fault points[] = {RS_FAULT_WRITE, RS_FAULT_SYNC, RS_FAULT_RENAME};
    char wanted[24];
    for (int who = 0; who < ranks; who++) {
        for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
            for (int n = 1; n <= 40; n += 3) {
                int clean = 1, outcomes[2];
                if (rank == who)
                    rs_fault_arm(points[p], n, 1);
                rs_status status = convert("native", target, true, false);
                if (rank == who)
                    clean = rs_fault_pending(points[p]);
                rs_fault_arm(points[p], 0, 0);
                MPI_Bcast(&clean, 1, MPI_INT, who, world);
                CHECK((status == RS_OK) == (clean != 0));
                snprintf(wanted, sizeof wanted, "rank %d: ", who);
                CHECK(clean || ranks == 1 ||
                      strncmp(rs_error_message(), wanted, strlen(wanted)) == 0);
                outcomes[0] = (int)status;
                MPI_Allreduce(&outcomes[0], &outcomes[1], 1, MPI_INT, MPI_MAX, world);
                CHECK(outcomes[0] == outcomes[1]);
                /* A sync behind the last rename fails when the target stands. */
                CHECK(clean || access(target, F_OK) == 0 || nothing_left());
                clear();
                if (clean)
                    break;
            }
        }
    }
}

static void test_stopped(void)
{
    CHECK(convert("torch", target, true, rank == ranks - 1) == RS_ERR_CANCELLED);
    MPI_Barrier(world);
    CHECK(nothing_left());
    MPI_Barrier(world);
}

int main(void)
{
    int pid = (int)getpid();
    check_begin();
    world = MPI_COMM_WORLD;
    MPI_Bcast(&pid, 1, MPI_INT, 0, world);
    snprintf(root, sizeof root, "/dev/shm/np-convert-%d", pid);
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(alone, sizeof alone, "%s/alone", root);
    snprintf(target, sizeof target, "%s/target", root);
    CHECK(rs_group_mpi(&world, &group) == RS_OK);
    if (rank == 0)
        make_source();
    MPI_Barrier(world);
    test_same_bytes();
    test_failures();
    test_stopped();
    if (rank == 0)
        CHECK(rs_remove_folder(root) == RS_OK);
    return check_end("all conversions the same");
}
