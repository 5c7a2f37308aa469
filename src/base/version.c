/* The linked library's version. */
#include "reshard/version.h"

const char *rs_version(void)
{
    return RS_VERSION;
}
