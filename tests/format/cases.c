/*
 * Troubles of others that checkpoints of these formats can express, beyond those of the other files
 * here: fused tensors cut over ranks, adapters, second names, states that are no tensors, files
 * that lack. Each test begins with its case numbers.
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

static char folder[256];

static void good(const syn_run *run)
{
    syn_write(run, folder);
    syn_compare(run, folder);
    syn_remove(folder);
}

static const rs_checkpoint_entry *entry_of(
    const rs_checkpoint *checkpoint, const char *name, const char *role)
{
    int64_t index = rs_checkpoint_find(checkpoint, name, role);
    return index < 0 ? NULL : rs_checkpoint_entry_at(checkpoint, (size_t)index);
}

static float at(const rs_checkpoint *checkpoint, const char *name, const char *role, int64_t i,
    int64_t j, int64_t k)
{
    int64_t index = rs_checkpoint_find(checkpoint, name, role);
    if (index < 0)
        fail_msg("no %s of %s", role, name);
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)index);
    rs_box box = {.ndim = entry->ndim, .offset = {i, j, k}, .extent = {1, 1, 1}};
    float value;
    OK(rs_checkpoint_read(checkpoint, (size_t)index, &box, &value, sizeof value));
    return value;
}

/* A03: one of 12 ranks' files is gone: named by its number, not a shorter tensor. */
static void test_a03(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage++) {
        syn_run run = syn_usual(1, 12, stage);
        syn_add(&run, "w", SYN_REPLICATED, 0, 1, 120, 0);
        good(&run);
        syn_write(&run, folder);
        assert_int_equal(unlink(in_folder(folder, "zero_pp_rank_7_mp_rank_00_optim_states.pt")), 0);
        assert_int_equal(read_everything(folder, NULL), RS_ERR_MALFORMED);
        expect_message("7");
        expect_message("of 12");
        syn_remove(folder);
    }
}

/* A03: a conversion to a universal checkpoint that was interrupted: 12 fragments, of which "10" and
 * "11" do not begin with a zero, and one lacks. They are no parameter, and nothing is read without
 * it, also where others are complete. */
static void test_fragments(void **state)
{
    (void)state;
    float numbers[10];
    int64_t ten = 10;
    for (int merged = 0; merged < 2; merged++) {
        char name[64];
        mkdir(folder, 0755);
        static const char *const folders[] = {"tmp", "tmp/w", "tmp/w/0", "zero", "zero/v"};
        for (int i = 0; i < (merged ? 5 : 3); i++)
            mkdir(in_folder(folder, folders[i]), 0755);
        for (int r = 0; r < 12; r++) {
            build b = {0};
            if (r == 7)
                continue;
            for (int i = 0; i < 10; i++)
                numbers[i] = (float)(10 * r + i);
            build_tensor(&b, RS_DTYPE_F32, 1, &ten, numbers);
            snprintf(name, sizeof name, "tmp/w/0/fp32.%02d", r);
            build_write(&b, in_folder(folder, name), NULL);
        }
        build b = {0};
        build_tensor(&b, RS_DTYPE_F32, 1, &ten, numbers);
        if (merged)
            build_write(&b, in_folder(folder, "zero/v/fp32.pt"), NULL);
        assert_int_equal(read_everything(folder, NULL), RS_ERR_MALFORMED);
        expect_message("was interrupted: of \"w\" there are only fragments");
        expect_message("ranks 0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11;");
        OK(rs_remove_folder(folder));
        if (!merged) { /* what was not written */
            for (size_t i = 0; i < b.count; i++)
                free(b.storages[i].data);
            free(b.pickle);
            free(b.storages);
        }
    }
}

