/* Which names a pickle may use, and how. */
#ifndef RS_CKPT_ALLOW_H
#define RS_CKPT_ALLOW_H

#include "ckpt/value.h"

typedef enum rs_allow {
    RS_ALLOW_UNKNOWN = 0, /* may stand as a value, or as the class of an instance; is reported */
    RS_ALLOW_NEVER,       /* its mere presence means an attack: the file is refused */
    RS_ALLOW_VALUE,       /* known; never called */
    RS_ALLOW_CALL         /* known; a call of it is understood, or kept as an opaque record */
} rs_allow;

rs_allow rs_allow_global(const rs_global *global);

#endif
