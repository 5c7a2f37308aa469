/*
 * Writing a Hugging Face folder: weights in safetensors files of a bounded size, and an index that
 * says which is where, if there are several.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/publish.h"
#include "ckpt/companions.h"
#include "ckpt/hub.h"
#include "ckpt/safetensors.h"
#include "ckpt/writer.h"

/* The end of the file that begins with tensor `first`. */
static size_t end_of_file(const rs_writing *w, size_t first)
{
    int64_t most = rs_writing_shard_bytes(w), bytes = 0;
    size_t end = first;
    while (end < w->tensors.count && (end == first || bytes + w->tensors.items[end].bytes <= most))
        bytes += w->tensors.items[end++].bytes;
    return end;
}

/* The index, as a tree; the writer's own. */
static rs_status enter(rs_writing *w, size_t first, size_t end, const char *file)
{
    json_t *map = w->own;
    for (size_t i = first; i < end; i++)
        if (json_object_set_new(map, w->tensors.items[i].name, json_string(file)) != 0)
            return rs_error_memory(1);
    return RS_OK;
}

/* The notes of the file with tensors first .. end - 1: its format, and second names of its tensors
 * where they are to be listed. free() them. */
static rs_status make_notes(
    const rs_writing *w, size_t first, size_t end, rs_safetensors_note **out, size_t *count)
{
    const rs_catalog *catalog = w->catalog;
    bool listed = w->options->tied != NULL && strcmp(w->options->tied, "listed") == 0;
    size_t most = 1 + (listed ? catalog->entries.count : 0);
    rs_safetensors_note *notes = rs_calloc(most, sizeof *notes);
    if (notes == NULL)
        return rs_error_memory(most * sizeof *notes);
    notes[0] = (rs_safetensors_note){"format", "pt"};
    *count = 1;
    for (size_t i = 0; listed && i < catalog->entries.count; i++) {
        const rs_catalog_entry *second = rs_catalog_get(catalog, (int)i), *kept = second;
        while (kept->how == RS_ENTRY_ALIAS)
            kept = rs_catalog_get(catalog, kept->source);
        if (kept == second || strcmp(kept->is.role, "param") != 0)
            continue;
        for (size_t t = first; t < end; t++)
            if (rs_catalog_get(catalog, w->tensors.items[t].id) == kept)
                notes[(*count)++] =
                    (rs_safetensors_note){second->is.name, w->tensors.items[t].name};
    }
    *out = notes;
    return RS_OK;
}

/* One file with tensors first .. end - 1. */
static rs_status plan_file(rs_writing *w, const rs_logical *const *tensors,
    const char *const *names, size_t first, size_t end)
{
    rs_safetensors_note *notes = NULL;
    size_t count = 0;
    RS_TRY(make_notes(w, first, end, &notes, &count));
    rs_status status = rs_safetensors_output(
        &w->output, tensors + first, names + first, end - first, notes, count, 0, NULL);
    free(notes);
    return status;
}

static rs_status plan(rs_writing *w)
{
    int files = 0, number = 0;
    char file[64];
    rs_status status = RS_OK;
    const rs_logical **tensors = rs_calloc(w->tensors.count, sizeof *tensors);
    const char **names = rs_calloc(w->tensors.count, sizeof *names);
    w->own = json_object();
    if (tensors == NULL || names == NULL || w->own == NULL)
        RS_TRY_GOTO(rs_error_memory(w->tensors.count * sizeof *names), out);
    for (size_t i = 0; i < w->tensors.count; i++) {
        tensors[i] = &w->tensors.items[i];
        names[i] = w->tensors.items[i].name;
    }
    for (size_t i = 0; i < w->tensors.count; i = end_of_file(w, i))
        files++;
    for (size_t i = 0, end; i < w->tensors.count; i = end) {
        end = end_of_file(w, i);
        if (files == 1)
            snprintf(file, sizeof file, "model.safetensors");
        else
            snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", ++number, files);
        RS_TRY_GOTO(rs_output_file(&w->output, file), out);
        RS_TRY_GOTO(plan_file(w, tensors, names, i, end), out);
        RS_TRY_GOTO(enter(w, i, end, file), out);
    }
out:
    free(tensors);
    free(names);
    return status;
}

static rs_status write_index(const rs_writing *w)
{
    char *text = NULL;
    RS_TRY(rs_hub_index_text(NULL, w->own, w->report.bytes, &text));
    rs_status status = rs_publish_text(w->folder, RS_HUB_INDEX, text);
    free(text);
    return status;
}

static rs_status finish(rs_writing *w)
{
    if (w->output.files.count > 1)
        RS_TRY(write_index(w));
    return rs_companions_copy(w->options->hub, w->folder, &w->report);
}

static void fini(rs_writing *w)
{
    json_decref(w->own);
}

const rs_writer rs_writer_safetensors = {.name = "safetensors",
    .foreign = true,
    .bounded = true,
    .lists_names = true,
    .plan = plan,
    .finish = finish,
    .fini = fini};
