/*
 * The regrouped placement: the segments of another one, dealt to other holders.
 *
 * Nothing is said about bytes: a shard lies in the same segment at the same place, only whose
 * segment that is has changed. So every question is put to the base and the answer's holders are
 * renamed, segment by segment.
 *
 * Invariants:
 * 1. A segment of the base has at most one holder here; one that has none is in no answer.
 * 2. A holder has at most one segment of each number.
 *
 * Cost: a binary search per holder of an answer, and the base's address where a box has to be
 * found in its segment.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "layout/placement.h"

/* A segment of the base and who has it here. */
typedef struct dealt {
    rs_segment_ref ref;
    int holder;
} dealt;

typedef struct regrouped {
    rs_placement head;
    const rs_placement *base;
    rs_segment_ref *refs; /* holder by holder, ascending */
    size_t *first;
    dealt *dealt; /* the same, ascending by ref */
} regrouped;

static const regrouped *regrouped_of(const rs_placement *placement)
{
    return (const regrouped *)placement;
}

static int compare_refs(rs_segment_ref a, rs_segment_ref b)
{
    return a.holder != b.holder ? rs_compare(a.holder, b.holder) : rs_compare(a.segment, b.segment);
}

static int compare_two_refs(const void *a, const void *b)
{
    return compare_refs(*(const rs_segment_ref *)a, *(const rs_segment_ref *)b);
}

static int compare_dealt(const void *a, const void *b)
{
    return compare_refs(((const dealt *)a)->ref, ((const dealt *)b)->ref);
}

/* Who has the base's segment here; -1: nobody. */
static int holder_of(const regrouped *self, rs_segment_ref ref)
{
    dealt key = {.ref = ref};
    size_t count = self->first[self->head.holders];
    const dealt *found =
        count > 0 ? bsearch(&key, self->dealt, count, sizeof key, compare_dealt) : NULL;
    return found != NULL ? found->holder : -1;
}

/* The next holder of the base of whose segments `holder` has some, from *at on; -1 after the last.
 */
static int next_source(const regrouped *self, int holder, size_t *at)
{
    size_t end = self->first[holder + 1];
    if (*at >= end)
        return -1;
    int source = self->refs[*at].holder;
    while (*at < end && self->refs[*at].holder == source)
        (*at)++;
    return source;
}

static void regrouped_destroy(rs_placement *placement)
{
    regrouped *self = (regrouped *)placement;
    free(self->refs);
    free(self->first);
    free(self->dealt);
    free(self);
}

/* What two roles have in common in the base need not be dealt alike here. */
static int regrouped_geometry(const rs_placement *placement, int role)
{
    (void)placement;
    return role;
}

static int compare_places(const void *a, const void *b)
{
    const rs_shard *x = a;
    const rs_shard *y = b;
    if (x->segment != y->segment)
        return rs_compare(x->segment, y->segment);
    return rs_compare(x->offset, y->offset);
}

static rs_status regrouped_shards(
    const rs_placement *placement, int holder, int role, rs_shard_list *out)
{
    const regrouped *self = regrouped_of(placement);
    rs_shard_list theirs = {0};
    rs_status status = RS_OK;
    size_t begin = out->count, at = self->first[holder];
    for (int source; (source = next_source(self, holder, &at)) >= 0;) {
        RS_TRY_GOTO(rs_placement_shards(self->base, source, role, &theirs), done);
        for (size_t k = 0; k < theirs.count; k++)
            if (holder_of(self, (rs_segment_ref){source, theirs.items[k].segment}) == holder)
                RS_TRY_GOTO(rs_shard_append(out, &theirs.items[k]), done);
    }
    if (out->count > begin)
        qsort(out->items + begin, out->count - begin, sizeof *out->items, compare_places);
done:
    rs_shard_list_fini(&theirs);
    return status;
}

static int compare_numbers(const void *a, const void *b)
{
    return rs_compare(((const rs_segment *)a)->segment, ((const rs_segment *)b)->segment);
}

static rs_status regrouped_segments(const rs_placement *placement, int holder, rs_segment_list *out)
{
    const regrouped *self = regrouped_of(placement);
    rs_segment_list theirs = {0};
    rs_status status = RS_OK;
    size_t at = self->first[holder];
    for (int source; (source = next_source(self, holder, &at)) >= 0;) {
        RS_TRY_GOTO(rs_placement_segments(self->base, source, &theirs), done);
        for (size_t k = 0; k < theirs.count; k++)
            if (holder_of(self, (rs_segment_ref){source, theirs.items[k].segment}) == holder)
                RS_TRY_GOTO(
                    rs_segment_append(out, theirs.items[k].segment, theirs.items[k].bytes), done);
    }
    if (out->count > 0)
        qsort(out->items, out->count, sizeof *out->items, compare_numbers);
done:
    rs_segment_list_fini(&theirs);
    return status;
}

