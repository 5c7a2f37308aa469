/*
 * Tight moves: the old arena is given back page by page while the new one fills.
 *
 * Of every page of the old arena it is known how many copies have yet to read it; a copy that is
 * done, whoever made it, takes one from each page that it read, and a page with none left is
 * punched. A copy's pages are found from its strides, in runs; the same walk reserves the pages
 * that a copy is about to write.
 *
 * Copies that others make are known to be done by marks. A reader counts, per source, the copies
 * that it has pulled and checked, in its own new arena's table (one writer); both sides list a
 * pair's copies in the same order, so a count says which.
 *
 * Invariants:
 * 1. A page is punched only after every copy that reads it was checked in its target: at any
 * instant every byte is whole in its old place or in its new one.
 * 2. Adopted segments are never punched.
 * Cost: four bytes per old page, and the pages of each copy twice.
 */
#include "move/tight.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "move/lattice.h"

/* The pages of a shard, in runs of consecutive ones. */
typedef struct page_runs {
    rs_lattice lattice; /* one side: offsets from the first element; the runs' starts */
    int64_t index[RS_MAX_DIMS];
    int64_t begin; /* of the current run, in bytes of the segment */
    int64_t span;  /* bytes from a run's first to past its last */
    int64_t page;
    int64_t next; /* pages below it were reported */
    bool done;
} page_runs;

/* Dimensions whose gaps are smaller than a page skip no page, so they belong to a run. */
static void runs_begin(page_runs *runs, const rs_shard *shard, int64_t page)
{
    int64_t element = (int64_t)rs_dtype_size(shard->dtype);
    *runs = (page_runs){.begin = shard->offset, .span = element, .page = page};
    rs_lattice *lattice = &runs->lattice;
    rs_lattice_init(
        lattice, shard->box.ndim, shard->box.extent, 1, (const int64_t *const[]){shard->stride});
    rs_lattice_sort(lattice, 0);
    while (lattice->ndim > 0 && lattice->stride[0][lattice->ndim - 1] - runs->span < page) {
        int d = --lattice->ndim;
        runs->span += lattice->stride[0][d] * (lattice->extent[d] - 1);
    }
}

/* The next run of pages, first .. last; false at the end. Runs that share a page report it once. */
static bool runs_next(page_runs *runs, int64_t *first, int64_t *last)
{
    const rs_lattice *lattice = &runs->lattice;
    bool found = false;
    while (!runs->done && !found) {
        *first = rs_max64(runs->begin / runs->page, runs->next);
        *last = (runs->begin + runs->span - 1) / runs->page;
        found = *first <= *last;
        runs->next = rs_max64(runs->next, *last + 1);
        int d = lattice->ndim - 1;
        for (; d >= 0; d--) {
            runs->begin += lattice->stride[0][d];
            if (++runs->index[d] < lattice->extent[d])
                break;
            runs->begin -= lattice->stride[0][d] * lattice->extent[d];
            runs->index[d] = 0;
        }
        runs->done = d < 0;
    }
    return found;
}

/* Index of an old segment in the list; it is there. */
static size_t segment_index(const rs_tight *tight, int segment)
{
    return RS_SEARCH(tight->segments.count, k, tight->segments.items[k].segment < segment);
}

/* Where this rank has the source of a copy; false if that segment stays. */
static rs_status source_shard(
    const rs_tight *tight, const rs_copy *copy, rs_shard *shard, bool *freed)
{
    RS_TRY(rs_placement_address(
        tight->from, tight->rank, copy->tensor, copy->role, &copy->box, shard));
    *freed = !rs_plan_is_adopted(tight->plan, shard->segment);
    return RS_OK;
}

/* Gives back pages first .. last of an old segment. */
static rs_status punch_pages(rs_tight *tight, size_t index, int64_t first, int64_t last)
{
    const rs_segment *segment = &tight->segments.items[index];
    int64_t begin = first * tight->page;
    int64_t end = rs_min64((last + 1) * tight->page, segment->bytes);
    RS_TRY(rs_arena_punch(tight->old, segment->segment, begin, end - begin));
    tight->freed_bytes += (last + 1 - first) * tight->page;
    return RS_OK;
}

