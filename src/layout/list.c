/*
 * The listed placement: shards given one by one, as files, tests and users' own programs have them.
 *
 * Two indexes of the same shards answer all questions. One is ordered by (tensor, role, box,
 * holder) and answers locate; the other by (holder, tensor, role, box) and answers address. Both
 * find the shards that may meet a box by the first coordinate: a shard that begins behind the box's
 * end cannot, and neither can those of a run whose farthest end so far (`reach`) lies before the
 * box's beginning.
 *
 * Invariants:
 * 1. Shards are not empty, lie in their tensors, and those of one holder and (tensor, role) are
 * disjoint.
 * 2. A segment is as long as its farthest shard needs.
 * 3. reach[i] = max end along dimension 0 of the index's entries from its group's first up to i,
 * hence it ascends within a group; boxes ascend within a group too, so do their first coordinates.
 *
 * Cost: creation sorts; locate and address are two binary searches plus the shards between, which
 * are those of the answer wherever shards of a tensor are cut along its first dimension.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "layout/placement.h"
#include "space/front.h"

/* What a group of an index has in common; holder is -1 in the index of all holders. */
typedef struct group {
    int holder;
    int tensor;
    int role;
} group;

typedef struct shard_index {
    bool by_holder;
    size_t *items; /* numbers of shards */
    int64_t *reach;
} shard_index;

typedef struct list {
    rs_placement base;
    rs_shard *shards; /* holder by holder, ordered by (role, segment, offset) */
    int *holder_of;
    size_t *first; /* holders + 1 */
    size_t count;
    shard_index all;
    shard_index own;
    int geometry[RS_MAX_ROLES];
} list;

static const list *list_of(const rs_placement *placement)
{
    return (const list *)placement;
}

static int compare_in_holder(const void *a, const void *b)
{
    const rs_shard *x = a;
    const rs_shard *y = b;
    int order = rs_compare(x->role, y->role);
    if (order == 0)
        order = rs_compare(x->segment, y->segment);
    if (order == 0)
        order = rs_compare(x->offset, y->offset);
    if (order == 0)
        order = rs_compare(x->tensor, y->tensor);
    return order != 0 ? order : rs_box_compare(&x->box, &y->box);
}

static group group_of(const list *self, bool by_holder, size_t shard)
{
    return (group){.holder = by_holder ? self->holder_of[shard] : -1,
        .tensor = self->shards[shard].tensor,
        .role = self->shards[shard].role};
}

static int compare_groups(group a, group b)
{
    int order = rs_compare(a.holder, b.holder);
    if (order == 0)
        order = rs_compare(a.tensor, b.tensor);
    return order != 0 ? order : rs_compare(a.role, b.role);
}

static int compare_in_group(const list *self, size_t a, size_t b)
{
    int order = rs_box_compare(&self->shards[a].box, &self->shards[b].box);
    return order != 0 ? order : rs_compare(self->holder_of[a], self->holder_of[b]);
}

static int compare_all(const void *a, const void *b, void *context)
{
    const list *self = context;
    size_t x = *(const size_t *)a;
    size_t y = *(const size_t *)b;
    int order = compare_groups(group_of(self, false, x), group_of(self, false, y));
    return order != 0 ? order : compare_in_group(self, x, y);
}

static int compare_own(const void *a, const void *b, void *context)
{
    const list *self = context;
    size_t x = *(const size_t *)a;
    size_t y = *(const size_t *)b;
    int order = compare_groups(group_of(self, true, x), group_of(self, true, y));
    return order != 0 ? order : compare_in_group(self, x, y);
}

/* For geometry: all of role 0, then all of role 1, each in the same order. */
static int compare_by_role(const void *a, const void *b, void *context)
{
    const list *self = context;
    int order =
        rs_compare(self->shards[*(const size_t *)a].role, self->shards[*(const size_t *)b].role);
    return order != 0 ? order : compare_own(a, b, context);
}

