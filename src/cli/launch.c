/*
 * A rank's start, and what is left of a job when it has ended.
 *
 * Whatever happened, the folder of MPI's shared files and the launcher's temporary folder are
 * removed last, when no process of the job is left. So are the job's arenas, unless a process was
 * killed and the job can be gone on with from them.
 */
#include "cli/launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/launcher.h"
#include "elastic/link.h"
#include "reshard/elastic.h"
#include "train/control.h"

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

char *launch_ranks_folder(const rs_train_options *options, char *path, size_t size)
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

/* Of one world, below the job's. */
static char *world_folder(const rs_train_options *options, int world, char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/reshard-mpi-%s/%d", options->id, world);
    return path;
}

char *launch_board(const rs_train_options *options, int world, char *path, size_t size)
{
    snprintf(path, size, "/dev/shm/reshard-mpi-%s/%d/board", options->id, world);
    return path;
}

/* What a rank notes of itself when it starts. */
static char *rank_note(
    const rs_train_options *options, int world, int rank, char *path, size_t size)
{
    char folder[RS_TRAIN_PATH + 16];
    snprintf(
        path, size, "%s/%d-%d", launch_ranks_folder(options, folder, sizeof folder), world, rank);
    return path;
}

void launch_forget(const rs_train_options *options, int world, int ranks)
{
    char folder[RS_TRAIN_PATH + 16], path[RS_TRAIN_PATH + 64];
    remove_tree(world_folder(options, world, folder, sizeof folder));
    for (int rank = 0; rank < ranks; rank++)
        unlink(rank_note(options, world, rank, path, sizeof path));
}

void launch_join(const rs_train_options *options, int world)
{
    char folder[RS_TRAIN_PATH + 16], path[RS_TRAIN_PATH + 64], host[64] = "";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    mkdir(mpi_folder(options, folder, sizeof folder), 0700);
    world_folder(options, world, folder, sizeof folder);
    if (mkdir(folder, 0700) == 0 || errno == EEXIST) {
        setenv("OMPI_MCA_btl_vader_backing_directory", folder, 1);
        setenv("UCX_POSIX_DIR", folder, 1);
    }
    mkdir(launch_ranks_folder(options, folder, sizeof folder), 0777);
    FILE *file = fopen(rank_note(options, world, launch_own_rank(), path, sizeof path), "w");
    if (file == NULL)
        return; /* only the naming of a dead rank depends on it */
    gethostname(host, sizeof host - 1);
    fprintf(file, "%ld %s\n", (long)getpid(), host);
    fclose(file);
}

bool launch_find_rank(
    const rs_train_options *options, int world, int rank, long *process, char host[64])
{
    char path[RS_TRAIN_PATH + 64];
    FILE *file = fopen(rank_note(options, world, rank, path, sizeof path), "r");
    if (file == NULL)
        return false;
    bool found = fscanf(file, "%ld %63s", process, host) == 2;
    fclose(file);
    return found;
}

static void remove_folders(const rs_train_options *options)
{
    char path[RS_TRAIN_PATH + 16];
    remove_tree(mpi_folder(options, path, sizeof path));
    remove_tree(launcher_folder(options, path, sizeof path));
}

/* True if the job directory is another job's by now; false while that is not known. */
static bool is_replaced(const rs_train_options *options)
{
    rs_train_options now;
    rs_train_options_init(&now);
    rs_status status = rs_train_options_load(&now, options->job);
    bool other = status == RS_OK && strcmp(now.id, options->id) != 0;
    rs_train_options_fini(&now);
    return other || status == RS_ERR_NOT_FOUND;
}

void launch_abandon(const rs_train_options *options, int world)
{
    char path[RS_TRAIN_PATH + 64], host[64];
    int rank = launch_own_rank();
    long process;
    bool claimed = rs_control_is_claimed(options->job, NULL);
    if (!claimed || is_replaced(options))
        remove_folders(options);
    if (!claimed)
        remove_tree(launch_ranks_folder(options, path, sizeof path));
    else if (launch_find_rank(options, world, rank, &process, host) && process == (long)getpid())
        unlink(rank_note(options, world, rank, path, sizeof path));
}

static sigset_t held_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGCHLD};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaddset(&set, numbers[i]);
    return set;
}

sigset_t launch_hold_signals(void)
{
    sigset_t set = held_signals();
    sigprocmask(SIG_BLOCK, &set, NULL);
    return set;
}

