/* Dropout by a counter: as documented, however the elements are cut up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "train/dropout.h"

#define COUNT 100000

/* Written anew from dropout.h and init.h. */
static uint64_t stir(uint64_t z)
{
    z ^= z >> 30;
    z *= 0xbf58476d1ce4e5b9u;
    z ^= z >> 27;
    z *= 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t key_of(uint64_t seed, const char *name, uint64_t step)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return stir(stir(stir(seed) + hash) + step);
}

static void elements_are_dropped_as_documented(void **state)
{
    (void)state;
    float in[64], out[64];
    uint64_t key = rs_dropout_key(7, RS_DROPOUT_MLP, 3);
    assert_true(key == key_of(7, "layers.mlp.dropout", 3));
    for (int i = 0; i < 64; i++)
        in[i] = (float)(i + 1);
    rs_dropout_apply(key, 0.25f, 1000, 64, in, out);
    int dropped = 0;
    for (int i = 0; i < 64; i++) {
        uint64_t bits = stir(key + (uint64_t)(1000 + i + 1) * 0x9e3779b97f4a7c15u);
        bool gone = (double)(bits >> 40) / 16777216.0 < 0.25;
        assert_true(out[i] == (gone ? 0 : in[i] * (1 / (1 - 0.25f))));
        dropped += gone;
    }
    assert_true(dropped > 5 && dropped < 30);
}

static void parts_drop_what_the_whole_does(void **state)
{
    (void)state;
    float *in = malloc(COUNT * sizeof *in), *whole = malloc(COUNT * sizeof *whole);
    float *parts = malloc(COUNT * sizeof *parts);
    uint64_t key = rs_dropout_key(1, RS_DROPOUT_ATTENTION, 1);
    int64_t dropped = 0;
    for (int64_t i = 0; i < COUNT; i++)
        in[i] = 1;
    rs_dropout_apply(key, 0.1f, 5, COUNT, in, whole);
    memcpy(parts, in, COUNT * sizeof *in);
    for (int64_t done = 0, n = 1; done < COUNT; done += n, n = 3 * n % 997 + 1) {
        n = n < COUNT - done ? n : COUNT - done;
        rs_dropout_apply(key, 0.1f, 5 + done, n, parts + done, parts + done);
    }
    assert_memory_equal(whole, parts, COUNT * sizeof *whole);
    for (int64_t i = 0; i < COUNT; i++)
        dropped += whole[i] == 0;
    assert_true(fabs((double)dropped / COUNT - 0.1) < 0.004);
    free(parts);
    free(whole);
    free(in);
}

static void keys_tell_everything_apart(void **state)
{
    (void)state;
    uint64_t keys[] = {rs_dropout_key(1, RS_DROPOUT_MLP, 1), rs_dropout_key(2, RS_DROPOUT_MLP, 1),
        rs_dropout_key(1, RS_DROPOUT_MLP, 2), rs_dropout_key(1, RS_DROPOUT_ATTENTION, 1)};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            assert_true(keys[i] != keys[k]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_dropped_as_documented),
        cmocka_unit_test(parts_drop_what_the_whole_does),
        cmocka_unit_test(keys_tell_everything_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
