/*
 * Runs of DeepSpeed without ZeRO: a plain torch optimizer in the model file (native MoE: in a file
 * of its own for every expert-parallel rank).
 *
 * Its state is numbered and has no names: the numbers run group by group, and within a group in the
 * order of the module. The names are found by shape and order (match.h); where more than one
 * assignment fits, the checkpoint is refused rather than guessed at.
 *
 * A pipeline's stages each have their own optimizer over a run of consecutive layers, tied layers
 * first, and nothing says where the runs begin or which layer is tied. They are searched for: every
 * cut of the layers into runs, without a tied layer and then with each; the only one under which
 * all stages match is the right one.
 *
 * fp16 without ZeRO keeps masters beside it, flat by group or one by one.
 *
 * Specification: docs/formats/deepspeed.md.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/cast.h"
#include "ckpt/deepspeed.h"
#include "ckpt/match.h"
#include "ckpt/value_json.h"

/* The optimizer of one file. */
typedef struct plain {
    rs_ds_reader *reader;
    rs_torch torch;
    const rs_value *optimizer; /* {'state', 'param_groups'} */
    const rs_value *masters;   /* fp32_groups: a list of tensors per group; NULL */
    int mp, copy;
    rs_match_group *groups;
    size_t group_count;
    rs_pool pool;
} plain;

static const rs_value *state_at(const plain *p, size_t group, size_t slot)
{
    const rs_value *groups = rs_value_get(p->optimizer, "param_groups");
    const rs_value *params = rs_value_get(groups->as.items[group], "params");
    int64_t index;
    if (!rs_value_integer(params->as.items[slot], &index))
        return NULL;
    return rs_value_get_index(rs_value_get(p->optimizer, "state"), index);
}

/* The shape of a slot: that of its state, or of its master. */
static rs_status slot_shape(const plain *p, size_t group, size_t slot, rs_match_shape *out)
{
    const rs_value *state = state_at(p, group, slot);
    out->ndim = -1;
    for (uint32_t i = 0; rs_value_is(state, RS_VALUE_DICT) && i < state->count; i++) {
        const char *key = rs_value_string(state->as.dict->pairs[2 * (size_t)i]);
        const rs_value *value = state->as.dict->pairs[2 * (size_t)i + 1];
        rs_torch_tensor t;
        if (key == NULL || strcmp(key, "step") == 0 || rs_torch_kind_of(value) != RS_TORCH_DENSE)
            continue;
        RS_TRY(rs_torch_tensor_of(&p->torch, value, &t));
        out->ndim = t.ndim;
        memcpy(out->shape, t.shape, sizeof *t.shape * (size_t)t.ndim);
        return RS_OK;
    }
    return RS_OK;
}

static rs_status read_groups(plain *p)
{
    const rs_value *groups = rs_value_get(p->optimizer, "param_groups");
    void *memory;
    if (!rs_value_is_sequence(groups))
        return rs_ds_malformed(&p->torch, "its optimizer has no list \"param_groups\"");
    RS_TRY(rs_pool_take(&p->pool, groups->count * sizeof *p->groups, &memory));
    p->groups = memory;
    p->group_count = groups->count;
    for (uint32_t g = 0; g < groups->count; g++) {
        const rs_value *params = rs_value_get(groups->as.items[g], "params");
        if (!rs_value_is_sequence(params))
            return rs_ds_malformed(&p->torch, "parameter group %u has no list \"params\"", g);
        RS_TRY(rs_pool_take(&p->pool, params->count * sizeof(rs_match_shape), &memory));
        p->groups[g].slots = memory;
        p->groups[g].count = params->count;
        for (uint32_t i = 0; i < params->count; i++)
            RS_TRY(slot_shape(p, g, i, &p->groups[g].slots[i]));
    }
    return RS_OK;
}

