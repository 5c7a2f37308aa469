/*
 * A strict reader of zip directories.
 *
 * The central directory at the end of the archive is the only source of names and sizes: torch.save
 * leaves them zero in the local headers. A damaged directory must not become tensors with other
 * tensors' bytes, so everything that is said twice in the archive is compared, and all parts must
 * fit each other without overlap:
 *
 * 1. The end record, the 64-bit one and its locator where there are such, and the directory lie
 *    directly behind each other; the directory has exactly as many entries and bytes as it should.
 * 2. Every local header has its signature, and the same name as the directory's entry.
 * 3. The parts of the entries (header and stored bytes) lie before the directory, do not overlap,
 *    and no two entries have one name.
 * 4. An entry is stored as it is (both sizes equal) or deflated. Nothing is encrypted, nothing lies
 *    on another disk, no name climbs out of the archive.
 *
 * Whether content has the length and the checksum that the directory says is for whoever reads it.
 * Data descriptors, dates, attributes and the padding that aligns payloads are of no use here.
 *
 * Cost: the directory once, 30 bytes and the name of each local header; memory grows with the
 * entries. Specification: docs/formats/torch.md.
 */
#include "ckpt/zip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

#define END_BYTES 22
#define END_REACH (65535 + END_BYTES)
#define LOCATOR_BYTES 20
#define END64_BYTES 56
#define ENTRY_BYTES 46
#define LOCAL_BYTES 30

#define SIGNATURE_LOCAL 0x04034b50u
#define SIGNATURE_ENTRY 0x02014b50u
#define SIGNATURE_END 0x06054b50u
#define SIGNATURE_END64 0x06064b50u
#define SIGNATURE_LOCATOR 0x07064b50u

#define FLAG_ENCRYPTED 0x0041u
#define EXTRA_ZIP64 1
#define ALL_ONES32 0xffffffffu

/* Sizes above are refused as malformed: no file system has such files. */
#define SANE ((uint64_t)1 << 62)

typedef struct directory {
    rs_files *files;
    int file;
    int64_t begin; /* of the archive in the file; offsets in it count from here */
    int64_t end;
    int64_t at; /* of the directory, in the file */
    int64_t bytes;
    uint64_t count;
} directory;

#define FAIL(d, offset, ...)                                                                       \
    do {                                                                                           \
        (void)rs_files_malformed((d)->files, (d)->file, offset, __VA_ARGS__);                      \
        return RS_ERR_MALFORMED;                                                                   \
    } while (0)

/* The end record: the last place where one fits. */
static rs_status find_end(directory *d, rs_zip *zip, int64_t *end_at, unsigned char *record)
{
    int64_t size = d->end - d->begin;
    if (size < END_BYTES)
        FAIL(d, d->begin, "%" PRId64 " bytes are too few for a zip archive", size);
    size_t reach = (size_t)rs_min64(size, END_REACH + 4096);
    unsigned char *tail = rs_calloc(reach, 1);
    if (tail == NULL)
        return rs_error_memory(reach);
    rs_status status = rs_files_read(d->files, d->file, d->end - (int64_t)reach, tail, reach);
    int64_t found = -1;
    for (int64_t i = (int64_t)reach - END_BYTES; status == RS_OK && i >= 0 && found < 0; i--)
        if (rs_le32(tail + i) == SIGNATURE_END &&
            i + END_BYTES + (int64_t)rs_le16(tail + i + 20) <= (int64_t)reach)
            found = i;
    if (found >= 0) {
        memcpy(record, tail + found, END_BYTES);
        *end_at = d->end - (int64_t)reach + found;
        zip->trailing = d->end - *end_at - END_BYTES - (int64_t)rs_le16(record + 20);
    }
    free(tail);
    RS_TRY(status);
    if (found < 0)
        FAIL(d, d->end, "no end of a zip directory in the last %zu bytes: the file is cut", reach);
    return RS_OK;
}

