/*
 * The certificate's sums: against the definition written out element by element, additive under any
 * cut, independent of strides, equal in all implementations; and what they must notice, by
 * thousands of random corruptions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "move/checksum.h"
#include "reshard/certificate.h"

static uint64_t seed = 7;

static uint64_t draw(uint64_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 20) % below;
}

static int equal(rs_sum a, rs_sum b)
{
    return a.lane[0] == b.lane[0] && a.lane[1] == b.lane[1];
}

static rs_sum add(rs_sum a, rs_sum b)
{
    return (rs_sum){{a.lane[0] + b.lane[0], a.lane[1] + b.lane[1]}};
}

/* docs/certificate.md, word for word: one byte of the canonical image. */
static rs_sum mix_byte(uint64_t key, uint64_t at, unsigned char value)
{
    uint64_t word = at / 4;
    uint64_t bits = (uint64_t)value << 8 * (at % 4);
    rs_sum sum;
    for (int lane = 0; lane < 2; lane++)
        sum.lane[lane] = rs_sum_multiplier(key, word / RS_SUM_BLOCK, lane) *
                         rs_sum_weight((int)(word % RS_SUM_BLOCK) + lane * RS_SUM_LAG) * bits;
    return sum;
}

/* Sum of a box of a contiguous tensor by the definition. */
static rs_sum by_definition(uint64_t key, int ndim, const int64_t *shape, const rs_box *box,
    size_t size, const void *tensor)
{
    rs_sum sum = {{0, 0}};
    int64_t volume = rs_box_volume(box);
    for (int64_t k = 0; k < volume; k++) {
        int64_t rest = k;
        int64_t index = 0;
        int64_t step = 1;
        for (int d = ndim - 1; d >= 0; d--) {
            index += (box->offset[d] + rest % box->extent[d]) * step;
            step *= shape[d];
            rest /= box->extent[d];
        }
        for (size_t b = 0; b < size; b++) {
            uint64_t at = (uint64_t)index * size + b;
            sum = add(sum, mix_byte(key, at, ((const unsigned char *)tensor)[at]));
        }
    }
    return sum;
}

static void contiguous(int ndim, const int64_t *shape, size_t size, int64_t *stride)
{
    rs_sum_canonical(ndim, shape, size, stride);
}

static const unsigned char *first_of(
    const rs_box *box, const int64_t *stride, const unsigned char *tensor)
{
    for (int d = 0; d < box->ndim; d++)
        tensor += box->offset[d] * stride[d];
    return tensor;
}

static unsigned char *noise(size_t bytes)
{
    unsigned char *data = malloc(bytes + 1);
    for (size_t k = 0; k < bytes; k++)
        data[k] = (unsigned char)draw(256);
    return data;
}

static void follows_the_definition(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 4, 8};
    for (int round = 0; round < 150; round++) {
        size_t size = sizes[draw(4)];
        int ndim = (int)draw(4);
        int64_t shape[3] = {1 + (int64_t)draw(6), 1 + (int64_t)draw(40), 1 + (int64_t)draw(700)};
        rs_box box = {.ndim = ndim};
        int64_t volume = 1;
        for (int d = 0; d < ndim; d++) {
            box.offset[d] = (int64_t)draw((uint64_t)shape[d]);
            box.extent[d] = 1 + (int64_t)draw((uint64_t)(shape[d] - box.offset[d]));
            volume *= shape[d];
        }
        int64_t stride[3];
        contiguous(ndim, shape, size, stride);
        unsigned char *tensor = noise((size_t)volume * size);
        rs_sum sum = rs_sum_box(5, shape, &box, size, first_of(&box, stride, tensor), stride);
        assert_true(equal(sum, by_definition(5, ndim, shape, &box, size, tensor)));
        free(tensor);
    }
}

