/*
 * Checkpoints under other names: which dialect it has, and the way through the canonical names.
 *
 * A checkpoint with canonical names tells its tensors itself, and a native one also the facts that
 * names depend on. For any other the model must be given, since the shapes of fused tensors do not
 * say where one part ends.
 */
#include <string.h>

#include "base/error.h"
#include "ckpt/axes.h"
#include "ckpt/checkpoint.h"
#include "ckpt/logical.h"
#include "ckpt/translate.h"

bool rs_checkpoint_is_canonical(const rs_checkpoint *checkpoint)
{
    const rs_catalog *catalog = rs_checkpoint_catalog(checkpoint);
    return rs_catalog_find(catalog, RS_CANONICAL_EMBED, "param") >= 0 &&
           rs_catalog_find(catalog, RS_CANONICAL_NORM, "param") >= 0;
}

/* How many of the weights a dialect knows. */
static rs_status count_known(
    const rs_catalog *catalog, const rs_dialect *dialect, const rs_space *space, size_t *known)
{
    *known = 0;
    for (size_t i = 0; i < catalog->entries.count; i++) {
        const rs_catalog_entry *entry = rs_catalog_get(catalog, (int)i);
        rs_foreign foreign;
        if (entry->how == RS_ENTRY_ALIAS || strcmp(entry->is.role, "param") != 0)
            continue;
        rs_status status = rs_dialect_lookup(dialect, space, entry->is.name, &foreign);
        if (status == RS_OK)
            rs_foreign_fini(&foreign);
        else if (status != RS_ERR_NOT_FOUND && status != RS_ERR_MISMATCH)
            return status;
        *known += status == RS_OK;
    }
    return RS_OK;
}

/* The built-in dialect that knows most of the weights' names. */
static rs_status detect(const rs_catalog *catalog, const rs_space *space, rs_dialect **out)
{
    rs_dialect *best = NULL;
    size_t most = 0;
    rs_status status = RS_OK;
    for (const char *const *name = rs_dialect_names(); *name != NULL && status == RS_OK; name++) {
        rs_dialect *dialect = NULL;
        size_t known = 0;
        status = rs_dialect_load(*name, &dialect);
        if (status == RS_OK)
            status = count_known(catalog, dialect, space, &known);
        if (status != RS_OK || known <= most) {
            rs_dialect_destroy(dialect);
            continue;
        }
        rs_dialect_destroy(best);
        best = dialect;
        most = known;
    }
    if (status == RS_OK && best == NULL)
        status = rs_error_set(RS_ERR_NOT_FOUND,
            "none of the built-in dialects knows one of the %zu names as a tensor of the model, "
            "like \"%s\"",
            catalog->entries.count,
            catalog->entries.count > 0 ? rs_catalog_get(catalog, 0)->is.name : "");
    if (status != RS_OK) {
        rs_dialect_destroy(best);
        return status;
    }
    *out = best;
    return RS_OK;
}

rs_status rs_checkpoint_rename(
    const rs_checkpoint *source, const rs_rename_options *options, rs_checkpoint **out)
{
    const rs_catalog *from = rs_checkpoint_catalog(source);
    const rs_space *space = options->space;
    rs_space *own_space = NULL;
    rs_dialect *detected = NULL;
    rs_catalog *canonical = NULL, *renamed = NULL;
    rs_status status = RS_OK;
    if (space == NULL && !rs_checkpoint_is_canonical(source))
        return rs_error_set(RS_ERR_ARGUMENT,
            "the checkpoint does not tell what model it is of: name the model (--model)");
    if (space == NULL) {
        RS_TRY_GOTO(rs_logical_space(from, "param", &own_space), out);
        space = own_space;
    }
    if (options->from == NULL)
        RS_TRY_GOTO(detect(from, space, &detected), out);
    RS_TRY_GOTO(rs_translate_in(from, options->from != NULL ? options->from : detected, space,
                    options->lenient, &canonical),
        out);
    if (options->to != NULL)
        RS_TRY_GOTO(rs_translate_out(canonical, options->to, space, &renamed), out);
    status = renamed != NULL ? rs_checkpoint_wrap(renamed, canonical, out)
                             : rs_checkpoint_wrap(canonical, NULL, out);
    canonical = NULL;
out:
    rs_catalog_destroy(canonical);
    rs_dialect_destroy(detected);
    rs_space_destroy(own_space);
    return status;
}
