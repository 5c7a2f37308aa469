/*
 * J07: the files of a checkpoint spread over several folders, as on the disks of the nodes that
 * wrote them. Together they are what one folder with all of them is, in every format that has
 * several files; what both have must be the same; what neither has is named.
 */
#include "truth.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/publish.h"
#include "reshard/convert.h"
#include "synthetic.h"

#define TAG "global_step7"

static char near_root[600], far_root[600], near_tag[700], far_tag[700], reference[600];

static void convert(const char *from, const char *to, rs_convert_options how)
{
    rs_checkpoint *checkpoint = opened(from);
    OK(rs_convert(checkpoint, to, &how, NULL));
    rs_checkpoint_close(checkpoint);
}

static rs_status open_both(const char *a, const char *b, bool weights, rs_checkpoint **out)
{
    const char *also[] = {b};
    rs_checkpoint_options how = {
        .also = also, .also_count = b != NULL ? 1 : 0, .weights_only = weights};
    return rs_checkpoint_open(a, &how, out);
}

static void equal(const char *a, const char *b, const char *roles)
{
    rs_checkpoint *both, *whole;
    rs_compare_options how = {.role = roles};
    rs_compare_report report;
    OK(open_both(a, b, false, &both));
    OK(rs_checkpoint_check(both));
    whole = opened(reference);
    OK(rs_compare(both, whole, &how, NULL, NULL, &report));
    assert_true(report.tensors > 0);
    assert_int_equal(report.different, 0);
    rs_checkpoint_close(both);
    rs_checkpoint_close(whole);
}

static void refused(const char *a, const char *b, rs_status wanted, const char *why)
{
    rs_checkpoint *checkpoint;
    assert_int_equal(open_both(a, b, false, &checkpoint), wanted);
    expect_message(why);
}

static void copy_file(const char *from, const char *to)
{
    size_t bytes;
    unsigned char *data = slurp(from, &bytes);
    FILE *file = fopen(to, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    fclose(file);
    free(data);
}

/* The other value of a bit in the middle of a file. */
static void change_byte(const char *path)
{
    struct stat info;
    char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &info) == 0);
    assert_int_equal(pread(fd, &byte, 1, info.st_size / 2), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, info.st_size / 2), 1);
    close(fd);
}

/* Moves every second entry with `part` in its name to the other folder. */
static int move_half(const char *from, const char *to, const char *part)
{
    int moved = 0, count = 0;
    struct dirent **list;
    int entries = scandir(from, &list, NULL, alphasort);
    assert_true(entries > 0);
    for (int i = 0; i < entries; i++) {
        if (strstr(list[i]->d_name, part) != NULL && count++ % 2 == 1) {
            assert_int_equal(
                rename(in_folder(from, list[i]->d_name), in_folder(to, list[i]->d_name)), 0);
            moved++;
        }
        free(list[i]);
    }
    free(list);
    return moved;
}

/* The path of the one entry of a folder that has `part` in its name. */
static void find_only(const char *folder, const char *part, char path[1000])
{
    int found = 0;
    DIR *list = opendir(folder);
    assert_non_null(list);
    for (struct dirent *e; (e = readdir(list)) != NULL;)
        if (strstr(e->d_name, part) != NULL) {
            snprintf(path, 1000, "%s/%s", folder, e->d_name);
            found++;
        }
    closedir(list);
    assert_int_equal(found, 1);
}

static void make_folders(void)
{
    mkdir(near_root, 0755);
    mkdir(far_root, 0755);
    mkdir(far_tag, 0755);
}

static void remove_folders(void)
{
    OK(rs_remove_folder(near_root));
    OK(rs_remove_folder(far_root));
    OK(rs_remove_folder(reference));
}

/* ZeRO over 16 ranks, 8 to 15 on the other node, whose model file is a copy. */
static void begin(int stage)
{
    syn_run run = syn_usual(1, 16, stage);
    char name[100];
    syn_add(&run, "w", SYN_REPLICATED, 0, 2, 20, 7);
    syn_add(&run, "b", SYN_REPLICATED, 0, 1, 5, 0);
    make_folders();
    syn_write(&run, near_tag);
    convert(near_tag, reference, (rs_convert_options){.to = "native"});
    for (int rank = 8; rank < 16; rank++) {
        snprintf(name, sizeof name, "zero_pp_rank_%d_mp_rank_00_optim_states.pt", rank);
        assert_int_equal(rename(in_folder(near_tag, name), in_folder(far_tag, name)), 0);
        snprintf(name, sizeof name, "zero_pp_rank_%d_mp_rank_00_model_states.pt", rank);
        if (stage == 3)
            assert_int_equal(rename(in_folder(near_tag, name), in_folder(far_tag, name)), 0);
    }
    if (stage != 3)
        copy_file(in_folder(near_tag, "mp_rank_00_model_states.pt"),
            in_folder(far_tag, "mp_rank_00_model_states.pt"));
    FILE *latest = fopen(in_folder(near_root, "latest"), "w");
    assert_non_null(latest);
    fprintf(latest, TAG "\n");
    fclose(latest);
}

