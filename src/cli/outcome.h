/* Following a request to a running job and printing what came of it: `reshard switch`, `scale`,
 * `drain`, `cancel`, `save`.
 */
#ifndef RS_CLI_OUTCOME_H
#define RS_CLI_OUTCOME_H

#include <stdbool.h>

#include "cli/options.h"
#include "reshard/status.h"

/* What the user wants to see. */
typedef struct outcome {
    bool no_wait;
    bool json;
} outcome;

/* For the client functions of train/control.h; `context` is an outcome. */
void outcome_progress(void *context, const char *state, const char *message);

/* Prints the job's last answer (JSON text, freed here; may be NULL); the exit code. */
int outcome_print(
    const cli_command *command, const outcome *how, rs_status status, char *reply_text);

#endif
