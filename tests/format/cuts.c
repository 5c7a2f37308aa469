/* Random runs of DeepSpeed against a plain second implementation, and the troubles of others that
 * such runs can express (case numbers in the comments). */
#include "truth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "build.h"
#include "ckpt/publish.h"
#include "reshard/convert.h"
#include "synthetic.h"

static char folder[256];

static uint32_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

static void random_parts(syn_param *p, uint64_t *seed, int tp)
{
    p->parts = 1 + (int)(next(seed) % 3);
    p->shape[0] = 0;
    for (int j = 0; j < p->parts; j++) {
        p->sizes[j] = 0;
        for (int t = 0; t < tp; t++) {
            p->widths[j][t] = 1 + next(seed) % 3;
            p->sizes[j] += p->widths[j][t];
        }
        if (p->cut == SYN_PARTED)
            p->sizes[j] = tp * (1 + next(seed) % 3);
        p->shape[0] += p->sizes[j];
    }
}

static syn_run random_run(uint64_t *seed)
{
    syn_run run = syn_usual(
        1 + (int)(next(seed) % 4), 1 + (int)(next(seed) % 6), 1 + (int)(next(seed) / 64 % 3));
    run.groups = 1 + (int)(next(seed) % 3);
    int count = run.groups + (int)(next(seed) % 8);
    for (int i = 0; i < count; i++) {
        char name[40];
        snprintf(name, sizeof name, "layers.%d.w", i);
        int ndim = (int)(next(seed) % 3);
        syn_cut cut = (syn_cut)(next(seed) % 7);
        if (ndim == 0 || (ndim == 1 && cut == SYN_COLUMNS))
            cut = SYN_REPLICATED;
        syn_param *p =
            syn_add(&run, name, cut, i % run.groups, ndim, next(seed) % 12, 1 + next(seed) % 9);
        if (cut == SYN_TWO)
            p->shape[0] = 2 * run.tp * (1 + next(seed) % 3);
        if (cut == SYN_PARTED || cut == SYN_UNEVEN)
            random_parts(p, seed, run.tp);
        if (cut == SYN_AVERAGED && p->shape[0] == 0)
            p->shape[0] = 1;
    }
    for (int g = 0; g < run.groups; g++)
        run.states[g] = 1 + next(seed) % 15;
    run.stage_form = (int)(next(seed) % 3);
    run.int_step = next(seed) % 4 == 0;
    return run;
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t round = 1; round <= 150; round++) {
        uint64_t seed = round * 7919;
        syn_run run = random_run(&seed);
        syn_write(&run, folder);
        printf("\rseed %lu (tp %d, dp %d, stage %d, %d params)   ", (unsigned long)round, run.tp,
            run.dp, run.stage, run.count);
        syn_compare(&run, folder);
        syn_remove(folder);
    }
    printf("\n");
}

static void good(const syn_run *run)
{
    syn_write(run, folder);
    syn_compare(run, folder);
    syn_remove(folder);
}

static void refused(const syn_run *run, const char *reason)
{
    syn_write(run, folder);
    rs_status status = read_everything(folder, NULL);
    syn_remove(folder);
    if (status == RS_OK || strstr(rs_error_message(), reason) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", status == RS_OK ? "" : rs_error_message(), reason);
}

/* Reads the run and returns the warnings, one a line. */
static char *warnings_of(const syn_run *run)
{
    static char all[4096];
    rs_checkpoint *checkpoint;
    syn_write(run, folder);
    if (rs_checkpoint_open(folder, NULL, &checkpoint) != RS_OK)
        fail_msg("%s", rs_error_message());
    assert_int_equal(rs_checkpoint_check(checkpoint), RS_OK);
    all[0] = 0;
    for (size_t i = 0; i < rs_checkpoint_warning_count(checkpoint); i++)
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s\n",
            rs_checkpoint_warning_at(checkpoint, i));
    rs_checkpoint_close(checkpoint);
    syn_remove(folder);
    return all;
}

/* A04: the padding is larger than a rank's range: ranks 5, 6, 7 hold nothing real. And rank 3 empty
 * inside the data is an error, not padding. */
