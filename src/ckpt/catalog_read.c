/*
 * Reading boxes of a catalog's entries, and hashing them.
 *
 * The part of a piece that meets the wanted box is a copy from strides in a file to strides in
 * memory. Neighbouring dimensions that are contiguous on both sides are merged first. What is left
 * is read in the largest reads that waste little: a long run at once; short runs together with the
 * gaps between them if those are no larger than the runs; else dimension by dimension.
 *
 * Invariants:
 * 1. Every element of the wanted box is written exactly once (the catalog is complete).
 * 2. Memory beside the caller's buffer is the scratch's: a span for gathering and a few blocks for
 *    rounding, whatever the size of a tensor.
 * 3. Bytes of gaps are read only between runs of less than a page or two, and only up to the number
 *    of the wanted ones: a disk would give them anyway.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>
#include <xxhash.h>
#include <zlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "ckpt/cast.h"
#include "ckpt/catalog.h"

#define SPAN ((int64_t)4 << 20)
#define BLOCK ((int64_t)1 << 20) /* bytes, of rounding */
#define RUN_LONG ((int64_t)8 << 10)
#define CHUNK ((int64_t)1 << 20) /* elements */

/* A strided copy from a file (or the catalog's own bytes) to memory. */
typedef struct gather {
    const rs_catalog *catalog;
    rs_scratch *scratch;
    int file;
    int64_t element; /* bytes */
} gather;

typedef struct region {
    int ndim;
    int64_t extent[RS_MAX_DIMS];
    int64_t from[RS_MAX_DIMS]; /* byte strides in the file */
    int64_t to[RS_MAX_DIMS];   /* byte strides in memory */
} region;

/* Leaves out dimensions of one element and merges what is contiguous on both sides. */
static region merged(const region *r)
{
    region out = {0};
    for (int d = 0; d < r->ndim; d++) {
        if (r->extent[d] == 1)
            continue;
        int last = out.ndim - 1;
        if (last >= 0 && out.from[last] == r->from[d] * r->extent[d] &&
            out.to[last] == r->to[d] * r->extent[d]) {
            out.extent[last] *= r->extent[d];
            out.from[last] = r->from[d];
            out.to[last] = r->to[d];
            continue;
        }
        out.extent[out.ndim] = r->extent[d];
        out.from[out.ndim] = r->from[d];
        out.to[out.ndim++] = r->to[d];
    }
    return out;
}

static void scatter(
    const region *r, int dim, int64_t element, const unsigned char *from, unsigned char *to)
{
    if (dim == r->ndim) {
        memcpy(to, from, (size_t)element);
        return;
    }
    if (dim == r->ndim - 1 && r->from[dim] == element && r->to[dim] == element) {
        memcpy(to, from, (size_t)(element * r->extent[dim]));
        return;
    }
    for (int64_t i = 0; i < r->extent[dim]; i++)
        scatter(r, dim + 1, element, from + i * r->from[dim], to + i * r->to[dim]);
}

static rs_status fetch(const gather *g, int64_t offset, void *to, int64_t bytes)
{
    if (g->file != RS_PIECE_INLINE)
        return rs_files_read(g->catalog->files, g->file, offset, to, (size_t)bytes);
    memcpy(to, g->catalog->inlined.items + offset, (size_t)bytes);
    return RS_OK;
}

static int64_t span_of(const rs_scratch *scratch)
{
    return scratch->span > 0 ? scratch->span : SPAN;
}

static int64_t block_of(const rs_scratch *scratch)
{
    return scratch->block > 0 ? scratch->block : BLOCK;
}

