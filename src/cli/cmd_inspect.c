/*
 * `reshard inspect PATH`: what a checkpoint is, who wrote it under which layout, and every logical
 * tensor in it, whole and under its own name, however the files cut it. Reads descriptions only;
 * with --hash all data as well, and then also tells where the files contradict themselves.
 */
#include <fnmatch.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/subject.h"
#include "reshard/checkpoint.h"

typedef struct inspect_args {
    const char *path;
    const char *tensors;
    const char *format;
    const char *rules;
    cli_list also;
    bool hash;
    bool json;
} inspect_args;

static const cli_option options[] = {
    {CLI_ARGUMENT, "PATH", .target = offsetof(inspect_args, path),
        .help = "a checkpoint's root, a tag's folder, an index, or a file"},
    {CLI_LIST, "also", "DIR", "a further folder with files of it, as on another node's disk",
        .target = offsetof(inspect_args, also)},
    {CLI_TEXT, "tensors", "PATTERN", "only tensors whose name matches, like 'layers.*.weight'",
        .target = offsetof(inspect_args, tensors)},
    {CLI_FLAG, "hash", NULL, "read everything: SHA-256 of each tensor, and what contradicts itself",
        .target = offsetof(inspect_args, hash)},
    {CLI_TEXT, "rules", "FILE", "how tensors were cut, where the checkpoint does not say",
        .target = offsetof(inspect_args, rules)},
    {CLI_TEXT, "format", "NAME", "read it as this format; unset: found by content",
        .target = offsetof(inspect_args, format)},
    {CLI_FLAG, "json", NULL, "print JSON", .target = offsetof(inspect_args, json)},
    {CLI_END},
};

/* The entries that are shown, and their sums where they were asked for. */
typedef struct view {
    const rs_checkpoint *checkpoint;
    const char *path;
    size_t *shown;
    size_t count;
    char (*sums)[RS_CHECKPOINT_HASH]; /* NULL: not asked for */
} view;

static const rs_checkpoint_entry *entry_of(const view *v, size_t i)
{
    return rs_checkpoint_entry_at(v->checkpoint, v->shown[i]);
}

static rs_status select_entries(view *v, const inspect_args *args)
{
    size_t count = rs_checkpoint_count(v->checkpoint);
    v->shown = rs_calloc(count, sizeof *v->shown);
    v->sums = args->hash ? rs_calloc(count, sizeof *v->sums) : NULL;
    if (v->shown == NULL || (args->hash && v->sums == NULL))
        return RS_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        const char *name = rs_checkpoint_entry_at(v->checkpoint, i)->name;
        if (args->tensors == NULL || fnmatch(args->tensors, name, 0) == 0)
            v->shown[v->count++] = i;
    }
    return RS_OK;
}

static rs_status hash_entries(const view *v)
{
    bool progress = isatty(STDERR_FILENO);
    rs_status status = RS_OK;
    for (size_t i = 0; i < v->count && status == RS_OK; i++) {
        if (progress)
            fprintf(stderr, "\rreading %zu of %zu", i + 1, v->count);
        status = rs_checkpoint_hash(v->checkpoint, v->shown[i], v->sums[i]);
    }
    if (progress)
        fprintf(stderr, "\r%*s\r", 40, "");
    return status;
}

static void print_quoted(const char *text)
{
    json_t *string = cli_json_text(text);
    if (string == NULL || json_dumpf(string, stdout, JSON_ENCODE_ANY) != 0)
        printf("\"\"");
    json_decref(string);
}

static void print_member(const char *member, const char *text)
{
    printf(",\"%s\":", member);
    print_quoted(text);
}

