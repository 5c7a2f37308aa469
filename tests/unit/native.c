/*
 * Native checkpoints: random spaces saved under one layout and loaded under others, element by
 * element and byte for byte; saves that fail or die at every write, sync and rename (J02, J06);
 * files on another disk (J07); `latest` (J03); damage; conversions for a layout against what its
 * ranks save (B03, B09).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "ckpt/publish.h"
#include "pattern.h"
#include "reshard/certificate.h"
#include "reshard/checkpoint.h"
#include "reshard/convert.h"
#include "reshard/dialect.h"
#include "reshard/layout.h"
#include "reshard/native.h"
#include "support/ok.h"
#include "support/spaces.h"

static char root[] = "/dev/shm/unit-native-XXXXXX"; /* memory: some 1000 syncs */
static char folder[64];                             /* of checkpoints; anew for each test */
static int tests;

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    (void)state;
    return rs_remove_folder(root) != RS_OK;
}

static int next_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/%d", root, tests++);
    return 0;
}

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Writes rank `holder`'s part; its record, or NULL if that failed. */
static char *write_part(
    const rs_placement *placement, int holder, uint64_t salt, const rs_save_name *name)
{
    rs_memory memory = {0};
    rs_save *save = NULL;
    char *record = NULL;
    OK(rs_memory_allocate(placement, holder, &memory));
    assert_true(pattern_fill(placement, holder, &memory, salt));
    if (holder % 2 == 0) { /* with its memory made ahead, or half of it */
        OK(rs_save_reserve(placement, holder, &save));
        assert_true(rs_save_touch(save, 1 << 12) >= 0);
    }
    OK(rs_save_begin(placement, holder, &memory, &save));
    assert_int_equal(rs_save_touch(save, INT64_MAX / 2), 0); /* what was copied stays */
    rs_memory_free(&memory);                                 /* nothing reads it any more */
    if (rs_save_write(save, name) == RS_OK)
        OK(rs_save_record(save, &record));
    rs_save_destroy(save);
    return record;
}

static rs_status save_all(
    const rs_space *space, const rs_layout *layout, int64_t step, uint64_t salt)
{
    rs_save_name name = {folder, step, "unit-1"};
    rs_save_about about = {.world = rs_layout_world(layout), .extras = "{\"lr\":0.1}"};
    rs_placement *placement;
    char text[RS_LAYOUT_TEXT], *records[64] = {NULL};
    bool whole = true;
    about.layout = rs_layout_format(layout, text);
    OK(rs_layout_placement(space, layout, &placement));
    rs_status status = rs_save_prepare(&name);
    for (int r = 0; r < about.world && status == RS_OK; r++) {
        records[r] = write_part(placement, r, salt, &name);
        whole = whole && records[r] != NULL;
    }
    if (status == RS_OK && whole)
        status =
            rs_save_commit(&name, space, &about, (const char *const *)records, (size_t)about.world);
    else if (status == RS_OK)
        status = RS_ERR_IO;
    for (int r = 0; r < about.world; r++)
        free(records[r]);
    rs_placement_destroy(placement);
    return status;
}

