/* `reshard convert SRC DST --to FORMAT`. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/crew.h"
#include "cli/subject.h"
#include "reshard/checkpoint.h"
#include "reshard/convert.h"

typedef struct convert_args {
    const char *source, *target, *to, *format, *rules, *target_rules, *dtype, *layout, *version;
    const char *dialect, *from, *model, *hub, *tied;
    cli_list also;
    int64_t shard, memory;
    bool weights_only, masters, rebuild, force, dry_run, json;
} convert_args;

static const cli_option options[] = {
    {CLI_ARGUMENT, "SRC", .target = offsetof(convert_args, source),
        .help = "a checkpoint, of any format"},
    {CLI_ARGUMENT, "DST", .target = offsetof(convert_args, target), .optional = true,
        .help = "the folder, or with --to torch the file, to write"},
    {CLI_LIST, "also", "DIR", "a further folder with files of SRC, as on another node's disk",
        .target = offsetof(convert_args, also)},
    {CLI_CHOICE, "to", "F", "the format", .target = offsetof(convert_args, to),
        .choices = "native|safetensors|torch|deepspeed-universal"},
    {CLI_FLAG, "weights-only", NULL, "leave out, or do without, the optimizer's state",
        .target = offsetof(convert_args, weights_only)},
    {CLI_TEXT, "dtype", "T|ROLE=T,..", "write params, or a role, in this type; unset: as in SRC",
        .target = offsetof(convert_args, dtype)},
    {CLI_FLAG, "master-from-param", NULL, "make the float32 masters that SRC lacks from its params",
        .target = offsetof(convert_args, masters)},
    {CLI_TEXT, "layout", "L",
        "native: files as the ranks of this layout save them; unset: as one rank. "
        "deepspeed-universal: the tp, pp, dp and zero it is for; unset: as SRC",
        .target = offsetof(convert_args, layout)},
    {CLI_CHOICE, "universal-version", "V", "deepspeed-universal: of the format", "0.2",
        .target = offsetof(convert_args, version), .choices = "0.2|0.4"},
    {CLI_CHOICE, "tied", "HOW",
        "second names of tied tensors. once: not written twice; listed: safetensors: named in the "
        "metadata; duplicate: weights with bytes of their own",
        "once", .target = offsetof(convert_args, tied), .choices = "once|listed|duplicate"},
    {CLI_BYTES, "max-shard-size", "SIZE",
        "safetensors, native without --layout: of a file's tensors, one tensor more; unset: 5GB",
        .target = offsetof(convert_args, shard), .minimum = 1},
    {CLI_BYTES, "memory", "SIZE", "for buffers", "256MiB", .target = offsetof(convert_args, memory),
        .minimum = 1 << 20},
    {CLI_TEXT, "dialect", "NAME|FILE", "the names to write; unset: SRC's, or transformers'",
        .target = offsetof(convert_args, dialect)},
    {CLI_TEXT, "from-dialect", "NAME|FILE", "the names that SRC has; unset: found",
        .target = offsetof(convert_args, from)},
    {CLI_TEXT, "model", "M", "for names: preset, config.json or its folder; unset: as SRC tells",
        .target = offsetof(convert_args, model)},
    {CLI_TEXT, "hf-from", "DIR", "safetensors: copy configuration and tokenizer from DIR",
        .target = offsetof(convert_args, hub)},
    {CLI_TEXT, "rules", "FILE", "how tensors were cut, where SRC does not say",
        .target = offsetof(convert_args, rules)},
    {CLI_TEXT, "target-rules", "FILE",
        "deepspeed-universal: how tensors are to be cut; unset: as --rules says",
        .target = offsetof(convert_args, target_rules)},
    {CLI_TEXT, "format", "NAME", "read SRC as this format; unset: found by content",
        .target = offsetof(convert_args, format)},
    {CLI_FLAG, "rebuild-index", NULL,
        "no DST: write the index of SRC, a Hugging Face folder, anew from its shards",
        .target = offsetof(convert_args, rebuild)},
    {CLI_FLAG, "dry-run", NULL, "say what would be written, write nothing",
        .target = offsetof(convert_args, dry_run)},
    {CLI_FLAG, "force", NULL, "replace what is at DST", .target = offsetof(convert_args, force)},
    {CLI_FLAG, "json", NULL, "print JSON", .target = offsetof(convert_args, json)},
    {.kind = CLI_END},
};

static void show_progress(void *context, int64_t done, int64_t all)
{
    double *shown = context;
    char a[RS_HUMAN], b[RS_HUMAN];
    if (cli_now() - *shown < 0.2 && done < all)
        return;
    *shown = cli_now();
    fprintf(stderr, "\r%s of %s ", rs_human_bytes(done, a), rs_human_bytes(all, b));
    if (done == all)
        fprintf(stderr, "\r%*s\r", 40, "");
}

static void warn(void *context, const char *warning)
{
    json_array_append_new(context, cli_json_text(warning));
}

static void print_report(
    const convert_args *args, const rs_convert_report *r, const json_t *warnings, double seconds)
{
    size_t i;
    json_t *warning;
    char bytes[RS_HUMAN], time[RS_HUMAN];
    printf("%s %s: %" PRId64 " tensors, %s", args->dry_run ? "would write" : "wrote", args->target,
        r->tensors, rs_human_bytes(r->bytes, bytes));
    if (!args->dry_run)
        printf(" in %d file%s, %s", r->files, r->files == 1 ? "" : "s",
            rs_human_seconds(seconds, time));
    printf("\n");
    if (r->skipped > 0)
        printf("%" PRId64 " entries of other roles are left out\n", r->skipped);
    if (r->extras_skipped > 0)
        printf("%" PRId64 " value%s beside the tensors left out (inspect --json has them)\n",
            r->extras_skipped, r->extras_skipped == 1 ? "" : "s");
    if (r->second_names > 0)
        printf("%" PRId64 " second name%s of tied tensors %s\n", r->second_names,
            r->second_names == 1 ? "" : "s",
            strcmp(args->tied, "listed") == 0      ? "listed in the metadata"
            : strcmp(args->tied, "duplicate") == 0 ? "written with bytes of their own"
                                                   : "left out (--tied)");
    if (r->copied > 0)
        printf("%d file%s of configuration and tokenizer %s from %s\n", r->copied,
            r->copied == 1 ? "" : "s", args->dry_run ? "would be copied" : "copied", args->hub);
    json_array_foreach(warnings, i, warning) printf("warning: %s\n", json_string_value(warning));
    if (r->lacks_config || r->lacks_tokenizer)
        printf("for transformers it lacks %s (--hf-from copies what a folder has)\n",
            !r->lacks_tokenizer ? "config.json"
            : !r->lacks_config  ? "the tokenizer's files"
                                : "config.json and the tokenizer's files");
}

/* The names' side of a conversion. */
typedef struct naming {
    rs_dialect *to, *from;
    rs_space *space;
} naming;

