/*
 * The ranks that have a layer's experts among them, over MPI: what a stage's dispatch calls. MPI
 * errors end the job (MPI_ERRORS_ARE_FATAL), so a status is only about memory.
 */
#ifndef RS_TRAIN_MOE_COMM_H
#define RS_TRAIN_MOE_COMM_H

#include <mpi.h>

#include "train/moe_dispatch.h"

typedef struct rs_moe_comm rs_moe_comm;

/* `comm` is borrowed. The caller owns `*out`. Local. */
rs_status rs_moe_comm_create(MPI_Comm comm, rs_moe_comm **out) RS_MUST_CHECK;
void rs_moe_comm_destroy(rs_moe_comm *moe);

/* The group's calls; it lasts as long as `moe`. Local. */
rs_dispatch_group rs_moe_comm_group(rs_moe_comm *moe);

#endif