static rs_status index_build(list *self, bool by_holder, shard_index *out)
{
    out->by_holder = by_holder;
    out->items = rs_calloc(self->count, sizeof *out->items);
    out->reach = rs_calloc(self->count, sizeof *out->reach);
    if (out->items == NULL || out->reach == NULL)
        return rs_error_memory(self->count * (sizeof *out->items + sizeof *out->reach));
    for (size_t i = 0; i < self->count; i++)
        out->items[i] = i;
    qsort_r(
        out->items, self->count, sizeof *out->items, by_holder ? compare_own : compare_all, self);
    for (size_t i = 0; i < self->count; i++) {
        out->reach[i] = rs_front_end(&self->shards[out->items[i]].box);
        if (i > 0 && compare_groups(group_of(self, by_holder, out->items[i - 1]),
                         group_of(self, by_holder, out->items[i])) == 0)
            out->reach[i] = rs_max64(out->reach[i], out->reach[i - 1]);
    }
    return RS_OK;
}

/* Whether entry `k` is of a group before the wanted one, or of that group and `so`. */
static bool lies_before(const list *self, const shard_index *which, size_t k, group wanted, bool so)
{
    int order = compare_groups(group_of(self, which->by_holder, which->items[k]), wanted);
    return order < 0 || (order == 0 && so);
}

/*
 * The entries of `which` that may meet `box`: the first of the group that reaches beyond the box's
 * beginning, up to the first that begins at or behind its end.
 */
static void index_range(const list *self, const shard_index *which, group wanted, const rs_box *box,
    size_t *begin, size_t *end)
{
    *begin = RS_SEARCH(self->count, k,
        lies_before(self, which, k, wanted, which->reach[k] <= rs_front_begin(box)));
    *end = RS_SEARCH(self->count, k,
        lies_before(self, which, k, wanted,
            rs_front_begin(&self->shards[which->items[k]].box) < rs_front_end(box)));
}

/* Bytes from the segment's start to the shard's end. */
static rs_status shard_end(const rs_shard *shard, int64_t *out)
{
    int64_t end;
    bool fits = rs_add_fits(shard->offset, (int64_t)rs_dtype_size(shard->dtype), &end);
    for (int d = 0; fits && d < shard->box.ndim; d++) {
        int64_t span;
        fits = rs_mul_fits(shard->box.extent[d] - 1, shard->stride[d], &span) &&
               rs_add_fits(end, span, &end);
    }
    if (!fits)
        return rs_error_set(RS_ERR_OVERFLOW, "the shard's end does not fit 64 bits");
    *out = end;
    return RS_OK;
}

static rs_status check_shard(const rs_space *space, const rs_shard *shard)
{
    if (shard->tensor < 0 || shard->tensor >= rs_space_tensor_count(space))
        return rs_error_set(RS_ERR_ARGUMENT, "the space has no tensor %d", shard->tensor);
    if (shard->role < 0 || shard->role >= rs_space_role_count(space))
        return rs_error_set(RS_ERR_ARGUMENT, "the space has no role %d", shard->role);
    const rs_tensor *tensor = rs_space_tensor(space, shard->tensor);
    if (rs_space_dtype(space, shard->tensor, shard->role) == RS_DTYPE_NONE)
        return rs_error_set(RS_ERR_ARGUMENT, "tensor %s has no role %s", tensor->name,
            rs_space_role(space, shard->role)->name);
    if (rs_dtype_size(shard->dtype) == 0)
        return rs_error_set(RS_ERR_ARGUMENT, "tensor %s: no element type", tensor->name);
    if (shard->segment < 0 || shard->offset < 0)
        return rs_error_set(RS_ERR_ARGUMENT,
            "tensor %s: segment %d, offset %" PRId64 ": both must be at least 0", tensor->name,
            shard->segment, shard->offset);
    rs_status status = rs_box_check(&shard->box, tensor->ndim, tensor->shape);
    if (status != RS_OK)
        return rs_error_context(status, "tensor %s", tensor->name);
    if (rs_box_is_empty(&shard->box))
        return rs_error_set(RS_ERR_ARGUMENT, "tensor %s: the box is empty", tensor->name);
    for (int d = 0; d < tensor->ndim; d++)
        if (shard->stride[d] < 0 || (shard->stride[d] == 0 && shard->box.extent[d] > 1))
            return rs_error_set(RS_ERR_ARGUMENT,
                "tensor %s, dimension %d: stride %" PRId64 " does not tell elements apart",
                tensor->name, d, shard->stride[d]);
    int64_t end;
    return shard_end(shard, &end);
}

