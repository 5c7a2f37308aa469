/*
 * Arenas: making, mapping, committing and deleting them.
 *
 * An arena is a table (arena_table.h) over extent files. Its own extent file holds the segments
 * that are new in its generation; a segment that did not change place is adopted: the table names
 * the older extent file where it lies, so that keeping it costs neither time nor memory. Chains of
 * adoption over many generations need no care, since a table names files, not tables.
 *
 * Invariants:
 * 1. An extent file exists with its full room before the table that names it appears (a sparse one:
 *    with its full length), so a table that can be opened can be used.
 * 2. Segments begin at page starts. So no page belongs to two segments, and giving back or keeping
 * one never touches another.
 * 3. A commit writes the slot that is not the valid one; a process that dies in the middle leaves
 * the earlier commit.
 * 4. Deleting removes the table first, then what no table names any more: a process that dies in
 * the middle leaves files that a later delete or sweep removes, never a table without its files.
 *
 * Cost: reserving 1 GiB takes about 0.25 s, touching it 0.3 to 1 s, mapping it for reading 0.06 s;
 * that is why touching can be done in slices, ahead of time.
 */
#include "reshard/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "base/text.h"
#include "move/arena_table.h"

/* Asking for the free room costs tens of microseconds; this part of it is used between two askings.
 */
#define CREDIT 64

/* How an arena is mapped. */
typedef enum usage { READS = 0, WRITES, FILLS /* as a guest */ } usage;

typedef struct mapping {
    int fd;
    char *base; /* NULL for an extent of no bytes */
    int64_t bytes;
} mapping;

struct rs_arena {
    rs_keeper *keeper;
    int generation;
    int rank;
    bool writable;
    bool guest;
    int lock; /* the open table file, locked while it is mapped for writing; -1 */
    rs_table table;
    rs_table_header *header; /* the mapped table file */
    mapping *extents;        /* as the table numbers them */
    int own;                 /* index of the arena's own extent, -1 if it has none */
    rs_region *regions;
    rs_memory memory;
    size_t touch_region; /* where rs_arena_touch goes on */
    int64_t touch_offset;
    int64_t credit; /* bytes that may be reserved before asking for the free room again */
};

/* What segments of no bytes point to. */
static _Alignas(64) char nothing[64];

static int64_t page_bytes(void)
{
    return rs_max64(sysconf(_SC_PAGESIZE), RS_ARENA_PAGE);
}

const rs_memory *rs_arena_memory(const rs_arena *arena)
{
    return &arena->memory;
}

int rs_arena_generation(const rs_arena *arena)
{
    return arena->generation;
}

int rs_arena_rank(const rs_arena *arena)
{
    return arena->rank;
}

const rs_table *rs_arena_table(const rs_arena *arena)
{
    return arena != NULL ? &arena->table : NULL;
}

void rs_arena_close(rs_arena *arena)
{
    if (arena == NULL)
        return;
    for (size_t k = 0; arena->extents != NULL && k < arena->table.extent_count; k++) {
        if (arena->extents[k].base != NULL)
            munmap(arena->extents[k].base, (size_t)arena->extents[k].bytes);
        if (arena->extents[k].fd >= 0)
            close(arena->extents[k].fd);
    }
    if (arena->header != NULL)
        munmap(arena->header, (size_t)rs_table_file_bytes(&arena->table));
    if (arena->lock >= 0)
        close(arena->lock); /* last: who gets the lock finds nobody writing */
    free(arena->extents);
    free(arena->regions);
    rs_table_fini(&arena->table);
    free(arena);
}

/* Opens and maps one extent that the table names. */
static rs_status map_extent(rs_arena *arena, size_t k)
{
    const rs_extent *extent = &arena->table.extents[k];
    mapping *map = &arena->extents[k];
    const rs_keeper *keeper = arena->keeper;
    char name[RS_ARENA_NAME];
    rs_arena_file_name(keeper, extent->generation, extent->rank, RS_ARENA_EXTENT, name);
    RS_TRY(rs_arena_file_open(keeper, name, arena->writable, &map->fd));
    struct stat info;
    if (fstat(map->fd, &info) != 0)
        return rs_error_errno(errno, "cannot ask for the size of %s/%s", keeper->folder, name);
    if (info.st_size < extent->bytes)
        return rs_error_set(RS_ERR_MALFORMED, "%s/%s has %lld bytes, its table wants %" PRId64,
            keeper->folder, name, (long long)info.st_size, extent->bytes);
    if (extent->bytes == 0)
        return RS_OK;
    int protection = arena->writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *base = mmap(NULL, (size_t)extent->bytes, protection, MAP_SHARED, map->fd, 0);
    if (base == MAP_FAILED)
        return rs_error_errno(errno, "cannot map %s/%s", keeper->folder, name);
    map->base = base;
    map->bytes = extent->bytes;
    return RS_OK;
}

