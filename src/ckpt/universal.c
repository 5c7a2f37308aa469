/*
 * DeepSpeed's universal checkpoints: a folder of parameters, each with one file a state, whole.
 *
 *   <tag>/zero/<parameter>/fp32.pt, exp_avg.pt, exp_avg_sq.pt, step.pt, ...
 *   <tag>/zero/optimizer_state.pt
 *   <tag>/mp_rank_XX_model_states.pt   (ZeRO-3: zero_pp_rank_D_mp_rank_XX_...): copies of the
 * source's
 *
 * A state's file holds a dict with the tensor under `param`, or, from ZeRO-3, the bare tensor,
 * flat; its shape then stands in the model files only. The model files also have what the format
 * itself leaves out: 16-bit weights, buffers, frozen parameters, and the client's state; they are
 * read as DeepSpeed's own. An empty tensor in place of a weight says its dtype alone.
 *
 * Invariants:
 * 1. Every parameter that the model files name has its folder, and every folder its fp32.pt.
 *    Folders of what the model files have and the optimizer has not are copies, and not read.
 * 2. Any state's file is read, whatever its name.
 * 3. What a conversion was interrupted in is refused: every state that has fragments in `tmp` has
 *    its file.
 *
 * Specification: docs/formats/deepspeed-universal.md.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "ckpt/deepspeed.h"
#include "ckpt/deepspeed_derive.h"
#include "ckpt/groups.h"
#include "ckpt/ranked.h"
#include "ckpt/torch_read.h"
#include "ckpt/value_json.h"

#define NEST_MOST 8

/* What ds_to_universal works in, and nothing else: the names of parameters, then of ranks. */
static bool has_fragments(const rs_place *place)
{
    return place->count == 1 && rs_place_has_folder(place, "tmp");
}

bool rs_universal_probe(const rs_place *place)
{
    return place->folder && (rs_place_has_folder(place, "zero") || has_fragments(place));
}

/* Lists what the model files have, by name; of a name that several have, the first. */
static rs_status index_shapes(rs_ds_reader *reader)
{
    for (int mp = 0; mp < reader->pp * reader->tp; mp++)
        for (size_t g = 0; g < reader->models[mp].group_count; g++)
            for (size_t i = 0; i < reader->models[mp].groups[g].count; i++) {
                const rs_ds_param *param = &reader->models[mp].groups[g].items[i];
                int found;
                RS_TRY(RS_LIST_RESERVE_ONE(&reader->shapes));
                RS_TRY(rs_names_add(
                    &reader->shape_names, param->name, (int)reader->shapes.count, &found));
                if (found < 0)
                    reader->shapes.items[reader->shapes.count++] = param;
            }
    return RS_OK;
}

/* The shape of a parameter that a model file has; with several tensor-parallel ranks it may be that
 * of a slice. */
static const rs_ds_param *find_shape(const rs_ds_reader *reader, const char *name)
{
    int found = rs_names_find(&reader->shape_names, name);
    return found >= 0 ? reader->shapes.items[found] : NULL;
}

static rs_status add_tensor(rs_ds_reader *reader, const rs_torch *torch, const char *name,
    const char *role, const rs_value *value, bool bare)
{
    rs_torch_tensor t;
    rs_piece piece;
    int id;
    if (rs_torch_kind_of(value) != RS_TORCH_DENSE)
        return rs_ds_malformed(torch, "holds no dense tensor");
    RS_TRY(rs_torch_tensor_of(torch, value, &t));
    /* A dict has a shape itself: one element in a row for a scalar, or that in which it is cut. */
    const rs_ds_param *param = strcmp(role, "step") != 0 ? find_shape(reader, name) : NULL;
    rs_box all = rs_box_whole(t.ndim, t.shape);
    int64_t elements = rs_box_is_empty(&all) ? 0 : rs_box_volume(&all);
    bool fits = param != NULL && param->elements == elements && rs_torch_is_contiguous(&t);
    if (param != NULL && bare && t.ndim == 1 && reader->tp == 1 && !fits)
        return rs_ds_malformed(torch,
            "has %" PRId64 " elements, the model files give \"%s\" %" PRId64, elements, name,
            param->elements);
    rs_torch_piece(torch, &t, &piece);
    if (!bare && reader->tp > 1 && strcmp(role, "step") != 0) {
        const rs_rule *rule;
        bool done;
        RS_TRY(rs_rules_find(&reader->rules, name, &rule));
        RS_TRY(rs_ranked_add(reader->catalog, name, role, t.dtype, t.ndim, t.shape, &piece, rule,
            reader->tp, &done));
        if (done)
            return RS_OK;
    }
    if (!fits) {
        reader->flat += bare && strcmp(role, "step") != 0;
        RS_TRY(rs_catalog_add(reader->catalog, name, role, t.dtype, t.ndim, t.shape, &id));
        return rs_catalog_piece(reader->catalog, id, &piece);
    }
    RS_TRY(rs_catalog_add(reader->catalog, name, role, t.dtype, param->ndim, param->shape, &id));
    return rs_catalog_whole(reader->catalog, id, 0, piece.file, piece.offset);
}