static rs_status copy_region(const gather *g, const region *r, int64_t offset, unsigned char *to)
{
    int64_t wanted = g->element, span = g->element, most = span_of(g->scratch);
    int widest = 0;
    for (int d = 0; d < r->ndim; d++) {
        wanted *= r->extent[d];
        span += (r->extent[d] - 1) * r->from[d];
        if (r->from[d] > r->from[widest])
            widest = d;
    }
    bool plain =
        r->ndim == 0 || (r->ndim == 1 && r->from[0] == g->element && r->to[0] == g->element);
    if (plain)
        return fetch(g, offset, to, wanted);
    bool run_is_long = r->from[r->ndim - 1] == g->element && r->to[r->ndim - 1] == g->element &&
                       r->extent[r->ndim - 1] * g->element >= RUN_LONG;
    if (!run_is_long && span <= most && span <= (r->ndim == 1 ? 16 : 2) * wanted) {
        unsigned char **room = &g->scratch->gather;
        if (*room == NULL && (*room = rs_calloc((size_t)most, 1)) == NULL)
            return rs_error_memory((size_t)most);
        RS_TRY(fetch(g, offset, *room, span));
        scatter(r, 0, g->element, *room, to);
        return RS_OK;
    }
    /* Cut along the dimension that reaches farthest in the file: the last one in halves while its
     * elements lie close, any other index by index. */
    region part = *r;
    if (r->ndim == 1 && span > most && span <= 16 * wanted) {
        int64_t half = r->extent[widest] / 2;
        part.extent[widest] = half;
        RS_TRY(copy_region(g, &part, offset, to));
        part.extent[widest] = r->extent[widest] - half;
        return copy_region(g, &part, offset + half * r->from[widest], to + half * r->to[widest]);
    }
    part.ndim--;
    for (int d = widest; d < part.ndim; d++) {
        part.extent[d] = r->extent[d + 1];
        part.from[d] = r->from[d + 1];
        part.to[d] = r->to[d + 1];
    }
    for (int64_t i = 0; i < r->extent[widest]; i++)
        RS_TRY(copy_region(g, &part, offset + i * r->from[widest], to + i * r->to[widest]));
    return RS_OK;
}

static void reverse(unsigned char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes / 2; i++) {
        unsigned char c = p[i];
        p[i] = p[bytes - 1 - i];
        p[bytes - 1 - i] = c;
    }
}

/* Flips the sign of a float that ends with its sign bit. */
static void negate(unsigned char *p, size_t bytes)
{
    p[bytes - 1] ^= 0x80;
}

/* Turns stored elements into meant ones, in place. */
static void apply_flags(const region *r, int dim, rs_dtype dtype, unsigned flags, unsigned char *p)
{
    if (dim < r->ndim) {
        for (int64_t i = 0; i < r->extent[dim]; i++)
            apply_flags(r, dim + 1, dtype, flags, p + i * r->to[dim]);
        return;
    }
    size_t size = rs_dtype_size(dtype);
    bool complex = dtype == RS_DTYPE_C32 || dtype == RS_DTYPE_C64 || dtype == RS_DTYPE_C128;
    size_t part = complex ? size / 2 : size;
    for (size_t at = 0; at < size; at += part) {
        if (flags & RS_PIECE_SWAPPED)
            reverse(p + at, part);
        if (flags & RS_PIECE_NEGATED)
            negate(p + at, part);
    }
    if (flags & RS_PIECE_CONJUGATED)
        negate(p + part, part);
}

/* True if the piece is of copy 0 too, the same bytes of a file. `*at` is where the search among the
 * entry's pieces, which are in order, goes on. */
static bool is_of_first(
    const rs_catalog *catalog, const rs_catalog_entry *entry, const rs_piece *piece, size_t *at)
{
    for (; *at < entry->piece_count; (*at)++) {
        const rs_stored_piece *stored = &catalog->pieces.items[entry->first_piece + *at];
        const int64_t *numbers = catalog->numbers.items + stored->numbers;
        int d = 0;
        while (d < piece->box.ndim && numbers[d] == piece->box.offset[d])
            d++;
        if (stored->copy > 0 || (d < piece->box.ndim && numbers[d] > piece->box.offset[d]))
            return false;
        if (d == piece->box.ndim)
            return stored->file == piece->file && stored->offset == piece->offset &&
                   memcmp(numbers + d, piece->box.extent, sizeof *numbers * (size_t)d) == 0;
    }
    return false;
}