static void test_deepspeed(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++) {
        begin(stage);
        refused(near_root, NULL, RS_ERR_MALFORMED, "data-parallel ranks 8..15 of 16");
        equal(near_tag, far_tag, NULL);
        equal(far_tag, near_tag, NULL);
        /* A root on either side, or both. */
        equal(near_root, far_root, NULL);
        equal(near_root, far_tag, NULL);
        equal(near_tag, far_root, NULL);
        /* Weights alone need the model file alone, where that has them. */
        rs_checkpoint *weights;
        if (stage == 3) {
            assert_int_equal(open_both(near_root, NULL, true, &weights), RS_ERR_MALFORMED);
            expect_message("data-parallel ranks 8..15 of 16");
        } else {
            OK(open_both(near_root, NULL, true, &weights));
            assert_true(rs_checkpoint_find(weights, "w", "param") >= 0);
            assert_int_equal(rs_checkpoint_find(weights, "w", "exp_avg"), -1);
            assert_non_null(strstr(rs_checkpoint_warning_at(weights, 0), "8..15 of 16"));
            rs_checkpoint_close(weights);
        }
        remove_folders();
    }
}

/* One rank in both folders: the same bytes are one file, others are an error with both names. */
static void test_twice(void **state)
{
    (void)state;
    static const char file[] = "zero_pp_rank_3_mp_rank_00_optim_states.pt";
    char twin[900], original[900];
    begin(2);
    snprintf(original, sizeof original, "%s/%s", near_tag, file);
    snprintf(twin, sizeof twin, "%s/%s", far_tag, file);
    copy_file(original, twin);
    equal(near_tag, far_tag, NULL);
    change_byte(twin);
    refused(near_tag, far_tag, RS_ERR_MISMATCH, "first at byte");
    expect_message(original);
    expect_message(twin);
    refused(near_root, far_root, RS_ERR_MISMATCH, twin);
    assert_int_equal(truncate(twin, 100), 0);
    refused(near_tag, far_tag, RS_ERR_MISMATCH, "and 100 bytes");
    /* Another process compares: this one takes the first. */
    const char *also[] = {far_tag};
    rs_checkpoint_options how = {.also = also, .also_count = 1, .also_proved = true};
    rs_checkpoint *checkpoint;
    OK(rs_checkpoint_open(near_tag, &how, &checkpoint));
    rs_checkpoint_close(checkpoint);
    /* Under another name: the same rank still. */
    assert_int_equal(
        rename(twin, in_folder(far_tag, "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt")), 0);
    refused(near_tag, far_tag, RS_ERR_MALFORMED, "are of the same rank");
    assert_int_equal(
        unlink(in_folder(far_tag, "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt")), 0);
    /* What nobody reads may differ. */
    copy_file(original, in_folder(near_tag, "zero_to_fp32.py"));
    copy_file(in_folder(near_root, "latest"), in_folder(far_tag, "zero_to_fp32.py"));
    equal(near_tag, far_tag, NULL);
    /* A model file that differs is no copy. */
    change_byte(in_folder(far_tag, "mp_rank_00_model_states.pt"));
    refused(near_tag, far_tag, RS_ERR_MISMATCH, "mp_rank_00_model_states.pt");
    remove_folders();
}

/* What is in neither is named, with both folders; and folders that have nothing of it. */
static void test_missing(void **state)
{
    (void)state;
    char both[1500], empty[700];
    begin(1);
    snprintf(both, sizeof both, "%s and %s: ", near_tag, far_tag);
    assert_int_equal(unlink(in_folder(far_tag, "zero_pp_rank_9_mp_rank_00_optim_states.pt")), 0);
    assert_int_equal(unlink(in_folder(far_tag, "zero_pp_rank_12_mp_rank_00_optim_states.pt")), 0);
    refused(near_root, far_root, RS_ERR_MALFORMED, "data-parallel ranks 9, 12 of 16");
    expect_message(both);
    snprintf(empty, sizeof empty, "%s/empty", near_root);
    mkdir(empty, 0755);
    refused(near_tag, empty, RS_ERR_NOT_FOUND, "empty: has nothing of the checkpoint (deepspeed");
    copy_file(in_folder(near_root, "latest"), in_folder(empty, "model.safetensors"));
    refused(near_tag, empty, RS_ERR_NOT_FOUND, "empty: has nothing of the checkpoint (deepspeed");
    refused(near_tag, in_folder(near_root, "latest"), RS_ERR_ARGUMENT, "latest: is no folder");
    refused(near_tag, in_folder(near_root, "nowhere"), RS_ERR_ARGUMENT, "nowhere: is no folder");
    /* Two pointers that do not agree. */
    FILE *latest = fopen(in_folder(far_root, "latest"), "w");
    fprintf(latest, "global_step8\n");
    fclose(latest);
    refused(near_root, far_root, RS_ERR_MISMATCH, "latest");
    remove_folders();
}

