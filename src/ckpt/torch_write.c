/*
 * Files of torch.save: the pickle, `byteorder`, the storages in the order of
 * their keys, `version`.
 *
 * All records are in a folder "archive", as torch names it when it saves to a stream, so that the
 * same content gives the same bytes wherever it is written. CRCs of storages are known when those
 * are written; they stand behind them, in rooms of the output.
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
    make->storages.items[make->storages.count++] = (rs_torch_made){bytes, tag, 0, 0};
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

/* A record whose content is at hand. */
static void append_record(rs_zip_record *record, const void *content, rs_bytes *around)
{
    record->crc = (uint32_t)crc32_z(0, content, (size_t)record->bytes);
    rs_zip_head(record, around);
    rs_bytes_append(around, content, (size_t)record->bytes);
    rs_zip_tail(record, around);
}

/* Adds what was put together, and begins anew. */
static rs_status flush(rs_bytes *around, rs_output *output)
{
    RS_TRY(around->status);
    RS_TRY(rs_output_bytes(output, around->data, around->length, NULL));
    around->length = 0;
    return RS_OK;
}

static rs_status add_storage(
    rs_torch_make *make, size_t i, rs_bytes *around, rs_output *output, const rs_logical *tensors)
{
    rs_torch_made *storage = &make->storages.items[i];
    rs_zip_record *record = &make->records[2 + i];
    const rs_logical *tensor = &tensors[storage->tag];
    rs_zip_head(record, around);
    if (record->bytes == 0)
        return RS_OK;
    RS_TRY(flush(around, output));
    if (rs_output_at(output) != record->offset || tensor->bytes != record->bytes)
        return rs_error_set(RS_ERR_MISMATCH,
            "storage %zu, \"%s\": %" PRId64 " bytes at byte %" PRId64 " instead of %" PRId64
            " at %" PRId64,
            i, tensor->name, tensor->bytes, rs_output_at(output), record->bytes, record->offset);
    RS_TRY(rs_output_tensor(output, tensor, RS_OUTPUT_CRC32, &storage->part));
    return rs_output_room(output, rs_zip_tail_bytes(record), &storage->tail);
}

rs_status rs_torch_make_output(rs_torch_make *make, rs_output *output, const rs_logical *tensors)
{
    rs_bytes around = {0};
    rs_status status;
    int64_t begin = rs_output_at(output);
    append_record(&make->records[0], make->pickle.data, &around);
    append_record(&make->records[1], "little", &around);
    for (size_t i = 0; i < make->storages.count; i++)
        RS_TRY_GOTO(add_storage(make, i, &around, output, tensors), out);
    append_record(&make->records[make->record_count - 1], "3\n", &around);
    RS_TRY_GOTO(flush(&around, output), out);
    RS_TRY_GOTO(
        rs_output_room(output, begin + make->bytes - rs_output_at(output), &make->end), out);
out:
    rs_bytes_fini(&around);
    return status;
}

rs_status rs_torch_make_complete(const rs_torch_make *make, rs_output *output)
{
    rs_bytes bytes = {0};
    rs_status status = RS_OK;
    for (size_t i = 0; i < make->storages.count; i++) {
        const rs_torch_made *storage = &make->storages.items[i];
        rs_zip_record *record = &make->records[2 + i];
        if (record->bytes == 0)
            continue;
        record->crc = output->parts.items[storage->part].crc32;
        bytes.length = 0;
        rs_zip_tail(record, &bytes);
        RS_TRY_GOTO(bytes.status, out);
        RS_TRY_GOTO(rs_output_fill(output, storage->tail, bytes.data), out);
    }
    bytes.length = 0;
    rs_zip_end(make->records, make->record_count, &bytes);
    RS_TRY_GOTO(bytes.status, out);
    RS_TRY_GOTO(rs_output_fill(output, make->end, bytes.data), out);
out:
    rs_bytes_fini(&bytes);
    return status;
}
