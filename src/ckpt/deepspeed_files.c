/*
 * The files of a DeepSpeed tag.
 *
 * Names carry the ranks: "pp_rank" is the data-parallel one, "mp_rank" counts tensor-parallel ranks
 * within pipeline stages, "model_TT" is the tensor-parallel one. Numbers are read as numbers: files
 * sort by them, and not by their text, in which rank 10 comes before rank 2.
 *
 * Specification: docs/formats/deepspeed.md.
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "base/text.h"
#include "ckpt/deepspeed.h"
#include "ckpt/torch_read.h"

/* Reads "%d" and text in `pattern` off a name; true if all of it fits. Unlike scanf it takes digits
 * only, and at most nine. */
static bool fits(const char *name, const char *pattern, int *numbers)
{
    while (*pattern != 0) {
        if (strncmp(pattern, "%d", 2) != 0) {
            if (*name++ != *pattern++)
                return false;
            continue;
        }
        int digits = 0, number = 0;
        for (; isdigit((unsigned char)*name) && digits < 9; digits++)
            number = 10 * number + (*name++ - '0');
        if (digits == 0)
            return false;
        *numbers++ = number;
        pattern += 2;
    }
    return *name == 0;
}

static bool classify(const char *name, rs_ds_file *file)
{
    static const char *const optimizers[] = {
        "zero_pp_rank_%d_mp_rank_%d_optim_states.pt", "zero_pp_rank_%d_mp_rank_%doptim_states.pt"};
    int n[3];
    *file = (rs_ds_file){.name = name, .dp = -1, .layer = -1, .expert = -1};
    if (fits(name, "mp_rank_%d_model_states.pt", n)) {
        file->kind = RS_DS_MODEL;
        file->mp = n[0];
        return true;
    }
    if (fits(name, "zero_pp_rank_%d_mp_rank_%d_model_states.pt", n)) {
        file->kind = RS_DS_MODEL_OF_RANK;
        file->dp = n[0];
        file->mp = n[1];
        return true;
    }
    const char *rest = name;
    file->bf16 = strncmp(name, "bf16_", 5) == 0;
    if (file->bf16 || strncmp(name, "fp16_", 5) == 0)
        rest += 5;
    if (fits(rest, optimizers[0], n) || fits(rest, optimizers[1], n)) {
        file->kind = RS_DS_OPTIMIZER;
        file->dp = n[0];
        file->mp = n[1];
        return true;
    }
    if (fits(name, "layer_%d-model_%d-model_states.pt", n)) {
        file->kind = RS_DS_LAYER;
        file->layer = n[0];
        file->mp = n[1];
        return true;
    }
    if (fits(name, "layer_%d-model_states.pt", n)) {
        file->kind = RS_DS_LAYER;
        file->layer = n[0];
        return true;
    }
    if (fits(name, "layer_%d_expert_%d_mp_rank_%d_model_states.pt", n)) {
        file->kind = RS_DS_EXPERT;
        file->layer = n[0];
        file->expert = n[1];
        file->mp = n[2];
        return true;
    }
    if (fits(name, "expp_rank_%d_mp_rank_%d_optim_states.pt", n)) {
        file->kind = RS_DS_EXPERT_OPTIMIZER;
        file->dp = n[0];
        file->mp = n[1];
        return true;
    }
    return false;
}

static int by_number(const void *a, const void *b)
{
    const rs_ds_file *x = a, *y = b;
    const int p[] = {(int)x->kind, x->mp, x->layer, x->expert, x->dp};
    const int q[] = {(int)y->kind, y->mp, y->layer, y->expert, y->dp};
    for (int i = 0; i < 5; i++)
        if (p[i] != q[i])
            return rs_compare(p[i], q[i]);
    return 0;
}

rs_status rs_ds_scan(rs_ds_reader *reader)
{
    rs_text others = {0};
    size_t other_count = 0;
    rs_status status = RS_OK;
    for (size_t i = 0; i < reader->place->count && status == RS_OK; i++) {
        rs_ds_file file;
        const char *name = reader->place->names[i];
        if (strcmp(name, "offloaded_tensors") == 0) {
            status = rs_error_set(RS_ERR_UNSUPPORTED,
                "%s: part of its state was offloaded to NVMe; those files cannot be read",
                reader->place->title);
        } else if (classify(name, &file)) {
            status = RS_LIST_RESERVE_ONE(&reader->files);
            if (status == RS_OK)
                reader->files.items[reader->files.count++] = file;
        } else if (name[0] != '.' && strcmp(name, "zero_to_fp32.py") != 0 &&
                   !(reader->universal &&
                       (strcmp(name, "zero") == 0 || strcmp(name, "tmp") == 0)) &&
                   ++other_count <= 8) {
            rs_text_append(&others, "%s%s", other_count > 1 ? ", " : "", name);
        }
    }
    if (status == RS_OK && other_count > 0 && others.status == RS_OK)
        status = rs_catalog_warn(reader->catalog, "%s: files that are not DeepSpeed's: %s%s",
            reader->place->title, others.data, other_count > 8 ? ", ..." : "");
    rs_text_fini(&others);
    RS_TRY(status);
    if (reader->files.count > 0)
        qsort(reader->files.items, reader->files.count, sizeof *reader->files.items, by_number);
    for (size_t i = 1; i < reader->files.count; i++)
        if (by_number(&reader->files.items[i - 1], &reader->files.items[i]) == 0)
            return rs_error_set(RS_ERR_MALFORMED, "%s: \"%s\" and \"%s\" are of the same rank",
                reader->place->title, reader->files.items[i - 1].name, reader->files.items[i].name);
    return RS_OK;
}

const rs_ds_file *rs_ds_files(const rs_ds_reader *reader, rs_ds_kind kind, size_t *count)
{
    const rs_ds_file *first = NULL;
    *count = 0;
    for (size_t i = 0; i < reader->files.count; i++) {
        if (reader->files.items[i].kind != kind)
            continue;
        if (first == NULL)
            first = &reader->files.items[i];
        ++*count;
    }
    return first;
}

const rs_ds_file *rs_ds_find(const rs_ds_reader *reader, rs_ds_kind kind, int dp, int mp)
{
    rs_ds_file key = {.kind = kind, .dp = dp, .mp = mp, .layer = -1, .expert = -1};
    return reader->files.count == 0 ? NULL
                                    : bsearch(&key, reader->files.items, reader->files.count,
                                          sizeof *reader->files.items, by_number);
}

rs_status rs_ds_open(rs_ds_reader *reader, const rs_ds_file *file, rs_torch *torch)
{
    char *path;
    int id;
    *torch = (rs_torch){0};
    RS_TRY(rs_place_path(reader->place, file->name, &path));
    rs_status status = rs_files_add(reader->catalog->files, path, &id);
    free(path);
    RS_TRY(status);
    RS_TRY(rs_torch_open(reader->catalog->files, id, torch));
    RS_TRY(rs_torch_checksums(reader->catalog, torch));
    if (!rs_value_is(rs_torch_root(torch), RS_VALUE_DICT))
        return rs_ds_malformed(torch, "its object is no dict");
    if (file->dp > 0)
        torch->pickle.unknown_count = 0; /* said once, for the first rank */
    return rs_torch_warn(reader->catalog, torch);
}

rs_status rs_ds_malformed(const rs_torch *torch, const char *format, ...)
{
    char reason[512];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return rs_error_set(
        RS_ERR_MALFORMED, "%s: %s", rs_files_path(torch->files, torch->file), reason);
}
