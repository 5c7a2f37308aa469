/* What a conversion writes: which entries, under which names and roles, in which dtype. */
#ifndef RS_CKPT_SELECT_H
#define RS_CKPT_SELECT_H

#include "ckpt/writer.h"
#include "reshard/status.h"

/*
 * Fills `tensors`, `whole`, `extras` and the report from the source and the options.
 * RS_ERR_UNSUPPORTED: no weights, or no optimizer state and not `weights_only`. RS_ERR_ARGUMENT: an
 * option that does not fit the source.
 */
rs_status rs_select(rs_writing *w, const rs_writer *writer) RS_MUST_CHECK;

/* True if a role is written, after rs_select. */
bool rs_select_takes(const rs_writing *w, const rs_writer *writer, const char *role);

#endif