static void write_ten(const char *file)
{
    build b = {0};
    float numbers[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    int64_t ten = 10;
    build_tensor(&b, RS_DTYPE_F32, 1, &ten, numbers);
    build_write(&b, in_folder(folder, file), NULL);
}

/* The folders and files of a conversion that kept its fragments: of a parameter whose name has
 * slashes and a number, and of one whose name begins as the first's does. */
static void write_kept(void)
{
    static const char *const folders[] = {"tmp", "tmp/a", "tmp/a/0", "tmp/a/0/b", "tmp/a/0/b/0",
        "tmp/a/0/b/0/whole", "zero", "zero/a", "zero/a/0", "zero/a/0/b"};
    static const char *const files[] = {"tmp/a/0/fp32.00", "tmp/a/0/step.00", "tmp/a/0/b/0/fp32.00",
        "tmp/a/0/b/0/exp_avg.00", "tmp/a/0/b/0/exp_avg.10", "tmp/a/0/b/0/whole/momentum.01",
        "zero/a/fp32.pt", "zero/a/0/b/fp32.pt", "zero/a/0/b/exp_avg.pt", "zero/a/0/b/momentum.pt"};
    mkdir(folder, 0755);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        mkdir(in_folder(folder, folders[i]), 0755);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        write_ten(files[i]);
    build b = {0};
    build_int(&b, 7);
    build_write(&b, in_folder(folder, "zero/a/step.pt"), NULL);
}

/* A03: fragments that a conversion kept, of parameters whose names have slashes: nothing lacks.
 * Where a state was not merged it is refused, whichever it is; the step of ZeRO-3 never is. */
static void test_kept_fragments(void **state)
{
    (void)state;
    static const struct {
        const char *file, *why;
    } lost[] = {{"zero/a/fp32.pt", "interrupted: of \"a\" there are only fragments"},
        {"zero/a/step.pt", "interrupted: of step of \"a\" there are only fragments"},
        {"zero/a/0/b/fp32.pt", "interrupted: of \"a/0/b\" there are only fragments"},
        {"zero/a/0/b/exp_avg.pt", "of exp_avg of \"a/0/b\" there are only fragments in \"tmp\", "
                                  "of data-parallel ranks 0, 10;"},
        {"zero/a/0/b/momentum.pt", "of momentum of \"a/0/b\" there are only fragments in \"tmp\", "
                                   "of data-parallel ranks 1;"}};
    write_kept();
    rs_checkpoint *checkpoint = opened(folder);
    assert_non_null(entry_of(checkpoint, "a", "master"));
    assert_non_null(entry_of(checkpoint, "a/0/b", "exp_avg"));
    rs_checkpoint_close(checkpoint);
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        assert_int_equal(unlink(in_folder(folder, lost[i].file)), 0);
        assert_int_equal(read_everything(folder, NULL), RS_ERR_MALFORMED);
        expect_message(lost[i].why);
        OK(rs_remove_folder(folder));
        write_kept();
    }
    assert_int_equal(unlink(in_folder(folder, "zero/a/step.pt")), 0);
    build b = {0};
    build_dict(&b);
    build_dict_of(&b, "module");
    build_dict_end(&b);
    build_dict_end(&b);
    build_write(&b, in_folder(folder, "zero_pp_rank_0_mp_rank_00_model_states.pt"), NULL);
    rs_checkpoint_close(opened(folder));
    OK(rs_remove_folder(folder));
}

/* B01: one key head on four ranks: copies, not shares; one that differs is told. B12: a table of
 * 32768 rows. B13: adapters, whose halves follow the side of their base. */