static void test_a04(void **state)
{
    (void)state;
    syn_run run = syn_usual(1, 8, 1);
    syn_add(&run, "a", SYN_REPLICATED, 0, 1, 7, 0);
    syn_add(&run, "b", SYN_REPLICATED, 0, 1, 3, 0);
    good(&run);
    run.empty_rank = 3;
    refused(&run, "rank 3 has 0 elements, wanted are 2");
}

/* A05, A06, A13: alignment follows the ranks; what param_shapes does not explain is an error; one
 * big and many small parameters on each side of a border. */
static void test_a05(void **state)
{
    (void)state;
    for (int dp = 3; dp <= 5; dp += 2) {
        syn_run run = syn_usual(1, dp, 2);
        syn_add(&run, "p1", SYN_REPLICATED, 0, 2, 30, 20);
        syn_add(&run, "p2", SYN_REPLICATED, 0, 1, 400, 0);
        good(&run);
    }
    syn_run run = syn_usual(1, 4, 2);
    syn_add(&run, "a", SYN_REPLICATED, 0, 1, 12, 0);
    syn_add(&run, "b", SYN_REPLICATED, 0, 1, 4, 0);
    syn_add(&run, "c", SYN_REPLICATED, 0, 1, 28, 0);
    good(&run);
    run.omit = 0;
    refused(&run, "16 unexplained");
    run.stage = 3;
    refused(&run, "hold 3 elements that param_shapes does not explain");
    run = syn_usual(1, 2, 1);
    syn_add(&run, "big", SYN_REPLICATED, 0, 1, 1000, 0);
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof name, "norm%d", i);
        syn_add(&run, name, SYN_REPLICATED, 0, 1, 20, 0);
    }
    good(&run);
}

/* A15: 7 heads of 2 rows over 2, 3 and 7... ranks: uneven shares come from the files themselves;
 * for fused tensors from widths. B04, B05: gate and up are cut each on its own, also under ZeRO.
 * B11: ZeRO-3 inside tensor parallelism, by rows and by columns. */
static void test_cuts(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage += 2)
        for (int tp = 2; tp <= 4; tp++) {
            syn_run run = syn_usual(tp, 4, stage);
            syn_add(&run, "q", SYN_ROWS, 0, 2, 14, 3);
            syn_add(&run, "w", SYN_ROWS, 0, 2, 8, 4);
            syn_add(&run, "v", SYN_COLUMNS, 0, 2, 4, 8);
            syn_add(&run, "gate_up", SYN_TWO, 0, 2, 4 * tp, 8);
            syn_add(&run, "gate_up.bias", SYN_TWO, 0, 1, 4 * tp, 0);
            syn_param *qkv = syn_add(&run, "qkv", SYN_UNEVEN, 0, 2, 0, 5);
            qkv->parts = 3;
            for (int j = 0; j < 3; j++)
                for (int t = 0; t < tp; t++) {
                    qkv->widths[j][t] = j == 0 ? 2 * (tp - t) : 1;
                    qkv->sizes[j] += qkv->widths[j][t];
                    qkv->shape[0] += qkv->widths[j][t];
                }
            good(&run);
        }
    /* A rank that has none of a tensor that is cut: a part is missing, not empty. */
    syn_run half = syn_usual(2, 2, 1);
    syn_add(&half, "w", SYN_ROWS, 0, 2, 8, 4);
    syn_add(&half, "v", SYN_ROWS, 0, 2, 6, 4);
    half.absent = 1;
    half.absent_tp = 1;
    refused(&half, "\"v\": tensor-parallel rank 1 of 2 has none of it");
    /* A part that does not divide, and no widths. */
    syn_run run = syn_usual(2, 1, 1);
    syn_param *p = syn_add(&run, "qkv", SYN_UNEVEN, 0, 2, 6, 2);
    p->parts = 2;
    p->sizes[0] = p->sizes[1] = 3;
    p->widths[0][0] = p->widths[1][1] = 2;
    p->widths[0][1] = p->widths[1][0] = 1;
    good(&run);
    p->cut = SYN_PARTED;
    refused(&run, "qkv");
}

/* A16: two ranks and nothing that says how [8,8] was cut; the stage as a number, an enum by value
 * and by name, and not at all. */
