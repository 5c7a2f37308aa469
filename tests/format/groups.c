/*
 * What belongs to an optimizer and is no tensor: parameter groups and which parameters they have,
 * through all formats and names; the layout that arguments of a run tell.
 *
 * E05, F03.
 */
#include "truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "build.h"
#include "ckpt/publish.h"
#include "reshard/convert.h"
#include "reshard/dialect.h"
#include "synthetic.h"

static char folder[256], target[300];

static json_t *extras_of(const rs_checkpoint *checkpoint)
{
    char *text;
    OK(rs_checkpoint_extras(checkpoint, &text));
    json_t *extras = json_loads(text, 0, NULL), *inner = json_object_get(extras, "extras");
    free(text);
    if (inner == NULL) /* a native checkpoint has its own around them */
        return extras;
    json_incref(inner);
    json_decref(extras);
    return inner;
}

static void remove_target(void)
{
    if (unlink(target) != 0)
        OK(rs_remove_folder(target));
}

/* What a checkpoint that is made of it has beside tensors; json_decref. */
static json_t *extras_converted(const rs_checkpoint *source, const rs_convert_options *how)
{
    OK(rs_convert(source, target, how, NULL));
    rs_checkpoint *written = opened(target);
    json_t *extras = extras_of(written);
    rs_checkpoint_close(written);
    remove_target();
    return extras;
}

/* The checkpoint's groups have those names ("a b", one text a group), each its own rate. */
static void expect_groups(const rs_checkpoint *checkpoint, size_t count, const char *const *names)
{
    json_t *extras = extras_of(checkpoint), *groups = json_object_get(extras, "param_groups");
    assert_int_equal(json_array_size(groups), count);
    for (size_t g = 0; g < count; g++) {
        const json_t *group = json_array_get(groups, g);
        char list[400] = "";
        size_t i;
        json_t *name;
        assert_true(json_real_value(json_object_get(group, "lr")) == 0.001 * (double)(g + 1));
        json_array_foreach(json_object_get(group, "param_names"), i, name)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i > 0 ? " " : "",
                json_string_value(name));
        assert_string_equal(list, names[g]);
    }
    json_decref(extras);
}

/* E05: whatever the stage and the formats on the way, each parameter keeps its group. */
static void test_carried(void **state)
{
    (void)state;
    static const char *const names[] = {"a c", "b d"};
    static const char *const formats[] = {"native", "torch", "deepspeed-universal"};
    for (int stage = 1; stage <= 3; stage++)
        for (int tp = 1; tp <= 2; tp++) {
            syn_run run = syn_usual(tp, 3, stage);
            run.groups = 2;
            syn_add(&run, "a", SYN_REPLICATED, 0, 2, 6, 4);
            syn_add(&run, "b", SYN_ROWS, 1, 1, 6, 0);
            syn_add(&run, "c", SYN_ROWS, 0, 2, 4, 4);
            syn_add(&run, "d", SYN_REPLICATED, 1, 1, 5, 0);
            syn_write(&run, folder);
            rs_checkpoint *source = opened(folder);
            expect_groups(source, 2, names);
            for (int f = 0; f < 3; f++) {
                rs_convert_options how = {.to = formats[f]};
                OK(rs_convert(source, target, &how, NULL));
                rs_checkpoint *written = opened(target);
                expect_groups(written, 2, names);
                assert_false(has_warning(written, "parameter groups"));
                rs_checkpoint_close(written);
                remove_target();
            }
            rs_checkpoint_close(source);
            syn_remove(folder);
        }
}

/* Groups that have taken unlike numbers of steps: below ZeRO-3 each parameter has that of its
 * group, as a tensor or a number. */
