/*
 * Optimizers: what state each keeps of a tensor, and which tensors are trained at all. What an
 * optimizer computes is the trainer's business; here it is only a set of roles, so that spaces,
 * plans and checkpoints of any of them are ordinary. All functions are local.
 */
#ifndef RESHARD_OPTIMIZER_H
#define RESHARD_OPTIMIZER_H

#include <stdbool.h>

#include "reshard/dtype.h"
#include "reshard/model.h"
#include "reshard/space.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RS_OPTIMIZER_ROLES 2

/* "adamw": exp_avg and exp_avg_sq; "sgd": momentum; "muon": momentum, for the matrices of layers,
 * and AdamW for all other tensors. */
typedef struct rs_optimizer {
    const char *name;
    const char *roles[RS_OPTIMIZER_ROLES]; /* float32, sharded with the optimizer; NULL: no more */
    bool matrices;      /* takes nothing but tensors with layers whose last two dimensions are a
                           matrix */
    const char *others; /* the optimizer of tensors that it does not take; NULL: it takes all */
} rs_optimizer;

/* NULL if there is none of that name. Static. */
const rs_optimizer *rs_optimizer_find(const char *name);

/* NULL-terminated list of names. Static. */
const char *const *rs_optimizer_names(void);

/* The optimizer of one tensor where `chosen` is the job's. */
const rs_optimizer *rs_optimizer_for(const rs_optimizer *chosen, const rs_tensor *tensor);

/* How a model is trained. */
typedef struct rs_training {
    const char *optimizer; /* its name; NULL or "": "adamw" */
    const char *frozen; /* patterns of names, as a shell's, between commas: tensors that keep their
                           values, without state of the optimizer; NULL or "": none */
} rs_training;

/*
 * The space of training `model` (rs_model_space), with the roles that the optimizer keeps of each
 * tensor. RS_ERR_ARGUMENT: there is no such optimizer, a pattern that fits no tensor, or nothing
 * left to train.
 */
rs_status rs_training_space(const rs_model *model, rs_dtype dtype, const rs_training *training,
    rs_space **out) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
