/* The inside of the public object. */
#ifndef RS_CKPT_CHECKPOINT_H
#define RS_CKPT_CHECKPOINT_H

#include "ckpt/catalog.h"
#include "reshard/checkpoint.h"

const rs_catalog *rs_checkpoint_catalog(const rs_checkpoint *checkpoint);

/* A checkpoint of a catalog, and of one that it borrows from (may be NULL); takes both, also where
 * it fails. */
rs_status rs_checkpoint_wrap(
    rs_catalog *catalog, rs_catalog *under, rs_checkpoint **out) RS_MUST_CHECK;

#endif
