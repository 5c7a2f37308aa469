/*
 * Checkpoints of reshard's own whose elements one can count: no padding whatever the number of
 * ranks, two that save at once, and manifests that say more than the files hold.
 *
 * A09, A11, A12, J05.
 */
#include "truth.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "ckpt/publish.h"
#include "reshard/layout.h"
#include "reshard/native.h"
#include "support/save.h"

static rs_space *flat_space(int64_t count)
{
    rs_space *space;
    rs_role param = {"param", RS_DTYPE_F32, RS_ROLE_MODEL};
    rs_role moment = {"exp_avg", RS_DTYPE_F32, RS_ROLE_OPTIMIZER};
    rs_tensor p = {.name = "p", .ndim = 1, .shape = {count}};
    OK(rs_space_create(&space));
    OK(rs_space_add_role(space, &param, NULL));
    OK(rs_space_add_role(space, &moment, NULL));
    OK(rs_space_add_tensor(space, &p, NULL));
    return space;
}

/* Element i of a role is 2i or 2i + 1. */
static rs_status number_elements(
    void *context, const rs_placement *placement, int rank, const rs_memory *memory)
{
    rs_shard_list shards = {0};
    (void)context;
    OK(rs_placement_shards(placement, rank, -1, &shards));
    for (size_t k = 0; k < shards.count; k++) {
        float *data = rs_memory_shard(memory, &shards.items[k]);
        for (int64_t i = 0; i < shards.items[k].box.extent[0]; i++)
            data[i] = (float)(2 * (shards.items[k].box.offset[0] + i) + shards.items[k].role);
    }
    rs_shard_list_fini(&shards);
    return RS_OK;
}

/* A11: 1000 elements over 8 ranks, then 6, then 8: no padding anywhere. */
static void test_a11(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "dp=8,zero=1,zero_cut=dim0", "dp=6,zero=1,zero_cut=dim0", "dp=8,zero=1,zero_cut=dim0"};
    static const int64_t largest[] = {125, 167, 125};
    rs_space *space = flat_space(1000);
    char path[600];
    snprintf(path, sizeof path, "%s/flat", scratch_folder());
    for (int i = 0; i < 2; i++) {
        rs_save_name name = {path, 1, "test"};
        rs_native *native;
        rs_layout layout;
        rs_placement *placement;
        OK(save_all(&name, space, texts[i], number_elements, NULL));
        OK(rs_native_open_step(path, 1, &native));
        OK(rs_layout_parse(texts[i + 1], &layout));
        OK(rs_layout_placement(space, &layout, &placement));
        int64_t all = 0;
        for (int r = 0; r < rs_layout_world(&layout); r++) {
            rs_memory memory = {0};
            rs_shard_list shards = {0};
            OK(rs_memory_allocate(placement, r, &memory));
            OK(rs_native_load(native, placement, r, &memory, NULL));
            OK(rs_placement_shards(placement, r, 1, &shards));
            assert_int_equal(shards.count, 1);
            int64_t count = shards.items[0].box.extent[0], first = shards.items[0].box.offset[0];
            const float *data = rs_memory_shard(&memory, &shards.items[0]);
            assert_true(count <= largest[i + 1] && first == all);
            for (int64_t k = 0; k < count; k++)
                assert_true(data[k] == (float)(2 * (first + k) + 1));
            all += count;
            rs_shard_list_fini(&shards);
            rs_memory_free(&memory);
        }
        assert_int_equal(all, 1000);
        rs_placement_destroy(placement);
        rs_native_close(native);
        OK(rs_remove_folder(path));
    }
    rs_space_destroy(space);
}

/* J05: two think that they are the committer: one is, the other gets an error, and what is there
 * verifies. A rank that has not written is named. */
static void test_j05(void **state)
{
    (void)state;
    rs_space *space = flat_space(60);
    char path[600];
    snprintf(path, sizeof path, "%s/twice", scratch_folder());
    static const char layout[] = "dp=3,zero=1,zero_cut=dim0";
    rs_save_name first = {path, 1, "first"}, second = {path, 1, "second"};
    OK(rs_save_prepare(&first));
    OK(rs_save_prepare(&second));
    OK(save_ranks(&first, space, layout, number_elements, NULL));
    assert_int_equal(save_ranks(&second, space, layout, number_elements, NULL), RS_ERR_EXISTS);
    OK(rs_save_abandon(&second));
    assert_int_equal(rs_save_prepare(&second), RS_ERR_EXISTS);
    rs_checkpoint *checkpoint = opened(path);
    OK(rs_checkpoint_check(checkpoint));
    assert_int_equal(rs_checkpoint_warning_count(checkpoint), 0);
    rs_checkpoint_close(checkpoint);
    OK(rs_remove_folder(path));
    rs_space_destroy(space);
}

/* Writes the manifest with another number in it, and the digest that belongs to that. */
static void forge(const char *path, const char *from, const char *to)
{
    size_t length;
    char *text = (char *)slurp(path, &length), digest[64];
    text = realloc(text, length + 64);
    text[length] = '\0';
    char *place = strstr(text, from);
    assert_non_null(place);
    memmove(place + strlen(to), place + strlen(from), strlen(place + strlen(from)) + 1);
    memcpy(place, to, strlen(to));
    size_t body = strlen(text) - 30;
    snprintf(digest, sizeof digest, ",\"digest\":\"%016" PRIx64 "\"}\n",
        (uint64_t)XXH3_64bits(text, body));
    FILE *file = fopen(path, "w");
    assert_true(fwrite(text, 1, body, file) == body && fputs(digest, file) >= 0);
    assert_int_equal(fclose(file), 0);
    free(text);
}

/* A12: a part that runs past the end of its tensor, and one that would be read past the end of its
 * file; A09: two parts that are one element; what is missing. */
static void test_forged(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *why;
    } forgeries[] = {
        {"\"offset\":[40],\"extent\":[20]", "\"offset\":[40],\"extent\":[21]", "a shard lies"},
        {"\"offset\":[40],\"extent\":[20]", "\"offset\":[39],\"extent\":[20]", "is held twice"},
        {"\"offset\":[40],\"extent\":[20]", "\"offset\":[41],\"extent\":[19]", "no file holds"},
        {"\"shape\":[60]", "\"shape\":[61]", "no file holds its elements [60:61]"},
        {"\"shape\":[60]", "\"shape\":[9223372036854775807]", "overflow"},
        {"\"at\":", "\"at\":9", "lies beyond the end"},
    };
    rs_space *space = flat_space(60);
    char path[600], manifest[700];
    snprintf(path, sizeof path, "%s/forged", scratch_folder());
    snprintf(manifest, sizeof manifest, "%s/step-00000001/manifest.json", path);
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        rs_save_name name = {path, 1, "test"};
        OK(save_all(&name, space, "dp=3,zero=1,zero_cut=dim0", number_elements, NULL));
        forge(manifest, forgeries[i].from, forgeries[i].to);
        assert_int_equal(read_everything(path, NULL), RS_ERR_MALFORMED);
        expect_message(forgeries[i].why);
        OK(rs_remove_folder(path));
    }
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a11),
        cmocka_unit_test(test_j05),
        cmocka_unit_test(test_forged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
