/* What a layout makes of a space, block by block, for each slice of both meshes. Include in .c
 * files of this layer only. */
#ifndef RS_LAYOUT_TABLES_H
#define RS_LAYOUT_TABLES_H

#include "layout/block.h"
#include "layout/mesh.h"

/* Kinds of block; those from RS_KIND_LAYERS on are runs of alike layers. */
enum { RS_KIND_HEAD_FIRST, RS_KIND_HEAD, RS_KIND_TAIL, RS_KIND_LAYERS };

/* What one mesh has of a kind of block in the roles of one class. */
typedef struct rs_kind {
    rs_block table;
    int64_t layer;      /* of a run of layers: the first */
    int64_t *run_start; /* [slice]: elements of all layers before the first */
} rs_kind;

typedef struct rs_tables {
    const rs_space *space;
    rs_layout layout;
    int64_t layers;
    int blocks; /* of one mesh: layers + 2 */
    rs_grid grid[RS_MESHES];
    int kind_count;
    int *kind_of_layer;
    int class_count; /* roles of one class share tables */
    int class_of[RS_MAX_ROLES];
    int first_of[RS_MAX_ROLES]; /* of each class: its lowest role */
    rs_kind *kinds;             /* [class][mesh][kind] */
} rs_tables;

/* `space` is borrowed, `layout` copied. The caller releases the tables with rs_tables_fini, after a
 * failure too. */
rs_status rs_tables_init(
    rs_tables *tables, const rs_space *space, const rs_layout *layout) RS_MUST_CHECK;
void rs_tables_fini(rs_tables *tables);

/* Whether the members of a group each have a part of a role's slice. */
bool rs_tables_is_cut(const rs_tables *tables, int mesh, int role);

/* Whether they have it as slots: parts of each parameter, at the same places. */
bool rs_tables_has_slots(const rs_tables *tables, int mesh, int role);

/* What `block` (0 .. blocks - 1) has on a mesh for pipeline rank `stage`; NULL if nothing. */
const rs_block *rs_tables_block(const rs_tables *tables, int mesh, int role, int stage, int block);

/* Where `block` begins in the concatenation of (stage, slice), which need not have it, and the
 * whole concatenation's length. Not where the role has slots. */
int64_t rs_tables_start(
    const rs_tables *tables, int mesh, int role, int stage, int slice, int block);
int64_t rs_tables_total(const rs_tables *tables, int mesh, int role, int stage, int slice);

/* The block of pipeline rank `stage` that follows `block`: 0 after -1, and -1 after the last. */
int rs_tables_next_block(const rs_tables *tables, int stage, int block);

/* A slice's part of `tensor`, of layer `layer` of the model where it has layers. */
rs_box rs_tables_local_box(
    const rs_tables *tables, const rs_tensor *tensor, int slice, int64_t layer);

/* How zero_cut=param and dim0 cut a local box. */
typedef struct rs_slots {
    int64_t units;   /* parameters of the same size: local experts, or one; with dim0 always one */
    int unit_dim;    /* the dimension that tells them apart, -1 if there is one at most */
    int cut_dim;     /* dim0: what is cut, -1 for a scalar; param: -1, elements are cut */
    int64_t length;  /* of what is cut: elements of a unit, or rows */
    int64_t each;    /* of it for each member */
    int64_t element; /* elements for each of it */
} rs_slots;

rs_slots rs_tables_slots(const rs_tables *tables, const rs_tensor *tensor, const rs_box *local);

#endif
