/*
 * The 1F1B schedule (PipeDream-Flush; Narayanan et al., arXiv 2104.04473) over MPI messages.
 *
 * Stage p of P does min(n, P - p) forward passes, then one backward and one forward in turn, then
 * the backward passes that are left; so at most P - p micro-batches are in flight on it. Every tp
 * rank of a stage has the whole activation and sends it to the same tp rank of the next stage.
 *
 * 1. Receives block, sends do not: a send is waited for when its buffer comes round again, after
 *    `ring` further ones. With ring >= slots that wait never closes a circle: a stage that has
 * reached forward pass j has seen the backward pass of j - slots, which the next stage can only
 * have sent after it received forward j - slots.
 * 2. Messages of one direction between two ranks are received in the order in which they were sent,
 * so one tag per direction is enough.
 * 3. All replicas take as many turns, those with fewer micro-batches some without any: what ranks
 * of several replicas do together (gathering parameters, reducing gradients) they do in the same
 * order.
 *
 * Memory: 2 rings of sent activations and one receive buffer, each [micro-batch, seq, hidden]
 * floats.
 */
#include "train/pipeline.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "train/comm.h"

#define TAG_FORWARD 81
#define TAG_BACKWARD 82

/* Buffers sent in turn to one neighbour. */
typedef struct ring {
    int peer; /* MPI_PROC_NULL: there is no neighbour */
    int tag;
    int64_t sent;
    float **buffers;
    MPI_Request *requests;
} ring;

struct rs_pipeline {
    rs_pipeline_setup setup;
    int64_t first; /* micro-batches of this replica */
    int64_t count;
    int64_t turns; /* of every replica */
    int64_t width; /* floats of the largest activation */
    int depth;     /* buffers of a ring */
    ring forward;  /* to the next stage */
    ring backward; /* to the one before */
    float *received;
    float *memory;
    uint8_t *tokens;
    uint8_t *targets;
};

/* Turns of every replica: as many as the first has micro-batches, which has most. */
static int64_t turns(const rs_world *world, int64_t global_batch, int64_t micro_batch)
{
    int64_t first, count;
    rs_batch_deal(global_batch, micro_batch, world->layout.dp, 0, &first, &count);
    return count;
}

int rs_pipeline_slots(const rs_world *world, int64_t global_batch, int64_t micro_batch)
{
    int64_t count = turns(world, global_batch, micro_batch);
    return (int)rs_max64(1, rs_min64(count, world->layout.pp - world->at.pp));
}

static rs_status make_ring(rs_pipeline *p, int stage, int tag, float **memory, ring *out)
{
    const rs_world *world = p->setup.world;
    out->tag = tag;
    out->peer = MPI_PROC_NULL;
    if (stage < 0 || stage >= world->layout.pp)
        return RS_OK;
    out->peer = rs_world_at_stage(world, stage);
    out->buffers = rs_calloc((size_t)p->depth, sizeof *out->buffers);
    out->requests = rs_calloc((size_t)p->depth, sizeof *out->requests);
    if (out->buffers == NULL || out->requests == NULL)
        return rs_error_memory((size_t)p->depth * sizeof *out->buffers);
    for (int i = 0; i < p->depth; i++) {
        out->buffers[i] = *memory;
        out->requests[i] = MPI_REQUEST_NULL;
        *memory += p->width;
    }
    return RS_OK;
}

rs_status rs_pipeline_create(const rs_pipeline_setup *setup, rs_pipeline **out)
{
    rs_status status = RS_OK;
    rs_pipeline *p = rs_calloc(1, sizeof *p);
    if (p == NULL)
        return rs_error_memory(sizeof *p);
    const rs_world *world = setup->world;
    p->setup = *setup;
    p->forward.peer = p->backward.peer = MPI_PROC_NULL;
    rs_batch_deal(setup->global_batch, setup->micro_batch, world->layout.dp, world->at.dp,
        &p->first, &p->count);
    p->turns = turns(world, setup->global_batch, setup->micro_batch);
    int64_t tokens = setup->micro_batch * setup->seq;
    p->width = tokens * setup->hidden;
    p->depth = setup->slots + 1;
    if (p->width > RS_COMM_FLOATS) {
        status = rs_error_set(RS_ERR_UNSUPPORTED,
            "a micro-batch of %lld sequences of %lld tokens is too large for one message",
            (long long)setup->micro_batch, (long long)setup->seq);
        goto fail;
    }
    size_t floats = (2 * (size_t)p->depth + 1) * (size_t)p->width;
    if (world->layout.pp > 1)
        p->memory = rs_calloc(floats, sizeof *p->memory);
    p->tokens = rs_calloc(2 * (size_t)tokens, 1);
    if (p->tokens == NULL || (world->layout.pp > 1 && p->memory == NULL)) {
        status = rs_error_memory(floats * sizeof *p->memory);
        goto fail;
    }
    p->targets = p->tokens + tokens;
    p->received = p->memory;
    float *next = p->memory != NULL ? p->memory + p->width : NULL;
    RS_TRY_GOTO(make_ring(p, world->at.pp + 1, TAG_FORWARD, &next, &p->forward), fail);
    RS_TRY_GOTO(make_ring(p, world->at.pp - 1, TAG_BACKWARD, &next, &p->backward), fail);
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
    free(p->forward.buffers);
    free(p->forward.requests);
    free(p->backward.buffers);
    free(p->backward.requests);
    free(p->memory);
    free(p->tokens);
    free(p);
}

