/*
 * The communicators of one layout, built in slices while another layout trains.
 *
 * Members are the first ranks of the job, as many as the layout needs. Building is collective over
 * the members alone: ranks that stay idle take no part.
 */
#ifndef RS_TRAIN_WORLD_H
#define RS_TRAIN_WORLD_H

#include <mpi.h>
#include <stdbool.h>

#include "reshard/layout.h"
#include "reshard/status.h"

typedef struct rs_world {
    rs_layout layout;
    int size;     /* ranks of the layout */
    int rank;     /* of the job, and of the layout where a member */
    bool member;  /* rank < size */
    rs_coords at; /* of a member */
    int built;    /* slices done */
    MPI_Comm job; /* borrowed */
    MPI_Comm all; /* the layout's ranks */
    MPI_Comm tp;  /* same stage, replica and cp coordinate, ordered by tp coordinate */
    MPI_Comm cp;  /* same stage, replica and tp coordinate, ordered by cp coordinate */
    /* By mesh (group.h); NULL on that of the experts where the model has none. */
    MPI_Comm shard[2];  /* those of the ranks of a stage with the same slice that share what ZeRO
                           cuts, by rank: the group of this one */
    MPI_Comm across[2]; /* those with the same number in the other groups, by rank */
    MPI_Comm dispatch;  /* same stage and edp coordinate: they have the experts among them; by etp,
                           then ep; or NULL */
    MPI_Comm twins;     /* those of them with the same slice of the same expert, by ep; or NULL */
    int64_t experts;    /* of the model */
} rs_world;

/* A world without members, built: what there is before any layout. Local. */
void rs_world_none(rs_world *world);

/* Local. Nothing is built yet. `experts`: of the model's layers, 0 if they have none. */
void rs_world_init(rs_world *world, const rs_layout *layout, int64_t experts, MPI_Comm job);

/* Builds the next communicator; true once all are there. Collective over the members. */
bool rs_world_build(rs_world *world);
bool rs_world_is_built(const rs_world *world);

/* Frees what was built. Collective over the members. */
void rs_world_fini(rs_world *world);

/* The member with this world's coordinates but for the stage. */
int rs_world_at_stage(const rs_world *world, int stage);

#endif
