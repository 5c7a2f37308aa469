/*
 * The pickle machine.
 *
 * A pickle is a program for a stack machine that builds an object graph, and may call any Python
 * function by name. This machine runs the program and calls nothing: where Python would call, it
 * records what would have been called with what, if the name is on the list of allow.h, and refuses
 * the file otherwise.
 *
 * Invariants:
 * 1. No byte of the file is trusted: every length is checked against what is left, every pop
 *    against the open mark, every memo index against the slots in use.
 * 2. Memory is bounded whatever the file says: values come from a pool with a limit, stack and memo
 *    have one each. Nothing recurses, so nesting costs no C stack; marks nest RS_PICKLE_NESTING
 *    deep.
 * 3. Only containers take items: setting an item on anything that Python could not set it on is an
 *    error, not a write into another kind's memory.
 * 4. Attributes with two leading underscores are never set: they change what an object is.
 *
 * One handler an opcode, in a table by byte. Left out, because neither torch nor DeepSpeed nor
 * Megatron writes them: EXT1-4, INST and OBJ (calls in disguise), out-of-band buffers, text
 * persistent ids, and the string forms of protocol 0.
 *
 * Specification: docs/formats/torch.md, after CPython's pickletools.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "ckpt/pickle_machine.h"

/* The stack. */

size_t rs_pm_floor(const rs_machine *m)
{
    return m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0;
}

rs_status rs_pm_push(rs_machine *m, rs_value *value)
{
    if (m->stack.count >= RS_PICKLE_STACK)
        return rs_error_set(RS_ERR_BUDGET, "more than %zu values wait on the pickle's stack",
            (size_t)RS_PICKLE_STACK);
    RS_TRY(RS_LIST_RESERVE_ONE(&m->stack));
    m->stack.items[m->stack.count++] = value;
    return RS_OK;
}

rs_status rs_pm_pop(rs_machine *m, rs_value **out)
{
    if (m->stack.count <= rs_pm_floor(m))
        RS_PM_FAIL(m, "the pickle takes a value from an empty stack");
    *out = m->stack.items[--m->stack.count];
    return RS_OK;
}

rs_status rs_pm_top(rs_machine *m, rs_value **out)
{
    if (m->stack.count <= rs_pm_floor(m))
        RS_PM_FAIL(m, "the pickle looks at an empty stack");
    *out = m->stack.items[m->stack.count - 1];
    return RS_OK;
}

/* Closes the open mark: the values above it, which stay in place until the next push. */
static rs_status pop_mark(rs_machine *m, rs_value ***items, size_t *count)
{
    if (m->mark_count == 0)
        RS_PM_FAIL(m, "the pickle closes a mark that it never set");
    size_t floor = m->marks[--m->mark_count];
    *items = floor > 0 ? m->stack.items + floor : m->stack.items;
    *count = m->stack.count - floor;
    m->stack.count = floor;
    return RS_OK;
}

rs_status rs_pm_push_new(rs_machine *m, rs_value_kind kind, rs_value **out)
{
    RS_TRY(rs_pickle_value(m->pickle, kind, out));
    return rs_pm_push(m, *out);
}

/* Arguments in the stream. */

rs_status rs_pm_number(rs_machine *m, size_t bytes, uint64_t *out)
{
    const unsigned char *p;
    RS_TRY(rs_reader_take(&m->in, bytes, &p));
    *out = 0;
    for (size_t i = bytes; i-- > 0;)
        *out = *out << 8 | p[i];
    return RS_OK;
}

/* `length` bytes into the pool, with a NUL behind. */
rs_status rs_pm_bytes(rs_machine *m, uint64_t length, const char **out)
{
    void *memory;
    if (length > (uint64_t)(m->in.end - m->in.position))
        RS_PM_FAIL(m, "a string of %" PRIu64 " bytes, %" PRId64 " are left", length,
            m->in.end - m->in.position);
    RS_TRY(rs_pool_take(&m->pickle->pool, (size_t)length + 1, &memory));
    RS_TRY(rs_reader_copy(&m->in, memory, (size_t)length));
    *out = memory;
    return RS_OK;
}

