/* What a job says on the way goes to standard error; its last word is printed as the outcome, or as
 * the error. */
#include "cli/outcome.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/console.h"
#include "cli/subject.h"

void outcome_progress(void *context, const char *state, const char *message)
{
    static const char *const last[] = {"done", "failed", "refused", "busy"};
    const outcome *how = context;
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        if (strcmp(state, last[i]) == 0)
            return;
    }
    if (!how->json && !how->no_wait)
        fprintf(stderr, "%s%s%s\n", state, message[0] != '\0' ? ": " : "", message);
}

int outcome_print(
    const cli_command *command, const outcome *how, rs_status status, char *reply_text)
{
    json_t *reply = reply_text != NULL ? json_loads(reply_text, 0, NULL) : NULL;
    rs_train_switched done;
    int code = 0;
    if (how->json && reply != NULL)
        code = cli_print_json(command, json_incref(reply));
    else if (status == RS_OK && !how->no_wait && console_read_switch(reply, &done))
        console_print_switched(&done);
    else if (status == RS_OK && reply != NULL)
        printf("%s\n", json_string_value(json_object_get(reply, "message")));
    if (status != RS_OK)
        code = cli_fail(command, status, NULL);
    json_decref(reply);
    free(reply_text);
    return code;
}
