/*
 * Lattices: the places that the elements of a box have on several sides at once (a source, a
 * target, the tensor's canonical byte image), as byte strides per dimension. Include in .c files
 * only.
 */
#ifndef RS_MOVE_LATTICE_H
#define RS_MOVE_LATTICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/box.h"

#define RS_LATTICE_SIDES 3

typedef struct rs_lattice {
    int ndim; /* extents of one are left out */
    int sides;
    int64_t extent[RS_MAX_DIMS];
    int64_t stride[RS_LATTICE_SIDES][RS_MAX_DIMS]; /* bytes, per side */
} rs_lattice;

/* Starts a lattice over `extent` with `sides` sides; dimensions of extent one are dropped. An empty
 * extent gives ndim -1. */
void rs_lattice_init(
    rs_lattice *lattice, int ndim, const int64_t *extent, int sides, const int64_t *const *stride);

/* Merges neighbouring dimensions that are one arithmetic progression on every side. */
void rs_lattice_collapse(rs_lattice *lattice);

/* Orders the dimensions so that the strides of `side` descend. */
void rs_lattice_sort(rs_lattice *lattice, int side);

/* The dimension with the smallest stride on `side`; -1 if there is none. */
int rs_lattice_fastest(const rs_lattice *lattice, int side);

/* A walk over a lattice in tiles that fit a cache, whatever the order of strides on its sides. */
typedef struct rs_tiles {
    rs_lattice lattice; /* collapsed */
    int64_t tile[RS_MAX_DIMS];
    int64_t at[RS_MAX_DIMS];
    bool done;
} rs_tiles;

/* Tiles of at most about `elements` elements each, long along each side's fastest dimension. */
void rs_tiles_begin(rs_tiles *tiles, const rs_lattice *lattice, int64_t elements);

/* The next tile and the byte offset of its first element on each side; false at the end. */
bool rs_tiles_next(rs_tiles *tiles, rs_lattice *tile, int64_t *base);

#endif
