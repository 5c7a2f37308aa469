/*
 * The table of formats, and finding the checkpoint at a path.
 *
 * What a file is, its first bytes say; its name decides nothing but between a list of shards and
 * other JSON. What a folder is, the names in it say. A folder that is no checkpoint itself may be
 * the root of one: its `latest` names the tag, or else its only subfolder that is one.
 *
 * Rows are tried in order. Rows without a reader are formats that reshard knows by sight, so that
 * the message can name them.
 */
#include "ckpt/format.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/native_names.h"
#include "ckpt/rules.h"

#define POINTER_MOST 4096

static bool head_is(const rs_place *place, const char *text)
{
    size_t length = strlen(text);
    return !place->folder && place->head_bytes >= length && memcmp(place->head, text, length) == 0;
}

static bool is_distributed(const rs_place *place)
{
    if (place->folder)
        return rs_place_has(place, ".metadata") && !rs_place_has(place, "common.pt");
    const char *dot = strrchr(place->path, '.');
    return dot != NULL && (strcmp(dot, ".distcp") == 0 || strcmp(dot, ".metadata") == 0);
}

static bool is_megatron(const rs_place *place)
{
    size_t at = 0;
    const char *name;
    if (!place->folder)
        return false;
    if (rs_place_has(place, "latest_checkpointed_iteration.txt") ||
        (rs_place_has(place, "common.pt") && rs_place_has(place, "metadata.json")))
        return true;
    for (; (name = rs_place_match(place, "mp_rank_", "", &at)) != NULL; at++)
        if (rs_place_has_folder(place, name))
            return true;
    return false;
}

static bool is_tar(const rs_place *place)
{
    return !place->folder && place->head_bytes >= 262 && memcmp(place->head + 257, "ustar", 5) == 0;
}

static bool is_preview(const rs_place *place)
{
    return head_is(place, "PYTORCH1");
}

static bool is_pointer(const rs_place *place)
{
    return head_is(place, "version https://git-lfs");
}

static bool is_page(const rs_place *place)
{
    return head_is(place, "<!DOCTYPE") || head_is(place, "<!doctype") || head_is(place, "<html") ||
           head_is(place, "<?xml");
}

static bool is_gzip(const rs_place *place)
{
    return head_is(place, "\x1f\x8b") && !rs_safetensors_content(place);
}

static bool is_numpy(const rs_place *place)
{
    return head_is(place, "\x93NUMPY");
}

static bool is_hdf5(const rs_place *place)
{
    return head_is(place, "\x89HDF");
}

static bool is_gguf(const rs_place *place)
{
    return head_is(place, "GGUF");
}

static const rs_format formats[] = {
    {"native", rs_native_probe, rs_native_read, NULL},
    {"deepspeed-universal", rs_universal_probe, rs_universal_read, NULL},
    {"deepspeed", rs_deepspeed_probe, rs_deepspeed_read, NULL},
    {"pytorch-dcp", is_distributed, NULL, "a checkpoint of torch.distributed.checkpoint"},
    {"megatron", is_megatron, NULL, "a checkpoint of Megatron-LM"},
    {"hugging-face", rs_hub_probe, rs_hub_read, NULL},
    {"git-lfs", is_pointer, NULL, "a Git LFS pointer; the file itself was not fetched"},
    {"web page", is_page, NULL, "a web page or XML, perhaps an error message saved by a download"},
    {"tar", is_tar, NULL, "a tar archive (torch.save before 0.1.10)"},
    {"torch preview", is_preview, NULL, "a preview archive of PyTorch"},
    {"gzip", is_gzip, NULL, "compressed with gzip"},
    {"numpy", is_numpy, NULL, "a NumPy array"},
    {"hdf5", is_hdf5, NULL, "an HDF5 file"},
    {"gguf", is_gguf, NULL, "a GGUF file"},
    {"torch", rs_torch_probe, rs_torch_read, NULL},
    {"safetensors", rs_safetensors_probe, rs_safetensors_read, NULL},
};

#define FORMATS (sizeof formats / sizeof *formats)

static const rs_format *probe(const rs_place *place)
{
    for (size_t i = 0; i < FORMATS; i++)
        if (formats[i].probe(place))
            return &formats[i];
    return NULL;
}

