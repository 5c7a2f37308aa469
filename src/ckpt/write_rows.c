/*
 * A safetensors file of a conversion: the header, then tensor after tensor, front to back. The
 * files of Hugging Face folders and of native checkpoints are both this.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/publish.h"
#include "ckpt/writer.h"
#include "reshard/certificate.h"

typedef struct streaming {
    rs_writing *w;
    rs_out *out;
    XXH3_state_t *hash; /* of a native shard; else NULL */
    const rs_logical *tensor;
    rs_sum sum;
} streaming;

static rs_status write_part(void *context, const rs_box *part, const void *data, size_t bytes)
{
    streaming *s = context;
    RS_TRY(rs_out_write(s->out, data, bytes));
    if (s->hash != NULL) {
        int64_t stride[RS_MAX_DIMS], step = (int64_t)rs_dtype_size(s->tensor->dtype);
        for (int d = part->ndim - 1; d >= 0; d--) {
            stride[d] = step;
            step *= part->extent[d];
        }
        XXH3_64bits_update(s->hash, data, bytes);
        rs_sum sum = rs_sum_box(rs_sum_key(s->tensor->name, s->tensor->role), s->tensor->shape,
            part, rs_dtype_size(s->tensor->dtype), data, stride);
        s->sum.lane[0] += sum.lane[0];
        s->sum.lane[1] += sum.lane[1];
    }
    return RS_OK;
}

rs_status rs_write_rows(rs_writing *w, const rs_rows *file, int64_t *file_bytes)
{
    size_t count = file->end - file->first, head_bytes = 0;
    char *head = NULL;
    rs_names index = {0};
    rs_out out = {.fd = -1};
    streaming s = {.w = w, .out = &out, .hash = file->shards != NULL ? XXH3_createState() : NULL};
    rs_status status = RS_OK;
    rs_safetensors_tensor *rows = rs_calloc(count, sizeof *rows);
    if (rows == NULL || (file->shards != NULL && s.hash == NULL))
        RS_TRY_GOTO(rs_error_memory(count * sizeof *rows), out);
    for (size_t i = 0; i < count; i++) {
        const rs_logical *t = &w->tensors.items[file->first + i];
        int found;
        rows[i] = (rs_safetensors_tensor){
            .name = file->names[file->first + i], .dtype = t->dtype, .ndim = t->ndim};
        memcpy(rows[i].shape, t->shape, sizeof rows[i].shape);
        RS_TRY_GOTO(rs_names_add(&index, rows[i].name, (int)(file->first + i), &found), out);
    }
    RS_TRY_GOTO(rs_safetensors_layout(
                    rows, count, file->notes, file->note_count, &head, &head_bytes, file_bytes),
        out);
    RS_TRY_GOTO(rs_out_create(&out, file->folder, file->file), out);
    RS_TRY_GOTO(rs_out_write(&out, head, head_bytes), out);
    for (size_t i = 0; i < count; i++) {
        s.tensor = &w->tensors.items[rs_names_find(&index, rows[i].name)];
        s.sum = (rs_sum){{0, 0}};
        if (s.hash != NULL)
            XXH3_64bits_reset(s.hash);
        RS_TRY_GOTO(rs_writing_stream(w, s.tensor, write_part, &s), out);
        if (file->shards == NULL || s.tensor->bytes == 0)
            continue;
        char hash[17], sum[33];
        snprintf(hash, sizeof hash, "%016" PRIx64, (uint64_t)XXH3_64bits_digest(s.hash));
        snprintf(sum, sizeof sum, "%016" PRIx64 "%016" PRIx64, s.sum.lane[0], s.sum.lane[1]);
        json_t *offset = json_array(), *extent = json_array();
        for (int d = 0; d < s.tensor->ndim; d++) {
            json_array_append_new(offset, json_integer(0));
            json_array_append_new(extent, json_integer(s.tensor->shape[d]));
        }
        if (json_array_append_new(
                file->shards, json_pack("{s:s,s:s,s:o,s:o,s:I,s:s,s:s}", "tensor", s.tensor->name,
                                  "role", s.tensor->role, "offset", offset, "extent", extent, "at",
                                  (json_int_t)rows[i].offset, "xxh3", hash, "sum", sum)) != 0)
            RS_TRY_GOTO(rs_error_memory(1), out);
    }
    RS_TRY_GOTO(rs_out_finish(&out), out);
    w->report.files++;
out:
    rs_out_fini(&out);
    rs_names_fini(&index);
    XXH3_freeState(s.hash);
    free(head);
    free(rows);
    return status;
}
