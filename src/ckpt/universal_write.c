/*
 * DeepSpeed's universal checkpoints, as ds_to_universal makes them and DeepSpeed loads them:
 *
 *   latest_universal                          the folder's name
 *   <tag>_universal/zero/<param>/<state>.pt   fp32 (the master), exp_avg, ..., step
 *   <tag>_universal/zero/optimizer_state.pt   parameter groups, loss scale, ...
 *   <tag>_universal/[zero_pp_rank_0_]mp_rank_MM_model_states.pt   (universal_model.c)
 *
 * 1. A parameter is in `zero` if the source has its master, and then with all states of its shape;
 *    what DeepSpeed will not load, or the format has no place for, is said in warnings.
 * 2. ZeRO-3 with one tensor-parallel rank loads bare, flat tensors and no others, ZeRO 0 to 2 dicts
 *    and no others: which of them is written is part of the target layout.
 * 3. Names become paths and are checked: none leads out of its folder.
 *
 * Specification: docs/formats/deepspeed-universal.md.
 */
#include "ckpt/universal_write.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/groups.h"
#include "ckpt/publish.h"
#include "ckpt/ranked.h"
#include "reshard/layout.h"

#define NAMED 6 /* names in a warning */

static bool is_role(const rs_logical *t, const char *role)
{
    return strcmp(t->role, role) == 0;
}

/* A state of a parameter that gets a file of its own. */
static bool is_state(const rs_universal *u, const rs_logical *t)
{
    return !is_role(t, "param") && !is_role(t, "buffer") && !is_role(t, "master") &&
           !is_role(t, "step") && rs_names_find(&u->masters, t->name) >= 0;
}

/* ---- what is asked for ---- */

/* The layout that is asked for, or else the source's. */
static rs_status find_layout(rs_universal *u)
{
    const char *asked = u->w->options->layout;
    const char *text = asked != NULL ? asked : u->w->catalog->layout;
    rs_layout layout;
    u->tp = u->pp = u->dp = 1;
    if (text == NULL)
        return RS_OK;
    RS_TRY(rs_layout_parse(text, &layout));
    /* What else the source's layout has, does not show in tensors that are whole. */
    if (asked != NULL && (layout.cp > 1 || layout.ep > 1 || layout.vpp > 1))
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "layout \"%s\": universal checkpoints know tp, pp, dp and zero alone", text);
    bool cut = u->rules.cuts.count > 0 || u->rules.vocabularies.count > 0;
    u->tp = asked != NULL || cut ? layout.tp : 1;
    u->pp = layout.pp;
    u->dp = layout.dp * layout.cp; /* ZeRO divides over both */
    u->stage = layout.zero;
    text = u->w->catalog->layout;
    u->moved = text == NULL || rs_layout_parse(text, &layout) != RS_OK || layout.tp != u->tp ||
               layout.pp != u->pp || layout.dp * layout.cp != u->dp;
    return RS_OK;
}

static rs_status find_version(rs_universal *u)
{
    const char *asked = u->w->options->universal_version;
    u->version = asked != NULL ? asked : "0.2";
    if (strcmp(u->version, "0.2") != 0 && strcmp(u->version, RS_UNIVERSAL_LONG) != 0)
        return rs_error_set(
            RS_ERR_ARGUMENT, "universal version \"%s\": must be 0.2 or 0.4", u->version);
    return RS_OK;
}

static rs_status find_rules(rs_universal *u)
{
    const json_t *info = json_object_get(u->extras, "universal_checkpoint_info");
    if (u->w->options->rules != NULL)
        RS_TRY(rs_rules_add_file(&u->rules, u->w->options->rules));
    if (json_is_object(info))
        RS_TRY(rs_rules_add_json(&u->rules, info));
    u->ruled =
        u->rules.cuts.count > 0 || u->rules.vocabularies.count > 0 || u->rules.experts.count > 0;
    for (int d = 0; d < RS_MAX_DIMS; d++)
        u->by_ranks[d] = (rs_rule){.kind = RS_RULE_SPLIT, .dim = d, .parts = 1};
    return RS_OK;
}

static void find_tag(rs_universal *u)
{
    static const char end[] = "_universal";
    const char *tag = json_string_value(json_object_get(u->extras, "tag"));
    size_t length = tag != NULL ? strlen(tag) : 0;
    if (length == 0 || length > 200 || tag[0] == '.' || strchr(tag, '/') != NULL) {
        snprintf(u->tag, sizeof u->tag, "global_step%" PRId64 "%s", u->step > 0 ? u->step : 0, end);
        return;
    }
    bool has = length >= sizeof end - 1 && strcmp(tag + length - (sizeof end - 1), end) == 0;
    snprintf(u->tag, sizeof u->tag, "%s%s", tag, has ? "" : end);
}

