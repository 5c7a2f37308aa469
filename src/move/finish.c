/*
 * Finishing a tight move that was cut off, all ranks in one process.
 *
 * What each reader has copied and checked is in its marks, one count per source, in the order of
 * the pair's copies; before a count rises the source keeps its bytes. So the copies above the
 * counts are made now, from sources that are whole, in the plan's global order and one at a time,
 * and pages of the old arenas go as their last reader is done, as in the move itself. Being killed
 * here is being cut off again.
 */
#include <stdlib.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "move/execute.h"
#include "move/tight.h"
#include "reshard/move.h"

/* One rank, as reader of what it has yet to copy and as owner of what others read. */
typedef struct part {
    rs_plan *plan;
    rs_tight tight;
    const rs_copy *copies;
    size_t count;
    size_t next;    /* first that may have to be made */
    uint64_t *seen; /* by source: copies passed */
    rs_cells cells; /* none: sums are taken afterwards */
} part;

typedef struct finish {
    const rs_placement *from;
    const rs_placement *to;
    rs_arena *const *old;
    part *parts;
    int ranks;
} finish;

static rs_status open_part(finish *f, int rank, const rs_plan_options *options, rs_arena *now)
{
    part *p = &f->parts[rank];
    rs_arena *old = rank < rs_placement_holders(f->from) ? f->old[rank] : NULL;
    RS_TRY(rs_plan_create(f->from, f->to, rank, options, &p->plan));
    RS_TRY(rs_tight_init(&p->tight, f->from, f->to, p->plan, f->ranks, old, now));
    p->copies = rs_plan_copies(p->plan, &p->count);
    p->seen = rs_calloc((size_t)f->ranks, sizeof *p->seen);
    return p->seen != NULL ? RS_OK : rs_error_memory((size_t)f->ranks * sizeof *p->seen);
}

/* Moves `next` past copies of others and past those that are made, which are released. */
static rs_status pass_made(finish *f, part *p)
{
    for (; p->next < p->count; p->next++) {
        const rs_copy *copy = &p->copies[p->next];
        if (copy->target != p->tight.rank)
            continue;
        if (copy->reach == RS_REACH_REMOTE)
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "a tight move between nodes was cut off: it can be finished only where all arenas "
                "are on one machine");
        uint64_t made = rs_arena_marked(p->tight.now, copy->source) & ~RS_TIGHT_HALTED;
        if (p->seen[copy->source] >= made)
            return RS_OK;
        p->seen[copy->source]++;
        RS_TRY(rs_tight_release(&f->parts[copy->source].tight, copy));
    }
    return RS_OK;
}

static rs_status make_copy(finish *f, part *p, int64_t *bytes)
{
    const rs_copy *copy = &p->copies[p->next];
    const rs_space *space = rs_placement_space(f->to);
    rs_end source, target;
    RS_TRY(rs_end_locate(
        f->from, copy->source, rs_arena_memory(f->old[copy->source]), copy, &source, NULL));
    RS_TRY(rs_end_locate(f->to, copy->target, rs_arena_memory(p->tight.now), copy, &target, NULL));
    RS_TRY(rs_tight_reserve(&p->tight, copy));
    RS_TRY(rs_copy_execute_checked(space, copy, &target, &source, &p->cells));
    rs_crash_point("finish.copy");
    RS_TRY(rs_arena_mark(p->tight.now, copy->source, ++p->seen[copy->source]));
    rs_crash_point("finish.mark");
    RS_TRY(rs_tight_release(&f->parts[copy->source].tight, copy));
    p->next++;
    *bytes += copy->bytes;
    return RS_OK;
}

/* The rank whose next copy is the first of all in the global order; -1: none is left. */
static int first_of_all(const finish *f)
{
    int best = -1;
    for (int r = 0; r < f->ranks; r++) {
        const part *p = &f->parts[r];
        if (p->next < p->count &&
            (best < 0 || p->copies[p->next].key < f->parts[best].copies[f->parts[best].next].key))
            best = r;
    }
    return best;
}

rs_status rs_move_finish(const rs_placement *from, const rs_placement *to,
    const rs_plan_options *options, rs_arena *const *old, rs_arena *const *now, int64_t *bytes)
{
    finish f = {.from = from, .to = to, .old = old};
    rs_status status;
    int64_t copied = 0;
    f.ranks = (int)rs_max64(rs_placement_holders(from), rs_placement_holders(to));
    f.parts = rs_calloc((size_t)f.ranks, sizeof *f.parts);
    if (f.parts == NULL)
        return rs_error_memory((size_t)f.ranks * sizeof *f.parts);
    for (int r = 0; r < f.ranks; r++)
        RS_TRY_GOTO(open_part(&f, r, options, now[r]), done);
    for (int r = 0; r < f.ranks; r++)
        RS_TRY_GOTO(rs_tight_begin(&f.parts[r].tight), done);
    for (int r = 0; r < f.ranks; r++)
        RS_TRY_GOTO(pass_made(&f, &f.parts[r]), done);
    for (int r; (r = first_of_all(&f)) >= 0;) {
        RS_TRY_GOTO(make_copy(&f, &f.parts[r], &copied), done);
        RS_TRY_GOTO(pass_made(&f, &f.parts[r]), done);
    }
    *bytes = copied;
done:
    for (int r = 0; r < f.ranks; r++) {
        rs_tight_fini(&f.parts[r].tight);
        rs_plan_destroy(f.parts[r].plan);
        free(f.parts[r].seen);
    }
    free(f.parts);
    return status;
}
