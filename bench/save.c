/*
 * The pause of an asynchronous save, rs_save_begin of one rank, beside a plain memcpy of as many
 * bytes between memory that was touched, by turns. The first save of a job is told too: without and
 * with its memory made ahead.
 *
 *     save [--mib N] [--rounds N]
 */
#include "bench.h"
#include "reshard/native.h"
#include "state.h"

static double of_begin(const rs_placement *placement, const rs_memory *memory, rs_save **save)
{
    double begun = bench_now();
    need(rs_save_begin(placement, 0, memory, save), "save");
    return bench_now() - begun;
}

/* Seconds of the pause over those of a memcpy: the median of the rounds' ratios. */
static double measure(
    const rs_placement *placement, const rs_memory *memory, char *from, char *to, int rounds)
{
    double ratios[64], first, reserved;
    rs_save *save = NULL;
    first = of_begin(placement, memory, &save);
    size_t bytes = (size_t)rs_save_bytes(save);
    for (int r = 0; r < rounds; r++) {
        double begun = bench_now();
        memcpy(to, from, bytes);
        double plain = bench_now() - begun;
        ratios[r] = of_begin(placement, memory, &save) / plain;
        for (int k = r; k > 0 && ratios[k - 1] > ratios[k]; k--) {
            double swapped = ratios[k];
            ratios[k] = ratios[k - 1];
            ratios[k - 1] = swapped;
        }
    }
    rs_save_destroy(save);
    save = NULL;
    need(rs_save_reserve(placement, 0, &save), "reserve");
    while (rs_save_touch(save, 8 << 20) > 0)
        ;
    reserved = of_begin(placement, memory, &save);
    rs_save_destroy(save);
    printf("  %6.1f MiB; first save %6.1f ms, with its memory made ahead %6.1f ms; later ones by "
           "memcpy %.3f\n",
        (double)bytes / (1 << 20), first * 1e3, reserved * 1e3, ratios[rounds / 2]);
    return ratios[rounds / 2];
}

int main(int argc, char **argv)
{
    static const char *const layouts[] = {
        "dp=1", "tp=2", "tp=4,pp=2", "dp=4,zero=1", "tp=2,dp=2,zero=1"};
    int64_t mib = 768;
    int rounds = 11;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--mib") == 0)
            mib = strtoll(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--rounds") == 0)
            rounds = (int)strtol(argv[i + 1], NULL, 10);
    }
    rounds = rounds > 63 ? 63 : rounds;
    rs_space *space = make_space(mib << 20);
    size_t most = (size_t)rs_space_bytes(space, -1);
    char *from = bench_memory(most), *to = bench_memory(most);
    double worst = 0;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        rs_placement *placement = place(space, layouts[i]);
        rs_memory memory;
        need(rs_memory_allocate(placement, 0, &memory), "memory");
        for (size_t k = 0; k < memory.count; k++)
            memset(memory.regions[k].data, (int)k + 1, (size_t)memory.regions[k].bytes);
        printf("%s\n", layouts[i]);
        double ratio = measure(placement, &memory, from, to, rounds);
        worst = ratio > worst ? ratio : worst;
        rs_memory_free(&memory);
        rs_placement_destroy(placement);
    }
    printf("figure: pause of a save by memcpy of as many bytes, the worst layout %.3f (wanted: <= "
           "1.10)\n",
        worst);
    rs_space_destroy(space);
    munmap(from, most);
    munmap(to, most);
    return worst <= 1.10 ? 0 : 1;
}
