/*
 * Writing the index of a model folder: what it says follows from the shards' headers alone.
 *
 * A new index puts right what an old one has misplaced, left out or counted wrong. It must not hide
 * that something lacks: a tensor or a shard that the old one names and that is nowhere, or a number
 * that is left out in a row of shards, is an error, and nothing is written.
 */
#include "ckpt/hub.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/publish.h"
#include "reshard/convert.h"

#define ROW_MOST 1000000

rs_status rs_hub_index_text(json_t *metadata, json_t *map, int64_t total_size, char **out)
{
    json_t *about = json_is_object(metadata) ? json_copy(metadata) : json_object();
    json_t *root = NULL;
    *out = NULL;
    if (about != NULL && json_object_set_new(about, "total_size", json_integer(total_size)) == 0)
        root = json_pack("{s:O,s:O}", "metadata", about, "weight_map", map);
    if (root != NULL)
        *out = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(root);
    json_decref(about);
    return *out != NULL ? RS_OK : rs_error_memory(1);
}

/* Of the row "-00001-of-00003" that `one` is of every number must be there. */
static rs_status check_row(const rs_hub *hub, const char *one)
{
    int64_t number, of;
    rs_text gaps = {0};
    if (!rs_hub_number(one, &number, &of) || of < 1)
        return RS_OK; /* called otherwise: nothing says how many there are */
    if (of > ROW_MOST)
        return rs_error_set(RS_ERR_BUDGET, "%s: \"%s\" is one of more than %d shards",
            hub->place->title, one, ROW_MOST);
    bool *have = rs_calloc((size_t)of + 1, sizeof *have);
    if (have == NULL)
        return rs_error_memory((size_t)of + 1);
    have[0] = true; /* numbers count from 1 */
    for (size_t i = 0; i < hub->shards.count; i++) {
        const char *file = hub->shards.items[i].file;
        int64_t all;
        if (rs_hub_is_row(file, one) && rs_hub_number(file, &number, &all) && number <= of)
            have[number] = true;
    }
    rs_text_append_gaps(&gaps, have, (int)of + 1);
    free(have);
    rs_status status = gaps.status;
    if (status == RS_OK && gaps.length > 0)
        status = rs_error_set(RS_ERR_NOT_FOUND,
            "%s: of the %lld shards that \"%s\" is one of, these are missing: %s",
            hub->place->title, (long long)of, one, gaps.data);
    rs_text_fini(&gaps);
    return status;
}

/* Of each row once. */
static rs_status check_rows(const rs_hub *hub)
{
    for (size_t i = 0; i < hub->shards.count; i++) {
        const char *one = hub->shards.items[i].file;
        bool seen = false;
        for (size_t k = 0; k < i && !seen; k++)
            seen = rs_hub_is_row(hub->shards.items[k].file, one);
        if (!seen)
            RS_TRY(check_row(hub, one));
    }
    return RS_OK;
}

/* What the shards have: NAME -> file. Of second names those that the old index has. */
static rs_status make_map(const rs_hub *hub, json_t *map, rs_index_report *report)
{
    report->shards = (int)hub->shards.count;
    for (size_t s = 0; s < hub->shards.count; s++) {
        const rs_hub_shard *shard = &hub->shards.items[s];
        for (size_t i = shard->first; i < shard->end; i++) {
            const rs_catalog_entry *entry = rs_catalog_get(hub->catalog, (int)i);
            bool second = entry->how == RS_ENTRY_ALIAS;
            if (second && json_object_get(hub->map, entry->is.name) == NULL)
                continue;
            if (json_object_set_new(map, entry->is.name, json_string(shard->file)) != 0)
                return rs_error_memory(64);
            report->total_size += second ? 0 : rs_checkpoint_entry_bytes(&entry->is);
        }
    }
    report->tensors = (int64_t)json_object_size(map);
    return RS_OK;
}

/* The new index, if one is wanted, where it belongs. */
static rs_status publish(
    const rs_hub *hub, json_t *map, const rs_index_options *options, rs_index_report *report)
{
    char *text = NULL;
    const char *first = hub->shards.items[0].file, *dot = strrchr(first, '.');
    const char *usual = dot != NULL && strcmp(dot, ".bin") == 0 ? RS_HUB_TORCH_INDEX : RS_HUB_INDEX;
    const char *name = hub->index != NULL ? rs_path_base(hub->index) : usual;
    const json_t *old = json_object_get(json_object_get(hub->root, "metadata"), "total_size");
    bool right = hub->index != NULL && hub->faults == 0 && json_equal(map, hub->map) &&
                 json_is_integer(old) && json_integer_value(old) == report->total_size;
    report->wanted = !right;
    if (right || options->dry_run)
        return RS_OK;
    if (hub->index != NULL && !options->force)
        return rs_error_set(RS_ERR_EXISTS,
            "%s: is there already (--dry-run lists its faults, --force replaces it)", hub->index);
    RS_TRY(
        rs_hub_index_text(json_object_get(hub->root, "metadata"), map, report->total_size, &text));
    rs_status status = rs_publish_text(hub->place->path, name, text);
    free(text);
    report->written = status == RS_OK;
    return status;
}

static rs_status rebuild(
    rs_hub *hub, const char *index, const rs_index_options *options, rs_index_report *report)
{
    rs_status status;
    json_t *map = json_object();
    if (map == NULL)
        return rs_error_memory(64);
    RS_TRY_GOTO(rs_hub_open(hub, index), out);
    RS_TRY_GOTO(rs_catalog_finish(hub->catalog), out);
    if (hub->whole || hub->shards.count == 0)
        RS_TRY_GOTO(rs_error_set(RS_ERR_ARGUMENT, "%s: %s, which wants no index", hub->place->title,
                        hub->whole ? "the model is in one file" : "has no shards"),
            out);
    RS_TRY_GOTO(check_rows(hub), out);
    RS_TRY_GOTO(make_map(hub, map, report), out);
    report->found = hub->index != NULL;
    report->faults = (int)hub->faults;
    for (size_t i = 0; i < hub->catalog->warnings.count && options->tell != NULL; i++)
        options->tell(options->context, hub->catalog->warnings.items[i]);
    RS_TRY_GOTO(publish(hub, map, options, report), out);
out:
    json_decref(map);
    return status;
}

rs_status rs_index_rebuild(
    const char *path, const rs_index_options *options, rs_index_report *report)
{
    static const rs_index_options usual;
    rs_index_report own = {0};
    rs_place at, around = {0};
    rs_hub hub = {0};
    rs_status status;
    RS_TRY(rs_place_init(&at, path));
    if (!rs_hub_probe(&at))
        RS_TRY_GOTO(rs_error_set(RS_ERR_ARGUMENT,
                        "%s: is neither a folder with shards of a model nor an index", path),
            out);
    if (!at.folder)
        RS_TRY_GOTO(rs_place_init_around(&around, path), out);
    hub.place = at.folder ? &at : &around;
    RS_TRY_GOTO(rs_catalog_create("safetensors", &hub.catalog), out);
    RS_TRY_GOTO(rebuild(&hub, at.folder ? NULL : rs_path_base(path),
                    options != NULL ? options : &usual, &own),
        out);
    if (report != NULL)
        *report = own;
out:
    rs_catalog_destroy(hub.catalog);
    rs_hub_close(&hub);
    rs_place_fini(&around);
    rs_place_fini(&at);
    return status;
}
