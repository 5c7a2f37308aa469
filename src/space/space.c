/*
 * The space: tensors and roles by number and by name.
 *
 * Names are looked up through a sorted index that is kept up to date by every addition, so that a
 * space of 100,000 tensors (one per name, for models of unknown structure) still answers in
 * microseconds. Sizes are proved at addition: the bytes of all roles of all tensors fit int64_t,
 * whatever their element types, so later arithmetic on volumes needs no checks.
 */
#include "reshard/space.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/search.h"

/* No role has larger elements, so a tensor may have this many bytes per role. */
#define LARGEST_ELEMENT 8

/* What a tensor was told for each role: 1 + its element type, or 0, the role's. */
typedef struct own_dtypes {
    unsigned char of_role[RS_MAX_ROLES];
} own_dtypes;

typedef struct fact {
    char *key;
    char *value;
} fact;

struct rs_space {
    rs_tensor *tensors;
    size_t tensor_count;
    size_t tensor_capacity;
    int *by_name; /* tensor numbers sorted by name */
    size_t by_name_capacity;
    own_dtypes *own; /* of each tensor */
    size_t own_capacity;
    rs_role roles[RS_MAX_ROLES];
    int role_count;
    int64_t elements;
    int64_t layers;
    int64_t experts;
    fact *facts;
    size_t fact_count;
    size_t fact_capacity;
};

rs_status rs_space_create(rs_space **out)
{
    rs_space *space = rs_calloc(1, sizeof *space);
    if (space == NULL)
        return rs_error_memory(sizeof *space);
    *out = space;
    return RS_OK;
}

static void free_copies(rs_tensor *tensor)
{
    free((char *)tensor->name);
    free((int64_t *)tensor->layers);
}

void rs_space_destroy(rs_space *space)
{
    if (space == NULL)
        return;
    for (size_t i = 0; i < space->tensor_count; i++)
        free_copies(&space->tensors[i]);
    for (int r = 0; r < space->role_count; r++)
        free((char *)space->roles[r].name);
    free(space->tensors);
    free(space->by_name);
    free(space->own);
    for (size_t i = 0; i < space->fact_count; i++) {
        free(space->facts[i].key);
        free(space->facts[i].value);
    }
    free(space->facts);
    free(space);
}

/* ---- facts ---- */

static fact *find_fact(const rs_space *space, const char *key)
{
    for (size_t i = 0; i < space->fact_count; i++)
        if (strcmp(space->facts[i].key, key) == 0)
            return &space->facts[i];
    return NULL;
}

rs_status rs_space_set_fact(rs_space *space, const char *key, const char *value)
{
    fact *known = find_fact(space, key);
    char *copy = rs_strdup(value);
    if (copy == NULL)
        return rs_error_memory(strlen(value) + 1);
    if (known != NULL) {
        free(known->value);
        known->value = copy;
        return RS_OK;
    }
    char *name = rs_strdup(key);
    rs_status status = name != NULL
                           ? rs_array_reserve((void **)&space->facts, &space->fact_capacity,
                                 space->fact_count + 1, sizeof *space->facts)
                           : rs_error_memory(strlen(key) + 1);
    if (status != RS_OK) {
        free(name);
        free(copy);
        return status;
    }
    space->facts[space->fact_count++] = (fact){name, copy};
    return RS_OK;
}

const char *rs_space_fact(const rs_space *space, const char *key)
{
    const fact *known = find_fact(space, key);
    return known != NULL ? known->value : NULL;
}

int rs_space_fact_count(const rs_space *space)
{
    return (int)space->fact_count;
}

const char *rs_space_fact_key(const rs_space *space, int of)
{
    return space->facts[of].key;
}

/* ---- roles and tensors ---- */

rs_status rs_space_add_role(rs_space *space, const rs_role *role, int *id)
{
    if (role->name == NULL || role->name[0] == '\0')
        return rs_error_set(RS_ERR_ARGUMENT, "a role needs a name");
    if (rs_dtype_size(role->dtype) == 0)
        return rs_error_set(RS_ERR_ARGUMENT, "role %s has no element type", role->name);
    if (rs_space_find_role(space, role->name) >= 0)
        return rs_error_set(RS_ERR_ARGUMENT, "role %s is in the space already", role->name);
    if (space->role_count == RS_MAX_ROLES)
        return rs_error_set(
            RS_ERR_ARGUMENT, "role %s: a space has at most %d roles", role->name, RS_MAX_ROLES);
    rs_role copy = *role;
    copy.name = rs_strdup(role->name);
    if (copy.name == NULL)
        return rs_error_memory(strlen(role->name) + 1);
    space->roles[space->role_count] = copy;
    if (id != NULL)
        *id = space->role_count;
    space->role_count++;
    return RS_OK;
}

/* Where `name` is, or would be, in the index. */
static size_t index_position(const rs_space *space, const char *name, bool *found)
{
    size_t at =
        RS_SEARCH(space->tensor_count, k, strcmp(space->tensors[space->by_name[k]].name, name) < 0);
    *found = at < (size_t)space->tensor_count &&
             strcmp(space->tensors[space->by_name[at]].name, name) == 0;
    return at;
}

