#include "build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

static void grow(void **items, size_t *capacity, size_t need, size_t size)
{
    if (need <= *capacity)
        return;
    *capacity = 2 * need + 64;
    *items = realloc(*items, *capacity * size);
    assert_non_null(*items);
}

void build_bytes(build *b, const void *data, size_t bytes)
{
    if (b->length == 0 && bytes > 0 && b->capacity == 0) {
        grow((void **)&b->pickle, &b->capacity, 2, 1);
        memcpy(b->pickle, "\x80\x02", 2);
        b->length = 2;
    }
    grow((void **)&b->pickle, &b->capacity, b->length + bytes, 1);
    memcpy(b->pickle + b->length, data, bytes);
    b->length += bytes;
}

static void little(build *b, uint64_t number, size_t bytes)
{
    unsigned char out[8];
    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)(number >> (8 * i));
    build_bytes(b, out, bytes);
}

void build_dict(build *b)
{
    build_bytes(b, "}(", 2);
}

void build_dict_end(build *b)
{
    build_bytes(b, "u", 1);
}

void build_list(build *b)
{
    build_bytes(b, "](", 2);
}

void build_list_end(build *b)
{
    build_bytes(b, "e", 1);
}

void build_tuple(build *b)
{
    build_bytes(b, "(", 1);
}

void build_tuple_end(build *b)
{
    build_bytes(b, "t", 1);
}

void build_text(build *b, const char *text)
{
    build_bytes(b, "X", 1);
    little(b, strlen(text), 4);
    build_bytes(b, text, strlen(text));
}

void build_dict_of(build *b, const char *key)
{
    build_text(b, key);
    build_dict(b);
}

void build_int(build *b, int64_t integer)
{
    build_bytes(b, "\x8a\x08", 2);
    little(b, (uint64_t)integer, 8);
}

void build_float(build *b, double real)
{
    uint64_t bits;
    memcpy(&bits, &real, sizeof bits);
    build_bytes(b, "G", 1);
    for (int i = 7; i >= 0; i--)
        little(b, bits >> (8 * i) & 0xff, 1);
}

void build_bool(build *b, int on)
{
    build_bytes(b, on ? "\x88" : "\x89", 1);
}

void build_none(build *b)
{
    build_bytes(b, "N", 1);
}

void build_size(build *b, int ndim, const int64_t *shape)
{
    static const char head[] = "ctorch\nSize\n(";
    build_bytes(b, head, sizeof head - 1);
    build_tuple(b);
    for (int d = 0; d < ndim; d++)
        build_int(b, shape[d]);
    build_tuple_end(b);
    build_tuple_end(b);
    build_bytes(b, "R", 1);
}

size_t build_add_storage(build *b, const void *data, size_t bytes)
{
    grow((void **)&b->storages, &b->storage_capacity, b->count + 1, sizeof *b->storages);
    build_storage *s = &b->storages[b->count];
    s->data = malloc(bytes + 1);
    s->bytes = bytes;
    if (bytes > 0)
        memcpy(s->data, data, bytes);
    return b->count++;
}

void build_view(build *b, rs_dtype dtype, size_t storage, int64_t elements, int64_t first, int ndim,
    const int64_t *shape, const int64_t *stride)
{
    static const char head[] = "ctorch._utils\n_rebuild_tensor_v2\n(";
    static const char hooks[] = "\x89"
                                "ccollections\nOrderedDict\n)RtR";
    const char *class = dtype == RS_DTYPE_F32    ? "FloatStorage"
                        : dtype == RS_DTYPE_BF16 ? "BFloat16Storage"
                        : dtype == RS_DTYPE_F64  ? "DoubleStorage"
                        : dtype == RS_DTYPE_I64  ? "LongStorage"
                        : dtype == RS_DTYPE_C64  ? "ComplexFloatStorage"
                        : dtype == RS_DTYPE_BOOL ? "BoolStorage"
                                                 : "ByteStorage";
    char text[64];
    build_bytes(b, head, sizeof head - 1);
    build_tuple(b);
    build_text(b, "storage");
    snprintf(text, sizeof text, "ctorch\n%s\n", class);
    build_bytes(b, text, strlen(text));
    snprintf(text, sizeof text, "%zu", storage);
    build_text(b, text);
    build_text(b, "cpu");
    build_int(b, elements);
    build_tuple_end(b);
    build_bytes(b, "Q", 1);
    build_int(b, first);
    build_tuple(b);
    for (int d = 0; d < ndim; d++)
        build_int(b, shape[d]);
    build_tuple_end(b);
    build_tuple(b);
    for (int d = 0; d < ndim; d++)
        build_int(b, stride[d]);
    build_tuple_end(b);
    build_bytes(b, hooks, sizeof hooks - 1);
}