static void test_cut_sides(void **state)
{
    (void)state;
    syn_run run = syn_usual(4, 2, 1);
    syn_add(&run, "q", SYN_ROWS, 0, 2, 32, 32);
    syn_add(&run, "k", SYN_REPLICATED, 0, 2, 4, 32);
    syn_add(&run, "v", SYN_REPLICATED, 0, 2, 4, 32);
    good(&run);
    syn_write(&run, folder);
    rs_checkpoint *checkpoint = opened(folder);
    const rs_checkpoint_entry *k = entry_of(checkpoint, "k", "param");
    assert_true(k->shape[0] == 4 && k->copies == 4);
    rs_checkpoint_close(checkpoint);
    syn_remove(folder);
    run.differs = 2;
    syn_write(&run, folder);
    checkpoint = opened(folder);
    OK(rs_checkpoint_check(checkpoint));
    assert_true(has_warning(checkpoint, "copies of param of \"k\" differ in 1 elements: at [0,2]"));
    rs_checkpoint_close(checkpoint);
    syn_remove(folder);
    run = syn_usual(4, 1, 1);
    syn_add(&run, "embedding", SYN_ROWS, 0, 2, 32768, 2);
    good(&run);
    for (int stage = 1; stage <= 3; stage += 2) {
        run = syn_usual(2, 2, stage);
        syn_add(&run, "column.lora_A", SYN_REPLICATED, 0, 2, 2, 6);
        syn_add(&run, "column.lora_B", SYN_ROWS, 0, 2, 8, 2);
        syn_add(&run, "row.lora_A", SYN_COLUMNS, 0, 2, 2, 8);
        syn_add(&run, "row.lora_B", SYN_REPLICATED, 0, 2, 6, 2);
        good(&run);
    }
}

/* B07: six segments in one projection, of which each rank has its share. B08: gate rows behind the
 * block of queries, keys and values; sizes that do not add up are refused. */
static void test_packed(void **state)
{
    (void)state;
    static const int64_t segments[] = {4, 4, 8, 8, 2, 2};
    for (int stage = 1; stage <= 3; stage += 2) {
        syn_run run = syn_usual(2, 3, stage);
        syn_param *packed = syn_add(&run, "in_proj", SYN_PARTED, 0, 2, 28, 3);
        packed->parts = 6;
        memcpy(packed->sizes, segments, sizeof segments);
        syn_param *gated = syn_add(&run, "qkv_gate", SYN_PARTED, 0, 2, 32, 3);
        gated->parts = 2;
        gated->sizes[0] = 24;
        gated->sizes[1] = 8;
        good(&run);
        /* Rank 1 begins with rows 2, 3 of the first segment and 6, 7 of the second. */
        syn_write(&run, folder);
        rs_checkpoint *checkpoint = opened(folder);
        for (int64_t row = 0; row < 28; row++)
            assert_true(
                at(checkpoint, "in_proj", "master", row, 1, 0) == syn_value(1, 0, 3 * row + 1));
        rs_checkpoint_close(checkpoint);
        syn_remove(folder);
    }
}

/* B02, B03: queries, keys and values of two groups in one tensor of 24 rows, cut over four ranks in
 * contiguous rows; taken apart by a dialect, in all roles, from under ZeRO. */
