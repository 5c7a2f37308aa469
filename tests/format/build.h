/* Making files of torch.save in tests, plainly: a pickle of protocol 2 and the storages it names.
 */
#ifndef TEST_FORMAT_BUILD_H
#define TEST_FORMAT_BUILD_H

#include <stddef.h>
#include <stdint.h>

#include "reshard/dtype.h"

typedef struct build_storage {
    unsigned char *data;
    size_t bytes;
} build_storage;

/* Starts as {0}. Every call writes one value, or opens or closes a container. In a dict keys and
 * values alternate. */
typedef struct build {
    unsigned char *pickle;
    size_t length, capacity;
    build_storage *storages;
    size_t count, storage_capacity;
} build;

void build_bytes(build *b, const void *data, size_t bytes); /* opcodes as they are */
void build_dict(build *b);
void build_dict_end(build *b);
void build_list(build *b);
void build_list_end(build *b);
void build_tuple(build *b);
void build_tuple_end(build *b);
void build_text(build *b, const char *text);
void build_dict_of(build *b, const char *key); /* a key, and its value is a dict */
void build_int(build *b, int64_t integer);
void build_float(build *b, double real);
void build_bool(build *b, int on);
void build_none(build *b);
void build_size(build *b, int ndim, const int64_t *shape); /* torch.Size */

/* A contiguous tensor with a storage of its own; data is copied. */
void build_tensor(build *b, rs_dtype dtype, int ndim, const int64_t *shape, const void *data);

/* A key, and its value is a vector of float32. */
void build_floats(build *b, const char *key, int64_t count, const float *values);

/* A view of the storage of number `storage`. */
void build_view(build *b, rs_dtype dtype, size_t storage, int64_t elements, int64_t first, int ndim,
    const int64_t *shape, const int64_t *stride);

/* A storage without a tensor; its number. */
size_t build_add_storage(build *b, const void *data, size_t bytes);

/* How the zip is written beside the usual. */
typedef struct build_options {
    const char *prefix;     /* "archive" */
    const char *byteorder;  /* NULL: no such record */
    int streamed;           /* sizes only in the directory, descriptors behind, FB padding */
    const char *extra_name; /* one more entry, as a zip tool would append it; NULL */
    const char *rename_key; /* the record data/0 gets this name; NULL */
} build_options;

/* Closes the pickle and writes the file; frees what the build holds. */
void build_write(build *b, const char *path, const build_options *options);

#endif