static rs_status check_layers(const rs_tensor *tensor)
{
    bool layered = tensor->ndim > 0 && tensor->axis[0] == RS_AXIS_LAYER;
    int64_t last;
    if (tensor->layer_first < 0 || (tensor->layer_first > 0 && !layered) ||
        (layered && !rs_add_fits(tensor->layer_first, tensor->shape[0], &last)))
        return rs_error_set(RS_ERR_ARGUMENT,
            "tensor %s: its layers would begin with layer %" PRId64, tensor->name,
            tensor->layer_first);
    if (tensor->layers == NULL)
        return RS_OK;
    if (!layered || tensor->shape[0] < 1 || tensor->layers[0] != tensor->layer_first)
        return rs_error_set(RS_ERR_ARGUMENT,
            "tensor %s: its layers are listed, but do not begin with layer %" PRId64, tensor->name,
            tensor->layer_first);
    for (int64_t i = 1; i < tensor->shape[0]; i++)
        if (tensor->layers[i] <= tensor->layers[i - 1] || tensor->layers[i] == INT64_MAX)
            return rs_error_set(RS_ERR_ARGUMENT,
                "tensor %s: layer %" PRId64 " is listed behind layer %" PRId64, tensor->name,
                tensor->layers[i], tensor->layers[i - 1]);
    return RS_OK;
}

/* A copy of the list, none where the layers follow each other. */
static rs_status copy_layers(rs_tensor *tensor)
{
    const int64_t *from = tensor->layers;
    int64_t count = tensor->shape[0];
    tensor->layers = NULL;
    if (from == NULL || from[count - 1] - from[0] == count - 1)
        return RS_OK;
    int64_t *copy = rs_calloc((size_t)count, sizeof *copy);
    if (copy == NULL)
        return rs_error_memory((size_t)count * sizeof *copy);
    memcpy(copy, from, (size_t)count * sizeof *copy);
    tensor->layers = copy;
    return RS_OK;
}

int64_t rs_tensor_layer(const rs_tensor *tensor, int64_t index)
{
    return tensor->layers != NULL ? tensor->layers[index] : tensor->layer_first + index;
}

int64_t rs_tensor_layers_before(const rs_tensor *tensor, int64_t layer)
{
    int64_t count = tensor->shape[0];
    if (tensor->layers == NULL)
        return rs_min64(rs_max64(layer - tensor->layer_first, 0), count);
    return (int64_t)RS_SEARCH(count, k, tensor->layers[k] < layer);
}

int64_t rs_tensor_layer_end(const rs_tensor *tensor)
{
    int64_t count = tensor->shape[0];
    return count > 0 ? rs_tensor_layer(tensor, count - 1) + 1 : tensor->layer_first;
}

static rs_status check_tensor(const rs_tensor *tensor, int64_t *volume)
{
    if (tensor->name == NULL)
        return rs_error_set(RS_ERR_ARGUMENT, "a tensor needs a name");
    if (tensor->ndim < 0 || tensor->ndim > RS_MAX_DIMS)
        return rs_error_set(RS_ERR_ARGUMENT, "tensor %s has %d dimensions, 0 to %d are possible",
            tensor->name, tensor->ndim, RS_MAX_DIMS);
    RS_TRY(check_layers(tensor));
    *volume = 1;
    int expert_axes = 0;
    bool empty = false;
    for (int d = 0; d < tensor->ndim; d++) {
        int64_t extent = tensor->shape[d];
        int64_t unit = tensor->unit[d] > 0 ? tensor->unit[d] : 1;
        if (extent < 0 || tensor->unit[d] < 0 || extent % unit != 0)
            return rs_error_set(RS_ERR_ARGUMENT,
                "tensor %s, dimension %d: extent %" PRId64 " is no multiple of its unit %" PRId64,
                tensor->name, d, extent, tensor->unit[d]);
        if (tensor->axis[d] == RS_AXIS_LAYER && d != 0)
            return rs_error_set(
                RS_ERR_ARGUMENT, "tensor %s: the layer axis must be dimension 0", tensor->name);
        expert_axes += tensor->axis[d] == RS_AXIS_EXPERT;
        if (expert_axes > 1)
            return rs_error_set(
                RS_ERR_ARGUMENT, "tensor %s: it has more than one expert axis", tensor->name);
        int64_t q_heads;
        if (tensor->axis[d] == RS_AXIS_KV_HEAD && tensor->kv_group < 0)
            return rs_error_set(RS_ERR_ARGUMENT,
                "tensor %s: %" PRId64 " query heads per key/value head", tensor->name,
                tensor->kv_group);
        if (tensor->axis[d] == RS_AXIS_KV_HEAD &&
            !rs_mul_fits(extent / unit, tensor->kv_group, &q_heads))
            return rs_error_set(
                RS_ERR_OVERFLOW, "tensor %s: its query heads do not fit 64 bits", tensor->name);
        if (extent == 0)
            empty = true;
        else if (!rs_mul_fits(*volume, extent, volume))
            return rs_error_set(
                RS_ERR_OVERFLOW, "tensor %s: its elements do not fit 64 bits", tensor->name);
    }
    if (empty)
        *volume = 0;
    return RS_OK;
}

