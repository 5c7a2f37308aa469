/*
 * `reshard train`.
 *
 * Everything that can be wrong is found before a rank is started: model, layouts, data, sizes, room
 * in shared memory, whether the job directory is free. Started by mpirun or srun itself, the
 * command is a rank at once and the job one fixed world.
 */
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/launch.h"
#include "cli/resume.h"
#include "cli/room.h"
#include "reshard/checkpoint.h"
#include "train/control.h"
#include "train/member.h"
#include "train/train.h"

typedef struct train_args {
    const char *model, *data, *layout, *job, *dtype, *optimizer, *freeze, *recompute, *transport,
        *launcher, *arena_dir, *hosts, *rsh_agent, *address;
    double heartbeat, world_limit;
    int64_t restarts, lose_slot;
    cli_list fallback;
    int64_t steps, ranks, global_batch, micro_batch, seq, warmup, seed, ranks_per_node, threads,
        redundancy;
    double lr, grace, dropout;
    cli_list switches, overrides, also;
    const char *resume, *init, *dialect, *save_on_exit;
    int64_t save_every, keep;
    double save_minutes, orphan_minutes;
    bool tight, json;
} train_args;

#define AT(member) offsetof(train_args, member)

static const cli_option train_options[] = {
    {CLI_HEADING, .name = "What to train"},
    {CLI_TEXT, "model", "M", "preset name, config.json, or a folder that holds one",
        .target = AT(model)},
    {CLI_TEXT, "data", "FILE", "any file; its bytes are the text (vocabulary 256)",
        .target = AT(data)},
    {CLI_INT, "steps", "N", "steps to train", .target = AT(steps), .minimum = 1},
    {CLI_INT, "global-batch", "B", "sequences of a step, whatever the layout", "8",
        .target = AT(global_batch), .alias = "global-batch-size", .minimum = 1},
    {CLI_INT, "micro-batch", "b", "sequences of one forward pass", "2", .target = AT(micro_batch),
        .alias = "micro-batch-size", .minimum = 1},
    {CLI_INT, "seq", "T", "tokens of a sequence", "256", .target = AT(seq), .minimum = 1},
    {CLI_CHOICE, "dtype", "D", "type of the parameters (bf16 keeps an fp32 master copy)", "fp32",
        .target = AT(dtype), .choices = "bf16|fp32"},
    {CLI_CHOICE, "optimizer", "O", "adamw; sgd: with momentum; muon: for matrices, AdamW beside it",
        "adamw", .target = AT(optimizer), .choices = "adamw|sgd|muon"},
    {CLI_TEXT, "freeze", "PATTERNS",
        "tensors that keep their values, as patterns of names: embed.weight,layers.attn.*",
        .target = AT(freeze)},
    {CLI_REAL, "dropout", "RATE", "of what a layer's halves add to the stream", "0",
        .target = AT(dropout)},
    {CLI_CHOICE, "recompute", "WHAT",
        "compute again in the backward pass, instead of keeping: selective: attention's output; "
        "full: all of a layer but its input",
        "none", .target = AT(recompute), .choices = "none|selective|full"},
    {CLI_REAL, "lr", "RATE", "peak learning rate", "3e-4", .target = AT(lr)},
    {CLI_INT, "warmup", "N", "steps until the peak rate", "10", .target = AT(warmup)},
    {CLI_INT, "seed", "S", "makes the initial weights", "0", .target = AT(seed)},

    {CLI_HEADING, .name = "How it is divided"},
    {CLI_TEXT, "layout", "L", "layout to begin with, for example tp=2,pp=2,dp=2,zero=1",
        .target = AT(layout)},
    {CLI_LIST, "switch", "STEP:LAYOUT", "switch to LAYOUT after step STEP, while training",
        .target = AT(switches)},
    {CLI_INT, "ranks", "N", "ranks to start; default: what the largest layout named needs",
        .target = AT(ranks), .minimum = 1},
    {CLI_INT, "ranks-per-node", "N", "treat every N ranks as a node of their own; 0: real hosts",
        "0", .target = AT(ranks_per_node), .alias = "nproc-per-node"},
    {CLI_CHOICE, "transport", "T",
        "how bytes travel: auto: mapped memory inside a node, MPI between nodes", "auto",
        .target = AT(transport), .choices = "auto|arena|mpi"},
    {CLI_FLAG, "tight", NULL,
        "free the old state while the new one fills: less memory, no way back during a switch",
        .target = AT(tight)},

    {CLI_HEADING, .name = "What is kept"},
    {CLI_INT, "save-every", "N", "save a checkpoint after every N steps; 0: never", "0",
        .target = AT(save_every)},
    {CLI_REAL, "save-every-minutes", "M", "and whenever M minutes have passed; 0: never", "0",
        .target = AT(save_minutes)},
    {CLI_CHOICE, "save-on-exit", "on|off", "and when the job ends or is told to end", "on",
        .target = AT(save_on_exit), .choices = "on|off"},
    {CLI_INT, "keep", "N", "keep the newest N checkpoints; 0: all", "0", .target = AT(keep)},
    {CLI_TEXT, "resume", "DIR[@STEP]",
        "go on with job DIR, from its state in memory or a checkpoint; model and so on are its own",
        .target = AT(resume)},
    {CLI_LIST, "override", "KEY",
        "with --resume: let a differing --KEY hold (data, lr, warmup, steps, seed)",
        .target = AT(overrides)},
    {CLI_TEXT, "init", "PATH", "begin with the weights of this checkpoint, of any format",
        .target = AT(init)},
    {CLI_LIST, "also", "DIR", "with --init: a further folder with files of it", .target = AT(also)},
    {CLI_TEXT, "dialect", "NAME|FILE", "with --init: the names that it has; unset: found",
        .target = AT(dialect)},

    {CLI_INT, "redundancy", "N",
        "1: mirror what ZeRO gave to one node alone in another node's memory, so that a node may "
        "be lost (nodes are hosts, or every --ranks-per-node ranks)",
        "0", .target = AT(redundancy)},

    {CLI_HEADING, .name = "How it runs"},
    {CLI_TEXT, "job", "DIR", "the job directory: metrics, status, requests", .target = AT(job)},
    {CLI_CHOICE, "launcher", "W", "what starts the ranks", "auto", .target = AT(launcher),
        .choices = "auto|mpirun|srun"},
    {CLI_TEXT, "hosts", "FILE",
        "start ranks on these hosts: a line each, NAME slots=N; all share the job directory",
        .target = AT(hosts)},
    {CLI_TEXT, "rsh-agent", "CMD", "what runs a command on a host: CMD HOST COMMAND; default: ssh",
        .target = AT(rsh_agent)},
    {CLI_TEXT, "address", "NAME",
        "how the other hosts reach this one; default: its name in FILE, else its host name",
        .target = AT(address)},
    {CLI_INT, "threads", "N", "threads of a rank", "1", .target = AT(threads), .minimum = 1},
    {CLI_TEXT, "arena-dir", "DIR", "where the training state lies", "/dev/shm",
        .target = AT(arena_dir)},
    {CLI_REAL, "orphan-timeout", "M",
        "minutes that ranks keep the state in memory after this process was killed", "10",
        .target = AT(orphan_minutes)},
    {CLI_REAL, "grace", "S", "seconds for the last step after Ctrl-C or SIGTERM", "20",
        .target = AT(grace)},
    {CLI_REAL, "heartbeat-timeout", "S", "a rank without a sign of life for S seconds is dead",
        "30", .target = AT(heartbeat)},
    {CLI_INT, "max-restarts", "N",
        "end the job after N restarts without a hundred good steps between; 0: at the first death",
        "10", .target = AT(restarts)},
    {CLI_LIST, "fallback", "LAYOUT", "go on with this where ranks were lost for good; best first",
        .target = AT(fallback)},
    {CLI_INT, "lose-slot", "RANK", "for tests: where this rank dies its place is lost", "-1",
        .target = AT(lose_slot), .minimum = -1, .hidden = true},
    {CLI_REAL, "world-timeout", "S", "a new world that does not train after S seconds is given up",
        "120", .target = AT(world_limit)},
    {CLI_FLAG, "json", NULL, "print one JSON object a line", .target = AT(json)},
    {.kind = CLI_END},
};

