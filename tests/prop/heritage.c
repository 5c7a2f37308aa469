/*
 * Worlds that take over from others over several hosts: random models, layouts and hosts.
 *
 *     prop_heritage [--seed S] [--cases N] [--verbose]
 *
 * Case i of a run uses seed S + i. In each case, with the numbering of rs_assign_ranks:
 *  - rs_plan_check of the plan from the heritage to the new world: every element arrives once, from
 *    the nearest host that has it, moved = minimum, and hosts list what crosses their borders;
 *  - nobody takes over, or continues, what lies on another host, or has an element twice;
 *  - what crosses is, element by element, what no old rank of the target's host had: not one more;
 *  - hosts make no difference where all ranks are on one.
 */
#include "prop/check.h"

#include "elastic/heritage.h"
#include "reshard/plan.h"
#include "support/spaces.h"

#define WORLD 9
#define HOSTS 4

static long crossed, adopted;

typedef struct trial {
    rs_space *space;
    rs_placement *old, *now;
    int old_ranks, new_ranks;
    int old_host[WORLD], new_host[WORLD], kept[WORLD];
    rs_heritage *heritage;
} trial;

/* Ranks in blocks, in turn, or anyhow; some hosts have only old or only new ones. */
static void place_ranks(int *host, int ranks)
{
    int how = random_in(&state, 0, 3), hosts = random_in(&state, 1, HOSTS);
    int first = random_in(&state, 0, 2), size = random_in(&state, 1, 3);
    for (int r = 0; r < ranks; r++)
        host[r] = how == 0   ? first + r / size
                  : how == 1 ? r % hosts
                  : how == 2 ? random_in(&state, 0, hosts - 1)
                             : first;
}

static bool make_trial(trial *t)
{
    memset(t, 0, sizeof *t);
    t->space = random_space(&state);
    int64_t layers = rs_space_layer_count(t->space);
    rs_layout from = random_layout(&state, WORLD, layers);
    rs_layout to = random_layout(&state, WORLD, layers);
    NEED(rs_layout_placement(t->space, &from, &t->old));
    NEED(rs_layout_placement(t->space, &to, &t->now));
    t->old_ranks = rs_placement_holders(t->old);
    t->new_ranks = rs_placement_holders(t->now);
    place_ranks(t->old_host, t->old_ranks);
    place_ranks(t->new_host, t->new_ranks);
    rs_places hosts = {t->old_host, t->new_host};
    NEED(rs_assign_ranks(t->old, t->now, &hosts, t->kept));
    NEED(rs_heritage_create(t->old, t->now, t->kept, &hosts, &t->heritage));
    return true;
}

static void free_trial(trial *t)
{
    rs_heritage_destroy(t->heritage);
    rs_placement_destroy(t->old);
    rs_placement_destroy(t->now);
    rs_space_destroy(t->space);
}

static bool check_borders(const trial *t)
{
    for (int r = 0; r < t->new_ranks; r++) {
        int count;
        const int *sources = rs_heritage_sources(t->heritage, r, &count);
        CHECK(t->kept[r] < 0 || t->old_host[t->kept[r]] == t->new_host[r]);
        for (int i = 0; i < count; i++)
            CHECK(t->old_host[sources[i]] == t->new_host[r]);
    }
    const int *hosts = rs_heritage_hosts(t->heritage);
    for (int r = 0; r < t->new_ranks; r++)
        CHECK(hosts[r] == t->new_host[r]);
    for (int i = 0; i < t->old_ranks; i++)
        CHECK(hosts[t->new_ranks + i] == t->old_host[i]);
    return true;
}

/* No holder has anything twice: ranks may keep a tensor in different segments. */
static bool check_once(const trial *t)
{
    const rs_placement *from = rs_heritage_placement(t->heritage);
    rs_shard_list shards = {0};
    rs_box both;
    for (int h = 0; h < rs_placement_holders(from); h++) {
        shards.count = 0;
        NEED(rs_placement_shards(from, h, -1, &shards));
        for (size_t i = 0; i < shards.count; i++)
            for (size_t k = 0; k < i; k++)
                CHECK(shards.items[i].tensor != shards.items[k].tensor ||
                      shards.items[i].role != shards.items[k].role ||
                      !rs_box_intersect(&shards.items[i].box, &shards.items[k].box, &both));
    }
    rs_shard_list_fini(&shards);
    return true;
}

