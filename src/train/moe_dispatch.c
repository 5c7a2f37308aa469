/*
 * Dispatch: counting, ordering, packing.
 *
 * One gathering of how many rows every rank has for every expert tells all ranks everything; the
 * rest is prefix sums. Three orders of rows: as sent (by expert, then by token), as received (by
 * rank, and of each as it sent them), and as computed (by expert, then by rank). The experts of an
 * ep index follow each other, so what is sent to a rank is one range of the rows, and the same
 * range goes to all etp ranks of that index.
 *
 * Invariants:
 * 1. Where several ep indices have an expert, rank s of the group sends to number s mod n of the n:
 * a rule that both sides know without talking.
 * 2. Orders depend on choices and ranks alone, so sums over rows repeat bit for bit.
 * 3. Memory grows to the largest pass and is kept: a router may send everything to one rank.
 *
 * Cost: each (token, expert) row goes once to each of etp ranks and comes back from each.
 */
#include "train/moe_dispatch.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

typedef struct buffer {
    float *data;
    int64_t capacity;
} buffer;

struct rs_dispatch {
    rs_dispatch_shape shape;
    rs_dispatch_group group;
    int ranks;
    int rank;
    int64_t local;           /* experts of this rank */
    int *holder;             /* [expert] first ep index that has it */
    int *holders;            /* [expert] how many have it */
    int64_t *bounds;         /* [2][ep], copied */
    int64_t *counts;         /* [rank][expert], gathered */
    int64_t *next;           /* [expert] scratch */
    rs_dispatch_part *parts; /* [rank] scratch */
    buffer wire;             /* rows as received, either way */
    buffer arrived;          /* rows as computed */
    buffer room;             /* what goes back, as computed */
};

static rs_status reserve(buffer *b, int64_t rows, int64_t width)
{
    int64_t floats;
    if (!rs_mul_fits(rows, width, &floats) || floats > INT64_MAX / (int64_t)sizeof(float))
        return rs_error_set(
            RS_ERR_OVERFLOW, "%" PRId64 " rows for experts do not fit 64 bits", rows);
    if (b->data != NULL && floats <= b->capacity)
        return RS_OK;
    int64_t capacity = floats + floats / 4;
    free(b->data);
    b->capacity = 0;
    b->data = rs_calloc((size_t)capacity, sizeof *b->data);
    if (b->data == NULL)
        return rs_error_memory((size_t)capacity * sizeof *b->data);
    b->capacity = capacity;
    return RS_OK;
}

/* The ep index to which rank `source` sends rows for an expert. */
static int index_for(const rs_dispatch *d, int source, int64_t expert)
{
    return d->holder[expert] + source % d->holders[expert];
}

static rs_status find_holders(rs_dispatch *d)
{
    for (int64_t e = 0; e < d->shape.experts; e++) {
        for (int i = 0; i < d->shape.ep; i++) {
            if (e < d->shape.begin[i] || e >= d->shape.end[i])
                continue;
            if (d->holders[e]++ == 0)
                d->holder[e] = i;
        }
        if (d->holders[e] == 0)
            return rs_error_set(RS_ERR_ARGUMENT, "no rank of the group has expert %" PRId64, e);
    }
    return RS_OK;
}

rs_status rs_dispatch_create(
    const rs_dispatch_shape *shape, const rs_dispatch_group *group, rs_dispatch **out)
{
    rs_status status = RS_OK;
    size_t experts = (size_t)shape->experts;
    size_t ep = (size_t)shape->ep;
    rs_dispatch *d = rs_calloc(1, sizeof *d);
    if (d == NULL)
        return rs_error_memory(sizeof *d);
    d->shape = *shape;
    if (group != NULL)
        d->group = *group;
    d->ranks = shape->etp * shape->ep;
    d->rank = shape->etp_rank + shape->etp * shape->ep_rank;
    d->local = shape->end[shape->ep_rank] - shape->begin[shape->ep_rank];
    d->holder = rs_calloc(experts, sizeof *d->holder);
    d->holders = rs_calloc(experts, sizeof *d->holders);
    d->bounds = rs_calloc(2 * ep, sizeof *d->bounds);
    d->counts = rs_calloc((size_t)d->ranks * experts, sizeof *d->counts);
    d->next = rs_calloc(experts + 1, sizeof *d->next);
    d->parts = rs_calloc((size_t)d->ranks, sizeof *d->parts);
    if (d->holder == NULL || d->holders == NULL || d->bounds == NULL || d->counts == NULL ||
        d->next == NULL || d->parts == NULL) {
        status = rs_error_memory((size_t)d->ranks * experts * sizeof *d->counts);
        goto fail;
    }
    memcpy(d->bounds, shape->begin, ep * sizeof *d->bounds);
    memcpy(d->bounds + ep, shape->end, ep * sizeof *d->bounds);
    d->shape.begin = d->bounds;
    d->shape.end = d->bounds + ep;
    RS_TRY_GOTO(find_holders(d), fail);
    *out = d;
    return RS_OK;

fail:
    rs_dispatch_destroy(d);
    return status;
}

