/*
 * Reading a native checkpoint's manifest into a catalog.
 *
 * The manifest says everything: the tensors and roles, and for every file which boxes lie where.
 * The headers of the data files are not needed to read it; rs_native_check compares them. Nothing
 * is believed unchecked: the digest over the manifest's bytes first, then every number; the files
 * must have exactly the sizes that it tells. That the boxes tile every tensor is the catalog's own
 * proof.
 *
 * Specification: docs/formats/native.md.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/format.h"
#include "ckpt/native_names.h"

static const char format_head[] = "{\"format\":\"reshard\"";

#define RANKS_MOST (1 << 24)

/* The number of a data file, by its name: "rank-" and a number; -1: it is none. */
static int rank_of(const char *name)
{
    int rank, end = 0;
    bool fits = sscanf(name, "rank-%9d.safetensors%n", &rank, &end) == 1 && name[end] == '\0';
    return fits ? rank : -1;
}

static bool is_data_file(const char *name)
{
    return rank_of(name) >= 0;
}

bool rs_native_probe(const rs_place *place)
{
    if (!place->folder)
        return place->head_bytes >= sizeof format_head - 1 &&
               memcmp(place->head, format_head, sizeof format_head - 1) == 0;
    if (rs_place_has(place, RS_NATIVE_MANIFEST))
        return rs_place_file_begins(place, RS_NATIVE_MANIFEST, format_head);
    /* Data files without a manifest are a save that was not finished: ours, and refused. */
    for (size_t i = 0; i < place->count; i++)
        if (is_data_file(place->names[i]))
            return true;
    return false;
}

typedef struct reading {
    rs_catalog *catalog;
    const char *path; /* of the manifest */
    const rs_place *place;
    json_t *root;
    bool
        weights; /* files that lack have no weights, which are wanted alone: nothing else is read */
} reading;

static rs_status bad(const reading *r, const char *what)
{
    return rs_error_set(RS_ERR_MALFORMED, "%s: %s", r->path, what);
}

/* ---- the manifest as text ---- */

static rs_status check_digest(const reading *r, char *text, size_t length)
{
    static const size_t head = sizeof RS_NATIVE_DIGEST_HEAD - 1;
    static const size_t tail = sizeof RS_NATIVE_DIGEST_TAIL - 1;
    size_t all = head + 16 + tail;
    if (length < all || memcmp(text + length - all, RS_NATIVE_DIGEST_HEAD, head) != 0 ||
        memcmp(text + length - tail, RS_NATIVE_DIGEST_TAIL, tail) != 0)
        return bad(r, "does not end with its digest: it was cut off, or changed by hand");
    char wanted[17];
    snprintf(wanted, sizeof wanted, "%016" PRIx64, (uint64_t)XXH3_64bits(text, length - all));
    if (memcmp(text + length - all + head, wanted, 16) != 0)
        return bad(r, "its bytes do not have the digest that it ends with: it is damaged");
    return RS_OK;
}

static rs_status load_manifest(reading *r)
{
    char *text = NULL;
    size_t length = 0;
    json_error_t error;
    RS_TRY(rs_file_text(r->path, RS_NATIVE_MANIFEST_MOST, &text, &length));
    rs_status status = check_digest(r, text, length);
    if (status == RS_OK) {
        r->root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
        if (!json_is_object(r->root))
            status = rs_error_set(
                RS_ERR_MALFORMED, "%s: byte %d: %s", r->path, error.position, error.text);
    }
    free(text);
    RS_TRY(status);
    const json_t *version = json_object_get(r->root, "version");
    if (json_is_integer(version) && json_integer_value(version) > RS_NATIVE_VERSION)
        return rs_error_set(RS_ERR_UNSUPPORTED, "%s: version %lld; this reshard reads up to %d",
            r->path, (long long)json_integer_value(version), RS_NATIVE_VERSION);
    return json_integer_value(version) == RS_NATIVE_VERSION ? RS_OK
                                                            : bad(r, "has no valid \"version\"");
}

/* ---- its content ---- */

static rs_status numbers_of(const reading *r, const json_t *array, int *count, int64_t *out)
{
    size_t i;
    const json_t *number;
    if (!json_is_array(array) || json_array_size(array) > RS_MAX_DIMS)
        return bad(r, "a shape, offset or extent is no list of up to 8 numbers");
    json_array_foreach(array, i, number)
    {
        if (!json_is_integer(number) || json_integer_value(number) < 0)
            return bad(r, "a shape, offset or extent has a number below 0, or none");
        out[i] = json_integer_value(number);
    }
    *count = (int)json_array_size(array);
    return RS_OK;
}

/* What a tensor's role belongs to: NAME, also of "NAME[ROLE]", where the role has a shape of its
 * own.
 */
