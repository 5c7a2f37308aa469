/*
 * What routers do in a step: sums of their numbers and, for tests, a file with every choice. All
 * functions are local.
 */
#ifndef RS_TRAIN_MOE_WATCH_H
#define RS_TRAIN_MOE_WATCH_H

#include <stdint.h>

#include "train/stage.h"

typedef struct rs_moe_watch rs_moe_watch;

/* Summed over this rank's layers and this replica's tokens. */
typedef struct rs_moe_totals {
    double balance; /* the balance loss, summed over tokens like the loss */
    int64_t close;  /* choices of experts that rounding might turn */
} rs_moe_totals;

/* `trace` (NULL: none) is a file that gets a line for each layer and run of tokens: step, layer,
 * sequence of the step, first position, and the experts of each token, ascending. */
rs_status rs_moe_watch_create(
    const rs_model *model, const char *trace, rs_moe_watch **out) RS_MUST_CHECK;
void rs_moe_watch_destroy(rs_moe_watch *watch);

/* A step begins. */
void rs_moe_watch_begin(rs_moe_watch *watch, int64_t step);

/* A micro-batch that begins with sequence `sequence` of the step has passed forward through a stage
 * of that shape, in `slot`. */
rs_status rs_moe_watch_pass(rs_moe_watch *watch, const rs_stage_shape *shape, const rs_stage *stage,
    int64_t sequence, int slot) RS_MUST_CHECK;

rs_moe_totals rs_moe_watch_totals(const rs_moe_watch *watch);

#endif
