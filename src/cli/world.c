/*
 * A world's launcher, and what can be known of its ranks through it.
 *
 * 1. The launcher runs in a session of its own: Ctrl-C reaches the supervisor alone.
 * 2. A rank gets SIGKILL when its launcher dies. When the supervisor dies, ranks finish their step
 *    and wait for another one (train/loop.c).
 * 3. While it gets ready, a new world yields to the one that trains.
 * 4. A launcher that has ended may have left bytes in its pipes; they are read until they end, for
 *    two seconds at most.
 */
#include "cli/world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/subject.h"

#define FORCE_SECONDS 5
#define GUEST_NICE 10
#define READ_SECONDS 2

/* The share of the processor that a session gets beside others; where the kernel groups sessions
 * (sched_autogroup), and it may be raised again without any right. */
static void set_session_nice(pid_t process, int nice)
{
    char path[64], text[16];
    snprintf(path, sizeof path, "/proc/%ld/autogroup", (long)process);
    int length = snprintf(text, sizeof text, "%d", nice);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = write(fd, text, (size_t)length);
    (void)n; /* it is a courtesy */
    close(fd);
}

void world_host_hello(world_host *host, const json_t *word)
{
    host->rank = (int)cli_int_of(word, "rank");
    host->ranks = (int)cli_int_of(word, "ranks");
    snprintf(host->name, sizeof host->name, "%s", cli_text_of(word, "host"));
}

void world_be_equal(world *w)
{
    if (w->process > 0 && !w->ended)
        set_session_nice(w->process, 0);
}

static rs_status start_process(world *w)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    rs_status status = RS_OK;
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
        status = rs_error_errno(errno, "cannot make a pipe");
        goto done;
    }
    pid_t supervisor = getpid();
    const char *program = w->how.arguments[0];
    fflush(NULL);
    w->process = fork();
    if (w->process < 0) {
        status = rs_error_errno(errno, "cannot start %s", program);
        goto done;
    }
    if (w->process == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        setsid();
        if (w->from != NULL)
            set_session_nice(getpid(), GUEST_NICE);
        int empty = open("/dev/null", O_RDONLY);
        if (empty >= 0)
            dup2(empty, STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        dup2(err[1], STDERR_FILENO);
        /* With readers of its own the launcher is not ended by its output when the supervisor dies.
         */
        fcntl(out[0], F_SETFD, 0);
        fcntl(err[0], F_SETFD, 0);
        if (getppid() == supervisor)
            execv(program, (char *const *)w->how.arguments);
        fprintf(stderr, "%s: %s\n", program, strerror(errno));
        _exit(127);
    }
    w->pipes[0] = out[0];
    w->pipes[1] = err[0];
    out[0] = err[0] = -1;
done:
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0)
            close(out[i]);
        if (err[i] >= 0)
            close(err[i]);
    }
    return status;
}

rs_status world_start(world *w, const launch *l, const rs_hosts *hosts, const char *address)
{
    w->pipes[0] = w->pipes[1] = -1;
    noise_init(&w->streams[0], STDOUT_FILENO);
    noise_init(&w->streams[1], STDERR_FILENO);
    w->begun = cli_now();
    launcher_world place = {.number = w->number,
        .ranks = w->ranks,
        .ferry = w->ferry,
        .address = address,
        .hosts = hosts,
        .places = w->places};
    RS_TRY(launcher_prepare(&w->how, l->launcher, l->options, &place, l->console, l->width));
    return start_process(w);
}

void world_fini(world *w)
{
    for (int i = 0; i < 2; i++) {
        noise_fini(&w->streams[i]);
        if (w->pipes[i] >= 0)
            close(w->pipes[i]);
    }
    for (int h = 0; h < w->host_count; h++)
        rs_link_close(w->hosts[h].link);
    free(w->places);
    json_decref(w->from);
    json_decref(w->attach);
    json_decref(w->stands);
}

static void keep_tail(world *w, const char *bytes, size_t count)
{
    size_t room = sizeof w->tail - 1, have = strlen(w->tail);
    if (count > room) {
        bytes += count - room;
        count = room;
    }
    size_t kept = have + count > room ? room - count : have;
    memmove(w->tail, w->tail + have - kept, kept);
    memcpy(w->tail + kept, bytes, count);
    w->tail[kept + count] = '\0';
}

void world_read(world *w, int stream)
{
    char bytes[16384];
    ssize_t n = read(w->pipes[stream], bytes, sizeof bytes);
    if (n > 0) {
        if (stream == 1)
            keep_tail(w, bytes, (size_t)n);
        noise_feed(&w->streams[stream], bytes, (size_t)n);
        return;
    }
    if (n < 0 && errno == EINTR)
        return;
    noise_end(&w->streams[stream]);
    close(w->pipes[stream]);
    w->pipes[stream] = -1;
}

bool world_is_gone(const world *w)
{
    bool read = w->pipes[0] < 0 && w->pipes[1] < 0;
    return w->ended && (read || cli_now() > w->deadline);
}

void world_has_ended(world *w, int status)
{
    w->status = status;
    w->ended = true;
    w->deadline = cli_now() + READ_SECONDS;
}

void world_force(world *w)
{
    if (w->ended || w->force > 1)
        return;
    kill(w->process, w->force == 0 ? SIGTERM : SIGKILL);
    w->force++;
    w->deadline = cli_now() + FORCE_SECONDS;
}

double world_tend(world *w)
{
    if (w->deadline <= 0)
        return -1;
    double left = w->deadline - cli_now();
    if (left > 0)
        return left;
    if (!w->ended)
        world_force(w);
    return w->ended ? 0 : FORCE_SECONDS;
}

rs_status world_tell(world *w, const json_t *word)
{
    for (int h = 0; h < w->host_count; h++)
        if (w->hosts[h].rank == 0 && w->hosts[h].link != NULL)
            return rs_link_send(w->hosts[h].link, word);
    return rs_error_set(RS_ERR_PEER, "world %d has not joined, or is gone", w->number);
}

rs_status world_tell_all(world *w, const json_t *word)
{
    for (int h = 0; h < w->host_count; h++)
        if (w->hosts[h].link != NULL)
            RS_TRY(rs_link_send(w->hosts[h].link, word));
    return RS_OK;
}

int world_ranks_on(const world *w, int host)
{
    int ranks = 0;
    for (int r = 0; w != NULL && w->places != NULL && r < w->ranks; r++)
        ranks += w->places[r] == host;
    return ranks;
}

bool world_has_joined(const world *w)
{
    for (int h = 0; h < w->host_count; h++)
        if (w->hosts[h].rank == 0 && w->hosts[h].link != NULL)
            return true;
    return false;
}

const char *world_stage_name(world_stage stage)
{
    static const char *const names[WORLD_STAGES] = {
        "boots", "builds", "ready", "pulls", "trains", "sleeps", "leaves"};
    return names[stage];
}
