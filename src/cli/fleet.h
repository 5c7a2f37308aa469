/*
 * The hosts of a supervised job, and the helper that stands for the supervisor on each of them.
 *
 * What lies in a host's memory can be seen there alone. So on every host but its own the supervisor
 * starts a small process, `reshard host`, through the same agent by which the launcher reaches the
 * host (ssh, unless told otherwise). The helper opens one stream back, proves itself by the job's
 * secret, shows that its host lives, and does what it is told: end processes, take arenas to a
 * step, remove what is left. It ends with the stream. For the supervisor's own host the same is
 * done in this process.
 *
 * Usual order: fleet_open; fleet_call and fleet_tell; fleet_sweep; fleet_close. A fleet without
 * hosts is a job on this host alone: everything is done here.
 */
#ifndef RS_CLI_FLEET_H
#define RS_CLI_FLEET_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>
#include <time.h>

#include "elastic/hosts.h"
#include "elastic/link.h"
#include "train/train.h"

typedef struct fleet_host {
    char name[RS_HOST_NAME];
    bool here;     /* the supervisor's own */
    rs_link *link; /* of its helper; NULL: none, or not yet */
    pid_t process; /* of the agent that started it; 0: none, or it has ended */
    int output;    /* what agent and helper print; -1 */
    char said[400];
    double beat;  /* when its last word came */
    double begun; /* when the helper was started, or was lost */
    int calls;
    bool dismissed;
} fleet_host;

typedef struct fleet {
    const rs_train_options *options;
    rs_listener *listener;
    rs_hosts file;              /* hosts that have none of the job's slots any more have 0 */
    fleet_host hosts[RS_HOSTS]; /* in the order of the file */
    int count;                  /* 0: this host alone */
    int *near;                  /* where the arenas are that the next world goes on from, per rank;
                                   NULL: anywhere */
    int near_count;
    char job[RS_TRAIN_PATH]; /* absolute */
    struct timespec changed; /* when options->hosts had been changed last before it was read */
} fleet;

/*
 * Reads options->hosts, else JOB/hosts, which an earlier run of the job left, and notes them there;
 * makes JOB/secret; listens; starts the helpers and waits for them. The job directory is claimed
 * and JOB/job.json saved. `strict`: RS_ERR_PEER names a host that cannot be reached, and what its
 * agent said; JOB/hosts is of an attempt before, and not read. Else an unreachable host is named on
 * standard error, and has no link. fleet_close also after
 * an error.
 */
rs_status fleet_open(fleet *f, const rs_train_options *options, bool strict) RS_MUST_CHECK;
void fleet_close(fleet *f);

/* Notes hosts and slots in JOB/hosts; what goes wrong is said on standard error. */
void fleet_note(const fleet *f);
/* Ends a host's helper; it is not started anew, unless the host is recalled. */
void fleet_dismiss(fleet_host *host);
void fleet_recall(fleet *f, int host);
/* Another host: its helper is started, and it is used once it has come. */
rs_status fleet_add(fleet *f, const rs_host *host) RS_MUST_CHECK;

/* A connection's first word was {"say":"host"}: true if it is a helper's; the link is the fleet's
 * then. */
bool fleet_join(fleet *f, const json_t *word, rs_link *link);

/* Reads what helpers say; one that says nothing for `silence` seconds has gone. Starts those that
 * have gone anew, every now and then. */
void fleet_tend(fleet *f, double silence);
/* waitpid has given a process: true if it was an agent's. */
bool fleet_has_ended(fleet *f, pid_t process);

/* The host of that name; -1. */
int fleet_find(const fleet *f, const char *name);

/* True if something can be started there and ended again. */
bool fleet_reaches(const fleet *f, int host);
/* Slots of the hosts that can be reached. */
int fleet_slots(const fleet *f);
/* The host of each of a world's ranks, near their arenas if there are any; the caller owns `*out`,
 * which is NULL for a fleet without hosts. RS_ERR_BUDGET. */
rs_status fleet_place(const fleet *f, int ranks, int **out) RS_MUST_CHECK;

/* Has the helper do `word` ({"do":...}, consumed) and waits at most `seconds` for its answer
 * (`reply` may be NULL). What failed there is the error, with the host's name. */
rs_status fleet_call(fleet_host *host, json_t *word, double seconds, json_t **reply) RS_MUST_CHECK;
/* Has one helper, or all, do it, and waits for none; `word` is consumed. */
void fleet_tell_one(fleet_host *host, json_t *word);
void fleet_tell(fleet *f, json_t *word);

/* Removes what the job has left on the other hosts, with `state` its arenas too. What cannot be
 * reached is said on standard error; true if all was. */
bool fleet_sweep(fleet *f, bool state);

#endif