/* The 64-bit end record, if the locator before the plain one says that there is one. */
static rs_status read_end64(directory *d, int64_t locator_at, bool *present, int64_t *directory_end)
{
    unsigned char locator[LOCATOR_BYTES];
    *present = false;
    if (locator_at < d->begin)
        return RS_OK;
    RS_TRY(rs_files_read(d->files, d->file, locator_at, locator, sizeof locator));
    if (rs_le32(locator) != SIGNATURE_LOCATOR)
        return RS_OK;
    if (rs_le32(locator + 4) != 0 || rs_le32(locator + 16) > 1)
        FAIL(d, locator_at, "the zip archive has several disks");
    uint64_t relative = rs_le64(locator + 8);
    if (relative > (uint64_t)(locator_at - d->begin) ||
        locator_at - d->begin - (int64_t)relative < END64_BYTES)
        FAIL(d, locator_at + 8, "the 64-bit end record cannot lie at %" PRIu64, relative);
    int64_t at = d->begin + (int64_t)relative;
    unsigned char record[END64_BYTES];
    RS_TRY(rs_files_read(d->files, d->file, at, record, sizeof record));
    if (rs_le32(record) != SIGNATURE_END64)
        FAIL(d, at, "no 64-bit end record, although the locator points here");
    if (rs_le64(record + 4) != (uint64_t)(locator_at - at - 12))
        FAIL(d, at + 4, "the 64-bit end record says that it has %" PRIu64 " bytes, it has %" PRId64,
            rs_le64(record + 4), locator_at - at - 12);
    if (rs_le32(record + 16) != 0 || rs_le32(record + 20) != 0 ||
        rs_le64(record + 24) != rs_le64(record + 32))
        FAIL(d, at + 16, "the zip archive has several disks");
    if (rs_le64(record + 40) > SANE || rs_le64(record + 48) > SANE)
        FAIL(d, at + 40, "the zip directory cannot lie at %" PRIu64 " with %" PRIu64 " bytes",
            rs_le64(record + 48), rs_le64(record + 40));
    d->count = rs_le64(record + 32);
    d->bytes = (int64_t)rs_le64(record + 40);
    d->at = d->begin + (int64_t)rs_le64(record + 48);
    *directory_end = at;
    *present = true;
    return RS_OK;
}

static rs_status locate(directory *d, rs_zip *zip)
{
    unsigned char record[END_BYTES] = {0};
    int64_t end_at = 0;
    RS_TRY(find_end(d, zip, &end_at, record));
    bool present = false;
    int64_t directory_end = end_at;
    RS_TRY(read_end64(d, end_at - LOCATOR_BYTES, &present, &directory_end));
    if (!present) {
        if (rs_le16(record + 4) != 0 || rs_le16(record + 6) != 0 ||
            rs_le16(record + 8) != rs_le16(record + 10))
            FAIL(d, end_at + 4, "the zip archive has several disks");
        d->count = rs_le16(record + 10);
        d->bytes = rs_le32(record + 12);
        d->at = d->begin + rs_le32(record + 16);
    }
    if (d->at > directory_end || d->bytes != directory_end - d->at)
        FAIL(d, end_at,
            "the zip directory is said to be %" PRId64 " bytes at %" PRId64
            ", but its end lies at byte %" PRId64,
            d->bytes, d->at, directory_end);
    if (d->count > (uint64_t)d->bytes / ENTRY_BYTES)
        FAIL(d, end_at, "%" PRIu64 " entries cannot fit into a zip directory of %" PRId64 " bytes",
            d->count, d->bytes);
    return RS_OK;
}

/* A name that climbs out of the archive serves nothing but an attack on those who unpack it. */
static bool climbs(const char *name)
{
    if (name[0] == '/' || strchr(name, '\\') != NULL)
        return true;
    for (const char *part = name; part != NULL; part = strchr(part, '/')) {
        part += part[0] == '/';
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == 0))
            return true;
    }
    return false;
}