/* Reads `box` of one copy from its pieces, packed; `beside`: less what copy 0 has from the same
 * place. */
static rs_status read_pieces(const rs_catalog *catalog, rs_scratch *scratch,
    const rs_catalog_entry *entry, int copy, bool beside, const rs_box *box, unsigned char *out)
{
    size_t at_first = 0;
    gather g = {
        .catalog = catalog, .scratch = scratch, .element = (int64_t)rs_dtype_size(entry->is.dtype)};
    int64_t packed[RS_MAX_DIMS], step = g.element;
    rs_status status = RS_OK;
    for (int d = box->ndim - 1; d >= 0; d--) {
        packed[d] = step;
        step *= box->extent[d];
    }
    for (size_t i = 0; i < entry->piece_count && status == RS_OK; i++) {
        const rs_stored_piece *stored = &catalog->pieces.items[entry->first_piece + i];
        rs_box both;
        if (stored->copy != copy)
            continue;
        rs_piece piece = rs_catalog_piece_at(catalog, entry->first_piece + i);
        if (beside && is_of_first(catalog, entry, &piece, &at_first))
            continue;
        if (!rs_box_intersect(&piece.box, box, &both))
            continue;
        region r = {.ndim = box->ndim};
        int64_t offset = piece.offset, at = 0;
        for (int d = 0; d < box->ndim; d++) {
            r.extent[d] = both.extent[d];
            r.from[d] = piece.stride[d];
            r.to[d] = packed[d];
            offset += (both.offset[d] - piece.box.offset[d]) * piece.stride[d];
            at += (both.offset[d] - box->offset[d]) * packed[d];
        }
        g.file = piece.file;
        region simple = merged(&r);
        status = copy_region(&g, &simple, offset, out + at);
        if (status == RS_OK && piece.flags != 0)
            apply_flags(&simple, 0, entry->is.dtype, piece.flags, out + at);
    }
    return status;
}

static rs_status read_plain(const rs_catalog *catalog, rs_scratch *scratch, int id, int copy,
    const rs_box *box, unsigned char *out);

/* Calls for the parts of `box` in row-major order, each at most `most` elements; the packed bytes
 * of the parts behind each other are the packed bytes of the box. */
typedef rs_status (*part_function)(void *context, const rs_box *part, int64_t first);

static rs_status for_parts(const rs_box *box, int64_t most, part_function function, void *context)
{
    int64_t volume = rs_box_volume(box);
    for (int64_t at = 0; at < volume; at += most) {
        rs_box parts[2 * RS_MAX_DIMS];
        int count = rs_box_linear_range(box, at, rs_min64(at + most, volume), parts);
        int64_t first = at;
        for (int i = 0; i < count; i++) {
            RS_TRY(function(context, &parts[i], first));
            first += rs_box_volume(&parts[i]);
        }
    }
    return RS_OK;
}

typedef struct derive {
    const rs_catalog *catalog;
    rs_scratch *scratch;
    int id;
    rs_dtype to;
    unsigned char *out;
    unsigned char *block; /* of the source */
} derive;

/* From the entry `id` itself. */
static rs_status cast_part(void *context, const rs_box *part, int64_t first)
{
    derive *d = context;
    rs_dtype from = rs_catalog_get(d->catalog, d->id)->is.dtype;
    RS_TRY(read_plain(d->catalog, d->scratch, d->id, -1, part, d->block));
    rs_cast(
        from, d->block, d->to, d->out + (size_t)first * rs_dtype_size(d->to), rs_box_volume(part));
    return RS_OK;
}

