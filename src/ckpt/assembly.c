/*
 * Placing local tensors in logical ones.
 *
 * The cut of a tensor over tensor-parallel ranks is, along one dimension, for each rank a list of
 * runs (cut.h): rank t holds, one behind the other, its share of every part; the logical tensor has
 * the parts one behind the other, each whole. One part is the plain cut; a fused gate and up has
 * two, a fused q, k and v three, of which ranks may have some in common. A replicated tensor has no
 * such dimension, and every rank's is one more copy.
 *
 * A piece of a local tensor is a range of its row-major order, which is a few boxes; each box meets
 * each run in a box, which is shifted to its place in the logical tensor. Padding rows of
 * a vocabulary are clipped away.
 *
 * Invariants:
 * 1. What the catalog gets covers the logical tensor exactly if the locals were complete; the
 *    catalog proves it.
 * 2. With one rank nothing needs to be known about cuts, and no rule is asked, but what is to
 * become of copies that replicas train apart.
 * 3. Without a rule the tensor is refused by name. Shapes alone never decide.
 *
 * Cost: pieces times runs of a rank.
 */
#include "ckpt/assembly.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "ckpt/cast.h"
#include "ckpt/cut.h"

typedef struct cut {
    int dim; /* -1: every rank has all */
    bool averaged;
    bool equal; /* what several ranks have must be equal */
    int parts;
    int64_t rows; /* of dimension 0 that count; -1: all */
    rs_cut is;    /* along `dim` */
} cut;

void rs_assembly_init(rs_assembly *assembly, rs_catalog *catalog, rs_rules *rules, int tp)
{
    *assembly = (rs_assembly){.catalog = catalog, .rules = rules, .tp = tp};
}

void rs_assembly_fini(rs_assembly *assembly)
{
    rs_names_fini(&assembly->keys);
    rs_names_fini(&assembly->groups);
    rs_pool_fini(&assembly->pool);
    free(assembly->locals.items);
    free(assembly->pieces.items);
    free(assembly->strided.items);
    memset(assembly, 0, sizeof *assembly);
}

static rs_status shape_differs(const rs_local *local, rs_dtype dtype)
{
    return rs_error_set(RS_ERR_MISMATCH,
        "%s of \"%s\": two files disagree about its %s on tensor-parallel rank %d", local->role,
        local->name, local->dtype != dtype ? "dtype" : "shape", local->tp);
}

rs_status rs_assembly_local(rs_assembly *assembly, const char *name, const char *role, int tp,
    int copy, rs_dtype dtype, int ndim, const int64_t *shape, int *id)
{
    size_t name_bytes = strlen(name), role_bytes = strlen(role);
    size_t room = name_bytes + role_bytes + 32;
    void *memory;
    int found;
    RS_TRY(rs_pool_take(&assembly->pool, 2 * room, &memory));
    char *key = memory, *group = key + room;
    snprintf(key, room, "%s\n%s\n%d\n%d", role, name, tp, copy);
    snprintf(group, room, "%s\n%s", role, name);
    RS_TRY(rs_names_add(&assembly->keys, key, (int)assembly->locals.count, &found));
    if (found >= 0) {
        const rs_local *local = &assembly->locals.items[found];
        if (local->dtype != dtype || local->ndim != ndim ||
            memcmp(local->shape, shape, sizeof *shape * (size_t)ndim) != 0)
            return shape_differs(local, dtype);
        *id = found;
        return RS_OK;
    }
    rs_local local = {
        .tp = tp, .copy = copy, .dtype = dtype, .ndim = ndim, .first = -1, .contiguous = true};
    memcpy(local.shape, shape, sizeof *shape * (size_t)ndim);
    local.name = group + role_bytes + 1;
    RS_TRY(rs_pool_text(&assembly->pool, role, role_bytes, &local.role));
    RS_TRY(rs_names_add(&assembly->groups, group, assembly->group_count, &found));
    local.group = found >= 0 ? found : assembly->group_count++;
    RS_TRY(RS_LIST_RESERVE_ONE(&assembly->locals));
    *id = (int)assembly->locals.count;
    assembly->locals.items[assembly->locals.count++] = local;
    return RS_OK;
}

static rs_status add_piece(rs_assembly *assembly, int id, rs_local_piece piece)
{
    rs_local *local = &assembly->locals.items[id];
    RS_TRY(RS_LIST_RESERVE_ONE(&assembly->pieces));
    piece.next = local->first;
    local->first = (int64_t)assembly->pieces.count;
    assembly->pieces.items[assembly->pieces.count++] = piece;
    return RS_OK;
}

