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
 * Version 0.2 cuts each part of a fused tensor evenly; 0.4 has widths for each rank
 * (sub_param_shard_widths).
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static bool is_cut(const rs_rule *rule, const rs_logical *t)
{
    return rule->kind == RS_RULE_SPLIT && rule->dim < t->ndim;
}

/* Parts of other sizes than even shares of the whole, or in a shape of their own. */
static bool is_fused(const rs_rule *rule)
{
    return rule->sizes != NULL || rule->widths != NULL || rule->view_ndim > 0;
}

/* The size of part `j` along the rule's dimension. */
static int64_t part_size(const rs_rule *rule, const rs_logical *t, int j)
{
    if (rule->widths != NULL) {
        int64_t sum = 0;
        for (int r = 0; r < rule->ranks; r++)
            sum += rule->widths[j * rule->ranks + r];
        return sum;
    }
    return rule->sizes != NULL ? rule->sizes[j] : t->shape[rule->dim] / rule->parts;
}

static rs_status check_parts(const rs_universal *u, const rs_rule *rule, const rs_logical *t)
{
    int64_t sum = 0;
    for (int j = 0; j < rule->parts; j++) {
        int64_t size = part_size(rule, t, j);
        sum += size;
        if (u->tp > 1 && size % u->tp != 0 &&
            (strcmp(u->version, RS_UNIVERSAL_LONG) != 0 || rule->ranks != u->tp))
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "\"%s\": its part %d of %lld cannot be shared evenly by %d tensor-parallel ranks%s",
                t->name, j, (long long)size, u->tp,
                rule->ranks == u->tp ? "; version 0.4 can say their widths" : "");
    }
    if (sum != t->shape[rule->dim])
        return rs_error_set(RS_ERR_MISMATCH,
            "\"%s\": the rules give it parts of together %lld along dimension %d, it has %lld",
            t->name, (long long)sum, rule->dim, (long long)t->shape[rule->dim]);
    return RS_OK;
}

/* (4, (2, 1, 1)): the tensor's shape with its parts. */
static void add_parts(const rs_rule *rule, const rs_logical *t, rs_bytes *out)
{
    rs_pickle_tuple(out);
    for (int d = 0; d < t->ndim; d++) {
        if (d != rule->dim) {
            rs_pickle_int(out, t->shape[d]);
            continue;
        }
        rs_pickle_tuple(out);
        for (int j = 0; j < rule->parts; j++)
            rs_pickle_int(out, part_size(rule, t, j));
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
static void add_fused(const rs_rule *rule, const rs_logical *t, bool instance, rs_bytes *out)
{
    if (instance) {
        rs_pickle_name(out, "deepspeed.checkpoint.universal_checkpoint", "SubparamShape");
        rs_bytes_append(out, ")\x81", 2);
    }
    rs_pickle_dict(out);
    rs_pickle_text(out, "patterns");
    rs_pickle_list(out);
    add_pattern(t->name, out);
    rs_pickle_list_end(out);
    rs_pickle_text(out, "shape");
    add_parts(rule, t, out);
    rs_pickle_text(out, "partition_dim");
    rs_pickle_int(out, rule->dim);
    rs_pickle_dict_end(out);
    if (instance)
        rs_pickle_build(out);
}

rs_status rs_universal_cut(rs_universal *u, const rs_logical *t, rs_bytes *out)
{
    const rs_rule *rule;
    bool vocabulary;
    RS_TRY(rs_universal_rule(u, t->name, &rule));
    RS_TRY(is_vocabulary(u, t, &vocabulary));
    if (rule != NULL && is_cut(rule, t) && is_fused(rule)) {
        RS_TRY(check_parts(u, rule, t));
        rs_pickle_text(out, "sub_param_shape");
        add_fused(rule, t, true, out);
    } else if (rule == NULL ? t->ndim > 0 : is_cut(rule, t)) {
        if (rule != NULL && rule->parts > 1)
            RS_TRY(check_parts(u, rule, t));
        rs_pickle_text(out, "cat_dim");
        rs_pickle_int(out, rule != NULL ? rule->dim : 0);
        if (rule != NULL && rule->parts > 1) {
            rs_pickle_text(out, "param_n_sub_params");
            rs_pickle_int(out, rule->parts);
        }
    }
    if (vocabulary) {
        rs_pickle_text(out, "vocab_tensor");
        rs_pickle_bool(out, true);
    }
    return out->status;
}

/* ---- universal_checkpoint_info ---- */

typedef enum list_kind { REPLICATED, AVERAGED, HALVES, FUSED, ROWS, VOCABULARY } list_kind;

/* True if the name belongs in that list. */
static rs_status belongs(rs_universal *u, const rs_logical *t, list_kind kind, bool *yes)
{
    const rs_rule *rule;
    RS_TRY(rs_universal_rule(u, t->name, &rule));
    bool cut = rule != NULL && is_cut(rule, t), fused = cut && is_fused(rule);
    bool halves = cut && !fused && rule->parts == 2 && rule->dim == 0;
    switch (kind) {
    case REPLICATED:
        *yes = rule != NULL && !cut && rule->kind != RS_RULE_AVERAGED;
        break;
    case AVERAGED:
        *yes = rule != NULL && rule->kind == RS_RULE_AVERAGED;
        break;
    case HALVES:
        *yes = halves;
        break;
    case FUSED:
        *yes = fused || (cut && rule->parts > 1 && !halves) || (cut && rule->dim > 1);
        break;
    case ROWS:
        *yes = cut && !fused && rule->parts == 1 && rule->dim == 1;
        break;
    case VOCABULARY:
        return is_vocabulary(u, t, yes);
    }
    return RS_OK;
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
        bool yes = kind == REPLICATED && is_whole(u, t);
        if (strcmp(t->role, "master") == 0)
            RS_TRY(belongs(u, t, kind, &yes));
        if (!yes)
            continue;
        const rs_rule *rule;
        RS_TRY(rs_universal_rule(u, t->name, &rule));
        if (kind == FUSED)
            add_fused(rule, t, false, out);
        else
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
        {"vocabulary_parameter_patterns", VOCABULARY}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
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
        if (strcmp(key, "universal_checkpoint_version") == 0 || strcmp(key, replicated) == 0 ||
            (strcmp(key, "sub_param_shard_widths") == 0 &&
                strcmp(u->version, RS_UNIVERSAL_LONG) != 0))
            continue;
        rs_pickle_text(out, key);
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
