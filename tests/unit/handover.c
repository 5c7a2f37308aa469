/*
 * The table of a change of worlds: the ways that it can go, and, over random orders of events, what
 * must hold in every one of them. And layouts by number of ranks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "elastic/handover.h"
#include "elastic/scale.h"
#include "pattern.h"
#include "support/random.h"

static void the_good_way(void **unused)
{
    (void)unused;
    static const struct {
        rs_handover_event event;
        rs_handover_state state;
        unsigned actions;
    } way[] = {{RS_HANDOVER_WANTED, RS_HANDOVER_HOLDING, RS_DO_HOLD},
        {RS_HANDOVER_HELD, RS_HANDOVER_BUILDING, RS_DO_START},
        {RS_HANDOVER_READY, RS_HANDOVER_QUIESCING, RS_DO_QUIESCE},
        {RS_HANDOVER_QUIESCED, RS_HANDOVER_PULLING, RS_DO_PULL},
        {RS_HANDOVER_CERTIFIED, RS_HANDOVER_COMMITTING, RS_DO_COMMIT},
        {RS_HANDOVER_COMMITTED, RS_HANDOVER_LEAVING, RS_DO_TRAIN | RS_DO_LEAVE},
        {RS_HANDOVER_OLD_GONE, RS_HANDOVER_IDLE, RS_DO_DROP_OLD | RS_DO_TELL_DONE}};
    rs_handover h = {0};
    for (size_t i = 0; i < sizeof way / sizeof *way; i++) {
        assert_int_equal(rs_handover_take(&h, way[i].event), way[i].actions);
        assert_int_equal(h.state, way[i].state);
    }
}

static void alone(void **unused)
{
    (void)unused;
    rs_handover h = {0};
    assert_int_equal(rs_handover_take(&h, RS_HANDOVER_BEREFT), RS_DO_START);
    assert_int_equal(rs_handover_take(&h, RS_HANDOVER_READY), RS_DO_PULL);
    assert_int_equal(h.state, RS_HANDOVER_PULLING);
    assert_int_equal(rs_handover_take(&h, RS_HANDOVER_CERTIFIED), RS_DO_COMMIT);
    assert_int_equal(rs_handover_take(&h, RS_HANDOVER_COMMITTED),
        RS_DO_TRAIN | RS_DO_DROP_OLD | RS_DO_TELL_DONE);
    assert_int_equal(h.state, RS_HANDOVER_IDLE);
    assert_false(h.alone);
}

/* An old world that dies while it sleeps does not stop the pull. */
static void the_sleeper_dies(void **unused)
{
    (void)unused;
    rs_handover h = {.state = RS_HANDOVER_PULLING};
    assert_int_equal(rs_handover_take(&h, RS_HANDOVER_OLD_GONE), 0);
    assert_int_equal(h.state, RS_HANDOVER_PULLING);
    assert_int_equal(rs_handover_take(&h, RS_HANDOVER_CERTIFIED), RS_DO_COMMIT);
    assert_int_equal(rs_handover_take(&h, RS_HANDOVER_COMMITTED),
        RS_DO_TRAIN | RS_DO_DROP_OLD | RS_DO_TELL_DONE);
}

/* What the two worlds are in, as far as the actions say. */
typedef struct course {
    bool held;    /* the old world was asked to hold and has not been let go */
    bool started; /* processes of the new world may live */
    bool certified;
    bool committed;
    bool trains; /* the new world */
    bool left;   /* the old one was told to leave */
} course;

static void apply(course *m, unsigned actions)
{
    if (actions & RS_DO_HOLD) {
        assert_false(m->held);
        m->held = true;
    }
    if (actions & RS_DO_START)
        m->started = true;
    if (actions & RS_DO_COMMIT) {
        assert_true(m->certified);
        m->committed = true;
    }
    if (actions & RS_DO_TRAIN) {
        assert_true(m->committed && m->started && !m->trains);
        m->trains = true;
    }
    if (actions & RS_DO_LEAVE) {
        assert_true(m->trains && m->held);
        m->held = false;
        m->left = true;
    }
    if (actions & RS_DO_RELEASE) {
        assert_true(m->held && !m->trains);
        m->held = false;
    }
    if (actions & RS_DO_END_NEW)
        assert_true(m->started && !m->trains);
    if (actions & RS_DO_DROP_NEW)
        assert_false(m->started || m->trains);
    if (actions & RS_DO_DROP_OLD)
        assert_true(m->trains);
    /* Somebody is told once, and one thing. */
    assert_false((actions & RS_DO_TELL_DONE) && (actions & RS_DO_TELL_FAILED));
}

/* What leads on from each state. */
static const rs_handover_event usual[RS_HANDOVER_STATES] = {RS_HANDOVER_WANTED, RS_HANDOVER_HELD,
    RS_HANDOVER_READY, RS_HANDOVER_QUIESCED, RS_HANDOVER_CERTIFIED, RS_HANDOVER_COMMITTED,
    RS_HANDOVER_OLD_GONE, RS_HANDOVER_NEW_GONE};

