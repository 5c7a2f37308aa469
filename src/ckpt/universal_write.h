/* Inside the writer of DeepSpeed's universal checkpoints: what its parts share. */
#ifndef RS_CKPT_UNIVERSAL_WRITE_H
#define RS_CKPT_UNIVERSAL_WRITE_H

#include <jansson.h>
#include <stdbool.h>

#include "ckpt/names.h"
#include "ckpt/rules.h"
#include "ckpt/torch_write.h"
#include "ckpt/writer.h"

#define RS_UNIVERSAL_LONG "0.4" /* the version that knows uneven widths */

/* The step of a parameter group. */
typedef struct rs_universal_step {
    int tensor;    /* that says it, -1: it is a number */
    int64_t value; /* -1: nothing says it of this group */
} rs_universal_step;

typedef struct rs_universal {
    rs_writing *w;
    const json_t *extras; /* of the run itself */
    rs_rules rules;
    bool ruled;                    /* the rules say how tensors are cut */
    rs_rule by_ranks[RS_MAX_DIMS]; /* [dim]: for tensors with shared parts, which are as all ranks
                                      have them (ranked.h) */
    const char *version;           /* "0.2" or "0.4" */
    int tp, pp, dp;
    bool moved;               /* these are not the source's */
    int stage;                /* 3: ZeRO-3's form; else that of ZeRO 0 to 2 */
    int64_t step;             /* the largest; -1: none is known */
    rs_universal_step *steps; /* of each group, and of what is in none that is known */
    char tag[300];
    rs_names masters;   /* name -> tensor of role master */
    json_t *groups;     /* the optimizer's parameter groups: a list */
    rs_names members;   /* name -> its group */
    bool grouped;       /* every parameter has one */
    bool stages_differ; /* pipeline stages in their groups' options */
    struct {
        rs_torch_make *items; /* by the output's number */
        size_t count, capacity;
    } files;
    int *index; /* catalog entry -> tensor that is the whole of it, -1 */
} rs_universal;

/* True if the weights themselves are written beside the masters. */
static inline bool rs_universal_has_weights(const rs_universal *u)
{
    return u->stage < 3 && u->tp == 1;
}

/* The DeepSpeed that first wrote this version. */
static inline const char *rs_universal_writer(const rs_universal *u)
{
    return u->version[2] == '4' ? "0.19.6" : "0.14.5";
}

/* Finds the steps; the groups are there. RS_ERR_UNSUPPORTED: they differ, and of which group each
 * is, is not known. */
rs_status rs_universal_find_step(rs_universal *u) RS_MUST_CHECK;

/* The step of a group (-1: not known), as a tensor or a number, as the source has it. */
rs_status rs_universal_add_step(
    const rs_universal *u, int group, rs_torch_make *make) RS_MUST_CHECK;

/* How `name` is cut; NULL: nothing says it. */
rs_status rs_universal_rule(rs_universal *u, const char *name, const rs_rule **out) RS_MUST_CHECK;

/* Whether dimension 0 of the tensor counts experts, which DeepSpeed's AutoEP deals to ranks. */
rs_status rs_universal_experts(const rs_universal *u, const rs_logical *t, bool *yes) RS_MUST_CHECK;

/* What a state's file says beside the tensor of how it is cut: pairs of a dict that is open; and
 * the shape in which it has the tensor (RS_MAX_DIMS of room). */
rs_status rs_universal_cut(
    rs_universal *u, const rs_logical *t, rs_bytes *out, int *ndim, int64_t *shape) RS_MUST_CHECK;

/* The model file of model-parallel rank `mp`; the tags are numbers of tensors. */
rs_status rs_universal_model(rs_universal *u, int mp, rs_torch_make *make) RS_MUST_CHECK;

/* universal_checkpoint_info: the source's, or what the rules say of each name. */
rs_status rs_universal_info(rs_universal *u, rs_bytes *out) RS_MUST_CHECK;

#endif
