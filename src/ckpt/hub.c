/*
 * Model folders as the Hugging Face hub has them: shards with an index, or without.
 *
 * `model.safetensors.index.json` maps every tensor to the shard that has it; the shards are whole
 * files of safetensors (or, older, of torch.save). The headers of the shards are the truth and the
 * index is checked against them. A shard or a tensor that the index names and that is not there is
 * an error, since a model would be left incomplete. Anything else is a warning that names the
 * tensor, and a new index from the headers puts it right (hub_index.c).
 *
 * A shard that the index does not name is read where it is of the same row ("-of-00003") as one
 * that is named, or has a tensor that the index looks for in another: it belongs to the model.
 * Others (a second model in the same folder) are left alone, with a warning.
 *
 * Specification: docs/formats/safetensors.md.
 */
#include "ckpt/hub.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/safetensors.h"
#include "ckpt/torch_read.h"

#define INDEX_MOST ((size_t)32 << 20)
#define NAMED_MOST 8 /* in one message, of each kind */

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

bool rs_hub_is_shard(const char *name)
{
    return !is_junk(name) && (ends(name, ".safetensors") ||
                                 (ends(name, ".bin") && strncmp(name, "pytorch_model", 13) == 0));
}

bool rs_hub_probe(const rs_place *place)
{
    if (!place->folder)
        return is_index(rs_path_base(place->path));
    for (size_t i = 0; i < place->count; i++)
        if (is_index(place->names[i]) || rs_hub_is_shard(place->names[i]))
            return true;
    return false;
}

/* "<stem>-00002-of-00005.<suffix>": where the number and what is behind it begin; NULL: called
 * otherwise. */
static const char *find_number(const char *name, const char **behind)
{
    const char *of = strstr(name, "-of-"), *at = of;
    while (at != NULL && at > name && isdigit((unsigned char)at[-1]))
        at--;
    if (at == NULL || at == of || at == name || at[-1] != '-' || of - at > 9)
        return NULL;
    *behind = of;
    return isdigit((unsigned char)of[4]) ? at : NULL;
}

bool rs_hub_number(const char *name, int64_t *number, int64_t *of)
{
    const char *behind, *at = find_number(name, &behind);
    if (at == NULL)
        return false;
    *number = strtoll(at, NULL, 10);
    *of = strtoll(behind + 4, NULL, 10);
    return true;
}

bool rs_hub_is_row(const char *a, const char *b)
{
    const char *behind_a, *behind_b;
    const char *x = find_number(a, &behind_a), *y = find_number(b, &behind_b);
    return x != NULL && y != NULL && x - a == y - b && strncmp(a, b, (size_t)(x - a)) == 0 &&
           strcmp(behind_a, behind_b) == 0;
}

/* ---- shards ---- */

/* Enters one shard, whatever its kind. */
static rs_status enter_file(rs_catalog *catalog, const char *path)
{
    rs_place place = {0};
    rs_torch torch = {0};
    int file;
    rs_status status;
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
        json_t *metadata = json_object_get(catalog->extras, "metadata");
        json_t *own = json_object();
        status = own != NULL ? rs_safetensors_enter(catalog, file, own) : rs_error_memory(64);
        if (status == RS_OK && json_object_update_missing(metadata, own) != 0)
            status = rs_error_memory(64);
        json_decref(own);
    }
out:
    rs_torch_fini(&torch);
    rs_place_fini(&place);
    return status;
}

static rs_status enter_shard(rs_hub *hub, const char *name)
{
    char *path;
    RS_TRY(RS_LIST_RESERVE_ONE(&hub->shards));
    rs_hub_shard *shard = &hub->shards.items[hub->shards.count];
    *shard = (rs_hub_shard){.first = hub->catalog->entries.count};
    RS_TRY(rs_pool_text(&hub->catalog->pool, name, strlen(name), &shard->file));
    RS_TRY(rs_place_path(hub->place, name, &path));
    rs_status status = enter_file(hub->catalog, path);
    free(path);
    shard->end = hub->catalog->entries.count;
    hub->shards.count++;
    return status;
}

