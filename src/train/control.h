/*
 * Talking to a running job through its directory: no sockets, so it works wherever the file system
 * is shared.
 *
 * JOB/job.lock is locked (fcntl, open file description) as long as the job lives and says by whom.
 * JOB/status.json is replaced by rename. A request is a file renamed into JOB/requests/; the job's
 * rank 0 looks there between steps and answers in a file beside it, replaced as the request
 * proceeds. The client removes the answer.
 */
#ifndef RS_TRAIN_CONTROL_H
#define RS_TRAIN_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/status.h"

/* ---- the job directory's owner ---- */

typedef struct rs_control_lock rs_control_lock;

/*
 * Makes the job directory where it is absent, and claims it. RS_ERR_EXISTS: a job runs in it (names
 * process and host), or it holds an earlier run (metrics.jsonl) and this is none that goes on from
 * it
 * (`resume`). The claim ends with the process, or:
 */
rs_status rs_control_claim(const char *job, bool resume, rs_control_lock **out) RS_MUST_CHECK;
void rs_control_release(rs_control_lock *lock);

/* True if some process has claimed `job`. `owner` (may be NULL; room for 256 bytes) gets "process
 * 12 on host h". An absent directory is not claimed. */
bool rs_control_is_claimed(const char *job, char *owner);

/* ---- the client ---- */

/* Called with "accepted", "preparing", "moving", ... and a text for people, whenever they change.
 */
typedef void (*rs_control_progress)(void *context, const char *state, const char *message);

/*
 * Asks the job to switch to `layout`. Waits for the outcome if `wait`, else until the job has
 * accepted it. `*reply` (may be NULL) gets the job's last answer, a JSON object with "state",
 * "message" and, when done, the members of the switch event of metrics.jsonl; free() it; NULL where
 * there was no answer. RS_ERR_NOT_FOUND: no such job directory. RS_ERR_STALLED: no job runs there.
 * RS_ERR_ARGUMENT: refused (same layout, too large, cannot be trained). RS_ERR_EXISTS: another
 * switch is pending. RS_ERR_CANCELLED: tried and rolled back, or the job ended first. RS_ERR_PEER:
 * no answer in time.
 */
rs_status rs_control_switch(const char *job, const char *layout, bool wait,
    rs_control_progress progress, void *context, char **reply) RS_MUST_CHECK;

/* The same by a new world of ranks, though it could be done in place. */
rs_status rs_control_renew(const char *job, const char *layout, bool wait,
    rs_control_progress progress, void *context, char **reply) RS_MUST_CHECK;

/* The same for a number of ranks, "+2", "-2" or "6": the job chooses the nearest layout. */
rs_status rs_control_scale(const char *job, const char *ranks, bool wait,
    rs_control_progress progress, void *context, char **reply) RS_MUST_CHECK;

/* Asks the job to leave the host `host`: its ranks go to other hosts, or are fewer. Waits until no
 * process of it is there. RS_ERR_ARGUMENT: no such host, or no other that has room. Otherwise as
 * rs_control_switch. */
rs_status rs_control_drain(const char *job, const char *host, bool wait,
    rs_control_progress progress, void *context, char **reply) RS_MUST_CHECK;

/* Asks the job to give up the world that it is building. RS_ERR_ARGUMENT: there is none. `*reply`
 * as of rs_control_switch. */
rs_status rs_control_cancel(const char *job, char **reply) RS_MUST_CHECK;

/* Asks the job to stop after its current step; waits until its directory is released if `wait`. */
rs_status rs_control_stop(const char *job, bool wait) RS_MUST_CHECK;

/* Asks the job to save after its current step; waits for the outcome if `wait`. Otherwise as
 * rs_control_switch. */
rs_status rs_control_save(const char *job, bool wait, rs_control_progress progress, void *context,
    char **reply) RS_MUST_CHECK;

/* JOB/status.json with "running" added; free() it. RS_ERR_NOT_FOUND. */
rs_status rs_control_status(const char *job, char **json) RS_MUST_CHECK;

/* ---- the job's side, rank 0 ---- */

typedef enum rs_control_kind {
    RS_CONTROL_SWITCH = 0,
    RS_CONTROL_STOP,
    RS_CONTROL_SAVE,
    RS_CONTROL_SCALE,  /* another number of ranks: `layout` is "+2", "-2" or "6" */
    RS_CONTROL_CANCEL, /* no new world after all */
    RS_CONTROL_DRAIN   /* leave a host: `layout` is its name, handed on to a world: the number of
                          ranks that have room elsewhere */
} rs_control_kind;

#define RS_CONTROL_NAME 192
#define RS_CONTROL_LAYOUT 256

typedef struct rs_control_request {
    char name[RS_CONTROL_NAME]; /* file name; whom to answer */
    rs_control_kind kind;
    char layout[RS_CONTROL_LAYOUT];
    bool new_world;                /* SWITCH: by a new world, though it could be done in place */
    char drain[RS_CONTROL_LAYOUT]; /* DRAIN handed on to a world: the host that is left; else "" */
} rs_control_request;

typedef struct rs_control rs_control;

/* Makes JOB/requests and removes what an earlier job left there. */
rs_status rs_control_open(const char *job, rs_control **out) RS_MUST_CHECK;

/* For who answers what another process takes and hands on (member.h): removes nothing, and refuses
 * nothing when it is closed. */
rs_status rs_control_attach(const char *job, rs_control **out) RS_MUST_CHECK;

/* Refuses requests nobody has taken, and closes. */
void rs_control_close(rs_control *control);

/* Takes the oldest request, if there is one. Malformed ones are refused here. Cheap: reads the
 * directory at most every 50 ms. */
bool rs_control_poll(rs_control *control, rs_control_request *out);

/* The name of a kind of request, and back (RS_ERR_ARGUMENT). */
const char *rs_control_kind_name(rs_control_kind kind);
rs_status rs_control_kind_parse(const char *name, rs_control_kind *out) RS_MUST_CHECK;

/* Answers `request` (its name). `state` is "accepted", "preparing", ... or a last one: "done",
 * "failed", "refused", "busy". `members` (may be NULL) is a JSON object whose members the answer
 * gets too. */
rs_status rs_control_answer(rs_control *control, const char *name, const char *state,
    const char *message, const char *members) RS_MUST_CHECK;

/* Replaces the file JOB/`name` by `text` atomically. */
rs_status rs_control_replace(const char *job, const char *name, const char *text) RS_MUST_CHECK;

#endif
