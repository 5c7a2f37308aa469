/* Layers with experts: the router, rows on their way, and the stage against a plain decoder in
 * double precision and against itself on the ranks of many meshes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>

#include "base/memory.h"
#include "train/kernels.h"
#include "train/moe_forecast.h"
#include "train/moe_route.h"
#include "support/meeting.h"
#include "unit/stage_ranks.h"

#define MOST_RANKS MEETING_RANKS

static rs_model make_model(int64_t experts, int64_t chosen, int64_t width)
{
    rs_model m = {.name = "test",
        .layers = 2,
        .hidden = 10,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 4,
        .ffn = 6,
        .vocab = 11,
        .tied = true,
        .norm_eps = 1e-5,
        .rope_theta = 100,
        .experts = experts,
        .experts_per_token = chosen,
        .expert_ffn = width,
        .norm_topk = true,
        .aux_loss = 0.3};
    return m;
}

/* ---- the router ---- */

static void test_choices(void **state)
{
    (void)state;
    float logits[] = {0, 1, 1, 0, 1, /* ties: the lower numbers */
        5, 4, 3, 2, 1,               /* descending */
        1, 2, 3, 4, 5,               /* ascending */
        0, 0, 0, 0, 0,               /* all equal */
        0, 0, 3e-6f, 1, 2 /* the third is not close, the fourth would be */};
    const int32_t wanted[] = {1, 2, 4, 0, 1, 2, 4, 3, 2, 0, 1, 2, 4, 3, 2};
    int32_t choice[15];
    float weight[15];
    float original[25];
    memcpy(original, logits, sizeof original);
    rs_route route = {.experts = 5, .chosen = 3, .norm = true, .seq = 5, .whole = 5};
    int64_t close = rs_route_choose(1, &route, 5, NULL, logits, choice, weight);
    assert_memory_equal(choice, wanted, sizeof wanted);
    assert_int_equal(close, 2); /* the token whose experts are all equal, and the last */
    for (int t = 0; t < 5; t++) {
        double total = 0, sum = 0;
        for (int e = 0; e < 5; e++)
            total += exp((double)original[t * 5 + e]);
        for (int j = 0; j < 3; j++)
            sum += exp((double)original[t * 5 + choice[t * 3 + j]]);
        for (int j = 0; j < 3; j++) {
            double p = exp((double)original[t * 5 + choice[t * 3 + j]]);
            assert_true(fabs((double)logits[t * 5 + choice[t * 3 + j]] - p / total) < 1e-6);
            assert_true(fabs((double)weight[t * 3 + j] - p / sum) < 1e-6);
        }
    }
    memcpy(logits, original, sizeof original);
    route.norm = false;
    rs_route_choose(2, &route, 5, NULL, logits, choice, weight);
    for (int i = 0; i < 15; i++)
        assert_true(weight[i] == logits[i / 3 * 5 + choice[i]]);
    route.chosen = 5;
    memcpy(logits, original, sizeof original);
    int32_t all[25];
    float weights[25];
    assert_int_equal(rs_route_choose(1, &route, 5, NULL, logits, all, weights), 0);
}

/* A bias chooses, and does not weigh. */
static void test_bias(void **state)
{
    (void)state;
    float logits[] = {0, 1, 2, 3}, weight[2], total[4] = {5, 0, 0, 0};
    const float bias[] = {0.9f, 0, 0, 0.01f};
    int32_t choice[2];
    rs_route route = {.experts = 4, .chosen = 2, .norm = false, .seq = 1, .whole = 1};
    assert_int_equal(rs_route_choose(1, &route, 1, bias, logits, choice, weight), 0);
    assert_true(choice[0] == 0 && choice[1] == 3);
    assert_true(weight[0] == logits[0] && weight[1] == logits[3] && weight[0] < weight[1]);
    rs_route_add(&route, 1, choice, total);
    assert_true(total[0] == 6 && total[1] == 0 && total[2] == 0 && total[3] == 1);
    /* Equal with its bias: the lower number, and close. */
    float even[] = {0, 0, 0, 0};
    const float same[] = {0, 0.25f, 0.25f, 0.25f};
    assert_int_equal(rs_route_choose(1, &route, 1, same, even, choice, weight), 1);
    assert_true(choice[0] == 1 && choice[1] == 2);
}