static void print_json_entry(const view *v, size_t i)
{
    const rs_checkpoint_entry *entry = entry_of(v, i);
    printf("%s\n{\"name\":", i > 0 ? "," : "");
    print_quoted(entry->name);
    print_member("role", entry->role);
    print_member("dtype", rs_dtype_name(entry->dtype));
    printf(",\"shape\":[");
    for (int d = 0; d < entry->ndim; d++)
        printf("%s%" PRId64, d > 0 ? "," : "", entry->shape[d]);
    printf("],\"stored\":%s", entry->stored ? "true" : "false");
    if (entry->derived_from != NULL)
        print_member("derived_from", entry->derived_from);
    if (entry->alias_of != NULL)
        print_member("alias_of", entry->alias_of);
    if (v->sums != NULL)
        print_member("sha256", v->sums[i]);
    printf("}");
}

static void print_json(const view *v, const char *extras)
{
    const char *layout = rs_checkpoint_layout(v->checkpoint);
    printf("{\"format\":");
    print_quoted(rs_checkpoint_format(v->checkpoint));
    printf(",\"layout\":");
    if (layout != NULL)
        print_quoted(layout);
    else
        printf("null");
    printf(",\"tensors\":[");
    for (size_t i = 0; i < v->count; i++)
        print_json_entry(v, i);
    printf("],\n\"extras\":%s,\n\"warnings\":[", extras);
    for (size_t i = 0; i < rs_checkpoint_warning_count(v->checkpoint); i++) {
        printf("%s", i > 0 ? ",\n" : "");
        print_quoted(rs_checkpoint_warning_at(v->checkpoint, i));
    }
    printf("]}\n");
}

/* One line a role: how many tensors, elements, bytes, of which types. */
static void print_roles(const view *v)
{
    bool *done = rs_calloc(v->count, sizeof *done);
    if (done == NULL)
        return;
    printf("\n%-16s %8s %12s  %s\n", "role", "tensors", "bytes", "types");
    for (size_t i = 0; i < v->count; i++) {
        const char *role = entry_of(v, i)->role;
        int64_t bytes = 0;
        size_t count = 0, derived = 0;
        unsigned dtypes = 0;
        for (size_t k = i; k < v->count; k++) {
            const rs_checkpoint_entry *entry = entry_of(v, k);
            if (done[k] || strcmp(entry->role, role) != 0)
                continue;
            done[k] = true;
            count++;
            derived += !entry->stored;
            if (entry->alias_of == NULL)
                bytes += rs_checkpoint_entry_bytes(entry);
            dtypes |= 1u << entry->dtype;
        }
        if (count == 0)
            continue;
        char human[RS_HUMAN];
        printf("%-16s %8zu %12s ", role, count, rs_human_bytes(bytes, human));
        for (int dtype = 0; dtype < RS_DTYPE_COUNT; dtype++)
            if (dtypes & 1u << dtype)
                printf(" %s", rs_dtype_name((rs_dtype)dtype));
        if (derived > 0)
            printf("  (%zu not stored: made from another role)", derived);
        printf("\n");
    }
    free(done);
}

static void print_entries(const view *v)
{
    printf("\n%-44s %-12s %-14s %-20s %12s%s\n", "tensor", "role", "type", "shape", "bytes",
        v->sums != NULL ? "  sha256" : "");
    for (size_t i = 0; i < v->count; i++) {
        const rs_checkpoint_entry *entry = entry_of(v, i);
        char human[RS_HUMAN];
        rs_text shape = {0};
        rs_text_append(&shape, "[");
        for (int d = 0; d < entry->ndim; d++)
            rs_text_append(&shape, "%s%" PRId64, d > 0 ? "," : "", entry->shape[d]);
        rs_text_append(&shape, "]");
        printf("%-44s %-12s %-14s %-20s %12s", entry->name[0] != 0 ? entry->name : "\"\"",
            entry->role, rs_dtype_name(entry->dtype), shape.data != NULL ? shape.data : "",
            rs_human_bytes(rs_checkpoint_entry_bytes(entry), human));
        if (v->sums != NULL)
            printf("  %s", v->sums[i]);
        if (entry->alias_of != NULL)
            printf("  = %s", entry->alias_of);
        if (entry->derived_from != NULL)
            printf("  from %s", entry->derived_from);
        if (entry->copies > 1)
            printf("  in %d copies", entry->copies);
        printf("\n");
        rs_text_fini(&shape);
    }
}

