/*
 * Rules files: JSON that says how tensors were cut, one rule an object, the first match counts.
 *
 *   {"rules": [
 *     {"match": "layers\\.\\d+\\.o\\.weight", "split": 1},
 *     {"match": ".*gate_up", "split": 0, "parts": 2},
 *     {"match": ".*qkv", "split": 0, "parts": [4096, 1024, 1024]},
 *     {"match": ".*qkv_few", "split": 0, "parts": [4096, 256, 256], "groups": 2, "shared": [1, 2]},
 *     {"match": ".*norm", "replicated": true},
 *     {"match": ".*router", "averaged": true},
 *     {"match": ".*embed", "split": 0, "vocabulary": 50257},
 *     {"match": "lm_head\\.weight", "tied": "embed.weight"}],
 *    "otherwise": {"split": 0}}
 *
 * DeepSpeed's lists (universal_checkpoint_info as JSON) may stand in the same object, or alone.
 *
 * Specification: docs/formats/rules.md.
 */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "ckpt/file.h"
#include "ckpt/pickle.h"
#include "ckpt/rules_build.h"

#define FILE_MOST ((size_t)8 << 20)
#define DEPTH_MOST 16
#define GROUPS_MOST 65536

typedef struct rules_file {
    rs_rules *rules;
    const char *path;
    size_t number; /* of the rule being read, from 1 on */
} rules_file;

static rs_status bad(const rules_file *f, const char *what)
{
    return rs_error_set(RS_ERR_ARGUMENT, "%s: rule %zu: %s", f->path, f->number, what);
}

static rs_status read_parts(rules_file *f, const json_t *parts, rs_rule *rule)
{
    rule->parts = 1;
    if (parts == NULL)
        return RS_OK;
    if (json_is_integer(parts)) {
        json_int_t count = json_integer_value(parts);
        if (count < 1 || count > 4096)
            return bad(f, "\"parts\" must be from 1 to 4096, or a list of sizes");
        rule->parts = (int)count;
        return RS_OK;
    }
    size_t count = json_array_size(parts);
    void *memory;
    if (count == 0 || count > 4096)
        return bad(f, "\"parts\" must be a number, or a list of up to 4096 sizes");
    RS_TRY(rs_pool_take(&f->rules->pool, count * sizeof(int64_t), &memory));
    int64_t *sizes = memory;
    for (size_t i = 0; i < count; i++) {
        const json_t *size = json_array_get(parts, i);
        sizes[i] = json_integer_value(size);
        if (!json_is_integer(size) || sizes[i] < 0)
            return bad(f, "a size in \"parts\" is no whole number");
    }
    rule->parts = (int)count;
    rule->sizes = sizes;
    return RS_OK;
}

/* Which parts are shared, and into how many groups all are dealt. */
static rs_status read_shared(rules_file *f, json_t *object, rs_rule *rule)
{
    const json_t *shared = json_object_get(object, "shared");
    const json_t *groups = json_object_get(object, "groups");
    int64_t whole = 0, others = 0;
    void *memory;
    if (shared == NULL && groups == NULL)
        return RS_OK;
    if (shared == NULL)
        return bad(f, "\"groups\" needs \"shared\"; without it \"parts\" can list those of "
                      "every group");
    if (rule->sizes == NULL || json_array_size(shared) == 0)
        return bad(f, "\"shared\" must be a list of numbers of \"parts\" (from 0 on), which must "
                      "be a list of sizes");
    rule->groups = groups != NULL ? json_integer_value(groups) : 1;
    rule->equal = true;
    RS_TRY(rs_pool_take(&f->rules->pool, (size_t)rule->parts * sizeof(bool), &memory));
    bool *is = memory;
    memset(is, 0, (size_t)rule->parts * sizeof(bool));
    for (size_t i = 0; i < json_array_size(shared); i++) {
        json_int_t part = json_integer_value(json_array_get(shared, i));
        if (!json_is_integer(json_array_get(shared, i)) || part < 0 || part >= rule->parts)
            return bad(f, "\"shared\" has what is no number of a part (from 0 on)");
        is[part] = true;
    }
    for (int j = 0; j < rule->parts; j++) {
        if (rule->groups < 1 || rule->groups > GROUPS_MOST || rule->sizes[j] % rule->groups != 0)
            return bad(f, "\"groups\" must be a number that divides the size of every part");
        if (!rs_add_fits(whole, rule->sizes[j], &whole))
            return bad(f, "the sizes of \"parts\" overflow");
        others += is[j] ? 0 : rule->sizes[j];
    }
    if (others == 0)
        return bad(f, "\"shared\" has all parts: this is \"replicated\"");
    rule->shared = is;
    return RS_OK;
}

