/*
 * Random spaces, placements, nodes and chunk sizes against the plain checks.
 *
 *     prop_plan [--layouts] [--seed S] [--cases N] [--verbose]
 *
 * With --layouts every case is a model that goes from one layout to another, of any axes; without,
 * one placement or both may be listed shard by shard.
 *
 * Case i of a run uses seed S + i, so a case that failed is run again with --seed <its seed>
 * --cases 1. In each case the space is small enough to be counted element by element. Checked are:
 *  - rs_plan_check;
 *  - here, apart from it: every element of every new shard is written once, by a copy from somebody
 * who has it, or lies in an adopted segment, whose bytes are the same before and after;
 *  - the plans are the same when made again, alone and from another order of calls;
 *  - an element that is needed and that nobody has is found and refused, and only then;
 *  - both ends of every pair list the same copies in the same order;
 *  - moved = minimum, both as counted here;
 *  - no rank receives more than the bound, nor sends more but for rounding to elements: each of its
 *    deals may have been rounded up by less than one element. That is stricter than 1.05 times the
 * bound wherever the bound is more than 20 times the rounding; the run says in how many cases it
 * is;
 *  - peaks: tight at least as large as each of both states, at most safe; the figure is the walk by
 * pages of one byte without a window; a window or a page makes it no smaller.
 */
#include "prop/check.h"

#include "plan/plan.h"
#include "reshard/layout.h"
#include "reshard/plan.h"
#include "reshard/space.h"
#include "support/points.h"
#include "support/spaces.h"

#define WORLD 24
#define TENSORS 32
#define MAX_SHARDS 8192

static uint64_t next_random(void)
{
    return random_next(&state);
}

/* 0 .. n - 1 */
static int below(int n)
{
    return (int)(next_random() % (uint64_t)n);
}

static bool chance(int percent)
{
    return below(100) < percent;
}

/* Axes of layouts, apart from tp, pp and dp. */
enum {
    AXIS_CP,
    AXIS_EP,
    AXIS_ETP,
    AXIS_COPIES,
    AXIS_VPP,
    AXIS_STAGES,
    AXIS_SHARD,
    AXIS_PARAM,
    AXIS_DIM0,
    AXIS_ZERO3,
    AXES
};
static const char *const axis_names[AXES] = {"cp", "ep", "etp", "experts on several ranks", "vpp",
    "stages", "shard", "zero_cut=param", "zero_cut=dim0", "zero=3"};

static bool layouts_only;

/* In how many cases each thing occurred; a run of 1,000 cases has all of them. */
static struct occurred {
    long axes[AXES]; /* layouts, not cases */
    long remote;     /* bytes between nodes */
    long node;       /* inside a node */
    long self;       /* within a rank */
    long adopted;
    long missing;  /* refused: nobody holds an element */
    long odd;      /* a piece that is no box */
    long rounding; /* the bound was met to 5% with rounding and all */
    long list;     /* a listed placement */
    long layout;
} occurred;

/* One case. */
typedef struct trial {
    rs_space *space;
    rs_placement *from;
    rs_placement *to;
    int world;
    rs_plan_options options;
    int nodes[WORLD];
    bool holes; /* something may be missing in the old placement */
} trial;

/* ---- spaces ---- */

static const rs_dtype dtypes[] = {RS_DTYPE_F32, RS_DTYPE_BF16, RS_DTYPE_F64, RS_DTYPE_U8};

static bool make_roles(rs_space *space)
{
    int count = 1 + below(4);
    for (int r = 0; r < count; r++) {
        char name[16];
        snprintf(name, sizeof name, "role%d", r);
        rs_role role = {.name = name,
            .dtype = dtypes[below(4)],
            .role_class = r == 0 ? RS_ROLE_MODEL : (rs_role_class)below(3)};
        NEED(rs_space_add_role(space, &role, NULL));
    }
    return true;
}

/* A few tensors of up to four dimensions; lengths of zero now and then. */
static bool make_free_space(rs_space *space)
{
    int count = 1 + below(4);
    int scale = chance(15) ? 1 + below(4) : 1;
    for (int t = 0; t < count; t++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", t);
        rs_tensor tensor = {.name = name, .ndim = below(5)};
        for (int d = 0; d < tensor.ndim; d++)
            tensor.shape[d] =
                chance(3) ? 0
                          : (tensor.ndim < 4 ? scale : 1) * (1 + below(tensor.ndim > 2 ? 6 : 14));
        NEED(rs_space_add_tensor(space, &tensor, NULL));
    }
    return true;
}

