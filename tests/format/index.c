/*
 * I11: an index that is wrong about its shards. Each fault is reported by itself; a tensor that is
 * nowhere is an error; all others a new index from the headers puts right, in one step and only
 * when told to.
 */
#include "truth.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "build.h"
#include "reshard/convert.h"

#define INDEX "model.safetensors.index.json"
#define FIRST "model-00001-of-00002.safetensors"
#define SECOND "model-00002-of-00002.safetensors"

static char folder[600];

/* A shard with float32 vectors of two elements, all of them its name's first letter. */
static void make_shard(const char *file, const char *names)
{
    char head[1000] = "{";
    size_t used = 1, count = strlen(names);
    for (size_t i = 0; i < count; i++)
        used += (size_t)snprintf(head + used, sizeof head - used,
            "%s\"%c\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[%zu,%zu]}",
            i > 0 ? "," : "", names[i], 8 * i, 8 * i + 8);
    used += (size_t)snprintf(head + used, sizeof head - used, "}");
    uint64_t length = used;
    FILE *out = fopen(in_folder(folder, file), "w");
    assert_non_null(out);
    fwrite(&length, 8, 1, out);
    fwrite(head, 1, used, out);
    for (size_t i = 0; i < count; i++)
        for (int k = 0; k < 8; k++)
            fputc(names[i], out);
    fclose(out);
}

