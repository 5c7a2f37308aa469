/* The optimizer's parameter groups, as checkpoints tell them. */
#ifndef RS_TRAIN_GROUP_LIST_H
#define RS_TRAIN_GROUP_LIST_H

#include <jansson.h>
#include <stdint.h>

#include "reshard/space.h"
#include "train/train.h"

/*
 * The groups after `step` steps, as a JSON list: tensors that are updated alike, under
 * `param_names`, with the options of their update under PyTorch's names, `lr` being the rate of the
 * next step and `initial_lr` the peak. Those whose weights decay come first. NULL where memory ran
 * out. Local.
 */
json_t *rs_group_list(const rs_train_options *options, const rs_space *space, int64_t step);

#endif
