/* Segment look-up, and heap memory made from a placement. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/memory.h"
#include "reshard/memory.h"
#include "reshard/placement.h"
#include "reshard/space.h"

static void finds_segments(void **state)
{
    (void)state;
    char bytes[3];
    rs_region regions[] = {{2, 1, &bytes[0]}, {5, 1, &bytes[1]}, {9, 1, &bytes[2]}};
    rs_memory memory = {regions, 3};
    for (int segment = 0; segment < 12; segment++) {
        void *wanted = segment == 2   ? &bytes[0]
                       : segment == 5 ? &bytes[1]
                       : segment == 9 ? (void *)&bytes[2]
                                      : NULL;
        assert_ptr_equal(rs_memory_segment(&memory, segment), wanted);
    }
    rs_shard shard = {.segment = 5, .offset = 1};
    assert_ptr_equal(rs_memory_shard(&memory, &shard), &bytes[2]);
    shard.segment = 4;
    assert_null(rs_memory_shard(&memory, &shard));
    rs_memory none = {0};
    assert_null(rs_memory_segment(&none, 0));
}

/* A placement with one tensor, in two segments of holder 0 and none of holder 1. */
static void make(rs_space **space, rs_placement **placement)
{
    assert_int_equal(rs_space_create(space), RS_OK);
    rs_role role = {"param", RS_DTYPE_F32, RS_ROLE_MODEL};
    assert_int_equal(rs_space_add_role(*space, &role, NULL), RS_OK);
    rs_tensor tensor = {.name = "t", .ndim = 1, .shape = {100}};
    assert_int_equal(rs_space_add_tensor(*space, &tensor, NULL), RS_OK);
    rs_shard shards[2] = {
        {.dtype = RS_DTYPE_F32, .box = {1, {0}, {33}}, .segment = 3, .stride = {4}},
        {.dtype = RS_DTYPE_F32, .box = {1, {33}, {67}}, .segment = 7, .offset = 8, .stride = {4}}};
    size_t first[3] = {0, 2, 2};
    assert_int_equal(rs_placement_create_list(*space, 2, shards, first, placement), RS_OK);
}

static void allocates_each_segment(void **state)
{
    (void)state;
    rs_space *space;
    rs_placement *placement;
    rs_memory memory;
    make(&space, &placement);
    assert_int_equal(rs_memory_allocate(placement, 0, &memory), RS_OK);
    assert_int_equal(memory.count, 2);
    assert_true(memory.regions[0].bytes >= 33 * 4);
    assert_true(memory.regions[1].bytes >= 8 + 67 * 4);
    for (size_t k = 0; k < memory.count; k++) {
        char *data = memory.regions[k].data;
        assert_int_equal((uintptr_t)data % 64, 0);
        for (int64_t b = 0; b < memory.regions[k].bytes; b++) {
            assert_int_equal(data[b], 0);
            data[b] = (char)(k + 1);
        }
    }
    char *first = memory.regions[0].data;
    assert_int_equal(first[memory.regions[0].bytes - 1], 1);
    rs_memory_free(&memory);
    assert_int_equal(memory.count, 0);
    assert_int_equal(rs_memory_allocate(placement, 1, &memory), RS_OK);
    assert_int_equal(memory.count, 0);
    rs_memory_free(&memory);
    rs_memory_free(NULL);
    rs_placement_destroy(placement);
    rs_space_destroy(space);
}

static void survives_failed_allocations(void **state)
{
    (void)state;
    rs_space *space;
    rs_placement *placement;
    make(&space, &placement);
    for (size_t n = 1;; n++) {
        rs_memory memory = {0};
        rs_alloc_fail_at(n);
        rs_status status = rs_memory_allocate(placement, 0, &memory);
        rs_alloc_fail_at(0);
        if (status == RS_OK) {
            assert_true(n > 1);
            rs_memory_free(&memory);
            break;
        }
        assert_int_equal(status, RS_ERR_NO_MEMORY);
        assert_null(memory.regions);
    }
    rs_placement_destroy(placement);
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_segments),
        cmocka_unit_test(allocates_each_segment),
        cmocka_unit_test(survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
