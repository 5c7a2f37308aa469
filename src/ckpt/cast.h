/* Numbers of one element type as another, and as double. */
#ifndef RS_CKPT_CAST_H
#define RS_CKPT_CAST_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/dtype.h"

/* True for float64, float32, float16, bfloat16. */
bool rs_cast_is_float(rs_dtype dtype);

/* `count` numbers from `from` to `to`, rounded to nearest even; both float dtypes. The buffers do
 * not overlap. */
void rs_cast(rs_dtype from_dtype, const void *from, rs_dtype to_dtype, void *to, int64_t count);

/* Element `index` of a buffer as double, for messages and means; opaque types as their bits. */
double rs_cast_element(rs_dtype dtype, const void *data, int64_t index);

#endif
