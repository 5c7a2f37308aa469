/* Listed placements against a scan of the list they were made from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/memory.h"
#include "reshard/placement.h"
#include "support/random.h"

#define HOLDERS 6
#define ROLES 3
#define CHECK(condition) CHECK_SEED(seed, condition)

typedef struct listing {
    rs_shard_list shards;
    size_t first[HOLDERS + 1];
} listing;

static rs_space *small_space(void)
{
    const rs_role roles[ROLES] = {{"param", RS_DTYPE_BF16, RS_ROLE_MODEL},
        {"master", RS_DTYPE_F32, RS_ROLE_OPTIMIZER}, {"exp_avg", RS_DTYPE_F32, RS_ROLE_OPTIMIZER}};
    const rs_tensor tensors[] = {{.name = "scalar", .ndim = 0},
        {.name = "vector", .ndim = 1, .shape = {9}}, {.name = "matrix", .ndim = 2, .shape = {7, 6}},
        {.name = "cube", .ndim = 3, .shape = {4, 3, 5}},
        {.name = "nothing", .ndim = 2, .shape = {0, 3}},
        {.name = "other", .ndim = 1, .shape = {9}}};
    rs_space *space;
    assert_int_equal(rs_space_create(&space), RS_OK);
    for (int r = 0; r < ROLES; r++)
        assert_int_equal(rs_space_add_role(space, &roles[r], NULL), RS_OK);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        assert_int_equal(rs_space_add_tensor(space, &tensors[i], NULL), RS_OK);
    return space;
}

static void push(listing *list, const rs_shard *shard)
{
    list->shards.items =
        realloc(list->shards.items, (list->shards.count + 1) * sizeof *list->shards.items);
    list->shards.items[list->shards.count++] = *shard;
}

/* Cuts `box` in two again and again and keeps some of the parts: disjoint, unordered. */
static void scatter(listing *list, uint64_t *random, const rs_shard *shard, int depth)
{
    int d = shard->box.ndim > 0 ? random_in(random, 0, shard->box.ndim - 1) : 0;
    if (depth == 0 || shard->box.ndim == 0 || shard->box.extent[d] < 2) {
        if (random_in(random, 0, 2) == 0)
            return;
        rs_shard made = *shard;
        made.segment = random_in(random, 0, 3);
        made.offset = 8 * random_in(random, 0, 50);
        int64_t stride = (int64_t)rs_dtype_size(made.dtype);
        for (int e = made.box.ndim - 1; e >= 0; e--) {
            made.stride[e] = stride + random_in(random, 0, 3);
            stride = made.stride[e] * made.box.extent[e];
        }
        push(list, &made);
        return;
    }
    rs_shard low = *shard;
    rs_shard high = *shard;
    int64_t cut = random_in(random, 1, (int)shard->box.extent[d] - 1);
    low.box.extent[d] = cut;
    high.box.offset[d] += cut;
    high.box.extent[d] -= cut;
    bool swap = random_in(random, 0, 1);
    scatter(list, random, swap ? &high : &low, depth - 1);
    scatter(list, random, swap ? &low : &high, depth - 1);
}

static void random_listing(const rs_space *space, uint64_t *random, listing *list)
{
    memset(list, 0, sizeof *list);
    for (int h = 0; h < HOLDERS; h++) {
        for (int i = 0; i < rs_space_tensor_count(space); i++)
            for (int role = 0; role < ROLES; role++) {
                const rs_tensor *t = rs_space_tensor(space, i);
                rs_shard whole = {.tensor = i,
                    .role = role,
                    .dtype = rs_space_role(space, role)->dtype,
                    .box = rs_box_whole(t->ndim, t->shape)};
                if (!rs_box_is_empty(&whole.box) && random_in(random, 0, 3) > 0)
                    scatter(list, random, &whole, random_in(random, 0, 4));
            }
        list->first[h + 1] = list->shards.count;
    }
}

static rs_box random_box(uint64_t *random, const rs_tensor *t)
{
    rs_box box = {.ndim = t->ndim};
    for (int d = 0; d < t->ndim; d++) {
        int extent = (int)t->shape[d];
        box.offset[d] = random_in(random, 0, extent);
        box.extent[d] = random_in(random, 0, extent - (int)box.offset[d]);
    }
    return box;
}

