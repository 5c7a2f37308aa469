/*
 * Translating a catalog: pieces are moved from the index space of one tensor into that of another.
 *
 * A part of a foreign tensor says which box of a canonical tensor lies where in it, and along which
 * dimensions. What a piece shares with a part is therefore a piece of the other tensor: the box is
 * shifted, the byte strides are permuted, the first byte moves. That goes both ways, and is all
 * that happens to a layer of a stack, a fused, a transposed or a grouped matrix.
 *
 * Invariants:
 * 1. The new catalog is finished, so it is proved that every element of every entry is held once.
 * 2. All layers of a canonical tensor in one role are held alike (stored, averaged or rounded from
 *    another role) and have one dtype; otherwise the translation is refused.
 * 3. Two entries that are the same canonical box are compared, and one is taken.
 *
 * A scalar in a role of a tensor (a step) is no part of it: the layers of a stack must agree on it.
 *
 * Cost: a lookup for each entry; outwards, for each foreign tensor a walk over the pieces of its
 * canonical ones.
 */
#include "ckpt/translate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "ckpt/cast.h"
#include "ckpt/groups.h"
#include "ckpt/logical.h"

#define ROLES_MOST 64
#define COMPARED ((int64_t)1 << 20) /* elements at a time */

typedef struct translation {
    const rs_catalog *from;
    rs_catalog *to;
    const rs_dialect *dialect;
    const rs_space *space;
    bool lenient;
    const char *roles[ROLES_MOST]; /* that occur */
    int role_count;
} translation;

/* ---- common ---- */

static const rs_checkpoint_entry *about(const rs_catalog *catalog, int id)
{
    return &rs_catalog_get(catalog, id)->is;
}

static rs_status find_roles(translation *t)
{
    for (size_t i = 0; i < t->from->entries.count; i++) {
        const char *role = about(t->from, (int)i)->role;
        int r = 0;
        while (r < t->role_count && strcmp(t->roles[r], role) != 0)
            r++;
        if (r == ROLES_MOST)
            return rs_error_set(RS_ERR_UNSUPPORTED, "more than %d roles", ROLES_MOST);
        if (r == t->role_count)
            t->roles[t->role_count++] = role;
    }
    return RS_OK;
}

static int role_number(const translation *t, const char *role)
{
    int r = 0;
    while (strcmp(t->roles[r], role) != 0)
        r++;
    return r;
}

static bool same_shape(const rs_checkpoint_entry *entry, int ndim, const int64_t *shape)
{
    return entry->ndim == ndim && memcmp(entry->shape, shape, sizeof *shape * (size_t)ndim) == 0;
}

static bool is_scalar(const rs_checkpoint_entry *entry)
{
    rs_box whole = rs_box_whole(entry->ndim, entry->shape);
    return strcmp(entry->role, "param") != 0 && !rs_box_is_empty(&whole) &&
           rs_box_volume(&whole) == 1;
}

static rs_status wrong_shape(const rs_checkpoint_entry *entry, int ndim, const int64_t *shape)
{
    char wanted[256], found[256], flat[RS_FLAT_HINT];
    rs_box a = rs_box_whole(ndim, shape), b = rs_box_whole(entry->ndim, entry->shape);
    bool padded = entry->ndim == ndim && ndim > 0 && entry->shape[0] > shape[0] &&
                  memcmp(entry->shape + 1, shape + 1, sizeof *shape * (size_t)(ndim - 1)) == 0;
    return rs_error_set(RS_ERR_MISMATCH,
        "%s of \"%s\": the model wants %s, the checkpoint has %s%s", entry->role, entry->name,
        rs_box_format(&a, wanted, sizeof wanted), rs_box_format(&b, found, sizeof found),
        padded ? "; if the rows behind are padding, a rules file can say so (\"vocabulary\")"
               : rs_logical_flat_hint(entry->ndim, entry->shape, ndim, shape, flat));
}

