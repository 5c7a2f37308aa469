/*
 * Peaks: the most memory that a rank's old and new segments take at one time.
 *
 * Safe mode keeps both: old + new, adopted segments once.
 *
 * Tight mode is walked copy by copy in the plan's order. What is counted:
 *  - memory of a new segment from the first copy that writes to it on, to whole pages;
 *  - memory of an old segment until the last copy that reads it, by whoever, is done, to whole
 * pages; what no copy reads is given up before the first copy;
 *  - adopted segments all the time, once; new memory that no copy writes (padding) from the start;
 *  - before copy j starts, earlier copies of the rank's list (whether it sends, receives or only
 * lends its memory) are done, oldest first, until those in flight and j together have at most
 * `window` bytes, or j is alone. At worst, then, all that may be in flight is: its sources are held
 * and its targets are touched. The mover keeps this rule, so the walk is an upper bound. Staging is
 * not counted. Segments start on page boundaries.
 *
 * The figure `peak_tight` is the walk with window 0 and pages of one byte: what the order itself
 * allows. For it every copy knows the bytes of which it is the last reader (rs_plan.freed): its
 * own, but for pieces that several copies read; there one sweep over the piece's line, on which
 * every copy is an interval, finds the last reader of each element.
 *
 * Cost: peak_tight linear in the copies. rs_plan_peak_tight linear in the pages that copies touch.
 */
#include "plan/plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

static int compare_reads(const void *a, const void *b)
{
    const rs_read *one = a;
    const rs_read *other = b;
    if (one->line != other->line)
        return one->line < other->line ? -1 : 1;
    if (one->begin != other->begin)
        return one->begin < other->begin ? -1 : 1;
    return one->copy < other->copy ? -1 : one->copy > other->copy;
}

/* The reads of one line by ascending begin. Reads in progress are reads[head .. tail - 1]; those
 * that ended are moved before the head. */
static void settle_line(rs_read *reads, size_t count, int64_t size, int64_t *freed)
{
    size_t head = 0;
    size_t tail = 0;
    int64_t at = 0;
    while (head < count) {
        if (head == tail)
            at = reads[tail].begin;
        while (tail < count && reads[tail].begin == at)
            tail++;
        int64_t next = tail < count ? reads[tail].begin : INT64_MAX;
        size_t last = 0;
        for (size_t i = head; i < tail; i++) {
            next = rs_min64(next, reads[i].end);
            if (reads[i].copy > last)
                last = reads[i].copy;
        }
        freed[last] += (next - at) * size;
        at = next;
        for (size_t i = head; i < tail; i++)
            if (reads[i].end == at) {
                rs_read ended = reads[i];
                reads[i] = reads[head];
                reads[head++] = ended;
            }
    }
}

void rs_reads_settle(rs_plan *plan, rs_read_list *reads)
{
    const rs_space *space = rs_placement_space(plan->from);
    if (reads->count == 0)
        return;
    qsort(reads->items, reads->count, sizeof *reads->items, compare_reads);
    size_t end;
    for (size_t begin = 0; begin < reads->count; begin = end) {
        end = begin;
        while (end < reads->count && reads->items[end].line == reads->items[begin].line)
            end++;
        const rs_copy *copy = &plan->copies[reads->items[begin].copy];
        settle_line(reads->items + begin, end - begin,
            (int64_t)rs_dtype_size(rs_space_dtype(space, copy->tensor, copy->role)), plan->freed);
    }
}

/* What a walk starts from, and what each copy does to it. */
typedef struct walk {
    int64_t before;  /* resident before the move */
    int64_t start;   /* resident when the first copy starts */
    int64_t *writes; /* becomes resident when copy i starts; NULL: its bytes if it writes here */
    int64_t *frees;  /* is given up when copy i is done */
} walk;

