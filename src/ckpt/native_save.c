/*
 * One rank's part of a save: a copy in memory, and from it a safetensors file.
 *
 * What a rank writes are its *counted cells* (certificate.h): the common refinement of all holders'
 * boxes, of which the lowest holder counts. They tile the space, so every element is written by
 * exactly one rank, however boxes are replicated or overlap, and nothing is gathered.
 *
 * 1. After rs_save_begin nothing reads the state any more: training goes on at once.
 * 2. The copy is packed, one cell behind the other, and kept from save to save, so that its pages
 *    are faulted in once, at the latest by the first save, or ahead of it in slices.
 * 3. The file is written front to back in one pass over the copy: a block is hashed, summed and
 *    written while it is in the cache.
 *
 * Cost: one strided copy of what the rank writes; in the background one hash, one content sum and
 * one write of it.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/names.h"
#include "ckpt/native_names.h"
#include "ckpt/publish.h"
#include "ckpt/safetensors.h"
#include "move/checksum.h"
#include "reshard/certificate.h"
#include "reshard/move.h"

#define PAGE 4096
#define BLOCK ((int64_t)1 << 20)

typedef struct save_item {
    int tensor;
    int role;
    rs_dtype dtype;
    rs_box box;
    int64_t at; /* in the copy */
    int64_t bytes;
    char *name;
    int64_t offset; /* in the file */
    uint64_t hash;
    rs_sum sum;
} save_item;

struct rs_save {
    const rs_placement *placement;
    int holder;
    save_item *items;
    size_t count, capacity;
    char *copy;
    int64_t bytes;
    int64_t touched; /* bytes whose pages are there */
    char *record;
};

/* ---- the copy ---- */

static rs_status add_cell(rs_save *save, const rs_cell *cell)
{
    const rs_space *space = rs_placement_space(save->placement);
    char box[320];
    rs_text name = {0};
    rs_shard shard;
    RS_TRY(rs_placement_address(
        save->placement, save->holder, cell->tensor, cell->role, &cell->box, &shard));
    RS_TRY(rs_array_reserve(
        (void **)&save->items, &save->capacity, save->count + 1, sizeof *save->items));
    save_item *item = &save->items[save->count];
    *item = (save_item){
        .tensor = cell->tensor, .role = cell->role, .dtype = shard.dtype, .box = cell->box};
    item->at = save->bytes;
    item->bytes = rs_box_volume(&cell->box) * (int64_t)rs_dtype_size(shard.dtype);
    save->bytes += rs_round_up(item->bytes, 64);
    rs_text_append(&name, "%s/%s%s", rs_space_tensor(space, cell->tensor)->name,
        rs_space_role(space, cell->role)->name, rs_box_format(&cell->box, box, sizeof box));
    RS_TRY(rs_text_take(&name, &item->name));
    save->count++;
    return RS_OK;
}

static rs_status list_items(rs_save *save)
{
    rs_sums *sums = NULL;
    size_t count;
    rs_status status = RS_OK;
    RS_TRY(rs_sums_create(save->placement, save->holder, &sums));
    const rs_cell *cells = rs_sums_cells(sums, &count);
    for (size_t i = 0; i < count && status == RS_OK; i++)
        if (cells[i].counted && !rs_box_is_empty(&cells[i].box))
            status = add_cell(save, &cells[i]);
    rs_sums_destroy(sums);
    return status;
}

