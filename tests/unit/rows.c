/* The stage whose rows are divided over tp and whose tokens are divided over cp, one thread a rank,
 * against the stage on one rank; and the division of a sequence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "train/kernels.h"
#include "train/sequence.h"
#include "unit/stage_ranks.h"

#define MOST 4 /* ranks of a group */

/* ---- the division of a sequence ---- */

static void test_positions(void **state)
{
    (void)state;
    for (int64_t tokens = 1; tokens <= 40; tokens++)
        for (int ranks = 1; ranks <= 7; ranks++) {
            int holders[40] = {0};
            int64_t least = INT64_MAX, most = 0;
            for (int r = 0; r < ranks; r++) {
                rs_sequence s = {tokens, ranks, r};
                rs_positions at[2];
                uint8_t bytes[80];
                int64_t work = 0, own = 0;
                rs_sequence_positions(&s, r, at);
                for (int part = 0; part < 2; part++)
                    for (int64_t p = at[part].begin; p < at[part].end; p++, own++) {
                        holders[p]++;
                        work += p + 1;
                    }
                assert_int_equal(own, rs_sequence_own(&s, r));
                assert_true(at[0].end <= at[1].begin);
                assert_true(at[0].end < at[1].begin || at[1].begin == at[1].end);
                least = work < least ? work : least;
                most = work > most ? work : most;
                /* Two sequences, picked in place: positions, then positions + 100. */
                for (int64_t i = 0; i < 2 * tokens; i++)
                    bytes[i] = (uint8_t)(i < tokens ? i : i - tokens + 100);
                rs_sequence_pick(&s, 2, bytes, bytes);
                for (int64_t i = 0, p = 0; p < tokens; p++)
                    if ((p >= at[0].begin && p < at[0].end) ||
                        (p >= at[1].begin && p < at[1].end)) {
                        assert_int_equal(bytes[i], p);
                        assert_int_equal(bytes[own + i++], p + 100);
                    }
            }
            for (int64_t p = 0; p < tokens; p++)
                assert_int_equal(holders[p], 1);
            /* A part more or less by one token, at either end. */
            assert_true(most - least <= 2 * tokens);
        }
}

/* ---- groups of threads ---- */

typedef struct group {
    int ranks;
    pthread_barrier_t barrier;
    float *values[MOST];
    int64_t sizes[MOST];
    float *result;
} group;

typedef struct seat {
    group *group;
    int rank;
    int *calls; /* of the rank, in all groups */
} seat;

typedef enum { SUM, MAXIMUM, SCATTER, GATHER } operation;

static float combined(const group *g, operation what, int64_t i)
{
    float value = g->values[0][i];
    for (int r = 1; r < g->ranks; r++)
        value = what == MAXIMUM ? fmaxf(value, g->values[r][i]) : value + g->values[r][i];
    return value;
}

/* All ranks meet with as many values; each gets its part of the result. */
static rs_status meet(seat *s, operation what, float *values, int64_t count, const int64_t *bounds)
{
    group *g = s->group;
    rs_status status = RS_OK;
    g->values[s->rank] = values;
    g->sizes[s->rank] = count;
    ++*s->calls;
    pthread_barrier_wait(&g->barrier);
    for (int r = 0; r < g->ranks; r++)
        status = g->sizes[r] == count ? status : RS_ERR_PEER;
    if (s->rank == 0 && status == RS_OK) {
        g->result = malloc((size_t)count * sizeof *g->result);
        for (int64_t i = 0, owner = 0; i < count; i++) {
            while (what == GATHER && i >= bounds[owner + 1])
                owner++;
            g->result[i] = what == GATHER ? g->values[owner][i] : combined(g, what, i);
        }
    }
    pthread_barrier_wait(&g->barrier);
    int64_t begin = what == SCATTER ? bounds[s->rank] : 0;
    int64_t end = what == SCATTER ? bounds[s->rank + 1] : count;
    for (int64_t i = 0; i < count && status == RS_OK; i++)
        values[i] = i >= begin && i < end ? g->result[i] : NAN; /* nobody may use the rest */
    pthread_barrier_wait(&g->barrier);
    if (s->rank == 0 && status == RS_OK)
        free(g->result);
    return status;
}

static rs_status seat_sum(void *context, float *values, int64_t count)
{
    return meet(context, SUM, values, count, NULL);
}

static rs_status seat_maximum(void *context, float *values, int64_t count)
{
    return meet(context, MAXIMUM, values, count, NULL);
}

static rs_status seat_scatter(void *context, float *values, const int64_t *bounds)
{
    seat *s = context;
    return meet(s, SCATTER, values, bounds[s->group->ranks], bounds);
}

static rs_status seat_gather(void *context, float *values, const int64_t *bounds)
{
    seat *s = context;
    return meet(s, GATHER, values, bounds[s->group->ranks], bounds);
}

/* ---- ranks ---- */