/* An entry as another one is, without its pieces. Where it is rounded, `source` is found last. */
static rs_status add_like(translation *t, const char *name, int id, rs_dtype dtype, int ndim,
    const int64_t *shape, int *out)
{
    const rs_catalog_entry *like = rs_catalog_get(t->from, id);
    RS_TRY(rs_catalog_add(t->to, name, like->is.role, dtype, ndim, shape, out));
    rs_catalog_entry *entry = rs_catalog_get(t->to, *out);
    entry->how = like->how;
    entry->is.stored = like->is.stored;
    entry->is.derived_from = like->is.derived_from;
    if (like->how == RS_ENTRY_ROUNDED)
        entry->is.copies = 0;
    return RS_OK;
}

/* The same entry, with its pieces, under the name `name`. */
static rs_status add_clone(translation *t, const char *name, int id)
{
    const rs_catalog_entry *entry = rs_catalog_get(t->from, id);
    int to;
    RS_TRY(add_like(t, name, id, entry->is.dtype, entry->is.ndim, entry->is.shape, &to));
    for (size_t i = 0; i < entry->piece_count; i++) {
        rs_piece piece = rs_catalog_piece_at(t->from, entry->first_piece + i);
        RS_TRY(rs_catalog_piece(t->to, to, &piece));
    }
    return RS_OK;
}

/* Rounded entries find what they are rounded from, now that all are there. */
static rs_status finish(translation *t)
{
    for (size_t i = 0; i < t->to->entries.count; i++) {
        rs_catalog_entry *entry = rs_catalog_get(t->to, (int)i);
        if (entry->how != RS_ENTRY_ROUNDED)
            continue;
        entry->source = rs_catalog_find(t->to, entry->is.name, entry->is.derived_from);
        if (entry->source < 0)
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "%s of \"%s\": is rounded from its %s, which is not there", entry->is.role,
                entry->is.name, entry->is.derived_from);
    }
    return rs_catalog_finish(t->to);
}

static rs_status begin(translation *t)
{
    RS_TRY(find_roles(t));
    return rs_catalog_view(t->from, &t->to);
}

static rs_status end(translation *t, rs_status status, rs_catalog **out)
{
    if (status == RS_OK)
        status = finish(t);
    if (status == RS_OK)
        *out = t->to;
    else
        rs_catalog_destroy(t->to);
    return status;
}

/* ---- inwards ---- */

/* A canonical tensor in one role, being put together. */
typedef struct cell {
    int like;         /* the first entry of it; -1: none */
    int id;           /* in the new catalog */
    int64_t elements; /* of its entries */
    int copies;       /* the fewest that one of them has */
    bool scalar;
} cell;

/* A foreign entry and what it is. */
typedef struct item {
    int id;
    rs_foreign foreign;
} item;

typedef struct inward {
    translation t;
    struct {
        item *items;
        size_t count, capacity;
    } list;
    cell *cells;    /* [roles][tensors] */
    rs_names taken; /* "role tensor box" of each item's first part */
    rs_pool pool;
} inward;

static cell *cell_of(const inward *w, const char *role, int tensor)
{
    size_t tensors = (size_t)rs_space_tensor_count(w->t.space);
    return &w->cells[(size_t)role_number(&w->t, role) * tensors + (size_t)tensor];
}