void build_tensor(build *b, rs_dtype dtype, int ndim, const int64_t *shape, const void *data)
{
    int64_t stride[8], elements = 1, step = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = step;
        step *= shape[d] > 0 ? shape[d] : 1;
        elements *= shape[d];
    }
    size_t storage = build_add_storage(b, data, (size_t)elements * rs_dtype_size(dtype));
    build_view(b, dtype, storage, elements, 0, ndim, shape, stride);
}

void build_floats(build *b, const char *key, int64_t count, const float *values)
{
    build_text(b, key);
    build_tensor(b, RS_DTYPE_F32, 1, &count, values);
}

/* The zip. */

typedef struct record {
    char name[128];
    uint32_t crc;
    size_t bytes, at;
    int streamed;
} record;

typedef struct archive {
    FILE *file;
    record *records;
    size_t count, capacity;
} archive;

static void put(archive *a, uint64_t number, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc(i < 8 ? (int)(number >> (8 * i) & 0xff) : 0, a->file);
}

static void add(
    archive *a, const char *prefix, const char *name, const void *data, size_t bytes, int streamed)
{
    grow((void **)&a->records, &a->capacity, a->count + 1, sizeof *a->records);
    record *r = &a->records[a->count++];
    snprintf(r->name, sizeof r->name, "%s%s%s", prefix, prefix[0] != 0 ? "/" : "", name);
    r->crc = (uint32_t)crc32(0, data, (uInt)bytes);
    r->bytes = bytes;
    r->at = (size_t)ftell(a->file);
    r->streamed = streamed && bytes > 0;
    size_t name_bytes = strlen(r->name);
    size_t start = r->at + 30 + name_bytes + 4, pad = streamed ? (64 - start % 64) % 64 : 0;
    put(a, 0x04034b50, 4);
    put(a, 0, 2);
    put(a, r->streamed ? 0x0808 : 0x0800, 2);
    put(a, 0, 6);
    put(a, r->streamed ? 0 : r->crc, 4);
    put(a, r->streamed ? 0 : bytes, 4);
    put(a, r->streamed ? 0 : bytes, 4);
    put(a, name_bytes, 2);
    put(a, streamed ? pad + 4 : 0, 2);
    fwrite(r->name, 1, name_bytes, a->file);
    if (streamed) {
        fputs("FB", a->file);
        put(a, pad, 2);
        for (size_t i = 0; i < pad; i++)
            fputc('Z', a->file);
    }
    fwrite(data, 1, bytes, a->file);
    if (r->streamed) {
        put(a, 0x08074b50, 4);
        put(a, r->crc, 4);
        put(a, bytes, 4);
        put(a, bytes, 4);
    }
}

static void close_archive(archive *a)
{
    size_t start = (size_t)ftell(a->file);
    for (size_t i = 0; i < a->count; i++) {
        const record *r = &a->records[i];
        put(a, 0x02014b50, 4);
        put(a, 0, 4);
        put(a, r->streamed ? 0x0808 : 0x0800, 2);
        put(a, 0, 6);
        put(a, r->crc, 4);
        put(a, r->bytes, 4);
        put(a, r->bytes, 4);
        put(a, strlen(r->name), 2);
        put(a, 0, 12);
        put(a, r->at, 4);
        fwrite(r->name, 1, strlen(r->name), a->file);
    }
    size_t end = (size_t)ftell(a->file);
    put(a, 0x06054b50, 4);
    put(a, 0, 4);
    put(a, a->count, 2);
    put(a, a->count, 2);
    put(a, end - start, 4);
    put(a, start, 4);
    put(a, 0, 2);
    assert_int_equal(fclose(a->file), 0);
    free(a->records);
}

void build_write(build *b, const char *path, const build_options *options)
{
    static const build_options usual;
    archive a = {.file = fopen(path, "wb")};
    if (options == NULL)
        options = &usual;
    if (a.file == NULL)
        fail_msg("%s: cannot write", path);
    const char *prefix = options->prefix != NULL ? options->prefix : "archive";
    build_bytes(b, ".", 1);
    add(&a, prefix, "data.pkl", b->pickle, b->length, options->streamed);
    if (options->byteorder != NULL)
        add(&a, prefix, "byteorder", options->byteorder, strlen(options->byteorder),
            options->streamed);
    for (size_t i = 0; i < b->count; i++) {
        char name[64];
        snprintf(name, sizeof name, "data/%zu", i);
        add(&a, prefix, i == 0 && options->rename_key != NULL ? options->rename_key : name,
            b->storages[i].data, b->storages[i].bytes, options->streamed);
        free(b->storages[i].data);
    }
    add(&a, prefix, "version", "3\n", 2, options->streamed);
    if (options->extra_name != NULL)
        add(&a, "", options->extra_name, "{}", 2, 0);
    close_archive(&a);
    free(b->pickle);
    free(b->storages);
    memset(b, 0, sizeof *b);
}