/* Loads all ranks of a layout; the elements, the bytes read and the content sums must be right. */
static void check_load(
    const rs_native *native, const rs_space *space, const rs_layout *layout, uint64_t salt)
{
    size_t words = rs_sums_word_count(space);
    uint64_t *wanted = calloc(words + 1, sizeof *wanted), *found = calloc(words + 1, sizeof *found);
    uint64_t *own = calloc(words + 1, sizeof *own);
    rs_placement *placement;
    OK(rs_layout_placement(space, layout, &placement));
    for (int r = 0; r < rs_layout_world(layout); r++) {
        rs_memory memory = {0};
        rs_shard_list shards = {0};
        rs_sums *sums;
        int64_t bytes = -1, all = 0;
        OK(rs_memory_allocate(placement, r, &memory));
        OK(rs_native_load(native, placement, r, &memory, &bytes));
        assert_true(pattern_check(placement, r, &memory, salt));
        OK(rs_placement_shards(placement, r, -1, &shards));
        for (size_t i = 0; i < shards.count; i++)
            all +=
                rs_box_volume(&shards.items[i].box) * (int64_t)rs_dtype_size(shards.items[i].dtype);
        assert_int_equal(bytes, all);
        OK(rs_sums_create(placement, r, &sums));
        OK(rs_sums_measure(sums, &memory, true));
        OK(rs_sums_words(sums, own));
        for (size_t i = 0; i < words; i++)
            found[i] += own[i];
        rs_sums_destroy(sums);
        rs_shard_list_fini(&shards);
        rs_memory_free(&memory);
    }
    OK(rs_native_words(native, space, wanted));
    OK(rs_sums_compare(space, wanted, found, -1));
    rs_placement_destroy(placement);
    free(wanted);
    free(found);
    free(own);
}

static void test_any_layout_reads_any(void **state)
{
    (void)state;
    uint64_t random = 20261130;
    for (int round = 0; round < 12; round++) {
        rs_space *space = random_space(&random);
        rs_layout from = random_layout(&random, 12, rs_space_layer_count(space));
        rs_native *native;
        OK(save_all(space, &from, round, (uint64_t)round));
        OK(rs_native_open_step(folder, round, &native));
        assert_int_equal(rs_native_step(native), round);
        OK(rs_native_fits(native, space, 0, 1));
        for (int k = 0; k < 3; k++) {
            rs_layout to = random_layout(&random, 12, rs_space_layer_count(space));
            check_load(native, space, &to, (uint64_t)round);
        }
        rs_native_close(native);
        rs_space_destroy(space);
    }
}

/* Shards of several megabytes, which are written, hashed and summed in blocks that end anywhere in
 * their rows. */
static void test_large_shards(void **state)
{
    (void)state;
    rs_model model = pattern_model();
    rs_layout from, to;
    rs_space *space;
    rs_native *native;
    rs_checkpoint *checkpoint;
    model.hidden = 60;
    model.layers = 3;
    model.vocab = 20011;
    model.ffn = 3001;
    OK(rs_model_space(&model, RS_DTYPE_F32, &space));
    OK(rs_layout_parse("tp=2,dp=2,zero=1", &from));
    OK(rs_layout_parse("tp=3", &to));
    OK(save_all(space, &from, 1, 5));
    OK(rs_native_open_step(folder, 1, &native));
    check_load(native, space, &to, 5);
    OK(rs_checkpoint_open(folder, NULL, &checkpoint));
    OK(rs_checkpoint_check(checkpoint));
    assert_true(rs_checkpoint_checksums(checkpoint) > 0);
    assert_int_equal(rs_checkpoint_warning_count(checkpoint), 0);
    rs_checkpoint_close(checkpoint);
    rs_native_close(native);
    rs_space_destroy(space);
}

/* Small: it is saved and read some hundred times. */
static rs_model small_model(void)
{
    rs_model model = pattern_model();
    model.layers = 2;
    model.hidden = 8;
    model.vocab = 19;
    model.ffn = 7;
    return model;
}

static rs_space *model_space(void)
{
    rs_model model = small_model();
    rs_space *space;
    OK(rs_model_space(&model, RS_DTYPE_F32, &space));
    return space;
}

static rs_layout layout_of(const char *text)
{
    rs_layout layout;
    OK(rs_layout_parse(text, &layout));
    return layout;
}

