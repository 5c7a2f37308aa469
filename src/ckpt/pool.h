/*
 * A pool: memory handed out piece by piece and given back all at once, with a limit that a hostile
 * file cannot make it exceed.
 */
#ifndef RS_CKPT_POOL_H
#define RS_CKPT_POOL_H

#include <stddef.h>

#include "reshard/status.h"

typedef struct rs_pool_block rs_pool_block;

/* Starts as {0}: no limit. */
typedef struct rs_pool {
    rs_pool_block *blocks;
    char *next;
    size_t left;  /* bytes from `next` on that are free */
    size_t total; /* bytes of all blocks */
    size_t limit; /* of `total`; 0: none */
} rs_pool;

/* `bytes` zeroed bytes, aligned for any type. RS_ERR_BUDGET above the limit. */
rs_status rs_pool_take(rs_pool *pool, size_t bytes, void **out) RS_MUST_CHECK;

/* A copy of `length` characters with a NUL behind. */
rs_status rs_pool_text(
    rs_pool *pool, const char *text, size_t length, const char **out) RS_MUST_CHECK;

void rs_pool_fini(rs_pool *pool);

#endif
