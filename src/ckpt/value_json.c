/*
 * Values as JSON. Tuples and lists become arrays, dicts objects; keys that are no text are written
 * as Python would (1, (1, 2), None). What JSON cannot say becomes an object with one member whose
 * name says what it is:
 *
 *   {"integer": "123..."}   beyond 64 bits, hexadecimal with sign     {"float": "nan"}
 *   {"bytes": "00ff"}       hexadecimal; also text that is no UTF-8   {"set": [...]}
 *   {"opaque": "module.Class", "args": [...], "state": ..., ...}      a record; nothing was called
 *
 * Well-known records are written plainly: a namespace as its attributes, a dtype or device as text,
 * NumPy scalars as numbers, complex numbers as {"complex": [re, im]}.
 */
#include "ckpt/value_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "ckpt/torch.h"

#define DEPTH_MOST 100
#define BYTES_MOST 65536

static json_t *convert(const rs_value *value, int64_t *left, int depth);

static json_t *one(const char *member, json_t *value)
{
    json_t *object = json_object();
    if (value == NULL || object == NULL || json_object_set_new(object, member, value) != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static json_t *hex(const char *bytes, size_t count)
{
    size_t shown = count < BYTES_MOST ? count : BYTES_MOST;
    char *text = rs_calloc(2 * shown + 32, 1);
    if (text == NULL)
        return NULL;
    for (size_t i = 0; i < shown; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)bytes[i]);
    if (shown < count)
        snprintf(text + 2 * shown, 32, "...%zu", count - shown);
    json_t *string = json_string(text);
    free(text);
    return string;
}

/* Two's complement, little endian, as "-0x12ab". */
static json_t *big_integer(const rs_value *value)
{
    size_t count = value->count;
    unsigned char *bytes = rs_calloc(count, 1);
    char *text = rs_calloc(2 * count + 8, 1);
    json_t *out = NULL;
    if (bytes != NULL && text != NULL) {
        memcpy(bytes, value->as.text, count);
        bool negative = bytes[count - 1] >= 0x80;
        unsigned carry = 1;
        for (size_t i = 0; i < count && negative; i++) {
            carry += (unsigned char)~bytes[i];
            bytes[i] = (unsigned char)carry;
            carry >>= 8;
        }
        size_t used = (size_t)snprintf(text, 8, "%s0x", negative ? "-" : "");
        while (count > 1 && bytes[count - 1] == 0)
            count--;
        for (size_t i = count; i-- > 0;)
            used += (size_t)snprintf(text + used, 3, "%02x", bytes[i]);
        out = one("integer", json_string(text));
    }
    free(bytes);
    free(text);
    return out;
}

static json_t *text_or_bytes(const rs_value *value)
{
    json_t *text = json_stringn(value->as.text, value->count);
    return text != NULL ? text : one("bytes", hex(value->as.text, value->count));
}

static json_t *real(double number)
{
    if (isfinite(number))
        return json_real(number);
    return one("float", json_string(isnan(number) ? "nan" : number > 0 ? "inf" : "-inf"));
}

static json_t *array(rs_value *const *items, size_t count, int64_t *left, int depth)
{
    json_t *out = json_array();
    for (size_t i = 0; i < count && out != NULL; i++) {
        json_t *item = *left > 0 ? convert(items[i], left, depth + 1) : json_string("<more>");
        if (item == NULL || json_array_append_new(out, item) != 0) {
            json_decref(out);
            return NULL;
        }
        if (*left <= 0)
            break;
    }
    return out;
}

/* Adds the pairs of a dict to an object. */
static int add_pairs(json_t *out, const rs_value *dict, int64_t *left, int depth)
{
    for (uint32_t i = 0; i < dict->count; i++) {
        const rs_value *key = dict->as.dict->pairs[2 * (size_t)i];
        const rs_value *value = dict->as.dict->pairs[2 * (size_t)i + 1];
        if (rs_torch_kind_of(value) != RS_TORCH_NO_TENSOR)
            continue;
        json_t *item = *left > 0 ? convert(value, left, depth + 1) : json_string("<more>");
        if (json_is_object(item) && json_object_size(item) == 0 && value->count > 0) {
            json_decref(item); /* it had nothing but tensors */
            continue;
        }
        rs_text text = {0};
        if (rs_value_string(key) != NULL)
            rs_text_append(&text, "%s", rs_value_string(key));
        else
            rs_value_append_repr(&text, key);
        if (text.status == RS_OK && json_object_get(out, text.data) != NULL)
            rs_value_append_repr(&text, key); /* 1 beside '1' */
        int failed = text.status != RS_OK || item == NULL ? -1 : 0;
        if (failed == 0 && json_object_set(out, text.data, item) != 0) {
            /* A key that is no UTF-8. */
            json_t *plain = hex(text.data, text.length);
            failed = plain == NULL ? -1 : json_object_set(out, json_string_value(plain), item);
            json_decref(plain);
        }
        json_decref(item);
        rs_text_fini(&text);
        if (failed != 0)
            return -1;
        if (*left <= 0)
            break;
    }
    return 0;
}

static json_t *object(const rs_value *dict, int64_t *left, int depth)
{
    json_t *out = json_object();
    if (out != NULL && add_pairs(out, dict, left, depth) != 0) {
        json_decref(out);
        return NULL;
    }
    return out;
}

static const rs_value *only_arg(const rs_call *call)
{
    return call->args != NULL && call->args->count == 1 ? call->args->as.items[0] : NULL;
}

/* NumPy's scalar(dtype('f8', ...), bytes): its number, NULL if it is another type. */
static json_t *numpy_scalar(const rs_call *call)
{
    if (strcmp(call->callee->name, "scalar") != 0 || call->args == NULL || call->args->count != 2 ||
        !rs_value_is_call(call->args->as.items[0], "numpy", "dtype") ||
        !rs_value_is(call->args->as.items[1], RS_VALUE_BYTES))
        return NULL;
    const rs_value *args = call->args->as.items[0]->as.call->args;
    const rs_value *bytes = call->args->as.items[1];
    const char *type = args != NULL && args->count > 0 ? rs_value_string(args->as.items[0]) : NULL;
    double number = 0;
    float single = 0;
    int64_t integer = 0;
    if (type != NULL && strcmp(type, "f8") == 0 && bytes->count == 8) {
        memcpy(&number, bytes->as.text, 8);
        return real(number);
    }
    if (type != NULL && strcmp(type, "f4") == 0 && bytes->count == 4) {
        memcpy(&single, bytes->as.text, 4);
        return real(single);
    }
    if (type != NULL && strcmp(type, "i8") == 0 && bytes->count == 8) {
        memcpy(&integer, bytes->as.text, 8);
        return json_integer(integer);
    }
    return NULL;
}

static json_t *record(const rs_value *value, int64_t *left, int depth)
{
    const rs_call *call = value->as.call;
    char name[600];
    snprintf(name, sizeof name, "%.300s.%.290s", call->callee->module, call->callee->name);
    bool space = rs_global_is(call->callee, "argparse", "Namespace") ||
                 rs_global_is(call->callee, "types", "SimpleNamespace");
    if (space && rs_value_is(call->state, RS_VALUE_DICT))
        return object(call->state, left, depth);
    if (rs_global_is(call->callee, "torch", "device") && only_arg(call) != NULL &&
        rs_value_string(only_arg(call)) != NULL)
        return json_string(rs_value_string(only_arg(call)));
    if (rs_global_is(call->callee, "builtins", "complex") && call->args != NULL)
        return one("complex", array(call->args->as.items, call->args->count, left, depth));
    json_t *number = numpy_scalar(call);
    if (number != NULL)
        return number;
    json_t *out = one("opaque", json_string(name));
    const struct {
        const char *member;
        const rs_value *value;
    } parts[] = {{"args", call->args}, {"kwargs", call->kwargs}, {"state", call->state},
        {"items", call->items}, {"pairs", call->pairs}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts && out != NULL; i++) {
        if (parts[i].value == NULL || (i == 0 && call->args->count == 0))
            continue;
        json_t *part = convert(parts[i].value, left, depth + 1);
        if (part == NULL || json_object_set_new(out, parts[i].member, part) != 0) {
            json_decref(out);
            out = NULL;
        }
    }
    return out;
}

static json_t *convert(const rs_value *value, int64_t *left, int depth)
{
    --*left;
    if (depth > DEPTH_MOST)
        return json_string("<deeper>");
    if (rs_torch_kind_of(value) != RS_TORCH_NO_TENSOR)
        return json_string("<tensor>");
    switch ((rs_value_kind)value->kind) {
    case RS_VALUE_NONE:
        return json_null();
    case RS_VALUE_BOOL:
        return json_boolean(value->as.boolean);
    case RS_VALUE_INT:
        return json_integer(value->as.integer);
    case RS_VALUE_BIG:
        return big_integer(value);
    case RS_VALUE_FLOAT:
        return real(value->as.real);
    case RS_VALUE_TEXT:
        return text_or_bytes(value);
    case RS_VALUE_BYTES:
        return one("bytes", hex(value->as.text, value->count));
    case RS_VALUE_LIST:
    case RS_VALUE_TUPLE:
        return array(value->as.items, value->count, left, depth);
    case RS_VALUE_SET:
        return one("set", array(value->as.items, value->count, left, depth));
    case RS_VALUE_DICT:
        return object(value, left, depth);
    case RS_VALUE_GLOBAL:
        if (strcmp(value->as.global->module, "builtins") == 0)
            return json_string(value->as.global->name);
        if (strcmp(value->as.global->module, "torch") == 0)
            return json_sprintf("torch.%s", value->as.global->name);
        return one(
            "opaque", json_sprintf("%s.%s", value->as.global->module, value->as.global->name));
    case RS_VALUE_CALL:
        return record(value, left, depth);
    case RS_VALUE_PERSISTENT:
        return json_string("<storage>");
    }
    return json_null();
}

json_t *rs_value_json(const rs_value *value, int64_t *left)
{
    return convert(value, left, 0);
}
