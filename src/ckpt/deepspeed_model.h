/* Inside the reader of DeepSpeed's checkpoints: what its parts need of model files. */
#ifndef RS_CKPT_DEEPSPEED_MODEL_H
#define RS_CKPT_DEEPSPEED_MODEL_H

#include "ckpt/deepspeed.h"

/* param_shapes into the model; NULL and None leave it as it is. */
rs_status rs_ds_read_shapes(rs_ds_reader *reader, const rs_torch *torch, const rs_value *list,
    rs_ds_model *model) RS_MUST_CHECK;

/* `alias` is a second name of `name`. */
rs_status rs_ds_add_shared(rs_ds_reader *reader, const char *alias, const char *name) RS_MUST_CHECK;

/* All files of a kind for `dp` data-parallel ranks of every model-parallel rank, and no others.
 * `*missing`: the error is that some are missing. */
rs_status rs_ds_check_grid(
    rs_ds_reader *reader, rs_ds_kind kind, int dp, const char *what, bool *missing) RS_MUST_CHECK;

#endif
