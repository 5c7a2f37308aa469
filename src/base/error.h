/* Recording error detail. Include in .c files only. */
#ifndef RS_BASE_ERROR_H
#define RS_BASE_ERROR_H

#include <stddef.h>

#include "reshard/status.h"

/*
 * Records the detail of an error for this thread and returns `status`, so that the first to know
 * can write `return rs_error_set(RS_ERR_ARGUMENT, "tp %d: must be at least 1", tp);`. Callers that
 * pass a status on do not call it.
 */
rs_status rs_error_set(rs_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* Puts "prefix: " before the recorded detail, for callers that know the file or tensor; returns
 * `status`. */
rs_status rs_error_context(rs_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* For errno: "<what>: <strerror>"; RS_ERR_IO, or RS_ERR_NOT_FOUND, RS_ERR_EXISTS, RS_ERR_BUDGET
 * (ENOSPC, ENOMEM, EDQUOT) where errno says so. */
rs_status rs_error_errno(int error, const char *format, ...)
    __attribute__((format(printf, 2, 3), cold));

/* RS_ERR_NO_MEMORY with the number of bytes asked for. */
rs_status rs_error_memory(size_t bytes) __attribute__((cold));

#define RS_TRY(call)                                                                               \
    do {                                                                                           \
        rs_status rs_try_status_ = (call);                                                         \
        if (rs_try_status_ != RS_OK)                                                               \
            return rs_try_status_;                                                                 \
    } while (0)

/* The same, leaving through a label; the function has an `rs_status status`. */
#define RS_TRY_GOTO(call, label)                                                                   \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != RS_OK)                                                                       \
            goto label;                                                                            \
    } while (0)

#endif
