/*
 * The distributed trainer: what a training job is (its options), how it runs, what it tells.
 *
 * A job trains a decoder on the bytes of a file with N ranks, and changes its parallel layout while
 * it runs: at steps named in advance (options.switches) or when asked to through its job directory
 * (control.h). Usual order for a program that starts its own ranks: rs_train_options_init, fill in,
 * rs_train_options_check, rs_control_claim of the job directory, rs_train_options_save, start the
 * ranks. Each rank: MPI_Init, rs_train_options_load, rs_train_run. A program that is a rank already
 * calls rs_train_run with its options at once (options.supervised false): rank 0 claims the
 * directory.
 *
 * What is computed, exactly: docs/training.md. What a switch does: docs/switching.md.
 */
#ifndef RS_TRAIN_TRAIN_H
#define RS_TRAIN_TRAIN_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "reshard/dtype.h"
#include "reshard/layout.h"
#include "reshard/model.h"
#include "reshard/optimizer.h"
#include "reshard/status.h"
#include "train/stage.h"

#define RS_TRAIN_PATH 4096
#define RS_TRAIN_NEWEST (-1)
#define RS_TRAIN_ID 49 /* room for the job's identifier, see rs_keeper_open */

typedef enum rs_train_transport {
    RS_TRANSPORT_AUTO = 0, /* arenas within a node, MPI between nodes */
    RS_TRANSPORT_ARENA,    /* arenas alone: all ranks on one node */
    RS_TRANSPORT_MPI       /* MPI between all ranks */
} rs_train_transport;

/* Switch to `layout` after step `step` has committed; 0: before the first step. */
typedef struct rs_train_switch {
    int64_t step;
    char layout[RS_LAYOUT_TEXT];
} rs_train_switch;

/* What tests make go wrong; all zero in earnest. Switches and steps count from 1. */
typedef struct rs_train_fault {
    int64_t certificate_switch; /* in this switch a bit of every rank's new state is flipped before
                                   it is verified */
    int64_t room_switch;        /* this switch finds no room for the new arena */
    int64_t move_switch;        /* in this switch ranks cannot read each other's arenas */
    int64_t commit_switch; /* after this switch's move the highest rank has no working memory */
    int64_t error_step;    /* in this step rank error_rank fails to read its data */
    int64_t error_rank;
    int64_t kill_step; /* in this step rank kill_rank kills itself (SIGKILL) before the update */
    int64_t kill_rank;
    int64_t certificate_world; /* the world of this number takes over with a bit flipped */
    bool hashes;  /* switch events also have the hash of every rank's memory and the state's sums */
    bool routing; /* JOB/routing-RANK.txt gets every token's experts */
} rs_train_fault;

typedef struct rs_member rs_member;

