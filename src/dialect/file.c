/*
 * Reading dialects: JSON into rules. Specification: docs/formats/dialect.md.
 *
 * The texts of a rule stay where the JSON has them; a name's pattern becomes tokens once, so that
 * looking a name up compares and nothing else. Everything is checked here but what depends on the
 * tensors of a space. Unknown keys are errors: a misspelt condition would else be none.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "dialect/builtin.h"
#include "dialect/rule.h"

#define FILE_MOST (4L << 20)
#define RULES_MOST 10000
#define PLUS_MOST 1000000000

typedef struct reading {
    const char *label;
    const char *where; /* the name of the rule at hand, or NULL */
} reading;

static rs_status bad(const reading *r, const char *what)
{
    return rs_error_set(RS_ERR_MALFORMED, "%s: %s%s%s%s", r->label,
        r->where != NULL ? "rule \"" : "", r->where != NULL ? r->where : "",
        r->where != NULL ? "\": " : "", what);
}

/* ---- patterns ---- */

/* Reads "d", "d+n" or "fact+n" between braces. */
static rs_status read_braces(const reading *r, const char *text, size_t length, token *out)
{
    size_t name = 0;
    while (name < length && text[name] != '+')
        name++;
    out->kind = TOKEN_ANY;
    if (length == 0)
        return RS_OK;
    if (name < length) {
        char *end;
        errno = 0;
        long long plus = strtoll(text + name + 1, &end, 10);
        if (!isdigit((unsigned char)text[name + 1]) || end != text + length || errno != 0 ||
            plus > PLUS_MOST)
            return bad(r, "behind \"+\" in braces a number is wanted");
        out->plus = plus;
    }
    if (name == 1 && isdigit((unsigned char)text[0])) {
        out->kind = TOKEN_INDEX;
        out->dim = text[0] - '0';
        return out->dim < RS_MAX_DIMS ? RS_OK
                                      : bad(r, "in braces a dimension from 0 to 7 is wanted");
    }
    for (size_t i = 0; i < name; i++)
        if (!islower((unsigned char)text[i]) && text[i] != '_')
            name = 0;
    if (name == 0)
        return bad(r, "in braces nothing, the number of a dimension, or a fact is wanted");
    out->kind = TOKEN_FACT;
    out->text = text;
    out->length = name;
    return RS_OK;
}

/* A number ends where no digit follows; so none may, wherever optional text is left out. */
static rs_status check_numbers(const reading *r, const pattern *p)
{
    for (size_t i = 0; i < p->count; i++) {
        bool number = p->tokens[i].kind >= TOKEN_INDEX, open = number;
        for (size_t k = i + 1; k < p->count && open; k++) {
            const token *next = &p->tokens[k];
            if (next->kind >= TOKEN_INDEX || isdigit((unsigned char)next->text[0]))
                return bad(r, "a digit stands behind a number, which then has no end");
            open = next->kind == TOKEN_OPTIONAL;
        }
    }
    return RS_OK;
}

static rs_status read_pattern(const reading *r, const char *text, pattern *out)
{
    size_t most = strlen(text) + 1;
    if (most > RS_TOKENS_MOST)
        most = RS_TOKENS_MOST;
    bool told[RS_MAX_DIMS] = {false};
    out->text = text;
    out->tokens = rs_calloc(most, sizeof *out->tokens);
    if (out->tokens == NULL)
        return rs_error_memory(most * sizeof *out->tokens);
    if (text[0] == '\0')
        return bad(r, "its name is empty");
    while (*text != '\0') {
        if (out->count == most)
            return bad(r, "its name has too many parts");
        token *t = &out->tokens[out->count++];
        size_t length = strcspn(text, "{[");
        if (length > 0) {
            *t = (token){.kind = TOKEN_TEXT, .text = text, .length = length};
            text += length;
            continue;
        }
        const char *end = strchr(text, *text == '{' ? '}' : ']');
        if (end == NULL)
            return bad(r, "a brace or bracket is not closed");
        length = (size_t)(end - text - 1);
        if (*text == '[') {
            *t = (token){.kind = TOKEN_OPTIONAL, .text = text + 1, .length = length};
            if (length == 0 || memchr(text + 1, '{', length) != NULL)
                return bad(r, "in brackets plain text is wanted");
        } else {
            RS_TRY(read_braces(r, text + 1, length, t));
            if (t->kind == TOKEN_INDEX && told[t->dim])
                return bad(r, "a dimension stands in it twice");
            if (t->kind == TOKEN_INDEX)
                told[t->dim] = true;
        }
        text = end + 1;
    }
    return check_numbers(r, out);
}