static bool is_expert_group(const plain *p, size_t group)
{
    int64_t moe = 0;
    const rs_value *groups = rs_value_get(p->optimizer, "param_groups");
    rs_value_integer(rs_value_get(groups->as.items[group], "moe"), &moe);
    return moe != 0;
}

/* One parameter's state. */
static rs_status add_state(plain *p, const rs_ds_param *param, size_t group, size_t slot)
{
    rs_ds_reader *reader = p->reader;
    const rs_value *state = state_at(p, group, slot);
    int tp = rs_ds_tp_of(reader, p->mp);
    for (uint32_t i = 0; rs_value_is(state, RS_VALUE_DICT) && i < state->count; i++) {
        const char *key = rs_value_string(state->as.dict->pairs[2 * (size_t)i]);
        const rs_value *value = state->as.dict->pairs[2 * (size_t)i + 1];
        rs_torch_tensor t;
        bool number = rs_value_is(value, RS_VALUE_INT) || rs_value_is(value, RS_VALUE_FLOAT);
        if (key == NULL)
            return rs_ds_malformed(&p->torch, "a state of \"%s\" has no name", param->name);
        if (rs_torch_kind_of(value) == RS_TORCH_DENSE) {
            RS_TRY(rs_torch_tensor_of(&p->torch, value, &t));
            bool own = t.ndim == param->ndim &&
                       memcmp(t.shape, param->shape, sizeof *t.shape * (size_t)t.ndim) == 0;
            number = rs_torch_elements(&t) == 1 && (strcmp(key, "step") == 0 || !own);
            if (!number && !own)
                return rs_ds_malformed(&p->torch,
                    "%s of \"%s\" has neither its shape nor one element", key, param->name);
        }
        if (number)
            RS_TRY(rs_ds_add_step(reader, &p->torch, p->mp, p->copy, param->name, key, value));
        else if (rs_torch_kind_of(value) == RS_TORCH_DENSE)
            RS_TRY(rs_ds_add_tensor(reader, &p->torch, param->name, key, tp, p->copy, value));
    }
    const rs_value *masters = rs_value_is_sequence(p->masters) && group < p->masters->count
                                  ? p->masters->as.items[group]
                                  : NULL;
    if (rs_value_is_sequence(masters) && slot < masters->count)
        return rs_ds_add_tensor(
            reader, &p->torch, param->name, "master", tp, p->copy, masters->as.items[slot]);
    return RS_OK;
}

/* Names in order with their shapes, and the assignment that fits. */
typedef struct matching {
    const rs_ds_param **params;
    rs_match_shape *shapes;
    int *group_of, *slot_of;
    size_t count;
} matching;

static rs_status matching_init(matching *m, size_t most)
{
    *m = (matching){0};
    m->params = rs_calloc(most, sizeof *m->params);
    m->shapes = rs_calloc(most, sizeof *m->shapes);
    m->group_of = rs_calloc(most, sizeof *m->group_of);
    m->slot_of = rs_calloc(most, sizeof *m->slot_of);
    return m->params != NULL && m->shapes != NULL && m->group_of != NULL && m->slot_of != NULL
               ? RS_OK
               : rs_error_memory(most * sizeof *m->shapes);
}

static void matching_fini(matching *m)
{
    free(m->params);
    free(m->shapes);
    free(m->group_of);
    free(m->slot_of);
}

static void matching_add(matching *m, const rs_ds_param *param)
{
    m->params[m->count] = param;
    m->shapes[m->count].ndim = param->ndim;
    memcpy(m->shapes[m->count].shape, param->shape, sizeof param->shape);
    m->count++;
}

