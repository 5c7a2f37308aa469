/*
 * Muon: momentum, orthogonalised by Newton-Schulz iterations (Jordan et al., 2024; the size of the
 * step as in Liu et al., arXiv 2502.16982, so that AdamW's rate fits both).
 *
 * A team is the ranks of a stage that together have some of its matrices once: on the dense mesh
 * all tp ranks of a ZeRO group, on that of the experts all etp ranks of one; there, each expert is
 * a matrix. Matrices are dealt to the team in turn and worked on in rounds of as many as it has
 * ranks, each its own: a rank sends its pieces of each matrix of the round to that matrix's rank,
 * which puts them together, computes, and sends everybody what he updates.
 *
 * 1. Who has which box of a matrix is read off placements, so nothing is negotiated; a message has
 * the boxes of one matrix between two ranks, one behind the other, each row-major.
 * 2. Ranks that hold the same elements (key/value heads at borders) send the same bits.
 * 3. A matrix is computed by one rank of a team, from the same bits in every team: replicas agree.
 * 4. All ranks go through the rounds of the dense mesh first.
 * 5. Memory: a rank's largest matrix four times, and its pieces of a round.
 *
 * Cost: 5 iterations of 2 products each over the matrix, once; the pieces sent there and back.
 */
#include "train/muon.h"

#include <cblas.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "train/comm.h"
#include "train/group.h"
#include "train/method.h"
#include "train/twophase.h"

#define ITERATIONS 5
#define SIZE 0.2 /* of a direction's elements, in the mean */
#define TAG_PIECES 77
#define TAG_DIRECTIONS 78

/* A box of a matrix that a rank of the team has: rows and columns, and where its elements lie in
 * this rank's local vector if it is this one. */
typedef struct piece {
    int64_t row, column;
    int64_t rows, columns;
    int64_t position; /* of its first element; rows follow each other there */
} piece;

typedef struct piece_list {
    piece *items;
    size_t count;
    size_t capacity;
} piece_list;

/* The pieces of one matrix on one rank of the team, in the lists of the muon. */
typedef struct part {
    size_t first;
    size_t end;
    int64_t elements;
} part;

typedef struct matrix {
    int tensor;
    int64_t layer;  /* of the tensor */
    int64_t expert; /* 0 where it has none */
    int64_t rows, columns;
} matrix;

typedef struct matrix_list {
    matrix *items;
    size_t count;
    size_t capacity;
} matrix_list;

/* The ranks that have matrices in common, and these. */
typedef struct team {
    int *ranks;
    int size;
    int me;
    matrix_list matrices; /* by tensor, layer, expert */
    part *have; /* [matrix][member]: each element of a matrix once, but for shared heads */
    part *want; /* [matrix][member]: what is updated there */
} team;

struct rs_muon {
    const rs_state *state;
    const rs_runs *gradients;
    const rs_runs *momenta;
    MPI_Comm comm;
    team teams[RS_MESHES_BOTH]; /* by mesh */
    piece_list pieces;          /* of all parts */
    rs_runs directions;
    float *memory; /* of the directions; NULL where they lie in the ledger */
    float *whole;  /* the own matrix of a round */
    float *scratch;
    float *moved; /* messages of a round */
    MPI_Request *requests;
};

/* ---- the computation ---- */

int64_t rs_muon_scratch(int64_t rows, int64_t columns)
{
    int64_t small = rs_min64(rows, columns);
    return 2 * rows * columns + 2 * small * small;
}

static void product(CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, float alpha,
    const float *a, const float *b, float beta, float *c)
{
    blasint ldb = (blasint)(tb == CblasTrans ? k : n);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, tb, (blasint)m, (blasint)n, (blasint)k, alpha, a,
        (blasint)k, b, ldb, beta, c, (blasint)n);
}

/* to [columns, rows] = from^T * scale; or, where `turns` is false, to = from * scale. */
static void take(
    bool turns, int64_t rows, int64_t columns, float scale, const float *from, float *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[turns ? c * rows + r : r * columns + c] = from[r * columns + c] * scale;
}

