/*
 * Writing pickles: protocol 2. All but rs_pickle_real and rs_pickle_json write what torch.load
 * takes under weights_only since PyTorch 1.13. In a dict keys and values alternate. Nothing is
 * shared: objects are written out where they stand.
 */
#ifndef RS_CKPT_PICKLE_WRITE_H
#define RS_CKPT_PICKLE_WRITE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/bytes.h"
#include "reshard/dtype.h"

void rs_pickle_begin(rs_bytes *out);
void rs_pickle_end(rs_bytes *out);

void rs_pickle_none(rs_bytes *out);
void rs_pickle_bool(rs_bytes *out, bool value);
void rs_pickle_int(rs_bytes *out, int64_t value);
void rs_pickle_real(rs_bytes *out, double value);
void rs_pickle_text(rs_bytes *out, const char *text);
void rs_pickle_name(rs_bytes *out, const char *module, const char *name);

void rs_pickle_dict(rs_bytes *out);
void rs_pickle_ordered(rs_bytes *out); /* collections.OrderedDict */
void rs_pickle_dict_end(rs_bytes *out);
void rs_pickle_list(rs_bytes *out);
void rs_pickle_list_end(rs_bytes *out);
void rs_pickle_tuple(rs_bytes *out);
void rs_pickle_tuple_end(rs_bytes *out);

/* What stands above on the stack, a dict, becomes the attributes of what is below it. */
void rs_pickle_build(rs_bytes *out);

void rs_pickle_size(rs_bytes *out, int ndim, const int64_t *shape); /* torch.Size */

/* What JSON says of data (docs/formats/extras.md), as data again: with bytes, sets, complex numbers
 * and DeepSpeed's loss scalers, which weights_only does not take everywhere. What was opaque stays
 * the dict that says so. */
void rs_pickle_json(rs_bytes *out, const json_t *value);

/* A contiguous tensor that is the whole of the storage `key`. RS_ERR_UNSUPPORTED (also in the
 * status of `out`): PyTorch has no such type. */
rs_status rs_pickle_tensor(
    rs_bytes *out, rs_dtype dtype, int ndim, const int64_t *shape, int64_t key) RS_MUST_CHECK;

#endif
