/* Groups, by counting coordinates: cost dp x cp, or edp, for a place, its square for a group. */
#include "train/group.h"

int rs_group_mesh(const rs_tensor *tensor)
{
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->axis[d] == RS_AXIS_EXPERT)
            return RS_MESH_EXPERTS;
    return RS_MESH_DENSE;
}

int rs_group_mesh_of_block(const rs_space *space, int block)
{
    return block < rs_layout_expert_block(space, 0) ? RS_MESH_DENSE : RS_MESH_EXPERTS;
}

/* How many ranks have the slice, and number `i` of them, in no particular order. */
static int slice_size(const rs_layout *layout, int mesh)
{
    return mesh == RS_MESH_DENSE ? layout->dp * layout->cp : rs_layout_edp(layout);
}

static int slice_rank(const rs_layout *layout, int mesh, rs_coords at, int i)
{
    if (mesh == RS_MESH_EXPERTS) {
        at.edp = i;
        return rs_layout_expert_rank(layout, at);
    }
    at.dp = i / layout->cp;
    at.cp = i % layout->cp;
    return rs_layout_rank(layout, at);
}

static int place_of(const rs_layout *layout, int mesh, rs_coords at, int rank)
{
    int place = 0;
    for (int i = 0; i < slice_size(layout, mesh); i++)
        place += slice_rank(layout, mesh, at, i) < rank;
    return place;
}

int rs_group_place(const rs_layout *layout, int mesh, int rank)
{
    return place_of(layout, mesh, rs_layout_coords(layout, rank), rank);
}

void rs_group_ranks(const rs_layout *layout, int mesh, int rank, int stage, int *ranks)
{
    int size = rs_layout_shard_group(layout, mesh == RS_MESH_EXPERTS);
    int first = rs_group_place(layout, mesh, rank) / size * size;
    rs_coords at = rs_layout_coords(layout, rank);
    at.pp = stage;
    for (int i = 0; i < slice_size(layout, mesh); i++) {
        int member = slice_rank(layout, mesh, at, i);
        int place = place_of(layout, mesh, at, member);
        if (place >= first && place < first + size)
            ranks[place - first] = member;
    }
}
