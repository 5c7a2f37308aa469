/*
 * Helpers on other hosts.
 *
 * 1. The secret is never on a command line: a helper reads it from the job directory, which all
 *    hosts share.
 * 2. What is handed to the remote shell is quoted; a host's name is nothing but a name
 *    (elastic/hosts.h).
 * 3. The loop of the supervisor waits for no helper but where it asked for something (fleet_call),
 *    and then not for ever.
 * 4. A helper that has gone is started anew; its host is lost only if that fails too
 * (supervisor.c).
 */
#include "cli/fleet.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/agent.h"
#include "cli/subject.h"
#include "train/control.h"

#define SWEEP_SECONDS 30
#define REACH_SECONDS 30 /* until a helper has answered */
#define AGAIN_SECONDS 10 /* between attempts to reach a host again */
#define BURY_SECONDS 2   /* until an agent ends by itself after its helper's stream was closed */

/* ---- which hosts ---- */

static void init_host(fleet_host *host, const rs_host *named)
{
    *host = (fleet_host){.output = -1, .here = rs_host_is_here(named->name)};
    memcpy(host->name, named->name, sizeof host->name);
}

/* JOB/hosts: for who cleans up after the job, or goes on with it. */
static rs_status note_hosts(const fleet *f)
{
    rs_text text = {0};
    char *all = NULL;
    for (int h = 0; h < f->count; h++)
        rs_text_append(&text, "%s slots=%d\n", f->file.items[h].name, f->file.items[h].slots);
    RS_TRY(rs_text_take(&text, &all));
    rs_status status = rs_control_replace(f->options->job, "hosts", all);
    free(all);
    return status;
}

/* Hosts that an earlier run of the job was on may have something of it still. */
static void add_former(fleet *f, const rs_hosts *former)
{
    for (int i = 0; i < former->count && f->file.count < RS_HOSTS; i++) {
        bool known = false;
        for (int h = 0; h < f->file.count; h++)
            known = known || rs_host_is(f->file.items[h].name, former->items[i].name);
        if (known)
            continue;
        f->file.items[f->file.count] = former->items[i];
        f->file.items[f->file.count++].slots = 0;
    }
}

/* `fresh`: what an earlier attempt noted does not count. */
static rs_status find_hosts(fleet *f, bool fresh)
{
    rs_hosts former = {.count = 0};
    char path[RS_TRAIN_PATH + 16];
    snprintf(path, sizeof path, "%s/hosts", f->options->job);
    rs_status status = fresh ? RS_ERR_NOT_FOUND : rs_hosts_read(path, &former);
    if (status != RS_OK && status != RS_ERR_NOT_FOUND)
        return status;
    struct stat about;
    if (f->options->hosts[0] != '\0') {
        if (stat(f->options->hosts, &about) == 0)
            f->changed = about.st_mtim;
        RS_TRY(rs_hosts_read(f->options->hosts, &f->file));
    } else {
        f->file = former;
    }
    if (f->file.count == 0) {
        unlink(path);
        return RS_OK;
    }
    add_former(f, &former);
    char *absolute = realpath(f->options->job, NULL);
    if (absolute == NULL)
        return rs_error_errno(errno, "%s", f->options->job);
    snprintf(f->job, sizeof f->job, "%s", absolute);
    free(absolute);
    f->count = f->file.count;
    for (int h = 0; h < f->count; h++)
        init_host(&f->hosts[h], &f->file.items[h]);
    return note_hosts(f);
}

/* The name under which the other hosts reach this one. */
static void find_own_name(const fleet *f, char name[RS_HOST_NAME])
{
    memset(name, 0, RS_HOST_NAME);
    if (f->options->address[0] != '\0') {
        snprintf(name, RS_HOST_NAME, "%s", f->options->address);
        return;
    }
    gethostname(name, RS_HOST_NAME - 1);
    for (int h = 0; h < f->count; h++) /* as the user calls it */
        if (f->hosts[h].here && strcmp(f->hosts[h].name, "localhost") != 0)
            memcpy(name, f->hosts[h].name, RS_HOST_NAME);
}

int fleet_find(const fleet *f, const char *name)
{
    for (int h = 0; h < f->count; h++)
        if (rs_host_is(f->hosts[h].name, name))
            return h;
    return -1;
}

bool fleet_reaches(const fleet *f, int host)
{
    return f->hosts[host].here || f->hosts[host].link != NULL;
}

