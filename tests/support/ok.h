/* A call that must succeed: its error is the test's. Include cmocka.h before. */
#ifndef RS_TESTS_OK_H
#define RS_TESTS_OK_H

#include "base/error.h"

#define OK(call)                                                                                   \
    do {                                                                                           \
        rs_status ok_ = (call);                                                                    \
        if (ok_ != RS_OK)                                                                          \
            fail_msg("%s: %s: %s", #call, rs_status_name(ok_), rs_error_message());                \
    } while (0)

#endif