/* The checkpoint of step 1 is whole and `latest` or the newest names it, or that of step 2. */
static void check_whole(const rs_space *space, bool second_may)
{
    rs_layout layout = layout_of("dp=1");
    rs_native *native;
    int64_t *steps = NULL;
    size_t count = 0;
    OK(rs_native_find(folder, &steps, &count));
    assert_true(count == 1 || (second_may && count == 2));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(steps[i], (int64_t)(count - i));
        OK(rs_native_open_step(folder, steps[i], &native));
        check_load(native, space, &layout, (uint64_t)steps[i]);
        rs_native_close(native);
    }
    free(steps);
    rs_checkpoint *checkpoint;
    OK(rs_checkpoint_open(folder, NULL, &checkpoint));
    OK(rs_checkpoint_check(checkpoint));
    assert_int_equal(rs_checkpoint_warning_count(checkpoint), 0);
    rs_checkpoint_close(checkpoint);
}

/* J02, J06: each write, sync and rename fails once. */
static void test_every_failure(void **state)
{
    (void)state;
    static const rs_fault points[] = {RS_FAULT_WRITE, RS_FAULT_SYNC, RS_FAULT_RENAME};
    rs_space *space = model_space();
    rs_layout layout = layout_of("tp=2,zero=1");
    OK(save_all(space, &layout, 1, 1));
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        int failures = 0;
        for (int n = 1;; n++) {
            rs_save_name name = {folder, 2, "unit-1"};
            rs_fault_arm(points[p], n, 1);
            rs_status status = save_all(space, &layout, 2, 2);
            bool clean = rs_fault_pending(points[p]);
            rs_fault_arm(points[p], 0, 0);
            assert_true(clean == (status == RS_OK));
            check_whole(space, true);
            OK(rs_save_abandon(&name));
            OK(rs_save_clean(folder));
            OK(rs_remove_folder(in_folder("step-00000002")));
            OK(rs_publish_text(folder, "latest", "step-00000001"));
            if (clean)
                break;
            failures++;
        }
        assert_true(failures >= (points[p] == RS_FAULT_WRITE ? 8 : 2));
    }
    rs_space_destroy(space);
}

/* The process is killed before each of them. */
static void test_every_death(void **state)
{
    (void)state;
    rs_space *space = model_space();
    rs_layout layout = layout_of("pp=2");
    OK(save_all(space, &layout, 1, 1));
    int deaths = 0;
    for (int n = 1;; n++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            rs_fault_arm(RS_FAULT_DIE, n, 1);
            _exit(save_all(space, &layout, 2, 2) == RS_OK ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        check_whole(space, true);
        OK(rs_save_clean(folder));
        check_whole(space, true);
        OK(rs_remove_folder(in_folder("step-00000002")));
        OK(rs_publish_text(folder, "latest", "step-00000001"));
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            break;
        }
        assert_int_equal(WTERMSIG(status), SIGKILL);
        deaths++;
    }
    assert_true(deaths >= 10);
    rs_space_destroy(space);
}

/* J02: what a save leaves before its commit is no checkpoint, by name and by content. */
static void test_unfinished(void **state)
{
    (void)state;
    rs_space *space = model_space();
    rs_layout layout = layout_of("dp=1");
    rs_placement *placement;
    rs_checkpoint *checkpoint = NULL;
    rs_save_name name = {folder, 7, "unit-1"};
    OK(rs_layout_placement(space, &layout, &placement));
    OK(rs_save_prepare(&name));
    free(write_part(placement, 0, 7, &name));
    assert_int_equal(rs_checkpoint_open(folder, NULL, &checkpoint), RS_ERR_NOT_FOUND);
    assert_int_not_equal(rs_publish_text(in_folder("no"), "latest", ""), RS_OK);
    assert_non_null(strstr(rs_error_message(), "no/latest: No such file"));
    assert_int_equal(rs_checkpoint_open(in_folder("step-00000007.tmp-unit-1"), NULL, &checkpoint),
        RS_ERR_MALFORMED);
    assert_non_null(strstr(rs_error_message(), "not finished"));
    OK(rs_save_clean(folder));
    assert_int_not_equal(access(in_folder("step-00000007.tmp-unit-1"), F_OK), 0);
    rs_placement_destroy(placement);
    rs_space_destroy(space);
}