typedef struct rs_train_options {
    char model[RS_TRAIN_PATH]; /* preset, config.json, or a folder with one */
    char data[RS_TRAIN_PATH];
    char job[RS_TRAIN_PATH];       /* the job directory */
    char arena_dir[RS_TRAIN_PATH]; /* "": /dev/shm */
    char id[RS_TRAIN_ID];          /* names the arenas; "": made up when the job starts */
    char layout[RS_LAYOUT_TEXT];
    rs_train_switch
        *switches; /* in the order in which they act; owned, see rs_train_options_fini */
    size_t switch_count;
    int64_t steps;
    int ranks;                  /* 0: as many as the largest layout named needs */
    int64_t global_batch;       /* sequences of a step */
    int64_t micro_batch;        /* sequences of a forward pass */
    int64_t seq;                /* tokens of a sequence */
    rs_dtype dtype;             /* of the parameters: RS_DTYPE_F32 or RS_DTYPE_BF16 */
    char optimizer[32];         /* see optimizer.h */
    char freeze[RS_TRAIN_PATH]; /* patterns of tensors that are not trained; "": none */
    double lr;
    int64_t warmup; /* steps */
    uint64_t seed;
    double dropout;         /* rate; 0: none */
    rs_recompute recompute; /* of activations */
    int ranks_per_node;     /* 0: by host */
    int redundancy;         /* 1: what ZeRO gave to one node alone is mirrored on another; 0 */
    rs_train_transport transport;
    bool tight;
    int64_t window;      /* bytes in flight in a move and its staging budget; 0: RS_MOVE_WINDOW */
    int threads;         /* of a rank */
    int64_t save_every;  /* steps; 0: not by steps */
    double save_minutes; /* 0: not by time */
    bool save_on_exit;   /* when it ends, for whatever reason, but for a failure */
    int64_t keep;        /* checkpoints; 0: all */
    int64_t resume;      /* go on from the checkpoint of this step; RS_TRAIN_NEWEST; 0: begin */
    int attach; /* go on from the arenas of this generation, taken to one step; -1: do not */
    char attach_layout[RS_LAYOUT_TEXT]; /* the layout that they have */
    int64_t attach_step;                /* the step to which they were taken */
    double orphan_minutes;    /* how long a job without a supervisor keeps its state in memory */
    char init[RS_TRAIN_PATH]; /* checkpoint whose weights to begin with; "": made from the seed */
    char init_also[4 * RS_TRAIN_PATH]; /* further folders with files of it, a line each */
    char init_dialect[RS_TRAIN_PATH];  /* whose names it has, a name or a file; "": found */
    char hosts[RS_TRAIN_PATH];         /* file of hosts that worlds are started on; "": this one */
    char rsh_agent[RS_TRAIN_PATH];     /* what reaches a host; "": ssh */
    char address[128];                 /* how other hosts reach the supervisor's; "": its name */
    bool supervised; /* another process has claimed the job directory and sweeps up at the end */
    rs_train_fault fault;
    rs_member *member; /* of a supervised world (member.h); borrowed, not saved; may be NULL */
} rs_train_options;

/* Defaults: seq 256, global batch 8, micro-batch 2, fp32, lr 3e-4, 10 warm-up steps, one thread. */
void rs_train_options_init(rs_train_options *options);
void rs_train_options_fini(rs_train_options *options);

/* The space of the job's state, and its optimizer, once its name was checked. Local. */
rs_status rs_train_space(
    const rs_train_options *options, const rs_model *model, rs_space **out) RS_MUST_CHECK;
const rs_optimizer *rs_train_optimizer(const rs_train_options *options);

/* Appends a switch, written "STEP:LAYOUT". RS_ERR_ARGUMENT says what is wrong with the text. */
rs_status rs_train_options_add_switch(rs_train_options *options, const char *text) RS_MUST_CHECK;

/* "none", "selective", "full", and back. RS_ERR_ARGUMENT. */
rs_status rs_train_recompute_parse(const char *text, rs_recompute *out) RS_MUST_CHECK;
const char *rs_train_recompute_name(rs_recompute recompute);

/* "auto", "arena", "mpi", and back. RS_ERR_ARGUMENT. */
rs_status rs_train_transport_parse(const char *text, rs_train_transport *out) RS_MUST_CHECK;
const char *rs_train_transport_name(rs_train_transport transport);

/*
 * Everything that can be said about the options before ranks exist: the model is readable, every
 * layout named is well-formed, can be trained and fits `ranks`, switches are in order and each
 * changes the layout, the data file is there and large enough. Fills in `ranks` where it is 0.
 * Local.
 */
rs_status rs_train_options_check(rs_train_options *options) RS_MUST_CHECK;

/* JOB/job.json. Saving makes up `id` where it is empty. Loading reads into an initialised object.
 * Local. */
rs_status rs_train_options_save(rs_train_options *options) RS_MUST_CHECK;
rs_status rs_train_options_load(rs_train_options *options, const char *job) RS_MUST_CHECK;