/* One iteration on `x` [small, large], small <= large; `next` gets the result. */
static void iterate(
    int64_t small, int64_t large, const float *x, float *next, float *square, float *factor)
{
    const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    product(CblasTrans, small, small, large, 1, x, x, 0, square);
    memcpy(factor, square, (size_t)(small * small) * sizeof *factor);
    product(CblasNoTrans, small, small, small, c, square, square, b, factor);
    memcpy(next, x, (size_t)(small * large) * sizeof *next);
    product(CblasNoTrans, small, large, small, 1, factor, x, a, next);
}

void rs_muon_orthogonal(int64_t rows, int64_t columns, float *values, float *scratch)
{
    bool turns = rows > columns;
    int64_t small = rs_min64(rows, columns), large = rs_max64(rows, columns);
    int64_t count = rows * columns;
    float *x = scratch, *next = x + count, *square = next + count;
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)values[i] * (double)values[i];
    take(turns, rows, columns, (float)(1 / (sqrt(sum) + 1e-7)), values, x);
    for (int k = 0; k < ITERATIONS; k++) {
        iterate(small, large, x, next, square, square + small * small);
        float *swap = x;
        x = next;
        next = swap;
    }
    take(turns, small, large, (float)(SIZE * sqrt((double)large)), x, values);
}

/* ---- who has what ---- */

static part *part_of(const team *t, part *parts, size_t number, int member)
{
    return &parts[number * (size_t)t->size + (size_t)member];
}

static rs_status find_team(team *t, int mesh, const rs_world *world)
{
    const rs_layout *layout = &world->layout;
    bool experts = mesh == RS_MESH_EXPERTS;
    int group = rs_layout_shard_group(layout, experts);
    int slices = experts ? rs_layout_etp(layout) : layout->tp;
    t->size = slices * group;
    t->ranks = rs_calloc((size_t)t->size, sizeof *t->ranks);
    if (t->ranks == NULL)
        return rs_error_memory((size_t)t->size * sizeof *t->ranks);
    for (int i = 0; i < slices; i++) {
        rs_coords at = world->at;
        at.tp = at.etp = i;
        int rank = experts ? rs_layout_expert_rank(layout, at) : rs_layout_rank(layout, at);
        rs_group_ranks(layout, mesh, rank, world->at.pp, t->ranks + i * group);
    }
    while (t->ranks[t->me] != world->rank)
        t->me++;
    return RS_OK;
}

static bool is_muons(const rs_state *state, const rs_optimizer *optimizer, int tensor)
{
    return rs_state_update_role(state, tensor) >= 0 &&
           rs_method_directs(rs_optimizer_for(optimizer, rs_space_tensor(state->space, tensor)));
}

/* The matrices of a tensor in layers begin .. end-1 of the model that this rank has a part of. */
static rs_status add_matrices(
    team *t, const rs_world *world, const rs_space *space, int number, int64_t begin, int64_t end)
{
    const rs_tensor *tensor = rs_space_tensor(space, number);
    int64_t first = 0, last = 1;
    if (rs_group_mesh(tensor) == RS_MESH_EXPERTS)
        rs_layout_ep_range(&world->layout, tensor, 1, world->at.ep, &first, &last);
    begin = rs_tensor_layers_before(tensor, begin);
    end = rs_tensor_layers_before(tensor, end);
    for (int64_t l = begin; l < end; l++)
        for (int64_t e = first; e < last; e++) {
            RS_TRY(RS_LIST_RESERVE_ONE(&t->matrices));
            t->matrices.items[t->matrices.count++] = (matrix){
                number, l, e, tensor->shape[tensor->ndim - 2], tensor->shape[tensor->ndim - 1]};
        }
    return RS_OK;
}

