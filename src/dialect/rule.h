/* A dialect in memory. Include in .c files of this layer only. */
#ifndef RS_DIALECT_RULE_H
#define RS_DIALECT_RULE_H

#include <jansson.h>

#include "reshard/dialect.h"

#define RS_TOKENS_MOST 64
#define RS_PARTS_MOST 64

typedef enum token_kind {
    TOKEN_TEXT,     /* as it stands */
    TOKEN_OPTIONAL, /* text that is written and may be absent when read: [text] */
    TOKEN_INDEX,    /* an index of dimension `dim`, and `plus`: {0} {1+2} */
    TOKEN_FACT,     /* a fact that is a number, and `plus`: {layers+2} */
    TOKEN_ANY       /* any number: {} */
} token_kind;

typedef struct token {
    token_kind kind;
    const char *text; /* borrowed from the JSON */
    size_t length;
    int dim;
    int64_t plus;
} token;

typedef struct pattern {
    const char *text;
    token *tokens;
    size_t count;
} pattern;

/* A fact and the values of which it must have one. */
typedef struct condition {
    const char *key;
    const json_t *values; /* a text, or a list of texts */
} condition;

typedef struct rule {
    pattern name;
    bool identity;      /* every tensor of the space that no other rule names, under its own name */
    bool alias;         /* never written */
    bool tied;          /* an alias that a tied model has itself, as a second name */
    const char **parts; /* canonical names */
    size_t part_count;
    int along;               /* foreign dimension along which parts stand behind each other */
    int64_t groups;          /* each part is cut in so many, dealt in turn; 0: `groups_fact` says */
    const char *groups_fact; /* borrowed */
    int order[RS_MAX_DIMS];  /* foreign dimension d runs along the order[d]-th that is not told */
    int order_count;         /* 0: the natural one */
    bool reversed;           /* the natural one backwards */
    condition *conditions;
    size_t condition_count;
} rule;

struct rs_dialect {
    json_t *root; /* owns all texts */
    const char *name;
    rule *rules;
    size_t rule_count;
    pattern *ignored;
    size_t ignored_count;
    const json_t *wrappers; /* lists of texts, or NULL */
    const json_t *prefixes;
};

#endif
