/* The job's record (elastic.h) as a running world keeps it: rank 0 has it, and writes it. */
#ifndef RS_TRAIN_RECORD_H
#define RS_TRAIN_RECORD_H

#include "train/job.h"

/* Names the job's generation and layout as its state, from now on. Collective over job->comm: when
 * it succeeds the record is on disk. After a failure the former record is, or `*unsure`. */
rs_status rs_job_record(rs_job *job, bool *unsure) RS_MUST_CHECK;

/* Before a tight move gives anything back: the record says what is moved, and to where. Collective
 * over job->comm. */
rs_status rs_job_record_building(rs_job *job) RS_MUST_CHECK;

/* The job has no state in memory from now on. Local; does nothing but on rank 0. */
rs_status rs_job_record_remove(rs_job *job) RS_MUST_CHECK;

#endif