static rs_status add_number(rs_ds_reader *reader, const rs_torch *torch, const char *name,
    const char *role, const rs_value *value)
{
    int id;
    rs_dtype dtype = value->kind == RS_VALUE_INT     ? RS_DTYPE_I64
                     : value->kind == RS_VALUE_FLOAT ? RS_DTYPE_F64
                                                     : RS_DTYPE_NONE;
    if (dtype == RS_DTYPE_NONE)
        return rs_ds_malformed(torch, "holds neither a tensor nor a number");
    RS_TRY(rs_catalog_add(reader->catalog, name, role, dtype, 0, NULL, &id));
    return rs_catalog_inline(reader->catalog, id, 0, &value->as.integer);
}

static void note_step(rs_ds_reader *reader, const rs_torch *torch, const rs_value *value)
{
    double step;
    if (rs_value_is(value, RS_VALUE_INT))
        step = (double)value->as.integer;
    else if (value == NULL || rs_torch_kind_of(value) != RS_TORCH_DENSE ||
             rs_torch_scalar(torch, value, &step) != RS_OK)
        return;
    reader->step_differs = reader->step_differs || (reader->step >= 0 && reader->step != step);
    if (reader->step < 0)
        reader->step = step;
}

/* One state of one parameter. */
static rs_status read_state(
    rs_ds_reader *reader, const rs_place *folder, const char *file, const char *name)
{
    char *path = NULL, *role = NULL;
    int id;
    rs_torch torch = {0};
    rs_status status;
    RS_TRY_GOTO(rs_place_path(folder, file, &path), out);
    role = rs_strdup(file);
    if (role == NULL)
        RS_TRY_GOTO(rs_error_memory(strlen(file)), out);
    role[strlen(role) - 3] = 0;
    RS_TRY_GOTO(rs_files_add(reader->catalog->files, path, &id), out);
    RS_TRY_GOTO(rs_torch_open(reader->catalog->files, id, &torch), out);
    RS_TRY_GOTO(rs_torch_checksums(reader->catalog, &torch), out);
    RS_TRY_GOTO(rs_torch_warn(reader->catalog, &torch), out);
    const rs_value *root = rs_torch_root(&torch);
    const char *as = strcmp(role, "fp32") == 0 ? "master" : role;
    if (strcmp(as, "step") == 0)
        note_step(reader, &torch, root);
    if (rs_value_is(root, RS_VALUE_DICT)) {
        const rs_value *param = rs_value_get(root, "param");
        if (param == NULL)
            RS_TRY_GOTO(rs_ds_malformed(&torch, "its dict has no \"param\""), out);
        RS_TRY_GOTO(add_tensor(reader, &torch, name, as, param, false), out);
    } else if (rs_torch_kind_of(root) != RS_TORCH_NO_TENSOR) {
        RS_TRY_GOTO(add_tensor(reader, &torch, name, as, root, true), out);
    } else {
        RS_TRY_GOTO(add_number(reader, &torch, name, as, root), out);
    }
out:
    rs_torch_fini(&torch);
    free(path);
    free(role);
    return status;
}

static bool is_number(const char *name)
{
    return name[0] != '\0' && name[strspn(name, "0123456789")] == '\0';
}

static bool is_state(const char *name)
{
    size_t length = strlen(name);
    return length > 3 && name[0] != '.' && strcmp(name + length - 3, ".pt") == 0;
}

