/*
 * The engine of conversions by itself: random lists of files, parts at any byte, on file systems in
 * memory and on a disk, with any number of threads and sizes of chunks, against files put together
 * in memory; checksums against those of whole buffers; cancellation; memory that runs out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>
#include <zlib.h>

#include "base/memory.h"
#include "ckpt/file.h"
#include "ckpt/output.h"
#include "ckpt/publish.h"
#include "support/ok.h"
#include "support/random.h"

#define SOURCE_BYTES (3 << 20)
#define TENSORS 9

static char memory_root[] = "/dev/shm/unit-output-XXXXXX", disk_root[] = "/tmp/unit-output-XXXXXX";
static unsigned char *content; /* of the source */
static rs_catalog *catalog;
static rs_logical tensors[TENSORS];

static int below(uint64_t *random, int count)
{
    return random_in(random, 0, count - 1);
}

/* A file of noise, and tensors that lie in it, of all element sizes. */
static int make_source(void **state)
{
    (void)state;
    static const rs_dtype dtypes[] = {RS_DTYPE_F32, RS_DTYPE_BF16, RS_DTYPE_U8, RS_DTYPE_F64,
        RS_DTYPE_C128, RS_DTYPE_F32, RS_DTYPE_F32, RS_DTYPE_I64, RS_DTYPE_BF16};
    static const int64_t counts[TENSORS] = {1, 7, 100001, 30000, 20000, 0, 500000, 3, 65536};
    char path[64];
    int file, id;
    uint64_t random = 7;
    assert_true(mkdtemp(memory_root) != NULL && mkdtemp(disk_root) != NULL);
    content = malloc(SOURCE_BYTES);
    for (int i = 0; i < SOURCE_BYTES; i++)
        content[i] = (unsigned char)random_next(&random);
    snprintf(path, sizeof path, "%s/source", memory_root);
    FILE *out = fopen(path, "w");
    assert_int_equal(fwrite(content, 1, SOURCE_BYTES, out), SOURCE_BYTES);
    fclose(out);
    OK(rs_catalog_create("test", &catalog));
    OK(rs_files_add(catalog->files, path, &file));
    for (int i = 0; i < TENSORS; i++) {
        char name[8] = {'t', (char)('0' + i), 0};
        OK(rs_catalog_add(catalog, name, "param", dtypes[i], 1, &counts[i], &id));
        OK(rs_catalog_whole(catalog, id, 0, file, 64 * i));
    }
    OK(rs_catalog_finish(catalog));
    for (int i = 0; i < TENSORS; i++) {
        const rs_checkpoint_entry *entry = &rs_catalog_get(catalog, i)->is;
        tensors[i] = (rs_logical){.name = entry->name,
            .role = entry->role,
            .dtype = dtypes[i],
            .ndim = 1,
            .shape = {counts[i]},
            .id = i,
            .box = rs_box_whole(1, &counts[i]),
            .bytes = counts[i] * (int64_t)rs_dtype_size(dtypes[i])};
    }
    return 0;
}

static int remove_source(void **state)
{
    (void)state;
    rs_catalog_destroy(catalog);
    free(content);
    return rs_remove_folder(memory_root) != RS_OK || rs_remove_folder(disk_root) != RS_OK;
}

/* A list, and what its files must be. */
typedef struct wanted {
    rs_output output;
    unsigned char *bytes[6];
    size_t rooms[6];
} wanted;

static unsigned char *add_bytes(unsigned char *to, int64_t at, const void *data, int64_t bytes)
{
    to = realloc(to, (size_t)(at + bytes + 1));
    if (bytes > 0)
        memcpy(to + at, data, (size_t)bytes);
    return to;
}

static wanted make(uint64_t *random, int files)
{
    wanted w = {0};
    for (int f = 0; f < files; f++) {
        char name[32];
        snprintf(name, sizeof name, f % 3 == 2 ? "a/b%d/c" : f % 3 == 1 ? "a/%d" : "%d", f);
        OK(rs_output_file(&w.output, name));
        w.rooms[f] = SIZE_MAX;
        for (int parts = below(random, 7); parts > 0; parts--) {
            int64_t at = rs_output_at(&w.output);
            size_t given = (size_t)below(random, below(random, 3) == 0 ? 300000 : 9);
            const rs_logical *t = &tensors[below(random, TENSORS)];
            switch (below(random, 5)) {
            case 0:
                OK(rs_output_bytes(&w.output, content + 1000, given, NULL));
                w.bytes[f] = add_bytes(w.bytes[f], at, content + 1000, (int64_t)given);
                break;
            case 1:
                given = (size_t)((64 - at % 64) % 64);
                OK(rs_output_bytes(&w.output, (char[64]){0}, given, NULL));
                w.bytes[f] = add_bytes(w.bytes[f], at, (char[64]){0}, (int64_t)given);
                break;
            case 2:
                if (w.rooms[f] != SIZE_MAX)
                    break;
                OK(rs_output_room(&w.output, (int64_t)given, &w.rooms[f]));
                w.bytes[f] = add_bytes(w.bytes[f], at, content + 5, (int64_t)given);
                break;
            default: {
                unsigned sums = (unsigned)below(random, 4);
                if (at % (int64_t)rs_dtype_size(t->dtype) == 0 && rs_dtype_size(t->dtype) <= 8)
                    sums |= RS_OUTPUT_CONTENT;
                OK(rs_output_tensor(&w.output, t, sums, NULL));
                w.bytes[f] = add_bytes(w.bytes[f], at, content + 64 * t->id, t->bytes);
            }
            }
        }
    }
    return w;
}

