/* What the benchmarks of checkpoints share: a state of a given size, where a layout has it, and
 * ending when a call fails. */
#ifndef RS_BENCH_STATE_H
#define RS_BENCH_STATE_H

#include <stdio.h>
#include <stdlib.h>

#include "reshard/layout.h"
#include "reshard/model.h"

#ifndef RS_BENCH_RANKS_H /* whose own ends all ranks */
/* Ends the program unless `status` is good; `what` was tried. */
static inline void need(rs_status status, const char *what)
{
    if (status == RS_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, rs_error_message());
    exit(1);
}
#endif

/* A Llama-like model whose state has about so many bytes. */
static inline rs_space *make_space(int64_t bytes)
{
    rs_model model;
    rs_space *space = NULL;
    need(rs_model_load("llama-tiny", &model), "model");
    model.hidden = 1024;
    model.heads = 8;
    model.kv_heads = 4;
    model.head_dim = 128;
    model.ffn = 2816;
    model.vocab = 8192;
    for (model.layers = 1;; model.layers++) {
        rs_space_destroy(space);
        need(rs_model_space(&model, RS_DTYPE_F32, &space), "space");
        if (rs_space_bytes(space, -1) >= bytes)
            return space;
    }
}

/* Where a layout, as text, has the space. */
static inline rs_placement *place(const rs_space *space, const char *text)
{
    rs_layout layout;
    rs_placement *placement;
    need(rs_layout_parse(text, &layout), "layout");
    need(rs_layout_placement(space, &layout, &placement), "placement");
    return placement;
}

#endif
