/* Elements as text, in as few digits as tell the number from its neighbours. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/cast.h"
#include "reshard/checkpoint.h"

/* The shortest text that reads as the same double, or, if `narrow`, as the same float. */
static int real_text(double value, bool narrow, char *text, size_t size)
{
    int most = narrow ? 9 : 17, used = 0;
    if (value == rint(value) && fabs(value) < 1e7) /* no exponent for 10 and 1200 */
        return snprintf(text, size, "%.0f", value);
    for (int digits = 1; digits <= most; digits++) {
        used = snprintf(text, size, "%.*g", digits, value);
        if (isnan(value) ||
            (narrow ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value))
            break;
    }
    return used;
}

static int complex_text(double re, double im, bool narrow, char *text, size_t size)
{
    int used = snprintf(text, size, "(");
    used += real_text(re, narrow, text + used, size - (size_t)used);
    used += snprintf(text + used, size - (size_t)used, "%s", signbit(im) ? "" : "+");
    used += real_text(im, narrow, text + used, size - (size_t)used);
    return used + snprintf(text + used, size - (size_t)used, "j)");
}

static int64_t signed_at(size_t size, const unsigned char *at)
{
    int64_t value = 0;
    memcpy(&value, at, size);
    int unused = (int)(8 * (sizeof value - size));
    return (int64_t)((uint64_t)value << unused) >> unused;
}

const char *rs_checkpoint_element_text(
    rs_dtype dtype, const void *data, int64_t index, char text[RS_CHECKPOINT_ELEMENT])
{
    size_t size = rs_dtype_size(dtype);
    const unsigned char *at = (const unsigned char *)data + (size_t)index * size;
    uint64_t bits = 0;
    float pair[2];
    double wide[2];
    memcpy(&bits, at, size < sizeof bits ? size : sizeof bits);
    switch (dtype) {
    case RS_DTYPE_F64:
    case RS_DTYPE_F32:
    case RS_DTYPE_F16:
    case RS_DTYPE_BF16:
        real_text(rs_cast_element(dtype, data, index), dtype != RS_DTYPE_F64, text,
            RS_CHECKPOINT_ELEMENT);
        break;
    case RS_DTYPE_C64:
        memcpy(pair, at, sizeof pair);
        complex_text((double)pair[0], (double)pair[1], true, text, RS_CHECKPOINT_ELEMENT);
        break;
    case RS_DTYPE_C128:
        memcpy(wide, at, sizeof wide);
        complex_text(wide[0], wide[1], false, text, RS_CHECKPOINT_ELEMENT);
        break;
    case RS_DTYPE_BOOL:
        snprintf(text, RS_CHECKPOINT_ELEMENT, "%s", bits != 0 ? "true" : "false");
        break;
    case RS_DTYPE_I64:
    case RS_DTYPE_I32:
    case RS_DTYPE_I16:
    case RS_DTYPE_I8:
        snprintf(text, RS_CHECKPOINT_ELEMENT, "%" PRId64, signed_at(size, at));
        break;
    case RS_DTYPE_U64:
    case RS_DTYPE_U32:
    case RS_DTYPE_U16:
    case RS_DTYPE_U8:
        snprintf(text, RS_CHECKPOINT_ELEMENT, "%" PRIu64, bits);
        break;
    default:
        snprintf(text, RS_CHECKPOINT_ELEMENT, "0x%0*" PRIx64, (int)(2 * size), bits);
    }
    return text;
}
