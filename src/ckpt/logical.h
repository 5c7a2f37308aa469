/* The logical tensors of a catalog as a list: what is written to another format, or compared. */
#ifndef RS_CKPT_LOGICAL_H
#define RS_CKPT_LOGICAL_H

#include "ckpt/catalog.h"
#include "reshard/space.h"

typedef struct rs_logical {
    const char *name;
    const char *role;
    rs_dtype dtype; /* that of the entry, or another one that its numbers are rounded to */
    int ndim;
    int64_t shape[RS_MAX_DIMS];
    int id;     /* of the catalog's entry */
    rs_box box; /* of the entry; it has the elements of `shape`, in order */
    int64_t bytes;
} rs_logical;

/* Starts as {0}; owns its names. */
typedef struct rs_logical_list {
    rs_logical *items;
    size_t count, capacity;
    rs_pool pool;
} rs_logical_list;

void rs_logical_fini(rs_logical_list *list);

#define RS_FLAT_HINT 160

/* What a vector in place of a tensor may be: "; 30/4 elements are 8: one may be a rank's flat shard
 * of the other, ...", or "" if it is no share of as many elements. Returns `text`. */
const char *rs_logical_flat_hint(int found_ndim, const int64_t *found, int wanted_ndim,
    const int64_t *wanted, char text[RS_FLAT_HINT]);

/* The stored or derived entries, second names only with `aliases`: of `role` (NULL: all). */
rs_status rs_logical_make(
    const rs_catalog *catalog, const char *role, bool aliases, rs_logical_list *out) RS_MUST_CHECK;

/* The space of a list of the catalog's, whose tensors are whole entries. Axes have no meaning, but
 * for the layers that a native checkpoint tells, whose facts it has too. RS_ERR_UNSUPPORTED names a
 * tensor whose roles have different shapes. */
rs_status rs_logical_list_space(
    const rs_catalog *catalog, const rs_logical_list *list, rs_space **out) RS_MUST_CHECK;

/* Calls for consecutive parts of the tensor, each at most `most` bytes, in order, with the bytes.
 */
typedef rs_status (*rs_logical_part)(
    void *context, const rs_box *part, const void *data, size_t bytes);
rs_status rs_logical_stream(const rs_catalog *catalog, const rs_logical *tensor, int64_t most,
    void *buffer, rs_logical_part function, void *context) RS_MUST_CHECK;

/* Reads elements begin .. end-1 of the tensor in row-major order, packed, in its dtype, which may
 * be another than the entry's if both are floats. */
rs_status rs_logical_read(const rs_catalog *catalog, const rs_logical *tensor, rs_scratch *scratch,
    int64_t begin, int64_t end, void *out) RS_MUST_CHECK;

/* The space of the catalog's entries of this role (NULL: of all). */
rs_status rs_logical_space(
    const rs_catalog *catalog, const char *role, rs_space **out) RS_MUST_CHECK;

/* The layers of a tensor that lists them; NULL without memory. */
json_t *rs_logical_layers(const rs_tensor *tensor);

/* Says in the catalog what the space says of the model. */
rs_status rs_logical_set_model(rs_catalog *catalog, const rs_space *space) RS_MUST_CHECK;

#endif