static rs_status average_part(void *context, const rs_box *part, int64_t first)
{
    derive *d = context;
    const rs_catalog_entry *entry = rs_catalog_get(d->catalog, d->id);
    rs_dtype dtype = entry->is.dtype;
    double *sums = d->scratch->sums;
    int64_t count = rs_box_volume(part);
    memset(sums, 0, sizeof *sums * (size_t)count);
    for (int copy = 0; copy < entry->is.copies; copy++) {
        RS_TRY(read_pieces(d->catalog, d->scratch, entry, copy, false, part, d->block));
        for (int64_t i = 0; i < count; i++)
            sums[i] += rs_cast_element(dtype, d->block, i);
    }
    for (int64_t i = 0; i < count; i++)
        sums[i] /= entry->is.copies;
    rs_cast(RS_DTYPE_F64, sums, dtype, d->out + (size_t)first * rs_dtype_size(dtype), count);
    return RS_OK;
}

/* "[3,7]": the index of a box of one element. */
static const char *index_text(const rs_box *box, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int d = 0; d < box->ndim && used < size; d++)
        used += (size_t)snprintf(
            text + used, size - used, "%s%" PRId64, d > 0 ? "," : "", box->offset[d]);
    if (used < size)
        snprintf(text + used, size - used, "]");
    return text;
}

/* The file that has an element (a box of one) of a copy. */
static const char *file_of(
    const rs_catalog *catalog, const rs_catalog_entry *entry, int copy, const rs_box *element)
{
    for (size_t i = 0; i < entry->piece_count; i++) {
        rs_piece piece = rs_catalog_piece_at(catalog, entry->first_piece + i);
        rs_box both;
        if (piece.copy == copy && piece.file != RS_PIECE_INLINE &&
            rs_box_intersect(&piece.box, element, &both))
            return rs_files_path(catalog->files, piece.file);
    }
    return "(the pickle)";
}

/* Copy 0, if all others have the same bytes. */
static rs_status equal_part(void *context, const rs_box *part, int64_t first)
{
    derive *d = context;
    const rs_catalog_entry *entry = rs_catalog_get(d->catalog, d->id);
    size_t size = rs_dtype_size(entry->is.dtype), bytes = size * (size_t)rs_box_volume(part);
    unsigned char *out = d->out + size * (size_t)first;
    RS_TRY(read_pieces(d->catalog, d->scratch, entry, 0, false, part, out));
    for (int copy = 1; copy < entry->is.copies; copy++) {
        char index[128];
        int64_t i = 0;
        rs_box at[2 * RS_MAX_DIMS];
        memcpy(d->block, out, bytes);
        RS_TRY(read_pieces(d->catalog, d->scratch, entry, copy, true, part, d->block));
        if (memcmp(out, d->block, bytes) == 0)
            continue;
        while (memcmp(out + size * (size_t)i, d->block + size * (size_t)i, size) == 0)
            i++;
        rs_box_linear_range(part, i, i + 1, at);
        return rs_error_set(RS_ERR_MISMATCH,
            "its copies must be equal, and are not: at %s %s has %.9g, %s has %.9g",
            index_text(at, index, sizeof index), file_of(d->catalog, entry, 0, at),
            rs_cast_element(entry->is.dtype, out, i), file_of(d->catalog, entry, copy, at),
            rs_cast_element(entry->is.dtype, d->block, i));
    }
    return RS_OK;
}

/* Reads in blocks, each made of a block of a source: entry `id` as `dtype`, or as its copies make
 * it. */
static rs_status read_blocks(const rs_catalog *catalog, rs_scratch *scratch, int id,
    part_function function, rs_dtype dtype, const rs_box *box, unsigned char *out)
{
    bool average = function == average_part;
    int64_t bytes = block_of(scratch);
    size_t widest = average ? sizeof(double) : rs_dtype_size(rs_catalog_get(catalog, id)->is.dtype);
    int level = scratch->depth < RS_SCRATCH_BLOCKS ? scratch->depth : RS_SCRATCH_BLOCKS - 1;
    unsigned char **block = &scratch->blocks[level];
    if (*block == NULL)
        *block = rs_calloc((size_t)bytes, 1);
    if (average && scratch->sums == NULL)
        scratch->sums = rs_calloc((size_t)bytes, 1);
    if (*block == NULL || (average && scratch->sums == NULL))
        return rs_error_memory((size_t)bytes);
    derive d = {
        .catalog = catalog, .scratch = scratch, .id = id, .to = dtype, .out = out, .block = *block};
    scratch->depth = level + 1;
    rs_status status = for_parts(box, bytes / (int64_t)widest, function, &d);
    scratch->depth = level;
    return status;
}

