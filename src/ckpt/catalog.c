/*
 * The catalog: building it, and the proof that it is complete.
 *
 * Readers add entries and pieces in the order in which they meet them in the files, which for a
 * sharded checkpoint is file by file. rs_catalog_finish sorts the pieces to their entries and
 * proves for every copy of every entry that its boxes lie inside the entry, do not overlap, and
 * together have as many elements: then each element is held exactly once.
 *
 * Invariants:
 * 1. After rs_catalog_finish the pieces of an entry stand together, by copy, then by box.
 * 2. Nothing is read before the catalog is complete: what is missing is known when a checkpoint is
 *    opened, not when half of it is converted.
 * 3. Entries and pieces name each other by number, so that lists may grow while readers add.
 *
 * Cost: sorting, n log n of the pieces; overlaps by sweeps along one dimension after the other,
 * linear for grids and flat shards, quadratic only within a group of boxes that overlap in all
 * dimensions but fit no grid. A piece costs 40 bytes and 24 a dimension.
 */
#include "ckpt/catalog.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "base/text.h"

#define BOX_TEXT 256
#define WARNINGS_MOST 1000

rs_status rs_catalog_create(const char *format, rs_catalog **out)
{
    rs_catalog *catalog = rs_calloc(1, sizeof *catalog);
    if (catalog == NULL)
        return rs_error_memory(sizeof *catalog);
    catalog->format = format;
    catalog->extras = json_object();
    rs_status status =
        catalog->extras != NULL ? rs_files_create(&catalog->files) : rs_error_memory(64);
    if (status != RS_OK) {
        rs_catalog_destroy(catalog);
        return status;
    }
    *out = catalog;
    return RS_OK;
}

void rs_catalog_destroy(rs_catalog *catalog)
{
    if (catalog == NULL)
        return;
    if (!catalog->borrowed)
        rs_files_destroy(catalog->files);
    rs_pool_fini(&catalog->pool);
    rs_names_fini(&catalog->names);
    free(catalog->entries.items);
    free(catalog->pieces.items);
    free(catalog->numbers.items);
    free(catalog->checksums.items);
    free(catalog->inlined.items);
    free(catalog->warnings.items);
    json_decref(catalog->extras);
    json_decref(catalog->model);
    free(catalog);
}

/* A copy of `count` items; an empty list stays NULL. */
static rs_status copy_items(const void *items, size_t count, size_t size, void **out)
{
    *out = NULL;
    if (count == 0)
        return RS_OK;
    *out = rs_calloc(count, size);
    if (*out == NULL)
        return rs_error_memory(count * size);
    memcpy(*out, items, count * size);
    return RS_OK;
}

rs_status rs_catalog_view(const rs_catalog *of, rs_catalog **out)
{
    rs_status status;
    rs_catalog *view = rs_calloc(1, sizeof *view);
    if (view == NULL)
        return rs_error_memory(sizeof *view);
    view->files = of->files;
    view->borrowed = true;
    view->format = of->format;
    view->layout = of->layout;
    view->extras = json_copy(of->extras);
    view->model = json_incref(of->model);
    if (view->extras == NULL)
        RS_TRY_GOTO(rs_error_memory(64), fail);
    RS_TRY_GOTO(copy_items(of->checksums.items, of->checksums.count, sizeof *of->checksums.items,
                    (void **)&view->checksums.items),
        fail);
    view->checksums.count = view->checksums.capacity = of->checksums.count;
    RS_TRY_GOTO(
        copy_items(of->inlined.items, of->inlined.count, 1, (void **)&view->inlined.items), fail);
    view->inlined.count = view->inlined.capacity = of->inlined.count;
    RS_TRY_GOTO(copy_items(of->warnings.items, of->warnings.count, sizeof *of->warnings.items,
                    (void **)&view->warnings.items),
        fail);
    view->warnings.count = view->warnings.capacity = of->warnings.count;
    *out = view;
    return RS_OK;

fail:
    rs_catalog_destroy(view);
    return status;
}

rs_catalog_entry *rs_catalog_get(const rs_catalog *catalog, int id)
{
    return &catalog->entries.items[id];
}