static int64_t walk_copies(const rs_plan *plan, const walk *w, int64_t window)
{
    int64_t peak = rs_max64(w->before, w->start);
    int64_t resident = w->start;
    int64_t in_flight = 0;
    size_t oldest = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const rs_copy *copy = &plan->copies[i];
        for (; oldest < i && in_flight > window - copy->bytes; oldest++) {
            in_flight -= plan->copies[oldest].bytes;
            resident -= w->frees[oldest];
        }
        if (w->writes != NULL)
            resident += w->writes[i];
        else if (copy->target == plan->rank)
            resident += copy->bytes;
        peak = rs_max64(peak, resident);
        in_flight += copy->bytes;
    }
    return peak;
}

void rs_plan_measure_peaks(rs_plan *plan)
{
    rs_plan_figures *f = &plan->figures;
    int64_t freed = 0;
    for (size_t i = 0; i < plan->count; i++)
        freed += plan->freed[i];
    int64_t written = f->self_bytes + f->node_in + f->remote_in;
    walk w = {.before = f->old_bytes,
        .start = freed + f->adopted_bytes + (f->new_bytes - f->adopted_bytes - written),
        .frees = plan->freed};
    f->peak_safe = f->old_bytes + f->new_bytes - f->adopted_bytes;
    f->peak_tight = rs_max64(walk_copies(plan, &w, 0), f->new_bytes);
}

/* Pages of the segments of one side, numbered through. */
typedef struct pages {
    const rs_segment_list *segments;
    int64_t page;
    size_t *first;     /* of each segment, and one past the last */
    uint32_t *readers; /* of each page: copies that will touch it */
} pages;

static rs_status pages_init(pages *p, const rs_segment_list *segments, int64_t page)
{
    *p = (pages){.segments = segments, .page = page};
    p->first = rs_calloc(segments->count + 1, sizeof *p->first);
    if (p->first == NULL)
        return rs_error_memory((segments->count + 1) * sizeof *p->first);
    for (size_t i = 0; i < segments->count; i++)
        p->first[i + 1] = p->first[i] + (size_t)rs_ceil_div(segments->items[i].bytes, page);
    p->readers = rs_calloc(p->first[segments->count], sizeof *p->readers);
    if (p->readers == NULL)
        return rs_error_memory(p->first[segments->count] * sizeof *p->readers);
    return RS_OK;
}

static void pages_fini(pages *p)
{
    free(p->first);
    free(p->readers);
}

static size_t first_page(const pages *p, int segment)
{
    size_t at = RS_SEARCH(p->segments->count, k, p->segments->items[k].segment < segment);
    assert(p->segments->items[at].segment == segment);
    return p->first[at];
}

/* The runs of a shard: `span` bytes each, one for every index of the axes that are left. */
typedef struct runs {
    int64_t span;
    int axes; /* by descending stride */
    int64_t stride[RS_MAX_DIMS];
    int64_t extent[RS_MAX_DIMS];
} runs;

/* Axes whose gaps are smaller than a page leave no page out, so they are taken as one run. */
static runs find_runs(const rs_shard *shard, int64_t element, int64_t page)
{
    runs r = {.span = element};
    for (int d = 0; d < shard->box.ndim; d++) {
        if (shard->box.extent[d] == 1)
            continue;
        int at = r.axes++;
        for (; at > 0 && r.stride[at - 1] < shard->stride[d]; at--) {
            r.stride[at] = r.stride[at - 1];
            r.extent[at] = r.extent[at - 1];
        }
        r.stride[at] = shard->stride[d];
        r.extent[at] = shard->box.extent[d];
    }
    while (r.axes > 0 && r.stride[r.axes - 1] - r.span < page) {
        r.axes--;
        r.span += r.stride[r.axes] * (r.extent[r.axes] - 1);
    }
    return r;
}

/* What to do with each page that a copy touches. */
typedef enum visit { COUNT_READER, DROP_READER, MARK } visit;

