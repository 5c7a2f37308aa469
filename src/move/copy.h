/* The fused copy: what the movers call. Include in .c files only. */
#ifndef RS_MOVE_COPY_H
#define RS_MOVE_COPY_H

#include <stdint.h>

#include "reshard/box.h"
#include "reshard/certificate.h"

/*
 * Copies `box` of a tensor of `shape` as rs_move_box does, and adds to `sum` what rs_sum_box would
 * say of the target: each piece is read again from the target right after it was written, while it
 * is in cache. `to` and `from` are the places of the box's first element.
 */
void rs_move_box_summed(uint64_t key, const int64_t *shape, const rs_box *box, size_t element_size,
    void *to, const int64_t *to_stride, const void *from, const int64_t *from_stride, rs_sum *sum);

#endif
