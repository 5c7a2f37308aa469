/* Checkpoints of reshard's own for tests, saved by the ranks of a layout one after the other, which
 * takes the memory of one. */
#ifndef RS_TESTS_SAVE_H
#define RS_TESTS_SAVE_H

#include <stdlib.h>

#include "pattern.h"
#include "reshard/layout.h"
#include "reshard/native.h"

/* Writes what a holder has to its memory. */
typedef rs_status save_fill(
    void *context, const rs_placement *placement, int holder, const rs_memory *memory);

/* The pattern; `context` is its salt, a uint64_t. */
static inline rs_status save_pattern(
    void *context, const rs_placement *placement, int holder, const rs_memory *memory)
{
    const uint64_t *salt = context;
    return pattern_fill(placement, holder, memory, *salt) ? RS_OK : RS_ERR_NO_MEMORY;
}

/* One rank's part; its record for the commit. */
static inline rs_status save_part(const rs_save_name *name, const rs_placement *placement,
    int holder, save_fill *fill, void *context, char **record)
{
    rs_memory memory = {0};
    rs_save *part = NULL;
    rs_status status = rs_memory_allocate(placement, holder, &memory);
    if (status == RS_OK)
        status = fill(context, placement, holder, &memory);
    if (status == RS_OK)
        status = rs_save_begin(placement, holder, &memory, &part);
    rs_memory_free(&memory);
    if (status == RS_OK)
        status = rs_save_write(part, name);
    if (status == RS_OK)
        status = rs_save_record(part, record);
    rs_save_destroy(part);
    return status;
}

/* All parts and the commit, of a save that is prepared. */
static inline rs_status save_ranks(const rs_save_name *name, const rs_space *space,
    const char *text, save_fill *fill, void *context)
{
    rs_layout layout;
    rs_placement *placement = NULL;
    char **records = NULL;
    rs_status status = rs_layout_parse(text, &layout);
    if (status == RS_OK)
        status = rs_layout_placement(space, &layout, &placement);
    rs_save_about about = {
        .layout = text, .world = status == RS_OK ? rs_layout_world(&layout) : 0, .extras = "{}"};
    size_t world = (size_t)about.world;
    if (status == RS_OK && (records = calloc(world + 1, sizeof *records)) == NULL)
        status = RS_ERR_NO_MEMORY;
    for (int r = 0; r < about.world && status == RS_OK; r++)
        status = save_part(name, placement, r, fill, context, &records[r]);
    if (status == RS_OK)
        status = rs_save_commit(name, space, &about, (const char *const *)records, world);
    for (size_t r = 0; records != NULL && r < world; r++)
        free(records[r]);
    free(records);
    rs_placement_destroy(placement);
    return status;
}

static inline rs_status save_all(const rs_save_name *name, const rs_space *space, const char *text,
    save_fill *fill, void *context)
{
    rs_status status = rs_save_prepare(name);
    return status == RS_OK ? save_ranks(name, space, text, fill, context) : status;
}

#endif