/* Opens and maps everything that the table of (generation, rank) names. */
static rs_status map_arena(rs_keeper *keeper, int generation, int rank, usage use, rs_arena **out)
{
    rs_status status;
    bool writable = use != READS;
    char name[RS_ARENA_NAME];
    rs_arena_file_name(keeper, generation, rank, RS_ARENA_TABLE, name);
    int fd;
    RS_TRY(rs_arena_file_open(keeper, name, writable, &fd));
    rs_arena *arena = rs_calloc(1, sizeof *arena);
    if (arena == NULL) {
        status = rs_error_memory(sizeof *arena);
        goto close_file;
    }
    arena->keeper = keeper;
    arena->generation = generation;
    arena->rank = rank;
    arena->writable = writable;
    arena->guest = use == FILLS;
    arena->own = -1;
    arena->lock = -1;
    RS_TRY_GOTO(rs_table_read(keeper, generation, rank, fd, name, &arena->table), close_arena);
    const rs_table *table = &arena->table;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *header = mmap(NULL, (size_t)rs_table_file_bytes(table), protection, MAP_SHARED, fd, 0);
    if (header == MAP_FAILED) {
        status = rs_error_errno(errno, "cannot map %s/%s", keeper->folder, name);
        goto close_arena;
    }
    arena->header = header;
    if (writable)
        RS_TRY_GOTO(
            rs_table_lock(fd, name, arena->guest ? RS_TABLE_GUEST : RS_TABLE_OWNER, arena->header),
            close_arena);
    arena->extents = rs_calloc(table->extent_count, sizeof *arena->extents);
    arena->regions = rs_calloc(table->entry_count, sizeof *arena->regions);
    if (arena->extents == NULL || arena->regions == NULL) {
        status = rs_error_memory(table->extent_count * sizeof *arena->extents +
                                 table->entry_count * sizeof *arena->regions);
        goto close_arena;
    }
    for (size_t k = 0; k < table->extent_count; k++)
        arena->extents[k].fd = -1;
    for (size_t k = 0; k < table->extent_count; k++) {
        RS_TRY_GOTO(map_extent(arena, k), close_arena);
        if (table->extents[k].generation == generation && table->extents[k].rank == rank)
            arena->own = (int)k;
    }
    for (size_t k = 0; k < table->entry_count; k++) {
        const rs_entry *entry = &table->entries[k];
        char *base = arena->extents[entry->extent].base;
        arena->regions[k] = (rs_region){.segment = entry->segment,
            .bytes = entry->bytes,
            .data = entry->bytes > 0 ? base + entry->offset : nothing};
    }
    arena->memory = (rs_memory){.regions = arena->regions, .count = table->entry_count};
    if (writable)
        arena->lock = fd;
    else
        close(fd);
    *out = arena;
    return RS_OK;
close_arena:
    rs_arena_close(arena);
close_file:
    close(fd);
    return status;
}

rs_status rs_arena_open(rs_keeper *keeper, int generation, int rank, bool writable, rs_arena **out)
{
    return map_arena(keeper, generation, rank, writable ? WRITES : READS, out);
}

rs_status rs_arena_open_guest(rs_keeper *keeper, int generation, int rank, rs_arena **out)
{
    rs_arena *arena = NULL;
    RS_TRY(map_arena(keeper, generation, rank, FILLS, &arena));
    if (rs_arena_step(arena) >= 0) {
        rs_arena_close(arena);
        return rs_error_set(RS_ERR_ARGUMENT,
            "the arena of generation %d, rank %d is complete: nobody fills it beside its rank",
            generation, rank);
    }
    *out = arena;
    return RS_OK;
}

rs_status rs_arena_open_sibling(const rs_arena *arena, int rank, rs_arena **out)
{
    return map_arena(arena->keeper, arena->generation, rank, READS, out);
}

