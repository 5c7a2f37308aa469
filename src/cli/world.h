/* One world of a supervised job: its launcher's process, what its ranks print, its streams. */
#ifndef RS_CLI_WORLD_H
#define RS_CLI_WORLD_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "cli/launch.h"
#include "cli/launcher.h"
#include "cli/noise.h"
#include "elastic/hosts.h"
#include "elastic/link.h"

typedef enum world_stage {
    WORLD_BOOTS = 0, /* started; no word yet */
    WORLD_BUILDS,    /* has joined; makes its memory ready */
    WORLD_READY,     /* asleep until it is its turn */
    WORLD_PULLS,
    WORLD_TRAINS,
    WORLD_SLEEPS, /* stopped at a step's end */
    WORLD_LEAVES, /* its ranks end */
    WORLD_STAGES
} world_stage;

#define WORLD_HOSTS RS_HOSTS
#define TAIL_BYTES 1024

typedef struct world_host {
    rs_link *link;
    char name[128];
    int rank; /* lowest of the host */
    int ranks;
    double beat; /* when its last beat came */
    double age;  /* of the oldest sign of life that it told of */
} world_host;

typedef struct world {
    int number;
    int ranks;
    int generation; /* of its arenas: the first; of an active one the present */
    char layout[RS_LAYOUT_TEXT];
    world_stage stage;
    json_t *attach; /* arenas or checkpoint that it goes on from, as its ranks are told; or NULL */
    json_t *from;   /* what it takes over from, as its ranks are told; NULL: nothing */
    bool bereft;    /* its processes are gone, its memory was recovered, another takes over */
    bool ferry;     /* no world, but what carries between hosts for one: see ferry.c */
    int of;         /* a ferry's: the world that it carries for */
    json_t *stands; /* and the host that each of its processes stands for */
    int64_t scheduled;
    launcher how;
    pid_t process; /* of the launcher */
    int status;    /* as waitpid gave it, once `ended` */
    bool ended;
    int pipes[2]; /* -1 when at their end */
    noise streams[2];
    int force;       /* 0: nothing sent, 1: SIGTERM sent, 2: SIGKILL sent */
    double deadline; /* of what was asked last; 0: none */
    double begun;
    bool told;     /* it has said that it trains */
    bool recorded; /* it has said that the job has a record */
    double looked; /* at its ranks' processes, last */
    double lost;   /* since when one of them is known to have ended; 0: none */
    world_host hosts[WORLD_HOSTS];
    int host_count;
    int *places;           /* the host of each rank, where the job has several; else NULL */
    char tail[TAIL_BYTES]; /* the last that its ranks wrote to standard error */
} world;

/* A host has said hello: who it is. */
void world_host_hello(world_host *host, const json_t *word);

/* Starts the launcher of a world whose number, ranks, layout, origin and places are set. */
rs_status world_start(
    world *w, const launch *l, const rs_hosts *hosts, const char *address) RS_MUST_CHECK;
void world_fini(world *w);

/* It has been getting ready beside the world that trains; from now on it yields to nobody. */
void world_be_equal(world *w);

/* Reads what is in a pipe (0: standard output, 1: error). */
void world_read(world *w, int stream);

/* True when the launcher has ended and its pipes are read, or have been quiet too long. */
bool world_is_gone(const world *w);

/* waitpid has given the launcher's status. */
void world_has_ended(world *w, int status);

/* Ends the launcher: SIGTERM at once or when `deadline` passes, SIGKILL five seconds later. */
void world_force(world *w);

/* A look at the clock; the seconds to the next deadline, -1 if there is none. */
double world_tend(world *w);

/* Sends a word to rank 0, or to all hosts. */
rs_status world_tell(world *w, const json_t *word) RS_MUST_CHECK;
rs_status world_tell_all(world *w, const json_t *word) RS_MUST_CHECK;

/* How many of its ranks are on a host of the job's; 0 for NULL, or where the job has no hosts. */
int world_ranks_on(const world *w, int host);

/* True once rank 0's host has joined. */
bool world_has_joined(const world *w);

const char *world_stage_name(world_stage stage);

#endif
