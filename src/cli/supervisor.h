/* The supervisor of a job, as its parts see it: supervisor.c (processes, signals, the end) and
 * change.c (worlds that come and go), revive.c (worlds that die), vigil.c (launchers that do not
 * see it). */
#ifndef RS_CLI_SUPERVISOR_H
#define RS_CLI_SUPERVISOR_H

#include <jansson.h>
#include <stdbool.h>

#include "cli/fleet.h"
#include "cli/launch.h"
#include "cli/world.h"
#include "elastic/handover.h"
#include "elastic/survival.h"
#include "reshard/space.h"
#include "train/control.h"
#include "train/member.h"

/* A change of worlds that somebody wants. */
typedef struct wanted {
    bool pending; /* not yet begun */
    char layout[RS_LAYOUT_TEXT];
    char request[RS_CONTROL_NAME]; /* whom to answer; "": nobody */
    double asked;
} wanted;

/* What the job has survived, and what it would not. */
typedef struct survival {
    rs_survival deaths;
    int lost;        /* slots that are not used any more */
    bool pending;    /* a world is to be started */
    bool takes_over; /* from the dead one, which is still there as `active` */
    bool anew;       /* it begins as the first one did */
    double when;     /* not before */
    double died;     /* when the world before had ended, in seconds since 1970 */
    char layout[RS_LAYOUT_TEXT];
    int generation; /* of the arenas that it goes on from, and the layout that they have; -1: they
                       are lost, and it goes back to the newest checkpoint */
    char former[RS_LAYOUT_TEXT];
    int64_t scheduled;
} survival;

typedef struct supervisor {
    const launch *launch;
    const rs_train_options *options;
    rs_control *control;
    fleet *fleet;
    int signals;   /* fd */
    world *active; /* trains, or did until it ended */
    world *other;  /* comes, or (leaving) goes */
    world *ferry;  /* carries for the other what changes host; NULL: nothing does, or not yet */
    int numbers;   /* of worlds and ferries made so far */
    rs_handover handover;
    wanted want;
    double limit;                    /* when the change is given up; 0: none under way */
    json_t *pull;                    /* what the old world said when it had stopped */
    char why[1000];                  /* it was given up */
    rs_control_request deferred[16]; /* for the active world, when it listens again */
    int deferred_count;
    rs_link *strangers[WORLD_HOSTS]; /* connected, and have not said who they are */
    int stranger_count;
    int stop_signal;
    int stops;
    bool stopping;
    double stop_limit;
    bool forced;            /* the job was not given the time to end well, and to save */
    double looked;          /* what had come by then has been read */
    char stopped_rank[160]; /* the process that showed no sign of life; "" */
    int stopped_host;       /* of the fleet; -1: here, or unknown */
    int draining;           /* host that the change under way leaves; -1 */
    int drained_slots;      /* that it had, or is to have */
    bool drained_returns;   /* the file of hosts has given it slots meanwhile */
    double drain_when;      /* the next one of its own may be asked for */
    bool leaving[RS_HOSTS]; /* hosts that are to be left, as the file of hosts says */
    double hosts_when;      /* the file is looked at again */
    survival survival;
    char verdict[1800]; /* why the job has ended, where nothing else says it; "" */
} supervisor;

/* ---- change.c ---- */

/* Something happened to the change under way. */
void change_event(supervisor *s, rs_handover_event event);

/* A word of a world's rank 0 (or of another host's lowest rank). */
void change_word(supervisor *s, world *w, world_host *host, const json_t *word);

/* Hands requests on to the active world; begins a change that waits. */
void change_tend(supervisor *s);

/* The active world has died: who waits for its first word is told. */
void change_died(supervisor *s);

/* Gives up the change under way, if it can be, and says why. */
void change_cancel(supervisor *s, const char *why);

/* Gives up the change under way because of what the new world or its ferry met. */
void change_give_up(supervisor *s, const char *why);