/* The entry of a segment, NULL if the table has none. */
static const rs_entry *find_entry(const rs_table *table, int segment)
{
    size_t at = RS_SEARCH(table->entry_count, k, table->entries[k].segment < segment);
    bool there = at < table->entry_count && table->entries[at].segment == segment;
    return there ? &table->entries[at] : NULL;
}

/* Index of an extent in the table under construction, which is added if need be. There is room. */
static int32_t name_extent(rs_table *table, const rs_extent *extent)
{
    for (size_t k = 0; k < table->extent_count; k++)
        if (table->extents[k].generation == extent->generation &&
            table->extents[k].rank == extent->rank)
            return (int32_t)k;
    table->extents[table->extent_count] = *extent;
    return (int32_t)table->extent_count++;
}

static rs_status adopt_segment(
    rs_table *table, const rs_segment *segment, const rs_arena *old, rs_entry *entry)
{
    const rs_entry *there = old != NULL ? find_entry(&old->table, segment->segment) : NULL;
    if (there == NULL)
        return rs_error_set(RS_ERR_ARGUMENT,
            "segment %d is to be adopted, but the old arena does not have it", segment->segment);
    if (there->bytes != segment->bytes)
        return rs_error_set(RS_ERR_ARGUMENT,
            "segment %d is to be adopted with %" PRId64 " bytes, the old arena has %" PRId64,
            segment->segment, segment->bytes, there->bytes);
    *entry = *there;
    entry->extent = name_extent(table, &old->table.extents[there->extent]);
    return RS_OK;
}

/* Lays out the segments: adopted ones where they are, the others in turn in the extent `own`. */
static rs_status lay_out(const rs_segment_list *segments, const rs_adoption *adopted,
    size_t adopted_count, rs_extent own, rs_table *table)
{
    int64_t page = page_bytes();
    size_t next = 0; /* of adopted */
    size_t most = 1;
    for (size_t k = 0; k < adopted_count; k++)
        if (adopted[k].from != NULL && (k == 0 || adopted[k].from != adopted[k - 1].from))
            most += adopted[k].from->table.extent_count;
    table->extents = rs_calloc(most, sizeof *table->extents);
    table->entries = rs_calloc(segments->count, sizeof *table->entries);
    if (table->extents == NULL || table->entries == NULL)
        return rs_error_memory(segments->count * sizeof *table->entries);
    table->entry_count = segments->count;
    for (size_t k = 0; k < segments->count; k++) {
        const rs_segment *segment = &segments->items[k];
        rs_entry *entry = &table->entries[k];
        if (segment->segment < 0 || segment->bytes < 0 ||
            (k > 0 && segment->segment <= segments->items[k - 1].segment))
            return rs_error_set(RS_ERR_ARGUMENT,
                "segment %d (%" PRId64 " bytes) is out of order or negative", segment->segment,
                segment->bytes);
        if (next < adopted_count && adopted[next].segment == segment->segment) {
            RS_TRY(adopt_segment(table, segment, adopted[next].from, entry));
            next++;
            continue;
        }
        *entry = (rs_entry){.segment = segment->segment,
            .extent = -1,
            .offset = own.bytes,
            .bytes = segment->bytes};
        int64_t end;
        if (!rs_add_fits(own.bytes, segment->bytes, &end) || end > INT64_MAX - page)
            return rs_error_set(RS_ERR_OVERFLOW, "the segments' sizes do not fit 64 bits");
        own.bytes = rs_round_up(end, page);
    }
    if (next < adopted_count)
        return rs_error_set(RS_ERR_ARGUMENT,
            "segment %d is to be adopted, but the new arena does not have it",
            adopted[next].segment);
    /* The own extent is named last, and always, so that the arena can be told by it. */
    int32_t index = name_extent(table, &own);
    for (size_t k = 0; k < segments->count; k++)
        if (table->entries[k].extent < 0)
            table->entries[k].extent = index;
    return RS_OK;
}

static rs_status no_room(const rs_keeper *keeper, const rs_extent *own, int64_t need, int64_t have)
{
    char wanted[RS_HUMAN];
    char found[RS_HUMAN];
    return rs_error_set(RS_ERR_BUDGET,
        "the arena of generation %d, rank %d needs %s (%" PRId64 " bytes) in %s, %s (%" PRId64
        " bytes) are free",
        own->generation, own->rank, rs_human_bytes(need, wanted), need, keeper->folder,
        rs_human_bytes(have, found), have);
}

