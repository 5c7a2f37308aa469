/*
 * Files of torch.save, written front to back: the pickle, `byteorder`, the storages in the order of
 * their keys, `version`.
 *
 * All records are in a folder "archive", as torch names it when it saves to a stream, so that the
 * same content gives the same bytes wherever it is written. CRCs are of the content as it goes by;
 * they stand behind it.
 *
 * Specification: docs/formats/torch.md.
 */
#include "ckpt/torch_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "reshard/box.h"

#define FOLDER "archive/"

void rs_torch_make_begin(rs_torch_make *make)
{
    rs_pickle_begin(&make->pickle);
}

void rs_torch_make_fini(rs_torch_make *make)
{
    rs_bytes_fini(&make->pickle);
    rs_pool_fini(&make->pool);
    free(make->storages.items);
    free(make->records);
    *make = (rs_torch_make){0};
}

rs_status rs_torch_make_tensor(
    rs_torch_make *make, rs_dtype dtype, int ndim, const int64_t *shape, int tag, int64_t *key)
{
    rs_box whole = rs_box_whole(ndim, shape);
    int64_t elements = rs_box_is_empty(&whole) ? 0 : rs_box_volume(&whole), bytes;
    if (!rs_mul_fits(elements, (int64_t)rs_dtype_size(dtype), &bytes))
        return rs_error_set(RS_ERR_UNSUPPORTED, "a tensor whose bytes overflow 64 bits");
    RS_TRY(RS_LIST_RESERVE_ONE(&make->storages));
    RS_TRY(rs_pickle_tensor(&make->pickle, dtype, ndim, shape, (int64_t)make->storages.count));
    if (key != NULL)
        *key = (int64_t)make->storages.count;
    make->storages.items[make->storages.count++] = (rs_torch_made){bytes, tag};
    return RS_OK;
}

static rs_status add_record(rs_torch_make *make, const char *name, int64_t bytes)
{
    rs_zip_record *record = &make->records[make->record_count++];
    record->bytes = bytes;
    return rs_pool_text(&make->pool, name, strlen(name), &record->name);
}

rs_status rs_torch_make_end(rs_torch_make *make)
{
    size_t count = make->storages.count + 3;
    char name[48];
    rs_pickle_end(&make->pickle);
    RS_TRY(make->pickle.status);
    make->records = rs_calloc(count, sizeof *make->records);
    if (make->records == NULL)
        return rs_error_memory(count * sizeof *make->records);
    RS_TRY(add_record(make, FOLDER "data.pkl", (int64_t)make->pickle.length));
    RS_TRY(add_record(make, FOLDER "byteorder", 6));
    for (size_t i = 0; i < make->storages.count; i++) {
        snprintf(name, sizeof name, FOLDER "data/%zu", i);
        RS_TRY(add_record(make, name, make->storages.items[i].bytes));
    }
    RS_TRY(add_record(make, FOLDER "version", 2));
    return rs_zip_layout(make->records, make->record_count, &make->bytes);
}

static uint32_t crc_add(uint32_t crc, const void *data, size_t bytes)
{
    return (uint32_t)crc32_z(crc, data, bytes);
}

rs_status rs_torch_sink_write(rs_torch_sink *sink, const void *data, size_t bytes)
{
    sink->crc = crc_add(sink->crc, data, bytes);
    sink->bytes += (int64_t)bytes;
    return rs_out_write(sink->out, data, bytes);
}

/* A record whose content is at hand. */
static void append_record(rs_zip_record *record, const void *content, rs_bytes *around)
{
    record->crc = crc_add(0, content, (size_t)record->bytes);
    rs_zip_head(record, around);
    rs_bytes_append(around, content, (size_t)record->bytes);
    rs_zip_tail(record, around);
}

/* Writes what was put together, and begins anew. */
static rs_status flush(rs_bytes *around, rs_out *out)
{
    RS_TRY(around->status);
    RS_TRY(rs_out_write(out, around->data, around->length));
    around->length = 0;
    return RS_OK;
}

static rs_status write_storage(
    rs_torch_make *make, size_t i, rs_bytes *around, rs_out *out, rs_torch_feed feed, void *context)
{
    rs_zip_record *record = &make->records[2 + i];
    rs_torch_sink sink = {.out = out};
    rs_zip_head(record, around);
    if (record->bytes > 0) {
        RS_TRY(flush(around, out));
        RS_TRY(feed(context, make->storages.items[i].tag, &sink));
    }
    if (sink.bytes != record->bytes ||
        out->bytes + (int64_t)around->length != record->offset + record->bytes)
        return rs_error_set(RS_ERR_MISMATCH,
            "%s: storage %zu was given %" PRId64 " bytes instead of %" PRId64, out->path, i,
            sink.bytes, record->bytes);
    record->crc = sink.crc;
    rs_zip_tail(record, around);
    return RS_OK;
}

rs_status rs_torch_make_write(
    rs_torch_make *make, const char *folder, const char *name, rs_torch_feed feed, void *context)
{
    rs_bytes around = {0};
    rs_out out;
    rs_status status;
    RS_TRY(rs_out_create(&out, folder, name));
    append_record(&make->records[0], make->pickle.data, &around);
    append_record(&make->records[1], "little", &around);
    for (size_t i = 0; i < make->storages.count; i++)
        RS_TRY_GOTO(write_storage(make, i, &around, &out, feed, context), out);
    append_record(&make->records[make->record_count - 1], "3\n", &around);
    rs_zip_end(make->records, make->record_count, &around);
    RS_TRY_GOTO(flush(&around, &out), out);
    RS_TRY_GOTO(rs_out_finish(&out), out);
out:
    rs_out_fini(&out);
    rs_bytes_fini(&around);
    return status;
}