/* Gives some tensors a type of their own in a role, or takes the role from them. */
static bool make_exceptions(rs_space *space)
{
    for (int t = 0; t < rs_space_tensor_count(space); t++)
        for (int r = 0; r < rs_space_role_count(space); r++)
            if (chance(15))
                NEED(
                    rs_space_set_dtype(space, t, r, chance(50) ? RS_DTYPE_NONE : dtypes[below(4)]));
    return true;
}

/* ---- placements ---- */

/* Counts the axes that a layout has. */
static void note_axes(const rs_space *space, const rs_layout *l)
{
    int64_t experts = rs_space_expert_count(space);
    const bool has[AXES] = {[AXIS_CP] = l->cp > 1,
        [AXIS_EP] = experts > 1 && l->ep > 1,
        [AXIS_ETP] = experts > 0 && rs_layout_etp(l) != l->tp,
        [AXIS_COPIES] = experts > 0 && l->ep > experts,
        [AXIS_VPP] = l->vpp > 1,
        [AXIS_STAGES] = l->stage_count > 0,
        [AXIS_SHARD] = l->zero > 0 && l->shard > 0,
        [AXIS_PARAM] = l->zero > 0 && l->zero_cut == RS_CUT_PARAM,
        [AXIS_DIM0] = l->zero > 0 && l->zero_cut == RS_CUT_DIM0,
        [AXIS_ZERO3] = l->zero == 3};
    for (int i = 0; i < AXES; i++)
        occurred.axes[i] += has[i];
}

static bool make_layout(const rs_space *space, rs_placement **out)
{
    rs_layout layout = random_layout(&state, WORLD, rs_space_layer_count(space));
    note_axes(space, &layout);
    NEED(rs_layout_placement(space, &layout, out));
    return true;
}

typedef struct shard_set {
    rs_shard shards[MAX_SHARDS];
    int holder[MAX_SHARDS];
    size_t count;
} shard_set;

static shard_set sets[2];

/* Splits a box at random into up to `parts` boxes. */
static int split(rs_box box, int parts, rs_box *out)
{
    int axis = box.ndim > 0 ? below(box.ndim) : 0;
    if (parts < 2 || box.ndim == 0 || box.extent[axis] < 2) {
        out[0] = box;
        return 1;
    }
    int64_t at = 1 + below((int)box.extent[axis] - 1);
    rs_box low = box;
    rs_box high = box;
    low.extent[axis] = at;
    high.offset[axis] += at;
    high.extent[axis] -= at;
    int count = split(low, parts / 2, out);
    return count + split(high, parts - parts / 2, out + count);
}

/* Deals the boxes of one tensor and role out to the holders. */
static void fill_tensor(
    const rs_space *space, int t, int r, int cuts, int holders, bool holes, shard_set *set)
{
    const rs_tensor *tensor = rs_space_tensor(space, t);
    rs_box whole = rs_box_whole(tensor->ndim, tensor->shape);
    bool absent = rs_space_dtype(space, t, r) == RS_DTYPE_NONE;
    if (rs_box_is_empty(&whole))
        return;
    for (int cut = 0; cut < cuts && cut < holders; cut++) {
        rs_box boxes[64];
        int count = split(whole, 1 + below(9), boxes);
        int members = (holders - cut + cuts - 1) / cuts;
        int density = 10 + below(90);
        for (int b = 0; b < count; b++) {
            bool hole = holes && chance(15);
            int sure = cut == 0 && !hole ? below(members) : -1;
            for (int m = 0; m < members; m++) {
                bool has = m == sure || (!hole && chance(density));
                if (!has || absent || set->count == MAX_SHARDS)
                    continue;
                set->holder[set->count] = m * cuts + cut;
                set->shards[set->count++] = (rs_shard){.tensor = t, .role = r, .box = boxes[b]};
            }
        }
    }
}

