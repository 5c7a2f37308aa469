/*
 * The pickle machine's opcodes for names, calls, state and persistent objects: the places where
 * Python would run code. See pickle.c for what holds, allow.h for who may be named.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "ckpt/allow.h"
#include "ckpt/pickle_machine.h"

static rs_status refuse(const rs_machine *m, const char *verb, const rs_global *global)
{
    return rs_error_set(RS_ERR_UNSUPPORTED,
        "%s: byte %" PRId64 ": %s %s.%s: refused; pickles are read as data, nothing is called",
        rs_files_path(m->in.files, m->in.file), m->at, verb, global->module, global->name);
}

/* The one record of a name in this pickle. */
static rs_status intern(rs_machine *m, const char *module, const char *name, const rs_global **out)
{
    rs_pickle *p = m->pickle;
    if (strcmp(module, "__builtin__") == 0)
        module = "builtins";
    else if (strcmp(module, "copy_reg") == 0)
        module = "copyreg";
    if (strcmp(module, "builtins") == 0 && strcmp(name, "xrange") == 0)
        name = "range";
    size_t module_bytes = strlen(module);
    const char *key;
    void *memory;
    RS_TRY(rs_pool_take(&p->pool, module_bytes + strlen(name) + 2, &memory));
    memcpy(memory, module, module_bytes + 1);
    memcpy((char *)memory + module_bytes + 1, name, strlen(name) + 1);
    ((char *)memory)[module_bytes] = ' ';
    key = memory;
    int found;
    RS_TRY(rs_names_add(&p->globals, key, (int)p->global_count, &found));
    if (found >= 0) {
        *out = p->global_list[found];
        return RS_OK;
    }
    rs_global *global;
    RS_TRY(rs_array_reserve((void **)&p->global_list, &p->global_capacity, p->global_count + 1,
        sizeof *p->global_list));
    RS_TRY(rs_pool_take(&p->pool, sizeof *global, &memory));
    global = memory;
    RS_TRY(rs_pool_text(&p->pool, module, module_bytes, &global->module));
    RS_TRY(rs_pool_text(&p->pool, name, strlen(name), &global->name));
    p->global_list[p->global_count++] = global;
    if (rs_allow_global(global) == RS_ALLOW_NEVER)
        return refuse(m, "names", global);
    if (rs_allow_global(global) == RS_ALLOW_UNKNOWN) {
        RS_TRY(rs_array_reserve(
            (void **)&p->unknown, &p->unknown_capacity, p->unknown_count + 1, sizeof *p->unknown));
        p->unknown[p->unknown_count++] = global;
    }
    *out = global;
    return RS_OK;
}

static rs_status push_global(rs_machine *m, const char *module, const char *name)
{
    const rs_global *global = NULL;
    rs_value *value;
    RS_TRY(intern(m, module, name, &global));
    RS_TRY(rs_pm_push_new(m, RS_VALUE_GLOBAL, &value));
    value->as.global = global;
    return RS_OK;
}

rs_status rs_pm_global(rs_machine *m)
{
    char module[RS_PM_LINE], name[RS_PM_LINE];
    RS_TRY(rs_pm_line(m, module));
    RS_TRY(rs_pm_line(m, name));
    return push_global(m, module, name);
}

rs_status rs_pm_stack_global(rs_machine *m)
{
    rs_value *module, *name;
    RS_TRY(rs_pm_pop(m, &name));
    RS_TRY(rs_pm_pop(m, &module));
    if (rs_value_string(name) == NULL || rs_value_string(module) == NULL)
        RS_PM_FAIL(m, "a name that is no text");
    return push_global(m, rs_value_string(module), rs_value_string(name));
}

static rs_status call(
    rs_machine *m, rs_value *callee, rs_value *args, bool instance, rs_value **out)
{
    if (callee->kind != RS_VALUE_GLOBAL)
        RS_PM_FAIL(m, "the pickle would call something that is no named function or class");
    if (args->kind != RS_VALUE_TUPLE)
        RS_PM_FAIL(m, "the arguments of %s.%s are no tuple", callee->as.global->module,
            callee->as.global->name);
    rs_allow allow = rs_allow_global(callee->as.global);
    if (instance && (allow == RS_ALLOW_UNKNOWN || allow == RS_ALLOW_VALUE))
        return rs_pickle_instance(m->pickle, callee->as.global, args, m->at, out);
    if (allow != RS_ALLOW_CALL)
        return refuse(m, "would call", callee->as.global);
    const char *reason = NULL;
    rs_status status = rs_pickle_make(m->pickle, callee, args, m->at, out, &reason);
    if (status == RS_ERR_UNSUPPORTED)
        return refuse(m, "would call", callee->as.global);
    if (status == RS_ERR_MALFORMED)
        RS_PM_FAIL(m, "%s.%s with %s", callee->as.global->module, callee->as.global->name, reason);
    if (status == RS_OK && instance && (*out)->kind == RS_VALUE_CALL)
        (*out)->form = RS_FORM_INSTANCE;
    return status;
}

