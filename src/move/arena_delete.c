/*
 * Deleting an arena: its table, and of its extents what no other table of the job names.
 *
 * Tables adopt segments from each other's extent files, so an extent file outlives the arena that
 * made it for as long as some table names a part of it. What is not named of such a file is given
 * back (punched); a file of which nothing is named is removed.
 *
 * Invariants: the table goes first (arena.c, 4); a table that cannot be read names nothing, but
 * never keeps its own arena from being deleted; deleting twice is deleting once. Cost: reads every
 * table of the job on this node.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "move/arena_table.h"
#include "reshard/arena.h"

typedef struct range {
    int64_t begin;
    int64_t end;
} range;

/* The ranges of one extent that some table names. */
typedef struct range_list {
    range *items;
    size_t count;
    size_t capacity;
} range_list;

/* Reads the table of (generation, rank); RS_ERR_NOT_FOUND if there is none. */
static rs_status read_table(const rs_keeper *keeper, int generation, int rank, rs_table *out)
{
    char name[RS_ARENA_NAME];
    int fd;
    rs_arena_file_name(keeper, generation, rank, RS_ARENA_TABLE, name);
    RS_TRY(rs_arena_file_open(keeper, name, false, &fd));
    rs_status status = rs_table_read(keeper, generation, rank, fd, name, out);
    close(fd);
    return status;
}

/* Appends the ranges of `extent` that `table` names. */
static rs_status add_ranges(const rs_table *table, const rs_extent *extent, range_list *ranges)
{
    for (size_t k = 0; k < table->entry_count; k++) {
        const rs_entry *entry = &table->entries[k];
        const rs_extent *there = &table->extents[entry->extent];
        if (there->generation != extent->generation || there->rank != extent->rank ||
            entry->bytes == 0)
            continue;
        RS_TRY(RS_LIST_RESERVE_ONE(ranges));
        ranges->items[ranges->count++] = (range){entry->offset, entry->offset + entry->bytes};
    }
    return RS_OK;
}

static int compare_ranges(const void *a, const void *b)
{
    return rs_compare(((const range *)a)->begin, ((const range *)b)->begin);
}

/* Collects, sorted, the ranges of `extent` that the tables in the folder name. */
static rs_status named_ranges(const rs_keeper *keeper, const rs_extent *extent, range_list *ranges)
{
    DIR *folder;
    RS_TRY(rs_keeper_list(keeper, &folder));
    rs_status status = RS_OK;
    for (struct dirent *entry; status == RS_OK && (entry = readdir(folder)) != NULL;) {
        int generation;
        int rank;
        rs_arena_file kind;
        rs_table table = {0};
        if (!rs_arena_file_parse(keeper, entry->d_name, &generation, &rank, &kind) ||
            kind != RS_ARENA_TABLE)
            continue;
        rs_status found = read_table(keeper, generation, rank, &table);
        if (found == RS_ERR_NO_MEMORY)
            status = found;
        if (found == RS_OK)
            status = add_ranges(&table, extent, ranges);
        rs_table_fini(&table);
    }
    closedir(folder);
    if (ranges->count > 0)
        qsort(ranges->items, ranges->count, sizeof *ranges->items, compare_ranges);
    return status;
}

/* Gives back everything of the extent outside the sorted ranges. */
static rs_status punch_rest(
    const rs_keeper *keeper, const rs_extent *extent, const char *name, const range_list *ranges)
{
    int fd;
    rs_status status = rs_arena_file_open(keeper, name, true, &fd);
    if (status == RS_ERR_NOT_FOUND)
        return RS_OK;
    if (status != RS_OK)
        return status;
    int64_t page = rs_max64(sysconf(_SC_PAGESIZE), RS_ARENA_PAGE);
    int64_t at = 0;
    for (size_t k = 0; k <= ranges->count && status == RS_OK; k++) {
        int64_t end = k < ranges->count ? ranges->items[k].begin : rs_round_up(extent->bytes, page);
        end = end / page * page;
        if (end > at && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at,
                            (off_t)(end - at)) != 0)
            status =
                rs_error_errno(errno, "cannot give back a part of %s/%s", keeper->folder, name);
        if (k < ranges->count)
            at = rs_max64(at, rs_round_up(ranges->items[k].end, page));
    }
    close(fd);
    return status;
}

static rs_status remove_file(const rs_keeper *keeper, const char *name)
{
    if (unlinkat(keeper->fd, name, 0) != 0 && errno != ENOENT)
        return rs_error_errno(errno, "cannot remove %s/%s", keeper->folder, name);
    return RS_OK;
}

/* Removes an extent as far as no table names it. */
static rs_status release_extent(
    const rs_keeper *keeper, const rs_extent *extent, const rs_table *keep)
{
    range_list ranges = {0};
    char name[RS_ARENA_NAME];
    rs_arena_file_name(keeper, extent->generation, extent->rank, RS_ARENA_EXTENT, name);
    rs_status status = keep != NULL ? add_ranges(keep, extent, &ranges) : RS_OK;
    if (status == RS_OK)
        status = named_ranges(keeper, extent, &ranges);
    if (status == RS_OK)
        status = ranges.count > 0 ? punch_rest(keeper, extent, name, &ranges)
                                  : remove_file(keeper, name);
    free(ranges.items);
    return status;
}

rs_status rs_arena_delete(rs_keeper *keeper, int generation, int rank, const rs_arena *keep)
{
    rs_table table = {0};
    char name[RS_ARENA_NAME];
    rs_status status = read_table(keeper, generation, rank, &table);
    if (status == RS_ERR_NO_MEMORY || status == RS_ERR_IO)
        return status;
    bool own_named = false;
    RS_TRY_GOTO(
        remove_file(keeper, rs_arena_file_name(keeper, generation, rank, RS_ARENA_TABLE, name)),
        free_table);
    RS_TRY_GOTO(
        remove_file(keeper, rs_arena_file_name(keeper, generation, rank, RS_ARENA_TABLE_NEW, name)),
        free_table);
    RS_TRY_GOTO(
        remove_file(keeper, rs_arena_file_name(keeper, generation, rank, RS_ARENA_LEDGER, name)),
        free_table);
    for (size_t k = 0; k < table.extent_count; k++) {
        const rs_extent *extent = &table.extents[k];
        own_named = own_named || (extent->generation == generation && extent->rank == rank);
        RS_TRY_GOTO(release_extent(keeper, extent, rs_arena_table(keep)), free_table);
    }
    /* Of an arena whose table is absent or damaged, the own extent may still be there. */
    if (!own_named)
        status = release_extent(
            keeper, &(rs_extent){.generation = generation, .rank = rank}, rs_arena_table(keep));
free_table:
    rs_table_fini(&table);
    return status;
}
