/*
 * How the tensors of a universal checkpoint are to be cut when it is loaded, as DeepSpeed wants it
 * said: beside each tensor (cat_dim, param_n_sub_params, sub_param_shape, vocab_tensor), and for
 * the run as lists of patterns (universal_checkpoint_info).
 *
 * Both come from rules: those of the source's own universal_checkpoint_info, which is then carried
 * on as it is, or a rules file, of which each name becomes a pattern that matches it alone. Where
 * nothing says it and there is one tensor-parallel rank, tensors get cat_dim 0, as DeepSpeed has it
 * for names in no list; with several they are refused.
 *
 * Version 0.2 cuts each part evenly; with 0.4 the model that loads it knows its ranks' widths
 * (those of the source, where it has as many ranks, are in sub_param_shard_widths).
 *
 * A rule may cut a tensor in another shape than its own: it is then written in that one. Where
 * ranks have parts of it in common, it is written as all of them have it, for a plain cut
 * (ranked.h).
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "ckpt/universal_write.h"

rs_status rs_universal_rule(rs_universal *u, const char *name, const rs_rule **out)
{
    *out = NULL;
    if (u->ruled)
        RS_TRY(rs_rules_find(&u->rules, name, out));
    if (*out == NULL && u->tp > 1)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "\"%s\": nothing says how it is cut over %d tensor-parallel ranks (--rules FILE)", name,
            u->tp);
    if (*out != NULL && (*out)->shared != NULL)
        *out = &u->by_ranks[(*out)->dim];
    return RS_OK;
}

/* True if it is a table whose padding rows are gone. */
static rs_status is_vocabulary(rs_universal *u, const rs_logical *t, bool *yes)
{
    const rs_vocabulary *vocabulary = NULL;
    if (u->ruled)
        RS_TRY(rs_rules_vocabulary(&u->rules, t->name, &vocabulary));
    *yes = vocabulary != NULL && t->ndim > 0 && vocabulary->rows == t->shape[0];
    return RS_OK;
}

rs_status rs_universal_experts(const rs_universal *u, const rs_logical *t, bool *yes)
{
    *yes = false;
    return t->ndim > 0 ? rs_rules_experts(&u->rules, t->name, yes) : RS_OK;
}

/* How a tensor is written: its shape, which a rule may give it for being cut, and the cut. */
typedef struct form {
    const rs_rule *rule; /* NULL: nothing says it */
    int ndim;
    int64_t shape[RS_MAX_DIMS];
    bool cut;
    int parts;
    bool fused;      /* parts of other sizes than equal shares, or in a shape of their own */
    bool vocabulary; /* a table whose padding rows are gone */
    bool experts;    /* dimension 0 counts them; the run that loads it deals them to its ranks */
} form;

/* The size of part `j` along the rule's dimension; `whole` is that of all. */
static int64_t part_size(const rs_rule *rule, int parts, int64_t whole, int j)
{
    if (rule->widths != NULL) {
        int64_t sum = 0;
        for (int r = 0; r < rule->ranks; r++)
            sum += rule->widths[j * rule->ranks + r];
        return sum;
    }
    return rule->sizes != NULL ? rule->sizes[j] : whole / parts;
}

/* The shape in which the rule cuts the tensor, if that is not its own. */
static rs_status find_view(const rs_logical *t, form *f)
{
    const rs_rule *rule = f->rule;
    rs_box box = rs_box_whole(t->ndim, t->shape);
    int64_t all = rs_box_is_empty(&box) ? 0 : rs_box_volume(&box), product = 1;
    int rest = -1;
    bool fits = true;
    if (rule->view_ndim == 0 || rule->view_ndim == t->ndim)
        return RS_OK;
    f->ndim = rule->view_ndim;
    for (int d = 0; d < f->ndim; d++) {
        f->shape[d] = d == rule->dim ? 0 : rule->view[d];
        for (int j = 0; d == rule->dim && j < rule->parts; j++)
            f->shape[d] += part_size(rule, rule->parts, 0, j);
        if (f->shape[d] < 0 && rest < 0)
            rest = d;
        else
            fits = fits && f->shape[d] >= 0 && rs_mul_fits(product, f->shape[d], &product);
    }
    if (rest >= 0 && fits && product > 0) {
        f->shape[rest] = all / product;
        product *= f->shape[rest];
    }
    if (!fits || product != all)
        return rs_error_set(RS_ERR_MISMATCH,
            "\"%s\": the shape that the rules cut it in has not its %lld elements", t->name,
            (long long)all);
    return RS_OK;
}

