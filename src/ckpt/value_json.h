/* Values as JSON, for the extras of a checkpoint. */
#ifndef RS_CKPT_VALUE_JSON_H
#define RS_CKPT_VALUE_JSON_H

#include <jansson.h>

#include "ckpt/value.h"

/*
 * `value` as JSON. Tensors are left out of dicts and stand as "<tensor>" elsewhere. Integers beyond
 * 64 bits, numbers that JSON does not have, bytes, sets and records become objects with one telling
 * member (docs/formats/extras.md). `*left` counts down the values that may still be written; from 0
 * on, "<more>" stands for them. NULL if memory runs out.
 */
json_t *rs_value_json(const rs_value *value, int64_t *left);

#define RS_VALUE_JSON_MOST 200000

#endif