static void test_steps(void **state)
{
    (void)state;
    for (int number = 0; number < 2; number++) {
        syn_run run = syn_usual(1, 2, 2);
        rs_convert_options how = {.to = "deepspeed-universal"};
        run.groups = 2;
        run.later = 4;
        run.int_step = number;
        syn_add(&run, "a", SYN_REPLICATED, 0, 2, 6, 4);
        syn_add(&run, "b", SYN_REPLICATED, 1, 1, 6, 0);
        syn_write(&run, folder);
        rs_checkpoint *source = opened(folder), *written;
        OK(rs_convert(source, target, &how, NULL));
        written = opened(target);
        for (int i = 0; i < 2; i++) {
            int64_t id = rs_checkpoint_find(written, i == 0 ? "a" : "b", "step"), integer = 0;
            rs_box whole = {.ndim = 0};
            float real = 0;
            assert_true(id >= 0);
            if (number)
                OK(rs_checkpoint_read(written, (size_t)id, &whole, &integer, sizeof integer));
            else
                OK(rs_checkpoint_read(written, (size_t)id, &whole, &real, sizeof real));
            assert_true((number ? (float)integer : real) == 7 + 4 * i);
        }
        rs_checkpoint_close(written);
        rs_checkpoint_close(source);
        remove_target();
        syn_remove(folder);
    }
}

/* Layers that became one tensor are in the group that all of them were in; where they were in
 * several, that is told, and no group has it. And back. */
static void test_renamed(void **state)
{
    (void)state;
    static const char text[] =
        "{\"dialect\":\"own\",\"tensors\":[{\"name\":\"l.{0}.w\",\"of\":\"w\"},"
        "{\"name\":\"l.{0}.n\",\"of\":\"n\"}]}";
    static const char *const stacked[] = {"w", "n"}, *const parted[] = {"", "n"};
    static const char *const layers[] = {"l.0.w l.1.w", "l.0.n l.1.n"};
    rs_tensor w = {.name = "w", .ndim = 3, .shape = {2, 4, 3}};
    rs_tensor n = {.name = "n", .ndim = 2, .shape = {2, 3}};
    rs_dialect *dialect;
    rs_space *space;
    OK(rs_dialect_parse(text, sizeof text - 1, "own", &dialect));
    OK(rs_space_create(&space));
    OK(rs_space_add_tensor(space, &w, NULL));
    OK(rs_space_add_tensor(space, &n, NULL));
    for (int apart = 0; apart < 2; apart++) {
        syn_run run = syn_usual(1, 2, 2);
        rs_checkpoint *own, *again;
        run.groups = 2;
        syn_add(&run, "l.0.w", SYN_REPLICATED, 0, 2, 4, 3);
        syn_add(&run, "l.1.w", SYN_REPLICATED, apart, 2, 4, 3);
        syn_add(&run, "l.0.n", SYN_REPLICATED, 1, 1, 3, 0);
        syn_add(&run, "l.1.n", SYN_REPLICATED, 1, 1, 3, 0);
        syn_write(&run, folder);
        rs_checkpoint *source = opened(folder);
        rs_rename_options in = {.from = dialect, .space = space};
        OK(rs_checkpoint_rename(source, &in, &own));
        expect_groups(own, 2, apart ? parted : stacked);
        assert_true(has_warning(own,
                        "1 tensors are made of parameters of several parameter groups, so that no "
                        "group has them any more: \"w\"") == (apart == 1));
        if (!apart) {
            rs_rename_options both = {.from = dialect, .to = dialect, .space = space};
            OK(rs_checkpoint_rename(source, &both, &again));
            expect_groups(again, 2, layers);
            rs_checkpoint_close(again);
        }
        rs_checkpoint_close(own);
        rs_checkpoint_close(source);
        syn_remove(folder);
    }
    rs_space_destroy(space);
    rs_dialect_destroy(dialect);
}

static void count_names(const json_t *groups, size_t *count)
{
    size_t g, i;
    json_t *group, *name;
    json_array_foreach(groups, g, group) json_array_foreach(
        json_object_get(group, "param_names"), i, name) *count += json_is_string(name);
}

/* E05: stages have groups of their own, and each names its own parameters; for DeepSpeed they
 * become one list, where they are alike. ZeRO-3 numbers sub-groups; without ZeRO parameters are
 * numbered one by one. */
