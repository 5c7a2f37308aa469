/* The ferry between hosts: what a process of `reshard ferry` does. docs/worlds.md tells the story.
 */
#ifndef RS_TRAIN_FERRY_H
#define RS_TRAIN_FERRY_H

#include "train/member.h"

/*
 * Gets ready to carry what changes host when the member's world takes over, says so, sleeps, and
 * carries when it is told to; then, or when it is not wanted, it returns. Collective over `comm`,
 * one process for each host. `options` are the job's. A failure is told to the supervisor and
 * returned by all.
 */
rs_status rs_ferry_work(
    const rs_train_options *options, rs_member *member, MPI_Comm comm) RS_MUST_CHECK;

#endif
