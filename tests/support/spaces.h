/* Random spaces and layouts for tests, small enough to be counted element by element. */
#ifndef RS_TESTS_SPACES_H
#define RS_TESTS_SPACES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/layout.h"
#include "reshard/space.h"
#include "support/random.h"

#define RANDOM_ROLES 4

/* What these functions are told to succeed with. */
static inline void random_must(rs_status status)
{
    if (status != RS_OK)
        abort();
}

static inline void random_add(rs_space *space, const char *name, rs_stage_rule stage, int ndim,
    const int64_t *shape, const rs_axis *axis, int64_t unit, int64_t kv_group)
{
    rs_tensor tensor = {.name = name, .ndim = ndim, .stage = stage, .kv_group = kv_group};
    for (int d = 0; d < ndim; d++) {
        tensor.shape[d] = shape[d];
        tensor.axis[d] = axis[d];
        tensor.unit[d] = axis[d] == RS_AXIS_Q_HEAD || axis[d] == RS_AXIS_KV_HEAD ? unit : 0;
    }
    random_must(rs_space_add_tensor(space, &tensor, NULL));
}

#define RANDOM_LAYERS 5

#define RANDOM_ADD(name, stage, ndim, shape, axis, unit, group)                                    \
    random_add(space, name, stage, ndim, (const int64_t[RS_MAX_DIMS]){RANDOM_LIST shape},          \
        (const rs_axis[RS_MAX_DIMS]){RANDOM_LIST axis}, unit, group)
#define RANDOM_LIST(...) __VA_ARGS__

/* Some of the layers, ascending, at least one if there is any. Returns how many. */
static inline int64_t random_some_layers(uint64_t *random, int64_t layers, int64_t *out)
{
    int64_t count = 0;
    for (int64_t l = 0; l < layers; l++)
        if (random_in(random, 0, 1) == 0)
            out[count++] = l;
    if (count == 0 && layers > 0)
        out[count++] = random_in(random, 0, (int)layers - 1);
    return count;
}

/* Experts in the layers from `first` on, or in any, in several orders of axes; and what goes with
 * them. */