static rs_status plain_name(const reading *r, const char *name, const char *role, const char **out)
{
    size_t length = strlen(name), tail = strlen(role) + 2;
    *out = name;
    if (length <= tail || name[length - 1] != ']' || name[length - tail] != '[' ||
        strncmp(name + length - tail + 1, role, tail - 2) != 0)
        return RS_OK;
    return rs_pool_text(&r->catalog->pool, name, length - tail, out);
}

static bool lists_layers(const json_t *list, int64_t count)
{
    json_int_t last = -1;
    bool fits = json_is_array(list) && count > 0 && (int64_t)json_array_size(list) == count;
    for (size_t i = 0; fits && i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        fits = json_is_integer(item) && json_integer_value(item) > last;
        last = json_integer_value(item);
    }
    return fits;
}

static bool is_wanted(const reading *r, const char *role)
{
    return !r->weights || strcmp(role, "param") == 0;
}

static rs_status read_tensor(const reading *r, const json_t *tensor, json_t *sums)
{
    const char *name = json_string_value(json_object_get(tensor, "name")), *role;
    json_t *roles = json_object_get(tensor, "roles"), *about;
    json_t *first = json_object_get(tensor, "first_layer");
    int64_t shape[RS_MAX_DIMS] = {0};
    int ndim, id;
    if (name == NULL || !json_is_object(roles))
        return bad(r, "a tensor has no name, or no roles");
    RS_TRY(numbers_of(r, json_object_get(tensor, "shape"), &ndim, shape));
    if (first != NULL && (!json_is_integer(first) || json_integer_value(first) < 0 || ndim == 0))
        return bad(r, "a tensor's \"first_layer\" is no number");
    json_t *layers = json_object_get(tensor, "layers");
    if (layers != NULL && (ndim == 0 || !lists_layers(layers, shape[0])))
        return bad(r, "a tensor's \"layers\" are no numbers, one for each, ascending");
    first = layers != NULL ? layers : first;
    if (first != NULL &&
        json_object_set(json_object_get(r->catalog->model, "first_layers"), name, first) != 0)
        return rs_error_memory(1);
    json_t *of_tensor = json_object();
    if (of_tensor == NULL || json_object_set_new(sums, name, of_tensor) != 0)
        return rs_error_memory(1);
    json_object_foreach(roles, role, about)
    {
        const char *dtype_name = json_string_value(json_object_get(about, "dtype"));
        rs_dtype dtype = dtype_name != NULL ? rs_dtype_parse(dtype_name) : RS_DTYPE_NONE;
        json_t *sum = json_object_get(about, "sum");
        if (dtype == RS_DTYPE_NONE || json_string_length(sum) != 32)
            return bad(r, "a role of a tensor has no known dtype, or no sum");
        const char *plain;
        if (!is_wanted(r, role))
            continue;
        RS_TRY(plain_name(r, name, role, &plain));
        rs_status status = rs_catalog_add(r->catalog, plain, role, dtype, ndim, shape, &id);
        if (status != RS_OK)
            return rs_error_context(status, "%s", r->path);
        if (json_object_set(of_tensor, role, sum) != 0)
            return rs_error_memory(1);
    }
    return RS_OK;
}

static rs_status read_shard(const reading *r, int file, const json_t *shard)
{
    const char *name = json_string_value(json_object_get(shard, "tensor"));
    const char *role = json_string_value(json_object_get(shard, "role"));
    const char *hash = json_string_value(json_object_get(shard, "xxh3"));
    const json_t *at = json_object_get(shard, "at");
    const char *plain = name;
    if (role != NULL && !is_wanted(r, role))
        return RS_OK;
    if (name != NULL && role != NULL)
        RS_TRY(plain_name(r, name, role, &plain));
    int id = name != NULL && role != NULL ? rs_catalog_find(r->catalog, plain, role) : -1;
    int offsets, extents, used = 0;
    int64_t bytes, end;
    uint64_t value;
    rs_piece piece = {.file = file};
    if (id < 0 || hash == NULL || !json_is_integer(at))
        return bad(
            r, "a shard is of no tensor and role that are listed, or lacks \"at\" or \"xxh3\"");
    const rs_checkpoint_entry *entry = &rs_catalog_get(r->catalog, id)->is;
    RS_TRY(numbers_of(r, json_object_get(shard, "offset"), &offsets, piece.box.offset));
    RS_TRY(numbers_of(r, json_object_get(shard, "extent"), &extents, piece.box.extent));
    if (offsets != extents || sscanf(hash, "%16" SCNx64 "%n", &value, &used) != 1 || used != 16 ||
        hash[used] != '\0')
        return bad(r, "a shard's offset and extent, or its checksum, are malformed");
    piece.box.ndim = extents;
    piece.offset = json_integer_value(at);
    rs_status status = rs_box_check(&piece.box, entry->ndim, entry->shape);
    if (status != RS_OK)
        return rs_error_set(
            RS_ERR_MALFORMED, "%s: %s of \"%s\": a shard lies outside", r->path, role, name);
    bytes = rs_box_is_empty(&piece.box) ? 0 : rs_box_volume(&piece.box);
    if (!rs_mul_fits(bytes, (int64_t)rs_dtype_size(entry->dtype), &bytes) || piece.offset < 0 ||
        !rs_add_fits(piece.offset, bytes, &end) || end > rs_files_size(r->catalog->files, file))
        return rs_error_set(RS_ERR_MALFORMED, "%s: %s of \"%s\": a shard lies beyond the end of %s",
            r->path, role, name, rs_files_path(r->catalog->files, file));
    int64_t step = (int64_t)rs_dtype_size(entry->dtype);
    for (int d = extents - 1; d >= 0; d--) {
        piece.stride[d] = step;
        step *= piece.box.extent[d];
    }
    char *label, box[320];
    rs_text text = {0};
    rs_text_append(&text, "%s/%s%s", name, role, rs_box_format(&piece.box, box, sizeof box));
    RS_TRY(rs_text_take(&text, &label));
    rs_status kept = rs_catalog_checksum_xxh3(r->catalog, file, piece.offset, bytes, value, label);
    free(label);
    RS_TRY(kept);
    return rs_catalog_piece(r->catalog, id, &piece);
}

