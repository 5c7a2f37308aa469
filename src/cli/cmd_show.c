/* `reshard show PATH 'TENSOR[0:4,:8]'`: values of a tensor, or of a range of it. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/subject.h"
#include "reshard/checkpoint.h"

typedef struct show_args {
    const char *path, *what, *role, *rules, *format, *dialect, *model;
    cli_list also;
    int64_t limit;
    bool json;
} show_args;

static const cli_option options[] = {
    {CLI_ARGUMENT, "PATH", .target = offsetof(show_args, path),
        .help = "a checkpoint, of any format"},
    {CLI_ARGUMENT, "TENSOR", .target = offsetof(show_args, what),
        .help = "its name, and ranges as in Python: 'norm.weight[:8]', 'w[3,0:4]', 'w[-1]'"},
    {CLI_LIST, "also", "DIR", "a further folder with files of it, as on another node's disk",
        .target = offsetof(show_args, also)},
    {CLI_TEXT, "role", "ROLE", "which state of it", "param", .target = offsetof(show_args, role)},
    {CLI_INT, "limit", "N", "print no more elements than this", "1000",
        .target = offsetof(show_args, limit), .minimum = 1},
    {CLI_TEXT, "dialect", "NAME|FILE", "the names to look under, like hf; unset: PATH's own",
        .target = offsetof(show_args, dialect)},
    {CLI_TEXT, "model", "M",
        "for --dialect: preset, config.json or its folder; unset: as PATH tells",
        .target = offsetof(show_args, model)},
    {CLI_TEXT, "rules", "FILE", "how tensors were cut, where the checkpoint does not say",
        .target = offsetof(show_args, rules)},
    {CLI_TEXT, "format", "NAME", "read it as this format; unset: found by content",
        .target = offsetof(show_args, format)},
    {CLI_FLAG, "json", NULL, "print JSON", .target = offsetof(show_args, json)},
    {.kind = CLI_END},
};

/* ---- what is meant ---- */

/* A number from `*at` on, counted from the end where it is negative; false if there is none. */
static bool read_bound(const char **at, int64_t extent, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(*at, &end, 10);
    if (end == *at || errno != 0)
        return false;
    *at = end;
    *out = value < 0 ? value + extent : value;
    return true;
}

/* One range, up to a comma or the end: "3", "2:5", ":8", "-4:", ":". */
static bool read_range(const char **at, int64_t extent, int64_t *offset, int64_t *count)
{
    int64_t first = 0, last = extent;
    bool begins = read_bound(at, extent, &first);
    if (begins && **at != ':') {
        last = first + 1;
        if (first < 0 || last > extent)
            return false;
    } else if (**at == ':') {
        ++*at;
        read_bound(at, extent, &last);
    } else {
        return false;
    }
    /* Like Python's, ranges beyond the end stop there. */
    first = first < 0 ? 0 : first > extent ? extent : first;
    last = last > extent ? extent : last;
    *offset = first;
    *count = last > first ? last - first : 0;
    return **at == ',' || **at == '\0';
}

