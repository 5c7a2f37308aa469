/* safetensors files: the fixtures, and the troubles that others had (docs of the case numbers: the
 * comment at each). */
#include "truth.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/safetensors.h"

static int good, bad;

/* Truths without an expectation, and those that say "ok", must be read. */
static void check_fixture(const char *folder, const char *name, const json_t *truth)
{
    const char *path = in_folder(folder, truth_text(truth, "file"));
    const char *expect = truth_text(truth, "expect");
    printf("  %s\n", name);
    if (strcmp(expect, "error") == 0) {
        assert_refused(path, NULL);
        bad++;
        return;
    }
    rs_checkpoint *checkpoint = NULL;
    rs_status status = rs_checkpoint_open(path, NULL, &checkpoint);
    if (status != RS_OK && strcmp(expect, "ok") != 0) {
        printf("    %s\n", rs_error_message());
        return;
    }
    if (status != RS_OK)
        fail_msg("%s", rs_error_message());
    assert_string_equal(rs_checkpoint_format(checkpoint), "safetensors");
    size_t index;
    json_t *tensor;
    json_array_foreach(json_object_get(truth, "tensors"), index, tensor)
        assert_entry(checkpoint, truth_text(tensor, "name"), "param", tensor);
    if (json_array_size(json_object_get(truth, "tensors")) > 0)
        assert_int_equal(
            rs_checkpoint_count(checkpoint), json_array_size(json_object_get(truth, "tensors")));
    rs_checkpoint_close(checkpoint);
    good++;
}

static void test_fixtures(void **state)
{
    (void)state;
    for_fixtures("safetensors", check_fixture);
    printf("%d good, %d refused\n", good, bad);
    assert_true(good >= 8 && bad >= 30);
    assert_peak_below(300);
}

/* A file from a header and data. */
static const char *make(const char *name, const char *header, const void *data, size_t bytes)
{
    size_t length = strlen(header);
    unsigned char *file = calloc(8 + length + bytes, 1);
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(file + 8, header, length);
    if (bytes > 0)
        memcpy(file + 8 + length, data, bytes);
    const char *path = scratch_file(name, file, 8 + length + bytes);
    free(file);
    return path;
}

static rs_status open_only(const char *path)
{
    return read_everything(path, NULL);
}

/* I04: data at odd addresses. */
static void test_unaligned(void **state)
{
    (void)state;
    unsigned char data[11] = {1, 2, 3};
    float numbers[2] = {1.5f, -2.0f};
    memcpy(data + 3, numbers, sizeof numbers);
    const char *path = make("unaligned.safetensors",
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[3,11]}}",
        data, sizeof data);
    rs_checkpoint *checkpoint;
    assert_int_equal(rs_checkpoint_open(path, NULL, &checkpoint), RS_OK);
    float read[2];
    rs_box box = {.ndim = 1, .extent = {2}};
    int64_t b = rs_checkpoint_find(checkpoint, "b", "param");
    assert_int_equal(rs_checkpoint_read(checkpoint, (size_t)b, &box, read, sizeof read), RS_OK);
    assert_memory_equal(read, numbers, sizeof numbers);
    box = (rs_box){.ndim = 1, .offset = {1}, .extent = {1}};
    assert_int_equal(rs_checkpoint_read(checkpoint, (size_t)b, &box, read, 4), RS_OK);
    assert_memory_equal(read, numbers + 1, 4);
    assert_int_equal(rs_checkpoint_read(checkpoint, (size_t)b, &box, read, 8), RS_ERR_ARGUMENT);
    box.offset[0] = 2;
    assert_int_equal(rs_checkpoint_read(checkpoint, (size_t)b, &box, read, 4), RS_ERR_ARGUMENT);
    rs_checkpoint_close(checkpoint);
}

/* I05: overlaps and holes, each with its reason; tensors listed out of order are fine. */
static void test_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t bytes;
        const char *reason; /* NULL: good */
    } cases[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
            8, "inside the tensor before it"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
            12, "inside the tensor before it"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]}}",
            24, "leaves a gap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, "needs 8 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4,
            "4 bytes of its tensors are missing"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, "needs 12 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[8589934592,8589934592],\"data_offsets\":[0,8]}}", 8,
            "overflows"},
        {"{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
            16, NULL},
        /* I06: empty tensors between others and at the end; no tensors; one that is not empty. */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"e\":{\"dtype\":\"F8_E4M3\",\"shape\":[0],\"data_offsets\":[8,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]},"
         "\"z\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[16,16]}}",
            16, NULL},
        {"{}", 0, NULL},
        {"{\"__metadata__\":{\"crc\":\"12\"}}", 0, NULL},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,0]}}", 0, "needs 1 bytes"},
        /* I08: bytes behind the last tensor. */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 24,
            "16 bytes behind its last tensor"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8],\"dtype\":\"U8\"}}", 8,
            "stands twice"},
        {"{\"a\":{\"dtype\":\"uint8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8, "unknown dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-0],\"data_offsets\":[0,0]}}", 0, "whole number"},
        {"{\"\\ud800\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "surrogate"},
        {"{\"\\u0041\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"A\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
            0, "stands twice"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2,4],\"data_offsets\":[0,4]}}", 4, NULL},
        {"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[8],\"data_offsets\":[0,6]}}", 6, NULL},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}", 3, "last dimension"},
        /* A slice written by a distributed save is no model. */
        {"{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
            1, "holds slices"},
    };
    char data[64] = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = make("range.safetensors", cases[i].header, data, cases[i].bytes);
        rs_status status = read_everything(path, NULL);
        if ((status == RS_OK) != (cases[i].reason == NULL))
            fail_msg("case %zu: %s", i, status == RS_OK ? "was read" : rs_error_message());
        if (cases[i].reason != NULL && strstr(rs_error_message(), cases[i].reason) == NULL)
            fail_msg(
                "case %zu: \"%s\" does not say \"%s\"", i, rs_error_message(), cases[i].reason);
    }
}

