/*
 * Strided copies of boxes, alone and with the sum of what was written.
 *
 * A box is brought to its simplest common form (lattice.h). Then one of three walks does it.
 *
 * Rows: both sides have runs of bytes; they are copied one after the other in the target's order.
 * The next ones are asked for ahead, since the processor's own prefetching stops at a run's end.
 *
 * Elements: there are no runs, but both sides agree on the fast dimension: a plain strided loop.
 *
 * Squares: the sides disagree (a transposition). Square tiles go through a small buffer, so that
 * every cache line is fetched once, and rows whose addresses share a cache set do not throw each
 * other out.
 *
 * The fused copy works in pieces of a few KiB: copy a piece, ask for the source of the next one,
 * sum the piece from the target. A piece is small enough to be still in the first-level cache, and
 * large enough that its first lines have arrived when they are read back; the sum's arithmetic
 * fills the wait for the next source.
 *
 * Invariants: every element of the box is written exactly once; the sum reads target memory only.
 * Cost: memory speed for runs of 256 bytes and more (bench/copy.c, bench/certificate.c).
 */
#include "move/copy.h"

#include <string.h>

#include "base/checked.h"
#include "move/checksum.h"
#include "move/lattice.h"
#include "reshard/move.h"

#define PIECE 2048 /* bytes of a long run that are copied before they are summed */
#define GROUP 4096 /* bytes of shorter runs, together */
_Static_assert(GROUP >= 2 * PIECE, "a run that is no piece has company in its group");
#define TILE (16 << 10) /* bytes of a tile of the general fused walk */
#define LINE 64         /* bytes of a cache line */
#define BLOCK_SIDE 128  /* elements; a multiple of any square's side */
#define SQUARE_BYTES 64 /* side of a transposed square */

enum { TO, FROM, CANONICAL };

typedef unsigned char byte;

/* Copies `count` runs of a size that the compiler knows. */
static inline __attribute__((always_inline)) void fixed_rows(
    size_t run, int64_t count, byte *to, int64_t to_stride, const byte *from, int64_t from_stride)
{
    for (int64_t k = 0; k < count; k++) {
        memcpy(to, from, run);
        to += to_stride;
        from += from_stride;
    }
}

/* Copies `count` runs of `run` bytes. */
static void copy_rows(
    int64_t run, int64_t count, byte *to, int64_t to_stride, const byte *from, int64_t from_stride)
{
    switch (run) {
    case 1:
        fixed_rows(1, count, to, to_stride, from, from_stride);
        return;
    case 2:
        fixed_rows(2, count, to, to_stride, from, from_stride);
        return;
    case 4:
        fixed_rows(4, count, to, to_stride, from, from_stride);
        return;
    case 8:
        fixed_rows(8, count, to, to_stride, from, from_stride);
        return;
    case 16:
        fixed_rows(16, count, to, to_stride, from, from_stride);
        return;
    case 32:
        fixed_rows(32, count, to, to_stride, from, from_stride);
        return;
    default:
        break;
    }
    for (int64_t k = 0; k < count; k++) {
        memcpy(to, from, (size_t)run);
        to += to_stride;
        from += from_stride;
    }
}

/*
 * Copies rows x columns elements where columns are near each other in the target and rows in the
 * source, through a square buffer. Sizes up to SQUARE_BYTES / size per side.
 */
static inline __attribute__((always_inline)) void square(size_t size, int64_t rows, int64_t columns,
    byte *to, int64_t to_row, int64_t to_column, const byte *from, int64_t from_row,
    int64_t from_column)
{
    byte buffer[SQUARE_BYTES * SQUARE_BYTES];
    for (int64_t c = 0; c < columns; c++)
        for (int64_t r = 0; r < rows; r++)
            memcpy(buffer + SQUARE_BYTES * c + (int64_t)size * r,
                from + c * from_column + r * from_row, size);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(to + r * to_row + c * to_column, buffer + SQUARE_BYTES * c + (int64_t)size * r,
                size);
}

/* Copies a plane whose fast dimension is `rows` in the source and `columns` in the target, in
 * blocks of squares: a block's pages are few enough for the processor to keep their addresses. */
static inline __attribute__((always_inline)) void squares(size_t size, int64_t rows,
    int64_t columns, byte *to, int64_t to_row, int64_t to_column, const byte *from,
    int64_t from_row, int64_t from_column)
{
    int64_t side = SQUARE_BYTES / (int64_t)size;
    for (int64_t top = 0; top < rows; top += BLOCK_SIDE)
        for (int64_t left = 0; left < columns; left += BLOCK_SIDE)
            for (int64_t r = top; r < rs_min64(rows, top + BLOCK_SIDE); r += side)
                for (int64_t c = left; c < rs_min64(columns, left + BLOCK_SIDE); c += side)
                    square(size, rs_min64(side, rows - r), rs_min64(side, columns - c),
                        to + r * to_row + c * to_column, to_row, to_column,
                        from + r * from_row + c * from_column, from_row, from_column);
}

