/* From names to addresses: what a stage calls its tensors, and where they lie. Local. */
#ifndef RS_TRAIN_BIND_H
#define RS_TRAIN_BIND_H

#include "reshard/model.h"
#include "train/stage.h"
#include "train/state.h"
#include "train/world.h"

/* A stage of this rank, and what it works with: chunk v of pipeline rank p is stage v * pp + p. */
typedef struct rs_chunk {
    rs_stage_shape shape;
    rs_stage *stage;
    rs_stage_tensors weights; /* `layers` has room for the stage's layers */
    rs_stage_tensors gradients;
} rs_chunk;

/* What the rank computes in a chunk under a layout; batch sizes and slots are left to the caller.
 */
void rs_bind_shape(const rs_model *model, const rs_space *space, const rs_world *world, int chunk,
    rs_stage_shape *out);

/* Adds what it computes of layers with experts. `ranges` has room for twice the layout's ep, and is
 * read as long as `out->dispatch` is. */
void rs_bind_experts(
    const rs_space *space, const rs_world *world, int64_t *ranges, rs_stage_shape *out);

/* A member of a stage's tensors, and where its local box begins. */
typedef struct rs_binding {
    float **member;
    int tensor;
    int block;
    int64_t position;
} rs_binding;

/* Starts as {0}. */
typedef struct rs_binding_list {
    rs_binding *items;
    size_t count;
    size_t capacity;
} rs_binding_list;

void rs_binding_list_fini(rs_binding_list *list);

/* The members of all chunks' weights, or gradients, that the rank has; they point nowhere yet. A
 * tied embedding at both ends of one rank is two of them. The caller ends `*out`, also after a
 * failure. */
rs_status rs_bind_tensors(const rs_state *state, rs_chunk *chunks, int chunk_count, bool gradients,
    rs_binding_list *out) RS_MUST_CHECK;

#endif