/* Matches the names against the groups of one kind and adds what the state says of them. */
static rs_status match_and_add(plain *p, matching *m, bool experts)
{
    rs_match_group *groups = rs_calloc(p->group_count, sizeof *groups);
    size_t *numbers = rs_calloc(p->group_count, sizeof *numbers);
    size_t count = 0;
    int ways = 0;
    rs_status status = RS_OK;
    if (groups == NULL || numbers == NULL)
        RS_TRY_GOTO(rs_error_memory(p->group_count * sizeof *groups), out);
    for (size_t g = 0; g < p->group_count; g++) {
        if (is_expert_group(p, g) != experts)
            continue;
        groups[count] = p->groups[g];
        numbers[count++] = g;
    }
    RS_TRY_GOTO(
        rs_match_names(m->shapes, m->count, groups, count, m->group_of, m->slot_of, &ways), out);
    if (ways != 1)
        RS_TRY_GOTO(rs_error_set(RS_ERR_UNSUPPORTED,
                        "%s: its optimizer numbers its parameters, and %s of them to the names of "
                        "the module fits their shapes",
                        rs_files_path(p->torch.files, p->torch.file),
                        ways == 0 ? "no assignment" : "more than one assignment"),
            out);
    for (size_t i = 0; i < m->count; i++)
        if (m->group_of[i] >= 0) {
            size_t group = numbers[m->group_of[i]];
            RS_TRY_GOTO(rs_ds_note_member(p->reader, p->mp, group, m->params[i]->name), out);
            RS_TRY_GOTO(add_state(p, m->params[i], group, (size_t)m->slot_of[i]), out);
        }
out:
    free(groups);
    free(numbers);
    return status;
}

static bool has_expert_groups(const plain *p)
{
    for (size_t g = 0; g < p->group_count; g++)
        if (is_expert_group(p, g))
            return true;
    return false;
}

/* The experts of an expert-parallel rank: the same number of each layer, in order. */
static rs_status match_experts(plain *p, int ep, int eps)
{
    rs_ds_reader *reader = p->reader;
    matching m;
    rs_status status = matching_init(&m, reader->parts.count);
    for (size_t i = 0; i < reader->parts.count && status == RS_OK; i++) {
        const rs_ds_part *part = &reader->parts.items[i];
        int most = 0;
        if (part->expert < 0)
            continue;
        for (size_t k = 0; k < reader->parts.count; k++)
            if (reader->parts.items[k].layer == part->layer && reader->parts.items[k].expert > most)
                most = reader->parts.items[k].expert;
        int local = (most + 1) / eps;
        if (local * eps != most + 1)
            status = rs_ds_malformed(&p->torch,
                "%d experts of layer %d do not divide over %d expert-parallel ranks", most + 1,
                part->layer, eps);
        else if (part->expert / local == ep)
            matching_add(&m, &part->param);
    }
    if (status == RS_OK)
        status = match_and_add(p, &m, true);
    matching_fini(&m);
    return status;
}

static rs_status match_module(plain *p)
{
    const rs_ds_model *model = &p->reader->models[p->mp];
    matching m;
    rs_status status = matching_init(&m, model->weights.count);
    for (size_t i = 0; i < model->weights.count && status == RS_OK; i++)
        matching_add(&m, &model->weights.items[i]);
    if (status == RS_OK)
        status = match_and_add(p, &m, false);
    matching_fini(&m);
    return status;
}

/* Pipelines. */

/* The names of layers [first, last) of a tensor-parallel rank, the tied layer's first. */
static void list_run(const rs_ds_reader *reader, int tp, int first, int last, int tied, matching *m)
{
    m->count = 0;
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < reader->parts.count; i++) {
            const rs_ds_part *part = &reader->parts.items[i];
            if (part->tp != tp || part->expert >= 0)
                continue;
            bool is_tied = part->layer == tied;
            if (pass == 0 ? is_tied : !is_tied && part->layer >= first && part->layer < last)
                matching_add(m, &part->param);
        }
}

static size_t slots_of(const plain *p)
{
    size_t count = 0;
    for (size_t g = 0; g < p->group_count; g++)
        count += p->groups[g].count;
    return count;
}