static rs_status uneven(const rs_universal *u, const form *f, const rs_logical *t, int j)
{
    char part[32] = "";
    if (f->parts > 1 || f->fused)
        snprintf(part, sizeof part, "its part %d of ", j);
    return rs_error_set(RS_ERR_UNSUPPORTED,
        "\"%s\": %s%lld along dimension %d cannot be shared evenly by %d tensor-parallel ranks, as "
        "version 0.2 wants; 0.4 leaves the shares to the run that loads it",
        t->name, part, (long long)part_size(f->rule, f->parts, f->shape[f->rule->dim], j),
        f->rule->dim, u->tp);
}

/* The parts are all of it; and version 0.2 can be cut in no other than equal shares. */
static rs_status check_parts(const rs_universal *u, const form *f, const rs_logical *t)
{
    int64_t sum = 0, whole = f->shape[f->rule->dim];
    bool even = strcmp(u->version, RS_UNIVERSAL_LONG) != 0 && !f->vocabulary;
    for (int j = 0; j < f->parts; j++) {
        int64_t size = part_size(f->rule, f->parts, whole, j);
        sum += size;
        if (even && size % u->tp != 0)
            return uneven(u, f, t, j);
    }
    if (sum != whole)
        return rs_error_set(RS_ERR_MISMATCH,
            "\"%s\": the rules give it parts of together %lld along dimension %d, it has %lld",
            t->name, (long long)sum, f->rule->dim, (long long)whole);
    return RS_OK;
}

static rs_status find_form(rs_universal *u, const rs_logical *t, form *f)
{
    const rs_rule *rule;
    *f = (form){.ndim = t->ndim, .parts = 1};
    memcpy(f->shape, t->shape, sizeof *t->shape * (size_t)t->ndim);
    RS_TRY(rs_universal_rule(u, t->name, &rule));
    RS_TRY(is_vocabulary(u, t, &f->vocabulary));
    RS_TRY(rs_universal_experts(u, t, &f->experts));
    f->rule = rule;
    if (rule == NULL || rule->kind != RS_RULE_SPLIT)
        return RS_OK;
    RS_TRY(find_view(t, f));
    f->cut = rule->dim < f->ndim;
    if (!f->cut && u->tp > 1)
        return rs_error_set(RS_ERR_MISMATCH,
            "\"%s\": the rules cut its dimension %d, it has %d dimensions", t->name, rule->dim,
            f->ndim);
    if (!f->cut)
        return RS_OK;
    /* A bare number is that of equal parts, or the size of one. */
    f->parts = rule->bare && rule->parts == f->shape[rule->dim] ? 1 : rule->parts;
    f->fused = rule->sizes != NULL || rule->widths != NULL || rule->view_ndim > 0;
    return check_parts(u, f, t);
}

/* ((2, 1, 1), 4): the tensor's shape with its parts. */
static void add_parts(const form *f, rs_bytes *out)
{
    rs_pickle_tuple(out);
    for (int d = 0; d < f->ndim; d++) {
        if (d != f->rule->dim) {
            rs_pickle_int(out, f->shape[d]);
            continue;
        }
        rs_pickle_tuple(out);
        for (int j = 0; j < f->parts; j++)
            rs_pickle_int(out, part_size(f->rule, f->parts, f->shape[d], j));
        rs_pickle_tuple_end(out);
    }
    rs_pickle_tuple_end(out);
}

/* `name` as a regular expression, anchored at both ends. */
static void add_pattern(const char *name, rs_bytes *out)
{
    size_t length = strlen(name), used = 0;
    char *text = rs_calloc(2 * length + 3, 1);
    if (text == NULL) {
        out->status = rs_error_memory(2 * length);
        return;
    }
    text[used++] = '^';
    for (size_t i = 0; i < length; i++) {
        if (!isalnum((unsigned char)name[i]) && name[i] != '_' && (unsigned char)name[i] < 0x80)
            text[used++] = '\\';
        text[used++] = name[i];
    }
    text[used] = '$';
    rs_pickle_text(out, text);
    free(text);
}

/* DeepSpeed's SubparamShape, an instance with three attributes; or the same as a dict. */
static void add_fused(const form *f, const char *name, bool instance, rs_bytes *out)
{
    if (instance) {
        rs_pickle_name(out, "deepspeed.checkpoint.universal_checkpoint", "SubparamShape");
        rs_bytes_append(out, ")\x81", 2);
    }
    rs_pickle_dict(out);
    rs_pickle_text(out, "patterns");
    rs_pickle_list(out);
    add_pattern(name, out);
    rs_pickle_list_end(out);
    rs_pickle_text(out, "shape");
    add_parts(f, out);
    rs_pickle_text(out, "partition_dim");
    rs_pickle_int(out, f->rule->dim);
    rs_pickle_dict_end(out);
    if (instance)
        rs_pickle_build(out);
}

