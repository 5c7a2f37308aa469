/*
 * Which parameters DeepSpeed's parameter groups have. The groups themselves name none: they number
 * flat buffers, and what is in these param_shapes says. So the readers of optimizer states note
 * what they find, and the groups among the extras get it as `param_names`.
 */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/deepspeed.h"
#include "ckpt/groups.h"

rs_status rs_ds_note_member(rs_ds_reader *reader, int mp, size_t group, const char *name)
{
    char key[1200];
    const char *kept;
    int stage = rs_ds_stage_of(reader, mp), found;
    int length = snprintf(key, sizeof key, "%d\n%s", stage, name);
    if (length < 0 || (size_t)length >= sizeof key)
        return RS_OK;
    if (rs_names_find(&reader->member_names, key) >= 0)
        return RS_OK;
    RS_TRY(rs_pool_text(&reader->pool, key, (size_t)length, &kept));
    RS_TRY(rs_names_add(&reader->member_names, kept, 0, &found));
    RS_TRY(RS_LIST_RESERVE_ONE(&reader->members));
    reader->members.items[reader->members.count++] =
        (rs_ds_member){.name = strchr(kept, '\n') + 1, .stage = stage, .group = group};
    return RS_OK;
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
        reader->members_unknown += known ? 0 : model->groups[s].count;
        for (size_t i = 0; i < model->groups[s].count && known; i++)
            RS_TRY(rs_ds_note_member(reader, mp, group, model->groups[s].items[i].name));
    }
    return RS_OK;
}

rs_status rs_ds_name_groups(rs_ds_reader *reader)
{
    json_t *all = json_object_get(reader->catalog->extras, RS_GROUPS);
    for (size_t i = 0; i < reader->members.count; i++) {
        const rs_ds_member *m = &reader->members.items[i];
        bool staged = json_is_array(json_array_get(all, 0));
        json_t *groups = staged ? json_array_get(all, (size_t)m->stage) : all;
        json_t *group = json_array_get(groups, m->group);
        if (json_is_object(group))
            RS_TRY(rs_group_add_name(group, m->name));
    }
    if (reader->members_unknown > 0)
        return rs_catalog_warn(reader->catalog,
            "nothing says to which of %zu parameter groups %zu parameters belong",
            rs_groups_count(all), reader->members_unknown);
    return RS_OK;
}
