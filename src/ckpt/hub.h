/*
 * Model folders as the Hugging Face hub has them: whole shards, each with its tensors, and an index
 * that says which is where. Opened for reading them, and for writing the index anew.
 */
#ifndef RS_CKPT_HUB_H
#define RS_CKPT_HUB_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/catalog.h"
#include "ckpt/format.h"
#include "reshard/status.h"

/* What the hub calls the index, of shards of safetensors and of torch. */
#define RS_HUB_INDEX "model.safetensors.index.json"
#define RS_HUB_TORCH_INDEX "pytorch_model.bin.index.json"

/* A shard and the catalog's entries that it has: first .. end - 1. */
typedef struct rs_hub_shard {
    const char *file; /* its name */
    size_t first, end;
} rs_hub_shard;

/* Starts as {0} with the first two. */
typedef struct rs_hub {
    rs_catalog *catalog;
    const rs_place *place; /* the folder, borrowed */
    char *index;           /* path of the index; NULL: there is none */
    json_t *root;          /* of the index */
    json_t *map;           /* its weight_map, borrowed from it */
    bool whole;            /* the model is in one file, of the usual name */
    struct {
        rs_hub_shard *items;
        size_t count, capacity;
    } shards;
    size_t faults; /* of the index, each a warning of the catalog */
} rs_hub;

/*
 * Enters what the folder has, by its index (`index` names it; NULL: the one that counts, if any),
 * and checks that against the shards: its faults are warnings. RS_ERR_NOT_FOUND: it names shards
 * that are not there. RS_ERR_MALFORMED: it names tensors that no shard has; the message then has
 * the other faults too. Release with rs_hub_close, also after an error.
 */
rs_status rs_hub_open(rs_hub *hub, const char *index) RS_MUST_CHECK;
void rs_hub_close(rs_hub *hub);

/* True for the name of a shard. */
bool rs_hub_is_shard(const char *name);

/* The numbers in "<stem>-00002-of-00005.<suffix>"; false if it is called otherwise. */
bool rs_hub_number(const char *name, int64_t *number, int64_t *of);

/* Whether two shards are of one row: called alike but for the number. */
bool rs_hub_is_row(const char *a, const char *b);

/* The text of an index; free() it. `metadata`: an object whose other members it keeps, or NULL. */
rs_status rs_hub_index_text(
    json_t *metadata, json_t *map, int64_t total_size, char **out) RS_MUST_CHECK;

#endif