static void test_groups(void **state)
{
    (void)state;
    static const char text[] =
        "{\"dialect\":\"own\",\"tensors\":[{\"name\":\"l.{0}.qkv\",\"groups\":2,"
        "\"of\":[\"q\",\"k\",\"v\"]},{\"name\":\"*\",\"of\":\"*\"}]}";
    static const int rows[3][16] = {
        {0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 18, 19}, {8, 9, 20, 21}, {10, 11, 22, 23}};
    static const char *const names[] = {"q", "k", "v"};
    static const char *const roles[] = {"master", "exp_avg", "exp_avg_sq"};
    rs_dialect *dialect;
    rs_space *space;
    OK(rs_dialect_parse(text, sizeof text - 1, "own", &dialect));
    OK(rs_space_create(&space));
    for (int i = 0; i < 3; i++) {
        rs_tensor tensor = {.name = names[i], .ndim = 3, .shape = {1, i == 0 ? 16 : 4, 4}};
        OK(rs_space_add_tensor(space, &tensor, NULL));
    }
    for (int stage = 1; stage <= 3; stage++) {
        syn_run run = syn_usual(4, 3, stage);
        rs_checkpoint *own;
        syn_add(&run, "l.0.qkv", SYN_ROWS, 0, 2, 24, 4);
        syn_write(&run, folder);
        rs_checkpoint *checkpoint = opened(folder);
        rs_rename_options how = {.from = dialect, .space = space};
        OK(rs_checkpoint_rename(checkpoint, &how, &own));
        for (int r = 0; r < 3; r++)
            for (int t = 0; t < 3; t++)
                for (int i = 0; i < (t == 0 ? 16 : 4); i++)
                    for (int j = 0; j < 4; j++)
                        assert_true(at(own, names[t], roles[r], 0, i, j) ==
                                    syn_value(r + 1, 0, 4 * rows[t][i] + j));
        rs_checkpoint_close(own);
        rs_checkpoint_close(checkpoint);
        syn_remove(folder);
    }
    /* Keys and values on every rank that uses them make 8 rows a rank: they are no cut of 24. */
    syn_run run = syn_usual(4, 1, 1);
    rs_checkpoint *own;
    syn_add(&run, "l.0.qkv", SYN_ROWS, 0, 2, 32, 4);
    syn_write(&run, folder);
    rs_checkpoint *checkpoint = opened(folder);
    rs_rename_options how = {.from = dialect, .space = space};
    assert_int_equal(rs_checkpoint_rename(checkpoint, &how, &own), RS_ERR_MISMATCH);
    expect_message("the model wants [0:24,0:4], the checkpoint has [0:32,0:4]");
    rs_checkpoint_close(checkpoint);
    syn_remove(folder);
    rs_space_destroy(space);
    rs_dialect_destroy(dialect);
}

/* Layers in unlike numbers of copies are one tensor in as many as all have. */
static void test_copies(void **state)
{
    (void)state;
    static const char text[] =
        "{\"dialect\":\"own\",\"tensors\":[{\"name\":\"l.{0}.w\",\"of\":\"w\"}]}";
    rs_tensor w = {.name = "w", .ndim = 3, .shape = {2, 8, 4}};
    rs_dialect *dialect;
    rs_space *space;
    rs_checkpoint *own;
    OK(rs_dialect_parse(text, sizeof text - 1, "own", &dialect));
    OK(rs_space_create(&space));
    OK(rs_space_add_tensor(space, &w, NULL));
    for (int first = 0; first < 2; first++) {
        syn_run run = syn_usual(2, 1, 1);
        syn_add(&run, "l.0.w", first == 0 ? SYN_REPLICATED : SYN_ROWS, 0, 2, 8, 4);
        syn_add(&run, "l.1.w", first == 0 ? SYN_ROWS : SYN_REPLICATED, 0, 2, 8, 4);
        syn_write(&run, folder);
        rs_checkpoint *checkpoint = opened(folder);
        rs_rename_options how = {.from = dialect, .space = space};
        OK(rs_checkpoint_rename(checkpoint, &how, &own));
        assert_int_equal(entry_of(own, "w", "param")->copies, 1);
        for (int l = 0; l < 2; l++)
            assert_true(at(own, "w", "exp_avg", l, 5, 3) == syn_value(2, l, 23));
        rs_checkpoint_close(own);
        rs_checkpoint_close(checkpoint);
        syn_remove(folder);
    }
    rs_space_destroy(space);
    rs_dialect_destroy(dialect);
}

static int64_t file_bytes(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}

/* C09: a second name is not written twice. C10: where the model's name is the second one, weights
 * and moments are found through it. */