static void test_a16(void **state)
{
    (void)state;
    syn_run run = syn_usual(2, 2, 1);
    syn_add(&run, "square", SYN_ROWS, 0, 2, 8, 8);
    run.no_info = true;
    refused(&run, "\"square\" is held by 2 tensor-parallel ranks, and nothing");
    run = syn_usual(1, 2, 1);
    syn_add(&run, "square", SYN_ROWS, 0, 2, 8, 8);
    run.no_info = true;
    for (run.stage = 1; run.stage <= 3; run.stage++)
        for (run.stage_form = 0; run.stage_form <= 3; run.stage_form++)
            good(&run);
}

/* B09: 13 rows over 4 ranks, padded to 16: the padding goes, of weights and moments alike; and is
 * kept, with a warning, where nothing says the true number. */
static void test_b09(void **state)
{
    (void)state;
    syn_run run = syn_usual(4, 2, 1);
    syn_add(&run, "embed", SYN_ROWS, 0, 2, 16, 2);
    syn_add(&run, "other", SYN_ROWS, 0, 2, 16, 2);
    run.vocabulary = 13;
    good(&run);
    run.stage = 3;
    good(&run);
    run.tp = 1;
    good(&run);
    run.vocabulary = 17;
    refused(&run, "has 16 rows, the vocabulary 17");
}

/* C08: under ZeRO-3 all placeholders look alike; the tie is the recorded one. */
static void test_c08(void **state)
{
    (void)state;
    for (int stage = 2; stage <= 3; stage++) {
        syn_run run = syn_usual(1, 2, stage);
        syn_add(&run, "layer2.weight", SYN_REPLICATED, 0, 2, 6, 6);
        syn_add(&run, "layer0.weight", SYN_REPLICATED, 0, 2, 4, 4);
        run.alias = "layer1.weight";
        syn_write(&run, folder);
        syn_compare(&run, folder);
        rs_checkpoint *checkpoint;
        assert_int_equal(rs_checkpoint_open(folder, NULL, &checkpoint), RS_OK);
        int64_t alias = rs_checkpoint_find(checkpoint, "layer1.weight", "param");
        assert_true(alias >= 0);
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)alias);
        assert_string_equal(entry->alias_of, "layer2.weight");
        float last;
        rs_box box = {.ndim = 2, .offset = {5, 5}, .extent = {1, 1}};
        assert_int_equal(
            rs_checkpoint_read(checkpoint, (size_t)alias, &box, &last, sizeof last), RS_OK);
        assert_true(last == syn_value(0, 0, 35));
        rs_checkpoint_close(checkpoint);
        syn_remove(folder);
    }
}

/* E01: the step as a 0-d tensor, a number, a vector of one; beside a group's step that nobody
 * updates. E02: other optimizers, unknown states. E07: dtypes stay. */
static void test_e01(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++)
        for (int stage = 1; stage <= 3; stage += 2) {
            syn_run run = syn_usual(1, 2, stage);
            syn_add(&run, "w", SYN_REPLICATED, 0, 2, 6, 4);
            syn_add(&run, "b", SYN_REPLICATED, 1, 1, 6, 0);
            run.groups = 2;
            run.states[0] = SYN_MOMENTUM | SYN_FOO;
            run.int_step = form == 1;
            run.vector_step = form == 2;
            run.group_step = form == 3;
            run.bf16_moments = true;
            syn_write(&run, folder);
            syn_compare(&run, folder);
            rs_checkpoint *checkpoint;
            assert_int_equal(rs_checkpoint_open(folder, NULL, &checkpoint), RS_OK);
            int64_t step = rs_checkpoint_find(checkpoint, "param_groups.1", "step");
            assert_true(step >= 0);
            const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)step);
            assert_int_equal(entry->dtype, form == 1 || form == 2 ? RS_DTYPE_I64 : RS_DTYPE_F32);
            assert_int_equal(entry->ndim, form == 2);
            int64_t moment = rs_checkpoint_find(checkpoint, "b", "exp_avg");
            assert_int_equal(
                rs_checkpoint_entry_at(checkpoint, (size_t)moment)->dtype, RS_DTYPE_BF16);
            assert_int_equal(rs_checkpoint_find(checkpoint, "w", "exp_avg"), -1);
            rs_checkpoint_close(checkpoint);
            syn_remove(folder);
        }
}

/* E06: a weight that is not its master rounded. E10: no optimizer state. E13: ranks with another
 * loss scale. G01: replicas that differ, with rank, index and values. */
