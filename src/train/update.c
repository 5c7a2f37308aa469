/*
 * The optimizer over the pieces of the local vector, with the sums of what is written.
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
 * With a ledger (twophase.h) each chunk is a piece of its journal, and each thread has a slot and a
 * run of chunks of its own.
 *
 * 1. The update is a pure function of the state, the gradient and the rate: element by element, no
 * sums.
 * 2. A chunk's box is contiguous in the local vector, and in each of its roles.
 * 3. The norm is a sum over chunks in order, of eight partial sums in a fixed order: a layout
 * repeats it bit for bit, with any number of threads.
 *
 * ZeRO: Rajbhandari et al., arXiv 1910.02054.
 */
#include "train/update.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "train/bfloat16.h"
#include "train/group.h"
#include "train/method.h"
#include "train/simd.h"
#include "train/twophase.h"

#define CHUNK RS_UPDATE_PIECE
#define LANES 8

#define CLIP_NORM 1.0
#define FINAL_RATE 0.1 /* of the peak */

typedef struct chunk {
    int64_t begin; /* in the local vector */
    int64_t count;
    int tensor;
    size_t family; /* of the cells with its box, one a role */
    bool own;      /* of this rank's piece: it has a norm and sums */
    bool counted;
    const float *gradient;
    const float *direction;
    rs_box box;
} chunk;

typedef struct chunk_list {
    chunk *items;
    size_t count;
    size_t capacity;
} chunk_list;

/* How a tensor is updated. */
typedef struct method {
    rs_method apply; /* NULL: it is not */
    int value; /* the role that is changed: the master, or where there is none the parameter */
    int roles[RS_OPTIMIZER_ROLES]; /* -1: none */
} method;

/* The cells of a tensor's roles that have the same box: numbers in the sums, -1: the role has no
 * such cell (the tensor lacks the role, or it is cut at other places). */
typedef struct siblings {
    int64_t cells[RS_MAX_ROLES];
} siblings;

struct rs_update {
    const rs_state *state;
    const rs_runs *gradients;
    chunk_list chunks;
    rs_sums *sums;
    method *methods;    /* of each tensor */
    siblings *families; /* of this rank's cells of update roles */
    size_t family_count;
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

static rs_status add_cell(rs_update *update, const rs_cell *cell, size_t family, bool own)
{
    filing f = {
        update, {.tensor = cell->tensor, .family = family, .own = own, .counted = cell->counted}};
    if (rs_method_counts(rs_space_tensor(update->state->space, cell->tensor)))
        f.like.counted = false; /* it is no gradient */
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

/* Numbers of cells, by tensor and box, then role. */
typedef struct sorted {
    const rs_cell *cell;
    int64_t number;
} sorted;

static int compare_boxes(const sorted *a, const sorted *b)
{
    if (a->cell->tensor != b->cell->tensor)
        return rs_compare(a->cell->tensor, b->cell->tensor);
    return rs_box_compare(&a->cell->box, &b->cell->box);
}

static int compare_cells(const void *a, const void *b)
{
    const sorted *x = a, *y = b;
    int order = compare_boxes(x, y);
    return order != 0 ? order : rs_compare(x->cell->role, y->cell->role);
}

/* Groups the rank's cells by box; of each group, cells[number of the update role's cell] gets the
 * family's number. */
static rs_status make_families(rs_update *update, size_t **family_of)
{
    size_t count;
    const rs_cell *cells = rs_sums_cells(update->sums, &count);
    sorted *list = rs_calloc(count, sizeof *list);
    update->families = rs_calloc(count, sizeof *update->families);
    *family_of = rs_calloc(count, sizeof **family_of);
    if (list == NULL || update->families == NULL || *family_of == NULL) {
        free(list);
        return rs_error_memory(count * sizeof *update->families);
    }
    for (size_t i = 0; i < count; i++)
        list[i] = (sorted){&cells[i], (int64_t)i};
    qsort(list, count, sizeof *list, compare_cells);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || compare_boxes(&list[i - 1], &list[i]) != 0) {
            siblings *made = &update->families[update->family_count++];
            for (int r = 0; r < RS_MAX_ROLES; r++)
                made->cells[r] = -1;
        }
        update->families[update->family_count - 1].cells[list[i].cell->role] = list[i].number;
        (*family_of)[list[i].number] = update->family_count - 1;
    }
    free(list);
    return RS_OK;
}

/* Chunks of the piece of `rank` on a mesh, on which it has this one's slice, in the order of its
 * cells: of each tensor, those of the role that says who updates it. */