/* ---- rules ---- */

static rs_status check_keys(const reading *r, json_t *object, const char *const *known)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        bool found = false;
        for (size_t i = 0; known[i] != NULL; i++)
            found = found || strcmp(known[i], key) == 0;
        if (!found) {
            char text[200];
            snprintf(text, sizeof text, "unknown key \"%.100s\"", key);
            return bad(r, text);
        }
    }
    return RS_OK;
}

static rs_status read_parts(const reading *r, const json_t *object, rule *out)
{
    const json_t *of = json_object_get(object, "of");
    bool list = json_is_array(of);
    out->part_count = list ? json_array_size(of) : 1;
    if (out->part_count == 0 || out->part_count > RS_PARTS_MOST)
        return bad(r, "\"of\" has no tensors, or too many");
    out->parts = rs_calloc(out->part_count, sizeof *out->parts);
    if (out->parts == NULL)
        return rs_error_memory(out->part_count * sizeof *out->parts);
    for (size_t i = 0; i < out->part_count; i++) {
        const json_t *part = list ? json_array_get(of, i) : of;
        out->parts[i] = json_string_value(part);
        if (json_string_length(part) == 0)
            return bad(r, "\"of\" must be the name of a canonical tensor, or a list of them");
        for (size_t k = 0; k < i; k++)
            if (strcmp(out->parts[k], out->parts[i]) == 0)
                return bad(r, "\"of\" has a tensor twice");
    }
    return RS_OK;
}

static rs_status read_order(const reading *r, const json_t *object, rule *out)
{
    const json_t *order = json_object_get(object, "order");
    const json_t *transposed = json_object_get(object, "transposed");
    bool seen[RS_MAX_DIMS] = {false};
    out->reversed = json_is_true(transposed);
    if ((transposed != NULL && !json_is_boolean(transposed)) || (order != NULL && out->reversed))
        return bad(r, "\"transposed\" must be true or false, without \"order\"");
    if (order == NULL)
        return RS_OK;
    size_t count = json_array_size(order);
    if (count == 0 || count > RS_MAX_DIMS)
        return bad(r, "\"order\" must be a list of dimensions");
    for (size_t d = 0; d < count; d++) {
        const json_t *item = json_array_get(order, d);
        json_int_t of = json_integer_value(item);
        if (!json_is_integer(item) || of < 0 || of >= (json_int_t)count || seen[of])
            return bad(r, "\"order\" must have each of 0, 1, ... once");
        seen[of] = true;
        out->order[d] = (int)of;
    }
    out->order_count = (int)count;
    return RS_OK;
}

static rs_status read_groups(const reading *r, const json_t *object, rule *out)
{
    const json_t *along = json_object_get(object, "along");
    const json_t *groups = json_object_get(object, "groups");
    if (along != NULL && (!json_is_integer(along) || json_integer_value(along) < 0 ||
                             json_integer_value(along) >= RS_MAX_DIMS))
        return bad(r, "\"along\" must be a dimension");
    out->along = (int)json_integer_value(along);
    out->groups = 1;
    if (groups == NULL)
        return RS_OK;
    out->groups_fact = json_string_value(groups);
    out->groups = json_integer_value(groups);
    if (out->groups_fact == NULL && (out->groups < 1 || out->groups > PLUS_MOST))
        return bad(r, "\"groups\" must be a number from 1 on, or the name of a fact");
    return RS_OK;
}