/* ---- one rank ---- */

static void test_mixtral(void **state)
{
    (void)state;
    rs_model m = make_model(4, 2, 5);
    m.tied = false;
    check_reference(&m, 5, 2);
}

static void test_qwen2_moe(void **state)
{
    (void)state;
    rs_model m = make_model(5, 3, 4);
    m.layers = 3;
    m.dense_first = 1;
    m.norm_topk = false;
    m.shared_ffn = 7;
    m.shared_gate = true;
    m.qkv_bias = true;
    check_reference(&m, 4, 2);
}

static void test_qwen3_moe(void **state)
{
    (void)state;
    rs_model m = make_model(6, 2, 3);
    m.qk_norm = true;
    m.hidden = 7;
    check_reference(&m, 6, 1);
}

static void test_odd_models(void **state)
{
    (void)state;
    rs_model m = make_model(3, 3, 2); /* every token through every expert */
    m.shared_ffn = 3;
    check_reference(&m, 3, 2);
    m = make_model(4, 1, 3);
    m.norm_topk = false;
    check_reference(&m, 4, 1);
    m = make_model(1, 1, 3);
    m.norm_topk = false;
    m.aux_loss = 0;
    m.layers = 1;
    rs_stage_shape shape = whole_shape(&m, 3, 1, 1);
    assert_int_equal(shape.dispatch.end[0], 1);
}

/* ---- many ranks, one thread each ---- */

typedef struct meshes {
    int tp, dp, etp, ep;
    meeting tp_groups[MOST_RANKS];
    meeting expert_groups[MOST_RANKS];
} meshes;

typedef struct member {
    meshes *mesh;
    int rank;
    int64_t begin[MOST_RANKS];
    int64_t end[MOST_RANKS];
    rs_stage_shape shape;
    const decoder *whole_weights;
    const rs_stage_shape *whole_of;
    int64_t batch; /* sequences */
    const uint8_t *tokens;
    const uint8_t *targets;
    decoder weights;
    decoder gradients;
    double loss;
    double balance;
    int64_t close;
    int64_t bytes; /* of rows that arrived */
    rs_status status;
} member;

static meeting *tp_group(const member *m)
{
    return &m->mesh->tp_groups[m->rank / m->mesh->tp];
}

static meeting *expert_group(const member *m)
{
    return &m->mesh->expert_groups[m->rank / (m->mesh->etp * m->mesh->ep)];
}

static rs_status reduce(member *m, float *values, int64_t count, bool maximum)
{
    return meeting_reduce(tp_group(m), m->rank % m->mesh->tp, values, count, maximum);
}

static rs_status reduce_sum(void *context, float *values, int64_t count)
{
    return reduce(context, values, count, false);
}

static rs_status reduce_maximum(void *context, float *values, int64_t count)
{
    return reduce(context, values, count, true);
}

static rs_status gather(void *context, const int64_t *mine, int64_t count, int64_t *all)
{
    member *m = context;
    meeting *g = expert_group(m);
    int64_t *copy = malloc((size_t)count * sizeof *copy);
    memcpy(copy, mine, (size_t)count * sizeof *copy);
    g->items[m->rank % g->count] = copy;
    pthread_barrier_wait(&g->barrier);
    for (int r = 0; r < g->count; r++)
        memcpy(all + r * count, g->items[r], (size_t)count * sizeof *all);
    pthread_barrier_wait(&g->barrier);
    free(copy);
    return RS_OK;
}

typedef struct parcel {
    const rs_dispatch_part *parts;
    const float *rows;
} parcel;

