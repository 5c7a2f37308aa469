/* The pickle machine's opcodes for constants, numbers, text and bytes. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/pickle_machine.h"

rs_status rs_pm_proto(rs_machine *m)
{
    uint64_t protocol;
    RS_TRY(rs_pm_number(m, 1, &protocol));
    if (protocol > 5)
        RS_PM_FAIL(m, "pickle protocol %" PRIu64 "; 0 to 5 are read", protocol);
    return RS_OK;
}

rs_status rs_pm_frame(rs_machine *m)
{
    uint64_t bytes;
    RS_TRY(rs_pm_number(m, 8, &bytes));
    if (bytes > (uint64_t)(m->in.end - m->in.position))
        RS_PM_FAIL(m, "a frame of %" PRIu64 " bytes, %" PRId64 " are left", bytes,
            m->in.end - m->in.position);
    return RS_OK;
}

rs_status rs_pm_none(rs_machine *m)
{
    return rs_pm_push(m, m->none);
}

rs_status rs_pm_true(rs_machine *m)
{
    return rs_pm_push(m, m->truth);
}

rs_status rs_pm_false(rs_machine *m)
{
    return rs_pm_push(m, m->falsehood);
}

static rs_status push_integer(rs_machine *m, int64_t integer)
{
    rs_value *value;
    RS_TRY(rs_pm_push_new(m, RS_VALUE_INT, &value));
    value->as.integer = integer;
    return RS_OK;
}

rs_status rs_pm_binint(rs_machine *m)
{
    uint64_t bits;
    RS_TRY(rs_pm_number(m, 4, &bits));
    return push_integer(m, (int32_t)(uint32_t)bits);
}

rs_status rs_pm_binint1(rs_machine *m)
{
    uint64_t bits;
    RS_TRY(rs_pm_number(m, 1, &bits));
    return push_integer(m, (int64_t)bits);
}

rs_status rs_pm_binint2(rs_machine *m)
{
    uint64_t bits;
    RS_TRY(rs_pm_number(m, 2, &bits));
    return push_integer(m, (int64_t)bits);
}

/* `length` bytes of two's complement. */
static rs_status push_long(rs_machine *m, uint64_t length)
{
    const char *text;
    RS_TRY(rs_pm_bytes(m, length, &text));
    const unsigned char *p = (const unsigned char *)text;
    while (length > 8 && ((p[length - 1] == 0 && p[length - 2] < 0x80) ||
                             (p[length - 1] == 0xff && p[length - 2] >= 0x80)))
        length--;
    if (length <= 8) {
        uint64_t bits = length > 0 && p[length - 1] >= 0x80 ? UINT64_MAX : 0;
        for (size_t i = (size_t)length; i-- > 0;)
            bits = bits << 8 | p[i];
        return push_integer(m, (int64_t)bits);
    }
    rs_value *value;
    RS_TRY(rs_pm_push_new(m, RS_VALUE_BIG, &value));
    value->count = (uint32_t)length;
    value->as.text = text;
    return RS_OK;
}

rs_status rs_pm_long1(rs_machine *m)
{
    uint64_t length;
    RS_TRY(rs_pm_number(m, 1, &length));
    return push_long(m, length);
}

rs_status rs_pm_long4(rs_machine *m)
{
    uint64_t length;
    RS_TRY(rs_pm_number(m, 4, &length));
    if (length > INT32_MAX)
        RS_PM_FAIL(m, "an integer of negative length %" PRId32, (int32_t)(uint32_t)length);
    return push_long(m, length);
}

/* INT and LONG of protocols 0 and 1: decimal text; "00" and "01" are False and True. */
rs_status rs_pm_int_text(rs_machine *m)
{
    char text[RS_PM_LINE];
    RS_TRY(rs_pm_line(m, text));
    if (strcmp(text, "00") == 0 || strcmp(text, "01") == 0)
        return rs_pm_push(m, text[1] == '1' ? m->truth : m->falsehood);
    char *end;
    errno = 0;
    long long integer = strtoll(text, &end, 10);
    if (end == text || errno != 0 || (*end != 0 && strcmp(end, "L") != 0))
        RS_PM_FAIL(m, "\"%.40s\" is no integer of 64 bits", text);
    return push_integer(m, integer);
}

static rs_status push_real(rs_machine *m, double real)
{
    rs_value *value;
    RS_TRY(rs_pm_push_new(m, RS_VALUE_FLOAT, &value));
    value->as.real = real;
    return RS_OK;
}

rs_status rs_pm_binfloat(rs_machine *m)
{
    const unsigned char *p;
    RS_TRY(rs_reader_take(&m->in, 8, &p));
    uint64_t bits = 0;
    for (int i = 0; i < 8; i++)
        bits = bits << 8 | p[i];
    double real;
    memcpy(&real, &bits, sizeof real);
    return push_real(m, real);
}

rs_status rs_pm_float_text(rs_machine *m)
{
    char text[RS_PM_LINE];
    RS_TRY(rs_pm_line(m, text));
    char *end;
    double real = strtod(text, &end);
    if (end == text || *end != 0)
        RS_PM_FAIL(m, "\"%.40s\" is no number", text);
    return push_real(m, real);
}

static rs_status push_string(rs_machine *m, rs_value_kind kind, rs_value_form form, size_t prefix)
{
    uint64_t length;
    RS_TRY(rs_pm_number(m, prefix, &length));
    rs_value *value;
    RS_TRY(rs_pm_push_new(m, kind, &value));
    value->form = (uint8_t)form;
    RS_TRY(rs_pm_bytes(m, length, &value->as.text));
    if (length > UINT32_MAX)
        RS_PM_FAIL(m, "a string of %" PRIu64 " bytes", length);
    value->count = (uint32_t)length;
    return RS_OK;
}

rs_status rs_pm_text1(rs_machine *m)
{
    return push_string(m, RS_VALUE_TEXT, RS_FORM_PLAIN, 1);
}

rs_status rs_pm_text4(rs_machine *m)
{
    return push_string(m, RS_VALUE_TEXT, RS_FORM_PLAIN, 4);
}

rs_status rs_pm_text8(rs_machine *m)
{
    return push_string(m, RS_VALUE_TEXT, RS_FORM_PLAIN, 8);
}

rs_status rs_pm_bytes1(rs_machine *m)
{
    return push_string(m, RS_VALUE_BYTES, RS_FORM_PLAIN, 1);
}

rs_status rs_pm_bytes4(rs_machine *m)
{
    return push_string(m, RS_VALUE_BYTES, RS_FORM_PLAIN, 4);
}

rs_status rs_pm_bytes8(rs_machine *m)
{
    return push_string(m, RS_VALUE_BYTES, RS_FORM_PLAIN, 8);
}

rs_status rs_pm_bytearray8(rs_machine *m)
{
    return push_string(m, RS_VALUE_BYTES, RS_FORM_BYTEARRAY, 8);
}
