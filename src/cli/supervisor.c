/*
 * The supervisor: the process that a user starts. It owns the job directory, starts each world of
 * ranks as a fresh MPI job, passes on what they print, leads changes of worlds (change.c), and
 * stays until all are gone.
 *
 * 1. Ctrl-C and SIGTERM reach the supervisor alone, which asks the job to stop after its step, as
 *    `reshard stop` does. A second signal, or the end of the grace time, ends the launchers.
 * 2. One loop waits for everything: signals, streams, the launchers' pipes, the clock. Nothing in
 * it waits for a single peer.
 * 3. Worlds prove themselves by the job's secret before they are heard (elastic/link.h).
 * 4. A world whose ranks show no sign of life counts as dead: the rank that stopped is killed, and
 *    the launcher ends the others. So does one whose launcher does not see that its ranks have
 * gone: the launcher is ended.
 * 5. The first rank that died is named in one line; the launcher's own texts are shown only if
 *    nothing else explains the end.
 */
#include "cli/supervisor.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "cli/resume.h"
#include "cli/subject.h"

#define TICK_SECONDS 0.05 /* between looks for requests */
#define GONE_SECONDS 15   /* from a host's last word to the launcher's end, at most */

/* ---- worlds ---- */

rs_status supervisor_start(
    supervisor *s, const char *layout, int ranks, json_t *from, int64_t scheduled, world **out)
{
    world *w = rs_calloc(1, sizeof *w);
    if (w == NULL) {
        json_decref(from);
        return rs_error_memory(sizeof *w);
    }
    w->pipes[0] = w->pipes[1] = -1;
    w->number = ++s->numbers;
    w->ranks = ranks;
    w->generation = (w->number - 1) * RS_WORLD_GENERATIONS;
    w->from = from;
    w->scheduled = scheduled;
    snprintf(w->layout, sizeof w->layout, "%s", layout);
    rs_status status = fleet_place(s->fleet, ranks, &w->places);
    if (status == RS_OK)
        status =
            world_start(w, s->launch, &s->fleet->file, rs_listener_address(s->fleet->listener));
    if (status != RS_OK) {
        world_fini(w);
        free(w);
        return status;
    }
    *out = w;
    return RS_OK;
}

void supervisor_forget(supervisor *s, const world *w)
{
    launch_forget(s->options, w->number, w->ranks);
    fleet_tell(s->fleet, json_pack("{s:s,s:i}", "do", "forget", "world", w->number));
}

static void lose_host(world_host *host)
{
    rs_link_close(host->link);
    host->link = NULL;
}

/* Reads a host's words. */
static void hear_host(supervisor *s, world *w, world_host *host)
{
    json_t *word = NULL;
    while (host->link != NULL) {
        if (rs_link_receive(host->link, 0, &word) != RS_OK) {
            lose_host(host);
            return;
        }
        if (word == NULL)
            return;
        change_word(s, w, host, word);
        json_decref(word);
        if (w != s->active && w != s->other && w != s->ferry)
            return; /* it is gone */
    }
}

static world *find_world(const supervisor *s, int number)
{
    world *const worlds[] = {s->active, s->other, s->ferry};
    for (int i = 0; i < 3; i++)
        if (worlds[i] != NULL && worlds[i]->number == number)
            return worlds[i];
    return NULL;
}

static void forget_stranger(supervisor *s, int i)
{
    s->strangers[i] = s->strangers[--s->stranger_count];
}

/* True if the next world begins from what is there. */
static bool begins_from(const supervisor *s, int host)
{
    for (int r = 0; s->survival.pending && r < s->fleet->near_count; r++)
        if (s->fleet->near[r] == host)
            return true;
    return false;
}

/* A host can be reached again. What the job has there, if no world is on it nor begins from it, is
 * of a world that went on without it: it goes, with processes that may still wait. */
static void greet_host(supervisor *s, int host)
{
    if (world_ranks_on(s->active, host) > 0 || world_ranks_on(s->other, host) > 0 ||
        begins_from(s, host))
        return;
    fleet_tell_one(&s->fleet->hosts[host], json_pack("{s:s,s:b}", "do", "sweep", "state", 1));
    fprintf(stderr, "reshard train: host %s can be reached again\n", s->fleet->hosts[host].name);
    change_note_worlds(s);
}