/* The matrices of the layers of a pipeline rank, the same list on all of a team. */
static rs_status list_matrices(rs_muon *muon, const rs_world *world, const rs_optimizer *optimizer)
{
    const rs_space *space = muon->state->space;
    int64_t layers = rs_space_layer_count(space), begin, end;
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        team *t = &muon->teams[rs_group_mesh(rs_space_tensor(space, i))];
        for (int v = 0; is_muons(muon->state, optimizer, i) && v < world->layout.vpp; v++) {
            rs_layout_stage_layers(
                &world->layout, layers, v * world->layout.pp + world->at.pp, &begin, &end);
            RS_TRY(add_matrices(t, world, space, i, begin, end));
        }
    }
    return RS_OK;
}

static int compare_matrices(const void *a, const void *b)
{
    const matrix *x = a, *y = b;
    if (x->tensor != y->tensor)
        return rs_compare(x->tensor, y->tensor);
    if (x->layer != y->layer)
        return rs_compare(x->layer, y->layer);
    return rs_compare(x->expert, y->expert);
}

static const matrix *find_matrix(const team *t, int tensor, int64_t layer, int64_t expert)
{
    matrix wanted = {.tensor = tensor, .layer = layer, .expert = expert};
    return t->matrices.count == 0 ? NULL
                                  : bsearch(&wanted, t->matrices.items, t->matrices.count,
                                        sizeof wanted, compare_matrices);
}

static rs_status first_position(void *context, const rs_box *box, int block, int64_t position)
{
    int64_t *first = context;
    (void)box;
    (void)block;
    *first = *first < 0 ? position : *first;
    return RS_OK;
}

/* Adds a box of one matrix to a member's part of it. */
static rs_status add_piece(
    rs_muon *muon, const team *t, int tensor, const rs_box *box, int member, part *parts)
{
    int d = box->ndim - 2;
    const matrix *of = find_matrix(t, tensor, box->offset[0], d > 1 ? box->offset[1] : 0);
    if (of == NULL)
        return RS_OK;
    piece made = {box->offset[d], box->offset[d + 1], box->extent[d], box->extent[d + 1], -1};
    if (member == t->me)
        RS_TRY(rs_state_parts(
            muon->state, muon->state->rank, tensor, box, first_position, &made.position));
    part *p = part_of(t, parts, (size_t)(of - t->matrices.items), member);
    if (p->elements == 0)
        p->first = muon->pieces.count;
    RS_TRY(RS_LIST_RESERVE_ONE(&muon->pieces));
    muon->pieces.items[muon->pieces.count++] = made;
    p->end = muon->pieces.count;
    p->elements += made.rows * made.columns;
    return RS_OK;
}

/* Adds what a member has in `placement` of `role`; shards of one matrix follow each other. */
static rs_status list_parts(
    rs_muon *muon, const team *t, const rs_placement *placement, int role, int member, part *parts)
{
    rs_shard_list shards = {0};
    rs_status status;
    RS_TRY_GOTO(rs_placement_shards(placement, t->ranks[member], role, &shards), done);
    for (size_t i = 0; i < shards.count; i++) {
        int tensor = shards.items[i].tensor;
        rs_box box = shards.items[i].box;
        int64_t experts = box.extent[1];
        if (&muon->teams[rs_group_mesh(rs_space_tensor(muon->state->space, tensor))] != t)
            continue;
        if (box.ndim < 4) {
            if (box.ndim == 3)
                RS_TRY_GOTO(add_piece(muon, t, tensor, &box, member, parts), done);
            continue;
        }
        for (box.extent[1] = 1; experts > 0; experts--, box.offset[1]++)
            RS_TRY_GOTO(add_piece(muon, t, tensor, &box, member, parts), done);
    }
done:
    rs_shard_list_fini(&shards);
    return status;
}

