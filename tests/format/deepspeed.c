/* DeepSpeed checkpoints: every logical tensor of every fixture, whatever the layout that cut it;
 * damaged and incomplete ones refused; troubles of others (case numbers in the comments). */
#include "truth.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int good, bad, tensors;

/* The role that a truth's kind is called by. */
static const char *role_of(const char *kind)
{
    if (strcmp(kind, "fp32") == 0)
        return "master";
    return strcmp(kind, "param-alias") == 0 ? "param" : kind;
}

static const rs_checkpoint_entry *entry_of(
    const rs_checkpoint *checkpoint, const char *name, const char *role)
{
    int64_t index = rs_checkpoint_find(checkpoint, name, role);
    return index < 0 ? NULL : rs_checkpoint_entry_at(checkpoint, (size_t)index);
}

/* The hash of a vocabulary without its padding rows, as DeepSpeed's own converter made it. */
static const json_t *universal_row(const json_t *reference, const char *name, const char *kind)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, "universal-%s", strcmp(kind, "param") == 0 ? "fp32" : kind);
    const json_t *list = json_object_get(
        json_object_get(json_object_iter_value(json_object_iter((json_t *)(uintptr_t)reference)),
            "ds_to_universal"),
        "entries");
    size_t i;
    json_t *row;
    json_array_foreach(list, i, row) if (strcmp(truth_text(row, "kind"), wanted) == 0 &&
                                         strcmp(truth_text(row, "name"), name) == 0) return row;
    return NULL;
}

static void check_alias(const rs_checkpoint *checkpoint, const char *name, const char *target)
{
    char own[RS_CHECKPOINT_HASH], other[RS_CHECKPOINT_HASH];
    int64_t a = rs_checkpoint_find(checkpoint, name, "param");
    int64_t b = rs_checkpoint_find(checkpoint, target, "param");
    assert_true(a >= 0 && b >= 0);
    assert_int_equal(rs_checkpoint_hash(checkpoint, (size_t)a, own), RS_OK);
    assert_int_equal(rs_checkpoint_hash(checkpoint, (size_t)b, other), RS_OK);
    assert_string_equal(own, other);
}

static void check_tensor(const rs_checkpoint *checkpoint, const char *folder, const json_t *row,
    bool stripped, bool plain_pipeline)
{
    const char *name = truth_text(row, "name"), *kind = truth_text(row, "kind");
    const char *role = role_of(kind);
    tensors++;
    if (json_object_get(row, "absent") != NULL) {
        assert_int_equal(rs_checkpoint_find(checkpoint, name, role), -1);
        return;
    }
    if (strcmp(kind, "param-alias") == 0) {
        check_alias(checkpoint, name, truth_text(row, "alias_of"));
        return;
    }
    if (strcmp(kind, "step") == 0)
        return;
    /* Without ZeRO no file says the key of a tied layer: it is named by its layer. */
    if (plain_pipeline && strcmp(name, "tied_modules.embed.weight") == 0)
        name = "0.weight";
    if (!stripped || strcmp(truth_text(row, "tp_rule"), "vocab") != 0) {
        assert_entry(checkpoint, name, role, row);
        return;
    }
    /* B09: the file says that 61 of 62 rows are real. */
    json_t *reference = json_load_file(in_folder(folder, "reference.json"), 0, NULL);
    const json_t *wanted = universal_row(reference, name, kind);
    if (wanted != NULL)
        assert_entry(checkpoint, name, role, wanted);
    else /* ZeRO-3's converter does not strip: the rows that stay are the first ones */
        assert_int_equal(entry_of(checkpoint, name, role)->shape[0], 61);
    json_decref(reference);
}

static double extra_number(const rs_checkpoint *checkpoint, const char *key)
{
    char *text;
    assert_int_equal(rs_checkpoint_extras(checkpoint, &text), RS_OK);
    json_t *extras = json_loads(text, 0, NULL);
    double number = json_number_value(json_object_get(extras, key));
    json_decref(extras);
    free(text);
    return number;
}

static void check_fixture_with(
    const char *folder, const char *name, const json_t *truth, const rs_checkpoint_options *how)
{
    rs_checkpoint *checkpoint;
    const char *path = in_folder(folder, "checkpoint");
    if (rs_checkpoint_open(path, how, &checkpoint) != RS_OK)
        fail_msg("%s", rs_error_message());
    assert_string_equal(rs_checkpoint_format(checkpoint), "deepspeed");
    bool plain_pipeline = strcmp(name, "pp2-z0-fp32-w2") == 0;
    bool vocabulary =
        json_object_get(truth, "original_vocab_size") != NULL && how == NULL && !plain_pipeline;
    size_t index;
    json_t *row;
    json_array_foreach(json_object_get(truth, "tensors"), index, row)
        check_tensor(checkpoint, folder, row, vocabulary, plain_pipeline);
    assert_int_equal(extra_number(checkpoint, "step"), 3);
    assert_int_equal(rs_checkpoint_check(checkpoint), RS_OK);
    for (size_t i = 0; i < rs_checkpoint_warning_count(checkpoint); i++) {
        const char *warning = rs_checkpoint_warning_at(checkpoint, i);
        /* Nothing differs anywhere; only round-robin runs have something to say. */
        assert_true(strstr(name, "-rr") != NULL && strstr(warning, "round_robin") != NULL);
    }
    rs_checkpoint_close(checkpoint);
    good++;
}

