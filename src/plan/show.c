/*
 * Plans for people and for programs: a table as text, and JSON.
 *
 * The JSON object has `rank`, `figures` (the members of rs_plan_figures by their names), `adopted`
 * (segments) and `copies` in their order; names of tensors and roles stand for their numbers. Keys
 * are below 2^48, so that readers that take numbers for doubles have them exactly.
 */
#include <inttypes.h>
#include <stdlib.h>

#include <jansson.h>

#include "base/error.h"
#include "base/text.h"
#include "plan/plan.h"

static const char *reach_name(rs_reach reach)
{
    return reach == RS_REACH_SELF ? "self" : reach == RS_REACH_NODE ? "node" : "remote";
}

typedef struct figure {
    const char *name;
    const char *meaning;
    int64_t value;
} figure;

enum { FIGURES = 11 };

static void list_figures(const rs_plan_figures *f, figure *out)
{
    const figure all[FIGURES] = {
        {"old_bytes", "its segments before", f->old_bytes},
        {"new_bytes", "its segments after", f->new_bytes},
        {"adopted_bytes", "kept where they lie", f->adopted_bytes},
        {"self_bytes", "copied within the rank", f->self_bytes},
        {"node_in", "pulled from its node", f->node_in},
        {"node_out", "pulled from it by its node", f->node_out},
        {"remote_in", "received from other nodes", f->remote_in},
        {"remote_out", "sent to other nodes", f->remote_out},
        {"needed_bytes", "new and not held before", f->needed_bytes},
        {"peak_safe", "peak, keeping the old until commit", f->peak_safe},
        {"peak_tight", "peak, freeing as the order allows", f->peak_tight},
    };
    for (int i = 0; i < FIGURES; i++)
        out[i] = all[i];
}

rs_status rs_plan_text(const rs_plan *plan, char **out)
{
    const rs_space *space = rs_placement_space(plan->from);
    rs_text text = {0};
    char human[RS_HUMAN];
    char box[RS_MAX_DIMS * 48];
    figure figures[FIGURES];
    list_figures(&plan->figures, figures);
    rs_text_append(&text, "plan of rank %d: %zu copies, %zu segments stay\n", plan->rank,
        plan->count, plan->own.adopted_count);
    for (int i = 0; i < FIGURES; i++)
        rs_text_append(&text, "  %-36s %12s  (%" PRId64 " bytes)\n", figures[i].meaning,
            rs_human_bytes(figures[i].value, human), figures[i].value);
    if (plan->count > 0)
        rs_text_append(
            &text, "%8s %-6s %6s %6s %12s  what\n", "done", "reach", "from", "to", "bytes");
    for (size_t i = 0; i < plan->count; i++) {
        const rs_copy *copy = &plan->copies[i];
        rs_text_append(&text, "%7.2f%% %-6s %6d %6d %12" PRId64 "  %s.%s %s\n",
            100.0 * (double)copy->key / (double)((uint64_t)1 << RS_PLAN_KEY_BITS),
            reach_name(copy->reach), copy->source, copy->target, copy->bytes,
            rs_space_tensor(space, copy->tensor)->name, rs_space_role(space, copy->role)->name,
            rs_box_format(&copy->box, box, sizeof box));
    }
    return rs_text_take(&text, out);
}

/* Adds `value` to an array or, with a key, to an object; takes it in every case. */
static bool put(json_t *into, const char *key, json_t *value)
{
    return (key != NULL ? json_object_set_new(into, key, value)
                        : json_array_append_new(into, value)) == 0;
}

static bool put_numbers(json_t *into, const char *key, const int64_t *numbers, int count)
{
    json_t *array = json_array();
    bool good = array != NULL;
    for (int i = 0; i < count && good; i++)
        good = put(array, NULL, json_integer(numbers[i]));
    return put(into, key, array) && good;
}

static bool put_copy(json_t *copies, const rs_space *space, const rs_copy *copy)
{
    json_t *object = json_object();
    bool good = object != NULL && put(object, "key", json_integer((json_int_t)copy->key)) &&
                put(object, "tensor", json_string(rs_space_tensor(space, copy->tensor)->name)) &&
                put(object, "role", json_string(rs_space_role(space, copy->role)->name)) &&
                put(object, "source", json_integer(copy->source)) &&
                put(object, "target", json_integer(copy->target)) &&
                put(object, "reach", json_string(reach_name(copy->reach))) &&
                put_numbers(object, "offset", copy->box.offset, copy->box.ndim) &&
                put_numbers(object, "extent", copy->box.extent, copy->box.ndim) &&
                put(object, "bytes", json_integer(copy->bytes));
    return put(copies, NULL, object) && good;
}

/* Fills `root`; false if memory ran out. */
static bool put_plan(json_t *root, const rs_plan *plan)
{
    figure figures[FIGURES];
    list_figures(&plan->figures, figures);
    json_t *object = json_object();
    json_t *adopted = json_array();
    json_t *copies = json_array();
    bool good = put(root, "rank", json_integer(plan->rank));
    good = put(root, "figures", object) && good;
    good = put(root, "adopted", adopted) && good;
    good = put(root, "copies", copies) && good;
    for (int i = 0; i < FIGURES && good; i++)
        good = put(object, figures[i].name, json_integer(figures[i].value));
    for (size_t i = 0; i < plan->own.adopted_count && good; i++)
        good = put(adopted, NULL, json_integer(plan->own.adopted[i]));
    for (size_t i = 0; i < plan->count && good; i++)
        good = put_copy(copies, rs_placement_space(plan->from), &plan->copies[i]);
    return good;
}

rs_status rs_plan_json(const rs_plan *plan, char **out)
{
    json_t *root = json_object();
    char *text = NULL;
    if (root != NULL && put_plan(root, plan))
        text = json_dumps(root, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
    json_decref(root);
    if (text == NULL)
        return rs_error_set(
            RS_ERR_NO_MEMORY, "the plan as JSON: no memory, or a name that is not UTF-8");
    *out = text;
    return RS_OK;
}