static rs_status check_keys(rules_file *f, json_t *object)
{
    static const char *const known[] = {"match", "split", "parts", "groups", "shared", "replicated",
        "equal", "averaged", "vocabulary", "experts", "tied", "comment"};
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found = found || strcmp(known[i], key) == 0;
        if (!found)
            return rs_error_set(
                RS_ERR_ARGUMENT, "%s: rule %zu: unknown key \"%s\"", f->path, f->number, key);
    }
    return RS_OK;
}

/* One rule; `match` is NULL for "otherwise". */
static rs_status read_rule(rules_file *f, json_t *object, const char *match)
{
    const json_t *split = json_object_get(object, "split");
    const json_t *vocabulary = json_object_get(object, "vocabulary");
    const char *tied = json_string_value(json_object_get(object, "tied"));
    rs_rule rule = {0};
    RS_TRY(check_keys(f, object));
    if (json_object_get(object, "equal") != NULL && json_object_get(object, "replicated") == NULL)
        return bad(f, "\"equal\" is of what is \"replicated\"; what is \"shared\" must be equal");
    if (tied != NULL)
        return match != NULL ? rs_rules_add_tie(f->rules, match, tied)
                             : bad(f, "\"tied\" needs \"match\"");
    if (vocabulary != NULL) {
        if (match == NULL || !json_is_integer(vocabulary) || json_integer_value(vocabulary) < 1)
            return bad(f, "\"vocabulary\" must be the true number of rows, beside \"match\"");
        RS_TRY(rs_rules_add_vocabulary(f->rules, match, json_integer_value(vocabulary)));
    }
    bool experts = json_is_true(json_object_get(object, "experts"));
    if (experts && match == NULL)
        return bad(f, "\"experts\" needs \"match\"");
    if (experts)
        RS_TRY(rs_rules_add_experts(f->rules, match));
    if (json_is_true(json_object_get(object, "replicated"))) {
        rule.kind = RS_RULE_REPLICATED;
        rule.equal = json_is_true(json_object_get(object, "equal"));
    } else if (json_is_true(json_object_get(object, "averaged"))) {
        rule.kind = RS_RULE_AVERAGED;
    } else if (json_is_integer(split) && json_integer_value(split) >= 0 &&
               json_integer_value(split) < RS_MAX_DIMS) {
        rule.kind = RS_RULE_SPLIT;
        rule.dim = (int)json_integer_value(split);
        RS_TRY(read_parts(f, json_object_get(object, "parts"), &rule));
        RS_TRY(read_shared(f, object, &rule));
    } else if ((vocabulary != NULL || experts) && split == NULL) {
        return RS_OK;
    } else {
        return bad(f, "one of \"split\" (a dimension), \"replicated\", \"averaged\", \"tied\" or "
                      "\"vocabulary\" is wanted");
    }
    return rs_rules_add(f->rules, match, rule);
}

