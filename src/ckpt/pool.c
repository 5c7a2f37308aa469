/* Blocks that double in size up to a bound; what does not fit into a block gets one of its own. */
#include "ckpt/pool.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

#define BLOCK_MIN ((size_t)16 << 10)
#define BLOCK_MAX ((size_t)1 << 20)
#define ALIGN ((size_t)8)

struct rs_pool_block {
    rs_pool_block *previous;
    char data[];
};

static rs_status grow(rs_pool *pool, size_t bytes)
{
    size_t want = pool->total < BLOCK_MIN ? BLOCK_MIN : pool->total;
    if (want > BLOCK_MAX)
        want = BLOCK_MAX;
    if (want < bytes)
        want = bytes;
    if (pool->limit > 0 && (bytes > pool->limit || pool->total > pool->limit - bytes))
        return rs_error_set(RS_ERR_BUDGET,
            "its description needs more than %zu MiB of memory, the most that is given to one file",
            pool->limit >> 20);
    if (want > SIZE_MAX - sizeof(rs_pool_block))
        return rs_error_memory(want);
    rs_pool_block *block = rs_calloc(sizeof *block + want, 1);
    if (block == NULL)
        return rs_error_memory(want);
    block->previous = pool->blocks;
    pool->blocks = block;
    pool->next = block->data;
    pool->left = want;
    pool->total += want;
    return RS_OK;
}

rs_status rs_pool_take(rs_pool *pool, size_t bytes, void **out)
{
    if (bytes > SIZE_MAX - ALIGN)
        return rs_error_memory(bytes);
    size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (rounded > pool->left)
        RS_TRY(grow(pool, rounded));
    *out = pool->next;
    pool->next += rounded;
    pool->left -= rounded;
    return RS_OK;
}

rs_status rs_pool_text(rs_pool *pool, const char *text, size_t length, const char **out)
{
    void *copy;
    if (length == SIZE_MAX)
        return rs_error_memory(length);
    RS_TRY(rs_pool_take(pool, length + 1, &copy));
    memcpy(copy, text, length);
    *out = copy;
    return RS_OK;
}

void rs_pool_fini(rs_pool *pool)
{
    while (pool->blocks != NULL) {
        rs_pool_block *block = pool->blocks;
        pool->blocks = block->previous;
        free(block);
    }
    memset(pool, 0, sizeof *pool);
}