/* ---- what there is ---- */

static rs_status index_tensors(rs_universal *u)
{
    u->index = rs_calloc(u->w->catalog->entries.count, sizeof *u->index);
    if (u->index == NULL)
        return rs_error_memory(u->w->catalog->entries.count * sizeof *u->index);
    for (size_t i = 0; i < u->w->catalog->entries.count; i++)
        u->index[i] = -1;
    for (size_t i = 0; i < u->w->tensors.count; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        const rs_checkpoint_entry *entry = &rs_catalog_get(u->w->catalog, t->id)->is;
        int found;
        if (strcmp(t->name, entry->name) == 0 && strcmp(t->role, entry->role) == 0)
            u->index[t->id] = (int)i;
        if (is_role(t, "master"))
            RS_TRY(rs_names_add(&u->masters, t->name, (int)i, &found));
    }
    return RS_OK;
}

/* Names become folders. */
static rs_status check_name(const char *name)
{
    const char *at = name;
    bool bad = name[0] == '\0' || strcmp(name, "optimizer_state.pt") == 0;
    while (!bad) {
        size_t length = strcspn(at, "/");
        bad = length == 0 || length > 255 || (length == 1 && at[0] == '.') ||
              (length == 2 && at[0] == '.' && at[1] == '.');
        if (at[length] == '\0')
            break;
        at += length + 1;
    }
    if (bad)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "\"%.300s\": a universal checkpoint cannot have a folder of this name", name);
    return RS_OK;
}

static bool has_role(const rs_universal *u, const char *name, const char *role)
{
    return rs_catalog_find(u->w->catalog, name, role) >= 0;
}

/* Every parameter with an optimizer's state has a master, and the states that loading wants. */
static rs_status check_tensors(rs_universal *u)
{
    if (u->masters.count == 0)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "the checkpoint has no masters, which a universal checkpoint is made of "
            "(--master-from-param makes them from the weights)");
    for (size_t i = 0; i < u->w->tensors.count; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        const char *stored = rs_catalog_get(u->w->catalog, t->id)->is.name;
        if (strncmp(t->role, "exp_avg", 7) == 0 && rs_names_find(&u->masters, t->name) < 0)
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "\"%s\" has no master, which a universal checkpoint is made of "
                "(--master-from-param makes it from the weight)",
                t->name);
        if (!is_role(t, "master"))
            continue;
        RS_TRY(check_name(t->name));
        if (u->stage == 3 &&
            (!has_role(u, stored, "exp_avg") || !has_role(u, stored, "exp_avg_sq")))
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "\"%s\" lacks exp_avg or exp_avg_sq, without which DeepSpeed loads no ZeRO-3 "
                "universal checkpoint",
                t->name);
    }
    return RS_OK;
}

/* The parameter groups as DeepSpeed has them: those of all pipeline stages where they are alike,
 * else those of the first. */
static rs_status find_groups(rs_universal *u)
{
    const json_t *groups = json_object_get(u->extras, RS_GROUPS);
    u->groups = rs_groups_merged(groups);
    u->stages_differ = u->groups == NULL && json_array_size(groups) > 0;
    if (u->stages_differ)
        u->groups = json_deep_copy(json_array_get(groups, 0));
    if (u->groups == NULL)
        u->groups = json_array();
    if (u->groups == NULL)
        return rs_error_memory(64);
    RS_TRY(rs_groups_index(u->groups, &u->members));
    json_t *group;
    size_t g;
    json_array_foreach(u->groups, g, group) if (json_object_get(group, "params") == NULL)
        json_object_set_new(group, "params", json_pack("[I]", (json_int_t)g));
    u->grouped = json_array_size(u->groups) > 0;
    for (size_t i = 0; i < u->w->tensors.count && u->grouped; i++)
        if (is_role(&u->w->tensors.items[i], "master"))
            u->grouped = rs_names_find(&u->members, u->w->tensors.items[i].name) >= 0;
    return RS_OK;
}

/* The learning rate of a run of reshard's own trainer; NULL. */
static const json_t *rate_of(const rs_universal *u)
{
    return json_object_get(json_object_get(u->extras, "training"), "lr");
}

/* ---- warnings ---- */

typedef struct listing {
    rs_text text;
    size_t count;
} listing;