/* The entry that `what` names, and the box of it. */
static rs_status find(
    const rs_checkpoint *checkpoint, const show_args *args, size_t *index, rs_box *box)
{
    size_t length = strlen(args->what);
    int64_t found = rs_checkpoint_find(checkpoint, args->what, args->role);
    const char *ranges = NULL;
    char *name = rs_strdup(args->what), *bracket = strrchr(name != NULL ? name : "", '[');
    rs_status status = name != NULL ? RS_OK : rs_error_memory(length);
    if (status == RS_OK && found < 0 && bracket != NULL && name[length - 1] == ']') {
        name[length - 1] = '\0';
        *bracket = '\0';
        ranges = bracket + 1;
        found = rs_checkpoint_find(checkpoint, name, args->role);
    }
    if (status == RS_OK && found < 0)
        status = rs_error_set(RS_ERR_NOT_FOUND,
            "%s: has no %s of \"%s\" (reshard inspect lists what it has)", args->path, args->role,
            name);
    if (status == RS_OK) {
        const rs_checkpoint_entry *entry = rs_checkpoint_entry_at(checkpoint, (size_t)found);
        *index = (size_t)found;
        *box = rs_box_whole(entry->ndim, entry->shape);
        int d = 0;
        for (; ranges != NULL && *ranges != '\0' && d < entry->ndim && status == RS_OK; d++) {
            const char *start = ranges;
            if (!read_range(&ranges, entry->shape[d], &box->offset[d], &box->extent[d]))
                status = rs_error_set(RS_ERR_ARGUMENT,
                    "'%s': dimension %d has %" PRId64
                    " elements; wanted an index or a range like 0:4, found '%s'",
                    args->what, d, entry->shape[d], start);
            else
                ranges += *ranges == ',';
        }
        if (status == RS_OK && ranges != NULL && *ranges != '\0')
            status = rs_error_set(
                RS_ERR_ARGUMENT, "'%s': the tensor has %d dimensions", args->what, entry->ndim);
    }
    free(name);
    return status;
}

/* ---- printing ---- */

typedef struct values {
    const rs_checkpoint_entry *entry;
    rs_box box;
    void *data;
} values;

static void print_shape(const rs_checkpoint_entry *entry)
{
    printf("[");
    for (int d = 0; d < entry->ndim; d++)
        printf("%s%" PRId64, d > 0 ? "," : "", entry->shape[d]);
    printf("]");
}

/* A line for each row; where there are several, it says which. */
static void print_text(const values *v)
{
    char text[RS_CHECKPOINT_ELEMENT], box[256];
    int64_t volume = rs_box_is_empty(&v->box) ? 0 : rs_box_volume(&v->box);
    int64_t row = v->box.ndim > 0 ? v->box.extent[v->box.ndim - 1] : 1;
    printf("%s%s, %s, %s, of ", v->entry->name, rs_box_format(&v->box, box, sizeof box),
        v->entry->role, rs_dtype_name(v->entry->dtype));
    print_shape(v->entry);
    printf("%s%s\n", v->entry->derived_from != NULL ? ", from its " : "",
        v->entry->derived_from != NULL ? v->entry->derived_from : "");
    for (int64_t i = 0; i < volume; i++) {
        if (i % row == 0 && v->box.ndim > 1) {
            int64_t rest = i / row, index[RS_MAX_DIMS];
            for (int d = v->box.ndim - 2; d >= 0; d--) {
                index[d] = v->box.offset[d] + rest % v->box.extent[d];
                rest /= v->box.extent[d];
            }
            printf("[");
            for (int d = 0; d < v->box.ndim - 1; d++)
                printf("%" PRId64 ",", index[d]);
            printf(":] ");
        }
        printf("%s%s", rs_checkpoint_element_text(v->entry->dtype, v->data, i, text),
            (i + 1) % row == 0 ? "\n" : " ");
    }
}

/* Numbers as JSON has them; what JSON has not (nan, inf, complex, bits) as texts. */
static void print_element(const values *v, int64_t i)
{
    char text[RS_CHECKPOINT_ELEMENT];
    rs_checkpoint_element_text(v->entry->dtype, v->data, i, text);
    bool plain = strcmp(text, "true") == 0 || strcmp(text, "false") == 0 ||
                 (strspn(text, "0123456789+-.e") == strlen(text));
    printf(plain ? "%s" : "\"%s\"", text);
}

static void print_nested(const values *v, int dim, int64_t *next)
{
    if (dim == v->box.ndim) {
        print_element(v, (*next)++);
        return;
    }
    printf("[");
    for (int64_t i = 0; i < v->box.extent[dim]; i++) {
        printf("%s", i > 0 ? "," : "");
        print_nested(v, dim + 1, next);
    }
    printf("]");
}

