/*
 * `reshard host`: stands for a job's supervisor on another host (cli/fleet.h).
 *
 * One stream, one thread: it is told what to do, does it, answers. What it does it does as the
 * supervisor would on its own host, by the same functions. It never decides anything: when the
 * stream ends it ends, and leaves ranks and arenas as they are, for a supervisor that comes again.
 */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crash.h"
#include "base/error.h"
#include "cli/commands.h"
#include "cli/launch.h"
#include "cli/rescue.h"
#include "cli/subject.h"
#include "elastic/hosts.h"
#include "elastic/link.h"
#include "reshard/elastic.h"

#define CONNECT_SECONDS 20
#define BEAT_SECONDS 1.0

typedef struct host_args {
    const char *job, *address, *name;
} host_args;

static const cli_option options[] = {
    {CLI_TEXT, "job", "DIR", "the job directory", .target = offsetof(host_args, job),
        .required = true},
    {CLI_TEXT, "link", "ADDRESS", "where the supervisor listens",
        .target = offsetof(host_args, address), .required = true},
    {CLI_TEXT, "name", "NAME", "what the supervisor calls this host",
        .target = offsetof(host_args, name), .required = true},
    {.kind = CLI_END},
};

/* What there is to be done, by what it is called. Members of the answer may be added. */
typedef struct duty {
    const char *name;
    rs_status (*perform)(const rs_train_options *o, const json_t *word, json_t *answer);
} duty;

static rs_status sweep(const rs_train_options *o, const json_t *word, json_t *answer)
{
    (void)answer;
    return launch_sweep_host(o, json_is_true(json_object_get(word, "state")));
}

static rs_status forget(const rs_train_options *o, const json_t *word, json_t *answer)
{
    (void)answer;
    launch_forget(o, (int)cli_int_of(word, "world"), 0);
    return RS_OK;
}

static rs_status open_keeper(const rs_train_options *o, rs_keeper **out)
{
    return rs_keeper_open(o->id, o->arena_dir[0] != '\0' ? o->arena_dir : NULL, out);
}

/* The arenas of a generation that came to nothing, or whose world has gone. */
static rs_status delete_generation(const rs_train_options *o, const json_t *word, json_t *answer)
{
    rs_keeper *keeper = NULL;
    (void)answer;
    RS_TRY(open_keeper(o, &keeper));
    rs_status status = rs_elastic_delete(keeper, (int)cli_int_of(word, "generation"), -1);
    rs_keeper_close(keeper);
    return status;
}

/* A rank that has stopped. */
static rs_status end_rank(const rs_train_options *o, const json_t *word, json_t *answer)
{
    (void)answer;
    launch_end_rank(o, (long)cli_int_of(word, "process"));
    return RS_OK;
}

static rs_status look(const rs_train_options *o, const json_t *word, json_t *answer)
{
    return rescue_look_here(o->job, word, answer);
}

static rs_status part(const rs_train_options *o, const json_t *word, json_t *answer)
{
    return rescue_part_here(o->job, word, answer);
}

static const duty duties[] = {
    {"sweep", sweep},
    {"forget", forget},
    {"delete", delete_generation},
    {"kill", end_rank},
    {"look", look},
    {"part", part},
};

static rs_status perform(const char *job, const json_t *word, json_t *answer)
{
    const char *what = json_string_value(json_object_get(word, "do"));
    rs_train_options o;
    for (size_t i = 0; what != NULL && i < sizeof duties / sizeof *duties; i++) {
        if (strcmp(duties[i].name, what) != 0)
            continue;
        rs_train_options_init(&o); /* they may have changed */
        rs_status status = rs_train_options_load(&o, job);
        if (status == RS_OK)
            status = duties[i].perform(&o, word, answer);
        rs_train_options_fini(&o);
        return status;
    }
    return rs_error_set(
        RS_ERR_UNSUPPORTED, "'%.40s' is nothing that is done here", what != NULL ? what : "");
}

/* Does it, and answers where an answer is waited for; else only what failed is said. */
static rs_status serve(const char *job, rs_link *link, const json_t *word)
{
    json_t *answer = json_object();
    if (answer == NULL)
        return rs_error_memory(1);
    int call = (int)cli_int_of(word, "call");
    rs_status done = perform(job, word, answer);
    json_object_set_new(answer, "call", json_integer(call));
    json_object_set_new(answer, "status", json_integer(done));
    if (done != RS_OK)
        json_object_set_new(
            answer, call > 0 ? "message" : "trouble", json_string(rs_error_message()));
    rs_status status = call > 0 || done != RS_OK ? rs_link_send(link, answer) : RS_OK;
    json_decref(answer);
    return status;
}

static rs_status say(rs_link *link, const char *what, const char *host)
{
    json_t *word =
        json_pack("{s:s,s:s,s:I}", "say", what, "host", host, "process", (json_int_t)getpid());
    rs_status status = word != NULL ? rs_link_send(link, word) : rs_error_memory(1);
    json_decref(word);
    return status;
}

/* Until the stream ends. */
static void stand(const char *job, rs_link *link, const char *host)
{
    rs_status status = say(link, "host", host);
    while (status == RS_OK) {
        json_t *word = NULL;
        status = rs_link_receive(link, BEAT_SECONDS, &word);
        if (status == RS_OK)
            status = word != NULL ? serve(job, link, word) : say(link, "beat", host);
        json_decref(word);
    }
}

static int run(const cli_command *command, int argc, char **argv)
{
    host_args args;
    int code = cli_parse(command, argc, argv, &args, sizeof args);
    if (code >= 0)
        return code;
    char path[RS_TRAIN_PATH + 16];
    uint8_t secret[RS_SECRET];
    rs_link *link = NULL;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    rs_crash_begin(-2);
    snprintf(path, sizeof path, "%s/secret", args.job);
    rs_status status = rs_secret_read(path, secret);
    if (status == RS_OK)
        status = rs_link_connect(args.address, secret, CONNECT_SECONDS, &link);
    if (status == RS_OK)
        stand(args.job, link, args.name);
    rs_link_close(link);
    return status == RS_OK ? 0 : cli_fail(command, status, args.name);
}

const cli_command cmd_host = {
    .name = "host",
    .summary = "stands for a job's supervisor on another host, started by train",
    .text =
        "Does on its host what a job's supervisor does on its own: ends processes, takes the\n"
        "state in memory to a whole step, removes what is left. `reshard train --hosts` starts\n"
        "it through the agent, and it ends with its stream.",
    .example = "  reshard host --job /shared/job --link tcp:node1:4711 --name node2",
    .options = options,
    .run = run,
    .hidden = true,
};
