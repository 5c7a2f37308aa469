/*
 * AdamW over the pieces of the local vector, with the sums of what is written.
 *
 * The same layout with zero=3 cuts every role, parameters too, into one piece per member of a
 * group. That geometry says who reduces which gradients, who updates which parameters, and which
 * cells the certificate's sums are kept for, whatever the job's own zero is: with zero=1 a rank
 * updates its piece and gathers the other parameters; with zero=0 it updates all pieces and keeps
 * the sums of its own.
 *
 * Work is cut into chunks: a contiguous run of elements within one cell (hence one tensor, one
 * block, one set of holders) small enough that all its roles stay in the cache between the update
 * and the sums.
 *
 * 1. The update is a pure function of the state, the gradient and the rate: element by element, no
 * sums.
 * 2. A chunk's box is contiguous in the local vector, and in each of its roles.
 * 3. The norm is a sum over chunks in order, of eight partial sums in a fixed order: a layout
 * repeats it bit for bit, with any number of threads.
 *
 * AdamW: Loshchilov and Hutter, arXiv 1711.05101. ZeRO: Rajbhandari et al., arXiv 1910.02054.
 */
#include "train/update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/bfloat16.h"
#include "train/group.h"
#include "train/simd.h"

#define CHUNK 16384 /* elements: 64 KiB of each role */
#define LANES 8

#define BETA1 0.9
#define BETA2 0.95
#define EPSILON 1e-8
#define WEIGHT_DECAY 0.1
#define CLIP_NORM 1.0
#define FINAL_RATE 0.1 /* of the peak */

typedef struct chunk {
    int64_t begin; /* in the local vector */
    int64_t count;
    int tensor;
    size_t cell; /* within the cells of a role */
    bool own;    /* of this rank's piece: it has a norm and sums */
    bool counted;
    const float *gradient;
    rs_box box;
} chunk;

typedef struct chunk_list {
    chunk *items;
    size_t count;
    size_t capacity;
} chunk_list;

struct rs_update {
    const rs_state *state;
    const rs_runs *gradients;
    chunk_list chunks;
    rs_sums *sums;
    size_t cells;       /* of each role */
    uint64_t *keys;     /* [role][tensor] */
    double *squares;    /* per chunk */
    rs_sum *chunk_sums; /* [chunk][role] */
};

double rs_learning_rate(double lr, int64_t warmup, int64_t steps, int64_t step)
{
    if (step <= warmup)
        return lr * (double)step / (double)warmup;
    double done = (double)(step - warmup) / (double)rs_max64(1, steps - warmup);
    return lr * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + cos(acos(-1.0) * fmin(done, 1))));
}

double rs_clip_factor(double norm)
{
    return norm > CLIP_NORM ? CLIP_NORM / norm : 1;
}

/* ---- chunks ---- */

/* Where chunks go, and what they have in common with their cell. */
typedef struct filing {
    rs_update *update;
    chunk like;
} filing;

static rs_status add_chunk(void *context, const rs_box *part, int block, int64_t position)
{
    const filing *f = context;
    chunk_list *list = &f->update->chunks;
    (void)block;
    RS_TRY(RS_LIST_RESERVE_ONE(list));
    chunk *c = &list->items[list->count++];
    *c = f->like;
    c->box = *part;
    c->count = rs_box_volume(part);
    c->begin = position;
    c->gradient = rs_runs_at(f->update->gradients, sizeof(float), position);
    return RS_OK;
}

static rs_status add_cell(rs_update *update, const rs_cell *cell, size_t number, bool own)
{
    filing f = {
        update, {.tensor = cell->tensor, .cell = number, .own = own, .counted = cell->counted}};
    int64_t volume = rs_box_volume(&cell->box);
    rs_box parts[2 * RS_MAX_DIMS];
    for (int64_t done = 0; done < volume; done += CHUNK) {
        int n = rs_box_linear_range(&cell->box, done, rs_min64(volume, done + CHUNK), parts);
        for (int i = 0; i < n; i++)
            RS_TRY(rs_state_parts(
                update->state, update->state->rank, cell->tensor, &parts[i], add_chunk, &f));
    }
    return RS_OK;
}

/* The cells of a role follow each other, and every role has the same boxes: zero=3 cuts all alike.
 */
static rs_status check_cells(rs_update *update)
{
    size_t count, roles = (size_t)rs_space_role_count(update->state->space);
    const rs_cell *cells = rs_sums_cells(update->sums, &count);
    update->cells = count / roles;
    for (size_t i = 0; i < count; i++) {
        const rs_cell *first = &cells[i % update->cells];
        if (cells[i].tensor != first->tensor || !rs_box_equal(&cells[i].box, &first->box) ||
            (size_t)cells[i].role != i / update->cells)
            return rs_error_set(RS_ERR_MISMATCH,
                "cell %zu of rank %d: roles of a flat layout are cut differently", i,
                update->state->rank);
    }
    return RS_OK;
}

