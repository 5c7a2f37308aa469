/*
 * Dialects: from canonical tensors to foreign names and back, by rules that are data.
 *
 * A rule's pattern is literal text with "{d}" where the index of dimension d stands. Writing a name
 * puts the indices in; reading one takes the digits out. Indices are written without leading zeros,
 * and only such are read, so that a name and a box determine each other. Layers are told by their
 * number in the model: the index plus the tensor's first layer.
 *
 * Invariants:
 * 1. A rule tells each dimension at most once, and only dimensions that its tensor has.
 * 2. The listed tensors' boxes tile the space: each canonical tensor is written by its first rule,
 * once for each index of the told dimensions.
 *
 * Cost: a lookup compares the name with each rule; a list writes each name once.
 */
#include "reshard/dialect.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "dialect/builtin.h"

static const rs_dialect *const builtin[] = {
    &rs_dialect_hf, &rs_dialect_hf_mixtral, &rs_dialect_hf_deepseek};

void rs_foreign_list_fini(rs_foreign_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free((char *)list->items[i].name);
    free(list->items);
    memset(list, 0, sizeof *list);
}

rs_status rs_dialect_get(const char *name, const rs_dialect **out)
{
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++) {
        if (strcmp(builtin[i]->name, name) != 0)
            continue;
        *out = builtin[i];
        return RS_OK;
    }
    return rs_error_set(RS_ERR_ARGUMENT,
        "dialect %s: unknown; there are \"hf\", \"hf-mixtral\" and \"hf-deepseek\"", name);
}

/* The dimension that the placeholder at `at` tells, -1 if there is none. */
static int placeholder(const char *at)
{
    return at[0] == '{' && at[1] >= '0' && at[1] < '0' + RS_MAX_DIMS && at[2] == '}' ? at[1] - '0'
                                                                                     : -1;
}

/* Whether "{}" stands at `at`. */
static bool is_any(const char *at)
{
    return at[0] == '{' && at[1] == '}';
}

/* What is added to an index of dimension `d` where it is told. */
static int64_t first_of(const rs_tensor *tensor, int d)
{
    return tensor->axis[d] == RS_AXIS_LAYER ? tensor->layer_first : 0;
}

/* Which dimensions a rule tells; invariant 1. */
static rs_status told_dims(
    const rs_dialect *dialect, const rs_dialect_rule *rule, const rs_tensor *tensor, bool *told)
{
    memset(told, 0, RS_MAX_DIMS * sizeof *told);
    for (const char *at = rule->foreign; *at != '\0'; at++) {
        int d = placeholder(at);
        if (d < 0)
            continue;
        if (d >= tensor->ndim || told[d])
            return rs_error_set(RS_ERR_MISMATCH,
                "dialect %s: %s: {%d} must stand once at most, and tensor %s has %d dimensions",
                dialect->name, rule->foreign, d, tensor->name, tensor->ndim);
        told[d] = true;
    }
    return RS_OK;
}

/* The box that `index` of the told dimensions is, and the shape that is left of it. */
static rs_foreign foreign_of(
    const rs_space *space, int tensor, const bool *told, const int64_t *index)
{
    const rs_tensor *described = rs_space_tensor(space, tensor);
    rs_foreign foreign = {.tensor = tensor, .box = rs_box_whole(described->ndim, described->shape)};
    for (int d = 0; d < described->ndim; d++) {
        if (!told[d]) {
            foreign.shape[foreign.ndim++] = described->shape[d];
            continue;
        }
        foreign.box.offset[d] = index[d];
        foreign.box.extent[d] = 1;
    }
    return foreign;
}

/* ---- writing names ---- */

static rs_status write_name(
    const rs_dialect_rule *rule, const rs_tensor *tensor, const int64_t *index, char **out)
{
    rs_text text = {0};
    for (const char *at = rule->foreign; *at != '\0'; at++) {
        int d = placeholder(at);
        if (d < 0) {
            rs_text_append(&text, "%c", *at);
            continue;
        }
        rs_text_append(&text, "%" PRId64, index[d] + first_of(tensor, d));
        at += 2;
    }
    return rs_text_take(&text, out);
}

/* The next index of the told dimensions, row-major; false behind the last. */
static bool next_index(const rs_tensor *tensor, const bool *told, int64_t *index)
{
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        if (!told[d])
            continue;
        if (++index[d] < tensor->shape[d])
            return true;
        index[d] = 0;
    }
    return false;
}