static rs_status make(const rs_placement *placement, int holder, rs_save **out)
{
    rs_status status;
    rs_save *save = rs_calloc(1, sizeof *save);
    if (save == NULL)
        return rs_error_memory(sizeof *save);
    save->placement = placement;
    save->holder = holder;
    RS_TRY_GOTO(list_items(save), fail);
    if (save->bytes > 0) {
        save->copy = mmap(
            NULL, (size_t)save->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (save->copy == MAP_FAILED) {
            save->copy = NULL;
            status = rs_error_memory((size_t)save->bytes);
            goto fail;
        }
        rs_large_pages(save->copy, (size_t)save->bytes);
    }
    *out = save;
    return RS_OK;

fail:
    rs_save_destroy(save);
    return status;
}

rs_status rs_save_begin(
    const rs_placement *placement, int holder, const rs_memory *memory, rs_save **save)
{
    bool made = *save == NULL;
    rs_save *s = *save;
    if (!made && (s->placement != placement || s->holder != holder))
        return rs_error_set(RS_ERR_ARGUMENT, "the save is one of another placement or holder");
    if (made)
        RS_TRY(make(placement, holder, &s));
    for (size_t i = 0; i < s->count; i++) {
        save_item *item = &s->items[i];
        rs_shard shard;
        int64_t packed[RS_MAX_DIMS];
        rs_status status =
            rs_placement_address(placement, holder, item->tensor, item->role, &item->box, &shard);
        const void *from = status == RS_OK ? rs_memory_shard(memory, &shard) : NULL;
        if (from == NULL) {
            if (status == RS_OK)
                status =
                    rs_error_set(RS_ERR_ARGUMENT, "the memory has no segment %d", shard.segment);
            if (made)
                rs_save_destroy(s);
            return status;
        }
        rs_sum_canonical(item->box.ndim, item->box.extent, rs_dtype_size(item->dtype), packed);
        rs_move_box(item->box.ndim, item->box.extent, rs_dtype_size(item->dtype),
            s->copy + item->at, packed, from, shard.stride);
    }
    free(s->record);
    s->record = NULL;
    s->touched = s->bytes;
    *save = s;
    return RS_OK;
}

rs_status rs_save_reserve(const rs_placement *placement, int holder, rs_save **save)
{
    return make(placement, holder, save);
}

int64_t rs_save_touch(rs_save *save, int64_t most)
{
    int64_t end = rs_min64(save->touched + most, save->bytes);
    for (int64_t at = save->touched; at < end; at += PAGE)
        *(volatile char *)(save->copy + at) = 0;
    save->touched = end;
    return save->bytes - end;
}

int64_t rs_save_bytes(const rs_save *save)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < save->count; i++)
        bytes += save->items[i].bytes;
    return bytes;
}

void rs_save_destroy(rs_save *save)
{
    if (save == NULL)
        return;
    for (size_t i = 0; i < save->count; i++)
        free(save->items[i].name);
    if (save->copy != NULL)
        munmap(save->copy, (size_t)save->bytes);
    free(save->items);
    free(save->record);
    free(save);
}

/* ---- the file ---- */

/* Writes an item, and takes its hash and its content sum on the way. */
static rs_status write_item(const rs_save *save, save_item *item, XXH3_state_t *hash, rs_out *out)
{
    const rs_tensor *tensor = rs_space_tensor(rs_placement_space(save->placement), item->tensor);
    const rs_role *role = rs_space_role(rs_placement_space(save->placement), item->role);
    int64_t size = (int64_t)rs_dtype_size(item->dtype);
    uint64_t key = rs_sum_key(tensor->name, role->name);
    item->sum = (rs_sum){0};
    XXH3_64bits_reset(hash);
    for (int64_t at = 0; at < item->bytes; at += BLOCK) {
        const char *data = save->copy + item->at + at;
        int64_t end = rs_min64(at + BLOCK, item->bytes);
        XXH3_64bits_update(hash, data, (size_t)(end - at));
        RS_TRY(rs_out_write(out, data, (size_t)(end - at)));
        rs_sum sum =
            rs_sum_range(key, tensor->shape, &item->box, (size_t)size, at / size, end / size, data);
        item->sum.lane[0] += sum.lane[0];
        item->sum.lane[1] += sum.lane[1];
    }
    item->hash = XXH3_64bits_digest(hash);
    return RS_OK;
}

/* Writes the head, then the items in the order of the file, in which `tensors` are. */
static rs_status write_data(rs_save *save, const rs_safetensors_tensor *tensors, const char *folder,
    const char *file, const char *head, size_t head_bytes)
{
    rs_names names = {0};
    rs_out out = {.fd = -1};
    rs_status status = RS_OK;
    XXH3_state_t *hash = XXH3_createState();
    if (hash == NULL)
        RS_TRY_GOTO(rs_error_memory(1), out);
    for (size_t i = 0; i < save->count; i++) {
        int found;
        RS_TRY_GOTO(rs_names_add(&names, save->items[i].name, (int)i, &found), out);
    }
    RS_TRY_GOTO(rs_out_create(&out, folder, file), out);
    RS_TRY_GOTO(rs_out_write(&out, head, head_bytes), out);
    for (size_t i = 0; i < save->count; i++) {
        save_item *item = &save->items[rs_names_find(&names, tensors[i].name)];
        item->offset = tensors[i].offset;
        RS_TRY_GOTO(write_item(save, item, hash, &out), out);
    }
    RS_TRY_GOTO(rs_out_finish(&out), out);
out:
    rs_out_fini(&out);
    rs_names_fini(&names);
    XXH3_freeState(hash);
    return status;
}

