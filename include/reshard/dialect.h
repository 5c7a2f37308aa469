/*
 * Dialects: how other people's checkpoints name, fuse and turn tensors, as data.
 *
 * A *foreign tensor* is made of boxes of canonical ones: for each *part* a box of a canonical
 * tensor, where in the foreign tensor it begins, and along which of the box's dimensions each
 * foreign dimension runs. So a name for each layer, query, key and value in one matrix, gate above
 * up, heads in groups, transposed matrices are all placements; nothing is merged or split.
 *
 * A dialect is a JSON file (docs/formats/dialect.md) of rules: the pattern of a foreign name, and
 * what the tensor is made of. Some are built in; rs_dialect_load reads others. Which of several
 * names a model of some family has is a condition on the space's facts (space.h).
 *
 * Where several rules name one canonical tensor, the first whose condition holds is how it is
 * written, and all are understood when read.
 *
 * Usual order: rs_dialect_load; rs_dialect_list for all that a checkpoint of a space has, or
 * rs_dialect_lookup for what a name means; rs_dialect_destroy. All functions are local.
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

typedef struct rs_dialect rs_dialect;

/* A box of a canonical tensor, and where it lies in a foreign one. */
typedef struct rs_foreign_part {
    int tensor;
    rs_box box;                  /* extent 1 in the dimensions that the name tells */
    int64_t offset[RS_MAX_DIMS]; /* of its first element, in each foreign dimension */
    int along[RS_MAX_DIMS];      /* the box's dimension that each foreign dimension runs along */
} rs_foreign_part;

/* One tensor as a foreign checkpoint has it. Owns its name and parts. */
typedef struct rs_foreign {
    char *name;
    int ndim;
    int64_t shape[RS_MAX_DIMS];
    rs_foreign_part *parts; /* they tile it */
    size_t count;
    bool alias; /* another name for what is written under a rule that comes first */
} rs_foreign;

/* A growing list of foreign tensors; starts as {0}. */
typedef struct rs_foreign_list {
    rs_foreign *items;
    size_t count;
    size_t capacity;
} rs_foreign_list;

void rs_foreign_fini(rs_foreign *foreign);
void rs_foreign_list_fini(rs_foreign_list *list);

/* NULL-terminated list of the built-in dialects: "hf" (Hugging Face), "reshard" (the canonical
 * names). */
const char *const *rs_dialect_names(void);

/* A built-in dialect by its name, or the one in a file. The caller owns `*out`. RS_ERR_ARGUMENT
 * names the built-in ones when nothing fits; RS_ERR_MALFORMED says file, rule and what is wrong. */
rs_status rs_dialect_load(const char *name_or_path, rs_dialect **out) RS_MUST_CHECK;

/* The same from a text; `label` stands for the file in errors. */
rs_status rs_dialect_parse(
    const char *text, size_t length, const char *label, rs_dialect **out) RS_MUST_CHECK;
void rs_dialect_destroy(rs_dialect *dialect);

/* Borrowed. */
const char *rs_dialect_name(const rs_dialect *dialect);

/*
 * Replaces `*out` by every tensor that a checkpoint of the space has in this dialect, aliases left
 * out: in the space's order of tensors, indices ascending. Together their parts tile the space.
 * RS_ERR_MISMATCH names the tensor that no rule names, a rule that does not fit its tensor, or a
 * fact that it asks for and the space lacks.
 */
rs_status rs_dialect_list(
    const rs_dialect *dialect, const rs_space *space, rs_foreign_list *out) RS_MUST_CHECK;

/*
 * Replaces `*out` by the second names that a tied model has in this dialect, with what they are
 * names of, as rs_dialect_list has it; none where the space is not known to be tied.
 */
rs_status rs_dialect_ties(
    const rs_dialect *dialect, const rs_space *space, rs_foreign_list *out) RS_MUST_CHECK;

/*
 * What the foreign name `name` is; what libraries that wrap modules put into names is looked
 * through. Release `*out` with rs_foreign_fini. RS_ERR_NOT_FOUND if no rule with tensors of the
 * space matches, or an index lies outside; RS_ERR_MISMATCH as above.
 */
rs_status rs_dialect_lookup(const rs_dialect *dialect, const rs_space *space, const char *name,
    rs_foreign *out) RS_MUST_CHECK;

/* True for a name that the dialect knows to mean nothing that is learnt (a mask, a table of
 * angles).
 */
bool rs_dialect_ignores(const rs_dialect *dialect, const char *name);

#ifdef __cplusplus
}
#endif

#endif
