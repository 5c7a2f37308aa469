/*
 * Both directions are boxes that get other places: run by run of the cut (cut.h), from where the
 * ranks' shares stand behind each other to where the tensor has it, or back. Going back, what
 * several ranks have is there so many times, out of the same bytes.
 */
#include "ckpt/ranked.h"

#include <inttypes.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "ckpt/cut.h"

static rs_status cut_of(const rs_rule *rule, int ranks, const char *name, rs_cut *out)
{
    rs_status status = rs_cut_of_shared(rule, ranks, out);
    return status == RS_OK ? RS_OK : rs_error_context(status, "\"%s\"", name);
}

rs_status rs_ranked_add(rs_catalog *catalog, const char *name, const char *role, rs_dtype dtype,
    int ndim, const int64_t *shape, const rs_piece *piece, const rs_rule *rule, int ranks,
    bool *done)
{
    rs_cut cut = {0};
    rs_status status = RS_OK;
    int64_t whole[RS_MAX_DIMS], before = 0;
    int id;
    *done = false;
    if (rule == NULL || rule->shared == NULL || rule->dim >= ndim)
        return RS_OK;
    RS_TRY(cut_of(rule, ranks, name, &cut));
    memcpy(whole, shape, sizeof *shape * (size_t)ndim);
    whole[rule->dim] = cut.whole;
    *done = rs_cut_total(&cut) != cut.whole && shape[rule->dim] == rs_cut_total(&cut);
    if (*done)
        RS_TRY_GOTO(rs_catalog_add(catalog, name, role, dtype, ndim, whole, &id), out);
    if (*done)
        rs_catalog_get(catalog, id)->how = RS_ENTRY_EQUAL;
    for (int r = 0; r < ranks && *done; r++) {
        for (size_t i = cut.first[r]; i < cut.first[r + 1]; i++) {
            const rs_cut_run *run = &cut.runs[i];
            rs_piece part;
            if (!rs_cut_move(piece, rule->dim, before + run->local, run->width, run->global, &part))
                continue;
            for (part.copy = run->copy; part.copy < run->copy + run->copies; part.copy++)
                RS_TRY_GOTO(rs_catalog_piece(catalog, id, &part), out);
        }
        before += cut.length[r];
    }
out:
    rs_cut_fini(&cut);
    return status;
}

/* Adds entry `id` of the source with another shape, and no pieces yet. */
static rs_status add_like(const rs_catalog *from, int id, const int64_t *shape, rs_catalog *to)
{
    const rs_catalog_entry *like = rs_catalog_get(from, id);
    int added;
    RS_TRY(rs_catalog_add(
        to, like->is.name, like->is.role, like->is.dtype, like->is.ndim, shape, &added));
    rs_catalog_entry *entry = rs_catalog_get(to, added);
    entry->how = like->how;
    entry->source = like->source;
    entry->is.stored = like->is.stored;
    entry->is.derived_from = like->is.derived_from;
    entry->is.alias_of = like->is.alias_of;
    entry->is.copies = like->is.copies;
    return RS_OK;
}

/* The ranks have what the rule gives them, and all as much. */
static rs_status check(const rs_checkpoint_entry *entry, const rs_rule *rule, const rs_cut *cut)
{
    if (entry->shape[rule->dim] != cut->whole)
        return rs_error_set(RS_ERR_MISMATCH,
            "%s of \"%s\": the rules give it parts of together %" PRId64
            " along dimension %d, it has %" PRId64,
            entry->role, entry->name, cut->whole, rule->dim, entry->shape[rule->dim]);
    for (int r = 1; r < cut->ranks; r++)
        if (cut->length[r] != cut->length[0])
            return rs_error_set(RS_ERR_UNSUPPORTED,
                "\"%s\": with its shared parts rank 0 has %" PRId64
                " along dimension %d, rank %d %" PRId64
                ": DeepSpeed can only cut it in equal shares",
                entry->name, cut->length[0], rule->dim, r, cut->length[r]);
    return RS_OK;
}

static rs_status add_moved(
    const rs_piece *piece, int id, int dim, const rs_cut *cut, rs_catalog *to)
{
    int64_t before = 0;
    for (int r = 0; r < cut->ranks; r++) {
        for (size_t i = cut->first[r]; i < cut->first[r + 1]; i++) {
            const rs_cut_run *run = &cut->runs[i];
            rs_piece part;
            if (rs_cut_move(piece, dim, run->global, run->width, before + run->local, &part))
                RS_TRY(rs_catalog_piece(to, id, &part));
        }
        before += cut->length[r];
    }
    return RS_OK;
}

static rs_status add_entry(
    const rs_catalog *from, int id, rs_rules *rules, int ranks, rs_catalog *to)
{
    const rs_catalog_entry *entry = rs_catalog_get(from, id);
    const rs_rule *rule;
    rs_cut cut = {0};
    rs_status status;
    int64_t shape[RS_MAX_DIMS];
    RS_TRY(rs_rules_find(rules, entry->is.name, &rule));
    bool shared = rule != NULL && rule->shared != NULL && rule->dim < entry->is.ndim &&
                  strcmp(entry->is.role, "step") != 0;
    memcpy(shape, entry->is.shape, sizeof shape);
    if (shared) {
        RS_TRY(cut_of(rule, ranks, entry->is.name, &cut));
        RS_TRY_GOTO(check(&entry->is, rule, &cut), out);
        shape[rule->dim] = rs_cut_total(&cut);
    }
    RS_TRY_GOTO(add_like(from, id, shape, to), out);
    for (size_t i = 0; i < entry->piece_count; i++) {
        rs_piece piece = rs_catalog_piece_at(from, entry->first_piece + i);
        if (shared)
            RS_TRY_GOTO(add_moved(&piece, id, rule->dim, &cut, to), out);
        else
            RS_TRY_GOTO(rs_catalog_piece(to, id, &piece), out);
    }
out:
    rs_cut_fini(&cut);
    return status;
}

rs_status rs_ranked_view(const rs_catalog *from, rs_rules *rules, int ranks, rs_catalog **out)
{
    rs_catalog *view;
    RS_TRY(rs_catalog_view(from, &view));
    rs_status status = RS_OK;
    for (size_t id = 0; id < from->entries.count && status == RS_OK; id++)
        status = add_entry(from, (int)id, rules, ranks, view);
    if (status == RS_OK)
        status = rs_catalog_finish(view);
    if (status == RS_OK)
        *out = view;
    else
        rs_catalog_destroy(view);
    return status;
}
