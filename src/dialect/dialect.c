/*
 * Dialects: from canonical tensors to foreign ones and back, by rules that are data.
 *
 * Writing a name puts indices into a rule's pattern; reading one takes the digits out. Indices are
 * written without leading zeros, and only such are read, so that a name and a box determine each
 * other. Layers are told by their number in the model: the index plus the tensor's first layer.
 *
 * What a foreign tensor is made of follows from the shapes of the canonical ones: those of the
 * dimensions that are not told, in the rule's order; the parts stand behind each other along one of
 * them, each whole, or in groups that are dealt in turn (heads, in which queries, keys and values
 * alternate).
 *
 * Invariants:
 * 1. A rule counts only where all its tensors are in the space; it tells only dimensions that they
 *    have, of equal length in all, and they have equal shapes but for the dimension along which
 *    they are parts.
 * 2. The listed tensors' parts tile the space: each canonical tensor is written by one rule, once
 *    for each index of the told dimensions.
 *
 * Cost: a lookup compares the name with each rule; a list writes each name once.
 */
#include "reshard/dialect.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "dialect/rule.h"

#define PIECES_MOST 1000000

void rs_foreign_fini(rs_foreign *foreign)
{
    free(foreign->name);
    free(foreign->parts);
    memset(foreign, 0, sizeof *foreign);
}

void rs_foreign_list_fini(rs_foreign_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        rs_foreign_fini(&list->items[i]);
    free(list->items);
    memset(list, 0, sizeof *list);
}

/* ---- a rule in a space ---- */

/* A rule with the tensors that it names. */
typedef struct use {
    const rs_dialect *dialect;
    const rs_space *space;
    const rule *rule;
    int ids[RS_PARTS_MOST]; /* of its parts */
    const rs_tensor *first; /* the first part's tensor */
    bool told[RS_MAX_DIMS]; /* of the canonical dimensions */
    int rest[RS_MAX_DIMS];  /* the canonical dimension of each foreign one */
    int ndim;               /* of the foreign tensor */
    int64_t groups;
} use;

static rs_status misfit(const use *u, const char *what)
{
    return rs_error_set(RS_ERR_MISMATCH, "dialect %s: rule \"%s\" does not fit %s: %s",
        u->dialect->name, u->rule->name.text, u->first->name, what);
}

/* The number that names tell for an index of dimension `d`: of layers, that in the model. */
static int64_t number_of(const rs_tensor *tensor, int d, int64_t index)
{
    return tensor->axis[d] == RS_AXIS_LAYER ? rs_tensor_layer(tensor, index) : index;
}

/* The index of dimension `d` that has a number; -1 if none has. */
static int64_t index_of(const rs_tensor *tensor, int d, int64_t number)
{
    if (tensor->axis[d] != RS_AXIS_LAYER)
        return number >= 0 && number < tensor->shape[d] ? number : -1;
    int64_t index = number >= 0 ? rs_tensor_layers_before(tensor, number) : tensor->shape[0];
    return index < tensor->shape[0] && rs_tensor_layer(tensor, index) == number ? index : -1;
}

/* Whether indices of dimension `d`, of one length, have the same numbers. */
static bool same_numbers(const rs_tensor *a, const rs_tensor *b, int d)
{
    bool layers = a->axis[d] == RS_AXIS_LAYER || b->axis[d] == RS_AXIS_LAYER;
    for (int64_t i = 0; layers && i < a->shape[d]; i++)
        if (number_of(a, d, i) != number_of(b, d, i))
            return false;
    return true;
}

/* The tensors of a rule; false if one is not in the space. `tensor` is that of an identity. */
static bool find_parts(use *u, int tensor)
{
    for (size_t p = 0; p < u->rule->part_count; p++) {
        u->ids[p] = u->rule->identity ? tensor : rs_space_find_tensor(u->space, u->rule->parts[p]);
        if (u->ids[p] < 0)
            return false;
    }
    u->first = rs_space_tensor(u->space, u->ids[0]);
    return true;
}

