/*
 * Parameter groups: which tensors an optimizer updates alike. The trainer has none of its own, each
 * tensor says itself what is done to it; but a checkpoint that goes elsewhere must say it so.
 */
#include "train/group_list.h"

#include <stdbool.h>

#include "train/method.h"
#include "train/update.h"

static bool is_trained(const rs_space *space, int tensor)
{
    for (int r = 0; r < rs_space_role_count(space); r++)
        if (rs_space_role(space, r)->role_class == RS_ROLE_OPTIMIZER &&
            rs_space_dtype(space, tensor, r) != RS_DTYPE_NONE)
            return true;
    return false;
}

/* The names of the tensors that `own` updates, with or without decay. */
static json_t *names_of(
    const rs_space *space, const rs_optimizer *chosen, const rs_optimizer *own, bool decay)
{
    json_t *names = json_array();
    for (int t = 0; t < rs_space_tensor_count(space) && names != NULL; t++) {
        const rs_tensor *tensor = rs_space_tensor(space, t);
        if (is_trained(space, t) && tensor->decay == decay &&
            rs_optimizer_for(chosen, tensor) == own)
            json_array_append_new(names, json_string(tensor->name));
    }
    return names;
}

json_t *rs_group_list(const rs_train_options *options, const rs_space *space, int64_t step)
{
    const rs_optimizer *chosen = rs_train_optimizer(options);
    json_t *groups = json_array();
    double rate = rs_learning_rate(options->lr, options->warmup, options->steps, step + 1);
    for (const rs_optimizer *own = chosen; own != NULL && groups != NULL;
         own = own->others != NULL ? rs_optimizer_find(own->others) : NULL)
        for (int decay = 1; decay >= 0; decay--) {
            json_t *names = names_of(space, chosen, own, decay != 0);
            json_t *group = json_array_size(names) > 0 ? rs_method_options(own, decay != 0) : NULL;
            if (group != NULL) {
                json_object_set_new(group, "lr", json_real(rate));
                json_object_set_new(group, "initial_lr", json_real(options->lr));
                json_object_set_new(
                    group, "params", json_pack("[I]", (json_int_t)json_array_size(groups)));
                json_object_set(group, "param_names", names);
                json_array_append_new(groups, group);
            }
            json_decref(names);
        }
    return groups;
}
