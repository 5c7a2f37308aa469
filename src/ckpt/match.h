/* Finding which tensor is whose, where only shapes and the order are known. */
#ifndef RS_CKPT_MATCH_H
#define RS_CKPT_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/box.h"
#include "reshard/status.h"

typedef struct rs_match_shape {
    int ndim; /* -1: unknown, fits any */
    int64_t shape[RS_MAX_DIMS];
} rs_match_shape;

/* The slots of one group, in order. */
typedef struct rs_match_group {
    rs_match_shape *slots;
    size_t count;
} rs_match_group;

/*
 * Assigns names to slots: every slot gets one name of its shape, each group's names stand in the
 * order of `names`, a name may be left over. `group_of` and `slot_of` (one each per name) get the
 * group, -1 for a name left over, and the slot in it. `*ways` is the number of assignments that
 * fit: 0, 1, or 2 for more than one (or too many to look at); the arrays are set where it is 1.
 */
rs_status rs_match_names(const rs_match_shape *names, size_t name_count,
    const rs_match_group *groups, size_t group_count, int *group_of, int *slot_of,
    int *ways) RS_MUST_CHECK;

#endif