#define RS_PM_LINE 1024

/* The characters up to the next newline, without it. */
rs_status rs_pm_line(rs_machine *m, char out[RS_PM_LINE])
{
    for (size_t i = 0; i < RS_PM_LINE; i++) {
        const unsigned char *p;
        RS_TRY(rs_reader_take(&m->in, 1, &p));
        if (*p == '\n') {
            out[i] = 0;
            return RS_OK;
        }
        if (*p == 0)
            break;
        out[i] = (char)*p;
    }
    RS_PM_FAIL(m, "no end of line within %d characters", RS_PM_LINE);
}

/* Opcodes: containers. */

static rs_status op_mark(rs_machine *m)
{
    if (m->mark_count >= RS_PICKLE_NESTING)
        RS_PM_FAIL(m, "objects nest more than %d deep", RS_PICKLE_NESTING);
    m->marks[m->mark_count++] = m->stack.count;
    return RS_OK;
}

static rs_status op_empty_list(rs_machine *m)
{
    rs_value *value;
    return rs_pm_push_new(m, RS_VALUE_LIST, &value);
}

static rs_status op_empty_dict(rs_machine *m)
{
    rs_value *value;
    return rs_pm_push_new(m, RS_VALUE_DICT, &value);
}

static rs_status op_empty_set(rs_machine *m)
{
    rs_value *value;
    return rs_pm_push_new(m, RS_VALUE_SET, &value);
}

static rs_status op_empty_tuple(rs_machine *m)
{
    return rs_pm_push(m, m->empty);
}

/* A tuple, list or frozen set of the values at the top. */
static rs_status push_items(
    rs_machine *m, rs_value_kind kind, rs_value_form form, rs_value **items, size_t count)
{
    rs_value *value;
    void *memory;
    RS_TRY(rs_pickle_value(m->pickle, kind, &value));
    size_t room = 4;
    while (room < count)
        room *= 2;
    RS_TRY(rs_pool_take(&m->pickle->pool, room * sizeof *items, &memory));
    if (count > 0)
        memcpy(memory, items, count * sizeof *items);
    value->as.items = memory;
    value->count = (uint32_t)count;
    value->form = (uint8_t)form;
    return rs_pm_push(m, value);
}

static rs_status tuple_of(rs_machine *m, size_t count)
{
    if (m->stack.count - rs_pm_floor(m) < count)
        RS_PM_FAIL(
            m, "a tuple of %zu, but the stack has %zu", count, m->stack.count - rs_pm_floor(m));
    m->stack.count -= count;
    return push_items(m, RS_VALUE_TUPLE, RS_FORM_PLAIN, m->stack.items + m->stack.count, count);
}

static rs_status op_tuple1(rs_machine *m)
{
    return tuple_of(m, 1);
}

static rs_status op_tuple2(rs_machine *m)
{
    return tuple_of(m, 2);
}

static rs_status op_tuple3(rs_machine *m)
{
    return tuple_of(m, 3);
}

static rs_status op_tuple(rs_machine *m)
{
    rs_value **items;
    size_t count;
    RS_TRY(pop_mark(m, &items, &count));
    return push_items(m, RS_VALUE_TUPLE, RS_FORM_PLAIN, items, count);
}

static rs_status op_list(rs_machine *m)
{
    rs_value **items;
    size_t count;
    RS_TRY(pop_mark(m, &items, &count));
    return push_items(m, RS_VALUE_LIST, RS_FORM_PLAIN, items, count);
}

static rs_status op_frozenset(rs_machine *m)
{
    rs_value **items;
    size_t count;
    RS_TRY(pop_mark(m, &items, &count));
    return push_items(m, RS_VALUE_SET, RS_FORM_FROZEN, items, count);
}