/* Copies an argument, if it was given, into one of the options' fixed texts. */
static rs_status take_text(char *to, size_t size, const char *from, const char *option)
{
    if (from == NULL)
        return RS_OK;
    int n = snprintf(to, size, "%s", from);
    if (n < 0 || (size_t)n >= size)
        return rs_error_set(
            RS_ERR_ARGUMENT, "--%s: wanted at most %zu characters, found %d", option, size - 1, n);
    return RS_OK;
}

/* The folders of --also, a line each. */
static rs_status take_also(rs_train_options *o, const cli_list *list)
{
    size_t used = 0;
    for (int i = 0; i < list->count; i++) {
        size_t length = strlen(list->items[i]);
        if (strchr(list->items[i], '\n') != NULL || used + length + 2 > sizeof o->init_also)
            return rs_error_set(RS_ERR_ARGUMENT,
                "--also: wanted paths of one line, %zu bytes in all", sizeof o->init_also - 2);
        used += (size_t)snprintf(
            o->init_also + used, sizeof o->init_also - used, "%s\n", list->items[i]);
    }
    return RS_OK;
}

static rs_status fill_options(const train_args *a, rs_train_options *o)
{
    RS_TRY(take_text(o->model, sizeof o->model, a->model, "model"));
    RS_TRY(take_text(o->data, sizeof o->data, a->data, "data"));
    RS_TRY(take_text(o->job, sizeof o->job, a->job, "job"));
    RS_TRY(take_text(o->optimizer, sizeof o->optimizer, a->optimizer, "optimizer"));
    RS_TRY(take_text(o->freeze, sizeof o->freeze, a->freeze, "freeze"));
    RS_TRY(take_text(o->layout, sizeof o->layout, a->layout, "layout"));
    if (strcmp(a->arena_dir, "/dev/shm") != 0)
        RS_TRY(take_text(o->arena_dir, sizeof o->arena_dir, a->arena_dir, "arena-dir"));
    RS_TRY(take_text(o->hosts, sizeof o->hosts, a->hosts, "hosts"));
    RS_TRY(take_text(o->rsh_agent, sizeof o->rsh_agent, a->rsh_agent, "rsh-agent"));
    RS_TRY(take_text(o->address, sizeof o->address, a->address, "address"));
    const struct {
        const char *name;
        int64_t value;
        int *to;
    } small[] = {{"ranks", a->ranks, &o->ranks},
        {"ranks-per-node", a->ranks_per_node, &o->ranks_per_node},
        {"redundancy", a->redundancy, &o->redundancy}, {"threads", a->threads, &o->threads}};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        if (small[i].value > 1 << 20)
            return rs_error_set(RS_ERR_ARGUMENT, "--%s: wanted at most %d, found %" PRId64,
                small[i].name, 1 << 20, small[i].value);
        *small[i].to = (int)small[i].value;
    }
    for (int i = 0; i < a->switches.count; i++)
        RS_TRY(rs_train_options_add_switch(o, a->switches.items[i]));
    RS_TRY(rs_train_transport_parse(a->transport, &o->transport));
    RS_TRY(rs_train_recompute_parse(a->recompute, &o->recompute));
    o->dropout = a->dropout;
    o->steps = a->steps;
    o->global_batch = a->global_batch;
    o->micro_batch = a->micro_batch < a->global_batch ? a->micro_batch : a->global_batch;
    o->seq = a->seq;
    o->dtype = rs_dtype_parse(a->dtype);
    o->lr = a->lr;
    o->warmup = a->warmup;
    o->seed = (uint64_t)a->seed;
    o->tight = a->tight;
    o->save_every = a->save_every;
    o->save_minutes = a->save_minutes;
    o->save_on_exit = strcmp(a->save_on_exit, "on") == 0;
    o->keep = a->keep;
    o->orphan_minutes = a->orphan_minutes;
    RS_TRY(take_also(o, &a->also));
    RS_TRY(take_text(o->init_dialect, sizeof o->init_dialect, a->dialect, "dialect"));
    return take_text(o->init, sizeof o->init, a->init, "init");
}

