/* Cutting a box of one tensor into pieces whose elements all have the same old and new holders. */
#ifndef RS_PLAN_PIECES_H
#define RS_PLAN_PIECES_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/box.h"
#include "reshard/placement.h"
#include "reshard/status.h"

/* The two sides of a cut. */
enum { RS_OLD = 0, RS_NEW = 1, RS_SIDES = 2 };

typedef struct rs_int_list {
    int *items;
    size_t count;
    size_t capacity;
} rs_int_list;

typedef struct rs_box_list {
    rs_box *items;
    size_t count;
    size_t capacity;
} rs_box_list;

/* A shard box of either placement, with those who have it. */
typedef struct rs_cover {
    rs_box box;
    size_t first[RS_SIDES]; /* its holders: ranks.items[first .. first + count - 1] */
    size_t count[RS_SIDES];
} rs_cover;

typedef struct rs_cover_list {
    rs_cover *items;
    size_t count;
    size_t capacity;
} rs_cover_list;

/* A box within the covers list.items[first .. first + count - 1], ascending, and apart from all
 * others. */
typedef struct rs_fragment {
    rs_box box;
    size_t first;
    size_t count;
} rs_fragment;

typedef struct rs_cut_task {
    rs_box box;
    size_t first;  /* of its covers in the stack's list */
    size_t inside; /* so many contain the box; the others are undecided */
    size_t count;
} rs_cut_task;

/* The state of one subdivision; starts as {0}, buffers are kept. */
typedef struct rs_cutter {
    rs_cut_task *tasks;
    size_t task_count;
    size_t task_capacity;
    rs_int_list stack;
    rs_int_list partial;
    rs_fragment *fragments;
    size_t fragment_count;
    size_t fragment_capacity;
    rs_int_list list;
} rs_cutter;

/* All elements of a tensor that lie in the same boxes of both placements. */
typedef struct rs_piece {
    size_t box_first; /* its disjoint boxes: boxes.items[box_first ..] */
    size_t box_count;
    int64_t elements;
    size_t first[RS_SIDES]; /* its holders, ascending: ranks.items[first ..] */
    size_t count[RS_SIDES];
} rs_piece;

/* The pieces of one cut and its buffers; starts as {0}. */
typedef struct rs_pieces {
    rs_piece *items;
    size_t count;
    size_t capacity;
    rs_box_list boxes;
    rs_int_list ranks;
    rs_holding_list held[RS_SIDES];
    rs_cover_list covers;
    rs_cutter cutter;
    rs_cutter inner; /* for pieces that are no box */
    rs_int_list order;
} rs_pieces;

void rs_pieces_fini(rs_pieces *pieces);

/*
 * Replaces the contents of `pieces` by the pieces of `query`, a box of `tensor`. Either placement
 * may be NULL: it has no holders then. `role` is used for both. Elements without any holder are in
 * no piece. If `query` is a shard of either placement, each piece is whole: whoever cuts a shard
 * box that it lies in gets the same piece with the same boxes in the same order. Of any other
 * query, pieces end at its border.
 */
rs_status rs_pieces_cut(rs_pieces *pieces, const rs_placement *from, const rs_placement *to,
    int tensor, int role, const rs_box *query) RS_MUST_CHECK;

static inline const int *rs_piece_holders(
    const rs_pieces *pieces, const rs_piece *piece, int side, size_t *count)
{
    *count = piece->count[side];
    return pieces->ranks.items + piece->first[side];
}

static inline const rs_box *rs_piece_boxes(const rs_pieces *pieces, const rs_piece *piece)
{
    return pieces->boxes.items + piece->box_first;
}

/* Whether the ascending list `ranks` has `rank`. */
bool rs_ranks_have(const int *ranks, size_t count, int rank);

rs_status rs_int_list_append(rs_int_list *list, const int *items, size_t count) RS_MUST_CHECK;

#endif