static rs_status set_pairs(rs_machine *m, rs_value *dict, rs_value *const *items, size_t count)
{
    if (count % 2 != 0)
        RS_PM_FAIL(m, "a key without a value");
    for (size_t i = 0; i < count; i += 2) {
        uint8_t kind = items[i]->kind;
        if (kind == RS_VALUE_LIST || kind == RS_VALUE_DICT ||
            (kind == RS_VALUE_SET && items[i]->form != RS_FORM_FROZEN))
            RS_PM_FAIL(m, "a list, dict or set as a key");
        RS_TRY(rs_pickle_set(m->pickle, dict, items[i], items[i + 1]));
    }
    return RS_OK;
}

static rs_status op_dict(rs_machine *m)
{
    rs_value **items;
    size_t count;
    RS_TRY(pop_mark(m, &items, &count));
    rs_value *dict;
    RS_TRY(rs_pickle_value(m->pickle, RS_VALUE_DICT, &dict));
    RS_TRY(set_pairs(m, dict, items, count));
    return rs_pm_push(m, dict);
}

/* The list of an object that is one, or has one as an instance of a list's subclass. */
static rs_status append_to(rs_machine *m, rs_value *target, rs_value *const *items, size_t count)
{
    rs_value *into = target;
    if (target->kind == RS_VALUE_CALL) {
        if (target->as.call->items == NULL)
            RS_TRY(rs_pickle_value(m->pickle, RS_VALUE_LIST, &target->as.call->items));
        into = target->as.call->items;
    }
    if (into->kind != RS_VALUE_LIST)
        RS_PM_FAIL(m, "the pickle appends to what is no list");
    for (size_t i = 0; i < count; i++)
        RS_TRY(rs_pickle_append(m->pickle, into, items[i]));
    return RS_OK;
}

static rs_status set_on(rs_machine *m, rs_value *target, rs_value *const *items, size_t count)
{
    rs_value *into = target;
    if (target->kind == RS_VALUE_CALL) {
        if (target->as.call->pairs == NULL)
            RS_TRY(rs_pickle_value(m->pickle, RS_VALUE_DICT, &target->as.call->pairs));
        into = target->as.call->pairs;
    }
    if (into->kind != RS_VALUE_DICT)
        RS_PM_FAIL(m, "the pickle sets items on what is no dict");
    return set_pairs(m, into, items, count);
}

static rs_status op_append(rs_machine *m)
{
    rs_value *item, *target;
    RS_TRY(rs_pm_pop(m, &item));
    RS_TRY(rs_pm_top(m, &target));
    return append_to(m, target, &item, 1);
}

static rs_status op_appends(rs_machine *m)
{
    rs_value **items, *target;
    size_t count;
    RS_TRY(pop_mark(m, &items, &count));
    RS_TRY(rs_pm_top(m, &target));
    return append_to(m, target, items, count);
}

static rs_status op_setitem(rs_machine *m)
{
    rs_value *pair[2], *target;
    RS_TRY(rs_pm_pop(m, &pair[1]));
    RS_TRY(rs_pm_pop(m, &pair[0]));
    RS_TRY(rs_pm_top(m, &target));
    return set_on(m, target, pair, 2);
}

static rs_status op_setitems(rs_machine *m)
{
    rs_value **items, *target;
    size_t count;
    RS_TRY(pop_mark(m, &items, &count));
    RS_TRY(rs_pm_top(m, &target));
    return set_on(m, target, items, count);
}

static rs_status op_additems(rs_machine *m)
{
    rs_value **items, *target;
    size_t count;
    RS_TRY(pop_mark(m, &items, &count));
    RS_TRY(rs_pm_top(m, &target));
    if (target->kind != RS_VALUE_SET || target->form == RS_FORM_FROZEN)
        RS_PM_FAIL(m, "the pickle adds to what is no set");
    for (size_t i = 0; i < count; i++)
        RS_TRY(rs_pickle_append(m->pickle, target, items[i]));
    return RS_OK;
}

/* Opcodes: stack and memo. */

static rs_status op_pop(rs_machine *m)
{
    rs_value *gone;
    if (m->mark_count > 0 && m->stack.count == rs_pm_floor(m)) {
        m->mark_count--;
        return RS_OK;
    }
    return rs_pm_pop(m, &gone);
}

