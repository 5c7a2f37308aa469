/*
 * The training run's console.
 *
 * Rank 0 prints, through the listener that the trainer calls; the process that started the ranks
 * only passes its bytes on. Every update ends with a newline, or with a carriage return while the
 * bar stands: the line that follows it overwrites the bar.
 */
#include "cli/console.h"

#include <inttypes.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/subject.h"

typedef struct console {
    const rs_train_options *options;
    const char *mode; /* "lines", "bar" or "json" */
    int width;        /* columns of the terminal, for the bar */
    bool bar_shown;
    int64_t first_step; /* steps printed so far began here and took `spent` seconds */
    double spent;
} console;

static bool is_mode(const console *c, const char *mode)
{
    return strcmp(c->mode, mode) == 0;
}

/* Makes room for a line where the bar stands. */
static void clear_bar(console *c)
{
    if (c->bar_shown)
        printf("\033[K");
    c->bar_shown = false;
}

static void put_json(json_t *value)
{
    if (value == NULL)
        return;
    json_dumpf(value, stdout, JSON_COMPACT | JSON_REAL_PRECISION(15));
    putchar('\n');
    fflush(stdout);
    json_decref(value);
}

static void on_start(void *context, const rs_train_start *start)
{
    console *c = context;
    const rs_train_options *o = c->options;
    if (is_mode(c, "json")) {
        put_json(json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:s, s:I, s:I, s:I, s:I}", "event",
            "start", "model", start->model, "layout", start->layout, "describe", start->meaning,
            "ranks", start->ranks, "nodes", start->nodes, "parameters", (json_int_t)start->elements,
            "dtype", rs_dtype_name(o->dtype), "state_bytes", (json_int_t)start->state_bytes,
            "steps", (json_int_t)start->steps, "global_batch", (json_int_t)o->global_batch, "seq",
            (json_int_t)o->seq));
        return;
    }
    char count[CLI_COUNT], bytes[RS_HUMAN];
    printf("model   %s: %s parameters, %s, %s of state\n", start->model,
        cli_human_count(start->elements, count), cli_dtype_name(o->dtype),
        rs_human_bytes(start->state_bytes, bytes));
    printf("layout  %s: %s; %d rank%s on %d node%s\n", start->layout, start->meaning, start->ranks,
        start->ranks == 1 ? "" : "s", start->nodes, start->nodes == 1 ? "" : "s");
    printf("steps   %" PRId64 " of %" PRId64 " sequences x %" PRId64 " tokens from %s\n",
        start->steps, o->global_batch, o->seq, o->data);
    printf("job     %s (reshard status, switch, stop)\n\n", o->job);
    fflush(stdout);
}

static void draw_bar(console *c, const rs_train_step *step)
{
    char rate[CLI_COUNT], left[RS_HUMAN], text[256];
    int64_t done = step->step - c->first_step + 1;
    double mean = done > 0 ? c->spent / (double)done : 0;
    snprintf(text, sizeof text, "%" PRId64 "/%" PRId64 "  loss %.4f  %s tokens/s  %s  %s left",
        step->step, step->steps, step->loss,
        cli_human_count(
            step->seconds > 0 ? llround((double)step->tokens / step->seconds) : 0, rate),
        step->layout, rs_human_seconds(mean * (double)(step->steps - step->step), left));
    int cells = c->width >= 110 ? 40 : c->width >= 90 ? 20 : c->width >= 80 ? 10 : 0;
    int full = step->steps > 0 ? (int)(cells * step->step / step->steps) : 0;
    char bar[64] = "";
    for (int i = 0; i < cells; i++)
        bar[i] = i < full ? '#' : '.';
    bar[cells] = '\0';
    int room = c->width - (cells > 0 ? cells + 3 : 0) - 1;
    printf("\033[K%s%s%s%.*s\r", cells > 0 ? "[" : "", bar, cells > 0 ? "] " : "",
        room > 0 ? room : 0, text);
    fflush(stdout);
    c->bar_shown = true;
}

static void on_step(void *context, const rs_train_step *step)
{
    console *c = context;
    if (is_mode(c, "json")) {
        json_t *line = json_pack("{s:I, s:f, s:I, s:f, s:s, s:I, s:f, s:f, s:f}", "step",
            (json_int_t)step->step, "loss", step->loss, "tokens", (json_int_t)step->tokens,
            "seconds", step->seconds, "layout", step->layout, "samples", (json_int_t)step->samples,
            "lr", step->lr, "grad_norm", step->grad_norm, "time", step->time);
        if (step->experts && line != NULL) {
            json_object_set_new(line, "aux_loss", json_real(step->aux_loss));
            json_object_set_new(line, "close_choices", json_integer((json_int_t)step->close));
        }
        put_json(line);
        return;
    }
    if (c->first_step == 0)
        c->first_step = step->step;
    c->spent += step->seconds;
    if (is_mode(c, "bar")) {
        draw_bar(c, step);
        return;
    }
    char seconds[RS_HUMAN], rate[CLI_COUNT];
    printf("step %*" PRId64 "/%" PRId64 "  loss %.5f  grad %.3f  lr %.2e  %s  %s tokens/s  %s\n",
        snprintf(NULL, 0, "%" PRId64, step->steps), step->step, step->steps, step->loss,
        step->grad_norm, step->lr, rs_human_seconds(step->seconds, seconds),
        cli_human_count(
            step->seconds > 0 ? llround((double)step->tokens / step->seconds) : 0, rate),
        step->layout);
    fflush(stdout);
}