static void test_warnings(void **state)
{
    (void)state;
    syn_run run = syn_usual(1, 2, 1);
    syn_add(&run, "w", SYN_REPLICATED, 0, 2, 6, 4);
    assert_string_equal(warnings_of(&run), "");
    run.shift_weight = true;
    assert_non_null(strstr(warnings_of(&run),
        "param of \"w\" is not its master rounded, in 1 elements: at [0,0] the param has 1048578, "
        "the master rounds to 1048576"));
    run.shift_weight = false;
    run.states[0] = 0;
    assert_non_null(strstr(warnings_of(&run), "no optimizer state for 1 of 1 parameters"));
    run.states[0] = 3;
    run.scaler_differs = true;
    assert_non_null(strstr(warnings_of(&run), "its loss_scaler differs from that of rank 0"));
    run = syn_usual(4, 1, 1);
    syn_add(&run, "w", SYN_ROWS, 0, 2, 8, 4);
    syn_add(&run, "ln", SYN_REPLICATED, 0, 1, 4, 0);
    assert_string_equal(warnings_of(&run), "");
    run.differs = 2;
    assert_non_null(strstr(warnings_of(&run),
        "copies of param of \"ln\" differ in 1 elements: at [2] copy 0 has 1114114, copy 2 has "
        "1114115.5"));
}

static void collect(void *context, const char *warning)
{
    snprintf((char *)context + strlen(context), 4096 - strlen(context), "%s\n", warning);
}

/* What a conversion tells of the run. */
static char *told_of(const syn_run *run, const char *to)
{
    static char all[4096];
    char target[300];
    rs_convert_options how = {.to = to, .warn = collect, .warn_context = all};
    snprintf(target, sizeof target, "%s-%s", folder, to);
    syn_write(run, folder);
    rs_checkpoint *checkpoint = opened(folder);
    all[0] = '\0';
    assert_int_equal(rs_convert(checkpoint, target, &how, NULL), RS_OK);
    rs_checkpoint_close(checkpoint);
    assert_int_equal(rs_remove_folder(target), RS_OK);
    syn_remove(folder);
    return all;
}

/* What is written is the first of several copies: where they differ it is told, as what reading
 * found is; not of what is left out. */
static void test_told(void **state)
{
    (void)state;
    syn_run run = syn_usual(4, 1, 1);
    syn_add(&run, "w", SYN_ROWS, 0, 2, 8, 4);
    syn_add(&run, "ln", SYN_REPLICATED, 0, 1, 4, 0);
    assert_string_equal(told_of(&run, "safetensors"), "");
    assert_string_equal(told_of(&run, "native"), "");
    run.differs = 2;
    for (int i = 0; i < 2; i++)
        assert_string_equal(told_of(&run, i == 0 ? "safetensors" : "native"),
            "copies of param of \"ln\" differ in 1 elements: at [2] copy 0 has 1114114, copy 2 has "
            "1114115.5\n");
    run = syn_usual(1, 2, 1);
    syn_add(&run, "w", SYN_REPLICATED, 0, 2, 6, 4);
    run.scaler_differs = true;
    assert_non_null(strstr(told_of(&run, "native"), "its loss_scaler differs from that of rank 0"));
}

/* Files of two saves in one folder: refused, whichever number tells it, and in whichever form. */
static void test_two_steps(void **state)
{
    (void)state;
    for (int form = 0; form < 3; form++)
        for (int stage = 1; stage <= 3; stage += 2) {
            syn_run run = syn_usual(1, 4, stage);
            syn_add(&run, "w", SYN_REPLICATED, 0, 2, 6, 4);
            run.int_step = form == 1;
            run.vector_step = form == 2;
            assert_string_equal(warnings_of(&run), "");
            run.ahead = 1;
            refused(&run,
                stage == 3 ? "zero_pp_rank_3_mp_rank_00_optim_states.pt: is of step 9, by the state"
                           : "pp_rank_3_mp_rank_00_optim_states.pt: is of step 9, by the state of "
                             "\"param_groups.0\", and another rank's file of step 7");
            run.ahead = 2;
            if (stage == 3) /* before it one rank's model file says it for all */
                refused(&run,
                    "zero_pp_rank_3_mp_rank_00_model_states.pt: its global_steps are not the 7 of "
                    "the first rank's file");
        }
}

