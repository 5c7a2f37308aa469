/* A job's status for people and programs. */
#ifndef RS_CLI_STATUS_VIEW_H
#define RS_CLI_STATUS_VIEW_H

#include <jansson.h>

/* Adds "switches" to a job's status: the switch events of its metrics.jsonl, at most the last 10.
 */
void status_add_switches(const char *job, json_t *status);

/* Adds "worlds" (those that live) and "change" (how far a change of worlds is). */
void status_add_worlds(const char *job, json_t *status);

/* Prints a status as a table. */
void status_view(const char *job, const json_t *status);

#endif
