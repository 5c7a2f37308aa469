/*
 * A group: processes that do one thing together, and the only thing that they need for it, adding
 * up numbers. So the library's parts that can be divided over processes need no MPI: who has it
 * makes a group of a communicator (rs_group_mpi in move_mpi.h), and a null pointer is the group of
 * the calling process alone.
 */
#ifndef RESHARD_GROUP_H
#define RESHARD_GROUP_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rs_group {
    int rank; /* of this process, 0 .. size-1 */
    int size;
    void *context;
    /* Collective: replaces `words` by their sums over all processes, modulo 2^64. */
    rs_status (*add)(void *context, uint64_t *words, size_t count);
} rs_group;

/* Rank and size; NULL: 0 of 1. Local. */
int rs_group_rank(const rs_group *group);
int rs_group_size(const rs_group *group);

/* Adds up over the group; NULL: leaves the words as they are. Collective. */
rs_status rs_group_add(const rs_group *group, uint64_t *words, size_t count) RS_MUST_CHECK;

/*
 * One outcome for all: RS_OK if `mine` is RS_OK everywhere, else, on every process, the status and
 * the detail of the lowest rank that failed ("rank 3: ..."). Collective.
 */
rs_status rs_group_agree(const rs_group *group, rs_status mine) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
