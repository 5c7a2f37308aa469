/* The agent: a process of this host that stands for a command on another. */
#include "cli/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

#define AGENT "ssh"
#define AGENT_WORDS 16
#define AGENT_BYTES 4096

void agent_quote(rs_text *text, const char *word)
{
    rs_text_append(text, " '");
    for (; *word != '\0'; word++)
        rs_text_append(text, *word == '\'' ? "'\\''" : "%c", *word);
    rs_text_append(text, "'");
}

rs_status agent_self(char *path, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    if (n <= 0)
        return rs_error_errno(errno, "/proc/self/exe");
    path[n] = '\0';
    return RS_OK;
}

/* In the child. */
static void become_agent(const char *agent, const char *host, const char *command, int output)
{
    char *words[AGENT_WORDS + 3], *rest, copy[AGENT_BYTES];
    int count = 0;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    int empty = open("/dev/null", O_RDONLY);
    if (empty >= 0)
        dup2(empty, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    snprintf(copy, sizeof copy, "%s", agent[0] != '\0' ? agent : AGENT);
    for (char *word = strtok_r(copy, " ", &rest); word != NULL && count < AGENT_WORDS;
         word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    words[count++] = (char *)(uintptr_t)host;
    words[count++] = (char *)(uintptr_t)command;
    words[count] = NULL;
    execvp(words[0], words);
    fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
    _exit(127);
}

rs_status agent_start(
    const char *agent, const char *host, const char *command, pid_t *process, int *output)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return rs_error_errno(errno, "cannot make a pipe");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        become_agent(agent, host, command, ends[1]);
    int error = errno;
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return rs_error_errno(error, "cannot start the agent for host %s", host);
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *process = child;
    *output = ends[0];
    return RS_OK;
}