static inline void random_experts(uint64_t *random, rs_space *space, int64_t layers)
{
    int64_t experts = random_in(random, 1, 7);
    int64_t ffn = random_in(random, 1, 6);
    int64_t hidden = random_in(random, 1, 3);
    int64_t first = random_in(random, 0, (int)layers), count = layers - first;
    int64_t some[RANDOM_LAYERS];
    const int64_t *listed = NULL;
    if (layers > 0 && random_in(random, 0, 1) == 0) {
        count = random_some_layers(random, layers, some);
        first = some[0];
        listed = some;
    }
    const rs_tensor all[] = {
        {.name = "l.router",
            .ndim = 3,
            .shape = {count, experts, hidden},
            .axis = {RS_AXIS_LAYER},
            .layer_first = first,
            .layers = listed},
        {.name = "l.experts.up",
            .ndim = 4,
            .shape = {count, experts, ffn, hidden},
            .axis = {RS_AXIS_LAYER, RS_AXIS_EXPERT, RS_AXIS_FFN},
            .layer_first = first,
            .layers = listed},
        {.name = "l.experts.down",
            .ndim = 4,
            .shape = {count, hidden, experts, ffn},
            .axis = {RS_AXIS_LAYER, RS_AXIS_WHOLE, RS_AXIS_EXPERT, RS_AXIS_FFN},
            .layer_first = first,
            .layers = listed},
        {.name = "l.experts.bias",
            .ndim = 2,
            .shape = {count, 2 * experts},
            .axis = {RS_AXIS_LAYER, RS_AXIS_EXPERT},
            .unit = {0, 2},
            .layer_first = first,
            .layers = listed},
        {.name = "l.first", .ndim = 2, .shape = {first, ffn}, .axis = {RS_AXIS_LAYER, RS_AXIS_FFN}},
        {.name = "pool",
            .ndim = 2,
            .shape = {experts, 3},
            .axis = {RS_AXIS_EXPERT},
            .stage = (rs_stage_rule)random_in(random, 0, 3)},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (random_in(random, 0, 4) > 0)
            random_must(rs_space_add_tensor(space, &all[i], NULL));
}

/* Roles param, master, grad, exp_avg; each of another size than the one before. */
static inline void random_add_roles(rs_space *space)
{
    const rs_role roles[RANDOM_ROLES] = {{"param", RS_DTYPE_BF16, RS_ROLE_MODEL},
        {"master", RS_DTYPE_F32, RS_ROLE_OPTIMIZER}, {"grad", RS_DTYPE_F32, RS_ROLE_GRADIENT},
        {"exp_avg", RS_DTYPE_F64, RS_ROLE_OPTIMIZER}};
    for (int r = 0; r < RANDOM_ROLES; r++)
        random_must(rs_space_add_role(space, &roles[r], NULL));
}

/* Lets some tensors have other types, or no such role at all. */
static inline void random_dtypes(uint64_t *random, rs_space *space)
{
    static const rs_dtype types[] = {RS_DTYPE_F32, RS_DTYPE_F64, RS_DTYPE_U8, RS_DTYPE_NONE};
    for (int i = 0; i < rs_space_tensor_count(space); i++) {
        /* Frozen: nothing but its value. */
        if (random_in(random, 0, 7) == 0)
            for (int r = 1; r < rs_space_role_count(space); r++)
                random_must(rs_space_set_dtype(space, i, r, RS_DTYPE_NONE));
        if (random_in(random, 0, 5) == 0)
            random_must(
                rs_space_set_dtype(space, i, random_in(random, 0, rs_space_role_count(space) - 1),
                    types[random_in(random, 0, 3)]));
    }
}

/* Adds the tensors of something like a model, in which nothing has to divide anything. */
static inline void random_model(uint64_t *random, rs_space *space, bool small)
{
    static const int heads_of[][2] = {
        {12, 4}, {28, 4}, {32, 8}, {7, 1}, {8, 2}, {3, 1}, {5, 5}, {4, 2}, {2, 1}, {1, 1}};
    const int *pair = heads_of[random_in(random, small ? 5 : 0, 9)];
    int64_t q = pair[0];
    int64_t kv = pair[1];
    int64_t unit = random_in(random, 1, 3);
    int64_t hidden = random_in(random, 1, 5);
    int64_t ffn = random_in(random, 1, 13);
    int64_t vocab = random_in(random, 1, 19);
    int64_t layers = random_in(random, 0, RANDOM_LAYERS);
    bool tied = random_in(random, 0, 1);
    RANDOM_ADD("embed", tied ? RS_STAGE_FIRST_AND_LAST : RS_STAGE_FIRST, 2, (vocab, hidden),
        (RS_AXIS_VOCAB, RS_AXIS_WHOLE), 0, 0);
    if (random_in(random, 0, 2) == 0)
        RANDOM_ADD("scale", RS_STAGE_BY_LAYER, 0, (0), (RS_AXIS_WHOLE), 0, 0);
    if (layers > 0) {
        RANDOM_ADD(
            "l.norm", RS_STAGE_BY_LAYER, 2, (layers, hidden), (RS_AXIS_LAYER, RS_AXIS_WHOLE), 0, 0);
        RANDOM_ADD("l.q", RS_STAGE_BY_LAYER, 3, (layers, q * unit, hidden),
            (RS_AXIS_LAYER, RS_AXIS_Q_HEAD, RS_AXIS_WHOLE), unit, 0);
        RANDOM_ADD("l.k", RS_STAGE_BY_LAYER, 3, (layers, kv * unit, hidden),
            (RS_AXIS_LAYER, RS_AXIS_KV_HEAD, RS_AXIS_WHOLE), unit, q / kv);
        RANDOM_ADD("l.v.bias", RS_STAGE_BY_LAYER, 2, (layers, kv * unit),
            (RS_AXIS_LAYER, RS_AXIS_KV_HEAD), unit, q / kv);
        RANDOM_ADD("l.o", RS_STAGE_BY_LAYER, 3, (layers, hidden, q * unit),
            (RS_AXIS_LAYER, RS_AXIS_WHOLE, RS_AXIS_Q_HEAD), unit, 0);
        if (random_in(random, 0, 1))
            RANDOM_ADD("l.some", RS_STAGE_BY_LAYER, 2, (random_in(random, 0, (int)layers), 3),
                (RS_AXIS_LAYER, RS_AXIS_WHOLE), 0, 0);
        RANDOM_ADD("l.down", RS_STAGE_BY_LAYER, 4, (layers, 2, ffn, hidden),
            (RS_AXIS_LAYER, RS_AXIS_WHOLE, RS_AXIS_FFN, RS_AXIS_WHOLE), 0, 0);
        RANDOM_ADD("l.temperature", RS_STAGE_BY_LAYER, 1, (layers), (RS_AXIS_LAYER), 0, 0);
    }
    if (random_in(random, 0, 2) > 0)
        random_experts(random, space, layers);
    if (random_in(random, 0, 2) == 0)
        RANDOM_ADD("nothing", RS_STAGE_LAST, 2, (0, 4), (RS_AXIS_WHOLE, RS_AXIS_WHOLE), 0, 0);
    if (random_in(random, 0, 2) == 0)
        RANDOM_ADD("everywhere", RS_STAGE_BY_LAYER, 2, (3, 5), (RS_AXIS_WHOLE, RS_AXIS_FFN), 0, 0);
    RANDOM_ADD("norm", RS_STAGE_LAST, 1, (hidden), (RS_AXIS_WHOLE), 0, 0);
    if (!tied)
        RANDOM_ADD("head", RS_STAGE_LAST, 2, (vocab, hidden), (RS_AXIS_VOCAB, RS_AXIS_WHOLE), 0, 0);
}

/* A model with four roles; in half of them some tensors are exceptions. */
static inline rs_space *random_space(uint64_t *random)
{
    rs_space *space;
    random_must(rs_space_create(&space));
    random_add_roles(space);
    random_model(random, space, false);
    if (random_in(random, 0, 1))
        random_dtypes(random, space);
    return space;
}

/* Deals the prime factors of `number` over `count` parts. */
static inline void random_factors(uint64_t *random, int number, int *parts, int count)
{
    for (int i = 0; i < count; i++)
        parts[i] = 1;
    for (int factor = 2; number > 1; factor++)
        while (number % factor == 0) {
            parts[random_in(random, 0, count - 1)] *= factor;
            number /= factor;
        }
}

/* A layout of 1 to `most` ranks for a model of so many layers, any axis. */
static inline rs_layout random_layout(uint64_t *random, int most, int64_t layers)
{
    rs_layout layout = {.zero = random_in(random, 0, 3),
        .zero_cut = (rs_zero_cut)random_in(random, 0, 2),
        .vpp = random_in(random, 0, 2) == 0 ? random_in(random, 2, 3) : 1,
        .sp = random_in(random, 0, 3) == 0};
    int parts[4];
    random_factors(random, random_in(random, 1, most), parts, 4);
    layout.tp = parts[0];
    layout.cp = parts[1];
    layout.pp = parts[2];
    layout.dp = parts[3];
    if (random_in(random, 0, 1)) {
        random_factors(random, layout.tp * layout.cp * layout.dp, parts, 3);
        layout.etp = parts[1];
    } else {
        random_factors(random, layout.cp * layout.dp, parts, 2);
    }
    layout.ep = parts[0];
    if (random_in(random, 0, 2) == 0) {
        random_factors(random, layout.cp * layout.dp, parts, 2);
        layout.shard = parts[0];
    }
    for (int i = 0; i < RS_MESH_AXES; i++) {
        int other = random_in(random, 0, i);
        layout.order[i] = layout.order[other];
        layout.order[other] = (rs_mesh_axis)i;
    }
    if (random_in(random, 0, 3) == 0 && layout.pp * layout.vpp <= RS_LAYOUT_STAGES) {
        layout.stage_count = layout.pp * layout.vpp;
        int end = 0;
        for (int i = 0; i < layout.stage_count; i++) {
            end = random_in(random, end, (int)layers);
            layout.stage_end[i] = i == layout.stage_count - 1 ? (int)layers : end;
        }
    }
    /* Through its text, so that it means what its text means. */
    char text[RS_LAYOUT_TEXT];
    rs_layout out;
    random_must(rs_layout_parse(rs_layout_format(&layout, text), &out));
    return out;
}

#endif
