/*
 * What optimizers compute: the other half of optimizer.h's table. A method changes a run of
 * elements; it is a pure function of their state, their gradient and the rate. All functions are
 * local.
 */
#ifndef RS_TRAIN_METHOD_H
#define RS_TRAIN_METHOD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "reshard/optimizer.h"

/* How a step changes elements. */
typedef struct rs_method_rate {
    int64_t step; /* from 1 */
    double lr;
    float clip;  /* factor of the gradient */
    float share; /* of rs_update_rate */
    bool decay;  /* the tensor's weights decay */
} rs_method_rate;

/* A run of elements: their values in float32, and the roles that the optimizer keeps of them. */
typedef struct rs_method_run {
    int64_t count;
    float *weight;
    float *roles[RS_OPTIMIZER_ROLES];
    const float *gradient;
    const float *direction; /* where the method needs one (rs_method_directs) */
} rs_method_run;

typedef void (*rs_method)(const rs_method_rate *rate, const rs_method_run *run);

/* NULL where the trainer does not compute it. */
rs_method rs_method_of(const rs_optimizer *optimizer);

/* The same for one tensor: whatever the optimizer, a router's bias is moved against the number of
 * tokens that chose each expert, which stands in place of its gradient (rs_method_counts). */
rs_method rs_method_for(const rs_optimizer *optimizer, const rs_tensor *tensor);
bool rs_method_counts(const rs_tensor *tensor);

/* Whether its elements go in a direction that is made of whole matrices beforehand (muon.h). */
bool rs_method_directs(const rs_optimizer *optimizer);

/* Its constants as options of a parameter group, under PyTorch's names: a JSON object, NULL where
 * memory ran out. `decay`: of tensors whose weights decay. */
json_t *rs_method_options(const rs_optimizer *optimizer, bool decay);

#define RS_MUON_MOMENTUM 0.95

#endif
