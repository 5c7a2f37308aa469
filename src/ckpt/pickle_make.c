/*
 * What pickles make by calling: containers and bytes become values, the rest becomes records
 * (RS_VALUE_CALL) that name the callee and hold its arguments. Only names of allow.h come here.
 *
 * The spellings follow CPython's pickle module for protocols 0 to 5 (docs/formats/torch.md).
 */
#include <string.h>

#include "base/error.h"
#include "ckpt/allow.h"
#include "ckpt/pickle.h"

rs_status rs_pickle_value(rs_pickle *pickle, rs_value_kind kind, rs_value **out)
{
    void *value;
    RS_TRY(rs_pool_take(&pickle->pool, sizeof(rs_value), &value));
    *out = value;
    (*out)->kind = (uint8_t)kind;
    if (kind == RS_VALUE_DICT) {
        void *dict;
        RS_TRY(rs_pool_take(&pickle->pool, sizeof(rs_dict), &dict));
        (*out)->as.dict = dict;
    }
    return RS_OK;
}

/* Room for one more in an array of `count` pointers whose capacity is the next power of two. */
static rs_status grow(rs_pickle *pickle, rs_value ***items, size_t count, size_t width)
{
    bool full = count == 0 || (count >= 4 && (count & (count - 1)) == 0);
    if (!full)
        return RS_OK;
    void *moved;
    size_t room = count < 4 ? 4 : 2 * count;
    RS_TRY(rs_pool_take(&pickle->pool, room * width * sizeof(rs_value *), &moved));
    if (count > 0)
        memcpy(moved, *items, count * width * sizeof(rs_value *));
    *items = moved;
    return RS_OK;
}

rs_status rs_pickle_append(rs_pickle *pickle, rs_value *list, rs_value *item)
{
    if (list->count == UINT32_MAX)
        return rs_error_set(RS_ERR_BUDGET, "a list with more than 2^32 items");
    RS_TRY(grow(pickle, &list->as.items, list->count, 1));
    list->as.items[list->count++] = item;
    return RS_OK;
}

rs_status rs_pickle_set(rs_pickle *pickle, rs_value *dict, rs_value *key, rs_value *value)
{
    if (dict->count == UINT32_MAX)
        return rs_error_set(RS_ERR_BUDGET, "a dict with more than 2^32 keys");
    RS_TRY(grow(pickle, &dict->as.dict->pairs, dict->count, 2));
    dict->as.dict->pairs[2 * (size_t)dict->count] = key;
    dict->as.dict->pairs[2 * (size_t)dict->count + 1] = value;
    dict->count++;
    return RS_OK;
}

rs_status rs_pickle_instance(
    rs_pickle *pickle, const rs_global *callee, rs_value *args, int64_t at, rs_value **out)
{
    void *call;
    RS_TRY(rs_pickle_value(pickle, RS_VALUE_CALL, out));
    RS_TRY(rs_pool_take(&pickle->pool, sizeof(rs_call), &call));
    (*out)->as.call = call;
    (*out)->form = RS_FORM_INSTANCE;
    *(*out)->as.call = (rs_call){.callee = callee, .args = args, .at = at};
    return RS_OK;
}

/* A new value that shares its items with `from`. */
static rs_status share(
    rs_pickle *pickle, const rs_value *from, rs_value_kind kind, rs_value_form form, rs_value **out)
{
    RS_TRY(rs_pickle_value(pickle, kind, out));
    (*out)->form = (uint8_t)form;
    (*out)->count = from->count;
    (*out)->as.items = from->as.items;
    return RS_OK;
}

/* Copies the items, so that appending to the one does not reach the other. */
static rs_status copy_items(rs_pickle *pickle, const rs_value *from, rs_value *to)
{
    for (uint32_t i = 0; i < from->count; i++)
        RS_TRY(rs_pickle_append(pickle, to, from->as.items[i]));
    return RS_OK;
}

