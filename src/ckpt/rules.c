/*
 * Rules out of universal_checkpoint_info, and looking them up.
 *
 * DeepSpeed's dict has one list of patterns for each kind of cut. They become rules in the order in
 * which its converter tries them: replicated, averaged, two parts, several parts, rows (dimension
 * 1), and at the end the cut along dimension 0 that it takes for every name in no list. Where the
 * dict is absent there is no such last rule: then nothing says how a tensor was cut.
 *
 * A fused tensor's `shape` gives, at `partition_dim`, the sizes of its parts as a tuple; versions
 * before 0.4 also wrote a bare number there, which is the number of equal parts.
 *
 * Specification: docs/formats/rules.md, docs/formats/deepspeed-universal.md.
 */
#include "ckpt/rules.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/rules_build.h"

#define RULES_MOST 100000

void rs_rules_fini(rs_rules *rules)
{
    for (size_t i = 0; i < rules->cuts.count; i++)
        rs_pattern_destroy(rules->cuts.items[i].pattern);
    for (size_t i = 0; i < rules->vocabularies.count; i++)
        rs_pattern_destroy(rules->vocabularies.items[i].pattern);
    for (size_t i = 0; i < rules->ties.count; i++)
        rs_pattern_destroy(rules->ties.items[i].pattern);
    for (size_t i = 0; i < rules->pipeline_replicated.count; i++)
        rs_pattern_destroy(rules->pipeline_replicated.items[i]);
    for (size_t i = 0; i < rules->experts.count; i++)
        rs_pattern_destroy(rules->experts.items[i]);
    free(rules->experts.items);
    free(rules->cuts.items);
    free(rules->vocabularies.items);
    free(rules->ties.items);
    free(rules->pipeline_replicated.items);
    rs_pool_fini(&rules->pool);
    memset(rules, 0, sizeof *rules);
}

rs_status rs_rules_add(rs_rules *rules, const char *pattern, rs_rule rule)
{
    if (rules->cuts.count >= RULES_MOST)
        return rs_error_set(RS_ERR_BUDGET, "more than %d rules", RULES_MOST);
    RS_TRY(RS_LIST_RESERVE_ONE(&rules->cuts));
    rule.pattern = NULL;
    if (pattern != NULL)
        RS_TRY(rs_pattern_create(pattern, &rule.pattern));
    rules->cuts.items[rules->cuts.count++] = rule;
    return RS_OK;
}

rs_status rs_rules_add_vocabulary(rs_rules *rules, const char *pattern, int64_t rows)
{
    rs_vocabulary vocabulary = {.rows = rows};
    RS_TRY(RS_LIST_RESERVE_ONE(&rules->vocabularies));
    RS_TRY(rs_pattern_create(pattern, &vocabulary.pattern));
    rules->vocabularies.items[rules->vocabularies.count++] = vocabulary;
    return RS_OK;
}

rs_status rs_rules_add_pipeline(rs_rules *rules, const char *pattern)
{
    rs_pattern *compiled;
    RS_TRY(RS_LIST_RESERVE_ONE(&rules->pipeline_replicated));
    RS_TRY(rs_pattern_create(pattern, &compiled));
    rules->pipeline_replicated.items[rules->pipeline_replicated.count++] = compiled;
    return RS_OK;
}

rs_status rs_rules_add_experts(rs_rules *rules, const char *pattern)
{
    rs_pattern *compiled;
    RS_TRY(RS_LIST_RESERVE_ONE(&rules->experts));
    RS_TRY(rs_pattern_create(pattern, &compiled));
    rules->experts.items[rules->experts.count++] = compiled;
    return RS_OK;
}

rs_status rs_rules_add_tie(rs_rules *rules, const char *pattern, const char *target)
{
    rs_tie tie = {0};
    RS_TRY(RS_LIST_RESERVE_ONE(&rules->ties));
    RS_TRY(rs_pool_text(&rules->pool, target, strlen(target), &tie.target));
    RS_TRY(rs_pattern_create(pattern, &tie.pattern));
    rules->ties.items[rules->ties.count++] = tie;
    return RS_OK;
}

static rs_status malformed(const char *key)
{
    return rs_error_set(
        RS_ERR_MALFORMED, "universal_checkpoint_info: \"%s\" is not understood", key);
}

/* Calls for every pattern of the list under `key`; an absent list is empty. */
static rs_status for_patterns(rs_rules *rules, const rs_value *info, const char *key,
    rs_status (*add)(rs_rules *, const char *, void *), void *context)
{
    const rs_value *list = rs_value_get(info, key);
    if (list == NULL || list->kind == RS_VALUE_NONE)
        return RS_OK;
    if (!rs_value_is_sequence(list))
        return malformed(key);
    for (uint32_t i = 0; i < list->count; i++) {
        const char *pattern = rs_value_string(list->as.items[i]);
        if (pattern == NULL)
            return malformed(key);
        RS_TRY(add(rules, pattern, context));
    }
    return RS_OK;
}

