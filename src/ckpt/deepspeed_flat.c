/*
 * DeepSpeed's flat optimizer states.
 *
 * ZeRO 1, 2 and BF16_Optimizer concatenate the parameters of a group, pad the end, and give each
 * data-parallel rank an equal range. ZeRO 3 cuts every parameter on its own into equal parts, pads
 * the last ones, and concatenates a rank's parts. Both are ranges of the row-major order of each
 * parameter, found with prefix sums over param_shapes.
 *
 * Invariants:
 * 1. Places come from param_shapes alone. It is in the order of the data also where
 *    round_robin_gradients shuffled it, which the stored param_slice_mappings get wrong.
 * 2. Every rank's buffers have exactly the length that the rule gives; padding is never looked at.
 * 3. State names come from the file: any tensor as long as the group is a state of its parameters,
 *    any single number one of the group. Nothing knows Adam.
 *
 * Specification: docs/formats/deepspeed.md.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "ckpt/cast.h"
#include "ckpt/deepspeed.h"
#include "ckpt/deepspeed_model.h"
#include "ckpt/value_json.h"

/* A flat buffer in a file. */
typedef struct flat {
    int64_t at; /* byte of the file where the pickle describes it */
    int file;
    int64_t offset; /* bytes */
    int64_t elements;
    rs_dtype dtype;
} flat;

static rs_status read_flat(
    const rs_torch *torch, const rs_value *value, const char *what, size_t group, flat *out)
{
    rs_torch_tensor t;
    if (value == NULL || rs_torch_kind_of(value) != RS_TORCH_DENSE)
        return rs_ds_malformed(torch, "%s of group %zu is no tensor", what, group);
    int64_t at = value->as.call->at;
    RS_TRY(rs_torch_tensor_of(torch, value, &t));
    if (t.ndim != 1 || !rs_torch_is_contiguous(&t))
        return rs_files_malformed(
            torch->files, torch->file, at, "%s of group %zu is no flat tensor", what, group);
    if (torch->big_endian)
        return rs_error_set(RS_ERR_UNSUPPORTED, "%s: big-endian optimizer states are not read",
            rs_files_path(torch->files, torch->file));
    *out = (flat){.at = at,
        .file = t.storage->file,
        .offset = t.storage->offset + t.first * (int64_t)rs_dtype_size(t.dtype),
        .elements = t.shape[0],
        .dtype = t.dtype};
    return RS_OK;
}

rs_status rs_ds_group_name(rs_ds_reader *reader, int mp, size_t group, const char **out)
{
    char name[64];
    if (reader->pp > 1)
        snprintf(
            name, sizeof name, "pipeline.%d.param_groups.%zu", rs_ds_stage_of(reader, mp), group);
    else
        snprintf(name, sizeof name, "param_groups.%zu", group);
    return rs_pool_text(&reader->pool, name, strlen(name), out);
}

/* Remembers the optimizer's step of a group or a parameter, which all ranks must agree about, and
 * whether it is that of the others. */
static rs_status note_step(
    rs_ds_reader *reader, const rs_torch *torch, const char *name, double step)
{
    const json_t *former = json_object_get(reader->steps, name);
    if (!isfinite(step))
        return rs_ds_malformed(torch, "the step of \"%s\" is no finite number", name);
    if (former != NULL && json_real_value(former) != step)
        return rs_ds_malformed(torch,
            "is of step %.17g, by the state of \"%s\", and another rank's file of step %.17g: "
            "these are files of two saves",
            step, name, json_real_value(former));
    if (former == NULL && json_object_set_new(reader->steps, name, json_real(step)) != 0)
        return rs_error_memory(strlen(name));
    reader->step_differs = reader->step_differs || (reader->step >= 0 && reader->step != step);
    if (reader->step < 0)
        reader->step = step;
    return RS_OK;
}

