/* Looks at the stage after each forward pass, before the slot is used again. */
#include "train/moe_watch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "train/sequence.h"

struct rs_moe_watch {
    int64_t chosen; /* experts of a token */
    FILE *trace;
    char *path;
    int64_t step;
    rs_moe_totals totals;
    int32_t *experts; /* of one token */
};

rs_status rs_moe_watch_create(const rs_model *model, const char *trace, rs_moe_watch **out)
{
    rs_status status;
    size_t chosen = (size_t)model->experts_per_token;
    rs_moe_watch *w = rs_calloc(1, sizeof *w);
    if (w == NULL)
        return rs_error_memory(sizeof *w);
    w->chosen = model->experts_per_token;
    w->experts = rs_calloc(chosen, sizeof *w->experts);
    if (w->experts == NULL) {
        status = rs_error_memory(chosen * sizeof *w->experts);
        goto fail;
    }
    if (trace != NULL) {
        w->path = rs_calloc(strlen(trace) + 1, 1);
        if (w->path == NULL) {
            status = rs_error_memory(strlen(trace) + 1);
            goto fail;
        }
        memcpy(w->path, trace, strlen(trace));
        w->trace = fopen(trace, "a");
        if (w->trace == NULL) {
            status = rs_error_errno(errno, "cannot write %s", trace);
            goto fail;
        }
    }
    *out = w;
    return RS_OK;

fail:
    rs_moe_watch_destroy(w);
    return status;
}

void rs_moe_watch_destroy(rs_moe_watch *w)
{
    if (w == NULL)
        return;
    if (w->trace != NULL)
        fclose(w->trace);
    free(w->path);
    free(w->experts);
    free(w);
}

void rs_moe_watch_begin(rs_moe_watch *w, int64_t step)
{
    w->step = step;
    w->totals = (rs_moe_totals){0};
}

/* `count` tokens of a sequence, from `position` on. */
static void write_run(rs_moe_watch *w, int64_t layer, int64_t sequence, int64_t position,
    int64_t count, const int32_t *choice)
{
    int64_t k = w->chosen;
    if (count == 0)
        return;
    fprintf(w->trace, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64, w->step, layer, sequence,
        position);
    for (int64_t t = 0; t < count; t++) {
        memcpy(w->experts, choice + t * k, (size_t)k * sizeof *w->experts);
        qsort(w->experts, (size_t)k, sizeof *w->experts, rs_compare_ints);
        for (int64_t j = 0; j < k; j++)
            fprintf(w->trace, " %" PRId32, w->experts[j]);
    }
    fprintf(w->trace, "\n");
}

static rs_status write_lines(rs_moe_watch *w, const rs_stage_shape *shape, int64_t layer,
    int64_t sequence, const rs_stage_routing *routing)
{
    const rs_sequence tokens = {shape->seq, shape->cp_ranks, shape->cp_rank};
    rs_positions at[2];
    rs_sequence_positions(&tokens, tokens.rank, at);
    const int32_t *choice = routing->choice;
    int64_t own = rs_stage_tokens(shape);
    for (int64_t first = 0; first < routing->rows; first += own, sequence++)
        for (int part = 0; part < 2; part++) {
            int64_t count = at[part].end - at[part].begin;
            write_run(w, layer, sequence, at[part].begin, count, choice);
            choice += count * w->chosen;
        }
    if (fflush(w->trace) != 0 || ferror(w->trace))
        return rs_error_errno(errno, "cannot write %s", w->path);
    return RS_OK;
}

rs_status rs_moe_watch_pass(
    rs_moe_watch *w, const rs_stage_shape *shape, const rs_stage *stage, int64_t sequence, int slot)
{
    int64_t layers = shape->layer_end - shape->layer_begin;
    for (int64_t l = 0; l < layers; l++) {
        rs_stage_routing routing;
        rs_stage_routed(stage, slot, l, &routing);
        w->totals.balance += routing.balance;
        w->totals.close += routing.close;
        if (w->trace != NULL && routing.rows > 0)
            RS_TRY(write_lines(w, shape, shape->layer_begin + l, sequence, &routing));
    }
    return RS_OK;
}

rs_moe_totals rs_moe_watch_totals(const rs_moe_watch *w)
{
    return w->totals;
}