static json_t *box_numbers(const int64_t *numbers, int count)
{
    json_t *array = json_array();
    for (int d = 0; d < count; d++)
        if (json_array_append_new(array, json_integer(numbers[d])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static json_t *item_json(const rs_save *save, const save_item *item)
{
    const rs_space *space = rs_placement_space(save->placement);
    char hash[17], sum[33];
    snprintf(hash, sizeof hash, "%016" PRIx64, item->hash);
    snprintf(sum, sizeof sum, "%016" PRIx64 "%016" PRIx64, item->sum.lane[0], item->sum.lane[1]);
    return json_pack("{s:s,s:s,s:o,s:o,s:I,s:s,s:s}", "tensor",
        rs_space_tensor(space, item->tensor)->name, "role", rs_space_role(space, item->role)->name,
        "offset", box_numbers(item->box.offset, item->box.ndim), "extent",
        box_numbers(item->box.extent, item->box.ndim), "at", (json_int_t)item->offset, "xxh3", hash,
        "sum", sum);
}

static rs_status make_record(rs_save *save, const char *file, int64_t bytes)
{
    json_t *shards = json_array();
    bool bad = shards == NULL;
    for (size_t i = 0; i < save->count && !bad; i++)
        bad = json_array_append_new(shards, item_json(save, &save->items[i])) != 0;
    json_t *root = bad ? NULL
                       : json_pack("{s:s,s:i,s:I,s:O}", "name", file, "rank", save->holder, "bytes",
                             (json_int_t)bytes, "shards", shards);
    json_decref(shards);
    save->record = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return save->record != NULL ? RS_OK : rs_error_memory(save->count * sizeof *save->items);
}

rs_status rs_save_write(rs_save *save, const rs_save_name *name)
{
    char aside[RS_NATIVE_NAME], file[RS_NATIVE_NAME], step[24], rank[16];
    char *folder = NULL, *head = NULL;
    size_t head_bytes = 0;
    int64_t file_bytes = 0;
    rs_status status;
    if (save->count == 0) {
        save->record = rs_strdup("");
        return save->record != NULL ? RS_OK : rs_error_memory(1);
    }
    rs_safetensors_tensor *tensors = rs_calloc(save->count, sizeof *tensors);
    if (tensors == NULL)
        return rs_error_memory(save->count * sizeof *tensors);
    for (size_t i = 0; i < save->count; i++) {
        const save_item *item = &save->items[i];
        tensors[i] = (rs_safetensors_tensor){
            .name = item->name, .dtype = item->dtype, .ndim = item->box.ndim};
        memcpy(tensors[i].shape, item->box.extent, sizeof tensors[i].shape);
    }
    snprintf(step, sizeof step, "%" PRId64, name->step);
    snprintf(rank, sizeof rank, "%d", save->holder);
    const rs_safetensors_note notes[] = {
        {"format", "reshard"}, {"job", name->job}, {"rank", rank}, {"step", step}};
    rs_native_file_name(save->holder, file);
    RS_TRY_GOTO(rs_native_aside_name(name, aside), out);
    RS_TRY_GOTO(rs_path_join(name->folder, aside, &folder), out);
    RS_TRY_GOTO(rs_safetensors_layout(tensors, save->count, notes, sizeof notes / sizeof *notes,
                    &head, &head_bytes, &file_bytes),
        out);
    RS_TRY_GOTO(write_data(save, tensors, folder, file, head, head_bytes), out);
    RS_TRY_GOTO(make_record(save, file, file_bytes), out);
out:
    free(head);
    free(folder);
    free(tensors);
    return status;
}

rs_status rs_save_record(const rs_save *save, char **record)
{
    if (save->record == NULL)
        return rs_error_set(RS_ERR_ARGUMENT, "the save was not written");
    *record = rs_strdup(save->record);
    return *record != NULL ? RS_OK : rs_error_memory(strlen(save->record));
}
