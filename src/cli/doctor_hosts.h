/* `reshard doctor` on other hosts. */
#ifndef RS_CLI_DOCTOR_HOSTS_H
#define RS_CLI_DOCTOR_HOSTS_H

#include <jansson.h>

#include "reshard/status.h"

/* What is to be asked; texts may be NULL but for job, arena_dir and dtype. */
typedef struct doctor_question {
    const char *hosts; /* file */
    const char *rsh_agent;
    const char *model, *layout, *dtype, *arena_dir, *job;
} doctor_question;

/*
 * Has every host of the file but this one report, and adds its rows, named after it, to `rows`.
 * `*share`: which part of the layout's ranks would be on this host (1 without a layout). A host
 * that cannot be reached is a row that says so. RS_ERR_MALFORMED, RS_ERR_NOT_FOUND: the file.
 */
rs_status doctor_ask_hosts(const doctor_question *q, json_t *rows, double *share) RS_MUST_CHECK;

#endif
