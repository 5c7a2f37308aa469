/*
 * Power cuts: a save, the removal of old ones, and conversions, cut off behind each of their
 * changes of the disk (disk.h). The checkpoints of before are whole, what looks like a new one is,
 * and what was said to be done stays done (J02, J06).
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

#include "base/fault.h"
#include "ckpt/publish.h"
#include "disk.h"
#include "pattern.h"
#include "reshard/convert.h"
#include "reshard/layout.h"
#include "reshard/native.h"
#include "support/ok.h"
#include "support/save.h"

#define HOLDS(n, condition)                                                                        \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_msg("power cut behind change %zu, %s: not so: %s (%s)", n,                        \
                n > 0 ? disk_change(n - 1) : "none", #condition, rs_error_message());              \
    } while (0)

static char root[] = "/dev/shm/fault-power-XXXXXX";
static char disk[64], after[80];
static int chances = 1; /* random losses behind each change; the program's argument, with which the
                          format of many files is cut off everywhere too */
static rs_space *space;

static int make_root(void **state)
{
    (void)state;
    rs_model model = pattern_model();
    model.layers = 2;
    model.hidden = 8;
    model.vocab = 19;
    model.ffn = 7;
    if (mkdtemp(root) == NULL)
        return 1;
    snprintf(disk, sizeof disk, "%s/disk", root);
    snprintf(after, sizeof after, "%s/after", root);
    return rs_model_space(&model, RS_DTYPE_F32, &space) != RS_OK;
}

static int remove_root(void **state)
{
    (void)state;
    rs_space_destroy(space);
    disk_forget();
    return rs_remove_folder(root) != RS_OK;
}

static int clear(void **state)
{
    (void)state;
    char before[80];
    snprintf(before, sizeof before, "%s.before", disk);
    return rs_remove_folder(disk) != RS_OK || rs_remove_folder(before) != RS_OK ||
           rs_remove_folder(after) != RS_OK;
}

/* Saves on two ranks; the state is told by the step. */
static void save(const char *folder, int64_t step)
{
    rs_save_name name = {folder, step, "power-1"};
    uint64_t salt = (uint64_t)step;
    OK(save_all(&name, space, "tp=2", save_pattern, &salt));
}

/* The checkpoint of a step is complete and holds what was saved. */
static void check_step(size_t n, const char *folder, int64_t step)
{
    rs_layout layout;
    rs_placement *placement;
    rs_native *native;
    rs_memory memory = {0};
    OK(rs_layout_parse("dp=1", &layout));
    OK(rs_layout_placement(space, &layout, &placement));
    HOLDS(n, rs_native_open_step(folder, step, &native) == RS_OK);
    OK(rs_memory_allocate(placement, 0, &memory));
    HOLDS(n, rs_native_load(native, placement, 0, &memory, NULL) == RS_OK);
    HOLDS(n, pattern_check(placement, 0, &memory, (uint64_t)step));
    rs_memory_free(&memory);
    rs_native_close(native);
    rs_placement_destroy(placement);
}

/* Checks what is left behind each change, for every kind of loss. */
static void cut_from(size_t first, size_t all, void (*check)(size_t n, size_t all))
{
    for (size_t n = first; n <= all; n++)
        for (int chance = 0; chance < 2 + chances; chance++) {
            disk_loss loss = chance < 2 ? (disk_loss)chance : DISK_SOME;
            disk_cut(n, loss, 1000 * n + (uint64_t)chance, after);
            check(n, all);
            OK(rs_remove_folder(after));
        }
}

static void cut_everywhere(void (*check)(size_t n, size_t all))
{
    cut_from(0, disk_end(), check);
}

/* Those of before are there, and the newest that is found, and what `latest` names, is whole. */
static void check_saved(size_t n, size_t all)
{
    int64_t *steps = NULL;
    size_t count = 0;
    bool first = false;
    HOLDS(n, rs_native_find(after, &steps, &count) == RS_OK);
    for (size_t i = 0; i < count; i++) {
        check_step(n, after, steps[i]);
        first = first || steps[i] == 1;
    }
    HOLDS(n, first && count <= 2);
    HOLDS(n, n < all || (count == 2 && steps[0] == 2));
    free(steps);
    OK(rs_save_clean(after));
}

static void test_save(void **state)
{
    (void)state;
    save(disk, 1);
    disk_begin(disk);
    save(disk, 2);
    cut_everywhere(check_saved);
    assert_true(disk_syncs() >= 7 && disk_renames() == 2);
}

/* The first save ever: nothing, or it. */
static void check_first(size_t n, size_t all)
{
    char folder[128];
    int64_t *steps = NULL;
    size_t count = 0;
    snprintf(folder, sizeof folder, "%s/checkpoints", after);
    HOLDS(n, rs_native_find(folder, &steps, &count) == RS_OK);
    if (count > 0)
        check_step(n, folder, 1);
    HOLDS(n, count <= 1 && (n < all || count == 1));
    free(steps);
}

static void test_first_save(void **state)
{
    (void)state;
    char folder[128];
    snprintf(folder, sizeof folder, "%s/checkpoints", disk);
    OK(rs_make_folder(disk));
    disk_begin(disk);
    save(folder, 1);
    cut_everywhere(check_first);
}

