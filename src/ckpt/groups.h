/*
 * The optimizer's parameter groups among the extras of a run: `param_groups`, a list of objects, or
 * with several pipeline stages a list of such lists. Where it is known which parameters a group
 * has, it says so under `param_names`, as PyTorch does.
 */
#ifndef RS_CKPT_GROUPS_H
#define RS_CKPT_GROUPS_H

#include <jansson.h>
#include <stddef.h>

#include "ckpt/catalog.h"
#include "ckpt/names.h"
#include "reshard/status.h"

#define RS_GROUPS "param_groups"
#define RS_GROUP_NAMES "param_names"

/* All groups, stage after stage: how many, and one of them (borrowed). */
size_t rs_groups_count(const json_t *groups);
json_t *rs_groups_at(const json_t *groups, size_t i);

/* The group whose `params` have a number; -1: none. Of a list without stages. */
int rs_groups_owner(const json_t *groups, size_t number);

/* Puts a parameter's name behind those of the group. */
rs_status rs_group_add_name(json_t *group, const char *name) RS_MUST_CHECK;

/* One list for all stages, each group with the names of all: a new reference. NULL if stages have
 * other options than the first, or there are no groups. */
json_t *rs_groups_merged(const json_t *groups);

/* The number of the group of each name that one has; the table borrows the names. */
rs_status rs_groups_index(const json_t *groups, rs_names *out) RS_MUST_CHECK;

/*
 * The groups of a catalog while it gets other names: rs_regroup_begin, rs_regroup_is for each new
 * name and each old one that it has parts of, rs_regroup_end, which puts them into the extras of
 * `to` and warns of names whose parts are in unlike groups. Nothing happens where no group has
 * names.
 */
typedef struct rs_regroup {
    json_t *merged; /* NULL: nothing to do */
    json_t *lost;   /* names that no group has any more */
    rs_names old;   /* name -> group */
    bool differ;    /* the pipeline's stages */
    /* the name at hand */
    const char *name;
    int group; /* -1: none yet, -2: several */
} rs_regroup;

rs_status rs_regroup_begin(rs_regroup *r, const rs_catalog *from) RS_MUST_CHECK;
rs_status rs_regroup_is(rs_regroup *r, const char *name, const char *old) RS_MUST_CHECK;
rs_status rs_regroup_end(rs_regroup *r, rs_catalog *to) RS_MUST_CHECK;
void rs_regroup_fini(rs_regroup *r);

#endif
