/*
 * A layout's communicators. MPI_Comm_create_group makes the one of all members without the ranks
 * that will idle; splits of it make the others. Each is one slice: about a millisecond on one host,
 * and every member must come, so a slice costs a step boundary and no more.
 */
#include "train/world.h"

#include "base/error.h"
#include "train/group.h"

enum { SLICE_ALL, SLICE_TP, SLICE_SHARD, SLICE_ACROSS, SLICES };

#define TAG 73

void rs_world_none(rs_world *world)
{
    *world = (rs_world){.built = SLICES};
    world->job = world->all = world->tp = MPI_COMM_NULL;
    world->shard = world->across = MPI_COMM_NULL;
}

void rs_world_init(rs_world *world, const rs_layout *layout, MPI_Comm job)
{
    *world = (rs_world){.layout = *layout, .size = rs_layout_world(layout), .job = job};
    world->all = world->tp = MPI_COMM_NULL;
    world->shard = world->across = MPI_COMM_NULL;
    MPI_Comm_rank(job, &world->rank);
    world->member = world->rank < world->size;
    if (world->member)
        world->at = rs_layout_coords(layout, world->rank);
    else
        world->built = SLICES;
}

static void build_all(rs_world *world)
{
    MPI_Group everyone, members;
    int range[1][3] = {{0, world->size - 1, 1}};
    MPI_Comm_group(world->job, &everyone);
    MPI_Group_range_incl(everyone, 1, range, &members);
    MPI_Comm_create_group(world->job, members, TAG, &world->all);
    MPI_Group_free(&members);
    MPI_Group_free(&everyone);
}

bool rs_world_build(rs_world *world)
{
    const rs_coords *at = &world->at;
    const rs_layout *layout = &world->layout;
    int slice = at->pp * layout->tp + at->tp, spread = layout->dp * layout->cp;
    int size = rs_layout_shard_group(layout, false), place = rs_group_place(layout, world->rank);
    switch (world->built) {
    case SLICE_ALL:
        build_all(world);
        break;
    case SLICE_TP:
        MPI_Comm_split(
            world->all, (at->pp * layout->dp + at->dp) * layout->cp + at->cp, at->tp, &world->tp);
        break;
    case SLICE_SHARD:
        MPI_Comm_split(
            world->all, slice * (spread / size) + place / size, world->rank, &world->shard);
        break;
    case SLICE_ACROSS:
        MPI_Comm_split(world->all, slice * size + place % size, world->rank, &world->across);
        break;
    default:
        return true;
    }
    world->built++;
    return rs_world_is_built(world);
}

bool rs_world_is_built(const rs_world *world)
{
    return world->built == SLICES;
}

static void free_comm(MPI_Comm *comm)
{
    if (*comm != MPI_COMM_NULL)
        MPI_Comm_free(comm);
}

void rs_world_fini(rs_world *world)
{
    free_comm(&world->across);
    free_comm(&world->shard);
    free_comm(&world->tp);
    free_comm(&world->all);
}

int rs_world_at_stage(const rs_world *world, int stage)
{
    rs_coords at = world->at;
    at.pp = stage;
    return rs_layout_rank(&world->layout, at);
}
