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
    while ((name = rs_place_match(place, "mp_rank_", "", &at)) != NULL) {
        char *path;
        bool folder = false;
        if (rs_path_join(place->path, name, &path) == RS_OK) {
            folder = rs_is_folder(path);
            free(path);
        }
        if (folder)
            return true;
        at++;
    }
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
    RS_TRY(rs_path_join(root->path, pointer, &path));
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

/* The subfolders that are checkpoints, as "a, b, c"; and the only one, if there is one. */
static rs_status list_tags(const rs_place *root, rs_text *list, size_t *count, char **only)
{
    *count = 0;
    for (size_t i = 0; i < root->count; i++) {
        char *path;
        rs_place inside;
        RS_TRY(rs_path_join(root->path, root->names[i], &path));
        bool tag = false;
        if (!rs_native_is_aside(root->names[i]) && rs_is_folder(path)) {
            rs_status status = rs_place_init(&inside, path);
            if (status == RS_ERR_NO_MEMORY) {
                free(path);
                return status;
            }
            if (status == RS_OK) { /* else it is not ours to read */
                tag = probe(&inside) != NULL;
                rs_place_fini(&inside);
            }
        }
        if (tag) {
            rs_text_append(list, "%s%s", *count > 0 ? ", " : "", root->names[i]);
            if (++*count == 1) {
                *only = path;
                continue;
            }
        }
        free(path);
    }
    return RS_OK;
}

/* The folder of the checkpoint under `root`; free() it. */
static rs_status find_tag(const rs_place *root, char **out)
{
    static const char *const pointers[] = {"latest", "latest_universal"};
    rs_text list = {0};
    char *tag = NULL, *only = NULL;
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
                            root->path, pointers[i], tag, list.data),
                out);
        RS_TRY_GOTO(rs_path_join(root->path, tag, out), out);
        goto out;
    }
    if (count == 1) {
        *out = only;
        only = NULL;
    } else if (count > 1) {
        status = rs_error_set(RS_ERR_ARGUMENT,
            "%s: no \"latest\" says which of its checkpoints is meant: %s", root->path, list.data);
    } else {
        status = rs_error_set(RS_ERR_NOT_FOUND, "%s: no checkpoint is in this folder", root->path);
    }
out:
    rs_text_fini(&list);
    free(tag);
    free(only);
    return status;
}

/* A job's directory: its checkpoints stand in a folder in it, which takes its place. */
static rs_status enter_job(rs_place *place, char **folder)
{
    if (!rs_place_has(place, "job.json") || !rs_place_has(place, "checkpoints"))
        return RS_OK;
    RS_TRY(rs_path_join(place->path, "checkpoints", folder));
    rs_place_fini(place);
    return rs_place_init(place, *folder);
}

/* The folder's own format, or that of the tag in it. Sets `*job` and `*tag` (free both) to the
 * folders that were entered. */
static rs_status resolve(rs_place *place, const rs_format **format, char **job, char **tag)
{
    *format = probe(place);
    if (*format != NULL || !place->folder)
        return RS_OK;
    RS_TRY(enter_job(place, job));
    RS_TRY(find_tag(place, tag));
    rs_place_fini(place);
    RS_TRY(rs_place_init(place, *tag));
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
        return rs_error_set(RS_ERR_MALFORMED, "%s: %s", place->path,
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
            place->path, (*format)->what, (*format)->name);
    return RS_OK;
}

rs_status rs_format_open(const char *path, const rs_checkpoint_options *options, rs_catalog **out)
{
    static const rs_checkpoint_options usual;
    rs_place place;
    char *job = NULL, *tag = NULL;
    const rs_format *format = NULL;
    rs_catalog *catalog = NULL;
    rs_status status;
    if (options == NULL)
        options = &usual;
    RS_TRY(rs_place_init(&place, path));
    RS_TRY_GOTO(resolve(&place, &format, &job, &tag), out);
    RS_TRY_GOTO(choose(&place, options, &format), out);
    RS_TRY_GOTO(rs_catalog_create(format->name, &catalog), out);
    RS_TRY_GOTO(format->read(catalog, &place, options), out);
    status = rs_catalog_finish(catalog);
    if (status != RS_OK) {
        rs_error_context(status, "%s", place.path);
        goto out;
    }
    *out = catalog;
    catalog = NULL;
out:
    rs_catalog_destroy(catalog);
    rs_place_fini(&place);
    free(job);
    free(tag);
    return status;
}
