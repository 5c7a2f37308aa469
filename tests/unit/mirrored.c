/*
 * Placements with mirrors keep the rules of every placement; a mirror is on another node than all
 * who have what it mirrors, nothing is mirrored that another node has anyway, and whichever node is
 * lost, the others hold everything, so that plans make its ranks anew; moves between them are
 * right.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/error.h"
#include "pattern.h"
#include "reshard/elastic.h"
#include "reshard/layout.h"
#include "reshard/plan.h"

#define WORLD 24

static int node_of[WORLD];

/* Nodes of so many ranks; negative: so many nodes, and ranks are dealt over them. */
static rs_placement *place(const rs_space *space, const char *text, int per_node)
{
    rs_layout layout;
    rs_placement *placement;
    for (int r = 0; r < WORLD; r++)
        node_of[r] = per_node > 0 ? r / per_node : r % -per_node;
    assert_int_equal(rs_layout_parse(text, &layout), RS_OK);
    assert_int_equal(rs_layout_placement_mirrored(space, &layout, node_of, &placement), RS_OK);
    return placement;
}

/* Shards of a holder are disjoint and in its segments; asking by box finds the same. */
static void check_rules(const rs_placement *p)
{
    rs_shard_list shards = {0};
    rs_segment_list segments = {0};
    rs_holding_list list = {0};
    for (int h = 0; h < rs_placement_holders(p); h++) {
        assert_int_equal(rs_placement_shards(p, h, -1, &shards), RS_OK);
        assert_int_equal(rs_placement_segments(p, h, &segments), RS_OK);
        for (size_t i = 1; i < segments.count; i++)
            assert_true(segments.items[i - 1].segment < segments.items[i].segment);
        for (size_t i = 0; i < shards.count; i++) {
            const rs_shard *s = &shards.items[i];
            rs_shard found;
            bool has_segment = false, listed = false;
            for (size_t k = 0; k < i; k++) {
                const rs_shard *o = &shards.items[k];
                rs_box both;
                assert_false(o->tensor == s->tensor && o->role == s->role &&
                             rs_box_intersect(&o->box, &s->box, &both));
            }
            for (size_t k = 0; k < segments.count; k++)
                has_segment = has_segment || (segments.items[k].segment == s->segment &&
                                                 s->offset < segments.items[k].bytes);
            assert_true(has_segment);
            assert_int_equal(
                rs_placement_address(p, h, s->tensor, s->role, &s->box, &found), RS_OK);
            assert_true(found.segment == s->segment && found.offset == s->offset);
            assert_int_equal(rs_placement_locate(p, s->tensor, s->role, &s->box, &list), RS_OK);
            for (size_t k = 0; k < list.count; k++)
                for (size_t n = 0; n < list.items[k].count; n++)
                    listed = listed || (list.ranks[list.items[k].first + n] == h &&
                                           rs_box_equal(&list.items[k].box, &s->box));
            assert_true(listed);
        }
    }
    rs_shard_list_fini(&shards);
    rs_segment_list_fini(&segments);
    rs_holding_list_fini(&list);
}

/* Loses one node after the other. */
static void check_losses(const rs_placement *p)
{
    const rs_plan_options options = {.adopt = true};
    int nodes = 0;
    for (int r = 0; r < rs_placement_holders(p); r++)
        nodes = node_of[r] >= nodes ? node_of[r] + 1 : nodes;
    for (int node = 0; node < nodes; node++) {
        bool lost[WORLD] = {0};
        rs_placement *left;
        for (int r = 0; r < WORLD; r++)
            lost[r] = node_of[r] == node;
        assert_int_equal(rs_survivors_create(p, lost, &left), RS_OK);
        assert_int_equal(rs_plan_check(left, p, &options), RS_OK);
        rs_placement_destroy(left);
    }
}

static int64_t all_bytes(const rs_placement *p)
{
    rs_state_bytes bytes;
    assert_int_equal(rs_state_bytes_of(p, -1, &bytes), RS_OK);
    return bytes.total;
}

