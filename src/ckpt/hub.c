/*
 * Model folders as the Hugging Face hub has them: shards with an index, or without.
 *
 * `model.safetensors.index.json` maps every tensor to the shard that has it; the shards are whole
 * files of safetensors (or, older, of torch.save). The headers of the shards are the truth and the
 * index is checked against them: a shard or a tensor that the index names and that is not there is
 * an error, since a model would be left incomplete; anything else is a warning.
 *
 * Specification: docs/formats/safetensors.md.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/format.h"
#include "ckpt/safetensors.h"
#include "ckpt/torch_read.h"

#define INDEX_MOST ((size_t)32 << 20)

/* Junk that macOS leaves beside files. */
static bool is_junk(const char *name)
{
    return strncmp(name, "._", 2) == 0;
}

static bool ends(const char *name, const char *suffix)
{
    size_t length = strlen(name), tail = strlen(suffix);
    return length >= tail && strcmp(name + length - tail, suffix) == 0;
}

static bool is_index(const char *name)
{
    return !is_junk(name) && ends(name, ".json") &&
           (strstr(name, ".safetensors.index.") != NULL || strstr(name, ".bin.index.") != NULL);
}

static bool is_shard(const char *name)
{
    return !is_junk(name) && (ends(name, ".safetensors") ||
                                 (ends(name, ".bin") && strncmp(name, "pytorch_model", 13) == 0));
}

bool rs_hub_probe(const rs_place *place)
{
    if (!place->folder)
        return is_index(rs_path_base(place->path));
    for (size_t i = 0; i < place->count; i++)
        if (is_index(place->names[i]) || is_shard(place->names[i]))
            return true;
    return false;
}

/* Enters one shard, whatever its kind. */
static rs_status enter_shard(rs_catalog *catalog, const char *folder, const char *name)
{
    char *path;
    rs_place place = {0};
    rs_torch torch = {0};
    int file;
    json_t *metadata = NULL;
    rs_status status;
    RS_TRY(rs_path_join(folder, name, &path));
    RS_TRY_GOTO(rs_place_init(&place, path), out);
    RS_TRY_GOTO(rs_files_add(catalog->files, path, &file), out);
    if (rs_torch_probe(&place)) {
        catalog->format = "torch";
        RS_TRY_GOTO(rs_torch_open(catalog->files, file, &torch), out);
        RS_TRY_GOTO(rs_torch_enter(catalog, &torch), out);
        RS_TRY_GOTO(rs_torch_checksums(catalog, &torch), out);
        RS_TRY_GOTO(rs_torch_warn(catalog, &torch), out);
    } else {
        catalog->format = "safetensors";
        metadata = json_object_get(catalog->extras, "metadata");
        json_t *own = json_object();
        status = own != NULL ? rs_safetensors_enter(catalog, file, own) : rs_error_memory(64);
        if (status == RS_OK && json_object_update_missing(metadata, own) != 0)
            status = rs_error_memory(64);
        json_decref(own);
    }
out:
    rs_torch_fini(&torch);
    rs_place_fini(&place);
    free(path);
    return status;
}

typedef struct index_file {
    const char *path;
    const char *folder;
    json_t *root;
    json_t *map; /* borrowed from root */
} index_file;

static rs_status load_index(index_file *index)
{
    char *text = NULL;
    size_t length = 0;
    json_error_t error;
    RS_TRY(rs_file_text(index->path, INDEX_MOST, &text, &length));
    index->root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (index->root == NULL)
        return rs_error_set(
            RS_ERR_MALFORMED, "%s: byte %d: %s", index->path, error.position, error.text);
    index->map = json_object_get(index->root, "weight_map");
    if (!json_is_object(index->map))
        return rs_error_set(RS_ERR_MALFORMED, "%s: has no object \"weight_map\"", index->path);
    const char *name;
    json_t *shard;
    json_object_foreach(index->map, name, shard)
    {
        const char *file = json_string_value(shard);
        if (file == NULL || file[0] == 0 || strlen(file) != json_string_length(shard) ||
            strchr(file, '/') != NULL || strchr(file, '\\') != NULL || strcmp(file, "..") == 0 ||
            strcmp(file, ".") == 0)
            return rs_error_set(RS_ERR_MALFORMED,
                "%s: the shard of \"%s\" is no plain file name: \"%s\"", index->path, name,
                file != NULL ? file : "?");
    }
    return RS_OK;
}

/* A shard of the index that is not there: how much it would hold, and what is there instead. */
static rs_status missing_shard(const index_file *index, const rs_place *folder, const char *file)
{
    size_t tensors = 0, others = 0;
    const char *name;
    json_t *shard;
    json_object_foreach(index->map, name, shard) tensors +=
        strcmp(json_string_value(shard), file) == 0;
    for (size_t i = 0; i < folder->count; i++)
        others += is_shard(folder->names[i]);
    return rs_error_set(RS_ERR_NOT_FOUND,
        "%s: names the shard \"%s\" (%zu tensors), which is not in the folder; it has %zu shards%s",
        index->path, file, tensors, others,
        others > 0 && strstr(file, "-of-") != NULL ? " (the index may be that of another save)"
                                                   : "");
}

static rs_status enter_shards(rs_catalog *catalog, const index_file *index, const rs_place *folder)
{
    const char *name;
    json_t *shard;
    json_t *seen = json_object();
    rs_status status = seen != NULL ? RS_OK : rs_error_memory(64);
    json_object_foreach(index->map, name, shard)
    {
        const char *file = json_string_value(shard);
        if (status != RS_OK || json_object_get(seen, file) != NULL)
            continue;
        if (json_object_set_new(seen, file, json_true()) != 0)
            status = rs_error_memory(64);
        else if (!rs_place_has(folder, file))
            status = missing_shard(index, folder, file);
        else
            status = enter_shard(catalog, index->folder, file);
    }
    for (size_t i = 0; i < folder->count && status == RS_OK; i++)
        if (is_shard(folder->names[i]) && json_object_get(seen, folder->names[i]) == NULL)
            status = rs_catalog_warn(catalog, "%s: does not name \"%s\", which is in the folder",
                index->path, folder->names[i]);
    json_decref(seen);
    return status;
}