static void naming_fini(naming *n)
{
    rs_dialect_destroy(n->to);
    rs_dialect_destroy(n->from);
    rs_space_destroy(n->space);
}

static rs_status naming_init(const convert_args *args, const rs_checkpoint *source, naming *n)
{
    if (args->dialect != NULL)
        RS_TRY(rs_dialect_load(args->dialect, &n->to));
    if (args->from != NULL)
        RS_TRY(rs_dialect_load(args->from, &n->from));
    /* What the checkpoint tells itself needs no model. */
    bool needed = args->dialect != NULL && !rs_checkpoint_is_canonical(source);
    return cli_names_space(
        args->model, needed ? args->hub : NULL, needed ? args->source : NULL, &n->space);
}

static bool is_interrupted(void *context)
{
    (void)context;
    return crew_signal() != 0;
}

/* With the others of the crew, each of which opens the source for itself. */
static rs_status convert(
    const convert_args *args, const crew *c, rs_convert_report *report, json_t *warnings)
{
    double shown = 0;
    rs_checkpoint_options how = {.format = args->format,
        .rules = args->rules,
        .also = args->also.items,
        .also_count = args->also.count,
        .also_proved = rs_group_rank(crew_group(c)) != 0,
        .weights_only = args->weights_only};
    rs_convert_options what = {.to = args->to,
        .shard_bytes = args->shard,
        .memory = args->memory,
        .weights_only = args->weights_only,
        .master_from_param = args->masters,
        .dtype = args->dtype,
        .layout = args->layout,
        .rules = args->target_rules != NULL ? args->target_rules : args->rules,
        .universal_version = args->version,
        .tied = args->tied,
        .warn = warn,
        .warn_context = warnings,
        .hub = args->hub,
        .force = args->force,
        .dry_run = args->dry_run,
        .group = crew_group(c),
        .progress = isatty(STDERR_FILENO) && !cli_quiet ? show_progress : NULL,
        .cancelled = is_interrupted,
        .context = &shown};
    rs_checkpoint *source = NULL;
    naming names = {0};
    rs_status status = rs_checkpoint_open(args->source, &how, &source);
    if (status == RS_OK)
        status = naming_init(args, source, &names);
    status = rs_group_agree(what.group, status);
    what.dialect = names.to;
    what.from = names.from;
    what.space = names.space;
    /* Until here there is nothing to be removed, and nobody would ask. */
    crew_catch_signals();
    if (status == RS_OK)
        status = rs_convert(source, args->target, &what, report);
    naming_fini(&names);
    rs_checkpoint_close(source);
    return status;
}