/* The hosts as they can be used now. */
static rs_hosts usable(const fleet *f)
{
    rs_hosts hosts = f->file;
    for (int h = 0; h < f->count; h++)
        if (!fleet_reaches(f, h))
            hosts.items[h].slots = 0;
    return hosts;
}

int fleet_slots(const fleet *f)
{
    rs_hosts hosts = usable(f);
    return rs_hosts_slots(&hosts);
}

rs_status fleet_place(const fleet *f, int ranks, int **out)
{
    *out = NULL;
    if (f->count == 0)
        return RS_OK;
    rs_hosts hosts = usable(f);
    int *places = rs_calloc((size_t)ranks, sizeof *places);
    if (places == NULL)
        return rs_error_memory((size_t)ranks * sizeof *places);
    rs_status status =
        rs_hosts_place(&hosts, ranks, f->near_count == ranks ? f->near : NULL, places);
    if (status == RS_OK)
        *out = places;
    else
        free(places);
    return status;
}

/* ---- starting helpers ---- */

/* The helper's command line, for the remote shell. */
static rs_status helper_command(const fleet *f, const fleet_host *host, char **out)
{
    char self[RS_TRAIN_PATH];
    rs_text text = {0};
    RS_TRY(agent_self(self, sizeof self));
    rs_text_append(&text, "exec");
    const char *const words[] = {self, "host", "--job", f->job, "--link",
        rs_listener_address(f->listener), "--name", host->name};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        agent_quote(&text, words[i]);
    return rs_text_take(&text, out);
}

static rs_status start_helper(fleet *f, fleet_host *host)
{
    char *command = NULL;
    pid_t process = 0;
    int output = -1;
    RS_TRY(helper_command(f, host, &command));
    rs_status status = agent_start(f->options->rsh_agent, host->name, command, &process, &output);
    free(command);
    RS_TRY(status);
    if (host->output >= 0)
        close(host->output);
    host->process = process;
    host->output = output;
    host->said[0] = '\0';
    host->begun = host->beat = cli_now();
    return RS_OK;
}

/* ---- hearing them ---- */

static void read_output(fleet_host *host)
{
    char bytes[4096];
    ssize_t n;
    while (host->output >= 0 && (n = read(host->output, bytes, sizeof bytes)) != 0) {
        if (n < 0)
            return;
        size_t have = strlen(host->said), room = sizeof host->said - 1 - have;
        size_t kept = (size_t)n < room ? (size_t)n : room;
        memcpy(host->said + have, bytes, kept);
        host->said[have + kept] = '\0';
    }
    if (host->output >= 0)
        close(host->output);
    host->output = -1;
}

static void lose_helper(fleet_host *host)
{
    rs_link_close(host->link);
    host->link = NULL;
    host->begun = cli_now();
}

bool fleet_join(fleet *f, const json_t *word, rs_link *link)
{
    const char *name = json_string_value(json_object_get(word, "host"));
    int h = name != NULL ? fleet_find(f, name) : -1;
    if (h < 0 || f->hosts[h].here || f->hosts[h].link != NULL)
        return false;
    f->hosts[h].link = link;
    f->hosts[h].beat = cli_now();
    return true;
}

bool fleet_has_ended(fleet *f, pid_t process)
{
    for (int h = 0; h < f->count; h++) {
        if (f->hosts[h].process != process)
            continue;
        f->hosts[h].process = 0;
        read_output(&f->hosts[h]);
        return true;
    }
    return false;
}

/* Reads its beats; what else it says nobody has asked for, but for trouble. */
static void hear(fleet_host *host)
{
    json_t *word = NULL;
    while (host->link != NULL) {
        if (rs_link_receive(host->link, 0, &word) != RS_OK) {
            lose_helper(host);
            return;
        }
        if (word == NULL)
            return;
        host->beat = cli_now();
        const char *trouble = json_string_value(json_object_get(word, "trouble"));
        if (trouble != NULL)
            fprintf(stderr, "reshard train: host %s: %s\n", host->name, trouble);
        json_decref(word);
    }
}

/* Whoever comes back can be used again. */
static void start_again(fleet *f, fleet_host *host)
{
    if (host->here || host->dismissed || host->link != NULL ||
        cli_now() - host->begun < AGAIN_SECONDS)
        return;
    if (host->process > 0)
        kill(host->process, SIGKILL); /* it reaches nobody; started anew when it has gone */
    else if (start_helper(f, host) != RS_OK)
        fprintf(stderr, "reshard train: %s\n", rs_error_message());
    host->begun = cli_now();
}

