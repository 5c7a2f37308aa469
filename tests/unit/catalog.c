/* Catalogs: completeness, reading boxes through strides against element-by-element copies, derived
 * entries, comparisons, and memory that runs out. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "ckpt/catalog.h"

static char path[] = "/tmp/reshard-catalog-XXXXXX";
static int file_bytes = 1 << 16;

static unsigned char byte_at(int64_t offset)
{
    return (unsigned char)(offset * 131 + (offset >> 8) * 7);
}

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    unsigned char *data = malloc((size_t)file_bytes);
    for (int i = 0; i < file_bytes; i++)
        data[i] = byte_at(i);
    int failed = fd < 0 || write(fd, data, (size_t)file_bytes) != file_bytes;
    close(fd);
    free(data);
    return failed;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static rs_catalog *new_catalog(int *file)
{
    rs_catalog *catalog;
    assert_int_equal(rs_catalog_create("test", &catalog), RS_OK);
    assert_int_equal(rs_files_add(catalog->files, path, file), RS_OK);
    return catalog;
}

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* A tensor with random strides in the file, read box by box. */
static void test_strided_reads(void **state)
{
    (void)state;
    uint32_t seed = 5;
    static const rs_dtype dtypes[] = {RS_DTYPE_U8, RS_DTYPE_F32, RS_DTYPE_BF16, RS_DTYPE_C64};
    for (int round = 0; round < 400; round++) {
        int file, id;
        rs_catalog *catalog = new_catalog(&file);
        rs_dtype dtype = dtypes[round % 4];
        int64_t size = (int64_t)rs_dtype_size(dtype);
        int ndim = round % 5 == 0 ? 0 : 1 + (int)(next(&seed) % 3);
        int64_t shape[3];
        rs_piece piece = {.box.ndim = ndim, .file = file, .offset = next(&seed) % 256};
        int64_t step = size;
        /* Strides from the densest dimension outwards, the dimensions in a random order, with gaps
         * now and then, or none at all (an expanded dimension). */
        int order[3] = {0, 1, 2};
        for (int d = ndim - 1; d > 0; d--) {
            int k = (int)(next(&seed) % (uint32_t)(d + 1)), t = order[d];
            order[d] = order[k];
            order[k] = t;
        }
        for (int i = 0; i < ndim; i++) {
            int d = order[i];
            shape[d] = 1 + next(&seed) % 9;
            piece.box.extent[d] = shape[d];
            piece.stride[d] = next(&seed) % 8 == 0 ? 0 : step;
            step = step * shape[d] + (next(&seed) % 3 == 0 ? next(&seed) % 40 * size : 0);
        }
        assert_int_equal(rs_catalog_add(catalog, "t", "param", dtype, ndim, shape, &id), RS_OK);
        assert_int_equal(rs_catalog_piece(catalog, id, &piece), RS_OK);
        assert_int_equal(rs_catalog_finish(catalog), RS_OK);
        rs_box box = {.ndim = ndim};
        for (int d = 0; d < ndim; d++) {
            box.offset[d] = next(&seed) % shape[d];
            box.extent[d] = 1 + next(&seed) % (shape[d] - box.offset[d]);
        }
        unsigned char *out = malloc((size_t)(rs_box_volume(&box) * size));
        assert_int_equal(rs_catalog_read(catalog, id, -1, &box, out), RS_OK);
        int64_t at = 0, point[3] = {0};
        for (bool more = true; more; at += size) {
            int64_t offset = piece.offset;
            for (int d = 0; d < ndim; d++)
                offset += (box.offset[d] + point[d]) * piece.stride[d];
            for (int64_t b = 0; b < size; b++)
                assert_int_equal(out[at + b], byte_at(offset + b));
            more = false;
            for (int d = ndim - 1; d >= 0 && !more; d--) {
                more = ++point[d] < box.extent[d];
                if (!more)
                    point[d] = 0;
            }
        }
        assert_int_equal(at, rs_box_volume(&box) * size);
        free(out);
        rs_catalog_destroy(catalog);
    }
}

static rs_status finish_with(const rs_box *boxes, int count, rs_box *whole)
{
    int file, id;
    rs_catalog *catalog = new_catalog(&file);
    assert_int_equal(
        rs_catalog_add(catalog, "t", "exp_avg", RS_DTYPE_F32, whole->ndim, whole->extent, &id),
        RS_OK);
    for (int i = 0; i < count; i++) {
        rs_piece piece = {.box = boxes[i], .file = file};
        assert_int_equal(rs_catalog_piece(catalog, id, &piece), RS_OK);
    }
    rs_status status = rs_catalog_finish(catalog);
    rs_catalog_destroy(catalog);
    return status;
}

/* Random cuts of a box are complete; with one piece left out, moved or doubled they are not, and
 * the message names the place. */