static void write_index(const char *text)
{
    FILE *out = fopen(in_folder(folder, INDEX), "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

static int make(void **state)
{
    (void)state;
    mkdir(folder, 0755);
    make_shard(FIRST, "ab");
    make_shard(SECOND, "xz");
    return 0;
}

static int clear(void **state)
{
    (void)state;
    DIR *list = opendir(folder);
    for (struct dirent *e; (e = readdir(list)) != NULL;)
        unlinkat(dirfd(list), e->d_name, 0);
    closedir(list);
    return rmdir(folder);
}

/* The case's index: x in the wrong shard, z not named, the size wrong by 4; with y nowhere. */
#define WRONG                                                                                      \
    "{\"metadata\":{\"total_size\":36,\"kept\":\"yes\"},\"weight_map\":{\"a\":\"" FIRST            \
    "\",\"b\":\"" FIRST "\",\"x\":\"" FIRST "\""
#define GHOST ",\"y\":\"" FIRST "\""
#define END "}}"

static const char *const repairable[] = {"puts \"x\" into \"" FIRST "\", it is in \"" SECOND "\"",
    "does not name the tensor \"z\", which is in \"" SECOND "\"",
    "says total_size 36, the tensors have 32 bytes",
    "does not name \"" SECOND "\", which is in the folder and belongs to it"};

enum { REPAIRABLE = sizeof repairable / sizeof *repairable };

typedef struct told {
    int count, matched[REPAIRABLE];
} told;

static void note(void *context, const char *text)
{
    told *t = context;
    t->count++;
    for (size_t i = 0; i < REPAIRABLE; i++)
        t->matched[i] += strstr(text, repairable[i]) != NULL && strstr(text, INDEX) != NULL;
}

static rs_status rebuild(bool force, bool dry_run, told *t, rs_index_report *report)
{
    *t = (told){0};
    rs_index_options how = {.force = force, .dry_run = dry_run, .tell = note, .context = t};
    return rs_index_rebuild(folder, &how, report);
}

/* Reading it: each fault is a warning of its own, and the tensors come from the headers. */
static void test_warnings(void **state)
{
    (void)state;
    told t = {0};
    write_index(WRONG END);
    rs_checkpoint *checkpoint = opened(folder);
    for (size_t i = 0; i < rs_checkpoint_warning_count(checkpoint); i++)
        note(&t, rs_checkpoint_warning_at(checkpoint, i));
    assert_int_equal(t.count, REPAIRABLE);
    for (size_t i = 0; i < REPAIRABLE; i++)
        assert_int_equal(t.matched[i], 1);
    assert_int_equal(rs_checkpoint_count(checkpoint), 4);
    int64_t x = rs_checkpoint_find(checkpoint, "x", "param");
    char bytes[8];
    rs_box box = {.ndim = 1, .extent = {2}};
    assert_true(x >= 0);
    assert_int_equal(rs_checkpoint_read(checkpoint, (size_t)x, &box, bytes, sizeof bytes), RS_OK);
    assert_memory_equal(bytes, "xxxxxxxx", 8);
    rs_checkpoint_close(checkpoint);
}

/* What is nowhere is an error, which does not hide the others, and which no new index hides. */
static void test_ghost(void **state)
{
    (void)state;
    rs_checkpoint *checkpoint;
    rs_index_report report;
    told t;
    write_index(WRONG GHOST END);
    assert_int_equal(rs_checkpoint_open(folder, NULL, &checkpoint), RS_ERR_MALFORMED);
    expect_message(INDEX);
    expect_message("puts \"y\" into \"" FIRST "\", but no shard has it");
    for (size_t i = 0; i < REPAIRABLE; i++)
        expect_message(repairable[i]);
    assert_int_equal(rebuild(true, false, &t, &report), RS_ERR_MALFORMED);
    expect_message("\"y\"");
    size_t length;
    char *text = (char *)slurp(in_folder(folder, INDEX), &length);
    assert_int_equal(length, strlen(WRONG GHOST END));
    assert_memory_equal(text, WRONG GHOST END, length);
    free(text);
}

static void expect_right(void)
{
    json_t *root = json_load_file(in_folder(folder, INDEX), 0, NULL);
    json_t *about = json_object_get(root, "metadata"), *map = json_object_get(root, "weight_map");
    assert_int_equal(json_integer_value(json_object_get(about, "total_size")), 32);
    assert_int_equal(json_object_size(map), 4);
    assert_string_equal(json_string_value(json_object_get(map, "x")), SECOND);
    assert_string_equal(json_string_value(json_object_get(map, "z")), SECOND);
    json_decref(root);
    rs_checkpoint *checkpoint = opened(folder);
    assert_int_equal(rs_checkpoint_warning_count(checkpoint), 0);
    rs_checkpoint_close(checkpoint);
}

static void test_rebuild(void **state)
{
    (void)state;
    rs_index_report report;
    told t;
    write_index(WRONG END);
    assert_int_equal(rebuild(false, false, &t, &report), RS_ERR_EXISTS);
    expect_message("--force");
    assert_int_equal(rebuild(false, true, &t, &report), RS_OK);
    assert_int_equal(t.count, REPAIRABLE);
    assert_int_equal(report.faults, REPAIRABLE);
    assert_true(report.wanted && !report.written && report.found);
    rs_checkpoint *checkpoint = opened(folder);
    assert_int_equal(rs_checkpoint_warning_count(checkpoint), REPAIRABLE);
    rs_checkpoint_close(checkpoint);
    assert_int_equal(rebuild(true, false, &t, &report), RS_OK);
    assert_true(report.written);
    assert_int_equal(report.tensors, 4);
    assert_int_equal(report.shards, 2);
    assert_int_equal(report.total_size, 32);
    expect_right();
    json_t *root = json_load_file(in_folder(folder, INDEX), 0, NULL);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(root, "metadata"), "kept")), "yes");
    json_decref(root);
    /* One that is right is left alone, told to or not. */
    struct stat before, after;
    assert_int_equal(stat(in_folder(folder, INDEX), &before), 0);
    assert_int_equal(rebuild(false, false, &t, &report), RS_OK);
    assert_int_equal(rebuild(true, false, &t, &report), RS_OK);
    assert_true(!report.wanted && !report.written);
    assert_int_equal(stat(in_folder(folder, INDEX), &after), 0);
    assert_true(before.st_ino == after.st_ino);
    /* Where there is none it is made without being forced. */
    assert_int_equal(unlink(in_folder(folder, INDEX)), 0);
    assert_int_equal(rebuild(false, false, &t, &report), RS_OK);
    assert_true(report.written && !report.found);
    expect_right();
}

