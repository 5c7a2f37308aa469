/*
 * Arenas: content survives closing and adoption over many generations; deleting frees exactly what
 * no table names; damaged, foreign and left-over files are refused and never touched; room is asked
 * for before it is used.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "move/arena_table.h"
#include "reshard/arena.h"
#include "support/keeper.h"

static int file_count(void)
{
    int count = 0;
    DIR *listing = opendir(folder);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(listing);
    return count;
}

static void path_of(const char *name, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", folder, name);
}

static rs_segment some[] = {{0, 100}, {3, 4096}, {4, 0}, {10, 300000}, {11, 5000}};
static const rs_segment_list segments = {some, 5, 5};

static void fill(rs_arena *arena, int salt)
{
    const rs_memory *memory = rs_arena_memory(arena);
    for (size_t k = 0; k < memory->count; k++)
        memset(memory->regions[k].data, salt + (int)k, (size_t)memory->regions[k].bytes);
}

static void expect(const rs_arena *arena, int segment, int value)
{
    const rs_memory *memory = rs_arena_memory(arena);
    for (size_t k = 0; k < memory->count; k++) {
        const unsigned char *data = memory->regions[k].data;
        for (int64_t b = 0; memory->regions[k].segment == segment && b < memory->regions[k].bytes;
             b++)
            assert_int_equal(data[b], value);
    }
}

static int64_t bytes_of_file(const char *name)
{
    char path[256];
    struct stat info;
    path_of(name, path, sizeof path);
    return stat(path, &info) == 0 ? (int64_t)info.st_blocks * 512 : -1;
}

static void keeps_content(void **state)
{
    (void)state;
    rs_arena *arena;
    assert_int_equal(rs_arena_create(keeper, 1, 5, &segments, NULL, NULL, 0, &arena), RS_OK);
    const rs_memory *memory = rs_arena_memory(arena);
    assert_int_equal(memory->count, 5);
    for (size_t k = 0; k < memory->count; k++) {
        assert_int_equal(memory->regions[k].segment, some[k].segment);
        assert_int_equal(memory->regions[k].bytes, some[k].bytes);
        assert_non_null(memory->regions[k].data);
        assert_int_equal((uintptr_t)memory->regions[k].data % 64, 0);
        expect(arena, some[k].segment, 0);
    }
    assert_int_equal(rs_arena_step(arena), -1);
    fill(arena, 7);
    assert_int_equal(rs_arena_commit(arena, 42), RS_OK);
    assert_int_equal(rs_arena_step(arena), 42);
    rs_arena *again;
    assert_int_equal(
        rs_arena_create(keeper, 1, 5, &segments, NULL, NULL, 0, &again), RS_ERR_EXISTS);
    rs_arena_close(arena);

    assert_int_equal(rs_arena_open(keeper, 1, 5, false, &arena), RS_OK);
    assert_int_equal(rs_arena_generation(arena), 1);
    assert_int_equal(rs_arena_rank(arena), 5);
    assert_int_equal(rs_arena_step(arena), 42);
    for (int k = 0; k < 5; k++)
        expect(arena, some[k].segment, 7 + k);
    assert_int_equal(rs_arena_commit(arena, 43), RS_ERR_ARGUMENT); /* read-only */
    assert_int_equal(rs_arena_punch(arena, 10, 0, 4096), RS_ERR_ARGUMENT);
    assert_int_equal(rs_arena_open_sibling(arena, 6, &again), RS_ERR_NOT_FOUND);
    assert_int_equal(rs_arena_open(keeper, 2, 5, false, &again), RS_ERR_NOT_FOUND);
    rs_arena_close(arena);
    assert_int_equal(rs_arena_delete(keeper, 1, 5, NULL), RS_OK);
    assert_int_equal(rs_arena_delete(keeper, 1, 5, NULL), RS_OK);
    assert_int_equal(file_count(), 0);
}