static rs_status number_fact(const use *u, const char *key, size_t length, int64_t *out)
{
    char name[64];
    if (length >= sizeof name)
        return misfit(u, "a fact has too long a name");
    memcpy(name, key, length);
    name[length] = '\0';
    const char *value = rs_space_fact(u->space, name);
    char *end = NULL;
    int64_t number = value != NULL ? strtoll(value, &end, 10) : 0;
    if (value == NULL || end == value || *end != '\0' || number < 0)
        return rs_error_set(RS_ERR_MISMATCH,
            "dialect %s: rule \"%s\" asks for the model's \"%s\", which nothing tells: name the "
            "model",
            u->dialect->name, u->rule->name.text, name);
    *out = number;
    return RS_OK;
}

/* The dimensions; invariant 1. */
static rs_status check_shapes(use *u)
{
    int natural[RS_MAX_DIMS];
    const rule *r = u->rule;
    memset(u->told, 0, sizeof u->told);
    for (size_t i = 0; i < r->name.count; i++) {
        if (r->name.tokens[i].kind != TOKEN_INDEX)
            continue;
        if (r->name.tokens[i].dim >= u->first->ndim)
            return misfit(u, "the name tells a dimension that the tensor has not");
        u->told[r->name.tokens[i].dim] = true;
    }
    u->ndim = 0;
    for (int d = 0; d < u->first->ndim; d++)
        if (!u->told[d])
            natural[u->ndim++] = d;
    if (r->order_count > 0 && r->order_count != u->ndim)
        return misfit(u, "\"order\" has another number of dimensions than are left");
    for (int d = 0; d < u->ndim; d++)
        u->rest[d] = natural[r->order_count > 0 ? r->order[d] : r->reversed ? u->ndim - 1 - d : d];
    u->groups = r->groups;
    if (r->groups_fact != NULL)
        RS_TRY(number_fact(u, r->groups_fact, strlen(r->groups_fact), &u->groups));
    if (u->groups < 1 || u->groups > PIECES_MOST / (int64_t)r->part_count)
        return misfit(u, "too many groups, or none");
    bool several = r->part_count > 1 || u->groups > 1;
    if (several && r->along >= u->ndim)
        return misfit(u, "there is no dimension \"along\" which it has parts");
    for (size_t p = 0; p < r->part_count; p++) {
        const rs_tensor *t = rs_space_tensor(u->space, u->ids[p]);
        if (t->ndim != u->first->ndim)
            return misfit(u, "its tensors have unlike numbers of dimensions");
        for (int d = 0; d < t->ndim; d++) {
            bool along = several && d == u->rest[r->along];
            if (along && t->shape[d] % u->groups != 0)
                return misfit(u, "a part cannot be cut into so many groups");
            if (!along && (t->shape[d] != u->first->shape[d] || !same_numbers(t, u->first, d)))
                return misfit(u, "its tensors have unlike shapes");
        }
    }
    return RS_OK;
}

/* The foreign tensor, without its name, for `index` of the told dimensions. */
static rs_status build(const use *u, const int64_t *index, rs_foreign *out)
{
    const rule *r = u->rule;
    size_t count = r->part_count * (size_t)u->groups;
    bool several = count > 1;
    rs_foreign_part *parts = rs_calloc(count, sizeof *parts);
    if (parts == NULL)
        return rs_error_memory(count * sizeof *parts);
    out->parts = parts;
    out->count = count;
    out->ndim = u->ndim;
    for (int d = 0; d < u->ndim; d++)
        out->shape[d] = u->first->shape[u->rest[d]];
    int64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const rs_tensor *t = rs_space_tensor(u->space, u->ids[i % r->part_count]);
        rs_foreign_part *part = &parts[i];
        part->tensor = u->ids[i % r->part_count];
        part->box = rs_box_whole(t->ndim, t->shape);
        for (int d = 0; d < t->ndim; d++) {
            if (!u->told[d])
                continue;
            part->box.offset[d] = index[d];
            part->box.extent[d] = 1;
        }
        memcpy(part->along, u->rest, sizeof part->along);
        if (!several)
            continue;
        int c = u->rest[r->along];
        int64_t share = t->shape[c] / u->groups;
        part->box.offset[c] = (int64_t)(i / r->part_count) * share;
        part->box.extent[c] = share;
        part->offset[r->along] = at;
        if (!rs_add_fits(at, share, &at))
            return rs_error_set(
                RS_ERR_OVERFLOW, "dialect %s: \"%s\" is too long", u->dialect->name, r->name.text);
    }
    if (several)
        out->shape[r->along] = at;
    return RS_OK;
}