static void compare_locate(uint64_t seed, const rs_placement *placement, const listing *list,
    int tensor, int role, const rs_box *box)
{
    size_t expected = 0;
    for (size_t s = 0; s < list->shards.count; s++) {
        const rs_shard *shard = &list->shards.items[s];
        rs_box both;
        expected += shard->tensor == tensor && shard->role == role &&
                    rs_box_intersect(&shard->box, box, &both);
    }
    rs_holding_list found = {0};
    assert_int_equal(rs_placement_locate(placement, tensor, role, box, &found), RS_OK);
    size_t total = 0;
    for (size_t i = 0; i < found.count; i++) {
        const rs_holding *holding = &found.items[i];
        rs_box both;
        CHECK(rs_box_intersect(&holding->box, box, &both));
        CHECK(i == 0 || rs_box_compare(&found.items[i - 1].box, &holding->box) < 0);
        CHECK(holding->first == total);
        for (size_t r = 0; r < holding->count; r++) {
            int rank = found.ranks[holding->first + r];
            CHECK(r == 0 || found.ranks[holding->first + r - 1] < rank);
            size_t s = list->first[rank];
            while (s < list->first[rank + 1] &&
                   (list->shards.items[s].tensor != tensor || list->shards.items[s].role != role ||
                       !rs_box_equal(&list->shards.items[s].box, &holding->box)))
                s++;
            CHECK(s < list->first[rank + 1]);
        }
        total += holding->count;
    }
    /* Each found one exists, none is found twice, and there are as many as there should be. */
    CHECK(total == expected && found.rank_count == expected);
    rs_holding_list_fini(&found);
}

static void compare_address(uint64_t seed, const rs_placement *placement, const listing *list,
    int holder, int tensor, int role, const rs_box *box)
{
    const rs_shard *within = NULL;
    for (size_t s = list->first[holder]; s < list->first[holder + 1]; s++) {
        const rs_shard *shard = &list->shards.items[s];
        if (shard->tensor == tensor && shard->role == role && !rs_box_is_empty(box) &&
            rs_box_contains(&shard->box, box))
            within = shard;
    }
    rs_shard part;
    rs_status status = rs_placement_address(placement, holder, tensor, role, box, &part);
    CHECK(status == (within != NULL ? RS_OK : RS_ERR_NOT_FOUND));
    if (within == NULL)
        return;
    int64_t offset = within->offset;
    for (int d = 0; d < box->ndim; d++)
        offset += (box->offset[d] - within->box.offset[d]) * within->stride[d];
    CHECK(part.offset == offset && part.segment == within->segment);
    CHECK(part.dtype == within->dtype && rs_box_equal(&part.box, box));
    CHECK(memcmp(part.stride, within->stride, sizeof part.stride) == 0);
}

