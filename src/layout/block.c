/*
 * Blocks: running sums, from which places of elements come by binary search.
 *
 * A block is local boxes put end to end. Which element of the block is the first of a tensor, and
 * at which byte it lies, are sums over the tensors before. The two differ where sizes of elements
 * do: each tensor begins at a multiple of its size, so that bytes may be left between two tensors,
 * never within one and never before the first.
 *
 * Cost: slices x tensors of memory; an answer is a binary search.
 */
#include "layout/block.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

rs_status rs_block_init(
    rs_block *block, const int *tensors, const int64_t *sizes, int count, int slices)
{
    size_t n = (size_t)count;
    *block = (rs_block){.count = count, .slices = slices, .align = 1};
    block->tensors = rs_calloc(n, sizeof *block->tensors);
    block->sizes = rs_calloc(n, sizeof *block->sizes);
    block->elements = rs_calloc((size_t)slices * (n + 1), sizeof *block->elements);
    block->bytes = rs_calloc((size_t)slices * (n + 1), sizeof *block->bytes);
    if (block->tensors == NULL || block->sizes == NULL || block->elements == NULL ||
        block->bytes == NULL)
        return rs_error_memory((size_t)slices * (n + 1) * sizeof *block->elements);
    for (int i = 0; i < count; i++) {
        block->tensors[i] = tensors[i];
        block->sizes[i] = sizes[i];
        block->align = rs_max64(block->align, sizes[i]);
    }
    return RS_OK;
}

void rs_block_fini(rs_block *block)
{
    free(block->tensors);
    free(block->sizes);
    free(block->elements);
    free(block->bytes);
    memset(block, 0, sizeof *block);
}

void rs_block_set(rs_block *block, int slice, const int64_t *counts)
{
    int64_t *elements = block->elements + (size_t)slice * ((size_t)block->count + 1);
    int64_t *bytes = block->bytes + (size_t)slice * ((size_t)block->count + 1);
    int64_t end = 0;
    for (int i = 0; i < block->count; i++) {
        elements[i + 1] = elements[i] + counts[i];
        bytes[i] = counts[i] > 0 ? rs_round_up(end, block->sizes[i]) : end;
        end = bytes[i] + counts[i] * block->sizes[i];
    }
    bytes[block->count] = end;
}

int rs_block_find(const rs_block *block, int tensor)
{
    int at = (int)RS_SEARCH(block->count, k, block->tensors[k] < tensor);
    return at < block->count && block->tensors[at] == tensor ? at : -1;
}

int rs_block_at(const rs_block *block, int slice, int64_t element)
{
    const int64_t *elements = rs_block_elements(block, slice);
    return (int)RS_SEARCH(block->count, k, elements[k + 1] <= element);
}

int64_t rs_block_byte(const rs_block *block, int slice, int64_t element)
{
    int i = rs_block_at(block, slice, element);
    return rs_block_bytes(block, slice)[i] +
           (element - rs_block_elements(block, slice)[i]) * block->sizes[i];
}