static rs_status add_cut(rs_rules *rules, const char *pattern, void *context)
{
    return rs_rules_add(rules, pattern, *(rs_rule *)context);
}

static rs_status add_vocabulary(rs_rules *rules, const char *pattern, void *context)
{
    return rs_rules_add_vocabulary(rules, pattern, *(int64_t *)context);
}

static rs_status add_pipeline(rs_rules *rules, const char *pattern, void *context)
{
    (void)context;
    return rs_rules_add_pipeline(rules, pattern);
}

/* DeepSpeed writes "\\.experts\\.w[123]$" from one place, and the same behind ".*" from another:
 * both are meant anywhere in a name. */
static rs_status add_experts(rs_rules *rules, const char *pattern, void *context)
{
    rs_text anywhere = {0};
    (void)context;
    rs_text_append(&anywhere, ".*(?:%s)", pattern);
    rs_status status = anywhere.status;
    if (status == RS_OK)
        status = rs_rules_add_experts(rules, anywhere.data);
    rs_text_fini(&anywhere);
    return status;
}

/* The exact widths that version 0.4 gives for `pattern`: [part][rank]. */
static rs_status read_widths(
    rs_rules *rules, const rs_value *info, const rs_value *pattern, rs_rule *rule)
{
    static const char key[] = "sub_param_shard_widths";
    const rs_value *all = rs_value_get(info, key);
    const rs_value *rows = all != NULL && rs_value_string(pattern) != NULL
                               ? rs_value_get(all, rs_value_string(pattern))
                               : NULL;
    if (rows == NULL || rows->kind == RS_VALUE_NONE)
        return RS_OK;
    if (!rs_value_is_sequence(rows) || rows->count == 0 || !rs_value_is_sequence(rows->as.items[0]))
        return malformed(key);
    uint32_t ranks = rows->as.items[0]->count;
    void *memory;
    if (ranks == 0 || ranks > 65536 || rows->count > 4096)
        return malformed(key);
    RS_TRY(rs_pool_take(&rules->pool, (size_t)rows->count * ranks * sizeof(int64_t), &memory));
    int64_t *widths = memory;
    for (uint32_t j = 0; j < rows->count; j++) {
        const rs_value *row = rows->as.items[j];
        if (!rs_value_is_sequence(row) || row->count != ranks)
            return malformed(key);
        for (uint32_t r = 0; r < ranks; r++)
            if (!rs_value_integer(row->as.items[r], &widths[j * ranks + r]) ||
                widths[j * ranks + r] < 0)
                return malformed(key);
    }
    rule->parts = (int)rows->count;
    rule->ranks = (int)ranks;
    rule->widths = widths;
    return RS_OK;
}

/* One fused shape: {patterns, shape, partition_dim}, as a dict or as DeepSpeed's SubparamShape. */
static const rs_value *member(const rs_value *fused, const char *name)
{
    return rs_value_is(fused, RS_VALUE_DICT) ? rs_value_get(fused, name)
                                             : rs_value_attribute(fused, name);
}

static rs_status read_shape(rs_rules *rules, const rs_value *shape, int64_t dim, rs_rule *rule)
{
    if (!rs_value_is_sequence(shape) || shape->count == 0 || shape->count > RS_MAX_DIMS ||
        dim < 0 || dim >= shape->count)
        return malformed("parameter_with_sub_params");
    *rule = (rs_rule){
        .kind = RS_RULE_SPLIT, .dim = (int)dim, .parts = 1, .view_ndim = (int)shape->count};
    for (uint32_t d = 0; d < shape->count; d++) {
        const rs_value *size = shape->as.items[d];
        if (d != (uint32_t)dim) {
            if (!rs_value_integer(size, &rule->view[d]) || rule->view[d] < -1)
                return malformed("parameter_with_sub_params");
            continue;
        }
        int64_t parts;
        if (rs_value_integer(size, &parts)) {
            if (parts < 1 || parts > INT32_MAX)
                return malformed("parameter_with_sub_params");
            rule->parts = (int)parts;
            rule->bare = true;
            continue;
        }
        void *memory;
        if (!rs_value_is_sequence(size) || size->count == 0 || size->count > 4096)
            return malformed("parameter_with_sub_params");
        RS_TRY(rs_pool_take(&rules->pool, size->count * sizeof(int64_t), &memory));
        int64_t *sizes = memory;
        for (uint32_t j = 0; j < size->count; j++)
            if (!rs_value_integer(size->as.items[j], &sizes[j]) || sizes[j] < 0)
                return malformed("parameter_with_sub_params");
        rule->parts = (int)size->count;
        rule->sizes = sizes;
    }
    if (rule->bare)
        rule->view_ndim = 0; /* a number of parts says nothing about the shape */
    return RS_OK;
}