/* Whether the stage's optimizer fits the run, with the tied layer (-1: none) in front. */
static rs_status try_run(const plain *p, int first, int last, int tied, matching *m, bool *fits)
{
    int ways = 0;
    list_run(p->reader, rs_ds_tp_of(p->reader, p->mp), first, last, tied, m);
    *fits = false;
    if (m->count < slots_of(p))
        return RS_OK;
    RS_TRY(rs_match_names(
        m->shapes, m->count, p->groups, p->group_count, m->group_of, m->slot_of, &ways));
    *fits = ways == 1;
    return RS_OK;
}

/* A cut of the layers into runs, one a stage. */
typedef struct runs {
    int *end;   /* [pp] */
    bool *tied; /* [pp]: the stage has the tied layer in front */
    int found;  /* how many cuts fit; the arrays hold the first */
    int *trial_end;
    bool *trial_tied;
} runs;

static rs_status search_runs(
    plain *stages, int pp, int stage, int first, int layers, int tied, matching *m, runs *r)
{
    if (stage == pp) {
        if (first == layers && r->found++ == 0) {
            memcpy(r->end, r->trial_end, sizeof *r->end * (size_t)pp);
            memcpy(r->tied, r->trial_tied, sizeof *r->tied * (size_t)pp);
        }
        return RS_OK;
    }
    for (int last = first; last <= layers && r->found < 2; last++)
        for (int with = 0; with <= (tied >= 0); with++) {
            bool inside = tied >= first && tied < last, fits = false;
            if (inside && with == 0)
                continue; /* a stage that has the layer has it in front */
            if (stage == pp - 1 && last != layers)
                continue;
            RS_TRY(try_run(&stages[stage], first, last, with ? tied : -1, m, &fits));
            if (!fits)
                continue;
            r->trial_end[stage] = last;
            r->trial_tied[stage] = with;
            RS_TRY(search_runs(stages, pp, stage + 1, last, layers, tied, m, r));
        }
    return RS_OK;
}

static rs_status add_runs(plain *stages, int pp, int tied, const runs *r, matching *m)
{
    for (int s = 0; s < pp; s++) {
        list_run(stages[s].reader, rs_ds_tp_of(stages[s].reader, stages[s].mp),
            s > 0 ? r->end[s - 1] : 0, r->end[s], r->tied[s] ? tied : -1, m);
        RS_TRY(match_and_add(&stages[s], m, false));
    }
    return RS_OK;
}

/* Finds the runs of the stages of one tensor-parallel rank. */
static rs_status match_pipeline(plain *stages, int pp, runs *r, matching *m)
{
    rs_ds_reader *reader = stages[0].reader;
    int layers = 0;
    for (size_t i = 0; i < reader->parts.count; i++)
        if (reader->parts.items[i].layer >= layers)
            layers = reader->parts.items[i].layer + 1;
    int found_tied = -1;
    runs best = *r;
    best.found = 0;
    for (int tied = -1; tied < layers && best.found < 2; tied++) {
        r->found = 0;
        RS_TRY(search_runs(stages, pp, 0, 0, layers, tied, m, r));
        if (r->found == 0)
            continue;
        best.found += r->found;
        found_tied = tied;
        if (tied < 0)
            break; /* without a tied layer: nothing more complicated is looked for */
    }
    if (best.found != 1)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "%s: %s of its layers over %d pipeline stages fits the optimizers' shapes",
            reader->place->title, best.found == 0 ? "no division" : "more than one division", pp);
    r->found = 0;
    RS_TRY(search_runs(stages, pp, 0, 0, layers, found_tied, m, r));
    return add_runs(stages, pp, found_tied, r, m);
}

/* The files. */