/* J07: a rank's file that the committer does not see. */
static void test_other_disk(void **state)
{
    (void)state;
    rs_space *space = model_space();
    rs_layout layout = layout_of("dp=1");
    rs_placement *placement;
    rs_save_name name = {folder, 7, "unit-1"};
    rs_save_about about = {.layout = "dp=1", .world = 1, .extras = "{}"};
    OK(rs_layout_placement(space, &layout, &placement));
    OK(rs_save_prepare(&name));
    char *record = write_part(placement, 0, 7, &name);
    OK(unlink(in_folder("step-00000007.tmp-unit-1/rank-00000.safetensors")));
    assert_int_equal(
        rs_save_commit(&name, space, &about, (const char *const *)&record, 1), RS_ERR_NOT_FOUND);
    assert_non_null(strstr(rs_error_message(), "shared file system"));
    free(record);
    rs_placement_destroy(placement);
    rs_space_destroy(space);
}

static rs_status refuse(void *context)
{
    ++*(int *)context;
    return RS_ERR_PEER;
}

/* All is written, and who commits may not publish it any more: no name changes. */
static void test_permit(void **state)
{
    (void)state;
    rs_space *space = model_space();
    rs_layout layout = layout_of("dp=1");
    rs_placement *placement;
    rs_save_name name = {folder, 7, "unit-1"};
    int64_t *steps = NULL;
    size_t count = 0;
    int asked = 0;
    rs_save_about about = {"dp=1", 1, "{}", refuse, &asked};
    OK(save_all(space, &layout, 5, 1));
    OK(rs_layout_placement(space, &layout, &placement));
    OK(rs_save_prepare(&name));
    char *record = write_part(placement, 0, 7, &name);
    assert_int_equal(
        rs_save_commit(&name, space, &about, (const char *const *)&record, 1), RS_ERR_PEER);
    assert_int_equal(asked, 1);
    assert_int_equal(access(in_folder("step-00000007.tmp-unit-1/manifest.json"), F_OK), 0);
    assert_int_not_equal(access(in_folder("step-00000007"), F_OK), 0);
    OK(rs_native_find(folder, &steps, &count)); /* `latest` names none that is not there */
    assert_int_equal(count, 1);
    assert_int_equal(steps[0], 5);
    free(steps);
    free(record);
    rs_placement_destroy(placement);
    rs_space_destroy(space);
}

/* J03, and what is kept, set aside and removed. */
static void test_latest(void **state)
{
    (void)state;
    rs_space *space = model_space();
    rs_layout layout = layout_of("dp=1");
    int64_t *steps = NULL;
    size_t count = 0;
    OK(rs_native_find(folder, &steps, &count));
    assert_int_equal(count, 0);
    free(steps);
    for (int64_t step = 5; step <= 25; step += 5)
        OK(save_all(space, &layout, step, 1));
    assert_int_equal(save_all(space, &layout, 25, 1), RS_ERR_EXISTS);
    OK(rs_save_prune(folder, 3));
    OK(rs_native_abandon_after(folder, 20, &count));
    assert_int_equal(count, 1);
    OK(rs_native_find(folder, &steps, &count));
    assert_int_equal(count, 2);
    assert_int_equal(steps[0], 20);
    assert_int_equal(steps[1], 15);
    free(steps);
    rs_checkpoint *checkpoint;
    OK(rs_checkpoint_open(in_folder("step-00000025.abandoned-1"), NULL, &checkpoint));
    rs_checkpoint_close(checkpoint);
    OK(save_all(space, &layout, 25, 1));
    OK(rs_remove_folder(in_folder("step-00000025")));
    assert_int_equal(rs_native_find(folder, &steps, &count), RS_ERR_NOT_FOUND);
    assert_non_null(strstr(rs_error_message(), "step-00000020, step-00000015"));
    rs_space_destroy(space);
}