/* The first element in which two entries of one shape and dtype differ: RS_ERR_MISMATCH. */
static rs_status compare(const rs_catalog *catalog, int a, int b)
{
    const rs_checkpoint_entry *x = about(catalog, a), *y = about(catalog, b);
    rs_box whole = rs_box_whole(x->ndim, x->shape), parts[2 * RS_MAX_DIMS];
    size_t size = rs_dtype_size(x->dtype), room = (size_t)COMPARED * size;
    rs_status status = RS_OK;
    if (!same_shape(y, x->ndim, x->shape) || x->dtype != y->dtype)
        return rs_error_set(RS_ERR_MISMATCH,
            "%s of \"%s\" and of \"%s\" are one tensor, but have unlike shapes or types", x->role,
            x->name, y->name);
    int64_t volume = rs_box_is_empty(&whole) ? 0 : rs_box_volume(&whole);
    unsigned char *p = rs_calloc(room, 1), *q = rs_calloc(room, 1);
    if (p == NULL || q == NULL)
        RS_TRY_GOTO(rs_error_memory(room), out);
    for (int64_t at = 0; at < volume; at += COMPARED) {
        int count = rs_box_linear_range(&whole, at, rs_min64(at + COMPARED, volume), parts);
        for (int i = 0; i < count; i++) {
            int64_t part = rs_box_volume(&parts[i]), e = 0;
            RS_TRY_GOTO(rs_catalog_read(catalog, a, -1, &parts[i], p), out);
            RS_TRY_GOTO(rs_catalog_read(catalog, b, -1, &parts[i], q), out);
            if (memcmp(p, q, (size_t)part * size) == 0)
                continue;
            while (memcmp(p + (size_t)e * size, q + (size_t)e * size, size) == 0)
                e++;
            rs_box one[2 * RS_MAX_DIMS];
            char text[256];
            rs_box_linear_range(&parts[i], e, e + 1, one);
            RS_TRY_GOTO(
                rs_error_set(RS_ERR_MISMATCH,
                    "%s of \"%s\" and of \"%s\" are one tensor, but differ: at %s they have "
                    "%.9g and %.9g",
                    x->role, x->name, y->name, rs_box_format(&one[0], text, sizeof text),
                    rs_cast_element(x->dtype, p, e), rs_cast_element(x->dtype, q, e)),
                out);
        }
    }
out:
    free(p);
    free(q);
    return status;
}

/* Sees whether another entry is the same canonical box already, and then compares the two. */
static rs_status is_twice(inward *w, int id, const rs_foreign *foreign, bool *twice)
{
    const rs_foreign_part *part = &foreign->parts[0];
    char key[512], box[256];
    const char *kept;
    int found;
    int length = snprintf(key, sizeof key, "%s %d %s", about(w->t.from, id)->role, part->tensor,
        rs_box_format(&part->box, box, sizeof box));
    RS_TRY(rs_pool_text(&w->pool, key, rs_min64(length, sizeof key - 1), &kept));
    RS_TRY(rs_names_add(&w->taken, kept, id, &found));
    *twice = found >= 0;
    return found < 0 ? RS_OK : compare(w->t.from, found, id);
}

static rs_status unlike(const rs_checkpoint_entry *a, const rs_checkpoint_entry *b)
{
    return rs_error_set(RS_ERR_UNSUPPORTED,
        "%s of \"%s\" and of \"%s\" belong to one tensor of all layers, but have unlike types, or "
        "one is stored and the other derived",
        a->role, a->name, b->name);
}

/* Notes the entry in the cells of its parts' tensors. */
static rs_status note(inward *w, int id, const rs_foreign *foreign, bool scalar)
{
    const rs_catalog_entry *entry = rs_catalog_get(w->t.from, id);
    for (size_t p = 0; p < foreign->count; p++) {
        const rs_foreign_part *part = &foreign->parts[p];
        cell *c = cell_of(w, entry->is.role, part->tensor);
        if (c->like < 0) {
            c->like = id;
            c->copies = entry->is.copies;
            c->scalar = scalar;
        }
        const rs_catalog_entry *like = rs_catalog_get(w->t.from, c->like);
        bool average = entry->how == RS_ENTRY_AVERAGE;
        if (like->is.dtype != entry->is.dtype || like->how != entry->how || c->scalar != scalar ||
            (average && c->copies != entry->is.copies))
            return unlike(&like->is, &entry->is);
        c->copies = (int)rs_min64(c->copies, entry->is.copies);
        if (scalar && c->like != id)
            RS_TRY(compare(w->t.from, c->like, id));
        c->elements += rs_box_volume(&part->box);
    }
    return RS_OK;
}

