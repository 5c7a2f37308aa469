/*
 * Rules: how tensors were cut over tensor-parallel ranks, where their files do not say it.
 *
 * A rule is a name pattern and what holds for the names that it matches. They come from the
 * checkpoint itself (DeepSpeed's universal_checkpoint_info) or from a rules file of the user
 * (docs/formats/rules.md). Where no rule matches, the cut is unknown; it is never guessed.
 */
#ifndef RS_CKPT_RULES_H
#define RS_CKPT_RULES_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/pattern.h"
#include "ckpt/pool.h"
#include "ckpt/value.h"
#include "reshard/box.h"
#include "reshard/status.h"

typedef enum rs_rule_kind {
    RS_RULE_REPLICATED = 0, /* every rank has all of it, and they are equal */
    RS_RULE_AVERAGED,       /* every rank has all of it; the mean counts */
    RS_RULE_SPLIT           /* cut along `dim`, in one or several parts */
} rs_rule_kind;

typedef struct rs_rule {
    rs_pattern *pattern; /* NULL: every name */
    rs_rule_kind kind;
    int dim;
    /* A fused tensor has several parts along `dim`; each rank holds its share of each. */
    int parts;             /* at least 1 */
    bool bare;             /* `parts` is a bare number: of equal parts, or the size of one */
    const int64_t *sizes;  /* of the parts, whole; NULL: equal parts */
    const int64_t *widths; /* [part][rank]; NULL: equal shares */
    int ranks;             /* of `widths` */
    /* With `sizes`: each part is dealt into `groups` equal groups, which stand behind each other,
     * group 0 of every part first. Of the parts that are shared a rank has, whole, the groups of
     * which it has a share in the other parts. */
    int64_t groups;            /* 0: one */
    const bool *shared;        /* of each part; NULL: none is */
    bool equal;                /* what several ranks have must be equal, else it is refused */
    int view_ndim;             /* the tensor is cut in this shape (0: in its own); -1 stands for */
    int64_t view[RS_MAX_DIMS]; /* what is left, the entry at `dim` is not read */
    bool used;                 /* some name matched */
} rs_rule;

typedef struct rs_vocabulary {
    rs_pattern *pattern;
    int64_t rows; /* the true number; 0: unknown */
    bool used;
} rs_vocabulary;

typedef struct rs_tie {
    rs_pattern *pattern; /* matches the second name */
    const char *target;
} rs_tie;

/* Starts as {0}. */
typedef struct rs_rules {
    struct {
        rs_rule *items;
        size_t count, capacity;
    } cuts; /* the first that matches counts */
    struct {
        rs_vocabulary *items;
        size_t count, capacity;
    } vocabularies;
    struct {
        rs_tie *items;
        size_t count, capacity;
    } ties;
    struct {
        rs_pattern **items;
        size_t count, capacity;
    } pipeline_replicated;
    struct {
        rs_pattern **items;
        size_t count, capacity;
    } experts; /* dimension 0 of these counts experts */
    rs_pool pool;
    const char *version; /* of universal_checkpoint_info, as text; NULL */
} rs_rules;

void rs_rules_fini(rs_rules *rules);

/* Adds what a universal_checkpoint_info dict says. The texts are copied. */
rs_status rs_rules_add_info(rs_rules *rules, const rs_value *info) RS_MUST_CHECK;

/* The same in JSON. */
rs_status rs_rules_add_json(rs_rules *rules, const json_t *info) RS_MUST_CHECK;

/* Adds the rules of a file (JSON). */
rs_status rs_rules_add_file(rs_rules *rules, const char *path) RS_MUST_CHECK;

/* The rule for `name`, NULL if none matches. */
rs_status rs_rules_find(rs_rules *rules, const char *name, const rs_rule **out) RS_MUST_CHECK;

/* The vocabulary that `name` is a table of, NULL if none. */
rs_status rs_rules_vocabulary(
    rs_rules *rules, const char *name, const rs_vocabulary **out) RS_MUST_CHECK;

/* Whether dimension 0 of `name` counts experts. */
rs_status rs_rules_experts(const rs_rules *rules, const char *name, bool *out) RS_MUST_CHECK;

/* The name that `name` is a second name of, NULL if no rule says so. */
rs_status rs_rules_tie(const rs_rules *rules, const char *name, const char **out) RS_MUST_CHECK;

#endif