void fleet_tend(fleet *f, double silence)
{
    for (int h = 0; h < f->count; h++) {
        fleet_host *host = &f->hosts[h];
        read_output(host);
        hear(host);
        if (host->link != NULL && cli_now() - host->beat > silence) {
            fprintf(stderr, "reshard train: host %s has not been heard of for %.0f s\n", host->name,
                cli_now() - host->beat);
            lose_helper(host);
        }
        start_again(f, host);
    }
}

/* ---- waiting for them ---- */

/* Takes what has connected; who is no helper has nothing to say yet. */
static void take_helpers(fleet *f, rs_link **waiting, int *count)
{
    rs_link *link = NULL;
    if (*count < RS_HOSTS && rs_listener_accept(f->listener, &link) == RS_OK && link != NULL)
        waiting[(*count)++] = link;
    for (int i = 0; i < *count;) {
        json_t *word = NULL;
        rs_status status = rs_link_receive(waiting[i], 0, &word);
        if (status == RS_OK && word == NULL) {
            i++;
            continue;
        }
        if (status != RS_OK || !fleet_join(f, word, waiting[i]))
            rs_link_close(waiting[i]);
        waiting[i] = waiting[--*count];
        json_decref(word);
    }
}

static void reap_agents(fleet *f)
{
    for (int h = 0; h < f->count; h++) {
        fleet_host *host = &f->hosts[h];
        read_output(host);
        if (host->process > 0 && waitpid(host->process, NULL, WNOHANG) == host->process) {
            host->process = 0;
            read_output(host);
        }
    }
}

/* True while a helper may still come. */
static bool some_may_come(const fleet *f)
{
    for (int h = 0; h < f->count; h++)
        if (!f->hosts[h].here && f->hosts[h].link == NULL && f->hosts[h].process > 0)
            return true;
    return false;
}

static void await_helpers(fleet *f)
{
    rs_link *waiting[RS_HOSTS];
    int count = 0;
    double deadline = cli_now() + REACH_SECONDS;
    while (some_may_come(f) && cli_now() < deadline) {
        struct pollfd fd = {.fd = rs_listener_fd(f->listener), .events = POLLIN};
        poll(&fd, 1, 20);
        take_helpers(f, waiting, &count);
        reap_agents(f);
    }
    while (count > 0)
        rs_link_close(waiting[--count]);
}

/* What is wrong with a host whose helper has not come. */
static rs_status explain(fleet_host *host)
{
    host->said[strcspn(host->said, "\r\n")] = '\0';
    return rs_error_set(RS_ERR_PEER, "host %s cannot be reached: %s", host->name,
        host->said[0] != '\0' ? host->said : "its helper has not answered in time");
}

static rs_status start_helpers(fleet *f, bool strict)
{
    for (int h = 0; h < f->count; h++)
        if (!f->hosts[h].here)
            RS_TRY(start_helper(f, &f->hosts[h]));
    await_helpers(f);
    for (int h = 0; h < f->count; h++) {
        if (f->hosts[h].here || f->hosts[h].link != NULL)
            continue;
        rs_status status = explain(&f->hosts[h]);
        if (strict && f->file.items[h].slots > 0)
            return status;
        fprintf(stderr, "reshard: %s\n", rs_error_message());
    }
    return RS_OK;
}

rs_status fleet_open(fleet *f, const rs_train_options *options, bool strict)
{
    char path[RS_TRAIN_PATH + 16], name[RS_TRAIN_ID + 48], own[RS_HOST_NAME];
    uint8_t secret[RS_SECRET];
    *f = (fleet){.options = options};
    RS_TRY(find_hosts(f, strict));
    signal(SIGPIPE, SIG_IGN);
    snprintf(path, sizeof path, "%s/secret", options->job);
    RS_TRY(rs_secret_make(path, secret));
    snprintf(name, sizeof name, "reshard-%s-%ld-%lld", options->id, (long)getpid(),
        (long long)(1e6 * cli_now()));
    find_own_name(f, own);
    /* Over the network only where it has to be. */
    rs_status status = rs_listener_open(name, f->count > 0 ? own : NULL, secret, &f->listener);
    if (status != RS_OK) {
        unlink(path); /* nobody is to prove anything by it */
        return status;
    }
    return start_helpers(f, strict);
}

/* ---- asking them ---- */