static rs_status list_tensor(const rs_dialect *dialect, const rs_space *space,
    const rs_dialect_rule *rule, int tensor, rs_foreign_list *out)
{
    const rs_tensor *described = rs_space_tensor(space, tensor);
    bool told[RS_MAX_DIMS];
    int64_t index[RS_MAX_DIMS] = {0};
    RS_TRY(told_dims(dialect, rule, described, told));
    for (const char *at = rule->foreign; *at != '\0'; at++)
        if (is_any(at))
            return rs_error_set(RS_ERR_MISMATCH,
                "dialect %s: %s: {} tells nothing, so that tensor %s cannot be written under it",
                dialect->name, rule->foreign, described->name);
    for (int d = 0; d < described->ndim; d++)
        if (told[d] && described->shape[d] == 0)
            return RS_OK;
    do {
        char *name;
        RS_TRY(RS_LIST_RESERVE_ONE(out));
        RS_TRY(write_name(rule, described, index, &name));
        rs_foreign *foreign = &out->items[out->count++];
        *foreign = foreign_of(space, tensor, told, index);
        foreign->name = name;
    } while (next_index(described, told, index));
    return RS_OK;
}

static const rs_dialect_rule *first_rule(const rs_dialect *dialect, const char *canonical)
{
    for (size_t r = 0; r < dialect->count; r++)
        if (strcmp(dialect->rules[r].canonical, canonical) == 0)
            return &dialect->rules[r];
    return NULL;
}

rs_status rs_dialect_list(const rs_dialect *dialect, const rs_space *space, rs_foreign_list *out)
{
    rs_foreign_list list = {0};
    rs_status status = RS_OK;
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        const char *canonical = rs_space_tensor(space, i)->name;
        const rs_dialect_rule *rule = first_rule(dialect, canonical);
        if (rule == NULL)
            status = rs_error_set(
                RS_ERR_MISMATCH, "dialect %s: no rule names tensor %s", dialect->name, canonical);
        else
            status = list_tensor(dialect, space, rule, i, &list);
        if (status != RS_OK)
            goto fail;
    }
    rs_foreign_list_fini(out);
    *out = list;
    return RS_OK;
fail:
    rs_foreign_list_fini(&list);
    return status;
}

/* ---- reading names ---- */

/* Reads an index as write_name writes it; NULL if there is none. */
static const char *read_index(const char *at, int64_t *out)
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

static bool match(const char *pattern, const char *name, int64_t *index)
{
    int64_t ignored;
    while (*pattern != '\0') {
        int d = placeholder(pattern);
        if (d >= 0 || is_any(pattern)) {
            name = read_index(name, d >= 0 ? &index[d] : &ignored);
            if (name == NULL)
                return false;
            pattern += d >= 0 ? 3 : 2;
        } else if (*pattern++ != *name++) {
            return false;
        }
    }
    return *name == '\0';
}

/* Turns the numbers that a name told into indices; the first dimension whose index is not the
 * tensor's, -1 if there is none. */
static int place_index(const rs_tensor *tensor, const bool *told, int64_t *index)
{
    for (int d = 0; d < tensor->ndim; d++) {
        if (!told[d])
            continue;
        index[d] -= first_of(tensor, d);
        if (index[d] < 0 || index[d] >= tensor->shape[d])
            return d;
    }
    return -1;
}

static rs_status outside(const char *name, const rs_tensor *tensor, int d, int64_t index)
{
    int64_t first = first_of(tensor, d);
    return rs_error_set(RS_ERR_NOT_FOUND,
        "tensor %s: index %" PRId64 " of dimension %d, but %s has %" PRId64 " of them from %" PRId64
        " on",
        name, index + first, d, tensor->name, tensor->shape[d], first);
}

rs_status rs_dialect_lookup(
    const rs_dialect *dialect, const rs_space *space, const char *name, rs_foreign *out)
{
    rs_status status = rs_error_set(
        RS_ERR_NOT_FOUND, "dialect %s: tensor %s is none of the model's", dialect->name, name);
    for (size_t r = 0; r < dialect->count; r++) {
        const rs_dialect_rule *rule = &dialect->rules[r];
        int64_t index[RS_MAX_DIMS] = {0};
        if (!match(rule->foreign, name, index))
            continue;
        int tensor = rs_space_find_tensor(space, rule->canonical);
        if (tensor < 0)
            continue;
        const rs_tensor *described = rs_space_tensor(space, tensor);
        bool told[RS_MAX_DIMS];
        RS_TRY(told_dims(dialect, rule, described, told));
        int wrong = place_index(described, told, index);
        if (wrong >= 0) {
            status = outside(name, described, wrong, index[wrong]);
            continue;
        }
        *out = foreign_of(space, tensor, told, index);
        out->name = name;
        out->alias = first_rule(dialect, rule->canonical) != rule;
        return RS_OK;
    }
    return status;
}