static void list(listing *l, const char *name)
{
    if (l->count++ < NAMED)
        rs_text_append(&l->text, "%s%s", l->count > 1 ? ", " : "", name);
}

static rs_status tell(rs_universal *u, listing *l, const char *what)
{
    rs_status status = l->text.status;
    if (status == RS_OK && l->count > 0)
        rs_writing_warn(
            u->w, "%zu %s: %s%s", l->count, what, l->text.data, l->count > NAMED ? ", ..." : "");
    rs_text_fini(&l->text);
    return status;
}

static int64_t elements_of(const rs_logical *t)
{
    return rs_box_is_empty(&t->box) ? 0 : rs_box_volume(&t->box);
}

static rs_status warn(rs_universal *u)
{
    listing frozen = {0}, buffers = {0}, lost = {0}, odd = {0};
    bool rounded = false;
    for (size_t i = 0; i < u->w->tensors.count; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        int master = rs_names_find(&u->masters, t->name);
        if (is_role(t, "buffer"))
            list(&buffers, t->name);
        else if (is_role(t, "param") && master < 0)
            list(&frozen, t->name);
        else if (is_role(t, "param"))
            rounded = rounded || (!rs_universal_has_weights(u) &&
                                     rs_catalog_get(u->w->catalog, t->id)->is.stored);
        else if (is_state(u, t) && elements_of(t) != elements_of(&u->w->tensors.items[master]))
            list(&odd, t->name);
        else if (master < 0 && !is_role(t, "step") && !is_role(t, "extra"))
            list(&lost, t->name);
    }
    RS_TRY(tell(u, &frozen, "frozen parameters, which DeepSpeed does not load from it"));
    RS_TRY(tell(u, &buffers, "buffers, which DeepSpeed does not load from it"));
    RS_TRY(tell(u, &lost, "tensors that belong to no parameter are left out"));
    RS_TRY(tell(u, &odd, "states of another size than their parameters are left out"));
    if (rounded)
        rs_writing_warn(u->w, "the weights themselves are not in this form: they are the masters "
                              "rounded, as DeepSpeed "
                              "makes them on loading");
    if (u->stage == 3 && json_array_size(u->groups) > 1)
        rs_writing_warn(u->w,
            "of its %zu parameter groups DeepSpeed gives the options of the first to all under "
            "ZeRO-3, "
            "and 0.14.5 loads one group alone",
            json_array_size(u->groups));
    if (u->stages_differ)
        rs_writing_warn(u->w, "the pipeline's stages have parameter groups of different options: "
                              "those of the first are written");
    if (json_array_size(u->groups) > 1 && !u->grouped)
        rs_writing_warn(u->w,
            "nothing says which parameters the source's %zu parameter groups have: that is not "
            "carried",
            json_array_size(u->groups));
    if (json_array_size(u->groups) == 0 && rate_of(u) == NULL)
        rs_writing_warn(
            u->w, "the source has no parameter groups: learning rates are those of the new run");
    if (u->step < 0)
        rs_writing_warn(u->w, "the optimizer's step is not known: it begins at 0 again");
    return RS_OK;
}

/* ---- files ---- */

