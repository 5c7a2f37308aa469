/*
 * How the state of a job begins: from a checkpoint of the job, from the weights of another one, or
 * anew from the seed.
 *
 * Going on: rank 0 lists the job's checkpoints; beginning with the newest, all ranks read their
 * shards from it, whatever layout wrote it, and the content sums of what they have now are held
 * against the manifest's. One that cannot be read, does not fit or whose sums differ is named and
 * passed over, on all ranks alike. Then what was later than it is set aside, so that the job can
 * save the same steps again, and the lines of later steps leave metrics.jsonl.
 *
 * A rank reads as many bytes as its shards have.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "reshard/certificate.h"
#include "reshard/move_mpi.h"
#include "reshard/native.h"
#include "train/comm.h"
#include "train/estate.h"
#include "train/save.h"

/* What rank 0 tells of the checkpoints. */
typedef struct choice {
    int64_t *steps;
    size_t count;
    rs_text skipped; /* "step 30: why; " */
    int64_t bytes;   /* read by all ranks */
} choice;

/* Rank 0: the checkpoints to try, in this order. */
static rs_status list(const rs_job *job, choice *c)
{
    char folder[RS_TRAIN_PATH + 16];
    int64_t wanted = job->options->resume;
    RS_TRY(rs_native_find(rs_save_folder(job->options, folder), &c->steps, &c->count));
    if (wanted == RS_TRAIN_NEWEST && c->count > 0)
        return RS_OK;
    for (size_t i = 0; i < c->count; i++) {
        if (c->steps[i] != wanted)
            continue;
        c->steps[0] = wanted;
        c->count = 1;
        return RS_OK;
    }
    rs_text there = {0};
    for (size_t i = 0; i < c->count; i++)
        rs_text_append(&there, "%s%" PRId64, i > 0 ? ", " : "", c->steps[i]);
    rs_status status =
        wanted == RS_TRAIN_NEWEST
            ? rs_error_set(RS_ERR_NOT_FOUND, "%s: there is no checkpoint to go on from", folder)
            : rs_error_set(RS_ERR_NOT_FOUND,
                  "%s: there is no checkpoint of step %" PRId64 "; there are: %s", folder, wanted,
                  there.data != NULL ? there.data : "none");
    rs_text_fini(&there);
    return status;
}

static rs_status load(rs_job *job, int64_t step, uint64_t *before, int64_t *bytes)
{
    char folder[RS_TRAIN_PATH + 16];
    rs_native *native = NULL;
    *bytes = 0;
    RS_TRY(rs_native_open_step(rs_save_folder(job->options, folder), step, &native));
    rs_status status = rs_native_fits(native, job->space, job->rank, job->ranks);
    if (status == RS_OK && job->state.holds)
        status = rs_native_load(
            native, job->state.placement, job->rank, rs_state_memory(&job->state), bytes);
    if (status == RS_OK && job->rank == 0)
        status = rs_native_words(native, job->space, before);
    rs_native_close(native);
    return status;
}

/* The same outcome on all ranks. */
static rs_status try_step(rs_job *job, int64_t step, int64_t *bytes)
{
    size_t words = rs_sums_word_count(job->space);
    uint64_t *before = rs_calloc(words, sizeof *before);
    uint64_t *after = rs_calloc(words, sizeof *after);
    const rs_memory *now = rs_state_memory(&job->state);
    rs_status status = RS_OK;
    if (before == NULL || after == NULL)
        status = rs_error_memory(words * sizeof *before);
    if (status == RS_OK)
        status = load(job, step, before, bytes);
    if (status == RS_OK && now != NULL)
        status = rs_words_add_memory(job->state.placement, job->rank, now, after);
    status = rs_comm_agree(job->comm, status);
    if (status == RS_OK)
        status = rs_move_verify(job->comm, job->space, before, after);
    free(before);
    free(after);
    return status;
}