/* A connection that has not said who it is: its first word must be a hello. */
static void hear_stranger(supervisor *s, int i)
{
    rs_link *link = s->strangers[i];
    json_t *word = NULL;
    rs_status status = rs_link_receive(link, 0, &word);
    if (status == RS_OK && word == NULL)
        return;
    forget_stranger(s, i);
    const char *what = json_string_value(json_object_get(word, "say"));
    world *w = find_world(s, (int)json_integer_value(json_object_get(word, "world")));
    if (status == RS_OK && what != NULL && strcmp(what, "host") == 0) {
        if (fleet_join(s->fleet, word, link))
            greet_host(s, fleet_find(s->fleet, json_string_value(json_object_get(word, "host"))));
        else
            rs_link_close(link);
    } else if (status != RS_OK || what == NULL || strcmp(what, "hello") != 0 || w == NULL ||
               w->host_count == WORLD_HOSTS) {
        rs_link_close(link);
    } else {
        world_host *host = &w->hosts[w->host_count++];
        *host = (world_host){.link = link};
        change_word(s, w, host, word);
    }
    json_decref(word);
}

static void take_connection(supervisor *s)
{
    rs_link *link = NULL;
    if (rs_listener_accept(s->fleet->listener, &link) != RS_OK || link == NULL)
        return;
    if (s->stranger_count == WORLD_HOSTS) { /* the oldest has had time enough */
        rs_link_close(s->strangers[0]);
        forget_stranger(s, 0);
    }
    s->strangers[s->stranger_count++] = link;
}

/* ---- stopping ---- */

static void begin_stop(supervisor *s)
{
    s->stopping = true;
    s->stop_limit = cli_now() + s->launch->grace;
    fprintf(stderr, "\nreshard train: stopping after this step (once more: at once)\n");
    change_cancel(s, "the job is told to stop");
    json_t *word = json_pack("{s:s,s:s,s:s}", "do", "request", "kind", "stop", "name", "");
    if (s->active == NULL || s->active->stage == WORLD_BOOTS ||
        world_tell(s->active, word) != RS_OK)
        s->stop_limit = cli_now();
    json_decref(word);
}

void supervisor_stop(supervisor *s, int number)
{
    if (s->stops++ > 0)
        return;
    s->stop_signal = number;
    begin_stop(s);
}

static void use_force(supervisor *s)
{
    s->stop_limit = 0;
    s->forced = true;
    if (s->active != NULL)
        world_force(s->active);
    if (s->other != NULL)
        world_force(s->other);
    ferry_end(s);
}

static void reap(supervisor *s)
{
    int status;
    world *const worlds[] = {s->active, s->other, s->ferry};
    for (pid_t process; (process = waitpid(-1, &status, WNOHANG)) > 0;) {
        bool found = false;
        for (int i = 0; i < 3 && !found; i++) {
            found = worlds[i] != NULL && worlds[i]->process == process;
            if (found)
                world_has_ended(worlds[i], status);
        }
        if (!found)
            fleet_has_ended(s->fleet, process);
    }
}

static void take_signal(supervisor *s)
{
    struct signalfd_siginfo info;
    if (read(s->signals, &info, sizeof info) != sizeof info)
        return;
    if (info.ssi_signo == SIGCHLD) {
        reap(s);
        return;
    }
    if (s->stops > 0) {
        s->stops++;
        s->stop_signal = (int)info.ssi_signo;
        use_force(s);
    } else {
        supervisor_stop(s, (int)info.ssi_signo);
    }
}

/* ---- signs of life ---- */

/* Ends a world of which a rank has stopped; killed ranks end their launcher. */
static void end_stopped(supervisor *s)
{
    long process = 0;
    fleet_host *host = s->stopped_host >= 0 ? &s->fleet->hosts[s->stopped_host] : NULL;
    bool known = sscanf(s->stopped_rank, "process %ld", &process) == 1 && process > 0;
    if (known && host != NULL && !host->here)
        fleet_tell_one(host, json_pack("{s:s,s:I}", "do", "kill", "process", (json_int_t)process));
    else if (known)
        launch_end_rank(s->launch->options, process);
    s->active->deadline = cli_now() + 1;
}

double supervisor_silence(const supervisor *s, const world_host *host)
{
    return s->looked - host->beat;
}

bool supervisor_is_silent(const supervisor *s, const world_host *host, double seconds)
{
    return host->link != NULL && seconds > s->launch->heartbeat;
}