/* "role\nname" in the pool. */
static rs_status key_of(rs_catalog *catalog, const char *name, const char *role, const char **out)
{
    size_t role_bytes = strlen(role), name_bytes = strlen(name);
    void *memory;
    RS_TRY(rs_pool_take(&catalog->pool, role_bytes + name_bytes + 2, &memory));
    char *key = memory;
    memcpy(key, role, role_bytes);
    key[role_bytes] = '\n';
    memcpy(key + role_bytes + 1, name, name_bytes + 1);
    *out = key;
    return RS_OK;
}

int rs_catalog_find(const rs_catalog *catalog, const char *name, const char *role)
{
    size_t role_bytes = strlen(role), name_bytes = strlen(name);
    char small[256];
    size_t bytes = role_bytes + name_bytes + 2;
    char *key = bytes <= sizeof small ? small : rs_calloc(bytes, 1);
    if (key == NULL)
        return -1;
    memcpy(key, role, role_bytes);
    key[role_bytes] = '\n';
    memcpy(key + role_bytes + 1, name, name_bytes + 1);
    int found = rs_names_find(&catalog->names, key);
    if (key != small)
        free(key);
    return found;
}

rs_status rs_catalog_add(rs_catalog *catalog, const char *name, const char *role, rs_dtype dtype,
    int ndim, const int64_t *shape, int *id)
{
    int64_t bytes = (int64_t)rs_dtype_size(dtype);
    bool empty = false;
    for (int d = 0; d < ndim; d++)
        empty = empty || shape[d] == 0;
    for (int d = 0; d < ndim && !empty; d++)
        if (!rs_mul_fits(bytes, shape[d], &bytes))
            return rs_error_set(
                RS_ERR_MALFORMED, "the sizes of tensor \"%s\" overflow 64 bits", name);
    rs_catalog_entry entry = {
        .is = {.dtype = dtype, .ndim = ndim, .stored = true, .copies = 1}, .source = -1};
    for (int d = 0; d < ndim; d++)
        entry.is.shape[d] = shape[d];
    const char *key;
    int found;
    RS_TRY(key_of(catalog, name, role, &key));
    RS_TRY(rs_names_add(&catalog->names, key, (int)catalog->entries.count, &found));
    if (found >= 0)
        return rs_error_set(RS_ERR_MALFORMED, "two tensors are named \"%s\" (%s)", name, role);
    entry.is.name = strchr(key, '\n') + 1;
    RS_TRY(rs_pool_text(&catalog->pool, role, strlen(role), &entry.is.role));
    RS_TRY(RS_LIST_RESERVE_ONE(&catalog->entries));
    *id = (int)catalog->entries.count;
    catalog->entries.items[catalog->entries.count++] = entry;
    return RS_OK;
}

rs_status rs_catalog_piece(rs_catalog *catalog, int id, const rs_piece *piece)
{
    if (rs_box_is_empty(&piece->box))
        return RS_OK;
    size_t ndim = (size_t)piece->box.ndim;
    rs_stored_piece stored = {.offset = piece->offset,
        .numbers = catalog->numbers.count,
        .entry = id,
        .copy = piece->copy,
        .file = piece->file,
        .flags = piece->flags};
    RS_TRY(rs_array_reserve((void **)&catalog->numbers.items, &catalog->numbers.capacity,
        catalog->numbers.count + 3 * RS_MAX_DIMS, sizeof(int64_t)));
    RS_TRY(RS_LIST_RESERVE_ONE(&catalog->pieces));
    int64_t *numbers = catalog->numbers.items + catalog->numbers.count;
    memcpy(numbers, piece->box.offset, ndim * sizeof *numbers);
    memcpy(numbers + ndim, piece->box.extent, ndim * sizeof *numbers);
    memcpy(numbers + 2 * ndim, piece->stride, ndim * sizeof *numbers);
    catalog->numbers.count += 3 * ndim;
    catalog->pieces.items[catalog->pieces.count++] = stored;
    return RS_OK;
}

/* Byte strides of a tensor in row-major order. */
static void row_major(const rs_checkpoint_entry *entry, int64_t *stride)
{
    int64_t step = (int64_t)rs_dtype_size(entry->dtype);
    for (int d = entry->ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= entry->shape[d];
    }
}

rs_status rs_catalog_whole(rs_catalog *catalog, int id, int copy, int file, int64_t offset)
{
    const rs_checkpoint_entry *entry = &rs_catalog_get(catalog, id)->is;
    rs_piece piece = {.box = rs_box_whole(entry->ndim, entry->shape),
        .copy = copy,
        .file = file,
        .offset = offset};
    if (rs_box_is_empty(&piece.box))
        return RS_OK;
    row_major(entry, piece.stride);
    return rs_catalog_piece(catalog, id, &piece);
}

