/* Looking into values. Look-ups scan: dicts of checkpoints are read once from end to end, and the
 * few keys that are asked for stand in small ones. */
#include "ckpt/value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define EQUAL_DEPTH 64
#define EQUAL_WORK 1000000 /* shared objects can make a small file endless to compare */
#define REPR_DEPTH 8
#define REPR_MOST 4096

rs_value *rs_value_get(const rs_value *dict, const char *key)
{
    if (!rs_value_is(dict, RS_VALUE_DICT))
        return NULL;
    size_t length = strlen(key);
    for (uint32_t i = dict->count; i-- > 0;) {
        const rs_value *k = dict->as.dict->pairs[2 * i];
        if (k->kind == RS_VALUE_TEXT && k->count == length && memcmp(k->as.text, key, length) == 0)
            return dict->as.dict->pairs[2 * i + 1];
    }
    return NULL;
}

rs_value *rs_value_get_index(const rs_value *dict, int64_t key)
{
    if (!rs_value_is(dict, RS_VALUE_DICT))
        return NULL;
    for (uint32_t i = dict->count; i-- > 0;) {
        const rs_value *k = dict->as.dict->pairs[2 * i];
        if (k->kind == RS_VALUE_INT && k->as.integer == key)
            return dict->as.dict->pairs[2 * i + 1];
    }
    return NULL;
}

bool rs_value_integer(const rs_value *value, int64_t *out)
{
    if (rs_value_is(value, RS_VALUE_CALL) && value->as.call->args != NULL &&
        value->as.call->args->count == 1)
        value = value->as.call->args->as.items[0];
    if (rs_value_is(value, RS_VALUE_INT))
        *out = value->as.integer;
    else if (rs_value_is(value, RS_VALUE_BOOL))
        *out = value->as.boolean;
    else
        return false;
    return true;
}

const char *rs_value_string(const rs_value *value)
{
    if (!rs_value_is(value, RS_VALUE_TEXT) || strlen(value->as.text) != value->count)
        return NULL;
    return value->as.text;
}

bool rs_global_is(const rs_global *global, const char *module, const char *name)
{
    return strcmp(global->module, module) == 0 && strcmp(global->name, name) == 0;
}

bool rs_value_is_call(const rs_value *value, const char *module, const char *name)
{
    return rs_value_is(value, RS_VALUE_CALL) && rs_global_is(value->as.call->callee, module, name);
}

rs_value *rs_value_attribute(const rs_value *instance, const char *name)
{
    if (!rs_value_is(instance, RS_VALUE_CALL))
        return NULL;
    rs_value *state = instance->as.call->state;
    if (rs_value_is(state, RS_VALUE_TUPLE) && state->count == 2) {
        rs_value *found = rs_value_get(state->as.items[0], name);
        return found != NULL ? found : rs_value_get(state->as.items[1], name);
    }
    return rs_value_get(state, name);
}

static bool equal(const rs_value *a, const rs_value *b, int depth, int64_t *work);

static bool equal_items(
    rs_value *const *a, rs_value *const *b, size_t count, int depth, int64_t *work)
{
    for (size_t i = 0; i < count; i++)
        if (!equal(a[i], b[i], depth + 1, work))
            return false;
    return true;
}

static bool equal_calls(const rs_call *a, const rs_call *b, int depth, int64_t *work)
{
    return rs_global_is(a->callee, b->callee->module, b->callee->name) &&
           equal(a->args, b->args, depth + 1, work) && equal(a->state, b->state, depth + 1, work) &&
           equal(a->items, b->items, depth + 1, work) &&
           equal(a->pairs, b->pairs, depth + 1, work) &&
           equal(a->kwargs, b->kwargs, depth + 1, work);
}