static void check_beats(supervisor *s)
{
    world *w = s->active;
    if (w == NULL || w->ended || w->deadline > 0)
        return;
    for (int h = 0; h < w->host_count && s->stopped_rank[0] == '\0'; h++) {
        const world_host *host = &w->hosts[h];
        double silent = supervisor_silence(s, host);
        if (supervisor_is_silent(s, host, silent))
            snprintf(s->stopped_rank, sizeof s->stopped_rank,
                "rank %d on %s has shown no sign of life for %.0f s", host->rank, host->name,
                silent);
        else if (host->link == NULL && silent > GONE_SECONDS)
            snprintf(s->stopped_rank, sizeof s->stopped_rank,
                "rank %d on %s has gone, and the launcher (process %ld) goes on without it",
                host->rank, host->name, (long)w->process);
    }
    if (s->stopped_rank[0] != '\0')
        end_stopped(s);
}

/* ---- the loop ---- */

#define MOST_FDS (2 + 3 * (2 + WORLD_HOSTS) + 2 * WORLD_HOSTS)

/* What a descriptor of the poll belongs to. */
typedef struct source {
    world *world;
    int stream; /* 0, 1: of a pipe */
    int host;   /* of a world, or a stranger without world */
} source;

static int add_fd(struct pollfd *fds, source *sources, int count, int fd, source of)
{
    fds[count] = (struct pollfd){.fd = fd, .events = POLLIN};
    sources[count] = of;
    return count + 1;
}

static int add_world(struct pollfd *fds, source *sources, int count, world *w)
{
    for (int i = 0; w != NULL && i < 2; i++)
        if (w->pipes[i] >= 0)
            count = add_fd(fds, sources, count, w->pipes[i], (source){w, i, -1});
    for (int h = 0; w != NULL && h < w->host_count; h++)
        if (w->hosts[h].link != NULL)
            count = add_fd(fds, sources, count, rs_link_fd(w->hosts[h].link), (source){w, -1, h});
    return count;
}

static void serve(supervisor *s, const struct pollfd *fds, const source *sources, int count)
{
    for (int i = 2; i < count; i++) {
        const source *from = &sources[i];
        world *w = from->world;
        if (fds[i].revents == 0 || (w != NULL && w != s->active && w != s->other && w != s->ferry))
            continue;
        if (w == NULL) {
            for (int k = 0; k < s->stranger_count; k++)
                if (rs_link_fd(s->strangers[k]) == fds[i].fd)
                    hear_stranger(s, k);
        } else if (from->stream >= 0 && w->pipes[from->stream] == fds[i].fd) {
            world_read(w, from->stream);
        } else if (from->host >= 0) {
            hear_host(s, w, &w->hosts[from->host]);
        }
    }
    if (fds[1].revents != 0)
        take_connection(s);
    if (fds[0].revents != 0)
        take_signal(s);
}

/* What the clock brings. */
static void tend(supervisor *s)
{
    fleet_tend(s->fleet, s->launch->heartbeat);
    drain_tend(s);
    change_tend(s);
    revive_tend(s);
    check_beats(s);
    vigil_tend(s);
    if (s->stop_limit > 0 && cli_now() > s->stop_limit) {
        if (s->active != NULL && s->active->stage != WORLD_BOOTS)
            fprintf(stderr,
                "reshard train: the step has not ended within %g s (--grace): at once\n",
                s->launch->grace);
        use_force(s);
    }
    if (s->active != NULL)
        world_tend(s->active);
    if (s->other != NULL)
        world_tend(s->other);
    ferry_tend(s);
    if (s->other == NULL || !world_is_gone(s->other))
        return;
    bool leaves = s->handover.state == RS_HANDOVER_LEAVING;
    if (!leaves && s->ferry != NULL) { /* it may be writing to what the world has made */
        ferry_end(s);
        change_event(s, RS_HANDOVER_FAILED);
        return;
    }
    change_event(s, leaves ? RS_HANDOVER_OLD_GONE : RS_HANDOVER_NEW_GONE);
}

/* True when the active world has ended and nothing goes on without it. */
static bool is_over(supervisor *s)
{
    if (s->active != NULL && !world_is_gone(s->active))
        return false;
    if (s->ferry != NULL && s->other == NULL) {
        ferry_end(s);
        return false;
    }
    if (s->active == NULL || s->survival.pending)
        return !s->survival.pending || s->stopping;
    rs_handover_state state = s->handover.state;
    if (state == RS_HANDOVER_PULLING || state == RS_HANDOVER_COMMITTING)
        return false; /* it slept: the other one takes over */
    if (s->active->bereft && state != RS_HANDOVER_IDLE)
        return false; /* so it does from one that was recovered */
    if (state == RS_HANDOVER_HOLDING || state == RS_HANDOVER_BUILDING ||
        state == RS_HANDOVER_QUIESCING)
        change_event(s, RS_HANDOVER_OLD_GONE);
    return s->other == NULL && !revive(s);
}

