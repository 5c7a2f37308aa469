/*
 * Crash points. One is armed per process, from the environment; visits are counted atomically, so
 * that threads may pass it.
 */
#include "base/crash.h"

#ifdef RS_CRASH_POINTS

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    bool armed;
    char name[32];
    int64_t step;
    atomic_llong now;
    atomic_llong left; /* visits before the one that kills */
    int signal;
} crash;

void rs_crash_begin(int rank)
{
    const char *text = getenv("RESHARD_CRASH");
    int wanted = rank;
    long long step = 0, visit = 1;
    int number = SIGKILL;
    crash.armed = false;
    for (; text != NULL && !crash.armed; text = strchr(text, ','), text += text != NULL) {
        visit = 1;
        number = SIGKILL;
        crash.armed = sscanf(text, "%31[^:]:%d:%lld:%lld:%d", crash.name, &wanted, &step, &visit,
                          &number) >= 3 &&
                      wanted == rank;
    }
    crash.step = step;
    crash.signal = number;
    atomic_store(&crash.now, -1);
    atomic_store(&crash.left, visit);
}

void rs_crash_step(int64_t step)
{
    atomic_store(&crash.now, step);
}

static void note(void)
{
    const char *path = getenv("RESHARD_CRASH_NOTE");
    int file = path != NULL
                   ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, S_IRUSR | S_IWUSR)
                   : -1;
    if (file < 0)
        return;
    dprintf(file, "%s\n", crash.name);
    close(file);
}

void rs_crash_point(const char *name)
{
    if (!crash.armed || atomic_load_explicit(&crash.now, memory_order_relaxed) < crash.step ||
        strcmp(name, crash.name) != 0)
        return;
    if (atomic_fetch_sub(&crash.left, 1) != 1)
        return;
    note();
    if (crash.signal == 0)
        execl("/bin/sh", "sh", "-c", "exit 3", (char *)NULL);
    kill(getpid(), crash.signal);
}

#endif