static void commits_alternate(void **state)
{
    (void)state;
    rs_arena *arena;
    rs_arena *reader;
    assert_int_equal(rs_arena_create(keeper, 0, 0, &segments, NULL, NULL, 0, &arena), RS_OK);
    assert_int_equal(rs_arena_open(keeper, 0, 0, false, &reader), RS_OK);
    char path[256];
    path_of("reshard-job-g0-r0.table", path, sizeof path);
    for (int64_t step = 9; step >= 0; step--) { /* the last one counts, not the highest */
        assert_int_equal(rs_arena_commit(arena, step), RS_OK);
        assert_int_equal(rs_arena_step(reader), step);
    }
    /* A commit torn at any byte of its slot leaves the one before. */
    assert_int_equal(rs_arena_commit(arena, 77), RS_OK);
    assert_int_equal(rs_arena_commit(arena, 78), RS_OK);
    rs_table_header header;
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &header, sizeof header, 0), sizeof header);
    int slot = header.commit[1].number > header.commit[0].number;
    off_t place = (off_t)(offsetof(rs_table_header, commit) + (size_t)slot * sizeof(rs_commit));
    for (off_t byte = 0; byte < (off_t)sizeof(rs_commit); byte++) {
        unsigned char value;
        assert_int_equal(pread(fd, &value, 1, place + byte), 1);
        unsigned char torn = value ^ 0x10;
        assert_int_equal(pwrite(fd, &torn, 1, place + byte), 1);
        assert_int_equal(rs_arena_step(reader), 77);
        assert_int_equal(pwrite(fd, &value, 1, place + byte), 1);
        assert_int_equal(rs_arena_step(reader), 78);
    }
    close(fd);
    rs_arena_close(reader);
    rs_arena_close(arena);
    assert_int_equal(rs_arena_delete(keeper, 0, 0, NULL), RS_OK);
}

/* Segment 10 is adopted through ten generations, segment 3 only to the fifth. */
static void adopts_over_generations(void **state)
{
    (void)state;
    rs_arena *old;
    assert_int_equal(rs_arena_create(keeper, 0, 2, &segments, NULL, NULL, 0, &old), RS_OK);
    fill(old, 1);
    for (int generation = 1; generation <= 10; generation++) {
        int adopted[2] = {3, 10};
        int *first = generation <= 5 ? adopted : adopted + 1;
        size_t count = generation <= 5 ? 2 : 1;
        rs_arena *now;
        assert_int_equal(
            rs_arena_create(keeper, generation, 2, &segments, old, first, count, &now), RS_OK);
        if (generation % 2 == 0) { /* the files are enough */
            rs_arena_close(now);
            assert_int_equal(rs_arena_open(keeper, generation, 2, true, &now), RS_OK);
        }
        expect(now, 10, 4);
        expect(now, 3, generation <= 5 ? 2 : 0);
        expect(now, 11, 0);
        rs_arena_close(old);
        assert_int_equal(rs_arena_delete(keeper, generation - 1, 2, now), RS_OK);
        expect(now, 10, 4);
        expect(now, 3, generation <= 5 ? 2 : 0);
        /* Generation 0's extent stays, but only what is still named of it. */
        assert_int_equal(
            bytes_of_file("reshard-job-g0-r2.extent"), 303104 + (generation <= 5 ? 4096 : 0));
        assert_int_equal(file_count(), 3); /* two extents, one table */
        int64_t resident;
        assert_int_equal(rs_arena_resident(now, &resident), RS_OK);
        assert_int_equal(resident, 4096 + 8192 + (generation <= 5 ? 0 : 4096));
        old = now;
    }
    rs_arena_close(old);
    assert_int_equal(rs_arena_delete(keeper, 10, 2, NULL), RS_OK);
    assert_int_equal(file_count(), 0);
}

/* Rolling back deletes the new generation and leaves the old one whole, adopted segments too. */
static void rolls_back(void **state)
{
    (void)state;
    rs_arena *old;
    rs_arena *now;
    int adopted[] = {0, 10};
    assert_int_equal(rs_arena_create(keeper, 4, 0, &segments, NULL, NULL, 0, &old), RS_OK);
    fill(old, 1);
    assert_int_equal(rs_arena_create(keeper, 5, 0, &segments, old, adopted, 2, &now), RS_OK);
    rs_arena_close(now);
    assert_int_equal(rs_arena_delete(keeper, 5, 0, NULL), RS_OK); /* even without saying keep */
    for (int k = 0; k < 5; k++)
        expect(old, some[k].segment, 1 + k);
    rs_arena_close(old);
    assert_int_equal(rs_arena_open(keeper, 4, 0, true, &old), RS_OK);
    expect(old, 10, 4);
    rs_arena_close(old);
    assert_int_equal(rs_arena_delete(keeper, 4, 0, NULL), RS_OK);
    assert_int_equal(file_count(), 0);
}

