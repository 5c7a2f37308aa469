/*
 * The containers of torch.save.
 *
 * A file since torch 1.6 is a zip archive: `<prefix>/data.pkl` is a pickle of the saved object, in
 * which every storage is a persistent id that names a record `<prefix>/data/<key>` of raw bytes.
 * Older files are a stream: five pickles (magic number, version, system, object, storage keys),
 * then the storages in the order of the keys, each with its length in front.
 *
 * Invariants:
 * 1. A storage is found for every persistent id when the file is opened; all ids of one key agree
 *    in class and length, and the record holds at least as many bytes (torch itself reads beyond
 * it).
 * 2. Keys are decimal digits: a key never becomes a path.
 * 3. Bytes behind the pickle's end in its record, behind the container's end, and records that
 *    nothing refers to are counted, not read.
 *
 * Cost: the directory, the pickle, and a local header per record; no tensor data.
 * Specification: docs/formats/torch.md.
 */
#include "ckpt/torch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "ckpt/torch_storage.h"

#define SMALL_RECORD 64

static rs_status fail_at(const rs_torch *torch, int64_t at, const char *what)
{
    return rs_files_malformed(torch->files, torch->file, at, "%s", what);
}

/* A record as bytes of a file: where it lies, or, if it is deflated, as a file of its own. */
static rs_status place(rs_torch *torch, const rs_zip_entry *entry, int *file, int64_t *offset)
{
    *file = torch->file;
    *offset = entry->offset;
    if (!entry->deflated)
        return RS_OK;
    *offset = 0;
    return rs_files_add_inflated(
        torch->files, torch->file, entry->offset, entry->stored, entry->bytes, entry->name, file);
}

static rs_status find_record(rs_torch *torch, const char *name, const rs_zip_entry **out)
{
    size_t room = strlen(torch->prefix) + strlen(name) + 1;
    char *full = rs_calloc(room, 1);
    if (full == NULL)
        return rs_error_memory(room);
    memcpy(full, torch->prefix, strlen(torch->prefix));
    memcpy(full + strlen(torch->prefix), name, strlen(name) + 1);
    *out = rs_zip_find(&torch->zip, full);
    free(full);
    return RS_OK;
}

/* A short record as text with a NUL behind; empty if it is absent. */
static rs_status small_record(rs_torch *torch, const char *name, char text[SMALL_RECORD + 1])
{
    const rs_zip_entry *entry;
    int file;
    int64_t offset;
    text[0] = 0;
    RS_TRY(find_record(torch, name, &entry));
    if (entry == NULL)
        return RS_OK;
    if (entry->bytes > SMALL_RECORD)
        return rs_files_malformed(torch->files, torch->file, entry->header,
            "the record \"%s\" has %" PRId64 " bytes", entry->name, entry->bytes);
    RS_TRY(place(torch, entry, &file, &offset));
    RS_TRY(rs_files_read(torch->files, file, offset, text, (size_t)entry->bytes));
    text[entry->bytes] = 0;
    return RS_OK;
}

/* The directory's prefix: what stands before the first slash of the first entry. */
static rs_status find_prefix(rs_torch *torch)
{
    if (torch->zip.count == 0)
        return fail_at(torch, 0, "an empty zip archive");
    const char *name = torch->zip.items[0].name;
    const char *slash = strchr(name, '/');
    if (slash == NULL)
        return fail_at(torch, torch->zip.items[0].header,
            "the first zip entry is in no folder: no file of torch.save");
    size_t length = (size_t)(slash - name) + 1;
    RS_TRY(rs_pool_text(&torch->zip.pool, name, length, &torch->prefix));
    for (size_t i = 0; i < torch->zip.count; i++)
        torch->foreign += strncmp(torch->zip.items[i].name, torch->prefix, length) != 0;
    return RS_OK;
}