/*
 * Holders are dealt over up to three unlike cuts of each tensor; of the boxes of its cut, a holder
 * has some. The first cut is held throughout, unless holes are wanted. Some roles are cut alike.
 */
static void fill_set(const rs_space *space, int holders, bool holes, shard_set *set)
{
    int cuts = holes ? 1 : 1 + below(3);
    uint64_t alike = next_random();
    set->count = 0;
    for (int r = 0; r < rs_space_role_count(space); r++) {
        uint64_t unlike = next_random();
        if (chance(60))
            state = alike;
        for (int t = 0; t < rs_space_tensor_count(space); t++)
            fill_tensor(space, t, r, cuts, holders, holes, set);
        state = unlike;
    }
}

/* Lets some holders have after exactly what they had before, so that there is something to adopt.
 */
static void keep_some(int holders)
{
    for (int h = 0; h < holders; h++) {
        if (!chance(30))
            continue;
        size_t kept = 0;
        shard_set *after = &sets[1];
        for (size_t i = 0; i < after->count; i++)
            if (after->holder[i] != h) {
                after->shards[kept] = after->shards[i];
                after->holder[kept++] = after->holder[i];
            }
        after->count = kept;
        for (size_t i = 0; i < sets[0].count && after->count < MAX_SHARDS; i++)
            if (sets[0].holder[i] == h) {
                after->shards[after->count] = sets[0].shards[i];
                after->holder[after->count++] = h;
            }
    }
}

/* Lays the shards of each holder out, some transposed, one segment for each tensor and role or one
 * for a role, and makes the placement. */
static bool finish_set(const rs_space *space, int holders, shard_set *set, rs_placement **out)
{
    static rs_shard sorted[MAX_SHARDS];
    size_t first[WORLD + 1];
    size_t count = 0;
    for (int h = 0; h < holders; h++) {
        int64_t used[4 * TENSORS] = {0};
        int segments = chance(95) ? h % 2 : below(2);
        bool transposed = chance(95) ? h % 3 == 1 : chance(50);
        int gap = chance(95) ? h % 4 == 3 : below(2);
        first[h] = count;
        for (size_t i = 0; i < set->count; i++) {
            if (set->holder[i] != h)
                continue;
            rs_shard shard = set->shards[i];
            shard.dtype = rs_space_dtype(space, shard.tensor, shard.role);
            shard.segment = segments == 0 ? shard.role * TENSORS + shard.tensor : shard.role;
            shard.offset = used[shard.segment];
            int64_t step = (int64_t)rs_dtype_size(shard.dtype);
            for (int k = 0; k < shard.box.ndim; k++) {
                int d = transposed ? k : shard.box.ndim - 1 - k;
                shard.stride[d] = step;
                step *= shard.box.extent[d];
            }
            used[shard.segment] += step + gap * 24;
            sorted[count++] = shard;
        }
    }
    first[holders] = count;
    NEED(rs_placement_create_list(space, holders, sorted, first, out));
    return true;
}

static bool make_trial(trial *t)
{
    *t = (trial){0};
    NEED(rs_space_create(&t->space));
    if (!make_roles(t->space))
        return false;
    bool model = layouts_only || chance(50);
    if (model)
        random_model(&state, t->space, true);
    else if (!make_free_space(t->space))
        return false;
    if (chance(40) && !make_exceptions(t->space))
        return false;
    bool lists[2] = {
        !model || (!layouts_only && chance(20)), !model || (!layouts_only && chance(20))};
    int holders[2] = {1 + below(WORLD), 1 + below(WORLD)};
    t->holes = lists[0] && chance(8);
    for (int side = 0; side < 2; side++)
        if (lists[side])
            fill_set(t->space, holders[side], side == 0 && t->holes, &sets[side]);
    if (lists[0] && lists[1] && chance(40))
        keep_some(holders[0] < holders[1] ? holders[0] : holders[1]);
    for (int side = 0; side < 2; side++) {
        rs_placement **out = side == 0 ? &t->from : &t->to;
        if (!(lists[side] ? finish_set(t->space, holders[side], &sets[side], out)
                          : make_layout(t->space, out)))
            return false;
    }
    occurred.list += lists[0] || lists[1];
    occurred.layout += !lists[0] || !lists[1];
    int before = rs_placement_holders(t->from);
    int after = rs_placement_holders(t->to);
    t->world = before > after ? before : after;
    t->options.adopt = chance(50);
    /* Not so small that a large space makes more copies than a case has time for. */
    int64_t least = 1 + rs_space_bytes(t->space, -1) / 1000;
    t->options.chunk_bytes = chance(30) ? 0 : least + below(200);
    t->options.ranks_per_node = below(6);
    for (int r = 0; r < t->world; r++)
        t->nodes[r] = below(4) * 1000 - 7;
    if (chance(30))
        t->options.node_of = t->nodes;
    return true;
}

