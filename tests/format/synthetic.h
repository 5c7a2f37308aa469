/*
 * DeepSpeed checkpoints made from their definition, element by element: a second, slow and plain
 * implementation of how ZeRO and tensor parallelism cut tensors, to hold the reader against.
 */
#ifndef TEST_FORMAT_SYNTHETIC_H
#define TEST_FORMAT_SYNTHETIC_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/checkpoint.h"

#define SYN_TP 4
#define SYN_PARTS 6

typedef enum syn_cut {
    SYN_REPLICATED = 0,
    SYN_ROWS,    /* along dimension 0 */
    SYN_COLUMNS, /* along dimension 1 */
    SYN_TWO,     /* two halves along dimension 0 */
    SYN_PARTED,  /* parts of given sizes along dimension 0, even shares */
    SYN_UNEVEN,  /* the same with given widths */
    SYN_AVERAGED,
    SYN_LISTED /* along dimension 0, the rows that `rows` lists; nothing in the files says it */
} syn_cut;

typedef struct syn_param {
    char name[40];
    int ndim;
    int64_t shape[3]; /* whole */
    syn_cut cut;
    int parts;
    int64_t sizes[SYN_PARTS];
    int64_t widths[SYN_PARTS][SYN_TP];
    const int64_t *rows; /* [tp][row_count] */
    int row_count;       /* of each rank */
    int group;
} syn_param;

/* States of the optimizer, a bit each. */
enum { SYN_EXP_AVG = 1, SYN_EXP_AVG_SQ = 2, SYN_MOMENTUM = 4, SYN_FOO = 8, SYN_STATES = 4 };

#define SYN_PARAMS 16

typedef struct syn_run {
    int tp, dp, stage; /* stage 1, 2 or 3 */
    int groups;
    syn_param params[SYN_PARAMS];
    int count;
    unsigned states[4]; /* of each group */
    int64_t vocabulary; /* real rows of params[0]; 0: not a vocabulary */
    bool no_info;       /* without universal_checkpoint_info */
    bool int_step;      /* a Python int instead of a tensor */
    bool vector_step;   /* a tensor of shape [1], int64 */
    bool group_step;    /* in param_groups, where nobody updates it: 0 */
    int stage_form;     /* zero_stage as 0: int, 1: enum by value, 2: by name, 3: absent */
    bool bf16_moments;
    bool scaler_differs;   /* on the last rank */
    int omit;              /* this param is left out of param_shapes; -1: none */
    int absent, absent_tp; /* this param is not on this tp rank; -1: none */
    int empty_rank;        /* this rank's master of group 0 is empty; -1: none */
    int written;           /* ranks that have files; 0: all */
    int differs; /* on this tp rank, an element of params[1]'s weight is 1.5 more; -1: none */
    int64_t differs_at; /* which one of what the rank has: 2 */
    bool shift_weight;  /* element 0 of params[0]'s weight is not its master rounded */
    const char *alias;  /* of params[0], in shared_params; NULL */
    int later;          /* steps that each further group is ahead of the one before */
    int ahead;    /* 1: the last dp rank's optimizer is two steps ahead, 2: its file says so */
    bool loaders; /* the client keeps each rank's place in its data */
    bool args;    /* the client keeps Megatron's arguments, of another layout than the run's */
} syn_run;

/* A run with the usual choices and no params. */
syn_run syn_usual(int tp, int dp, int stage);

/* Adds a param; the cut's details can be filled in behind. */
syn_param *syn_add(
    syn_run *run, const char *name, syn_cut cut, int group, int ndim, int64_t a, int64_t b);

/* Writes the run as a tag's folder. */
void syn_write(const syn_run *run, const char *folder);
void syn_remove(const char *folder);

/* What element `index` (row-major) of a param is in a role: whole numbers that fp32 holds. Roles:
 * 0 param, 1 master, 2.. the states by their bits. */
float syn_value(int role, int param, int64_t index);

/* Reads the folder and compares every element of every role. */
void syn_compare(const syn_run *run, const char *folder);

#endif
