/* Making one copy of a plan between two memories. Include in .c files only. */
#ifndef RS_MOVE_EXECUTE_H
#define RS_MOVE_EXECUTE_H

#include <stdbool.h>

#include "move/cells.h"
#include "reshard/memory.h"
#include "reshard/placement.h"
#include "reshard/plan.h"

/* One end of a copy: where its box lies. */
typedef struct rs_end {
    const void *data; /* first element */
    int64_t stride[RS_MAX_DIMS];
} rs_end;

/* Where the source has the box; where the target has it. RS_ERR_NOT_FOUND if a segment is not
 * mapped, RS_ERR_UNSUPPORTED if it is stored in another type than the role's. `shard` may be NULL.
 */
rs_status rs_end_locate(const rs_placement *placement, int holder, const rs_memory *memory,
    const rs_copy *copy, rs_end *end, rs_shard *shard) RS_MUST_CHECK;

/* The same box packed row-major at `data`. */
void rs_end_packed(const rs_copy *copy, size_t element_size, const void *data, rs_end *end);

/* True if the end's elements lie without gaps in row-major order. */
bool rs_end_is_packed(const rs_copy *copy, size_t element_size, const rs_end *end);

size_t rs_copy_element_size(const rs_space *space, const rs_copy *copy);

/* The sum of the copy's box as one end has it. */
rs_sum rs_end_sum(const rs_space *space, const rs_copy *copy, const rs_end *end);

/* Copies the box and adds its sums to the cells. */
rs_status rs_copy_execute(const rs_space *space, const rs_copy *copy, const rs_end *to,
    const rs_end *from, rs_cells *cells) RS_MUST_CHECK;

/* Adds the sums of a box that was written into its target by other means. */
void rs_copy_sum_target(
    const rs_space *space, const rs_copy *copy, const rs_end *to, rs_cells *cells);

/* The same where the sum of the whole box is known already. */
void rs_copy_add_sum(const rs_space *space, const rs_copy *copy, const rs_end *to,
    const rs_sum *sum, rs_cells *cells);

/* Copies the box, and says whether the target's sum is `*wanted`; only then the cells are filled.
 */
rs_status rs_copy_attempt(const rs_space *space, const rs_copy *copy, const rs_end *to,
    const rs_end *from, const rs_sum *wanted, rs_cells *cells, bool *right) RS_MUST_CHECK;

/* The same with the source's own sum; a wrong copy is made once more, then RS_ERR_CERTIFICATE. */
rs_status rs_copy_execute_checked(const rs_space *space, const rs_copy *copy, const rs_end *to,
    const rs_end *from, rs_cells *cells) RS_MUST_CHECK;

/* RS_ERR_CERTIFICATE, naming the copy. */
rs_status rs_copy_wrong(const rs_space *space, const rs_copy *copy);

#endif
