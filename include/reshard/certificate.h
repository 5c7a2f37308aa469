/*
 * The certificate: content checksums that do not depend on layout.
 *
 * The sum of a (tensor, role) is, in two lanes mod 2^64, the sum over its elements of
 * mix(key, canonical element index, element bits). Sums of disjoint boxes add, so every holder sums
 * its own shards and one reduction compares a whole state before and after a move. Placements may
 * hold an element more than once: sums are kept per cell (the common refinement of all holders'
 * boxes), the lowest holder of a cell counts, and the sums of the other holders must equal the
 * counted one. docs/certificate.md defines the mix and says what it notices.
 *
 * All functions are local; the reduction of the words (a plain sum of uint64_t) is the caller's.
 */
#ifndef RESHARD_CERTIFICATE_H
#define RESHARD_CERTIFICATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/box.h"
#include "reshard/memory.h"
#include "reshard/placement.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rs_sum {
    uint64_t lane[2];
} rs_sum;

/* Key of a (tensor, role): a hash of their names. */
uint64_t rs_sum_key(const char *tensor, const char *role);

/*
 * The sum of the elements of `box` of a tensor of `shape`, whose first element lies at `data` and
 * whose neighbours along dimension d lie `stride[d]` bytes apart. Element sizes 1, 2, 4, 8.
 */
rs_sum rs_sum_box(uint64_t key, const int64_t *shape, const rs_box *box, size_t element_size,
    const void *data, const int64_t *stride);

/* A box of which all elements have the same holders, in one shard of the holder asked about. */
typedef struct rs_cell {
    int tensor;
    int role;
    int segment;
    rs_box box;
    int holders;  /* how many hold it */
    bool counted; /* the holder asked about is the lowest of them */
    bool known;   /* `sum` is valid */
    rs_sum sum;
} rs_cell;

/* The sums of everything that one holder of a placement holds, cell by cell. */
typedef struct rs_sums rs_sums;

/* The cells of `holder`, ordered by (role, segment, offset), all unknown. Borrows the placement. A
 * holder beyond the placement has none. The caller owns `*out`. */
rs_status rs_sums_create(const rs_placement *placement, int holder, rs_sums **out) RS_MUST_CHECK;
void rs_sums_destroy(rs_sums *sums);

/* The cells; the caller may set `sum` and `known`, nothing else. Borrowed. */
rs_cell *rs_sums_cells(rs_sums *sums, size_t *count);

/* Reads every unknown cell (every cell if `all`) from memory and makes it known. */
rs_status rs_sums_measure(rs_sums *sums, const rs_memory *memory, bool all) RS_MUST_CHECK;

/* Takes from `old` the sums of the cells that are known there and equal here (tensor, role, box),
 * limited to segments listed in `adopted` (ascending). */
void rs_sums_adopt(rs_sums *sums, const rs_sums *old, const int *adopted, size_t adopted_count);

/* Number of uint64_t that a reduction has to add: 6 per (tensor, role). */
size_t rs_sums_word_count(const rs_space *space);

/* Writes this holder's contribution to `words` (word_count of them): for each (tensor, role), role
 * fastest: counted sums, sums of all held cells, counted sums times holders; two lanes each.
 * RS_ERR_ARGUMENT if a cell is unknown. */
rs_status rs_sums_words(const rs_sums *sums, uint64_t *words) RS_MUST_CHECK;

/*
 * Compares two states after the reduction. RS_ERR_CERTIFICATE names the first (tensor, role) whose
 * counted sum differs, or whose replicas in `after` are not equal. `roles` limits the comparison to
 * a bit set of roles (bit r), -1 for all.
 */
rs_status rs_sums_compare(const rs_space *space, const uint64_t *before, const uint64_t *after,
    int64_t roles) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
