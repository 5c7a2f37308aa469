/* What a job survives: each rule, and that none gets in another's way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "elastic/survival.h"

#define MOST 10

/* A death of `rank` in the step after `step`, by its own fault or not. */
static rs_fate die(rs_survival *s, int rank, int64_t step, bool own)
{
    rs_death death = {.step = step, .rank = rank, .own = own, .began = true};
    return rs_survival_take(s, &death, MOST);
}

static void kills_are_survived_alike(void **unused)
{
    (void)unused;
    rs_survival s = {0};
    /* Even the same step again and again: nobody's fault. */
    for (int i = 0; i < MOST; i++)
        assert_int_equal(die(&s, 1, 7, false), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 1, 7, false), RS_FATE_TOO_OFTEN);
}

static void good_steps_forgive(void **unused)
{
    (void)unused;
    rs_survival s = {0};
    for (int64_t i = 0; i < 30; i++)
        assert_int_equal(die(&s, 0, 100 * (i + 1), false), RS_FATE_ALIKE);
    assert_int_equal(s.restarts, 1);
    assert_int_equal(die(&s, 0, 3000 + 99, false), RS_FATE_ALIKE);
    assert_int_equal(s.restarts, 2);
}

static void none_may_be_allowed(void **unused)
{
    (void)unused;
    rs_survival s = {0};
    rs_death death = {.step = 3, .rank = 0, .began = true};
    assert_int_equal(rs_survival_take(&s, &death, 0), RS_FATE_TOO_OFTEN);
}

static void a_step_dies_twice(void **unused)
{
    (void)unused;
    rs_survival s = {0};
    assert_int_equal(die(&s, 1, 4, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 0, 4, true), RS_FATE_SAME_STEP); /* whichever rank it is */

    s = (rs_survival){0}; /* a kill between, or another step: not twice in a row */
    assert_int_equal(die(&s, 1, 4, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 1, 4, false), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 1, 4, true), RS_FATE_ALIKE);
    s = (rs_survival){0};
    assert_int_equal(die(&s, 1, 4, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 1, 5, true), RS_FATE_ALIKE);

    s = (rs_survival){0}; /* not while a world gets ready: the step had not begun */
    rs_death early = {.step = 4, .rank = 1, .own = true};
    assert_int_equal(die(&s, 1, 4, true), RS_FATE_ALIKE);
    assert_int_equal(rs_survival_take(&s, &early, MOST), RS_FATE_ALIKE);
}

static void a_slot_dies_three_times(void **unused)
{
    (void)unused;
    rs_survival s = {0};
    assert_int_equal(die(&s, 2, 10, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 2, 15, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 2, 20, true), RS_FATE_WITHOUT_SLOT);
    /* The others have new numbers: it begins anew. */
    assert_int_equal(die(&s, 2, 21, true), RS_FATE_ALIKE);

    s = (rs_survival){0}; /* the window slides */
    assert_int_equal(die(&s, 2, 10, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 2, 19, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 2, 21, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 2, 29, true), RS_FATE_WITHOUT_SLOT);

    s = (rs_survival){0}; /* what others do does not matter; who is not known does not count */
    assert_int_equal(die(&s, 2, 10, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 1, 11, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 2, 12, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, -1, 13, true), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 2, 14, false), RS_FATE_ALIKE);
    assert_int_equal(die(&s, 2, 15, true), RS_FATE_WITHOUT_SLOT);
}

static void pauses_double(void **unused)
{
    (void)unused;
    static const double wanted[] = {0, 0.5, 1, 2, 4, 8, 16, 30, 30, 30};
    rs_survival s = {0};
    for (int i = 0; i < MOST; i++) {
        assert_int_equal(die(&s, 0, 7, false), RS_FATE_ALIKE);
        assert_true(rs_survival_pause(&s) == wanted[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kills_are_survived_alike),
        cmocka_unit_test(good_steps_forgive),
        cmocka_unit_test(none_may_be_allowed),
        cmocka_unit_test(a_step_dies_twice),
        cmocka_unit_test(a_slot_dies_three_times),
        cmocka_unit_test(pauses_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
