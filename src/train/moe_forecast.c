/*
 * The memory of rows at experts, by counting.
 *
 * A rank gets at most the rows of all ranks of its group that choose experts of its ep index: each
 * of their tokens as often as it can choose among them. What moe.c then keeps of a row, for each
 * layer with experts and each micro-batch whose backward pass is to come: the row, its weight, and
 * gate and up of the expert's local width. What it uses in passing, once a chunk: the row as it
 * came, as it is computed and as it goes back, and the expert's activations; and what this rank's
 * own tokens get back.
 *
 * Memory is taken with a quarter to spare when it grows; what is not written costs nothing and is
 * not counted.
 */
#include "train/moe_forecast.h"

#include "base/checked.h"
#include "base/error.h"
#include "train/data.h"
#include "train/schedule.h"
#include "train/sequence.h"

/* Sizes that all ranks have in common. */
typedef struct sizes {
    const rs_model *model;
    const rs_tensor *experts; /* their gates */
    const rs_layout *layout;
    int64_t own; /* tokens of a micro-batch that a rank sends on, at most */
} sizes;

/* Rows that arrive in one pass: at most, and where choices are even. */
static void rows_of(const sizes *s, int ep, int64_t *worst, int64_t *even)
{
    const rs_model *m = s->model;
    int64_t begin, end, first, last, holders = 0;
    rs_layout_ep_range(s->layout, s->experts, 1, ep, &begin, &end);
    for (int i = 0; i < s->layout->ep; i++) {
        rs_layout_ep_range(s->layout, s->experts, 1, i, &first, &last);
        holders += first <= begin && begin < last;
    }
    int64_t sources = rs_ceil_div((int64_t)rs_layout_etp(s->layout) * s->layout->ep, holders);
    *worst = sources * s->own * rs_min64(m->experts_per_token, end - begin);
    *even = rs_min64(
        *worst, rs_ceil_div(sources * s->own * m->experts_per_token * (end - begin), m->experts));
}

/* Bytes of a rank to which `rows` come in every pass, of experts of `width` rows: `kept` times and
 * once in each of `chunks` chunks. */
static int64_t bytes_of(const sizes *s, int64_t rows, int64_t width, int64_t kept, int chunks)
{
    int64_t row = s->model->hidden + 1;
    int64_t returned = rs_layout_etp(s->layout) * s->own * s->model->experts_per_token;
    int64_t floats = kept * rows * (row + 2 * width) +
                     chunks * ((2 * rows + rs_max64(rows, returned)) * row + rows * width);
    return floats * (int64_t)sizeof(float);
}

/* How often a pipeline rank keeps what came: micro-batches under way times layers with experts, of
 * all its chunks. */
static rs_status count_kept(const sizes *s, int stage, int64_t turns, int64_t *kept)
{
    const rs_layout *layout = s->layout;
    rs_schedule schedule;
    rs_status status = rs_schedule_init(layout->pp, stage, layout->vpp, turns, &schedule);
    *kept = 0;
    for (int v = 0; status == RS_OK && v < layout->vpp; v++) {
        int64_t begin, end;
        rs_layout_stage_layers(layout, s->model->layers, v * layout->pp + stage, &begin, &end);
        for (int64_t l = begin; l < end; l++)
            *kept += rs_model_has_experts(s->model, l) ? schedule.slots[v] : 0;
    }
    rs_schedule_fini(&schedule);
    return status;
}

static rs_status check_sizes(const rs_model *m, const rs_moe_load *load)
{
    int64_t most = (int64_t)1 << 30;
    if (load->seq < 1 || load->micro_batch < 1 || load->global_batch < 1 || load->seq > most ||
        load->micro_batch > most / load->seq || load->global_batch > most)
        return rs_error_set(RS_ERR_ARGUMENT,
            "the memory of experts' rows: sequences of %lld tokens, %lld in a micro-batch, %lld in "
            "a step: from 1 to %lld tokens are possible",
            (long long)load->seq, (long long)load->micro_batch, (long long)load->global_batch,
            (long long)most);
    if (m->hidden > most || m->expert_ffn > most)
        return rs_error_set(RS_ERR_OVERFLOW, "the memory of experts' rows does not fit 64 bits");
    return RS_OK;
}

rs_status rs_moe_forecast_make(const rs_model *model, const rs_space *space,
    const rs_layout *layout, const rs_moe_load *load, rs_moe_forecast *out)
{
    *out = (rs_moe_forecast){0};
    int gate = rs_space_find_tensor(space, "layers.experts.gate.weight");
    if (gate < 0)
        return RS_OK;
    RS_TRY(check_sizes(model, load));
    rs_sequence sequence = {load->seq, layout->cp, 0};
    int64_t tokens = 0, first, turns, width, skipped;
    for (int cp = 0; cp < layout->cp; cp++)
        tokens = rs_max64(tokens, rs_sequence_own(&sequence, cp));
    rs_batch_deal(load->global_batch, load->micro_batch, layout->dp, 0, &first, &turns);
    sizes s = {model, rs_space_tensor(space, gate), layout,
        rs_ceil_div(tokens * load->micro_batch, layout->tp)};
    rs_layout_tp_range(layout, s.experts, 2, 0, &skipped, &width);
    for (int stage = 0; stage < layout->pp; stage++) {
        int64_t kept;
        RS_TRY(count_kept(&s, stage, turns, &kept));
        for (int ep = 0; kept > 0 && ep < layout->ep; ep++) {
            int64_t worst, even;
            rows_of(&s, ep, &worst, &even);
            out->worst = rs_max64(out->worst, bytes_of(&s, worst, width, kept, layout->vpp));
            out->even = rs_max64(out->even, bytes_of(&s, even, width, kept, layout->vpp));
        }
    }
    return RS_OK;
}
