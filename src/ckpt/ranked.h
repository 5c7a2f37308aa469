/*
 * Tensors as all ranks have them, one behind the other along the dimension that is cut: what
 * DeepSpeed's universal checkpoints hold where ranks have some parts in common. It is longer than
 * the tensor, by what ranks have of the same.
 */
#ifndef RS_CKPT_RANKED_H
#define RS_CKPT_RANKED_H

#include <stdbool.h>

#include "ckpt/catalog.h"
#include "ckpt/rules.h"
#include "reshard/status.h"

/*
 * Adds the tensor of which `shape` and `piece` (all of it, by strides) are what `ranks` ranks have
 * of it under a rule with shared parts. `*done` is false, and nothing is added, if it is no such:
 * where ranks have nothing in common both are the same.
 */
rs_status rs_ranked_add(rs_catalog *catalog, const char *name, const char *role, rs_dtype dtype,
    int ndim, const int64_t *shape, const rs_piece *piece, const rs_rule *rule, int ranks,
    bool *done) RS_MUST_CHECK;

/*
 * A view (rs_catalog_view) in which the tensors of rules with shared parts are as `ranks` ranks
 * have them. RS_ERR_MISMATCH: one has not the size that its rule gives it; RS_ERR_UNSUPPORTED: not
 * all ranks have as much of it, so that it is no row of equal shares.
 */
rs_status rs_ranked_view(
    const rs_catalog *from, rs_rules *rules, int ranks, rs_catalog **out) RS_MUST_CHECK;

#endif