/* `more`: bytes of mirrors for each element of the model; -1: not to be told so simply. */
static void check_layout(const rs_space *space, const char *text, int per_node, int64_t more)
{
    rs_layout layout;
    rs_placement *plain, *mirrored = place(space, text, per_node);
    assert_int_equal(rs_layout_parse(text, &layout), RS_OK);
    assert_int_equal(rs_layout_placement(space, &layout, &plain), RS_OK);
    check_rules(mirrored);
    check_losses(mirrored);
    int64_t found = all_bytes(mirrored) - all_bytes(plain);
    if (more >= 0)
        assert_int_equal(found, more * rs_space_elements(space));
    else
        assert_true(found > 0);
    rs_placement_destroy(plain);
    rs_placement_destroy(mirrored);
}

static rs_space *make_space(rs_dtype dtype)
{
    rs_space *space;
    rs_model model = pattern_model();
    assert_int_equal(rs_model_space(&model, dtype, &space), RS_OK);
    return space;
}

/* Master and two moments: 12 bytes an element; float32: its moments; zero=3: the parameter too. */
static void mirrors(void **state)
{
    (void)state;
    rs_space *half = make_space(RS_DTYPE_BF16), *full = make_space(RS_DTYPE_F32);
    check_layout(half, "dp=2,zero=1", 1, 12);
    check_layout(half, "dp=4,zero=1", 2, 12);
    check_layout(half, "dp=5,zero=2", 2, 12); /* nodes of 2, 2 and 1 */
    check_layout(half, "dp=3,zero=3", 1, 14);
    check_layout(half, "dp=4,zero=3,zero_cut=param", 2, 14);
    check_layout(half, "dp=4,zero=3,zero_cut=dim0", 2, 14);
    check_layout(full, "dp=2,zero=1", 1, 8);
    check_layout(full, "dp=3,zero=3", 1, 12);
    check_layout(half, "pp=2,dp=3,zero=1", 2, -1); /* the embedding is on both ends */
    check_layout(half, "dp=2,cp=2,zero=1", 2, 12);
    /* Replicas on other nodes are enough. */
    check_layout(half, "dp=2", 1, 0);
    check_layout(half, "dp=4,zero=1,shard=2", 2, 0);
    check_layout(half, "tp=2,dp=3", 2, 0);
    check_layout(half, "dp=8,zero=1,shard=4", 2, 0);
    check_layout(half, "dp=6,zero=1,shard=2", 4, 0);
    check_layout(half, "tp=2,dp=2,zero=1", 2, -1);
    /* Twins on one node: mirrored once. */
    check_layout(half, "dp=4,zero=1,shard=2", -2, 12);
    rs_space_destroy(half);
    rs_space_destroy(full);
}

/* What ZeRO does not divide has no mirror: the node's loss is one. */
static void leaves_alone(void **state)
{
    (void)state;
    rs_space *space = make_space(RS_DTYPE_BF16);
    static const char *const texts[] = {"pp=2", "tp=2", "dp=1", "pp=2,dp=2,zero=1,order=tp-dp-pp"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        rs_placement *p = place(space, texts[i], i == 3 ? 2 : 1);
        bool lost[WORLD] = {[0] = true};
        rs_placement *left;
        rs_plan *plan;
        rs_plan_options options = {0};
        check_rules(p);
        if (i == 3)
            lost[1] = true;
        if (rs_placement_holders(p) > 1) {
            assert_int_equal(rs_survivors_create(p, lost, &left), RS_OK);
            assert_int_equal(rs_plan_create(left, p, 0, &options, &plan), RS_ERR_MISMATCH);
            rs_placement_destroy(left);
        }
        rs_placement_destroy(p);
    }
    rs_space_destroy(space);
}

/* Plans between layouts with mirrors are right, to the element. */
static void moves(void **state)
{
    (void)state;
    rs_space *space = make_space(RS_DTYPE_BF16);
    static const char *const texts[] = {"dp=2,zero=1", "tp=2,dp=2,zero=1", "dp=4,zero=3",
        "pp=2,dp=2,zero=2", "dp=3,zero=1,zero_cut=param", "tp=2,dp=2"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            rs_placement *from = place(space, texts[i], 2), *to = place(space, texts[k], 2);
            rs_plan_options options = {.node_of = node_of, .adopt = true};
            assert_int_equal(rs_plan_check(from, to, &options), RS_OK);
            rs_placement_destroy(from);
            rs_placement_destroy(to);
        }
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mirrors),
        cmocka_unit_test(leaves_alone),
        cmocka_unit_test(moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
