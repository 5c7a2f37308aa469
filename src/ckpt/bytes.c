/* Growing bytes, with a status that sticks: a writer appends a whole header and asks once. */
#include "ckpt/bytes.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"

/* Room for `count` more, or NULL. */
static unsigned char *extend(rs_bytes *bytes, size_t count)
{
    if (bytes->status == RS_OK && count > SIZE_MAX - bytes->length)
        bytes->status = rs_error_memory(count);
    if (bytes->status == RS_OK)
        bytes->status =
            rs_array_reserve((void **)&bytes->data, &bytes->capacity, bytes->length + count, 1);
    if (bytes->status != RS_OK)
        return NULL;
    bytes->length += count;
    return bytes->data + bytes->length - count;
}

void rs_bytes_append(rs_bytes *bytes, const void *data, size_t count)
{
    unsigned char *to = count > 0 ? extend(bytes, count) : NULL;
    if (to != NULL)
        memcpy(to, data, count);
}

void rs_bytes_fill(rs_bytes *bytes, unsigned char value, size_t count)
{
    unsigned char *to = count > 0 ? extend(bytes, count) : NULL;
    if (to != NULL)
        memset(to, value, count);
}

void rs_bytes_little(rs_bytes *bytes, uint64_t number, size_t size)
{
    unsigned char *to = extend(bytes, size);
    for (size_t i = 0; i < size && to != NULL; i++)
        to[i] = (unsigned char)(number >> (8 * i));
}

void rs_bytes_fini(rs_bytes *bytes)
{
    free(bytes->data);
    *bytes = (rs_bytes){0};
}