/* Returns how many pages lost their last reader, or were marked the first time. */
static int64_t visit_pages(const pages *p, const rs_shard *shard, visit what)
{
    runs r = find_runs(shard, (int64_t)rs_dtype_size(shard->dtype), p->page);
    uint32_t *readers = p->readers + first_page(p, shard->segment);
    int64_t index[RS_MAX_DIMS] = {0};
    int64_t next = 0; /* pages before it are done: two runs may share one */
    int64_t changed = 0;
    for (;;) {
        int64_t begin = shard->offset;
        for (int d = 0; d < r.axes; d++)
            begin += index[d] * r.stride[d];
        int64_t last = (begin + r.span - 1) / p->page;
        for (next = rs_max64(next, begin / p->page); next <= last; next++) {
            if (what == COUNT_READER)
                readers[next]++;
            else if (what == DROP_READER)
                changed += --readers[next] == 0;
            else if (readers[next] == 0)
                changed += readers[next] = 1;
        }
        int d = r.axes - 1;
        for (; d >= 0 && ++index[d] == r.extent[d]; d--)
            index[d] = 0;
        if (d < 0)
            return changed;
    }
}

/* The pages of the rank's old memory that copies give up. */
static rs_status walk_old(const rs_plan *plan, int64_t page, walk *w)
{
    pages p;
    rs_status status;
    RS_TRY_GOTO(pages_init(&p, &plan->own.segments[RS_OLD], page), done);
    for (visit what = COUNT_READER; what <= DROP_READER; what++)
        for (size_t i = 0; i < plan->count; i++) {
            const rs_copy *copy = &plan->copies[i];
            rs_shard shard;
            if (copy->source != plan->rank)
                continue;
            RS_TRY_GOTO(rs_placement_address(
                            plan->from, plan->rank, copy->tensor, copy->role, &copy->box, &shard),
                done);
            if (rs_plan_is_adopted(plan, shard.segment))
                continue;
            w->frees[i] = visit_pages(&p, &shard, what) * page;
            if (what == DROP_READER)
                w->start += w->frees[i];
        }
    w->before = (int64_t)p.first[plan->own.segments[RS_OLD].count] * page;
done:
    pages_fini(&p);
    return status;
}

/* The pages of its new memory that copies touch first, and the others. */
static rs_status walk_new(const rs_plan *plan, int64_t page, walk *w)
{
    const rs_segment_list *segments = &plan->own.segments[RS_NEW];
    pages p;
    rs_status status;
    RS_TRY_GOTO(pages_init(&p, segments, page), done);
    int64_t touched = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const rs_copy *copy = &plan->copies[i];
        rs_shard shard;
        if (copy->target != plan->rank)
            continue;
        RS_TRY_GOTO(rs_placement_address(
                        plan->to, plan->rank, copy->tensor, copy->role, &copy->box, &shard),
            done);
        w->writes[i] = visit_pages(&p, &shard, MARK) * page;
        touched += w->writes[i];
    }
    /* Adopted segments and padding; all of the new memory is there in the end. */
    w->start += (int64_t)p.first[segments->count] * page - touched;
done:
    pages_fini(&p);
    return status;
}

rs_status rs_plan_peak_tight(const rs_plan *plan, int64_t window, int64_t page, int64_t *bytes)
{
    if (window < 0)
        return rs_error_set(
            RS_ERR_ARGUMENT, "window of %" PRId64 " bytes: must not be negative", window);
    if (page < 1)
        return rs_error_set(RS_ERR_ARGUMENT, "page of %" PRId64 " bytes: must be positive", page);
    walk w = {0};
    rs_status status = RS_OK;
    w.writes = rs_calloc(plan->count, sizeof *w.writes);
    w.frees = rs_calloc(plan->count, sizeof *w.frees);
    if (w.writes == NULL || w.frees == NULL) {
        status = rs_error_memory(plan->count * sizeof *w.writes);
        goto done;
    }
    RS_TRY_GOTO(walk_old(plan, page, &w), done);
    RS_TRY_GOTO(walk_new(plan, page, &w), done);
    *bytes = walk_copies(plan, &w, window);
done:
    free(w.writes);
    free(w.frees);
    return status;
}
