/*
 * Nodes as a job's options suppose them, and the placements that follow with redundancy. For what
 * looks at a job from outside: reports, recovery, a world that goes on from another one. All
 * functions are local.
 */
#ifndef RS_TRAIN_NODES_H
#define RS_TRAIN_NODES_H

#include "reshard/layout.h"
#include "reshard/placement.h"
#include "train/train.h"

/* Ranks of a supposed node; 0: nodes are real hosts. */
int rs_nodes_size(const rs_train_options *options);

/* The node of each of `ranks` ranks, `size` > 0 on each. */
void rs_nodes_fill(int ranks, int size, int *out);

/* The same in memory of its own; NULL for size 0. The caller frees `*out`. */
rs_status rs_nodes_suppose(int ranks, int size, int **out) RS_MUST_CHECK;

/* A layout's placement, with mirrors where the nodes of its ranks are given; NULL: without. */
rs_status rs_nodes_placement(const rs_space *space, const rs_layout *layout, const int *node_of,
    rs_placement **out) RS_MUST_CHECK;

/* The same with supposed nodes; `size` 0: without mirrors. */
rs_status rs_nodes_supposed_placement(
    const rs_space *space, const rs_layout *layout, int size, rs_placement **out) RS_MUST_CHECK;

#endif