/* Records that say how the others are to be read. */
static rs_status read_markers(rs_torch *torch)
{
    char text[SMALL_RECORD + 1];
    const rs_zip_entry *script;
    RS_TRY(find_record(torch, "constants.pkl", &script));
    if (script != NULL)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "%s: a TorchScript program (it has constants.pkl), not saved tensors",
            rs_files_path(torch->files, torch->file));
    RS_TRY(small_record(torch, ".data/version", text));
    if (text[0] == 0)
        RS_TRY(small_record(torch, "version", text));
    if (text[0] != 0) {
        char *end;
        long version = strtol(text, &end, 10);
        if (end == text || (*end != 0 && *end != '\n') || version < 1 || version > 10)
            return fail_at(torch, 0, "the record \"version\" is none of 1 to 10");
    }
    RS_TRY(small_record(torch, "byteorder", text));
    if (text[0] != 0 && strcmp(text, "little") != 0 && strcmp(text, "big") != 0)
        return fail_at(torch, 0, "the record \"byteorder\" says neither little nor big");
    torch->big_endian = strcmp(text, "big") == 0;
    return RS_OK;
}

static rs_status crc_of(rs_torch *torch, int file, int64_t offset, int64_t bytes, uint32_t *out)
{
    rs_reader reader;
    RS_TRY(rs_reader_init(&reader, torch->files, file, offset, offset + bytes));
    rs_status status = RS_OK;
    uLong crc = crc32(0, NULL, 0);
    while (reader.position < reader.end && status == RS_OK) {
        const unsigned char *p;
        size_t part = (size_t)rs_min64((int64_t)RS_READER_WINDOW, reader.end - reader.position);
        status = rs_reader_take(&reader, part, &p);
        if (status == RS_OK)
            crc = crc32(crc, p, (uInt)part);
    }
    rs_reader_fini(&reader);
    *out = (uint32_t)crc;
    return status;
}

static rs_status open_zip(rs_torch *torch)
{
    int64_t size = rs_files_size(torch->files, torch->file);
    RS_TRY(rs_zip_read(torch->files, torch->file, 0, size, &torch->zip));
    torch->trailing = torch->zip.trailing;
    RS_TRY(find_prefix(torch));
    RS_TRY(read_markers(torch));
    const rs_zip_entry *entry;
    RS_TRY(find_record(torch, "data.pkl", &entry));
    if (entry == NULL)
        return rs_files_malformed(torch->files, torch->file, torch->zip.items[0].header,
            "no record \"%sdata.pkl\"", torch->prefix);
    int file;
    int64_t offset;
    uint32_t crc;
    RS_TRY(place(torch, entry, &file, &offset));
    RS_TRY(rs_pickle_read(torch->files, file, offset, offset + entry->bytes, &torch->pickle));
    torch->after_stop = offset + entry->bytes - torch->pickle.end;
    RS_TRY(crc_of(torch, file, offset, entry->bytes, &crc));
    torch->pickle_crc_wrong = crc != entry->crc;
    return RS_OK;
}

/* What a persistent id says. */
typedef struct storage_id {
    const char *key;
    const rs_storage_class *class;
    int64_t count;
    const char *view; /* key of a view in the older container, NULL */
} storage_id;

static rs_status parse_id(rs_torch *torch, const rs_value *value, storage_id *out)
{
    const rs_value *id = value->as.id;
    const rs_value *const *items = (const rs_value *const *)id->as.items;
    size_t want = torch->legacy ? 6 : 5;
    int64_t count = -1;
    if (id->count < want || rs_value_string(items[0]) == NULL ||
        strcmp(rs_value_string(items[0]), "storage") != 0)
        return fail_at(torch, 0, "a persistent id that is no storage");
    if (!rs_value_is(items[1], RS_VALUE_GLOBAL))
        return fail_at(torch, 0, "a storage whose class is no name");
    const rs_global *global = items[1]->as.global;
    out->class = rs_storage_class_of(global);
    if (out->class == NULL)
        return rs_error_set(RS_ERR_UNSUPPORTED, "%s: unknown storage class %s.%s",
            rs_files_path(torch->files, torch->file), global->module, global->name);
    out->key = rs_value_string(items[2]);
    if (out->key == NULL || out->key[0] == 0 || strspn(out->key, "0123456789") != strlen(out->key))
        return fail_at(torch, 0, "a storage key that is no decimal number");
    if (!rs_value_is(items[4], RS_VALUE_INT) || (count = items[4]->as.integer) < 0)
        return fail_at(torch, 0, "a storage with a negative number of elements");
    out->count = count;
    return RS_OK;
}