static rs_status exchange(void *context, const rs_dispatch_part *send, const float *from,
    const rs_dispatch_part *receive, float *to, int64_t width)
{
    member *m = context;
    meeting *g = expert_group(m);
    int me = m->rank % g->count;
    parcel mine = {send, from};
    rs_status status = RS_OK;
    g->items[me] = &mine;
    pthread_barrier_wait(&g->barrier);
    for (int r = 0; r < g->count; r++) {
        const parcel *theirs = g->items[r];
        rs_dispatch_part part = theirs->parts[me];
        if (part.count != receive[r].count)
            status = RS_ERR_PEER;
        else if (r != me && part.count > 0)
            memcpy(to + receive[r].first * width, theirs->rows + part.first * width,
                (size_t)(part.count * width) * sizeof *to);
    }
    pthread_barrier_wait(&g->barrier);
    return status;
}

static void *run_member(void *argument)
{
    member *m = argument;
    rs_stage_tp tp = {.context = m,
        .sum = reduce_sum,
        .maximum = reduce_maximum,
        .experts = {m, gather, exchange}};
    rs_stage *stage = NULL;
    m->weights = decoder_create(&m->shape, 0);
    m->gradients = decoder_create(&m->shape, 0);
    slice(m->whole_weights, m->whole_of, &m->weights, &m->shape);
    m->status = rs_stage_create(&m->shape, &tp, &stage);
    if (m->status == RS_OK)
        m->status = rs_stage_forward(
            stage, &m->weights.tensors, 0, m->batch, m->tokens, m->targets, NULL, NULL, &m->loss);
    for (int64_t l = 0; m->status == RS_OK && l < m->shape.model.layers; l++) {
        rs_stage_routing r;
        rs_stage_routed(stage, 0, l, &r);
        m->balance += r.balance;
        m->close += r.close;
    }
    if (m->status == RS_OK)
        m->status = rs_stage_backward(
            stage, &m->weights.tensors, &m->gradients.tensors, 0, 0.5f, NULL, NULL);
    m->bytes = m->status == RS_OK ? rs_stage_expert_bytes(stage) : 0;
    rs_stage_destroy(stage);
    return NULL;
}

/* Part `part` of `n` things in `parts`, larger parts first. */
static void even(int64_t n, int parts, int part, int64_t *begin, int64_t *end)
{
    *begin = part * (n / parts) + (part < n % parts ? part : n % parts);
    *end = *begin + n / parts + (part < n % parts);
}

static void shape_member(member *m, const rs_stage_shape *whole)
{
    const meshes *mesh = m->mesh;
    rs_stage_shape *s = &m->shape;
    *s = *whole;
    int64_t per_kv = s->model.heads / s->model.kv_heads;
    int tp = m->rank % mesh->tp;
    deal(s->model.heads, mesh->tp, tp, &s->q_begin, &s->q_end);
    s->kv_begin = s->q_begin / per_kv;
    s->kv_end = s->q_begin < s->q_end ? (s->q_end - 1) / per_kv + 1 : s->kv_begin;
    deal(s->model.ffn, mesh->tp, tp, &s->ffn_begin, &s->ffn_end);
    deal(s->model.vocab, mesh->tp, tp, &s->vocab_begin, &s->vocab_end);
    deal(s->model.shared_ffn, mesh->tp, tp, &s->shared_begin, &s->shared_end);
    int etp = m->rank % mesh->etp;
    deal(s->model.expert_ffn, mesh->etp, etp, &s->expert_begin, &s->expert_end);
    for (int i = 0; i < mesh->ep; i++) {
        if (s->model.experts >= mesh->ep) {
            even(s->model.experts, mesh->ep, i, &m->begin[i], &m->end[i]);
            continue;
        }
        int64_t first, end = 0;
        for (int e = 0; end <= i; e++) {
            even(mesh->ep, (int)s->model.experts, e, &first, &end);
            m->begin[i] = e;
            m->end[i] = e + 1;
        }
    }
    s->tp_rank = tp;
    s->tp_ranks = mesh->tp;
    s->dispatch = (rs_dispatch_shape){s->model.experts, mesh->etp, mesh->ep, etp,
        m->rank / mesh->etp % mesh->ep, m->begin, m->end};
}

