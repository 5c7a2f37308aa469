/*
 * Saving while the job trains.
 *
 * At a step boundary (order SAVE) every rank copies what it has to write; a thread of its own then
 * writes and syncs it while training goes on. Each rank tells with its next steps' numbers whether
 * it is done; when all are, or when something cannot wait any longer (a switch, the end, the next
 * save), order SAVED collects what the manifest says, and a thread of rank 0 commits.
 *
 * 1. Training waits for the copy, and for nothing else, unless the disk is slower than the
 * interval.
 * 2. A failure anywhere ends this save alone: it is reported, its files are removed, older
 *    checkpoints stay, training goes on, and the next interval tries again.
 * 3. Between SAVE and SAVED the layout does not change.
 * 4. Only rank 0 decides and commits. The job directory is locked by the job, so no other does.
 *
 * Cost: as much memory as the rank writes, kept; a thread that hashes and writes.
 */
#include "train/save.h"

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "reshard/native.h"
#include "train/attach.h"
#include "train/comm.h"
#include "train/group_list.h"
#include "train/trainer.h"

#define TAG_RECORD 93
#define REQUESTS 16
#define TOUCH_BYTES ((int64_t)1 << 20)

/* A thread and how it ended. */
typedef struct worker {
    pthread_t thread;
    bool running; /* started, not joined */
    atomic_bool done;
    rs_status status;
    char message[1000];
} worker;

struct rs_saver {
    rs_job *job;
    char folder[RS_TRAIN_PATH + 16];
    rs_save_name name;
    rs_save *copy; /* of the placement of the current layout; NULL: none yet */
    bool ahead;    /* its memory is made, or cannot be */
    bool active;   /* between SAVE and SAVED */
    worker write;
    double pause; /* seconds of the copy */
    /* rank 0 */
    bool all_written;
    bool committing;
    worker commit;
    char **records;
    char layout[RS_LAYOUT_TEXT]; /* of the state that was copied */
    int world;
    int64_t tried; /* step of the last try */
    double time;   /* when it was */
    double begun;
    double worst_pause;
    int64_t bytes;
    char requests[REQUESTS][RS_CONTROL_NAME];
    int request_count, taken; /* waiting; of them, to be answered by the save under way */
};

char *rs_save_folder(const rs_train_options *options, char path[RS_TRAIN_PATH + 16])
{
    snprintf(path, RS_TRAIN_PATH + 16, "%s/checkpoints", options->job);
    return path;
}

rs_status rs_saver_create(rs_job *job, rs_saver **out)
{
    rs_saver *s = rs_calloc(1, sizeof *s);
    if (s == NULL)
        return rs_error_memory(sizeof *s);
    s->job = job;
    s->records = rs_calloc((size_t)job->ranks, sizeof *s->records);
    if (s->records == NULL) {
        free(s);
        return rs_error_memory((size_t)job->ranks * sizeof *s->records);
    }
    rs_save_folder(job->options, s->folder);
    s->name = (rs_save_name){.folder = s->folder, .job = job->id};
    /* A state that comes from a checkpoint is saved; one that comes from memory may not be. */
    s->tried = rs_attaches(job) ? -1 : job->step;
    s->time = rs_clock_seconds();
    *out = s;
    return RS_OK;
}

/* ---- threads ---- */

static void finish(worker *w, rs_status status)
{
    w->status = status;
    snprintf(w->message, sizeof w->message, "%s", status != RS_OK ? rs_error_message() : "");
    atomic_store(&w->done, true);
}

static void start(worker *w, void *(*run)(void *), rs_saver *s)
{
    atomic_store(&w->done, false);
    int error = pthread_create(&w->thread, NULL, run, s);
    w->running = error == 0;
    if (error != 0)
        finish(w, rs_error_errno(error, "cannot start a thread that saves"));
}

static void join(worker *w)
{
    if (w->running)
        pthread_join(w->thread, NULL);
    w->running = false;
}

static void *write_run(void *context)
{
    rs_saver *s = context;
    rs_crash_point("save.write");
    finish(&s->write, rs_save_write(s->copy, &s->name));
    return NULL;
}

