/*
 * Which parameters DeepSpeed's parameter groups have. The groups themselves name none: they number
 * flat buffers, and what is in these param_shapes says. So the readers of optimizer states note
 * what they find, and the groups among the extras get it as `param_names`.
 */
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/deepspeed.h"
#include "ckpt/groups.h"

rs_status rs_ds_note_member(rs_ds_reader *reader, int mp, size_t group, const char *name)
{
    rs_text key = {0};
    const char *kept;
    int stage = rs_ds_stage_of(reader, mp), found;
    rs_status status;
    rs_text_append(&key, "%d\n%s", stage, name);
    RS_TRY_GOTO(key.status, out);
    found = rs_names_find(&reader->member_names, key.data);
    if (found >= 0) {
        if (reader->members.items[found].group == RS_DS_NO_GROUP)
            reader->members.items[found].group = group;
        goto out;
    }
    RS_TRY_GOTO(RS_LIST_RESERVE_ONE(&reader->members), out);
    RS_TRY_GOTO(rs_pool_text(&reader->pool, key.data, key.length, &kept), out);
    RS_TRY_GOTO(rs_names_add(&reader->member_names, kept, (int)reader->members.count, &found), out);
    reader->members.items[reader->members.count++] =
        (rs_ds_member){.name = strchr(kept, '\n') + 1, .stage = stage, .group = group};
out:
    rs_text_fini(&key);
    return status;
}

bool rs_ds_owner(const rs_value *groups, size_t number, size_t *out)
{
    for (size_t g = 0; rs_value_is_sequence(groups) && g < groups->count; g++) {
        const rs_value *params = rs_value_get(groups->as.items[g], "params");
        for (uint32_t i = 0; rs_value_is_sequence(params) && i < params->count; i++) {
            int64_t index;
            if (rs_value_integer(params->as.items[i], &index) && index == (int64_t)number) {
                *out = g;
                return true;
            }
        }
    }
    return false;
}

rs_status rs_ds_note_members(rs_ds_reader *reader, int mp, const rs_value *groups, bool by_number)
{
    const rs_ds_model *model = &reader->models[mp];
    if (!rs_value_is_sequence(groups))
        return RS_OK;
    for (size_t s = 0; s < model->group_count; s++) {
        size_t group = 0;
        bool known = groups->count == 1;
        if (!known && by_number && model->group_count == groups->count) {
            group = s;
            known = true;
        } else if (!known) {
            known = rs_ds_owner(groups, s, &group);
        }
        if (!known)
            group = RS_DS_NO_GROUP;
        for (size_t i = 0; i < model->groups[s].count; i++)
            RS_TRY(rs_ds_note_member(reader, mp, group, model->groups[s].items[i].name));
    }
    return RS_OK;
}

/* Puts the members into `all`. Where its groups are of all stages, a parameter that several stages
 * have is one of them. */
static rs_status add_members(
    const rs_ds_reader *reader, json_t *all, rs_names *seen, size_t *unknown)
{
    bool staged = json_is_array(json_array_get(all, 0));
    *unknown = 0;
    for (size_t i = 0; i < reader->members.count; i++) {
        const rs_ds_member *m = &reader->members.items[i];
        int found = -1;
        if (!staged)
            RS_TRY(rs_names_add(seen, m->name, (int)i, &found));
        if (found >= 0 && reader->members.items[found].group == m->group)
            continue;
        json_t *groups = staged ? json_array_get(all, (size_t)m->stage) : all;
        json_t *group = json_array_get(groups, m->group);
        *unknown += m->group == RS_DS_NO_GROUP;
        if (json_is_object(group))
            RS_TRY(rs_group_add_name(group, m->name));
    }
    return RS_OK;
}

rs_status rs_ds_name_groups(rs_ds_reader *reader)
{
    json_t *all = json_object_get(reader->catalog->extras, RS_GROUPS);
    rs_names seen = {0};
    size_t unknown;
    rs_status status = add_members(reader, all, &seen, &unknown);
    rs_names_fini(&seen);
    if (status == RS_OK && unknown > 0)
        status = rs_catalog_warn(reader->catalog,
            "nothing says to which of %zu parameter groups %zu parameters belong",
            rs_groups_count(all), unknown);
    return status;
}