rs_status rs_assembly_range(
    rs_assembly *assembly, int id, int64_t begin, int64_t end, int file, int64_t offset)
{
    if (begin >= end)
        return RS_OK;
    return add_piece(assembly, id,
        (rs_local_piece){
            .begin = begin, .end = end, .file = file, .offset = offset, .strided = -1});
}

rs_status rs_assembly_strided(rs_assembly *assembly, int id, const rs_piece *piece)
{
    rs_local *local = &assembly->locals.items[id];
    if (rs_box_is_empty(&piece->box))
        return RS_OK;
    int64_t step = (int64_t)rs_dtype_size(local->dtype);
    bool packed = piece->flags == 0;
    for (int d = local->ndim - 1; d >= 0; d--) {
        packed = packed && (piece->box.extent[d] == 1 || piece->stride[d] == step);
        step *= piece->box.extent[d];
    }
    int64_t volume = rs_box_volume(&piece->box);
    if (packed)
        return rs_assembly_range(assembly, id, 0, volume, piece->file, piece->offset);
    local->contiguous = false;
    RS_TRY(RS_LIST_RESERVE_ONE(&assembly->strided));
    assembly->strided.items[assembly->strided.count++] = *piece;
    return add_piece(assembly, id,
        (rs_local_piece){.begin = 0,
            .end = volume,
            .file = piece->file,
            .offset = piece->offset,
            .strided = (int)assembly->strided.count - 1});
}

/* One logical tensor: its locals, by rank. */
typedef struct tensor {
    rs_local **locals;
    size_t count;
    const rs_local **of_rank; /* the first local of each rank, NULL where it has none */
} tensor;

static rs_status refuse(const tensor *t, const char *what)
{
    return rs_error_set(
        RS_ERR_MISMATCH, "%s of \"%s\": %s", t->locals[0]->role, t->locals[0]->name, what);
}

/* The local of rank `r` in the shape that the rule cuts. */
static rs_status apply_view(const tensor *t, const rs_rule *rule, const cut *c)
{
    for (size_t i = 0; i < t->count; i++) {
        rs_local *local = t->locals[i];
        rs_box whole = rs_box_whole(local->ndim, local->shape);
        int64_t volume = rs_box_is_empty(&whole) ? 0 : rs_box_volume(&whole);
        int64_t known = c->is.length[local->tp], rest = -1, product = 1;
        int64_t view[RS_MAX_DIMS];
        for (int d = 0; d < rule->view_ndim; d++) {
            view[d] = d == rule->dim ? known : rule->view[d];
            if (view[d] < 0) {
                if (rest >= 0)
                    return refuse(t, "its rule leaves two sizes open");
                rest = d;
                continue;
            }
            if (!rs_mul_fits(product, view[d], &product))
                return refuse(t, "the shape in its rule overflows");
        }
        if (rest >= 0) {
            view[rest] = product > 0 ? volume / product : 0;
            product *= view[rest];
        }
        if (product != volume)
            return refuse(t, "the shape in its rule has another number of elements");
        if (!local->contiguous)
            return refuse(t, "its rule gives it another shape, but it is stored by strides");
        local->ndim = rule->view_ndim;
        memcpy(local->shape, view, sizeof *view * (size_t)rule->view_ndim);
    }
    return RS_OK;
}

/* A bare number in a fused shape is the number of equal parts, or the whole size of one. */
static int parts_of(const tensor *t, const rs_rule *rule, int ranks)
{
    int64_t total = 0;
    for (int r = 0; r < ranks; r++)
        total += t->of_rank[r]->shape[rule->dim];
    return rule->bare && total == rule->parts ? 1 : rule->parts;
}