static void in_any_order(void **unused)
{
    (void)unused;
    uint64_t random = 17;
    int ended[2] = {0, 0};
    for (int trial = 0; trial < 20000; trial++) {
        rs_handover h = {0};
        course m = {0};
        apply(&m, rs_handover_take(&h, RS_HANDOVER_WANTED));
        bool old_gone = false;
        for (int i = 0; i < 40 && h.state != RS_HANDOVER_IDLE; i++) {
            rs_handover_event event = usual[h.state];
            if (random_in(&random, 0, 2) == 0)
                event =
                    (rs_handover_event)random_in(&random, RS_HANDOVER_HELD, RS_HANDOVER_EVENTS - 1);
            if (event == RS_HANDOVER_NEW_GONE && (!m.started || m.trains))
                continue;
            if (event == RS_HANDOVER_OLD_GONE && old_gone)
                continue;
            /* The commit follows the certificate, at once. */
            if (event == RS_HANDOVER_COMMITTED && !m.committed)
                continue;
            if (event == RS_HANDOVER_CERTIFIED && h.state == RS_HANDOVER_PULLING)
                m.certified = true;
            if (event == RS_HANDOVER_NEW_GONE)
                m.started = false;
            if (event == RS_HANDOVER_REFUSED && h.state == RS_HANDOVER_HOLDING)
                m.held = false; /* it has never held */
            if (event == RS_HANDOVER_OLD_GONE) {
                old_gone = true;
                m.held = m.held && h.state == RS_HANDOVER_LEAVING;
            }
            unsigned actions = rs_handover_take(&h, event);
            if (old_gone)
                assert_int_equal(actions & (RS_DO_RELEASE | RS_DO_LEAVE | RS_DO_HOLD), 0);
            apply(&m, actions);
            if (h.state == RS_HANDOVER_IDLE) {
                ended[m.trains]++;
                assert_true(m.trains ? (actions & RS_DO_TELL_DONE) != 0
                                     : (actions & RS_DO_TELL_FAILED) != 0);
            }
        }
        if (h.state != RS_HANDOVER_IDLE)
            continue;
        assert_false(m.held);
        assert_true(m.trains || !m.started);
        assert_false(h.alone);
    }
    assert_true(ended[0] > 1000 && ended[1] > 100);
}

static void expect_scaled(
    const rs_space *space, const char *from, int ranks, const char *wanted, bool within)
{
    rs_layout layout, out;
    char text[RS_LAYOUT_TEXT];
    assert_int_equal(rs_layout_parse(from, &layout), RS_OK);
    rs_status status = within ? rs_scale_within(&layout, space, ranks, &out)
                              : rs_scale_to(&layout, space, ranks, &out);
    if (wanted == NULL) {
        assert_int_equal(status, RS_ERR_ARGUMENT);
        return;
    }
    assert_int_equal(status, RS_OK);
    assert_string_equal(rs_layout_format(&out, text), wanted);
}

static void the_nearest_layout(void **unused)
{
    (void)unused;
    rs_space *space;
    rs_model model = pattern_model();
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    expect_scaled(space, "tp=2", 4, "tp=2,dp=2", false);
    expect_scaled(space, "tp=2,dp=2", 3, "dp=3", false);
    expect_scaled(space, "dp=3", 7, "dp=7", false);
    expect_scaled(space, "tp=2,pp=2,dp=2,zero=1", 4, "tp=2,pp=2,zero=1", false);
    expect_scaled(space, "tp=2,pp=2,dp=2,zero=1", 6, "tp=2,dp=3,zero=1", false);
    expect_scaled(space, "tp=2", 2, NULL, false);
    expect_scaled(space, "tp=2,dp=4", 7, "tp=2,dp=3", true);
    expect_scaled(space, "tp=2,pp=2,dp=2", 7, "tp=2,pp=2", true);
    expect_scaled(space, "tp=2,pp=2,dp=2", 3, "tp=2", true);
    expect_scaled(space, "tp=2", 1, "dp=1", true);
    int ranks;
    assert_int_equal(rs_scale_parse("+2", 3, &ranks), RS_OK);
    assert_int_equal(ranks, 5);
    assert_int_equal(rs_scale_parse("-2", 3, &ranks), RS_OK);
    assert_int_equal(ranks, 1);
    assert_int_equal(rs_scale_parse("7", 3, &ranks), RS_OK);
    assert_int_equal(ranks, 7);
    assert_int_equal(rs_scale_parse("-3", 3, &ranks), RS_ERR_ARGUMENT);
    assert_int_equal(rs_scale_parse("two", 3, &ranks), RS_ERR_ARGUMENT);
    assert_int_equal(rs_scale_parse("99999999", 3, &ranks), RS_ERR_ARGUMENT);
    rs_space_destroy(space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_good_way),
        cmocka_unit_test(alone),
        cmocka_unit_test(the_sleeper_dies),
        cmocka_unit_test(in_any_order),
        cmocka_unit_test(the_nearest_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
