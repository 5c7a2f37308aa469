/* `train --resume DIR[@STEP]`: what the run goes by comes from the checkpoint. */
#ifndef RS_CLI_RESUME_H
#define RS_CLI_RESUME_H

#include <stdbool.h>

#include "cli/options.h"
#include "reshard/status.h"
#include "train/train.h"

/*
 * Completes options that were filled from the arguments: those that were not given are the
 * checkpoint's. RS_ERR_ARGUMENT names the option that was given and differs, and is not among
 * `overrides`.
 */
rs_status resume_apply(rs_train_options *options, const char *resume, bool job_given,
    const cli_list *overrides, int argc, char **argv) RS_MUST_CHECK;

#endif
