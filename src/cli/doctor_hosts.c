/*
 * Every host runs `reshard doctor --json` itself, reached as a job would reach it; so what is wrong
 * with the way there is found too. A file in the job's folder that all must see shows whether the
 * folder is shared.
 */
#include "cli/doctor_hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "cli/agent.h"
#include "cli/subject.h"
#include "elastic/hosts.h"
#include "reshard/layout.h"

#define ANSWER_SECONDS 30
#define PATH_BYTES 4096

typedef struct asking {
    const doctor_question *q;
    json_t *rows;
    char seen[PATH_BYTES]; /* the file that all must see */
    char self[PATH_BYTES];
} asking;

static void add(
    asking *a, const char *host, const char *what, bool good, const char *have, const char *advice)
{
    char name[RS_HOST_NAME + 64];
    snprintf(name, sizeof name, "%s: %s", host, what);
    json_array_append_new(a->rows, json_pack("{s:s,s:b,s:s,s:s}", "what", name, "good", good,
                                       "have", have, "advice", good ? "" : advice));
}

static void append_option(rs_text *text, const char *name, const char *value)
{
    if (value == NULL || value[0] == '\0')
        return;
    agent_quote(text, name);
    agent_quote(text, value);
}

static rs_status command_for(const asking *a, double share, char **out)
{
    const doctor_question *q = a->q;
    rs_text text = {0};
    char number[32];
    snprintf(number, sizeof number, "%.9g", share);
    rs_text_append(&text, "exec");
    agent_quote(&text, a->self);
    rs_text_append(&text, " doctor --json");
    append_option(&text, "--model", q->model);
    append_option(&text, "--layout", q->layout);
    append_option(&text, "--dtype", q->dtype);
    append_option(&text, "--arena-dir", q->arena_dir);
    append_option(&text, "--job", q->job);
    append_option(&text, "--share", number);
    append_option(&text, "--seen", a->seen);
    return rs_text_take(&text, out);
}

/* All that it prints, until it ends or the time is over. */
static void read_all(int fd, rs_text *text)
{
    double deadline = cli_now() + ANSWER_SECONDS;
    char bytes[4096];
    ssize_t n = 1;
    while (n != 0 && cli_now() < deadline) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        poll(&p, 1, 100);
        n = read(fd, bytes, sizeof bytes);
        if (n > 0)
            rs_text_append(text, "%.*s", (int)n, bytes);
        else if (n < 0 && errno != EAGAIN && errno != EINTR)
            n = 0;
    }
}

static void take_answer(asking *a, const char *host, char *text)
{
    size_t i;
    const json_t *row;
    char *begin = text != NULL ? strchr(text, '{') : NULL; /* after what a login may print */
    json_t *answer = begin != NULL ? json_loads(begin, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    const json_t *checks = json_object_get(answer, "checks");
    if (!json_is_array(checks)) {
        if (text != NULL)
            text[strcspn(text, "\r\n")] = '\0';
        add(a, host, "reached", false, text != NULL && text[0] != '\0' ? text : "no answer in time",
            "the agent (--rsh-agent, else ssh) has to run commands there without a password, and "
            "the program to be at the same path");
    }
    json_array_foreach(checks, i, row)
    {
        const char *what = json_string_value(json_object_get(row, "what"));
        const char *have = json_string_value(json_object_get(row, "have"));
        if (what != NULL && have != NULL)
            add(a, host, what, json_is_true(json_object_get(row, "good")), have,
                cli_text_of(row, "advice"));
    }
    json_decref(answer);
}

static rs_status ask(asking *a, const char *host, double share)
{
    char *command = NULL, *text = NULL;
    pid_t process = 0;
    int output = -1;
    rs_text said = {0};
    const char *agent = a->q->rsh_agent != NULL ? a->q->rsh_agent : "";
    RS_TRY(command_for(a, share, &command));
    rs_status status = agent_start(agent, host, command, &process, &output);
    free(command);
    RS_TRY(status);
    read_all(output, &said);
    close(output);
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
    status = rs_text_take(&said, &text);
    if (status == RS_OK)
        take_answer(a, host, text);
    free(text);
    return status;
}

/* How many of the layout's ranks each host would get; a row says if there are too few slots. */
static rs_status deal(asking *a, const rs_hosts *hosts, double share[RS_HOSTS])
{
    rs_layout layout;
    char text[120];
    for (int h = 0; h < RS_HOSTS; h++)
        share[h] = 1;
    if (a->q->layout == NULL)
        return RS_OK;
    RS_TRY(rs_layout_parse(a->q->layout, &layout));
    int ranks = rs_layout_world(&layout), slots = rs_hosts_slots(hosts);
    snprintf(text, sizeof text, "%d slots on %d hosts for %d ranks", slots, hosts->count, ranks);
    json_array_append_new(
        a->rows, json_pack("{s:s,s:b,s:s,s:s}", "what", "slots", "good", slots >= ranks, "have",
                     text, "advice", slots >= ranks ? "" : "name more hosts, or more slots"));
    if (slots < ranks)
        return RS_OK;
    int *places = rs_calloc((size_t)ranks, sizeof *places);
    if (places == NULL)
        return rs_error_memory((size_t)ranks * sizeof *places);
    rs_status status = rs_hosts_place(hosts, ranks, NULL, places);
    for (int h = 0; h < hosts->count; h++)
        share[h] = 0;
    for (int r = 0; r < ranks && status == RS_OK; r++)
        share[places[r]] += 1.0 / ranks;
    free(places);
    return status;
}

rs_status doctor_ask_hosts(const doctor_question *q, json_t *rows, double *share)
{
    asking a = {.q = q, .rows = rows};
    rs_hosts hosts;
    double shares[RS_HOSTS];
    RS_TRY(rs_hosts_read(q->hosts, &hosts));
    RS_TRY(deal(&a, &hosts, shares));
    RS_TRY(agent_self(a.self, sizeof a.self));
    char *job = realpath(q->job, NULL);
    int n = snprintf(a.seen, sizeof a.seen, "%s/.reshard-doctor-%ld", job != NULL ? job : q->job,
        (long)getpid());
    free(job);
    int fd = n > 0 && (size_t)n < sizeof a.seen
                 ? open(a.seen, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)
                 : -1;
    *share = 0;
    rs_status status = RS_OK;
    for (int h = 0; h < hosts.count && status == RS_OK; h++) {
        const char *name = hosts.items[h].name;
        if (rs_host_is_here(name))
            *share = shares[h];
        else
            status = ask(&a, name, shares[h]);
    }
    if (fd >= 0) {
        close(fd);
        unlink(a.seen);
    }
    return status;
}
