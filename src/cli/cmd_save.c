/* `reshard save DIR`: a running job saves a checkpoint. */
#include <stddef.h>

#include "cli/commands.h"
#include "cli/outcome.h"
#include "train/control.h"

typedef struct save_args {
    const char *job;
    bool no_wait, json;
} save_args;

static const cli_option options[] = {
    {CLI_ARGUMENT, "DIR", .target = offsetof(save_args, job), .help = "the job directory"},
    {CLI_FLAG, "no-wait", NULL, "return when the job has accepted the request",
        .target = offsetof(save_args, no_wait)},
    {CLI_FLAG, "json", NULL, "print the job's answer as JSON", .target = offsetof(save_args, json)},
    {.kind = CLI_END},
};

static int run(const cli_command *command, int argc, char **argv)
{
    save_args args;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    char *text = NULL;
    rs_status status = rs_control_save(args.job, !args.no_wait, NULL, NULL, &text);
    outcome how = {args.no_wait, args.json};
    return outcome_print(command, &how, status, text);
}

const cli_command cmd_save = {
    .name = "save",
    .summary = "save a checkpoint of a running job",
    .text = "Asks the job in DIR to save a checkpoint after its current step, waits until it is\n"
            "complete on disk, and prints where it is. The job trains on meanwhile; it stands\n"
            "still only while its state is copied in memory.",
    .example = "  reshard save /tmp/job",
    .options = options,
    .run = run,
};
