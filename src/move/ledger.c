/*
 * Ledgers: the file of a rank's progress within a step.
 *
 * docs/arena.md specifies the bytes: a page that is written once, a page of words and notes, a page
 * of slots, the slots' journals, the work memory.
 *
 * 1. What is written once is checked before anything else is used: magic, version, hash, job, boot,
 * generation, rank, and that the file has the bytes that the sizes ask for.
 * 2. A word is stored with release and loaded with acquire. A killed process's stores to shared
 * memory stand, in the order in which they were made; so a word proves everything that its writer
 * wrote before it.
 * 3. A slot's progress is one word, 2 * piece + (1 if its old bytes are in the journal): there is
 * no instant at which it is half written. A fence after it keeps the changes of the piece behind
 * it.
 * 4. There are two notes, of even and of odd steps, each with its step and a check, so that one
 * being written never takes away the one before.
 */
#include "reshard/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/crash.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "move/arena_table.h"

#define VERSION 1
#define PAGE RS_ARENA_PAGE
#define MAX_SLOTS 64 /* a page of them */

static const char magic[8] = {'R', 'S', 'L', 'E', 'D', 'G', 'R', '\n'};

/* The first page: written once. */
typedef struct file_header {
    char magic[8];
    uint32_t version;
    int32_t slots;
    rs_stamp stamp;
    int64_t work_bytes;
    int64_t slot_bytes;
    uint64_t hash; /* XXH3 of the bytes before */
} file_header;

typedef struct note_slot {
    int64_t step;
    uint64_t bytes;
    char data[RS_LEDGER_NOTE];
    uint64_t check; /* XXH3 of the members before */
} note_slot;

/* The second page. */
typedef struct words {
    int64_t word[RS_LEDGER_WORDS];
    uint64_t pieces;
    note_slot note[2];
} words;

/* A line of the third page: 64 bytes, so that no two threads write to one cache line. */
typedef struct slot {
    int64_t begin;
    int64_t end;
    uint64_t mark; /* 2 * piece + open */
    uint64_t unused[5];
} slot;

_Static_assert(sizeof(words) <= PAGE, "words and notes are one page");
_Static_assert(sizeof(slot) == 64 && MAX_SLOTS * sizeof(slot) <= PAGE, "slots are one page");

struct rs_ledger {
    rs_ledger_shape shape;
    char *base;
    int64_t bytes;
    int64_t journal; /* bytes from one slot's journal to the next */
    int64_t work;    /* offset */
    int fd;
    words *words;
    slot *slots;
    char name[RS_ARENA_NAME];
};

rs_status rs_ledger_bytes(const rs_ledger_shape *shape, int64_t *bytes)
{
    int64_t journals, work;
    if (shape->slots < 1 || shape->slots > MAX_SLOTS)
        return rs_error_set(
            RS_ERR_ARGUMENT, "a ledger has 1 to %d slots, wanted %d", MAX_SLOTS, shape->slots);
    if (shape->slot_bytes < 0 || shape->work_bytes < 0 || shape->slot_bytes > INT64_MAX / 2 ||
        shape->work_bytes > INT64_MAX / 2 ||
        !rs_mul_fits(rs_round_up(shape->slot_bytes, PAGE), shape->slots, &journals) ||
        !rs_add_fits(journals, rs_round_up(shape->work_bytes, PAGE), &work) ||
        !rs_add_fits(work, 3 * PAGE, bytes))
        return rs_error_set(RS_ERR_OVERFLOW, "the ledger's sizes do not fit 64 bits");
    return RS_OK;
}

static uint64_t hash_header(const file_header *header)
{
    return XXH3_64bits(header, offsetof(file_header, hash));
}

void rs_ledger_close(rs_ledger *ledger)
{
    if (ledger == NULL)
        return;
    if (ledger->base != NULL)
        munmap(ledger->base, (size_t)ledger->bytes);
    if (ledger->fd >= 0)
        close(ledger->fd);
    free(ledger);
}

