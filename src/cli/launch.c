/*
 * Starting and watching the ranks of a training job.
 *
 * The process that a user starts is the supervisor: it claims the job directory, starts the ranks
 * as `reshard worker` through a launcher, passes on what they print, and stays until all are gone.
 *
 * 1. The launcher runs in a session of its own: Ctrl-C reaches the supervisor alone, which asks the
 *    job to stop after its step, as `reshard stop` does. A second signal, or the end of the grace
 *    time, ends the launcher by SIGTERM, and five seconds later by SIGKILL.
 * 2. Nobody outlives his parent: the launcher gets SIGTERM when the supervisor dies, a rank SIGKILL
 *    when its launcher dies.
 * 3. Whatever happened, the job's arenas, the folder of MPI's shared files and the launcher's
 *    temporary folder are removed last, when no process of the job is left.
 * 4. The first rank that died is named in one line; the launcher's own texts are shown only if
 *    nothing else explains the end.
 */
#include "cli/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/launcher.h"
#include "cli/noise.h"
#include "cli/subject.h"
#include "reshard/arena.h"
#include "train/control.h"

#define FORCE_SECONDS 5

int launch_own_rank(void)
{
    static const char *const names[] = {"PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        if (text != NULL && text[0] != '\0')
            return (int)strtol(text, NULL, 10);
    }
    return -1;
}

/* ---- files beside the job ---- */

static char *mpi_folder(const rs_train_options *options, char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/reshard-mpi-%s", options->id);
    return path;
}

static char *ranks_folder(const rs_train_options *options, char *path, size_t size)
{
    snprintf(path, size, "%s/ranks", options->job);
    return path;
}

static int remove_entry(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    return remove(path) != 0 && errno != ENOENT;
}

static void remove_tree(const char *path)
{
    nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

void launch_join(const rs_train_options *options)
{
    char folder[RS_TRAIN_PATH + 16], path[RS_TRAIN_PATH + 64], host[64] = "";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mpi_folder(options, folder, sizeof folder);
    if (mkdir(folder, 0700) == 0 || errno == EEXIST) {
        setenv("OMPI_MCA_btl_vader_backing_directory", folder, 1);
        setenv("UCX_POSIX_DIR", folder, 1);
    }
    ranks_folder(options, folder, sizeof folder);
    mkdir(folder, 0777);
    snprintf(path, sizeof path, "%s/%d", folder, launch_own_rank());
    FILE *file = fopen(path, "w");
    if (file == NULL)
        return; /* only the naming of a dead rank depends on it */
    gethostname(host, sizeof host - 1);
    fprintf(file, "%ld %s\n", (long)getpid(), host);
    fclose(file);
}

rs_status launch_sweep(const rs_train_options *options)
{
    char path[RS_TRAIN_PATH + 16];
    remove_tree(mpi_folder(options, path, sizeof path));
    remove_tree(launcher_folder(options, path, sizeof path));
    remove_tree(ranks_folder(options, path, sizeof path));
    rs_keeper *keeper = NULL;
    RS_TRY(rs_keeper_open(
        options->id, options->arena_dir[0] != '\0' ? options->arena_dir : NULL, &keeper));
    rs_status status = rs_keeper_sweep(keeper);
    rs_keeper_close(keeper);
    return status;
}

/* ---- the watch ---- */

typedef struct watch {
    const launch *launch;
    pid_t launcher;
    const char *program; /* its path */
    int status;          /* of the launcher, when it has ended */
    bool ended;
    int signals; /* fd */
    int stop_signal;
    int stops;
    int force; /* 0: asked only, 1: SIGTERM sent, 2: SIGKILL sent */
    double deadline;
    int pipes[2]; /* -1 when at their end */
    noise streams[2];
} watch;

static void *ask_stop(void *job)
{
    rs_status status = rs_control_stop(job, false);
    (void)status; /* the deadline is there for a job that does not answer */
    free(job);
    return NULL;
}

/* True if the job has begun to look at its requests. */
static bool answers(const launch *l)
{
    char *text = NULL;
    rs_status status = rs_control_status(l->options->job, &text);
    free(text);
    return status == RS_OK;
}

static void begin_stop(watch *w)
{
    pthread_t thread;
    char *job = rs_strdup(w->launch->options->job);
    w->deadline = cli_now() + w->launch->grace;
    fprintf(stderr, "\nreshard train: stopping after this step (once more: at once)\n");
    if (!answers(w->launch) || job == NULL || pthread_create(&thread, NULL, ask_stop, job) != 0) {
        free(job);
        w->deadline = 0;
        return;
    }
    pthread_detach(thread);
}

static void use_force(watch *w)
{
    kill(w->launcher, w->force == 0 ? SIGTERM : SIGKILL);
    w->force++;
    w->deadline = cli_now() + FORCE_SECONDS;
}

static void take_signal(watch *w)
{
    struct signalfd_siginfo info;
    if (read(w->signals, &info, sizeof info) != sizeof info)
        return;
    if (info.ssi_signo == SIGCHLD) {
        int status;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
            if (pid != w->launcher)
                continue;
            w->status = status;
            w->ended = true;
            w->deadline = cli_now() + 2; /* for what is still in the pipes */
        }
        return;
    }
    w->stop_signal = (int)info.ssi_signo;
    if (w->stops++ == 0)
        begin_stop(w);
    else if (!w->ended)
        use_force(w);
}