/* Flat masters by group (fp16 without ZeRO, fused optimizers): in the order of param_shapes. */
static rs_status read_flat_masters(plain *p, const rs_value *flat)
{
    rs_ds_reader *reader = p->reader;
    const rs_ds_model *model = &reader->models[p->mp];
    const rs_value *inner = rs_value_get(p->optimizer, "state");
    if (!model->has_shapes || !rs_value_is_sequence(flat) || flat->count != model->group_count)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "%s: flat fp32 groups without param_shapes; nothing says what is in them",
            rs_files_path(p->torch.files, p->torch.file));
    for (uint32_t g = 0; g < flat->count; g++) {
        const rs_value *state = rs_value_get_index(inner, g);
        uint32_t states = rs_value_is(state, RS_VALUE_DICT) ? state->count : 0;
        for (uint32_t k = 0; k <= states; k++) {
            const char *role =
                k == 0 ? "master" : rs_value_string(state->as.dict->pairs[2 * (size_t)(k - 1)]);
            const rs_value *value =
                k == 0 ? flat->as.items[g] : state->as.dict->pairs[2 * (size_t)(k - 1) + 1];
            const char *name;
            rs_torch_tensor t;
            if (role == NULL || rs_torch_kind_of(value) != RS_TORCH_DENSE)
                continue;
            RS_TRY(rs_torch_tensor_of(&p->torch, value, &t));
            RS_TRY(rs_ds_group_name(reader, p->mp, g, &name));
            if (rs_torch_elements(&t) == 1 && model->groups[g].elements != 1) {
                RS_TRY(rs_ds_add_step(reader, &p->torch, p->mp, p->copy, name, role, value));
                continue;
            }
            if (t.ndim != 1 || !rs_torch_is_contiguous(&t) ||
                t.shape[0] != model->groups[g].elements)
                return rs_ds_malformed(&p->torch,
                    "%s of group %u has %" PRId64 " elements, param_shapes names %" PRId64, role, g,
                    rs_torch_elements(&t), model->groups[g].elements);
            int64_t at = 0, size = (int64_t)rs_dtype_size(t.dtype);
            for (size_t i = 0; i < model->groups[g].count; i++) {
                const rs_ds_param *param = &model->groups[g].items[i];
                int id;
                if (k == 0)
                    RS_TRY(rs_ds_note_member(reader, p->mp, g, param->name));
                RS_TRY(rs_assembly_local(&reader->assembly, param->name, role,
                    rs_ds_tp_of(reader, p->mp), p->copy, t.dtype, param->ndim, param->shape, &id));
                RS_TRY(rs_assembly_range(&reader->assembly, id, 0, param->elements, t.storage->file,
                    t.storage->offset + (t.first + at) * size));
                at += param->elements;
            }
        }
    }
    return RS_OK;
}

/* Finds the torch state dict in what the file has; `*done` if there is none to be matched. */
static rs_status open_optimizer(plain *p, const rs_ds_file *file, const char *key, bool *done)
{
    RS_TRY(rs_ds_open(p->reader, file, &p->torch));
    const rs_value *outer = rs_value_get(rs_torch_root(&p->torch), key);
    *done = outer == NULL || outer->kind == RS_VALUE_NONE;
    if (*done)
        return RS_OK;
    p->optimizer = rs_value_get(outer, "optimizer_state_dict");
    if (p->optimizer == NULL)
        p->optimizer = outer;
    p->masters = rs_value_get(outer, "fp32_groups");
    if (!rs_value_is(rs_value_get(p->optimizer, "state"), RS_VALUE_DICT))
        return rs_ds_malformed(&p->torch, "its optimizer has no dict \"state\"");
    const rs_value *groups = rs_value_get(p->optimizer, "param_groups");
    if (groups != NULL && rs_ds_tp_of(p->reader, p->mp) == 0 && p->copy == 0) {
        json_t *json = rs_value_json(groups, &p->reader->left);
        if (json == NULL || json_array_append_new(p->reader->groups, json) != 0)
            return rs_error_memory(64);
    }
    if (rs_value_get(outer, "fp32_groups_flat") != NULL) {
        *done = true;
        return read_flat_masters(p, rs_value_get(outer, "fp32_groups_flat"));
    }
    return read_groups(p);
}