/* Gives back those of pages first .. last of a segment that have no readers (left). */
static rs_status punch_unread(rs_tight *tight, size_t index, int64_t first, int64_t last)
{
    const uint32_t *readers = tight->readers + tight->first[index];
    for (int64_t page = first; page <= last; page++) {
        int64_t begin = page;
        while (page <= last && readers[page] == 0)
            page++;
        if (page > begin)
            RS_TRY(punch_pages(tight, index, begin, page - 1));
    }
    return RS_OK;
}

static rs_status count_readers(rs_tight *tight)
{
    RS_TRY(rs_placement_segments(tight->from, tight->rank, &tight->segments));
    size_t segments = tight->segments.count;
    if (segments > 0 && tight->old == NULL)
        return rs_error_set(RS_ERR_ARGUMENT,
            "tight move: rank %d has old segments, but its old arena was not given", tight->rank);
    tight->first = rs_calloc(segments + 1, sizeof *tight->first);
    if (tight->first == NULL)
        return rs_error_memory((segments + 1) * sizeof *tight->first);
    for (size_t k = 0; k < segments; k++)
        tight->first[k + 1] =
            tight->first[k] + (size_t)rs_ceil_div(tight->segments.items[k].bytes, tight->page);
    tight->readers = rs_calloc(tight->first[segments], sizeof *tight->readers);
    if (tight->readers == NULL)
        return rs_error_memory(tight->first[segments] * sizeof *tight->readers);
    size_t count;
    const rs_copy *copies = rs_plan_copies(tight->plan, &count);
    for (size_t k = 0; k < count; k++) {
        rs_shard shard;
        bool freed;
        if (copies[k].source != tight->rank)
            continue;
        RS_TRY(source_shard(tight, &copies[k], &shard, &freed));
        if (!freed)
            continue;
        uint32_t *readers = tight->readers + tight->first[segment_index(tight, shard.segment)];
        page_runs runs;
        int64_t first;
        int64_t last;
        runs_begin(&runs, &shard, tight->page);
        while (runs_next(&runs, &first, &last))
            for (int64_t page = first; page <= last; page++)
                readers[page]++;
    }
    return RS_OK;
}

/* Lists, per rank of the node that pulls from this one, the copies that it pulls. */
static rs_status list_readers(rs_tight *tight)
{
    rs_status status = RS_OK;
    size_t count;
    const rs_copy *copies = rs_plan_copies(tight->plan, &count);
    size_t *pulls = rs_calloc((size_t)tight->ranks, sizeof *pulls);
    tight->copy_indices = rs_calloc(count, sizeof *tight->copy_indices);
    tight->peers = rs_calloc((size_t)tight->ranks, sizeof *tight->peers);
    if (pulls == NULL || tight->copy_indices == NULL || tight->peers == NULL) {
        status = rs_error_memory((size_t)tight->ranks * sizeof *tight->peers);
        goto done;
    }
    for (size_t k = 0; k < count; k++)
        if (copies[k].source == tight->rank && copies[k].reach == RS_REACH_NODE)
            pulls[copies[k].target]++;
    size_t *at = tight->copy_indices;
    for (int rank = 0; rank < tight->ranks; rank++) {
        if (pulls[rank] == 0)
            continue;
        rs_tight_reader *peer = &tight->peers[tight->peer_count];
        *peer = (rs_tight_reader){.rank = rank, .copies = at};
        at += pulls[rank];
        pulls[rank] = tight->peer_count++;
    }
    for (size_t k = 0; k < count; k++)
        if (copies[k].source == tight->rank && copies[k].reach == RS_REACH_NODE) {
            rs_tight_reader *peer = &tight->peers[pulls[copies[k].target]];
            peer->copies[peer->count++] = k;
        }
done:
    free(pulls);
    return status;
}

/* Opens the new arenas of the readers. The keeper is reached through this rank's own arenas. */
static rs_status open_readers(rs_tight *tight)
{
    for (size_t k = 0; k < tight->peer_count; k++) {
        rs_tight_reader *peer = &tight->peers[k];
        if (tight->now == NULL)
            return rs_error_set(RS_ERR_ARGUMENT,
                "tight move: rank %d is pulled from, and needs a new arena (it may be empty) "
                "beside which it finds those of its readers",
                tight->rank);
        RS_TRY(rs_arena_open_sibling(tight->now, peer->rank, &peer->arena));
    }
    return RS_OK;
}