/* Adds the file; takes `make`, whatever the outcome. */
static rs_status put(rs_universal *u, rs_torch_make *make, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static rs_status put(rs_universal *u, rs_torch_make *make, const char *format, ...)
{
    char name[1400];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(name, sizeof name, format, args);
    va_end(args);
    rs_status status = n > 0 && (size_t)n < sizeof name
                           ? rs_output_file(&u->w->output, name)
                           : rs_error_set(RS_ERR_UNSUPPORTED, "\"%.300s...\": too long", name);
    if (status == RS_OK)
        status = rs_torch_make_output(make, &u->w->output, u->w->tensors.items);
    if (status == RS_OK)
        status = RS_LIST_RESERVE_ONE(&u->files);
    if (status != RS_OK) {
        rs_torch_make_fini(make);
        return status;
    }
    rs_bytes_fini(&make->pickle); /* the output has its copy */
    u->files.items[u->files.count++] = *make;
    return RS_OK;
}

/* A tensor of one parameter in one role. */
static rs_status write_state(rs_universal *u, int i, const char *state)
{
    const rs_logical *t = &u->w->tensors.items[i];
    rs_torch_make make = {0};
    rs_bytes *p = &make.pickle;
    rs_status status;
    bool experts;
    rs_torch_make_begin(&make);
    RS_TRY_GOTO(rs_universal_experts(u, t, &experts), fail);
    if (u->stage == 3 && u->tp == 1 && !experts) {
        int64_t flat[1] = {elements_of(t)};
        RS_TRY_GOTO(rs_torch_make_tensor(&make, t->dtype, 1, flat, i, NULL), fail);
    } else {
        int64_t shape[RS_MAX_DIMS];
        int ndim;
        rs_pickle_dict(p);
        RS_TRY_GOTO(rs_universal_cut(u, t, p, &ndim, shape), fail);
        if (ndim == 0) /* DeepSpeed cannot cut what has no dimension */
            shape[ndim++] = 1;
        rs_pickle_text(p, "param");
        RS_TRY_GOTO(rs_torch_make_tensor(&make, t->dtype, ndim, shape, i, NULL), fail);
        rs_pickle_dict_end(p);
    }
    RS_TRY_GOTO(rs_torch_make_end(&make), fail);
    return put(u, &make, "%s/zero/%s/%s.pt", u->tag, t->name, state);

fail:
    rs_torch_make_fini(&make);
    return status;
}

static rs_status write_step(rs_universal *u, const char *name)
{
    rs_torch_make make = {0};
    rs_torch_make_begin(&make);
    rs_status status = rs_universal_add_step(u, rs_names_find(&u->members, name), &make);
    if (status == RS_OK)
        status = rs_torch_make_end(&make);
    if (status == RS_OK)
        return put(u, &make, "%s/zero/%s/step.pt", u->tag, name);
    rs_torch_make_fini(&make);
    return status;
}

static rs_status write_params(rs_universal *u)
{
    for (size_t i = 0; i < u->w->tensors.count; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        int master = rs_names_find(&u->masters, t->name);
        if (is_role(t, "master")) {
            RS_TRY(write_state(u, (int)i, "fp32"));
            if (u->step >= 0 && u->stage < 3)
                RS_TRY(write_step(u, t->name));
        } else if (is_state(u, t) && elements_of(t) == elements_of(&u->w->tensors.items[master])) {
            RS_TRY(check_name(t->role));
            RS_TRY(write_state(u, (int)i, t->role));
        }
    }
    return RS_OK;
}

/* The first `most` groups; of a source without any one with the learning rate that it says. */
static void add_groups(const rs_universal *u, rs_bytes *p, size_t most)
{
    const json_t *rate = rate_of(u);
    rs_pickle_text(p, RS_GROUPS);
    if (json_array_size(u->groups) > 0) {
        /* The names stand in the model files' param_shapes; an optimizer would take them for an
         * option. */
        json_t *groups = json_deep_copy(u->groups), *group;
        size_t g;
        json_array_foreach(groups, g, group) json_object_del(group, RS_GROUP_NAMES);
        while (json_array_size(groups) > most)
            json_array_remove(groups, most);
        rs_pickle_json(p, groups);
        json_decref(groups);
        return;
    }
    rs_pickle_list(p);
    rs_pickle_dict(p);
    if (json_is_number(rate)) {
        rs_pickle_text(p, "lr");
        rs_pickle_json(p, rate);
    }
    rs_pickle_text(p, "params");
    rs_pickle_list(p);
    rs_pickle_int(p, 0);
    rs_pickle_list_end(p);
    rs_pickle_dict_end(p);
    rs_pickle_list_end(p);
}

/* What ZeRO-3 looks for: the step under every number that the groups name, and the first group:
 * DeepSpeed takes no other's options, and 0.14.5 refuses another number of them than its own. */
static rs_status add_inner(const rs_universal *u, rs_torch_make *make)
{
    rs_bytes *p = &make->pickle;
    size_t count = 0, i, k;
    json_t *group, *number;
    rs_pickle_text(p, "optimizer_state_dict");
    rs_pickle_dict(p);
    rs_pickle_text(p, "state");
    rs_pickle_dict(p);
    json_array_foreach(u->groups, i, group) json_array_foreach(
        json_object_get(group, "params"), k, number) if (json_is_integer(number)) count =
        count > (size_t)json_integer_value(number) ? count : (size_t)json_integer_value(number) + 1;
    for (i = 0; i < (count > 0 && count < 65536 ? count : 1); i++) {
        rs_pickle_int(p, (int64_t)i);
        rs_pickle_dict(p);
        rs_pickle_text(p, "step");
        RS_TRY(rs_universal_add_step(u, rs_groups_owner(u->groups, i), make));
        rs_pickle_dict_end(p);
    }
    rs_pickle_dict_end(p);
    add_groups(u, p, 1);
    rs_pickle_dict_end(p);
    return RS_OK;
}

/* zero/optimizer_state.pt */
static rs_status write_common(rs_universal *u)
{
    static const char *const keys[] = {
        "loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad"};
    const char *version = json_string_value(json_object_get(u->extras, "ds_version"));
    rs_torch_make make = {0};
    rs_bytes *p = &make.pickle;
    rs_status status = RS_OK;
    rs_torch_make_begin(&make);
    rs_pickle_dict(p);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (json_object_get(u->extras, keys[i]) != NULL) {
            rs_pickle_text(p, keys[i]);
            rs_pickle_json(p, json_object_get(u->extras, keys[i]));
        }
    rs_pickle_text(p, "zero_stage");
    rs_pickle_int(p, u->stage);
    rs_pickle_text(p, "ds_version");
    rs_pickle_text(p, version != NULL ? version : rs_universal_writer(u));
    add_groups(u, p, SIZE_MAX);
    if (u->stage == 3)
        RS_TRY_GOTO(add_inner(u, &make), fail);
    rs_pickle_dict_end(p);
    RS_TRY_GOTO(rs_torch_make_end(&make), fail);
    return put(u, &make, "%s/zero/optimizer_state.pt", u->tag);

fail:
    rs_torch_make_fini(&make);
    return status;
}

static rs_status write_models(rs_universal *u)
{
    for (int mp = 0; mp < u->tp * u->pp; mp++) {
        rs_torch_make make = {0};
        rs_status status = rs_universal_model(u, mp, &make);
        if (status == RS_OK)
            status = put(u, &make, "%s/%smp_rank_%02d_model_states.pt", u->tag,
                u->stage == 3 ? "zero_pp_rank_0_" : "", mp);
        else
            rs_torch_make_fini(&make);
        RS_TRY(status);
    }
    return RS_OK;
}

static rs_status prepare(rs_universal *u)
{
    if (!u->w->whole)
        return rs_error_set(RS_ERR_ARGUMENT,
            "a universal checkpoint is made of masters and moments: not with --weights-only");
    u->extras = rs_extras_of_run(u->w->extras);
    RS_TRY(find_version(u));
    RS_TRY(find_rules(u));
    RS_TRY(find_layout(u));
    RS_TRY(index_tensors(u));
    RS_TRY(find_groups(u));
    RS_TRY(rs_universal_find_step(u));
    find_tag(u);
    RS_TRY(check_tensors(u));
    return warn(u);
}

static rs_status plan(rs_writing *w)
{
    rs_universal *u = rs_calloc(1, sizeof *u);
    if (u == NULL)
        return rs_error_memory(sizeof *u);
    w->own = u;
    *u = (rs_universal){.w = w, .step = -1};
    RS_TRY(prepare(u));
    RS_TRY(write_params(u));
    RS_TRY(write_common(u));
    return write_models(u);
}

/* Tensors of which the ranks that it is for have parts in common: as all of them have these. */
static rs_status view(rs_writing *w, rs_catalog **out)
{
    if (w->options->rules == NULL)
        return RS_OK; /* only a file of rules has shared parts */
    rs_universal u = {.w = w, .extras = rs_extras_of_run(w->catalog->extras)};
    bool shared = false;
    rs_status status = find_rules(&u);
    if (status == RS_OK)
        status = find_layout(&u);
    for (size_t i = 0; i < u.rules.cuts.count; i++)
        shared = shared || u.rules.cuts.items[i].shared != NULL;
    if (status == RS_OK && shared)
        status = rs_ranked_view(w->catalog, &u.rules, u.tp, out);
    rs_rules_fini(&u.rules);
    return status;
}

static rs_status complete(rs_writing *w, int file)
{
    rs_universal *u = w->own;
    return rs_torch_make_complete(&u->files.items[file], &w->output);
}

static rs_status finish(rs_writing *w)
{
    const rs_universal *u = w->own;
    return rs_publish_text(w->folder, "latest_universal", u->tag);
}

static void fini(rs_writing *w)
{
    rs_universal *u = w->own;
    for (size_t i = 0; i < u->files.count; i++)
        rs_torch_make_fini(&u->files.items[i]);
    free(u->files.items);
    rs_rules_fini(&u->rules);
    rs_names_fini(&u->masters);
    rs_names_fini(&u->members);
    json_decref(u->groups);
    free(u->index);
    free(u->steps);
    free(u);
}

const rs_writer rs_writer_universal = {.name = "deepspeed-universal",
    .whole = true,
    .layout = true,
    .masters = true,
    .foreign = true,
    .keeps_names = true,
    .view = view,
    .plan = plan,
    .complete = complete,
    .finish = finish,
    .fini = fini};