static rs_status read_plain(const rs_catalog *catalog, rs_scratch *scratch, int id, int copy,
    const rs_box *box, unsigned char *out)
{
    const rs_catalog_entry *entry = rs_catalog_get(catalog, id);
    while (entry->how == RS_ENTRY_ALIAS) {
        id = entry->source;
        entry = rs_catalog_get(catalog, id);
    }
    if (entry->how == RS_ENTRY_ROUNDED)
        return read_blocks(catalog, scratch, entry->source, cast_part, entry->is.dtype, box, out);
    if (entry->how == RS_ENTRY_AVERAGE && copy < 0)
        return read_blocks(catalog, scratch, id, average_part, entry->is.dtype, box, out);
    if (entry->how == RS_ENTRY_EQUAL && copy < 0 && entry->is.copies > 1)
        return read_blocks(catalog, scratch, id, equal_part, entry->is.dtype, box, out);
    return read_pieces(catalog, scratch, entry, copy < 0 ? 0 : copy, false, box, out);
}

rs_status rs_catalog_read_as(const rs_catalog *catalog, rs_scratch *scratch, int id, int copy,
    rs_dtype dtype, const rs_box *box, void *out)
{
    if (rs_box_is_empty(box))
        return RS_OK;
    const rs_checkpoint_entry *entry = &rs_catalog_get(catalog, id)->is;
    rs_status status;
    if (dtype == entry->dtype)
        status = read_plain(catalog, scratch, id, copy, box, out);
    else if (rs_cast_is_float(dtype) && rs_cast_is_float(entry->dtype) && copy < 0)
        status = read_blocks(catalog, scratch, id, cast_part, dtype, box, out);
    else
        status = rs_error_set(RS_ERR_UNSUPPORTED, "%s cannot become %s",
            rs_dtype_name(entry->dtype), rs_dtype_name(dtype));
    return status == RS_OK ? RS_OK
                           : rs_error_context(status, "%s of \"%s\"", entry->role, entry->name);
}

rs_status rs_catalog_read(const rs_catalog *catalog, int id, int copy, const rs_box *box, void *out)
{
    rs_scratch scratch = {0};
    rs_status status = rs_catalog_read_as(
        catalog, &scratch, id, copy, rs_catalog_get(catalog, id)->is.dtype, box, out);
    rs_scratch_fini(&scratch);
    return status;
}

void rs_scratch_fini(rs_scratch *scratch)
{
    free(scratch->gather);
    free(scratch->sums);
    for (int i = 0; i < RS_SCRATCH_BLOCKS; i++)
        free(scratch->blocks[i]);
    memset(scratch, 0, sizeof *scratch);
}

typedef struct hashing {
    const rs_catalog *catalog;
    int id;
    unsigned char *buffer;
    EVP_MD_CTX *digest;
} hashing;

static rs_status hash_part(void *context, const rs_box *part, int64_t first)
{
    (void)first;
    hashing *h = context;
    size_t bytes =
        (size_t)rs_box_volume(part) * rs_dtype_size(rs_catalog_get(h->catalog, h->id)->is.dtype);
    RS_TRY(rs_catalog_read(h->catalog, h->id, -1, part, h->buffer));
    if (EVP_DigestUpdate(h->digest, h->buffer, bytes) != 1)
        return rs_error_set(RS_ERR_UNSUPPORTED, "libcrypto: SHA-256 failed");
    return RS_OK;
}