static rs_status add_piece(rs_update *update, int mesh, int rank, const size_t *family_of)
{
    const rs_state *state = update->state;
    bool own = rank == state->rank;
    rs_sums *sums = update->sums;
    rs_status status = RS_OK;
    size_t count;
    if (!own)
        RS_TRY(rs_sums_create(state->flat, rank, &sums));
    const rs_cell *cells = rs_sums_cells(sums, &count);
    for (size_t i = 0; i < count; i++)
        if (cells[i].role == rs_state_update_role(state, cells[i].tensor) &&
            rs_group_mesh(rs_space_tensor(state->space, cells[i].tensor)) == mesh)
            RS_TRY_GOTO(add_cell(update, &cells[i], own ? family_of[i] : 0, own), done);
done:
    if (!own)
        rs_sums_destroy(sums);
    return status;
}

/* The pieces that this rank updates: its own and those that it mirrors, or, where the optimizer is
 * not sharded, those of its whole group. */
static rs_status add_pieces(rs_update *update, int mesh, const size_t *family_of)
{
    const rs_state *state = update->state;
    int size = rs_layout_shard_group(&state->layout, mesh == RS_MESH_EXPERTS);
    if (state->layout.zero > 0) {
        RS_TRY(add_piece(update, mesh, state->rank, family_of));
        for (int i = 0; i < state->mirrored_count[mesh]; i++)
            RS_TRY(add_piece(update, mesh, state->mirrored[mesh][i], family_of));
        return RS_OK;
    }
    int *ranks = rs_calloc((size_t)size, sizeof *ranks);
    if (ranks == NULL)
        return rs_error_memory((size_t)size * sizeof *ranks);
    rs_group_ranks(
        &state->layout, mesh, state->rank, rs_layout_coords(&state->layout, state->rank).pp, ranks);
    rs_status status = RS_OK;
    for (int m = 0; m < size && status == RS_OK; m++)
        status = add_piece(update, mesh, ranks[m], family_of);
    free(ranks);
    return status;
}