/* Where several ranks have a part of the gradient, or several replicas. */
static bool is_part(const field *f)
{
    bool whole = f->need == SPARSE || f->need == SWITCH;
    return !whole &&
           (f->need == QK_NORM || f->need == EXPERT || (f->rows != ONE && f->rows != HIDDEN) ||
               (f->columns != HIDDEN && f->columns != HEAD_DIM));
}

static void meet(meeting *groups, int ranks, int size)
{
    for (int g = 0; g < ranks / size; g++) {
        groups[g].count = size;
        pthread_barrier_init(&groups[g].barrier, NULL, (unsigned)size);
    }
}

static void part(meeting *groups, int ranks, int size)
{
    for (int g = 0; g < ranks / size; g++)
        pthread_barrier_destroy(&groups[g].barrier);
}

/* The forecast of a layout's rows at experts bounds the memory that each of the ranks has taken for
 * them, the quarter in reserve left out; where all tokens choose the first experts, one rank has
 * taken all of it. */
static void check_forecast(const rs_stage_shape *shape, const member *members, bool rigged)
{
    const meshes *mesh = members[0].mesh;
    char text[64];
    rs_layout layout;
    rs_space *space;
    rs_moe_forecast said;
    rs_model model = shape->model;
    int64_t most = 0, batch = 0;
    int ranks = mesh->tp * mesh->dp;
    snprintf(
        text, sizeof text, "tp=%d,dp=%d,etp=%d,ep=%d", mesh->tp, mesh->dp, mesh->etp, mesh->ep);
    for (int r = 0; r < ranks; r++) {
        most = members[r].bytes > most ? members[r].bytes : most;
        batch = members[r].batch > batch ? members[r].batch : batch;
    }
    assert_int_equal(rs_layout_parse(text, &layout), RS_OK);
    assert_int_equal(rs_model_space(&model, RS_DTYPE_F32, &space), RS_OK);
    rs_moe_load load = {shape->seq, batch, batch * mesh->dp};
    assert_int_equal(rs_moe_forecast_make(&model, space, &layout, &load, &said), RS_OK);
    rs_space_destroy(space);
    if (most > said.worst * 5 / 4)
        fail_msg("%s: %d bytes, forecast %d", text, (int)most, (int)said.worst);
    assert_true(said.even <= said.worst);
    if (rigged && most < said.worst)
        fail_msg("%s: %d bytes of %d are never taken", text, (int)most, (int)said.worst);
}

