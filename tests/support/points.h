/* Elements of boxes one by one, for counting. */
#ifndef RS_TESTS_POINTS_H
#define RS_TESTS_POINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/box.h"
#include "reshard/space.h"

/* Steps to the next element in row-major order; false behind the last, `point` is the first again.
 */
static inline bool next_point(const rs_box *box, int64_t *point)
{
    for (int d = box->ndim - 1; d >= 0; d--) {
        if (++point[d] < box->offset[d] + box->extent[d])
            return true;
        point[d] = box->offset[d];
    }
    return false;
}

/* Row-major in the whole tensor. */
static inline int64_t index_of(const rs_tensor *tensor, const int64_t *point)
{
    int64_t index = 0;
    for (int d = 0; d < tensor->ndim; d++)
        index = index * tensor->shape[d] + point[d];
    return index;
}

#endif