/* What is done to each tensor, by the roles that it has. */
static rs_status make_methods(rs_update *update, const rs_optimizer *optimizer)
{
    const rs_state *state = update->state;
    int tensors = rs_space_tensor_count(state->space);
    update->methods = rs_calloc((size_t)tensors, sizeof *update->methods);
    if (update->methods == NULL)
        return rs_error_memory((size_t)tensors * sizeof *update->methods);
    for (int t = 0; t < tensors; t++) {
        const rs_optimizer *own = rs_optimizer_for(optimizer, rs_space_tensor(state->space, t));
        method *m = &update->methods[t];
        if (rs_state_update_role(state, t) < 0)
            continue;
        m->value = state->roles.master >= 0 ? state->roles.master : state->roles.param;
        m->apply = rs_method_for(own, rs_space_tensor(state->space, t));
        for (int i = 0; i < RS_OPTIMIZER_ROLES; i++)
            m->roles[i] =
                own->roles[i] != NULL ? rs_space_find_role(state->space, own->roles[i]) : -1;
        if (m->apply == NULL)
            return rs_error_set(RS_ERR_UNSUPPORTED, "the trainer does not compute %s", own->name);
    }
    return RS_OK;
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

/* A hash of how the state is cut: what a journal's piece numbers mean. */
static uint64_t hash_chunks(const rs_update *update)
{
    uint64_t hash = (uint64_t)rs_space_role_count(update->state->space);
    for (size_t i = 0; i < update->chunks.count; i++) {
        const chunk *c = &update->chunks.items[i];
        int64_t words[3] = {c->begin, c->count, c->tensor};
        hash = XXH3_64bits_withSeed(words, sizeof words, hash);
    }
    return hash | 1;
}

rs_status rs_update_create(
    const rs_state *state, const rs_optimizer *optimizer, const rs_runs *gradients, rs_update **out)
{
    rs_status status;
    size_t *family_of = NULL;
    rs_update *update = rs_calloc(1, sizeof *update);
    if (update == NULL)
        return rs_error_memory(sizeof *update);
    update->state = state;
    update->gradients = gradients;
    RS_TRY_GOTO(make_methods(update, optimizer), done);
    RS_TRY_GOTO(make_keys(update), done);
    RS_TRY_GOTO(rs_sums_create(state->flat, state->rank, &update->sums), done);
    RS_TRY_GOTO(make_families(update, &family_of), done);
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
        RS_TRY_GOTO(add_pieces(update, mesh, family_of), done);
    size_t chunks = update->chunks.count, roles = (size_t)rs_space_role_count(state->space);
    update->squares = rs_calloc(chunks, sizeof *update->squares);
    update->chunk_sums = rs_calloc(chunks, roles * sizeof *update->chunk_sums);
    if (update->squares == NULL || update->chunk_sums == NULL) {
        status = rs_error_memory(chunks * (roles + 1) * sizeof *update->chunk_sums);
        goto done;
    }
    if (state->ledger != NULL)
        RS_TRY_GOTO(rs_ledger_set_pieces(state->ledger, hash_chunks(update)), done);
    *out = update;
    update = NULL;
done:
    free(family_of);
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
    free(update->families);
    free(update->methods);
    free(update->chunks.items);
    free(update);
}

void rs_update_set_directions(rs_update *update, const rs_runs *directions)
{
    for (size_t i = 0; i < update->chunks.count; i++) {
        chunk *c = &update->chunks.items[i];
        c->direction = rs_runs_at(directions, sizeof *c->direction, c->begin);
    }
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

/* The parameters that follow from the masters. */
RS_CLONES static void round_run(
    int64_t count, const float *restrict masters, uint16_t *restrict rounded)
{
    for (int64_t i = 0; i < count; i++)
        rounded[i] = rs_bf16_from_float(masters[i]);
}

/* The sum of a contiguous box of one role, as it stands in memory. */
static rs_sum sum_part(
    const rs_update *update, int tensor, int role, const rs_box *box, int64_t position)
{
    const rs_state *state = update->state;
    int tensors = rs_space_tensor_count(state->space);
    int64_t stride[RS_MAX_DIMS];
    size_t size = rs_dtype_size(rs_space_role(state->space, role)->dtype);
    rs_state_packed(box, size, stride);
    return rs_sum_box(update->keys[role * tensors + tensor],
        rs_space_tensor(state->space, tensor)->shape, box, size,
        rs_state_element(state, role, position), stride);
}

/* The sums of a chunk, one per role of its family. */
static void sum_chunk(const rs_update *update, const chunk *c, rs_sum *out)
{
    const siblings *f = &update->families[c->family];
    for (int role = 0; role < rs_space_role_count(update->state->space); role++)
        if (f->cells[role] >= 0)
            out[role] = sum_part(update, c->tensor, role, &c->box, c->begin);
}

static void apply_chunk(const rs_update *update, const chunk *c, const rs_update_rate *rate)
{
    const rs_state *state = update->state;
    const method *m = &update->methods[c->tensor];
    const rs_method_rate how = {.step = rate->step,
        .lr = (double)rate->lr,
        .clip = rate->clip,
        .share = rate->share,
        .decay = rs_space_tensor(state->space, c->tensor)->decay};
    rs_method_run run = {.count = c->count, .gradient = c->gradient, .direction = c->direction};
    run.weight = rs_state_element(state, m->value, c->begin);
    for (int i = 0; i < RS_OPTIMIZER_ROLES; i++)
        if (m->roles[i] >= 0)
            run.roles[i] = rs_state_element(state, m->roles[i], c->begin);
    m->apply(&how, &run);
    if (m->value != state->roles.param)
        round_run(c->count, run.weight, rs_state_element(state, state->roles.param, c->begin));
}

/* Adds the chunks' sums up to cells; what no chunk has is not known. */
static void collect_sums(rs_update *update)
{
    size_t count, roles = (size_t)rs_space_role_count(update->state->space);
    rs_cell *cells = rs_sums_cells(update->sums, &count);
    for (size_t i = 0; i < count; i++) {
        cells[i].sum = (rs_sum){{0, 0}};
        cells[i].known = false;
    }
    for (size_t i = 0; i < update->chunks.count; i++) {
        const chunk *c = &update->chunks.items[i];
        for (size_t r = 0; r < roles && c->own; r++) {
            int64_t number = update->families[c->family].cells[r];
            for (int lane = 0; lane < 2 && number >= 0; lane++)
                cells[number].sum.lane[lane] += update->chunk_sums[i * roles + r].lane[lane];
            if (number >= 0)
                cells[number].known = true;
        }
    }
}

/* ---- parts: what one thread does ---- */

/* One chunk, whose old bytes stand in the journal while it changes. */
static void run_chunk(rs_update *update, int part, int64_t i, const rs_update_rate *rate)
{
    rs_ledger *ledger = update->state->ledger;
    const chunk *c = &update->chunks.items[i];
    int roles = rs_space_role_count(update->state->space);
    if (ledger != NULL) {
        rs_journal_save(
            update->state, c->tensor, c->begin, c->count, rs_ledger_journal(ledger, part));
        rs_crash_point("journal");
        rs_ledger_open_piece(ledger, part, i);
    }
    apply_chunk(update, c, rate);
    if (c->own)
        sum_chunk(update, c, &update->chunk_sums[i * roles]);
    rs_crash_point("changed");
    if (ledger != NULL)
        rs_ledger_close_piece(ledger, part, i);
}

/* Where part `part` of `parts` begins. */
static int64_t part_begin(const rs_update *update, int part, int parts)
{
    return (int64_t)update->chunks.count * part / parts;
}

/* Prepares the slots for a new update; or, where it was begun and cut off, puts the chunks that
 * were under way back. */
static void begin_parts(rs_update *update, int parts, int64_t step)
{
    rs_ledger *ledger = update->state->ledger;
    bool cut_off = rs_ledger_get(ledger, RS_LEDGER_UPDATING) == step;
    for (int part = 0; part < parts; part++) {
        rs_ledger_progress at;
        if (!cut_off)
            rs_ledger_begin_slot(
                ledger, part, part_begin(update, part, parts), part_begin(update, part + 1, parts));
        else if (rs_ledger_look(ledger, part, &at) == RS_OK && at.open) {
            const chunk *c = &update->chunks.items[at.next];
            rs_journal_restore(
                update->state, c->tensor, c->begin, c->count, rs_ledger_journal(ledger, part));
        }
    }
    rs_crash_point("begun");
    rs_ledger_set(ledger, RS_LEDGER_UPDATING, step);
}

rs_status rs_update_check(const rs_update *update)
{
    const rs_ledger *ledger = update->state->ledger;
    rs_ledger_progress at;
    int64_t end = 0;
    for (int part = 0; part < rs_ledger_shape_of(ledger)->slots; part++) {
        RS_TRY(rs_ledger_look(ledger, part, &at));
        if (at.next < end || at.end > (int64_t)update->chunks.count)
            return rs_error_set(RS_ERR_MALFORMED,
                "slot %d of rank %d's journal does not fit its %zu pieces", part,
                update->state->rank, update->chunks.count);
        end = at.end;
    }
    if (end != (int64_t)update->chunks.count)
        return rs_error_set(
            RS_ERR_MALFORMED, "the journal of rank %d lacks its last pieces", update->state->rank);
    return RS_OK;
}

void rs_update_apply(rs_update *update, const rs_update_rate *rate)
{
    rs_ledger *ledger = update->state->ledger;
    int parts = ledger != NULL ? rs_ledger_shape_of(ledger)->slots : omp_get_max_threads();
    if (ledger != NULL)
        begin_parts(update, parts, rate->step);
#pragma omp parallel for schedule(static, 1)
    for (int part = 0; part < parts; part++) {
        rs_ledger_progress at = {
            .next = part_begin(update, part, parts), .end = part_begin(update, part + 1, parts)};
        if (ledger != NULL && rs_ledger_look(ledger, part, &at) != RS_OK)
            continue; /* rs_update_check has told */
        for (int64_t i = at.next; i < at.end; i++)
            run_chunk(update, part, i, rate);
    }
    collect_sums(update);
}

void rs_update_round(const rs_update *update)
{
    const rs_state *state = update->state;
    int64_t count = (int64_t)update->chunks.count;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        const chunk *c = &update->chunks.items[i];
        int value = update->methods[c->tensor].value;
        if (value != state->roles.param)
            round_run(c->count, rs_state_element(state, value, c->begin),
                rs_state_element(state, state->roles.param, c->begin));
    }
}

/* ---- sums of what no chunk has: of tensors that are not trained, or cut at other places ---- */

typedef struct measuring {
    const rs_update *update;
    rs_cell *cell;
} measuring;

static rs_status measure_part(void *context, const rs_box *part, int block, int64_t position)
{
    const measuring *m = context;
    (void)block;
    rs_sum sum = sum_part(m->update, m->cell->tensor, m->cell->role, part, position);
    for (int lane = 0; lane < 2; lane++)
        m->cell->sum.lane[lane] += sum.lane[lane];
    return RS_OK;
}

const rs_sums *rs_update_sums(rs_update *update)
{
    const rs_state *state = update->state;
    size_t cell_count;
    rs_cell *cells = rs_sums_cells(update->sums, &cell_count);
    int64_t count = (int64_t)cell_count;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < count; i++) {
        measuring m = {update, &cells[i]};
        if (cells[i].known)
            continue;
        cells[i].sum = (rs_sum){{0, 0}};
        cells[i].known = rs_state_parts(state, state->rank, cells[i].tensor, &cells[i].box,
                             measure_part, &m) == RS_OK; /* else rs_sums_words tells */
    }
    return update->sums;
}
