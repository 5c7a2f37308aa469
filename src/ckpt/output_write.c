/*
 * Writing an output: each file in chunks, front to back, by a few threads of a few processes.
 *
 * A chunk is a range of a file's bytes that begins at a multiple of the chunk size. A thread takes
 * the next one, puts it together in its buffer (what is given is copied, what is a tensor's is read
 * from wherever it lies, cast if need be), and writes it with one call. Many small tensors are then
 * one write, and writes are aligned. The chunks of all files in a row are divided over the
 * processes of the group, a run of them for each, of about as many bytes.
 *
 * Checksums. Content sums add, CRC-32s of neighbours combine: both are taken of a chunk's piece of
 * a part wherever it is made. An XXH3 goes through a part from its first byte to its last: where a
 * part lies in several chunks their threads take turns, in order, each adding its piece to one
 * state. A chunk is taken only after those before it were, so the one whose turn it is, is at work.
 * Where a part reaches into the next process's chunks, the one that has its beginning reads the
 * rest again, for the checksum alone.
 *
 * 1. Memory is the buffers, a fixed number whatever the sizes, and the list itself.
 * 2. What is written does not depend on threads, processes or chunks.
 * 3. A file is synced by every process that wrote to it, as soon as that has no more to write to
 * it.
 * 4. After an error or a cancellation each process stops at its next chunk; all learn of it at the
 *    end of the phase, and none returns before.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>
#include <zlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"
#include "base/workers.h"
#include "ckpt/file.h"
#include "ckpt/output.h"
#include "ckpt/publish.h"
#include "ckpt/sink.h"
#include "move/checksum.h"

#define MEMORY ((int64_t)256 << 20)
#define CHUNK ((int64_t)8 << 20)
#define CHUNK_IN_MEMORY ((int64_t)1 << 20) /* stays in a cache between read and write */
#define CHUNK_LEAST ((int64_t)64 << 10)
#define HUGE_PAGE ((int64_t)2 << 20)
#define THREADS_MOST 16
#define WORDS 3 /* of a part in the sum over the group: XXH3, content */

typedef struct target {
    rs_sink sink;
    bool open;
    int64_t first_chunk; /* of the row of all chunks */
    int64_t left;        /* chunks of this process that are not written yet */
} target;

typedef struct writing {
    rs_output *output;
    const rs_output_how *how;
    rs_sink_way way;
    int threads;
    int64_t chunk, span, block; /* bytes of the buffers of a thread */
    target *targets;            /* of each file */
    int64_t chunks;             /* of all files */
    int64_t begin, end;         /* those of this process */
    int64_t all;                /* their bytes */
    uint64_t *words;            /* WORDS for each part, then the CRCs of pieces */
    size_t word_count;
    size_t *crcs; /* per part: where its pieces' CRCs begin in `words` */
    atomic_int_least64_t next;
    atomic_bool stop;
    pthread_mutex_t lock; /* of all below, and `open` and `left` */
    pthread_cond_t turn;
    int64_t hashed; /* chunks before it have added to `hash` */
    XXH3_state_t *hash;
    int64_t done;
} writing;

/* A thread's own. */
typedef struct hand {
    writing *w;
    unsigned char *buffer;
    rs_scratch scratch;
} hand;

static bool is_lead(const writing *w)
{
    return rs_group_rank(w->how->group) == 0;
}

/* ---- chunks ---- */

static int64_t chunks_of(const writing *w, const rs_output_file_row *file)
{
    return rs_max64(rs_ceil_div(file->bytes, w->chunk), 1);
}

static int file_of_chunk(const writing *w, int64_t chunk)
{
    size_t next = RS_SEARCH(w->output->files.count, k, w->targets[k].first_chunk <= chunk);
    return (int)next - 1;
}

/* A chunk as bytes of its file. */
typedef struct range {
    int file;
    int64_t begin, end;
} range;