/* A new world's arena takes segments of two ranks; each old arena may go, in any order. */
static void adopts_of_several(void **state)
{
    (void)state;
    rs_arena *old[2], *now, *again;
    for (int r = 0; r < 2; r++) {
        assert_int_equal(rs_arena_create(keeper, 0, r, &segments, NULL, NULL, 0, &old[r]), RS_OK);
        fill(old[r], 20 + 40 * r);
    }
    const rs_adoption taken[] = {{0, old[1]}, {3, old[0]}, {11, old[1]}};
    assert_int_equal(rs_arena_create_from(keeper, 1, 0, &segments, taken, 3, &now), RS_OK);
    expect(now, 0, 60);
    expect(now, 3, 21);
    expect(now, 10, 0);
    expect(now, 11, 64);
    const rs_adoption absent[] = {{0, old[1]}, {9, old[0]}};
    assert_int_equal(
        rs_arena_create_from(keeper, 1, 1, &segments, absent, 2, &again), RS_ERR_ARGUMENT);
    for (int r = 0; r < 2; r++) {
        rs_arena_close(old[r]);
        assert_int_equal(rs_arena_delete(keeper, 0, r, NULL), RS_OK);
    }
    rs_arena_close(now);
    assert_int_equal(rs_arena_open(keeper, 1, 0, true, &again), RS_OK);
    expect(again, 0, 60);
    expect(again, 3, 21);
    expect(again, 11, 64);
    rs_arena_close(again);
    assert_int_equal(rs_arena_delete(keeper, 1, 0, NULL), RS_OK);
    assert_int_equal(file_count(), 0);
}

static void refuses_bad_adoption(void **state)
{
    (void)state;
    rs_arena *old;
    rs_arena *now;
    rs_segment other[] = {{0, 100}, {10, 300001}};
    rs_segment_list others = {other, 2, 2};
    assert_int_equal(rs_arena_create(keeper, 0, 0, &segments, NULL, NULL, 0, &old), RS_OK);
    assert_int_equal(
        rs_arena_create(keeper, 1, 0, &others, old, (int[]){10}, 1, &now), RS_ERR_ARGUMENT);
    assert_int_equal(
        rs_arena_create(keeper, 1, 0, &others, old, (int[]){1}, 1, &now), RS_ERR_ARGUMENT);
    assert_int_equal(
        rs_arena_create(keeper, 1, 0, &others, NULL, (int[]){0}, 1, &now), RS_ERR_ARGUMENT);
    rs_segment backwards[] = {{5, 1}, {4, 1}};
    assert_int_equal(
        rs_arena_create(keeper, 1, 0, &(rs_segment_list){backwards, 2, 2}, NULL, NULL, 0, &now),
        RS_ERR_ARGUMENT);
    rs_segment huge[] = {{1, INT64_MAX - 10}, {2, INT64_MAX - 10}};
    assert_int_equal(
        rs_arena_create(keeper, 1, 0, &(rs_segment_list){huge, 2, 2}, NULL, NULL, 0, &now),
        RS_ERR_OVERFLOW);
    assert_int_equal(file_count(), 2);
    rs_arena_close(old);
    assert_int_equal(rs_arena_delete(keeper, 0, 0, NULL), RS_OK);
}

