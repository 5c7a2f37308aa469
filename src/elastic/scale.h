/* Which layout a job takes when it is told a number of ranks instead of a layout. Pure. */
#ifndef RS_ELASTIC_SCALE_H
#define RS_ELASTIC_SCALE_H

#include "reshard/layout.h"
#include "reshard/space.h"
#include "reshard/status.h"

/*
 * The trainable layout nearest to `from` with exactly `ranks` ranks: it keeps tp if it can, then
 * pp, and lets dp be what follows; sizes are only made smaller, and what else the layout says is
 * kept where it still fits. RS_ERR_ARGUMENT: there is none, or it is `from` itself.
 */
rs_status rs_scale_to(
    const rs_layout *from, const rs_space *space, int ranks, rs_layout *out) RS_MUST_CHECK;

/* The same with at most `ranks` ranks, for a job that has lost some: keeps tp, then pp, and shrinks
 * dp before it gives either up; what is left over is spare. */
rs_status rs_scale_within(
    const rs_layout *from, const rs_space *space, int ranks, rs_layout *out) RS_MUST_CHECK;

/* Reads "+2", "-2" or "6" for a job of `ranks` ranks. RS_ERR_ARGUMENT: no such text, or fewer than
 * one rank. */
rs_status rs_scale_parse(const char *text, int ranks, int *out) RS_MUST_CHECK;

#endif
