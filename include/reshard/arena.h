/*
 * Arenas: a rank's state in shared-memory files that outlive its process and that the other ranks
 * of its node can map.
 *
 * A keeper stands for one job on one node and one kind of memory (host memory: files in /dev/shm
 * named reshard-<job>-g<generation>-r<rank>.table and .extent). Above this layer nothing knows a
 * path. An arena is the table of one (generation, rank): a versioned, checksummed header and one
 * entry per segment that names the extent file where the segment lies. New segments lie in the
 * arena's own extent file; an adopted segment lies where the older generation put it, and is named
 * by both tables.
 *
 * Usual order of a switch: rs_arena_create for the next generation (adopting), rs_arena_touch in
 * slices while training goes on, peers rs_arena_open the old generation, bytes move,
 * rs_arena_commit, rs_arena_delete of the old generation. A tight switch makes the next generation
 * with rs_arena_create_sparse and touches nothing ahead. All functions are local. docs/arena.md has
 * the format and the rules.
 */
#ifndef RESHARD_ARENA_H
#define RESHARD_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/memory.h"
#include "reshard/placement.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rs_keeper rs_keeper;
typedef struct rs_arena rs_arena;

/* Opens the keeper of job `job` (letters, digits, '-', '_'; at most 48). `folder` NULL: /dev/shm.
 */
rs_status rs_keeper_open(const char *job, const char *folder, rs_keeper **out) RS_MUST_CHECK;
void rs_keeper_close(rs_keeper *keeper);

/* Bytes that the keeper could still hand out (free space of its file system, cgroup limit). */
rs_status rs_keeper_free_bytes(const rs_keeper *keeper, int64_t *bytes) RS_MUST_CHECK;

/* Removes every file of the job on this node. For a clean end, and for what a power cut left. What
 * is not a regular file of this user with a name that this job gives is never touched. */
rs_status rs_keeper_sweep(rs_keeper *keeper) RS_MUST_CHECK;

/*
 * Makes the arena of (generation, rank). `segments` lists all its segments, ascending; those in
 * `adopted` (ascending) are taken from `old`, which must have them at the same size; the others get
 * room in a new extent file, each at a page's start, reserved at once (RS_ERR_BUDGET says how much
 * is needed and how much there is; never SIGBUS later), zeroed, not yet touched. `old` may be
 * closed before the new arena. The keeper must outlive it. The caller owns `*out`. RS_ERR_EXISTS if
 * there is such an arena, or what an interrupted create left of it (rs_arena_delete clears that).
 */
rs_status rs_arena_create(rs_keeper *keeper, int generation, int rank,
    const rs_segment_list *segments, const rs_arena *old, const int *adopted, size_t adopted_count,
    rs_arena **out) RS_MUST_CHECK;

/* The same for a tight move: no room is reserved, so that the new arena costs no memory before the
 * old one gives some back. Every range must be reserved (rs_arena_reserve; rs_move_run does it)
 * before it is written. */
rs_status rs_arena_create_sparse(rs_keeper *keeper, int generation, int rank,
    const rs_segment_list *segments, const rs_arena *old, const int *adopted, size_t adopted_count,
    rs_arena **out) RS_MUST_CHECK;

/* A segment that a new arena takes from `from`. */
typedef struct rs_adoption {
    int segment;
    const rs_arena *from;
} rs_adoption;

/* rs_arena_create where segments come from several arenas of this node, of any ranks: a new world
 * takes over from an old one. `adopted` ascends by segment. Nobody may write what two tables name
 * before one of them is deleted. */
rs_status rs_arena_create_from(rs_keeper *keeper, int generation, int rank,
    const rs_segment_list *segments, const rs_adoption *adopted, size_t adopted_count,
    rs_arena **out) RS_MUST_CHECK;

/* Reserves the pages of a range of a segment. RS_ERR_BUDGET. */
rs_status rs_arena_reserve(
    rs_arena *arena, int segment, int64_t offset, int64_t bytes) RS_MUST_CHECK;

