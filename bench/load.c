/*
 * Loading a native checkpoint on 4 ranks, processes of their own, under layouts other than the one
 * that saved it: how many bytes the kernel was asked for, beside those of the target's shards, and
 * how long it takes beside plain reads of as many bytes into memory as fresh.
 *
 *     load [--mib N] FOLDER
 *
 * FOLDER does not exist; it is made, and removed.
 */
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "ckpt/publish.h"
#include "reshard/native.h"
#include "state.h"

#define RANKS 4
#define PART ((size_t)8 << 20)

/* What a rank tells. */
typedef struct told {
    double seconds;
    int64_t asked;  /* bytes that it had the kernel read */
    int64_t shards; /* bytes of its shards */
} told;

static int64_t bytes_asked(void)
{
    char text[512] = "";
    long long bytes = 0;
    int fd = open("/proc/self/io", O_RDONLY);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0 || sscanf(text, "rchar: %lld", &bytes) != 1)
        exit(77);
    return bytes - n; /* this read is not in it yet, the one before is */
}

static void save(const rs_space *space, const char *layout, const char *folder)
{
    rs_placement *placement = place(space, layout);
    rs_save_name name = {folder, 1, "bench"};
    rs_save_about about = {.layout = layout, .world = RANKS, .extras = "{}"};
    char *records[RANKS];
    need(rs_save_prepare(&name), "prepare");
    for (int r = 0; r < RANKS; r++) {
        rs_memory memory;
        rs_save *part = NULL;
        need(rs_memory_allocate(placement, r, &memory), "memory");
        for (size_t k = 0; k < memory.count; k++)
            memset(memory.regions[k].data, (int)k + r, (size_t)memory.regions[k].bytes);
        need(rs_save_begin(placement, r, &memory, &part), "save");
        need(rs_save_write(part, &name), "write");
        need(rs_save_record(part, &records[r]), "record");
        rs_save_destroy(part);
        rs_memory_free(&memory);
    }
    need(rs_save_commit(&name, space, &about, (const char *const *)records, RANKS), "commit");
    for (int r = 0; r < RANKS; r++)
        free(records[r]);
    rs_placement_destroy(placement);
}

static told load(const rs_placement *placement, int rank, const char *folder)
{
    rs_native *native;
    rs_memory memory;
    told t = {0};
    need(rs_native_open_step(folder, 1, &native), "open");
    need(rs_memory_allocate(placement, rank, &memory), "memory");
    int64_t asked = bytes_asked();
    double begun = bench_now();
    need(rs_native_load(native, placement, rank, &memory, &t.shards), "load");
    t.seconds = bench_now() - begun;
    t.asked = bytes_asked() - asked;
    rs_memory_free(&memory);
    rs_native_close(native);
    return t;
}

/* Reads as many bytes of the checkpoint's files, one after the other, from the rank's own part on.
 */
static told plain(int64_t bytes, int rank, const char *folder)
{
    told t = {0};
    char path[512];
    char *memory = malloc((size_t)bytes + PART);
    if (memory == NULL)
        exit(77);
    double begun = bench_now();
    for (int k = 0; t.asked < bytes && k < RANKS; k++) {
        snprintf(path, sizeof path, "%s/step-00000001/rank-%05d.safetensors", folder,
            (rank + k) % RANKS);
        int fd = open(path, O_RDONLY);
        ssize_t n = 1;
        while (t.asked < bytes && n > 0) {
            size_t most = bytes - t.asked < (int64_t)PART ? (size_t)(bytes - t.asked) : PART;
            n = read(fd, memory + t.asked, most);
            t.asked += n > 0 ? n : 0;
        }
        close(fd);
    }
    t.seconds = bench_now() - begun;
    free(memory);
    return t;
}

/* All ranks at once; the slowest's seconds, and the sums. `bytes`: of plain reads of each rank. */
static told together(
    const rs_placement *placement, const int64_t *bytes, const char *folder, int64_t *own)
{
    told all = {0}, mine;
    int ends[RANKS][2];
    for (int r = 0; r < RANKS; r++) {
        if (pipe(ends[r]) != 0)
            exit(77);
        if (fork() == 0) {
            mine = bytes != NULL ? plain(bytes[r], r, folder) : load(placement, r, folder);
            _exit(write(ends[r][1], &mine, sizeof mine) != sizeof mine);
        }
        close(ends[r][1]);
    }
    for (int r = 0; r < RANKS; r++) {
        if (read(ends[r][0], &mine, sizeof mine) != sizeof mine)
            exit(1);
        close(ends[r][0]);
        wait(NULL);
        all.seconds = mine.seconds > all.seconds ? mine.seconds : all.seconds;
        all.asked += mine.asked;
        all.shards += mine.shards;
        if (own != NULL)
            own[r] = mine.shards;
    }
    return all;
}

int main(int argc, char **argv)
{
    static const char *const targets[] = {
        "tp=4", "pp=4", "dp=4,zero=1", "tp=2,pp=2", "tp=2,dp=2,zero=1"};
    int64_t mib = 512, bytes[RANKS];
    const char *folder = NULL;
    double worst = 0, slowest = 1e9;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mib") == 0 && i + 1 < argc)
            mib = strtoll(argv[++i], NULL, 10);
        else
            folder = argv[i];
    }
    if (folder == NULL)
        return 2;
    rs_space *space = make_space(mib << 20);
    save(space, "tp=2,dp=2,zero=1", folder);
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        rs_placement *placement = place(space, targets[i]);
        double best = 0;
        told t = {0};
        for (int round = 0; round < 3; round++) {
            t = together(placement, NULL, folder, bytes);
            told p = together(placement, bytes, folder, NULL);
            best = p.seconds / t.seconds > best ? p.seconds / t.seconds : best;
        }
        double ratio = (double)t.asked / (double)t.shards;
        printf("  %-18s %7.1f MiB of shards, %7.1f MiB read, %.3f s; speed by plain reads %.2f\n",
            targets[i], (double)t.shards / (1 << 20), (double)t.asked / (1 << 20), t.seconds, best);
        worst = ratio > worst ? ratio : worst;
        slowest = best < slowest ? best : slowest;
        rs_placement_destroy(placement);
    }
    need(rs_remove_folder(folder), "remove");
    printf("figure: bytes read to load under another layout, by those of the shards %.4f (wanted: "
           "1.0000)\n",
        worst);
    printf("figure: speed of loading by plain reads, the worst layout %.2f (wanted: >= 0.50)\n",
        slowest);
    rs_space_destroy(space);
    return worst <= 1.00005 && slowest >= 0.5 ? 0 : 1;
}