static range range_of(const writing *w, int64_t chunk)
{
    range r = {.file = file_of_chunk(w, chunk)};
    r.begin = (chunk - w->targets[r.file].first_chunk) * w->chunk;
    r.end = rs_min64(r.begin + w->chunk, w->output->files.items[r.file].bytes);
    return r;
}

static int64_t chunk_at(const writing *w, const rs_output_part *part, int64_t offset)
{
    return w->targets[part->file].first_chunk + offset / w->chunk;
}

/* The first part of the range's file that ends behind its beginning. */
static size_t first_part(const writing *w, range r)
{
    const rs_output_file_row *file = &w->output->files.items[r.file];
    const rs_output_part *parts = w->output->parts.items + file->first_part;
    return file->first_part +
           RS_SEARCH(file->part_count, k, parts[k].offset + parts[k].bytes <= r.begin);
}

/* The piece of a part that lies in a range; false if there is none. */
static bool piece_of(const rs_output_part *part, range r, int64_t *from, int64_t *to)
{
    *from = rs_max64(part->offset, r.begin);
    *to = rs_min64(part->offset + part->bytes, r.end);
    return *from < *to;
}

/* ---- making a chunk ---- */

/* Bytes [from, to) of a tensor. An element that lies across a border is read for each side. */
static rs_status read_bytes(
    hand *h, const rs_logical *tensor, int64_t from, int64_t to, unsigned char *out)
{
    const rs_catalog *catalog = h->w->how->catalog;
    int64_t size = (int64_t)rs_dtype_size(tensor->dtype);
    unsigned char element[32];
    while (from < to) {
        int64_t index = from / size, skip = from % size, whole = to / size;
        if (skip == 0 && index < whole) {
            RS_TRY(rs_logical_read(catalog, tensor, &h->scratch, index, whole, out));
            out += (whole - index) * size;
            from = whole * size;
            continue;
        }
        int64_t part = rs_min64(size - skip, to - from);
        RS_TRY(rs_logical_read(catalog, tensor, &h->scratch, index, index + 1, element));
        memcpy(out, element + skip, (size_t)part);
        out += part;
        from += part;
    }
    return RS_OK;
}

/* The content sum of bytes [from, to) of a tensor, which lie at `data`. */
static rs_sum content_of(
    const rs_catalog *catalog, const rs_logical *tensor, int64_t from, int64_t to, const void *data)
{
    const rs_checkpoint_entry *entry = &rs_catalog_get(catalog, tensor->id)->is;
    int64_t size = (int64_t)rs_dtype_size(tensor->dtype);
    return rs_sum_range(rs_sum_key(entry->name, tensor->role), entry->shape, &tensor->box,
        (size_t)size, from / size, to / size, data);
}

/* Puts bytes of a range together, and takes the sums that need no turn. */
static rs_status make(hand *h, range r)
{
    writing *w = h->w;
    const rs_output_file_row *file = &w->output->files.items[r.file];
    for (size_t i = first_part(w, r); i < file->first_part + file->part_count; i++) {
        const rs_output_part *part = &w->output->parts.items[i];
        unsigned char *to;
        int64_t begin, end;
        if (part->offset >= r.end)
            break;
        if (!piece_of(part, r, &begin, &end))
            continue;
        to = h->buffer + (begin - r.begin);
        size_t bytes = (size_t)(end - begin);
        if (part->tensor != NULL)
            RS_TRY(read_bytes(h, part->tensor, begin - part->offset, end - part->offset, to));
        else if (part->data != NULL)
            memcpy(to, (const char *)part->data + (begin - part->offset), bytes);
        else
            memset(to, 0, bytes);
        if (part->sums & RS_OUTPUT_CRC32)
            w->words[w->crcs[i] + (size_t)(begin / w->chunk - part->offset / w->chunk)] =
                crc32_z(0, to, bytes);
        if (part->sums & RS_OUTPUT_CONTENT) {
            rs_sum sum = content_of(
                w->how->catalog, part->tensor, begin - part->offset, end - part->offset, to);
            pthread_mutex_lock(&w->lock);
            w->words[WORDS * i + 1] += sum.lane[0];
            w->words[WORDS * i + 2] += sum.lane[1];
            pthread_mutex_unlock(&w->lock);
        }
        if ((part->sums & RS_OUTPUT_XXH3) && end - begin == part->bytes)
            w->words[WORDS * i] = XXH3_64bits(to, bytes);
    }
    return RS_OK;
}

