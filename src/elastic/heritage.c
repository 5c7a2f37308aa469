/*
 * Dealing an old world's segments to a new world's ranks.
 *
 * Two segments are alike if they have the same number, size and shards at the same places: then the
 * bytes of one are those of the other. Each new segment gets one old segment that is alike, if
 * there is any left, that of the rank it continues first. What is left over of the old rank that a
 * new rank continues becomes that new rank's too, unless it has taken over a segment of that number
 * from elsewhere, or any element that is in it (ranks may keep a tensor in different segments): it
 * is where most of what the rank still lacks lies, and copying it moves nothing between holders.
 *
 * 1. Every old segment has exactly one holder in the regrouped placement.
 * 2. As many new segments as possible are taken over whole: within a class of alike segments of a
 *    host that is the lesser of both counts, whoever gets which.
 * 3. Nobody takes over anything from another host; what lies there is lent.
 * 4. No holder has an element twice.
 *
 * Segments are compared by a hash of their shards first, and shard by shard where hashes agree.
 *
 * Cost: every rank looks at the segments of both worlds.
 */
#include "elastic/heritage.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

enum { OLD, NOW };

/* A segment of either world. */
typedef struct entry {
    int segment;
    int side;
    int rank;
    int host;
    uint64_t hash;
    int64_t bytes;
    size_t first; /* its shards: shards[first .. first + count - 1] */
    size_t count;
    int holder; /* OLD: who has it in the heritage, -1 yet; NOW: 0 once it was taken over */
} entry;

typedef struct deal {
    entry *entries;
    size_t count;
    size_t capacity;
    rs_shard *shards;
    size_t shard_count;
    size_t shard_capacity;
} deal;

struct rs_heritage {
    int old_ranks;
    int new_ranks;
    int *hosts; /* of each holder */
    rs_placement *placement;
    rs_segment_ref *refs; /* of each holder, ascending by segment */
    size_t *first;
    int *sources; /* of each holder, ascending, without repetition */
    size_t *source_first;
};

/* ---- reading both worlds ---- */

static int compare_places(const void *a, const void *b)
{
    const rs_shard *x = a;
    const rs_shard *y = b;
    if (x->segment != y->segment)
        return rs_compare(x->segment, y->segment);
    if (x->offset != y->offset)
        return rs_compare(x->offset, y->offset);
    if (x->tensor != y->tensor)
        return rs_compare(x->tensor, y->tensor);
    return rs_box_compare(&x->box, &y->box);
}

static bool same_shard(const rs_shard *a, const rs_shard *b)
{
    return a->tensor == b->tensor && a->role == b->role && a->dtype == b->dtype &&
           a->offset == b->offset && rs_box_equal(&a->box, &b->box) &&
           memcmp(a->stride, b->stride, sizeof a->stride[0] * (size_t)a->box.ndim) == 0;
}

static uint64_t hash_shard(uint64_t hash, const rs_shard *s)
{
    int64_t words[5 + 3 * RS_MAX_DIMS] = {
        s->tensor, s->role, (int64_t)s->dtype, s->offset, s->box.ndim};
    for (int d = 0; d < s->box.ndim; d++) {
        words[5 + 3 * d] = s->box.offset[d];
        words[6 + 3 * d] = s->box.extent[d];
        words[7 + 3 * d] = s->stride[d];
    }
    return XXH3_64bits_withSeed(words, sizeof words, hash);
}

/* Appends the segments of one rank with their shards. */
static rs_status read_rank(deal *d, const rs_placement *placement, int side, int rank, int host)
{
    rs_shard_list shards = {0};
    rs_segment_list segments = {0};
    rs_status status;
    RS_TRY_GOTO(rs_placement_shards(placement, rank, -1, &shards), done);
    RS_TRY_GOTO(rs_placement_segments(placement, rank, &segments), done);
    RS_TRY_GOTO(rs_array_reserve((void **)&d->shards, &d->shard_capacity,
                    d->shard_count + shards.count, sizeof *d->shards),
        done);
    RS_TRY_GOTO(rs_array_reserve((void **)&d->entries, &d->capacity, d->count + segments.count,
                    sizeof *d->entries),
        done);
    if (shards.count > 1)
        qsort(shards.items, shards.count, sizeof *shards.items, compare_places);
    size_t at = 0;
    for (size_t i = 0; i < segments.count; i++) {
        entry *e = &d->entries[d->count++];
        *e = (entry){.segment = segments.items[i].segment,
            .side = side,
            .rank = rank,
            .host = host,
            .bytes = segments.items[i].bytes,
            .first = d->shard_count,
            .holder = -1};
        while (at < shards.count && shards.items[at].segment < e->segment)
            at++;
        for (; at < shards.count && shards.items[at].segment == e->segment; at++) {
            e->hash = hash_shard(e->hash, &shards.items[at]);
            d->shards[d->shard_count++] = shards.items[at];
        }
        e->count = d->shard_count - e->first;
    }
done:
    rs_shard_list_fini(&shards);
    rs_segment_list_fini(&segments);
    return status;
}