/* Sizes of the shares along the cut dimension, from what the rule says and the ranks have. */
static rs_status find_widths(
    const tensor *t, const rs_rule *rule, int parts, int ranks, bool viewed, int64_t *widths)
{
    if (rule->widths != NULL) {
        if (rule->ranks != ranks)
            return refuse(t, "its rule gives widths for another number of ranks");
        memcpy(widths, rule->widths, sizeof *widths * (size_t)(parts * ranks));
        return RS_OK;
    }
    if (rule->sizes == NULL && viewed)
        return refuse(t, "its rule gives it another shape, but no sizes of its parts");
    for (int j = 0; j < parts; j++)
        for (int r = 0; r < ranks; r++) {
            int64_t whole = rule->sizes != NULL ? rule->sizes[j] : t->of_rank[r]->shape[rule->dim];
            int64_t shares = rule->sizes != NULL ? ranks : parts;
            if (whole % shares != 0)
                return refuse(t, rule->sizes != NULL
                                     ? "a part of it does not divide evenly over the ranks, and "
                                       "its rule gives no widths"
                                     : "a rank's share does not divide into the parts of its rule");
            widths[j * ranks + r] = whole / shares;
        }
    return RS_OK;
}

static rs_status check_lengths(const tensor *t, const cut *c)
{
    int wrong = 0;
    int64_t together = 0;
    while (wrong < c->is.ranks && c->is.length[wrong] == t->of_rank[wrong]->shape[c->dim])
        wrong++;
    if (wrong == c->is.ranks)
        return RS_OK;
    for (int r = 0; r < c->is.ranks; r++)
        if (!rs_add_fits(together, t->of_rank[r]->shape[c->dim], &together))
            return refuse(t, "its ranks' shapes overflow");
    return rs_error_set(RS_ERR_MISMATCH,
        "%s of \"%s\": rank %d has %" PRId64 " along dimension %d, its rule gives it "
        "%" PRId64 " (all %d ranks together %" PRId64 ", the rule %" PRId64 ")",
        t->locals[0]->role, t->locals[0]->name, wrong, t->of_rank[wrong]->shape[c->dim], c->dim,
        c->is.length[wrong], c->is.ranks, together, rs_cut_total(&c->is));
}

static rs_status unknown_cut(const tensor *t, int ranks)
{
    return rs_error_set(RS_ERR_UNSUPPORTED,
        "\"%s\" is held by %d tensor-parallel ranks, and nothing in the checkpoint says how it "
        "was cut (no universal_checkpoint_info); give a rules file that does",
        t->locals[0]->name, ranks);
}

static rs_status in_context(const tensor *t, rs_status status)
{
    return status == RS_OK
               ? RS_OK
               : rs_error_context(status, "%s of \"%s\"", t->locals[0]->role, t->locals[0]->name);
}

/* The runs of every rank along the dimension that the rule cuts. */
static rs_status find_runs(const tensor *t, const rs_rule *rule, int ranks, bool viewed, cut *c)
{
    if (rule->shared != NULL)
        return in_context(t, rs_cut_of_shared(rule, ranks, &c->is));
    size_t count = (size_t)c->parts * (size_t)ranks;
    int64_t *widths = rs_calloc(count, sizeof *widths); /* [part][rank] */
    if (widths == NULL)
        return rs_error_memory(count * sizeof *widths);
    rs_status status = find_widths(t, rule, c->parts, ranks, viewed, widths);
    if (status == RS_OK)
        status = in_context(t, rs_cut_of_widths(c->parts, ranks, widths, &c->is));
    free(widths);
    return status;
}

/* Finds how the tensor is cut; may give its locals another shape. */
static rs_status find_cut(rs_assembly *assembly, const tensor *t, cut *c)
{
    const rs_rule *rule;
    const rs_vocabulary *vocabulary;
    const rs_local *first = t->locals[0];
    *c = (cut){.dim = -1, .parts = 1, .rows = -1, .is.copies = 1};
    if (first->whole)
        return RS_OK;
    RS_TRY(rs_rules_vocabulary(assembly->rules, first->name, &vocabulary));
    if (vocabulary != NULL && vocabulary->rows > 0 && first->ndim > 0)
        c->rows = vocabulary->rows;
    c->equal = first->own;
    if (assembly->tp == 1 && !first->own)
        return RS_OK;
    RS_TRY(rs_rules_find(assembly->rules, first->name, &rule));
    if (rule == NULL)
        return assembly->tp > 1 ? unknown_cut(t, assembly->tp) : RS_OK;
    c->averaged = rule->kind == RS_RULE_AVERAGED && rs_cast_is_float(first->dtype);
    c->equal = !c->averaged && (rule->equal || first->own);
    if (assembly->tp == 1 || rule->kind != RS_RULE_SPLIT)
        return RS_OK;
    for (int r = 0; r < assembly->tp; r++) {
        if (t->of_rank[r] == NULL)
            return rs_error_set(RS_ERR_MISMATCH,
                "%s of \"%s\": tensor-parallel rank %d of %d has none of it", first->role,
                first->name, r, assembly->tp);
        if (t->of_rank[r]->ndim != first->ndim)
            return refuse(t, "ranks have different numbers of dimensions");
    }
    bool viewed = rule->view_ndim > 0 && rule->view_ndim != first->ndim;
    int ndim = viewed ? rule->view_ndim : first->ndim;
    if (rule->dim >= ndim)
        return rs_error_set(RS_ERR_MISMATCH,
            "%s of \"%s\": its rule cuts dimension %d, it has %d dimensions", first->role,
            first->name, rule->dim, ndim);
    c->dim = rule->dim;
    c->parts = viewed ? rule->parts : parts_of(t, rule, assembly->tp);
    RS_TRY(find_runs(t, rule, assembly->tp, viewed, c));
    if (viewed)
        RS_TRY(apply_view(t, rule, c));
    return check_lengths(t, c);
}

