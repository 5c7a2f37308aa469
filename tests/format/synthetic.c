#include "synthetic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "build.h"

static const char *const state_names[SYN_STATES] = {
    "exp_avg", "exp_avg_sq", "momentum_buffer", "foo"};

syn_run syn_usual(int tp, int dp, int stage)
{
    return (syn_run){.tp = tp,
        .dp = dp,
        .stage = stage,
        .groups = 1,
        .states = {3, 3, 3, 3},
        .omit = -1,
        .absent = -1,
        .empty_rank = -1,
        .differs = -1,
        .differs_at = 2};
}

syn_param *syn_add(
    syn_run *run, const char *name, syn_cut cut, int group, int ndim, int64_t a, int64_t b)
{
    syn_param *p = &run->params[run->count++];
    *p = (syn_param){.ndim = ndim, .shape = {a, b}, .cut = cut, .group = group};
    snprintf(p->name, sizeof p->name, "%s", name);
    return p;
}

float syn_value(int role, int param, int64_t index)
{
    /* The weight is what the master rounds to: the same number, in fp32. */
    int kind = role == 0 ? 1 : role;
    return (float)(kind * 1048576 + param * 65536 + index);
}

static int64_t volume(int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++)
        n *= shape[d];
    return n;
}

/* Indices along the cut dimension that rank `t` has, in its order. Returns how many. */
static int64_t indices(const syn_run *run, const syn_param *p, int t, int64_t *out)
{
    int64_t n = 0, start = 0;
    if (p->cut == SYN_REPLICATED || p->cut == SYN_AVERAGED || p->ndim == 0) {
        for (int64_t i = 0; i < (p->ndim > 0 ? p->shape[0] : 1); i++)
            out[n++] = i;
        return n;
    }
    if (p->cut == SYN_LISTED) {
        memcpy(out, p->rows + t * p->row_count, sizeof *out * (size_t)p->row_count);
        return p->row_count;
    }
    int dim = p->cut == SYN_COLUMNS ? 1 : 0;
    int parts = p->cut == SYN_TWO ? 2 : p->cut == SYN_PARTED || p->cut == SYN_UNEVEN ? p->parts : 1;
    for (int j = 0; j < parts; j++) {
        int64_t size =
            p->cut == SYN_PARTED || p->cut == SYN_UNEVEN ? p->sizes[j] : p->shape[dim] / parts;
        int64_t begin = 0, width = 0;
        for (int r = 0; r <= t; r++) {
            if (p->cut == SYN_UNEVEN)
                width = p->widths[j][r];
            else if (parts == 1) /* the first ranks have one more */
                width = size / run->tp + (r < size % run->tp);
            else
                width = size / run->tp;
            if (r < t)
                begin += width;
        }
        for (int64_t i = 0; i < width; i++)
            out[n++] = start + begin + i;
        start += size;
    }
    return n;
}

/* The elements of rank `t`, as indices into the whole tensor; sets its local shape. */
static int64_t *local_elements(
    const syn_run *run, const syn_param *p, int t, int64_t *shape, int64_t *count)
{
    static int64_t along[40000];
    int64_t n = indices(run, p, t, along);
    bool cut = p->cut != SYN_REPLICATED && p->cut != SYN_AVERAGED && p->ndim > 0;
    memcpy(shape, p->shape, sizeof p->shape);
    if (cut)
        shape[p->cut == SYN_COLUMNS ? 1 : 0] = n;
    *count = volume(p->ndim, shape);
    int64_t *out = malloc(((size_t)*count + 1) * sizeof *out);
    for (int64_t e = 0; e < *count; e++) {
        if (p->ndim == 0) {
            out[e] = 0;
        } else if (p->ndim == 1) {
            out[e] = cut ? along[e] : e;
        } else {
            int64_t row = e / shape[1], column = e % shape[1];
            if (cut && p->cut == SYN_COLUMNS)
                column = along[column];
            else if (cut)
                row = along[row];
            out[e] = row * p->shape[1] + column;
        }
    }
    return out;
}