/* ---- which rule writes ---- */

/* Whether the facts are those that the rule asks for; one that is not known is not. */
static bool holds(const rule *r, const rs_space *space)
{
    for (size_t i = 0; i < r->condition_count; i++) {
        const char *fact = rs_space_fact(space, r->conditions[i].key);
        const json_t *values = r->conditions[i].values;
        bool one =
            fact != NULL && json_is_string(values) && strcmp(json_string_value(values), fact) == 0;
        for (size_t v = 0; fact != NULL && v < json_array_size(values); v++)
            one = one || strcmp(json_string_value(json_array_get(values, v)), fact) == 0;
        if (!one)
            return false;
    }
    return true;
}

/* The rule under which a tensor is written; false if there is none. */
static bool find_writer(const rs_dialect *dialect, const rs_space *space, int tensor, use *out)
{
    const char *name = rs_space_tensor(space, tensor)->name;
    for (size_t i = 0; i < dialect->rule_count; i++) {
        use u = {.dialect = dialect, .space = space, .rule = &dialect->rules[i]};
        bool has = u.rule->identity;
        for (size_t p = 0; p < u.rule->part_count && !has; p++)
            has = strcmp(u.rule->parts[p], name) == 0;
        if (!has || u.rule->alias || !holds(u.rule, space) || !find_parts(&u, tensor))
            continue;
        *out = u;
        return true;
    }
    return false;
}

/* ---- writing names ---- */

static rs_status write_name(const use *u, const int64_t *index, char **out)
{
    rs_text text = {0};
    if (u->rule->identity) {
        rs_text_append(&text, "%s", u->first->name);
        return rs_text_take(&text, out);
    }
    for (size_t i = 0; i < u->rule->name.count; i++) {
        const token *t = &u->rule->name.tokens[i];
        int64_t number = 0;
        rs_status status = RS_OK;
        switch (t->kind) {
        case TOKEN_TEXT:
        case TOKEN_OPTIONAL:
            rs_text_append(&text, "%.*s", (int)t->length, t->text);
            break;
        case TOKEN_INDEX:
            rs_text_append(&text, "%" PRId64, number_of(u->first, t->dim, index[t->dim]) + t->plus);
            break;
        case TOKEN_FACT:
            status = number_fact(u, t->text, t->length, &number);
            rs_text_append(&text, "%" PRId64, number + t->plus);
            break;
        case TOKEN_ANY:
            status = misfit(u, "{} tells nothing, so that it cannot be written");
            break;
        }
        if (status != RS_OK) {
            rs_text_fini(&text);
            return status;
        }
    }
    return rs_text_take(&text, out);
}

/* The next index of the told dimensions, row-major; false behind the last. */
static bool next_index(const use *u, int64_t *index)
{
    for (int d = u->first->ndim - 1; d >= 0; d--) {
        if (!u->told[d])
            continue;
        if (++index[d] < u->first->shape[d])
            return true;
        index[d] = 0;
    }
    return false;
}

static rs_status list_rule(use *u, rs_foreign_list *out)
{
    int64_t index[RS_MAX_DIMS] = {0};
    RS_TRY(check_shapes(u));
    for (int d = 0; d < u->first->ndim; d++)
        if (u->told[d] && u->first->shape[d] == 0)
            return RS_OK;
    do {
        RS_TRY(RS_LIST_RESERVE_ONE(out));
        rs_foreign *foreign = &out->items[out->count++];
        *foreign = (rs_foreign){0};
        RS_TRY(write_name(u, index, &foreign->name));
        RS_TRY(build(u, index, foreign));
    } while (next_index(u, index));
    return RS_OK;
}

