/* Open addressing with linear probing, at most two thirds full. */
#include "ckpt/names.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"
#include "base/memory.h"

static uint32_t hash_of(const char *name)
{
    return (uint32_t)XXH3_64bits(name, strlen(name));
}

static rs_names_slot *slot_of(const rs_names *names, const char *name, uint32_t hash)
{
    size_t mask = names->capacity - 1;
    for (size_t at = hash & mask;; at = (at + 1) & mask) {
        rs_names_slot *slot = &names->slots[at];
        if (slot->name == NULL || (slot->hash == hash && strcmp(slot->name, name) == 0))
            return slot;
    }
}

int rs_names_find(const rs_names *names, const char *name)
{
    if (names->capacity == 0)
        return -1;
    const rs_names_slot *slot = slot_of(names, name, hash_of(name));
    return slot->name != NULL ? slot->number : -1;
}

static rs_status grow(rs_names *names)
{
    rs_names bigger = {.capacity = names->capacity > 0 ? 2 * names->capacity : 64};
    bigger.slots = rs_calloc(bigger.capacity, sizeof *bigger.slots);
    if (bigger.slots == NULL)
        return rs_error_memory(bigger.capacity * sizeof *bigger.slots);
    for (size_t i = 0; i < names->capacity; i++)
        if (names->slots[i].name != NULL)
            *slot_of(&bigger, names->slots[i].name, names->slots[i].hash) = names->slots[i];
    bigger.count = names->count;
    free(names->slots);
    *names = bigger;
    return RS_OK;
}

rs_status rs_names_add(rs_names *names, const char *name, int number, int *found)
{
    if (3 * (names->count + 1) > 2 * names->capacity)
        RS_TRY(grow(names));
    uint32_t hash = hash_of(name);
    rs_names_slot *slot = slot_of(names, name, hash);
    if (slot->name != NULL) {
        *found = slot->number;
        return RS_OK;
    }
    *slot = (rs_names_slot){.name = name, .hash = hash, .number = number};
    names->count++;
    *found = -1;
    return RS_OK;
}

void rs_names_fini(rs_names *names)
{
    free(names->slots);
    memset(names, 0, sizeof *names);
}
