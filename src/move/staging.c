/*
 * Staging: first fit over one allocation.
 *
 * Messages are packed and unpacked in here, so that what a move takes beside the state is one
 * number, known beforehand. Pages that were never used are never touched, and first fit keeps to
 * the low ones. A pool too full for a block says so; the engine then waits for earlier messages,
 * the oldest of which always has its block already.
 */
#include "move/staging.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

#define ALIGN 64

rs_status rs_staging_init(rs_staging *staging, int64_t capacity)
{
    memset(staging, 0, sizeof *staging);
    if (capacity > INT64_MAX - ALIGN)
        return rs_error_set(RS_ERR_OVERFLOW, "the staging memory does not fit 64 bits");
    staging->capacity = rs_round_up(capacity, ALIGN);
    if (capacity == 0)
        return RS_OK;
    staging->memory = rs_calloc((size_t)staging->capacity, 1);
    if (staging->memory == NULL)
        return rs_error_memory((size_t)staging->capacity);
    return RS_OK;
}

void rs_staging_fini(rs_staging *staging)
{
    free(staging->memory);
    memset(staging, 0, sizeof *staging);
}

char *rs_staging_take(rs_staging *staging, int64_t bytes)
{
    int64_t need = rs_round_up(rs_max64(bytes, 1), ALIGN);
    if (staging->count == RS_STAGING_BLOCKS)
        return NULL;
    int64_t begin = 0;
    int at = 0;
    for (; at < staging->count && staging->blocks[at].begin - begin < need; at++)
        begin = staging->blocks[at].end;
    if (at == staging->count && staging->capacity - begin < need)
        return NULL;
    memmove(&staging->blocks[at + 1], &staging->blocks[at],
        (size_t)(staging->count - at) * sizeof staging->blocks[0]);
    staging->blocks[at].begin = begin;
    staging->blocks[at].end = begin + need;
    staging->count++;
    staging->used += need;
    staging->most = rs_max64(staging->most, staging->used);
    return staging->memory + begin;
}

void rs_staging_give(rs_staging *staging, char *block)
{
    if (block == NULL)
        return;
    for (int at = 0; at < staging->count; at++) {
        if (staging->memory + staging->blocks[at].begin != block)
            continue;
        staging->used -= staging->blocks[at].end - staging->blocks[at].begin;
        staging->count--;
        memmove(&staging->blocks[at], &staging->blocks[at + 1],
            (size_t)(staging->count - at) * sizeof staging->blocks[0]);
        return;
    }
}
