/*
 * A group made of a communicator. Sums are exact in any order, so a plain reduction serves. Ranks
 * that wait sleep: one that is still at work may need the processor.
 */
#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "move/mpi/mpi.h"
#include "reshard/move_mpi.h"

#define WORDS_MOST ((int64_t)1 << 20)
#define NAP 50e-6 /* seconds between two looks */

static rs_status add_some(MPI_Comm comm, uint64_t *words, int count)
{
    MPI_Request request;
    int done = 0;
    RS_TRY(rs_mpi_check(
        MPI_Iallreduce(MPI_IN_PLACE, words, count, MPI_UINT64_T, MPI_SUM, comm, &request),
        "adding up over the ranks"));
    while (!done) {
        RS_TRY(
            rs_mpi_check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "adding up over the ranks"));
        if (!done)
            rs_nap(NAP);
    }
    return RS_OK;
}

static rs_status add(void *context, uint64_t *words, size_t count)
{
    const MPI_Comm *comm = context;
    MPI_Errhandler saved;
    RS_TRY(rs_mpi_enter(*comm, &saved));
    rs_status status = RS_OK;
    for (size_t at = 0; at < count && status == RS_OK; at += (size_t)WORDS_MOST)
        status = add_some(*comm, words + at, (int)rs_min64((int64_t)(count - at), WORDS_MOST));
    rs_mpi_leave(*comm, saved);
    return status;
}

rs_status rs_group_mpi(MPI_Comm *comm, rs_group *out)
{
    rs_group group = {.context = comm, .add = add};
    RS_TRY(rs_mpi_check(MPI_Comm_size(*comm, &group.size), "asking for the size"));
    RS_TRY(rs_mpi_check(MPI_Comm_rank(*comm, &group.rank), "asking for the rank"));
    *out = group;
    return RS_OK;
}
