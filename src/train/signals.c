/*
 * The signal watch: a handler that only posts a semaphore, and a thread that waits for it.
 *
 * A launcher that loses a rank sends SIGTERM to the others and, about a second later, SIGKILL. They
 * hang in MPI then and cannot finish their step, so the thread removes the job's files of this node
 * when GRACE has passed. That harms nobody: a mapped file lives until it is unmapped, so a step
 * that does go on ends as it would have.
 */
#include "train/signals.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "reshard/arena.h"

#define GRACE_MS 300
#define NAP_MS 10

static struct {
    bool begun;
    rs_keeper *keeper;
    pthread_t thread;
    sem_t posted;
    atomic_bool caught;
    atomic_bool held;
    atomic_bool kept;
    atomic_bool ended;
    struct sigaction old_term;
    struct sigaction old_int;
    struct sigaction old_usr1;
} watch;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&watch.caught, true);
    sem_post(&watch.posted);
}

static void nap_ms(long ms)
{
    struct timespec t = {0, ms * 1000000};
    nanosleep(&t, NULL);
}

static void *watch_run(void *unused)
{
    (void)unused;
    while (sem_wait(&watch.posted) != 0)
        continue;
    for (int waited = 0; waited < GRACE_MS || atomic_load(&watch.held); waited += NAP_MS) {
        if (atomic_load(&watch.ended))
            return NULL;
        nap_ms(NAP_MS);
    }
    if (!atomic_load(&watch.ended) && !atomic_load(&watch.kept) &&
        rs_keeper_sweep(watch.keeper) != RS_OK)
        return NULL; /* there is nobody to tell: the supervisor sweeps once more */
    return NULL;
}

rs_status rs_signals_begin(const char *job, const char *folder)
{
    memset(&watch, 0, sizeof watch);
    RS_TRY(rs_keeper_open(job, folder, &watch.keeper));
    sem_init(&watch.posted, 0, 0);
    int error = pthread_create(&watch.thread, NULL, watch_run, NULL);
    if (error != 0) {
        rs_keeper_close(watch.keeper);
        sem_destroy(&watch.posted);
        return rs_error_errno(error, "cannot start the thread that watches for signals");
    }
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, &watch.old_term);
    sigaction(SIGINT, &action, &watch.old_int);
    sigaction(SIGUSR1, &action, &watch.old_usr1);
    watch.begun = true;
    return RS_OK;
}

void rs_signals_end(void)
{
    if (!watch.begun)
        return;
    sigaction(SIGTERM, &watch.old_term, NULL);
    sigaction(SIGINT, &watch.old_int, NULL);
    sigaction(SIGUSR1, &watch.old_usr1, NULL);
    atomic_store(&watch.ended, true);
    sem_post(&watch.posted);
    pthread_join(watch.thread, NULL);
    sem_destroy(&watch.posted);
    rs_keeper_close(watch.keeper);
    watch.begun = false;
}

bool rs_signals_caught(void)
{
    return atomic_load(&watch.caught);
}

void rs_signals_keep(void)
{
    atomic_store(&watch.kept, true);
}

void rs_signals_hold(bool hold)
{
    atomic_store(&watch.held, hold);
}
