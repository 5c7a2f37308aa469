/*
 * Memory that runs out: each allocation of opening, checking and reading a checkpoint of each
 * format fails once. It is said, and nothing else: no crash, no leak (the address sanitizer looks),
 * no checkpoint that lacks something.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "ckpt/publish.h"
#include "reshard/checkpoint.h"
#include "reshard/convert.h"
#include "support/ok.h"

#define FIXTURES RS_SHARED_DIR "/fixtures/"
#define EACH 400 /* the first allocations one by one, the others by leaps */

static char root[] = "/dev/shm/fault-memory-XXXXXX";

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    (void)state;
    rs_alloc_fail_at(0);
    return rs_remove_folder(root) != RS_OK;
}

static rs_checkpoint *open_source(void)
{
    rs_checkpoint *source;
    if (access(FIXTURES, F_OK) != 0)
        skip();
    OK(rs_checkpoint_open(FIXTURES "deepspeed/z3-bf16-w4/checkpoint", NULL, &source));
    return source;
}

/* What reading everything gives: entries, warnings, and the first hash. */
typedef struct outcome {
    size_t entries, warnings;
    char hash[RS_CHECKPOINT_HASH];
} outcome;

static rs_status read_all(const char *path, outcome *out)
{
    rs_checkpoint *checkpoint = NULL;
    char *extras = NULL;
    *out = (outcome){0};
    rs_status status = rs_checkpoint_open(path, NULL, &checkpoint);
    if (status == RS_OK)
        status = rs_checkpoint_check(checkpoint);
    if (status == RS_OK)
        status = rs_checkpoint_extras(checkpoint, &extras);
    if (status == RS_OK && rs_checkpoint_count(checkpoint) > 0)
        status = rs_checkpoint_hash(checkpoint, 0, out->hash);
    if (status == RS_OK) {
        out->entries = rs_checkpoint_count(checkpoint);
        out->warnings = rs_checkpoint_warning_count(checkpoint);
    }
    free(extras);
    rs_checkpoint_close(checkpoint);
    return status;
}

static void fail_everywhere(const char *path)
{
    outcome wanted, found;
    size_t failures = 0, all;
    if (access(path, F_OK) != 0)
        fail_msg("%s is not there", path);
    rs_alloc_fail_at(0);
    assert_int_equal(read_all(path, &wanted), RS_OK);
    all = rs_alloc_fail_at(0);
    for (size_t n = 1; n <= all; n += n < EACH ? 1 : all / EACH + 1) {
        rs_alloc_fail_at(n);
        rs_status status = read_all(path, &found);
        bool failed = rs_alloc_fail_at(0) >= n;
        failures += status != RS_OK;
        if (status != RS_OK && status != RS_ERR_NO_MEMORY)
            fail_msg("%s, allocation %zu of %zu: %s (%s)", path, n, all, rs_status_name(status),
                rs_error_message());
        if (status == RS_OK &&
            (found.entries != wanted.entries || found.warnings != wanted.warnings ||
                strcmp(found.hash, wanted.hash) != 0))
            fail_msg("%s, allocation %zu of %zu: %zu entries instead of %zu, %zu warnings instead "
                     "of %zu, or another hash",
                path, n, all, found.entries, wanted.entries, found.warnings, wanted.warnings);
        assert_true(failed);
    }
    /* None may be done without. */
    if (failures < (all < EACH ? all : EACH))
        fail_msg(
            "%s: %zu of %zu failures went by", path, (all < EACH ? all : EACH) - failures, all);
}

static void test_fixtures(void **state)
{
    (void)state;
    static const char *const paths[] = {"safetensors/dtypes/model.safetensors",
        "torchsave-1.13/dtypes-zip/data.pt", "torchsave-1.13/dtypes-legacy/data.pt",
        "torchsave-1.13/deflated-entries/data.pt", "torchsave-1.13/nested-objects/data.pt",
        "deepspeed/z2-fp32-w2/checkpoint", "deepspeed/z3-bf16-w4/checkpoint",
        "deepspeed/b-moe4-z1-fp32-w2/checkpoint", "deepspeed3d/tp2-dp2-z1-fp32-w4/checkpoint",
        "deepspeed3d/pp2-tp2-z1-fp32-w4/checkpoint",
        "deepspeed/z3-fp32-w2-onegroup/reference/universal"};
    char path[1024];
    if (access(FIXTURES, F_OK) != 0)
        skip();
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        snprintf(path, sizeof path, FIXTURES "%s", paths[i]);
        fail_everywhere(path);
    }
}

static const struct {
    const char *name;
    int64_t shard_bytes;
} formats[] = {{"native", 5000}, {"safetensors", 5000}, {"torch", 0}};

/* What reshard writes itself. */
static void test_written(void **state)
{
    (void)state;
    char path[64];
    rs_checkpoint *source = open_source();
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        rs_convert_options how = {.to = formats[i].name, .shard_bytes = formats[i].shard_bytes};
        snprintf(path, sizeof path, "%s/whole-%s", root, formats[i].name);
        OK(rs_convert(source, path, &how, NULL));
        fail_everywhere(path);
    }
    rs_checkpoint_close(source);
}

/* Each allocation of a conversion fails once: nothing is at the target, or all of it. */
static void test_conversions(void **state)
{
    (void)state;
    char path[64], aside[96];
    rs_checkpoint *source = open_source();
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        rs_convert_options how = {
            .to = formats[i].name, .shard_bytes = formats[i].shard_bytes, .threads = 2};
        snprintf(path, sizeof path, "%s/%s", root, formats[i].name);
        snprintf(aside, sizeof aside, "%s.tmp-reshard", path);
        rs_status status = RS_ERR_NO_MEMORY;
        for (size_t n = 1; status != RS_OK; n += n < EACH ? 1 : 13) {
            rs_alloc_fail_at(n);
            status = rs_convert(source, path, &how, NULL);
            bool failed = rs_alloc_fail_at(0) >= n;
            bool there = access(path, F_OK) == 0;
            assert_true(status == RS_OK || status == RS_ERR_NO_MEMORY);
            assert_true(failed || status == RS_OK);
            assert_true(there || status != RS_OK);
            if (status != RS_OK)
                assert_int_not_equal(access(aside, F_OK), 0);
            if (there && status != RS_OK)
                assert_int_equal(rs_remove_path(root, formats[i].name), RS_OK);
        }
    }
    rs_checkpoint_close(source);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_written),
        cmocka_unit_test(test_conversions),
    };
    return cmocka_run_group_tests(all, make_root, remove_root);
}