char *rs_save_extras(const rs_job *job, int64_t step)
{
    const rs_train_options *o = job->options;
    char model[RS_TRAIN_PATH], data[RS_TRAIN_PATH];
    /* A path is to be found from anywhere; a preset's name is no path. */
    if (strlen(o->model) >= sizeof model || realpath(o->model, model) == NULL)
        snprintf(model, sizeof model, "%s", o->model);
    if (strlen(o->data) >= sizeof data || realpath(o->data, data) == NULL)
        snprintf(data, sizeof data, "%s", o->data);
    json_t *root = json_pack("{s:{s:s,s:s,s:s,s:s,s:s,s:I,s:f,s:f,s:I,s:I,s:I,s:I,s:I,s:I}}",
        "training", "model", model, "optimizer", o->optimizer, "freeze", o->freeze, "data", data,
        "dtype", rs_dtype_name(o->dtype), "seed", (json_int_t)o->seed, "dropout", o->dropout, "lr",
        o->lr, "warmup", (json_int_t)o->warmup, "steps", (json_int_t)o->steps, "global_batch",
        (json_int_t)o->global_batch, "micro_batch", (json_int_t)o->micro_batch, "seq",
        (json_int_t)o->seq, "samples", (json_int_t)(step * o->global_batch));
    if (root != NULL)
        json_object_set_new(root, "param_groups", rs_group_list(o, job->space, step));
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(root);
    return text;
}

static rs_status permit(void *context)
{
    return rs_job_may_write(context);
}

static rs_status commit(rs_saver *s)
{
    rs_job *job = s->job;
    rs_save_about about = {
        .layout = s->layout, .world = s->world, .permit = permit, .context = job};
    char *extras = rs_save_extras(job, s->name.step);
    if (extras == NULL)
        return rs_error_memory(1);
    about.extras = extras;
    rs_status status = rs_save_commit(
        &s->name, job->space, &about, (const char *const *)s->records, (size_t)job->ranks);
    free(extras);
    return status;
}

static void *commit_run(void *context)
{
    rs_saver *s = context;
    rs_crash_point("save.commit");
    finish(&s->commit, commit(s));
    return NULL;
}

/* ---- rank 0: what is told about a save ---- */

/* To those whose request the save under way is. */
static void answer(rs_saver *s, const char *state, const char *text, const char *members)
{
    rs_job *job = s->job;
    for (int i = 0; i < s->taken; i++)
        if (rs_control_answer(job->control, s->requests[i], state, text, members) != RS_OK)
            rs_job_notice(job, "a request to save cannot be answered: %s", rs_error_message());
    memmove(s->requests, s->requests + s->taken,
        (size_t)(s->request_count - s->taken) * sizeof *s->requests);
    s->request_count -= s->taken;
    s->taken = 0;
}

/* To metrics.jsonl, to whom asked, and to the listener. */
static void report(rs_saver *s, rs_status status, const char *message)
{
    rs_job *job = s->job;
    char text[RS_TRAIN_PATH + 1200], bytes[RS_HUMAN], seconds[RS_HUMAN], pause[RS_HUMAN];
    double all = rs_clock_seconds() - s->begun;
    if (status == RS_OK)
        snprintf(text, sizeof text,
            "saved step %" PRId64 ": %s/step-%08" PRId64 " (%s in %s, training paused for %s)",
            s->name.step, s->folder, s->name.step, rs_human_bytes(s->bytes, bytes),
            rs_human_seconds(all, seconds), rs_human_seconds(s->worst_pause, pause));
    else
        snprintf(text, sizeof text, "step %" PRId64 " was not saved: %s", s->name.step, message);
    json_t *event = json_pack("{s:s,s:I,s:I,s:f,s:f,s:f}", "event", "save", "step",
        (json_int_t)s->name.step, "bytes", (json_int_t)s->bytes, "pause", s->worst_pause, "seconds",
        all, "time", rs_wall_seconds());
    if (event != NULL && status != RS_OK)
        json_object_set_new(event, "error", json_string(message));
    char *line = event != NULL ? json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    if (line == NULL || rs_metrics_line(job->metrics, line) != RS_OK)
        rs_job_notice(job, "the save is not in metrics.jsonl: %s", rs_error_message());
    answer(s, status == RS_OK ? "done" : "failed", text, line);
    free(line);
    json_decref(event);
    rs_job_notice(job, "%s", text);
}