static void test_completeness(void **state)
{
    (void)state;
    uint32_t seed = 9;
    for (int round = 0; round < 300; round++) {
        rs_box whole = {.ndim = 1 + round % 3};
        for (int d = 0; d < whole.ndim; d++)
            whole.extent[d] = 2 + next(&seed) % 6;
        rs_box boxes[64] = {whole};
        int count = 1;
        for (int cut = 0; cut < 12 && count < 60; cut++) {
            rs_box *b = &boxes[next(&seed) % (uint32_t)count];
            int d = (int)(next(&seed) % (uint32_t)whole.ndim);
            if (b->extent[d] < 2)
                continue;
            int64_t at = 1 + next(&seed) % (b->extent[d] - 1);
            boxes[count] = *b;
            boxes[count].offset[d] += at;
            boxes[count++].extent[d] -= at;
            b->extent[d] = at;
        }
        assert_int_equal(finish_with(boxes, count, &whole), RS_OK);
        rs_box last = boxes[count - 1];
        assert_int_equal(finish_with(boxes, count - 1, &whole), RS_ERR_MALFORMED);
        assert_non_null(strstr(rs_error_message(), count > 1 ? "no file holds" : "is in no file"));
        boxes[count] = boxes[next(&seed) % (uint32_t)count];
        assert_int_equal(finish_with(boxes, count + 1, &whole), RS_ERR_MALFORMED);
        assert_non_null(strstr(rs_error_message(), "held twice"));
        boxes[count - 1] = last;
        boxes[count - 1].offset[0] = whole.extent[0];
        assert_int_equal(finish_with(boxes, count, &whole), RS_ERR_MALFORMED);
    }
}

/* Copies, rounding, means and aliases; what differs is told with index and values. */
static void test_derived(void **state)
{
    (void)state;
    int file, master, param, mean, spare, step;
    int64_t shape[2] = {2, 3};
    float values[6] = {1.0009765625f, 2, 3, 4, 5, 6}, other[6] = {1, 2, 3, 4, 5.5f, 6};
    uint16_t params[6] = {0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c1};
    int64_t steps = 100;
    rs_catalog *catalog = new_catalog(&file);
    assert_int_equal(
        rs_catalog_add(catalog, "w", "master", RS_DTYPE_F32, 2, shape, &master), RS_OK);
    assert_int_equal(rs_catalog_inline(catalog, master, 0, values), RS_OK);
    assert_int_equal(rs_catalog_add(catalog, "w", "param", RS_DTYPE_BF16, 2, shape, &param), RS_OK);
    assert_int_equal(rs_catalog_inline(catalog, param, 0, params), RS_OK);
    assert_int_equal(rs_catalog_add(catalog, "w", "mean", RS_DTYPE_F32, 2, shape, &mean), RS_OK);
    assert_int_equal(rs_catalog_inline(catalog, mean, 3, values), RS_OK);
    assert_int_equal(rs_catalog_inline(catalog, mean, 7, other), RS_OK);
    rs_catalog_get(catalog, mean)->how = RS_ENTRY_AVERAGE;
    assert_int_equal(rs_catalog_add(catalog, "s", "spare", RS_DTYPE_F32, 2, shape, &spare), RS_OK);
    assert_int_equal(rs_catalog_inline(catalog, spare, 0, values), RS_OK);
    assert_int_equal(rs_catalog_inline(catalog, spare, 1, other), RS_OK);
    assert_int_equal(rs_catalog_add(catalog, "s", "step", RS_DTYPE_I64, 0, NULL, &step), RS_OK);
    assert_int_equal(rs_catalog_inline(catalog, step, 0, &steps), RS_OK);
    assert_int_equal(rs_catalog_rounded(catalog, "half", RS_DTYPE_F16, master), RS_OK);
    assert_int_equal(rs_catalog_alias(catalog, "tied", master), RS_OK);
    assert_int_equal(
        rs_catalog_add(catalog, "w", "param", RS_DTYPE_F32, 2, shape, &spare), RS_ERR_MALFORMED);
    assert_int_equal(rs_catalog_finish(catalog), RS_OK);

    rs_box whole = rs_box_whole(2, shape);
    float read[6];
    uint16_t half[6];
    int tied = rs_catalog_find(catalog, "tied", "master");
    int rounded = rs_catalog_find(catalog, "w", "half");
    assert_true(tied >= 0 && rounded >= 0);
    assert_string_equal(rs_catalog_get(catalog, tied)->is.alias_of, "w");
    assert_false(rs_catalog_get(catalog, rounded)->is.stored);
    assert_int_equal(rs_catalog_read(catalog, tied, -1, &whole, read), RS_OK);
    assert_memory_equal(read, values, sizeof values);
    assert_int_equal(rs_catalog_read(catalog, rounded, -1, &whole, half), RS_OK);
    assert_int_equal(half[0], 0x3c01);
    assert_int_equal(half[5], 0x4600);
    assert_int_equal(rs_catalog_read(catalog, mean, -1, &whole, read), RS_OK);
    assert_true(read[4] == 5.25f && read[0] == (1.0009765625f + 1) / 2);
    assert_int_equal(rs_catalog_get(catalog, mean)->is.copies, 2);

    assert_int_equal(rs_catalog_check(catalog), RS_OK);
    assert_int_equal(catalog->warnings.count, 2);
    assert_non_null(strstr(catalog->warnings.items[0],
        "param of \"w\" is not its master rounded, in 1 elements: at [1,2]"));
    assert_non_null(strstr(catalog->warnings.items[1],
        "copies of spare of \"s\" differ in 2 elements: at [0,0] copy 0 has 1.00097656, copy 1 "
        "has 1"));
    rs_catalog_destroy(catalog);
}

