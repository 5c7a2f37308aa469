/*
 * Pickles, opcode by opcode. No memo: an object that is meant twice is written twice, which for
 * tensors is right, as they name their storage by key.
 *
 * 1. Opcodes are PROTO, GLOBAL, MARK, the EMPTY_ and the closing ones of containers, REDUCE, BUILD,
 *    BINPERSID, and those of plain data up to LONG1: what weights_only takes in PyTorch 1.13; that
 *    takes no numbers with a fraction (BINFLOAT).
 * 2. Names are OrderedDict, torch.Size, storage classes, dtypes, and the two rebuild functions;
 * only rs_pickle_json writes others.
 *
 * Specification: docs/formats/torch.md.
 */
#include "ckpt/pickle_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ckpt/torch_storage.h"
#include "reshard/box.h"

#define DEPTH_MOST 100
#define LONG_MOST 255 /* bytes of an integer that LONG1 takes */

static void op(rs_bytes *out, unsigned char code)
{
    rs_bytes_little(out, code, 1);
}

void rs_pickle_begin(rs_bytes *out)
{
    op(out, 0x80);
    op(out, 2);
}

void rs_pickle_end(rs_bytes *out)
{
    op(out, '.');
}

void rs_pickle_none(rs_bytes *out)
{
    op(out, 'N');
}

void rs_pickle_bool(rs_bytes *out, bool value)
{
    op(out, value ? 0x88 : 0x89);
}

void rs_pickle_int(rs_bytes *out, int64_t value)
{
    if (value >= 0 && value < 0x100) {
        op(out, 'K');
        rs_bytes_little(out, (uint64_t)value, 1);
    } else if (value >= 0 && value < 0x10000) {
        op(out, 'M');
        rs_bytes_little(out, (uint64_t)value, 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        op(out, 'J');
        rs_bytes_little(out, (uint64_t)value, 4);
    } else {
        op(out, 0x8a);
        op(out, 8);
        rs_bytes_little(out, (uint64_t)value, 8);
    }
}

void rs_pickle_real(rs_bytes *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    op(out, 'G');
    rs_bytes_little(out, __builtin_bswap64(bits), 8); /* the one number that is big endian */
}

static void text(rs_bytes *out, const char *characters, size_t length)
{
    if (length > UINT32_MAX) {
        out->status = rs_error_set(RS_ERR_UNSUPPORTED, "a text of %zu bytes in a pickle", length);
        return;
    }
    op(out, 'X');
    rs_bytes_little(out, length, 4);
    rs_bytes_append(out, characters, length);
}

void rs_pickle_text(rs_bytes *out, const char *characters)
{
    text(out, characters, strlen(characters));
}

void rs_pickle_name(rs_bytes *out, const char *module, const char *name)
{
    op(out, 'c');
    rs_bytes_append(out, module, strlen(module));
    op(out, '\n');
    rs_bytes_append(out, name, strlen(name));
    op(out, '\n');
}

void rs_pickle_dict(rs_bytes *out)
{
    rs_bytes_append(out, "}(", 2);
}

void rs_pickle_ordered(rs_bytes *out)
{
    rs_pickle_name(out, "collections", "OrderedDict");
    rs_bytes_append(out, ")R(", 3);
}

void rs_pickle_dict_end(rs_bytes *out)
{
    op(out, 'u');
}

void rs_pickle_list(rs_bytes *out)
{
    rs_bytes_append(out, "](", 2);
}

void rs_pickle_list_end(rs_bytes *out)
{
    op(out, 'e');
}

void rs_pickle_tuple(rs_bytes *out)
{
    op(out, '(');
}

void rs_pickle_tuple_end(rs_bytes *out)
{
    op(out, 't');
}

void rs_pickle_build(rs_bytes *out)
{
    op(out, 'b');
}

static void numbers(rs_bytes *out, int count, const int64_t *values)
{
    rs_pickle_tuple(out);
    for (int i = 0; i < count; i++)
        rs_pickle_int(out, values[i]);
    rs_pickle_tuple_end(out);
}

void rs_pickle_size(rs_bytes *out, int ndim, const int64_t *shape)
{
    rs_pickle_name(out, "torch", "Size");
    rs_pickle_tuple(out);
    numbers(out, ndim, shape);
    rs_pickle_tuple_end(out);
    op(out, 'R');
}

/* ---- JSON ---- */

static void data(rs_bytes *out, const json_t *value, int depth);

/* "-0x12ab" in two's complement; false if it is no such text, or too long. */
static bool long_integer(rs_bytes *out, const char *digits)
{
    unsigned char bytes[LONG_MOST + 1] = {0};
    bool negative = digits[0] == '-';
    digits += negative;
    if (strncmp(digits, "0x", 2) != 0)
        return false;
    digits += 2;
    size_t count = strlen(digits), length = count / 2 + 1;
    if (count == 0 || strspn(digits, "0123456789abcdef") != count || length > LONG_MOST)
        return false;
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)digits[count - 1 - i];
        unsigned digit = c <= '9' ? c - (unsigned)'0' : c - (unsigned)'a' + 10;
        bytes[i / 2] |= (unsigned char)(digit << (4 * (i % 2)));
    }
    unsigned carry = 1;
    for (size_t i = 0; i < length && negative; i++) {
        carry += (unsigned char)~bytes[i];
        bytes[i] = (unsigned char)carry;
        carry >>= 8;
    }
    op(out, 0x8a);
    rs_bytes_little(out, length, 1);
    rs_bytes_append(out, bytes, length);
    return true;
}