static void free_trial(trial *t)
{
    rs_placement_destroy(t->from);
    rs_placement_destroy(t->to);
    rs_space_destroy(t->space);
}

/* ---- counting ---- */

/* For each (role, tensor), where its elements start in a table of all elements. */
static size_t starts[RS_MAX_ROLES][TENSORS];
static size_t table_size;

static void lay_table(const rs_space *space)
{
    table_size = 0;
    for (int r = 0; r < rs_space_role_count(space); r++)
        for (int t = 0; t < rs_space_tensor_count(space); t++) {
            const rs_tensor *tensor = rs_space_tensor(space, t);
            rs_box whole = rs_box_whole(tensor->ndim, tensor->shape);
            starts[r][t] = table_size;
            table_size += (size_t)rs_box_volume(&whole);
        }
}

/* Marks for every element of the space. */
typedef struct tables {
    uint64_t *held[WORLD];
    uint64_t *now;
    uint64_t *written;
} tables;

/* What a holder has: 1 per element; with `places`, its byte address + 1 (segment in the high bits).
 */
static bool mark_held(
    const trial *t, const rs_placement *placement, int holder, uint64_t *marks, bool places)
{
    rs_shard_list shards = {0};
    memset(marks, 0, table_size * sizeof *marks);
    NEED(rs_placement_shards(placement, holder, -1, &shards));
    for (size_t i = 0; i < shards.count; i++) {
        const rs_shard *shard = &shards.items[i];
        int64_t point[RS_MAX_DIMS];
        memcpy(point, shard->box.offset, sizeof point);
        do {
            uint64_t place = (uint64_t)shard->offset + 1;
            for (int d = 0; d < shard->box.ndim; d++)
                place += (uint64_t)((point[d] - shard->box.offset[d]) * shard->stride[d]);
            size_t at = starts[shard->role][shard->tensor] +
                        (size_t)index_of(rs_space_tensor(t->space, shard->tensor), point);
            CHECK(marks[at] == 0);
            marks[at] = places ? place + ((uint64_t)shard->segment << 40) : 1;
        } while (next_point(&shard->box, point));
    }
    rs_shard_list_fini(&shards);
    return true;
}

/* Every plan against marks for each element. `held` has the old marks of every rank. */
static bool count_plan(const trial *t, const rs_plan *plan, uint64_t *const *held, uint64_t *now,
    uint64_t *written, int64_t *moved, int64_t *minimum)
{
    int rank = rs_plan_rank(plan);
    size_t count;
    const rs_copy *copies = rs_plan_copies(plan, &count);
    if (!mark_held(t, t->to, rank, now, true))
        return false;
    memset(written, 0, table_size * sizeof *written);
    for (size_t i = 0; i < count; i++) {
        const rs_copy *copy = &copies[i];
        if (copy->target != rank)
            continue;
        int64_t point[RS_MAX_DIMS];
        memcpy(point, copy->box.offset, sizeof point);
        do {
            size_t at = starts[copy->role][copy->tensor] +
                        (size_t)index_of(rs_space_tensor(t->space, copy->tensor), point);
            CHECK(held[copy->source][at] != 0);
            CHECK(copy->source == rank || held[rank][at] == 0);
            written[at]++;
        } while (next_point(&copy->box, point));
        if (copy->source != rank)
            *moved += copy->bytes;
    }
    for (int r = 0; r < rs_space_role_count(t->space); r++)
        for (int k = 0; k < rs_space_tensor_count(t->space); k++) {
            const rs_tensor *tensor = rs_space_tensor(t->space, k);
            rs_box whole = rs_box_whole(tensor->ndim, tensor->shape);
            size_t begin = starts[r][k];
            for (size_t at = begin; at < begin + (size_t)rs_box_volume(&whole); at++) {
                bool stays = now[at] != 0 && rs_plan_is_adopted(plan, (int)(now[at] >> 40));
                CHECK(written[at] == (now[at] != 0 && !stays));
                CHECK(!stays || held[rank][at] == now[at]);
                if (now[at] != 0 && held[rank][at] == 0)
                    *minimum += (int64_t)rs_dtype_size(rs_space_dtype(t->space, k, r));
            }
        }
    return true;
}

