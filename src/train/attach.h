/* Beginning from the arenas of an earlier world of the same job, which its owner has taken to one
 * step (recover.h). */
#ifndef RS_TRAIN_ATTACH_H
#define RS_TRAIN_ATTACH_H

#include "train/job.h"

/* True if the job begins from arenas; true if it has the layout, and mirrors, of that world. Local.
 */
bool rs_attaches(const rs_job *job);
bool rs_attaches_alike(const rs_job *job);

/* Where what is gone on from is mirrored: job->former_nodes; and so are its mirrors, where they
 * cannot be others. Collective over job->comm. */
rs_status rs_attach_find_nodes(rs_job *job) RS_MUST_CHECK;

/* Under the layout of that world: maps this rank's arena; makes one where it is gone. Local. */
rs_status rs_attach_begin(rs_job *job) RS_MUST_CHECK;

/* The job's state, whose memory is there, becomes that of the arenas: at their step. Collective
 * over job->comm. */
rs_status rs_attach_state(rs_job *job) RS_MUST_CHECK;

/* After the job's record names the new state: the former generation goes. Local. */
rs_status rs_attach_settle(rs_job *job) RS_MUST_CHECK;

#endif
