/*
 * One pipeline stage of the decoder, as one tp rank computes it: forward and backward of a
 * micro-batch.
 *
 * The mathematics is written once for any (tp, sp, cp, pp): a rank computes the heads, feed-forward
 * rows and vocabulary rows that its boxes have, and sums partial results over its tp group through
 * the callbacks. Activations and gradients are float32; weights are given as float32 (for 16-bit
 * parameters the caller keeps an expanded copy). All functions are local but for the callbacks.
 */
#ifndef RS_TRAIN_STAGE_H
#define RS_TRAIN_STAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/model.h"
#include "reshard/status.h"
#include "train/moe_dispatch.h"

/* What is computed again in the backward pass instead of being kept from the forward pass. */
typedef enum rs_recompute {
    RS_RECOMPUTE_NONE = 0,
    RS_RECOMPUTE_SELECTIVE, /* attention's output, from queries, keys and values */
    RS_RECOMPUTE_FULL       /* all of a layer but its input and what its experts keep */
} rs_recompute;

/* What this rank has of the model. Ranges are half-open and may be empty. */
typedef struct rs_stage_shape {
    rs_model model;
    int64_t layer_begin, layer_end;
    bool first;               /* embeds the tokens */
    bool last;                /* final norm, output layer, loss */
    bool both_ends;           /* this rank has the first stage and the last, so a tied embedding
                                 once, in block 0 */
    int64_t q_begin, q_end;   /* query heads */
    int64_t kv_begin, kv_end; /* key/value heads: exactly those that the query heads use */
    int64_t ffn_begin, ffn_end;
    int64_t vocab_begin, vocab_end;
    int64_t shared_begin, shared_end; /* rows of the shared expert */
    int64_t expert_begin, expert_end; /* rows of each expert */
    int tp_rank, tp_ranks;            /* 0 ranks: one */
    int cp_rank, cp_ranks;
    bool sp;                    /* the residual stream is divided over tp: see rs_stage_rows */
    rs_dispatch_shape dispatch; /* with experts: who has which; its lists are not kept */
    int64_t seq;                /* tokens of a sequence, over all cp ranks */
    int64_t max_batch;          /* sequences of the largest micro-batch */
    int slots;                  /* micro-batches in flight: forward done, backward not yet */
    rs_recompute recompute;
    float dropout; /* rate; 0: none. See dropout.h */
    uint64_t seed; /* of dropout */
} rs_stage_shape;

/* Tokens of each sequence that this rank has: all, or its part of them (sequence.h). Local. */
int64_t rs_stage_tokens(const rs_stage_shape *shape);

/* Rows of the residual stream that this rank has of a micro-batch of `batch` sequences, which is
 * what stages hand on: one for each of its tokens; with sp, of the tokens of its tp group, part
 * rows * tp_rank / tp_ranks to rows * (tp_rank + 1) / tp_ranks. Local. */
int64_t rs_stage_rows(const rs_stage_shape *shape, int64_t batch);

/* A group of ranks. Sums are added in a fixed order of ranks, once, so that their bits are the same
 * on every rank. Pieces are given by `bounds`: rank r has values bounds[r] .. bounds[r + 1] - 1. */
typedef struct rs_stage_group {
    void *context;
    rs_status (*sum)(void *context, float *values, int64_t count);
    /* Rank r gets the sum of piece r, in place. */
    rs_status (*scatter)(void *context, float *values, const int64_t *bounds);
    /* Every rank gets the pieces of all, in place. */
    rs_status (*gather)(void *context, float *values, const int64_t *bounds);
} rs_stage_group;

/* The groups of a rank. Sums over tp are NULL where tp is 1. `maximum` is elementwise. `pieces` is
 * tp too, needed with sp; `cp` the cp ranks with this tp and stage; `experts` the group that has
 * the experts among it (moe_dispatch.h). A failed call makes the stage's call return its status. */
typedef struct rs_stage_tp {
    void *context;
    rs_status (*sum)(void *context, float *values, int64_t count);
    rs_status (*maximum)(void *context, float *values, int64_t count);
    rs_dispatch_group experts;
    rs_stage_group pieces;
    rs_stage_group cp;
} rs_stage_tp;

/* What is used of a block. */
enum { RS_USE_WEIGHTS = 1, RS_USE_GRADIENTS = 2, RS_USE_BOTH = 3 };

/* Called around each use of a block: block 0 is the embedding, l + 1 is layer l of the model,
 * layers + 1 is what stands behind them, layers + 2 + l + 1 is the experts of layer l. The members
 * of rs_stage_tensors are read in between alone. `next` is the block whose weights the pass uses
 * next, -1 at its end. A stage that was given none leaves the tensors where they are. */
typedef struct rs_stage_blocks {
    void *context;
    void (*enter)(void *context, int block, int next, int use);
    void (*leave)(void *context, int block, int use);
} rs_stage_blocks;

/* Local boxes of a layer, row-major. In memory q, k, v follow each other, and gate, up do (the
 * local concatenation's order), so that one product serves them. NULL where the model has no such
 * tensor. */