/* An entry of the catalog made of one number that only the pickle has. */
static rs_status add_number(
    rs_ds_reader *reader, const char *name, const char *role, const rs_value *value, int copy)
{
    bool real = value->kind == RS_VALUE_FLOAT;
    rs_dtype dtype = real ? RS_DTYPE_F64 : RS_DTYPE_I64;
    int id = rs_catalog_find(reader->catalog, name, role);
    if (id < 0)
        RS_TRY(rs_catalog_add(reader->catalog, name, role, dtype, 0, NULL, &id));
    return rs_catalog_inline(reader->catalog, id, copy, &value->as.integer);
}

rs_status rs_ds_add_step(rs_ds_reader *reader, const rs_torch *torch, int mp, int dp,
    const char *name, const char *role, const rs_value *value)
{
    bool step = strcmp(role, "step") == 0;
    int copy = dp * reader->tp + rs_ds_tp_of(reader, mp);
    if (rs_value_is(value, RS_VALUE_INT) || rs_value_is(value, RS_VALUE_FLOAT)) {
        if (step)
            RS_TRY(note_step(reader, torch, name,
                value->kind == RS_VALUE_FLOAT ? value->as.real : (double)value->as.integer));
        return add_number(reader, name, role, value, copy);
    }
    rs_torch_tensor t;
    int id;
    double number;
    RS_TRY(rs_torch_tensor_of(torch, value, &t));
    if (step && rs_torch_scalar(torch, value, &number) == RS_OK)
        RS_TRY(note_step(reader, torch, name, number));
    RS_TRY(
        rs_assembly_local(&reader->assembly, name, role, 0, copy, t.dtype, t.ndim, t.shape, &id));
    reader->assembly.locals.items[id].whole = true;
    return rs_assembly_range(&reader->assembly, id, 0, rs_torch_elements(&t), t.storage->file,
        t.storage->offset + t.first * (int64_t)rs_dtype_size(t.dtype));
}

/* What does not fit a parameter and is no number: told, and kept in the extras. */
static rs_status keep_state(
    rs_ds_reader *reader, const char *name, const char *role, const rs_value *value)
{
    json_t *all = json_object_get(reader->catalog->extras, "optimizer_state");
    if (all == NULL) {
        RS_TRY(rs_catalog_extra(reader->catalog, "optimizer_state", json_object()));
        all = json_object_get(reader->catalog->extras, "optimizer_state");
    }
    char key[256];
    snprintf(key, sizeof key, "%s.%s", name, role);
    json_t *json = rs_value_json(value, &reader->left);
    if (json == NULL || json_object_set_new(all, key, json) != 0)
        return rs_error_memory(64);
    return RS_OK;
}

/* Adds the part of `param` that a rank's flat buffer has: [begin, end) of it, the first of which is
 * element `at` of the buffer. `ep`: the expert-parallel rank whose own copy it is; -1: of none. */
static rs_status add_range(rs_ds_reader *reader, const char *name, const rs_ds_param *param,
    const char *role, int mp, int ep, const flat *f, int64_t begin, int64_t end, int64_t at)
{
    int id, copy = (ep < 0 ? 0 : ep * reader->pp) + rs_ds_stage_of(reader, mp);
    RS_TRY(rs_assembly_local(&reader->assembly, name, role, rs_ds_tp_of(reader, mp), copy, f->dtype,
        param->ndim, param->shape, &id));
    reader->assembly.locals.items[id].own = ep >= 0;
    return rs_assembly_range(&reader->assembly, id, begin, end, f->file,
        f->offset + at * (int64_t)rs_dtype_size(f->dtype));
}

/* One group of ZeRO 1 or 2, on one rank. */
typedef struct group_file {
    rs_ds_reader *reader;
    const rs_torch *torch;
    const rs_ds_group *group;
    size_t number;
    int mp;
    int dp;       /* ranks of the group */
    int rank;     /* among them */
    int ep, eps;  /* expert-parallel rank and ranks; eps 0: not a group of experts */
    int64_t part; /* elements of a rank's range */
} group_file;