/* Takes those of the three sizes that are all ones from the 64-bit extra field. */
static rs_status read_extra64(
    directory *d, const unsigned char *extra, size_t length, int64_t at, uint64_t *sizes[3])
{
    for (size_t i = 0; i + 4 <= length;) {
        size_t id = rs_le16(extra + i);
        size_t bytes = rs_le16(extra + i + 2);
        if (bytes > length - i - 4)
            FAIL(d, at, "an extra field of the zip directory is cut");
        if (id == EXTRA_ZIP64) {
            size_t used = 0;
            for (int k = 0; k < 3; k++) {
                if (*sizes[k] != ALL_ONES32)
                    continue;
                if (used + 8 > bytes)
                    FAIL(d, at, "the 64-bit sizes of a zip entry are missing");
                *sizes[k] = rs_le64(extra + i + 4 + used);
                used += 8;
            }
            return RS_OK;
        }
        i += 4 + bytes;
    }
    for (int k = 0; k < 3; k++)
        if (*sizes[k] == ALL_ONES32)
            FAIL(d, at, "the 64-bit sizes of a zip entry are missing");
    return RS_OK;
}

static rs_status read_entry(directory *d, rs_reader *reader, rs_zip *zip, rs_zip_entry *entry)
{
    int64_t at = reader->position;
    const unsigned char *p;
    RS_TRY(rs_reader_take(reader, ENTRY_BYTES, &p));
    if (rs_le32(p) != SIGNATURE_ENTRY)
        FAIL(d, at, "no entry of the zip directory here: signature %08x", rs_le32(p));
    uint32_t flags = rs_le16(p + 8);
    uint32_t method = rs_le16(p + 10);
    size_t name_bytes = rs_le16(p + 28);
    size_t extra_bytes = rs_le16(p + 30);
    size_t comment_bytes = rs_le16(p + 32);
    uint64_t stored = rs_le32(p + 20);
    uint64_t bytes = rs_le32(p + 24);
    uint64_t header = rs_le32(p + 42);
    entry->crc = rs_le32(p + 16);
    if (flags & FLAG_ENCRYPTED)
        FAIL(d, at + 8, "an encrypted zip entry");
    if (method != 0 && method != 8)
        FAIL(d, at + 10, "zip compression method %u; 0 and 8 are read", method);
    if (rs_le16(p + 34) != 0)
        FAIL(d, at + 34, "the zip archive has several disks");
    if (name_bytes == 0)
        FAIL(d, at + 28, "a zip entry without a name");

    const unsigned char *name;
    RS_TRY(rs_reader_take(reader, name_bytes, &name));
    if (memchr(name, 0, name_bytes) != NULL)
        FAIL(d, at + ENTRY_BYTES, "a zero byte in the name of a zip entry");
    RS_TRY(rs_pool_text(&zip->pool, (const char *)name, name_bytes, &entry->name));
    if (climbs(entry->name))
        FAIL(d, at + ENTRY_BYTES, "the zip entry \"%s\" names a place outside the archive",
            entry->name);
    const unsigned char *extra;
    RS_TRY(rs_reader_take(reader, extra_bytes, &extra));
    uint64_t *sizes[3] = {&bytes, &stored, &header};
    RS_TRY(read_extra64(d, extra, extra_bytes, at, sizes));
    const unsigned char *comment;
    RS_TRY(rs_reader_take(reader, comment_bytes, &comment));

    uint64_t room = (uint64_t)(d->at - d->begin);
    if (header > room || stored > room || bytes > SANE)
        FAIL(d, at,
            "the zip entry \"%s\" (%" PRIu64 " bytes at %" PRIu64
            ") reaches beyond the directory at %" PRId64,
            entry->name, stored, header, d->at);
    if (method == 0 && stored != bytes)
        FAIL(d, at, "the zip entry \"%s\" is stored in %" PRIu64 " bytes but has %" PRIu64,
            entry->name, stored, bytes);
    entry->header = d->begin + (int64_t)header;
    entry->stored = (int64_t)stored;
    entry->bytes = (int64_t)bytes;
    entry->deflated = method == 8;
    return RS_OK;
}

