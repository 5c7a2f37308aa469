/*
 * A training job's options: defaults, what can be checked before ranks exist, and JOB/job.json.
 *
 * One table says for every member how it is called in JSON and where it lies, so that saving and
 * loading cannot disagree. Unknown keys are refused: a misspelt one would silently train something
 * else.
 */
#include "train/train.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "elastic/scale.h"
#include "reshard/dialect.h"
#include "reshard/model.h"
#include "train/control.h"
#include "train/method.h"

typedef enum member_kind { TEXT, INTEGER, SMALL, UNSIGNED, REAL, FLAG } member_kind;

typedef struct member {
    const char *key;
    member_kind kind;
    size_t offset;
    size_t size; /* of TEXT */
} member;

#define AT(member) offsetof(rs_train_options, member)
#define TEXT_AT(key, member)                                                                       \
    {                                                                                              \
        key, TEXT, AT(member), sizeof(((rs_train_options *)0)->member)                             \
    }

static const member members[] = {
    TEXT_AT("model", model),
    TEXT_AT("data", data),
    TEXT_AT("arena_dir", arena_dir),
    TEXT_AT("id", id),
    TEXT_AT("layout", layout),
    {"steps", INTEGER, AT(steps), 0},
    {"ranks", SMALL, AT(ranks), 0},
    {"global_batch", INTEGER, AT(global_batch), 0},
    {"micro_batch", INTEGER, AT(micro_batch), 0},
    {"seq", INTEGER, AT(seq), 0},
    {"lr", REAL, AT(lr), 0},
    {"warmup", INTEGER, AT(warmup), 0},
    {"seed", UNSIGNED, AT(seed), 0},
    {"dropout", REAL, AT(dropout), 0},
    {"ranks_per_node", SMALL, AT(ranks_per_node), 0},
    {"redundancy", SMALL, AT(redundancy), 0},
    {"tight", FLAG, AT(tight), 0},
    {"window", INTEGER, AT(window), 0},
    {"threads", SMALL, AT(threads), 0},
    TEXT_AT("optimizer", optimizer),
    TEXT_AT("freeze", freeze),
    {"save_every", INTEGER, AT(save_every), 0},
    {"save_minutes", REAL, AT(save_minutes), 0},
    {"save_on_exit", FLAG, AT(save_on_exit), 0},
    {"keep", INTEGER, AT(keep), 0},
    {"resume", INTEGER, AT(resume), 0},
    {"attach", SMALL, AT(attach), 0},
    TEXT_AT("attach_layout", attach_layout),
    {"attach_step", INTEGER, AT(attach_step), 0},
    {"orphan_minutes", REAL, AT(orphan_minutes), 0},
    TEXT_AT("init", init),
    TEXT_AT("init_also", init_also),
    TEXT_AT("hosts", hosts),
    TEXT_AT("rsh_agent", rsh_agent),
    TEXT_AT("address", address),
    TEXT_AT("init_dialect", init_dialect),
    {"supervised", FLAG, AT(supervised), 0},
    {"fault_certificate_switch", INTEGER, AT(fault.certificate_switch), 0},
    {"fault_room_switch", INTEGER, AT(fault.room_switch), 0},
    {"fault_move_switch", INTEGER, AT(fault.move_switch), 0},
    {"fault_commit_switch", INTEGER, AT(fault.commit_switch), 0},
    {"fault_error_step", INTEGER, AT(fault.error_step), 0},
    {"fault_error_rank", INTEGER, AT(fault.error_rank), 0},
    {"fault_kill_step", INTEGER, AT(fault.kill_step), 0},
    {"fault_kill_rank", INTEGER, AT(fault.kill_rank), 0},
    {"fault_certificate_world", INTEGER, AT(fault.certificate_world), 0},
    {"fault_hashes", FLAG, AT(fault.hashes), 0},
    {"fault_routing", FLAG, AT(fault.routing), 0},
};

#define MEMBERS (sizeof members / sizeof *members)

static const char *const transports[] = {"auto", "arena", "mpi"};