static void print_json(const values *v)
{
    json_t *name = cli_json_text(v->entry->name);
    int64_t next = 0;
    printf("{\"tensor\":");
    if (name == NULL || json_dumpf(name, stdout, JSON_ENCODE_ANY) != 0)
        printf("\"\"");
    json_decref(name);
    printf(",\"role\":\"%s\",\"dtype\":\"%s\",\"shape\":", v->entry->role,
        rs_dtype_name(v->entry->dtype));
    print_shape(v->entry);
    printf(",\"box\":[");
    for (int d = 0; d < v->box.ndim; d++)
        printf("%s[%" PRId64 ",%" PRId64 "]", d > 0 ? "," : "", v->box.offset[d],
            v->box.offset[d] + v->box.extent[d]);
    printf("],\"values\":");
    print_nested(v, 0, &next);
    printf("}\n");
}

/* ---- the command ---- */

static rs_status read_values(const rs_checkpoint *checkpoint, const show_args *args, values *v)
{
    size_t index;
    RS_TRY(find(checkpoint, args, &index, &v->box));
    v->entry = rs_checkpoint_entry_at(checkpoint, index);
    int64_t volume = rs_box_is_empty(&v->box) ? 0 : rs_box_volume(&v->box);
    if (volume > args->limit)
        return rs_error_set(RS_ERR_ARGUMENT,
            "'%s': these are %" PRId64 " elements; name a smaller range, or --limit %" PRId64,
            args->what, volume, volume);
    size_t size = rs_dtype_size(v->entry->dtype);
    v->data = rs_calloc((size_t)volume, size);
    if (v->data == NULL)
        return rs_error_memory((size_t)volume * size);
    return rs_checkpoint_read(checkpoint, index, &v->box, v->data, (size_t)volume * size);
}

static rs_status rename_checkpoint(
    const show_args *args, const rs_checkpoint *checkpoint, rs_checkpoint **renamed)
{
    rs_dialect *dialect = NULL;
    rs_space *space = NULL;
    if (args->dialect == NULL)
        return RS_OK;
    RS_TRY(rs_dialect_load(args->dialect, &dialect));
    rs_status status = cli_names_space(
        args->model, rs_checkpoint_is_canonical(checkpoint) ? NULL : args->path, NULL, &space);
    rs_rename_options how = {.to = dialect, .space = space};
    if (status == RS_OK)
        status = rs_checkpoint_rename(checkpoint, &how, renamed);
    rs_space_destroy(space);
    rs_dialect_destroy(dialect);
    return status;
}

static int run(const cli_command *command, int argc, char **argv)
{
    show_args args;
    values v = {0};
    rs_checkpoint *checkpoint = NULL, *renamed = NULL;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    rs_checkpoint_options how = {.format = args.format,
        .rules = args.rules,
        .also = args.also.items,
        .also_count = args.also.count};
    rs_status status = rs_checkpoint_open(args.path, &how, &checkpoint);
    if (status == RS_OK)
        status = rename_checkpoint(&args, checkpoint, &renamed);
    if (status == RS_OK)
        status = read_values(renamed != NULL ? renamed : checkpoint, &args, &v);
    code = 0;
    if (status == RS_ERR_UNSUPPORTED) /* of the file, not of the command line */
        code = cli_error(command, CLI_FAILURE, "%s", rs_error_message());
    else if (status != RS_OK)
        code = cli_fail(command, status, NULL);
    else if (args.json)
        print_json(&v);
    else
        print_text(&v);
    free(v.data);
    rs_checkpoint_close(renamed);
    rs_checkpoint_close(checkpoint);
    return code;
}

const cli_command cmd_show = {
    .name = "show",
    .summary = "print values of a tensor in a checkpoint",
    .text = "Reads a range of one logical tensor, whole and unsharded as inspect lists it, and\n"
            "prints its numbers, a row a line, in as few digits as tell them apart.",
    .example =
        "  reshard show /tmp/job 'layers.attn.q.weight[0,:4,:8]'\n"
        "  reshard show /tmp/job 'model.norm.weight[-4:]' --dialect hf --role exp_avg --json",
    .options = options,
    .run = run,
};
