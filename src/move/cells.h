/* Filling the sums of a placement's cells while copies come in. Include in .c files only. */
#ifndef RS_MOVE_CELLS_H
#define RS_MOVE_CELLS_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/certificate.h"

/* One cell, and what of it was not summed yet. */
typedef struct rs_cell_part {
    rs_cell *cell;
    int64_t missing; /* elements */
} rs_cell_part;

/* The cells of one rs_sums that are not known yet, by (tensor, role, first coordinate). */
typedef struct rs_cells {
    rs_cell_part *parts;
    size_t count;
    int64_t longest; /* largest extent along axis 0 */
} rs_cells;

/* Borrows `sums`, which may be NULL: then there are no cells. */
rs_status rs_cells_init(rs_cells *cells, rs_sums *sums) RS_MUST_CHECK;
void rs_cells_fini(rs_cells *cells);

/* The next part that meets `box` of (tensor, role), from `*at` (0 at first) on; NULL if there is
 * none. `common` gets what both have. */
rs_cell_part *rs_cells_next(
    const rs_cells *cells, int tensor, int role, const rs_box *box, size_t *at, rs_box *common);

/* Adds the sum of `elements` elements of a part; the cell is known when none is missing. */
void rs_cell_part_add(rs_cell_part *part, const rs_sum *sum, int64_t elements);

#endif