/* Values of a role that rank `t` has of a param. */
static float *local_values(
    const syn_run *run, int param, int role, int t, int64_t *shape, int64_t *count)
{
    int64_t *elements = local_elements(run, &run->params[param], t, shape, count);
    float *out = malloc(((size_t)*count + 1) * sizeof *out);
    for (int64_t i = 0; i < *count; i++) {
        out[i] = syn_value(role, param, elements[i]);
        if (run->params[param].cut == SYN_AVERAGED) /* the mean over ranks is the value */
            out[i] += (float)(t - (run->tp - 1) / 2.0);
    }
    if (role == 0 && t == run->differs && param == 1 && *count > run->differs_at)
        out[run->differs_at] += 1.5f;
    if (role == 0 && run->shift_weight && param == 0 && *count > 0)
        out[0] += 2;
    free(elements);
    return out;
}

static void text_list(build *b, const syn_run *run, const char *key, syn_cut cut)
{
    build_text(b, key);
    build_list(b);
    for (int i = 0; i < run->count; i++) {
        char pattern[128] = "^";
        if (run->params[i].cut != cut)
            continue;
        for (const char *c = run->params[i].name; *c != 0; c++)
            snprintf(pattern + strlen(pattern), 8, *c == '.' ? "\\." : "%c", *c);
        snprintf(pattern + strlen(pattern), 8, "$");
        build_text(b, pattern);
    }
    build_list_end(b);
}

static void write_fused(build *b, const syn_run *run)
{
    build_text(b, "parameter_with_sub_params");
    build_list(b);
    for (int i = 0; i < run->count; i++) {
        const syn_param *p = &run->params[i];
        if (p->cut != SYN_PARTED && p->cut != SYN_UNEVEN)
            continue;
        build_dict(b);
        build_text(b, "patterns");
        build_list(b);
        build_text(b, p->name);
        build_list_end(b);
        build_text(b, "shape");
        build_tuple(b);
        build_tuple(b);
        for (int j = 0; j < p->parts; j++)
            build_int(b, p->sizes[j]);
        build_tuple_end(b);
        for (int d = 1; d < p->ndim; d++)
            build_int(b, -1);
        build_tuple_end(b);
        build_text(b, "partition_dim");
        build_int(b, 0);
        build_dict_end(b);
    }
    build_list_end(b);
    build_text(b, "sub_param_shard_widths");
    build_dict(b);
    for (int i = 0; i < run->count; i++) {
        const syn_param *p = &run->params[i];
        if (p->cut != SYN_UNEVEN)
            continue;
        build_text(b, p->name);
        build_list(b);
        for (int j = 0; j < p->parts; j++) {
            build_list(b);
            for (int t = 0; t < run->tp; t++)
                build_int(b, p->widths[j][t]);
            build_list_end(b);
        }
        build_list_end(b);
    }
    build_dict_end(b);
}

static void write_info(build *b, const syn_run *run)
{
    build_text(b, "universal_checkpoint_info");
    build_dict(b);
    build_text(b, "universal_checkpoint_version");
    build_float(b, 0.2);
    text_list(b, run, "tp_replicated_parameter_patterns", SYN_REPLICATED);
    text_list(b, run, "parameter_to_average_patterns", SYN_AVERAGED);
    text_list(b, run, "parameter_with_row_parallelism_patterns", SYN_COLUMNS);
    text_list(b, run, "parameter_with_2_sub_params_cat_dim_0", SYN_TWO);
    write_fused(b, run);
    if (run->vocabulary > 0) {
        build_text(b, "original_vocab_size");
        build_int(b, run->vocabulary);
        build_text(b, "vocabulary_parameter_patterns");
        build_list(b);
        build_text(b, run->params[0].name);
        build_list_end(b);
    }
    build_dict_end(b);
}

static bool is_on(const syn_run *run, int param, int t)
{
    return param != run->absent || t != run->absent_tp;
}

static void write_shapes(build *b, const syn_run *run, int t)
{
    build_text(b, "param_shapes");
    build_list(b);
    for (int g = 0; g < run->groups; g++) {
        build_dict(b);
        for (int i = 0; i < run->count; i++) {
            int64_t shape[3], count;
            if (run->params[i].group != g || i == run->omit || !is_on(run, i, t))
                continue;
            free(local_elements(run, &run->params[i], t, shape, &count));
            build_text(b, run->params[i].name);
            build_size(b, run->params[i].ndim, shape);
        }
        build_dict_end(b);
    }
    build_list_end(b);
}

