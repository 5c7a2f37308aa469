/* What stands beside the weights in a Hugging Face folder. */
#ifndef RS_CKPT_COMPANIONS_H
#define RS_CKPT_COMPANIONS_H

#include "reshard/convert.h"
#include "reshard/status.h"

/* Copies configuration and tokenizer from the folder `from` (NULL: none) to `to`, and says in the
 * report what was copied and what lacks. */
rs_status rs_companions_copy(
    const char *from, const char *to, rs_convert_report *report) RS_MUST_CHECK;

#endif
