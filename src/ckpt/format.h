/*
 * Formats: the table of what reshard reads, and how the right one is found.
 *
 * A format looks at a *place*, a file or a folder, says whether it is its own, and fills a catalog
 * from it. It sees names, boxes and offsets, never ranks of a target.
 */
#ifndef RS_CKPT_FORMAT_H
#define RS_CKPT_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/catalog.h"
#include "reshard/checkpoint.h"
#include "reshard/status.h"

#define RS_PLACE_HEAD 512

/* A file, or a folder, or several folders that are looked at as if they were one. */
typedef struct rs_place {
    char *path;  /* of the file, or the first folder */
    char *title; /* of all folders, for messages: "A and B" */
    bool folder;
    char **folders; /* of a file none */
    size_t folder_count;
    char **names; /* of the folders' entries, sorted, each once */
    size_t count;
    bool *same;  /* by name: what several folders have under it was found to be the same */
    bool proved; /* it is: another process compares */
    unsigned char head[RS_PLACE_HEAD]; /* a file's first bytes */
    size_t head_bytes;
    int64_t bytes; /* of a file */
} rs_place;

/* Looks at `path`. Release with rs_place_fini. */
rs_status rs_place_init(rs_place *place, const char *path) RS_MUST_CHECK;
void rs_place_fini(rs_place *place);

/* Looks at several folders. RS_ERR_ARGUMENT: one of several is none. */
rs_status rs_place_init_all(rs_place *place, const char *const *paths, size_t count) RS_MUST_CHECK;

/* The folder that a file stands in. */
rs_status rs_place_init_around(rs_place *place, const char *file) RS_MUST_CHECK;

/* The folder of that name in the place, of all its folders that have one. */
rs_status rs_place_enter(const rs_place *place, const char *name, rs_place *out) RS_MUST_CHECK;

/* Where the file of that name is; free() it. What several folders have must be the same to the
 * byte: else RS_ERR_MISMATCH. Of one that none has, where it would be. */
rs_status rs_place_path(const rs_place *place, const char *name, char **out) RS_MUST_CHECK;

/* True if the folder has an entry of that name. */
bool rs_place_has(const rs_place *place, const char *name);

/* The first entry (from number `*at` on) whose name begins and ends so; NULL if there is none. */
const char *rs_place_match(
    const rs_place *place, const char *prefix, const char *suffix, size_t *at);

/* True if there is something of that name, which may have folders in it; if it is a folder; if it
 * is a file that begins with `head`. Nothing is allocated, so that no probe takes a lack of memory
 * for an answer. */
bool rs_place_reaches(const rs_place *place, const char *name);
bool rs_place_has_folder(const rs_place *place, const char *name);
bool rs_place_file_begins(const rs_place *place, const char *name, const char *head);

/* True if `path` is a folder. */
bool rs_is_folder(const char *path);

typedef struct rs_format {
    const char *name;
    bool (*probe)(const rs_place *place);
    /* NULL: recognised, not read; `what` says what it is. */
    rs_status (*read)(
        rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options);
    const char *what;
} rs_format;

/* Finds the checkpoint at `path`, reads it into a new finished catalog. */
rs_status rs_format_open(
    const char *path, const rs_checkpoint_options *options, rs_catalog **out) RS_MUST_CHECK;

/* The formats, each in a file of its own. */
bool rs_native_probe(const rs_place *place);
rs_status rs_native_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options) RS_MUST_CHECK;
/* Compares what the data files say of themselves with the manifest; what differs is a warning. */
rs_status rs_native_check(rs_catalog *catalog) RS_MUST_CHECK;
bool rs_safetensors_probe(const rs_place *place);

/* True for what begins as a safetensors file: a length that is no other format's first bytes,
 * though its low bytes may be. */
bool rs_safetensors_content(const rs_place *place);
rs_status rs_safetensors_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options) RS_MUST_CHECK;
bool rs_hub_probe(const rs_place *place);
rs_status rs_hub_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options) RS_MUST_CHECK;
bool rs_torch_probe(const rs_place *place);
rs_status rs_torch_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options) RS_MUST_CHECK;
bool rs_deepspeed_probe(const rs_place *place);
rs_status rs_deepspeed_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options) RS_MUST_CHECK;
bool rs_universal_probe(const rs_place *place);
rs_status rs_universal_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options) RS_MUST_CHECK;

#endif