static void on_forecast(void *context, const rs_train_forecast *f)
{
    console *c = context;
    if (is_mode(c, "json"))
        return;
    clear_bar(c);
    char moved[RS_HUMAN], safe[RS_HUMAN], tight[RS_HUMAN];
    printf("\nafter step %" PRId64
           ": %s -> %s moves %s; peak of a rank %s safe, %s tight: %s mode\n",
        f->step, f->from, f->to, rs_human_bytes(f->bytes_moved, moved),
        rs_human_bytes(f->peak_safe, safe), rs_human_bytes(f->peak_tight, tight),
        f->tight ? "tight" : "safe");
    fflush(stdout);
}

double console_pause(const rs_train_switched *done)
{
    const rs_train_phases *s = &done->seconds;
    if (done->world > 0)
        return done->pause;
    return s->plan + s->quiesce + s->move + s->verify + s->commit;
}

static void table_row(const char *phase, double seconds, const char *label, const char *value)
{
    char text[RS_HUMAN];
    printf("  %-10s %11s    %-14s %s\n", phase, rs_human_seconds(seconds, text), label, value);
}

void console_print_switched(const rs_train_switched *done)
{
    const rs_train_forecast *f = &done->forecast;
    const rs_train_phases *s = &done->seconds;
    if (done->status != RS_OK) {
        printf("NOT switched after step %" PRId64 ": %s -> %s: %s\n", f->step, f->from, f->to,
            done->message);
        printf("  the job goes on in %s; certificate %s\n\n", f->from, done->certificate);
        return;
    }
    char text[128], a[RS_HUMAN], b[RS_HUMAN];
    printf("switched after step %" PRId64 ": %s -> %s\n", f->step, f->from, f->to);
    table_row("plan", s->plan, "bytes moved", rs_human_bytes(f->bytes_moved, a));
    table_row("quiesce", s->quiesce, "minimum", rs_human_bytes(f->bytes_minimum, a));
    snprintf(text, sizeof text, "%s; lower bound %s%s%s%s", rs_human_bytes(f->rank_bytes_max, a),
        rs_human_bytes(f->rank_bytes_bound, b), f->bound_kind[0] != '\0' ? " (" : "", f->bound_kind,
        f->bound_kind[0] != '\0' ? ")" : "");
    table_row("move", s->move, "busiest rank", text);
    snprintf(text, sizeof text, "%s; forecast %s", rs_human_bytes(done->peak_bytes, a),
        rs_human_bytes(f->tight ? f->peak_tight : f->peak_safe, b));
    table_row("verify", s->verify, "peak memory", text);
    table_row("commit", s->commit, "certificate", done->certificate);
    snprintf(text, sizeof text, "%s, while training went on", rs_human_seconds(s->prepare, a));
    table_row("pause", console_pause(done), "prepared in", text);
    putchar('\n');
}

json_t *console_switch_json(const rs_train_switched *done)
{
    const rs_train_forecast *f = &done->forecast;
    const rs_train_phases *s = &done->seconds;
    json_t *event = json_pack(
        "{s:s, s:I, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:I, "
        "s:{s:f, s:f, s:f, s:f, s:f, s:f}, s:s}",
        "event", "switch", "step", (json_int_t)f->step, "from", f->from, "to", f->to, "bytes_moved",
        (json_int_t)f->bytes_moved, "bytes_minimum", (json_int_t)f->bytes_minimum, "bytes_adopted",
        (json_int_t)f->bytes_adopted, "rank_bytes_max", (json_int_t)f->rank_bytes_max,
        "rank_bytes_bound", (json_int_t)f->rank_bytes_bound, "bound_kind", f->bound_kind, "mode",
        f->tight ? "tight" : "safe", "peak_safe", (json_int_t)f->peak_safe, "peak_tight",
        (json_int_t)f->peak_tight, "peak_bytes", (json_int_t)done->peak_bytes, "seconds", "prepare",
        s->prepare, "plan", s->plan, "quiesce", s->quiesce, "move", s->move, "verify", s->verify,
        "commit", s->commit, "certificate", done->certificate);
    if (event != NULL && done->status != RS_OK)
        json_object_set_new(event, "error", json_string(done->message));
    return event;
}