static void transpose(size_t size, int64_t rows, int64_t columns, byte *to, int64_t to_row,
    int64_t to_column, const byte *from, int64_t from_row, int64_t from_column)
{
    switch (size) {
    case 1:
        squares(1, rows, columns, to, to_row, to_column, from, from_row, from_column);
        break;
    case 2:
        squares(2, rows, columns, to, to_row, to_column, from, from_row, from_column);
        break;
    case 4:
        squares(4, rows, columns, to, to_row, to_column, from, from_row, from_column);
        break;
    default:
        squares(8, rows, columns, to, to_row, to_column, from, from_row, from_column);
    }
}

/* Asks for what is copied next, to come while something else is done. It is asked into the
 * second-level cache: the first has just enough room for a piece on both sides. (Inlined always:
 * the compiler takes a function that only prefetches for one that does nothing.) */
static inline __attribute__((always_inline)) void ask_for(
    const byte *from, int64_t stride, int64_t rows, int64_t bytes)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < bytes; k += LINE)
            __builtin_prefetch(from + r * stride + k, 0, 2);
}

/* The same for places that are written next. Where they follow each other the processor does it
 * itself. */
static inline __attribute__((always_inline)) void ask_to_write(
    const byte *to, int64_t stride, int64_t rows, int64_t bytes)
{
    if (stride == bytes)
        return;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < bytes; k += LINE)
            __builtin_prefetch(to + r * stride + k, 1, 2);
}

/* Copies `count` runs in groups, asking for the next group ahead. */
static void copy_groups(
    int64_t run, int64_t count, byte *to, int64_t to_stride, const byte *from, int64_t from_stride)
{
    int64_t group = rs_max64(GROUP / run, 1);
    for (int64_t k = 0; k < count; k += group) {
        int64_t rows = rs_min64(group, count - k);
        ask_for(from + (k + rows) * from_stride, from_stride, rows, run);
        ask_to_write(to + (k + rows) * to_stride, to_stride, rows, run);
        copy_rows(run, rows, to + k * to_stride, to_stride, from + k * from_stride, from_stride);
    }
}

/* Takes dimension d out of the lattice, returning its extent and strides. */
static int64_t take(rs_lattice *lattice, int d, int64_t *to_stride, int64_t *from_stride)
{
    int64_t extent = lattice->extent[d];
    *to_stride = lattice->stride[TO][d];
    *from_stride = lattice->stride[FROM][d];
    lattice->ndim--;
    for (int k = d; k < lattice->ndim; k++) {
        lattice->extent[k] = lattice->extent[k + 1];
        lattice->stride[TO][k] = lattice->stride[TO][k + 1];
        lattice->stride[FROM][k] = lattice->stride[FROM][k + 1];
    }
    return extent;
}

/* Steps an index over a lattice's dimensions and moves both places along; false at the end. */
static bool step(const rs_lattice *lattice, int64_t *index, int64_t *to, int64_t *from)
{
    for (int d = lattice->ndim - 1; d >= 0; d--) {
        *to += lattice->stride[TO][d];
        *from += lattice->stride[FROM][d];
        if (++index[d] < lattice->extent[d])
            return true;
        *to -= lattice->stride[TO][d] * lattice->extent[d];
        *from -= lattice->stride[FROM][d] * lattice->extent[d];
        index[d] = 0;
    }
    return false;
}

/* Copies a lattice; its sides beyond TO and FROM are ignored. */
static void copy_lattice(const rs_lattice *given, size_t element_size, byte *to, const byte *from)
{
    rs_lattice lattice = *given;
    lattice.sides = 2;
    if (lattice.ndim < 0)
        return;
    rs_lattice_sort(&lattice, TO);
    rs_lattice_collapse(&lattice);
    int64_t index[RS_MAX_DIMS] = {0};
    int64_t to_at = 0;
    int64_t from_at = 0;
    int64_t run = (int64_t)element_size;
    int64_t to_inner = 0;
    int64_t from_inner = 0;
    int last = lattice.ndim - 1;
    if (last >= 0 && lattice.stride[TO][last] == run && lattice.stride[FROM][last] == run)
        run *= take(&lattice, last, &to_inner, &from_inner);
    last = lattice.ndim - 1;
    int fast = rs_lattice_fastest(&lattice, FROM);
    if (run == (int64_t)element_size && fast != last) {
        int64_t to_row;
        int64_t from_row;
        int64_t columns = take(&lattice, last, &to_inner, &from_inner);
        int64_t rows = take(&lattice, fast, &to_row, &from_row);
        do
            transpose(element_size, rows, columns, to + to_at, to_row, to_inner, from + from_at,
                from_row, from_inner);
        while (step(&lattice, index, &to_at, &from_at));
        return;
    }
    int64_t count = last >= 0 ? take(&lattice, last, &to_inner, &from_inner) : 1;
    do
        if (run >= LINE && run < GROUP)
            copy_groups(run, count, to + to_at, to_inner, from + from_at, from_inner);
        else
            copy_rows(run, count, to + to_at, to_inner, from + from_at, from_inner);
    while (step(&lattice, index, &to_at, &from_at));
}

