/*
 * A launcher that does not end its world when a rank has died.
 *
 * Launchers end a job of which a rank died, and the supervisor sees the launcher end: that is how
 * it learns of a death. Not always. Open MPI's mpirun does not notice one that dies in the middle
 * of its first connection to it, and the others wait for it in MPI_Init for ever. Slurm's srun
 * tells of the death at once, but leaves the other ranks half a minute to end. So the supervisor
 * looks at the ranks' processes itself, where they run on its host, by the process numbers that
 * ranks note in the job directory when they start. A rank that is gone while its launcher lives on
 * is the launcher's to deal with for some seconds; then the launcher is killed, as it may not heed
 * SIGTERM in that state. The ranks die with it, or by the fence of the recovery.
 *
 * Of a new world, silence is noticed here too; the rank that trains and is silent is the
 * supervisor's affair.
 *
 * A world in which nobody ever says a word is given up too, after two minutes, or --world-timeout
 * where that is longer.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/subject.h"
#include "cli/supervisor.h"

#define LOOK_SECONDS 0.25
#define JOIN_SECONDS 120
/* From a rank's death to the launcher's end, at most. */
#define TOLD_SECONDS 2    /* it has said that a rank died, or its world still boots */
#define UNTOLD_SECONDS 5  /* it has not, and lets one explain the death otherwise */
#define ENDING_SECONDS 15 /* the ranks may be about to end by themselves */

/* True if the process has ended, reaped or not. */
static bool has_ended(long process)
{
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%ld/stat", process);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return true;
    /* The name in brackets may hold anything, brackets too. */
    char line[512];
    const char *end = fgets(line, sizeof line, file) != NULL ? strrchr(line, ')') : NULL;
    fclose(file);
    if (end != NULL && end[1] == ' ')
        state = end[2];
    return state == 'Z' || state == 'X';
}

/* The first rank of this host whose process has ended; -1: none. */
static int find_lost(const supervisor *s, const world *w, long *process)
{
    char host[64] = "", own[64] = "";
    gethostname(own, sizeof own - 1);
    for (int rank = 0; rank < w->ranks; rank++) {
        if (w->places != NULL && !s->fleet->hosts[w->places[rank]].here)
            continue; /* its note would be opened for nothing, on a shared file system */
        if (launch_find_rank(s->options, w->number, rank, process, host) &&
            strcmp(host, own) == 0 && has_ended(*process))
            return rank;
    }
    return -1;
}

/* The launcher has said that a rank died. */
static bool is_told(const world *w)
{
    bool told = false;
    for (int i = 0; i < 2; i++)
        told = told || w->streams[i].death.rank >= 0 || w->streams[i].death.signal > 0;
    return told;
}

bool vigil_sees_death(const supervisor *s, const world *w)
{
    long process;
    return w->ended || w->deadline > 0 || is_told(w) || find_lost(s, w, &process) >= 0;
}

/* How long the launcher may take. */
static double patience(const world *w)
{
    if (w->host_count == 0 || is_told(w))
        return TOLD_SECONDS;
    for (int h = 0; h < w->host_count; h++)
        if (w->hosts[h].link == NULL)
            return ENDING_SECONDS;
    return UNTOLD_SECONDS;
}

/* Why the world cannot go on; false: nothing is known against it. */
static bool is_lost(supervisor *s, world *w, char *why, size_t size)
{
    double now = cli_now();
    long process;
    double limit = s->launch->world_limit > JOIN_SECONDS ? s->launch->world_limit : JOIN_SECONDS;
    if (w->host_count == 0 && now - w->begun > limit) {
        snprintf(why, size, "world %d has not joined within %.0f s", w->number, limit);
        return true;
    }
    for (int h = 0; w == s->other && w->stage != WORLD_LEAVES && h < w->host_count; h++) {
        double silent = supervisor_silence(s, &w->hosts[h]);
        if (!supervisor_is_silent(s, &w->hosts[h], silent))
            continue;
        snprintf(why, size, "rank %d on %.64s has shown no sign of life for %.0f s",
            w->hosts[h].rank, w->hosts[h].name, silent);
        return true;
    }
    if (now - w->looked < LOOK_SECONDS)
        return false;
    w->looked = now;
    int rank = find_lost(s, w, &process);
    if (rank < 0) {
        w->lost = 0;
        return false;
    }
    if (w->lost <= 0)
        w->lost = now;
    if (now - w->lost < patience(w))
        return false;
    snprintf(why, size,
        "rank %d (process %ld) has gone, and the launcher (process %ld) goes on without it", rank,
        process, (long)w->process);
    return true;
}

void vigil_tend(supervisor *s)
{
    world *const worlds[] = {s->active, s->other};
    char why[sizeof s->stopped_rank];
    for (int i = 0; i < 2; i++) {
        world *w = worlds[i];
        if (w == NULL || w->ended || w->deadline > 0 || !is_lost(s, w, why, sizeof why))
            continue;
        if (w == s->active && !is_told(w))
            snprintf(s->stopped_rank, sizeof s->stopped_rank, "%s", why);
        else if (w != s->active)
            change_cancel(s, why);
        for (int force = 0; force < 2 && (w == s->active || w == s->other); force++)
            world_force(w);
    }
}
