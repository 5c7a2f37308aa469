/*
 * Inside the reader of DeepSpeed's checkpoints: the files of a tag's folder, and the state that the
 * parts of the reader share.
 */
#ifndef RS_CKPT_DEEPSPEED_H
#define RS_CKPT_DEEPSPEED_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/assembly.h"
#include "ckpt/catalog.h"
#include "ckpt/format.h"
#include "ckpt/rules.h"
#include "ckpt/torch.h"
#include "reshard/status.h"

typedef enum rs_ds_kind {
    RS_DS_MODEL = 0,        /* mp_rank_MM_model_states.pt: of one model-parallel rank */
    RS_DS_MODEL_OF_RANK,    /* zero_pp_rank_D_mp_rank_MM_model_states.pt: ZeRO-3, of every rank */
    RS_DS_OPTIMIZER,        /* [bf16_]zero_pp_rank_D_mp_rank_MM_optim_states.pt */
    RS_DS_LAYER,            /* layer_LL-model_TT-model_states.pt: a pipeline's layer */
    RS_DS_EXPERT,           /* layer_L_expert_E_mp_rank_MM_model_states.pt */
    RS_DS_EXPERT_OPTIMIZER, /* expp_rank_R_mp_rank_MM_optim_states.pt */
} rs_ds_kind;

typedef struct rs_ds_file {
    const char *name; /* of the folder's list */
    rs_ds_kind kind;
    int dp;     /* D or R, -1 */
    int mp;     /* MM; of a layer: TT */
    int layer;  /* -1 */
    int expert; /* -1 */
    bool bf16;  /* its name says so */
} rs_ds_file;

/* A tensor of a model-parallel rank, as its model file describes it. */
typedef struct rs_ds_param {
    const char *name;
    int ndim;
    int64_t shape[RS_MAX_DIMS];
    int64_t elements;
} rs_ds_param;

/* The params of one optimizer group (ZeRO-3: sub-group), in the order of the flat buffers. */
typedef struct rs_ds_group {
    rs_ds_param *items;
    size_t count;
    int64_t elements;
} rs_ds_group;

/* What one model-parallel rank's model file says. */
typedef struct rs_ds_model {
    rs_ds_group *groups;
    size_t group_count;
    bool has_shapes; /* param_shapes was there */
    rs_names dtypes; /* of the params in `module`: name -> rs_dtype */
    struct {
        rs_ds_param *items; /* what an optimizer may know of `module`, in its order */
        size_t count, capacity;
    } weights;
} rs_ds_model;

/* A tensor of a layer's or an expert's file. */
typedef struct rs_ds_part {
    rs_ds_param param; /* under the name that it was entered with */
    int layer;
    int expert; /* -1: a pipeline's layer */
    int tp;
} rs_ds_part;

#define RS_DS_NO_GROUP SIZE_MAX

/* A parameter in a parameter group of a pipeline stage. */
typedef struct rs_ds_member {
    const char *name;
    int stage;
    size_t group; /* RS_DS_NO_GROUP: nothing says which */
} rs_ds_member;

typedef struct rs_ds_reader {
    rs_catalog *catalog;
    const rs_place *place;
    rs_rules rules;
    rs_assembly assembly;
    struct {
        rs_ds_file *items;
        size_t count, capacity;
    } files; /* by kind, then by number */
    int tp, pp, dp;
    int stage; /* ZeRO stage; -1: not known yet */
    bool bf16_optimizer;
    bool without_optimizer; /* files of it lack, and weights alone are wanted */
    bool universal;         /* of a universal checkpoint: weights may be in no model file */
    bool weights;           /* `module` is read */
    size_t flat;            /* tensors whose shapes no file says */
    rs_ds_model *models;    /* [pp * tp] */
    struct {
        const rs_ds_param **items; /* of all models, each name once */
        size_t count, capacity;
    } shapes; /* of a universal checkpoint */
    rs_names shape_names;
    rs_pool pool;
    json_t *groups; /* extras: parameter groups */
    struct {
        rs_ds_member *items;
        size_t count, capacity;
    } members;
    rs_names member_names;               /* "STAGE\nNAME" */
    int64_t left;                        /* values that may still go into the extras */
    double step;                         /* of the optimizer; negative: none yet */
    bool step_differs;                   /* between groups or parameters */
    json_t *steps;                       /* of the optimizer, by group or parameter */
    int64_t global_steps, skipped_steps; /* -1 */
    struct {
        rs_ds_part *items; /* tensors of layer and expert files, by layer, expert, then in order */
        size_t count, capacity;
    } parts;
    struct {
        const char **items; /* alias, name, alias, name, ... */
        size_t count, capacity;
    } shared;
} rs_ds_reader;

