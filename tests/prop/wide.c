/*
 * Random pairs of layouts in worlds of 65 to 200 ranks, which are too many to count elements: how
 * near the busiest rank comes to the bound, and whether ranks agree.
 *
 *     prop_wide [--seed S] [--cases N] [--verbose]
 *
 * Case i of a run uses seed S + i. Checked are:
 *  - moved = minimum, and the bound is the exact one;
 *  - the busiest rank has no more than 1.05 times its bound, between nodes and in all;
 *  - a rank that makes its plan alone, and looks at nothing but what that plan asks for, comes to
 *    the copies that somebody finds who makes all plans, one after the other.
 */
#include "prop/check.h"

#include "plan/plan.h"
#include "reshard/layout.h"
#include "reshard/model.h"
#include "reshard/plan.h"
#include "support/points.h"
#include "support/spaces.h"

#define LEAST 65
#define MOST 200
#define ALONE 3 /* ranks of a case that make their plan alone */

static const char *const models[] = {
    "llama-tiny", "llama-20m", "mixtral-tiny", "qwen3-moe-tiny", "deepseek-tiny"};

/* The busiest of all cases, by its bound. */
static double busiest;

typedef struct trial {
    rs_space *space;
    rs_placement *placements[2];
    rs_plan_options options;
    char text[2][RS_LAYOUT_TEXT];
} trial;

static bool make_trial(trial *t)
{
    rs_model model;
    int number = random_in(&state, 0, (int)(sizeof models / sizeof *models) - 1);
    *t = (trial){.options = {.ranks_per_node = 1 << random_in(&state, 0, 4),
                     .adopt = random_in(&state, 0, 1) == 1}};
    NEED(rs_model_load(models[number], &model));
    NEED(rs_model_space(&model, RS_DTYPE_BF16, &t->space));
    for (int side = 0; side < 2; side++) {
        rs_layout layout;
        do {
            layout = random_layout(&state, MOST, rs_space_layer_count(t->space));
        } while (layout.tp * layout.cp * layout.pp * layout.dp < LEAST);
        rs_layout_format(&layout, t->text[side]);
        NEED(rs_layout_placement(t->space, &layout, &t->placements[side]));
    }
    return true;
}

static void free_trial(trial *t)
{
    for (int side = 0; side < 2; side++)
        rs_placement_destroy(t->placements[side]);
    rs_space_destroy(t->space);
}

static bool check_loads(const trial *t)
{
    rs_plan_totals totals;
    NEED(rs_plan_totals_compute(t->placements[0], t->placements[1], &t->options, false, &totals));
    CHECK(totals.moved == totals.minimum && strcmp(totals.bound_kind, "flow") == 0);
    const int64_t loads[2][2] = {{totals.remote.rank_max, totals.remote.rank_bound},
        {totals.rank_bytes_max, totals.rank_bytes_bound}};
    for (int i = 0; i < 2; i++) {
        double ratio = loads[i][1] > 0 ? (double)loads[i][0] / (double)loads[i][1] : 1;
        busiest = ratio > busiest ? ratio : busiest;
        CHECK(ratio <= 1.05);
    }
    rs_plan_totals_fini(&totals);
    return true;
}

static bool same_copies(const rs_plan *a, const rs_plan *b)
{
    size_t count, other_count;
    const rs_copy *copies = rs_plan_copies(a, &count);
    const rs_copy *others = rs_plan_copies(b, &other_count);
    CHECK(count == other_count);
    for (size_t i = 0; i < count; i++)
        CHECK(copies[i].key == others[i].key && copies[i].source == others[i].source &&
              copies[i].target == others[i].target && rs_copy_compare(&copies[i], &others[i]) == 0);
    return true;
}

/* From the last rank to the first, so that parts are found from other ranks than by one alone. */
static bool check_alone(const trial *t)
{
    const rs_placement *from = t->placements[0], *to = t->placements[1];
    rs_dealer dealer;
    NEED(rs_dealer_init(&dealer, from, to, &t->options));
    int left = ALONE;
    for (int r = dealer.world - 1; r >= 0; r--) {
        rs_plan *plan, *alone;
        NEED(rs_plan_create_dealt(&dealer, r, &t->options, &plan));
        if (random_in(&state, 0, r) < left) {
            left--;
            NEED(rs_plan_create(from, to, r, &t->options, &alone));
            CHECK(same_copies(plan, alone));
            rs_plan_destroy(alone);
        }
        rs_plan_destroy(plan);
    }
    rs_dealer_fini(&dealer);
    return true;
}

static bool one_case(void)
{
    trial t;
    bool good = make_trial(&t) && check_loads(&t) && check_alone(&t);
    if (!good)
        printf("%s -> %s, %d ranks a node\n", t.text[0], t.text[1], t.options.ranks_per_node);
    free_trial(&t);
    return good;
}

int main(int argc, char **argv)
{
    prop_run run = {.seed = 1, .cases = 20};
    if (!prop_options(argc, argv, &run))
        return 2;
    if (!prop_cases(&run, one_case))
        return 1;
    printf("the busiest rank has at most %.4f of its bound\n", busiest);
    return 0;
}