/* The extras that are short enough for a line. */
static void print_extras(const char *extras)
{
    enum { LINE = 100, LINES = 40 };
    json_t *root = json_loads(extras, 0, NULL);
    const char *key;
    json_t *value;
    int lines = 0;
    if (json_object_size(root) > 0)
        printf("\nbeside the tensors\n");
    json_object_foreach(root, key, value)
    {
        char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        if (text != NULL && lines++ < LINES)
            printf("  %-28s %.*s%s\n", key, LINE, text, strlen(text) > LINE ? "..." : "");
        free(text);
    }
    if (lines > LINES)
        printf("  and %d more (--json shows all)\n", lines - LINES);
    json_decref(root);
}

static void print_text(const view *v, const inspect_args *args, const char *extras)
{
    const char *layout = rs_checkpoint_layout(v->checkpoint);
    printf("checkpoint  %s\nformat      %s\n", v->path, rs_checkpoint_format(v->checkpoint));
    if (layout != NULL)
        printf("layout      %s\n", layout);
    print_roles(v);
    print_entries(v);
    print_extras(extras);
    size_t warnings = rs_checkpoint_warning_count(v->checkpoint);
    if (warnings > 0)
        printf("\nodd\n");
    for (size_t i = 0; i < warnings; i++)
        printf("  %s\n", rs_checkpoint_warning_at(v->checkpoint, i));
    if (!args->hash)
        printf("\nonly descriptions were read; --hash reads the data too\n");
}

static int refuse(const cli_command *command, rs_status status)
{
    if (status == RS_ERR_UNSUPPORTED) /* of the file, not of the command line */
        return cli_error(command, CLI_FAILURE, "%s", rs_error_message());
    return cli_fail(command, status, NULL);
}

static int run(const cli_command *command, int argc, char **argv)
{
    inspect_args args;
    rs_checkpoint *checkpoint = NULL;
    view v = {0};
    char *extras = NULL;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    rs_checkpoint_options how = {.format = args.format,
        .rules = args.rules,
        .also = args.also.items,
        .also_count = args.also.count};
    rs_status status = rs_checkpoint_open(args.path, &how, &checkpoint);
    if (status == RS_OK && args.hash && args.tensors == NULL)
        status = rs_checkpoint_check(checkpoint);
    v.checkpoint = checkpoint;
    v.path = args.path;
    if (status == RS_OK)
        status = select_entries(&v, &args);
    if (status == RS_OK && args.hash)
        status = hash_entries(&v);
    if (status == RS_OK)
        status = rs_checkpoint_extras(checkpoint, &extras);
    if (status != RS_OK)
        code = refuse(command, status);
    else if (args.json)
        print_json(&v, extras);
    else
        print_text(&v, &args, extras);
    free(extras);
    free(v.shown);
    free(v.sums);
    rs_checkpoint_close(checkpoint);
    return status == RS_OK ? 0 : code;
}

const cli_command cmd_inspect = {
    .name = "inspect",
    .summary = "say what a checkpoint holds: format, layout, tensors, oddities",
    .text = "Reads checkpoints of DeepSpeed (ZeRO 0 to 3, pipeline, tensor parallel), DeepSpeed's\n"
            "universal ones, PyTorch files and safetensors, and lists every logical tensor:\n"
            "whole, unpadded, under the framework's own name. Nothing in the files is executed.\n"
            "With --hash it reads the data too, and reports replicas that differ, weights that\n"
            "are not their master rounded, and records with a wrong checksum.",
    .example = "  reshard inspect runs/global_step100 --tensors 'layers.0.*'\n"
               "  reshard inspect model.safetensors.index.json --hash --json",
    .options = options,
    .run = run,
};
