/*
 * The rank's side of the two-phase step: its ledger, and what of a piece goes to the journal.
 *
 * 1. The gradient is reduced into the ledger's work memory, so making it last costs no copy.
 * 2. What a rank mirrors of others is updated with what is its own, in the same slots: its gradient
 * comes into the work memory behind the own one, before the rank is ready.
 * 3. The journal has every role that an update changes, but for parameters that follow from
 * masters: recovery makes those anew.
 */
#include "train/twophase.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/group.h"
#include "train/muon.h"

#define MAX_SLOTS 64 /* that a ledger has */
#define ALIGNMENT 64 /* bytes */

_Static_assert(sizeof(rs_step_note) <= RS_LEDGER_NOTE, "a step's numbers fit a note");

rs_status rs_twophase_gradients(const rs_state *state, void *memory, rs_runs *out)
{
    if (state->layout.zero == 0)
        return rs_runs_add(out, &(rs_run){0, rs_state_elements(state), 0, memory});
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
        RS_TRY(rs_state_pieces(state, state->flat, state->rank, mesh, -1, -1, out));
    rs_runs_sort(out, 1);
    rs_runs_place(out, sizeof(float), memory);
    return RS_OK;
}

/* Bytes of the gradient in the work memory; the directions follow. */
static rs_status gradient_bytes(const rs_state *state, int64_t *bytes)
{
    rs_runs gradients = {0};
    rs_status status = rs_twophase_gradients(state, NULL, &gradients);
    *bytes = rs_round_up(rs_runs_elements(&gradients) * (int64_t)sizeof(float), ALIGNMENT);
    rs_runs_fini(&gradients);
    return status;
}

rs_status rs_twophase_directions(const rs_state *state, float **out)
{
    int64_t bytes = 0;
    RS_TRY(gradient_bytes(state, &bytes));
    *out = (float *)(void *)((char *)rs_ledger_work(state->ledger) + bytes);
    return RS_OK;
}

/* ---- mirrors ---- */

int rs_twophase_mirrored_count(const rs_state *state)
{
    return state->mirrored_count[RS_MESH_DENSE] + state->mirrored_count[RS_MESH_EXPERTS];
}

/* The positions of a mirrored piece, without memory: of its gradient, or of its directions. */
static rs_status mirrored_runs(const rs_state *state, const rs_optimizer *optimizer, int mesh,
    int owner, bool directions, rs_runs *out)
{
    if (directions)
        return rs_muon_pieces(state, optimizer, owner, mesh, out);
    RS_TRY(rs_state_pieces(state, state->flat, owner, mesh, -1, -1, out));
    rs_runs_sort(out, 1);
    return RS_OK;
}

/* Elements of the rank's own directions. */
static rs_status count_directions(
    const rs_state *state, const rs_optimizer *optimizer, int64_t *count)
{
    rs_runs runs = {0};
    rs_status status = rs_muon_runs(state, optimizer, NULL, &runs);
    *count = rs_runs_elements(&runs);
    rs_runs_fini(&runs);
    return status;
}

rs_status rs_twophase_mirrored(
    const rs_state *state, const rs_optimizer *optimizer, void *memory, rs_mirrored_work *out)
{
    int64_t gradients = 0, directions = 0;
    RS_TRY(gradient_bytes(state, &gradients));
    RS_TRY(count_directions(state, optimizer, &directions));
    float *next = (float *)(void *)((char *)memory + gradients) + directions;
    for (int mesh = 0; mesh < RS_MESHES_BOTH; mesh++)
        for (int i = 0; i < state->mirrored_count[mesh]; i++) {
            rs_mirrored_work w = {.mesh = mesh, .owner = state->mirrored[mesh][i]};
            rs_runs runs[2] = {{0}, {0}};
            rs_status status = RS_OK;
            for (int k = 0; k < 2 && status == RS_OK; k++)
                status = mirrored_runs(state, optimizer, mesh, w.owner, k == 1, &runs[k]);
            w.gradient = next;
            w.gradient_count = rs_runs_elements(&runs[0]);
            w.direction = next + w.gradient_count;
            w.direction_count = rs_runs_elements(&runs[1]);
            next = w.direction + w.direction_count;
            for (int k = 0; k < 2; k++)
                rs_runs_fini(&runs[k]);
            RS_TRY(status);
            *out++ = w;
        }
    return RS_OK;
}

