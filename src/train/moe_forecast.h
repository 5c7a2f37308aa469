/*
 * What the rows of tokens that arrive at a rank's experts take of its memory. No token is dropped,
 * so that depends on what the routers choose; this tells it for the even choice and for the worst.
 * Local.
 */
#ifndef RS_TRAIN_MOE_FORECAST_H
#define RS_TRAIN_MOE_FORECAST_H

#include <stdint.h>

#include "reshard/layout.h"
#include "reshard/model.h"

/* How the trainer is run. */
typedef struct rs_moe_load {
    int64_t seq;
    int64_t micro_batch;
    int64_t global_batch;
} rs_moe_load;

/* Bytes of the rank that has most. */
typedef struct rs_moe_forecast {
    int64_t even;  /* each expert gets as many tokens as the others */
    int64_t worst; /* all tokens of every micro-batch pass through that rank's experts */
} rs_moe_forecast;

/* Zeros for a model without experts. RS_ERR_OVERFLOW, RS_ERR_ARGUMENT: the numbers are impossible.
 */
rs_status rs_moe_forecast_make(const rs_model *model, const rs_space *space,
    const rs_layout *layout, const rs_moe_load *load, rs_moe_forecast *out) RS_MUST_CHECK;

#endif