static rs_status add_fused(rs_rules *rules, const rs_value *info)
{
    static const char key[] = "parameter_with_sub_params";
    const rs_value *list = rs_value_get(info, key);
    if (list == NULL || list->kind == RS_VALUE_NONE)
        return RS_OK;
    if (!rs_value_is_sequence(list))
        return malformed(key);
    for (uint32_t i = 0; i < list->count; i++) {
        const rs_value *patterns = member(list->as.items[i], "patterns");
        int64_t dim;
        if (!rs_value_is_sequence(patterns) ||
            !rs_value_integer(member(list->as.items[i], "partition_dim"), &dim))
            return malformed(key);
        for (uint32_t k = 0; k < patterns->count; k++) {
            rs_rule rule;
            const char *pattern = rs_value_string(patterns->as.items[k]);
            if (pattern == NULL)
                return malformed(key);
            RS_TRY(read_shape(rules, member(list->as.items[i], "shape"), dim, &rule));
            RS_TRY(read_widths(rules, info, patterns->as.items[k], &rule));
            RS_TRY(rs_rules_add(rules, pattern, rule));
        }
    }
    return RS_OK;
}

rs_status rs_rules_add_info(rs_rules *rules, const rs_value *info)
{
    static const rs_rule replicated = {.kind = RS_RULE_REPLICATED},
                         averaged = {.kind = RS_RULE_AVERAGED},
                         two = {.kind = RS_RULE_SPLIT, .dim = 0, .parts = 2},
                         rows = {.kind = RS_RULE_SPLIT, .dim = 1, .parts = 1},
                         rest = {.kind = RS_RULE_SPLIT, .dim = 0, .parts = 1};
    if (!rs_value_is(info, RS_VALUE_DICT))
        return malformed("the dict itself");
    const rs_value *refused = rs_value_get(info, "autotp_unsupported_parameter_patterns");
    if (rs_value_is(refused, RS_VALUE_DICT) && refused->count > 0) {
        rs_text name = {0};
        rs_value_append_repr(&name, refused->as.dict->pairs[0]);
        rs_status status = rs_error_set(RS_ERR_UNSUPPORTED,
            "universal_checkpoint_info says itself that the cut of %.200s is not described",
            name.data != NULL ? name.data : "a tensor");
        rs_text_fini(&name);
        return status;
    }
    int64_t vocabulary = 0;
    rs_value_integer(rs_value_get(info, "original_vocab_size"), &vocabulary);
    rs_rule rule = replicated;
    RS_TRY(for_patterns(rules, info, "tp_replicated_parameter_patterns", add_cut, &rule));
    rule = averaged;
    RS_TRY(for_patterns(rules, info, "parameter_to_average_patterns", add_cut, &rule));
    rule = two;
    RS_TRY(for_patterns(rules, info, "parameter_with_2_sub_params_cat_dim_0", add_cut, &rule));
    RS_TRY(add_fused(rules, info));
    rule = rows;
    RS_TRY(for_patterns(rules, info, "parameter_with_row_parallelism_patterns", add_cut, &rule));
    RS_TRY(rs_rules_add(rules, NULL, rest));
    RS_TRY(for_patterns(rules, info, "vocabulary_parameter_patterns", add_vocabulary, &vocabulary));
    RS_TRY(for_patterns(rules, info, "expert_parameter_patterns", add_experts, NULL));
    return for_patterns(rules, info, "pipeline_replicated_parameter_patterns", add_pipeline, NULL);
}

rs_status rs_rules_find(rs_rules *rules, const char *name, const rs_rule **out)
{
    *out = NULL;
    for (size_t i = 0; i < rules->cuts.count && *out == NULL; i++) {
        rs_rule *rule = &rules->cuts.items[i];
        bool matches = rule->pattern == NULL;
        if (!matches)
            RS_TRY(rs_pattern_match(rule->pattern, name, &matches));
        if (matches) {
            rule->used = true;
            *out = rule;
        }
    }
    return RS_OK;
}

rs_status rs_rules_vocabulary(rs_rules *rules, const char *name, const rs_vocabulary **out)
{
    *out = NULL;
    for (size_t i = 0; i < rules->vocabularies.count && *out == NULL; i++) {
        bool matches;
        RS_TRY(rs_pattern_match(rules->vocabularies.items[i].pattern, name, &matches));
        if (matches) {
            rules->vocabularies.items[i].used = true;
            *out = &rules->vocabularies.items[i];
        }
    }
    return RS_OK;
}

rs_status rs_rules_experts(const rs_rules *rules, const char *name, bool *out)
{
    *out = false;
    for (size_t i = 0; i < rules->experts.count && !*out; i++)
        RS_TRY(rs_pattern_match(rules->experts.items[i], name, out));
    return RS_OK;
}

rs_status rs_rules_tie(const rs_rules *rules, const char *name, const char **out)
{
    *out = NULL;
    for (size_t i = 0; i < rules->ties.count && *out == NULL; i++) {
        bool matches;
        RS_TRY(rs_pattern_match(rules->ties.items[i].pattern, name, &matches));
        if (matches)
            *out = rules->ties.items[i].target;
    }
    return RS_OK;
}
