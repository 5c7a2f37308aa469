/* Conversions that fail or die at every write, sync and rename: the target is absent, or as it was,
 * or complete; and what was converted holds the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/fault.h"
#include "ckpt/format.h"
#include "ckpt/publish.h"
#include "pattern.h"
#include "reshard/convert.h"
#include "reshard/layout.h"
#include "reshard/native.h"
#include "support/ok.h"
#include "support/save.h"

static char root[] = "/dev/shm/unit-convert-XXXXXX";
static char source[64], target[64], aside[80];

/* A checkpoint of a small model on one rank. */
static int make_source(void **state)
{
    (void)state;
    rs_model model = pattern_model();
    rs_space *space;
    rs_save_name name = {source, 3, "unit-1"};
    uint64_t salt = 1;
    assert_non_null(mkdtemp(root));
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(target, sizeof target, "%s/target", root);
    snprintf(aside, sizeof aside, "%s.tmp-reshard", target);
    model.hidden = 8;
    model.layers = 2;
    OK(rs_model_space(&model, RS_DTYPE_F32, &space));
    OK(save_all(&name, space, "dp=1", save_pattern, &salt));
    rs_space_destroy(space);
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    return rs_remove_folder(root) != RS_OK;
}

/* A file, or a folder. */
static void remove_target(void)
{
    if (unlink(target) != 0)
        OK(rs_remove_folder(target));
}

static rs_status convert(const char *to, bool force)
{
    bool bounded = strcmp(to, "native") == 0 || strcmp(to, "safetensors") == 0;
    rs_convert_options how = {
        .to = to, .force = force, .shard_bytes = bounded ? 1500 : 0, .threads = 1};
    rs_checkpoint *checkpoint;
    OK(rs_checkpoint_open(source, NULL, &checkpoint));
    rs_status status = rs_convert(checkpoint, target, &how, NULL);
    rs_checkpoint_close(checkpoint);
    return status;
}

/* What is at the target, if anything, holds what the source does. */
static bool check_target(const char *role)
{
    rs_checkpoint *a, *b;
    rs_compare_options how = {.role = role};
    rs_compare_report report;
    if (access(target, F_OK) != 0)
        return false;
    OK(rs_checkpoint_open(source, NULL, &a));
    OK(rs_checkpoint_open(target, NULL, &b));
    OK(rs_compare(a, b, &how, NULL, NULL, &report));
    assert_int_equal(report.different, 0);
    assert_true(report.tensors >= 10);
    assert_int_equal(rs_checkpoint_warning_count(b), 0);
    rs_checkpoint_close(a);
    rs_checkpoint_close(b);
    return true;
}

static void fail_everywhere(const char *to, const char *role)
{
    static const rs_fault points[] = {RS_FAULT_WRITE, RS_FAULT_SYNC, RS_FAULT_RENAME};
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        for (int n = 1;; n++) {
            rs_fault_arm(points[p], n, 1);
            rs_status status = convert(to, false);
            bool clean = rs_fault_pending(points[p]);
            rs_fault_arm(points[p], 0, 0);
            assert_true(clean == (status == RS_OK));
            assert_true(check_target(role) || !clean);
            assert_int_not_equal(access(aside, F_OK), 0);
            remove_target();
            if (clean)
                break;
        }
    }
}

static void test_failures(void **state)
{
    (void)state;
    fail_everywhere("safetensors", "param");
    fail_everywhere("native", NULL);
    fail_everywhere("torch", NULL);
    fail_everywhere("deepspeed-universal", "exp_avg_sq");
}

/* Replacing what is there fails at every step, with names that can be exchanged and without: it is
 * there whole, or what replaces it is. */
static void test_replacing(void **state)
{
    (void)state;
    static const rs_fault points[] = {RS_FAULT_WRITE, RS_FAULT_SYNC, RS_FAULT_RENAME};
    for (int old_way = 0; old_way < 2; old_way++) {
        for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
            OK(convert("native", false));
            for (int n = 1;; n++) {
                rs_fault_arm(RS_FAULT_EXCHANGE, old_way, old_way * 100);
                rs_fault_arm(points[p], n, 1);
                rs_status status = convert("safetensors", true);
                bool clean = rs_fault_pending(points[p]);
                rs_fault_arm(points[p], 0, 0);
                rs_fault_arm(RS_FAULT_EXCHANGE, 0, 0);
                assert_true(clean == (status == RS_OK));
                assert_true(check_target("param"));
                assert_true(clean || n < 100);
                if (clean)
                    break;
            }
            OK(rs_remove_folder(target));
        }
    }
}

/* Nothing but the source and the target is in the folder. */
static void check_rest(void)
{
    rs_place place;
    OK(rs_place_init(&place, root));
    for (size_t i = 0; i < place.count; i++)
        assert_true(strcmp(place.names[i], "source") == 0 || strcmp(place.names[i], "target") == 0);
    rs_place_fini(&place);
}

/* Killed while it replaces: what was there is there, or what replaces it; but in the old way's one
 * moment between two renames, which the next conversion mends. */
static void test_deaths_replacing(void **state)
{
    (void)state;
    for (int old_way = 0; old_way < 2; old_way++) {
        int absent = 0;
        for (int n = 1;; n++) {
            int status;
            OK(rs_remove_folder(target));
            OK(convert("native", false));
            pid_t child = fork();
            if (child == 0) {
                rs_fault_arm(RS_FAULT_EXCHANGE, old_way, old_way * 100);
                rs_fault_arm(RS_FAULT_DIE, n, 1);
                _exit(convert("safetensors", true) == RS_OK ? 0 : 1);
            }
            assert_int_equal(waitpid(child, &status, 0), child);
            if (!check_target("param")) {
                absent++;
                assert_int_equal(convert("safetensors", false), RS_ERR_EXISTS);
            }
            assert_true(check_target("param"));
            OK(convert("safetensors", true));
            check_rest();
            if (WIFEXITED(status)) {
                assert_int_equal(WEXITSTATUS(status), 0);
                break;
            }
        }
        assert_true(old_way ? absent > 0 && absent <= 2 : absent == 0);
    }
    OK(rs_remove_folder(target));
}

/* Killed before each of them; then done once more over what was left, replacing nothing whole. */
static void die_everywhere(const char *to, const char *role, int least)
{
    int deaths = 0;
    for (int n = 1;; n++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            rs_fault_arm(RS_FAULT_DIE, n, 1);
            _exit(convert(to, false) == RS_OK ? 0 : 1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        check_target(role);
        OK(convert(to, true));
        assert_true(check_target(role));
        assert_int_equal(convert(to, false), RS_ERR_EXISTS);
        remove_target();
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            break;
        }
        assert_int_equal(WTERMSIG(status), SIGKILL);
        deaths++;
    }
    assert_true(deaths >= least);
}

static void test_deaths(void **state)
{
    (void)state;
    die_everywhere("safetensors", "param", 30);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_replacing),
        cmocka_unit_test(test_deaths),
        cmocka_unit_test(test_deaths_replacing),
    };
    return cmocka_run_group_tests(all, make_source, remove_root);
}
