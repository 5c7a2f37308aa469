/*
 * Who divides what with whom: the ranks of a stage that have the same slice, on the dense mesh (dp
 * x cp of them) or on that of the experts (edp of them), in groups of neighbours that share what
 * ZeRO cuts (layout.h). All functions are local.
 */
#ifndef RS_TRAIN_GROUP_H
#define RS_TRAIN_GROUP_H

#include <stdbool.h>

#include "reshard/layout.h"

/* The two meshes, as indices. */
enum { RS_MESH_DENSE = 0, RS_MESH_EXPERTS, RS_MESHES_BOTH };

/* The mesh of a tensor; that of a block (layout.h). */
int rs_group_mesh(const rs_tensor *tensor);
int rs_group_mesh_of_block(const rs_space *space, int block);

/* Which of the ranks with its slice on a mesh `rank` is, by rank: number place / size of the
 * groups, member place % size. */
int rs_group_place(const rs_layout *layout, int mesh, int rank);

/* The members, by rank, of the group of `rank`; or, for a pipeline rank `stage` that is not its
 * own, of the group there that has the same number. `ranks` has room for rs_layout_shard_group. */
void rs_group_ranks(const rs_layout *layout, int mesh, int rank, int stage, int *ranks);

#endif