static bool is_entered(const rs_hub *hub, const char *file)
{
    for (size_t i = 0; i < hub->shards.count; i++)
        if (strcmp(hub->shards.items[i].file, file) == 0)
            return true;
    return false;
}

/* ---- the index ---- */

static rs_status load_index(rs_hub *hub)
{
    char *text = NULL;
    size_t length = 0;
    json_error_t error;
    RS_TRY(rs_file_text(hub->index, INDEX_MOST, &text, &length));
    hub->root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    free(text);
    if (hub->root == NULL)
        return rs_error_set(
            RS_ERR_MALFORMED, "%s: byte %d: %s", hub->index, error.position, error.text);
    hub->map = json_object_get(hub->root, "weight_map");
    if (!json_is_object(hub->map))
        return rs_error_set(RS_ERR_MALFORMED, "%s: has no object \"weight_map\"", hub->index);
    const char *name;
    json_t *shard;
    json_object_foreach(hub->map, name, shard)
    {
        const char *file = json_string_value(shard);
        if (file == NULL || file[0] == 0 || strlen(file) != json_string_length(shard) ||
            strchr(file, '/') != NULL || strchr(file, '\\') != NULL || strcmp(file, "..") == 0 ||
            strcmp(file, ".") == 0)
            return rs_error_set(RS_ERR_MALFORMED,
                "%s: the shard of \"%s\" is no plain file name: \"%s\"", hub->index, name,
                file != NULL ? file : "?");
    }
    return RS_OK;
}

/* Counts the tensors of each shard of the index that is not there: NAME -> number. */
static rs_status count_missing(const rs_hub *hub, json_t *missing)
{
    const char *name;
    json_t *shard;
    json_object_foreach(hub->map, name, shard)
    {
        const char *file = json_string_value(shard);
        json_int_t count = json_integer_value(json_object_get(missing, file));
        if (!rs_place_has(hub->place, file) &&
            json_object_set_new(missing, file, json_integer(count + 1)) != 0)
            return rs_error_memory(64);
    }
    return RS_OK;
}

/* Shards of the index that are not there are named, with what is there instead. */
static rs_status check_shards(const rs_hub *hub)
{
    json_t *missing = json_object(), *count;
    const char *file, *one = "";
    size_t others = 0, listed = 0;
    rs_text list = {0};
    rs_status status = missing != NULL ? count_missing(hub, missing) : rs_error_memory(64);
    json_object_foreach(missing, file, count)
    {
        one = file;
        if (++listed <= NAMED_MOST)
            rs_text_append(&list, "%s\"%s\" (%lld tensors)", listed > 1 ? ", " : "", file,
                (long long)json_integer_value(count));
    }
    if (listed > NAMED_MOST)
        rs_text_append(&list, " and %zu more", listed - NAMED_MOST);
    for (size_t i = 0; i < hub->place->count; i++)
        others += rs_hub_is_shard(hub->place->names[i]);
    if (status == RS_OK)
        status = list.status;
    if (status == RS_OK && listed > 0)
        status = rs_error_set(RS_ERR_NOT_FOUND,
            "%s: names %s %s, which %s not in the folder; it has %zu shards%s", hub->index,
            listed == 1 ? "the shard" : "the shards", list.data, listed == 1 ? "is" : "are", others,
            others > 0 && strstr(one, "-of-") != NULL ? " (the index may be that of another save)"
                                                      : "");
    rs_text_fini(&list);
    json_decref(missing);
    return status;
}

static rs_status enter_named(rs_hub *hub)
{
    const char *name;
    json_t *shard;
    json_object_foreach(hub->map, name, shard)
    {
        const char *file = json_string_value(shard);
        if (!is_entered(hub, file))
            RS_TRY(enter_shard(hub, file));
    }
    return RS_OK;
}

/* ---- the index against the shards ---- */

typedef enum fault_kind { GHOST, MISPLACED, UNNAMED, SHARD, SIZE, FAULT_KINDS } fault_kind;

/* Faults as they go into one message, of each kind the first few. */
typedef struct faults {
    rs_text text;
    size_t count[FAULT_KINDS];
} faults;

