/* Nodes that options suppose: every so many ranks are one. */
#include "train/nodes.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"

int rs_nodes_size(const rs_train_options *options)
{
    return options->transport == RS_TRANSPORT_MPI ? 1 : options->ranks_per_node;
}

void rs_nodes_fill(int ranks, int size, int *out)
{
    for (int r = 0; r < ranks; r++)
        out[r] = r / size;
}

rs_status rs_nodes_suppose(int ranks, int size, int **out)
{
    *out = NULL;
    if (size == 0)
        return RS_OK;
    *out = rs_calloc((size_t)ranks, sizeof **out);
    if (*out == NULL)
        return rs_error_memory((size_t)ranks * sizeof **out);
    rs_nodes_fill(ranks, size, *out);
    return RS_OK;
}

rs_status rs_nodes_placement(
    const rs_space *space, const rs_layout *layout, const int *node_of, rs_placement **out)
{
    return node_of != NULL ? rs_layout_placement_mirrored(space, layout, node_of, out)
                           : rs_layout_placement(space, layout, out);
}

rs_status rs_nodes_supposed_placement(
    const rs_space *space, const rs_layout *layout, int size, rs_placement **out)
{
    int *node_of = NULL;
    RS_TRY(rs_nodes_suppose(rs_layout_world(layout), size, &node_of));
    rs_status status = rs_nodes_placement(space, layout, node_of, out);
    free(node_of);
    return status;
}