/* ---- dealing ---- */

static bool alike(const deal *d, const entry *a, const entry *b)
{
    if (a->segment != b->segment || a->bytes != b->bytes || a->hash != b->hash ||
        a->count != b->count)
        return false;
    for (size_t i = 0; i < a->count; i++)
        if (!same_shard(&d->shards[a->first + i], &d->shards[b->first + i]))
            return false;
    return true;
}

static int compare_entries(const void *a, const void *b)
{
    const entry *x = a;
    const entry *y = b;
    if (x->segment != y->segment)
        return rs_compare(x->segment, y->segment);
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    if (x->host != y->host)
        return rs_compare(x->host, y->host);
    if (x->side != y->side)
        return rs_compare(x->side, y->side);
    return rs_compare(x->rank, y->rank);
}

/* Gives the new segment `now` an old one of entries begin .. end - 1 that is alike and free: that
 * of old rank `wanted`, or (-1) any. */
static void take_over(deal *d, size_t begin, size_t end, entry *now, int wanted)
{
    for (size_t i = begin; i < end && now->holder < 0; i++) {
        entry *e = &d->entries[i];
        if (e->side != OLD || e->holder >= 0 || (wanted >= 0 && e->rank != wanted) ||
            !alike(d, e, now))
            continue;
        e->holder = now->rank;
        now->holder = 0;
    }
}

static void deal_alike(deal *d, const int *kept)
{
    size_t end;
    for (size_t begin = 0; begin < d->count; begin = end) {
        end = begin + 1;
        while (end < d->count && d->entries[end].segment == d->entries[begin].segment &&
               d->entries[end].hash == d->entries[begin].hash &&
               d->entries[end].host == d->entries[begin].host)
            end++;
        for (int any = 0; any < 2; any++)
            for (size_t i = begin; i < end; i++) {
                entry *e = &d->entries[i];
                if (e->side == NOW && e->holder < 0 && (any == 1 || kept[e->rank] >= 0))
                    take_over(d, begin, end, e, any == 1 ? -1 : kept[e->rank]);
            }
    }
}

/* A shard that new rank `rank` has taken over from another than the one that it continues. */
typedef struct foreign {
    int rank;
    const rs_shard *shard;
} foreign;

typedef struct foreign_list {
    foreign *items;
    size_t count;
    size_t capacity;
} foreign_list;

static int compare_foreign(const void *a, const void *b)
{
    const foreign *x = a;
    const foreign *y = b;
    if (x->rank != y->rank)
        return rs_compare(x->rank, y->rank);
    if (x->shard->tensor != y->shard->tensor)
        return rs_compare(x->shard->tensor, y->shard->tensor);
    return rs_compare(x->shard->role, y->shard->role);
}

static rs_status find_foreign(const deal *d, const int *kept, foreign_list *out)
{
    for (size_t i = 0; i < d->count; i++) {
        const entry *e = &d->entries[i];
        if (e->side != OLD || e->holder < 0 || kept[e->holder] == e->rank)
            continue;
        for (size_t k = 0; k < e->count; k++) {
            RS_TRY(RS_LIST_RESERVE_ONE(out));
            out->items[out->count++] = (foreign){e->holder, &d->shards[e->first + k]};
        }
    }
    if (out->count > 1)
        qsort(out->items, out->count, sizeof *out->items, compare_foreign);
    return RS_OK;
}

/* True if the new rank has taken over some of what is in the segment from elsewhere. */
static bool has_some(const deal *d, const foreign_list *list, int rank, const entry *e)
{
    rs_box both;
    for (size_t k = 0; k < e->count; k++) {
        const rs_shard *s = &d->shards[e->first + k];
        foreign key = {rank, s};
        size_t i = RS_SEARCH(list->count, m, compare_foreign(&list->items[m], &key) < 0);
        for (; i < list->count && compare_foreign(&list->items[i], &key) == 0; i++)
            if (rs_box_intersect(&list->items[i].shard->box, &s->box, &both))
                return true;
    }
    return false;
}

