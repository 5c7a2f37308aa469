/* `reshard scale`, `drain`, `cancel`: another number of ranks, or other hosts, for a running job.
 */
#include <stddef.h>

#include "cli/commands.h"
#include "cli/outcome.h"
#include "train/control.h"

typedef struct change_args {
    const char *job, *wanted;
    bool no_wait, json;
} change_args;

/* A request of a running job for another world. */
typedef rs_status request(const char *job, const char *wanted, bool wait,
    rs_control_progress progress, void *context, char **text);

static int ask(const cli_command *command, int argc, char **argv, request *control)
{
    change_args args;
    char *text = NULL;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    outcome how = {args.no_wait, args.json};
    rs_status status = control(args.job, args.wanted, !args.no_wait, outcome_progress, &how, &text);
    return outcome_print(command, &how, status, text);
}

/* ---- scale ---- */

static const cli_option scale_options[] = {
    {CLI_ARGUMENT, "DIR", .target = offsetof(change_args, job), .help = "the job directory"},
    {CLI_ARGUMENT, "RANKS", .target = offsetof(change_args, wanted),
        .help = "+N, -N, or the number of ranks there shall be"},
    {CLI_FLAG, "no-wait", NULL, "return when the job has accepted the request",
        .target = offsetof(change_args, no_wait)},
    {CLI_FLAG, "json", NULL, "print the job's answer as JSON",
        .target = offsetof(change_args, json)},
    {.kind = CLI_END},
};

static int run_scale(const cli_command *command, int argc, char **argv)
{
    return ask(command, argc, argv, rs_control_scale);
}

const cli_command cmd_scale = {
    .name = "scale",
    .summary = "give a running job more ranks, or fewer",
    .text =
        "Gives the job in DIR two more ranks (+2), two fewer (-2), or six (6). A new world of "
        "that\n"
        "many ranks boots and makes its memory ready while the job trains, then takes the state\n"
        "over between two steps; the old ranks end. The layout is the nearest one with so many\n"
        "ranks: tp is kept if it can be, then pp, and dp is what follows. Batches, data and "
        "losses\n"
        "stay as they were. If the change fails the job goes on as it is, and the exit code is 1.",
    .example = "  reshard scale /tmp/job +2\n"
               "  reshard scale /tmp/job 3",
    .options = scale_options,
    .run = run_scale,
};

/* ---- drain ---- */

static const cli_option drain_options[] = {
    {CLI_ARGUMENT, "DIR", .target = offsetof(change_args, job), .help = "the job directory"},
    {CLI_TEXT, "host", "H", "the host, as the job's file of hosts calls it",
        .target = offsetof(change_args, wanted), .required = true},
    {CLI_FLAG, "no-wait", NULL, "return when the job has accepted the request",
        .target = offsetof(change_args, no_wait)},
    {CLI_FLAG, "json", NULL, "print the job's answer as JSON",
        .target = offsetof(change_args, json)},
    {.kind = CLI_END},
};

static int run_drain(const cli_command *command, int argc, char **argv)
{
    return ask(command, argc, argv, rs_control_drain);
}

const cli_command cmd_drain = {
    .name = "drain",
    .summary = "have a running job leave a host",
    .text =
        "Has the job in DIR leave the host H: a new world boots on the slots of its other hosts,\n"
        "under the same layout if they are enough, else the nearest one that fits, and takes over\n"
        "between two steps. Then no process and no memory of the job is left on H, and it may be\n"
        "shut down. If the change fails the job goes on as it is, and the exit code is 1.",
    .example = "  reshard drain /shared/job --host node2",
    .options = drain_options,
    .run = run_drain,
};

/* ---- cancel ---- */

typedef struct cancel_args {
    const char *job;
    bool json;
} cancel_args;

static const cli_option cancel_options[] = {
    {CLI_ARGUMENT, "DIR", .target = offsetof(cancel_args, job), .help = "the job directory"},
    {CLI_FLAG, "json", NULL, "print the job's answer as JSON",
        .target = offsetof(cancel_args, json)},
    {.kind = CLI_END},
};

static int run_cancel(const cli_command *command, int argc, char **argv)
{
    cancel_args args;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    char *text = NULL;
    rs_status status = rs_control_cancel(args.job, &text);
    outcome how = {.json = args.json};
    return outcome_print(command, &how, status, text);
}

const cli_command cmd_cancel = {
    .name = "cancel",
    .summary = "give up the new world that a job is building",
    .text = "Ends the ranks of the world that the job in DIR is building for a switch or a scale.\n"
            "The job trains on as it is, as if nothing had been asked.",
    .example = "  reshard cancel /tmp/job",
    .options = cancel_options,
    .run = run_cancel,
};
