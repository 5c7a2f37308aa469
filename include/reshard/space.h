/*
 * The space of a job: every tensor of its model in canonical form (unsharded, unfused, unpadded),
 * times the roles of state kept for each (parameter, master copy, moments, ...). It is the virtual
 * parameter space of DynaTrain (arXiv 2605.18815).
 *
 * Layers are an axis: `layers.attn.q.weight` is [layer, row, column]. What an axis means (layer,
 * query head, vocabulary row, ...) is part of the tensor's description: layouts read it to know
 * how to cut, and nothing else does.
 *
 * A role has one element type for all tensors, but for those that are told another: a router's bias
 * in float32 amid bfloat16, no master and no moments for a parameter that is not trained.
 *
 * Facts are what is known of the model beside its tensors ("family" is "mixtral"), as texts: names
 * in other people's checkpoints depend on them (dialect.h), nothing else does.
 *
 * Usual order: rs_space_create, rs_space_add_role for each role, rs_space_add_tensor for each
 * tensor, rs_space_set_dtype for the exceptions, then share it read-only; every placement borrows
 * it and must not outlive it. All functions are local.
 */
#ifndef RESHARD_SPACE_H
#define RESHARD_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/box.h"
#include "reshard/dtype.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an axis counts, hence how a layout cuts it. */
typedef enum rs_axis {
    RS_AXIS_WHOLE = 0, /* never cut by a layout */
    RS_AXIS_LAYER,     /* one index per layer; pipeline stages own layers. Always axis 0. */
    RS_AXIS_Q_HEAD,    /* query heads, `unit` rows each; tp by the ceil rule in whole heads */
    RS_AXIS_KV_HEAD,   /* key/value heads, `unit` rows each; follow the query heads that use them */
    RS_AXIS_FFN,       /* feed-forward rows; tp by the ceil rule */
    RS_AXIS_VOCAB,     /* vocabulary rows; tp by the ceil rule, so padding never exists */
    RS_AXIS_EXPERT     /* experts; ep, sizes within one. A tensor with it is on the experts' mesh:
                          its other axes are dealt over etp instead of tp */
} rs_axis;

/* Which pipeline stages hold a tensor that has no layer axis. */
typedef enum rs_stage_rule {
    RS_STAGE_BY_LAYER = 0, /* it has a layer axis; without one, every stage holds it */
    RS_STAGE_FIRST,
    RS_STAGE_LAST,
    RS_STAGE_FIRST_AND_LAST /* a tied embedding: both ends hold it (one copy where they coincide) */
} rs_stage_rule;

typedef struct rs_tensor {
    const char *name;           /* unique in the space */
    int ndim;                   /* 0..RS_MAX_DIMS */
    int64_t shape[RS_MAX_DIMS]; /* elements */
    rs_axis axis[RS_MAX_DIMS];
    int64_t unit[RS_MAX_DIMS]; /* elements of the axis per unit that is dealt; 0 means 1 */
    int64_t kv_group;          /* query heads per key/value head, for RS_AXIS_KV_HEAD; 0 means 1 */
    int64_t layer_first;       /* index i of the layer axis is layer layer_first + i of the model:
                                  layers that differ are several tensors */
    const int64_t *layers;     /* or, where these do not follow each other, the layer of each index,
                                  ascending; NULL: they do */
    rs_stage_rule stage;
    bool decay; /* takes part in weight decay */
} rs_tensor;

/* Which part of the job's state a role belongs to; ZeRO stages shard classes, not names. */
typedef enum rs_role_class {
    RS_ROLE_MODEL = 0, /* what the forward pass reads */
    RS_ROLE_OPTIMIZER, /* what only the update reads and writes: sharded by zero >= 1 */
    RS_ROLE_GRADIENT   /* sharded by zero >= 2 */
} rs_role_class;