/* What nobody took over stays with the new rank that continues its holder, or is only lent. */
static rs_status deal_rest(deal *d, const int *kept, int new_ranks, int old_ranks)
{
    rs_status status = RS_OK;
    foreign_list taken = {0};
    int *heir = rs_calloc((size_t)old_ranks, sizeof *heir);
    int *has = rs_calloc((size_t)new_ranks, sizeof *has); /* 1 + the last segment each has taken */
    if (heir == NULL || has == NULL) {
        status = rs_error_memory((size_t)(old_ranks + new_ranks) * sizeof *heir);
        goto done;
    }
    RS_TRY_GOTO(find_foreign(d, kept, &taken), done);
    for (int i = 0; i < old_ranks; i++)
        heir[i] = -1;
    for (int r = 0; r < new_ranks; r++)
        if (kept[r] >= 0)
            heir[kept[r]] = r;
    size_t end;
    for (size_t begin = 0; begin < d->count; begin = end) {
        int segment = d->entries[begin].segment;
        end = begin;
        while (end < d->count && d->entries[end].segment == segment) {
            const entry *e = &d->entries[end++];
            if (e->side == OLD && e->holder >= 0)
                has[e->holder] = segment + 1;
        }
        for (size_t i = begin; i < end; i++) {
            entry *e = &d->entries[i];
            if (e->side != OLD || e->holder >= 0)
                continue;
            int r = heir[e->rank];
            bool stays = r >= 0 && has[r] != segment + 1 && !has_some(d, &taken, r, e);
            e->holder = stays ? r : new_ranks + e->rank;
        }
    }
done:
    free(taken.items);
    free(heir);
    free(has);
    return status;
}

/* ---- the result ---- */

static int compare_numbers(const void *a, const void *b)
{
    return rs_compare(((const rs_segment_ref *)a)->segment, ((const rs_segment_ref *)b)->segment);
}

static rs_status collect(rs_heritage *h, const deal *d)
{
    size_t holders = (size_t)(h->new_ranks + h->old_ranks), count = 0;
    h->first = rs_calloc(holders + 1, sizeof *h->first);
    h->source_first = rs_calloc(holders + 1, sizeof *h->source_first);
    h->refs = rs_calloc(d->count, sizeof *h->refs);
    h->sources = rs_calloc(d->count, sizeof *h->sources);
    if (h->first == NULL || h->source_first == NULL || h->refs == NULL || h->sources == NULL)
        return rs_error_memory(d->count * sizeof *h->refs);
    for (size_t i = 0; i < d->count; i++)
        if (d->entries[i].side == OLD)
            h->first[d->entries[i].holder + 1]++;
    for (size_t k = 0; k < holders; k++)
        h->first[k + 1] += h->first[k];
    for (size_t i = d->count; i-- > 0;) {
        const entry *e = &d->entries[i];
        if (e->side == OLD)
            h->refs[h->first[e->holder]++] = (rs_segment_ref){e->rank, e->segment};
    }
    for (size_t k = holders; k-- > 0;)
        h->first[k + 1] = h->first[k];
    h->first[0] = 0;
    for (size_t k = 0; k < holders; k++) {
        size_t n = h->first[k + 1] - h->first[k], begin = count;
        h->source_first[k] = count;
        for (size_t i = h->first[k]; i < h->first[k + 1]; i++)
            h->sources[count++] = h->refs[i].holder;
        if (n > 1) {
            qsort(h->refs + h->first[k], n, sizeof *h->refs, compare_numbers);
            qsort(h->sources + begin, n, sizeof *h->sources, rs_compare_ints);
        }
        size_t kept = begin;
        for (size_t i = begin; i < count; i++)
            if (i == begin || h->sources[i] != h->sources[kept - 1])
                h->sources[kept++] = h->sources[i];
        count = kept;
    }
    h->source_first[holders] = count;
    return RS_OK;
}

static rs_status check_kept(const rs_heritage *h, const int *kept)
{
    int new_ranks = h->new_ranks, old_ranks = h->old_ranks;
    for (int r = 0; r < new_ranks; r++) {
        if (kept[r] < -1 || kept[r] >= old_ranks)
            return rs_error_set(RS_ERR_ARGUMENT,
                "new rank %d continues old rank %d, and there are %d", r, kept[r], old_ranks);
        if (kept[r] >= 0 && h->hosts[r] != h->hosts[new_ranks + kept[r]])
            return rs_error_set(RS_ERR_ARGUMENT,
                "new rank %d on host %d continues old rank %d, which is on host %d", r, h->hosts[r],
                kept[r], h->hosts[new_ranks + kept[r]]);
        for (int q = 0; q < r; q++)
            if (kept[r] >= 0 && kept[q] == kept[r])
                return rs_error_set(RS_ERR_ARGUMENT,
                    "new ranks %d and %d both continue old rank %d", q, r, kept[r]);
    }
    return RS_OK;
}

