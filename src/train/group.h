/*
 * Who divides what with whom: the dp x cp ranks that have the same slice of the dense tensors, in
 * groups of neighbours that share what ZeRO cuts (layout.h). All functions are local.
 */
#ifndef RS_TRAIN_GROUP_H
#define RS_TRAIN_GROUP_H

#include "reshard/layout.h"

/* Which of the ranks with its slice `rank` is, by rank: number place / size of the groups, member
 * place % size. */
int rs_group_place(const rs_layout *layout, int rank);

/* The members, by rank, of the group of `rank`; or, for a pipeline rank `stage` that is not its
 * own, of the group there that has the same number. `ranks` has room for rs_layout_shard_group. */
void rs_group_ranks(const rs_layout *layout, int rank, int stage, int *ranks);

#endif