/* What the run tells its program. Texts are valid during the call. */
typedef struct rs_train_start {
    const char *layout;
    const char *meaning; /* "world 4 = tp2 cp1 dp1 pp2" */
    const char *model;
    int ranks;
    int nodes;
    int64_t elements;    /* of the model */
    int64_t state_bytes; /* of the whole space, each element once */
    int64_t steps;
} rs_train_start;

typedef struct rs_train_step {
    int64_t step;
    int64_t steps;
    double loss;
    int64_t tokens; /* of this step */
    double seconds;
    const char *layout;
    int64_t samples; /* so far, this step included */
    double lr;
    double grad_norm; /* before clipping */
    double time;      /* seconds since 1970 */
    bool experts;     /* the model has experts: */
    double aux_loss;  /* the balance loss, which counts beside the loss */
    int64_t close;    /* choices of experts that rounding might turn */
} rs_train_step;

typedef struct rs_train_phases {
    double prepare; /* ahead, while training went on: not part of the pause */
    double plan;
    double quiesce; /* wait for all ranks, and what was not prepared in time */
    double move;
    double verify;
    double commit; /* the new state is the job's, the old one deleted, working memory rebuilt */
} rs_train_phases;

/* Known before anything moves. Bytes of the whole cluster, or of the rank where they are largest.
 */
typedef struct rs_train_forecast {
    int64_t step; /* acts after this step */
    const char *from;
    const char *to;
    int64_t bytes_moved;
    int64_t bytes_minimum;
    int64_t bytes_adopted; /* stay where they lie */
    int64_t rank_bytes_max;
    int64_t rank_bytes_bound;
    const char *bound_kind;
    int64_t peak_safe;
    int64_t peak_tight; /* staging included */
    bool tight;         /* the mode in use */
} rs_train_forecast;

typedef struct rs_train_switched {
    rs_train_forecast forecast;
    int64_t peak_bytes; /* measured, of the rank where it was largest */
    rs_train_phases seconds;
    const char *certificate; /* "ok", "failed", or "none" where it did not come to that */
    rs_status status;        /* RS_OK, or why the job is still in the old layout */
    const char *message;     /* the same in words; "" */
    int world;               /* of the new world that took over; 0: done in place */
    double pause;            /* of a new world: from the end of the old one's last step; else 0 */
    int64_t bytes_ferried;   /* and the bytes that came from other hosts */
} rs_train_switched;

typedef enum rs_train_outcome {
    RS_TRAIN_FINISHED = 0, /* all steps done */
    RS_TRAIN_STOPPED,      /* asked to through the job directory */
    RS_TRAIN_TERMINATED,   /* SIGTERM or SIGINT: the step was finished */
    RS_TRAIN_LEFT          /* another world goes on, or this one was not wanted */
} rs_train_outcome;

/* All members may be NULL. Called on rank 0, but for `failed`. */
typedef struct rs_train_listener {
    void *context;
    void (*start)(void *context, const rs_train_start *start);
    void (*step)(void *context, const rs_train_step *step);
    void (*forecast)(void *context, const rs_train_forecast *forecast); /* before the move */
    void (*switched)(void *context, const rs_train_switched *switched); /* done or rolled back */
    void (*notice)(void *context, const char *text);
    void (*end)(void *context, rs_train_outcome outcome, int64_t step);
    /* On rank 0 where all ranks know of the failure; else on the rank that failed, before it ends
     * the others with MPI_Abort. */
    void (*failed)(void *context, int rank, rs_status status, const char *message);
} rs_train_listener;

/*
 * Trains. Collective over `comm`, which has options->ranks ranks; every rank gives the same
 * options. Handles SIGTERM and SIGINT while it runs. Writes JOB/metrics.jsonl and JOB/status.json,
 * leaves no arena behind unless it is killed. A failure that all ranks know of is returned by all;
 * a rank that fails alone tells its listener and ends the job with MPI_Abort. `outcome` (may be
 * NULL) is set on success.
 */
rs_status rs_train_run(const rs_train_options *options, const rs_train_listener *listener,
    MPI_Comm comm, rs_train_outcome *outcome) RS_MUST_CHECK;

#endif