static void take_bytes(watch *w, int stream)
{
    char bytes[16384];
    ssize_t n = read(w->pipes[stream], bytes, sizeof bytes);
    if (n > 0) {
        noise_feed(&w->streams[stream], bytes, (size_t)n);
        return;
    }
    if (n < 0 && errno == EINTR)
        return;
    noise_end(&w->streams[stream]);
    close(w->pipes[stream]);
    w->pipes[stream] = -1;
}

static void watch_until_end(watch *w)
{
    while (!w->ended || w->pipes[0] >= 0 || w->pipes[1] >= 0) {
        struct pollfd fds[3] = {{.fd = w->signals, .events = POLLIN},
            {.fd = w->pipes[0], .events = POLLIN}, {.fd = w->pipes[1], .events = POLLIN}};
        bool limited = w->stops > 0 || w->ended;
        double left = w->deadline - cli_now();
        if (limited && left <= 0) {
            if (w->ended)
                break;
            use_force(w);
            continue;
        }
        if (poll(fds, 3, limited ? (int)(left * 1000) + 1 : -1) < 0 && errno != EINTR)
            break;
        if (fds[1].revents != 0)
            take_bytes(w, 0);
        if (fds[2].revents != 0)
            take_bytes(w, 1);
        if (fds[0].revents != 0)
            take_signal(w);
    }
}

/* Ranks that outlived the launcher became children of the supervisor; they are dying. */
static void reap_rest(void)
{
    for (int tries = 0; tries < 200; tries++) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0)
            return;
        if (pid == 0)
            usleep(10000);
    }
}

/* ---- what to say at the end ---- */

/* Completes rank and process number from each other, by what the ranks noted at their start. */
static void complete(const launch *l, noise_death *death)
{
    char folder[RS_TRAIN_PATH + 16], path[RS_TRAIN_PATH + 64];
    ranks_folder(l->options, folder, sizeof folder);
    for (int rank = 0; rank < l->options->ranks; rank++) {
        long pid = 0;
        char host[64] = "";
        snprintf(path, sizeof path, "%s/%d", folder, rank);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        bool read = fscanf(file, "%ld %63s", &pid, host) == 2;
        fclose(file);
        if (!read || (death->rank >= 0 ? death->rank != rank : death->pid != pid))
            continue;
        death->rank = rank;
        death->pid = pid;
        snprintf(death->host, sizeof death->host, "%s", host);
    }
}

static int64_t last_step(const launch *l)
{
    char *text = NULL;
    if (rs_control_status(l->options->job, &text) != RS_OK)
        return 0;
    json_t *root = json_loads(text, 0, NULL);
    int64_t step = json_integer_value(json_object_get(root, "step"));
    json_decref(root);
    free(text);
    return step;
}

static void describe_death(const launch *l, const noise_death *death)
{
    char who[160], how[96];
    if (death->rank >= 0 && death->pid > 0)
        snprintf(
            who, sizeof who, "rank %d (process %ld on %s)", death->rank, death->pid, death->host);
    else if (death->rank >= 0)
        snprintf(who, sizeof who, "rank %d", death->rank);
    else
        snprintf(who, sizeof who, "a rank");
    if (death->signal > 0)
        snprintf(how, sizeof how, "was killed by signal %d (%s)", death->signal,
            strsignal(death->signal));
    else if (death->lost > 0)
        snprintf(how, sizeof how, "died");
    else
        snprintf(how, sizeof how, "ended with exit code %d", death->exit_code);
    cli_error(l->command, CLI_FAILURE, "%s %s after step %" PRId64 "; the job has ended", who, how,
        last_step(l));
}