static rs_status regrouped_locate(
    const rs_placement *placement, int tensor, int role, const rs_box *box, rs_holding_list *out)
{
    const regrouped *self = regrouped_of(placement);
    rs_holding_list theirs = {0};
    rs_status status;
    RS_TRY_GOTO(rs_placement_locate(self->base, tensor, role, box, &theirs), done);
    for (size_t i = 0; i < theirs.count; i++) {
        const rs_holding *holding = &theirs.items[i];
        for (size_t k = 0; k < holding->count; k++) {
            int holder = theirs.ranks[holding->first + k];
            rs_shard shard;
            RS_TRY_GOTO(
                rs_placement_address(self->base, holder, tensor, role, &holding->box, &shard),
                done);
            int now = holder_of(self, (rs_segment_ref){holder, shard.segment});
            if (now >= 0)
                RS_TRY_GOTO(rs_holding_add(out, &holding->box, now), done);
        }
    }
done:
    rs_holding_list_fini(&theirs);
    return status;
}

static rs_status regrouped_address(const rs_placement *placement, int holder, int tensor, int role,
    const rs_box *box, rs_shard *out)
{
    const regrouped *self = regrouped_of(placement);
    size_t at = self->first[holder];
    for (int source; (source = next_source(self, holder, &at)) >= 0;) {
        rs_status status = rs_placement_address(self->base, source, tensor, role, box, out);
        if (status == RS_OK && holder_of(self, (rs_segment_ref){source, out->segment}) == holder)
            return RS_OK;
        if (status != RS_OK && status != RS_ERR_NOT_FOUND)
            return status;
    }
    return rs_placement_not_found(placement, holder, tensor, role, box);
}

static const rs_placement_ops regrouped_ops = {
    .destroy = regrouped_destroy,
    .geometry = regrouped_geometry,
    .shards = regrouped_shards,
    .segments = regrouped_segments,
    .locate = regrouped_locate,
    .address = regrouped_address,
};

static rs_status check_ref(
    const rs_placement *base, rs_segment_ref ref, rs_segment_list *theirs, int *asked)
{
    if (ref.holder < 0 || ref.holder >= rs_placement_holders(base))
        return rs_error_set(RS_ERR_ARGUMENT, "segment %d of holder %d: there are %d holders",
            ref.segment, ref.holder, rs_placement_holders(base));
    if (*asked != ref.holder)
        RS_TRY(rs_placement_segments(base, ref.holder, theirs));
    *asked = ref.holder;
    for (size_t k = 0; k < theirs->count; k++)
        if (theirs->items[k].segment == ref.segment)
            return RS_OK;
    return rs_error_set(
        RS_ERR_ARGUMENT, "holder %d has no segment %d to be dealt", ref.holder, ref.segment);
}

static rs_status check(const regrouped *self)
{
    size_t count = self->first[self->head.holders];
    rs_segment_list theirs = {0};
    rs_status status = RS_OK;
    int asked = -1;
    for (size_t i = 0; i < count && status == RS_OK; i++) {
        status = check_ref(self->base, self->dealt[i].ref, &theirs, &asked);
        if (status == RS_OK && i > 0 &&
            compare_refs(self->dealt[i - 1].ref, self->dealt[i].ref) == 0)
            status = rs_error_set(RS_ERR_ARGUMENT, "segment %d of holder %d is dealt twice",
                self->dealt[i].ref.segment, self->dealt[i].ref.holder);
    }
    for (int h = 0; h < self->head.holders && status == RS_OK; h++) {
        theirs.count = 0;
        status = regrouped_segments(&self->head, h, &theirs);
        for (size_t i = 1; i < theirs.count && status == RS_OK; i++)
            if (theirs.items[i].segment == theirs.items[i - 1].segment)
                status = rs_error_set(RS_ERR_ARGUMENT,
                    "holder %d would have two segments of number %d", h, theirs.items[i].segment);
    }
    rs_segment_list_fini(&theirs);
    return status;
}

rs_status rs_placement_create_regrouped(const rs_placement *base, int holders,
    const rs_segment_ref *refs, const size_t *first, rs_placement **out)
{
    if (holders < 0 || first[0] != 0)
        return rs_error_set(RS_ERR_ARGUMENT, "%d holders: their segments must begin at 0", holders);
    rs_status status;
    size_t count = first[holders];
    regrouped *self = rs_calloc(1, sizeof *self);
    if (self == NULL)
        return rs_error_memory(sizeof *self);
    self->head = (rs_placement){.ops = &regrouped_ops, .space = base->space, .holders = holders};
    self->base = base;
    self->refs = rs_calloc(count, sizeof *self->refs);
    self->first = rs_calloc((size_t)holders + 1, sizeof *self->first);
    self->dealt = rs_calloc(count, sizeof *self->dealt);
    if (self->refs == NULL || self->first == NULL || self->dealt == NULL) {
        status = rs_error_memory(count * (sizeof *self->refs + sizeof *self->dealt));
        goto fail;
    }
    memcpy(self->first, first, ((size_t)holders + 1) * sizeof *first);
    if (count > 0)
        memcpy(self->refs, refs, count * sizeof *refs);
    for (int h = 0; h < holders; h++) {
        size_t n = first[h + 1] - first[h];
        if (n > 1)
            qsort(self->refs + first[h], n, sizeof *self->refs, compare_two_refs);
        for (size_t i = first[h]; i < first[h + 1]; i++)
            self->dealt[i] = (dealt){self->refs[i], h};
    }
    if (count > 1)
        qsort(self->dealt, count, sizeof *self->dealt, compare_dealt);
    RS_TRY_GOTO(check(self), fail);
    *out = &self->head;
    return RS_OK;
fail:
    regrouped_destroy(&self->head);
    return status;
}
