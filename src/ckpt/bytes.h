/* Growing bytes: what is written of a format beside the data of tensors. */
#ifndef RS_CKPT_BYTES_H
#define RS_CKPT_BYTES_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

/* Starts as {0}. After a failed append it stays failed and ignores what comes. */
typedef struct rs_bytes {
    unsigned char *data;
    size_t length, capacity;
    rs_status status;
} rs_bytes;

void rs_bytes_append(rs_bytes *bytes, const void *data, size_t count);
void rs_bytes_fill(rs_bytes *bytes, unsigned char value, size_t count);

/* The low `size` bytes of the number, little endian; at most 8. */
void rs_bytes_little(rs_bytes *bytes, uint64_t number, size_t size);

void rs_bytes_fini(rs_bytes *bytes);

#endif
