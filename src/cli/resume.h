/* `train --resume DIR[@STEP]`: what the run goes by comes from the job's record, or its checkpoint.
 */
#ifndef RS_CLI_RESUME_H
#define RS_CLI_RESUME_H

#include <stdbool.h>

#include "cli/fleet.h"
#include "cli/options.h"
#include "reshard/status.h"
#include "train/train.h"

/*
 * Completes options that were filled from the arguments: those that were not given are the job's.
 * RS_ERR_ARGUMENT names the option that was given and differs, and is not among `overrides`.
 */
rs_status resume_apply(rs_train_options *options, const char *resume, bool job_given,
    const cli_list *overrides, int argc, char **argv) RS_MUST_CHECK;

/*
 * The job directory is claimed: decides whether the run goes on from the state in memory, which is
 * then whole at one step (options->attach), or from a checkpoint, and says which and why on
 * standard error. What is not gone on from leaves the memory. RS_ERR_STALLED: a process of the
 * former run cannot be ended.
 */
rs_status resume_choose(rs_train_options *options, fleet *hosts) RS_MUST_CHECK;

/* The step of the job's newest checkpoint, -1 if there is none. */
int64_t resume_newest(const rs_train_options *options);

#endif