rs_status rs_dialect_list(const rs_dialect *dialect, const rs_space *space, rs_foreign_list *out)
{
    rs_foreign_list list = {0};
    rs_status status = RS_OK;
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        use u;
        if (!find_writer(dialect, space, i, &u))
            RS_TRY_GOTO(rs_error_set(RS_ERR_MISMATCH, "dialect %s: no rule names tensor %s",
                            dialect->name, rs_space_tensor(space, i)->name),
                fail);
        /* Its other parts are written with the first. */
        if (u.ids[0] == i)
            RS_TRY_GOTO(list_rule(&u, &list), fail);
        use first;
        if (!find_writer(dialect, space, u.ids[0], &first) || first.rule != u.rule)
            RS_TRY_GOTO(rs_error_set(RS_ERR_MISMATCH,
                            "dialect %s: rule \"%s\" writes tensor %s, but not its first part %s",
                            dialect->name, u.rule->name.text, rs_space_tensor(space, i)->name,
                            u.first->name),
                fail);
    }
    rs_foreign_list_fini(out);
    *out = list;
    return RS_OK;
fail:
    rs_foreign_list_fini(&list);
    return status;
}

rs_status rs_dialect_ties(const rs_dialect *dialect, const rs_space *space, rs_foreign_list *out)
{
    const char *tied = rs_space_fact(space, "tied");
    rs_foreign_list list = {0};
    rs_status status = RS_OK;
    for (size_t i = 0; i < dialect->rule_count && tied != NULL && strcmp(tied, "true") == 0; i++) {
        use u = {.dialect = dialect, .space = space, .rule = &dialect->rules[i]};
        if (u.rule->tied && holds(u.rule, space) && find_parts(&u, -1))
            RS_TRY_GOTO(list_rule(&u, &list), fail);
    }
    rs_foreign_list_fini(out);
    *out = list;
    return RS_OK;
fail:
    rs_foreign_list_fini(&list);
    return status;
}

/* ---- reading names ---- */

/* Reads a number as write_name writes it; NULL if there is none. */
static const char *read_number(const char *at, int64_t *out)
{
    int64_t value = 0;
    const char *start = at;
    while (isdigit((unsigned char)*at)) {
        if (value > (INT64_MAX - 9) / 10)
            return NULL;
        value = 10 * value + (*at++ - '0');
    }
    if (at == start || (*start == '0' && at - start > 1))
        return NULL;
    *out = value;
    return at;
}

/* Whether the name is the tokens from `i` on; `numbers` gets one for each token that is a number.
 */
static bool match(const pattern *p, size_t i, const char *name, int64_t *numbers)
{
    for (; i < p->count; i++) {
        const token *t = &p->tokens[i];
        bool same = strncmp(name, t->text != NULL ? t->text : "", t->length) == 0;
        if (t->kind == TOKEN_OPTIONAL && same && match(p, i + 1, name + t->length, numbers))
            return true;
        if (t->kind == TOKEN_OPTIONAL)
            continue;
        if (t->kind == TOKEN_TEXT && !same)
            return false;
        if (t->kind == TOKEN_TEXT) {
            name += t->length;
            continue;
        }
        name = read_number(name, &numbers[i]);
        if (name == NULL)
            return false;
    }
    return *name == '\0';
}

/* Turns the numbers of a matched name into indices. `*wrong` is the first dimension whose number no
 * index of the tensor has, and keeps it, -1 if there is none; `*fits` is false where a fact is
 * another. */
static rs_status place_index(
    const use *u, const int64_t *numbers, int64_t *index, int *wrong, bool *fits)
{
    *wrong = -1;
    *fits = true;
    for (size_t i = 0; i < u->rule->name.count; i++) {
        const token *t = &u->rule->name.tokens[i];
        int64_t fact;
        if (t->kind == TOKEN_FACT) {
            RS_TRY(number_fact(u, t->text, t->length, &fact));
            *fits = *fits && numbers[i] == fact + t->plus;
        }
        if (t->kind != TOKEN_INDEX)
            continue;
        index[t->dim] = index_of(u->first, t->dim, numbers[i] - t->plus);
        if (*wrong < 0 && index[t->dim] < 0) {
            *wrong = t->dim;
            index[t->dim] = numbers[i] - t->plus;
        }
    }
    return RS_OK;
}

static rs_status outside(const char *name, const rs_tensor *tensor, int d, int64_t number)
{
    bool layers = tensor->axis[d] == RS_AXIS_LAYER;
    int64_t first = layers ? tensor->layer_first : 0;
    if (layers && tensor->layers != NULL)
        return rs_error_set(RS_ERR_NOT_FOUND,
            "tensor %s: layer %" PRId64 " is none of the %" PRId64 " that %s has", name, number,
            tensor->shape[d], tensor->name);
    return rs_error_set(RS_ERR_NOT_FOUND,
        "tensor %s: index %" PRId64 " of dimension %d, but %s has %" PRId64 " of them from %" PRId64
        " on",
        name, number, d, tensor->name, tensor->shape[d], first);
}

