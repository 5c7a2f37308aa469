/* From files of torch.save into a catalog. */
#ifndef RS_CKPT_TORCH_READ_H
#define RS_CKPT_TORCH_READ_H

#include "ckpt/catalog.h"
#include "ckpt/torch.h"
#include "reshard/status.h"

/* The tensor as the only piece of an entry of its own shape. */
void rs_torch_piece(const rs_torch *torch, const rs_torch_tensor *tensor, rs_piece *piece);

/* Enters every tensor of the file's object under the path that leads to it. */
rs_status rs_torch_enter(rs_catalog *catalog, rs_torch *torch) RS_MUST_CHECK;

/* The same for one value of the object, under "<prefix>.<key>" (`prefix` may be ""), with `role`
 * for all of its tensors. */
rs_status rs_torch_enter_value(rs_catalog *catalog, rs_torch *torch, const char *prefix,
    const char *key, rs_value *value, const char *role) RS_MUST_CHECK;

/* Warns of what is odd about the file as a container. */
rs_status rs_torch_warn(rs_catalog *catalog, const rs_torch *torch) RS_MUST_CHECK;

/* Hands the checksums of its records to the catalog. */
rs_status rs_torch_checksums(rs_catalog *catalog, const rs_torch *torch) RS_MUST_CHECK;

#endif
