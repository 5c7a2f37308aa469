/*
 * Filters for the output of mpirun (Open MPI's and MPICH's) and srun.
 *
 * Open MPI puts what it has to say between two lines of dashes, and MPICH between two lines of
 * equals signs with a paragraph after them; srun writes "srun: error: HOST: task R: ...". Lines
 * inside are kept aside and read; all other lines belong to the ranks. Whoever finds no explanation
 * anywhere else shows what was kept aside, so that nothing is lost, for example when the launcher
 * could not start.
 *
 * MPICH's transport UCX aborts a rank that reads from a peer that has died, with a backtrace. The
 * launcher may then name the rank that noticed, so what it noticed is kept too.
 */
#include "cli/noise.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void noise_init(noise *n, int output)
{
    *n = (noise){.output = output, .death = {.rank = -1}};
}

void noise_fini(noise *n)
{
    rs_text_fini(&n->line);
    rs_text_fini(&n->held);
}

static bool is_rule(const char *line, char mark)
{
    size_t length = strspn(line, (char[]){mark, '\0'});
    return length >= 60 && line[length + strspn(line + length, "\r\n")] == '\0';
}

static void note_rank(noise *n, int rank)
{
    if (n->death.rank < 0)
        n->death.rank = rank;
}

static void note_signal(noise *n, int number)
{
    if (n->death.signal == 0)
        n->death.signal = number;
}

/* "Killed" and the like, as srun writes it. */
static int signal_of(const char *name)
{
    for (int number = 1; number < 32; number++) {
        const char *known = strsignal(number);
        if (known != NULL && strncmp(name, known, strlen(known)) == 0)
            return number;
    }
    return 0;
}

/* What a line of a banner says about a death. */
static void study(noise *n, const char *line)
{
    int rank, number;
    long pid;
    char host[64];
    const char *at = strstr(line, "noticed that process rank ");
    if (at != NULL && sscanf(at, "noticed that process rank %d with PID %ld on node %63s", &rank,
                          &pid, host) == 3) {
        note_rank(n, rank);
        n->death.pid = pid;
        snprintf(n->death.host, sizeof n->death.host, "%s", host);
    }
    if ((at = strstr(line, "exited on signal ")) != NULL &&
        sscanf(at, "exited on signal %d", &number) == 1)
        note_signal(n, number);
    if ((at = strstr(line, "Process name: [[")) != NULL &&
        sscanf(at, "Process name: [[%*d,%*d],%d]", &rank) == 1)
        note_rank(n, rank);
    if (((at = strstr(line, "Exit code:")) != NULL && sscanf(at, "Exit code: %d", &number) == 1) ||
        ((at = strstr(line, "EXIT CODE:")) != NULL && sscanf(at, "EXIT CODE: %d", &number) == 1)) {
        if (n->death.exit_code == 0)
            n->death.exit_code = number;
    }
    if ((at = strstr(line, "PID ")) != NULL &&
        sscanf(at, "PID %ld RUNNING AT %63s", &pid, host) == 2 && n->death.pid == 0) {
        n->death.pid = pid;
        snprintf(n->death.host, sizeof n->death.host, "%s", host);
    }
    if ((at = strstr(line, "EXIT STRING: ")) != NULL && (at = strstr(at, "(signal ")) != NULL &&
        sscanf(at, "(signal %d)", &number) == 1)
        note_signal(n, number);
    if (strncmp(line, "srun: error: ", 13) == 0 && (at = strstr(line, ": task ")) != NULL &&
        sscanf(at, ": task %d", &rank) == 1) {
        note_rank(n, rank);
        if ((at = strchr(at + 2, ':')) != NULL)
            note_signal(n, signal_of(at + 2));
        if ((at = strstr(line, "exit code ")) != NULL && sscanf(at, "exit code %d", &number) == 1 &&
            n->death.exit_code == 0)
            n->death.exit_code = number;
    }
}

/* True for a line in which UCX tells that a peer is gone, and for its backtrace. */
static bool is_ucx(noise *n, const char *line)
{
    if (strncmp(line, "==== backtrace (tid:", 20) == 0) {
        n->in_backtrace = true;
        return true;
    }
    if (n->in_backtrace) {
        n->in_backtrace = strncmp(line, "=====", 5) != 0;
        return true;
    }
    const char *at = strstr(line, " process_vm_");
    if (at == NULL || strstr(at, "No such process") == NULL || (at = strstr(at, "(pid=")) == NULL)
        return false;
    if (n->death.lost == 0)
        n->death.lost = strtol(at + 5, NULL, 10);
    return true;
}

/* Lines of the launcher that stand outside its banners. */
static bool is_stray(const char *line)
{
    static const char *const parts[] = {"sent help message help-",
        "Set MCA parameter \"orte_base_help_aggregate\"",
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING", "This typically refers to a problem",
        "Please see the FAQ page for debugging", "mpirun: Forwarding signal",
        "mpirun: abort is already in progress", "PMIX ERROR: "};
    if (strncmp(line, "srun: ", 6) == 0 || strncmp(line, "slurmstepd", 10) == 0)
        return true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strstr(line, parts[i]) != NULL)
            return true;
    }
    return false;
}

static void pass(const noise *n, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t done = write(n->output, bytes, count);
        if (done <= 0)
            return; /* nobody reads any more: the run goes on without an audience */
        bytes += done;
        count -= (size_t)done;
    }
}

static void take_line(noise *n)
{
    const char *line = n->line.data;
    if (is_ucx(n, line)) {
        rs_text_append(&n->held, "%s", line);
        rs_text_fini(&n->line);
        return;
    }
    bool rule = is_rule(line, '-') || is_rule(line, '=');
    if (rule)
        n->in_banner = !n->in_banner;
    bool ours = strncmp(line, "reshard train: rank ", 20) == 0;
    n->rank_reported = n->rank_reported || ours;
    if (!ours && (rule || n->in_banner || is_stray(line))) {
        study(n, line);
        if (!rule)
            rs_text_append(&n->held, "%s", line);
    } else {
        pass(n, line, n->line.length);
    }
    rs_text_fini(&n->line);
}

void noise_feed(noise *n, const char *bytes, size_t count)
{
    while (count > 0) {
        size_t length = 0;
        while (length < count && bytes[length] != '\n' && bytes[length] != '\r')
            length++;
        bool whole = length < count;
        length += whole;
        rs_text_append(&n->line, "%.*s", (int)length, bytes);
        if (whole && n->line.status == RS_OK)
            take_line(n);
        bytes += length;
        count -= length;
    }
}

void noise_end(noise *n)
{
    if (n->line.length > 0 && n->line.status == RS_OK)
        take_line(n);
}
