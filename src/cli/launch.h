/* Starting the ranks of a training job, watching over them, and cleaning up after them. */
#ifndef RS_CLI_LAUNCH_H
#define RS_CLI_LAUNCH_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

#include "cli/fleet.h"
#include "cli/options.h"
#include "train/train.h"

/* For processes of a dead world to be gone. */
#define FENCE_SECONDS 10

/* Of the time after which a silent host is lost: its rank 0 has ended then. */
#define LEASE_SHARE 0.6

/* The rank that this process is by its launcher's word, -1 if it is none. */
int launch_own_rank(void);

typedef struct launch {
    const cli_command *command;      /* for error messages */
    const rs_train_options *options; /* saved in the job directory, which is claimed */
    fleet *fleet;                    /* open; closed at the end */
    const char *launcher;            /* "auto", "mpirun" or "srun" */
    const char *console;             /* how rank 0 shall print, see console.h */
    int width;
    double grace;             /* seconds from a stop signal to the end by force */
    double heartbeat;         /* seconds without a sign of life after which a rank counts as dead */
    int restarts;             /* after so many without a hundred good steps between, the job ends */
    const cli_list *fallback; /* layouts to go on with where slots were lost, best first */
    int lose_slot;            /* for tests: the slot of this rank is lost when it dies; -1 */
    double world_limit;       /* seconds that a new world may take until it trains */
} launch;

/* Holds back the signals that launch_run waits for. Before any other thread is made: one that does
 * not hold them back would swallow them. Returns which. */
sigset_t launch_hold_signals(void);

/* Runs the job to its end; the exit code of the command. Leaves nothing behind on this host, but
 * for the state of a job of which a process was killed. */
int launch_run(const launch *l);

/* In a rank, before MPI_Init: notes the process in the job directory, keeps the files that MPI
 * shares between processes together in one folder, and ends with the launcher. */
void launch_join(const rs_train_options *options, int world);

/* The file in which the ranks of a world on this host show that they live; returns `path`. */
char *launch_board(const rs_train_options *options, int world, char *path, size_t size);

/* Kills a rank on this host, by the process that it told; nothing where another process has that
 * number by now. */
void launch_end_rank(const rs_train_options *options, long process);

/* What a rank noted when it started: its process and host; false if it has not. */
bool launch_find_rank(
    const rs_train_options *options, int world, int rank, long *process, char host[64]);

/* In a rank of a supervisor that is gone: removes what such ranks have made outside of arenas, but
 * for what another supervisor uses that has the job directory by now. */
void launch_abandon(const rs_train_options *options, int world);

/* Removes what the ranks of a world that is gone have left beside the arenas. */
void launch_forget(const rs_train_options *options, int world, int ranks);

/* JOB/ranks, where every rank notes its process and host as WORLD-RANK; returns `path`. */
char *launch_ranks_folder(const rs_train_options *options, char *path, size_t size);

/* Removes what a job that is not running any more may have left on this host: the folder of its
 * MPI's shared files, its list of processes; with `state` its record and arenas too, ending those
 * of its processes that have outlived their supervisor. */
rs_status launch_sweep(const rs_train_options *options, bool state) RS_MUST_CHECK;
/* Of that what lies on this host alone, and not in the job directory. */
rs_status launch_sweep_host(const rs_train_options *options, bool state) RS_MUST_CHECK;

/* Removes the job's state in memory, and the record that names it, after no process writes to it.
 */
rs_status launch_drop_state(const rs_train_options *options) RS_MUST_CHECK;

/* True if the job's record names a state in memory; and what people are told of it. */
bool launch_keeps_state(const rs_train_options *options);
void launch_tell_kept(const rs_train_options *options, FILE *to);

#endif
