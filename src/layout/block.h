/* What a block has, as running sums. Include in .c files of this layer only. */
#ifndef RS_LAYOUT_BLOCK_H
#define RS_LAYOUT_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

/* The tensors of a kind of block in the roles that have the same tensors with the same sizes of
 * elements. Starts as {0}. */
typedef struct rs_block {
    int count;
    int slices;
    int *tensors;      /* ascending */
    int64_t *sizes;    /* bytes of an element of each */
    int64_t align;     /* the largest of them, 1 if there are none */
    int64_t *elements; /* [slice][count + 1]: elements of the block before each tensor */
    int64_t *bytes;    /* [slice][count + 1]: where each begins in the block's memory, a multiple of
                          its size; the last is where the block ends */
} rs_block;

/* Copies tensors and sizes. The caller releases it with rs_block_fini, after a failure too.
 */
rs_status rs_block_init(
    rs_block *block, const int *tensors, const int64_t *sizes, int count, int slices) RS_MUST_CHECK;
void rs_block_fini(rs_block *block);

/* Sets the sums of a slice from the elements that it has of each tensor. */
void rs_block_set(rs_block *block, int slice, const int64_t *counts);

/* The place of `tensor` among them, -1 if the block has nothing of it. */
int rs_block_find(const rs_block *block, int tensor);

/* The place of the tensor that has element `element` of the block, or where it would stand. */
int rs_block_at(const rs_block *block, int slice, int64_t element);

/* Where element `element` of the block, which is there, begins, in bytes. */
int64_t rs_block_byte(const rs_block *block, int slice, int64_t element);

static inline const int64_t *rs_block_elements(const rs_block *block, int slice)
{
    return block->elements + (size_t)slice * ((size_t)block->count + 1);
}

static inline const int64_t *rs_block_bytes(const rs_block *block, int slice)
{
    return block->bytes + (size_t)slice * ((size_t)block->count + 1);
}

static inline int64_t rs_block_total(const rs_block *block, int slice)
{
    return rs_block_elements(block, slice)[block->count];
}

#endif
