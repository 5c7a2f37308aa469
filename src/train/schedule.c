/*
 * 1F1B (PipeDream-Flush) and its interleaved form (Narayanan et al., arXiv 2104.04473), for any
 * number of micro-batches.
 *
 * Every rank plays the whole pipeline through, in ticks of one pass: at each tick each rank does
 * the next forward pass, if what it needs is there and the rank may open one more, else the next
 * backward pass, if what that needs is there. The order in which a rank did its passes is its
 * schedule. Micro-batches go in rounds of pp (the last round may be short); in each round a rank
 * does all of them on its first chunk, then on the next; backward from the last chunk to the first.
 *
 * 1. Something is done at every tick: the first backward pass, in the order of rounds, that is not
 * done everywhere needs forward passes that make (chunks - 1) * pp + 1 open ones on a rank at most,
 * and each rank may open as many.
 * 2. No deadlock, if ranks do their passes in this order, receive when a pass begins and send
 * without waiting: what a pass needs was sent at an earlier tick, so the unfinished pass of the
 * least tick can always be done. A buffer is used again only when the message in it was received at
 * an earlier tick than that of the pass that fills it.
 * 3. The order depends on pp, chunks and the number of micro-batches alone: ranks at the same place
 * of all replicas do the same passes in the same order.
 *
 * Cost: passes of all ranks, a few numbers each; memory 2 numbers a stage and micro-batch.
 */
#include "train/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

#define NEVER INT64_MAX

typedef struct play {
    int pp;
    int chunks;
    int stages;
    int64_t micros;
    int64_t passes;  /* of a rank, each way */
    int64_t *done;   /* [backward][stage][micro] the tick of a pass */
    int64_t *next;   /* [backward][rank] */
    rs_turn *record; /* of the rank asked for */
    size_t recorded;
} play;

static int64_t *done_at(const play *p, bool backward, int stage, int64_t micro)
{
    return &p->done[((backward ? p->stages : 0) + stage) * p->micros + micro];
}

/* Pass number `index` of any rank. */
static rs_turn turn_of(const play *p, bool backward, int64_t index)
{
    int64_t round = index / ((int64_t)p->pp * p->chunks);
    int64_t first = round * p->pp;
    int64_t size = rs_min64(p->pp, p->micros - first);
    int64_t place = index - first * p->chunks;
    int chunk = (int)(place / size);
    return (rs_turn){first + place % size, backward ? p->chunks - 1 - chunk : chunk, backward};
}

/* The stage whose pass of the same micro-batch makes what this one reads; -1: none. */
static int source_of(const play *p, int stage, bool backward)
{
    if (backward)
        return stage + 1 < p->stages ? stage + 1 : -1;
    return stage - 1;
}

static bool is_ready(const play *p, int rank, const rs_turn *turn, int64_t tick)
{
    int stage = turn->chunk * p->pp + rank;
    int source = source_of(p, stage, turn->backward);
    if (turn->backward && *done_at(p, false, stage, turn->micro) >= tick)
        return false;
    return source < 0 || *done_at(p, turn->backward, source, turn->micro) < tick;
}

/* Forward passes that a rank may have open. */
static int64_t open_passes(const play *p, int rank)
{
    if (p->chunks == 1)
        return p->pp - rank;
    return 2 * (p->pp - rank - 1) + (int64_t)(p->chunks - 1) * p->pp + 1;
}

/* What `rank` does at `tick`; false: nothing. */
static bool take_turn(play *p, int rank, int64_t tick, bool record)
{
    int64_t *forward = &p->next[rank], *backward = &p->next[p->pp + rank];
    rs_turn turn = {0};
    bool found = false;
    if (*forward < p->passes && *forward - *backward < open_passes(p, rank)) {
        turn = turn_of(p, false, *forward);
        found = is_ready(p, rank, &turn, tick);
    }
    if (!found && *backward < p->passes) {
        turn = turn_of(p, true, *backward);
        found = is_ready(p, rank, &turn, tick);
    }
    if (!found)
        return false;
    *done_at(p, turn.backward, turn.chunk * p->pp + rank, turn.micro) = tick;
    ++*(turn.backward ? backward : forward);
    if (record)
        p->record[p->recorded++] = turn;
    return true;
}