void rs_dispatch_destroy(rs_dispatch *d)
{
    if (d == NULL)
        return;
    free(d->wire.data);
    free(d->arrived.data);
    free(d->room.data);
    free(d->parts);
    free(d->next);
    free(d->counts);
    free(d->bounds);
    free(d->holders);
    free(d->holder);
    free(d);
}

/* ---- plans ---- */

void rs_dispatch_plan_fini(rs_dispatch_plan *plan)
{
    free(plan->items);
    free(plan->per);
    free(plan->expert);
    free(plan->to);
    free(plan->from);
    memset(plan, 0, sizeof *plan);
}

static rs_status make_room(const rs_dispatch *d, int64_t count, rs_dispatch_plan *plan)
{
    size_t ranks = (size_t)d->ranks;
    if (plan->per == NULL) {
        plan->per = rs_calloc(ranks * (size_t)d->local, sizeof *plan->per);
        plan->expert = rs_calloc((size_t)d->local + 1, sizeof *plan->expert);
        plan->to = rs_calloc(ranks, sizeof *plan->to);
        plan->from = rs_calloc(ranks, sizeof *plan->from);
        if (plan->per == NULL || plan->expert == NULL || plan->to == NULL || plan->from == NULL)
            return rs_error_memory(ranks * (size_t)d->local * sizeof *plan->per);
    }
    if (count > plan->items_capacity) {
        free(plan->items);
        plan->items_capacity = 0;
        plan->items = rs_calloc((size_t)count, sizeof *plan->items);
        if (plan->items == NULL)
            return rs_error_memory((size_t)count * sizeof *plan->items);
        plan->items_capacity = count;
    }
    return RS_OK;
}

/* Orders the choices by expert, and finds the range that goes to each rank. */
static void plan_sending(rs_dispatch *d, int64_t first, int64_t count, const int32_t *choice,
    const int64_t *mine, rs_dispatch_plan *plan)
{
    int64_t at = 0;
    memset(plan->to, 0, (size_t)d->ranks * sizeof *plan->to);
    for (int64_t e = 0; e < d->shape.experts; e++) {
        int index = index_for(d, d->rank, e);
        for (int i = 0; i < d->shape.etp; i++) {
            rs_dispatch_part *to = &plan->to[index * d->shape.etp + i];
            to->first = to->count > 0 ? to->first : at;
            to->count += mine[e];
        }
        d->next[e] = at;
        at += mine[e];
    }
    plan->sent = at;
    for (int64_t i = 0; i < count; i++)
        plan->items[d->next[choice[i]]++] = first + i;
}

static void plan_receiving(const rs_dispatch *d, rs_dispatch_plan *plan)
{
    int64_t first = d->shape.begin[d->shape.ep_rank];
    plan->received = 0;
    memset(plan->expert, 0, ((size_t)d->local + 1) * sizeof *plan->expert);
    for (int r = 0; r < d->ranks; r++) {
        int64_t *per = plan->per + r * d->local;
        plan->from[r] = (rs_dispatch_part){.first = plan->received};
        for (int64_t x = 0; x < d->local; x++) {
            bool here = index_for(d, r, first + x) == d->shape.ep_rank;
            per[x] = here ? d->counts[r * d->shape.experts + first + x] : 0;
            plan->from[r].count += per[x];
            plan->expert[x + 1] += per[x];
        }
        plan->received += plan->from[r].count;
    }
    for (int64_t x = 0; x < d->local; x++)
        plan->expert[x + 1] += plan->expert[x];
}