/* Whether some element is needed and held by nobody. */
static bool is_incomplete(const trial *t, tables *m, bool *missing)
{
    uint64_t *some = m->written;
    memset(some, 0, table_size * sizeof *some);
    for (int rank = 0; rank < t->world; rank++)
        for (size_t at = 0; at < table_size; at++)
            some[at] |= m->held[rank][at];
    *missing = false;
    for (int rank = 0; rank < t->world; rank++) {
        if (!mark_held(t, t->to, rank, m->now, false))
            return false;
        for (size_t at = 0; at < table_size; at++)
            *missing = *missing || (m->now[at] != 0 && some[at] == 0);
    }
    return true;
}

static bool check_peaks(const rs_plan *plan)
{
    const rs_plan_figures *f = rs_plan_figures_of(plan);
    int64_t exact, paged, windowed;
    NEED(rs_plan_peak_tight(plan, 0, 1, &exact));
    CHECK(exact == f->peak_tight);
    CHECK(f->peak_tight >= f->old_bytes && f->peak_tight >= f->new_bytes);
    CHECK(f->peak_tight <= f->peak_safe);
    int64_t page = (int64_t)1 << below(8);
    int64_t window = below(300);
    NEED(rs_plan_peak_tight(plan, window, 1, &windowed));
    NEED(rs_plan_peak_tight(plan, window, page, &paged));
    CHECK(windowed >= exact);
    /* Padding counts from the start, but where a page has other bytes too it comes with those. */
    int64_t padding = f->new_bytes - f->adopted_bytes - f->self_bytes - f->node_in - f->remote_in;
    CHECK(paged >= windowed - padding);
    NEED(rs_plan_peak_tight(plan, INT64_MAX, 1, &windowed));
    CHECK(windowed <= f->peak_safe);
    return true;
}

