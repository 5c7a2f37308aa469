/*
 * Matching names to slots by shape and order.
 *
 * A torch optimizer numbers its parameters group by group, each group in the order of the module,
 * and does not know their names. The names are found by a walk over the module: each next name is
 * the next slot of some group, or is not in the optimizer. What counts is whether exactly one such
 * walk exists.
 *
 * The walk keeps the set of reachable states (how many slots of each group are filled), each with
 * the number of ways to reach it, counted up to two. A name may be left over only while enough
 * names of its shape remain for the open slots of that shape, which in practice leaves one state or
 * few. More than STATES_MOST are taken for ambiguous.
 *
 * Cost: names times states times groups.
 */
#include "ckpt/match.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

#define STATES_MOST 4096
#define GROUPS_MOST 64

typedef struct state {
    int32_t *filled; /* [groups] */
    int ways;
    int32_t from;  /* index in the step before; of the only way */
    int32_t taken; /* group that the name went to, -1: left over */
} state;

typedef struct step {
    state *items;
    int32_t *numbers; /* of all states */
    size_t count;
} step;

typedef struct matcher {
    const rs_match_shape *names;
    size_t name_count;
    const rs_match_group *groups;
    size_t group_count;
    size_t *later; /* names of the same class behind each name */
    step *steps;   /* [names + 1] */
} matcher;

static bool fits(const rs_match_shape *slot, const rs_match_shape *name)
{
    return slot->ndim < 0 ||
           (slot->ndim == name->ndim &&
               memcmp(slot->shape, name->shape, sizeof *name->shape * (size_t)name->ndim) == 0);
}

/* Open slots that only names of this shape fit. */
static size_t open_slots(const matcher *m, const state *s, const rs_match_shape *shape)
{
    size_t count = 0;
    for (size_t g = 0; g < m->group_count; g++)
        for (size_t i = (size_t)s->filled[g]; i < m->groups[g].count; i++)
            count += m->groups[g].slots[i].ndim >= 0 && fits(&m->groups[g].slots[i], shape);
    return count;
}

/* Adds a state to the step, or ways to one that is there. */
static bool reach(const matcher *m, step *to, const state *from, int32_t index, int taken)
{
    int32_t filled[GROUPS_MOST];
    size_t bytes = m->group_count * sizeof *filled;
    memcpy(filled, from->filled, bytes);
    if (taken >= 0)
        filled[taken]++;
    for (size_t i = 0; i < to->count; i++)
        if (memcmp(to->items[i].filled, filled, bytes) == 0) {
            to->items[i].ways = 2;
            return true;
        }
    if (to->count == STATES_MOST)
        return false;
    state *s = &to->items[to->count];
    s->filled = to->numbers + to->count * m->group_count;
    memcpy(s->filled, filled, bytes);
    s->ways = from->ways;
    s->from = index;
    s->taken = taken;
    to->count++;
    return true;
}

/* Room for the states of a step: at most each earlier one times its choices. */
static rs_status make_room(const matcher *m, step *s, size_t before)
{
    size_t most = before * (m->group_count + 1);
    if (most > STATES_MOST)
        most = STATES_MOST;
    s->items = rs_calloc(most, sizeof *s->items);
    s->numbers = rs_calloc(most * (m->group_count > 0 ? m->group_count : 1), sizeof *s->numbers);
    return s->items != NULL && s->numbers != NULL ? RS_OK
                                                  : rs_error_memory(most * sizeof *s->items);
}

static rs_status walk(matcher *m, bool *gave_up)
{
    RS_TRY(make_room(m, &m->steps[0], 1));
    m->steps[0].items[0] = (state){.filled = m->steps[0].numbers, .ways = 1, .from = -1};
    m->steps[0].count = 1;
    for (size_t n = 0; n < m->name_count && !*gave_up; n++) {
        const step *from = &m->steps[n];
        step *to = &m->steps[n + 1];
        RS_TRY(make_room(m, to, from->count));
        for (size_t i = 0; i < from->count && !*gave_up; i++) {
            const state *s = &from->items[i];
            for (size_t g = 0; g < m->group_count; g++)
                if ((size_t)s->filled[g] < m->groups[g].count &&
                    fits(&m->groups[g].slots[s->filled[g]], &m->names[n]))
                    *gave_up = *gave_up || !reach(m, to, s, (int32_t)i, (int)g);
            if (open_slots(m, s, &m->names[n]) <= m->later[n])
                *gave_up = *gave_up || !reach(m, to, s, (int32_t)i, -1);
        }
    }
    return RS_OK;
}

static void follow(const matcher *m, int32_t index, int *group_of, int *slot_of)
{
    for (size_t n = m->name_count; n-- > 0;) {
        const state *s = &m->steps[n + 1].items[index];
        group_of[n] = s->taken;
        slot_of[n] = s->taken >= 0 ? s->filled[s->taken] - 1 : -1;
        index = s->from;
    }
}

static void count_classes(matcher *m)
{
    for (size_t n = m->name_count; n-- > 0;) {
        m->later[n] = 0;
        for (size_t k = n + 1; k < m->name_count; k++)
            if (fits(&m->names[n], &m->names[k])) {
                m->later[n] = m->later[k] + 1;
                break;
            }
    }
}

rs_status rs_match_names(const rs_match_shape *names, size_t name_count,
    const rs_match_group *groups, size_t group_count, int *group_of, int *slot_of, int *ways)
{
    matcher m = {
        .names = names, .name_count = name_count, .groups = groups, .group_count = group_count};
    bool gave_up = group_count > GROUPS_MOST;
    rs_status status = RS_OK;
    *ways = gave_up ? 2 : 0;
    m.later = rs_calloc(name_count, sizeof *m.later);
    m.steps = rs_calloc(name_count + 1, sizeof *m.steps);
    if (m.later == NULL || m.steps == NULL)
        RS_TRY_GOTO(rs_error_memory(name_count * sizeof *m.steps), out);
    if (gave_up)
        goto out;
    count_classes(&m);
    RS_TRY_GOTO(walk(&m, &gave_up), out);
    if (gave_up) {
        *ways = 2;
        goto out;
    }
    const step *last = &m.steps[name_count];
    for (size_t i = 0; i < last->count; i++) {
        bool full = true;
        for (size_t g = 0; g < group_count; g++)
            full = full && (size_t)last->items[i].filled[g] == groups[g].count;
        if (!full)
            continue;
        *ways = last->items[i].ways;
        if (*ways == 1)
            follow(&m, (int32_t)i, group_of, slot_of);
    }
out:
    for (size_t n = 0; m.steps != NULL && n <= name_count; n++) {
        free(m.steps[n].items);
        free(m.steps[n].numbers);
    }
    free(m.steps);
    free(m.later);
    return status;
}