static void asks_for_room_first(void **state)
{
    (void)state;
    int64_t have;
    assert_int_equal(rs_keeper_free_bytes(keeper, &have), RS_OK);
    assert_true(have > 0);
    rs_segment big[] = {{0, 2 * have}}; /* far enough above: others may free memory meanwhile */
    rs_arena *arena;
    assert_int_equal(
        rs_arena_create(keeper, 0, 0, &(rs_segment_list){big, 1, 1}, NULL, NULL, 0, &arena),
        RS_ERR_BUDGET);
    assert_non_null(strstr(rs_error_message(), "needs"));
    assert_non_null(strstr(rs_error_message(), "are free"));
    assert_int_equal(file_count(), 0);
    /* A sparse arena takes what it is given, page by page. */
    assert_int_equal(
        rs_arena_create_sparse(keeper, 0, 0, &(rs_segment_list){big, 1, 1}, NULL, NULL, 0, &arena),
        RS_OK);
    int64_t bytes;
    assert_int_equal(rs_arena_touch(arena, INT64_MAX), 0);
    assert_int_equal(rs_arena_resident(arena, &bytes), RS_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(rs_arena_reserve(arena, 0, 5000, 10), RS_OK);
    assert_int_equal(rs_arena_resident(arena, &bytes), RS_OK);
    assert_int_equal(bytes, 4096);
    assert_int_equal(rs_arena_reserve(arena, 0, 0, 2 * have), RS_ERR_BUDGET);
    assert_int_equal(rs_arena_reserve(arena, 0, 1, 2 * have), RS_ERR_ARGUMENT);
    assert_int_equal(rs_arena_resident(arena, &bytes), RS_OK);
    assert_int_equal(bytes, 4096);
    rs_arena_close(arena);
    assert_int_equal(rs_arena_delete(keeper, 0, 0, NULL), RS_OK);
    assert_int_equal(file_count(), 0);
}

static void touches_in_slices(void **state)
{
    (void)state;
    rs_segment one[] = {{0, 3}, {1, 100000}, {2, 4096}};
    rs_segment_list list = {one, 3, 3};
    rs_arena *arena;
    assert_int_equal(rs_arena_create(keeper, 0, 0, &list, NULL, NULL, 0, &arena), RS_OK);
    fill(arena, 5);
    int64_t left = 3 + 100000 + 4096;
    int calls = 0;
    while (left > 0) {
        int64_t now = rs_arena_touch(arena, 8192);
        assert_true(now < left);
        left = now;
        calls++;
    }
    assert_in_range(calls, 12, 14);
    assert_int_equal(rs_arena_touch(arena, 8192), 0);
    for (int k = 0; k < 3; k++)
        expect(arena, k, 5 + k); /* touching changes nothing */
    rs_arena *reader;
    assert_int_equal(rs_arena_open(keeper, 0, 0, false, &reader), RS_OK);
    assert_int_equal(rs_arena_touch(reader, INT64_MAX), 0);
    rs_arena_close(reader);
    rs_arena_close(arena);
    assert_int_equal(rs_arena_delete(keeper, 0, 0, NULL), RS_OK);
}

static void punches_whole_pages(void **state)
{
    (void)state;
    rs_arena *arena;
    int64_t bytes;
    assert_int_equal(rs_arena_create(keeper, 0, 0, &segments, NULL, NULL, 0, &arena), RS_OK);
    fill(arena, 1);
    int64_t all = 4096 + 4096 + 303104 + 8192;
    assert_int_equal(rs_arena_resident(arena, &bytes), RS_OK);
    assert_int_equal(bytes, all);
    assert_int_equal(rs_arena_punch(arena, 10, 1, 8191), RS_OK); /* one whole page inside */
    assert_int_equal(rs_arena_resident(arena, &bytes), RS_OK);
    assert_int_equal(bytes, all - 4096);
    const unsigned char *data = rs_memory_segment(rs_arena_memory(arena), 10);
    assert_int_equal(data[4095], 4);
    assert_int_equal(data[4096], 0);
    assert_int_equal(data[8192], 4);
    expect(arena, 3, 2);
    expect(arena, 11, 5);
    assert_int_equal(rs_arena_punch(arena, 11, 0, 5000), RS_OK); /* its last page is its own */
    assert_int_equal(rs_arena_punch(arena, 10, 0, 300000), RS_OK);
    expect(arena, 3, 2);
    expect(arena, 0, 1);
    assert_int_equal(rs_arena_punch(arena, 10, 0, 300001), RS_ERR_ARGUMENT);
    assert_int_equal(rs_arena_punch(arena, 2, 0, 1), RS_ERR_NOT_FOUND);
    rs_arena_close(arena);
    assert_int_equal(rs_arena_delete(keeper, 0, 0, NULL), RS_OK);
}

static void marks_are_shared(void **state)
{
    (void)state;
    rs_arena *arena;
    rs_arena *owner;
    rs_arena *reader;
    assert_int_equal(rs_arena_create(keeper, 3, 0, &segments, NULL, NULL, 0, &arena), RS_OK);
    assert_int_equal(rs_arena_create(keeper, 3, 1, &segments, NULL, NULL, 0, &owner), RS_OK);
    assert_int_equal(rs_arena_open_sibling(owner, 0, &reader), RS_OK);
    assert_int_equal(rs_arena_marked(reader, 1), 0);
    assert_int_equal(rs_arena_mark(arena, 1, 17), RS_OK);
    assert_int_equal(rs_arena_mark(arena, RS_ARENA_MARKS - 1, 18), RS_OK);
    assert_int_equal(rs_arena_marked(reader, 1), 17);
    assert_int_equal(rs_arena_marked(reader, RS_ARENA_MARKS - 1), 18);
    assert_int_equal(rs_arena_marked(reader, 0), 0);
    assert_int_equal(rs_arena_mark(arena, RS_ARENA_MARKS, 1), RS_ERR_UNSUPPORTED);
    assert_int_equal(rs_arena_mark(reader, 1, 1), RS_ERR_ARGUMENT);
    rs_arena_close(reader);
    rs_arena_close(owner);
    rs_arena_close(arena);
    assert_int_equal(rs_keeper_sweep(keeper), RS_OK);
    assert_int_equal(file_count(), 0);
}

/* Every byte of a table's header and body, changed: refused, and the files left as they are. */
static void refuses_damaged_tables(void **state)
{
    (void)state;
    rs_arena *arena;
    assert_int_equal(rs_arena_create(keeper, 0, 0, &segments, NULL, NULL, 0, &arena), RS_OK);
    assert_int_equal(rs_arena_commit(arena, 1), RS_OK);
    rs_arena_close(arena);
    char path[256];
    path_of("reshard-job-g0-r0.table", path, sizeof path);
    int fd = open(path, O_RDWR);
    off_t length = RS_ARENA_PAGE + 16 + 5 * 24;
    for (off_t at = 0; at < length; at++) {
        if (at == (off_t)offsetof(rs_table_header, commit))
            at = RS_ARENA_PAGE; /* commit slots have checks of their own; then padding */
        unsigned char value;
        assert_int_equal(pread(fd, &value, 1, at), 1);
        unsigned char wrong = value ^ (unsigned char)(1 << at % 8);
        assert_int_equal(pwrite(fd, &wrong, 1, at), 1);
        rs_status status = rs_arena_open(keeper, 0, 0, false, &arena);
        assert_true(status == RS_ERR_MALFORMED || status == RS_ERR_MISMATCH);
        assert_non_null(strstr(rs_error_message(), "reshard-job-g0-r0.table"));
        assert_int_equal(pwrite(fd, &value, 1, at), 1);
    }
    assert_int_equal(rs_arena_open(keeper, 0, 0, false, &arena), RS_OK);
    rs_arena_close(arena);
    struct stat info;
    assert_int_equal(fstat(fd, &info), 0);
    static const off_t cuts[] = {0, 1, 100, 4095, 4096, 4200, 8192};
    for (size_t k = 0; k < sizeof cuts / sizeof *cuts; k++) {
        assert_int_equal(ftruncate(fd, cuts[k]), 0);
        assert_int_equal(rs_arena_open(keeper, 0, 0, false, &arena), RS_ERR_MALFORMED);
    }
    close(fd);
    /* A damaged arena can still be deleted, and deletes nothing else. */
    assert_int_equal(rs_arena_create(keeper, 0, 1, &segments, NULL, NULL, 0, &arena), RS_OK);
    fill(arena, 1);
    assert_int_equal(rs_arena_delete(keeper, 0, 0, NULL), RS_OK);
    assert_int_equal(file_count(), 2);
    expect(arena, 10, 4);
    rs_arena_close(arena);
    assert_int_equal(rs_arena_open(keeper, 0, 1, false, &arena), RS_OK);
    rs_arena_close(arena);
    assert_int_equal(rs_arena_delete(keeper, 0, 1, NULL), RS_OK);
}

/* Tables whose checksums are right and whose content is not: what a hostile writer would make. */
static void refuses_lying_tables(void **state)
{
    (void)state;
    rs_extent extent = {.generation = 0, .rank = 0, .bytes = 8192};
    const rs_entry lies[] = {
        {.segment = 0, .extent = 1, .offset = 0, .bytes = 1}, /* no such extent */
        {.segment = 0, .extent = -1, .offset = 0, .bytes = 1},
        {.segment = -1, .extent = 0, .offset = 0, .bytes = 1},
        {.segment = 0, .extent = 0, .offset = 8192, .bytes = 1}, /* beyond it */
        {.segment = 0, .extent = 0, .offset = 4096, .bytes = 4097},
        {.segment = 0, .extent = 0, .offset = 4096, .bytes = INT64_MAX},
        {.segment = 0, .extent = 0, .offset = -4096, .bytes = 1},
        {.segment = 0, .extent = 0, .offset = 64, .bytes = 1}, /* not at a page */
        {.segment = 0, .extent = 0, .offset = 0, .bytes = -1},
    };
    for (size_t k = 0; k < sizeof lies / sizeof *lies; k++) {
        rs_entry entry = lies[k];
        rs_table table = {
            .extents = &extent, .extent_count = 1, .entries = &entry, .entry_count = 1};
        assert_int_equal(rs_table_write(keeper, 0, 0, &table), RS_OK);
        rs_arena *arena;
        assert_int_equal(rs_arena_open(keeper, 0, 0, true, &arena), RS_ERR_MALFORMED);
        assert_int_equal(rs_arena_delete(keeper, 0, 0, NULL), RS_OK);
    }
    /* An honest table whose extent is absent, too short, or a link to something else. */
    rs_entry entry = {.segment = 0, .extent = 0, .offset = 0, .bytes = 8192};
    rs_table table = {.extents = &extent, .extent_count = 1, .entries = &entry, .entry_count = 1};
    assert_int_equal(rs_table_write(keeper, 0, 0, &table), RS_OK);
    rs_arena *arena;
    assert_int_equal(rs_arena_open(keeper, 0, 0, true, &arena), RS_ERR_NOT_FOUND);
    char path[256];
    path_of("reshard-job-g0-r0.extent", path, sizeof path);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, 8191), 0);
    assert_int_equal(rs_arena_open(keeper, 0, 0, true, &arena), RS_ERR_MALFORMED);
    assert_int_equal(ftruncate(fd, 8192), 0);
    close(fd);
    assert_int_equal(rs_arena_open(keeper, 0, 0, true, &arena), RS_OK);
    rs_arena_close(arena);
    assert_int_equal(unlink(path), 0);
    char other[256];
    path_of("precious", other, sizeof other);
    fd = open(other, O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, 8192), 0);
    close(fd);
    assert_int_equal(symlink("precious", path), 0);
    assert_int_not_equal(rs_arena_open(keeper, 0, 0, true, &arena), RS_OK);
    assert_int_equal(rs_keeper_sweep(keeper), RS_OK); /* leaves the link and the file */
    assert_int_equal(file_count(), 2);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(other), 0);
}