__attribute__((format(printf, 4, 5))) static rs_status fault(
    rs_hub *hub, faults *f, fault_kind kind, const char *format, ...)
{
    enum { FIRST = 3 };
    char sentence[700];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    hub->faults++;
    if (++f->count[kind] <= FIRST)
        rs_text_append(&f->text, "%s%s", f->text.length > 0 ? "; " : "", sentence);
    else if (f->count[kind] == FIRST + 1)
        rs_text_append(&f->text, "; and more like it");
    return kind == GHOST ? f->text.status
                         : rs_catalog_warn(hub->catalog, "%s: %s", hub->index, sentence);
}

static bool has(const rs_catalog *catalog, const char *name)
{
    return rs_catalog_find(catalog, name, "param") >= 0 ||
           rs_catalog_find(catalog, name, "rng") >= 0;
}

/* Whether a file has a tensor that the index names and no shard so far has. */
static rs_status finds_ghost(const rs_hub *hub, const char *file, bool *out)
{
    rs_catalog *alone = NULL;
    char *path = NULL;
    const char *name;
    json_t *shard;
    *out = false;
    RS_TRY(rs_catalog_create("safetensors", &alone));
    rs_status status = rs_catalog_extra(alone, "metadata", json_object());
    if (status == RS_OK)
        status = rs_place_path(hub->place, file, &path);
    if (status == RS_OK)
        status = enter_file(alone, path);
    json_object_foreach(hub->map, name, shard) *out =
        *out || (status == RS_OK && has(alone, name) && !has(hub->catalog, name));
    free(path);
    rs_catalog_destroy(alone);
    return status == RS_ERR_NO_MEMORY ? status : RS_OK; /* what cannot be read has none */
}

/* Shards that the index does not name: those that belong to it are read too. */
static rs_status enter_unnamed(rs_hub *hub, faults *f)
{
    size_t named = hub->shards.count, missing = 0;
    const char *name,
        *kind = strstr(rs_path_base(hub->index), ".bin.index.") != NULL ? ".bin" : ".safetensors";
    json_t *shard;
    json_object_foreach(hub->map, name, shard) missing += !has(hub->catalog, name);
    for (size_t i = 0; i < hub->place->count; i++) {
        const char *file = hub->place->names[i];
        bool ours = false;
        if (!rs_hub_is_shard(file) || is_entered(hub, file))
            continue;
        for (size_t k = 0; k < named; k++)
            ours = ours || rs_hub_is_row(file, hub->shards.items[k].file);
        if (!ours && missing > 0 && ends(file, kind))
            RS_TRY(finds_ghost(hub, file, &ours));
        if (ours)
            RS_TRY(enter_shard(hub, file));
        RS_TRY(fault(hub, f, SHARD, "does not name \"%s\", which is in the folder%s", file,
            ours ? " and belongs to it: it is read too" : ""));
    }
    return RS_OK;
}

static rs_status find_ghosts(rs_hub *hub, faults *f)
{
    const char *name;
    json_t *shard;
    json_object_foreach(hub->map, name, shard) if (!has(hub->catalog, name)) RS_TRY(fault(hub, f,
        GHOST, "puts \"%s\" into \"%s\", but no shard has it", name, json_string_value(shard)));
    return RS_OK;
}

/* Tensors of a shard that the index has elsewhere or not at all. */
static rs_status compare_shard(rs_hub *hub, faults *f, const rs_hub_shard *shard)
{
    for (size_t i = shard->first; i < shard->end; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(hub->catalog, (int)i);
        const char *file = json_string_value(json_object_get(hub->map, entry->is.name));
        if (file == NULL && entry->how != RS_ENTRY_ALIAS)
            RS_TRY(fault(hub, f, UNNAMED, "does not name the tensor \"%s\", which is in \"%s\"",
                entry->is.name, shard->file));
        else if (file != NULL && strcmp(file, shard->file) != 0)
            RS_TRY(fault(hub, f, MISPLACED, "puts \"%s\" into \"%s\", it is in \"%s\"",
                entry->is.name, file, shard->file));
    }
    return RS_OK;
}

