/*
 * A stage's working memory: what it keeps of micro-batches in flight, and buffers. Shared by
 * stage.c and stage_memory.c, and by nobody else.
 */
#ifndef RS_TRAIN_STAGE_MEMORY_H
#define RS_TRAIN_STAGE_MEMORY_H

#include "train/moe.h"
#include "train/rows.h"
#include "train/stage.h"

/* What the backward pass needs of a layer. */
typedef struct rs_saved_layer {
    float *x;       /* [own rows, H] input */
    float *qkv;     /* [rows, q + 2 kv], after norm and rotation */
    float *raw;     /* [rows, q + kv] before the q and k norms; NULL without them */
    float *context; /* [rows, q] attention's output */
    float *lse;     /* [batch, heads, own tokens] */
    float *middle;  /* [own rows, H] after attention */
    float *gate_up; /* [rows, 2 F]; of a layer without experts */
} rs_saved_layer;

typedef struct rs_slot {
    bool filled;
    int64_t batch;
    int64_t step; /* of its sequences, and the first one's number in it */
    int64_t first;
    uint8_t *tokens;
    uint8_t *targets;
    rs_saved_layer *layers;
    float *x;            /* [own rows, H] after the layers; last stage */
    float *exponentials; /* [rows, V local]; last stage */
    float *sums;         /* [2, rows] reduced; last stage */
} rs_slot;

struct rs_stage {
    rs_stage_shape shape;
    rs_stage_blocks blocks;
    rs_rows rows;
    int threads;
    int64_t layers;
    int64_t q; /* widths of the local q, and k or v */
    int64_t kv_width;
    int64_t ffn;
    int64_t vocab;
    rs_moe *moe; /* of a model with experts */
    float *memory;
    int64_t bytes;        /* of it */
    rs_saved_layer again; /* what is recomputed, of the layer at hand */
    float *dropped;       /* [own rows, H]; with dropout */
    rs_slot *slots;
    float *rotation; /* table of rs_rotate */
    float *normed;   /* [rows, H] */
    float *partial;  /* [rows, H] what is summed over the group */
    float *stream;   /* [own rows, H] the gradient of x */
    float *spread;   /* [rows, H] the gradient of all rows; with sp */
    float *kv;       /* [batch * seq, 2 kv] of whole sequences, and so the next two; under cp */
    float *dkv;
    float *kv_scratch;
    float *act;      /* [rows, F] */
    float *dqkv;     /* [rows, q + 2 kv] */
    float *dcontext; /* [rows, q] */
    float *inverse;  /* [rows] */
    float *norm_scratch;
    float *attention_scratch;
};

/* Allocates all of it, once the sizes above are there. */
rs_status rs_stage_allocate(rs_stage *stage) RS_MUST_CHECK;

#endif