static rs_status read_file(const reading *r, const json_t *file)
{
    const char *name = json_string_value(json_object_get(file, "name"));
    const json_t *bytes = json_object_get(file, "bytes"), *shard;
    char *path = NULL;
    size_t i;
    int id;
    if (name == NULL || !is_data_file(name) || !json_is_integer(bytes))
        return bad(r, "a file has no name of a data file, or no size");
    if (r->weights && !rs_place_has(r->place, name))
        return RS_OK;
    RS_TRY(rs_place_path(r->place, name, &path));
    rs_status status = rs_files_add(r->catalog->files, path, &id);
    free(path);
    RS_TRY(status);
    if (rs_files_size(r->catalog->files, id) != json_integer_value(bytes))
        return rs_error_set(RS_ERR_MALFORMED, "%s: has %lld bytes, the manifest says %lld",
            rs_files_path(r->catalog->files, id), (long long)rs_files_size(r->catalog->files, id),
            (long long)json_integer_value(bytes));
    json_array_foreach(json_object_get(file, "shards"), i, shard) RS_TRY(read_shard(r, id, shard));
    return RS_OK;
}

static bool has_weights(const json_t *file)
{
    const json_t *shard;
    size_t i;
    json_array_foreach(json_object_get(file, "shards"), i, shard)
    {
        const char *role = json_string_value(json_object_get(shard, "role"));
        if (role != NULL && strcmp(role, "param") == 0)
            return true;
    }
    return false;
}

/* Files that are not there are named, all of them: by their ranks. */
static rs_status check_files(reading *r, const json_t *files, bool weights_only)
{
    const json_t *file;
    size_t i, ranks = 0;
    bool lacks = false, weights = false;
    rs_text list = {0};
    json_array_foreach(files, i, file)
    {
        const char *name = json_string_value(json_object_get(file, "name"));
        if (name == NULL || !is_data_file(name))
            return bad(r, "a file has no name of a data file, or no size");
        ranks = (size_t)rs_max64((int64_t)ranks, rank_of(name) + INT64_C(1));
        if (rs_place_has(r->place, name))
            continue;
        lacks = true;
        weights = weights || has_weights(file);
    }
    if (!lacks)
        return RS_OK;
    if (ranks > RANKS_MOST)
        return bad(r, "a file is that of a rank above any world's");
    bool *have = rs_calloc(ranks, sizeof *have);
    if (have == NULL)
        return rs_error_memory(ranks);
    memset(have, true, ranks);
    json_array_foreach(files, i, file)
    {
        const char *name = json_string_value(json_object_get(file, "name"));
        have[rank_of(name)] = have[rank_of(name)] && rs_place_has(r->place, name);
    }
    rs_text_append_gaps(&list, have, (int)ranks);
    free(have);
    rs_status status = list.status;
    r->weights = weights_only && !weights;
    if (status == RS_OK && r->weights)
        status = rs_catalog_warn(r->catalog,
            "%s: the files of ranks %s are missing; they have no weights, which alone are read",
            r->place->title, list.data);
    else if (status == RS_OK)
        status = rs_error_set(RS_ERR_NOT_FOUND,
            "%s: the files of ranks %s are missing, which the manifest names", r->place->title,
            list.data);
    rs_text_fini(&list);
    return status;
}