/* Takes back what a save that failed has written. */
static void give_up(rs_saver *s, rs_status status, const char *message)
{
    char kept[1000];
    snprintf(kept, sizeof kept, "%s", message);
    if (rs_save_abandon(&s->name) != RS_OK)
        rs_job_notice(s->job, "files of a save are left over: %s", rs_error_message());
    report(s, status, kept);
}

static void settle(rs_saver *s)
{
    if (!s->committing)
        return;
    join(&s->commit);
    s->committing = false;
    for (int r = 0; r < s->job->ranks; r++) {
        free(s->records[r]);
        s->records[r] = NULL;
    }
    if (s->commit.status != RS_OK) {
        give_up(s, s->commit.status, s->commit.message);
        return;
    }
    report(s, RS_OK, "");
    int64_t keep = s->job->options->keep;
    if (keep > 0 && rs_save_prune(s->folder, keep) != RS_OK)
        rs_job_notice(s->job, "an old checkpoint is not removed: %s", rs_error_message());
}

void rs_saver_settle(rs_job *job)
{
    if (job->saver != NULL && job->rank == 0)
        settle(job->saver);
}

/* ---- rank 0: when to save ---- */

bool rs_saver_request(rs_saver *s, const char *name)
{
    if (s->request_count == REQUESTS)
        return false;
    snprintf(s->requests[s->request_count++], RS_CONTROL_NAME, "%s", name);
    return true;
}

static bool is_due(const rs_saver *s, int64_t step, rs_order_kind kind)
{
    const rs_train_options *o = s->job->options;
    if (s->request_count > s->taken)
        return true;
    if (step == s->tried || step == 0)
        return false;
    return (kind == RS_ORDER_STOP && o->save_on_exit) ||
           (o->save_every > 0 && step % o->save_every == 0) ||
           (o->save_minutes > 0 && rs_clock_seconds() - s->time >= 60 * o->save_minutes);
}

/* Rank 0's own part before the order: the folder. False: it cannot be, and that was told. */
static bool prepare(rs_saver *s, int64_t step)
{
    s->name.step = step;
    s->tried = step;
    s->time = s->begun = rs_clock_seconds();
    s->taken = s->request_count;
    s->bytes = 0;
    s->worst_pause = 0;
    rs_status status = rs_save_prepare(&s->name);
    if (status == RS_OK)
        return true;
    char message[RS_TRAIN_PATH + 1200];
    if (status == RS_ERR_EXISTS) {
        snprintf(message, sizeof message, "step %" PRId64 " is saved already: %s/step-%08" PRId64,
            step, s->folder, step);
        answer(s, "done", message, NULL);
    } else {
        snprintf(message, sizeof message, "%s", rs_error_message());
        report(s, status, message);
    }
    return false;
}

rs_order_kind rs_saver_decide(rs_job *job, int64_t step, rs_order_kind kind)
{
    rs_saver *s = job->saver;
    if (s->committing && atomic_load(&s->commit.done))
        settle(s);
    bool due = is_due(s, step, kind);
    bool cannot_wait =
        due || kind == RS_ORDER_SWITCH || kind == RS_ORDER_STOP || kind == RS_ORDER_LEAVE;
    if (s->active)
        return s->all_written || cannot_wait ? RS_ORDER_SAVED : RS_ORDER_NONE;
    if (!due)
        return RS_ORDER_NONE;
    settle(s);
    return prepare(s, step) ? RS_ORDER_SAVE : RS_ORDER_NONE;
}

void rs_saver_all_written(rs_saver *s, bool all)
{
    s->all_written = s->active && all;
}

/* ---- every rank ---- */

void rs_saver_ahead(rs_job *job, double seconds)
{
    rs_saver *s = job->saver;
    const rs_train_options *o = job->options;
    double begun = rs_clock_seconds();
    if (s->ahead || (o->save_every == 0 && o->save_minutes == 0))
        return;
    if (s->copy == NULL && rs_save_reserve(job->state.own, job->rank, &s->copy) != RS_OK)
        s->ahead = true;
    while (!s->ahead && rs_clock_seconds() - begun <= seconds)
        s->ahead = rs_save_touch(s->copy, TOUCH_BYTES) == 0;
}