/* The storage that an id names: a new one, or one already met, which must be the same. */
static rs_status add_storage(rs_torch *torch, const storage_id *id, rs_torch_storage **out)
{
    int found;
    RS_TRY(rs_names_add(&torch->storage_names, id->key, (int)torch->storage_count, &found));
    if (found >= 0) {
        *out = &torch->storages[found];
        if ((*out)->count != id->count || strcmp((*out)->class, id->class->name) != 0)
            return rs_files_malformed(torch->files, torch->file, 0,
                "storage %s is %s of %" PRId64 " elements, and elsewhere %s of %" PRId64, id->key,
                (*out)->class, (*out)->count, id->class->name, id->count);
        return RS_OK;
    }
    RS_TRY(rs_array_reserve((void **)&torch->storages, &torch->storage_capacity,
        torch->storage_count + 1, sizeof *torch->storages));
    *out = &torch->storages[torch->storage_count++];
    int64_t bytes;
    if (!rs_mul_fits(id->count, (int64_t)id->class->bytes, &bytes))
        return rs_files_malformed(torch->files, torch->file, 0,
            "storage %s has %" PRId64 " elements", id->key, id->count);
    **out = (rs_torch_storage){.key = id->key,
        .file = -1,
        .bytes = bytes,
        .count = id->count,
        .element = id->class->bytes,
        .class = id->class->name};
    return RS_OK;
}

static bool is_source(const rs_value *persistent)
{
    const rs_value *id = persistent->as.id;
    const char *kind = id->count > 0 ? rs_value_string(id->as.items[0]) : NULL;
    return kind != NULL && strcmp(kind, "module") == 0;
}

/* Finds the record of a storage in the zip. */
static rs_status find_storage(rs_torch *torch, rs_torch_storage *storage)
{
    char name[64];
    if (strlen(storage->key) > 32)
        return fail_at(torch, 0, "a storage key of more than 32 digits");
    memcpy(name, "data/", 5);
    memcpy(name + 5, storage->key, strlen(storage->key) + 1);
    RS_TRY(find_record(torch, name, &storage->record));
    const rs_zip_entry *entry = storage->record;
    if (entry == NULL)
        return rs_files_malformed(torch->files, torch->file, 0,
            "no record \"%s%s\", but the pickle refers to it", torch->prefix, name);
    if (entry->bytes < storage->bytes)
        return rs_files_malformed(torch->files, torch->file, entry->offset,
            "the record \"%s\" has %" PRId64 " bytes, %s of %" PRId64 " elements needs %" PRId64,
            entry->name, entry->bytes, storage->class, storage->count, storage->bytes);
    return place(torch, entry, &storage->file, &storage->offset);
}

static rs_status find_storages(rs_torch *torch)
{
    for (size_t i = 0; i < torch->pickle.persistent_count; i++) {
        storage_id id = {0};
        rs_torch_storage *storage;
        if (torch->legacy && is_source(torch->pickle.persistent[i]))
            continue;
        RS_TRY(parse_id(torch, torch->pickle.persistent[i], &id));
        RS_TRY(add_storage(torch, &id, &storage));
        if (!torch->legacy && storage->file < 0)
            RS_TRY(find_storage(torch, storage));
    }
    return RS_OK;
}

/* The older container. */

/* Reads the pickle at `*at` into `out` and moves on. */
static rs_status next_pickle(rs_torch *torch, int64_t *at, rs_pickle *out)
{
    RS_TRY(rs_pickle_read(
        torch->files, torch->file, *at, rs_files_size(torch->files, torch->file), out));
    *at = out->end;
    return RS_OK;
}