/* What the dialect knows an entry as: under its name, or under another one that is tied to it. */
static rs_status look_up(const inward *w, int id, rs_foreign *out)
{
    const char *name = about(w->t.from, id)->name;
    rs_status status = rs_dialect_lookup(w->t.dialect, w->t.space, name, out);
    for (size_t i = 0; i < w->t.from->entries.count && status == RS_ERR_NOT_FOUND; i++) {
        const rs_catalog_entry *other = rs_catalog_get(w->t.from, (int)i);
        if (other->how == RS_ENTRY_ALIAS && strcmp(other->is.alias_of, name) == 0)
            status = rs_dialect_lookup(w->t.dialect, w->t.space, other->is.name, out);
    }
    /* The message is to be about the name that it has. */
    return status == RS_ERR_NOT_FOUND ? rs_dialect_lookup(w->t.dialect, w->t.space, name, out)
                                      : status;
}

/* What one entry is: part of canonical tensors, nothing that counts, or kept as it is. */
static rs_status take_entry(inward *w, int id)
{
    const rs_catalog *from = w->t.from;
    const rs_catalog_entry *entry = rs_catalog_get(from, id);
    bool param =
        strcmp(entry->is.role, "param") == 0 || rs_catalog_find(from, entry->is.name, "param") >= 0;
    rs_foreign foreign = {0};
    if (entry->how == RS_ENTRY_ALIAS)
        return RS_OK;
    rs_status status = look_up(w, id, &foreign);
    if (status == RS_ERR_NOT_FOUND) {
        if (rs_dialect_ignores(w->t.dialect, entry->is.name))
            return RS_OK;
        if (!param)
            return add_clone(&w->t, entry->is.name, id);
        if (w->t.lenient)
            return strcmp(entry->is.role, "param") == 0
                       ? rs_catalog_warn(w->t.to, "left out: %s", rs_error_message())
                       : RS_OK;
        return status;
    }
    RS_TRY(status);
    bool twice = false;
    bool scalar = !same_shape(&entry->is, foreign.ndim, foreign.shape);
    if (scalar && !is_scalar(&entry->is))
        RS_TRY_GOTO(wrong_shape(&entry->is, foreign.ndim, foreign.shape), out);
    if (!scalar)
        RS_TRY_GOTO(is_twice(w, id, &foreign, &twice), out);
    if (twice)
        goto out;
    RS_TRY_GOTO(note(w, id, &foreign, scalar), out);
    RS_TRY_GOTO(RS_LIST_RESERVE_ONE(&w->list), out);
    w->list.items[w->list.count++] = (item){.id = id, .foreign = foreign};
    return RS_OK;
out:
    rs_foreign_fini(&foreign);
    return status;
}

/* Adds the new catalog's entries, roles as they came, tensors in the order of the space. */
static rs_status add_cells(inward *w)
{
    int tensors = rs_space_tensor_count(w->t.space);
    for (int r = 0; r < w->t.role_count; r++)
        for (int i = 0; i < tensors; i++) {
            cell *c = &w->cells[(size_t)r * (size_t)tensors + (size_t)i];
            const rs_tensor *tensor = rs_space_tensor(w->t.space, i);
            if (c->like < 0) {
                bool wanted = strcmp(w->t.roles[r], "param") == 0 && !w->t.lenient;
                if (wanted)
                    return rs_error_set(RS_ERR_NOT_FOUND,
                        "the checkpoint has nothing of the model's \"%s\"", tensor->name);
                continue;
            }
            if (c->scalar) {
                RS_TRY(add_clone(&w->t, tensor->name, c->like));
                continue;
            }
            const rs_catalog_entry *like = rs_catalog_get(w->t.from, c->like);
            rs_box whole = rs_box_whole(tensor->ndim, tensor->shape);
            if (like->how == RS_ENTRY_ROUNDED && c->elements != rs_box_volume(&whole))
                return rs_error_set(RS_ERR_MALFORMED,
                    "%s of \"%s\": %" PRId64 " of its %" PRId64 " elements are there",
                    w->t.roles[r], tensor->name, c->elements, rs_box_volume(&whole));
            RS_TRY(add_like(
                &w->t, tensor->name, c->like, like->is.dtype, tensor->ndim, tensor->shape, &c->id));
        }
    return RS_OK;
}