rs_status rs_universal_cut(
    rs_universal *u, const rs_logical *t, rs_bytes *out, int *ndim, int64_t *shape)
{
    form f;
    RS_TRY(find_form(u, t, &f));
    *ndim = f.ndim;
    memcpy(shape, f.shape, sizeof *shape * (size_t)f.ndim);
    if (f.cut && f.fused) {
        rs_pickle_text(out, "sub_param_shape");
        add_fused(&f, t->name, true, out);
    } else if (f.rule == NULL ? f.ndim > 0 : f.cut) {
        rs_pickle_text(out, "cat_dim");
        rs_pickle_int(out, f.rule != NULL ? f.rule->dim : 0);
        if (f.parts > 1) {
            rs_pickle_text(out, "param_n_sub_params");
            rs_pickle_int(out, f.parts);
        }
    }
    if (f.experts) {
        rs_pickle_text(out, "is_expert_param");
        rs_pickle_bool(out, true);
        rs_pickle_text(out, "ep_num_experts");
        rs_pickle_int(out, f.shape[0]);
    }
    if (f.vocabulary) {
        rs_pickle_text(out, "vocab_tensor");
        rs_pickle_bool(out, true);
    }
    return out->status;
}

/* ---- universal_checkpoint_info ---- */

typedef enum list_kind { REPLICATED, AVERAGED, HALVES, FUSED, ROWS, VOCABULARY, EXPERTS } list_kind;

static bool belongs(const form *f, list_kind kind)
{
    const rs_rule *rule = f->rule;
    bool halves = f->cut && !f->fused && f->parts == 2 && rule->dim == 0;
    bool rows = f->cut && !f->fused && f->parts == 1 && rule->dim == 1;
    switch (kind) {
    case REPLICATED:
        return rule != NULL && !f->cut && rule->kind != RS_RULE_AVERAGED;
    case AVERAGED:
        return rule != NULL && rule->kind == RS_RULE_AVERAGED;
    case HALVES:
        return halves;
    case FUSED:
        return f->cut && !halves && !rows && (f->fused || f->parts > 1 || rule->dim > 0);
    case ROWS:
        return rows;
    case VOCABULARY:
        return f->vocabulary;
    case EXPERTS:
        return f->experts;
    }
    return false;
}

/* Buffers and frozen parameters, which the model files hold whole for every rank. */
static bool is_whole(const rs_universal *u, const rs_logical *t)
{
    return u->tp > 1 && rs_names_find(&u->masters, t->name) < 0 &&
           (strcmp(t->role, "param") == 0 || strcmp(t->role, "buffer") == 0);
}

/* One list from the rules, name by name. */
static rs_status add_list(rs_universal *u, const char *key, list_kind kind, rs_bytes *out)
{
    rs_pickle_text(out, key);
    rs_pickle_list(out);
    for (size_t i = 0; i < u->w->tensors.count; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        form f = {0};
        bool yes = kind == REPLICATED && is_whole(u, t);
        if (strcmp(t->role, "master") == 0) {
            RS_TRY(find_form(u, t, &f));
            yes = belongs(&f, kind);
        }
        if (yes && kind == FUSED)
            add_fused(&f, t->name, false, out);
        else if (yes)
            add_pattern(t->name, out);
    }
    rs_pickle_list_end(out);
    return out->status;
}

static rs_status add_widths(rs_universal *u, rs_bytes *out)
{
    rs_pickle_text(out, "sub_param_shard_widths");
    rs_pickle_dict(out);
    for (size_t i = 0; i < u->w->tensors.count; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        const rs_rule *rule = NULL;
        if (strcmp(t->role, "master") == 0)
            RS_TRY(rs_universal_rule(u, t->name, &rule));
        if (rule == NULL || rule->widths == NULL || rule->ranks != u->tp)
            continue;
        add_pattern(t->name, out);
        rs_pickle_list(out);
        for (int j = 0; j < rule->parts; j++) {
            rs_pickle_list(out);
            for (int r = 0; r < rule->ranks; r++)
                rs_pickle_int(out, rule->widths[j * rule->ranks + r]);
            rs_pickle_list_end(out);
        }
        rs_pickle_list_end(out);
    }
    rs_pickle_dict_end(out);
    return RS_OK;
}