rs_status rs_tight_init(rs_tight *tight, const rs_placement *from, const rs_placement *to,
    const rs_plan *plan, int ranks, rs_arena *old, rs_arena *now)
{
    *tight = (rs_tight){.plan = plan,
        .from = from,
        .to = to,
        .rank = rs_plan_rank(plan),
        .old = old,
        .now = now,
        .page = rs_max64(sysconf(_SC_PAGESIZE), 4096),
        .ranks = ranks};
    tight->marks = rs_calloc((size_t)ranks, sizeof *tight->marks);
    if (tight->marks == NULL)
        return rs_error_memory((size_t)ranks * sizeof *tight->marks);
    RS_TRY(count_readers(tight));
    RS_TRY(list_readers(tight));
    return open_readers(tight);
}

void rs_tight_fini(rs_tight *tight)
{
    for (size_t k = 0; k < tight->peer_count; k++)
        rs_arena_close(tight->peers[k].arena);
    rs_segment_list_fini(&tight->segments);
    free(tight->first);
    free(tight->readers);
    free(tight->peers);
    free(tight->copy_indices);
    free(tight->marks);
    *tight = (rs_tight){0};
}

rs_status rs_tight_begin(rs_tight *tight)
{
    for (size_t k = 0; k < tight->segments.count; k++)
        if (!rs_plan_is_adopted(tight->plan, tight->segments.items[k].segment))
            RS_TRY(punch_unread(tight, k, 0, (int64_t)(tight->first[k + 1] - tight->first[k]) - 1));
    return RS_OK;
}

rs_status rs_tight_reserve(rs_tight *tight, const rs_copy *copy)
{
    rs_shard shard;
    page_runs runs;
    int64_t first;
    int64_t last;
    RS_TRY(
        rs_placement_address(tight->to, tight->rank, copy->tensor, copy->role, &copy->box, &shard));
    runs_begin(&runs, &shard, tight->page);
    int64_t end = shard.offset + (int64_t)rs_dtype_size(shard.dtype);
    for (int d = 0; d < shard.box.ndim; d++)
        end += (shard.box.extent[d] - 1) * shard.stride[d];
    while (runs_next(&runs, &first, &last)) {
        int64_t begin = first * tight->page;
        RS_TRY(rs_arena_reserve(
            tight->now, shard.segment, begin, rs_min64((last + 1) * tight->page, end) - begin));
    }
    return RS_OK;
}

rs_status rs_tight_release(rs_tight *tight, const rs_copy *copy)
{
    rs_shard shard;
    bool freed;
    page_runs runs;
    int64_t first;
    int64_t last;
    RS_TRY(source_shard(tight, copy, &shard, &freed));
    if (!freed)
        return RS_OK;
    size_t index = segment_index(tight, shard.segment);
    uint32_t *readers = tight->readers + tight->first[index];
    runs_begin(&runs, &shard, tight->page);
    while (runs_next(&runs, &first, &last)) {
        for (int64_t page = first; page <= last; page++)
            readers[page]--;
        RS_TRY(punch_unread(tight, index, first, last));
    }
    return RS_OK;
}

rs_status rs_tight_mark(rs_tight *tight, int source)
{
    return rs_arena_mark(tight->now, source, ++tight->marks[source]);
}

rs_status rs_tight_halt(rs_tight *tight)
{
    rs_status status = RS_OK;
    size_t count;
    const rs_copy *copies = rs_plan_copies(tight->plan, &count);
    for (size_t k = 0; k < count; k++) {
        const rs_copy *copy = &copies[k];
        if (copy->target != tight->rank || copy->reach != RS_REACH_NODE ||
            (tight->marks[copy->source] & RS_TIGHT_HALTED))
            continue;
        tight->marks[copy->source] |= RS_TIGHT_HALTED;
        rs_status marked = rs_arena_mark(tight->now, copy->source, tight->marks[copy->source]);
        if (status == RS_OK)
            status = marked;
    }
    return status;
}