/* Text whose characters all are below 256, as that many bytes. */
static rs_status latin1(rs_pickle *pickle, const rs_value *text, rs_value **out)
{
    void *memory;
    RS_TRY(rs_pickle_value(pickle, RS_VALUE_BYTES, out));
    RS_TRY(rs_pool_take(&pickle->pool, (size_t)text->count + 1, &memory));
    unsigned char *bytes = memory;
    const unsigned char *p = (const unsigned char *)text->as.text;
    uint32_t count = 0;
    for (uint32_t i = 0; i < text->count; i++) {
        if (p[i] < 0x80) {
            bytes[count++] = p[i];
        } else if ((p[i] == 0xc2 || p[i] == 0xc3) && i + 1 < text->count &&
                   (p[i + 1] & 0xc0) == 0x80) {
            bytes[count++] = (unsigned char)((p[i] & 3) << 6 | (p[i + 1] & 0x3f));
            i++;
        } else {
            return RS_ERR_MALFORMED;
        }
    }
    (*out)->count = count;
    (*out)->as.text = memory;
    return RS_OK;
}

static bool takes_none(const rs_value *args)
{
    return args->count == 0;
}

static rs_value *only(const rs_value *args, rs_value_kind kind)
{
    return args->count == 1 && args->as.items[0]->kind == kind ? args->as.items[0] : NULL;
}

static rs_status make_bytes(
    rs_pickle *pickle, const rs_global *callee, rs_value *args, rs_value **out)
{
    bool array = rs_global_is(callee, "builtins", "bytearray");
    const rs_value *source = NULL;
    if (takes_none(args)) {
        RS_TRY(rs_pickle_value(pickle, RS_VALUE_BYTES, out));
        (*out)->as.text = "";
    } else if ((source = only(args, RS_VALUE_BYTES)) != NULL) {
        RS_TRY(rs_pickle_value(pickle, RS_VALUE_BYTES, out));
        (*out)->count = source->count;
        (*out)->as.text = source->as.text;
    } else if (args->count == 2 && args->as.items[0]->kind == RS_VALUE_TEXT &&
               rs_value_string(args->as.items[1]) != NULL &&
               (strcmp(rs_value_string(args->as.items[1]), "latin1") == 0 ||
                   strcmp(rs_value_string(args->as.items[1]), "latin-1") == 0)) {
        RS_TRY(latin1(pickle, args->as.items[0], out));
    } else {
        return RS_ERR_MALFORMED;
    }
    if (array)
        (*out)->form = RS_FORM_BYTEARRAY;
    return RS_OK;
}

static rs_status make_set(
    rs_pickle *pickle, const rs_global *callee, rs_value *args, rs_value **out)
{
    rs_value *items = only(args, RS_VALUE_LIST);
    if (items == NULL && args->count == 1 && rs_value_is(args->as.items[0], RS_VALUE_TUPLE))
        items = args->as.items[0];
    if (items == NULL && !takes_none(args))
        return RS_ERR_MALFORMED;
    RS_TRY(rs_pickle_value(pickle, RS_VALUE_SET, out));
    if (rs_global_is(callee, "builtins", "frozenset"))
        (*out)->form = RS_FORM_FROZEN;
    return items != NULL ? copy_items(pickle, items, *out) : RS_OK;
}

/* OrderedDict() or, from Python 2, OrderedDict([[key, value], ...]); defaultdict(factory), Counter
 * with a dict. */
static rs_status make_dict(
    rs_pickle *pickle, const rs_global *callee, rs_value *args, rs_value **out)
{
    RS_TRY(rs_pickle_value(pickle, RS_VALUE_DICT, out));
    if (strcmp(callee->name, "defaultdict") == 0) {
        (*out)->form = RS_FORM_DEFAULT;
        return args->count <= 1 ? RS_OK : RS_ERR_MALFORMED;
    }
    bool counter = strcmp(callee->name, "Counter") == 0;
    (*out)->form = counter ? RS_FORM_COUNTER : RS_FORM_ORDERED;
    if (takes_none(args))
        return RS_OK;
    const rs_value *from = args->count == 1 ? args->as.items[0] : NULL;
    if (counter && rs_value_is(from, RS_VALUE_DICT)) {
        for (uint32_t i = 0; i < from->count; i++)
            RS_TRY(rs_pickle_set(pickle, *out, from->as.dict->pairs[2 * (size_t)i],
                from->as.dict->pairs[2 * (size_t)i + 1]));
        return RS_OK;
    }
    if (counter || !rs_value_is(from, RS_VALUE_LIST))
        return RS_ERR_MALFORMED;
    for (uint32_t i = 0; i < from->count; i++) {
        const rs_value *pair = from->as.items[i];
        if (!rs_value_is_sequence(pair) || pair->count != 2)
            return RS_ERR_MALFORMED;
        RS_TRY(rs_pickle_set(pickle, *out, pair->as.items[0], pair->as.items[1]));
    }
    return RS_OK;
}