/* What a foreign entry's piece shares with a part, as a piece of the canonical tensor. */
static bool piece_in(const rs_piece *piece, const rs_foreign_part *part, rs_piece *out)
{
    *out = *piece;
    out->box = part->box;
    memset(out->stride, 0, sizeof out->stride);
    for (int d = 0; d < piece->box.ndim; d++) {
        int c = part->along[d];
        int64_t first = rs_max64(piece->box.offset[d], part->offset[d]);
        int64_t last = rs_min64(
            piece->box.offset[d] + piece->box.extent[d], part->offset[d] + part->box.extent[c]);
        if (first >= last)
            return false;
        out->box.offset[c] += first - part->offset[d];
        out->box.extent[c] = last - first;
        out->stride[c] = piece->stride[d];
        out->offset += (first - piece->box.offset[d]) * piece->stride[d];
    }
    return true;
}

static rs_status add_pieces_in(inward *w, const item *of)
{
    const rs_catalog_entry *entry = rs_catalog_get(w->t.from, of->id);
    for (size_t p = 0; p < of->foreign.count; p++) {
        const rs_foreign_part *part = &of->foreign.parts[p];
        const cell *c = cell_of(w, entry->is.role, part->tensor);
        for (size_t i = 0; i < entry->piece_count && !c->scalar; i++) {
            rs_piece piece = rs_catalog_piece_at(w->t.from, entry->first_piece + i), moved;
            if (piece.copy < c->copies && piece_in(&piece, part, &moved))
                RS_TRY(rs_catalog_piece(w->t.to, c->id, &moved));
        }
    }
    return RS_OK;
}

/* The parameter groups of the new names, in the order of the space. */
static rs_status regroup_in(const inward *w)
{
    rs_regroup r;
    rs_status status = rs_regroup_begin(&r, w->t.from);
    for (int t = 0; r.merged != NULL && t < rs_space_tensor_count(w->t.space); t++)
        for (size_t i = 0; i < w->list.count && status == RS_OK; i++)
            for (size_t p = 0; p < w->list.items[i].foreign.count && status == RS_OK; p++)
                if (w->list.items[i].foreign.parts[p].tensor == t)
                    status = rs_regroup_is(&r, rs_space_tensor(w->t.space, t)->name,
                        about(w->t.from, w->list.items[i].id)->name);
    if (status == RS_OK)
        status = rs_regroup_end(&r, w->t.to);
    rs_regroup_fini(&r);
    return status;
}

rs_status rs_translate_in(const rs_catalog *from, const rs_dialect *dialect, const rs_space *space,
    bool lenient, rs_catalog **out)
{
    inward w = {.t = {.from = from, .dialect = dialect, .space = space, .lenient = lenient}};
    rs_status status = begin(&w.t);
    size_t cells = (size_t)w.t.role_count * (size_t)rs_space_tensor_count(space);
    if (status != RS_OK)
        return status;
    w.cells = rs_calloc(cells, sizeof *w.cells);
    if (w.cells == NULL)
        RS_TRY_GOTO(rs_error_memory(cells * sizeof *w.cells), out);
    for (size_t i = 0; i < cells; i++)
        w.cells[i].like = w.cells[i].id = -1;
    for (size_t i = 0; i < from->entries.count; i++)
        RS_TRY_GOTO(take_entry(&w, (int)i), out);
    RS_TRY_GOTO(add_cells(&w), out);
    RS_TRY_GOTO(rs_logical_set_model(w.t.to, space), out);
    for (size_t i = 0; i < w.list.count; i++)
        RS_TRY_GOTO(add_pieces_in(&w, &w.list.items[i]), out);
    RS_TRY_GOTO(regroup_in(&w), out);
out:
    for (size_t i = 0; i < w.list.count; i++)
        rs_foreign_fini(&w.list.items[i].foreign);
    free(w.list.items);
    free(w.cells);
    rs_names_fini(&w.taken);
    rs_pool_fini(&w.pool);
    return end(&w.t, status, out);
}

