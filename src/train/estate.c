/*
 * A host's part of what an old world has left. Which old arenas are mapped follows from the holders
 * that are asked for; one of another host is refused, though hosts may be supposed ones whose files
 * could be opened.
 */
#include "train/estate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "reshard/certificate.h"

#define TOUCH_PIECE (256 << 10)
#define TOUCH_SHARE 0.5 /* of the time while memory is touched ahead */

rs_status rs_estate_open(rs_estate *e, rs_keeper *keeper, const rs_space *space,
    const rs_placement *now, const rs_member_world *world, int host)
{
    const rs_origin *from = &world->from;
    const rs_places places = {from->hosts, world->hosts};
    rs_layout layout;
    *e = (rs_estate){.keeper = keeper,
        .generation = from->generation,
        .host = host,
        .old_ranks = from->ranks,
        .holders_count = from->ranks + rs_placement_holders(now)};
    RS_TRY(rs_layout_parse(from->layout, &layout));
    RS_TRY(rs_layout_placement(space, &layout, &e->old));
    if (rs_placement_holders(e->old) != from->ranks)
        return rs_error_set(RS_ERR_MISMATCH, "layout %s has %d ranks, the world before had %d",
            from->layout, rs_placement_holders(e->old), from->ranks);
    RS_TRY(rs_heritage_create(e->old, now, from->kept, &places, &e->heritage));
    e->arenas = rs_calloc((size_t)from->ranks, sizeof *e->arenas);
    e->memory = rs_calloc((size_t)from->ranks, sizeof *e->memory);
    e->holders = rs_calloc((size_t)e->holders_count, sizeof *e->holders);
    if (e->arenas == NULL || e->memory == NULL || e->holders == NULL)
        return rs_error_memory((size_t)e->holders_count * sizeof *e->holders);
    return RS_OK;
}

void rs_estate_close(rs_estate *e)
{
    for (int h = 0; e->holders != NULL && h < e->holders_count; h++)
        free(e->holders[h].regions);
    for (int i = 0; e->arenas != NULL && i < e->old_ranks; i++)
        rs_arena_close(e->arenas[i]);
    free(e->holders);
    free(e->memory);
    free(e->arenas);
    rs_heritage_destroy(e->heritage);
    rs_placement_destroy(e->old);
    *e = (rs_estate){0};
}

void rs_estate_plan_options(const rs_estate *e, rs_plan_options *out)
{
    *out = (rs_plan_options){.node_of = rs_heritage_hosts(e->heritage), .adopt = true};
}

static rs_status map_old(rs_estate *e, int old)
{
    int host = rs_heritage_hosts(e->heritage)[e->holders_count - e->old_ranks + old];
    if (e->arenas[old] != NULL)
        return RS_OK;
    if (host != e->host)
        return rs_error_set(RS_ERR_ARGUMENT,
            "the arena of old rank %d is on host %d, and this process is on host %d", old, host,
            e->host);
    RS_TRY(rs_arena_open(e->keeper, e->generation, old, false, &e->arenas[old]));
    e->memory[old] = rs_arena_memory(e->arenas[old]);
    return RS_OK;
}

rs_status rs_estate_map(rs_estate *e, int holder)
{
    int count;
    const int *sources = rs_heritage_sources(e->heritage, holder, &count);
    for (int i = 0; i < count; i++)
        RS_TRY(map_old(e, sources[i]));
    if (e->holders[holder].regions == NULL)
        RS_TRY(rs_heritage_memory(e->heritage, holder, e->memory, &e->holders[holder]));
    return RS_OK;
}

rs_status rs_estate_lend(void *context, int holder, const rs_memory **out)
{
    const rs_estate *e = context;
    if (e->holders[holder].regions == NULL)
        return rs_error_set(RS_ERR_NOT_FOUND, "the memory of holder %d is not mapped", holder);
    *out = &e->holders[holder];
    return RS_OK;
}

rs_status rs_estate_sum(rs_estate *e, int old_rank, uint64_t *words)
{
    RS_TRY(map_old(e, old_rank));
    return rs_words_add_memory(e->old, old_rank, e->memory[old_rank], words);
}

/* True if more is left to touch. */
static bool touch_some(rs_estate *e, rs_arena *const *arenas, int count)
{
    for (int i = 0; i < count; i++)
        if (arenas[i] != NULL && rs_arena_touch(arenas[i], TOUCH_PIECE) > 0)
            return true;
    for (int i = 0; i < e->old_ranks; i++)
        if (e->arenas[i] != NULL && rs_arena_touch(e->arenas[i], TOUCH_PIECE) > 0)
            return true;
    return false;
}

void rs_estate_touch(rs_estate *e, rs_arena *const *arenas, int count)
{
    for (bool more = true; more;) {
        double begun = rs_clock_seconds();
        more = touch_some(e, arenas, count);
        double rest = (rs_clock_seconds() - begun) * (1 / TOUCH_SHARE - 1);
        rs_nap(rest);
    }
}

rs_status rs_words_add_memory(
    const rs_placement *placement, int holder, const rs_memory *memory, uint64_t *words)
{
    size_t count = rs_sums_word_count(rs_placement_space(placement));
    rs_sums *sums = NULL;
    uint64_t *one = rs_calloc(count, sizeof *one);
    rs_status status = one != NULL ? RS_OK : rs_error_memory(count * sizeof *one);
    if (status == RS_OK)
        status = rs_sums_create(placement, holder, &sums);
    if (status == RS_OK)
        status = rs_sums_measure(sums, memory, true);
    if (status == RS_OK)
        status = rs_sums_words(sums, one);
    for (size_t w = 0; w < count && status == RS_OK; w++)
        words[w] += one[w];
    rs_sums_destroy(sums);
    free(one);
    return status;
}

json_t *rs_words_to_json(const uint64_t *words, size_t count)
{
    json_t *array = json_array();
    char text[20];
    for (size_t w = 0; w < count; w++) {
        snprintf(text, sizeof text, "%016" PRIx64, words[w]);
        json_array_append_new(array, json_string(text));
    }
    return array;
}

rs_status rs_words_add_json(const json_t *json, uint64_t *words, size_t count)
{
    if (json_array_size(json) != count)
        return rs_error_set(RS_ERR_MALFORMED, "the supervisor's word has %zu sums, wanted %zu",
            json_array_size(json), count);
    for (size_t w = 0; w < count; w++) {
        const char *text = json_string_value(json_array_get(json, w));
        words[w] += text != NULL ? strtoull(text, NULL, 16) : 0;
    }
    return RS_OK;
}
