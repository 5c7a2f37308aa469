/*
 * The files beside the weights of a Hugging Face model: configuration, tokenizer, and what goes
 * with them, by the names that transformers looks for. They are copied as they are.
 */
#include "ckpt/companions.h"

#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "ckpt/file.h"
#include "ckpt/format.h"
#include "ckpt/publish.h"

#define CHUNK ((int64_t)1 << 20)

/* What a file is for; a model needs one of each but of the last. */
typedef enum use { CONFIG, TOKENIZER, OTHER } use;

static const struct {
    const char *name;
    use of;
} known[] = {
    {"config.json", CONFIG},
    {"tokenizer.json", TOKENIZER},
    {"tokenizer.model", TOKENIZER},
    {"tekken.json", TOKENIZER},
    {"vocab.json", TOKENIZER},
    {"spiece.model", TOKENIZER},
    {"merges.txt", OTHER},
    {"vocab.txt", OTHER},
    {"generation_config.json", OTHER},
    {"tokenizer_config.json", OTHER},
    {"special_tokens_map.json", OTHER},
    {"added_tokens.json", OTHER},
    {"chat_template.json", OTHER},
    {"chat_template.jinja", OTHER},
    {"preprocessor_config.json", OTHER},
};

static rs_status copy_file(const char *from, const char *to, const char *name)
{
    char *path = NULL;
    rs_files *files = NULL;
    rs_out out = {.fd = -1};
    int id;
    rs_status status;
    char *buffer = rs_calloc((size_t)CHUNK, 1);
    if (buffer == NULL)
        return rs_error_memory((size_t)CHUNK);
    RS_TRY_GOTO(rs_path_join(from, name, &path), out);
    RS_TRY_GOTO(rs_files_create(&files), out);
    RS_TRY_GOTO(rs_files_add(files, path, &id), out);
    RS_TRY_GOTO(rs_out_create(&out, to, name), out);
    for (int64_t at = 0; at < rs_files_size(files, id); at += CHUNK) {
        size_t bytes = (size_t)rs_min64(CHUNK, rs_files_size(files, id) - at);
        RS_TRY_GOTO(rs_files_read(files, id, at, buffer, bytes), out);
        RS_TRY_GOTO(rs_out_write(&out, buffer, bytes), out);
    }
    RS_TRY_GOTO(rs_out_finish(&out), out);
out:
    rs_out_fini(&out);
    rs_files_destroy(files);
    free(path);
    free(buffer);
    return status;
}

rs_status rs_companions_copy(const char *from, const char *to, rs_convert_report *report)
{
    rs_place place = {0};
    rs_status status = RS_OK;
    bool has[] = {false, false, false};
    if (from != NULL && !rs_is_folder(from))
        return rs_error_set(RS_ERR_ARGUMENT, "%s: is no folder with a model", from);
    if (from != NULL)
        RS_TRY(rs_place_init(&place, from));
    for (size_t i = 0; i < sizeof known / sizeof *known && status == RS_OK; i++) {
        if (!rs_place_has(&place, known[i].name))
            continue;
        has[known[i].of] = true;
        status = to != NULL ? copy_file(from, to, known[i].name) : RS_OK;
        report->copied++;
    }
    rs_place_fini(&place);
    report->lacks_config = !has[CONFIG];
    report->lacks_tokenizer = !has[TOKENIZER];
    return status;
}