rs_status rs_catalog_hash(const rs_catalog *catalog, int id, char hex[RS_CHECKPOINT_HASH])
{
    const rs_checkpoint_entry *entry = &rs_catalog_get(catalog, id)->is;
    rs_box whole = rs_box_whole(entry->ndim, entry->shape);
    size_t count = rs_box_is_empty(&whole) ? 0 : (size_t)rs_min64(rs_box_volume(&whole), CHUNK);
    hashing h = {.catalog = catalog, .id = id, .digest = EVP_MD_CTX_new()};
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    rs_status status = RS_OK;
    h.buffer = rs_calloc(count, rs_dtype_size(entry->dtype));
    if (h.buffer == NULL || h.digest == NULL ||
        EVP_DigestInit_ex(h.digest, EVP_sha256(), NULL) != 1)
        RS_TRY_GOTO(rs_error_memory(count * rs_dtype_size(entry->dtype)), out);
    if (count > 0)
        RS_TRY_GOTO(for_parts(&whole, CHUNK, hash_part, &h), out);
    if (EVP_DigestFinal_ex(h.digest, sum, &length) != 1 || length != 32)
        RS_TRY_GOTO(rs_error_set(RS_ERR_UNSUPPORTED, "libcrypto: SHA-256 failed"), out);
    for (unsigned int i = 0; i < length; i++)
        snprintf(hex + 2 * i, 3, "%02x", sum[i]);
out:
    EVP_MD_CTX_free(h.digest);
    free(h.buffer);
    return status;
}

/* Comparing what is there twice. */

typedef struct comparing {
    const rs_catalog *catalog;
    int a, b; /* entries */
    int copy; /* of `b`; -1: as it is meant, cast to the dtype of `a` */
    unsigned char *one;
    unsigned char *other;
    unsigned char *cast;
    int64_t differences;
    rs_box first; /* one element */
    double of_one, of_other;
} comparing;

/* The copy to compare: what differs among the copies that must be equal is told by itself. */
static int copy_of(const rs_catalog *catalog, int id, int copy)
{
    return copy < 0 && rs_catalog_get(catalog, id)->how == RS_ENTRY_EQUAL ? 0 : copy;
}

static rs_status compare_part(void *context, const rs_box *part, int64_t first)
{
    (void)first;
    comparing *c = context;
    int copy = copy_of(c->catalog, c->a, c->a == c->b ? 0 : -1);
    rs_dtype dtype = rs_catalog_get(c->catalog, c->a)->is.dtype;
    rs_dtype source = rs_catalog_get(c->catalog, c->b)->is.dtype;
    size_t size = rs_dtype_size(dtype);
    int64_t count = rs_box_volume(part);
    RS_TRY(rs_catalog_read(c->catalog, c->a, copy, part, c->one));
    RS_TRY(rs_catalog_read(c->catalog, c->b, copy_of(c->catalog, c->b, c->copy), part, c->other));
    const unsigned char *other = c->other;
    if (source != dtype) {
        rs_cast(source, c->other, dtype, c->cast, count);
        other = c->cast;
    }
    if (memcmp(c->one, other, size * (size_t)count) == 0)
        return RS_OK;
    for (int64_t i = 0; i < count; i++) {
        if (memcmp(c->one + size * (size_t)i, other + size * (size_t)i, size) == 0)
            continue;
        if (c->differences++ > 0)
            continue;
        rs_box found[2 * RS_MAX_DIMS];
        rs_box_linear_range(part, i, i + 1, found);
        c->first = found[0];
        c->of_one = rs_cast_element(dtype, c->one, i);
        c->of_other = rs_cast_element(dtype, other, i);
    }
    return RS_OK;
}

static rs_status compare(comparing *c)
{
    const rs_checkpoint_entry *entry = &rs_catalog_get(c->catalog, c->a)->is;
    size_t wide = rs_dtype_size(rs_catalog_get(c->catalog, c->b)->is.dtype);
    rs_box whole = rs_box_whole(entry->ndim, entry->shape);
    c->differences = 0;
    if (rs_box_is_empty(&whole))
        return RS_OK;
    size_t count = (size_t)rs_min64(rs_box_volume(&whole), CHUNK);
    c->one = rs_calloc(count, rs_dtype_size(entry->dtype));
    c->other = rs_calloc(count, wide);
    c->cast = rs_calloc(count, rs_dtype_size(entry->dtype));
    rs_status status = RS_OK;
    if (c->one == NULL || c->other == NULL || c->cast == NULL)
        status = rs_error_memory(count * wide);
    else
        status = for_parts(&whole, CHUNK, compare_part, c);
    free(c->one);
    free(c->other);
    free(c->cast);
    return status;
}