/* The next buffer to write to, once its last send is over; NULL where there is no neighbour. */
static float *ring_next(const rs_pipeline *p, ring *r)
{
    if (r->peer == MPI_PROC_NULL)
        return NULL;
    int slot = (int)(r->sent % p->depth);
    MPI_Wait(&r->requests[slot], MPI_STATUS_IGNORE);
    return r->buffers[slot];
}

static void ring_send(const rs_pipeline *p, ring *r, int64_t count)
{
    if (r->peer == MPI_PROC_NULL)
        return;
    int slot = (int)(r->sent++ % p->depth);
    rs_comm_post_floats(
        p->setup.world->all, r->peer, r->tag, r->buffers[slot], count, &r->requests[slot]);
}

/* What the neighbour `peer` of the other direction's ring sent; NULL where there is none. */
static float *receive(const rs_pipeline *p, int peer, int tag, int64_t count)
{
    if (peer == MPI_PROC_NULL)
        return NULL;
    rs_comm_receive_floats(p->setup.world->all, peer, tag, p->received, count);
    return p->received;
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

static rs_status forward(
    rs_pipeline *p, int64_t step, int64_t number, const rs_stage_tensors *weights, double *loss_sum)
{
    const rs_pipeline_setup *s = &p->setup;
    int64_t sample, batch = micro_batch(p, step, number, &sample);
    int64_t floats = batch * s->seq * s->hidden;
    bool first = p->backward.peer == MPI_PROC_NULL, last = p->forward.peer == MPI_PROC_NULL;
    double loss = 0;
    if (first || last)
        RS_TRY(rs_data_read(s->data, sample, batch, p->tokens, p->targets));
    const float *input = receive(p, p->backward.peer, TAG_FORWARD, floats);
    float *output = ring_next(p, &p->forward);
    RS_TRY(rs_stage_forward(s->stage, weights, (int)(number % s->slots), batch, p->tokens,
        p->targets, input, output, &loss));
    ring_send(p, &p->forward, floats);
    if (last)
        *loss_sum += loss;
    return RS_OK;
}

static rs_status backward(rs_pipeline *p, int64_t step, int64_t number,
    const rs_stage_tensors *weights, const rs_stage_tensors *gradients)
{
    const rs_pipeline_setup *s = &p->setup;
    int64_t sample, floats = micro_batch(p, step, number, &sample) * s->seq * s->hidden;
    float scale = (float)(1.0 / ((double)s->global_batch * (double)s->seq));
    const float *output_gradient = receive(p, p->forward.peer, TAG_BACKWARD, floats);
    float *input_gradient = ring_next(p, &p->backward);
    RS_TRY(rs_stage_backward(s->stage, weights, gradients, (int)(number % s->slots), scale,
        output_gradient, input_gradient));
    ring_send(p, &p->backward, floats);
    return RS_OK;
}

static void drain(const rs_pipeline *p, ring *r)
{
    if (r->peer != MPI_PROC_NULL)
        MPI_Waitall(p->depth, r->requests, MPI_STATUSES_IGNORE);
}

rs_status rs_pipeline_run(rs_pipeline *p, int64_t step, const rs_stage_tensors *weights,
    const rs_stage_tensors *gradients, double *loss_sum)
{
    int64_t ahead = p->setup.slots;
    *loss_sum = 0;
    for (int64_t i = 0; i < p->turns + ahead - 1; i++) {
        if (i < p->turns)
            RS_TRY(forward(p, step, i, weights, loss_sum));
        if (i >= ahead - 1)
            RS_TRY(backward(p, step, i - (ahead - 1), weights, gradients));
    }
    drain(p, &p->forward);
    drain(p, &p->backward);
    return RS_OK;
}