typedef struct rs_stage_layer {
    float *attn_norm; /* [H] */
    float *q;         /* [q heads * D, H] */
    float *k;         /* [kv heads * D, H] */
    float *v;
    float *q_bias;
    float *k_bias;
    float *v_bias;
    float *q_norm; /* [D] */
    float *k_norm;
    float *o;      /* [H, q heads * D] */
    float *o_bias; /* [H], replicated: added once */
    float *mlp_norm;
    float *gate; /* [F local, H] */
    float *up;
    float *down; /* [H, F local] */
    float *gate_bias;
    float *up_bias;
    float *down_bias;
    float *router;      /* [E, H] */
    float *router_bias; /* [E]; its gradient is how many tokens chose each expert */
    float *expert_gate; /* [experts local, G local, H], and the others of the same experts */
    float *expert_up;
    float *expert_down; /* [experts local, H, G local] */
    float *shared_gate; /* [S local, H] */
    float *shared_up;
    float *shared_down;   /* [H, S local] */
    float *shared_switch; /* [1, H] */
} rs_stage_layer;

/* All local weights, or all local gradients (same shapes). A gradient that is NULL is not made. */
typedef struct rs_stage_tensors {
    float *embed;           /* [V local, H]; first stage, and last stage of a tied model */
    rs_stage_layer *layers; /* layer_end - layer_begin of them */
    float *norm;            /* [H], last stage */
    float *head;            /* [V local, H], last stage of an untied model; NULL when tied */
} rs_stage_tensors;

typedef struct rs_stage rs_stage;

/* Refuses a shape that no stage can have: RS_ERR_ARGUMENT, RS_ERR_OVERFLOW, or RS_ERR_UNSUPPORTED
 * for sizes beyond what a matrix product takes. Local. */
rs_status rs_stage_check(const rs_stage_shape *shape) RS_MUST_CHECK;

/* `shape` and `tp` are copied. Allocates all working memory. The stage uses as many threads as
 * OpenBLAS had when it was created (rs_product_set_threads in kernels.h; ranks that share cores
 * want 1). The caller owns `*out`. */
rs_status rs_stage_create(
    const rs_stage_shape *shape, const rs_stage_tp *tp, rs_stage **out) RS_MUST_CHECK;
void rs_stage_destroy(rs_stage *stage);

/* Which sequences the next micro-batch in `slot` has: those of step `step` from number `first` on.
 * Dropout depends on it, and nothing else. */
void rs_stage_place(rs_stage *stage, int slot, int64_t step, int64_t first);

/* Lets the stage say which blocks it uses, from now on. */
void rs_stage_announce(rs_stage *stage, const rs_stage_blocks *blocks);

/*
 * Forward pass of a micro-batch of `batch` sequences into slot `slot` (0..slots-1).
 * `tokens` and `targets`: [batch, own tokens] byte values, needed on the first and the last stage.
 * `input`: [rows, H] from the stage before (NULL on the first); `output`: the same for the next
 * stage (NULL on the last). `loss_sum`: on the last stage, the sum of the cross-entropy over the
 * rank's tokens, the same bits on every tp rank. batch may be 0: then nothing is summed over tp and
 * cp; but blocks are entered and left as always, and the group that has the experts meets in
 * the same calls, whatever its batches.
 */
rs_status rs_stage_forward(rs_stage *stage, const rs_stage_tensors *weights, int slot,
    int64_t batch, const uint8_t *tokens, const uint8_t *targets, const float *input, float *output,
    double *loss_sum) RS_MUST_CHECK;

/*
 * Backward pass of the micro-batch in `slot`. Gradients of sum(loss) * scale are added to
 * `gradients`. `output_gradient`: [rows, H] from the next stage (NULL on the last);
 * `input_gradient`: for the stage before (NULL on the first). Tensors that every tp rank of the
 * group has whole: attn_norm, mlp_norm, norm, o_bias, down_bias get the full gradient on every
 * rank, the same bits (with sp, this rank's rows' part), and so do router and shared_switch (with
 * sp too); q_norm, k_norm get this rank's heads'
 * part and the caller sums them over tp, as it sums border kv heads over the ranks that hold them.
 * Each cp rank gets what its tokens make. Experts get what the group's tokens make. The balance
 * loss of layers with experts, as rs_stage_routed tells it, counts like the loss.
 */
rs_status rs_stage_backward(rs_stage *stage, const rs_stage_tensors *weights,
    const rs_stage_tensors *gradients, int slot, float scale, const float *output_gradient,
    float *input_gradient) RS_MUST_CHECK;

/* What a layer's router did in the last forward pass of a slot; the same on every tp rank. */
typedef struct rs_stage_routing {
    double balance; /* the balance loss, coefficient and mean over layers included, summed over
                       tokens like the loss */
    int64_t close;  /* choices that rounding might turn (moe_route.h) */
    const int32_t *choice; /* [rows, experts per token]; valid until the slot's next forward pass */
    int64_t rows;
} rs_stage_routing;

/* `layer` is counted from the stage's first. All zero for a layer without experts. Local. */
void rs_stage_routed(const rs_stage *stage, int slot, int64_t layer, rs_stage_routing *out);

/* Bytes of the memory for rows that arrived at experts; 0 for a model without. Local. */
int64_t rs_stage_expert_bytes(const rs_stage *stage);

#endif
