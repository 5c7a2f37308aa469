/*
 * What an old world has left, as one process of a host sees it: the arenas of the old ranks of its
 * host, and the heritage (elastic/heritage.h) that deals them to the ranks of the new world. For
 * the new ranks (takeover.c) and for the ferry between hosts (ferry.c). Local; old memory is only
 * read.
 */
#ifndef RS_TRAIN_ESTATE_H
#define RS_TRAIN_ESTATE_H

#include <jansson.h>

#include "elastic/heritage.h"
#include "reshard/arena.h"
#include "reshard/plan.h"
#include "train/member.h"

typedef struct rs_estate {
    rs_keeper *keeper; /* borrowed */
    int generation;
    int host; /* of this process */
    int old_ranks;
    int holders_count;
    rs_placement *old;
    rs_heritage *heritage;
    rs_arena **arenas; /* of the old ranks; NULL where they are not read */
    const rs_memory **memory;
    rs_memory *holders; /* of the heritage; empty where they are not read */
} rs_estate;

/* What `world` takes over from, for a process on `host`; nothing is mapped yet. `now` is the new
 * world's placement; keeper and placement are borrowed. rs_estate_close, after a failure too. */
rs_status rs_estate_open(rs_estate *estate, rs_keeper *keeper, const rs_space *space,
    const rs_placement *now, const rs_member_world *world, int host) RS_MUST_CHECK;
void rs_estate_close(rs_estate *estate);

/* As a plan from the heritage to the new world is to see the hosts. */
void rs_estate_plan_options(const rs_estate *estate, rs_plan_options *out);

/* Maps what a holder of the heritage has. RS_ERR_ARGUMENT: it is on another host. */
rs_status rs_estate_map(rs_estate *estate, int holder) RS_MUST_CHECK;

/* The memory of a holder that is mapped. `context`: the estate (rs_move_peer). */
rs_status rs_estate_lend(void *context, int holder, const rs_memory **out) RS_MUST_CHECK;

/* Adds the sums of an old rank's memory, read where it lies, to `words` (certificate.h). */
rs_status rs_estate_sum(rs_estate *estate, int old_rank, uint64_t *words) RS_MUST_CHECK;

/* Touches `arenas` (`count`; NULL ones are left out), and then what is mapped here, at a pace that
 * leaves time to who trains. */
void rs_estate_touch(rs_estate *estate, rs_arena *const *arenas, int count);

/* Adds what a holder of a placement contributes to a certificate's words, all read from `memory`.
 */
rs_status rs_words_add_memory(const rs_placement *placement, int holder, const rs_memory *memory,
    uint64_t *words) RS_MUST_CHECK;

/* Words of sums as JSON: an array of hexadecimal texts; and back, added to `words`.
 * RS_ERR_MALFORMED: not `count` of them. */
json_t *rs_words_to_json(const uint64_t *words, size_t count);
rs_status rs_words_add_json(const json_t *json, uint64_t *words, size_t count) RS_MUST_CHECK;

#endif