rs_status rs_dispatch_make_plan(
    rs_dispatch *d, int64_t first, int64_t count, const int32_t *choice, rs_dispatch_plan *plan)
{
    RS_TRY(make_room(d, count, plan));
    int64_t *mine = d->counts + d->rank * d->shape.experts;
    if (d->group.gather != NULL) {
        /* The gathering writes all of `counts`, so what it reads stands elsewhere. */
        memset(d->next, 0, (size_t)d->shape.experts * sizeof *d->next);
        for (int64_t i = 0; i < count; i++)
            d->next[choice[i]]++;
        RS_TRY(d->group.gather(d->group.context, d->next, d->shape.experts, d->counts));
    } else {
        memset(mine, 0, (size_t)d->shape.experts * sizeof *mine);
        for (int64_t i = 0; i < count; i++)
            mine[choice[i]]++;
    }
    plan_sending(d, first, count, choice, mine, plan);
    plan_receiving(d, plan);
    if (plan->received > INT_MAX)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "%" PRId64 " rows for this rank's experts, a matrix product takes up to %d",
            plan->received, INT_MAX);
    return RS_OK;
}

/* ---- rows ---- */

/* Between rows as received and rows as computed. */
static void reorder(const rs_dispatch *d, const rs_dispatch_plan *plan, int64_t width,
    float *received, float *computed, bool compute)
{
    float *row = received;
    memcpy(d->next, plan->expert, (size_t)d->local * sizeof *d->next);
    for (int r = 0; r < d->ranks; r++)
        for (int64_t x = 0; x < d->local; x++) {
            int64_t n = plan->per[r * d->local + x];
            float *place = computed + d->next[x] * width;
            if (n > 0 && compute)
                memcpy(place, row, (size_t)(n * width) * sizeof *row);
            else if (n > 0)
                memcpy(row, place, (size_t)(n * width) * sizeof *row);
            d->next[x] += n;
            row += n * width;
        }
}

/* What stays here is copied. */
static rs_status exchange(const rs_dispatch *d, const rs_dispatch_part *send, const float *from,
    const rs_dispatch_part *receive, float *to, int64_t width)
{
    const rs_dispatch_part *own = &send[d->rank];
    if (own->count > 0)
        memcpy(to + receive[d->rank].first * width, from + own->first * width,
            (size_t)(own->count * width) * sizeof *to);
    if (d->group.exchange == NULL)
        return RS_OK;
    return d->group.exchange(d->group.context, send, from, receive, to, width);
}

rs_status rs_dispatch_out(
    rs_dispatch *d, const rs_dispatch_plan *plan, const float *rows, int64_t width, float **arrived)
{
    RS_TRY(reserve(&d->wire, plan->received, width));
    RS_TRY(reserve(&d->arrived, plan->received, width));
    RS_TRY(exchange(d, plan->to, rows, plan->from, d->wire.data, width));
    reorder(d, plan, width, d->wire.data, d->arrived.data, true);
    *arrived = d->arrived.data;
    return RS_OK;
}

rs_status rs_dispatch_room(
    rs_dispatch *d, const rs_dispatch_plan *plan, int64_t width, float **room)
{
    RS_TRY(reserve(&d->room, plan->received, width));
    *room = d->room.data;
    return RS_OK;
}

rs_status rs_dispatch_back(
    rs_dispatch *d, const rs_dispatch_plan *plan, int64_t width, float **returned)
{
    int64_t rows;
    if (!rs_mul_fits(plan->sent, d->shape.etp, &rows))
        return rs_error_set(RS_ERR_OVERFLOW, "%" PRId64 " rows do not fit 64 bits", plan->sent);
    RS_TRY(reserve(&d->wire, plan->received, width));
    RS_TRY(reserve(&d->arrived, rows, width));
    reorder(d, plan, width, d->wire.data, d->room.data, false);
    for (int r = 0; r < d->ranks; r++) {
        d->parts[r] = plan->to[r];
        d->parts[r].first += r % d->shape.etp * plan->sent;
    }
    RS_TRY(exchange(d, plan->from, d->wire.data, d->parts, d->arrived.data, width));
    *returned = d->arrived.data;
    return RS_OK;
}

int64_t rs_dispatch_bytes(const rs_dispatch *d)
{
    return (d->wire.capacity + d->arrived.capacity + d->room.capacity) * (int64_t)sizeof(float);
}