/* What is not the job's, however alike it looks, is neither read nor removed. */
static void leaves_other_files_alone(void **state)
{
    (void)state;
    static const char *const names[] = {"reshard-job-g01-r0.table", "reshard-job-g0-r0.tablet",
        "reshard-job-g0-r0", "reshard-job-g-1-r0.table", "reshard-job-g0-r0.table ",
        "reshard-jobs-g0-r0.table", "reshard-job-g1-g0-r0.table", "reshard-other-g0-r0.extent",
        "reshard-job-g99999999999-r0.table", "notes.txt"};
    size_t count = sizeof names / sizeof *names;
    char path[256];
    for (size_t k = 0; k < count; k++) {
        path_of(names[k], path, sizeof path);
        close(open(path, O_RDWR | O_CREAT, 0600));
    }
    path_of("reshard-job-g7-r0.table", path, sizeof path);
    assert_int_equal(mkdir(path, 0700), 0); /* a folder in a file's place */
    rs_arena *arena;
    assert_int_not_equal(rs_arena_open(keeper, 7, 0, false, &arena), RS_OK);
    /* Left over by a job that was interrupted while creating. */
    path_of("reshard-job-g3-r1.extent", path, sizeof path);
    close(open(path, O_RDWR | O_CREAT, 0600));
    path_of("reshard-job-g3-r2.table.new", path, sizeof path);
    close(open(path, O_RDWR | O_CREAT, 0600));
    assert_int_equal(
        rs_arena_create(keeper, 3, 1, &segments, NULL, NULL, 0, &arena), RS_ERR_EXISTS);
    assert_int_equal(
        rs_arena_create(keeper, 3, 2, &segments, NULL, NULL, 0, &arena), RS_ERR_EXISTS);
    assert_int_equal(rs_arena_delete(keeper, 3, 1, NULL), RS_OK);
    assert_int_equal(rs_arena_create(keeper, 3, 1, &segments, NULL, NULL, 0, &arena), RS_OK);
    rs_arena_close(arena);
    assert_int_equal(rs_keeper_sweep(keeper), RS_OK);
    assert_int_equal(file_count(), (int)count + 1);
    for (size_t k = 0; k < count; k++) {
        path_of(names[k], path, sizeof path);
        assert_int_equal(unlink(path), 0);
    }
    path_of("reshard-job-g7-r0.table", path, sizeof path);
    assert_int_equal(rmdir(path), 0);
}