static rs_status check_overlaps(const list *self)
{
    for (size_t i = 0; i < self->count; i++) {
        size_t shard = self->own.items[i];
        const rs_box *box = &self->shards[shard].box;
        size_t begin;
        size_t end;
        index_range(self, &self->own, group_of(self, true, shard), box, &begin, &end);
        for (size_t other = begin; other < end && other < i; other++) {
            const rs_box *before = &self->shards[self->own.items[other]].box;
            rs_box both;
            if (!rs_box_intersect(before, box, &both))
                continue;
            char text[2][RS_MAX_DIMS * 48];
            return rs_error_set(RS_ERR_ARGUMENT,
                "holder %d, tensor %s, role %s: shards %s and %s overlap", self->holder_of[shard],
                rs_space_tensor(self->base.space, self->shards[shard].tensor)->name,
                rs_space_role(self->base.space, self->shards[shard].role)->name,
                rs_box_format(before, text[0], sizeof text[0]),
                rs_box_format(box, text[1], sizeof text[1]));
        }
    }
    return RS_OK;
}

static bool same_geometry(const list *self, const size_t *a, const size_t *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (self->holder_of[a[i]] != self->holder_of[b[i]] ||
            self->shards[a[i]].tensor != self->shards[b[i]].tensor ||
            !rs_box_equal(&self->shards[a[i]].box, &self->shards[b[i]].box))
            return false;
    return true;
}

static rs_status find_geometry(list *self)
{
    size_t *sorted = rs_calloc(self->count, sizeof *sorted);
    if (sorted == NULL)
        return rs_error_memory(self->count * sizeof *sorted);
    size_t first[RS_MAX_ROLES + 1] = {0};
    int roles = rs_space_role_count(self->base.space);
    for (size_t i = 0; i < self->count; i++) {
        sorted[i] = i;
        first[self->shards[i].role + 1]++;
    }
    for (int r = 0; r < roles; r++)
        first[r + 1] += first[r];
    qsort_r(sorted, self->count, sizeof *sorted, compare_by_role, self);
    for (int r = 0; r < roles; r++) {
        size_t count = first[r + 1] - first[r];
        int lowest = 0;
        while (lowest < r &&
               (first[lowest + 1] - first[lowest] != count ||
                   !same_geometry(self, sorted + first[lowest], sorted + first[r], count)))
            lowest++;
        self->geometry[r] = lowest;
    }
    free(sorted);
    return RS_OK;
}

static void list_destroy(rs_placement *placement)
{
    list *self = (list *)placement;
    free(self->shards);
    free(self->holder_of);
    free(self->first);
    free(self->all.items);
    free(self->all.reach);
    free(self->own.items);
    free(self->own.reach);
    free(self);
}

static int list_geometry(const rs_placement *placement, int role)
{
    return list_of(placement)->geometry[role];
}

static rs_status list_shards(
    const rs_placement *placement, int holder, int role, rs_shard_list *out)
{
    const list *self = list_of(placement);
    for (size_t i = self->first[holder]; i < self->first[holder + 1]; i++)
        if (self->shards[i].role == role)
            RS_TRY(rs_shard_append(out, &self->shards[i]));
    return RS_OK;
}

static int compare_segments(const void *a, const void *b)
{
    const rs_segment *x = a;
    const rs_segment *y = b;
    return rs_compare(x->segment, y->segment);
}

static rs_status list_segments(const rs_placement *placement, int holder, rs_segment_list *out)
{
    const list *self = list_of(placement);
    for (size_t i = self->first[holder]; i < self->first[holder + 1]; i++) {
        int64_t end = 0;
        RS_TRY(shard_end(&self->shards[i], &end));
        RS_TRY(rs_segment_append(out, self->shards[i].segment, end));
    }
    if (out->count == 0)
        return RS_OK;
    qsort(out->items, out->count, sizeof *out->items, compare_segments);
    size_t kept = 0;
    for (size_t i = 1; i < out->count; i++) {
        rs_segment *last = &out->items[kept];
        if (last->segment == out->items[i].segment)
            last->bytes = rs_max64(last->bytes, out->items[i].bytes);
        else
            out->items[++kept] = out->items[i];
    }
    out->count = kept + 1;
    return RS_OK;
}

