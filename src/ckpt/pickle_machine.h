/* Inside the pickle machine: its state, stack and arguments, shared by the files of its opcodes. */
#ifndef RS_CKPT_PICKLE_MACHINE_H
#define RS_CKPT_PICKLE_MACHINE_H

#include <stdbool.h>

#include "base/error.h"
#include "ckpt/pickle.h"

typedef struct rs_value_list {
    rs_value **items;
    size_t count;
    size_t capacity;
} rs_value_list;

typedef struct rs_machine {
    rs_pickle *pickle;
    rs_reader in;
    int64_t at; /* byte of the opcode being run */
    rs_value_list stack;
    rs_value_list memo;
    size_t marks[RS_PICKLE_NESTING]; /* stack heights */
    size_t mark_count;
    rs_value *none;
    rs_value *truth;
    rs_value *falsehood;
    rs_value *empty; /* tuple */
    bool stopped;
} rs_machine;

#define RS_PM_FAIL(m, ...)                                                                         \
    do {                                                                                           \
        (void)rs_files_malformed((m)->in.files, (m)->in.file, (m)->at, __VA_ARGS__);               \
        return RS_ERR_MALFORMED;                                                                   \
    } while (0)

/* The stack: nothing below the open mark can be reached. */
size_t rs_pm_floor(const rs_machine *m);
rs_status rs_pm_push(rs_machine *m, rs_value *value) RS_MUST_CHECK;
rs_status rs_pm_pop(rs_machine *m, rs_value **out) RS_MUST_CHECK;
rs_status rs_pm_top(rs_machine *m, rs_value **out) RS_MUST_CHECK;
rs_status rs_pm_push_new(rs_machine *m, rs_value_kind kind, rs_value **out) RS_MUST_CHECK;

/* Arguments in the stream: a little-endian number; `length` bytes into the pool, with a NUL behind;
 * the characters up to the next newline, without it. */
#define RS_PM_LINE 1024
rs_status rs_pm_number(rs_machine *m, size_t bytes, uint64_t *out) RS_MUST_CHECK;
rs_status rs_pm_bytes(rs_machine *m, uint64_t length, const char **out) RS_MUST_CHECK;
rs_status rs_pm_line(rs_machine *m, char out[RS_PM_LINE]) RS_MUST_CHECK;

/* Opcodes of pickle_atoms.c. */
rs_status rs_pm_proto(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_frame(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_none(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_true(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_false(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_binint(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_binint1(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_binint2(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_long1(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_long4(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_int_text(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_binfloat(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_float_text(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_text1(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_text4(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_text8(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_bytes1(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_bytes4(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_bytes8(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_bytearray8(rs_machine *m) RS_MUST_CHECK;

/* Opcodes of pickle_names.c. */
rs_status rs_pm_global(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_stack_global(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_reduce(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_newobj(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_newobj_ex(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_build(rs_machine *m) RS_MUST_CHECK;
rs_status rs_pm_persistent(rs_machine *m) RS_MUST_CHECK;

#endif
