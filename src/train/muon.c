/*
 * Muon: momentum, orthogonalised by Newton-Schulz iterations (Jordan et al., 2024; the size of the
 * step as in Liu et al., arXiv 2502.16982, so that AdamW's rate fits both).
 *
 * The team is the ranks of a stage that together have its matrices once: all tp ranks of a ZeRO
 * group. Matrices are dealt to the team in turn and worked on in rounds of as many as it has ranks,
 * each its own: a rank sends its pieces of each matrix of the round to that matrix's rank, which
 * puts them together, computes, and sends everybody what he updates.
 *
 * 1. Who has which box of a matrix is read off placements, so nothing is negotiated; a message has
 * the boxes of one matrix between two ranks, one behind the other, each row-major.
 * 2. Ranks that hold the same elements (key/value heads at borders) send the same bits.
 * 3. A matrix is computed by one rank of a team, from the same bits in every team: replicas agree.
 * 4. Memory: a rank's largest matrix four times, and its pieces of a round.
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
    int64_t layer; /* of the tensor */
    int64_t rows, columns;
} matrix;

typedef struct matrix_list {
    matrix *items;
    size_t count;
    size_t capacity;
} matrix_list;

struct rs_muon {
    const rs_state *state;
    const rs_runs *gradients;
    const rs_runs *momenta;
    MPI_Comm comm;
    int *team; /* ranks */
    int size;
    int me;
    matrix_list matrices;
    piece_list pieces; /* of all parts */
    part *have;        /* [matrix][team]: each element of a matrix once, but for shared heads */
    part *want;        /* [matrix][team]: what is updated there */
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

static part *part_of(const rs_muon *muon, part *parts, size_t number, int member)
{
    return &parts[number * (size_t)muon->size + (size_t)member];
}

static rs_status find_team(rs_muon *muon, const rs_world *world)
{
    const rs_layout *layout = &world->layout;
    int group = rs_layout_shard_group(layout, false);
    rs_coords at = world->at;
    muon->size = layout->tp * group;
    muon->team = rs_calloc((size_t)muon->size, sizeof *muon->team);
    if (muon->team == NULL)
        return rs_error_memory((size_t)muon->size * sizeof *muon->team);
    for (at.tp = 0; at.tp < layout->tp; at.tp++)
        rs_group_ranks(layout, RS_MESH_DENSE, rs_layout_rank(layout, at), world->at.pp,
            muon->team + at.tp * group);
    while (muon->team[muon->me] != world->rank)
        muon->me++;
    return RS_OK;
}

static bool is_muons(const rs_state *state, const rs_optimizer *optimizer, int tensor)
{
    return rs_state_update_role(state, tensor) >= 0 &&
           rs_method_directs(rs_optimizer_for(optimizer, rs_space_tensor(state->space, tensor)));
}

/* The matrices of the layers of a pipeline rank, the same list on all of a team. */
static rs_status list_matrices(rs_muon *muon, const rs_world *world, const rs_optimizer *optimizer)
{
    const rs_space *space = muon->state->space;
    int64_t layers = rs_space_layer_count(space), begin, end;
    for (int t = 0; t < rs_space_tensor_count(space); t++) {
        const rs_tensor *tensor = rs_space_tensor(space, t);
        for (int v = 0; is_muons(muon->state, optimizer, t) && v < world->layout.vpp; v++) {
            rs_layout_stage_layers(
                &world->layout, layers, v * world->layout.pp + world->at.pp, &begin, &end);
            begin = rs_max64(begin, tensor->layer_first);
            end = rs_min64(end, tensor->layer_first + tensor->shape[0]);
            for (int64_t l = begin; l < end; l++) {
                RS_TRY(RS_LIST_RESERVE_ONE(&muon->matrices));
                muon->matrices.items[muon->matrices.count++] =
                    (matrix){t, l - tensor->layer_first, tensor->shape[1], tensor->shape[2]};
            }
        }
    }
    return RS_OK;
}

static size_t find_matrix(const rs_muon *muon, const rs_shard *shard)
{
    size_t i = 0;
    while (i < muon->matrices.count && (muon->matrices.items[i].tensor != shard->tensor ||
                                           muon->matrices.items[i].layer != shard->box.offset[0]))
        i++;
    return i;
}

static rs_status first_position(void *context, const rs_box *box, int block, int64_t position)
{
    int64_t *first = context;
    (void)box;
    (void)block;
    *first = *first < 0 ? position : *first;
    return RS_OK;
}

/* Adds what a member has in `placement` of `role`; shards of one matrix follow each other. */
static rs_status list_parts(
    rs_muon *muon, const rs_placement *placement, int role, int member, part *parts)
{
    rs_shard_list shards = {0};
    rs_status status;
    RS_TRY_GOTO(rs_placement_shards(placement, muon->team[member], role, &shards), done);
    for (size_t i = 0; i < shards.count; i++) {
        const rs_box *box = &shards.items[i].box;
        size_t number = find_matrix(muon, &shards.items[i]);
        if (number == muon->matrices.count)
            continue;
        piece made = {box->offset[1], box->offset[2], box->extent[1], box->extent[2], -1};
        if (member == muon->me)
            RS_TRY_GOTO(rs_state_parts(muon->state, muon->state->rank, shards.items[i].tensor, box,
                            first_position, &made.position),
                done);
        part *p = part_of(muon, parts, number, member);
        if (p->elements == 0)
            p->first = muon->pieces.count;
        RS_TRY_GOTO(RS_LIST_RESERVE_ONE(&muon->pieces), done);
        muon->pieces.items[muon->pieces.count++] = made;
        p->end = muon->pieces.count;
        p->elements += made.rows * made.columns;
    }
done:
    rs_shard_list_fini(&shards);
    return status;
}

/* Where the optimizer is whole everybody updates all that he has, else his piece. */
static rs_status list_all_parts(rs_muon *muon, int role)
{
    const rs_state *state = muon->state;
    size_t count = muon->matrices.count * (size_t)muon->size;
    muon->have = rs_calloc(count, sizeof *muon->have);
    muon->want = rs_calloc(count, sizeof *muon->want);
    if (muon->have == NULL || muon->want == NULL)
        return rs_error_memory(count * sizeof *muon->have);
    for (int m = 0; m < muon->size; m++) {
        RS_TRY(list_parts(muon, state->flat, role, m, muon->have));
        if (state->layout.zero == 0)
            RS_TRY(list_parts(muon, state->whole, 0, m, muon->want));
        else
            RS_TRY(list_parts(muon, state->flat, role, m, muon->want));
    }
    return RS_OK;
}

/* ---- memory ---- */

/* Of where the optimizer is whole all that the rank has, else its piece. */
rs_status rs_muon_runs(
    const rs_state *state, const rs_optimizer *optimizer, float *memory, rs_runs *out)
{
    bool whole = state->layout.zero == 0;
    const rs_placement *placement = whole ? state->whole : state->flat;
    for (int t = 0; t < rs_space_tensor_count(state->space); t++) {
        int mesh = rs_group_mesh(rs_space_tensor(state->space, t));
        if (is_muons(state, optimizer, t))
            RS_TRY(rs_state_pieces(state, placement, state->rank, mesh,
                whole ? 0 : rs_state_update_role(state, t), t, out));
    }
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
        memory = rs_twophase_directions(muon->state);
    } else {
        memory = muon->memory = rs_calloc((size_t)elements, sizeof *memory);
    }
    if (memory == NULL)
        return rs_error_memory((size_t)elements * sizeof *memory);
    rs_runs_place(&muon->directions, sizeof *memory, memory);
    return RS_OK;
}

