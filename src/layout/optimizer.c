/*
 * Which roles of state an optimizer keeps, tensor by tensor.
 *
 * A job's roles are those of its optimizer and of the one that takes the other tensors; a tensor
 * lacks those that its own optimizer does not keep, and a frozen one lacks all but its parameter.
 * So there is nothing to know about optimizers anywhere below: a role is a role.
 */
#include "reshard/optimizer.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "layout/model.h"

static const rs_optimizer table[] = {
    {"adamw", {"exp_avg", "exp_avg_sq"}, false, NULL},
    {"sgd", {"momentum", NULL}, false, NULL},
    {"muon", {"momentum", NULL}, true, "adamw"},
};

#define OPTIMIZERS (sizeof table / sizeof *table)

const rs_optimizer *rs_optimizer_find(const char *name)
{
    for (size_t i = 0; i < OPTIMIZERS; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

const char *const *rs_optimizer_names(void)
{
    static const char *const names[OPTIMIZERS + 1] = {"adamw", "sgd", "muon", NULL};
    return names;
}

const rs_optimizer *rs_optimizer_for(const rs_optimizer *chosen, const rs_tensor *tensor)
{
    bool layers = tensor->ndim > 0 && tensor->axis[0] == RS_AXIS_LAYER;
    if (!chosen->matrices || (layers && tensor->ndim >= 3))
        return chosen;
    return rs_optimizer_find(chosen->others);
}

/* ---- patterns ---- */

/* Whether `name` fits one of the patterns between commas in `text`, which is cut up. */
static rs_status is_listed(const char *patterns, const char *name, bool *out)
{
    *out = false;
    if (patterns == NULL || patterns[0] == '\0')
        return RS_OK;
    char *copy = rs_strdup(patterns), *rest = copy;
    if (copy == NULL)
        return rs_error_memory(strlen(patterns) + 1);
    for (char *one; (one = strsep(&rest, ",")) != NULL;)
        *out = *out || fnmatch(one, name, 0) == 0;
    free(copy);
    return RS_OK;
}

static rs_status check_pattern(const rs_space *space, const char *pattern)
{
    for (int t = 0; t < rs_space_tensor_count(space); t++)
        if (fnmatch(pattern, rs_space_tensor(space, t)->name, 0) == 0)
            return RS_OK;
    rs_text names = {0};
    for (int t = 0; t < rs_space_tensor_count(space); t++)
        rs_text_append(&names, "%s%s", t > 0 ? ", " : "", rs_space_tensor(space, t)->name);
    rs_status status =
        rs_error_set(RS_ERR_ARGUMENT, "frozen tensors: \"%s\" fits none; there are: %s", pattern,
            names.data != NULL ? names.data : "");
    rs_text_fini(&names);
    return status;
}

static rs_status check_patterns(const rs_space *space, const char *patterns)
{
    if (patterns == NULL || patterns[0] == '\0')
        return RS_OK;
    char *copy = rs_strdup(patterns), *rest = copy;
    if (copy == NULL)
        return rs_error_memory(strlen(patterns) + 1);
    rs_status status = RS_OK;
    for (char *one; status == RS_OK && (one = strsep(&rest, ",")) != NULL;)
        status = check_pattern(space, one);
    free(copy);
    return status;
}

/* ---- roles ---- */

static bool keeps(const rs_optimizer *optimizer, const char *role)
{
    for (int i = 0; i < RS_OPTIMIZER_ROLES && optimizer->roles[i] != NULL; i++)
        if (strcmp(optimizer->roles[i], role) == 0)
            return true;
    return false;
}

rs_status rs_training_add_roles(rs_space *space, rs_dtype dtype, const rs_optimizer *optimizer)
{
    const rs_role param = {"param", dtype, RS_ROLE_MODEL};
    const rs_role master = {"master", RS_DTYPE_F32, RS_ROLE_OPTIMIZER};
    RS_TRY(rs_space_add_role(space, &param, NULL));
    if (dtype != RS_DTYPE_F32)
        RS_TRY(rs_space_add_role(space, &master, NULL));
    for (const rs_optimizer *o = optimizer; o != NULL;
         o = o->others != NULL ? rs_optimizer_find(o->others) : NULL)
        for (int i = 0; i < RS_OPTIMIZER_ROLES && o->roles[i] != NULL; i++) {
            const rs_role role = {o->roles[i], RS_DTYPE_F32, RS_ROLE_OPTIMIZER};
            if (rs_space_find_role(space, role.name) < 0)
                RS_TRY(rs_space_add_role(space, &role, NULL));
        }
    return RS_OK;
}

/* Takes from a tensor the roles that it has not. */
static rs_status set_roles(rs_space *space, int tensor, const rs_optimizer *optimizer, bool frozen)
{
    const rs_optimizer *own = rs_optimizer_for(optimizer, rs_space_tensor(space, tensor));
    for (int r = 0; r < rs_space_role_count(space); r++) {
        const rs_role *role = rs_space_role(space, r);
        bool master = strcmp(role->name, "master") == 0;
        if (role->role_class != RS_ROLE_OPTIMIZER ||
            (!frozen && (master || keeps(own, role->name))))
            continue;
        RS_TRY(rs_space_set_dtype(space, tensor, r, RS_DTYPE_NONE));
    }
    return RS_OK;
}

rs_status rs_training_set_roles(
    rs_space *space, const rs_training *training, const rs_optimizer *optimizer)
{
    bool any = false;
    RS_TRY(check_patterns(space, training->frozen));
    for (int t = 0; t < rs_space_tensor_count(space); t++) {
        bool frozen;
        RS_TRY(is_listed(training->frozen, rs_space_tensor(space, t)->name, &frozen));
        RS_TRY(set_roles(space, t, optimizer, frozen));
        any = any || !frozen;
    }
    if (!any)
        return rs_error_set(RS_ERR_ARGUMENT, "frozen tensors: \"%s\" fits all; nothing is trained",
            training->frozen);
    return RS_OK;
}

rs_status rs_training_optimizer(const rs_training *training, const rs_optimizer **out)
{
    const char *name = training->optimizer;
    *out = rs_optimizer_find(name != NULL && name[0] != '\0' ? name : "adamw");
    if (*out != NULL)
        return RS_OK;
    return rs_error_set(RS_ERR_ARGUMENT, "optimizer \"%s\": wanted adamw, sgd or muon", name);
}