/* True if the folder has fp32.pt alone, and the model files have the tensor and the optimizer has
 * it not: a buffer or a frozen parameter, of which DeepSpeed since 0.19 writes a copy here too. */
static bool is_copy(const rs_ds_reader *reader, const rs_place *folder, const char *name)
{
    for (size_t i = 0; i < folder->count; i++)
        if (is_state(folder->names[i]) && strcmp(folder->names[i], "fp32.pt") != 0)
            return false;
    return reader->shapes.count > 0 && find_shape(reader, name) == NULL &&
           (rs_catalog_find(reader->catalog, name, "buffer") >= 0 ||
               rs_catalog_find(reader->catalog, name, "param") >= 0);
}

/* Enters the folder `entry` of the parameter `name` (""); `*inner` gets what both are called,
 * free() it. */
static rs_status enter(
    const rs_place *folder, const char *name, const char *entry, rs_place *inside, char **inner)
{
    rs_text text = {0};
    rs_text_append(&text, "%s%s%s", name, name[0] != '\0' ? "/" : "", entry);
    RS_TRY(rs_text_take(&text, inner));
    rs_status status = rs_place_enter(folder, entry, inside);
    if (status != RS_OK)
        free(*inner);
    return status;
}

/* A parameter's folder; slashes in its name make folders within folders. */
static rs_status read_folder(
    rs_ds_reader *reader, const rs_place *folder, const char *name, int depth)
{
    size_t states = 0;
    bool master = false;
    rs_status status = RS_OK;
    if (depth > NEST_MOST)
        return rs_error_set(RS_ERR_MALFORMED, "%s: folders nest too deep", folder->title);
    bool copy = depth > 0 && is_copy(reader, folder, name);
    for (size_t i = 0; i < folder->count && status == RS_OK; i++) {
        const char *entry = folder->names[i];
        rs_place inside;
        char *inner;
        if (depth > 0 && is_state(entry) && copy)
            continue;
        if (depth > 0 && is_state(entry)) {
            status = read_state(reader, folder, entry, name);
            master = master || strcmp(entry, "fp32.pt") == 0;
            states++;
            continue;
        }
        if (!rs_place_has_folder(folder, entry))
            continue;
        status = enter(folder, name, entry, &inside, &inner);
        if (status == RS_OK) {
            status = read_folder(reader, &inside, inner, depth + 1);
            rs_place_fini(&inside);
            free(inner);
        }
    }
    if (status == RS_OK && states > 0 && !master)
        status = rs_error_set(RS_ERR_MALFORMED, "%s: has no fp32.pt", folder->title);
    return status;
}

/* optimizer_state.pt: what is common to all parameters. */
static rs_status read_common(rs_ds_reader *reader, const rs_place *folder)
{
    static const char *const keys[] = {
        "param_groups", "loss_scaler", "dynamic_loss_scale", "clip_grad", "overflow"};
    char *path;
    int id;
    rs_torch torch = {0};
    RS_TRY(rs_place_path(folder, "optimizer_state.pt", &path));
    rs_status status = rs_files_add(reader->catalog->files, path, &id);
    free(path);
    if (status == RS_ERR_NOT_FOUND)
        return rs_catalog_warn(reader->catalog, "%s: has no optimizer_state.pt", folder->title);
    if (status == RS_OK)
        status = rs_torch_open(reader->catalog->files, id, &torch);
    const rs_value *root = status == RS_OK ? rs_torch_root(&torch) : NULL;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && status == RS_OK; i++)
        if (rs_value_get(root, keys[i]) != NULL)
            status = rs_catalog_extra(reader->catalog, keys[i],
                rs_value_json(rs_value_get(root, keys[i]), &reader->left));
    const rs_value *inner = rs_value_get(rs_value_get(root, "optimizer_state_dict"), RS_GROUPS);
    const rs_value *groups = rs_value_get(root, RS_GROUPS);
    for (int mp = 0; reader->models != NULL && mp < reader->pp * reader->tp; mp++)
        if (status == RS_OK)
            status = rs_ds_note_members(reader, mp, groups != NULL ? groups : inner, true);
    if (status == RS_OK && reader->step < 0) { /* ZeRO-3 has no step.pt */
        const rs_value *state = rs_value_get(rs_value_get(root, "optimizer_state_dict"), "state");
        note_step(reader, &torch, rs_value_get(rs_value_get_index(state, 0), "step"));
    }
    if (status == RS_OK)
        status = rs_torch_warn(reader->catalog, &torch);
    rs_torch_fini(&torch);
    return status;
}

