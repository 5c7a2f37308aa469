/* `reshard clean DIR`: removes what a killed job left in memory. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/subject.h"
#include "reshard/arena.h"
#include "train/control.h"

typedef struct clean_args {
    const char *job;
    bool json;
} clean_args;

static const cli_option options[] = {
    {CLI_ARGUMENT, "DIR", .target = offsetof(clean_args, job), .help = "the job directory"},
    {CLI_FLAG, "json", NULL, "print as JSON what was done", .target = offsetof(clean_args, json)},
    {.kind = CLI_END},
};

/* The ranks' memory that the job has on this host. */
static int count_arenas(const rs_train_options *o)
{
    rs_keeper *keeper = NULL;
    rs_arena_place *places = NULL;
    size_t count = 0;
    rs_status status =
        rs_keeper_open(o->id, o->arena_dir[0] != '\0' ? o->arena_dir : NULL, &keeper);
    if (status == RS_OK)
        status = rs_arena_list(keeper, &places, &count);
    free(places);
    rs_keeper_close(keeper);
    return status == RS_OK ? (int)count : 0;
}

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
    bool all = true, kept = status == RS_OK && launch_keeps_state(&o);
    int arenas = status == RS_OK ? count_arenas(&o) : 0;
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
    char message[RS_TRAIN_PATH + 32];
    snprintf(message, sizeof message, "nothing of %s is left in memory", args.job);
    if (args.json)
        return cli_print_json(
            command, json_pack("{s:s,s:s,s:s,s:{s:b,s:i}}", "job", args.job, "state", "done",
                         "message", message, "removed", "state", (int)kept, "arenas", arenas));
    printf("%s\n", message);
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
