/* The staging pool: blocks never overlap, stay within the capacity, and come back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "move/staging.h"

static void blocks_do_not_overlap(void **state)
{
    (void)state;
    rs_staging pool;
    struct {
        unsigned char *data;
        int64_t bytes;
    } held[RS_STAGING_BLOCKS] = {{0}};
    uint64_t seed = 3;
    assert_int_equal(rs_staging_init(&pool, 100000), RS_OK);
    int refused = 0;
    for (int round = 0; round < 20000; round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int slot = (int)(seed >> 40) % RS_STAGING_BLOCKS;
        int64_t bytes = (int64_t)(seed >> 33) % 4000;
        if (held[slot].data != NULL) {
            for (int64_t k = 0; k < held[slot].bytes; k++)
                assert_int_equal(held[slot].data[k], slot);
            rs_staging_give(&pool, (char *)held[slot].data);
            held[slot].data = NULL;
            continue;
        }
        held[slot].data = (unsigned char *)rs_staging_take(&pool, bytes);
        held[slot].bytes = bytes;
        if (held[slot].data == NULL) {
            refused++;
            continue;
        }
        assert_int_equal((uintptr_t)held[slot].data % 16, 0);
        memset(held[slot].data, slot, (size_t)bytes);
        assert_true(pool.used <= pool.capacity && pool.most >= pool.used);
    }
    assert_true(refused > 100);
    for (int slot = 0; slot < RS_STAGING_BLOCKS; slot++)
        rs_staging_give(&pool, (char *)held[slot].data);
    assert_int_equal(pool.used, 0);
    /* An empty pool has room for all of its capacity, and not for more. */
    assert_null(rs_staging_take(&pool, 100033));
    char *all = rs_staging_take(&pool, 100000);
    assert_non_null(all);
    assert_null(rs_staging_take(&pool, 64));
    rs_staging_give(&pool, all);
    rs_staging_give(&pool, NULL);
    rs_staging_fini(&pool);
}

static void empty_pools_are_fine(void **state)
{
    (void)state;
    rs_staging pool;
    assert_int_equal(rs_staging_init(&pool, 0), RS_OK);
    assert_null(rs_staging_take(&pool, 1));
    rs_staging_fini(&pool);
    assert_int_equal(rs_staging_init(&pool, INT64_MAX), RS_ERR_OVERFLOW);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_do_not_overlap),
        cmocka_unit_test(empty_pools_are_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