static void check_fixture(const char *folder, const char *name, const json_t *truth)
{
    printf("  %s\n", name);
    if (strncmp(truth_text(truth, "expect"), "refused without", 15) != 0) {
        check_fixture_with(folder, name, truth, NULL);
        return;
    }
    /* A16: two ranks, and no file says how the tensors were cut: refused by name, not guessed. */
    assert_refused(in_folder(folder, "checkpoint"), NULL);
    assert_non_null(strstr(rs_error_message(), "\"tied_modules.embed.weight\""));
    static const char rules[] =
        "{\"rules\":["
        "{\"match\":\".*layernorm\\\\.(weight|bias)\",\"replicated\":true},"
        "{\"match\":\"\\\\d+\\\\.norm\\\\.(weight|bias)\",\"replicated\":true},"
        "{\"match\":\".*down_bias\",\"replicated\":true},"
        "{\"match\":\".*\\\\.(o|down)\\\\.weight\",\"split\":1},"
        "{\"match\":\".*gate_up\\\\.(weight|bias)\",\"split\":0,\"parts\":2},"
        "{\"match\":\".*\\\\.(q|k|v)\\\\.(weight|bias)\",\"split\":0},"
        "{\"match\":\".*embed.*\",\"split\":0}]}";
    rs_checkpoint_options with = {.rules = scratch_file("rules.json", rules, sizeof rules - 1)};
    char kept[256];
    snprintf(kept, sizeof kept, "%s", with.rules);
    with.rules = kept;
    check_fixture_with(folder, name, truth, &with);
}

static void test_fixtures(void **state)
{
    (void)state;
    for_fixtures("deepspeed", check_fixture);
    for_fixtures("deepspeed3d", check_fixture);
    printf("%d checkpoints, %d tensors\n", good, tensors);
    assert_true(good >= 30 && tensors > 3900);
    assert_peak_below(300);
}

static void check_broken(const char *folder, const char *name, const json_t *truth)
{
    const char *expect = truth_text(truth, "expect");
    char path[1200];
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    printf("  %s\n", name);
    if (strcmp(expect, "error") == 0) {
        assert_refused(path, NULL);
        bad++;
    } else {
        if (read_everything(path, NULL) != RS_OK)
            fail_msg("%s", rs_error_message());
    }
}

/* The rules can say that two saved weights are one, which native-MoE files do not: compared, and
 * equal here. */
static void test_tied_by_rule(void **state)
{
    (void)state;
    static const char rules[] =
        "{\"rules\":[{\"match\":\"head\\\\.weight\",\"tied\":\"embed.weight\"},"
        "{\"match\":\"ln_f\\\\.bias\",\"tied\":\"ln_f.weight\"}]}";
    char path[256], folder[1024];
    snprintf(path, sizeof path, "%s", scratch_file("ties.json", rules, sizeof rules - 1));
    snprintf(folder, sizeof folder, "%s/checkpoint", fixture_family("deepspeed/b-moe4-z1-fp32-w2"));
    rs_checkpoint_options how = {.rules = path};
    rs_checkpoint *checkpoint;
    if (rs_checkpoint_open(folder, &how, &checkpoint) != RS_OK)
        fail_msg("%s", rs_error_message());
    assert_string_equal(entry_of(checkpoint, "head.weight", "param")->alias_of, "embed.weight");
    assert_int_equal(rs_checkpoint_check(checkpoint), RS_OK);
    int told = 0;
    for (size_t i = 0; i < rs_checkpoint_warning_count(checkpoint); i++) {
        const char *warning = rs_checkpoint_warning_at(checkpoint, i);
        assert_null(strstr(warning, "head.weight"));
        told += strstr(warning, "\"ln_f.bias\" is said to be \"ln_f.weight\"") != NULL;
    }
    assert_true(told > 0);
    rs_checkpoint_close(checkpoint);
}

static int universals;

/* What DeepSpeed's converter made of a fixture: every tensor as its own list says, and, where it is
 * right, as the live engine had it. */