void rs_move_box(int ndim, const int64_t *extent, size_t element_size, void *to,
    const int64_t *to_stride, const void *from, const int64_t *from_stride)
{
    rs_lattice lattice;
    rs_lattice_init(&lattice, ndim, extent, 2, (const int64_t *const[]){to_stride, from_stride});
    copy_lattice(&lattice, element_size, to, from);
}

/* One long run, in pieces that end at multiples of PIECE of the canonical image; `next` is where
 * the run after it begins. */
static void long_run(
    rs_summer *summer, uint64_t at, byte *to, const byte *from, int64_t bytes, const byte *next)
{
    while (bytes > 0) {
        int64_t n = rs_min64(bytes, PIECE - (int64_t)(at % PIECE));
        memcpy(to, from, (size_t)n);
        ask_for(bytes > n ? from + n : next, 0, 1, n);
        rs_summer_run(summer, at, to, (size_t)n);
        at += (uint64_t)n;
        to += n;
        from += n;
        bytes -= n;
    }
}

/* Runs of bytes on all three sides. */
static void summed_rows(rs_summer *summer, rs_lattice *lattice, size_t element_size, uint64_t at,
    byte *to, const byte *from)
{
    int64_t run = (int64_t)element_size;
    if (lattice->ndim > 0)
        run *= lattice->extent[--lattice->ndim];
    int64_t count = 1;
    int64_t stride[RS_LATTICE_SIDES] = {0};
    if (lattice->ndim > 0) {
        int d = --lattice->ndim;
        count = lattice->extent[d];
        for (int s = 0; s < RS_LATTICE_SIDES; s++)
            stride[s] = lattice->stride[s][d];
    }
    int64_t group = run < PIECE ? GROUP / run : 1; /* runs that are copied, then summed */
    int64_t index[RS_MAX_DIMS] = {0};
    int64_t to_at = 0;
    int64_t from_at = 0;
    do {
        uint64_t image = at;
        for (int d = 0; d < lattice->ndim; d++)
            image += (uint64_t)(index[d] * lattice->stride[CANONICAL][d]);
        for (int64_t k = 0; k < count; k += group) {
            byte *row = to + to_at + k * stride[TO];
            const byte *source = from + from_at + k * stride[FROM];
            uint64_t place = image + (uint64_t)(k * stride[CANONICAL]);
            int64_t rows = rs_min64(group, count - k);
            if (group == 1) {
                long_run(summer, place, row, source, run, source + stride[FROM]);
                continue;
            }
            copy_rows(run, rows, row, stride[TO], source, stride[FROM]);
            ask_for(source + rows * stride[FROM], stride[FROM], rows, run);
            ask_to_write(row + rows * stride[TO], stride[TO], rows, run);
            for (int64_t r = 0; r < rows; r++)
                rs_summer_run(summer, place + (uint64_t)(r * stride[CANONICAL]),
                    row + r * stride[TO], (size_t)run);
        }
    } while (step(lattice, index, &to_at, &from_at));
}

static bool has_runs(const rs_lattice *lattice, size_t element_size)
{
    int last = lattice->ndim - 1;
    for (int s = 0; last >= 0 && s < lattice->sides; s++)
        if (lattice->stride[s][last] != (int64_t)element_size)
            return false;
    return true;
}

void rs_move_box_summed(uint64_t key, const int64_t *shape, const rs_box *box, size_t element_size,
    void *to, const int64_t *to_stride, const void *from, const int64_t *from_stride, rs_sum *sum)
{
    int64_t image[RS_MAX_DIMS];
    uint64_t at = rs_sum_canonical_box(box, shape, element_size, image);
    rs_lattice lattice;
    rs_lattice_init(&lattice, box->ndim, box->extent, RS_LATTICE_SIDES,
        (const int64_t *const[]){to_stride, from_stride, image});
    if (lattice.ndim < 0)
        return;
    rs_summer summer;
    rs_summer_init(&summer, key);
    rs_lattice_collapse(&lattice);
    if (has_runs(&lattice, element_size)) {
        summed_rows(&summer, &lattice, element_size, at, to, from);
    } else {
        rs_tiles tiles;
        rs_lattice tile;
        int64_t base[RS_LATTICE_SIDES];
        rs_tiles_begin(&tiles, &lattice, TILE / (int64_t)element_size);
        while (rs_tiles_next(&tiles, &tile, base)) {
            copy_lattice(
                &tile, element_size, (byte *)to + base[TO], (const byte *)from + base[FROM]);
            rs_summer_lattice(&summer, &tile, element_size, CANONICAL,
                at + (uint64_t)base[CANONICAL], TO, (const byte *)to + base[TO]);
        }
    }
    sum->lane[0] += summer.sum.lane[0];
    sum->lane[1] += summer.sum.lane[1];
}