/* The global name of an expert's parameter. */
static rs_status expert_name(const group_file *g, const char *local, const char **out)
{
    static const char mark[] = ".deepspeed_experts.";
    const char *found = strstr(local, mark);
    *out = local;
    if (g->eps == 0 || found == NULL)
        return RS_OK;
    const char *number = found + sizeof mark - 1;
    size_t prefix = (size_t)(number - local);
    char *end;
    long expert = strtol(number, &end, 10), most = expert;
    if (end == number || expert < 0)
        return RS_OK;
    for (size_t i = 0; i < g->group->count; i++) {
        const char *other = g->group->items[i].name;
        if (strncmp(other, local, prefix) == 0 && strtol(other + prefix, NULL, 10) > most)
            most = strtol(other + prefix, NULL, 10);
    }
    rs_text name = {0};
    rs_text_append(&name, "%.*s%ld%s", (int)prefix, local, g->ep * (most + 1) + expert, end);
    rs_status status = name.status;
    if (status == RS_OK)
        status = rs_pool_text(&g->reader->pool, name.data, name.length, out);
    rs_text_fini(&name);
    return status;
}

/* The rank's range of the concatenated group, parameter by parameter. */
static rs_status place_group(const group_file *g, const char *role, const flat *f)
{
    int64_t first = g->rank * g->part, last = first + g->part, at = 0;
    for (size_t i = 0; i < g->group->count; i++) {
        const rs_ds_param *param = &g->group->items[i];
        int64_t begin = rs_max64(at, first), end = rs_min64(at + param->elements, last);
        const char *name;
        RS_TRY(expert_name(g, param->name, &name));
        if (strcmp(role, "master") == 0)
            RS_TRY(rs_ds_note_member(g->reader, g->mp, g->number, name));
        /* What is no numbered expert (an adapter that experts share) every expert-parallel rank has
         * trained on for itself: copies. */
        int ep = g->eps > 1 && name == param->name ? g->ep : -1;
        /* Also those that this rank has nothing of, so that an empty one is known. */
        RS_TRY(add_range(
            g->reader, name, param, role, g->mp, ep, f, begin - at, end - at, begin - first));
        at += param->elements;
    }
    return RS_OK;
}

/* The length of a rank's range, checked against what the rank has. */
static rs_status check_part(const group_file *g, const flat *f, const char *what, bool stripped)
{
    int64_t real = rs_min64(rs_max64(g->group->elements - g->rank * g->part, 0), g->part);
    if (f->elements == g->part || (stripped && f->elements == real))
        return RS_OK;
    /* A rank that is wrong alone is damaged; all ranks together would be another group. */
    int64_t all, padded = g->part * g->dp;
    if (!rs_mul_fits(f->elements, g->dp, &all))
        all = INT64_MAX;
    return rs_files_malformed(g->torch->files, g->torch->file, f->at,
        "group %zu: %s of data-parallel rank %d has %" PRId64 " elements, wanted are %" PRId64
        "%s: param_shapes names %" PRId64 " (%" PRId64 " with padding), ranks like this one hold "
        "%" PRId64 ", %" PRId64 " %s",
        g->number, what, g->rank, f->elements, g->part,
        stripped && real != g->part ? " less padding" : "", g->group->elements, padded, all,
        all > padded ? all - padded : padded - all, all > padded ? "unexplained" : "missing");
}

static bool is_number(const rs_torch *torch, const rs_value *value, const char *key)
{
    rs_torch_tensor t;
    if (rs_value_is(value, RS_VALUE_INT) || rs_value_is(value, RS_VALUE_FLOAT))
        return true;
    if (rs_torch_kind_of(value) != RS_TORCH_DENSE || rs_torch_tensor_of(torch, value, &t) != RS_OK)
        return false;
    return t.ndim == 0 || (strcmp(key, "step") == 0 && rs_torch_elements(&t) == 1);
}

