/*
 * Sending gradients to mirrors.
 *
 * Everything lies in ledgers: the owner's reduced gradient, of one mesh in one piece, and the
 * mirror's room for it, in the same order of positions. So nothing is packed, and a gradient is on
 * its way while the ranks still agree on the step's numbers.
 *
 * Cost: a rank sends its piece once, 4 bytes for each element that it updates (a third of what the
 * update changes), and updates about twice as many elements as without.
 */
#include "train/mirror.h"

#include <mpi.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"
#include "train/comm.h"
#include "train/group.h"
#include "train/muon.h"
#include "train/twophase.h"

#define TAG_MIRROR 85 /* and the three after it */

/* Memory that goes to a rank, or comes from one. */
typedef struct part {
    int peer;
    int tag;
    bool sends;
    float *data;
    int64_t count;
} part;

struct rs_mirror {
    MPI_Comm comm;
    rs_runs gradients;
    rs_runs directions;
    part *parts; /* of gradients, then of directions */
    int gradient_parts;
    int part_count;
    MPI_Request *requests;
    int posted;
};

/* ---- setting up ---- */

static int64_t part_bytes(const part *p)
{
    return p->count * (int64_t)sizeof(float);
}

static void add_part(rs_mirror *m, const part *p)
{
    if (p->count > 0)
        m->parts[m->part_count++] = *p;
}

/* What of this rank's own goes to its mirrors; `directions`, or the gradient. */
static rs_status add_own(
    rs_mirror *m, const rs_state *state, const rs_optimizer *optimizer, bool directions)
{
    float *next = rs_ledger_work(state->ledger);
    if (directions)
        RS_TRY(rs_twophase_directions(state, &next));
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++) {
        rs_runs runs = {0};
        rs_status status =
            directions ? rs_muon_pieces(state, optimizer, state->rank, mesh, &runs)
                       : rs_state_pieces(state, state->flat, state->rank, mesh, -1, -1, &runs);
        part p = {.peer = state->mirror[mesh],
            .tag = TAG_MIRROR + 2 * mesh + directions,
            .sends = true,
            .data = next,
            .count = rs_runs_elements(&runs)};
        rs_runs_fini(&runs);
        RS_TRY(status);
        next += p.count;
        if (p.peer >= 0)
            add_part(m, &p);
    }
    return RS_OK;
}

static void add_mirrored(rs_mirror *m, const rs_mirrored_work *w, bool directions)
{
    part p = {.peer = w->owner,
        .tag = TAG_MIRROR + 2 * w->mesh + directions,
        .data = directions ? w->direction : w->gradient,
        .count = directions ? w->direction_count : w->gradient_count};
    add_part(m, &p);
}

static rs_status make_parts(rs_mirror *m, const rs_state *state, const rs_optimizer *optimizer)
{
    int count = rs_twophase_mirrored_count(state);
    size_t requests = 0;
    rs_mirrored_work *works = rs_calloc((size_t)count, sizeof *works);
    m->parts = rs_calloc(2 * ((size_t)count + RS_MESHES_BOTH), sizeof *m->parts);
    rs_status status =
        works != NULL && m->parts != NULL ? RS_OK : rs_error_memory((size_t)count * sizeof *works);
    if (status == RS_OK)
        status = rs_twophase_mirrored(state, optimizer, rs_ledger_work(state->ledger), works);
    for (int k = 0; k < 2 && status == RS_OK; k++) {
        for (int i = 0; i < count; i++)
            add_mirrored(m, &works[i], k == 1);
        status = add_own(m, state, optimizer, k == 1);
        if (k == 0)
            m->gradient_parts = m->part_count;
    }
    free(works);
    for (int i = 0; i < m->part_count; i++)
        requests += rs_comm_messages(part_bytes(&m->parts[i]));
    m->requests = rs_calloc(requests, sizeof *m->requests);
    if (status == RS_OK && m->requests == NULL)
        status = rs_error_memory(requests * sizeof *m->requests);
    return status;
}

rs_status rs_mirror_create(
    const rs_world *world, const rs_state *state, const rs_optimizer *optimizer, rs_mirror **out)
{
    bool mirrored = state->mirror[RS_MESH_DENSE] >= 0 || state->mirror[RS_MESH_EXPERTS] >= 0;
    int64_t bytes;
    *out = NULL;
    if (state->ledger == NULL || (!mirrored && rs_twophase_mirrored_count(state) == 0))
        return RS_OK;
    rs_mirror *m = rs_calloc(1, sizeof *m);
    if (m == NULL)
        return rs_error_memory(sizeof *m);
    m->comm = world->all;
    rs_status status = rs_twophase_work(
        state, optimizer, rs_ledger_work(state->ledger), &m->gradients, &m->directions, &bytes);
    if (status == RS_OK)
        status = make_parts(m, state, optimizer);
    if (status == RS_OK)
        *out = m;
    else
        rs_mirror_destroy(m);
    return status;
}

void rs_mirror_destroy(rs_mirror *m)
{
    if (m == NULL)
        return;
    MPI_Waitall(m->posted, m->requests, MPI_STATUSES_IGNORE); /* a step that ended in between */
    rs_runs_fini(&m->gradients);
    rs_runs_fini(&m->directions);
    free(m->requests);
    free(m->parts);
    free(m);
}

const rs_runs *rs_mirror_gradients(const rs_mirror *m)
{
    return &m->gradients;
}

const rs_runs *rs_mirror_directions(const rs_mirror *m)
{
    return &m->directions;
}

/* ---- a step ---- */

/* Posts what comes, then what goes, of parts begin .. end - 1. */
static void post(rs_mirror *m, int begin, int end)
{
    for (int pass = 0; pass < 2; pass++)
        for (int i = begin; i < end; i++) {
            const part *p = &m->parts[i];
            if (p->sends == (pass == 1))
                m->posted += rs_comm_post_bytes(m->comm, p->sends, p->peer, p->tag, p->data,
                    part_bytes(p), m->requests + m->posted);
        }
}

void rs_mirror_begin(rs_mirror *m)
{
    if (m != NULL)
        post(m, 0, m->gradient_parts);
}

void rs_mirror_end(rs_mirror *m)
{
    if (m == NULL)
        return;
    post(m, m->gradient_parts, m->part_count);
    MPI_Waitall(m->posted, m->requests, MPI_STATUSES_IGNORE);
    m->posted = 0;
}