static int conclude(watch *w)
{
    const launch *l = w->launch;
    bool good = WIFEXITED(w->status) && WEXITSTATUS(w->status) == 0;
    if (good && (w->stop_signal == SIGTERM || w->stop_signal == SIGUSR1))
        return CLI_REQUEUE;
    if (w->stop_signal != 0)
        return 128 + w->stop_signal;
    if (good)
        return 0;
    noise_death death = w->streams[1].death;
    if (death.rank < 0 && death.pid == 0)
        death = w->streams[0].death;
    /* What the launcher says of another process is then about one that followed. */
    long lost = w->streams[0].death.lost > 0 ? w->streams[0].death.lost : w->streams[1].death.lost;
    if (lost > 0 && lost != death.pid)
        death = (noise_death){.rank = -1, .pid = lost, .lost = lost};
    bool reported = w->streams[0].rank_reported || w->streams[1].rank_reported;
    if (death.signal > 0 || death.lost > 0 || (death.exit_code > 0 && !reported)) {
        complete(l, &death);
        describe_death(l, &death);
    } else if (!reported && WIFSIGNALED(w->status)) {
        cli_error(l->command, CLI_FAILURE,
            "the launcher (process %ld) was killed by signal %d (%s) after step %" PRId64
            "; the job has ended",
            (long)w->launcher, WTERMSIG(w->status), strsignal(WTERMSIG(w->status)), last_step(l));
    } else if (!reported) {
        for (int i = 0; i < 2; i++) {
            if (w->streams[i].held.length > 0)
                fputs(w->streams[i].held.data, stderr);
        }
        cli_error(l->command, CLI_FAILURE,
            "the ranks could not be run: the launcher %s ended with %d", w->program,
            WEXITSTATUS(w->status));
    }
    return CLI_FAILURE;
}

/* ---- start ---- */

static rs_status start(watch *w, const launcher *how)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    rs_status status = RS_OK;
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
        status = rs_error_errno(errno, "cannot make a pipe");
        goto done;
    }
    pid_t supervisor = getpid();
    w->program = how->arguments[0];
    fflush(NULL);
    w->launcher = fork();
    if (w->launcher < 0) {
        status = rs_error_errno(errno, "cannot start %s", how->arguments[0]);
        goto done;
    }
    if (w->launcher == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        setsid();
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        int empty = open("/dev/null", O_RDONLY);
        if (empty >= 0)
            dup2(empty, STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        if (getppid() == supervisor)
            execv(how->arguments[0], (char *const *)how->arguments);
        fprintf(stderr, "%s: %s\n", how->arguments[0], strerror(errno));
        _exit(127);
    }
    w->pipes[0] = out[0];
    w->pipes[1] = err[0];
    out[0] = err[0] = -1;
done:
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0)
            close(out[i]);
        if (err[i] >= 0)
            close(err[i]);
    }
    return status;
}

int launch_run(const launch *l)
{
    watch w = {.launch = l, .signals = -1, .pipes = {-1, -1}};
    noise_init(&w.streams[0], STDOUT_FILENO);
    noise_init(&w.streams[1], STDERR_FILENO);
    int code;
    launcher how;
    rs_status status = launcher_prepare(&how, l->launcher, l->options, l->console, l->width);
    if (status != RS_OK) {
        code = cli_fail(l->command, status, NULL);
        goto done;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGPIPE, SIG_IGN);
    sigset_t set, before;
    sigemptyset(&set);
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&set, numbers[i]);
    sigprocmask(SIG_BLOCK, &set, &before);
    w.signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (w.signals < 0)
        status = rs_error_errno(errno, "signalfd");
    else
        status = start(&w, &how);
    if (status == RS_OK) {
        watch_until_end(&w);
        reap_rest();
        code = conclude(&w);
    } else {
        code = cli_fail(l->command, status, NULL);
    }
    status = launch_sweep(l->options);
    if (status != RS_OK)
        code = cli_fail(l->command, status, "cleaning up");
    sigprocmask(SIG_SETMASK, &before, NULL);
done:
    for (int i = 0; i < 2; i++) {
        noise_fini(&w.streams[i]);
        if (w.pipes[i] >= 0)
            close(w.pipes[i]);
    }
    if (w.signals >= 0)
        close(w.signals);
    return code;
}