static void test_ties(void **state)
{
    (void)state;
    static const char text[] =
        "{\"dialect\":\"own\",\"tensors\":[{\"name\":\"out.weight\",\"of\":\"tok\"},"
        "{\"name\":\"norm\",\"of\":\"norm\"}]}";
    char target[600];
    snprintf(target, sizeof target, "%s/target", scratch_folder());
    for (int stage = 1; stage <= 3; stage++) {
        syn_run run = syn_usual(1, 2, stage);
        rs_convert_options how = {.to = "safetensors"};
        syn_add(&run, "tok.weight", SYN_REPLICATED, 0, 2, 16, 4);
        syn_add(&run, "norm", SYN_REPLICATED, 0, 1, 4, 0);
        run.alias = "out.weight";
        syn_write(&run, folder);
        rs_checkpoint *checkpoint = opened(folder), *written, *own;
        OK(rs_convert(checkpoint, target, &how, NULL));
        written = opened(target);
        assert_int_equal(rs_checkpoint_count(written), 2);
        assert_null(entry_of(written, "out.weight", "param"));
        char head[8] = {0};
        size_t length;
        unsigned char *data = slurp(in_folder(target, "model.safetensors"), &length);
        memcpy(head, data, 8);
        uint64_t header;
        memcpy(&header, head, 8);
        free(data);
        assert_int_equal(length - 8 - header, 4 * (64 + 4));
        /* Aliases are looked through: what one names twice is in both. */
        rs_compare_report report;
        rs_compare_options roles = {.role = "param"};
        OK(rs_compare(checkpoint, written, &roles, NULL, NULL, &report));
        assert_int_equal(report.different, 0);
        rs_checkpoint_close(written);
        OK(rs_remove_folder(target));
        rs_dialect *dialect;
        rs_space *space;
        rs_tensor tok = {.name = "tok", .ndim = 2, .shape = {16, 4}};
        rs_tensor norm = {.name = "norm", .ndim = 1, .shape = {4}};
        OK(rs_dialect_parse(text, sizeof text - 1, "own", &dialect));
        OK(rs_space_create(&space));
        OK(rs_space_add_tensor(space, &tok, NULL));
        OK(rs_space_add_tensor(space, &norm, NULL));
        rs_rename_options names = {.from = dialect, .space = space};
        OK(rs_checkpoint_rename(checkpoint, &names, &own));
        assert_true(at(own, "tok", "exp_avg", 3, 2, 0) == syn_value(2, 0, 14));
        assert_true(at(own, "tok", "master", 15, 3, 0) == syn_value(1, 0, 63));
        rs_checkpoint_close(own);
        rs_space_destroy(space);
        rs_dialect_destroy(dialect);
        rs_checkpoint_close(checkpoint);
        syn_remove(folder);
    }
    assert_int_equal(file_bytes(target), -1);
}

/* C12: Megatron's folders, under all the names that its layouts make, are called by their name, and
 * not taken for DeepSpeed's, whose files are called alike. */
static void test_megatron_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "mp_rank_00", "mp_rank_00_000", "mp_rank_01_001_000", "mp_rank_07", "mp_rank_03_001"};
    char inside[600], path[700];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        build b = {0};
        mkdir(folder, 0755);
        snprintf(inside, sizeof inside, "%s/%s", folder, names[i]);
        mkdir(inside, 0755);
        snprintf(path, sizeof path, "%s/model_optim_rng.pt", inside);
        build_dict(&b);
        build_dict_end(&b);
        build_write(&b, path, NULL);
        assert_int_equal(read_everything(folder, NULL), RS_ERR_UNSUPPORTED);
        expect_message("a checkpoint of Megatron-LM");
        OK(rs_remove_folder(folder));
    }
}

/* C12: DeepSpeed's folder is recognised by what is in it; one that is Megatron's too is not guessed
 * at. */