static rs_status check_names(const rs_ds_reader *reader)
{
    for (size_t i = 0; i < reader->shapes.count; i++) {
        const char *name = reader->shapes.items[i]->name;
        if (rs_catalog_find(reader->catalog, name, "master") < 0)
            return rs_error_set(RS_ERR_MALFORMED,
                "%s/zero: has no folder \"%s\", which the model files name", reader->place->title,
                name);
    }
    return RS_OK;
}

/* The length of STATE in "STATE.NN", a rank's fragment of a state; 0: it is none. */
static size_t fragment_of(const char *name)
{
    const char *dot = strrchr(name, '.');
    if (name[0] == '.' || dot == NULL || !is_number(dot + 1))
        return 0;
    return (size_t)(dot - name);
}

static bool is_fragment_of(const char *name, const char *state, size_t length)
{
    return fragment_of(name) == length && strncmp(name, state, length) == 0;
}

/* The ranks whose fragments of a state are there, in the order of their numbers. */
static rs_status list_fragments(
    const rs_place *place, const char *state, size_t length, rs_text *out)
{
    long last = -1;
    for (bool more = true; more;) { /* names sort as text, numbers do not */
        long least = LONG_MAX;
        for (size_t i = 0; i < place->count; i++) {
            if (!is_fragment_of(place->names[i], state, length))
                continue;
            long number = strtol(place->names[i] + length + 1, NULL, 10);
            if (number > last && number < least)
                least = number;
        }
        more = least < LONG_MAX;
        last = least;
        if (more)
            rs_text_append(out, "%s%ld", out->length > 0 ? ", " : "", least);
    }
    return out->status;
}

/* A state of a parameter must have been merged from its fragments, which `place` has. */
static rs_status check_merged(const rs_ds_reader *reader, const rs_place *place, const char *name,
    const char *state, size_t length)
{
    rs_text merged = {0}, ranks = {0};
    rs_status status;
    bool master = length == strlen("fp32") && strncmp(state, "fp32", length) == 0;
    rs_text_append(&merged, "zero/%s/%.*s.pt", name, (int)length, state);
    RS_TRY_GOTO(merged.status, out);
    if (rs_place_reaches(reader->place, merged.data))
        goto out;
    RS_TRY_GOTO(list_fragments(place, state, length, &ranks), out);
    status = rs_error_set(RS_ERR_MALFORMED,
        "%s: the conversion that wrote it was interrupted: of %.*s%s\"%s\" there are only "
        "fragments in \"tmp\", of data-parallel ranks %s; what it was made from can be converted "
        "again",
        reader->place->title, master ? 0 : (int)length, state, master ? "" : " of ", name,
        ranks.length > 0 ? ranks.data : "unknown");
out:
    rs_text_fini(&merged);
    rs_text_fini(&ranks);
    return status;
}

/* All states of a parameter that have fragments in a folder. */
static rs_status check_states(const rs_ds_reader *reader, const rs_place *place, const char *name)
{
    size_t count, length = 0;
    const char *state = "";
    rs_ds_files(reader, RS_DS_MODEL_OF_RANK, &count);
    RS_TRY(check_merged(reader, place, name, "fp32", strlen("fp32")));
    for (size_t i = 0; i < place->count; i++) {
        if (fragment_of(place->names[i]) == 0 || is_fragment_of(place->names[i], state, length))
            continue;
        state = place->names[i];
        length = fragment_of(state);
        /* Of ZeRO-3 ds_to_universal has fragments of the step, and merges none. */
        if (count == 0 || length != strlen("step") || strncmp(state, "step", length) != 0)
            RS_TRY(check_merged(reader, place, name, state, length));
    }
    return RS_OK;
}

/*
 * A folder in `tmp`: of a parameter or of what its name begins with, or of a rank, whose name is a
 * number and whose parent's that of the parameter, or "whole" of a rank, for states that every
 * data-parallel rank has whole. `owner`: the parameter in the latter two, NULL in the others. What
 * has no folders and no fragments is a parameter of which none was written.
 */