static void test_native(void **state)
{
    (void)state;
    char whole[700], step[1000], far[900];
    begin(1);
    snprintf(whole, sizeof whole, "%s/native", near_root);
    convert(reference, whole, (rs_convert_options){.to = "native", .layout = "dp=4,zero=1"});
    find_only(whole, "step-", step);
    snprintf(far, sizeof far, "%s/native", far_root);
    mkdir(far, 0755);
    assert_int_equal(move_half(step, far, "rank-"), 1);
    refused(whole, NULL, RS_ERR_NOT_FOUND, "the files of ranks 1 are missing");
    equal(step, far, NULL);
    equal(whole, far, NULL);
    refused(far, NULL, RS_ERR_MALFORMED, "the save was not finished");
    /* Parameters are rank 0's, so weights can do without the others. */
    rs_checkpoint *weights;
    OK(open_both(whole, NULL, true, &weights));
    assert_true(rs_checkpoint_find(weights, "w", "param") >= 0);
    assert_int_equal(rs_checkpoint_find(weights, "w", "exp_avg"), -1);
    OK(rs_checkpoint_check(weights));
    rs_checkpoint_close(weights);
    assert_int_equal(rename(in_folder(step, "rank-00000.safetensors"),
                         in_folder(far_root, "rank-00000.safetensors")),
        0);
    assert_int_equal(open_both(whole, NULL, true, &weights), RS_ERR_NOT_FOUND);
    expect_message("ranks 0..1 are missing");
    copy_file(
        in_folder(far_root, "rank-00000.safetensors"), in_folder(far, "rank-00000.safetensors"));
    copy_file(
        in_folder(far_root, "rank-00000.safetensors"), in_folder(step, "rank-00000.safetensors"));
    equal(step, far, NULL);
    change_byte(in_folder(far, "rank-00000.safetensors"));
    refused(step, far, RS_ERR_MISMATCH, "rank-00000.safetensors");
    remove_folders();
}

/* Universal checkpoints: a folder for each parameter, some here, some there. */
static void test_universal(void **state)
{
    (void)state;
    char whole[700], step[1000], far[900];
    begin(2);
    snprintf(whole, sizeof whole, "%s/universal", near_root);
    convert(reference, whole, (rs_convert_options){.to = "deepspeed-universal"});
    find_only(whole, "step7_universal", step);
    snprintf(far, sizeof far, "%s/universal", far_root);
    mkdir(far, 0755);
    mkdir(in_folder(far, "zero"), 0755);
    assert_int_equal(rename(in_folder(step, "zero/w"), in_folder(far, "zero/w")), 0);
    refused(whole, NULL, RS_ERR_MALFORMED, "has no folder \"w\"");
    equal(whole, far, "master,exp_avg,exp_avg_sq");
    /* A parameter of which each folder has some states. */
    mkdir(in_folder(step, "zero/w"), 0755);
    assert_int_equal(
        rename(in_folder(far, "zero/w/exp_avg.pt"), in_folder(step, "zero/w/exp_avg.pt")), 0);
    equal(whole, far, "master,exp_avg,exp_avg_sq");
    copy_file(in_folder(step, "zero/w/exp_avg.pt"), in_folder(far, "zero/w/exp_avg.pt"));
    equal(whole, far, "master,exp_avg,exp_avg_sq");
    change_byte(in_folder(far, "zero/w/exp_avg.pt"));
    refused(whole, far, RS_ERR_MISMATCH, "zero/w/exp_avg.pt");
    remove_folders();
}

static void test_safetensors(void **state)
{
    (void)state;
    char whole[700], far[700];
    begin(2);
    snprintf(whole, sizeof whole, "%s/hub", near_root);
    snprintf(far, sizeof far, "%s/hub", far_root);
    convert(reference, whole, (rs_convert_options){.to = "safetensors", .shard_bytes = 20});
    mkdir(far, 0755);
    assert_int_equal(move_half(whole, far, "-of-"), 1);
    refused(whole, NULL, RS_ERR_NOT_FOUND, "which is not in the folder");
    equal(whole, far, "param");
    equal(far, whole, "param");
    remove_folders();
}

int main(void)
{
    snprintf(near_root, sizeof near_root, "%s/near", scratch_folder());
    snprintf(far_root, sizeof far_root, "%s/far", scratch_folder());
    snprintf(near_tag, sizeof near_tag, "%s/" TAG, near_root);
    snprintf(far_tag, sizeof far_tag, "%s/" TAG, far_root);
    snprintf(reference, sizeof reference, "%s/reference", scratch_folder());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deepspeed),
        cmocka_unit_test(test_twice),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_native),
        cmocka_unit_test(test_universal),
        cmocka_unit_test(test_safetensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
