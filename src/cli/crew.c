/* Joining MPI where there is a launcher, and noting signals. */
#include "cli/crew.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "cli/launch.h"
#include "cli/options.h"
#include "reshard/move_mpi.h"

static volatile sig_atomic_t noted;

void crew_hush(void)
{
    if (launch_own_rank() > 0)
        cli_quiet = freopen("/dev/null", "w", stdout) != NULL;
}

/* How many processes the launcher says that it has started; 1 if it does not. */
static long launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        if (text != NULL && text[0] != '\0')
            return strtol(text, NULL, 10);
    }
    return 1;
}

rs_status crew_join(crew *c)
{
    static MPI_Comm world;
    *c = (crew){.joined = false};
    if (launch_own_rank() < 0)
        return RS_OK;
    MPI_Init(NULL, NULL);
    c->joined = true;
    world = MPI_COMM_WORLD;
    RS_TRY(rs_group_mpi(&world, &c->group));
    if (c->group.size == 1 && launched() > 1)
        return rs_error_set(RS_ERR_MPI,
            "started as one of %ld, but finds itself alone: the launcher belongs to another MPI",
            launched());
    return RS_OK;
}

const rs_group *crew_group(const crew *c)
{
    return c->joined ? &c->group : NULL;
}

void crew_leave(crew *c)
{
    if (c->joined)
        MPI_Finalize();
    c->joined = false;
}

static void note(int number)
{
    noted = number;
}

void crew_catch_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = note, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction old;
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
}

int crew_signal(void)
{
    return noted;
}