static void test_fixtures(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t stages;
    } fixtures[] = {{"deepspeed3d/pp2-z1-fp32-w2", 2}, {"deepspeed/z1-fp32-w2", 1},
        {"deepspeed/z3-fp32-w3-sub", 1}, {"deepspeed/b-z3-bf16-w4-sub", 1},
        {"deepspeed/z0-fp32-w2", 1}, {"deepspeed/b-moe4-z1-fp32-w2", 1}};
    for (size_t f = 0; f < sizeof fixtures / sizeof *fixtures; f++) {
        char path[1200];
        size_t named = 0, again = 0, masters = 0;
        rs_convert_options how = {.to = "deepspeed-universal", .master_from_param = true};
        snprintf(path, sizeof path, "%s/checkpoint", fixture_family(fixtures[f].name));
        rs_checkpoint *source = opened(path);
        json_t *extras = extras_of(source), *groups = json_object_get(extras, "param_groups");
        for (size_t s = 0; s < fixtures[f].stages; s++)
            count_names(fixtures[f].stages > 1 ? json_array_get(groups, s) : groups, &named);
        for (size_t i = 0; i < rs_checkpoint_count(source); i++) {
            const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(source, i);
            masters += strcmp(entry->role, "master") == 0 && entry->alias_of == NULL;
        }
        printf("  %s: %zu masters, %zu names\n", fixtures[f].name, masters, named);
        /* A tied embedding is in both stages' groups. */
        assert_true(named == masters || (fixtures[f].stages > 1 && named == masters + 1));
        assert_false(has_warning(source, "parameter groups"));
        json_decref(extras);
        extras = extras_converted(source, &how);
        count_names(json_object_get(extras, "param_groups"), &again);
        assert_int_equal(again, masters);
        json_decref(extras);
        rs_checkpoint_close(source);
    }
}

static void write_number(const char *name, int64_t count)
{
    build b = {0};
    float numbers[6] = {0, 1, 2, 3, 4, 5};
    build_tensor(&b, RS_DTYPE_F32, 1, &count, numbers);
    build_write(&b, in_folder(folder, name), NULL);
}

/* A universal checkpoint of another tool: its model files name the one parameter in one list, and
 * its optimizer has so many groups. */
static void write_other(int tp, int pp, int groups)
{
    build b = {0};
    mkdir(folder, 0755);
    mkdir(in_folder(folder, "zero"), 0755);
    mkdir(in_folder(folder, "zero/w"), 0755);
    for (int mp = 0; mp < tp * pp; mp++) {
        char name[64];
        build_dict(&b);
        build_dict_of(&b, "module");
        build_dict_end(&b);
        build_text(&b, "param_shapes");
        build_list(&b);
        build_dict(&b);
        build_text(&b, "w");
        build_size(&b, 1, (int64_t[]){6});
        build_dict_end(&b);
        build_list_end(&b);
        build_dict_of(&b, "checkpoint_parallel_dimensions");
        build_text(&b, "tp_degree");
        build_int(&b, tp);
        build_text(&b, "pp_degree");
        build_int(&b, pp);
        build_dict_end(&b);
        build_dict_end(&b);
        snprintf(name, sizeof name, "mp_rank_%02d_model_states.pt", mp);
        build_write(&b, in_folder(folder, name), NULL);
    }
    build_dict(&b);
    build_text(&b, "param_groups");
    build_list(&b);
    for (int g = 0; g < groups; g++) {
        build_dict(&b);
        build_text(&b, "lr");
        build_float(&b, 0.001 * (g + 1));
        build_dict_end(&b);
    }
    build_list_end(&b);
    build_dict_end(&b);
    build_write(&b, in_folder(folder, "zero/optimizer_state.pt"), NULL);
    write_number("zero/w/fp32.pt", 6);
    write_number("zero/w/exp_avg.pt", 6);
    write_number("zero/w/exp_avg_sq.pt", 6);
}

/* Of two groups, which has the parameters is not known, and that is said: of one parameter, however
 * many ranks and stages have it. Of one group it is known, and it has a tied parameter once. */