void rs_train_options_init(rs_train_options *options)
{
    memset(options, 0, sizeof *options);
    snprintf(options->layout, sizeof options->layout, "dp=1");
    snprintf(options->optimizer, sizeof options->optimizer, "adamw");
    options->seq = 256;
    options->global_batch = 8;
    options->micro_batch = 2;
    options->dtype = RS_DTYPE_F32;
    options->lr = 3e-4;
    options->warmup = 10;
    options->threads = 1;
    options->attach = -1;
    options->orphan_minutes = 10;
}

void rs_train_options_fini(rs_train_options *options)
{
    free(options->switches);
    options->switches = NULL;
    options->switch_count = 0;
}

static const char *const recomputes[] = {"none", "selective", "full"};

rs_status rs_train_recompute_parse(const char *text, rs_recompute *out)
{
    for (size_t i = 0; i < sizeof recomputes / sizeof *recomputes; i++) {
        if (strcmp(text, recomputes[i]) == 0) {
            *out = (rs_recompute)i;
            return RS_OK;
        }
    }
    return rs_error_set(RS_ERR_ARGUMENT, "recompute \"%s\": must be none, selective or full", text);
}

const char *rs_train_recompute_name(rs_recompute recompute)
{
    return recomputes[recompute];
}

rs_status rs_train_transport_parse(const char *text, rs_train_transport *out)
{
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++) {
        if (strcmp(text, transports[i]) == 0) {
            *out = (rs_train_transport)i;
            return RS_OK;
        }
    }
    return rs_error_set(RS_ERR_ARGUMENT, "transport \"%s\": must be auto, arena or mpi", text);
}

const char *rs_train_transport_name(rs_train_transport transport)
{
    return transports[transport];
}

rs_status rs_train_options_add_switch(rs_train_options *options, const char *text)
{
    char *end;
    errno = 0;
    long long step = strtoll(text, &end, 10);
    if (end == text || *end != ':' || errno != 0 || step < 0)
        return rs_error_set(
            RS_ERR_ARGUMENT, "switch \"%s\": must be STEP:LAYOUT, for example 50:tp=2,dp=2", text);
    const char *layout = end + 1;
    if (strlen(layout) >= RS_LAYOUT_TEXT)
        return rs_error_set(RS_ERR_ARGUMENT, "switch \"%s\": layout text too long", text);
    rs_train_switch *grown =
        rs_realloc(options->switches, options->switch_count + 1, sizeof *grown);
    if (grown == NULL)
        return rs_error_memory((options->switch_count + 1) * sizeof *grown);
    options->switches = grown;
    rs_train_switch *added = &grown[options->switch_count++];
    memset(added, 0, sizeof *added);
    added->step = step;
    snprintf(added->layout, sizeof added->layout, "%s", layout);
    return RS_OK;
}

/* ---- checks ---- */

static rs_status check_numbers(const rs_train_options *options)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } rows[] = {
        {"steps", options->steps, 1, INT64_MAX / 4},
        {"ranks", options->ranks, 0, INT_MAX},
        {"global batch", options->global_batch, 1, 1 << 24},
        {"micro-batch", options->micro_batch, 1, options->global_batch},
        {"sequence length", options->seq, 1, 1 << 20},
        {"warm-up steps", options->warmup, 0, INT64_MAX / 4},
        {"ranks per node", options->ranks_per_node, 0, INT_MAX},
        {"redundancy", options->redundancy, 0, 1},
        {"window", options->window, 0, INT64_MAX / 4},
        {"threads", options->threads, 1, 4096},
        {"save every", options->save_every, 0, INT64_MAX / 4},
        {"keep", options->keep, 0, INT64_MAX / 4},
        {"resume", options->resume, RS_TRAIN_NEWEST, INT64_MAX / 4},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value < rows[i].least || rows[i].value > rows[i].most)
            return rs_error_set(RS_ERR_ARGUMENT, "%s %lld: must be %lld to %lld", rows[i].name,
                (long long)rows[i].value, (long long)rows[i].least, (long long)rows[i].most);
    if (!(options->lr > 0 && options->lr < 1e6))
        return rs_error_set(
            RS_ERR_ARGUMENT, "learning rate %g: must be above 0, and below 1e6", options->lr);
    if (!(options->dropout >= 0 && options->dropout < 1))
        return rs_error_set(
            RS_ERR_ARGUMENT, "dropout %g: must be at least 0, and below 1", options->dropout);
    if (options->dtype != RS_DTYPE_F32 && options->dtype != RS_DTYPE_BF16)
        return rs_error_set(
            RS_ERR_ARGUMENT, "dtype %s: must be fp32 or bf16", rs_dtype_name(options->dtype));
    if (options->redundancy > 0 && options->transport == RS_TRANSPORT_ARENA)
        return rs_error_set(RS_ERR_ARGUMENT,
            "redundancy 1 mirrors on other nodes, and transport arena wants one node: use auto");
    if (options->transport == RS_TRANSPORT_ARENA && options->ranks_per_node > 0)
        return rs_error_set(RS_ERR_ARGUMENT,
            "transport arena wants all ranks on one node, and ranks per node is %d: use auto",
            options->ranks_per_node);
    return RS_OK;
}