/* A failure at any write, sync or rename: the old index or the new one, and nothing beside. */
static void test_failures(void **state)
{
    (void)state;
    static const rs_fault points[] = {RS_FAULT_WRITE, RS_FAULT_SYNC, RS_FAULT_RENAME};
    rs_index_report report;
    told t;
    for (size_t p = 0; p < 3; p++)
        for (int n = 1;; n++) {
            write_index(WRONG END);
            rs_fault_arm(points[p], n, 1);
            rs_status status = rebuild(true, false, &t, &report);
            bool clean = rs_fault_pending(points[p]);
            rs_fault_arm(points[p], 0, 0);
            assert_true(clean == (status == RS_OK));
            rs_checkpoint *checkpoint = opened(folder);
            size_t warnings = rs_checkpoint_warning_count(checkpoint);
            assert_true(warnings == 0 || (warnings == REPAIRABLE && !clean));
            rs_checkpoint_close(checkpoint);
            DIR *list = opendir(folder);
            int files = 0;
            for (struct dirent *e; (e = readdir(list)) != NULL;)
                files += e->d_name[0] != '.';
            closedir(list);
            assert_int_equal(files, 3);
            if (clean)
                break;
        }
}

/* A shard that the index knows nothing of, of the row of another: the model has it. */
static void test_forgotten(void **state)
{
    (void)state;
    rs_index_report report;
    told t;
    write_index("{\"weight_map\":{\"a\":\"" FIRST "\",\"b\":\"" FIRST "\"}}");
    rs_checkpoint *checkpoint = opened(folder);
    assert_int_equal(rs_checkpoint_count(checkpoint), 4);
    assert_int_equal(rs_checkpoint_warning_count(checkpoint), 3);
    rs_checkpoint_close(checkpoint);
    assert_int_equal(rebuild(true, false, &t, &report), RS_OK);
    assert_int_equal(report.faults, 3);
    expect_right();
}

/* What a new index would hide: shards that lack, and what wants no index at all. */
static void test_refused(void **state)
{
    (void)state;
    rs_index_report report;
    told t;
    write_index("{\"weight_map\":{\"a\":\"gone.safetensors\",\"b\":\"away.safetensors\"}}");
    assert_int_equal(rebuild(true, false, &t, &report), RS_ERR_NOT_FOUND);
    expect_message("\"gone.safetensors\" (1 tensors)");
    expect_message("\"away.safetensors\" (1 tensors)");
    assert_int_equal(unlink(in_folder(folder, INDEX)), 0);
    assert_int_equal(rename(in_folder(folder, SECOND), in_folder(folder, "other")), 0);
    assert_int_equal(rebuild(false, false, &t, &report), RS_ERR_NOT_FOUND);
    expect_message("these are missing: 2");
    assert_int_equal(rename(in_folder(folder, FIRST), in_folder(folder, "model.safetensors")), 0);
    assert_int_equal(rebuild(false, false, &t, &report), RS_ERR_ARGUMENT);
    expect_message("the model is in one file");
    assert_int_not_equal(access(in_folder(folder, INDEX), F_OK), 0);
    assert_int_equal(rs_index_rebuild(in_folder(folder, "other"), NULL, &report), RS_ERR_ARGUMENT);
}