static void change_byte(const char *path, off_t at)
{
    char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    off_t place = at >= 0 ? at : lseek(fd, 0, SEEK_END) + at;
    assert_int_equal(pread(fd, &byte, 1, place), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, place), 1);
    close(fd);
}

static void test_damage(void **state)
{
    (void)state;
    rs_space *space = model_space();
    rs_layout layout = layout_of("dp=1");
    rs_native *native = NULL;
    char manifest[512], data[512];
    OK(save_all(space, &layout, 1, 1));
    snprintf(manifest, sizeof manifest, "%s", in_folder("step-00000001/manifest.json"));
    snprintf(data, sizeof data, "%s", in_folder("step-00000001/rank-00000.safetensors"));
    for (off_t at = 19; at < 4000; at += 7) {
        change_byte(manifest, at);
        assert_int_equal(rs_native_open_step(folder, 1, &native), RS_ERR_MALFORMED);
        change_byte(manifest, at);
    }
    change_byte(data, -1);
    rs_checkpoint *checkpoint;
    OK(rs_checkpoint_open(folder, NULL, &checkpoint));
    OK(rs_checkpoint_check(checkpoint));
    assert_int_equal(rs_checkpoint_warning_count(checkpoint), 1);
    assert_non_null(strstr(rs_checkpoint_warning_at(checkpoint, 0), "rank-00000.safetensors"));
    rs_checkpoint_close(checkpoint);
    change_byte(data, -1);
    OK(truncate(data, 5000));
    assert_int_equal(rs_native_open_step(folder, 1, &native), RS_ERR_MALFORMED);
    assert_non_null(strstr(rs_error_message(), "the manifest says"));
    OK(truncate(manifest, 5000));
    assert_int_equal(rs_native_open_step(folder, 1, &native), RS_ERR_MALFORMED);
    rs_space_destroy(space);
}

/* What a data file says of itself is not needed to read it, and checked all the same: other tools
 * read that. */
static void test_head_damage(void **state)
{
    (void)state;
    rs_space *space = model_space();
    rs_layout layout = layout_of("dp=2,zero=1");
    rs_checkpoint *checkpoint;
    char data[512], head[6000];
    OK(save_all(space, &layout, 1, 1));
    snprintf(data, sizeof data, "%s", in_folder("step-00000001/rank-00001.safetensors"));
    FILE *file = fopen(data, "r");
    assert_non_null(file);
    assert_int_equal(fread(head, 1, sizeof head, file), sizeof head);
    fclose(file);
    head[sizeof head - 1] = '\0';
    const char *notes = strstr(head + 8, "},");
    assert_non_null(notes); /* the end of the metadata, which may say anything */
    for (off_t at = 0; at < (off_t)sizeof head - 8; at += at < 8 ? 1 : 11) {
        if (at >= 8 && at < notes - head)
            continue;
        change_byte(data, at);
        OK(rs_checkpoint_open(folder, NULL, &checkpoint));
        OK(rs_checkpoint_check(checkpoint));
        if (rs_checkpoint_warning_count(checkpoint) == 0)
            fail_msg("byte %ld changed, and nobody says so", (long)at);
        assert_non_null(strstr(rs_checkpoint_warning_at(checkpoint, 0), "rank-00001.safetensors"));
        rs_checkpoint_close(checkpoint);
        change_byte(data, at);
    }
    rs_space_destroy(space);
}

