/* The built-in dialects. Include in .c files of this layer only. */
#ifndef RS_DIALECT_BUILTIN_H
#define RS_DIALECT_BUILTIN_H

#include "reshard/dialect.h"

extern const rs_dialect rs_dialect_hf;
extern const rs_dialect rs_dialect_hf_mixtral;
extern const rs_dialect rs_dialect_hf_deepseek;

#endif