static void parts_add_up(void **state)
{
    (void)state;
    int64_t shape[3] = {3, 37, 211};
    int64_t stride[3];
    contiguous(3, shape, 2, stride);
    unsigned char *tensor = noise(3 * 37 * 211 * 2);
    rs_box whole = rs_box_whole(3, shape);
    rs_sum total = rs_sum_box(9, shape, &whole, 2, tensor, stride);
    for (int round = 0; round < 200; round++) {
        rs_box inner = whole;
        for (int d = 0; d < 3; d++) {
            inner.offset[d] = (int64_t)draw((uint64_t)shape[d]);
            inner.extent[d] = 1 + (int64_t)draw((uint64_t)(shape[d] - inner.offset[d]));
        }
        rs_box rest[2 * RS_MAX_DIMS];
        int count = rs_box_subtract(&whole, &inner, rest);
        rs_sum sum = rs_sum_box(9, shape, &inner, 2, first_of(&inner, stride, tensor), stride);
        for (int k = 0; k < count; k++)
            sum = add(
                sum, rs_sum_box(9, shape, &rest[k], 2, first_of(&rest[k], stride, tensor), stride));
        assert_true(equal(sum, total));
    }
    free(tensor);
}

/* The same content transposed in memory, and with padded rows. */
static void strides_do_not_matter(void **state)
{
    (void)state;
    int64_t shape[2] = {67, 1031};
    static const size_t sizes[] = {1, 2, 4, 8};
    for (int s = 0; s < 4; s++) {
        size_t size = sizes[s];
        int64_t stride[2];
        contiguous(2, shape, size, stride);
        unsigned char *tensor = noise(67 * 1031 * size);
        rs_box whole = rs_box_whole(2, shape);
        rs_sum sum = rs_sum_box(1, shape, &whole, size, tensor, stride);
        int64_t turned[2] = {(int64_t)size, 70 * (int64_t)size};
        int64_t padded[2] = {1100 * (int64_t)size, (int64_t)size};
        unsigned char *other = calloc(1031 * 70 + 67 * 1100, size);
        for (int turn = 0; turn < 2; turn++) {
            const int64_t *places = turn ? turned : padded;
            for (int64_t r = 0; r < 67; r++)
                for (int64_t c = 0; c < 1031; c++)
                    memcpy(other + r * places[0] + c * places[1],
                        tensor + r * stride[0] + c * stride[1], size);
            assert_true(equal(sum, rs_sum_box(1, shape, &whole, size, other, places)));
        }
        free(other);
        free(tensor);
    }
}

static void implementations_agree(void **state)
{
    (void)state;
    rs_sum_dot *fast = rs_sum_dot_fast();
    if (fast == NULL)
        skip();
    uint32_t weight[RS_SUM_BLOCK + RS_SUM_LAG];
    for (int k = 0; k < RS_SUM_BLOCK + RS_SUM_LAG; k++)
        weight[k] = rs_sum_weight(k);
    unsigned char *data = noise(4 * RS_SUM_BLOCK + 64);
    memset(data + 100, 0xff, 512); /* the largest products */
    for (int round = 0; round < 3000; round++) {
        size_t first = draw(RS_SUM_BLOCK);
        size_t words = draw(RS_SUM_BLOCK - first + 1);
        size_t shift = draw(64);
        uint64_t a[2];
        uint64_t b[2];
        rs_sum_dot_plain()(weight + first, data + shift, words, a);
        fast(weight + first, data + shift, words, b);
        assert_int_equal(a[0], b[0]);
        assert_int_equal(a[1], b[1]);
    }
    free(data);
}

/* Distinct weights make any two flipped signs of a block visible for certain. */
static void weights_are_distinct(void **state)
{
    (void)state;
    for (int k = 0; k < RS_SUM_BLOCK + RS_SUM_LAG; k++)
        for (int j = 0; j < k; j++)
            assert_int_not_equal(rs_sum_weight(j), rs_sum_weight(k));
}

#define ROWS 32
#define COLUMNS 600

static rs_sum sum_matrix(uint64_t key, size_t size, const void *data)
{
    int64_t shape[2] = {ROWS, COLUMNS};
    int64_t stride[2];
    contiguous(2, shape, size, stride);
    rs_box whole = rs_box_whole(2, shape);
    return rs_sum_box(key, shape, &whole, size, data, stride);
}

static void swap_bytes(unsigned char *a, unsigned char *b, size_t bytes)
{
    for (size_t k = 0; k < bytes; k++) {
        unsigned char t = a[k];
        a[k] = b[k];
        b[k] = t;
    }
}