/* The index against what the shards hold. */
static rs_status compare_index(rs_catalog *catalog, const index_file *index)
{
    const char *name;
    json_t *shard;
    json_object_foreach(index->map, name,
        shard) if (rs_catalog_find(catalog, name, "param") < 0 &&
                   rs_catalog_find(catalog, name, "rng") < 0) return rs_error_set(RS_ERR_MALFORMED,
        "%s: puts \"%s\" into \"%s\", but no shard has it", index->path, name,
        json_string_value(shard));
    int64_t total = 0;
    for (size_t i = 0; i < catalog->entries.count; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(catalog, (int)i);
        if (entry->how != RS_ENTRY_ALIAS)
            total += rs_checkpoint_entry_bytes(&entry->is);
        const char *file = json_string_value(json_object_get(index->map, entry->is.name));
        if (file == NULL)
            RS_TRY(rs_catalog_warn(
                catalog, "%s: does not name the tensor \"%s\"", index->path, entry->is.name));
    }
    for (size_t i = 0; i < catalog->pieces.count; i++) {
        const rs_stored_piece *piece = &catalog->pieces.items[i];
        const char *tensor = rs_catalog_get(catalog, piece->entry)->is.name;
        const char *file = json_string_value(json_object_get(index->map, tensor));
        const char *real = rs_path_base(rs_files_path(catalog->files, piece->file));
        if (file != NULL && strcmp(file, real) != 0 && strchr(real, '!') == NULL)
            RS_TRY(rs_catalog_warn(catalog, "%s: puts \"%s\" into \"%s\", it is in \"%s\"",
                index->path, tensor, file, real));
    }
    const json_t *size = json_object_get(json_object_get(index->root, "metadata"), "total_size");
    if (json_is_integer(size) && json_integer_value(size) != total)
        RS_TRY(rs_catalog_warn(catalog, "%s: says total_size %lld, the tensors have %lld bytes",
            index->path, (long long)json_integer_value(size), (long long)total));
    return RS_OK;
}

static rs_status read_index(rs_catalog *catalog, const char *path, const char *folder)
{
    index_file index = {.path = path, .folder = folder};
    rs_place inside = {0};
    rs_status status;
    RS_TRY_GOTO(load_index(&index), out);
    RS_TRY_GOTO(rs_place_init(&inside, folder), out);
    RS_TRY_GOTO(enter_shards(catalog, &index, &inside), out);
    RS_TRY_GOTO(compare_index(catalog, &index), out);
out:
    rs_place_fini(&inside);
    json_decref(index.root);
    return status;
}

/* The index that counts in a folder: the model's, or the only one; NULL if there is none. */
static rs_status choose_index(rs_catalog *catalog, const rs_place *place, const char **out)
{
    static const char *const usual[] = {
        "model.safetensors.index.json", "pytorch_model.bin.index.json"};
    static const char *const whole[] = {"model.safetensors", "pytorch_model.bin"};
    size_t count = 0;
    *out = NULL;
    for (size_t i = 0; i < place->count; i++)
        if (is_index(place->names[i]) && ++count == 1)
            *out = place->names[i];
    for (size_t i = 0; i < 2; i++) {
        if (!rs_place_has(place, usual[i]))
            continue;
        *out = usual[i];
        if (rs_place_has(place, whole[i])) {
            *out = NULL;
            return rs_catalog_warn(catalog, "%s: has \"%s\" and \"%s\"; the one file is read",
                place->path, whole[i], usual[i]);
        }
        return RS_OK;
    }
    if (count > 1)
        return rs_error_set(RS_ERR_ARGUMENT,
            "%s: has %zu indexes and none is the usual one; name the one that is meant",
            place->path, count);
    return RS_OK;
}

static rs_status read_folder(rs_catalog *catalog, const rs_place *place)
{
    static const char *const whole[] = {"model.safetensors", "pytorch_model.bin"};
    const char *name;
    char *path = NULL;
    RS_TRY(choose_index(catalog, place, &name));
    if (name != NULL) {
        RS_TRY(rs_path_join(place->path, name, &path));
        rs_status status = read_index(catalog, path, place->path);
        free(path);
        return status;
    }
    for (size_t i = 0; i < 2; i++)
        if (rs_place_has(place, whole[i]))
            return enter_shard(catalog, place->path, whole[i]);
    bool tensors = false;
    for (size_t i = 0; i < place->count; i++)
        tensors = tensors || (is_shard(place->names[i]) && ends(place->names[i], ".safetensors"));
    for (size_t i = 0; i < place->count; i++)
        if (is_shard(place->names[i]) && ends(place->names[i], ".safetensors") == tensors)
            RS_TRY(enter_shard(catalog, place->path, place->names[i]));
    return RS_OK;
}

rs_status rs_hub_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options)
{
    (void)options;
    RS_TRY(rs_catalog_extra(catalog, "metadata", json_object()));
    if (place->folder)
        return read_folder(catalog, place);
    char *folder = rs_strdup(place->path);
    if (folder == NULL)
        return rs_error_memory(strlen(place->path));
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder ? 1 : 0] = 0;
    rs_status status = read_index(catalog, place->path, slash != NULL ? folder : ".");
    free(folder);
    return status;
}
