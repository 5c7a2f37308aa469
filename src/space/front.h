/* The range of a box along its first dimension, by which boxes are sorted and searched. */
#ifndef RS_SPACE_FRONT_H
#define RS_SPACE_FRONT_H

#include "reshard/box.h"

/* A scalar is one index long. */
static inline int64_t rs_front_begin(const rs_box *box)
{
    return box->ndim > 0 ? box->offset[0] : 0;
}

static inline int64_t rs_front_end(const rs_box *box)
{
    return box->ndim > 0 ? box->offset[0] + box->extent[0] : 1;
}

#endif
