/*
 * A run that goes on is the same run: its model, data, seed, schedule and batch are what the job's
 * record says, where it was killed and has one, else its checkpoint. An option that repeats them is
 * fine, one that differs is refused, unless it changes only what comes (the rate, the number of
 * steps, where the data lies) and is meant
 * (--override). Layout, micro-batch and everything about how it runs are free.
 */
#include "cli/resume.h"

#include <ctype.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/launch.h"
#include "cli/rescue.h"
#include "reshard/elastic.h"
#include "reshard/native.h"

typedef enum value_kind { PATH, TEXT, INTEGER, UNSIGNED, REAL, DTYPE } value_kind;

typedef struct row {
    const char *key;    /* in the checkpoint */
    const char *option; /* without dashes */
    const char *alias;
    value_kind kind;
    size_t at;
    bool free;          /* may differ */
    bool loose;         /* may be overridden */
    const char *absent; /* JSON: what a checkpoint means that does not say it; NULL: it must */
    size_t size;        /* of TEXT */
} row;

#define AT(member) offsetof(rs_train_options, member)

static const row rows[] = {
    {"model", "model", NULL, PATH, AT(model), false, false, NULL, 0},
    {"data", "data", NULL, PATH, AT(data), false, true, NULL, 0},
    {"dtype", "dtype", NULL, DTYPE, AT(dtype), false, false, NULL, 0},
    {"optimizer", "optimizer", NULL, TEXT, AT(optimizer), false, false, "\"adamw\"",
        sizeof((rs_train_options *)0)->optimizer},
    {"freeze", "freeze", NULL, TEXT, AT(freeze), false, false, "\"\"",
        sizeof((rs_train_options *)0)->freeze},
    {"seed", "seed", NULL, UNSIGNED, AT(seed), false, true, NULL, 0},
    {"dropout", "dropout", NULL, REAL, AT(dropout), false, false, "0.0", 0},
    {"lr", "lr", NULL, REAL, AT(lr), false, true, NULL, 0},
    {"warmup", "warmup", NULL, INTEGER, AT(warmup), false, true, NULL, 0},
    {"steps", "steps", NULL, INTEGER, AT(steps), false, true, NULL, 0},
    {"global_batch", "global-batch", "global-batch-size", INTEGER, AT(global_batch), false, false,
        NULL, 0},
    {"seq", "seq", NULL, INTEGER, AT(seq), false, false, NULL, 0},
    {"micro_batch", "micro-batch", "micro-batch-size", INTEGER, AT(micro_batch), true, false, NULL,
        0},
};

#define ROWS (sizeof rows / sizeof *rows)

/* True if an option of that name is among the arguments. */
static bool is_given(const char *name, int argc, char **argv)
{
    size_t length = name != NULL ? strlen(name) : 0;
    for (int i = 0; i < argc && name != NULL; i++)
        if (strncmp(argv[i], "--", 2) == 0 && strncmp(argv[i] + 2, name, length) == 0 &&
            (argv[i][2 + length] == '\0' || argv[i][2 + length] == '='))
            return true;
    return false;
}

static bool is_listed(const cli_list *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->items[i], name) == 0)
            return true;
    return false;
}

static bool same_path(const char *a, const char *b)
{
    char *x = realpath(a, NULL), *y = realpath(b, NULL);
    bool same = strcmp(x != NULL ? x : a, y != NULL ? y : b) == 0;
    free(x);
    free(y);
    return same;
}

/* Whether the option as it is has the checkpoint's value. */
static bool is_same(const rs_train_options *o, const row *r, const json_t *value)
{
    const void *at = (const char *)o + r->at;
    switch (r->kind) {
    case PATH:
        return same_path(at, json_string_value(value));
    case TEXT:
        return strcmp(at, json_string_value(value)) == 0;
    case INTEGER:
        return *(const int64_t *)at == json_integer_value(value);
    case UNSIGNED:
        return *(const uint64_t *)at == (uint64_t)json_integer_value(value);
    case REAL:
        return *(const double *)at == json_number_value(value);
    case DTYPE:
        return *(const rs_dtype *)at == rs_dtype_parse(json_string_value(value));
    }
    return false;
}

static bool is_of_kind(value_kind kind, const json_t *value)
{
    if (kind == TEXT)
        return json_is_string(value);
    if (kind == PATH)
        return json_is_string(value) && json_string_length(value) < RS_TRAIN_PATH;
    if (kind == DTYPE)
        return json_is_string(value);
    return kind == REAL ? json_is_number(value) : json_is_integer(value);
}

static void take(rs_train_options *o, const row *r, const json_t *value)
{
    void *at = (char *)o + r->at;
    switch (r->kind) {
    case PATH:
        snprintf(at, RS_TRAIN_PATH, "%s", json_string_value(value));
        break;
    case TEXT:
        snprintf(at, r->size, "%s", json_string_value(value));
        break;
    case INTEGER:
        *(int64_t *)at = json_integer_value(value);
        break;
    case UNSIGNED:
        *(uint64_t *)at = (uint64_t)json_integer_value(value);
        break;
    case REAL:
        *(double *)at = json_number_value(value);
        break;
    case DTYPE:
        *(rs_dtype *)at = rs_dtype_parse(json_string_value(value));
        break;
    }
}