static rs_status add_made(rs_universal *u, rs_bytes *out)
{
    static const struct {
        const char *key;
        list_kind kind;
    } lists[] = {{"tp_replicated_parameter_patterns", REPLICATED},
        {"parameter_to_average_patterns", AVERAGED},
        {"parameter_with_2_sub_params_cat_dim_0", HALVES}, {"parameter_with_sub_params", FUSED},
        {"parameter_with_row_parallelism_patterns", ROWS},
        {"vocabulary_parameter_patterns", VOCABULARY}, {"expert_parameter_patterns", EXPERTS}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i].kind != EXPERTS || u->rules.experts.count > 0)
            RS_TRY(add_list(u, lists[i].key, lists[i].kind, out));
    for (size_t i = 0; i < u->w->tensors.count; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        bool yes = false;
        if (strcmp(t->role, "master") == 0)
            RS_TRY(is_vocabulary(u, t, &yes));
        if (!yes)
            continue;
        rs_pickle_text(out, "original_vocab_size");
        rs_pickle_int(out, t->shape[0]);
        break;
    }
    return strcmp(u->version, RS_UNIVERSAL_LONG) == 0 ? add_widths(u, out) : RS_OK;
}

/* A shape with parts in it, as tuples: DeepSpeed looks for these. */
static void add_shape(const json_t *shape, rs_bytes *out)
{
    json_t *size;
    size_t i;
    if (!json_is_array(shape)) {
        rs_pickle_json(out, shape);
        return;
    }
    rs_pickle_tuple(out);
    json_array_foreach(shape, i, size) add_shape(size, out);
    rs_pickle_tuple_end(out);
}

static void add_carried_fused(const json_t *list, rs_bytes *out)
{
    const char *key;
    json_t *fused, *value;
    size_t i;
    rs_pickle_list(out);
    json_array_foreach(list, i, fused)
    {
        rs_pickle_dict(out);
        json_object_foreach(fused, key, value)
        {
            rs_pickle_text(out, key);
            if (strcmp(key, "shape") == 0)
                add_shape(value, out);
            else
                rs_pickle_json(out, value);
        }
        rs_pickle_dict_end(out);
    }
    rs_pickle_list_end(out);
}

/* True for what is of the source's version or tensor-parallel ranks, and not of the target's. */
static bool is_of_source(const rs_universal *u, const char *key, const json_t *value)
{
    const json_t *rows = json_object_iter_value(json_object_iter((json_t *)value));
    if (strcmp(key, "universal_checkpoint_version") == 0 || strcmp(key, "affine_map") == 0)
        return true;
    return strcmp(key, "sub_param_shard_widths") == 0 &&
           (strcmp(u->version, RS_UNIVERSAL_LONG) != 0 ||
               json_array_size(json_array_get(rows, 0)) != (size_t)u->tp);
}

/* The source's own, with what is whole on every rank before its list of such names. */
static rs_status add_carried(rs_universal *u, const json_t *info, rs_bytes *out)
{
    static const char replicated[] = "tp_replicated_parameter_patterns";
    const json_t *list = json_object_get(info, replicated);
    const char *key;
    json_t *value;
    size_t i;
    json_object_foreach((json_t *)info, key, value)
    {
        if (is_of_source(u, key, value) || strcmp(key, replicated) == 0)
            continue;
        rs_pickle_text(out, key);
        if (strcmp(key, "parameter_with_sub_params") == 0 && json_is_array(value))
            add_carried_fused(value, out);
        else
            rs_pickle_json(out, value);
    }
    rs_pickle_text(out, replicated);
    rs_pickle_list(out);
    for (size_t k = 0; k < u->w->tensors.count; k++)
        if (is_whole(u, &u->w->tensors.items[k]))
            add_pattern(u->w->tensors.items[k].name, out);
    json_array_foreach(list, i, value) rs_pickle_json(out, value);
    rs_pickle_list_end(out);
    return RS_OK;
}

rs_status rs_universal_info(rs_universal *u, rs_bytes *out)
{
    const json_t *info = json_object_get(u->extras, "universal_checkpoint_info");
    rs_pickle_dict(out);
    rs_pickle_text(out, "universal_checkpoint_version");
    rs_pickle_real(out, strtod(u->version, NULL));
    if (json_is_object(info) && u->w->options->rules == NULL)
        RS_TRY(add_carried(u, info, out));
    else if (u->ruled)
        RS_TRY(add_made(u, out));
    rs_pickle_dict_end(out);
    return out->status;
}
