/* Who takes which elements of a piece from whom. */
#ifndef RS_PLAN_DEAL_H
#define RS_PLAN_DEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plan/pieces.h"
#include "plan/parts.h"
#include "reshard/plan.h"

/* The roles that are cut alike in the old placement and alike in the new one: what is decided for
 * the first of them holds for all. */
typedef struct rs_role_group {
    int roles[RS_MAX_ROLES];
    int count;
} rs_role_group;

/* Bytes of one element of `tensor` in the roles of a group together, and in the largest of them. */
int64_t rs_role_group_bytes(
    const rs_space *space, const rs_role_group *group, int tensor, int64_t *largest);

/* Fills `groups` (RS_MAX_ROLES) in ascending order of first roles; returns their number. */
int rs_role_groups(const rs_placement *from, const rs_placement *to, rs_role_group *groups);

/* Elements begin..end-1 of a piece, in the order of its boxes, go between the rank asked about and
 * `peer`. */
typedef struct rs_deal {
    int peer;
    rs_reach reach;
    int64_t begin;
    int64_t end;
} rs_deal;

typedef struct rs_deal_list {
    rs_deal *items;
    size_t count;
    size_t capacity;
} rs_deal_list;

/* What all ranks know alike: nodes, and how remote demand is divided. */
typedef struct rs_dealer {
    const rs_placement *from;
    const rs_placement *to;
    int world; /* the larger of both */
    int nodes;
    int *node_of;   /* 0..nodes-1, of each rank */
    rs_parts parts; /* grows as pieces ask for it */
    int *node_mark; /* which nodes have a source of the piece at hand: those with `mark` */
    int mark;
    rs_int_list sources; /* scratch */
    rs_int_list targets;
} rs_dealer;

/* Checks the arguments that all plans share. The caller releases it with rs_dealer_fini, after a
 * failure too. */
rs_status rs_dealer_init(rs_dealer *dealer, const rs_placement *from, const rs_placement *to,
    const rs_plan_options *options) RS_MUST_CHECK;
void rs_dealer_fini(rs_dealer *dealer);

/* `role` stands for its group (its first role). Appends what `rank`, a new holder of the piece and
 * no old one, takes from whom. RS_ERR_NOT_FOUND, without detail, if nobody has the piece. */
rs_status rs_dealer_take(rs_dealer *dealer, const rs_pieces *pieces, const rs_piece *piece,
    int tensor, int role, int rank, rs_deal_list *out) RS_MUST_CHECK;

/* Appends what `rank`, an old holder of the piece, gives to whom (never itself). */
rs_status rs_dealer_give(rs_dealer *dealer, const rs_pieces *pieces, const rs_piece *piece,
    int tensor, int role, int rank, rs_deal_list *out) RS_MUST_CHECK;

/* Told of `bytes` that must cross between nodes, and of all ranks that hold them. */
typedef rs_status (*rs_demand_visit)(
    void *context, const rs_dealer *dealer, const int *sources, size_t count, int64_t bytes);

/* Tells of what must cross between nodes of a box of a tensor, in the roles of `group`. `pieces` is
 * scratch. */
rs_status rs_dealer_box_demand(rs_dealer *dealer, rs_pieces *pieces, const rs_role_group *group,
    int tensor, const rs_box *box, rs_demand_visit visit, void *context) RS_MUST_CHECK;

/* Tells of everything that must cross between nodes in the whole cluster. */
rs_status rs_dealer_demand(rs_dealer *dealer, rs_demand_visit visit, void *context) RS_MUST_CHECK;

#endif
