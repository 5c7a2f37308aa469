/*
 * The zip archive that torch.save makes: where each record stands, and the bytes around it.
 *
 * Usual order: fill the records with names and sizes, rs_zip_layout; then, record by record,
 * rs_zip_head, its content, its CRC-32 into `crc`, rs_zip_tail; last rs_zip_end.
 */
#ifndef RS_CKPT_ZIP_WRITE_H
#define RS_CKPT_ZIP_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/bytes.h"
#include "reshard/status.h"

typedef struct rs_zip_record {
    const char *name; /* with its folder */
    int64_t bytes;    /* of its content */
    int64_t header;   /* of the file: its local header */
    int64_t offset;   /* of the file: its content, a multiple of 64 */
    uint32_t crc;     /* of its content */
} rs_zip_record;

/* Sets header and offset of every record; `*bytes` is the size of the whole file. */
rs_status rs_zip_layout(rs_zip_record *records, size_t count, int64_t *bytes) RS_MUST_CHECK;

/* Appends what stands before the content, behind it (its crc is known), and behind all. */
void rs_zip_head(const rs_zip_record *record, rs_bytes *out);
void rs_zip_tail(const rs_zip_record *record, rs_bytes *out);
/* Bytes behind the content. */
int64_t rs_zip_tail_bytes(const rs_zip_record *record);
void rs_zip_end(const rs_zip_record *records, size_t count, rs_bytes *out);

#endif