/* Adds the runs of a mirrored piece, lying from `memory` on. */
static rs_status add_mirrored(const rs_state *state, const rs_optimizer *optimizer,
    const rs_mirrored_work *w, bool directions, rs_runs *out)
{
    rs_runs runs = {0};
    rs_status status = mirrored_runs(state, optimizer, w->mesh, w->owner, directions, &runs);
    rs_runs_place(&runs, sizeof(float), directions ? w->direction : w->gradient);
    for (size_t i = 0; i < runs.count && status == RS_OK; i++)
        status = rs_runs_add(out, &runs.items[i]);
    rs_runs_fini(&runs);
    return status;
}

rs_status rs_twophase_work(const rs_state *state, const rs_optimizer *optimizer, void *memory,
    rs_runs *gradients, rs_runs *directions, int64_t *bytes)
{
    int count = rs_twophase_mirrored_count(state);
    int64_t own = 0;
    RS_TRY(gradient_bytes(state, &own));
    RS_TRY(rs_twophase_gradients(state, memory, gradients));
    RS_TRY(rs_muon_runs(state, optimizer, (float *)(void *)((char *)memory + own), directions));
    *bytes = own + rs_runs_elements(directions) * (int64_t)sizeof(float);
    if (count == 0)
        return RS_OK;
    rs_mirrored_work *works = rs_calloc((size_t)count, sizeof *works);
    if (works == NULL)
        return rs_error_memory((size_t)count * sizeof *works);
    rs_status status = rs_twophase_mirrored(state, optimizer, memory, works);
    for (int i = 0; i < count && status == RS_OK; i++) {
        status = add_mirrored(state, optimizer, &works[i], false, gradients);
        if (status == RS_OK)
            status = add_mirrored(state, optimizer, &works[i], true, directions);
        *bytes += (works[i].gradient_count + works[i].direction_count) * (int64_t)sizeof(float);
    }
    free(works);
    rs_runs_sort(gradients, sizeof(float));
    rs_runs_sort(directions, sizeof(float));
    return status;
}

/* Bytes of a piece in the journal at most: of all roles. */
static int64_t journal_bytes(const rs_space *space, int64_t elements)
{
    int64_t bytes = 0;
    for (int role = 0; role < rs_space_role_count(space); role++)
        bytes += elements * (int64_t)rs_dtype_size(rs_space_role(space, role)->dtype);
    return bytes;
}

static rs_status shape_of(
    const rs_state *state, const rs_optimizer *optimizer, int slots, rs_ledger_shape *out)
{
    rs_runs gradients = {0}, directions = {0};
    int64_t bytes = 0;
    rs_status status = rs_twophase_work(state, optimizer, NULL, &gradients, &directions, &bytes);
    *out = (rs_ledger_shape){.work_bytes = bytes,
        .slots = slots < MAX_SLOTS ? slots : MAX_SLOTS,
        .slot_bytes = journal_bytes(state->space, RS_UPDATE_PIECE)};
    rs_runs_fini(&gradients);
    rs_runs_fini(&directions);
    return status;
}

rs_train_step rs_step_line(const rs_step_note *note, int64_t steps, const char *layout)
{
    return (rs_train_step){.step = note->rate.step,
        .steps = steps,
        .loss = note->loss,
        .tokens = note->tokens,
        .seconds = note->seconds,
        .layout = layout,
        .samples = note->samples,
        .lr = note->lr,
        .grad_norm = note->grad_norm,
        .time = note->time,
        .experts = note->experts,
        .aux_loss = note->aux_loss,
        .close = note->close};
}