static void supervise(supervisor *s)
{
    struct pollfd fds[MOST_FDS];
    source sources[MOST_FDS];
    while (!is_over(s)) {
        int count = add_fd(fds, sources, 0, s->signals, (source){0});
        count = add_fd(fds, sources, count, rs_listener_fd(s->fleet->listener), (source){0});
        count = add_world(fds, sources, count, s->active);
        count = add_world(fds, sources, count, s->other);
        count = add_world(fds, sources, count, s->ferry);
        for (int k = 0; k < s->stranger_count; k++)
            count = add_fd(fds, sources, count, rs_link_fd(s->strangers[k]), (source){NULL, -1, k});
        int asked = count;
        for (int h = 0; h < s->fleet->count; h++) /* fleet_tend reads them */
            if (s->fleet->hosts[h].link != NULL)
                asked =
                    add_fd(fds, sources, asked, rs_link_fd(s->fleet->hosts[h].link), (source){0});
        if (poll(fds, (nfds_t)asked, (int)(TICK_SECONDS * 1000)) < 0 && errno != EINTR)
            return;
        s->looked = cli_now();
        serve(s, fds, sources, count);
        tend(s);
    }
}

/* Ranks that outlived a launcher became children of the supervisor; they are dying. */
static void reap_rest(void)
{
    for (int tries = 0; tries < 200; tries++) {
        pid_t process = waitpid(-1, NULL, WNOHANG);
        if (process < 0)
            return;
        if (process == 0)
            usleep(10000);
    }
}

/* ---- what to say at the end ---- */

/* Completes rank and process number from each other, by what the ranks noted at their start. */
static void complete(const supervisor *s, const world *w, noise_death *death)
{
    for (int rank = 0; rank < w->ranks; rank++) {
        long process = 0;
        char host[64] = "";
        if (!launch_find_rank(s->options, w->number, rank, &process, host) ||
            (death->rank >= 0 ? death->rank != rank : death->pid != process))
            continue;
        death->rank = rank;
        death->pid = process;
        snprintf(death->host, sizeof death->host, "%s", host);
    }
}

static int64_t last_step(const supervisor *s)
{
    char *text = NULL;
    if (rs_control_status(s->options->job, &text) != RS_OK)
        return 0;
    json_t *root = json_loads(text, 0, NULL);
    int64_t step = json_integer_value(json_object_get(root, "step"));
    json_decref(root);
    free(text);
    return step;
}

static noise_death find_death(const world *w)
{
    noise_death death = w->streams[1].death;
    if (death.rank < 0 && death.pid == 0)
        death = w->streams[0].death;
    /* What the launcher says of another process is then about one that followed. */
    long lost = w->streams[0].death.lost > 0 ? w->streams[0].death.lost : w->streams[1].death.lost;
    if (lost > 0 && lost != death.pid)
        death = (noise_death){.rank = -1, .pid = lost, .lost = lost};
    return death;
}

static void name_rank(const noise_death *death, char *who, size_t size)
{
    if (death->rank >= 0 && death->pid > 0)
        snprintf(who, size, "rank %d (process %ld on %s)", death->rank, death->pid, death->host);
    else if (death->rank >= 0)
        snprintf(who, size, "rank %d", death->rank);
    else
        snprintf(who, size, "a rank");
}

bool supervisor_death(const supervisor *s, char *text, size_t size, noise_death *death, bool *own)
{
    const world *w = s->active;
    char who[160];
    *death = find_death(w);
    *own = false;
    if (s->stopped_rank[0] != '\0') {
        snprintf(text, size, "%s", s->stopped_rank);
        return true;
    }
    bool reported = w->streams[0].rank_reported || w->streams[1].rank_reported;
    if (death->signal > 0 || death->lost > 0 || (death->exit_code > 0 && !reported)) {
        complete(s, w, death);
        name_rank(death, who, sizeof who);
        if (death->signal > 0)
            snprintf(text, size, "%s was killed by signal %d (%s)", who, death->signal,
                strsignal(death->signal));
        else if (death->lost > 0)
            snprintf(text, size, "%s died", who);
        else
            snprintf(text, size, "%s ended with exit code %d", who, death->exit_code);
        int n = death->signal;
        *own = n == SIGSEGV || n == SIGBUS || n == SIGFPE || n == SIGABRT ||
               (n == 0 && death->exit_code > 0);
        return true;
    }
    if (!reported && WIFSIGNALED(w->status)) {
        snprintf(text, size, "the launcher (process %ld) was killed by signal %d (%s)",
            (long)w->process, WTERMSIG(w->status), strsignal(WTERMSIG(w->status)));
        return true;
    }
    return false;
}