/* Chunks of the piece of `rank`, which has this one's slice, in the order of its cells. */
static rs_status add_piece(rs_update *update, int rank)
{
    const rs_state *state = update->state;
    bool own = rank == state->rank;
    rs_sums *sums = update->sums;
    rs_status status = RS_OK;
    size_t count;
    if (!own)
        RS_TRY(rs_sums_create(state->flat, rank, &sums));
    const rs_cell *cells = rs_sums_cells(sums, &count);
    count /= (size_t)rs_space_role_count(state->space);
    for (size_t i = 0; i < count; i++)
        RS_TRY_GOTO(add_cell(update, &cells[i], i, own), done);
done:
    if (!own)
        rs_sums_destroy(sums);
    return status;
}

/* The pieces that this rank updates: its own, or, where the optimizer is not sharded, those of its
 * whole group. */
static rs_status add_pieces(rs_update *update)
{
    const rs_state *state = update->state;
    int size = rs_layout_shard_group(&state->layout, false);
    if (state->layout.zero > 0)
        return add_piece(update, state->rank);
    int *ranks = rs_calloc((size_t)size, sizeof *ranks);
    if (ranks == NULL)
        return rs_error_memory((size_t)size * sizeof *ranks);
    rs_group_ranks(
        &state->layout, state->rank, rs_layout_coords(&state->layout, state->rank).pp, ranks);
    rs_status status = RS_OK;
    for (int m = 0; m < size && status == RS_OK; m++)
        status = add_piece(update, ranks[m]);
    free(ranks);
    return status;
}

static rs_status make_keys(rs_update *update)
{
    const rs_space *space = update->state->space;
    int roles = rs_space_role_count(space), tensors = rs_space_tensor_count(space);
    update->keys = rs_calloc((size_t)roles * (size_t)tensors, sizeof *update->keys);
    if (update->keys == NULL)
        return rs_error_memory((size_t)roles * (size_t)tensors * sizeof *update->keys);
    for (int r = 0; r < roles; r++)
        for (int t = 0; t < tensors; t++)
            update->keys[r * tensors + t] =
                rs_sum_key(rs_space_tensor(space, t)->name, rs_space_role(space, r)->name);
    return RS_OK;
}

rs_status rs_update_create(const rs_state *state, const rs_runs *gradients, rs_update **out)
{
    rs_status status;
    rs_update *update = rs_calloc(1, sizeof *update);
    if (update == NULL)
        return rs_error_memory(sizeof *update);
    update->state = state;
    update->gradients = gradients;
    RS_TRY_GOTO(make_keys(update), fail);
    RS_TRY_GOTO(rs_sums_create(state->flat, state->rank, &update->sums), fail);
    RS_TRY_GOTO(check_cells(update), fail);
    RS_TRY_GOTO(add_pieces(update), fail);
    size_t chunks = update->chunks.count, roles = (size_t)rs_space_role_count(state->space);
    update->squares = rs_calloc(chunks, sizeof *update->squares);
    update->chunk_sums = rs_calloc(chunks, roles * sizeof *update->chunk_sums);
    if (update->squares == NULL || update->chunk_sums == NULL) {
        status = rs_error_memory(chunks * (roles + 1) * sizeof *update->chunk_sums);
        goto fail;
    }
    *out = update;
    return RS_OK;

fail:
    rs_update_destroy(update);
    return status;
}

void rs_update_destroy(rs_update *update)
{
    if (update == NULL)
        return;
    rs_sums_destroy(update->sums);
    free(update->chunk_sums);
    free(update->squares);
    free(update->keys);
    free(update->chunks.items);
    free(update);
}

/* ---- the step ---- */

RS_CLONES static double sum_of_squares(const float *values, int64_t count)
{
    double lanes[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int k = 0; k < LANES; k++)
            lanes[k] += (double)values[i + k] * (double)values[i + k];
    for (; i < count; i++)
        lanes[i % LANES] += (double)values[i] * (double)values[i];
    for (int k = 0; k < LANES; k++)
        sum += lanes[k];
    return sum;
}

double rs_update_norm(const rs_update *update, const rs_runs *reduced)
{
    int64_t count = (int64_t)update->chunks.count;
    double sum = 0;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        const chunk *c = &update->chunks.items[i];
        update->squares[i] =
            c->own && c->counted
                ? sum_of_squares(rs_runs_at(reduced, sizeof(float), c->begin), c->count)
                : 0;
    }
    for (int64_t i = 0; i < count; i++)
        sum += update->squares[i];
    return sum;
}

