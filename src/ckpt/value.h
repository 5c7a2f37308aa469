/*
 * Values: what a pickle describes, as data. A graph, since pickles share objects and may even
 * contain cycles: walk it with a depth limit. Everything lives in the pickle's pool.
 */
#ifndef RS_CKPT_VALUE_H
#define RS_CKPT_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "reshard/status.h"

typedef enum rs_value_kind {
    RS_VALUE_NONE = 0,
    RS_VALUE_BOOL,
    RS_VALUE_INT,
    RS_VALUE_BIG, /* an integer beyond 64 bits: bytes, two's complement, little endian */
    RS_VALUE_FLOAT,
    RS_VALUE_TEXT,
    RS_VALUE_BYTES,
    RS_VALUE_LIST,
    RS_VALUE_TUPLE,
    RS_VALUE_DICT,
    RS_VALUE_SET,
    RS_VALUE_GLOBAL,    /* a class, function or constant, by name */
    RS_VALUE_CALL,      /* what a class or function would have made; nothing was called */
    RS_VALUE_PERSISTENT /* what the file's owner would have looked up: a storage */
} rs_value_kind;

/* How a value was spelt, where kinds have several spellings. */
typedef enum rs_value_form {
    RS_FORM_PLAIN = 0,
    RS_FORM_SIZE,      /* tuple: torch.Size */
    RS_FORM_DEQUE,     /* list: collections.deque */
    RS_FORM_BYTEARRAY, /* bytes */
    RS_FORM_FROZEN,    /* set */
    RS_FORM_ORDERED,   /* dict: OrderedDict, defaultdict, Counter */
    RS_FORM_DEFAULT,
    RS_FORM_COUNTER,
    RS_FORM_INSTANCE, /* call: an instance of a class (its __new__), else a function's result */
    RS_FORM_ENUM      /* call: a member of an enum by its name, args = (name,) */
} rs_value_form;

typedef struct rs_value rs_value;

typedef struct rs_global {
    const char *module; /* builtins for what Python 2 called __builtin__ */
    const char *name;
} rs_global;

/* What can be done with it was checked when it was read. */
typedef struct rs_call {
    const rs_global *callee;
    rs_value *args;   /* a tuple */
    rs_value *state;  /* from BUILD, NULL if there was none */
    rs_value *items;  /* a list, of what was appended; NULL */
    rs_value *pairs;  /* a dict, of what was set; NULL */
    rs_value *kwargs; /* NULL */
    int64_t at;       /* byte of the file */
} rs_call;

typedef struct rs_dict {
    rs_value **pairs; /* key, value, key, value, ... */
    rs_value *state;  /* attributes of an OrderedDict, NULL */
} rs_dict;

struct rs_value {
    uint8_t kind;   /* rs_value_kind */
    uint8_t form;   /* rs_value_form */
    uint16_t mark;  /* for walks: 0 between them */
    uint32_t count; /* characters, bytes, items, or pairs */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *text; /* UTF-8 if the writer kept to it; a NUL stands behind */
        rs_value **items;
        rs_dict *dict;
        const rs_global *global;
        rs_call *call;
        rs_value *id; /* of a persistent object: a tuple */
    } as;
};

static inline bool rs_value_is(const rs_value *value, rs_value_kind kind)
{
    return value != NULL && value->kind == kind;
}

static inline bool rs_value_is_sequence(const rs_value *value)
{
    return rs_value_is(value, RS_VALUE_LIST) || rs_value_is(value, RS_VALUE_TUPLE);
}

/* The value of a text key, the last one set; NULL if `dict` is no dict or has no such key. */
rs_value *rs_value_get(const rs_value *dict, const char *key);

/* The value of an integer key. */
rs_value *rs_value_get_index(const rs_value *dict, int64_t key);

/* A BOOL or INT (or an enum made from one) as integer. */
bool rs_value_integer(const rs_value *value, int64_t *out);

/* A text without NUL inside, else NULL. */
const char *rs_value_string(const rs_value *value);

/* True for a call (or global) of that name. */
bool rs_value_is_call(const rs_value *value, const char *module, const char *name);
bool rs_global_is(const rs_global *global, const char *module, const char *name);

/* The attribute `name` of an instance whose state is a dict (or a pair of dicts). */
rs_value *rs_value_attribute(const rs_value *instance, const char *name);

/* Equal as data, down to 64 levels; deeper ones count as different. */
bool rs_value_equal(const rs_value *a, const rs_value *b);

/* Python's repr of a key: 'a', 1, (1, 2), None, True, 2.5; anything else by its kind. */
void rs_value_append_repr(rs_text *text, const rs_value *key);

#endif