/* J07: half of the ranks' files lie on another node's disk. */
static void test_j07(void **state)
{
    (void)state;
    for (int stage = 1; stage <= 3; stage += 2) {
        syn_run run = syn_usual(1, 16, stage);
        syn_add(&run, "w", SYN_REPLICATED, 0, 2, 20, 7);
        run.written = 8;
        refused(&run, "data-parallel ranks 8..15 of 16");
    }
}

/* G07: 64 ranks are listed by one process, from descriptions alone. */
static void test_g07(void **state)
{
    (void)state;
    syn_run run = syn_usual(1, 64, 3);
    syn_add(&run, "w", SYN_REPLICATED, 0, 2, 128, 4);
    good(&run);
}

/* Without ZeRO the optimizer has numbers and no names: two weights of one shape and one state.
 * Which is the frozen one, nothing says. */
static void test_ambiguous(void **state)
{
    (void)state;
    for (int frozen = 0; frozen < 2; frozen++) {
        build b = {0};
        float numbers[4] = {1, 2, 3, 4};
        mkdir(folder, 0755);
        build_dict(&b);
        build_dict_of(&b, "module");
        build_floats(&b, "a", 4, numbers);
        if (frozen) {
            build_floats(&b, "b", 4, numbers);
        }
        build_dict_end(&b);
        build_dict_of(&b, "optimizer");
        build_dict_of(&b, "state");
        build_int(&b, 0);
        build_dict(&b);
        build_floats(&b, "exp_avg", 4, numbers);
        build_dict_end(&b);
        build_dict_end(&b);
        build_text(&b, "param_groups");
        build_list(&b);
        build_dict(&b);
        build_text(&b, "params");
        build_list(&b);
        build_int(&b, 0);
        build_list_end(&b);
        build_dict_end(&b);
        build_list_end(&b);
        build_dict_end(&b);
        build_dict_end(&b);
        build_write(&b, in_folder(folder, "mp_rank_00_model_states.pt"), NULL);
        rs_status status = read_everything(folder, NULL);
        assert_int_equal(status, frozen ? RS_ERR_UNSUPPORTED : RS_OK);
        if (frozen)
            assert_non_null(strstr(rs_error_message(), "more than one assignment"));
        syn_remove(folder);
    }
}

static void write_bare(const char *name, int64_t count)
{
    build b = {0};
    float numbers[16];
    for (int i = 0; i < 16; i++)
        numbers[i] = (float)i;
    build_tensor(&b, RS_DTYPE_F32, 1, &count, numbers);
    build_write(&b, in_folder(folder, name), NULL);
}

/* A universal folder from ZeRO-3: flat tensors, whose shapes the model file has. */
static void test_universal(void **state)
{
    (void)state;
    static const char *const folders[] = {"zero", "zero/w", "zero/v"};
    build b = {0};
    mkdir(folder, 0755);
    for (int i = 0; i < 3; i++)
        mkdir(in_folder(folder, folders[i]), 0755);
    build_dict(&b);
    build_dict_of(&b, "module");
    build_dict_end(&b);
    build_text(&b, "param_shapes");
    build_list(&b);
    build_dict(&b);
    build_text(&b, "w");
    build_size(&b, 2, (int64_t[]){2, 3});
    build_dict_end(&b);
    build_list_end(&b);
    build_dict_end(&b);
    build_write(&b, in_folder(folder, "zero_pp_rank_0_mp_rank_00_model_states.pt"), NULL);
    write_bare("zero/w/fp32.pt", 6);
    write_bare("zero/w/exp_avg.pt", 6);
    rs_checkpoint *checkpoint;
    if (rs_checkpoint_open(folder, NULL, &checkpoint) != RS_OK)
        fail_msg("%s", rs_error_message());
    int64_t index = rs_checkpoint_find(checkpoint, "w", "exp_avg");
    assert_true(index >= 0);
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)index);
    assert_true(entry->ndim == 2 && entry->shape[0] == 2 && entry->shape[1] == 3);
    float last;
    rs_box box = {.ndim = 2, .offset = {1, 2}, .extent = {1, 1}};
    assert_int_equal(
        rs_checkpoint_read(checkpoint, (size_t)index, &box, &last, sizeof last), RS_OK);
    assert_true(last == 5);
    rs_checkpoint_close(checkpoint);
    write_bare("zero/w/exp_avg.pt", 7);
    assert_int_equal(read_everything(folder, NULL), RS_ERR_MALFORMED);
    assert_non_null(strstr(rs_error_message(), "has 7 elements, the model files give \"w\" 6"));
    remove(in_folder(folder, "zero/w/exp_avg.pt"));
    write_bare("zero/v/exp_avg.pt", 7);
    assert_int_equal(read_everything(folder, NULL), RS_ERR_MALFORMED);
    assert_non_null(strstr(rs_error_message(), "has no fp32.pt"));
    remove(in_folder(folder, "zero/v/exp_avg.pt"));
    remove(in_folder(folder, "zero/w/fp32.pt"));
    assert_int_equal(read_everything(folder, NULL), RS_ERR_MALFORMED);
    assert_non_null(strstr(rs_error_message(), "has no folder \"w\""));
    for (int i = 3; i-- > 0;)
        remove(in_folder(folder, folders[i]));
    syn_remove(folder);
}