static void checks_names(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "", "a/b", "a b", "..", "j.k", "0123456789012345678901234567890123456789012345678"};
    rs_keeper *other;
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++)
        assert_int_equal(rs_keeper_open(bad[k], folder, &other), RS_ERR_ARGUMENT);
    assert_int_equal(rs_keeper_open("fine", "/dev/shm/not-there", &other), RS_ERR_NOT_FOUND);
    assert_int_equal(
        rs_keeper_open("012345678901234567890123456789012345678901234567", folder, &other), RS_OK);
    rs_arena *arena;
    assert_int_equal(
        rs_arena_create(other, 2147483647, 2147483647, &segments, NULL, NULL, 0, &arena), RS_OK);
    rs_arena_close(arena);
    assert_int_equal(
        rs_arena_create(other, -1, 0, &segments, NULL, NULL, 0, &arena), RS_ERR_ARGUMENT);
    assert_int_equal(rs_keeper_sweep(other), RS_OK);
    rs_keeper_close(other);
    rs_keeper_close(NULL);
    assert_int_equal(file_count(), 0);
}

static void files_close_on_exec(void **state)
{
    (void)state;
    rs_arena *arena;
    assert_int_equal(rs_arena_create(keeper, 0, 0, &segments, NULL, NULL, 0, &arena), RS_OK);
    DIR *listing = opendir("/proc/self/fd");
    int seen = 0;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        char path[300];
        char target[300] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        if (readlink(path, target, sizeof target - 1) <= 0 ||
            strncmp(target, folder, strlen(folder)) != 0)
            continue;
        assert_true(fcntl((int)strtol(entry->d_name, NULL, 10), F_GETFD) & FD_CLOEXEC);
        seen++;
    }
    closedir(listing);
    assert_true(seen >= 2);
    rs_arena_close(arena);
    assert_int_equal(rs_arena_delete(keeper, 0, 0, NULL), RS_OK);
}