/* Elements that this rank sends and receives in a round at most, in both directions. */
static int64_t most_elements(rs_muon *muon)
{
    int64_t most = 0;
    for (size_t base = 0; base < muon->matrices.count; base += (size_t)muon->size) {
        int64_t sum = 0;
        for (int m = 0; m < muon->size; m++) {
            if (base + (size_t)m < muon->matrices.count)
                sum += part_of(muon, muon->have, base + (size_t)m, muon->me)->elements +
                       part_of(muon, muon->want, base + (size_t)m, muon->me)->elements;
            if (base + (size_t)muon->me < muon->matrices.count)
                sum += part_of(muon, muon->have, base + (size_t)muon->me, m)->elements +
                       part_of(muon, muon->want, base + (size_t)muon->me, m)->elements;
        }
        most = rs_max64(most, sum);
    }
    return most;
}

static rs_status make_memory(rs_muon *muon, const rs_optimizer *optimizer)
{
    int64_t whole = 0, scratch = 0, moved = most_elements(muon);
    for (size_t i = (size_t)muon->me; i < muon->matrices.count; i += (size_t)muon->size) {
        const matrix *m = &muon->matrices.items[i];
        whole = rs_max64(whole, m->rows * m->columns);
        scratch = rs_max64(scratch, rs_muon_scratch(m->rows, m->columns));
    }
    muon->whole = rs_calloc((size_t)whole, sizeof *muon->whole);
    muon->scratch = rs_calloc((size_t)scratch, sizeof *muon->scratch);
    muon->moved = rs_calloc((size_t)moved, sizeof *muon->moved);
    muon->requests = rs_calloc(4 * (size_t)muon->size, sizeof(MPI_Request));
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
    RS_TRY_GOTO(find_team(muon, world), done);
    RS_TRY_GOTO(list_matrices(muon, world, optimizer), done);
    if (muon->matrices.count == 0)
        goto done;
    int role = rs_space_find_role(state->space, optimizer->roles[0]);
    muon->momenta = rs_state_runs(state, role);
    RS_TRY_GOTO(list_all_parts(muon, role), done);
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
    free(muon->want);
    free(muon->have);
    free(muon->pieces.items);
    free(muon->matrices.items);
    free(muon->team);
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

static void post(
    rs_muon *muon, traffic *t, bool sends, float *data, int64_t count, int member, int tag)
{
    MPI_Request *request = &muon->requests[t->posted];
    if (count == 0 || member == muon->me)
        return;
    t->posted++;
    if (sends)
        rs_comm_post_floats(muon->comm, muon->team[member], tag, data, count, request);
    else
        rs_comm_expect_floats(muon->comm, muon->team[member], tag, data, count, request);
}

static void wait_all(rs_muon *muon, traffic *t)
{
    MPI_Waitall(t->posted, muon->requests, MPI_STATUSES_IGNORE);
    t->posted = 0;
}

/* Brings the pieces of the round's matrices to their ranks; the own one is put together. */
static void collect(rs_muon *muon, traffic *t, size_t base, const matrix *own, float clip)
{
    float *first = t->next;
    for (int m = 0; own != NULL && m < muon->size; m++) {
        const part *theirs = part_of(muon, muon->have, base + (size_t)muon->me, m);
        post(muon, t, false, room_for(t, theirs->elements), theirs->elements, m, TAG_PIECES);
    }
    for (int m = 0; m < muon->size && base + (size_t)m < muon->matrices.count; m++) {
        const part *mine = part_of(muon, muon->have, base + (size_t)m, muon->me);
        float *room = room_for(t, mine->elements);
        mix(muon, mine, clip, room);
        post(muon, t, true, room, mine->elements, m, TAG_PIECES);
        if (m == muon->me)
            pass(muon, mine, own->columns, room, false);
    }
    wait_all(muon, t);
    for (int m = 0; own != NULL && m < muon->size; m++) {
        const part *theirs = part_of(muon, muon->have, base + (size_t)muon->me, m);
        if (m != muon->me)
            pass(muon, theirs, own->columns, first, false);
        first += theirs->elements;
    }
}

/* Hands the own matrix's direction to those who update it, and takes theirs. */
static void distribute(rs_muon *muon, traffic *t, size_t base, const matrix *own)
{
    float *first = t->next;
    for (int m = 0; m < muon->size && base + (size_t)m < muon->matrices.count; m++) {
        const part *mine = part_of(muon, muon->want, base + (size_t)m, muon->me);
        post(muon, t, false, room_for(t, mine->elements), mine->elements, m, TAG_DIRECTIONS);
    }
    for (int m = 0; own != NULL && m < muon->size; m++) {
        const part *theirs = part_of(muon, muon->want, base + (size_t)muon->me, m);
        float *room = room_for(t, theirs->elements);
        pass(muon, theirs, own->columns, room, true);
        post(muon, t, true, room, theirs->elements, m, TAG_DIRECTIONS);
        if (m == muon->me)
            keep_directions(muon, theirs, room);
    }
    wait_all(muon, t);
    for (int m = 0; m < muon->size && base + (size_t)m < muon->matrices.count; m++) {
        const part *mine = part_of(muon, muon->want, base + (size_t)m, muon->me);
        if (m != muon->me)
            keep_directions(muon, mine, first);
        first += mine->elements;
    }
}

void rs_muon_direct(rs_muon *muon, float clip)
{
    if (muon == NULL)
        return;
    for (size_t base = 0; base < muon->matrices.count; base += (size_t)muon->size) {
        traffic t = {0, muon->moved};
        size_t number = base + (size_t)muon->me;
        const matrix *own = number < muon->matrices.count ? &muon->matrices.items[number] : NULL;
        collect(muon, &t, base, own, clip);
        if (own != NULL)
            rs_muon_orthogonal(own->rows, own->columns, muon->whole, muon->scratch);
        distribute(muon, &t, base, own);
    }
}