/* What a job begins with; one that goes on has it from its checkpoint. */
static int check_required(const cli_command *command, const train_args *a)
{
    const struct {
        const char *name;
        bool given;
    } rows[] = {{"model", a->model != NULL}, {"data", a->data != NULL}, {"steps", a->steps > 0},
        {"layout", a->layout != NULL}, {"job", a->job != NULL}};
    if (a->resume != NULL && a->init != NULL)
        return cli_error(command, CLI_USAGE,
            "--init: wanted without --resume: a job that goes on has its weights");
    if (a->init == NULL && a->dialect != NULL)
        return cli_error(command, CLI_USAGE, "--dialect: wanted only with --init");
    if (a->init == NULL && a->also.count > 0)
        return cli_error(command, CLI_USAGE,
            "--also: wanted only with --init: a job's own checkpoints are in its directory, all of "
            "them");
    if (a->resume == NULL && a->overrides.count > 0)
        return cli_error(command, CLI_USAGE, "--override: wanted only with --resume");
    for (size_t i = 0; a->resume == NULL && i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].given)
            continue;
        for (const cli_option *o = train_options; o->kind != CLI_END; o++)
            if (o->kind != CLI_HEADING && strcmp(o->name, rows[i].name) == 0)
                return cli_error(
                    command, CLI_USAGE, "--%s %s is missing: %s", o->name, o->metavar, o->help);
    }
    return -1;
}

