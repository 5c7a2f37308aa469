/*
 * What a training run prints: an opening block, a line per step (on a terminal a bar), a table
 * after each switch; or JSON, an object a line.
 */
#ifndef RS_CLI_CONSOLE_H
#define RS_CLI_CONSOLE_H

#include <jansson.h>
#include <stdbool.h>

#include "train/train.h"

#define CONSOLE_MODES "lines|bar|json"

/* The part of a rank in the training run, between MPI_Init and MPI_Finalize, rank 0 printing as
 * `mode` says, a bar of `width` columns. Collective over MPI_COMM_WORLD; returns the exit code. */
int console_train(
    rs_train_options *options, const char *mode, int width, rs_train_outcome *outcome);

/* The mode for standard output as it is: a bar on a terminal that can move its cursor. `width` gets
 * its columns. */
const char *console_choose(bool json, int *width);

/* How long training stood still. */
double console_pause(const rs_train_switched *done);

/* The table of one switch. */
void console_print_switched(const rs_train_switched *done);

/* The switch event of metrics.jsonl; and back: texts borrow from `event`. False: it is none. */
json_t *console_switch_json(const rs_train_switched *done);
bool console_read_switch(const json_t *event, rs_train_switched *out);

#endif