static int print_json(const cli_command *command, const convert_args *args,
    const rs_convert_report *report, json_t *warnings, double seconds)
{
    return cli_print_json(command,
        json_pack("{s:o,s:s,s:b,s:I,s:I,s:I,s:I,s:I,s:I,s:i,s:O,s:i,s:b,s:b,s:f}", "target",
            cli_json_text(args->target), "format", args->to, "dry_run", args->dry_run, "tensors",
            (json_int_t)report->tensors, "bytes", (json_int_t)report->bytes, "bytes_read",
            (json_int_t)report->bytes_read, "left_out", (json_int_t)report->skipped,
            "extras_left_out", (json_int_t)report->extras_skipped, "second_names",
            (json_int_t)report->second_names, "files", report->files, "warnings", warnings,
            "copied", report->copied, "lacks_config", report->lacks_config, "lacks_tokenizer",
            report->lacks_tokenizer, "seconds", seconds));
}

/* Whether something says what is to be written, beside where. */
static bool shapes_target(const convert_args *args)
{
    return args->to != NULL || args->layout != NULL || args->dtype != NULL || args->weights_only ||
           args->masters || args->shard > 0 || args->dialect != NULL || args->from != NULL ||
           args->model != NULL || args->hub != NULL || args->rules != NULL ||
           args->target_rules != NULL || args->format != NULL ||
           strcmp(args->version, "0.2") != 0 || strcmp(args->tied, "once") != 0;
}

/* What is wanted; -1: all of it is there. */
static int check_wanted(const cli_command *command, const convert_args *args)
{
    if (args->rebuild && (args->target != NULL || args->also.count > 0 || shapes_target(args)))
        return cli_error(command, CLI_USAGE,
            "--rebuild-index: wanted with SRC alone, whose index is written: without DST, --to, "
            "--also and what else says how a DST is written");
    if (args->rebuild)
        return -1;
    if (args->target == NULL)
        return cli_error(command, CLI_USAGE,
            "DST is missing: the folder, or with --to torch the "
            "file, to write");
    if (args->to == NULL)
        return cli_error(command, CLI_USAGE, "--to F is missing: the format");
    bool universal = strcmp(args->to, "deepspeed-universal") == 0;
    if (args->target_rules != NULL && !universal)
        return cli_error(command, CLI_USAGE, "--target-rules is for --to deepspeed-universal");
    if (strcmp(args->version, "0.2") != 0 && !universal)
        return cli_error(command, CLI_USAGE, "--universal-version is for --to deepspeed-universal");
    return -1;
}

