/*
 * A step's passes, in the order of the schedule, over MPI messages.
 *
 * Every rank of a stage sends what it has of the activation (the whole one, with sp and cp its
 * rows) to the rank of the next stage that has the same: the next pipeline rank, or, behind the
 * last one, the first, which may be this rank itself.
 *
 * 1. Receives block, sends do not: a send is waited for when its buffer comes round again, by when
 * the schedule has it received (schedule.h).
 * 2. A stage's messages of one direction are received in the order in which they were sent, that of
 * micro-batches; each stage has tags of its own.
 * 3. All replicas take as many turns, those with fewer micro-batches some without any: what ranks
 * of several replicas do together (gathering parameters, reducing gradients) they do in the same
 * order.
 *
 * Memory: a ring of sent activations and one receive buffer, each of a micro-batch's rows on this
 * rank.
 */
#include "train/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/comm.h"
#include "train/sequence.h"

#define TAG_STAGE 1000 /* and two for each chunk */

struct rs_pipeline {
    rs_pipeline_setup setup;
    int64_t first; /* micro-batches of this replica */
    int64_t count;
    int64_t width;         /* floats of the largest activation */
    int64_t sent;          /* activations, in this step */
    MPI_Request *requests; /* of the buffers that they are sent from */
    float *memory;
    uint8_t *tokens;
    uint8_t *targets;
};

int64_t rs_pipeline_turns(const rs_world *world, int64_t global_batch, int64_t micro_batch)
{
    int64_t first, count;
    rs_batch_deal(global_batch, micro_batch, world->layout.dp, 0, &first, &count);
    return count;
}

rs_status rs_pipeline_create(const rs_pipeline_setup *setup, rs_pipeline **out)
{
    rs_status status = RS_OK;
    rs_pipeline *p = rs_calloc(1, sizeof *p);
    if (p == NULL)
        return rs_error_memory(sizeof *p);
    const rs_world *world = setup->world;
    int buffers = setup->schedule->buffers;
    bool sends = world->layout.pp * setup->schedule->chunks > 1;
    p->setup = *setup;
    rs_batch_deal(setup->global_batch, setup->micro_batch, world->layout.dp, world->at.dp,
        &p->first, &p->count);
    int64_t tokens = setup->micro_batch * setup->seq;
    p->width = rs_stage_rows(&setup->chunks[0].shape, setup->micro_batch) * setup->hidden;
    if (p->width > RS_COMM_FLOATS) {
        status = rs_error_set(RS_ERR_UNSUPPORTED,
            "a micro-batch of %lld sequences of %lld tokens is too large for one message",
            (long long)setup->micro_batch, (long long)setup->seq);
        goto fail;
    }
    size_t floats = ((size_t)buffers + 1) * (size_t)p->width;
    if (sends)
        p->memory = rs_calloc(floats, sizeof *p->memory);
    p->tokens = rs_calloc(2 * (size_t)tokens, 1);
    p->requests = rs_calloc((size_t)buffers, sizeof(MPI_Request));
    if (p->tokens == NULL || p->requests == NULL || (sends && p->memory == NULL)) {
        status = rs_error_memory(floats * sizeof *p->memory);
        goto fail;
    }
    p->targets = p->tokens + tokens;
    for (int i = 0; i < buffers; i++)
        p->requests[i] = MPI_REQUEST_NULL;
    *out = p;
    return RS_OK;

fail:
    rs_pipeline_destroy(p);
    return status;
}

void rs_pipeline_destroy(rs_pipeline *p)
{
    if (p == NULL)
        return;
    free(p->requests);
    free(p->memory);
    free(p->tokens);
    free(p);
}

/* ---- messages ---- */

/* A message between a stage and the one before it: what the later one reads forward, and sends back
 * backward. The stages' ranks differ by `step` round the pipeline. */
static int neighbour(const rs_pipeline *p, int step)
{
    int pp = p->setup.world->layout.pp;
    return rs_world_at_stage(p->setup.world, (p->setup.world->at.pp + step + pp) % pp);
}

static int tag_of(const rs_pipeline *p, int stage, bool backward)
{
    return TAG_STAGE + 2 * (stage / p->setup.world->layout.pp) + backward;
}

/* The next buffer to write to, once its last send is over. */
static float *next_buffer(const rs_pipeline *p)
{
    int64_t slot = p->sent % p->setup.schedule->buffers;
    MPI_Wait(&p->requests[slot], MPI_STATUS_IGNORE);
    return p->memory + (slot + 1) * p->width;
}

/* Sends that buffer to the pipeline rank `step` further. */
static void send_buffer(rs_pipeline *p, int step, int tag, int64_t count)
{
    int64_t slot = p->sent++ % p->setup.schedule->buffers;
    rs_comm_post_floats(p->setup.world->all, neighbour(p, step), tag,
        p->memory + (slot + 1) * p->width, count, &p->requests[slot]);
}

