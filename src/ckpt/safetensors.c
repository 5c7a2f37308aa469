/*
 * Reading safetensors: 8 bytes of length, a JSON header, then the tensors without gaps.
 *
 * The header may have 100 million bytes and a million tensors, and comes from strangers. It is read
 * by a scanner for the one shape of JSON that the format allows, in place: names are unescaped into
 * the buffer, so memory is the header plus what the catalog keeps, and a file that nests or repeats
 * itself gains nothing.
 *
 * Invariants (stricter than the reference reader where that accepts what it cannot mean):
 * 1. The header is UTF-8 and starts with '{'; behind its object stands only white space.
 * 2. No name and no field stands twice. Numbers are plain digits that fit 64 bits.
 * 3. The tensors' ranges, sorted, begin at 0, meet without gap or overlap, and end where the file
 *    ends; each has exactly the bytes that its shape and type need.
 * 4. A file that holds slices of tensors (written by a distributed save) is refused: its shapes are
 *    not those of the tensors.
 *
 * Specification: docs/formats/safetensors.md.
 */
#include "ckpt/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "ckpt/format.h"

#define HEADER_MOST 100000000
#define SKIP_DEPTH 8

typedef struct tensor {
    const char *name;
    rs_dtype dtype;
    int ndim;
    int64_t shape[RS_MAX_DIMS];
    int64_t begin;
    int64_t end;
    int64_t at; /* byte of the file where its entry stands */
} tensor;

typedef struct scanner {
    rs_catalog *catalog;
    int file;
    char *text; /* with a NUL behind */
    size_t length;
    size_t at;
    rs_names names;
    tensor *items;
    size_t count;
    size_t capacity;
    json_t *metadata;
    bool extra_fields;
} scanner;

#define FAIL(s, ...)                                                                               \
    do {                                                                                           \
        (void)rs_files_malformed(                                                                  \
            (s)->catalog->files, (s)->file, (int64_t)(8 + (s)->at), __VA_ARGS__);                  \
        return RS_ERR_MALFORMED;                                                                   \
    } while (0)

static void skip_blank(scanner *s)
{
    while (s->at < s->length && strchr(" \t\r\n", s->text[s->at]) != NULL)
        s->at++;
}

static bool next_is(scanner *s, char c)
{
    skip_blank(s);
    if (s->at >= s->length || s->text[s->at] != c)
        return false;
    s->at++;
    return true;
}

static rs_status expect(scanner *s, char c)
{
    if (!next_is(s, c))
        FAIL(s, "the header's JSON: '%c' is wanted", c);
    return RS_OK;
}

static rs_status hex4(scanner *s, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        char c = s->at < s->length ? s->text[s->at] : 0;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16)
            FAIL(s, "the header's JSON: four hexadecimal digits are wanted");
        *out = *out << 4 | digit;
    }
    return RS_OK;
}