static int print_rebuilt(
    const cli_command *command, const convert_args *args, const rs_index_report *r, json_t *faults)
{
    char bytes[RS_HUMAN];
    size_t i;
    json_t *fault;
    if (args->json)
        return cli_print_json(
            command, json_pack("{s:o,s:b,s:b,s:b,s:I,s:I,s:i,s:O}", "source",
                         cli_json_text(args->source), "dry_run", args->dry_run, "right", !r->wanted,
                         "written", r->written, "tensors", (json_int_t)r->tensors, "total_size",
                         (json_int_t)r->total_size, "shards", r->shards, "findings", faults));
    json_array_foreach(faults, i, fault) printf("%s\n", json_string_value(fault));
    printf("%s %s: %" PRId64 " tensors in %d shard%s, %s\n",
        !r->wanted   ? "right as it is: the index of"
        : r->written ? "wrote the index of"
                     : "would write the index of",
        args->source, r->tensors, r->shards, r->shards == 1 ? "" : "s",
        rs_human_bytes(r->total_size, bytes));
    return 0;
}

/* By the first of the crew. */
static int rebuild_index(const cli_command *command, const convert_args *args, const crew *c)
{
    json_t *faults = json_array();
    const rs_index_options how = {
        .force = args->force, .dry_run = args->dry_run, .tell = warn, .context = faults};
    rs_index_report report = {0};
    bool first = rs_group_rank(crew_group(c)) == 0;
    rs_status status = first ? rs_index_rebuild(args->source, &how, &report) : RS_OK;
    status = rs_group_agree(crew_group(c), status);
    int code = status != RS_OK ? cli_fail(command, status, NULL)
               : first         ? print_rebuilt(command, args, &report, faults)
                               : 0;
    json_decref(faults);
    return code;
}

static int run(const cli_command *command, int argc, char **argv)
{
    convert_args args;
    crew c;
    crew_hush();
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code < 0)
        code = check_wanted(command, &args);
    if (code >= 0)
        return code;
    double begun = cli_now();
    json_t *warnings = json_array();
    rs_convert_report report = {0};
    rs_status status = crew_join(&c);
    if (status == RS_OK && args.rebuild) {
        code = rebuild_index(command, &args, &c);
        json_decref(warnings);
        crew_leave(&c);
        return code;
    }
    if (status == RS_OK)
        status = convert(&args, &c, &report, warnings);
    if (status == RS_ERR_CANCELLED)
        code = cli_error(command, 128 + crew_signal(), "interrupted; %s is as it was", args.target);
    else if (status == RS_ERR_UNSUPPORTED)
        code = cli_error(command, CLI_FAILURE, "%s", rs_error_message());
    else if (status != RS_OK)
        code = cli_fail(command, status, NULL);
    else if (args.json)
        code = print_json(command, &args, &report, warnings, cli_now() - begun);
    else
        print_report(&args, &report, warnings, cli_now() - begun);
    json_decref(warnings);
    crew_leave(&c);
    return code > 0 ? code : 0;
}

const cli_command cmd_convert = {
    .name = "convert",
    .summary = "convert a checkpoint to another format",
    .text = "Reads a checkpoint of any format and writes DST: a Hugging Face folder of\n"
            "weights (safetensors, names as transformers has them), a folder with the full\n"
            "state in reshard's own format, one file of torch.save, which torch.load reads\n"
            "under weights_only, or a universal checkpoint of DeepSpeed. Streams: memory\n"
            "does not grow with the checkpoint. DST appears when it is complete, or not at\n"
            "all. Under mpirun or srun the processes share the work; the bytes are the same\n"
            "for any number. Other names, fused and turned as they have it, come by\n"
            "dialects (docs/formats/dialect.md): hf, reshard (the trainer's), or a file of\n"
            "yours.",
    .example = "  reshard convert /tmp/job out --to safetensors",
    .options = options,
    .run = run,
};