/* Another model, another type, another role. */
static void test_does_not_fit(void **state)
{
    (void)state;
    rs_space *space = model_space(), *other;
    rs_layout layout = layout_of("dp=1");
    rs_native *native;
    rs_model model = small_model();
    OK(save_all(space, &layout, 1, 1));
    OK(rs_native_open_step(folder, 1, &native));
    OK(rs_native_fits(native, space, 0, 1));
    OK(rs_model_space(&model, RS_DTYPE_BF16, &other));
    assert_int_equal(rs_native_fits(native, other, 0, 1), RS_ERR_MISMATCH);
    rs_space_destroy(other);
    model.ffn = 54;
    OK(rs_model_space(&model, RS_DTYPE_F32, &other));
    assert_int_equal(rs_native_fits(native, other, 0, 1), RS_ERR_MISMATCH);
    assert_non_null(strstr(rs_error_message(), "mlp.gate"));
    rs_space_destroy(other);
    model.ffn = 7;
    model.qkv_bias = false;
    OK(rs_model_space(&model, RS_DTYPE_F32, &other));
    assert_int_equal(rs_native_fits(native, other, 0, 1), RS_ERR_MISMATCH);
    assert_non_null(strstr(rs_error_message(), "bias"));
    rs_space_destroy(other);
    rs_native_close(native);
    rs_space_destroy(space);
}

/* ---- conversions for a layout ---- */

/* The manifest of a step in a folder of checkpoints. */
static json_t *manifest_of(const char *checkpoints, int64_t step)
{
    char path[512];
    snprintf(path, sizeof path, "%s/step-%08d/manifest.json", checkpoints, (int)step);
    json_t *manifest = json_load_file(path, 0, NULL);
    if (manifest == NULL)
        fail_msg("%s", path);
    return manifest;
}

/* Both have the same shards on the same ranks, with the same content; where in the file they lie
 * depends on the name of the job. */
static void same_files(json_t *a, json_t *b)
{
    size_t i, k;
    json_t *file, *shard;
    json_array_foreach(json_object_get(a, "files"), i, file)
    {
        json_t *other = json_array_get(json_object_get(b, "files"), i);
        assert_true(json_equal(json_object_get(file, "name"), json_object_get(other, "name")));
        assert_true(json_equal(json_object_get(file, "rank"), json_object_get(other, "rank")));
        json_array_foreach(json_object_get(file, "shards"), k, shard)
        {
            json_t *twin = json_array_get(json_object_get(other, "shards"), k);
            json_object_del(shard, "at");
            json_object_del(twin, "at");
            if (!json_equal(shard, twin))
                fail_msg("%s and %s", json_dumps(shard, 0), json_dumps(twin, 0));
        }
        assert_int_equal(k, json_array_size(json_object_get(other, "shards")));
    }
    assert_int_equal(i, json_array_size(json_object_get(b, "files")));
}

static void check_for_layout(const rs_space *space, const rs_layout *from, const rs_layout *to)
{
    static const char *const same[] = {"layout", "world", "facts", "roles", "tensors"};
    char text[RS_LAYOUT_TEXT], target[128];
    rs_convert_options how = {.to = "native", .layout = rs_layout_format(to, text)};
    rs_checkpoint *source;
    rs_native *native;
    rs_layout other = layout_of("tp=3,dp=2,zero=1");
    snprintf(target, sizeof target, "%s-laid", folder);
    OK(save_all(space, from, 1, 9));
    OK(rs_checkpoint_open(folder, NULL, &source));
    if (rs_convert(source, target, &how, NULL) != RS_OK)
        fail_msg("%s", rs_error_message());
    rs_checkpoint_close(source);
    OK(save_all(space, to, 2, 9));
    json_t *laid = manifest_of(target, 1), *saved = manifest_of(folder, 2);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (!json_equal(json_object_get(laid, same[i]), json_object_get(saved, same[i])))
            fail_msg("%s: %s and %s", same[i], json_dumps(json_object_get(laid, same[i]), 0),
                json_dumps(json_object_get(saved, same[i]), 0));
    same_files(laid, saved);
    json_decref(laid);
    json_decref(saved);
    OK(rs_native_open_step(target, 1, &native));
    OK(rs_native_fits(native, space, 0, 1));
    check_load(native, space, &other, 9);
    rs_native_close(native);
    OK(rs_remove_folder(target));
    OK(rs_remove_folder(folder));
}

