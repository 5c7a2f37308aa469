/* A bounded pool of memory for packed messages. Include in .c files only. */
#ifndef RS_MOVE_STAGING_H
#define RS_MOVE_STAGING_H

#include <stdint.h>

#include "reshard/status.h"

#define RS_STAGING_BLOCKS 256

typedef struct rs_staging {
    char *memory;
    int64_t capacity;
    int64_t used;
    int64_t most; /* largest `used` so far */
    int count;
    struct {
        int64_t begin;
        int64_t end;
    } blocks[RS_STAGING_BLOCKS]; /* by begin */
} rs_staging;

rs_status rs_staging_init(rs_staging *staging, int64_t capacity) RS_MUST_CHECK;
void rs_staging_fini(rs_staging *staging);

/* A block of `bytes` bytes; NULL if there is no room now. An empty pool has room for its capacity.
 */
char *rs_staging_take(rs_staging *staging, int64_t bytes);

/* NULL is fine. */
void rs_staging_give(rs_staging *staging, char *block);

#endif