static bool same_shard(const rs_shard *a, const rs_shard *b)
{
    return a->tensor == b->tensor && a->role == b->role && a->dtype == b->dtype &&
           rs_box_equal(&a->box, &b->box) && a->segment == b->segment && a->offset == b->offset &&
           memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

static void compare_holder(
    uint64_t seed, const rs_placement *placement, const listing *list, int holder)
{
    rs_shard_list shards = {0};
    rs_segment_list segments = {0};
    size_t all = 0;
    int64_t bytes[4] = {0};
    for (int role = 0; role < ROLES; role++) {
        assert_int_equal(rs_placement_shards(placement, holder, role, &shards), RS_OK);
        for (size_t i = 0; i < shards.count; i++) {
            const rs_shard *shard = &shards.items[i];
            const rs_shard *before = shard - 1;
            CHECK(shard->role == role);
            CHECK(i == 0 || before->segment < shard->segment ||
                  (before->segment == shard->segment && before->offset <= shard->offset));
            size_t same = 0;
            for (size_t s = list->first[holder]; s < list->first[holder + 1]; s++)
                same += same_shard(&list->shards.items[s], shard);
            CHECK(same == 1);
            int64_t end = shard->offset + (int64_t)rs_dtype_size(shard->dtype);
            for (int d = 0; d < shard->box.ndim; d++)
                end += (shard->box.extent[d] - 1) * shard->stride[d];
            if (end > bytes[shard->segment])
                bytes[shard->segment] = end;
        }
        all += shards.count;
    }
    CHECK(all == list->first[holder + 1] - list->first[holder]);
    assert_int_equal(rs_placement_segments(placement, holder, &segments), RS_OK);
    size_t at = 0;
    for (int s = 0; s < 4; s++) {
        if (bytes[s] == 0)
            continue;
        CHECK(at < segments.count && segments.items[at].segment == s);
        CHECK(segments.items[at].bytes == bytes[s]);
        at++;
    }
    CHECK(at == segments.count);
    rs_shard_list_fini(&shards);
    rs_segment_list_fini(&segments);
}

static void test_against_the_list(void **state)
{
    (void)state;
    rs_space *space = small_space();
    for (uint64_t seed = 1; seed <= 60; seed++) {
        uint64_t random = seed;
        listing list;
        random_listing(space, &random, &list);
        rs_placement *placement;
        assert_int_equal(
            rs_placement_create_list(space, HOLDERS, list.shards.items, list.first, &placement),
            RS_OK);
        CHECK(rs_placement_holders(placement) == HOLDERS);
        CHECK(rs_placement_space(placement) == space);
        for (int h = 0; h < HOLDERS; h++)
            compare_holder(seed, placement, &list, h);
        for (int i = 0; i < rs_space_tensor_count(space); i++)
            for (int role = 0; role < ROLES; role++)
                for (int round = 0; round < 8; round++) {
                    rs_box box = random_box(&random, rs_space_tensor(space, i));
                    compare_locate(seed, placement, &list, i, role, &box);
                    compare_address(
                        seed, placement, &list, random_in(&random, 0, HOLDERS - 1), i, role, &box);
                }
        free(list.shards.items);
        rs_placement_destroy(placement);
    }
    rs_space_destroy(space);
}

/* Role 2 is cut as role 1 is until one box differs; role 0 has nothing at all. */
static void test_geometry(void **state)
{
    (void)state;
    rs_space *space = small_space();
    listing list = {0};
    for (int h = 0; h < HOLDERS; h++) {
        for (int role = 2; role >= 1; role--)
            for (int half = 0; half < 2; half++)
                push(&list, &(rs_shard){.tensor = 1,
                                .role = role,
                                .dtype = RS_DTYPE_F32,
                                .box = {.ndim = 1, .offset = {half * 4}, .extent = {4}},
                                .segment = role == 1 ? half : 1 - half,
                                .stride = {4}});
        list.first[h + 1] = list.shards.count;
    }
    rs_placement *placement;
    assert_int_equal(
        rs_placement_create_list(space, HOLDERS, list.shards.items, list.first, &placement), RS_OK);
    assert_int_equal(rs_placement_geometry(placement, 0), 0);
    assert_int_equal(rs_placement_geometry(placement, 1), 1);
    assert_int_equal(rs_placement_geometry(placement, 2), 1);
    rs_placement_destroy(placement);
    list.shards.items[0].box.extent[0] = 3;
    assert_int_equal(
        rs_placement_create_list(space, HOLDERS, list.shards.items, list.first, &placement), RS_OK);
    assert_int_equal(rs_placement_geometry(placement, 2), 2);
    rs_placement_destroy(placement);
    /* The same boxes, but of another tensor. */
    list.shards.items[0].box.extent[0] = 4;
    list.shards.items[0].tensor = rs_space_find_tensor(space, "other");
    list.shards.items[1].tensor = list.shards.items[0].tensor;
    assert_int_equal(
        rs_placement_create_list(space, HOLDERS, list.shards.items, list.first, &placement), RS_OK);
    assert_int_equal(rs_placement_geometry(placement, 2), 2);
    rs_placement_destroy(placement);
    free(list.shards.items);
    rs_space_destroy(space);
}

static void refuse(
    const rs_space *space, const rs_shard *shards, size_t count, rs_status wanted, const char *word)
{
    rs_placement *placement = NULL;
    size_t first[2] = {0, count};
    assert_int_equal(rs_placement_create_list(space, 1, shards, first, &placement), wanted);
    assert_null(placement);
    assert_non_null(strstr(rs_error_message(), word));
}

static void test_refusals(void **state)
{
    (void)state;
    rs_space *space = small_space();
    const rs_shard good = {.tensor = 2,
        .role = 1,
        .dtype = RS_DTYPE_F32,
        .box = {.ndim = 2, .offset = {1, 1}, .extent = {3, 3}},
        .stride = {12, 4}};
    rs_shard bad[2] = {good, good};
    bad[1].box.offset[0] = 3;
    refuse(space, bad, 2, RS_ERR_ARGUMENT, "matrix, role master: shards [1:4,1:4] and [3:6,1:4]");
    bad[0] = good;
    bad[0].box.extent[1] = 0;
    refuse(space, bad, 1, RS_ERR_ARGUMENT, "holder 0, shard 0: tensor matrix: the box is empty");
    bad[0] = good;
    bad[0].box.extent[1] = 6;
    refuse(space, bad, 1, RS_ERR_ARGUMENT, "extent 6");
    bad[0] = good;
    bad[0].box.ndim = 1;
    refuse(space, bad, 1, RS_ERR_ARGUMENT, "dimensions");
    bad[0] = good;
    bad[0].tensor = 6;
    refuse(space, bad, 1, RS_ERR_ARGUMENT, "no tensor 6");
    bad[0] = good;
    bad[0].role = -1;
    refuse(space, bad, 1, RS_ERR_ARGUMENT, "no role -1");
    bad[0] = good;
    bad[0].dtype = RS_DTYPE_NONE;
    refuse(space, bad, 1, RS_ERR_ARGUMENT, "element type");
    bad[0] = good;
    bad[0].segment = -1;
    refuse(space, bad, 1, RS_ERR_ARGUMENT, "segment -1");
    bad[0] = good;
    bad[0].stride[1] = 0;
    refuse(space, bad, 1, RS_ERR_ARGUMENT, "stride 0");
    bad[0] = good;
    bad[0].stride[0] = INT64_MAX;
    refuse(space, bad, 1, RS_ERR_OVERFLOW, "fit 64 bits");
    bad[0] = good;
    assert_int_equal(rs_space_set_dtype(space, 2, 1, RS_DTYPE_NONE), RS_OK);
    refuse(space, bad, 1, RS_ERR_ARGUMENT, "tensor matrix has no role master");
    assert_int_equal(rs_space_set_dtype(space, 2, 1, RS_DTYPE_F32), RS_OK);
    rs_placement *placement = NULL;
    assert_int_equal(
        rs_placement_create_list(space, 1, &good, (size_t[]){1, 0}, &placement), RS_ERR_ARGUMENT);
    assert_int_equal(rs_placement_create_list(space, 0, NULL, (size_t[]){0}, &placement), RS_OK);
    rs_placement_destroy(placement);
    rs_placement_destroy(NULL);
    rs_space_destroy(space);
}

/* The N-th allocation fails, N = 1, 2, ...: the call says so and nothing is left (run under asan).
 */
static void test_allocation_failures(void **state)
{
    (void)state;
    rs_space *space = small_space();
    uint64_t random = 3;
    listing list;
    random_listing(space, &random, &list);
    rs_status status = RS_ERR_NO_MEMORY;
    size_t n = 0;
    while (status != RS_OK) {
        rs_placement *placement = NULL;
        rs_shard_list shards = {0};
        rs_segment_list segments = {0};
        rs_holding_list found = {0};
        rs_box whole = rs_box_whole(2, rs_space_tensor(space, 2)->shape);
        rs_alloc_fail_at(++n);
        status =
            rs_placement_create_list(space, HOLDERS, list.shards.items, list.first, &placement);
        if (status == RS_OK)
            status = rs_placement_shards(placement, 1, -1, &shards);
        if (status == RS_OK)
            status = rs_placement_segments(placement, 1, &segments);
        if (status == RS_OK)
            status = rs_placement_locate(placement, 2, 0, &whole, &found);
        rs_alloc_fail_at(0);
        assert_true(status == RS_OK || status == RS_ERR_NO_MEMORY);
        assert_true(n < 100);
        rs_shard_list_fini(&shards);
        rs_segment_list_fini(&segments);
        rs_holding_list_fini(&found);
        rs_placement_destroy(placement);
    }
    assert_true(n > 8);
    free(list.shards.items);
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_the_list),
        cmocka_unit_test(test_geometry),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
