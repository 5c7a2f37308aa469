/*
 * Which experts a token passes through, with which weights, and how evenly a sequence uses them.
 * What is computed, exactly: docs/training.md. All functions are local and cannot fail.
 */
#ifndef RS_TRAIN_MOE_ROUTE_H
#define RS_TRAIN_MOE_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

/* A choice whose margin, the probability of the last chosen expert less that of the first left out,
 * is below this is close: another order of a sum's terms may turn it. */
#define RS_ROUTE_CLOSE 1e-5f

typedef struct rs_route {
    int64_t experts;
    int64_t chosen; /* experts of a token */
    bool norm;      /* the chosen experts' weights are scaled to sum to 1 */
    int64_t seq;    /* tokens of a sequence that are here */
    int64_t whole;  /* and on all ranks */
    double balance; /* coefficient of the balance loss: its weight over the layers that have it */
} rs_route;

/*
 * `probabilities` [tokens, experts] holds the router's outputs and gets their softmax. Of each
 * token, `choice` and `weight` [tokens, chosen] get the experts, the most probable first and of
 * equals the one with the lower number, and what they count. `bias` [experts], NULL for none, is
 * added to the probabilities to choose, not to weigh. Returns how many choices are close.
 */
int64_t rs_route_choose(int threads, const rs_route *route, int64_t tokens, const float *bias,
    float *probabilities, int32_t *choice, float *weight);

/* Adds to `total` [experts] how many of the tokens' choices are each expert. */
void rs_route_add(const rs_route *route, int64_t tokens, const int32_t *choice, float *total);

/* How often the tokens of each sequence that are here chose each expert: `counts` [sequences,
 * experts]. Summed over the ranks that have the others, they are those of whole sequences. */
void rs_route_count(const rs_route *route, int64_t sequences, const int32_t *choice, float *counts);

/* The balance loss of sequences, with `counts` of the whole ones, summed over the tokens that are
 * here. `scratch` has room for `experts` floats. */
double rs_route_balance(const rs_route *route, int64_t tokens, const float *probabilities,
    const float *counts, float *scratch);

/*
 * From the gradient of the weights, `dweight` [tokens, chosen], and that of the balance loss, which
 * counts `scale` times, to the gradient of the router's outputs, which overwrites `probabilities`.
 */
void rs_route_backward(const rs_route *route, int64_t tokens, const int32_t *choice,
    const float *weight, const float *dweight, const float *counts, float scale,
    float *probabilities, float *scratch);

#endif
