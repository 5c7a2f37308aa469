/*
 * The status of a job: status.json says what it does now, metrics.jsonl which switches it has made.
 * Only lines of metrics.jsonl that begin as switch events do are parsed: there is one line per
 * step.
 */
#include "cli/status_view.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/console.h"
#include "cli/subject.h"

enum { LAST_SWITCHES = 10 };

void status_add_switches(const char *job, json_t *status)
{
    static const char begin[] = "{\"event\":\"switch\"";
    json_t *events = json_array();
    rs_text path = {0};
    rs_text_append(&path, "%s/metrics.jsonl", job);
    FILE *file = path.status == RS_OK ? fopen(path.data, "r") : NULL;
    char *line = NULL;
    size_t room = 0;
    while (file != NULL && getline(&line, &room, file) > 0) {
        json_t *event =
            strncmp(line, begin, sizeof begin - 1) == 0 ? json_loads(line, 0, NULL) : NULL;
        if (event == NULL)
            continue;
        if (json_array_size(events) == LAST_SWITCHES)
            json_array_remove(events, 0);
        json_array_append_new(events, event);
    }
    free(line);
    if (file != NULL)
        fclose(file);
    rs_text_fini(&path);
    json_object_set_new(status, "switches", events);
}

void status_add_worlds(const char *job, json_t *status)
{
    rs_text path = {0};
    rs_text_append(&path, "%s/worlds.json", job);
    json_t *root = path.status == RS_OK ? json_load_file(path.data, 0, NULL) : NULL;
    rs_text_fini(&path);
    json_t *worlds = json_object_get(root, "worlds");
    json_object_set_new(status, "worlds", worlds != NULL ? json_incref(worlds) : json_array());
    const json_t *hosts = json_object_get(root, "hosts");
    json_object_set_new(
        status, "hosts", hosts != NULL ? json_incref((json_t *)(uintptr_t)hosts) : json_array());
    const char *change = json_string_value(json_object_get(root, "change"));
    json_object_set_new(status, "change", json_string(change != NULL ? change : "idle"));
    json_decref(root);
}

static double real_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static void print_worlds(const json_t *worlds)
{
    for (size_t i = 0; i < json_array_size(worlds); i++) {
        const json_t *w = json_array_get(worlds, i);
        const json_t *hosts = json_object_get(w, "hosts");
        printf("world %-3" PRId64 " %s, %" PRId64 " rank%s", cli_int_of(w, "world"),
            cli_text_of(w, "stage"), cli_int_of(w, "ranks"),
            cli_int_of(w, "ranks") == 1 ? "" : "s");
        for (size_t h = 0; h < json_array_size(hosts); h++)
            printf("%s%s", h == 0 ? " on " : ", ", cli_text_of(json_array_get(hosts, h), "host"));
        printf(": %s\n", cli_text_of(w, "layout"));
    }
}

static void print_hosts(const json_t *hosts)
{
    for (size_t i = 0; i < json_array_size(hosts); i++) {
        const json_t *h = json_array_get(hosts, i);
        printf("host      %s: %" PRId64 " rank%s, %" PRId64 " slot%s%s\n", cli_text_of(h, "host"),
            cli_int_of(h, "ranks"), cli_int_of(h, "ranks") == 1 ? "" : "s", cli_int_of(h, "slots"),
            cli_int_of(h, "slots") == 1 ? "" : "s",
            json_is_true(json_object_get(h, "reached")) ? "" : ", cannot be reached");
    }
}

static void print_switches(const json_t *events)
{
    size_t count = json_array_size(events);
    if (count == 0)
        return;
    printf("\n  %-6s %-22s %-22s %11s %10s  %s\n", "after", "from", "to", "moved", "pause",
        "certificate");
    for (size_t i = 0; i < count; i++) {
        const json_t *event = json_array_get(events, i);
        rs_train_switched done;
        char moved[RS_HUMAN], pause[RS_HUMAN];
        if (!console_read_switch(event, &done))
            continue;
        bool failed = done.message[0] != '\0';
        printf("  %-6" PRId64 " %-22s %-22s %11s %10s  %s%s%s\n", done.forecast.step,
            done.forecast.from, done.forecast.to,
            failed ? "-" : rs_human_bytes(done.forecast.bytes_moved, moved),
            failed ? "-" : rs_human_seconds(console_pause(&done), pause), done.certificate,
            failed ? "; not done: " : "", done.message);
    }
}

void status_view(const char *job, const json_t *status)
{
    bool running = json_is_true(json_object_get(status, "running"));
    const char *state = cli_text_of(status, "state");
    bool ended = strcmp(state, "finished") == 0 || strcmp(state, "stopped") == 0 ||
                 strcmp(state, "failed") == 0;
    int64_t step = cli_int_of(status, "step"), steps = cli_int_of(status, "steps");
    double seconds = real_of(status, "seconds");
    char rate[CLI_COUNT], each[RS_HUMAN], left[RS_HUMAN], meaning[RS_LAYOUT_TEXT] = "";
    rs_layout layout;
    if (rs_layout_parse(cli_text_of(status, "layout"), &layout) == RS_OK)
        rs_layout_describe(&layout, meaning);

    printf("job       %s on %s: %s%s\n", job, cli_text_of(status, "host"), state,
        running || ended ? "" : ", but no process is left: it was killed");
    printf("model     %s on %" PRId64 " ranks\n", cli_text_of(status, "model"),
        cli_int_of(status, "ranks"));
    printf("layout    %s: %s\n", cli_text_of(status, "layout"), meaning);
    printf("step      %" PRId64 " of %" PRId64 " (%.0f%%)", step, steps,
        steps > 0 ? 100.0 * (double)step / (double)steps : 0);
    if (step > 0)
        printf(", loss %.5f", real_of(status, "loss"));
    printf("\n");
    if (step > 0)
        printf("rate      %s tokens/s, %s a step",
            cli_human_count(llround(real_of(status, "tokens_per_second")), rate),
            rs_human_seconds(seconds, each));
    if (step > 0 && running)
        printf(", about %s left", rs_human_seconds(seconds * (double)(steps - step), left));
    if (step > 0)
        printf("\n");
    const json_t *pending = json_object_get(status, "pending");
    if (json_is_object(pending) && cli_int_of(pending, "after") > 0)
        printf("pending   switch to %s after step %" PRId64 "\n", cli_text_of(pending, "to"),
            cli_int_of(pending, "after"));
    else if (json_is_object(pending))
        printf("pending   switch to %s, as soon as it is prepared\n", cli_text_of(pending, "to"));
    if (cli_text_of(status, "message")[0] != '\0')
        printf("message   %s\n", cli_text_of(status, "message"));
    if (running)
        print_worlds(json_object_get(status, "worlds"));
    if (running)
        print_hosts(json_object_get(status, "hosts"));
    print_switches(json_object_get(status, "switches"));
}