/* Where the optimizer is whole everybody updates all that he has, else his piece. */
static rs_status list_all_parts(rs_muon *muon, team *t, int role)
{
    const rs_state *state = muon->state;
    size_t count = t->matrices.count * (size_t)t->size;
    t->have = rs_calloc(count, sizeof *t->have);
    t->want = rs_calloc(count, sizeof *t->want);
    if (t->have == NULL || t->want == NULL)
        return rs_error_memory(count * sizeof *t->have);
    for (int m = 0; m < t->size; m++) {
        RS_TRY(list_parts(muon, t, state->flat, role, m, t->have));
        if (state->layout.zero == 0)
            RS_TRY(list_parts(muon, t, state->whole, 0, m, t->want));
        else
            RS_TRY(list_parts(muon, t, state->flat, role, m, t->want));
    }
    return RS_OK;
}

/* ---- memory ---- */

/* Of where the optimizer is whole all that the rank has, else its piece. */
rs_status rs_muon_pieces(
    const rs_state *state, const rs_optimizer *optimizer, int rank, int mesh, rs_runs *out)
{
    bool whole = state->layout.zero == 0;
    const rs_placement *placement = whole ? state->whole : state->flat;
    for (int t = 0; t < rs_space_tensor_count(state->space); t++)
        if (is_muons(state, optimizer, t) &&
            rs_group_mesh(rs_space_tensor(state->space, t)) == mesh)
            RS_TRY(rs_state_pieces(
                state, placement, rank, mesh, whole ? 0 : rs_state_update_role(state, t), t, out));
    rs_runs_sort(out, 1);
    return RS_OK;
}

rs_status rs_muon_runs(
    const rs_state *state, const rs_optimizer *optimizer, float *memory, rs_runs *out)
{
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
        RS_TRY(rs_muon_pieces(state, optimizer, state->rank, mesh, out));
    rs_runs_sort(out, sizeof *memory);
    rs_runs_place(out, sizeof *memory, memory);
    return RS_OK;
}

static rs_status make_directions(rs_muon *muon, const rs_optimizer *optimizer)
{
    RS_TRY(rs_muon_runs(muon->state, optimizer, NULL, &muon->directions));
    int64_t elements = rs_runs_elements(&muon->directions);
    float *memory;
    if (muon->state->ledger != NULL) {
        RS_TRY(rs_twophase_directions(muon->state, &memory));
    } else {
        memory = muon->memory = rs_calloc((size_t)elements, sizeof *memory);
        if (memory == NULL)
            return rs_error_memory((size_t)elements * sizeof *memory);
    }
    rs_runs_place(&muon->directions, sizeof *memory, memory);
    return RS_OK;
}

/* Elements that this rank sends and receives in a round at most, in both directions. */
static int64_t most_elements(const team *t)
{
    int64_t most = 0;
    for (size_t base = 0; base < t->matrices.count; base += (size_t)t->size) {
        int64_t sum = 0;
        for (int m = 0; m < t->size; m++) {
            if (base + (size_t)m < t->matrices.count)
                sum += part_of(t, t->have, base + (size_t)m, t->me)->elements +
                       part_of(t, t->want, base + (size_t)m, t->me)->elements;
            if (base + (size_t)t->me < t->matrices.count)
                sum += part_of(t, t->have, base + (size_t)t->me, m)->elements +
                       part_of(t, t->want, base + (size_t)t->me, m)->elements;
        }
        most = rs_max64(most, sum);
    }
    return most;
}

static rs_status make_memory(rs_muon *muon, const rs_optimizer *optimizer)
{
    int64_t whole = 0, scratch = 0, moved = 0;
    int size = 0;
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++) {
        const team *t = &muon->teams[mesh];
        moved = rs_max64(moved, most_elements(t));
        size = t->size > size ? t->size : size;
        for (size_t i = (size_t)t->me; i < t->matrices.count; i += (size_t)t->size) {
            const matrix *m = &t->matrices.items[i];
            whole = rs_max64(whole, m->rows * m->columns);
            scratch = rs_max64(scratch, rs_muon_scratch(m->rows, m->columns));
        }
    }
    muon->whole = rs_calloc((size_t)whole, sizeof *muon->whole);
    muon->scratch = rs_calloc((size_t)scratch, sizeof *muon->scratch);
    muon->moved = rs_calloc((size_t)moved, sizeof *muon->moved);
    muon->requests = rs_calloc(4 * (size_t)size, sizeof(MPI_Request));
    if (muon->whole == NULL || muon->scratch == NULL || muon->moved == NULL ||
        muon->requests == NULL)
        return rs_error_memory((size_t)(whole + scratch + moved) * sizeof *muon->whole);
    return make_directions(muon, optimizer);
}