/* Adds a chunk's pieces of parts that lie in several; the parts that began before this process's
 * chunks are another's. */
static void hash_pieces(hand *h, range r)
{
    writing *w = h->w;
    const rs_output_file_row *file = &w->output->files.items[r.file];
    for (size_t i = first_part(w, r); i < file->first_part + file->part_count; i++) {
        const rs_output_part *part = &w->output->parts.items[i];
        int64_t begin, end;
        if (part->offset >= r.end)
            break;
        if (!(part->sums & RS_OUTPUT_XXH3) || !piece_of(part, r, &begin, &end) ||
            end - begin == part->bytes || chunk_at(w, part, part->offset) < w->begin)
            continue;
        if (begin == part->offset)
            XXH3_64bits_reset(w->hash);
        XXH3_64bits_update(w->hash, h->buffer + (begin - r.begin), (size_t)(end - begin));
        if (end == part->offset + part->bytes)
            w->words[WORDS * i] = XXH3_64bits_digest(w->hash);
    }
}

/* Waits until the chunks before this one have added theirs; false: none will. */
static bool hash_in_turn(hand *h, int64_t chunk, range r)
{
    writing *w = h->w;
    if (w->hash == NULL)
        return true;
    pthread_mutex_lock(&w->lock);
    while (w->hashed < chunk && !atomic_load(&w->stop))
        pthread_cond_wait(&w->turn, &w->lock);
    bool mine = w->hashed == chunk;
    pthread_mutex_unlock(&w->lock);
    if (!mine)
        return false;
    hash_pieces(h, r);
    pthread_mutex_lock(&w->lock);
    w->hashed = chunk + 1;
    pthread_cond_broadcast(&w->turn);
    pthread_mutex_unlock(&w->lock);
    return true;
}

/* ---- writing chunks ---- */

