/* What a running job is asked for, and what it makes of it. */
#ifndef RS_TRAIN_REQUESTS_H
#define RS_TRAIN_REQUESTS_H

#include "train/job.h"

/*
 * Rank 0, between two steps: takes and answers all requests that have come, through the job
 * directory or, in a supervised world, from the supervisor, together with the supervisor's own
 * words. The first switch that can be done in place becomes the pending one, and `order` its
 * preparation; one that needs another world is handed to the supervisor.
 */
rs_status rs_requests_take(rs_job *job, rs_order *order) RS_MUST_CHECK;

/* Rank 0: asks the supervisor for a new world in `layout`, to answer the request `name` ("": none),
 * which was to leave the host `drain` ("": none). */
rs_status rs_requests_elsewhere(
    rs_job *job, const char *name, const char *layout, const char *drain) RS_MUST_CHECK;

#endif
