/*
 * Rows on their way to experts and back: who sends which rows to whom, and in which order they lie.
 *
 * The ranks of a group (etp x ep of them, etp fastest) have the experts among them: the ranks of
 * one ep index the same experts, each some of their rows. A rank sends each of its (token, expert)
 * rows to the ranks of one ep index, all of them, and gets as many rows back from each; nothing is
 * dropped, however uneven. Usual order: rs_dispatch_plan, rs_dispatch_out, the experts' products,
 * rs_dispatch_back; the same plan serves the backward pass with the gradients of the rows.
 *
 * Collective over the group, whatever the number of rows: ranks without any take part in all calls.
 */
#ifndef RS_TRAIN_MOE_DISPATCH_H
#define RS_TRAIN_MOE_DISPATCH_H

#include <stdint.h>

#include "reshard/status.h"

/* Rows between this rank and one other: `count` from row `first` of a buffer on. */
typedef struct rs_dispatch_part {
    int64_t first;
    int64_t count;
} rs_dispatch_part;

/* The group. `gather` gives every rank everybody's `count` numbers, in the order of ranks.
 * `exchange` sends rows of `width` floats: part r of `send` to rank r, whose part for this rank
 * arrives as part r of `receive`; both sides know the counts. NULL where the group is one rank. */
typedef struct rs_dispatch_group {
    void *context;
    rs_status (*gather)(void *context, const int64_t *mine, int64_t count, int64_t *all);
    rs_status (*exchange)(void *context, const rs_dispatch_part *send, const float *from,
        const rs_dispatch_part *receive, float *to, int64_t width);
} rs_dispatch_group;

/* Experts begin[i] .. end[i]-1 are those of ep index i. Where several indices have one expert, each
 * rank sends to one of them, so that all work alike. */
typedef struct rs_dispatch_shape {
    int64_t experts;
    int etp;
    int ep;
    int etp_rank;
    int ep_rank;
    const int64_t *begin; /* [ep] */
    const int64_t *end;
} rs_dispatch_shape;

typedef struct rs_dispatch rs_dispatch;

/* `group` and `shape` are copied. The caller owns `*out`. Local. */
rs_status rs_dispatch_create(const rs_dispatch_shape *shape, const rs_dispatch_group *group,
    rs_dispatch **out) RS_MUST_CHECK;
void rs_dispatch_destroy(rs_dispatch *dispatch);

/* What is sent in one pass, and what comes. Starts as {0}; keeps its memory until
 * rs_dispatch_plan_fini. */
typedef struct rs_dispatch_plan {
    int64_t sent;     /* rows */
    int64_t *items;   /* [sent] number of the choice (token * chosen + j) that each row is of, by
                         expert, then by token */
    int64_t received; /* rows */
    int64_t *per;     /* [rank][local expert] rows that came from each rank for each expert */
    int64_t *expert;  /* [local experts + 1] where the rows of each begin */
    rs_dispatch_part *to;   /* [rank] of the rows sent */
    rs_dispatch_part *from; /* [rank] of the rows received, in the order of ranks */
    int64_t items_capacity;
} rs_dispatch_plan;

/* `choice` [count]: the experts of choices first .. first + count - 1 of a micro-batch. */
rs_status rs_dispatch_make_plan(rs_dispatch *dispatch, int64_t first, int64_t count,
    const int32_t *choice, rs_dispatch_plan *plan) RS_MUST_CHECK;
void rs_dispatch_plan_fini(rs_dispatch_plan *plan);

/* Sends `rows` [sent, width]; `*arrived` [received, width] is in the order of experts, and within
 * one in that of ranks and rows. It is lent until the next call. */
rs_status rs_dispatch_out(rs_dispatch *dispatch, const rs_dispatch_plan *plan, const float *rows,
    int64_t width, float **arrived) RS_MUST_CHECK;

/* Room for `width` floats of each received row, for what goes back. Lent, and read by
 * rs_dispatch_back. */
rs_status rs_dispatch_room(
    rs_dispatch *dispatch, const rs_dispatch_plan *plan, int64_t width, float **room) RS_MUST_CHECK;

/* Sends the room's rows back to where the rows came from; `*returned` [etp, sent, width] gets what
 * each of the ranks that had a row made of it. Lent until the next call. */
rs_status rs_dispatch_back(rs_dispatch *dispatch, const rs_dispatch_plan *plan, int64_t width,
    float **returned) RS_MUST_CHECK;

/* Bytes of the memory for rows that arrived, as they came, were computed and went back. */
int64_t rs_dispatch_bytes(const rs_dispatch *dispatch);

#endif