static rs_status read_conditions(const reading *r, json_t *object, rule *out)
{
    json_t *when = json_object_get(object, "when"), *value;
    const char *key;
    if (when == NULL)
        return RS_OK;
    if (!json_is_object(when) || json_object_size(when) == 0)
        return bad(r, "\"when\" must be an object of facts");
    out->conditions = rs_calloc(json_object_size(when), sizeof *out->conditions);
    if (out->conditions == NULL)
        return rs_error_memory(sizeof *out->conditions);
    json_object_foreach(when, key, value)
    {
        bool good = json_is_string(value) || json_array_size(value) > 0;
        for (size_t i = 0; i < json_array_size(value); i++)
            good = good && json_is_string(json_array_get(value, i));
        if (!good)
            return bad(r, "a fact in \"when\" must be a text, or a list of texts");
        out->conditions[out->condition_count++] = (condition){key, value};
    }
    return RS_OK;
}

static rs_status read_rule(reading *r, json_t *object, rule *out)
{
    static const char *const known[] = {
        "name", "of", "along", "groups", "order", "transposed", "when", "alias", "comment", NULL};
    const char *name = json_string_value(json_object_get(object, "name"));
    const json_t *alias = json_object_get(object, "alias");
    if (name == NULL)
        return bad(r, "a rule has no \"name\"");
    r->where = name;
    RS_TRY(check_keys(r, object, known));
    out->tied = json_is_string(alias) && strcmp(json_string_value(alias), "tied") == 0;
    if (alias != NULL && !json_is_boolean(alias) && !out->tied)
        return bad(r, "\"alias\" must be true, false or \"tied\"");
    out->alias = out->tied || json_is_true(alias);
    RS_TRY(read_parts(r, object, out));
    RS_TRY(read_order(r, object, out));
    RS_TRY(read_groups(r, object, out));
    RS_TRY(read_conditions(r, object, out));
    out->identity = strcmp(name, "*") == 0;
    if (out->identity && (out->part_count > 1 || strcmp(out->parts[0], "*") != 0))
        return bad(r, "the name * stands for every tensor under its own: \"of\" must be \"*\"");
    return read_pattern(r, name, &out->name);
}

static rs_status read_ignored(reading *r, const json_t *list, rs_dialect *dialect)
{
    size_t count = json_array_size(list);
    if (list != NULL && (!json_is_array(list) || count > RULES_MOST))
        return bad(r, "\"ignored\" must be a list of names");
    dialect->ignored = rs_calloc(count, sizeof *dialect->ignored);
    if (dialect->ignored == NULL)
        return rs_error_memory(count * sizeof *dialect->ignored);
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        if (name == NULL)
            return bad(r, "\"ignored\" must be a list of names");
        r->where = name;
        dialect->ignored_count++;
        RS_TRY(read_pattern(r, name, &dialect->ignored[i]));
        r->where = NULL;
    }
    return RS_OK;
}

static rs_status read_texts(
    const reading *r, const json_t *root, const char *key, const json_t **out)
{
    const json_t *list = json_object_get(root, key);
    bool good = list == NULL || json_is_array(list);
    for (size_t i = 0; i < json_array_size(list); i++)
        good = good && json_string_length(json_array_get(list, i)) > 0;
    *out = list;
    return good ? RS_OK : bad(r, "\"wrappers\" and \"prefixes\" must be lists of texts");
}

static rs_status read_root(reading *r, rs_dialect *dialect)
{
    static const char *const known[] = {
        "dialect", "comment", "tensors", "ignored", "wrappers", "prefixes", NULL};
    json_t *list = json_object_get(dialect->root, "tensors");
    dialect->name = json_string_value(json_object_get(dialect->root, "dialect"));
    if (!json_is_object(dialect->root) || dialect->name == NULL || !json_is_array(list))
        return bad(r, "an object with a text \"dialect\" and a list \"tensors\" is wanted");
    RS_TRY(check_keys(r, dialect->root, known));
    RS_TRY(read_texts(r, dialect->root, "wrappers", &dialect->wrappers));
    RS_TRY(read_texts(r, dialect->root, "prefixes", &dialect->prefixes));
    RS_TRY(read_ignored(r, json_object_get(dialect->root, "ignored"), dialect));
    size_t count = json_array_size(list);
    if (count == 0 || count > RULES_MOST)
        return bad(r, "\"tensors\" has no rules, or too many");
    dialect->rules = rs_calloc(count, sizeof *dialect->rules);
    if (dialect->rules == NULL)
        return rs_error_memory(count * sizeof *dialect->rules);
    for (size_t i = 0; i < count; i++) {
        dialect->rule_count++;
        RS_TRY(read_rule(r, json_array_get(list, i), &dialect->rules[i]));
        r->where = NULL;
    }
    return RS_OK;
}