static void close_optimizer(plain *p)
{
    rs_torch_fini(&p->torch);
    rs_pool_fini(&p->pool);
}

static rs_status read_one(
    rs_ds_reader *reader, const rs_ds_file *file, const char *key, int ep, int eps)
{
    plain p = {.reader = reader, .mp = file->mp, .copy = ep};
    bool done = false;
    rs_status status = open_optimizer(&p, file, key, &done);
    if (status == RS_OK && !done)
        status = match_module(&p);
    if (status == RS_OK && !done && has_expert_groups(&p)) {
        p.copy = 0; /* every expert is held once */
        status = match_experts(&p, ep, eps);
    }
    close_optimizer(&p);
    return status;
}

static rs_status read_pipeline(rs_ds_reader *reader, int tp)
{
    int pp = reader->pp;
    bool done = false;
    matching m = {0};
    rs_status status = RS_OK;
    plain *stages = rs_calloc((size_t)pp, sizeof *stages);
    int *ends = rs_calloc(2 * (size_t)pp, sizeof *ends);
    bool *flags = rs_calloc(2 * (size_t)pp, sizeof *flags);
    if (stages == NULL || ends == NULL || flags == NULL)
        RS_TRY_GOTO(rs_error_memory((size_t)pp * sizeof *stages), out);
    runs r = {.end = ends, .trial_end = ends + pp, .tied = flags, .trial_tied = flags + pp};
    RS_TRY_GOTO(matching_init(&m, reader->parts.count), out);
    for (int s = 0; s < pp && !done; s++) {
        stages[s].reader = reader;
        stages[s].mp = s * reader->tp + tp;
        stages[s].copy = 0;
        const rs_ds_file *file = rs_ds_find(reader, RS_DS_MODEL, -1, stages[s].mp);
        RS_TRY_GOTO(open_optimizer(&stages[s], file, "optimizer", &done), out);
    }
    for (int s = 0; s < pp; s++)
        stages[s].copy = s;
    if (!done)
        RS_TRY_GOTO(match_pipeline(stages, pp, &r, &m), out);
out:
    for (int s = 0; stages != NULL && s < pp; s++)
        close_optimizer(&stages[s]);
    matching_fini(&m);
    free(stages);
    free(ends);
    free(flags);
    return status;
}

rs_status rs_ds_read_plain(rs_ds_reader *reader)
{
    size_t layers, experts;
    size_t checksums = reader->catalog->checksums.count;
    size_t warnings = reader->catalog->warnings.count;
    rs_status status = RS_OK;
    rs_ds_files(reader, RS_DS_EXPERT_OPTIMIZER, &experts);
    if (rs_ds_files(reader, RS_DS_LAYER, &layers) != NULL) {
        for (int tp = 0; tp < reader->tp && status == RS_OK; tp++)
            status = read_pipeline(reader, tp);
    } else {
        for (size_t i = 0; i < reader->files.count && status == RS_OK; i++) {
            const rs_ds_file *file = &reader->files.items[i];
            int mps = reader->tp * reader->pp;
            if (experts > 0 && file->kind == RS_DS_EXPERT_OPTIMIZER)
                status = read_one(
                    reader, file, "optimizer", file->dp, (int)experts / (mps > 0 ? mps : 1));
            else if (experts == 0 && file->kind == RS_DS_MODEL)
                status = read_one(reader, file, "optimizer", 0, 1);
        }
    }
    if (experts == 0) { /* the model files were read before */
        reader->catalog->checksums.count = checksums;
        reader->catalog->warnings.count = warnings;
    }
    RS_TRY(status);
    if (json_array_size(reader->groups) == 1 && reader->pp == 1) {
        json_t *groups = json_incref(json_array_get(reader->groups, 0));
        json_array_clear(reader->groups);
        return rs_catalog_extra(reader->catalog, "param_groups", groups);
    }
    return RS_OK;
}
