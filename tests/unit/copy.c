/*
 * Strided copies against one written element by element, on random boxes: any order and padding of
 * strides on both sides, all element sizes, extents around every border of the kernels. Bytes
 * outside the box must stay as they were, and the fused sum must be that of the target.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "move/copy.h"
#include "move/lattice.h"
#include "reshard/move.h"

static uint64_t seed = 1;

static uint64_t draw(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % below;
}

typedef struct side {
    unsigned char *data;
    size_t bytes;
    int64_t stride[RS_MAX_DIMS];
} side;

/* A buffer of random bytes and strides in a random order of dimensions with random gaps. */
static side make_side(int ndim, const int64_t *extent, size_t size, int shuffle)
{
    side out = {0};
    int order[RS_MAX_DIMS];
    for (int d = 0; d < ndim; d++)
        order[d] = d;
    for (int d = ndim - 1; shuffle && d > 0; d--) {
        int other = (int)draw((uint64_t)d + 1);
        int t = order[d];
        order[d] = order[other];
        order[other] = t;
    }
    int64_t step = (int64_t)size;
    for (int k = ndim - 1; k >= 0; k--) {
        if (draw(4) == 0)
            step += (int64_t)(size * draw(9)); /* a gap; not always a multiple of anything */
        out.stride[order[k]] = step;
        step *= extent[order[k]] > 0 ? extent[order[k]] : 1;
    }
    out.bytes = (size_t)step + size;
    out.data = malloc(out.bytes);
    for (size_t k = 0; k < out.bytes; k++)
        out.data[k] = (unsigned char)draw(256);
    return out;
}

static void copy_plainly(
    int ndim, const int64_t *extent, size_t size, const side *to, const side *from)
{
    int64_t at[RS_MAX_DIMS] = {0};
    for (int d = 0; d < ndim; d++)
        if (extent[d] == 0)
            return;
    for (;;) {
        int64_t t = 0;
        int64_t f = 0;
        for (int d = 0; d < ndim; d++) {
            t += at[d] * to->stride[d];
            f += at[d] * from->stride[d];
        }
        memcpy(to->data + t, from->data + f, size);
        int d = ndim - 1;
        for (; d >= 0 && ++at[d] == extent[d]; d--)
            at[d] = 0;
        if (d < 0)
            return;
    }
}

static void random_extent(int ndim, int64_t *extent)
{
    static const int64_t sizes[] = {
        1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 127, 130, 1025, 5000};
    int64_t volume = 1;
    for (int d = 0; d < ndim; d++) {
        extent[d] = sizes[draw(16)];
        while (volume * extent[d] > 60000)
            extent[d] = 1 + extent[d] / 4;
        volume *= extent[d];
    }
    if (draw(40) == 0 && ndim > 0)
        extent[draw((uint64_t)ndim)] = 0;
}

static void check_case(int ndim, const int64_t *extent, size_t size, int shuffle)
{
    side from = make_side(ndim, extent, size, shuffle);
    side to = make_side(ndim, extent, size, shuffle);
    side wanted = to;
    wanted.data = malloc(to.bytes);
    side fused = to;
    fused.data = malloc(to.bytes);
    memcpy(wanted.data, to.data, to.bytes);
    memcpy(fused.data, to.data, to.bytes);
    copy_plainly(ndim, extent, size, &wanted, &from);

    rs_move_box(ndim, extent, size, to.data, to.stride, from.data, from.stride);
    assert_memory_equal(to.data, wanted.data, to.bytes);

    /* The box somewhere inside a larger tensor. */
    rs_box box = {.ndim = ndim};
    int64_t shape[RS_MAX_DIMS];
    for (int d = 0; d < ndim; d++) {
        box.extent[d] = extent[d];
        box.offset[d] = (int64_t)draw(5);
        shape[d] = box.offset[d] + extent[d] + (int64_t)draw(5);
    }
    rs_sum sum = {{3, 4}};
    rs_move_box_summed(
        77, shape, &box, size, fused.data, fused.stride, from.data, from.stride, &sum);
    assert_memory_equal(fused.data, wanted.data, to.bytes);
    rs_sum alone = rs_sum_box(77, shape, &box, size, wanted.data, wanted.stride);
    assert_int_equal(sum.lane[0], alone.lane[0] + 3);
    assert_int_equal(sum.lane[1], alone.lane[1] + 4);
    free(from.data);
    free(to.data);
    free(wanted.data);
    free(fused.data);
}

static void copies_any_strides(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 4, 8};
    for (int round = 0; round < 400; round++) {
        int ndim = (int)draw(6);
        if (draw(20) == 0)
            ndim = RS_MAX_DIMS;
        int64_t extent[RS_MAX_DIMS];
        random_extent(ndim, extent);
        check_case(ndim, extent, sizes[draw(4)], (int)draw(2));
    }
}

/* Rows of every length around those at which the walks change (cache line, piece, group, tile),
 * several of them, apart on both sides and together: a walk that takes runs by groups must take
 * each of them. */
static void rows_of_any_length(void **state)
{
    (void)state;
    for (int64_t length = 32; length <= (64 << 10); length *= 2)
        for (int around = -1; around <= 2; around++) {
            int64_t bytes = around < 2 ? length + 8 * around : length + length / 2;
            for (size_t size = 2; size <= 8; size *= 2)
                for (int64_t rows = 1; rows <= 5; rows++)
                    check_case(2, (int64_t[]){rows, bytes / (int64_t)size}, size, 0);
        }
}

/* Tiles must cover a lattice exactly once, whatever the sides' orders. */
static void tiles_cover_once(void **state)
{
    (void)state;
    for (int round = 0; round < 100; round++) {
        int64_t extent[4] = {1 + (int64_t)draw(9), 1 + (int64_t)draw(40), 1 + (int64_t)draw(30),
            1 + (int64_t)draw(5)};
        int64_t a[4] = {extent[1] * extent[2] * extent[3], extent[2] * extent[3], extent[3], 1};
        int64_t b[4] = {1, extent[0], extent[0] * extent[1], extent[0] * extent[1] * extent[2]};
        int64_t volume = extent[0] * extent[1] * extent[2] * extent[3];
        unsigned char *seen = calloc((size_t)volume, 1);
        rs_lattice lattice;
        rs_lattice_init(&lattice, 4, extent, 2, (const int64_t *const[]){a, b});
        rs_tiles tiles;
        int64_t limit = 1 + (int64_t)draw(300);
        rs_tiles_begin(&tiles, &lattice, limit);
        rs_lattice tile;
        int64_t base[RS_LATTICE_SIDES];
        while (rs_tiles_next(&tiles, &tile, base)) {
            int64_t count = 1;
            for (int d = 0; d < tile.ndim; d++)
                count *= tile.extent[d];
            assert_true(count <= limit);
            for (int64_t k = 0; k < count; k++) {
                int64_t rest = k;
                int64_t at = base[0];
                for (int d = tile.ndim - 1; d >= 0; d--) {
                    at += rest % tile.extent[d] * tile.stride[0][d];
                    rest /= tile.extent[d];
                }
                assert_int_equal(seen[at]++, 0);
            }
        }
        for (int64_t k = 0; k < volume; k++)
            assert_int_equal(seen[k], 1);
        free(seen);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_any_strides),
        cmocka_unit_test(rows_of_any_length),
        cmocka_unit_test(tiles_cover_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
