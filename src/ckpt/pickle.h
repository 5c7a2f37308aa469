/* Pickles read as data: a machine that builds values and calls nothing. */
#ifndef RS_CKPT_PICKLE_H
#define RS_CKPT_PICKLE_H

#include <stdint.h>

#include "ckpt/file.h"
#include "ckpt/names.h"
#include "ckpt/pool.h"
#include "ckpt/value.h"
#include "reshard/status.h"

/* What one pickle may take: values, stack and memo together stay below 256 MiB. */
#define RS_PICKLE_POOL ((size_t)160 << 20)
#define RS_PICKLE_STACK ((size_t)4 << 20)
#define RS_PICKLE_MEMO ((size_t)8 << 20)
#define RS_PICKLE_NESTING 1000

typedef struct rs_pickle {
    rs_pool pool;
    rs_value *root;
    int64_t end;               /* the byte behind its STOP */
    const rs_global **unknown; /* names outside the list of allow.h that stand in it as data */
    size_t unknown_count;
    size_t unknown_capacity;
    const rs_value **persistent; /* every persistent object, in the order of the stream */
    size_t persistent_count;
    size_t persistent_capacity;
    rs_names globals;
    const rs_global **global_list;
    size_t global_count;
    size_t global_capacity;
} rs_pickle;

/*
 * Reads the pickle that starts at byte `begin` of `file` and ends before `end`. RS_ERR_MALFORMED
 * says which byte is wrong, RS_ERR_UNSUPPORTED that it would call something that is not allowed,
 * and what. Release with rs_pickle_fini, also after an error.
 */
rs_status rs_pickle_read(
    rs_files *files, int file, int64_t begin, int64_t end, rs_pickle *pickle) RS_MUST_CHECK;
void rs_pickle_fini(rs_pickle *pickle);

/* A value in the pickle's pool, zeroed but for its kind. */
rs_status rs_pickle_value(rs_pickle *pickle, rs_value_kind kind, rs_value **out) RS_MUST_CHECK;

/* Appends to a list, tuple or set; appends to a dict. */
rs_status rs_pickle_append(rs_pickle *pickle, rs_value *list, rs_value *item) RS_MUST_CHECK;
rs_status rs_pickle_set(
    rs_pickle *pickle, rs_value *dict, rs_value *key, rs_value *value) RS_MUST_CHECK;

/*
 * What calling `callee` with `args` (and nothing else) would have made, as data: containers become
 * such, everything else a record. `*reason` says why it is refused (static text), with
 * RS_ERR_UNSUPPORTED or RS_ERR_MALFORMED and no detail recorded.
 */
rs_status rs_pickle_make(rs_pickle *pickle, const rs_value *callee, rs_value *args, int64_t at,
    rs_value **out, const char **reason) RS_MUST_CHECK;

/* The record of an instance of `callee`. */
rs_status rs_pickle_instance(rs_pickle *pickle, const rs_global *callee, rs_value *args, int64_t at,
    rs_value **out) RS_MUST_CHECK;

#endif
