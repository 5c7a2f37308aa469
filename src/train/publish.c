/*
 * Who needs which part of a parameter from whom follows from placements, so both ends of a message
 * know what is in it: the parts in the order of rs_published_parts, packed one after the other.
 *
 * In round d a rank sends to the rank d above it and receives from the one d below; nobody waits
 * for a message that is not on its way.
 *
 * Cost: in each round the parts of two ranks are listed, twice; the bytes are those of a step's
 * end.
 */
#include "train/publish.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "reshard/move.h"
#include "train/comm.h"
#include "train/group.h"

#define TAG 89

/* ---- who updates what ---- */

/* The first rank that is left of those that update what `h` says. `own`: `rank` itself does. */
static int find_updater(const rs_published *all, int rank, int mesh, const rs_holding_list *list,
    const rs_holding *h, bool *own)
{
    bool experts = mesh == RS_MESH_EXPERTS;
    int found = -1;
    *own = false;
    for (size_t k = 0; k < 2 * h->count; k++) {
        int one = list->ranks[h->first + k % h->count];
        if (k >= h->count)
            one = all->nodes != NULL
                      ? rs_layout_mirror(&all->state->layout, experts, all->nodes, one)
                      : -1;
        *own = *own || one == rank;
        if (found < 0 && one >= 0 && !all->lost[one])
            found = one;
    }
    return found;
}

/* Of one shard of a parameter, what other ranks update. */
static rs_status pass_shard(const rs_published *all, int rank, const rs_shard *shard,
    rs_holding_list *list, rs_published_part part, void *context)
{
    const rs_state *state = all->state;
    int role = rs_state_update_role(state, shard->tensor);
    int mesh = rs_group_mesh(rs_space_tensor(state->space, shard->tensor));
    if (role < 0)
        return RS_OK;
    RS_TRY(rs_placement_locate(state->flat, shard->tensor, role, &shard->box, list));
    for (size_t i = 0; i < list->count; i++) {
        const rs_holding *h = &list->items[i];
        rs_box box;
        bool own;
        int from = find_updater(all, rank, mesh, list, h, &own);
        if (!own && rs_box_intersect(&h->box, &shard->box, &box))
            RS_TRY(part(context, from, shard->tensor, &box));
    }
    return RS_OK;
}

rs_status rs_published_parts(
    const rs_published *all, int rank, rs_published_part part, void *context)
{
    const rs_state *state = all->state;
    rs_shard_list shards = {0};
    rs_holding_list list = {0};
    rs_status status = RS_OK;
    if (state->layout.zero > 0)
        status = rs_placement_shards(state->own, rank, state->roles.param, &shards);
    for (size_t i = 0; i < shards.count && status == RS_OK; i++)
        status = pass_shard(all, rank, &shards.items[i], &list, part, context);
    rs_holding_list_fini(&list);
    rs_shard_list_fini(&shards);
    return status;
}

/* ---- messages ---- */

/* What one rank has for another, or from it. */
typedef struct packet {
    const rs_state *state;
    int from;
    bool unpacks;
    char *data; /* NULL: only counted */
    int64_t bytes;
} packet;

static rs_status pass_part(void *context, int from, int tensor, const rs_box *box)
{
    packet *p = context;
    const rs_state *state = p->state;
    size_t size = rs_dtype_size(rs_space_role(state->space, state->roles.param)->dtype);
    int64_t stride[RS_MAX_DIMS];
    rs_shard shard;
    if (from < 0)
        return rs_error_set(RS_ERR_NOT_FOUND, "who updates %s is lost",
            rs_space_tensor(state->space, tensor)->name);
    if (from != p->from)
        return RS_OK;
    int64_t bytes = rs_state_packed(box, size, stride);
    if (p->data != NULL) {
        RS_TRY(
            rs_placement_address(state->own, state->rank, tensor, state->roles.param, box, &shard));
        char *mine = rs_memory_shard(rs_state_memory(state), &shard), *packed = p->data + p->bytes;
        if (p->unpacks)
            rs_move_box(box->ndim, box->extent, size, mine, shard.stride, packed, stride);
        else
            rs_move_box(box->ndim, box->extent, size, packed, stride, mine, shard.stride);
    }
    p->bytes += bytes;
    return RS_OK;
}

/* Goes through what `to` needs of p->from: counts it, or packs it, or unpacks it. */
static rs_status go_through(const rs_published *all, packet *p, int to)
{
    p->bytes = 0;
    return rs_published_parts(all, to, pass_part, p);
}

static rs_status make_room(const rs_published *all, packet *p, int to)
{
    RS_TRY(go_through(all, p, to));
    p->data = rs_calloc((size_t)p->bytes, 1);
    return p->data != NULL ? RS_OK : rs_error_memory((size_t)p->bytes);
}

static rs_status exchange(MPI_Comm comm, const packet *out, int to, const packet *in, int from)
{
    size_t count = rs_comm_messages(in->bytes) + rs_comm_messages(out->bytes);
    MPI_Request *requests = rs_calloc(count, sizeof *requests);
    rs_status status =
        rs_comm_agree(comm, requests != NULL ? RS_OK : rs_error_memory(count * sizeof *requests));
    if (status == RS_OK) {
        int posted = rs_comm_post_bytes(comm, false, from, TAG, in->data, in->bytes, requests);
        posted += rs_comm_post_bytes(comm, true, to, TAG, out->data, out->bytes, requests + posted);
        MPI_Waitall(posted, requests, MPI_STATUSES_IGNORE);
    }
    free(requests);
    return status;
}

/* Sends to `to`, receives from `from`; -1: nobody needs anything. */
static rs_status round_of(MPI_Comm comm, const rs_published *all, int to, int from, int64_t *bytes)
{
    int rank = all->state->rank;
    packet out = {.state = all->state, .from = rank};
    packet in = {.state = all->state, .from = from, .unpacks = true};
    rs_status status = to >= 0 ? make_room(all, &out, to) : RS_OK;
    if (status == RS_OK && to >= 0)
        status = go_through(all, &out, to);
    if (status == RS_OK && from >= 0)
        status = make_room(all, &in, rank);
    status = rs_comm_agree(comm, status);
    if (status == RS_OK)
        status = exchange(comm, &out, to, &in, from);
    if (status == RS_OK && from >= 0)
        status = go_through(all, &in, rank);
    *bytes += in.bytes;
    free(out.data);
    free(in.data);
    return status;
}

rs_status rs_publish(MPI_Comm comm, const rs_published *all, const bool *behind, int64_t *bytes)
{
    int world = rs_layout_world(&all->state->layout), rank = all->state->rank, ranks;
    bool here = rank < world && !all->lost[rank];
    MPI_Comm_size(comm, &ranks);
    for (int d = 1; d < ranks; d++) {
        int to = (rank + d) % ranks, from = (rank + ranks - d) % ranks;
        bool gives = here && to < world && behind[to];
        bool takes = here && behind[rank] && from < world && !all->lost[from];
        RS_TRY(rs_comm_agree(comm, round_of(comm, all, gives ? to : -1, takes ? from : -1, bytes)));
    }
    return RS_OK;
}