rs_status rs_heritage_create(const rs_placement *old, const rs_placement *now, const int *kept,
    const rs_places *hosts, rs_heritage **out)
{
    deal d = {0};
    rs_status status;
    rs_heritage *h = rs_calloc(1, sizeof *h);
    if (h == NULL)
        return rs_error_memory(sizeof *h);
    h->old_ranks = rs_placement_holders(old);
    h->new_ranks = rs_placement_holders(now);
    h->hosts = rs_calloc((size_t)(h->new_ranks + h->old_ranks), sizeof *h->hosts);
    if (h->hosts == NULL) {
        status = rs_error_memory((size_t)(h->new_ranks + h->old_ranks) * sizeof *h->hosts);
        goto done;
    }
    for (int r = 0; r < h->new_ranks && hosts != NULL; r++)
        h->hosts[r] = hosts->now[r];
    for (int i = 0; i < h->old_ranks && hosts != NULL; i++)
        h->hosts[h->new_ranks + i] = hosts->old[i];
    RS_TRY_GOTO(check_kept(h, kept), done);
    for (int i = 0; i < h->old_ranks; i++)
        RS_TRY_GOTO(read_rank(&d, old, OLD, i, h->hosts[h->new_ranks + i]), done);
    for (int r = 0; r < h->new_ranks; r++)
        RS_TRY_GOTO(read_rank(&d, now, NOW, r, h->hosts[r]), done);
    if (d.count > 1)
        qsort(d.entries, d.count, sizeof *d.entries, compare_entries);
    deal_alike(&d, kept);
    RS_TRY_GOTO(deal_rest(&d, kept, h->new_ranks, h->old_ranks), done);
    RS_TRY_GOTO(collect(h, &d), done);
    RS_TRY_GOTO(rs_placement_create_regrouped(
                    old, h->new_ranks + h->old_ranks, h->refs, h->first, &h->placement),
        done);
done:
    free(d.entries);
    free(d.shards);
    if (status == RS_OK)
        *out = h;
    else
        rs_heritage_destroy(h);
    return status;
}

void rs_heritage_destroy(rs_heritage *h)
{
    if (h == NULL)
        return;
    rs_placement_destroy(h->placement);
    free(h->hosts);
    free(h->refs);
    free(h->first);
    free(h->sources);
    free(h->source_first);
    free(h);
}

const rs_placement *rs_heritage_placement(const rs_heritage *h)
{
    return h->placement;
}

const int *rs_heritage_hosts(const rs_heritage *h)
{
    return h->hosts;
}

int rs_heritage_source(const rs_heritage *h, int holder, int segment)
{
    rs_segment_ref key = {.segment = segment};
    size_t count = h->first[holder + 1] - h->first[holder];
    const rs_segment_ref *found =
        count > 0 ? bsearch(&key, h->refs + h->first[holder], count, sizeof key, compare_numbers)
                  : NULL;
    return found != NULL ? found->holder : -1;
}

const int *rs_heritage_sources(const rs_heritage *h, int holder, int *count)
{
    *count = (int)(h->source_first[holder + 1] - h->source_first[holder]);
    return h->sources + h->source_first[holder];
}

rs_status rs_heritage_memory(
    const rs_heritage *h, int holder, const rs_memory *const *old, rs_memory *out)
{
    size_t count = h->first[holder + 1] - h->first[holder];
    rs_region *regions = rs_calloc(count, sizeof *regions);
    if (regions == NULL)
        return rs_error_memory(count * sizeof *regions);
    for (size_t i = 0; i < count; i++) {
        const rs_segment_ref *ref = &h->refs[h->first[holder] + i];
        const rs_memory *memory = old[ref->holder];
        const rs_region *found = NULL;
        for (size_t k = 0; memory != NULL && k < memory->count && found == NULL; k++)
            if (memory->regions[k].segment == ref->segment)
                found = &memory->regions[k];
        if (found == NULL) {
            free(regions);
            return rs_error_set(RS_ERR_NOT_FOUND, "the memory of old rank %d has no segment %d",
                ref->holder, ref->segment);
        }
        regions[i] = *found;
    }
    *out = (rs_memory){.regions = regions, .count = count};
    return RS_OK;
}