/* Extras: what single ranks' files have otherwise than the first one's: {"rank_3": {key: value}}.
 */
#define RS_DS_OF_RANKS "of_ranks"

/* The files of the folder by name. */
rs_status rs_ds_scan(rs_ds_reader *reader) RS_MUST_CHECK;

/* The first file of a kind and how many there are. */
const rs_ds_file *rs_ds_files(const rs_ds_reader *reader, rs_ds_kind kind, size_t *count);

/* The file of that kind and numbers, NULL if there is none. */
const rs_ds_file *rs_ds_find(const rs_ds_reader *reader, rs_ds_kind kind, int dp, int mp);

/* Opens a file of the folder; hands its checksums to the catalog and warns of oddities. Release
 * with rs_torch_fini, also after an error. */
rs_status rs_ds_open(rs_ds_reader *reader, const rs_ds_file *file, rs_torch *torch) RS_MUST_CHECK;

/* RS_ERR_MALFORMED "<file>: ...". */
rs_status rs_ds_malformed(const rs_torch *torch, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

static inline int rs_ds_stage_of(const rs_ds_reader *reader, int mp)
{
    return mp / reader->tp;
}

static inline int rs_ds_tp_of(const rs_ds_reader *reader, int mp)
{
    return mp % reader->tp;
}

/* Tensor-parallel degree and pipeline degree, from the model files. */
rs_status rs_ds_degrees(rs_ds_reader *reader) RS_MUST_CHECK;

/* Reads model file(s), buffers, params, frozen ones; the extras of the first. */
rs_status rs_ds_read_models(rs_ds_reader *reader) RS_MUST_CHECK;

/* Reads the optimizer files of ZeRO 1, 2, BF16_Optimizer (flat groups) and 3 (flat parameters). */
rs_status rs_ds_read_optimizers(rs_ds_reader *reader) RS_MUST_CHECK;
rs_status rs_ds_read_flat_groups(rs_ds_reader *reader, const rs_torch *torch,
    const rs_ds_file *file, const rs_value *state) RS_MUST_CHECK;
rs_status rs_ds_read_flat_params(rs_ds_reader *reader, const rs_torch *torch,
    const rs_ds_file *file, const rs_value *state) RS_MUST_CHECK;

/* Reads the plain torch optimizer of a run without ZeRO. */
rs_status rs_ds_read_plain(rs_ds_reader *reader) RS_MUST_CHECK;

/* Reads a pipeline's layer files and native MoE's expert files. */
rs_status rs_ds_read_layers(rs_ds_reader *reader) RS_MUST_CHECK;
rs_status rs_ds_read_experts(rs_ds_reader *reader) RS_MUST_CHECK;

/* The tensor as a local of that name and role, by strides. */
rs_status rs_ds_add_tensor(rs_ds_reader *reader, const rs_torch *torch, const char *name,
    const char *role, int tp, int copy, const rs_value *value) RS_MUST_CHECK;

/* Remembers a tensor of a layer's or an expert's file. */
rs_status rs_ds_add_part(rs_ds_reader *reader, const rs_ds_file *file, const char *name,
    const rs_torch_tensor *tensor) RS_MUST_CHECK;

/* The optimizer's step of a group: a tensor of one element, or a number. */
rs_status rs_ds_add_step(rs_ds_reader *reader, const rs_torch *torch, int mp, int dp,
    const char *name, const char *role, const rs_value *value) RS_MUST_CHECK;

/* The parameter is in that group of the stage's optimizer, RS_DS_NO_GROUP: in one of them. What is
 * known of one tensor-parallel rank goes for all. */
rs_status rs_ds_note_member(
    rs_ds_reader *reader, int mp, size_t group, const char *name) RS_MUST_CHECK;

/* All of param_shapes, by the `params` of `groups`, which number the flat buffers that param_shapes
 * lists; `by_number`: lists as long as `groups` are of these. */
rs_status rs_ds_note_members(
    rs_ds_reader *reader, int mp, const rs_value *groups, bool by_number) RS_MUST_CHECK;

/* The group whose `params` have the number of a flat buffer; false: none has, or it is no list. */
bool rs_ds_owner(const rs_value *groups, size_t number, size_t *out);

/* Puts the names into the groups of the extras. */
rs_status rs_ds_name_groups(rs_ds_reader *reader) RS_MUST_CHECK;

/* "param_groups.2", with its pipeline stage where there are several; in the pool. */
rs_status rs_ds_group_name(
    rs_ds_reader *reader, int mp, size_t group, const char **out) RS_MUST_CHECK;

#endif