static rs_status check_magic(const rs_torch *torch, const rs_value *root)
{
    static const unsigned char magic[10] = {
        0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
    if (!rs_value_is(root, RS_VALUE_BIG) || root->count != sizeof magic ||
        memcmp(root->as.text, magic, sizeof magic) != 0)
        return fail_at(torch, 0, "a pickle, but not one of torch.save: wrong magic number");
    return RS_OK;
}

static rs_status read_heads(rs_torch *torch, int64_t *at)
{
    rs_pickle head;
    rs_status status;
    RS_TRY_GOTO(next_pickle(torch, at, &head), out);
    RS_TRY_GOTO(check_magic(torch, head.root), out);
    rs_pickle_fini(&head);
    int64_t start = *at;
    RS_TRY_GOTO(next_pickle(torch, at, &head), out);
    if (!rs_value_is(head.root, RS_VALUE_INT) || head.root->as.integer != 1001)
        RS_TRY_GOTO(fail_at(torch, start, "another protocol version than 1001"), out);
    rs_pickle_fini(&head);
    start = *at;
    RS_TRY_GOTO(next_pickle(torch, at, &head), out);
    const rs_value *little = rs_value_get(head.root, "little_endian");
    if (!rs_value_is(little, RS_VALUE_BOOL))
        RS_TRY_GOTO(fail_at(torch, start, "the system record does not say the byte order"), out);
    torch->big_endian = !little->as.boolean;
out:
    rs_pickle_fini(&head);
    return status;
}

/* One storage of the stream: its length in elements, then its bytes. */
static rs_status walk_storage(rs_torch *torch, const rs_value *key, int64_t *at)
{
    const char *name = rs_value_string(key);
    int number = name != NULL ? rs_names_find(&torch->storage_names, name) : -1;
    if (number < 0)
        return fail_at(torch, *at, "a storage in the list of keys that the object does not name");
    rs_torch_storage *storage = &torch->storages[number];
    if (storage->file >= 0)
        return fail_at(torch, *at, "one storage twice in the list of keys");
    unsigned char head[8];
    int64_t size = rs_files_size(torch->files, torch->file);
    if (size - *at < (int64_t)sizeof head)
        return fail_at(torch, *at, "the file ends before the last storage");
    RS_TRY(rs_files_read(torch->files, torch->file, *at, head, sizeof head));
    uint64_t bits = rs_le64(head);
    if (torch->big_endian)
        bits = __builtin_bswap64(bits);
    int64_t count = (int64_t)bits;
    if (count != storage->count)
        return rs_files_malformed(torch->files, torch->file, *at,
            "storage %s has %" PRId64 " elements here, %" PRId64 " in the object", name, count,
            storage->count);
    *at += (int64_t)sizeof head;
    if (storage->bytes > size - *at)
        return rs_files_malformed(torch->files, torch->file, *at,
            "storage %s needs %" PRId64 " bytes, the file has %" PRId64 " more", name,
            storage->bytes, size - *at);
    storage->file = torch->file;
    storage->offset = *at;
    *at += storage->bytes;
    return RS_OK;
}

static rs_status open_stream(rs_torch *torch)
{
    int64_t at = 0;
    rs_pickle keys = {0};
    rs_status status;
    torch->legacy = true;
    RS_TRY(read_heads(torch, &at));
    RS_TRY(next_pickle(torch, &at, &torch->pickle));
    RS_TRY(find_storages(torch));
    int64_t start = at;
    RS_TRY_GOTO(next_pickle(torch, &at, &keys), out);
    if (!rs_value_is(keys.root, RS_VALUE_LIST))
        RS_TRY_GOTO(fail_at(torch, start, "the storage keys are no list"), out);
    for (uint32_t i = 0; i < keys.root->count; i++)
        RS_TRY_GOTO(walk_storage(torch, keys.root->as.items[i], &at), out);
    for (size_t i = 0; i < torch->storage_count; i++)
        if (torch->storages[i].file < 0)
            RS_TRY_GOTO(rs_files_malformed(torch->files, torch->file, start,
                            "storage %s is not in the list of keys", torch->storages[i].key),
                out);
    torch->trailing = rs_files_size(torch->files, torch->file) - at;
out:
    rs_pickle_fini(&keys);
    return status;
}

rs_status rs_torch_open(rs_files *files, int file, rs_torch *torch)
{
    unsigned char head[4] = {0};
    *torch = (rs_torch){.files = files, .file = file};
    int64_t size = rs_files_size(files, file);
    RS_TRY(rs_files_read(files, file, 0, head, (size_t)rs_min64(size, sizeof head)));
    if (rs_le32(head) != 0x04034b50u)
        return open_stream(torch);
    RS_TRY(open_zip(torch));
    return find_storages(torch);
}

void rs_torch_fini(rs_torch *torch)
{
    rs_pickle_fini(&torch->pickle);
    rs_zip_fini(&torch->zip);
    rs_names_fini(&torch->storage_names);
    free(torch->storages);
    memset(torch, 0, sizeof *torch);
}