/* Reserves a range of a file; `have` in the error is what is free now. */
static rs_status reserve_range(
    const rs_keeper *keeper, const rs_extent *own, int fd, int64_t offset, int64_t bytes)
{
    int error;
    do
        error = posix_fallocate(fd, (off_t)offset, (off_t)bytes);
    while (error == EINTR);
    if (error == 0)
        return RS_OK;
    if (error != ENOSPC && error != ENOMEM && error != EDQUOT)
        return rs_error_errno(
            error, "cannot reserve %" PRId64 " bytes in %s", bytes, keeper->folder);
    int64_t have = 0;
    RS_TRY(rs_keeper_free_bytes(keeper, &have));
    return no_room(keeper, own, bytes, have);
}

/* Makes the own extent file, with its room unless sparse. */
static rs_status make_extent(const rs_keeper *keeper, const rs_extent *own, bool sparse)
{
    char name[RS_ARENA_NAME];
    rs_arena_file_name(keeper, own->generation, own->rank, RS_ARENA_EXTENT, name);
    if (!sparse) {
        int64_t have;
        RS_TRY(rs_keeper_free_bytes(keeper, &have));
        if (own->bytes > have)
            return no_room(keeper, own, own->bytes, have);
    }
    int fd = openat(
        keeper->fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return rs_error_errno(errno, "cannot create %s/%s", keeper->folder, name);
    rs_status status = RS_OK;
    if (ftruncate(fd, (off_t)own->bytes) != 0)
        status = rs_error_errno(errno, "cannot size %s/%s", keeper->folder, name);
    else if (!sparse && own->bytes > 0)
        status = reserve_range(keeper, own, fd, 0, own->bytes);
    close(fd);
    if (status != RS_OK)
        unlinkat(keeper->fd, name, 0);
    return status;
}

static rs_status create(rs_keeper *keeper, int generation, int rank,
    const rs_segment_list *segments, const rs_adoption *adopted, size_t adopted_count, bool sparse,
    rs_arena **out)
{
    rs_status status;
    rs_table table = {.flags = sparse ? RS_TABLE_SPARSE : 0};
    char name[RS_ARENA_NAME];
    if (generation < 0 || rank < 0)
        return rs_error_set(
            RS_ERR_ARGUMENT, "arena of generation %d, rank %d: both from 0 on", generation, rank);
    RS_TRY_GOTO(lay_out(segments, adopted, adopted_count,
                    (rs_extent){.generation = generation, .rank = rank}, &table),
        free_table);
    RS_TRY_GOTO(make_extent(keeper, &table.extents[table.extent_count - 1], sparse), free_table);
    RS_TRY_GOTO(rs_table_write(keeper, generation, rank, &table), remove_extent);
    status = map_arena(keeper, generation, rank, WRITES, out);
    if (status != RS_OK)
        unlinkat(keeper->fd, rs_arena_file_name(keeper, generation, rank, RS_ARENA_TABLE, name), 0);
remove_extent:
    if (status != RS_OK)
        unlinkat(
            keeper->fd, rs_arena_file_name(keeper, generation, rank, RS_ARENA_EXTENT, name), 0);
free_table:
    rs_table_fini(&table);
    return status;
}

/* The same where all that is adopted comes from one arena. */
static rs_status create_after(rs_keeper *keeper, int generation, int rank,
    const rs_segment_list *segments, const rs_arena *old, const int *adopted, size_t adopted_count,
    bool sparse, rs_arena **out)
{
    rs_adoption *all = rs_calloc(adopted_count, sizeof *all);
    if (all == NULL)
        return rs_error_memory(adopted_count * sizeof *all);
    for (size_t k = 0; k < adopted_count; k++)
        all[k] = (rs_adoption){adopted[k], old};
    rs_status status = create(keeper, generation, rank, segments, all, adopted_count, sparse, out);
    free(all);
    return status;
}

rs_status rs_arena_create(rs_keeper *keeper, int generation, int rank,
    const rs_segment_list *segments, const rs_arena *old, const int *adopted, size_t adopted_count,
    rs_arena **out)
{
    return create_after(
        keeper, generation, rank, segments, old, adopted, adopted_count, false, out);
}

rs_status rs_arena_create_sparse(rs_keeper *keeper, int generation, int rank,
    const rs_segment_list *segments, const rs_arena *old, const int *adopted, size_t adopted_count,
    rs_arena **out)
{
    return create_after(keeper, generation, rank, segments, old, adopted, adopted_count, true, out);
}

rs_status rs_arena_create_from(rs_keeper *keeper, int generation, int rank,
    const rs_segment_list *segments, const rs_adoption *adopted, size_t adopted_count,
    rs_arena **out)
{
    return create(keeper, generation, rank, segments, adopted, adopted_count, false, out);
}

/* The place in its extent of a range of a segment, which must lie within the segment. */
static rs_status locate(const rs_arena *arena, int segment, int64_t offset, int64_t bytes,
    const rs_entry **entry, int64_t *at)
{
    int64_t end;
    const rs_entry *found = find_entry(&arena->table, segment);
    if (found == NULL)
        return rs_error_set(
            RS_ERR_NOT_FOUND, "the arena of rank %d has no segment %d", arena->rank, segment);
    if (offset < 0 || bytes < 0 || !rs_add_fits(offset, bytes, &end) || end > found->bytes)
        return rs_error_set(RS_ERR_ARGUMENT,
            "bytes %" PRId64 " + %" PRId64 " do not lie within segment %d of %" PRId64 " bytes",
            offset, bytes, segment, found->bytes);
    if (!arena->writable)
        return rs_error_set(
            RS_ERR_ARGUMENT, "the arena of rank %d is mapped read-only", arena->rank);
    *entry = found;
    *at = found->offset + offset;
    return RS_OK;
}

rs_status rs_arena_reserve(rs_arena *arena, int segment, int64_t offset, int64_t bytes)
{
    const rs_entry *entry;
    int64_t at;
    RS_TRY(locate(arena, segment, offset, bytes, &entry, &at));
    if (bytes == 0)
        return RS_OK;
    const rs_extent *extent = &arena->table.extents[entry->extent];
    if (bytes > arena->credit) {
        int64_t have;
        RS_TRY(rs_keeper_free_bytes(arena->keeper, &have));
        if (bytes > have)
            return no_room(arena->keeper, extent, bytes, have);
        arena->credit = rs_max64(bytes, have / CREDIT);
    }
    arena->credit -= bytes;
    return reserve_range(arena->keeper, extent, arena->extents[entry->extent].fd, at, bytes);
}

static rs_status punch(const rs_keeper *keeper, int fd, int64_t begin, int64_t end)
{
    if (begin >= end)
        return RS_OK;
    int done;
    do
        done = fallocate(
            fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)begin, (off_t)(end - begin));
    while (done != 0 && errno == EINTR);
    if (done != 0)
        return rs_error_errno(
            errno, "cannot give back %" PRId64 " bytes in %s", end - begin, keeper->folder);
    return RS_OK;
}

