/*
 * C09: tied weights in a format that has one owner for each range of bytes. Once, once with the
 * second name in the metadata, or under each name with bytes of its own: what stands in the file,
 * to the byte, and that nothing is written that a reader would refuse.
 */
#include "truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/publish.h"
#include "reshard/convert.h"
#include "synthetic.h"

enum { EMBED = 128, NORM = 8 }; /* bytes: [16,4] and [4] in bfloat16 */

static char target[600];

/* One file with embed.weight, norm.weight and a second name of the embedding. */
static const char *tied_file(void)
{
    static const char head[] =
        "{\"__metadata__\":{\"head.weight\":\"embed.weight\"},"
        "\"embed.weight\":{\"dtype\":\"BF16\",\"shape\":[16,4],\"data_offsets\":[0,128]},"
        "\"norm.weight\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[128,136]}}";
    unsigned char file[8 + sizeof head - 1 + EMBED + NORM] = {(unsigned char)(sizeof head - 1)};
    file[1] = (sizeof head - 1) >> 8;
    memcpy(file + 8, head, sizeof head - 1);
    for (size_t i = 0; i < EMBED + NORM; i++)
        file[8 + sizeof head - 1 + i] = (unsigned char)(i % 2 == 0 ? i : 0x3f);
    return scratch_file("tied.safetensors", file, sizeof file);
}

static rs_status convert(const char *source, rs_convert_options how, rs_convert_report *report)
{
    rs_checkpoint *checkpoint = opened(source);
    rs_status status = rs_convert(checkpoint, target, &how, report);
    rs_checkpoint_close(checkpoint);
    return status;
}