static rs_status check_data(const rs_train_options *options)
{
    if (options->data[0] == '\0')
        return rs_error_set(
            RS_ERR_ARGUMENT, "no data file: any file will do, its bytes are the text");
    struct stat about;
    if (stat(options->data, &about) != 0)
        return rs_error_errno(errno, "data file %s", options->data);
    if (!S_ISREG(about.st_mode))
        return rs_error_set(RS_ERR_ARGUMENT, "data file %s: not a regular file", options->data);
    if (about.st_size < options->seq + 1)
        return rs_error_set(RS_ERR_ARGUMENT,
            "data file %s: has %lld bytes, and one sample of sequence length %lld needs %lld",
            options->data, (long long)about.st_size, (long long)options->seq,
            (long long)options->seq + 1);
    return RS_OK;
}

/* Reads a layout and refuses what cannot be trained; `*world` gets its number of ranks. */
static rs_status check_layout(
    const rs_space *space, const char *text, rs_layout *layout, int *world)
{
    RS_TRY(rs_layout_parse(text, layout));
    RS_TRY(rs_layout_check_trainable(layout, space));
    *world = rs_layout_world(layout);
    return RS_OK;
}

/* A layout of more ranks than the job has. */
static rs_status refuse_too_large(const rs_space *space, const char *text, int needed, int ranks)
{
    rs_layout layout;
    rs_layout fits;
    char nearest[RS_LAYOUT_TEXT];
    RS_TRY(rs_layout_parse(text, &layout));
    bool some = rs_scale_within(&layout, space, ranks, &fits) == RS_OK;
    return rs_error_set(RS_ERR_ARGUMENT, "layout %s needs %d ranks, and the job has %d; %s%s", text,
        needed, ranks, some ? "the nearest that fits is " : "none near it fits",
        some ? rs_layout_format(&fits, nearest) : "");
}

static rs_status check_layouts(rs_train_options *options, const rs_space *space)
{
    rs_layout layout;
    int world;
    RS_TRY(check_layout(space, options->layout, &layout, &world));
    int largest = world;
    const char *largest_text = options->layout;
    int64_t step = 0;
    for (size_t i = 0; i < options->switch_count; i++) {
        const rs_train_switch *s = &options->switches[i];
        rs_layout next;
        rs_status status = check_layout(space, s->layout, &next, &world);
        if (status != RS_OK)
            return rs_error_context(status, "switch %lld:%s", (long long)s->step, s->layout);
        if (s->step < step || s->step > options->steps)
            return rs_error_set(RS_ERR_ARGUMENT,
                "switch %lld:%s: its step must be %lld to %lld (in order, within the run)",
                (long long)s->step, s->layout, (long long)step, (long long)options->steps);
        if (rs_layout_equal(&layout, &next))
            return rs_error_set(RS_ERR_ARGUMENT, "switch %lld:%s: the job has this layout already",
                (long long)s->step, s->layout);
        if (world > largest) {
            largest = world;
            largest_text = s->layout;
        }
        layout = next;
        step = s->step;
    }
    if (options->ranks == 0)
        options->ranks = largest;
    return options->ranks >= largest
               ? RS_OK
               : refuse_too_large(space, largest_text, largest, options->ranks);
}

rs_status rs_train_space(const rs_train_options *options, const rs_model *model, rs_space **out)
{
    const rs_training training = {options->optimizer, options->freeze};
    return rs_training_space(model, options->dtype, &training, out);
}

const rs_optimizer *rs_train_optimizer(const rs_train_options *options)
{
    return rs_optimizer_find(options->optimizer);
}