rs_status rs_muon_create(const rs_world *world, const rs_state *state,
    const rs_optimizer *optimizer, const rs_runs *gradients, rs_muon **out)
{
    rs_status status;
    *out = NULL;
    rs_muon *muon = rs_calloc(1, sizeof *muon);
    if (muon == NULL)
        return rs_error_memory(sizeof *muon);
    muon->state = state;
    muon->gradients = gradients;
    muon->comm = world->all;
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
        RS_TRY_GOTO(find_team(&muon->teams[mesh], mesh, world), done);
    RS_TRY_GOTO(list_matrices(muon, world, optimizer), done);
    if (muon->teams[0].matrices.count + muon->teams[1].matrices.count == 0)
        goto done;
    int role = rs_space_find_role(state->space, optimizer->roles[0]);
    muon->momenta = rs_state_runs(state, role);
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
        RS_TRY_GOTO(list_all_parts(muon, &muon->teams[mesh], role), done);
    RS_TRY_GOTO(make_memory(muon, optimizer), done);
    *out = muon;
    muon = NULL;
done:
    rs_muon_destroy(muon);
    return status;
}

void rs_muon_destroy(rs_muon *muon)
{
    if (muon == NULL)
        return;
    free(muon->requests);
    free(muon->moved);
    free(muon->scratch);
    free(muon->whole);
    free(muon->memory);
    rs_runs_fini(&muon->directions);
    free(muon->pieces.items);
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++) {
        free(muon->teams[mesh].want);
        free(muon->teams[mesh].have);
        free(muon->teams[mesh].matrices.items);
        free(muon->teams[mesh].ranks);
    }
    free(muon);
}

const rs_runs *rs_muon_directions(const rs_muon *muon)
{
    return &muon->directions;
}

/* ---- a round ---- */

/* What the momentum will be, and the gradient's pull beyond it (Nesterov). */
static void mix(const rs_muon *muon, const part *own, float clip, float *to)
{
    const float keep = (float)RS_MUON_MOMENTUM;
    for (size_t k = own->first; k < own->end; k++) {
        const piece *p = &muon->pieces.items[k];
        const float *g = rs_runs_at(muon->gradients, sizeof *g, p->position);
        const float *m = rs_runs_at(muon->momenta, sizeof *m, p->position);
        for (int64_t i = 0; i < p->rows * p->columns; i++) {
            float pull = g[i] * clip;
            *to++ = pull + keep * (keep * m[i] + pull);
        }
    }
}

/* Copies the pieces of a part between the own matrix and a message. */
static void pass(const rs_muon *muon, const part *of, int64_t columns, float *message, bool out)
{
    for (size_t k = of->first; k < of->end; k++) {
        const piece *p = &muon->pieces.items[k];
        for (int64_t r = 0; r < p->rows; r++, message += p->columns) {
            float *at = muon->whole + (p->row + r) * columns + p->column;
            memcpy(out ? message : at, out ? at : message, (size_t)p->columns * sizeof *at);
        }
    }
}

static void keep_directions(const rs_muon *muon, const part *own, const float *message)
{
    for (size_t k = own->first; k < own->end; k++) {
        const piece *p = &muon->pieces.items[k];
        int64_t count = p->rows * p->columns;
        rs_runs_write(
            &muon->directions, sizeof *message, p->position, p->position + count, message);
        message += count;
    }
}

/* Requests of a round, and the next free place of its memory. */
typedef struct traffic {
    int posted;
    float *next;
} traffic;