rs_status rs_catalog_inline(rs_catalog *catalog, int id, int copy, const void *data)
{
    size_t bytes = (size_t)rs_checkpoint_entry_bytes(&rs_catalog_get(catalog, id)->is);
    size_t at = catalog->inlined.count;
    RS_TRY(rs_array_reserve(
        (void **)&catalog->inlined.items, &catalog->inlined.capacity, at + bytes, 1));
    if (bytes > 0)
        memcpy(catalog->inlined.items + at, data, bytes);
    catalog->inlined.count += bytes;
    return rs_catalog_whole(catalog, id, copy, RS_PIECE_INLINE, (int64_t)at);
}

rs_status rs_catalog_alias(rs_catalog *catalog, const char *name, int source)
{
    int id;
    rs_checkpoint_entry from = rs_catalog_get(catalog, source)->is;
    RS_TRY(rs_catalog_add(catalog, name, from.role, from.dtype, from.ndim, from.shape, &id));
    rs_catalog_entry *entry = rs_catalog_get(catalog, id);
    entry->how = RS_ENTRY_ALIAS;
    entry->source = source;
    entry->is.stored = from.stored;
    entry->is.derived_from = from.derived_from;
    entry->is.alias_of = from.name;
    return RS_OK;
}

rs_status rs_catalog_rounded(rs_catalog *catalog, const char *role, rs_dtype dtype, int source)
{
    int id;
    rs_checkpoint_entry from = rs_catalog_get(catalog, source)->is;
    RS_TRY(rs_catalog_add(catalog, from.name, role, dtype, from.ndim, from.shape, &id));
    rs_catalog_entry *entry = rs_catalog_get(catalog, id);
    entry->how = RS_ENTRY_ROUNDED;
    entry->source = source;
    entry->is.stored = false;
    entry->is.derived_from = from.role;
    entry->is.copies = 0;
    return RS_OK;
}

rs_status rs_catalog_warn(rs_catalog *catalog, const char *format, ...)
{
    char text[1024];
    va_list args;
    if (catalog->warnings.count > WARNINGS_MOST)
        return RS_OK;
    if (catalog->warnings.count == WARNINGS_MOST) {
        snprintf(
            text, sizeof text, "more than %d warnings; the others are left out", WARNINGS_MOST);
    } else {
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
    }
    const char *copy;
    RS_TRY(rs_pool_text(&catalog->pool, text, strlen(text), &copy));
    RS_TRY(RS_LIST_RESERVE_ONE(&catalog->warnings));
    catalog->warnings.items[catalog->warnings.count++] = copy;
    return RS_OK;
}

rs_status rs_catalog_note(void *catalog, const char *text)
{
    return rs_catalog_warn(catalog, "%s", text);
}

static rs_status add_checksum(rs_catalog *catalog, rs_checksum *sum, const char *label)
{
    RS_TRY(rs_pool_text(&catalog->pool, label, strlen(label), &sum->label));
    RS_TRY(RS_LIST_RESERVE_ONE(&catalog->checksums));
    catalog->checksums.items[catalog->checksums.count++] = *sum;
    return RS_OK;
}

rs_status rs_catalog_checksum(
    rs_catalog *catalog, int file, int64_t offset, int64_t bytes, uint32_t crc, const char *label)
{
    rs_checksum sum = {.file = file, .offset = offset, .bytes = bytes, .value = crc};
    return add_checksum(catalog, &sum, label);
}

rs_status rs_catalog_checksum_xxh3(
    rs_catalog *catalog, int file, int64_t offset, int64_t bytes, uint64_t hash, const char *label)
{
    rs_checksum sum = {
        .file = file, .offset = offset, .bytes = bytes, .is_xxh3 = true, .value = hash};
    return add_checksum(catalog, &sum, label);
}

rs_status rs_catalog_extra(rs_catalog *catalog, const char *key, json_t *value)
{
    if (value == NULL || json_object_set_new(catalog->extras, key, value) != 0)
        return rs_error_set(RS_ERR_NO_MEMORY, "cannot keep \"%s\"", key);
    return RS_OK;
}

