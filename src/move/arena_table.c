/*
 * The table file of an arena.
 *
 * A table says which extent files a rank's segments lie in, and where. It is written once, aside,
 * and appears under its name whole or not at all; only its commit slots, its owner and its
 * marks change afterwards, and only by the arena's owner. docs/arena.md specifies the bytes.
 *
 * Invariants:
 * 1. Nothing of a table is used before everything in it was checked: names, hashes, order, ranges.
 * A file that fails is reported, never followed, never changed.
 * 2. What was checked is a private copy: a file that changes later cannot undo the check.
 * 3. Only regular files of this user are opened, never links.
 */
#include "move/arena_table.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

#define VERSION 3
#define MAX_COUNT                                                                                  \
    (1 << 24) /* of extents or entries: far above any model, far below any overflow                \
               */

static const char magic[8] = {'R', 'S', 'A', 'R', 'E', 'N', 'A', '\n'};

static const char *const endings[RS_ARENA_FILES] = {".table", ".table.new", ".extent", ".ledger"};

_Static_assert(sizeof(rs_table_header) <= RS_ARENA_PAGE, "the header is one page");
_Static_assert(sizeof(rs_extent) == 16 && sizeof(rs_entry) == 24, "no padding in the file");

void rs_table_fini(rs_table *table)
{
    free(table->extents);
    free(table->entries);
    *table = (rs_table){0};
}

char *rs_arena_file_name(
    const rs_keeper *keeper, int generation, int rank, rs_arena_file kind, char *name)
{
    snprintf(
        name, RS_ARENA_NAME, "reshard-%s-g%d-r%d%s", keeper->job, generation, rank, endings[kind]);
    return name;
}

/* Reads a decimal number as printf writes it: no sign, no leading zero. */
static bool parse_number(const char **text, int *out)
{
    const char *at = *text;
    int64_t value = 0;
    if (*at < '0' || *at > '9' || (*at == '0' && at[1] >= '0' && at[1] <= '9'))
        return false;
    for (; *at >= '0' && *at <= '9'; at++) {
        value = 10 * value + (*at - '0');
        if (value > INT32_MAX)
            return false;
    }
    *text = at;
    *out = (int)value;
    return true;
}

static bool skip_text(const char **text, const char *wanted)
{
    size_t length = strlen(wanted);
    if (strncmp(*text, wanted, length) != 0)
        return false;
    *text += length;
    return true;
}

bool rs_arena_file_parse(
    const rs_keeper *keeper, const char *name, int *generation, int *rank, rs_arena_file *kind)
{
    if (!skip_text(&name, "reshard-") || !skip_text(&name, keeper->job) ||
        !skip_text(&name, "-g") || !parse_number(&name, generation) || !skip_text(&name, "-r") ||
        !parse_number(&name, rank))
        return false;
    for (int k = 0; k < RS_ARENA_FILES; k++)
        if (strcmp(name, endings[k]) == 0) {
            *kind = (rs_arena_file)k;
            return true;
        }
    return false;
}

rs_status rs_arena_file_open(const rs_keeper *keeper, const char *name, bool writable, int *fd)
{
    int flags = (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    int file = openat(keeper->fd, name, flags);
    if (file < 0)
        return rs_error_errno(errno, "cannot open %s/%s", keeper->folder, name);
    struct stat info;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
        close(file);
        return rs_error_set(
            RS_ERR_MISMATCH, "%s/%s is not a regular file of this user", keeper->folder, name);
    }
    *fd = file;
    return RS_OK;
}

uint64_t rs_table_commit_check(uint64_t identity, const rs_commit *commit)
{
    uint64_t words[3] = {identity, commit->number, commit->step};
    return XXH3_64bits(words, sizeof words);
}

int64_t rs_table_file_bytes(const rs_table *table)
{
    return table->marks + (int64_t)RS_ARENA_MARKS * (int64_t)sizeof(uint64_t);
}

static int64_t body_bytes(size_t extents, size_t entries)
{
    return (int64_t)(extents * sizeof(rs_extent) + entries * sizeof(rs_entry));
}

