/* The list of what is to be written. Offsets are summed up as parts are added, checked. */
#include "ckpt/output.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"

void rs_output_fini(rs_output *output)
{
    rs_pool_fini(&output->pool);
    free(output->files.items);
    free(output->parts.items);
    memset(output, 0, sizeof *output);
}

rs_status rs_output_file(rs_output *output, const char *name)
{
    rs_output_file_row row = {.first_part = output->parts.count};
    RS_TRY(RS_LIST_RESERVE_ONE(&output->files));
    RS_TRY(rs_pool_text(&output->pool, name, strlen(name), &row.name));
    output->files.items[output->files.count++] = row;
    return RS_OK;
}

int64_t rs_output_at(const rs_output *output)
{
    return output->files.items[output->files.count - 1].bytes;
}

static rs_status add(rs_output *output, rs_output_part *part, size_t *number)
{
    rs_output_file_row *file = &output->files.items[output->files.count - 1];
    part->file = (int)output->files.count - 1;
    part->offset = file->bytes;
    if (number != NULL)
        *number = output->parts.count;
    if (!rs_add_fits(file->bytes, part->bytes, &file->bytes))
        return rs_error_set(RS_ERR_OVERFLOW, "%s: its size overflows 64 bits", file->name);
    RS_TRY(RS_LIST_RESERVE_ONE(&output->parts));
    output->parts.items[output->parts.count++] = *part;
    file->part_count++;
    return RS_OK;
}

static rs_status copy(rs_output *output, const void *data, size_t bytes, const void **out)
{
    void *to;
    RS_TRY(rs_pool_take(&output->pool, bytes > 0 ? bytes : 1, &to));
    if (bytes > 0)
        memcpy(to, data, bytes);
    *out = to;
    return RS_OK;
}

rs_status rs_output_bytes(rs_output *output, const void *data, size_t bytes, size_t *number)
{
    rs_output_part part = {.bytes = (int64_t)bytes};
    RS_TRY(copy(output, data, bytes, &part.data));
    return add(output, &part, number);
}

rs_status rs_output_tensor(
    rs_output *output, const rs_logical *tensor, unsigned sums, size_t *number)
{
    rs_output_part part = {.tensor = tensor, .bytes = tensor->bytes, .sums = sums};
    if ((sums & RS_OUTPUT_CONTENT) && rs_output_at(output) % (int64_t)rs_dtype_size(tensor->dtype))
        return rs_error_set(RS_ERR_UNSUPPORTED,
            "%s of \"%s\": %s at byte %lld, which is no multiple", tensor->role, tensor->name,
            rs_dtype_name(tensor->dtype), (long long)rs_output_at(output));
    return add(output, &part, number);
}

rs_status rs_output_room(rs_output *output, int64_t bytes, size_t *number)
{
    rs_output_part part = {.bytes = bytes};
    output->files.items[output->files.count - 1].has_room = true;
    return add(output, &part, number);
}

rs_status rs_output_fill(rs_output *output, size_t number, const void *data)
{
    rs_output_part *part = &output->parts.items[number];
    return copy(output, data, (size_t)part->bytes, &part->data);
}
