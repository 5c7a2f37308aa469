/*
 * Assembly: from what each tensor-parallel rank holds of a tensor to the tensor itself.
 *
 * A reader adds *locals*: a tensor as one rank (tp) of one replica has it, in a role, with its
 * local shape, and where its elements lie: ranges of its row-major order (flat shards cut them
 * anywhere) or a strided whole. At the end every local is placed in the logical tensor by the
 * rules.
 */
#ifndef RS_CKPT_ASSEMBLY_H
#define RS_CKPT_ASSEMBLY_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/catalog.h"
#include "ckpt/rules.h"
#include "reshard/status.h"

typedef struct rs_local {
    const char *name; /* in the assembly's pool */
    const char *role;
    int tp;
    int copy; /* replica */
    rs_dtype dtype;
    int ndim;
    int64_t shape[RS_MAX_DIMS];
    int group;       /* of locals with one name and role */
    int64_t first;   /* of its pieces, a chain; -1: none */
    bool whole;      /* not cut over ranks, whatever the rules say of the name */
    bool own;        /* the copy is the replica's own, which trains it apart from the others' */
    bool contiguous; /* all its pieces are ranges */
} rs_local;

typedef struct rs_local_piece {
    int64_t next;       /* of the same local, -1 */
    int64_t begin, end; /* elements of the local tensor in row-major order */
    int file;
    int64_t offset; /* bytes, of element `begin` */
    int strided;    /* number of a strided piece, -1: contiguous */
} rs_local_piece;

typedef struct rs_assembly {
    rs_catalog *catalog;
    rs_rules *rules;
    int tp;       /* ranks over which tensors are cut */
    bool partial; /* the rules are for tensors too that are not among the locals */
    rs_pool pool;
    rs_names keys;   /* role, name, tp, copy -> local */
    rs_names groups; /* role, name -> group */
    struct {
        rs_local *items;
        size_t count, capacity;
    } locals;
    struct {
        rs_local_piece *items;
        size_t count, capacity;
    } pieces;
    struct {
        rs_piece *items;
        size_t count, capacity;
    } strided;
    int group_count;
} rs_assembly;

void rs_assembly_init(rs_assembly *assembly, rs_catalog *catalog, rs_rules *rules, int tp);
void rs_assembly_fini(rs_assembly *assembly);

/* The local of that name, role, rank and replica, made if there is none. One that was made before
 * must have the same dtype and shape: RS_ERR_MISMATCH names the tensor. */
rs_status rs_assembly_local(rs_assembly *assembly, const char *name, const char *role, int tp,
    int copy, rs_dtype dtype, int ndim, const int64_t *shape, int *id) RS_MUST_CHECK;

/* Elements [begin, end) of the local tensor from byte `offset` of `file` on. */
rs_status rs_assembly_range(rs_assembly *assembly, int id, int64_t begin, int64_t end, int file,
    int64_t offset) RS_MUST_CHECK;

/* All of the local tensor, by strides. */
rs_status rs_assembly_strided(rs_assembly *assembly, int id, const rs_piece *piece) RS_MUST_CHECK;

/*
 * Makes the entries, in the order in which their names and roles were first met. RS_ERR_UNSUPPORTED
 * names a tensor of which nothing says how it was cut, RS_ERR_MISMATCH one whose parts do not fit.
 */
rs_status rs_assembly_finish(rs_assembly *assembly) RS_MUST_CHECK;

#endif
