/* Whether a job's state fits the memory of this host, before anything is started. */
#ifndef RS_CLI_ROOM_H
#define RS_CLI_ROOM_H

#include "train/train.h"

/* RS_ERR_BUDGET says what the job needs, what there is, and the ways out. Estimates for ranks that
 * share this host; with hosts, or inside a Slurm job of several nodes, it does not judge: the ranks
 * do. */
rs_status room_check(const rs_train_options *options) RS_MUST_CHECK;

/* What the job needs on this host at its highest, in safe and in tight mode, in bytes. */
rs_status room_estimate(
    const rs_train_options *options, int64_t *safe, int64_t *tight) RS_MUST_CHECK;

#endif
