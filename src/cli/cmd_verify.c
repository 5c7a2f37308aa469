/* `reshard verify A [B]`: is a checkpoint undamaged; do two hold the same. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "cli/commands.h"
#include "cli/subject.h"
#include "reshard/checkpoint.h"
#include "reshard/convert.h"

typedef struct verify_args {
    const char *path, *other, *roles, *rules, *model, *dialect;
    cli_list also, also_b;
    double rtol, atol;
    bool cast, json;
} verify_args;

static const cli_option options[] = {
    {CLI_ARGUMENT, "A", .target = offsetof(verify_args, path),
        .help = "a checkpoint, of any format"},
    {CLI_ARGUMENT, "B", .target = offsetof(verify_args, other), .optional = true,
        .help = "another one, to compare it with"},
    {CLI_LIST, "also", "DIR", "a further folder with files of A, as on another node's disk",
        .target = offsetof(verify_args, also)},
    {CLI_LIST, "also-b", "DIR", "the same of B", .target = offsetof(verify_args, also_b)},
    {CLI_REAL, "rtol", "R", "let numbers differ by R times the second's", "0",
        .target = offsetof(verify_args, rtol)},
    {CLI_REAL, "atol", "X", "and by X", "0", .target = offsetof(verify_args, atol)},
    {CLI_FLAG, "cast", NULL, "where types differ, round the wider to the other's first",
        .target = offsetof(verify_args, cast)},
    {CLI_TEXT, "roles", "ROLE,..", "compare these roles only, like param; unset: all, and extras",
        .target = offsetof(verify_args, roles)},
    {CLI_TEXT, "rules", "FILE", "how tensors were cut, where a checkpoint does not say",
        .target = offsetof(verify_args, rules)},
    {CLI_TEXT, "model", "M", "for names that differ: preset, config.json or its folder",
        .target = offsetof(verify_args, model)},
    {CLI_TEXT, "dialect", "NAME|FILE", "names that are not the trainer's; unset: found",
        .target = offsetof(verify_args, dialect)},
    {CLI_FLAG, "json", NULL, "print JSON", .target = offsetof(verify_args, json)},
    {.kind = CLI_END},
};

enum { LINES = 20 };

typedef struct telling {
    json_t *list;
    bool json;
    size_t told; /* whether the list has room for it or not */
} telling;

static void tell(void *context, const char *text)
{
    telling *t = context;
    json_array_append_new(t->list, cli_json_text(text));
    if (!t->json && t->told < LINES)
        printf("%s\n", text);
    t->told++;
}

/* 0: nothing speaks against it; else CLI_FAILURE. */
static int verify_one(const verify_args *args, rs_checkpoint *a, telling *t)
{
    size_t before = rs_checkpoint_warning_count(a);
    size_t checksums = rs_checkpoint_checksums(a);
    rs_status status = rs_checkpoint_check(a);
    if (status != RS_OK)
        tell(t, rs_error_message());
    size_t after = rs_checkpoint_warning_count(a);
    for (size_t i = before; i < after; i++)
        tell(t, rs_checkpoint_warning_at(a, i));
    bool good = t->told == 0;
    if (args->json)
        return good ? 0 : CLI_FAILURE;
    if (!good)
        printf("%s: damaged, or contradicts itself: %zu findings\n", args->path, t->told);
    else if (checksums > 0)
        printf(
            "%s: checksums: all %zu are right; every tensor is complete\n", args->path, checksums);
    else
        printf("%s: structure only: every tensor is complete; the format has no checksums\n",
            args->path);
    return good ? 0 : CLI_FAILURE;
}

static int compare_two(const cli_command *command, const verify_args *args, const char *other,
    const rs_checkpoint *a, telling *t, rs_compare_report *report)
{
    rs_checkpoint *b = NULL;
    rs_checkpoint_options open = {
        .rules = args->rules, .also = args->also_b.items, .also_count = args->also_b.count};
    rs_compare_options how = {
        .rtol = args->rtol, .atol = args->atol, .role = args->roles, .cast = args->cast};
    rs_dialect *dialect = NULL;
    rs_space *space = NULL;
    rs_status status = rs_checkpoint_open(other, &open, &b);
    if (status == RS_OK && args->dialect != NULL)
        status = rs_dialect_load(args->dialect, &dialect);
    if (status == RS_OK)
        status = cli_names_space(args->model, NULL, NULL, &space);
    how.dialect = dialect;
    how.space = space;
    if (status == RS_OK)
        status = rs_compare(a, b, &how, tell, t, report);
    rs_space_destroy(space);
    rs_dialect_destroy(dialect);
    rs_checkpoint_close(b);
    if (status != RS_OK) {
        cli_fail(command, status, NULL);
        return CLI_USAGE;
    }
    if (!args->json && report->different > LINES)
        printf("and %" PRId64 " more\n", report->different - LINES);
    if (!args->json)
        printf("%s: %" PRId64 " tensors, %" PRId64 " elements compared\n",
            report->different == 0 ? "equal" : "different", report->tensors, report->elements);
    return report->different == 0 ? 0 : CLI_FAILURE;
}

static int run(const cli_command *command, int argc, char **argv)
{
    verify_args args;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    if (args.other == NULL && args.also_b.count > 0)
        return cli_error(command, CLI_USAGE, "--also-b: wanted only with B");
    const char *second = args.other;
    rs_checkpoint *a = NULL;
    rs_compare_report report = {0};
    telling t = {.list = json_array(), .json = args.json};
    rs_checkpoint_options open = {
        .rules = args.rules, .also = args.also.items, .also_count = args.also.count};
    rs_status status = rs_checkpoint_open(args.path, &open, &a);
    if (status != RS_OK) {
        cli_fail(command, status, NULL);
        json_decref(t.list);
        return second != NULL ? CLI_USAGE : CLI_FAILURE;
    }
    size_t checksums = rs_checkpoint_checksums(a);
    code = second != NULL ? compare_two(command, &args, second, a, &t, &report)
                          : verify_one(&args, a, &t);
    if (args.json && code != CLI_USAGE)
        cli_print_json(
            command, json_pack("{s:o,s:o?,s:s,s:I,s:I,s:O}", "path", cli_json_text(args.path),
                         "with", second != NULL ? cli_json_text(second) : NULL, "proof",
                         second != NULL  ? "compared"
                         : checksums > 0 ? "checksums"
                                         : "structure only",
                         "tensors", (json_int_t)report.tensors, "different",
                         (json_int_t)report.different, "findings", t.list));
    json_decref(t.list);
    rs_checkpoint_close(a);
    return code;
}

const cli_command cmd_verify = {
    .name = "verify",
    .summary = "is a checkpoint undamaged; do two hold the same",
    .text = "With one checkpoint: reads all of it, compares every checksum that the format\n"
            "has, replicas with each other, and weights with their master copies, and says\n"
            "what that could prove. With two: compares all tensors and roles, to the bit\n"
            "unless a tolerance is given, across formats, layouts and names, then what is\n"
            "beside the tensors. Exit code 0: good, or equal; 1: not; 2: could not be\n"
            "compared.",
    .example = "  reshard verify /tmp/job\n"
               "  reshard verify /tmp/job out --roles param",
    .options = options,
    .run = run,
};
