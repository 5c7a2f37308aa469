/* The directory of a zip archive, checked: what torch.save writes, and what zip tools make of it.
 */
#ifndef RS_CKPT_ZIP_H
#define RS_CKPT_ZIP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/file.h"
#include "ckpt/names.h"
#include "ckpt/pool.h"
#include "reshard/status.h"

typedef struct rs_zip_entry {
    const char *name;
    int64_t header; /* of its local header, in the file */
    int64_t offset; /* of its stored bytes, in the file */
    int64_t stored;
    int64_t bytes; /* of its content */
    uint32_t crc;
    bool deflated;
} rs_zip_entry;

typedef struct rs_zip {
    rs_zip_entry *items; /* in the order of the directory */
    size_t count;
    int64_t trailing; /* bytes behind the archive's end */
    rs_names names;
    rs_pool pool;
} rs_zip;

/*
 * Reads the directory of the archive that fills bytes [begin, end) of `file`. RS_ERR_MALFORMED says
 * which byte is wrong and why. Release with rs_zip_fini, also after an error.
 */
rs_status rs_zip_read(
    rs_files *files, int file, int64_t begin, int64_t end, rs_zip *zip) RS_MUST_CHECK;
void rs_zip_fini(rs_zip *zip);

/* The entry of that name, NULL if there is none. */
const rs_zip_entry *rs_zip_find(const rs_zip *zip, const char *name);

#endif
