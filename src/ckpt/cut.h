/*
 * A cut: which runs of a tensor's dimension each rank has, in the order in which it has them.
 *
 * Runs that several ranks have are replicas. A catalog's copies are complete each (catalog.h), so a
 * run is in as many of them as it takes: what one rank has alone is in all.
 */
#ifndef RS_CKPT_CUT_H
#define RS_CKPT_CUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/catalog.h"
#include "ckpt/rules.h"
#include "reshard/status.h"

typedef struct rs_cut_run {
    int64_t local;    /* where it begins in what the rank has */
    int64_t global;   /* and in the tensor */
    int64_t width;    /* at least 1 */
    int copy, copies; /* it is in copies copy .. copy + copies - 1 */
} rs_cut_run;

/* Starts as {0}. */
typedef struct rs_cut {
    int ranks;
    int copies;
    int64_t whole;    /* of the tensor */
    int64_t *length;  /* [rank]: of what it has */
    size_t *first;    /* [rank]: its runs are first[r] .. first[r + 1] - 1 */
    rs_cut_run *runs; /* of each rank in the order of `local`, which is that of `global` too */
} rs_cut;

void rs_cut_fini(rs_cut *cut);

/* Every rank has its share of every part, `widths[part * ranks + rank]`. RS_ERR_MISMATCH: they are
 * negative or overflow. */
rs_status rs_cut_of_widths(int parts, int ranks, const int64_t *widths, rs_cut *out) RS_MUST_CHECK;

/* The cut of a rule with shared parts. RS_ERR_MISMATCH: one of the others does not divide evenly.
 */
rs_status rs_cut_of_shared(const rs_rule *rule, int ranks, rs_cut *out) RS_MUST_CHECK;

/* What of the piece lies at from .. from+width-1 along `dim`, moved to `to`; false: nothing. */
bool rs_cut_move(
    const rs_piece *piece, int dim, int64_t from, int64_t width, int64_t to, rs_piece *out);

/* What all ranks have together; the whole only where none has what another one has. */
int64_t rs_cut_total(const rs_cut *cut);

#endif