/* One random corruption; true if it changed a byte. */
static int corrupt(unsigned char *data, size_t size)
{
    size_t bytes = ROWS * COLUMNS * size;
    size_t row = COLUMNS * size;
    unsigned char *before = malloc(bytes);
    memcpy(before, data, bytes);
    size_t elements = ROWS * COLUMNS;
    switch (draw(9)) {
    case 0: /* one bit */
        data[draw(bytes)] ^= (unsigned char)(1u << draw(8));
        break;
    case 1: /* two rows swapped */
        swap_bytes(data + row * draw(ROWS / 2), data + row * (ROWS / 2 + draw(ROWS / 2)), row);
        break;
    case 2: /* two elements swapped */ {
        size_t a = draw(elements);
        size_t b = draw(elements);
        if (a != b)
            swap_bytes(data + a * size, data + b * size, size);
        break;
    }
    case 3: /* a stretch zeroed */ {
        size_t at = draw(bytes);
        size_t n = 1 + draw(bytes - at);
        memset(data + at, 0, n);
        break;
    }
    case 4: /* a stretch shifted by one element */ {
        size_t n = 1 + draw(elements - 2);
        memmove(data + size, data, n * size);
        break;
    }
    case 5: /* two signs turned */ {
        size_t a = draw(elements);
        size_t b = draw(elements);
        data[a * size + size - 1] ^= 0x80;
        data[b * size + size - 1] ^= 0x80;
        break;
    }
    case 6: /* all signs turned */
        for (size_t k = 0; k < elements; k++)
            data[k * size + size - 1] ^= 0x80;
        break;
    case 7: /* columns swapped in every row */ {
        size_t a = draw(COLUMNS);
        size_t b = draw(COLUMNS);
        for (size_t r = 0; r < ROWS && a != b; r++)
            swap_bytes(data + r * row + a * size, data + r * row + b * size, size);
        break;
    }
    default: /* rows turned round */
        for (size_t r = 0; r < ROWS / 2; r++)
            swap_bytes(data + r * row, data + (ROWS - 1 - r) * row, row);
    }
    int changed = memcmp(before, data, bytes) != 0;
    free(before);
    return changed;
}

static void corruption_is_noticed(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 4, 8};
    int noticed = 0;
    for (int s = 0; s < 4; s++) {
        size_t size = sizes[s];
        size_t bytes = ROWS * COLUMNS * size;
        unsigned char *data = noise(bytes);
        /* Values as moments and 16-bit parameters have them: many equal, low bits zero. */
        for (size_t k = 0; k < ROWS * COLUMNS; k++)
            if (k % 3 == 0)
                memset(data + k * size, 0, size);
            else if (size == 4)
                memset(data + k * size, 0, 2);
        unsigned char *work = malloc(bytes);
        rs_sum sum = sum_matrix(11, size, data);
        for (int round = 0; round < 1500; round++) {
            memcpy(work, data, bytes);
            if (!corrupt(work, size))
                continue;
            rs_sum other = sum_matrix(11, size, work);
            assert_int_not_equal(sum.lane[0], other.lane[0]); /* each lane by itself */
            assert_int_not_equal(sum.lane[1], other.lane[1]);
            noticed++;
        }
        free(work);
        free(data);
    }
    assert_true(noticed > 5000);
}

/* Two tensors, or a moment and its master, in each other's place. */
static void keys_differ(void **state)
{
    (void)state;
    unsigned char *data = noise(ROWS * COLUMNS * 4);
    unsigned char *other = noise(ROWS * COLUMNS * 4);
    uint64_t a = rs_sum_key("layers.attn.q.weight", "master");
    uint64_t b = rs_sum_key("layers.attn.k.weight", "master");
    uint64_t c = rs_sum_key("layers.attn.q.weight", "exp_avg");
    assert_int_not_equal(a, b);
    assert_int_not_equal(a, c);
    assert_int_not_equal(rs_sum_key("ab", "c"), rs_sum_key("a", "bc"));
    assert_int_equal(a, rs_sum_key("layers.attn.q.weight", "master"));
    assert_false(equal(sum_matrix(a, 4, data), sum_matrix(b, 4, data)));
    assert_false(equal(sum_matrix(a, 4, data), sum_matrix(c, 4, data)));
    assert_false(equal(add(sum_matrix(a, 4, data), sum_matrix(c, 4, other)),
        add(sum_matrix(a, 4, other), sum_matrix(c, 4, data))));
    free(data);
    free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_definition),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(strides_do_not_matter),
        cmocka_unit_test(implementations_agree),
        cmocka_unit_test(weights_are_distinct),
        cmocka_unit_test(corruption_is_noticed),
        cmocka_unit_test(keys_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
