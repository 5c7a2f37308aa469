/* Shapes that no stage can have: ranges beyond the model, heads without their keys, sizes that a
 * matrix product cannot take. */
#include <inttypes.h>
#include <limits.h>

#include "base/checked.h"
#include "base/error.h"
#include "train/stage.h"

static rs_status check_range(const char *what, int64_t begin, int64_t end, int64_t limit)
{
    if (begin < 0 || begin > end || end > limit)
        return rs_error_set(RS_ERR_ARGUMENT,
            "stage: %s %" PRId64 "..%" PRId64 " do not lie within 0..%" PRId64, what, begin, end,
            limit);
    return RS_OK;
}

/* OpenBLAS takes 32-bit sizes. */
static rs_status check_product_size(const char *what, int64_t size)
{
    if (size > INT_MAX)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "stage: %s is %" PRId64 ", a matrix product takes up to %d", what, size, INT_MAX);
    return RS_OK;
}

static rs_status check_experts(const rs_stage_shape *s)
{
    const rs_model *m = &s->model;
    const rs_dispatch_shape *d = &s->dispatch;
    RS_TRY(check_range("rows of the shared expert", s->shared_begin, s->shared_end, m->shared_ffn));
    RS_TRY(check_range("rows of an expert", s->expert_begin, s->expert_end, m->expert_ffn));
    RS_TRY(check_product_size("the number of experts", m->experts));
    if (d->experts != m->experts || d->ep < 1 || d->etp < 1 || d->ep_rank < 0 ||
        d->ep_rank >= d->ep || d->etp_rank < 0 || d->etp_rank >= d->etp || s->tp_ranks < 1 ||
        s->tp_rank < 0 || s->tp_rank >= s->tp_ranks)
        return rs_error_set(RS_ERR_ARGUMENT,
            "stage: %" PRId64 " experts dealt, the model has %" PRId64
            "; ep %d of %d, etp %d of %d, tp %d of %d",
            d->experts, m->experts, d->ep_rank, d->ep, d->etp_rank, d->etp, s->tp_rank,
            s->tp_ranks);
    for (int i = 0; i < d->ep; i++)
        RS_TRY(check_range("experts", d->begin[i], d->end[i], m->experts));
    return RS_OK;
}

rs_status rs_stage_check(const rs_stage_shape *s)
{
    const rs_model *m = &s->model;
    if (m->hidden < 1 || m->heads < 1 || m->kv_heads < 1 || m->heads % m->kv_heads != 0 ||
        m->head_dim < 2 || m->head_dim % 2 != 0 || m->ffn < 0 || m->vocab < 1)
        return rs_error_set(RS_ERR_ARGUMENT,
            "stage: model %s: hidden %" PRId64 ", heads %" PRId64 "/%" PRId64 ", head size %" PRId64
            ", ffn %" PRId64 ", vocabulary %" PRId64
            ": sizes must be positive, kv heads divide heads, and the head size be even",
            m->name, m->hidden, m->heads, m->kv_heads, m->head_dim, m->ffn, m->vocab);
    if ((s->cp_ranks > 0 && (s->cp_rank < 0 || s->cp_rank >= s->cp_ranks)) ||
        (s->tp_ranks > 0 && (s->tp_rank < 0 || s->tp_rank >= s->tp_ranks)))
        return rs_error_set(RS_ERR_ARGUMENT, "stage: rank %d of %d tp ranks, %d of %d cp ranks",
            s->tp_rank, s->tp_ranks, s->cp_rank, s->cp_ranks);
    if (s->seq < 1 || s->max_batch < 0 || s->slots < 1)
        return rs_error_set(RS_ERR_ARGUMENT,
            "stage: %" PRId64 " tokens, micro-batch %" PRId64
            ", %d slots: at least 1, 0 and 1 are needed",
            s->seq, s->max_batch, s->slots);
    RS_TRY(check_range("layers", s->layer_begin, s->layer_end, m->layers));
    RS_TRY(check_range("query heads", s->q_begin, s->q_end, m->heads));
    RS_TRY(check_range("key/value heads", s->kv_begin, s->kv_end, m->kv_heads));
    RS_TRY(check_range("feed-forward rows", s->ffn_begin, s->ffn_end, m->ffn));
    RS_TRY(check_range("vocabulary rows", s->vocab_begin, s->vocab_end, m->vocab));
    int64_t group = m->heads / m->kv_heads;
    bool fits = s->q_begin == s->q_end ? s->kv_begin == s->kv_end
                                       : s->kv_begin == s->q_begin / group &&
                                             s->kv_end == rs_ceil_div(s->q_end, group);
    if (!fits)
        return rs_error_set(RS_ERR_ARGUMENT,
            "stage: query heads %" PRId64 "..%" PRId64 " of groups of %" PRId64
            " do not use exactly key/value heads %" PRId64 "..%" PRId64,
            s->q_begin, s->q_end, group, s->kv_begin, s->kv_end);
    if (m->experts > 0)
        RS_TRY(check_experts(s));
    int64_t rows;
    int64_t width;
    if (!rs_mul_fits(s->seq, s->max_batch, &rows) ||
        !rs_mul_fits(m->heads + 2 * m->kv_heads, m->head_dim, &width))
        return rs_error_set(RS_ERR_OVERFLOW, "stage: its sizes do not fit 64 bits");
    RS_TRY(check_product_size("the micro-batch in tokens", rows));
    RS_TRY(check_product_size("the hidden size", m->hidden));
    RS_TRY(check_product_size("the attention's width", width));
    RS_TRY(check_product_size("the feed-forward size", rs_min64(m->ffn, INT_MAX) * 2));
    return check_product_size("the vocabulary", m->vocab);
}