/* A second model in the folder is left alone; a shard that has what the index misses is not. */
static void test_strangers(void **state)
{
    (void)state;
    rs_index_report report;
    told t;
    make_shard("consolidated.safetensors", "cd");
    write_index("{\"weight_map\":{\"a\":\"" FIRST "\",\"b\":\"" FIRST "\",\"x\":\"" SECOND
                "\",\"z\":\"" SECOND "\"}}");
    rs_checkpoint *checkpoint = opened(folder);
    assert_int_equal(rs_checkpoint_count(checkpoint), 4);
    assert_int_equal(rs_checkpoint_warning_count(checkpoint), 1);
    rs_checkpoint_close(checkpoint);
    write_index("{\"weight_map\":{\"a\":\"" FIRST "\",\"b\":\"" FIRST "\",\"x\":\"" SECOND
                "\",\"z\":\"" SECOND "\",\"c\":\"" FIRST "\"}}");
    checkpoint = opened(folder);
    assert_int_equal(rs_checkpoint_count(checkpoint), 6);
    rs_checkpoint_close(checkpoint);
    assert_int_equal(rebuild(true, false, &t, &report), RS_OK);
    assert_int_equal(report.shards, 3);
    checkpoint = opened(folder);
    assert_int_equal(rs_checkpoint_warning_count(checkpoint), 0);
    rs_checkpoint_close(checkpoint);
}

/* Of each row in the folder every number must be there. */
static void test_rows(void **state)
{
    (void)state;
    rs_index_report report;
    told t;
    make_shard("a-00900-of-01000.safetensors", "c");
    assert_int_equal(rebuild(false, false, &t, &report), RS_ERR_NOT_FOUND);
    expect_message("of the 1000 shards that \"a-00900-of-01000.safetensors\" is one of, these are "
                   "missing: 1..899, 901..1000");
    assert_int_not_equal(access(in_folder(folder, INDEX), F_OK), 0);
    assert_int_equal(unlink(in_folder(folder, "a-00900-of-01000.safetensors")), 0);
    make_shard("a-00001-of-99999999999.safetensors", "c");
    assert_int_equal(rebuild(false, false, &t, &report), RS_ERR_BUDGET);
    assert_int_equal(unlink(in_folder(folder, "a-00001-of-99999999999.safetensors")), 0);
    make_shard("a-00001-of-00001.safetensors", "c");
    assert_int_equal(rebuild(false, false, &t, &report), RS_OK);
    assert_int_equal(report.shards, 3);
}

/* A second name of a tied tensor may stand in an index or not. */
static void test_tied(void **state)
{
    (void)state;
    static const char index[] = "pytorch_model.bin.index.json",
                      shard[] = "pytorch_model-00001-of-00001.bin";
    static const float values[2] = {1, 2};
    rs_index_report report;
    told t;
    build b = {0};
    unlink(in_folder(folder, FIRST));
    unlink(in_folder(folder, SECOND));
    size_t storage = build_add_storage(&b, values, sizeof values);
    build_dict(&b);
    for (int i = 0; i < 2; i++) {
        build_text(&b, i == 0 ? "e" : "f");
        build_view(&b, RS_DTYPE_F32, storage, 2, 0, 1, (int64_t[]){2}, (int64_t[]){1});
    }
    build_dict_end(&b);
    build_write(&b, in_folder(folder, shard), NULL);
    for (int i = 0; i < 3; i++) {
        FILE *out = fopen(in_folder(folder, index), "w");
        assert_non_null(out);
        fprintf(out, "{\"metadata\":{\"total_size\":%d},\"weight_map\":{\"e\":\"%s\"",
            i == 2 ? 9 : 8, shard);
        if (i > 0)
            fprintf(out, ",\"f\":\"%s\"", shard);
        fputs("}}", out);
        fclose(out);
        assert_int_equal(rebuild(true, false, &t, &report), RS_OK);
        assert_int_equal(report.wanted, i == 2);
        assert_int_equal(report.total_size, 8);
        assert_int_equal(report.tensors, i == 0 ? 1 : 2);
    }
    assert_int_equal(rebuild(false, false, &t, &report), RS_OK);
    assert_false(report.wanted);
}

int main(void)
{
    snprintf(folder, sizeof folder, "%s/hub", scratch_folder());
#define TEST(function) cmocka_unit_test_setup_teardown(function, make, clear)
    const struct CMUnitTest tests[] = {
        TEST(test_warnings),
        TEST(test_ghost),
        TEST(test_rebuild),
        TEST(test_failures),
        TEST(test_forgotten),
        TEST(test_refused),
        TEST(test_strangers),
        TEST(test_rows),
        TEST(test_tied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