static rs_status read_content(reading *r, bool weights_only)
{
    const json_t *tensors = json_object_get(r->root, "tensors");
    const json_t *files = json_object_get(r->root, "files"), *item;
    json_t *layout = json_object_get(r->root, "layout");
    json_t *step = json_object_get(r->root, "step"), *extras = json_object_get(r->root, "extras");
    json_t *facts = json_object_get(r->root, "facts");
    size_t i;
    json_t *job = json_object_get(r->root, "job"), *world = json_object_get(r->root, "world");
    if (!json_is_array(tensors) || !json_is_array(files) || !json_is_string(layout) ||
        !json_is_integer(step) || !json_is_object(extras) || !json_is_string(job) ||
        !json_is_integer(world))
        return bad(r, "lacks one of \"tensors\", \"files\", \"layout\", \"step\", \"extras\", "
                      "\"job\", \"world\"");
    RS_TRY(check_files(r, files, weights_only));
    json_t *sums = json_object();
    RS_TRY(rs_catalog_extra(r->catalog, "sums", sums));
    RS_TRY(rs_catalog_extra(r->catalog, "step", json_incref(step)));
    RS_TRY(rs_catalog_extra(r->catalog, "job", json_incref(job)));
    RS_TRY(rs_catalog_extra(r->catalog, "world", json_incref(world)));
    RS_TRY(rs_catalog_extra(r->catalog, "extras", json_incref(extras)));
    if (facts != NULL && !json_is_object(facts))
        return bad(r, "\"facts\" is no object");
    r->catalog->model = json_pack("{s:o,s:o}", "facts",
        facts != NULL ? json_incref(facts) : json_object(), "first_layers", json_object());
    if (r->catalog->model == NULL)
        return rs_error_memory(1);
    RS_TRY(rs_pool_text(&r->catalog->pool, json_string_value(layout), json_string_length(layout),
        &r->catalog->layout));
    json_array_foreach(tensors, i, item) RS_TRY(read_tensor(r, item, sums));
    json_array_foreach(files, i, item) RS_TRY(read_file(r, item));
    return RS_OK;
}

/* `inside`: the folder that the manifest stands in. */
static rs_status read_manifest(rs_catalog *catalog, const char *manifest, const rs_place *inside,
    const rs_checkpoint_options *options)
{
    reading r = {.catalog = catalog, .path = manifest, .place = inside};
    rs_status status = load_manifest(&r);
    if (status == RS_OK)
        status = read_content(&r, options->weights_only);
    json_decref(r.root);
    return status;
}

rs_status rs_native_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options)
{
    char *manifest = NULL;
    rs_place around;
    rs_status status;
    if (place->folder && !rs_place_has(place, RS_NATIVE_MANIFEST))
        return rs_error_set(RS_ERR_MALFORMED,
            "%s: has data files but no " RS_NATIVE_MANIFEST ": the save was not finished",
            place->title);
    if (place->folder) {
        RS_TRY(rs_place_path(place, RS_NATIVE_MANIFEST, &manifest));
        status = read_manifest(catalog, manifest, place, options);
        free(manifest);
        return status;
    }
    RS_TRY(rs_place_init_around(&around, place->path));
    status = read_manifest(catalog, place->path, &around, options);
    rs_place_fini(&around);
    return status;
}

/* ---- the headers of the data files ---- */

/* Whether a data file's own header, `head`, has what the manifest says of a shard. */
static rs_status check_shard(rs_catalog *catalog, const rs_catalog *head, const rs_checksum *sum)
{
    int id = rs_catalog_find(head, sum->label, "param");
    const rs_catalog_entry *entry = id >= 0 ? rs_catalog_get(head, id) : NULL;
    int64_t offset = -1;
    if (entry != NULL && entry->piece_count == 1)
        offset = rs_catalog_piece_at(head, entry->first_piece).offset;
    if (offset == sum->offset)
        return RS_OK;
    return rs_catalog_warn(catalog,
        "%s: its header does not have \"%s\" at byte %" PRId64
        ", where the manifest has it: other readers of safetensors would read something else",
        rs_files_path(catalog->files, sum->file), sum->label, sum->offset);
}

rs_status rs_native_check(rs_catalog *catalog)
{
    static const rs_checkpoint_options how = {.format = "safetensors"};
    rs_catalog *head = NULL;
    rs_status status = RS_OK;
    int file = -1;
    for (size_t i = 0; i < catalog->checksums.count && status == RS_OK; i++) {
        const rs_checksum *sum = &catalog->checksums.items[i];
        if (sum->file != file) {
            rs_catalog_destroy(head);
            head = NULL;
            file = sum->file;
            status = rs_format_open(rs_files_path(catalog->files, file), &how, &head);
            if (status != RS_OK && status != RS_ERR_NO_MEMORY)
                status = rs_catalog_warn(catalog, "%s", rs_error_message());
        }
        if (head != NULL && status == RS_OK)
            status = check_shard(catalog, head, sum);
    }
    rs_catalog_destroy(head);
    return status;
}