/* `batches` [dp] sequences of each replica. `rigged`: all tokens choose the first experts. */
static void check_ranks(
    const rs_model *model, int tp, int dp, int etp, int ep, const int *batches, bool rigged)
{
    enum { SEQ = 5, MOST = 8 };
    uint8_t tokens[SEQ * MOST], targets[SEQ * MOST];
    int64_t all = 0;
    for (int d = 0; d < dp; d++)
        all += batches[d];
    assert_true(all <= MOST);
    random_bytes(3, model->vocab, SEQ * MOST, tokens);
    random_bytes(4, model->vocab, SEQ * MOST, targets);
    rs_stage_shape shape = whole_shape(model, SEQ, all, 1);
    decoder weights = random_decoder(&shape, 5);
    decoder wanted = decoder_create(&shape, 0);
    decoder got = decoder_create(&shape, 0);
    for (int64_t l = model->dense_first; rigged && l < model->layers; l++)
        memset(weights.tensors.layers[l].router, 0,
            (size_t)(model->experts * model->hidden) * sizeof(float));
    double loss = run_whole(&shape, &weights, &wanted, all, tokens, targets, 0.5f);

    int ranks = tp * dp;
    meshes mesh = {.tp = tp, .dp = dp, .etp = etp, .ep = ep};
    meet(mesh.tp_groups, ranks, tp);
    meet(mesh.expert_groups, ranks, etp * ep);
    member *members = calloc((size_t)ranks, sizeof *members);
    pthread_t threads[MOST_RANKS];
    int64_t first = 0;
    for (int r = 0; r < ranks; r++) {
        member *m = &members[r];
        *m = (member){.mesh = &mesh,
            .rank = r,
            .whole_weights = &weights,
            .whole_of = &shape,
            .batch = batches[r / tp],
            .tokens = tokens + first * SEQ,
            .targets = targets + first * SEQ};
        shape_member(m, &shape);
        if (r % tp == tp - 1)
            first += m->batch;
    }
    for (int r = 0; r < ranks; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, run_member, &members[r]), 0);
    for (int r = 0; r < ranks; r++)
        pthread_join(threads[r], NULL);
    part(mesh.tp_groups, ranks, tp);
    part(mesh.expert_groups, ranks, etp * ep);
    double sum = 0;
    for (int r = 0; r < ranks; r++) {
        assert_int_equal(members[r].status, RS_OK);
        if (r % tp == 0)
            sum += members[r].loss + members[r].balance;
        assert_true(members[r].loss == members[r / tp * tp].loss);
        assert_true(members[r].balance == members[r / tp * tp].balance);
        for (int f = 0; f < FIELDS; f++)
            if (r % tp == 0 || is_part(&fields[f]))
                copy_part(&got, &shape, &members[r].gradients, &members[r].shape, f, false, true);
        for (int f = 0; f < FIELDS; f++)
            for (int64_t l = 0; l < (per_layer(&fields[f]) ? model->layers : 1); l++)
                if (!is_part(&fields[f]) && has_in_layer(&shape, &fields[f], l))
                    assert_memory_equal(*field_place(&members[r].gradients, &fields[f], l),
                        *field_place(&members[r / tp * tp].gradients, &fields[f], l),
                        (size_t)field_elements(&shape, &fields[f]) * sizeof(float));
    }
    assert_true(fabs(sum - loss) <= 1e-5 * loss);
    assert_gradients_near(&shape, &got, &wanted, 3e-5);
    check_forecast(&shape, members, rigged);
    for (int r = 0; r < ranks; r++) {
        decoder_destroy(&members[r].weights);
        decoder_destroy(&members[r].gradients);
    }
    free(members);
    decoder_destroy(&weights);
    decoder_destroy(&wanted);
    decoder_destroy(&got);
}

static rs_model shared_model(int64_t experts, int64_t chosen, int64_t width)
{
    rs_model m = make_model(experts, chosen, width);
    m.shared_ffn = 5;
    m.shared_gate = m.qkv_bias = true;
    m.norm_topk = false;
    m.dense_first = 1;
    m.layers = 3;
    return m;
}

static void check_mesh(const rs_model *model, int tp, int dp, int etp, int ep, const int *batches)
{
    check_ranks(model, tp, dp, etp, ep, batches, false);
}

/* What `reshard plan` says of the memory of rows at experts. */
static void test_forecast(void **state)
{
    (void)state;
    rs_model m = make_model(6, 2, 5), one = make_model(3, 1, 4);
    check_ranks(&m, 1, 4, 1, 4, (int[]){2, 2, 2, 2}, true);
    check_ranks(&m, 2, 2, 2, 2, (int[]){2, 2}, true);
    check_ranks(&m, 1, 4, 4, 1, (int[]){2, 2, 2, 2}, true);
    check_ranks(&one, 1, 6, 1, 3, (int[]){1, 1, 1, 1, 1, 1}, true);
    check_ranks(&m, 1, 1, 1, 1, (int[]){3}, true);
}

static void test_meshes(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        rs_model m = shared ? shared_model(6, 2, 5) : make_model(6, 2, 5);
        check_mesh(&m, 1, 2, 1, 2, (int[]){2, 2});
        check_mesh(&m, 1, 4, 1, 4, (int[]){2, 1, 1, 2}); /* six experts on four */
        check_mesh(&m, 1, 4, 1, 2, (int[]){2, 1, 1, 2});
        check_mesh(&m, 2, 1, 1, 2, (int[]){3});
        check_mesh(&m, 2, 1, 2, 1, (int[]){3});
        check_mesh(&m, 2, 1, 1, 1, (int[]){3}); /* tp ranks are replicas of the experts */
        check_mesh(&m, 2, 2, 2, 2, (int[]){1, 2});
        check_mesh(&m, 2, 2, 1, 4, (int[]){1, 2});
        check_mesh(&m, 1, 4, 4, 1, (int[]){1, 2, 1, 1}); /* etp over replicas */
        check_mesh(&m, 3, 4, 2, 3, (int[]){1, 2, 1, 2});
    }
}

