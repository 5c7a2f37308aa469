/* A model, its space and layouts, as the reporting commands read and print them. */
#include "cli/subject.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "reshard/plan.h"

int subject_load(const cli_command *command, const char *model, const char *dtype,
    const rs_training *training, subject *out)
{
    subject s = {0};
    rs_status status = rs_model_load(model, &s.model);
    if (status != RS_OK)
        return cli_fail(command, status, "--model");
    if (strcmp(dtype, "auto") == 0) {
        s.dtype = s.model.dtype != RS_DTYPE_NONE ? s.model.dtype : RS_DTYPE_F32;
    } else {
        s.dtype = rs_dtype_parse(dtype);
        if (s.dtype != RS_DTYPE_F32 && s.dtype != RS_DTYPE_BF16 && s.dtype != RS_DTYPE_F16)
            return cli_error(
                command, CLI_USAGE, "--dtype: wanted fp32, bf16 or fp16, found '%s'", dtype);
    }
    status = rs_training_space(&s.model, s.dtype, training, &s.space);
    if (status != RS_OK)
        return cli_fail(command, status, "--model");
    *out = s;
    return -1;
}

void subject_free(subject *s)
{
    rs_space_destroy(s->space);
    memset(s, 0, sizeof *s);
}

int subject_layout(const cli_command *command, const char *option, const char *text, rs_layout *out)
{
    rs_status status = rs_layout_parse(text, out);
    return status == RS_OK ? -1 : cli_fail(command, status, option);
}

int subject_redundancy(const cli_command *command, int64_t redundancy, int64_t ranks_per_node)
{
    if (redundancy < 0 || redundancy > 1)
        return cli_error(
            command, CLI_USAGE, "--redundancy: wanted 0 or 1, found %" PRId64, redundancy);
    if (redundancy > 0 && ranks_per_node == 0)
        return cli_error(command, CLI_USAGE,
            "--redundancy 1: wanted with --ranks-per-node N: mirrors are on other nodes");
    return -1;
}

int64_t subject_rank_state(const rs_placement *placement, int rank, int role)
{
    rs_shard_list shards = {0};
    int64_t bytes = 0;
    if (rs_placement_shards(placement, rank, role, &shards) != RS_OK)
        bytes = -1;
    for (size_t i = 0; i < shards.count; i++)
        bytes +=
            rs_box_volume(&shards.items[i].box) * (int64_t)rs_dtype_size(shards.items[i].dtype);
    rs_shard_list_fini(&shards);
    return bytes;
}

json_t *subject_json(const subject *s)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:I}", "name", s->model.name, "family", s->model.family,
        "parameters", (json_int_t)rs_space_elements(s->space), "dtype", rs_dtype_name(s->dtype),
        "state_bytes", (json_int_t)rs_space_bytes(s->space, -1));
}

json_t *subject_layout_json(const rs_layout *layout, const rs_placement *placement)
{
    char text[RS_LAYOUT_TEXT], meaning[RS_LAYOUT_TEXT];
    const rs_space *space = rs_placement_space(placement);
    json_t *state = json_object();
    for (int role = 0; role <= rs_space_role_count(space); role++) {
        bool one = role < rs_space_role_count(space);
        rs_state_bytes bytes;
        if (rs_state_bytes_of(placement, one ? role : -1, &bytes) != RS_OK) {
            json_decref(state);
            return NULL;
        }
        json_object_set_new(state, one ? rs_space_role(space, role)->name : "total",
            json_pack("{s:I, s:i, s:I, s:i}", "max", (json_int_t)bytes.max, "max_rank",
                bytes.max_holder, "min", (json_int_t)bytes.min, "min_rank", bytes.min_holder));
    }
    return json_pack("{s:s, s:s, s:i, s:o}", "layout", rs_layout_format(layout, text), "describe",
        rs_layout_describe_for(layout, space, meaning), "world", rs_layout_world(layout),
        "state_bytes", state);
}

void subject_print(const subject *s)
{
    char count[CLI_COUNT], bytes[RS_HUMAN];
    printf("model   %s: %s parameters, %s, %s of state (", s->model.name,
        cli_human_count(rs_space_elements(s->space), count), cli_dtype_name(s->dtype),
        rs_human_bytes(rs_space_bytes(s->space, -1), bytes));
    for (int role = 0; role < rs_space_role_count(s->space); role++)
        printf("%s%s", role > 0 ? ", " : "", rs_space_role(s->space, role)->name);
    printf(")\n");
}

/* The bytes of the character at `at`; 0: what begins there is no UTF-8. */
static int character(const char *at)
{
    int most = (int)strnlen(at, 4);
    for (int bytes = 1; bytes <= most; bytes++) {
        json_t *one = json_stringn(at, (size_t)bytes);
        bool right = one != NULL;
        json_decref(one);
        if (right)
            return bytes;
    }
    return 0;
}

json_t *cli_json_text(const char *text)
{
    json_t *value = json_string(text);
    rs_text valid = {0};
    char *taken = NULL;
    if (value != NULL)
        return value;
    for (int bytes; *text != '\0'; text += bytes > 0 ? bytes : 1) {
        bytes = character(text);
        rs_text_append(&valid, "%.*s", bytes > 0 ? bytes : 3, bytes > 0 ? text : "\xef\xbf\xbd");
    }
    if (rs_text_take(&valid, &taken) == RS_OK && taken != NULL)
        value = json_string(taken);
    free(taken);
    return value;
}

int cli_print_json(const cli_command *command, json_t *value)
{
    if (value == NULL)
        return cli_error(command, CLI_FAILURE, "out of memory");
    int failed = json_dumpf(value, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    putchar('\n');
    json_decref(value);
    return failed && !ferror(stdout) ? cli_error(command, CLI_FAILURE, "out of memory") : 0;
}

char *cli_human_count(int64_t count, char *out)
{
    static const char units[] = " KMBT";
    double value = (double)count;
    int unit = 0;
    while (count >= 100000 && value >= 1000 && unit < 4) {
        value /= 1000;
        unit++;
    }
    if (unit == 0)
        snprintf(out, CLI_COUNT, "%" PRId64, count);
    else
        snprintf(out, CLI_COUNT, "%.*f %c", value < 10 ? 2 : 1, value, units[unit]);
    return out;
}

const char *cli_dtype_name(rs_dtype dtype)
{
    switch (dtype) {
    case RS_DTYPE_F32:
        return "fp32";
    case RS_DTYPE_BF16:
        return "bf16";
    case RS_DTYPE_F16:
        return "fp16";
    default:
        return rs_dtype_name(dtype);
    }
}

const char *cli_text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

int64_t cli_int_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

double cli_now(void)
{
    return rs_clock_seconds();
}

rs_status cli_names_space(const char *model, const char *folder, const char *other, rs_space **out)
{
    const char *folders[] = {folder, other};
    rs_model described;
    for (size_t i = 0; i < 2 && model == NULL; i++) {
        char path[4096];
        struct stat info;
        if (folders[i] == NULL)
            continue;
        int length = snprintf(path, sizeof path, "%s/config.json", folders[i]);
        if (length < (int)sizeof path && stat(path, &info) == 0)
            model = folders[i];
    }
    if (model == NULL)
        return RS_OK;
    RS_TRY(rs_model_load(model, &described));
    return rs_model_space(&described, RS_DTYPE_F32, out);
}
