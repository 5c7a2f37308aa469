/*
 * A job that outlives its processes: what its state is, and taking it to a whole step after a
 * crash.
 *
 * The state of a job is one *generation* of arenas, named by the job's *record*: a small file in
 * the job directory, replaced by rename after file and folder were synced, so that it always names
 * exactly one generation. Arenas of any other generation are never read as state. The record has
 * one writer at a time, the job's owner: whoever holds the claim on the job directory, or, while a
 * world of ranks that it started lives, rank 0 of that world.
 *
 * Usual order after a crash (the owner): rs_record_read; rs_keeper_open of its job;
 * rs_elastic_fence, so that no process writes to any arena; rs_elastic_survey, which says at which
 * step every rank stands and to which step all can be taken; the program finishes the updates of
 * the ranks that are behind (only it knows its optimizer; ledger.h) and rebuilds what follows from
 * them; rs_record_write with the next epoch. Then a new world maps the arenas
 * again, or pulls from them into a generation of its own (rs_move_pull) and commits that.
 *
 * All functions are local: they see the arenas of this node. docs/elastic.md has the argument.
 */
#ifndef RESHARD_ELASTIC_H
#define RESHARD_ELASTIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/arena.h"
#include "reshard/layout.h"
#include "reshard/ledger.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the record ---- */

/* Texts are owned by the record. */
typedef struct rs_record {
    int64_t epoch;               /* rises each time an owner takes over */
    char job[49];                /* names the arenas, see rs_keeper_open */
    char boot[40];               /* of the machine that has them */
    char folder[4096];           /* of the arenas; "": the default */
    int generation;              /* that is the state */
    char layout[RS_LAYOUT_TEXT]; /* it has */
    int *numbering;              /* the process rank of each rank of the layout; NULL: its own */
    size_t numbering_count;
    int *nodes; /* across which state is mirrored: the node of each rank, of this layout and of
                   `building_layout`; NULL: it is not */
    size_t node_count;
    int building; /* generation that a tight move fills, -1: none */
    char building_layout[RS_LAYOUT_TEXT];
    int64_t building_step; /* the step of the state that it moves */
    char *run;             /* JSON object: what the run goes by; may be NULL */
} rs_record;

/* A record with nothing in it but this machine's boot. rs_record_fini also after a failure. */
void rs_record_init(rs_record *record);
void rs_record_fini(rs_record *record);

/* Reads JOB/state.json. RS_ERR_NOT_FOUND: the job has no state in memory; RS_ERR_MALFORMED names
 * the member. `out` is initialised here. */
rs_status rs_record_read(const char *job, rs_record *out) RS_MUST_CHECK;

/* Replaces it; when this returns RS_OK the new one is on disk. After an error either may be. */
rs_status rs_record_write(const char *job, const rs_record *record) RS_MUST_CHECK;

/* Removes it: the job has no state in memory any more. Absent is no error. */
rs_status rs_record_remove(const char *job) RS_MUST_CHECK;

/* RS_ERR_MISMATCH: the machine was started anew since the record was written. */
rs_status rs_record_check_boot(const rs_record *record) RS_MUST_CHECK;

/* ---- fence and survey ---- */

typedef struct rs_fenced {
    int arenas; /* that there are, of all generations */
    int killed; /* processes that had to be */
} rs_fenced;

/* Ends every process that maps an arena of the job for writing, and waits until none does.
 * RS_ERR_STALLED: one holds on after `seconds`. */
rs_status rs_elastic_fence(rs_keeper *keeper, double seconds, rs_fenced *out) RS_MUST_CHECK;

/* Where one rank stands. */
typedef struct rs_standing {
    int64_t ready, updating, step, derived;
    bool lost; /* its arena or ledger is gone, or is none of this state; the words mean nothing */
} rs_standing;

typedef struct rs_survey {
    int world;              /* ranks of the layout */
    rs_standing *standings; /* per rank */
    int64_t step;           /* to which all that are there are taken */
    int behind;             /* ranks whose update of that step is not complete */
    int lost;               /* ranks that are not there */
    char reason[512];       /* why the first of them is not, and what kind of error that is */
    rs_status verdict;
} rs_survey;

/*
 * Looks at all arenas and ledgers of the generation. The step is the least that any rank is ready
 * for, k; where ranks are lost, k only if somebody has begun to update to it, else k - 1, which
 * nobody has left yet. Whether what is there is enough is for rs_survivors_create and a plan to
 * say. RS_ERR_NOT_FOUND, RS_ERR_MALFORMED or RS_ERR_MISMATCH: all are lost, or one does not fit the
 * others; then the generation is no whole state.
 */
rs_status rs_elastic_survey(
    rs_keeper *keeper, int generation, int world, rs_survey *out) RS_MUST_CHECK;
void rs_survey_fini(rs_survey *survey);

/* The two halves of that, for a job on several hosts: each host's own look, which finds the ranks
 * of others lost, and, after who asked has put them together (a rank is lost that no host has), the
 * judgement: sets step and behind. */
rs_status rs_elastic_look(
    rs_keeper *keeper, int generation, int world, rs_survey *out) RS_MUST_CHECK;
rs_status rs_survey_judge(rs_survey *survey) RS_MUST_CHECK;

/*
 * The placement `base` without the holders that are `lost` (one entry per holder): what is left
 * after nodes were lost with their arenas. A plan from it fails with RS_ERR_MISMATCH, naming an
 * element, where it needs what only they had. `base` is borrowed; the caller owns `*out`.
 */
rs_status rs_survivors_create(
    const rs_placement *base, const bool *lost, rs_placement **out) RS_MUST_CHECK;

/* Removes the arenas of a generation, or, with `generation` -1, of all but `keep`; what `keep` has
 * adopted of them stays. */
rs_status rs_elastic_delete(rs_keeper *keeper, int generation, int keep) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