static size_t put_utf8(char *to, uint32_t c)
{
    if (c < 0x80) {
        to[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        to[0] = (char)(0xc0 | c >> 6);
        to[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        to[0] = (char)(0xe0 | c >> 12);
        to[1] = (char)(0x80 | (c >> 6 & 0x3f));
        to[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    to[0] = (char)(0xf0 | c >> 18);
    to[1] = (char)(0x80 | (c >> 12 & 0x3f));
    to[2] = (char)(0x80 | (c >> 6 & 0x3f));
    to[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

/* What stands behind a backslash; it is written to `to`, which lies before it in the buffer. */
static rs_status escape(scanner *s, char *to, size_t *bytes)
{
    static const char from[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
    char c = s->at < s->length ? s->text[s->at++] : 0;
    const char *found = c != 0 ? strchr(from, c) : NULL;
    *bytes = 1;
    if (found != NULL) {
        *to = plain[found - from];
        return RS_OK;
    }
    if (c != 'u')
        FAIL(s, "the header's JSON: an unknown escape");
    uint32_t code, low;
    RS_TRY(hex4(s, &code));
    if (code >= 0xd800 && code < 0xdc00) {
        if (s->at + 1 >= s->length || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u')
            FAIL(s, "the header's JSON: half of a surrogate pair");
        s->at += 2;
        RS_TRY(hex4(s, &low));
        if (low < 0xdc00 || low > 0xdfff)
            FAIL(s, "the header's JSON: half of a surrogate pair");
        code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
    } else if (code >= 0xdc00 && code <= 0xdfff) {
        FAIL(s, "the header's JSON: half of a surrogate pair");
    }
    if (code == 0)
        FAIL(s, "the header's JSON: a zero character in a text");
    *bytes = put_utf8(to, code);
    return RS_OK;
}

/* A text, unescaped where it stands and closed with a NUL. */
static rs_status text(scanner *s, const char **out)
{
    RS_TRY(expect(s, '"'));
    char *to = s->text + s->at;
    *out = to;
    while (s->at < s->length && s->text[s->at] != '"') {
        unsigned char c = (unsigned char)s->text[s->at++];
        if (c < 0x20)
            FAIL(s, "the header's JSON: a control character in a text");
        if (c != '\\') {
            *to++ = (char)c;
            continue;
        }
        size_t bytes;
        char escaped[4];
        RS_TRY(escape(s, escaped, &bytes));
        memcpy(to, escaped, bytes);
        to += bytes;
    }
    if (s->at >= s->length)
        FAIL(s, "the header's JSON: a text without end");
    s->at++;
    *to = 0;
    return RS_OK;
}

static rs_status number(scanner *s, int64_t *out)
{
    skip_blank(s);
    size_t start = s->at;
    *out = 0;
    while (s->at < s->length && s->text[s->at] >= '0' && s->text[s->at] <= '9') {
        int64_t ten;
        if (!rs_mul_fits(*out, 10, &ten) || !rs_add_fits(ten, s->text[s->at] - '0', out))
            FAIL(s, "a number that does not fit 63 bits");
        s->at++;
    }
    if (s->at == start || (s->text[start] == '0' && s->at > start + 1) ||
        (s->at < s->length && strchr(".eE-+", s->text[s->at]) != NULL))
        FAIL(s, "a whole number that is not negative is wanted");
    return RS_OK;
}

/* Any JSON value, of a field that we do not know. */
static rs_status skip(scanner *s, int depth)
{
    const char *ignored;
    skip_blank(s);
    char c = s->at < s->length ? s->text[s->at] : 0;
    if (depth > SKIP_DEPTH)
        FAIL(s, "the header's JSON nests too deep");
    if (c == '"')
        return text(s, &ignored);
    if (c == '{' || c == '[') {
        char close = c == '{' ? '}' : ']';
        s->at++;
        if (next_is(s, close))
            return RS_OK;
        do {
            if (c == '{') {
                RS_TRY(text(s, &ignored));
                RS_TRY(expect(s, ':'));
            }
            RS_TRY(skip(s, depth + 1));
        } while (next_is(s, ','));
        return expect(s, close);
    }
    size_t start = s->at;
    while (s->at < s->length && strchr(",]} \t\r\n", s->text[s->at]) == NULL)
        s->at++;
    char *end;
    size_t length = s->at - start;
    const char *word = s->text + start;
    bool known = (length == 4 && strncmp(word, "true", 4) == 0) ||
                 (length == 4 && strncmp(word, "null", 4) == 0) ||
                 (length == 5 && strncmp(word, "false", 5) == 0);
    if (length == 0 || (!known && (strtod(word, &end), end != word + length)))
        FAIL(s, "the header's JSON: a value is wanted");
    return RS_OK;
}

/* "[1,2,3]", at most `most` numbers. */
static rs_status numbers(scanner *s, int64_t *out, int most, int *count)
{
    *count = 0;
    RS_TRY(expect(s, '['));
    if (next_is(s, ']'))
        return RS_OK;
    do {
        if (*count == most)
            FAIL(s, "more than %d numbers in a list", most);
        RS_TRY(number(s, &out[(*count)++]));
    } while (next_is(s, ','));
    return expect(s, ']');
}

/* The types that take less than a byte are shown as torch shows them: packed along the last
 * dimension. Gives the bits of one logical element. */
static rs_status pack(scanner *s, tensor *t, int64_t *bits)
{
    int64_t together = t->dtype == RS_DTYPE_F4X2                                          ? 2
                       : t->dtype == RS_DTYPE_F6_E2M3X4 || t->dtype == RS_DTYPE_F6_E3M2X4 ? 4
                                                                                          : 1;
    *bits = (int64_t)rs_dtype_size(t->dtype) * 8 / together;
    if (together == 1)
        return RS_OK;
    if (t->ndim == 0 || t->shape[t->ndim - 1] % together != 0)
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "%s: \"%s\": the last dimension of a tensor of %s is no multiple of %" PRId64,
            rs_files_path(s->catalog->files, s->file), t->name, rs_dtype_name(t->dtype), together);
    t->shape[t->ndim - 1] /= together;
    return RS_OK;
}

/* The bytes that shape and type need are those that the offsets give. */
static rs_status check_size(scanner *s, tensor *t)
{
    int64_t bits, elements = 1;
    int64_t logical[RS_MAX_DIMS];
    memcpy(logical, t->shape, sizeof logical);
    RS_TRY(pack(s, t, &bits));
    for (int d = 0; d < t->ndim; d++)
        if (!rs_mul_fits(elements, logical[d], &elements))
            FAIL(s, "the shape of \"%s\" overflows 64 bits", t->name);
    if (!rs_mul_fits(elements, bits, &bits) || bits % 8 != 0)
        FAIL(s, "the shape of \"%s\" does not give whole bytes", t->name);
    if (t->end < t->begin || t->end - t->begin != bits / 8)
        FAIL(s, "\"%s\" needs %" PRId64 " bytes, its offsets give [%" PRId64 ", %" PRId64 ")",
            t->name, bits / 8, t->begin, t->end);
    return RS_OK;
}

static rs_status dtype_of(scanner *s, tensor *t)
{
    const char *tag;
    RS_TRY(text(s, &tag));
    t->dtype = rs_dtype_parse(tag);
    /* The names that PyTorch and people use are none of this format. */
    bool ours = t->dtype != RS_DTYPE_NONE && t->dtype != RS_DTYPE_C32 && t->dtype != RS_DTYPE_C128;
    if (!ours || strcmp(rs_dtype_name(t->dtype), tag) == 0 ||
        strspn(tag, "abcdefghijklmnopqrst") > 0)
        FAIL(s, "unknown dtype \"%.40s\"", tag);
    return RS_OK;
}

static rs_status tensor_entry(scanner *s, const char *name)
{
    tensor t = {.name = name, .at = (int64_t)(8 + s->at)};
    int64_t offsets[2];
    int count = 0;
    bool has_dtype = false, has_shape = false, has_offsets = false;
    RS_TRY(expect(s, '{'));
    if (!next_is(s, '}')) {
        do {
            const char *field;
            RS_TRY(text(s, &field));
            RS_TRY(expect(s, ':'));
            bool *has = strcmp(field, "dtype") == 0          ? &has_dtype
                        : strcmp(field, "shape") == 0        ? &has_shape
                        : strcmp(field, "data_offsets") == 0 ? &has_offsets
                                                             : NULL;
            if (has == NULL) {
                s->extra_fields = true;
                RS_TRY(skip(s, 0));
                continue;
            }
            if (*has)
                FAIL(s, "\"%s\" stands twice in the entry of \"%s\"", field, name);
            *has = true;
            if (has == &has_dtype)
                RS_TRY(dtype_of(s, &t));
            else if (has == &has_shape)
                RS_TRY(numbers(s, t.shape, RS_MAX_DIMS, &t.ndim));
            else
                RS_TRY(numbers(s, offsets, 2, &count));
        } while (next_is(s, ','));
        RS_TRY(expect(s, '}'));
    }
    if (!has_dtype || !has_shape || !has_offsets || count != 2)
        FAIL(s, "the entry of \"%s\" lacks dtype, shape, or two data_offsets", name);
    t.begin = offsets[0];
    t.end = offsets[1];
    RS_TRY(check_size(s, &t));
    RS_TRY(RS_LIST_RESERVE_ONE(s));
    s->items[s->count++] = t;
    return RS_OK;
}

static rs_status metadata_entry(scanner *s)
{
    RS_TRY(expect(s, '{'));
    if (next_is(s, '}'))
        return RS_OK;
    do {
        const char *key, *value;
        RS_TRY(text(s, &key));
        RS_TRY(expect(s, ':'));
        RS_TRY(text(s, &value));
        if (strcmp(key, "DCP_SHARDING_INFO") == 0)
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "%s: holds slices of tensors (DCP_SHARDING_INFO), not whole ones",
                rs_files_path(s->catalog->files, s->file));
        if (s->metadata == NULL)
            continue;
        if (json_object_get(s->metadata, key) != NULL)
            FAIL(s, "\"%.60s\" stands twice in __metadata__", key);
        if (json_object_set_new(s->metadata, key, json_string(value)) != 0)
            return rs_error_set(RS_ERR_NO_MEMORY, "cannot keep the metadata");
    } while (next_is(s, ','));
    return expect(s, '}');
}

static rs_status scan(scanner *s)
{
    int found;
    if (s->length == 0 || s->text[0] != '{')
        FAIL(s, "the header does not begin with '{'");
    RS_TRY(expect(s, '{'));
    if (!next_is(s, '}')) {
        do {
            const char *name;
            RS_TRY(text(s, &name));
            RS_TRY(expect(s, ':'));
            RS_TRY(rs_names_add(&s->names, name, (int)s->count, &found));
            if (found >= 0)
                FAIL(s, "\"%.200s\" stands twice in the header", name);
            if (strcmp(name, "__metadata__") == 0)
                RS_TRY(metadata_entry(s));
            else
                RS_TRY(tensor_entry(s, name));
        } while (next_is(s, ','));
        RS_TRY(expect(s, '}'));
    }
    skip_blank(s);
    if (s->at != s->length)
        FAIL(s, "something stands behind the header's object");
    return RS_OK;
}

static bool is_utf8(const unsigned char *p, size_t length)
{
    for (size_t i = 0; i < length;) {
        size_t more = p[i] < 0x80 ? 0 : p[i] < 0xc2 ? 4 : p[i] < 0xe0 ? 1 : p[i] < 0xf0 ? 2 : 3;
        if (more > 3 || p[i] > 0xf4 || more >= length - i)
            return false;
        uint32_t code = more == 0 ? p[i] : p[i] & (0x3fu >> more);
        for (size_t k = 1; k <= more; k++) {
            if ((p[i + k] & 0xc0) != 0x80)
                return false;
            code = code << 6 | (p[i + k] & 0x3fu);
        }
        if ((more == 2 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) ||
            (more == 3 && (code < 0x10000 || code > 0x10ffff)))
            return false;
        i += more + 1;
    }
    return true;
}

static int by_range(const void *a, const void *b)
{
    const tensor *x = *(const tensor *const *)a, *y = *(const tensor *const *)b;
    if (x->begin != y->begin)
        return rs_compare(x->begin, y->begin);
    return rs_compare(x->end, y->end);
}

/* The ranges tile the rest of the file. */
static rs_status check_tiling(scanner *s, int64_t data_bytes)
{
    const tensor **order = rs_calloc(s->count, sizeof *order);
    if (order == NULL)
        return rs_error_memory(s->count * sizeof *order);
    for (size_t i = 0; i < s->count; i++)
        order[i] = &s->items[i];
    if (s->count > 0)
        qsort(order, s->count, sizeof *order, by_range);
    int64_t end = 0;
    rs_status status = RS_OK;
    for (size_t i = 0; i < s->count && status == RS_OK; i++) {
        if (order[i]->begin != end)
            status = rs_files_malformed(s->catalog->files, s->file, order[i]->at,
                "\"%s\" begins at byte %" PRId64 " of the data, %s", order[i]->name,
                order[i]->begin,
                order[i]->begin > end ? "which leaves a gap" : "inside the tensor before it");
        end = order[i]->end;
    }
    free(order);
    RS_TRY(status);
    if (end != data_bytes)
        return rs_files_malformed(s->catalog->files, s->file, (int64_t)(8 + s->length) + end,
            end > data_bytes ? "%" PRId64 " bytes of its tensors are missing"
                             : "%" PRId64 " bytes behind its last tensor",
            end > data_bytes ? end - data_bytes : data_bytes - end);
    return RS_OK;
}

/* save_model of the Python package notes names that it left out: {"left out": "kept"}. */
static rs_status add_left_out(scanner *s)
{
    const char *key;
    json_t *value;
    json_object_foreach(s->metadata, key, value)
    {
        int kept = rs_catalog_find(s->catalog, json_string_value(value), "param");
        if (kept >= 0 && strcmp(key, "format") != 0 &&
            rs_catalog_find(s->catalog, key, "param") < 0)
            RS_TRY(rs_catalog_alias(s->catalog, key, kept));
    }
    return RS_OK;
}

static rs_status enter_tensors(scanner *s)
{
    int64_t data = (int64_t)(8 + s->length);
    for (size_t i = 0; i < s->count; i++) {
        const tensor *t = &s->items[i];
        int id;
        rs_status status =
            rs_catalog_add(s->catalog, t->name, "param", t->dtype, t->ndim, t->shape, &id);
        if (status != RS_OK)
            return rs_files_context(s->catalog->files, s->file, status);
        RS_TRY(rs_catalog_whole(s->catalog, id, 0, s->file, data + t->begin));
    }
    if (s->extra_fields)
        RS_TRY(rs_catalog_warn(s->catalog, "%s: its header has fields that are unknown",
            rs_files_path(s->catalog->files, s->file)));
    return s->metadata != NULL ? add_left_out(s) : RS_OK;
}

static rs_status read_header(scanner *s)
{
    unsigned char head[8];
    rs_files *files = s->catalog->files;
    int64_t size = rs_files_size(files, s->file);
    if (size < 8)
        return rs_files_malformed(files, s->file, 0, "%" PRId64 " bytes are too few", size);
    RS_TRY(rs_files_read(files, s->file, 0, head, sizeof head));
    uint64_t length = rs_le64(head);
    if (length > HEADER_MOST)
        return rs_files_malformed(files, s->file, 0,
            "a header of %" PRIu64 " bytes, at most %d are allowed", length, HEADER_MOST);
    if (length > (uint64_t)size - 8)
        return rs_files_malformed(
            files, s->file, 0, "a header of %" PRIu64 " bytes in a file of %" PRId64, length, size);
    s->length = (size_t)length;
    s->text = rs_calloc(s->length + 1, 1);
    if (s->text == NULL)
        return rs_error_memory(s->length + 1);
    RS_TRY(rs_files_read(files, s->file, 8, s->text, s->length));
    if (!is_utf8((const unsigned char *)s->text, s->length))
        return rs_files_malformed(files, s->file, 8, "the header is no UTF-8");
    if (memchr(s->text, 0, s->length) != NULL)
        return rs_files_malformed(files, s->file, 8, "a zero byte in the header");
    return RS_OK;
}

rs_status rs_safetensors_enter(rs_catalog *catalog, int file, json_t *metadata)
{
    scanner s = {.catalog = catalog, .file = file, .metadata = metadata};
    rs_status status;
    RS_TRY_GOTO(read_header(&s), out);
    RS_TRY_GOTO(scan(&s), out);
    RS_TRY_GOTO(check_tiling(&s, rs_files_size(catalog->files, file) - 8 - (int64_t)s.length), out);
    RS_TRY_GOTO(enter_tensors(&s), out);
out:
    free(s.text);
    free(s.items);
    rs_names_fini(&s.names);
    return status;
}

bool rs_safetensors_content(const rs_place *place)
{
    return !place->folder && place->bytes >= 9 && rs_le64(place->head) <= HEADER_MOST &&
           place->head[8] == '{';
}

bool rs_safetensors_probe(const rs_place *place)
{
    if (place->folder || place->bytes < 9)
        return false;
    const char *dot = strrchr(place->path, '.');
    return rs_safetensors_content(place) || (dot != NULL && strcmp(dot, ".safetensors") == 0);
}

rs_status rs_safetensors_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options)
{
    (void)options;
    int file;
    RS_TRY(rs_files_add(catalog->files, place->path, &file));
    json_t *metadata = json_object();
    RS_TRY(rs_catalog_extra(catalog, "metadata", metadata));
    return rs_safetensors_enter(catalog, file, metadata);
}