static void write_args(build *b)
{
    static const struct {
        const char *key;
        int64_t value;
    } rows[] = {{"tensor_model_parallel_size", 4}, {"pipeline_model_parallel_size", 2},
        {"data_parallel_size", 2}, {"world_size", 16}, {"rank", 5}, {"global_batch_size", 24},
        {"micro_batch_size", 1}, {"iteration", 100}};
    build_text(b, "args");
    build_dict(b);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        build_text(b, rows[i].key);
        build_int(b, rows[i].value);
    }
    build_dict_end(b);
    build_text(b, "ds_config");
    build_dict(b);
    build_text(b, "train_batch_size");
    build_int(b, 24);
    build_text(b, "gradient_accumulation_steps");
    build_int(b, 12);
    build_dict_end(b);
}

static void write_model(const syn_run *run, const char *folder, int t, int rank)
{
    build b = {0};
    char path[1024];
    build_dict(&b);
    build_text(&b, "module");
    build_dict(&b);
    for (int i = 0; i < run->count; i++) {
        int64_t shape[3], count, none = 0;
        if (!is_on(run, i, t))
            continue;
        float *values = local_values(run, i, 0, t, shape, &count);
        build_text(&b, run->params[i].name);
        if (run->stage == 3)
            build_tensor(&b, RS_DTYPE_F32, 1, &none, values);
        else
            build_tensor(&b, RS_DTYPE_F32, run->params[i].ndim, shape, values);
        free(values);
    }
    build_dict_end(&b);
    build_text(&b, "buffer_names");
    build_list(&b);
    build_list_end(&b);
    write_shapes(&b, run, t);
    build_text(&b, "shared_params");
    build_dict(&b);
    if (run->alias != NULL) {
        build_text(&b, run->alias);
        build_text(&b, run->params[0].name);
    }
    build_dict_end(&b);
    build_text(&b, "global_steps");
    build_int(&b, run->ahead == 2 && rank == run->dp - 1 ? 9 : 7);
    build_text(&b, "dp_world_size");
    build_int(&b, run->dp);
    build_text(&b, "ds_version");
    build_text(&b, "0.0.synthetic");
    if (!run->no_info)
        write_info(&b, run);
    if (run->args)
        write_args(&b);
    if (run->loaders) {
        build_dict_of(&b, "loader");
        build_text(&b, "rank");
        build_int(&b, rank);
        build_text(&b, "offset_in_shard");
        build_int(&b, 5);
        build_dict_end(&b);
    }
    build_dict_end(&b);
    if (run->stage == 3)
        snprintf(
            path, sizeof path, "%s/zero_pp_rank_%d_mp_rank_%02d_model_states.pt", folder, rank, t);
    else
        snprintf(path, sizeof path, "%s/mp_rank_%02d_model_states.pt", folder, t);
    build_write(&b, path, NULL);
}

/* What rank `rank` has of a group in a role: NaN where it is padding. */
static float *flat_values(
    const syn_run *run, int group, int role, int t, int rank, int64_t *count, int64_t *real)
{
    float *all = malloc(sizeof *all * 4000000);
    int64_t total = 0;
    *real = 0;
    for (int i = 0; i < run->count; i++) {
        int64_t shape[3], n;
        if (run->params[i].group != group || !is_on(run, i, t))
            continue;
        float *values = local_values(run, i, role, t, shape, &n);
        if (run->stage == 3) {
            int64_t part = (n + run->dp - 1) / run->dp;
            for (int64_t k = rank * part; k < (rank + 1) * part; k++)
                all[total++] = k < n ? values[k] : NAN;
        } else {
            memcpy(all + total, values, sizeof *values * (size_t)n);
            total += n;
        }
        free(values);
    }
    if (run->stage == 3) {
        *count = *real = total;
        return all;
    }
    int64_t step = 2 * run->dp, padded = (total + step - 1) / step * step, part = padded / run->dp;
    for (int64_t i = total; i < padded; i++)
        all[i] = NAN;
    memmove(all, all + rank * part, sizeof *all * (size_t)part);
    *count = part;
    *real = total - rank * part < 0 ? 0 : total - rank * part < part ? total - rank * part : part;
    return all;
}