typedef struct member {
    seat tp;
    seat cp;
    int calls;
    rs_stage_shape shape;
    const decoder *whole_weights;
    const rs_stage_shape *whole_of;
    int64_t batch;
    uint8_t *tokens;
    uint8_t *targets;
    decoder weights;
    decoder gradients;
    double loss;
    rs_status status;
} member;

/* Two stages where the shape has layers enough: what one hands to the other are its own rows. */
static void *run_member(void *argument)
{
    member *m = argument;
    m->tp.calls = m->cp.calls = &m->calls;
    const rs_stage_tp tp = {.context = &m->tp,
        .sum = m->shape.tp_ranks > 1 ? seat_sum : NULL,
        .maximum = m->shape.tp_ranks > 1 ? seat_maximum : NULL,
        .pieces = {&m->tp, seat_sum, seat_scatter, seat_gather},
        .cp = {&m->cp, seat_sum, seat_scatter, seat_gather}};
    int64_t middle = m->shape.layer_end / 2;
    size_t floats = (size_t)(rs_stage_rows(&m->shape, m->batch) * m->shape.model.hidden);
    float *between = malloc(floats * sizeof *between);
    rs_stage_shape shapes[2] = {m->shape, m->shape};
    rs_stage *stages[2] = {NULL, NULL};
    shapes[0].layer_end = shapes[1].layer_begin = middle;
    shapes[0].last = shapes[1].first = false;
    m->weights = decoder_create(&m->shape, 0);
    m->gradients = decoder_create(&m->shape, 0);
    slice(m->whole_weights, m->whole_of, &m->weights, &m->shape);
    rs_stage_tensors w[2] = {m->weights.tensors, m->weights.tensors};
    rs_stage_tensors g[2] = {m->gradients.tensors, m->gradients.tensors};
    w[1].layers += middle;
    g[1].layers += middle;
    m->status = RS_OK;
    for (int i = 0; i < 2 && m->status == RS_OK; i++)
        m->status = rs_stage_create(&shapes[i], &tp, &stages[i]);
    for (int i = 0; i < 2 && m->status == RS_OK; i++)
        m->status = rs_stage_forward(stages[i], &w[i], 0, m->batch, m->tokens, m->targets,
            i > 0 ? between : NULL, between, &m->loss);
    for (int i = 1; i >= 0 && m->status == RS_OK; i--)
        m->status =
            rs_stage_backward(stages[i], &w[i], &g[i], 0, 0.5f, between, i > 0 ? between : NULL);
    rs_stage_destroy(stages[0]);
    rs_stage_destroy(stages[1]);
    free(between);
    return NULL;
}

static rs_stage_shape member_shape(
    const rs_stage_shape *whole, int tp, int tp_rank, int cp, int cp_rank, bool sp)
{
    rs_stage_shape s = tp_shape(whole, tp, tp_rank);
    s.tp_rank = tp_rank;
    s.tp_ranks = tp;
    s.cp_rank = cp_rank;
    s.cp_ranks = cp;
    s.sp = sp;
    return s;
}

/* Every tp rank has the whole of it, and, without sp, its whole gradient. */
static bool is_whole(const field *f)
{
    return f->rows == ONE && f->columns == HIDDEN;
}

typedef struct trial {
    const rs_model *model;
    int tp;
    int cp;
    bool sp;
    int64_t seq;
    int64_t batch;
} trial;

static void start_members(const trial *t, member *members, group *groups, const decoder *weights,
    const rs_stage_shape *shape, const uint8_t *tokens, const uint8_t *targets)
{
    for (int i = 0; i < t->tp * t->cp; i++) {
        int tp = i % t->tp, cp = i / t->tp;
        size_t bytes = (size_t)(t->seq * t->batch);
        member *m = &members[i];
        *m = (member){.tp = {&groups[cp], tp, NULL},
            .cp = {&groups[MOST + tp], cp, NULL},
            .shape = member_shape(shape, t->tp, tp, t->cp, cp, t->sp),
            .whole_weights = weights,
            .whole_of = shape,
            .batch = t->batch,
            .tokens = malloc(bytes),
            .targets = malloc(bytes)};
        rs_sequence s = {t->seq, t->cp, cp};
        rs_sequence_pick(&s, t->batch, tokens, m->tokens);
        rs_sequence_pick(&s, t->batch, targets, m->targets);
    }
}

static void run_members(const trial *t, member *members)
{
    pthread_t threads[MOST * MOST];
    for (int i = 0; i < t->tp * t->cp; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_member, &members[i]), 0);
    for (int i = 0; i < t->tp * t->cp; i++)
        pthread_join(threads[i], NULL);
}

