/*
 * Initial weights from a counter.
 *
 * An element's bits are the SplitMix64 stream (Steele, Lea, Flood: Fast splittable pseudorandom
 * number generators, OOPSLA 2014) of a key made from seed and tensor name, at the element's own
 * number. The sum of four uniforms is near enough to normal for weights, bounded (3.46 standard
 * deviations), and needs no function whose last bit differs between maths libraries.
 *
 * Invariants: (1) a value depends on nothing but seed, tensor and element, so any box of a tensor
 * equals the same part of the whole; (2) init.h's text defines every bit. Cost: about a nanosecond
 * an element.
 */
#include "train/init.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"

#define SUM_MEAN 131070
#define SUM_VARIANCE 1431655765.0
#define STD 0.02

uint64_t rs_init_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    return hash;
}

static bool ends_in(const char *name, const char *ending)
{
    size_t length = strlen(name);
    size_t wanted = strlen(ending);
    return length >= wanted && strcmp(name + length - wanted, ending) == 0;
}

/* What a half-layer adds to the residual stream comes out of these. */
static bool is_output(const char *name)
{
    static const char *const names[] = {"layers.attn.o.weight", "layers.mlp.down.weight",
        "layers.experts.down.weight", "layers.shared.down.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* What a tensor's elements are: `constant`, or random with factor `unit` on the centred sum. */
typedef struct recipe {
    uint64_t key;
    double unit; /* 0: constant */
    float constant;
} recipe;

static recipe recipe_of(uint64_t seed, const rs_tensor *tensor)
{
    recipe r = {.key = rs_init_mix(rs_init_mix(seed) + rs_init_name(tensor->name))};
    if (ends_in(tensor->name, "norm.weight")) {
        r.constant = 1.0f;
    } else if (!ends_in(tensor->name, ".bias")) {
        double layers = (double)rs_tensor_layer_end(tensor);
        double std = is_output(tensor->name) ? STD / sqrt(2.0 * layers) : STD;
        r.unit = std / sqrt(SUM_VARIANCE);
    }
    return r;
}

/* Elements index, index + 1, ... of the tensor. */
static void fill_run(const recipe *r, uint64_t index, int64_t count, int64_t stride, float *out)
{
    if (r->unit == 0) {
        for (int64_t i = 0; i < count; i++)
            out[i * stride] = r->constant;
        return;
    }
    uint64_t state = r->key + (index + 1) * RS_INIT_GOLDEN;
    for (int64_t i = 0; i < count; i++, state += RS_INIT_GOLDEN) {
        uint64_t bits = rs_init_mix(state);
        int sum = (int)(bits & 0xffff) + (int)(bits >> 16 & 0xffff) + (int)(bits >> 32 & 0xffff) +
                  (int)(bits >> 48);
        out[i * stride] = (float)((double)(sum - SUM_MEAN) * r->unit);
    }
}

rs_status rs_init_fill(
    uint64_t seed, const rs_tensor *tensor, const rs_box *box, const int64_t *stride, float *out)
{
    RS_TRY(rs_box_check(box, tensor->ndim, tensor->shape));
    if (rs_box_is_empty(box))
        return RS_OK;
    recipe r = recipe_of(seed, tensor);
    int last = box->ndim - 1;
    int64_t count = last >= 0 ? box->extent[last] : 1;
    int64_t step = last >= 0 ? stride[last] : 1;
    int64_t at[RS_MAX_DIMS] = {0};
    for (;;) {
        uint64_t index = 0;
        int64_t place = 0;
        for (int d = 0; d <= last; d++) {
            index = index * (uint64_t)tensor->shape[d] + (uint64_t)(box->offset[d] + at[d]);
            place += at[d] * stride[d];
        }
        fill_run(&r, index, count, step, out + place);
        int d = last - 1;
        while (d >= 0 && ++at[d] == box->extent[d])
            at[d--] = 0;
        if (d < 0)
            return RS_OK;
    }
}