static rs_status make_deque(
    rs_pickle *pickle, const rs_global *callee, rs_value *args, rs_value **out)
{
    (void)callee;
    RS_TRY(rs_pickle_value(pickle, RS_VALUE_LIST, out));
    (*out)->form = RS_FORM_DEQUE;
    if (args->count > 0 && rs_value_is_sequence(args->as.items[0]))
        return copy_items(pickle, args->as.items[0], *out);
    return args->count <= 2 ? RS_OK : RS_ERR_MALFORMED;
}

static rs_status make_size(
    rs_pickle *pickle, const rs_global *callee, rs_value *args, rs_value **out)
{
    (void)callee;
    if (args->count != 1 || !rs_value_is_sequence(args->as.items[0]))
        return RS_ERR_MALFORMED;
    return share(pickle, args->as.items[0], RS_VALUE_TUPLE, RS_FORM_SIZE, out);
}

typedef struct maker {
    const char *module;
    const char *name;
    rs_status (*make)(rs_pickle *, const rs_global *, rs_value *, rs_value **);
} maker;

static const maker makers[] = {
    {"_codecs", "encode", make_bytes},
    {"builtins", "bytes", make_bytes},
    {"builtins", "bytearray", make_bytes},
    {"builtins", "set", make_set},
    {"builtins", "frozenset", make_set},
    {"collections", "OrderedDict", make_dict},
    {"collections", "defaultdict", make_dict},
    {"collections", "Counter", make_dict},
    {"collections", "deque", make_deque},
    {"torch", "Size", make_size},
};

/* getattr(Class, 'NAME'): a member of an enum as some Pythons spell it. */
static rs_status make_member(
    rs_pickle *pickle, rs_value *args, int64_t at, rs_value **out, const char **reason)
{
    *reason = "getattr of anything but a member of a class";
    if (args->count != 2 || args->as.items[0]->kind != RS_VALUE_GLOBAL ||
        rs_value_string(args->as.items[1]) == NULL ||
        strncmp(rs_value_string(args->as.items[1]), "__", 2) == 0)
        return RS_ERR_UNSUPPORTED;
    const rs_global *class = args->as.items[0]->as.global;
    if (rs_allow_global(class) != RS_ALLOW_UNKNOWN && rs_allow_global(class) != RS_ALLOW_CALL)
        return RS_ERR_UNSUPPORTED;
    rs_value *name;
    RS_TRY(rs_pickle_value(pickle, RS_VALUE_TUPLE, &name));
    RS_TRY(rs_pickle_append(pickle, name, args->as.items[1]));
    RS_TRY(rs_pickle_instance(pickle, class, name, at, out));
    (*out)->form = RS_FORM_ENUM;
    return RS_OK;
}

/* copyreg._reconstructor(cls, object, None): an instance, as protocols 0 and 1 spell it. */
static rs_status make_reconstructed(
    rs_pickle *pickle, rs_value *args, int64_t at, rs_value **out, const char **reason)
{
    *reason = "copyreg._reconstructor of anything but a plain object";
    if (args->count != 3 || args->as.items[0]->kind != RS_VALUE_GLOBAL ||
        args->as.items[1]->kind != RS_VALUE_GLOBAL ||
        !rs_global_is(args->as.items[1]->as.global, "builtins", "object") ||
        args->as.items[2]->kind != RS_VALUE_NONE)
        return RS_ERR_UNSUPPORTED;
    rs_value *none;
    RS_TRY(rs_pickle_value(pickle, RS_VALUE_TUPLE, &none));
    return rs_pickle_instance(pickle, args->as.items[0]->as.global, none, at, out);
}

rs_status rs_pickle_make(rs_pickle *pickle, const rs_value *callee, rs_value *args, int64_t at,
    rs_value **out, const char **reason)
{
    const rs_global *global = callee->as.global;
    if (rs_global_is(global, "builtins", "getattr"))
        return make_member(pickle, args, at, out, reason);
    if (rs_global_is(global, "copyreg", "_reconstructor"))
        return make_reconstructed(pickle, args, at, out, reason);
    *reason = "arguments that do not fit it";
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++)
        if (rs_global_is(global, makers[i].module, makers[i].name))
            return makers[i].make(pickle, global, args, out);
    RS_TRY(rs_pickle_instance(pickle, global, args, at, out));
    (*out)->form = RS_FORM_PLAIN;
    return RS_OK;
}
