/* What the files about models share. Include in .c files of this layer only. */
#ifndef RS_LAYOUT_MODEL_H
#define RS_LAYOUT_MODEL_H

#include <stddef.h>

#include "reshard/model.h"
#include "reshard/optimizer.h"

/* All presets. */
const rs_model *rs_model_presets_all(size_t *count);

/* Reads a config.json. */
rs_status rs_model_read_config(const char *path, rs_model *out) RS_MUST_CHECK;

/* Refuses numbers that are impossible, with `status`, naming them. */
rs_status rs_model_check_numbers(const rs_model *model, rs_status status) RS_MUST_CHECK;

/* optimizer.c, for rs_training_space: the optimizer that is meant; a space's roles; which of them
 * its tensors lack. */
rs_status rs_training_optimizer(
    const rs_training *training, const rs_optimizer **out) RS_MUST_CHECK;
rs_status rs_training_add_roles(
    rs_space *space, rs_dtype dtype, const rs_optimizer *optimizer) RS_MUST_CHECK;
rs_status rs_training_set_roles(
    rs_space *space, const rs_training *training, const rs_optimizer *optimizer) RS_MUST_CHECK;

/* Whether layers without experts are listed (dense_layers). */
bool rs_model_lists_dense(const rs_model *model);

static inline bool rs_model_has_mla(const rs_model *model)
{
    return model->kv_rank > 0;
}

#endif