/* The tag that a pointer file names: one plain name. */
static rs_status read_pointer(const rs_place *root, const char *pointer, char **out)
{
    char *path = NULL, *text = NULL;
    size_t length = 0;
    rs_status status;
    RS_TRY(rs_place_path(root, pointer, &path));
    RS_TRY_GOTO(rs_file_text(path, POINTER_MOST, &text, &length), out);
    while (length > 0 && isspace((unsigned char)text[length - 1]))
        text[--length] = 0;
    size_t blank = strspn(text, " \t\r\n");
    memmove(text, text + blank, length + 1 - blank);
    if (text[0] == 0 || strchr(text, '/') != NULL || strlen(text) != length - blank ||
        strcmp(text, ".") == 0 || strcmp(text, "..") == 0)
        RS_TRY_GOTO(
            rs_error_set(RS_ERR_MALFORMED, "%s: holds no plain name of a folder", path), out);
    *out = text;
    text = NULL;
out:
    free(path);
    free(text);
    return status;
}

/* The subfolders that are checkpoints, as "a, b, c"; and the first (borrowed), if there is one. */
static rs_status list_tags(const rs_place *root, rs_text *list, size_t *count, const char **only)
{
    *count = 0;
    for (size_t i = 0; i < root->count; i++) {
        rs_place inside;
        bool tag = false;
        if (!rs_native_is_aside(root->names[i]) && rs_place_has_folder(root, root->names[i])) {
            rs_status status = rs_place_enter(root, root->names[i], &inside);
            if (status == RS_ERR_NO_MEMORY)
                return status;
            if (status == RS_OK) { /* else it is not ours to read */
                tag = probe(&inside) != NULL;
                rs_place_fini(&inside);
            }
        }
        if (!tag)
            continue;
        rs_text_append(list, "%s%s", *count > 0 ? ", " : "", root->names[i]);
        if (++*count == 1)
            *only = root->names[i];
    }
    return list->status;
}

/* The name of the checkpoint's folder in `root`; free() it. */
static rs_status find_tag(const rs_place *root, char **out)
{
    static const char *const pointers[] = {"latest", "latest_universal"};
    rs_text list = {0};
    const char *only = NULL;
    char *tag = NULL;
    size_t count = 0;
    rs_status status;
    RS_TRY_GOTO(list_tags(root, &list, &count, &only), out);
    rs_text_append(&list, "%s", count == 0 ? "none" : "");
    for (size_t i = 0; i < 2; i++) {
        if (!rs_place_has(root, pointers[i]))
            continue;
        RS_TRY_GOTO(read_pointer(root, pointers[i], &tag), out);
        if (!rs_place_has(root, tag))
            RS_TRY_GOTO(rs_error_set(RS_ERR_NOT_FOUND,
                            "%s/%s names \"%s\", which is not there; checkpoints here: %s",
                            root->title, pointers[i], tag, list.data),
                out);
        *out = tag;
        tag = NULL;
        goto out;
    }
    if (count == 1) {
        *out = rs_strdup(only);
        status = *out != NULL ? RS_OK : rs_error_memory(strlen(only));
    } else if (count > 1) {
        status = rs_error_set(RS_ERR_ARGUMENT,
            "%s: no \"latest\" says which of its checkpoints is meant: %s", root->title, list.data);
    } else {
        status = rs_error_set(RS_ERR_NOT_FOUND, "%s: no checkpoint is in this folder", root->title);
    }
out:
    rs_text_fini(&list);
    free(tag);
    return status;
}

/* ---- several folders ---- */

/* Lets the place be another one: in place of each folder what `pick` says, which allocates. */
static rs_status redirect(rs_place *place,
    rs_status (*pick)(const rs_place *place, size_t folder, const void *context, char **out),
    const void *context)
{
    rs_place other = {0};
    size_t count = 0;
    rs_status status = RS_OK;
    char **paths = rs_calloc(place->folder_count, sizeof *paths);
    if (paths == NULL)
        return rs_error_memory(place->folder_count * sizeof *paths);
    for (; count < place->folder_count && status == RS_OK; count += status == RS_OK)
        status = pick(place, count, context, &paths[count]);
    if (status == RS_OK)
        status = count == 1 ? rs_place_init(&other, paths[0])
                            : rs_place_init_all(&other, (const char *const *)paths, count);
    if (status == RS_OK) {
        other.proved = place->proved;
        rs_place_fini(place);
        *place = other;
    }
    for (size_t i = 0; i < count; i++)
        free(paths[i]);
    free(paths);
    return status;
}

