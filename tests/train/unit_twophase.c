/*
 * An update that is cut off, at every instant and in every piece, and taken up again: the state is
 * bit for bit that of an update that was not. A child process is killed at a crash point; the
 * parent, which maps the same arena and ledger, goes on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/crash.h"
#include "reshard/model.h"
#include "reshard/optimizer.h"
#include "support/keeper.h"
#include "train/muon.h"
#include "train/twophase.h"

#ifdef RS_CRASH_POINTS

static int generation;

/* One rank of a job, with a gradient and directions in its ledger. */
typedef struct rank {
    rs_space *space;
    rs_state state;
    const rs_optimizer *optimizer;
    rs_runs gradients;
    rs_runs directions;
    rs_step_note note;
} rank;

static void begin(rank *r, const char *model, rs_dtype dtype, const char *optimizer,
    const char *layout_text, int number)
{
    rs_model description;
    rs_layout layout;
    char path[512];
    memset(r, 0, sizeof *r);
    r->optimizer = rs_optimizer_find(optimizer);
    assert_non_null(r->optimizer);
    snprintf(path, sizeof path, RS_TRAIN_DIR "/models/%s", model);
    assert_int_equal(rs_model_load(path, &description), RS_OK);
    rs_training training = {.optimizer = optimizer};
    assert_int_equal(rs_training_space(&description, dtype, &training, &r->space), RS_OK);
    assert_int_equal(rs_layout_parse(layout_text, &layout), RS_OK);
    assert_int_equal(rs_state_init(r->space, &layout, number, NULL, &r->state), RS_OK);
    assert_int_equal(
        rs_state_allocate(&r->state, keeper, ++generation, NULL, NULL, 0, false), RS_OK);
    assert_int_equal(
        rs_twophase_begin(&r->state, r->optimizer, keeper, generation, 3, false), RS_OK);
    float *work = rs_ledger_work(r->state.ledger);
    int64_t floats = rs_ledger_shape_of(r->state.ledger)->work_bytes / (int64_t)sizeof *work;
    for (int64_t i = 0; i < floats; i++)
        work[i] =
            (float)(int64_t)((uint64_t)i * 0x9e3779b97f4a7c15u >> 40) / (float)(1 << 24) - 0.5f;
    assert_int_equal(rs_twophase_gradients(&r->state, work, &r->gradients), RS_OK);
    float *directions = NULL;
    assert_int_equal(rs_twophase_directions(&r->state, &directions), RS_OK);
    assert_int_equal(rs_muon_runs(&r->state, r->optimizer, directions, &r->directions), RS_OK);
    r->note.rate = (rs_update_rate){1, 1e-2f, 0.5f, 0};
}

static void end(rank *r)
{
    rs_runs_fini(&r->gradients);
    rs_runs_fini(&r->directions);
    int number = r->state.rank;
    rs_state_fini(&r->state);
    rs_space_destroy(r->space);
    assert_int_equal(rs_arena_delete(keeper, generation, number, NULL), RS_OK);
}

/* The state before step 1, ready for it. */
static void rewind_to_start(rank *r)
{
    assert_int_equal(rs_state_fill(&r->state, 5), RS_OK);
    const rs_memory *memory = rs_state_memory(&r->state);
    const rs_roles *roles = &r->state.roles;
    for (int role = 0; role < rs_space_role_count(r->space); role++)
        for (size_t i = 0;
             role != roles->param && role != roles->master && i < r->state.runs[role].count; i++) {
            const rs_run *run = &r->state.runs[role].items[i];
            memset(run->data, 0, (size_t)(run->end - run->begin) * sizeof(float));
        }
    assert_true(memory->count > 0);
    rs_ledger_settle(r->state.ledger, 0);
    rs_twophase_ready(&r->state, &r->note);
}

/* What a rank, or recovery, does in the second phase. */
static void apply(rank *r)
{
    rs_update *update;
    rs_step_note note;
    assert_int_equal(rs_update_create(&r->state, r->optimizer, &r->gradients, &update), RS_OK);
    rs_update_set_directions(update, &r->directions);
    if (rs_ledger_get(r->state.ledger, RS_LEDGER_UPDATING) == 1)
        assert_int_equal(rs_update_check(update), RS_OK);
    assert_true(rs_ledger_read_note(r->state.ledger, 1, &note, sizeof note));
    rs_update_apply(update, &note.rate);
    rs_twophase_stepped(&r->state, 1);
    rs_update_round(update);
    rs_update_destroy(update);
}