static rs_status list_locate(
    const rs_placement *placement, int tensor, int role, const rs_box *box, rs_holding_list *out)
{
    const list *self = list_of(placement);
    group wanted = {.holder = -1, .tensor = tensor, .role = role};
    size_t begin;
    size_t end;
    index_range(self, &self->all, wanted, box, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        size_t shard = self->all.items[i];
        rs_box both;
        if (rs_box_intersect(&self->shards[shard].box, box, &both))
            RS_TRY(rs_holding_add(out, &self->shards[shard].box, self->holder_of[shard]));
    }
    return RS_OK;
}

static rs_status list_address(const rs_placement *placement, int holder, int tensor, int role,
    const rs_box *box, rs_shard *out)
{
    const list *self = list_of(placement);
    group wanted = {.holder = holder, .tensor = tensor, .role = role};
    size_t begin;
    size_t end;
    index_range(self, &self->own, wanted, box, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const rs_shard *shard = &self->shards[self->own.items[i]];
        if (!rs_box_contains(&shard->box, box))
            continue;
        *out = rs_shard_part(shard, box);
        return RS_OK;
    }
    return rs_placement_not_found(placement, holder, tensor, role, box);
}

static const rs_placement_ops list_ops = {
    .destroy = list_destroy,
    .geometry = list_geometry,
    .shards = list_shards,
    .segments = list_segments,
    .locate = list_locate,
    .address = list_address,
};

static rs_status copy_shards(list *self, int holders, const rs_shard *shards, const size_t *first)
{
    self->count = first[holders];
    self->shards = rs_calloc(self->count, sizeof *self->shards);
    self->holder_of = rs_calloc(self->count, sizeof *self->holder_of);
    self->first = rs_calloc((size_t)holders + 1, sizeof *self->first);
    if (self->shards == NULL || self->holder_of == NULL || self->first == NULL)
        return rs_error_memory(self->count * sizeof *self->shards);
    memcpy(self->first, first, ((size_t)holders + 1) * sizeof *first);
    if (self->count > 0)
        memcpy(self->shards, shards, self->count * sizeof *shards);
    for (int h = 0; h < holders; h++) {
        for (size_t i = first[h]; i < first[h + 1]; i++) {
            rs_status status = check_shard(self->base.space, &shards[i]);
            if (status != RS_OK)
                return rs_error_context(status, "holder %d, shard %zu", h, i - first[h]);
            self->holder_of[i] = h;
        }
        qsort(self->shards + first[h], first[h + 1] - first[h], sizeof *self->shards,
            compare_in_holder);
    }
    return RS_OK;
}

rs_status rs_placement_create_list(const rs_space *space, int holders, const rs_shard *shards,
    const size_t *first, rs_placement **out)
{
    if (holders < 0 || first[0] != 0)
        return rs_error_set(RS_ERR_ARGUMENT, "%d holders, the first of which begins at shard %zu",
            holders, holders < 0 ? (size_t)0 : first[0]);
    for (int h = 0; h < holders; h++)
        if (first[h + 1] < first[h])
            return rs_error_set(RS_ERR_ARGUMENT,
                "holder %d: its shards would end at %zu, before they begin at %zu", h, first[h + 1],
                first[h]);
    rs_status status;
    list *self = rs_calloc(1, sizeof *self);
    if (self == NULL)
        return rs_error_memory(sizeof *self);
    self->base = (rs_placement){.ops = &list_ops, .space = space, .holders = holders};
    RS_TRY_GOTO(copy_shards(self, holders, shards, first), fail);
    RS_TRY_GOTO(index_build(self, false, &self->all), fail);
    RS_TRY_GOTO(index_build(self, true, &self->own), fail);
    RS_TRY_GOTO(check_overlaps(self), fail);
    RS_TRY_GOTO(find_geometry(self), fail);
    *out = &self->base;
    return RS_OK;
fail:
    list_destroy(&self->base);
    return status;
}