/* I01: header lengths beyond the limit are refused before anything is allocated. I02: other files
 * under the name are called what they are. */
static void test_wrong_heads(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        const char *bytes;
        size_t count;
        const char *reason;
    } cases[] = {
        {"big.safetensors", "\x40\x9d\xdf\x07\0\0\0\0{}", 10, "132095296"},
        {"huge.safetensors", "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "18446744073709551615"},
        {"page.safetensors", "<!DOCTYPE html><html></html>", 28, "web page"},
        {"pointer.safetensors", "version https://git-lfs.github.com/spec/v1\n", 43, "LFS pointer"},
        {"gguf.bin", "GGUF\3\0\0\0\0\0\0\0", 12, "GGUF"},
        {"empty.safetensors", "", 0, "empty file"},
        {"zip.safetensors", "PK\3\4 and then nothing", 22, "zip"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = scratch_file(cases[i].name, cases[i].bytes, cases[i].count);
        assert_int_not_equal(read_everything(path, NULL), RS_OK);
        if (strstr(rs_error_message(), cases[i].reason) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", rs_error_message(), cases[i].reason);
    }
    /* A safetensors file under another name is found by its content. */
    const char *path = make("weights.bin", "{}      ", "", 0);
    assert_int_equal(read_everything(path, NULL), RS_OK);
}

/* I07: headers around the sizes of internal buffers. I02: lengths whose bytes begin a pickle (80
 * 02), or a gzip file (1f 8b), under any name: what begins as safetensors is safetensors. */
static void test_header_lengths(void **state)
{
    (void)state;
    static const size_t lengths[] = {99992, 99993, 99994, 100000, 100001, (1 << 20) - 8,
        (1 << 20) - 7, 1 << 20, (1 << 20) + 1, 65536, 65535, 0x280, 0x580, 0x8b1f, 0x18b1f, 0x4d42};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char *header = malloc(lengths[i] + 1);
        memset(header, ' ', lengths[i]);
        header[lengths[i]] = 0;
        const char *entry = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
        memcpy(header, entry, strlen(entry));
        for (int named = 0; named < 2; named++) {
            const char *path = make(named ? "padded.safetensors" : "padded.bin", header, "ab", 2);
            if (read_everything(path, NULL) != RS_OK)
                fail_msg("header of %zu bytes: %s", lengths[i], rs_error_message());
        }
        free(header);
    }
}

static void write_text(const char *name, const char *text)
{
    scratch_file(name, text, strlen(text));
}

/* I10, I11: an index against its shards. */
static void test_index(void **state)
{
    (void)state;
    const char *one = "{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    const char *two = "{\"y\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                      "\"z\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}";
    make("model-00001-of-00002.safetensors", one, "ab", 2);
    make("model-00002-of-00002.safetensors", two, "cd", 2);
    const char *index = in_folder(scratch_folder(), "model.safetensors.index.json");
    /* y is said to be in the wrong shard, z is not named, the size is wrong: warnings. */
    write_text("model.safetensors.index.json",
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{"
        "\"x\":\"model-00001-of-00002.safetensors\",\"y\":\"model-00001-of-00002.safetensors\"}}");
    /* Shard 2 is not named by this index at all: it belongs to the row of shard 1, and is read. */
    assert_int_equal(read_everything(index, NULL), RS_OK);
    write_text("model.safetensors.index.json",
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{"
        "\"x\":\"model-00002-of-00002.safetensors\",\"y\":\"model-00001-of-00002.safetensors\"}}");
    rs_checkpoint *checkpoint;
    assert_int_equal(rs_checkpoint_open(index, NULL, &checkpoint), RS_OK);
    assert_int_equal(rs_checkpoint_count(checkpoint), 3);
    int misplaced = 0, unnamed = 0, size = 0;
    for (size_t i = 0; i < rs_checkpoint_warning_count(checkpoint); i++) {
        const char *warning = rs_checkpoint_warning_at(checkpoint, i);
        misplaced += strstr(warning, "it is in") != NULL;
        unnamed += strstr(warning, "does not name the tensor \"z\"") != NULL;
        size += strstr(warning, "total_size 8, the tensors have 4") != NULL;
    }
    assert_int_equal(misplaced, 2);
    assert_int_equal(unnamed, 1);
    assert_int_equal(size, 1);
    rs_checkpoint_close(checkpoint);
    /* A shard that is missing: its name and how many tensors it takes along. */
    write_text("model.safetensors.index.json",
        "{\"weight_map\":{\"x\":\"model-00001-of-00030.safetensors\","
        "\"y\":\"model-00001-of-00030.safetensors\"}}");
    assert_int_equal(read_everything(index, NULL), RS_ERR_NOT_FOUND);
    assert_non_null(strstr(rs_error_message(), "model-00001-of-00030.safetensors\" (2 tensors)"));
    assert_non_null(strstr(rs_error_message(), "another save"));
    /* The one file wins over an index that was left beside it. */
    make("model.safetensors", one, "ab", 2);
    assert_int_equal(rs_checkpoint_open(scratch_folder(), NULL, &checkpoint), RS_OK);
    assert_int_equal(rs_checkpoint_count(checkpoint), 1);
    assert_int_equal(rs_checkpoint_warning_count(checkpoint), 1);
    rs_checkpoint_close(checkpoint);
}

/* Writing and reading again: all types, aligned, the same bytes for any order of the input. */
static void test_layout(void **state)
{
    (void)state;
    static const rs_dtype dtypes[] = {RS_DTYPE_BOOL, RS_DTYPE_F32, RS_DTYPE_BF16, RS_DTYPE_I64,
        RS_DTYPE_U8, RS_DTYPE_F8_E4M3, RS_DTYPE_C64, RS_DTYPE_F4X2, RS_DTYPE_F6_E2M3X4,
        RS_DTYPE_U16};
    enum { COUNT = sizeof dtypes / sizeof *dtypes };
    rs_safetensors_tensor forward[COUNT + 1], backward[COUNT + 1];
    char names[COUNT + 1][16];
    for (int i = 0; i <= COUNT; i++) {
        snprintf(names[i], sizeof names[i], "t\"%d\xc3\xa9", i);
        forward[i] = (rs_safetensors_tensor){.name = names[i],
            .dtype = i < COUNT ? dtypes[i] : RS_DTYPE_F32,
            .ndim = i < COUNT ? 2 : 0,
            .shape = {3, i == 4 ? 0 : 5}};
        backward[COUNT - i] = forward[i];
    }
    rs_safetensors_note note = {"format", "pt"};
    char *head, *again;
    size_t head_bytes, again_bytes;
    int64_t file_bytes, same_bytes;
    assert_int_equal(
        rs_safetensors_layout(forward, COUNT + 1, &note, 1, &head, &head_bytes, &file_bytes),
        RS_OK);
    assert_int_equal(
        rs_safetensors_layout(backward, COUNT + 1, &note, 1, &again, &again_bytes, &same_bytes),
        RS_OK);
    assert_int_equal(head_bytes, again_bytes);
    assert_memory_equal(head, again, head_bytes);
    assert_int_equal(head_bytes % 8, 0);
    for (int i = 0; i <= COUNT; i++)
        assert_int_equal(forward[i].offset % (int64_t)rs_dtype_size(forward[i].dtype),
            rs_dtype_size(forward[i].dtype) == 3 ? forward[i].offset % 3 : 0);
    unsigned char *file = calloc((size_t)file_bytes, 1);
    memcpy(file, head, head_bytes);
    for (int64_t i = (int64_t)head_bytes; i < file_bytes; i++)
        file[i] = (unsigned char)(i * 7);
    const char *path = scratch_file("written.safetensors", file, (size_t)file_bytes);
    rs_checkpoint *checkpoint;
    assert_int_equal(rs_checkpoint_open(path, NULL, &checkpoint), RS_OK);
    assert_int_equal(rs_checkpoint_count(checkpoint), COUNT + 1);
    for (int i = 0; i <= COUNT; i++) {
        int64_t index = rs_checkpoint_find(checkpoint, forward[i].name, "param");
        assert_true(index >= 0);
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)index);
        assert_int_equal(entry->dtype, forward[i].dtype);
        assert_int_equal(rs_checkpoint_entry_bytes(entry), forward[i].bytes);
        unsigned char data[256];
        rs_box box = rs_box_whole(entry->ndim, entry->shape);
        assert_int_equal(
            rs_checkpoint_read(checkpoint, (size_t)index, &box, data, (size_t)forward[i].bytes),
            RS_OK);
        assert_memory_equal(data, file + forward[i].offset, (size_t)forward[i].bytes);
    }
    rs_checkpoint_close(checkpoint);
    free(file);
    free(head);
    free(again);
    backward[0].name = backward[1].name;
    assert_int_equal(
        rs_safetensors_layout(backward, COUNT + 1, NULL, 0, &head, &head_bytes, &file_bytes),
        RS_ERR_ARGUMENT);
}

static void test_damaged(void **state)
{
    (void)state;
    static const char *const files[] = {"safetensors/dtypes", "safetensors/names-odd"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        damaged_twins(
            in_folder(fixture_family(files[i]), "model.safetensors"), 50, 400, 3 + i, open_only);
}

int main(void)
{
    fixture_family("safetensors");
    forbid_execution();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_wrong_heads),
        cmocka_unit_test(test_header_lengths),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
