/* A job's options: what is refused and why, and that job.json gives back what was saved. */
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

#include "train/train.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/reshard-unit-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/job.json", folder);
    unlink(path);
    return rmdir(folder);
}

#define PUT(member, text) snprintf(options.member, sizeof options.member, "%s", text)

static void saved_options_come_back(void **state)
{
    (void)state;
    rs_train_options options, loaded;
    rs_train_options_init(&options);
    PUT(model, "llama-tiny");
    PUT(data, "/tmp/some \"file\" \xc3\xa9");
    PUT(job, folder);
    PUT(arena_dir, "/mnt/x");
    PUT(layout, "tp=2");
    assert_int_equal(rs_train_options_add_switch(&options, "7:pp=2,dp=2"), RS_OK);
    assert_int_equal(rs_train_options_add_switch(&options, "9:dp=4,zero=1"), RS_OK);
    options.steps = 11;
    options.ranks = 4;
    options.global_batch = 12;
    options.micro_batch = 3;
    options.seq = 77;
    options.dtype = RS_DTYPE_BF16;
    options.lr = 1.0 / 3;
    options.warmup = 0;
    options.seed = UINT64_MAX - 5;
    options.ranks_per_node = 2;
    options.transport = RS_TRANSPORT_MPI;
    options.tight = true;
    options.window = 1 << 20;
    options.threads = 3;
    options.supervised = true;
    options.fault.certificate_switch = 2;
    options.fault.kill_rank = 1;
    options.fault.hashes = true;
    assert_int_equal(rs_train_options_save(&options), RS_OK);
    assert_true(options.id[0] != '\0' && strlen(options.id) <= 48);
    rs_train_options_init(&loaded);
    assert_int_equal(rs_train_options_load(&loaded, folder), RS_OK);
    assert_int_equal(loaded.switch_count, 2);
    assert_memory_equal(loaded.switches, options.switches, 2 * sizeof *loaded.switches);
    rs_train_switch *switches = loaded.switches;
    loaded.switches = options.switches;
    assert_memory_equal(&loaded, &options, sizeof loaded);
    loaded.switches = switches;
    rs_train_options_fini(&loaded);
    rs_train_options_fini(&options);
}

static void put_json(const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "%s/job.json", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } rows[] = {
        {"{", "line"},
        {"[]", "job.json"},
        {"{\"steps\": \"ten\"}", "steps"},
        {"{\"ranks\": 3000000000}", "ranks"},
        {"{\"stepz\": 3}", "stepz"},
        {"{\"switches\": [3]}", "item 0"},
        {"{\"switches\": [\"x:dp=1\"]}", "STEP:LAYOUT"},
        {"{\"transport\": \"pigeon\"}", "pigeon"},
        {"{\"steps\": 1, \"steps\": 2}", "steps"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rs_train_options options;
        put_json(rows[i].text);
        rs_train_options_init(&options);
        assert_int_not_equal(rs_train_options_load(&options, folder), RS_OK);
        if (strstr(rs_error_message(), rows[i].word) == NULL)
            fail_msg(
                "%s: \"%s\" does not say \"%s\"", rows[i].text, rs_error_message(), rows[i].word);
        rs_train_options_fini(&options);
    }
}

/* Options that are good, but for what a row changes. */
static void good_options(rs_train_options *out)
{
    rs_train_options options;
    rs_train_options_init(&options);
    PUT(model, "llama-tiny");
    PUT(data, "/proc/self/exe");
    PUT(job, folder);
    options.steps = 10;
    *out = options;
}

static void assert_refused(rs_train_options *options, const char *word)
{
    assert_int_not_equal(rs_train_options_check(options), RS_OK);
    if (strstr(rs_error_message(), word) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", rs_error_message(), word);
    rs_train_options_fini(options);
}

static void what_cannot_work_is_refused(void **state)
{
    (void)state;
    rs_train_options options;
    good_options(&options);
    assert_int_equal(rs_train_options_check(&options), RS_OK);
    assert_int_equal(options.ranks, 1);
    rs_train_options_fini(&options);
    good_options(&options);
    options.steps = 0;
    assert_refused(&options, "steps 0");
    good_options(&options);
    options.micro_batch = 9;
    assert_refused(&options, "micro-batch 9: must be 1 to 8");
    good_options(&options);
    options.lr = 0;
    assert_refused(&options, "learning rate");
    good_options(&options);
    options.dtype = RS_DTYPE_I8;
    assert_refused(&options, "int8");
    good_options(&options);
    PUT(data, "/nowhere");
    assert_refused(&options, "/nowhere");
    good_options(&options);
    PUT(data, "/tmp");
    assert_refused(&options, "regular");
    good_options(&options);
    PUT(model, "no-such-model");
    assert_refused(&options, "no-such-model");
    good_options(&options);
    PUT(layout, "tp=2,pp=5");
    assert_refused(&options, "pp");
    good_options(&options);
    options.transport = RS_TRANSPORT_ARENA;
    options.ranks_per_node = 2;
    assert_refused(&options, "ranks per node");
}

static void switches_are_checked_in_turn(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second, *word;
    } rows[] = {
        {"5:dp=1", NULL, "already"},
        {"11:tp=2", NULL, "0 to 10"},
        {"5:tp=2", "4:dp=1", "5 to 10"},
        {"5:tp=2", "6:tp=2", "already"},
        {"5:pp=9", NULL, "5:pp=9"},
    };
    rs_train_options options;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        good_options(&options);
        assert_int_equal(rs_train_options_add_switch(&options, rows[i].first), RS_OK);
        if (rows[i].second != NULL)
            assert_int_equal(rs_train_options_add_switch(&options, rows[i].second), RS_OK);
        assert_refused(&options, rows[i].word);
    }
    good_options(&options);
    assert_int_equal(rs_train_options_add_switch(&options, "0:tp=2"), RS_OK);
    assert_int_equal(rs_train_options_add_switch(&options, "10:dp=3"), RS_OK);
    assert_int_equal(rs_train_options_check(&options), RS_OK);
    assert_int_equal(options.ranks, 3);
    options.ranks = 2;
    assert_refused(
        &options, "dp=3 needs 3 ranks, and the job has 2; the nearest that fits is dp=2");
    good_options(&options);
    options.ranks = 3;
    snprintf(options.layout, sizeof options.layout, "cp=4");
    assert_refused(&options, "cp=4 needs 4 ranks, and the job has 3; none near it fits");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saved_options_come_back),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(what_cannot_work_is_refused),
        cmocka_unit_test(switches_are_checked_in_turn),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