static rs_status run(play *p, int rank)
{
    int64_t left = 2 * p->passes * p->pp;
    for (int64_t tick = 0; left > 0; tick++) {
        int64_t before = left;
        for (int r = 0; r < p->pp; r++)
            left -= take_turn(p, r, tick, r == rank);
        if (left == before)
            return rs_error_set(RS_ERR_ARGUMENT,
                "schedule: %d stages and %lld micro-batches cannot be put in an order", p->stages,
                (long long)p->micros);
    }
    return RS_OK;
}

/* Passes of a chunk whose backward pass is to come, at most. */
static int most_open(const play *p, int chunk)
{
    int open = 0, most = 1;
    for (size_t i = 0; i < p->recorded; i++) {
        if (p->record[i].chunk != chunk)
            continue;
        open += p->record[i].backward ? -1 : 1;
        most = open > most ? open : most;
    }
    return most;
}

/* When what `turn` of `rank` makes is received; -1: nowhere. */
static int64_t received_at(const play *p, int rank, const rs_turn *turn)
{
    int stage = turn->chunk * p->pp + rank;
    int reader = turn->backward ? stage - 1 : stage + 1;
    if (reader < 0 || reader >= p->stages)
        return -1;
    return *done_at(p, turn->backward, reader, turn->micro);
}

/* Whether `buffers` are enough: message k - buffers was received before message k is made. */
static bool is_enough(const int64_t *received, const int64_t *sent, size_t count, size_t buffers)
{
    for (size_t k = buffers; k < count; k++)
        if (received[k - buffers] >= sent[k])
            return false;
    return true;
}

static rs_status count_buffers(const play *p, int rank, int *out)
{
    int64_t *times = rs_calloc(2 * p->recorded, sizeof *times);
    if (times == NULL)
        return rs_error_memory(2 * p->recorded * sizeof *times);
    int64_t *received = times, *sent = times + p->recorded;
    size_t count = 0, buffers = 1;
    for (size_t i = 0; i < p->recorded; i++) {
        const rs_turn *turn = &p->record[i];
        int64_t at = received_at(p, rank, turn);
        if (at < 0)
            continue;
        received[count] = at;
        sent[count++] = *done_at(p, turn->backward, turn->chunk * p->pp + rank, turn->micro);
    }
    while (!is_enough(received, sent, count, buffers))
        buffers++;
    free(times);
    *out = (int)buffers;
    return RS_OK;
}

rs_status rs_schedule_init(int pp, int rank, int chunks, int64_t micro_batches, rs_schedule *out)
{
    memset(out, 0, sizeof *out);
    play p = {pp, chunks, pp * chunks, micro_batches, micro_batches * chunks, NULL, NULL, NULL, 0};
    size_t cells = 2 * (size_t)p.stages * (size_t)micro_batches, passes = 2 * (size_t)p.passes;
    rs_status status;
    p.done = rs_calloc(cells, sizeof *p.done);
    p.next = rs_calloc(2 * (size_t)pp, sizeof *p.next);
    p.record = rs_calloc(passes, sizeof *p.record);
    out->slots = rs_calloc((size_t)chunks, sizeof *out->slots);
    if (p.done == NULL || p.next == NULL || p.record == NULL || out->slots == NULL) {
        status = rs_error_memory(cells * sizeof *p.done);
        goto done;
    }
    for (size_t i = 0; i < cells; i++)
        p.done[i] = NEVER;
    RS_TRY_GOTO(run(&p, rank), done);
    RS_TRY_GOTO(count_buffers(&p, rank, &out->buffers), done);
    for (int c = 0; c < chunks; c++)
        out->slots[c] = most_open(&p, c);
    out->chunks = chunks;
    out->turns = p.record;
    out->count = p.recorded;
    p.record = NULL;
done:
    free(p.record);
    free(p.next);
    free(p.done);
    return status;
}

void rs_schedule_fini(rs_schedule *schedule)
{
    free(schedule->turns);
    free(schedule->slots);
    memset(schedule, 0, sizeof *schedule);
}