/* Loss, and every gradient: summed over cp, and over tp where ranks have parts. */
static void collect(
    const trial *t, member *members, const rs_stage_shape *shape, decoder *got, double *loss)
{
    *loss = 0;
    for (int i = 0; i < t->tp * t->cp; i++) {
        member *m = &members[i];
        assert_int_equal(m->status, RS_OK);
        assert_int_equal(m->calls, members[0].calls);
        assert_true(m->loss == members[i / t->tp * t->tp].loss);
        *loss += i % t->tp == 0 ? m->loss : 0;
        for (int f = 0; f < FIELDS; f++)
            if (t->sp || i % t->tp == 0 || !is_whole(&fields[f]))
                copy_part(got, shape, &m->gradients, &m->shape, f, false, true);
        decoder_destroy(&m->weights);
        decoder_destroy(&m->gradients);
        free(m->tokens);
        free(m->targets);
    }
}

static void check(const trial *t)
{
    int64_t count = t->seq * t->batch;
    uint8_t *tokens = malloc((size_t)count), *targets = malloc((size_t)count);
    random_bytes(3, t->model->vocab, count, tokens);
    random_bytes(4, t->model->vocab, count, targets);
    rs_stage_shape shape = whole_shape(t->model, t->seq, t->batch, 1);
    decoder weights = random_decoder(&shape, 5);
    decoder wanted = decoder_create(&shape, 0);
    decoder got = decoder_create(&shape, 0);
    double wanted_loss = run_whole(&shape, &weights, &wanted, t->batch, tokens, targets, 0.5f);
    double loss;
    group groups[2 * MOST];
    member members[MOST * MOST];
    for (int i = 0; i < 2 * MOST; i++) {
        groups[i] = (group){.ranks = i < MOST ? t->tp : t->cp};
        pthread_barrier_init(&groups[i].barrier, NULL, (unsigned)groups[i].ranks);
    }
    start_members(t, members, groups, &weights, &shape, tokens, targets);
    run_members(t, members);
    collect(t, members, &shape, &got, &loss);
    for (int i = 0; i < 2 * MOST; i++)
        pthread_barrier_destroy(&groups[i].barrier);
    if (!(fabs(loss - wanted_loss) <= 1e-5 * wanted_loss))
        fail_msg("tp=%d, cp=%d, %d tokens: loss %g, wanted %g", t->tp, t->cp, (int)t->seq, loss,
            wanted_loss);
    assert_gradients_near(&shape, &got, &wanted, 2e-5);
    decoder_destroy(&weights);
    decoder_destroy(&wanted);
    decoder_destroy(&got);
    free(tokens);
    free(targets);
}

static rs_model make_model(int64_t heads, int64_t kv_heads)
{
    rs_model m = {.name = "test",
        .layers = 2,
        .hidden = 10,
        .heads = heads,
        .kv_heads = kv_heads,
        .head_dim = 4,
        .ffn = 7,
        .vocab = 13,
        .tied = true,
        .norm_eps = 1e-5,
        .rope_theta = 100};
    return m;
}

static void test_sequence_parallel(void **state)
{
    (void)state;
    rs_model m = make_model(6, 2), n = make_model(4, 4);
    n.tied = false;
    n.qkv_bias = n.out_bias = n.mlp_bias = n.qk_norm = true;
    for (int tp = 1; tp <= MOST; tp++)
        for (int64_t seq = 3; seq <= 8; seq += 5) {
            check(&(trial){&m, tp, 1, true, seq, 3});
            check(&(trial){&n, tp, 1, true, seq, 1});
        }
}

static void test_context_parallel(void **state)
{
    (void)state;
    rs_model m = make_model(6, 2), n = make_model(4, 4);
    n.tied = false;
    n.qkv_bias = n.out_bias = n.mlp_bias = n.qk_norm = true;
    for (int cp = 2; cp <= MOST; cp++)
        for (int64_t seq = 2; seq <= 11; seq += 3) {
            check(&(trial){&m, 1, cp, false, seq, 3});
            check(&(trial){&n, 1, cp, false, seq, 2});
        }
    /* Longer than tiles of queries, and no multiple of them. */
    check(&(trial){&m, 1, 2, false, 419, 1});
}

static void test_both(void **state)
{
    (void)state;
    rs_model m = make_model(6, 2);
    m.qkv_bias = m.out_bias = m.mlp_bias = m.qk_norm = true;
    for (int tp = 2; tp <= 3; tp++)
        for (int cp = 2; cp <= 3; cp++)
            for (int sp = 0; sp < 2; sp++) {
                check(&(trial){&m, tp, cp, sp, 9, 2});
                check(&(trial){&m, tp, cp, sp, 3, 1});
            }
}

static void test_refusals(void **state)
{
    (void)state;
    rs_model m = make_model(6, 2);
    rs_stage_shape shape = whole_shape(&m, 4, 1, 1);
    rs_stage *stage;
    shape.cp_ranks = shape.cp_rank = 2;
    assert_int_equal(rs_stage_create(&shape, NULL, &stage), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "2 of 2 cp ranks"));
}

int main(void)
{
    rs_product_set_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_sequence_parallel),
        cmocka_unit_test(test_context_parallel),
        cmocka_unit_test(test_both),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