/* ---- the whole ---- */

rs_status rs_dialect_parse(const char *text, size_t length, const char *label, rs_dialect **out)
{
    json_error_t error;
    reading r = {.label = label};
    rs_dialect *dialect = rs_calloc(1, sizeof *dialect);
    if (dialect == NULL)
        return rs_error_memory(sizeof *dialect);
    rs_status status;
    dialect->root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (dialect->root == NULL)
        status = rs_error_set(RS_ERR_MALFORMED, "%s: line %d, column %d: %s", label, error.line,
            error.column, error.text);
    else
        status = read_root(&r, dialect);
    if (status != RS_OK) {
        rs_dialect_destroy(dialect);
        return status;
    }
    *out = dialect;
    return RS_OK;
}

static rs_status unknown(const char *name)
{
    rs_text text = {0};
    for (const char *const *at = rs_dialect_builtin_names; *at != NULL; at++)
        rs_text_append(&text, "%s%s", text.length > 0 ? ", " : "", *at);
    rs_status status =
        rs_error_set(RS_ERR_ARGUMENT, "dialect %s: neither one of those built in (%s) nor a file",
            name, text.data != NULL ? text.data : "");
    rs_text_fini(&text);
    return status;
}

static rs_status load_file(const char *path, rs_dialect **out)
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return errno == ENOENT ? unknown(path) : rs_error_errno(errno, "%s", path);
    rs_status status = RS_OK;
    char *text = rs_calloc((size_t)FILE_MOST + 1, 1);
    size_t length = 0;
    if (text == NULL)
        status = rs_error_memory((size_t)FILE_MOST);
    else
        length = fread(text, 1, (size_t)FILE_MOST + 1, file);
    if (status == RS_OK && ferror(file))
        status = rs_error_errno(errno, "%s: cannot be read", path);
    else if (status == RS_OK && length > (size_t)FILE_MOST)
        status = rs_error_set(RS_ERR_MALFORMED, "%s: longer than %ld bytes", path, FILE_MOST);
    fclose(file);
    if (status == RS_OK)
        status = rs_dialect_parse(text, length, path, out);
    free(text);
    return status;
}

rs_status rs_dialect_load(const char *name_or_path, rs_dialect **out)
{
    for (size_t i = 0; rs_dialect_builtin_names[i] != NULL; i++)
        if (strcmp(rs_dialect_builtin_names[i], name_or_path) == 0)
            return rs_dialect_parse(rs_dialect_builtin_texts[i].text,
                rs_dialect_builtin_texts[i].length, name_or_path, out);
    return load_file(name_or_path, out);
}

const char *const *rs_dialect_names(void)
{
    return rs_dialect_builtin_names;
}

const char *rs_dialect_name(const rs_dialect *dialect)
{
    return dialect->name;
}

void rs_dialect_destroy(rs_dialect *dialect)
{
    if (dialect == NULL)
        return;
    for (size_t i = 0; i < dialect->rule_count; i++) {
        free(dialect->rules[i].name.tokens);
        free(dialect->rules[i].parts);
        free(dialect->rules[i].conditions);
    }
    for (size_t i = 0; i < dialect->ignored_count; i++)
        free(dialect->ignored[i].tokens);
    free(dialect->rules);
    free(dialect->ignored);
    json_decref(dialect->root);
    free(dialect);
}