rs_status rs_space_add_tensor(rs_space *space, const rs_tensor *tensor, int *id)
{
    int64_t volume = 0;
    int64_t elements;
    int64_t bytes;
    RS_TRY(check_tensor(tensor, &volume));
    if (!rs_add_fits(space->elements, volume, &elements) ||
        !rs_mul_fits(elements, LARGEST_ELEMENT * RS_MAX_ROLES, &bytes))
        return rs_error_set(
            RS_ERR_OVERFLOW, "tensor %s: the space's bytes do not fit 64 bits", tensor->name);
    bool found;
    size_t position = index_position(space, tensor->name, &found);
    if (found)
        return rs_error_set(RS_ERR_ARGUMENT, "tensor %s is in the space already", tensor->name);
    RS_TRY(rs_array_reserve((void **)&space->tensors, &space->tensor_capacity,
        space->tensor_count + 1, sizeof *space->tensors));
    RS_TRY(rs_array_reserve((void **)&space->by_name, &space->by_name_capacity,
        space->tensor_count + 1, sizeof *space->by_name));
    RS_TRY(rs_array_reserve(
        (void **)&space->own, &space->own_capacity, space->tensor_count + 1, sizeof *space->own));
    rs_tensor copy = *tensor;
    copy.name = rs_strdup(tensor->name);
    if (copy.name == NULL)
        return rs_error_memory(strlen(tensor->name) + 1);
    rs_status status = copy_layers(&copy);
    if (status != RS_OK) {
        free_copies(&copy);
        return status;
    }
    memmove(space->by_name + position + 1, space->by_name + position,
        (space->tensor_count - position) * sizeof *space->by_name);
    space->by_name[position] = (int)space->tensor_count;
    space->tensors[space->tensor_count] = copy;
    space->own[space->tensor_count] = (own_dtypes){{0}};
    if (id != NULL)
        *id = (int)space->tensor_count;
    space->tensor_count++;
    space->elements = elements;
    if (tensor->ndim > 0 && tensor->axis[0] == RS_AXIS_LAYER && tensor->shape[0] > 0)
        space->layers = rs_max64(space->layers, rs_tensor_layer_end(tensor));
    for (int d = 0; d < tensor->ndim; d++)
        if (tensor->axis[d] == RS_AXIS_EXPERT)
            space->experts = rs_max64(space->experts, tensor->shape[d]);
    return RS_OK;
}

rs_status rs_space_set_dtype(rs_space *space, int tensor, int role, rs_dtype dtype)
{
    if (tensor < 0 || (size_t)tensor >= space->tensor_count)
        return rs_error_set(RS_ERR_ARGUMENT, "the space has no tensor %d", tensor);
    if (role < 0 || role >= space->role_count)
        return rs_error_set(RS_ERR_ARGUMENT, "the space has no role %d", role);
    if (dtype != RS_DTYPE_NONE && rs_dtype_size(dtype) == 0)
        return rs_error_set(RS_ERR_ARGUMENT, "tensor %s, role %s: %d is no element type",
            space->tensors[tensor].name, space->roles[role].name, (int)dtype);
    space->own[tensor].of_role[role] = (unsigned char)(dtype + 1);
    return RS_OK;
}

rs_dtype rs_space_dtype(const rs_space *space, int tensor, int role)
{
    unsigned char own = space->own[tensor].of_role[role];
    return own == 0 ? space->roles[role].dtype : (rs_dtype)(own - 1);
}

int rs_space_tensor_count(const rs_space *space)
{
    return (int)space->tensor_count;
}

int rs_space_role_count(const rs_space *space)
{
    return space->role_count;
}

const rs_tensor *rs_space_tensor(const rs_space *space, int tensor)
{
    return &space->tensors[tensor];
}

const rs_role *rs_space_role(const rs_space *space, int role)
{
    return &space->roles[role];
}

int rs_space_find_tensor(const rs_space *space, const char *name)
{
    bool found;
    size_t position = index_position(space, name, &found);
    return found ? space->by_name[position] : -1;
}

int rs_space_find_role(const rs_space *space, const char *name)
{
    for (int r = 0; r < space->role_count; r++)
        if (strcmp(space->roles[r].name, name) == 0)
            return r;
    return -1;
}

int64_t rs_space_layer_count(const rs_space *space)
{
    return space->layers;
}

int64_t rs_space_expert_count(const rs_space *space)
{
    return space->experts;
}

int64_t rs_space_elements(const rs_space *space)
{
    return space->elements;
}

int64_t rs_space_bytes(const rs_space *space, int role)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < space->tensor_count; i++) {
        rs_box whole = rs_box_whole(space->tensors[i].ndim, space->tensors[i].shape);
        int64_t size = 0;
        for (int r = 0; r < space->role_count; r++)
            if (role < 0 || role == r)
                size += (int64_t)rs_dtype_size(rs_space_dtype(space, (int)i, r));
        bytes += rs_box_is_empty(&whole) ? 0 : rs_box_volume(&whole) * size;
    }
    return bytes;
}