/* What is called `name` in the folder; of several, one that has no such folder may be that of the
 * checkpoint itself. */
static rs_status descend(const rs_place *place, size_t folder, const void *name, char **out)
{
    RS_TRY(rs_path_join(place->folders[folder], name, out));
    if (place->folder_count == 1 || rs_is_folder(*out))
        return RS_OK;
    free(*out);
    *out = rs_strdup(place->folders[folder]);
    return *out != NULL ? RS_OK : rs_error_memory(strlen(place->folders[folder]));
}

static rs_status is_of(const char *folder, const rs_format *format, bool *out)
{
    rs_place alone;
    *out = false;
    if (!rs_is_folder(folder))
        return RS_OK;
    RS_TRY(rs_place_init(&alone, folder));
    *out = probe(&alone) == format;
    rs_place_fini(&alone);
    return RS_OK;
}

typedef struct aligning {
    const rs_format *format;
    const char *tag; /* how the folder of the checkpoint is called, where one is known */
} aligning;

/* The folder `name` in `folder`, if it has files of the format; else `*out` stays NULL. */
static rs_status enter_if(const char *folder, const char *name, const rs_format *format, char **out)
{
    char *path;
    bool own;
    RS_TRY(rs_path_join(folder, name, &path));
    rs_status status = is_of(path, format, &own);
    if (status == RS_OK && own)
        *out = path;
    else
        free(path);
    return status;
}

/* The one checkpoint in a root, if it is of the format; else `*out` stays NULL. */
static rs_status enter_only(const char *folder, const rs_format *format, char **out)
{
    rs_place alone;
    char *tag = NULL;
    RS_TRY(rs_place_init(&alone, folder));
    rs_status status = find_tag(&alone, &tag);
    rs_place_fini(&alone);
    if (status == RS_OK)
        status = enter_if(folder, tag, format, out);
    free(tag);
    return status == RS_ERR_NO_MEMORY ? status : RS_OK; /* else it is no root */
}

/* The folder, if it has files of the format, or that of the tag in it. */
static rs_status enter_tag(const rs_place *place, size_t folder, const void *context, char **out)
{
    const aligning *a = context;
    const char *path = place->folders[folder];
    bool own;
    *out = NULL;
    RS_TRY(is_of(path, a->format, &own));
    if (own) {
        *out = rs_strdup(path);
        return *out != NULL ? RS_OK : rs_error_memory(strlen(path));
    }
    if (a->tag != NULL)
        RS_TRY(enter_if(path, a->tag, a->format, out));
    if (*out == NULL)
        RS_TRY(enter_only(path, a->format, out));
    if (*out != NULL)
        return RS_OK;
    return rs_error_set(RS_ERR_NOT_FOUND, "%s: has nothing of the checkpoint (%s%s%s) of %s", path,
        a->format->name, a->tag != NULL ? ", " : "", a->tag != NULL ? a->tag : "", place->title);
}

/* One of the folders may be the checkpoint's root and another its tag's: makes all the tag's. */
static rs_status align(rs_place *place, const rs_format *format)
{
    char *tag = NULL;
    bool own = false;
    rs_status status = RS_OK;
    if (place->folder_count < 2)
        return RS_OK;
    for (size_t i = 0; i < place->folder_count && !own && status == RS_OK; i++) {
        status = is_of(place->folders[i], format, &own);
        if (status != RS_OK || !own)
            continue;
        tag = rs_strdup(rs_path_base(place->folders[i]));
        status = tag != NULL ? RS_OK : rs_error_memory(1);
    }
    const aligning how = {format, tag};
    if (status == RS_OK)
        status = redirect(place, enter_tag, &how);
    free(tag);
    return status;
}