static bool equal(const rs_value *a, const rs_value *b, int depth, int64_t *work)
{
    if (a == b)
        return true;
    if (a == NULL || b == NULL || depth > EQUAL_DEPTH || --*work < 0 || a->kind != b->kind ||
        a->form != b->form || a->count != b->count)
        return false;
    switch ((rs_value_kind)a->kind) {
    case RS_VALUE_NONE:
        return true;
    case RS_VALUE_BOOL:
        return a->as.boolean == b->as.boolean;
    case RS_VALUE_INT:
    case RS_VALUE_FLOAT:
        return a->as.integer == b->as.integer; /* floats by their bits: NaN equals itself */
    case RS_VALUE_BIG:
    case RS_VALUE_TEXT:
    case RS_VALUE_BYTES:
        return memcmp(a->as.text, b->as.text, a->count) == 0;
    case RS_VALUE_LIST:
    case RS_VALUE_TUPLE:
    case RS_VALUE_SET:
        return equal_items(a->as.items, b->as.items, a->count, depth, work);
    case RS_VALUE_DICT:
        return equal_items(a->as.dict->pairs, b->as.dict->pairs, 2 * (size_t)a->count, depth, work);
    case RS_VALUE_GLOBAL:
        return rs_global_is(a->as.global, b->as.global->module, b->as.global->name);
    case RS_VALUE_CALL:
        return equal_calls(a->as.call, b->as.call, depth, work);
    case RS_VALUE_PERSISTENT:
        return equal(a->as.id, b->as.id, depth + 1, work);
    }
    return false;
}

bool rs_value_equal(const rs_value *a, const rs_value *b)
{
    int64_t work = EQUAL_WORK;
    return equal(a, b, 0, &work);
}

static void append_quoted(rs_text *text, const rs_value *value)
{
    rs_text_append(text, "'");
    for (uint32_t i = 0; i < value->count; i++) {
        unsigned char c = (unsigned char)value->as.text[i];
        if (c == '\'' || c == '\\')
            rs_text_append(text, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            rs_text_append(text, "\\x%02x", c);
        else
            rs_text_append(text, "%c", c);
    }
    rs_text_append(text, "'");
}

static void append_real(rs_text *text, double real)
{
    if (isnan(real)) {
        rs_text_append(text, "nan");
        return;
    }
    char digits[40];
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, real);
        double again = 0;
        if (sscanf(digits, "%lf", &again) == 1 && again == real)
            break;
    }
    bool whole = strspn(digits, "-0123456789") == strlen(digits);
    rs_text_append(text, "%s%s", digits, whole ? ".0" : "");
}

static void append_repr(rs_text *text, const rs_value *key, int depth)
{
    if (text->length > REPR_MOST)
        return;
    switch ((rs_value_kind)key->kind) {
    case RS_VALUE_NONE:
        rs_text_append(text, "None");
        return;
    case RS_VALUE_BOOL:
        rs_text_append(text, key->as.boolean ? "True" : "False");
        return;
    case RS_VALUE_INT:
        rs_text_append(text, "%" PRId64, key->as.integer);
        return;
    case RS_VALUE_FLOAT:
        append_real(text, key->as.real);
        return;
    case RS_VALUE_TEXT:
        append_quoted(text, key);
        return;
    case RS_VALUE_BYTES:
        rs_text_append(text, "b");
        append_quoted(text, key);
        return;
    case RS_VALUE_GLOBAL:
        rs_text_append(text, "%s.%s", key->as.global->module, key->as.global->name);
        return;
    case RS_VALUE_TUPLE:
        rs_text_append(text, "(");
        for (uint32_t i = 0; i < key->count && depth < REPR_DEPTH; i++) {
            rs_text_append(text, i > 0 ? ", " : "");
            append_repr(text, key->as.items[i], depth + 1);
        }
        rs_text_append(text, key->count == 1 ? ",)" : ")");
        return;
    case RS_VALUE_CALL:
        rs_text_append(text, "%s.%s(", key->as.call->callee->module, key->as.call->callee->name);
        if (key->as.call->args != NULL)
            for (uint32_t i = 0; i < key->as.call->args->count && depth < REPR_DEPTH; i++) {
                rs_text_append(text, i > 0 ? ", " : "");
                append_repr(text, key->as.call->args->as.items[i], depth + 1);
            }
        rs_text_append(text, ")");
        return;
    case RS_VALUE_BIG:
        rs_text_append(text, "<big integer>");
        return;
    case RS_VALUE_LIST:
    case RS_VALUE_SET:
    case RS_VALUE_DICT:
    case RS_VALUE_PERSISTENT:
        rs_text_append(text, "<object>");
        return;
    }
}

void rs_value_append_repr(rs_text *text, const rs_value *key)
{
    append_repr(text, key, 0);
}