static rs_status check_folder(const rs_ds_reader *reader, const rs_place *folder, const char *name,
    const char *owner, int depth)
{
    bool leaf = true, fragments = false;
    rs_status status = RS_OK;
    if (depth > NEST_MOST + 2)
        return rs_error_set(RS_ERR_MALFORMED, "%s: folders nest too deep", folder->title);
    for (size_t i = 0; i < folder->count && status == RS_OK; i++) {
        const char *entry = folder->names[i];
        rs_place inside;
        char *inner;
        if (!rs_place_has_folder(folder, entry)) {
            fragments = fragments || fragment_of(entry) > 0;
            continue;
        }
        const char *of = depth > 0 && is_number(entry) ? name
                         : strcmp(entry, "whole") == 0 ? owner
                                                       : NULL;
        status = enter(folder, name, entry, &inside, &inner);
        if (status == RS_OK) {
            status = check_folder(reader, &inside, inner, of, depth + 1);
            rs_place_fini(&inside);
            free(inner);
        }
        leaf = false;
    }
    if (status == RS_OK && depth > 0 && (leaf || (fragments && owner != NULL)))
        status = check_states(reader, folder, owner != NULL ? owner : name);
    return status;
}

static rs_status check_fragments(const rs_ds_reader *reader)
{
    rs_place folder;
    if (!rs_place_has_folder(reader->place, "tmp"))
        return RS_OK;
    RS_TRY(rs_place_enter(reader->place, "tmp", &folder));
    rs_status status = check_folder(reader, &folder, "", NULL, 0);
    rs_place_fini(&folder);
    return status;
}

static rs_status read_models(rs_ds_reader *reader)
{
    size_t models, of_ranks;
    rs_ds_files(reader, RS_DS_MODEL, &models);
    rs_ds_files(reader, RS_DS_MODEL_OF_RANK, &of_ranks);
    if (models + of_ranks == 0)
        return rs_catalog_warn(reader->catalog,
            "%s: has no files of model states: shapes, buffers and frozen parameters are unknown",
            reader->place->title);
    RS_TRY(rs_ds_degrees(reader));
    if (of_ranks > 0)
        reader->dp = (int)of_ranks / (reader->pp * reader->tp);
    reader->weights = reader->tp == 1 || reader->rules.cuts.count > 0;
    if (!reader->weights)
        RS_TRY(rs_catalog_warn(reader->catalog,
            "%s: its model files hold slices of %d tensor-parallel ranks, and nothing says how "
            "they were cut: 16-bit weights, buffers and frozen parameters are not listed",
            reader->place->title, reader->tp));
    rs_assembly_init(&reader->assembly, reader->catalog, &reader->rules, reader->tp);
    reader->assembly.partial = true;
    RS_TRY(rs_ds_read_models(reader));
    RS_TRY(index_shapes(reader));
    return rs_assembly_finish(&reader->assembly);
}

static rs_status read_all(rs_ds_reader *reader, const rs_checkpoint_options *options)
{
    rs_place folder;
    RS_TRY(rs_ds_scan(reader));
    RS_TRY(check_fragments(reader));
    if (options->rules != NULL)
        RS_TRY(rs_rules_add_file(&reader->rules, options->rules));
    RS_TRY(read_models(reader));
    RS_TRY(rs_place_enter(reader->place, "zero", &folder));
    rs_status status = read_folder(reader, &folder, "", 0);
    if (status == RS_OK)
        status = read_common(reader, &folder);
    rs_place_fini(&folder);
    RS_TRY(status);
    RS_TRY(check_names(reader));
    if (reader->flat > 0)
        RS_TRY(rs_catalog_warn(reader->catalog,
            "%s: %zu tensors are stored flat, and no model file says their shapes",
            reader->place->title, reader->flat));
    if (rs_place_has(reader->place, "tmp"))
        RS_TRY(rs_catalog_warn(reader->catalog,
            "%s: has a folder \"tmp\": its conversion was interrupted, or kept its fragments",
            reader->place->title));
    return rs_ds_derive(reader);
}

rs_status rs_universal_read(
    rs_catalog *catalog, const rs_place *place, const rs_checkpoint_options *options)
{
    rs_ds_reader reader;
    rs_status status = rs_ds_reader_init(&reader, catalog, place);
    reader.universal = true;
    if (status == RS_OK)
        status = read_all(&reader, options);
    rs_ds_reader_fini(&reader);
    return status;
}