/* The trainer must compute what the optimizer does to each tensor. */
static rs_status check_methods(const rs_train_options *options, const rs_space *space)
{
    const rs_optimizer *chosen = rs_train_optimizer(options);
    for (int t = 0; t < rs_space_tensor_count(space); t++) {
        const rs_optimizer *own = rs_optimizer_for(chosen, rs_space_tensor(space, t));
        if (rs_method_of(own) == NULL)
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "optimizer %s: the trainer does not compute it, reshard plan does place its state",
                own->name);
    }
    return RS_OK;
}

/* What is kept as JSON, job.json, must be UTF-8. */
static rs_status check_texts(const rs_train_options *options)
{
    for (size_t i = 0; i < MEMBERS; i++) {
        const char *text = (const char *)options + members[i].offset;
        json_t *value = members[i].kind == TEXT ? json_string(text) : NULL;
        bool wrong = members[i].kind == TEXT && value == NULL;
        json_decref(value);
        if (wrong)
            return rs_error_set(RS_ERR_ARGUMENT,
                "%s \"%s\": is no UTF-8, and the job's description is", members[i].key, text);
    }
    return RS_OK;
}

rs_status rs_train_options_check(rs_train_options *options)
{
    rs_model model;
    rs_space *space = NULL;
    RS_TRY(check_numbers(options));
    RS_TRY(check_texts(options));
    RS_TRY(check_data(options));
    if (options->job[0] == '\0')
        return rs_error_set(RS_ERR_ARGUMENT, "no job directory");
    if (options->init_dialect[0] != '\0') {
        rs_dialect *dialect;
        RS_TRY(rs_dialect_load(options->init_dialect, &dialect));
        rs_dialect_destroy(dialect);
    }
    RS_TRY(rs_model_load(options->model, &model));
    RS_TRY(rs_model_check_trainable(&model, options->seq));
    RS_TRY(rs_train_space(options, &model, &space));
    rs_status status = check_methods(options, space);
    if (status == RS_OK)
        status = check_layouts(options, space);
    rs_space_destroy(space);
    return status;
}

/* ---- JOB/job.json ---- */