static bool same_plan(const rs_plan *a, const rs_plan *b)
{
    size_t count, other_count;
    const rs_copy *copies = rs_plan_copies(a, &count);
    const rs_copy *others = rs_plan_copies(b, &other_count);
    CHECK(count == other_count);
    for (size_t i = 0; i < count; i++)
        CHECK(copies[i].key == others[i].key && copies[i].tensor == others[i].tensor &&
              copies[i].role == others[i].role && copies[i].source == others[i].source &&
              copies[i].target == others[i].target && copies[i].reach == others[i].reach &&
              copies[i].bytes == others[i].bytes && rs_box_equal(&copies[i].box, &others[i].box));
    const rs_plan_figures *f = rs_plan_figures_of(a);
    CHECK(memcmp(f, rs_plan_figures_of(b), sizeof *f) == 0);
    return true;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* What rounding to elements can add to what each rank sends: less than an element for each deal,
 * and a deal is at least one copy where chunks are large. */
static bool find_rounding(const trial *t, int64_t *bytes)
{
    rs_plan_options options = t->options;
    options.chunk_bytes = 0;
    rs_dealer dealer;
    NEED(rs_dealer_init(&dealer, t->from, t->to, &options));
    for (int r = 0; r < t->world; r++) {
        rs_plan *plan;
        size_t count;
        NEED(rs_plan_create_dealt(&dealer, r, &options, &plan));
        const rs_copy *copies = rs_plan_copies(plan, &count);
        bytes[r] = 0;
        for (size_t i = 0; i < count; i++)
            if (copies[i].source == r && copies[i].reach == RS_REACH_REMOTE)
                bytes[r] += (int64_t)rs_dtype_size(
                    rs_space_dtype(t->space, copies[i].tensor, copies[i].role));
        rs_plan_destroy(plan);
    }
    rs_dealer_fini(&dealer);
    return true;
}

/* Loads against the bounds, from the plans themselves. */
static bool check_totals(const trial *t, rs_plan *const *plans, int64_t moved, int64_t minimum)
{
    rs_plan_totals totals;
    NEED(rs_plan_totals_compute(t->from, t->to, &t->options, true, &totals));
    CHECK(totals.moved == moved && totals.minimum == minimum && moved == minimum);
    CHECK(totals.node.bytes + totals.remote.bytes == moved);
    CHECK(strcmp(totals.bound_kind, "flow") == 0);
    int64_t pairs = 0;
    size_t cells = (size_t)rs_placement_holders(t->from) * (size_t)rs_placement_holders(t->to);
    for (size_t i = 0; i < cells; i++)
        pairs += totals.pair_bytes[i];
    CHECK(pairs == moved + totals.self + totals.adopted);
    int64_t rounding[WORLD];
    if (!find_rounding(t, rounding))
        return false;
    int64_t most = 0;
    int64_t both = 0;
    int64_t slack = 0;
    for (int r = 0; r < t->world; r++) {
        const rs_plan_figures *f = rs_plan_figures_of(plans[r]);
        CHECK(f->remote_in <= totals.remote.rank_bound);
        CHECK(f->remote_out <= totals.remote.rank_bound + rounding[r]);
        CHECK(f->node_in <= totals.node.rank_bound);
        most = larger(most, larger(f->remote_in, f->remote_out));
        both = larger(both, larger(f->remote_in + f->node_in, f->remote_out));
        slack = larger(slack, rounding[r]);
    }
    CHECK(totals.remote.rank_max == most && most >= totals.remote.rank_bound);
    CHECK(totals.node.rank_max == totals.node.rank_bound);
    CHECK(totals.rank_bytes_max == both && both >= totals.rank_bytes_bound);
    CHECK(both <= totals.rank_bytes_bound + slack);
    CHECK(totals.node_bytes_max >= totals.node_bytes_bound);
    occurred.remote += totals.remote.bytes > 0;
    occurred.node += totals.node.bytes > 0;
    occurred.self += totals.self > 0;
    occurred.adopted += totals.adopted > 0;
    occurred.rounding += most > 0 && slack * 20 <= totals.remote.rank_bound;
    rs_plan_totals_fini(&totals);
    return true;
}

/* The list from s to t is the same in the plans of s and of t. */
static bool check_ends(const trial *t, rs_plan *const *plans)
{
    for (int r = 0; r < t->world; r++) {
        size_t next[WORLD] = {0};
        size_t count, other_count;
        const rs_copy *copies = rs_plan_copies(plans[r], &count);
        for (size_t i = 0; i < count; i++) {
            if (copies[i].source != r || copies[i].target == r)
                continue;
            int target = copies[i].target;
            const rs_copy *others = rs_plan_copies(plans[target], &other_count);
            size_t *at = &next[target];
            while (*at < other_count && others[*at].source != r)
                (*at)++;
            CHECK(*at < other_count && others[*at].target == target &&
                  others[*at].key == copies[i].key && others[*at].role == copies[i].role &&
                  others[*at].tensor == copies[i].tensor &&
                  rs_box_equal(&others[*at].box, &copies[i].box));
            (*at)++;
        }
        for (int target = 0; target < t->world; target++) {
            const rs_copy *others = rs_plan_copies(plans[target], &other_count);
            for (size_t i = next[target]; i < other_count && target != r; i++)
                CHECK(others[i].source != r);
        }
    }
    return true;
}

/* Counts pieces that are no box, so that one knows that there are any. */
static bool look_at_pieces(const trial *t)
{
    rs_pieces pieces = {0};
    bool odd = false;
    for (int k = 0; k < rs_space_tensor_count(t->space); k++) {
        const rs_tensor *tensor = rs_space_tensor(t->space, k);
        rs_box whole = rs_box_whole(tensor->ndim, tensor->shape);
        NEED(rs_pieces_cut(&pieces, t->from, t->to, k, 0, &whole));
        for (size_t i = 0; i < pieces.count; i++)
            odd = odd || pieces.items[i].box_count > 1;
    }
    rs_pieces_fini(&pieces);
    occurred.odd += odd;
    return true;
}

/* ---- one case ---- */

static bool check_plans(const trial *t, tables *m, rs_plan **plans)
{
    int64_t moved = 0;
    int64_t minimum = 0;
    for (int r = t->world - 1; r >= 0; r--) {
        NEED(rs_plan_create(t->from, t->to, r, &t->options, &plans[r]));
        if (!count_plan(t, plans[r], m->held, m->now, m->written, &moved, &minimum) ||
            !check_peaks(plans[r]))
            return false;
    }
    rs_plan *again = NULL;
    int rank = below(t->world);
    NEED(rs_plan_create(t->from, t->to, rank, &t->options, &again));
    bool same = same_plan(plans[rank], again);
    rs_plan_destroy(again);
    if (!same || !check_totals(t, plans, moved, minimum) || !check_ends(t, plans) ||
        !look_at_pieces(t))
        return false;
    NEED(rs_plan_check(t->from, t->to, &t->options));
    return true;
}

/* The plan of a placement with holes is refused, by some rank, naming an element. */
static bool check_refusal(const trial *t)
{
    int refused = 0;
    for (int r = 0; r < t->world; r++) {
        rs_plan *plan = NULL;
        rs_status status = rs_plan_create(t->from, t->to, r, &t->options, &plan);
        rs_plan_destroy(plan);
        CHECK(status == RS_OK || status == RS_ERR_MISMATCH);
        if (status == RS_ERR_MISMATCH) {
            CHECK(strstr(rs_error_message(), "which nobody holds") != NULL);
            refused++;
        }
    }
    CHECK(refused > 0);
    occurred.missing++;
    CHECK(rs_plan_check(t->from, t->to, &t->options) == RS_ERR_MISMATCH);
    return true;
}

static bool run_case(const trial *t)
{
    tables m = {0};
    rs_plan *plans[WORLD] = {0};
    bool good = true;
    lay_table(t->space);
    for (int r = 0; r < t->world && good; r++) {
        m.held[r] = calloc(table_size + 1, sizeof(uint64_t));
        good = mark_held(t, t->from, r, m.held[r], true);
    }
    m.now = calloc(table_size + 1, sizeof(uint64_t));
    m.written = calloc(table_size + 1, sizeof(uint64_t));
    bool missing = false;
    good = good && is_incomplete(t, &m, &missing);
    good = good && (missing ? check_refusal(t) : check_plans(t, &m, plans));
    for (int r = 0; r < t->world; r++) {
        free(m.held[r]);
        rs_plan_destroy(plans[r]);
    }
    free(m.now);
    free(m.written);
    return good;
}

/* Says what occurred; whether all of it did. */
static bool report(void)
{
    printf(
        "cases with listed placements %ld, layouts %ld, bytes between nodes %ld, inside a node "
        "%ld, within a rank %ld, adopted %ld, refused %ld, pieces that are no box %ld, bound met "
        "to 5%% %ld\nlayouts with",
        occurred.list, occurred.layout, occurred.remote, occurred.node, occurred.self,
        occurred.adopted, occurred.missing, occurred.odd, occurred.rounding);
    bool all = occurred.layout > 0 && occurred.remote > 0 && occurred.node > 0 &&
               occurred.self > 0 && occurred.adopted > 0 && occurred.rounding > 0 &&
               (layouts_only || (occurred.list > 0 && occurred.missing > 0 && occurred.odd > 0));
    for (int i = 0; i < AXES; i++) {
        printf("%s %s %ld", i > 0 ? "," : "", axis_names[i], occurred.axes[i]);
        all = all && occurred.axes[i] > 0;
    }
    printf("\n");
    return all;
}

static bool one_case(void)
{
    trial t;
    bool good = make_trial(&t) && run_case(&t);
    free_trial(&t);
    return good;
}

int main(int argc, char **argv)
{
    prop_run run = {.seed = 1, .cases = 1000, .flag = "--layouts"};
    if (!prop_options(argc, argv, &run))
        return 2;
    layouts_only = run.flag_set;
    if (!prop_cases(&run, one_case))
        return 1;
    if (!report() && run.cases >= 1000) {
        printf("something never occurred\n");
        return 1;
    }
    return 0;
}
