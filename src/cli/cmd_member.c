/*
 * The processes that `reshard train` starts through a launcher, members of its job: `reshard
 * worker`, a rank of a world, and `reshard ferry`, one process on each host that carries what
 * changes host when a new world takes over.
 */
#include <mpi.h>
#include <string.h>

#include "base/crash.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/launch.h"
#include "elastic/link.h"
#include "train/ferry.h"
#include "train/member.h"
#include "train/train.h"

typedef struct member_args {
    const char *job, *console, *address;
    int64_t width, world;
} member_args;

static const cli_option options[] = {
    {CLI_TEXT, "job", "DIR", "the job directory", .target = offsetof(member_args, job),
        .required = true},
    {CLI_INT, "world", "N", "its number among the job's worlds and ferries", "1",
        .target = offsetof(member_args, world), .minimum = 1},
    {CLI_TEXT, "link", "ADDRESS", "where the supervisor listens",
        .target = offsetof(member_args, address), .required = true},
    {CLI_CHOICE, "console", "C", "what rank 0 prints", "lines",
        .target = offsetof(member_args, console), .choices = CONSOLE_MODES},
    {CLI_INT, "width", "N", "columns of the terminal", "80",
        .target = offsetof(member_args, width)},
    {.kind = CLI_END},
};

/* The rank as part of its world: what the world is, its supervisor says. */
static int train(rs_train_options *o, const member_args *args, rs_member *member)
{
    const rs_member_world *world = rs_member_world_of(member);
    o->member = member;
    o->ranks = world->ranks;
    o->attach = world->attach;
    if (world->goes_back)
        o->resume = RS_TRAIN_NEWEST;
    memcpy(o->attach_layout, world->attach_layout, sizeof o->attach_layout);
    o->attach_step = world->attach_step;
    memcpy(o->layout, world->layout, sizeof o->layout);
    rs_train_outcome outcome;
    int code = console_train(o, args->console, (int)args->width, &outcome);
    o->member = NULL;
    return code;
}

static int carry(rs_train_options *o, rs_member *member)
{
    return rs_ferry_work(o, member, MPI_COMM_WORLD) == RS_OK ? 0 : CLI_FAILURE;
}

/* What a member does, between MPI_Init and MPI_Finalize; returns the exit code. */
static int join(const cli_command *command, const member_args *args, rs_train_options *o)
{
    char board[RS_TRAIN_PATH];
    rs_member *member = NULL;
    launch_board(o, (int)args->world, board, sizeof board);
    rs_status status =
        rs_member_join(args->job, args->address, (int)args->world, board, MPI_COMM_WORLD, &member);
    if (status != RS_OK)
        return cli_fail(command, status, NULL);
    int code = command == &cmd_ferry ? carry(o, member) : train(o, args, member);
    rs_member_leave(member);
    return code;
}

/* Whoever finds that its supervisor is gone leaves nothing. One that makes nothing then, too, is
 * safe from being ended in the middle by its launcher, because another rank has left. */
static int take_part(const cli_command *command, const member_args *args, rs_train_options *o)
{
    int provided;
    rs_crash_begin(launch_own_rank());
    rs_crash_point("begins");
    launch_join(o, (int)args->world);
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
    int code = join(command, args, o);
    MPI_Finalize();
    if (rs_link_is_deaf(args->address))
        launch_abandon(o, (int)args->world);
    return code;
}

static int run(const cli_command *command, int argc, char **argv)
{
    member_args args;
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
        code = rs_link_is_deaf(args.address) ? cli_error(command, CLI_FAILURE,
                                                   "the supervisor has gone before this rank began")
                                             : take_part(command, &args, &o);
    }
    rs_train_options_fini(&o);
    return code;
}

const cli_command cmd_worker = {
    .name = "worker",
    .summary = "one rank of a job, started by train",
    .text = "One rank of a training job. `reshard train` starts it.",
    .example = "  mpirun -n 4 reshard worker --job /tmp/job --world 1 --link unix:reshard-job",
    .options = options,
    .run = run,
    .hidden = true,
};

const cli_command cmd_ferry = {
    .name = "ferry",
    .summary = "carries between hosts for a new world, started by train",
    .text = "One process of a ferry between hosts. `reshard train` starts it.",
    .example = "  mpirun -n 2 reshard ferry --job /tmp/job --world 3 --link unix:reshard-job",
    .options = options,
    .run = run,
    .hidden = true,
};