#define LEAST_PATIENCE 2 /* seconds: ranks and hosts are heard of once in one */
#define LEAST_PATIENCE_HOSTS 3

/* A time-out within which nobody has to be heard of would find everybody dead. */
static rs_status check_heartbeat(double patience, bool hosts)
{
    int least = hosts ? LEAST_PATIENCE_HOSTS : LEAST_PATIENCE;
    if (patience >= least)
        return RS_OK;
    if (!hosts)
        return rs_error_set(RS_ERR_ARGUMENT,
            "--heartbeat-timeout: wanted at least %d, found %g: signs of life come once a second",
            least, patience);
    return rs_error_set(RS_ERR_ARGUMENT,
        "--heartbeat-timeout: wanted at least %d over several hosts, found %g: signs of life come "
        "once a second, and rank 0 ends its world when none was answered for %g of the time",
        least, patience, LEASE_SHARE);
}

/* How the hosts of a job that goes on are reached, as it said when it began. */
static rs_status take_agent(rs_train_options *o)
{
    rs_train_options former;
    rs_train_options_init(&former);
    rs_status status = rs_train_options_load(&former, o->job);
    if (status == RS_OK && o->rsh_agent[0] == '\0')
        memcpy(o->rsh_agent, former.rsh_agent, sizeof o->rsh_agent);
    if (status == RS_OK && o->address[0] == '\0')
        memcpy(o->address, former.address, sizeof o->address);
    rs_train_options_fini(&former);
    return status == RS_ERR_NOT_FOUND ? RS_OK : status;
}

/* Whether what --init names can be read: before there is a directory, and ranks. */
static rs_status check_init(const train_args *args)
{
    const rs_checkpoint_options how = {
        .also = args->also.items, .also_count = args->also.count, .also_proved = true};
    rs_checkpoint *weights = NULL;
    if (args->init == NULL)
        return RS_OK;
    rs_status status = rs_checkpoint_open(args->init, &how, &weights);
    rs_checkpoint_close(weights);
    return status;
}

/* The supervisor: claims the directory, starts the ranks, stays until they are gone. */
static int supervise(const cli_command *command, const train_args *args, rs_train_options *o)
{
    rs_control_lock *lock = NULL;
    fleet hosts = {.count = 0};
    o->supervised = true;
    launch_hold_signals();
    rs_status status = check_heartbeat(args->heartbeat, o->hosts[0] != '\0');
    if (status == RS_OK)
        status = check_init(args);
    if (status == RS_OK && o->resume == 0)
        status = room_check(o);
    if (status == RS_OK)
        status = rs_control_claim(o->job, o->resume != 0, &lock);
    if (status == RS_OK && o->resume != 0)
        status = take_agent(o);
    if (status == RS_OK && o->resume != 0)
        status = fleet_open(&hosts, o, false);
    if (status == RS_OK && hosts.count > 0) /* those that it was on count too */
        status = check_heartbeat(args->heartbeat, true);
    if (status == RS_OK && o->resume != 0)
        status = resume_choose(o, &hosts);
    /* Where the state is there already, the ranks look what more is needed. */
    if (status == RS_OK && o->resume != 0 && o->attach < 0)
        status = room_check(o);
    if (status == RS_OK)
        status = rs_train_options_save(o);
    if (status == RS_OK && o->resume == 0)
        status = fleet_open(&hosts, o, true);
    int code;
    if (status == RS_OK) {
        launch l = {.command = command,
            .options = o,
            .fleet = &hosts,
            .launcher = args->launcher,
            .grace = args->grace,
            .heartbeat = args->heartbeat,
            .world_limit = args->world_limit,
            .restarts = (int)args->restarts,
            .fallback = &args->fallback,
            .lose_slot = (int)args->lose_slot};
        l.console = console_choose(args->json, &l.width);
        code = launch_run(&l);
    } else {
        code = cli_fail(command, status, NULL);
        fleet_close(&hosts);
    }
    rs_control_release(lock);
    return code;
}

