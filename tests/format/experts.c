/*
 * Universal checkpoints of models with experts: the whole state, saved under one mesh of experts,
 * written as universal, and loaded under others, every element of every role.
 */
#include "truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/publish.h"
#include "reshard/convert.h"
#include "reshard/model.h"
#include "support/save.h"

static char root[] = "/dev/shm/reshard-experts-XXXXXX"; /* memory: some 10000 syncs */
static char folder[256], target[256];
static uint64_t salt = 17;

/* Every rank of the layout loads its part, and has what was saved. */
static void check_load(const rs_checkpoint *own, const rs_space *space, const char *text)
{
    rs_layout layout;
    rs_placement *placement;
    OK(rs_layout_parse(text, &layout));
    OK(rs_layout_placement(space, &layout, &placement));
    for (int r = 0; r < rs_layout_world(&layout); r++) {
        rs_memory memory = {0};
        OK(rs_memory_allocate(placement, r, &memory));
        OK(rs_checkpoint_load(own, placement, r, &memory, NULL));
        assert_true(pattern_check(placement, r, &memory, salt));
        rs_memory_free(&memory);
    }
    rs_placement_destroy(placement);
}

static const char *const layouts[] = {"dp=2,ep=2,zero=1", "tp=2,dp=2,ep=4,etp=1,zero=3",
    "tp=2,pp=2,etp=2", "dp=4,ep=2,zero=2", "cp=2,dp=2,ep=4", "dp=3,ep=3,zero=1"};

#define LAYOUTS (sizeof layouts / sizeof *layouts)

/* Written for `layout` (NULL: the source's), and read under every mesh; of weights that are not in
 * that form (`rounded`) the masters and moments are compared. */
static void check_universal(const rs_space *space, const char *layout, bool rounded)
{
    rs_checkpoint *native = opened(folder), *universal, *own;
    const rs_convert_options how = {.to = "deepspeed-universal", .layout = layout};
    const rs_compare_options state = {.role = "exp_avg,exp_avg_sq", .space = space};
    const rs_rename_options names = {.space = space};
    rs_compare_report report;
    OK(rs_convert(native, target, &how, NULL));
    universal = opened(target);
    OK(rs_checkpoint_rename(universal, &names, &own));
    OK(rs_compare(native, universal, &state, NULL, NULL, &report));
    assert_true(report.tensors > 0);
    assert_int_equal(report.different, 0);
    for (size_t i = 0; i < LAYOUTS && !rounded; i++)
        check_load(own, space, layouts[i]);
    rs_checkpoint_close(own);
    rs_checkpoint_close(universal);
    rs_checkpoint_close(native);
    OK(rs_remove_folder(target));
}

static rs_model small(const char *preset)
{
    rs_model model;
    OK(rs_model_load(preset, &model));
    model.layers = 3;
    model.hidden = 12;
    model.ffn = 10;
    model.vocab = 13;
    model.expert_ffn = 6;
    model.experts = 5;
    model.experts_per_token = 2;
    if (model.kv_rank == 0)
        model.head_dim = 4;
    if (model.shared_ffn > 0)
        model.shared_ffn = 7;
    return model;
}

static void test_all_meshes(void **state)
{
    (void)state;
    static const char *const presets[] = {
        "mixtral-tiny", "qwen3-moe-tiny", "qwen2-moe-tiny", "deepseek-tiny"};
    for (size_t m = 0; m < sizeof presets / sizeof *presets; m++)
        for (size_t i = m % 2; i < LAYOUTS; i += 2) {
            rs_model model = small(presets[m]);
            rs_space *space;
            bool wide = (m + i) % 4 < 2, third = strstr(layouts[i], "zero=3") != NULL;
            OK(rs_model_space(&model, wide ? RS_DTYPE_F32 : RS_DTYPE_BF16, &space));
            const rs_save_name name = {folder, 3, "test"};
            OK(save_all(&name, space, layouts[i], save_pattern, &salt));
            check_universal(space, NULL, third);
            check_universal(space, "dp=2,zero=1", false);
            OK(rs_remove_folder(folder));
            rs_space_destroy(space);
        }
}

int main(void)
{
    if (mkdtemp(root) == NULL)
        return 1;
    snprintf(folder, sizeof folder, "%s/saved", root);
    snprintf(target, sizeof target, "%s/target", root);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_meshes)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return rs_remove_folder(root) != RS_OK || failed;
}