/* A job's directory has its checkpoints in a folder in it; that or another root has a folder for
 * each. Goes into the one that is meant, and finds its format. */
static rs_status resolve(rs_place *place, const rs_format **format)
{
    char *tag = NULL;
    *format = probe(place);
    if (*format != NULL || !place->folder)
        return RS_OK;
    if (rs_place_has(place, "job.json") && rs_place_has(place, "checkpoints"))
        RS_TRY(redirect(place, descend, "checkpoints"));
    RS_TRY(find_tag(place, &tag));
    rs_status status = redirect(place, descend, tag);
    free(tag);
    RS_TRY(status);
    *format = probe(place);
    return RS_OK;
}

static rs_status choose(
    const rs_place *place, const rs_checkpoint_options *options, const rs_format **format)
{
    if (options->format != NULL) {
        *format = NULL;
        for (size_t i = 0; i < FORMATS; i++)
            if (strcmp(formats[i].name, options->format) == 0)
                *format = &formats[i];
        if (*format == NULL)
            return rs_error_set(RS_ERR_ARGUMENT, "unknown format \"%s\"", options->format);
    }
    if (*format == NULL)
        return rs_error_set(RS_ERR_MALFORMED, "%s: %s", place->title,
            place->folder           ? "no checkpoint that reshard knows is in this folder"
            : place->bytes == 0     ? "an empty file"
            : place->head_bytes < 8 ? "too short for any checkpoint"
                                    : "byte 0: no checkpoint that reshard knows begins like this");
    if ((*format)->read == NULL && place->folder && rs_place_has(place, "latest") &&
        rs_place_has(place, "latest_checkpointed_iteration.txt"))
        return rs_error_set(RS_ERR_ARGUMENT,
            "%s: has \"latest\", as DeepSpeed writes it, and "
            "\"latest_checkpointed_iteration.txt\", as "
            "Megatron does: name the folder that is meant",
            place->path);
    if ((*format)->read == NULL)
        return rs_error_set(RS_ERR_UNSUPPORTED, "%s: is %s (%s); reshard does not read it yet",
            place->title, (*format)->what, (*format)->name);
    return RS_OK;
}

/* Looks at what the options say there is. */
static rs_status look(const char *path, const rs_checkpoint_options *options, rs_place *place)
{
    if (options->also_count <= 0)
        return rs_place_init(place, path);
    size_t count = 1 + (size_t)options->also_count;
    const char **paths = rs_calloc(count, sizeof *paths);
    if (paths == NULL)
        return rs_error_memory(count * sizeof *paths);
    paths[0] = path;
    for (size_t i = 1; i < count; i++)
        paths[i] = options->also[i - 1];
    rs_status status = rs_place_init_all(place, paths, count);
    place->proved = options->also_proved;
    free(paths);
    return status;
}

/* A rules file is read where nothing asks it, too: one that is wrong is always told. */
static rs_status check_rules(const char *path)
{
    rs_rules rules = {0};
    if (path == NULL)
        return RS_OK;
    rs_status status = rs_rules_add_file(&rules, path);
    rs_rules_fini(&rules);
    return status;
}

rs_status rs_format_open(const char *path, const rs_checkpoint_options *options, rs_catalog **out)
{
    static const rs_checkpoint_options usual;
    rs_place place;
    const rs_format *format = NULL;
    rs_catalog *catalog = NULL;
    rs_status status;
    if (options == NULL)
        options = &usual;
    RS_TRY(look(path, options, &place));
    RS_TRY_GOTO(resolve(&place, &format), out);
    RS_TRY_GOTO(choose(&place, options, &format), out);
    if (options->format == NULL)
        RS_TRY_GOTO(align(&place, format), out);
    RS_TRY_GOTO(check_rules(options->rules), out);
    RS_TRY_GOTO(rs_catalog_create(format->name, &catalog), out);
    RS_TRY_GOTO(format->read(catalog, &place, options), out);
    status = rs_catalog_finish(catalog);
    if (status != RS_OK) {
        rs_error_context(status, "%s", place.title);
        goto out;
    }
    *out = catalog;
    catalog = NULL;
out:
    rs_catalog_destroy(catalog);
    rs_place_fini(&place);
    return status;
}