/* Maps an existing arena: read-only unless `writable`. RS_ERR_NOT_FOUND, RS_ERR_MALFORMED,
 * RS_ERR_MISMATCH (of another job, version or boot). Whether it was committed: rs_arena_step. One
 * process at a time maps an arena for writing, holding a lock that ends with it: RS_ERR_EXISTS
 * names the other (rs_arena_fence ends it). */
rs_status rs_arena_open(
    rs_keeper *keeper, int generation, int rank, bool writable, rs_arena **out) RS_MUST_CHECK;

/* Maps an arena that was never committed for writing, beside the process whose it is: to fill what
 * that one does not. One process at a time; the fence ends it too. Only its owner commits the
 * arena. RS_ERR_ARGUMENT: it is committed; else as above. */
rs_status rs_arena_open_guest(
    rs_keeper *keeper, int generation, int rank, rs_arena **out) RS_MUST_CHECK;

/* Maps, read-only, the arena of another rank of the same generation on this node. */
rs_status rs_arena_open_sibling(const rs_arena *arena, int rank, rs_arena **out) RS_MUST_CHECK;

/* Unmaps; the files stay. */
void rs_arena_close(rs_arena *arena);

/* The mapped segments. Borrowed; valid until the arena is closed. */
const rs_memory *rs_arena_memory(const rs_arena *arena);

int rs_arena_generation(const rs_arena *arena);
int rs_arena_rank(const rs_arena *arena);

/* The step at which the arena was last committed, -1 if it never was. */
int64_t rs_arena_step(const rs_arena *arena);

/* Faults in up to `max_bytes` more of the arena's pages, for writing where it is writable, else for
 * reading (so a peer's arena can be mapped ahead of a move too); returns the bytes left. A sparse
 * arena that is not committed has nothing to touch. */
int64_t rs_arena_touch(rs_arena *arena, int64_t max_bytes);

/* Bytes of the arena's own extent that are backed by memory now. */
rs_status rs_arena_resident(const rs_arena *arena, int64_t *bytes) RS_MUST_CHECK;

/* Marks the table complete at `step`; an arena that was never committed is not read as state.
 * RS_ERR_EXISTS: a guest still maps it. */
rs_status rs_arena_commit(rs_arena *arena, int64_t step) RS_MUST_CHECK;

/* Gives the memory of whole pages inside a range of a segment back to the system. */
rs_status rs_arena_punch(rs_arena *arena, int segment, int64_t offset, int64_t bytes) RS_MUST_CHECK;

/* Removes the table of (generation, rank), then its extents as far as neither `keep` (may be NULL)
 * nor another table of the job on this node names them: whole files, or punched ranges. Absent
 * files are no error. */
rs_status rs_arena_delete(
    rs_keeper *keeper, int generation, int rank, const rs_arena *keep) RS_MUST_CHECK;

/* An arena of which there is any file on this node, be it one that a crash left alone. */
typedef struct rs_arena_place {
    int generation;
    int rank;
} rs_arena_place;

/* Lists the arenas of the job on this node, by generation and rank; free() it. */
rs_status rs_arena_list(const rs_keeper *keeper, rs_arena_place **out, size_t *count) RS_MUST_CHECK;

/*
 * Makes sure that no process maps (generation, rank) for writing: kills the one that does (told by
 * its number and the time of its start, so never another) and waits until its lock is gone, for at
 * most `seconds`. `*killed` (may be NULL): its number, 0 if there was none. RS_ERR_STALLED: it
 * still holds on; RS_ERR_ARGUMENT: it is the calling process. An absent or damaged table is no
 * error: nobody can map it.
 */
rs_status rs_arena_fence(
    rs_keeper *keeper, int generation, int rank, double seconds, long *killed) RS_MUST_CHECK;

/*
 * Marks, for tight moves: how many copies the owner of `arena` (the new one) has pulled from the
 * old arena of rank `source`. One writer; whoever reads n also sees what the writer did before it
 * wrote n. RS_ERR_UNSUPPORTED for a rank of RS_ARENA_MARKS or above.
 */
#define RS_ARENA_MARKS (1 << 20)

rs_status rs_arena_mark(rs_arena *arena, int source, uint64_t copies) RS_MUST_CHECK;
uint64_t rs_arena_marked(const rs_arena *arena, int source);

#ifdef __cplusplus
}
#endif

#endif
