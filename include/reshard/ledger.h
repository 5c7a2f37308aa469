/*
 * Ledgers: how far a rank is with a step of its job, in a shared-memory file beside its arena, so
 * that whoever finds both after a crash can take the state to a whole step.
 *
 * A step changes state in two phases. First every rank has what it needs for its update: its
 * reduced gradient (the ledger's work memory) and the step's numbers (a note). It says so
 * (RS_LEDGER_READY), and when all have said so, each updates its own state, piece by piece, keeping
 * the old bytes of the piece under way in a journal. So at any instant either some rank is not
 * ready, and nobody's state has begun to change, or all can be brought to the end of the step.
 *
 * Usual order of step k by one rank: write the work memory; rs_ledger_write_note; READY = k;
 * barrier over all ranks; rs_ledger_begin_slot for all slots; UPDATING = k; per piece
 * rs_ledger_open_piece, change it, rs_ledger_close_piece; STEP = k; rebuild what follows from the
 * state; DERIVED = k. Recovery: docs/elastic.md.
 *
 * The words have one writer, the process that maps the ledger for writing (which is the one that
 * holds the lock on the arena of the same generation and rank). All functions are local.
 */
#ifndef RESHARD_LEDGER_H
#define RESHARD_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/arena.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rs_ledger rs_ledger;

/* Sizes, chosen when a ledger is made. */
typedef struct rs_ledger_shape {
    int64_t work_bytes;
    int slots;          /* threads that update at once */
    int64_t slot_bytes; /* the largest piece's old bytes */
    uint64_t pieces;    /* a hash of how the state is cut into pieces; 0 until it is known */
} rs_ledger_shape;

/*
 * Makes the ledger of (generation, rank). Room is reserved at once unless `sparse`: then only for
 * words and journal, and rs_ledger_reserve takes the rest. RS_ERR_BUDGET, RS_ERR_EXISTS. It goes
 * with its arena (rs_arena_delete). The keeper must outlive it. The caller owns `*out`.
 */
rs_status rs_ledger_create(rs_keeper *keeper, int generation, int rank,
    const rs_ledger_shape *shape, bool sparse, rs_ledger **out) RS_MUST_CHECK;

/* Maps an existing ledger. RS_ERR_NOT_FOUND, RS_ERR_MALFORMED, RS_ERR_MISMATCH (of another job,
 * version or boot). */
rs_status rs_ledger_open(
    rs_keeper *keeper, int generation, int rank, bool writable, rs_ledger **out) RS_MUST_CHECK;

/* Unmaps; the file stays. */
void rs_ledger_close(rs_ledger *ledger);

const rs_ledger_shape *rs_ledger_shape_of(const rs_ledger *ledger);

/* Bytes of the file for a shape. */
rs_status rs_ledger_bytes(const rs_ledger_shape *shape, int64_t *bytes) RS_MUST_CHECK;

/* The work memory, page-aligned; its bytes mean nothing unless READY says so. */
void *rs_ledger_work(const rs_ledger *ledger);

/* Reserves the work memory, or gives it back to the system (its bytes are then zero). */
rs_status rs_ledger_reserve(rs_ledger *ledger) RS_MUST_CHECK;
rs_status rs_ledger_punch(rs_ledger *ledger) RS_MUST_CHECK;

/* ---- words ---- */

typedef enum rs_ledger_word {
    RS_LEDGER_READY = 0, /* the step whose gradient and note are complete */
    RS_LEDGER_UPDATING,  /* the step whose update has begun */
    RS_LEDGER_STEP,      /* the step at which the state stands */
    RS_LEDGER_DERIVED,   /* the step to which everything that follows from the state belongs */
    RS_LEDGER_WORDS
} rs_ledger_word;

/* Whoever reads a word also sees what its writer wrote before it. */
int64_t rs_ledger_get(const rs_ledger *ledger, rs_ledger_word word);
void rs_ledger_set(rs_ledger *ledger, rs_ledger_word word, int64_t value);

/* Sets all words: the state stands whole at `step`. */
void rs_ledger_settle(rs_ledger *ledger, int64_t step);

#define RS_LEDGER_NOTE 448 /* bytes of a note, at most */

/* The numbers of step `step`; those of the step before stay readable until the next is written. */
void rs_ledger_write_note(rs_ledger *ledger, int64_t step, const void *note, size_t bytes);
/* False if there is no whole note of that step and size. */
bool rs_ledger_read_note(const rs_ledger *ledger, int64_t step, void *note, size_t bytes);

/* Names the cut into pieces in a ledger that has none yet. RS_ERR_MISMATCH: it has another. */
rs_status rs_ledger_set_pieces(rs_ledger *ledger, uint64_t pieces) RS_MUST_CHECK;

/* ---- journal ---- */

/* Slot `slot` will change pieces begin .. end - 1, in this order; none is begun. */
void rs_ledger_begin_slot(rs_ledger *ledger, int slot, int64_t begin, int64_t end);

/* Where the old bytes of the slot's piece go. */
void *rs_ledger_journal(const rs_ledger *ledger, int slot);

/* `piece`'s old bytes are in the journal, and it may change from now on. */
void rs_ledger_open_piece(rs_ledger *ledger, int slot, int64_t piece);
/* `piece` has changed; what is in the journal is not needed any more. */
void rs_ledger_close_piece(rs_ledger *ledger, int slot, int64_t piece);

/* What a slot had done when its process ended. */
typedef struct rs_ledger_progress {
    int64_t next; /* the first piece that is not done */
    int64_t end;
    bool open; /* `next` may be changed in part; its old bytes are in the journal */
} rs_ledger_progress;

/* RS_ERR_MALFORMED: impossible numbers. */
rs_status rs_ledger_look(const rs_ledger *ledger, int slot, rs_ledger_progress *out) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
