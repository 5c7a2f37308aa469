/* The public face of a catalog. */
#include "reshard/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/catalog.h"
#include "ckpt/checkpoint.h"
#include "ckpt/format.h"

struct rs_checkpoint {
    rs_catalog *catalog;
    rs_catalog *under; /* whose texts the catalog borrows; may be NULL */
};

rs_status rs_checkpoint_open(
    const char *path, const rs_checkpoint_options *options, rs_checkpoint **out)
{
    rs_checkpoint *checkpoint = rs_calloc(1, sizeof *checkpoint);
    if (checkpoint == NULL)
        return rs_error_memory(sizeof *checkpoint);
    rs_status status = rs_format_open(path, options, &checkpoint->catalog);
    if (status != RS_OK) {
        free(checkpoint);
        return status;
    }
    *out = checkpoint;
    return RS_OK;
}

void rs_checkpoint_close(rs_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    rs_catalog_destroy(checkpoint->catalog);
    rs_catalog_destroy(checkpoint->under);
    free(checkpoint);
}

rs_status rs_checkpoint_wrap(rs_catalog *catalog, rs_catalog *under, rs_checkpoint **out)
{
    rs_checkpoint *checkpoint = rs_calloc(1, sizeof *checkpoint);
    if (checkpoint == NULL) {
        rs_catalog_destroy(catalog);
        rs_catalog_destroy(under);
        return rs_error_memory(sizeof *checkpoint);
    }
    checkpoint->catalog = catalog;
    checkpoint->under = under;
    *out = checkpoint;
    return RS_OK;
}

const rs_catalog *rs_checkpoint_catalog(const rs_checkpoint *checkpoint)
{
    return checkpoint->catalog;
}

size_t rs_checkpoint_checksums(const rs_checkpoint *checkpoint)
{
    return checkpoint->catalog->checksums.count;
}

const char *rs_checkpoint_format(const rs_checkpoint *checkpoint)
{
    return checkpoint->catalog->format;
}

const char *rs_checkpoint_layout(const rs_checkpoint *checkpoint)
{
    return checkpoint->catalog->layout;
}

size_t rs_checkpoint_count(const rs_checkpoint *checkpoint)
{
    return checkpoint->catalog->entries.count;
}

const rs_checkpoint_entry *rs_checkpoint_entry_at(const rs_checkpoint *checkpoint, size_t index)
{
    return &checkpoint->catalog->entries.items[index].is;
}

int64_t rs_checkpoint_find(const rs_checkpoint *checkpoint, const char *name, const char *role)
{
    return rs_catalog_find(checkpoint->catalog, name, role);
}

int64_t rs_checkpoint_entry_bytes(const rs_checkpoint_entry *entry)
{
    rs_box whole = rs_box_whole(entry->ndim, entry->shape);
    return rs_box_is_empty(&whole) ? 0
                                   : rs_box_volume(&whole) * (int64_t)rs_dtype_size(entry->dtype);
}

rs_status rs_checkpoint_read(
    const rs_checkpoint *checkpoint, size_t index, const rs_box *box, void *buffer, size_t bytes)
{
    const rs_catalog *catalog = checkpoint->catalog;
    if (index >= catalog->entries.count)
        return rs_error_set(RS_ERR_ARGUMENT, "entry %zu of %zu", index, catalog->entries.count);
    const rs_checkpoint_entry *entry = &catalog->entries.items[index].is;
    rs_status status = rs_box_check(box, entry->ndim, entry->shape);
    if (status != RS_OK)
        return rs_error_context(status, "%s of \"%s\"", entry->role, entry->name);
    size_t want =
        rs_box_is_empty(box) ? 0 : (size_t)rs_box_volume(box) * rs_dtype_size(entry->dtype);
    if (bytes != want)
        return rs_error_set(RS_ERR_ARGUMENT, "%s of \"%s\": the box has %zu bytes, the buffer %zu",
            entry->role, entry->name, want, bytes);
    return rs_catalog_read(catalog, (int)index, -1, box, buffer);
}

rs_status rs_checkpoint_hash(
    const rs_checkpoint *checkpoint, size_t index, char hex[RS_CHECKPOINT_HASH])
{
    if (index >= checkpoint->catalog->entries.count)
        return rs_error_set(
            RS_ERR_ARGUMENT, "entry %zu of %zu", index, checkpoint->catalog->entries.count);
    return rs_catalog_hash(checkpoint->catalog, (int)index, hex);
}

rs_status rs_checkpoint_check(rs_checkpoint *checkpoint)
{
    RS_TRY(rs_catalog_check(checkpoint->catalog));
    return strcmp(checkpoint->catalog->format, "native") == 0 ? rs_native_check(checkpoint->catalog)
                                                              : RS_OK;
}

rs_status rs_checkpoint_check_replicas(rs_checkpoint *checkpoint, const char *role)
{
    rs_catalog *catalog = checkpoint->catalog;
    for (size_t id = 0; id < catalog->entries.count; id++)
        if (strcmp(rs_catalog_get(catalog, (int)id)->is.role, role) == 0)
            RS_TRY(rs_catalog_check_replicas(catalog, (int)id, rs_catalog_note, catalog));
    return RS_OK;
}

size_t rs_checkpoint_warning_count(const rs_checkpoint *checkpoint)
{
    return checkpoint->catalog->warnings.count;
}

const char *rs_checkpoint_warning_at(const rs_checkpoint *checkpoint, size_t index)
{
    return checkpoint->catalog->warnings.items[index];
}

rs_status rs_checkpoint_extras(const rs_checkpoint *checkpoint, char **out)
{
    char *text = json_dumps(checkpoint->catalog->extras, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (text == NULL)
        return rs_error_set(RS_ERR_NO_MEMORY, "cannot write the extras as JSON");
    *out = text;
    return RS_OK;
}
