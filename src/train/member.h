/*
 * A world's side of its supervisor: who it is, that it lives, what it is told.
 *
 * A job that `reshard train` supervises runs as worlds: one generation of ranks after the other.
 * Each host's lowest rank holds a stream to the supervisor (elastic/link.h); what it receives there
 * counts for all ranks of its host. All ranks show on the host's board that they live.
 *
 * A ferry (ferry.h) is a member too: what it is told is the world that it carries for.
 *
 * Usual order, on every rank: rs_member_join after MPI_Init, rs_train_run with options.member set,
 * rs_member_leave.
 */
#ifndef RS_TRAIN_MEMBER_H
#define RS_TRAIN_MEMBER_H

#include <jansson.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "train/train.h"

/* What a world takes over from; a fresh one has ranks 0. */
typedef struct rs_origin {
    int ranks;
    int generation;
    char layout[RS_LAYOUT_TEXT];
    int *kept;  /* old rank that each rank of this world continues, -1: none */
    int *hosts; /* host of each old rank */
} rs_origin;

/* What the supervisor says of a world when it joins. */
typedef struct rs_member_world {
    int number;
    int generation; /* the first of its own */
    char layout[RS_LAYOUT_TEXT];
    int ranks;
    int64_t scheduled; /* entries of options.switches that are done */
    rs_origin from;
    int *hosts;  /* host of each rank, where it takes over */
    int *stands; /* a ferry's: the host that each of its processes stands for; else NULL */
    int attach;  /* generation of the arenas that it goes on from; -1: none */
    char attach_layout[RS_LAYOUT_TEXT]; /* the layout that they have */
    int64_t attach_step;                /* the step to which they were taken */
    bool goes_back; /* what was in memory is lost: it goes on from the newest checkpoint */
} rs_member_world;

/* In-place switches of a world count its generations up from world number times this. */
#define RS_WORLD_GENERATIONS (1 << 16)

/* Collective over `comm`, all ranks of the world. `board`: path of the host's board for this world;
 * `address`: where the supervisor listens; JOB/secret is its secret. RS_ERR_PEER: no answer. */
rs_status rs_member_join(const char *job, const char *address, int world, const char *board,
    MPI_Comm comm, rs_member **out) RS_MUST_CHECK;
void rs_member_leave(rs_member *member);

const rs_member_world *rs_member_world_of(const rs_member *member);

/* False once the supervisor has not answered a beat of this host for the time of its lease: it may
 * count this world as lost then and have another one go on. Rank 0, which may write the job's files
 * only while it holds; a job on one host has no lease and always does. From any thread. */
bool rs_member_holds(rs_member *member);

/* True if a signal to end does not end the job: the supervisor, who is told with the beats of the
 * host, has the job leave the host instead. */
bool rs_member_moves_away(const rs_member *member);

/* True if the supervisor listens no more. Rank 0. */
bool rs_member_is_orphan(rs_member *member);

/* Tells the supervisor {"say": `what`, ...}; `members` (may be NULL) is consumed. Rank 0. */
rs_status rs_member_tell(rs_member *member, const char *what, json_t *members) RS_MUST_CHECK;

/* The next word of the supervisor, if there is one ("do": what), else NULL. Rank 0; json_decref it.
 */
json_t *rs_member_poll(rs_member *member);

/* True if that is what a word (NULL: none) tells to do. */
bool rs_member_says(const json_t *word, const char *what);

/* Sleeps until the supervisor speaks: all ranks get the same word. Collective. RS_ERR_PEER: the
 * supervisor is gone. */
rs_status rs_member_sleep(rs_member *member, json_t **word) RS_MUST_CHECK;

#endif