static rs_status open_target(writing *w, int file)
{
    target *t = &w->targets[file];
    char *path = NULL;
    rs_status status = RS_OK;
    pthread_mutex_lock(&w->lock);
    if (!t->open) {
        status = rs_path_join(w->how->folder, w->output->files.items[file].name, &path);
        if (status == RS_OK)
            status = rs_sink_open(&t->sink, path, w->output->files.items[file].bytes, w->way);
        t->open = status == RS_OK;
        free(path);
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* Counts a written chunk; closes its file after the last one. */
static rs_status count_chunk(writing *w, range r)
{
    target *t = &w->targets[r.file];
    const rs_output_how *how = w->how;
    pthread_mutex_lock(&w->lock);
    bool last = --t->left == 0;
    w->done += r.end - r.begin;
    if (how->progress != NULL)
        how->progress(how->progress_context, w->done, w->all);
    if (last)
        t->open = false;
    pthread_mutex_unlock(&w->lock);
    if (!last)
        return RS_OK;
    return rs_sink_close(&t->sink, !is_lead(w) || !w->output->files.items[r.file].has_room);
}

static rs_status do_chunk(hand *h, int64_t chunk)
{
    writing *w = h->w;
    range r = range_of(w, chunk);
    if (w->how->cancelled != NULL && w->how->cancelled(w->how->cancelled_context))
        return rs_error_set(RS_ERR_CANCELLED, "interrupted");
    RS_TRY(open_target(w, r.file));
    RS_TRY(make(h, r));
    if (!hash_in_turn(h, chunk, r))
        return RS_OK; /* another thread has failed, and says why */
    if (r.end > r.begin)
        RS_TRY(
            rs_sink_write(&w->targets[r.file].sink, r.begin, h->buffer, (size_t)(r.end - r.begin)));
    return count_chunk(w, r);
}

/* Of a part that goes on behind this process's chunks: the rest, for its checksum alone. */
static rs_status hash_rest(hand *h)
{
    writing *w = h->w;
    if (w->hash == NULL || w->end == w->chunks || w->begin == w->end)
        return RS_OK;
    range r = range_of(w, w->end - 1);
    const rs_output_file_row *file = &w->output->files.items[r.file];
    for (size_t i = first_part(w, r); i < file->first_part + file->part_count; i++) {
        const rs_output_part *part = &w->output->parts.items[i];
        int64_t end = part->offset + part->bytes;
        if (part->offset >= r.end)
            break;
        if (!(part->sums & RS_OUTPUT_XXH3) || end <= r.end ||
            chunk_at(w, part, part->offset) < w->begin)
            continue;
        for (int64_t at = r.end; at < end; at += w->chunk) {
            size_t bytes = (size_t)rs_min64(w->chunk, end - at);
            RS_TRY(read_bytes(
                h, part->tensor, at - part->offset, at - part->offset + (int64_t)bytes, h->buffer));
            XXH3_64bits_update(w->hash, h->buffer, bytes);
        }
        w->words[WORDS * i] = XXH3_64bits_digest(w->hash);
    }
    return RS_OK;
}

static void stop_all(writing *w)
{
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->stop, true);
    pthread_cond_broadcast(&w->turn);
    pthread_mutex_unlock(&w->lock);
}

/* Memory in huge pages, where there are any: the disk takes it in few large pieces. */
static unsigned char *take_buffer(int64_t bytes)
{
    int64_t all = bytes + RS_SINK_ALIGN;
    if (bytes >= HUGE_PAGE)
        all = bytes + HUGE_PAGE;
    void *buffer = NULL;
    if (posix_memalign(
            &buffer, (size_t)(bytes >= HUGE_PAGE ? HUGE_PAGE : RS_SINK_ALIGN), (size_t)all) != 0)
        return NULL;
    if (bytes >= HUGE_PAGE)
        (void)madvise(buffer, (size_t)bytes, MADV_HUGEPAGE);
    memset(buffer, 0, (size_t)all);
    return buffer;
}

static rs_status work(void *context, int thread)
{
    writing *w = context;
    (void)thread;
    hand h = {.w = w, .scratch = {.span = w->span, .block = w->block}};
    rs_status status = RS_OK;
    h.buffer = take_buffer(w->chunk);
    if (h.buffer == NULL)
        status = rs_error_memory((size_t)w->chunk);
    while (status == RS_OK && !atomic_load(&w->stop)) {
        int64_t chunk = atomic_fetch_add(&w->next, 1);
        if (chunk >= w->end) {
            /* The state of the checksum is complete when the last chunk has had its turn. */
            if (chunk == w->end && hash_in_turn(&h, chunk, (range){0}))
                status = hash_rest(&h);
            break;
        }
        status = do_chunk(&h, chunk);
    }
    if (status != RS_OK)
        stop_all(w);
    free(h.buffer);
    rs_scratch_fini(&h.scratch);
    return status;
}

/* ---- folders and files ---- */

/* Calls for each folder that the files' names have, those above first. A folder whose files are not
 * listed in a row is met more than once. */
static rs_status for_folders(const writing *w, rs_status (*function)(const char *path))
{
    const char *before = "";
    char *path = NULL;
    rs_status status = RS_OK;
    for (size_t i = 0; i < w->output->files.count; i++) {
        const char *name = w->output->files.items[i].name;
        for (const char *slash = strchr(name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
            size_t length = (size_t)(slash - name);
            if (strncmp(name, before, length + 1) == 0)
                continue;
            RS_TRY(rs_path_join(w->how->folder, name, &path));
            path[strlen(path) - strlen(slash)] = '\0';
            status = function(path);
            free(path);
            RS_TRY(status);
        }
        before = name;
    }
    return RS_OK;
}

static rs_status make_files(const writing *w)
{
    if (!is_lead(w))
        return RS_OK;
    RS_TRY(for_folders(w, rs_make_folder));
    for (size_t i = 0; i < w->output->files.count; i++) {
        const rs_output_file_row *file = &w->output->files.items[i];
        char *path;
        RS_TRY(rs_path_join(w->how->folder, file->name, &path));
        rs_status status = rs_sink_make(path, file->bytes, w->way);
        free(path);
        RS_TRY(status);
    }
    return RS_OK;
}

static rs_status fill_file(const writing *w, int number)
{
    static const rs_sink_way plain = {false, false};
    const rs_output_file_row *file = &w->output->files.items[number];
    rs_sink sink = {.fd = -1};
    char *path = NULL;
    rs_status status;
    RS_TRY_GOTO(w->how->complete(w->how->context, number), out);
    RS_TRY_GOTO(rs_path_join(w->how->folder, file->name, &path), out);
    RS_TRY_GOTO(rs_sink_open(&sink, path, file->bytes, plain), out);
    for (size_t i = file->first_part; i < file->first_part + file->part_count; i++) {
        const rs_output_part *part = &w->output->parts.items[i];
        if (part->tensor != NULL || part->data == NULL || part->bytes == 0)
            continue;
        RS_TRY_GOTO(rs_sink_write(&sink, part->offset, part->data, (size_t)part->bytes), out);
    }
    RS_TRY_GOTO(rs_sink_close(&sink, true), out);
out:
    rs_sink_fini(&sink);
    free(path);
    return status;
}

static rs_status finish_files(const writing *w)
{
    if (!is_lead(w))
        return RS_OK;
    for (size_t i = 0; i < w->output->files.count; i++)
        if (w->output->files.items[i].has_room)
            RS_TRY(fill_file(w, (int)i));
    return for_folders(w, rs_sync_folder);
}

/* ---- the whole ---- */

static void choose_sizes(writing *w)
{
    int64_t memory = w->how->memory > 0 ? w->how->memory : MEMORY;
    /* Some threads wait for the disk: two more than there are processors. */
    int threads = w->how->threads > 0 ? w->how->threads : rs_workers_cores() + 2;
    if (rs_files_have_inflated(w->how->catalog->files))
        threads = 1; /* reading forward is what inflating is quick at */
    threads = (int)rs_min64(threads, rs_min64(THREADS_MOST, rs_max64(memory >> 20, 1)));
    int64_t each = memory / threads, most = w->way.memory ? CHUNK_IN_MEMORY : CHUNK;
    w->threads = threads;
    w->chunk = rs_min64(each / 2, most) / CHUNK_LEAST * CHUNK_LEAST;
    w->chunk = rs_max64(w->chunk, CHUNK_LEAST);
    w->span = rs_max64(rs_min64(each / 4, (int64_t)4 << 20), RS_SINK_ALIGN);
    w->block = rs_max64(rs_min64(each / 16, (int64_t)1 << 20), RS_SINK_ALIGN);
}

/* The first chunk of process `rank`: about as many bytes before it as its share. */
static int64_t first_of_rank(const writing *w, int64_t bytes, int rank)
{
    int size = rs_group_size(w->how->group);
    int64_t wanted = bytes / size * rank + bytes % size * rank / size, before = 0;
    if (rank == 0)
        return 0;
    if (rank == size)
        return w->chunks;
    for (size_t i = 0; i < w->output->files.count; i++) {
        const rs_output_file_row *file = &w->output->files.items[i];
        if (before + file->bytes > wanted)
            return w->targets[i].first_chunk + (wanted - before) / w->chunk;
        before += file->bytes;
    }
    return w->chunks;
}

static rs_status plan(writing *w)
{
    rs_output *output = w->output;
    int64_t bytes = 0;
    bool hashes = false;
    w->targets = rs_calloc(output->files.count, sizeof *w->targets);
    w->crcs = rs_calloc(output->parts.count, sizeof *w->crcs);
    if (w->targets == NULL || w->crcs == NULL)
        return rs_error_memory(output->files.count * sizeof *w->targets);
    for (size_t i = 0; i < output->files.count; i++) {
        w->targets[i].sink.fd = -1;
        w->targets[i].first_chunk = w->chunks;
        w->chunks += chunks_of(w, &output->files.items[i]);
        if (!rs_add_fits(bytes, output->files.items[i].bytes, &bytes))
            return rs_error_set(RS_ERR_OVERFLOW, "the files together overflow 64 bits");
    }
    w->word_count = WORDS * output->parts.count;
    for (size_t i = 0; i < output->parts.count; i++) {
        const rs_output_part *part = &output->parts.items[i];
        hashes = hashes || (part->sums & RS_OUTPUT_XXH3);
        w->crcs[i] = w->word_count;
        if ((part->sums & RS_OUTPUT_CRC32) && part->bytes > 0)
            w->word_count +=
                (size_t)((part->offset + part->bytes - 1) / w->chunk - part->offset / w->chunk + 1);
    }
    w->words = rs_calloc(w->word_count, sizeof *w->words);
    if (w->words == NULL || (hashes && (w->hash = XXH3_createState()) == NULL))
        return rs_error_memory(w->word_count * sizeof *w->words);
    w->begin = first_of_rank(w, bytes, rs_group_rank(w->how->group));
    w->end = first_of_rank(w, bytes, rs_group_rank(w->how->group) + 1);
    for (int64_t c = w->begin; c < w->end; c++) {
        range r = range_of(w, c);
        w->targets[r.file].left++;
        w->all += r.end - r.begin;
    }
    w->hashed = w->begin;
    atomic_init(&w->next, w->begin);
    return RS_OK;
}

/* Puts the sums of all processes where the caller looks for them. */
static void take_sums(writing *w)
{
    for (size_t i = 0; i < w->output->parts.count; i++) {
        rs_output_part *part = &w->output->parts.items[i];
        const uint64_t *words = w->words + WORDS * i;
        if (part->sums & RS_OUTPUT_XXH3)
            part->xxh3 = part->bytes > 0 ? words[0] : XXH3_64bits(NULL, 0);
        part->content = (rs_sum){{words[1], words[2]}};
        part->crc32 = 0;
        if (!(part->sums & RS_OUTPUT_CRC32))
            continue;
        size_t piece = w->crcs[i];
        for (int64_t at = part->offset, to; at < part->offset + part->bytes; at = to) {
            to = rs_min64((at / w->chunk + 1) * w->chunk, part->offset + part->bytes);
            part->crc32 = (uint32_t)crc32_combine(part->crc32, w->words[piece++], to - at);
        }
    }
}

rs_status rs_output_write(rs_output *output, const rs_output_how *how)
{
    writing w = {.output = output,
        .how = how,
        .way = rs_sink_find_way(how->folder),
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .turn = PTHREAD_COND_INITIALIZER};
    rs_status status;
    choose_sizes(&w);
    /* Chunks are of the same size everywhere. */
    uint64_t chunk = is_lead(&w) ? (uint64_t)w.chunk : 0;
    RS_TRY_GOTO(rs_group_add(how->group, &chunk, 1), out);
    w.chunk = (int64_t)chunk;
    status = plan(&w);
    if (status == RS_OK)
        status = make_files(&w);
    RS_TRY_GOTO(rs_group_agree(how->group, status), out);
    status = rs_workers_run(w.threads, work, &w);
    RS_TRY_GOTO(rs_group_agree(how->group, status), out);
    RS_TRY_GOTO(rs_group_add(how->group, w.words, w.word_count), out);
    take_sums(&w);
    RS_TRY_GOTO(rs_group_agree(how->group, finish_files(&w)), out);
out:
    for (size_t i = 0; i < output->files.count && w.targets != NULL; i++)
        rs_sink_fini(&w.targets[i].sink);
    XXH3_freeState(w.hash);
    free(w.targets);
    free(w.crcs);
    free(w.words);
    pthread_mutex_destroy(&w.lock);
    pthread_cond_destroy(&w.turn);
    return status;
}