/* Two records of a zip that overlap: each alone is whole. */
static void test_overlap(void **state)
{
    (void)state;
    build b = {0};
    float numbers[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int64_t eight = 8;
    build_list(&b);
    build_tensor(&b, RS_DTYPE_F32, 1, &eight, numbers);
    build_tensor(&b, RS_DTYPE_F32, 1, &eight, numbers);
    build_list_end(&b);
    const char *path = in_folder(scratch_folder(), "overlap.pt");
    build_write(&b, path, NULL);
    assert_int_equal(read_everything(path, NULL), RS_OK);
    size_t bytes, at = 0;
    unsigned char *data = slurp(path, &bytes);
    for (size_t i = 0; i + 60 < bytes; i++)
        if (memcmp(data + i, "PK\1\2", 4) == 0 && memcmp(data + i + 46, "archive/data/0", 14) == 0)
            at = i;
    assert_true(at > 0);
    /* Swapped places: no overlap, but each has the other's bytes. */
    unsigned char *other = data + at + 60;
    for (int i = 42; i < 46; i++) {
        unsigned char c = data[at + (size_t)i];
        data[at + (size_t)i] = other[i];
        other[i] = c;
    }
    scratch_file("overlap.pt", data, bytes);
    assert_int_equal(read_everything(path, NULL), RS_ERR_MALFORMED);
    assert_non_null(strstr(rs_error_message(), "the local header says \"archive/data/1\""));
    for (int i = 42; i < 46; i++) {
        unsigned char c = data[at + (size_t)i];
        data[at + (size_t)i] = other[i];
        other[i] = c;
    }
    data[at + 20] += 16; /* both sizes, and the record reaches into the next one's header */
    data[at + 24] += 16;
    scratch_file("overlap.pt", data, bytes);
    free(data);
    assert_int_equal(read_everything(path, NULL), RS_ERR_MALFORMED);
    assert_non_null(
        strstr(rs_error_message(), "\"archive/data/0\" and \"archive/data/1\" overlap"));
}

static rs_status open_file(const char *path, rs_checkpoint **out)
{
    rs_status status = rs_checkpoint_open(path, NULL, out);
    if (status != RS_OK)
        printf("    %s\n", rs_error_message());
    return status;
}

static void expect_floats(
    const rs_checkpoint *checkpoint, const char *name, int count, const float *wanted)
{
    int64_t index = rs_checkpoint_find(checkpoint, name, "param");
    float found[64];
    if (index < 0)
        fail_msg("no %s", name);
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)index);
    rs_box box = rs_box_whole(entry->ndim, entry->shape);
    assert_int_equal(rs_checkpoint_entry_bytes(entry), 4 * count);
    assert_int_equal(
        rs_checkpoint_read(checkpoint, (size_t)index, &box, found, 4 * (size_t)count), RS_OK);
    assert_memory_equal(found, wanted, 4 * (size_t)count);
}

/* H03: streamed entries with descriptors and padding, one more entry from a zip tool, other
 * prefixes. H04, H05, H06: views, strides, scalars and empty tensors. H08: a key that is a path.
 * H11: byte order. */
