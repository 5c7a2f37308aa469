/*
 * A running job as one rank sees it. Shared by the parts of the trainer (job.c, loop.c, switch.c,
 * room.c) and by nobody else.
 */
#ifndef RS_TRAIN_JOB_H
#define RS_TRAIN_JOB_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "reshard/arena.h"
#include "reshard/elastic.h"
#include "reshard/model.h"
#include "reshard/plan.h"
#include "train/control.h"
#include "train/data.h"
#include "train/trainer.h"
#include "train/metrics.h"
#include "train/state.h"
#include "train/train.h"
#include "train/world.h"

/* What rank 0 has all ranks do at a step boundary. */
typedef enum rs_order_kind {
    RS_ORDER_NONE = 0, /* the next step */
    RS_ORDER_PREPARE,  /* plan a switch, make room for it */
    RS_ORDER_SLICE,    /* build the next of its communicators */
    RS_ORDER_SWITCH,   /* do it, or give it up if some rank could not prepare */
    RS_ORDER_STOP,     /* end the job */
    RS_ORDER_WAIT,     /* nobody watches the job any more: wait for one who does */
    RS_ORDER_SAVE,     /* copy the state and begin to write it */
    RS_ORDER_SAVED,    /* collect what was written, commit it */
    RS_ORDER_LEAVE     /* stop here and give the state to the next world */
} rs_order_kind;

typedef struct rs_order {
    rs_order_kind kind;
    bool more;                   /* another order follows before the next step */
    int outcome;                 /* STOP */
    int64_t step;                /* steps committed */
    char layout[RS_LAYOUT_TEXT]; /* PREPARE */
} rs_order;

/* A switch that is being prepared. */
typedef struct rs_next {
    bool pending;   /* on rank 0 from the decision on, elsewhere once prepared */
    bool prepared;  /* or failed to be */
    int64_t number; /* of the switches tried, from 1 */
    rs_layout layout;
    char text[RS_LAYOUT_TEXT];
    int generation;
    rs_status status; /* of this rank's preparation */
    char message[1000];
    rs_state state;
    rs_world world;
    rs_plan *plan;
    rs_arena **peers; /* old arenas of the ranks that this one pulls from, by rank; else NULL */
    bool touched;
    bool reported; /* an idle rank has told rank 0 that it is ready */
    double plan_seconds;
    double prepare_seconds;
    /* rank 0 */
    rs_plan_totals totals;
    int64_t due;                   /* acts after this step; -1: as soon as all ranks are ready */
    char request[RS_CONTROL_NAME]; /* whom to answer; "": nobody */
    int idle_ready;                /* idle ranks that have reported */
} rs_next;

typedef struct rs_saver rs_saver; /* save.h */

typedef struct rs_job {
    const rs_train_options *options;
    const rs_train_listener *listener;
    MPI_Comm comm;   /* all ranks */
    MPI_Comm orders; /* the same, for messages between rank 0 and idle ranks */
    MPI_Comm host;   /* ranks of this machine */
    int rank;
    int ranks;
    bool agreed; /* the error that ends the job is known to all ranks */
    bool ended;
    rs_train_outcome outcome;

    char id[RS_TRAIN_ID];
    rs_model model;
    rs_space *space;
    rs_data *data;
    rs_keeper *keeper;
    int *node_of; /* nodes as the plan is to see them, by rank */
    int nodes;
    bool apart;         /* they are real hosts: a rank maps arenas of its own one alone */
    const int *mirrors; /* nodes across which the job mirrors; NULL: it does not. Borrowed */
    int *former_nodes;  /* where the state that is gone on from is mirrored: nodes of its ranks */
    int64_t former_count;

    int64_t step; /* committed */
    char layout[RS_LAYOUT_TEXT];
    rs_world world;
    rs_state state;
    rs_trainer *trainer; /* NULL on an idle rank */
    int generation;
    bool signalled; /* as far as it is known: on rank 0 any rank's, on an idle one what it told */
    int first_generation; /* of this world */
    int last_generation;  /* the highest that this world ever made */
    bool guest;           /* a new world that has not taken over: the job is still another's */
    double step_seconds;  /* of the last step */

    rs_next next;
    struct rs_takeover *takeover; /* a new world, until it has taken over */
    rs_saver *saver;
    uint64_t *sums;    /* reduced words of the certificate of the state at step sums_step */
    int64_t sums_step; /* -1: none */

    bool keeps; /* if the job fails now, its state stays in memory: it can be gone on from */

    /* rank 0 */
    rs_record record; /* epoch 0: none yet */
    rs_control_lock *lock;
    rs_control *control;
    rs_metrics *metrics;
    int64_t switches; /* tried or being prepared */
    size_t scheduled; /* of options->switches: done or under way */
    bool held;        /* a new world is being built from the layout as it is */
    bool leave_asked; /* and is ready */
    bool stop_asked;
    double looked; /* when the supervisor was last seen */
} rs_job;

/* job.c: one status for all ranks; a failure is then known to be everybody's. Collective over
 * job->comm. */
rs_status rs_job_agree(rs_job *job, rs_status mine) RS_MUST_CHECK;
void rs_job_notice(rs_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
rs_status rs_job_report(
    rs_job *job, const char *state, const char *message, bool now) RS_MUST_CHECK;
/* Whether rank 0 may write what the job is known by: metrics, record, checkpoints. RS_ERR_PEER: a
 * supervisor on another host does not answer, and may count this world as lost and have another
 * one go on. From any thread. */
rs_status rs_job_may_write(const rs_job *job) RS_MUST_CHECK;
/* Rank 0, before it writes: ends this world where it may not. */
void rs_job_end_unheard(const rs_job *job);

/* room.c: who shares a node, and whether its memory is enough. Collective over job->comm. */
rs_status rs_job_find_nodes(rs_job *job) RS_MUST_CHECK;
rs_status rs_job_check_room(rs_job *job) RS_MUST_CHECK;
/* With redundancy: tells if, all the same, some of the state is on one node alone. */
rs_status rs_job_check_redundancy(rs_job *job) RS_MUST_CHECK;
/* The nodes across which the job mirrors; NULL without redundancy. Borrowed. */
const int *rs_job_mirrors(const rs_job *job);
void rs_job_plan_options(const rs_job *job, rs_plan_options *out);

/* loop.c: trains until the job ends. */
rs_status rs_job_loop(rs_job *job) RS_MUST_CHECK;

/* switch.c */
/* job->next as it is when no switch is in preparation. Local. */
void rs_switch_reset(rs_job *job);
/* Plans the switch to `layout` and makes room for it; a failure is kept for rs_switch_run. Local.
 */
void rs_switch_prepare(rs_job *job, const char *layout);
/* Builds the next of its communicators. Collective over the members of its layout. */
void rs_switch_slice(rs_job *job);
/* Touches what is to be touched ahead, for about `seconds`; true when all is ready, or nothing will
 * be. */
bool rs_switch_touch(rs_job *job, double seconds);
/* Moves to the prepared layout, or stays and says why. Collective over job->comm. */
rs_status rs_switch_run(rs_job *job) RS_MUST_CHECK;
/* Forgets the prepared switch. Collective over the members of its layout. */
void rs_switch_cancel(rs_job *job);

#endif