/* The state that the inner optimizer keeps for the group; `options` are the group's own. */
static rs_status read_state(
    const group_file *g, const rs_value *state, const rs_value *options, bool elastic)
{
    const char *name;
    int rank = g->eps > 0 ? g->rank * g->eps + g->ep : g->rank;
    RS_TRY(rs_ds_group_name(g->reader, g->mp, g->number, &name));
    const rs_value *step = rs_value_get(options, "step");
    if (rs_value_get(state, "step") == NULL && step != NULL && step->kind != RS_VALUE_NONE)
        RS_TRY(rs_ds_add_step(g->reader, g->torch, g->mp, rank, name, "step", step));
    if (state == NULL)
        return RS_OK;
    if (!rs_value_is(state, RS_VALUE_DICT))
        return rs_ds_malformed(g->torch, "the state of group %zu is no dict", g->number);
    for (uint32_t i = 0; i < state->count; i++) {
        const char *key = rs_value_string(state->as.dict->pairs[2 * (size_t)i]);
        const rs_value *value = state->as.dict->pairs[2 * (size_t)i + 1];
        flat f;
        if (key == NULL)
            return rs_ds_malformed(
                g->torch, "the state of group %zu has a name that is no text", g->number);
        if (is_number(g->torch, value, key)) {
            RS_TRY(rs_ds_add_step(g->reader, g->torch, g->mp, rank, name, key, value));
        } else if (rs_torch_kind_of(value) == RS_TORCH_NO_TENSOR) {
            RS_TRY(keep_state(g->reader, name, key, value));
        } else {
            RS_TRY(read_flat(g->torch, value, key, g->number, &f));
            RS_TRY(check_part(g, &f, key, elastic));
            RS_TRY(place_group(g, key, &f));
        }
    }
    return RS_OK;
}

/* Ranks that a group is divided over. */
static rs_status group_ranks(
    const rs_ds_reader *reader, const rs_torch *torch, const rs_value *z, size_t g, int *out)
{
    int64_t count = reader->dp;
    const rs_value *counts = rs_value_get(z, "partition_count");
    if (rs_value_is_sequence(counts)) {
        if (g >= counts->count || !rs_value_integer(counts->as.items[g], &count))
            return rs_ds_malformed(torch, "partition_count has nothing for group %zu", g);
    } else if (counts != NULL && !rs_value_integer(counts, &count)) {
        return rs_ds_malformed(torch, "partition_count is no number");
    }
    if (count < 1 || count > reader->dp || reader->dp % count != 0)
        return rs_ds_malformed(torch,
            "group %zu is divided over %" PRId64 " ranks, there are files of %d", g, count,
            reader->dp);
    *out = (int)count;
    return RS_OK;
}

static const rs_value *at_index(const rs_value *list, size_t i)
{
    return rs_value_is_sequence(list) && i < list->count ? list->as.items[i] : NULL;
}

/* Which of the state dict's numbers is the group's: the only one in its `params`. */
static const rs_value *group_state(const rs_value *base, size_t g)
{
    if (rs_value_is_sequence(base)) /* elastic: a list of them */
        return at_index(base, g);
    const rs_value *params =
        rs_value_get(at_index(rs_value_get(base, "param_groups"), g), "params");
    int64_t index = (int64_t)g;
    if (rs_value_is_sequence(params) && params->count == 1)
        rs_value_integer(params->as.items[0], &index);
    return rs_value_get_index(rs_value_get(base, "state"), index);
}

static bool data_before_experts(const rs_torch *torch)
{
    const rs_value *config = rs_value_get(rs_torch_root(torch), "ds_config");
    int64_t on = 0;
    rs_value_integer(rs_value_get(config, "use_data_before_expert_parallelism"), &on);
    return on != 0;
}