/* The bytes that hexadecimal digits say, as _codecs.encode of their Latin-1 text. */
static bool raw_bytes(rs_bytes *out, const char *digits)
{
    size_t count = strlen(digits);
    rs_bytes latin = {0};
    if (count % 2 != 0 || strspn(digits, "0123456789abcdef") != count)
        return false; /* cut short: it stays what it is */
    for (size_t i = 0; i < count; i += 2) {
        char pair[3] = {digits[i], digits[i + 1], 0};
        unsigned code = (unsigned)strtoul(pair, NULL, 16);
        if (code >= 0x80)
            rs_bytes_little(&latin, 0xc0 | (code >> 6), 1);
        rs_bytes_little(&latin, code < 0x80 ? code : 0x80 | (code & 0x3f), 1);
    }
    if (latin.status != RS_OK)
        out->status = latin.status;
    rs_pickle_name(out, "_codecs", "encode");
    rs_pickle_tuple(out);
    text(out, latin.length > 0 ? (const char *)latin.data : "", latin.length);
    rs_pickle_text(out, "latin1");
    rs_pickle_tuple_end(out);
    op(out, 'R');
    rs_bytes_fini(&latin);
    return true;
}

static void call_on(rs_bytes *out, const char *name, const json_t *items, bool spread, int depth)
{
    size_t i;
    json_t *item;
    rs_pickle_name(out, "__builtin__", name);
    rs_pickle_tuple(out);
    if (!spread)
        rs_pickle_list(out);
    json_array_foreach(items, i, item) data(out, item, depth + 1);
    if (!spread)
        rs_pickle_list_end(out);
    rs_pickle_tuple_end(out);
    op(out, 'R');
}

/* DeepSpeed's loss scalers: an instance, and its attributes. */
static bool loss_scaler(rs_bytes *out, const json_t *value, int depth)
{
    static const char module[] = "deepspeed.runtime.fp16.loss_scaler";
    const char *class = json_string_value(json_object_get(value, "opaque"));
    const json_t *state = json_object_get(value, "state");
    const char *key;
    json_t *item;
    if (class == NULL || !json_is_object(state) || json_object_size(value) != 2 ||
        strncmp(class, module, sizeof module - 1) != 0 || class[sizeof module - 1] != '.')
        return false;
    class += sizeof module;
    if (strcmp(class, "LossScaler") != 0 && strcmp(class, "DynamicLossScaler") != 0)
        return false;
    rs_pickle_name(out, module, class);
    rs_bytes_append(out, ")\x81", 2);
    rs_pickle_dict(out);
    json_object_foreach((json_t *)state, key, item)
    {
        const char *type = json_string_value(item);
        rs_pickle_text(out, key);
        if (type != NULL && strncmp(type, "torch.", 6) == 0 &&
            rs_dtype_parse(type + 6) != RS_DTYPE_NONE)
            rs_pickle_name(out, "torch", type + 6);
        else
            data(out, item, depth + 1);
    }
    rs_pickle_dict_end(out);
    rs_pickle_build(out);
    return true;
}