static void test_c12(void **state)
{
    (void)state;
    char root[300], tag[400], path[500];
    syn_run run = syn_usual(1, 2, 1);
    snprintf(root, sizeof root, "%s/root", scratch_folder());
    snprintf(tag, sizeof tag, "%s/global_step3", root);
    mkdir(root, 0755);
    syn_add(&run, "w", SYN_REPLICATED, 0, 1, 12, 0);
    syn_write(&run, tag);
    static const char *const pointers[] = {"latest", "latest_checkpointed_iteration.txt"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", root, pointers[i]);
        FILE *file = fopen(path, "w");
        assert_true(fputs(i == 0 ? "global_step3" : "3", file) >= 0 && fclose(file) == 0);
        if (i == 1) {
            assert_int_equal(read_everything(root, NULL), RS_ERR_ARGUMENT);
            expect_message("as Megatron does: name the folder that is meant");
        }
        rs_checkpoint *checkpoint = opened(i == 0 ? root : tag);
        assert_string_equal(rs_checkpoint_format(checkpoint), "deepspeed");
        rs_checkpoint_close(checkpoint);
    }
    syn_remove(tag);
    OK(rs_remove_folder(root));
}

/* Bytes that this process has asked files for. */
static int64_t bytes_read(void)
{
    long long bytes = -1;
    FILE *file = fopen("/proc/self/io", "r");
    if (file == NULL || fscanf(file, "rchar: %lld", &bytes) != 1)
        bytes = -1;
    if (file != NULL)
        fclose(file);
    return bytes;
}

/* K01: writing the weights reads the weights: not the moments, and nothing twice. */
static void test_k01(void **state)
{
    (void)state;
    char target[600];
    snprintf(target, sizeof target, "%s/target", scratch_folder());
    for (int stage = 2; stage <= 3; stage++) {
        syn_run run = syn_usual(1, 8, stage);
        rs_convert_options how = {.to = "safetensors"};
        for (int i = 0; i < 4; i++) {
            char name[16];
            snprintf(name, sizeof name, "w%d", i);
            syn_add(&run, name, SYN_REPLICATED, 0, 2, 1024, 512);
        }
        syn_write(&run, folder);
        int64_t before = bytes_read();
        rs_checkpoint *checkpoint = opened(folder);
        OK(rs_convert(checkpoint, target, &how, NULL));
        int64_t read = bytes_read() - before;
        rs_checkpoint_close(checkpoint);
        syn_remove(folder);
        OK(rs_remove_folder(target));
        if (before >= 0 && (read < (4 << 21) || read > (4 << 21) * 11 / 10))
            fail_msg("stage %d: read %d bytes for %d", stage, (int)read, 4 << 21);
    }
}

/* E08: frozen weights have their value, their type, and nothing else; nothing stands in for the
 * rest. */
static void test_frozen(void **state)
{
    (void)state;
    static const char *const fixtures[] = {"deepspeed/z3-bf16-w4", "deepspeed/z2-fp32-w2"};
    char path[1200], target[600];
    snprintf(target, sizeof target, "%s/target", scratch_folder());
    for (int i = 0; i < 2; i++) {
        rs_convert_options how = {.to = "safetensors"};
        snprintf(path, sizeof path, "%s/checkpoint", fixture_family(fixtures[i]));
        rs_checkpoint *checkpoint = opened(path), *written;
        const rs_checkpoint_entry *frozen = entry_of(checkpoint, "pos.weight", "param");
        assert_true(frozen->stored && frozen->shape[0] == 13 && frozen->shape[1] == 24);
        assert_int_equal(frozen->dtype, i == 0 ? RS_DTYPE_BF16 : RS_DTYPE_F32);
        assert_null(entry_of(checkpoint, "pos.weight", "master"));
        assert_null(entry_of(checkpoint, "pos.weight", "exp_avg"));
        OK(rs_convert(checkpoint, target, &how, NULL));
        written = opened(target);
        const rs_checkpoint_entry *kept = entry_of(written, "pos.weight", "param");
        assert_true(kept->shape[0] == 13 && kept->shape[1] == 24 && kept->dtype == frozen->dtype);
        for (size_t k = 0; k < rs_checkpoint_count(written); k++)
            assert_true(rs_checkpoint_entry_bytes(rs_checkpoint_entry_at(written, k)) > 0);
        rs_checkpoint_close(written);
        rs_checkpoint_close(checkpoint);
        OK(rs_remove_folder(target));
    }
}