static rs_status read_group(rs_ds_reader *reader, const rs_torch *torch, const rs_ds_file *file,
    const rs_value *z, size_t number, const rs_value *master)
{
    group_file g = {.reader = reader,
        .torch = torch,
        .group = &reader->models[file->mp].groups[number],
        .number = number,
        .mp = file->mp,
        .rank = file->dp};
    const rs_value *base = rs_value_get(z, "base_optimizer_state");
    flat f;
    RS_TRY(group_ranks(reader, torch, z, number, &g.dp));
    if (g.dp < reader->dp) { /* experts: each expert-parallel rank has its own */
        g.eps = reader->dp / g.dp;
        bool data_first = data_before_experts(torch);
        g.ep = data_first ? file->dp / g.dp : file->dp % g.eps;
        g.rank = data_first ? file->dp % g.dp : file->dp / g.eps;
    }
    int64_t padded;
    if (!rs_add_fits(g.group->elements, 2 * (int64_t)g.dp, &padded))
        return rs_ds_malformed(torch, "group %zu overflows", number);
    g.part = rs_round_up(g.group->elements, 2 * (int64_t)g.dp) / g.dp;
    RS_TRY(read_flat(torch, master, "the master partition", number, &f));
    if (!rs_cast_is_float(f.dtype))
        return rs_files_malformed(torch->files, torch->file, f.at,
            "the master partition of group %zu has dtype %s", number, rs_dtype_name(f.dtype));
    RS_TRY(check_part(&g, &f, "the master partition", true));
    RS_TRY(place_group(&g, "master", &f));
    return read_state(&g, group_state(base, number),
        at_index(rs_value_get(base, "param_groups"), number), rs_value_is_sequence(base));
}

/* Compares the stored places of a rank's parameters with the derived ones. */
static rs_status check_mappings(rs_ds_reader *reader, const rs_torch *torch, const rs_ds_file *file,
    const rs_value *z, size_t number)
{
    const rs_ds_group *group = &reader->models[file->mp].groups[number];
    const rs_value *mapping = at_index(rs_value_get(z, "param_slice_mappings"), number);
    int ranks;
    RS_TRY(group_ranks(reader, torch, z, number, &ranks));
    if (!rs_value_is(mapping, RS_VALUE_DICT) || ranks != reader->dp)
        return RS_OK;
    int64_t part = rs_round_up(group->elements, 2 * (int64_t)ranks) / ranks;
    int64_t first = file->dp * part, at = 0;
    uint32_t next = 0;
    for (size_t i = 0; i < group->count; i++) {
        const rs_ds_param *param = &group->items[i];
        int64_t begin = rs_max64(at, first), end = rs_min64(at + param->elements, first + part);
        at += param->elements;
        if (begin >= end)
            continue;
        const rs_value *address = rs_value_get(mapping, param->name);
        int64_t start = -1, numel = -1;
        rs_value_integer(rs_value_attribute(address, "start"), &start);
        rs_value_integer(rs_value_attribute(address, "numel"), &numel);
        if (address == NULL || start != begin - first || numel != end - begin)
            return rs_catalog_warn(reader->catalog,
                "%s: param_slice_mappings of group %zu places \"%s\" elsewhere than param_shapes "
                "does (round_robin_gradients writes such mappings); param_shapes is followed",
                rs_files_path(torch->files, torch->file), number, param->name);
        next++;
    }
    return RS_OK;
}

rs_status rs_ds_read_flat_groups(
    rs_ds_reader *reader, const rs_torch *torch, const rs_ds_file *file, const rs_value *z)
{
    const rs_value *masters = rs_value_get(z, "single_partition_of_fp32_groups");
    rs_ds_model *model = &reader->models[file->mp];
    if (!model->has_shapes) /* before 0.6.0 they stand here */
        RS_TRY(rs_ds_read_shapes(
            reader, torch, rs_value_get(rs_torch_root(torch), "param_shapes"), model));
    if (!model->has_shapes)
        return rs_ds_malformed(torch, "no file has param_shapes: nothing says what is in it");
    if (!rs_value_is_sequence(masters))
        return rs_ds_malformed(torch, "has no list \"single_partition_of_fp32_groups\"");
    if (masters->count != model->group_count)
        return rs_ds_malformed(
            torch, "has %u groups, param_shapes has %zu", masters->count, model->group_count);
    for (size_t g = 0; g < model->group_count; g++) {
        RS_TRY(read_group(reader, torch, file, z, g, masters->as.items[g]));
        if (file->dp == 0)
            RS_TRY(check_mappings(reader, torch, file, z, g));
    }
    return RS_OK;
}