/* JSON as a value, for the reader of DeepSpeed's dict. */
static rs_status to_value(rs_pickle *pool, const json_t *json, int depth, rs_value **out)
{
    const char *key;
    json_t *item;
    if (depth > DEPTH_MOST)
        return rs_error_set(RS_ERR_ARGUMENT, "it nests more than %d deep", DEPTH_MOST);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        RS_TRY(rs_pickle_value(pool, RS_VALUE_DICT, out));
        json_object_foreach((json_t *)(uintptr_t)json, key, item)
        {
            rs_value *name, *value;
            RS_TRY(rs_pickle_value(pool, RS_VALUE_TEXT, &name));
            name->count = (uint32_t)strlen(key);
            name->as.text = key;
            RS_TRY(to_value(pool, item, depth + 1, &value));
            RS_TRY(rs_pickle_set(pool, *out, name, value));
        }
        return RS_OK;
    case JSON_ARRAY:
        RS_TRY(rs_pickle_value(pool, RS_VALUE_LIST, out));
        for (size_t i = 0; i < json_array_size(json); i++) {
            rs_value *value;
            RS_TRY(to_value(pool, json_array_get(json, i), depth + 1, &value));
            RS_TRY(rs_pickle_append(pool, *out, value));
        }
        return RS_OK;
    case JSON_STRING:
        RS_TRY(rs_pickle_value(pool, RS_VALUE_TEXT, out));
        (*out)->count = (uint32_t)json_string_length(json);
        (*out)->as.text = json_string_value(json);
        return RS_OK;
    case JSON_INTEGER:
        RS_TRY(rs_pickle_value(pool, RS_VALUE_INT, out));
        (*out)->as.integer = json_integer_value(json);
        return RS_OK;
    case JSON_REAL:
        RS_TRY(rs_pickle_value(pool, RS_VALUE_FLOAT, out));
        (*out)->as.real = json_real_value(json);
        return RS_OK;
    default:
        return rs_pickle_value(pool, RS_VALUE_NONE, out);
    }
}

static bool has_lists(json_t *root)
{
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) if (strstr(key, "_patterns") != NULL ||
                                              strncmp(key, "parameter_with_", 15) == 0) return true;
    return false;
}

rs_status rs_rules_add_json(rs_rules *rules, const json_t *info)
{
    rs_pickle pool = {.pool.limit = RS_PICKLE_POOL};
    rs_value *value = NULL;
    rs_status status = to_value(&pool, info, 0, &value);
    if (status == RS_OK)
        status = rs_rules_add_info(rules, value);
    rs_pickle_fini(&pool);
    return status;
}

static rs_status read_root(rules_file *f, json_t *root)
{
    json_t *list = json_object_get(root, "rules");
    json_t *otherwise = json_object_get(root, "otherwise");
    json_t *info = json_object_get(root, "universal_checkpoint_info");
    if (!json_is_object(root) || (list != NULL && !json_is_array(list)))
        return rs_error_set(
            RS_ERR_ARGUMENT, "%s: an object with a list \"rules\" is wanted", f->path);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *object = json_array_get(list, i);
        const char *match = json_string_value(json_object_get(object, "match"));
        f->number = i + 1;
        if (match == NULL)
            return bad(f, "\"match\" is missing");
        rs_status status = read_rule(f, object, match);
        if (status != RS_OK)
            return rs_error_context(status, "%s: rule %zu", f->path, f->number);
    }
    f->number = json_array_size(list) + 1;
    if (otherwise != NULL)
        RS_TRY(read_rule(f, otherwise, NULL));
    if (info == NULL && has_lists(root))
        info = root;
    if (info == NULL && list == NULL && otherwise == NULL)
        return rs_error_set(RS_ERR_ARGUMENT, "%s: has no rules", f->path);
    if (info == NULL)
        return RS_OK;
    rs_status status = rs_rules_add_json(f->rules, info);
    return status == RS_OK ? RS_OK : rs_error_context(status, "%s", f->path);
}

rs_status rs_rules_add_file(rs_rules *rules, const char *path)
{
    char *text = NULL;
    size_t length = 0;
    json_error_t error;
    rules_file f = {.rules = rules, .path = path};
    RS_TRY(rs_file_text(path, FILE_MOST, &text, &length));
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (root == NULL)
        return rs_error_set(RS_ERR_ARGUMENT, "%s: line %d: %s", path, error.line, error.text);
    rs_status status = read_root(&f, root);
    json_decref(root);
    return status;
}