/* The header of a file of the target, and how many bytes stand behind it; json_decref. */
static json_t *header_of(const char *name, size_t *data)
{
    size_t length;
    uint64_t head;
    unsigned char *file = slurp(in_folder(target, name), &length);
    memcpy(&head, file, 8);
    json_t *root = json_loadb((const char *)file + 8, head, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    *data = length - 8 - head;
    free(file);
    return root;
}

/* What is at the target holds what the source does, under each of its names. */
static void expect_equal(const char *source)
{
    rs_checkpoint *a = opened(source), *b = opened(target);
    rs_compare_options how = {.role = "param"};
    rs_compare_report report;
    OK(rs_compare(a, b, &how, NULL, NULL, &report));
    assert_int_equal(report.different, 0);
    rs_checkpoint_close(a);
    rs_checkpoint_close(b);
}

static void test_once(void **state)
{
    (void)state;
    static const char *const ways[] = {NULL, "once", "listed"};
    const char *source = tied_file();
    for (size_t i = 0; i < 3; i++) {
        size_t data;
        rs_convert_options how = {.to = "safetensors", .tied = ways[i]};
        rs_convert_report report;
        OK(convert(source, how, &report));
        json_t *head = header_of("model.safetensors", &data);
        const json_t *notes = json_object_get(head, "__metadata__");
        assert_int_equal(data, EMBED + NORM);
        assert_int_equal(json_object_size(head), 3);
        assert_int_equal(json_object_size(notes), i == 2 ? 2 : 1);
        assert_string_equal(json_string_value(json_object_get(notes, "format")), "pt");
        if (i == 2)
            assert_string_equal(
                json_string_value(json_object_get(notes, "head.weight")), "embed.weight");
        assert_int_equal(report.second_names, 1);
        json_decref(head);
        expect_equal(source);
        /* A listed name is a name again when it is read. */
        rs_checkpoint *again = opened(target);
        assert_int_equal(rs_checkpoint_count(again), i == 2 ? 3 : 2);
        rs_checkpoint_close(again);
        OK(rs_remove_folder(target));
    }
}

/* The range of a tensor's bytes, as it stands in the header. */
static void range_of(const json_t *head, const char *name, int64_t *begin, int64_t *end)
{
    const json_t *range = json_object_get(json_object_get(head, name), "data_offsets");
    assert_int_equal(json_array_size(range), 2);
    *begin = json_integer_value(json_array_get(range, 0));
    *end = json_integer_value(json_array_get(range, 1));
}

static void test_duplicate(void **state)
{
    (void)state;
    const char *source = tied_file();
    rs_convert_options how = {.to = "safetensors", .tied = "duplicate"};
    rs_convert_report report;
    size_t length, data;
    int64_t a, a_end, b, b_end;
    OK(convert(source, how, &report));
    json_t *head = header_of("model.safetensors", &data);
    assert_int_equal(data, 2 * EMBED + NORM);
    assert_int_equal(json_object_size(json_object_get(head, "__metadata__")), 1);
    range_of(head, "embed.weight", &a, &a_end);
    range_of(head, "head.weight", &b, &b_end);
    assert_true(a_end - a == EMBED && b_end - b == EMBED && (a_end <= b || b_end <= a));
    unsigned char *file = slurp(in_folder(target, "model.safetensors"), &length);
    assert_memory_equal(file + length - data + a, file + length - data + b, EMBED);
    free(file);
    json_decref(head);
    expect_equal(source);
    OK(rs_remove_folder(target));
    /* Divided over files, the index counts them too, and says where each is. */
    how.shard_bytes = EMBED;
    OK(convert(source, how, &report));
    assert_int_equal(report.files, 3);
    char *text = (char *)slurp(in_folder(target, "model.safetensors.index.json"), &length);
    json_t *index = json_loadb(text, length, 0, NULL), *map = json_object_get(index, "weight_map");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")), 264);
    assert_int_equal(json_object_size(map), 3);
    assert_string_not_equal(json_string_value(json_object_get(map, "embed.weight")),
        json_string_value(json_object_get(map, "head.weight")));
    json_decref(index);
    free(text);
    expect_equal(source);
    OK(rs_remove_folder(target));
}

/* The second name stands in the file that has the first, and in no other. */
static void test_listed_in_shards(void **state)
{
    (void)state;
    rs_convert_options how = {.to = "safetensors", .tied = "listed", .shard_bytes = EMBED};
    OK(convert(tied_file(), how, NULL));
    for (int i = 1; i <= 2; i++) {
        char name[64];
        size_t data;
        snprintf(name, sizeof name, "model-%05d-of-00002.safetensors", i);
        json_t *head = header_of(name, &data);
        bool has = json_object_get(head, "embed.weight") != NULL;
        assert_int_equal(json_object_size(json_object_get(head, "__metadata__")), has ? 2 : 1);
        json_decref(head);
    }
    expect_equal(in_folder(scratch_folder(), "tied.safetensors"));
    OK(rs_remove_folder(target));
}

/* Weights that no file holds as such, of DeepSpeed's stages; and the other formats. */
static void test_formats(void **state)
{
    (void)state;
    char folder[600];
    snprintf(folder, sizeof folder, "%s/tag", scratch_folder());
    for (int stage = 1; stage <= 3; stage++) {
        syn_run run = syn_usual(1, 2, stage);
        syn_add(&run, "tok.weight", SYN_REPLICATED, 0, 2, 16, 4);
        syn_add(&run, "norm", SYN_REPLICATED, 0, 1, 4, 0);
        run.alias = "out.weight";
        syn_write(&run, folder);
        static const char *const formats[] = {"safetensors", "native", "torch"};
        for (size_t i = 0; i < 3; i++) {
            rs_convert_options how = {.to = formats[i], .tied = "duplicate", .weights_only = true};
            rs_convert_report report;
            OK(convert(folder, how, &report));
            assert_int_equal(report.bytes, 4 * (64 + 64 + 4));
            assert_int_equal(report.tensors, 3);
            rs_checkpoint *written = opened(target);
            int64_t second = rs_checkpoint_find(written, "out.weight", "param");
            assert_true(second >= 0);
            assert_null(rs_checkpoint_entry_at(written, (size_t)second)->alias_of);
            OK(rs_checkpoint_check(written));
            rs_checkpoint_close(written);
            expect_equal(folder);
            if (i == 2)
                assert_int_equal(unlink(target), 0);
            else
                OK(rs_remove_folder(target));
        }
        syn_remove(folder);
    }
}

static void refused(rs_convert_options how, const char *why)
{
    assert_int_equal(
        convert(in_folder(scratch_folder(), "tied.safetensors"), how, NULL), RS_ERR_ARGUMENT);
    expect_message(why);
    assert_int_not_equal(access(target, F_OK), 0);
}

static void test_refused(void **state)
{
    (void)state;
    tied_file();
    refused((rs_convert_options){.to = "safetensors", .tied = "twice"}, "must be one of once");
    refused((rs_convert_options){.to = "native", .weights_only = true, .tied = "listed"},
        "those of safetensors have");
    refused((rs_convert_options){.to = "torch", .tied = "duplicate"}, "is there once");
    /* Sizes of files, where there is nothing to divide by them. */
    refused((rs_convert_options){.to = "torch", .weights_only = true, .shard_bytes = 100},
        "torch is not divided by size");
    refused((rs_convert_options){.to = "deepspeed-universal", .shard_bytes = 100},
        "deepspeed-universal is not divided by size");
    refused(
        (rs_convert_options){
            .to = "native", .weights_only = true, .layout = "dp=2,zero=3", .shard_bytes = 100},
        "each of its ranks has one file");
}

int main(void)
{
    snprintf(target, sizeof target, "%s/target", scratch_folder());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_duplicate),
        cmocka_unit_test(test_listed_in_shards),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
