/* A keeper of a test's own, in a folder of its own in shared memory. */
#ifndef TESTS_SUPPORT_KEEPER_H
#define TESTS_SUPPORT_KEEPER_H

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reshard/arena.h"

static char folder[64];
static rs_keeper *keeper;

/* Set-up of a cmocka group. */
static int open_keeper(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/dev/shm/rs-test-%d", (int)getpid());
    if (mkdir(folder, 0700) != 0)
        return -1;
    return rs_keeper_open("job", folder, &keeper) == RS_OK ? 0 : -1;
}

/* Its end: nothing but what the keeper sweeps is there. */
static int close_keeper(void **state)
{
    (void)state;
    rs_status status = rs_keeper_sweep(keeper);
    rs_keeper_close(keeper);
    return status == RS_OK && rmdir(folder) == 0 ? 0 : -1;
}

#endif