/* Removing old ones: what is found is whole, and the newest is there. */
static void check_pruned(size_t n, size_t all)
{
    int64_t *steps = NULL;
    size_t count = 0;
    HOLDS(n, rs_native_find(after, &steps, &count) == RS_OK);
    HOLDS(n, count >= 1 && count <= 3 && steps[0] == 3);
    for (size_t i = 0; i < count; i++)
        check_step(n, after, steps[i]);
    HOLDS(n, n < all || count == 1);
    free(steps);
}

static void test_prune(void **state)
{
    (void)state;
    for (int64_t step = 1; step <= 3; step++)
        save(disk, step);
    disk_begin(disk);
    OK(rs_save_prune(disk, 1));
    cut_everywhere(check_pruned);
}

/* ---- conversions ---- */

static char source[80];

static void convert(const char *to, const char *target, bool force, int64_t shard)
{
    rs_convert_options how = {.to = to, .force = force, .shard_bytes = shard, .threads = 2};
    rs_checkpoint *checkpoint;
    OK(rs_checkpoint_open(source, NULL, &checkpoint));
    OK(rs_convert(checkpoint, target, &how, NULL));
    rs_checkpoint_close(checkpoint);
}

/* What is at the path holds what the source does. */
static void check_equal(size_t n, const char *path, const char *role)
{
    rs_checkpoint *a, *b;
    rs_compare_options how = {.role = role};
    rs_compare_report report;
    OK(rs_checkpoint_open(source, NULL, &a));
    HOLDS(n, rs_checkpoint_open(path, NULL, &b) == RS_OK);
    OK(rs_compare(a, b, &how, NULL, NULL, &report));
    HOLDS(n, report.tensors >= 10 && report.different == 0);
    OK(rs_checkpoint_check(b));
    HOLDS(n, rs_checkpoint_warning_count(b) == 0);
    rs_checkpoint_close(a);
    rs_checkpoint_close(b);
}

static bool absent_allowed;
static const char *old_role, *new_role; /* in which old and new hold what the source does */

static void check_converted(size_t n, size_t all)
{
    char target[128];
    snprintf(target, sizeof target, "%s/target", after);
    bool there = access(target, F_OK) == 0;
    HOLDS(n, there || (absent_allowed && n < all));
    if (there && new_role == old_role)
        check_equal(n, target, new_role);
    else if (there) {
        char latest[160];
        snprintf(latest, sizeof latest, "%s/latest_universal", target);
        check_equal(n, target, access(latest, F_OK) == 0 ? new_role : old_role);
    }
}

/* To a new target, over another one, over another one where names cannot be exchanged, and to a new
 * one of few files. */
static void convert_everywhere(const char *to)
{
    char target[80];
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(target, sizeof target, "%s/target", disk);
    old_role = new_role = "param";
    bool bounded = strcmp(to, "native") == 0 || strcmp(to, "safetensors") == 0;
    if (strcmp(to, "deepspeed-universal") == 0)
        new_role = "exp_avg_sq"; /* it has no params */
    if (access(source, F_OK) != 0)
        save(source, 1);
    for (int round = 0; round < 4; round++) {
        bool over = round == 1 || round == 2;
        OK(rs_make_folder(disk));
        if (over)
            convert(strcmp(to, "native") == 0 ? "safetensors" : "native", target, false, 0);
        absent_allowed = round != 1;
        rs_fault_arm(RS_FAULT_EXCHANGE, round == 2, 100);
        disk_begin(disk);
        convert(to, target, over, round == 3 || !bounded ? 0 : 8000);
        rs_fault_arm(RS_FAULT_EXCHANGE, 0, 0);
        cut_everywhere(check_converted);
        assert_int_equal(clear(NULL), 0);
    }
}

static void test_safetensors(void **state)
{
    (void)state;
    convert_everywhere("safetensors");
}

static void test_native(void **state)
{
    (void)state;
    convert_everywhere("native");
}

static void test_torch(void **state)
{
    (void)state;
    convert_everywhere("torch");
}

/* Many files in many folders: what was said to be done stays done, all of these synced. */
static void convert_once(const char *to, const char *role)
{
    char target[80];
    snprintf(source, sizeof source, "%s/source", root);
    snprintf(target, sizeof target, "%s/target", disk);
    if (access(source, F_OK) != 0)
        save(source, 1);
    old_role = new_role = role;
    absent_allowed = true;
    OK(rs_make_folder(disk));
    disk_begin(disk);
    convert(to, target, false, 0);
    size_t all = disk_end();
    cut_from(all - 2, all, check_converted);
}

static void test_universal(void **state)
{
    (void)state;
    if (chances == 1)
        convert_once("deepspeed-universal", "exp_avg_sq");
    else
        convert_everywhere("deepspeed-universal");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        chances = (int)strtol(argv[1], NULL, 10);
    const struct CMUnitTest all[] = {
        cmocka_unit_test_teardown(test_save, clear),
        cmocka_unit_test_teardown(test_first_save, clear),
        cmocka_unit_test_teardown(test_prune, clear),
        cmocka_unit_test_teardown(test_safetensors, clear),
        cmocka_unit_test_teardown(test_native, clear),
        cmocka_unit_test_teardown(test_torch, clear),
        cmocka_unit_test_teardown(test_universal, clear),
    };
    return cmocka_run_group_tests(all, make_root, remove_root);
}