/* In a child that is killed at the `visit`-th pass of a point; false: it was not. */
static bool apply_killed(rank *r, const char *point, int visit)
{
    char crash[64];
    int status;
    snprintf(crash, sizeof crash, "%s:0:1:%d", point, visit);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("RESHARD_CRASH", crash, 1);
        rs_crash_begin(0);
        rs_crash_step(1);
        apply(r);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status))
        assert_int_equal(WTERMSIG(status), SIGKILL);
    else
        assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status);
}

static void cut_off(const char *model, rs_dtype dtype, const char *optimizer, const char *layout,
    int number, int stride)
{
    static const char *const points[] = {
        "begun", "journal", "opened", "changed", "closed", "stepped", "derive"};
    rank r;
    begin(&r, model, dtype, optimizer, layout, number);
    rewind_to_start(&r);
    uint64_t before = rs_state_hash(&r.state);
    apply(&r);
    uint64_t after = rs_state_hash(&r.state);
    assert_true(before != after);
    int kills = 0;
    for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
        for (int visit = 1;; visit += stride) {
            rewind_to_start(&r);
            assert_true(rs_state_hash(&r.state) == before);
            if (!apply_killed(&r, points[p], visit))
                break;
            kills++;
            /* Recovery itself is killed, twice at other places, then completes. */
            apply_killed(&r, "changed", 2);
            apply_killed(&r, "opened", 1);
            apply(&r);
            if (rs_state_hash(&r.state) != after)
                fail_msg("%s %s %s, killed at %s, visit %d: the state differs", model, optimizer,
                    layout, points[p], visit);
        }
    }
    assert_true(kills > 10);
    end(&r);
}

static void adamw_is_cut_off(void **state)
{
    (void)state;
    cut_off("qwen2-small", RS_DTYPE_F32, "adamw", "dp=1", 0, 7);
    cut_off("llama-uneven", RS_DTYPE_F32, "adamw", "tp=2,dp=2,zero=1", 3, 3);
}

static void bfloat16_is_cut_off(void **state)
{
    (void)state;
    cut_off("qwen3-small", RS_DTYPE_BF16, "adamw", "dp=2,zero=3", 1, 5);
}

static void other_optimizers_are_cut_off(void **state)
{
    (void)state;
    cut_off("llama-uneven", RS_DTYPE_F32, "sgd", "dp=2,zero=2", 0, 5);
    cut_off("llama-uneven", RS_DTYPE_F32, "muon", "tp=2", 1, 5);
}

/* A journal of another cut into pieces, or with impossible progress, is refused. */
static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    rank r;
    rs_update *update;
    begin(&r, "llama-uneven", RS_DTYPE_F32, "adamw", "dp=1", 0);
    assert_int_equal(rs_ledger_set_pieces(r.state.ledger, 12345), RS_OK);
    assert_int_equal(
        rs_update_create(&r.state, r.optimizer, &r.gradients, &update), RS_ERR_MISMATCH);
    end(&r);
    begin(&r, "llama-uneven", RS_DTYPE_F32, "adamw", "dp=1", 0);
    rewind_to_start(&r);
    apply(&r);
    assert_int_equal(rs_update_create(&r.state, r.optimizer, &r.gradients, &update), RS_OK);
    assert_int_equal(rs_update_check(update), RS_OK);
    rs_ledger_begin_slot(r.state.ledger, 2, 0, 1000000);
    assert_int_equal(rs_update_check(update), RS_ERR_MALFORMED);
    rs_ledger_begin_slot(r.state.ledger, 2, 0, 0);
    assert_int_equal(rs_update_check(update), RS_ERR_MALFORMED);
    rs_update_destroy(update);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_is_cut_off),
        cmocka_unit_test(bfloat16_is_cut_off),
        cmocka_unit_test(other_optimizers_are_cut_off),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, open_keeper, close_keeper);
}

#else

int main(void)
{
    return 77;
}

#endif