static rs_status op_pop_mark(rs_machine *m)
{
    rs_value **items;
    size_t count;
    return pop_mark(m, &items, &count);
}

static rs_status op_dup(rs_machine *m)
{
    rs_value *value;
    RS_TRY(rs_pm_top(m, &value));
    return rs_pm_push(m, value);
}

/* Writers number memo slots 0, 1, 2, ...; an index that leaves a gap is an attack on memory. */
static rs_status put(rs_machine *m, uint64_t index)
{
    rs_value *value;
    RS_TRY(rs_pm_top(m, &value));
    if (index > m->memo.count)
        RS_PM_FAIL(m, "memo slot %" PRIu64 " is set while %zu are in use", index, m->memo.count);
    if (index < m->memo.count) {
        m->memo.items[index] = value;
        return RS_OK;
    }
    if (m->memo.count >= RS_PICKLE_MEMO)
        return rs_error_set(RS_ERR_BUDGET, "more than %zu memo slots", (size_t)RS_PICKLE_MEMO);
    RS_TRY(RS_LIST_RESERVE_ONE(&m->memo));
    m->memo.items[m->memo.count++] = value;
    return RS_OK;
}

static rs_status get(rs_machine *m, uint64_t index)
{
    if (index >= m->memo.count)
        RS_PM_FAIL(m, "memo slot %" PRIu64 " is read, %zu are set", index, m->memo.count);
    return rs_pm_push(m, m->memo.items[index]);
}

static rs_status op_put1(rs_machine *m)
{
    uint64_t index;
    RS_TRY(rs_pm_number(m, 1, &index));
    return put(m, index);
}

static rs_status op_put4(rs_machine *m)
{
    uint64_t index;
    RS_TRY(rs_pm_number(m, 4, &index));
    return put(m, index);
}

static rs_status op_memoize(rs_machine *m)
{
    return put(m, m->memo.count);
}

static rs_status op_get1(rs_machine *m)
{
    uint64_t index;
    RS_TRY(rs_pm_number(m, 1, &index));
    return get(m, index);
}

static rs_status op_get4(rs_machine *m)
{
    uint64_t index;
    RS_TRY(rs_pm_number(m, 4, &index));
    return get(m, index);
}

static rs_status index_text(rs_machine *m, uint64_t *index)
{
    char text[RS_PM_LINE];
    RS_TRY(rs_pm_line(m, text));
    if (strlen(text) == 0 || strlen(text) > 9 || strspn(text, "0123456789") != strlen(text))
        RS_PM_FAIL(m, "\"%.40s\" is no memo slot", text);
    *index = strtoull(text, NULL, 10);
    return RS_OK;
}

static rs_status op_put_text(rs_machine *m)
{
    uint64_t index;
    RS_TRY(index_text(m, &index));
    return put(m, index);
}

static rs_status op_get_text(rs_machine *m)
{
    uint64_t index;
    RS_TRY(index_text(m, &index));
    return get(m, index);
}

static rs_status op_stop(rs_machine *m)
{
    if (m->mark_count > 0 || m->stack.count != 1)
        RS_PM_FAIL(m, "the pickle ends with %zu values on its stack and %zu open marks",
            m->stack.count, m->mark_count);
    m->pickle->root = m->stack.items[0];
    m->stopped = true;
    return RS_OK;
}