rs_status rs_arena_punch(rs_arena *arena, int segment, int64_t offset, int64_t bytes)
{
    const rs_entry *entry;
    int64_t at;
    int64_t page = page_bytes();
    RS_TRY(locate(arena, segment, offset, bytes, &entry, &at));
    int64_t begin = rs_round_up(at, page);
    int64_t end = at + bytes;
    /* The last page of a segment is all its own, whatever part of it the segment fills. */
    end = offset + bytes == entry->bytes ? rs_round_up(end, page) : end / page * page;
    return punch(arena->keeper, arena->extents[entry->extent].fd, begin, end);
}

/* Faults in [at, at + bytes), without changing it. */
static void fault_in(char *at, int64_t bytes, bool writable)
{
#if defined(MADV_POPULATE_WRITE) && defined(MADV_POPULATE_READ)
    if (madvise(at, (size_t)bytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ) == 0)
        return;
#endif
    int64_t page = page_bytes();
    for (int64_t k = 0; k < bytes; k += page) {
        atomic_char *byte = (atomic_char *)(at + k);
        if (writable)
            atomic_fetch_or_explicit(byte, 0, memory_order_relaxed);
        else
            (void)atomic_load_explicit(byte, memory_order_relaxed);
    }
}

int64_t rs_arena_touch(rs_arena *arena, int64_t max_bytes)
{
    if ((arena->table.flags & RS_TABLE_SPARSE) && rs_arena_step(arena) < 0)
        return 0;
    int64_t page = page_bytes();
    int64_t slice = rs_round_up(rs_max64(rs_min64(max_bytes, INT64_MAX / 2), 0), page);
    for (; arena->touch_region < arena->memory.count; arena->touch_region++) {
        const rs_region *region = &arena->regions[arena->touch_region];
        int64_t n = rs_min64(region->bytes - arena->touch_offset, slice);
        if (n > 0)
            fault_in((char *)region->data + arena->touch_offset, n, arena->writable);
        slice -= n;
        arena->touch_offset += n;
        if (arena->touch_offset < region->bytes)
            break;
        arena->touch_offset = 0;
    }
    int64_t left = -arena->touch_offset;
    for (size_t k = arena->touch_region; k < arena->memory.count; k++)
        left += arena->regions[k].bytes;
    return left;
}

