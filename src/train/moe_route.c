/*
 * The router: softmax, the best k, the balance loss.
 *
 * With p the probabilities of a token and c the experts chosen, a weight is p_c, or p_c over the
 * sum of the chosen p. The balance loss of a sequence of T tokens is coefficient * E * sum_e
 * (n_e / T) (mean_t p_te), n_e the number of its tokens that chose e (Fedus et al., arXiv
 * 2101.03961, with the sum over all k choices as in Mixtral); n_e has no gradient. As a sum over
 * tokens it is sum_t sum_e pull_e p_te with pull_e = coefficient * E * n_e / T.
 *
 * Invariants: (1) of equal probabilities the lower number is chosen first, so the choice depends on
 * nothing but the bits of p; (2) sequences are counted alone, so no division of the batch changes
 * the loss.
 */
#include "train/moe_route.h"

#include <math.h>
#include <string.h>

#include "train/simd.h"

RS_CLONES static void softmax(int64_t count, float *x)
{
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < count; i++)
        most = x[i] > most ? x[i] : most;
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < count; i++) {
        x[i] = rs_exp(x[i] - most);
        total += x[i];
    }
    float scale = 1.0f / total;
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        x[i] *= scale;
}

static float score(const float *p, const float *bias, int64_t e)
{
    return bias != NULL ? p[e] + bias[e] : p[e];
}

/* The best `k` by insertion, the first of equals staying in front; returns by how much the last of
 * them is better than the best that is left out, 1 if none is. */
static float best(int64_t count, const float *p, const float *bias, int64_t k, int32_t *choice)
{
    int64_t have = 0;
    float left = -INFINITY;
    for (int64_t e = 0; e < count; e++) {
        int64_t at = have;
        float own = score(p, bias, e);
        while (at > 0 && own > score(p, bias, choice[at - 1]))
            at--;
        if (at == k) {
            left = own > left ? own : left;
            continue;
        }
        if (have == k) {
            float last = score(p, bias, choice[k - 1]);
            left = last > left ? last : left;
        } else {
            have++;
        }
        for (int64_t i = have - 1; i > at; i--)
            choice[i] = choice[i - 1];
        choice[at] = (int32_t)e;
    }
    return k < count ? score(p, bias, choice[k - 1]) - left : 1;
}

int64_t rs_route_choose(int threads, const rs_route *route, int64_t tokens, const float *bias,
    float *probabilities, int32_t *choice, float *weight)
{
    int64_t k = route->chosen;
    int64_t close = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static) reduction(+ : close)
    for (int64_t t = 0; t < tokens; t++) {
        float *p = probabilities + t * route->experts;
        int32_t *c = choice + t * k;
        softmax(route->experts, p);
        close += best(route->experts, p, bias, k, c) < RS_ROUTE_CLOSE;
        float total = 0;
        for (int64_t j = 0; j < k; j++)
            total += p[c[j]];
        for (int64_t j = 0; j < k; j++)
            weight[t * k + j] = route->norm ? p[c[j]] / total : p[c[j]];
    }
    return close;
}

void rs_route_add(const rs_route *route, int64_t tokens, const int32_t *choice, float *total)
{
    for (int64_t i = 0; i < tokens * route->chosen; i++)
        total[choice[i]] += 1;
}

void rs_route_count(const rs_route *route, int64_t sequences, const int32_t *choice, float *counts)
{
    int64_t each = route->seq * route->chosen;
    memset(counts, 0, (size_t)(sequences * route->experts) * sizeof *counts);
    for (int64_t i = 0; i < sequences * each; i++)
        counts[i / each * route->experts + choice[i]] += 1;
}

/* pull_e of one sequence. */
static void pulls(const rs_route *route, const float *counts, float *pull)
{
    double scale = route->balance * (double)route->experts / (double)route->whole;
    for (int64_t e = 0; e < route->experts; e++)
        pull[e] = (float)((double)counts[e] * scale);
}

double rs_route_balance(const rs_route *route, int64_t tokens, const float *probabilities,
    const float *counts, float *scratch)
{
    double sum = 0;
    for (int64_t first = 0; first < tokens; first += route->seq, counts += route->experts) {
        pulls(route, counts, scratch);
        for (int64_t t = first; t < first + route->seq; t++)
            for (int64_t e = 0; e < route->experts; e++)
                sum += (double)scratch[e] * (double)probabilities[t * route->experts + e];
    }
    return sum;
}

/* One token: p becomes the gradient of the router's outputs. */
static void token_backward(const rs_route *route, const int32_t *choice, const float *weight,
    const float *dweight, float scale, const float *pull, float *p)
{
    float total = 0;
    float mean = 0;
    for (int64_t j = 0; j < route->chosen; j++) {
        total += p[choice[j]];
        mean += dweight[j] * weight[j];
    }
    /* sum_e p_e dp_e, first of the balance loss, then of the weights. */
    double inner = 0;
    for (int64_t e = 0; e < route->experts; e++)
        inner += (double)p[e] * (double)(scale * pull[e]);
    for (int64_t j = 0; j < route->chosen; j++) {
        float d = route->norm ? (dweight[j] - mean) / total : dweight[j];
        inner += (double)p[choice[j]] * (double)d;
    }
    for (int64_t j = 0; j < route->chosen; j++) {
        float d = route->norm ? (dweight[j] - mean) / total : dweight[j];
        int32_t e = choice[j];
        p[e] = p[e] * (scale * pull[e] + d - (float)inner);
    }
    for (int64_t e = 0; e < route->experts; e++) {
        bool chosen = false;
        for (int64_t j = 0; j < route->chosen; j++)
            chosen = chosen || choice[j] == e;
        if (!chosen)
            p[e] = p[e] * (scale * pull[e] - (float)inner);
    }
}

void rs_route_backward(const rs_route *route, int64_t tokens, const int32_t *choice,
    const float *weight, const float *dweight, const float *counts, float scale,
    float *probabilities, float *scratch)
{
    int64_t k = route->chosen;
    for (int64_t first = 0; first < tokens; first += route->seq, counts += route->experts) {
        pulls(route, counts, scratch);
        for (int64_t t = first; t < first + route->seq; t++)
            token_backward(route, choice + t * k, weight + t * k, dweight + t * k, scale, scratch,
                probabilities + t * route->experts);
    }
}