static rs_status (*const handlers[256])(rs_machine *) = {
    [0x80] = rs_pm_proto,
    [0x95] = rs_pm_frame,
    ['.'] = op_stop,
    ['('] = op_mark,
    ['0'] = op_pop,
    ['1'] = op_pop_mark,
    ['2'] = op_dup,
    ['N'] = rs_pm_none,
    [0x88] = rs_pm_true,
    [0x89] = rs_pm_false,
    ['J'] = rs_pm_binint,
    ['K'] = rs_pm_binint1,
    ['M'] = rs_pm_binint2,
    [0x8a] = rs_pm_long1,
    [0x8b] = rs_pm_long4,
    ['I'] = rs_pm_int_text,
    ['L'] = rs_pm_int_text,
    ['G'] = rs_pm_binfloat,
    ['F'] = rs_pm_float_text,
    ['X'] = rs_pm_text4,
    [0x8c] = rs_pm_text1,
    [0x8d] = rs_pm_text8,
    ['T'] = rs_pm_text4,
    ['U'] = rs_pm_text1,
    ['B'] = rs_pm_bytes4,
    ['C'] = rs_pm_bytes1,
    [0x8e] = rs_pm_bytes8,
    [0x96] = rs_pm_bytearray8,
    [']'] = op_empty_list,
    [')'] = op_empty_tuple,
    ['}'] = op_empty_dict,
    [0x8f] = op_empty_set,
    ['a'] = op_append,
    ['e'] = op_appends,
    [0x90] = op_additems,
    [0x91] = op_frozenset,
    ['s'] = op_setitem,
    ['u'] = op_setitems,
    ['t'] = op_tuple,
    [0x85] = op_tuple1,
    [0x86] = op_tuple2,
    [0x87] = op_tuple3,
    ['l'] = op_list,
    ['d'] = op_dict,
    ['q'] = op_put1,
    ['r'] = op_put4,
    ['p'] = op_put_text,
    [0x94] = op_memoize,
    ['h'] = op_get1,
    ['j'] = op_get4,
    ['g'] = op_get_text,
    ['c'] = rs_pm_global,
    [0x93] = rs_pm_stack_global,
    ['R'] = rs_pm_reduce,
    [0x81] = rs_pm_newobj,
    [0x92] = rs_pm_newobj_ex,
    ['b'] = rs_pm_build,
    ['Q'] = rs_pm_persistent,
};

static rs_status run(rs_machine *m)
{
    RS_TRY(rs_pickle_value(m->pickle, RS_VALUE_NONE, &m->none));
    RS_TRY(rs_pickle_value(m->pickle, RS_VALUE_BOOL, &m->truth));
    RS_TRY(rs_pickle_value(m->pickle, RS_VALUE_BOOL, &m->falsehood));
    RS_TRY(rs_pickle_value(m->pickle, RS_VALUE_TUPLE, &m->empty));
    m->truth->as.boolean = true;
    while (!m->stopped) {
        const unsigned char *p;
        m->at = m->in.position;
        if (m->at >= m->in.end)
            RS_PM_FAIL(m, "the pickle ends without a STOP");
        RS_TRY(rs_reader_take(&m->in, 1, &p));
        unsigned char opcode = *p;
        if (handlers[opcode] == NULL)
            RS_PM_FAIL(m, "pickle opcode %02x: %s", opcode,
                opcode == 'i' || opcode == 'o' || (opcode >= 0x82 && opcode <= 0x84)
                    ? "it would call a function or class; refused, nothing is called"
                    : "none that checkpoints use");
        RS_TRY(handlers[opcode](m));
    }
    m->pickle->end = m->in.position;
    return RS_OK;
}

rs_status rs_pickle_read(rs_files *files, int file, int64_t begin, int64_t end, rs_pickle *pickle)
{
    *pickle = (rs_pickle){.pool.limit = RS_PICKLE_POOL};
    rs_machine *m = rs_calloc(1, sizeof *m);
    if (m == NULL)
        return rs_error_memory(sizeof *m);
    m->pickle = pickle;
    rs_status status = rs_reader_init(&m->in, files, file, begin, end);
    if (status == RS_OK)
        status = run(m);
    if (status == RS_ERR_BUDGET)
        rs_error_context(status, "%s: byte %" PRId64, rs_files_path(files, file), m->at);
    rs_reader_fini(&m->in);
    free(m->stack.items);
    free(m->memo.items);
    free(m);
    return status;
}

void rs_pickle_fini(rs_pickle *pickle)
{
    rs_names_fini(&pickle->globals);
    free(pickle->global_list);
    free(pickle->unknown);
    free(pickle->persistent);
    rs_pool_fini(&pickle->pool);
    memset(pickle, 0, sizeof *pickle);
}