/* JOB/worlds.json. */
void change_note_worlds(const supervisor *s);

/* JOB/worlds.json and a line of metrics.jsonl. */
void change_note(supervisor *s, const world *w, const char *stage);

/* Answers a request ("": nobody asked), as rs_control_answer does; what goes wrong is said on
 * standard error. */
void change_reply(supervisor *s, const char *request, const char *state, const char *message,
    const char *members);

/* Asks the active world, in the supervisor's own name, if it listens. */
void change_ask(supervisor *s, const rs_control_request *request);

/* Appends an event to metrics.jsonl; `event` is consumed. */
void change_write(const supervisor *s, json_t *event);

/* ---- ferry.c ---- */

/* The host of each of a world's ranks, by a number; `places`: that of the job's hosts, or NULL.
 * free() it. */
rs_status ferry_hosts(const supervisor *s, const int *places, int ranks, int **out) RS_MUST_CHECK;

/* The new world has planned; so many bytes change host. Starts a ferry, if one is needed. */
void ferry_begin(supervisor *s, int64_t bytes);

/* True if there is nothing to wait for. */
bool ferry_is_ready(const supervisor *s);

/* The old world has stopped: the ferry carries, and the pull's word says if there is one. */
void ferry_pull(supervisor *s);

/* The change is given up, or the job ends: so does the ferry. */
void ferry_end(supervisor *s);

void ferry_word(supervisor *s, world_host *host, const json_t *word);
void ferry_tend(supervisor *s);

/* ---- drain.c ---- */

/* Somebody wants the job to leave a host. True: there are slots elsewhere, and `request` is made
 * what the active world is to be asked; else it was answered. */
bool drain_asked(supervisor *s, rs_control_request *request);

/* The change that begins is to leave this host (-1: none): it has no slots from here on. */
void drain_begin(supervisor *s, int host);

/* The ranks of a host (-1: of this one) were sent a signal to end: the job leaves the host, or ends
 * where there is no other. */
void drain_told(supervisor *s, int host);

/* The file of hosts was changed: new hosts are reached, those that are gone, or have no slots any
 * more, are left. To be called every now and then. */
void drain_tend(supervisor *s);

/* The change that was to leave a host has ended: the host is left, or used as before. */
void drain_end(supervisor *s, bool done);

/* ---- revive.c ---- */

/* The active world has ended, and no other is there. True: the job goes on from its arenas. */
bool revive(supervisor *s);

/* Starts the world that is to go on, when it is time. */
void revive_tend(supervisor *s);

/* ---- vigil.c ---- */

/* Ends worlds whose ranks have died without their launcher seeing it, or that never join. */
void vigil_tend(supervisor *s);
/* Whether a rank of the world is known to have died, or the launcher is being ended. */
bool vigil_sees_death(const supervisor *s, const world *w);

/* ---- supervisor.c ---- */

/* For how many seconds nothing has come from a world's host, as far as was looked: not counting
 * those in which this process itself did something else. */
double supervisor_silence(const supervisor *s, const world_host *host);

/* True if a host that has joined its world has been silent, for `seconds`, longer than it may. */
bool supervisor_is_silent(const supervisor *s, const world_host *host, double seconds);

/* The job ends after its step, as on this signal. */
void supervisor_stop(supervisor *s, int number);

/* How the first rank ended that ended wrongly: "rank 1 (process 12 on host) was killed by signal 9
 * (Killed)"; false if nothing is known. `own` (may be NULL): it was its own fault. */
bool supervisor_death(const supervisor *s, char *text, size_t size, noise_death *death, bool *own);

/* Removes what the ranks of a world that is gone have left beside the arenas, on all hosts. */
void supervisor_forget(supervisor *s, const world *w);

/* Makes a world of `ranks` ranks and starts it. */
rs_status supervisor_start(supervisor *s, const char *layout, int ranks, json_t *from,
    int64_t scheduled, world **out) RS_MUST_CHECK;

#endif