typedef struct adamw {
    float keep; /* factor of the weight: 1 - lr * decay */
    float size; /* lr / (1 - beta1^step) */
    float root; /* 1 / sqrt(1 - beta2^step) */
    float clip;
} adamw;

RS_CLONES static void adamw_run(const adamw *how, int64_t count, const float *restrict gradient,
    float *restrict weight, float *restrict first, float *restrict second)
{
    const float one1 = (float)(1 - BETA1), beta2 = (float)BETA2, one2 = (float)(1 - BETA2);
    const float keep = how->keep, size = how->size, root = how->root, clip = how->clip;
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * clip;
        float m = first[i] + (g - first[i]) * one1;
        float v = second[i] * beta2 + g * g * one2;
        float denominator = sqrtf(v) * root + (float)EPSILON;
        first[i] = m;
        second[i] = v;
        weight[i] = weight[i] * keep - size * (m / denominator);
    }
}

/* The parameters that follow from the masters. */
RS_CLONES static void round_run(
    int64_t count, const float *restrict masters, uint16_t *restrict rounded)
{
    for (int64_t i = 0; i < count; i++)
        rounded[i] = rs_bf16_from_float(masters[i]);
}

/* The sums of a chunk, one per role, of what stands in memory. */
static void sum_chunk(const rs_update *update, const chunk *c, rs_sum *out)
{
    const rs_state *state = update->state;
    const rs_tensor *tensor = rs_space_tensor(state->space, c->tensor);
    int tensors = rs_space_tensor_count(state->space);
    int roles = rs_space_role_count(state->space);
    for (int role = 0; role < roles; role++) {
        int64_t stride[RS_MAX_DIMS];
        size_t size = rs_dtype_size(rs_space_role(state->space, role)->dtype);
        int64_t next = (int64_t)size;
        for (int d = c->box.ndim - 1; d >= 0; d--) {
            stride[d] = next;
            next *= c->box.extent[d];
        }
        out[role] = rs_sum_box(update->keys[role * tensors + c->tensor], tensor->shape, &c->box,
            size, rs_state_element(state, role, c->begin), stride);
    }
}

static void apply_chunk(const rs_update *update, const chunk *c, const rs_update_rate *rate)
{
    const rs_state *state = update->state;
    const rs_roles *roles = &state->roles;
    bool decay = rs_space_tensor(state->space, c->tensor)->decay;
    double step = (double)rate->step;
    adamw how = {.keep = decay ? (float)(1 - (double)rate->lr * WEIGHT_DECAY) : 1,
        .size = (float)((double)rate->lr / (1 - pow(BETA1, step))),
        .root = (float)(1 / sqrt(1 - pow(BETA2, step))),
        .clip = rate->clip};
    int master = roles->master >= 0 ? roles->master : roles->param;
    float *values = rs_state_element(state, master, c->begin);
    adamw_run(&how, c->count, c->gradient, values,
        rs_state_element(state, roles->exp_avg, c->begin),
        rs_state_element(state, roles->exp_avg_sq, c->begin));
    if (roles->master >= 0)
        round_run(c->count, values, rs_state_element(state, roles->param, c->begin));
}

/* Adds the chunks' sums up to cells. */
static void collect_sums(rs_update *update)
{
    size_t count, roles = (size_t)rs_space_role_count(update->state->space);
    rs_cell *cells = rs_sums_cells(update->sums, &count);
    for (size_t i = 0; i < count; i++) {
        cells[i].sum = (rs_sum){{0, 0}};
        cells[i].known = true;
    }
    for (size_t i = 0; i < update->chunks.count; i++) {
        const chunk *c = &update->chunks.items[i];
        for (size_t r = 0; r < roles && c->own; r++) {
            rs_cell *cell = &cells[r * update->cells + c->cell];
            for (int lane = 0; lane < 2; lane++)
                cell->sum.lane[lane] += update->chunk_sums[i * roles + r].lane[lane];
        }
    }
}

void rs_update_apply(rs_update *update, const rs_update_rate *rate)
{
    int64_t count = (int64_t)update->chunks.count;
    int roles = rs_space_role_count(update->state->space);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        const chunk *c = &update->chunks.items[i];
        apply_chunk(update, c, rate);
        if (c->own)
            sum_chunk(update, c, &update->chunk_sums[i * roles]);
    }
    collect_sums(update);
}

const rs_sums *rs_update_sums(rs_update *update)
{
    size_t cell_count;
    const rs_cell *cells = rs_sums_cells(update->sums, &cell_count);
    int64_t count = (int64_t)update->chunks.count;
    int roles = rs_space_role_count(update->state->space);
    if (cell_count == 0 || cells[0].known)
        return update->sums;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++)
        if (update->chunks.items[i].own)
            sum_chunk(update, &update->chunks.items[i], &update->chunk_sums[i * roles]);
    collect_sums(update);
    return update->sums;
}