rs_piece rs_catalog_piece_at(const rs_catalog *catalog, size_t index)
{
    const rs_stored_piece *stored = &catalog->pieces.items[index];
    int ndim = catalog->entries.items[stored->entry].is.ndim;
    const int64_t *numbers = catalog->numbers.items + stored->numbers;
    rs_piece piece = {.box.ndim = ndim,
        .copy = stored->copy,
        .file = stored->file,
        .offset = stored->offset,
        .flags = stored->flags};
    memcpy(piece.box.offset, numbers, (size_t)ndim * sizeof *numbers);
    memcpy(piece.box.extent, numbers + ndim, (size_t)ndim * sizeof *numbers);
    memcpy(piece.stride, numbers + 2 * ndim, (size_t)ndim * sizeof *numbers);
    return piece;
}

static int compare_pieces(const void *a, const void *b, void *context)
{
    const rs_catalog *catalog = context;
    const rs_stored_piece *x = a, *y = b;
    if (x->entry != y->entry)
        return rs_compare(x->entry, y->entry);
    if (x->copy != y->copy)
        return rs_compare(x->copy, y->copy);
    int ndim = catalog->entries.items[x->entry].is.ndim;
    const int64_t *p = catalog->numbers.items + x->numbers;
    const int64_t *q = catalog->numbers.items + y->numbers;
    for (int i = 0; i < 2 * ndim; i++)
        if (p[i] != q[i])
            return rs_compare(p[i], q[i]);
    return rs_compare(x->offset, y->offset);
}

static const char *where(const rs_catalog *catalog, int file)
{
    return file == RS_PIECE_INLINE ? "(the pickle)" : rs_files_path(catalog->files, file);
}

static rs_status overlap(const rs_catalog *catalog, size_t a, size_t b)
{
    rs_piece p = rs_catalog_piece_at(catalog, a), q = rs_catalog_piece_at(catalog, b);
    const rs_checkpoint_entry *entry = &rs_catalog_get(catalog, catalog->pieces.items[a].entry)->is;
    char one[BOX_TEXT], other[BOX_TEXT];
    return rs_error_set(RS_ERR_MALFORMED, "%s of \"%s\" is held twice: %s in %s and %s in %s",
        entry->role, entry->name, rs_box_format(&p.box, one, sizeof one), where(catalog, p.file),
        rs_box_format(&q.box, other, sizeof other), where(catalog, q.file));
}

typedef struct span {
    int64_t begin;
    int64_t end;
    size_t piece;
} span;

static int compare_spans(const void *a, const void *b)
{
    const span *x = a, *y = b;
    if (x->begin != y->begin)
        return rs_compare(x->begin, y->begin);
    return rs_compare(x->end, y->end);
}

/* No two of the boxes, which are known to meet in all dimensions below `dim`, overlap. */
static rs_status check_disjoint(const rs_catalog *catalog, span *spans, size_t count, int dim)
{
    if (count < 2)
        return RS_OK;
    int ndim = catalog->entries.items[catalog->pieces.items[spans[0].piece].entry].is.ndim;
    if (dim == ndim)
        return overlap(catalog, spans[0].piece, spans[1].piece);
    for (size_t i = 0; i < count; i++) {
        const int64_t *numbers =
            catalog->numbers.items + catalog->pieces.items[spans[i].piece].numbers;
        spans[i].begin = numbers[dim];
        spans[i].end = numbers[dim] + numbers[ndim + dim];
    }
    qsort(spans, count, sizeof *spans, compare_spans);
    for (size_t first = 0, next; first < count; first = next) {
        int64_t end = spans[first].end;
        bool same = true;
        for (next = first + 1; next < count && spans[next].begin < end; next++) {
            same = same && spans[next].begin == spans[first].begin &&
                   spans[next].end == spans[first].end;
            end = rs_max64(end, spans[next].end);
        }
        if (same) {
            RS_TRY(check_disjoint(catalog, spans + first, next - first, dim + 1));
            continue;
        }
        for (size_t i = first; i < next; i++)
            for (size_t k = i + 1; k < next && spans[k].begin < spans[i].end; k++) {
                rs_box both;
                rs_piece p = rs_catalog_piece_at(catalog, spans[i].piece);
                rs_piece q = rs_catalog_piece_at(catalog, spans[k].piece);
                if (rs_box_intersect(&p.box, &q.box, &both))
                    return overlap(catalog, spans[i].piece, spans[k].piece);
            }
    }
    return RS_OK;
}