/* Letters of the job directory's name, then what makes it unique: "demo-1f0c5a2b9e31". */
static void make_id(const char *job, char *id)
{
    size_t end = strlen(job);
    while (end > 0 && job[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && job[begin - 1] != '/')
        begin--;
    size_t n = 0;
    for (size_t i = begin; i < end && n < 24; i++) {
        char c = job[i];
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
            (c == '-' && n > 0) || c == '_')
            id[n++] = c;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t unique = ((uint64_t)now.tv_sec << 30) + (uint64_t)now.tv_nsec;
    unique = (unique ^ (uint64_t)getpid() << 40) * 0x9e3779b97f4a7c15u;
    snprintf(
        id + n, RS_TRAIN_ID - n, "%s%012llx", n > 0 ? "-" : "", (unsigned long long)(unique >> 16));
}

static json_t *member_to_json(const rs_train_options *options, const member *m)
{
    const void *at = (const char *)options + m->offset;
    switch (m->kind) {
    case TEXT:
        return json_string(at);
    case INTEGER:
        return json_integer(*(const int64_t *)at);
    case SMALL:
        return json_integer(*(const int *)at);
    case UNSIGNED:
        return json_integer((json_int_t) * (const uint64_t *)at); /* same bits, read back as such */
    case REAL:
        return json_real(*(const double *)at);
    case FLAG:
        return json_boolean(*(const bool *)at);
    }
    return NULL;
}

static json_t *to_json(const rs_train_options *options)
{
    json_t *root = json_object();
    int bad = root == NULL;
    for (size_t i = 0; !bad && i < MEMBERS; i++)
        bad = json_object_set_new(root, members[i].key, member_to_json(options, &members[i])) != 0;
    json_t *switches = json_array();
    for (size_t i = 0; !bad && i < options->switch_count; i++)
        bad = json_array_append_new(
                  switches, json_sprintf("%lld:%s", (long long)options->switches[i].step,
                                options->switches[i].layout)) != 0;
    bad = bad || json_object_set(root, "switches", switches) != 0 ||
          json_object_set_new(root, "dtype", json_string(rs_dtype_name(options->dtype))) != 0 ||
          json_object_set_new(
              root, "transport", json_string(rs_train_transport_name(options->transport))) != 0 ||
          json_object_set_new(
              root, "recompute", json_string(rs_train_recompute_name(options->recompute))) != 0;
    json_decref(switches);
    if (bad) {
        json_decref(root);
        return NULL;
    }
    return root;
}

rs_status rs_train_options_save(rs_train_options *options)
{
    if (options->id[0] == '\0')
        make_id(options->job, options->id);
    json_t *root = to_json(options);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (text == NULL)
        return rs_error_memory(sizeof *options);
    rs_status status = rs_control_replace(options->job, "job.json", text);
    free(text);
    return status;
}

static rs_status member_from_json(rs_train_options *options, const member *m, const json_t *value)
{
    void *at = (char *)options + m->offset;
    bool fits = false;
    switch (m->kind) {
    case TEXT:
        fits = json_is_string(value) && json_string_length(value) < m->size;
        if (fits)
            memcpy(at, json_string_value(value), json_string_length(value) + 1);
        break;
    case INTEGER:
        fits = json_is_integer(value);
        *(int64_t *)at = json_integer_value(value);
        break;
    case SMALL:
        fits = json_is_integer(value) && json_integer_value(value) >= INT_MIN &&
               json_integer_value(value) <= INT_MAX;
        *(int *)at = (int)json_integer_value(value);
        break;
    case UNSIGNED:
        fits = json_is_integer(value);
        *(uint64_t *)at = (uint64_t)json_integer_value(value);
        break;
    case REAL:
        fits = json_is_number(value);
        *(double *)at = json_number_value(value);
        break;
    case FLAG:
        fits = json_is_boolean(value);
        *(bool *)at = json_is_true(value);
        break;
    }
    if (!fits)
        return rs_error_set(RS_ERR_MALFORMED, "key \"%s\": wrong type or size", m->key);
    return RS_OK;
}

static rs_status switches_from_json(rs_train_options *options, const json_t *value)
{
    if (!json_is_array(value))
        return rs_error_set(RS_ERR_MALFORMED, "key \"switches\": must be an array of texts");
    size_t i;
    const json_t *item;
    json_array_foreach(value, i, item)
    {
        if (!json_is_string(item))
            return rs_error_set(RS_ERR_MALFORMED, "key \"switches\", item %zu: must be a text", i);
        RS_TRY(rs_train_options_add_switch(options, json_string_value(item)));
    }
    return RS_OK;
}

static rs_status key_from_json(rs_train_options *options, const char *key, const json_t *value)
{
    for (size_t i = 0; i < MEMBERS; i++)
        if (strcmp(key, members[i].key) == 0)
            return member_from_json(options, &members[i], value);
    if (strcmp(key, "switches") == 0)
        return switches_from_json(options, value);
    const char *text = json_string_value(value);
    if (strcmp(key, "transport") == 0 && text != NULL)
        return rs_train_transport_parse(text, &options->transport);
    if (strcmp(key, "recompute") == 0 && text != NULL)
        return rs_train_recompute_parse(text, &options->recompute);
    if (strcmp(key, "dtype") == 0 && text != NULL) {
        options->dtype = rs_dtype_parse(text);
        return RS_OK;
    }
    return rs_error_set(RS_ERR_MALFORMED, "key \"%s\": unknown, or of the wrong type", key);
}

rs_status rs_train_options_load(rs_train_options *options, const char *job)
{
    char path[RS_TRAIN_PATH + 16];
    if (strlen(job) >= RS_TRAIN_PATH)
        return rs_error_set(RS_ERR_ARGUMENT, "job directory: the path is too long");
    snprintf(path, sizeof path, "%s/job.json", job);
    if (access(path, R_OK) != 0)
        return rs_error_errno(errno, "%s", path);
    json_error_t error;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(root)) {
        json_decref(root);
        return rs_error_set(RS_ERR_MALFORMED, "%s: line %d: %s", path, error.line, error.text);
    }
    rs_train_options_fini(options);
    rs_train_options_init(options);
    snprintf(options->job, sizeof options->job, "%s", job);
    rs_status status = RS_OK;
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        status = key_from_json(options, key, value);
        if (status != RS_OK) {
            status = rs_error_context(status, "%s", path);
            break;
        }
    }
    json_decref(root);
    return status;
}
