/*
 * What one rank has of the job's state under one layout: its placement, its arena, and where the
 * elements of its local vector (runs.h) lie in it. All functions are local.
 */
#ifndef RS_TRAIN_STATE_H
#define RS_TRAIN_STATE_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/arena.h"
#include "reshard/certificate.h"
#include "reshard/layout.h"
#include "reshard/ledger.h"
#include "reshard/placement.h"
#include "reshard/space.h"
#include "train/runs.h"

/* Numbers of the roles in the space; master is -1 where parameters are float32 and their own
 * master. */
typedef struct rs_roles {
    int param;
    int master;
} rs_roles;

typedef struct rs_state {
    const rs_space *space; /* borrowed */
    rs_layout layout;
    rs_roles roles;
    int rank;
    bool holds;              /* false: the rank is beyond the layout and has nothing */
    rs_placement *own;       /* of the layout */
    rs_placement *placement; /* what its arena holds: the same, and with redundancy what it mirrors;
                                it may be `own` */
    rs_placement *flat;      /* of the same layout with zero=3: who updates, and sums, what */
    rs_arena *arena;         /* NULL until rs_state_allocate, and for a rank that holds nothing */
    rs_ledger *ledger;       /* twophase.h; NULL where steps are not to survive a crash */
    int blocks;
    int *mirrored[2]; /* by mesh (group.h): ranks whose pieces this one mirrors, and updates too */
    int mirrored_count[2];
    int mirror[2]; /* by mesh: the rank that mirrors this one's piece, -1: none */
    rs_runs *runs; /* of each role; after rs_state_allocate */
    int *carried;  /* segments that were adopted: they lie in extents of older generations */
    size_t carried_count;
    rs_space *bare; /* the same tensors, in one role, of one type */
    rs_placement
        *whole; /* of the bare space without ZeRO: where local boxes lie in local vectors */
} rs_state;

/* A rank's state without memory. `node_of`: the node of each rank of the layout, where what ZeRO
 * gave to one node alone is mirrored on another (rs_layout_placement_mirrored); NULL: it is not.
 * rs_state_fini also after a failure. */
rs_status rs_state_init(const rs_space *space, const rs_layout *layout, int rank,
    const int *node_of, rs_state *out) RS_MUST_CHECK;

/* Makes the arena of `generation`, adopting `adopted` segments of `old` (may be NULL); `sparse`:
 * for a tight move, in which a rank that holds nothing has an empty arena. Otherwise it has none.
 */
rs_status rs_state_allocate(rs_state *state, rs_keeper *keeper, int generation, const rs_state *old,
    const int *adopted, size_t adopted_count, bool sparse) RS_MUST_CHECK;

/* The same for a rank of a new world: what it adopts lies in arenas of an old one. */
rs_status rs_state_take_over(rs_state *state, rs_keeper *keeper, int generation,
    const rs_adoption *adopted, size_t adopted_count) RS_MUST_CHECK;

/* Maps the arena of `generation` that there is, for writing. RS_ERR_NOT_FOUND if it was never
 * committed. */
rs_status rs_state_open(rs_state *state, rs_keeper *keeper, int generation) RS_MUST_CHECK;

/* Unmaps and forgets; the arena's files stay. */
void rs_state_fini(rs_state *state);

/* Bytes of all its segments. */
rs_status rs_state_footprint(const rs_state *state, int64_t *bytes) RS_MUST_CHECK;

/* Bytes of its segments that are backed by memory now; `own`: only those in its own generation's
 * extent. Adopted segments are looked at page by page, which costs about 10 ms per GiB. */
rs_status rs_state_resident(const rs_state *state, bool own, int64_t *bytes) RS_MUST_CHECK;

/* Its memory; NULL where it holds nothing. */
const rs_memory *rs_state_memory(const rs_state *state);

/* What the rank has of a role. */
const rs_runs *rs_state_runs(const rs_state *state, int role);

/* Where it has the element at `position` of its local vector in `role`; NULL if it has not. */
void *rs_state_element(const rs_state *state, int role, int64_t position);

/* The positions of a block in the local vector, and the vector's length. */
void rs_state_block(const rs_state *state, int block, int64_t *begin, int64_t *end);
int64_t rs_state_elements(const rs_state *state);

/* The byte strides of a box whose elements, of `size` bytes, lie packed; returns its bytes. */
int64_t rs_state_packed(const rs_box *box, size_t size, int64_t *stride);

/* A part of a box that is contiguous in the local vector: its first position. */
typedef rs_status (*rs_state_part)(void *context, const rs_box *part, int block, int64_t position);

/* Calls `part` for the contiguous parts of `box`, which lies in one local box of `tensor` on
 * `rank`, in row-major order. Positions are those of this rank, if it has the box too. */
rs_status rs_state_parts(const rs_state *state, int rank, int tensor, const rs_box *box,
    rs_state_part part, void *context) RS_MUST_CHECK;

/* The role that says which rank updates a tensor: the first that only the update knows; -1 if it
 * has none, and is not trained. */
int rs_state_update_role(const rs_state *state, int tensor);

/* Appends the positions that `rank` has of `role` of `tensor` in `placement`, which is one of the
 * state's, without memory. Tensor -1: of all tensors that are on `mesh` (group.h); role -1: of what
 * it updates. The caller sorts. */
rs_status rs_state_pieces(const rs_state *state, const rs_placement *placement, int rank, int mesh,
    int role, int tensor, rs_runs *out) RS_MUST_CHECK;

/* Writes the job's initial weights, a function of (seed, tensor, element) alone; moments are zero.
 */
rs_status rs_state_fill(rs_state *state, uint64_t seed) RS_MUST_CHECK;

/* A hash of all bytes of all segments, padding left out. For tests. */
uint64_t rs_state_hash(const rs_state *state);

#endif