/* D08: copies of what is shared that ran apart, of two expert ranks. Each keeps its own, both are
 * told, and where the mean is wanted it is taken in more than their type and rounded once, a tie to
 * even. */
static void test_copies_apart(void **state)
{
    (void)state;
    int file, id, means[2];
    int64_t one = 1;
    const uint16_t copies[2] = {0x3f80, 0x3f81};
    rs_catalog *catalog = new_catalog(&file);
    assert_int_equal(rs_catalog_add(catalog, "a", "param", RS_DTYPE_BF16, 1, &one, &id), RS_OK);
    assert_int_equal(rs_catalog_inline(catalog, id, 0, &copies[0]), RS_OK);
    assert_int_equal(rs_catalog_inline(catalog, id, 1, &copies[1]), RS_OK);
    for (int i = 0; i < 2; i++) {
        int *mean = &means[i];
        assert_int_equal(
            rs_catalog_add(catalog, i == 0 ? "m" : "n", "param", RS_DTYPE_BF16, 1, &one, mean),
            RS_OK);
        assert_int_equal(rs_catalog_inline(catalog, *mean, 0, &copies[i]), RS_OK);
        assert_int_equal(rs_catalog_inline(catalog, *mean, 1, &copies[1 - i]), RS_OK);
        rs_catalog_get(catalog, *mean)->how = RS_ENTRY_AVERAGE;
    }
    assert_int_equal(rs_catalog_finish(catalog), RS_OK);
    rs_box whole = rs_box_whole(1, &one);
    uint16_t read;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rs_catalog_read(catalog, id, i, &whole, &read), RS_OK);
        assert_int_equal(read, copies[i]);
        assert_int_equal(rs_catalog_read(catalog, means[i], -1, &whole, &read), RS_OK);
        assert_int_equal(read, 0x3f80);
    }
    assert_int_equal(rs_catalog_check(catalog), RS_OK);
    assert_int_equal(catalog->warnings.count, 1);
    assert_non_null(strstr(catalog->warnings.items[0],
        "copies of param of \"a\" differ in 1 elements: at [0] copy 0 has 1, copy 1 has "
        "1.0078125"));
    rs_catalog_destroy(catalog);
}

/* Big endian, conjugated and negated elements; an expanded tensor. */
static void test_flags(void **state)
{
    (void)state;
    int file, id;
    int64_t shape[2] = {2, 2};
    float stored[4] = {1, 2, 3, -4};
    rs_catalog *catalog = new_catalog(&file);
    assert_int_equal(rs_catalog_add(catalog, "c", "param", RS_DTYPE_C64, 1, shape, &id), RS_OK);
    rs_piece piece = {.box = rs_box_whole(1, shape), .file = RS_PIECE_INLINE, .stride = {8}};
    piece.flags = RS_PIECE_CONJUGATED | RS_PIECE_NEGATED | RS_PIECE_SWAPPED;
    assert_int_equal(rs_catalog_inline(catalog, id, 9, stored), RS_OK);
    catalog->pieces.count = 0; /* keep the bytes, not the piece */
    assert_int_equal(rs_catalog_piece(catalog, id, &piece), RS_OK);
    assert_int_equal(rs_catalog_add(catalog, "e", "param", RS_DTYPE_F32, 2, shape, &id), RS_OK);
    piece = (rs_piece){.box = rs_box_whole(2, shape), .file = RS_PIECE_INLINE, .offset = 4};
    assert_int_equal(rs_catalog_piece(catalog, id, &piece), RS_OK);
    assert_int_equal(rs_catalog_finish(catalog), RS_OK);
    float read[4];
    rs_box box = rs_box_whole(2, shape);
    assert_int_equal(rs_catalog_read(catalog, id, -1, &box, read), RS_OK);
    for (int i = 0; i < 4; i++)
        assert_true(read[i] == 2);
    box = rs_box_whole(1, shape);
    assert_int_equal(rs_catalog_read(catalog, 0, -1, &box, read), RS_OK);
    for (int i = 0; i < 4; i++) {
        unsigned char *b = (unsigned char *)&read[i], t;
        t = b[0], b[0] = b[3], b[3] = t;
        t = b[1], b[1] = b[2], b[2] = t;
    }
    /* The swap comes first, so the signs that flip are those of the swapped numbers. */
    for (int i = 0; i < 4; i++) {
        uint32_t bits, want;
        memcpy(&bits, &read[i], 4);
        memcpy(&want, &stored[i], 4);
        assert_int_equal(bits, i % 2 == 0 ? want ^ 0x80u : want);
    }
    rs_catalog_destroy(catalog);
}