/* E05: each pipeline stage has its own groups and options; none wins. */
static void test_e05(void **state)
{
    (void)state;
    char path[1200], *text;
    snprintf(path, sizeof path, "%s/checkpoint", fixture_family("deepspeed3d/pp2-z1-fp32-w2"));
    rs_checkpoint *checkpoint = opened(path);
    OK(rs_checkpoint_extras(checkpoint, &text));
    json_t *extras = json_loads(text, 0, NULL);
    const json_t *stages = json_object_get(extras, "param_groups");
    assert_int_equal(json_array_size(stages), 2);
    for (size_t s = 0; s < 2; s++) {
        const json_t *groups = json_array_get(stages, s);
        assert_int_equal(json_array_size(groups), 2);
        assert_true(json_real_value(json_object_get(json_array_get(groups, 0), "lr")) == 0.003);
        assert_true(json_real_value(json_object_get(json_array_get(groups, 1), "lr")) == 0.001);
    }
    json_decref(extras);
    free(text);
    rs_checkpoint_close(checkpoint);
}

/* E09: a mark amid an optimizer's tensors. E11: keys that are numbers, and keys with dots. H09:
 * bytes of a module that are no tensor, also none at all. All are read by their path, carried, and
 * not taken for tensors. */
static void test_no_tensors(void **state)
{
    (void)state;
    static const char stream[] = "c_io\nBytesIO\nC\004abcd\205R",
                      empty[] = "c_io\nBytesIO\nC\000\205R";
    const char *path = in_folder(scratch_folder(), "marks.pt");
    float numbers[4] = {1, 2, 3, 4};
    uint8_t bytes[4] = {9, 8, 7, 6};
    int64_t four = 4;
    build b = {0};
    char kept[512], *text;
    snprintf(kept, sizeof kept, "%s", path);
    build_dict(&b);
    build_dict_of(&b, "optimizer");
    build_dict_of(&b, "state");
    build_int(&b, 0);
    build_dict(&b);
    build_text(&b, "step");
    build_tensor(&b, RS_DTYPE_F32, 0, NULL, numbers);
    build_floats(&b, "exp_avg", 4, numbers);
    build_text(&b, "padding");
    build_bool(&b, 1);
    build_dict_end(&b);
    build_dict_end(&b);
    build_dict_end(&b);
    build_dict_of(&b, "module");
    build_floats(&b, "model.layers.0.w", 4, numbers);
    build_text(&b, "layers.0._extra_state");
    build_bytes(&b, stream, sizeof stream - 1);
    build_text(&b, "layers.1._extra_state");
    build_tensor(&b, RS_DTYPE_U8, 1, &four, bytes);
    build_text(&b, "layers.2._extra_state");
    build_bytes(&b, empty, sizeof empty - 1);
    build_dict_end(&b);
    build_dict_end(&b);
    build_write(&b, kept, NULL);
    rs_checkpoint *checkpoint = opened(kept);
    assert_int_equal(rs_checkpoint_count(checkpoint), 4);
    assert_non_null(entry_of(checkpoint, "optimizer.state.0.step", "param"));
    assert_true(at(checkpoint, "optimizer.state.0.exp_avg", "param", 2, 0, 0) == 3);
    assert_true(at(checkpoint, "module.model.layers.0.w", "param", 3, 0, 0) == 4);
    assert_int_equal(
        entry_of(checkpoint, "module.layers.1._extra_state", "param")->dtype, RS_DTYPE_U8);
    OK(rs_checkpoint_extras(checkpoint, &text));
    assert_non_null(strstr(text, "padding"));
    assert_non_null(strstr(text, "layers.0._extra_state"));
    assert_non_null(strstr(text, "layers.2._extra_state"));
    free(text);
    rs_checkpoint_close(checkpoint);
}

/* E14: whatever is done to a checkpoint, masters stay masters and moments moments; E12: weights of
 * one shape do not change places. */