static bool contains(const rs_box *box, const int64_t *at)
{
    for (int d = 0; d < box->ndim; d++)
        if (at[d] < box->offset[d] || at[d] >= box->offset[d] + box->extent[d])
            return false;
    return true;
}

/* Of one shard, the elements that no old rank of the host has. */
static int64_t count_lacking(const trial *t, const rs_shard_list *old, const rs_shard *s, int host)
{
    int64_t lacking = 0, volume = rs_box_volume(&s->box);
    for (int64_t k = 0; k < volume; k++) {
        int64_t at[RS_MAX_DIMS] = {0}, rest = k;
        bool there = false;
        for (int d = s->box.ndim - 1; d >= 0; d--) {
            at[d] = s->box.offset[d] + rest % s->box.extent[d];
            rest /= s->box.extent[d];
        }
        for (int i = 0; i < t->old_ranks && !there; i++)
            for (size_t n = 0; t->old_host[i] == host && n < old[i].count && !there; n++) {
                const rs_shard *o = &old[i].items[n];
                there = o->tensor == s->tensor && o->role == s->role && contains(&o->box, at);
            }
        lacking += !there;
    }
    return lacking;
}

static bool check_crossing(const trial *t, const rs_plan_totals *totals)
{
    rs_shard_list old[WORLD] = {{0}}, now = {0};
    int64_t bytes = 0;
    for (int i = 0; i < t->old_ranks; i++)
        NEED(rs_placement_shards(t->old, i, -1, &old[i]));
    for (int r = 0; r < t->new_ranks; r++) {
        now.count = 0;
        NEED(rs_placement_shards(t->now, r, -1, &now));
        for (size_t k = 0; k < now.count; k++)
            bytes += count_lacking(t, old, &now.items[k], t->new_host[r]) *
                     (int64_t)rs_dtype_size(now.items[k].dtype);
    }
    for (int i = 0; i < t->old_ranks; i++)
        rs_shard_list_fini(&old[i]);
    rs_shard_list_fini(&now);
    CHECK(totals->remote.bytes == bytes);
    return true;
}

static bool check_one_host(const trial *t, const rs_plan_totals *totals)
{
    rs_heritage *plain = NULL;
    rs_plan_totals other;
    rs_plan_options options = {.adopt = true};
    int kept[WORLD];
    for (int r = 0; r < t->new_ranks; r++)
        if (t->new_host[r] != t->old_host[0])
            return true;
    for (int i = 0; i < t->old_ranks; i++)
        if (t->old_host[i] != t->old_host[0])
            return true;
    NEED(rs_assign_ranks(t->old, t->now, NULL, kept));
    NEED(rs_heritage_create(t->old, t->now, kept, NULL, &plain));
    NEED(rs_plan_totals_compute(rs_heritage_placement(plain), t->now, &options, false, &other));
    CHECK(memcmp(kept, t->kept, sizeof *kept * (size_t)t->new_ranks) == 0);
    CHECK(totals->remote.bytes == 0 && totals->adopted == other.adopted &&
          totals->moved == other.moved && totals->self == other.self);
    rs_plan_totals_fini(&other);
    rs_heritage_destroy(plain);
    return true;
}

static bool run_case(const trial *t)
{
    const rs_placement *from = rs_heritage_placement(t->heritage);
    rs_plan_options options = {.node_of = rs_heritage_hosts(t->heritage),
        .adopt = true,
        .chunk_bytes = random_in(&state, 0, 1) ? random_in(&state, 1, 200) : 0};
    rs_plan_totals totals;
    CHECK(check_borders(t));
    CHECK(check_once(t));
    NEED(rs_plan_check(from, t->now, &options));
    NEED(rs_plan_totals_compute(from, t->now, &options, false, &totals));
    CHECK(totals.moved == totals.minimum);
    CHECK(check_crossing(t, &totals));
    CHECK(check_one_host(t, &totals));
    crossed += totals.remote.bytes > 0;
    adopted += totals.adopted > 0;
    rs_plan_totals_fini(&totals);
    return true;
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
    prop_run run = {.seed = 1, .cases = 300};
    if (!prop_options(argc, argv, &run))
        return 2;
    if (!prop_cases(&run, one_case))
        return 1;
    printf("bytes between hosts in %ld, adopted in %ld\n", crossed, adopted);
    if (run.cases >= 100 && (crossed < run.cases / 4 || adopted < run.cases / 10)) {
        printf("too seldom\n");
        return 1;
    }
    return 0;
}