/* The logical shape; all ranks must agree beside the cut dimension. */
static rs_status logical_shape(const tensor *t, const cut *c, int64_t *shape)
{
    const rs_local *first = t->locals[0];
    for (size_t i = 0; i < t->count; i++) {
        const rs_local *local = t->locals[i];
        if (local->ndim != first->ndim || local->dtype != first->dtype)
            return refuse(t, "ranks disagree about its dimensions or dtype");
        for (int d = 0; d < first->ndim; d++)
            if (d != c->dim && local->shape[d] != first->shape[d])
                return rs_error_set(RS_ERR_MISMATCH,
                    "%s of \"%s\": rank %d has %" PRId64 " along dimension %d, rank %d has "
                    "%" PRId64,
                    first->role, first->name, first->tp, first->shape[d], d, local->tp,
                    local->shape[d]);
    }
    memcpy(shape, first->shape, sizeof *shape * (size_t)first->ndim);
    if (c->dim >= 0)
        shape[c->dim] = c->is.whole;
    if (c->rows >= 0) {
        if (shape[0] < c->rows)
            return rs_error_set(RS_ERR_MISMATCH,
                "%s of \"%s\": has %" PRId64 " rows, the vocabulary %" PRId64, first->role,
                first->name, shape[0], c->rows);
        shape[0] = c->rows;
    }
    return RS_OK;
}

/* Adds a piece of the logical tensor, but for padding rows of a vocabulary. */
static rs_status add_clipped(
    rs_assembly *assembly, int entry, const rs_box *logical, const rs_piece *piece)
{
    rs_piece part = *piece;
    if (!rs_box_intersect(&piece->box, logical, &part.box))
        return RS_OK;
    return rs_catalog_piece(assembly->catalog, entry, &part);
}

/* Places one box of a local tensor; `piece` has its strides and the place of its first element. */
static rs_status place_box(rs_assembly *assembly, const rs_local *local, const cut *c, int entry,
    const int64_t *shape, const rs_piece *piece)
{
    rs_box logical = rs_box_whole(local->ndim, shape);
    if (c->dim < 0)
        return add_clipped(assembly, entry, &logical, piece);
    for (size_t i = c->is.first[local->tp]; i < c->is.first[local->tp + 1]; i++) {
        const rs_cut_run *run = &c->is.runs[i];
        rs_piece part;
        if (!rs_cut_move(piece, c->dim, run->local, run->width, run->global, &part))
            continue;
        for (int copy = run->copy; copy < run->copy + run->copies; copy++) {
            part.copy = piece->copy + copy;
            RS_TRY(add_clipped(assembly, entry, &logical, &part));
        }
    }
    return RS_OK;
}

static rs_status place_local(rs_assembly *assembly, const rs_local *local, const cut *c, int entry,
    const int64_t *shape, int copy)
{
    rs_box whole = rs_box_whole(local->ndim, local->shape);
    int64_t size = (int64_t)rs_dtype_size(local->dtype);
    for (int64_t at = local->first; at >= 0; at = assembly->pieces.items[at].next) {
        const rs_local_piece *p = &assembly->pieces.items[at];
        if (p->strided >= 0) {
            rs_piece piece = assembly->strided.items[p->strided];
            piece.copy = copy;
            RS_TRY(place_box(assembly, local, c, entry, shape, &piece));
            continue;
        }
        rs_box boxes[2 * RS_MAX_DIMS];
        int count = rs_box_linear_range(&whole, p->begin, p->end, boxes);
        int64_t offset = p->offset;
        for (int i = 0; i < count; i++) {
            rs_piece piece = {.box = boxes[i], .copy = copy, .file = p->file, .offset = offset};
            int64_t step = size;
            for (int d = local->ndim - 1; d >= 0; d--) {
                piece.stride[d] = step;
                step *= local->shape[d];
            }
            offset += rs_box_volume(&boxes[i]) * size;
            RS_TRY(place_box(assembly, local, c, entry, shape, &piece));
        }
    }
    return RS_OK;
}

