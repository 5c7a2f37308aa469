/*
 * The signal watch: handlers that note that one has come. A rank that cannot finish its step any
 * more (a peer is gone, and the launcher sends SIGTERM and then SIGKILL) leaves its arenas: they
 * are the state from which the job can be gone on with.
 */
#include "train/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

#define SIGNALS 3

static const int numbers[SIGNALS] = {SIGTERM, SIGINT, SIGUSR1};

static struct {
    bool begun;
    atomic_bool caught;
    struct sigaction old[SIGNALS];
} watch;

static void on_signal(int number)
{
    (void)number;
    atomic_store(&watch.caught, true);
}

void rs_signals_begin(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    atomic_store(&watch.caught, false);
    for (int i = 0; i < SIGNALS; i++)
        sigaction(numbers[i], &action, &watch.old[i]);
    watch.begun = true;
}

void rs_signals_end(void)
{
    for (int i = 0; watch.begun && i < SIGNALS; i++)
        sigaction(numbers[i], &watch.old[i], NULL);
    watch.begun = false;
}

bool rs_signals_caught(void)
{
    return atomic_load(&watch.caught);
}