/* Names a box of the copy that no piece holds. */
static rs_status missing(
    const rs_catalog *catalog, const rs_catalog_entry *entry, size_t first, size_t count, int copy)
{
    rs_box left = rs_box_whole(entry->is.ndim, entry->is.shape);
    char text[BOX_TEXT];
    for (size_t i = first; i < first + count; i++) {
        rs_piece piece = rs_catalog_piece_at(catalog, i);
        rs_box parts[2 * RS_MAX_DIMS], both;
        if (!rs_box_intersect(&left, &piece.box, &both))
            continue;
        int n = rs_box_subtract(&left, &piece.box, parts);
        if (n == 0)
            break;
        left = parts[0];
    }
    if (count == 0)
        return rs_error_set(
            RS_ERR_MALFORMED, "%s of \"%s\" is in no file", entry->is.role, entry->is.name);
    return rs_error_set(RS_ERR_MALFORMED, "%s of \"%s\": no file holds its elements %s%s",
        entry->is.role, entry->is.name, rs_box_format(&left, text, sizeof text),
        copy > 0 ? " in one of its copies" : "");
}

static rs_status check_copy(
    rs_catalog *catalog, rs_catalog_entry *entry, size_t first, size_t count, int copy, span *spans)
{
    int64_t elements = 0;
    for (size_t i = 0; i < count; i++) {
        rs_piece piece = rs_catalog_piece_at(catalog, first + i);
        rs_status status = rs_box_check(&piece.box, entry->is.ndim, entry->is.shape);
        if (status != RS_OK)
            return rs_error_context(RS_ERR_MALFORMED, "%s: %s of \"%s\"",
                where(catalog, piece.file), entry->is.role, entry->is.name);
        int64_t volume = rs_box_volume(&piece.box);
        if (!rs_add_fits(elements, volume, &elements))
            return rs_error_set(
                RS_ERR_OVERFLOW, "the pieces of \"%s\" overflow 64 bits", entry->is.name);
        spans[i] = (span){.piece = first + i};
    }
    RS_TRY(check_disjoint(catalog, spans, count, 0));
    rs_box whole = rs_box_whole(entry->is.ndim, entry->is.shape);
    if (elements != rs_box_volume(&whole))
        return missing(catalog, entry, first, count, copy);
    return RS_OK;
}

rs_status rs_catalog_finish(rs_catalog *catalog)
{
    span *spans = rs_calloc(catalog->pieces.count, sizeof *spans);
    if (spans == NULL)
        return rs_error_memory(catalog->pieces.count * sizeof *spans);
    rs_status status = RS_OK;
    if (catalog->pieces.count > 0)
        qsort_r(catalog->pieces.items, catalog->pieces.count, sizeof *catalog->pieces.items,
            compare_pieces, catalog);
    size_t at = 0;
    for (size_t id = 0; id < catalog->entries.count && status == RS_OK; id++) {
        rs_catalog_entry *entry = rs_catalog_get(catalog, (int)id);
        rs_box whole = rs_box_whole(entry->is.ndim, entry->is.shape);
        entry->first_piece = at;
        int copies = 0;
        while (at < catalog->pieces.count && catalog->pieces.items[at].entry == (int)id &&
               status == RS_OK) {
            size_t first = at;
            int copy = catalog->pieces.items[at].copy;
            while (at < catalog->pieces.count && catalog->pieces.items[at].entry == (int)id &&
                   catalog->pieces.items[at].copy == copy)
                catalog->pieces.items[at++].copy = copies; /* numbered without gaps */
            status = check_copy(catalog, entry, first, at - first, copies++, spans);
        }
        entry->piece_count = at - entry->first_piece;
        bool own = entry->how != RS_ENTRY_ALIAS && entry->how != RS_ENTRY_ROUNDED;
        if (own)
            entry->is.copies = rs_box_is_empty(&whole) ? 1 : copies;
        if (status == RS_OK && own && copies == 0 && !rs_box_is_empty(&whole))
            status = missing(catalog, entry, 0, 0, 0);
        if (entry->how == RS_ENTRY_ALIAS && entry->source < (int)id)
            entry->is.copies = rs_catalog_get(catalog, entry->source)->is.copies;
    }
    free(spans);
    return status;
}