/* ZeRO 3: one state of all sub-groups, read as one stream. */
typedef struct stream {
    const char *role;
    flat *parts; /* [sub-groups]; `elements` 0 and file -1 where a sub-group lacks the state */
} stream;

typedef struct params_file {
    rs_ds_reader *reader;
    const rs_torch *torch;
    const rs_ds_file *file;
    const rs_value *masters; /* fp32_flat_groups */
    const rs_value *state;
    size_t groups;
    flat *buffers; /* [groups], scratch */
} params_file;

/* A place in the stream: a buffer, and how much of it is used. */
typedef struct cursor {
    size_t buffer;
    int64_t used;
} cursor;

/* The parameter takes its part of the stream, which may go on in the next buffer. */
static rs_status place_param(const params_file *p, const char *role, const int64_t *lengths,
    size_t group, const rs_ds_param *param, cursor *c)
{
    int64_t part = rs_ceil_div(param->elements, p->reader->dp);
    int64_t begin = rs_min64(p->file->dp * part, param->elements);
    int64_t end = rs_min64(begin + part, param->elements);
    if (part == 0) /* it takes nothing: only its own group knows whether it has this state */
        return group < p->groups && p->buffers[group].file >= 0
                   ? add_range(p->reader, param->name, param, role, p->file->mp, -1,
                         &p->buffers[group], 0, 0, 0)
                   : RS_OK;
    for (int64_t taken = 0; taken < part;) {
        while (c->buffer < p->groups && c->used == lengths[c->buffer])
            *c = (cursor){.buffer = c->buffer + 1};
        if (c->buffer == p->groups)
            return rs_ds_malformed(p->torch,
                "%s: its flat groups end inside \"%s\": param_shapes names more elements than they "
                "hold",
                role, param->name);
        int64_t now = rs_min64(part - taken, lengths[c->buffer] - c->used);
        const flat *f = &p->buffers[c->buffer];
        if (f->file >= 0)
            RS_TRY(add_range(p->reader, param->name, param, role, p->file->mp, -1, f,
                rs_min64(begin + taken, end), rs_min64(begin + taken + now, end), c->used));
        c->used += now;
        taken += now;
    }
    return RS_OK;
}

static rs_status place_stream(const params_file *p, const char *role, const int64_t *lengths)
{
    const rs_ds_model *model = &p->reader->models[p->file->mp];
    cursor c = {0};
    for (size_t g = 0; g < model->group_count; g++)
        for (size_t i = 0; i < model->groups[g].count; i++)
            RS_TRY(place_param(p, role, lengths, g, &model->groups[g].items[i], &c));
    int64_t rest = 0;
    for (; c.buffer < p->groups; c = (cursor){.buffer = c.buffer + 1})
        rest += lengths[c.buffer] - c.used;
    if (rest != 0)
        return rs_ds_malformed(p->torch,
            "%s: its flat groups hold %" PRId64 " elements that param_shapes does not explain",
            role, rest);
    return RS_OK;
}

/* One state, by name, of all sub-groups that have it. */
static rs_status read_stream(const params_file *p, const char *key, const int64_t *lengths)
{
    for (size_t s = 0; s < p->groups; s++) {
        const rs_value *value = rs_value_get(rs_value_get_index(p->state, (int64_t)s), key);
        p->buffers[s] = (flat){.file = -1};
        if (value == NULL)
            continue;
        RS_TRY(read_flat(p->torch, value, key, s, &p->buffers[s]));
        if (p->buffers[s].elements != lengths[s])
            return rs_files_malformed(p->torch->files, p->torch->file, p->buffers[s].at,
                "%s of sub-group %zu has %" PRId64 " elements, its master has %" PRId64, key, s,
                p->buffers[s].elements, lengths[s]);
    }
    return place_stream(p, key, lengths);
}

