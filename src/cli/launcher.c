/*
 * Launchers. RS_MPIRUN and RS_MPI say which MPI the program was built with; its own mpirun is the
 * one that works with it, so PATH is searched only where that one is absent.
 */
#include "cli/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/agent.h"

static void add(launcher *l, const char *argument)
{
    if (l->count < LAUNCHER_ARGUMENTS - 1) {
        l->arguments[l->count++] = argument;
        l->arguments[l->count] = NULL;
    }
}

/* Looks for a program in PATH. */
static bool find_program(const char *name, char *path, size_t size)
{
    const char *search = getenv("PATH");
    while (search != NULL && *search != '\0') {
        size_t n = strcspn(search, ":");
        snprintf(path, size, "%.*s/%s", (int)n, search, name);
        if (access(path, X_OK) == 0)
            return true;
        search += n + (search[n] == ':');
    }
    return false;
}

char *launcher_folder(const rs_train_options *options, char *path, size_t size)
{
    const char *base = getenv("TMPDIR");
    snprintf(
        path, size, "%s/reshard-%s", base != NULL && base[0] == '/' ? base : "/tmp", options->id);
    return path;
}

/* Adds a word that is made up here. */
static void add_word(launcher *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_word(launcher *l, const char *format, ...)
{
    va_list args;
    size_t room = sizeof l->words - l->used;
    va_start(args, format);
    int n = vsnprintf(l->words + l->used, room, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= room)
        return;
    add(l, l->words + l->used);
    l->used += (size_t)n + 1;
}

static void add_agent(launcher *l, const rs_train_options *options)
{
    bool open_mpi = strcmp(RS_MPI, "openmpi") == 0;
    if (options->rsh_agent[0] == '\0')
        return;
    add(l, open_mpi ? "--mca" : "-launcher");
    add(l, open_mpi ? "plm_rsh_agent" : "ssh");
    if (!open_mpi)
        add(l, "-launcher-exec");
    add(l, options->rsh_agent);
}

/* What every rank finds in its environment; Open MPI forgets it from one part of a command line to
 * the next. */
static void add_environment(launcher *l)
{
    static const char *const words[] = {"--mca", "mpi_yield_when_idle", "1", "-x",
        "OMP_NUM_THREADS", "-x", "OPENBLAS_NUM_THREADS", "-x", "OMP_WAIT_POLICY"};
    for (size_t i = 0; strcmp(RS_MPI, "openmpi") == 0 && i < sizeof words / sizeof *words; i++)
        add(l, words[i]);
}

static void add_worker(
    launcher *l, const rs_train_options *options, const launcher_world *world, const char *console)
{
    const char *const worker[] = {l->self, world->ferry ? "ferry" : "worker", "--job", options->job,
        "--world", l->world, "--link", l->address, "--console", console, "--width", l->width};
    for (size_t i = 0; i < sizeof worker / sizeof *worker; i++)
        add(l, worker[i]);
}

/* How many ranks from `rank` on are on the same host. */
static int run_length(const launcher_world *world, int rank)
{
    int n = 1;
    while (rank + n < world->ranks && world->places[rank + n] == world->places[rank])
        n++;
    return n;
}

static int count_runs(const launcher_world *world)
{
    int runs = 0;
    for (int r = 0; r < world->ranks; r += run_length(world, r))
        runs++;
    return runs;
}

/*
 * Open MPI: one part of the command line for each run of ranks on one host, so that ranks are where
 * they are wanted. (Given all hosts at once it begins with its own, in whatever order they are
 * named.)
 */
static void add_parts(
    launcher *l, const rs_train_options *options, const launcher_world *world, const char *console)
{
    for (int r = 0, n; r < world->ranks; r += n) {
        n = run_length(world, r);
        if (r > 0)
            add(l, ":");
        add_environment(l);
        add(l, "-n");
        add_word(l, "%d", n);
        add(l, "-H");
        add_word(l, "%s:%d", world->hosts->items[world->places[r]].name, n);
        add_worker(l, options, world, console);
    }
}

/* MPICH: hosts in order, each with its ranks. */
static void add_host_list(
    launcher *l, const rs_train_options *options, const launcher_world *world, const char *console)
{
    char list[sizeof l->words] = "";
    size_t used = 0;
    for (int r = 0, n; r < world->ranks; r += n) {
        n = run_length(world, r);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s:%d", r > 0 ? "," : "",
            world->hosts->items[world->places[r]].name, n);
    }
    add(l, "-hosts");
    add_word(l, "%s", list);
    add(l, "-n");
    add(l, l->ranks);
    add_worker(l, options, world, console);
}