static void test_containers(void **state)
{
    (void)state;
    static const build_options how[] = {
        {.prefix = "archive"},
        {.prefix = "foo.bar", .streamed = 1},
        {.streamed = 1, .extra_name = "meta.json", .byteorder = "little"},
    };
    float numbers[100];
    for (int i = 0; i < 100; i++)
        numbers[i] = (float)i;
    for (size_t h = 0; h < 3; h++) {
        build b = {0};
        build_dict(&b);
        size_t storage = build_add_storage(&b, numbers, sizeof numbers);
        build_text(&b, "a");
        build_view(&b, RS_DTYPE_F32, storage, 100, 5, 1, (int64_t[]){4}, (int64_t[]){1});
        build_text(&b, "b");
        build_view(&b, RS_DTYPE_F32, storage, 100, 90, 2, (int64_t[]){2, 3}, (int64_t[]){1, 2});
        build_text(&b, "c");
        build_view(&b, RS_DTYPE_F32, storage, 100, 90, 2, (int64_t[]){2, 3}, (int64_t[]){1, 2});
        build_text(&b, "scalar");
        build_view(&b, RS_DTYPE_F32, storage, 100, 42, 0, NULL, NULL);
        build_text(&b, "expanded");
        build_view(&b, RS_DTYPE_F32, storage, 100, 7, 1, (int64_t[]){3}, (int64_t[]){0});
        build_text(&b, "empty");
        build_view(
            &b, RS_DTYPE_F32, storage, 100, 0, 3, (int64_t[]){3, 0, 2}, (int64_t[]){2, 2, 1});
        build_dict_end(&b);
        const char *path = in_folder(scratch_folder(), "container.pt");
        build_write(&b, path, &how[h]);
        rs_checkpoint *checkpoint;
        assert_int_equal(open_file(path, &checkpoint), RS_OK);
        expect_floats(checkpoint, "a", 4, (float[]){5, 6, 7, 8});
        expect_floats(checkpoint, "b", 6, (float[]){90, 92, 94, 91, 93, 95});
        expect_floats(checkpoint, "scalar", 1, (float[]){42});
        expect_floats(checkpoint, "expanded", 3, (float[]){7, 7, 7});
        expect_floats(checkpoint, "empty", 0, NULL);
        assert_string_equal(rs_checkpoint_entry_at(checkpoint, 2)->alias_of, "b");
        assert_int_equal(rs_checkpoint_check(checkpoint), RS_OK);
        assert_int_equal(rs_checkpoint_warning_count(checkpoint), how[h].extra_name != NULL);
        rs_checkpoint_close(checkpoint);
    }
}

static void test_byte_order(void **state)
{
    (void)state;
    static const char *const orders[] = {"little", "big", NULL, "middle"};
    for (int o = 0; o < 4; o++) {
        build b = {0};
        float number = 1.0f;
        uint32_t bits;
        memcpy(&bits, &number, sizeof bits);
        if (o == 1)
            bits = __builtin_bswap32(bits);
        build_tensor(&b, RS_DTYPE_F32, 0, NULL, &bits);
        const char *path = in_folder(scratch_folder(), "order.pt");
        build_write(&b, path, &(build_options){.byteorder = orders[o]});
        rs_checkpoint *checkpoint;
        rs_status status = open_file(path, &checkpoint);
        assert_int_equal(status, o == 3 ? RS_ERR_MALFORMED : RS_OK);
        if (status != RS_OK)
            continue;
        expect_floats(checkpoint, "", 1, &number);
        rs_checkpoint_close(checkpoint);
    }
    build b = {0};
    build_tensor(&b, RS_DTYPE_F32, 1, (int64_t[]){2}, (float[]){1, 2});
    const char *path = in_folder(scratch_folder(), "key.pt");
    build_write(&b, path, &(build_options){.rename_key = "../../etc/passwd"});
    assert_int_equal(read_everything(path, NULL), RS_ERR_MALFORMED);
    assert_non_null(strstr(rs_error_message(), "outside the archive"));
}

int main(void)
{
    snprintf(folder, sizeof folder, "%s/run", scratch_folder());
    forbid_execution();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_a04),
        cmocka_unit_test(test_a05),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_a16),
        cmocka_unit_test(test_b09),
        cmocka_unit_test(test_c08),
        cmocka_unit_test(test_e01),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_told),
        cmocka_unit_test(test_two_steps),
        cmocka_unit_test(test_j07),
        cmocka_unit_test(test_g07),
        cmocka_unit_test(test_ambiguous),
        cmocka_unit_test(test_universal),
        cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_containers),
        cmocka_unit_test(test_byte_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