/* Replicas without a sequence, experts that several ranks have, rows that do not reach. */
static void test_empty_ranks(void **state)
{
    (void)state;
    rs_model m = make_model(3, 2, 2);
    check_mesh(&m, 1, 3, 1, 3, (int[]){4, 0, 3});
    check_mesh(&m, 1, 5, 1, 5, (int[]){2, 0, 1, 0, 2}); /* three experts on five */
    check_mesh(&m, 2, 4, 1, 8, (int[]){2, 0, 1, 1});    /* on eight */
    check_mesh(&m, 4, 1, 4, 1, (int[]){2});             /* two rows on four */
    check_mesh(&m, 2, 3, 3, 2, (int[]){0, 0, 5});
    m = shared_model(3, 2, 2);
    check_mesh(&m, 2, 2, 1, 4, (int[]){0, 3});
    check_mesh(&m, 4, 2, 2, 4, (int[]){1, 2});
}

/* ---- slots and failures ---- */

/* Two micro-batches in flight: the gradients of each alone, the bits too. */
static void test_slots(void **state)
{
    (void)state;
    enum { SEQ = 4, BATCH = 2 };
    uint8_t tokens[2 * SEQ * BATCH], targets[2 * SEQ * BATCH];
    rs_model m = shared_model(4, 2, 3);
    random_bytes(9, m.vocab, 2 * SEQ * BATCH, tokens);
    random_bytes(10, m.vocab, 2 * SEQ * BATCH, targets);
    rs_stage_shape shape = whole_shape(&m, SEQ, BATCH, 2);
    decoder weights = random_decoder(&shape, 12);
    decoder wanted = decoder_create(&shape, 0);
    decoder got = decoder_create(&shape, 0);
    double first = run_whole(&shape, &weights, &wanted, BATCH, tokens, targets, 0.5f);
    double second =
        run_whole(&shape, &weights, &wanted, 1, tokens + SEQ * BATCH, targets + SEQ * BATCH, 0.5f);
    rs_stage *stage;
    double a, b;
    const rs_stage_tensors *w = &weights.tensors;
    assert_int_equal(rs_stage_create(&shape, NULL, &stage), RS_OK);
    for (int again = 0; again < 2; again++) {
        memset(got.memory, 0, (size_t)got.elements * sizeof(float));
        assert_int_equal(
            rs_stage_forward(stage, w, 0, BATCH, tokens, targets, NULL, NULL, &a), RS_OK);
        assert_int_equal(rs_stage_forward(stage, w, 1, 1, tokens + SEQ * BATCH,
                             targets + SEQ * BATCH, NULL, NULL, &b),
            RS_OK);
        assert_int_equal(rs_stage_backward(stage, w, &got.tensors, 0, 0.5f, NULL, NULL), RS_OK);
        assert_int_equal(rs_stage_backward(stage, w, &got.tensors, 1, 0.5f, NULL, NULL), RS_OK);
        assert_memory_equal(got.memory, wanted.memory, (size_t)got.elements * sizeof(float));
    }
    rs_stage_routing r;
    rs_stage_routed(stage, 1, 0, &r);
    assert_true(r.rows == 0 && r.choice == NULL); /* no experts in this layer */
    rs_stage_routed(stage, 1, 1, &r);
    assert_int_equal(r.rows, SEQ);
    assert_true(a + r.balance > 0 && r.balance > 0);
    rs_stage_destroy(stage);
    double plain = a + b;
    assert_true(plain < first + second); /* those have the balance loss */
    decoder_destroy(&weights);
    decoder_destroy(&wanted);
    decoder_destroy(&got);
}

