/* Numbers by name: a hash table whose keys are borrowed. */
#ifndef RS_CKPT_NAMES_H
#define RS_CKPT_NAMES_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/status.h"

typedef struct rs_names_slot {
    const char *name; /* NULL: free */
    uint32_t hash;
    int32_t number;
} rs_names_slot;

/* Starts as {0}. */
typedef struct rs_names {
    rs_names_slot *slots;
    size_t capacity; /* power of two, or 0 */
    size_t count;
} rs_names;

/* The number of `name`, -1 if there is none. */
int rs_names_find(const rs_names *names, const char *name);

/* Gives `name` (borrowed; it must outlive the table) the number, unless it has one already: then
 * `*found` is that one, else -1. */
rs_status rs_names_add(rs_names *names, const char *name, int number, int *found) RS_MUST_CHECK;

void rs_names_fini(rs_names *names);

#endif