static void test_unknown(void **state)
{
    (void)state;
    static const char *const none[] = {"", ""}, *const all[] = {"w"};
    for (int tp = 1; tp <= 2; tp++)
        for (int pp = 1; pp <= 2; pp++) {
            write_other(tp, pp, 2);
            rs_checkpoint *checkpoint = opened(folder);
            expect_groups(checkpoint, 2, none);
            assert_true(has_warning(
                checkpoint, "nothing says to which of 2 parameter groups 1 parameters belong"));
            rs_checkpoint_close(checkpoint);
            OK(rs_remove_folder(folder));
            write_other(tp, pp, 1);
            checkpoint = opened(folder);
            expect_groups(checkpoint, 1, all);
            assert_false(has_warning(checkpoint, "parameter groups"));
            rs_checkpoint_close(checkpoint);
            OK(rs_remove_folder(folder));
        }
}

static int64_t number(const json_t *extras, const char *object, const char *key)
{
    const json_t *value = json_object_get(json_object_get(extras, object), key);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

/* G04: what each rank keeps for itself is neither lost nor taken for what all have: it is told with
 * how many there are, and carried. */
static void test_g04(void **state)
{
    (void)state;
    syn_run run = syn_usual(1, 4, 3);
    rs_convert_options how = {.to = "deepspeed-universal", .layout = "dp=2,zero=1"};
    run.loaders = true;
    syn_add(&run, "w", SYN_ROWS, 0, 2, 6, 4);
    syn_write(&run, folder);
    rs_checkpoint *source = opened(folder);
    assert_true(has_warning(source, "3 ranks beside the first have values of their own"));
    assert_true(has_warning(source, "\"loader\" of rank_1"));
    json_t *extras = extras_converted(source, &how);
    const json_t *others = json_object_get(extras, "of_ranks");
    assert_int_equal(number(extras, "loader", "rank"), 0);
    assert_int_equal(json_object_size(others), 3);
    assert_int_equal(number(json_object_get(others, "rank_2"), "loader", "rank"), 2);
    assert_int_equal(number(json_object_get(others, "rank_3"), "loader", "offset_in_shard"), 5);
    /* What is the same on all ranks stands once. */
    assert_int_equal(json_object_size(json_object_get(others, "rank_2")), 1);
    json_decref(extras);
    rs_checkpoint_close(source);
    syn_remove(folder);
}

/* F03: the arguments that the client kept tell the layout that was; what is written tells the one
 * that it is for, and the batch and the iteration as they were. Nothing is checked against the old
 * world. */
static void test_f03(void **state)
{
    (void)state;
    syn_run run = syn_usual(2, 2, 1);
    rs_convert_options how = {.to = "deepspeed-universal", .layout = "tp=1,dp=3,zero=1"};
    run.args = true;
    syn_add(&run, "w", SYN_ROWS, 0, 2, 6, 4);
    syn_write(&run, folder);
    rs_checkpoint *source = opened(folder);
    json_t *extras = extras_converted(source, &how);
    assert_int_equal(number(extras, "args", "tensor_model_parallel_size"), 1);
    assert_int_equal(number(extras, "args", "pipeline_model_parallel_size"), 1);
    assert_int_equal(number(extras, "args", "data_parallel_size"), 3);
    assert_int_equal(number(extras, "args", "world_size"), 3);
    assert_int_equal(number(extras, "args", "rank"), -1);
    assert_int_equal(number(extras, "args", "global_batch_size"), 24);
    assert_int_equal(number(extras, "args", "micro_batch_size"), 1);
    assert_int_equal(number(extras, "args", "iteration"), 100);
    assert_int_equal(number(extras, "ds_config", "train_batch_size"), 24);
    assert_int_equal(number(extras, "ds_config", "gradient_accumulation_steps"), -1);
    assert_int_equal(number(extras, "checkpoint_parallel_dimensions", "tp_degree"), 1);
    json_decref(extras);
    /* Where the layout stays they say what they said. */
    how.layout = NULL;
    extras = extras_converted(source, &how);
    assert_int_equal(number(extras, "args", "world_size"), 16);
    assert_int_equal(number(extras, "ds_config", "gradient_accumulation_steps"), 12);
    json_decref(extras);
    rs_checkpoint_close(source);
    syn_remove(folder);
}

int main(void)
{
    fixture_family("deepspeed");
    snprintf(folder, sizeof folder, "%s/run", scratch_folder());
    snprintf(target, sizeof target, "%s/target", scratch_folder());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_carried),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_renamed),
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_g04),
        cmocka_unit_test(test_f03),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