static rs_status count_bytes(const rs_job *job, int64_t mine, int64_t *all)
{
    int64_t *each = NULL;
    if (job->rank == 0 && (each = rs_calloc((size_t)job->ranks, sizeof *each)) == NULL)
        return rs_error_memory((size_t)job->ranks * sizeof *each);
    rs_comm_gather(job->comm, 0, &mine, sizeof mine, each);
    *all = 0;
    for (int r = 0; r < job->ranks && each != NULL; r++)
        *all += each[r];
    free(each);
    return RS_OK;
}

/* Rank 0: the job's directory is that of a job after step `job->step`. */
static rs_status settle(rs_job *job, const choice *c)
{
    char folder[RS_TRAIN_PATH + 16];
    size_t aside = 0;
    RS_TRY(rs_save_clean(rs_save_folder(job->options, folder)));
    RS_TRY(rs_native_abandon_after(folder, job->step, &aside));
    RS_TRY(rs_metrics_cut(job->metrics, job->step));
    json_t *event = json_pack("{s:s,s:I,s:s,s:s,s:I,s:I,s:f}", "event", "resume", "step",
        (json_int_t)job->step, "layout", job->layout, "skipped",
        c->skipped.data != NULL ? c->skipped.data : "", "abandoned", (json_int_t)aside,
        "bytes_read", (json_int_t)c->bytes, "time", rs_wall_seconds());
    char *line = event != NULL ? json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(event);
    if (line == NULL)
        return rs_error_memory(1);
    rs_status status = rs_metrics_line(job->metrics, line);
    free(line);
    RS_TRY(status);
    while (job->scheduled < job->options->switch_count &&
           job->options->switches[job->scheduled].step < job->step)
        job->scheduled++;
    char bytes[RS_HUMAN];
    rs_job_notice(job, "goes on from step %" PRId64 ": %s/step-%08" PRId64 " (%s read)%s",
        job->step, folder, job->step, rs_human_bytes(c->bytes, bytes),
        aside > 0 ? "; later checkpoints are kept as abandoned" : "");
    return RS_OK;
}

static rs_status resume(rs_job *job)
{
    choice c = {0};
    int64_t count, mine = 0;
    rs_status status = rs_comm_agree(job->comm, job->rank == 0 ? list(job, &c) : RS_OK);
    if (status != RS_OK)
        goto out;
    count = (int64_t)c.count;
    rs_comm_broadcast(job->comm, 0, &count, sizeof count);
    bool found = false;
    for (int64_t i = 0; i < count && !found; i++) {
        int64_t step = job->rank == 0 ? c.steps[i] : 0;
        rs_comm_broadcast(job->comm, 0, &step, sizeof step);
        status = try_step(job, step, &mine);
        found = status == RS_OK;
        job->step = step;
        if (!found) {
            rs_job_notice(job, "step %" PRId64 " is passed over: %s", step, rs_error_message());
            rs_text_append(&c.skipped, "step %" PRId64 ": %s; ", step, rs_error_message());
        }
    }
    if (!found) {
        status = rs_error_set(RS_ERR_NOT_FOUND, "no checkpoint of %s can be gone on from: %s",
            job->options->job, c.skipped.data != NULL ? c.skipped.data : "");
        goto out;
    }
    status = count_bytes(job, mine, &c.bytes);
    if (status == RS_OK && job->rank == 0)
        status = settle(job, &c);
    status = rs_comm_agree(job->comm, status);
out:
    rs_text_fini(&c.skipped);
    free(c.steps);
    return status;
}

rs_status rs_resume_state(rs_job *job)
{
    char folder[RS_TRAIN_PATH + 16];
    if (job->options->resume != 0)
        return resume(job);
    if (job->rank == 0)
        RS_TRY(rs_save_clean(rs_save_folder(job->options, folder)));
    if (job->options->init[0] != '\0')
        return rs_init_state(job);
    return rs_state_fill(&job->state, job->options->seed);
}