/* The hash of the extents is the seed of that of the entries. */
static uint64_t hash_body(const rs_table *table)
{
    uint64_t seed = XXH3_64bits(table->extents, table->extent_count * sizeof(rs_extent));
    return XXH3_64bits_withSeed(table->entries, table->entry_count * sizeof(rs_entry), seed);
}

static uint64_t hash_header(const rs_table_header *header)
{
    return XXH3_64bits(header, offsetof(rs_table_header, header_hash));
}

bool rs_file_write_at(int fd, const void *data, size_t bytes, int64_t offset)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t n = pwrite(fd, from, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        from += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool rs_file_read_at(int fd, void *data, size_t bytes, int64_t offset)
{
    char *to = data;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            if (n == 0)
                errno = 0;
            return false;
        }
        to += n;
        offset += n;
        bytes -= (size_t)n;
    }
    return true;
}

static rs_status write_file(int fd, const rs_table_header *header, const rs_table *table)
{
    int64_t extents = body_bytes(table->extent_count, 0);
    int64_t entries = body_bytes(0, table->entry_count);
    if (ftruncate(fd, (off_t)rs_table_file_bytes(table)) != 0 ||
        !rs_file_write_at(fd, header, sizeof *header, 0) ||
        !rs_file_write_at(fd, table->extents, (size_t)extents, RS_ARENA_PAGE) ||
        !rs_file_write_at(fd, table->entries, (size_t)entries, RS_ARENA_PAGE + extents))
        return rs_error_errno(errno, "cannot write it");
    return RS_OK;
}

