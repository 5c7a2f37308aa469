/*
 * The optimizer's step in a universal checkpoint: DeepSpeed has one for all parameters of a group.
 *
 * The source may say it once, for each group, or for each parameter. Where it says different ones,
 * each must be of a group that is known, or of a parameter whose group is, and those of one group
 * must agree.
 */
#include "ckpt/universal_write.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "ckpt/cast.h"
#include "ckpt/groups.h"

/* The group that a step is of: "param_groups.2", also of a pipeline's stage, or a parameter in it;
 * -1: none that is known. */
static int group_of(const rs_universal *u, const char *name)
{
    static const char mark[] = RS_GROUPS ".";
    const char *found = strstr(name, mark);
    char *end;
    long group = found != NULL ? strtol(found + sizeof mark - 1, &end, 10) : -1;
    if (found != NULL && end != found + sizeof mark - 1 && *end == '\0')
        return group >= 0 && (size_t)group < json_array_size(u->groups) ? (int)group : -1;
    return rs_names_find(&u->members, name);
}

/* True if the tensor is one number that says a step, which is read. */
static rs_status read_step(const rs_universal *u, const rs_logical *t, bool *is, double *step)
{
    const rs_catalog_entry *entry = rs_catalog_get(u->w->catalog, t->id);
    unsigned char bytes[16];
    *is = strcmp(t->role, "step") == 0 && !rs_box_is_empty(&t->box) &&
          rs_box_volume(&t->box) == 1 && rs_dtype_size(entry->is.dtype) <= sizeof bytes;
    if (!*is)
        return RS_OK;
    RS_TRY(rs_catalog_read(u->w->catalog, t->id, -1, &t->box, bytes));
    *step = rs_cast_element(entry->is.dtype, bytes, 0);
    return RS_OK;
}

static rs_status differ(double a, double b, const char *name)
{
    return rs_error_set(RS_ERR_UNSUPPORTED,
        "the optimizer's step is %.17g in one place and %.17g at \"%s\": DeepSpeed has one for all "
        "parameters of a group, and these are not known to be of two",
        a, b, name);
}

rs_status rs_universal_find_step(rs_universal *u)
{
    json_t *said = json_object_get(u->extras, "step");
    size_t groups = json_array_size(u->groups);
    double first = -1;
    bool unknown = false;
    if (said == NULL) /* of a native checkpoint */
        said = json_object_get(u->w->extras, "step");
    u->steps = rs_calloc(groups + 1, sizeof *u->steps);
    if (u->steps == NULL)
        return rs_error_memory((groups + 1) * sizeof *u->steps);
    for (size_t g = 0; g <= groups; g++)
        u->steps[g] = (rs_universal_step){.tensor = -1, .value = -1};
    for (size_t i = 0; i < u->w->tensors.count; i++) {
        const rs_logical *t = &u->w->tensors.items[i];
        double step = 0;
        bool is;
        RS_TRY(read_step(u, t, &is, &step));
        if (!is || !(step >= 0 && step < 9e15))
            continue;
        int group = group_of(u, t->name);
        unknown = unknown || group < 0;
        rs_universal_step *own = &u->steps[group >= 0 ? (size_t)group : groups];
        bool other = first >= 0 && step != first;
        if ((own->value >= 0 && (double)own->value != step) || (other && (unknown || !u->grouped)))
            return differ(own->value >= 0 ? (double)own->value : first, step, t->name);
        first = first < 0 ? step : first;
        own->value = (int64_t)step;
        if (rs_cast_is_float(rs_catalog_get(u->w->catalog, t->id)->is.dtype))
            own->tensor = (int)i;
        if (own->value > u->step)
            u->step = own->value;
    }
    if (first < 0 && json_is_number(said) && json_number_value(said) >= 0)
        u->step = (int64_t)json_number_value(said);
    return RS_OK;
}

rs_status rs_universal_add_step(const rs_universal *u, int group, rs_torch_make *make)
{
    size_t groups = json_array_size(u->groups), at = group >= 0 ? (size_t)group : groups;
    /* What is not said of a group is said of all, somewhere. */
    for (size_t g = 0; g <= groups && u->steps[at].value < 0; g++)
        if (u->steps[g].value >= 0)
            at = g;
    const rs_universal_step *step = &u->steps[at];
    if (step->tensor >= 0)
        return rs_torch_make_tensor(
            make, u->w->tensors.items[step->tensor].dtype, 0, NULL, step->tensor, NULL);
    int64_t value = step->value >= 0 ? step->value : u->step;
    rs_pickle_int(&make->pickle, value > 0 ? value : 0);
    return RS_OK;
}
