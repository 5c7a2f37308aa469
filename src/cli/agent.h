/* Running a command on another host: ssh, or what the user names instead (CMD HOST COMMAND). */
#ifndef RS_CLI_AGENT_H
#define RS_CLI_AGENT_H

#include <sys/types.h>

#include "base/text.h"

/* Appends a word for the remote shell, quoted. */
void agent_quote(rs_text *text, const char *word);

/* The path of this program, which it has on the other host too. */
rs_status agent_self(char *path, size_t size) RS_MUST_CHECK;

/* Starts `command` (for a shell) on `host`. `agent` "": ssh. What it prints can be read from
 * `*output`, which does not block; both are the caller's. Ctrl-C does not reach it. */
rs_status agent_start(const char *agent, const char *host, const char *command, pid_t *process,
    int *output) RS_MUST_CHECK;

#endif