/* Maps the open file; takes `fd`. */
static rs_status map_file(
    int fd, const char *name, const rs_ledger_shape *shape, bool writable, rs_ledger **out)
{
    rs_status status;
    rs_ledger *ledger = rs_calloc(1, sizeof *ledger);
    if (ledger == NULL) {
        close(fd);
        return rs_error_memory(sizeof *ledger);
    }
    ledger->fd = fd;
    ledger->shape = *shape;
    memcpy(ledger->name, name, strlen(name));
    RS_TRY_GOTO(rs_ledger_bytes(shape, &ledger->bytes), fail);
    ledger->journal = rs_round_up(shape->slot_bytes, PAGE);
    ledger->work = 3 * PAGE + shape->slots * ledger->journal;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *base = mmap(NULL, (size_t)ledger->bytes, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        status = rs_error_errno(errno, "cannot map %s", name);
        goto fail;
    }
    ledger->base = base;
    ledger->words = (words *)(void *)(ledger->base + PAGE);
    ledger->slots = (slot *)(void *)(ledger->base + (ptrdiff_t)(2 * PAGE));
    ledger->shape.pieces = ledger->words->pieces;
    *out = ledger;
    return RS_OK;
fail:
    rs_ledger_close(ledger);
    return status;
}

static rs_status reserve(const rs_keeper *keeper, const char *name, int fd, int64_t at, int64_t n)
{
    int64_t have = 0;
    char wanted[RS_HUMAN], found[RS_HUMAN];
    int error = 0;
    if (keeper != NULL)
        RS_TRY(rs_keeper_free_bytes(keeper, &have));
    if (n == 0)
        return RS_OK;
    if (keeper != NULL && n > have)
        error = ENOSPC;
    while (error == 0 && (error = posix_fallocate(fd, (off_t)at, (off_t)n)) == EINTR)
        error = 0;
    if (error == 0)
        return RS_OK;
    if (error != ENOSPC && error != ENOMEM && error != EDQUOT)
        return rs_error_errno(error, "cannot reserve %" PRId64 " bytes of %s", n, name);
    return rs_error_set(RS_ERR_BUDGET, "%s needs %s for gradients; %s are free", name,
        rs_human_bytes(n, wanted), rs_human_bytes(have, found));
}

static rs_status fill_file(const rs_keeper *keeper, int generation, int rank, const char *name,
    const rs_ledger_shape *shape, bool sparse, int fd)
{
    int64_t bytes;
    RS_TRY(rs_ledger_bytes(shape, &bytes));
    if (ftruncate(fd, (off_t)bytes) != 0)
        return rs_error_errno(errno, "cannot size %s/%s", keeper->folder, name);
    int64_t first = sparse ? bytes - rs_round_up(shape->work_bytes, PAGE) : bytes;
    RS_TRY(reserve(keeper, name, fd, 0, first));
    file_header header = {.version = VERSION,
        .slots = shape->slots,
        .work_bytes = shape->work_bytes,
        .slot_bytes = shape->slot_bytes};
    memcpy(header.magic, magic, sizeof magic);
    rs_stamp_set(keeper, generation, rank, &header.stamp);
    header.hash = hash_header(&header);
    uint64_t pieces = shape->pieces;
    if (!rs_file_write_at(fd, &pieces, sizeof pieces, PAGE + offsetof(words, pieces)) ||
        !rs_file_write_at(fd, &header, sizeof header, 0))
        return rs_error_errno(errno, "cannot write %s/%s", keeper->folder, name);
    return RS_OK;
}

