/* The texts of the built-in dialects, made from the JSON files of this folder when the library is
 * built. Include in .c files of this layer only. */
#ifndef RS_DIALECT_BUILTIN_H
#define RS_DIALECT_BUILTIN_H

#include <stddef.h>

typedef struct rs_dialect_text {
    const char *text;
    size_t length;
} rs_dialect_text;

/* NULL behind the last; the name of a dialect is that of its file. */
extern const char *const rs_dialect_builtin_names[];
extern const rs_dialect_text rs_dialect_builtin_texts[];

#endif