/* Under an outer mpirun or srun: rank 0 speaks for all. */
static int run_inside(const cli_command *command, const train_args *args, rs_train_options *o)
{
    int rank, size, code = -1;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (o->ranks == 0)
        o->ranks = size;
    rs_status status = rs_train_options_check(o);
    if (status == RS_OK && o->ranks != size)
        status = rs_error_set(RS_ERR_ARGUMENT,
            "--ranks: wanted %d, as many as the launcher started, found %d", size, o->ranks);
    if (status == RS_OK && rank == 0 && o->resume != 0 && rs_control_is_claimed(o->job, NULL))
        status = rs_error_set(RS_ERR_EXISTS, "job directory %s is in use", o->job);
    if (status == RS_OK && rank == 0 && o->resume != 0)
        status = resume_choose(o, NULL);
    MPI_Bcast(&o->attach, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Bcast(o->attach_layout, sizeof o->attach_layout, MPI_CHAR, 0, MPI_COMM_WORLD);
    MPI_Bcast(&o->attach_step, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
    MPI_Bcast(o->arena_dir, sizeof o->arena_dir, MPI_CHAR, 0, MPI_COMM_WORLD);
    if (status != RS_OK)
        code = rank == 0 ? cli_fail(command, status, NULL) : CLI_USAGE;
    /* All have read the same files, but perhaps not through the same file system. */
    int worst = code;
    MPI_Allreduce(&code, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    /* Launchers may give a rank a terminal where there is none: no bar. */
    rs_train_outcome outcome = RS_TRAIN_FINISHED;
    if (worst < 0)
        worst = console_train(o, args->json ? "json" : "lines", 80, &outcome);
    if (worst == 0 && outcome == RS_TRAIN_TERMINATED)
        worst = CLI_REQUEUE;
    MPI_Finalize();
    return worst;
}

static int run_train(const cli_command *command, int argc, char **argv)
{
    int own_rank = launch_own_rank();
    if (own_rank > 0 && freopen("/dev/null", "w", stdout) == NULL)
        return CLI_FAILURE;
    train_args args;
    cli_quiet = own_rank > 0;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code < 0)
        code = check_required(command, &args);
    if (code >= 0)
        return code;
    cli_quiet = false;
    rs_train_options o;
    rs_train_options_init(&o);
    rs_status status = fill_options(&args, &o);
    if (status == RS_OK && args.resume != NULL)
        status = resume_apply(&o, args.resume, args.job != NULL, &args.overrides, argc, argv);
    if (status == RS_OK && own_rank < 0)
        status = rs_train_options_check(&o);
    if (status != RS_OK)
        code = own_rank <= 0 ? cli_fail(command, status, NULL) : CLI_USAGE;
    else
        code = own_rank < 0 ? supervise(command, &args, &o) : run_inside(command, &args, &o);
    rs_train_options_fini(&o);
    return code;
}

const cli_command cmd_train = {
    .name = "train",
    .summary = "train a model, switching its layout on the way",
    .text =
        "Trains a Llama-family model on the bytes of a file, on as many processes (ranks) as\n"
        "the layouts need. The layout can change while it trains: at steps named with --switch,\n"
        "or whenever `reshard switch DIR LAYOUT` asks for it. The losses do not depend on it.\n"
        "Starts its ranks itself (mpirun, or srun inside a Slurm job); started under mpirun or\n"
        "srun, it is one of the ranks. Ctrl-C ends it after the current step; nothing is left in\n"
        "shared memory. If a process of it is killed, its state stays there, and --resume goes on\n"
        "from exactly the step where it was.",
    .example =
        "  reshard train --model llama-tiny --data book.txt --layout tp=2,dp=2 --steps 100 \\\n"
        "      --job /tmp/job --switch 30:pp=2,dp=2,zero=1 --switch 60:tp=4",
    .options = train_options,
    .run = run_train,
};