static rs_status place_tensor(rs_assembly *assembly, const tensor *t, const cut *c)
{
    int64_t shape[RS_MAX_DIMS];
    int entry;
    const rs_local *first = t->locals[0];
    RS_TRY(logical_shape(t, c, shape));
    RS_TRY(rs_catalog_add(
        assembly->catalog, first->name, first->role, first->dtype, first->ndim, shape, &entry));
    if (c->averaged)
        rs_catalog_get(assembly->catalog, entry)->how = RS_ENTRY_AVERAGE;
    if (c->equal)
        rs_catalog_get(assembly->catalog, entry)->how = RS_ENTRY_EQUAL;
    for (size_t i = 0; i < t->count; i++) {
        const rs_local *local = t->locals[i];
        int copy = c->dim < 0 ? local->copy * assembly->tp + local->tp : local->copy * c->is.copies;
        RS_TRY(place_local(assembly, local, c, entry, shape, copy));
    }
    return RS_OK;
}

static rs_status finish_tensor(rs_assembly *assembly, tensor *t)
{
    cut c;
    memset(t->of_rank, 0, sizeof *t->of_rank * (size_t)assembly->tp);
    for (size_t i = 0; i < t->count; i++)
        if (t->of_rank[t->locals[i]->tp] == NULL)
            t->of_rank[t->locals[i]->tp] = t->locals[i];
    rs_status status = find_cut(assembly, t, &c);
    if (status == RS_OK)
        status = place_tensor(assembly, t, &c);
    rs_cut_fini(&c.is);
    return status;
}

/* Patterns that match nothing are probably meant for something. */
static rs_status warn_unused(rs_assembly *assembly)
{
    for (size_t i = 0; i < assembly->rules->cuts.count; i++) {
        const rs_rule *rule = &assembly->rules->cuts.items[i];
        if (assembly->tp > 1 && !assembly->partial && rule->pattern != NULL && !rule->used)
            RS_TRY(rs_catalog_warn(assembly->catalog,
                "the pattern \"%s\" of the rules decides for no tensor",
                rs_pattern_text(rule->pattern)));
    }
    for (size_t i = 0; i < assembly->rules->vocabularies.count; i++) {
        const rs_vocabulary *vocabulary = &assembly->rules->vocabularies.items[i];
        if (vocabulary->used && vocabulary->rows == 0)
            RS_TRY(rs_catalog_warn(assembly->catalog,
                "nothing says how many rows of \"%s\" are real: padding rows are kept",
                rs_pattern_text(vocabulary->pattern)));
    }
    return RS_OK;
}

rs_status rs_assembly_finish(rs_assembly *assembly)
{
    size_t count = assembly->locals.count, groups = (size_t)assembly->group_count;
    size_t *start = rs_calloc(groups + 2, sizeof *start);
    rs_local **order = rs_calloc(count, sizeof *order);
    const rs_local **of_rank = rs_calloc((size_t)assembly->tp, sizeof *of_rank);
    rs_status status = RS_OK;
    if (start == NULL || order == NULL || of_rank == NULL)
        status = rs_error_memory(count * sizeof *order);
    if (status == RS_OK) {
        for (size_t i = 0; i < count; i++)
            start[assembly->locals.items[i].group + 2]++;
        for (size_t g = 2; g < groups + 2; g++)
            start[g] += start[g - 1];
        for (size_t i = 0; i < count; i++)
            order[start[assembly->locals.items[i].group + 1]++] = &assembly->locals.items[i];
    }
    for (size_t g = 0; g < groups && status == RS_OK; g++) {
        tensor t = {
            .locals = order + start[g], .count = start[g + 1] - start[g], .of_rank = of_rank};
        status = finish_tensor(assembly, &t);
    }
    free(start);
    free(order);
    free(of_rank);
    return status == RS_OK ? warn_unused(assembly) : status;
}
