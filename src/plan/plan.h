/* The inside of a plan, for the files of this folder. */
#ifndef RS_PLAN_PLAN_H
#define RS_PLAN_PLAN_H

#include "plan/deal.h"
#include "plan/own.h"
#include "plan/pieces.h"
#include "reshard/plan.h"

/* Keys are fractions of 2^this. */
#define RS_PLAN_KEY_BITS 48

struct rs_plan {
    const rs_placement *from;
    const rs_placement *to;
    int rank;
    rs_copy *copies; /* in the global order */
    size_t count;
    size_t capacity;
    int64_t *freed; /* bytes of the rank's old shards of which copy i is the last reader */
    rs_own own;
    rs_plan_figures figures;
};

/* rs_plan_create for a caller that makes many plans with one dealer. */
rs_status rs_plan_create_dealt(
    rs_dealer *dealer, int rank, const rs_plan_options *options, rs_plan **out) RS_MUST_CHECK;

/* The node of a rank, as the options name it. */
int rs_plan_node_of(const rs_plan_options *options, int rank);

/* Order of all copies of a plan. <0, 0, >0 */
int rs_copy_compare(const rs_copy *a, const rs_copy *b);

/* A copy that reads elements begin..end-1 of a piece; those of one piece and role have one `line`.
 */
typedef struct rs_read {
    size_t line;
    size_t copy;
    int64_t begin;
    int64_t end;
} rs_read;

typedef struct rs_read_list {
    rs_read *items;
    size_t count;
    size_t capacity;
} rs_read_list;

/* Sets freed[] of the copies that read what others read too; sorts `reads`. */
void rs_reads_settle(rs_plan *plan, rs_read_list *reads);

/* Fills figures.peak_safe and peak_tight; everything else of the plan is complete. */
void rs_plan_measure_peaks(rs_plan *plan);

#endif
