/* A Hugging Face folder of weights: safetensors files of bounded size, and an index of them. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/publish.h"
#include "ckpt/companions.h"
#include "ckpt/writer.h"

#define SHARD_BYTES INT64_C(5000000000)
#define INDEX "model.safetensors.index.json"

/* The end of the file that begins with tensor `first`. */
static size_t end_of_file(const rs_writing *w, size_t first)
{
    int64_t most = w->options->shard_bytes > 0 ? w->options->shard_bytes : SHARD_BYTES, bytes = 0;
    size_t end = first;
    while (end < w->tensors.count && (end == first || bytes + w->tensors.items[end].bytes <= most))
        bytes += w->tensors.items[end++].bytes;
    return end;
}

static rs_status write_index(const rs_writing *w, json_t *map)
{
    json_t *root =
        json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)w->all, "weight_map", map);
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    rs_status status = text != NULL ? rs_publish_text(w->folder, INDEX, text) : rs_error_memory(1);
    free(text);
    json_decref(root);
    return status;
}

rs_status rs_write_safetensors(rs_writing *w)
{
    static const rs_safetensors_note note = {"format", "pt"};
    char file[64];
    int files = 0, number = 0;
    int64_t bytes;
    json_t *map = json_object();
    rs_status status = RS_OK;
    if (map == NULL)
        return rs_error_memory(1);
    const char **names = rs_calloc(w->tensors.count, sizeof *names);
    if (names == NULL)
        RS_TRY_GOTO(rs_error_memory(w->tensors.count * sizeof *names), out);
    for (size_t i = 0; i < w->tensors.count; i++)
        names[i] = w->tensors.items[i].name;
    for (size_t i = 0; i < w->tensors.count; i = end_of_file(w, i))
        files++;
    for (size_t i = 0, end; i < w->tensors.count; i = end) {
        end = end_of_file(w, i);
        if (files == 1)
            snprintf(file, sizeof file, "model.safetensors");
        else
            snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", ++number, files);
        rs_rows rows = {w->folder, file, i, end, names, &note, 1, NULL};
        RS_TRY_GOTO(rs_write_rows(w, &rows, &bytes), out);
        for (size_t k = i; k < end; k++)
            if (json_object_set_new(map, names[k], json_string(file)) != 0)
                RS_TRY_GOTO(rs_error_memory(1), out);
    }
    if (files > 1)
        RS_TRY_GOTO(write_index(w, map), out);
    RS_TRY_GOTO(rs_companions_copy(w->options->hub, w->folder, &w->report), out);
out:
    free(names);
    json_decref(map);
    return status;
}
