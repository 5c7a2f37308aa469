/*
 * What a report is about: a model, its training state, and layouts of it. Shared by the commands
 * that report (plan, layout) and the one that trains.
 */
#ifndef RS_CLI_SUBJECT_H
#define RS_CLI_SUBJECT_H

#include <jansson.h>
#include <stdint.h>

#include "cli/options.h"
#include "reshard/layout.h"
#include "reshard/model.h"
#include "reshard/optimizer.h"
#include "reshard/placement.h"
#include "reshard/space.h"

typedef struct subject {
    rs_model model;
    rs_dtype dtype;
    rs_space *space;
} subject;

/* Loads --model; `dtype` is "auto" (what the model states, else fp32) or an element type. -1, or
 * the exit code after an error message; then nothing has to be released. */
int subject_load(const cli_command *command, const char *model, const char *dtype,
    const rs_training *training, subject *out);
void subject_free(subject *s);

/* A layout given as `option` ("--from"). -1 or the exit code. */
int subject_layout(
    const cli_command *command, const char *option, const char *text, rs_layout *out);

/* Checks --redundancy beside --ranks-per-node. -1 or the exit code. */
int subject_redundancy(const cli_command *command, int64_t redundancy, int64_t ranks_per_node);

/* State bytes of one rank and role (-1: all); -1 when out of memory. */
int64_t subject_rank_state(const rs_placement *placement, int rank, int role);

/* {"name", "family", "parameters", "dtype", "state_bytes"}; NULL when out of memory. */
json_t *subject_json(const subject *s);

/* {"layout", "describe", "world", "state_bytes": {role: {"max", "max_rank", "min", "min_rank"}}};
 * `placement` is that of the layout. NULL when out of memory. */
json_t *subject_layout_json(const rs_layout *layout, const rs_placement *placement);

/* "model   llama-tiny: 2.97 M parameters, bf16, 47.3 MiB of state (param, master, ...)". */
void subject_print(const subject *s);

/* A text as JSON, which has UTF-8 alone: U+FFFD stands for each byte that is none (of a path, say).
 */
json_t *cli_json_text(const char *text);

/* Prints JSON and a newline to stdout and releases it; the exit code. */
int cli_print_json(const cli_command *command, json_t *value);

#define CLI_COUNT 32

/* "70.6 B", "2.97 M", whole below 100,000; returns `out`, which has room for CLI_COUNT bytes. */
char *cli_human_count(int64_t count, char *out);

/* "fp32", "bf16", else the library's name. */
const char *cli_dtype_name(rs_dtype dtype);

/* A member of a JSON object: a text, "" if there is none, or an integer, else 0. */
const char *cli_text_of(const json_t *object, const char *key);
int64_t cli_int_of(const json_t *object, const char *key);

/* Seconds of the monotonic clock. */
double cli_now(void);

/*
 * The space that names in checkpoints go by: of the model M (a preset, a config.json or its
 * folder), else of the config.json in one of the folders, else none: `*out` stays NULL. Any may be
 * NULL.
 */
rs_status cli_names_space(
    const char *model, const char *folder, const char *other, rs_space **out) RS_MUST_CHECK;

#endif
