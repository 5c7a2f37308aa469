/* `reshard switch`, `reshard status`, `reshard stop`: talking to a job through its directory. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/launch.h"
#include "cli/outcome.h"
#include "cli/status_view.h"
#include "cli/subject.h"
#include "train/control.h"

/* ---- switch ---- */

typedef struct switch_args {
    const char *job, *layout;
    bool new_world, no_wait, json;
} switch_args;

static const cli_option switch_options[] = {
    {CLI_ARGUMENT, "DIR", .target = offsetof(switch_args, job), .help = "the job directory"},
    {CLI_ARGUMENT, "LAYOUT", .target = offsetof(switch_args, layout),
        .help = "the layout to switch to"},
    {CLI_FLAG, "new-world", NULL, "by fresh ranks, though it could be done in place",
        .target = offsetof(switch_args, new_world)},
    {CLI_FLAG, "no-wait", NULL, "return when the job has accepted the request",
        .target = offsetof(switch_args, no_wait)},
    {CLI_FLAG, "json", NULL, "print the job's answer as JSON",
        .target = offsetof(switch_args, json)},
    {.kind = CLI_END},
};

static int run_switch(const cli_command *command, int argc, char **argv)
{
    switch_args args;
    rs_layout layout;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0 || (code = subject_layout(command, NULL, args.layout, &layout)) >= 0)
        return code;
    char *text = NULL;
    outcome how = {args.no_wait, args.json};
    rs_status (*ask)(const char *, const char *, bool, rs_control_progress, void *, char **) =
        args.new_world ? rs_control_renew : rs_control_switch;
    rs_status status = ask(args.job, args.layout, !args.no_wait, outcome_progress, &how, &text);
    return outcome_print(command, &how, status, text);
}

const cli_command cmd_switch = {
    .name = "switch",
    .summary = "switch the layout of a running job",
    .text = "Asks the job in DIR to switch to LAYOUT. The job prepares the new layout while it\n"
            "trains, then switches between two steps. Waits for it and prints what it cost. If\n"
            "the switch cannot be done the job goes on in its old layout, and the exit code is 1.\n"
            "A layout with another number of ranks is taken over by new ranks, which boot while\n"
            "the job trains; the old ones end.",
    .example = "  reshard switch /tmp/job pp=2,dp=2,zero=1",
    .options = switch_options,
    .run = run_switch,
};

/* ---- status ---- */

typedef struct status_args {
    const char *job;
    bool watch, json;
} status_args;

static const cli_option status_options[] = {
    {CLI_ARGUMENT, "DIR", .target = offsetof(status_args, job), .help = "the job directory"},
    {CLI_FLAG, "watch", NULL, "show it again every second until the job ends",
        .target = offsetof(status_args, watch)},
    {CLI_FLAG, "json", NULL, "print JSON", .target = offsetof(status_args, json)},
    {.kind = CLI_END},
};

static int show_once(const cli_command *command, const status_args *args, bool *running)
{
    char *text = NULL;
    rs_status status = rs_control_status(args->job, &text);
    if (status != RS_OK)
        return cli_fail(command, status, NULL);
    json_t *root = json_loads(text, 0, NULL);
    free(text);
    status_add_switches(args->job, root);
    status_add_worlds(args->job, root);
    *running = json_is_true(json_object_get(root, "running"));
    if (args->json)
        return cli_print_json(command, root);
    status_view(args->job, root);
    json_decref(root);
    return 0;
}

static int run_status(const cli_command *command, int argc, char **argv)
{
    status_args args;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    bool running = false;
    code = show_once(command, &args, &running);
    while (code == 0 && args.watch && running) {
        fflush(stdout);
        sleep(1);
        if (isatty(STDOUT_FILENO))
            printf("\033[H\033[2J");
        code = show_once(command, &args, &running);
    }
    return code;
}

const cli_command cmd_status = {
    .name = "status",
    .summary = "show what a job is doing",
    .text =
        "Shows the job in DIR: whether it runs, its layout and ranks, step, loss, rate, and the\n"
        "last switches with what they cost.",
    .example = "  reshard status /tmp/job\n"
               "  reshard status /tmp/job --json | jq .step",
    .options = status_options,
    .run = run_status,
};

/* ---- stop ---- */

typedef struct stop_args {
    const char *job;
    bool no_wait, json;
} stop_args;

static const cli_option stop_options[] = {
    {CLI_ARGUMENT, "DIR", .target = offsetof(stop_args, job), .help = "the job directory"},
    {CLI_FLAG, "no-wait", NULL, "do not wait until the job has ended",
        .target = offsetof(stop_args, no_wait)},
    {CLI_FLAG, "json", NULL, "print as JSON what was done", .target = offsetof(stop_args, json)},
    {.kind = CLI_END},
};

/* What was done, and where the job is. */
static int print_stopped(
    const cli_command *command, const char *job, const char *state, const char *message, bool kept)
{
    char *text = NULL;
    json_t *root = json_pack("{s:s,s:s,s:s,s:b,s:b}", "job", job, "state", state, "message",
        message, "running", (int)rs_control_is_claimed(job, NULL), "kept", (int)kept);
    json_t *about = NULL;
    if (rs_control_status(job, &text) == RS_OK)
        about = json_loads(text, 0, NULL);
    free(text);
    json_t *step = json_object_get(about, "step");
    if (root != NULL && step != NULL)
        json_object_set(root, "step", step);
    json_decref(about);
    return cli_print_json(command, root);
}

/* A job whose processes were killed may have left its state in memory. */
static int tell_dead(const cli_command *command, const stop_args *args)
{
    rs_train_options o;
    char message[RS_TRAIN_PATH + 32];
    int code = 0;
    rs_train_options_init(&o);
    snprintf(o.job, sizeof o.job, "%s", args->job);
    bool kept = launch_keeps_state(&o);
    snprintf(message, sizeof message, "no job runs in %s", args->job);
    if (args->json) {
        code = print_stopped(command, args->job, "done", message, kept);
    } else {
        printf("%s\n", message);
        if (kept)
            launch_tell_kept(&o, stdout);
    }
    rs_train_options_fini(&o);
    return code;
}

static int run_stop(const cli_command *command, int argc, char **argv)
{
    stop_args args;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    rs_status status = rs_control_stop(args.job, !args.no_wait);
    if (status == RS_ERR_STALLED)
        return tell_dead(command, &args);
    if (status != RS_OK)
        return cli_fail(command, status, NULL);
    const char *message = args.no_wait ? "the job stops after this step" : "the job has stopped";
    if (args.json)
        return print_stopped(command, args.job, args.no_wait ? "accepted" : "done", message, false);
    printf("%s\n", message);
    return 0;
}

const cli_command cmd_stop = {
    .name = "stop",
    .summary = "stop a job after its current step",
    .text = "Asks the job in DIR to stop after its current step, and waits until it has ended.\n"
            "Where no job runs any more, says whether a killed one left its state in memory.",
    .example = "  reshard stop /tmp/job",
    .options = stop_options,
    .run = run_stop,
};
