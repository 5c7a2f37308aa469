/*
 * Which parameters an optimizer's groups have, kept with the groups' options, so that whatever
 * carries the extras carries it along. Names change with dialects: a tensor of all layers is in the
 * group that all of its layers are in.
 */
#include "ckpt/groups.h"

#include <string.h>

#include "base/error.h"
#include "ckpt/writer.h"

#define TOLD 6 /* names in a warning */

static bool is_staged(const json_t *groups)
{
    return json_is_array(json_array_get(groups, 0));
}

size_t rs_groups_count(const json_t *groups)
{
    size_t count = 0, s;
    json_t *stage;
    if (!is_staged(groups))
        return json_array_size(groups);
    json_array_foreach(groups, s, stage) count += json_array_size(stage);
    return count;
}

json_t *rs_groups_at(const json_t *groups, size_t i)
{
    size_t s;
    json_t *stage;
    if (!is_staged(groups))
        return json_array_get(groups, i);
    json_array_foreach(groups, s, stage)
    {
        if (i < json_array_size(stage))
            return json_array_get(stage, i);
        i -= json_array_size(stage);
    }
    return NULL;
}

int rs_groups_owner(const json_t *groups, size_t number)
{
    size_t g, i;
    json_t *group, *one;
    json_array_foreach(groups, g, group)
        json_array_foreach(json_object_get(group, "params"), i, one)
    {
        if (json_is_integer(one) && json_integer_value(one) == (json_int_t)number)
            return (int)g;
    }
    return -1;
}

/* Whether two groups have the same options, whatever their parameters are. */
static bool same_options(const json_t *a, const json_t *b)
{
    static const char *const own[] = {"params", RS_GROUP_NAMES};
    json_t *x = json_copy((json_t *)(uintptr_t)a), *y = json_copy((json_t *)(uintptr_t)b);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        json_object_del(x, own[i]);
        json_object_del(y, own[i]);
    }
    bool same = x != NULL && y != NULL && json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

/* The list of a group's names (borrowed), made where there is none; NULL without memory. */
static json_t *names_of(json_t *group)
{
    json_t *names = json_object_get(group, RS_GROUP_NAMES);
    if (json_is_array(names))
        return names;
    names = json_array();
    return json_object_set_new(group, RS_GROUP_NAMES, names) == 0 ? names : NULL;
}

rs_status rs_group_add_name(json_t *group, const char *name)
{
    if (json_array_append_new(names_of(group), json_string(name)) != 0)
        return rs_error_memory(strlen(name));
    return RS_OK;
}

/* Puts the names of `from` behind those of `to`. */
static void add_names(json_t *to, const json_t *from)
{
    const json_t *more = json_object_get(from, RS_GROUP_NAMES);
    if (json_is_array(more))
        json_array_extend(names_of(to), (json_t *)(uintptr_t)more);
}

json_t *rs_groups_merged(const json_t *groups)
{
    size_t s, g;
    json_t *stage, *group;
    if (json_array_size(groups) == 0)
        return NULL;
    if (!is_staged(groups))
        return json_deep_copy(groups);
    json_t *merged = json_deep_copy(json_array_get(groups, 0));
    json_array_foreach(groups, s, stage)
    {
        if (s == 0)
            continue;
        bool same = json_array_size(stage) == json_array_size(merged);
        json_array_foreach(stage, g, group)
        {
            same = same && same_options(json_array_get(merged, g), group);
            if (same)
                add_names(json_array_get(merged, g), group);
        }
        if (!same) {
            json_decref(merged);
            return NULL;
        }
    }
    return merged;
}

rs_status rs_groups_index(const json_t *groups, rs_names *out)
{
    size_t i;
    json_t *name;
    for (size_t g = 0; g < rs_groups_count(groups); g++)
        json_array_foreach(json_object_get(rs_groups_at(groups, g), RS_GROUP_NAMES), i, name)
        {
            int found;
            if (json_is_string(name))
                RS_TRY(rs_names_add(out, json_string_value(name), (int)g, &found));
        }
    return RS_OK;
}

/* ---- other names ---- */

/* Takes the names out of the groups. */
static void clear_names(json_t *groups)
{
    for (size_t g = 0; g < rs_groups_count(groups); g++)
        json_object_del(rs_groups_at(groups, g), RS_GROUP_NAMES);
}

rs_status rs_regroup_begin(rs_regroup *r, const rs_catalog *from)
{
    const json_t *groups = json_object_get(rs_extras_of_run(from->extras), RS_GROUPS);
    *r = (rs_regroup){.group = -1};
    RS_TRY(rs_groups_index(groups, &r->old));
    if (r->old.count == 0)
        return RS_OK;
    r->merged = rs_groups_merged(groups);
    r->differ = r->merged == NULL;
    if (r->differ)
        r->merged = json_deep_copy(groups);
    r->lost = json_array();
    if (r->merged == NULL || r->lost == NULL)
        return rs_error_memory(64);
    clear_names(r->merged);
    if (r->differ)
        return RS_OK;
    /* Merged groups are numbered as the first stage's; the index is of all stages. */
    size_t count = rs_groups_count(r->merged);
    for (size_t i = 0; i < r->old.capacity; i++)
        if (r->old.slots[i].name != NULL)
            r->old.slots[i].number %= (int32_t)count;
    return RS_OK;
}

/* The name at hand is complete. */
static rs_status settle(rs_regroup *r)
{
    if (r->name != NULL && r->group == -2 &&
        json_array_append_new(r->lost, json_string(r->name)) != 0)
        return rs_error_memory(64);
    if (r->name != NULL && r->group >= 0)
        RS_TRY(rs_group_add_name(rs_groups_at(r->merged, (size_t)r->group), r->name));
    r->name = NULL;
    r->group = -1;
    return RS_OK;
}

rs_status rs_regroup_is(rs_regroup *r, const char *name, const char *old)
{
    if (r->merged == NULL)
        return RS_OK;
    if (r->name != name)
        RS_TRY(settle(r));
    r->name = name;
    int group = rs_names_find(&r->old, old);
    if (group < 0)
        return RS_OK;
    r->group = r->group == -1 || r->group == group ? group : -2;
    return RS_OK;
}

static rs_status warn_of_lost(const rs_regroup *r, rs_catalog *to)
{
    char list[600] = "";
    size_t i, count = json_array_size(r->lost);
    json_t *name;
    json_array_foreach(r->lost, i, name)
    {
        size_t length = strlen(list);
        if (i < TOLD)
            snprintf(list + length, sizeof list - length, "%s\"%.80s\"", i > 0 ? ", " : "",
                json_string_value(name));
    }
    if (count > 0)
        RS_TRY(rs_catalog_warn(to,
            "%zu tensors are made of parameters of several parameter groups, so that no group has "
            "them any more: %s%s",
            count, list, count > TOLD ? ", ..." : ""));
    return RS_OK;
}

rs_status rs_regroup_end(rs_regroup *r, rs_catalog *to)
{
    if (r->merged == NULL)
        return RS_OK;
    RS_TRY(settle(r));
    RS_TRY(warn_of_lost(r, to));
    json_t *extras = json_deep_copy(to->extras);
    if (extras == NULL || json_object_set(rs_extras_of_run(extras), RS_GROUPS, r->merged) != 0) {
        json_decref(extras);
        return rs_error_memory(64);
    }
    json_decref(to->extras);
    to->extras = extras;
    return RS_OK;
}

void rs_regroup_fini(rs_regroup *r)
{
    json_decref(r->merged);
    json_decref(r->lost);
    rs_names_fini(&r->old);
}
