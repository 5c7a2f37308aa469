/* Twenty steps of one stage on one rank, with a plain AdamW, against PyTorch's losses and gradient
 * norms (oracle.py), so that a difference in the distributed trainer is known not to come from
 * here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "decoder.h"
#include "train/kernels.h"

#define TOLERANCE 1e-5 /* a tenth of what the distributed trainer is allowed */
#define MICRO 3        /* does not divide the batch */

static json_t *load_oracle(const char *name)
{
    char path[512];
    json_error_t error;
    snprintf(path, sizeof path, "%s/oracle_%s.json", RS_TRAIN_DIR, name);
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL)
        fail_msg("%s: %s", path, error.text);
    return root;
}

static int64_t whole_number(json_t *root, const char *key)
{
    json_t *value = json_object_get(root, key);
    if (!json_is_integer(value))
        fail_msg("no number %s", key);
    return json_integer_value(value);
}

static double number(json_t *root, const char *key)
{
    json_t *value = json_object_get(root, key);
    if (!json_is_number(value))
        fail_msg("no number %s", key);
    return json_number_value(value);
}

static uint8_t *load_data(const char *name, int64_t *size)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", RS_TRAIN_DIR, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    uint8_t *data = malloc(1 << 20);
    *size = (int64_t)fread(data, 1, 1 << 20, file);
    assert_true(*size > 0 && *size < 1 << 20);
    fclose(file);
    return data;
}

typedef struct schedule {
    int64_t steps;
    int64_t warmup;
    double peak;
} schedule;

static double rate_of(const schedule *s, int64_t step)
{
    if (step <= s->warmup)
        return s->peak * (double)step / (double)s->warmup;
    double progress = (double)(step - s->warmup) / (double)(s->steps - s->warmup);
    return s->peak * (0.1 + 0.9 * 0.5 * (1 + cos(acos(-1.0) * progress)));
}

/* One AdamW update of everything; returns the gradient's norm before clipping. Gradients become
 * zero. */
static double update(const rs_stage_shape *shape, decoder *w, decoder *g, decoder *m, decoder *v,
    int64_t step, double rate)
{
    double square = 0;
    for (int64_t i = 0; i < g->elements; i++)
        square += (double)g->memory[i] * (double)g->memory[i];
    double norm = sqrt(square);
    double clip = norm > 1 ? 1 / norm : 1;
    for (int f = 0; f < FIELDS; f++)
        for (int64_t l = 0;
             has_field(shape, &fields[f]) && l < (per_layer(&fields[f]) ? shape->model.layers : 1);
             l++) {
            if (!has_in_layer(shape, &fields[f], l))
                continue;
            int64_t start = *field_place(w, &fields[f], l) - w->memory;
            for (int64_t i = start; i < start + field_elements(shape, &fields[f]); i++) {
                float d = (float)(g->memory[i] * clip);
                m->memory[i] = 0.9f * m->memory[i] + 0.1f * d;
                v->memory[i] = 0.95f * v->memory[i] + 0.05f * d * d;
                double first = m->memory[i] / (1 - pow(0.9, (double)step));
                double second = v->memory[i] / (1 - pow(0.95, (double)step));
                double change = first / (sqrt(second) + 1e-8);
                if (fields[f].decay)
                    change += 0.1 * w->memory[i];
                w->memory[i] = (float)(w->memory[i] - rate * change);
                g->memory[i] = 0;
            }
        }
    return norm;
}

static void assert_near(const char *model, const char *what, int64_t step, double got, json_t *list)
{
    double wanted = json_number_value(json_array_get(list, (size_t)step - 1));
    if (!(fabs(got - wanted) <= TOLERANCE * wanted))
        fail_msg("%s, step %d: %s %.9g, PyTorch has %.9g", model, (int)step, what, got, wanted);
}

static int compare_experts(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static bool is_close(json_t *list, int64_t token)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == token)
            return true;
    return false;
}