/* What the deadline after a signal, or a second one, has cost. */
static void tell_unsaved(const supervisor *s)
{
    int64_t step = last_step(s);
    if (!s->forced || step <= 0)
        return;
    int64_t saved = resume_newest(s->options);
    if (saved < 0)
        fprintf(stderr, "reshard train: ended by force after step %" PRId64 ", and never saved\n",
            step);
    else if (step > saved)
        fprintf(stderr,
            "reshard train: ended by force after step %" PRId64 ", and saved at step %" PRId64
            " last: what came after is lost\n",
            step, saved);
}

static int conclude(const supervisor *s)
{
    const cli_command *command = s->launch->command;
    const world *w = s->active;
    char text[400];
    noise_death death;
    bool own;
    tell_unsaved(s);
    if (w == NULL || s->verdict[0] != '\0') {
        if (s->stop_signal != 0)
            return s->stop_signal == SIGTERM || s->stop_signal == SIGUSR1 ? CLI_REQUEUE
                                                                          : 128 + s->stop_signal;
        return cli_error(command, CLI_FAILURE, "%s", s->verdict);
    }
    bool good = WIFEXITED(w->status) && WEXITSTATUS(w->status) == 0;
    if (good && (s->stop_signal == SIGTERM || s->stop_signal == SIGUSR1))
        return CLI_REQUEUE;
    if (s->stop_signal != 0)
        return 128 + s->stop_signal;
    if (good)
        return 0;
    bool reported = w->streams[0].rank_reported || w->streams[1].rank_reported;
    if (supervisor_death(s, text, sizeof text, &death, &own)) {
        cli_error(command, CLI_FAILURE, "%s after step %" PRId64 "; the job has ended", text,
            last_step(s));
    } else if (!reported) {
        for (int i = 0; i < 2; i++) {
            if (w->streams[i].held.length > 0)
                fputs(w->streams[i].held.data, stderr);
        }
        cli_error(command, CLI_FAILURE, "the ranks could not be run: the launcher %s ended with %d",
            w->how.arguments[0], WEXITSTATUS(w->status));
    }
    return CLI_FAILURE;
}

/* ---- from beginning to end ---- */

static rs_status begin(supervisor *s)
{
    rs_crash_begin(-1);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigset_t set = launch_hold_signals();
    s->signals = signalfd(-1, &set, SFD_CLOEXEC);
    if (s->signals < 0)
        return rs_error_errno(errno, "signalfd");
    RS_TRY(rs_control_open(s->options->job, &s->control));
    RS_TRY(supervisor_start(s, s->options->layout, s->options->ranks, NULL, 0, &s->active));
    s->fleet->near_count = 0;
    rs_crash_point("started");
    if (s->options->attach >= 0)
        s->active->attach = json_pack("{s:i,s:s,s:I}", "generation", s->options->attach, "layout",
            s->options->attach_layout, "step", (json_int_t)s->options->attach_step);
    return RS_OK;
}

static void end(supervisor *s)
{
    world *const worlds[] = {s->active, s->other, s->ferry};
    for (int i = 0; i < 3; i++) {
        if (worlds[i] == NULL)
            continue;
        world_fini(worlds[i]);
        free(worlds[i]);
    }
    for (int k = 0; k < s->stranger_count; k++)
        rs_link_close(s->strangers[k]);
    rs_control_close(s->control);
    json_decref(s->pull);
    if (s->signals >= 0)
        close(s->signals);
}

int launch_run(const launch *l)
{
    supervisor s = {.launch = l,
        .fleet = l->fleet,
        .options = l->options,
        .signals = -1,
        .stopped_host = -1,
        .draining = -1};
    int code = CLI_FAILURE;
    /* A world that begins from arenas makes its own in generations of their own. */
    if (l->options->attach >= 0)
        s.numbers = l->options->attach / RS_WORLD_GENERATIONS + 1;
    rs_status status = begin(&s);
    if (status == RS_OK)
        supervise(&s);
    else
        code = cli_fail(l->command, status, NULL);
    /* A job that ends by itself, well or not, takes its record along. */
    bool kept = (s.stop_signal == 0 || s.survival.pending) && launch_keeps_state(l->options);
    fleet_sweep(s.fleet, !kept);
    fleet_close(s.fleet);
    reap_rest();
    if (status == RS_OK)
        code = conclude(&s);
    status = launch_sweep(l->options, !kept);
    if (status != RS_OK)
        code = cli_fail(l->command, status, "cleaning up");
    else if (kept)
        launch_tell_kept(l->options, stderr);
    end(&s);
    return code;
}