/* A thousand files: few are open, all are readable; one that changed is refused. */
static void test_many_files(void **state)
{
    (void)state;
    rs_files *files;
    char name[64];
    assert_int_equal(rs_files_create(&files), RS_OK);
    for (int i = 0; i < 300; i++) {
        int id;
        snprintf(name, sizeof name, "%s.%d", path, i);
        FILE *f = fopen(name, "w");
        fprintf(f, "file %04d", i);
        fclose(f);
        assert_int_equal(rs_files_add(files, name, &id), RS_OK);
        assert_int_equal(id, i);
    }
    int open = 0;
    for (int fd = 0; fd < 1024; fd++)
        open += lseek(fd, 0, SEEK_CUR) >= 0;
    assert_true(open < 80);
    for (int i = 299; i >= 0; i--) {
        char text[16] = "", wanted[16];
        snprintf(wanted, sizeof wanted, "%04d", i);
        assert_int_equal(rs_files_read(files, i, 5, text, 4), RS_OK);
        assert_string_equal(text, wanted);
        assert_int_equal(rs_files_read(files, i, 6, text, 4), RS_ERR_MALFORMED);
    }
    snprintf(name, sizeof name, "%s.%d", path, 299);
    assert_int_equal(truncate(name, 3), 0);
    char text[4];
    assert_int_equal(rs_files_read(files, 299, 0, text, 3), RS_ERR_MALFORMED);
    assert_non_null(strstr(rs_error_message(), "changed while it was read"));
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "%s.%d", path, i);
        unlink(name);
    }
    rs_files_destroy(files);
    int id;
    assert_int_equal(rs_files_create(&files), RS_OK);
    assert_int_equal(rs_files_add(files, "/dev/null", &id), RS_ERR_MALFORMED);
    assert_int_equal(rs_files_add(files, "/tmp", &id), RS_ERR_MALFORMED);
    assert_int_equal(rs_files_add(files, "/tmp/no such file", &id), RS_ERR_NOT_FOUND);
    rs_files_destroy(files);
}

/* K04: a million pieces in 10,000 tensors are proved complete in a second, and half of them take
 * about half as long: whole rows, and halves of rows. */
static void test_many_pieces(void **state)
{
    (void)state;
    double seconds[2];
    for (int twice = 0; twice < 2; twice++) {
        rs_catalog *catalog;
        clock_t begun = clock();
        assert_int_equal(rs_catalog_create("test", &catalog), RS_OK);
        int tensors = twice ? 10000 : 5000;
        for (int t = 0; t < tensors; t++) {
            const int64_t shape[] = {100, 8};
            char name[32];
            int id;
            snprintf(name, sizeof name, "layers.%d.w", t);
            assert_int_equal(
                rs_catalog_add(catalog, name, "param", RS_DTYPE_F32, 2, shape, &id), RS_OK);
            for (int64_t p = 99; p >= 0; p--) {
                rs_piece piece = {
                    .box = {.ndim = 2, .offset = {p, 0}, .extent = {1, 8}}, .stride = {32, 4}};
                /* In every other tensor the pieces are halves of two rows. */
                if (t % 2 == 1)
                    piece.box =
                        (rs_box){.ndim = 2, .offset = {p / 2 * 2, p % 2 * 4}, .extent = {2, 4}};
                assert_int_equal(rs_catalog_piece(catalog, id, &piece), RS_OK);
            }
        }
        assert_int_equal(rs_catalog_finish(catalog), RS_OK);
        rs_catalog_destroy(catalog);
        seconds[twice] = (double)(clock() - begun) / CLOCKS_PER_SEC;
    }
    print_message("500,000 pieces: %.2f s; 1,000,000: %.2f s\n", seconds[0], seconds[1]);
    assert_true(seconds[1] < 3.2 * seconds[0] + 0.1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strided_reads),
        cmocka_unit_test(test_completeness),
        cmocka_unit_test(test_derived),
        cmocka_unit_test(test_copies_apart),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_many_files),
        cmocka_unit_test(test_many_pieces),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