/* Every token's experts are PyTorch's, but where the choice is close. Adds the layer's balance. */
static void check_routing(const rs_stage *stage, const rs_model *m, json_t *oracle, int64_t step,
    int64_t layer, int64_t first, double *balance)
{
    rs_stage_routing r;
    int32_t experts[64];
    size_t place = (size_t)(layer - m->dense_first);
    rs_stage_routed(stage, 0, layer, &r);
    *balance += r.balance;
    if (layer < m->dense_first || m->experts == 0)
        return;
    json_t *routing = json_array_get(json_object_get(oracle, "routing"), (size_t)step - 1);
    json_t *close = json_array_get(json_object_get(oracle, "close"), (size_t)step - 1);
    const char *text = json_string_value(json_array_get(routing, place));
    int64_t k = m->experts_per_token;
    assert_non_null(text);
    assert_true((int64_t)strlen(text) >= (first + r.rows) * k);
    for (int64_t t = 0; t < r.rows; t++) {
        memcpy(experts, r.choice + t * k, (size_t)k * sizeof *experts);
        qsort(experts, (size_t)k, sizeof *experts, compare_experts);
        for (int64_t j = 0; j < k; j++)
            if ("0123456789abcdef"[experts[j]] != text[(first + t) * k + j] &&
                !is_close(json_array_get(close, place), first + t))
                fail_msg("step %d, layer %d, token %d: expert %d, PyTorch has %c", (int)step,
                    (int)layer, (int)(first + t), (int)experts[j], text[(first + t) * k + j]);
    }
}

static void check_model(const char *name)
{
    rs_model model;
    char path[512];
    snprintf(path, sizeof path, "%s/models/%s", RS_TRAIN_DIR, name);
    assert_int_equal(rs_model_load(path, &model), RS_OK);
    json_t *oracle = load_oracle(name);
    int64_t size;
    uint8_t *data = load_data(json_string_value(json_object_get(oracle, "data")), &size);
    int64_t seq = whole_number(oracle, "seq");
    int64_t batch = whole_number(oracle, "global_batch");
    schedule s = {
        whole_number(oracle, "steps"), whole_number(oracle, "warmup"), number(oracle, "lr")};

    rs_stage_shape shape = whole_shape(&model, seq, MICRO, 1);
    decoder w = decoder_create(&shape, 0);
    decoder g = decoder_create(&shape, 0);
    decoder m = decoder_create(&shape, 0);
    decoder v = decoder_create(&shape, 0);
    uint8_t *tokens = malloc((size_t)(MICRO * seq));
    uint8_t *targets = malloc((size_t)(MICRO * seq));
    rs_stage *stage;
    assert_int_equal(decoder_init((uint64_t)whole_number(oracle, "seed"), &shape, &w), RS_OK);
    assert_int_equal(rs_stage_create(&shape, NULL, &stage), RS_OK);
    for (int64_t step = 1; step <= s.steps; step++) {
        double loss = 0, balance = 0;
        for (int64_t first = 0; first < batch; first += MICRO) {
            int64_t count = first + MICRO <= batch ? MICRO : batch - first;
            double part;
            for (int64_t i = 0; i < count; i++) {
                int64_t sample = (step - 1) * batch + first + i;
                const uint8_t *from = data + sample * seq % (size - seq);
                memcpy(tokens + i * seq, from, (size_t)seq);
                memcpy(targets + i * seq, from + 1, (size_t)seq);
            }
            assert_int_equal(
                rs_stage_forward(stage, &w.tensors, 0, count, tokens, targets, NULL, NULL, &part),
                RS_OK);
            for (int64_t l = 0; l < model.layers; l++)
                check_routing(stage, &model, oracle, step, l, first * seq, &balance);
            assert_int_equal(rs_stage_backward(stage, &w.tensors, &g.tensors, 0,
                                 1.0f / (float)(batch * seq), NULL, NULL),
                RS_OK);
            loss += part;
        }
        double norm = update(&shape, &w, &g, &m, &v, step, rate_of(&s, step));
        assert_near(
            name, "loss", step, loss / (double)(batch * seq), json_object_get(oracle, "losses"));
        if (model.experts > 0)
            assert_near(name, "balance loss", step, balance / (double)(batch * seq),
                json_object_get(oracle, "aux_losses"));
        assert_near(name, "gradient norm", step, norm, json_object_get(oracle, "grad_norms"));
    }
    rs_stage_destroy(stage);
    decoder_destroy(&w);
    decoder_destroy(&g);
    decoder_destroy(&m);
    decoder_destroy(&v);
    free(tokens);
    free(targets);
    free(data);
    json_decref(oracle);
}

static void test_llama(void **state)
{
    (void)state;
    check_model("llama-uneven");
}

static void test_qwen2(void **state)
{
    (void)state;
    check_model("qwen2-small");
}

static void test_qwen3(void **state)
{
    (void)state;
    check_model("qwen3-small");
}

static void test_mixtral(void **state)
{
    (void)state;
    check_model("mixtral-small");
}

static void test_qwen2_moe(void **state)
{
    (void)state;
    check_model("qwen2-moe-small");
}

static void test_qwen3_moe(void **state)
{
    (void)state;
    check_model("qwen3-moe-small");
}

int main(void)
{
    rs_product_set_threads(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_mixtral),
        cmocka_unit_test(test_qwen2_moe),
        cmocka_unit_test(test_qwen3_moe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