/* The name under a rule: RS_OK and `*found`, or not found, with the reason where there is one. */
static rs_status try_rule(use *u, const char *name, bool *found, rs_foreign *out)
{
    int64_t numbers[RS_TOKENS_MOST] = {0}, index[RS_MAX_DIMS] = {0};
    int wrong;
    bool fits, matches = u->rule->identity || match(&u->rule->name, 0, name, numbers);
    if (!matches || !find_parts(u, rs_space_find_tensor(u->space, name)))
        return RS_OK;
    RS_TRY(check_shapes(u));
    RS_TRY(place_index(u, numbers, index, &wrong, &fits));
    if (!fits)
        return RS_OK;
    if (wrong >= 0)
        return outside(name, u->first, wrong, index[wrong]);
    rs_status status = RS_OK;
    rs_foreign made = {.name = rs_strdup(name)};
    use writer;
    if (made.name == NULL)
        status = rs_error_memory(strlen(name));
    else
        status = build(u, index, &made);
    if (status != RS_OK) {
        rs_foreign_fini(&made);
        return status;
    }
    made.alias = !find_writer(u->dialect, u->space, u->ids[0], &writer) || writer.rule != u->rule;
    *out = made;
    *found = true;
    return RS_OK;
}

/* The rules whose condition holds come before the others. */
static rs_status lookup(const rs_dialect *dialect, const rs_space *space, const char *name,
    bool *found, rs_status *why, rs_foreign *out)
{
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < dialect->rule_count && !*found; i++) {
            use u = {.dialect = dialect, .space = space, .rule = &dialect->rules[i]};
            if (holds(u.rule, space) != (round == 0))
                continue;
            rs_status status = try_rule(&u, name, found, out);
            if (status != RS_OK && status != RS_ERR_NOT_FOUND)
                return status;
            if (status != RS_OK)
                *why = status;
        }
    return RS_OK;
}

static bool is_listed(const json_t *list, const char *text, size_t length)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (json_string_length(item) == length &&
            memcmp(json_string_value(item), text, length) == 0)
            return true;
    }
    return false;
}

/* The name without the components that wrappers put in, and without prefixes. */
static rs_status strip(const rs_dialect *dialect, const char *name, char **out)
{
    rs_text text = {0};
    const char *at = name;
    while (*at != '\0') {
        size_t length = strcspn(at, ".");
        bool drop = at[length] == '.' &&
                    (is_listed(dialect->wrappers, at, length) ||
                        (text.length == 0 && is_listed(dialect->prefixes, at, length)));
        if (!drop)
            rs_text_append(&text, "%.*s%s", (int)length, at, at[length] == '.' ? "." : "");
        at += length + (at[length] == '.');
    }
    return rs_text_take(&text, out);
}

rs_status rs_dialect_lookup(
    const rs_dialect *dialect, const rs_space *space, const char *name, rs_foreign *out)
{
    bool found = false;
    rs_status why = RS_OK;
    char *stripped = NULL;
    RS_TRY(lookup(dialect, space, name, &found, &why, out));
    if (found)
        return RS_OK;
    RS_TRY(strip(dialect, name, &stripped));
    rs_status status = RS_OK;
    if (strcmp(stripped, name) != 0)
        status = lookup(dialect, space, stripped, &found, &why, out);
    free(stripped);
    if (status != RS_OK || found)
        return status;
    return why != RS_OK ? why
                        : rs_error_set(RS_ERR_NOT_FOUND,
                              "dialect %s: tensor %s is none of the model's", dialect->name, name);
}

bool rs_dialect_ignores(const rs_dialect *dialect, const char *name)
{
    int64_t numbers[RS_TOKENS_MOST];
    char *stripped = NULL;
    bool ignored = false;
    if (strip(dialect, name, &stripped) != RS_OK)
        return false;
    for (size_t i = 0; i < dialect->ignored_count && !ignored; i++)
        ignored = match(&dialect->ignored[i], 0, stripped, numbers);
    free(stripped);
    return ignored;
}