rs_status rs_catalog_same(
    const rs_catalog *catalog, int a, int b, bool *same, char *text, size_t size)
{
    char at[128];
    const rs_checkpoint_entry *one = &rs_catalog_get(catalog, a)->is;
    const rs_checkpoint_entry *other = &rs_catalog_get(catalog, b)->is;
    *same = false;
    if (one->dtype != other->dtype || one->ndim != other->ndim ||
        memcmp(one->shape, other->shape, sizeof *one->shape * (size_t)one->ndim) != 0) {
        snprintf(text, size, "they differ in dtype or shape");
        return RS_OK;
    }
    comparing c = {.catalog = catalog, .a = a, .b = b, .copy = -1};
    RS_TRY(compare(&c));
    *same = c.differences == 0;
    if (!*same)
        snprintf(text, size, "at %s %s has %.9g, %s %.9g", index_text(&c.first, at, sizeof at),
            one->role, c.of_one, other->role, c.of_other);
    return RS_OK;
}

__attribute__((format(printf, 3, 4))) static rs_status say(
    rs_catalog_tell *tell, void *context, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return tell(context, text);
}

static rs_status check_copies(
    const rs_catalog *catalog, int id, rs_catalog_tell *tell, void *context)
{
    char at[128];
    const rs_checkpoint_entry *entry = &rs_catalog_get(catalog, id)->is;
    for (int copy = 1; copy < entry->copies; copy++) {
        comparing c = {.catalog = catalog, .a = id, .b = id, .copy = copy};
        RS_TRY(compare(&c));
        if (c.differences > 0)
            RS_TRY(say(tell, context,
                "copies of %s of \"%s\" differ in %" PRId64
                " elements: at %s copy 0 has %.9g, copy %d has %.9g",
                entry->role, entry->name, c.differences, index_text(&c.first, at, sizeof at),
                c.of_one, copy, c.of_other));
    }
    return RS_OK;
}

/* A second name with bytes of its own. */
static rs_status check_tie(const rs_catalog *catalog, int id, rs_catalog_tell *tell, void *context)
{
    char at[128];
    const rs_catalog_entry *entry = rs_catalog_get(catalog, id);
    if (entry->how != RS_ENTRY_PIECES || entry->is.alias_of == NULL)
        return RS_OK;
    int target = rs_catalog_find(catalog, entry->is.alias_of, entry->is.role);
    const rs_checkpoint_entry *other = target >= 0 ? &rs_catalog_get(catalog, target)->is : NULL;
    if (other == NULL || other->dtype != entry->is.dtype || other->ndim != entry->is.ndim ||
        memcmp(entry->is.shape, other->shape, sizeof(int64_t) * (size_t)other->ndim) != 0)
        return say(tell, context,
            "\"%s\" cannot be \"%s\" under another name: they differ in "
            "dtype or shape",
            entry->is.name, entry->is.alias_of);
    comparing c = {.catalog = catalog, .a = id, .b = target, .copy = -1};
    RS_TRY(compare(&c));
    if (c.differences > 0)
        RS_TRY(say(tell, context,
            "\"%s\" is said to be \"%s\" under another name, but %" PRId64
            " elements differ: at %s it has %.9g, the other %.9g",
            entry->is.name, entry->is.alias_of, c.differences, index_text(&c.first, at, sizeof at),
            c.of_one, c.of_other));
    return RS_OK;
}