rs_status rs_table_write(const rs_keeper *keeper, int generation, int rank, rs_table *table)
{
    rs_status status;
    char aside[RS_ARENA_NAME];
    char name[RS_ARENA_NAME];
    rs_arena_file_name(keeper, generation, rank, RS_ARENA_TABLE_NEW, aside);
    rs_arena_file_name(keeper, generation, rank, RS_ARENA_TABLE, name);
    table->marks = rs_round_up(
        RS_ARENA_PAGE + body_bytes(table->extent_count, table->entry_count), RS_ARENA_PAGE);
    rs_table_header header = {.version = VERSION,
        .flags = table->flags,
        .extent_count = (int64_t)table->extent_count,
        .entry_count = (int64_t)table->entry_count,
        .marks = table->marks,
        .body_hash = hash_body(table)};
    memcpy(header.magic, magic, sizeof magic);
    rs_stamp_set(keeper, generation, rank, &header.stamp);
    header.header_hash = hash_header(&header);
    table->identity = header.header_hash;

    int fd = openat(
        keeper->fd, aside, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return rs_error_errno(errno, "cannot create %s/%s", keeper->folder, aside);
    RS_TRY_GOTO(write_file(fd, &header, table), remove_aside);
    /* A link, unlike a rename, never replaces what is there. */
    if (linkat(keeper->fd, aside, keeper->fd, name, 0) != 0)
        status = rs_error_errno(errno, "cannot give it its name");
remove_aside:
    close(fd);
    unlinkat(keeper->fd, aside, 0);
    if (status != RS_OK)
        return rs_error_context(status, "%s/%s", keeper->folder, name);
    return RS_OK;
}

/* The header's own fields. `size` is the file's. */
static rs_status check_header(
    const rs_keeper *keeper, int generation, int rank, const rs_table_header *header, int64_t size)
{
    if (memcmp(header->magic, magic, sizeof magic) != 0)
        return rs_error_set(RS_ERR_MALFORMED, "not an arena's table");
    if (header->version != VERSION)
        return rs_error_set(RS_ERR_MISMATCH, "format version %" PRIu32 ", this library reads %d",
            header->version, VERSION);
    if (header->header_hash != hash_header(header))
        return rs_error_set(RS_ERR_MALFORMED, "the header's checksum is wrong");
    RS_TRY(rs_stamp_check(keeper, generation, rank, &header->stamp));
    if (header->extent_count < 0 || header->extent_count > MAX_COUNT || header->entry_count < 0 ||
        header->entry_count > MAX_COUNT)
        return rs_error_set(RS_ERR_MALFORMED, "impossible numbers of extents or segments");
    int64_t body =
        body_bytes((size_t)header->extent_count, (size_t)header->entry_count) + RS_ARENA_PAGE;
    if (header->marks != rs_round_up(body, RS_ARENA_PAGE) ||
        size != header->marks + (int64_t)RS_ARENA_MARKS * (int64_t)sizeof(uint64_t))
        return rs_error_set(
            RS_ERR_MALFORMED, "the file has %" PRId64 " bytes, which is wrong", size);
    return RS_OK;
}

static rs_status check_body(const rs_table *table)
{
    for (size_t k = 0; k < table->extent_count; k++) {
        const rs_extent *extent = &table->extents[k];
        if (extent->generation < 0 || extent->rank < 0 || extent->bytes < 0)
            return rs_error_set(RS_ERR_MALFORMED, "extent %zu: negative numbers", k);
    }
    for (size_t k = 0; k < table->entry_count; k++) {
        const rs_entry *entry = &table->entries[k];
        int64_t end;
        if (entry->segment < 0 || (k > 0 && entry->segment <= table->entries[k - 1].segment))
            return rs_error_set(
                RS_ERR_MALFORMED, "entry %zu: segment %" PRId32 " out of order", k, entry->segment);
        if (entry->extent < 0 || (size_t)entry->extent >= table->extent_count ||
            entry->offset < 0 || entry->offset % RS_ARENA_PAGE != 0 || entry->bytes < 0 ||
            !rs_add_fits(entry->offset, entry->bytes, &end) ||
            end > table->extents[entry->extent].bytes)
            return rs_error_set(RS_ERR_MALFORMED,
                "segment %" PRId32 " does not lie within its extent", entry->segment);
    }
    return RS_OK;
}

static rs_status read_checked(
    const rs_keeper *keeper, int generation, int rank, int fd, rs_table *table)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return rs_error_errno(errno, "cannot ask for its size");
    rs_table_header header;
    if (info.st_size < RS_ARENA_PAGE)
        return rs_error_set(RS_ERR_MALFORMED, "only %lld bytes long", (long long)info.st_size);
    if (!rs_file_read_at(fd, &header, sizeof header, 0))
        return rs_error_errno(errno, "cannot read the header");
    RS_TRY(check_header(keeper, generation, rank, &header, info.st_size));
    table->flags = header.flags;
    table->marks = header.marks;
    table->identity = header.header_hash;
    table->extent_count = (size_t)header.extent_count;
    table->entry_count = (size_t)header.entry_count;
    table->extents = rs_calloc(table->extent_count, sizeof *table->extents);
    table->entries = rs_calloc(table->entry_count, sizeof *table->entries);
    int64_t extents = body_bytes(table->extent_count, 0);
    int64_t entries = body_bytes(0, table->entry_count);
    if (table->extents == NULL || table->entries == NULL)
        return rs_error_memory((size_t)(extents + entries));
    if (!rs_file_read_at(fd, table->extents, (size_t)extents, RS_ARENA_PAGE) ||
        !rs_file_read_at(fd, table->entries, (size_t)entries, RS_ARENA_PAGE + extents))
        return rs_error_errno(errno, "cannot read the entries");
    if (hash_body(table) != header.body_hash)
        return rs_error_set(RS_ERR_MALFORMED, "the entries' checksum is wrong");
    return check_body(table);
}

rs_status rs_table_read(
    const rs_keeper *keeper, int generation, int rank, int fd, const char *name, rs_table *out)
{
    rs_table table = {0};
    rs_status status = read_checked(keeper, generation, rank, fd, &table);
    if (status != RS_OK) {
        rs_table_fini(&table);
        return rs_error_context(status, "%s/%s", keeper->folder, name);
    }
    *out = table;
    return RS_OK;
}
