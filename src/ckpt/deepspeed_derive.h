/* Inside the readers of DeepSpeed's checkpoints: beginning and end, the same for both formats. */
#ifndef RS_CKPT_DEEPSPEED_DERIVE_H
#define RS_CKPT_DEEPSPEED_DERIVE_H

#include "ckpt/deepspeed.h"

rs_status rs_ds_reader_init(
    rs_ds_reader *reader, rs_catalog *catalog, const rs_place *place) RS_MUST_CHECK;
void rs_ds_reader_fini(rs_ds_reader *reader);

/* Adds the entries that follow from those read, tied names, and the last of the extras. */
rs_status rs_ds_derive(rs_ds_reader *reader) RS_MUST_CHECK;

#endif
