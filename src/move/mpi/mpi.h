/* What the MPI files share. Include in .c files only. */
#ifndef RS_MOVE_MPI_MPI_H
#define RS_MOVE_MPI_MPI_H

#include <mpi.h>

#include "move/transport.h"
#include "reshard/status.h"

/* RS_OK for MPI_SUCCESS; else RS_ERR_MPI with what was tried and MPI's text. */
rs_status rs_mpi_check(int code, const char *what) RS_MUST_CHECK;

/* Makes errors on `comm` return instead of ending the job, and puts the handler back. */
rs_status rs_mpi_enter(MPI_Comm comm, MPI_Errhandler *saved) RS_MUST_CHECK;
void rs_mpi_leave(MPI_Comm comm, MPI_Errhandler saved);

/* Collective: one outcome of a phase. A rank that failed keeps its own status; the others get
 * RS_ERR_PEER, naming one that failed and how. */
rs_status rs_mpi_agree(MPI_Comm comm, rs_status own) RS_MUST_CHECK;

/* The transport over `comm`, which is used with this library's tags only, and whose messages are
 * cut into parts of `part` bytes. fini takes a transport that was never made (zeroed), too. */
#define RS_MPI_PART ((int64_t)1 << 30)

rs_status rs_mpi_transport_init(MPI_Comm comm, int64_t part, rs_transport *out) RS_MUST_CHECK;
void rs_mpi_transport_fini(rs_transport *transport);

#endif
