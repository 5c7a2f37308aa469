/*
 * Training steps of the figures' model on one rank, without the distributed loop: forward,
 * backward, clipping and AdamW. Usage: stage [--steps N] [--batch B] [--micro b] [--threads T]
 *. Prints the median step's tokens per second; bench/stage.sh compares it with PyTorch.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../tests/decoder.h"
#include "train/kernels.h"
#include "train/simd.h"

#define SEQ 256
#define WARM 2

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "stage: %s: %s\n", what, rs_error_message());
    exit(1);
}

RS_CLONES static double gradient_norm(const decoder *gradients)
{
    double total = 0;
    for (int64_t i = 0; i < gradients->elements; i += 4096) {
        float part = 0;
        int64_t end = i + 4096 < gradients->elements ? i + 4096 : gradients->elements;
#pragma omp simd reduction(+ : part)
        for (int64_t j = i; j < end; j++)
            part += gradients->memory[j] * gradients->memory[j];
        total += (double)part;
    }
    return sqrt(total);
}

/* AdamW over everything, as one flat array; the gradient is left zero. */
RS_CLONES static void update(
    decoder *weights, decoder *gradients, float *first, float *second, int step)
{
    const float rate = 3e-4f;
    double norm = gradient_norm(gradients);
    float clip = norm > 1 ? (float)(1 / norm) : 1;
    float correct_first = (float)(1 / (1 - pow(0.9, step)));
    float correct_second = (float)(1 / (1 - pow(0.95, step)));
    float *restrict w = weights->memory;
    float *restrict g = gradients->memory;
#pragma omp simd
    for (int64_t i = 0; i < weights->elements; i++) {
        float d = g[i] * clip;
        first[i] = 0.9f * first[i] + 0.1f * d;
        second[i] = 0.95f * second[i] + 0.05f * d * d;
        w[i] = w[i] - rate * 0.1f * w[i] -
               rate * (first[i] * correct_first) / (sqrtf(second[i] * correct_second) + 1e-8f);
        g[i] = 0;
    }
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    int steps = 10;
    int batch = 8;
    int micro = 0;
    int threads = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        int *value = strcmp(argv[i], "--steps") == 0     ? &steps
                     : strcmp(argv[i], "--batch") == 0   ? &batch
                     : strcmp(argv[i], "--micro") == 0   ? &micro
                     : strcmp(argv[i], "--threads") == 0 ? &threads
                                                         : NULL;
        if (value == NULL || (*value = (int)strtol(argv[i + 1], NULL, 10)) < 1) {
            fprintf(stderr, "stage: %s %s: not an option\n", argv[i], argv[i + 1]);
            return 2;
        }
    }
    if (micro == 0 || micro > batch)
        micro = batch;
    rs_model model = {.name = "llama-tiny",
        .layers = 4,
        .hidden = 256,
        .heads = 8,
        .kv_heads = 4,
        .head_dim = 32,
        .ffn = 688,
        .vocab = 256,
        .tied = true,
        .norm_eps = 1e-5,
        .rope_theta = 10000};
    rs_product_set_threads(threads);
    rs_stage_shape shape = whole_shape(&model, SEQ, micro, 1);
    decoder weights = decoder_create(&shape, 0);
    decoder gradients = decoder_create(&shape, 0);
    float *first = calloc((size_t)weights.elements, sizeof *first);
    float *second = calloc((size_t)weights.elements, sizeof *second);
    double *seconds = calloc((size_t)steps + WARM, sizeof *seconds);
    double *busy = calloc((size_t)steps + WARM, sizeof *busy);
    uint8_t *data = malloc((size_t)batch * SEQ + 1);
    rs_stage *stage;
    if (decoder_init(1, &shape, &weights) != RS_OK)
        fail("initial weights");
    if (rs_stage_create(&shape, NULL, &stage) != RS_OK)
        fail("stage");
    for (int64_t i = 0; i <= batch * SEQ; i++)
        data[i] = (uint8_t)(i * i % 251);
    double loss = 0;
    for (int step = 0; step < steps + WARM; step++) {
        double start = now(CLOCK_MONOTONIC);
        double busy_start = now(CLOCK_PROCESS_CPUTIME_ID);
        double part;
        loss = 0;
        for (int64_t b = 0; b < batch; b += micro, loss += part) {
            int64_t count = b + micro <= batch ? micro : batch - b;
            const uint8_t *tokens = data + b * SEQ;
            if (rs_stage_forward(stage, &weights.tensors, 0, count, tokens, tokens + 1, NULL, NULL,
                    &part) != RS_OK ||
                rs_stage_backward(stage, &weights.tensors, &gradients.tensors, 0,
                    1.0f / (float)(batch * SEQ), NULL, NULL) != RS_OK)
                fail("step");
        }
        update(&weights, &gradients, first, second, step + 1);
        seconds[step] = now(CLOCK_MONOTONIC) - start;
        busy[step] = now(CLOCK_PROCESS_CPUTIME_ID) - busy_start;
    }
    qsort(seconds + WARM, (size_t)steps, sizeof *seconds, compare_seconds);
    qsort(busy + WARM, (size_t)steps, sizeof *busy, compare_seconds);
    double tokens = (double)batch * SEQ;
    printf("%.1f tokens/s, %.1f by processor time (batch %d in micro-batches of %d, %d threads, "
           "loss %.6f)\n",
        tokens / seconds[WARM + steps / 2], tokens / busy[WARM + steps / 2], batch, micro, threads,
        loss / tokens);
    rs_stage_destroy(stage);
    decoder_destroy(&weights);
    decoder_destroy(&gradients);
    free(first);
    free(second);
    free(seconds);
    free(busy);
    free(data);
    return 0;
}
