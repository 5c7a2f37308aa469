/*
 * Zip archives as PyTorch writes them, byte for byte but for records that it adds for itself:
 * stored, sizes and CRC behind each content and in the directory, contents at multiples of 64 by a
 * padding field in the local header, zip64 wherever a size or an offset needs it, and always the
 * zip64 end records.
 *
 * 1. Offsets follow from names and sizes alone, so that contents can be written in any order.
 * 2. A field that says all ones has its value in the zip64 field, in the order size, stored size,
 *    offset, only those that need it.
 * 3. Behind the content of an entry that has a zip64 field sizes take 8 bytes, else 4.
 *
 * Specification: docs/formats/torch.md.
 */
#include "ckpt/zip_write.h"

#include <string.h>

#include "base/checked.h"
#include "base/error.h"

#define ALIGNMENT 64
#define ONES INT64_C(0xffffffff)
#define LOCAL 30
#define CENTRAL 46
#define ENDS (56 + 20 + 22)

static bool size_is_long(const rs_zip_record *r)
{
    return r->bytes >= ONES;
}

static bool place_is_long(const rs_zip_record *r)
{
    return r->header >= ONES;
}

/* Bytes of the zip64 field. */
static int64_t long_field(const rs_zip_record *r)
{
    int64_t values = (size_is_long(r) ? 16 : 0) + (place_is_long(r) ? 8 : 0);
    return values > 0 ? 4 + values : 0;
}

static int64_t padding(const rs_zip_record *r)
{
    int64_t begin = r->header + LOCAL + (int64_t)strlen(r->name) + long_field(r) + 4;
    return (ALIGNMENT - begin % ALIGNMENT) % ALIGNMENT;
}

int64_t rs_zip_tail_bytes(const rs_zip_record *r)
{
    return r->bytes == 0 ? 0 : long_field(r) > 0 ? 24 : 16;
}

rs_status rs_zip_layout(rs_zip_record *records, size_t count, int64_t *bytes)
{
    int64_t at = 0, directory = ENDS;
    for (size_t i = 0; i < count; i++) {
        rs_zip_record *r = &records[i];
        int64_t name = (int64_t)strlen(r->name);
        if (name > 0xffff - 128)
            return rs_error_set(RS_ERR_UNSUPPORTED, "\"%.60s...\": a name of %lld bytes in a zip",
                r->name, (long long)name);
        r->header = at;
        r->offset = at + LOCAL + name + long_field(r) + 4 + padding(r);
        if (!rs_add_fits(r->offset, r->bytes, &at) || !rs_add_fits(at, rs_zip_tail_bytes(r), &at))
            return rs_error_set(
                RS_ERR_UNSUPPORTED, "\"%s\": the archive's size overflows 64 bits", r->name);
        directory += CENTRAL + name + long_field(r);
    }
    if (!rs_add_fits(at, directory, bytes))
        return rs_error_set(RS_ERR_UNSUPPORTED, "the archive's size overflows 64 bits");
    return RS_OK;
}

static void append_long_field(const rs_zip_record *r, rs_bytes *out)
{
    if (long_field(r) == 0)
        return;
    rs_bytes_little(out, 1, 2);
    rs_bytes_little(out, (uint64_t)long_field(r) - 4, 2);
    if (size_is_long(r)) {
        rs_bytes_little(out, (uint64_t)r->bytes, 8);
        rs_bytes_little(out, (uint64_t)r->bytes, 8);
    }
    if (place_is_long(r))
        rs_bytes_little(out, (uint64_t)r->header, 8);
}

/* Version, flags (UTF-8 names; a descriptor behind what is not empty), method, time and date. */
static void append_kind(const rs_zip_record *r, rs_bytes *out)
{
    rs_bytes_little(out, long_field(r) > 0 ? 45 : 0, 2);
    rs_bytes_little(out, r->bytes > 0 ? 0x0808 : 0x0800, 2);
    rs_bytes_fill(out, 0, 6);
}

