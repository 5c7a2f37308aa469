/*
 * What a job leaves in its directory: metrics.jsonl (one line per step and per event) and
 * status.json. Written by rank 0. All functions are local.
 */
#ifndef RS_TRAIN_METRICS_H
#define RS_TRAIN_METRICS_H

#include <stdint.h>

#include "train/train.h"

typedef struct rs_metrics rs_metrics;

/* Creates JOB/metrics.jsonl (RS_ERR_EXISTS), or, for a job that goes on, opens it. The caller owns
 * `*out`. */
rs_status rs_metrics_open(const rs_train_options *options, rs_metrics **out) RS_MUST_CHECK;
void rs_metrics_close(rs_metrics *metrics);

/* The last step that was told; all zero before the first. Its layout is not to be read. Borrowed.
 */
const rs_train_step *rs_metrics_last(const rs_metrics *metrics);

/* For a world that takes over: the job has come so far. */
void rs_metrics_go_on(rs_metrics *metrics, const rs_train_step *last);

/* Appends a step's line. */
rs_status rs_metrics_step(rs_metrics *metrics, const rs_train_step *step) RS_MUST_CHECK;

/* Appends an event's line, a JSON object. */
rs_status rs_metrics_line(rs_metrics *metrics, const char *json) RS_MUST_CHECK;

/* For a job that goes on after `step`: takes out the lines of later steps and their events, and a
 * last line that was cut off. */
rs_status rs_metrics_cut(rs_metrics *metrics, int64_t step) RS_MUST_CHECK;

/* The last step that has a line, 0 if none has. */
rs_status rs_metrics_last_line(const rs_metrics *metrics, int64_t *step) RS_MUST_CHECK;

/* The tests' view of a switch: a hash of every rank's memory before and after, and the state's
 * sums. */
typedef struct rs_metrics_proof {
    int ranks;
    const uint64_t *old_hashes; /* per rank; NULL: not asked for */
    const uint64_t *new_hashes;
    const uint64_t *sums; /* reduced words of the certificate */
    size_t sum_count;
} rs_metrics_proof;

/* Appends a switch's line, and hands the same JSON object out as text (free() it). */
rs_status rs_metrics_switch(rs_metrics *metrics, const rs_train_switched *event,
    const rs_metrics_proof *proof, char **json) RS_MUST_CHECK;

/* What status.json says beyond the last step. */
typedef struct rs_metrics_status {
    const char *state; /* "starting", "training", "switching", "finished", "stopped", "failed" */
    const char *layout;
    const char *pending;  /* layout of the switch that is being prepared; NULL */
    int64_t pending_step; /* after which it acts; 0: as soon as it is ready */
    const char *message;  /* "" */
    int generation;
} rs_metrics_status;

/* Replaces status.json; at most once a second unless `now`. */
rs_status rs_metrics_report(
    rs_metrics *metrics, const rs_metrics_status *status, bool now) RS_MUST_CHECK;

#endif
