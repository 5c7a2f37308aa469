/* The inside of rs_sums, for those who fill it. */
#ifndef RS_MOVE_SUMS_H
#define RS_MOVE_SUMS_H

#include "reshard/certificate.h"

struct rs_sums {
    const rs_placement *placement; /* borrowed */
    int holder;
    rs_cell *cells; /* by (role, segment, offset) */
    size_t count;
};

#endif