/* Whatever layout it was saved under, converted for another one it is what the ranks of that would
 * save: key heads on several ranks (B03), uneven rows of the vocabulary (B09). */
static void test_for_a_layout(void **state)
{
    (void)state;
    uint64_t random = 7;
    rs_space *space = model_space();
    rs_layout from = layout_of("tp=4,pp=2"), to = layout_of("tp=3,dp=2,zero=1");
    check_for_layout(space, &from, &to);
    for (int round = 0; round < 12; round++) {
        from = random_layout(&random, 8, 2);
        to = random_layout(&random, 12, 2);
        check_for_layout(space, &from, &to);
    }
    rs_space_destroy(space);
}

/* B03: 8 query heads in 2 groups over 4 ranks. Rank 1 has heads 2 and 3, and all of the first
 * group's keys, as rank 0 has; over 2 ranks each group is on one of them, and one rank has 24 rows.
 */
static void test_shared_keys(void **state)
{
    (void)state;
    static const char *const texts[] = {"tp=4", "tp=2", "tp=4", "dp=1"};
    rs_model model = small_model();
    rs_space *space;
    rs_placement *placement;
    rs_layout from = layout_of("tp=4"), to;
    rs_shard_list shards = {0};
    model.heads = 8;
    model.kv_heads = 2;
    model.head_dim = 2;
    model.hidden = 4;
    OK(rs_model_space(&model, RS_DTYPE_F32, &space));
    OK(rs_layout_placement(space, &from, &placement));
    OK(rs_placement_shards(placement, 1, 0, &shards));
    int q = rs_space_find_tensor(space, "layers.attn.q.weight");
    int k = rs_space_find_tensor(space, "layers.attn.k.weight");
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *s = &shards.items[i];
        if (s->tensor == q)
            assert_true(s->box.offset[1] == 4 && s->box.extent[1] == 4);
        if (s->tensor == k)
            assert_true(s->box.offset[1] == 0 && s->box.extent[1] == 2);
    }
    rs_shard_list_fini(&shards);
    rs_placement_destroy(placement);
    for (int i = 1; i < 4; i++) {
        from = layout_of(texts[i - 1]);
        to = layout_of(texts[i]);
        check_for_layout(space, &from, &to);
    }
    rs_space_destroy(space);
}

/* Names whose axes nobody knows are cut as one flat range, and in no other way; the trainer's own
 * are known by the facts, or by a model that is given. */
static void test_for_a_layout_refusals(void **state)
{
    (void)state;
    rs_space *space = model_space(), *other;
    rs_layout one = layout_of("dp=1");
    rs_model model = small_model();
    rs_checkpoint *own, *foreign, *written;
    rs_dialect *hub;
    rs_rename_options names = {0};
    rs_convert_options how = {.to = "native", .layout = "tp=2"};
    char target[128];
    snprintf(target, sizeof target, "%s-laid", folder);
    OK(save_all(space, &one, 1, 1));
    OK(rs_checkpoint_open(folder, NULL, &own));
    OK(rs_dialect_load("hf", &hub));
    names.to = hub;
    OK(rs_checkpoint_rename(own, &names, &foreign));
    assert_int_equal(rs_convert(foreign, target, &how, NULL), RS_ERR_UNSUPPORTED);
    assert_non_null(strstr(rs_error_message(), "nothing says how tp=2 cuts it"));
    how.layout = "dp=3,zero=3";
    OK(rs_convert(foreign, target, &how, NULL));
    OK(rs_checkpoint_open(target, NULL, &written));
    rs_compare_options all = {0};
    rs_compare_report report;
    OK(rs_compare(foreign, written, &all, NULL, NULL, &report));
    assert_int_equal(report.different, 0);
    assert_string_equal(rs_checkpoint_layout(written), "dp=3,zero=3");
    rs_checkpoint_close(written);
    OK(rs_remove_folder(target));
    how.layout = "tp=2";
    model.ffn = 8;
    OK(rs_model_space(&model, RS_DTYPE_F32, &other));
    how.space = other;
    assert_int_equal(rs_convert(own, target, &how, NULL), RS_ERR_MISMATCH);
    assert_non_null(strstr(rs_error_message(), "the model wants"));
    how.space = NULL;
    how.layout = "tp=2,sp=4";
    assert_int_equal(rs_convert(own, target, &how, NULL), RS_ERR_ARGUMENT);
    how.layout = "tp=2";
    how.to = "safetensors";
    assert_int_equal(rs_convert(own, target, &how, NULL), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "is for no layout"));
    assert_int_not_equal(access(target, F_OK), 0);
    rs_space_destroy(other);
    rs_checkpoint_close(foreign);
    rs_checkpoint_close(own);
    rs_dialect_destroy(hub);
    rs_space_destroy(space);
}