static float *receive(const rs_pipeline *p, int step, int tag, int64_t count)
{
    rs_comm_receive_floats(p->setup.world->all, neighbour(p, step), tag, p->memory, count);
    return p->memory;
}

/* ---- passes ---- */

/* Floats of an activation on this rank, and the tokens and targets of its own. */
static int64_t floats_of(const rs_pipeline *p, int64_t batch)
{
    return rs_stage_rows(&p->setup.chunks[0].shape, batch) * p->setup.hidden;
}

static rs_status read_tokens(rs_pipeline *p, int64_t sample, int64_t batch)
{
    const rs_stage_shape *shape = &p->setup.chunks[0].shape;
    rs_sequence sequence = {p->setup.seq, shape->cp_ranks, shape->cp_rank};
    RS_TRY(rs_data_read(p->setup.data, sample, batch, p->tokens, p->targets));
    rs_sequence_pick(&sequence, batch, p->tokens, p->tokens);
    rs_sequence_pick(&sequence, batch, p->targets, p->targets);
    return RS_OK;
}

/* Sequences of this replica's micro-batch `number` (from 0; behind the last they are empty), and
 * its first sample. */
static int64_t micro_batch(const rs_pipeline *p, int64_t step, int64_t number, int64_t *sample)
{
    int64_t begin, end;
    *sample = 0;
    if (number >= p->count)
        return 0;
    rs_batch_range(p->setup.global_batch, p->setup.micro_batch, p->first + number, &begin, &end);
    *sample = (step - 1) * p->setup.global_batch + begin;
    return end - begin;
}

static rs_status forward(rs_pipeline *p, int64_t step, const rs_turn *turn, double *loss_sum)
{
    const rs_pipeline_setup *s = &p->setup;
    const rs_chunk *chunk = &s->chunks[turn->chunk];
    bool first = chunk->shape.first, last = chunk->shape.last;
    int stage = turn->chunk * s->world->layout.pp + s->world->at.pp;
    int slot = (int)(turn->micro % s->schedule->slots[turn->chunk]);
    int64_t sample, batch = micro_batch(p, step, turn->micro, &sample);
    int64_t floats = floats_of(p, batch);
    double loss = 0;
    if (first || last)
        RS_TRY(read_tokens(p, sample, batch));
    rs_crash_point("forward");
    const float *input = first ? NULL : receive(p, -1, tag_of(p, stage, false), floats);
    float *output = last ? NULL : next_buffer(p);
    rs_stage_place(chunk->stage, slot, step, sample - (step - 1) * s->global_batch);
    RS_TRY(rs_stage_forward(
        chunk->stage, &chunk->weights, slot, batch, p->tokens, p->targets, input, output, &loss));
    if (!last)
        send_buffer(p, 1, tag_of(p, stage + 1, false), floats);
    if (s->watch != NULL)
        RS_TRY(rs_moe_watch_pass(
            s->watch, &chunk->shape, chunk->stage, sample - (step - 1) * s->global_batch, slot));
    *loss_sum += loss;
    return RS_OK;
}

static rs_status backward(rs_pipeline *p, int64_t step, const rs_turn *turn)
{
    const rs_pipeline_setup *s = &p->setup;
    const rs_chunk *chunk = &s->chunks[turn->chunk];
    bool first = chunk->shape.first, last = chunk->shape.last;
    int stage = turn->chunk * s->world->layout.pp + s->world->at.pp;
    int slot = (int)(turn->micro % s->schedule->slots[turn->chunk]);
    int64_t sample, floats = floats_of(p, micro_batch(p, step, turn->micro, &sample));
    float scale = (float)(1.0 / ((double)s->global_batch * (double)s->seq));
    rs_crash_point("backward");
    const float *output = last ? NULL : receive(p, 1, tag_of(p, stage + 1, true), floats);
    float *input = first ? NULL : next_buffer(p);
    RS_TRY(rs_stage_backward(
        chunk->stage, &chunk->weights, &chunk->gradients, slot, scale, output, input));
    if (!first)
        send_buffer(p, -1, tag_of(p, stage, true), floats);
    return RS_OK;
}

rs_status rs_pipeline_run(rs_pipeline *p, int64_t step, double *loss_sum)
{
    const rs_schedule *schedule = p->setup.schedule;
    *loss_sum = 0;
    p->sent = 0;
    for (size_t i = 0; i < schedule->count; i++) {
        const rs_turn *turn = &schedule->turns[i];
        if (turn->backward)
            RS_TRY(backward(p, step, turn));
        else
            RS_TRY(forward(p, step, turn, loss_sum));
    }
    MPI_Waitall(schedule->buffers, p->requests, MPI_STATUSES_IGNORE);
    return RS_OK;
}