bool rs_saver_written(const rs_saver *s)
{
    return !s->active || atomic_load(&s->write.done);
}

void rs_saver_begin(rs_job *job)
{
    rs_saver *s = job->saver;
    double begun = rs_clock_seconds();
    s->active = true;
    s->all_written = false;
    s->name.step = job->step;
    s->world = job->world.size;
    snprintf(s->layout, sizeof s->layout, "%s", job->layout);
    rs_status status =
        rs_save_begin(job->state.own, job->rank, rs_state_memory(&job->state), &s->copy);
    s->pause = rs_clock_seconds() - begun;
    rs_crash_point("save.begin");
    if (status == RS_OK)
        start(&s->write, write_run, s);
    else
        finish(&s->write, status);
}

/* What a rank tells of its part. */
typedef struct part {
    int status;
    double pause;
    int64_t bytes;
    int64_t length; /* of the record, with its NUL */
    char message[1000];
} part;

/* Rank 0: the records, in the order of ranks. All that were announced are received. */
static rs_status collect(rs_saver *s, const part *parts, char *own)
{
    rs_job *job = s->job;
    rs_status status = RS_OK;
    s->records[0] = own;
    for (int r = 0; r < job->ranks; r++) {
        s->bytes += parts[r].bytes;
        s->worst_pause = parts[r].pause > s->worst_pause ? parts[r].pause : s->worst_pause;
        if (parts[r].status != RS_OK && status == RS_OK)
            status = rs_error_set((rs_status)parts[r].status, "rank %d: %s", r, parts[r].message);
        if (r == 0 || parts[r].length == 0)
            continue;
        s->records[r] = rs_calloc((size_t)parts[r].length, 1);
        if (s->records[r] == NULL)
            return rs_error_memory((size_t)parts[r].length); /* ends the job: a rank would wait */
        rs_comm_receive(job->comm, r, TAG_RECORD, s->records[r], (size_t)parts[r].length);
    }
    s->commit.status = status;
    snprintf(s->commit.message, sizeof s->commit.message, "%s",
        status != RS_OK ? rs_error_message() : "");
    return RS_OK;
}

rs_status rs_saver_end(rs_job *job)
{
    rs_saver *s = job->saver;
    part *parts = NULL, mine;
    char *record = NULL;
    join(&s->write);
    s->active = false;
    memset(&mine, 0, sizeof mine);
    rs_status status = s->write.status;
    snprintf(mine.message, sizeof mine.message, "%s", s->write.message);
    if (status == RS_OK) {
        status = rs_save_record(s->copy, &record);
        if (status != RS_OK)
            snprintf(mine.message, sizeof mine.message, "%.999s", rs_error_message());
    }
    mine.status = (int)status;
    mine.pause = s->pause;
    mine.bytes = s->copy != NULL ? rs_save_bytes(s->copy) : 0;
    mine.length = record != NULL ? (int64_t)strlen(record) + 1 : 0;
    if (job->rank == 0 && (parts = rs_calloc((size_t)job->ranks, sizeof *parts)) == NULL) {
        free(record);
        return rs_error_memory((size_t)job->ranks * sizeof *parts);
    }
    rs_comm_gather(job->comm, 0, &mine, sizeof mine, parts);
    if (job->rank != 0) {
        if (record != NULL)
            rs_comm_send(job->comm, 0, TAG_RECORD, record, (size_t)mine.length);
        free(record);
        return RS_OK;
    }
    status = collect(s, parts, record);
    free(parts);
    RS_TRY(status);
    s->committing = true;
    if (s->commit.status == RS_OK)
        start(&s->commit, commit_run, s);
    else
        settle(s);
    return RS_OK;
}

void rs_saver_forget(rs_saver *s)
{
    rs_save_destroy(s->copy);
    s->copy = NULL;
    s->ahead = false;
}

void rs_saver_destroy(rs_saver *s)
{
    if (s == NULL)
        return;
    join(&s->write);
    join(&s->commit);
    rs_save_destroy(s->copy);
    for (int r = 0; r < s->job->ranks; r++)
        free(s->records[r]);
    free(s->records);
    free(s);
}
