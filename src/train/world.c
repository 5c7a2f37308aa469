/*
 * A layout's communicators. MPI_Comm_create_group makes the one of all members without the ranks
 * that will idle; splits of it make the others. Each is one slice: about a millisecond on one host,
 * and every member must come, so a slice costs a step boundary and no more.
 */
#include "train/world.h"

#include "base/error.h"
#include "train/group.h"

enum {
    SLICE_ALL,
    SLICE_TP,
    SLICE_CP,
    SLICE_SHARD,
    SLICE_ACROSS,
    SLICES_DENSE, /* those of experts follow */
    SLICE_EXPERT_SHARD = SLICES_DENSE,
    SLICE_EXPERT_ACROSS,
    SLICE_DISPATCH,
    SLICE_TWINS,
    SLICES
};

#define TAG 73

static void forget(rs_world *world)
{
    world->all = world->tp = world->cp = world->dispatch = world->twins = MPI_COMM_NULL;
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
        world->shard[mesh] = world->across[mesh] = MPI_COMM_NULL;
}

void rs_world_none(rs_world *world)
{
    *world = (rs_world){.built = SLICES};
    world->job = MPI_COMM_NULL;
    forget(world);
}

void rs_world_init(rs_world *world, const rs_layout *layout, int64_t experts, MPI_Comm job)
{
    *world = (rs_world){
        .layout = *layout, .size = rs_layout_world(layout), .job = job, .experts = experts};
    forget(world);
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

/* The number of this rank's slice on a mesh, among those of all stages. */
static int slice_of(const rs_world *world, int mesh)
{
    const rs_coords *at = &world->at;
    const rs_layout *layout = &world->layout;
    if (mesh == RS_MESH_DENSE)
        return at->pp * layout->tp + at->tp;
    return (at->pp * layout->ep + at->ep) * rs_layout_etp(layout) + at->etp;
}

static void build_shard(rs_world *world, int mesh)
{
    const rs_layout *layout = &world->layout;
    bool experts = mesh == RS_MESH_EXPERTS;
    int spread = experts ? rs_layout_edp(layout) : layout->dp * layout->cp;
    int size = rs_layout_shard_group(layout, experts);
    int place = rs_group_place(layout, mesh, world->rank);
    MPI_Comm_split(world->all, slice_of(world, mesh) * (spread / size) + place / size, world->rank,
        &world->shard[mesh]);
}

static void build_across(rs_world *world, int mesh)
{
    const rs_layout *layout = &world->layout;
    int size = rs_layout_shard_group(layout, mesh == RS_MESH_EXPERTS);
    int place = rs_group_place(layout, mesh, world->rank);
    MPI_Comm_split(
        world->all, slice_of(world, mesh) * size + place % size, world->rank, &world->across[mesh]);
}

/* Each expert has one ep rank, or several where these are more than experts. */
static void build_twins(rs_world *world)
{
    const rs_coords *at = &world->at;
    const rs_layout *layout = &world->layout;
    if (layout->ep <= world->experts)
        return;
    const rs_tensor like = {
        .ndim = 1, .shape = {world->experts}, .axis = {RS_AXIS_EXPERT}, .name = "expert"};
    int64_t expert, end;
    rs_layout_ep_range(layout, &like, 0, at->ep, &expert, &end);
    int slice = (at->pp * rs_layout_edp(layout) + at->edp) * rs_layout_etp(layout) + at->etp;
    int color = slice * (int)world->experts + (int)expert;
    MPI_Comm_split(world->all, color, at->ep, &world->twins);
}

bool rs_world_build(rs_world *world)
{
    const rs_coords *at = &world->at;
    const rs_layout *layout = &world->layout;
    switch (world->built) {
    case SLICE_ALL:
        build_all(world);
        break;
    case SLICE_TP:
        MPI_Comm_split(
            world->all, (at->pp * layout->dp + at->dp) * layout->cp + at->cp, at->tp, &world->tp);
        break;
    case SLICE_CP:
        MPI_Comm_split(
            world->all, (at->pp * layout->dp + at->dp) * layout->tp + at->tp, at->cp, &world->cp);
        break;
    case SLICE_SHARD:
        build_shard(world, RS_MESH_DENSE);
        break;
    case SLICE_ACROSS:
        build_across(world, RS_MESH_DENSE);
        break;
    case SLICE_EXPERT_SHARD:
        build_shard(world, RS_MESH_EXPERTS);
        break;
    case SLICE_EXPERT_ACROSS:
        build_across(world, RS_MESH_EXPERTS);
        break;
    case SLICE_DISPATCH:
        MPI_Comm_split(world->all, at->pp * rs_layout_edp(layout) + at->edp,
            at->ep * rs_layout_etp(layout) + at->etp, &world->dispatch);
        break;
    case SLICE_TWINS:
        build_twins(world);
        break;
    default:
        return true;
    }
    world->built++;
    if (world->built == SLICES_DENSE && world->experts == 0)
        world->built = SLICES;
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
    free_comm(&world->twins);
    free_comm(&world->dispatch);
    for (int mesh = RS_MESHES_BOTH - 1; mesh >= 0; mesh--) {
        free_comm(&world->across[mesh]);
        free_comm(&world->shard[mesh]);
    }
    free_comm(&world->cp);
    free_comm(&world->tp);
    free_comm(&world->all);
}

int rs_world_at_stage(const rs_world *world, int stage)
{
    rs_coords at = world->at;
    at.pp = stage;
    return rs_layout_rank(&world->layout, at);
}
