/*
 * Who writes to an arena, and making sure that nobody does.
 *
 * A process that maps an arena for writing holds a lock on a byte of its table file (fcntl, open
 * file description) and says in the table which process it is. There are two such bytes, so that a
 * process of another job may fill what the arena's own rank does not. The kernel gives the lock
 * back when the last descriptor of that open file is closed, which for a killed process comes after
 * its memory is unmapped: so whoever finds the table unlocked knows that no store to the arena is
 * still to come.
 *
 * 1. A process is killed only if its number and the time of its start are those in the table: a
 * number that was given to another process since is left alone. It is held by a descriptor while
 * both are compared, so it cannot change in between.
 * 2. The lock is the proof, not the death: the fence waits for the lock.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "move/arena_table.h"
#include "move/room.h"
#include "reshard/arena.h"

#define LOOK 0.001 /* seconds between looks at the lock */

/* When a process was started, in ticks since boot; 0 if there is none. */
static uint64_t start_of(long pid)
{
    char path[64], text[1024];
    uint64_t start = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    if (!rs_read_text(path, text, sizeof text))
        return 0;
    /* The name, field 2, may have blanks and brackets; the start is the 20th field after it. */
    const char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL || sscanf(at, " %" SCNu64, &start) != 1)
        return 0;
    return start;
}

static struct flock lock_of(rs_table_writer writer)
{
    return (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)writer, .l_len = 1};
}

rs_status rs_table_lock(int fd, const char *name, rs_table_writer writer, rs_table_header *header)
{
    struct flock lock = lock_of(writer);
    rs_table_owner *owner = &header->writers[writer];
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        if (errno == EAGAIN || errno == EACCES)
            return rs_error_set(RS_ERR_EXISTS, "%s is mapped for writing by process %" PRIu64, name,
                __atomic_load_n(&owner->pid, __ATOMIC_ACQUIRE));
        return rs_error_errno(errno, "cannot lock %s", name);
    }
    __atomic_store_n(&owner->start, start_of(getpid()), __ATOMIC_RELAXED);
    __atomic_store_n(&owner->pid, (uint64_t)getpid(), __ATOMIC_RELEASE);
    return RS_OK;
}

bool rs_table_is_locked(int fd, rs_table_writer writer)
{
    struct flock lock = lock_of(writer);
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Kills the process that `owner` names, if that is still the one; its number, or 0. */
static long kill_owner(const rs_table_owner *owner)
{
    long pid = (long)__atomic_load_n(&owner->pid, __ATOMIC_ACQUIRE), killed = 0;
    uint64_t start = __atomic_load_n(&owner->start, __ATOMIC_RELAXED);
    int held = pid > 0 ? pidfd_open((pid_t)pid, 0) : -1;
    if (held < 0)
        return 0;
    if (start != 0 && start_of(pid) == start && pidfd_send_signal(held, SIGKILL, NULL, 0) == 0)
        killed = pid;
    close(held);
    return killed;
}

static rs_status wait_for_lock(int fd, const char *name, const rs_table_header *header,
    rs_table_writer writer, double seconds, long *killed)
{
    double deadline = rs_clock_seconds() + seconds;
    const rs_table_owner *owner = &header->writers[writer];
    *killed = 0;
    while (rs_table_is_locked(fd, writer)) {
        if ((long)__atomic_load_n(&owner->pid, __ATOMIC_ACQUIRE) == (long)getpid())
            return rs_error_set(
                RS_ERR_ARGUMENT, "%s is mapped for writing by the process that fences it", name);
        /* A process that has just got the lock may not have said yet who it is. */
        if (*killed == 0)
            *killed = kill_owner(owner);
        if (rs_clock_seconds() > deadline)
            return rs_error_set(RS_ERR_STALLED,
                "%s: process %" PRIu64 " still maps it for writing after %g s", name, owner->pid,
                seconds);
        rs_nap(LOOK);
    }
    return RS_OK;
}

rs_status rs_arena_fence(rs_keeper *keeper, int generation, int rank, double seconds, long *killed)
{
    char name[RS_ARENA_NAME];
    rs_table table = {0};
    long pid = 0;
    int fd;
    rs_arena_file_name(keeper, generation, rank, RS_ARENA_TABLE, name);
    rs_status status = rs_arena_file_open(keeper, name, true, &fd);
    if (killed != NULL)
        *killed = 0;
    if (status == RS_ERR_NOT_FOUND || status == RS_ERR_MISMATCH)
        return RS_OK;
    RS_TRY(status);
    status = rs_table_read(keeper, generation, rank, fd, name, &table);
    rs_table_fini(&table);
    if (status == RS_ERR_MALFORMED || status == RS_ERR_MISMATCH) {
        status = RS_OK; /* nobody can map it */
        goto close_file;
    }
    if (status != RS_OK)
        goto close_file;
    rs_table_header *header = mmap(NULL, sizeof *header, PROT_READ, MAP_SHARED, fd, 0);
    if (header == MAP_FAILED) {
        status = rs_error_errno(errno, "cannot map %s/%s", keeper->folder, name);
        goto close_file;
    }
    for (int writer = 0; writer < RS_TABLE_WRITERS && status == RS_OK; writer++) {
        status = wait_for_lock(fd, name, header, (rs_table_writer)writer, seconds, &pid);
        if (killed != NULL && pid != 0)
            *killed = pid;
    }
    munmap(header, sizeof *header);
close_file:
    close(fd);
    return status;
}

typedef struct place_list {
    rs_arena_place *items;
    size_t count;
    size_t capacity;
} place_list;

static int compare_places(const void *a, const void *b)
{
    const rs_arena_place *x = a, *y = b;
    if (x->generation != y->generation)
        return rs_compare(x->generation, y->generation);
    return rs_compare(x->rank, y->rank);
}

rs_status rs_arena_list(const rs_keeper *keeper, rs_arena_place **out, size_t *count)
{
    place_list list = {0};
    rs_status status = RS_OK;
    DIR *folder;
    RS_TRY(rs_keeper_list(keeper, &folder));
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        rs_arena_place place;
        rs_arena_file kind;
        if (!rs_arena_file_parse(keeper, entry->d_name, &place.generation, &place.rank, &kind))
            continue;
        RS_TRY_GOTO(RS_LIST_RESERVE_ONE(&list), done);
        list.items[list.count++] = place;
    }
    if (list.count > 0)
        qsort(list.items, list.count, sizeof *list.items, compare_places);
    size_t kept = 0;
    for (size_t i = 0; i < list.count; i++)
        if (kept == 0 || compare_places(&list.items[kept - 1], &list.items[i]) != 0)
            list.items[kept++] = list.items[i];
    list.count = kept;
done:
    closedir(folder);
    if (status != RS_OK) {
        free(list.items);
        return status;
    }
    *out = list.items;
    *count = list.count;
    return RS_OK;
}