static rs_status apply_value(rs_train_options *o, const row *r, const json_t *value,
    const cli_list *overrides, int argc, char **argv)
{
    bool given = is_given(r->option, argc, argv) || is_given(r->alias, argc, argv);
    if (!given) {
        take(o, r, value);
        return RS_OK;
    }
    if (r->free || is_same(o, r, value) || (r->loose && is_listed(overrides, r->option)))
        return RS_OK;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    rs_status status =
        rs_error_set(RS_ERR_ARGUMENT, "--%s: the run has %s: leave the option out%s%s", r->option,
            text != NULL ? text : "another", r->loose ? ", or add --override " : "",
            r->loose ? r->option : "");
    free(text);
    return status;
}

static rs_status apply_row(rs_train_options *o, const row *r, const json_t *training,
    const cli_list *overrides, int argc, char **argv)
{
    json_t *absent = r->absent != NULL ? json_loads(r->absent, JSON_DECODE_ANY, NULL) : NULL;
    const json_t *value = json_object_get(training, r->key);
    if (value == NULL)
        value = absent;
    rs_status status;
    if (is_of_kind(r->kind, value))
        status = apply_value(o, r, value, overrides, argc, argv);
    else
        status =
            rs_error_set(RS_ERR_MALFORMED, "%s: it does not say the run's \"%s\"", o->job, r->key);
    json_decref(absent);
    return status;
}

static rs_status check_overrides(const cli_list *overrides, int argc, char **argv)
{
    for (int i = 0; i < overrides->count; i++) {
        const row *found = NULL;
        for (size_t k = 0; k < ROWS; k++)
            if (rows[k].loose && strcmp(rows[k].option, overrides->items[i]) == 0)
                found = &rows[k];
        if (found == NULL)
            return rs_error_set(RS_ERR_ARGUMENT,
                "--override: wanted one of data, lr, warmup, steps, seed, found '%s'",
                overrides->items[i]);
        if (!is_given(found->option, argc, argv))
            return rs_error_set(RS_ERR_ARGUMENT, "--override %s: there is no --%s to hold instead",
                found->option, found->option);
    }
    return RS_OK;
}

/* "DIR@STEP": the step, and where DIR ends; a plain "DIR" is the newest. */
static int64_t split(const char *resume, size_t *length)
{
    const char *at = strrchr(resume, '@');
    *length = strlen(resume);
    if (at == NULL || at[1] == '\0' || at[1 + strspn(at + 1, "0123456789")] != '\0')
        return RS_TRAIN_NEWEST;
    *length = (size_t)(at - resume);
    return strtoll(at + 1, NULL, 10);
}

/* The checkpoint that the run would go on from, as far as can be told without reading all of it. */
static rs_status open_checkpoint(const rs_train_options *o, rs_native **out)
{
    char folder[RS_TRAIN_PATH + 16];
    int64_t *steps = NULL;
    size_t count = 0;
    snprintf(folder, sizeof folder, "%s/checkpoints", o->job);
    if (o->resume != RS_TRAIN_NEWEST)
        return rs_native_open_step(folder, o->resume, out);
    RS_TRY(rs_native_find(folder, &steps, &count));
    rs_status status = count > 0 ? RS_OK
                                 : rs_error_set(RS_ERR_NOT_FOUND,
                                       "%s: there is no checkpoint to go on from", folder);
    for (size_t i = 0; i < count; i++) {
        status = rs_native_open_step(folder, steps[i], out);
        if (status == RS_OK)
            break;
    }
    free(steps);
    return status;
}

/* What the run goes by, and the layout that it had. */
typedef struct origin {
    char *text; /* JSON */
    char layout[RS_LAYOUT_TEXT];
} origin;

static rs_status find_origin(const rs_train_options *o, origin *out)
{
    rs_record record;
    rs_native *native = NULL;
    if (o->resume == RS_TRAIN_NEWEST && rs_record_read(o->job, &record) == RS_OK) {
        out->text = record.run;
        record.run = NULL;
        /* A tight switch that was cut off will be finished. */
        memcpy(out->layout, record.building >= 0 ? record.building_layout : record.layout,
            sizeof out->layout);
        rs_record_fini(&record);
        return RS_OK;
    }
    RS_TRY(open_checkpoint(o, &native));
    rs_status status = rs_native_extras(native, &out->text);
    snprintf(out->layout, sizeof out->layout, "%s", rs_native_layout(native));
    rs_native_close(native);
    return status;
}