/* The local header: where the payload starts, and that it belongs to this entry. */
static rs_status read_local(directory *d, rs_zip_entry *entry)
{
    unsigned char p[LOCAL_BYTES];
    if (d->at - entry->header < LOCAL_BYTES)
        FAIL(d, entry->header, "the local header of \"%s\" reaches into the zip directory",
            entry->name);
    RS_TRY(rs_files_read(d->files, d->file, entry->header, p, sizeof p));
    if (rs_le32(p) != SIGNATURE_LOCAL)
        FAIL(d, entry->header, "no local header of the zip entry \"%s\" here", entry->name);
    size_t name_bytes = rs_le16(p + 26);
    int64_t offset = entry->header + LOCAL_BYTES + (int64_t)name_bytes + (int64_t)rs_le16(p + 28);
    if (offset > d->at || entry->stored > d->at - offset)
        FAIL(d, entry->header,
            "the zip entry \"%s\" (%" PRId64 " bytes) reaches into the directory at %" PRId64,
            entry->name, entry->stored, d->at);
    size_t length = strlen(entry->name);
    char *name = rs_calloc(name_bytes + 1, 1);
    if (name == NULL)
        return rs_error_memory(name_bytes + 1);
    rs_status status =
        rs_files_read(d->files, d->file, entry->header + LOCAL_BYTES, name, name_bytes);
    if (status == RS_OK && (length != name_bytes || memcmp(name, entry->name, length) != 0))
        status = rs_files_malformed(d->files, d->file, entry->header,
            "the directory has \"%s\" here, the local header says \"%s\"", entry->name, name);
    free(name);
    entry->offset = offset;
    return status;
}

static int by_header(const void *a, const void *b)
{
    const rs_zip_entry *x = *(const rs_zip_entry *const *)a;
    const rs_zip_entry *y = *(const rs_zip_entry *const *)b;
    return rs_compare(x->header, y->header);
}

static rs_status check_overlaps(directory *d, const rs_zip *zip)
{
    const rs_zip_entry **order = rs_calloc(zip->count, sizeof *order);
    if (order == NULL)
        return rs_error_memory(zip->count * sizeof *order);
    for (size_t i = 0; i < zip->count; i++)
        order[i] = &zip->items[i];
    qsort(order, zip->count, sizeof *order, by_header);
    rs_status status = RS_OK;
    for (size_t i = 0; i + 1 < zip->count && status == RS_OK; i++)
        if (order[i]->offset + order[i]->stored > order[i + 1]->header)
            status = rs_files_malformed(d->files, d->file, order[i + 1]->header,
                "the zip entries \"%s\" and \"%s\" overlap", order[i]->name, order[i + 1]->name);
    free(order);
    return status;
}

static rs_status read_entries(directory *d, rs_reader *reader, rs_zip *zip)
{
    zip->items = rs_calloc((size_t)d->count, sizeof *zip->items);
    if (zip->items == NULL)
        return rs_error_memory((size_t)d->count * sizeof *zip->items);
    for (; zip->count < d->count; zip->count++) {
        rs_zip_entry *entry = &zip->items[zip->count];
        int64_t at = reader->position;
        RS_TRY(read_entry(d, reader, zip, entry));
        RS_TRY(read_local(d, entry));
        int found;
        RS_TRY(rs_names_add(&zip->names, entry->name, (int)zip->count, &found));
        if (found >= 0)
            FAIL(d, at, "two zip entries are named \"%s\"", entry->name);
    }
    if (reader->position != d->at + d->bytes)
        FAIL(d, reader->position, "%" PRId64 " bytes of the zip directory are no entries",
            d->at + d->bytes - reader->position);
    return check_overlaps(d, zip);
}

rs_status rs_zip_read(rs_files *files, int file, int64_t begin, int64_t end, rs_zip *zip)
{
    *zip = (rs_zip){.pool.limit = (size_t)128 << 20};
    directory d = {.files = files, .file = file, .begin = begin, .end = end};
    RS_TRY(locate(&d, zip));
    rs_reader reader;
    RS_TRY(rs_reader_init(&reader, files, file, d.at, d.at + d.bytes));
    rs_status status = read_entries(&d, &reader, zip);
    rs_reader_fini(&reader);
    return status;
}

void rs_zip_fini(rs_zip *zip)
{
    free(zip->items);
    rs_names_fini(&zip->names);
    rs_pool_fini(&zip->pool);
    memset(zip, 0, sizeof *zip);
}

const rs_zip_entry *rs_zip_find(const rs_zip *zip, const char *name)
{
    int number = rs_names_find(&zip->names, name);
    return number >= 0 ? &zip->items[number] : NULL;
}