rs_status rs_arena_resident(const rs_arena *arena, int64_t *bytes)
{
    struct stat info;
    if (arena->own < 0) {
        *bytes = 0;
        return RS_OK;
    }
    if (fstat(arena->extents[arena->own].fd, &info) != 0)
        return rs_error_errno(errno, "cannot ask for the size of rank %d's extent", arena->rank);
    *bytes = (int64_t)info.st_blocks * 512;
    return RS_OK;
}

/* Reads a commit slot as its writer left it; false if it was never written, or is being written. */
static bool read_commit(const rs_arena *arena, int slot, rs_commit *out)
{
    const rs_commit *from = &arena->header->commit[slot];
    out->check = __atomic_load_n(&from->check, __ATOMIC_ACQUIRE);
    out->number = __atomic_load_n(&from->number, __ATOMIC_RELAXED);
    out->step = __atomic_load_n(&from->step, __ATOMIC_RELAXED);
    return out->number > 0 && out->check == rs_table_commit_check(arena->table.identity, out);
}

/* The commit that counts; its slot, -1 if there is none. */
static int last_commit(const rs_arena *arena, rs_commit *out)
{
    int best = -1;
    for (int slot = 0; slot < 2; slot++) {
        rs_commit commit;
        if (read_commit(arena, slot, &commit) && (best < 0 || commit.number > out->number)) {
            best = slot;
            *out = commit;
        }
    }
    return best;
}

int64_t rs_arena_step(const rs_arena *arena)
{
    rs_commit commit;
    return last_commit(arena, &commit) >= 0 ? (int64_t)commit.step : -1;
}

rs_status rs_arena_commit(rs_arena *arena, int64_t step)
{
    if (!arena->writable || arena->guest || step < 0)
        return rs_error_set(RS_ERR_ARGUMENT,
            "cannot commit the arena of rank %d at step %" PRId64 ": %s", arena->rank, step,
            step < 0       ? "steps count from 0"
            : arena->guest ? "it is another process's"
                           : "it is mapped read-only");
    if (rs_table_is_locked(arena->lock, RS_TABLE_GUEST))
        return rs_error_set(RS_ERR_EXISTS,
            "cannot commit the arena of rank %d at step %" PRId64 ": another process (%" PRIu64
            ") still writes to it",
            arena->rank, step, arena->header->writers[RS_TABLE_GUEST].pid);
    rs_commit commit;
    int slot = last_commit(arena, &commit);
    rs_commit next = {.number = slot >= 0 ? commit.number + 1 : 1, .step = (uint64_t)step};
    next.check = rs_table_commit_check(arena->table.identity, &next);
    rs_commit *to = &arena->header->commit[slot == 0 ? 1 : 0];
    __atomic_store_n(&to->check, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&to->number, next.number, __ATOMIC_RELEASE);
    __atomic_store_n(&to->step, next.step, __ATOMIC_RELAXED);
    __atomic_store_n(&to->check, next.check, __ATOMIC_RELEASE);
    return RS_OK;
}

static uint64_t *mark_of(const rs_arena *arena, int source)
{
    return (uint64_t *)((char *)arena->header + arena->table.marks) + source;
}

rs_status rs_arena_mark(rs_arena *arena, int source, uint64_t copies)
{
    if (source < 0 || source >= RS_ARENA_MARKS)
        return rs_error_set(
            RS_ERR_UNSUPPORTED, "rank %d has no mark: tables have %d", source, RS_ARENA_MARKS);
    if (!arena->writable)
        return rs_error_set(
            RS_ERR_ARGUMENT, "the arena of rank %d is mapped read-only", arena->rank);
    __atomic_store_n(mark_of(arena, source), copies, __ATOMIC_RELEASE);
    return RS_OK;
}

uint64_t rs_arena_marked(const rs_arena *arena, int source)
{
    if (source < 0 || source >= RS_ARENA_MARKS)
        return 0;
    return __atomic_load_n(mark_of(arena, source), __ATOMIC_ACQUIRE);
}