static void write_numbers(build *b, const float *values, int64_t count, bool bf16)
{
    if (!bf16) {
        build_tensor(b, RS_DTYPE_F32, 1, &count, values);
        return;
    }
    uint16_t *half = malloc(sizeof *half * (size_t)(count + 1));
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        half[i] = (uint16_t)(bits >> 16);
    }
    build_tensor(b, RS_DTYPE_BF16, 1, &count, half);
    free(half);
}

static void write_step(build *b, const syn_run *run, int group, int rank)
{
    int64_t integer = 7 + group * run->later, one = 1;
    if (run->ahead == 1 && rank == run->dp - 1)
        integer += 2;
    float step = (float)integer;
    build_text(b, "step");
    if (run->int_step)
        build_int(b, integer);
    else if (run->vector_step)
        build_tensor(b, RS_DTYPE_I64, 1, &one, &integer);
    else
        build_tensor(b, RS_DTYPE_F32, 0, NULL, &step);
}

static void write_state(build *b, const syn_run *run, int t, int rank)
{
    build_text(b, "state");
    build_dict(b);
    for (int g = 0; g < run->groups; g++) {
        if (run->states[g] == 0)
            continue;
        build_int(b, g);
        build_dict(b);
        if (run->states[g] & SYN_EXP_AVG)
            write_step(b, run, g, rank);
        for (int s = 0; s < SYN_STATES; s++) {
            int64_t count, real;
            if ((run->states[g] & 1u << s) == 0)
                continue;
            float *values = flat_values(run, g, 2 + s, t, rank, &count, &real);
            build_text(b, state_names[s]);
            write_numbers(b, values, count, run->bf16_moments && s == 0);
            free(values);
        }
        build_dict_end(b);
    }
    build_dict_end(b);
    build_text(b, "param_groups");
    build_list(b);
    for (int g = 0; g < run->groups; g++) {
        build_dict(b);
        build_text(b, "lr");
        build_float(b, 0.001 * (g + 1));
        if (run->group_step) {
            build_text(b, "step");
            build_int(b, 0);
        }
        build_text(b, "params");
        build_list(b);
        build_int(b, g);
        build_list_end(b);
        build_dict_end(b);
    }
    build_list_end(b);
}

static void write_stage(build *b, const syn_run *run)
{
    static const char by_value[] = "cdeepspeed.runtime.zero.config\nZeroStageEnum\n(";
    static const char by_name[] = "c__builtin__\ngetattr\n("
                                  "cdeepspeed.runtime.zero.config\nZeroStageEnum\n";
    static const char *const names[] = {"disabled", "optimizer_states", "gradients", "weights"};
    if (run->stage_form == 3)
        return;
    build_text(b, "zero_stage");
    if (run->stage_form == 0) {
        build_int(b, run->stage);
    } else if (run->stage_form == 1) {
        build_bytes(b, by_value, sizeof by_value - 1);
        build_int(b, run->stage);
        build_bytes(b, "tR", 2);
    } else {
        build_bytes(b, by_name, sizeof by_name - 1);
        build_text(b, names[run->stage]);
        build_bytes(b, "tR", 2);
    }
}