rs_status rs_ledger_create(rs_keeper *keeper, int generation, int rank,
    const rs_ledger_shape *shape, bool sparse, rs_ledger **out)
{
    char name[RS_ARENA_NAME];
    if (generation < 0 || rank < 0)
        return rs_error_set(
            RS_ERR_ARGUMENT, "ledger of generation %d, rank %d: both from 0 on", generation, rank);
    rs_arena_file_name(keeper, generation, rank, RS_ARENA_LEDGER, name);
    int fd = openat(
        keeper->fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return rs_error_errno(errno, "cannot create %s/%s", keeper->folder, name);
    rs_status status = fill_file(keeper, generation, rank, name, shape, sparse, fd);
    if (status == RS_OK)
        status = map_file(fd, name, shape, true, out);
    else
        close(fd);
    if (status != RS_OK)
        unlinkat(keeper->fd, name, 0);
    return status;
}

static rs_status check_header(
    const rs_keeper *keeper, int generation, int rank, const file_header *header, int64_t size)
{
    int64_t bytes;
    if (memcmp(header->magic, magic, sizeof magic) != 0)
        return rs_error_set(RS_ERR_MALFORMED, "not a ledger");
    if (header->version != VERSION)
        return rs_error_set(RS_ERR_MISMATCH, "format version %" PRIu32 ", this library reads %d",
            header->version, VERSION);
    if (header->hash != hash_header(header))
        return rs_error_set(RS_ERR_MALFORMED, "the header's checksum is wrong");
    RS_TRY(rs_stamp_check(keeper, generation, rank, &header->stamp));
    rs_ledger_shape shape = {header->work_bytes, header->slots, header->slot_bytes, 0};
    if (rs_ledger_bytes(&shape, &bytes) != RS_OK || bytes != size)
        return rs_error_set(
            RS_ERR_MALFORMED, "the file has %" PRId64 " bytes, which is wrong", size);
    return RS_OK;
}

rs_status rs_ledger_open(
    rs_keeper *keeper, int generation, int rank, bool writable, rs_ledger **out)
{
    char name[RS_ARENA_NAME];
    file_header header;
    struct stat info;
    int fd;
    rs_arena_file_name(keeper, generation, rank, RS_ARENA_LEDGER, name);
    RS_TRY(rs_arena_file_open(keeper, name, writable, &fd));
    rs_status status = RS_OK;
    if (fstat(fd, &info) != 0)
        status = rs_error_errno(errno, "cannot ask for its size");
    else if (info.st_size < PAGE || !rs_file_read_at(fd, &header, sizeof header, 0))
        status = rs_error_set(RS_ERR_MALFORMED, "only %lld bytes long", (long long)info.st_size);
    else
        status = check_header(keeper, generation, rank, &header, info.st_size);
    if (status != RS_OK) {
        close(fd);
        return rs_error_context(status, "%s/%s", keeper->folder, name);
    }
    rs_ledger_shape shape = {header.work_bytes, header.slots, header.slot_bytes, 0};
    return map_file(fd, name, &shape, writable, out);
}

const rs_ledger_shape *rs_ledger_shape_of(const rs_ledger *ledger)
{
    return &ledger->shape;
}

void *rs_ledger_work(const rs_ledger *ledger)
{
    return ledger->base + ledger->work;
}

rs_status rs_ledger_reserve(rs_ledger *ledger)
{
    return reserve(
        NULL, ledger->name, ledger->fd, ledger->work, rs_round_up(ledger->shape.work_bytes, PAGE));
}

rs_status rs_ledger_punch(rs_ledger *ledger)
{
    int64_t bytes = rs_round_up(ledger->shape.work_bytes, PAGE);
    if (bytes > 0 && fallocate(ledger->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         (off_t)ledger->work, (off_t)bytes) != 0)
        return rs_error_errno(
            errno, "cannot give back %" PRId64 " bytes of %s", bytes, ledger->name);
    return RS_OK;
}

/* ---- words ---- */

int64_t rs_ledger_get(const rs_ledger *ledger, rs_ledger_word word)
{
    return __atomic_load_n(&ledger->words->word[word], __ATOMIC_ACQUIRE);
}

void rs_ledger_set(rs_ledger *ledger, rs_ledger_word word, int64_t value)
{
    __atomic_store_n(&ledger->words->word[word], value, __ATOMIC_RELEASE);
    atomic_thread_fence(memory_order_release);
}

void rs_ledger_settle(rs_ledger *ledger, int64_t step)
{
    for (int word = 0; word < RS_LEDGER_WORDS; word++)
        rs_ledger_set(ledger, (rs_ledger_word)word, step);
}

static uint64_t note_check(const note_slot *note)
{
    return XXH3_64bits(note, offsetof(note_slot, check));
}

void rs_ledger_write_note(rs_ledger *ledger, int64_t step, const void *note, size_t bytes)
{
    note_slot filled = {.step = step, .bytes = bytes};
    memcpy(filled.data, note, bytes < RS_LEDGER_NOTE ? bytes : RS_LEDGER_NOTE);
    filled.check = note_check(&filled);
    ledger->words->note[step & 1] = filled;
}

bool rs_ledger_read_note(const rs_ledger *ledger, int64_t step, void *note, size_t bytes)
{
    note_slot found = ledger->words->note[step & 1];
    if (found.check != note_check(&found) || found.step != step || found.bytes != bytes ||
        bytes > RS_LEDGER_NOTE)
        return false;
    memcpy(note, found.data, bytes);
    return true;
}

rs_status rs_ledger_set_pieces(rs_ledger *ledger, uint64_t pieces)
{
    if (ledger->shape.pieces == 0) {
        ledger->shape.pieces = pieces;
        __atomic_store_n(&ledger->words->pieces, pieces, __ATOMIC_RELEASE);
    }
    if (ledger->shape.pieces == pieces)
        return RS_OK;
    return rs_error_set(RS_ERR_MISMATCH,
        "%s: the state is cut into other pieces (%016" PRIx64
        ") than those of its journal (%016" PRIx64 ")",
        ledger->name, pieces, ledger->shape.pieces);
}

/* ---- journal ---- */

void rs_ledger_begin_slot(rs_ledger *ledger, int number, int64_t begin, int64_t end)
{
    slot *s = &ledger->slots[number];
    s->begin = begin;
    s->end = end;
    __atomic_store_n(&s->mark, 2 * (uint64_t)begin, __ATOMIC_RELEASE);
}

void *rs_ledger_journal(const rs_ledger *ledger, int number)
{
    return ledger->base + 3 * PAGE + number * ledger->journal;
}

void rs_ledger_open_piece(rs_ledger *ledger, int number, int64_t piece)
{
    __atomic_store_n(&ledger->slots[number].mark, 2 * (uint64_t)piece + 1, __ATOMIC_RELEASE);
    atomic_thread_fence(memory_order_release);
    rs_crash_point("opened");
}

void rs_ledger_close_piece(rs_ledger *ledger, int number, int64_t piece)
{
    __atomic_store_n(&ledger->slots[number].mark, 2 * (uint64_t)piece + 2, __ATOMIC_RELEASE);
    atomic_thread_fence(memory_order_release);
    rs_crash_point("closed");
}

rs_status rs_ledger_look(const rs_ledger *ledger, int number, rs_ledger_progress *out)
{
    const slot *s = &ledger->slots[number];
    uint64_t mark = __atomic_load_n(&s->mark, __ATOMIC_ACQUIRE);
    rs_ledger_progress found = {.next = (int64_t)(mark / 2), .end = s->end, .open = mark % 2 == 1};
    if (s->begin < 0 || found.next < s->begin || found.next > s->end ||
        (found.open && found.next == s->end))
        return rs_error_set(RS_ERR_MALFORMED,
            "%s: slot %d: impossible progress (pieces %" PRId64 " to %" PRId64 ", at %" PRId64 ")",
            ledger->name, number, s->begin, s->end, found.next);
    *out = found;
    return RS_OK;
}
