/*
 * `reshard ferry`: what `reshard train` starts, one process on each host, to carry what changes
 * host when a new world takes over.
 */
#include <mpi.h>

#include "cli/commands.h"
#include "cli/console.h"
#include "cli/launch.h"
#include "train/ferry.h"
#include "train/member.h"

typedef struct ferry_args {
    const char *job, *console, *address;
    int64_t width, world;
} ferry_args;

static const cli_option options[] = {
    {CLI_TEXT, "job", "DIR", "the job directory", .target = offsetof(ferry_args, job),
        .required = true},
    {CLI_INT, "world", "N", "its number among the job's worlds and ferries", "1",
        .target = offsetof(ferry_args, world), .minimum = 1},
    {CLI_TEXT, "link", "ADDRESS", "where the supervisor listens",
        .target = offsetof(ferry_args, address), .required = true},
    {CLI_CHOICE, "console", "C", "not used: a ferry prints nothing", "lines",
        .target = offsetof(ferry_args, console), .choices = CONSOLE_MODES},
    {CLI_INT, "width", "N", "not used", "80", .target = offsetof(ferry_args, width)},
    {.kind = CLI_END},
};

static int carry(const cli_command *command, const ferry_args *args, const rs_train_options *o)
{
    char board[RS_TRAIN_PATH];
    rs_member *member = NULL;
    launch_board(o, (int)args->world, board, sizeof board);
    rs_status status =
        rs_member_join(args->job, args->address, (int)args->world, board, MPI_COMM_WORLD, &member);
    if (status != RS_OK)
        return cli_fail(command, status, NULL);
    status = rs_ferry_work(o, member, MPI_COMM_WORLD);
    rs_member_leave(member);
    return status == RS_OK ? 0 : CLI_FAILURE;
}

static int run(const cli_command *command, int argc, char **argv)
{
    ferry_args args;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    if (launch_own_rank() < 0)
        return cli_error(command, CLI_USAGE,
            "this is what `reshard train` starts through mpirun or srun; start that");
    rs_train_options o;
    rs_train_options_init(&o);
    rs_status status = rs_train_options_load(&o, args.job);
    if (status != RS_OK) {
        code = cli_fail(command, status, NULL);
    } else {
        launch_join(&o, (int)args.world);
        int provided;
        MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
        code = carry(command, &args, &o);
        MPI_Finalize();
    }
    rs_train_options_fini(&o);
    return code;
}

const cli_command cmd_ferry = {
    .name = "ferry",
    .summary = "carries between hosts for a new world, started by train",
    .text = "One process of a ferry between hosts. `reshard train` starts it.",
    .example = "  mpirun -n 2 reshard ferry --job /tmp/job --world 3 --link unix:reshard-job",
    .options = options,
    .run = run,
    .hidden = true,
};
