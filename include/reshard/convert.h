/*
 * Converting checkpoints from one format to another, and comparing them.
 */
#ifndef RESHARD_CONVERT_H
#define RESHARD_CONVERT_H

#include <stdbool.h>
#include <stdint.h>

#include "reshard/checkpoint.h"
#include "reshard/group.h"
#include "reshard/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Starts as {0}: everything as usual. */
typedef struct rs_convert_options {
    const char *to;         /* "safetensors": a Hugging Face folder of weights; "native": a folder;
                               "torch": one file of torch.save; "deepspeed-universal": a folder
                               with latest_universal and the checkpoint's folder */
    int64_t shard_bytes;    /* of a file's tensors at most, one tensor more; 0: 5,000,000,000. Of
                               safetensors, and of native ones without a layout */
    int64_t memory;         /* for buffers; 0: 256 MiB */
    int threads;            /* 0: as many as pay */
    bool weights_only;      /* weights alone will do, where the format takes the whole state */
    bool master_from_param; /* make masters of float32 from params that have none */
    const char *dtype; /* "T" (of params) or "ROLE=T", several with commas; NULL: as they are */
    const rs_dialect *dialect; /* whose names are written; NULL: those that the source has, but for
                                  canonical ones in safetensors and torch Hugging Face's */
    const rs_dialect *from;    /* whose names the source has; NULL: found */
    const rs_space *space; /* the model's, for names; NULL: as a canonical source tells itself */
    const char *hub;    /* safetensors: a folder whose configuration and tokenizer are copied too;
                           NULL: none */
    const char *layout; /* universal: the layout that it is for, of which tp, pp, dp and zero
                           count; NULL: the source's. native: a file for each rank of it, with what
                           the rank would save; NULL: as one rank's */
    const char *rules;  /* universal: path of a rules file that says how tensors are cut */
    const char *universal_version; /* "0.2" (NULL) or "0.4" */
    const char *tied; /* second names of tensors: "once" (NULL): the tensor is written under its
                         first name (torch and universal checkpoints keep the others as names of the
                         same bytes); "listed": safetensors: and they stand in the file's metadata,
                         as save_model of the Python package has it; "duplicate": each has bytes of
                         its own; of weights alone */
    void (*warn)(void *context, const char *warning); /* what is not as one would expect; may be
                                                         NULL. On every rank alike */
    void *warn_context;
    bool force;            /* replace what is at the target */
    bool dry_run;          /* only say what would be written */
    const rs_group *group; /* processes that convert together; NULL: this one alone */
    void (*progress)(void *context, int64_t done, int64_t all); /* bytes; may be NULL */
    bool (*cancelled)(void *context); /* asked again and again: true ends it; may be NULL */
    void *context; /* of both, which are called from any thread, `progress` one at a time */
} rs_convert_options;

typedef struct rs_convert_report {
    int64_t bytes;      /* of tensors */
    int64_t bytes_read; /* from the files of the source, by all processes, since it was opened */
    int64_t tensors;
    int64_t skipped;        /* entries that the format does not take */
    int64_t extras_skipped; /* values beside the tensors, of which the same is true */
    int64_t second_names;   /* of weights, with which was done what `tied` says; 0 where the format
                               keeps them */
    int files;
    int copied; /* files of configuration and tokenizer; with the next two, of safetensors alone */
    bool lacks_config;
    bool lacks_tokenizer;
} rs_convert_report;

/*
 * Writes what is in `source` to `target`, a folder or a file. It is written beside it, in
 * `target`.tmp-reshard, and renamed when it is complete and synced: interrupted, there is nothing
 * at `target`, or what was there, which `force` lets it change places with in one step. (Where the
 * file system cannot do that, the old one is renamed to `target`.old-reshard first; killed between
 * the two, the next conversion to `target` puts it back.) RS_ERR_EXISTS: it is there already and
 * not `force`. RS_ERR_UNSUPPORTED: the source has no optimizer state and not `weights_only`, or
 * something that the format cannot hold. RS_ERR_CANCELLED: `cancelled` said so. `report` may be
 * NULL.
 *
 * Collective over the group: each process has opened the same source and gives the same options;
 * the files are divided over them, and are the same, to the byte, for any number. All return the
 * same status.
 */
rs_status rs_convert(const rs_checkpoint *source, const char *target,
    const rs_convert_options *options, rs_convert_report *report) RS_MUST_CHECK;

/* Starts as {0}. */
typedef struct rs_index_options {
    bool force;                                     /* replace an index that is there */
    bool dry_run;                                   /* only say what it would be */
    void (*tell)(void *context, const char *fault); /* of the index that is there; may be NULL */
    void *context;
} rs_index_options;

typedef struct rs_index_report {
    int64_t tensors, total_size; /* bytes */
    int shards;
    int faults;   /* of the index that is there, each told */
    bool found;   /* there is one */
    bool wanted;  /* there is none, or it is not right */
    bool written; /* a new one was */
} rs_index_report;

/*
 * Writes the index of a Hugging Face folder anew, from the headers of its shards: which tensor is
 * in which, and their size. What else the old one has as `metadata` is kept. The index is replaced
 * in one step, or stays as it was; one that is right is left alone. RS_ERR_EXISTS: there is one
 * with faults, and not `force`. RS_ERR_MALFORMED, RS_ERR_NOT_FOUND: it names tensors or shards that
 * are not there, or of a numbered row some are not, so that a new index would hide that they lack.
 * RS_ERR_ARGUMENT: there is nothing that wants an index. `report` may be NULL. Local.
 */
rs_status rs_index_rebuild(
    const char *path, const rs_index_options *options, rs_index_report *report) RS_MUST_CHECK;

/* Starts as {0}: equal to the bit. */
typedef struct rs_compare_options {
    double rtol; /* |a - b| <= atol + rtol |b| is equal, of floating-point types */
    double atol;
    const char *role; /* compare these roles only, a list with commas; NULL: all, and extras */
    bool cast;        /* round the wider of two floating-point types to the narrower first */
    const rs_dialect *dialect; /* of names that are not canonical; NULL: found */
    const rs_space *space; /* the model's: both are brought under its names; NULL: only if one has
                              the canonical names and tells it */
} rs_compare_options;

typedef struct rs_compare_report {
    int64_t tensors; /* compared: of one name and role in both */
    int64_t elements;
    int64_t different; /* tensors and extras that differ, or are in one alone */
} rs_compare_report;

/*
 * Compares what two checkpoints hold, across formats and layouts: stored entries by name and role,
 * both under canonical names where only one of them has those. Calls `tell` with a sentence
 * for each difference. RS_OK whatever the outcome is.
 */
rs_status rs_compare(const rs_checkpoint *a, const rs_checkpoint *b,
    const rs_compare_options *options, void (*tell)(void *context, const char *difference),
    void *context, rs_compare_report *report) RS_MUST_CHECK;

#ifdef __cplusplus
}
#endif

#endif