/* ---- outwards ---- */

/* What a canonical entry's piece shares with a part, as a piece of the foreign tensor. */
static bool piece_out(const rs_piece *piece, const rs_foreign_part *part, int ndim, rs_piece *out)
{
    rs_box both;
    if (!rs_box_intersect(&piece->box, &part->box, &both))
        return false;
    *out = *piece;
    out->box = (rs_box){.ndim = ndim};
    memset(out->stride, 0, sizeof out->stride);
    for (int c = 0; c < both.ndim; c++)
        out->offset += (both.offset[c] - piece->box.offset[c]) * piece->stride[c];
    for (int d = 0; d < ndim; d++) {
        int c = part->along[d];
        out->box.offset[d] = part->offset[d] + both.offset[c] - part->box.offset[c];
        out->box.extent[d] = both.extent[c];
        out->stride[d] = piece->stride[c];
    }
    return true;
}

static rs_status add_pieces_out(translation *t, int id, int to, const rs_foreign *foreign,
    const rs_foreign_part *part, int copies)
{
    const rs_catalog_entry *entry = rs_catalog_get(t->from, id);
    for (size_t i = 0; i < entry->piece_count; i++) {
        const rs_stored_piece *stored = &t->from->pieces.items[entry->first_piece + i];
        const int64_t *numbers = t->from->numbers.items + stored->numbers;
        rs_piece moved;
        if (stored->copy >= copies)
            break;
        if (part->box.ndim > 0 && (numbers[0] >= part->box.offset[0] + part->box.extent[0] ||
                                      numbers[0] + numbers[part->box.ndim] <= part->box.offset[0]))
            continue;
        rs_piece piece = rs_catalog_piece_at(t->from, entry->first_piece + i);
        if (piece_out(&piece, part, foreign->ndim, &moved))
            RS_TRY(rs_catalog_piece(t->to, to, &moved));
    }
    return RS_OK;
}

/* The entry of a part's tensor in a role; -1 if it has none. */
static int part_entry(const translation *t, const rs_foreign_part *part, const char *role)
{
    return rs_catalog_find(t->from, rs_space_tensor(t->space, part->tensor)->name, role);
}

/* One foreign tensor in one role. */
static rs_status add_foreign(translation *t, const rs_foreign *foreign, const char *role)
{
    int first = part_entry(t, &foreign->parts[0], role), to;
    int copies = first >= 0 ? about(t->from, first)->copies : 0;
    for (size_t p = 0; p < foreign->count; p++) {
        int id = part_entry(t, &foreign->parts[p], role);
        const rs_tensor *tensor = rs_space_tensor(t->space, foreign->parts[p].tensor);
        if ((id < 0) != (first < 0))
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "\"%s\" is made of several tensors, of which \"%s\" has %s %s, and others not",
                foreign->name, tensor->name, id < 0 ? "no" : "a", role);
        if (id < 0)
            continue;
        const rs_catalog_entry *a = rs_catalog_get(t->from, first);
        const rs_catalog_entry *b = rs_catalog_get(t->from, id);
        if (b->how == RS_ENTRY_ALIAS)
            return RS_OK;
        bool average = b->how == RS_ENTRY_AVERAGE;
        if (a->is.dtype != b->is.dtype || a->how != b->how ||
            (average && a->is.copies != b->is.copies))
            return unlike(&a->is, &b->is);
        if (!same_shape(&b->is, tensor->ndim, tensor->shape)) {
            if (is_scalar(&b->is))
                return add_clone(t, foreign->name, first);
            return wrong_shape(&b->is, tensor->ndim, tensor->shape);
        }
        copies = (int)rs_min64(copies, b->is.copies);
    }
    if (first < 0)
        return RS_OK;
    RS_TRY(add_like(
        t, foreign->name, first, about(t->from, first)->dtype, foreign->ndim, foreign->shape, &to));
    for (size_t p = 0; p < foreign->count; p++)
        RS_TRY(add_pieces_out(
            t, part_entry(t, &foreign->parts[p], role), to, foreign, &foreign->parts[p], copies));
    return RS_OK;
}