static rs_status compare_all(rs_hub *hub, faults *f)
{
    int64_t total = 0;
    RS_TRY(enter_unnamed(hub, f));
    RS_TRY(find_ghosts(hub, f));
    for (size_t i = 0; i < hub->shards.count; i++)
        RS_TRY(compare_shard(hub, f, &hub->shards.items[i]));
    for (size_t i = 0; i < hub->catalog->entries.count; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(hub->catalog, (int)i);
        total += entry->how != RS_ENTRY_ALIAS ? rs_checkpoint_entry_bytes(&entry->is) : 0;
    }
    const json_t *size = json_object_get(json_object_get(hub->root, "metadata"), "total_size");
    if (json_is_integer(size) && json_integer_value(size) != total)
        RS_TRY(fault(hub, f, SIZE, "says total_size %lld, the tensors have %lld bytes",
            (long long)json_integer_value(size), (long long)total));
    if (f->count[GHOST] > 0)
        return rs_error_set(RS_ERR_MALFORMED, "%s: %s", hub->index, f->text.data);
    return RS_OK;
}

/* ---- folders ---- */

/* The index that counts in a folder: the model's, or the only one; NULL if there is none. */
static rs_status choose_index(rs_hub *hub, const char **out)
{
    static const char *const usual[] = {RS_HUB_INDEX, RS_HUB_TORCH_INDEX};
    static const char *const whole[] = {"model.safetensors", "pytorch_model.bin"};
    const rs_place *place = hub->place;
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
            return rs_catalog_warn(hub->catalog, "%s: has \"%s\" and \"%s\"; the one file is read",
                place->title, whole[i], usual[i]);
        }
        return RS_OK;
    }
    if (count > 1)
        return rs_error_set(RS_ERR_ARGUMENT,
            "%s: has %zu indexes and none is the usual one; name the one that is meant",
            place->title, count);
    return RS_OK;
}

/* Without an index: the one file, or all shards. */
static rs_status enter_all(rs_hub *hub)
{
    static const char *const whole[] = {"model.safetensors", "pytorch_model.bin"};
    const rs_place *place = hub->place;
    for (size_t i = 0; i < 2; i++)
        if (rs_place_has(place, whole[i])) {
            hub->whole = true;
            return enter_shard(hub, whole[i]);
        }
    bool tensors = false;
    for (size_t i = 0; i < place->count; i++)
        tensors =
            tensors || (rs_hub_is_shard(place->names[i]) && ends(place->names[i], ".safetensors"));
    for (size_t i = 0; i < place->count; i++)
        if (rs_hub_is_shard(place->names[i]) && ends(place->names[i], ".safetensors") == tensors)
            RS_TRY(enter_shard(hub, place->names[i]));
    return RS_OK;
}

rs_status rs_hub_open(rs_hub *hub, const char *index)
{
    faults f = {0};
    RS_TRY(rs_catalog_extra(hub->catalog, "metadata", json_object()));
    if (index == NULL)
        RS_TRY(choose_index(hub, &index));
    if (index == NULL)
        return enter_all(hub);
    RS_TRY(rs_place_path(hub->place, index, &hub->index));
    RS_TRY(load_index(hub));
    RS_TRY(check_shards(hub));
    RS_TRY(enter_named(hub));
    rs_status status = compare_all(hub, &f);
    rs_text_fini(&f.text);
    return status;
}

void rs_hub_close(rs_hub *hub)
{
    free(hub->index);
    json_decref(hub->root);
    free(hub->shards.items);
    memset(hub, 0, sizeof *hub);
}

rs_status rs_hub_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options)
{
    rs_hub hub = {.catalog = catalog, .place = place};
    rs_place around = {0};
    rs_status status = RS_OK;
    (void)options;
    if (!place->folder) {
        RS_TRY(rs_place_init_around(&around, place->path));
        hub.place = &around;
    }
    status = rs_hub_open(&hub, place->folder ? NULL : rs_path_base(place->path));
    rs_hub_close(&hub);
    rs_place_fini(&around);
    return status;
}
