/*
 * A checkpoint as one file of torch.save: weights alone as a state dict, or the whole state in the
 * layout that docs/formats/torch.md describes under "What reshard writes".
 */
#ifndef RS_CKPT_TORCH_STATE_H
#define RS_CKPT_TORCH_STATE_H

#include <jansson.h>
#include <stdbool.h>

#include "ckpt/catalog.h"
#include "ckpt/logical.h"
#include "ckpt/torch.h"
#include "ckpt/torch_write.h"
#include "reshard/status.h"

/* Puts the tensors into a new file's object; the tag of each is its number in the list.
 * `whole`: with other roles than params and buffers, and the extras. RS_ERR_UNSUPPORTED: a name
 * stands for two tensors, or PyTorch lacks a type. */
rs_status rs_torch_state_make(const rs_catalog *catalog, const rs_logical_list *tensors,
    const json_t *extras, bool whole, rs_torch_make *make) RS_MUST_CHECK;

/* True for a file that was written so. */
bool rs_torch_state_is(const rs_torch *torch);

/* Enters its tensors and extras under their roles. */
rs_status rs_torch_state_read(rs_catalog *catalog, rs_torch *torch) RS_MUST_CHECK;

#endif