static void check_universal(const char *folder, const char *name, const json_t *truth)
{
    char path[1200];
    struct stat info;
    rs_checkpoint *checkpoint;
    snprintf(path, sizeof path, "%s/reference/universal", folder);
    if (stat(path, &info) != 0)
        return;
    printf("  %s\n", name);
    if (rs_checkpoint_open(path, NULL, &checkpoint) != RS_OK)
        fail_msg("%s", rs_error_message());
    assert_string_equal(rs_checkpoint_format(checkpoint), "deepspeed-universal");
    json_t *reference = json_load_file(in_folder(folder, "reference.json"), 0, NULL);
    const json_t *list = json_object_get(
        json_object_get(json_object_iter_value(json_object_iter(reference)), "ds_to_universal"),
        "entries");
    size_t i;
    json_t *row;
    json_array_foreach(list, i, row)
    {
        const char *kind = truth_text(row, "kind") + strlen("universal-");
        if (strcmp(kind, "step") != 0)
            assert_entry(checkpoint, truth_text(row, "name"), role_of(kind), row);
    }
    assert_true(json_array_size(list) >= 99);
    json_decref(reference);
    /* One of them has its model files: weights, buffers, frozen and tied ones come from there. */
    if (strcmp(name, "z1-fp32-w2") == 0)
        json_array_foreach(json_object_get(truth, "tensors"), i, row)
            check_tensor(checkpoint, folder, row, false, false);
    assert_int_equal(rs_checkpoint_check(checkpoint), RS_OK);
    rs_checkpoint_close(checkpoint);
    universals++;
}

static void test_universal(void **state)
{
    (void)state;
    for_fixtures("deepspeed", check_universal);
    assert_true(universals >= 4);
}

/* J07, A06 and their kind: what is missing, doubled, stale or of the wrong length. */
static void test_broken(void **state)
{
    (void)state;
    for_fixtures("deepspeed-broken", check_broken);
    assert_true(bad >= 10);
    assert_peak_below(300);
}

/* A folder like that of a fixture's tag, in which one file is another. */
static void make_twin_folder(const char *tag, const char *replaced, char *out, size_t size)
{
    snprintf(out, size, "%s/tag", scratch_folder());
    mkdir(out, 0755);
    DIR *list = opendir(tag);
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        char from[1400], to[1400];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(from, sizeof from, "%s/%s", tag, entry->d_name);
        snprintf(to, sizeof to, "%s/%s", out, entry->d_name);
        unlink(to);
        if (strcmp(entry->d_name, replaced) == 0)
            snprintf(from, sizeof from, "../twin");
        assert_int_equal(symlink(from, to), 0);
    }
    closedir(list);
}

static char twin_folder[1024];

static rs_status attempt(const char *path)
{
    (void)path;
    return read_everything(twin_folder, NULL);
}

static void remove_twin_folder(void)
{
    DIR *list = opendir(twin_folder);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;)
        unlinkat(dirfd(list), entry->d_name, 0);
    if (list != NULL)
        closedir(list);
    rmdir(twin_folder);
}

/* H01 for whole checkpoints: one file cut, or with flipped bytes. */
static void test_damaged(void **state)
{
    (void)state;
    static const struct {
        const char *fixture;
        const char *file;
    } cases[] = {
        {"deepspeed/z2-fp32-w2", "mp_rank_00_model_states.pt"},
        {"deepspeed/z2-fp32-w2", "zero_pp_rank_1_mp_rank_00_optim_states.pt"},
        {"deepspeed/b-z3-bf16-w4-sub", "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"},
        {"deepspeed3d/pp2-tp2-z1-fp32-w4", "layer_03-model_01-model_states.pt"},
        {"deepspeed/b-moe4-z0-fp32-w2", "expp_rank_1_mp_rank_00_optim_states.pt"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char tag[1024], file[1200];
        snprintf(tag, sizeof tag, "%s/checkpoint/global_step3", fixture_family(cases[i].fixture));
        snprintf(file, sizeof file, "%s/%s", tag, cases[i].file);
        make_twin_folder(tag, cases[i].file, twin_folder, sizeof twin_folder);
        damaged_twins(file, 8, 60, 100 + i, attempt);
        remove_twin_folder();
    }
    assert_peak_below(300);
}

/* A02: ranks are numbers; rank 100 stands behind rank 11, not before it. C05, J07: files that are
 * missing are named. All with empty files, since names are looked at first. */
static void test_names(void **state)
{
    (void)state;
    char folder[512];
    snprintf(folder, sizeof folder, "%s/names", scratch_folder());
    mkdir(folder, 0755);
    snprintf(twin_folder, sizeof twin_folder, "%s", folder);
    for (int mp = 0; mp <= 101; mp++) {
        char path[600];
        if (mp == 57)
            continue;
        snprintf(path, sizeof path, "%s/mp_rank_%02d_model_states.pt", folder, mp);
        fclose(fopen(path, "w"));
    }
    assert_int_equal(read_everything(folder, NULL), RS_ERR_MALFORMED);
    assert_non_null(strstr(rs_error_message(), "101 files of model states"));
    assert_non_null(strstr(rs_error_message(), "0 to 101"));
    char path[600];
    snprintf(path, sizeof path, "%s/mp_rank_057_model_states.pt", folder);
    fclose(fopen(path, "w"));
    snprintf(path, sizeof path, "%s/mp_rank_57_model_states.pt", folder);
    fclose(fopen(path, "w"));
    assert_int_equal(read_everything(folder, NULL), RS_ERR_MALFORMED);
    assert_non_null(strstr(rs_error_message(), "are of the same rank"));
    remove_twin_folder();
}

int main(void)
{
    fixture_family("deepspeed");
    forbid_execution();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_tied_by_rule),
        cmocka_unit_test(test_universal),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
