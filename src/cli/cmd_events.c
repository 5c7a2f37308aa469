/* `reshard events`: what happened to a job besides its steps, from metrics.jsonl. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/console.h"
#include "cli/subject.h"
#include "train/control.h"

typedef struct events_args {
    const char *job, *kind;
    bool follow, json;
} events_args;

static const cli_option events_options[] = {
    {CLI_ARGUMENT, "DIR", .target = offsetof(events_args, job), .help = "the job directory"},
    {CLI_TEXT, "kind", "K", "only events of this kind: world, switch, save, resume, ...",
        .target = offsetof(events_args, kind)},
    {CLI_FLAG, "follow", NULL, "wait for more until the job ends",
        .target = offsetof(events_args, follow)},
    {CLI_FLAG, "json", NULL, "print the lines of metrics.jsonl as they are",
        .target = offsetof(events_args, json)},
    {.kind = CLI_END},
};

static void print_world(const json_t *event)
{
    char seconds[RS_HUMAN];
    printf("world %-3" PRId64 " %-10s %3" PRId64 " ranks  %-24s %s\n", cli_int_of(event, "world"),
        cli_text_of(event, "stage"), cli_int_of(event, "ranks"), cli_text_of(event, "layout"),
        rs_human_seconds(json_number_value(json_object_get(event, "seconds")), seconds));
}

static void print_switch(const json_t *event)
{
    rs_train_switched done;
    char pause[RS_HUMAN], moved[RS_HUMAN];
    if (!console_read_switch(event, &done))
        return;
    if (done.message[0] != '\0')
        printf("switch after step %" PRId64 ": %s -> %s NOT done: %s\n", done.forecast.step,
            done.forecast.from, done.forecast.to, done.message);
    else
        printf("switch after step %" PRId64 ": %s -> %s, %s moved, pause %s, certificate %s\n",
            done.forecast.step, done.forecast.from, done.forecast.to,
            rs_human_bytes(done.forecast.bytes_moved, moved),
            rs_human_seconds(console_pause(&done), pause), done.certificate);
}

/* Every other kind: its members that are texts and numbers. */
static void print_other(const json_t *event)
{
    const char *key;
    json_t *value;
    printf("%s", cli_text_of(event, "event"));
    json_object_foreach((json_t *)(uintptr_t)event, key, value)
    {
        if (strcmp(key, "event") == 0 || strcmp(key, "time") == 0)
            continue;
        if (json_is_string(value) && json_string_length(value) > 0)
            printf(" %s %s", key, json_string_value(value));
        else if (json_is_integer(value))
            printf(" %s %" JSON_INTEGER_FORMAT, key, json_integer_value(value));
        else if (json_is_real(value))
            printf(" %s %.4g", key, json_real_value(value));
    }
    printf("\n");
}

static void print_event(const json_t *event)
{
    char clock[32] = "";
    time_t seconds = (time_t)json_number_value(json_object_get(event, "time"));
    struct tm local;
    const char *kind = cli_text_of(event, "event");
    if (seconds > 0 && localtime_r(&seconds, &local) != NULL)
        strftime(clock, sizeof clock, "%H:%M:%S  ", &local);
    printf("%s", clock);
    if (strcmp(kind, "world") == 0)
        print_world(event);
    else if (strcmp(kind, "switch") == 0)
        print_switch(event);
    else
        print_other(event);
}

/* Prints the events among the whole lines that the file has now. */
static void show_lines(const events_args *args, FILE *file)
{
    static const char begin[] = "{\"event\":";
    char *line = NULL;
    size_t room = 0;
    long at = ftell(file);
    for (ssize_t n; (n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n';
         at = ftell(file)) {
        json_t *event =
            strncmp(line, begin, sizeof begin - 1) == 0 ? json_loads(line, 0, NULL) : NULL;
        if (event == NULL)
            continue;
        if (args->kind == NULL || strcmp(args->kind, cli_text_of(event, "event")) == 0) {
            if (args->json)
                fputs(line, stdout);
            else
                print_event(event);
        }
        json_decref(event);
    }
    free(line);
    fseek(file, at, SEEK_SET); /* a line that is not whole is read again */
}

static int run_events(const cli_command *command, int argc, char **argv)
{
    events_args args;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    rs_text path = {0};
    rs_text_append(&path, "%s/metrics.jsonl", args.job);
    FILE *file = path.status == RS_OK ? fopen(path.data, "r") : NULL;
    if (file == NULL) {
        rs_text_fini(&path);
        return cli_fail(command,
            rs_error_set(RS_ERR_NOT_FOUND, "%s: there is no job, or it has not begun", args.job),
            NULL);
    }
    for (bool running = args.follow; running;) {
        running =
            rs_control_is_claimed(args.job, NULL); /* asked first: the last line comes before */
        show_lines(&args, file);
        fflush(stdout);
        usleep(200000);
    }
    show_lines(&args, file);
    fclose(file);
    rs_text_fini(&path);
    return 0;
}

const cli_command cmd_events = {
    .name = "events",
    .summary = "list what happened to a job: worlds, switches, saves",
    .text = "Lists the events of the job in DIR: worlds that came and went with the seconds since\n"
            "each change was asked for, switches and what they cost, saves, recoveries.",
    .example = "  reshard events /tmp/job\n"
               "  reshard events /tmp/job --kind world --follow",
    .options = events_options,
    .run = run_events,
};
