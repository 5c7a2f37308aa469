/*
 * metrics.jsonl and status.json.
 *
 * 1. A line is one write() to a descriptor opened for appending. One that was cut off all the same
 * (a power cut, a full disk) is taken out when the job goes on.
 * 2. A step's line is written once, after the step has committed.
 * 3. Losses and norms have nine significant digits, so that a float32 is read back as it was.
 */
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "train/control.h"

struct rs_metrics {
    const rs_train_options *options;
    char *path;
    int fd;
    rs_train_step last; /* zero before the first */
    double reported;
    char host[128];
    double started;
};

rs_status rs_metrics_open(const rs_train_options *options, rs_metrics **out)
{
    rs_status status = RS_OK;
    rs_metrics *m = rs_calloc(1, sizeof *m);
    if (m == NULL)
        return rs_error_memory(sizeof *m);
    m->options = options;
    m->fd = -1;
    m->started = rs_wall_seconds();
    gethostname(m->host, sizeof m->host - 1);
    rs_text path = {0};
    rs_text_append(&path, "%s/metrics.jsonl", options->job);
    RS_TRY_GOTO(rs_text_take(&path, &m->path), fail);
    /* A supervisor has seen to it already, and may have written of its world. */
    bool begins = options->resume == 0 && options->member == NULL;
    int fresh = begins ? O_EXCL : 0;
    m->fd = open(m->path, O_WRONLY | O_CREAT | fresh | O_APPEND | O_CLOEXEC, 0666);
    if (m->fd < 0) {
        status = rs_error_errno(errno, "cannot create %s", m->path);
        goto fail;
    }
    *out = m;
    return RS_OK;

fail:
    rs_metrics_close(m);
    return status;
}

void rs_metrics_close(rs_metrics *m)
{
    if (m == NULL)
        return;
    if (m->fd >= 0)
        close(m->fd);
    free(m->path);
    free(m);
}

const rs_train_step *rs_metrics_last(const rs_metrics *m)
{
    return &m->last;
}

void rs_metrics_go_on(rs_metrics *m, const rs_train_step *last)
{
    m->last = *last;
}

/* Takes the text: appends it as one line. */
static rs_status append(rs_metrics *m, rs_text *text)
{
    char *line;
    rs_text_append(text, "\n");
    size_t bytes = text->length;
    RS_TRY(rs_text_take(text, &line));
    ssize_t n = write(m->fd, line, bytes);
    free(line);
    if (n < 0)
        return rs_error_errno(errno, "cannot write %s", m->path);
    if ((size_t)n != bytes)
        return rs_error_set(
            RS_ERR_IO, "cannot write %s: only %zd of %zu bytes went", m->path, n, bytes);
    return RS_OK;
}

/* A JSON string in quotes; null for a text that cannot be one. */
static void put_string(rs_text *text, const char *value)
{
    json_t *string = json_string(value);
    char *dump = string != NULL ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    rs_text_append(text, "%s", dump != NULL ? dump : "null");
    free(dump);
    json_decref(string);
}

/* JSON has no infinities and no NaN. */
static void put_number(rs_text *text, const char *key, double value)
{
    if (value - value == 0)
        rs_text_append(text, ",\"%s\":%.9g", key, value);
    else
        rs_text_append(text, ",\"%s\":null", key);
}

static void put_step(rs_text *text, const rs_train_step *s)
{
    rs_text_append(text, "\"step\":%" PRId64, s->step);
    put_number(text, "loss", s->loss);
    rs_text_append(
        text, ",\"tokens\":%" PRId64 ",\"seconds\":%.6f,\"layout\":", s->tokens, s->seconds);
    put_string(text, s->layout);
    rs_text_append(text, ",\"samples\":%" PRId64 ",\"lr\":%.9g", s->samples, s->lr);
    put_number(text, "grad_norm", s->grad_norm);
    if (s->experts) {
        put_number(text, "aux_loss", s->aux_loss);
        rs_text_append(text, ",\"close_choices\":%" PRId64, s->close);
    }
    rs_text_append(text, ",\"time\":%.3f", s->time);
}

rs_status rs_metrics_step(rs_metrics *m, const rs_train_step *step)
{
    rs_text text = {0};
    rs_text_append(&text, "{");
    put_step(&text, step);
    rs_text_append(&text, "}");
    m->last = *step;
    return append(m, &text);
}

rs_status rs_metrics_line(rs_metrics *m, const char *json)
{
    rs_text text = {0};
    rs_text_append(&text, "%s", json);
    return append(m, &text);
}

/* The lines that stay, into `text`. */
static rs_status keep_lines(FILE *file, int64_t step, rs_text *text)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    while ((n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n') {
        json_t *root = json_loads(line, 0, NULL);
        const json_t *number = json_object_get(root, "step");
        bool later = json_is_integer(number) && json_integer_value(number) > step;
        if (root != NULL && !later)
            rs_text_append(text, "%s", line);
        json_decref(root);
    }
    free(line);
    return text->status;
}

rs_status rs_metrics_cut(rs_metrics *m, int64_t step)
{
    rs_text text = {0};
    FILE *file = fopen(m->path, "r");
    if (file == NULL)
        return rs_error_errno(errno, "cannot read %s", m->path);
    rs_status status = keep_lines(file, step, &text);
    fclose(file);
    if (status == RS_OK)
        status = rs_control_replace(
            m->options->job, "metrics.jsonl", text.data != NULL ? text.data : "");
    rs_text_fini(&text);
    RS_TRY(status);
    close(m->fd);
    m->fd = open(m->path, O_WRONLY | O_APPEND | O_CLOEXEC);
    m->last.step = step;
    return m->fd >= 0 ? RS_OK : rs_error_errno(errno, "cannot open %s", m->path);
}