void rs_zip_head(const rs_zip_record *r, rs_bytes *out)
{
    int64_t pad = padding(r);
    rs_bytes_little(out, 0x04034b50, 4);
    append_kind(r, out);
    rs_bytes_fill(out, 0, 12); /* CRC and sizes: behind the content */
    rs_bytes_little(out, strlen(r->name), 2);
    rs_bytes_little(out, (uint64_t)(long_field(r) + 4 + pad), 2);
    rs_bytes_append(out, r->name, strlen(r->name));
    append_long_field(r, out);
    rs_bytes_append(out, "FB", 2);
    rs_bytes_little(out, (uint64_t)pad, 2);
    rs_bytes_fill(out, 'Z', (size_t)pad);
}

void rs_zip_tail(const rs_zip_record *r, rs_bytes *out)
{
    size_t width = long_field(r) > 0 ? 8 : 4;
    if (r->bytes == 0)
        return;
    rs_bytes_little(out, 0x08074b50, 4);
    rs_bytes_little(out, r->crc, 4);
    rs_bytes_little(out, (uint64_t)r->bytes, width);
    rs_bytes_little(out, (uint64_t)r->bytes, width);
}

static void append_entry(const rs_zip_record *r, rs_bytes *out)
{
    uint64_t size = (uint64_t)(size_is_long(r) ? ONES : r->bytes);
    rs_bytes_little(out, 0x02014b50, 4);
    rs_bytes_little(out, 0, 2); /* made by */
    append_kind(r, out);
    rs_bytes_little(out, r->crc, 4);
    rs_bytes_little(out, size, 4);
    rs_bytes_little(out, size, 4);
    rs_bytes_little(out, strlen(r->name), 2);
    rs_bytes_little(out, (uint64_t)long_field(r), 2);
    rs_bytes_fill(out, 0, 10); /* comment, disk, attributes */
    rs_bytes_little(out, (uint64_t)(place_is_long(r) ? ONES : r->header), 4);
    rs_bytes_append(out, r->name, strlen(r->name));
    append_long_field(r, out);
}

void rs_zip_end(const rs_zip_record *records, size_t count, rs_bytes *out)
{
    const rs_zip_record *last = count > 0 ? &records[count - 1] : NULL;
    uint64_t begin =
        last != NULL ? (uint64_t)(last->offset + last->bytes + rs_zip_tail_bytes(last)) : 0;
    size_t before = out->length;
    for (size_t i = 0; i < count; i++)
        append_entry(&records[i], out);
    uint64_t size = out->length - before;
    rs_bytes_little(out, 0x06064b50, 4); /* zip64 end */
    rs_bytes_little(out, 44, 8);
    rs_bytes_little(out, 0x031e, 2);
    rs_bytes_little(out, 45, 2);
    rs_bytes_fill(out, 0, 8); /* disks */
    rs_bytes_little(out, count, 8);
    rs_bytes_little(out, count, 8);
    rs_bytes_little(out, size, 8);
    rs_bytes_little(out, begin, 8);
    rs_bytes_little(out, 0x07064b50, 4); /* its locator */
    rs_bytes_fill(out, 0, 4);
    rs_bytes_little(out, begin + size, 8);
    rs_bytes_little(out, 1, 4);
    rs_bytes_little(out, 0x06054b50, 4); /* end */
    rs_bytes_fill(out, 0, 4);
    rs_bytes_little(out, count < 0xffff ? count : 0xffff, 2);
    rs_bytes_little(out, count < 0xffff ? count : 0xffff, 2);
    rs_bytes_little(out, size < (uint64_t)ONES ? size : (uint64_t)ONES, 4);
    rs_bytes_little(out, begin < (uint64_t)ONES ? begin : (uint64_t)ONES, 4);
    rs_bytes_fill(out, 0, 2);
}
