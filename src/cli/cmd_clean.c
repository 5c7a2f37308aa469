/* `reshard clean DIR`: removes what a killed job left in memory. */
#include <stdio.h>

#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/subject.h"
#include "train/control.h"

typedef struct clean_args {
    const char *job;
} clean_args;

static const cli_option options[] = {
    {CLI_ARGUMENT, "DIR", .target = offsetof(clean_args, job), .help = "the job directory"},
    {.kind = CLI_END},
};

static int run(const cli_command *command, int argc, char **argv)
{
    clean_args args;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    rs_train_options o;
    rs_control_lock *lock = NULL;
    fleet hosts = {.count = 0};
    rs_train_options_init(&o);
    /* The options first: a directory that is no job's is not to be made one by claiming it. */
    rs_status status = rs_train_options_load(&o, args.job);
    if (status == RS_OK)
        status = rs_control_claim(args.job, true, &lock);
    bool all = true;
    o.hosts[0] = '\0'; /* those that it was on, whatever the user's file says by now */
    if (status == RS_OK)
        status = fleet_open(&hosts, &o, false);
    if (status == RS_OK)
        all = fleet_sweep(&hosts, true);
    if (status == RS_OK)
        status = launch_sweep(&o, true);
    fleet_close(&hosts);
    rs_control_release(lock);
    rs_train_options_fini(&o);
    if (status != RS_OK)
        return cli_fail(command, status, NULL);
    if (!all)
        return CLI_FAILURE;
    printf("nothing of %s is left in memory\n", args.job);
    return 0;
}

const cli_command cmd_clean = {
    .name = "clean",
    .summary = "remove what a killed job left in memory",
    .text =
        "Removes the training state that a killed job left in shared memory, ending those of its\n"
        "processes that still wait with it. Refuses while the job lives. The job directory and\n"
        "its checkpoints stay. Of a job on several hosts all are cleaned that can be reached, "
        "with\n"
        "the agent that it was started with. To go on from the state instead: reshard train "
        "--resume DIR.",
    .example = "  reshard clean /tmp/job",
    .options = options,
    .run = run,
};