/* Entries of names that are no tensor of the space stay as they are, unless they are weights. */
static rs_status keep_others(translation *t)
{
    for (size_t i = 0; i < t->from->entries.count; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(t->from, (int)i);
        if (entry->how == RS_ENTRY_ALIAS || rs_space_find_tensor(t->space, entry->is.name) >= 0)
            continue;
        if (strcmp(entry->is.role, "param") == 0)
            return rs_error_set(
                RS_ERR_NOT_FOUND, "\"%s\" is none of the model's tensors", entry->is.name);
        RS_TRY(add_clone(t, entry->is.name, (int)i));
    }
    return RS_OK;
}

/* Whether two foreign tensors are the same box of one canonical tensor, turned alike. */
static bool is_same_box(const rs_foreign *a, const rs_foreign *b)
{
    return a->count == 1 && b->count == 1 && a->parts[0].tensor == b->parts[0].tensor &&
           rs_box_equal(&a->parts[0].box, &b->parts[0].box) && a->ndim == b->ndim &&
           memcmp(a->parts[0].along, b->parts[0].along,
               sizeof *a->parts[0].along * (size_t)a->ndim) == 0;
}

/* The second names that a tied model's weights have. */
static rs_status add_ties(translation *t, const rs_foreign_list *list)
{
    rs_foreign_list ties = {0};
    rs_status status = rs_dialect_ties(t->dialect, t->space, &ties);
    for (size_t i = 0; i < ties.count; i++)
        for (size_t k = 0; k < list->count && status == RS_OK; k++) {
            if (!is_same_box(&ties.items[i], &list->items[k]))
                continue;
            int first = rs_catalog_find(t->to, list->items[k].name, "param");
            if (first >= 0 && rs_catalog_find(t->to, ties.items[i].name, "param") < 0)
                status = rs_catalog_alias(t->to, ties.items[i].name, first);
        }
    rs_foreign_list_fini(&ties);
    return status;
}

static rs_status regroup_out(const translation *t, const rs_foreign_list *list)
{
    rs_regroup r;
    rs_status status = rs_regroup_begin(&r, t->from);
    for (size_t i = 0; r.merged != NULL && i < list->count; i++) {
        const rs_foreign *foreign = &list->items[i];
        if (rs_catalog_find(t->to, foreign->name, "param") < 0)
            continue;
        for (size_t p = 0; p < foreign->count && status == RS_OK; p++)
            status = rs_regroup_is(
                &r, foreign->name, rs_space_tensor(t->space, foreign->parts[p].tensor)->name);
    }
    if (status == RS_OK)
        status = rs_regroup_end(&r, t->to);
    rs_regroup_fini(&r);
    return status;
}

rs_status rs_translate_out(
    const rs_catalog *from, const rs_dialect *dialect, const rs_space *space, rs_catalog **out)
{
    translation t = {.from = from, .dialect = dialect, .space = space};
    rs_foreign_list list = {0};
    RS_TRY(rs_dialect_list(dialect, space, &list));
    rs_status status = begin(&t);
    for (int r = 0; r < t.role_count && status == RS_OK; r++)
        for (size_t i = 0; i < list.count && status == RS_OK; i++)
            status = add_foreign(&t, &list.items[i], t.roles[r]);
    if (status == RS_OK)
        status = add_ties(&t, &list);
    if (status == RS_OK)
        status = keep_others(&t);
    if (status == RS_OK)
        status = regroup_out(&t, &list);
    rs_foreign_list_fini(&list);
    return t.to != NULL ? end(&t, status, out) : status;
}