static void test_kinds(void **state)
{
    (void)state;
    static const char *const roles[] = {"master", "exp_avg", "exp_avg_sq"};
    static const char *const formats[] = {"native", "torch"};
    char target[600];
    for (int stage = 1; stage <= 3; stage++)
        for (int f = 0; f < 2; f++) {
            syn_run run = syn_usual(2, 3, stage);
            rs_convert_options how = {.to = formats[f]};
            snprintf(target, sizeof target, "%s/kinds%s", scratch_folder(), f == 1 ? ".pt" : "");
            syn_add(&run, "a", SYN_ROWS, 0, 1, 8, 0);
            syn_add(&run, "b", SYN_REPLICATED, 0, 1, 8, 0);
            syn_write(&run, folder);
            rs_checkpoint *checkpoint = opened(folder), *written;
            OK(rs_convert(checkpoint, target, &how, NULL));
            written = opened(target);
            for (int r = 0; r < 3; r++)
                for (int64_t i = 0; i < 8; i++) {
                    assert_true(at(written, "a", roles[r], i, 0, 0) == syn_value(r + 1, 0, i));
                    assert_true(at(written, "b", roles[r], i, 0, 0) == syn_value(r + 1, 1, i));
                }
            rs_checkpoint_close(written);
            rs_checkpoint_close(checkpoint);
            syn_remove(folder);
            if (f == 0)
                OK(rs_remove_folder(target));
            else
                unlink(target);
        }
}

/* D09, H04, I12: views of one storage, beside each other, overlapping, turned: three tensors of
 * their own bytes where they are written. */
static void test_views(void **state)
{
    (void)state;
    char path[512], target[600];
    float numbers[100];
    build b = {0};
    rs_convert_options how = {.to = "safetensors"};
    snprintf(path, sizeof path, "%s", in_folder(scratch_folder(), "views.pt"));
    snprintf(target, sizeof target, "%s/target", scratch_folder());
    for (int i = 0; i < 100; i++)
        numbers[i] = (float)i;
    build_dict(&b);
    size_t storage = build_add_storage(&b, numbers, sizeof numbers);
    build_text(&b, "a");
    build_view(&b, RS_DTYPE_F32, storage, 100, 5, 1, (int64_t[]){95}, (int64_t[]){1});
    build_text(&b, "b");
    build_view(&b, RS_DTYPE_F32, storage, 100, 90, 2, (int64_t[]){5, 2}, (int64_t[]){2, 1});
    build_text(&b, "turned");
    build_view(&b, RS_DTYPE_F32, storage, 100, 0, 2, (int64_t[]){3, 4}, (int64_t[]){1, 3});
    build_dict_end(&b);
    build_write(&b, path, NULL);
    rs_checkpoint *checkpoint = opened(path), *written;
    OK(rs_convert(checkpoint, target, &how, NULL));
    written = opened(target);
    assert_true(
        at(written, "a", "param", 0, 0, 0) == 5 && at(written, "b", "param", 4, 1, 0) == 99);
    assert_true(at(written, "turned", "param", 2, 1, 0) == 5);
    size_t length;
    uint64_t header;
    unsigned char *data = slurp(in_folder(target, "model.safetensors"), &length);
    memcpy(&header, data, 8);
    free(data);
    assert_int_equal(length - 8 - header, 380 + 40 + 48);
    rs_checkpoint_close(written);
    rs_checkpoint_close(checkpoint);
    OK(rs_remove_folder(target));
}

int main(void)
{
    fixture_family("deepspeed");
    snprintf(folder, sizeof folder, "%s/run", scratch_folder());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a03),
        cmocka_unit_test(test_fragments),
        cmocka_unit_test(test_kept_fragments),
        cmocka_unit_test(test_cut_sides),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_c12),
        cmocka_unit_test(test_megatron_names),
        cmocka_unit_test(test_k01),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_e05),
        cmocka_unit_test(test_no_tensors),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_views),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
