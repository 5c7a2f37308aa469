/*
 * Lattices: strided index spaces seen from several sides.
 *
 * A copy kernel wants few and long dimensions. Two neighbouring dimensions can be walked as one if
 * on every side a step of the outer one is as long as all the steps of the inner one; a box of full
 * rows becomes a single run that way, whatever its number of dimensions.
 *
 * Where the sides disagree on which dimension is the fast one (a transposition), neither order of
 * loops suits both: each cache line of one side would be fetched anew for every element. Tiles that
 * are long along every side's fastest dimension use each line whole while it is in cache.
 *
 * Invariant: all functions keep the set of places (and, but for rs_lattice_sort, their order).
 */
#include "move/lattice.h"

#include <string.h>

#include "base/checked.h"

void rs_lattice_init(
    rs_lattice *lattice, int ndim, const int64_t *extent, int sides, const int64_t *const *stride)
{
    lattice->ndim = 0;
    lattice->sides = sides;
    for (int d = 0; d < ndim; d++) {
        if (extent[d] <= 0) {
            lattice->ndim = -1;
            return;
        }
        if (extent[d] == 1)
            continue;
        int n = lattice->ndim++;
        lattice->extent[n] = extent[d];
        for (int s = 0; s < sides; s++)
            lattice->stride[s][n] = stride[s][d];
    }
}

/* True if dimension d continues where d + 1 ends, on every side. */
static int continues(const rs_lattice *lattice, int d)
{
    for (int s = 0; s < lattice->sides; s++)
        if (lattice->stride[s][d] != lattice->extent[d + 1] * lattice->stride[s][d + 1])
            return 0;
    return 1;
}

void rs_lattice_collapse(rs_lattice *lattice)
{
    for (int d = lattice->ndim - 2; d >= 0; d--) {
        if (!continues(lattice, d))
            continue;
        lattice->extent[d] *= lattice->extent[d + 1];
        for (int s = 0; s < lattice->sides; s++)
            lattice->stride[s][d] = lattice->stride[s][d + 1];
        lattice->ndim--;
        for (int k = d + 1; k < lattice->ndim; k++) {
            lattice->extent[k] = lattice->extent[k + 1];
            for (int s = 0; s < lattice->sides; s++)
                lattice->stride[s][k] = lattice->stride[s][k + 1];
        }
    }
}

static void swap(int64_t *a, int64_t *b)
{
    int64_t t = *a;
    *a = *b;
    *b = t;
}

void rs_lattice_sort(rs_lattice *lattice, int side)
{
    for (int i = 1; i < lattice->ndim; i++)
        for (int d = i; d > 0 && lattice->stride[side][d] > lattice->stride[side][d - 1]; d--) {
            swap(&lattice->extent[d], &lattice->extent[d - 1]);
            for (int s = 0; s < lattice->sides; s++)
                swap(&lattice->stride[s][d], &lattice->stride[s][d - 1]);
        }
}

int rs_lattice_fastest(const rs_lattice *lattice, int side)
{
    int best = -1;
    for (int d = 0; d < lattice->ndim; d++)
        if (best < 0 || lattice->stride[side][d] < lattice->stride[side][best])
            best = d;
    return best;
}

/* Doubles the tile along dimension d; false if it has the whole extent. */
static bool grow(rs_tiles *tiles, int d)
{
    if (tiles->tile[d] >= tiles->lattice.extent[d])
        return false;
    tiles->tile[d] = rs_min64(2 * tiles->tile[d], tiles->lattice.extent[d]);
    return true;
}

static int64_t tile_volume(const rs_tiles *tiles)
{
    int64_t volume = 1;
    for (int d = 0; d < tiles->lattice.ndim; d++)
        volume *= tiles->tile[d];
    return volume;
}

void rs_tiles_begin(rs_tiles *tiles, const rs_lattice *lattice, int64_t elements)
{
    memset(tiles, 0, sizeof *tiles);
    tiles->lattice = *lattice;
    rs_lattice_collapse(&tiles->lattice);
    tiles->done = lattice->ndim < 0;
    int ndim = tiles->lattice.ndim;
    for (int d = 0; d < ndim; d++)
        tiles->tile[d] = 1;
    /* First all fast dimensions in turn, then the others from the innermost outwards. */
    for (bool grew = true; grew;) {
        grew = false;
        for (int side = 0; side < lattice->sides; side++) {
            int d = rs_lattice_fastest(&tiles->lattice, side);
            if (d >= 0 && 2 * tile_volume(tiles) <= elements)
                grew = grow(tiles, d) || grew;
        }
    }
    for (int d = ndim - 1; d >= 0; d--)
        while (2 * tile_volume(tiles) <= elements && grow(tiles, d))
            ;
}

bool rs_tiles_next(rs_tiles *tiles, rs_lattice *tile, int64_t *base)
{
    if (tiles->done)
        return false;
    const rs_lattice *lattice = &tiles->lattice;
    *tile = *lattice;
    for (int side = 0; side < lattice->sides; side++) {
        base[side] = 0;
        for (int d = 0; d < lattice->ndim; d++)
            base[side] += tiles->at[d] * lattice->stride[side][d];
    }
    for (int d = 0; d < lattice->ndim; d++)
        tile->extent[d] = rs_min64(tiles->tile[d], lattice->extent[d] - tiles->at[d]);
    int d = lattice->ndim - 1;
    for (; d >= 0; d--) {
        tiles->at[d] += tiles->tile[d];
        if (tiles->at[d] < lattice->extent[d])
            break;
        tiles->at[d] = 0;
    }
    tiles->done = d < 0;
    return true;
}