static rs_status read_numbers(const params_file *p, const rs_value *inner, size_t s,
    const rs_value *state, rs_names *names, const char **keys, size_t *key_count)
{
    const char *name;
    size_t group;
    if (!rs_ds_owner(rs_value_get(inner, "param_groups"), s, &group))
        group = s;
    RS_TRY(rs_ds_group_name(p->reader, p->file->mp, group, &name));
    for (uint32_t i = 0; i < state->count; i++) {
        const char *key = rs_value_string(state->as.dict->pairs[2 * (size_t)i]);
        const rs_value *value = state->as.dict->pairs[2 * (size_t)i + 1];
        int found;
        if (key == NULL)
            return rs_ds_malformed(
                p->torch, "the state of sub-group %zu has a name that is no text", s);
        if (is_number(p->torch, value, key)) {
            int copy = p->file->dp * (int)p->groups + (int)s;
            RS_TRY(rs_ds_add_step(p->reader, p->torch, p->file->mp, copy, name, key, value));
        } else if (rs_torch_kind_of(value) == RS_TORCH_NO_TENSOR) {
            RS_TRY(keep_state(p->reader, name, key, value));
        } else {
            RS_TRY(rs_names_add(names, key, 0, &found));
            if (found < 0 && *key_count == 64)
                return rs_ds_malformed(p->torch, "more than 64 kinds of optimizer state");
            if (found < 0)
                keys[(*key_count)++] = key;
        }
    }
    return RS_OK;
}

static rs_status read_streams(params_file *p, const rs_value *inner, int64_t *lengths)
{
    const char *keys[64];
    size_t key_count = 0;
    rs_names names = {0};
    rs_status status = RS_OK;
    for (size_t s = 0; s < p->groups && status == RS_OK; s++) {
        status =
            read_flat(p->torch, p->masters->as.items[s], "the master partition", s, &p->buffers[s]);
        lengths[s] = p->buffers[s].elements;
        if (status == RS_OK && !rs_cast_is_float(p->buffers[s].dtype))
            status = rs_ds_malformed(p->torch, "the master partition of sub-group %zu has dtype %s",
                s, rs_dtype_name(p->buffers[s].dtype));
    }
    if (status == RS_OK)
        status = place_stream(p, "master", lengths);
    for (size_t s = 0; s < p->groups && status == RS_OK; s++) {
        const rs_value *state = rs_value_get_index(p->state, (int64_t)s);
        if (rs_value_is(state, RS_VALUE_DICT))
            status = read_numbers(p, inner, s, state, &names, keys, &key_count);
    }
    for (size_t k = 0; k < key_count && status == RS_OK; k++)
        status = read_stream(p, keys[k], lengths);
    rs_names_fini(&names);
    return status;
}

rs_status rs_ds_read_flat_params(
    rs_ds_reader *reader, const rs_torch *torch, const rs_ds_file *file, const rs_value *z)
{
    const rs_value *inner = rs_value_get(z, "optimizer_state_dict");
    params_file p = {.reader = reader,
        .torch = torch,
        .file = file,
        .masters = rs_value_get(z, "fp32_flat_groups"),
        .state = rs_value_get(inner, "state")};
    if (!reader->models[file->mp].has_shapes)
        return rs_ds_malformed(torch, "no file has param_shapes: nothing says what is in it");
    if (rs_value_get(z, "ds_zero_partition_groups") != NULL)
        return rs_error_set(RS_ERR_UNSUPPORTED, "%s: ZeRO-3 with AutoEP experts is not read",
            rs_files_path(torch->files, torch->file));
    if (!rs_value_is_sequence(p.masters))
        return rs_ds_malformed(torch, "has no list \"fp32_flat_groups\"");
    p.groups = p.masters->count;
    if (file->dp == 0)
        RS_TRY(rs_ds_note_members(reader, file->mp, rs_value_get(inner, "param_groups"),
            p.groups != reader->models[file->mp].group_count));
    int64_t *lengths = rs_calloc(p.groups, sizeof *lengths);
    p.buffers = rs_calloc(p.groups, sizeof *p.buffers);
    rs_status status = RS_OK;
    if (lengths == NULL || p.buffers == NULL)
        status = rs_error_memory(p.groups * sizeof *p.buffers);
    else
        status = read_streams(&p, inner, lengths);
    free(lengths);
    free(p.buffers);
    return status;
}