static int64_t get_int(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static double get_real(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static const char *get_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

bool console_read_switch(const json_t *event, rs_train_switched *out)
{
    const json_t *s = json_object_get(event, "seconds");
    if (!json_is_object(s) || !json_is_string(json_object_get(event, "to")))
        return false;
    *out = (rs_train_switched){
        .forecast = {.step = get_int(event, "step"),
            .from = get_text(event, "from"),
            .to = get_text(event, "to"),
            .bytes_moved = get_int(event, "bytes_moved"),
            .bytes_minimum = get_int(event, "bytes_minimum"),
            .bytes_adopted = get_int(event, "bytes_adopted"),
            .rank_bytes_max = get_int(event, "rank_bytes_max"),
            .rank_bytes_bound = get_int(event, "rank_bytes_bound"),
            .bound_kind = get_text(event, "bound_kind"),
            .peak_safe = get_int(event, "peak_safe"),
            .peak_tight = get_int(event, "peak_tight"),
            .tight = strcmp(get_text(event, "mode"), "tight") == 0},
        .peak_bytes = get_int(event, "peak_bytes"),
        .seconds = {.prepare = get_real(s, "prepare"),
            .plan = get_real(s, "plan"),
            .quiesce = get_real(s, "quiesce"),
            .move = get_real(s, "move"),
            .verify = get_real(s, "verify"),
            .commit = get_real(s, "commit")},
        .certificate = get_text(event, "certificate"),
        .world = (int)get_int(event, "world"),
        .pause = get_real(event, "pause"),
        .status = json_object_get(event, "error") != NULL ? RS_ERR_CANCELLED : RS_OK,
        .message = get_text(event, "error"),
    };
    return true;
}

static void on_switched(void *context, const rs_train_switched *done)
{
    console *c = context;
    if (is_mode(c, "json")) {
        put_json(console_switch_json(done));
        return;
    }
    clear_bar(c);
    console_print_switched(done);
    fflush(stdout);
}

static void on_notice(void *context, const char *text)
{
    console *c = context;
    if (is_mode(c, "json")) {
        put_json(json_pack("{s:s, s:s}", "event", "notice", "message", text));
        return;
    }
    clear_bar(c);
    printf("%s\n", text);
    fflush(stdout);
}

static void on_end(void *context, rs_train_outcome outcome, int64_t step)
{
    static const char *const names[] = {"finished", "stopped", "terminated"};
    console *c = context;
    if (is_mode(c, "json")) {
        put_json(json_pack("{s:s, s:s, s:I}", "event", "end", "outcome", names[outcome], "step",
            (json_int_t)step));
        return;
    }
    if (c->bar_shown)
        putchar('\n');
    c->bar_shown = false;
    if (outcome == RS_TRAIN_FINISHED)
        printf("finished: %" PRId64 " steps; metrics in %s/metrics.jsonl\n", step, c->options->job);
    else
        printf("%s after step %" PRId64 "; metrics in %s/metrics.jsonl\n", names[outcome], step,
            c->options->job);
    fflush(stdout);
}

/* What ranks agreed on names the one that failed itself. */
static void failure(int rank, const char *message)
{
    if (strncmp(message, "rank ", 5) == 0)
        fprintf(stderr, "reshard train: %s\n", message);
    else
        fprintf(stderr, "reshard train: rank %d: %s\n", rank, message);
}

static void on_failed(void *context, int rank, rs_status status, const char *message)
{
    console *c = context;
    if (c->bar_shown)
        putchar('\n');
    fflush(stdout);
    if (status != RS_ERR_PEER)
        failure(rank, message[0] != '\0' ? message : rs_status_name(status));
}

static rs_train_listener listen(console *c)
{
    return (rs_train_listener){.context = c,
        .start = on_start,
        .step = on_step,
        .forecast = on_forecast,
        .switched = on_switched,
        .notice = on_notice,
        .end = on_end,
        .failed = on_failed};
}

int console_train(rs_train_options *options, const char *mode, int width, rs_train_outcome *outcome)
{
    console c = {.options = options, .mode = mode, .width = width};
    rs_train_listener listener = listen(&c);
    rs_status status = rs_train_run(options, &listener, MPI_COMM_WORLD, outcome);
    return status != RS_OK ? CLI_FAILURE : 0;
}

const char *console_choose(bool json, int *width)
{
    const char *term = getenv("TERM");
    struct winsize size = {0};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        size.ws_col = 80;
    *width = size.ws_col;
    if (json)
        return "json";
    bool moves = isatty(STDOUT_FILENO) && term != NULL && strcmp(term, "dumb") != 0;
    return moves ? "bar" : "lines";
}