static float *room_for(traffic *t, int64_t count)
{
    float *room = t->next;
    t->next += count;
    return room;
}

static void post(rs_muon *muon, const team *with, traffic *t, bool sends, float *data,
    int64_t count, int member, int tag)
{
    MPI_Request *request = &muon->requests[t->posted];
    if (count == 0 || member == with->me)
        return;
    t->posted++;
    if (sends)
        rs_comm_post_floats(muon->comm, with->ranks[member], tag, data, count, request);
    else
        rs_comm_expect_floats(muon->comm, with->ranks[member], tag, data, count, request);
}

static void wait_all(rs_muon *muon, traffic *t)
{
    MPI_Waitall(t->posted, muon->requests, MPI_STATUSES_IGNORE);
    t->posted = 0;
}

/* Brings the pieces of the round's matrices to their ranks; the own one is put together. */
static void collect(
    rs_muon *muon, const team *with, traffic *t, size_t base, const matrix *own, float clip)
{
    float *first = t->next;
    for (int m = 0; own != NULL && m < with->size; m++) {
        const part *theirs = part_of(with, with->have, base + (size_t)with->me, m);
        post(muon, with, t, false, room_for(t, theirs->elements), theirs->elements, m, TAG_PIECES);
    }
    for (int m = 0; m < with->size && base + (size_t)m < with->matrices.count; m++) {
        const part *mine = part_of(with, with->have, base + (size_t)m, with->me);
        float *room = room_for(t, mine->elements);
        mix(muon, mine, clip, room);
        post(muon, with, t, true, room, mine->elements, m, TAG_PIECES);
        if (m == with->me)
            pass(muon, mine, own->columns, room, false);
    }
    wait_all(muon, t);
    for (int m = 0; own != NULL && m < with->size; m++) {
        const part *theirs = part_of(with, with->have, base + (size_t)with->me, m);
        if (m != with->me)
            pass(muon, theirs, own->columns, first, false);
        first += theirs->elements;
    }
}

/* Hands the own matrix's direction to those who update it, and takes theirs. */
static void distribute(rs_muon *muon, const team *with, traffic *t, size_t base, const matrix *own)
{
    float *first = t->next;
    for (int m = 0; m < with->size && base + (size_t)m < with->matrices.count; m++) {
        const part *mine = part_of(with, with->want, base + (size_t)m, with->me);
        post(muon, with, t, false, room_for(t, mine->elements), mine->elements, m, TAG_DIRECTIONS);
    }
    for (int m = 0; own != NULL && m < with->size; m++) {
        const part *theirs = part_of(with, with->want, base + (size_t)with->me, m);
        float *room = room_for(t, theirs->elements);
        pass(muon, theirs, own->columns, room, true);
        post(muon, with, t, true, room, theirs->elements, m, TAG_DIRECTIONS);
        if (m == with->me)
            keep_directions(muon, theirs, room);
    }
    wait_all(muon, t);
    for (int m = 0; m < with->size && base + (size_t)m < with->matrices.count; m++) {
        const part *mine = part_of(with, with->want, base + (size_t)m, with->me);
        if (m != with->me)
            keep_directions(muon, mine, first);
        first += mine->elements;
    }
}

static void direct_team(rs_muon *muon, const team *with, float clip)
{
    for (size_t base = 0; base < with->matrices.count; base += (size_t)with->size) {
        traffic t = {0, muon->moved};
        size_t number = base + (size_t)with->me;
        const matrix *own = number < with->matrices.count ? &with->matrices.items[number] : NULL;
        collect(muon, with, &t, base, own, clip);
        if (own != NULL)
            rs_muon_orthogonal(own->rows, own->columns, muon->whole, muon->scratch);
        distribute(muon, with, &t, base, own);
    }
}

void rs_muon_direct(rs_muon *muon, float clip)
{
    for (int mesh = 0; muon != NULL && mesh < RS_MESHES_BOTH; mesh++)
        direct_team(muon, &muon->teams[mesh], clip);
}