static void write_optimizer(const syn_run *run, const char *folder, int t, int rank)
{
    build b = {0};
    char path[1024];
    build_dict(&b);
    build_text(&b, "optimizer_state_dict");
    build_dict(&b);
    write_stage(&b, run);
    build_text(&b, "loss_scaler");
    build_int(&b, run->scaler_differs && rank == run->dp - 1 ? 2 : 1);
    build_text(&b, "partition_count");
    build_int(&b, run->dp);
    build_text(&b, run->stage == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups");
    build_list(&b);
    for (int g = 0; g < run->groups; g++) {
        int64_t count, real;
        float *values = flat_values(run, g, 1, t, rank, &count, &real);
        write_numbers(&b, values, rank == run->empty_rank && g == 0 ? 0 : real, false);
        free(values);
    }
    build_list_end(&b);
    build_text(&b, run->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
    build_dict(&b);
    write_state(&b, run, t, rank);
    build_dict_end(&b);
    build_dict_end(&b);
    build_dict_end(&b);
    snprintf(path, sizeof path, "%s/zero_pp_rank_%d_mp_rank_%02d_optim_states.pt", folder, rank, t);
    build_write(&b, path, NULL);
}

void syn_write(const syn_run *run, const char *folder)
{
    int ranks = run->written > 0 ? run->written : run->dp;
    mkdir(folder, 0755);
    for (int t = 0; t < run->tp; t++)
        for (int rank = 0; rank < ranks; rank++) {
            if (run->stage == 3 || rank == 0)
                write_model(run, folder, t, rank);
            write_optimizer(run, folder, t, rank);
        }
}

void syn_remove(const char *folder)
{
    DIR *list = opendir(folder);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;)
        unlinkat(dirfd(list), entry->d_name, 0);
    if (list != NULL)
        closedir(list);
    rmdir(folder);
}

static void compare_role(
    const rs_checkpoint *checkpoint, const syn_run *run, int param, int role, const char *name)
{
    const syn_param *p = &run->params[param];
    int64_t index = rs_checkpoint_find(checkpoint, p->name, name);
    if (index < 0)
        fail_msg("no %s of %s", name, p->name);
    const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)index);
    int64_t shape[3];
    memcpy(shape, p->shape, sizeof shape);
    if (param == 0 && run->vocabulary > 0)
        shape[0] = run->vocabulary;
    assert_int_equal(entry->ndim, p->ndim);
    for (int d = 0; d < p->ndim; d++)
        assert_int_equal(entry->shape[d], shape[d]);
    int64_t count = volume(p->ndim, shape);
    bool half = entry->dtype == RS_DTYPE_BF16;
    size_t bytes = (size_t)count * (half ? 2 : 4);
    unsigned char *read = malloc(bytes + 4);
    rs_box box = rs_box_whole(entry->ndim, entry->shape);
    if (rs_checkpoint_read(checkpoint, (size_t)index, &box, read, bytes) != RS_OK)
        fail_msg("%s", rs_error_message());
    for (int64_t i = 0; i < count; i++) {
        float wanted = syn_value(role, param, i), found;
        uint32_t bits = 0;
        memcpy(half ? (char *)&bits + 2 : (char *)&bits, read + (half ? 2 : 4) * i, half ? 2 : 4);
        memcpy(&found, &bits, sizeof found);
        if (half) {
            memcpy(&bits, &wanted, sizeof bits);
            bits &= 0xffff0000u;
            memcpy(&wanted, &bits, sizeof wanted);
        }
        if (found != wanted)
            fail_msg(
                "%s of %s: element %ld is %g, wanted %g", name, p->name, (long)i, found, wanted);
    }
    free(read);
}

void syn_compare(const syn_run *run, const char *folder)
{
    rs_checkpoint *checkpoint;
    if (rs_checkpoint_open(folder, NULL, &checkpoint) != RS_OK)
        fail_msg("%s", rs_error_message());
    size_t entries = 0;
    for (int i = 0; i < run->count; i++) {
        unsigned states = run->states[run->params[i].group];
        compare_role(checkpoint, run, i, 0, "param");
        compare_role(checkpoint, run, i, 1, "master");
        entries += 2;
        for (int s = 0; s < SYN_STATES; s++)
            if (states & 1u << s) {
                compare_role(checkpoint, run, i, 2 + s, state_names[s]);
                entries++;
            }
    }
    /* Nothing else but the steps of groups, and second names. */
    for (size_t i = 0; i < rs_checkpoint_count(checkpoint); i++) {
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, i);
        entries += strcmp(entry->role, "step") == 0 || entry->alias_of != NULL;
    }
    assert_int_equal(entries, rs_checkpoint_count(checkpoint));
    rs_checkpoint_close(checkpoint);
}