/* The N-th allocation fails, for every N: an error, and nothing left behind or lost. */
static void survives_failed_allocations(void **state)
{
    (void)state;
    for (size_t n = 1;; n++) {
        rs_arena *old = NULL;
        rs_arena *now = NULL;
        rs_arena *peer = NULL;
        rs_alloc_fail_at(n);
        rs_status status = rs_arena_create(keeper, 0, 0, &segments, NULL, NULL, 0, &old);
        if (status == RS_OK)
            status = rs_arena_create(keeper, 1, 0, &segments, old, (int[]){10}, 1, &now);
        if (status == RS_OK)
            status = rs_arena_open_sibling(now, 0, &peer);
        rs_arena_close(old);
        if (status == RS_OK)
            status = rs_arena_delete(keeper, 0, 0, now);
        rs_alloc_fail_at(0);
        rs_arena_close(peer);
        rs_arena_close(now);
        assert_true(status == RS_OK || status == RS_ERR_NO_MEMORY);
        assert_int_equal(rs_arena_delete(keeper, 0, 0, NULL), RS_OK);
        assert_int_equal(rs_arena_delete(keeper, 1, 0, NULL), RS_OK);
        assert_int_equal(file_count(), 0);
        if (status == RS_OK) {
            assert_true(n > 10);
            return;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_content),
        cmocka_unit_test(commits_alternate),
        cmocka_unit_test(adopts_over_generations),
        cmocka_unit_test(adopts_of_several),
        cmocka_unit_test(rolls_back),
        cmocka_unit_test(refuses_bad_adoption),
        cmocka_unit_test(asks_for_room_first),
        cmocka_unit_test(touches_in_slices),
        cmocka_unit_test(punches_whole_pages),
        cmocka_unit_test(marks_are_shared),
        cmocka_unit_test(refuses_damaged_tables),
        cmocka_unit_test(refuses_lying_tables),
        cmocka_unit_test(leaves_other_files_alone),
        cmocka_unit_test(checks_names),
        cmocka_unit_test(files_close_on_exec),
        cmocka_unit_test(survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, open_keeper, close_keeper);
}