/* All but the ranks. */
static rs_status prepare_mpirun(launcher *l, const rs_train_options *options)
{
    static const char *const open_mpi[] = {"--oversubscribe", "--bind-to", "none"};
    snprintf(l->path, sizeof l->path, "%s", RS_MPIRUN);
    if (access(l->path, X_OK) != 0 && !find_program("mpirun", l->path, sizeof l->path))
        return rs_error_set(RS_ERR_NOT_FOUND,
            "no launcher: neither %s nor mpirun in PATH (it starts the ranks; install it, or start "
            "this command under one)",
            RS_MPIRUN);
    add(l, l->path);
    if (strcmp(RS_MPI, "openmpi") == 0) {
        if (geteuid() == 0)
            add(l, "--allow-run-as-root");
        for (size_t i = 0; i < sizeof open_mpi / sizeof *open_mpi; i++)
            add(l, open_mpi[i]);
        launcher_folder(options, l->folder, sizeof l->folder);
        if (mkdir(l->folder, 0700) == 0 || errno == EEXIST) {
            add(l, "--mca");
            add(l, "orte_tmpdir_base");
            add(l, l->folder);
        }
        /* The ranks of a job that has lost one cannot do anything any more. */
        add(l, "--mca");
        add(l, "odls_base_sigkill_timeout");
        add(l, "0");
    }
    return RS_OK;
}

/* What `srun --mpi=list` prints, cut to `size`. */
static void list_mpi_types(const char *srun, char *text, size_t size)
{
    int ends[2];
    pid_t pid;
    text[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    char program[] = "srun", list[] = "--mpi=list";
    char *const arguments[] = {program, list, NULL};
    bool started = posix_spawn(&pid, srun, &actions, NULL, arguments, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    size_t used = 0;
    for (ssize_t n;
         started && used + 1 < size && (n = read(ends[0], text + used, size - 1 - used)) > 0;)
        used += (size_t)n;
    text[used] = '\0';
    close(ends[0]);
    if (started)
        waitpid(pid, NULL, 0);
}

static rs_status prepare_srun(launcher *l)
{
    char types[2048];
    if (!find_program("srun", l->path, sizeof l->path))
        return rs_error_set(RS_ERR_NOT_FOUND, "no launcher: no srun in PATH");
    list_mpi_types(l->path, types, sizeof types);
    const char *type = strstr(types, "pmix") != NULL   ? "pmix"
                       : strstr(types, "pmi2") != NULL ? "pmi2"
                                                       : NULL;
    if (type == NULL)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "srun offers neither pmix nor pmi2 (srun --mpi=list): use --launcher mpirun");
    snprintf(l->type, sizeof l->type, "--mpi=%s", type);
    add(l, l->path);
    add(l, "--overlap");
    add(l, "--kill-on-bad-exit=1");
    add(l, "--cpu-bind=none");
    add(l, l->type);
    return RS_OK;
}

rs_status launcher_prepare(launcher *l, const char *name, const rs_train_options *options,
    const launcher_world *world, const char *console, int width)
{
    char found[512];
    memset(l, 0, sizeof *l);
    snprintf(l->ranks, sizeof l->ranks, "%d", world->ranks);
    snprintf(l->world, sizeof l->world, "%d", world->number);
    snprintf(l->address, sizeof l->address, "%s", world->address);
    snprintf(l->width, sizeof l->width, "%d", width);
    RS_TRY(agent_self(l->self, sizeof l->self));
    char threads[16];
    snprintf(threads, sizeof threads, "%d", options->threads);
    setenv("OMP_NUM_THREADS", threads, 0);
    setenv("OPENBLAS_NUM_THREADS", threads, 0);
    /* Threads that spin while they wait take the cores from ranks that work: two ranks of two
     * threads on two cores were 200 times slower. */
    setenv("OMP_WAIT_POLICY", "passive", 0);
    bool slurm = getenv("SLURM_JOB_ID") != NULL && find_program("srun", found, sizeof found);
    bool over_hosts = world->hosts != NULL && world->hosts->count > 0;
    bool use_srun =
        strcmp(name, "srun") == 0 || (strcmp(name, "auto") == 0 && slurm && !over_hosts);
    if (use_srun && over_hosts)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "--hosts: srun starts ranks where the allocation is; use --launcher mpirun");
    RS_TRY(use_srun ? prepare_srun(l) : prepare_mpirun(l, options));
    if (over_hosts) {
        if (count_runs(world) > RS_HOSTS) /* the room that there is for words and arguments */
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "the ranks are spread over the hosts in more than %d runs", RS_HOSTS);
        add_agent(l, options);
        if (strcmp(RS_MPI, "openmpi") == 0)
            add_parts(l, options, world, console);
        else
            add_host_list(l, options, world, console);
        return RS_OK;
    }
    if (!use_srun)
        add_environment(l);
    add(l, "-n");
    add(l, l->ranks);
    add_worker(l, options, world, console);
    return RS_OK;
}
