/* A folder with one native checkpoint, committed as a save is. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/native_names.h"
#include "ckpt/publish.h"
#include "ckpt/writer.h"
#include "reshard/native.h"

#define JOB "convert"

/* Names of the data file's tensors: tensor, role, box. */
static rs_status make_names(const rs_writing *w, char ***out)
{
    size_t count = w->tensors.count;
    char **names = rs_calloc(count, sizeof *names);
    rs_status status = names != NULL ? RS_OK : rs_error_memory(count * sizeof *names);
    for (size_t i = 0; i < count && status == RS_OK; i++) {
        const rs_logical *t = &w->tensors.items[i];
        char box[320];
        rs_text text = {0};
        rs_text_append(&text, "%s/%s%s", t->name, t->role, rs_box_format(&t->box, box, sizeof box));
        status = rs_text_take(&text, &names[i]);
    }
    *out = names;
    return status;
}

static void free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count && names != NULL; i++)
        free(names[i]);
    free(names);
}

rs_status rs_write_native(rs_writing *w)
{
    char **names = NULL, aside[RS_NATIVE_NAME], *folder = NULL, *record = NULL, *extras = NULL;
    json_t *step = json_object_get(w->extras, "step");
    rs_save_name name = {w->folder, json_integer_value(step), JOB};
    rs_save_about about = {w->catalog->layout != NULL ? w->catalog->layout : "dp=1", 1, NULL};
    const rs_safetensors_note notes[] = {{"format", "reshard"}, {"job", JOB}, {"rank", "0"}};
    rs_space *space = NULL;
    int64_t bytes;
    json_t *shards = json_array(), *root = NULL;
    json_t *own = json_object_get(w->extras, "extras");
    bool native = strcmp(w->catalog->format, "native") == 0;
    rs_status status = shards != NULL ? RS_OK : rs_error_memory(1);
    if (status != RS_OK)
        return status;
    RS_TRY_GOTO(rs_logical_list_space(w->catalog, &w->tensors, &space), out);
    RS_TRY_GOTO(make_names(w, &names), out);
    RS_TRY_GOTO(rs_save_prepare(&name), out);
    RS_TRY_GOTO(rs_native_aside_name(&name, aside), out);
    RS_TRY_GOTO(rs_path_join(w->folder, aside, &folder), out);
    rs_rows rows = {folder, "rank-00000.safetensors", 0, w->tensors.count,
        (const char *const *)names, notes, 3, shards};
    RS_TRY_GOTO(rs_write_rows(w, &rows, &bytes), out);
    root = json_pack("{s:s,s:i,s:I,s:O}", "name", "rank-00000.safetensors", "rank", 0, "bytes",
        (json_int_t)bytes, "shards", shards);
    record = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    extras = json_dumps(native ? own : w->extras, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (record == NULL || extras == NULL)
        RS_TRY_GOTO(rs_error_memory(1), out);
    about.extras = extras;
    RS_TRY_GOTO(rs_save_commit(&name, space, &about, (const char *const *)&record, 1), out);
out:
    free(extras);
    free(record);
    free(folder);
    free_names(names, w->tensors.count);
    json_decref(root);
    json_decref(shards);
    rs_space_destroy(space);
    return status;
}