/* What is frozen has no gradient; the others are what they were. */
static void test_frozen(void **state)
{
    (void)state;
    uint8_t bytes[4] = {1, 2, 3, 4};
    rs_model m = shared_model(4, 2, 3);
    rs_stage_shape shape = whole_shape(&m, 4, 1, 1);
    decoder weights = random_decoder(&shape, 12);
    decoder wanted = decoder_create(&shape, 0);
    run_whole(&shape, &weights, &wanted, 1, bytes, bytes, 0.5f);
    for (int f = 0; f < FIELDS; f++) {
        if (fields[f].need < SPARSE || fields[f].need > SWITCH)
            continue;
        decoder got = decoder_create(&shape, 0);
        for (int64_t l = 1; l < m.layers; l++)
            *field_place(&got, &fields[f], l) = NULL;
        run_whole(&shape, &weights, &got, 1, bytes, bytes, 0.5f);
        for (int64_t i = 0; i < got.elements; i++)
            assert_true(got.memory[i] == wanted.memory[i] || got.memory[i] == 0);
        for (int64_t l = 1; l < m.layers; l++)
            *field_place(&got, &fields[f], l) =
                got.memory + (*field_place(&wanted, &fields[f], l) - wanted.memory);
        for (int g = 0; g < FIELDS; g++)
            for (int64_t l = 1; l < m.layers && per_layer(&fields[g]); l++)
                for (int64_t i = 0;
                     has_in_layer(&shape, &fields[g], l) && i < field_elements(&shape, &fields[g]);
                     i++)
                    assert_true((*field_place(&got, &fields[g], l))[i] ==
                                (f == g ? 0 : (*field_place(&wanted, &fields[g], l))[i]));
        decoder_destroy(&got);
    }
    decoder_destroy(&weights);
    decoder_destroy(&wanted);
}

/* Whichever allocation fails, of making a stage and of its first micro-batch: an error, and
 * nothing left behind (the leak checker looks). */
static void test_no_memory(void **state)
{
    (void)state;
    uint8_t bytes[4] = {1, 2, 3, 4};
    rs_model m = shared_model(4, 2, 3);
    rs_stage_shape shape = whole_shape(&m, 4, 1, 2);
    decoder weights = random_decoder(&shape, 12);
    double loss;
    int failures = 0;
    for (size_t n = 1;; n++) {
        rs_stage *stage = NULL;
        rs_alloc_fail_at(n);
        rs_status status = rs_stage_create(&shape, NULL, &stage);
        assert_true((status == RS_OK) == (stage != NULL));
        if (status == RS_OK)
            status =
                rs_stage_forward(stage, &weights.tensors, 0, 1, bytes, bytes, NULL, NULL, &loss);
        rs_alloc_fail_at(0);
        rs_stage_destroy(stage);
        if (status == RS_OK)
            break;
        assert_int_equal(status, RS_ERR_NO_MEMORY);
        failures++;
    }
    assert_true(failures > 40);
    decoder_destroy(&weights);
}

static void test_refusals(void **state)
{
    (void)state;
    rs_model m = make_model(4, 2, 3);
    rs_stage_shape good = whole_shape(&m, 4, 1, 1);
    rs_stage *stage;
    rs_stage_shape bad = good;
    bad.dispatch.experts = 3;
    assert_int_equal(rs_stage_create(&bad, NULL, &stage), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "3 experts dealt, the model has 4"));
    bad = good;
    bad.expert_end = 4;
    assert_int_equal(rs_stage_create(&bad, NULL, &stage), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "rows of an expert"));
    bad = good;
    bad.dispatch.end = &expert_numbers[3];
    assert_int_equal(rs_stage_create(&bad, NULL, &stage), RS_ERR_ARGUMENT);
    assert_non_null(strstr(rs_error_message(), "has expert 3"));
}

int main(void)
{
    rs_product_set_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_mixtral),
        cmocka_unit_test(test_qwen2_moe),
        cmocka_unit_test(test_qwen3_moe),
        cmocka_unit_test(test_odd_models),
        cmocka_unit_test(test_meshes),
        cmocka_unit_test(test_forecast),
        cmocka_unit_test(test_empty_ranks),
        cmocka_unit_test(test_slots),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