rs_status rs_catalog_check_replicas(
    const rs_catalog *catalog, int id, rs_catalog_tell *tell, void *context)
{
    rs_entry_how how = rs_catalog_get(catalog, id)->how;
    if (how == RS_ENTRY_PIECES || how == RS_ENTRY_EQUAL)
        RS_TRY(check_copies(catalog, id, tell, context));
    return check_tie(catalog, id, tell, context);
}

static rs_status check_rounding(rs_catalog *catalog, int id)
{
    char at[128];
    const rs_catalog_entry *entry = rs_catalog_get(catalog, id);
    int master = rs_catalog_find(catalog, entry->is.name, "master");
    if (strcmp(entry->is.role, "param") != 0 || master < 0 || entry->how == RS_ENTRY_ROUNDED ||
        entry->how == RS_ENTRY_ALIAS || rs_catalog_get(catalog, master)->how == RS_ENTRY_ROUNDED)
        return RS_OK;
    const rs_checkpoint_entry *other = &rs_catalog_get(catalog, master)->is;
    if (!rs_cast_is_float(entry->is.dtype) || !rs_cast_is_float(other->dtype) ||
        entry->is.ndim != other->ndim ||
        memcmp(entry->is.shape, other->shape, sizeof(int64_t) * (size_t)other->ndim) != 0)
        return RS_OK;
    comparing c = {.catalog = catalog, .a = id, .b = master, .copy = -1};
    RS_TRY(compare(&c));
    if (c.differences > 0)
        RS_TRY(rs_catalog_warn(catalog,
            "param of \"%s\" is not its master rounded, in %" PRId64
            " elements: at %s the param has %.9g, the master rounds to %.9g",
            entry->is.name, c.differences, index_text(&c.first, at, sizeof at), c.of_one,
            c.of_other));
    return RS_OK;
}

static rs_status check_sum(rs_catalog *catalog, const rs_checksum *sum, bool *right)
{
    rs_reader reader;
    RS_TRY(
        rs_reader_init(&reader, catalog->files, sum->file, sum->offset, sum->offset + sum->bytes));
    rs_status status = RS_OK;
    uLong crc = crc32(0, NULL, 0);
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL)
        status = rs_error_memory(1);
    else
        XXH3_64bits_reset(hash);
    while (reader.position < reader.end && status == RS_OK) {
        const unsigned char *p;
        size_t part = (size_t)rs_min64((int64_t)RS_READER_WINDOW, reader.end - reader.position);
        status = rs_reader_take(&reader, part, &p);
        if (status == RS_OK && sum->is_xxh3)
            XXH3_64bits_update(hash, p, part);
        else if (status == RS_OK)
            crc = crc32(crc, p, (uInt)part);
    }
    rs_reader_fini(&reader);
    if (status == RS_OK)
        *right = (sum->is_xxh3 ? XXH3_64bits_digest(hash) : (uint32_t)crc) == sum->value;
    XXH3_freeState(hash);
    return status;
}

rs_status rs_catalog_check(rs_catalog *catalog)
{
    size_t wrong = 0;
    for (size_t i = 0; i < catalog->checksums.count; i++) {
        bool right = true;
        const rs_checksum *sum = &catalog->checksums.items[i];
        RS_TRY(check_sum(catalog, sum, &right));
        if (!right && ++wrong <= 10)
            RS_TRY(rs_catalog_warn(catalog, "%s: byte %" PRId64 ": \"%s\" %s",
                rs_files_path(catalog->files, sum->file), sum->offset, sum->label,
                sum->is_xxh3 ? "has another XXH3-64 than the manifest says: it is damaged"
                             : "has another CRC-32 than the directory says: it is damaged, or was "
                               "written with checksums off"));
    }
    if (wrong > 10)
        RS_TRY(rs_catalog_warn(catalog, "%zu more with a wrong checksum", wrong - 10));
    for (size_t id = 0; id < catalog->entries.count; id++) {
        RS_TRY(rs_catalog_check_replicas(catalog, (int)id, rs_catalog_note, catalog));
        RS_TRY(check_rounding(catalog, (int)id));
    }
    return RS_OK;
}