/* An object whose one member says that it stands for something else. */
static bool stand_in(rs_bytes *out, const json_t *value, int depth)
{
    const char *key = json_object_iter_key(json_object_iter((json_t *)value));
    const json_t *inner = key != NULL ? json_object_get(value, key) : NULL;
    const char *said = json_string_value(inner);
    if (json_object_get(value, "opaque") != NULL)
        return loss_scaler(out, value, depth);
    if (json_object_size(value) != 1)
        return false;
    if (said != NULL && strcmp(key, "float") == 0 &&
        (strcmp(said, "nan") == 0 || strcmp(said, "inf") == 0 || strcmp(said, "-inf") == 0)) {
        rs_pickle_real(out, strtod(said, NULL));
        return true;
    }
    if (said != NULL && strcmp(key, "integer") == 0)
        return long_integer(out, said);
    if (said != NULL && strcmp(key, "bytes") == 0)
        return raw_bytes(out, said);
    bool set = strcmp(key, "set") == 0;
    bool complex = strcmp(key, "complex") == 0 && json_array_size(inner) == 2;
    if (json_is_array(inner) && (set || complex)) {
        call_on(out, key, inner, complex, depth);
        return true;
    }
    return false;
}

static void data(rs_bytes *out, const json_t *value, int depth)
{
    const char *key;
    size_t i;
    json_t *item;
    if (depth > DEPTH_MOST) {
        rs_pickle_text(out, "<deeper>");
        return;
    }
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        if (stand_in(out, value, depth))
            return;
        rs_pickle_dict(out);
        json_object_foreach((json_t *)value, key, item)
        {
            rs_pickle_text(out, key);
            data(out, item, depth + 1);
        }
        rs_pickle_dict_end(out);
        return;
    case JSON_ARRAY:
        rs_pickle_list(out);
        json_array_foreach(value, i, item) data(out, item, depth + 1);
        rs_pickle_list_end(out);
        return;
    case JSON_STRING:
        text(out, json_string_value(value), json_string_length(value));
        return;
    case JSON_INTEGER:
        rs_pickle_int(out, json_integer_value(value));
        return;
    case JSON_REAL:
        rs_pickle_real(out, json_real_value(value));
        return;
    case JSON_TRUE:
    case JSON_FALSE:
        rs_pickle_bool(out, json_is_true(value));
        return;
    case JSON_NULL:
        rs_pickle_none(out);
        return;
    }
}

void rs_pickle_json(rs_bytes *out, const json_t *value)
{
    if (value == NULL)
        rs_pickle_none(out);
    else
        data(out, value, 0);
}

/* ---- tensors ---- */

rs_status rs_pickle_tensor(
    rs_bytes *out, rs_dtype dtype, int ndim, const int64_t *shape, int64_t key)
{
    const rs_storage_class *class = rs_storage_class_for(dtype);
    int64_t stride[RS_MAX_DIMS], elements = 1;
    char digits[24];
    if (class == NULL)
        return out->status =
                   rs_error_set(RS_ERR_UNSUPPORTED, "PyTorch has no type %s", rs_dtype_name(dtype));
    for (int d = ndim - 1; d >= 0; d--) { /* strides of empty tensors too, as torch has them */
        stride[d] = d == ndim - 1 ? 1 : stride[d + 1] * (shape[d + 1] > 0 ? shape[d + 1] : 1);
        elements *= shape[d];
    }
    bool typed = class->dtype == dtype;
    snprintf(digits, sizeof digits, "%" PRId64, key);
    rs_pickle_name(out, "torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    rs_pickle_tuple(out);
    rs_pickle_tuple(out);
    rs_pickle_text(out, "storage");
    rs_pickle_name(out, typed ? "torch" : "torch.storage", class->name);
    rs_pickle_text(out, digits);
    rs_pickle_text(out, "cpu");
    rs_pickle_int(out, typed ? elements : elements * (int64_t)rs_dtype_size(dtype));
    rs_pickle_tuple_end(out);
    op(out, 'Q');
    rs_pickle_int(out, 0);
    numbers(out, ndim, shape);
    numbers(out, ndim, stride);
    rs_pickle_bool(out, false);
    rs_pickle_name(out, "collections", "OrderedDict");
    rs_bytes_append(out, ")R", 2);
    if (!typed)
        rs_pickle_name(out, "torch", rs_dtype_name(dtype));
    rs_pickle_tuple_end(out);
    op(out, 'R');
    return out->status;
}
