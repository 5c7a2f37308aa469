/*
 * AdamW, SGD, Muon, and the rule for routers' biases, element by element. docs/training.md has the
 * formulas; constants are theirs.
 *
 * AdamW: Loshchilov and Hutter, arXiv 1711.05101.
 */
#include "train/method.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "train/simd.h"

#define BETA1 0.9
#define BETA2 0.95
#define EPSILON 1e-8
#define MOMENTUM 0.9
#define WEIGHT_DECAY 0.1
#define BIAS_STEP 0.001f

typedef struct adamw {
    float keep; /* factor of the weight: 1 - lr * decay */
    float size; /* lr / (1 - beta1^step) */
    float root; /* 1 / sqrt(1 - beta2^step) */
    float clip;
} adamw;

RS_CLONES static void adamw_run(const adamw *how, int64_t count, const float *restrict gradient,
    float *restrict weight, float *restrict first, float *restrict second)
{
    const float one1 = (float)(1 - BETA1), beta2 = (float)BETA2, one2 = (float)(1 - BETA2);
    const float keep = how->keep, size = how->size, root = how->root, clip = how->clip;
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * clip;
        float m = first[i] + (g - first[i]) * one1;
        float v = second[i] * beta2 + g * g * one2;
        float denominator = sqrtf(v) * root + (float)EPSILON;
        first[i] = m;
        second[i] = v;
        weight[i] = weight[i] * keep - size * (m / denominator);
    }
}

static void apply_adamw(const rs_method_rate *rate, const rs_method_run *run)
{
    double step = (double)rate->step;
    adamw how = {.keep = rate->decay ? (float)(1 - rate->lr * WEIGHT_DECAY) : 1,
        .size = (float)(rate->lr / (1 - pow(BETA1, step))),
        .root = (float)(1 / sqrt(1 - pow(BETA2, step))),
        .clip = rate->clip};
    adamw_run(&how, run->count, run->gradient, run->weight, run->roles[0], run->roles[1]);
}

RS_CLONES static void sgd_run(float lr, float decay, float clip, int64_t count,
    const float *restrict gradient, float *restrict weight, float *restrict momentum)
{
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * clip + decay * weight[i];
        float m = (float)MOMENTUM * momentum[i] + g;
        momentum[i] = m;
        weight[i] -= lr * m;
    }
}

static void apply_sgd(const rs_method_rate *rate, const rs_method_run *run)
{
    sgd_run((float)rate->lr, rate->decay ? (float)WEIGHT_DECAY : 0, rate->clip, run->count,
        run->gradient, run->weight, run->roles[0]);
}

RS_CLONES static void muon_run(float lr, float keep, float clip, int64_t count,
    const float *restrict gradient, const float *restrict direction, float *restrict weight,
    float *restrict momentum)
{
    for (int64_t i = 0; i < count; i++) {
        momentum[i] = (float)RS_MUON_MOMENTUM * momentum[i] + gradient[i] * clip;
        weight[i] = weight[i] * keep - lr * direction[i];
    }
}

static void apply_muon(const rs_method_rate *rate, const rs_method_run *run)
{
    float keep = rate->decay ? (float)(1 - rate->lr * WEIGHT_DECAY) : 1;
    muon_run((float)rate->lr, keep, rate->clip, run->count, run->gradient, run->direction,
        run->weight, run->roles[0]);
}

/* An expert that more tokens chose than its share is chosen less easily. Wang et al., arXiv
 * 2408.15664. */
static void apply_balance(const rs_method_rate *rate, const rs_method_run *run)
{
    for (int64_t i = 0; i < run->count; i++) {
        float more = run->gradient[i] - rate->share;
        run->roles[0][i] = run->gradient[i];
        run->weight[i] -= BIAS_STEP * (float)((more > 0) - (more < 0));
    }
}

bool rs_method_counts(const rs_tensor *tensor)
{
    return strcmp(tensor->name, "layers.router.bias") == 0;
}

rs_method rs_method_for(const rs_optimizer *optimizer, const rs_tensor *tensor)
{
    return rs_method_counts(tensor) ? apply_balance : rs_method_of(optimizer);
}

bool rs_method_directs(const rs_optimizer *optimizer)
{
    return rs_method_of(optimizer) == apply_muon;
}

rs_method rs_method_of(const rs_optimizer *optimizer)
{
    static const struct {
        const char *name;
        rs_method method;
    } rows[] = {{"adamw", apply_adamw}, {"sgd", apply_sgd}, {"muon", apply_muon}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, optimizer->name) == 0)
            return rows[i].method;
    return NULL;
}

json_t *rs_method_options(const rs_optimizer *optimizer, bool decay)
{
    double weight_decay = decay ? WEIGHT_DECAY : 0;
    rs_method method = rs_method_of(optimizer);
    if (method == apply_adamw)
        return json_pack("{s:[f,f],s:f,s:f}", "betas", BETA1, BETA2, "eps", EPSILON, "weight_decay",
            weight_decay);
    double momentum = method == apply_muon ? RS_MUON_MOMENTUM : MOMENTUM;
    return json_pack("{s:f,s:f}", "momentum", momentum, "weight_decay", weight_decay);
}