rs_status resume_apply(rs_train_options *o, const char *resume, bool job_given,
    const cli_list *overrides, int argc, char **argv)
{
    size_t length;
    origin from = {0};
    o->resume = split(resume, &length);
    if (length == 0 || length >= sizeof o->job || o->resume == 0)
        return rs_error_set(
            RS_ERR_ARGUMENT, "--resume: wanted a job directory, or DIR@STEP, found '%s'", resume);
    char folder[RS_TRAIN_PATH];
    snprintf(folder, sizeof folder, "%.*s", (int)length, resume);
    if (job_given && !same_path(folder, o->job))
        return rs_error_set(RS_ERR_ARGUMENT,
            "--job: wanted the directory that --resume names, or nothing, found '%s'", o->job);
    snprintf(o->job, sizeof o->job, "%s", folder);
    RS_TRY(check_overrides(overrides, argc, argv));
    rs_status status = find_origin(o, &from);
    json_t *extras = from.text != NULL ? json_loads(from.text, 0, NULL) : NULL;
    const json_t *training = json_object_get(extras, "training");
    for (size_t i = 0; i < ROWS && status == RS_OK; i++)
        status = apply_row(o, &rows[i], training, overrides, argc, argv);
    if (status == RS_OK && !is_given("layout", argc, argv))
        memcpy(o->layout, from.layout, sizeof o->layout);
    if (o->micro_batch > o->global_batch)
        o->micro_batch = o->global_batch;
    json_decref(extras);
    free(from.text);
    return status;
}

/* ---- memory or checkpoint ---- */

int64_t resume_newest(const rs_train_options *o)
{
    char folder[RS_TRAIN_PATH + 16];
    int64_t *steps = NULL, newest = -1;
    size_t count = 0;
    snprintf(folder, sizeof folder, "%s/checkpoints", o->job);
    if (rs_native_find(folder, &steps, &count) == RS_OK && count > 0)
        newest = steps[0];
    free(steps);
    return newest;
}

/* What the killed job left in memory goes before its directory is another's; `state`: its arenas
 * too. */
static rs_status clear_former(const rs_train_options *o, fleet *hosts, bool state)
{
    rs_train_options former;
    rs_train_options_init(&former);
    rs_status status = rs_train_options_load(&former, o->job);
    if (status == RS_OK)
        status = launch_sweep(&former, state);
    else if (status == RS_ERR_NOT_FOUND)
        status = RS_OK;
    if (status == RS_OK && hosts != NULL)
        fleet_sweep(hosts, state);
    rs_train_options_fini(&former);
    return status;
}

static rs_status attach(rs_train_options *o, fleet *hosts, const rs_recovery *found)
{
    rs_record record;
    RS_TRY(rs_record_read(o->job, &record));
    snprintf(o->id, sizeof o->id, "%s", record.job);
    snprintf(o->arena_dir, sizeof o->arena_dir, "%s", record.folder);
    rs_record_fini(&record);
    o->attach = found->generation;
    o->attach_step = found->step;
    memcpy(o->attach_layout, found->layout, sizeof o->attach_layout);
    fprintf(stderr,
        "the state of step %" PRId64 " (%s) is whole in memory%s%s%s%s%s: going on from it\n",
        found->step, found->layout, found->behind > 0 ? ", its last update completed" : "",
        found->killed > 0 ? ", its old processes ended" : "",
        found->lost > 0 ? ", what was lost with " : "", found->lost > 0 ? found->lost_ranks : "",
        found->lost > 0 ? " held by others" : "");
    return clear_former(o, hosts, false);
}

static bool same_layout(const char *a, const char *b)
{
    rs_layout one, two;
    return rs_layout_parse(a, &one) == RS_OK && rs_layout_parse(b, &two) == RS_OK &&
           rs_layout_equal(&one, &two);
}

rs_status resume_choose(rs_train_options *o, fleet *hosts)
{
    rs_recovery found;
    int64_t saved = resume_newest(o);
    rs_record record;
    bool kept = rs_record_read(o->job, &record) == RS_OK;
    if (kept)
        rs_record_fini(&record);
    if (!kept || o->resume != RS_TRAIN_NEWEST) {
        if (kept)
            fprintf(stderr,
                "the state in memory is given up: --resume names the checkpoint of step %" PRId64
                "\n",
                o->resume);
        return clear_former(o, hosts, true);
    }
    rescue r;
    rs_status status = rescue_job(hosts, o->job, FENCE_SECONDS, &r);
    found = r.found;
    if (status == RS_OK && found.step >= saved && !same_layout(o->layout, found.layout))
        status = rescue_on_one(hosts, o->job, &r, o->ranks) == RS_OK
                     ? RS_OK
                     : rs_error_set(RS_ERR_UNSUPPORTED,
                           "it is on several hosts: go on in its layout, %s, and switch then",
                           found.layout);
    rescue_fini(&r);
    if (status == RS_OK && found.step >= saved)
        return attach(o, hosts, &found);
    if (status == RS_OK) {
        fprintf(stderr,
            "the state in memory is of step %" PRId64 ", older than the checkpoint of step %" PRId64
            ": going on from the checkpoint\n",
            found.step, saved);
        return clear_former(o, hosts, true);
    }
    bool gone =
        status == RS_ERR_NOT_FOUND || status == RS_ERR_MALFORMED || status == RS_ERR_MISMATCH;
    if (!gone || saved < 0)
        return rs_error_context(status, "the state of %s in memory cannot be gone on from", o->job);
    fprintf(stderr,
        "the state in memory cannot be gone on from: %s; going on from the newest checkpoint\n",
        rs_error_message());
    return clear_former(o, hosts, true);
}