typedef struct rs_role {
    const char *name; /* "param", "master", "exp_avg", "exp_avg_sq", ...: an open set */
    rs_dtype dtype;   /* of every tensor that rs_space_set_dtype was not called for */
    rs_role_class role_class;
} rs_role;

#define RS_MAX_ROLES 16

typedef struct rs_space rs_space;

/* A new empty space; the caller owns `*out`. */
rs_status rs_space_create(rs_space **out) RS_MUST_CHECK;
void rs_space_destroy(rs_space *space);

/* Adds a role to every tensor; copies `role`. `*id` (may be NULL) gets its number, from 0 on. */
rs_status rs_space_add_role(rs_space *space, const rs_role *role, int *id) RS_MUST_CHECK;

/* Adds a tensor; copies `tensor`, its name and its layers. `*id` (may be NULL) gets its number,
 * from 0 on. RS_ERR_ARGUMENT: name taken, more than RS_MAX_DIMS dimensions, negative extent, an
 * axis length that is no multiple of its unit, a layer axis that is not axis 0, a negative kv_group
 * or layer_first, a layer_first without a layer axis, layers that do not ascend or do not begin
 * with layer_first, a second expert axis. RS_ERR_OVERFLOW: elements, bytes or query heads do not
 * fit 64 bits. */
rs_status rs_space_add_tensor(rs_space *space, const rs_tensor *tensor, int *id) RS_MUST_CHECK;

/* Gives one tensor an element type of its own in one role; RS_DTYPE_NONE: the tensor has no such
 * role (a frozen parameter has no moments, a buffer has nothing but its value). RS_ERR_ARGUMENT: no
 * such tensor, role or type. */
rs_status rs_space_set_dtype(rs_space *space, int tensor, int role, rs_dtype dtype) RS_MUST_CHECK;

/* The element type of a tensor in a role; RS_DTYPE_NONE if it has no such role. */
rs_dtype rs_space_dtype(const rs_space *space, int tensor, int role);

/* Says something about the model, or something else than before. Copies both. */
rs_status rs_space_set_fact(rs_space *space, const char *key, const char *value) RS_MUST_CHECK;

/* What is said under a key; NULL if nothing is. Borrowed. */
const char *rs_space_fact(const rs_space *space, const char *key);

/* The keys, in the order in which they were set. */
int rs_space_fact_count(const rs_space *space);
const char *rs_space_fact_key(const rs_space *space, int fact);

int rs_space_tensor_count(const rs_space *space);
int rs_space_role_count(const rs_space *space);

/* Borrowed; valid as long as the space and no tensor is added. */
const rs_tensor *rs_space_tensor(const rs_space *space, int tensor);
const rs_role *rs_space_role(const rs_space *space, int role);

/* Of a tensor with a layer axis: the layer of the model that an index of it is. */
int64_t rs_tensor_layer(const rs_tensor *tensor, int64_t index);

/* The indices of the layers before `layer`: how many. Index `i` of them is that of the first layer
 * from `layer` on, if there is one. */
int64_t rs_tensor_layers_before(const rs_tensor *tensor, int64_t layer);

/* Where the layer axis ends: one more than its last layer, layer_first if it has none. */
int64_t rs_tensor_layer_end(const rs_tensor *tensor);

/* Number of the tensor or role of that name, -1 if there is none. */
int rs_space_find_tensor(const rs_space *space, const char *name);
int rs_space_find_role(const rs_space *space, const char *name);

/* Layers of the model: where the layer axis that reaches farthest ends; 0 if no tensor has one. */
int64_t rs_space_layer_count(const rs_space *space);

/* Length of the longest expert axis; 0 if no tensor has one. */
int64_t rs_space_expert_count(const rs_space *space);

/* Elements of all tensors; bytes of one role over the tensors that have it, or of all roles for
 * role = -1. */
int64_t rs_space_elements(const rs_space *space);
int64_t rs_space_bytes(const rs_space *space, int role);

#ifdef __cplusplus
}
#endif

#endif
