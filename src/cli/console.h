/*
 * What a training run prints: an opening block, a line per step (on a terminal a bar), a table
 * after each switch; or JSON, an object a line.
 */
#ifndef RS_CLI_CONSOLE_H
#define RS_CLI_CONSOLE_H

#include <jansson.h>
#include <stdbool.h>

#include "train/train.h"

typedef struct console {
    const rs_train_options *options;
    const char *mode; /* "lines", "bar" or "json" */
    int width;        /* columns of the terminal, for the bar */
    bool bar_shown;
    int64_t first_step; /* steps printed so far began here and took `spent` seconds */
    double spent;
} console;

#define CONSOLE_MODES "lines|bar|json"

/* The listener that prints for rank 0; `c` outlives the run. */
rs_train_listener console_listener(console *c);

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
