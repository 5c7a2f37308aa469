/* What the benchmarks with ranks share: ending all when one fails, and a barrier that sleeps. */
#ifndef RS_BENCH_RANKS_H
#define RS_BENCH_RANKS_H

#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

#include "reshard/status.h"

/* Ends the job unless `status` is good; `what` was tried. */
static inline void need(rs_status status, const char *what)
{
    int rank;
    if (status == RS_OK)
        return;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(
        stderr, "rank %d: %s: %s: %s\n", rank, what, rs_status_name(status), rs_error_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* A barrier that leaves the processors to those who are still busy. */
static inline void meet(void)
{
    MPI_Request request;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (!done) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done)
            usleep(100);
    }
}

#endif