static rs_status read_reply(const fleet_host *host, const json_t *word)
{
    rs_status status = (rs_status)cli_int_of(word, "status");
    if (status == RS_OK)
        return RS_OK;
    return rs_error_set(status, "host %s: %s", host->name, cli_text_of(word, "message"));
}

rs_status fleet_call(fleet_host *host, json_t *word, double seconds, json_t **reply)
{
    int call = ++host->calls;
    double deadline = cli_now() + seconds;
    if (word == NULL || json_object_set_new(word, "call", json_integer(call)) != 0) {
        json_decref(word);
        return rs_error_memory(1);
    }
    rs_status status = host->link != NULL ? rs_link_send(host->link, word) : RS_ERR_PEER;
    json_decref(word);
    while (status == RS_OK) {
        json_t *answer = NULL;
        double left = deadline - cli_now();
        status = left > 0 ? rs_link_receive(host->link, left, &answer) : RS_ERR_PEER;
        if (status != RS_OK || answer == NULL)
            continue;
        host->beat = cli_now();
        if (json_integer_value(json_object_get(answer, "call")) != call) {
            json_decref(answer);
            continue;
        }
        status = read_reply(host, answer);
        if (reply != NULL && status == RS_OK)
            *reply = answer;
        else
            json_decref(answer);
        return status;
    }
    if (host->link != NULL)
        lose_helper(host);
    return rs_error_set(RS_ERR_PEER, "host %s does not answer", host->name);
}

void fleet_tell_one(fleet_host *host, json_t *word)
{
    if (word != NULL && host->link != NULL && rs_link_send(host->link, word) != RS_OK)
        lose_helper(host);
    json_decref(word);
}

void fleet_tell(fleet *f, json_t *word)
{
    for (int h = 0; h < f->count && word != NULL; h++)
        fleet_tell_one(&f->hosts[h], json_incref(word));
    json_decref(word);
}

/* ---- the end ---- */

bool fleet_sweep(fleet *f, bool state)
{
    bool all = true;
    for (int h = 0; h < f->count; h++) {
        fleet_host *host = &f->hosts[h];
        if (host->here || host->dismissed)
            continue;
        rs_status status = fleet_call(
            host, json_pack("{s:s,s:b}", "do", "sweep", "state", state), SWEEP_SECONDS, NULL);
        if (status == RS_OK)
            continue;
        fprintf(stderr,
            "reshard: what the job left on host %s is still there (%s); `reshard clean %s` removes "
            "it when the host can be reached\n",
            host->name, rs_error_message(), f->options->job);
        all = false;
    }
    return all;
}

/* Lets an agent end, whose helper ends with its stream. */
static void bury(fleet_host *host)
{
    double deadline = cli_now() + BURY_SECONDS;
    rs_link_close(host->link);
    host->link = NULL;
    while (host->process > 0 && waitpid(host->process, NULL, WNOHANG) == 0) {
        if (cli_now() > deadline)
            kill(host->process, SIGKILL);
        usleep(5000);
    }
    host->process = 0;
    if (host->output >= 0)
        close(host->output);
    host->output = -1;
}

void fleet_dismiss(fleet_host *host)
{
    host->dismissed = true;
    bury(host);
}

void fleet_recall(fleet *f, int host)
{
    f->hosts[host].dismissed = false;
    f->hosts[host].begun = 0; /* started at the next look */
}

rs_status fleet_add(fleet *f, const rs_host *host)
{
    if (f->count == RS_HOSTS)
        return rs_error_set(
            RS_ERR_UNSUPPORTED, "host %s: a job has at most %d hosts", host->name, RS_HOSTS);
    init_host(&f->hosts[f->count], host);
    f->file.items[f->count++] = *host;
    f->file.count = f->count;
    return RS_OK; /* fleet_tend starts its helper */
}

void fleet_note(const fleet *f)
{
    if (note_hosts(f) != RS_OK)
        fprintf(stderr, "reshard train: %s/hosts: %s\n", f->options->job, rs_error_message());
}

void fleet_close(fleet *f)
{
    char path[RS_TRAIN_PATH + 16];
    if (f->options == NULL)
        return;
    for (int h = 0; h < f->count; h++)
        bury(&f->hosts[h]);
    if (f->listener != NULL) {
        snprintf(path, sizeof path, "%s/secret", f->options->job);
        unlink(path);
    }
    rs_listener_close(f->listener);
    f->listener = NULL;
    free(f->near);
    f->near = NULL;
}
