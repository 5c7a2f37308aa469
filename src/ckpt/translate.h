/*
 * Catalogs under other names. A foreign tensor is boxes of canonical ones (dialect.h), so the same
 * bytes under other names are the same pieces with other boxes and strides: a new catalog over the
 * same files. Nothing is read but what is there twice.
 *
 * The new catalog borrows files and texts of the old one and must not outlive it.
 */
#ifndef RS_CKPT_TRANSLATE_H
#define RS_CKPT_TRANSLATE_H

#include "ckpt/catalog.h"
#include "reshard/dialect.h"
#include "reshard/space.h"

/*
 * From foreign to canonical names. Every param must be a tensor of the space and every tensor that
 * has one whole; entries of other roles whose names the dialect does not know stay as they are.
 * `lenient`: params that it does not know become warnings, and missing ones are just not there.
 * RS_ERR_NOT_FOUND names a tensor that is none of the model's; RS_ERR_MISMATCH one of another
 * shape, or two that are one and differ; RS_ERR_UNSUPPORTED what one tensor of many layers cannot
 * hold.
 */
rs_status rs_translate_in(const rs_catalog *from, const rs_dialect *dialect, const rs_space *space,
    bool lenient, rs_catalog **out) RS_MUST_CHECK;

/* From canonical to foreign names. */
rs_status rs_translate_out(const rs_catalog *from, const rs_dialect *dialect, const rs_space *space,
    rs_catalog **out) RS_MUST_CHECK;

#endif