rs_status rs_pm_reduce(rs_machine *m)
{
    rs_value *args, *callee, *made;
    RS_TRY(rs_pm_pop(m, &args));
    RS_TRY(rs_pm_pop(m, &callee));
    RS_TRY(call(m, callee, args, false, &made));
    return rs_pm_push(m, made);
}

rs_status rs_pm_newobj(rs_machine *m)
{
    rs_value *args, *callee, *made;
    RS_TRY(rs_pm_pop(m, &args));
    RS_TRY(rs_pm_pop(m, &callee));
    RS_TRY(call(m, callee, args, true, &made));
    return rs_pm_push(m, made);
}

rs_status rs_pm_newobj_ex(rs_machine *m)
{
    rs_value *kwargs, *args, *callee, *made;
    RS_TRY(rs_pm_pop(m, &kwargs));
    RS_TRY(rs_pm_pop(m, &args));
    RS_TRY(rs_pm_pop(m, &callee));
    if (kwargs->kind != RS_VALUE_DICT)
        RS_PM_FAIL(m, "named arguments that are no dict");
    RS_TRY(call(m, callee, args, true, &made));
    if (kwargs->count > 0) {
        if (made->kind != RS_VALUE_CALL)
            RS_PM_FAIL(m, "named arguments for a container");
        made->as.call->kwargs = kwargs;
    }
    return rs_pm_push(m, made);
}

/* The attributes of `state`, if it is a dict. */
static rs_status check_attributes(rs_machine *m, const rs_value *state)
{
    if (!rs_value_is(state, RS_VALUE_DICT))
        return RS_OK;
    for (uint32_t i = 0; i < state->count; i++) {
        const rs_value *key = state->as.dict->pairs[2 * (size_t)i];
        if (key->kind == RS_VALUE_TEXT && key->count >= 4 && strncmp(key->as.text, "__", 2) == 0 &&
            strcmp(key->as.text + key->count - 2, "__") == 0)
            RS_PM_FAIL(m, "would set the attribute %.40s", key->as.text);
    }
    return RS_OK;
}

rs_status rs_pm_build(rs_machine *m)
{
    rs_value *state, *target;
    RS_TRY(rs_pm_pop(m, &state));
    RS_TRY(rs_pm_top(m, &target));
    RS_TRY(check_attributes(m, state));
    if (state->kind == RS_VALUE_TUPLE && state->count == 2)
        for (int i = 0; i < 2; i++)
            RS_TRY(check_attributes(m, state->as.items[i]));
    rs_value **slot = NULL;
    if (target->kind == RS_VALUE_CALL)
        slot = &target->as.call->state;
    else if (target->kind == RS_VALUE_DICT && target->form != RS_FORM_PLAIN)
        slot = &target->as.dict->state;
    if (slot == NULL)
        RS_PM_FAIL(m, "the pickle sets the state of what has none");
    if (*slot != NULL)
        RS_PM_FAIL(m, "the pickle sets the state of one object twice");
    *slot = state;
    return RS_OK;
}

rs_status rs_pm_persistent(rs_machine *m)
{
    rs_value *id, *value;
    RS_TRY(rs_pm_pop(m, &id));
    if (id->kind != RS_VALUE_TUPLE)
        RS_PM_FAIL(m, "a persistent id that is no tuple");
    RS_TRY(rs_pm_push_new(m, RS_VALUE_PERSISTENT, &value));
    value->as.id = id;
    rs_pickle *p = m->pickle;
    RS_TRY(rs_array_reserve((void **)&p->persistent, &p->persistent_capacity,
        p->persistent_count + 1, sizeof *p->persistent));
    p->persistent[p->persistent_count++] = value;
    return RS_OK;
}