static void wanted_fini(wanted *w)
{
    for (int f = 0; f < 6; f++)
        free(w->bytes[f]);
    rs_output_fini(&w->output);
}

static rs_status fill_rooms(void *context, int file)
{
    wanted *w = context;
    assert_true(w->rooms[file] != SIZE_MAX);
    return rs_output_fill(&w->output, w->rooms[file], content + 5);
}

static void check_file(const wanted *w, const char *root, size_t f)
{
    const rs_output_file_row *file = &w->output.files.items[f];
    char *path, *found;
    size_t length;
    OK(rs_path_join(root, file->name, &path));
    OK(rs_file_text(path, 1 << 30, &found, &length));
    assert_int_equal(length, file->bytes);
    assert_true(length == 0 || memcmp(found, w->bytes[f], length) == 0);
    free(found);
    free(path);
}

static void check_sums(const wanted *w)
{
    for (size_t i = 0; i < w->output.parts.count; i++) {
        const rs_output_part *part = &w->output.parts.items[i];
        const rs_logical *t = part->tensor;
        if (t == NULL)
            continue;
        const unsigned char *data = content + 64 * t->id;
        if (part->sums & RS_OUTPUT_XXH3)
            assert_int_equal(part->xxh3, XXH3_64bits(data, (size_t)t->bytes));
        if (part->sums & RS_OUTPUT_CRC32)
            assert_int_equal(part->crc32, crc32(0, data, (unsigned)t->bytes));
        if ((part->sums & RS_OUTPUT_CONTENT) && t->bytes > 0) {
            int64_t stride = (int64_t)rs_dtype_size(t->dtype);
            rs_sum sum = rs_sum_box(rs_sum_key(t->name, t->role), t->shape, &t->box,
                rs_dtype_size(t->dtype), data, &stride);
            assert_int_equal(part->content.lane[0], sum.lane[0]);
            assert_int_equal(part->content.lane[1], sum.lane[1]);
        }
    }
}

static void test_random_lists(void **state)
{
    (void)state;
    uint64_t random = 20261201;
    for (int round = 0; round < 60; round++) {
        char root[64];
        int files = 1 + below(&random, 6);
        wanted w = make(&random, files);
        snprintf(root, sizeof root, "%s/%d", round % 2 ? disk_root : memory_root, round);
        OK(rs_make_folder(root));
        const rs_output_how how = {.catalog = catalog,
            .folder = root,
            .memory = (int64_t)1 << (12 + below(&random, 16)),
            .threads = below(&random, 6),
            .complete = fill_rooms,
            .context = &w};
        OK(rs_output_write(&w.output, &how));
        for (int f = 0; f < files; f++)
            check_file(&w, root, (size_t)f);
        check_sums(&w);
        OK(rs_remove_folder(root));
        wanted_fini(&w);
    }
}

static bool after_some(void *context)
{
    int *left = context;
    return --*left < 0;
}

static void test_cancelled(void **state)
{
    (void)state;
    uint64_t random = 3;
    char root[64];
    wanted w = make(&random, 6);
    int left = 3;
    snprintf(root, sizeof root, "%s/cancelled", memory_root);
    OK(rs_make_folder(root));
    rs_output_how how = {.catalog = catalog,
        .folder = root,
        .memory = 1,
        .threads = 1,
        .complete = fill_rooms,
        .context = &w,
        .cancelled = after_some,
        .cancelled_context = &left};
    assert_int_equal(rs_output_write(&w.output, &how), RS_ERR_CANCELLED);
    OK(rs_remove_folder(root));
    wanted_fini(&w);
}

/* Each allocation fails once: it is said, nothing is lost or used twice. */
static void test_no_memory(void **state)
{
    (void)state;
    uint64_t random = 3;
    char root[64];
    wanted w = make(&random, 6);
    snprintf(root, sizeof root, "%s/memory", memory_root);
    int failures = 0;
    for (size_t n = 1;; n++) {
        OK(rs_make_folder(root));
        rs_output_how how = {.catalog = catalog,
            .folder = root,
            .memory = 300000,
            .threads = 3,
            .complete = fill_rooms,
            .context = &w};
        rs_alloc_fail_at(n);
        rs_status status = rs_output_write(&w.output, &how);
        bool clean = rs_alloc_fail_at(0) < n;
        assert_int_equal(status, clean ? RS_OK : RS_ERR_NO_MEMORY);
        OK(rs_remove_folder(root));
        if (clean)
            break;
        failures++;
    }
    assert_true(failures > 20);
    wanted_fini(&w);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_random_lists),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(all, make_source, remove_source);
}
