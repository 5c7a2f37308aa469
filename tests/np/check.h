/*
 * Programs of several ranks: what is not so is said with the rank and the scenario, and whether
 * anything was not so is known to all at the end.
 *
 *     check_begin(); ... CHECK(...); ... return check_end("what was done");
 */
#ifndef RS_TESTS_NP_CHECK_H
#define RS_TESTS_NP_CHECK_H

#include <mpi.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>

#include "leaks.h"
#include "reshard/status.h"

static int rank, ranks;
static char scenario[256]; /* what is being tried */
static bool failed;

static void complain(int line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void complain(int line, const char *format, ...)
{
    va_list args;
    printf("rank %d of %d, line %d, %s: ", rank, ranks, line, scenario);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    failed = true;
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            complain(__LINE__, "not so: %s (%s)", #condition, rs_error_message());                 \
    } while (0)

/* A call whose failure leaves nothing to go on with. */
#define NEED(call)                                                                                 \
    do {                                                                                           \
        rs_status need_ = (call);                                                                  \
        if (need_ != RS_OK) {                                                                      \
            complain(__LINE__, "%s: %s: %s", #call, rs_status_name(need_), rs_error_message());    \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

static void check_begin(void)
{
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
}

/* The program's exit code. */
static int check_end(const char *done)
{
    int mine = failed, any = 0;
    MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0 && !any)
        printf("%d ranks: %s\n", ranks, done);
    leaks_check();
    MPI_Finalize();
    return any != 0;
}

#endif
