/*
 * Dialects: naming conventions of other people's checkpoints, as rules.
 *
 * A foreign tensor is a box of a canonical one. A rule is a row of two texts: the pattern of a
 * foreign name and the name of a canonical tensor. "{d}" in the pattern stands for an index of the
 * canonical tensor's dimension d: the foreign tensor has that one index, and its shape lacks the
 * dimension. So `model.layers.{0}.self_attn.q_proj.weight` <-> `layers.attn.q.weight` cuts [layer,
 * row, column] into one [row, column] a layer, and
 * `model.layers.{0}.mlp.experts.{1}.up_proj.weight`
 * <-> `layers.experts.up.weight` cuts [layer, expert, row, column] into one [row, column] an
 * expert. A layer is told by its number in the model, wherever the tensor's layer axis begins.
 *
 * "{}" stands for any number and tells nothing: for aliases, as a copy of the embedding that a
 * checkpoint has in a layer.
 *
 * Where several rules name one canonical tensor, the first is how it is written and the others are
 * aliases, understood when read. Where several rules match one foreign name, the first whose
 * canonical tensor is in the space and has the index counts.
 *
 * All functions are local.
 */
#ifndef RESHARD_DIALECT_H
#define RESHARD_DIALECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reshard/box.h"
#include "reshard/space.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rs_dialect_rule {
    const char *foreign;   /* pattern of the foreign name */
    const char *canonical; /* name of a tensor of the space */
} rs_dialect_rule;

/* Plain data: a caller may bring its own rules. The texts are borrowed. */
typedef struct rs_dialect {
    const char *name;
    const rs_dialect_rule *rules;
    size_t count;
} rs_dialect;

/* One tensor as a foreign checkpoint has it. */
typedef struct rs_foreign {
    const char *name;
    int tensor; /* the canonical tensor */
    rs_box box; /* of it; extent 1 in the dimensions that the name tells */
    int ndim;   /* as stored there: */
    int64_t shape[RS_MAX_DIMS];
    bool alias; /* another name for what is written under its first rule's name */
} rs_foreign;

/* A growing list of foreign tensors that owns their names; starts as {0}. */
typedef struct rs_foreign_list {
    rs_foreign *items;
    size_t count;
    size_t capacity;
} rs_foreign_list;

void rs_foreign_list_fini(rs_foreign_list *list);

/* The built-in dialect of that name. "hf": Hugging Face's Llama, Mistral, Qwen and DeepSeek, with
 * and without experts; "hf-mixtral" and "hf-deepseek": the same, but experts have Mixtral's names,
 * shared experts DeepSeek's. Each reads what the others write. rs_model_dialect (model.h) says
 * which one is a model's. RS_ERR_ARGUMENT names those that exist. */
rs_status rs_dialect_get(const char *name, const rs_dialect **out) RS_MUST_CHECK;

/*
 * Replaces `*out` by every tensor that a checkpoint of the space has in this dialect, aliases left
 * out: in the space's order of tensors, indices ascending. Together their boxes tile the space.
 * RS_ERR_MISMATCH names the tensor that no rule names, or a rule that does not fit its tensor.
 */
rs_status rs_dialect_list(
    const rs_dialect *dialect, const rs_space *space, rs_foreign_list *out) RS_MUST_CHECK;

/* What the foreign name `name` is; out->name is `name` itself. RS_ERR_NOT_FOUND if no rule with a
 * tensor of the space matches, or an index lies outside; RS_ERR_MISMATCH as above. */
rs_status rs_dialect_lookup(const rs_dialect *dialect, const rs_space *space, const char *name,
    rs_foreign *out) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
