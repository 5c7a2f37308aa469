/*
 * One step's forward and backward passes through the pipeline: this rank's stages, its
 * micro-batches.
 */
#ifndef RS_TRAIN_PIPELINE_H
#define RS_TRAIN_PIPELINE_H

#include <stdint.h>

#include "train/bind.h"
#include "train/data.h"
#include "train/moe_watch.h"
#include "train/schedule.h"
#include "train/world.h"

/* What is fixed while a layout lasts. Everything is borrowed. */
typedef struct rs_pipeline_setup {
    const rs_world *world;
    const rs_schedule *schedule;
    rs_data *data;
    const rs_chunk *chunks; /* as many as the schedule has */
    int64_t global_batch;
    int64_t micro_batch;
    int64_t seq;
    int64_t hidden;
    rs_moe_watch *watch; /* is told of each forward pass; NULL where there are no experts */
} rs_pipeline_setup;

typedef struct rs_pipeline rs_pipeline;

/* The micro-batches of the replica that has most: as many turns all take. */
int64_t rs_pipeline_turns(const rs_world *world, int64_t global_batch, int64_t micro_batch);

rs_status rs_pipeline_create(const rs_pipeline_setup *setup, rs_pipeline **out) RS_MUST_CHECK;
void rs_pipeline_destroy(rs_pipeline *pipeline);

/*
 * Runs step `step` (from 1): adds the gradient of the step's mean loss, as far as this replica's
 * micro-batches make it, to the chunks' gradients; `*loss_sum` gets the sum of the loss over their
 * tokens on the rank that has the last stage, else 0. Collective over the ranks of this replica.
 */
rs_status rs_pipeline_run(rs_pipeline *pipeline, int64_t step, double *loss_sum) RS_MUST_CHECK;

#endif
