/*
 * Agreement out of sums: first every process adds its status at its own place of a list, so that
 * all see the same lowest one that failed; then that one alone adds its text, the others zeros.
 */
#include "reshard/group.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

#define TEXT_WORDS 128

int rs_group_rank(const rs_group *group)
{
    return group != NULL ? group->rank : 0;
}

int rs_group_size(const rs_group *group)
{
    return group != NULL ? group->size : 1;
}

rs_status rs_group_add(const rs_group *group, uint64_t *words, size_t count)
{
    if (group == NULL || group->size == 1 || count == 0)
        return RS_OK;
    return group->add(group->context, words, count);
}

rs_status rs_group_agree(const rs_group *group, rs_status mine)
{
    uint64_t text[TEXT_WORDS] = {0};
    uint64_t few[64] = {0};
    if (rs_group_size(group) == 1)
        return mine;
    if (mine != RS_OK)
        snprintf((char *)text, sizeof text, "%s", rs_error_message());
    /* The statuses in as many rounds as it takes: nothing is allocated where memory may be what
     * failed. */
    int failed = -1;
    rs_status status = RS_OK;
    for (int first = 0; first < group->size && failed < 0; first += 64) {
        memset(few, 0, sizeof few);
        if (group->rank >= first && group->rank < first + 64)
            few[group->rank - first] = (uint64_t)mine;
        RS_TRY(rs_group_add(group, few, 64));
        for (int i = 0; i < 64 && failed < 0; i++)
            if (few[i] != 0) {
                failed = first + i;
                status = (rs_status)few[i];
            }
    }
    if (failed < 0)
        return RS_OK;
    if (group->rank != failed)
        memset(text, 0, sizeof text);
    RS_TRY(rs_group_add(group, text, TEXT_WORDS));
    return rs_error_set(status, "rank %d: %.*s", failed, (int)sizeof text - 1, (const char *)text);
}