/* `record`: the job's record goes too, before the arenas that it names. */
static rs_status drop_state(const rs_train_options *options, bool record)
{
    rs_keeper *keeper = NULL;
    rs_fenced fenced;
    RS_TRY(rs_keeper_open(
        options->id, options->arena_dir[0] != '\0' ? options->arena_dir : NULL, &keeper));
    rs_status status = rs_elastic_fence(keeper, FENCE_SECONDS, &fenced);
    if (status == RS_OK && record)
        status = rs_record_remove(options->job);
    if (status == RS_OK)
        status = rs_keeper_sweep(keeper);
    rs_keeper_close(keeper);
    return status;
}

rs_status launch_drop_state(const rs_train_options *options)
{
    return drop_state(options, true);
}

rs_status launch_sweep_host(const rs_train_options *options, bool state)
{
    remove_folders(options);
    return state ? drop_state(options, false) : RS_OK;
}

/* True if `word`, of a process's command line, is the job directory, by whatever path. */
static bool is_job(const rs_train_options *options, long process, const char *word)
{
    char path[RS_TRAIN_PATH + 64];
    struct stat a, b;
    if (word[0] == '/')
        snprintf(path, sizeof path, "%s", word);
    else
        snprintf(path, sizeof path, "/proc/%ld/cwd/%s", process, word);
    return stat(path, &a) == 0 && stat(options->job, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* True if a process is a launcher or a rank of the job; with `deaf`, only of a supervisor of this
 * host that is gone. */
static bool is_of_job(const rs_train_options *options, long process, bool deaf)
{
    char path[64], words[16384], wanted[RS_TRAIN_ID + 32];
    bool job = false;
    snprintf(path, sizeof path, "/proc/%ld/cmdline", process);
    snprintf(wanted, sizeof wanted, "unix:reshard-%s-", options->id);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, words, sizeof words - 1) : -1;
    if (fd >= 0)
        close(fd);
    words[length > 0 ? length : 0] = '\0';
    for (ssize_t at = 0; at < length; at += (ssize_t)strlen(words + at) + 1) {
        const char *word = words + at;
        if (deaf && strncmp(word, wanted, strlen(wanted)) == 0)
            return rs_link_is_deaf(word);
        if (!deaf && job && is_job(options, process, word))
            return true;
        job = strcmp(word, "--job") == 0;
    }
    return false;
}

/* Kills a process if it is_of_job, and waits so long until it has gone. */
static void end_process(const rs_train_options *options, long process, bool deaf, int seconds)
{
    int held = process > 1 ? pidfd_open((pid_t)process, 0) : -1;
    struct pollfd ended = {.fd = held, .events = POLLIN};
    /* Held, the number is still that of the process that was looked at. */
    if (held >= 0 && is_of_job(options, process, deaf) &&
        pidfd_send_signal(held, SIGKILL, NULL, 0) == 0)
        poll(&ended, 1, seconds * 1000);
    if (held >= 0)
        close(held);
}

void launch_end_rank(const rs_train_options *options, long process)
{
    end_process(options, process, false, 0);
}

/* Launchers of a supervisor that was killed go on, and ranks that they start: those that wait with
 * the state for another supervisor, and those that have yet to find that theirs is gone. */
static void end_all_abandoned(const rs_train_options *options)
{
    DIR *processes = opendir("/proc");
    for (struct dirent *entry; processes != NULL && (entry = readdir(processes)) != NULL;)
        end_process(options, strtol(entry->d_name, NULL, 10), true, FENCE_SECONDS);
    if (processes != NULL)
        closedir(processes);
}

rs_status launch_sweep(const rs_train_options *options, bool state)
{
    char path[RS_TRAIN_PATH + 16];
    if (state)
        end_all_abandoned(options);
    remove_folders(options);
    remove_tree(launch_ranks_folder(options, path, sizeof path));
    return state ? launch_drop_state(options) : RS_OK;
}

bool launch_keeps_state(const rs_train_options *options)
{
    rs_record record;
    if (rs_record_read(options->job, &record) != RS_OK)
        return false;
    rs_record_fini(&record);
    return true;
}

void launch_tell_kept(const rs_train_options *options, FILE *to)
{
    fprintf(to,
        "its state is kept in memory: `reshard train --resume %s` goes on from it, `reshard clean "
        "%s` removes it\n",
        options->job, options->job);
}