rs_status rs_metrics_last_line(const rs_metrics *m, int64_t *step)
{
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen(m->path, "r");
    if (file == NULL)
        return rs_error_errno(errno, "cannot read %s", m->path);
    *step = 0;
    while (getline(&line, &room, file) > 0) {
        json_t *root = json_loads(line, 0, NULL);
        if (json_is_object(root) && json_object_get(root, "event") == NULL)
            *step = json_integer_value(json_object_get(root, "step"));
        json_decref(root);
    }
    free(line);
    fclose(file);
    return RS_OK;
}

static void put_words(rs_text *text, const char *key, const uint64_t *words, size_t count)
{
    if (words == NULL)
        return;
    rs_text_append(text, ",\"%s\":[", key);
    for (size_t i = 0; i < count; i++)
        rs_text_append(text, "%s\"%016" PRIx64 "\"", i > 0 ? "," : "", words[i]);
    rs_text_append(text, "]");
}

rs_status rs_metrics_switch(
    rs_metrics *m, const rs_train_switched *event, const rs_metrics_proof *proof, char **json)
{
    const rs_train_forecast *f = &event->forecast;
    const rs_train_phases *s = &event->seconds;
    rs_text text = {0};
    rs_text_append(&text, "{\"event\":\"switch\",\"step\":%" PRId64 ",\"from\":", f->step);
    put_string(&text, f->from);
    rs_text_append(&text, ",\"to\":");
    put_string(&text, f->to);
    rs_text_append(&text,
        ",\"bytes_moved\":%" PRId64 ",\"bytes_minimum\":%" PRId64 ",\"bytes_adopted\":%" PRId64
        ",\"rank_bytes_max\":%" PRId64 ",\"rank_bytes_bound\":%" PRId64 ",\"bound_kind\":\"%s\""
        ",\"mode\":\"%s\",\"peak_safe\":%" PRId64 ",\"peak_tight\":%" PRId64
        ",\"peak_bytes\":%" PRId64,
        f->bytes_moved, f->bytes_minimum, f->bytes_adopted, f->rank_bytes_max, f->rank_bytes_bound,
        f->bound_kind, f->tight ? "tight" : "safe", f->peak_safe, f->peak_tight, event->peak_bytes);
    rs_text_append(&text,
        ",\"seconds\":{\"prepare\":%.6f,\"plan\":%.6f,\"quiesce\":%.6f,\"move\":%.6f"
        ",\"verify\":%.6f,\"commit\":%.6f},\"certificate\":\"%s\"",
        s->prepare, s->plan, s->quiesce, s->move, s->verify, s->commit, event->certificate);
    if (event->world > 0)
        rs_text_append(&text, ",\"world\":%d,\"pause\":%.6f,\"bytes_ferried\":%" PRId64,
            event->world, event->pause, event->bytes_ferried);
    if (event->status != RS_OK) {
        rs_text_append(&text, ",\"error\":");
        put_string(&text, event->message);
    }
    put_words(&text, "old_hashes", proof->old_hashes, (size_t)proof->ranks);
    put_words(&text, "new_hashes", proof->new_hashes, (size_t)proof->ranks);
    put_words(&text, "sums", proof->sums, proof->sum_count);
    rs_text_append(&text, ",\"time\":%.3f}", rs_wall_seconds());
    if (text.status == RS_OK) {
        *json = rs_strdup(text.data);
        if (*json == NULL) {
            rs_text_fini(&text);
            return rs_error_memory(1);
        }
    }
    rs_status status = append(m, &text);
    if (status != RS_OK) {
        free(*json);
        *json = NULL;
    }
    return status;
}

rs_status rs_metrics_report(rs_metrics *m, const rs_metrics_status *status, bool now)
{
    double time = rs_wall_seconds();
    if (!now && time - m->reported < 1)
        return RS_OK;
    m->reported = time;
    rs_text text = {0};
    rs_text_append(&text, "{\"state\":\"%s\",", status->state);
    rs_train_step last = m->last;
    last.layout = status->layout;
    put_step(&text, &last);
    rs_text_append(&text,
        ",\"steps\":%" PRId64 ",\"ranks\":%d,\"generation\":%d,\"model\":", m->options->steps,
        m->options->ranks, status->generation);
    put_string(&text, m->options->model);
    rs_text_append(&text, ",\"tokens_per_second\":%.1f",
        last.seconds > 0 ? (double)last.tokens / last.seconds : 0);
    if (status->pending != NULL) {
        rs_text_append(&text, ",\"pending\":{\"to\":");
        put_string(&text, status->pending);
        rs_text_append(&text, ",\"after\":%" PRId64 "}", status->pending_step);
    }
    rs_text_append(&text, ",\"message\":");
    put_string(&text, status->message);
    rs_text_append(&text, ",\"host\":");
    put_string(&text, m->host);
    rs_text_append(&text, ",\"pid\":%ld,\"started\":%.3f,\"reported\":%.3f}\n", (long)getpid(),
        m->started, time);
    char *dump;
    RS_TRY(rs_text_take(&text, &dump));
    rs_status result = rs_control_replace(m->options->job, "status.json", dump);
    free(dump);
    return result;
}