rs_status rs_twophase_bytes(
    const rs_state *state, const rs_optimizer *optimizer, int slots, int64_t *bytes)
{
    *bytes = 0;
    if (!state->holds)
        return RS_OK;
    rs_ledger_shape shape;
    RS_TRY(shape_of(state, optimizer, slots, &shape));
    return rs_ledger_bytes(&shape, bytes);
}

rs_status rs_twophase_begin(rs_state *state, const rs_optimizer *optimizer, rs_keeper *keeper,
    int generation, int slots, bool sparse)
{
    if (!state->holds)
        return RS_OK;
    rs_ledger_shape shape;
    RS_TRY(shape_of(state, optimizer, slots, &shape));
    return rs_ledger_create(keeper, generation, state->rank, &shape, sparse, &state->ledger);
}

rs_status rs_twophase_attach(
    rs_state *state, const rs_optimizer *optimizer, rs_keeper *keeper, int generation)
{
    if (!state->holds)
        return RS_OK;
    RS_TRY(rs_state_open(state, keeper, generation));
    RS_TRY(rs_ledger_open(keeper, generation, state->rank, true, &state->ledger));
    rs_ledger_shape wanted;
    RS_TRY(shape_of(state, optimizer, 1, &wanted));
    const rs_ledger_shape *found = rs_ledger_shape_of(state->ledger);
    if (found->work_bytes != wanted.work_bytes || found->slot_bytes != wanted.slot_bytes)
        return rs_error_set(RS_ERR_MISMATCH,
            "the ledger of rank %d is that of another model or version: %lld bytes of gradients, "
            "wanted %lld",
            state->rank, (long long)found->work_bytes, (long long)wanted.work_bytes);
    return RS_OK;
}

void rs_twophase_ready(const rs_state *state, const rs_step_note *note)
{
    if (state->ledger == NULL)
        return;
    rs_crash_point("note");
    rs_ledger_write_note(state->ledger, note->rate.step, note, sizeof *note);
    rs_crash_point("ready");
    rs_ledger_set(state->ledger, RS_LEDGER_READY, note->rate.step);
    rs_crash_point("barrier");
}

void rs_twophase_stepped(const rs_state *state, int64_t step)
{
    rs_crash_point("stepped");
    if (state->ledger != NULL)
        rs_ledger_set(state->ledger, RS_LEDGER_STEP, step);
    rs_crash_point("derive");
}

void rs_twophase_derived(const rs_state *state, int64_t step)
{
    rs_crash_point("derived");
    if (state->ledger != NULL)
        rs_ledger_set(state->ledger, RS_LEDGER_DERIVED, step);
}

/* ---- the journal ---- */

/* Where a piece of a role lies whose old bytes have to be kept; NULL: there is none, or it follows
 * from another role. */
static void *journalled(const rs_state *state, int tensor, int role, int64_t begin)
{
    const rs_roles *roles = &state->roles;
    bool follows = role == roles->param && roles->master >= 0 &&
                   rs_space_dtype(state->space, tensor, roles->master) != RS_DTYPE_NONE;
    return follows ? NULL : rs_state_element(state, role, begin);
}

void rs_journal_save(const rs_state *state, int tensor, int64_t begin, int64_t count, void *journal)
{
    char *at = journal;
    for (int role = 0; role < rs_space_role_count(state->space); role++) {
        const void *data = journalled(state, tensor, role, begin);
        size_t bytes = (size_t)count * rs_dtype_size(rs_space_role(state->space, role)->dtype);
        if (data == NULL)
            continue;
        memcpy(at, data, bytes);
        at += bytes;
    }
}

void rs_journal_restore(
    const rs_state *state, int tensor, int64_t begin, int64_t count, const void *journal)
{
    const char *at = journal;
    for (int role = 0; role < rs_space_role_count(state->space); role++) {
        void *data = journalled(state, tensor, role, begin);
        size_t bytes = (size_t)count * rs_dtype_size(rs_space_role(state->space, role)->dtype);
        if (data == NULL)
            continue;
        memcpy(data, at, bytes);
        at += bytes;
    }
}
