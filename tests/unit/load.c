/* Loading into memory that is laid out in another way than files are: turned, with gaps, in pieces
 * larger than what is read at a time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/publish.h"
#include "pattern.h"
#include "reshard/checkpoint.h"
#include "reshard/layout.h"
#include "reshard/native.h"
#include "support/ok.h"
#include "support/save.h"

static char root[] = "/dev/shm/unit-load-XXXXXX";
static rs_space *space;

/* A checkpoint with a matrix of 6 MB, a cube and a scalar. */
static int make(void **state)
{
    (void)state;
    const rs_role param = {"param", RS_DTYPE_F32, RS_ROLE_MODEL};
    const rs_tensor tensors[] = {{.name = "m", .ndim = 2, .shape = {1500, 1000}},
        {.name = "c", .ndim = 3, .shape = {3, 5, 7}}, {.name = "s"}};
    rs_save_name name = {root, 1, "unit"};
    uint64_t salt = 3;
    assert_non_null(mkdtemp(root));
    OK(rs_space_create(&space));
    OK(rs_space_add_role(space, &param, NULL));
    for (size_t i = 0; i < 3; i++)
        OK(rs_space_add_tensor(space, &tensors[i], NULL));
    OK(save_all(&name, space, "dp=1", save_pattern, &salt));
    return 0;
}

static int clear(void **state)
{
    (void)state;
    rs_space_destroy(space);
    return rs_remove_folder(root) != RS_OK;
}

/* Loads the shards of one holder and checks their elements; `gaps` bytes of its memory are no
 * shard's and stay as they were. */
static void check(const rs_shard *shards, size_t count, int64_t gaps)
{
    const size_t first[] = {0, count};
    rs_placement *placement;
    rs_memory memory = {0};
    rs_checkpoint *checkpoint;
    int64_t bytes = 0, all = 0, kept = 0;
    OK(rs_placement_create_list(space, 1, shards, first, &placement));
    OK(rs_memory_allocate(placement, 0, &memory));
    for (size_t k = 0; k < memory.count; k++) {
        memset(memory.regions[k].data, 0xA5, (size_t)memory.regions[k].bytes);
        all += memory.regions[k].bytes;
    }
    OK(rs_checkpoint_open(root, NULL, &checkpoint));
    OK(rs_checkpoint_load(checkpoint, placement, 0, &memory, &bytes));
    assert_true(pattern_check(placement, 0, &memory, 3));
    assert_int_equal(bytes, all - gaps);
    for (size_t k = 0; k < memory.count; k++)
        for (int64_t i = 0; i + 4 <= memory.regions[k].bytes; i += 4) {
            uint32_t word;
            memcpy(&word, (char *)memory.regions[k].data + i, sizeof word);
            kept += word == 0xA5A5A5A5u ? 4 : 0;
        }
    assert_int_equal(kept, gaps);
    rs_checkpoint_close(checkpoint);
    rs_memory_free(&memory);
    rs_placement_destroy(placement);
}

/* The matrix column by column, in more than one read. */
static void test_turned(void **state)
{
    (void)state;
    const rs_shard shard = {.tensor = 0,
        .dtype = RS_DTYPE_F32,
        .box = {.ndim = 2, .offset = {100, 0}, .extent = {1300, 1000}},
        .stride = {4, 1300 * 4}};
    check(&shard, 1, 0);
}

/* Rows with room behind each; an inner box of the cube, turned and spread; the scalar. */
static void test_gaps(void **state)
{
    (void)state;
    const rs_shard shards[] = {{.tensor = 0,
                                   .dtype = RS_DTYPE_F32,
                                   .box = {.ndim = 2, .offset = {0, 1}, .extent = {1500, 998}},
                                   .stride = {1024 * 4, 4}},
        {.tensor = 1,
            .dtype = RS_DTYPE_F32,
            .segment = 1,
            .box = {.ndim = 3, .offset = {0, 1, 2}, .extent = {3, 3, 4}},
            .stride = {4, 12 * 4, 3 * 4}},
        {.tensor = 2, .dtype = RS_DTYPE_F32, .segment = 2, .box = {.ndim = 0}}};
    check(shards, 3, 1499 * 26 * 4);
}

/* A17: wanted is what one of four ranks would have of the flat cube; and another number. */
static void test_flat(void **state)
{
    (void)state;
    for (int64_t wanted = 26; wanted <= 28; wanted++) {
        const rs_role param = {"param", RS_DTYPE_F32, RS_ROLE_MODEL};
        const rs_tensor flat = {.name = "c", .ndim = 1, .shape = {wanted}};
        rs_space *other;
        rs_layout layout;
        rs_placement *placement;
        rs_memory memory = {0};
        rs_checkpoint *checkpoint;
        OK(rs_space_create(&other));
        OK(rs_space_add_role(other, &param, NULL));
        OK(rs_space_add_tensor(other, &flat, NULL));
        OK(rs_layout_parse("dp=1", &layout));
        OK(rs_layout_placement(other, &layout, &placement));
        OK(rs_memory_allocate(placement, 0, &memory));
        OK(rs_checkpoint_open(root, NULL, &checkpoint));
        assert_int_equal(
            rs_checkpoint_load(checkpoint, placement, 0, &memory, NULL), RS_ERR_MISMATCH);
        assert_true((strstr(rs_error_message(),
                         "the checkpoint has [0:3,0:5,0:7]; 105/4 elements are 27: one may be a "
                         "rank's flat shard") != NULL) == (wanted == 27));
        rs_checkpoint_close(checkpoint);
        rs_memory_free(&memory);
        rs_placement_destroy(placement);
        rs_space_destroy(other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turned),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_flat),
    };
    return cmocka_run_group_tests(tests, make, clear);
}