/* What other formats say twice is passed over only where it is the same: not a master that is not
 * its param, nor the step of a tensor that is not the checkpoint's. */
static void test_said_twice(void **state)
{
    (void)state;
    static const char *const roles[] = {"master", "step"};
    static const char *const wanted[] = {"\"w\": the job has its param alone, of float32, and the "
                                         "checkpoint a master that is another: "
                                         "at [0] master has",
        "has step of \"w\", which the job does not"};
    rs_layout layout = layout_of("dp=1");
    rs_tensor w = {.name = "w", .ndim = 1, .shape = {1}};
    for (int i = 0; i < 2; i++) {
        rs_space *both, *job;
        rs_native *native;
        rs_role role = {.name = "param", .dtype = RS_DTYPE_F32, .role_class = RS_ROLE_MODEL};
        OK(rs_space_create(&both));
        OK(rs_space_create(&job));
        OK(rs_space_add_role(both, &role, NULL));
        OK(rs_space_add_role(job, &role, NULL));
        role = (rs_role){roles[i], i == 0 ? RS_DTYPE_F32 : RS_DTYPE_I64, RS_ROLE_OPTIMIZER};
        OK(rs_space_add_role(both, &role, NULL));
        OK(rs_space_add_tensor(both, &w, NULL));
        OK(rs_space_add_tensor(job, &w, NULL));
        OK(save_all(both, &layout, i + 1, 1));
        OK(rs_native_open_step(folder, i + 1, &native));
        OK(rs_native_fits(native, both, 0, 1));
        int refused = 0;
        for (int part = 0; part < 3; part++)
            refused += rs_native_fits(native, job, part, 3) != RS_OK;
        assert_int_equal(refused, 1);
        assert_int_equal(rs_native_fits(native, job, 0, 1), RS_ERR_MISMATCH);
        if (strstr(rs_error_message(), wanted[i]) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", rs_error_message(), wanted[i]);
        rs_native_close(native);
        rs_space_destroy(both);
        rs_space_destroy(job);
    }
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test_setup(test_any_layout_reads_any, next_folder),
        cmocka_unit_test_setup(test_large_shards, next_folder),
        cmocka_unit_test_setup(test_every_failure, next_folder),
        cmocka_unit_test_setup(test_every_death, next_folder),
        cmocka_unit_test_setup(test_unfinished, next_folder),
        cmocka_unit_test_setup(test_other_disk, next_folder),
        cmocka_unit_test_setup(test_permit, next_folder),
        cmocka_unit_test_setup(test_latest, next_folder),
        cmocka_unit_test_setup(test_damage, next_folder),
        cmocka_unit_test_setup(test_head_damage, next_folder),
        cmocka_unit_test_setup(test_does_not_fit, next_folder),
        cmocka_unit_test_setup(test_said_twice, next_folder),
        cmocka_unit_test_setup(test_for_a_layout, next_folder),
        cmocka_unit_test_setup(test_shared_keys, next_folder),
        cmocka_unit_test_setup(test_for_a_layout_refusals, next_folder),
    };
    return cmocka_run_group_tests(all, make_root, remove_root);
}
