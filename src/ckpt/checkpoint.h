/* The inside of the public object. */
#ifndef RS_CKPT_CHECKPOINT_H
#define RS_CKPT_CHECKPOINT_H

#include "ckpt/catalog.h"
#include "reshard/checkpoint.h"

const rs_catalog *rs_checkpoint_catalog(const rs_checkpoint *checkpoint);

#endif
